"""Environments: what an agent sees, what its text does, and what that is worth.

An `Env` is one instance of a cooperative task for one or more agents. `observe` gives an agent its prompt as chat
messages and changes nothing; `step` reads one agent's whole response, changes the state and returns a `Reward`; `copy`
gives an independent twin, which is how tree sampling scores K candidates without one seeing another.

`make_env(task, workflow)` builds one. The three board games live here, mathematics in `math_env.py`, code in
`code_env.py`. `python envs.py TASK` lets a person play the roles. No torch in this file.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
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
    """A task instance. Agents act in the order of `agents`; within a turn `simultaneous` ones do not see each other."""

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
    module, name = TASKS[task].split(":")
    task_class = getattr(importlib.import_module(module), name)
    try:
        return task_class(workflow=workflow, **options)
    except TypeError as error:  # an option this task does not have
        raise ValueError(f"task {task!r}: {error}") from None


# ------------------------------------------------------------------------------------------------------------ answers

MAX_ANSWER = 10_000  # characters of an answer that are read
MAX_MOVES = 200  # moves of a plan that are read


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


def parse_moves(answer: list) -> list[str | None]:
    """Moves as letters of U D L R, None for anything that is no move; at most MAX_MOVES are read."""
    return [_SPELLINGS.get(move.strip().lower()) if isinstance(move, str) else None for move in answer[:MAX_MOVES]]


# ------------------------------------------------------------------------------------------------------------- boards

BoardT = TypeVar("BoardT", bound="Board")
FIRST_TURN = "This is the first turn."
TOOL_SECONDS = 5.0  # wall-clock limit of the tool user's program
PROGRAM = (
    f"Write one program in a fenced ```python block. It gets no input and has {TOOL_SECONDS:g} seconds; what it prints "
    "is read as your answer. "
)


@dataclass(frozen=True)
class Outcome:
    """What an answer did to a board: the team reward, and for either role the .8 share of its local reward."""

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
    tool `python`: it writes a fenced program, run in the sandbox, and the answer line that this prints is the proposal.

    Local rewards (paper, appendix): planner .1 format + .1 legal + .8 * act; tool user .1 format + .1 executes +
    .8 * propose. `executes`: the proposed answer is legal (direct), the program ran without an error (python).
    The tool user's team reward is what the team would get if its proposal were the team's answer, computed on a copy.

    A subclass says how to make a level (`_generate`), draw it (`_describe`), explain it (`RULES`, `ANSWER`) and apply
    an answer (`_apply`). All state must be immutable values, replaced and never changed in place: then a shallow copy
    is a copy.
    """

    RULES: str
    ANSWER: str  # how to write an answer
    simultaneous = False

    def __init__(self, workflow: str = "mas", tool: str = "direct"):
        workflows = {"mas": ("tool_user", "planner"), "single": ("planner",)}
        if workflow not in workflows:
            raise ValueError(f"workflow={workflow!r}: a board task has {' or '.join(workflows)}")
        if tool not in ("direct", "python"):
            raise ValueError(f"tool={tool!r}: choose 'direct' or 'python'")
        self.agents = workflows[workflow]
        self.tool = tool
        self.fixed = False  # True for a level given as text
        self.done = self.solved = False
        self.proposal: str | None = None  # the tool user's answer of this turn, as the planner will see it
        self.note = FIRST_TURN
        self.best = 0.0  # highest potential of the episode so far, see `_new_high`

    def _generate(self, rng: np.random.Generator) -> None:
        raise NotImplementedError

    def _describe(self) -> str:
        raise NotImplementedError

    def _apply(self, answer: list) -> Outcome:
        raise NotImplementedError

    def noisy_answer(self, rng: np.random.Generator, good: float) -> str:
        """An answer in the right format, good with this probability and random otherwise (for warm starts)."""
        raise NotImplementedError

    def _load(self) -> None:
        """Set the state to the start of the current level; subclasses extend it."""
        self.done = self.solved = False
        self.proposal, self.note, self.best = None, FIRST_TURN, 0.0

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
        program = PROGRAM if agent == "tool_user" and self.tool == "python" else ""
        state = [agent]
        if agent == "planner" and "tool_user" in self.agents:
            state.append(f"proposal {self.proposal or 'none'}")
        state.append(self._describe())
        return [
            {"role": "system", "content": f"{self.RULES}\n{role}\n{program}{self.ANSWER}"},
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
        self.proposal = None
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
            readable, ran, text = _run_program(text)
        answer = parse_answer(text)
        outcome = self.copy()._apply(answer or [])
        self.proposal = None if answer is None else render_answer(answer)
        if self.tool == "direct":
            readable, ran = answer is not None, answer is not None and outcome.legal
        local = 0.1 * readable + 0.1 * ran + 0.8 * outcome.propose * (answer is not None)
        return Reward(outcome.team, local, {"format": float(readable), "executes": float(ran)})

    def _check(self, agent: str) -> None:
        if agent not in self.agents:
            raise ValueError(f"unknown agent {agent!r}: this environment has {', '.join(self.agents)}")


def _run_program(text: str) -> tuple[bool, bool, str]:
    """Run the fenced program of a response: was there one, did it run without an error, and what it printed."""
    import sandbox  # only this mode runs programs

    code = sandbox.extract_code(text)
    if code is None:
        return False, False, ""
    result = sandbox.run_program(code, stdin="", timeout=TOOL_SECONDS)
    if result.status == "infra":
        raise InfraError(f"the tool user's program could not be run: {result.stderr}")
    return True, result.status == "ok", result.stdout if result.status == "ok" else ""


# ---------------------------------------------------------------------------------------------------------- Plan-Path


class PlanPath(Board):
    """Walk from the start to the goal around blocked cells, `max_moves` moves a turn at most.

    Team reward: 1 at the goal, else max(0, (d_before - d_after) / d_start), d the shortest-path distance to the goal.
    Progress, the .8 share of both roles: net steps towards the goal / max(moves given, min(max_moves, d_before)), at
    least 0. Net steps, so loops, bumps and walking away earn nothing, and an empty plan earns its format share only.

    Options: `rows`, `cols` (cells), `blocks` (share of blocked cells), `max_moves` (moves a turn), `view`: "grid" draws
    the board, "cells" names the blocked cells by their offset from the player (short, for models trained from scratch).
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

    def noisy_answer(self, rng: np.random.Generator, good: float) -> str:
        twin, moves = self.copy(), []
        for _ in range(rng.integers(1, min(self.max_moves, 8) + 1)):
            moves.append(str(rng.choice(list(MOVES))))
            if rng.random() < good and not twin.done:
                moves[-1] = min(MOVES, key=lambda move: twin._distance_after(move))
            twin._apply(moves[-1:])
        return f"#### [{', '.join(moves)}]"

    def _distance_after(self, move: str) -> int:
        there = (self.position[0] + MOVES[move][0], self.position[1] + MOVES[move][1])
        return self.distance[there if self._free(there) else self.position]

    def _describe(self) -> str:
        (r, c), goal = self.position, self.goal
        if self.view == "cells":
            walls = " ".join(f"({i - r:+d},{j - c:+d})" for i, j in sorted(self.walls)) or "none"
            free = " ".join(move if self._free((r + i, c + j)) else "-" for move, (i, j) in MOVES.items())
            down, right = goal[0] - r, goal[1] - c
            towards = f"{abs(down)} {'down' if down > 0 else 'up'} {abs(right)} {'right' if right > 0 else 'left'}"
            return f"walls {walls} at ({r},{c}) free {free} goal {towards}"
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


# ------------------------------------------------------------------------------------------------------------ Sokoban

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
    It is found once a level, backwards: pulling boxes away from the goals visits all the solvable positions and no
    other.

    Options: `rows`, `cols` (cells, walls included), `boxes`, `max_moves` (moves a turn).
    Levels: random inner walls and goals, then a random solvable position at least boxes + 2 pushes from the solution.
    """

    ANSWER = "End with one line: #### [moves], for example #### [U, R, R]"

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
        if boxes < 1:
            raise ValueError(f"boxes={boxes}: a level without boxes has nothing to do, choose 1 or more")
        if rows < 1 or cols < 1:
            raise ValueError(f"rows={rows}, cols={cols}: choose sizes of 1 or more")
        if not 1 <= max_moves <= MAX_MOVES:
            raise ValueError(f"max_moves={max_moves}: choose 1 to {MAX_MOVES}")
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

    def _apply(self, answer: list) -> Outcome:
        moves, bumps = parse_moves(answer), 0
        for move in moves[: self.max_moves]:
            shift = self.shifts.get(move or "", 0)
            there = _shift(self.player, shift)
            behind = _shift(there, shift)
            if not shift or not there & self.floor or (there & self.boxes and not behind & self.floor & ~self.boxes):
                bumps += 1
                continue
            self.player = there
            if there & self.boxes:
                self.boxes ^= there | behind
            if self.boxes == self.goals:
                self.done = self.solved = True
                break
        pushes, at_start = self._pushes(self.boxes, self.player), self._pushes(*self.start)
        share = self._new_high(0.0 if pushes is None or not at_start else 1 - pushes / at_start)
        legal = bool(moves) and not bumps and len(moves) <= self.max_moves
        note = f"Your last plan had {len(moves)} moves, {bumps} of them impossible."
        return Outcome((self.boxes & self.goals).bit_count() / self.num_boxes, legal, share, share, note)

    def noisy_answer(self, rng: np.random.Generator, good: float) -> str:
        twin, moves = self.copy(), []
        for _ in range(rng.integers(1, min(self.max_moves, 8) + 1)):
            best = twin._next_move() if rng.random() < good else None
            moves.append(best or str(rng.choice(list(MOVES))))
            twin._apply(moves[-1:])
        return f"#### [{', '.join(moves)}]"

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

    def _describe(self) -> str:
        symbols = {(0, 0, 0): " ", (0, 0, 1): ".", (1, 0, 0): "$", (1, 0, 1): "*", (0, 1, 0): "@", (0, 1, 1): "+"}
        drawing = [""] * self.rows
        for (r, _), bit in self.cells.items():
            box, player, goal = (int(bool(bit & mask)) for mask in (self.boxes, self.player, self.goals))
            drawing[r] += symbols[box, player, goal] if bit & self.floor else "#"
        named = {"You are": self.player, "boxes": self.boxes, "goals": self.goals}
        places = ", ".join(
            f"{name} at {' '.join(f'({r},{c})' for (r, c), bit in self.cells.items() if bit & mask)}"
            for name, mask in named.items()
        )
        return "\n".join(["Board:", *drawing, f"{places}. {self.note}"])


def _shift(mask: int, by: int) -> int:
    return mask << by if by > 0 else mask >> -by


# ------------------------------------------------------------------------------------------------------------- Sudoku

SUDOKU_BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}  # size: rows and columns of a box


