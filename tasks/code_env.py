"""Code: the roles, prompts and rewards of a coder and a tester."""

import copy
import json
import re
import unicodedata
from collections.abc import Sequence

from envs import Env, Message, Reward
from tasks.code_data import EXAMPLES, Problem, Test, load_problems, normal_tests
from tasks.code_grading import SECONDS, golden_tests, grade_program, is_right, reference_solution
from tasks.data import fixed_order, read_json
from tasks.fences import extract_code, last_block, shorten

WRITTEN_TESTS = 5  # by a tester, at most
SHOWN_EXAMPLE, SHOWN_PROGRAM, SHOWN_TEST = 20_000, 4_000, 1_000  # characters of one in a prompt
FENCE = "Only the last closed block of your answer is read; an unclosed block or none at all is worth nothing."


class CodeEnv(Env):
    """A problem for a coder and a tester (`mas`) or a coder alone (`single`). Seed s is order[s % len(problems)].

    Both act at once. A new answer replaces the agent's last one if it can be read. `mas` ends when the committed
    program passes the tester's committed tests, which is agreement, not success; `single` when it passes the examples
    in the prompt, if there are any. `solved`: it passes all golden tests.

    Team reward: share of golden tests that the candidate program passes; the tester's is that of the committed program.
    Local rewards. Coder: .1 the program parses, .1 it gives something for the first golden input, .8 golden share.
    Tester: .2 its tests can be read, .8 times the share of them that are its own (not `copied`) and that a reference
    solution passes. These weights are the paper's; what follows is ours (docs/differences.md). The .8 are halved when a
    program that prints (returns) nothing passes all of the tests, the cheapest way to agree. A committed program
    that passes all golden tests stands in for a missing reference; else no test counts as right.

    Options: `data` (file or hub id) with `config`, or `problems`; `timeout`, see `grade_program`.
    """

    simultaneous = slow_scoring = runs_programs = True
    progress = 0.0  # the committed program's share of golden tests

    def __init__(
        self, workflow: str = "mas", data: str | None = None, problems: Sequence[Problem] = EXAMPLES,
        config: str | None = None, timeout: float = 0.0,
    ):  # fmt: skip
        workflows = {"mas": ("coder", "tester"), "single": ("coder",)}
        if workflow not in workflows:
            raise ValueError(f"workflow={workflow!r}: the code task has {' or '.join(workflows)}")
        self.agents = workflows[workflow]
        self.problems: Sequence[Problem] = problems if data is None else load_problems(data, config)
        self.order = fixed_order(len(self.problems))
        self.timeout = timeout
        self.reset(0)

    def reset(self, seed: int) -> Env:
        self.problem = self.problems[self.order[seed % len(self.order)]]
        self.program: str | None = None
        self.tests: Sequence[Test] = ()
        self.progress, self.report = 0.0, ""
        self.unread = frozenset[str]()  # agents whose last answer could not be read
        self.done = self.solved = False
        return self

    def copy(self) -> Env:
        return copy.copy(self)  # every attribute is replaced, none changed in place

    def observe(self, agent: str) -> list[Message]:
        self.check_agent(agent)
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
        rules = f"{self._rules(agent)}\n{FENCE}"
        return [{"role": "system", "content": rules}, {"role": "user", "content": "\n\n".join(state)}]

    def _rules(self, agent: str) -> str:
        name, program = self.problem.fn_name, "program that reads standard input and prints its answer"
        seconds = self.timeout or SECONDS[name is not None]
        if agent == "coder":
            task = (
                f"Write a Python 3 function {name} (or a class Solution with that method). What it returns is tested, "
                f"with {seconds:g} s for all tests."
                if name
                else f"Write a Python 3 {program}. Its output is compared line by line; blanks around lines do not "
                f"count, floats may differ by 1e-6. Each test may take {seconds:g} s."
            )
            return (
                f"You are the coder. {task} Standard library only. Answer with the whole program in one block:\n"
                "```python\n...\n```"
            )
        task = f"the function {name}" if name else f"a {program}"
        form = '{"args": [...], "expected": ...}' if name else '{"input": "...", "output": "..."}'
        return (
            f"You are the tester. Another agent writes {task}; you write 1 to {WRITTEN_TESTS} tests that a right one "
            "passes and wrong ones fail. Those that the problem shows do not count. Answer with a JSON list in one "
            f"block:\n```json\n[{form}]\n```"
        )

    def step(self, agent: str, text: str) -> Reward:
        """InfraError, and nothing changed, when the sandbox fails."""
        self.check_agent(agent)
        if self.done:
            return Reward(0.0, 0.0, {"format": 0.0})
        reward = self._step_coder(text) if agent == "coder" else self._step_tester(text)
        self.unread = self.unread - {agent} if reward.info["format"] else self.unread | {agent}
        return reward

    def _step_coder(self, text: str) -> Reward:
        code = extract_code(text)
        if code is None:
            return Reward(0.0, 0.0, {"format": 0.0})
        grade = grade_program(code, golden_tests(self.problem), self.timeout)
        runs = grade.statuses[0] == "ok" or (grade.statuses[0] == "wrong" and grade.outputs[0].strip() != "")
        if "tester" not in self.agents and self.problem.examples:
            self._compare(code, self.problem.examples)
        self.program, self.progress, self.solved = code, grade.score, grade.passed
        info = {"format": 1.0, "runs": float(runs), "golden": grade.score}
        return Reward(grade.score, 0.1 + 0.1 * runs + 0.8 * grade.score, info)

    def _step_tester(self, text: str) -> Reward:
        tests = read_tests(text, golden_tests(self.problem)[0])
        local, info = 0.0, {"format": float(bool(tests))}
        if tests:
            known = reference_solution(self.problem, self.timeout) or (self.program if self.solved else None)
            own = [test for test in tests if not copied(test, self.problem)]
            passed = grade_program(known, own, self.timeout).statuses.count("ok") if known and own else 0
            trivial = all(is_right(test, None if self.problem.fn_name else "") for test in tests)
            local = 0.2 + 0.8 * passed / len(tests) * (0.5 if trivial else 1.0)
            info |= {"right": passed / len(tests), "copied": 1 - len(own) / len(tests), "trivial": float(trivial)}
        if self.program is not None and (tests or self.tests):
            self._compare(self.program, tests or self.tests)
        self.tests = tests or self.tests
        return Reward(self.progress, local, info)

    def _compare(self, code: str, tests: Sequence[Test]) -> None:
        """Report on tests that both agents may see; a program that passes them ends the episode."""
        grade = grade_program(code, tests, self.timeout)
        lines = [f"The program passes {grade.statuses.count('ok')} of {len(tests)} tests."]
        for test, status, output in zip(tests, grade.statuses, grade.outputs, strict=True):
            if status != "ok":
                lines.append(f"Test {_shown(test, SHOWN_TEST)}: {status}, it gave {output!r}")
        self.done, self.report = grade.passed, "\n".join(lines)


