"""Code: a coder and a tester work on one programming problem. Verdicts, roles and rewards; problems in `code_data.py`.

The verdict is the parent's: a test sends its *input* into the sandbox, what the program printed or returned comes back
as data, and only here is it compared with the expected answer. The child never holds an expected answer, so a program
that forges its output, patches `json` or `print`, or returns objects that claim to equal everything can only give an
answer, never a verdict. Function results travel as JSON of exact builtin types (`pack`); anything else is a failure.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import inspect
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any

from envs import InfraError, Message, Reward
from tasks.code_data import EXAMPLES, Checker, Problem, Test, load_problems, normal_test
from tasks.data import fixed_order
from tasks.sandbox import extract_code, fenced_blocks, run_many

TOLERANCE = 1e-6  # of floats, relative or absolute
GOLDEN_TESTS = 50  # tests of a problem that are used: more cost time and hardly ever change a verdict
WRITTEN_TESTS = 5  # tests that a tester may write
PATIENCE = 3  # a program that ran into the time limit this often is not run on the remaining tests


# ----------------------------------------------------------------------------------------------------------- comparison


def same_output(expected: str, printed: str) -> bool:
    """Line by line; blanks at the end of a line and empty lines at the end do not count, all other blanks do.

    Integers must be equal, floats within TOLERANCE; nan matches nothing. "2" accepts "2.0" but not "2.0000001".
    """
    wanted, got = ([line.rstrip() for line in text.rstrip().split("\n")] for text in (expected, printed))
    return len(wanted) == len(got) and all(map(_same_line, wanted, got))


def _same_line(wanted: str, got: str) -> bool:
    left, right = re.split(r"(\s+)", wanted), re.split(r"(\s+)", got)
    return len(left) == len(right) and all(map(_same_word, left, right))


_INTEGER = re.compile(r"([+-]?)0*([0-9]+)")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?inf(inity)?", re.I)  # linear time
_NAN = re.compile(r"[+-]?nan", re.I)


def _same_word(wanted: str, got: str) -> bool:
    if wanted == got:
        return not _NAN.fullmatch(wanted)
    if not (_NUMBER.fullmatch(wanted) and _NUMBER.fullmatch(got)):
        return False
    if _INTEGER.fullmatch(wanted):
        try:
            return Decimal(wanted) == Decimal(got)  # exact at any size, and never expands an exponent
        except InvalidOperation:
            return False
    return _close(float(wanted), float(got))


def _close(wanted: Any, got: Any) -> bool:
    return wanted == got or abs(wanted - got) <= TOLERANCE * max(1.0, abs(wanted)) < math.inf


def same_value(expected: Any, returned: Any) -> bool:
    """Equality of returned data: a tuple equals a list, integers exactly, floats within TOLERANCE, nan never."""
    if isinstance(expected, (list, tuple)):
        alike = isinstance(returned, (list, tuple)) and len(expected) == len(returned)
        return alike and all(map(same_value, expected, returned))
    if isinstance(expected, dict):
        alike = isinstance(returned, dict) and expected.keys() == returned.keys()
        return alike and all(same_value(value, returned[key]) for key, value in expected.items())
    if isinstance(expected, (float, complex)) and isinstance(returned, (int, float, complex)):
        try:
            return _close(expected, returned)
        except OverflowError:  # an integer beyond all floats
            return False
    return bool(expected == returned)


# -------------------------------------------------------------------------------------------------------------- grading


def pack(value):
    """JSON-able form of data of exact builtin types. TypeError for anything else. Runs in the sandbox too."""
    kind = type(value)
    if value is None or kind in (str, bool, float):
        return value
    if kind is int:
        return value if abs(value) < 2**63 else {"int": hex(value)}  # hex has no length limit
    if kind is list:
        return [pack(item) for item in value]
    if kind in (tuple, set, frozenset):
        return {kind.__name__: [pack(item) for item in value]}
    if kind in (dict, collections.Counter, collections.OrderedDict, collections.defaultdict):
        return {"dict": [[pack(key), pack(item)] for key, item in value.items()]}
    if kind is re.Match:
        return True  # that is how the result of re.match is used
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind in (bytes, bytearray):
        return {"bytes": value.hex()}
    raise TypeError(f"a result must be made of plain builtin values, not {kind.__name__}")


def unpack(value):
    """The value that `pack` packed, OrderedDict and the like as dict. ValueError or TypeError for other JSON."""
    if type(value) is list:
        return [unpack(item) for item in value]
    if type(value) is not dict:
        return value
    if len(value) != 1:
        raise ValueError("not packed by pack()")
    ((kind, item),) = value.items()
    if kind == "dict":
        return {unpack(key): unpack(entry) for key, entry in item}
    if kind in ("tuple", "set", "frozenset"):
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](unpack(entry) for entry in item)
    if kind in ("int", "bytes", "complex"):
        return int(item, 16) if kind == "int" else bytes.fromhex(item) if kind == "bytes" else complex(*item)
    raise ValueError("not packed by pack()")


# The program around a function under test. Its input is the job; its output is the packed result and nothing else: what
# the solution prints goes to stderr.
_CALL = (
    "import collections, json, math, os, re, sys, typing\n"
    + inspect.getsource(pack)
    + inspect.getsource(unpack)
    + """
