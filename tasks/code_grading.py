"""Verdicts on programs: run them in the sandbox on test inputs, and compare the results outside it.

The verdict is the parent's: a test sends its *input* into the sandbox, what the program printed or returned comes back
as data, and only here is it compared with the expected answer. The child never holds an expected answer, so a program
that forges its output, patches `json` or `print`, or returns objects that claim to equal everything can only give an
answer, never a verdict. Function results travel as JSON of exact builtin types (`to_data`); anything else is a failure.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from envs import InfraError
from tasks.code_data import Checker, Problem, Test, normal_test
from tasks.code_values import distinct, freeze, from_data, number_key, read_reply, same_output, same_value, to_data
from tasks.fences import shorten
from tasks.sandbox import run_many, run_program

GOLDEN_TESTS = 50  # tests used per problem: more would cost time and hardly ever change a verdict
PATIENCE = 3  # a program that ran into the time limit this often is not run on the remaining tests
SHOWN = 300  # characters of what came back from a test that are kept for feedback

# ------------------------------------------------------------------------------------------- programs around functions

# The program around a function under test. Its input is the job; its output is the result, as data. What
# the solution prints goes to stderr.
_CALL = (
    "from __future__ import annotations\nimport ast, collections, json, math, os, re, sys, typing\n"
    + inspect.getsource(distinct)
    + inspect.getsource(to_data)
    + inspect.getsource(from_data)
    + """
job = json.loads(sys.stdin.read())
channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
module = sys.modules["solution"] = type(sys)("solution")
module.__dict__.update({name: getattr(typing, name) for name in typing.__all__})
exec(compile(job["code"], "solution.py", "exec", dont_inherit=True), module.__dict__)
owner = module if hasattr(module, job["fn_name"]) else module.Solution()
function = getattr(owner, job["fn_name"])
"""
)
PRELOAD = ("ast", "collections", "json", "math", "re", "typing")
# os._exit: tearing the interpreter down would take longer than everything before.
CALL = _CALL + "json.dump(to_data(function(*from_data(job['args']))), channel)\nchannel.close()\nos._exit(0)\n"

# The code of a data set that tests its reference solution, statement by statement.
_CHECK = """
def run(candidate, last):
    space = {"math": math, **module.__dict__, "candidate": candidate, job["fn_name"]: candidate}
    for place, statement in enumerate(ast.parse(job["check"]).body[: last + 1]):
        if job["only"] and place < last and isinstance(statement, ast.Assert):
            continue
        yield place
        exec(compile(ast.Module([statement], []), "check.py", "exec", dont_inherit=True), space)
"""

# With the reference itself: its calls become our tests.
RECORD = (
    _CALL
    + _CHECK
    + inspect.getsource(number_key)
    + """
import random
random.seed(0)
calls, place = [], None
def candidate(*args):
    sent = to_data(list(args))
    result = function(*args)
    call = {"args": sent, "expected": to_data(result), "place": place}
    if len(json.dumps(call)) <= 10_000 and len(calls) < job["limit"]:
        calls.append(call)
    return result
def like(value, model):
    if type(value) is dict and type(model) is dict and model:
        numbers = all(type(key) in (int, float) for key in model)
        return {number_key(key) if numbers else key: entry for key, entry in value.items()}
    if type(value) is not list or type(model) not in (list, tuple, set) or not model:
        return tuple(value) if type(value) is list and type(model) is tuple else value
    parts = list(model)
    return type(model)(like(item, parts[min(place, len(parts) - 1)]) for place, item in enumerate(value))
for place in run(candidate, sys.maxsize - 1):
    pass
place, shape = None, from_data(calls[0]["args"]) if calls else []
for args in job["inputs"]:
    if len(calls) == job["limit"]:
        break
    try:
        candidate(*[like(value, model) for value, model in zip(args, shape)], *args[len(shape):])
    except Exception:
        pass  # the data set holds inputs that its reference rejects: no test
json.dump(calls, channel)
channel.close()
"""
)

# With results that were recorded: does one assertion hold for them?
REPLAY = (
    _CALL
    + _CHECK
    + """
results = iter(from_data(job["results"]))
for place in run(lambda *args: next(results), job["place"]):
    pass
