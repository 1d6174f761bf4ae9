"""What an update takes of its machine: memory of a pack by a formula, threads by a clock."""

import time

import pytest
import torch
from helpers import make_sample, objective, small_model, small_policy
from test_packing import plain_kernel, plain_kernel_backward
from test_update import random_batch
from transformers import Qwen3Config

from model import attention, fitting, lora
from model.attention import packed
from model.fitting import bytes_per_token, fastest_threads, tokens_that_fit
from model.logprobs import token_logprobs
from model.packing import pack_samples
from sampling.team import Team
from update import update

QWEN = Qwen3Config(
    vocab_size=151_936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16,
    num_key_value_heads=8, head_dim=128,
)  # fmt: skip


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_layer_keeps_as_many_bytes_of_a_token_as_the_formula_says(monkeypatch, adapted, checkpointing):
    """Counted in bfloat16 with the graph of the flash kernels, as the difference between three layers and two."""

    def forward(*args):
        out, norm = plain_kernel(*(x.float() if torch.is_tensor(x) else x for x in args))
        return out.bfloat16(), norm

    monkeypatch.setattr(attention, "_flash_forward", forward)
    monkeypatch.setattr(attention, "_flash_backward", plain_kernel_backward)
    monkeypatch.setattr(attention, "has_flash", lambda *_: True)

    def kept(layers):
        model = small_model(layers=layers)
        if adapted:
            lora.add_adapter(model, "p", 1, 0)
        lora.to_bfloat16(model)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
        weights, storages = {weight.data_ptr() for weight in model.parameters()}, {}

        def keep(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                storages[storage.data_ptr()] = storage.nbytes(), tensor
            return tensor

        pack = pack_samples([[make_sample(prompt=[1] * 50, response=[3] * 12) for _ in range(4)]])
        with packed(model), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            token_logprobs(model, pack)
        return sum(size for size, _ in storages.values()) / len(pack), model.config

    (two, shape), (three, _) = kept(2), kept(3)
    other = Qwen3Config(**{**shape.to_dict(), "num_hidden_layers": 3, "layer_types": None})
    found = bytes_per_token(other, adapted, checkpointing) - bytes_per_token(shape, adapted, checkpointing)
    assert found == pytest.approx(three - two, rel=0.12)


def test_bytes_by_hand():
    """Qwen3-1.7B: a layer keeps 16 * 2048 + 8 * 6144 + 10 * 24 * 128 = 112,640 bytes, with adapters 149,504."""
    shape = QWEN
    assert bytes_per_token(shape) == 24 * 2048 + 29 * 112_640
    assert bytes_per_token(shape, adapted=True) == 24 * 2048 + 29 * 149_504
    assert bytes_per_token(shape, checkpointing=True) == 24 * 2048 + 28 * 4096 + 2 * 112_640
    head, tile = 12 * 151_936 * 2048, 16 * 512 * 151_936
    free = head + tile + 4 * 2048 * (3 * 6144 + 2 * 24 * 128) + 5000 * bytes_per_token(shape)
    assert tokens_that_fit(free, shape) == 4864  # 5000, rounded down to 256
    assert tokens_that_fit(1e15, shape) == fitting.MOST
    assert tokens_that_fit(0, shape) == fitting.LEAST


@pytest.mark.parametrize(("tokens", "checkpointing"), [(5000, False), (3000, True)])
def test_layers_are_checkpointed_where_packs_would_be_small_without(monkeypatch, tokens, checkpointing):
    policy = small_policy()
    shape = policy.model.config
    free = tokens * bytes_per_token(shape) + 1_000_000  # head and tile: under 256 tokens
    monkeypatch.setattr("sampling.team.free_for_packs", lambda policies: free)
    team = Team({"p": policy}, {"a": "p"}, {})
    team.fit_packs(checkpointing=False)
    assert policy.model.is_gradient_checkpointing == checkpointing
    assert policy.pack_tokens == tokens_that_fit(free, shape, checkpointing=checkpointing)


def test_more_threads_are_taken_where_they_save_a_tenth(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    before = torch.get_num_threads()
    for seconds, best in (((0.04, 0.02, 0.01), 4), ((0.04, 0.02, 0.019), 2), ((0.01, 0.03, 0.03), 1)):
        work = dict(zip((1, 2, 4), seconds, strict=True))
        assert fastest_threads(lambda work=work: time.sleep(work[torch.get_num_threads()])) == best
    assert torch.get_num_threads() == before


def test_the_first_update_chooses_the_threads_and_changes_nothing_else(monkeypatch):
    monkeypatch.setattr("update.fastest_threads", lambda work: [work(), 1][1])
    policies = [small_policy(lr=1e-2) for _ in range(2)]
    policies[0].threads = None
    for policy in policies:
        update(policy, random_batch(), objective(minibatches=2))
    assert [policy.threads for policy in policies] == [1, 0]
    for one, other in zip(*(policy.model.parameters() for policy in policies), strict=True):
        assert torch.equal(one, other)
