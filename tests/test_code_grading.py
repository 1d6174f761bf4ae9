"""Grading is right and quick, whatever a program sends back."""

import json

import pytest
from helpers import seconds_at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import code_grading, sandbox
from tasks.code_data import Problem, load_problems
from tasks.code_env import CodeEnv
from tasks.code_grading import check_references, golden_tests, grade_program
from tasks.code_values import distinct, read_reply, same_output, same_value, to_data
from tasks.sandbox import OUTPUT, Result

# --------------------------------------------------------------------------------------------------------- long numbers

LONG = 10**4300  # 4,301 digits, one more than Python reads and writes unless told otherwise


def write(tmp_path, *rows):
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


def test_integers_of_more_digits_than_python_reads_by_default(tmp_path):
    test = {"fn_name": "f", "args": [LONG], "expected": LONG + 1}
    (problem,) = load_problems(write(tmp_path, {"question": "Next.", "tests": [test], "examples": [test]}))
    text = CodeEnv(problems=[problem]).observe("coder")[1]["content"]
    assert str(LONG) in text
    assert str(LONG + 1) in text
    assert grade_program("def f(x): return x + 1", problem.tests).score == 1.0
    assert grade_program("def f(x): return int(str(x)) + 1", problem.tests).score == 1.0
    assert grade_program(f"def f(x): return {LONG} + 1", problem.tests).score == 1.0
    assert grade_program("def f(x): return x + 2", problem.tests).score == 0.0


def test_long_integers_in_text_and_packed_in_json(tmp_path):
    tests = [{"input": f"{LONG}\n", "output": str(LONG * 10**700)}]
    assert grade_program("print(int(input()) * 10**700)", tests).score == 1.0
    assert grade_program("print(int(input()) * 10**700 + 1)", tests).score == 0.0
    calls = {"fn_name": "f", "inputs": [[LONG]], "outputs": [[-LONG]]}
    (problem,) = load_problems(write(tmp_path, {"question": "Negate.", "input_output": json.dumps(calls)}))
    assert grade_program("def f(x): return -x", golden_tests(problem)).score == 1.0


# ------------------------------------------------------------------------------------------------- what JSON cannot say


@pytest.mark.parametrize(
    ("expected", "right", "wrong"),
    [
        ([1, 2], "(1, 2)", "(2, 1)"),
        ([1, 2, 3], "{3, 1, 2}", "{1, 2}"),
        ([1, 2, 3], "frozenset([1, 2, 3])", "{1, 2, 4}"),
        ([[1, 2], [3, 4]], "{(3, 4), (1, 2)}", "{(4, 3), (1, 2)}"),
        ([[1, 2], [3]], "{frozenset([3]), frozenset([2, 1])}", "{frozenset([3]), frozenset([2])}"),
        ([1, 1, 2], "[1, 1, 2]", "{1, 2}"),
        ({"1": "a", "2": "b"}, "{1: 'a', 2: 'b'}", "{1: 'b', 2: 'a'}"),
        ({"1": "a"}, "{'1': 'a'}", "{1: 'a', '1': 'a'}"),
        ({"1": {"2": [3]}}, "{1: {2: (3,)}}", "{1: {3: (3,)}}"),
        ({"1.5": 0, "true": 1, "null": 2}, "{1.5: 0, True: 1, None: 2}", "{1.5: 0, False: 1, None: 2}"),
        ({"(1, 2)": 3}, "{(1, 2): 3}", "{(2, 1): 3}"),
        ("ab", "b'ab'", "b'ba'"),
        ("b'ab'", "b'ab'", "b'a'"),
        ("YWI=", "b'ab'", "b'ac'"),
        ([97, 98], "bytearray(b'ab')", "b'ba'"),
        ("caf\u00e9", "'caf\u00e9'.encode()", "b'cafe'"),
        ("{1, 2}", "{2, 1}", "{2}"),
        ("(1+2j)", "1 + 2j", "1 - 2j"),
        ("2", "'2'", "2"),
        (True, "True", "[]"),
    ],
)
def test_values_that_json_cannot_say(tmp_path, expected, right, wrong):
    row = {"question": "q", "tests": [{"fn_name": "f", "args": [], "expected": expected}]}
    for solutions in [], [f"def f(): return {right}"]:
        (problem,) = load_problems(write(tmp_path, {**row, "solutions": solutions}))
        assert grade_program(f"def f(): return {right}", golden_tests(problem)).score == 1.0
        assert grade_program(f"def f(): return {wrong}", golden_tests(problem)).score == 0.0


