"""What the three board games share: answer lines, the two roles and their local rewards."""

import copy
import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from math import inf
from typing import Any

import numpy as np

from envs import Env, InfraError, Message, Reward
from tasks import sandbox
from tasks.fences import extract_code, shorten

Rng = np.random.Generator
MAX_ANSWER = 10_000  # characters of an answer that are read
MAX_MOVES = 200  # moves of a plan that are read


def parse_answer(text: str) -> list | None:
    """The list after the last `####`, None when there is none that can be read.

    Bare words are quoted, then it is JSON. Text after the list is ignored.

    >>> parse_answer("so I go right\\n#### [R, 'down', D] done")
    ['R', 'down', 'D']
    """
    _, marker, body = text.rpartition("####")
    body = body.lstrip()[:MAX_ANSWER]
    if not marker or not body.startswith("["):
        return None
    body = re.sub(r"""(["']?)\b([A-Za-z_][A-Za-z_ ]*)\b\1""", r'"\2"', body)
    try:
        answer, _ = json.JSONDecoder().raw_decode(re.sub(r",\s*\]", "]", body))
    except (ValueError, RecursionError):
        return None
    return answer if _depth(answer) <= 3 else None


def _depth(answer: Any) -> int:
    return 1 + max(map(_depth, answer), default=0) if isinstance(answer, list) else 0


def _written(answer: list) -> str:
    return str(answer[:MAX_MOVES]).replace("'", "")  # as the next agent reads it


WORKFLOWS = {"mas": ("tool_user", "planner"), "single": ("planner",), "tool": ("tool_user",)}
ROLES = {  # (role, whether its answer is carried out) -> what it is told
    ("tool_user", False): "You are the tool user. You propose an answer; the planner sees it and decides.",
    ("tool_user", True): "You are the tool user. Your answer is what is done.",
    ("planner", False): "You are the planner. This answer is a draft: you see it again before you decide.",
    ("planner", True): "You are the planner. Your answer is what the team does.",
}
TOOL_SECONDS = 5.0  # wall-clock limit of the tool user's program
PROGRAM = (
    f"Write one program in a fenced ```python block. It gets no input and has {TOOL_SECONDS:g} seconds. The code is "
    "run, your own text is not read. Copy the definitions of the board into it. Its last line of output must be "
)
MAX_PROGRAM = 1000  # characters of a program that the planner sees
MAX_OUTPUT = 500  # and of its output or error, which its author sees too


def check(name: str, value: Any, choices: range | tuple) -> None:
    """ValueError unless an option is one of these."""
    if type(value) is not type(choices[0]) or value not in choices:
        words = f"{choices[0]} to {choices[-1]}" if isinstance(choices, range) else " or ".join(map(str, choices))
        raise ValueError(f"{name}={value!r}: choose {words}")