class Sudoku(Board):
    """Fill the grid so that every row, column and box holds each number once. Numbers can be revised, clues cannot.

    The answer becomes the grid, with two exceptions. An answer of another shape, with anything but the integers 0
    (empty) to `size`, or with a changed clue is not used at all. Cells whose number is repeated in their row, column or
    box are left empty. So the grid never breaks a rule, and what is kept depends on the rules alone, never on the
    solution: filling in guesses to see which ones stay tells nothing that the player could not check without the
    environment.

    Team reward: 1 when solved, else 0.
    Potential, whose new highs are the .8 share of both roles (newly correct cells, consistency with the solution):
    (right - wrong cells of the answer) / blanks of the puzzle. Wrong cells count against right ones, so that a constant
    or random grid is worth no more than empty cells, and a cell is filled in with profit only by who is more likely
    right than wrong. Legal: at least one cell is filled anew and none is left out.

    Options: `size` (4, 6 or 9), `blanks` (empty cells, half of all by default).
    Levels: a random full grid, emptied cell by cell where the number follows from the others at once (the only number
    for its cell, or the only cell for its number). Filling the blanks in reverse order is the machine-checked unique
    solution.
    """

    def __init__(self, workflow: str = "mas", tool: str = "direct", size: int = 4, blanks: int | None = None):
        super().__init__(workflow, tool)
        if size not in SUDOKU_BOXES:
            raise ValueError(f"size={size}: choose one of {', '.join(map(str, SUDOKU_BOXES))}")
        self.size, self.blanks = size, size * size // 2 if blanks is None else blanks
        if not 1 <= self.blanks <= size * size * 5 // 8:
            raise ValueError(f"blanks={blanks}: choose 1 to {size * size * 5 // 8} for size {size}")
        height, width = SUDOKU_BOXES[size]
        self.RULES = (
            f"Sudoku, {size} rows and {size} columns. Every row, every column and every box of {height} rows and "
            f"{width} columns holds each number from 1 to {size} once; 0 is an empty cell. Keep the clues; your own "
            "numbers can be changed. A number that is repeated in its row, column or box is left out. "
            "You have several turns."
        )
        row = ", ".join("0" for _ in range(size))
        self.ANSWER = (
            f"End with one line: #### and all {size} rows, 0 where you leave a cell empty: #### [[{row}], ...]"
        )

    @classmethod
    def from_rows(cls, rows: Sequence[str] | Sequence[Sequence[int]], **options: Any) -> Sudoku:
        """A puzzle from rows of numbers or of characters; 0 and `.` are empty cells.

        A puzzle with several solutions is accepted and any of them solves it; the potential takes one of them.
        ValueError when it is malformed, breaks a rule or has no solution.
        """
        grid = [list(row.replace(".", "0").replace(" ", "")) if isinstance(row, str) else list(row) for row in rows]
        size, cells = len(grid), [int(value) if str(value).isdecimal() else -1 for row in grid for value in row]
        env = cls(size=size, **options)
        if {len(row) for row in grid} != {size} or not all(0 <= value <= size for value in cells):
            raise ValueError(
                f"Sudoku: {size} rows of {size} numbers from 0 (empty) to {size} expected, got {list(rows)}"
            )
        if clashes := _clashes(cells, size):
            raise ValueError(f"Sudoku: the clues repeat a number at {[divmod(i, size) for i in sorted(clashes)]}")
        solution = next(_completions(cells, size), None)
        if solution is None:
            raise ValueError(f"Sudoku: the puzzle has no solution: {list(rows)}")
        env.fixed, env.clues, env.solution = True, tuple(cells), solution
        env._load()
        return env

    def _generate(self, rng: np.random.Generator) -> None:
        while True:
            solution = next(_completions([0] * self.size**2, self.size, rng))
            clues = _dig(solution, self.size, self.blanks, rng)
            if clues.count(0) == self.blanks:
                self.clues, self.solution = tuple(clues), solution
                return

    def _load(self) -> None:
        super()._load()
        self.grid = self.clues
        self.done = self.solved = 0 not in self.grid

    def _apply(self, answer: list) -> Outcome:
        n, before = self.size, self.grid
        cells = [value for row in answer if isinstance(row, list) and len(row) == n for value in row]
        if len(answer) != n or len(cells) != n * n or any(type(v) is not int or not 0 <= v <= n for v in cells):
            return Outcome(0.0, False, 0.0, 0.0, f"Your last answer was not {n} rows of {n} numbers from 0 to {n}.")
        if any(clue and clue != value for clue, value in zip(self.clues, cells, strict=True)):
            return Outcome(0.0, False, 0.0, 0.0, "Your last answer changed a clue and was not used.")
        clashes = _clashes(cells, n)
        self.grid = tuple(clue or (0 if i in clashes else cells[i]) for i, clue in enumerate(self.clues))
        self.done = self.solved = 0 not in self.grid  # full and no clash: the rules hold
        own = [i for i, clue in enumerate(self.clues) if not clue and cells[i]]
        score = sum(1 if cells[i] == self.solution[i] else -1 for i in own) / self.clues.count(0)
        share = self._new_high(1.0 if self.solved else score)
        fresh = sum(value not in (0, old) for value, old in zip(self.grid, before, strict=True))
        dropped = sum(not self.clues[i] for i in clashes)
        note = f"Your last answer filled or changed {fresh} cells; {dropped} cells repeated a number and were left out."
        return Outcome(float(self.solved), fresh > 0 and not clashes, share, share, note)

    def noisy_answer(self, rng: np.random.Generator, good: float) -> str:
        n = self.size
        cells = [
            clue or (right if rng.random() < good else int(rng.integers(0, n + 1)))
            for clue, right in zip(self.clues, self.solution, strict=True)
        ]
        return f"#### {[cells[i : i + n] for i in range(0, n * n, n)]}"

    def _describe(self) -> str:
        n = self.size
        clues, grid = (
            "\n".join(" ".join(map(str, g[i : i + n])) for i in range(0, n * n, n)) for g in (self.clues, self.grid)
        )
        now = "The grid is as in the puzzle." if grid == clues else f"The grid now:\n{grid}"
        return f"Puzzle:\n{clues}\n{now}\n{self.note}"


