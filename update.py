"""The update: shared-prompt packing, token log-probs, the clipped objective, the optimizer steps of one rollout.

All K candidates of a group share their prompt, so the prompt goes through the model once. A pack is one long row of tokens

    prompt A | response A1 | response A2 | ... | prompt B | response B1 | ...

in which every response attends to its own prompt and itself, with the positions it would have alone. The result equals one
forward for each sequence (tests pin 1e-5) at a fraction of the tokens: P + K*R instead of K*(P + R).

Shapes: T tokens of a pack, N response tokens in it (those with a log-prob), S segments (prompts and responses), H heads,
G key/value heads, D head size, V vocabulary, C hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from grouping import Sample
from policy import Policy

# ------------------------------------------------------------------------------------------------------------------ packing


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


def _blocks(segments: list[tuple[range, list[int]]], tokens: int, device: torch.device | str) -> tuple[list[Block], Tensor]:
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


# ---------------------------------------------------------------------------------------------------------------- attention


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
        segments, _, length_q, length_k = block.mask.shape
        queries = q.index_select(0, block.queries).view(segments, length_q, heads, size)
        keys, values = (x.index_select(0, block.keys).view(segments, length_k, x.shape[1], size) for x in (k, v))
        out = F.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (queries, keys, values)),
            attn_mask=block.mask,
            scale=scaling,
            enable_gqa=True,
        )  # (S', H, Lq, D)
        outputs.append(out.transpose(1, 2).reshape(-1, heads, size))
    return torch.cat(outputs).index_select(0, pack.order)[None], None


AttentionInterface.register("packed", packed_attention)
AttentionMaskInterface.register("packed", lambda *args, **kwargs: None)  # the blocks carry their masks


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """Use packed attention inside; the backward pass must lie inside too when activations are recomputed."""
    before = model.config._attn_implementation
    model.set_attn_implementation("packed")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


# --------------------------------------------------------------------------------------------------------------- log-probs


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


def token_logprobs(model: nn.Module, pack: Pack, temperature: float = 1.0, tile: int = 2048) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy of every response token at this temperature: (N,), (N,) float32. Call inside `packed(model)`."""
    hidden = model.model(
        input_ids=pack.ids[None], position_ids=pack.positions[None], use_cache=False, pack=pack
    ).last_hidden_state[0]  # (T, C)
    return TokenLogProb.apply(hidden.index_select(0, pack.source), model.lm_head.weight, pack.target, temperature, tile)


# --------------------------------------------------------------------------------------------------------------- objective


@dataclass
class UpdateConfig:
    """How a batch becomes a step. The defaults are the paper's, except where `train.py` says otherwise."""

    clip: float = 0.2  # ratio clipped to [1 - clip, 1 + clip]
    loss: str = "token"  # normalisation: token, sequence, constant
    max_response_tokens: int = 0  # the length `loss="constant"` divides by
    minibatches: int = 1  # optimizer steps an epoch
    epochs: int = 1
    temperature: float = 1.0  # the one sampled with
    mismatch_clamp: float = 2.0  # C in w = min(exp(lp_trainer - lp_engine), C)
    micro_batch_tokens: int = 16384  # tokens in one pack
    grad_clip: float = 1.0  # maximum gradient norm


def loss_weights(samples: Sequence[Sample], loss: str, max_response_tokens: int = 0) -> list[float]:
    """The weight of each token of each sample, so that the loss is a plain weighted sum however the batch is cut.

    token: sum / number of tokens; sequence: mean of per-response means; constant: sum / (responses * max_response_tokens).

    >>> loss_weights([Sample(GroupKey(0, 0, "a"), [1], [1] * n, [0.0] * n, 0.0) for n in (4, 1)], "sequence")
    [0.125, 0.5]
    """
    lengths = [len(sample.response_ids) for sample in samples]
    if loss == "token":
        return [1 / sum(lengths)] * len(samples)
    if loss == "sequence":
        return [1 / (len(samples) * length) for length in lengths]
    if loss == "constant":
        if max_response_tokens < max(lengths, default=0):
            raise ValueError(f"loss='constant': max_response_tokens={max_response_tokens} is less than a response's length")
        return [1 / (len(samples) * max_response_tokens)] * len(samples)
    raise ValueError(f"loss={loss!r}: choose 'token', 'sequence' or 'constant'")