job = json.loads(sys.stdin.read())
channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
module = sys.modules["solution"] = type(sys)("solution")
module.__dict__.update({name: getattr(typing, name) for name in typing.__all__})
exec(compile(job["code"], "solution.py", "exec"), module.__dict__)
owner = module if hasattr(module, job["fn_name"]) else module.Solution()
function = getattr(owner, job["fn_name"])
"""
)
PRELOAD = ("collections", "json", "math", "re", "typing")
# os._exit: tearing the interpreter down would take longer than everything before.
CALL = _CALL + "json.dump(pack(function(*unpack(job['args']))), channel)\nchannel.close()\nos._exit(0)\n"

# The same around a reference solution and the code of a data set that tests it: the calls become our tests.
RECORD = (
    _CALL
    + """
import random
random.seed(0)
calls = []
def candidate(*args):
    sent = pack(list(args))
    result = function(*args)
    call = {"args": sent, "expected": pack(result)}
    if len(json.dumps(call)) <= 10_000 and len(calls) < job["limit"]:
        calls.append(call)
    return result
def like(value, model):
    if type(value) is not list or type(model) not in (list, tuple, set) or not model:
        return tuple(value) if type(value) is list and type(model) is tuple else value
    parts = list(model)
    return type(model)(like(item, parts[min(place, len(parts) - 1)]) for place, item in enumerate(value))
space = {"math": math, **module.__dict__, "candidate": candidate, job["fn_name"]: candidate}
exec(job["check"], space)
shape = unpack(calls[0]["args"]) if calls else []
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


@dataclass(frozen=True)
class Grade:
    """score: share of tests passed; statuses: one a test, "ok", "wrong" or what stopped the run (`sandbox.Result`)."""

    score: float
    passed: bool  # all of them
    statuses: tuple[str, ...]
    outputs: tuple[str, ...]  # what came back, shortened: for feedback, not for judging


