"""Rows of HumanEval, MBPP and MBPP+, whose tests are code, become rows of the plain format, whose tests are data.

The code runs once, in the sandbox, behind the reference solution (see `record`); its calls become exact tests.
"""

import ast
import copy
import inspect
import json
import math
import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tasks.code_data import Problem, normal_tests
from tasks.code_grading import GOLDEN_TESTS, SOLUTIONS, call, golden_tests, grade_program
from tasks.code_values import from_data, to_data
from tasks.data import Row

SLOW, TOGETHER = 0.1, 0.5  # seconds that the reference may take for a test, and for all tests of a problem
# MBPP+ problems with more right answers than a list can hold (evalplus/eval/__init__.py), and those where any order is
# right, which no assertion says
OPEN = ("are_equivalent", "sum_div", "surface_Area")
ANY_ORDER = ("find_dissimilar", "Diff", "intersection_array", "larg_nnum", "extract_singly", "common_in_nested_lists")


def plain_row(problem: Problem) -> Row:
    """A problem as a row of the plain format, with the tests and solutions that are used."""
    return {
        "question": problem.question,
        "tests": list(map(exact, golden_tests(problem))),
        "examples": list(map(exact, problem.examples)),
        "solutions": problem.solutions[:SOLUTIONS],
        "given": problem.tests[0].get("given", "") if problem.tests else "",
    }


def exact(test: Row) -> Row:
    """A test as JSON that loses nothing."""
    if "fn_name" not in test:
        return test
    data = ("args", "expected", "accept")
    values = {key: to_data(value) if key in data else value for key, value in test.items() if key != "given"}
    return values | {"exact": True}


def record(name, checks, inputs):
    """The calls of `name` that checks and inputs make, as JSON: [[place of the check, args, result], ...]."""
    random.seed(0)
    function, shape, used, place = globals()[name], None, 0.0, 0
    calls: list[list] = []

    def recorded(*args):
        nonlocal shape, used
        sent, start = to_data(list(args)), time.process_time()
        shape = shape or copy.deepcopy(args)
        result = function(*args)
        seconds = time.process_time() - start
        call = [place, sent, to_data(result)]
        used += seconds
        if seconds <= SLOW and len(json.dumps(call)) <= 10_000 and all(sent != other for _, other, _ in calls):
            calls.append(call)
        return result

    def like(value, model):  # JSON has neither tuples nor numbers as keys: the first call shows where they were
        kinds = type(value), type(model)
        if kinds == (dict, dict) and model and all(type(key) is int for key in model):
            return {int(key): entry for key, entry in value.items()}
        if kinds not in ((list, list), (list, tuple), (list, set)) or not model:
            return tuple(value) if kinds == (list, tuple) else value
        parts = list(model)
        return type(model)(like(item, parts[min(n, len(parts) - 1)]) for n, item in enumerate(value))

    checking = {"math": math, **globals(), name: recorded}
    for place, check in enumerate(checks):  # noqa: B007 (`recorded` reads it)
        exec(check, checking)
    for args in inputs:
        if len(calls) < GOLDEN_TESTS and used < TOGETHER:
            try:
                recorded(*map(like, args, shape), *args[len(shape) :])  # type: ignore[arg-type]
            except Exception:  # an input that the reference rejects is no test
                continue
    return json.dumps(calls[:GOLDEN_TESTS])


RECORD = f"SLOW, TOGETHER, GOLDEN_TESTS = {SLOW}, {TOGETHER}, {GOLDEN_TESTS}\n"
RECORD += inspect.getsource(to_data) + inspect.getsource(record)


