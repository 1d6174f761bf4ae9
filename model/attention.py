"""Attention over a pack: many responses to few prompts in one row of tokens (`packing.py` lays them out).

A response attends to its prompt and to itself, causally: on a GPU by two calls of the flash kernels, which copy no key,
anywhere else by SDPA over blocks of similar segments.

Shapes: T tokens of a pack, S segments (prompts and responses), H heads, G key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from model.fused import compiled


@dataclass
class Layout:
    """Who sees whom in a pack. A segment sees itself, causally, and before that its prefix: its prompt."""

    start: np.ndarray  # (S,) first token of each segment: prompts, then all responses to the first, to the second...
    length: np.ndarray  # (S,) at least 1
    prefix: np.ndarray  # (S,) first token of the prefix
    prefix_length: np.ndarray  # (S,) 0 for a prompt
    prompt_lengths: np.ndarray  # (groups,) tokens of each prompt
    group_lengths: np.ndarray  # (groups,) tokens of all responses to it
    device: torch.device

    @cached_property
    def flash(self) -> Flash:
        """Two kernel calls: segments with themselves; all responses to a prompt, as one segment, with that prompt."""

        def offsets(lengths: np.ndarray) -> Tensor:
            return torch.from_numpy(np.append(0, lengths.cumsum()).astype(np.int32)).to(self.device)

        own, queries, keys = self.length, self.group_lengths, self.prompt_lengths
        # a longest of 1 would be taken for decoding, one query in every segment
        sizes = [int(own.max()), max(2, int(queries.max())), int(keys.max()), int(keys.sum())]
        return offsets(own), offsets(queries), offsets(keys), sizes

    @cached_property
    def blocks(self) -> Blocks:
        """Padded blocks of segments whose lengths differ by less than a factor of two."""
        keys = self.prefix_length + self.length
        size = np.stack([np.frexp(self.length)[1], np.frexp(keys)[1]], 1)  # number of binary digits
        blocks, order, offset = [], np.empty(self.length.sum(), dtype=np.int64), 0
        for chosen in ((size == digits).all(1) for digits in np.unique(size, axis=0)):
            start, length, prefix, prefix_length = (
                x[chosen, None] for x in (self.start, self.length, self.prefix, self.prefix_length)
            )
            q, k = np.arange(length.max()), np.arange(keys[chosen].max())
            query = np.where(q < length, start + q, 0)
            key = np.where(k < prefix_length, prefix + k, start + k - prefix_length)
            key[k >= prefix_length + length] = 0
            mask = k <= (prefix_length + q)[:, :, None]  # query i sees the prefix and the first i + 1 keys of its own
            order[query[q < length]] = offset + np.flatnonzero(q < length)
            offset += query.size
            blocks.append([torch.from_numpy(x).to(self.device) for x in (query.ravel(), key.ravel(), mask[:, None])])
        return blocks, torch.from_numpy(order).to(self.device)


# For each block of S' segments the token index of every query (S' * Lq,) and of every key (S' * Lk,), 0 where padded,
# and a mask (S', 1, Lq, Lk), True where a query may look; then where each token's output lies in all blocks (T,)
Blocks = tuple[list[list[Tensor]], Tensor]
Calls = tuple[Tensor, Tensor, int, int]  # of one kernel: offsets of queries and of keys, longest of each
# Offsets of the segments (S + 1,), of the responses to each prompt, counted from the first response (groups + 1,), of
# the prompts (groups + 1,); then the longest segment, the most responses' tokens, the longest prompt, tokens of all
Flash = tuple[Tensor, Tensor, Tensor, list[int]]


def packed_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None = None,
    kernels: Flash | Blocks | None = None, **_: object,
) -> tuple[Tensor, None]:  # fmt: skip
    """Registered with transformers as "packed": q (1, H, T, D), k and v (1, G, T, D) -> (1, T, H, D)."""
    assert kernels is not None, "a model with attention 'packed' runs through token_logprobs"
    q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))  # (T, H | G, D)
    if len(kernels) == 4:
        return _attend(q, k, v, *kernels, scaling)[0][None], None
    return block_attention(q, k, v, kernels, scaling)[None], None


def has_flash(weight: Tensor, head_size: int) -> bool:
    """Whether torch's flash kernels take these; they need Ampere or newer."""
    fits = weight.is_cuda and weight.element_size() == 2 and head_size in range(8, 257, 8)
    return fits and torch.cuda.get_device_capability(weight.device) >= (8, 0)


