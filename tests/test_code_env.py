# ruff: noqa: E501 (programs and rows of data sets, each on its line)
"""The code task: verdicts, rewards of coder and tester, and the readers of the data sets."""

import base64
import json
import os
import pickle
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from hostile import HOSTILE, Leftovers
from hypothesis import given, settings
from hypothesis import strategies as st

from envs import InfraError, make_env
from tasks import sandbox
from tasks.code_data import EXAMPLES, Problem, load_problems, unpack_private_tests
from tasks.code_env import CodeEnv, golden_tests, grade_program, read_tests, reference_solution
from tasks.code_values import from_data, same_output, same_value, to_data

PLUS_ONE = [{"input": "7", "output": "8"}]
DATA = os.environ.get("AT_GRPO_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="AT_GRPO_DATA does not name the folder with the benchmark files")


# ----------------------------------------------------------------------------------------------------------- comparison


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("8", "8", True),
        ("8", "8\n\n", True),
        ("1 2\n3", "1 2 \n3\n", True),
        ("1 2\n3", "1\n2 3", False),
        ("1 2", "1  2", False),
        (" *\n***", "*\n***", False),
        ("a\r\nb", "a\nb", True),
        ("0.333333333333", "0.333333", True),
        ("0.333333333333", "0.3333", False),
        ("1000000", "1000001", False),
        ("1000000", "1000000.5", False),
        ("2", "2.0", True),
        ("2", "2.0000001", False),
        ("007", "7", False),
        ("0011", "11", False),
        ("11", "0011", False),
        ("01 02", "1 2", False),
        ("1 2", "01 02", False),
        ("00.5", "0.5", False),
        ("-01", "-1", False),
        ("0", "-0", True),
        ("0", "0.0", True),
        ("0", "00", False),
        ("0.5", ".50", True),
        ("0110\n1001", "110\n1001", False),
        ("1" * 5000, "1" * 5000 + "0", False),
        ("9" * 5000 + "1", "9" * 5000 + "2", False),
        ("1e9", "1000000000", True),
        ("Case 1: 0.5", "Case 1: 0.5000001", True),
        ("Case 1: 0.5", "case 1: 0.5", False),
        ("nan", "nan", False),
        ("inf", "inf", True),
        ("inf", "1e308", False),
        ("1", "1e999999999", False),
        ("1.0", "1e999999999", False),
        ("", "\n", True),
        ("", "0", False),
        ("0", "", False),
        ("1.5", "1" * 1_000_000 + "x", False),
        ("1.5", " " * 1_000_000 + "x", False),
    ],
)
def test_same_output(expected, printed, same):
    assert same_output(expected, printed) is same


