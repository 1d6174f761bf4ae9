"""Advantages: how much better than the rest of its group was an answer?

Write `solution(rewards, valid)`: for each reward r of a group, (r - mean) / (std + 1e-6), where mean and the standard
deviation of a sample (n - 1) are taken over the valid answers. An answer that could not be scored (`valid` is False)
has advantage 0 and counts for nothing. So has every answer of a group whose rewards are all equal, or that has fewer
than two valid answers. A reward that is NaN raises ValueError: better to stop than to train on it.

Worked example: rewards [0, 1] have mean 0.5 and std sqrt((0.25 + 0.25) / 1) = 0.7071, so the advantages are
[-0.7071, 0.7071].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from grouping import GroupKey, Sample, assign_advantages, group_samples

Advantages = Callable[[list[float], list[bool]], list[float]]


def solution(rewards: list[float], valid: list[bool]) -> list[float]:
    raise NotImplementedError


def product(rewards: list[float], valid: list[bool]) -> list[float]:
    key = GroupKey(0, 0, "coder")
    samples = [Sample(key, [1], [2], [0.0], reward=r, valid=v) for r, v in zip(rewards, valid, strict=True)]
    assign_advantages(group_samples(samples))
    return [sample.advantage for sample in samples]


def checks(advantages: Advantages) -> Iterator[tuple[str, Any, Any]]:
    yield "rewards 0, 1", [-0.7071, 0.7071], advantages([0.0, 1.0], [True, True])
    yield "rewards 1, 2, 3, 6", [-0.9258, -0.4629, 0.0, 1.3887], advantages([1.0, 2.0, 3.0, 6.0], [True] * 4)
    yield "equal rewards teach nothing", [0.0] * 3, advantages([0.3] * 3, [True] * 3)
    yield "one third, written in three ways", [0.0] * 3, advantages([1 / 3, 0.1 + 0.7 / 3, 1 - 2 / 3], [True] * 3)
    yield "one valid answer has nobody to be compared with", [0.0, 0.0], advantages([1.0, 0.0], [True, False])
    yield "what was not scored is left out", [-0.7071, 0.0, 0.7071], advantages([0.0, 9.0, 1.0], [True, False, True])
    try:
        advantages([float("nan"), 1.0], [True, True])
        raised = "nothing"
    except ValueError:
        raised = "ValueError"
    yield "NaN raises", "ValueError", raised
