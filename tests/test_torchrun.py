"""torchrun itself: two agents as two nodes, ranks that die or raise at bad moments, and going on afterwards."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from helpers import ROOT, random_model
from ranks import enter, free_port, run_ranks
from transformers import AutoModelForCausalLM

import train
from distributed import world
from envs import make_env
from model import tiny
from model.policy import make_policy
from options import SMALL_BOARDS
from records.run_folder import read_rows
from tasks.levels import parse_pairs

OPTIONS = (
    "--device cpu --steps 3 --warm-start 5 --envs-per-step 4 --num-candidates 3 --max-turns 2 --eval-envs 4 "
    "--max-response-tokens 12 --report-every 0 --save-every 1 --lr 1e-3"
)

# train.py, in which the n-th call of a function does something else first
FAULTY = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
import distributed.world, prepare, records.checkpoint, train
from torch.distributed.elastic.multiprocessing.errors import record

distributed.world.JOIN = 20
rank, calls = int(os.environ["RANK"]), 0
plain = {owner}.{name}

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def fail(error):
    raise error

def faulty(*args, **kwargs):
    global calls
    calls += 1
    if calls == {call}:
        {fault}
    return plain(*args, **kwargs)

{owner}.{name} = faulty
record(train.main)()
"""


def torchrun(folder, options, program=ROOT / "train.py", agents=2, ranks=1, limit=60):
    """Start the agents together; [(exit code, output)] of each. TimeoutExpired after `limit` s; no process is left."""
    port, command = free_port(), [sys.executable, "-m", "torch.distributed.run"]
    command += f"--nnodes {agents} --nproc-per-node {ranks} --rdzv-backend c10d --rdzv-id {port}".split()
    command += ["--rdzv-endpoint", f"127.0.0.1:{port}", str(program), *OPTIONS.split(), *options]
    logs = [folder / f"agent-{i}.txt" for i in range(agents)]
    running = [
        subprocess.Popen(
            [*command, "--output-dir", str(folder / "run")], stdout=log.open("w"), stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        ) for log in logs
    ]  # fmt: skip
    end = time.monotonic() + limit
    try:
        codes = [agent.wait(max(0.1, end - time.monotonic())) for agent in running]
    finally:
        for agent in running:
            agent.terminate()  # it ends its ranks, too
            agent.wait(40)
    return list(zip(codes, [log.read_text() for log in logs], strict=True))


def faulty(folder, owner, name, call, fault):
    program = folder / "faulty.py"
    program.write_text(FAULTY.format(root=str(ROOT), owner=owner, name=name, call=call, fault=fault))
    return program


def test_a_killed_rank_ends_both_nodes_and_resume_finishes_the_run(tmp_path):
    """Policies apart: the survivor waits for a policy that it does not host. One node of two ranks goes on."""
    options, metrics = ["--policies", "per_role"], tmp_path / "run" / "metrics.jsonl"
    ended = torchrun(tmp_path, options, faulty(tmp_path, "train", "update", 3, "rank == 1 and die()"))
    assert all(code not in (0, None) for code, _ in ended), ended
    assert any("Signal 9 (SIGKILL)" in output for _, output in ended)
    assert [row["step"] for row in read_rows(metrics)] == [0, 1]
    ended = torchrun(tmp_path, [*options, "--resume"], agents=1, ranks=2)
    assert [code for code, _ in ended] == [0], ended
    argv = [*OPTIONS.split(), *options, "--output-dir", str(tmp_path / "forked")]
    run_ranks(2, lambda rank: train.main(argv))
    assert read_rows(metrics) == read_rows(tmp_path / "forked" / "metrics.jsonl")
    assert [p.name for p in sorted((tmp_path / "run" / "checkpoints").iterdir())] == [
        "latest", "step-000002", "step-000003"
    ]  # fmt: skip


