"""Environments: what an agent sees, what its text does, and what that is worth.

An `Env` is one instance of a cooperative task for one or more agents. `observe` gives an agent its prompt as chat messages
and changes nothing; `step` reads one agent's whole response, changes the state and returns a `Reward`; `copy` gives an
independent twin, which is how tree sampling scores K candidates without one seeing another.

`make_env(task, workflow)` builds one. The three board games live here, mathematics in `math_env.py`, code in `code_env.py`.
No torch in this file.
"""

from __future__ import annotations

import copy
import json
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

Message = dict[str, str]  # {"role": "system" | "user", "content": ...}
Cell = tuple[int, int]  # (row, column), origin top left


class InfraError(RuntimeError):
    """A candidate could not be scored through no fault of its own (a sandbox did not start, a scorer died).

    `step` raises it; the rollout excludes that candidate: never committed, never counted as wrong.
    """


@dataclass(frozen=True)
class Reward:
    """Rewards of one action, both in [0, 1]: `team` for the state of the task, `local` for the agent's own part.

    `info` holds named parts in [0, 1] for the logs (`format` is always there: 1.0 when the text could be read).
    """

    team: float
    local: float
    info: dict[str, float] = field(default_factory=dict)


def mixed_reward(reward: Reward, alpha: float = 1.0) -> float:
    """r = alpha * r_team + r_local (paper, Eq. 2)."""
    return alpha * reward.team + reward.local


class Env(Protocol):
    """One task instance. Agents act in the order of `agents`; `simultaneous` agents do not see each other within a turn."""

    agents: tuple[str, ...]
    simultaneous: bool
    done: bool  # nothing more to do: solved, or ended by the rules of the task
    solved: bool  # the task itself succeeded (running out of turns or agreeing on something wrong is not success)

    def reset(self, seed: int) -> Env:
        """Start the instance that belongs to `seed` and return self. Same seed, same instance, in any process."""
        ...

    def observe(self, agent: str) -> list[Message]:
        """The agent's prompt in the current state. Changes nothing."""
        ...

    def step(self, agent: str, text: str) -> Reward:
        """Apply the agent's response. Any text is fine; after `done` nothing changes and both rewards are 0."""
        ...

    def copy(self) -> Env:
        """An independent twin: stepping one never changes the other."""
        ...


def make_env(task: str, workflow: str = "mas", **options: Any) -> Env:
    """Build an environment (call `reset(seed=)` before use). ValueError on an unknown task, workflow or option."""
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}: choose one of {', '.join(TASKS)}")
    try:
        return TASKS[task](workflow=workflow, **options)
    except TypeError as error:  # an option this task does not have
        raise ValueError(f"task {task!r}: {error}") from None


# ---------------------------------------------------------------------------------------------------------------- answers

MAX_ANSWER = 10_000  # characters of an answer that are read
MAX_MOVES = 200  # moves of a plan that are read


