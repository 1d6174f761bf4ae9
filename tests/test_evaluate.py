"""evaluate.py on runs and models, and a smoke training run of every task and workflow with the tiny model."""

import json
import math
import re
import shutil

import pytest
import torch
from helpers import lines, refuses
from test_env_contract import CODE, MATH

import evaluate
import train
from options import load
from prepare import levels_of
from records.console import half_up
from records.run_folder import latest_checkpoint, read_rows
from sampling.transformers_engine import choose

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


def test_a_run_is_evaluated_as_its_own_training_did_and_again_the_same(run, capsys):
    first, second = (lines(capsys, run, "--envs", 12) for _ in range(2))
    assert first == second
    saved = read_rows(run / "evaluations.jsonl")[-1]
    assert 0 < saved["success"] < 1, "a number that could be wrong"
    assert first[-1] == f"success {half_up(saved['success'])} (n=12, se {half_up(saved['se'])})"
    assert saved["se"] == pytest.approx(math.sqrt(saved["success"] * (1 - saved["success"]) / 12))
    assert first[1].startswith(f"turns used {saved['turns']:.2f}; ")
    for agent, share in saved["formats"].items():
        assert f"{agent} {share:.2f}" in first[2]


def test_samples_repeat_and_count_environments(run, capsys):
    command = (run, "--envs", 5, "--samples", 3, "--temperature", 1)
    first = lines(capsys, *command)
    assert first == lines(capsys, *command)
    assert "(n=5, se " in first[-1]
    assert sum(map(int, re.findall(r"': (\d+)", first[1]))) == 15


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
        ("--temperature nan", "--temperature nan: "),
        ("--top-p 0.5", "--samples and --top-p need --temperature"),
        ("--samples 4", "--samples and --top-p need --temperature"),
        ("--engine-memory 1", "--engine-memory 1.0: "),
    ],
)
def test_options_of_an_evaluation_that_make_no_sense_are_named(run, options, message):
    assert message in refuses(evaluate.main, run, *options.split())


def test_a_source_without_a_model_is_named(run, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    shutil.copy(run / "config.json", tmp_path / "run")
    for name, words in (("missing", "no such folder"), ("", str(tmp_path)), ("run", "names no complete checkpoint")):
        assert words in refuses(evaluate.main, tmp_path / name)


def test_top_p_samples_from_the_likeliest_tokens_only(run, capsys):
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(1000, 1)[:, [2, 0, 3, 1]]
    noise = torch.linspace(0, 0.9999, 1000, dtype=torch.float64)
    for top_p, odds in ((0.4, {1: 1.0}), (0.5001, {1: 0.625, 3: 0.375})):
        token, logps = choose(logits, torch.arange(len(noise)), noise, 1.0, top_p)
        assert set(token.tolist()) == {*odds}
        for which, share in odds.items():
            assert (token == which).float().mean() == pytest.approx(share, abs=2e-3)
            assert logps[token == which].exp() == pytest.approx(share, abs=1e-5)
    sampled = ("--top-p", "0.5", "--temperature", "1", "--samples", "2")
    assert "(n=3, se " in lines(capsys, run, "--envs", 3, *sampled)[-1]


CASES = [
    *((task, workflow, "") for task in ("plan_path", "sokoban", "sudoku") for workflow in ("mas", "single")),
    *((task, "mas", "python") for task in ("plan_path", "sokoban", "sudoku")),
    *(("math", workflow, "") for workflow in ("mas", "single", "ensemble")),
    ("plan_path", "tool", "python"),
    ("code", "mas", ""),
    ("code", "single", ""),
]


@pytest.mark.parametrize(("task", "workflow", "tool"), CASES)
def test_one_step_of_one_turn(tmp_path, capsys, task, workflow, tool):
    """Through the command. Two environments, two candidates of every agent: all are sampled and scored."""
    options = ["--task", task, "--workflow", workflow, "--output-dir", str(tmp_path / "run"), "--device", "cpu"]
    if problems := {"math": MATH, "code": CODE}.get(task):
        for option, part in (("--data", problems[:2]), ("--eval-data", problems[2:])):
            path = tmp_path / f"{option.strip('-')}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in part))
            options += [option, str(path)]
    elif tool:
        options += ["--env-options", f"tool={tool}"]
    small = "--steps 1 --envs-per-step 2 --num-candidates 2 --max-turns 1 --max-response-tokens 8 --warm-start 1"
    train.main([*small.split(), "--eval-envs", "2", *options])
    (row,) = read_rows(tmp_path / "run" / "metrics.jsonl")
    agents = levels_of(load(tmp_path / "run")).training_env.agents
    assert row["samples"] == 2 * 2 * len(agents)
    assert {name.removesuffix("/reward") for name in row if name.endswith("/reward")} == set(agents)
    assert row["ended/infra"] == row["groups/invalid"] == 0
    evaluations = read_rows(tmp_path / "run" / "evaluations.jsonl")
    assert [(found["step"], found["n"]) for found in evaluations] == [(0, 2), (1, 2)]
    assert (f"no warm start: {task}" in capsys.readouterr().out) == bool(problems)
