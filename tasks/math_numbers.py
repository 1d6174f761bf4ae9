r"""Numbers, numerals with a base, clock times and words: what can be compared without algebra, thousands a second.

`decide` works on cleaned texts (`math_text.clean`) and leaves the rest to `math_equality.same`.
"""

from __future__ import annotations

import re
from fractions import Fraction

from tasks.math_text import MARKS_ONLY, without_units

MIN_DIGITS = 6  # significant digits a decimal needs to stand for a value that has no finite decimal
Tolerance = tuple[float, ...]  # absolute: none, one for all values of a gold, or one for each element of its list

_DECIMAL = r"\d+\.?\d*|\.\d+"
_LITERAL = re.compile(
    rf"([+-]?)({_DECIMAL})(?:(?:\\times|\\cdot|\*)10\^(?:\{{([+-]?\d{{1,3}})\}}|(\d))|[eE]([+-]?\d{{1,3}}))?"
)
_RATIO = re.compile(
    rf"([+-]?)(\d+(?= ?\\)|\d+(?= ))? ?"  # the whole part of a mixed number
    rf"(?:\\frac ?\{{ ?(-?{_DECIMAL}) ?\}} ?\{{ ?(-?{_DECIMAL}) ?\}}|({_DECIMAL})/({_DECIMAL}))"
)
_REPEATING = re.compile(r"([+-]?)(\d*)\.(\d*)\\(?:overline|bar|dot)\{(\d+)\}")
_BASED = re.compile(r"\(?([0-9A-F]+)\)?_(?:\{ ?(\d{1,2}) ?\}|(\d{1,2}))")
_CLOCK = re.compile(r"(\d{1,2}):([0-5]\d)(?::([0-5]\d))?")
_WORDS = re.compile(r"\\text\{([^{}]*)\}")
_STRUCTURE = re.compile(r"[=<>,;]|\\(?:in|le|ge|ne|cup|land)(?![a-zA-Z])")


def number(text: str) -> tuple[Fraction, Fraction | None] | None:
    """A literal as (value, tolerance): half a unit of the last digit for a long enough decimal, else None."""
    if len(text) > 500:  # int() refuses very long ones
        return None
    literal = _LITERAL.fullmatch(re.sub(r"(?<!\d) | (?!\d)", "", text))
    if literal:
        sign, digits, *exponents = literal.groups()
        shift = Fraction(10) ** int(next((e for e in exponents if e), 0))
        places = len(digits.partition(".")[2])
        long_enough = places and len(digits.replace(".", "").lstrip("0")) >= MIN_DIGITS
        value = Fraction(digits.rstrip(".")) * shift
        return (-value if sign == "-" else value), (shift / 10**places / 2 if long_enough else None)
    ratio = _RATIO.fullmatch(text)
    if ratio:
        sign, whole, *parts = ratio.groups()
        top, bottom = (Fraction(part.rstrip(".")) for part in parts if part)
        if bottom == 0:
            return None
        value = int(whole or 0) + top / bottom
        return (-value if sign == "-" else value), None
    repeating = _REPEATING.fullmatch(text)
    if repeating:
        sign, whole, fixed, period = repeating.groups()
        value = Fraction(int(whole + fixed or 0)) + Fraction(int(period), 10 ** len(period) - 1)
        value /= 10 ** len(fixed)
        return (-value if sign == "-" else value), None
    return None


def terminates(value: Fraction) -> bool:
    """Does the value have a finite decimal? Then a decimal must hit it exactly."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def _equal(gold: Fraction, answer: Fraction, rounding: Fraction | None, tolerance: Tolerance) -> bool:
    gap = abs(gold - answer)
    if gap == 0 or (len(tolerance) == 1 and gap <= Fraction(str(tolerance[0]))):
        return True
    return rounding is not None and not terminates(gold) and gap <= rounding


def clock(text: str) -> tuple[int, ...] | None:
    """The parts of a clock time, 11:05 or 1:02:03."""
    match = _CLOCK.fullmatch(text)
    return tuple(int(part) for part in match.groups() if part) if match else None


def words(text: str) -> list[str]:
    return [word.casefold() for word in _WORDS.findall(text)]


def between_words(text: str) -> list[str]:
    return _WORDS.sub("\0", text).split("\0")


def _plain(text: str) -> str:
    return _WORDS.sub(r"\1", text).replace(" ", "").casefold() if "\\text" in text else text.casefold()


def _based(match: re.Match[str]) -> tuple[str, int]:
    return match[1].lstrip("0") or "0", int(match[2] or match[3])


def decide(gold: str, answer: str, tolerance: Tolerance = ()) -> bool | None:
    """Equality of cleaned texts as far as it needs no algebra; None when it does."""
    if not gold or not answer:
        return False
    if _plain(gold) == _plain(answer):
        return True
    if MARKS_ONLY.fullmatch(gold) or MARKS_ONLY.fullmatch(answer):
        return False
    (gold, g_unit), (answer, a_unit) = without_units(gold), without_units(answer)
    if g_unit and a_unit and g_unit != a_unit:
        return False
    g_base, a_base = _BASED.fullmatch(gold), _BASED.fullmatch(answer)
    if g_base:  # "write 5 in base 2" is not answered by 5
        return bool(a_base) and _based(g_base) == _based(a_base)  # type: ignore[arg-type]
    if a_base:
        digits, base = _based(a_base)
        if 2 <= base <= 36 and len(digits) < 200 and all(int(digit, 36) < base for digit in digits):
            answer = str(int(digits, base))
    exact, given = number(gold.removesuffix("%")), number(answer.removesuffix("%"))
    if exact and given:
        scales = {Fraction(1)}  # one of the two in percent: 35% is 35 and 0.35
        if gold.endswith("%") != answer.endswith("%"):
            scales.add(Fraction(1, 100) if gold.endswith("%") else Fraction(100))
        return any(_equal(exact[0] * scale, *given, tolerance) for scale in scales)
    if words(gold) != words(answer) and not _STRUCTURE.search(gold + answer):
        return False
    return None
