"""The group key: which answers are compared with each other?

Write `solution(sample)`. It returns the key of the sample's group under AT-GRPO: equal for the K answers to one prompt,
and different for any two answers to different prompts. A sample has `sample.key.env`, `.turn` and `.agent`.

Worked example: the coder's eight answers in turn 0 of environment 3 form one group. Its answers in turn 1 form another
one, because by then the prompt shows what was committed; so do the tester's answers in turn 0.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from grouping import GroupKey, Sample, agent_turn_key


def solution(sample: Sample) -> Hashable:
    raise NotImplementedError


product = agent_turn_key


def checks(key: Callable[[Sample], Hashable]) -> Iterator[tuple[str, Any, Any]]:
    def of(env: int, turn: int, agent: str, response: int = 1) -> Hashable:
        return key(Sample(GroupKey(env, turn, agent), [1, 2], [response], [0.0], reward=0.0))

    first = of(0, 0, "coder")
    yield "two answers to one prompt share a group", True, first == of(0, 0, "coder", response=7)
    yield "another agent is another group", False, first == of(0, 0, "tester")
    yield "another turn is another group", False, first == of(0, 1, "coder")
    yield "another problem is another group", False, first == of(1, 0, "coder")
    keys = {of(env, turn, agent) for env in range(5) for turn in range(3) for agent in ("coder", "tester")}
    yield "5 problems, 3 turns, 2 agents: so many groups", 30, len(keys)
