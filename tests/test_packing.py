"""Packed log-probs and gradients against one plain forward for each sequence, and packs worked out by hand."""

import itertools

import numpy as np
import pytest
import torch
from helpers import ARCHITECTURES, assert_gradients_close, make_sample, reference_logprobs, small_model
from torch import tensor

from packing import TokenLogProb, micro_batches, pack_samples, packed, shared_prompts, token_logprobs


def ragged_groups(seed=0, prompts=(1, 2, 7, 19, 20), responses=(1, 1, 2, 3, 8, 13)):
    """Groups with prompts and responses of many lengths, single tokens among them."""
    rng = np.random.default_rng(seed)
    return [
        [
            make_sample(prompt=prompt, response=rng.integers(0, 31, length).tolist(), key=(i, 0, "a"))
            for length in responses
        ]
        for i, prompt in enumerate(rng.integers(0, 31, size).tolist() for size in prompts)
    ]


def packed_logprobs(model, groups, temperature=1.0, **options):
    with packed(model):
        return token_logprobs(model, pack_samples(groups), temperature, **options)


def all_gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


LAYOUTS = [(4, 4), (4, 2), (4, 1)]
CASES = [
    *itertools.product(["qwen3"], [True, False], LAYOUTS, [1.0]),
    *itertools.product(["llama", "qwen2"], [True, False], [(4, 2)], [1.0]),
    *itertools.product(["qwen3"], [True, False], [(4, 2)], [0.5, 1.7]),
]


@pytest.mark.parametrize(("architecture", "tie", "layout", "temperature"), CASES)
def test_packed_equals_one_forward_for_each_sequence(architecture, tie, layout, temperature):
    model = small_model(architecture, tie, *layout)
    groups = ragged_groups()
    logprobs, _ = packed_logprobs(model, groups, temperature)
    expected = torch.cat([reference_logprobs(model, s, temperature) for group in groups for s in group])
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)

    weight = torch.from_numpy(np.random.default_rng(1).normal(size=len(expected))).float()
    gradients = all_gradients(model, (expected * weight).sum())
    with packed(model):
        found = all_gradients(model, (token_logprobs(model, pack_samples(groups), temperature)[0] * weight).sum())
    assert_gradients_close(found, gradients)


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_neighbours_in_a_pack_change_nothing(architecture):
    """Each group alone, each sample alone, all together and in another order."""
    model = small_model(architecture)
    groups = ragged_groups()
    together = packed_logprobs(model, groups)[0].split([sum(len(s.response_ids) for s in group) for group in groups])
    backwards = packed_logprobs(model, groups[::-1])[0].split(
        [sum(len(s.response_ids) for s in group) for group in groups[::-1]]
    )
    for group, found, other in zip(groups, together, backwards[::-1], strict=True):
        torch.testing.assert_close(found, other, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found, packed_logprobs(model, [group])[0], atol=1e-5, rtol=1e-5)
        alone = torch.cat([packed_logprobs(model, [[sample]])[0] for sample in group])
        torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_packed_equals_a_padded_batch_on_either_side(side):
    """Prompts of 2 and 4 tokens with answers of 3, the textbook case of wrong slices."""
    model = small_model()
    samples = [make_sample(prompt=[5, 6], response=[7, 8, 9]), make_sample(prompt=[9, 4, 3, 11], response=[5, 2, 2])]
    rows = [sample.prompt_ids + sample.response_ids for sample in samples]
    pad = [0] * 2
    ids = tensor([pad + rows[0] if side == "left" else rows[0] + pad, rows[1]])
    real = tensor([[0] * 2 + [1] * 5 if side == "left" else [1] * 5 + [0] * 2, [1] * 7])
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    logps = model(input_ids=ids, attention_mask=real, position_ids=positions).logits.log_softmax(-1)
    starts = [3 if side == "left" else 1, 3]
    expected = torch.cat(
        [
            logps[i, start : start + 3].gather(-1, tensor(sample.response_ids)[:, None])[:, 0]
            for i, (start, sample) in enumerate(zip(starts, samples, strict=True))
        ]
    )
    found, _ = packed_logprobs(model, [[sample] for sample in samples])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_entropy_is_that_of_the_distribution_at_this_temperature():
    model = small_model()
    sample = make_sample(prompt=[5, 6], response=[7, 8, 9])
    _, entropy = packed_logprobs(model, [[sample]], 0.7)
    logps = (model(input_ids=tensor([[5, 6, 7, 8]])).logits[0, 1:] / 0.7).log_softmax(-1)
    torch.testing.assert_close(entropy, -(logps.exp() * logps).sum(-1), atol=1e-5, rtol=1e-5)