def grade_program(code: str, tests: Sequence[Test], timeout: float = 10.0, checker: Checker | None = None) -> Grade:
    """Run a program on tests, each in a process of its own; `timeout` is seconds a test.

    Tests: {"input": str, "output": str} for programs, {"fn_name", "args": list, "expected"} for functions and methods
    of `class Solution` (or as text, one JSON value a line, under "args" or "input" and "output"). Raises ValueError on
    anything else and InfraError when the sandbox fails. After PATIENCE timeouts the rest counts as timeouts, not run.
    """
    if not tests:
        raise ValueError("a program cannot be graded without tests")
    tests = [normal_test(test) for test in tests]
    calls = "fn_name" in tests[0]
    if any(("fn_name" in test) != calls for test in tests):
        raise ValueError("tests of one program must be all of functions or all of programs")
    inputs = [
        json.dumps({"code": code, "fn_name": test["fn_name"], "args": pack(test["args"])}) if calls else test["input"]
        for test in tests
    ]
    statuses, outputs = [], []
    with contextlib.closing(run_many(CALL if calls else code, inputs, timeout, PRELOAD if calls else ())) as results:
        for test, result in zip(tests, results, strict=False):
            if result.status == "infra":
                raise InfraError(result.stderr)
            status = result.status
            if status == "ok":
                status = _judge(test, result.stdout, calls, checker)
            statuses.append(status)
            outputs.append((result.stdout if status in ("ok", "wrong") else result.stderr.strip())[-300:])
            if statuses.count("timeout") == PATIENCE:
                break
    missing = len(tests) - len(statuses)
    right = statuses.count("ok")
    return Grade(
        right / len(tests), right == len(tests), (*statuses, *["timeout"] * missing), (*outputs, *[""] * missing)
    )


def _judge(test: Test, stdout: str, calls: bool, checker: Checker | None) -> str:
    value: Any = stdout
    if calls:
        try:
            value = unpack(json.loads(stdout))
        except (ValueError, TypeError, RecursionError):  # no packed data in the channel, or nested beyond reason
            return "error"
    if checker is not None:
        return "ok" if checker(test, value) else "wrong"
    right = [test["expected" if calls else "output"], *test.get("accept", ())]
    same = same_value if calls else same_output
    return "ok" if any(same(answer, value) for answer in right) else "wrong"


# ------------------------------------------------------------------------------------------------------------- problems


@cache
def golden_tests(problem: Problem) -> tuple[Test, ...]:
    """The tests that decide: the given ones, or the calls of the data set's own test code with the reference's results.

    At most GOLDEN_TESTS, the first ones; recorded calls of more than 10,000 characters are left out. ValueError when
    the reference fails the data set's test code.
    """
    if problem.tests:
        return problem.tests[:GOLDEN_TESTS]
    job: dict[str, Any] = {"code": problem.solutions[0], "fn_name": problem.fn_name, "limit": GOLDEN_TESTS}
    (result,) = run_many(RECORD, [json.dumps({**job, "check": problem.check, "inputs": problem.inputs})], 60.0)
    if result.status == "infra":
        raise InfraError(result.stderr)
    calls = json.loads(result.stdout) if result.status == "ok" else []
    if not calls:
        reason = result.stderr.strip()[-500:] or "no call of the function"
        raise ValueError(f"problem {problem.question[:80]!r}: no tests from the reference solution ({reason})")
    return tuple({"fn_name": problem.fn_name, **unpack_call(call)} for call in calls[:GOLDEN_TESTS])


def unpack_call(call: dict) -> Test:
    return {"args": unpack(call["args"]), "expected": unpack(call["expected"])}


@cache
def reference_solution(problem: Problem, timeout: float) -> str | None:
    """The first of at most five solutions that passes the golden tests (data sets list wrong ones too), or None."""
    tests = golden_tests(problem)
    passing = (code for code in problem.solutions[:5] if grade_program(code, tests, timeout, problem.checker).passed)
    return next(passing, None)


# ------------------------------------------------------------------------------------------------------ the environment

FENCE = "Only the last closed block of your answer is read; an unclosed block or none at all is worth nothing."


