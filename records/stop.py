"""Ctrl-C and SIGTERM: a step that has begun is finished, anything else ends where it is. A second one ends at once."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any


class Stopped(BaseException):
    """Somebody wants the program to end; `number` is the signal."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


class Stop:
    """As a context: what these two signals do. `patient`: they are only noted down in `number`, else raise Stopped."""

    def __init__(self) -> None:
        self.number, self.patient, self.came = 0, False, 0.0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        self.before = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            if "TORCHELASTIC_RUN_ID" in os.environ and time.monotonic() - self.came < 1:
                return  # the terminal sent one Ctrl-C to everybody, and torchrun passes it on
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.number, self.came = number, time.monotonic()
        if not self.patient:
            raise Stopped(number)
        if speaks():
            os.write(2, b"\nstopping: this step is finished and saved first; once more ends at once\n")


def speaks() -> bool:
    """Whether this process is the one that prints, known before it has joined the others."""
    return os.environ.get("RANK", "0") == "0"


def how_to_go_on(argv: Sequence[str] | None, folder: str) -> str:
    """The last line of a run that was stopped: the whole command that goes on with it."""
    script = sys.argv[0] if sys.argv[0].endswith("train.py") else "train.py"
    words = list(sys.argv[1:] if argv is None else argv)
    if folder and not any(word.split("=")[0] == "--output-dir" for word in words):
        words += ["--output-dir", folder]
    begun = folder != "" and (Path(folder) / "config.json").is_file()
    if begun and "--resume" not in words:
        words.append("--resume")
    command = shlex.join([*launcher(), script, *words])
    return f"stopped; to go on: {command}" if begun else f"stopped before the first step; to start again: {command}"


def launcher() -> list[str]:
    """`python`, or torchrun with as many processes as there are."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ["python"]
    here, everywhere = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    nodes = ["--nnodes", str(everywhere // here)] if everywhere > here else []  # and the rendezvous of the cluster
    return ["torchrun", *nodes, "--nproc-per-node", str(here)]
