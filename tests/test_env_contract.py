"""One contract for every task and workflow: what the rollout relies on, whatever the task is."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs import Reward, make_env
from tasks import sandbox
from tools.check import check

MATH = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(5, 9)]
CODE = [
    {
        "question": f"Read an integer and print it plus {n}.",
        "tests": [{"input": f"{x}\n", "output": f"{x + n}\n"} for x in (1, 2)],
        "examples": [{"input": "1\n", "output": f"{n + 1}\n"}],
        "solutions": [f"print(int(input()) + {n})"],
    }
    for n in range(3, 7)
]
BOARDS = ("plan_path", "sokoban", "sudoku")
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *((task, "mas", {"tool": tool}) for task in BOARDS for tool in ("direct", "python")),
    *((task, "single", {"calls": calls}) for task in BOARDS for calls in (1, 2)),
    *((task, "tool", {}) for task in BOARDS),
    ("plan_path", "tool", {"tool": "python"}),
    ("sokoban", "single", {"tool": "python", "calls": 2}),
    *(("math", workflow, {}) for workflow in ("mas", "single", "tool", "ensemble")),
    ("math", "single", {"calls": 2}),
    ("math", "ensemble", {"reasoners": 1, "tool_users": 2}),
    *(("code", workflow, {}) for workflow in ("mas", "single")),
]
IDS = ["-".join([task, workflow, *map(str, options.values())]) for task, workflow, options in CASES]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("problems")
    for task, rows in (("math", MATH), ("code", CODE)):
        (folder / f"{task}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(params=CASES, ids=IDS)
def make(request, files):
    """A function that builds a fresh environment of this case and resets it."""
    task, workflow, options = request.param
    data = {"data": str(files / f"{task}.jsonl")} if task in ("math", "code") else {}
    return lambda seed=0: make_env(task, workflow, **data, **options).reset(seed=seed)


def answer(env, text):
    """Every agent says `text`."""
    for agent in env.agents:
        reward = env.step(agent, text)
        assert isinstance(reward, Reward)
        assert "format" in reward.info
        for value in (reward.team, reward.local, *reward.info.values()):
            assert type(value) in (int, float)
            assert 0 <= value <= 1 + 1e-12
        env.observe(agent)


def test_the_check_finds_no_mistake(make, monkeypatch):
    """Levels, E9 (copies are independent), C11 (nothing happens after the end), progress and rewards."""
    monkeypatch.setattr("tools.check.SECONDS", 1.0)
    env = make()
    if env.runs_programs:
        sandbox.use_bubblewrap()
    check(env, "plan_path")


def test_an_unknown_agent_is_an_error(make):
    env = make()
    for call in (env.observe, lambda agent: env.step(agent, "x")):
        with pytest.raises(ValueError, match=r"nobody.*" + env.agents[0]):
            call("nobody")


def test_each_role_reads_its_own_prompt(make):
    """E11: the system message tells an agent its own role and no other."""
    env = make()
    names = {agent: agent.rstrip("_0123456789").replace("_", " ") for agent in env.agents}
    for agent, name in names.items():
        system = env.observe(agent)[0]["content"]
        assert f"You are the {name}" in system
        assert not any(f"You are the {other}" in system for other in names.values() if other != name)


fragments = st.sampled_from(
    [*"R1[],}", "\n", "\x00", "####", "```python\n", "```json\n", "```", "\\boxed{", "<think>", "</think>"]
)
garbage = st.one_of(st.text(max_size=80), st.lists(st.one_of(fragments, st.text(max_size=5)), max_size=25).map("".join))


@given(texts=st.lists(garbage, min_size=1, max_size=3))
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_never_raises(make, texts):
    env = make(seed=9)
    for text in texts:
        answer(env, text)


@pytest.mark.parametrize(
    "text",
    ["#### " + "[" * 100_000, "#### [" + "9" * 100_000 + "]", "\ud800", "#### [1e999, NaN, -Infinity]", "#" * 100_000],
    ids=["deep", "long number", "surrogate", "not finite", "markers"],
)
def test_hostile_texts_are_read_quickly(make, text):
    answer(make(seed=9), text)