@pytest.mark.parametrize(
    ("expected", "returned", "same"),
    [
        ([1, 2], (1, 2), True),
        ((1, [2]), [1, (2,)], True),
        ([1, 2], [2, 1], False),
        ([1, 2], {1, 2}, False),
        (2, 2.0, True),
        (2, 2.0000001, False),
        (2.0, 2.0000001, True),
        (0.1, 10**400, False),
        (float("nan"), float("nan"), False),
        (float("inf"), float("inf"), True),
        (float("inf"), 1e308, False),
        ("2", 2, False),
        (None, None, True),
        (None, 0, False),
        ({"a": [1.0]}, {"a": [1.0000000001]}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({1, 2}, {2, 1}, True),
        (1j, 1j + 1e-9, True),
        (10**30, 10**30 + 1, False),
    ],
)
def test_same_value(expected, returned, same):
    assert same_value(expected, returned) is same


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.sets(st.integers())
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_packing_keeps_values_and_types(value):
    again = from_data(json.loads(json.dumps(to_data(value))))
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize("value", [object(), type("I", (int,), {})(3), type("L", (list,), {})(), print, iter([])])
def test_only_exact_builtin_types_are_packed(value):
    with pytest.raises(TypeError, match="plain builtin values"):
        to_data([value])


# -------------------------------------------------------------------------------------------------------------- grading


@pytest.mark.parametrize(
    ("code", "test", "score"),
    [
        ("print(int(input()) + 1)", {"input": "7", "output": "8"}, 1),
        ("def main(): print(int(input())+1)\nif __name__ == '__main__': main()", {"input": "7", "output": "8"}, 1),
        ("def f(a, b): return a + b", {"fn_name": "f", "args": [1, 2], "expected": 3}, 1),
        (
            "class Solution:\n def f(self, a: List[int], b): return a + b",
            {"fn_name": "f", "args": "[1]\n[2]", "expected": [1, 2]},
            1,
        ),
        ("class Solution:\n def f(self, a, b): return a * b", {"fn_name": "f", "input": "3\n4\n", "output": "12"}, 1),
        ("def f(x): return (1, 2)", {"fn_name": "f", "args": [0], "expected": [1, 2]}, 1),
        ("def f(x):\n print('debug', 8)\n return x", {"fn_name": "f", "args": [3], "expected": 3}, 1),
        ("def f(x): return 10 ** 5000", {"fn_name": "f", "args": [0], "expected": 10**5000}, 1),
        ("def f(x): return 14", {"fn_name": "f", "args": [0], "expected": 12, "accept": [14, 16]}, 1),
        ("print(14)", {"input": "", "output": "12", "accept": ["14"]}, 1),
        (
            "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)",
            {"fn_name": "f", "args": [9000], "expected": 9000},
            1,
        ),
        (
            "class E:\n def __eq__(s, o): return True\ndef f(x): return E()",
            {"fn_name": "f", "args": [0], "expected": 1},
            0,
        ),
        (
            "class E(int):\n def __eq__(s, o): return True\ndef f(x): return E(5)",
            {"fn_name": "f", "args": [0], "expected": 1},
            0,
        ),
        (
            "class E(dict):\n def __len__(s): return 1\ndef f(x): return [E()]",
            {"fn_name": "f", "args": [0], "expected": [1]},
            0,
        ),
        ("def f(x): return float('nan')", {"fn_name": "f", "args": [0], "expected": float("nan")}, 0),
        ("def f(x): return f", {"fn_name": "f", "args": [0], "expected": 1}, 0),
        ("def f(x): import os; os._exit(0)", {"fn_name": "f", "args": [0], "expected": None}, 0),
        ("def f(x): raise SystemExit(0)", {"fn_name": "f", "args": [0], "expected": None}, 0),
        ("raise SystemExit(0)", {"fn_name": "f", "args": [0], "expected": None}, 0),
        (
            "import json\njson.dump = json.dumps = lambda *a, **k: None\ndef f(x): return 1",
            {"fn_name": "f", "args": [0], "expected": 2},
            0,
        ),
        ("import os\nos.closerange(0, 99)\ndef f(x): return 1", {"fn_name": "f", "args": [0], "expected": 1}, 0),
        (
            "import sys\ndef f(x): print(sys.stdin.read(), '1'); return 2",
            {"fn_name": "f", "args": [0], "expected": 1},
            0,
        ),
        (
            "def f(x):\n y = []\n for _ in range(10**5): y = [y]\n return y",
            {"fn_name": "f", "args": [0], "expected": []},
            0,
        ),
        (
            "import os\nfor fd in range(3, 20):\n try: os.write(fd, b'1')\n except OSError: pass\ndef f(x): return 2",
            {"fn_name": "f", "args": [0], "expected": 2},
            0,
        ),
        ("def g(x): return 1", {"fn_name": "f", "args": [0], "expected": 1}, 0),
        ("", {"fn_name": "f", "args": [0], "expected": None}, 0),
    ],
)
def test_scores(code, test, score):
    grade = grade_program(code, [test])
    assert grade.score == score, grade
    assert grade.passed is bool(score)


def test_score_is_the_share_of_tests_and_statuses_say_why():
    code = "n = int(input())\nif n == 3: 1/0\nif n == 4: [0] * 10**10\nprint(n if n < 5 else -n)"
    tests = [{"input": str(n), "output": str(n)} for n in range(1, 6)]
    grade = grade_program(code, tests)
    assert (grade.score, grade.passed, grade.statuses) == (0.4, False, ("ok", "ok", "error", "memory", "wrong"))


def test_state_of_one_test_does_not_reach_the_next():
    code = "seen = []\ndef f(x, cache=[]):\n seen.append(x); cache.append(x); return len(seen) + len(cache)"
    assert grade_program(code, [{"fn_name": "f", "args": [n], "expected": 2} for n in range(5)]).score == 1.0


def test_a_program_that_hangs_is_not_waited_for_on_every_test():
    grade = grade_program("while True: pass", [{"input": "", "output": "1"}] * 50, timeout=0.2)
    assert grade.statuses == ("timeout",) * 50


def test_a_checker_decides_where_several_answers_are_right():
    def even_above_ten(test, printed):
        return printed.strip().isdigit() and int(printed) > 10 and int(printed) % 2 == 0

    tests = [{"input": "", "output": "12"}]
    assert grade_program("print(14)", tests).score == 0
    assert grade_program("print(14)", tests, checker=even_above_ten).score == 1
    assert grade_program("print(15)", tests, checker=even_above_ten).score == 0


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ([], "without tests"),
        ([{"input": "1"}], "expected texts"),
        ([{"fn_name": "f", "args": 3, "expected": 1}], "must be a list"),
        ([*PLUS_ONE, {"fn_name": "f", "args": [], "expected": 1}], "all of functions or all of programs"),
    ],
)
def test_malformed_tests_are_errors(tests, message):
    with pytest.raises(ValueError, match=message):
        grade_program("pass", tests)


