"""Comparing what a program printed or returned with what is right, and the form in which returned values travel.

A program chooses what comes back. So everything here takes time at most proportional to its size, and anything that is
not plain data raises a ValueError or TypeError.
"""

from __future__ import annotations

import ast
import base64
import collections
import json
import math
import re
from collections.abc import Hashable, Iterable
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

TOLERANCE = 1e-6  # of floats, relative or absolute, unless a test brings its own

# -------------------------------------------------------------------------------------------------------------- printed


def same_output(expected: str, printed: str) -> bool:
    """Line by line; blanks at the end of a line and empty lines at the end do not count, all other blanks do.

    Integers must be equal, floats within TOLERANCE; nan matches nothing. "2" accepts "2.0" but not "2.0000001". Digits
    after a leading zero are text, not a number: "0011" is not "11".
    """
    wanted, got = ([line.rstrip() for line in text.rstrip().split("\n")] for text in (expected, printed))
    return len(wanted) == len(got) and all(map(_same_line, wanted, got))


def _same_line(wanted: str, got: str) -> bool:
    left, right = re.split(r"(\s+)", wanted), re.split(r"(\s+)", got)
    return len(left) == len(right) and all(map(_same_word, left, right))


_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?inf(inity)?", re.I)  # linear time
_NAN = re.compile(r"[+-]?nan", re.I)


def _same_word(wanted: str, got: str) -> bool:
    if wanted == got:
        return not _NAN.fullmatch(wanted)
    if not (_NUMBER.fullmatch(wanted) and _NUMBER.fullmatch(got)):
        return False
    if _INTEGER.fullmatch(wanted):
        try:
            return Decimal(wanted) == Decimal(got)  # exact at any size, and never expands an exponent
        except InvalidOperation:
            return False
    return _close(float(wanted), float(got))


def _close(wanted: Any, got: Any, atol: float = 0.0) -> bool:
    """Within TOLERANCE; `atol` replaces it, with room for the rounding of large numbers."""
    allowed = atol + 1e-9 * abs(wanted) if atol else TOLERANCE * max(1.0, abs(wanted))
    return wanted == got or abs(wanted - got) <= allowed < math.inf


# ------------------------------------------------------------------------------------------------------------- returned


def same_value(expected: Any, returned: Any, exact: bool = True, atol: float = 0.0) -> bool:
    """Equality of returned data: a tuple equals a list, integers exactly, floats within TOLERANCE or `atol`, nan never.

    exact=False: `expected` went through JSON, which has no sets, bytes or complex numbers and only texts as keys. There
    a list may stand for a set, the text "1" for the key 1, and a text for a value that Python writes or decodes so.
    """
    same = partial(same_value, exact=exact, atol=atol)
    if isinstance(expected, (list, tuple)):
        if not exact and isinstance(returned, (set, frozenset)):
            inner = frozenset if any(isinstance(item, frozenset) for item in returned) else tuple
            return len(expected) == len(returned) and distinct(freeze(item, inner) for item in expected) == returned
        if not exact and isinstance(returned, (bytes, bytearray)):
            return list(expected) == list(returned)
        alike = isinstance(returned, (list, tuple)) and len(expected) == len(returned)
        return alike and all(map(same, expected, returned))
    if isinstance(expected, dict):
        if not isinstance(returned, dict) or len(expected) != len(returned):
            return False
        if not exact and expected.keys() != returned.keys():
            names = {meaning: key for key in expected for meaning in _meanings(key) if isinstance(meaning, Hashable)}
            returned = {names.get(key, _NOT_IN_JSON): value for key, value in returned.items()}
        return expected.keys() == returned.keys() and all(same(value, returned[key]) for key, value in expected.items())
    if not exact and isinstance(expected, str) and type(returned) in _NOT_IN_JSON:
        spelled = isinstance(returned, (bytes, bytearray)) and expected in _spellings(bytes(returned))
        return spelled or any(type(value) is type(returned) and value == returned for value in _meanings(expected))
    number = isinstance(expected, (float, complex)) or (atol and type(expected) is int)
    if number and isinstance(returned, (int, float, complex)):
        try:
            return _close(expected, returned, atol)
        except OverflowError:  # beyond all floats
            return False
    return bool(expected == returned)


_NOT_IN_JSON = (tuple, set, frozenset, bytes, bytearray, complex)


