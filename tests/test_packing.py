"""Packed log-probs and gradients against one plain forward for each sequence, and packs worked out by hand."""

import itertools

import numpy as np
import pytest
import torch
from helpers import gradients_agree, make_sample, random_model, reference_logprobs, small_model
from torch import tensor

from model import attention, fused
from model.attention import packed
from model.logprobs import TokenLogProb, token_logprobs
from model.packing import cut, micro_batches, pack_samples, tokens_of


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
    expected = torch.cat([reference_logprobs(model, s, temperature) for group in groups for s in group])
    weight = torch.from_numpy(np.random.default_rng(1).normal(size=len(expected))).float()
    with packed(model):
        logprobs, _ = token_logprobs(model, pack_samples(groups), temperature)
        gradients = all_gradients(model, (logprobs * weight).sum())
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    gradients_agree(gradients, all_gradients(model, (expected * weight).sum()))


def test_entropy_is_that_of_the_distribution_at_this_temperature():
    model = small_model()
    sample = make_sample(prompt=[5, 6], response=[7, 8, 9])
    with packed(model):
        _, entropy = token_logprobs(model, pack_samples([[sample]]), 0.7)
    logps = (model(input_ids=tensor([[5, 6, 7, 8]])).logits[0, 1:] / 0.7).log_softmax(-1)
    torch.testing.assert_close(entropy, -(logps.exp() * logps).sum(-1), atol=1e-5, rtol=1e-5)


def test_a_pack_worked_out_by_hand():
    """Prompt 10 11 with answers (1 2 3) and (4), prompt 12 with answer (5 6); last tokens are targets only."""
    first = [make_sample(prompt=[10, 11], response=[1, 2, 3], logprobs=[-1, -2, -3], advantage=0.5, weight=0.125)]
    first += [make_sample(prompt=[10, 11], response=[4], logprobs=[-4], advantage=-0.5, weight=0.25)]
    second = [make_sample(prompt=[12], response=[5, 6], logprobs=[-5, -6], advantage=2.0, weight=0.5)]
    pack = pack_samples([first, second])
    assert pack.ids.tolist() == [10, 11, 12, 1, 2, 5]
    assert pack.positions.tolist() == [0, 1, 0, 2, 3, 1]
    assert pack.source.tolist() == [1, 3, 4, 1, 2, 5]
    assert pack.target.tolist() == [1, 2, 3, 4, 5, 6]
    assert pack.engine.tolist() == [-1, -2, -3, -4, -5, -6]
    assert pack.advantage.tolist() == [0.5, 0.5, 0.5, -0.5, 2.0, 2.0]
    assert pack.weight.tolist() == [0.125, 0.125, 0.125, 0.25, 0.5, 0.5]
    assert pack.old is None
    segments = pack.layout  # 10 11 | 12 | 1 2 | 5; the answer of one token has no inputs
    assert segments.start.tolist() == [0, 2, 3, 5]
    assert segments.length.tolist() == [2, 1, 2, 1]
    prefixes = zip(segments.prefix.tolist(), segments.prefix_length.tolist(), strict=True)
    assert [(start, length) for start, length in prefixes if length] == [(0, 2), (2, 1)]


@pytest.mark.parametrize("tile", [1, 7])
def test_tiles_change_nothing(monkeypatch, tile):
    model, groups = small_model(), ragged_groups()
    found, gradients = [], []
    for size in (2048, tile):
        monkeypatch.setattr("model.logprobs.TILE_TOKENS", size)
        with packed(model):
            found.append(token_logprobs(model, pack_samples(groups)))
            gradients.append(all_gradients(model, (found[-1][0] * torch.linspace(-1, 1, len(found[-1][0]))).sum()))
    torch.testing.assert_close(found[1], found[0], atol=1e-6, rtol=1e-6)
    gradients_agree(gradients[1], gradients[0])


def test_log_probs_need_packed_attention():
    """Any other attention would let the sequences of a pack see each other, without a word."""
    model = small_model()
    with pytest.raises(KeyError), packed(model):  # it is put back, also after an error
        raise KeyError
    with pytest.raises(ValueError, match="packed"):
        token_logprobs(model, pack_samples(ragged_groups()))


def test_an_empty_prompt_raises():
    with pytest.raises(ValueError, match="empty prompt"):
        pack_samples([[make_sample(prompt=[])]])


@pytest.mark.parametrize("budget", [1, 30, 70, 10_000])
def test_micro_batches_keep_groups_whole_and_the_budget(budget):
    groups = ragged_groups(prompts=(1, 2, 7, 19, 20, 20, 3), responses=(1, 5, 8))
    batches = micro_batches(groups, budget)
    assert sorted(id(group) for batch in batches for group in batch) == sorted(map(id, groups))
    for batch in batches:
        assert sum(map(tokens_of, batch)) <= budget or len(batch) == 1
    if budget == 10_000:
        assert len(batches) == 1


