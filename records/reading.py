"""Reading what runs wrote. It needs no torch, so the commands that only read start at once."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read_object(path: Path, needs: Iterable[str] = ()) -> Record:
    """A file that holds one JSON object. ValueError naming the file when it is damaged or lacks one of `needs`."""
    return _objects({str(path): _text(path)}, needs)[0]


def read_log(path: Path, needs: Iterable[str] = ()) -> list[Record]:
    """One JSON object a line; a missing file has none. An unfinished last line is left out.

    ValueError naming file and line when one is damaged or lacks one of `needs`.
    """
    lines = _text(path).split("\n")[:-1] if path.exists() else []
    return _objects({f"{path}, line {number}": line for number, line in enumerate(lines, 1)}, needs)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error})") from None


def _objects(texts: dict[str, str], needs: Iterable[str]) -> list[Record]:
    """`texts` by the place that an error names."""
    rows = []
    for place, text in texts.items():
        try:
            rows.append(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{place}: not JSON ({error})") from None
    for place, row in zip(texts, rows, strict=True):
        if not isinstance(row, dict):
            raise ValueError(f"{place}: not a JSON object")
        if missing := [name for name in needs if name not in row]:
            raise ValueError(f"{place}: {missing[0]} is missing")
    return rows


def nearest_folder(folder: Path, file: str) -> str:
    """The hint at the end of an error about a folder without `file`: an existing one that has it.

    That is a folder above or inside, or the one whose name is nearest. Any part of the path may be mistyped, and
    `runs/` may be left out.
    """
    folder = Path(os.path.abspath(folder))
    inside = sorted(folder.glob(f"*/{file}"), key=lambda path: path.stat().st_mtime)
    above = [path for path in folder.parents if (path / file).is_file()]
    if above or inside:
        return _hint(above[0] if above else inside[-1].parent)
    start = next((path for path in folder.parents if path.is_dir()), folder)
    name = folder.relative_to(start)
    levels = "*" * min(len(name.parts), 2)  # of the path that do not exist; more of them could take long to search
    found = [path.parent for path in start.glob(str(Path(*levels, file)))]
    known = {str(path.relative_to(start)).lower(): path for path in found}
    known |= {path.parent.name.lower(): path.parent for path in Path("runs").glob(f"*/{file}")}
    names = difflib.get_close_matches(str(name).lower(), known, 1)
    return _hint(known[names[0]]) if names else ""


def _hint(folder: Path) -> str:
    """As one would type it here."""
    here = Path.cwd()
    return f" (did you mean {folder.relative_to(here) if folder.is_relative_to(here) else folder}?)"
