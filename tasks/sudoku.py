"""Sudoku: fill a grid so that every row, column and box holds each number once."""

from collections.abc import Sequence
from functools import cache
from itertools import count
from typing import Any

from tasks.boards import Board, Rng, check

MAX_TRIES = 50_000  # cells that a search fills: some puzzles without a solution would take hours
SUDOKU_BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}  # size: rows and columns of a box


class Sudoku(Board):
    """The answer becomes the grid, unless it has another shape, anything but the integers 0 (empty) to `size`, or a
    changed clue. Cells whose number is repeated in their row, column or box are left empty: the rules decide, never the
    solution, so that guesses which stay tell nothing.

    Team reward: 1 when solved, else 0.
    Potential, whose new highs are the share of both roles: (right - wrong cells of the answer) / blanks of the puzzle.
    So a constant or random grid is worth no more than empty cells. Legal: a cell is filled anew and none is left out.

    Options: `size` (4, 6 or 9), `blanks` (empty cells, half of all by default), `calls` (see `Board`).
    Levels: a random full grid, emptied where the number follows at once (the only number for its cell, or the only cell
    for its number), so that the solution is unique.
    """

    PRINT = "print('####', rows)"

    def __init__(
        self, workflow: str = "mas", tool: str = "direct", size: int = 4, blanks: int | None = None, calls: int = 1
    ):
        super().__init__(workflow, tool, calls)
        check("size", size, tuple(SUDOKU_BOXES))
        self.size, self.blanks = size, size * size // 2 if blanks is None else blanks
        check("blanks", self.blanks, range(1, size * size * 5 // 8 + 1))
        height, width = SUDOKU_BOXES[size]
        self.RULES = (
            f"Sudoku, {size} rows and {size} columns. Every row, every column and every box of {height} rows and "
            f"{width} columns holds each number from 1 to {size} once; 0 is an empty cell. Keep the clues; your own "
            "numbers can be changed. A number that is repeated in its row, column or box is left out. "
            "You have several turns."
        )
        self.ANSWER = f"#### and all {size} rows, 0 where you leave a cell empty: #### [{[0] * size}, ...]"

    @classmethod
    def from_rows(cls, rows: Sequence[str] | Sequence[Sequence[int]], **options: Any) -> "Sudoku":
        """A puzzle from rows of numbers or of characters; 0 and `.` are empty cells. ValueError if it has no solution.
        Any of several solves it; the potential takes one."""
        grid = [list(row.replace(".", "0").replace(" ", "")) if isinstance(row, str) else list(row) for row in rows]
        size, cells = len(grid), [int(value) if str(value).isdecimal() else -1 for row in grid for value in row]
        env = cls(size=size, **options)
        if set(map(len, grid)) != {size} or not all(0 <= value <= size for value in cells):
            raise ValueError(f"Sudoku: {size} rows of {size} numbers from 0 to {size} expected, got {list(rows)}")
        env.tries, env.clues, env.solution = 0, tuple(cells), () if _clashes(cells, size) else _complete(cells, size)
        if not env.solution:
            raise ValueError(f"Sudoku: no solution found: {list(rows)}")
        return env.reset(seed=0)

    def _generate(self, rng: Rng) -> bool:  # 9 x 9 with 50 blanks: one try in twelve is enough
        self.solution = _complete([0] * self.size**2, self.size, rng)
        grid = list(self.solution)
        for cell in rng.permutation(self.size**2).tolist():
            value, grid[cell] = grid[cell], 0
            empty = [[i for i in unit if not grid[i]] for unit in _units(self.size)[cell]]
            follows = any(not any(value in _options(grid, self.size, i) for i in unit) for unit in empty)
            if not follows and _options(grid, self.size, cell) != [value]:
                grid[cell] = value
            elif grid.count(0) == self.blanks:
                self.clues = tuple(grid)
                return True
        return False

    def _load(self) -> None:
        super()._load()
        self.grid = self.clues
        self.done = self.solved = 0 not in self.grid

    def _apply(self, answer: list) -> tuple[float, bool, float, str]:
        n, before = self.size, self.grid
        cells = [value for row in answer if isinstance(row, list) and len(row) == n for value in row]
        if len(answer) != n or len(cells) != n * n or any(type(v) is not int or not 0 <= v <= n for v in cells):
            return 0.0, False, 0.0, f"Your last answer was not {n} rows of {n} numbers from 0 to {n}."
        if any(clue and clue != value for clue, value in zip(self.clues, cells, strict=True)):
            return 0.0, False, 0.0, "Your last answer changed a clue and was not used."
        clashes = _clashes(cells, n)
        self.grid = tuple(clue or (0 if i in clashes else cells[i]) for i, clue in enumerate(self.clues))
        self.done = self.solved = 0 not in self.grid  # full and no clash: the rules hold
        own = [i for i, clue in enumerate(self.clues) if not clue and cells[i]]
        score = sum(1 if cells[i] == self.solution[i] else -1 for i in own) / self.clues.count(0)
        share = max(0.0, (1.0 if self.solved else score) - self.best)
        self.best += share
        fresh = sum(value not in (0, old) for value, old in zip(self.grid, before, strict=True))
        dropped = sum(not self.clues[i] for i in clashes)
        note = f"Your last answer filled or changed {fresh} cells; {dropped} cells repeated a number and were left out."
        return float(self.solved), fresh > 0 and not clashes, share, note

    def _noise(self, rng: Rng, good: float) -> list:
        cells = list(self.clues)
        for i, right in enumerate(self.solution):
            cells[i] = cells[i] or (right if rng.random() < good else int(rng.integers(0, self.size + 1)))
        return self._rows(cells)

    def _rows(self, cells: Sequence[int]) -> list[list[int]]:
        return [list(cells[i : i + self.size]) for i in range(0, len(cells), self.size)]

    def _describe(self, role: str) -> str:
        drawn = (self._rows(cells) for cells in (self.clues, self.grid))
        clues, grid = ("\n".join(" ".join(map(str, row)) for row in rows) for rows in drawn)
        now = "The grid is as in the puzzle." if grid == clues else f"The grid now:\n{grid}"
        return f"Puzzle:\n{clues}\n{now}\n{self.note}"

    def picture(self) -> list[str]:
        return ["".join(map(str, row)).replace("0", ".") for row in self._rows(self.grid)]

    def _definitions(self) -> str:
        height, width = SUDOKU_BOXES[self.size]
        return f"size, height, width = {self.size}, {height}, {width}  # of a box\nrows = {self._rows(self.clues)}"


@cache
def _units(size: int) -> list[list[list[int]]]:
    """For every cell the other cells of its row, column and box."""
    height, width = SUDOKU_BOXES[size]
    names = [(r, c, (r // height, c // width)) for r in range(size) for c in range(size)]
    return [
        [[i for i, other in enumerate(names) if other[k] == own[k] and i != cell] for k in range(3)]
        for cell, own in enumerate(names)
    ]


def _options(grid: Sequence[int], size: int, cell: int) -> list[int]:
    """The numbers that fit into a cell."""
    taken = {grid[i] for unit in _units(size)[cell] for i in unit}
    return [value for value in range(1, size + 1) if value not in taken]


def _clashes(grid: Sequence[int], size: int) -> list[int]:
    """The cells whose number is repeated."""
    return [i for i, value in enumerate(grid) if value and value not in _options(grid, size, i)]


def _complete(grid: Sequence[int], size: int, rng: Rng | None = None) -> tuple[int, ...]:
    """The grid filled without clashes, in random order with `rng`; () if no way is found."""
    tries = count(1)

    def search(grid: tuple[int, ...]) -> tuple[int, ...]:
        options = {cell: _options(grid, size, cell) for cell, value in enumerate(grid) if not value}
        if not options or next(tries) > MAX_TRIES:
            return () if options else grid
        cell = min(options, key=lambda cell: len(options[cell]))  # where the fewest numbers fit
        values = options[cell] if rng is None else rng.permutation(options[cell]).tolist()
        return next(filter(None, (search((*grid[:cell], value, *grid[cell + 1 :])) for value in values)), ())

    return search(tuple(grid))
