"""Packing: many responses to few prompts as one row of tokens, and the log-probs of the response tokens.

All K candidates of a group share their prompt, so the prompt goes through the model once. A pack is one long row

    prompt A | prompt B | ... | response A1 | response A2 | ... | response B1 | ...

in which every response attends to its own prompt and itself, with the positions it would have alone. The result
equals one forward for each sequence (tests pin 1e-5) at a fraction of the tokens: P + K*R instead of K*(P + R).

Shapes: T tokens of a pack, P of them in prompts, N response tokens with a log-prob, S segments (prompts and
responses), H heads, G key/value heads, D head size, V vocabulary, C hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from grouping import Sample
from model.fused import compiled

# ------------------------------------------------------------------------------------------------------------ packing


@dataclass
class Segments:
    """Runs of tokens that attend to themselves, causally, and to a prefix before that: the prompt. All (S,)."""

    start: np.ndarray  # first token
    length: np.ndarray  # at least 1; the segments cover the pack, in order
    prefix: np.ndarray  # first token of the prefix
    prefix_length: np.ndarray  # 0 for a prompt


@dataclass
class Pack:
    """One row of the model: several prompts, then their responses."""

    ids: Tensor  # (T,)
    positions: Tensor  # (T,) every response goes on from the length of its prompt
    segments: Segments
    prompt_lengths: np.ndarray  # (groups,) tokens of each prompt
    group_lengths: np.ndarray  # (groups,) tokens of all responses to it together
    source: Tensor  # (N,) index of the token whose hidden state predicts the response token
    target: Tensor  # (N,) response token ids
    engine: Tensor  # (N,) the engine's log-probs of the response tokens
    advantage: Tensor  # (N,)
    sample: Tensor  # (N,) index of the sample in `samples`
    samples: list[Sample]

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def flash(self) -> Flash:
        """What attention by flash kernels needs; built when the first layer asks for it."""
        return _flash(self)

    @cached_property
    def blocks(self) -> Blocks:
        """What attention by plain SDPA needs; built when the first layer asks for it."""
        return _blocks(self.segments, self.ids.device)


def shared_prompts(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Samples by prompt: what a pack computes once."""
    shared: dict[tuple[int, ...], list[Sample]] = {}
    for sample in samples:
        shared.setdefault(tuple(sample.prompt_ids), []).append(sample)
    return list(shared.values())


def micro_batches(shared: Sequence[list[Sample]], budget: int) -> list[list[list[Sample]]]:
    """First fit, longest first, at most `budget` tokens each (a single larger group gets a pack of its own)."""

    def tokens(members: list[Sample]) -> int:
        return len(members[0].prompt_ids) + sum(len(sample.response_ids) for sample in members)

    bins: list[tuple[list[int], list[list[Sample]]]] = []
    for members in sorted(shared, key=tokens, reverse=True):
        for used, content in bins:
            if used[0] + tokens(members) <= budget:
                used[0] += tokens(members)
                content.append(members)
                break
        else:
            bins.append(([tokens(members)], [members]))
    return [content for _, content in bins]


def pack_samples(shared: Sequence[Sequence[Sample]], device: torch.device | str = "cpu") -> Pack:
    """Pack lists of samples; the members of a list have the same prompt.

    The last token of a response is only a target, so it is not an input. Raises ValueError on an empty prompt or
    response.
    """
    samples = [sample for members in shared for sample in members]
    for sample in samples:
        if not sample.prompt_ids or not sample.response_ids:
            raise ValueError(f"{sample.key}: empty {'response' if sample.prompt_ids else 'prompt'}")
    inputs = [members[0].prompt_ids for members in shared] + [sample.response_ids[:-1] for sample in samples]
    owner = np.repeat(np.arange(len(shared)), [len(members) for members in shared])  # the prompt of each response
    length = np.array([len(ids) for ids in inputs])
    start = length.cumsum() - length
    prompts, responses = length[: len(shared)], length[len(shared) :]
    prefix = np.concatenate([np.zeros_like(prompts), start[owner]])
    prefix_length = np.concatenate([np.zeros_like(prompts), prompts[owner]])
    last = start[owner] + prompts[owner] - 1  # the prompt's last token predicts the first of the response

    def tensor(values: Sequence | np.ndarray, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).to(device)

    sample_of = np.repeat(np.arange(len(samples)), responses + 1)
    filled = length > 0  # a response of one token has no inputs
    return Pack(
        ids=tensor([i for ids in inputs for i in ids]),
        positions=tensor(_ranges(prefix_length, length)),
        segments=Segments(start[filled], length[filled], prefix[filled], prefix_length[filled]),
        prompt_lengths=prompts,
        group_lengths=np.bincount(owner, responses, len(shared)).astype(np.int64),
        source=tensor(_ranges(_zip(last, start[len(shared) :]), _zip(np.ones_like(last), responses))),
        target=tensor([i for sample in samples for i in sample.response_ids]),
        engine=tensor([logprob for sample in samples for logprob in sample.logprobs], torch.float32),
        advantage=tensor(np.array([sample.advantage for sample in samples])[sample_of], torch.float32),
        sample=tensor(sample_of),
        samples=samples,
    )


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Count up from each start, one range after the other.

    >>> _ranges(np.array([7, 2]), np.array([3, 2])).tolist()
    [7, 8, 9, 2, 3]
    """
    return np.repeat(starts - (lengths.cumsum() - lengths), lengths) + np.arange(lengths.sum())


def _zip(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a[0], b[0], a[1], b[1], ..."""
    return np.stack([a, b], 1).ravel()


