"""Ablations: other ways to sample, reward or compare. None of this belongs to AT-GRPO or GRPO.

`METHODS` has every combination of `--sampling`, `--grouping` and `--reward` that makes sense, with the rollout to run
and the key of its groups.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from envs import Env, Reward, mixed_reward
from grouping import Sample, agent_turn_key, trajectory_key
from rollout import Rollout, rollout_chains, rollout_tree
from sampling.requests import Generate


def agent_key(sample: Sample) -> Hashable:
    """All turns of an agent in one group, although their prompts differ."""
    return sample.key.env, sample.key.agent


def turn_key(sample: Sample) -> Hashable:
    """All agents of a turn in one group, although their prompts differ."""
    return sample.key.env, sample.key.turn


def prompt_key(sample: Sample) -> Hashable:
    """Agent- and turn-wise groups of chains that run side by side. They may only compare answers to one prompt, and
    after the first action hardly any two chains share one, so most groups have a single member.
    """
    return sample.key, tuple(sample.prompt_ids)


def rollout_parallel(envs: Sequence[Env], generate: Generate, *, alpha: float = 1.0, **options: Any) -> Rollout:
    """Chains whose actions each keep their own reward, alpha * team + local, instead of the return."""
    result = rollout_chains(envs, generate, alpha=alpha, **options)
    for episode in result.episodes:
        for sample in episode.samples:
            sample.reward, sample.valid = mixed_reward(Reward(sample.team, sample.local), alpha), True
        if episode.ended == "infra":  # its last action could not be scored, the others could
            episode.samples[-1].valid = False
    return result


def outcome(reward: Reward, alpha: float) -> float:
    """1 for an action that solves the task, else 0 (the team reward is 1 exactly then)."""
    return float(reward.team >= 1)


METHODS: dict[tuple[str, str, str], tuple[Callable[..., Rollout], Callable[[Sample], Hashable]]] = {
    ("tree", "agent_turn", "mixed"): (rollout_tree, agent_turn_key),  # AT-GRPO
    ("chains", "trajectory", "mixed"): (rollout_chains, trajectory_key),  # GRPO
    ("parallel", "prompt", "mixed"): (rollout_parallel, prompt_key),
    ("tree", "agent", "mixed"): (rollout_tree, agent_key),
    ("tree", "turn", "mixed"): (rollout_tree, turn_key),
    ("tree", "agent_turn", "outcome"): (partial(rollout_tree, mix=outcome), agent_turn_key),
    ("tree", "agent", "outcome"): (partial(rollout_tree, mix=outcome), agent_key),
    ("tree", "turn", "outcome"): (partial(rollout_tree, mix=outcome), turn_key),
}