class Board(Env):
    """A board game for two roles.

    workflow `mas`: the tool user proposes an answer, the planner sees it and decides.
    workflow `single`: the planner alone. With `calls=2` it answers twice a turn, and sees its draft when it decides.
    workflow `tool`: the tool user alone.
    tool `python`: a proposal is a fenced program, whose author sees the board as Python. The answer line that it prints
    is proposed (a list in its last line is enough). Both roles see the program and its output or error.

    Local rewards: .1 format + .1 legal (planner) or executes (tool user) + .8 * share. Roles and weights are the
    paper's (appendix A.1), the shares are ours. `executes`: the proposal is legal, or the program ended well and
    printed an answer that can be read. The team reward of a proposal is what the team would get for it.
    """

    # What a game brings:
    RULES: str
    ANSWER: str  # how to write an answer line
    PRINT: str  # how a program prints one
    _generate: Callable[[Rng], bool]  # try to make a level
    _describe: Callable[[str], str]  # the state as this role sees it; "" for people
    _definitions: Callable[[], str]  # the state as lines of Python
    # change the state: team reward, legal, share (0 for an empty answer), feedback
    _apply: Callable[[list], tuple[float, bool, float, str]]
    _noise: Callable[[Rng, float], list]  # an answer, each part good with this probability, else random

    tries = 1000  # to generate a level; 0: it was given as text

    def __init__(self, workflow: str, tool: str, calls: int):
        check("workflow", workflow, tuple(WORKFLOWS))
        check("tool", tool, ("direct", "python"))
        check("calls", calls, range(1, 3 if workflow == "single" else 2))
        self.agents = WORKFLOWS[workflow] if calls == 1 else ("planner_1", "planner_2")
        self.tool, self.slow_scoring = tool, tool == "python"  # a program is worth a thread of its own
        self.runs_programs = tool == "python" and self.agents != ("planner",)

    def render(self) -> str:
        return self._describe("")

    def noisy_answer(self, rng: Rng, good: float) -> str:
        # a program's plan is good or random as a whole, and one program in five does not run
        if not self.runs_programs or self.program:  # the planner decides
            return f"#### {_written(self._noise(rng, good))}"
        answer = self._noise(rng, float(rng.random() < good))
        runs = [f"{len(list(same))} * {[part]}" for part, same in groupby(answer)]
        joint = "," if rng.random() > 0.2 else " +"  # text and list cannot be added
        return f"```python\nprint('####'{joint} {' + '.join(runs)})\n```"

    def _load(self) -> None:
        """Set the state to the start of the level."""
        self.done = self.solved = False
        self.note, self.best, self.way = "This is the first turn.", 0.0, ()  # `best`: highest potential so far
        self.proposal, self.program = "none", ""  # of this turn, as the planner sees them
        self.result = ""  # the last program and its result, as the author sees them

    def reset(self, seed: int) -> Any:
        """Start the level of this seed, or the one that was given as text."""
        rng = np.random.default_rng(seed)
        if self.tries and not any(self._generate(rng) for _ in range(self.tries)):
            raise ValueError(f"no level found in {self.tries} tries: choose a larger board, or fewer blocks or boxes")
        self._load()
        return self

    def copy(self) -> Any:
        return copy.copy(self)  # every attribute is replaced, none changed in place

    def observe(self, agent: str) -> list[Message]:
        role, decides, programs = self._part(agent)
        ending = f"{PROGRAM}{self.PRINT}, which shows " if programs else "End with one line: "
        state = (
            role,
            f"proposal {self.proposal}" if agent != self.agents[0] else "",
            self.result if programs else self.program,
            self._describe(role),
            f"The board in Python:\n{self._definitions()}" if programs else "",
        )
        return [
            {"role": "system", "content": f"{self.RULES}\n{ROLES[role, decides]}\n{ending}{self.ANSWER}"},
            {"role": "user", "content": "\n".join(filter(None, state))},
        ]

    def step(self, agent: str, text: str) -> Reward:
        role, decides, programs = self._part(agent)
        if self.done:
            return Reward(0.0, 0.0, {"format": 0.0})
        read: Any = extract_code(text) if programs else parse_answer(text)
        answer = read
        if programs:
            answer, told = _run_program(read)
            author = "The tool user's" if role == "tool_user" else "Your"
            self.program, self.result = f"{author} program:\n{told}", f"Your last program:\n{told}"
        twin = self if decides else self.copy()
        team, legal, share, note = twin._apply(answer or [])
        self.way = twin.way
        self.proposal = "none" if decides or answer is None else _written(answer)
        if decides:
            self.program = ""
            self.note = "Your last answer had no readable answer line." if answer is None else note
        readable = float(read is not None)
        works = float(answer is not None and (programs or legal))
        second = "executes" if programs or role == "tool_user" else "legal"
        return Reward(team, 0.1 * readable + 0.1 * works + 0.8 * share, {"format": readable, second: works})

    def _part(self, agent: str) -> tuple[str, bool, bool]:
        """The role of an agent; is its answer carried out, does it write programs?"""
        role, decides = self.check_agent(agent), agent == self.agents[-1]
        return role, decides, self.tool == "python" and (role == "tool_user" or not decides)


def _run_program(code: str | None) -> tuple[list | None, str]:
    """The answer that a program printed, and what is told. InfraError."""
    if code is None:
        return None, "There was none: no fenced python block that can be read."
    result = sandbox.run_program(code, timeout=TOOL_SECONDS)
    if result.status == "infra":
        raise InfraError(f"the tool user's program could not be run: {result.stderr}")
    shown = shorten(code.strip(), MAX_PROGRAM)
    if result.status != "ok":
        return None, f"{shown}\nIt failed ({result.status}):\n{shorten(result.stderr.strip(), MAX_OUTPUT)}"
    text = result.stdout
    answer = parse_answer(text if "####" in text else "#### " + text[("\n" + text).rfind("\n[") :])
    printed = shorten(text.strip(), MAX_OUTPUT) or "nothing"
    told = "" if answer is not None else "\nThat has no readable answer line."
    return answer, f"{shown}\nIt printed:\n{printed}{told}"


Cell = tuple[int, int]  # (row, column), origin top left
MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
SPELLINGS = {name: name[0].upper() for name in (*"udlr", "up", "down", "left", "right")}
SIZES = range(1, 1001)  # rows or columns of a board


def beside(cell: Cell, move: str, steps: int = 1) -> Cell:
    """The cell so many steps away, on the board or not."""
    return cell[0] + steps * MOVES[move][0], cell[1] + steps * MOVES[move][1]


def distances(starts: Iterable, neighbours: Callable[[Any], Iterable], most: float = inf) -> dict[Any, int]:
    """Steps from the nearest of `starts` to all that can be reached. ValueError beyond `most` states."""
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
    """A board with the way of an answer in its free cells.

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
    """A board whose answers are lists of moves. "U", "up", "Up" are one; what is no move counts as impossible."""

    ANSWER, PRINT = "#### [moves], for example #### [U, R, R]", "print('####', moves)"
    TITLE = TASK = HINT = ""  # parts of the rules
    position: Cell  # of the player
    _move: Callable[[str], None]  # make a move if it is possible
    _noisy_move: Callable[[Rng, float], str]  # one that brings the solution nearer, or a random one
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
        """Carry out a plan: is it legal, and the feedback."""
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

    def _noise(self, rng: Rng, good: float) -> list:
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
