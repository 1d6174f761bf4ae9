"""Packing: many responses to few prompts as one row of tokens, and the log-probs of the response tokens.

All K candidates of a group share their prompt, so the prompt goes through the model once. A pack is one long row

    prompt A | response A1 | response A2 | ... | prompt B | response B1 | ...

in which every response attends to its own prompt and itself, with the positions it would have alone. The result
equals one forward for each sequence (tests pin 1e-5) at a fraction of the tokens: P + K*R instead of K*(P + R).

Shapes: T tokens of a pack, N response tokens in it (those with a log-prob), S segments (prompts and responses), H
heads, G key/value heads, D head size, V vocabulary, C hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from grouping import Sample

# ------------------------------------------------------------------------------------------------------------ packing


@dataclass
class Block:
    """Segments of similar size, padded to one batch of attention: S' segments, at most Lq queries and Lk keys each."""

    queries: Tensor  # (S' * Lq,) token index of every query, 0 where padded
    keys: Tensor  # (S' * Lk,) token index of every key/value, 0 where padded
    mask: Tensor  # (S', 1, Lq, Lk) True where a query may look


@dataclass
class Pack:
    """One row of the model: several prompts, each followed by its responses."""

    ids: Tensor  # (T,)
    positions: Tensor  # (T,) every response goes on from the length of its prompt
    blocks: list[Block]
    order: Tensor  # (T,) where each token's attention output lies in the concatenated blocks
    source: Tensor  # (N,) index of the token whose hidden state predicts the response token
    target: Tensor  # (N,) response token ids
    engine: Tensor  # (N,) the engine's log-probs of the response tokens
    advantage: Tensor  # (N,)
    sample: Tensor  # (N,) index of the sample in `samples`
    samples: list[Sample]

    def __len__(self) -> int:
        return len(self.ids)


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

    The last token of a response is only a target, so it is not an input. Raises ValueError on an empty prompt.
    """
    ids: list[int] = []
    positions: list[int] = []
    source: list[int] = []
    target: list[int] = []
    segments: list[tuple[range, list[int]]] = []  # (queries, keys) as token indices; the last key is the last query
    samples = [sample for members in shared for sample in members]
    for members in shared:
        prompt, start = members[0].prompt_ids, len(ids)
        if not prompt:
            raise ValueError(f"{members[0].key}: empty prompt")
        shared_keys = list(range(start, start + len(prompt)))
        ids += prompt
        positions += range(len(prompt))
        segments.append((range(start, start + len(prompt)), shared_keys))
        for sample in members:
            at, response = len(ids), sample.response_ids
            inside = range(at, at + len(response) - 1)
            ids += response[:-1]
            positions += range(len(prompt), len(prompt) + len(inside))
            source += [shared_keys[-1], *inside]
            target += response
            if inside:
                segments.append((inside, shared_keys + list(inside)))
    owner = [index for index, sample in enumerate(samples) for _ in sample.response_ids]
    blocks, order = _blocks(segments, len(ids), device)

    def tensor(values: list, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return Pack(
        ids=tensor(ids),
        positions=tensor(positions),
        blocks=blocks,
        order=order,
        source=tensor(source),
        target=tensor(target),
        engine=tensor([logprob for sample in samples for logprob in sample.logprobs], torch.float32),
        advantage=tensor([samples[i].advantage for i in owner], torch.float32),
        sample=tensor(owner),
        samples=samples,
    )


def _blocks(
    segments: list[tuple[range, list[int]]], tokens: int, device: torch.device | str
) -> tuple[list[Block], Tensor]:
    """Put segments of similar length into padded blocks: lengths in one block differ by less than a factor of two."""
    buckets: dict[tuple[int, int], list[tuple[range, list[int]]]] = {}
    for queries, keys in segments:
        buckets.setdefault((len(queries).bit_length(), len(keys).bit_length()), []).append((queries, keys))
    blocks, order, offset = [], np.empty(tokens, dtype=np.int64), 0
    for members in buckets.values():
        length_q, length_k = (np.array([len(segment[i]) for segment in members]) for i in (0, 1))
        most_q, most_k = length_q.max(), length_k.max()
        query_index = np.zeros((len(members), most_q), dtype=np.int64)
        key_index = np.zeros((len(members), most_k), dtype=np.int64)
        for row, (queries, keys) in enumerate(members):
            query_index[row, : len(queries)] = queries
            key_index[row, : len(keys)] = keys
            order[queries.start : queries.stop] = offset + row * most_q + np.arange(len(queries))
        offset += query_index.size
        # query i of a segment is its key number i + (keys - queries): it sees the keys up to that one
        last = np.arange(most_q)[None, :] + (length_k - length_q)[:, None]
        mask = np.arange(most_k)[None, None, :] <= np.minimum(last, length_k[:, None] - 1)[:, :, None]
        blocks.append(
            Block(*(torch.from_numpy(x).to(device) for x in (query_index.ravel(), key_index.ravel(), mask[:, None])))
        )
    return blocks, torch.from_numpy(order).to(device)


# ---------------------------------------------------------------------------------------------------------- attention


def packed_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None = None,
    pack: Pack | None = None, **_: object,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention over the segments of a pack: q (1, H, T, D), k and v (1, G, T, D) -> (1, T, H, D).

    Registered with transformers as "packed". One SDPA call for each block of similar segments.
    """
    assert pack is not None, "a model with attention 'packed' runs through token_logprobs"
    heads, size = q.shape[1], q.shape[3]
    q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))  # (T, H | G, D)
    outputs = []
    for block in pack.blocks:
        segments, length_q, length_k = block.mask.shape[0], *block.mask.shape[2:]
        queries = q.index_select(0, block.queries).view(segments, length_q, heads, size)
        keys, values = (x.index_select(0, block.keys).view(segments, length_k, x.shape[1], size) for x in (k, v))
        queries, keys, values = (x.transpose(1, 2) for x in (queries, keys, values))
        out = F.scaled_dot_product_attention(  # (S', H, Lq, D)
            queries, keys, values, attn_mask=block.mask, scale=scaling, enable_gqa=True
        )
        outputs.append(out.transpose(1, 2).reshape(-1, heads, size))
    return torch.cat(outputs).index_select(0, pack.order)[None], None


