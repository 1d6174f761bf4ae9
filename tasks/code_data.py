"""Data sets of programming problems: rows of seven formats become `Problem`s. Nothing is run here.

The format is detected from the fields of a row: APPS, CodeContests, LiveCodeBench, HumanEval, MBPP, MBPP+, and plain
JSONL: {"question", "tests": [{"input", "output"} | {"fn_name", "args", "expected"}], "examples", "solutions"}.
Several right answers: a test may list further ones under "accept", a Problem may bring a `checker`; HumanEval and MBPP+
problems that have several get one here. Other data sets do not mark such problems, so filter them before use.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import pickle
import re
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tasks.data import Row, read_rows

Test = dict[str, Any]
Checker = Callable[[Test, Any], bool]  # (test, printed text or returned value) -> right?


@dataclass(frozen=True, eq=False)
class Problem:
    """One task. `tests` are the golden ones, never shown; or `check` and `inputs` make them by running the reference.

    question: what both agents read. fn_name: the function to write, None for a program that reads stdin. examples:
    tests that are shown. solutions: reference programs, best first. check: Python that calls `candidate(...)` (or
    `fn_name`), inputs: further argument lists.
    """

    question: str
    tests: tuple[Test, ...] = ()
    fn_name: str | None = None
    examples: tuple[Test, ...] = ()
    solutions: tuple[str, ...] = ()
    check: str = ""
    inputs: tuple[list, ...] = ()
    checker: Checker | None = None


def normal_test(test: Test) -> Test:
    if "fn_name" not in test:
        if isinstance(test.get("input"), str) and isinstance(test.get("output"), str):
            return test
        raise ValueError(f"test {str(test)[:200]}: expected texts under 'input' and 'output', or 'fn_name'")
    args = test["args"] if "args" in test else test["input"]
    if isinstance(args, str):
        args = [json.loads(line) for line in args.splitlines() if line.strip()]
    if not isinstance(args, (list, tuple)):
        raise ValueError(f"test {str(test)[:200]}: 'args' must be a list")
    expected = test["expected"] if "expected" in test else json.loads(test["output"])
    return {**test, "args": list(args), "expected": expected}


class _TextOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"private tests must hold text only, found {module}.{name}")


def unpack_private_tests(packed: str) -> list[Test]:
    """LiveCodeBench's private tests: JSON, or JSON in a pickle in zlib in base64. Only text is ever unpickled."""
    if not packed.lstrip().startswith("["):
        text = _TextOnly(io.BytesIO(zlib.decompress(base64.b64decode(packed)))).load()
        if type(text) is not str:
            raise ValueError(f"private tests must hold text, found {type(text).__name__}")
        packed = text
    return json.loads(packed)


def _pairs(tests: dict) -> list[Test]:
    return [{"input": given, "output": wanted} for given, wanted in zip(tests["input"], tests["output"], strict=True)]


def _apps(row: Row) -> Problem:
    tests = json.loads(row["input_output"])
    solutions = json.loads(row["solutions"]) if row.get("solutions") else []
    pairs, fn_name = list(zip(tests["inputs"], tests["outputs"], strict=True)), tests.get("fn_name")
    if fn_name is None:
        # Some rows hold lists of lines instead of text.
        text = [["\n".join(part) if isinstance(part, list) else part for part in pair] for pair in pairs]
        golden = [{"input": given, "output": wanted} for given, wanted in text]
    else:
        # A result stands bare or inside a list of one; which of the two is not marked (APPS' own grader takes both).
        golden = [{"fn_name": fn_name, "args": given, "expected": wanted} for given, wanted in pairs]
        for test in golden:
            test["accept"] = test["expected"][:1] if isinstance(test["expected"], list) else []
    question = row["question"] + _starter(row.get("starter_code"))
    return Problem(question, tuple(map(normal_test, golden)), fn_name, solutions=tuple(solutions))


def _code_contests(row: Row) -> Problem:
    kinds = [row[kind] for kind in ("public_tests", "private_tests", "generated_tests") if row.get(kind)]
    tests = [test for kind in kinds for test in _pairs(kind)]
    listed = row.get("solutions") or {"language": [], "solution": []}
    pairs = zip(listed["language"], listed["solution"], strict=True)
    python3 = [code for language, code in pairs if language in (3, "PYTHON3")]
    return Problem(row["description"], tuple(tests), None, tuple(_pairs(row["public_tests"])), tuple(python3))


def _live_code_bench(row: Row) -> Problem:
    public, private = json.loads(row["public_test_cases"]), unpack_private_tests(row["private_test_cases"])
    fn_name = json.loads(row.get("metadata") or "{}").get("func_name")
    name = {"fn_name": fn_name} if fn_name else {}
    shown, hidden = (
        [normal_test({**name, "input": test["input"], "output": test["output"]}) for test in tests]
        for tests in (public, private)
    )
    question = row["question_content"] + _starter(row.get("starter_code"))
    return Problem(question, (*shown, *hidden), fn_name, tuple(shown))


def _human_eval(row: Row) -> Problem:
    checker = _is_root if row["entry_point"] == "find_zero" else None
    check = f"{row['test']}\ncheck(candidate)\n"
    question = "Complete this function. Include the given code in your program." + _starter(row["prompt"])
    solution = row["prompt"] + row["canonical_solution"]
    return Problem(question, (), row["entry_point"], (), (solution,), check, checker=checker)