def test_a_reference_shows_what_json_lost(tmp_path):
    """A set is no list where a solution returns lists, and arguments come back as what the solution works on."""
    row = {"question": "q", "tests": [{"fn_name": "f", "args": [[3, 1]], "expected": [1, 3]}]}
    (problem,) = load_problems(write(tmp_path, {**row, "solutions": ["def f(x): return sorted(x)"]}))
    assert grade_program("def f(x): return set(x)", golden_tests(problem)).score == 0.0
    for args, expected, code in [
        ([{"1": 2}, 1], 2, "def f(d, key): return d[key]"),
        ([[[1, 2], [1, 2]]], 1, "def f(pairs): return len({pair for pair in pairs})"),
        ([[1, 2], [2, 3]], [2], "def f(a, b): return a & b"),
        (["ab"], 97, "def f(data): return data[0]"),
    ]:
        row = {"question": "q", "tests": [{"fn_name": "f", "args": args, "expected": expected}], "solutions": [code]}
        (problem,) = load_problems(write(tmp_path, row))
        assert grade_program(code, golden_tests(problem)).score == 1.0, code


@pytest.mark.parametrize(
    ("outputs", "returned", "score"),
    [
        ([[0, 1]], "0", 0),
        ([[0, 1]], "[0, 1]", 1),
        ([[0, 1]], "[[0, 1]]", 0),
        ([[5]], "5", 1),
        ([[[0, 1]]], "[0, 1]", 1),
        ([[[0, 1]]], "0", 0),
        ([[]], "[]", 1),
        ([[]], "None", 0),
        ([[7], [0, 1]], "7", 0),
        ([7], "7", 1),
        (["7"], "'7'", 1),
        (["7"], "7", 0),
    ],
)
def test_recorded_results_are_unwrapped_from_lists_of_one_only(tmp_path, outputs, returned, score):
    calls = {"fn_name": "f", "inputs": [[place] for place in range(len(outputs))], "outputs": outputs}
    (problem,) = load_problems(write(tmp_path, {"question": "q", "input_output": json.dumps(calls)}))
    assert grade_program(f"def f(x): return {returned}", golden_tests(problem)[:1]).score == score


def test_a_reference_tells_wrapped_from_bare(tmp_path):
    calls = json.dumps({"fn_name": "f", "inputs": [[1]], "outputs": [[1]]})
    for code, other in [("def f(x): return x", "def f(x): return [x]"), ("def f(x): return [x]", "def f(x): return x")]:
        row = {"question": "q", "input_output": calls, "solutions": json.dumps([code])}
        (problem,) = load_problems(write(tmp_path, row))
        assert grade_program(code, golden_tests(problem)).score == 1.0
        assert grade_program(other, golden_tests(problem)).score == 0.0


# ------------------------------------------------------------------------------------ the row's own tolerance and order


COUNT = "from collections import Counter\nC = Counter([1])"


def mbpp(code, *tests, **more):
    return {"text": "q", "code": code, "test_list": list(tests), **more}


@pytest.mark.parametrize(
    ("row", "program", "score"),
    [
        (mbpp("def f(x): return 3.1415 * x", "assert math.isclose(f(10), 31.415, rel_tol=0.001)"), "31.42", 1),
        (mbpp("def f(x): return 3.1415 * x", "assert math.isclose(f(10), 31.415, rel_tol=0.001)"), "31.5", 0),
        (mbpp("def f(x): return 3.1415 * x", "assert math.isclose(f(10), 31.415, rel_tol=0.001)"), "float('nan')", 0),
        (mbpp("def f(x): return 3.1415 * x", "assert math.isclose(f(10), 31.415, rel_tol=0.001)"), "'31.415'", 0),
        (mbpp("def f(x): return [1, 2]", "assert set(f(0)) == set([1, 2])"), "[2, 1]", 1),
        (mbpp("def f(x): return [1, 2]", "assert set(f(0)) == set([1, 2])"), "[2, 3]", 0),
        (mbpp("def f(x): return [1, 2]", "assert f(0) == [1, 2]"), "[2, 1]", 0),
        (mbpp("def f(x): return [1, 2]", "assert sorted(f(0)) == [1, 2]"), "[2, 1]", 1),
        (mbpp("def f(x): return 2.0", "assert abs(f(0) - 2) < 0.1"), "2.05", 1),
        (mbpp("def f(x): return 2.0", "assert abs(f(0) - 2) < 0.1"), "2.15", 0),
        (mbpp("def f(x): return 1/3", "assert round(f(0), 2) == 0.33"), "0.331", 1),
        (mbpp("def f(x): return 1/3", "assert round(f(0), 2) == 0.33"), "0.34", 0),
        (mbpp("def f(x): return x", "assert f(3)"), "7", 1),
        (mbpp("def f(x): return x", "assert f(3)"), "0", 0),
        (mbpp("def f(x): return x", "assert f(f(3)) == 3"), "3.0000000001", 0),
        (mbpp("def f(x): return [x]", "assert Counter(f(1)) == C", test_setup_code=COUNT), "(1,)", 1),
        (mbpp("def f(x): return [x]", "assert Counter(f(1)) == C", test_setup_code=COUNT), "(1, 1)", 0),
    ],
)
def test_the_assertion_of_a_row_decides(tmp_path, row, program, score):
    (problem,) = load_problems(write(tmp_path, row))
    assert grade_program(problem.solutions[0], golden_tests(problem)).score == 1.0
    assert grade_program(f"def f(x): return {program}", golden_tests(problem)).score == score


