"""Sokoban: push every box onto a goal. No torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from tasks.boards import MAX_MOVES, MAX_SIZE, MOVES, Board, Cell, Outcome, parse_moves

WALLS = 0.25  # share of inner cells that a generated Sokoban level blocks
MAX_POSITIONS = 300_000  # positions of one Sokoban level that are searched: about 8 s and 100 MB


class Sokoban(Board):
    """Push every box onto a goal. A turn takes `max_moves` moves at most; the outer ring of cells is wall.

    Team reward: boxes on goals / boxes, so 1 when solved.
    Potential, whose new highs are the .8 share of both roles: 1 - pushes to go / pushes to go at the start, where
    pushes to go is the exact number of pushes in a shortest solution from here. A position without a solution (a
    deadlock) has potential 0. Walking, bumping, an empty plan and pushing a box off and on again reach no new high and
    earn none of it.

    Positions are bit masks on a grid with one extra ring of cells, so that one shift moves a whole set of cells and
    nothing leaves the board. `to_go` maps (boxes, cells the player can walk to) to pushes to go; deadlocks are missing.
    It is computed once per level, backwards: pulling boxes away from the goals visits all solvable positions and no
    others.

    Options: `rows`, `cols` (cells, walls included), `boxes`, `max_moves` (moves a turn).
    Levels: random inner walls and goals, then a random solvable position at least boxes + 2 pushes from the solution.
    """

    ANSWER = "#### [moves], for example #### [U, R, R]"

    def __init__(
        self,
        workflow: str = "mas",
        tool: str = "direct",
        rows: int = 6,
        cols: int = 6,
        boxes: int = 1,
        max_moves: int = MAX_MOVES,
    ):
        super().__init__(workflow, tool)
        self.check("rows", rows, 1, MAX_SIZE)
        self.check("cols", cols, 1, MAX_SIZE)
        self.check("boxes", boxes, 1, MAX_SIZE)
        self.check("max_moves", max_moves, 1, MAX_MOVES)
        self.rows, self.cols, self.num_boxes, self.max_moves = rows, cols, boxes, max_moves
        width = cols + 2
        self.shifts = {"U": -width, "D": width, "L": -1, "R": 1}
        self.cells = {(r, c): 1 << ((r + 1) * width + c + 1) for r in range(rows) for c in range(cols)}
        self.RULES = (
            f"Sokoban, {rows} rows and {cols} columns; cells are (row, column), (0,0) is top left. "
            "# wall, . goal, $ box, * box on a goal, @ you, + you on a goal, space free. Push every box onto a goal. "
            "Moves: U (row - 1), D (row + 1), L (column - 1), R (column + 1). Walking into a box pushes it one cell if "
            "the cell behind it is free; boxes cannot be pulled. A move that is not possible does nothing. "
            f"You have several turns; a turn takes at most {max_moves} moves, and you go on from where you are."
        )

    @classmethod
    def from_text(cls, text: str, **options: Any) -> Sokoban:
        """A level in the usual symbols (`#`, space, `.`, `$`, `*`, `@`, `+`); short rows are filled up with free cells.

        ValueError when it is malformed, has no box or another number of goals than boxes, or cannot be solved.
        """
        grid = [line.rstrip() for line in text.strip("\n").splitlines()]
        where: dict[str, list[Cell]] = {}
        for r, line in enumerate(grid):
            for c, char in enumerate(line):
                where.setdefault(char, []).append((r, c))
        if unknown := set(where) - set("# .$*@+"):
            raise ValueError(f"Sokoban level: unknown symbols {sorted(unknown)}, use # space . $ * @ +\n{text}")
        boxes, goals, players = (
            [cell for char in kind for cell in where.get(char, [])] for kind in ("$*", ".*+", "@+")
        )
        if not boxes or len(boxes) != len(goals) or len(players) != 1:
            found = f"{len(players)} players, {len(boxes)} boxes and {len(goals)} goals"
            raise ValueError(f"Sokoban level: one player and as many goals as boxes expected, got {found}\n{text}")
        env = cls(rows=len(grid), cols=max(map(len, grid)), boxes=len(boxes), **options)
        env.fixed = True
        walls = {*where.get("#", [])}
        env._set_level(env._mask(set(env.cells) - walls), env._mask(goals))
        env.start = (env._mask(boxes), env._mask(players))
        if env._pushes(*env.start) is None:
            raise ValueError(f"Sokoban level: it cannot be solved\n{text}")
        env._load()
        return env

    def _generate(self, rng: np.random.Generator) -> None:
        inner = [(r, c) for r in range(1, self.rows - 1) for c in range(1, self.cols - 1)]
        for _ in range(1000):
            floor = [cell for cell, wall in zip(inner, rng.random(len(inner)) < WALLS, strict=True) if not wall]
            if len(floor) <= 2 * self.num_boxes:
                continue
            goals = self._mask(floor[i] for i in rng.choice(len(floor), self.num_boxes, replace=False))
            self._set_level(self._mask(floor), goals)
            far = [
                position
                for position, pushes in self.to_go.items()
                if pushes >= self.num_boxes + 2 and not position[0] & goals
            ]
            if far:
                boxes, region = far[rng.integers(len(far))]
                spots = [self.cells[cell] for cell in floor if self.cells[cell] & region]
                self.start = (boxes, spots[rng.integers(len(spots))])
                return
        size = f"rows={self.rows}, cols={self.cols}, boxes={self.num_boxes}"
        raise ValueError(f"{size}: found no level of this size; choose a larger board or fewer boxes")

    def _set_level(self, floor: int, goals: int) -> None:
        self.floor, self.goals = floor, goals
        self.to_go = self._search()

    def _mask(self, cells: Iterable[Cell]) -> int:
        return sum(self.cells[cell] for cell in cells)

    def _regions(self, boxes: int) -> list[int]:
        """The free cells, split into the parts that a player can walk within."""
        free, regions, steps = self.floor & ~boxes, [], (1, self.cols + 2)
        while free:
            region, grown = 0, free & -free  # from the lowest free cell
            while grown != region:
                region = grown
                for step in steps:
                    grown |= (grown << step | grown >> step) & free
            regions.append(region)
            free &= ~region
        return regions

    def _search(self) -> dict[tuple[int, int], int]:
        """Pushes to go for every position that has a solution, breadth first from the solved ones."""
        regions = {self.goals: self._regions(self.goals)}
        to_go = {(self.goals, region): 0 for region in regions[self.goals]}
        queue = deque(to_go)
        while queue:
            boxes, region = queue.popleft()
            free, pushes = self.floor & ~boxes, to_go[boxes, region] + 1
            for shift in self.shifts.values():
                # Undo a push in this direction: the player stands where the box was, and steps back one more cell.
                movable = boxes & _shift(region, shift) & _shift(free, 2 * shift)
                while movable:
                    box = movable & -movable
                    movable ^= box
                    before = boxes ^ box | _shift(box, -shift)
                    if before not in regions:
                        regions[before] = self._regions(before)
                    player = _shift(box, -2 * shift)
                    position = before, next(part for part in regions[before] if part & player)
                    if position not in to_go:
                        to_go[position] = pushes
                        queue.append(position)
            if len(to_go) > MAX_POSITIONS:
                raise ValueError(
                    f"Sokoban level: more than {MAX_POSITIONS} positions; choose fewer boxes or a smaller board"
                )
        return to_go

    def _pushes(self, boxes: int, player: int) -> int | None:
        """Pushes of a shortest solution from here, None when there is none."""
        return self.to_go.get((boxes, next(part for part in self._regions(boxes) if part & player)))

    def _load(self) -> None:
        super()._load()
        self.boxes, self.player = self.start
        self.done = self.solved = self.boxes == self.goals

    @property
    def progress(self) -> float:
        """Boxes on goals / boxes."""
        return (self.boxes & self.goals).bit_count() / self.goals.bit_count()

    def _apply(self, answer: list) -> Outcome:
        moves, bumps = parse_moves(answer), 0
        places = [self.player]
        for move in moves[: self.max_moves]:
            shift = self.shifts.get(move or "", 0)
            there = _shift(self.player, shift)
            behind = _shift(there, shift)
            if not shift or not there & self.floor or (there & self.boxes and not behind & self.floor & ~self.boxes):
                bumps += 1
                continue
            self.player = there
            places.append(there)
            if there & self.boxes:
                self.boxes ^= there | behind
            if self.boxes == self.goals:
                self.done = self.solved = True
                break
        spots = {bit: cell for cell, bit in self.cells.items()}
        self.way = tuple(spots[place] for place in places)
        pushes, at_start = self._pushes(self.boxes, self.player), self._pushes(*self.start)
        share = self._new_high(0.0 if pushes is None or not at_start else 1 - pushes / at_start)
        legal = bool(moves) and not bumps and len(moves) <= self.max_moves
        note = f"Your last plan had {len(moves)} moves, {bumps} of them impossible."
        return Outcome((self.boxes & self.goals).bit_count() / self.num_boxes, legal, share, share, note)

    def _noise(self, rng: np.random.Generator, good: float) -> list:
        twin, moves = self.copy(), []
        for _ in range(rng.integers(1, min(self.max_moves, 8) + 1)):
            best = twin._next_move() if rng.random() < good else None
            moves.append(best or str(rng.choice(list(MOVES))))
            twin._apply(moves[-1:])
        return moves

    def _next_move(self) -> str | None:
        """First move of a shortest walk to a push that brings the solution nearer, None when there is no such push."""
        pushes, seen = self._pushes(self.boxes, self.player), self.player
        queue = deque([(self.player, "")])
        while queue and pushes:
            player, first = queue.popleft()
            for move, shift in self.shifts.items():
                there, behind = _shift(player, shift), _shift(player, 2 * shift)
                if there & self.boxes and behind & self.floor & ~self.boxes:
                    if self._pushes(self.boxes ^ (there | behind), there) == pushes - 1:
                        return first or move
                elif there & self.floor & ~self.boxes & ~seen:
                    seen |= there
                    queue.append((there, first or move))
        return None

    def picture(self) -> list[str]:
        symbols = {(0, 0, 0): " ", (0, 0, 1): ".", (1, 0, 0): "$", (1, 0, 1): "*", (0, 1, 0): "@", (0, 1, 1): "+"}
        drawing = [""] * self.rows
        for (r, _), bit in self.cells.items():
            box, player, goal = (int(bool(bit & mask)) for mask in (self.boxes, self.player, self.goals))
            drawing[r] += symbols[box, player, goal] if bit & self.floor else "#"
        return drawing

    def _describe(self, agent: str = "") -> str:
        named = {"You are": self.player, "boxes": self.boxes, "goals": self.goals}
        places = ", ".join(
            f"{name} at {' '.join(f'({r},{c})' for (r, c), bit in self.cells.items() if bit & mask)}"
            for name, mask in named.items()
        )
        return "\n".join(["Board:", *self.picture(), f"{places}. {self.note}"])


def _shift(mask: int, by: int) -> int:
    return mask << by if by > 0 else mask >> -by
