"""Greedy commitment: one turn of the tree.

Write `solution(env, answers)`: play one turn of `env`. For each agent in the order of `env.agents`, try each of its
answers `answers[agent]` on a copy of the state of its own (`env.copy()`, `copy.step(agent, text)` returns a Reward).
The mixed reward is team + local. Commit the best answer, the first one if several are equal: its copy is the state from
then on, and the next agent is scored on top of it. Return the mixed rewards in the order in which they were given, and
the value of the last state, `env.value`.

Worked example, the environment below: the value is a number, an answer adds to it, and the team is paid a tenth of the
value. From 0, agent a answers "1", "3": rewards 0.1 and 0.3; "3" is committed. Then b answers "2", "0": 0.5 and 0.3;
"2" is committed, and the value at the end is 5. All four rewards: 0.1, 0.3, 0.5, 0.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from envs import Env, Message, Reward
from rollout import Completion, Request, rollout_tree


class Climb(Env):
    """A number that answers add to; the team is paid a tenth of it, and b half a point for the answer 4."""

    agents = ("a", "b")

    def __init__(self) -> None:
        self.value = 0

    def reset(self, seed: int) -> Climb:
        self.value = seed
        return self

    def observe(self, agent: str) -> list[Message]:
        return [{"role": "user", "content": str(self.value)}]

    def step(self, agent: str, text: str) -> Reward:
        self.value += int(text)
        return Reward(team=min(max(self.value, 0), 10) / 10, local=0.5 if (agent, text) == ("b", "4") else 0.0)


Play = Callable[[Climb, dict[str, list[str]]], tuple[list[float], int]]


def solution(env: Climb, answers: dict[str, list[str]]) -> tuple[list[float], int]:
    raise NotImplementedError


def product(env: Climb, answers: dict[str, list[str]]) -> tuple[list[float], int]:
    def generate(requests: list[Request], n: int) -> list[list[Completion]]:
        return [[Completion([int(text) + 50], [0.0], "stop") for text in answers[r.agent]] for r in requests]

    played = rollout_tree(
        [env], generate, num_candidates=len(answers["a"]), max_turns=1,
        encode=lambda agent, messages: [1, int(messages[0]["content"])],
        decode=lambda agent, ids: str(ids[0] - 50),
    )  # fmt: skip
    committed = [int(action.text) for action in played.episodes[0].actions]
    return [sample.reward for sample in played.samples], env.value + sum(committed)


def checks(play: Play) -> Iterator[tuple[str, Any, Any]]:
    rewards, value = play(Climb(), {"a": ["1", "3"], "b": ["2", "0"]})
    yield "the worked example, rewards", [0.1, 0.3, 0.5, 0.3], rewards
    yield "the worked example, value", 5, value
    rewards, value = play(Climb(), {"a": ["3", "1"], "b": ["4", "0"]})
    yield "b is scored on what a committed", [0.3, 0.1, 1.2, 0.3], rewards
    rewards, value = play(Climb().reset(9), {"a": ["1", "5"], "b": ["-3", "0"]})
    yield "ties: the first is committed", [1.0, 1.0, 0.7, 1.0], rewards
    yield "so the value is 9 + 1 + 0", 10, value
