r"""Mathematics: a reasoner thinks, a tool user computes, and in the larger team a judge decides.

| workflow | agents in order | the team's answer | ends when |
|---|---|---|---|
| `mas` | `reasoner`, `tool_user` (simultaneous) | the reasoner's | both gave the same answer |
| `single` | `reasoner` | the reasoner's | it gave the same answer as in its previous turn |
| `single`, `calls=2` | `reasoner_1`, `reasoner_2`, who sees the draft of the first | the last | both are the same |
| `tool` | `tool_user` | the tool user's | as `single` |
| `ensemble` | `reasoner_1`.., `tool_user_1`.., `judge` | the judge's | all of them gave the same answer |

Agreement only ends the episode. It earns nothing, and `solved` means that the team's answer equals the gold. Running
out of turns does not end the task: the rollout counts turns.

Everybody sees what all did in the previous turn: a reasoner's reasoning, a tool user's program and what it printed, and
the answer read from it, shortened to WORK_SHOWN and SHOWN characters. A failure is shown only to its author. Within a
turn the judge sees the same from all others, and a second answer the draft; the others see nothing of each other.

How answers are found and compared: `math_equal.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from envs import Env, InfraError, Message, Reward
from tasks import data as datasets
from tasks import sandbox
from tasks.fences import extract_code, shorten, visible
from tasks.math_equal import MAX_LENGTH, extract_answer, math_equal, score_answers

__all__ = ["MathEnv", "Question", "extract_answer", "load_problems", "math_equal", "read_problem", "score_answers"]

SHOWN = 300  # characters of an answer, or of what a program printed, that other prompts repeat
WORK_SHOWN = 1_000  # characters of a response (its reasoning or program) that other prompts repeat

# ------------------------------------------------------------------------------------------------------------ questions


@dataclass(frozen=True)
class Question:
    """One task: the question as shown, its gold answer, and how far numbers may be from it (see `math_equal`)."""

    question: str
    answer: str
    tolerance: tuple[float, ...] = ()


def read_problem(row: dict[str, Any]) -> Question:
    """One row of a data set; its fields tell its format (docs/data.md). ValueError, naming the field, if none fits.

    The gold is all of a list, what follows `####` in a text, or the last box of a `solution`.
    """
    fields = {str(name).lower(): value for name, value in row.items() if value not in (None, "", [])}
    asked = next((name for name in ("question", "problem", "prompt") if name in fields), "question")
    told = next((name for name in ("final_answer", "answer", "solution") if name in fields), "answer")
    given: Any = fields.get(told)
    answers = given if isinstance(given, list) else [given]
    for field, values in ((asked, [fields.get(asked)]), (told, answers)):
        kinds = str if field == asked else str | int | float
        if not all(isinstance(value, kinds) and not isinstance(value, bool) and str(value).strip() for value in values):
            raise ValueError(
                f"no mathematics problem: field {field!r} is missing or no text (fields: {', '.join(fields)})"
            )
    gold = ", ".join(map(str, answers))
    gold = (extract_answer(gold) or "") if told == "solution" else gold.rpartition("####")[2].strip()
    if gold in ("", "nan", "inf", "-inf"):
        raise ValueError(f"no mathematics problem: field {told!r} has no answer")
    error = str(fields.get("error", ""))  # OlympiadBench: 1e-1, or "1e-1,1e-2" for the elements of a list
    return Question(fields[asked].strip(), gold, tuple(float(part) for part in error.split(",") if part))


@lru_cache(maxsize=8)
def load_problems(source: str, split: str = "train", config: str | None = None) -> tuple[Question, ...]:
    """The questions of a `.jsonl` or `.json` file or of a hub id, read once a process. Raises as `data.read_rows`."""
    questions = []
    for number, row in enumerate(datasets.read_rows(source, split=split, config=config), start=1):
        try:
            questions.append(read_problem(row))
        except ValueError as error:
            raise ValueError(f"data {source!r}, row {number}: {error}") from None
    return tuple(questions)


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


def _agents(workflow: str, reasoners: int, tool_users: int, calls: int) -> tuple[str, ...]:
    if type(calls) is not int or not 1 <= calls <= (2 if workflow == "single" else 1):
        raise ValueError(f"calls={calls}: 1, or 2 with --workflow single")
    if workflow == "ensemble":
        if reasoners < 0 or tool_users < 0 or reasoners + tool_users < 1:
            raise ValueError(f"reasoners={reasoners}, tool_users={tool_users}: give the judge a team")
        members = [f"reasoner_{n + 1}" for n in range(reasoners)] + [f"tool_user_{n + 1}" for n in range(tool_users)]
        return (*members, "judge")
    workflows = {"mas": ("reasoner", "tool_user"), "single": ("reasoner",), "tool": ("tool_user",)}
    if workflow not in workflows:
        raise ValueError(f"workflow={workflow!r}: mathematics has mas, single, tool or ensemble")
    return workflows[workflow] if calls == 1 else ("reasoner_1", "reasoner_2")


class MathEnv(Env):
    """One question, answered by a team.

    Rewards, all in [0, 1]. Team: 1 if the agent's answer is right, as if it were the team's. Local: reasoner and judge
    .2 for an answer in a box, .8 if it is right; tool user .1 for a program that parses, .1 if it ends well and prints
    an answer that can be read, .8 if that is right. InfraError when program or comparison could not run through no
    fault of the agent; the state is then unchanged.

    Options: `data`, a file or hub id (with `split` and `config`), or `problems`, a sequence of `Question` or of rows as
    in a file; `timeout`, seconds for a tool user's program; `reasoners` and `tool_users`, how many of each an ensemble
    has; `calls`, answers a turn of a single agent, of which the last counts. `reset(seed)` starts question number
    `seed % len(problems)` of a fixed permutation, so that consecutive seeds go through the whole set.
    """

    slow_scoring = True

    def __init__(
        self,
        workflow: str = "mas",
        data: str | None = None,
        problems: Sequence[Question | dict[str, Any]] | None = None,
        split: str = "train",
        config: str | None = None,
        timeout: float = 10.0,
        reasoners: int = 2,
        tool_users: int = 1,
        calls: int = 1,
    ):
        if (data is None) == (problems is None):
            raise ValueError("math: give data= (a .jsonl file or a hub id) or problems=, and not both")
        if timeout <= 0:
            raise ValueError(f"timeout={timeout}: it must be positive")
        self.agents = _agents(workflow, reasoners, tool_users, calls)
        self.simultaneous = workflow == "mas"
        self.runs_programs = any(agent.startswith("tool_user") for agent in self.agents)
        self.problems: tuple[Question, ...]
        if data is not None:
            self.problems = load_problems(data, split, config)
        else:
            self.problems = tuple(p if isinstance(p, Question) else read_problem(p) for p in problems or ())
        if not self.problems:
            raise ValueError("problems=[]: at least one problem is needed")
        self.order = datasets.fixed_order(len(self.problems))
        self.timeout = timeout
        self._start(self.problems[self.order[0]])

    def _start(self, problem: Question) -> None:
        # All state is replaced and never changed in place: then a shallow copy is a copy.
        self.problem = problem
        self.done = self.solved = False
        self.answers: dict[str, str | None] = {}  # of this turn, by agent
        self.work: dict[str, str] = {}  # of this turn: reasoning, or program and output, as others see it
        self.previous: tuple[dict[str, str | None], dict[str, str]] | None = None  # answers and work, a turn ago
        self.failures: dict[str, str] = {}  # what went wrong with an agent's last response

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
        self._check(agent)
        role = agent.rstrip("_0123456789")
        parts = [self.problem.question]
        if self.previous is not None:
            parts.append("The previous turn:\n\n" + self._shown(*self.previous))
            if self.failures.get(agent):
                parts.append(f"Your last response failed: {self.failures[agent]}")
        last = len(self.agents) > 1 and agent == self.agents[-1] and not self.simultaneous
        if last:
            parts.append("This turn:\n\n" + self._shown(self.answers, self.work))
        if role != "judge" and (last or self.previous is not None):
            parts.append("All of this may be wrong. Check it and answer again.")
        return [{"role": "system", "content": _ROLES[role]}, {"role": "user", "content": "\n\n".join(parts)}]

    def step(self, agent: str, text: str) -> Reward:
        self._check(agent)
        if self.done:
            return Reward(0.0, 0.0, {"format": 0.0})
        if agent.startswith("tool_user"):
            answer, work, failure, info = self._run(text)
            local = 0.1 * info["format"] + 0.1 * info["executes"]
        else:
            answer, work = extract_answer(text), shorten(visible(text).strip(), WORK_SHOWN)
            failure = "" if answer else r"it had no answer in \boxed{}."
            info = {"format": float(answer is not None)}
            local = 0.2 * info["format"]
        gold, tolerance = self.problem.answer, self.problem.tolerance
        right = answer is not None and math_equal(gold=gold, answer=answer, tolerance=tolerance)
        answers, works = self.answers | {agent: answer}, self.work | {agent: work}
        last = agent == self.agents[-1]
        agreed = last and self._agreed(answers)

        # Everything that can fail is behind us: change the state.
        self.answers, self.work, self.failures = answers, works, self.failures | {agent: failure}
        if agent == self.agents[0 if self.simultaneous else -1]:
            self.solved = right  # it speaks for the team
        if last:
            self.done, self.previous = agreed, (answers, works)
            self.answers, self.work = {}, {}
        return Reward(float(right), local + 0.8 * right, info | {"right": float(right)})

    def _run(self, text: str) -> tuple[str | None, str, str, dict[str, float]]:
        """A tool user's response: (answer, program and output for the others, what failed, parts of the reward)."""
        code = extract_code(text)
        if code is None:
            failure = "it had no complete ```python block that parses."
            return None, shorten(visible(text).strip(), WORK_SHOWN), failure, {"format": 0.0, "executes": 0.0}
        result = sandbox.run_program(code, stdin="", timeout=self.timeout)
        if result.status == "infra":
            raise InfraError(f"the sandbox could not run the tool user's program: {result.stderr[-SHOWN:]}")
        program = f"```python\n{shorten(code.strip(), WORK_SHOWN)}\n```"
        printed = result.stdout.strip()
        answer = _printed_answer(printed)
        if result.status != "ok" or answer is None:
            error = shorten(result.stderr.strip(), SHOWN)
            failure = "the program printed no answer." if result.status == "ok" else f"{result.status}. {error}"
            return None, f"{program}\nIt failed.", failure, {"format": 1.0, "executes": 0.0}
        return answer, f"{program}\nIt printed:\n{shorten(printed, SHOWN)}", "", {"format": 1.0, "executes": 1.0}

    def _agreed(self, answers: dict[str, str | None]) -> bool:
        """Did all give the same answer? An agent alone must repeat its previous one."""
        given = [answers.get(agent) for agent in self.agents]
        if len(given) == 1:
            given += self.previous[0].values() if self.previous else [None]
        first, *rest = given
        # Both ways round: equality with a gold is not symmetric.
        return first is not None and all(
            answer is not None and math_equal(gold=first, answer=answer) and math_equal(gold=answer, answer=first)
            for answer in rest
        )

    def _shown(self, answers: dict[str, str | None], work: dict[str, str]) -> str:
        """Each agent's answer, and below it how the agent found it."""
        shown = (
            (agent, (answers[agent] or "no answer")[:SHOWN], work[agent]) for agent in self.agents if agent in answers
        )
        return "\n\n".join(f"{agent}: {answer}\n{text}".strip() for agent, answer, text in shown)

    def _check(self, agent: str) -> None:
        if agent not in self.agents:
            raise ValueError(f"unknown agent {agent!r}: this environment has {', '.join(self.agents)}")


def _printed_answer(printed: str) -> str | None:
    """The last box in what a program printed, or else the last line; None if nobody could read it as an answer."""
    line = printed[printed.rfind("\n") + 1 :].strip()
    if line[:1] == "[" and line.find("]") == len(line) - 1:  # a Python list: [1, 2] in LaTeX is an interval
        line = line[1:-1]
    answer = (extract_answer(printed) or line).strip()
    readable = len(answer) <= MAX_LENGTH and answer != "None" and any(map(str.isalnum, answer))
    return answer if readable else None
