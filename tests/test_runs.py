"""Run folders under bad luck and bad will: two trainings at once, damage, changed inputs, links, code, a full disk,
signals. Whatever happens ends in one line that names the culprit, or in the same result as without it.
"""

import fcntl
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import ROOT, refuses, result, small_policy
from ranks import run_ranks

import evaluate
import report
import train
from model import tiny
from options import Config, parse
from records.checkpoint import save_checkpoint
from records.run_folder import latest_checkpoint, read_rows
from records.stop import Stop, how_to_go_on
from tools import fetch, play

SMALL = """--envs-per-step 2 --warm-start 2 --eval-envs 4 --max-turns 2 --num-candidates 4 --save-every 1 --lr-warmup 0
--max-response-tokens 12 --report-every 0 --device cpu """
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


@pytest.fixture
def own(tmp_path, monkeypatch):
    """`own(step)`: the options of a task of one's own, whose `step` does that."""
    monkeypatch.setattr("prepare.check", lambda *_: "")  # it takes time, and refuses some of these

    def write(step="pass"):
        path = tmp_path / "echo.py"
        path.write_text(ECHO.replace("STEP", step))
        return [*SMALL.split(), "--task", f"{path}:Echo", "--steps", "1", "--output-dir", str(tmp_path / "run")]

    return write


# ------------------------------------------------------------------------------------------------- steps, locks, damage


def test_a_run_is_extended_but_cannot_go_back(copy):
    before = result(copy)
    assert f"--steps 2: {copy} has done 3 already" in refuses(train.main, *resume(copy, "--steps", 2))
    assert result(copy) == before
    train.main(resume(copy, "--steps", "5"))
    assert [row["step"] for row in read_rows(copy / "evaluations.jsonl")] == [0, 3, 5]
    assert [row["step"] for row in read_rows(copy / "metrics.jsonl")] == [0, 1, 2, 3, 4]


def test_going_on_from_an_older_checkpoint_redoes_the_rest(three, copy):
    """`latest` may name another checkpoint. The newer one is of another future and goes."""
    (copy / "checkpoints" / "latest").write_text("step-000001")
    train.main(resume(copy))
    assert result(copy) == result(three)
    save_checkpoint(copy, 2, {"p": small_policy()}, keep=1)
    assert sorted(path.name for path in (copy / "checkpoints").iterdir()) == ["latest", "step-000002"]


def test_the_second_training_in_a_folder_is_refused(copy):
    before = files(copy)
    with open(copy / ".lock", "a") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        assert f"{copy}: a training is running there" in refuses(train.main, *resume(copy, "--steps", 4))
        (copy / "config.json").rename(copy / "config.kept")  # as a run that has not written it yet
        assert "a training is running there" in refuses(train.main, *command(copy, 4))
        (copy / "config.kept").rename(copy / "config.json")
    assert "already holds a run: add --resume" in refuses(train.main, *command(copy, 4))
    assert files(copy) == before


def test_ranks_are_started_alike(copy):
    one, two = run_ranks(2, lambda rank: refuses(train.main, *resume(copy), *["--keep", "1"] * rank))
    assert one == two
    assert "--keep is 9 on rank 0, but 1 on rank 1" in one


KINDS = {  # what a file holds instead (None: it is missing)
    "metrics.jsonl": ('{"step": "1"}', "[]", "nothing", "{}"),
    "evaluations.jsonl": ('{"step": 0, "success": "x"}', None),
    "run.json": ("[]", '{"sessions": 3}'),
    "inputs.json": ("[]", None),
    "config.json": ('{"steps": 3, "lr": "x"}', "{", "[" * 50_000, '{"update": {}}', '{"policies": [1]}', None),
    "checkpoints/latest": ("", "step-000009", "../three", None),
    f"{NEWEST}/shared.optimizer.safetensors": ("\0" * 99, None),
    f"{NEWEST}/shared/config.json": ("[]", None),
    f"{NEWEST}/shared/model.safetensors": ("", "\0" * 99),
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in KINDS.items() for text in texts])
def test_a_file_of_another_kind_is_named_and_nothing_is_lost(copy, name, text):
    path = copy / name
    path.unlink() if text is None else path.write_text(text + "\n" if name.endswith("l") else text)
    before = files(copy / "checkpoints")
    where = str(path.parent if text is None else copy / Path(name).parts[0])
    message = refuses(train.main, *resume(copy, "--steps", 4))
    assert where in message
    old = "another version wrote it; commit 2d69621 is the last that reads old runs" in message
    assert old == ("update" in str(text))
    if "checkpoints" in name and "optimizer" not in name:
        assert str(copy / "checkpoints") in refuses(evaluate.main, copy)
    assert files(copy / "checkpoints") == before


def test_a_model_of_a_run_that_another_version_wrote_is_refused(copy, tmp_path):
    (copy / "inputs.json").unlink()
    message = refuses(train.main, "--model", copy, "--output-dir", tmp_path / "new")
    assert f"{copy} has no inputs.json: another version wrote it" in message


