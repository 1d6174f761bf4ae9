"""`python -m tasks.check` names every mistake of an environment; ours have none."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from test_env_contract import CASES, CODE, IDS, MATH

from envs import Reward, make_env
from tasks.check import check

ROOT = Path(__file__).parent.parent


class Fine:
    """Say the number of the level; two agents, two tries."""

    agents, simultaneous = ("ann", "bob"), False

    def __init__(self):
        self.reset(0)

    def reset(self, seed):
        self.number, self.log = int(np.random.default_rng(seed).integers(5)), []
        self.done = self.solved = False
        return self

    def observe(self, agent):
        return [{"role": "user", "content": f"{agent}: {self.number}, said {self.log}"}]

    def step(self, agent, text):
        if self.done:
            return Reward(0.0, 0.0)
        self.log = [*self.log, text]
        self.solved = text == str(self.number)
        self.done = self.solved or len(self.log) == 4
        return Reward(float(self.solved), 0.5)

    def copy(self):
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def noisy_answer(self, rng, good):
        return str(self.number) if rng.random() < good else "none"


class SharesALog(Fine):
    def step(self, agent, text):
        self.log.append(text)
        return Reward(0.0, 0.5)


class PaysTwo(Fine):
    def step(self, agent, text):
        return Reward(super().step(agent, text).team, 2.0)


class PaysNan(Fine):
    def step(self, agent, text):
        return Reward(float("nan"), 0.0)


class PaysNothingForSolving(Fine):
    def step(self, agent, text):
        super().step(agent, text)
        return Reward(0.0, 0.0)


class PaysAllAtTheEnd(Fine):
    def step(self, agent, text):
        if self.done:
            return Reward(0.0, 0.0)
        super().step(agent, text)
        self.done = True
        return Reward(1.0, 0.0)


class GoesOn(Fine):
    def step(self, agent, text):
        self.log = [*self.log, text]
        self.solved = self.done = self.done or text == str(self.number)
        return Reward(float(self.solved), 0.0)


class ForgetsItsSeed(Fine):
    def reset(self, seed):
        super().reset(seed)
        self.number = random.randint(0, 10**6)
        return self


class Reseeds(Fine):
    def reset(self, seed):
        np.random.seed(seed)
        return super().reset(seed)


class ReturnsNothing(Fine):
    def reset(self, seed):
        super().reset(seed)


class ChangesWhenSeen(Fine):
    def observe(self, agent):
        self.log = [*self.log, "seen"]
        return super().observe(agent)


class ByChance(Fine):
    def step(self, agent, text):
        super().step(agent, text)
        return Reward(0.0, random.random())


class PaysATuple(Fine):
    def step(self, agent, text):
        return 0.0, 0.5


class HasAList(Fine):
    agents = ["ann", "bob"]  # noqa: RUF012


class HasNumbers(Fine):
    def reset(self, seed):
        super().reset(seed)
        self.done = 0
        return self


class SaysText(Fine):
    def observe(self, agent):
        return f"{agent}: {self.number}"


class CannotTravel(Fine):
    def reset(self, seed):
        super().reset(seed)
        self.key = lambda: seed
        return self


class TakesItsTime(Fine):
    def step(self, agent, text):
        time.sleep(0.11)
        return super().step(agent, text)


class IsItsOwnCopy(Fine):
    def copy(self):
        return self


class Raises(Fine):
    def step(self, agent, text):
        return {}["missing"]


class Progresses(Fine):
    progress = 0.5


class Halfway(Fine):
    @property
    def progress(self):
        return 1.0


MISTAKES = [
    (SharesALog, "copy shares state"),
    (PaysTwo, "reward local of ann is 2.0"),
    (PaysNan, "reward team of ann is nan"),
    (PaysNothingForSolving, "solved becomes True but the team reward"),
    (PaysAllAtTheEnd, "has team reward 1 but solved is False"),
    (GoesOn, "after done"),
    (ForgetsItsSeed, "does not always give the same level"),
    (Reseeds, "changes the global random generators"),
    (ReturnsNothing, "reset must return the environment"),
    (ChangesWhenSeen, "observe changes the environment"),
    (ByChance, "another result the second time"),
    (PaysATuple, "step must return envs.Reward(team, local), not tuple"),
    (HasAList, "agents must be a tuple"),
    (HasNumbers, "done must be True or False"),
    (SaysText, "must return a list of messages"),
    (CannotTravel, "cannot be pickled"),
    (TakesItsTime, "set slow_scoring = True"),
    (IsItsOwnCopy, "independent twin"),
    (Raises, "KeyError: 'missing' (step, line"),
    (Progresses, "progress is 0.5 where solved is True"),
    (Halfway, "progress is 1.0 where solved is False"),
]


def test_nothing_is_wrong_with_a_fine_one():
    assert check(Fine) == []


@pytest.mark.parametrize(("cls", "words"), MISTAKES, ids=[cls.__name__ for cls, _ in MISTAKES])
def test_every_mistake_is_named(cls, words):
    found = check(cls)
    assert any(words in problem for problem in found), found
    assert not any("\n" in problem for problem in found)


@pytest.mark.parametrize(("task", "workflow", "options"), CASES, ids=IDS)
def test_our_tasks_have_no_mistake(task, workflow, options, tmp_path):
    rows = {"math": MATH, "code": CODE}.get(task)
    if rows:
        (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = {**options, "data": str(tmp_path / "data.jsonl")}
    env = make_env(task, workflow, **options)
    assert check(env.copy) == []


def test_the_command(tmp_path):
    source = Path(__file__).read_text(encoding="utf-8")
    fine = source[source.index("class Fine") : source.index("class SharesALog")]
    imports = "import numpy as np\n\nfrom envs import Reward\n\n\n"
    (tmp_path / "fine.py").write_text(imports + fine)
    (tmp_path / "bad.py").write_text(imports + fine.replace("Reward(float(self.solved), 0.5)", "Reward(2.0, 0.5)"))
    command = [sys.executable, "-m", "tasks.check"]
    good, bad = (
        subprocess.run([*command, f"{tmp_path / file}:Fine"], cwd=ROOT, capture_output=True, text=True)
        for file in ("fine.py", "bad.py")
    )
    assert (good.returncode, good.stdout.endswith("no mistake found\n")) == (0, True), good.stderr
    assert bad.returncode == 1
    assert "the reward team of ann is 2.0, not a number from 0 to 1" in bad.stdout
