"""Printed texts and returned values: their equality, and the form in which they travel.

A program chooses what comes back, so everything takes linear time, and what is not plain data raises one of NOT_DATA.
"""

import collections
import math
import re
from collections.abc import Iterable
from decimal import Context, Decimal
from typing import Any

TOLERANCE = 1e-6  # of floats, relative or absolute
NOT_DATA = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
_NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?inf(inity)?", re.I)


def same_output(expected: str, printed: str) -> bool:
    """Line by line; blanks around lines and empty lines around the text do not count, as in LiveCodeBench.

    Integers must be equal, floats within TOLERANCE; nan matches nothing. "2" accepts "2.0" but not "2.0000001". With a
    leading zero digits are text: "0011" is not "11".
    """
    lines = ("\n".join(line.strip() for line in text.strip().split("\n")) for text in (expected, printed))
    wanted, got = (re.split(r"(\s+)", text) for text in lines)  # words and, at every second place, blanks
    return len(wanted) == len(got) and all(map(_same_word, wanted, got))


def _same_word(wanted: str, got: str) -> bool:
    if wanted == got:
        return wanted.lower().strip("+-") != "nan"
    if not (_NUMBER.fullmatch(wanted) and _NUMBER.fullmatch(got)):
        return False
    if not wanted.strip("+-").isdigit():
        return _close(float(wanted), float(got))
    return Decimal(wanted) == Decimal(got, Context(traps=[]))  # exact, and never expands an exponent


def _close(wanted: Any, got: Any, atol: float = 0.0) -> bool:
    """Within TOLERANCE, or `atol` and room for rounding."""
    allowed = atol + 1e-9 * abs(wanted) if atol else TOLERANCE * max(1.0, abs(wanted))
    return wanted == got or abs(wanted - got) <= allowed < math.inf


def same_value(expected: Any, returned: Any, atol: float = 0.0) -> bool:
    """Equality of data: integers exactly, floats within TOLERANCE or `atol`, nan never. A tuple equals a list; apart
    from numbers nothing else equals a value of another type. OverflowError beyond all floats."""
    if isinstance(expected, (list, tuple)):
        alike = isinstance(returned, (list, tuple)) and len(expected) == len(returned)
        return alike and all(same_value(*pair, atol) for pair in zip(expected, returned, strict=True))
    if isinstance(expected, dict):
        alike = isinstance(returned, dict) and expected.keys() == returned.keys()
        return alike and all(same_value(value, returned[key], atol) for key, value in expected.items())
    number = isinstance(expected, (float, complex)) or (atol and type(expected) is int)
    if number and isinstance(returned, (int, float, complex)):
        return _close(expected, returned, atol)
    return bool(expected == returned)


def distinct(items: Iterable[Any]) -> set:
    """set(items), but ValueError for items chosen to collide: 30,000 integers with one hash take 11 s."""
    items = list(items)
    if max(collections.Counter(map(hash, items)).values(), default=0) > 100:
        raise ValueError("more than 100 items have the same hash")
    return set(items)


def to_data(value):
    """Data of exact builtin types in a form that JSON keeps, else TypeError. Runs in the sandbox too."""
    kind = type(value)
    if value is None or kind in (str, bool, float):
        return value
    if kind is int:
        return value if abs(value) < 2**63 else {"int": hex(value)}  # in linear time
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind in (bytes, bytearray):
        return {"bytes": value.hex()}
    if (kind.__module__, kind.__name__) == ("re", "Match"):
        return True  # all that is asked of a re.match
    if kind is list:
        return [to_data(item) for item in value]
    if kind in (tuple, set, frozenset):
        return {kind.__name__: [to_data(item) for item in value]}
    if issubclass(kind, dict) and kind.__module__ in ("builtins", "collections"):  # Counter, defaultdict, ...
        return {"dict": [[to_data(key), to_data(item)] for key, item in value.items()]}
    raise TypeError(f"a result must be made of plain builtin values, not {kind.__name__}")


def from_data(value: Any) -> Any:
    """The inverse of `to_data`, OrderedDict and the like as dict. One of NOT_DATA for other JSON."""
    if isinstance(value, list):
        return [from_data(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, item),) = value.items()
    if kind in ("int", "bytes"):
        return int(item, 16) if kind == "int" else bytes.fromhex(item)
    items = [from_data(part) for part in item]
    if kind == "dict":
        distinct(key for key, _ in items)
        return dict(items)
    if kind in ("complex", "tuple"):
        return complex(*items) if kind == "complex" else tuple(items)
    return {"set": set, "frozenset": frozenset}[kind](distinct(items))