def test_a_broken_sandbox_raises_instead_of_scoring_zero(monkeypatch):
    monkeypatch.setattr(sandbox, "START", "raise RuntimeError('broken on purpose')")
    with pytest.raises(InfraError, match="broken on purpose"):
        grade_program("print(8)", PLUS_ONE)
    env = CodeEnv(problems=[Problem("q", tests=tuple(PLUS_ONE))])
    with pytest.raises(InfraError):
        env.step("coder", answer("print(8)"))
    assert env.program is None


@pytest.mark.parametrize("limits", ["auto", "rlimit"])
def test_no_hostile_program_scores(limits):
    """Expected 8 for input 7; "raised limits" prints 8 unless the sandbox refuses, and must be refused."""
    sandbox.set_mode(limits)
    try:
        with Leftovers(), ThreadPoolExecutor(4) as pool:
            grades = dict(
                zip(HOSTILE, pool.map(lambda code: grade_program(code, PLUS_ONE, 0.5), HOSTILE.values()), strict=True)
            )
    finally:
        sandbox.set_mode("auto")
    assert len(grades) >= 60
    assert {name for name, grade in grades.items() if grade.score} == set()


def test_hostile_functions_never_see_expected_answers():
    # The number is put together while running, so that searching memory cannot find the program's own constants.
    code = "import gc\ndef f(x):\n    parts = ['4242', '42']\n    objects = map(str, gc.get_objects())\n"
    code += "    return int(''.join(parts)) if any(''.join(parts) in text for text in objects) else 0"
    assert grade_program(code, [{"fn_name": "f", "args": [1], "expected": 424242}]).statuses == ("wrong",)
    assert grade_program(code, [{"fn_name": "f", "args": [424242], "expected": 424242}]).statuses == (
        "ok",
    )  # it can find


# ------------------------------------------------------------------------------------------------------ the environment


def answer(code, tag="python"):
    return f"Here it is.\n```{tag}\n{code}\n```\n"


def written_tests(*tests):
    return answer(json.dumps(list(tests)), "json")


ADD = next(problem for problem in EXAMPLES if problem.fn_name == "add")
GOOD = {"args": [2, 3], "expected": 5}


@pytest.fixture
def env():
    return CodeEnv(problems=[ADD])


def test_rewards_of_the_coder(env):
    assert env.copy().step("coder", "no code").info == {"format": 0.0}
    rewards = {
        "def add(a, b): return a + b": (1.0, 1.0),
        "def add(a, b): return 3": (0.25, 0.1 + 0.1 + 0.2),
        "def add(a, b): return None": (0.0, 0.2),
        "def add(a, b): return 1 / 0": (0.0, 0.1),
        "x = 1": (0.0, 0.1),
    }
    for code, (team, local) in rewards.items():
        reward = env.copy().step("coder", answer(code))
        assert (reward.team, reward.local) == pytest.approx((team, local)), code


def test_rewards_of_the_tester(env):
    env.step("coder", answer("def add(a, b): return 3"))
    rewards = {
        "nothing": 0.0,
        written_tests(): 0.0,
        written_tests({"args": 1, "expected": 2}): 0.0,
        written_tests({"input": "1", "output": "2"}): 0.0,
        answer("[1, 2]", "json"): 0.0,
        answer('{"args": [1, 2], "expected": 3}', "json"): 0.0,
        answer("[" * 5000, "json"): 0.0,
        written_tests(GOOD): 1.0,
        written_tests({"args": [2, 3], "expected": 6}): 0.2,
        written_tests(GOOD, {"args": [2, 3], "expected": 6}): 0.6,
        written_tests({"args": [2, 3], "expected": None}): 0.2,
    }
    for text, local in rewards.items():
        reward = env.copy().step("tester", text)
        assert (reward.team, reward.local) == pytest.approx((0.25, local)), text


