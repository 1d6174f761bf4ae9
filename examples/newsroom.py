"""A sports desk of two: the writer turns results into points, the editor prints the total. See docs/your_team.md."""

from __future__ import annotations

import copy
import re

import numpy as np

from envs import Message, Reward

POINTS = {"W": 3, "D": 1, "L": 0}
RULES = {
    "writer": "You keep the table of a football league. Answer with the points of every game in order: "
    "3 for W, 1 for D, 0 for L. For example: 3 0 1",
    "editor": "You print the table of a football league. Answer with the points of as many games as there is room for, "
    "from the first one on. For example, with room for 2 games: 3 0",
}


def numbers(text: str) -> list[int]:
    """The numbers of an answer; none if it says anything else."""
    return [int(word) for word in text.split()] if re.fullmatch("[0-9 ]{1,40}", text) else []


def places(found: list[int], wanted: list[int]) -> float:
    """Share of places where both have the same number."""
    return sum(a == b for a, b in zip(found, wanted)) / max(len(found), len(wanted), 1)


class Newsroom:
    """`naive` pays the writer for all points that occur in the draft, whatever else is there."""

    agents, simultaneous, done, solved = ("writer", "editor"), False, False, False

    def __init__(self, games: int = 3, naive: bool = False):
        self.games, self.naive = games, naive

    def reset(self, seed: int) -> Newsroom:
        rng = np.random.default_rng(seed)
        self.results = [str(letter) for letter in rng.choice(list(POINTS), self.games)]
        self.points = [POINTS[letter] for letter in self.results]
        self.room, self.draft = int(rng.integers(self.games)) + 1, []
        self.done = self.solved = False
        return self

    def observe(self, agent: str) -> list[Message]:
        seen = {"writer": f"results: {' '.join(self.results)}", "editor": f"room {self.room}: {' '.join(map(str, self.draft))}"}
        return [{"role": "system", "content": RULES[agent]}, {"role": "user", "content": seen[agent]}]

    def step(self, agent: str, text: str) -> Reward:
        if self.done:
            return Reward(0.0, 0.0)
        found = numbers(text)
        if agent == "writer":
            self.draft = found
            occur = len(set(found) & set(self.points)) / len(set(self.points))
            return Reward(0.0, occur if self.naive else places(found, self.points))
        self.done, self.solved = True, found == self.points[: self.room]
        return Reward(places(found, self.points[: self.room]), places(found, self.draft[: self.room]))

    def copy(self) -> Newsroom:
        return copy.deepcopy(self)

    def noisy_answer(self, rng: np.random.Generator, good: float) -> str:
        """For the warm start of a model from scratch: it learns how an answer looks, and little else."""
        best = self.draft[: self.room] or self.points
        return " ".join(map(str, best if rng.random() < good else rng.choice(10, rng.integers(1, 7))))
