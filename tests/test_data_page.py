"""docs/data.md says nothing that does not hold: one example for each format, and every example loads in its own."""

import json
import re
from pathlib import Path

import pytest

from tasks import code_data, math_env
from tasks.code_grading import GOLDEN_TESTS, golden_tests, reference_solution
from tasks.math_env import math_equal
from tools import fetch

FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```\s*$", re.M)


@pytest.fixture(scope="module")
def page():
    return (Path(__file__).parent.parent / "docs" / "data.md").read_text(encoding="utf-8")


def examples(text, task):
    """The example lines of a task with the data sets they belong to: the first column of the table above them."""
    (block,) = [match for match in FENCE.finditer(text) if match[1].strip() == f"json {task}"]
    table = re.findall(r"(?:^\|.*\n)+", text[: block.start()], re.M)[-1]
    names = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    return dict(zip(names, block[2].splitlines(), strict=True))


def test_examples_of_mathematics_load(page):
    found = examples(page, "math")
    assert len(found) >= 7
    for name, line in found.items():
        problem = math_env.read_problem(json.loads(line))
        assert math_equal(gold=problem.answer, answer=problem.answer), name


def test_examples_of_code_load_in_their_own_format_and_their_solutions_pass(page, tmp_path):
    found = examples(page, "code")
    known = {name for name, _, _ in code_data.FORMATS}
    assert {name.removesuffix(" JSONL") for name in found} == known, "one example for each format"
    for name, line in found.items():
        row = json.loads(line)
        detected = next(name for name, fields, _ in code_data.FORMATS if all(field in row for field in fields))
        assert detected == name.removesuffix(" JSONL")
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        path.write_text(line, encoding="utf-8")
        (problem,) = code_data.load_problems(str(path))
        assert golden_tests(problem), name
        assert (reference_solution(problem, 6.0) is None) == (not problem.solutions), name


def test_limits_and_formats_on_the_page_are_those_of_the_code(page):
    assert f"The first {GOLDEN_TESTS} golden tests" in page
    assert set(fetch.KEEP) - {"mathematics"} <= {name for name, _, _ in code_data.FORMATS}
