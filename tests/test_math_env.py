"""The mathematics environments, their rewards and their data sets."""

import json

import pytest
from test_rollout import tree

from envs import InfraError, make_env
from rollout import rollout_chains
from tasks import math_env, sandbox
from tasks.math_env import MathEnv, Question, load_problems, read_problem

ONE = [Question("What is 2 + 3?", "5")]
RIGHT, WRONG, NONE = r"Easy: \boxed{5}", r"So \boxed{6}", "I do not know"
PRINTS_5, PRINTS_6 = "```python\nprint(2 + 3)\n```", "```python\nprint(6)\n```"


@pytest.fixture
def fake(monkeypatch):
    """A sandbox that answers a program without running it: {code: (status, stdout, stderr)}."""
    programs = {"print(2 + 3)\n": ("ok", "5\n", ""), "print(6)\n": ("ok", "6\n", "")}

    def run(code, stdin="", timeout=0.0):
        return sandbox.Result(*programs[code])

    monkeypatch.setattr(math_env.sandbox, "run_program", run)
    return programs


def prompt(env, agent):
    return "\n".join(message["content"] for message in env.observe(agent))


@pytest.mark.parametrize(
    ("agent", "text", "team", "local"),
    [
        ("reasoner", RIGHT, 1, 1.0),
        ("reasoner", WRONG, 0, 0.2),
        ("reasoner", NONE, 0, 0.0),
        ("reasoner", "#### 5", 1, 1.0),
        ("tool_user", RIGHT, 0, 0.0),
        ("tool_user", "```python\nprint(5)", 0, 0.0),
        ("tool_user", "```\nprint(5)\n```", 0, 0.0),
    ],
)
def test_reward(agent, text, team, local):
    reward = MathEnv("mas", problems=ONE).reset(0).step(agent, text)
    assert (reward.team, reward.local) == (team, pytest.approx(local))


@pytest.mark.parametrize(
    ("gold", "result", "team", "local"),
    [
        ("5", ("ok", "5\n", ""), 1, 1.0),
        ("5", ("ok", "working\n\\boxed{5}\nbye\n", ""), 1, 1.0),
        ("5", ("ok", "6\n", ""), 0, 0.2),
        ("5", ("ok", " \n", ""), 0, 0.1),  # no answer line that can be read: the format share only
        ("5", ("ok", "None\n", ""), 0, 0.1),
        ("5", ("ok", "nan\n", ""), 0, 0.1),
        ("5", ("ok", "\\boxed{}\n", ""), 0, 0.1),
        ("5", ("ok", "<built-in function print>\n", ""), 0, 0.1),
        ("5", ("ok", "5" * 301 + "\n", ""), 0, 0.1),
        ("5", ("error", "5\n", "ValueError"), 0, 0.1),
        ("1,2", ("ok", "[2, 1]\n", ""), 1, 1.0),
        ("(1,2)", ("ok", "\\boxed{(\n1,2)}\n", ""), 1, 1.0),
        (r"\{1,2\}", ("ok", "[1, 2]\n", ""), 1, 1.0),
        ("(1,2)", ("ok", "[1, 2]\n", ""), 1, 1.0),
        ("(1,2),(3,4)", ("ok", "[(1, 2), (3, 4)]\n", ""), 1, 1.0),
        ("55", ("ok", "\\sum_{k=1}^{10}k\n", ""), 0, 0.2),
    ],
)
def test_what_a_program_earns(fake, gold, result, team, local):
    fake["run()\n"] = result
    reward = MathEnv("mas", problems=[Question("Q?", gold)]).reset(0).step("tool_user", "```python\nrun()\n```")
    assert (reward.team, reward.local) == (team, pytest.approx(local))


def test_tool_user_in_the_real_sandbox():
    env = MathEnv("mas", problems=ONE, timeout=5).reset(0)
    for program, local in [("print(2 + 3)", 1.0), ("print(5)\n1 / 0", 0.1), ("while True: print(5)", 0.1)]:
        assert env.copy().step("tool_user", f"```python\n{program}\n```").local == pytest.approx(local)


def test_infrastructure_failure_is_no_verdict(fake, monkeypatch):
    fake["run()\n"] = ("infra", "", "no namespace")
    env = MathEnv("mas", problems=ONE).reset(0)
    before = vars(env.copy())
    with pytest.raises(InfraError, match="no namespace"):
        env.step("tool_user", "```python\nrun()\n```")

    def broken(**_):
        raise InfraError("scorer died")

    monkeypatch.setattr(math_env, "math_equal", broken)
    with pytest.raises(InfraError, match="scorer died"):
        env.step("reasoner", RIGHT)
    assert vars(env) == before


