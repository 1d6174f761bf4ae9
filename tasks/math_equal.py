r"""Mathematical answers: finding one in a response, and asking a worker whether it equals the right one.

The rules of equality are in `math_rules.py`. They run in worker processes: sympy can work for hours on a short hostile
text, and a time limit by signal works in the main thread only.
"""

import json
import os
import queue
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from envs import InfraError
from tasks.fences import visible
from tasks.math_text import clean

MAX_READ = 100_000  # characters at the end of a response in which an answer is sought
MAX_LENGTH = 300  # characters that are read as mathematics; a longer text equals only itself
LIMIT = 2  # seconds of a worker's CPU, after which an answer is not equal
WORKERS = max(2, min(8, os.cpu_count() or 1))

_MARKS = re.compile(  # braces take the blanks behind them, so that a box of blanks alone is seen to be empty
    r"(?P<box>\\{1,2}(?:boxed|fbox)\s*)?(?P<brace>\{)\s*"
    r"|\\(?:boxed|fbox)(?![a-zA-Z])\s*(?P<bare>[^\s{$][^\s$]*)"
    r"|\}\s*(?P<comment>%)?"
    r"|(?:^|(?<=[$.,;:!?]))[ \t]*(?P<remark>%)"  # not the percent sign of "5% of" or "5 % of"
    r"|\\.",
    re.DOTALL | re.MULTILINE,
)


def extract_answer(text: str) -> str | None:
    r"""The answer a response commits to: the last non-empty \boxed{} or \fbox{} (also `\boxed 6`); None without one.

    Thoughts are ignored (`fences.visible`), and so is a box in a TeX comment. Without a box, a last line `#### 42`
    counts too (the GSM8K notation). Numbers in prose never do.
    """
    text = visible(text).strip()[-MAX_READ:]
    place, outside = (0, 0), (-1, -1)  # of the answer, and of the box around nothing but it; texts would cost copies
    opened: list[tuple[int, int]] = []  # for every brace still open: where its box starts (or -1), and its content
    at = 0
    while mark := _MARKS.search(text, at):
        at = mark.end()
        if mark["bare"]:
            place = mark.start("bare"), mark.start("bare") + len(mark["bare"].rstrip(".,;:)"))
        elif mark["brace"]:
            opened.append((mark.start() if mark["box"] else -1, at))
        elif mark[0][0] == "}" and opened:
            box, start = opened.pop()
            if box >= 0 and start < mark.start():
                place = place if outside == (start, mark.start()) else (start, mark.start())
                outside = box, mark.end()
        if (mark["comment"] or mark["remark"]) and not opened:
            at = text.find("\n", at) % (len(text) + 1)
    answer = text[slice(*place)].strip()
    last_line = text[text.rfind("\n") + 1 :]
    if not answer and last_line.startswith("####"):
        answer = last_line.lstrip("#").strip()
    return answer or None


_ROOT = str(Path(__file__).resolve().parent.parent)
_PROGRAM = f"import sys; sys.path.insert(0, {_ROOT!r}); from tasks.math_rules import serve; serve({LIMIT})"
_idle: queue.LifoQueue[Any] = queue.LifoQueue()  # workers; last in, first out: warm ones first
for _ in range(WORKERS):
    _idle.put(None)  # one that is still to be started


@lru_cache(maxsize=4096)
def _ask(*question: object) -> bool:
    """The verdict of a worker, to which a question is a line of JSON. No, if it does not survive the question."""
    worker, reply = _idle.get(), b""
    try:
        if worker is None or worker.poll() is not None:
            # A session of its own: an interrupt from the keyboard is ours to handle.
            pipe, command = subprocess.PIPE, [sys.executable, "-c", _PROGRAM]
            worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        worker.stdin.write(json.dumps(question).encode() + b"\n")
        worker.stdin.flush()
        reply = worker.stdout.readline()
    except OSError as error:
        raise InfraError(f"no worker for mathematics: {error}") from None
    finally:
        if worker is not None and not reply:  # also interrupted: a late reply must not answer another question
            worker.kill()
            worker.wait()
        _idle.put(worker if reply else None)
    if not reply and worker.returncode > 0:  # not ended by a signal, as by its own alarm
        raise InfraError("a worker for mathematics ended with an error (is sympy installed?); see its error above")
    return reply == b"true\n"


def math_equal(*, gold: str, answer: str, tolerance: float = 0.0) -> bool:
    """Does the answer equal the gold? Both bare (`\\frac12`) or in a box. Keywords only: it is not symmetric.

    `tolerance`: how far a number may be from the gold's. Works in any thread. No text raises, or takes more than LIMIT
    seconds of a worker; what cannot be read or decided in time is not equal. InfraError when no worker can be started:
    that is no verdict on the answer.
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
    """1.0 where the response commits to an answer equal to its gold, else 0.0. Parallel; raises as `math_equal`."""

    def score(pair: tuple[str, str]) -> float:
        answer = extract_answer(pair[0])
        return float(answer is not None and math_equal(gold=pair[1], answer=answer))

    with ThreadPoolExecutor(WORKERS) as threads:
        return list(threads.map(score, zip(texts, golds, strict=True)))
