"""The command that writes data sets: every format, the authors' splits, no question in two sets, exact tests.

`datasets` is replaced by a fake with hand-made rows: the tests need neither the package nor a network.
"""

import base64
import json
import pickle
import sys
import types
import zlib

import pytest

from tasks import code_data, math_env
from tasks.code_grading import GOLDEN_TESTS, golden_tests, grade_program, reference_solution
from tasks.data import check_disjoint, read_rows
from tools import fetch

HUB = "hf://datasets/"


def apps(number, question=None, **fields):
    pairs = json.dumps({"inputs": ["\n"], "outputs": [f"{number}\n"]})
    row = {"id": number, "question": question or f"Print {number}.", "starter_code": "", "input_output": pairs}
    return {**row, "solutions": json.dumps([f"print({number})"] * 8), **fields}


def contest(number, tests=1):
    pairs = {"input": [str(n) for n in range(tests)], "output": [str(n) for n in range(tests)]}
    row = {"description": f"Contest {number}: repeat.", "public_tests": {"input": ["7"], "output": ["7"]}}
    row["solutions"] = {"language": [2, 1, 3, 3], "solution": ["int main", "print raw_input()", "print(input())", "x"]}
    return {**row, "private_tests": pairs, "generated_tests": pairs, "incorrect_solutions": {"solution": ["print(0)"]}}


def live(number):
    hidden = base64.b64encode(zlib.compress(pickle.dumps(json.dumps([{"input": "2", "output": "4"}])))).decode()
    row = {"question_content": f"Double {number}.", "contest_date": object(), "starter_code": "", "metadata": "{}"}
    row |= {"private_test_cases": hidden}
    return {**row, "public_test_cases": json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}])}


LONG = "9" * 5000
AIME24 = "Maxwell-Jia/AIME_2024", None, "train"
HUB_ROWS = {  # data set, configuration and split, or file -> rows
    ("POLARIS-Project/Polaris-Dataset-53K", None, "train"): [
        {"problem": "What is 1+1?", "answer": "2", "difficulty": "3/8"},
        {"problem": "what is  7×6?", "answer": "42", "difficulty": "1/8"},  # AIME 2024 has it, written differently
        {"problem": "No answer.", "answer": "", "difficulty": "1/8"},
    ],
    AIME24: [{"ID": "2024-I-1", "Problem": "What is 7×6?", "Solution": "think", "Answer": 42}],
    ("yentinglin/aime_2025", None, "train"): [{"id": 1, "problem": "What is 10%?", "answer": "0.1", "year": "2025"}],
    ("Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train"): [
        {"id": 1, "question": "Which?", "final_answer": ["4.2"], "error": "1e-1", "image_1": None, "unit": ""}
    ],
    ("deepmind/code_contests", None, "train"): [contest(1), contest(2, tests=90)],
    ("deepmind/code_contests", None, "test"): [contest(3)],
    f"{HUB}codeparrot/apps/test.jsonl": [apps(n) for n in range(4601)],  # the last of them belong to nobody
    f"{HUB}codeparrot/apps/train.jsonl": [
        apps(7, " PRINT  3."),  # the fourth of the evaluation set
        apps(10, "Easier 10.", input_output=""),
        apps(11, "Easier 11.", input_output="{not json"),
        apps(12, "Easier 12.", input_output=json.dumps({"inputs": [], "outputs": []})),
        apps(13, "Line\u2028separator é"),
        apps(14, "Easier 14.", input_output='{"fn_name": "f", "inputs": [[1]], "outputs": [' + LONG + "]}"),
    ],
    f"{HUB}livecodebench/code_generation_lite/test6.jsonl": [live(1), live(2)],
}


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    """A fake package `datasets`, and the list of what it was asked for."""
    asked = []

    def load_dataset(path, config=None, split=None, data_files=None):
        asked.append((path, config, split) if data_files is None else data_files["rows"])
        return HUB_ROWS[asked[-1]]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return asked