def mbpp_plus(**more):
    row = {"prompt": "q\nassert f(2) == 4.0", "entry_point": "f", "canonical_solution": "def f(x): return 2.0 * x"}
    return {**row, "base_input": [[2]], "plus_input": [[3], [50_000]], **more}


@pytest.mark.parametrize(
    ("atol", "off", "score"),
    [(1e-4, 0.01, 0), (1e-4, 9e-5, 1), (1e-4, 3e-4, 0), (0, 1e-4, 1 / 4), (0, 1e-7, 1), (1e-2, 0.005, 1)],
)
def test_the_tolerance_of_a_row_replaces_ours(tmp_path, atol, off, score):
    (problem,) = load_problems(write(tmp_path, mbpp_plus(atol=atol)))
    assert grade_program(f"def f(x): return 2.0 * x + {off}", golden_tests(problem)).score == pytest.approx(score)


def test_the_order_of_a_row_of_mbpp_plus_is_read_from_its_assertion(tmp_path):
    row = mbpp_plus(prompt="q\nassert set(f(2)) == set([2, 3])", canonical_solution="def f(x): return [x, x + 1]")
    (problem,) = load_problems(write(tmp_path, row))
    for code, right in [("[x + 1, x]", 1.0), ("(x, x + 1, x)", 1.0), ("[x]", 0.0), ("[[x], x]", 0.0), ("3", 0.0)]:
        grade = grade_program(f"def f(x): return {code}", golden_tests(problem), checker=problem.checker)
        assert grade.score == right, code


# ----------------------------------------------------------------------------------------------------------- references


@pytest.mark.parametrize(
    "code", ["import numpy as np\ndef f(x): return 2.0 * x", "def f(x):\n import torch.nn\n return x"]
)
def test_a_reference_that_imports_an_absent_package_is_found_at_load(tmp_path, code):
    source = write(tmp_path, mbpp_plus(), mbpp_plus(canonical_solution=code))
    with pytest.raises(ValueError, match=r"\.jsonl.*row 2.*'canonical_solution'.*imports '(numpy|torch.nn)'"):
        load_problems(source)


def test_an_import_that_may_fail_is_none_that_has_to_work(tmp_path):
    code = "try:\n    import numpy\nexcept ImportError:\n    numpy = None\ndef f(x): return 2.0 * x"
    (problem,) = load_problems(write(tmp_path, mbpp_plus(canonical_solution=code)))
    assert len(golden_tests(problem)) == 4


def test_references_that_fail_otherwise_are_found_by_running_them(tmp_path):
    problems = load_problems(write(tmp_path, mbpp_plus(), mbpp_plus(canonical_solution="def f(x): return missing")))
    with pytest.raises(ValueError, match=r"(?s)\.jsonl.*row 2.*no tests from the reference.*name 'missing' is not"):
        check_references(problems, 2)
    check_references(problems[:1], 2)


# ------------------------------------------------------------------------------------------------------ hostile replies

