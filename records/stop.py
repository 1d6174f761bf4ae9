"""Ctrl-C and SIGTERM: a step that has begun is finished, anything else ends where it is. A second one ends at once."""

from __future__ import annotations

import os
import shlex
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

from options import Config
from tasks.registry import TASKS


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


def how_to_go_on(config: Config) -> str:
    """The last line of a run that was stopped: the command that goes on with it."""
    own = f" --task {shlex.quote(config.task)}" if config.task not in TASKS else ""
    if (Path(config.output_dir) / "config.json").is_file():
        return f"stopped; to go on: python train.py --resume --output-dir {shlex.quote(config.output_dir)}{own}"
    return "stopped before the first step: there is nothing to go on from, start again"
