"""Does an environment follow the contract? One line per mistake: python -m tools.check file.py:Class [KEY=VALUE ...]

Training trusts an environment blindly: a copy that shares state, or a reward above 1, silently trains something
else. The same checks run before training on a user's own task. They resemble the API tests of PettingZoo and Gymnasium.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import pickle
import random
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from envs import Env, InfraError, Reward, make_env
from tasks import sandbox
from tasks.levels import HELD_OUT_SEEDS, list_options, parse_pairs
from tasks.registry import in_one_line

SEEDS = (0, 1, HELD_OUT_SEEDS + 2)  # levels that are played; those of evaluations have numbers of 42 bits
TURNS, LAST = 4, 40  # turns with all kinds of answers, and turns until a level should have ended
SECONDS = 15.0  # for all of it; a slow environment is played for a shorter time
SLOW = {"step": 0.1, "reset": 0.1, "observe": 0.01, "copy": 0.01}  # seconds of one call
TEXTS: tuple[str, ...] = (
    "",
    "no answer",
    "#### [1, 2]",
    r"\boxed{1}",
    "```python\nprint(1)\n```",
    "x" * 5000,
    "word " * 500,
)
TEXTS += ("0", "-1", "1 2 3 4 5 6 7 8 9", "99999999999999999999", "nan", "inf", "²", "{}", "%s", "é\u2028\n\t😀\x00")
ON = " on the answer "
ROLES = ("system", "user", "assistant")  # what chat templates know


def check(make: Callable[[], Env], task: str = "") -> list[str]:
    """What is wrong with the environments that `make` builds, in one line each; nothing when all is well.

    With the name of the `task` a second process makes its levels too.
    """
    found: dict[str, str] = {}  # in order, each once, whatever the answer was
    deadline = time.monotonic() + SECONDS

    def note(mistakes: Callable[[], Iterator[str]]) -> None:
        try:
            for mistake in mistakes():
                found.setdefault(mistake.partition(ON)[0], " ".join(mistake.split()))
        except InfraError as error:
            found.setdefault("infra", f"a candidate could not be scored, check again where it can: {error}")
        except Exception as error:
            if not any(in_one_line(error) in mistake for mistake in found):
                found.setdefault(in_one_line(error), f"it raised {in_one_line(error)}")

    note(lambda: _shape(make()))
    if not found:
        note(lambda: _levels(make))
        for seed in SEEDS:
            note(lambda seed=seed: _repeats(make, seed))  # type: ignore[misc]
            note(lambda seed=seed: _plays(make().reset(seed=seed), seed, deadline))  # type: ignore[misc]
    if task and not found:
        note(lambda: _elsewhere(make(), task))
    return list(found.values())


def _shape(env: Env) -> Iterator[str]:
    """Attributes and their types."""
    agents = getattr(env, "agents", None)
    if not isinstance(agents, tuple) or not agents or not all(isinstance(a, str) and a.isidentifier() for a in agents):
        yield f"agents must be a tuple of names, not {agents!r}"
    elif len(set(agents)) < len(agents):
        yield f"agents has a name twice: {agents!r}"
    for name in ("simultaneous", "done", "solved"):
        if not isinstance(getattr(env, name, None), bool):
            yield f"{name} must be True or False from the start, not {getattr(env, name, None)!r}"
    for name in ("reset", "observe", "step", "copy"):
        if not callable(getattr(env, name, None)):
            yield f"it has no method {name}"
    if isinstance(agents, tuple) and sorted(a for group in env.stages for a in group) != sorted(agents):
        yield f"stages must have every agent once, not {env.stages!r}"


def _levels(make: Callable[[], Env]) -> Iterator[str]:
    """Seeds matter: a task whose levels are all the same would be evaluated on what it was trained on."""
    fixed = make().problems
    views = [_view(make().reset(seed=seed)) for seed in range(20 if fixed is None else len(fixed[:2]))]
    if len(views) > 1 and all(view == views[0] for view in views):
        yield f"{len(views)} seeds give the same level: reset has to make its level from the seed"


def _repeats(make: Callable[[], Env], seed: int) -> Iterator[str]:
    """The seed alone determines the level, and the global random generators stay untouched."""
    before = random.getstate(), str(np.random.get_state())
    env = make()
    first = env.reset(seed=seed)
    if first is not env:
        yield f"reset must return the environment itself, not {type(first).__name__}"
        return
    view = _view(first)
    if before != (random.getstate(), str(np.random.get_state())):
        yield "reset changes the global random generators: use numpy.random.default_rng(seed)"
    state = random.getstate(), np.random.get_state()
    random.seed(seed + 1)
    np.random.seed(seed % 2**32 + 1)
    again, used = make().reset(seed=seed), make().reset(seed=seed + 1)
    with suppress(Exception):  # said in `_candidate`
        used.step(used.agents[0], "an earlier level")
    random.setstate(state[0])
    np.random.set_state(state[1])
    if _view(again) != view or _view(used.reset(seed=seed)) != view:
        yield "a seed does not always give the same level: global random numbers, or what an earlier level left"


def _elsewhere(env: Env, task: str) -> Iterator[str]:
    """A process in which texts have other hashes, and so sets another order, makes the same levels."""
    code = "import pickle, sys; from tools.check import digest; from tasks.registry import task_class; "
    code += "task_class(sys.argv[1]); print(digest(pickle.load(sys.stdin.buffer)))"
    paths = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    for seed in "1", "2":
        others = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code, task], input=pickle.dumps(env), env=others, capture_output=True, check=False
        )
        if done.returncode:
            yield f"another process cannot make its levels: {done.stderr.decode(errors='replace').splitlines()[-1]}"
            return
        if done.stdout.decode().strip() != digest(env):
            yield "another process makes another level from the same seed: sort a set, and hash with zlib.crc32"
            return


def digest(env: Env) -> str:
    """The levels of a few seeds in one number."""
    return str(zlib.crc32(repr([_view(env.copy().reset(seed=seed)) for seed in range(8)]).encode(errors="replace")))


def _plays(env: Env, seed: int, deadline: float) -> Iterator[str]:
    """A few turns with all kinds of texts; each is tried on copies, as in training, and one copy is played on."""
    rng = np.random.default_rng(seed)
    try:
        pickle.dumps(env)
    except Exception as error:
        yield f"it cannot be pickled: {error}"
    if type(env.copy()) is not type(env):
        yield f"copy must return an independent twin, not {type(env.copy()).__name__}"
        return
    yield from _prompts(env)
    yield from _slow(env, seed)
    for turn in range(LAST):
        for agent in env.agents:
            if env.done:
                yield from _after_the_end(env)
                return
            texts = [*TEXTS, *_quotes(env, agent)]
            if env.noisy_answer:
                texts += [env.noisy_answer(rng, good) for good in (0.0, 1.0, 1.0)]
                if not isinstance(texts[-1], str):
                    yield f"noisy_answer must return a text, not {type(texts[-1]).__name__}"
                    return
            for text in texts if turn < TURNS else ():
                if time.monotonic() > deadline:
                    return
                yield from _candidate(env, agent, text)
            env.step(agent, texts[-1 if turn % 2 else 0])


def _quotes(env: Env, agent: str) -> Iterator[str]:
    """What an agent might copy from its prompt: all of it, a line, a word."""
    text = env.observe(agent)[-1]["content"]
    yield text
    yield from text.splitlines()[-3:]
    yield from text.split()[-5:]


def _prompts(env: Env) -> Iterator[str]:
    for agent in env.agents:
        messages = env.observe(agent)
        fine = isinstance(messages, list) and messages and all(isinstance(m, dict) for m in messages)
        if not fine or not all(isinstance(m.get(key), str) for m in messages for key in ("role", "content")):
            yield f"observe({agent!r}) must return a list of messages with the texts role and content"
            return
        if strange := [m["role"] for m in messages if m["role"] not in ROLES]:
            yield f"observe({agent!r}) has a message of the role {strange[0]!r}: chat templates know {', '.join(ROLES)}"
        elif not any(m["role"] == "user" and m["content"].strip() for m in messages):
            yield f"observe({agent!r}) has no message of the user: that is where the state of the task belongs"
    before = _view(env)
    if _view(env) != before:
        yield "observe changes the environment, or its text by chance"


def _slow(env: Env, seed: int) -> Iterator[str]:
    """Calls that training makes thousands of times a step."""
    calls: dict[str, Callable[[], Any]] = {
        "reset": lambda: env.copy().reset(seed=seed),
        "observe": lambda: env.observe(env.agents[0]),
        "copy": env.copy,
    }
    for name, call in calls.items():
        seconds = min(_seconds(call) for _ in range(3))
        if seconds > SLOW[name]:
            hint = ": keep what never changes outside of the environment" if name == "copy" else ""
            yield f"{name} took {seconds:.2f} s, and training calls it for every candidate or prompt{hint}"


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _candidate(env: Env, agent: str, text: str) -> Iterator[str]:
    before, one, two = _view(env), env.copy(), env.copy()
    if one is env or _view(one) != before:
        yield "copy must return an independent twin in the same state"
        return
    for other in (*env.agents, *env.agents):
        two.observe(other)  # more often than the other twin
    rewards, seconds = [], math.inf
    for twin in (one, two):
        state, start = _state(env), time.perf_counter()
        try:
            rewards.append(twin.step(agent, text))
        except InfraError:
            raise
        except Exception as error:
            yield f"step of {agent} raised {in_one_line(error)}{ON}{text[:40]!r}"
            return
        seconds = min(seconds, time.perf_counter() - start)
        if _state(env) != state or _view(env) != before:
            yield "copy shares state with the original: stepping the copy changed it (lists and dicts: copy.deepcopy)"
            return
    reward = rewards[0]
    if not isinstance(reward, Reward):
        yield f"step must return envs.Reward(team, local), not {type(reward).__name__}"
        return
    if not isinstance(reward.info, dict):
        yield f"the info of a reward must be a dict of numbers, not {type(reward.info).__name__}"
        return
    for name, value in (("team", reward.team), ("local", reward.local), *reward.info.items()):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:  # NaN is in no range
            yield f"the reward {name} of {agent} is {value!r}, not a number from 0 to 1"
    if repr(reward) != repr(rewards[1]) or _view(one) != _view(two):  # repr: NaN differs from itself
        yield (
            f"the same answer of {agent} to the same state has another result the second time: chance, or observe "
            "changes something"
        )
    if not isinstance(one.done, bool) or not isinstance(one.solved, bool):
        yield "done and solved must stay True or False"
    if one.agents != env.agents:
        yield f"agents changed from {env.agents} to {one.agents}"
    if one.solved and not one.done:
        yield "solved is True but done is not: a solved task has ended"
    if one.solved and not env.solved and reward.team != 1:
        yield f"solved becomes True but the team reward of that action of {agent} is {reward.team!r}, not 1"
    if one.done and not one.solved and reward.team == 1:
        yield f"the last action of {agent} has team reward 1 but solved is False"
    if not 0 <= one.progress <= 1:
        yield f"progress is {one.progress!r}, not a number from 0 to 1"
    elif (one.progress == 1) != one.solved:
        yield f"progress is {one.progress!r} where solved is {one.solved}: it must be 1 exactly when solved"
    if not isinstance(one.render(), str):
        yield f"render must return a text, not {type(one.render()).__name__}"
    if seconds > SLOW["step"] and not env.slow_scoring:
        yield f"step took {seconds:.1f} s: set slow_scoring = True, so that threads score side by side"


def _after_the_end(env: Env) -> Iterator[str]:
    for agent in env.agents:
        before = _view(env)
        reward = env.step(agent, "after the end")
        if _view(env) != before:
            yield "step changes something after done"
        if isinstance(reward, Reward) and (reward.team, reward.local) != (0, 0):
            yield f"step after done must have rewards 0, not {reward.team!r} and {reward.local!r}"


def _view(env: Env) -> Any:
    """What can be seen of an environment. Copied: `observe` may return a list that lives on."""
    return copy.deepcopy([env.observe(agent) for agent in env.agents]), env.done, env.solved


def _state(env: Env) -> bytes:
    try:
        return pickle.dumps(env)
    except Exception:  # said once, in `_plays`
        return b""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.check", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("task", help="file.py:Class, module:Class, or one of ours")
    parser.add_argument("options", nargs="*", metavar="KEY=VALUE", help="options of the task")
    parser.add_argument("--workflow", default="mas")
    parser.add_argument("--data", metavar="FILE", help="problems, for a task that reads them")
    parser.add_argument("--sandbox", choices=("auto", "rlimit"), default="auto", help="as in train.py")
    given = parser.parse_args(arguments)
    try:
        sandbox.set_mode(given.sandbox)
        options = parse_pairs(given.task, given.options) | ({"data": given.data} if given.data else {})
        found = check(lambda: make_env(given.task, given.workflow, **options), given.task)
    except ValueError as error:
        parser.error(str(error))
    for problem in found:
        print(problem)
    if found:
        sys.exit(1)
    print(f"options: {list_options(given.task)}\n{given.task}: no mistake found")


if __name__ == "__main__":
    main()