def _is_root(test: Test, value: Any) -> bool:
    """HumanEval/32 asks for any root of a polynomial; its own test accepts |p(x)| < 1e-4."""
    if not isinstance(value, (int, float)) or not abs(value) < 1e9:
        return False
    return abs(sum(factor * value**power for power, factor in enumerate(test["args"][0]))) < 1e-4


def _mbpp_plus(row: Row) -> Problem:
    name, code, inputs = row["entry_point"], row["canonical_solution"], (*row["base_input"], *(row["plus_input"] or ()))
    checker = _same_set if name in _ANY_ORDER else _same_truth if name in _ANY_MATCH else None
    # Its assertions show what JSON lost: which arguments are tuples.
    check = row.get("assertion") or "\n".join(re.findall(r"^assert .*", row["prompt"], flags=re.M))
    return Problem(row["prompt"].strip().strip('"').strip(), (), name, (), (code,), check, inputs, checker)


# MBPP problems with several right answers, after EvalPlus (evalplus/eval/_special_oracle.py).
_ANY_ORDER = [
    "similar_elements",
    "find_char_long",
    "common_in_nested_lists",
    "extract_singly",
    "larg_nnum",
    "intersection_array",
]
_ANY_ORDER += ["find_dissimilar", "Diff"]
_ANY_MATCH = ["check_str", "text_match_three", "text_starta_endb"]  # a match object or a bool


def _same_set(test: Test, value: Any) -> bool:
    expected = test["expected"]
    if not isinstance(value, (list, tuple, set)):
        return False
    return all(item in value for item in expected) and all(item in expected for item in value)


def _same_truth(test: Test, value: Any) -> bool:
    return value in (None, False, True) and bool(value) == bool(test["expected"])


def _mbpp(row: Row) -> Problem:
    checks = "\n".join([*row.get("test_imports", ()), row.get("test_setup_code", ""), *row["test_list"]])
    defined = [node.name for node in ast.parse(row["code"]).body if isinstance(node, ast.FunctionDef)]
    fn_name = next(name for name in reversed(defined) if re.search(rf"\b{name}\(", row["test_list"][0]))
    question = f"{row['text'] if 'text' in row else row['prompt']}\n{row['test_list'][0]}"
    return Problem(question, (), fn_name, (), (row["code"],), checks)


def _plain(row: Row) -> Problem:
    tests, examples = (tuple(map(normal_test, row.get(field, ()))) for field in ("tests", "examples"))
    return Problem(row["question"], tests, tests[0].get("fn_name"), examples, tuple(row.get("solutions", ())))


def _starter(code: str | None) -> str:
    return f"\n\n```python\n{code.strip()}\n```" if code and code.strip() else ""


FORMATS: tuple[tuple[str, tuple[str, ...], Callable[[Row], Problem]], ...] = (  # name, fields that tell it, reader
    ("LiveCodeBench", ("question_content", "public_test_cases", "private_test_cases"), _live_code_bench),
    ("CodeContests", ("description", "public_tests"), _code_contests),
    ("APPS", ("question", "input_output"), _apps),
    ("MBPP+", ("prompt", "entry_point", "canonical_solution", "base_input", "plus_input"), _mbpp_plus),
    ("HumanEval", ("prompt", "entry_point", "canonical_solution", "test"), _human_eval),
    ("MBPP", ("code", "test_list"), _mbpp),
    ("plain", ("question", "tests"), _plain),
)


@cache
def load_problems(source: str, split: str = "train", config: str | None = None) -> tuple[Problem, ...]:
    """Read a data set once in a process. Rows without any test are left out, with a warning that counts them.

    ValueError, naming source and row, for a row of no known format and for one that its format's reader cannot read.
    """
    problems, rows = [], read_rows(source, split, config)
    for number, row in enumerate(rows, start=1):
        found = [(name, reader) for name, fields, reader in FORMATS if all(field in row for field in fields)]
        if not found:
            known = "; ".join(f"{name}: {', '.join(fields)}" for name, fields, _ in FORMATS)
            raise ValueError(f"data {source!r}, row {number}: fields {sorted(row)} fit no known format ({known})")
        name, reader = found[0]
        if not row.get("input_output", True) or row.get("tests") == []:
            continue
        try:
            problem = reader(row)
        except (KeyError, ValueError, TypeError, StopIteration, pickle.UnpicklingError, zlib.error) as error:
            raise ValueError(f"data {source!r}, row {number}: not a readable {name} row ({error!r})") from error
        if problem.tests or problem.check or problem.inputs:
            problems.append(problem)
    if not problems:
        raise ValueError(f"data {source!r}: no row has tests")
    if len(problems) < len(rows):
        left_out = len(rows) - len(problems)
        warnings.warn(f"data {source!r}: {left_out} of {len(rows)} rows have no tests and are left out", stacklevel=2)
    return tuple(problems)


def _example(text: str, solution: str, inputs: list[list]) -> Problem:
    fn_name = solution[4 : solution.index("(")]
    return Problem(f"Write a function {fn_name} that {text}", (), fn_name, (), (solution,), "", tuple(inputs))


# Problems for a first look and for tests, used when no data is named.
EXAMPLES = (
    _example("adds two integers.", "def add(a, b): return a + b", [[1, 2], [5, 5], [-3, 1], [10**20, 1]]),
    _example("counts the a's of a text.", "def count_a(s): return s.count('a')", [["tree"], [""], ["banana"]]),
    _example("tells whether n > 1 is prime.", "def prime(n): return all(n % d for d in range(2, n))", [[2], [9], [13]]),
    _example("reverses a list.", "def flip(items): return items[::-1]", [[[1, 2, 3]], [[]], [["b", "a"]]]),
)