AttentionInterface.register("packed", packed_attention)
AttentionMaskInterface.register("packed", lambda *args, **kwargs: None)  # the blocks carry their masks


@contextmanager
def packed(model: PreTrainedModel) -> Iterator[None]:
    """Use packed attention inside; the backward pass must lie inside too when activations are recomputed."""
    before = model.config._attn_implementation
    model.set_attn_implementation("packed")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


# ---------------------------------------------------------------------------------------------------------- log-probs


class TokenLogProb(torch.autograd.Function):
    """log softmax(h W^T / temperature)[target] and the entropy, tile by tile, so that (N, V) never exists as a whole.

    Backward: d logp / d logits = (onehot(target) - softmax) / temperature. The weight gradient is summed in float32.
    """

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, target: Tensor, temperature: float, tile: int):  # type: ignore[override]
        logps, norms, entropies = [], [], []
        for h, t in zip(hidden.split(tile), target.split(tile), strict=True):
            logits = (h @ weight.t()).float() / temperature  # (tile, V)
            norm = logits.logsumexp(-1)
            logps.append(logits.gather(-1, t[:, None])[:, 0] - norm)
            entropies.append(norm - (logits * (logits - norm[:, None]).exp()).sum(-1))
            norms.append(norm)
        entropy = torch.cat(entropies)
        ctx.save_for_backward(hidden, weight, target, torch.cat(norms))
        ctx.temperature, ctx.tile = temperature, tile
        ctx.mark_non_differentiable(entropy)
        return torch.cat(logps), entropy

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor):  # type: ignore[override]
        hidden, weight, target, norm = ctx.saved_tensors
        grad_hidden, grad_weight = [], torch.zeros_like(weight, dtype=torch.float32)
        for h, t, z, g in zip(*(x.split(ctx.tile) for x in (hidden, target, norm, grad)), strict=True):
            delta = -((h @ weight.t()).float() / ctx.temperature - z[:, None]).exp()  # - softmax
            delta[torch.arange(len(t), device=t.device), t] += 1.0
            delta = (delta * (g / ctx.temperature)[:, None]).to(h.dtype)
            grad_hidden.append(delta @ weight)
            grad_weight += (delta.t() @ h).float()
        return torch.cat(grad_hidden), grad_weight.to(weight.dtype), None, None, None


def token_logprobs(
    model: PreTrainedModel, pack: Pack, temperature: float = 1.0, tile: int = 2048
) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy of every response token at this temperature: (N,), (N,) float32.

    Raises ValueError outside `packed(model)`: any other attention lets the sequences of a pack see each other.
    """
    if model.config._attn_implementation != "packed":
        raise ValueError("token_logprobs: call it inside `with packed(model)`")
    hidden = model.model(
        input_ids=pack.ids[None], position_ids=pack.positions[None], use_cache=False, pack=pack
    ).last_hidden_state[0]  # (T, C)
    return TokenLogProb.apply(hidden.index_select(0, pack.source), model.lm_head.weight, pack.target, temperature, tile)
