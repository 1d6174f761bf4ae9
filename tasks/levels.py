"""The levels of a run: its task, built once, and which seed each level has."""

import ast
import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from envs import Env, make_env
from tasks.data import check_disjoint
from tasks.registry import task_class

TRAINING_LEVELS = 2**24  # of one run; those of the next seed follow, up to 2**40: seeds of runs are below 2**16
HELD_OUT_SEEDS = 2**41  # the same levels for every run, so that runs compare
WARM_SEEDS = 3 * 2**40  # and up: numbers are drawn below 2**31
HELD_OUT = 200  # levels when no number is given
ELSEWHERE = ("workflow", "data", "problems", "max_turns")  # parameters that are no --env-options


@dataclass(frozen=True)
class Levels:
    """Two prototypes, of which every level is a copy. All seeds of levels come from here."""

    training_env: Env
    held_out_env: Env

    def training(self, seed: int, step: int, i: int, envs_per_step: int) -> Env:
        """Level `i` of a step, in a run with this seed."""
        return self.training_env.copy().reset(seed=seed * TRAINING_LEVELS + step * envs_per_step + i)

    def held_out(self, number: int) -> Env:
        """A level that training never sees."""
        return self.held_out_env.copy().reset(seed=HELD_OUT_SEEDS + number)

    def warm(self, number: int) -> Env:
        """A level of the warm start, which nothing else sees."""
        return self.training_env.copy().reset(seed=WARM_SEEDS + number)

    def held_out_numbers(self, limit: int) -> range:
        """At most `limit` levels, and each problem of a fixed set once. 0: all problems, or HELD_OUT levels."""
        problems = self.held_out_env.problems
        return range(limit or HELD_OUT) if problems is None else range(min(limit or len(problems), len(problems)))


def make_levels(
    task: str, workflow: str = "mas", env_options: Sequence[str] = (), data: str = "", eval_data: str = "",
    max_turns: int = 0, *, training: bool = True,
) -> Levels:  # fmt: skip
    """`max_turns` goes to a constructor that takes it. `training=False`: --data may be missing.

    ValueError on options that the task does not have, and unless the held-out problems are new.
    """
    options, takes = parse_pairs(task, env_options), inspect.signature(task_class(task)).parameters
    if max_turns and "max_turns" in takes:
        options["max_turns"] = max_turns
    if "data" not in takes:
        env = make_env(task, workflow, **options)
        if data or eval_data or env.problems is not None:
            raise ValueError(f"--task {task}: its constructor takes no `data`")
        return Levels(env, env)
    if (training and not data) or not eval_data:
        option = "--eval-data" if data or not training else "--data"
        raise ValueError(f"--task {task} needs {option}, a file or a hub id")
    held_out = make_env(task, workflow, data=eval_data, **options)
    env = make_env(task, workflow, data=data, **options) if training else held_out
    if not env.problems or not held_out.problems:
        raise ValueError(f"--task {task}: it needs `problems`, a list of texts or of objects with a `question`")
    if training:
        check_disjoint(*([getattr(p, "question", p) for p in found] for found in (env.problems, held_out.problems)))
    return Levels(env, held_out)


def parse_pairs(task: str, pairs: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE -> {key: value}, written as in Python: 3, 0.5, True, None, [1, 2]; all else is text.

    ValueError on an option that the task does not have, and on text for a number.
    """
    known, options = _defaults(task), {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        default = known.get(name, 0)
        if not isinstance(default, str):
            with suppress(ValueError, SyntaxError):
                value = ast.literal_eval(value)
        if not equals or name not in known or (isinstance(value, str) and isinstance(default, (int, float))):
            raise ValueError(f"--env-options {pair}: not KEY=VALUE with such a value; {task} has {list_options(task)}")
        options[name] = value
    return options


def list_options(task: str) -> str:
    """The --env-options of a task with their defaults."""
    return " ".join(f"{name}={'...' if value is ... else value}" for name, value in _defaults(task).items()) or "none"


def _defaults(task: str) -> dict[str, Any]:
    """A task's --env-options; ... where there is no default."""
    parameters = inspect.signature(task_class(task)).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in ELSEWHERE]
    return {p.name: ... if p.default is p.empty else p.default for p in named}
