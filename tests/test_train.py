"""The command: options, run folders, resuming, repeating, and what a run writes. Runs here last a second."""

import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

import prepare
import train
from options import Config, load, parse, policy_map
from records.console import half_up
from records.run_folder import latest_checkpoint
from tasks.boards import Board

ROOT = Path(__file__).parent.parent
OPTIONS = (
    "--envs-per-step 2 --warm-start 20 --eval-envs 4 --max-turns 2 --num-candidates 4 --max-response-tokens 12 "
    "--save-every 1 --lr-warmup 0 --device cpu"
)
SMALL = OPTIONS.split()
CONSTANTS = {"--temperature", "--mismatch-clamp", "--grad-clip"}  # of the update, and no options
OUT_OF_RANGE = [
    ("--alpha", "nan"), ("--lr", "inf"), ("--lr-final", "-1.0"), ("--num-candidates", "1"), ("--steps", "0"),
    ("--eval-envs", "0"), ("--max-turns", "0"), ("--envs-per-step", "0"), ("--max-response-tokens", "0"),
    ("--minibatches", "0"), ("--epochs", "0"), ("--micro-batch-tokens", "-1"), ("--keep", "0"), ("--seed", "-1"),
    ("--clip", "-0.1"), ("--lr", "0.0"), ("--warm-start", "-1"), ("--engine-memory", "1.0"), ("--lora-rank", "0"),
]  # fmt: skip
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
        ("", (8e-4, 60, 28)),
        ("--model some/model", (1e-6, 0, 512)),
        ("--model some/model --adapter lora", (1e-5, 0, 512)),
        ("--model tool_user=tiny planner=some/model", (1e-6, 60, 512)),
        ("--model some/model --lr 2e-5 --warm-start 30 --max-response-tokens 32", (2e-5, 30, 32)),
        ("--lr 1e-3 --max-response-tokens 8 --warm-start 0", (1e-3, 0, 8)),
    ],
)
def test_some_defaults_depend_on_the_model(argv, expected):
    config = parse(argv.split())
    assert (config.lr, config.warm_start, config.max_response_tokens) == pytest.approx(expected)


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
    assert out.strip().splitlines()[-1].startswith(f"held-out success {half_up(evaluations[0]['success'])} -> ")


