"""Does an environment follow the contract? One line that says what is wrong: python -m tools.check file.py:Class

Training trusts an environment blindly: a copy that shares state, or a reward above 1, silently trains something else.
The same checks run before training on a task of one's own. They resemble the API tests of PettingZoo and Gymnasium.
"""

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
from functools import partial
from typing import Any

import numpy as np

from envs import Env, Reward, make_env
from records.console import errors_in_one_line
from tasks import sandbox
from tasks.levels import HELD_OUT_SEEDS, list_options, parse_pairs
from tasks.registry import in_one_line

SEEDS = (0, 1, HELD_OUT_SEEDS + 2)  # levels that are played; those of evaluations have numbers of 42 bits
TURNS, LAST = 4, 40  # turns with all kinds of answers, and turns until a level should have ended
SECONDS = 15.0  # for all of it; a slow environment is played for a shorter time
SLOW = 0.1  # seconds of a step
ROLES = ("system", "user", "assistant")  # what chat templates know
TEXTS = ["", "no answer", "#### [1, 2]", r"\boxed{1}", "```python\nprint(1)\n```", "x" * 5000, "word " * 500, "0", "-1"]
TEXTS += ("1 2 3 4 5 6 7 8 9", "99999999999999999999", "nan", "inf", "²", "{}", "%s", "é\u2028\n\t😀\x00")


def check(make: Callable[[], Env], task: str = "") -> list[str]:
    """The first mistake of the environments that `make` builds, as a list of one line; nothing when all is well.

    With the name of the `task` a second process makes its levels too.
    """
    deadline = time.monotonic() + SECONDS
    try:
        env = make()
        check_shape(env)
        levels = 20 if env.problems is None else len(env.problems[:2])
        views = [view(make().reset(seed=seed)) for seed in range(levels)]
        different = levels < 2 or any(other != views[0] for other in views)
        assert different, f"{levels} seeds give the same level: reset has to make its level from the seed"
        for seed in SEEDS:
            check_repeats(make, seed)
            check_play(make().reset(seed=seed), seed, deadline)
        if task:
            check_elsewhere(make(), task)
    except (Exception, SystemExit) as error:  # a task of one's own may raise anything
        ours = isinstance(error, AssertionError) and str(error)
        return [" ".join(str(error).split()) if ours else f"it raised {in_one_line(error)}"]
    return []


def check_shape(env: Env) -> None:
    """Attributes and their types."""
    assert isinstance(env, Env), f"class {type(env).__name__} must inherit from envs.Env"
    assert env.reset(seed=0) is env, "reset must return the environment itself"
    fine = isinstance(env.agents, tuple) and all(isinstance(name, str) and name.isidentifier() for name in env.agents)
    assert fine, f"agents must be a tuple of names, not {env.agents!r}"
    staged = sorted(agent for group in env.stages for agent in group)
    assert staged == sorted({*env.agents}) != [], f"stages must have every agent once, not {env.stages!r}"
    for name in ("simultaneous", "done", "solved"):
        value = getattr(env, name)
        assert isinstance(value, bool), f"{name} must be True or False from the start, not {value!r}"


def view(env: Env) -> Any:
    """What can be seen of an environment. Copied: `observe` may return a list that lives on."""
    return copy.deepcopy([env.observe(agent) for agent in env.agents]), env.done, env.solved


def check_repeats(make: Callable[[], Env], seed: int) -> None:
    """The seed alone determines the level, and the global random generators stay untouched."""
    state = str((random.getstate(), np.random.get_state()))
    first, used = view(make().reset(seed=seed)), make().reset(seed=seed + 1)
    untouched = state == str((random.getstate(), np.random.get_state()))
    assert untouched, "reset changes the global random generators: use numpy.random.default_rng(seed)"
    act(used, used.agents[0], "an earlier level")
    same = view(make().reset(seed=seed)) == view(used.reset(seed=seed)) == first
    assert same, "a seed does not always give the same level: chance, or what an earlier level left"


def digest(env: Env) -> bytes:
    """The levels of a few seeds in one number."""
    return b"%d" % zlib.crc32(repr([view(env.copy().reset(seed=seed)) for seed in range(8)]).encode(errors="replace"))


