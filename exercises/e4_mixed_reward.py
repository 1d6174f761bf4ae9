"""The mixed reward: what an answer did for the team, and what it did itself.

Write `solution(reward, alpha)` for a Reward with `.team` and `.local`: alpha * team + local (Eq. 3 of the paper).

Worked example: a tool user proposes a way to the goal (team 1.0) in an answer that can be read and is legal, but takes
two steps too many (local 0.84). With alpha = 1 it earns 1.84, with alpha = 0.5 it earns 1.34.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from envs import Reward, mixed_reward


def solution(reward: Reward, alpha: float) -> float:
    raise NotImplementedError


product = mixed_reward


def checks(mix: Callable[[Reward, float], float]) -> Iterator[tuple[str, Any, Any]]:
    yield "the worked example", 1.84, mix(Reward(1.0, 0.84), 1.0)
    yield "alpha = 0.5", 1.34, mix(Reward(1.0, 0.84), 0.5)
    yield "alpha = 0: each for itself", 0.84, mix(Reward(1.0, 0.84), 0.0)
    yield "a local reward alone", 0.2, mix(Reward(0.0, 0.2), 3.0)
