"""Data sets of programming problems: rows of seven formats become `Problem`s. Nothing is run here.

The format is detected from the fields of a row: APPS, CodeContests, LiveCodeBench, HumanEval, MBPP, MBPP+, and plain
JSONL: {"question", "tests": [{"input", "output"} | {"fn_name", "args", "expected"}], "examples", "solutions"}.
Several right answers: a test may list further ones under "accept", a Problem may bring a `checker`; HumanEval and MBPP+
problems that have several get one here. Other data sets do not mark such problems, so filter them before use.

A row is read as it stands or not at all: anything missing, truncated, unrunnable or of the wrong type is a ValueError
that names source, row and field. A reference solution that tests come from must parse and import only the standard
library; `code_grading.check_references` also runs it.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import pickle
import re
import reprlib
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tasks.code_fields import json_field, list_field, name_field, python_field, reference_field, typed, within
from tasks.code_values import distinct, freeze, to_data
from tasks.data import Row, read_json, read_rows
from tasks.sandbox import OUTPUT

Test = dict[str, Any]
Checker = Callable[[Test, Any], bool]  # (test, printed text or returned value) -> right?


@dataclass(frozen=True, eq=False)
class Problem:
    """One task. `tests` are the golden ones, never shown; or `check` and `inputs` make them by running the reference.

    question: what both agents read. fn_name: the function to write, None for a program that reads stdin. examples:
    tests that are shown. solutions: reference programs, best first. check: Python that calls `candidate(...)` (or
    `fn_name`), inputs: further argument lists. atol: the data set's own tolerance of floats in results, 0 for ours.
    source: the row that it comes from, for messages.
    """

    question: str
    tests: tuple[Test, ...] = ()
    fn_name: str | None = None
    examples: tuple[Test, ...] = ()
    solutions: tuple[str, ...] = ()
    check: str = ""
    inputs: tuple[list, ...] = ()
    checker: Checker | None = None
    atol: float = 0.0
    source: str = "a problem"


# ---------------------------------------------------------------------------------------------------------------- tests


def normal_test(test: Any) -> Test:
    """A test in its normal form (see `code_grading.grade_program`). ValueError when it has none, or when no program
    could pass it because the answer is longer than what a program may write."""
    if not isinstance(test, dict):
        raise ValueError(f"test {reprlib.repr(test)}: expected an object")
    if not isinstance(test.get("accept", []), (list, tuple)):
        raise ValueError(f"test {reprlib.repr(test)}: 'accept' must be a list")
    try:
        test = _call(test) if "fn_name" in test else _run(test)
    except (ValueError, TypeError) as error:
        raise ValueError(f"test {reprlib.repr(test)}: {error}") from None
    return test


def _run(test: Test) -> Test:
    if not isinstance(test.get("input"), str) or not isinstance(test.get("output"), str):
        raise ValueError("expected texts under 'input' and 'output', or 'fn_name'")
    if not all(isinstance(answer, str) for answer in test.get("accept", [])):
        raise ValueError("'accept' must be a list of texts")
    _writable(len(test["output"].rstrip().encode("utf-8", "replace")) + 1, "output")
    return test


def _call(test: Test) -> Test:
    name, args = test["fn_name"], test.get("args", test.get("input"))
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError("'fn_name' must be the name of a function")
    if isinstance(args, str):  # one value a line; JSON takes every other blank for data
        args = [read_json(line) for line in args.split("\n") if line.strip(" \t\r")]
    if not isinstance(args, (list, tuple)):
        raise ValueError("'args' must be a list")
    if "expected" not in test and not isinstance(test.get("output"), str):
        raise ValueError("expected a value under 'expected', or its JSON text under 'output'")
    expected = test["expected"] if "expected" in test else read_json(test["output"])
    to_data([*args, *test.get("accept", [])])  # TypeError or ValueError for what can neither be sent nor come back
    _writable(len(json.dumps(to_data(expected))), "result")
    return {**test, "args": list(args), "expected": expected}


def _writable(size: int, what: str) -> None:
    if size > OUTPUT:
        raise ValueError(f"the expected {what} takes {size:,} bytes, and a program may write {OUTPUT:,} at most")


def same_kind(tests: Sequence[Test]) -> str | None:
    """The function that all the tests call, None when all are of programs. ValueError for a mixture."""
    names = {test.get("fn_name") for test in tests}
    if len(names) > 1:
        raise ValueError("tests of one program must be all of one function or all of programs")
    return names.pop() if names else None


def _tests(name: str, tests: Iterable[Any], fn_name: str | None = None) -> tuple[Test, ...]:
    given = {"fn_name": fn_name} if fn_name else {}
    with within(name):
        found = tuple(normal_test({**given, **test} if isinstance(test, dict) else test) for test in tests)
        same_kind(found)
    return found


def _pairs(row: Row, name: str, optional: bool = False) -> tuple[Test, ...]:
    """Tests as two lists, {"input": [...], "output": [...]}."""
    pairs = typed(row, name, dict, optional)
    if not pairs and optional:
        return ()
    with within(name):
        inputs, outputs = list_field(pairs, "input", str), list_field(pairs, "output", str)
        tests = [{"input": given, "output": wanted} for given, wanted in zip(inputs, outputs, strict=True)]
    return _tests(name, tests)


# -------------------------------------------------------------------------------------------------------------- formats


def _apps(row: Row) -> Problem:
    tests, solutions = json_field(row, "input_output", dict), json_field(row, "solutions", list, optional=True)
    with within("input_output"):
        fn_name = name_field(tests, "fn_name") if tests.get("fn_name") is not None else None
        pairs = list(zip(typed(tests, "inputs", list), typed(tests, "outputs", list), strict=True))
    if fn_name is None:
        golden = [{"input": _lines(given), "output": _lines(wanted)} for given, wanted in pairs]
    else:
        golden = [{"args": given, "expected": wanted} for given, wanted in pairs]
        # A row's results are either bare or each in a list of one, and nothing marks which.
        if all(isinstance(wanted, list) and len(wanted) == 1 for _, wanted in pairs):
            golden = [{**test, "wrapped": True} for test in golden]
    question = typed(row, "question", str) + _starter(row)
    solutions = list_field({"solutions": solutions}, "solutions", str)
    return Problem(question, _tests("input_output", golden, fn_name), fn_name, solutions=tuple(solutions))


def _lines(part: Any) -> Any:
    """Some rows hold lists of lines instead of text."""
    return "\n".join(part) if isinstance(part, list) and all(isinstance(line, str) for line in part) else part


def _code_contests(row: Row) -> Problem:
    public = _pairs(row, "public_tests")
    tests = (*public, *_pairs(row, "private_tests", True), *_pairs(row, "generated_tests", True))
    listed, python3 = typed(row, "solutions", dict, optional=True), []
    if listed:
        with within("solutions"):
            pairs = zip(typed(listed, "language", list), list_field(listed, "solution", str), strict=True)
            python3 = [code for language, code in pairs if language in (3, "PYTHON3")]
    return Problem(typed(row, "description", str), tests, None, public, tuple(python3))


def _live_code_bench(row: Row) -> Problem:
    public = json_field(row, "public_test_cases", list)
    packed, metadata = typed(row, "private_test_cases", str), json_field(row, "metadata", dict, optional=True)
    with within("private_test_cases"):
        private = unpack_private_tests(packed)
    with within("metadata"):
        fn_name = name_field(metadata, "func_name") if metadata.get("func_name") is not None else None
    # Its functions return what JSON can say; a set instead of a list would be wrong.
    extra = {"exact": True} if fn_name else {}
    shown, hidden = (
        _tests(name, [{**extra, **_part(test)} for test in tests], fn_name)
        for name, tests in (("public_test_cases", public), ("private_test_cases", private))
    )
    return Problem(typed(row, "question_content", str) + _starter(row), (*shown, *hidden), fn_name, shown)


def _part(test: Any) -> Test:
    return {key: test[key] for key in ("input", "output") if key in test} if isinstance(test, dict) else {"input": test}


class _TextOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"private tests must hold text only, found {module}.{name}")


def unpack_private_tests(packed: str) -> list:
    """LiveCodeBench's private tests: JSON, or JSON in a pickle in zlib in base64. Only text is ever unpickled.

    ValueError for anything else.
    """
    if not packed.lstrip().startswith("["):
        try:
            text = _TextOnly(io.BytesIO(zlib.decompress(base64.b64decode(packed)))).load()
        except Exception as error:  # pickle names no complete list of what it raises for broken data
            raise ValueError(f"neither a JSON list nor packed text ({error!r})") from None
        if type(text) is not str:
            raise ValueError(f"private tests must hold text, found {type(text).__name__}")
        packed = text
    tests = read_json(packed)
    if not isinstance(tests, list):
        raise ValueError(f"expected a list, found {type(tests).__name__}")
    return tests


def _human_eval(row: Row) -> Problem:
    name, prompt, test = name_field(row, "entry_point"), typed(row, "prompt", str), typed(row, "test", str)
    code = prompt + typed(row, "canonical_solution", str)
    check = f"{test}\ncheck(candidate)\n"
    python_field(check, "test")
    question = "Complete this function. Include the given code in your program." + _block(prompt)
    checker = _is_root if name == "find_zero" else None
    return Problem(
        question, (), name, (), reference_field(code, "prompt, canonical_solution", name), check, checker=checker
    )


def _is_root(test: Test, value: Any) -> bool:
    """HumanEval/32 asks for any root of a polynomial; its own test accepts |p(x)| < 1e-4."""
    if not isinstance(value, (int, float)) or not abs(value) < 1e9:
        return False
    try:
        return abs(sum(factor * value**power for power, factor in enumerate(test["args"][0]))) < 1e-4
    except OverflowError:
        return False


def _mbpp_plus(row: Row) -> Problem:
    name, prompt = name_field(row, "entry_point"), typed(row, "prompt", str)
    code = reference_field(typed(row, "canonical_solution", str), "canonical_solution", name)
    base = list_field(row, "base_input", list)
    plus = [] if row["plus_input"] == {} else list_field(row, "plus_input", list, optional=True)  # {}: none, in one row
    for field, inputs in (("base_input", base), ("plus_input", plus)):
        with within(field):
            to_data(inputs)  # ValueError when nested too deeply
    any_order = name in _ANY_ORDER or re.search(rf"^assert set\({name}\(", prompt, flags=re.M)
    checker = _same_set if any_order else _same_truth if name in _ANY_MATCH else None
    # Its assertions show what JSON lost: which arguments are tuples.
    check = typed(row, "assertion", str, optional=True) or "\n".join(re.findall(r"^assert .*", prompt, flags=re.M))
    python_field(check, "assertion, prompt")
    atol = row.get("atol")
    if atol is not None and (type(atol) not in (int, float) or not 0 <= atol < 1):
        raise ValueError(f"field 'atol': expected a tolerance of floats, found {reprlib.repr(atol)}")
    question = prompt.strip().strip('"').strip()
    return Problem(question, (), name, (), code, check, (*base, *plus), checker, float(atol or 0.0))


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
    if not isinstance(value, (list, tuple, set)):
        return False
    try:
        return distinct(map(freeze, value)) == distinct(map(freeze, test["expected"]))
    except (ValueError, TypeError):  # items that collide, or that no set can hold
        return False


def _same_truth(test: Test, value: Any) -> bool:
    return value in (None, False, True) and bool(value) == bool(test["expected"])


def _mbpp(row: Row) -> Problem:
    code, tests = typed(row, "code", str), list_field(row, "test_list", str)
    if not tests:
        raise ValueError("field 'test_list': no tests")
    defined = [node.name for node in python_field(code, "code").body if isinstance(node, ast.FunctionDef)]
    called = [name for name in reversed(defined) if re.search(rf"\b{re.escape(name)}\(", tests[0])]
    if not called:
        raise ValueError("field 'code, test_list': the first test calls no function of the code")
    imports, setup = list_field(row, "test_imports", str, True), typed(row, "test_setup_code", str, True)
    checks = {"test_imports": "\n".join(imports), "test_setup_code": setup, "test_list": "\n".join(tests)}
    for field, part in checks.items():
        python_field(part, field)
    text = typed(row, "text" if "text" in row or "prompt" not in row else "prompt", str)
    return Problem(f"{text}\n{tests[0]}", (), called[0], (), (code,), "\n".join(checks.values()))


def _plain(row: Row) -> Problem:
    tests, examples = (
        _tests("tests", typed(row, "tests", list)),
        _tests("examples", typed(row, "examples", list, True)),
    )
    if examples and same_kind(examples) != same_kind(tests):
        raise ValueError("field 'examples': not of the same function as the tests")
    solutions = tuple(list_field(row, "solutions", str, optional=True))
    return Problem(typed(row, "question", str), tests, same_kind(tests), examples, solutions)


def _starter(row: Row) -> str:
    return _block(typed(row, "starter_code", str, optional=True))


def _block(code: str) -> str:
    code = code.strip("\n")
    return f"\n\n```python\n{code}\n```" if code.strip() else ""


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
    """Read a data set once per process. Rows without tests are left out, and a warning says how many.

    ValueError, naming source and row, for a row of no known format and for one that its format's reader cannot read.
    """
    problems, rows = [], read_rows(source, split, config)
    for number, row in enumerate(rows, start=1):
        found = [(name, reader) for name, fields, reader in FORMATS if all(field in row for field in fields)]
        if not found:
            known = "; ".join(f"{name}: {', '.join(fields)}" for name, fields, _ in FORMATS)
            raise ValueError(f"data {source!r}, row {number}: fields {sorted(row)} fit no known format ({known})")
        name, reader = found[0]
        if row.get("input_output") == "" or row.get("tests") == []:
            continue
        try:
            problem = reader(row)
        except ValueError as error:
            raise ValueError(f"data {source!r}, row {number}: not a readable {name} row: {error}") from None
        if problem.tests or problem.check or problem.inputs:
            problems.append(replace(problem, source=f"data {source!r}, row {number}"))
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
