"""The command: options, run folders, resuming, repeating, and what a run writes. Runs here last a second."""

import math
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import fields, replace

import pytest
from helpers import ROOT, refuses, result
from transformers import AutoModelForCausalLM

import prepare
import train
from options import Config, load, parse, policy_map
from records.console import half_up
from records.run_folder import latest_checkpoint, read_rows
from tasks.boards import Board

OPTIONS = (
    "--envs-per-step 2 --warm-start 20 --eval-envs 4 --max-turns 2 --num-candidates 4 --max-response-tokens 12 "
    "--save-every 1 --lr-warmup 0 --device cpu"
)
SMALL = OPTIONS.split()
CONSTANTS = {"--temperature", "--mismatch-clamp", "--grad-clip"}  # of the update, and no options
EVERY = ("--keep", "9", "--report-every", "1")


def run(folder, *options, steps=2):
    train.main([*SMALL, "--output-dir", str(folder), "--steps", str(steps), *options])


@pytest.fixture(scope="module")
def three_steps(tmp_path_factory):
    """An uninterrupted run of three steps, evaluated after each."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run(folder, *EVERY, steps=3)
    return folder


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("", (8e-4, 60, 28)),
        ("--model some/model", (1e-6, 0, 512)),
        ("--model some/model --adapter lora", (1e-5, 0, 512)),
        ("--model tool_user=tiny planner=some/model", (1e-6, 60, 512)),
        ("--model some/model --lr 2e-5 --warm-start 30 --max-response-tokens 32", (2e-5, 30, 32)),
    ],
)
def test_some_defaults_depend_on_the_model(argv, expected):
    config = parse(argv.split())
    assert (config.lr, config.warm_start, config.max_response_tokens) == pytest.approx(expected)


def test_what_goes_wrong_during_training_keeps_its_traceback(tmp_path, monkeypatch):
    """An error in the options is one line; one in the code of a run is not an error in the options."""
    monkeypatch.setattr(train, "assign_advantages", lambda *_: float("nothing"))
    with pytest.raises(ValueError, match="nothing"):
        run(tmp_path / "run", "--warm-start", "0")


class Killed(BaseException):
    pass


@pytest.mark.parametrize("finished", [0, 2])
def test_a_resumed_run_equals_an_uninterrupted_one(three_steps, tmp_path, monkeypatch, finished):
    """The run stops after the metrics of a step and before its checkpoint: the step is done again, to the byte."""
    random.seed(finished)
    original = prepare.save_checkpoint

    def save(folder, step, *rest):
        if step > finished:
            raise Killed
        return original(folder, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(prepare, "save_checkpoint", save)
        with pytest.raises(Killed):
            run(tmp_path / "cut", *EVERY, steps=3)
    train.main(["--resume", "--output-dir", str(tmp_path / "cut")])
    assert result(tmp_path / "cut") == result(three_steps)
    assert [row["step"] for row in read_rows(three_steps / "evaluations.jsonl")] == [0, 1, 2, 3]


def test_a_run_changes_the_weights_and_writes_a_row_a_step(three_steps):
    assert [row["step"] for row in read_rows(three_steps / "metrics.jsonl")] == [0, 1, 2]
    first, last = (
        AutoModelForCausalLM.from_pretrained(three_steps / "checkpoints" / f"step-{step:06d}" / "shared")
        for step in (0, 3)
    )
    moved = [(a - b).abs().max().item() for a, b in zip(first.parameters(), last.parameters(), strict=True)]
    assert max(moved) > 0
    row = read_rows(three_steps / "metrics.jsonl")[0]
    assert {"solved", "groups/dead_share", "groups/per_turn", "tool_user/reward", "planner/reward"} <= row.keys()
    assert row["shared/logprob_gap"] < 1e-3  # the engine samples from the weights that are trained
    assert sum(row["groups/per_turn"]) * 4 == row["samples"]  # a group is the K answers to one prompt, and no others
    assert sum(row["groups/per_turn"]) == row["groups/trained"] + row["groups/constant"] + row["groups/singleton"]


@pytest.mark.parametrize(
    "options",
    [
        "--sampling chains --grouping trajectory",
        "--policies per_role",
        "--policies tool_user=a planner=b --loss sequence --normalize mean_only",
        "--loss constant --minibatches 1 --epochs 2",
    ],
)
def test_methods_are_command_lines(tmp_path, options):
    run(tmp_path / "run", *options.split(), steps=1)
    (row,) = read_rows(tmp_path / "run" / "metrics.jsonl")
    policies = {path.name for path in latest_checkpoint(tmp_path / "run").iterdir() if path.is_dir()}
    words = options.split()
    expected = {"per_role": {"tool_user", "planner"}, "tool_user=a": {"a", "b"}}
    assert policies == expected.get(words[1], {"shared"})
    assert all(f"{name}/logprob_gap" not in row or row[f"{name}/logprob_gap"] < 1e-3 for name in policies)


@pytest.mark.parametrize(("given", "expected"), [("", "1 None"), ("2", "2 0")])
def test_omp_num_threads_holds_for_sampling_and_updates(tmp_path, given, expected):
    code = "import sys, torch, train, records.log\nfrom prepare import Run\n"
    code += "def steps(run):\n    print('THREADS', torch.get_num_threads(), run.team.policies['shared'].threads)\n"
    code += "    return iter(())\nRun.steps, Run.save = steps, lambda *_: None\ntrain.main(sys.argv[1:])\n"
    words = ["--warm-start", "1", "--eval-envs", "2", "--steps", "1", "--output-dir", tmp_path / "run"]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"OMP_NUM_THREADS": given} if given else {}
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert f"THREADS {expected}\n" in done.stdout, done.stderr


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
    """A fresh process, an empty home, no input, no connection; the last line is the result."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", OFFLINE, *SMALL, "--steps", "1", "--output-dir", str(tmp_path / "run")]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "<|user|>" in done.stdout  # the first prompt, as the model sees it
    (before, n), (after, _) = ((row["success"], row["n"]) for row in read_rows(tmp_path / "run" / "evaluations.jsonl"))
    last = rf"held-out success {half_up(before)} -> {half_up(after)} \(n={n}, se \d\.\d\d\)"
    assert re.fullmatch(last, done.stdout.strip().splitlines()[-1])


