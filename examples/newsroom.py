"""A sports desk of two: the writer turns results into points, the editor points into arrows. See docs/your_team.md."""

from __future__ import annotations

import numpy as np

from envs import Env, Message, Reward

POINTS = {"W": "3", "D": "1", "L": "0"}
ARROWS = {"3": "U", "1": "R", "0": "D"}
RULES = {
    "writer": "You follow a football team. Answer with the points of every game, in order: "
    "3 for W, 1 for D, 0 for L. For example: 3 0 1",
    "editor": "You draw the form of a football team. Answer with an arrow for every number, in order: "
    "U (up) for 3, R (right) for 1, D (down) for 0. For example: U D R",
}


def places(found: list[str], wanted: list[str]) -> float:
    """Share of places where both have the same word."""
    return sum(a == b for a, b in zip(found, wanted, strict=False)) / max(len(found), len(wanted), 1)


class Newsroom(Env):
    agents = ("writer", "editor")

    def __init__(self, games: int = 3, naive: bool = False):
        self.games, self.naive = games, naive

    def reset(self, seed: int) -> Newsroom:
        rng = np.random.default_rng(seed)
        self.results = [str(letter) for letter in rng.choice(list(POINTS), self.games)]
        self.points = [POINTS[letter] for letter in self.results]
        self.draft: list[str] = []
        self.done = self.solved = False
        return self

    def observe(self, agent: str) -> list[Message]:
        seen = f"results: {' '.join(self.results)}" if agent == "writer" else f"points: {' '.join(self.draft)}"
        return [{"role": "system", "content": RULES[agent]}, {"role": "user", "content": seen}]

    def step(self, agent: str, text: str) -> Reward:
        if self.done:
            return Reward(0.0, 0.0)
        words = text.split()
        if agent == "writer":
            self.draft = [word for word in words if word in ARROWS][:20]
            occur = len(set(words) & set(self.points)) / len(set(self.points))
            return Reward(0.0, occur if self.naive else places(words, self.points))
        wanted = [ARROWS[number] for number in self.points]
        self.done, self.solved = True, words == wanted
        return Reward(places(words, wanted), places(words, [ARROWS[number] for number in self.draft]))

    def noisy_answer(self, rng: np.random.Generator, good: float) -> str:
        """For the warm start of a model from scratch: it learns how an answer looks, and little else."""
        best = [ARROWS[number] for number in self.draft] if self.draft else self.points
        noise = rng.choice(list(ARROWS.values() if self.draft else ARROWS), rng.integers(1, 7))
        return " ".join(best if rng.random() < good else noise)
