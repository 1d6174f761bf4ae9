"""The mathematics environments, their rewards and their data sets."""

import json
import os
from pathlib import Path

import pytest
from helpers import ScriptedEngine
from hypothesis import given, settings
from hypothesis import strategies as st

from envs import InfraError, make_env
from grouping import group_samples
from rollout import rollout_chains, rollout_tree
from sampling.requests import Completion
from tasks import math_env, sandbox
from tasks.math_env import MathEnv, Question, load_problems, read_problem

SAMPLES = Path(__file__).parent / "samples"
DATA = os.environ.get("AT_GRPO_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="AT_GRPO_DATA names no folder with the benchmark files")

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


# -------------------------------------------------------------------------------------------------------------- rewards


@pytest.mark.parametrize(
    ("text", "team", "local"),
    [
        (RIGHT, 1, 1.0),
        (WRONG, 0, 0.2),
        (NONE, 0, 0.0),
        (r"\boxed{}", 0, 0.0),
        ("5", 0, 0.0),
        ("", 0, 0.0),
        ("#### 5", 1, 1.0),
    ],
)
def test_reasoner_reward(text, team, local):
    reward = MathEnv("mas", problems=ONE).reset(0).step("reasoner", text)
    assert (reward.team, reward.local) == (team, pytest.approx(local))


@pytest.mark.parametrize(
    ("result", "team", "local"),
    [
        (("ok", "5\n", ""), 1, 1.0),
        (("ok", "working\n\\boxed{5}\nbye\n", ""), 1, 1.0),
        (("ok", "4\n5.0\n\n", ""), 1, 1.0),
        (("ok", "6\n", ""), 0, 0.2),
        (("ok", " \n", ""), 0, 0.1),  # no answer line that can be read: the format share only
        (("ok", "None\n", ""), 0, 0.1),
        (("ok", "5\n---\n", ""), 0, 0.1),
        (("ok", "5\n[]\n", ""), 0, 0.1),
        (("ok", "5" * 301 + "\n", ""), 0, 0.1),
        (("error", "5\n", "ValueError"), 0, 0.1),
        (("timeout", "5\n", ""), 0, 0.1),
        (("memory", "", ""), 0, 0.1),
        (("output", "5\n" * 9, ""), 0, 0.1),
    ],
)
def test_tool_user_reward(fake, result, team, local):
    fake["run()\n"] = result
    reward = MathEnv("mas", problems=ONE).reset(0).step("tool_user", "```python\nrun()\n```")
    assert (reward.team, reward.local) == (team, pytest.approx(local))


@pytest.mark.parametrize(
    "text", ["5", r"\boxed{5}", "```python\nprint(5)", "```python\nprint((5)\n```", "```\nprint(5)\n```"]
)
def test_tool_user_without_a_program_earns_nothing(text):
    reward = MathEnv("mas", problems=ONE).reset(0).step("tool_user", text)
    assert (reward.team, reward.local, reward.info["format"]) == (0, 0, 0)


def test_tool_user_in_the_real_sandbox():
    env = MathEnv("mas", problems=ONE, timeout=5).reset(0)
    assert env.copy().step("tool_user", PRINTS_5).local == pytest.approx(1.0)
    assert env.copy().step("tool_user", "```python\nprint(5)\n1 / 0\n```").local == pytest.approx(0.1)
    assert env.copy().step("tool_user", "```python\nwhile True: print(5)\n```").local == pytest.approx(0.1)


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


# ------------------------------------------------------------------------------------------------------------ workflows


def test_mas_ends_when_both_agree(fake):
    env = make_env("math", problems=ONE).reset(0)
    assert env.agents == ("reasoner", "tool_user")
    assert env.simultaneous
    env.step("reasoner", r"\boxed{5.0}")
    assert (env.solved, env.done) == (True, False)
    env.step("tool_user", PRINTS_5)
    assert env.done
    after = env.step("reasoner", WRONG)
    assert (after.team, after.local, env.solved) == (0, 0, True)


@pytest.mark.parametrize(
    ("reasoner", "tool_user", "teams", "done"),
    [
        (WRONG, PRINTS_6, [0, 0], True),  # agreement on something wrong ends the episode, and earns nothing
        (WRONG, PRINTS_5, [0, 1], False),  # the tool user's is paid as if it were the team's, which the reasoner gives
        (NONE, NONE, [0, 0], False),  # two agents without an answer do not agree
    ],
)
def test_agreement_is_no_success(fake, reasoner, tool_user, teams, done):
    env = MathEnv("mas", problems=ONE).reset(0)
    rewards = [env.step("reasoner", reasoner), env.step("tool_user", tool_user)]
    assert [reward.team for reward in rewards] == teams
    assert (env.solved, env.done) == (False, done)


def test_the_next_turn_shows_answers_reasoning_and_program_with_its_output(fake):
    fake["x = 6\nprint('so', x)\nprint(x)\n"] = ("ok", "so 6\n6\n", "")
    env = MathEnv("mas", problems=ONE).reset(0)
    first = {agent: prompt(env, agent) for agent in env.agents}
    env.step("reasoner", "<think>secret</think>Two and three are five. " + RIGHT)
    assert prompt(env, "tool_user") == first["tool_user"]  # simultaneous: nothing of this turn
    env.step("tool_user", "My idea.\n```python\nx = 6\nprint('so', x)\nprint(x)\n```")
    for agent in env.agents:
        seen = prompt(env, agent)
        parts = [
            "What is 2 + 3?",
            "reasoner: 5",
            "Two and three are five.",
            "tool_user: 6",
            "print('so', x)",
            "so 6\n6",
        ]
        assert [part for part in parts if part not in seen] == []
        assert "secret" not in seen


def test_a_failed_program_is_reported_to_its_author_only(fake):
    fake["run()\n"] = ("error", "", "Traceback\nZeroDivisionError: division by zero\n")
    env = MathEnv("mas", problems=ONE).reset(0)
    env.step("reasoner", RIGHT)
    env.step("tool_user", "```python\nrun()\n```")
    assert "ZeroDivisionError" in prompt(env, "tool_user")
    assert "tool_user: no answer" in prompt(env, "reasoner")
    assert "ZeroDivisionError" not in prompt(env, "reasoner")


def test_what_others_wrote_is_shortened_to_a_stated_length(fake):
    fake["run()\n"] = ("ok", "1" * 5_000 + "\n5\n", "")
    env = MathEnv("mas", problems=ONE).reset(0)
    env.step("reasoner", "step " * 2_000 + "and so " + RIGHT)
    env.step("tool_user", "```python\nrun()\n```")
    seen = prompt(env, "tool_user")
    assert seen.count("more characters)") == 2  # the reasoning, and what the program printed
    assert "and so " + RIGHT in seen
    assert len(seen) < math_env.WORK_SHOWN + math_env.SHOWN + 1_000


@pytest.mark.parametrize(
    ("gold", "printed", "team"),
    [
        ("1,2", "[1, 2]", 1),
        ("1,2", "[2, 1]", 1),
        ("1,2", "[1, 3]", 0),
        (r"\{1,2\}", "[1, 2]", 1),
        (r"\{1,2\}", "{1, 2}", 1),
        ("(1,2)", "(1, 2)", 1),
        ("(1,2)", "[1, 2]", 1),
        ("(1,2)", "(2, 1)", 0),
        ("(1,2),(3,4)", "[(1, 2), (3, 4)]", 1),
        (r"\frac37", "3/7", 1),
        (r"3\sqrt{2}", "3*sqrt(2)", 1),
        ("[1,2]", r"\boxed{[1,2]}", 1),
        ("7", "[7]", 1),
        ("7", "[]", 0),
        ("55", r"\sum_{k=1}^{10}k", 0),
        ("55", r"\boxed{\sum_{k=1}^{10}k}", 0),
    ],
)
def test_what_a_program_prints_is_the_answer(fake, gold, printed, team):
    fake["run()\n"] = ("ok", printed + "\n", "")
    env = MathEnv("mas", problems=[Question("Q?", gold)]).reset(0)
    assert "prints it" in prompt(env, "tool_user")
    assert env.step("tool_user", "```python\nrun()\n```").team == team


def test_single_ends_when_the_answer_is_repeated():
    env = make_env("math", "single", problems=ONE).reset(0)
    assert env.agents == ("reasoner",)
    for text, done in [(WRONG, False), (RIGHT, False), (NONE, False), (RIGHT, False), (r"\boxed{10/2}", True)]:
        env.step("reasoner", text)
        assert env.done is done
    assert env.solved


def test_ensemble(fake):
    env = make_env("math", "ensemble", problems=ONE, reasoners=3, tool_users=2).reset(0)
    assert env.agents == ("reasoner_1", "reasoner_2", "reasoner_3", "tool_user_1", "tool_user_2", "judge")
    first = {agent: prompt(env, agent) for agent in env.agents}
    for agent in env.agents[:-1]:
        assert prompt(env, agent) == first[agent]  # they do not see each other within the turn
        env.step(agent, PRINTS_6 if "tool" in agent else "Because I counted. " + RIGHT)
    judge = prompt(env, "judge")
    assert all(f"{agent}: {'6' if 'tool' in agent else '5'}" in judge for agent in env.agents[:-1])
    assert "Because I counted." in judge
    assert "It printed:\n6" in judge
    assert not env.solved  # nobody but the judge answers for the team
    reward = env.step("judge", RIGHT)
    assert (reward.team, reward.local) == (1, pytest.approx(1.0))
    assert (env.solved, env.done) == (True, False)
    assert "judge: 5" in prompt(env, "reasoner_1")
    assert "tool_user_2: 6" in prompt(env, "reasoner_1")
    for agent in env.agents:
        env.step(agent, PRINTS_6 if "tool" in agent else WRONG)
    assert (env.solved, env.done) == (False, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workflow": "duo", "problems": ONE}, "workflow='duo'"),
        ({}, "give data="),
        ({"problems": ONE, "data": "x.jsonl"}, "give data="),
        ({"problems": []}, "at least one problem"),
        ({"problems": ONE, "timeout": 0}, "timeout=0"),
        ({"problems": ONE, "colour": 1}, "colour"),
        ({"workflow": "ensemble", "problems": ONE, "reasoners": 0, "tool_users": 0}, "reasoners=0"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make_env("math", **options)
    with pytest.raises(ValueError, match="unknown agent 'planner'"):
        MathEnv(problems=ONE).reset(0).observe("planner")


# ------------------------------------------------------------------------------------------------------------- contract


@pytest.mark.parametrize("workflow", ["mas", "single", "ensemble"])
def test_copies_are_independent_and_observe_changes_nothing(fake, workflow):
    env = MathEnv(workflow, problems=ONE).reset(0)
    for turn in range(2):
        for agent in env.agents:
            before = dict(vars(env))
            twin = env.copy()
            env.observe(agent)
            twin.step(agent, PRINTS_5 if agent.startswith("tool") else RIGHT)
            assert vars(env) == before, turn
            env.step(agent, NONE)


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("\\boxed{}5`python\n#<think>/$ ,()é\x00"), max_size=80))
def test_any_text_gives_rewards_in_range(text):
    for workflow in ("mas", "ensemble"):
        env = MathEnv(workflow, problems=ONE, timeout=5).reset(0)
        for agent in env.agents:
            reward = env.step(agent, text)
            assert 0 <= reward.team <= 1
            assert 0 <= reward.local <= 1 + 1e-9


def test_tree_sampling_commits_the_right_answer_and_groups_share_a_prompt(fake):
    texts = [NONE, WRONG, RIGHT, PRINTS_6, PRINTS_5]

    def generate(requests, n):
        return [[Completion([k], [0.0], "stop") for k in range(n)] for _ in requests]

    for workflow in ("mas", "single", "ensemble"):
        env = MathEnv(workflow, problems=ONE).reset(0)
        rollout = rollout_tree(
            [env],
            generate,
            encode=lambda agent, messages: list(messages[1]["content"].encode()),
            decode=lambda agent, ids: texts[ids[0]],
            num_candidates=len(texts),
            max_turns=3,
        )
        assert [(episode.solved, episode.ended) for episode in rollout.episodes] == [(True, "done")]
        groups = group_samples(rollout.samples)  # raises when prompts differ
        assert len(groups) == len(env.agents) * (2 if workflow == "single" else 1)
        for key, group in groups.items():
            committed = [sample for sample in group if sample.committed]
            assert [sample.reward for sample in committed] == [pytest.approx(2.0)], key


def test_seeds_walk_through_all_problems_in_a_fixed_order():
    problems = [Question(f"What is {i}?", str(i)) for i in range(50)]
    walk = [MathEnv(problems=problems).reset(seed).problem.question for seed in range(50)]
    assert sorted(walk) == sorted(problem.question for problem in problems)
    assert walk != [problem.question for problem in problems]
    assert MathEnv(problems=problems).reset(50).problem.question == walk[0]
    assert MathEnv(problems=problems).reset(7).problem.question == walk[7]


# ------------------------------------------------------------------------------------------------------------ data sets

ROWS = [
    ({"question": "Q?", "answer": "He has <<2+3=5>>5.\n#### 1,005"}, "1,005"),  # GSM8K
    ({"problem": "Q?", "answer": "\\frac12", "solution": "long"}, "\\frac12"),  # DeepScaleR, MATH-500
    ({"problem": "Q?", "answer": "70", "difficulty": "3/8"}, "70"),  # Polaris
    ({"Problem": "Q?", "Answer": 204, "ID": "2024-I-1"}, "204"),  # AIME
    ({"question": "Q?", "final_answer": ["$2$", "$3$"], "solution": ["long"]}, "$2$, $3$"),  # OlympiadBench
    ({"problem": "Q?", "solution": "So it is $\\boxed{7}$.", "level": "Level 5"}, "7"),  # MATH
    ({"prompt": "Q?", "answer": 2.5}, "2.5"),
    ({"problem": "Q?", "answer": "a\u2028b"}, "a\u2028b"),
]


@pytest.mark.parametrize(("row", "gold"), ROWS)
def test_formats_are_told_by_their_fields(row, gold):
    assert read_problem(row) == Question("Q?", gold, ())


@pytest.mark.parametrize(
    ("error", "tolerance"),
    [("1e-1", (0.1,)), (0.1, (0.1,)), ("1e-1,1e-2", (0.1, 0.01)), (None, ()), ("", ()), (1, (1.0,))],
)
def test_the_error_of_olympiadbench_is_the_tolerance(error, tolerance):
    problem = read_problem({"question": "Q?", "final_answer": ["$4.2$"], "error": error})
    assert problem == Question("Q?", "$4.2$", tolerance)


@pytest.mark.parametrize(("answer", "team"), [("4.23", 1), ("4.35", 0), (r"3\sqrt2", 1), ("x", 0)])
def test_a_tolerance_reaches_the_reward(answer, team):
    row = {"question": "Q?", "final_answer": ["$4.2$"], "error": "1e-1"}
    env = MathEnv("mas", problems=[row]).reset(0)
    assert env.step("reasoner", rf"\boxed{{{answer}}}").team == team


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"question": "Q?"},
        {"answer": "5"},
        {"question": "Q?", "answer": ""},
        {"question": "Q?", "answer": True},
        {"question": 7, "answer": "5"},
        {"problem": "Q?", "solution": "no box"},
        {"question": "Q?", "answer": "so ####"},
        {"question": "Q?", "answer": float("nan")},
        {"question": "Q?", "answer": {"value": 5}},
        {"question": "Q?", "answer": "5", "error": "small"},
    ],
)
def test_rows_that_are_no_problem_name_their_field(tmp_path, row):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"question": "Q?", "answer": "5"}}\n{json.dumps(row)}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl', row 2: .*(field|could not convert)"):
        load_problems(str(path))


