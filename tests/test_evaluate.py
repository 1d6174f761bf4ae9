"""evaluate.py on runs and models, and a smoke training run of every task and workflow with the tiny model."""

import json
import math
import re
import shutil

import pytest
from helpers import lines

import evaluate
import train
from envs import make_env
from records.console import half_up
from records.run_folder import latest_checkpoint

RUN = (
    "--steps 1 --envs-per-step 2 --num-candidates 2 --warm-start 20 --eval-envs 12 --max-turns 2 "
    "--max-response-tokens 12 --device cpu"
)
BOARD = "--env-options rows=3 cols=3 blocks=0 max_moves=4 view=cells"  # small: an untrained team solves a few


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of one shared policy."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train.main([*RUN.split(), *BOARD.split(), "--output-dir", str(folder)])
    return folder


def refuses(*argv):
    """The message of a command that must not start. Any other exception than SystemExit is a traceback for the user."""
    with pytest.raises(SystemExit) as exit_:
        evaluate.main([str(value) for value in argv])
    message = str(exit_.value.code)
    assert message.startswith("evaluate.py: error: ")
    return message


def rows(path):
    """Rows of a log, as strict JSON: a NaN is no number that other tools read."""

    def refuse(constant):
        raise AssertionError(f"{path.name} holds {constant}")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


# ---------------------------------------------------------------------------------------------------------- evaluate.py


def test_a_run_is_evaluated_as_its_own_training_did_and_again_the_same(run, capsys):
    first, second = (lines(capsys, run, "--envs", 12) for _ in range(2))
    assert first == second
    found = re.fullmatch(r"success (\d\.\d\d) \(n=12, se (\d\.\d\d)\)", first[-1])
    assert found, first[-1]
    saved = rows(run / "evaluations.jsonl")[-1]
    assert 0 < saved["success"] < 1, "a number that could be wrong"
    assert found.groups() == (half_up(saved["success"]), half_up(saved["se"]))
    assert saved["se"] == pytest.approx(math.sqrt(saved["success"] * (1 - saved["success"]) / 12))
    assert first[1].startswith(f"turns used {saved['turns']:.2f}; ")
    for agent, share in saved["formats"].items():
        assert f"{agent} {share:.2f}" in first[2]


def test_samples_repeat_and_count_environments(run, capsys):
    command = (run, "--envs", 5, "--samples", 3, "--temperature", 1)
    first = lines(capsys, *command)
    assert first == lines(capsys, *command)
    assert "(n=5, se " in first[-1]
    ended = re.search(r"ended by (\{.*\})", first[1])
    assert ended, first[1]
    assert sum(json.loads(ended[1].replace("'", '"')).values()) == 15


def test_every_role_gets_its_own_policy_back(tmp_path, capsys):
    train.main(
        [
            *RUN.split(),
            *BOARD.split(),
            "--warm-start",
            "1",
            "--policies",
            "per_role",
            "--output-dir",
            str(tmp_path / "roles"),
        ]
    )
    printed = lines(capsys, tmp_path / "roles", "--envs", 4)
    for agent in ("tool_user", "planner"):
        assert re.search(rf"policy {agent} \(\S+ parameters\) plays {agent}(;|$)", printed[0])
    assert "(n=4, se " in printed[-1]


def test_a_model_folder_is_the_team_of_its_run(run, capsys):
    model = latest_checkpoint(run) / "shared"
    of_model = lines(
        capsys, model, "--envs", 12, "--max-turns", 2, "--max-response-tokens", 16, "--device", "cpu", *BOARD.split()
    )
    of_run = lines(capsys, run, "--envs", 12)
    assert of_model[1:] == of_run[1:]
    assert [line.split(":")[0] for line in (of_model[0], of_run[0])] == [
        f"plan_path (mas), {name}" for name in (model, model.parent.name)
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--task sudoku", "--task sudoku: the run was started with --task plan_path"),
        ("--max-turns 3", "--max-turns 3: the run was started with --max-turns 2"),
        ("--data other.jsonl", "--data other.jsonl: the run was started with --data"),
        ("--smaples 4", "--smaples: no such option (did you mean --samples?)"),
        ("--envs -1", "--envs -1: "),
        ("--samples 0", "--samples 0: "),
        ("--temperature nan", "--temperature nan: "),
        ("--top-p 0", "--top-p 0.0: "),
        ("--top-p 0.5", "--top-p 0.5 needs --temperature"),
        ("--samples 4", "--samples 4 needs --temperature"),
        ("--engine-memory 1", "--engine-memory 1.0: "),
        ("--engine magic", "'magic' for argument '--engine'"),
    ],
)
def test_a_run_keeps_its_own_options(run, options, message):
    assert message in refuses(run, *options.split())


