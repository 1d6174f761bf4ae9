"""Lines on the console that any terminal can show, whatever a model or a data set wrote into them. No torch."""

from __future__ import annotations

import sys
from decimal import ROUND_HALF_UP, Decimal

from tqdm import tqdm


def printable(text: str) -> str:
    """Control characters as they are written in Python, so that they do nothing; lines and tabs stay.

    >>> printable("a clear screen: \\x1b[2J")
    'a clear screen: \\\\x1b[2J'
    """
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)


def say(text: str) -> None:
    """A line on standard output, at once, also where that is a file; above the bar where there is one."""
    encoding = sys.stdout.encoding or "utf-8"  # letters that it lacks are written as escapes
    tqdm.write(printable(text).encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def half_up(value: float, digits: int = 2) -> str:
    """Rounded as people do; Python's own way takes the even digit, or the binary number just below.

    >>> half_up(0.125), half_up(0.145), f"{0.145:.2f}"
    ('0.13', '0.15', '0.14')
    """
    exact = Decimal(repr(float(value)))
    return str(exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP) if exact.is_finite() else exact)
