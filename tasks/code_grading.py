"""Verdicts on programs.

Only the *input* of a test goes into the sandbox, and data of exact builtin types (`to_data`) comes back. So a program
that forges output, patches `print` or returns objects that claim to equal everything gives an answer, never a verdict.
"""

import importlib
import inspect
import json
import marshal
import re
import time
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from envs import InfraError
from tasks.code_data import Problem, Test, normal_tests
from tasks.code_values import NOT_DATA, distinct, from_data, same_output, same_value, to_data
from tasks.fences import shorten
from tasks.sandbox import run_many, run_program

GOLDEN_TESTS, SOLUTIONS = 50, 5  # of a problem: more hardly ever change a verdict
SECONDS = {True: 3.0, False: 6.0}  # is a function asked for? -> the default limit
ALL_SECONDS = 30.0  # for all tests of a program that reads standard input
PATIENCE = 3  # timeouts of such a program; new processes for a function that crashes
SHOWN = 300  # characters of what came back, for feedback

# Modules that LeetCode imports for a program. Where two have a name, the later one gives it.
MODULES = "sys json io time string re random statistics fractions decimal datetime copy operator typing enum "
MODULES += "dataclasses array bisect heapq functools itertools collections math"
USUAL = {  # such a name -> the module that has it, or that it is
    name: module.__name__
    for module in map(importlib.import_module, MODULES.split())
    for name in getattr(module, "__all__", None) or dir(module)
} | {name: name for name in MODULES.split()}

# The program around a function. The first line of its input is the job, every further one the arguments of a test, for
# which it writes one line, [status, value]. A crash takes no earlier line with it.
FUNCTION = f"""
import _signal, builtins, marshal, os, sys, time  # signal and json take longer than most programs
from _json import encode_basestring_ascii, make_encoder
{inspect.getsource(to_data)}
(code, given, name, usual, seconds), *inputs = [marshal.loads(bytes.fromhex(line)) for line in sys.stdin]
end = time.monotonic() + seconds
channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the program prints is no answer
as_json = make_encoder(None, None, encode_basestring_ascii, None, ":", ",", False, False, True)

def answer(function, *args):
    try:
        status, value = "ok", to_data(function(*args))
    except MemoryError:
        status, value = "memory", "MemoryError"
    except BaseException as error:
        status, value = "error", f"{{type(error).__name__}}: {{error}}"[-{SHOWN}:]
    return "".join(as_json([status, value], 0))

def load():
    modules = {{word: __import__(source) for word, source in usual.items()}}
    found = {{word: module if word == usual[word] else getattr(module, word) for word, module in modules.items()}}
    space["__builtins__"] = found | vars(builtins)
    for text in (given, code):
        exec(compile(text, "solution.py", "exec", dont_inherit=True), space)

def call(args):
    owner = space["Solution"]() if hasattr(space.get("Solution"), name) else module  # no helper of the method's name
    return getattr(owner, name)(*args)

module = sys.modules["solution"] = type(sys)("solution")
space = vars(module)
failure = answer(load)
for place, args in enumerate(inputs, start=1):
    left = max(end - time.monotonic(), 0.001)
    # A test that hangs does not take the time of the others.
    _signal.setitimer(_signal.ITIMER_REAL, left / 2 if place < len(inputs) else left)
    print(answer(call, args) if failure == '["ok",null]' else failure, file=channel, flush=True)
os._exit(0)  # to tear the interpreter down takes longer than the tests
"""


class Grade(NamedTuple):
    score: float  # share of tests passed
    passed: bool  # all of them
    statuses: tuple[str, ...]  # of each test: "ok", "wrong" or what stopped the run (`sandbox.Result`)
    outputs: tuple[str, ...]  # what came back, shortened, for feedback