def test_all_files_are_written_with_the_authors_splits_and_share_no_question(tmp_path, hub, capsys):
    fetch.main(["all", "--output", str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {f"{file}.jsonl" for file in fetch.FILES}
    assert len(hub) == len(fetch.FILES), "each file is fetched once"
    questions = {}
    for file, source in fetch.FILES.items():
        module = math_env if source.kind == "mathematics" else code_data
        questions[file] = [problem.question for problem in module.load_problems(str(tmp_path / f"{file}.jsonl"))]
    for file, source in fetch.FILES.items():
        for other, evaluation in fetch.FILES.items():
            if source.train and not evaluation.train:
                check_disjoint(questions[file], questions[other])
    assert questions["polaris"] == ["What is 1+1?"]
    assert questions["apps_test"] == [f"Print {n}." for n in range(500)]
    assert questions["apps_train"] == [f"Print {n}." for n in range(500, 4500)]
    assert questions["apps_train_easier"] == ["Line\u2028separator é", "Easier 14."]
    printed = capsys.readouterr().out
    left_out = "1 left out: also in an evaluation set; 2 left out: no tests; 1 left out: unreadable"
    assert f"apps_train_easier.jsonl: 2 rows; {left_out}\n" in printed
    assert printed.count("1 left out: also in an evaluation set") == 2


def test_a_training_set_brings_the_evaluation_sets_of_its_kind_and_no_others(tmp_path, hub):
    fetch.main(["polaris", "--output", str(tmp_path)])
    assert {path.stem for path in tmp_path.glob("*.jsonl")} == {"polaris", "aime24", "aime25", "olympiadbench"}
    fetch.main(["polaris", "--output", str(tmp_path)])
    assert [path for path, *_ in hub[4:]] == ["POLARIS-Project/Polaris-Dataset-53K"], "the others are there already"


def test_rows_are_cut_to_what_is_used(tmp_path):
    fetch.main(["code_contests", "livecodebench_v6", "olympiadbench", "--output", str(tmp_path)])
    first, long = read_rows(str(tmp_path / "code_contests_train.jsonl"))
    assert first["solutions"] == ["print(input())", "x"]
    assert (first["tests"][0], len(long["tests"])) == ({"input": "7", "output": "7"}, GOLDEN_TESTS)
    (test,) = code_data.load_problems(str(tmp_path / "code_contests_test.jsonl"))
    assert reference_solution(test) == "print(input())"
    (row, _) = read_rows(str(tmp_path / "livecodebench_v6.jsonl"))
    assert [test["input"] for test in row["tests"]] == ["1", "2"]
    (row,) = read_rows(str(tmp_path / "olympiadbench.jsonl"))
    assert (row["final_answer"], row["error"], "image_1" in row) == (["4.2"], "1e-1", False)


def test_errors_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(HUB_ROWS, AIME24, [{"Problem": "?", "Answer": None}])
    with pytest.raises(SystemExit, match=r"aime24.*not a single row is usable"):
        fetch.main(["aime24", "--output", str(tmp_path)])
    assert list(tmp_path.glob("aime24*")) == []
    for wrong in ["aime"], ["mbpp", "--from", "x.jsonl"], ["mbpp", "aime24", "--from", "x", "--to", "y"]:
        with pytest.raises(SystemExit):
            fetch.main(wrong)
    with pytest.raises(SystemExit, match=r"tools\.fetch: error: .*missing\.jsonl"):
        fetch.main(["mbpp", "--from", "missing.jsonl", "--to", str(tmp_path / "y")])
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SystemExit, match="pip install datasets"):
        fetch.main(["aime25", "--output", str(tmp_path)])


def mbpp(code, *tests, **more):
    return {"text": "q", "code": code, "test_list": list(tests), "task_id": 1, **more}


def plus(*inputs, **more):
    row = {"prompt": '"""\nq\nassert f(2) == 4.0\n"""', "canonical_solution": "def f(x): return 2.0 * x"}
    return {**row, "entry_point": "f", "base_input": [[2]], "plus_input": list(inputs), "task_id": 1, **more}


def human(prompt, body, test):
    return {"prompt": prompt, "entry_point": "f", "canonical_solution": body, "test": test, "task_id": 1}


def converted(tmp_path, *rows):
    name = "mbpp" if "code" in rows[0] else "mbppplus" if "base_input" in rows[0] else "humaneval"
    source, target = tmp_path / "raw.jsonl", tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    fetch.main([name, "--from", str(source), "--to", str(target)])
    return code_data.load_problems(str(target))


PAIR, AREA = "def f(x): return [1, 2]", "def f(x): return 3.1415 * x"
MATCH = "import re\ndef f(x): return re.search('ab', x)"
EXACT = mbpp("def f(x): return {x: {(1, b'a')}}", "assert f(3) == {3: {(1, b'a')}}")
TUPLE = {"prompt": "assert f((1, 2)) == 1", "base_input": [], "canonical_solution": "def f(x): return {x: 1} and x[0]"}
GIVEN = 'import math\n\ndef half(n):\n    return n // 2\n\ndef f(x):\n    "Half."\n'
CHECK = "def check(candidate):\n    for x in range(4, 9):\n        assert candidate(x) == x // 2\n"
CASES = [  # row, results that are right, results that are wrong
    (mbpp(AREA, "assert math.isclose(f(10), 31.415, rel_tol=0.001)"), ["31.42"], ["31.5", "float('nan')", "'31.415'"]),
    (mbpp(PAIR, "assert set(f(0)) == set([1, 2])"), ["(2, 1)"], ["[2, 3]"]),
    (mbpp(PAIR, "assert (f(0)) == [1, 2]"), ["(1, 2)"], ["[2, 1]"]),
    (mbpp("def f(x): return 2.0", "assert abs(f(0) - 2) < 0.1"), ["2.05"], ["2.15"]),
    (mbpp("def f(x): return 1/3", "assert round(f(0), 2) == 0.33"), ["0.331"], ["0.34"]),
    (mbpp(MATCH, "assert f('ab')", "assert not f('b')"), ["x if 'ab' in x else None", "'ab' in x"], ["x"]),
    (EXACT, ["{x: {(1, b'a')}}"], ["{'3': {(1, b'a')}}", "{x: [(1, b'a')]}"]),
    (plus([3], [50_000], atol=1e-4), ["2.0 * x + 9e-5"], ["2.0 * x + 0.01"]),
    (plus([3], [50_000]), ["2.0 * x + 1e-7"], ["2.0 * x + 0.01", "4.0"]),
    (plus([[5, 6]], [[]], **TUPLE), ["{x: 1} and x[0]"], ["1"]),
    (human(GIVEN, "    return half(x)\n", CHECK), ["half(x)", "math.floor(x / 2)"], ["x / 2"]),
]


@pytest.mark.parametrize(("row", "right", "wrong"), CASES)
def test_a_row_is_judged_as_its_own_test_code_would(tmp_path, row, right, wrong):
    (problem,) = converted(tmp_path, row)
    assert reference_solution(problem) == problem.solutions[0]
    for value in right + wrong:
        passed = grade_program(f"def f(x): return {value}", golden_tests(problem)).passed
        assert passed is (value in right), value


def test_shown_assertions_become_examples_and_slow_tests_stay_behind(tmp_path):
    slow = "def f(x):\n    for _ in range(10**7 if x == 3 else 1): pass\n    return 2.0 * x"
    (problem,) = converted(tmp_path, plus([3], [4], [2], canonical_solution=slow))
    assert [test["args"] for test in problem.tests] == [[2], [4]]
    assert [test["args"] for test in problem.examples] == [[2]]
    assert problem.question == "q\nassert f(2) == 4.0"


def test_rows_that_cannot_be_converted_are_named(tmp_path, capsys):
    wrong = [
        mbpp("def f(x): return 3", "assert f(1) == 2", task_id="wrong"),
        mbpp("def f(x): return x", "assert len(f([1])) == 1", task_id="own way"),
        mbpp("def sum_div(x): return x", "assert sum_div(1) == 1", task_id="open"),
        mbpp("import numpy\ndef f(x): return x", "assert f(1) == 1", task_id="absent"),
        mbpp("def f(x): return f", "assert f(1)", task_id="no data"),
        {"code": "x", "task_id": "no tests"},
    ]
    (problem,) = converted(tmp_path, mbpp("def f(x): return x", "assert f(1) == 1"), *wrong)
    assert problem.fn_name == "f"
    printed = capsys.readouterr().out
    assert all(f"left out {row['task_id']}: " in printed for row in wrong)
    assert "1 of 7 rows" in printed
