"""`python -m tools.play` with a trained team: its answers, its candidates, and "?"; without one see test_envs.py."""

import io
import re
import sys
from pathlib import Path

import pytest

import train
from tools import play

ROOT = Path(__file__).parent.parent
SMALL = (
    "--steps 1 --envs-per-step 2 --num-candidates 2 --warm-start 20 --eval-envs 4 --max-response-tokens 12 --device cpu"
)
BOARD = "rows=3 cols=3 blocks=0 max_moves=4 view=cells"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train.main([*SMALL.split(), "--max-turns", "2", "--env-options", *BOARD.split(), "--output-dir", str(folder)])
    return str(folder)


@pytest.fixture
def console(monkeypatch, capsys):
    def played(text, *arguments):
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        play.main([str(argument) for argument in arguments])
        return capsys.readouterr().out

    return played


@pytest.fixture
def refusal(capsys):
    def refused(*arguments):
        with pytest.raises(SystemExit) as exit_:
            play.main([str(argument) for argument in arguments])
        assert exit_.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    return refused


def test_a_person_and_a_team_play_together(run, console):
    out = console("#### []\n" * 2, "plan_path", "--team", run, "--as", "planner", "--seed", 1)
    assert out.count("[tool_user of the team]") == 2  # two turns, as the run had
    assert out.count("[planner: user]") == 2
    assert "[tool_user: user]" not in out
    assert out.endswith("The turns are over: unsolved.\n") or out.endswith("Solved.\n")
    assert out == console("#### []\n" * 2, "plan_path", "--team", run, "--as", "planner", "--seed", 1)
    assert out != console("#### []\n" * 2, "plan_path", "--team", run, "--as", "planner", "--seed", 2)


def test_a_question_mark_shows_what_the_team_would_answer(run, console):
    out = console("?\n#### []\n", "plan_path", "--team", run, "--as", "planner")
    rows = re.findall(r"^([* ]) team=(\d\.\d\d) local=(\d\.\d\d) .*$", out, re.M)
    assert len(rows) == play.HINTS
    best = [float(team) + float(local) for mark, team, local in rows if mark == "*"]
    assert best == [max(float(team) + float(local) for _, team, local in rows)]
    assert out.endswith("End of input.\n")
    assert '"?" shows' in out


def test_the_team_takes_the_best_of_its_candidates(run, console):
    out = console("", "plan_path", "--team", run, "--candidates", 3)
    turns = out.count("of the team]")
    assert turns in (2, 4)
    assert len(re.findall(r"^[* ] team=", out, re.M)) == 3 * turns
    blocks = re.findall(r"((?:^[* ] team=.*\n){3})(?:.*\n)*?-> (team=\S+ local=\S+)", out, re.M)
    assert len(blocks) == turns
    for block, committed in blocks:
        assert f"* {committed}" in block


def test_a_team_alone_shows_a_game(run, console):
    out = console("", "plan_path", "--team", run)
    assert "Ctrl-D" not in out
    assert out.index("P") < out.index("[tool_user of the team]")  # the board comes first
    assert "[planner of the team]" in out


def test_a_model_plays_too(run, console):
    (model,) = Path(run, "checkpoints").glob("step-000001/shared")
    arguments = ["plan_path", *BOARD.split(), "--team", model, "--max-turns", 2, "--as", "planner"]
    out = console("#### []\n" * 2, *arguments)
    assert out.count("[tool_user of the team]") == 2


def test_what_does_not_fit_is_refused(run, refusal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "it was trained on plan_path, not on sudoku" in refusal("sudoku", "--team", run)
    assert "--as poet: the roles are tool_user, planner" in refusal("plan_path", "--team", run, "--as", "poet")
    assert "need --team" in refusal("plan_path", "--as", "planner")
    assert "runs/missing: there is no such folder" in refusal("plan_path", "--team", "runs/missing")
    assert "keeps the options it was trained with" in refusal("plan_path", "rows=4", "--team", run)
    assert "it has tool=direct rows=10" in refusal("plan_path", "row=4")
    assert "unknown task 'chess'" in refusal("chess")


def test_a_class_in_a_file_is_played(console):
    out = console("3 0 1\n\n3\n\n", f"{ROOT}/examples/newsroom.py:Newsroom", "games=2")
    assert "results: " in out
    assert "[editor: user]" in out
    assert out.count("-> team=") == 2
