"""A task from the options of a run: parsed and built once, every environment is a copy. No torch."""

from __future__ import annotations

import inspect
import json
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import Parameter
from typing import Any, get_args, get_type_hints

from envs import Env, make_env, task_class
from records.values import fits, in_words, nearest
from tasks.data import check_disjoint
from tasks.registry import located

HELD_OUT_SEEDS = 2**41  # training seeds lie below 2**40
HELD_OUT = 200  # held-out levels when no number is given
ELSEWHERE = ("self", "workflow", "data", "problems", "max_turns")  # parameters of a task that are no --env-options
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
        fixed = self.held_out.problems
        return range(limit or HELD_OUT) if fixed is None else range(min(limit or len(fixed), len(fixed)))


def make_task(
    task: str,
    workflow: str,
    pairs: Sequence[str] = (),
    data: str = "",
    eval_data: str = "",
    defaults: Mapping[str, Any] | None = None,
    training: bool = True,
    max_turns: int = 0,
) -> Task:
    """The task of a run; `pairs` are KEY=VALUE, `defaults` apply where they say nothing.

    `training=False`: only the held-out levels are needed, and --data may be missing. `max_turns` goes to a constructor
    that takes it. Raises ValueError on options that the task does not have, and unless the held-out problems are new.
    """
    options = {**(defaults or {}), **parse_pairs(task, pairs)}
    takes = inspect.signature(task_class(task)).parameters
    if max_turns and "max_turns" in takes:
        options["max_turns"] = max_turns
    if "data" not in takes:
        if data or eval_data:
            given = f"--data {data}" if data else f"--eval-data {eval_data}"
            raise ValueError(f"{given}: --task {task} reads no data (its constructor takes no `data`)")
        env = make_env(task, workflow, **options)
        if env.problems is not None:
            raise ValueError(
                f"--task {task}: it has a fixed set of problems, and held-out ones must be others: let its constructor "
                "take `data`, a file, and give it two with --data and --eval-data"
            )
        return Task(env, env)
    for option, value in (("--data", data or not training), ("--eval-data", eval_data)):
        if not value:
            raise ValueError(f"--task {task} needs {option}, a file or a hub id")
    held_out = make_env(task, workflow, data=eval_data, **options)
    if not training:
        return Task(held_out, held_out)
    made = Task(make_env(task, workflow, data=data, **options), held_out)
    sets = {"--data": made.training, "--eval-data": made.held_out}
    check_disjoint({option: questions(task, env) for option, env in sets.items()})
    return made


def questions(task: str, env: Env) -> list[str]:
    """The texts by which problems are told apart. ValueError when a task that reads data does not show them."""
    texts: list[str] = [p if isinstance(p, str) else getattr(p, "question", "") for p in env.problems or ()]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(
            f"--task {task} reads data: it needs the attribute `problems`, a list of texts or of objects with a text "
            "`question`, which shows that no held-out problem is a training one"
        )
    return texts


def env_options(task: str) -> dict[str, Parameter]:
    """The parameters of a task's constructor that are --env-options."""
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(task_class(task)).parameters
    return {name: p for name, p in parameters.items() if name not in ELSEWHERE and p.kind in named}


def list_options(task: str, defaults: Mapping[str, Any] | None = None) -> str:
    """The --env-options of a task with their defaults, as they would be given."""
    values = {name: parameter.default for name, parameter in env_options(task).items()} | dict(defaults or {})
    return " ".join(f"{name}={_written(value)}" for name, value in values.items()) or "none"


def task_words(task: str, pairs: Sequence[str], data: str, eval_data: str) -> tuple[str, ...]:
    """A task as options of train.py, which any folder understands; none for plan_path as it is."""
    words = [] if task == "plan_path" else ["--task", located(task)]
    words += ["--env-options", *pairs] if pairs else []
    words += ["--data", data] if data else []
    return (*words, *(["--eval-data", eval_data] if eval_data else []))


@cache
def agents_of(words: Sequence[str], workflow: str) -> tuple[str, ...]:
    """The agents of the task in these options of train.py (plan_path without); none if it lacks the workflow."""
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--task", default="plan_path")
    parser.add_argument("--env-options", nargs="+", default=[])
    parser.add_argument("--data")
    given, _ = parser.parse_known_args(words)
    options = parse_pairs(given.task, given.env_options) | ({"data": given.data} if given.data else {})
    try:
        return make_env(given.task, workflow, **options).agents
    except ValueError:
        if workflow == "mas":
            raise
        return ()


def parse_pairs(task: str, pairs: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE -> {key: value}. A value is text where the task wants text, else it is read as JSON.

    ValueError naming the pair: of an option that the task does not have, of a value of the wrong kind, given twice.
    """
    make: Any = task_class(task)
    known = env_options(task)
    takes_any = any(p.kind is Parameter.VAR_KEYWORD for p in inspect.signature(make).parameters.values())
    try:
        kinds = get_type_hints(make.__init__)
    except (NameError, AttributeError, TypeError):  # an annotation that only a type checker understands
        kinds = {}
    kinds = {name: _kind(parameter.default) for name, parameter in known.items()} | kinds
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"--env-options {pair}: write KEY=VALUE")
        if name in ELSEWHERE or (name not in known and not takes_any):
            hint = nearest(name, list(known))
            if name in ("workflow", "data", "max_turns"):
                hint = f" (there is --{name.replace('_', '-')})"
            raise ValueError(f"--env-options {pair}: {task} has no such option{hint}; it has {list_options(task)}")
        if name in options:
            raise ValueError(f"--env-options {pair}: {name} is given twice")
        options[name] = value = _read(text, kinds.get(name))
        if not fits(value, kinds.get(name)):
            raise ValueError(f"--env-options {pair:.80}: {name} has to be {in_words(kinds.get(name))}")
        if isinstance(value, (int, float)) and not -LARGEST <= value <= LARGEST:
            raise ValueError(f"--env-options {pair:.80}: at most {LARGEST:g}")
    return options


def _kind(default: Any) -> Any:
    """What an option without an annotation has to be: any number where the default is one."""
    kind = type(default)
    return {int: float, float: float, bool: bool, str: str}.get(kind)


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
