r"""Mathematics: a reasoner thinks, a tool user computes, and in the larger team a judge decides.

| workflow | agents in order | the team's answer | ends when |
|---|---|---|---|
| `mas` | `reasoner`, `tool_user` (simultaneous) | the reasoner's | both gave the same answer |
| `single` | `reasoner` | the reasoner's | it gave the same answer as in its previous turn |
| `single`, `calls=2` | `reasoner_1`, `reasoner_2`, who sees the draft of the first | the last | both are the same |
| `tool` | `tool_user` | the tool user's | as `single` |
| `ensemble` | `reasoner_1`.., `tool_user_1`.., `judge` | the judge's | all of them gave the same answer |

Agreement only ends the episode; `solved` means that the team's answer equals the gold. Everybody sees what all did in
the previous turn, and its own failure; the judge and a second answer see the others of this turn too.
"""

import copy
import json
import os
import queue
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from envs import Env, InfraError, Message, Reward
from tasks import sandbox
from tasks.boards import check
from tasks.data import fixed_order, read_problems
from tasks.fences import extract_code, shorten, visible
from tasks.math_text import clean, extract_answer

SHOWN = 300  # characters of an answer, or of a program's output, that other prompts repeat
WORK_SHOWN = 1_000  # of the reasoning or the program
MAX_LENGTH = 300  # of an answer that is read as mathematics; a longer text equals only itself
LIMIT = 2  # seconds of a worker's CPU, after which an answer is not equal
WORKERS = max(2, min(8, os.cpu_count() or 1))


@dataclass(frozen=True)
class Question:
    question: str  # as shown
    answer: str  # the gold
    tolerance: float = 0.0  # see `math_equal`


def read_problem(row: dict[str, Any]) -> Question:
    """A row of any of the formats in docs/data.md; ValueError for others.

    The gold: all of a list, what follows `####` in a text, or the last box of a `solution`.
    """
    fields = {str(name).lower(): value for name, value in row.items() if value not in (None, "", [])}
    question = next((fields[name] for name in ("question", "problem", "prompt") if name in fields), None)
    told = next((name for name in ("final_answer", "answer", "solution") if name in fields), "")
    given: Any = fields.get(told)
    answers = given if isinstance(given, list) else [given]
    fits = {*map(type, answers)} <= {str, int, float} and len({str(name).lower() for name in row}) == len(row)
    gold = ", ".join(map(str, answers)) if fits else ""
    gold = (extract_answer(gold) or "") if told == "solution" else gold.rpartition("####")[2].strip()
    if not isinstance(question, str) or not question.strip() or gold in ("", "nan", "inf", "-inf"):
        raise ValueError(f"no question or no answer in its fields {', '.join(fields)}")
    errors = str(fields.get("error", 0)).split(",")  # OlympiadBench: 1e-1, or "1e-1,1e-2" for a list
    return Question(question.strip(), gold, min(map(float, errors)))


def load_problems(source: str, config: str | None = None) -> tuple[Question, ...]:
    """The questions of a data set. Raises as `data.read_problems`."""
    return tuple(read_problems(source, config, read_problem))


_BOXED = r"Put your final answer in \boxed{}."
_DUTIES = {
    "reasoner": f"Reason step by step. {_BOXED}",
    "tool_user": (
        "Write one Python program that computes the answer and prints it, in a block that starts with ```python and "
        "ends with ```. The program is run without input. What it prints is your answer, whatever else you write: "
        "the last \\boxed{} in its output, or else the last line of its output. A printed Python list counts as its "
        "elements."
    ),
    "judge": f"Check its answers, then decide. {_BOXED}",
}
_Said = tuple[str | None, str, str]  # by an agent: its answer, how others see its work, what it alone is told


