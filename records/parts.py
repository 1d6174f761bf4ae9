"""Who plays a policy at first: the values of `--model` and `--team`.

    tiny                                          from scratch
    HuggingFaceTB/SmolLM2-135M-Instruct           a model of the hub, or of a folder
    runs/a                                        a run: its policy for the same agents, from the newest checkpoint
    runs/a@100                                    the same after 100 steps
    runs/a/checkpoints/step-000100/planner        this very policy

One value is for all policies; POLICY=VALUE, once for each, gives each its own. A policy of a run was trained on certain
boards with certain options: `take_over` keeps them where the command line says nothing else.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model import lora, tiny
from records.checkpoint import checkpoints, latest_checkpoint, step_of
from records.reading import nearest_folder
from records.values import nearest
from tasks.registry import located, task_class

TAKEN = ("task", "workflow", "data", "eval_data", "max_turns")  # options of a run that a new one keeps, and env_options
LEFT_OPEN = (*TAKEN, "env_options", "policies")  # None unless the command line has them


def by_policy(values: Sequence[str]) -> dict[str, str]:
    """{policy: what plays it}, {"": what plays all} for one value. ValueError on a mixture, on doubled policies."""
    pairs = [match.groups() if (match := re.fullmatch(r"(\w+)=(.*)", value)) else ("", value) for value in values]
    names = [str(name) for name, _ in pairs]
    shown = f"--model {' '.join(values)}: "
    if len(values) > 1 and "" in names:
        raise ValueError(f"{shown}give one NAME for all policies, or POLICY=NAME for each")
    if doubled := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{shown}{doubled[0]} is given twice")
    if empty := [name for name, source in pairs if not source]:
        raise ValueError(f"{shown}nothing is given for {empty[0] or 'it'}")
    return dict(zip(names, (str(source) for _, source in pairs), strict=True))


def sources_of(values: Sequence[str], policies: Sequence[str]) -> dict[str, str]:
    """{policy: what plays it} for these policies. ValueError naming one that does not exist or is missing."""
    given, shown = by_policy(values), f"--model {' '.join(values)}: "
    if "" in given:
        return dict.fromkeys(policies, given[""])
    there = f"the policies are {', '.join(policies)} (--policies)"
    if unknown := [name for name in given if name not in policies]:
        raise ValueError(f"{shown}no policy {unknown[0]}{nearest(unknown[0], policies)}; {there}")
    if missing := [name for name in policies if name not in given]:
        raise ValueError(f"{shown}no model for {missing[0]}; {there}")
    return {name: given[name] for name in policies}


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


# ------------------------------------------------------------------------------------------------- options of the runs


def take_over(
    values: dict[str, Any], by_model: Mapping[str, tuple], read: Callable[[Path], dict[str, Any]], training: bool = True
) -> dict[str, Any]:
    """Fill in what the command line left open (None) and `--model` decides; `read` gives the options of a run.

    - Task, workflow, data, turns and each option of the boards are those of the runs whose policies play. ValueError
      naming both values and the option that decides where two runs differ.
    - `by_model` has defaults for the tiny model and for others; a run offers its own. Where the offers differ the
      cautious one holds, which is the one nearer to that for others: the smaller learning rate, the longer response.
    - With an adapter the learning rate is FASTER times that of full weights.
    - A warm start is for models only, not for policies of a run; in a team with `tiny` it is for `tiny` alone.
    """
    values, models = dict(values), by_policy(values["model"])
    parts = {source: part for source in models.values() if (part := part_of_run(source))}
    runs, own = {source: read(part.run) for source, part in parts.items()}, Path(values["output_dir"])
    if runs and values["resume"] and (own / "config.json").exists():  # the other runs may have gone on since
        saved = read(own)
        options = dict(pair.split("=", 1) for pair in saved["env_options"])
        values["env_options"] = _merged(values["env_options"] or [], options)
        return values | {name: saved[name] for name in (*LEFT_OPEN, *by_model) if values[name] is None}
    if values["warm_start"] is None:
        for_tiny, for_others = by_model["warm_start"]
        values["warm_start"] = for_tiny if "tiny" in models.values() else 0 if runs else for_others
    for name, (for_tiny, for_others) in by_model.items():
        if values[name] is None:
            plain = {source: for_tiny if source == "tiny" else for_others for source in models.values()}
            offers = plain | {source: run[name] for source, run in runs.items()}
            if name == "lr":
                adapted = {source: run["adapter"] == "lora" for source, run in runs.items()}
                faster = lora.FASTER if values["adapter"] == "lora" else 1.0
                offers = {s: lr * faster / (lora.FASTER if adapted.get(s) else 1.0) for s, lr in offers.items()}
            values[name] = (max if for_others > for_tiny else min)(offers.values())
    if values["policies"] is None and "" not in models:
        values["policies"] = ["per_role"]
    if runs:
        _take_boards(values, runs, [name for name in TAKEN if training or name != "data"])
    if values["policies"] is None and (part := parts.get(models[""])) and not part.policy:  # a whole team
        values["policies"] = runs[models[""]]["policies"]
    return values


def _take_boards(values: dict[str, Any], runs: Mapping[str, Mapping[str, Any]], taken: Sequence[str]) -> None:
    """The options `taken` and the board options, from the runs, where the command line left them open."""

    def agreed(option: str, of_runs: Mapping[str, Any]) -> Any:
        (first, one), *others = of_runs.items()
        for source, other in others:
            if other != one:
                raise ValueError(
                    f"--model: {first} was trained with {option}{one}, {source} with {option}{other}; "
                    f"say what this team shall have: {option}..."
                )
        return one

    for name in taken:
        if values[name] is None:
            option = "--" + name.replace("_", "-")
            values[name] = agreed(f"{option} ", {source: run[name] for source, run in runs.items()})
    boards = {source: board_options(run) for source, run in runs.items() if run["task"] == located(values["task"])}
    given = values["env_options"] or []
    names = dict.fromkeys(name for options in boards.values() for name in options)
    options = {
        name: agreed(f"--env-options {name}=", {source: own.get(name, "(default)") for source, own in boards.items()})
        for name in names
        if not any(pair.startswith(f"{name}=") for pair in given)
    }
    values["env_options"] = _merged(given, options)


def _merged(given: Sequence[str], taken: Mapping[str, str]) -> list[str]:
    names = {pair.partition("=")[0] for pair in given}
    return [*given, *(f"{name}={value}" for name, value in taken.items() if name not in names)]


def board_options(run: Mapping[str, Any]) -> dict[str, str]:
    """The --env-options of a run, also those that it owes to whether `tiny` plays: name -> value as it is given."""
    small, options = tiny.BOARDS.get(run["task"], {}), {}
    for name, value in small.items():
        if "tiny" not in by_policy(run["model"]).values():
            value = inspect.signature(task_class(run["task"])).parameters[name].default
        options[name] = value if isinstance(value, str) else json.dumps(value)
    return options | dict(pair.split("=", 1) for pair in run["env_options"])