def compared(check: str, name: str, args: list, expected: Any) -> Row:
    """How test code compares the result of a call, as fields of a test. ValueError for other ways."""
    if name in ANY_ORDER:
        return {"compare": "set"}
    if name == "find_zero":  # HumanEval/32 takes any root
        return {"accept": [float(root.real) for root in np.roots(args[0][::-1]) if abs(root.imag) < 1e-9]}
    check = ast.unparse(ast.parse(check)).replace("\n", " ")  # in one spelling
    ways: dict[str, Callable[[re.Match], Row]] = {
        rf"(?!assert ).*|assert {name}\(.*\) (==|is) .*": lambda found: {},
        rf"assert (not )?{name}\(.*\)": lambda found: {"compare": "truth"},
        r"assert set\(.*\) == set\(.*\)": lambda found: {"compare": "set"},
        r"assert math\.isclose\(.*, rel_tol=([\d.e-]+)\)": lambda found: {"atol": float(found[1]) * abs(expected)},
        r"assert (?:math\.f)?abs\(.*\) <=? ([\d.e-]+)": lambda found: {"atol": float(found[1])},
        rf"assert round\({name}\(.*, (\d+)\) == .*": lambda found: {"atol": 0.5 * 10.0 ** -int(found[1])},
    }
    for pattern, fields in ways.items():
        if found := re.fullmatch(pattern, check):
            return fields(found)
    raise ValueError(f"compares in a way of its own: {check}")


def convert(
    question: str, name: str, code: str, checks: Sequence[str], shown: int = 0, setup: str = "",
    inputs: Sequence[list] = (), given: str = "", atol: float = 0.0,
) -> Row:  # fmt: skip
    """A row whose tests are the calls of `name` with these `inputs` or that `checks` make (with the names of `setup`).
    The first `shown` checks stand in the question. atol: the row's own tolerance of floats.

    ValueError when more answers are right than a test can list, or the reference solution `code` fails its tests.
    """
    if name in OPEN:
        raise ValueError("more answers are right than a test can list")
    job = {"fn_name": "record", "args": [name, list(checks), list(inputs)], "given": f"{code}\n{setup}"}
    ((status, found, message), *_), _ = call(RECORD, [job], time.monotonic() + 60)
    calls = json.loads(found) if status == "ok" else []
    if not calls:
        raise ValueError(f"no test from its reference solution ({status} {message})")
    tests = []
    for place, *values in calls:
        args, expected = from_data(values)
        check = checks[0 if inputs else place]  # a row of MBPP+ has one way for all its tests
        more = {"atol": atol} if atol else compared(check, name, args, expected)
        tests.append({"fn_name": name, "args": args, "expected": expected, "given": given, **more})
    golden = tuple(normal_tests(tests))
    if not (grade := grade_program(code, golden)).passed:
        raise ValueError(f"its reference solution does not pass its tests: {grade.statuses}")
    examples = tuple(test for test, (place, *_) in zip(golden, calls, strict=True) if place < shown)
    return plain_row(Problem(question, golden, name, examples, (code,)))


def _human_eval(row: Row) -> Row:
    name, prompt = row["entry_point"], row["prompt"]
    given = "\n".join(ast.unparse(node) for node in ast.parse(prompt).body if getattr(node, "name", "") != name)
    question = f"Complete {name}. The code around it need not be repeated.\n\n```python\n{prompt.strip()}\n```"
    return convert(question, name, prompt + row["canonical_solution"], [f"{row['test']}\ncheck({name})"], given=given)


def _mbpp(row: Row) -> Row:
    checks, defined = row["test_list"], re.findall(r"^def (\w+)\(", row["code"], re.M)
    name = next(name for name in reversed(defined) if re.search(rf"\b{name}\(", checks[0]))
    setup = "\n".join([*row.get("test_imports", ()), row.get("test_setup_code", "")])
    return convert(f"{row.get('text') or row['prompt']}\n{checks[0]}", name, row["code"], checks, 1, setup)


def _mbpp_plus(row: Row) -> Row:
    question, name, code = row["prompt"].strip().strip('"').strip(), row["entry_point"], row["canonical_solution"]
    shown, inputs = re.findall(r"^assert .*", question, re.M), row["base_input"] + (row["plus_input"] or [])
    checks = [*shown, row.get("assertion") or ""]
    return convert(question, name, code, checks, len(shown), inputs=inputs, atol=row.get("atol") or 0.0)


READERS = {"humaneval": _human_eval, "mbpp": _mbpp, "mbppplus": _mbpp_plus}