class MathEnv(Env):
    """One question, answered by a team. Seed s is problem order[s % len(problems)].

    Team reward: 1 if the agent's answer is right, as if it were the team's. Local: reasoner and judge .2 for an answer
    in a box, .8 if it is right; tool user .1 for a program that parses, .1 if it ends well and prints an answer that
    can be read, .8 if that is right.

    Options: `data`, a file or hub id (with `config`), or `problems`, which may be rows as in a file; `timeout`, seconds
    for a program; `reasoners` and `tool_users`, how many an ensemble has; `calls`, answers a turn of a single agent, of
    which the last counts.
    """

    slow_scoring = True

    def __init__(
        self, workflow: str = "mas", data: str | None = None, problems: Sequence[Question | dict[str, Any]] = (),
        config: str | None = None, timeout: float = 10.0, reasoners: int = 2, tool_users: int = 1, calls: int = 1,
    ):  # fmt: skip
        team = [f"reasoner_{n + 1}" for n in range(reasoners)] + [f"tool_user_{n + 1}" for n in range(tool_users)]
        workflows = {
            "mas": ("reasoner", "tool_user"),
            "single": ("reasoner",) if calls == 1 else ("reasoner_1", "reasoner_2"),
            "tool": ("tool_user",),
            "ensemble": (*team, "judge"),
        }
        check("workflow", workflow, tuple(workflows))
        check("calls", calls, range(1, 3 if workflow == "single" else 2))
        check("reasoners", reasoners, range(0 if tool_users else 1, 100))  # a judge needs a team
        self.agents = workflows[workflow]
        self.simultaneous = workflow == "mas"
        self.runs_programs = "tool_user" in " ".join(self.agents)
        given = tuple(p if isinstance(p, Question) else read_problem(p) for p in problems)
        self.problems: Sequence[Question] = given if data is None else load_problems(data, config)
        if not self.problems:
            raise ValueError("math: give data= (a .jsonl file or a hub id) or problems=, at least one")
        self.order = fixed_order(len(self.problems))
        self.timeout = timeout
        self.reset(0)

    def reset(self, seed: int) -> Env:
        self.problem = self.problems[self.order[seed % len(self.order)]]
        self.done = self.solved = False
        self.turn = self.previous = dict[str, _Said]()  # what was said in this turn, and in the one before
        return self

    def copy(self) -> Env:
        return copy.copy(self)  # every attribute is replaced, none changed in place

    @property
    def stages(self) -> Sequence[tuple[str, ...]]:
        return [self.agents[:-1], self.agents[-1:]] if self.agents[-1] == "judge" else super().stages

    def observe(self, agent: str) -> list[Message]:
        role = self.check_agent(agent)
        parts = [self.problem.question]
        if self.previous:
            parts.append("The previous turn:\n\n" + _shown(self.previous))
            if failure := self.previous.get(agent, (None, "", ""))[2]:
                parts.append(f"Your last response failed: {failure}")
        last = len(self.agents) > 1 and agent == self.agents[-1] and not self.simultaneous
        if last:
            parts.append("This turn:\n\n" + _shown(self.turn))
        if role != "judge" and (last or self.previous):
            parts.append("All of this may be wrong. Check it and answer again.")
        task = f"You are the {role.replace('_', ' ')} of a team that solves mathematics problems. {_DUTIES[role]}"
        return [{"role": "system", "content": task}, {"role": "user", "content": "\n\n".join(parts)}]

    def step(self, agent: str, text: str) -> Reward:
        """InfraError, and nothing changed, when the program or the comparison could not run."""
        role = self.check_agent(agent)
        if self.done:
            return Reward(0.0, 0.0, {"format": 0.0})
        said, info = self._read(role, text)
        right = math_equal(gold=self.problem.answer, answer=said[0] or "", tolerance=self.problem.tolerance)
        turn, last = self.turn | {agent: said}, agent == self.agents[-1]
        agreed = last and self._agreed(turn)
        # What can fail is behind us: change the state.
        self.turn = turn
        if agent == self.agents[0 if self.simultaneous else -1]:
            self.solved = right  # it speaks for the team
        if last:
            self.done, self.previous, self.turn = agreed, turn, {}
        local = 0.2 * sum(info.values()) / len(info) + 0.8 * right  # a tool user's .2 are two halves
        return Reward(float(right), local, info | {"right": float(right)})

    def _read(self, role: str, text: str) -> tuple[_Said, dict[str, float]]:
        """What a response says, and its rewards for the form."""
        work = shorten(visible(text).strip(), WORK_SHOWN)  # a response as others see it
        if role != "tool_user":
            answer = extract_answer(text)
            failure = "" if answer else r"it had no answer in \boxed{}."
            return (answer, work, failure), {"format": float(answer is not None)}
        code = extract_code(text)
        if code is None:
            return (None, work, "it had no complete ```python block that parses."), {"format": 0.0, "executes": 0.0}
        result = sandbox.run_program(code, timeout=self.timeout)
        if result.status == "infra":
            raise InfraError(f"the sandbox could not run a program: {result.stderr[-SHOWN:]}")
        program, printed = f"```python\n{shorten(code.strip(), WORK_SHOWN)}\n```", result.stdout.strip()
        answer = _printed_answer(printed) if result.status == "ok" else None
        if answer is None:
            error = f"{result.status}. {shorten(result.stderr.strip(), SHOWN)}"
            failure = "the program printed no answer." if result.status == "ok" else error
            return (None, f"{program}\nIt failed.", failure), {"format": 1.0, "executes": 0.0}
        return (answer, f"{program}\nIt printed:\n{shorten(printed, SHOWN)}", ""), {"format": 1.0, "executes": 1.0}

    def _agreed(self, turn: dict[str, _Said]) -> bool:
        """Did all give the same answer? An agent alone must repeat its previous one."""
        before = self.previous if len(self.agents) == 1 else {}
        first, *rest = given = [answer or "" for answer, _, _ in (*turn.values(), *before.values())]
        # Both ways round: equality with a gold is not symmetric.
        return len(given) == max(2, len(self.agents)) and all(
            math_equal(gold=first, answer=answer) and math_equal(gold=answer, answer=first) for answer in rest
        )


