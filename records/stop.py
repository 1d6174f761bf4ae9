"""How a training ends early: Ctrl-C, SIGTERM, mistakes in options and data, no memory, a full disk."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

from options import Config
from records.console import errors_in_one_line, out_of_memory, say
from tasks.registry import TASKS


class Stopped(BaseException):
    """Somebody wants the program to end: Stopped(number of the signal)."""


class Stop:
    """As a context: what the signals do, and how errors are shown.

    `patient`: a signal is only noted in `number`, and the step is finished; else it raises Stopped. A second one ends
    at once. Until the first step an error is one line, later a traceback, apart from memory and files.
    """

    def __init__(self, config: Config) -> None:
        self.config, self.number = config, 0
        self.patient = self.begun = False

    def __enter__(self) -> Stop:
        self.before = [(number, signal.signal(number, self._receive)) for number in (signal.SIGINT, signal.SIGTERM)]
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        for number, handler in self.before:
            signal.signal(number, handler)
        if isinstance(error, Stopped):
            if speaks():
                say(how_to_go_on(self.config))
            from torch import distributed  # not at the top: --help needs no torch

            if distributed.is_initialized():  # other ranks may wait anywhere: it cannot be closed
                os._exit(128 + error.args[0])
            sys.exit(128 + error.args[0])
        if isinstance(error, SystemExit):  # of a task's own code: ours come before or after
            raise RuntimeError(f"--task {self.config.task}: its code called sys.exit({error.code!r})") from error
        if error and (not self.begun or isinstance(error, OSError) or out_of_memory(error)):
            with errors_in_one_line("train.py"):
                raise error

    def _receive(self, number: int, frame: object) -> None:
        self.number = number
        if not self.patient:
            raise Stopped(number)
        for each, _ in self.before:  # torchrun passes on what the terminal sent to all: no second one
            signal.signal(each, signal.SIG_IGN if "TORCHELASTIC_RUN_ID" in os.environ else signal.SIG_DFL)
        if speaks():
            os.write(2, b"\nstopping: this step is finished and saved first; once more ends at once\n")


def speaks() -> bool:
    """Whether this process prints, known before it has joined the others."""
    return os.environ.get("RANK", "0") == "0"


def how_to_go_on(config: Config) -> str:
    """The command that goes on with a stopped run."""
    if not (Path(config.output_dir) / "config.json").is_file():
        return "stopped before the first step: start again"
    own = f" --task {shlex.quote(config.task)}" if config.task not in TASKS else ""
    return f"stopped; to go on: python train.py --resume --output-dir {shlex.quote(config.output_dir)}{own}"
