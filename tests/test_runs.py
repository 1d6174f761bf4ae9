"""Run folders under bad luck: damage, two trainings at once, signals, numbers that are not finite, options that are
wrong. Whatever happens ends in one line that names the culprit, or in the same result as without it.
"""

import json
import os
import random
import re
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
import report
import train
from envs import Reward
from options import Config, nearest
from records.checkpoint import cut_log, latest_checkpoint, read_state, save_checkpoint
from records.reading import nearest_folder
from records.run_folder import locked, read_sealed, write_sealed
from records.stop import Stop, Stopped, how_to_go_on
from records.values import fits, in_words
from rollout import rollout_chains, rollout_tree
from sampling.requests import Completion, Request
from sampling.transformers_engine import TransformersEngine, choose

ROOT = Path(__file__).parent.parent
SMALL = (
    "--envs-per-step 2 --warm-start 2 --eval-envs 4 --max-turns 2 --num-candidates 4 --save-every 1 --lr-warmup 0 "
    "--max-response-tokens 12 --report-every 0 --device cpu "
)
BOARD = "--env-options rows=3 cols=3 blocks=0 max_moves=4 view=cells"


def command(folder, steps, *more):
    return [*(SMALL + BOARD).split(), "--steps", str(steps), "--output-dir", str(folder), *more]


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def result(folder):
    """What a run has learned and written, byte by byte."""
    weights = (latest_checkpoint(folder) / "shared" / "model.safetensors").read_bytes()
    return weights, *((folder / name).read_bytes() for name in ("metrics.jsonl", "evaluations.jsonl", "trees.jsonl"))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A run of three steps, all of whose checkpoints are kept. Do not change it: take a `copy`."""
    folder = tmp_path_factory.mktemp("runs") / "three"
    train.main(command(folder, 3, "--keep", "9"))
    return folder


@pytest.fixture
def copy(three, tmp_path):
    return Path(shutil.copytree(three, tmp_path / "copy"))


# ---------------------------------------------------------- options


def test_kinds_of_values():
    assert fits(3, float)
    assert fits(None, int | None)
    assert fits(["a"], list[str])
    assert not any(
        (fits(True, int), fits(True, float), fits("3", int), fits([1], list[str]), fits(float("nan"), float))
    )
    assert in_words(list[str]) == "a list"
    assert nearest("stpes", ["steps", "seed"]) == " (did you mean steps?)"
    assert nearest("xyz", ["steps"]) == ""


def test_the_nearest_run_is_named(three, monkeypatch):
    parent = three.parent
    for wrong in ("thre", "theee"):
        assert f"did you mean {three}?" in refuses(report.main, parent / wrong)
    assert nearest_folder(parent / "quite-another", "config.json") == ""
    monkeypatch.chdir(parent)
    assert nearest_folder(Path("thre"), "config.json") == " (did you mean three?)"


# ---------------------------------------------------------- steps and locks


def test_a_run_cannot_go_back_and_says_so_before_it_changes_anything(copy):
    before = result(copy)
    assert f"--steps 2: {copy} has done 3 already" in refuses(train.main, *command(copy, 2, "--keep", "9", "--resume"))
    assert result(copy) == before


def test_evaluations_keep_their_rows_when_a_run_is_extended(copy):
    train.main(command(copy, 5, "--keep", "9", "--resume"))
    assert [row["step"] for row in rows(copy / "evaluations.jsonl")] == [0, 3, 5]
    assert [row["step"] for row in rows(copy / "metrics.jsonl")] == [0, 1, 2, 3, 4]


HOLDER = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from records.run_folder import locked
with locked(Path({folder!r})):
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
            message = refuses(train.main, *command(copy, 4, "--keep", "9", "--resume"))
            assert f"process {holder.pid} on " in message
            assert str(copy) in message
            (copy / "config.json").rename(copy / "config.kept")  # as a run that has not written it yet
            assert "a training is running there" in refuses(train.main, *command(copy, 4))
            (copy / "config.kept").rename(copy / "config.json")
            assert result(copy) == before
        finally:
            holder.kill()
    train.main(command(copy, 4, "--keep", "9", "--resume"))
    assert len(rows(copy / "metrics.jsonl")) == 4


def test_a_lock_ends_with_its_context(tmp_path):
    with pytest.raises(ValueError, match="a training is running"), locked(tmp_path), locked(tmp_path):
        pass
    with locked(tmp_path):
        assert str(os.getpid()) in (tmp_path / ".lock").read_text()


def test_all_ranks_refuse_a_folder_that_is_locked(copy):
    def work(rank):
        with pytest.raises(SystemExit) as exit_:
            train.main(command(copy, 4, "--keep", "9", "--resume"))
        return str(exit_.value.code)

    with locked(copy):
        messages = run_ranks(2, work)
    assert len(set(messages)) == 1
    assert "a training is running there" in messages[0]


# ---------------------------------------------------------- damage


def some_bits(path, rng):
    content = bytearray(path.read_bytes())
    for _ in range(3):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(content))


def into_a_folder(path, rng):
    path.unlink()
    path.mkdir()


DAMAGE = {
    "deleted": lambda path, rng: path.unlink(),
    "emptied": lambda path, rng: path.write_bytes(b""),
    "cut": lambda path, rng: path.write_bytes(path.read_bytes()[: rng.randrange(1, path.stat().st_size)]),
    "bits": some_bits,
    "zeros": lambda path, rng: path.write_bytes(bytes(path.stat().st_size)),
    "a list": lambda path, rng: path.write_text("[1, 2]\n"),
    "null": lambda path, rng: path.write_text("null\n"),
    "a word": lambda path, rng: path.write_text("../elsewhere"),
    "deep": lambda path, rng: path.write_text("[" * 50_000),
    "no text": lambda path, rng: path.write_bytes(b"\xff\xfe{}\n"),
    "a folder": into_a_folder,
}
FILES = ["metrics.jsonl", "timing.jsonl", "trees.jsonl", "evaluations.jsonl", "checkpoints/latest"]
NEWEST = "checkpoints/step-000003"
FILES += [f"{NEWEST}/state.json", f"{NEWEST}/shared/model.safetensors", f"{NEWEST}/shared/optimizer/.metadata"]
FILES += [f"{NEWEST}/shared/{name}" for name in ("config.json", "tokenizer.json", "optimizer/__0_0.distcp")]


@pytest.fixture(scope="module")
def extended(three, tmp_path_factory):
    """What the run is after a fourth step."""
    folder = tmp_path_factory.mktemp("runs") / "extended"
    shutil.copytree(three, folder)
    train.main(command(folder, 4, "--keep", "9", "--resume"))
    return result(folder)


@pytest.mark.parametrize("name", FILES)
def test_damage_is_named_or_does_not_matter(copy, three, extended, capsys, name):
    rng = random.Random(name)
    expected = {}
    kinds = sorted(DAMAGE)
    if name == "evaluations.jsonl":  # its last row is younger than the checkpoint: half of it would be dropped
        kinds = [kind for kind in kinds if kind not in ("cut", "bits")]
    for kind in rng.sample(kinds, 4):
        shutil.rmtree(copy)
        shutil.copytree(three, copy)
        DAMAGE[kind](copy / name, rng)
        harmless = name == "checkpoints/latest" and kind == "deleted"  # the newest one is meant
        argv = command(copy, 4, "--keep", "9", "--resume")
        if harmless:
            train.main(argv)
            assert result(copy) == extended
            continue
        message = refuses(train.main, *argv)
        assert str(copy / name) in message, kind
        if name.startswith(NEWEST):
            assert "step-000002 is the newest that is whole" in message
        if name.endswith(".jsonl") or "optimizer" in name:  # an evaluation reads neither
            expected = expected or evaluated(three, capsys)
            assert evaluated(copy, capsys) == expected
        else:
            assert str(copy / name) in refuses(evaluate.main, copy), kind


def evaluated(folder, capsys):
    capsys.readouterr()
    evaluate.main([str(folder), "--envs", "3"])
    return capsys.readouterr().out


@pytest.mark.parametrize("word", ["", "step-000009", "step-3", "../three", "step-000002\nstep-000003", "\0"])
def test_an_odd_pointer_is_named_and_the_way_out_works(copy, extended, word):
    pointer = copy / "checkpoints" / "latest"
    pointer.write_text(word)
    message = refuses(train.main, *command(copy, 4, "--keep", "9", "--resume"))
    assert str(pointer) in message
    assert "step-000003 is the newest that is whole" in message
    pointer.write_text("step-000003")
    train.main(command(copy, 4, "--keep", "9", "--resume"))
    assert result(copy) == extended


def test_going_on_from_an_older_checkpoint_redoes_the_rest(copy):
    """The way out that an error names. The newer checkpoint is of another future and goes."""
    (copy / NEWEST / "shared" / "model.safetensors").write_bytes(b"")
    (copy / "checkpoints" / "step-000002" / "shared" / "tokenizer.json").unlink()
    message = refuses(train.main, *command(copy, 4, "--keep", "9", "--resume"))
    assert "step-000001 is the newest that is whole" in message
    (copy / "checkpoints" / "latest").write_text("step-000001")
    train.main(command(copy, 4, "--keep", "9", "--resume"))
    assert [row["step"] for row in rows(copy / "metrics.jsonl")] == [0, 1, 2, 3]
    assert latest_checkpoint(copy).name == "step-000004"
    read_state(copy / NEWEST)  # written again


def test_newer_checkpoints_of_another_future_do_not_push_out_the_new_one(tmp_path):
    policy = {"p": small_policy()}
    for step in (1, 2, 9):
        save_checkpoint(tmp_path, step, policy, {}, keep=9)
    save_checkpoint(tmp_path, 3, policy, {}, keep=1)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["latest", "step-000003"]


def test_no_checkpoint_is_whole(copy):
    for state in copy.glob("checkpoints/*/state.json"):
        state.write_text('{"step"')
    assert "no older checkpoint is whole" in refuses(train.main, *command(copy, 4, "--keep", "9", "--resume"))


def test_run_folders_without_hashes_go_on(copy, extended):
    for path in (copy / "config.json", *copy.glob("checkpoints/*/state.json")):
        values = read_sealed(path)
        path.write_text(json.dumps({name: values[name] for name in values if name not in ("files", "logs")}))
    train.main(command(copy, 4, "--keep", "9", "--resume"))
    assert result(copy) == extended


@pytest.mark.parametrize(
    ("name", "damage"),
    [("optimizer/__0_0.distcp", "cut"), ("optimizer/.metadata", "zeros"), ("model.safetensors", "cut")],
)
def test_without_hashes_a_file_that_cannot_be_read_is_named(copy, name, damage):
    state = copy / NEWEST / "state.json"
    state.write_text(json.dumps({"step": 3, "before": 0.5}))
    DAMAGE[damage](copy / NEWEST / "shared" / name, random.Random(0))
    message = refuses(train.main, *command(copy, 4, "--keep", "9", "--resume"))
    assert str(copy / NEWEST / "shared") in message


@pytest.mark.parametrize("before", [None, "0.5", [], True])
def test_without_hashes_the_state_is_checked(copy, before):
    (copy / NEWEST / "state.json").write_text(json.dumps({"step": 3, "before": before}))
    assert "state.json: 'before'" in refuses(train.main, *command(copy, 4, "--keep", "9", "--resume"))


def test_a_sealed_file_shows_any_change(tmp_path):
    path, values = tmp_path / "x.json", {"a": 1, "b": [1.5, "x", None], "c": {"d": True}}
    write_sealed(path, values)
    assert read_sealed(path) == values
    text = path.read_text()
    for i in range(text.index('"sha256"')):
        path.write_text(text[:i] + ("0" if text[i] != "0" else "1") + text[i + 1 :])
        if i and text[i].strip():  # blanks between words are no change, and mostly no JSON
            with pytest.raises(ValueError, match=re.escape(str(path))):
                read_sealed(path)


@pytest.mark.parametrize("line", ['{"step": "1"}', '{"step": true}', "[]", "nothing", '{"step": 0}', "{}"])
def test_a_line_that_is_no_row_is_named(tmp_path, line):
    log = tmp_path / "metrics.jsonl"
    log.write_text(f'{{"step": 0}}\n{{"step": 1}}\n{line}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 3"):
        cut_log(log, 9)


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
    read_state(latest_checkpoint(tmp_path / "run"))


@pytest.mark.parametrize("where", ["weight", "optimizer"])
def test_a_checkpoint_is_never_written_with_values_that_are_not_finite(tmp_path, where):
    policy = small_policy()
    weight = next(policy.model.parameters())
    policy.optimizer.state[weight] = {"exp_avg": torch.zeros_like(weight), "step": torch.tensor(1.0)}
    broken = weight.data if where == "weight" else policy.optimizer.state[weight]["exp_avg"]
    broken.view(-1)[-1] = float("inf")
    with pytest.raises(FloatingPointError, match=r"policy p: .* is not finite"):
        save_checkpoint(tmp_path, 1, {"p": policy}, {}, keep=2)
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
    assert [row["step"] for row in rows(tmp_path / "run" / "metrics.jsonl")] == [0, 1]
    assert latest_checkpoint(tmp_path / "run").name == "step-000002"


PATIENT = """
import sys, time
sys.path.insert(0, {root!r})
from records.stop import Stop
with Stop() as stop:
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
    with Stop() as stop:
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.number == signal.SIGTERM