# ---------------------------------------------------------------------------------------------------------- attention


@torch.compiler.disable  # what `fused.fuse_layers` compiles ends before it
def packed_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None = None,
    pack: Pack | None = None, **_: object,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention over the segments of a pack: q (1, H, T, D), k and v (1, G, T, D) -> (1, T, H, D).

    Registered with transformers as "packed". Flash kernels where they exist, otherwise blocks of plain SDPA.
    """
    assert pack is not None, "a model with attention 'packed' runs through token_logprobs"
    q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))  # (T, H | G, D)
    if has_flash(q):
        return FlashAttention.apply(q, k, v, pack.flash, scaling)[None], None
    return block_attention(q, k, v, pack.blocks, scaling)[None], None


def has_flash(q: Tensor) -> bool:
    """Whether torch's flash kernels take these queries: 16 bits, head size a multiple of 8, Ampere or newer."""
    return (
        q.is_cuda
        and q.dtype in (torch.bfloat16, torch.float16)
        and q.shape[-1] % 8 == 0
        and q.shape[-1] <= 256
        and torch.cuda.get_device_capability(q.device) >= (8, 0)
    )


AttentionInterface.register("packed", packed_attention)
AttentionMaskInterface.register("packed", lambda *args, **kwargs: None)  # the segments say who sees what


@contextmanager
def packed(model: PreTrainedModel) -> Iterator[None]:
    """Use packed attention inside; the backward pass must lie inside too when activations are recomputed."""
    before = model.config._attn_implementation
    model.set_attn_implementation("packed")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


# ------------------------------------------------------------------------------------------------ attention: on a GPU

Calls = tuple[Tensor, Tensor, int, int]  # of one kernel: offsets of queries and of keys, longest of each


@dataclass
class Flash:
    """Two kernel calls: every segment with itself, and the responses of a prompt, as one segment, with that prompt."""

    itself: Calls
    prompt: Calls
    prompts: int  # P: tokens before the first response


def _flash(pack: Pack) -> Flash:
    def offsets(lengths: np.ndarray) -> Tensor:
        return torch.from_numpy(np.append(0, lengths.cumsum()).astype(np.int32)).to(pack.ids.device)

    own, queries, keys = pack.segments.length, pack.group_lengths, pack.prompt_lengths
    own_offsets, longest = offsets(own), int(own.max())
    return Flash(
        itself=(own_offsets, own_offsets, longest, longest),
        # a longest of 1 would be taken for decoding with exactly one query in every segment
        prompt=(offsets(queries), offsets(keys), max(2, int(queries.max())), int(keys.max())),
        prompts=int(keys.sum()),
    )