AttentionInterface.register("packed", packed_attention)
AttentionMaskInterface.register("packed", lambda *args, **kwargs: None)  # the segments say who sees what


@contextmanager
def packed(model: PreTrainedModel, kind: str = "packed") -> Iterator[None]:
    """Use packed attention inside; the backward pass must lie inside too when activations are recomputed."""
    before = model.config._attn_implementation
    model.set_attn_implementation(kind)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


# Two operators that torch.compile does not look into.
@torch.library.custom_op("at_grpo::attend", mutates_args=())
def _attend(
    q: Tensor, k: Tensor, v: Tensor, itself: Tensor, queries: Tensor, keys: Tensor, sizes: list[int],
    scale: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of a pack by flash kernels: q (T, H, D), k and v (T, G, D) -> (T, H, D), log-normalisers (H, T).

    Each set of keys, prompt and response, gives an output o and a log-normaliser z, and softmax over both is
    o = sum_i exp(z_i - z) o_i with z = logsumexp(z_i), as in ring attention (arXiv 2310.01889).
    The backward kernel needs only q, k, v of its set and the final o and z, since p_ij = exp(s_ij - z).
    """
    own, responses, prompt, n = sizes
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()  # then the output is as promised below
    out, norm = _flash_forward(q, k, v, (itself, itself, own, own), True, scale)
    if n < len(q):
        more = _flash_forward(q[n:], k[:n], v[:n], (queries, keys, responses, prompt), False, scale)
        out[n:], norm[:, n:] = _merge(out[n:], norm[:, n:], *more)
    return out, norm


@torch.library.custom_op("at_grpo::attend_backward", mutates_args=())
def _attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, norm: Tensor, itself: Tensor, queries: Tensor,
    keys: Tensor, sizes: list[int], scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    own, responses, prompt, n = sizes
    grad, q, k, v = grad.contiguous(), q.contiguous(), k.contiguous(), v.contiguous()
    gradients = _flash_backward(grad, q, k, v, out, norm, (itself, itself, own, own), True, scale)
    if n < len(q):
        calls = (queries, keys, responses, prompt)
        more = _flash_backward(grad[n:], q[n:], k[:n], v[:n], out[n:], norm[:, n:], calls, False, scale)
        for total, part in zip((gradients[0][n:], gradients[1][:n], gradients[2][:n]), more, strict=True):
            total += part
    return gradients


# shapes of what they return, for the compiler
_attend.register_fake(lambda q, *_: (q.new_empty(q.shape), q.new_empty(q.shape[1::-1], dtype=torch.float32)))
_attend_backward.register_fake(lambda grad, *qkv: tuple(x.new_empty(x.shape) for x in qkv[:3]))


def _keep(ctx, inputs, output) -> None:
    *tensors, ctx.sizes, ctx.scale = inputs
    ctx.save_for_backward(*tensors[:3], *output, *tensors[3:])


def _gradients(ctx, grad: Tensor, _: Tensor):
    return *_attend_backward(grad, *ctx.saved_tensors, ctx.sizes, ctx.scale), *[None] * 5


_attend.register_autograd(_gradients, setup_context=_keep)


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


def _flash_backward(  # all but the last three are tensors
    grad, q, k, v, out, norm, calls: Calls, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """`out` and `norm` are those over all keys that the queries see."""
    no_dropout, unused = torch.zeros(2, dtype=torch.uint64, device=q.device), torch.empty(0, device=q.device)
    return torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, norm.contiguous(), *calls, 0.0, causal, no_dropout, unused, scale=scale
    )


@torch.compiler.disable  # a call for each block: it would be compiled for every pack
def block_attention(q: Tensor, k: Tensor, v: Tensor, blocks: Blocks, scale: float | None) -> Tensor:
    """One SDPA call for each block of similar segments: q (T, H, D), k and v (T, G, D) -> (T, H, D)."""
    heads, size = q.shape[1:]
    outputs = []
    for queries, keys, mask in blocks[0]:
        q_, k_, v_ = (  # (S', H | G, Lq | Lk, D)
            x.index_select(0, which).view(len(mask), -1, x.shape[1], size).transpose(1, 2)
            for x, which in ((q, queries), (k, keys), (v, keys))
        )
        out = F.scaled_dot_product_attention(q_, k_, v_, mask, scale=scale, enable_gqa=True)
        outputs.append(out.transpose(1, 2).reshape(-1, heads, size))
    return torch.cat(outputs).index_select(0, blocks[1])
