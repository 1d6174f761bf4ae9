"""Boards on which one walks: plans are lists of moves, carried out one by one. No torch."""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np

from tasks.boards import MAX_MOVES, Board, check

Cell = tuple[int, int]  # (row, column), origin top left
State = TypeVar("State")
MOVES: dict[str, Cell] = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
SPELLINGS = {name: name[0].upper() for name in ("u", "d", "l", "r", "up", "down", "left", "right")}
SIZES = range(1, 1001)  # rows or columns of a board


def beside(cell: Cell, move: str, steps: int = 1) -> Cell:
    """The cell so many steps away, on the board or not."""
    return cell[0] + steps * MOVES[move][0], cell[1] + steps * MOVES[move][1]


def distances(
    starts: Iterable[State], neighbours: Callable[[State], Iterable[State]], most: float = float("inf")
) -> dict[State, int]:
    """Steps from the nearest of `starts` to all that can be reached, breadth first. ValueError beyond `most` states."""
    found = dict.fromkeys(starts, 0)
    queue = list(found)
    for here in queue:  # it grows meanwhile
        for there in neighbours(here):
            if there not in found:
                found[there] = found[here] + 1
                queue.append(there)
        if len(found) > most:
            raise ValueError(f"more than {most} positions; choose fewer boxes or a smaller board")
    return found


def with_arrows(picture: Sequence[str], way: Sequence[Cell]) -> str:
    """A board with the way that an answer takes: ^ v < > in the free cells that it enters.

    >>> print(with_arrows(["P.#", "..G"], [(0, 0), (0, 1), (1, 1), (1, 2)]))
    P > #
    . v G
    """
    cells = [list(row) for row in picture]
    arrows = dict(zip(MOVES.values(), "^v<>", strict=True))
    for (r, c), (row, column) in pairwise(way):
        if cells[row][column] in ". $":
            cells[row][column] = arrows[row - r, column - c]
    return "\n".join(" ".join(row) for row in cells)


class Walk(Board):
    """A board on which an answer is a list of moves, carried out one by one; a turn takes at most `max_moves`.

    "U", "up", "Up" are one move; anything that is no move counts as an impossible one.
    """

    ANSWER, PRINT = "#### [moves], for example #### [U, R, R]", "print('####', moves)"
    # What a game brings:
    TITLE = TASK = HINT = ""  # parts of the rules
    position: Cell  # of the player
    _move: Callable[[str], None]  # make a move if it is possible
    _noisy_move: Callable[[np.random.Generator, float], str]  # one that brings the solution nearer, or a random one
    _symbol: Callable[[Cell], str]  # how a cell is drawn, "#" if nobody can enter it
    _places: Callable[[], str]  # where everything is, as Python

    def __init__(self, workflow: str, tool: str, calls: int, rows: int, cols: int, max_moves: int):
        super().__init__(workflow, tool, calls)
        check("rows", rows, SIZES)
        check("cols", cols, SIZES)
        check("max_moves", max_moves, range(1, MAX_MOVES + 1))
        self.rows, self.cols, self.max_moves = rows, cols, max_moves
        self.RULES = (
            f"{self.TITLE} {rows} rows and {cols} columns; cells are (row, column), (0,0) is top left. {self.TASK} "
            f"Moves: U (row - 1), D (row + 1), L (column - 1), R (column + 1). {self.HINT} "
            f"You have several turns; a turn takes at most {max_moves} moves, and you go on from where you are."
        )

    def _walk(self, answer: list) -> tuple[bool, str]:
        """Carry out a plan: whether every move was possible and within the limit, and the feedback."""
        moves, bumps, self.way = answer[:MAX_MOVES], 0, (self.position,)
        for word in moves[: self.max_moves]:
            if move := SPELLINGS.get(str(word).strip().lower()):
                self._move(move)
            moved = self.position != self.way[-1]
            self.way += (self.position,) if moved else ()
            bumps += not moved
            if self.solved:
                break
        legal = bool(moves) and not bumps and len(moves) <= self.max_moves
        return legal, f"Your last plan had {len(moves)} moves, {bumps} of them impossible."

    def _noise(self, rng: np.random.Generator, good: float) -> list:
        twin, moves = self.copy(), []
        for _ in range(rng.integers(1, min(self.max_moves, 8) + 1)):
            moves.append(twin._noisy_move(rng, good))
            twin._move(moves[-1])
        return moves

    def picture(self) -> list[str]:
        return ["".join(self._symbol((r, c)) for c in range(self.cols)) for r in range(self.rows)]

    def _definitions(self) -> str:
        rows = [re.sub("[^#]", ".", row) for row in self.picture()]
        return f"board = {rows}\n{self._places()}  # (row, column)\nsteps = {MOVES}"
