"""The update: the clipped objective and the optimizer steps of one rollout (Algorithm 1, last lines)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from distributed.shard import balance, full, sum_over
from grouping import GroupKey, Sample
from model.packing import Pack, micro_batches, pack_samples, packed, shared_prompts
from model.policy import Policy

# ---------------------------------------------------------------------------------------------------------- objective


def opt(default: Any, text: str, metavar: str = "N") -> Any:
    """An option with its line in --help."""
    metadata = {"help": text} if isinstance(default, str) and metavar == "N" else {"help": text, "metavar": metavar}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class UpdateConfig:
    """How a batch becomes a step. The defaults are ours where the paper is silent."""

    temperature: float = opt(1.0, "sampling temperature, and that of the log-probs")
    clip: float = opt(0.2, "the ratio is clipped to [1 - clip, 1 + clip]")
    loss: Literal["token", "sequence", "constant"] = opt("token", "normalisation of the loss")
    minibatches: int = opt(4, "optimizer steps an epoch")
    epochs: int = opt(1, "times a batch is used")
    micro_batch_tokens: int = opt(16384, "tokens in one forward pass")
    mismatch_clamp: float = field(default=2.0, init=False)  # C in w = min(exp(lp_trainer - lp_engine), C)
    grad_clip: float = field(default=1.0, init=False)  # maximum gradient norm
    max_response_tokens: int = field(default=0, init=False)  # what loss=constant divides by


def loss_weights(samples: Sequence[Sample], loss: str, max_response_tokens: int = 0) -> list[float]:
    """The weight of each token of each sample, so that the loss is a plain weighted sum however the batch is cut.

    token: sum / number of tokens; sequence: mean of per-response means; constant: sum / (responses *
    max_response_tokens).

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
            raise ValueError(
                f"loss='constant': max_response_tokens={max_response_tokens} is less than a response's length"
            )
        return [1 / (len(samples) * max_response_tokens)] * len(samples)
    raise ValueError(f"loss={loss!r}: choose 'token', 'sequence' or 'constant'")