HEX = st.sampled_from(["0x1", "zz", "1", "-0x" + "f" * 400])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | HEX
TAGS = st.sampled_from(["int", "complex", "bytes", "tuple", "set", "frozenset", "dict", "list", ""])
REPLIES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TAGS, inner, max_size=2)
        | st.builds(lambda pairs: {"dict": pairs}, st.lists(st.tuples(inner, inner).map(list), max_size=3))
    ),
    max_leaves=8,
)
RAW = [
    '{"complex": [true, ' + "9" * 400 + "]}",
    '{"complex": [1e999, ' + "9" * 400 + ".0]}",
    '{"complex": [1.0, 2.0, 3.0]}',
    '{"complex": ["1", "2"]}',
    "9" * 100_000,
    '{"int": "' + "f" * 500_000 + '"}',
    '{"int": 5}',
    '{"int": "0x"}',
    '{"bytes": "abc"}',
    '{"set": [[1]]}',
    '{"set": "abc"}',
    '{"dict": [[[1], 2]]}',
    '{"dict": [1]}',
    '{"dict": "ab"}',
    "[" * 100_000,
    "[" * 100_000 + "]" * 100_000,
    '{"tuple": [' * 50_000 + "]}" * 50_000,
    '{"frozenset": [' * 300 + "]}" * 300,
    "NaN",
    "-Infinity",
    "",
    "null null",
    "\x00",
    '"\\ud800"',
    '{"int": "0x1", "int": 2}',
]
EXPECTED = [
    5,
    2.5,
    "a",
    None,
    True,
    [1, 2],
    (1, [2.0]),
    {1, 2},
    frozenset([1]),
    {"1": 2},
    {1: {2}},
    b"ab",
    1j,
    10**400,
    [],
]


def grade_reply(monkeypatch, reply, expected, **fields):
    """Status of a program that sends exactly this reply, through the environment (none of it may raise)."""
    monkeypatch.setattr(code_grading, "run_many", lambda *args: (result for result in [Result("ok", reply, "")]))
    test = {"fn_name": "f", "args": [], "expected": expected, **fields}
    env = CodeEnv("single", problems=[Problem("q", (test,), "f", examples=(test,))])
    reward = env.step("coder", "```python\nx\n```")
    assert 0 <= reward.team <= 1
    env.observe("coder")
    return grade_program("x", [test]).statuses[0]


@pytest.mark.parametrize("reply", RAW, ids=lambda reply: f"{reply[:20]}-{len(reply)}")
def test_replies_that_are_no_data_are_errors(monkeypatch, reply):
    for expected in EXPECTED:
        for fields in {}, {"exact": True}, {"atol": 1e-4}:
            assert grade_reply(monkeypatch, reply, expected, **fields) in ("wrong", "error")


@settings(derandomize=True, max_examples=400, deadline=None)
@given(REPLIES, st.sampled_from(EXPECTED), st.booleans())
def test_any_reply_has_a_status(reply, expected, exact):
    with pytest.MonkeyPatch.context() as patch:
        status = grade_reply(patch, json.dumps(reply), expected, exact=exact)
    assert status in ("ok", "wrong", "error")
    if status == "ok":
        assert same_value(expected, read_reply(json.dumps(reply)), exact)


def test_a_checker_that_raises_is_no_exception_of_ours():
    grade = grade_program("print('x')", [{"input": "", "output": "1"}], checker=lambda test, value: int(value) > 0)
    assert grade.statuses == ("error",)
    assert "the checker raised ValueError" in grade.outputs[0]


def test_the_channel_of_real_programs():
    """The reply written past `to_data`, as a program can."""
    tests = [{"fn_name": "f", "args": [], "expected": 5}]
    for reply in RAW[:16]:
        write = f"os.write(fd, {reply[:60_000]!r}.encode())"
        body = f"import os\nfor fd in range(3, 9):\n try: {write}\n except OSError: pass\nos._exit(0)"
        assert grade_program(body, tests).score == 0.0


# ----------------------------------------------------------------------------------------------------------------- time

COLLIDING = [n * (2**61 - 1) for n in range(1, 30_001)]
MANY = list(range(150_000))
SLOW = {
    "colliding integers in a set": (COLLIDING[:100], {"set": [to_data(n) for n in COLLIDING]}),
    "colliding keys": ({"1": 1}, {"dict": [[to_data(n), 1] for n in COLLIDING]}),
    "colliding tuples": ({1}, {"set": [{"tuple": [to_data(n), 1]} for n in COLLIDING[:20_000]]}),
    "a large set": (MANY[:90_000], {"set": MANY[:90_000]}),
    "a large dictionary": ({str(n): n for n in MANY[:60_000]}, {"dict": [[n, n] for n in MANY[:60_000]]}),
    "a long list": (MANY, [*MANY[:-1], 0]),
    "floats": ([0.5] * 200_000, [0.5000001] * 100_000 + [0.5] * 99_999 + [1]),
    "a long integer": (5.0, {"int": "0x" + "f" * 1_000_000}),
    "a nested list": ([], [[[[[]]]]] * 80_000),
    "a text": ("(" * 500_000, {"tuple": [1] * 300_000}),
}