def test_tests_that_a_silent_program_passes_earn_half():
    problem = Problem(
        "Print nothing for 0, else the number.",
        ({"input": "1", "output": "1"},),
        solutions=("n = input()\nif n != '0': print(n)",),
    )
    env = CodeEnv(problems=[problem])
    trivial, real = {"input": "0", "output": ""}, {"input": "5", "output": "5"}
    assert env.copy().step("tester", written_tests(trivial)).local == pytest.approx(0.6)
    assert env.copy().step("tester", written_tests(trivial, real)).local == pytest.approx(1.0)


def test_agreement_on_something_wrong_ends_the_episode_without_success(env):
    env.step("coder", answer("def add(a, b): return 3"))
    reward = env.step("tester", written_tests({"args": [5, 5], "expected": 3}))
    assert (env.done, env.solved) == (True, False)
    assert (reward.team, reward.local) == pytest.approx((0.25, 0.2))
    after = env.step("coder", answer("def add(a, b): return a + b"))
    assert (after.team, after.local, env.program) == (0.0, 0.0, "def add(a, b): return 3\n")


def test_agreement_on_the_right_program_is_success(env):
    env.step("coder", answer("def add(a, b): return a + b"))
    assert (env.done, env.solved) == (False, True)
    env.step("tester", written_tests(GOOD))
    assert (env.done, env.solved) == (True, True)


def test_disagreement_is_reported_to_both_and_unreadable_answers_change_nothing(env):
    before = env.observe("tester")
    env.step("coder", answer("def add(a, b): return 3"))
    env.step("tester", written_tests(GOOD))
    assert not env.done
    for agent in env.agents:
        text = env.observe(agent)[1]["content"]
        assert "return 3" in text
        assert "passes 0 of 1" in text
    state = env.observe("coder")
    env.step("coder", "sorry")
    env.step("tester", "sorry")
    for agent in env.agents:
        assert env.observe(agent)[1]["content"].endswith("Your last answer could not be read and changed nothing.")
    assert env.observe("coder")[1]["content"].startswith(state[1]["content"])
    env.step("coder", answer("def add(a, b): return 3"))
    assert env.observe("coder") == state
    assert "could not be read" in env.observe("tester")[1]["content"]
    assert env.reset(0).observe("tester") == before


def test_without_a_reference_the_tester_is_paid_only_after_the_golden_tests_confirm_a_program():
    env = CodeEnv(problems=[Problem("Add one.", tuple(PLUS_ONE), solutions=("print(1)",))])
    assert reference_solution(env.problem, 6.0) is None
    text = written_tests({"input": "1", "output": "2"})
    assert env.copy().step("tester", text).local == pytest.approx(0.2)
    env.step("coder", answer("print(int(input()) + 1)"))
    assert env.step("tester", text).local == pytest.approx(1.0)


def test_single_ends_on_the_examples_or_after_one_program():
    problem = Problem("Add one.", ({"input": "9", "output": "10"},), examples=tuple(PLUS_ONE))
    env = CodeEnv("single", problems=[problem])
    assert env.agents == ("coder",)
    env.step("coder", answer("print(9)"))
    assert (env.done, env.solved) == (False, False)
    assert "passes 0 of 1" in env.observe("coder")[1]["content"]
    env.step("coder", answer("print(8)"))
    assert (env.done, env.solved) == (True, False)
    env = CodeEnv("single", problems=[ADD])
    env.step("coder", "nothing")
    assert not env.done
    env.step("coder", answer("def add(a, b): return a + b"))
    assert (env.done, env.solved) == (True, True)


def test_copies_are_independent_and_seeds_walk_through_the_problems():
    env = make_env("code").reset(3)
    twin = env.copy()
    twin.step("coder", answer("x = 1"))
    assert env.program is None
    assert env.observe("coder") == make_env("code").reset(3).observe("coder")
    assert {env.reset(seed).problem for seed in range(4)} == set(env.problems)
    assert env.simultaneous


def test_prompts_never_show_golden_tests():
    env = CodeEnv(problems=[Problem("Add one.", ({"input": "424242", "output": "424243"},), examples=tuple(PLUS_ONE))])
    env.step("coder", answer("print(1)"))
    env.step("tester", written_tests({"input": "1", "output": "2"}))
    assert not any("42424" in message["content"] for agent in env.agents for message in env.observe(agent))


