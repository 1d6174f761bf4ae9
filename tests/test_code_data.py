"""Rows of every format are read unchanged, or refused by source and row."""

import base64
import json
import os
import pickle
import re
import zlib
from pathlib import Path

import pytest

from tasks.code_data import EXAMPLES, load_problems
from tasks.code_env import CodeEnv, golden_tests, grade_program, reference_solution
from tasks.code_grading import GOLDEN_TESTS
from tasks.data import read_rows
from tasks.sandbox import OUTPUT

CALLS = [{"input": "1\n[2]", "output": "[3]", "testtype": "functional"}]
PLUS_ONE = {"input": "7", "output": "8"}
CALL = {"fn_name": "f", "args": [7], "expected": 8}
EXACT = {"fn_name": "f", "args": [{"tuple": [{"set": [3]}]}], "expected": {"set": [3]}, "exact": True}
SOLUTION = "class Solution:\n    def add(self, a, b): return [a + b[0]]"
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
        "solutions": {"language": [1, 3, 3], "solution": ["print input()", "print(8)", "print(int(input())+1)"]},
    },
    "APPS": {
        "question": "Add one.",
        "input_output": json.dumps({"inputs": ["7\n", ["1", "2"]], "outputs": ["8\n", ["2"]]}),
        "solutions": json.dumps(["print(int(input())+1)"]),
    },
    "APPS calls": {
        "question": "Add.",
        "input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2], [2, 3]], "outputs": [[3], [5]]}),
        "solutions": json.dumps(["def add(a, b): return a + b"]),
        "starter_code": "def add(a, b):",
    },
    "plain": {
        "question": "Add one.",
        "tests": [{**PLUS_ONE, "accept": ["8.0"]}],
        "examples": [PLUS_ONE],
        "solutions": ["print(int(input())+1)"],
    },
    "plain calls": {
        "question": "Add one.",
        "tests": [{"fn_name": "f", "args": [7], "expected": 8}, {"fn_name": "f", "input": "7", "output": "8"}],
        "solutions": ["def f(x): return x + one"],
        "given": "one = 1",
    },
    "exact values": {
        "question": "First.",
        "tests": [EXACT],
        "solutions": ["def f(pair): return pair[0] & {3}"],
    },
}


def load(tmp_path, *rows):
    path = tmp_path / f"rows{len(list(tmp_path.iterdir()))}.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return load_problems(str(path))


@pytest.mark.parametrize("name", ROWS)
def test_formats(tmp_path, name):
    (problem,) = load(tmp_path, ROWS[name])
    assert problem is load_problems(str(tmp_path / "rows0.jsonl"))[0], "read once in a process"
    assert len(golden_tests(problem)) == len(problem.tests) >= 1
    reference = reference_solution(problem)
    if name == "LiveCodeBench":
        assert (reference, problem.fn_name, len(problem.examples)) == (None, "add", 1)
        assert grade_program(SOLUTION, problem.tests).passed
    else:
        assert reference in problem.solutions
        assert not grade_program("def add(a, b): return 0\nf = add\nprint(0)", problem.tests).passed
    if name == "CodeContests":
        assert reference == "print(int(input())+1)", "the first Python 3 solution that passes"
    assert all(type(message["content"]) is str for message in CodeEnv(problems=[problem]).observe("coder"))


def test_the_examples_are_right_and_those_of_the_page_load(tmp_path):
    page = (Path(__file__).parent.parent / "docs" / "data.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```json code\n(.*?)```$", page, re.MULTILINE | re.DOTALL)
    for problem in (*EXAMPLES, *load(tmp_path, *block.splitlines())):
        assert reference_solution(problem) == (problem.solutions[0] if problem.solutions else None)
    assert f"The first {GOLDEN_TESTS} golden tests" in page


WRAPPED = [  # results of an APPS row, what a program returns for the first, its score
    ([[0, 1]], "[0, 1]", 1),
    ([[[0, 1]]], "[0, 1]", 1),
    ([[[0, 1]]], "0", 0),
    ([7], "7", 1),
]


@pytest.mark.parametrize(("outputs", "returned", "score"), WRAPPED)
def test_results_of_apps_are_unwrapped_from_lists_of_one_only(tmp_path, outputs, returned, score):
    calls = {"fn_name": "f", "inputs": [[place] for place in range(len(outputs))], "outputs": outputs}
    (problem,) = load(tmp_path, {"question": "q", "input_output": json.dumps(calls)})
    assert grade_program(f"def f(x): return {returned}", problem.tests[:1]).score == score


