"""What the three board games share: answer lines, the two roles and their local rewards. No torch."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, TypeVar

import numpy as np

from envs import Env, InfraError, Message, Reward
from tasks import sandbox
from tasks.fences import extract_code, shorten

Cell = tuple[int, int]  # (row, column), origin top left

# ------------------------------------------------------------------------------------------------------------ answers

MAX_ANSWER = 10_000  # characters of an answer that are read
MAX_MOVES = 200  # moves of a plan that are read
MAX_SIZE = 1000  # rows or columns of a board


def parse_answer(text: str) -> list | None:
    """The list after the last `####` marker, or None when there is no marker or no readable list behind it.

    Accepts numbers, quoted or bare words and nested lists, on one line or several; text after the list is ignored.
    Nothing is ever evaluated: bare words are quoted and the rest is read as JSON.

    >>> parse_answer("so I go right\\n#### [R, 'down', D] done")
    ['R', 'down', 'D']
    """
    marker = text.rfind("####")
    opening = re.match(r"####\s*\[", text[marker:]) if marker >= 0 else None
    if opening is None:
        return None
    start, depth = marker + opening.end() - 1, 0
    for end in range(start, min(len(text), start + MAX_ANSWER)):
        depth += {"[": 1, "]": -1}.get(text[end], 0)
        if depth > 3:
            return None
        if depth == 0:
            break
    else:
        return None
    body = re.sub(r"""(["']?)\b([A-Za-z_][A-Za-z_ ]*)\b\1""", r'"\2"', text[start : end + 1])
    try:
        return json.loads(re.sub(r",\s*\]", "]", body))
    except ValueError:
        return None


MOVES: dict[str, Cell] = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
_SPELLINGS = {name: name[0].upper() for name in ("u", "d", "l", "r", "up", "down", "left", "right")}


def render_answer(answer: list) -> str:
    """An answer as the next agent reads it: bare words, one list.

    >>> render_answer(["U", [1, "x"]])
    '[U, [1, x]]'
    """
    return (
        "["
        + ", ".join(render_answer(part) if isinstance(part, list) else str(part) for part in answer[:MAX_MOVES])
        + "]"
    )


def with_arrows(picture: Sequence[str], way: Sequence[Cell]) -> str:
    """A board with the way that an answer takes: ^ v < > in the cells that it enters.

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


def parse_moves(answer: list) -> list[str | None]:
    """Moves as letters U, D, L, R; None for anything that is not a move. At most MAX_MOVES are read."""
    return [_SPELLINGS.get(move.strip().lower()) if isinstance(move, str) else None for move in answer[:MAX_MOVES]]


# ------------------------------------------------------------------------------------------------------------- boards


BoardT = TypeVar("BoardT", bound="Board")
FIRST_TURN = "This is the first turn."
TOOL_SECONDS = 5.0  # wall-clock limit of the tool user's program
PROGRAM = (
    f"Write one program in a fenced ```python block. It gets no input and has {TOOL_SECONDS:g} seconds. The answer is "
    "read from what the program prints, not from your own text. The program must print it in its last line: "
)
MAX_PROGRAM = 1000  # characters of the tool user's program that the planner sees
MAX_OUTPUT = 500  # characters of what it printed, or of its error, that the planner and the tool user see


@dataclass(frozen=True)
class Outcome:
    """What an answer did to a board: the team reward, and for either role the .8 share of its local reward."""

    team: float
    legal: bool
    act: float  # for the planner, whose answer becomes the state
    propose: float  # for the tool user, whose answer is a proposal
    note: str  # feedback for the next prompt


class Board(Env):
    """What the three board games share: the workflows, the two roles and their local rewards.

    workflow `mas`: a tool user proposes an answer, then the planner, who sees the proposal, decides (sequential).
    workflow `single`: the planner alone.
    tool `direct`: the tool user writes its proposal itself as an answer line.
    tool `python`: it writes a fenced program, run in the sandbox, and the answer line that this prints is the proposal
    (a list in its last line is enough). The planner sees the program and its output or error; the tool user's next
    prompt tells it the result of its last program.

    Local rewards: planner .1 format + .1 legal + .8 * act; tool user .1 format + .1 executes + .8 * propose. Roles and
    weights are the paper's (appendix). `act` and `propose` are ours, because a policy learns to exploit measures that
    pay for an empty plan, a bump or a push on and off again. `executes`: the proposed answer is legal (direct), the
    program ran without an error (python).
    The tool user's team reward is what the team would get if its proposal were the team's answer, computed on a copy.

    A subclass says how to make a level (`_generate`), draw it (`_describe`), explain it (`RULES`, `ANSWER`), apply an
    answer (`_apply`) and measure `progress`. All state must be immutable values, replaced and never changed in place,
    so that a shallow copy is enough.
    """

    RULES: str
    ANSWER: str  # how to write an answer line

    def __init__(self, workflow: str = "mas", tool: str = "direct"):
        workflows = {"mas": ("tool_user", "planner"), "single": ("planner",)}
        if workflow not in workflows:
            raise ValueError(f"workflow={workflow!r}: a board task has {' or '.join(workflows)}")
        self.choose("tool", tool, "direct", "python")
        self.agents = workflows[workflow]
        self.tool, self.slow_scoring = tool, tool == "python"  # a program is worth a thread of its own
        self.runs_programs = tool == "python" and workflow == "mas"
        self.fixed = False  # True for a level given as text
        self.done = self.solved = False
        self.proposal: str | None = None  # the tool user's answer of this turn, as the planner will see it
        self.note = FIRST_TURN
        self.program = ""  # the tool user's program of this turn and its result, as the planner will see them
        self.result = ""  # the result of the tool user's last program, as the tool user will see it
        self.best = 0.0  # highest potential of the episode so far, see `_new_high`

    def render(self) -> str:
        """The board as text."""
        return self._describe()

    @staticmethod
    def check(name: str, value: Any, low: float, high: float) -> None:
        """ValueError unless an option lies between these numbers, and is a whole one if they are."""
        numbers = (int,) if isinstance(high, int) else (int, float)
        if type(value) not in numbers or not low <= value <= high:
            raise ValueError(f"{name}={value!r}: choose {low} to {high}")

    @staticmethod
    def choose(name: str, value: Any, *words: str) -> None:
        """ValueError unless an option is one of these words."""
        if value not in words:
            raise ValueError(f"{name}={value!r}: choose {' or '.join(words)}")

    def _generate(self, rng: np.random.Generator) -> None:
        raise NotImplementedError

    def _describe(self, agent: str = "") -> str:
        """The state in words, as this agent sees it."""
        raise NotImplementedError

    def _apply(self, answer: list) -> Outcome:
        raise NotImplementedError

    def noisy_answer(self, rng: np.random.Generator, good: float) -> str:
        """An answer in the right format, for warm starts: each part is good with this probability, else random.

        A tool user that writes programs gets a program: its whole plan is good with this probability, else random.
        """
        if self.tool == "direct" or self.program or "tool_user" not in self.agents:  # the planner's turn
            return f"#### {render_answer(self._noise(rng, good))}"
        return noisy_program(self._noise(rng, float(rng.random() < good)), rng)

    def _noise(self, rng: np.random.Generator, good: float) -> list:
        """An answer whose parts are good with this probability and random otherwise."""
        raise NotImplementedError

    def _load(self) -> None:
        """Set the state to the start of the current level; subclasses extend it."""
        self.done = self.solved = False
        self.proposal, self.note, self.best, self.way = None, FIRST_TURN, 0.0, ()
        self.program = self.result = ""

    def _new_high(self, potential: float) -> float:
        """How far this raises the best potential of the episode (0 at the start, 1 when solved, never more).

        The shares of an episode add up to its best potential, whatever the plans: only what is new pays, and only once.
        """
        gain = max(0.0, potential - self.best)
        self.best += gain
        return gain

    def reset(self: BoardT, seed: int) -> BoardT:
        """Make the level of this seed (a level that was given as text stays itself) and start it."""
        if not self.fixed:
            self._generate(np.random.default_rng(seed))
        self._load()
        return self

    def copy(self: BoardT) -> BoardT:
        return copy.copy(self)

    def observe(self, agent: str) -> list[Message]:
        self._check(agent)
        role = {
            "tool_user": "You are the tool user. You propose an answer; the planner sees it and decides.",
            "planner": "You are the planner. Your answer is what the team does.",
        }[agent]
        ending = PROGRAM if agent == "tool_user" and self.tool == "python" else "End with one line: "
        state = [agent]
        if agent == "planner" and "tool_user" in self.agents:
            state.append(f"proposal {self.proposal or 'none'}")
        told = self.program if agent == "planner" else self.result
        state += [told] if told else []
        state.append(self._describe(agent))
        return [
            {"role": "system", "content": f"{self.RULES}\n{role}\n{ending}{self.ANSWER}"},
            {"role": "user", "content": "\n".join(state)},
        ]

    def step(self, agent: str, text: str) -> Reward:
        self._check(agent)
        if self.done:
            return Reward(0.0, 0.0, {"format": 0.0})
        if agent == "tool_user":
            return self._propose(text)
        answer = parse_answer(text)
        outcome = self._apply(answer or [])
        self.proposal, self.program = None, ""
        self.note = outcome.note if answer is not None else "Your last answer had no readable answer line."
        if answer is None:
            return Reward(outcome.team, 0.0, {"format": 0.0, "legal": 0.0})
        return Reward(
            outcome.team, 0.1 + 0.1 * outcome.legal + 0.8 * outcome.act, {"format": 1.0, "legal": float(outcome.legal)}
        )

    def _propose(self, text: str) -> Reward:
        """Keep the tool user's proposal for the planner and score it on a copy."""
        readable, ran = True, True
        if self.tool == "python":
            readable, ran, answer, told = _run_program(text)
            self.program, self.result = f"The tool user's program:\n{told}", f"Your last program:\n{told}"
        else:
            answer = parse_answer(text)
        twin = self.copy()
        outcome = twin._apply(answer or [])
        self.way = twin.way
        self.proposal = None if answer is None else render_answer(answer)
        if self.tool == "direct":
            readable, ran = answer is not None, answer is not None and outcome.legal
        local = 0.1 * readable + 0.1 * ran + 0.8 * outcome.propose * (answer is not None)
        return Reward(outcome.team, local, {"format": float(readable), "executes": float(ran)})

    def _check(self, agent: str) -> None:
        if agent not in self.agents:
            raise ValueError(f"unknown agent {agent!r}: this environment has {', '.join(self.agents)}")


def _run_program(text: str) -> tuple[bool, bool, list | None, str]:
    """Run the fenced program of a response: was there one, did it run without an error, the answer that it printed, and
    the program and its result in words.
    """
    code = extract_code(text)
    if code is None:
        return False, False, None, "There was none: no fenced python block that can be read."
    result = sandbox.run_program(code, stdin="", timeout=TOOL_SECONDS)
    if result.status == "infra":
        raise InfraError(f"the tool user's program could not be run: {result.stderr}")
    answer = printed_answer(result.stdout) if result.status == "ok" else None
    told = {
        "ok": f"It printed:\n{shorten(result.stdout.strip(), MAX_OUTPUT) or 'nothing'}",
        "timeout": f"It failed: it took more than {TOOL_SECONDS:g} seconds.",
        "memory": "It failed: it needed too much memory.",
        "output": "It failed: it printed too much.",
    }.get(result.status, f"It failed:\n{shorten(result.stderr.strip(), MAX_OUTPUT)}")
    if result.status == "ok" and answer is None:
        told += "\nThat has no readable answer line."
    return True, result.status == "ok", answer, f"{shorten(code.strip(), MAX_PROGRAM)}\n{told}"


def noisy_program(answer: list, rng: np.random.Generator) -> str:
    """A program that prints an answer; one in five has a mistake and does not run.

    >>> print(noisy_program(["D", "D", "R"], np.random.default_rng(0)))
    ```python
    print('####', 2 * ['D'] + 1 * ['R'])
    ```
    """
    runs = [f"{len(list(same))} * {[part]}" for part, same in groupby(answer)]
    joint = "," if rng.random() > 0.2 else " +"  # a text and a list cannot be added
    return f"```python\nprint('####'{joint} {' + '.join(runs)})\n```"


def printed_answer(text: str) -> list | None:
    """The answer in what a program printed: its answer line, or else the list in its last lines.

    >>> printed_answer("searching\\n['U', 'R']\\n")
    ['U', 'R']
    """
    answer = parse_answer(text)
    if answer is None and "####" not in text:
        answer = parse_answer("#### " + text[("\n" + text).rfind("\n[") :])
    return answer
