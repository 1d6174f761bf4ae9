"""Does an environment follow the contract? One line that says what is wrong: python -m tools.check file.py:Class

Training trusts an environment blindly: a copy that shares state, or a reward above 1, silently trains something else.
The same checks run before training on a task of one's own. They resemble the API tests of PettingZoo and Gymnasium.
"""

from __future__ import annotations

import argparse
import copy
import os
import pickle
import random
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
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
SLOW = 0.1  # seconds of a step
ROLES = ("system", "user", "assistant")  # what chat templates know
TEXTS: tuple[str, ...] = (
    "",
    "no answer",
    "#### [1, 2]",
    r"\boxed{1}",
    "```python\nprint(1)\n```",
    "x" * 5000,
    "word " * 500,
    "0",
    "-1",
)
TEXTS += ("1 2 3 4 5 6 7 8 9", "99999999999999999999", "nan", "inf", "²", "{}", "%s", "é\u2028\n\t😀\x00")
SAYS_NOTHING = (
    "note: it has no noisy_answer, so there is no warm start: a model from scratch (--model tiny) will learn nothing. "
    "Train a model that can already write an answer (--model NAME), or add noisy_answer(rng, good) "
    "(docs/your_team.md)"
)


class Mistake(Exception):
    """What is wrong with an environment."""


def must(holds: object, otherwise: str) -> None:
    if not holds:
        raise Mistake(otherwise)


def check(make: Callable[[], Env], task: str = "") -> list[str]:
    """The first mistake of the environments that `make` builds, as a list of one line; nothing when all is well.

    With the name of the `task` a second process makes its levels too.
    """
    deadline = time.monotonic() + SECONDS
    try:
        check_shape(make())
        fixed = make().problems
        views = [view(level(make, seed)) for seed in range(20 if fixed is None else len(fixed[:2]))]
        same = len(views) > 1 and all(other == views[0] for other in views)
        must(not same, f"{len(views)} seeds give the same level: reset has to make its level from the seed")
        for seed in SEEDS:
            check_repeats(make, seed)
            check_play(level(make, seed), seed, deadline)
        if task:
            check_elsewhere(make(), task)
    except InfraError as error:
        return [f"a candidate could not be scored, check again where it can: {error}"]
    except Mistake as mistake:
        return [" ".join(str(mistake).split())]
    except (Exception, SystemExit) as error:  # a task of one's own may raise anything
        return [f"it raised {in_one_line(error)}"]
    return []


def check_shape(env: Env) -> None:
    """Attributes and their types."""
    must(isinstance(env, Env), f"class {type(env).__name__} must inherit from envs.Env")
    names = env.agents if isinstance(env.agents, tuple) else ()
    fine = names and all(isinstance(name, str) and name.isidentifier() for name in names)
    must(fine and len(set(names)) == len(names), f"agents must be a tuple of different names, not {env.agents!r}")
    for name in ("simultaneous", "done", "solved"):
        value = getattr(env, name)
        must(isinstance(value, bool), f"{name} must be True or False from the start, not {value!r}")
    staged = sorted(agent for group in env.stages for agent in group)
    must(staged == sorted(names), f"stages must have every agent once, not {env.stages!r}")


def level(make: Callable[[], Env], seed: int) -> Env:
    env = make()
    must(env.reset(seed=seed) is env, "reset must return the environment itself")
    return env


def check_repeats(make: Callable[[], Env], seed: int) -> None:
    """The seed alone determines the level, and the global random generators stay untouched."""
    state = random.getstate(), np.random.get_state()
    first = view(level(make, seed))
    untouched = str(state) == str((random.getstate(), np.random.get_state()))
    must(untouched, "reset changes the global random generators: use numpy.random.default_rng(seed)")
    used = level(make, seed + 1)
    act(used, used.agents[0], "an earlier level")
    random.seed(seed + 1)  # a generator in another state, and an environment that has been played, change nothing
    np.random.seed(seed % 2**32 + 1)
    same = view(level(make, seed)) == first and view(used.reset(seed=seed)) == first
    random.setstate(state[0])
    np.random.set_state(state[1])
    must(same, "a seed does not always give the same level: global random numbers, or what an earlier level left")


def check_elsewhere(env: Env, task: str) -> None:
    """A process in which texts have other hashes, and so sets another order, makes the same levels."""
    code = "import pickle, sys; from tools.check import digest; from tasks.registry import task_class; "
    code += "task_class(sys.argv[1]); print(digest(pickle.load(sys.stdin.buffer)))"
    paths = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    others = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", code, task]
    done = subprocess.run(command, input=pickle.dumps(env), env=others, capture_output=True, check=False)
    last = (done.stderr.decode(errors="replace").splitlines() or [""])[-1]
    must(done.returncode == 0, f"another process cannot make its levels: {last}")
    same = done.stdout.decode().strip() == digest(env)
    must(same, "another process makes another level from the same seed: sort a set, and hash with zlib.crc32")