# --------------------------------------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_another_base_is_refused(tmp_path, name):
    run = tmp_path / "run"
    train.main(command(run, 1, "--adapter", "lora"))
    base = run / "bases" / "shared" / name
    assert f"bases/shared/{name}" in json.loads((run / "inputs.json").read_text())
    assert {path.suffix for path in run.glob("checkpoints/*/*/*")} <= {".safetensors", ".json", ".jinja", ".md"}
    content = bytearray(base.read_bytes())
    content[-1] ^= 0x2A  # of a text: a blank instead of a new line
    base.write_bytes(content)
    said = f"bases/shared/{name} has changed since the run in {run} was started"
    assert said in refuses(train.main, *resume(run, "--steps", 2))
    assert said in refuses(evaluate.main, run)
    assert said in refuses(evaluate.main, "--team", f"tool_user={run}", f"planner={run}", "--envs", 2)


def test_another_commit_of_the_hub_is_refused(tmp_path, monkeypatch):
    run, cache = tmp_path / "run", ["a/config.json", "b/config.json"]
    monkeypatch.setattr("model.lora.load_whole", lambda name: tiny.build(0))
    monkeypatch.setattr("prepare.cached_file", lambda *_, **__: cache[0])
    train.main(command(run, 1, "--model", "org/name", "--adapter", "lora", "--warm-start", "0"))
    assert json.loads((run / "inputs.json").read_text()) == {"org/name": "a"}
    del cache[0]
    for main, argv in (train.main, resume(run, "--steps", 2)), (evaluate.main, [run]):
        assert f"org/name has changed since the run in {run} was started" in refuses(main, *argv)


def test_another_task_file_is_refused_and_a_task_is_named_again(own, tmp_path):
    argv = own()
    train.main(argv)
    task, run, file = argv[argv.index("--task") :][:2], tmp_path / "run", tmp_path / "echo.py"
    assert how_to_go_on(parse(argv)).endswith(f"python train.py --resume --output-dir {run} --task {task[1]}")
    assert list(json.loads((run / "inputs.json").read_text())) == [str(file)]
    (tmp_path / "moved").mkdir()
    shutil.copy(file, tmp_path / "moved")
    evaluate.main([str(run), "--task", f"{tmp_path}/moved/echo.py:Echo", "--envs", "1"])
    file.write_text(file.read_text() + "\n")
    assert f"{file} has changed" in refuses(train.main, *resume(run, *task, "--steps", 2))
    assert f"{file} has changed" in refuses(evaluate.main, run, *task)


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
        path.write_text(before) if name == "train" else None
    assert f"{path} has changed" in refuses(evaluate.main, run)


# ------------------------------------------------------- nothing in a run folder is run, and nothing outside is written


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
    team = ["--team", f"tool_user={copy}", f"planner={copy}"]
    for main, argv in (
        (evaluate.main, [copy]), (evaluate.main, team), (train.main, resume(copy)), (train.main, ["--like", copy]),
    ):  # fmt: skip
        assert said in refuses(main, *argv)
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl.tmp", "checkpoints/latest.tmp"])
def test_links_are_not_written_through(copy, tmp_path, name):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (copy / name).unlink(missing_ok=True)
    (copy / name).symlink_to(mine)
    assert f"{copy / name} is a link" in refuses(train.main, *resume(copy, "--steps", 4))
    assert mine.read_text() == "mine"


def test_merging_writes_into_a_new_folder_only(copy, tmp_path):
    before = files(copy)
    for folder in (copy, copy / NEWEST, copy / NEWEST / "shared", copy / "checkpoints" / "step-000009"):
        assert f"--merge {folder}: not an empty folder" in refuses(evaluate.main, copy, "--merge", folder)
    assert files(copy) == before
    evaluate.main([str(copy), "--envs", "1", "--merge", str(tmp_path / "merged")])
    assert (tmp_path / "merged" / "model.safetensors").exists()


# ------------------------------------------------------------------------------------------------- what ends a training


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


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 78.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_out_of_memory_names_what_to_lower(copy, monkeypatch, error):
    def update(*_, **__):
        raise error

    monkeypatch.setattr(train, "update", update)
    message = refuses(train.main, *resume(copy, "--steps", 4))
    options = "envs-per-step micro-batch-tokens engine-memory gradient-checkpointing adapter"
    assert all(f"--{option}" in message for option in options.split())


@pytest.mark.parametrize(("step", "words"), [("sys.exit(0)", "Echo.step called sys.exit"), ("raise KeyError(1)", "1")])
def test_a_task_that_exits_or_fails_is_no_success(own, step, words):
    with pytest.raises((RuntimeError, KeyError), match=words):
        train.main(own(step))


# -------------------------------------------------------------------------------------------------------------- console