def test_a_source_that_is_missing_is_named(tmp_path):
    assert str(tmp_path / "missing") in refuses(tmp_path / "missing")


def test_a_folder_that_holds_no_model_is_named(tmp_path):
    assert str(tmp_path) in refuses(tmp_path)


def test_a_run_without_checkpoint_is_named(run, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    shutil.copy(run / "config.json", tmp_path)
    assert f"{tmp_path}: no complete checkpoint" in refuses(tmp_path)


# --------------------------------------------------------------------------------------- every task with every workflow

MATH: list[dict] = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(4)]
CODE: list[dict] = [
    {
        "question": f"Add {n} to a number.",
        "tests": [{"input": "1\n", "output": f"{n + 1}\n"}],
        "solutions": [f"print(int(input()) + {n})"],
    }
    for n in range(4)
]
BOARDS = [
    (task, workflow, ["--env-options", f"tool={tool}"])
    for task in ("plan_path", "sokoban", "sudoku")
    for workflow in ("mas", "single")
    for tool in ("direct", "python")
]
PROBLEMS = [("math", "mas"), ("math", "single"), ("math", "ensemble"), ("code", "mas"), ("code", "single")]


def smoke(folder, task, workflow, options):
    """One step of one turn through the command; checks what it wrote and returns the row of metrics."""
    command = "--steps 1 --envs-per-step 2 --num-candidates 2 --max-turns 1 --max-response-tokens 8 --warm-start 1"
    names = ["--task", task, "--workflow", workflow, "--output-dir", str(folder)]
    train.main([*command.split(), *names, "--eval-envs", "2", "--device", "cpu", *options])
    (row,) = rows(folder / "metrics.jsonl")
    assert row["ended/infra"] == row["groups/invalid"] == 0
    assert [(found["step"], found["n"]) for found in rows(folder / "evaluations.jsonl")] == [(0, 2), (1, 2)]
    assert latest_checkpoint(folder).name == "step-000001"
    return row


def check_agents(row, agents):
    """Two environments, one turn: two candidates of every agent in each, all sampled and scored."""
    assert row["samples"] == 2 * 2 * len(agents)
    assert {name.removesuffix("/reward") for name in row if name.endswith("/reward")} == set(agents)


@pytest.mark.parametrize(("task", "workflow", "options"), BOARDS)
def test_every_board_trains(tmp_path, capsys, task, workflow, options):
    row = smoke(tmp_path / "run", task, workflow, options)
    check_agents(row, make_env(task, workflow, tool=options[-1].split("=")[1]).agents)
    assert "no warm start" not in capsys.readouterr().out


@pytest.mark.parametrize(("task", "workflow"), PROBLEMS)
def test_mathematics_and_code_train_and_say_that_nothing_is_imitated(tmp_path, capsys, task, workflow):
    problems = MATH if task == "math" else CODE
    options = []
    for option, part in (("--data", problems[:2]), ("--eval-data", problems[2:])):
        path = tmp_path / f"{option.strip('-')}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in part))
        options += [option, str(path)]
    row = smoke(tmp_path / "run", task, workflow, options)
    check_agents(row, make_env(task, workflow, data=options[1]).agents)
    assert f"no warm start: {task}" in capsys.readouterr().out


def test_problems_that_are_in_both_files_stop_a_run(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(MATH[0]))
    with pytest.raises(SystemExit, match=r"'--data' and '--eval-data' overlap.*What is 0 \+ 0\?"):
        smoke(tmp_path / "run", "math", "single", ["--data", str(path), "--eval-data", str(path)])