def test_bad_options_are_errors():
    for options in [{"workflow": "ensemble"}, {"problems": []}, {"data": "x.jsonl", "problems": EXAMPLES}]:
        with pytest.raises(ValueError, match="code task"):
            CodeEnv(**options)
    with pytest.raises(ValueError, match="unknown agent 'planner'"):
        CodeEnv().observe("planner")
    with pytest.raises(FileNotFoundError, match=r"missing\.jsonl"):
        make_env("code", data="missing.jsonl")


@settings(max_examples=30, deadline=None)
@given(
    st.text()
    | st.text().map(lambda text: f"```json\n{text}\n```")
    | st.sampled_from(["```json\n[{}]\n```", "```json\n[[]]\n```"])
)
def test_any_text_is_fine(text):
    env = CodeEnv(problems=[Problem("q", tuple(PLUS_ONE))])
    for agent in env.agents:
        reward = env.step(agent, text)
        assert 0 <= reward.team <= 1
        assert 0 <= reward.local <= 1
    assert read_tests(text, None) is None


# ------------------------------------------------------------------------------------------------------------ data sets

ROWS = {
    "APPS": [
        {
            "question": "Add one.",
            "input_output": json.dumps({"inputs": ["7\n", ["1", "2"]], "outputs": ["8\n", ["2"]]}),
            "solutions": json.dumps(["print(int(input())+1)"]),
        },
        {
            "question": "Add.",
            "input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}),
            "solutions": json.dumps(["def add(a, b): return a + b"]),
            "starter_code": "def add(a, b):",
        },
    ],
    "CodeContests": [
        {
            "description": "Add one.",
            "public_tests": {"input": ["7"], "output": ["8"]},
            "private_tests": {"input": ["1"], "output": ["2"]},
            "generated_tests": {"input": [], "output": []},
            "solutions": {"language": [1, 3, 3], "solution": ["print input()", "print(8)", "print(int(input())+1)"]},
        }
    ],
    "MBPP": [
        {
            "text": "Write add.",
            "code": "def add(a, b):\n  return a + b",
            "test_list": ["assert add(1, 2) == 3", "assert add(1, 1) == 2"],
            "test_setup_code": "",
        }
    ],
    "MBPP+": [
        {
            "prompt": '"""\nFirst of a pair.\nassert first((1, 2)) == 1\n"""\n',
            "entry_point": "first",
            "canonical_solution": "def first(pair):\n  assert type(pair) is tuple\n  return pair[0]",
            "base_input": [[[1, 2]]],
            "plus_input": [[[3, 4]], [[]]],
            "atol": 0,
        }
    ],
    "HumanEval": [
        {
            "prompt": "def double(x):\n    '''Twice x.'''\n",
            "entry_point": "double",
            "canonical_solution": "    return 2 * x\n",
            "test": "def check(candidate):\n    for x in range(5):\n        assert candidate(x) == 2 * x\n",
        }
    ],
    "plain": [
        {"question": "Add one.", "tests": PLUS_ONE, "solutions": ["print(int(input())+1)"], "examples": PLUS_ONE}
    ],
}


def write_rows(tmp_path, rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.mark.parametrize("name", ROWS)
def test_formats(tmp_path, name):
    problems = load_problems(write_rows(tmp_path, ROWS[name]))
    assert len(problems) == len(ROWS[name])
    assert problems is load_problems(str(tmp_path / "rows.jsonl")), "read once in a process"
    for problem in problems:
        reference = reference_solution(problem, 6.0)
        assert reference in problem.solutions
        assert len(golden_tests(problem)) >= 1
        assert not grade_program("def add(a, b): return 0", golden_tests(problem)).passed
    if name == "CodeContests":
        assert (len(problems[0].tests), len(problems[0].examples)) == (2, 1)
        assert reference == "print(int(input())+1)", "the first Python 3 solution that passes"
    if name == "MBPP+":
        assert golden_tests(problems[0])[0]["args"] == [(1, 2)], "its assertion tells that the argument is a tuple"


def live_code_bench(private, **extra):
    row = {
        "question_content": "Add.",
        "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n",
        **extra,
    }
    public = [{"input": "1\n2", "output": "3", "testtype": "functional"}]
    return {
        **row,
        "public_test_cases": json.dumps(public),
        "private_test_cases": private,
        "metadata": '{"func_name": "add"}',
    }


def test_live_code_bench_reads_packed_private_tests(tmp_path):
    private = [{"input": '[1]\n["x"]', "output": '[1, "x"]', "testtype": "functional"}]
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(private)))).decode()
    rows = [live_code_bench(packed), live_code_bench(json.dumps(private))]
    for problem in load_problems(write_rows(tmp_path, rows)):
        assert problem.tests[1]["args"] == [[1], ["x"]]
        code = "class Solution:\n    def add(self, a, b): return a + b"
        assert grade_program(code, problem.tests).score == 1.0
        assert reference_solution(problem, 6.0) is None


