"""Sokoban: push every box onto a goal. No torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np

from tasks.boards import MAX_MOVES, Outcome, check
from tasks.walk import MOVES, SIZES, Cell, Walk, distances

WALLS = 0.25  # share of inner cells that a generated level blocks
MAX_POSITIONS = 300_000  # positions of one level that are searched: about 8 s and 100 MB


class Sokoban(Walk):
    """Push every box onto a goal. A turn takes `max_moves` moves at most; the outer ring of cells is wall.

    Team reward: boxes on goals / boxes, so 1 when solved.
    Potential, whose new highs are the share of both roles: 1 - pushes to go / pushes to go at the start, exact numbers
    of pushes in a shortest solution, 0 where there is none (a deadlock). Walking, bumping, an empty plan and pushing a
    box off and on again reach no new high and earn none of it.

    Positions are bit masks on a grid with one extra ring of cells: one shift moves a whole set of cells, and nothing
    leaves the board. `to_go` maps (boxes, cells the player can walk to) to pushes to go, deadlocks left out: computed
    once per level by pulling boxes away from the goals.

    Options: `rows`, `cols` (cells, walls included), `boxes`, `max_moves` (moves a turn), `calls` (see `Board`).
    Levels: random inner walls and goals, then a random solvable position at least boxes + 2 pushes from the solution.
    """

    TITLE = "Sokoban,"
    TASK = "# wall, . goal, $ box, * box on a goal, @ you, + you on a goal, space free. Push every box onto a goal."
    HINT = (
        "Walking into a box pushes it one cell if the cell behind it is free; boxes cannot be pulled. "
        "A move that is not possible does nothing."
    )

    def __init__(
        self, workflow: str = "mas", tool: str = "direct", rows: int = 6, cols: int = 6, boxes: int = 1,
        max_moves: int = MAX_MOVES, calls: int = 1,
    ):  # fmt: skip
        super().__init__(workflow, tool, calls, rows, cols, max_moves)
        check("boxes", boxes, SIZES)
        self.num_boxes, self.sizes = boxes, f"rows={rows}, cols={cols}, boxes={boxes}"
        width = cols + 2
        self.shifts = {"U": -width, "D": width, "L": -1, "R": 1}
        self.cells = {(r, c): 1 << ((r + 1) * width + c + 1) for r in range(rows) for c in range(cols)}

    @classmethod
    def from_text(cls, text: str, **options: Any) -> Sokoban:
        """A level in the usual symbols (`#`, space, `.`, `$`, `*`, `@`, `+`); short rows are filled up with free cells.

        ValueError when it is malformed, has no box or another number of goals than boxes, or cannot be solved.
        """
        grid = [line.rstrip() for line in text.strip("\n").splitlines()]
        cells = {(r, c): char for r, line in enumerate(grid) for c, char in enumerate(line)}
        boxes, goals, players, walls = ([at for at in cells if cells[at] in kind] for kind in ("$*", ".*+", "@+", "#"))
        if set(cells.values()) - set("# .$*@+") or not boxes or len(boxes) != len(goals) or len(players) != 1:
            found = f"{len(players)} players, {len(boxes)} boxes, {len(goals)} goals"
            raise ValueError(f"Sokoban level: # space . $ * @ +, a player, a goal a box expected, got {found}\n{text}")
        env = cls(rows=len(grid), cols=max(map(len, grid)), boxes=len(boxes), **options)
        env.fixed = True
        env._set_level(env._mask(set(env.cells) - set(walls)), env._mask(goals))
        env.start = (env._mask(boxes), env._mask(players))
        if env._pushes(*env.start) is None:
            raise ValueError(f"Sokoban level: it cannot be solved\n{text}")
        env._load()
        return env

    def _generate(self, rng: np.random.Generator) -> bool:
        inner = [(r, c) for r in range(1, self.rows - 1) for c in range(1, self.cols - 1)]
        floor = [cell for cell, wall in zip(inner, rng.random(len(inner)) < WALLS, strict=True) if not wall]
        if len(floor) <= 2 * self.num_boxes:
            return False
        goals = self._mask(floor[i] for i in rng.choice(len(floor), self.num_boxes, replace=False))
        self._set_level(self._mask(floor), goals)
        least = self.num_boxes + 2
        far = [place for place, pushes in self.to_go.items() if pushes >= least and not place[0] & goals]
        if not far:
            return False
        boxes, region = far[rng.integers(len(far))]
        spots = [self.cells[cell] for cell in floor if self.cells[cell] & region]
        self.start = (boxes, spots[rng.integers(len(spots))])
        return True

    def _set_level(self, floor: int, goals: int) -> None:
        """A board, and pushes to go for every position that has a solution, breadth first from the solved ones."""
        self.floor, self.goals = floor, goals
        regions = cache(self._regions)

        def pulls(here: tuple[int, int]) -> Iterator[tuple[int, int]]:
            boxes, region = here
            for shift in self.shifts.values():
                # Undo a push in this direction: the player stands where the box was, and steps back one more cell.
                movable = boxes & _shift(region, shift) & _shift(floor & ~boxes, 2 * shift)
                while movable:
                    box = movable & -movable
                    movable ^= box
                    pulled, player = boxes ^ box | _shift(box, -shift), _shift(box, -2 * shift)
                    yield pulled, next(part for part in regions(pulled) if part & player)

        self.to_go = distances([(goals, part) for part in regions(goals)], pulls, MAX_POSITIONS)

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

    def _pushes(self, boxes: int, player: int) -> int | None:
        """Pushes of a shortest solution from here, None when there is none."""
        return self.to_go.get((boxes, next(part for part in self._regions(boxes) if part & player)))

    def _mask(self, cells: Iterable[Cell]) -> int:
        return sum(self.cells[cell] for cell in cells)

    def _cells(self, mask: int) -> list[Cell]:
        return [cell for cell, bit in self.cells.items() if bit & mask]

    def _load(self) -> None:
        super()._load()
        self.boxes, self.player = self.start
        self.done = self.solved = self.boxes == self.goals

    @property
    def progress(self) -> float:
        """Boxes on goals / boxes."""
        return (self.boxes & self.goals).bit_count() / self.goals.bit_count()

    def _move(self, move: str) -> Cell | None:
        there, behind = (_shift(self.player, times * self.shifts[move]) for times in (1, 2))
        if not there & self.floor or (there & self.boxes and not behind & self.floor & ~self.boxes):
            return None
        self.player = there
        if there & self.boxes:
            self.boxes ^= there | behind
        self.done = self.solved = self.boxes == self.goals
        return self._here()

    def _here(self) -> Cell:
        return self._cells(self.player)[0]

    def _apply(self, answer: list) -> Outcome:
        legal, note = self._walk(answer)
        pushes, at_start = self._pushes(self.boxes, self.player), self._pushes(*self.start)
        share = self._new_high(0.0 if pushes is None or not at_start else 1 - pushes / at_start)
        return Outcome(self.progress, legal, share, note)

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

    def _describe(self, role: str) -> str:
        named = {"You are": self.player, "boxes": self.boxes, "goals": self.goals}
        places = [f"{name} at {' '.join(f'({r},{c})' for r, c in self._cells(mask))}" for name, mask in named.items()]
        return "\n".join(["Board:", *self.picture(), f"{', '.join(places)}. {self.note}"])

    def _symbol(self, cell: Cell) -> str:
        bit = self.cells[cell]
        kind = 2 * bool(bit & self.boxes) + 4 * bool(bit & self.player) + bool(bit & self.goals)
        return " .$*@+"[kind] if bit & self.floor else "#"

    def _places(self) -> str:
        return f"player, boxes, goals = {self._here()}, {self._cells(self.boxes)}, {self._cells(self.goals)}"


def _shift(mask: int, by: int) -> int:
    return mask << by if by > 0 else mask >> -by
