"""What is compared with AT-GRPO and GRPO: other ways to sample, reward and group.

`METHODS`: every combination of `--sampling`, `--grouping` and `--reward` that makes sense, with its rollout and the key
of its groups. Rewards of a candidate of a tree, and of a trajectory of chains:

    --reward     tree                                   chains
    mixed        alpha * team + local (the paper)       the team's progress at the end, 1 exactly when solved
    dense        the same                               the mean of alpha * team + local over the trajectory
    outcome      1 if its team reward is 1, else 0      1 if solved, else 0
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from envs import Env
from grouping import Sample, agent_turn_key, trajectory_key
from rollout import Rollout, rollout_chains, rollout_tree
from sampling.requests import Generate


def rollout_parallel(envs: Sequence[Env], generate: Generate, *, alpha: float = 1.0, **options: Any) -> Rollout:
    """Chains whose actions keep their own rewards, alpha * team + local, instead of the return."""
    result = rollout_chains(envs, generate, alpha=alpha, **options)
    for episode in result.episodes:
        for sample in episode.samples:
            sample.reward, sample.valid = alpha * sample.team + sample.local, True
        if episode.ended == "infra":  # its last action could not be scored, the others could
            episode.samples[-1].valid = False
    return result


DENSE = partial(rollout_chains, value=lambda episode, alpha: fmean(alpha * s.team + s.local for s in episode.samples))
SOLVED = partial(rollout_chains, value=lambda episode, alpha: float(episode.solved))
SOLVING = partial(rollout_tree, mix=lambda reward, alpha: float(reward.team >= 1))  # the team reward is 1 exactly then
METHODS: dict[tuple[str, str, str], tuple[Callable[..., Rollout], Callable[[Sample], Hashable]]] = {
    ("tree", "agent_turn", "mixed"): (rollout_tree, agent_turn_key),  # AT-GRPO
    ("tree", "agent_turn", "dense"): (rollout_tree, agent_turn_key),
    ("tree", "agent_turn", "outcome"): (SOLVING, agent_turn_key),  # nothing to learn where nobody solves it
    ("chains", "trajectory", "mixed"): (rollout_chains, trajectory_key),  # GRPO
    ("chains", "trajectory", "dense"): (DENSE, trajectory_key),
    ("chains", "trajectory", "outcome"): (SOLVED, trajectory_key),
    # after the first action hardly any chains share a prompt: groups have different ones, or a single member
    ("parallel", "agent_turn", "mixed"): (rollout_parallel, lambda sample: sample.key),
    ("parallel", "prompt", "mixed"): (rollout_parallel, lambda sample: (sample.key, tuple(sample.prompt_ids))),
    ("tree", "agent", "mixed"): (rollout_tree, lambda sample: (sample.key.env, sample.key.agent)),  # all its turns
    ("tree", "turn", "mixed"): (rollout_tree, lambda sample: (sample.key.env, sample.key.turn)),  # all its agents
}
