"""Does an environment follow the contract? One line per mistake: python -m tasks.check file.py:Class [KEY=VALUE ...]

Training trusts an environment blindly: a copy that shares state, or a reward above 1, silently trains something
else. The same checks run before training on a user's own task. They resemble the API tests of PettingZoo and Gymnasium.
"""

from __future__ import annotations

import argparse
import math
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from envs import Env, InfraError, Reward, can_be_imitated, make_env, noisy_answer, progress, slow_scoring, stages
from tasks.from_options import parse_pairs

SEEDS, TURNS = 3, 4  # levels that are played, and turns of each
SLOW = 0.1  # seconds of one call, above which scoring should run in threads
TEXTS = ("", "no answer", "#### [1, 2]", r"\boxed{1}", "```python\nprint(1)\n```", "x" * 5000)


def check(make: Callable[[], Env]) -> list[str]:
    """What is wrong with the environments that `make` builds, in one line each; nothing when all is well."""
    found: dict[str, None] = {}  # in order, each once
    try:
        for problem in _shape(make()):
            found.setdefault(problem)
        for seed in range(0 if found else SEEDS):
            for problem in _repeats(make, seed):
                found.setdefault(problem)
            for problem in _plays(make().reset(seed=seed), seed):
                found.setdefault(problem)
    except InfraError as error:
        found.setdefault(f"a candidate could not be scored, check again where it can: {error}")
    except Exception as error:
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        place = f" ({where.tb_frame.f_code.co_name}, line {where.tb_lineno})" if where else ""
        found.setdefault(f"it raised {type(error).__name__}: {error}{place}")
    return list(found)


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
    if isinstance(agents, tuple) and sorted(a for group in stages(env) for a in group) != sorted(agents):
        yield f"stages must have every agent once, not {stages(env)!r}"


def _repeats(make: Callable[[], Env], seed: int) -> Iterator[str]:
    """The seed alone determines the level, and the global random generators stay untouched."""
    before = random.getstate(), str(np.random.get_state())
    first = make().reset(seed=seed)
    if not isinstance(first, type(make())):
        yield f"reset must return the environment, not {type(first).__name__}"
        return
    view = _view(first)
    if before != (random.getstate(), str(np.random.get_state())):
        yield "reset changes the global random generators: use numpy.random.default_rng(seed)"
    state = random.getstate(), np.random.get_state()
    random.seed(seed + 1)
    np.random.seed(seed + 1)
    again, used = make().reset(seed=seed), make().reset(seed=seed + 1)
    random.setstate(state[0])
    np.random.set_state(state[1])
    if _view(again) != view or _view(used.reset(seed=seed)) != view:
        yield f"seed {seed} does not always give the same level: global random numbers, or what an earlier level left"


def _plays(env: Env, seed: int) -> Iterator[str]:
    """A few turns with all kinds of texts; each is tried on copies, as in training, and one copy is played on."""
    rng = np.random.default_rng(seed)
    try:
        pickle.dumps(env)
    except Exception as error:
        yield f"it cannot be pickled: {error}"
    yield from _prompts(env)
    for turn in range(TURNS):
        for agent in env.agents:
            if env.done:
                yield from _after_the_end(env)
                return
            texts = list(TEXTS)
            if can_be_imitated(env):
                texts += [noisy_answer(env, rng, good) for good in (0.0, 1.0, 1.0)]
            for text in texts:
                yield from _candidate(env, agent, text)
            env.step(agent, texts[-1 if turn % 2 else 0])


def _prompts(env: Env) -> Iterator[str]:
    for agent in env.agents:
        messages = env.observe(agent)
        fine = isinstance(messages, list) and messages and all(isinstance(m, dict) for m in messages)
        if not fine or not all(isinstance(m.get(key), str) for m in messages for key in ("role", "content")):
            yield f"observe({agent!r}) must return a list of messages with the texts role and content"
            return
    before = _view(env)
    if _view(env) != before:
        yield "observe changes the environment, or its text by chance"


def _candidate(env: Env, agent: str, text: str) -> Iterator[str]:
    before, state = _view(env), _state(env)
    one, two = env.copy(), env.copy()
    if one is env or _view(one) != before:
        yield "copy must return an independent twin in the same state"
        return
    start = time.perf_counter()
    reward = one.step(agent, text)
    seconds = time.perf_counter() - start
    if _view(env) != before or _state(env) != state:
        yield "copy shares state with the original: stepping the copy changed it (a list or dict needs copy.deepcopy)"
        return
    if not isinstance(reward, Reward):
        yield f"step must return envs.Reward(team, local), not {type(reward).__name__}"
        return
    for name, value in (("team", reward.team), ("local", reward.local), *reward.info.items()):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1 or math.isnan(value):
            yield f"the reward {name} of {agent} is {value!r}, not a number from 0 to 1"
    if reward != two.step(agent, text) or _view(one) != _view(two):
        yield f"the same answer of {agent} to the same state has another result the second time"
    if not isinstance(one.done, bool) or not isinstance(one.solved, bool):
        yield "done and solved must stay True or False"
    if one.solved and not env.solved and reward.team != 1:
        yield f"solved becomes True but the team reward of that action of {agent} is {reward.team!r}, not 1"
    if one.done and not one.solved and reward.team == 1:
        yield f"the last action of {agent} has team reward 1 but solved is False"
    if (progress(one) == 1) != one.solved:
        yield f"progress is {progress(one)!r} where solved is {one.solved}: it must be 1 exactly when solved"
    if seconds > SLOW and not slow_scoring(env):
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
    return [env.observe(agent) for agent in env.agents], env.done, env.solved


def _state(env: Env) -> bytes:
    try:
        return pickle.dumps(env)
    except Exception:  # said once, in `_plays`
        return b""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tasks.check", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("task", help="file.py:Class, module:Class, or one of ours")
    parser.add_argument("options", nargs="*", metavar="KEY=VALUE", help="options of the task")
    parser.add_argument("--workflow", default="mas")
    given = parser.parse_args(arguments)
    try:
        options = parse_pairs(given.task, given.options)
        make_env(given.task, given.workflow, **options)
    except ValueError as error:
        parser.error(str(error))
    found = check(lambda: make_env(given.task, given.workflow, **options))
    for problem in found:
        print(problem)
    if found:
        sys.exit(1)
    print(f"{given.task}: no mistake found")


if __name__ == "__main__":
    main()
