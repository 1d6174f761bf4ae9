"""The code task: rewards of coder and tester, what ends an episode, what prompts show."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from envs import InfraError, make_env
from tasks import sandbox
from tasks.code_data import EXAMPLES, Problem, load_problems, normal_tests
from tasks.code_env import CodeEnv, copied, golden_tests, grade_program, reference_solution
from tools import fetch

PLUS_ONE = tuple(normal_tests([{"input": "7", "output": "8"}]))
DATA = os.environ.get("AT_GRPO_DATA")
ADD = EXAMPLES[0]
GOOD = {"args": [2, 3], "expected": 5}


def answer(code, tag="python"):
    return f"Here it is.\n```{tag}\n{code}\n```\n"


def written_tests(*tests):
    return answer(json.dumps(list(tests)), "json")


@pytest.fixture
def env():
    return CodeEnv(problems=[ADD])


@pytest.mark.parametrize("name", [None, "f"])
def test_a_broken_sandbox_changes_nothing(monkeypatch, name):
    sandbox.use_bubblewrap()  # it worked once
    monkeypatch.setattr(sandbox, "START", "raise RuntimeError('broken on purpose')")
    env = CodeEnv(problems=[Problem("q", ADD.tests if name else PLUS_ONE, name)])
    with pytest.raises(InfraError, match="broken on purpose"):
        env.step("coder", answer("print(8)"))
    assert env.program is None


def test_rewards_of_the_coder(env):
    assert env.copy().step("coder", "no code").info == {"format": 0.0}
    rewards = {
        "def add(a, b): return a + b": (1.0, 1.0),
        "def add(a, b): return 3": (1 / 3, 0.1 + 0.1 + 0.8 / 3),
        "def add(a, b): return None": (0.0, 0.2),
        "def add(a, b): return 1 / 0": (0.0, 0.1),
        "x = 1": (0.0, 0.1),
    }
    for code, (team, local) in rewards.items():
        reward = env.copy().step("coder", answer(code))
        assert (reward.team, reward.local) == pytest.approx((team, local)), code
    assert env.program is None, "copies are independent"
    env = CodeEnv(problems=[Problem("Add one.", PLUS_ONE)])  # what prints nothing did not run
    for code, local in ("# nothing", 0.1), ("print()", 0.1), ("print(1)", 0.2), ("print(8)", 1.0):
        assert env.copy().step("coder", answer(code)).local == pytest.approx(local), code


SILENT = Problem("Nothing for 0.", PLUS_ONE, solutions=("n = input()\nif n != '0': print(n if n != '7' else 8)",))
QUIET, LOUD = {"input": "0", "output": ""}, {"input": "5", "output": "5"}
SHOWING = Problem("Add.\nassert add(1, 2) == 3", ADD.tests, "add", solutions=ADD.solutions)
COPY, WRONG = {"args": [1, 2], "expected": 3}, {"args": [2, 3], "expected": 6}
TESTERS = [  # problem, answer of the tester, its local reward, part that was copied
    (ADD, "nothing", 0.0, None),
    (ADD, written_tests(), 0.0, None),
    (ADD, written_tests({"args": 1, "expected": 2}), 0.0, None),
    (ADD, written_tests({"input": "1", "output": "2"}), 0.0, None),
    (ADD, answer(json.dumps(GOOD), "json"), 0.0, None),
    (ADD, answer("[" * 5000, "json"), 0.0, None),
    (ADD, answer('[{"args": [1, 2], "expected": 3, "expected": 3}]', "json"), 0.0, None),
    (ADD, written_tests(GOOD), 1.0, 0.0),
    (ADD, written_tests(WRONG), 0.2, 0.0),
    (ADD, written_tests(GOOD, WRONG), 0.6, 0.0),
    (ADD, written_tests({"args": [2, 3], "expected": None}), 0.2, 0.0),
    (SILENT, written_tests(QUIET), 0.6, 0.0),  # a silent program passes them all
    (SILENT, written_tests(QUIET, LOUD), 1.0, 0.0),
    (SHOWING, written_tests(COPY, COPY), 0.2, 1.0),
    (SHOWING, written_tests(COPY, GOOD), 0.6, 0.5),
]


def test_rewards_of_the_tester():
    for problem, text, local, part in TESTERS:
        env = CodeEnv(problems=[problem])
        team = env.step("coder", answer("def add(a, b): return 3")).team
        reward = env.step("tester", text)
        assert (reward.team, reward.local) == pytest.approx((team, local)), text
        assert reward.info.get("copied") == part


# Question, test that the problem shows, one that it does not.
SHOWN = [
    ("Add.\nassert f((3, 4), (5.0, 7)) == 1", [[3, 4], [5, 7]], [[5, 7], [3, 4]]),
    ("Add.\n    >>> f([1.0, 2.0], 0.5)\n    True", [[1.0, 2.0], 0.5], [[1.0], 0.5]),
    ("Example: f(5) ➞ 6, for 1 <= n <= 7", [5], [7]),
    ("Example: f(5) ➞ 6", [5.0], [6]),
    ("Don't use f(1). It's f(-3, True) = 1.", [-3, True], [3, True]),
    ("f({'a': [1], 'b': None}) is None", [{"a": [1], "b": None}], [{"a": [1]}]),
    ("Input: nums = [2,7,11,15], target = 9\nOutput: [0,1]", [[2, 7, 11, 15], 9], [[2, 7, 11], 9]),
    ("f(a=2, b=3) is 5", [2, 3], [3, 2]),
    ("**f**(2, “a b”)", [2, "a b"], [2, "a"]),
    ("of [3, 1] it gives [1, 3]", [[3, 1]], [[3]]),
    ("Add.\n\nSample Input 1:\n\n3\n1 2 3 \n\nOutput\n6", "3\n1 2 3", "1 2 3\n3"),
    ("Input: 5\nOutput: 6, for n up to 7", "5\n", "7"),
    ("candidate(7, 8e0) gives 15", [7, 8], [8, 7]),
    ('| a | b |\n| 7 | 8 |, and {"a": 1_000, "b": -2}', [1000, -2], [7, -2]),
    ('With "hello" and 2 it is 3.', ["hello", 2], ["hallo", 2]),
    ("For 1 2 it prints 3.", "1 2", "2 1"),
    ("| stdin = 1\t2 |", "1 2", "1"),
    ("```\n12\n```\nor\n> 13", " 13", "1"),
    ("<pre>7 8</pre>", "7 8", "8 7"),
    (r"It is $f(2,\,3)=5$.", [2, 3], [3, 2]),
]


@pytest.mark.parametrize(("question", "shown", "own"), SHOWN)
def test_input_that_stands_in_the_question_is_copied(question, shown, own):
    program = isinstance(shown, str)
    tests = [
        {"input": x, "output": "0"} if program else {"fn_name": "f", "args": x, "expected": 0} for x in (shown, own)
    ]
    shown, own = normal_tests(tests)
    name = None if program else "f"
    for problem in Problem(question, (), name), Problem("Another one.", (), name, examples=(shown,)):
        assert (copied(shown, problem), copied(own, problem)) == (True, False)


def test_without_a_reference_the_tester_is_paid_only_after_the_golden_tests_confirm_a_program():
    env = CodeEnv(problems=[Problem("Add one.", PLUS_ONE, solutions=("print(1)",))])
    assert reference_solution(env.problem) is None
    text = written_tests({"input": "1", "output": "2"})
    assert env.copy().step("tester", text).local == pytest.approx(0.2)
    env.step("coder", answer("print(int(input()) + 1)"))
    assert env.step("tester", text).local == pytest.approx(1.0)


def test_programs_find_the_code_that_the_question_gives():
    tests = [{"fn_name": "f", "args": [4], "expected": 2.0, "given": "import math\ndef helper(x): return math.sqrt(x)"}]
    env = CodeEnv(problems=[Problem("q", tuple(normal_tests(tests)), "f")])
    assert env.step("coder", answer("def f(x): return helper(x)")).team == 1.0
    assert env.step("tester", written_tests({"args": [9], "expected": 3})).local == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("code", "test", "solved", "team", "local"),
    [("return 3", {"args": [5, 5], "expected": 3}, False, 1 / 3, 0.2), ("return a + b", GOOD, True, 1.0, 1.0)],
)
def test_agreement_ends_the_episode_and_is_no_success(env, code, test, solved, team, local):
    env.step("coder", answer(f"def add(a, b): {code}"))
    assert (env.done, env.solved) == (False, solved)
    reward = env.step("tester", written_tests(test))
    assert (env.done, env.solved) == (True, solved)
    assert (reward.team, reward.local) == pytest.approx((team, local))
    after = env.step("coder", answer("def add(a, b): return a + b"))
    assert (after.team, after.local, env.program) == (0.0, 0.0, f"def add(a, b): {code}\n")


def test_a_coder_alone_goes_on_until_the_examples_pass_and_without_any_to_the_last_turn():
    env = CodeEnv("single", problems=[Problem("Add one.", PLUS_ONE, examples=PLUS_ONE)])
    assert env.agents == ("coder",)
    env.step("coder", answer("print(9)"))
    assert (env.done, env.solved) == (False, False)
    assert "passes 0 of 1" in env.observe("coder")[1]["content"]
    env.step("coder", answer("print(8)"))
    assert (env.done, env.solved) == (True, True)
    env = CodeEnv("single", problems=[ADD])
    for code, solved in ("def add(a, b): return 3", False), ("def add(a, b): return a + b", True):
        env.step("coder", answer(code))
        assert (env.done, env.solved) == (False, solved)  # the golden tests end nothing


def test_disagreement_is_reported_to_both_and_unreadable_answers_change_nothing(env):
    before = env.observe("tester")
    env.step("coder", answer("def add(a, b): return 3"))
    env.step("tester", written_tests(GOOD))
    for agent in env.agents:
        text = env.observe(agent)[1]["content"]
        assert "return 3" in text
        assert "passes 0 of 1" in text
        env.step(agent, "sorry")
        assert env.observe(agent)[1]["content"] == f"{text}\n\nYour last answer could not be read and changed nothing."
    env.step("coder", answer("def add(a, b): return 4"))
    assert ["could not be read" in env.observe(agent)[1]["content"] for agent in env.agents] == [False, True]
    assert env.reset(0).observe("tester") == before


def test_prompts_show_examples_but_no_golden_tests():
    golden, example = normal_tests([{"fn_name": "f", "args": [n], "expected": n + 1} for n in (424242, 10**4300)])
    env = CodeEnv(problems=[Problem("Next.", (golden,), "f", (example,))])
    env.step("coder", answer("def f(x): return 1"))
    env.step("tester", written_tests({"args": [1], "expected": 2}))
    for agent in env.agents:
        text = " ".join(message["content"] for message in env.observe(agent))
        assert "42424" not in text
        assert str(10**4300 + 1) in text


def test_prompts_are_shortened_and_say_so():
    env = CodeEnv(problems=[Problem("q", PLUS_ONE, examples=({"input": "x" * 30_000, "output": ""},))])
    env.step("coder", answer("x = '" + "y" * 9000 + "'\nprint('w' * 900)"))
    env.step("tester", written_tests({"input": "z" * 3000, "output": "1"}, {"input": "1", "output": "2"}))
    for agent in env.agents:
        text = env.observe(agent)[1]["content"]
        assert len(text) < 20_000 + 4000 + 2 * 5 * 1400
        assert text.count("more characters)") == 6, "example, program, one test twice, two outputs"


def test_bad_options_are_errors():
    with pytest.raises(ValueError, match="the code task has mas or single"):
        CodeEnv("ensemble")
    with pytest.raises(FileNotFoundError, match=r"missing\.jsonl"):
        make_env("code", data="missing.jsonl")


def mutants(problem):
    """Programs that are wrong for certain: the reference, its result spoiled always or on some tests; no results."""
    name, reference = problem.fn_name, problem.solutions[0]
    # `right` is taken before the call: some references change their arguments.
    spoil = f"\n_reference = {name}\ndef {name}(*args):\n    right = len(str(args)) % 2\n"
    spoil += "    value = _reference(*args)\n    return "
    yield reference + spoil + "not value if isinstance(value, bool) or value is None else [value, value]\n"
    yield f"def {name}(*args):\n    return Ellipsis\n"
    if any(len(str(tuple(test["args"]))) % 2 == 0 for test in golden_tests(problem)):
        yield reference + spoil + "value if right else object()\n"


WHOLE = pytest.mark.slow, pytest.mark.timeout(1800)
SWEEPS = [  # data set, first of its rows, one in so many, problems
    ("humaneval", 2, 15, 11),
    ("mbppplus", 1, 75, 6),
    pytest.param("humaneval", 0, 1, 164, marks=WHOLE),
    pytest.param("mbppplus", 0, 1, 377, marks=WHOLE),
]


@pytest.mark.skipif(not DATA, reason="AT_GRPO_DATA does not name the folder with the benchmark files")
@pytest.mark.parametrize(("name", "start", "step", "count"), SWEEPS)
def test_reference_solutions_pass_and_mutants_fail(tmp_path, name, start, step, count):
    source, part, target = f"{DATA}/{name}.jsonl", tmp_path / "part.jsonl", tmp_path / "plain.jsonl"
    with open(source, encoding="utf-8") as lines:
        part.write_text("".join(list(lines)[start::step]), encoding="utf-8")
    fetch.main([name, "--from", str(part), "--to", str(target)])
    problems = load_problems(str(target))
    load_problems.cache_clear()
    programs = [(problem, problem.solutions[0], True) for problem in problems]
    programs += [(problem, code, False) for problem in problems for code in mutants(problem)]
    with ThreadPoolExecutor(2) as pool:
        passed = pool.map(lambda row: grade_program(row[1], golden_tests(row[0])).passed, programs)
        assert [(row[0].fn_name, row[1]) for row, ok in zip(programs, passed, strict=True) if ok != row[2]] == []
    assert all(copied(test, problem) for problem in problems for test in problem.examples)
    assert len(problems) == count
