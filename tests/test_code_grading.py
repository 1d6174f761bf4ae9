# ruff: noqa: E501 (programs, each on its line)
"""Verdicts on programs: right, out of reach of the program, and quick, whatever it prints or sends back."""

import json
import time

import pytest
from helpers import seconds_at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import code_grading
from tasks.code_grading import grade_program, is_right
from tasks.code_values import NOT_DATA, from_data, same_output, same_value, to_data
from tasks.sandbox import OUTPUT, Result

PRINTED = [  # expected, printed, the same?
    ("8", "8\n\n", True),
    ("1 2\n3", "1 2 \n3\n", True),
    ("1 2\n3", "1\n2 3", False),
    ("1 2", "1  2", False),
    (" *\n***", "*\n***", True),  # as in LiveCodeBench
    ("8", "\n \t\n8", True),
    ("a\nb", "a\n\nb", False),
    ("0.333333333333", "0.333333", True),
    ("0.333333333333", "0.3333", False),
    ("1000000", "1000001", False),
    ("2", "2.0", True),
    ("2", "2.0000001", False),
    ("007", "7", False),
    ("9" * 5000 + "1", "9" * 5000 + "2", False),
    ("nan", "nan", False),
    ("inf", "inf", True),
    ("inf", "1e308", False),
    ("1", "1e999999999", False),
    ("1.0", "1e999999999", False),
    ("0", "", False),
    ("1 " * 250_000, "1.0 " * 249_999 + "2", False),  # each of these in linear time
    ("0.1 " * 200_000, "1e-1 " * 199_999 + "2", False),
    (" \n" * 500_000 + "1", " " * 1_000_000 + "2", False),
    ("1" * 1_000_000, "1." + "1" * 900_000 + "e999999", False),
    ("1.5", "1" * 1_000_000 + "x", False),
]
RETURNED = [
    ([1, 2], (1, 2), True),
    ([1, 2], {1, 2}, False),
    ("ab", b"ab", False),
    ({"1": 2}, {1: 2}, False),
    (2, 2.0, True),
    (2, 2.0000001, False),
    (2.0, 2.0000001, True),
    (float("nan"), float("nan"), False),
    (float("inf"), float("inf"), True),
    (float("inf"), 1e308, False),
    (1j, 1j + 1e-9, True),
    (10**30, 10**30 + 1, False),
]


ACCEPTED = [  # fields of a test, what a function returned, right?
    ({"expected": 2.0, "atol": 1e-2}, 2.005, True),
    ({"expected": 2.0, "atol": 1e-4}, 2.005, False),
    ({"expected": 0.1}, 10**400, False),
    ({"expected": 12, "accept": [14, 16]}, 14, True),
    ({"expected": 12, "accept": [14, 16]}, 15, False),
    ({"expected": [1, 2], "compare": "set"}, (2, 1, 1), True),
    ({"expected": [1, 2], "compare": "set"}, {1: 0, 2: 0}, False),
    ({"expected": ["a"], "compare": "set"}, "a", False),
    ({"expected": [1, 2], "compare": "set"}, [[1], 2], False),
    ({"expected": True, "compare": "truth"}, "abbb", True),
]
EQUAL = [(same_output, *row) for row in PRINTED] + [(same_value, *row) for row in RETURNED]
EQUAL += [(lambda test, value: is_right({"fn_name": "f", **test}, value), *row) for row in ACCEPTED]


@pytest.mark.parametrize(("compare", "expected", "found", "same"), EQUAL)
def test_what_is_the_same(compare, expected, found, same):
    with seconds_at_most(5):  # at most a second on an idle core
        assert compare(expected, found) is same


