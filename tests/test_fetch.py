"""The command that writes the data sets: every format, the authors' splits, no question in two sets.

`datasets` is replaced by a fake with hand-made rows: the tests need neither the package nor a network.
"""

import base64
import builtins
import hashlib
import json
import pickle
import sys
import types
import zlib

import pytest

from tasks import code_data, math_env
from tasks.code_grading import GOLDEN_TESTS, golden_tests, reference_solution
from tasks.data import check_disjoint, read_rows
from tools import fetch

HUB = "hf://datasets/"


def apps(number, question=None, **fields):
    row = {
        "id": number,
        "question": question or f"Print {number}.",
        "difficulty": "easy",
        "url": "",
        "starter_code": "",
    }
    row["input_output"] = json.dumps({"inputs": ["\n"], "outputs": [f"{number}\n"]})
    row["solutions"] = json.dumps([f"print({number})"] * 8)
    return {**row, **fields}


def contest(number, tests=1, **fields):
    pairs = {"input": [str(n) for n in range(tests)], "output": [str(n) for n in range(tests)]}
    row = {"name": f"c{number}", "description": f"Contest {number}: repeat.", "time_limit": {"seconds": 2, "nanos": 0}}
    row |= {"public_tests": {"input": ["7"], "output": ["7"]}, "private_tests": pairs, "generated_tests": pairs}
    row["solutions"] = {"language": [2, 1, 3, 3], "solution": ["int main", "print raw_input()", "print(input())", "x"]}
    row["incorrect_solutions"] = {"language": [3], "solution": ["print(0)"] * 1000}
    return {**row, **fields}


def live(number):
    hidden = base64.b64encode(zlib.compress(pickle.dumps(json.dumps([{"input": "2", "output": "4"}])))).decode()
    row = {"question_title": "t", "question_content": f"Double {number}.", "question_id": str(number)}
    row |= {"contest_date": object(), "starter_code": "", "metadata": "{}", "private_test_cases": hidden}
    return {**row, "public_test_cases": json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}])}


HUB_ROWS = {
    ("POLARIS-Project/Polaris-Dataset-53K", None): {
        "train": [
            {"problem": "What is 1+1?", "answer": "2", "difficulty": "3/8"},
            {"problem": "what is  7×6?", "answer": "42", "difficulty": "1/8"},  # AIME 2024 has it, written differently
            {"problem": "No answer.", "answer": "", "difficulty": "1/8"},
        ]
    },
    ("Maxwell-Jia/AIME_2024", None): {
        "train": [{"ID": "2024-I-1", "Problem": "What is 7×6?", "Solution": "think", "Answer": 42}]
    },
    ("yentinglin/aime_2025", None): {
        "train": [{"problem": "wrong part", "answer": "0"}],
        "test": [{"id": 1, "problem": "What is 10%?", "answer": "0.1", "solution": "s", "year": "2025"}],
    },
    ("Hothan/OlympiadBench", "OE_TO_maths_en_COMP"): {
        "train": [
            {"id": 1, "question": "Which?", "final_answer": ["4.2"], "error": "1e-1", "image_1": None, "unit": ""}
        ]
    },
    ("deepmind/code_contests", None): {"train": [contest(1), contest(2, tests=90)], "test": [contest(3)]},
}
FILE_ROWS = {
    f"{HUB}codeparrot/apps/test.jsonl": [apps(n) for n in range(4600)]
    + [apps(9999)],  # the last of them belong to nobody
    f"{HUB}codeparrot/apps/train.jsonl": [
        apps(7, question=" PRINT  3."),  # the fourth of the evaluation set
        apps(10, question="Easier 10.", input_output=""),
        apps(11, question="Easier 11.", input_output="{not json"),
        apps(12, question="Easier 12.", input_output=json.dumps({"inputs": [], "outputs": []})),
        apps(13, question="Line\u2028separator é"),
        apps(14, question="Easier 14.", input_output='{"inputs": ["\\n"], "outputs": ["' + "9" * 5000 + '\\n"]}'),
        apps(
            15, question="Easier 15.", input_output='{"fn_name": "f", "inputs": [[1]], "outputs": [' + "9" * 5000 + "]}"
        ),
    ],
    f"{HUB}livecodebench/code_generation_lite/test6.jsonl": [live(1), live(2)],
}


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    """A fake package `datasets`, and the list of what it was asked for."""
    asked = []

    def load_dataset(path, config=None, split=None, data_files=None):
        asked.append(path if data_files is None else data_files["rows"])
        if path == "json":
            assert split == "rows"
            return FILE_ROWS[data_files["rows"]]
        parts = HUB_ROWS[path, config]
        return parts if split is None else parts[split]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    limit = sys.get_int_max_str_digits()
    yield asked
    sys.set_int_max_str_digits(limit)


def rows_of(folder, file):
    return read_rows(str(folder / f"{file}.jsonl"))


