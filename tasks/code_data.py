"""Data sets of programming problems: rows become `Problem`s. Nothing is run here.

The fields of a row tell its format: APPS, CodeContests, LiveCodeBench, or plain JSONL: {"question", "tests",
"examples", "solutions", "given"} with tests as in `normal_tests`. HumanEval, MBPP and MBPP+ become plain JSONL once, by
`python -m tools.fetch`. A row is read as it stands or not at all.
"""

import base64
import json
import pickletools
import warnings
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tasks.code_values import from_data, to_data
from tasks.data import UNREADABLE, Row, read_json, read_problems
from tasks.sandbox import OUTPUT

Test = dict[str, Any]  # see `normal_tests`


@dataclass(frozen=True, eq=False)
class Problem:
    question: str  # what both agents read
    tests: tuple[Test, ...] = ()  # the golden ones, never shown
    fn_name: str | None = None  # the function to write; None: a program that reads standard input
    examples: tuple[Test, ...] = ()  # tests that are shown
    solutions: tuple[str, ...] = ()  # reference programs, best first


def normal_tests(tests: Iterable[Any]) -> list[Test]:
    """Tests of one program in their normal form: {"input": text, "output": text} for programs that read standard input;
    {"fn_name", "args": list, "expected"} for functions and methods of `class Solution`, also as text, one JSON value a
    line, under "args" or "input" and "output".

    "accept" lists other right answers. A call may have "given", code before the program; "atol", a tolerance of floats;
    "compare", "set" or "truth" where only that counts; and "exact", true when its values are written as by `to_data`.

    ValueError for anything else, for a mixture, and for an answer longer than a program may write.
    """
    try:
        found = list(map(_normal, tests))
    except UNREADABLE as error:
        raise ValueError(f"a test of no known form: {error!r}") from None
    if len({test.get("fn_name") for test in found}) > 1:
        raise ValueError("tests must be all of one function or all of programs")
    return found


def _normal(test: Row) -> Test:
    if not isinstance(test.get("accept", []), list):
        raise ValueError("'accept' must be a list")
    if "fn_name" in test:
        name, args = test["fn_name"], test["args"] if "args" in test else test["input"]
        if isinstance(args, str):  # one value a line; JSON takes every other blank for data
            args = [read_json(line) for line in args.split("\n") if line.strip(" \t\r")]
        if not isinstance(args, (list, tuple)) or not isinstance(name, str) or not name.isidentifier():
            raise ValueError("'args' must be a list, 'fn_name' the name of a function")
        values = {"args": list(args), "expected": test["expected"] if "expected" in test else read_json(test["output"])}
        values |= {"accept": test["accept"]} if "accept" in test else {}
        if test.get("exact"):
            values = {name: from_data(value) for name, value in values.items()}
        if test.get("compare", "set") not in ("set", "truth") or not 0 <= test.get("atol", 0) < 1e9:
            raise ValueError("'compare' must be 'set' or 'truth', 'atol' a number from 0")
        "".join(test.get("given", ""))  # TypeError if it is no text
        test = {name: test[name] for name in ("fn_name", "given", "atol", "compare") if name in test} | values
        answer = json.dumps(to_data(list(values.values()))[1])  # TypeError if it cannot travel
    else:
        answer = test["output"].rstrip() + "\n"
        "".join([test["input"], *test.get("accept", ())])  # TypeError if one is no text
    if len(answer.encode()) > OUTPUT:
        raise ValueError(f"the answer is too long: {OUTPUT:,} bytes at most")
    return test


def _apps(row: Row) -> Problem:
    listed = read_json(row["input_output"] or '{"inputs": [], "outputs": []}')
    name, pairs = listed.get("fn_name"), list(zip(listed["inputs"], listed["outputs"], strict=True))
    if name is None:  # some rows hold lists of lines instead of text
        texts = (["\n".join(part) if isinstance(part, list) else part for part in pair] for pair in pairs)
        tests = [{"input": given, "output": wanted} for given, wanted in texts]
    else:
        # Results are either bare or each in a list of one, and nothing marks which.
        wrapped = all(isinstance(wanted, list) and len(wanted) == 1 for _, wanted in pairs)
        tests = [{"fn_name": name, "args": given, "expected": wanted} for given, wanted in pairs]
        tests = [{**test, "accept": test["expected"]} for test in tests] if wrapped else tests
    return _problem(row["question"] + _starter(row), tests, solutions=read_json(row.get("solutions") or "[]"))


