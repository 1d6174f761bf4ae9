"""The command: options, run folders, resuming, repeating, and what a run writes. Runs here last a second."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

import prepare
import train
from options import Config, parse, parse_policies
from records.checkpoint import latest_checkpoint
from tasks.boards import Board

ROOT = Path(__file__).parent.parent
OPTIONS = (
    "--envs-per-step 2 --warm-start 20 --eval-envs 4 --max-turns 2 --num-candidates 4 --max-response-tokens 12 "
    "--save-every 1 --lr-warmup 0 --device cpu"
)
SMALL = OPTIONS.split()
SUMMARY = r"held-out success \d\.\d\d -> \d\.\d\d \(n=4, se \d\.\d\d\)"


def run(folder, *options, steps=2):
    train.main([*SMALL, "--output-dir", str(folder), "--steps", str(steps), *options])


def rows(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def weights(folder):
    """The weight files of the newest checkpoint, byte by byte."""
    checkpoint = latest_checkpoint(folder)
    return {str(path.relative_to(checkpoint)): path.read_bytes() for path in checkpoint.rglob("*.safetensors")}


def refuses(*argv):
    """The message of a command that must not start."""
    with pytest.raises(SystemExit) as exit_:
        train.main([*argv])
    assert exit_.value.code not in (0, None)
    return str(exit_.value.code)


@pytest.fixture(scope="module")
def three_steps(tmp_path_factory):
    """An uninterrupted run of three steps."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run(folder, "--keep", "9", steps=3)
    return folder


# ----------------------------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("", (8e-4, 60, 0.99, 1e-5, 28)),
        ("--model some/model", (1e-6, 0, 0.999, 1e-8, 512)),
        ("--model some/model --lr 2e-5 --warm-start 30 --max-response-tokens 32", (2e-5, 30, 0.999, 1e-8, 32)),
        ("--lr 1e-3 --max-response-tokens 8 --adam-eps 1e-6", (1e-3, 60, 0.99, 1e-6, 8)),
    ],
)
def test_some_defaults_depend_on_the_model(argv, expected):
    config, objective = parse(argv.split())
    found = (config.lr, config.warm_start, config.adam_beta2, config.adam_eps, config.max_response_tokens)
    assert found == expected
    assert objective.max_response_tokens == expected[-1]


def test_what_goes_wrong_during_training_keeps_its_traceback(tmp_path, monkeypatch):
    """An error in the options is one line; one in the code of a run is not an error in the options."""
    monkeypatch.setattr(train, "assign_advantages", lambda *_: float("nothing"))
    with pytest.raises(ValueError, match="nothing"):
        run(tmp_path / "run")


def test_two_runs_with_one_seed_are_the_same_to_the_byte(three_steps, tmp_path):
    random.seed(0)
    run(tmp_path / "again", steps=3)
    assert (tmp_path / "again" / "metrics.jsonl").read_bytes() == (three_steps / "metrics.jsonl").read_bytes()
    assert (tmp_path / "again" / "evaluations.jsonl").read_bytes() == (three_steps / "evaluations.jsonl").read_bytes()
    assert weights(tmp_path / "again") == weights(three_steps)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("finished", [0, 1, 2])
