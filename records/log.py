"""What a run prints and logs while it trains; only rank 0 does so."""

from __future__ import annotations

import json
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from distributed.world import World
from envs import Env
from records.boards import board_rows
from records.checkpoint import append_row, cut_log, write_text
from records.groups import group_row
from records.metrics import alarms, step_line, transcript
from records.reading import read_object
from records.track import Track
from records.trees import most_interesting, tree_rows
from rollout import Decode, Evaluation, Rollout

T = TypeVar("T")


def say(world: World, text: str) -> None:
    """A line on the console, at once, also where that is a file."""
    if world.main:
        tqdm.write(text)
        sys.stdout.flush()


def on_main(world: World, action: Callable[[], T]) -> T | None:
    """Rank 0 does something; what it refuses is refused by all ranks, with the same ValueError."""
    problem = result = None
    if world.main:
        try:
            result = action()
        except (ValueError, OSError) as error:
            problem = str(error)
    if refused := world.gather(problem)[0]:
        raise ValueError(refused)
    return result


class Log:
    """The logs of a run folder and its lines on the console.

    `policies` and `agents` are names, in the order they are shown; `trees` environments of each step are recorded.
    `level(step, env)` and `held_out(number)` make the environments of a step and those of the evaluations again;
    `track` gets the numbers too.
    """

    def __init__(
        self, run: Path, world: World, steps: int, agents: Sequence[str], policies: Sequence[str], decode: Decode,
        trees: int, level: Callable[[int, int], Env], held_out: Callable[[int], Env], track: Track | None = None,
    ):  # fmt: skip
        self.run, self.world, self.steps, self.trees = run, world, steps, trees
        self.agents, self.policies, self.decode = tuple(agents), list(policies), decode
        self.level, self.held_out, self.track = level, held_out, track or (lambda row, step: None)
        self.sessions: list[dict[str, Any]] = []  # commands that worked on this run

    def progress(self, first: int) -> Iterator[int]:
        """The steps from `first` on, with a bar where it is seen."""
        hidden = None if self.world.main else True  # None: hidden unless the console is a terminal
        bar = tqdm(
            range(first, self.steps), "train", initial=first, total=self.steps, disable=hidden, dynamic_ncols=True
        )
        return iter(bar)

    def say(self, text: str) -> None:
        say(self.world, text)

    def clear(self) -> None:
        """Forget a start that was stopped before there was a run."""
        if self.world.main:
            for name in ("evaluations.jsonl", "boards.jsonl"):
                (self.run / name).unlink(missing_ok=True)
            self._begin()

    def cut(self, step: int) -> None:
        """Drop the rows that were written after the checkpoint of `step`: they will be written again.

        ValueError naming the file and line that is no row.
        """

        def cut() -> None:
            for name in ("metrics.jsonl", "timing.jsonl", "groups.jsonl", "trees.jsonl"):
                cut_log(self.run / name, step)
            only_the_last_is_made_again = min(step + 1, self.steps)
            cut_log(self.run / "evaluations.jsonl", only_the_last_is_made_again, ("success", "se", "n", "turns"))
            cut_log(self.run / "boards.jsonl", only_the_last_is_made_again)
            if (self.run / "run.json").is_file():
                self.sessions = read_object(self.run / "run.json", ["sessions"])["sessions"]
            self._begin()

        on_main(self.world, cut)

    def _begin(self) -> None:
        """Note which command works on the run from now on, and with what."""
        self.began = time.perf_counter()
        packages = {name: version(name) for name in ("torch", "transformers", "numpy")}
        self.sessions.append(
            {
                "command": shlex.join(["python", *sys.argv]),
                "date": datetime.now().astimezone().isoformat(timespec="seconds"),
                "versions": {"python": platform.python_version(), **packages},
                "processes": self.world.size,
                "seconds": 0.0,
            }
        )

    def step(self, row: dict[str, Any], seconds: dict[str, float], result: Rollout, example: bool) -> None:
        """One finished step: its metrics, its seconds, a few of its trees; with `example` a transcript is shown.

        All ranks call it, each with the episodes that it has played.
        """
        groups = group_row(result.samples, row["step"], self.world)
        mine = tree_rows(result, row["step"], self.decode, self.trees, partial(self.level, row["step"]))
        trees = most_interesting([tree for part in self.world.gather(mine) for tree in part], self.trees)
        if not self.world.main:
            return
        append_row(self.run / "metrics.jsonl", row)
        append_row(self.run / "timing.jsonl", {"step": row["step"], **seconds})
        self.track(row | seconds, row["step"] + 1)
        append_row(self.run / "groups.jsonl", groups)
        for tree in trees:
            append_row(self.run / "trees.jsonl", tree)
        self.say(step_line(row, self.steps, self.agents, self.policies, seconds["step_s"]))
        for alarm in alarms(row, self.policies):
            self.say(f"  note: {alarm}")
        if example:
            self.say(transcript(result, row["step"], self.level(row["step"], result.episodes[0].env).render()))

    def evaluation(self, step: int, result: Evaluation) -> None:
        """Held-out success after `step` steps, a few of the boards, and how long it took to come here."""
        if self.world.main:
            row = {"step": step, "success": result.success, "se": result.se, "n": result.n, "turns": result.turns}
            append_row(self.run / "evaluations.jsonl", {**row, "formats": result.formats})
            self.track({f"held-out/{name}": value for name, value in row.items() if name != "step"}, step)
            if self.trees:
                for board in board_rows(result.episodes, step, self.decode, self.held_out):
                    append_row(self.run / "boards.jsonl", board)
            self.sessions[-1]["seconds"] = round(time.perf_counter() - self.began, 1)
            write_text(self.run / "run.json", json.dumps({"sessions": self.sessions}, indent=1))
        self.say(f"held-out success after {step} steps: {result.success:.3f} (n={result.n}, se {result.se:.3f})")