def check_elsewhere(env: Env, task: str) -> None:
    """A process in which texts have other hashes, and so sets another order, makes the same levels."""
    code = "import pickle, sys; from tools.check import digest; from tasks.registry import task_class; "
    code += "task_class(sys.argv[1]); print(digest(pickle.load(sys.stdin.buffer)).decode())"
    others = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"}
    found = subprocess.check_output([sys.executable, "-c", code, task], input=pickle.dumps(env), env=others)
    same = found.strip() == digest(env)
    assert same, "another process makes another level from the same seed: sort a set, and hash with zlib.crc32"


def check_play(env: Env, seed: int, deadline: float) -> None:
    """A few turns with all kinds of texts; each is tried on copies, as in training, and one copy is played on."""
    rng = np.random.default_rng(seed)
    pickle.loads(pickle.dumps(env))
    for agent in env.agents:
        messages = env.observe(agent)
        fine = all(message["role"] in ROLES and isinstance(message["content"], str) for message in messages)
        fine = fine and any(message["role"] == "user" and message["content"].strip() for message in messages)
        assert fine, f"observe({agent!r}) must return messages of roles {', '.join(ROLES)}, one with a text of the user"
        "".join(message["content"] for message in messages).encode()  # half a surrogate pair is no text
    assert view(env) == view(env), "observe changes the environment, or its text by chance"
    for turn in range(LAST):
        for agent in env.agents:
            before = view(env)
            if env.done:
                reward = act(env, agent, "after the end")
                nothing = view(env) == before and (reward.team, reward.local) == (0, 0)
                assert nothing, f"step after done must change nothing and have rewards 0, not {reward}"
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
    """One step, whose rewards are numbers from 0 to 1."""
    reward = env.step(agent, text)
    assert isinstance(reward, Reward), f"step must return envs.Reward(team, local), not {type(reward).__name__}"
    for name, value in (("team", reward.team), ("local", reward.local), *reward.info.items()):
        fine = isinstance(value, int | float) and 0 <= value <= 1
        assert fine, f"the reward {name} of {agent} is {value!r}, not a number from 0 to 1"
    return reward


def check_candidate(env: Env, agent: str, text: str) -> None:
    """One answer, tried on two twins: both get the same, and the original does not notice."""
    before, one, two = view(env), env.copy(), env.copy()
    twin = type(one) is type(env) and one is not env and view(one) == before
    assert twin, "copy must return an independent twin in the same state"
    view(two)  # more often than the other twin: to look changes nothing
    start = time.perf_counter()
    reward, repeated = act(one, agent, text), act(two, agent, text)
    slow = (time.perf_counter() - start) / 2 > SLOW and not env.slow_scoring
    assert not slow, f"step takes over {SLOW} s: set slow_scoring = True, so that threads score side by side"
    assert view(env) == before, "copy shares state with the original: stepping the copy changed it (copy.deepcopy)"
    same = repr(reward) == repr(repeated) and view(one) == view(two)
    assert same, f"the same answer of {agent} to the same state has another result the second time: chance, or observe"
    paid = (reward.team == 1) == one.solved if one.done else not one.solved
    found = f"the team reward of {agent} is {reward.team!r}, solved {one.solved} and done {one.done}"
    assert paid, f"{found}: an action that solves the task ends it and earns 1, any other less than 1 at the end"
    right = 0 <= one.progress <= 1 and (one.progress == 1) == one.solved
    assert right, f"progress is {one.progress!r} where solved is {one.solved}: from 0 to 1, and 1 means solved"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.check", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("task", help="file.py:Class, module:Class, or one of ours")
    parser.add_argument("options", nargs="*", metavar="KEY=VALUE", help="options of the task")
    parser.add_argument("--workflow", default="mas")
    parser.add_argument("--data", metavar="FILE", help="problems, for a task that reads them")
    parser.add_argument("--sandbox", choices=("auto", "rlimit"), default="auto", help="as in train.py")
    given = parser.parse_args(arguments)
    with errors_in_one_line("tools.check"):
        sandbox.set_mode(given.sandbox)
        options = parse_pairs(given.task, given.options) | ({"data": given.data} if given.data else {})
        make = partial(make_env, given.task, given.workflow, **options)
        env, found = make(), check(make, given.task)
        if found:
            raise ValueError(found[0])
    if not env.noisy_answer and env.problems is None:
        print("note: it has no noisy_answer, so a model from scratch (--model tiny) will learn nothing")
    print(f"options: {list_options(given.task)}\n{given.task}: no mistake found")


if __name__ == "__main__":
    main()
