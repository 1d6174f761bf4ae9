"""Run folders under bad luck and bad will: two trainings at once, damage, changed inputs, links, code, a full disk,
signals. Whatever happens ends in one line that names the culprit, or in the same result as without it.
"""

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import ScriptedEngine, Toy, refuses, small_policy
from ranks import run_ranks

import evaluate
import train
from envs import Reward
from options import Config
from records.checkpoint import cut_log, save_checkpoint
from records.run_folder import latest_checkpoint, lock, read_rows
from records.stop import Stop, Stopped, how_to_go_on
from rollout import rollout_chains, rollout_tree
from sampling.requests import Completion, Request
from sampling.transformers_engine import TransformersEngine, choose

ROOT = Path(__file__).parent.parent
SMALL = (
    "--envs-per-step 2 --warm-start 2 --eval-envs 4 --max-turns 2 --num-candidates 4 --save-every 1 --lr-warmup 0 "
    "--max-response-tokens 12 --report-every 0 --device cpu "
)
BOARD = "--env-options rows=3 cols=3 blocks=0 max_moves=4 view=cells"
NEWEST = "checkpoints/step-000003"
ECHO = """
import sys
from envs import Env, Reward

class Echo(Env):
    agents = ("ann",)

    def reset(self, seed):
        self.seed = seed
        return self

    def observe(self, agent):
        return [{"role": "user", "content": f"say \\u2192 \\x1b[2J {self.seed}"}]

    def step(self, agent, text):
        STEP
        return Reward(0.0, len(text) % 7 / 7, {"format": 1.0})
"""


def command(folder, steps, *more):
    return [*(SMALL + BOARD).split(), "--steps", str(steps), "--output-dir", str(folder), *more]


def resume(folder, *more):
    return ["--resume", "--output-dir", str(folder), *more]


def result(folder):
    """What a run has learned and written, byte by byte."""
    weights = (latest_checkpoint(folder) / "shared" / "model.safetensors").read_bytes()
    return weights, *((folder / name).read_bytes() for name in ("metrics.jsonl", "evaluations.jsonl", "trees.jsonl"))


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A run of three steps, all of whose checkpoints are kept. Do not change it: take a `copy`."""
    folder = tmp_path_factory.mktemp("runs") / "three"
    train.main(command(folder, 3, "--keep", "9"))
    return folder


@pytest.fixture
def copy(three, tmp_path):
    return Path(shutil.copytree(three, tmp_path / "copy"))


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A run of an adapter, whose base is in the run."""
    folder = tmp_path_factory.mktemp("runs") / "adapted"
    train.main(command(folder, 1, "--adapter", "lora"))
    return folder


@pytest.fixture
def own(tmp_path, monkeypatch):
    """`own(step)`: the options of a task of one's own, whose `step` does that."""
    monkeypatch.setattr("prepare.check", lambda *_: "")  # it takes time, and refuses some of these

    def write(step="pass"):
        path = tmp_path / "echo.py"
        path.write_text(ECHO.replace("STEP", step))
        return [*SMALL.split(), "--task", f"{path}:Echo", "--steps", "1", "--output-dir", str(tmp_path / "run")]

    return write


# ---------------------------------------------------------- steps and locks


def test_a_run_cannot_go_back_and_says_so_before_it_changes_anything(copy):
    before = result(copy)
    assert f"--steps 2: {copy} has done 3 already" in refuses(train.main, *resume(copy, "--steps", 2))
    assert result(copy) == before


def test_evaluations_keep_their_rows_when_a_run_is_extended(copy):
    train.main(resume(copy, "--steps", "5"))
    assert [row["step"] for row in read_rows(copy / "evaluations.jsonl")] == [0, 3, 5]
    assert [row["step"] for row in read_rows(copy / "metrics.jsonl")] == [0, 1, 2, 3, 4]


def test_going_on_from_an_older_checkpoint_redoes_the_rest(three, copy):
    """`latest` may name another checkpoint. The newer one is of another future and goes."""
    (copy / "checkpoints" / "latest").write_text("step-000001")
    train.main(resume(copy))
    assert result(copy) == result(three)
    policy = {"p": small_policy()}
    save_checkpoint(copy, 2, policy, keep=1)
    assert sorted(path.name for path in (copy / "checkpoints").iterdir()) == ["latest", "step-000002"]


