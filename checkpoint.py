"""Run folders: what a run writes, and how it goes on after it was stopped at any moment.

    config.json              every option of the run
    metrics.jsonl            one JSON object a step; the same seed on the same CPU gives the same file
    timing.jsonl             seconds of each step, apart because they never repeat
    checkpoints/step-000020/ POLICY/ (a transformers folder), POLICY/optimizer.pt, state.json
    checkpoints/latest       name of the newest complete checkpoint

A checkpoint is written under a temporary name and renamed when it is complete, so a kill leaves either all of it or
nothing.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from policy import Policy


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def save_checkpoint(run: Path, step: int, policies: Mapping[str, Policy], state: dict[str, Any], keep: int) -> Path:
    """Save after `step` finished steps; keeps the newest `keep` checkpoints. `state` is any JSON."""
    folder = run / "checkpoints"
    final, temporary = folder / f"step-{step:06d}", folder / f".writing-{step:06d}"
    shutil.rmtree(temporary, ignore_errors=True)
    for name, policy in policies.items():
        policy.save(temporary / name)
        torch.save(policy.optimizer.state_dict(), temporary / name / "optimizer.pt")
    write_text(temporary / "state.json", json.dumps({"step": step, **state}))
    for path in temporary.rglob("*.*"):  # on disk before the rename makes it visible
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    shutil.rmtree(final, ignore_errors=True)  # a resumed run may write the same step again
    os.replace(temporary, final)
    write_text(folder / "latest", final.name)
    for old in sorted(folder.glob("step-*"))[:-keep]:
        shutil.rmtree(old)
    return final


def latest_checkpoint(run: Path) -> Path:
    """The newest complete checkpoint of a run folder. Raises FileNotFoundError naming the folder when there is none."""
    pointer = run / "checkpoints" / "latest"
    if pointer.is_file() and (found := pointer.parent / pointer.read_text(encoding="utf-8").strip()).is_dir():
        return found
    complete = sorted((run / "checkpoints").glob("step-*/state.json"))
    if not complete:
        raise FileNotFoundError(f"{run}: no complete checkpoint in its folder checkpoints/")
    return complete[-1].parent


def load_optimizers(checkpoint: Path, policies: Mapping[str, Policy]) -> dict[str, Any]:
    """Restore the optimizers of policies that were loaded from this checkpoint; returns its state."""
    for name, policy in policies.items():
        saved = torch.load(checkpoint / name / "optimizer.pt", map_location=policy.device, weights_only=True)
        policy.optimizer.load_state_dict(saved)
    return json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))


def cut_log(path: Path, step: int) -> None:
    """Drop the rows that were written after the checkpoint of `step`: they will be written again."""
    if path.exists():
        rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
        write_text(path, "".join(row for row in rows if row.endswith("\n") and json.loads(row)["step"] < step))


def append_row(path: Path, row: dict[str, Any]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