class FlashAttention(torch.autograd.Function):
    """Attention of a pack by flash kernels: q (T, H, D), k and v (T, G, D) -> (T, H, D).

    A response looks at two sets of keys, its prompt and itself. Each set gives an output o and a log-normaliser z, and
    softmax over both is o = sum_i exp(z_i - z) o_i with z = logsumexp(z_i), as in ring attention (arXiv 2310.01889).
    The backward kernel needs only q, k, v of its set and the final o and z, since p_ij = exp(s_ij - z). So no key is
    copied for each response that sees it, neither in memory nor by the gradient, which would have to be summed up.
    """

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, flash: Flash, scale: float | None):  # type: ignore[override]
        n = flash.prompts
        out, norm = _flash_forward(q, k, v, flash.itself, True, scale)  # (T, H, D), (H, T)
        if n < len(q):
            more = _flash_forward(q[n:], k[:n], v[:n], flash.prompt, False, scale)
            out[n:], norm[:, n:] = _merge(out[n:], norm[:, n:], *more)
        ctx.save_for_backward(q, k, v, out, norm)
        ctx.flash, ctx.scale = flash, scale
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        q, k, v, out, norm = ctx.saved_tensors
        n = ctx.flash.prompts
        dq, dk, dv = _flash_backward(grad, q, k, v, out, norm, ctx.flash.itself, True, ctx.scale)
        if n < len(q):
            more = _flash_backward(
                grad[n:], q[n:], k[:n], v[:n], out[n:], norm[:, n:], ctx.flash.prompt, False, ctx.scale
            )
            for total, part in zip((dq[n:], dk[:n], dv[:n]), more, strict=True):
                total += part
        return dq, dk, dv, None, None


@compiled
def _merge(a: Tensor, a_norm: Tensor, b: Tensor, b_norm: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys from that over each: outputs (n, H, D), log-normalisers (H, n)."""
    norm = torch.logaddexp(a_norm, b_norm)
    share_a, share_b = ((part - norm).exp().t()[:, :, None] for part in (a_norm, b_norm))
    return (share_a * a.float() + share_b * b.float()).to(a.dtype), norm


def _flash_forward(
    q: Tensor, k: Tensor, v: Tensor, calls: Calls, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """The kernel below torch.nn.attention.varlen, whose autograd knows of one set of keys only: output, log-norms."""
    out, norm, *_ = torch.ops.aten._flash_attention_forward(q, k, v, *calls, 0.0, causal, False, scale=scale)
    assert norm.shape == (q.shape[1], len(q)), f"log-normalisers {tuple(norm.shape)}: another kernel than expected"
    return out, norm


def _flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, norm: Tensor, calls: Calls, causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v; `out` and `norm` are those over all keys that the queries see."""
    no_dropout, unused = torch.zeros(2, dtype=torch.uint64, device=q.device), torch.empty(0, device=q.device)
    return torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, norm.contiguous(), *calls, 0.0, causal, no_dropout, unused, scale=scale
    )


# ------------------------------------------------------------------------------------------------ attention: anywhere


@dataclass
class Block:
    """Segments of similar size, padded to one batch of attention: S' segments, at most Lq queries and Lk keys each."""

    queries: Tensor  # (S' * Lq,) token index of every query, 0 where padded
    keys: Tensor  # (S' * Lk,) token index of every key/value, 0 where padded
    mask: Tensor  # (S', 1, Lq, Lk) True where a query may look


@dataclass
class Blocks:
    """All segments of a pack: a few blocks, and where each token's output lies in them, one after the other (T,)."""

    blocks: list[Block]
    order: Tensor


def _blocks(segments: Segments, device: torch.device) -> Blocks:
    """Put segments of similar length into padded blocks: lengths in one block differ by less than a factor of two."""
    keys = segments.prefix_length + segments.length
    size = np.stack([np.frexp(segments.length)[1], np.frexp(keys)[1]], 1)  # number of binary digits
    blocks, order, offset = [], np.empty(segments.length.sum(), dtype=np.int64), 0
    for digits in np.unique(size, axis=0):
        chosen = (size == digits).all(1)
        start, length, prefix, prefix_length = (
            x[chosen, None] for x in (segments.start, segments.length, segments.prefix, segments.prefix_length)
        )
        q, k = np.arange(length.max()), np.arange(keys[chosen].max())
        query = np.where(q < length, start + q, 0)
        key = np.where(k < prefix_length, prefix + k, start + k - prefix_length)
        key[k >= prefix_length + length] = 0
        mask = k <= (prefix_length + q)[:, :, None]  # query i sees the prefix and the first i + 1 keys of its segment
        order[query[q < length]] = offset + np.flatnonzero(q < length)
        offset += query.size
        blocks.append(Block(*(torch.from_numpy(x).to(device) for x in (query.ravel(), key.ravel(), mask[:, None]))))
    return Blocks(blocks, torch.from_numpy(order).to(device))