HOLDER = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from records.run_folder import lock
file = open({folder!r} + "/.lock", "a+")
lock(file, Path({folder!r}))
print("held", flush=True)
time.sleep(60)
"""


def test_the_second_training_in_a_folder_is_refused_until_the_first_is_dead(copy):
    code = HOLDER.format(root=str(ROOT), folder=str(copy))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            before = result(copy)
            message = refuses(train.main, *resume(copy, "--steps", 4))
            assert f"{copy}: a training is running there (process {holder.pid} on " in message
            (copy / "config.json").rename(copy / "config.kept")  # as a run that has not written it yet
            assert "a training is running there" in refuses(train.main, *command(copy, 4))
            (copy / "config.kept").rename(copy / "config.json")
            assert result(copy) == before
        finally:
            holder.kill()
    train.main(resume(copy, "--steps", "4"))
    assert len(read_rows(copy / "metrics.jsonl")) == 4


def test_ranks_refuse_together_and_are_started_alike(copy):
    def ends(*more):
        def work(rank):
            with pytest.raises(SystemExit) as exit_:
                train.main([*resume(copy), *(more if rank else ())])
            return str(exit_.value.code)

        one, two = run_ranks(2, work)
        assert one == two
        return one

    with open(copy / ".lock", "a+") as file:
        lock(file, copy)
        assert "a training is running there" in ends()
    assert "--steps is 3 on rank 0, but 4 on rank 1" in ends("--steps", "4")
    assert "--keep is 9 on rank 0, but 1 on rank 1" in ends("--keep", "1")


# ---------------------------------------------------------- damage

KINDS = {  # what a file holds: the row of a log that is not one, and what is no log at all
    "metrics.jsonl": (
        '{"step": "1"}',
        '{"step": true}',
        '{"step": null}',
        "[]",
        "nothing",
        "{}",
        "[",
    ),
    "evaluations.jsonl": ('{"step": 0}', '{"step": 0, "success": "x"}', '{"step": 0, "success": null}'),
    "run.json": ("[]", '{"sessions": 3}', "nothing", "\xff"),
    "inputs.json": ("[]", "", "{"),
    "config.json": ("[]", '{"steps": 3, "lr": "x"}', "{", "[" * 50_000),
    "checkpoints/latest": ("", "step-000009", "../three", "step-000002\nstep-000003", "\0"),
    f"{NEWEST}/shared/optimizer.safetensors": ("", "{}", "\0" * 99),
    f"{NEWEST}/shared/config.json": ("", "[]"),
    f"{NEWEST}/shared/model.safetensors": ("", "\0" * 99),
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in KINDS.items() for text in texts])
def test_a_file_of_another_kind_is_named(copy, name, text):
    (copy / name).write_text(text + "\n" if name.endswith("l") else text)
    assert str(copy / Path(name).parts[0]) in refuses(train.main, *resume(copy, "--steps", 4))
    if "checkpoints" in name and "optimizer" not in name:
        assert str(copy / "checkpoints") in refuses(evaluate.main, copy)


@pytest.mark.parametrize(
    "name",
    [
        "evaluations.jsonl",
        "inputs.json",
        *(f"{NEWEST}/shared/{kind}" for kind in ("optimizer.safetensors", "config.json")),
    ],
)
def test_a_file_that_is_missing_is_named_and_nothing_is_lost(copy, name):
    (copy / name).unlink()
    before = files(copy / "checkpoints")
    assert str((copy / name).parent) in refuses(train.main, *resume(copy, "--steps", 4))
    assert files(copy / "checkpoints") == before


def test_a_log_without_the_step_of_each_row_is_not_cut(tmp_path):
    (log := tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\n{}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 3: step is None and not a number"):
        cut_log(log, 9)
    log.write_text('{"step": 0, "x": 0.1}\n{"step": 1}\n{"step": 2}\n{"st')
    cut_log(log, 2)
    assert log.read_text() == '{"step": 0, "x": 0.1}\n{"step": 1}\n'


# ---------------------------------------------------------- inputs


def test_another_base_is_refused(adapted, tmp_path):
    run = Path(shutil.copytree(adapted, tmp_path / "run"))
    base = run / "bases" / "shared" / "model.safetensors"
    assert list(json.loads((run / "inputs.json").read_text())) == ["bases/shared/model.safetensors"]
    content = bytearray(base.read_bytes())
    content[-1] ^= 1
    base.write_bytes(content)
    said = f"bases/shared/model.safetensors has changed since the run in {run} was started"
    assert said in refuses(train.main, *resume(run, "--steps", 2))
    assert said in refuses(evaluate.main, run)
    assert said in refuses(evaluate.main, "--team", f"tool_user={run}", f"planner={run}", "--envs", 2)


def test_other_data_and_another_task_file_are_refused_and_a_task_is_named_again(own, tmp_path):
    argv = own()
    train.main(argv)
    task, run = argv[argv.index("--task") :][:2], tmp_path / "run"
    assert list(json.loads((run / "inputs.json").read_text())) == [str(tmp_path / "echo.py")]
    evaluate.main([str(run), *task, "--envs", "1"])
    shutil.move(tmp_path / "echo.py", tmp_path / "moved" / "echo.py") if (tmp_path / "moved").mkdir() else None
    (tmp_path / "echo.py").write_text((tmp_path / "echo.py").read_text() + "\n")
    assert f"{tmp_path / 'echo.py'} has changed" in refuses(train.main, *resume(run, *task, "--steps", 2))
    assert f"{tmp_path / 'echo.py'} has changed" in refuses(evaluate.main, run, *task)


def test_changed_problems_are_refused(tmp_path):
    for name, first in (("train", 1), ("test", 5)):
        rows = [json.dumps({"question": f"{n} + 1?", "answer": str(n + 1)}) for n in range(first, first + 4)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    data = ["--data", str(tmp_path / "train.jsonl"), "--eval-data", str(tmp_path / "test.jsonl")]
    run = tmp_path / "run"
    train.main([*SMALL.split(), "--task", "math", *data, "--steps", "1", "--output-dir", str(run)])
    for name in ("train", "test"):
        path = tmp_path / f"{name}.jsonl"
        before = path.read_text()
        path.write_text("\n".join(before.split("\n")[::-1]))
        assert f"{path} has changed" in refuses(train.main, *resume(run, "--steps", 2))
        if name == "test":
            assert f"{path} has changed" in refuses(evaluate.main, run)
        path.write_text(before)
    train.main(resume(run, "--steps", "2"))


# ---------------------------------------------------------- nothing in a run folder is run, and nothing outside written


@pytest.mark.parametrize("task", ["subprocess:Popen", "helper:T", "{run}/mytask.py:T"])
def test_a_task_in_a_run_folder_is_never_run(copy, tmp_path, monkeypatch, task):
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "helper.py", copy / "mytask.py"):
        path.write_text("raise SystemExit('it was run')")
    options = json.loads((copy / "config.json").read_text())
    task = task.format(run=copy)
    changed = {"task": task, "env_options": ["args=touch hacked", "shell=True"]}
    (copy / "config.json").write_text(json.dumps(options | changed))
    said = f"the run has a task of its own, whose code only runs if you name it: add --task {task}"
    for main, argv in (
        (evaluate.main, [copy]),
        (evaluate.main, ["--team", f"tool_user={copy}", f"planner={copy}"]),
        (train.main, resume(copy)),
        (train.main, ["--like", copy]),
    ):
        assert said in refuses(main, *argv)
    assert not (tmp_path / "hacked").exists()


def test_a_checkpoint_holds_weights_and_json_only(three, adapted):
    suffixes = {path.suffix for run in (three, adapted) for path in run.glob("checkpoints/*/*/*")}
    assert suffixes <= {".safetensors", ".json", ".jinja"}


@pytest.mark.parametrize(
    "name", [".lock", "metrics.jsonl", "metrics.jsonl.tmp", "run.json.tmp", "config.json.tmp", "checkpoints/latest.tmp"]
)
def test_links_are_not_written_through(copy, tmp_path, name):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (copy / name).unlink(missing_ok=True)
    (copy / name).symlink_to(mine)
    assert f"{copy / name} is a link" in refuses(train.main, *resume(copy, "--steps", 4))
    assert mine.read_text() == "mine"


def test_merging_writes_into_a_new_folder_only(copy, tmp_path):
    before = files(copy)
    for folder in (copy, copy / NEWEST, copy / NEWEST / "shared"):
        assert f"--merge {folder}: not an empty folder" in refuses(evaluate.main, copy, "--merge", folder)
    assert files(copy) == before
    evaluate.main([str(copy), "--envs", "1", "--merge", str(tmp_path / "merged")])
    assert (tmp_path / "merged" / "model.safetensors").exists()


# ---------------------------------------------------------- what ends a training


def ended(*argv, before=lambda: None, **environment):
    """`python train.py argv`: (exit code, stdout, stderr)."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *map(str, argv)], capture_output=True, text=True, timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, preexec_fn=before, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_full_disk_is_one_line_and_leaves_no_rest(copy):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, 700_000))  # the weights fit, Adam's moments do not

    before = files(copy / NEWEST)
    code, _, error = ended(*resume(copy, "--steps", 4), before=limit)
    assert code == 1
    assert "train.py: error: " in error
    assert "the checkpoint of step 4 cannot be written" in error
    assert "Traceback" not in error
    assert sorted(path.name for path in (copy / "checkpoints").iterdir())[0] == "latest"  # no .writing-000004
    assert files(copy / NEWEST) == before
    train.main(resume(copy, "--steps", "4"))