class CodeEnv:
    """A programming problem for a coder and a tester (`mas`) or a coder alone (`single`).

    Both act at once: prompts come from the state at the start of the turn. A new answer replaces the agent's last one;
    an answer that cannot be read leaves it. `mas` ends when the committed program passes the tester's committed tests,
    which is agreement and no success. `single` ends when the program passes the examples in the prompt, and after the
    first readable program when there are none. `solved`: the committed program passes all golden tests.

    Team reward: share of golden tests that the candidate program passes; the tester's is that of the committed program.
    Local rewards (paper, appendix). Coder: .1 the program parses, .1 it runs through the first golden input, .8 golden
    share. Tester: .2 its tests can be read, .8 times the share of them that a reference solution passes, halved when a
    program that prints (returns) nothing passes them all. Without a reference nobody knows whether tests are right:
    a committed program that passes all golden tests stands in, and before there is one the .8 are not paid.

    Options: `data` (file or hub id) with `split` and `config`, or `problems` (a sequence of Problem); `timeout` seconds
    a test. Seed s is problem order[s % len(problems)] of one fixed permutation.
    """

    simultaneous = slow_scoring = True

    def __init__(
        self,
        workflow: str = "mas",
        data: str | None = None,
        problems: Sequence[Problem] | None = None,
        split: str = "train",
        config: str | None = None,
        timeout: float = 6.0,
    ):
        workflows = {"mas": ("coder", "tester"), "single": ("coder",)}
        if workflow not in workflows:
            raise ValueError(f"workflow={workflow!r}: the code task has {' or '.join(workflows)}")
        if data is not None and problems is not None:
            raise ValueError("the code task takes data= or problems=, not both")
        self.agents = workflows[workflow]
        if problems is not None and not problems:
            raise ValueError("problems= is empty: the code task needs at least one Problem")
        self.problems = problems or (EXAMPLES if data is None else load_problems(data, split, config))
        self.order = fixed_order(len(self.problems))
        self.timeout = timeout
        self.reset(0)

    def reset(self, seed: int) -> CodeEnv:
        self.problem = self.problems[self.order[seed % len(self.order)]]
        self.program: str | None = None
        self.tests: tuple[Test, ...] = ()
        self.score, self.report = 0.0, ""
        self.done = self.solved = False
        return self

    def copy(self) -> CodeEnv:
        return copy.copy(self)  # every attribute is replaced, none changed in place

    def observe(self, agent: str) -> list[Message]:
        self._check(agent)
        name = self.problem.fn_name
        state = [agent, self.problem.question]
        if self.problem.examples:
            state.append("Examples:\n" + "\n".join(json.dumps(_shown(test)) for test in self.problem.examples[:3]))
        if self.program is not None:
            state.append(f"The program so far:\n```python\n{self.program[:4000].rstrip()}\n```")
        if self.tests:
            state.append("The tests so far:\n```json\n" + json.dumps([_shown(test) for test in self.tests]) + "\n```")
        if self.report:
            state.append(self.report)
        rules = self._coder_rules(name) if agent == "coder" else self._tester_rules(name)
        return [{"role": "system", "content": rules}, {"role": "user", "content": "\n\n".join(state)}]

    def _coder_rules(self, name: str | None) -> str:
        task = (
            f"Write a Python 3 function {name} (or a class Solution with that method). What it returns is tested."
            if name
            else "Write a Python 3 program that reads standard input and prints its answer. Its output is compared "
            "line by line; blanks at the end of lines do not count, floats may differ by 1e-6."
        )
        return (
            f"You are the coder. {task} Standard library only; each test may take {self.timeout:g} s. "
            f"Answer with the whole program in one block:\n```python\n...\n```\n{FENCE}"
        )

    def _tester_rules(self, name: str | None) -> str:
        form = '{"args": [...], "expected": ...}' if name else '{"input": "...", "output": "..."}'
        task = f"the function {name}" if name else "a program that reads standard input and prints its answer"
        return (
            f"You are the tester. Another agent writes {task}; you write 1 to {WRITTEN_TESTS} tests that a right one "
            f"passes and wrong ones fail. Answer with a JSON list in one block:\n```json\n[{form}]\n```\n{FENCE}"
        )

    def step(self, agent: str, text: str) -> Reward:
        """Apply an answer. Raises envs.InfraError, and changes nothing, when the sandbox fails."""
        self._check(agent)
        if self.done:
            return Reward(0.0, 0.0, {"format": 0.0})
        return self._step_coder(text) if agent == "coder" else self._step_tester(text)

    def _step_coder(self, text: str) -> Reward:
        code = extract_code(text)
        if code is None:
            return Reward(0.0, 0.0, {"format": 0.0})
        grade = self._grade(code, golden_tests(self.problem))
        runs = grade.statuses[0] in ("ok", "wrong")
        if "tester" not in self.agents:
            examples = self._grade(code, self.problem.examples) if self.problem.examples else None
            self.done = examples is None or examples.passed
            self.report = _report(self.problem.examples, examples)
        self.program, self.score, self.solved = code, grade.score, grade.passed
        info = {"format": 1.0, "runs": float(runs), "golden": grade.score}
        return Reward(grade.score, 0.1 + 0.1 * runs + 0.8 * grade.score, info)

    def _step_tester(self, text: str) -> Reward:
        tests = read_tests(text, self.problem.fn_name)
        local, info = 0.0, {"format": float(tests is not None)}
        if tests:
            known = reference_solution(self.problem, self.timeout) or (self.program if self.solved else None)
            right = self._grade(known, tests).score if known else 0.0
            nothing = f"def {self.problem.fn_name}(*args):\n    pass\n" if self.problem.fn_name else ""
            trivial = self._grade(nothing, tests).passed
            local = 0.2 + 0.8 * right * (0.5 if trivial else 1.0)
            info |= {"right": right, "trivial": float(trivial), "reference": float(known is not None)}
        tests = tests or self.tests
        if tests and self.program is not None:
            agreement = self._grade(self.program, tests)
            self.done, self.report = agreement.passed, _report(tests, agreement)
        self.tests = tests
        return Reward(self.score, local, info)

    def _grade(self, code: str, tests: Sequence[Test]) -> Grade:
        return grade_program(code, tests, self.timeout, self.problem.checker)

    def _check(self, agent: str) -> None:
        if agent not in self.agents:
            raise ValueError(f"unknown agent {agent!r}: this environment has {', '.join(self.agents)}")