def _code_contests(row: Row) -> Problem:
    parts = [row.get(f"{kind}_tests") or {"input": [], "output": []} for kind in ("public", "private", "generated")]
    public, *hidden = (
        [{"input": given, "output": wanted} for given, wanted in zip(part["input"], part["output"], strict=True)]
        for part in parts
    )
    listed = row.get("solutions") or {"language": [], "solution": []}
    pairs = zip(listed["language"], listed["solution"], strict=True)
    python3 = [code for language, code in pairs if language in (3, "PYTHON3")]
    return _problem(row["description"], sum(hidden, public), public, python3)


def _live_code_bench(row: Row) -> Problem:
    name = read_json(row.get("metadata") or "{}").get("func_name")
    kind = {"fn_name": name} if name else {}
    parts = []
    for packed in row["public_test_cases"], row["private_test_cases"]:
        if not packed.lstrip().startswith("["):  # JSON in a pickle, which is never run, in zlib in base64
            operations = pickletools.genops(zlib.decompress(base64.b64decode(packed)))
            (packed,) = [text for _, text, _ in operations if isinstance(text, str)]
        parts.append([{**kind, "input": test["input"], "output": test["output"]} for test in read_json(packed)])
    shown, hidden = parts
    return _problem(row["question_content"] + _starter(row), shown + hidden, shown)


def _plain(row: Row) -> Problem:
    given = {"given": "" + row["given"]} if row.get("given") else {}  # TypeError if it is no text
    tests, examples = ([{**test, **given} for test in row.get(name) or []] for name in ("tests", "examples"))
    return _problem(row["question"], tests, examples, row.get("solutions") or [])


def _problem(question: str, tests: list, examples: Sequence = (), solutions: Sequence = ()) -> Problem:
    if isinstance(solutions, str):
        raise TypeError("'solutions' must be a list")
    "".join([question, *solutions])  # TypeError if one is no text
    normal, count = tuple(normal_tests([*tests, *examples])), len(tests)
    name = normal[0].get("fn_name") if normal else None
    return Problem(question, normal[:count], name, normal[count:], tuple(solutions))


def _starter(row: Row) -> str:
    code = (row.get("starter_code") or "").strip("\n")
    return f"\n\n```python\n{code}\n```" if code.strip() else ""


READERS = {  # by the fields of a format
    "question_content public_test_cases private_test_cases": _live_code_bench,
    "description public_tests": _code_contests,
    "question input_output": _apps,
    "question tests": _plain,
}


def read_problem(row: Row) -> Problem:
    """A row of any of the formats. ValueError for others, one of UNREADABLE for what cannot be read."""
    for fields, reader in READERS.items():
        if row.keys() >= {*fields.split()}:
            return reader(row)
    raise ValueError(f"fields {sorted(row)} fit no known format (docs/data.md)")


@cache
def load_problems(source: str, config: str | None = None) -> tuple[Problem, ...]:
    """Read a data set once. Rows without tests are left out, with a warning."""
    problems = read_problems(source, config, read_problem)
    kept = tuple(problem for problem in problems if problem.tests)
    if not kept:
        raise ValueError(f"data {source!r}: no row has tests")
    if left_out := len(problems) - len(kept):
        warnings.warn(f"data {source!r}: {left_out} of {len(problems)} rows have no tests: left out", stacklevel=2)
    return kept


# Problems when no data is named.
EXAMPLES = tuple(
    _problem(
        f"Write a function {name} that {text}",
        [{"fn_name": name, "args": args, "expected": expected} for args, expected in calls],
        solutions=[code],
    )
    for name, text, code, calls in (
        ("add", "adds two integers.", "def add(a, b): return a + b", [([1, 2], 3), ([5, 5], 10), ([-3, 1], -2)]),
        ("count_a", "counts the a's.", "def count_a(s): return s.count('a')", [(["tree"], 0), (["banana"], 3)]),
        ("flip", "reverses a list.", "def flip(items): return items[::-1]", [([[1, 2, 3]], [3, 2, 1]), ([[]], [])]),
    )
)
