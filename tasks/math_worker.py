"""A worker process for symbolic mathematics: compares answers it reads from standard input, within a time limit.

`math_answers.py` starts it and kills it. It imports nothing else of ours but the rules, so that it starts fast.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from typing import Any

from tasks.math_equality import same

MEMORY = 4 << 30  # bytes of address space; a huge power ends in MemoryError


class _TimeUp(BaseException):
    """Raised by the alarm inside a worker; no Exception, so that no `except Exception` of a library swallows it."""


def serve() -> None:
    """A worker: one JSON line [gold, answer, tolerance, seconds] in, one line true, false or null (time up) out."""

    def time_up(*_: Any) -> None:
        raise _TimeUp

    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library that prints must not break the protocol
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, time_up)
    same(r"\frac{x+1}{2}+\sqrt{2}", r"\frac{1+x}{2}")  # builds the parser's tables
    print("ready", file=replies)
    for line in sys.stdin:
        gold, answer, tolerance, seconds = json.loads(line)
        try:
            signal.setitimer(signal.ITIMER_PROF, seconds)  # of work: a busy machine must not turn right into wrong
            verdict = same(gold, answer, tuple(tolerance))
        except _TimeUp:
            verdict = None
        except Exception:  # whatever parser and algebra raise on malformed text means: not equal to the gold
            verdict = False
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), file=replies)