def digest(env: Env) -> str:
    """The levels of a few seeds in one number."""
    return str(zlib.crc32(repr([view(env.copy().reset(seed=seed)) for seed in range(8)]).encode(errors="replace")))


def check_play(env: Env, seed: int, deadline: float) -> None:
    """A few turns with all kinds of texts; each is tried on copies, as in training, and one copy is played on."""
    rng = np.random.default_rng(seed)
    try:
        pickle.dumps(env)
    except Exception as error:
        raise Mistake(f"it cannot be pickled: {error}") from None
    for agent in env.agents:
        messages = env.observe(agent)
        fine = isinstance(messages, list) and all(isinstance(m, dict) for m in messages)
        fine = fine and all(m.get("role") in ROLES and isinstance(m.get("content"), str) for m in messages)
        must(fine, f"observe({agent!r}) must return a list of messages with a role ({', '.join(ROLES)}) and a content")
        asked = any(m["role"] == "user" and m["content"].strip() for m in messages)
        must(asked, f"observe({agent!r}) has no message of the user: that is where the state of the task belongs")
    must(view(env) == view(env), "observe changes the environment, or its text by chance")
    for turn in range(LAST):
        for agent in env.agents:
            if env.done:
                before, reward = view(env), act(env, agent, "after the end")
                must(view(env) == before, "step changes something after done")
                must((reward.team, reward.local) == (0, 0), f"step after done must have rewards 0, not {reward}")
                return
            prompt = env.observe(agent)[-1]["content"]
            texts = [*TEXTS, prompt, *prompt.splitlines()[-3:], *prompt.split()[-5:]]
            texts += [env.noisy_answer(rng, good) for good in (0.0, 1.0, 1.0)] if env.noisy_answer else []
            for text in texts if turn < TURNS else ():
                if time.monotonic() > deadline:
                    return
                check_candidate(env, agent, text)
            act(env, agent, texts[-1 if turn % 2 else 0])


def act(env: Env, agent: str, text: str) -> Reward:
    """One step. Mistake when it raises, or returns no Reward with numbers from 0 to 1."""
    try:
        reward = env.step(agent, text)
    except InfraError:
        raise
    except (Exception, SystemExit) as error:
        raise Mistake(f"step of {agent} raised {in_one_line(error)} on the answer {text[:40]!r}") from None
    must(isinstance(reward, Reward), f"step must return envs.Reward(team, local), not {type(reward).__name__}")
    must(isinstance(reward.info, dict), "the info of a reward must be a dict of numbers")
    for name, value in (("team", reward.team), ("local", reward.local), *reward.info.items()):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        must(number and 0 <= value <= 1, f"the reward {name} of {agent} is {value!r}, not a number from 0 to 1")
    return reward


def check_candidate(env: Env, agent: str, text: str) -> None:
    """One answer, tried on two twins: both get the same, and the original does not notice."""
    before, one, two = view(env), env.copy(), env.copy()
    must(type(one) is type(env), f"copy must return an independent twin, not {type(one).__name__}")
    must(one is not env and view(one) == before, "copy must return an independent twin in the same state")
    for other in (*env.agents, *env.agents):
        two.observe(other)  # more often than the other twin
    start = time.perf_counter()
    reward, repeated = act(one, agent, text), act(two, agent, text)
    seconds = (time.perf_counter() - start) / 2
    must(view(env) == before, "copy shares state with the original: stepping the copy changed it (copy.deepcopy)")
    same = repr(reward) == repr(repeated) and view(one) == view(two)
    must(same, f"the same answer of {agent} to the same state has another result the second time: chance, or observe")
    must(one.done or not one.solved, "solved is True but done is not: a solved task has ended")
    new = one.solved and not env.solved
    must(not new or reward.team == 1, f"solved becomes True but the team reward of {agent} is {reward.team!r}, not 1")
    wrong = one.done and not one.solved and reward.team == 1
    must(not wrong, f"the last action of {agent} has team reward 1 but solved is False")
    must(0 <= one.progress <= 1, f"progress is {one.progress!r}, not a number from 0 to 1")
    must((one.progress == 1) == one.solved, f"progress is {one.progress!r} where solved is {one.solved}")
    fast = seconds <= SLOW or env.slow_scoring
    must(fast, f"step took {seconds:.1f} s: set slow_scoring = True, so that threads score side by side")


def view(env: Env) -> Any:
    """What can be seen of an environment. Copied: `observe` may return a list that lives on."""
    return copy.deepcopy([env.observe(agent) for agent in env.agents]), env.done, env.solved


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
        env = make_env(given.task, given.workflow, **options)
        found = check(lambda: make_env(given.task, given.workflow, **options), given.task)
    except ValueError as error:
        parser.error(str(error))
    if found:
        sys.exit(found[0])
    if not env.noisy_answer and env.problems is None:
        print(SAYS_NOTHING)
    print(f"options: {list_options(given.task)}\n{given.task}: no mistake found")


if __name__ == "__main__":
    main()