def policy_loss(
    logprobs: Tensor, old: Tensor, engine: Tensor, advantage: Tensor, weight: Tensor, config: UpdateConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """-sum weight * w * min(ratio * A, clip(ratio, 1 - eps, 1 + eps) * A) over response tokens (paper, Eq. 5), all (N,).

    ratio = exp(logprobs - old). w = min(exp(old - engine), C) corrects for an engine that computes slightly other
    log-probs than the trainer. Returns the loss and sums over tokens for the logs.
    """
    ratio = (logprobs - old).exp()
    correction = (old - engine).exp().clamp(max=config.mismatch_clamp)
    unclipped, clipped = ratio * advantage, ratio.clamp(1 - config.clip, 1 + config.clip) * advantage
    loss = -(weight * correction * torch.minimum(unclipped, clipped)).sum()
    info = {"clip_fraction": (clipped < unclipped).float().sum(), "logprob_gap": (old - engine).abs().sum()}
    return loss, {key: value.detach() for key, value in info.items()}


# ------------------------------------------------------------------------------------------------------------------- update


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


def update(policy: Policy, samples: Sequence[Sample], config: UpdateConfig, seed: Sequence[int] = (0,)) -> dict[str, float]:
    """Train one policy on its batch B_m (Algorithm 1, last lines): `epochs` x `minibatches` optimizer steps.

    Samples with advantage 0 add nothing to the gradient, so they are not packed; they do count in the normalisation.
    Returns metrics averaged over response tokens. Raises FloatingPointError on a gradient that is not finite.
    """
    samples = [sample for sample in samples if sample.valid]
    groups = shared_prompts(samples)
    totals: dict[str, float] = {}
    steps: list[tuple[list[Sample], list[Pack]]] = []
    rng = np.random.default_rng([*seed, 2])
    for _ in range(config.epochs):
        for part in np.array_split(rng.permutation(len(groups)), min(config.minibatches, len(groups))):
            members = [groups[i] for i in part]
            trained = [kept for group in members if (kept := [sample for sample in group if sample.advantage])]
            packs = [pack_samples(m, policy.device) for m in micro_batches(trained, config.micro_batch_tokens)]
            steps.append(([sample for group in members for sample in group], packs))
    first_epoch = steps[1 : min(config.minibatches, len(groups))]
    old: dict[int, Tensor] = {}  # log-probs before the first optimizer step, by id of the sample
    with packed(policy.model):
        for _, packs in first_epoch:
            for pack in packs:
                with torch.no_grad():
                    _remember(old, pack, token_logprobs(policy.model, pack, config.temperature)[0])
        for minibatch, packs in steps:
            if packs:
                _optimizer_step(policy, minibatch, packs, old, config, totals)
    tokens, count = totals.pop("tokens", 1.0), totals.get("optimizer_steps", 1.0)
    return {
        key: value if key == "optimizer_steps" else value / (count if key in ("loss", "grad_norm") else tokens)
        for key, value in totals.items()
    }


def _optimizer_step(
    policy: Policy,
    minibatch: Sequence[Sample],
    packs: Sequence[Pack],
    old: dict[int, Tensor],
    config: UpdateConfig,
    totals: dict[str, float],
) -> None:
    """Accumulate the gradient of a minibatch over its packs and step once; adds sums over tokens to `totals`."""
    weights = dict(
        zip(map(id, minibatch), loss_weights(minibatch, config.loss, config.max_response_tokens), strict=True)
    )
    for pack in packs:
        logprobs, entropy = token_logprobs(policy.model, pack, config.temperature)
        if id(pack.samples[0]) not in old:  # the first step of a rollout: nothing has moved, the ratio is exactly 1
            _remember(old, pack, logprobs.detach())
        before = torch.cat([old[id(sample)] for sample in pack.samples])
        weight = torch.tensor([weights[id(sample)] for sample in pack.samples], device=policy.device)[pack.sample]
        loss, info = policy_loss(logprobs, before, pack.engine, pack.advantage, weight, config)
        loss.backward()
        info |= {"loss": loss.detach(), "entropy": entropy.sum(), "tokens": torch.tensor(len(pack.target))}
        for key, value in info.items():
            totals[key] = totals.get(key, 0.0) + float(value)
    grad_norm = float(nn.utils.clip_grad_norm_(policy.model.parameters(), config.grad_clip))
    if not np.isfinite(grad_norm):
        raise FloatingPointError(f"policy {policy.name}: gradient norm is {grad_norm}; the weights were left as they are")
    policy.optimizer.step()
    policy.optimizer.zero_grad(set_to_none=True)
    totals["grad_norm"] = totals.get("grad_norm", 0.0) + grad_norm
    totals["optimizer_steps"] = totals.get("optimizer_steps", 0.0) + 1


def _remember(old: dict[int, Tensor], pack: Pack, logprobs: Tensor) -> None:
    lengths = [len(sample.response_ids) for sample in pack.samples]
    old.update(zip(map(id, pack.samples), logprobs.split(lengths), strict=True))
