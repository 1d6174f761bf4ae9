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


def paying(reward):
    """A step that does as before, and is paid otherwise."""
    return {"step": lambda self, agent, text: reward(Fine.step(self, agent, text), self, text)}


def then(method, change):
    """The method of Fine, after which something is changed; None: it returns nothing."""

    def changed(self, *args, **options):
        result = getattr(Fine, method)(self, *args, **options)
        return change(self, result)

    return {method: changed}


def shares(self, agent, text):
    self.log.append(text)
    return Reward(0.0, 0.5)


def goes_on(self, agent, text):
    self.log = [*self.log, text]
    self.solved = self.done = self.done or text == str(self.number)
    return Reward(float(self.solved), 0.0)


def ends_with_all(self, agent, text):
    if self.done:
        return Reward(0.0, 0.0)
    self.done = True
    return Reward(1.0, 0.0)


def leaves_its_log(self, seed):
    log = getattr(self, "log", [])
    Fine.reset(self, seed)
    self.log = log
    return self


def reads_digits(self, agent, text):
    """ "²".isdigit() is True, and int("²") raises."""
    return Fine.step(self, agent, str(int(text)) if text.isdigit() else text)


def set_of(**values):
    return lambda self, result: (vars(self).update(values), result)[1]


def slow(method, seconds):
    return then(method, lambda self, result: (time.sleep(seconds), result)[1])


RANDOM = {"reset": lambda self, seed: Fine.reset(self, random.randrange(100))}
MISTAKES = {  # what differs from Fine: what is said
    "copy shares state": {"step": shares},
    "reward local of ann is 2.0": paying(lambda r, *_: Reward(r.team, 2.0)),
    "reward local of ann is -0.5": paying(lambda r, *_: Reward(r.team, -0.5)),
    "reward local of ann is inf": paying(lambda r, *_: Reward(r.team, float("inf"))),
    "reward local of ann is '0.5'": paying(lambda r, *_: Reward(r.team, "0.5")),
    "reward local of ann is 5.0": paying(lambda r, self, text: Reward(r.team, len(text.split()) / 100)),
    "reward team of ann is nan": paying(lambda *_: Reward(float("nan"), 0.0)),
    "info of a reward must be a dict": paying(lambda r, *_: Reward(r.team, 0.5, None)),
    "the reward words of ann is 7.0": paying(lambda r, *_: Reward(r.team, 0.5, {"words": 7.0})),
    "solved becomes True but the team reward": paying(lambda *_: Reward(0.0, 0.0)),
    "has team reward 1 but solved is False": {"step": ends_with_all},
    "another result the second time": paying(lambda *_: Reward(0.0, random.random())),
    "step must return envs.Reward(team, local), not tuple": paying(lambda *_: (0.0, 0.5)),
    "after done": {"step": goes_on},
    "changes the global random generators": RANDOM,
    "what an earlier level left": {"reset": leaves_its_log},
    "reset must return the environment": then("reset", lambda self, result: None),
    "20 seeds give the same level": {"reset": lambda self, seed: Fine.reset(self, 7)},
    "ValueError: Seed must be": {"reset": lambda self, seed: (np.random.RandomState(seed), Fine.reset(self, seed))[1]},
    "unexpected keyword argument 'seed'": {"reset": lambda self: self, "__init__": lambda self: None, "number": 1},
    "observe changes the environment": then("observe", lambda self, r: (self.log.append("seen"), r)[1]),
    "must return a list of messages": then("observe", lambda self, r: str(r)),
    "a role (system, user, assistant)": then("observe", lambda self, r: [{"role": "ann", "content": "?"}, *r]),
    "has no message of the user": then("observe", lambda self, r: [{"role": "system", "content": str(r)}]),
    "agents must be a tuple": {"agents": ["ann", "bob"]},
    "done must be True or False": then("reset", set_of(done=0)),
    "cannot be pickled": then("reset", lambda self, r: (vars(self).update(key=lambda: 0), r)[1]),
    "set slow_scoring = True": slow("step", 0.11),
    "independent twin": {"copy": lambda self: self},
    "independent twin, not NoneType": {"copy": lambda self: None},
    "step of ann raised KeyError: 'missing'": {"step": lambda self, agent, text: {}["missing"]},
    "step of ann raised SystemExit": {"step": lambda self, agent, text: sys.exit(0)},
    "raised ValueError: invalid literal for int() with base 10: '²'": {"step": reads_digits},
    "solved is True but done is not": then("step", lambda self, r: (setattr(self, "done", False), r)[1]),
    "progress is 0.5 where solved is True": {"progress": 0.5},
    "progress is 1.0 where solved is False": {"progress": 1.0},
}


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr("tools.check.SECONDS", 1.0)


def test_nothing_is_wrong_with_a_fine_one():
    assert check(Fine) == []


def odd(changes):
    """A class of its own, found by pickle under its name."""
    globals()["Odd"] = type("Odd", (Fine,), {"__module__": __name__, "__qualname__": "Odd", **changes})
    return globals()["Odd"]


@pytest.mark.parametrize("words", MISTAKES)
def test_every_mistake_is_named(words):
    (found,) = check(odd(MISTAKES[words]))
    assert words in found
    assert "\n" not in found


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
    fine = source[source.index("class Fine") : source.index("def paying")]
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
    assert "the reward team of ann is 2.0, not a number from 0 to 1" in bad.stderr


@pytest.mark.parametrize("wrong", [True, False])
def test_levels_that_depend_on_the_process_are_named(tmp_path, wrong):
    """Texts have other hashes in every process, and sets of them another order."""
    level = "np.random.default_rng(seed).integers(5)"
    source = source_of_fine().replace(level, "hash(str(seed)) % 50" if wrong else level)
    (tmp_path / "fine.py").write_text(source)
    found = check(lambda: make_env(f"{tmp_path}/fine.py:Fine"), f"{tmp_path}/fine.py:Fine")
    assert [problem[:36] for problem in found] == ["another process makes another level "] * wrong


def test_a_class_that_does_not_inherit_is_refused():
    assert check(object) == ["class object must inherit from envs.Env"]


def test_what_a_task_without_noisy_answers_costs_is_said(tmp_path):
    source = source_of_fine()
    (tmp_path / "fine.py").write_text(source[: source.index("    def noisy_answer")])
    done = subprocess.run(
        [sys.executable, "-m", "tools.check", f"{tmp_path}/fine.py:Fine"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "a model from scratch (--model tiny) will learn nothing" in done.stdout


def test_a_slow_environment_is_not_checked_for_long(monkeypatch):
    monkeypatch.setattr("tools.check.SECONDS", 0.5)
    start = time.monotonic()
    assert any("set slow_scoring" in problem for problem in check(odd(slow("step", 0.11))))
    assert time.monotonic() - start < 20
