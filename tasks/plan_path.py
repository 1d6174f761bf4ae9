"""Plan-Path: walk from a start to a goal around blocked cells. No torch."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from tasks.boards import MAX_MOVES, MAX_SIZE, MOVES, Board, Cell, Outcome, parse_moves


class PlanPath(Board):
    """Walk from the start to the goal around blocked cells, with at most `max_moves` moves per turn.

    Team reward: 1 at the goal, else max(0, (d_before - d_after) / d_start), d the shortest-path distance to the goal.
    Progress, the .8 share of both roles: net steps towards the goal / max(moves given, min(max_moves, d_before)), at
    least 0. Net steps, so loops, bumps and walking away earn nothing, and an empty plan earns its format share only.

    Options: `rows`, `cols` (cells), `blocks` (share of blocked cells), `max_moves` (moves a turn), `view`: "grid" draws
    the board, "cells" names the blocked cells by their offset from the player (short, for models trained from scratch),
    `planner_sees`: "board", or "near", which makes the roles differ: the planner sees its cell, which of its four
    neighbours are free, and the proposal; only the tool user sees the board and the goal.
    Levels: random blocks, start and goal connected and at least (rows + cols) // 4 steps apart; ValueError when none
    is found, as on a long board of one row with many blocks.
    """

    ANSWER = "#### [moves], for example #### [U, R, R]"

    def __init__(
        self,
        workflow: str = "mas",
        tool: str = "direct",
        rows: int = 10,
        cols: int = 10,
        blocks: float = 0.22,
        max_moves: int = MAX_MOVES,
        view: str = "grid",
        planner_sees: str = "board",
    ):
        super().__init__(workflow, tool)
        self.check("rows", rows, 1, MAX_SIZE)
        self.check("cols", cols, 1, MAX_SIZE)
        self.check("blocks", blocks, 0.0, 0.6)
        self.check("max_moves", max_moves, 1, MAX_MOVES)
        self.choose("view", view, "grid", "cells")
        self.choose("planner_sees", planner_sees, "board", "near")
        self.rows, self.cols, self.blocks, self.max_moves, self.view = rows, cols, blocks, max_moves, view
        self.planner_sees = planner_sees
        self.RULES = (
            f"A board of {rows} rows and {cols} columns; cells are (row, column), (0,0) is top left. "
            "Walk from your cell to the goal. Moves: U (row - 1), D (row + 1), L (column - 1), R (column + 1). "
            "A move into a blocked cell or off the board does nothing. "
            f"You have several turns; a turn takes at most {max_moves} moves, and you go on from where you are."
        )
        if planner_sees == "near":
            self.RULES += " The planner sees only its cell and the moves that are free from there (- is blocked)."
            self.RULES += " The tool user sees the board and the goal." if workflow == "mas" else ""

    @classmethod
    def from_text(cls, text: str, **options: Any) -> PlanPath:
        """A level as text: S start, G goal, # block, . free. ValueError when it is malformed or cannot be solved."""
        grid = [line.strip() for line in text.strip().splitlines()]
        cells = {(r, c): char for r, line in enumerate(grid) for c, char in enumerate(line)}
        if len({len(line) for line in grid}) != 1 or set(cells.values()) - set("SG#."):
            raise ValueError(f"Plan-Path level: rows of equal length made of S G # . expected, got\n{text}")
        starts, goals = ([cell for cell, char in cells.items() if char == letter] for letter in "SG")
        if len(starts) != 1 or len(goals) != 1:
            raise ValueError(f"Plan-Path level: one S and one G expected, got {len(starts)} and {len(goals)}")
        env = cls(rows=len(grid), cols=len(grid[0]), **options)
        env.fixed = True
        env._set_level(frozenset(cell for cell, char in cells.items() if char == "#"), starts[0], goals[0])
        if env.start not in env.distance:
            raise ValueError(f"Plan-Path level: the goal cannot be reached\n{text}")
        env._load()
        return env

    def _generate(self, rng: np.random.Generator) -> None:
        apart = max(1, (self.rows + self.cols) // 4)
        tries = min(10_000, max(100, 2_000_000 // (self.rows * self.cols)))  # a second or so for any usual size
        for _ in range(tries):
            walls = rng.random((self.rows, self.cols)) < self.blocks
            free = np.flatnonzero(~walls)
            if len(free) < 2:
                continue
            goal, start = (divmod(int(free[i]), self.cols) for i in rng.choice(len(free), 2, replace=False))
            self._set_level(frozenset(zip(*(axis.tolist() for axis in np.nonzero(walls)), strict=True)), start, goal)
            if self.distance.get(start, 0) >= apart:
                return
        size = f"rows={self.rows}, cols={self.cols}, blocks={self.blocks}"
        raise ValueError(f"{size}: found no level with a way to the goal in {tries} tries; choose fewer blocks")

    def _set_level(self, walls: frozenset[Cell], start: Cell, goal: Cell) -> None:
        self.walls, self.start, self.goal = walls, start, goal
        self.distance = {goal: 0}  # breadth first from the goal; unreachable cells are missing
        queue = deque([goal])
        while queue:
            here = queue.popleft()
            for step in MOVES.values():
                there = (here[0] + step[0], here[1] + step[1])
                if self._free(there) and there not in self.distance:
                    self.distance[there] = self.distance[here] + 1
                    queue.append(there)

    def _free(self, cell: Cell) -> bool:
        return 0 <= cell[0] < self.rows and 0 <= cell[1] < self.cols and cell not in self.walls

    def _load(self) -> None:
        super()._load()
        self.position = self.start

    @property
    def progress(self) -> float:
        """Net share of the way covered: 0 when the remaining way is as long as at the start, or longer."""
        return max(0.0, 1 - self.distance[self.position] / self.distance[self.start])

    def _apply(self, answer: list) -> Outcome:
        moves, before, bumps = parse_moves(answer), self.distance[self.position], 0
        self.way = (self.position,)
        for move in moves[: self.max_moves]:
            step = MOVES.get(move or "", (0, 0))
            there = (self.position[0] + step[0], self.position[1] + step[1])
            if move is None or not self._free(there):
                bumps += 1
                continue
            self.position = there
            self.way += (there,)
            if there == self.goal:
                self.done = self.solved = True
                break
        after = self.distance[self.position]
        legal = bool(moves) and not bumps and len(moves) <= self.max_moves
        share = max(0, before - after) / max(len(answer), min(self.max_moves, before))
        team = 1.0 if self.solved else max(0, before - after) / self.distance[self.start]
        note = f"Your last plan had {len(moves)} moves, {bumps} of them impossible."
        return Outcome(team, legal, share, share, note)

    def _noise(self, rng: np.random.Generator, good: float) -> list:
        twin, moves = self.copy(), []
        for _ in range(rng.integers(1, min(self.max_moves, 8) + 1)):
            moves.append(str(rng.choice(list(MOVES))))
            if rng.random() < good and not twin.done:
                moves[-1] = min(MOVES, key=lambda move: twin._distance_after(move))
            twin._apply(moves[-1:])
        return moves

    def _distance_after(self, move: str) -> int:
        there = (self.position[0] + MOVES[move][0], self.position[1] + MOVES[move][1])
        return self.distance[there if self._free(there) else self.position]

    def _describe(self, agent: str = "") -> str:
        (r, c), goal = self.position, self.goal
        free = " ".join(move if self._free((r + i, c + j)) else "-" for move, (i, j) in MOVES.items())
        here = f"at ({r},{c}) free {free}"
        if agent == "planner" and self.planner_sees == "near":
            return f"near {here}"
        if self.view == "grid":
            return self.render()
        walls = " ".join(f"({i - r:+d},{j - c:+d})" for i, j in sorted(self.walls)) or "none"
        down, right = goal[0] - r, goal[1] - c
        towards = f"{abs(down)} {'down' if down > 0 else 'up'} {abs(right)} {'right' if right > 0 else 'left'}"
        return f"walls {walls} {here} goal {towards}"

    def picture(self) -> list[str]:
        letters = dict.fromkeys(self.walls, "#") | {self.goal: "G", self.position: "P"}
        return ["".join(letters.get((r, c), ".") for c in range(self.cols)) for r in range(self.rows)]

    def render(self) -> str:
        """The board as a drawing, whatever `view` the agents have."""
        (r, c), goal = self.position, self.goal
        grid = "\n".join(" ".join(row) for row in self.picture())
        return (
            f"Board (P you, G goal, # blocked, . free):\n{grid}\n"
            f"You are at ({r},{c}), the goal is at ({goal[0]},{goal[1]}). {self.note}"
        )
