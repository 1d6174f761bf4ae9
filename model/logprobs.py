"""Log-probs of the response tokens of a pack, tile by tile: logits of a whole pack would not fit.

Shapes: T tokens of a pack, N response tokens, n of them in a tile, V vocabulary, C hidden size.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from model import attention
from model.fused import compiled
from model.packing import Pack

TILE_TOKENS = 2048  # through the head at a time, fewer when the vocabulary V is large:
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
    """log softmax(h W^T / temperature)[target] and the entropy: (N,), (N,)."""

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, target: Tensor, temperature: float, tile: int):
        tiles = zip(hidden.split(tile), target.split(tile), strict=True)
        parts = [_tile_forward(h @ weight.t(), t, 1 / temperature) for h, t in tiles]
        logprobs, norm, entropy = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, weight, target, norm)
        ctx.temperature, ctx.tile = temperature, tile
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor):
        hidden, weight, target, norm = ctx.saved_tensors
        trained = ctx.needs_input_grad[1]  # not under an adapter
        # in float32: a sum over tiles in bfloat16 would lose the smaller terms
        grad_hidden, grad_weight = [], torch.zeros_like(weight, dtype=torch.float32) if trained else None
        for h, t, z, g in zip(*(x.split(ctx.tile) for x in (hidden, target, norm, grad)), strict=True):
            delta = _tile_backward(h @ weight.t(), t, z, g, 1 / ctx.temperature)
            grad_hidden.append(delta @ weight)
            if grad_weight is not None and h.is_cuda and h.dtype != torch.float32:
                # the GPU reads 16 bits and adds in 32 without a copy
                torch.addmm(grad_weight, delta.t(), h, out_dtype=torch.float32, out=grad_weight)
            elif grad_weight is not None:
                grad_weight.addmm_(delta.t().float(), h.float())
            del delta  # before the logits of the next tile exist
        return torch.cat(grad_hidden), None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None


def token_logprobs(model: PreTrainedModel, pack: Pack, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy of every response token: (N,), (N,) float32. ValueError outside `packed(model)`."""
    if model.config._attn_implementation != "packed":  # another lets the sequences of a pack see each other
        raise ValueError("token_logprobs: call it inside `with packed(model)`")
    weight = model.lm_head.weight  # (V, C)
    flash = attention.has_flash(weight, model.model.layers[0].self_attn.head_dim)
    kernels = pack.layout.flash if flash else pack.layout.blocks
    hidden = model.model(
        input_ids=pack.ids[None], position_ids=pack.positions[None], use_cache=False, kernels=kernels
    ).last_hidden_state[0]  # (T, C)
    tile = max(1, min(TILE_TOKENS, TILE_LOGITS // len(weight)))
    return TokenLogProb.apply(hidden.index_select(0, pack.source), weight, pack.target, temperature, tile)
