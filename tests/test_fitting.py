"""What an update takes of its machine: memory of a pack by a formula, threads that are chosen once."""

import pytest
import torch
from helpers import objective, random_batch, small_policy
from transformers import Qwen3Config

from model import fitting
from model.fitting import tokens_that_fit
from sampling.team import Team
from update import update


def test_tokens_that_fit_by_hand():
    """Qwen3-1.7B: a layer keeps 16 * 2048 + 8 * 6144 + 10 * 24 * 128 = 112,640 bytes, with adapters 149,504."""
    shape = Qwen3Config(
        vocab_size=151_936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128,
    )  # fmt: skip
    tile, gathered = 16 * 512 * 151_936, 4 * 2048 * (3 * 6144 + 2 * 24 * 128)
    for kind, head, token in (
        ({}, 12, 24 * 2048 + 29 * 112_640),
        ({"adapted": True}, 2, 24 * 2048 + 29 * 149_504),
        ({"checkpointing": True}, 12, 24 * 2048 + 28 * 4096 + 2 * 112_640),
    ):
        rest = head * 151_936 * 2048 + tile + gathered
        assert tokens_that_fit(rest + 4864 * token, shape, **kind) == 4864  # rounded down to 256
        assert tokens_that_fit(rest + 4864 * token - 1, shape, **kind) == 4608
    assert tokens_that_fit(1e15, shape) == fitting.MOST
    assert tokens_that_fit(0, shape) == fitting.LEAST


@pytest.mark.parametrize(("share", "checkpointing"), [(1.0, False), (0.6, True)])
def test_layers_are_checkpointed_where_packs_would_be_small_without(monkeypatch, share, checkpointing):
    policy = small_policy()
    shape = policy.model.config
    free = share * next(n for n in range(0, 10**9, 100_000) if tokens_that_fit(n, shape) == 4864)
    monkeypatch.setattr("sampling.team.free_for_packs", lambda policies: free)
    team = Team({"p": policy}, {"a": "p"}, {})
    team.fit_packs(checkpointing=False)
    assert policy.model.is_gradient_checkpointing == checkpointing
    assert policy.pack_tokens == tokens_that_fit(free, shape, checkpointing=checkpointing)


def test_the_first_update_chooses_the_threads_and_changes_nothing_else(monkeypatch):
    monkeypatch.setattr("update.fastest_threads", lambda work: [work(), 1][1])
    policies = [small_policy(lr=1e-2) for _ in range(2)]
    policies[0].threads = None
    for policy in policies:
        update(policy, random_batch(), objective(minibatches=2))
    assert [policy.threads for policy in policies] == [1, 0]
    for one, other in zip(*(policy.model.parameters() for policy in policies), strict=True):
        assert torch.equal(one, other)