@pytest.mark.parametrize(
    "options",
    [
        "--sampling chains --grouping trajectory",
        "--workflow single --sampling chains --grouping trajectory",
        "--policies per_role",
        "--policies tool_user=a planner=b --loss sequence --normalize mean_only",
        "--loss constant --minibatches 1 --epochs 2",
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


WITHOUT_TORCH = """
import runpy, sys
class Refuse:
    def find_spec(self, name, *rest):
        if name == "torch":
            raise ImportError("this test has no torch")
sys.meta_path.insert(0, Refuse())
runpy.run_path("train.py", run_name="__main__")
"""


def without_torch(*argv):
    """`python train.py argv` where torch cannot be imported: (exit code, stdout, stderr)."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *argv], cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_help_needs_no_torch_and_has_every_option_once_in_80_columns():
    code, out, _ = without_torch("--help")
    assert code == 0
    options = re.findall(r"(?:^. |, )(--(?!no-)[a-z-]+)", out, re.M)
    assert len(set(options)) == len(options) <= 48  # 47 and --help
    known = {f"--{field.name.replace('_', '-')}" for field in fields(Config)} - CONSTANTS
    assert set(options) == known | {"--help"}
    assert max(map(len, out.splitlines())) <= 80


def test_a_mistyped_option_needs_no_torch_and_is_one_line():
    code, out, error = without_torch("--stepz", "3")
    assert (code, out) == (1, "")
    assert error.endswith(": error: --stepz: no such option (did you mean --steps?)\n")
    assert error.count("\n") == 1


def test_the_first_line_comes_before_torch():
    """So it fails where torch cannot be imported, after it has said what takes so long."""
    _, out, error = without_torch("--steps", "1")
    assert out == "loading torch\n"
    assert "torch" in error.splitlines()[-1]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--stepz 3", "--stepz: no such option (did you mean --steps?)"),
        ("--step=3", "--step=3: no such option (did you mean --steps?)"),  # no abbreviations
        ("steps 3", "steps: no such option"),
        ("--task chess", "--task chess: no such task; there are plan_path,"),
        ("--task sudoko", "did you mean sudoku?"),
        ("--task", "--task"),
        ("--sampling beam", "'beam' for argument '--sampling'. Expected one of ('tree', 'chains', 'parallel')"),
        ("--steps many", "--steps: invalid literal for int() with base 10: 'many'"),
        ("--device cuda:1", "'cuda:1' for argument '--device'"),
        ("--workflow ensemble", "workflow='ensemble'"),
        ("--sampling chains", "--sampling chains --grouping agent_turn"),
        ("--grouping trajectory", "--sampling tree --grouping trajectory"),
        ("--resume", "--resume needs --output-dir"),
        ("--policies planner=a", "--policies planner=a"),
        ("--model a=b c", "--model a=b c: give one NAME for all policies, or POLICY=NAME once for each"),
        ("--frozen judge", "--frozen judge"),
        ("--ranks 2", "--ranks 2"),
        ("--env-options rows", "--env-options rows"),
        ("--env-options height=3", "height"),
        ("--task math", "--data"),
        ("--data x.jsonl", "--data x.jsonl"),
        ("--like missing", "missing holds no run (no config.json)"),
        ("--steps 65536 --envs-per-step 257", "--steps 65536 --envs-per-step 257: a seed has 2**24 levels"),
        *((f"{option} {value}", f"{option} {value}: ") for option, value in OUT_OF_RANGE),
    ],
)
def test_bad_options_are_refused_by_name(tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    found = refuses(*SMALL, "--steps", "1", *argv.split())
    assert found.startswith("train.py: error: ")
    assert message in found
    assert "\n" not in found
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_each_number_has_a_range():
    """All of them refuse NaN, infinities and what is absurd."""
    numbers = [field for field in fields(Config) if field.type in ("int", "float", "Rate", "Count")]
    assert len(numbers) > 20
    for field in numbers:
        for value in (-1, 10**30, *([math.nan, math.inf] if field.type in ("float", "Rate") else [])):
            with pytest.raises(ValueError, match=f"--{field.name.replace('_', '-')} "):
                replace(Config().resolved(), **{field.name: value}).check()


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
    assert f"{option}: the run was started with {option.split()[0]} " in refuses(*argv)
    assert (three_steps / "metrics.jsonl").read_bytes() == before


def test_a_resumed_run_needs_no_other_option(three_steps, tmp_path):
    """And `--like` takes the options of a run into another one."""
    shutil.copytree(three_steps, tmp_path / "run")
    train.main(["--resume", "--output-dir", str(tmp_path / "run"), "--steps", "4"])
    assert len(rows(tmp_path / "run")) == 4
    assert load(tmp_path / "run") == replace(load(three_steps), steps=4)  # and the next --resume needs none at all
    new = parse(["--like", str(three_steps), "--seed", "7"])
    assert replace(new, seed=0, output_dir="", like="") == load(three_steps)


def test_a_run_of_another_version_is_refused_in_one_line(three_steps, tmp_path):
    saved = json.loads((three_steps / "config.json").read_text())
    path = tmp_path / "config.json"
    for change, words in (
        ({"update": {}, "sha256": "0"}, "another version wrote it; commit 2d69621 is the last that reads old runs"),
        ({"steps": "3"}, "steps cannot be '3'"),
        ({"lr": None}, "lr cannot be None"),
        ({"policies": [1]}, "policies cannot be (1,)"),
        ({"fused": 1}, "fused cannot be 1"),
    ):
        path.write_text(json.dumps(saved | change))
        for argv in (["--resume", "--output-dir", str(tmp_path)], ["--like", str(tmp_path)]):
            assert refuses(*argv) == f"train.py: error: {path}: {words}"
    for text in ("", "[]", "[" * 50_000, '{"steps": 3'):
        path.write_text(text)
        assert str(tmp_path) in refuses("--resume", "--output-dir", str(tmp_path))


def test_ranks_of_a_machine_share_its_cores(monkeypatch):
    config = parse(["--env-options", "tool=python"])
    monkeypatch.setattr("os.cpu_count", lambda: 12)
    for ranks, threads in ((1, 12), (4, 3), (99, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        assert prepare.scoring_pool(config, prepare.levels_of(config))._max_workers == threads


def test_programs_without_bubblewrap_are_refused_at_the_start_with_both_ways_out(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.sandbox._bubblewrap_problem", lambda: "there is no bwrap")
    message = refuses(*SMALL, "--env-options", "tool=python", "--output-dir", str(tmp_path))
    assert "there is no bwrap. Install bubblewrap" in message
    assert "--sandbox rlimit" in message


AGENTS = ("tool_user", "planner")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["shared"], {"tool_user": "shared", "planner": "shared"}),
        (["per_role"], {"tool_user": "tool_user", "planner": "planner"}),
        (["planner=p", "tool_user=q"], {"tool_user": "q", "planner": "p"}),
        (["planner=one", "tool_user=one"], {"tool_user": "one", "planner": "one"}),
        (["per_role"], {"reasoner_1": "reasoner", "reasoner_2": "reasoner", "judge": "judge"}),  # a role is a kind
    ],
)
def test_the_map_of_policies(values, expected):
    assert policy_map(Config(policies=tuple(values)), list(expected)) == expected


@pytest.mark.parametrize(
    "values",
    [
        [], ["each"], ["planner=p"], ["planner=p", "coder=q"], ["planner=p", "tool_user"], ["planner=p", "tool_user="],
        ["planner=p", "tool_user=../x"], ["planner=a", "planner=b", "tool_user=c"], ["shared", "per_role"],
    ],
)  # fmt: skip
def test_a_map_that_names_not_every_agent_once_is_refused(values):
    with pytest.raises(ValueError, match=r"--policies.*tool_user, planner"):
        policy_map(Config(policies=tuple(values)), AGENTS)


def test_the_learning_rate_warms_up_and_decays():
    config = Config(steps=11, lr=1.0, lr_warmup=2, lr_final=0.5)
    assert [train.learning_rate(config, step) for step in (0, 1, 10)] == pytest.approx([0.5, 0.95, 0.5])
    assert train.learning_rate(Config(steps=1, lr=1.0, lr_warmup=0), 0) == 1.0