def block_attention(q: Tensor, k: Tensor, v: Tensor, blocks: Blocks, scale: float | None) -> Tensor:
    """One SDPA call for each block of similar segments: q (T, H, D), k and v (T, G, D) -> (T, H, D)."""
    heads, size = q.shape[1:]
    outputs = []
    for block in blocks.blocks:
        segments, length_q, length_k = block.mask.shape[0], *block.mask.shape[2:]
        queries = q.index_select(0, block.queries).view(segments, length_q, heads, size)
        keys, values = (x.index_select(0, block.keys).view(segments, length_k, x.shape[1], size) for x in (k, v))
        queries, keys, values = (x.transpose(1, 2) for x in (queries, keys, values))
        out = F.scaled_dot_product_attention(  # (S', H, Lq, D)
            queries, keys, values, attn_mask=block.mask, scale=scale, enable_gqa=True
        )
        outputs.append(out.transpose(1, 2).reshape(-1, heads, size))
    return torch.cat(outputs).index_select(0, blocks.order)


# ---------------------------------------------------------------------------------------------------------- log-probs

TILE_TOKENS = 2048  # that go through the head at a time, fewer when the vocabulary V is large:
TILE_LOGITS = 512 * 151_936  # tokens * V; 512 tokens with the vocabulary of Qwen3, 148 MiB of bfloat16


@compiled
def _tile_forward(logits: Tensor, target: Tensor, inverse_temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, log-normalisers and entropies (n,) of a tile of logits (n, V)."""
    logits = logits.float() * inverse_temperature
    norm = logits.logsumexp(-1)
    entropy = norm - (logits * (logits - norm[:, None]).exp()).sum(-1)
    return logits.gather(-1, target[:, None])[:, 0] - norm, norm, entropy


@compiled
def _tile_backward(logits: Tensor, target: Tensor, norm: Tensor, grad: Tensor, inverse_temperature: float) -> Tensor:
    """d logp / d logits = (onehot(target) - softmax) / temperature, times grad: (n, V) in the type of the logits."""
    softmax = (logits.float() * inverse_temperature - norm[:, None]).exp()
    onehot = torch.arange(logits.shape[-1], device=logits.device) == target[:, None]
    return ((onehot.float() - softmax) * (grad * inverse_temperature)[:, None]).to(logits.dtype)


class TokenLogProb(torch.autograd.Function):
    """log softmax(h W^T / temperature)[target] and the entropy, tile by tile, so that (N, V) never exists as a whole.

    The weight gradient is summed in float32: a sum over tiles in bfloat16 would lose the smaller terms.
    """

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, target: Tensor, temperature: float, tile: int):  # type: ignore[override]
        tiles = zip(hidden.split(tile), target.split(tile), strict=True)
        parts = [_tile_forward(h @ weight.t(), t, 1 / temperature) for h, t in tiles]
        logprobs, norm, entropy = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, weight, target, norm)
        ctx.temperature, ctx.tile = temperature, tile
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor):  # type: ignore[override]
        hidden, weight, target, norm = ctx.saved_tensors
        grad_hidden, grad_weight = [], torch.zeros_like(weight, dtype=torch.float32)
        for h, t, z, g in zip(*(x.split(ctx.tile) for x in (hidden, target, norm, grad)), strict=True):
            delta = _tile_backward(h @ weight.t(), t, z, g, 1 / ctx.temperature)
            grad_hidden.append(delta @ weight)
            _add_product(grad_weight, delta, h)
            del delta  # before the logits of the next tile exist
        return torch.cat(grad_hidden), grad_weight.to(weight.dtype), None, None, None


def _add_product(total: Tensor, delta: Tensor, hidden: Tensor) -> None:
    """total += delta^T hidden, in float32 whatever the inputs are: (V, C), (n, V), (n, C)."""
    if hidden.is_cuda and hidden.dtype != torch.float32:  # the GPU reads 16 bits and adds in 32 without a copy
        torch.addmm(total, delta.t(), hidden, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(delta.t().float(), hidden.float())


def token_logprobs(
    model: PreTrainedModel, pack: Pack, temperature: float = 1.0, tile: int | None = None
) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy of every response token at this temperature: (N,), (N,) float32.

    `tile` response tokens go through the head at a time (default: TILE_TOKENS, at most TILE_LOGITS). Raises ValueError
    outside `packed(model)`: any other attention lets the sequences of a pack see each other.
    """
    if model.config._attn_implementation != "packed":
        raise ValueError("token_logprobs: call it inside `with packed(model)`")
    hidden = model.model(
        input_ids=pack.ids[None], position_ids=pack.positions[None], use_cache=False, pack=pack
    ).last_hidden_state[0]  # (T, C)
    weight = model.lm_head.weight  # (V, C)
    tile = tile or max(1, min(TILE_TOKENS, TILE_LOGITS // len(weight)))
    return TokenLogProb.apply(hidden.index_select(0, pack.source), weight, pack.target, temperature, tile)