FAULTS = {  # what the n-th call of a function does first, and what is then said
    "an error": ("train", "update", 2, "rank == {dead} and fail(RuntimeError('the scorer died'))", "the scorer died"),
    "while the other one samples": ("train", "learning_rate", 2, "die() if rank == {dead} else time.sleep(600)"),
    "before an exchange": ("train", "share_samples", 1, "rank == {dead} and die()"),
    "while a checkpoint is written": ("prepare", "save_checkpoint", 2, "rank == {dead} and die()"),
    "before the others join": ("train", "start", 1, "die() if rank == {dead} else time.sleep(5)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("dead", [0, 1])
@pytest.mark.parametrize("when", FAULTS)
def test_the_job_ends_within_a_minute_when_a_rank_dies(tmp_path, when, dead):
    owner, name, call, fault, said = (*FAULTS[when], "SIGKILL")[:5]
    ended = torchrun(tmp_path, [], faulty(tmp_path, owner, name, call, fault.format(dead=dead)))
    assert all(code not in (0, None) for code, _ in ended), ended
    assert any(said in output for _, output in ended)


def leave(w, rank, how):
    """After all have met, a rank ends in its own way; the others are busy with something else."""
    w.barrier()
    if w.rank == rank:
        how()
    time.sleep(60 if world.GRACE < 1 else 1)
    sys.exit(7)


@pytest.mark.parametrize(
    ("grace", "work", "codes"),
    [
        (0.2, lambda w: leave(w, 0, lambda: os.kill(os.getpid(), signal.SIGKILL)), [-9, 1, 1]),
        (0.2, lambda w: leave(w, 1, lambda: os.kill(os.getpid(), signal.SIGKILL)), [1, -9, 1]),
        (5, lambda w: leave(w, 1, lambda: os._exit(3)), [7, 3, 7]),  # an error of its own has time to show
        (0.2, lambda w: [w.close(), time.sleep(w.rank)], [0, 0, 0]),  # the work is done: nobody is ended
    ],
)
def test_a_death_ends_the_others_whatever_they_do(monkeypatch, grace, work, codes):
    monkeypatch.setattr(world, "GRACE", grace)
    port, context = str(free_port()), multiprocessing.get_context("fork")

    def target(rank):
        enter(rank, 3, port)
        work(world.start("cpu"))

    ranks = [context.Process(target=target, args=(rank,), daemon=True) for rank in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(20)
    assert [rank.exitcode for rank in ranks] == codes


def save_model(folder):
    """A warm-started Qwen3 whose heads are large enough for vLLM's CPU kernels; returns the options of its board."""
    tokenizer, board = tiny.build_tokenizer(), parse_pairs("plan_path", SMALL_BOARDS["plan_path"])
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "head_dim": 32}
    sizes |= {"max_position_embeddings": 512, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    model = random_model(initializer_range=0.1, tie_word_embeddings=True, **sizes)
    policy = make_policy("p", model, tokenizer, lr=1e-3)
    level = lambda seed: make_env("plan_path", "mas", **board).reset(seed=seed)  # noqa: E731
    tiny.warm_start(policy, level, steps=60, turns=2, seed=0)
    policy.save(folder)
    return SMALL_BOARDS["plan_path"]


@pytest.mark.vllm
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("policies", "names"), [("shared", ["shared"]), ("per_role", ["tool_user", "planner"])])
def test_vllm_engines_on_two_ranks(tmp_path, policies, names):
    """What vLLM samples on each rank is what the sharded policy would have sampled, also after a weight sync."""
    pytest.importorskip("vllm")
    board = save_model(tmp_path / "model")
    options = ["--engine", "vllm", "--model", str(tmp_path / "model"), "--warm-start", "0", "--num-candidates", "8"]
    options += ["--policies", policies, "--env-options", *board]
    ((code, output),) = torchrun(tmp_path, options, agents=1, ranks=2, limit=280)
    assert code == 0, output
    assert "Traceback" not in output
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2]
    for name in names:
        gaps = [row[f"{name}/logprob_gap"] for row in rows if f"{name}/logprob_gap" in row]
        assert gaps
        assert max(gaps) < 1e-3
        first, last = (
            AutoModelForCausalLM.from_pretrained(tmp_path / folder).state_dict()
            for folder in ("model", f"run/checkpoints/step-000003/{name}")
        )
        assert any(not torch.equal(first[key], last[key]) for key in first)
