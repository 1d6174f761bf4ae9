"""Does an environment follow the contract? One line that says what is wrong: python -m tools.check file.py:Class"""

import argparse
import copy
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from envs import Env, Reward, make_env
from records.console import errors_in_one_line
from tasks import sandbox
from tasks.levels import HELD_OUT_SEEDS, list_options, parse_pairs
from tasks.registry import in_one_line

SEEDS = (0, 1, HELD_OUT_SEEDS + 2)  # that are played; those of evaluations have 42 bits
TURNS, LAST = 4, 40  # turns with all kinds of texts, and all turns
SECONDS = 15.0  # for all of it
SLOW = 0.1  # seconds of a step
ROLES = ("system", "user", "assistant")  # what chat templates know
TEXTS = ["", "no answer", "#### [1, 2]", r"\boxed{1}", "```python\nprint(1)\n```", "x" * 5000, "word " * 500, "0", "-1"]
TEXTS += ("1 2 3 4 5 6 7 8 9", "99999999999999999999", "nan", "inf", "²", "{}", "%s", "é\u2028\n\t😀\x00")


def check(env: Env, task: str) -> None:
    """ValueError with the first mistake of an environment of `make_env(task)`. Training begins so."""
    deadline = time.monotonic() + SECONDS
    try:
        assert env.reset(seed=0) is env, "reset must return the environment itself"
        fine = isinstance(env.agents, tuple) and all(map(str.isidentifier, env.agents))
        assert fine, f"agents must be a tuple of names, not {env.agents!r}"
        staged = sorted(agent for group in env.stages for agent in group)
        assert staged == sorted({*env.agents}) != [], f"stages must have every agent once, not {env.stages!r}"
        kinds = {*map(type, (env.simultaneous, env.done, env.solved))}
        assert kinds == {bool}, "simultaneous, done and solved must be True or False from the start"
        for seed in SEEDS:
            check_play(env.copy().reset(seed=seed), seed, deadline)
        check_levels(env, task)
    except (Exception, SystemExit) as error:  # a task of one's own may raise anything
        ours = isinstance(error, AssertionError) and str(error)
        raise ValueError(f"task {task}: {error if ours else f'it raised {in_one_line(error)}'}") from error


def view(env: Env) -> Any:
    """What can be seen, copied: `observe` may return a list that lives on."""
    return copy.deepcopy([env.observe(agent) for agent in env.agents]), env.done, env.solved


def levels(env: Env) -> list:
    return [view(env.copy().reset(seed=seed)) for seed in range(20)]


def check_levels(env: Env, task: str) -> None:
    """The seed alone determines the level, also where texts have other hashes, and sets other orders."""
    state = str((random.getstate(), np.random.get_state()))
    ours, used = levels(env), env.copy().reset(seed=1)
    untouched = state == str((random.getstate(), np.random.get_state()))
    assert untouched, "reset changes the global random generators: use numpy.random.default_rng(seed)"
    act(used, used.agents[0], "an earlier level")
    same = ours == levels(env) == levels(used)
    assert same, "a seed does not always give the same level: chance, or what an earlier level left"
    different = any(level != ours[0] for level in ours) or (env.problems is not None and len(env.problems) < 2)
    assert different, "20 seeds give the same level: reset has to make its level from the seed"
    code = "import pickle, sys; from tools.check import levels; from tasks.registry import task_class; "
    code += "task_class(sys.argv[1]); print(ascii(levels(pickle.load(sys.stdin.buffer))))"
    others = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"}
    theirs = subprocess.check_output([sys.executable, "-c", code, task], input=pickle.dumps(env), env=others)
    same = theirs.strip().endswith(ascii(ours).encode())
    assert same, "another process makes another level from the same seed: sort a set, and hash with zlib.crc32"


def check_play(env: Env, seed: int, deadline: float) -> None:
    rng = np.random.default_rng(seed)
    pickle.loads(pickle.dumps(env))
    for agent in env.agents:
        messages = env.observe(agent)
        said = {message["role"]: message["content"].strip() for message in messages}
        fine = {*said} <= {*ROLES} and said.get("user")
        assert fine, f"observe({agent!r}) must return messages of roles {', '.join(ROLES)}, one with a text of the user"
        "".join(message["content"] for message in messages).encode()  # half a surrogate pair is no text
    assert view(env) == view(env), "observe changes the environment, or its text by chance"
    for turn, agent in product(range(LAST), env.agents):
        if env.done:
            before, reward = view(env), act(env, agent, "after the end")
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
    reward = env.step(agent, text)
    assert isinstance(reward, Reward), f"step must return envs.Reward(team, local), not {type(reward).__name__}"
    for name, value in (("team", reward.team), ("local", reward.local), *reward.info.items()):
        fine = isinstance(value, int | float) and 0 <= value <= 1
        assert fine, f"the reward {name} of {agent} is {value!r}, not a number from 0 to 1"
    return reward


def check_candidate(env: Env, agent: str, text: str) -> None:
    """Two twins get the same for one answer, and the original does not notice."""
    before, one, two = view(env), env.copy(), env.copy()
    twin = type(one) is type(env) and one is not env and view(one) == before
    assert twin, "copy must return an independent twin in the same state"
    view(two)  # to look changes nothing
    start = time.perf_counter()
    reward, repeated = act(one, agent, text), act(two, agent, text)
    slow = (time.perf_counter() - start) / 2 > SLOW and not env.slow_scoring
    assert not slow, f"step takes over {SLOW} s: set slow_scoring = True, so that threads score side by side"
    assert view(env) == before, "copy shares state with the original: stepping the copy changed it (copy.deepcopy)"
    same = repr(reward) == repr(repeated) and view(one) == view(two)
    assert same, f"the same answer of {agent} to the same state has another result the second time: chance, or observe"
    paid = (reward.team == 1) == one.solved if one.done else not one.solved
    fine = paid and 0 <= one.progress <= 1 and (one.progress == 1) == one.solved
    found = f"the team reward of {agent} is {reward.team!r}, progress {one.progress!r}, solved {one.solved}"
    assert fine, f"{found}, done {one.done}: what solves the task ends it, and only then both are 1 at the end"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.check", description=__doc__)
    parser.add_argument("task", help="file.py:Class, module:Class, or one of ours")
    parser.add_argument("options", nargs="*", metavar="KEY=VALUE", help="options of the task")
    parser.add_argument("--workflow", default="mas")
    parser.add_argument("--data", metavar="FILE", help="problems, for a task that reads them")
    parser.add_argument("--sandbox", choices=("auto", "rlimit"), default="auto", help="as in train.py")
    given = parser.parse_args(arguments)
    with errors_in_one_line("tools.check"):
        sandbox.set_mode(given.sandbox)
        options = parse_pairs(given.task, given.options) | ({"data": given.data} if given.data else {})
        env = make_env(given.task, given.workflow, **options)
        check(env, given.task)
    if not env.noisy_answer and env.problems is None:
        print("note: it has no noisy_answer to imitate, so a model from scratch (--model tiny) will learn nothing")
    print(f"options: {list_options(given.task)}\n{given.task}: no mistake found")


if __name__ == "__main__":
    main()