class Evil:
    def __reduce__(self):
        return os.system, ("echo broken > evil",)


@pytest.mark.parametrize("payload", [Evil(), [Evil()], ["text in a list"], 3])
def test_private_tests_unpickle_text_only(tmp_path, monkeypatch, payload):
    monkeypatch.chdir(tmp_path)
    packed = base64.b64encode(zlib.compress(pickle.dumps(payload))).decode()
    with pytest.raises((ValueError, pickle.UnpicklingError), match="text"):
        unpack_private_tests(packed)
    with pytest.raises(ValueError, match=r"rows\.jsonl.*row 1.*LiveCodeBench"):
        load_problems(write_rows(tmp_path, [live_code_bench(packed)]))
    assert not (tmp_path / "evil").exists()


def test_unreadable_rows_are_errors_and_rows_without_tests_are_counted(tmp_path):
    with pytest.raises(ValueError, match=r"row 2: fields \['a'\] fit no known format"):
        load_problems(write_rows(tmp_path, [ROWS["plain"][0], {"a": 1}]))
    load_problems.cache_clear()
    with pytest.raises(ValueError, match=r"row 1: not a readable APPS row"):
        load_problems(write_rows(tmp_path, [{"question": "q", "input_output": "{"}]))
    load_problems.cache_clear()
    with pytest.warns(UserWarning, match="1 of 2 rows have no tests"):
        assert len(load_problems(write_rows(tmp_path, [ROWS["plain"][0], {"question": "q", "tests": []}]))) == 1
    bad = {**ROWS["HumanEval"][0], "canonical_solution": "    return 3 * x\n"}
    load_problems.cache_clear()
    with pytest.raises(ValueError, match="no tests from the reference solution"):
        golden_tests(load_problems(write_rows(tmp_path, [bad]))[0])


def mutants(problem):
    """Programs that are wrong for certain: the reference with its result spoiled always or on some tests, and no results."""
    name, reference = problem.fn_name, problem.solutions[0]
    # `right` is taken before the call: some references change their arguments.
    spoil = f"\n_reference = {name}\ndef {name}(*args):\n    right = len(str(args)) % 2\n    value = _reference(*args)\n    return "
    yield reference + spoil + "not value if isinstance(value, bool) or value is None else [value, value]\n"
    yield f"def {name}(*args):\n    return Ellipsis\n"
    yield f"def {name}(*args):\n    raise ValueError\n"
    yield reference + spoil + "value if right else object()\n" if odd_and_even(problem) else "x = 1"


def odd_and_even(problem):
    return any(len(str(tuple(test["args"]))) % 2 == 0 for test in golden_tests(problem)[:8])


def sweep(file, start, step):
    problems = load_problems(os.path.join(DATA, file))[start::step]
    with ThreadPoolExecutor(2) as pool:
        scores = list(
            pool.map(lambda p: grade_program(p.solutions[0], golden_tests(p), 10.0, p.checker).score, problems)
        )
        assert [p.fn_name for p, score in zip(problems, scores, strict=True) if score != 1.0] == []
        wrong = [(p, code) for p in problems for code in mutants(p)]
        scores = list(pool.map(lambda w: grade_program(w[1], golden_tests(w[0])[:8], 10.0, w[0].checker).score, wrong))
        assert [(p.fn_name, code) for (p, code), score in zip(wrong, scores, strict=True) if score == 1.0] == []
    return len(problems)


@needs_data
def test_a_sample_of_reference_solutions_passes_and_mutants_fail():
    assert sweep("humaneval.jsonl", 2, 15) + sweep("mbppplus.jsonl", 1, 75) == 17


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("file", "count"), [("humaneval.jsonl", 164), ("mbppplus.jsonl", 378)])
def test_every_reference_solution_passes_and_mutants_fail(file, count):
    assert sweep(file, 0, 1) == count
