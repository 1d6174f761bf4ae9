"""A run folder: for one training at a time, its files whole, pinned to what it was made from. No torch."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from records.console import say

if TYPE_CHECKING:
    from distributed.world import World
    from options import Config

Row = dict[str, Any]


@contextmanager
def open_run(config: Config, world: World) -> Iterator[Path]:
    """The folder of a run, for this training alone. All ranks call it. A new folder that stays empty is removed.

    ValueError on options that differ between ranks, and on a folder that is in use, holds a run or has links.
    """
    first, *others = world.gather(asdict(config))
    for rank, other in enumerate(others, 1):
        for name, value in other.items():
            if value != first[name] and name not in ("device", "output_dir"):
                raise ValueError(f"--{name.replace('_', '-')} is {first[name]} on rank 0, but {value} on rank {rank}")
    folder = Path(first["output_dir"])  # of rank 0: its default holds the time of day
    if not world.main:
        yield folder
        return
    if not config.resume and (folder / "config.json").exists():
        raise ValueError(f"--output-dir {folder} already holds a run: add --resume, or name another folder")
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    if links := [path for path in folder.rglob("*") if path.is_symlink()]:
        raise ValueError(f"{links[0]} is a link: remove it")
    with open(folder / ".lock", "a") as file:
        try:  # until the file is closed
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"--output-dir {folder}: a training is running there; name another folder") from None
        except OSError as error:  # some network file systems have no locks
            say(f"note: {folder} cannot be locked ({error}); start nothing else there")
        try:
            yield folder
        finally:
            if new and os.listdir(folder) == [".lock"]:
                shutil.rmtree(folder)


def pin(run: Path, inputs: Mapping[str, str]) -> None:
    """Note what a run is made from: {file: ""}, whose hash is taken, {hub id: commit}."""
    write_text(run / "inputs.json", json.dumps(_pinned(run, inputs), indent=1))


def check_pins(run: Path, inputs: Mapping[str, str]) -> None:
    """ValueError naming one that has changed. A Python file may have moved."""
    if not (run / "inputs.json").exists():
        raise ValueError(f"{run} has no inputs.json: another version wrote it (commit 2d69621 reads old runs)")
    known = read_object(run / "inputs.json")
    moved = {Path(name).name: digest for name, digest in known.items() if name.endswith(".py")}
    for name, digest in _pinned(run, inputs).items():
        if known.get(name, moved.get(Path(name).name, digest)) != digest:
            raise ValueError(f"{name} has changed since the run in {run} was started")


def _pinned(run: Path, inputs: Mapping[str, str]) -> dict[str, str]:
    # files by their place in the run, or in full
    hashes = {}
    for name in sorted({os.path.realpath(name) for name, commit in inputs.items() if not commit}):
        digest = hashlib.sha256()
        with open(name, "rb") as file:
            while block := file.read(2**20):  # weights may be larger than free memory
                digest.update(block)
        hashes[name.removeprefix(f"{run.resolve()}/")] = digest.hexdigest()
    return hashes | {name: commit for name, commit in inputs.items() if commit}


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step; a link is replaced, not followed."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    with open(temporary, "x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def append_row(path: Path, row: Row) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def read_rows(path: Path, needs: Iterable[str] = ()) -> list[Row]:
    """One JSON object a line; none of a missing file or of half a last line.

    ValueError naming a line that is something else, or in which one of `needs` is no number.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if path.exists() else []
    return [_object(line, f"{path}, line {number}", needs) for number, line in enumerate(lines, 1)]


def read_object(path: Path) -> Row:
    """The JSON object in a file. ValueError naming it when it holds something else."""
    return _object(path.read_text(encoding="utf-8", errors="replace"), str(path))


def _object(text: str, place: str, needs: Iterable[str] = ()) -> Row:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError(f"{place}: not a JSON object")
    for name in needs:
        value: Any = row.get(name)
        if type(value) not in (int, float) or not abs(value) < 1e15:  # NaN is not
            raise ValueError(f"{place}: {name} is {value!r:.40}, no sensible number")
    return row


def is_checkpoint(path: Path) -> bool:
    return bool(re.fullmatch(r"step-\d{6,12}", path.name)) and path.parent.name == "checkpoints" and path.is_dir()


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run folder, oldest first."""
    return sorted(filter(is_checkpoint, (run / "checkpoints").glob("step-*")), key=step_of)


def latest_checkpoint(run: Path) -> Path:
    """The one that `latest` names. ValueError when there is none."""
    pointer, found = run / "checkpoints" / "latest", {path.name: path for path in checkpoints(run)}
    name = pointer.read_text(encoding="utf-8", errors="replace").strip() if pointer.exists() else ""
    if name not in found:
        raise ValueError(f"{pointer}: names no complete checkpoint; there are {', '.join(found) or 'none'}")
    return found[name]


def locate(source: str) -> Path | None:
    """The checkpoint that a name stands for; None for a model. ValueError on a missing step.

    runs/a, runs/a@100, runs/a/checkpoints/step-000100, or the folder of a policy in one.
    """
    path, (name, _, step) = Path(source), source.rpartition("@")
    if name and not path.exists():
        found = {str(step_of(checkpoint)): checkpoint for checkpoint in checkpoints(Path(name))}
        if step not in found:
            there = ", ".join(found) or "none"
            raise ValueError(f"{source}: no checkpoint of step {step!r} (RUN@STEP); there are {there}")
        return found[step]
    if is_checkpoint(path) or is_checkpoint(path.parent):
        return path
    return latest_checkpoint(path) if (path / "checkpoints").is_dir() else None


def policy_folder(checkpoint: Path, name: str) -> Path:
    """Who plays this policy: that of its name in a checkpoint, the only one, or this folder. ValueError if none."""
    if not is_checkpoint(checkpoint):
        return checkpoint
    there = {path.name: path for path in sorted(checkpoint.iterdir()) if path.is_dir()}
    if name not in there and len(there) != 1:
        raise ValueError(f"{checkpoint}: no policy {name} there; name one of {', '.join(there)} by its folder")
    return there.get(name) or there.popitem()[1]
