"""A run folder for one process alone, and JSON files in it that notice damage. No torch."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other trainings out of a folder. The lock ends with this process, however it ends.

    ValueError when another process holds it.
    """
    with open(folder / ".lock", "a+", encoding="utf-8", errors="replace") as file:
        file.seek(0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"--output-dir {folder}: a training is running there ({file.read().strip()}); "
                "wait for its end, or name another folder"
            ) from None
        except OSError as error:  # some network file systems have no locks
            print(f"note: {folder} cannot be locked ({error}); start nothing else there", flush=True)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def to_disk(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_sealed(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON object with a hash of what it says, so that `read_sealed` notices any change."""
    write_text(path, json.dumps({**values, "sha256": _seal(values)}, indent=1))


def read_sealed(path: Path) -> dict[str, Any]:
    """What `write_sealed` wrote; a file of an older version has no hash. ValueError naming a file that is damaged."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: " + ("missing" if not path.exists() else f"cannot be read ({error})")) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: not a JSON object but {type(values).__name__}")
    seal = values.pop("sha256", None)
    if seal not in (None, _seal(values)):
        raise ValueError(f'{path}: changed since it was written (without its line "sha256" it is read as it is)')
    return values


def _seal(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def sha256(path: Path, size: int = -1) -> str:
    """The hash of a file, or of its first `size` bytes; "" if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while size != 0 and (block := file.read(2**20 if size < 0 else min(size, 2**20))):
                digest.update(block)
                size -= len(block) if size > 0 else 0
    except OSError:
        return ""
    return digest.hexdigest()
