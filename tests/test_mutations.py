"""A search: in files from elsewhere any value may be of another kind, huge or missing. Each command that reads them
ends with its result or with one line. RUN_EXAMPLES says how many files are changed."""

import json
import os
import random
import shutil

import pytest
from test_runs import command, refuses, resume

import evaluate
import report
import train
from envs import make_env
from records.console import errors_in_one_line

EXAMPLES = int(os.environ.get("RUN_EXAMPLES", "4"))  # a longer search: 60 take three minutes
ODD = (None, True, -1, 0, 0.5, 2**70, 10**400, float("nan"), float("inf"), [], {}, [[]], [None], ["a"], [0] * 3)
ODD += ({"": {}}, "", "a", "\ud800", "\0\n", "9" * 9999, "../a")
CALL = {"fn_name": "f", "args": [1, [2]], "expected": {"a": 1}, "accept": [3], "atol": 0.1, "compare": "set"}
ROWS = {
    "math": [{"question": "Q?", "answer": "5", "error": "1e-1"}, {"problem": "Q?", "final_answer": ["1", "2"]}],
    "code": [
        {"question": "Q?", "tests": [CALL], "examples": [CALL], "solutions": ["a = 1"], "given": "import math"},
        {"question": "Q?", "tests": [{"input": "1", "output": "2", "accept": ["3"]}]},
        {
            "question": "Q?",
            "input_output": '{"inputs": [[1]], "outputs": [2], "fn_name": "f"}',
            "starter_code": "a = 1",
        },
        {"question_content": "Q?", "metadata": "{}", "public_test_cases": "[]", "private_test_cases": "[]"},
    ],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train.main(command(folder, 2, "--adapter", "lora"))
    return folder


def changed(rng, value):
    """The same with an odd value at some place, or without it."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    if not keys or rng.random() < 0.15:
        return rng.choice(ODD)
    key, value = rng.choice(keys), value.copy()
    value[key] = changed(rng, value[key])
    if rng.random() < 0.1:
        del value[key]
    return value


def spoil(rng, path):
    *lines, last = path.read_text().split("\n") if path.suffix == ".jsonl" else [path.read_text(), ""]
    at = rng.randrange(len(lines))
    lines[at] = json.dumps(changed(rng, json.loads(lines[at])))
    path.write_text("\n".join([*lines, last]))


def ends(main, *argv):
    try:
        main([str(word) for word in argv])
    except SystemExit as end:
        message = str(end.code)
    else:
        return
    assert ": error: " in message
    assert "\n" not in message
    assert len(message) < 1100


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_a_run_folder(run, tmp_path, seed):
    rng, folder = random.Random(seed), tmp_path / "run"
    shutil.copytree(run, folder)
    spoil(rng, rng.choice(sorted([*folder.glob("*.json*"), *folder.glob("checkpoints/step-000002/*/*.json")])))
    ends(report.main, folder)
    ends(evaluate.main, folder, "--envs", 2)
    ends(train.main, *resume(folder, "--steps", 3))
    refuses(train.main, "--like", folder, "--steps", 0)


def read(words):
    with errors_in_one_line("read"):
        env = make_env(words[0], data=words[1])
        env.observe(env.agents[0])


@pytest.mark.parametrize("task", ROWS)
def test_a_data_file(tmp_path, task):
    rng = random.Random(0)
    for number in range(20 * EXAMPLES):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(json.dumps(rng.choice(ROWS[task])) + "\n")
        spoil(rng, path)
        ends(read, task, path)