@pytest.mark.parametrize(
    "question",
    [
        r"Compute 1.5 times the weight in \boxed{}.",
        r"Let S be the sum of all such n. Give the remainder of S modulo 7 in \boxed{}.",
        "Find $x$. Put the answer in \\boxed{ }\nas a fraction",
    ],
)
def test_a_question_stays_whole(question):
    assert read_problem({"problem": question, "answer": "5"}).question == question


def test_files_are_read_once():
    source = str(SAMPLES / "math_sample.jsonl")
    problems = MathEnv(data=source).problems
    assert [problem.answer for problem in problems] == ["18", "\\frac{14}{3}", "204", "$2$, $3$"]
    assert MathEnv(data=source).problems is problems
    with pytest.raises(FileNotFoundError, match=r"missing\.jsonl"):
        load_problems("missing.jsonl")


@needs_data
@pytest.mark.parametrize(
    ("name", "count"),
    [("gsm8k_test", 1319), ("gsm8k_train", 7473), ("math500", 500), ("aime24", 30), ("olympiadbench", 674)],
)
def test_benchmark_files(name, count):
    problems = load_problems(str(Path(DATA or "") / f"{name}.jsonl"))
    assert len(problems) == count
    assert not any("####" in problem.answer for problem in problems)
    assert all(len(problem.question) > 10 for problem in problems)