@pytest.mark.parametrize("name", SLOW)
def test_judging_a_reply_is_linear(name):
    expected, reply = SLOW[name]
    text = json.dumps(reply, separators=(",", ":"))
    assert len(text) < 2 * OUTPUT
    test = {"fn_name": "f", "args": [], "expected": expected}
    with seconds_at_most(5):  # half a second on an idle core
        code_grading._judge(test, text, True, None)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("1 " * 250_000, "1.0 " * 249_999 + "2"),
        ("1.5\n" * 200_000, "1.50\n" * 199_999 + "2"),
        ("0.1 " * 200_000, "1e-1 " * 199_999 + "2"),
        (" \n" * 500_000 + "1", " " * 1_000_000 + "1"),
        ("1" * 1_000_000, "1" + "0" * 999_990 + "e9"),
        ("1" * 1_000_000, "1." + "1" * 900_000 + "e999999"),
        ("1.5 " * 10, "1" * 1_000_000),
        ("2 " * 250_000, "2e0 " * 249_999 + "3"),
    ],
)
def test_judging_an_output_is_linear(expected, printed):
    with seconds_at_most(5):  # at most a second on an idle core
        same_output(expected, printed)


def test_comparing_in_any_order_is_linear(tmp_path):
    row = mbpp_plus(prompt="q\nassert set(f(2)) == set([2])", canonical_solution="def f(x): return list(range(2000))")
    (problem,) = load_problems(write(tmp_path, {**row, "assertion": "f(2)"}))
    test = {"args": [2], "expected": list(range(2000))}
    for value in list(range(332_000)), COLLIDING, [[n] for n in range(100_000)], [[[]]] * 100_000, [{1: []}] * 50_000:
        with seconds_at_most(5):
            assert problem.checker(test, value) is False
    assert problem.checker(test, list(range(1999, -1, -1)))


def test_collisions_are_refused_and_equal_items_are_not():
    assert distinct([1, 1.0, True] * 1000 + [2]) == {1, 2}
    with pytest.raises(ValueError, match="same hash"):
        distinct(COLLIDING[:200])


# ----------------------------------------------------------------------------------------------------- beyond the limit


def test_an_expected_output_that_no_program_may_write_is_an_error_at_load(tmp_path):
    fits, too_long = "x" * (OUTPUT - 1), "x" * OUTPUT
    row = {"question": "q", "tests": [{"input": "", "output": fits}]}
    (problem,) = load_problems(write(tmp_path, row))
    assert grade_program(f"print('x' * {OUTPUT - 1})", problem.tests).score == 1.0
    bad = {"question": "q", "tests": [{"input": "", "output": too_long}]}
    calls = {"question": "q", "tests": [{"fn_name": "f", "args": [], "expected": too_long}]}
    for second in bad, calls:
        with pytest.raises(ValueError, match=r"row 2.*'tests'.*takes 1,048,57\d bytes.*1,048,576 at most"):
            load_problems(write(tmp_path, row, second))
    with pytest.raises(ValueError, match="at most"):
        grade_program("pass", bad["tests"])


# -------------------------------------------------------------------------------------------------------------- prompts


def test_prompts_are_shortened_and_say_so():
    env = CodeEnv(
        problems=[Problem("q", ({"input": "1", "output": "2"},), examples=({"input": "x" * 30_000, "output": ""},))]
    )
    env.step("coder", "```python\nx = '" + "y" * 9000 + "'\nprint('w' * 900)\n```")
    tests = json.dumps([{"input": "z" * 3000, "output": "1"}, {"input": "1", "output": "2"}])
    env.step("tester", f"```json\n{tests}\n```")
    for agent in env.agents:
        text = env.observe(agent)[1]["content"]
        assert len(text) < 20_000 + 4000 + 2 * 5 * 1400
        assert text.count("more characters)") == 6, "example, program, one test twice, two outputs"
        assert "passes 0 of 2" in text


def test_values_are_shown_as_python_writes_them():
    grade = grade_program("def f(): return (1, {2})", [{"fn_name": "f", "args": [], "expected": 3}])
    assert grade.outputs == ("(1, {2})",)
    test = {"fn_name": "f", "args": [{(1, 2): b"x"}], "expected": {1}}
    text = CodeEnv(problems=[Problem("q", (test,), "f", examples=(test,))]).observe("coder")[1]["content"]
    assert "{(1, 2): b'x'}" in text


def test_the_sandbox_prints_and_reads_long_integers():
    assert sandbox.run_program("print(10**5000)").stdout == str(10**5000) + "\n"
    assert sandbox.run_program("print(int(input()) % 7)", str(LONG)).stdout == f"{LONG % 7}\n"