LONG = 10**4300  # 4,301 digits, one more than Python reads and writes unless told otherwise
SCORES = [  # program, what it is called with or reads, what is expected, score
    ("print(int(input()) + 1)", "7", "8", 1),
    ("'''doc'''\nfrom __future__ import annotations\nprint(__doc__)", "", "doc", 1),
    ("def f(n): return n and 1 + f(n - 1)\nprint(f(5000))", "", "5000", 1),
    ("print(math.sqrt(4))", "", "2", 0),  # a program imports what it uses
    ("print(int(input()) * 10**700)", f"{LONG}\n", str(LONG * 10**700), 1),
    ("def f(x): return int(str(x)) + 1", [LONG], LONG + 1, 1),
    ("def f(x):\n print('debug', 8)\n return x", [3], 3, 1),
    ("def f(n): return n and 1 + f(n - 1)", [5000], 5000, 1),
    ("def f(x): return x[0]", [(b"a", {1: {2}})], b"a", 1),
    ("class Solution:\n def f(self, a: List[int], b: Optional[int]): return a + b", [[1], [2]], [1, 2], 1),
    ("class Solution:\n def f(self, a): return math.fsum(a) + gcd(4, 6)", [[1, 2]], 5, 1),
    ("class Solution:\n def f(self, a):\n  heapify(a)\n  return [heappop(a), bisect_left([1, 3], 2)]", [[3, 1]], [1, 1], 1),
    ("class Solution:\n def f(self, a): return reduce(lambda x, y: x + y, accumulate(a))", [[1, 2]], 4, 1),
    ("class Solution:\n def f(self, a): return collections.Counter(itertools.chain(a, a))[1]", [[1]], 2, 1),
    ("@cache\ndef g(n): return defaultdict(int)[n] + inf\ndef f(n): return g(n)", [1], float("inf"), 1),
    ("def f(a): return 0\nclass Solution:\n def f(self, a): return a", [3], 3, 1),
    ("class Solution:\n def g(self, a): return 0\ndef f(a): return a", [3], 3, 1),
    ("x = 1", [[1, 2]], 3, 0),
    ("def f(x): return float('nan')", [0], float("nan"), 0),
    ("class E(int):\n def __eq__(s, o): return True\ndef f(x): return E(5)", [0], 1, 0),
    ("class E(dict):\n def __len__(s): return 1\ndef f(x): return [E()]", [0], [1], 0),
    ("def f(x): return f", [0], 1, 0),
    ("def f(x): raise SystemExit(0)", [0], None, 0),
    ("import json\njson.dumps = lambda *a, **k: '[\"ok\", 1]'\ndef f(x): return 1", [0], 2, 0),
    ("import os\nos.closerange(0, 99)\ndef f(x): return 1", [0], 1, 0),
    ("import sys\ndef f(x): print(sys.stdin.read(), '1'); return 2", [0], 1, 0),
    ("def f(x):\n y = []\n for _ in range(10**5): y = [y]\n return y", [0], [], 0),
    ("import os\nfor fd in range(3, 20):\n try: os.write(fd, b'1\\n')\n except OSError: pass\ndef f(x): return 2", [0], 2, 0),
    ("", [0], None, 0),
]  # fmt: skip


@pytest.mark.parametrize(("code", "given", "expected", "score"), SCORES)
def test_scores(code, given, expected, score):
    call = {"fn_name": "f", "args": given, "expected": expected}
    grade = grade_program(code, [{"input": given, "output": expected} if isinstance(given, str) else call])
    assert (grade.score, grade.passed) == (score, bool(score)), grade


def test_score_is_the_share_of_tests_and_statuses_say_why():
    code = "n = int(input())\nif n == 3: 1/0\nif n == 4: [0] * 10**10\nprint(n if n < 5 else -n)"
    grade = grade_program(code, [{"input": str(n), "output": str(n)} for n in range(1, 6)])
    assert (grade.score, grade.passed, grade.statuses) == (0.4, False, ("ok", "ok", "error", "memory", "wrong"))
    code = "import os\ndef f(n):\n if n == 3: 1/0\n if n == 4: [0] * 10**10\n if n == 6: os._exit(0)\n return n if n < 5 else {n}"
    grade = grade_program(code, calls(range(1, 8)))
    assert grade.statuses == ("ok", "ok", "error", "memory", "wrong", "error", "wrong")
    assert grade.outputs[2:6] == ("ZeroDivisionError: division by zero", "MemoryError", "{5}", "")
    library = grade_program("x = 1", [{"fn_name": "gcd", "args": [4, 6], "expected": 2}])
    assert library.score == 0, "no answer of the program"


