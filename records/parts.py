"""Who plays a policy at first: the values of `--model` and `--team`.

    tiny                                          from scratch
    HuggingFaceTB/SmolLM2-135M-Instruct           a model of the hub, or of a folder
    runs/a                                        a run: its policy for the same agents, from the newest checkpoint
    runs/a@100                                    the same after 100 steps
    runs/a/checkpoints/step-000100/planner        this very policy

One value is for all policies; POLICY=VALUE, once for each, gives each its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from records.checkpoint import checkpoints, latest_checkpoint, step_of
from records.reading import nearest_folder


@dataclass(frozen=True)
class Part:
    """A policy of a run."""

    run: Path
    step: int | None = None  # None: the newest checkpoint
    policy: str = ""  # "": the one that plays the same agents

    @property
    def checkpoint(self) -> Path:
        """ValueError when the run has no checkpoint of this step, FileNotFoundError when it has none at all."""
        if self.step is None:
            return latest_checkpoint(self.run)
        found = {step_of(path): path for path in checkpoints(self.run)}
        if self.step not in found:
            there = f"there are {', '.join(map(str, found))}" if found else "it has none"
            raise ValueError(f"--model {self.run}@{self.step}: no checkpoint of step {self.step}; {there}")
        return found[self.step]

    def folder(self, agents: Sequence[str], policies: Sequence[str]) -> Path:
        """The folder of the policy that plays these agents; `policies` is that option of the run.

        ValueError unless there is one for all of them.
        """
        checkpoint = self.checkpoint
        there = sorted(path.name for path in checkpoint.iterdir() if path.is_dir())
        pairs = dict(value.split("=", 1) for value in policies if "=" in value)
        owners = {pairs.get(agent, agent if agent in there else re.sub(r"_\d+$", "", agent)) for agent in agents}
        owners = {self.policy} if self.policy else set(there) if len(there) == 1 else owners
        if len(owners) != 1 or not owners <= set(there):
            raise ValueError(
                f"--model {self.run}: no policy of that run plays {', '.join(agents)}; it has {', '.join(there)}, "
                f"which can be given as {checkpoint}/NAME"
            )
        return checkpoint / owners.pop()


def part_of_run(source: str) -> Part | None:
    """The run behind a value of `--model`, None for other models. ValueError on a step of a run that does not exist."""
    path = Path(source)
    for folder, policy in ((path, ""), (path.parent, path.name)):
        run = folder.parent.parent
        if re.fullmatch(r"step-\d{6,}", folder.name) and folder.parent.name == "checkpoints" and is_run(run):
            return Part(run, step_of(folder), policy)
    name, _, step = source.rpartition("@")
    if name and not path.exists():
        if not is_run(Path(name)):
            raise ValueError(f"--model {source}: {name} holds no run{nearest_folder(Path(name), 'config.json')}")
        if not re.fullmatch(r"\d{1,12}", step):
            raise ValueError(f"--model {source}: write RUN@STEP, the step as a number")
        return Part(Path(name), int(step))
    return Part(path) if is_run(path) else None


def is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("checkpoints", "metrics.jsonl", "evaluations.jsonl"))