def test_all_files_are_written_load_and_share_no_question(tmp_path, hub, capsys):
    fetch.main(["all", "--output", str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {f"{file}.jsonl" for file in fetch.FILES} | {"sources.json"}
    assert len(fetch.SETS) == 7
    assert len(hub) == len(fetch.FILES), "each file is fetched once"
    problems = {}
    for file, source in fetch.FILES.items():
        module = math_env if source.format == "mathematics" else code_data
        problems[file] = module.load_problems(str(tmp_path / f"{file}.jsonl"))
        assert len(problems[file]) == len(rows_of(tmp_path, file))
    for file, source in fetch.FILES.items():
        for other, evaluation in fetch.FILES.items():
            if source.train and not evaluation.train:
                check_disjoint({name: [problem.question for problem in problems[name]] for name in (file, other)})
    printed = capsys.readouterr().out
    assert "polaris.jsonl: 1 rows" in printed
    assert printed.count("left out 1 (also in an evaluation set)") == 2
    for file in ("apps_test", "code_contests_train"):
        assert all(golden_tests(problem) for problem in problems[file])
    assert reference_solution(problems["code_contests_test"][0], 6.0) == "print(input())"


def test_splits_are_those_of_the_authors(tmp_path):
    fetch.main(["apps", "aime25", "--output", str(tmp_path)])
    numbers = {file: [row["question"] for row in rows_of(tmp_path, file)] for file in ("apps_test", "apps_train")}
    assert numbers["apps_test"] == [f"Print {n}." for n in range(500)]
    assert numbers["apps_train"] == [f"Print {n}." for n in range(500, 4500)]
    assert [row["problem"] for row in rows_of(tmp_path, "aime25")] == ["What is 10%?"]


def test_a_training_set_brings_the_evaluation_sets_of_its_kind_and_no_others(tmp_path, hub):
    fetch.main(["polaris", "--output", str(tmp_path)])
    names = {path.stem for path in tmp_path.glob("*.jsonl")}
    assert names == {"polaris", "aime24", "aime25", "olympiadbench"}
    hub.clear()
    fetch.main(["polaris", "--output", str(tmp_path)])
    assert hub == ["POLARIS-Project/Polaris-Dataset-53K"], "what is there is not fetched again"


def test_rows_that_nobody_can_use_are_counted_by_reason(tmp_path, capsys):
    fetch.main(["apps", "--output", str(tmp_path)])
    rows = rows_of(tmp_path, "apps_train_easier")
    assert [row["question"] for row in rows] == ["Line\u2028separator é", "Easier 14.", "Easier 15."]
    counts = json.loads((tmp_path / "sources.json").read_text())["apps_train_easier"]["counts"]
    assert counts == {"rows": 3, "also in an evaluation set": 1, "no tests": 2, "unreadable: ValueError": 1}
    printed = capsys.readouterr().out
    assert all(f"left out {count} ({reason})" in printed for reason, count in counts.items() if reason != "rows")


def test_rows_are_cut_to_what_is_read(tmp_path):
    fetch.main(["code_contests", "livecodebench_v6", "olympiadbench", "--output", str(tmp_path)])
    first, long = rows_of(tmp_path, "code_contests_train")
    assert set(first) == set(fetch.KEEP["CodeContests"])
    assert first["solutions"] == {"language": [3, 3], "solution": ["print(input())", "x"]}
    kinds = ("public_tests", "private_tests", "generated_tests")
    assert [len(long[kind]["input"]) for kind in kinds] == [1, GOLDEN_TESTS - 1, 0]
    assert [len(long[kind]["output"]) for kind in kinds] == [1, GOLDEN_TESTS - 1, 0]
    assert "contest_date" not in rows_of(tmp_path, "livecodebench_v6")[0]
    (row,) = rows_of(tmp_path, "olympiadbench")
    assert (row["final_answer"], row["error"]) == (["4.2"], "1e-1")
    assert "image_1" not in row


def test_what_was_written_can_be_compared(tmp_path):
    fetch.main(["aime24", "--output", str(tmp_path)])
    entry = json.loads((tmp_path / "sources.json").read_text())["aime24"]
    assert entry["sha256"] == hashlib.sha256((tmp_path / "aime24.jsonl").read_bytes()).hexdigest()
    assert entry["path"] == "Maxwell-Jia/AIME_2024"
    fetch.main(["aime25", "--output", str(tmp_path)])
    assert set(json.loads((tmp_path / "sources.json").read_text())) == {"aime24", "aime25"}


def test_errors_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(HUB_ROWS, ("Maxwell-Jia/AIME_2024", None), {"train": [{"Problem": "?", "Answer": None}]})
    with pytest.raises(SystemExit, match=r"aime24: not a single row of Maxwell-Jia/AIME_2024 is usable"):
        fetch.main(["aime24", "--output", str(tmp_path)])
    assert list(tmp_path.glob("aime24*")) == []
    with pytest.raises(SystemExit):
        fetch.main(["aime", "--output", str(tmp_path)])
    monkeypatch.delitem(sys.modules, "datasets")
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "datasets":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SystemExit, match="pip install datasets"):
        fetch.main(["aime25", "--output", str(tmp_path)])
