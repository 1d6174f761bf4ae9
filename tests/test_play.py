"""`python -m tools.play`: games of one person, and with a trained team: its answers, its candidates, and "?"."""

import io
import json
import re
import sys

import pytest
from helpers import refuses

import train
from envs import make_env
from tools import play

SMALL = "--steps 1 --envs-per-step 2 --num-candidates 2 --warm-start 20 --eval-envs 4 --max-response-tokens 12"
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


@pytest.mark.parametrize("task", ["plan_path", "sokoban", "sudoku"])
def test_the_boards_of_the_default_run_are_drawn_once_a_turn_and_the_rules_once(task, console):
    out = console("#### []\n" * 3, task, "--seed", 3)
    env = make_env(task, **({"rows": 6, "cols": 6, "blocks": 0.12} if task == "plan_path" else {}))
    assert out.count(env.reset(seed=3).render().rpartition("\n")[0]) == 2  # two turns, the second without its end
    assert [out.count(f"[{agent}: system]") for agent in ("tool_user", "planner")] == [1, 1]
    assert [out.count(f"[{agent}: user]") for agent in ("tool_user", "planner")] == [2, 2]
    assert out.endswith("End of input.\n")


def test_a_game_played_to_the_end(console):
    """The way of a proposal and that of the decision are drawn; the final board comes last."""
    out = console("I think\nthis: #### [R, R, U]\n\n#### [R, R, U, U, L]\n", "plan_path", "--seed", 3, "rows=4",
                  "cols=4", "blocks=0.22", "view=grid")  # fmt: skip
    assert "-> team=0.60 local=0.68 format=1.00 executes=1.00\n# . . .\n# G . #\n. # ^ .\nP > > ." in out
    assert "proposal [R, R, U]\n(the board above)" in out
    assert "-> team=1.00 local=1.00 format=1.00 legal=1.00\n# . . .\n# G ^ #\n. # ^ .\nP > > ." in out
    assert out.endswith("Solved.\n")


def test_math_and_code_are_played_from_a_file(tmp_path, console):
    (tmp_path / "math.jsonl").write_text(
        '{"question": "What is 4 + 5?\x1b[2J", "answer": "9"}\n'.replace("\x1b", "\\u001b")
    )
    out = console("I add.\n\\boxed{9}\n\n```python\nprint(9)\n```\n", "math", "--data", tmp_path / "math.jsonl")
    assert out.count("What is 4 + 5?\\x1b[2J") == 2  # shown as text, and the screen stays
    assert out.count("team=1.00 local=1.00") == 2
    assert out.endswith("Solved.\n")
    row = {"question": "Print 7.", "tests": [{"input": "", "output": "7\n"}], "solutions": ["print(7)"]}
    (tmp_path / "code.jsonl").write_text(json.dumps(row) + "\n")
    out = console("```python\n\nprint(7)\n```\n", "code", "--workflow", "single", "--data", tmp_path / "code.jsonl")
    assert "team=1.00 local=1.00" in out
    assert "nowhere.jsonl" in refuses(play.main, "math", "--data", tmp_path / "nowhere.jsonl")


def test_a_person_and_a_team_play_together(run, console):
    out = console("#### []\n" * 2, "plan_path", "--team", run, "--as", "planner", "--seed", 1)
    assert out.count("[tool_user of the team]") == 2  # two turns, as the run had
    assert out.count("[planner: user]") == 2
    assert "[tool_user: user]" not in out
    assert out.endswith(("The turns are over: unsolved.\n", "Solved.\n"))
    assert out != console("#### []\n" * 2, "plan_path", "--team", run, "--as", "planner", "--seed", 2)


def test_a_question_mark_shows_what_the_team_would_answer(run, console):
    out = console("?\n#### []\n", "plan_path", "--team", run, "--as", "planner")
    rows = re.findall(r"^([* ]) team=(\d\.\d\d) local=(\d\.\d\d) .*$", out, re.M)
    assert len(rows) == play.HINTS
    best = [float(team) + float(local) for mark, team, local in rows if mark == "*"]
    assert best == [max(float(team) + float(local) for _, team, local in rows)]
    assert '"?" shows' in out


def test_the_team_alone_takes_the_best_of_its_candidates(run, console):
    """A model plays as a run does, with the task's options."""
    model = f"{run}/checkpoints/step-000001/shared"
    out = console("", "plan_path", *BOARD.split(), "--team", model, "--max-turns", 2, "--candidates", 3)
    blocks = re.findall(r"((?:^[* ] team=.*\n){3})(?:.*\n)*?-> (team=\S+ local=\S+)", out, re.M)
    assert len(blocks) == out.count("of the team]") in (2, 4)
    assert all(f"* {committed}" in block for block, committed in blocks)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sudoku --team RUN", "sudoku has tool=direct size=4"),
        ("plan_path --team RUN --as poet", "--as poet: the roles are tool_user, planner"),
        ("plan_path --as planner", "need --team"),
        ("plan_path row=4", "plan_path has tool=direct rows=10"),
        ("sudoku --data x.jsonl", "its constructor takes no `data`"),
    ],
)
def test_what_does_not_fit_is_refused(run, words, message):
    assert message in refuses(play.main, *words.replace("RUN", run).split())
