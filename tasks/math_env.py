r"""Mathematics: a reasoner thinks, a tool user computes, and in the larger team a judge decides.

| workflow | agents in order | the team's answer | ends when |
|---|---|---|---|
| `mas` | `reasoner`, `tool_user` (simultaneous) | the reasoner's | both gave the same answer |
| `single` | `reasoner` | the reasoner's | it gave the same answer as in its previous turn |
| `ensemble` | `reasoner_1`.., `tool_user_1`.., `judge` | the judge's | all of them gave the same answer |

Agreement only ends the episode. It earns nothing, and `solved` means that the team's answer equals the gold. Running
out of turns does not end the task: the rollout counts turns.

Everybody sees what all did in the previous turn: a reasoner's reasoning, a tool user's program and what it printed, and
the answer read from it, shortened to WORK_SHOWN and SHOWN characters. A failure is shown only to its author. Within a
turn the judge sees the same from all others; the others see nothing of each other (the judge is why `ensemble` is not
`simultaneous` as a whole).

How answers are read and compared: `math_answers.py`.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from envs import Env, InfraError, Message, Reward
from tasks import data as datasets
from tasks import sandbox
from tasks.fences import shorten
from tasks.math_answers import extract_answer, math_equal, score_answers, scorer_counts, visible_text
from tasks.math_values import split

__all__ = ["MathEnv", "Problem", "extract_answer", "load_problems", "math_equal", "score_answers", "scorer_counts"]

SHOWN = 300  # characters of an answer, or of what a program printed, that other prompts repeat
WORK_SHOWN = 1_000  # characters of a response (its reasoning or program) that other prompts repeat

# ------------------------------------------------------------------------------------------------------------- problems


@dataclass(frozen=True)
class Problem:
    """One task: the question as shown, its gold answer, and how far a number may be from it (see `math_equal`)."""

    question: str
    answer: str
    tolerance: float | tuple[float, ...] | None = None


# The last sentence of many benchmark files tells how to answer; our prompts say that themselves.
_INSTRUCTION = re.compile(r"(?:(?<=[.?!:$\n])|^)[^.?!\n]*\\boxed\s*\{\s*\}[^\n]*\s*\Z")


def read_problem(row: dict[str, Any]) -> Problem:
    """One row of a data set; its fields determine its format. ValueError, naming the field, when none fits.

    | data | question | answer |
    |---|---|---|
    | GSM8K | `question` | the number after `####` in `answer` |
    | AIME, MATH-500, DeepScaleR, Polaris | `problem` | `answer` (text or number) |
    | OlympiadBench | `question` or `problem` | `final_answer` (a list) or `answer`; `error` is the tolerance |
    | MATH | `problem` | the box in `solution` |
    | plain | `question`, `problem` or `prompt` | `answer` |
    """
    fields = {str(name).lower(): value for name, value in row.items() if value not in (None, "", [])}
    asked = next((name for name in ("question", "problem", "prompt") if name in fields), None)
    told = next((name for name in ("final_answer", "answer", "solution") if name in fields), None)
    if asked is None or told is None:
        raise ValueError(
            f"no mathematics problem: expected a text `question` or `problem`, and `answer` or `final_answer` (or a "
            f"`solution` with a box); got the fields {', '.join(map(str, row)) or 'none'}"
        )
    if not isinstance(fields[asked], str) or not fields[asked].strip():
        raise ValueError(f"no mathematics problem: field {asked!r}: expected a text, got {_short(fields[asked])}")
    answers = fields[told] if isinstance(fields[told], list) else [fields[told]]
    gold = ", ".join(_written(answer, told) for answer in answers)
    gold = (extract_answer(gold) or "") if told == "solution" else gold.rpartition("####")[2].strip()
    if not gold:
        raise ValueError(f"no mathematics problem: field {told!r}: empty answer in {_short(fields[told])}")
    question = _INSTRUCTION.sub("", fields[asked].strip()).strip() or fields[asked].strip()
    return Problem(question, gold, _tolerance(fields.get("error")))


def _written(value: Any, field: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not -math.inf < value < math.inf:
        raise ValueError(f"no mathematics problem: field {field!r}: expected a text or a number, got {_short(value)}")
    return format(Decimal(value), "f") if isinstance(value, int) else repr(value)  # str() refuses 5,000 digits


def _tolerance(value: Any) -> float | tuple[float, ...] | None:
    """OlympiadBench: nothing, 1e-1, or "1e-1,1e-2" for the elements of a list."""
    if value is None:
        return None
    try:
        parts = [float(part) for part in (value.split(",") if isinstance(value, str) else [float(value)])]
    except (TypeError, ValueError, OverflowError):
        parts = []
    if not parts or isinstance(value, bool) or not all(0 <= part < math.inf for part in parts):
        raise ValueError(f"no mathematics problem: field 'error': expected a tolerance, got {_short(value)}")
    return parts[0] if len(parts) == 1 else tuple(parts)


def _short(value: Any) -> str:
    return f"{type(value).__name__} {repr(value)[:80] if isinstance(value, str | float | bool) else ''}".strip()


def load_problems(source: str, split: str = "train", config: str | None = None) -> tuple[Problem, ...]:
    """The problems of a `.jsonl` or `.json` file or of a hub id, read once a process. Raises as `data.read_rows`."""
    return _load(str(source), split, config)


@lru_cache(maxsize=8)
def _load(source: str, split: str, config: str | None) -> tuple[Problem, ...]:
    problems = []
    for number, row in enumerate(datasets.read_rows(source, split=split, config=config), start=1):
        try:
            problems.append(read_problem(row))
        except ValueError as error:
            raise ValueError(f"data {source!r}, row {number}: {error}") from None
    return tuple(problems)


# ---------------------------------------------------------------------------------------------------------- environment

_BOXED = r"Put your final answer in \boxed{}."
_ROLES = {
    "reasoner": f"You are the reasoner of a team that solves mathematics problems. Reason step by step. {_BOXED}",
    "tool_user": (
        "You are the tool user of a team that solves mathematics problems. Write one Python program that computes the "
        "answer and prints it, in a block that starts with ```python and ends with ```. The program is run without "
        "input. What it prints is your answer, whatever else you write: the last \\boxed{} in its output, or else the "
        "last line of its output. A printed Python list counts as its elements."
    ),
    "judge": f"You are the judge of a team that solves mathematics problems. Check its answers, then decide. {_BOXED}",
}


def _agents(workflow: str, reasoners: int, tool_users: int) -> tuple[str, ...]:
    if workflow == "ensemble":
        if reasoners < 0 or tool_users < 0 or reasoners + tool_users < 1:
            raise ValueError(f"reasoners={reasoners}, tool_users={tool_users}: give the judge a team")
        members = [f"reasoner_{n + 1}" for n in range(reasoners)] + [f"tool_user_{n + 1}" for n in range(tool_users)]
        return (*members, "judge")
    workflows = {"mas": ("reasoner", "tool_user"), "single": ("reasoner",)}
    if workflow not in workflows:
        raise ValueError(f"workflow={workflow!r}: mathematics has mas, single or ensemble")
    return workflows[workflow]


class MathEnv(Env):
    """One problem, solved by a team (workflows: see the top of this file).

    Rewards, all in [0, 1]. Team: 1 if the agent's answer is right, as if it were the team's answer. Local (ours,
    because a weak policy is hardly ever right, and groups without a spread teach nothing): reasoner and judge .2 for a
    readable answer + .8 if right; tool user .1 for a program that parses + .1 if it runs without error and prints
    something + .8 if right. InfraError when the program or the comparison could not run for reasons of ours; the state
    is then unchanged.

    Options: `data`, a file or hub id (with `split` and `config`), or `problems`, a sequence of `Problem` or of rows as
    in a file; `timeout`, seconds for a tool user's program; `reasoners` and `tool_users`, how many of each an ensemble
    has. `reset(seed)` starts problem number `seed % len(problems)` of a fixed permutation, so that
    consecutive seeds go through the whole set.
    """

    def __init__(
        self,
        workflow: str = "mas",
        data: str | None = None,
        problems: Sequence[Problem | dict[str, Any]] | None = None,
        split: str = "train",
        config: str | None = None,
        timeout: float = 10.0,
        reasoners: int = 2,
        tool_users: int = 1,
    ):
        if (data is None) == (problems is None):
            raise ValueError("math: give data= (a .jsonl file or a hub id) or problems=, and not both")
        if timeout <= 0:
            raise ValueError(f"timeout={timeout}: it must be positive")
        self.agents = _agents(workflow, reasoners, tool_users)
        self.simultaneous = workflow == "mas"
        self.slow_scoring = True
        self.problems: tuple[Problem, ...]
        if data is not None:
            self.problems = load_problems(data, split, config)
        else:
            self.problems = tuple(p if isinstance(p, Problem) else read_problem(p) for p in problems or ())
        if not self.problems:
            raise ValueError("problems=[]: at least one problem is needed")
        self.order = datasets.fixed_order(len(self.problems))
        self.timeout = timeout
        self._start(self.problems[self.order[0]])

    def _start(self, problem: Problem) -> None:
        # All state is immutable values, replaced and never changed in place: then a shallow copy is a copy.
        self.problem = problem
        self.done = self.solved = False
        nothing = ("",) * len(self.agents)  # tuples of this class are in the order of the agents
        self.answers: tuple[str | None, ...] = (None,) * len(self.agents)  # of this turn
        self.work = nothing  # of this turn: reasoning, or program and output, as others see it
        self.previous: tuple[tuple[str | None, ...], tuple[str, ...]] | None = None  # answers and work, a turn ago
        self.failures = nothing  # what went wrong with an agent's last response

    def reset(self, seed: int) -> MathEnv:
        self._start(self.problems[self.order[seed % len(self.order)]])
        return self

    def copy(self) -> MathEnv:
        return copy.copy(self)

    @property
    def stages(self) -> Sequence[tuple[str, ...]]:
        """The judge of an ensemble reads the answers of the turn, so it is asked after all others."""
        return [self.agents[:-1], self.agents[-1:]] if self.agents[-1] == "judge" else super().stages

    def observe(self, agent: str) -> list[Message]:
        me = self._index(agent)
        role = agent.rstrip("_0123456789")
        parts = [self.problem.question]
        if self.previous is not None:
            parts.append("The previous turn:\n\n" + self._shown(*self.previous, range(len(self.agents))))
            if self.failures[me]:
                parts.append(f"Your last response failed: {self.failures[me]}")
        if role == "judge":
            parts.append("This turn:\n\n" + self._shown(self.answers, self.work, range(me)))
        elif self.previous is not None:
            parts.append("All of this may be wrong. Check it and answer again.")
        return [{"role": "system", "content": _ROLES[role]}, {"role": "user", "content": "\n\n".join(parts)}]

    def step(self, agent: str, text: str) -> Reward:
        me = self._index(agent)
        if self.done:
            return Reward(0.0, 0.0, {"format": 0.0})
        if agent.startswith("tool_user"):
            answer, work, failure, info = self._run(text)
            local = 0.1 * info["format"] + 0.1 * info["executes"]
        else:
            answer, work = extract_answer(text), shorten(visible_text(text), WORK_SHOWN)
            failure = "" if answer else r"it had no answer in \boxed{}."
            info = {"format": float(answer is not None)}
            local = 0.2 * info["format"]
        gold, tolerance = self.problem.answer, self.problem.tolerance
        right = answer is not None and math_equal(gold=gold, answer=answer, tolerance=tolerance)
        answers, works = _replaced(self.answers, me, answer), _replaced(self.work, me, work)
        last = me == len(self.agents) - 1
        agreed = last and self._agreed(answers)

        # Everything that can fail is behind us: change the state.
        self.answers, self.work, self.failures = answers, works, _replaced(self.failures, me, failure)
        if agent in ("reasoner", "judge"):
            self.solved = right
        if last:
            self.done = agreed
            self.previous = answers, works
            self.answers, self.work = (None,) * len(self.agents), ("",) * len(self.agents)
        return Reward(float(right), local + 0.8 * right, info | {"right": float(right)})

    def _run(self, text: str) -> tuple[str | None, str, str, dict[str, float]]:
        """A tool user's response: (answer, program and output for the others, what failed, parts of the reward)."""
        code = sandbox.extract_code(text)
        if code is None:
            failure = "it had no complete ```python block that parses."
            return None, shorten(visible_text(text), WORK_SHOWN), failure, {"format": 0.0, "executes": 0.0}
        result = sandbox.run_program(code, stdin="", timeout=self.timeout)
        if result.status == "infra":
            raise InfraError(f"the sandbox could not run the tool user's program: {result.stderr[-SHOWN:]}")
        program = f"```python\n{shorten(code.strip(), WORK_SHOWN)}\n```"
        printed = result.stdout.strip()
        if result.status != "ok" or not printed:
            error = shorten(result.stderr.strip(), SHOWN)
            failure = "the program printed nothing." if result.status == "ok" else f"{result.status}. {error}"
            return None, f"{program}\nIt failed.", failure, {"format": 1.0, "executes": 0.0}
        answer = extract_answer(result.stdout) or _without_brackets(printed.rpartition("\n")[2].strip())
        work = f"{program}\nIt printed:\n{shorten(printed, SHOWN)}"
        return answer, work, "", {"format": 1.0, "executes": 1.0}

    def _agreed(self, answers: tuple[str | None, ...]) -> bool:
        """Did all give the same answer? An agent alone must repeat its previous one."""
        if len(answers) == 1:
            answers = (*answers, *(self.previous[0] if self.previous else (None,)))
        first, *rest = answers
        # Both ways round: equality with a gold is not symmetric.
        return first is not None and all(
            answer is not None and math_equal(gold=first, answer=answer) and math_equal(gold=answer, answer=first)
            for answer in rest
        )

    def _shown(self, answers: tuple[str | None, ...], work: tuple[str, ...], members: Sequence[int]) -> str:
        """Each agent's answer, and below it how the agent found it."""
        shown = ((self.agents[i], answers[i], work[i]) for i in members)
        return "\n\n".join(
            f"{agent}: {'no answer' if answer is None else answer[:SHOWN]}\n{text}".strip()
            for agent, answer, text in shown
        )

    def _index(self, agent: str) -> int:
        if agent not in self.agents:
            raise ValueError(f"unknown agent {agent!r}: this environment has {', '.join(self.agents)}")
        return self.agents.index(agent)


def _replaced(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _without_brackets(line: str) -> str:
    """A printed Python list as its elements, 1, 2: [1, 2] in LaTeX is an interval."""
    one_list = len(line) > 2 and line[0] == "[" and line[-1] == "]" and not split(line[1:-1], r"\]")[1]
    return line[1:-1].strip() if one_list else line
