"""`python -m tools.check` names every mistake of an environment; ours have none."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from test_env_contract import CASES, CODE, IDS, MATH

from envs import Env, Reward, make_env
from tasks import sandbox
from tools.check import check

ROOT = Path(__file__).parent.parent


class Fine(Env):
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


class NeverStarts(Fine):
    def reset(self, seed):
        return super().reset(7)


class NeedsSmallSeeds(Fine):
    def reset(self, seed):
        np.random.RandomState(seed)
        return super().reset(seed)


class LeavesItsLog(Fine):
    def __init__(self):
        self.log = []
        self.reset(0)

    def reset(self, seed):
        log = self.log
        super().reset(seed)
        self.log = log
        return self


class CountsLooks(Fine):
    """What `observe` changes is not in the prompt, but the reward depends on it."""

    looks = 0

    def observe(self, agent):
        self.looks += 1
        return super().observe(agent)

    def step(self, agent, text):
        return Reward(super().step(agent, text).team, 1 / self.looks)


class ShowsItsOwnList(Fine):
    """`observe` returns the list that every copy appends to."""

    def reset(self, seed):
        super().reset(seed)
        self.key, self.messages = lambda: seed, [{"role": "user", "content": f"say {self.number}"}]
        return self

    def observe(self, agent):
        return self.messages

    def step(self, agent, text):
        self.messages.append({"role": "user", "content": text})
        return super().step(agent, text)


class NamesTheRole(Fine):
    def observe(self, agent):
        return [{"role": agent, "content": f"{self.number}"}]


class SaysNothing(Fine):
    def observe(self, agent):
        return [{"role": "system", "content": f"{self.number}"}, {"role": "user", "content": " "}]


class PaysByTheWord(Fine):
    def step(self, agent, text):
        return Reward(super().step(agent, text).team, len(text.split()) / 100)


class PaysLoose(Fine):
    def step(self, agent, text):
        return Reward(super().step(agent, text).team, -0.5)


class PaysInfinite(Fine):
    def step(self, agent, text):
        return Reward(super().step(agent, text).team, float("inf"))


class PaysText(Fine):
    def step(self, agent, text):
        return Reward(super().step(agent, text).team, "0.5")


class ReadsDigits(Fine):
    """ "²".isdigit() is True, and int("²") raises."""

    def step(self, agent, text):
        if text.isdigit():
            int(text)
        return super().step(agent, text)


class ReadsNumbers(Fine):
    """max and min let NaN through."""

    def step(self, agent, text):
        try:
            value = min(max(float(text), 0.0), 1.0)
        except ValueError:
            value = 0.0
        return Reward(super().step(agent, text).team, value)


class CopiesNothing(Fine):
    def copy(self):
        return None


class CopiesSlowly(Fine):
    def copy(self):
        time.sleep(0.02)
        return super().copy()


class LooksSlowly(Fine):
    def observe(self, agent):
        time.sleep(0.02)
        return super().observe(agent)


class SolvedGoesOn(Fine):
    def step(self, agent, text):
        reward = super().step(agent, text)
        self.done = self.done and not self.solved
        return reward


class LosesARole(Fine):
    def step(self, agent, text):
        reward = super().step(agent, text)
        self.agents = ("ann",)
        return reward


class BadInfo(Fine):
    def step(self, agent, text):
        return Reward(super().step(agent, text).team, 0.5, None)


class LargeInfo(Fine):
    def step(self, agent, text):
        return Reward(super().step(agent, text).team, 0.5, {"words": 7.0})


class NoSeed(Fine):
    number, log, done, solved = 1, (), False, False

    def __init__(self):
        pass

    def reset(self):
        return self


class NoMethod(Fine):
    observe = None


class Draws(Fine):
    def render(self):
        return ["a", "list"]


class BadNoise(Fine):
    def noisy_answer(self, rng, good):
        return self.number


class SharesTheClass(Fine):
    """A list of the class is one list for all levels."""

    said: list = []  # noqa: RUF012

    def observe(self, agent):
        return [{"role": "user", "content": f"{self.number} {len(self.said)}"}]

    def step(self, agent, text):
        self.said.append(text)
        return super().step(agent, text)


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
    (Raises, "step of ann raised KeyError: 'missing' (step, line"),
    (NeverStarts, "20 seeds give the same level"),
    (NeedsSmallSeeds, "ValueError: Seed must be between 0 and 2**32 - 1 (reset, line"),
    (LeavesItsLog, "what an earlier level left"),
    (CountsLooks, "another result the second time"),
    (ShowsItsOwnList, "copy shares state"),
    (NamesTheRole, "has a message of the role 'ann'"),
    (SaysNothing, "has no message of the user"),
    (PaysByTheWord, "reward local of ann is 5.0"),
    (PaysLoose, "reward local of ann is -0.5"),
    (PaysInfinite, "reward local of ann is inf"),
    (PaysText, "reward local of ann is '0.5'"),
    (ReadsDigits, "raised ValueError: invalid literal for int() with base 10: '²'"),
    (ReadsNumbers, "reward local of ann is nan"),
    (CopiesNothing, "independent twin"),
    (CopiesSlowly, "copy took 0.0"),
    (LooksSlowly, "observe took 0.0"),
    (SolvedGoesOn, "solved is True but done is not"),
    (LosesARole, "agents changed from ('ann', 'bob')"),
    (BadInfo, "info of a reward must be a dict"),
    (LargeInfo, "the reward words of ann is 7.0"),
    (NoSeed, "TypeError: NoSeed.reset() got an unexpected keyword argument 'seed'"),
    (NoMethod, "no method observe"),
    (Draws, "render must return a text, not list"),
    (BadNoise, "noisy_answer must return a text, not int"),
    (SharesTheClass, "copy shares state"),
    (Progresses, "progress is 0.5 where solved is True"),
    (Halfway, "progress is 1.0 where solved is False"),
]


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr("tools.check.SECONDS", 1.0)


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
    if env.runs_programs:
        sandbox.use_bubblewrap()
    assert check(env.copy) == []


def source_of_fine():
    source = Path(__file__).read_text(encoding="utf-8")
    fine = source[source.index("class Fine") : source.index("class SharesALog")]
    return f"import numpy as np\n\nfrom envs import Env, Reward\n\n\n{fine}"


def test_the_command(tmp_path):
    (tmp_path / "fine.py").write_text(source_of_fine())
    (tmp_path / "bad.py").write_text(source_of_fine().replace("Reward(float(self.solved), 0.5)", "Reward(2.0, 0.5)"))
    command = [sys.executable, "-m", "tools.check"]
    good, bad = (
        subprocess.run([*command, f"{tmp_path / file}:Fine"], cwd=ROOT, capture_output=True, text=True)
        for file in ("fine.py", "bad.py")
    )
    assert (good.returncode, good.stdout.endswith("no mistake found\n")) == (0, True), good.stderr
    assert bad.returncode == 1
    assert "the reward team of ann is 2.0, not a number from 0 to 1" in bad.stdout


@pytest.mark.parametrize("wrong", [True, False])
def test_levels_that_depend_on_the_process_are_named(tmp_path, wrong):
    """Texts have other hashes in every process, and sets of them another order."""
    level = "np.random.default_rng(seed).integers(5)"
    source = source_of_fine().replace(level, "hash(str(seed)) % 50" if wrong else level)
    (tmp_path / "fine.py").write_text(source)
    found = check(lambda: make_env(f"{tmp_path}/fine.py:Fine"), f"{tmp_path}/fine.py:Fine")
    assert [problem[:36] for problem in found] == ["another process makes another level "] * wrong


def test_a_raising_step_is_named_once_and_the_rest_too():
    class Both(Fine):
        def step(self, agent, text):
            if text.startswith("x"):
                raise RuntimeError("two\nlines")
            return Reward(2.0, 0.5)

    found = check(Both)
    assert sum("raised RuntimeError: two lines" in problem for problem in found) == 2  # one for each agent
    assert any("reward team of bob is 2.0" in problem for problem in found)


def test_a_slow_environment_is_not_checked_for_long(monkeypatch):
    monkeypatch.setattr("tools.check.SECONDS", 0.5)
    start = time.monotonic()
    assert any("set slow_scoring" in problem for problem in check(TakesItsTime))
    assert time.monotonic() - start < 20
