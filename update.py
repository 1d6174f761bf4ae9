"""The update: from advantages to new weights (Algorithm 1, last lines). Read `update` from top to bottom.

A pack is several samples laid end to end for one forward pass (`model/packing.py`).
Shapes: N response tokens of a pack.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from distributed.shard import full, sum_over
from grouping import Sample
from model.attention import packed
from model.fitting import fastest_threads, threads
from model.packing import Pack, deal, pack_minibatch
from model.policy import Policy
from options import UpdateConfig

PER_TOKEN = ("entropy", "clip_fraction", "logprob_gap")  # metrics that are means over response tokens


def update(
    policy: Policy, samples: Sequence[Sample], config: UpdateConfig, seed: Sequence[int] = (0,)
) -> dict[str, float]:
    """Train one policy on its batch B_m (Algorithm 1, last lines): `epochs` x `minibatches` optimizer steps.

    A minibatch is a part of the batch for one optimizer step: the prompts are dealt out at random, and all answers to a
    prompt come along. It goes through the model as packs, whose number changes memory and not the result.
    Every rank of the policy gets the same batch (`distributed.exchange.share_samples`: with outlines of those samples
    that other ranks pack) and computes its share of each minibatch, so a step does not depend on the number of ranks.
    Samples with advantage 0 add nothing to the gradient and are not packed, but their tokens count in the loss's
    denominator. Returns metrics averaged over response tokens. Raises FloatingPointError on a gradient that is not
    finite.
    """
    samples = [sample for sample in samples if sample.valid]
    if not samples:  # none of the policy's agents got to act
        return {}
    minibatches: list[list[Pack]] = []
    for part in deal(samples, config.minibatches, seed):
        members = [sample for group in part for sample in group]
        for sample, weight in zip(members, loss_weights(members, config.loss, config.max_response_tokens), strict=True):
            sample.weight = weight  # of each of its tokens in the loss of this minibatch
        budget = config.micro_batch_tokens or policy.pack_tokens
        minibatches.append(pack_minibatch(part, budget, policy.rank, policy.ranks, policy.device))
    totals: Counter[str] = Counter()  # over the tokens of all optimizer steps
    with packed(policy.model), threads(_threads(policy, minibatches, config)):
        # The old log-probs are those before any step. The first minibatch needs no extra pass: its step starts there.
        # No minibatch needs one where the engine has computed the same numbers.
        for pack in (pack for minibatch in minibatches[1:] for pack in minibatch):
            with torch.no_grad():
                pack.old = pack.engine if policy.exact_engine else policy.logprobs(pack, config.temperature)[0]  # (N,)
        for _ in range(config.epochs):
            for minibatch in filter(None, minibatches):  # an empty one has advantages of 0 only: no step
                _optimizer_step(policy, minibatch, config, totals)
    steps = totals["optimizer_steps"]
    if not steps:
        return {}
    sums = sum_over(policy.mesh, {name: totals[name] for name in ("loss", *PER_TOKEN, "tokens")})
    return {
        "loss": sums["loss"] / steps,
        "grad_norm": totals["grad_norm"] / steps,
        "optimizer_steps": steps,
        **{name: sums[name] / sums["tokens"] for name in PER_TOKEN},
    }


def _threads(policy: Policy, minibatches: Sequence[Sequence[Pack]], config: UpdateConfig) -> int:
    """The threads of this policy's updates on a CPU; if nobody has chosen them yet, those that are fastest now."""
    packs = [pack for minibatch in minibatches for pack in minibatch]
    if policy.threads is None and packs:
        policy.threads = fastest_threads(lambda: policy.logprobs(packs[0], config.temperature)[0].sum().backward())
        policy.optimizer.zero_grad(set_to_none=True)
    return policy.threads or 0


def _optimizer_step(policy: Policy, packs: Sequence[Pack], config: UpdateConfig, totals: Counter[str]) -> None:
    """Add up the gradient of a minibatch over its packs and step once. Adds this rank's sums to `totals`."""
    sums: list[dict[str, Tensor]] = []
    for pack in packs:
        logprobs, entropy = policy.logprobs(pack, config.temperature)  # (N,), (N,)
        if pack.old is None:
            pack.old = logprobs.detach()
        loss, info = policy_loss(logprobs, pack.old, pack.engine, pack.advantage, pack.weight, config)
        (loss * policy.ranks).backward()  # FSDP averages over ranks; times ranks makes it the sum that we want
        info |= {"loss": loss.detach(), "entropy": entropy.sum(), "tokens": torch.tensor(len(pack.target))}
        real = (pack.weight[0] > 0).float()  # () 0 for a pack that only keeps an idle rank in step
        sums.append({name: value * real for name, value in info.items()})
    grad_norm = float(full(nn.utils.clip_grad_norm_(policy.model.parameters(), config.grad_clip)))
    if not np.isfinite(grad_norm):
        raise FloatingPointError(f"policy {policy.name}: gradient norm is {grad_norm}; its weights are as before")
    policy.optimizer.step()
    policy.optimizer.zero_grad(set_to_none=True)
    totals.update({"optimizer_steps": 1, "grad_norm": grad_norm})
    for values in sums:
        totals.update({name: float(value) for name, value in values.items()})


def loss_weights(samples: Sequence[Sample], loss: str, max_response_tokens: int = 0) -> list[float]:
    """The weight of each token of each sample, so that the loss is a plain weighted sum however the batch is cut.

    token: sum / number of tokens; sequence: mean of per-response means; constant: sum / (responses *
    max_response_tokens).

    >>> from grouping import GroupKey
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
            raise ValueError(f"loss='constant': a response has more than max_response_tokens={max_response_tokens}")
        return [1 / (len(samples) * max_response_tokens)] * len(samples)
    raise ValueError(f"loss={loss!r}: choose 'token', 'sequence' or 'constant'")


def policy_loss(
    logprobs: Tensor, old: Tensor, engine: Tensor, advantage: Tensor, weight: Tensor, config: UpdateConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped objective of one pack (paper, Eq. 2): -sum weight * w * min(ratio * A, clip(ratio, 1 +- eps) * A).

    All arguments are (N,), one number for each response token. ratio = exp(logprobs - old) is how much more likely the
    token has become since the rollout. w = min(exp(old - engine), C) corrects for an engine whose log-probs differ
    slightly from the trainer's. Returns the loss () and, for the logs, sums over tokens.
    """
    ratio = (logprobs - old).exp()  # (N,) exactly 1 in the first optimizer step
    correction = (old - engine).exp().clamp(max=config.mismatch_clamp)  # (N,)
    unclipped, clipped = ratio * advantage, ratio.clamp(1 - config.clip, 1 + config.clip) * advantage  # (N,)
    loss = -(weight * correction * torch.minimum(unclipped, clipped)).sum()  # ()
    info = {"clip_fraction": (clipped < unclipped).float().sum(), "logprob_gap": (old - engine).abs().sum()}
    return loss, {key: value.detach() for key, value in info.items()}