def read_tests(text: str, like: Test) -> list[Test] | None:
    """The first WRITTEN_TESTS in the last json block, of the function of the golden test `like`. None: unreadable."""
    block = last_block(text, ("json",), lambda block: True) or ""
    fields = ("args", "expected") if "fn_name" in like else ("input", "output")
    more = {name: like[name] for name in ("fn_name", "given") if name in like}
    try:
        written = read_json(block)[:WRITTEN_TESTS]
        tests = normal_tests({field: test[field] for field in fields} | more for test in written)
        return tests if tests and all(isinstance(test.get("args", []), list) for test in written) else None
    except (ValueError, TypeError, KeyError):  # not JSON, or not this form
        return None


_QUOTED = re.compile(r"(\"{3}|'{3})|\"((?:\\.|[^\"\\\n])*)\"|(?<!\w)'((?:\\.|[^'\\\n])*)'")
_LINE = r"(?:^|\b(?i:input|stdin)\b[\w ]*[:=])[ \t]*"  # before an input of one word
_MARKS = str.maketrans("“”‘’", "\"\"''", "`*")  # of typesetting and Markdown
_ALIKE = {"(": "[", "{": "[", ")": "]", "}": "]", "True": "true", "False": "false", "None": "null"}
_ALIKE |= dict.fromkeys((";", "|", "and"), ",")


def copied(test: Test, problem: Problem) -> bool:
    """Does the input of a test stand in the question or an example? For a program: as lines, or as several words in a
    row. For a function: in brackets, after names with `=` or `:`, or several values or a list with items in a row.

    2.0 is 2; quotes, kinds of brackets and the function's name do not count.
    """
    question, name = problem.question, problem.fn_name
    if name is None:
        parts = "\n".join([question, *(example["input"] for example in problem.examples)]), test["input"]
        shown, given = (re.sub("[`|<>\"',]", " ", part) for part in parts)
        before, after = (r"(?<!\S)", r"(?!\S)") if len(words := given.split()) > 1 else (_LINE, r"[ \t]*$")
        return bool(words and re.search(before + r"\s+".join(map(re.escape, words)) + after, shown, re.MULTILINE))
    calls = (f"({repr(example['args'])[1:-1]})" for example in problem.examples)
    shown = _parts("\n".join([question, *calls]))
    args = [_parts(repr(arg)).strip() for arg in test["args"]]
    forms = [f" [ {' , '.join(args)} ] ", f" = {' = '.join(args)} "]
    if len(args) > 1 or (args and args[0].startswith("[ ") and args != ["[ ]"]):
        forms += [f" {' , '.join(args)} ", f" {' '.join(args)} "]
    return any(form in shown for form in forms)


def _parts(text: str) -> str:
    """Words, numbers and signs between blanks, without quotes, and without names before `=` and `:`."""
    text = unicodedata.normalize("NFKC", text).translate(_MARKS).replace("\\,", "")
    text = _QUOTED.sub(lambda found: (found[2] or found[3] or "''").replace(" ", "_"), text).replace("\\", "")
    # 1_000, 1e3 and 1000.0 as one word; huge ones that floats confuse are alike.
    text = re.sub(r"-? ?\d[\d_]*(?:\.\d*)?(?:[eE]\d+)?", lambda found: f" {float(re.sub('[ _]', '', found[0]))} ", text)
    parts = " ".join(_ALIKE.get(part, part) for part in re.findall(r"[=<>!]=|-?[\d.]+|\w+|''|\S", text))
    return re.sub(r"(?: ,)? [A-Za-z_]\w* [=:] ", " = ", f" {parts} ").replace(" , ] ", " ] ")


def _shown(test: Test, limit: int) -> str:
    """A test as an agent reads it: JSON, or else Python."""
    fields = {key: test[key] for key in ("args", "expected", "input", "output") if key in test}
    try:
        return shorten(json.dumps(fields), limit)
    except TypeError:
        return shorten(repr(fields), limit)