def parse_answer(text: str) -> list | None:
    """The list after the last `####` marker, or None when there is no marker or no readable list behind it.

    Accepts numbers, quoted or bare words and nested lists, on one line or several; text after the list is ignored. Nothing
    is ever evaluated: bare words are quoted and the rest is read as JSON.

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
    return "[" + ", ".join(render_answer(part) if isinstance(part, list) else str(part) for part in answer[:MAX_MOVES]) + "]"


def parse_moves(answer: list) -> list[str | None]:
    """Moves as letters of U D L R, None for anything that is no move; at most MAX_MOVES are read."""
    return [_SPELLINGS.get(move.strip().lower()) if isinstance(move, str) else None for move in answer[:MAX_MOVES]]


# ----------------------------------------------------------------------------------------------------------------- boards

BoardT = TypeVar("BoardT", bound="Board")
FIRST_TURN = "This is the first turn."


@dataclass(frozen=True)
class Outcome:
    """What an answer did to a board: the team reward, and the agent-specific share of the local reward for either role."""

    team: float
    legal: bool
    act: float  # for the planner, whose answer becomes the state
    propose: float  # for the tool user, whose answer is a proposal
    note: str  # feedback for the next prompt


class Board:
    """What the three board games share: the workflows, the two roles and their local rewards.

    workflow `mas`: a tool user proposes an answer, then the planner, who sees the proposal, decides (sequential).
    workflow `single`: the planner alone.
    tool `direct`: the tool user writes its proposal itself as an answer line.

    Local rewards (paper, appendix): planner .1 format + .1 legal + .8 * act; tool user .1 format + .1 executes + .8 * propose.
    The tool user's team reward is what the team would get if its proposal were the team's answer, computed on a copy.

    A subclass says how to make a level (`_generate`), draw it (`_describe`), explain it (`RULES`, `ANSWER`) and apply an
    answer (`_apply`). All state must be immutable values, replaced and never changed in place: then a shallow copy is a copy.
    """

    RULES: str
    ANSWER: str  # how to write an answer
    simultaneous = False

    def __init__(self, workflow: str = "mas", tool: str = "direct"):
        workflows = {"mas": ("tool_user", "planner"), "single": ("planner",)}
        if workflow not in workflows:
            raise ValueError(f"workflow={workflow!r}: a board task has {' or '.join(workflows)}")
        if tool != "direct":
            raise ValueError(f"tool={tool!r}: choose 'direct'")
        self.agents = workflows[workflow]
        self.tool = tool
        self.fixed = False  # True for a level given as text
        self.done = self.solved = False
        self.proposal: str | None = None  # the tool user's answer of this turn, as the planner will see it
        self.note = FIRST_TURN

    def _generate(self, rng: np.random.Generator) -> None:
        raise NotImplementedError

    def _describe(self) -> str:
        raise NotImplementedError

    def _apply(self, answer: list) -> Outcome:
        raise NotImplementedError

    def _load(self) -> None:
        """Set the state to the start of the current level; subclasses extend it."""
        self.done = self.solved = False
        self.proposal, self.note = None, FIRST_TURN

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
        state = [agent, self._describe()]
        if agent == "planner" and "tool_user" in self.agents:
            state.append(f"proposal {self.proposal or 'none'}")
        return [
            {"role": "system", "content": f"{self.RULES}\n{role}\n{self.ANSWER}"},
            {"role": "user", "content": "\n".join(state)},
        ]

    def step(self, agent: str, text: str) -> Reward:
        self._check(agent)
        if self.done:
            return Reward(0.0, 0.0, {"format": 0.0})
        answer = parse_answer(text)
        if agent == "tool_user":
            self.proposal = None if answer is None else render_answer(answer)
            outcome = self.copy()._apply(answer or [])
            executes = answer is not None and outcome.legal
            local = 0.1 * (answer is not None) + 0.1 * executes + 0.8 * outcome.propose * (answer is not None)
            return Reward(outcome.team, local, {"format": float(answer is not None), "executes": float(executes)})
        outcome = self._apply(answer or [])
        self.proposal = None
        self.note = outcome.note if answer is not None else "Your last answer had no readable answer line."
        if answer is None:
            return Reward(outcome.team, 0.0, {"format": 0.0, "legal": 0.0})
        return Reward(outcome.team, 0.1 + 0.1 * outcome.legal + 0.8 * outcome.act, {"format": 1.0, "legal": float(outcome.legal)})

    def _check(self, agent: str) -> None:
        if agent not in self.agents:
            raise ValueError(f"unknown agent {agent!r}: this environment has {', '.join(self.agents)}")


# -------------------------------------------------------------------------------------------------------------- Plan-Path


class PlanPath(Board):
    """Walk from the start to the goal around blocked cells, `max_moves` moves a turn at most.

    Team reward: 1 at the goal, else max(0, (d_before - d_after) / d_start) with d the shortest-path distance to the goal.
    Progress, the .8 share of both roles: net steps towards the goal / max(moves given, min(max_moves, d_before)), at least 0.
    Net steps, so that loops, bumps and walking away earn nothing, and an empty plan earns its format share only.

    Options: `rows`, `cols` (cells), `blocks` (share of blocked cells), `max_moves` (moves a turn), `view`: "grid" draws the
    board, "cells" names the blocked cells by their offset from the player (shorter, for models trained from scratch).
    Levels: random blocks, start and goal connected and at least (rows + cols) // 4 steps apart.
    """

    ANSWER = "End with one line: #### [moves], for example #### [U, R, R]"

    def __init__(
        self,
        workflow: str = "mas",
        tool: str = "direct",
        rows: int = 10,
        cols: int = 10,
        blocks: float = 0.22,
        max_moves: int = MAX_MOVES,
        view: str = "grid",
    ):
        super().__init__(workflow, tool)
        if rows < 1 or cols < 1 or rows * cols < 2:
            raise ValueError(f"rows={rows}, cols={cols}: a board needs at least two cells")
        if not 0 <= blocks <= 0.6:
            raise ValueError(f"blocks={blocks}: choose a share between 0 and 0.6")
        if not 1 <= max_moves <= MAX_MOVES:
            raise ValueError(f"max_moves={max_moves}: choose 1 to {MAX_MOVES}")
        if view not in ("grid", "cells"):
            raise ValueError(f"view={view!r}: choose 'grid' or 'cells'")
        self.rows, self.cols, self.blocks, self.max_moves, self.view = rows, cols, blocks, max_moves, view
        self.RULES = (
            f"A board of {rows} rows and {cols} columns; cells are (row, column), (0,0) is top left. "
            "Walk from your cell to the goal. Moves: U (row - 1), D (row + 1), L (column - 1), R (column + 1). "
            "A move into a blocked cell or off the board does nothing. "
            f"You have several turns; a turn takes at most {max_moves} moves, and you go on from where you are."
        )

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
        while True:
            walls = rng.random((self.rows, self.cols)) < self.blocks
            free = [(int(r), int(c)) for r, c in zip(*np.nonzero(~walls), strict=True)]
            if len(free) < 2:
                continue
            goal, start = (free[i] for i in rng.choice(len(free), 2, replace=False))
            self._set_level(frozenset((int(r), int(c)) for r, c in zip(*np.nonzero(walls), strict=True)), start, goal)
            if self.distance.get(start, 0) >= apart:
                return

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

    def _apply(self, answer: list) -> Outcome:
        moves, before, bumps = parse_moves(answer), self.distance[self.position], 0
        for move in moves[: self.max_moves]:
            step = MOVES.get(move or "", (0, 0))
            there = (self.position[0] + step[0], self.position[1] + step[1])
            if move is None or not self._free(there):
                bumps += 1
                continue
            self.position = there
            if there == self.goal:
                self.done = self.solved = True
                break
        after = self.distance[self.position]
        legal = bool(moves) and not bumps and len(moves) <= self.max_moves
        share = max(0, before - after) / max(len(answer), min(self.max_moves, before))
        team = 1.0 if self.solved else max(0, before - after) / self.distance[self.start]
        note = f"Your last plan had {len(moves)} moves, {bumps} of them impossible."
        return Outcome(team, legal, share, share, note)

    def _describe(self) -> str:
        (r, c), goal = self.position, self.goal
        if self.view == "cells":  # offsets, and the edge of the board is a wall as well: all that a step depends on
            near = {(r + i, c + j) for i in (-1, 0, 1) for j in (-1, 0, 1)}
            walls = sorted(self.walls | {cell for cell in near if not self._free(cell)})
            offsets = " ".join(f"({i - r:+d},{j - c:+d})" for i, j in walls)
            return f"at ({r},{c}) goal ({goal[0] - r:+d},{goal[1] - c:+d}) walls {offsets or 'none'}"
        grid = "\n".join(
            " ".join(
                "P" if (i, j) == (r, c) else "G" if (i, j) == goal else "#" if (i, j) in self.walls else "."
                for j in range(self.cols)
            )
            for i in range(self.rows)
        )
        return (
            f"Board (P you, G goal, # blocked, . free):\n{grid}\n"
            f"You are at ({r},{c}), the goal is at ({goal[0]},{goal[1]}). {self.note}"
        )


TASKS: dict[str, Any] = {"plan_path": PlanPath}