@cache
def _units(size: int) -> list[list[int]]:
    """The cells of every row, column and box."""
    height, width = SUDOKU_BOXES[size]
    units: dict[tuple[str, int, int], list[int]] = {}
    for cell in range(size**2):
        r, c = divmod(cell, size)
        for unit in (("row", r, 0), ("column", c, 0), ("box", r // height, c // width)):
            units.setdefault(unit, []).append(cell)
    return list(units.values())


@cache
def _peers(size: int) -> list[set[int]]:
    """For every cell the others that must not hold the same number."""
    return [{peer for unit in _units(size) if cell in unit for peer in unit} - {cell} for cell in range(size**2)]


def _fits(grid: Sequence[int], size: int, cell: int, value: int) -> bool:
    return not any(grid[peer] == value for peer in _peers(size)[cell])


def _clashes(grid: Sequence[int], size: int) -> set[int]:
    """The cells whose number is repeated in their row, column or box."""
    return {cell for cell, value in enumerate(grid) if value and not _fits(grid, size, cell, value)}


def _completions(grid: Sequence[int], size: int, rng: np.random.Generator | None = None) -> Iterator[tuple[int, ...]]:
    """Every way to fill the empty cells of a grid without clashes, in random order with `rng`."""
    peers = _peers(size)

    def put(grid: list[int], options: list[int], cell: int, value: int) -> tuple[list[int], list[int]]:
        grid, options = grid.copy(), options.copy()
        grid[cell] = value
        for peer in peers[cell]:
            options[peer] &= ~(1 << value)
        return grid, options

    def search(grid: list[int], options: list[int]) -> Iterator[tuple[int, ...]]:
        empty = [cell for cell, value in enumerate(grid) if not value]
        if not empty:
            yield tuple(grid)
            return
        cell = min(empty, key=lambda cell: options[cell].bit_count())  # where the fewest numbers fit
        values = [value for value in range(1, size + 1) if options[cell] >> value & 1]
        for value in values if rng is None else rng.permutation(values).tolist():
            yield from search(*put(grid, options, cell, value))

    state = [0] * size**2, [(2 << size) - 2] * size**2  # bit v of options[cell]: v fits
    for cell, value in enumerate(grid):
        if value:
            state = put(*state, cell, value)
    return search(*state)


def _dig(solution: Sequence[int], size: int, blanks: int, rng: np.random.Generator) -> list[int]:
    """Empty up to `blanks` cells in random order, each only where its number then follows at once from the others."""
    grid = list(solution)
    for cell in rng.permutation(size**2).tolist():
        value, grid[cell] = grid[cell], 0
        only_number = not any(_fits(grid, size, cell, other) for other in range(1, size + 1) if other != value)
        only_cell = any(
            not any(_fits(grid, size, other, value) for other in unit if other != cell and not grid[other])
            for unit in _units(size)
            if cell in unit
        )
        if not (only_number or only_cell):
            grid[cell] = value
        elif grid.count(0) == blanks:
            break
    return grid


# -------------------------------------------------------------------------------------------------------------- tasks

TASKS = {  # task: "module:class", imported when it is asked for
    "plan_path": "envs:PlanPath",
    "sokoban": "envs:Sokoban",
    "sudoku": "envs:Sudoku",
    "math": "math_env:MathEnv",
    "code": "code_env:CodeEnv",
}


def read_answer() -> str | None:
    """One answer from standard input, None when there is none left.

    It ends with its answer line, with the closing fence of a program, or with an empty line outside of a program.
    """
    text, fenced = "", False
    for line in sys.stdin:
        if line.strip().startswith("```"):
            fenced = not fenced
            text += line
            if not fenced:
                break
        elif fenced or line.strip():
            text += line
            if not fenced and parse_answer(text) is not None:
                break
        elif text:
            break
    return text or None


def play(arguments: Sequence[str] | None = None) -> None:
    """Play the roles of a task by hand: read a prompt, write an answer, see what it is worth."""
    parser = argparse.ArgumentParser(description=play.__doc__)
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("--workflow", default="mas", help="mas, single or ensemble, as far as the task has it")
    parser.add_argument("--seed", type=int, default=0, help="which level or problem")
    parser.add_argument("--data", help="file of problems (math and code)")
    parser.add_argument("--tool", choices=["direct", "python"], help="how the tool user of a board works")
    options = vars(parser.parse_args(arguments))
    task, seed = options.pop("task"), options.pop("seed")
    try:
        env = make_env(task, **{name: value for name, value in options.items() if value is not None}).reset(seed=seed)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print("An answer ends with its answer line, a closing ``` or an empty line. Ctrl-D ends the game.")
    while not env.done:
        at_start = {agent: env.observe(agent) for agent in env.agents}
        for agent in env.agents:
            for message in at_start[agent] if env.simultaneous else env.observe(agent):
                print(f"\n[{agent}: {message['role']}]\n{message['content']}")
            answer = read_answer()
            if answer is None:
                print("\nEnd of input.")
                return
            reward = env.step(agent, answer)
            parts = " ".join(f"{name}={value:.2f}" for name, value in reward.info.items())
            print(f"-> team={reward.team:.2f} local={reward.local:.2f} {parts}")
    print("Solved." if env.solved else "The task has ended unsolved.")


if __name__ == "__main__":
    import envs  # task modules import `envs`: their classes must be the same as ours, so not those of `__main__`

    envs.play()
