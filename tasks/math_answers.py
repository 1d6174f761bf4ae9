r"""Mathematical answers: finding one in a response, and scoring it against the right one.

    extract_answer("so it is \\boxed{\\frac12}")       -> "\\frac12"
    math_equal(gold="0.5", answer="\\frac12")         -> True
    score_answers(responses, golds)                   -> [1.0, 0.0, ...]

The rules of equality are in `math_equality.py`. What needs algebra runs in a few worker processes, because sympy can
work for hours on a short hostile text, and a limit by signal works in the main thread only. A worker interrupts itself
at the limit, and is killed when even that does not help.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import re
import select
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from envs import InfraError
from tasks.math_equality import MAX_LENGTH
from tasks.math_numbers import Tolerance, decide
from tasks.math_text import clean

QUICK, LIMIT = 0.4, 2.0  # seconds of work in the first try, and in the second one in the slow lane
PATIENCE = 4  # how much longer that may take by the clock, on a busy machine, before a worker is killed

# ---------------------------------------------------------------------------------------------------- finding an answer

_BOX = re.compile(r"\\{1,2}(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*([^\s{$][^\s$]*)")


def visible_text(text: str) -> str:
    """A response without the text inside <think>."""
    visible, thinking = [""], False
    for part in re.split(r"(</?think>)", text):
        if part == "</think>" and not thinking:  # the template had opened it
            visible.clear()
        elif not thinking and part != "<think>":
            visible.append(part)
        thinking = part == "<think>" or (thinking and part != "</think>")
    return " ".join(visible).strip()


def extract_answer(text: str) -> str | None:
    r"""The answer a response commits to: the last non-empty \boxed{} or \fbox{} (also `\boxed 6`); None without one.

    Text inside <think> is ignored. Without a box, a last line `#### 42` counts too (the GSM8K notation). Numbers in
    prose never do.
    """
    text = visible_text(text)
    found, position = None, -1
    opened: list[tuple[bool, int]] = []  # (is it a box, where its content starts) of every brace still open
    for token in _BOX.finditer(text):
        if token[0] == "}":
            box, start = opened.pop() if opened else (False, 0)
            if box and text[start : token.start()].strip():
                found, position = text[start : token.start()].strip(), start
        elif token[0].endswith("{") and token[0] != r"\{":
            opened.append((token[0] != "{", token.end()))
    for bare in _BARE_BOX.finditer(text, max(position, 0)):
        found = bare[1].rstrip(".,;:)")
    last_line = text[text.rfind("\n") + 1 :].strip()
    if found is None and last_line.startswith("####"):
        found = last_line.lstrip("#").strip()
    return found or None


# ------------------------------------------------------------------------------------------------- workers and the pool


class _Worker:
    def __init__(self) -> None:
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        start = f"import sys; sys.path.insert(0, {here!r}); from tasks import math_worker; math_worker.serve()"
        # Its own session: an interrupt from the keyboard is ours to handle. It ends when our end of the pipe closes.
        self.process = subprocess.Popen(
            [sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        if self._read(60) != b"ready\n":
            self.kill()
            raise InfraError(
                "a worker for symbolic mathematics did not start: is math-verify installed? See its error above"
            )

    def ask(self, gold: str, answer: str, tolerance: Tolerance, seconds: float) -> bool | None:
        """The verdict, or None when time was up. ConnectionError when the worker died on us."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([gold, answer, tolerance, seconds]).encode() + b"\n")
        self.process.stdin.flush()
        reply = self._read(PATIENCE * (seconds + 0.3))
        if reply is None:
            self.kill()
            return None
        if not reply.endswith(b"\n"):
            raise ConnectionError("worker died")
        return json.loads(reply)

    def _read(self, seconds: float) -> bytes | None:
        """One line, b"" at the end of the stream, None when time is up. (Replies are written whole.)"""
        assert self.process.stdout is not None
        poll = select.poll()
        poll.register(self.process.stdout, select.POLLIN)
        return self.process.stdout.readline() if poll.poll(seconds * 1000) else None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):  # an unsent request to a dead worker
                    pipe.close()


