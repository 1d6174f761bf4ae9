r"""Mathematical answers: finding one in a response, and asking a worker whether it equals the right one.

    extract_answer("so it is \\boxed{\\frac12}")       -> "\\frac12"
    math_equal(gold="0.5", answer="\\frac12")         -> True
    score_answers(responses, golds)                   -> [1.0, 0.0, ...]

The rules of equality are in `math_rules.py`. They run in worker processes: sympy can work for hours on a short hostile
text, and a time limit by signal works in the main thread only.
"""

from __future__ import annotations

import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from envs import InfraError
from tasks.fences import visible
from tasks.math_text import clean

MAX_READ = 100_000  # characters at the end of a response in which an answer is sought
MAX_LENGTH = 300  # characters that are read as mathematics; a longer text equals only itself
LIMIT = 2  # seconds of a worker's CPU, after which an answer is not equal
PATIENCE = 30  # seconds by the clock for the same, on a busy machine
WORKERS = max(2, min(8, os.cpu_count() or 1))

# ---------------------------------------------------------------------------------------------------- finding an answer

_MARKS = re.compile(
    r"\\{1,2}(?:boxed|fbox)\s*\{"
    r"|\\(?:boxed|fbox)(?![a-zA-Z])\s*(?P<bare>[^\s{$][^\s$]*)"
    r"|(?:^|(?<=[}$.,;:!?]))[ \t]*(?P<comment>%)"  # not the percent sign of "5% of" or "5 % of"
    r"|\\.|[{}]",
    re.DOTALL | re.MULTILINE,
)
_BLANKS = re.compile(r"\s*")


def _after_blanks(text: str, at: int) -> int:
    blanks = _BLANKS.match(text, at)
    return blanks.end() if blanks else at


def extract_answer(text: str) -> str | None:
    r"""The answer a response commits to: the last non-empty \boxed{} or \fbox{} (also `\boxed 6`); None without one.

    Thoughts are ignored (`fences.visible`), and so is a box in a TeX comment. Without a box, a last line `#### 42`
    counts too (the GSM8K notation). Numbers in prose never do.
    """
    text = visible(text).strip()[-MAX_READ:]
    place, outside = (0, 0), (-1, -1)  # of the answer, and of the boxes around nothing else; texts would cost copies
    opened: list[tuple[int, int]] = []  # for every brace still open: where its box starts (or -1), and its content
    resume = 0
    for mark in _MARKS.finditer(text):
        if mark.start() < resume:
            continue
        if mark["bare"]:
            place = mark.start("bare"), mark.start("bare") + len(mark["bare"].rstrip(".,;:)"))
        elif mark["comment"]:
            resume = resume if opened else text.find("\n", mark.end()) % (len(text) + 1)
        elif mark[0] == "}":
            box, start = opened.pop() if opened else (-1, 0)
            first = _after_blanks(text, start)
            if box >= 0 and first < mark.start():
                if first != outside[0] or _after_blanks(text, outside[1]) != mark.start():
                    place = start, mark.start()
                outside = box, mark.end()
        elif mark[0].endswith("{") and mark[0] != r"\{":
            opened.append((-1 if mark[0] == "{" else mark.start(), mark.end()))
    answer = text[slice(*place)].strip()
    last_line = text[text.rfind("\n") + 1 :]
    if not answer and last_line.startswith("####"):
        answer = last_line.lstrip("#").strip()
    return answer or None


# ---------------------------------------------------------------------------------------------------------- the workers


class _Worker:
    """A process that answers questions, one line of JSON each, until its input closes."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parent.parent)
        program = f"import sys; sys.path.insert(0, {root!r}); from tasks.math_rules import serve; serve({LIMIT})"
        command, pipe = [sys.executable, "-c", program], subprocess.PIPE
        # A session of its own: an interrupt from the keyboard is ours to handle.
        try:
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
            ready = self.read(60) == b"ready\n"
        except OSError as error:
            raise InfraError(f"no worker for mathematics could be started: {error}") from None
        if not ready:
            self.process.kill()
            raise InfraError("a worker for mathematics did not start (is sympy installed?); see its error above")

    def read(self, seconds: float) -> bytes:
        """One line; b"" when the process has ended, or time is up."""
        assert self.process.stdout
        poll = select.poll()
        poll.register(self.process.stdout, select.POLLIN)
        return self.process.stdout.readline() if poll.poll(seconds * 1000) else b""

    def ask(self, *question: object) -> bool | None:
        """The verdict, or None if the process did not survive the question."""
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
            return json.loads(self.read(PATIENCE))
        except (OSError, ValueError):
            return None


_idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()  # last in, first out: warm workers before new ones


def _start_over() -> None:
    global _idle  # a forked child must not talk through its parent's pipes
    _idle = queue.LifoQueue()
    for _ in range(WORKERS):
        _idle.put(None)


_start_over()
os.register_at_fork(after_in_child=_start_over)


def _ask(*question: object) -> bool:
    """The verdict of a worker; no if the question takes one longer than it may, or ends two of them."""
    for _ in range(2):  # a worker that somebody else killed (out of memory) deserves a second one
        worker, verdict = _idle.get(), None
        try:
            if worker is None or worker.process.poll() is not None:
                worker = None
                worker = _Worker()
            verdict = worker.ask(*question)
        finally:
            if verdict is None and worker is not None:  # interrupted: a late reply must not answer another question
                worker.process.kill()
                worker.process.wait()
            _idle.put(None if verdict is None else worker)
        if verdict is not None or worker.process.returncode == -signal.SIGPROF:
            break
    return bool(verdict)


# ------------------------------------------------------------------------------------------------------ the public part


@lru_cache(maxsize=4096)
def _equal(gold: str, answer: str, tolerance: tuple[float, ...]) -> bool:
    if gold == answer or not gold or not answer:
        return gold == answer != ""
    if gold.isdigit() and answer.isdigit():  # most answers: nothing to ask
        return int(gold) == int(answer)
    return _ask(gold, answer, tolerance)


def math_equal(*, gold: str, answer: str, tolerance: float | Sequence[float] | None = None) -> bool:
    """Does the answer equal the gold? Both bare (`\\frac12`) or in a box. Keywords only: it is not symmetric.

    `tolerance`: how far a number may be from the gold's, if the problem says so; several are for a list's elements.

    Works in any thread. No text raises, or takes more than LIMIT seconds of a worker; what cannot be read or decided in
    time is not equal. InfraError when no worker can be started: that is no verdict on the answer.
    """
    gold, answer = ((extract_answer(text) or text).strip() for text in (gold, answer))
    if max(len(gold), len(answer)) > MAX_LENGTH:
        return gold.split() == answer.split()
    tolerances = (tolerance,) if isinstance(tolerance, int | float) else tuple(tolerance or ())
    return _equal(clean(gold), clean(answer), tolerances)


def score_answers(texts: Sequence[str], golds: Sequence[str]) -> list[float]:
    """1.0 where the response commits to an answer equal to its gold, else 0.0. Parallel; raises as `math_equal`."""
    if len(texts) != len(golds):
        raise ValueError(f"score_answers: {len(texts)} texts but {len(golds)} golds")

    def score(text: str, gold: str) -> float:
        answer = extract_answer(text)
        return float(answer is not None and math_equal(gold=gold, answer=answer))

    with ThreadPoolExecutor(WORKERS) as threads:
        return list(threads.map(score, texts, golds))