@pytest.mark.parametrize(("reasoner", "tool", "returned"), [(RIGHT, "print(1)", 1.0), ("\\boxed{1}", "print(5)", 0.0)])
def test_a_chain_is_paid_for_the_answer_of_the_team(reasoner, tool, returned):
    """The reasoner's, also when the tool user acts last and answers otherwise."""
    engine = ScriptedEngine(lambda request, k: reasoner if request.agent == "reasoner" else f"```python\n{tool}\n```")
    result = rollout_chains(
        [MathEnv("mas", problems=ONE).reset(0)], engine, encode=engine.encode, decode=engine.decode, num_candidates=2,
        max_turns=1,
    )  # fmt: skip
    assert {sample.reward for sample in result.samples} == {returned}
    assert [episode.solved for episode in result.episodes] == [bool(returned)] * 2


def test_an_ensemble_asks_in_two_rounds_a_turn():
    """All reasoners and tool users together, then the judge, who reads what they said."""
    rounds = []

    def generate(requests, n):
        rounds.append([request.agent for request in requests])
        return engine(requests, n)

    engine = ScriptedEngine(lambda request, k: "\\boxed{1}")
    env = MathEnv("ensemble", problems=ONE, reasoners=3, tool_users=3).reset(0)
    rollout_tree([env], generate, encode=engine.encode, decode=engine.decode, num_candidates=2, max_turns=2)
    members = [*(f"reasoner_{n}" for n in (1, 2, 3)), *(f"tool_user_{n}" for n in (1, 2, 3))]
    assert rounds == [members, ["judge"]] * 2