@pytest.mark.parametrize(
    ("reasoner", "tool_user", "teams", "solved", "done"),
    [
        (r"\boxed{5.0}", PRINTS_5, [1, 1], True, True),
        (WRONG, PRINTS_6, [0, 0], False, True),  # agreement on something wrong ends the episode, and earns nothing
        (WRONG, PRINTS_5, [0, 1], False, False),  # paid as if it were the team's answer, which the reasoner gives
        (NONE, NONE, [0, 0], False, False),  # two agents without an answer do not agree
    ],
)
def test_mas_ends_when_both_agree(fake, reasoner, tool_user, teams, solved, done):
    env = make_env("math", problems=ONE).reset(0)
    assert env.simultaneous
    rewards = [env.step("reasoner", reasoner), env.step("tool_user", tool_user)]
    assert [reward.team for reward in rewards] == teams
    assert (env.solved, env.done) == (solved, done)
    if done:
        after = env.step("reasoner", RIGHT)
        assert (after.team, after.local, env.solved) == (0, 0, solved)


def test_an_agent_without_an_action_does_not_agree():
    """No candidate of the reasoner could be scored, so that none was committed."""
    env = MathEnv("ensemble", problems=ONE, reasoners=2, tool_users=0).reset(0)
    env.step("reasoner_2", RIGHT)
    env.step("judge", RIGHT)
    assert (env.solved, env.done) == (True, False)
    assert "reasoner_2: 5" in prompt(env, "reasoner_1")


def test_the_next_turn_shows_answers_reasoning_and_program_with_its_output(fake):
    fake["x = 6\nprint('so', x)\nprint(x)\n"] = ("ok", "so 6\n6\n", "")
    env = MathEnv("mas", problems=ONE).reset(0)
    first = prompt(env, "tool_user")
    env.step("reasoner", "<think>secret</think>Two and three are five. " + RIGHT)
    assert prompt(env, "tool_user") == first  # simultaneous: nothing of this turn
    env.step("tool_user", "My idea.\n```python\nx = 6\nprint('so', x)\nprint(x)\n```")
    parts = ("What is 2 + 3?", "reasoner: 5", "Two and three are five.", "tool_user: 6", "print('so', x)", "so 6\n6")
    for agent in env.agents:
        assert [part for part in parts if part not in prompt(env, agent)] == []
        assert "secret" not in prompt(env, agent)


def test_a_failed_program_is_reported_to_its_author_only(fake):
    fake["run()\n"] = ("error", "", "Traceback\nZeroDivisionError: division by zero\n")
    env = MathEnv("mas", problems=ONE).reset(0)
    env.step("reasoner", RIGHT)
    env.step("tool_user", "```python\nrun()\n```")
    assert ["ZeroDivisionError" in prompt(env, agent) for agent in env.agents] == [False, True]
    assert "tool_user: no answer" in prompt(env, "reasoner")


def test_single_ends_when_the_answer_is_repeated():
    env = make_env("math", "single", problems=ONE).reset(0)
    for text, done in [(WRONG, False), (RIGHT, False), (NONE, False), (RIGHT, False), (r"\boxed{10/2}", True)]:
        env.step("reasoner", text)
        assert env.done is done
    assert env.solved