def grade_program(code: str, tests: Sequence[dict[str, Any]], timeout: float = 0.0) -> Grade:
    """Run a program on tests (see `normal_tests`). ValueError for other forms, InfraError when the sandbox fails.

    A function: one process for all tests, `timeout` seconds in all (0: SECONDS). After a crash, or a test that takes
    half of the seconds left, a new process goes on with the next test, PATIENCE times. A program: a process and
    `timeout` seconds for each test, until PATIENCE of them ran out of time or ALL_SECONDS are over. Tests that are not
    run have the status of what ended the run.
    """
    if not tests:
        raise ValueError("no verdict without tests")
    tests = normal_tests(tests)
    function = "fn_name" in tests[0]
    timeout = timeout or SECONDS[function]
    seconds, patience = (timeout, PATIENCE + 1) if function else (ALL_SECONDS, PATIENCE)
    end, replies = time.monotonic() + seconds, list[Reply]()
    while len(replies) < len(tests) and patience and time.monotonic() < end:
        rest = tests[len(replies) :]
        found, stopped = call(code, rest, end) if function else _run(code, rest, end, timeout)
        if found[-1][0] == "infra":
            raise InfraError(found[-1][2])
        replies += found
        patience -= stopped
    ended = replies[-1][0] if replies and replies[-1][0] != "ok" else "timeout"
    replies += [(ended, None, "")] * (len(tests) - len(replies))
    statuses = tuple(
        "wrong" if status == "ok" and not is_right(test, value) else status
        for test, (status, value, _) in zip(tests, replies, strict=True)
    )
    score = statuses.count("ok") / len(tests)
    return Grade(score, score == 1.0, statuses, tuple(shown for _, _, shown in replies))


Reply = tuple[str, Any, str]  # status, text or value, and what people see


def _run(code: str, tests: Sequence[Test], end: float, timeout: float) -> tuple[list[Reply], bool]:
    """Replies to the first tests, and whether the last took too long."""
    results = run_many(code, [test["input"] for test in tests], timeout, end)
    replies = [(status, out, shorten(out if status == "ok" else err.strip(), SHOWN)) for status, out, err in results]
    return replies, results[-1].status == "timeout"


def call(code: str, tests: Sequence[Test], end: float) -> tuple[list[Reply], bool]:
    """A function's replies to the first of these tests, and whether it crashed."""
    usual = {word: USUAL[word] for word in re.findall(r"\w+", code) if word in USUAL}
    left = end - time.monotonic()
    job = (code, tests[0].get("given", ""), tests[0]["fn_name"], usual, left)
    lines = [marshal.dumps(line).hex() for line in (job, *(test["args"] for test in tests))]
    result = run_program(FUNCTION, "\n".join(lines), left)
    answers = result.stdout.split("\n")[:-1]
    replies = list(map(_reply, answers[: len(tests)]))
    # After too much output a new process has room again.
    crashed = len(replies) < len(tests) and not (result.status == "output" and answers)
    if crashed:
        status = "error" if result.status == "ok" else result.status
        replies.append((status, None, result.stderr.strip()[-SHOWN:]))
    return replies, crashed


def _reply(line: str) -> Reply:
    try:
        status, value = json.loads(line)
        if status == "ok":
            value = from_data(value)
            return "ok", value, shorten(repr(value) if len(line) < 10 * SHOWN else line, SHOWN)
        return ("memory" if status == "memory" else "error"), None, str(value)[-SHOWN:]
    except NOT_DATA:
        return "error", None, shorten(line, SHOWN)


def is_right(test: Test, value: Any) -> bool:
    """May a program have printed this text, or returned this value?"""
    answers = [test["expected" if "fn_name" in test else "output"], *test.get("accept", ())]
    if "fn_name" not in test:
        return any(same_output(answer, value) for answer in answers)
    if test.get("compare") == "truth":
        return bool(value) == bool(answers[0])
    try:
        if test.get("compare") == "set" and not isinstance(value, (str, dict)):
            return distinct(answers[0]) == distinct(value)
        return any(same_value(answer, value, test.get("atol", 0.0)) for answer in answers)
    except NOT_DATA:  # no collection, or one that no set can hold
        return False


def golden_tests(problem: Problem) -> tuple[Test, ...]:
    return problem.tests[:GOLDEN_TESTS]


@cache
def reference_solution(problem: Problem, timeout: float = 0.0) -> str | None:
    """The first of SOLUTIONS that passes the golden tests: data sets list wrong ones too."""
    tests = golden_tests(problem)
    return next((code for code in problem.solutions[:SOLUTIONS] if grade_program(code, tests, timeout).passed), None)
