"""`python -m tools.check` names every mistake of an environment; ours have none (test_env_contract.py)."""

import copy
import inspect
import random
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers import ROOT

from envs import Env, Reward
from tools.check import check


class Fine(Env):
    """Say the number of the level; two agents, two tries."""

    agents = ("ann", "bob")

    def reset(self, seed):
        self.number, self.log = int(np.random.default_rng(seed).integers(5)), []
        self.done = self.solved = False
        return self

    def observe(self, agent):
        return [{"role": "user", "content": f"{agent}, after {self.log} say {self.number}"}]

    def step(self, agent, text):
        if self.done:
            return Reward(0.0, 0.0)
        self.log = [*self.log, text]
        self.solved = text == str(self.number)
        self.done = self.solved or len(self.log) == 4
        return Reward(float(self.solved), 0.5)


def paying(reward):
    """A step that does as before, and is paid otherwise."""
    return {"step": lambda self, agent, text: reward(Fine.step(self, agent, text), text)}


def then(method, change):
    """The method of Fine, after which something is changed."""
    return {method: lambda self, *args, **options: change(self, getattr(Fine, method)(self, *args, **options))}


def shares(self, agent, text):
    self.log.append(text)
    return Reward(0.0, 0.5)


def goes_on(self, agent, text):
    self.log = [*self.log, text]
    self.solved = self.done = self.done or text == str(self.number)
    return Reward(float(self.solved), 0.0)


def leaves_its_log(self, seed):
    log = getattr(self, "log", [])
    Fine.reset(self, seed)
    self.log = log
    return self


def reads_digits(self, agent, text):
    """ "²".isdigit() is True, and int("²") raises."""
    return Fine.step(self, agent, str(int(text)) if text.isdigit() else text)


def set_to(**values):
    return lambda self, result: (vars(self).update(values), result)[1]


SLOW = then("step", lambda self, result: (time.sleep(0.11), result)[1])
MISTAKES = {  # what differs from Fine: what is said
    "copy shares state": {"step": shares, "copy": copy.copy},
    "reward local of ann is 2.0": paying(lambda r, _: Reward(r.team, 2.0)),
    "reward local of ann is 5.0": paying(lambda r, text: Reward(r.team, len(text.split()) / 100)),
    "reward team of ann is nan": paying(lambda *_: Reward(float("nan"), 0.0)),
    "the reward words of ann is 7.0": paying(lambda r, _: Reward(r.team, 0.5, {"words": 7.0})),
    "the team reward of ann is 0.0, progress 1.0, solved True": paying(lambda *_: Reward(0.0, 0.0)),
    "has another result the second time": paying(lambda *_: Reward(0.0, random.random())),
    "step must return envs.Reward(team, local), not tuple": paying(lambda *_: (0.0, 0.5)),
    "after done": {"step": goes_on},
    "global random generators": {"reset": lambda self, seed: Fine.reset(self, random.randrange(100))},
    "what an earlier level left": {"reset": leaves_its_log},
    "reset must return the environment": then("reset", lambda self, _: None),
    "20 seeds give the same level": {"reset": lambda self, seed: Fine.reset(self, 7)},
    "ValueError: Seed must be": {"reset": lambda self, seed: (np.random.RandomState(seed), Fine.reset(self, seed))[1]},
    "observe changes the environment": then("observe", lambda self, r: (self.log.append("seen"), r)[1]),
    "must return messages of roles system, user": then("observe", lambda _, r: [{"role": "ann", "content": "?"}, *r]),
    "one with a text of the user": then("observe", lambda self, r: [{"role": "system", "content": str(r)}]),
    "surrogates not allowed": then("observe", lambda _, r: [*r, {"role": "user", "content": "\ud800"}]),
    "agents must be a tuple": {"agents": ["ann", "bob"]},
    "stages must have every agent once": {"agents": ("ann", "ann")},
    "done and solved must be True or False": then("reset", set_to(done=0)),
    "pickle": then("reset", lambda self, r: (vars(self).update(key=lambda: 0), r)[1]),
    "set slow_scoring = True": SLOW,
    "it raised KeyError: 'missing' (<lambda>, line": {"step": lambda *_: {}["missing"]},
    "it raised SystemExit": {"step": lambda *_: sys.exit(0)},
    "raised ValueError: invalid literal for int() with base 10: '²'": {"step": reads_digits},
    "solved True, done False": then("step", set_to(done=False)),
    "progress 1.0, solved False": {"progress": 1.0},
}


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr("tools.check.SECONDS", 1.0)


def odd(changes):
    """A class of its own, found by pickle under its name."""
    globals()["Odd"] = type("Odd", (Fine,), {"__module__": __name__, "__qualname__": "Odd", **changes})
    return globals()["Odd"]


@pytest.mark.parametrize("words", MISTAKES)
def test_every_mistake_is_named(words):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        check(odd(MISTAKES[words])(), "sudoku")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (("", ""), 0, "a model from scratch (--model tiny) will learn nothing"),
        (("self.solved), 0.5)", "self.solved), 2.0)"), 1, "the reward local of ann is 2.0, not a number from 0 to 1"),
        # texts have other hashes in every process, and sets of them another order
        (("np.random.default_rng(seed).integers(5)", "hash(str(seed)) % 50"), 1, "another process makes another"),
    ],
)
def test_the_command(tmp_path, change, code, said):
    source = f"import numpy as np\nfrom envs import Env, Reward\n\n{inspect.getsource(Fine)}"
    (tmp_path / "fine.py").write_text(source.replace(*change))
    command = [sys.executable, "-m", "tools.check", f"{tmp_path}/fine.py:Fine"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
    assert done.stdout.endswith("no mistake found\n") == (code == 0)