"""
)


@dataclass(frozen=True)
class Grade:
    """score: share of tests passed; statuses: one a test, "ok", "wrong" or what stopped the run (`sandbox.Result`)."""

    score: float
    passed: bool  # all of them
    statuses: tuple[str, ...]
    outputs: tuple[str, ...]  # what came back, shortened: for feedback, not for judging
    values: tuple[Any, ...] = ()  # what came back as data: the text, or the value that a function returned


def grade_program(code: str, tests: Sequence[Test], timeout: float = 10.0, checker: Checker | None = None) -> Grade:
    """Run a program on tests, each in its own process; `timeout` is in seconds per test.

    Tests: {"input": str, "output": str} for programs, {"fn_name", "args": list, "expected"} for functions and methods
    of `class Solution` (or as text, one JSON value a line, under "args" or "input" and "output"). Further fields of a
    test: "accept", a list of other right answers; of calls also "atol", the tolerance of floats, and "exact": the
    expected value did not come through JSON (see `same_value`).

    Raises ValueError on anything else and InfraError when the sandbox fails. After PATIENCE timeouts the remaining
    tests are not run and count as timeouts. A reply that is not data, whatever it is, has the status "error".
    """
    if not tests:
        raise ValueError("a program cannot be graded without tests")
    tests = [normal_test(test) for test in tests]
    calls = "fn_name" in tests[0]
    if any(("fn_name" in test) != calls for test in tests):
        raise ValueError("tests of one program must be all of functions or all of programs")
    inputs = [
        json.dumps({"code": code, "fn_name": test["fn_name"], "args": to_data(test["args"])})
        if calls
        else test["input"]
        for test in tests
    ]
    statuses, outputs, values = [], [], []
    with contextlib.closing(run_many(CALL if calls else code, inputs, timeout, PRELOAD if calls else ())) as results:
        for test, result in zip(tests, results, strict=False):
            if result.status == "infra":
                raise InfraError(result.stderr)
            status, value, output = result.status, None, result.stderr.strip()[-SHOWN:]
            if status == "ok":
                status, value, output = _judge(test, result.stdout, calls, checker)
            statuses.append(status)
            values.append(value)
            outputs.append(output)
            if statuses.count("timeout") == PATIENCE:
                break
    missing, right = len(tests) - len(statuses), statuses.count("ok")
    return Grade(
        score=right / len(tests),
        passed=right == len(tests),
        statuses=(*statuses, *["timeout"] * missing),
        outputs=(*outputs, *[""] * missing),
        values=(*values, *[None] * missing),
    )


def _judge(test: Test, stdout: str, calls: bool, checker: Checker | None) -> tuple[str, Any, str]:
    """Status, data and its shortened form of a run that ended well."""
    if not calls:
        right = any(same_output(answer, stdout) for answer in (test["output"], *test.get("accept", ())))
        value, shown = stdout, shorten(stdout, SHOWN)
    else:
        try:
            value = read_reply(stdout)
            shown = shorten(repr(value) if len(stdout) < 10 * SHOWN else stdout, SHOWN)
            right = _right_value(test, value)
        except (ValueError, TypeError, RecursionError):  # no data in the channel, or none to compare
            return "error", None, shorten(stdout, SHOWN)
    if checker is not None:
        try:
            right = checker(test, value)
        except Exception as error:  # made for what a right program gives: the value is none of that
            return "error", value, f"{shown} (the checker raised {error!r})"
    return "ok" if right else "wrong", value, shown


def _right_value(test: Test, value: Any) -> bool:
    answers = [test["expected"], *test.get("accept", ()), *(test["expected"] if test.get("wrapped") else ())]
    exact, atol = test.get("exact", False), test.get("atol", 0.0)
    if any(same_value(answer, value, exact, atol) for answer in answers):
        return True
    return "assertion" in test and _assertion_holds(test["assertion"], value)


def _assertion_holds(assertion: dict[str, Any], value: Any) -> bool:
    """Whether the data set's own assertion holds for this result (a tolerance, any order, ...)."""
    results, index = list(assertion["results"]), assertion["index"]
    results[index] = to_data(value)
    result = run_program(REPLAY, json.dumps({**assertion, "results": results}), timeout=1.0)
    if result.status == "infra":
        raise InfraError(result.stderr)
    return result.status == "ok"


# ------------------------------------------------------------------------------------------------------------- problems