def test_one_ctrl_c_that_arrives_twice_under_torchrun_counts_once(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with Stop() as stop:
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
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, ROOT / "train.py", *command(tmp_path / "run", 2)],
        env=environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stdout + done.stderr
    assert "%|" not in done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "loading torch"
    assert lines[1] == f"plan_path (mas), model tiny; run folder {tmp_path / 'run'}"
    assert lines[2] == "warm start: 2 steps of imitating noisy moves"
    order = [
        "warm start",
        "first evaluation",
        "held-out success after 0",
        "step 1/2",
        "step 2/2",
        "next: python report.py",
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
    folder = save_checkpoint(tmp_path, 1, {"p": small_policy()}, {}, keep=2)
    places = [next(i for i, path in enumerate(synced) if name in path) for name in ("metrics.jsonl", "state.json")]
    assert places == sorted(places)
    for path in folder.rglob("*"):
        assert path.is_dir() or any(done.endswith(path.name) or f"{path.name}.tmp" in done for done in synced), path
    assert read_sealed(folder / "state.json")["logs"]["metrics.jsonl"][0] == 12


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
    assert "--max-turns 3: the run was started with --max-turns 2" in refuses(evaluate.main, three, "--max-turns=3")


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


def test_top_p_and_samples_need_a_temperature(three, capsys):
    assert "--top-p 0.5 needs --temperature" in refuses(evaluate.main, three, "--top-p", "0.5")
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
