"""docs/your_team.md: its code is examples/newsroom.py, its commands work, and (slow) its trainings end as it says."""

import io
import json
import re
import shlex
import sys

import pytest
from helpers import FENCE, ROOT

import evaluate
import train
from records.console import half_up
from tools import check, play

PAGE = (ROOT / "docs" / "your_team.md").read_text(encoding="utf-8")
SMALL = "--steps 1 --envs-per-step 2 --num-candidates 2 --warm-start 2 --eval-envs 4 --device cpu"


def blocks(info):
    return [text for found, text in FENCE.findall(PAGE) if found == info]


def commands(start):
    """The arguments of every command of the page that begins with these words."""
    lines = "".join(blocks("bash")).replace("\\\n", " ").splitlines()
    return [shlex.split(line.removeprefix(start), comments=True) for line in lines if line.startswith(start)]


@pytest.fixture(autouse=True)
def _in_the_folder_of_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short training in place of the page's."""
    folder = tmp_path_factory.mktemp("runs") / "newsroom"
    task = f"--task {ROOT}/examples/newsroom.py:Newsroom --policies per_role --output-dir {folder}"
    train.main([*task.split(), *SMALL.split()])
    return folder


def test_the_blocks_of_the_page_are_the_example():
    example = (ROOT / "examples" / "newsroom.py").read_text(encoding="utf-8")
    assert len(example.splitlines()) < 70
    assert "\n\n".join(blocks("python")) == example


def test_the_check_finds_nothing(capsys):
    (arguments,) = commands("python -m tools.check ")
    check.main(arguments)
    found = capsys.readouterr().out
    assert found.endswith("no mistake found\n")
    (options,) = re.findall(r"^options: (.*)", found, re.M)
    assert f"and its options: {options}" in PAGE
    check.check(check.make_env(arguments[0], naive=True), arguments[0])


def test_the_games_of_the_page(run, capsys, monkeypatch):
    alone, team = commands("python -m tools.play ")
    monkeypatch.setattr(sys, "stdin", io.StringIO("3 0 1\n\nU D R\n\n"))
    play.main(alone)
    assert "[editor: user]\npoints: 3 0 1" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("?\nU D R\n\n"))
    play.main([str(run) if word == "runs/newsroom" else word for word in team])
    out = capsys.readouterr().out
    assert len(re.findall(r"^[* ] team=", out, re.M)) == 16  # eight of the writer, eight hints
    assert out.count("[writer of the team]") == 1


def test_a_checkpoint_loads_as_the_page_says(run, capsys):
    (code,) = blocks("python transformers")
    folder = "runs/newsroom/checkpoints/step-000100/writer"
    assert folder in code
    capsys.readouterr()
    exec(code.replace(folder, f"{run}/checkpoints/step-000001/writer"), {})
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_trainings_end_as_the_page_says(tmp_path, capsys):
    trainings = [words for words in commands("python train.py ") if "--output-dir" in words]
    last = {}
    for words in trainings:
        name = words[-1]
        train.main([*words[:-1], str(tmp_path / name)])
        row = json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])
        printed = capsys.readouterr().out.splitlines()[-1]
        last[name] = row | {"success": float(re.search(r"-> (\d\.\d\d) ", printed)[1])}
    naive, repaired = last["runs/naive"], last["runs/newsroom"]
    assert naive["writer/local"] > 0.95
    assert naive["success"] < 0.2
    assert repaired["success"] > 0.85
    (words,) = commands("python evaluate.py ")
    evaluate.main([str(tmp_path / words[0]), *words[1:]])
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"success {half_up(repaired['success'])}")
