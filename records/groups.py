"""The groups of a step beyond their means: `groups.jsonl` has one object a step.

    {"step": 3, "tokens": 51234, "signal": [0.8, 0.41],
     "advantages": [0, ...], "reward_limit": 2.0, "rewards": {"planner": [12, ...], ...}}

`tokens`: sampled in this step. `signal`: by turn, the share of prompts with a candidate that is better than another.
The others are histograms: how many candidates have an advantage between -3 and 3, and a reward between 0 and
`reward_limit`, in equal bins; what lies outside is in the outermost bin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from distributed.world import World, add
from grouping import GroupKey, Sample

ADVANTAGES = (-3.0, 3.0)
BINS = 25  # odd: the one in the middle holds the zeros


def has_signal(group: Iterable[Sample]) -> bool:
    """Whether anything is learned from it: somebody is better than somebody else."""
    return any(sample.advantage for sample in group)


def group_row(samples: Sequence[Sample], step: int, world: World | None = None) -> dict[str, Any]:
    """One row. Call it after `assign_advantages`; all ranks call it, each with its own samples."""
    world = world or World()
    prompts: dict[GroupKey, list[Sample]] = {}
    for sample in samples:
        prompts.setdefault(sample.key, []).append(sample)
    turns: dict[int, list[int]] = {}  # groups of each turn: all of them, and those with a signal
    for key, group in prompts.items():
        turns[key.turn] = add(turns.get(key.turn, [0, 0]), [1, int(has_signal(group))])
    scored = [sample for sample in samples if sample.valid]
    limit = world.most(max((sample.reward for sample in scored if sample.reward > 1), default=1.0))
    mine: dict[str, Any] = {
        "tokens": sum(len(sample.response_ids) for sample in samples),
        "turns": turns,
        "advantages": _histogram([sample.advantage for sample in scored], *ADVANTAGES),
        "rewards": {
            agent: _histogram([sample.reward for sample in scored if sample.key.agent == agent], 0.0, limit)
            for agent in dict.fromkeys(sample.key.agent for sample in scored)
        },
    }
    total = world.add_up(mine)
    return {
        "step": step,
        "tokens": total["tokens"],
        "signal": [total["turns"][turn][1] / total["turns"][turn][0] for turn in sorted(total["turns"])],
        "advantages": total["advantages"],
        "reward_limit": limit,
        "rewards": total["rewards"],
    }


def _histogram(values: Sequence[float], low: float, high: float) -> list[int]:
    """Counts of equal bins from `low` to `high`."""
    return np.histogram(np.clip(values, low, high), BINS, (low, high))[0].tolist()
