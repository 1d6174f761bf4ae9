"""Plan-Path: walk from a start to a goal around blocked cells."""

from itertools import product
from math import inf
from typing import Any

import numpy as np

from tasks.boards import MAX_MOVES, MOVES, Cell, Rng, Walk, beside, check, distances


class PlanPath(Walk):
    """Team reward: 1 at the goal, else max(0, (d_before - d_after) / d_start), d the shortest distance to the goal.
    Share of both roles: net steps towards the goal / max(moves given, min(max_moves, d_before)), at least 0. So loops,
    bumps and walking away earn nothing, and an empty plan earns its format share only.

    Options: `rows`, `cols` (cells), `blocks` (share of blocked cells), `max_moves` (a turn), `view`: "grid" draws the
    board, "cells" names the blocked cells by their offset from the player (short, for models trained from scratch),
    `planner_sees`: "board", or "near": its cell, which neighbours are free, and the proposal; only the tool user sees
    the board and the goal. `calls`: see `Board`.
    Levels: random blocks, start and goal connected and at least (rows + cols) // 4 steps apart.
    """

    TITLE, TASK = "A board of", "Walk from your cell to the goal."
    HINT = "A move into a blocked cell or off the board does nothing."

    def __init__(
        self, workflow: str = "mas", tool: str = "direct", rows: int = 10, cols: int = 10, blocks: float = 0.22,
        max_moves: int = MAX_MOVES, view: str = "grid", planner_sees: str = "board", calls: int = 1,
    ):  # fmt: skip
        super().__init__(workflow, tool, calls, rows, cols, max_moves)
        if not 0 <= blocks <= 0.6:
            raise ValueError(f"blocks={blocks}: choose 0.0 to 0.6")
        check("view", view, ("grid", "cells"))
        check("planner_sees", planner_sees, ("board", "near"))
        self.blocks, self.view, self.planner_sees = blocks, view, planner_sees
        self.tries = min(10_000, max(100, 2_000_000 // (rows * cols)))  # a second or so for any usual size
        if planner_sees == "near":
            self.RULES += " The planner sees only its cell and the moves that are free from there (- is blocked)."
            self.RULES += " The tool user sees the board and the goal." if workflow == "mas" else ""

    @classmethod
    def from_text(cls, text: str, **options: Any) -> "PlanPath":
        """A level as text: S start, G goal, # block, . free. ValueError if it is malformed or has no solution."""
        grid = [line.strip() for line in text.strip().splitlines()]
        cells = {(r, c): char for r, line in enumerate(grid) for c, char in enumerate(line)}
        starts, goals = ([cell for cell in cells if cells[cell] == kind] for kind in "SG")
        if len(starts) != 1 or len(goals) != 1 or len(set(map(len, grid))) != 1 or set(cells.values()) - set("SG#."):
            raise ValueError(f"Plan-Path level: rows of equal length of . # one S and one G expected, got\n{text}")
        env = cls(rows=len(grid), cols=len(grid[0]), **options)
        env.tries = 0
        env._set_level([cell for cell in cells if cells[cell] != "#"], *starts, *goals)
        if env.start not in env.distance:
            raise ValueError(f"Plan-Path level: the goal cannot be reached\n{text}")
        return env.reset(seed=0)

    def _generate(self, rng: Rng) -> bool:
        free = [(r, c) for r, c in np.argwhere(rng.random((self.rows, self.cols)) >= self.blocks).tolist()]
        if len(free) < 2:
            return False
        goal, start = (free[i] for i in rng.choice(len(free), 2, replace=False))
        self._set_level(free, start, goal)
        return self.distance.get(start, 0) >= max(1, (self.rows + self.cols) // 4)

    def _set_level(self, free: list[Cell], start: Cell, goal: Cell) -> None:
        self.free, self.start, self.goal = frozenset(free), start, goal
        self.distance = distances([goal], lambda cell: self.free & {beside(cell, move) for move in MOVES})

    def _load(self) -> None:
        super()._load()
        self.position = self.start

    @property
    def progress(self) -> float:
        """Net share of the way covered, at least 0."""
        return max(0.0, 1 - self.distance[self.position] / self.distance[self.start])

    def _move(self, move: str) -> None:
        there = beside(self.position, move)
        if there in self.distance:
            self.position = there
            self.done = self.solved = self.solved or there == self.goal

    def _apply(self, answer: list) -> tuple[float, bool, float, str]:
        before = self.distance[self.position]
        legal, note = self._walk(answer)
        gain = max(0, before - self.distance[self.position])
        # at most 1: from further away than the start, an answer may gain more than the whole way
        team = 1.0 if self.solved else min(1.0, gain / self.distance[self.start])
        return team, legal, gain / max(len(answer), min(self.max_moves, before)), note

    def _noisy_move(self, rng: Rng, good: float) -> str:
        move = str(rng.choice(list(MOVES)))
        if rng.random() < good and not self.done:
            move = min(MOVES, key=lambda move: self.distance.get(beside(self.position, move), inf))
        return move

    def _describe(self, role: str) -> str:
        (r, c), (row, column) = self.position, self.goal
        free = [move if beside(self.position, move) in self.distance else "-" for move in MOVES]
        here = f"at ({r},{c}) free {' '.join(free)}"
        if role == "planner" and self.planner_sees == "near":
            return f"near {here}"
        if role and self.view == "cells":
            cells = product(range(self.rows), range(self.cols))
            walls = " ".join(f"({i - r:+d},{j - c:+d})" for i, j in cells if (i, j) not in self.free) or "none"
            down, right = ("down" if row > r else "up"), ("right" if column > c else "left")
            return f"walls {walls} {here} goal {abs(row - r)} {down} {abs(column - c)} {right}"
        drawing = "\n".join(" ".join(row) for row in self.picture())
        places = f"You are at ({r},{c}), the goal is at ({row},{column})."
        return f"Board (P you, G goal, # blocked, . free):\n{drawing}\n{places} {self.note}"

    def _symbol(self, cell: Cell) -> str:
        return {self.goal: "G", self.position: "P"}.get(cell, "." if cell in self.free else "#")

    def _places(self) -> str:
        return f"start, goal = {self.position}, {self.goal}"
