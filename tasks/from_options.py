"""A task from the options of a run: parsed and built once, every environment is a copy. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs import Env, make_env, problems
from tasks.data import check_disjoint

HELD_OUT_SEEDS = 2**41  # training seeds lie below 2**40


@dataclass(frozen=True)
class Task:
    """The environments of a run: `training` and `held_out` are prototypes, of which levels are copied."""

    training: Env
    held_out: Env

    def level(self, seed: int) -> Env:
        """A training level."""
        return self.training.copy().reset(seed=seed)

    def held_out_level(self, number: int) -> Env:
        """A level that training never sees."""
        return self.held_out.copy().reset(seed=HELD_OUT_SEEDS + number)

    def held_out_numbers(self, limit: int) -> range:
        """At most `limit` levels, and each problem of a fixed set once."""
        fixed = problems(self.held_out)
        return range(limit if fixed is None else min(limit, len(fixed)))


def make_task(
    task: str,
    workflow: str,
    pairs: Sequence[str] = (),
    data: str = "",
    eval_data: str = "",
    defaults: Mapping[str, Any] | None = None,
    training: bool = True,
) -> Task:
    """The task of a run; `pairs` are KEY=VALUE, `defaults` hold where they say nothing.

    `training=False`: only the held-out levels are needed, and --data may be missing. Raises ValueError on options that
    the task does not have and on questions that are in both sets.
    """
    options = {**(defaults or {}), **parse_pairs(pairs)}
    if task not in ("math", "code"):
        env = make_env(task, workflow, **options)
        return Task(env, env)
    for option, value in (("--data", data or not training), ("--eval-data", eval_data)):
        if not value:
            raise ValueError(f"--task {task} needs {option}, a file or a hub id")
    held_out = make_env(task, workflow, data=eval_data, **options)
    if not training:
        return Task(held_out, held_out)
    made = Task(make_env(task, workflow, data=data, **options), held_out)
    sets = {"--data": made.training, "--eval-data": made.held_out}
    check_disjoint({option: [p.question for p in problems(env) or ()] for option, env in sets.items()})
    return made


def parse_pairs(pairs: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE -> {key: value}; a value is read as JSON where it is some, else as text. ValueError naming the pair."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--env-options {pair}: write KEY=VALUE")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options
