r"""Mathematics: a reasoner thinks, a tool user computes, and in the larger team a judge decides.

| workflow | agents in order | the team's answer | ends, at the latest after `max_turns`, when |
|---|---|---|---|
| `mas` | `reasoner`, `tool_user` (simultaneous) | the reasoner's | both gave the same answer |
| `single` | `reasoner` | the reasoner's | it gave the same answer as in its previous turn |
| `ensemble` | `reasoner_1`.., `tool_user_1`.., `judge` | the judge's | all of them gave the same answer |

Agreement only ends the episode. It earns nothing, and `solved` means that the team's answer equals the gold.

Everybody sees the answers of the previous turn. Within a turn the judge sees the answers of all others, the others see
nothing of each other (the judge is why `ensemble` is not `simultaneous` as a whole).

How answers are read and compared: `math_answers.py`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from envs import InfraError, Message, Reward
from tasks import data as datasets
from tasks import sandbox
from tasks.math_answers import extract_answer, math_equal, score_answers, scorer_counts

__all__ = ["MathEnv", "Problem", "extract_answer", "load_problems", "math_equal", "score_answers", "scorer_counts"]

SHOWN = 300  # characters of an answer, or of an error, that other prompts repeat

# ------------------------------------------------------------------------------------------------------------- problems


@dataclass(frozen=True)
class Problem:
    """One task: the question as shown, and its gold answer."""

    question: str
    answer: str


# The last sentence of many benchmark files tells how to answer; our prompts say that themselves.
_INSTRUCTION = re.compile(r"(?:(?<=[.?!:$\n])|^)[^.?!\n]*\\boxed\s*\{\s*\}[^\n]*\s*\Z")


def read_problem(row: dict[str, Any]) -> Problem:
    """One row of a data set, its format told by its fields. ValueError, naming the fields, when none fits.

    | data | question | answer |
    |---|---|---|
    | GSM8K | `question` | the number after `####` in `answer` |
    | AIME, MATH-500, DeepScaleR, Polaris | `problem` | `answer` (text or number) |
    | OlympiadBench | `question` or `problem` | `final_answer` (a list) or `answer` |
    | MATH | `problem` | the box in `solution` |
    | plain | `question`, `problem` or `prompt` | `answer` |
    """
    fields = {name.lower(): value for name, value in row.items()}
    question = next((fields[name] for name in ("question", "problem", "prompt") if fields.get(name)), None)
    answer = next((fields[name] for name in ("final_answer", "answer") if fields.get(name) not in (None, "", [])), None)
    if answer is None and isinstance(fields.get("solution"), str):
        answer = extract_answer(fields["solution"])
    if isinstance(answer, list):
        answer = ", ".join(map(str, answer))
    readable = isinstance(answer, str | int | float) and not isinstance(answer, bool) and answer == answer  # not NaN
    if not readable or not isinstance(question, str):
        raise ValueError(
            f"no mathematics problem: expected a text `question` or `problem`, and `answer` or `final_answer` (or a "
            f"`solution` with a box); got the fields {', '.join(row) or 'none'}"
        )
    gold = str(answer).rpartition("####")[2].strip()
    if not gold:
        raise ValueError(f"empty answer of the problem {question[:80]!r}")
    return Problem(_INSTRUCTION.sub("", question.strip()).strip() or question.strip(), gold)


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
        "answer, in a block that starts with ```python and ends with ```. The program is run without input, and your "
        r"answer is what it prints: the last \boxed{} in its output, or else the last line."
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


class MathEnv:
    """One problem, solved by a team (workflows: see the top of this file).

    Rewards, all in [0, 1]. Team: 1 if the agent's answer is right, as if it were the team's answer. Local (paper,
    appendix): reasoner and judge .2 for a readable answer + .8 if right; tool user .1 for a program that parses + .1 if
    it runs without error and prints something + .8 if right. InfraError when the program or the comparison could not
    run for reasons of ours; the state is then unchanged.

    Options: `data`, a file or hub id (with `split` and `config`), or `problems`, a sequence of `Problem` or of rows as
    in a file; `max_turns`; `timeout`, seconds for a tool user's program; `reasoners` and `tool_users`, how many of each
    an ensemble has. `reset(seed)` starts problem number `seed % len(problems)` of a fixed permutation, so that
    consecutive seeds go through the whole set.
    """

    def __init__(
        self,
        workflow: str = "mas",
        data: str | None = None,
        problems: Sequence[Problem | dict[str, Any]] | None = None,
        split: str = "train",
        config: str | None = None,
        max_turns: int = 4,
        timeout: float = 10.0,
        reasoners: int = 2,
        tool_users: int = 1,
    ):
        if (data is None) == (problems is None):
            raise ValueError("math: give data= (a .jsonl file or a hub id) or problems=, and not both")
        if max_turns < 1 or timeout <= 0:
            raise ValueError(f"max_turns={max_turns}, timeout={timeout}: both must be positive")
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
        self.max_turns, self.timeout = max_turns, timeout
        self._start(self.problems[self.order[0]])

    def _start(self, problem: Problem) -> None:
        # All state is immutable values, replaced and never changed in place: then a shallow copy is a copy.
        self.problem = problem
        self.turn = 0
        self.done = self.solved = False
        self.answers: tuple[str | None, ...] = (None,) * len(self.agents)  # of this turn, in the order of the agents
        self.previous: tuple[str | None, ...] | None = None  # of the turn before
        self.failures: tuple[str, ...] = ("",) * len(self.agents)  # what went wrong with an agent's last response

    def reset(self, seed: int) -> MathEnv:
        self._start(self.problems[self.order[seed % len(self.order)]])
        return self

    def copy(self) -> MathEnv:
        return copy.copy(self)

    def observe(self, agent: str) -> list[Message]:
        me = self._index(agent)
        role = agent.rstrip("_0123456789")
        parts = [self.problem.question]
        if self.previous is not None:
            parts.append("Answers of the previous turn:\n" + self._table(self.previous, range(len(self.agents))))
            if self.failures[me]:
                parts.append(f"Your last response failed: {self.failures[me]}")
        if role == "judge":
            parts.append("Answers of this turn:\n" + self._table(self.answers, range(me)))
        elif self.previous is not None:
            parts.append("They may be wrong. Check them and answer again.")
        return [{"role": "system", "content": _ROLES[role]}, {"role": "user", "content": "\n\n".join(parts)}]

    def step(self, agent: str, text: str) -> Reward:
        me = self._index(agent)
        if self.done:
            return Reward(0.0, 0.0, {"format": 0.0})
        if agent.startswith("tool_user"):
            answer, failure, info = self._run(text)
            local = 0.1 * info["format"] + 0.1 * info["executes"]
        else:
            answer = extract_answer(text)
            failure = "" if answer else r"it had no answer in \boxed{}."
            info = {"format": float(answer is not None)}
            local = 0.2 * info["format"]
        right = answer is not None and math_equal(gold=self.problem.answer, answer=answer)
        answers = _replaced(self.answers, me, answer)
        last = me == len(self.agents) - 1
        ended = last and (self.turn + 1 >= self.max_turns or self._agreed(answers))

        # Everything that can fail is behind us: change the state.
        self.answers, self.failures = answers, _replaced(self.failures, me, failure)
        if agent in ("reasoner", "judge"):
            self.solved = right
        if last:
            self.turn, self.done = self.turn + 1, ended
            self.previous, self.answers = answers, (None,) * len(self.agents)
        return Reward(float(right), local + 0.8 * right, info | {"right": float(right)})

    def _run(self, text: str) -> tuple[str | None, str, dict[str, float]]:
        """A tool user's response: (answer, what failed, parts of the reward)."""
        code = sandbox.extract_code(text)
        if code is None:
            return None, "it had no complete ```python block that parses.", {"format": 0.0, "executes": 0.0}
        result = sandbox.run_program(code, stdin="", timeout=self.timeout)
        if result.status == "infra":
            raise InfraError(f"the sandbox could not run the tool user's program: {result.stderr[-SHOWN:]}")
        lines = result.stdout.split()  # anything but white space printed?
        if result.status != "ok" or not lines:
            error = result.stderr.strip()[-SHOWN:]
            failure = "the program printed nothing." if result.status == "ok" else f"{result.status}. {error}"
            return None, failure, {"format": 1.0, "executes": 0.0}
        answer = extract_answer(result.stdout) or result.stdout.strip().rpartition("\n")[2].strip()
        return answer, "", {"format": 1.0, "executes": 1.0}

    def _agreed(self, answers: tuple[str | None, ...]) -> bool:
        """Did all give the same answer? An agent alone must repeat its previous one."""
        if len(answers) == 1:
            answers = (*answers, *(self.previous or (None,)))
        first, *rest = answers
        # Both ways round: equality with a gold is not symmetric.
        return first is not None and all(
            answer is not None and math_equal(gold=first, answer=answer) and math_equal(gold=answer, answer=first)
            for answer in rest
        )

    def _table(self, answers: tuple[str | None, ...], members: Sequence[int]) -> str:
        shown = ((self.agents[i], answers[i]) for i in members)
        return "\n".join(f"{agent}: {'no answer' if answer is None else answer[:SHOWN]}" for agent, answer in shown)

    def _index(self, agent: str) -> int:
        if agent not in self.agents:
            raise ValueError(f"unknown agent {agent!r}: this environment has {', '.join(self.agents)}")
        return self.agents.index(agent)


def _replaced(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])
