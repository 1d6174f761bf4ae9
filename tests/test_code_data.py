"""Rows of every format, whole and spoiled in every way: read unchanged, or refused by source, row and field."""

import base64
import copy
import json
import pickle
import re
import warnings
import zlib

import pytest

from tasks.code_data import FORMATS, load_problems, normal_test
from tasks.code_env import CodeEnv
from tasks.data import read_rows

CALLS = [{"input": "1\n[2]", "output": "[3]", "testtype": "functional"}]
ROWS = {
    "LiveCodeBench": {
        "question_content": "Add.",
        "starter_code": "class Solution:\n    def add(self, a, b):\n",
        "public_test_cases": json.dumps(CALLS),
        "private_test_cases": json.dumps(CALLS),
        "metadata": '{"func_name": "add"}',
    },
    "CodeContests": {
        "description": "Add one.",
        "public_tests": {"input": ["7"], "output": ["8"]},
        "private_tests": {"input": ["1"], "output": ["2"]},
        "generated_tests": {"input": [], "output": []},
        "solutions": {"language": [1, 3], "solution": ["print input()", "print(int(input())+1)"]},
    },
    "APPS": {
        "question": "Add.",
        "input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2], [2, 3]], "outputs": [[3], [5]]}),
        "solutions": json.dumps(["def add(a, b): return a + b"]),
        "starter_code": "def add(a, b):",
    },
    "MBPP+": {
        "prompt": '"""\nFirst of a pair.\nassert first((1, 2)) == 1\n"""\n',
        "entry_point": "first",
        "canonical_solution": "def first(pair): return pair[0]",
        "base_input": [[[1, 2]]],
        "plus_input": [[[3, 4]]],
        "assertion": "assert first((1, 2)) == 1",
        "atol": 0,
    },
    "HumanEval": {
        "prompt": "def double(x):\n    '''Twice x.'''\n",
        "entry_point": "double",
        "canonical_solution": "    return 2 * x\n",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n",
    },
    "MBPP": {
        "text": "Write add.",
        "code": "def add(a, b):\n  return a + b",
        "test_list": ["assert add(1, 2) == 3"],
        "test_setup_code": "",
        "test_imports": ["import math"],
    },
    "plain": {
        "question": "Add one.",
        "tests": [{"input": "7", "output": "8", "accept": ["8.0"]}],
        "examples": [{"input": "7", "output": "8"}],
        "solutions": ["print(int(input())+1)"],
    },
    "plain calls": {
        "question": "Add one.",
        "tests": [{"fn_name": "f", "args": [7], "expected": 8}, {"fn_name": "f", "input": "7", "output": "8"}],
    },
}
# May be missing or null: an answer, an example or a hint less, and nothing else changes.
OPTIONAL = {"starter_code", "metadata", "private_tests", "generated_tests", "solutions", "plus_input", "assertion"}
OPTIONAL |= {"atol", "test_setup_code", "test_imports", "examples", "accept"}

# ------------------------------------------------------------------------------------------------------------- mutation

GONE, DEEP = object(), "<nested 100,000 deep>"
VALUES = [GONE, None, True, 0, -1, 1.5, float("nan"), 10**5000, "", "x", "\u2028", "{", '{"a": [', "null", "0", "a b"]
VALUES += ["[" * 100_000, "import numpy", "\x00", [], [None], [0], [[]], ["x"], {}, {"a": 1}, {"input": 1}, DEEP]
VALUES += [eval("[" * 150 + "]" * 150)]  # deep enough for JSON, too deep to grade


def places(value, path=()):
    """Every place inside a value; a text that holds JSON is opened, which "json" in the path says."""
    yield path
    if isinstance(value, str) and value[:1] in ("{", "["):
        for inner in places(json.loads(value), (*path, "json")):
            if inner != (*path, "json"):
                yield inner
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def spoiled(value, path, new):
    """`value` with `new` at this place."""
    if not path:
        return new(value) if callable(new) else new
    if path[0] == "json":
        return json.dumps(spoiled(json.loads(value), path[1:], new))
    value = copy.copy(value)
    inside = spoiled(value[path[0]], path[1:], new)
    if inside is GONE:
        del value[path[0]]
    else:
        value[path[0]] = inside
    return value