def test_a_redirected_console_has_whole_lines_in_order_and_no_bar(own, tmp_path):
    """Also where letters are missing and a prompt holds commands to the terminal."""
    code, out, error = ended(*own(), PYTHONIOENCODING="ascii", LC_ALL="C")
    assert code == 0, error
    assert "say \\u2192 \\x1b[2J" in out
    assert "\r" not in out + error
    assert "%|" not in out + error
    lines = out.splitlines()
    assert lines[:2] == ["loading torch", f"{tmp_path}/echo.py:Echo (mas), model tiny; run folder {tmp_path / 'run'}"]
    order = ["first evaluation", "held-out success after 0", "step 1/1", "next: python", "held-out success 0"]
    places = [next(i for i, line in enumerate(lines) if line.startswith(start)) for start in order]
    assert places == sorted(places)
    assert places[-1] == len(lines) - 1


ESCAPES = "\x1b]52;c;cm0=\x07\x1b[2J"


@pytest.mark.parametrize(
    ("main", "argv"),
    [
        (train.main, "--output-dir {}/run --task math --data {}/rows.jsonl --eval-data {}/rows.jsonl"),
        (train.main, "--output-dir {}/run --task {}/task.py:T"),
        (train.main, "--resume --output-dir {}"),
        (evaluate.main, "{}"),
        (report.main, "{}"),
        (play.main, "math --data {}/rows.jsonl"),
        (fetch.main, "mbpp --from {}/broken.jsonl --to {}/y"),
    ],
)
def test_an_error_shows_what_a_file_holds_as_text(tmp_path, main, argv):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": ESCAPES, "answer": 2, ESCAPES: ESCAPES}))
    (tmp_path / "broken.jsonl").write_text('{"a' + ESCAPES)
    (tmp_path / "task.py").write_text(f"raise ValueError({ESCAPES!r})")
    (tmp_path / "config.json").write_text(json.dumps({ESCAPES: ESCAPES, "task": ESCAPES}))
    message = refuses(main, *argv.format(*[tmp_path] * 3).split())
    assert message.isprintable()


CTRL_C = """
import os, runpy, signal, sys
event, word, *sys.argv = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background is born without one
sys.addaudithook(lambda name, args: name == event and word in str(args[0]) and os.kill(os.getpid(), signal.SIGINT))
sys.path.insert(0, "")
if sys.argv[0].endswith(".py"):
    runpy.run_path(sys.argv[0], run_name="__main__")
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("event", "word", "argv"),  # when it comes
    [
        ("import", "torch", "train.py"),
        ("import", "torch", "evaluate.py runs/x"),
        ("open", "config.json", "report.py {}"),
        ("import", "torch", "exercises --solved"),
        ("open", "rows.jsonl", "tools.fetch mbpp --from {}/rows.jsonl --to {}/y"),
    ],
)
def test_ctrl_c_ends_a_command_without_a_traceback(tmp_path, event, word, argv):
    for name in ("config.json", "rows.jsonl"):
        (tmp_path / name).write_text("{}")
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C, event, word, *argv.format(tmp_path, tmp_path).split()],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


# ----------------------------------------------------------------------------------------------------------- not finite


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


# -------------------------------------------------------------------------------------------------------------- signals


def stopping(monkeypatch, number, at=2, only=None):
    """The process gets a signal during the update of step `at`."""
    original, calls = train.update, []

    def update(*args, **options):
        calls.append(1)
        if len(calls) == at and only in (None, int(os.environ.get("RANK", "0"))):
            os.kill(os.getpid(), number)
        return original(*args, **options)

    monkeypatch.setattr(train, "update", update)


@pytest.mark.parametrize(("number", "code", "save_every"), [(signal.SIGINT, 130, "1"), (signal.SIGTERM, 143, "0")])
def test_a_signal_ends_a_run_after_its_step_and_it_goes_on(
    three, tmp_path, monkeypatch, capfd, number, code, save_every
):
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        stopping(patch, number)
        with pytest.raises(SystemExit) as exit_:
            train.main(command(tmp_path / "run", 3, "--keep", "9", "--save-every", save_every))
    assert exit_.value.code == code
    assert signal.getsignal(number) == before
    out, err = capfd.readouterr()
    assert "stopping: this step is finished" in err
    last = out.strip().splitlines()[-1]
    assert last == f"stopped; to go on: python train.py --resume --output-dir {tmp_path / 'run'}"
    assert latest_checkpoint(tmp_path / "run").name == "step-000002"
    train.main(shlex.split(last.partition("train.py ")[2]))
    assert result(tmp_path / "run") == result(three)


def test_all_ranks_stop_after_the_same_step(tmp_path, monkeypatch):
    stopping(monkeypatch, signal.SIGTERM, only=1)

    def work(rank):
        with pytest.raises(SystemExit) as exit_:
            train.main(command(tmp_path / "run", 4))
        return exit_.value.code

    assert run_ranks(2, work) == [143, 143]
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [0, 1]
    assert latest_checkpoint(tmp_path / "run").name == "step-000002"


def test_a_second_signal_ends_at_once_but_not_the_one_that_torchrun_passes_on(monkeypatch):
    with Stop(Config()) as stop:
        stop.patient = True
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with Stop(Config()) as stop:
        stop.patient = True
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert stop.number == signal.SIGINT