def test_a_group_over_the_budget_is_cut_between_answers():
    (group,) = ragged_groups(prompts=(10,), responses=(4, 5, 6, 30, 1))
    assert [[len(sample.response_ids) for sample in part] for part in cut(group, 20)] == [[4, 5], [6], [30], [1]]
    assert cut(group, 100) == [group]


def plain_kernel(q, k, v, calls, causal, scale):
    """What a flash kernel computes, segment by segment in float64: output (T, H, D) and log-normalisers (H, T)."""
    out, norm = torch.zeros_like(q), torch.full((q.shape[1], len(q)), -torch.inf, dtype=q.dtype)
    for i, _, scores, values in plain_scores(q, k, v, calls, causal, scale):
        norm[:, i] = scores.logsumexp(-1)
        out[i] = (scores.softmax(-1) @ values).transpose(0, 1)
    return out, norm


def plain_scores(q, k, v, calls, causal, scale):
    """(queries, keys, scores (H, n, m), values (H, m, D)) of every segment that has both."""
    offsets_q, offsets_k, longest_q, longest_k = (x.tolist() if torch.is_tensor(x) else x for x in calls)
    assert longest_q == max(b - a for a, b in itertools.pairwise(offsets_q)) or (longest_q == 2 and not causal)
    assert longest_k == max(b - a for a, b in itertools.pairwise(offsets_k))
    assert (offsets_q[-1], offsets_k[-1]) == (len(q), len(k))
    group = q.shape[1] // k.shape[1]
    for i, j in zip(itertools.pairwise(offsets_q), itertools.pairwise(offsets_k), strict=True):
        i, j = slice(*i), slice(*j)
        keys, values = (x[j].repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
        scores = q[i].transpose(0, 1) @ keys.transpose(1, 2) * (scale or q.shape[-1] ** -0.5)
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -torch.inf)
        if scores.numel():
            yield i, j, scores, values


def plain_kernel_backward(grad, q, k, v, out, norm, calls, causal, scale):
    """The gradients by the formulas of the flash paper (arXiv 2205.14135, B.2), from the final `out` and `norm`."""
    gradients = [torch.zeros_like(x) for x in (q, k, v)]
    scale, group = scale or q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]
    for i, j, scores, values in plain_scores(q, k, v, calls, causal, scale):
        p, g = (scores - norm[:, i, None]).exp(), grad[i].transpose(0, 1)
        delta = p * (g @ values.transpose(1, 2) - (grad[i] * out[i]).sum(-1).t()[:, :, None]) * scale
        keys = k[j].repeat_interleave(group, 1).transpose(0, 1)
        gradients[0][i] = (delta @ keys).transpose(0, 1)
        for total, part in (
            (gradients[1], delta.transpose(1, 2) @ q[i].transpose(0, 1)),
            (gradients[2], p.transpose(1, 2) @ g),
        ):
            total[j] = part.unflatten(0, (-1, group)).sum(1).transpose(0, 1)
    return tuple(gradients)


FLASH_CASES = {
    "ragged": ragged_groups(),
    "a prompt without response inputs": ragged_groups(prompts=(5,), responses=(1, 1))
    + ragged_groups(1, prompts=(3, 4)),
    "one response input at most": ragged_groups(prompts=(5, 3), responses=(1, 2)) + ragged_groups(1, (4,), (1,)),
    "nothing shared": ragged_groups(prompts=(4, 9, 1), responses=(6,)),
    "random": ragged_groups(1, *np.random.default_rng(1).integers(1, 40, (2, 6)).tolist()),
}


@pytest.mark.parametrize("case", FLASH_CASES)
def test_two_sets_of_keys_merge_to_the_attention_over_both(case, monkeypatch):
    """Flash attention with kernels in plain Python against the blocks of SDPA: outputs and gradients in float64."""
    monkeypatch.setattr(attention, "_flash_forward", plain_kernel)
    monkeypatch.setattr(attention, "_flash_backward", plain_kernel_backward)
    # the merge computes in float32 as on the GPU, so float64 shows its rounding and nothing else
    pack = pack_samples(FLASH_CASES[case])
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (
        torch.randn(len(pack), heads, 8, generator=generator, dtype=torch.float64, requires_grad=True)
        for heads in (4, 2, 2, 4)
    )
    for scale in (None, 0.7):
        heads_first = [x.transpose(0, 1)[None] for x in (q, k, v)]
        found, expected = (
            attention.packed_attention(None, *heads_first, None, scale, kernels)[0][0]
            for kernels in (pack.layout.flash, pack.layout.blocks)
        )
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
        gradients = (torch.autograd.grad(x, (q, k, v), grad) for x in (found, expected))
        torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


