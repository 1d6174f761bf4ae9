"""Run folders: what a run writes, and how it goes on after it was stopped at any moment.

    config.json              every option of the run
    metrics.jsonl            one JSON object a step; the same seed on the same CPU gives the same file
    timing.jsonl             seconds of each step, apart because they never repeat
    groups.jsonl             how rewards and advantages of each step are distributed (groups.py)
    trees.jsonl              what was sampled in a few environments of each step (trees.py)
    boards.jsonl             a few held-out boards at every evaluation (boards.py)
    run.json                 the commands that worked on the run (log.py)
    checkpoints/step-000020/ POLICY/ (a transformers folder), POLICY/optimizer/ (sharded), state.json
    checkpoints/latest       name of the newest complete checkpoint

A checkpoint is written under a temporary name and renamed when it is complete, so a kill leaves either all of it or
nothing. The optimizer is written by all ranks of its policy, each its part (torch.distributed.checkpoint), and can be
read by any other number of ranks; with several machines the run folder must be on a file system they share.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from distributed.world import World
from model.policy import Policy


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def save_checkpoint(
    run: Path, step: int, policies: Mapping[str, Policy], state: dict[str, Any], keep: int, world: World | None = None
) -> Path:
    """Save after `step` finished steps; keeps the newest `keep` checkpoints. `state` is any JSON.

    All ranks call it; `policies` are those of this rank.
    """
    world = world or World()
    folder = run / "checkpoints"
    final, temporary = folder / f"step-{step:06d}", folder / f".writing-{step:06d}"
    if world.main:
        shutil.rmtree(temporary, ignore_errors=True)
    world.barrier()
    for name, policy in policies.items():
        policy.save(temporary / name)
        _optimizer_io(dcp.save, policy, temporary / name / "optimizer")
    world.barrier()
    if world.main:
        write_text(temporary / "state.json", json.dumps({"step": step, **state}))
        for path in temporary.rglob("*.*"):  # on disk before the rename makes it visible
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        shutil.rmtree(final, ignore_errors=True)  # a resumed run may write the same step again
        os.replace(temporary, final)
        write_text(folder / "latest", final.name)
        for old in sorted(folder.glob("step-*"))[:-keep]:
            shutil.rmtree(old)
    world.barrier()
    return final


def _optimizer_io(io: Callable[..., Any], policy: Policy, folder: Path) -> dict[str, Any]:
    """Save (`dcp.save`) or load (`dcp.load`) the optimizer's state under the names of the weights."""
    fresh = not policy.optimizer.state
    state = {"optimizer": get_optimizer_state_dict(policy.root, policy.optimizer)}
    if fresh:  # torch makes what is missing by a step of size 0, which AdamW must not count: the next one is the first
        for values in policy.optimizer.state.values():
            values["step"].zero_()
    options: dict[str, Any] = {"checkpoint_id": str(folder)}
    if policy.mesh is not None:
        options["process_group"] = policy.mesh.get_group()
    else:
        options["no_dist"] = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it is not distributed
        io(state, **options)
    return state["optimizer"]


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
        state = _optimizer_io(dcp.load, policy, checkpoint / name / "optimizer")
        set_optimizer_state_dict(policy.root, policy.optimizer, state)
    return json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))


def cut_log(path: Path, step: int) -> None:
    """Drop the rows that were written after the checkpoint of `step`: they will be written again."""
    if path.exists():
        rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
        write_text(path, "".join(row for row in rows if row.endswith("\n") and json.loads(row)["step"] < step))


def append_row(path: Path, row: dict[str, Any]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