BAD = {  # what is wrong -> a row, a part of the message
    "no format": ({"a": 1}, r"fields \['a'\] fit no known format"),
    "another type": ({**ROWS["plain"], "question": 5}, "TypeError: .*expected str"),
    "a test of no form": ({**ROWS["plain"], "tests": [{"input": "1"}]}, "KeyError.*output"),
    "too deep": ({**ROWS["APPS"], "input_output": "[" * 100_000}, "nested too deeply"),
    "a key twice": ({**ROWS["APPS"], "input_output": '{"inputs": [], "inputs": []}'}, "'inputs'.*stands twice"),
    "inside of text": ({**ROWS["APPS"], "input_output": '{"inputs": ["\\uDFff"], "outputs": [""]}'}, "surrogates"),
    "an unknown value": ({**ROWS["exact values"], "tests": [{**EXACT, "args": [{"a": []}]}]}, "'a'"),
    "answers as text": ({**ROWS["plain"], "tests": [{**PLUS_ONE, "accept": "8.0"}]}, "'accept' must be a list"),
    "a program as text": ({**ROWS["plain"], "solutions": "print(8)"}, "'solutions' must be a list"),
    "no tolerance": ({**ROWS["plain calls"], "tests": [{**CALL, "atol": float("nan")}]}, "'atol' a number"),
    "given is no text": ({"question": "q", "tests": [{**CALL, "given": 5}]}, "TypeError"),
    "an answer too long": ({**ROWS["plain"], "tests": [{"input": "", "output": "x" * OUTPUT}]}, "1,048,576 bytes"),
    "raw HumanEval": ({"prompt": "", "canonical_solution": "", "test": ""}, r"fit no known format \(docs/data.md"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_refused_by_source_and_row(tmp_path, name):
    row, message = BAD[name]
    with pytest.raises(ValueError, match=rf"rows0\.jsonl', (row|line) 2\b.*{message}"):
        load(tmp_path, ROWS["plain"], row)


def test_rows_without_tests_are_counted(tmp_path):
    with pytest.warns(UserWarning, match="1 of 2 rows have no tests"):
        assert len(load(tmp_path, ROWS["plain"], {"question": "q", "tests": []})) == 1
    with pytest.raises(ValueError, match="no row has tests"):
        load(tmp_path, {"question": "q", "input_output": ""})


class Evil:
    def __reduce__(self):
        return os.system, ("echo broken > evil",)


def test_private_tests_are_text_and_their_pickle_is_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pack = lambda value: base64.b64encode(zlib.compress(value)).decode()  # noqa: E731
    whole = pack(pickle.dumps(json.dumps(CALLS)))
    (problem,) = load(tmp_path, {**ROWS["LiveCodeBench"], "private_test_cases": whole})
    assert problem.tests[1]["args"] == [1, [2]]
    spoiled = [whole[: len(whole) // 2], *map(pack, [b"", b".", b"\x80\x04.", b"(.", b"I" + b"9" * 50, b"S'a\n."])]
    spoiled += [pack(pickle.dumps(value)) for value in (Evil(), [Evil()], ["text in a list"], 3, "3", "[[]]")]
    for private in spoiled:
        with pytest.raises(ValueError, match=r"rows\d+\.jsonl', row 1: "):
            load(tmp_path, {**ROWS["LiveCodeBench"], "private_test_cases": private})
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("ascii_only", [True, False])
def test_only_line_feeds_end_a_line_of_data(tmp_path, ascii_only):
    value = "a\u2028b\x85c\x0cd\x1ce\rf"
    call = {"fn_name": "f", "args": json.dumps(value) + "\n1", "output": json.dumps(value)}
    lists = json.dumps({"inputs": [[value, "c"]], "outputs": [value]})
    rows = [{"question": value, "tests": [call]}, {"question": "q", "input_output": lists}]
    called, apps = load(tmp_path, *(json.dumps(row, ensure_ascii=ascii_only) for row in rows))
    assert read_rows(str(tmp_path / "rows0.jsonl")) == rows
    assert called.question == value
    assert (called.tests[0]["args"], called.tests[0]["expected"]) == ([value, 1], value)
    assert (apps.tests[0]["input"], apps.tests[0]["output"]) == (f"{value}\nc", value)