def test_a_compiled_layer_contains_the_flash_kernels(monkeypatch):
    """The operator of flash attention, with kernels in plain Python, goes into the code of a layer: one graph.

    With checkpointing, which computes the layer twice.
    """
    monkeypatch.setattr(attention, "_flash_forward", plain_kernel)
    monkeypatch.setattr(attention, "_flash_backward", plain_kernel_backward)
    model = small_model()
    packs = [ragged_groups(i, prompts) for i, prompts in enumerate([(1, 2, 7, 5, 9, 3), (3, 30), (11, 8)])]

    def run():
        with packed(model):
            logprobs = [token_logprobs(model, pack_samples(pack))[0] for pack in packs]
            return logprobs, all_gradients(model, torch.stack([x.sin().sum() for x in logprobs]).sum())

    expected, gradients = run()
    monkeypatch.setattr(attention, "has_flash", lambda *_: True)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    fused.fuse_layers(model, backend="aot_eager")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    found, found_gradients = run()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    gradients_agree(found_gradients, gradients)
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # of a layer and of the last norm


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        ("cpu", torch.float32),
        ("cpu", torch.bfloat16),
        pytest.param("cuda", torch.bfloat16, marks=pytest.mark.gpu),
    ],
)
def test_the_weight_gradient_is_summed_in_float32(device, dtype):
    """512 tiles of equal gradients: a bfloat16 sum stops growing at 256 times a term."""
    if not torch.cuda.is_available() and device == "cuda":
        pytest.skip("needs a CUDA GPU")
    tokens, vocabulary, width = 4096, 32, 8
    generator = torch.Generator().manual_seed(0)
    hidden = torch.rand(tokens, width, generator=generator).to(device, dtype)
    weight = torch.zeros(vocabulary, width, device=device, dtype=dtype, requires_grad=True)
    target = torch.zeros(tokens, dtype=torch.long, device=device)
    TokenLogProb.apply(hidden, weight, target, 1.0, 8)[0].sum().backward()
    delta = torch.nn.functional.one_hot(target, vocabulary).double() - 1 / vocabulary
    expected = delta.t() @ hidden.double()
    error = (weight.grad.double() - expected).abs().max() / expected.abs().max()
    assert error < 2**-8  # the rounding of the result, not of 512 sums


@pytest.fixture
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    return torch.device("cuda")


def gpu_model():
    """head size 64 and 4 query heads for 2 key heads, bfloat16 on the GPU; the same weights in float32."""
    sizes = {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "head_dim": 64}
    model = random_model(tie_word_embeddings=True, **sizes).to(torch.bfloat16)
    exact = random_model(tie_word_embeddings=True, **sizes)
    exact.load_state_dict(model.state_dict())
    return model.cuda(), exact.cuda()


def large_groups():
    return [
        *ragged_groups(prompts=(1, 300, 513, 1024), responses=(1, 2, 63, 64, 65, 200, 256)),
        *ragged_groups(5, prompts=(17,), responses=(1, 1)),
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_bfloat16_on_a_gpu_equals_float32(cuda, monkeypatch, fuse, checkpointing):
    """Flash kernels and blocks of SDPA in bfloat16, both against float32: errors of rounding, and alike."""
    model, exact = gpu_model()
    pack = pack_samples(large_groups(), cuda)

    def run(model):
        with packed(model):
            logprobs, _ = token_logprobs(model, pack)
            return logprobs.detach(), all_gradients(
                model, (logprobs * torch.linspace(-1, 1, len(logprobs), device=cuda)).sum()
            )

    expected, expected_gradients = run(exact)
    monkeypatch.setattr(attention, "has_flash", lambda *_: False)
    blocks, block_gradients = run(model)
    monkeypatch.undo()
    assert attention.has_flash(torch.zeros(1, device=cuda, dtype=torch.bfloat16), 64)
    if fuse:
        fused.fuse_layers(model)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    flash, flash_gradients = run(model)
    assert (flash - expected).abs().max() < 0.05
    assert (flash - expected).abs().mean() < 1.5 * (blocks - expected).abs().mean() + 1e-4
    for name, gradient in expected_gradients.items():
        flash_error, block_error = (
            float((found[name].float() - gradient).norm() / gradient.norm())
            for found in (flash_gradients, block_gradients)
        )
        assert flash_error < max(0.05, 1.5 * block_error), (name, flash_error, block_error)


@pytest.mark.gpu
def test_logits_of_all_tokens_never_exist(cuda):
    """16,384 tokens with a vocabulary of 151,936 are 5 GB of bfloat16 logits; the tiles take a fraction of that."""
    tokens, vocabulary, width, tile = 16384, 151936, 256, 1024
    hidden = torch.randn(tokens, width, device=cuda, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(vocabulary, width, device=cuda, dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(0, vocabulary, (tokens,), device=cuda)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    TokenLogProb.apply(hidden, weight, target, 1.0, tile)[0].sum().backward()
    used = torch.cuda.max_memory_allocated() - before
    gradients = 6 * weight.numel() + 4 * hidden.numel()  # of the weight in float32 and bfloat16; of hidden, twice
    assert used < gradients + 4 * 4 * tile * vocabulary < tokens * vocabulary * 2