WITHOUT_TORCH = """
import runpy, sys
class Refuse:
    def find_spec(self, name, *rest):
        if name == "torch":
            raise ImportError("this test has no torch")
sys.meta_path.insert(0, Refuse())
runpy.run_path("train.py", run_name="__main__")
"""


def test_options_need_no_torch():
    """Help has every option once, in 80 columns; a mistyped one is one line; the first line comes before torch."""

    def said(*argv):
        done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *argv], cwd=ROOT, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    code, out, _ = said("--help")
    options = re.findall(r"(?:^. |, )(--(?!no-)[a-z-]+)", out, re.M)
    known = {f"--{field.name.replace('_', '-')}" for field in fields(Config)} - CONSTANTS
    assert (code, sorted(options)) == (0, sorted(known | {"--help"}))
    assert max(map(len, out.splitlines())) <= 80
    code, out, error = said("--stepz", "3")
    assert (code, out) == (1, "")
    assert re.fullmatch(r"\S+: error: Unrecognized options: --stepz, 3\n", error)
    _, out, error = said("--steps", "1")
    assert out == "loading torch\n"
    assert "torch" in error.splitlines()[-1]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--step=3", "Unrecognized options: --step=3"),  # no abbreviations
        ("steps 3", "Unrecognized options: steps, 3"),
        ("--task chess", "unknown task 'chess': choose one of plan_path,"),
        ("--task", "--task"),
        ("--model --steps 3", "--model : give one NAME"),
        ("--steps many", "--steps: invalid literal for int() with base 10: 'many'"),
        ("--device cuda:1", "'cuda:1' for argument '--device'"),
        ("--workflow ensemble", "workflow='ensemble'"),
        ("--sampling chains", "--sampling chains --grouping agent_turn"),
        ("--grouping trajectory", "--sampling tree --grouping trajectory"),
        ("--grouping prompt", "--sampling tree --grouping prompt"),
        ("--sampling parallel --grouping prompt --reward outcome", "--reward outcome"),
        ("--resume", "--resume needs --output-dir"),
        ("--policies planner=a", "--policies planner=a"),
        ("--model a=b c", "--model a=b c: give one NAME for all policies, or POLICY=NAME once for each"),
        ("--frozen judge", "--frozen judge"),
        ("--ranks 2", "--ranks 2"),
        ("--env-options height=3", "height"),
        ("--task math", "--data"),
        ("--data x.jsonl", "takes no `data`"),
        ("--task no.py:T", "no.py"),
        ("--seed -1", "--seed -1"),
        ("--track wandb", "wandb"),
        ("--like missing", "missing holds no run (no config.json)"),
        ("--steps 65536 --envs-per-step 257", "--steps 65536 --envs-per-step 257: a seed has 2**24 levels"),
    ],
)
def test_bad_options_are_refused_by_name(tmp_path, monkeypatch, argv, message):
    """And leave no empty run folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert message in refuses(train.main, *SMALL, "--steps", "1", "--warm-start", "1", *argv.split())
    assert not list(tmp_path.rglob("runs/*"))


@pytest.mark.parametrize("argv", ["--frozen judge", "--ranks 2", "--engine vllm"])
def test_what_needs_no_model_is_refused_before_one_is_loaded(tmp_path, monkeypatch, argv):
    monkeypatch.setitem(sys.modules, "vllm", None)  # not installed
    monkeypatch.setattr(prepare.tiny, "build", lambda *_: pytest.fail("loaded"))
    assert argv in refuses(train.main, "--output-dir", tmp_path / "run", *argv.split())


def test_each_number_has_a_range():
    """All of them refuse NaN, infinities and what is absurd."""
    numbers = [field for field in fields(Config) if field.type in ("int", "float", "Rate", "Count")]
    assert len(numbers) > 20
    for field in numbers:
        for value in (-1, 10**30, *([math.nan, math.inf] if field.type in ("float", "Rate") else [])):
            with pytest.raises(ValueError, match=f"--{field.name.replace('_', '-')} "):
                replace(Config().resolved(), **{field.name: value}).check()


@pytest.mark.parametrize("option", ["--seed 1", "--num-candidates 3", "--policies per_role", "--loss sequence"])
def test_resuming_with_other_options_is_refused_by_name(three_steps, option):
    before = result(three_steps)
    message = refuses(train.main, *SMALL, "--output-dir", three_steps, "--resume", *option.split())
    assert f"{option}: the run was started with {option.split()[0]} " in message
    assert result(three_steps) == before


def test_a_resumed_run_needs_no_other_option(three_steps, tmp_path):
    """And `--like` takes the options of a run into another one."""
    shutil.copytree(three_steps, tmp_path / "run")
    train.main(["--resume", "--output-dir", str(tmp_path / "run"), "--steps", "4"])
    assert len(read_rows(tmp_path / "run" / "metrics.jsonl")) == 4
    assert load(tmp_path / "run") == replace(load(three_steps), steps=4)  # and the next --resume needs none at all
    new = parse(["--like", str(three_steps), "--seed", "7"])
    assert replace(new, seed=0, output_dir="", like="") == load(three_steps)


def test_programs_without_bubblewrap_are_refused_at_the_start_with_both_ways_out(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.sandbox._bubblewrap_problem", lambda: "there is no bwrap")
    message = refuses(train.main, *SMALL, "--env-options", "tool=python", "--output-dir", str(tmp_path))
    assert "there is no bwrap. Install bubblewrap" in message
    assert "--sandbox rlimit" in message


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("shared", {"tool_user": "shared", "planner": "shared"}),
        ("per_role", {"tool_user": "tool_user", "planner": "planner"}),
        ("planner=p tool_user=q", {"tool_user": "q", "planner": "p"}),
        ("planner=one tool_user=one", {"tool_user": "one", "planner": "one"}),
        ("per_role", {"reasoner_1": "reasoner", "reasoner_2": "reasoner", "judge": "judge"}),  # a role is a kind
        ("", None), ("each", None), ("planner=p", None), ("planner=p coder=q", None), ("planner=p tool_user", None),
        ("planner=p tool_user=", None), ("planner=p tool_user=../x", None), ("planner=a planner=b tool_user=c", None),
        ("shared per_role", None),
    ],
)  # fmt: skip
def test_the_map_of_policies_names_every_agent_once(values, expected):
    config = Config(policies=tuple(values.split()))
    if expected:
        assert policy_map(config, list(expected)) == expected
    else:
        with pytest.raises(ValueError, match=r"--policies.*tool_user, planner"):
            policy_map(config, ("tool_user", "planner"))


def test_the_learning_rate_warms_up_and_decays():
    config = Config(steps=11, lr=1.0, lr_warmup=2, lr_final=0.5)
    assert [train.learning_rate(config, step) for step in (0, 1, 10)] == pytest.approx([0.5, 0.95, 0.5])
    assert train.learning_rate(Config(steps=1, lr=1.0, lr_warmup=0), 0) == 1.0
