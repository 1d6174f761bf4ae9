"""Groups and advantages: what is compared with what. Standard library only.

GRPO compares K answers to one prompt. With several agents and turns, "one prompt" means: the same environment
instance, the same turn, the same agent, and everything before it identical. Tree sampling makes such groups
(`rollout.rollout_tree`) and `agent_turn_key` names them. Plain GRPO compares K whole trajectories instead: the same
code with `trajectory_key`.
"""

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import NamedTuple

EPS = 1e-6  # in A = (r - mean) / (std + EPS)
MIN_SPREAD = 1e-6  # rewards closer than this, relative to their size, count as equal: their difference is rounding


class GroupKey(NamedTuple):
    """g = (e, t, i) of Algorithm 1: environment instance, turn (from 0) and agent."""

    env: Hashable
    turn: int
    agent: str


@dataclass
class Sample:
    """One candidate response: what is trained, and what the update has to know about it.

    `prompt_ids`, `response_ids` are the token ids the engine saw and sampled (never re-tokenised text), `logprobs` the
    engine's log-probability of each response token. `reward` is what is compared: in a tree the mixed reward
    alpha * team + local, in chains the return of the trajectory. The result of the comparison goes to `advantage`.
    `valid=False` marks a candidate that could not be scored (infrastructure failure). `trajectory` numbers the chain a
    sample belongs to; None in a tree, where each sample stands for itself. Raises ValueError when ids and log-probs
    differ in length or the response is empty.
    """

    key: GroupKey
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    reward: float
    advantage: float = 0.0  # set by `assign_advantages`
    weight: float = 0.0  # of each of its tokens in the loss, set in `update.update`
    valid: bool = True
    trajectory: int | None = None
    team: float = 0.0
    local: float = 0.0
    truncated: bool = False  # the engine's finish reason was "length"
    committed: bool = False  # the tree went on from this candidate
    info: dict[str, float] = field(default_factory=dict)  # what the environment reported, e.g. {"format": 1.0}

    def __post_init__(self) -> None:
        if len(self.response_ids) != len(self.logprobs):
            raise ValueError(f"{self.key}: {len(self.response_ids)} response ids but {len(self.logprobs)} log-probs")
        if not self.response_ids:
            raise ValueError(f"{self.key}: empty response (an engine returns at least the stop token)")

    @property
    def prompt_hash(self) -> int:
        """The prompt as one number: equal for equal prompts, on every rank, and practically only for those."""
        return hash(tuple(self.prompt_ids))


def agent_turn_key(sample: Sample) -> GroupKey:
    """AT-GRPO: candidates of one agent in one turn of one environment instance (Algorithm 1, the group key)."""
    return sample.key


def trajectory_key(sample: Sample) -> Hashable:
    """GRPO: every sample of the K trajectories of one environment instance, whatever its agent and turn."""
    return sample.key.env


def group_samples(
    samples: Iterable[Sample], key: Callable[[Sample], Hashable] = agent_turn_key
) -> dict[Hashable, list[Sample]]:
    """Collect samples under their key, in input order.

    Under `agent_turn_key` the members of a group must share one prompt, token by token: identical prompts are what
    makes the group mean a baseline. ValueError otherwise.
    """
    groups: dict[Hashable, list[Sample]] = {}
    for sample in samples:
        group = groups.setdefault(key(sample), [])
        if key is agent_turn_key and group and sample.prompt_ids != group[0].prompt_ids:
            raise ValueError(f"group {key(sample)} mixes different prompts; chains need trajectory_key")
        group.append(sample)
    return groups


def assign_advantages(groups: dict[Hashable, list[Sample]], normalize: str = "std") -> dict[str, int]:
    """Set `.advantage` of every sample in place: A = (r - mean) / (std + EPS) over the group (paper, Eq. 1).

    std is the sample standard deviation (n - 1). `normalize="mean_only"` leaves the division out. Rewards are compared
    once per trajectory (in a tree: once per sample), so a long trajectory counts no more than a short one in mean and
    std. Advantage is exactly 0 for invalid samples, for groups with fewer than two rewards and for groups of equal
    rewards.

    Returns counts: groups, trained (groups with a non-zero advantage), constant, singleton, invalid (samples).
    Raises ValueError on a NaN or infinite reward, on two rewards inside one trajectory, on an unknown `normalize`.
    """
    if normalize not in ("std", "mean_only"):
        raise ValueError(f"normalize={normalize!r}: choose 'std' or 'mean_only'")
    counts = dict(groups=len(groups), trained=0, constant=0, singleton=0, invalid=0)
    for key, group in groups.items():
        rewards: dict[Hashable, float] = {}  # one entry a trajectory
        for index, sample in enumerate(group):
            sample.advantage = 0.0
            if not sample.valid:
                counts["invalid"] += 1
                continue
            if not math.isfinite(sample.reward):
                raise ValueError(f"group {key}: reward {sample.reward}; what cannot be scored is marked invalid")
            unit = ("sample", index) if sample.trajectory is None else sample.trajectory
            if rewards.setdefault(unit, sample.reward) != sample.reward:
                raise ValueError(f"group {key}: trajectory {unit} has rewards {rewards[unit]} and {sample.reward}")
        if len(rewards) < 2:
            counts["singleton"] += 1
            continue
        low, high = min(rewards.values()), max(rewards.values())
        if high - low <= MIN_SPREAD * max(1.0, abs(low), abs(high)):
            counts["constant"] += 1
            continue
        counts["trained"] += 1
        mean = fmean(rewards.values())
        scale = stdev(rewards.values()) + EPS if normalize == "std" else 1.0
        for sample in group:
            if sample.valid:
                sample.advantage = (sample.reward - mean) / scale
    return counts
