"""Check your solutions: what was expected and what you got.

    python -m exercises               all nine
    python -m exercises 3             one of them
    python -m exercises --solved      the same checks on the product itself, which has no second copy of the solutions

Exit code 0 when everything that was run is solved, else 1.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from records import console as console  # from here on Ctrl-C is quiet

NAMES = [path.stem for path in sorted(Path(__file__).parent.glob("e[1-9]_*.py"))]


def same(expected: Any, got: Any) -> bool:
    """Numbers to 1e-4, sequences item by item, everything else exactly."""
    if isinstance(expected, (list, tuple)):
        got = list(got) if isinstance(got, (list, tuple)) else [None]
        return len(expected) == len(got) and all(map(same, expected, got))
    if isinstance(expected, float):
        return isinstance(got, (int, float)) and math.isclose(expected, got, abs_tol=1e-4)
    return expected == got


def shown(value: Any) -> str:
    """A number with four digits after the point, a list of them likewise."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    return f"{value:.4f}" if isinstance(value, float) else repr(value)


def run(name: str, solved: bool) -> bool:
    """Print one line for each check; whether all of them hold."""
    module = importlib.import_module(f"exercises.{name}")
    print(f"{name[1]}. {(module.__doc__ or '').splitlines()[0]}")
    right = True
    try:
        for what, expected, got in module.checks(module.product if solved else module.solution):
            holds = same(expected, got)
            right &= holds
            print(f"   {'ok   ' if holds else 'WRONG'} {what}: expected {shown(expected)}, got {shown(got)}")
    except NotImplementedError:
        print(f"   not solved yet: exercises/{name}.py")
        return False
    return right


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", type=int, choices=[[], *range(1, len(NAMES) + 1)], metavar="N")
    parser.add_argument("--solved", action="store_true", help="check the product instead of your solutions")
    given = parser.parse_args(argv)
    chosen = [NAMES[number - 1] for number in given.numbers] or NAMES
    right = [run(name, given.solved) for name in chosen]
    print(f"{sum(right)} of {len(right)} solved")
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