@cache
def golden_tests(problem: Problem) -> tuple[Test, ...]:
    """The tests that decide: the given ones, or the calls of the data set's own test code with the reference's results.

    At most GOLDEN_TESTS, the first ones; recorded calls of more than 10,000 characters are left out. ValueError, naming
    the row, when the reference fails the data set's test code.
    """
    if problem.tests:
        given = problem.tests[:GOLDEN_TESTS]
        lossy = problem.fn_name and not all(test.get("exact") or "accept" in test for test in given)
        return _restored(given, problem) if lossy else given
    job = {"code": problem.solutions[0], "fn_name": problem.fn_name, "check": problem.check, "only": False}
    (result,) = run_many(RECORD, [json.dumps({**job, "inputs": problem.inputs, "limit": GOLDEN_TESTS})], 60.0)
    if result.status == "infra":
        raise InfraError(result.stderr)
    calls = json.loads(result.stdout) if result.status == "ok" else []
    if not calls:
        reason = result.stderr.strip()[-500:] or "no call of the function"
        raise ValueError(f"{problem.source}: no tests from the reference solution ({problem.fn_name}: {reason})")
    own = {"exact": True, "atol": problem.atol} if problem.atol else {"exact": True}
    tests = [{"fn_name": problem.fn_name, **own, **_from_call(call)} for call in calls]
    if not problem.atol and problem.checker is None:  # else that is how the data set compares
        for place, statement in enumerate(ast.parse(problem.check).body):
            made = [number for number, call in enumerate(calls) if call["place"] == place]
            if isinstance(statement, ast.Assert) and not _plain_equality(statement.test, problem.fn_name):
                replay = {
                    **job,
                    "only": True,
                    "place": place,
                    "results": [calls[number]["expected"] for number in made],
                }
                for index, number in enumerate(made):
                    tests[number]["assertion"] = {**replay, "index": index}
    return tuple(tests)


def _from_call(call: dict) -> Test:
    return {"args": from_data(call["args"]), "expected": from_data(call["expected"])}


def _plain_equality(test: ast.expr, fn_name: str | None) -> bool:
    """f(...) == something: comparing with the reference's result says the same."""
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.Call):
        return False
    function = test.left.func
    return isinstance(function, ast.Name) and function.id in (fn_name, "candidate") and isinstance(test.ops[0], ast.Eq)


def _restored(tests: Sequence[Test], problem: Problem) -> tuple[Test, ...]:
    """Tests with what JSON lost, where a solution that passes shows it: tuples, sets, keys that are numbers, bytes, and
    whether results were recorded inside a list."""
    for restore in (None, *_KINDS):
        args = [[_restore(arg, restore) for arg in test["args"]] for test in tests]
        if restore and args == [test["args"] for test in tests]:
            continue
        tried = [{**test, "args": given} for test, given in zip(tests, args, strict=True)]
        for code in problem.solutions[: 1 if restore else 5]:
            grade = grade_program(code, tried, 10.0, problem.checker)
            if grade.passed:
                return tuple(_exact(test, value) for test, value in zip(tried, grade.values, strict=True))
    return tuple(tests)


def _exact(test: Test, value: Any) -> Test:
    test = {key: entry for key, entry in test.items() if key != "wrapped"}
    return test if "accept" in test else {**test, "expected": value, "exact": True}


_KINDS = (int, tuple, set, bytes)


def _restore(value: Any, kind: type | None) -> Any:
    """`value` with its keys as numbers (kind int), its lists as tuples or sets, or its texts as bytes."""
    if kind is None:
        return value
    if isinstance(value, dict):
        entries = {key: _restore(entry, kind) for key, entry in value.items()}
        return {number_key(key): entry for key, entry in entries.items()} if kind is int else entries
    if isinstance(value, list):
        items = [_restore(item, kind) for item in value]
        return set(freeze(items, frozenset)) if kind is set else tuple(items) if kind is tuple else items
    return value.encode() if kind is bytes and isinstance(value, str) else value


@cache
def reference_solution(problem: Problem, timeout: float) -> str | None:
    """The first of at most five solutions that passes the golden tests (data sets list wrong ones too), or None."""
    tests = golden_tests(problem)
    passing = (code for code in problem.solutions[:5] if grade_program(code, tests, timeout, problem.checker).passed)
    return next(passing, None)


def check_references(problems: Sequence[Problem], workers: int) -> None:
    """Run every reference solution that golden tests come from, before the first step. ValueError, naming source and
    row, for one that fails; InfraError when the sandbox does. `golden_tests` caches the results."""
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(golden_tests, [problem for problem in problems if not problem.tests]):
            pass
