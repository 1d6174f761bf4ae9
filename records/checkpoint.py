"""Run folders: what a run writes, and how it resumes after being stopped at any moment.

    config.json              every option of the run
    metrics.jsonl            one JSON object a step; the same seed on the same CPU gives the same file
    timing.jsonl             seconds of each step, in a file of their own because they never repeat
    trees.jsonl              what was sampled in a few environments of each step (trees.py)
    evaluations.jsonl        held-out success before, during and after training
    boards.jsonl             a few held-out levels at every evaluation (trees.py)
    run.json                 the commands that worked on the run (log.py)
    checkpoints/step-000020/ POLICY/ (a folder of transformers or peft), POLICY/optimizer/ (sharded), state.json
    bases/POLICY/            the frozen model below adapters, where it is nowhere else
    checkpoints/latest       name of the newest complete checkpoint

A checkpoint is written under a temporary name and renamed when it is complete, so a kill leaves either all of it or
nothing. Its `state.json` holds a hash of each of its files, and of each log as it was then, so that damage is noticed
before a run goes on. The optimizer is written by all ranks of its policy, each its part (torch.distributed.checkpoint),
and can be read by any other number of ranks; with several machines the run folder must be on a file system they share.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from distributed.world import World
from model.policy import Policy
from records.run_folder import read_sealed, sha256, to_disk, write_sealed, write_text
from records.values import fits

LOGS = ("metrics.jsonl", "timing.jsonl", "trees.jsonl", "evaluations.jsonl", "boards.jsonl")


def save_checkpoint(
    run: Path, step: int, policies: Mapping[str, Policy], state: dict[str, Any], keep: int, world: World | None = None
) -> Path:
    """Save after `step` finished steps; keeps the newest `keep` checkpoints. `state` is any JSON.

    All ranks call it; `policies` are those of this rank. FloatingPointError, and nothing is written, when a weight or
    the state of an optimizer is not finite.
    """
    world = world or World()
    folder = run / "checkpoints"
    final, temporary = folder / f"step-{step:06d}", folder / f".writing-{step:06d}"
    for policy in policies.values():
        policy.check_finite()
    if world.main:
        shutil.rmtree(temporary, ignore_errors=True)
    world.barrier()
    for name, policy in policies.items():
        policy.save(temporary / name)
        _optimizer_io(dcp.save, policy, temporary / name / "optimizer")
    world.barrier()
    hashes = {}
    for path in world.mine(sorted(path for path in temporary.rglob("*") if path.is_file())):
        to_disk(path)  # before the rename makes it visible
        hashes[str(path.relative_to(temporary))] = sha256(path)
    hashes = world.merge(hashes)
    if world.main:
        write_sealed(temporary / "state.json", {"step": step, **state, "files": hashes, "logs": _hash_logs(run)})
        shutil.rmtree(final, ignore_errors=True)  # a resumed run may write the same step again
        os.replace(temporary, final)
        write_text(folder / "latest", final.name)
        to_disk(folder)
        kept = [path for path in checkpoints(run) if step_of(path) <= step][-keep:]
        for path in checkpoints(run):  # newer ones are left over where a run went on from an older one
            if path not in kept:
                shutil.rmtree(path)
    world.barrier()
    return final


def _hash_logs(run: Path) -> dict[str, list]:
    """Size and hash of every log, which is on disk now."""
    hashes: dict[str, list] = {}
    for path in (run / name for name in LOGS):
        if path.exists():
            to_disk(path)
            hashes[path.name] = [path.stat().st_size, sha256(path)]
    return hashes


def _optimizer_io(io: Callable[..., Any], policy: Policy, folder: Path) -> dict[str, Any]:
    """Save (`dcp.save`) or load (`dcp.load`) the optimizer's state under the names of the weights."""
    fresh = not policy.optimizer.state
    state = {"optimizer": get_optimizer_state_dict(policy.root, policy.optimizer)}
    if fresh:  # torch creates missing state by a step of size 0, which AdamW must not count: the next one is the first
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


