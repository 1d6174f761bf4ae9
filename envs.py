"""The contract of an environment: what an agent sees, what its text does, and what it earns. No torch.

One turn of `make_env("plan_path", rows=4, cols=4).reset(seed=3)`, word for word (rules in the system message left out):

    tool_user sees    tool_user
                      Board (P you, G goal, # blocked, . free):
                      # . . .
                      # G . #
                      . # . .
                      P . . .
                      You are at (3,0), the goal is at (1,1). This is the first turn.
      answers         #### [R, R, U]                                team 0.60 local 0.68    K candidates, each tried on
                      #### [R, R]                                   team 0.40 local 0.52    its own copy; the first one
                      #### [U, U, R]                                team 0.00 local 0.10    is worth most, so it is
                      right, then up                                team 0.00 local 0.00    committed
    planner sees      planner
                      proposal [R, R, U]
                      and the same board: a proposal moves nobody
      answers         It stops below the goal. #### [R, R, U, U, L]  team 1.00 local 1.00    solved

The tasks live in `tasks/`, or wherever you have yours; the smallest whole one is `examples/newsroom.py`.
"""

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.registry import task_class

Message = dict[str, str]  # {"role": "system" | "user", "content": ...}


class InfraError(RuntimeError):
    """`step` could not score a candidate through no fault of its own: it is never committed, nor counted as wrong."""


@dataclass(frozen=True)
class Reward:
    """Rewards of one action, both in [0, 1]: `team` for the state of the task, `local` for the agent's own part.

    `info` holds named parts in [0, 1] for the logs (`format` is always there: 1.0 when the text could be read).
    """

    team: float
    local: float
    info: dict[str, float] = field(default_factory=dict)


def mixed_reward(reward: Reward, alpha: float = 1.0) -> float:
    """r = alpha * r_team + r_local (paper, Eq. 3)."""
    return alpha * reward.team + reward.local


class Env(ABC):
    """An instance of a task: inherit from it, say who acts (`agents`), and write `reset`, `observe` and `step`.

    Agents act in this order; within a turn `simultaneous` ones do not see each other. All else has a default.
    """

    agents: tuple[str, ...]
    simultaneous: bool = False
    done: bool = False  # nothing more to do: solved, or ended by the rules of the task
    solved: bool = False  # the task itself succeeded: running out of turns, or agreeing on something wrong, is not that
    problems: Sequence[Any] | None = None  # a fixed set, each with a `question`; None: every seed is a level of its own
    way: Sequence[tuple[int, int]] = ()  # cells (row, column) through which the last answer leads, for pictures
    slow_scoring: bool = False  # `step` waits for other processes, so that threads can score side by side
    runs_programs: bool = False  # `step` runs programs of the agents: no run starts where they cannot
    # a method (rng, good) that a warm start imitates: an answer in the right format, good with this probability
    noisy_answer: Callable[[np.random.Generator, float], str] | None = None

    @abstractmethod
    def reset(self, seed: int) -> "Env":
        """Start the instance that belongs to `seed` and return self. Same seed, same instance, in any process."""

    @abstractmethod
    def observe(self, agent: str) -> list[Message]:
        """The agent's prompt in the current state. Changes nothing."""

    @abstractmethod
    def step(self, agent: str, text: str) -> Reward:
        """Apply the agent's response. Any text is fine; after `done` nothing changes and both rewards are 0."""

    def copy(self) -> "Env":
        """An independent twin: stepping one never changes the other."""
        return copy.deepcopy(self)

    def check_agent(self, agent: str) -> str:
        """The role of one of `agents`: its name without a number. ValueError for all other names."""
        if agent not in self.agents:
            raise ValueError(f"unknown agent {agent!r}: this environment has {', '.join(self.agents)}")
        return agent.rstrip("_0123456789")

    def render(self) -> str:
        """The state as plain text for people, "" if there is nothing to draw. No agent sees it."""
        return ""

    def picture(self) -> list[str]:
        """The same as rows of one character a cell, if it is a board: then the report can draw it."""
        return []

    @property
    def stages(self) -> Sequence[tuple[str, ...]]:
        """The agents of a turn in groups: the prompts of a group are built together, before any of them acts."""
        return [self.agents] if self.simultaneous else [(agent,) for agent in self.agents]

    @property
    def progress(self) -> float:
        """What the team has achieved since the start, in [0, 1] and 1 exactly when it is solved."""
        return float(self.solved)


def make_env(task: str, workflow: str = "mas", **options: Any) -> Env:
    """Build an environment (call `reset(seed=)` before use). ValueError on an unknown task, workflow or option.

    `task`: a name in TASKS, or a class of your own, "module:Class" or "file.py:Class".
    """
    cls = task_class(task)
    if not issubclass(cls, Env):
        raise ValueError(f"task {task!r}: {cls.__name__} has to inherit from Env (from envs import Env)")
    if workflow != "mas" or "workflow" in inspect.signature(cls).parameters:
        options["workflow"] = workflow
    try:
        return cls(**options)
    except TypeError as error:  # an option that this task does not have
        raise ValueError(f"task {task!r}: {error}") from None