def policy_loss(
    logprobs: Tensor, old: Tensor, engine: Tensor, advantage: Tensor, weight: Tensor, config: UpdateConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """-sum weight * w * min(ratio * A, clip(ratio, 1 - eps, 1 + eps) * A) over response tokens (paper, Eq. 5), all
    (N,).

    ratio = exp(logprobs - old). w = min(exp(old - engine), C) corrects for an engine that computes slightly other
    log-probs than the trainer. Returns the loss and sums over tokens for the logs.
    """
    ratio = (logprobs - old).exp()
    correction = (old - engine).exp().clamp(max=config.mismatch_clamp)
    unclipped, clipped = ratio * advantage, ratio.clamp(1 - config.clip, 1 + config.clip) * advantage
    loss = -(weight * correction * torch.minimum(unclipped, clipped)).sum()
    info = {"clip_fraction": (clipped < unclipped).float().sum(), "logprob_gap": (old - engine).abs().sum()}
    return loss, {key: value.detach() for key, value in info.items()}


# ------------------------------------------------------------------------------------------------------------- update


@dataclass
class Minibatch:
    """The samples of one optimizer step, their weights in the loss, and the packs this rank computes of them."""

    weights: dict[int, float]  # by id of the sample, over the samples of all ranks
    packs: list[Pack]


def update(
    policy: Policy, samples: Sequence[Sample], config: UpdateConfig, seed: Sequence[int] = (0,)
) -> dict[str, float]:
    """Train one policy on its batch B_m (Algorithm 1, last lines): `epochs` x `minibatches` optimizer steps.

    Every rank of the policy gets the same samples and computes its part of them: what a step is does not depend on
    the number of ranks. Samples with advantage 0 add nothing to the gradient, so they are not packed; they do count in
    the normalisation. Returns metrics averaged over response tokens. Raises FloatingPointError on a gradient that is
    not finite.
    """
    samples = [sample for sample in samples if sample.valid]
    if not samples:  # none of the policy's agents got to act
        return {}
    groups = shared_prompts(samples)
    order = np.random.default_rng([*seed, 2]).permutation(len(groups))
    parts = np.array_split(order, min(config.minibatches, len(groups)))
    minibatches = [_minibatch(policy, [groups[i] for i in part], config) for part in parts]
    totals: dict[str, float] = {}
    old: dict[int, Tensor] = {}  # log-probs before the first optimizer step, by id of the sample
    steps = 0
    with packed(policy.model):
        for minibatch in minibatches[1:]:  # of the first one they are seen before it moves the weights
            for pack in minibatch.packs:
                with torch.no_grad():
                    _remember(old, pack, policy.logprobs(pack, config.temperature)[0])
        for minibatch in minibatches * config.epochs:
            if minibatch.packs:
                _optimizer_step(policy, minibatch, old, config, totals)
                steps += 1
    if not steps:
        return {}
    totals = sum_over(policy.mesh, totals)
    averaged = {key: totals[key] / totals["tokens"] for key in ("entropy", "clip_fraction", "logprob_gap")}
    norm = totals["grad_norm"] / policy.place[1]  # every rank added the same
    return {"loss": totals["loss"] / steps, "grad_norm": norm / steps, "optimizer_steps": steps, **averaged}


def _minibatch(policy: Policy, groups: Sequence[list[Sample]], config: UpdateConfig) -> Minibatch:
    """Balance the groups that have a gradient over the policy's ranks; all ranks get the same number of packs."""
    samples = [sample for group in groups for sample in group]
    weights = loss_weights(samples, config.loss, config.max_response_tokens)
    trained = [kept for group in groups if (kept := [sample for sample in group if sample.advantage])]
    rank, size = policy.place
    batches = [micro_batches(share, config.micro_batch_tokens) for share in balance(trained, size)]
    idle = [[Sample(GroupKey(0, 0, ""), [0], [0], [0.0], 0.0)]]  # a sample of weight 0 keeps a rank in step
    mine = batches[rank] + [idle] * (max(map(len, batches)) - len(batches[rank]))
    return Minibatch(
        weights=dict(zip(map(id, samples), weights, strict=True)),
        packs=[pack_samples(shared, policy.device) for shared in mine],
    )


def _optimizer_step(
    policy: Policy, minibatch: Minibatch, old: dict[int, Tensor], config: UpdateConfig, totals: dict[str, float]
) -> None:
    """Accumulate the gradient of a minibatch over its packs and step once; adds sums over tokens to `totals`."""
    sums: list[dict[str, Tensor]] = []
    for pack in minibatch.packs:
        logprobs, entropy = policy.logprobs(pack, config.temperature)
        if id(pack.samples[0]) not in old:  # the first step of a rollout: nothing has moved, the ratio is exactly 1
            _remember(old, pack, logprobs.detach())
        before = torch.cat([old[id(sample)] for sample in pack.samples])
        weights = [minibatch.weights.get(id(sample), 0.0) for sample in pack.samples]
        weight = torch.tensor(weights, device=policy.device)[pack.sample]
        loss, info = policy_loss(logprobs, before, pack.engine, pack.advantage, weight, config)
        (loss * policy.place[1]).backward()  # FSDP takes the mean over ranks, the objective is a sum
        info |= {"loss": loss.detach(), "entropy": entropy.sum(), "tokens": torch.tensor(len(pack.target))}
        busy = float(id(pack.samples[0]) in minibatch.weights)
        sums.append({key: value * busy for key, value in info.items()})
    grad_norm = float(full(nn.utils.clip_grad_norm_(policy.model.parameters(), config.grad_clip)))
    if not np.isfinite(grad_norm):
        raise FloatingPointError(
            f"policy {policy.name}: gradient norm is {grad_norm}; the weights were left as they are"
        )
    policy.optimizer.step()
    policy.optimizer.zero_grad(set_to_none=True)
    totals["grad_norm"] = totals.get("grad_norm", 0.0) + grad_norm
    for values in sums:
        for key, value in values.items():
            totals[key] = totals.get(key, 0.0) + float(value)


def _remember(old: dict[int, Tensor], pack: Pack, logprobs: Tensor) -> None:
    lengths = [len(sample.response_ids) for sample in pack.samples]
    old.update(zip(map(id, pack.samples), logprobs.split(lengths), strict=True))