# -------------------------------------------------------------------------------------------------------------- loading


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run folder, oldest first."""
    found = (run / "checkpoints").glob("step-*")
    return sorted((path for path in found if re.fullmatch(r"step-\d{6,}", path.name)), key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def latest_checkpoint(run: Path) -> Path:
    """The checkpoint that `latest` names; without that file the newest.

    Raises FileNotFoundError naming the folder when there is none, ValueError when `latest` names no checkpoint.
    """
    pointer, found = run / "checkpoints" / "latest", checkpoints(run)
    if not found:
        raise FileNotFoundError(f"{run}: no complete checkpoint in its folder checkpoints/")
    if not pointer.exists():
        return found[-1]
    try:
        name = pointer.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ValueError(f"{pointer}: cannot be read ({error}); {_way_out(run, found)}") from None
    if pointer.parent / name not in found:
        raise ValueError(f"{pointer}: names no checkpoint ({name[:40]!r}); {_way_out(run, found)}")
    return pointer.parent / name


def read_state(checkpoint: Path, world: World | None = None, training: bool = True) -> dict[str, Any]:
    """The state of a checkpoint whose files are as they were saved; all ranks call it.

    `training=False`: neither the optimizers nor the logs matter. ValueError naming the first file that is damaged, and
    the newest older checkpoint that is whole. Checkpoints of older versions have no hashes and are taken as they are.
    """
    world = world or World()
    problem = _problem(checkpoint, world, training)
    if problem:
        run = checkpoint.parent.parent
        older = [path for path in checkpoints(run) if step_of(path) < step_of(checkpoint)]
        raise ValueError(f"{problem}; {_way_out(run, older, world, training)}")
    return _state(checkpoint)


def _state(checkpoint: Path) -> dict[str, Any]:
    state = read_sealed(checkpoint / "state.json")
    return {name: value for name, value in state.items() if name not in ("files", "logs")}


def _problem(checkpoint: Path, world: World, training: bool) -> str:
    """What is wrong with a checkpoint, naming the file; "" if nothing is."""
    try:
        state = read_sealed(checkpoint / "state.json")
    except ValueError as error:
        return str(error)
    if state.get("step") != step_of(checkpoint):
        return f"{checkpoint / 'state.json'}: belongs to step {state.get('step')!r}"
    wanted = [(checkpoint / name, -1, digest) for name, digest in state.get("files", {}).items()]
    if training:
        wanted += [(checkpoint.parent.parent / name, *values) for name, values in state.get("logs", {}).items()]
    else:
        wanted = [item for item in wanted if item[0].parent.name != "optimizer"]
    damaged = [path for path, size, digest in world.mine(wanted) if sha256(path, size) != digest]
    for path in (path for part in world.gather(damaged) for path in part):
        return f"{path}: " + ("not what it was when this checkpoint was saved" if path.exists() else "missing")
    return ""


def _way_out(run: Path, candidates: list[Path], world: World | None = None, training: bool = True) -> str:
    whole = next((path for path in candidates[::-1] if not _problem(path, world or World(), training)), None)
    if whole is None:
        return "no older checkpoint is whole"
    return f"{whole.name} is the newest that is whole: to go on from it, write its name into {run}/checkpoints/latest"


def load_optimizers(checkpoint: Path, policies: Mapping[str, Policy]) -> dict[str, Any]:
    """Restore the optimizers of policies that were loaded from this checkpoint; returns its state.

    ValueError naming the folder of an optimizer that cannot be read.
    """
    for name, policy in policies.items():
        folder = checkpoint / name / "optimizer"
        try:
            state = _optimizer_io(dcp.load, policy, folder)
        except (Exception, CheckpointException) as error:  # what torch raises on a damaged file is anything
            reason = str(error).strip().splitlines()[-1][:200]
            raise ValueError(f"{folder}: cannot be read ({type(error).__name__}: {reason})") from None
        set_optimizer_state_dict(policy.root, policy.optimizer, state)
    return _state(checkpoint)


# ----------------------------------------------------------------------------------------------------------------- logs


def cut_log(path: Path, step: int, numbers: Sequence[str] = ()) -> None:
    """Drop the rows that were written after the checkpoint of `step`, and half a row: they will be written again.

    ValueError naming a line that is no row of a step, in order and with these `numbers`.
    """
    if not path.exists():
        return
    kept, last = [], 0
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1], 1):
        try:
            row = json.loads(line)
            whole = fits(row["step"], int) and row["step"] >= last and all(fits(row[name], float) for name in numbers)
        except (ValueError, TypeError, KeyError, RecursionError):
            whole = False
        if not whole:
            raise ValueError(f"{path}, line {number}: not the row of a step")
        last = row["step"]
        if last < step:
            kept.append(line + "\n")
    write_text(path, "".join(kept))


def append_row(path: Path, row: dict[str, Any]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
