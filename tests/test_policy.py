"""The from-scratch policy, loading, and checkpoints that survive a kill at any moment."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from helpers import ROOT, make_sample, objective, random_batch, reference_logprobs, same, small_policy, weights_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from model import tiny
from model.chat import decode, encode
from model.loading import load_model
from model.policy import Policy, make_optimizer, make_policy
from records.checkpoint import load_optimizers, save_checkpoint
from records.run_folder import latest_checkpoint, step_of
from tasks.plan_path import PlanPath
from update import update

MESSAGES = [{"role": "system", "content": "the rules"}, {"role": "user", "content": "tool_user\n (1,2) x"}]


def tiny_policy(seed=0, lr=1e-3):
    model, tokenizer = tiny.build(seed)
    return Policy("tiny", model, tokenizer, make_optimizer(model, lr))


def trained_policy(**layout):
    """A policy whose optimizer has a state."""
    policy = small_policy(lr=1e-2, vocabulary=len(tiny.build_tokenizer()), **layout)
    update(policy, random_batch(groups=1), objective())
    return policy


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_generator():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = (weights_of(tiny_policy(seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert same(first, again)
    assert not same(first, other)


@pytest.mark.parametrize(
    "text", ["#### [R, D]", "proposal [U, L]\ngoal (3,1) (-2,+1)", "12 [[1, 2], [3, 4]] <|end| {x}\t~"]
)
def test_tiny_reads_back_what_it_writes(text):
    policy = tiny_policy()
    assert decode(policy.tokenizer, policy.tokenizer(text, add_special_tokens=False).input_ids) == text


def test_a_prompt_is_the_user_message_ready_for_the_answer():
    """The template leaves the rules out, which is documented; every special token of it is one id."""
    policy = tiny_policy()
    ids = encode(policy.tokenizer, MESSAGES)
    assert policy.tokenizer.decode(ids) == "<|user|>tool_user\n (1,2) x<|assistant|>"
    assert all(isinstance(i, int) for i in ids)
    assert ids[-1] == policy.tokenizer.convert_tokens_to_ids("<|assistant|>")
    assert policy.stop_ids == {policy.tokenizer.eos_token_id}
    assert decode(policy.tokenizer, [*ids[1:4], policy.tokenizer.eos_token_id]) == decode(policy.tokenizer, ids[1:4])


def test_warm_start_learns_the_format_and_repeats():
    def run(steps):
        policy = tiny_policy()
        make = lambda seed: PlanPath(rows=3, cols=3, blocks=0.0, max_moves=2, view="cells").reset(seed=seed)  # noqa: E731
        return policy, tiny.warm_start(policy, make, steps=steps, turns=1, seed=0)

    (first, start), (second, _), (_, later) = run(2), run(2), run(12)
    assert same(weights_of(first), weights_of(second))
    assert later < 0.5 * start


@pytest.mark.parametrize("tie", [True, False])
def test_a_checkpoint_loads_with_auto_classes_and_gives_equal_log_probs(tmp_path, tie):
    policy = trained_policy(tie=tie)
    folder = save_checkpoint(tmp_path, 1, {"p": policy}, keep=1) / "p"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sample = make_sample(prompt=[5, 6, 7], response=[8, 9, 2])
    torch.testing.assert_close(
        reference_logprobs(model, sample), reference_logprobs(policy.model, sample), atol=0, rtol=0
    )
    assert tokenizer.chat_template == policy.tokenizer.chat_template
    assert tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False) == encode(
        policy.tokenizer, MESSAGES
    )


def test_a_loaded_policy_goes_on_like_the_saved_one(tmp_path):
    policy = trained_policy()
    policy.threads = 2
    folder = save_checkpoint(tmp_path, 1, {"p": policy}, keep=1)
    fixed, loaded = (make_policy("p", *load_model(str(folder / "p")), lr=9.0) for _ in range(2))
    loaded.threads = None  # nobody has chosen yet
    for one in (fixed, loaded):
        load_optimizers(folder, {"p": one})
    assert (fixed.threads, loaded.threads) == (0, 2)
    assert loaded.stop_ids == policy.stop_ids
    assert all(p.dtype == torch.float32 for p in loaded.model.parameters())
    for one in (policy, loaded):
        one.set_lr(1e-2)
        update(one, random_batch(groups=1), objective())
    assert same(weights_of(policy), weights_of(loaded))


def test_moments_in_eight_bits_train_and_go_on_from_a_checkpoint(tmp_path):
    """Of weights of at least 4,096 numbers (torchao). A checkpoint rounds them once more."""
    pytest.importorskip("torchao.optim")

    def start(model, tokenizer):
        return make_policy("p", model, tokenizer, 9.0, optimizer="adamw8bit")

    def train(policy, steps=2):
        policy.set_lr(1e-3)
        for _ in range(steps):
            update(policy, random_batch(groups=1), objective())

    with torch.compiler.set_stance("force_eager"):  # torchao compiles its step, which takes a minute here
        small = start(*tiny.build(0))
        train(small)
        kept = small.optimizer.state[small.model.model.layers[0].mlp.up_proj.weight]["exp_avg"]
        assert kept.codes.dtype == torch.uint8

        folder = save_checkpoint(tmp_path, 1, {"p": small}, keep=1)
        loaded = start(*load_model(str(folder / "p")))
        load_optimizers(folder, {"p": loaded})
        for policy in (small, loaded):
            train(policy, 1)
        torch.testing.assert_close(weights_of(loaded), weights_of(small), atol=3e-4, rtol=0)  # a step is 1e-3
        kept.scale[0] = float("nan")
        with pytest.raises(FloatingPointError, match=r"exp_avg of model\.layers\.0\.mlp\.up_proj"):
            small.check_finite()


def marked(policy, step):
    """Weights and optimizer that say which step they belong to, in numbers that a model can compute with."""
    with torch.no_grad():
        for p in policy.model.parameters():
            p.fill_(step / 1024)
    for state in policy.optimizer.state.values():
        state["exp_avg"].fill_(step / 1024)
    return {"p": policy}


def check(run, at_least):
    """The newest checkpoint is whole and of one step; returns the step."""
    folder = latest_checkpoint(run)
    loaded = make_policy("p", *load_model(str(folder / "p")), 1e-3)
    load_optimizers(folder, {"p": loaded})
    step = step_of(folder)
    assert step >= at_least
    assert all((p == step / 1024).all() for p in loaded.model.parameters())
    assert all((s["exp_avg"] == step / 1024).all() for s in loaded.optimizer.state.values())
    return step


def test_saving_does_not_change_what_comes_after(tmp_path):
    """Before the first step there is no state of AdamW, and writing it must not count as a step."""
    saved, other, loaded = (small_policy(lr=1e-2) for _ in range(3))
    folder = save_checkpoint(tmp_path, 0, {"p": saved}, keep=2)
    load_optimizers(folder, {"p": loaded})
    samples = [make_sample(advantage=a, response=r) for a, r in ((1.0, [3, 4]), (-1.0, [5, 2]))]
    for policy in (saved, other, loaded):
        update(policy, samples, objective())
    assert same(weights_of(saved), weights_of(other))
    assert same(weights_of(loaded), weights_of(other))


VICTIM = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from test_policy import marked, save_checkpoint, trained_policy
policy, step = trained_policy(), 0
while True:
    step += 1
    save_checkpoint(Path({run!r}), step, marked(policy, step), 2)
    print(step, flush=True)
"""


def test_kill_9_at_random_moments_of_saving_loses_nothing(tmp_path):
    """A process that does nothing but save is stopped at twenty moments; what a kill would leave loads each time.

    A stopped process leaves the files as a killed one does, and can go on: one start for twenty moments, then the kill.
    """
    run, rng = tmp_path / "run", random.Random(0)
    code = VICTIM.format(paths=[str(ROOT / "tests"), str(ROOT)], run=str(run))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as victim:
        try:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "1\n"
            step = 1
            for moment in range(20):
                time.sleep(rng.uniform(0.01, 0.08))
                victim.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, victim.pid, os.WSTOPPED)
                left = shutil.copytree(run, tmp_path / f"left{moment}")
                victim.send_signal(signal.SIGCONT)
                step = check(left, step)
        finally:
            victim.kill()
    assert check(run, step) > 10  # it did save in between