def test_ensemble(fake):
    env = make_env("math", "ensemble", problems=ONE, reasoners=2, tool_users=1).reset(0)
    assert env.agents == ("reasoner_1", "reasoner_2", "tool_user_1", "judge")
    assert env.stages == [env.agents[:-1], ("judge",)]
    first = {agent: prompt(env, agent) for agent in env.agents}
    for agent in env.agents[:-1]:
        assert prompt(env, agent) == first[agent]  # they do not see each other within the turn
        env.step(agent, PRINTS_6 if "tool" in agent else "Because I counted. " + RIGHT)
    parts = ("reasoner_1: 5", "reasoner_2: 5", "Because I counted.", "tool_user_1: 6", "It printed:\n6")
    assert [part for part in parts if part not in prompt(env, "judge")] == []
    assert not env.solved  # nobody but the judge answers for the team
    reward = env.step("judge", RIGHT)
    assert (reward.team, reward.local) == (1, pytest.approx(1.0))
    assert (env.solved, env.done) == (True, False)
    assert "judge: 5" in prompt(env, "reasoner_1")
    for agent in env.agents:
        env.step(agent, PRINTS_6 if "tool" in agent else WRONG)
    assert (env.solved, env.done) == (False, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workflow": "duo", "problems": ONE}, "workflow='duo'"),
        ({}, "give data="),
        ({"problems": []}, "at least one"),
        ({"problems": ONE, "calls": 2}, "calls=2"),
        ({"workflow": "ensemble", "problems": ONE, "reasoners": 0, "tool_users": 0}, "reasoners=0"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make_env("math", **options)


def test_seeds_walk_through_all_problems_in_a_fixed_order():
    problems = [Question(f"What is {i}?", str(i)) for i in range(50)]
    walk = [MathEnv(problems=problems).reset(seed).problem.question for seed in range(51)]
    assert sorted(walk[:50]) == sorted(problem.question for problem in problems)
    assert walk[:50] != [problem.question for problem in problems]
    assert walk[50] == walk[0]


@pytest.mark.parametrize(
    ("row", "gold", "tolerance"),
    [
        ({"question": "Q?", "answer": "He has <<2+3=5>>5.\n#### 1,005"}, "1,005", 0),  # GSM8K
        ({"problem": "Q?", "answer": "\\frac12", "solution": "long"}, "\\frac12", 0),  # DeepScaleR, MATH-500, Polaris
        ({"Problem": "Q?", "Answer": 204, "ID": "2024-I-1"}, "204", 0),  # AIME
        ({"question": "Q?", "final_answer": ["$2$", "$3$"], "solution": ["long"]}, "$2$, $3$", 0),  # OlympiadBench
        ({"question": "Q?", "final_answer": ["$4.2$"], "error": 0.1}, "$4.2$", 0.1),
        ({"question": "Q?", "final_answer": ["1", "2"], "error": "1e-1,1e-2"}, "1, 2", 0.01),
        ({"problem": "Q?", "solution": "So it is $\\boxed{7}$.", "level": "Level 5"}, "7", 0),  # MATH
        ({"prompt": "Q?", "answer": 2.5, "error": None}, "2.5", 0),
    ],
)
def test_formats_are_told_by_their_fields(row, gold, tolerance):
    assert read_problem(row) == Question("Q?", gold, tolerance)


def test_a_tolerance_reaches_the_reward():
    env = MathEnv("mas", problems=[{"question": "Q?", "final_answer": ["$4.2$"], "error": "1e-1"}]).reset(0)
    assert [env.step("reasoner", rf"\boxed{{{answer}}}").team for answer in ("4.23", "4.35")] == [1, 0]


@pytest.mark.parametrize(
    "row",
    [
        {"answer": "5"},
        {"question": "Q?", "answer": ""},
        {"question": "Q?", "answer": True},
        {"problem": "Q?", "solution": "no box"},
        {"question": "Q?", "answer": ["5", None]},
        {"question": "Q?", "answer": "5", "Answer": "6"},
        {"question": "Q?", "answer": "5", "error": "small"},
    ],
)
def test_rows_that_are_no_problem_are_named(tmp_path, row):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"question": "Q?", "answer": "5"}}\n{json.dumps(row)}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl', row 2: .*(no answer in|could not convert)"):
        load_problems(str(path))


def test_a_question_stays_whole():
    for end in (r"Give the remainder of S modulo 7 in \boxed{}.", "Put 1.5 times it in \\boxed{ }\nas a fraction"):
        assert read_problem({"problem": f"Let S be the sum. {end}", "answer": "5"}).question.endswith(end)


@pytest.mark.parametrize(("reasoner", "tool", "returned"), [(RIGHT, "print(1)", 1.0), ("\\boxed{1}", "print(5)", 0.0)])
def test_a_chain_is_paid_for_the_answer_of_the_team(reasoner, tool, returned):
    """The reasoner's, also when the tool user acts last and answers otherwise."""
    answers = {"reasoner": reasoner, "tool_user": f"```python\n{tool}\n```"}
    env = MathEnv("mas", problems=ONE).reset(0)
    result, _ = tree([env], lambda request, k: answers[request.agent], k=2, turns=1, sample=rollout_chains)
    assert {sample.reward for sample in result.samples} == {returned}
    assert [episode.solved for episode in result.episodes] == [bool(returned)] * 2
