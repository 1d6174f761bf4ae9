"""Reading data sets: every way a file can be wrong is an error that names the file and the line."""

import json
import random
import sys
import types

import pytest

from tasks.data import check_disjoint, fixed_order, read_rows

ROWS = [{"question": "1+1?", "answer": 2}, {"question": "line\u2028separator", "answer": None}, {"a": 10**5000}]
DEEP = "[" * 100_000 + "]" * 100_000
BAD = [  # name, content, what the error says
    ("bad.jsonl", '{"a": 1}\n{"a": ', r"bad\.jsonl.*line 2: not JSON"),
    ("bad.jsonl", b'{"a": 1}\n{"a": "\xff"}', r"bad\.jsonl.*line 2: not JSON \('utf-8' codec"),
    ("bad.jsonl", '{"a": 1}\n{"a": ' + DEEP + "}", r"bad\.jsonl.*line 2: not JSON \(nested too deeply"),
    ("bad.jsonl", '{"answer": 1, "question": "", "answer": 2}', r"line 1: not JSON \(.*'answer'.*stands twice"),
    ("bad.jsonl", '{"question": "\\ud83d"}', r"line 1: not JSON \(.*surrogates not allowed"),
    ("bad.jsonl", '{"answer": ' + "7" * 3_000_000 + "}", r"line 1: not JSON \(.*digits"),
    ("bad.json", DEEP, r"bad\.json.*not JSON \(nested too deeply"),
    ("bad.json", '{"a": 1}', r"bad\.json.*one list of objects"),
    ("bad.json", "[1, 2]", r"bad\.json.*row 1: not an object"),
    ("empty.jsonl", "\n \n", r"empty\.jsonl.*no rows"),
    ("rows.csv", "a,b", r"rows\.csv.*expected a \.jsonl"),
]


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_jsonl_and_json_give_the_same_rows(tmp_path):
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
    assert read_rows(write(tmp_path, "a.jsonl", lines + "\n\n")) == ROWS
    assert read_rows(write(tmp_path, "b.jsonl", "\ufeff" + lines.replace("\n", "\r\n"))) == ROWS
    assert read_rows(write(tmp_path, "c.json", json.dumps(ROWS, indent=1))) == ROWS


@pytest.mark.parametrize(("name", "content", "message"), BAD, ids=lambda value: str(value)[:20])
def test_malformed_files_are_errors_that_name_file_and_line(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        read_rows(write(tmp_path, name, content))


def test_missing_files_and_sources_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.jsonl"):
        read_rows(str(tmp_path / "nothing.jsonl"))
    for source in ["", "a/b/c", str(tmp_path)]:
        with pytest.raises(ValueError, match="hub id"):
            read_rows(source)


def test_hub_ids_need_the_optional_package_and_are_read_with_their_config_and_split(monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"openai/gsm8k.*pip install datasets"):
        read_rows("openai/gsm8k")
    fake = types.SimpleNamespace(load_dataset=lambda *args, **kwargs: calls.append((args, kwargs)) or ROWS)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert read_rows("openai/gsm8k:test", config="main") == ROWS
    assert read_rows("openai/gsm8k") == ROWS
    assert calls == [(("openai/gsm8k", "main"), {"split": "test"}), (("openai/gsm8k", None), {"split": "train"})]


def test_overlap_shows_the_question():
    check_disjoint(["a", "a", "x + 1"], ["x - 1"])
    with pytest.raises(ValueError, match=r"both contain.*How  many"):
        check_disjoint(["how many\nAPPLES?"], iter(["b", "How  many apples?"]))


def test_fixed_order_is_a_permutation_and_leaves_the_global_generator_alone():
    random.seed(7)
    state = random.getstate()
    assert sorted(fixed_order(100)) == list(range(100))
    assert fixed_order(100) == fixed_order(100) != tuple(range(100))
    assert random.getstate() == state
