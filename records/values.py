"""Words and values that a person or a file gave: what they should be, and what was probably meant. No torch."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", NoneType: "null"}


def nearest(word: str, known: Sequence[str]) -> str:
    """The hint at the end of an error about a word that does not exist."""
    found = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {found[0]}?)" if found else ""


def fits(value: Any, kind: Any) -> bool:
    """Whether a value that was read from JSON is of the annotated kind; a kind that JSON does not know takes any."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in parts
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if kind is list or origin is list:
        return isinstance(value, list) and all(fits(item, part) for item in value for part in parts)
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and -math.inf < value < math.inf
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(kind, type) or kind not in NAMES or isinstance(value, kind)


def in_words(kind: Any) -> str:
    """What a value of this kind is called.

    >>> in_words(int | None)
    'a whole number or null'
    """
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if kind is list or get_origin(kind) is list:
        return "a list"
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(in_words, get_args(kind)))
    return NAMES.get(kind, "something else")
