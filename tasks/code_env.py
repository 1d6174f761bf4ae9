"""Code: a coder and a tester work on one programming problem: roles, prompts and rewards.

Verdicts in `code_grading.py`, comparison in `code_values.py`, problems in `code_data.py`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence

from envs import Env, Message, Reward
from tasks.code_data import EXAMPLES, Problem, Test, load_problems, normal_test
from tasks.code_grading import Grade, golden_tests, grade_program, reference_solution
from tasks.data import fixed_order, read_json
from tasks.fences import extract_code, fenced_blocks, shorten

__all__ = ["CodeEnv", "golden_tests", "grade_program", "read_tests", "reference_solution"]

WRITTEN_TESTS = 5  # tests that a tester may write
# Characters that a prompt shows: of each example of the problem, of the committed program, and of each written test.
SHOWN_EXAMPLE, SHOWN_PROGRAM, SHOWN_TEST = 20_000, 4_000, 1_000

# ------------------------------------------------------------------------------------------------------ the environment

FENCE = "Only the last closed block of your answer is read; an unclosed block or none at all is worth nothing."


class CodeEnv(Env):
    """A programming problem for a coder and a tester (`mas`) or a coder alone (`single`).

    Both act at once: prompts come from the state at the start of the turn. A new answer replaces the agent's last one;
    an answer that cannot be read leaves it. `mas` ends when the committed program passes the tester's committed tests,
    which is agreement, not success. `single` ends when the program passes the examples in the prompt, and after the
    first readable program when there are none. `solved`: the committed program passes all golden tests.

    Team reward: share of golden tests that the candidate program passes; the tester's is that of the committed program.
    Local rewards. Coder: .1 the program parses, .1 it runs through the first golden input, .8 golden share. Tester: .2
    its tests can be read, .8 times the share of them that a reference solution passes. These weights are the paper's;
    what follows is ours (docs/differences.md). The .8 are halved when a program that prints (returns) nothing passes
    all of the tests, because tests that everything passes are the cheapest way to agree. Without a reference nobody
    knows whether tests are right: a committed program that passes all golden tests stands in for it, and until there is
    one the .8 are not paid.

    Both see the problem, its first three examples, the committed program, the tester's tests and how the program fared
    on them (each shortened, see SHOWN_*), and whether their own last answer could not be read.

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
        self.problems: Sequence[Problem] = problems or (
            EXAMPLES if data is None else load_problems(data, split, config)
        )
        self.order = fixed_order(len(self.problems))
        self.timeout = timeout
        self.reset(0)

    def reset(self, seed: int) -> CodeEnv:
        self.problem = self.problems[self.order[seed % len(self.order)]]
        self.program: str | None = None
        self.tests: tuple[Test, ...] = ()
        self.score, self.report = 0.0, ""
        self.unread: frozenset[str] = frozenset()  # agents whose last answer could not be read
        self.done = self.solved = False
        return self

    def copy(self) -> CodeEnv:
        return copy.copy(self)  # every attribute is replaced, none changed in place

    @property
    def progress(self) -> float:
        """What the team has achieved: the share of golden tests that the committed program passes."""
        return self.score

    def observe(self, agent: str) -> list[Message]:
        self._check(agent)
        name = self.problem.fn_name
        state = [agent, self.problem.question]
        if self.problem.examples:
            state.append("Examples:\n" + "\n".join(_shown(test, SHOWN_EXAMPLE) for test in self.problem.examples[:3]))
        if self.program is not None:
            state.append(f"The program so far:\n```python\n{shorten(self.program, SHOWN_PROGRAM).rstrip()}\n```")
        if self.tests:
            written = ",\n".join(_shown(test, SHOWN_TEST) for test in self.tests)
            state.append(f"The tests so far:\n```json\n[{written}]\n```")
        if self.report:
            state.append(self.report)
        if agent in self.unread:
            state.append("Your last answer could not be read and changed nothing.")
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
            self.unread |= {"coder"}
            return Reward(0.0, 0.0, {"format": 0.0})
        grade = self._grade(code, golden_tests(self.problem))
        runs = grade.statuses[0] in ("ok", "wrong")
        if "tester" not in self.agents:
            examples = self._grade(code, self.problem.examples) if self.problem.examples else None
            self.done = examples is None or examples.passed
            self.report = _report(self.problem.examples, examples)
        self.program, self.score, self.solved = code, grade.score, grade.passed
        self.unread -= {"coder"}
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
        unread = self.unread - {"tester"} if tests else self.unread | {"tester"}
        tests = tests or self.tests
        if tests and self.program is not None:
            agreement = self._grade(self.program, tests)
            self.done, self.report = agreement.passed, _report(tests, agreement)
        self.tests, self.unread = tests, unread
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
        written = read_json(blocks[-1])
        if not isinstance(written, list):
            return None
        fields = ("args", "expected") if fn_name else ("input", "output")
        name = {"fn_name": fn_name} if fn_name else {}
        tests = [{**name, **{field: test[field] for field in fields}} for test in written[:WRITTEN_TESTS]]
        if any(fn_name and not isinstance(test["args"], list) for test in tests):
            return None
        return tuple(map(normal_test, tests)) or None
    except (ValueError, TypeError, KeyError):  # not JSON, or not this form
        return None


def _shown(test: Test, limit: int) -> str:
    """A test as an agent reads it: JSON, or Python where JSON has no word for it, and shortened."""
    fields = {key: test[key] for key in ("args", "expected", "input", "output") if key in test}
    if "fn_name" in test:
        fields = {key: fields[key] for key in ("args", "expected")}
    try:
        text = json.dumps(fields, default=repr)
    except TypeError:  # a dictionary whose keys are tuples, say
        text = repr(fields)
    return shorten(text, limit)


def _report(tests: Sequence[Test], grade: Grade | None) -> str:
    if grade is None:
        return ""
    lines = [f"The program passes {grade.statuses.count('ok')} of {len(tests)} tests."]
    for test, status, output in zip(tests, grade.statuses, grade.outputs, strict=True):
        if status != "ok":
            lines.append(f"Test {_shown(test, SHOWN_TEST)}: {status}, it gave {output!r}")
    return "\n".join(lines)