def test_a_pack_worked_out_by_hand():
    """Prompt 10 11 with answers (1 2 3) and (4), prompt 12 with answer (5 6); last tokens are targets only."""
    first = [make_sample(prompt=[10, 11], response=[1, 2, 3], logprobs=[-1, -2, -3], advantage=0.5)]
    first += [make_sample(prompt=[10, 11], response=[4], logprobs=[-4], advantage=-0.5)]
    second = [make_sample(prompt=[12], response=[5, 6], logprobs=[-5, -6], advantage=2.0)]
    pack = pack_samples([first, second])
    assert pack.ids.tolist() == [10, 11, 1, 2, 12, 5]
    assert pack.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert pack.source.tolist() == [1, 2, 3, 1, 4, 5]
    assert pack.target.tolist() == [1, 2, 3, 4, 5, 6]
    assert pack.engine.tolist() == [-1, -2, -3, -4, -5, -6]
    assert pack.advantage.tolist() == [0.5, 0.5, 0.5, -0.5, 2.0, 2.0]
    assert pack.sample.tolist() == [0, 0, 0, 1, 2, 2]
    assert pack.samples == [*first, *second]


def test_every_response_token_is_trained_whatever_it_is():
    """Token 2 is pad and end of this model: inside a response, at its end, twice in a row it is a token like others."""
    samples = [make_sample(prompt=[2, 2], response=[2, 7, 2, 2]), make_sample(prompt=[2, 2], response=[2])]
    pack = pack_samples([samples])
    assert pack.target.tolist() == [2, 7, 2, 2, 2]
    model = small_model()
    with packed(model):
        found, _ = token_logprobs(model, pack)
    expected = torch.cat([reference_logprobs(model, sample) for sample in samples])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_prompt_tokens_have_no_loss_of_their_own():
    """The gradient of a response depends on what it is, not on how the model would have continued the prompt."""
    model = small_model(tie=False)
    sample = make_sample(prompt=[5, 6, 7, 8], response=[9])
    with packed(model):
        found = all_gradients(model, token_logprobs(model, pack_samples([[sample]]))[0].sum())["lm_head.weight"]
    hidden = model.model(input_ids=tensor([[5, 6, 7, 8]])).last_hidden_state[0, -1]
    delta = torch.nn.functional.one_hot(tensor(9), 31) - (model.lm_head.weight @ hidden).softmax(-1)
    torch.testing.assert_close(found, torch.outer(delta, hidden), atol=1e-5, rtol=1e-4)


def test_temperature_divides_the_logits():
    logits = tensor([[2.0, 0.0, -1.0]])
    for temperature, expected in ((0.5, -0.020581), (1.0, -0.169846)):
        logps, _ = TokenLogProb.apply(torch.ones(1, 1), logits.t(), tensor([0]), temperature, 8)
        assert logps.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("tile", [1, 7, 2048])
def test_tiles_change_nothing(tile):
    model, groups = small_model(), ragged_groups()
    expected = packed_logprobs(model, groups)
    found = packed_logprobs(model, groups, tile=tile)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    weight = torch.linspace(-1, 1, len(expected[0]))
    with packed(model):
        gradients = [
            all_gradients(model, (token_logprobs(model, pack_samples(groups), 1.0, size)[0] * weight).sum())
            for size in (2048, tile)
        ]
    assert_gradients_close(gradients[1], gradients[0])


def test_log_probs_need_packed_attention():
    """Any other attention would let the sequences of a pack see each other, without a word."""
    model = small_model()
    with pytest.raises(ValueError, match="packed"):
        token_logprobs(model, pack_samples(ragged_groups()))


def test_attention_is_put_back_after_packing_and_after_an_error():
    model = small_model()
    before = model.config._attn_implementation
    with packed(model):
        assert model.config._attn_implementation == "packed"
    assert model.config._attn_implementation == before
    with pytest.raises(KeyError), packed(model):
        raise KeyError
    assert model.config._attn_implementation == before


def test_an_empty_prompt_raises():
    with pytest.raises(ValueError, match="empty prompt"):
        pack_samples([[make_sample(prompt=[])]])


def test_prompts_are_shared_by_content():
    samples = [make_sample(prompt=prompt, response=[i]) for i, prompt in enumerate([[1, 2], [1], [1, 2], [2, 1], [1]])]
    assert [[s.response_ids[0] for s in group] for group in shared_prompts(samples)] == [[0, 2], [1, 4], [3]]


@pytest.mark.parametrize("budget", [1, 30, 70, 10_000])
def test_micro_batches_keep_groups_whole_and_the_budget(budget):
    groups = ragged_groups(prompts=(1, 2, 7, 19, 20, 20, 3), responses=(1, 5, 8))

    def tokens(members):
        return len(members[0].prompt_ids) + sum(len(sample.response_ids) for sample in members)

    batches = micro_batches(groups, budget)
    assert sorted(id(group) for batch in batches for group in batch) == sorted(map(id, groups))
    for batch in batches:
        assert sum(map(tokens, batch)) <= budget or len(batch) == 1
    if budget == 10_000:
        assert len(batches) == 1