def _shown(turn: dict[str, _Said]) -> str:
    return "\n\n".join(
        f"{agent}: {(answer or 'no answer')[:SHOWN]}\n{work}".strip() for agent, (answer, work, _) in turn.items()
    )


def _printed_answer(printed: str) -> str | None:
    """The last box, or else the last line; None if it cannot be an answer."""
    line = printed.rpartition("\n")[2].strip()
    if line[:1] == "[" and line.find("]") == len(line) - 1:  # a Python list: [1, 2] in LaTeX is an interval
        line = line[1:-1]
    answer = (extract_answer(printed) or line).strip()
    readable = len(answer) <= MAX_LENGTH and re.match(r"(?s)(?!(?:None|nan|-?inf)$|<[\w.-]+ |\\f?box).*[^\W_]", answer)
    return answer if readable else None


# `math_rules.py` runs in workers: sympy can take hours for a hostile text, and signals limit the main thread only.
_ROOT = str(Path(__file__).resolve().parents[1])
_PROGRAM = f"import sys; sys.path.insert(0, {_ROOT!r}); from tasks.math_rules import serve; serve({LIMIT})"
_idle = queue.LifoQueue[Any]()  # warm workers first
for _ in range(WORKERS):
    _idle.put(None)  # one that is still to be started


@lru_cache(4096)
def _ask(*question: object) -> bool:
    """The verdict of a worker. No, if it does not survive the question."""
    worker, reply = _idle.get(), ""
    try:
        if worker is None or worker.poll() is not None:
            # A session of its own: an interrupt from the keyboard is ours to handle.
            worker = Popen([sys.executable, "-c", _PROGRAM], stdin=PIPE, stdout=PIPE, text=True, start_new_session=True)
        print(json.dumps(question), file=worker.stdin, flush=True)
        reply = worker.stdout.readline()
    except OSError as error:
        raise InfraError(f"no worker for mathematics: {error}") from None
    finally:
        if worker is not None and not reply:  # also interrupted: a late reply would answer another question
            worker.kill()
            worker.wait()
        _idle.put(worker if reply else None)
    if not reply and worker.returncode > 0:  # not ended by a signal, as by its own alarm
        raise InfraError("a worker for mathematics ended with an error, see above (is sympy installed?)")
    return reply == "true\n"


def math_equal(*, gold: str, answer: str, tolerance: float = 0.0) -> bool:
    """Does the answer equal the gold? Both bare (`\\frac12`) or in a box. Keywords only: it is not symmetric.

    `tolerance`: how far a number may be from the gold's. Works in any thread. No text raises. What takes a worker more
    than LIMIT seconds is not equal. InfraError when no worker can be started.
    """
    gold, answer = ((extract_answer(text) or text).strip() for text in (gold, answer))
    if max(len(gold), len(answer)) > MAX_LENGTH:
        return gold.split() == answer.split()
    gold, answer = clean(gold), clean(answer)
    if gold == answer or not gold or not answer:
        return gold == answer != ""
    if gold.isdigit() and answer.isdigit():  # most answers: nothing to ask
        return int(gold) == int(answer)
    return _ask(gold, answer, tolerance)


def score_answers(texts: Sequence[str], golds: Sequence[str]) -> list[float]:
    """1.0 where a response commits to an answer equal to its gold, else 0.0. Raises as `math_equal`."""
    pairs = zip(map(extract_answer, texts), golds, strict=True)
    with ThreadPoolExecutor(WORKERS) as threads:
        return list(threads.map(lambda pair: float(math_equal(gold=pair[1], answer=pair[0] or "")), pairs))