def calls(numbers):
    return [{"fn_name": "f", "args": [n], "expected": n} for n in numbers]


STOPPED = [
    ("def f(n):\n while n == 0: pass\n return n", ["timeout"] + ["ok"] * 49),
    ("def f(n): return 10**10**9 if n == 0 else n", ["timeout"] + ["ok"] * 49),
    ("while True: pass", ["timeout"] * 50),
    ("import os\ndef f(n): return os._exit(1) if n % 2 == 0 else n", ["error", "ok"] * 3 + ["error"] * 44),
    ("def f(n):\n print('x' * 50_000)\n return n", ["ok"] * 50),
]


@pytest.mark.parametrize(("code", "statuses"), STOPPED)
def test_a_function_goes_on_after_a_crash_and_never_takes_longer_than_its_limit(code, statuses):
    start = time.monotonic()
    assert list(grade_program(code, calls(range(50))).statuses) == statuses
    assert time.monotonic() - start < 10  # 3.1 s on an idle core


def test_large_results_find_room_in_further_processes():
    tests = [{"fn_name": "f", "args": [n], "expected": [n] * 40_000} for n in range(10)]
    assert grade_program("def f(n): return [n] * 40_000", tests, timeout=20).passed


def test_a_program_that_hangs_is_not_waited_for_on_every_test(monkeypatch):
    tests = [{"input": "", "output": "1"}] * 50
    assert grade_program("while True: pass", tests, timeout=0.2).statuses == ("timeout",) * 50
    monkeypatch.setattr(code_grading, "ALL_SECONDS", 2.0)
    statuses = grade_program("import time\ntime.sleep(0.5)\nprint(1)", tests, timeout=1.0).statuses
    assert (statuses[0], statuses[5:]) == ("ok", ("timeout",) * 45)


BAD_TESTS = [
    ([], "without tests"),
    ([{"input": "1"}], "'output'"),
    ([{"fn_name": None, "args": [], "expected": 1}], "name of a function"),
    ([{"fn_name": "f", "args": [], "expected": object()}], "plain builtin values"),
    ([{"fn_name": "f", "args": [], "expected": "x" * OUTPUT}], "at most"),
    ([{"input": "7", "output": "8"}, {"fn_name": "f", "args": [], "expected": 1}], "all of one function or all of"),
]


@pytest.mark.parametrize(("tests", "message"), BAD_TESTS)
def test_malformed_tests_are_errors(tests, message):
    with pytest.raises(ValueError, match=message):
        grade_program("pass", tests)


def test_hostile_functions_never_see_expected_answers():
    # The number is put together while running, so that searching memory cannot find the program's own constants.
    code = "import gc\ndef f(x):\n    parts = ['4242', '42']\n    objects = map(str, gc.get_objects())\n"
    code += "    return int(''.join(parts)) if any(''.join(parts) in text for text in objects) else 0"
    assert grade_program(code, [{"fn_name": "f", "args": [1], "expected": 424242}]).statuses == ("wrong",)
    assert grade_program(code, [{"fn_name": "f", "args": [424242], "expected": 424242}]).statuses == ("ok",)


