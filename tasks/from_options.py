"""A task from the options of a run: parsed and built once, every environment is a copy. No torch."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from envs import Env, make_env, problems, task_class
from records.values import fits, in_words, nearest
from tasks.data import check_disjoint

HELD_OUT_SEEDS = 2**41  # training seeds lie below 2**40
HELD_OUT = 200  # held-out levels when no number is given
ELSEWHERE = ("self", "workflow", "data", "problems")  # parameters of a task that are no --env-options
LARGEST = 1e9  # number in an option: whatever is larger is a slip


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
        """At most `limit` levels, and each problem of a fixed set once. 0: all problems, or HELD_OUT levels."""
        fixed = problems(self.held_out)
        return range(limit or HELD_OUT) if fixed is None else range(min(limit or len(fixed), len(fixed)))


def make_task(
    task: str,
    workflow: str,
    pairs: Sequence[str] = (),
    data: str = "",
    eval_data: str = "",
    defaults: Mapping[str, Any] | None = None,
    training: bool = True,
) -> Task:
    """The task of a run; `pairs` are KEY=VALUE, `defaults` apply where they say nothing.

    `training=False`: only the held-out levels are needed, and --data may be missing. Raises ValueError on options that
    the task does not have and on questions that are in both sets.
    """
    options = {**(defaults or {}), **parse_pairs(task, pairs)}
    if "data" not in inspect.signature(task_class(task)).parameters:
        if data or eval_data:
            given = f"--data {data}" if data else f"--eval-data {eval_data}"
            raise ValueError(f"{given}: --task {task} makes its levels itself and reads no data")
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


def parse_pairs(task: str, pairs: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE -> {key: value}. A value is text where the task wants text, else it is read as JSON.

    ValueError naming the pair: of an option that the task does not have, of a value of the wrong kind, given twice.
    """
    make: Any = task_class(task)
    parameters = inspect.signature(make).parameters
    known = {name: parameter for name, parameter in parameters.items() if name not in ELSEWHERE}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    try:
        kinds = get_type_hints(make.__init__)
    except NameError:  # an annotation that only a type checker understands
        kinds = {}
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"--env-options {pair}: write KEY=VALUE")
        if name in ELSEWHERE or (name not in known and not takes_any):
            own = " ".join(f"{key}={_written(parameter.default)}" for key, parameter in known.items())
            hint = nearest(name, list(known))
            raise ValueError(f"--env-options {pair}: {task} has no such option{hint}; it has {own}")
        if name in options:
            raise ValueError(f"--env-options {pair}: {name} is given twice")
        options[name] = value = _read(text, kinds.get(name))
        if not fits(value, kinds.get(name)):
            raise ValueError(f"--env-options {pair:.80}: {name} has to be {in_words(kinds.get(name))}")
        if isinstance(value, (int, float)) and not -LARGEST <= value <= LARGEST:
            raise ValueError(f"--env-options {pair:.80}: at most {LARGEST:g}")
    return options


def _read(text: str, kind: Any) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    wants_text = kind is str or (value is not None and str in get_args(kind))
    return text if wants_text else value


def _written(default: Any) -> str:
    """The default of an option as it would be given; "..." where it has none or JSON cannot say it."""
    try:
        return default if isinstance(default, str) else json.dumps(default)
    except TypeError:
        return "..."