def _meanings(text: Any) -> list:
    """What a text in JSON may have been: itself, or the value that it represents in JSON or in Python."""
    for read in (json.loads, ast.literal_eval):
        try:
            return [text, read(text[:10_000])]
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):  # no such value
            pass
    return [text]


def _spellings(value: bytes) -> tuple[str, ...]:
    encoded = (value.hex(), base64.b64encode(value).decode(), repr(value))
    return (*encoded, value.decode("utf-8", "replace"), value.decode("latin-1"))


def freeze(item: Any, inner: type = tuple) -> Any:
    """An item as a set can hold it: lists as tuples (or what `inner` says), dictionaries by their entries."""
    if isinstance(item, (list, tuple)):
        return inner(freeze(part, inner) for part in item)
    if isinstance(item, dict):
        return frozenset((key, freeze(value, inner)) for key, value in item.items())
    return frozenset(item) if isinstance(item, set) else item


def number_key(key: Any) -> Any:
    """The number that a key of a JSON object writes, or the key as it is."""
    for kind in (int, float):
        try:
            return kind(key)
        except (ValueError, TypeError):
            pass
    return key


def distinct(items: Iterable[Any]) -> set:
    """set(items), but ValueError for items chosen to collide: 30,000 integers with one hash take 11 s."""
    buckets: dict[int, list] = {}
    for item in items:
        bucket = buckets.setdefault(hash(item), [])
        if item not in bucket:
            bucket.append(item)
            if len(bucket) > 100:
                raise ValueError("more than 100 different items have the same hash")
    return {item for bucket in buckets.values() for item in bucket}


# ------------------------------------------------------------------------------------------------------- on the channel


def to_data(value, depth=100):
    """JSON-able form of data of exact builtin types. TypeError for anything else, ValueError when nested deeper than
    `depth`. Runs in the sandbox too."""
    kind = type(value)
    if value is None or kind in (str, bool, float):
        return value
    if kind is int:
        return value if abs(value) < 2**63 else {"int": hex(value)}  # in linear time at any length
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind in (bytes, bytearray):
        return {"bytes": value.hex()}
    if kind is re.Match:
        return True  # that is how the result of re.match is used
    if depth == 0:
        raise ValueError("nested too deeply")
    if kind is list:
        return [to_data(item, depth - 1) for item in value]
    if kind in (tuple, set, frozenset):
        return {kind.__name__: [to_data(item, depth - 1) for item in value]}
    if kind in (dict, collections.Counter, collections.OrderedDict, collections.defaultdict):
        return {"dict": [[to_data(key, depth - 1), to_data(item, depth - 1)] for key, item in value.items()]}
    raise TypeError(f"a result must be made of plain builtin values, not {kind.__name__}")


def from_data(value, depth=100):
    """The inverse of `to_data`, OrderedDict and the like as dict. ValueError or TypeError for other JSON."""
    kind = type(value)
    if value is None or kind in (str, bool, float, int):
        return value
    if depth == 0:
        raise ValueError("nested too deeply")
    if kind is list:
        return [from_data(item, depth - 1) for item in value]
    if kind is not dict or len(value) != 1:
        raise ValueError("not made by to_data()")
    ((kind, item),) = value.items()
    if kind in ("int", "bytes") and type(item) is str:
        return int(item, 16) if kind == "int" else bytes.fromhex(item)
    if type(item) is not list:
        raise ValueError("not made by to_data()")
    if kind == "complex" and [type(part) for part in item] == [float, float]:
        return complex(*item)
    if kind == "tuple":
        return tuple(from_data(part, depth - 1) for part in item)
    if kind in ("set", "frozenset"):
        members = distinct(from_data(part, depth - 1) for part in item)
        return members if kind == "set" else frozenset(members)
    if kind == "dict":
        pairs = [(from_data(key, depth - 1), from_data(entry, depth - 1)) for key, entry in item]
        distinct(key for key, _ in pairs)
        return dict(pairs)
    raise ValueError("not made by to_data()")


def read_reply(text: str) -> Any:
    """The value in a program's reply. ValueError or TypeError, and nothing else, when there is none."""
    try:
        return from_data(json.loads(text, parse_int=_short_integer))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _short_integer(digits: str) -> int:
    if len(digits) > 20:  # to_data() writes longer ones in hexadecimal: decimal digits take quadratic time
        raise ValueError("not made by to_data()")
    return int(digits)
