"""Data sets: rows of a `.jsonl` file (one JSON object a line), a `.json` file (one list of objects) or a hub id."""

import json
import random
import re
import sys
import unicodedata
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tasks.code_values import NOT_DATA

Row = dict[str, Any]
UNREADABLE = (*NOT_DATA, AttributeError, zlib.error)  # what a malformed row raises

# Data sets hold integers of more digits than Python reads by default; a million would take minutes.
sys.set_int_max_str_digits(100_000)


def read_json(text: str) -> Any:
    """json.loads, with a ValueError also for a repeated key, half a surrogate pair or deep nesting."""
    try:
        value = json.loads(text, object_pairs_hook=_object)
        if re.search(r"\\u[dD][89a-fA-F]", text):
            json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError, a ValueError
        return value
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> Row:
    if len(row := dict(pairs)) < len(pairs):
        raise ValueError(f"one of {[*row]} stands twice in one object")
    return row


def read_rows(source: str, config: str | None = None) -> list[Row]:
    """All rows of a data set, in its order. Hub ids have a configuration, and may name a split: "openai/gsm8k:test".

    FileNotFoundError; ValueError when it is malformed, empty or no source; ImportError without `datasets`.
    """
    path = Path(source)
    if path.suffix == ".jsonl":
        with path.open("rb") as lines:  # bytes: U+2028 and its like end no line
            rows = [_read(line, f"{source!r}, line {n}") for n, line in enumerate(lines, start=1) if line.strip()]
    elif path.suffix == ".json":
        rows = _read(path.read_bytes() or b"[]", repr(source))
    elif path.exists() or source.count("/") > 1 or not source.strip("./~"):
        raise ValueError(f"data {source!r}: expected a .jsonl file, a .json file or a hub id such as 'openai/gsm8k'")
    else:
        name, _, split = source.partition(":")
        rows = list(map(dict, hub(source).load_dataset(name, config, split=split or "train")))
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"data {source!r}: no rows (a .json file holds one list of objects)")
    if odd := [number for number, row in enumerate(rows, start=1) if not isinstance(row, dict)]:
        raise ValueError(f"data {source!r}, row {odd[0]}: not an object")
    return rows


def read_problems(source: str, config: str | None, read: Callable[[Row], Any]) -> list[Any]:
    """What `read` makes of every row. ValueError with source and row for one that it cannot read."""
    problems = []
    for number, row in enumerate(read_rows(source, config), start=1):
        try:
            problems.append(read(row))
        except UNREADABLE as error:
            raise ValueError(f"data {source!r}, row {number}: {type(error).__name__}: {error}") from None
    return problems


def _read(text: bytes, place: str) -> Any:
    try:
        return read_json(text.decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"data file {place}: not JSON ({error})") from None


def hub(source: str) -> Any:
    """The optional package `datasets`, or an ImportError."""
    try:
        import datasets
    except ImportError:
        raise ImportError(f"data {source!r}: to read the hub, pip install datasets (or name a .jsonl file)") from None
    return datasets


def fixed_order(count: int) -> tuple[int, ...]:
    """A permutation of range(count): files sorted by topic come mixed."""
    order = list(range(count))
    random.Random(0).shuffle(order)
    return tuple(order)


def normalize_question(text: str) -> str:
    """The same for questions that differ in Unicode forms, case or white space only."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def check_disjoint(training: Iterable[str], held_out: Iterable[str]) -> None:
    """ValueError for a question of training that is held out too."""
    known = set(map(normalize_question, training))
    for question in held_out:
        if normalize_question(question) in known:
            raise ValueError(f"--data and --eval-data overlap; both contain the question {question[:200]!r}")