COLLIDING = [n * (2**61 - 1) for n in range(1, 30_001)]
MANY = list(range(100_000))
REPLIES = [  # what a program sent, and an expected value that costs most to compare
    ('["ok", {"complex": [true, ' + "9" * 400 + "]}]", 1j),
    ('["ok", {"complex": [1e999, ' + "9" * 400 + ".0]}]", 1j),
    ('["ok", {"complex": [1.0, 2.0, 3.0]}]', 1j),
    ('["ok", ' + "9" * 100_000 + "]", 5),
    ('["ok", {"int": "' + "f" * 500_000 + '"}]', 2.5),
    ('["ok", {"int": 5}]', 5),
    ('["ok", {"bytes": "abc"}]', b"ab"),
    ('["ok", {"set": [[1]]}]', {1}),
    ('["ok", {"dict": [[[1], 2]]}]', {1: 2}),
    ('["ok", {"dict": "ab"}]', {1: 2}),
    ('["ok", {"a": 1, "b": 2}]', {"a": 1}),
    ('["ok", ' + "[" * 100_000 + "]" * 100_001, []),
    ('["ok", ' + '{"tuple": [' * 50_000 + "]}" * 50_000 + "]", ()),
    ("NaN", 5), ("", None), ("null null", None), ('["ok"]', None), ('["fine", null]', None), ("[5, 5]", 5),
    (json.dumps(["ok", {"set": [to_data(n) for n in COLLIDING]}]), set(COLLIDING[:50])),
    (json.dumps(["ok", {"dict": [[to_data(n), 1] for n in COLLIDING]}]), {1: 1}),
    (json.dumps(["ok", {"set": [{"tuple": [to_data(n), 1]} for n in COLLIDING[:20_000]]}]), {1}),
    (json.dumps(["ok", {"set": MANY[:90_000]}]), set(MANY[1:90_001])),
    (json.dumps(["ok", [*MANY[:-1], 0]]), MANY),
    (json.dumps(["ok", [0.5000001] * 100_000 + [0.5] * 99_999 + [1]]), [0.5] * 200_000),
    (json.dumps(["ok", [[[[[]]]]] * 30_000]), []),
]  # fmt: skip


def grade_reply(monkeypatch, reply, expected, **fields):
    monkeypatch.setattr(code_grading, "run_program", lambda *args: Result("ok", f"{reply}\n", ""))
    return grade_program("x", [{"fn_name": "f", "args": [], "expected": expected, **fields}]).statuses[0]


@pytest.mark.parametrize(("reply", "expected"), REPLIES, ids=lambda value: str(value)[:20])
def test_a_reply_that_is_wrong_is_judged_in_linear_time(monkeypatch, reply, expected):
    for fields in {}, {"atol": 1e-8}, {"compare": "set"}:
        with seconds_at_most(5):  # half a second on an idle core
            assert grade_reply(monkeypatch, reply, expected, **fields) in ("wrong", "error")


TAGS = st.sampled_from(["int", "complex", "bytes", "tuple", "set", "frozenset", "dict", "list", ""])
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["0x1", "-0x" + "f" * 400]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TAGS, inner, max_size=2),
    max_leaves=8,
)  # fmt: skip
EXPECTED = [5, 2.5, "a", None, True, [1, 2], (1, [2.0]), {1, 2}, frozenset([1]), {"1": 2}, {1: {2}}, b"ab", 1j, 10**99, []]  # fmt: skip


@settings(derandomize=True, max_examples=100, deadline=None)
@given(JUNK, st.sampled_from(EXPECTED))
def test_any_reply_has_a_status(reply, expected):
    with pytest.MonkeyPatch.context() as patch:
        status = grade_reply(patch, json.dumps(["ok", reply]), expected)
    try:
        assert (status == "ok") == same_value(expected, from_data(reply))
    except NOT_DATA:
        assert status in ("wrong", "error")


def test_a_reply_written_past_the_program_around_it_is_only_an_answer():
    for reply, _ in REPLIES[:16]:
        write = f"os.write(fd, {reply[:60_000]!r}.encode() + b'\\n')"
        body = f"import os\nfor fd in range(3, 9):\n try: {write}\n except OSError: pass\nos._exit(0)"
        assert grade_program(body, [{"fn_name": "f", "args": [], "expected": 7}]).score == 0.0