def test_out_of_memory_names_what_to_lower(copy, monkeypatch):
    def update(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 78.00 GiB")

    monkeypatch.setattr(train, "update", update)
    message = refuses(train.main, *resume(copy, "--steps", 4))
    for option in ("--micro-batch-tokens", "--gradient-checkpointing", "--engine-memory", "--adapter lora"):
        assert option in message


@pytest.mark.parametrize(("step", "words"), [("sys.exit(0)", "Echo.step called sys.exit"), ("raise KeyError(1)", "1")])
def test_a_task_that_exits_or_fails_is_no_success(own, step, words):
    with pytest.raises((RuntimeError, ValueError, KeyError), match=words):
        train.main(own(step))


def test_a_terminal_without_letters_goes_on(own):
    code, out, error = ended(*own(), PYTHONIOENCODING="ascii", LC_ALL="C")
    assert code == 0, error
    assert "say \\u2192 \\x1b[2J" in out
    assert "held-out success" in out.splitlines()[-1]


# ---------------------------------------------------------- not finite


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("play", [rollout_tree, rollout_chains])
def test_log_probs_that_are_not_finite_name_the_engine(play, value):
    def engine(requests, n):
        return [[Completion([ord("1"), 0], [-1.0, value], "stop")] * n for _ in requests]

    with pytest.raises(ValueError, match=r"agent='ann'.*the engine returned a log-prob that is not finite"):
        play([Toy()], engine, encode=ScriptedEngine.encode, decode=ScriptedEngine.decode, num_candidates=2, max_turns=1)


@pytest.mark.parametrize(
    "reward",
    [
        None, 1.0, (1.0, 0.0), Reward(None, 0.0), Reward(0.0, "x"), Reward(0.0, float("inf")),  # type: ignore[arg-type]
        Reward(0.0, 0.0, {"format": float("nan")}), Reward(0.0, 0.0, {"format": None}),  # type: ignore[dict-item]
    ],
)  # fmt: skip
def test_a_reward_that_is_none_names_the_environment(reward):
    class Broken(Toy):
        def step(self, agent, text):
            return reward

    engine = ScriptedEngine(lambda request, k: "1")
    with pytest.raises(ValueError, match=r"agent='ann'.*Broken\.step returned"):
        rollout_tree(
            [Broken()], engine, encode=engine.encode, decode=engine.decode, num_candidates=2, max_turns=1
        )  # fmt: skip


def test_weights_that_became_nan_stop_the_run_in_that_step_and_are_never_saved(tmp_path, monkeypatch):
    original, calls = train.update, []

    def update(policy, *rest, **options):
        calls.append(original(policy, *rest, **options))
        if len(calls) == 2:
            with torch.no_grad():
                next(policy.model.parameters())[0, 0] = float("nan")
        return calls[-1]

    monkeypatch.setattr(train, "update", update)
    with pytest.raises(FloatingPointError, match=r"policy shared: .* is not finite"):
        train.main(command(tmp_path / "run", 4))
    assert len(calls) == 2
    assert latest_checkpoint(tmp_path / "run").name == "step-000001"


@pytest.mark.parametrize("where", ["weight", "optimizer"])
def test_a_checkpoint_is_never_written_with_values_that_are_not_finite(tmp_path, where):
    policy = small_policy()
    weight = next(policy.model.parameters())
    policy.optimizer.state[weight] = {"exp_avg": torch.zeros_like(weight), "step": torch.tensor(1.0)}
    broken = weight.data if where == "weight" else policy.optimizer.state[weight]["exp_avg"]
    broken.view(-1)[-1] = float("inf")
    with pytest.raises(FloatingPointError, match=r"policy p: .* is not finite"):
        save_checkpoint(tmp_path, 1, {"p": policy}, keep=2)
    assert not list(tmp_path.rglob("*"))


# ---------------------------------------------------------- signals


def stopping(monkeypatch, number, at=2, only=None):
    """The process gets a signal during the update of step `at`."""
    original, calls = train.update, []

    def update(*args, **options):
        calls.append(1)
        if len(calls) == at and only in (None, int(os.environ.get("RANK", "0"))):
            os.kill(os.getpid(), number)
        return original(*args, **options)

    monkeypatch.setattr(train, "update", update)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("save_every", ["1", "0"])
def test_a_signal_ends_a_run_after_its_step_and_it_goes_on(
    three, tmp_path, monkeypatch, capfd, number, code, save_every
):
    more = ["--keep", "9"] if save_every == "1" else ["--keep", "9", "--save-every", "0"]
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        stopping(patch, number)
        with pytest.raises(SystemExit) as exit_:
            train.main(command(tmp_path / "run", 3, *more))
    assert exit_.value.code == code
    assert signal.getsignal(number) == before
    out, err = capfd.readouterr()
    assert "stopping: this step is finished" in err
    last = out.strip().splitlines()[-1]
    assert last == f"stopped; to go on: python train.py --resume --output-dir {tmp_path / 'run'}"
    assert latest_checkpoint(tmp_path / "run").name == "step-000002"
    train.main(shlex.split(last.partition("train.py ")[2]))
    if save_every == "1":
        assert result(tmp_path / "run") == result(three)


def test_a_signal_before_the_first_step_says_how_to_start_again(tmp_path, monkeypatch, capsys):
    def evaluate_(*_, **__):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("prepare.evaluate", evaluate_)
    with pytest.raises(SystemExit) as exit_:
        train.main(command(tmp_path / "run", 3))
    assert exit_.value.code == 130
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last == "stopped before the first step: there is nothing to go on from, start again"


def test_all_ranks_stop_after_the_same_step(tmp_path, monkeypatch):
    stopping(monkeypatch, signal.SIGTERM, only=1)

    def work(rank):
        with pytest.raises(SystemExit) as exit_:
            train.main(command(tmp_path / "run", 4))
        return exit_.value.code

    assert run_ranks(2, work) == [143, 143]
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [0, 1]
    assert latest_checkpoint(tmp_path / "run").name == "step-000002"


PATIENT = """
import sys, time
sys.path.insert(0, {root!r})
from options import Config
from records.stop import Stop
with Stop(Config()) as stop:
    stop.patient = True
    print("ready", flush=True)
    end = time.monotonic() + {seconds}
    while time.monotonic() < end:
        time.sleep(0.01)  # a signal right before a long one would wait for its end
    print("finished", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once(number):
    code = PATIENT.format(root=str(ROOT), seconds=60)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stderr.readline() == "\n"
        assert "once more" in process.stderr.readline()
        started = time.monotonic()
        process.send_signal(number)
        assert process.wait(10) == -number
        assert time.monotonic() - started < 5
        assert process.stderr.read() == ""


def test_a_signal_outside_of_steps_ends_them_where_they_are():
    with Stop(Config()) as stop:
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.number == signal.SIGTERM


def test_one_ctrl_c_that_arrives_twice_under_torchrun_counts_once(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with Stop(Config()) as stop:
        stop.patient = True
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.number == signal.SIGINT


def test_the_command_that_goes_on_is_whole(tmp_path):
    folder = tmp_path / "a run"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    config = Config(task="/x/mine.py:Mine", output_dir=str(folder))
    words = f"--resume --output-dir '{folder}' --task /x/mine.py:Mine"
    assert how_to_go_on(config) == f"stopped; to go on: python train.py {words}"


# ---------------------------------------------------------- console


def test_a_redirected_console_has_whole_lines_in_order_and_no_bar(tmp_path):
    code, out, error = ended(*command(tmp_path / "run", 2))
    assert code == 0, error
    assert "\r" not in out + error
    assert "%|" not in out + error
    lines = out.splitlines()
    assert lines[:2] == ["loading torch", f"plan_path (mas), model tiny; run folder {tmp_path / 'run'}"]
    order = [
        "warm start: 2 steps",
        "first evaluation",
        "held-out success after 0",
        "step 1/2",
        "step 2/2",
        "next: python",
    ]
    places = [next(i for i, line in enumerate(lines) if line.startswith(start)) for start in order]
    assert places == sorted(places)
    assert lines[-2].endswith(f"python evaluate.py {tmp_path / 'run'}")
    assert lines[-1].startswith("held-out success ")


def test_every_log_is_on_disk_before_the_checkpoint_counts(tmp_path, monkeypatch):
    synced = []
    original = os.fsync

    def fsync(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        return original(descriptor)

    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n')
    monkeypatch.setattr("os.fsync", fsync)
    folder = save_checkpoint(tmp_path, 1, {"p": small_policy()}, keep=2)
    places = [next(i for i, path in enumerate(synced) if name in path) for name in ("metrics.jsonl", "latest")]
    assert places == sorted(places)
    for path in folder.rglob("*"):
        assert path.is_dir() or any(done.endswith(path.name) or f"{path.name}.tmp" in done for done in synced), path


# ---------------------------------------------------------- evaluation


def test_an_engine_can_be_chosen_for_a_run_and_nothing_else(three, monkeypatch):
    seen = []

    def make_team(config, *rest):
        seen.append((config.engine, config.engine_memory, config.max_turns))
        raise ValueError("seen")

    monkeypatch.setattr(evaluate, "make_team", make_team)
    refuses(evaluate.main, three, "--engine", "vllm", "--engine-memory", "0.5")
    refuses(evaluate.main, three)
    refuses(evaluate.main, "some/model", "--engine", "vllm", "--engine-memory", "0.7", "--max-turns", "4")
    assert seen == [("vllm", 0.5, 2), ("transformers", 0.3, 2), ("vllm", 0.7, 4)]


def test_top_p_samples_from_the_likeliest_tokens_only():
    policy = small_policy()
    engine = TransformersEngine(policy, 4)
    engine.load(policy.weights())
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(1000, 1)[:, [2, 0, 3, 1]]
    noise = torch.linspace(0, 0.9999, 1000, dtype=torch.float64)
    for top_p, tokens, odds in ((0.4, {1}, [1.0]), (0.5001, {1, 3}, [0.625, 0.375]), (0.9, {0, 1, 3}, None)):
        token, logps = choose(logits, noise, 1.0, top_p)
        assert set(token.tolist()) == tokens
        for which, share in zip((1, 3), odds or [], strict=False):
            assert (token == which).float().mean() == pytest.approx(share, abs=2e-3)
            assert logps[token == which].exp() == pytest.approx(share, abs=1e-5)
    plain = choose(logits, noise, 1.0)
    assert torch.equal(plain[0], choose(logits, noise, 1.0, 1.0)[0])
    request = Request("a", [3, 4, 5], 7)
    assert engine([request], 3, 1.0, 1e-6)[0][0].ids == engine([request], 1, 0.0)[0][0].ids


def test_top_p_and_samples_go_together(three, capsys):
    evaluate.main([str(three), "--envs", "3", "--top-p", "0.5", "--temperature", "1", "--samples", "2"])
    assert "(n=3, se " in capsys.readouterr().out.strip().splitlines()[-1]


def test_two_ranks_evaluate_as_one(three, capfd):
    model = latest_checkpoint(three) / "shared"
    options = ["--envs", "5", "--max-turns", "2", "--device", "cpu", *BOARD.split()]
    for argv in ([str(model), *options], [str(three), "--envs", "5"]):
        capfd.readouterr()
        evaluate.main(argv)
        alone = capfd.readouterr().out.strip().splitlines()
        run_ranks(2, lambda rank, argv=argv: evaluate.main(argv))
        together = capfd.readouterr().out.strip().splitlines()
        assert together[1:] == alone[1:]
        assert len(together) == len(alone)