def read_tests(text: str, fn_name: str | None) -> tuple[Test, ...] | None:
    """The tests in the last fenced json block, at most WRITTEN_TESTS of them; None when they cannot be read."""
    blocks = fenced_blocks(text, ("json",))
    if not blocks or len(blocks[-1]) > 20_000:
        return None
    try:
        written = json.loads(blocks[-1])
        if not isinstance(written, list):
            return None
        fields = ("args", "expected") if fn_name else ("input", "output")
        name = {"fn_name": fn_name} if fn_name else {}
        tests = [{**name, **{field: test[field] for field in fields}} for test in written[:WRITTEN_TESTS]]
        if any(fn_name and not isinstance(test["args"], list) for test in tests):
            return None
        return tuple(map(normal_test, tests)) or None
    except (ValueError, TypeError, KeyError, RecursionError):  # not JSON, or not this form
        return None


def _shown(test: Test) -> Test:
    """A test as an agent reads it: data that JSON lacks (sets, tuples) as text."""
    return json.loads(json.dumps({key: test[key] for key in test if key not in ("fn_name", "accept")}, default=str))


def _report(tests: Sequence[Test], grade: Grade | None) -> str:
    if grade is None:
        return ""
    lines = [f"The program passes {grade.statuses.count('ok')} of {len(tests)} tests."]
    for test, status, output in zip(tests, grade.statuses, grade.outputs, strict=True):
        if status != "ok":
            lines.append(f"Test {json.dumps(_shown(test))[:300]}: {status}, it gave {output!r}")
    return "\n".join(lines)