def test_a_resumed_run_equals_an_uninterrupted_one(three_steps, tmp_path, monkeypatch, finished):
    """The run stops after the metrics of a step and before its checkpoint: the step is done again."""
    original = prepare.save_checkpoint

    def save(folder, step, *rest):
        if step > finished:
            raise Killed
        return original(folder, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(prepare, "save_checkpoint", save)
        with pytest.raises(Killed):
            run(tmp_path / "cut", "--keep", "9", steps=3)
    assert len(rows(tmp_path / "cut")) == finished + 1
    run(tmp_path / "cut", "--keep", "9", "--resume", steps=3)
    assert (tmp_path / "cut" / "metrics.jsonl").read_bytes() == (three_steps / "metrics.jsonl").read_bytes()
    assert (tmp_path / "cut" / "evaluations.jsonl").read_bytes() == (three_steps / "evaluations.jsonl").read_bytes()
    assert weights(tmp_path / "cut") == weights(three_steps)


def test_evaluations_in_between_survive_a_resume(tmp_path):
    run(tmp_path / "run", "--report-every", "1", steps=3)
    whole = (tmp_path / "run" / "evaluations.jsonl").read_bytes()
    assert [row["step"] for row in rows(tmp_path / "run", "evaluations.jsonl")] == [0, 1, 2, 3]
    run(tmp_path / "run", "--report-every", "1", "--resume", steps=3)  # finished: evaluates again, adds nothing
    assert (tmp_path / "run" / "evaluations.jsonl").read_bytes() == whole


def test_a_run_changes_the_weights_and_writes_a_row_a_step(three_steps):
    assert [row["step"] for row in rows(three_steps)] == [0, 1, 2]
    first, last = (
        AutoModelForCausalLM.from_pretrained(three_steps / "checkpoints" / f"step-{step:06d}" / "shared")
        for step in (0, 3)
    )
    moved = [(a - b).abs().max().item() for a, b in zip(first.parameters(), last.parameters(), strict=True)]
    assert max(moved) > 0
    row = rows(three_steps)[0]
    assert {"solved", "groups/dead_share", "groups/per_turn", "tool_user/reward", "planner/reward"} <= row.keys()
    assert row["shared/logprob_gap"] < 1e-3  # the engine samples from the weights that are trained
    assert sum(row["groups/per_turn"]) == row["groups/trained"] + row["groups/constant"] + row["groups/singleton"]


def test_the_last_line_is_the_result(tmp_path, capsys):
    run(tmp_path / "run")
    out = capsys.readouterr().out
    assert re.fullmatch(SUMMARY, out.strip().splitlines()[-1])
    assert "<|user|>" in out  # the first prompt, as the model sees it
    evaluations = rows(tmp_path / "run", "evaluations.jsonl")
    assert [(row["step"], row["n"]) for row in evaluations] == [(0, 4), (2, 4)]
    assert out.strip().splitlines()[-1].startswith(f"held-out success {evaluations[0]['success']:.2f} -> ")


@pytest.mark.parametrize(
    "options",
    [
        "--sampling chains --grouping trajectory",
        "--workflow single --sampling chains --grouping trajectory",
        "--policies per_role",
        "--policies tool_user=a planner=b --loss sequence --normalize mean_only",
        "--loss constant --minibatches 1 --epochs 2 --temperature 0.7",
    ],
)
def test_methods_are_command_lines(tmp_path, options):
    run(tmp_path / "run", *options.split(), steps=1)
    (row,) = rows(tmp_path / "run")
    policies = {path.name for path in latest_checkpoint(tmp_path / "run").iterdir() if path.is_dir()}
    words = options.split()
    expected = {"per_role": {"tool_user", "planner"}, "tool_user=a": {"a", "b"}}
    assert policies == expected.get(words[1], {"shared"})
    assert all(f"{name}/logprob_gap" not in row or row[f"{name}/logprob_gap"] < 1e-3 for name in policies)


def test_policies_of_roles_start_equal_and_part(tmp_path):
    run(tmp_path / "run", "--policies", "per_role", "--keep", "9")
    folder = tmp_path / "run" / "checkpoints"
    both = [
        [(folder / f"step-{s:06d}" / name / "model.safetensors").read_bytes() for name in ("planner", "tool_user")]
        for s in (0, 2)
    ]
    assert both[0][0] == both[0][1]
    assert len({*both[0], *both[1]}) == 3


def test_training_and_held_out_levels_never_meet(tmp_path, monkeypatch):
    seeds: list[int] = []
    original = Board.reset

    def reset(self, seed):
        seeds.append(seed)
        return original(self, seed)

    monkeypatch.setattr(Board, "reset", reset)
    run(tmp_path / "run", "--seed", "5", "--warm-start", "1")
    training = {seed for seed in seeds if seed < 2**40}
    held_out = {seed for seed in seeds if 2**41 <= seed < 2**41 + 4}
    warm = {seed for seed in seeds if seed >= 3 * 2**40}
    assert set(seeds) == training | held_out | warm
    assert training == {5 * 2**24 + i for i in range(4)}
    assert len(held_out) == 4
    assert warm


OFFLINE = """
import socket, sys
def refuse(*args, **kwargs):
    raise OSError("this test has no network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import train
train.main(sys.argv[1:])
"""


def test_the_command_needs_no_network_account_or_terminal(tmp_path):
    """A fresh process, an empty home, no input, no connection; the result is that of any other process."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", OFFLINE, *SMALL, "--steps", "1", "--output-dir", str(tmp_path / "run")]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(SUMMARY, done.stdout.strip().splitlines()[-1])
    assert len(rows(tmp_path / "run")) == 1


# -------------------------------------------------------------------------------------------------------------- options


def test_help_fits_a_screen_or_two(capsys):
    with pytest.raises(SystemExit) as exit_:
        train.main(["--help"])
    assert exit_.value.code == 0
    out = capsys.readouterr().out
    options = set(re.findall(r"^  (--[a-z][\w-]*)", out, re.M))
    assert {"--task", "--workflow", "--model", "--engine", "--policies", "--sampling", "--grouping"} <= options
    assert {"--steps", "--seed", "--output-dir", "--resume"} <= options
    assert len(options) <= 50
    assert not {option for option in options if "_" in option}  # one spelling each
    assert len(out.splitlines()) <= 112
    assert max(map(len, out.splitlines())) <= 80
    for title in ("task", "team", "sampling", "objective", "engine and memory", "run"):
        assert f"\n{title}:\n" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--stepz 3", "--stepz: no such option (did you mean --steps?)"),
        ("--step 3", "--step"),  # no abbreviations
        ("--task chess", "--task chess"),
        ("--task sudoko", "did you mean sudoku?"),
        ("--alpha nan", "--alpha nan"),
        ("--lr inf", "--lr inf"),
        ("--lr-final -1", "--lr-final -1"),
        ("--workflow ensemble", "workflow='ensemble'"),
        ("--sampling chains", "--sampling chains --grouping agent_turn"),
        ("--grouping trajectory", "--sampling tree --grouping trajectory"),
        ("--num-candidates 1", "--num-candidates 1"),
        ("--steps 0", "--steps 0"),
        ("--eval-envs 0", "--eval-envs 0"),
        ("--max-turns 0", "--max-turns 0"),
        ("--envs-per-step 0", "--envs-per-step 0"),
        ("--max-response-tokens 0", "--max-response-tokens 0"),
        ("--minibatches 0", "--minibatches 0"),
        ("--epochs 0", "--epochs 0"),
        ("--micro-batch-tokens 0", "--micro-batch-tokens 0"),
        ("--keep 0", "--keep 0"),
        ("--seed -1", "--seed -1"),
        ("--temperature 0", "--temperature 0"),
        ("--clip -0.1", "--clip -0.1"),
        ("--lr 0", "--lr 0"),
        ("--warm-start -1", "--warm-start -1"),
        ("--resume", "--output-dir"),
        ("--policies planner=a", "--policies planner=a"),
        ("--device gpu", "--device gpu"),
        ("--device cuda:1", "--device cuda:1"),
        ("--env-options rows", "--env-options rows"),
        ("--env-options height=3", "height"),
        ("--task math", "--data"),
    ],
)
def test_bad_options_are_refused_by_name(tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    assert message in refuses(*SMALL, "--steps", "1", *argv.split())
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_a_sandbox_that_is_required_and_missing_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.sandbox._bubblewrap_problem", lambda: "there is no bwrap")
    message = refuses(*SMALL, "--steps", "1", "--sandbox", "require", "--output-dir", str(tmp_path))
    assert "--sandbox require" in message
    assert "there is no bwrap" in message


@pytest.mark.parametrize("argv", ["--sampling beam", "--loss mean", "--steps many"])
def test_values_that_are_no_choice_are_refused_by_name(argv, capsys):
    refuses(*argv.split())
    assert argv.split()[0] in capsys.readouterr().err


def test_a_second_run_into_the_same_folder_is_refused(three_steps):
    before = (three_steps / "metrics.jsonl").read_bytes()
    assert "--resume" in refuses(*SMALL, "--output-dir", str(three_steps))
    assert (three_steps / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "option", ["--seed 1", "--num-candidates 3", "--policies per_role", "--clip 0.3", "--loss sequence"]
)
def test_resuming_with_other_options_is_refused_by_name(three_steps, option):
    before = (three_steps / "metrics.jsonl").read_bytes()
    argv = [*SMALL, "--steps", "3", "--keep", "9", "--output-dir", str(three_steps), "--resume", *option.split()]
    assert f"was started with {option.split()[0]} " in refuses(*argv)
    assert (three_steps / "metrics.jsonl").read_bytes() == before


def test_resuming_nothing_is_refused(tmp_path):
    assert str(tmp_path) in refuses(*SMALL, "--output-dir", str(tmp_path), "--resume")


def test_ranks_of_a_machine_share_its_cores(monkeypatch):
    config, _ = parse(["--env-options", "tool=python"])
    monkeypatch.setattr("os.cpu_count", lambda: 12)
    for ranks, threads in ((1, 12), (4, 3), (99, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        assert prepare.scoring_pool(config, prepare.task_of(config))._max_workers == threads


AGENTS = ("tool_user", "planner")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["shared"], {"tool_user": "shared", "planner": "shared"}),
        (["per_role"], {"tool_user": "tool_user", "planner": "planner"}),
        (["planner=p", "tool_user=q"], {"tool_user": "q", "planner": "p"}),
        (["planner=one", "tool_user=one"], {"tool_user": "one", "planner": "one"}),
    ],
)
def test_the_map_of_policies(values, expected):
    assert parse_policies(values, AGENTS) == expected


def test_agents_of_a_kind_share_the_policy_of_their_role():
    agents = ("reasoner_1", "reasoner_2", "tool_user_1", "judge")
    assert list(parse_policies(["per_role"], agents).values()) == ["reasoner", "reasoner", "tool_user", "judge"]


@pytest.mark.parametrize(
    "values",
    [
        [], ["each"], ["planner=p"], ["planner=p", "coder=q"], ["planner=p", "tool_user"], ["planner=p", "tool_user="],
        ["planner=p", "tool_user=../x"], ["planner=a", "planner=b", "tool_user=c"], ["shared", "per_role"],
    ],
)  # fmt: skip
def test_a_map_that_names_not_every_agent_once_is_refused(values):
    with pytest.raises(ValueError, match=r"--policies.*tool_user, planner"):
        parse_policies(values, AGENTS)


def test_the_learning_rate_warms_up_and_decays():
    config = Config(steps=11, lr=1.0, lr_warmup=2, lr_final=0.5)
    assert [train.learning_rate(config, step) for step in (0, 1, 10)] == pytest.approx([0.5, 0.95, 0.5])
    assert train.learning_rate(Config(steps=1, lr=1.0, lr_warmup=0), 0) == 1.0
