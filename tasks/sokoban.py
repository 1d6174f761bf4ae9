"""Sokoban: push every box onto a goal."""

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

import numpy as np

from tasks.boards import MAX_MOVES, MOVES, SIZES, Cell, Rng, Walk, beside, check, distances

WALLS = 0.25  # share of inner cells that a generated level blocks
MAX_POSITIONS = 300_000  # positions of one level that are searched: about 8 s and 100 MB


class Sokoban(Walk):
    """Team reward: boxes on goals / boxes.
    Potential, whose new highs are the share of both roles: 1 - pushes to go / pushes to go at the start, in a shortest
    solution. Deadlocks, walking, bumps, empty plans and pushing a box off and on again reach no new high.

    Options: `rows`, `cols` (cells, a ring of walls included), `boxes`, `max_moves` (a turn), `calls` (see `Board`).
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
        self.num_boxes, self.width = boxes, cols + 2
        # sets of cells are bit masks, with a ring around the board: one shift moves all, and nothing leaves it
        self.cells = {(r, c): 1 << ((r + 1) * self.width + c + 1) for r in range(rows) for c in range(cols)}

    @classmethod
    def from_text(cls, text: str, **options: Any) -> "Sokoban":
        """A level in the symbols of `TASK`, short rows filled up. ValueError if it is malformed or has no solution."""
        grid = [line.rstrip() for line in text.strip("\n").splitlines()]
        cells = {(r, c): char for r, line in enumerate(grid) for c, char in enumerate(line)}
        boxes, goals, players, walls = ([at for at in cells if cells[at] in kind] for kind in ("$*", ".*+", "@+", "#"))
        if set(cells.values()) - set("# .$*@+") or not boxes or len(boxes) != len(goals) or len(players) != 1:
            raise ValueError(f"Sokoban level: # space . $ * @ +, one player, as many goals as boxes; got\n{text}")
        env = cls(rows=len(grid), cols=max(map(len, grid)), boxes=len(boxes), **options)
        env._set_level(env._mask({*env.cells} - {*walls}), env._mask(goals))
        env.tries, env.start = 0, (env._mask(boxes), players[0])
        if env._pushes(*env.start) == inf:
            raise ValueError(f"Sokoban level: it cannot be solved\n{text}")
        return env.reset(seed=0)

    def _generate(self, rng: Rng) -> bool:
        inner = rng.random((max(self.rows - 2, 0), max(self.cols - 2, 0)))
        floor = [(r + 1, c + 1) for r, c in np.argwhere(inner >= WALLS).tolist()]
        if len(floor) <= 2 * self.num_boxes:
            return False
        goals = self._mask(floor[i] for i in rng.choice(len(floor), self.num_boxes, replace=False))
        self._set_level(self._mask(floor), goals)
        far = [at for at, pushes in self.to_go.items() if pushes >= self.num_boxes + 2 and not at[0] & goals]
        if far:
            boxes, region = far[rng.integers(len(far))]
            spots = self._cells(region)
            self.start = (boxes, spots[rng.integers(len(spots))])
        return bool(far)

    def _set_level(self, floor: int, goals: int) -> None:
        """`to_go`: (boxes, cells the player can walk to) -> pushes to go, deadlocks left out. Found by pulling."""
        self.floor, self.goals = floor, goals

        def pulls(here: tuple[int, int]) -> Iterator[tuple[int, int]]:
            boxes, region = here
            for shift in (-self.width, self.width, -1, 1):
                # Undo a push: the player stands where the box was, and steps back one more cell.
                movable = boxes & _shift(region, shift) & _shift(floor & ~boxes, 2 * shift)
                while movable:
                    box = movable & -movable
                    movable ^= box
                    pulled, player = boxes ^ box | _shift(box, -shift), _shift(box, -2 * shift)
                    yield pulled, self._region(pulled, player)

        starts = ((goals, self._region(goals, bit)) for bit in self.cells.values() if bit & floor & ~goals)
        self.to_go = distances(starts, pulls, MAX_POSITIONS)

    def _region(self, boxes: int, player: int) -> int:
        free, region, grown = self.floor & ~boxes, 0, player  # to all cells that the player can walk to
        while grown != region:
            region = grown
            for step in (1, self.width):
                grown |= (grown << step | grown >> step) & free
        return region

    def _pushes(self, boxes: int, player: Cell) -> float:
        """Pushes to go, inf when there is no solution."""
        return self.to_go.get((boxes, self._region(boxes, self.cells[player])), inf)

    def _mask(self, cells: Iterable[Cell]) -> int:
        return sum(self.cells[cell] for cell in cells)

    def _cells(self, mask: int) -> list[Cell]:
        return [cell for cell, bit in self.cells.items() if bit & mask]

    def _load(self) -> None:
        super()._load()
        self.boxes, self.position = self.start
        self.done = self.solved = self.boxes == self.goals

    @property
    def progress(self) -> float:
        return (self.boxes & self.goals).bit_count() / self.goals.bit_count()

    def _after(self, cell: Cell, move: str) -> tuple[int, Cell]:
        """Boxes and player after a move, the same if it is not possible."""
        there, behind = (self.cells.get(beside(cell, move, steps), 0) for steps in (1, 2))
        free = self.floor & ~self.boxes
        if there & self.boxes and behind & free:
            return self.boxes ^ (there | behind), beside(cell, move)
        return self.boxes, beside(cell, move) if there & free else cell

    def _move(self, move: str) -> None:
        self.boxes, self.position = self._after(self.position, move)
        self.done = self.solved = self.boxes == self.goals

    def _apply(self, answer: list) -> tuple[float, bool, float, str]:
        legal, note = self._walk(answer)
        potential = 1 - self._pushes(self.boxes, self.position) / self._pushes(*self.start)
        share = max(0.0, potential - self.best)
        self.best += share
        return self.progress, legal, share, note

    def _noisy_move(self, rng: Rng, good: float) -> str:
        # breadth first: a shortest walk to a push after which fewer are left
        walks = [(self.position, "")] if rng.random() < good else []
        seen, pushes = {self.position}, self._pushes(self.boxes, self.position)
        for here, first in walks:  # it grows meanwhile
            for move in MOVES:
                boxes, there = self._after(here, move)
                if boxes != self.boxes and self._pushes(boxes, there) < pushes:
                    return first or move
                if boxes == self.boxes and there not in seen:
                    seen.add(there)
                    walks.append((there, first or move))
        return str(rng.choice(list(MOVES)))

    def _describe(self, role: str) -> str:
        named = {"You are": [self.position], "boxes": self._cells(self.boxes), "goals": self._cells(self.goals)}
        places = [f"{name} at {' '.join(f'({r},{c})' for r, c in cells)}" for name, cells in named.items()]
        return "\n".join(["Board:", *self.picture(), f"{', '.join(places)}. {self.note}"])

    def _symbol(self, cell: Cell) -> str:
        bit = self.cells[cell]
        kind = bool(bit & self.goals) + 2 * bool(bit & self.boxes) + 4 * (cell == self.position)
        return " .$*@+"[kind] if bit & self.floor else "#"

    def _places(self) -> str:
        return f"player, boxes, goals = {self.position}, {self._cells(self.boxes)}, {self._cells(self.goals)}"


def _shift(mask: int, by: int) -> int:
    return mask << by if by > 0 else mask >> -by
