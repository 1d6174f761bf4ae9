"""Tree and chains side by side: why is a group of one useless?

Write `solution(samples, key)`: of the groups that `key(sample)` makes of the samples, how many can teach something, and
how many are there? A group teaches if it has at least two samples and their rewards are not all equal. Return the two
numbers.

Worked example: four answers to one prompt with rewards 0, 0, 1, 0 are one group, and it teaches: (1, 1). Four chains
that went different ways have four different prompts in their second turn. As groups of one prompt they are (0, 4): each
answer is as good as the average of its group, which is itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from exercises.e3_commit import Climb
from grouping import Sample, agent_turn_key, assign_advantages, group_samples, trajectory_key
from rollout import Completion, Request, rollout_chains, rollout_tree

Key = Callable[[Sample], Hashable]


def solution(samples: list[Sample], key: Key) -> tuple[int, int]:
    raise NotImplementedError


def product(samples: list[Sample], key: Key) -> tuple[int, int]:
    groups = group_samples(samples, key)
    return assign_advantages(groups)["trained"], len(groups)


def checks(count: Callable[[list[Sample], Key], tuple[int, int]]) -> Iterator[tuple[str, Any, Any]]:
    def generate(requests: list[Request], n: int) -> list[list[Completion]]:
        """Answers that add 0, 1, 2 or 3, another one for each seed."""
        return [[Completion([(request.seed + k) % 4], [0.0], "stop") for k in range(n)] for request in requests]

    def prompt(sample: Sample) -> Hashable:
        return (*sample.key, tuple(sample.prompt_ids))

    rules: dict[str, Any] = dict(num_candidates=4, max_turns=2, decode=lambda agent, ids: str(ids[0]))
    rules["encode"] = lambda agent, messages: [1, int(messages[0]["content"])]
    tree = rollout_tree([Climb()], generate, **rules).samples
    chains = rollout_chains([Climb()], generate, **rules).samples
    # in the end: what each of the four teams has reached, on every sample of its trajectory
    for sample in chains:
        sample.reward = float(sample.trajectory or 0)
    yield "tree: 2 agents, 2 turns, all four groups teach", (4, 4), count(tree, agent_turn_key)
    yield "chains, their ends compared: one group, it teaches", (1, 1), count(chains, trajectory_key)
    yield "chains by prompt: only the first four answers share one", (1, 13), count(chains, prompt)
    for sample in chains:
        sample.reward = 0.0
    yield "chains that all failed: nothing to learn", (0, 1), count(chains, trajectory_key)