class _Pool:
    """A few workers, started when needed. Slow pairs may hold all of them but one: quick ones always get through."""

    def __init__(self, size: int) -> None:
        self.counts: Counter[str] = Counter()
        self.idle: queue.LifoQueue[_Worker | None] = (
            queue.LifoQueue()
        )  # last in first out: warm workers before new ones
        for _ in range(size):
            self.idle.put(None)
        self.slow_lane = threading.Semaphore(size - 1)

    def equal(self, gold: str, answer: str, tolerance: Tolerance) -> bool:
        """The workers' verdict; a timeout counts as different. InfraError when no worker survives the question."""
        self.counts["compared"] += 1
        verdict = self._ask(gold, answer, tolerance, QUICK)
        if verdict is None:
            with self.slow_lane:
                verdict = self._ask(gold, answer, tolerance, LIMIT)
        if verdict is None:
            self.counts["timeout"] += 1
        return bool(verdict)

    def _ask(self, gold: str, answer: str, tolerance: Tolerance, seconds: float) -> bool | None:
        worker = self.idle.get()
        try:
            for _ in range(2):  # a worker that somebody else killed (out of memory) deserves a second one
                if worker is None or worker.process.poll() is not None:
                    worker = None
                    worker = _Worker()
                try:
                    return worker.ask(gold, answer, tolerance, seconds)
                except OSError:  # ConnectionError, BrokenPipeError
                    worker.kill()
                except BaseException:  # interrupted: its late reply must not answer the next question
                    worker.kill()
                    raise
            raise InfraError(
                f"the worker for symbolic mathematics died twice comparing {gold[:80]!r} and {answer[:80]!r}"
            )
        except InfraError:
            self.counts["infra"] += 1
            raise
        finally:
            self.idle.put(worker)

    def close(self) -> None:
        while not self.idle.empty():
            worker = self.idle.get_nowait()
            if worker is not None:
                worker.kill()


SIZE = max(3, min(8, os.cpu_count() or 1))
_pool = _Pool(SIZE)
atexit.register(lambda: _pool.close())


def _forget_workers() -> None:
    global _pool  # a forked child must not talk through its parent's pipes
    _pool = _Pool(SIZE)


os.register_at_fork(after_in_child=_forget_workers)


# ------------------------------------------------------------------------------------------------------ the public part


@lru_cache(maxsize=4096)
def _equal(gold: str, answer: str, tolerance: Tolerance) -> bool:
    verdict = decide(gold, answer, tolerance)
    return _pool.equal(gold, answer, tolerance) if verdict is None else verdict


def math_equal(*, gold: str, answer: str, tolerance: float | Sequence[float] | None = None) -> bool:
    """Does the answer equal the gold? Both bare (`\\frac12`) or in a box. Keywords only: it is not symmetric.

    `tolerance`: how far a number may be from the gold's, if the problem says so; several are for a list's elements.

    Works in any thread. No text raises or takes more than about QUICK + LIMIT seconds of a worker; what cannot be read
    or decided in time is not equal. InfraError when the comparison itself could not run: no verdict on the answer.
    """
    if gold.strip() == answer.strip() or max(len(gold), len(answer)) > MAX_LENGTH:
        return gold.strip() == answer.strip() != ""
    tolerances = () if tolerance is None else (tolerance,) if isinstance(tolerance, int | float) else tuple(tolerance)
    return _equal(clean(extract_answer(gold) or gold), clean(extract_answer(answer) or answer), tolerances)


def score_answers(
    texts: Sequence[str], golds: Sequence[str], tolerance: Sequence[float | Sequence[float] | None] | None = None
) -> list[float]:
    """1.0 where the response commits to an answer equal to its gold, else 0.0. Parallel; raises as `math_equal`.

    `tolerance`: one for each gold, as in `math_equal`.
    """
    tolerances = [None] * len(golds) if tolerance is None else tolerance
    if not len(texts) == len(golds) == len(tolerances):
        raise ValueError(f"score_answers: {len(texts)} texts but {len(golds)} golds and {len(tolerances)} tolerances")

    def score(text: str, gold: str, tolerance: float | Sequence[float] | None) -> float:
        answer = extract_answer(text)
        return float(answer is not None and math_equal(gold=gold, answer=answer, tolerance=tolerance))

    with ThreadPoolExecutor(SIZE) as threads:
        return list(threads.map(score, texts, golds, tolerances))


def scorer_counts() -> dict[str, int]:
    """Comparisons that needed a worker so far, how many ran out of time (counted as wrong), how many could not run."""
    return {name: _pool.counts[name] for name in ("compared", "timeout", "infra")}