def mutants(row):
    for path in places(row):
        if path:
            yield from ((path, value) for value in VALUES)
            yield path, lambda old: old[: len(old) // 2] if isinstance(old, (str, list)) else [old]
            yield path, lambda old: old * 2 if isinstance(old, (str, list)) else {"a": old}


def line_of(row):
    # No DEEP inside of a text: there it is a text like others.
    return json.dumps(row).replace(json.dumps(DEEP), "[" * 100_000 + "]" * 100_000)


def outcome(path, row, field):
    """What loading this row as the second of a file gives: "refused", or the problem."""
    path.write_text(line_of(ROWS["HumanEval"]) + "\n" + line_of(row), encoding="utf-8")
    load_problems.cache_clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problems = load_problems(str(path))
    except ValueError as error:
        text = str(error)
        assert path.name in text
        assert re.search(r"\b(row|line) 2\b", text), text[:300]
        file_level = "not JSON" in text or "fit no known format" in text  # before there is a field
        assert file_level or re.search(rf"'[a-z_, ]*\b{field}\b[a-z_, ]*'", text), text[:300]
        assert len(text) < 2000
        return "refused"
    return problems[1] if len(problems) == 2 else "without tests"


def check_whole(problem):
    """Everything that the environment takes for granted."""
    assert type(problem.question) is str
    assert all(type(code) is str for code in problem.solutions)
    assert problem.fn_name is None or problem.fn_name.isidentifier()
    for test in (*problem.tests, *problem.examples):
        assert normal_test(test) == test or test["expected"] != test["expected"]
        assert test.get("fn_name") == problem.fn_name
    assert all(type(args) is list for args in problem.inputs)
    assert all(type(message["content"]) is str for message in CodeEnv(problems=[problem]).observe("coder"))


def try_mutants(path, name, step=1, start=0):
    refused = whole = 0
    for place, value in list(mutants(ROWS[name]))[start::step]:
        row = spoiled(ROWS[name], place, value)
        result = outcome(path, row, place[0])
        if result == "refused":
            refused += 1
        elif result != "without tests":
            check_whole(result)
            whole += 1
        old, new = ROWS[name][place[0]], row.get(place[0])
        wrong_type = place[0] in row and new is not None and type(new) is not type(old)
        if len(place) == 1 and wrong_type and (place[0], new) not in [("plus_input", {}), ("atol", 1.5)]:
            assert result == "refused" or (place[0] == "atol" and type(new) is float), (place, str(value)[:50])
        if len(place) == 1 and new is None and place[0] not in OPTIONAL:
            assert result == "refused", place
    return refused, whole


@pytest.mark.parametrize("name", ROWS)
def test_spoiled_rows_are_refused_by_name_or_whole(tmp_path, name):
    refused, whole = try_mutants(tmp_path / "rows.jsonl", name, step=3)
    assert refused > 20
    assert whole > 0


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_are_cut_are_refused(tmp_path, name):
    path, line = tmp_path / "rows.jsonl", line_of(ROWS[name])
    for end in range(1, len(line), max(1, len(line) // 20)):
        path.write_text(line + "\n" + line[:end], encoding="utf-8")
        with pytest.raises(ValueError, match=r"rows\.jsonl.*line 2: not JSON"):
            load_problems(str(path))


@pytest.mark.parametrize("name", ROWS)
def test_a_whole_row_is_read_in_its_own_format(tmp_path, name):
    assert {row for row, *_ in FORMATS} <= set(ROWS)
    problem = outcome(tmp_path / "rows.jsonl", ROWS[name], "")
    check_whole(problem)
    assert problem.source == f"data {str(tmp_path / 'rows.jsonl')!r}, row 2"
    assert problem.tests or problem.check


def test_spoiled_packed_tests_are_refused(tmp_path):
    whole = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(CALLS)))).decode()
    path = tmp_path / "rows.jsonl"
    problem = outcome(path, {**ROWS["LiveCodeBench"], "private_test_cases": whole}, "private_test_cases")
    assert len(problem.tests) == 2
    broken = [whole[:end] for end in range(0, len(whole), 7)]
    for data in (
        b"",
        b".",
        b"\x80\x04",
        b"\x80\x04.",
        b"0.",
        b"(.",
        b"\x8c\xff.",
        b"I" + b"9" * 50,
        b"]q\x00.",
        b"S'a\n.",
    ):
        broken.append(base64.b64encode(zlib.compress(data)).decode())
    for payload in {"a": 1}, None, 3, [1], "{}", "3", "[" * 100_000, '["x"]', "[[]]":
        broken.append(base64.b64encode(zlib.compress(pickle.dumps(payload))).decode())
    for private in broken:
        row = {**ROWS["LiveCodeBench"], "private_test_cases": private}
        assert outcome(path, row, "private_test_cases") == "refused", private[:40]


# ------------------------------------------------------------------------------------------------------------ line ends

ODD = ["\u2028", "\u2029", "\x85", "\x0c", "\x0b", "\x1c", "\x1d", "\x1e", "\r"]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_only_line_feeds_end_a_line_of_data(tmp_path, odd, ascii_only):
    value, path = f"a{odd}b", tmp_path / "rows.jsonl"
    rows = [
        {"question": value, "tests": [{"input": value, "output": value}], "solutions": [f"# {value}"]},
        {
            "question": value,
            "tests": [{"fn_name": "f", "args": json.dumps(value) + "\n1", "output": json.dumps(value)}],
        },
        {"question": "q", "input_output": json.dumps({"inputs": [[value, "c"]], "outputs": [value]})},
        {
            "question_content": value,
            "public_test_cases": json.dumps([{"input": json.dumps([value], ensure_ascii=False), "output": "1"}]),
            "private_test_cases": "[]",
            "metadata": '{"func_name": "f"}',
        },
    ]
    path.write_bytes("\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows).encode())
    assert read_rows(str(path)) == rows
    plain, call, apps, live = load_problems(str(path))
    assert (plain.question, plain.tests, plain.solutions) == (value, tuple(rows[0]["tests"]), (f"# {value}",))
    assert (call.tests[0]["args"], call.tests[0]["expected"]) == ([value, 1], value)
    assert (apps.tests[0]["input"], apps.tests[0]["output"]) == (f"{value}\nc", value)
    assert live.tests[0]["args"] == [[value]]
