"""Checkpoints, from which a run resumes. What else it writes: docs/runs.md.

    checkpoints/step-000020/POLICY/    a folder of transformers or peft
    checkpoints/step-000020/POLICY.optimizer.safetensors    beside it: engines load all such files of a folder
    checkpoints/latest                 name of the newest complete checkpoint

One is written under a temporary name and renamed when it is on the disk, so a kill leaves all of it or nothing. It
holds whole tensors, so any number of ranks can go on from it, and no code.
"""

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor, distribute_tensor

from distributed.shard import full, local
from distributed.world import World
from model.policy import Policy
from records.run_folder import checkpoints, read_rows, step_of, write_text

# log -> its number of the first step: evaluations count steps that are done
LOGS = {"metrics.jsonl": 0, "timing.jsonl": 0, "trees.jsonl": 0, "evaluations.jsonl": 1, "boards.jsonl": 1}
ALONE = World()


def save_checkpoint(run: Path, step: int, policies: Mapping[str, Policy], keep: int, world: World = ALONE) -> Path:
    """Save after `step` finished steps; keeps the newest `keep` checkpoints.

    All ranks call it with their own policies. FloatingPointError when a weight or the state of an optimizer is not
    finite, OSError when the disk is full; then nothing of it is left.
    """
    folder = run / "checkpoints"
    final, temporary = folder / f"step-{step:06d}", folder / f".writing-{step:06d}"
    for policy in policies.values():
        policy.check_finite()
    if world.main:
        shutil.rmtree(temporary, ignore_errors=True)
    world.barrier()
    try:
        for name, policy in policies.items():
            policy.save(temporary / name)
            save_optimizer(policy, temporary / f"{name}.optimizer.safetensors")
        world.barrier()
        for path in [*temporary.rglob("*"), *(run / name for name in LOGS)] if world.main else ():
            if path.is_file():  # on the disk before the rename
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
    except Exception as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) or "os error" in str(error):  # as safetensors and tokenizers say it
            raise OSError(errno.ENOSPC, f"the checkpoint of step {step} cannot be written ({error})") from None
        raise
    if world.main:
        shutil.rmtree(final, ignore_errors=True)  # a resumed run may write the same step again
        os.replace(temporary, final)
        write_text(folder / "latest", final.name)
        older = [path for path in checkpoints(run) if step_of(path) <= step]
        for path in {*checkpoints(run)} - {*older[-keep:]}:  # also newer ones that a run did not go on from
            shutil.rmtree(path)
    world.barrier()
    return final


def save_optimizer(policy: Policy, path: Path) -> None:
    """Adam's state by the names of the weights. All ranks of the policy call it, the first writes."""
    whole = dict[str, torch.Tensor]()
    for name, weight in policy.parameters():
        for kind, value in policy.optimizer.state.get(weight, {}).items():
            tensor = full(value)
            if policy.rank == 0:
                plain = tensor.dequantize() if hasattr(tensor, "codes") else tensor  # moments in eight bits
                whole[f"{name}/{kind}"] = plain.cpu().contiguous()
    if policy.rank == 0:
        save_file(whole, path, {"threads": str(policy.threads or 0)})


def load_optimizers(checkpoint: Path, policies: Mapping[str, Policy]) -> None:
    """Restore the optimizers. All ranks call it. ValueError naming a broken file."""
    for name, policy in policies.items():
        path = checkpoint / f"{name}.optimizer.safetensors"
        try:
            with safe_open(path, "pt") as saved:
                if saved.keys():  # else it has not made a step yet
                    _restore(policy, saved)
                    if policy.threads is None:
                        policy.threads = int((saved.metadata() or {}).get("threads", 0))
        except (OSError, SafetensorError, ValueError) as error:
            raise ValueError(f"{path}: cannot be read ({error})") from None


def _restore(policy: Policy, saved: Any) -> None:
    # a step along a gradient of 0 makes the state, in its form on these ranks
    for _, weight in policy.parameters():
        weight.grad = torch.zeros_like(weight)
    policy.optimizer.step()
    policy.optimizer.zero_grad(set_to_none=True)
    for name, weight in policy.parameters():
        for kind, value in policy.optimizer.state[weight].items():
            whole = saved.get_tensor(f"{name}/{kind}")
            if isinstance(value, DTensor):  # this rank's part
                whole = distribute_tensor(whole, value.device_mesh, value.placements, src_data_rank=None).to_local()
            local(value).copy_(whole)


def cut_log(path: Path, step: int) -> None:
    """Drop the rows written after the checkpoint of `step`, and half a row."""
    if path.exists():
        kept = [row for row in read_rows(path, ["step"]) if row["step"] < step]
        write_text(path, "".join(json.dumps(row) + "\n" for row in kept))
