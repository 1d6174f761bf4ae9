"""What a run prints and logs while it trains; only rank 0 does so."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm

from distributed.world import World
from envs import Env
from options import Config
from records import console
from records.checkpoint import cut_log
from records.metrics import alarms, step_line
from records.run_folder import append_row, on_main, read_object, write_text
from records.track import Track
from records.trees import transcript, tree_rows
from rollout import Decode, Evaluation, Rollout

LEVELS = 4  # held-out levels whose play is recorded at every evaluation


def say(world: World, text: str) -> None:
    """A line on the console of rank 0."""
    if world.main:
        console.say(text)


class Log:
    """The logs of a run folder and its lines on the console.

    `policies` and `agents` are names, in the order they are shown. `level(step, env)` and `held_out(number)` make the
    environments of a step and those of the evaluations again. `track` gets the numbers too.
    """

    def __init__(
        self, run: Path, world: World, config: Config, agents: Sequence[str], policies: Sequence[str], decode: Decode,
        level: Callable[[int, int], Env], held_out: Callable[[int], Env], track: Track | None = None,
    ):  # fmt: skip
        self.run, self.world, self.steps, self.trees, self.decode = run, world, config.steps, config.trees, decode
        self.agents, self.policies, self.level, self.held_out = agents, policies, level, held_out
        self.solved = f"best of {config.num_candidates} solved" if config.sampling == "tree" else "solved"
        self.track = track or (lambda row, step: None)

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
            for name in ("evaluations.jsonl", "boards.jsonl", "run.json"):
                (self.run / name).unlink(missing_ok=True)
            self._note_command()

    def cut(self, step: int) -> None:
        """Drop the rows that were written after the checkpoint of `step`: they will be written again.

        ValueError naming the file and line that is no row.
        """

        def cut() -> None:
            for name in ("metrics.jsonl", "timing.jsonl", "trees.jsonl"):
                cut_log(self.run / name, step)
            for name in ("evaluations.jsonl", "boards.jsonl"):  # only the last one is made again
                cut_log(self.run / name, min(step + 1, self.steps))
            self._note_command()

        on_main(self.world, cut)

    def _note_command(self) -> None:
        """Add the command that works on the run from now on, and what it works with, to run.json."""
        path = self.run / "run.json"
        sessions = read_object(path).get("sessions", []) if path.is_file() else []
        if not isinstance(sessions, list):
            raise ValueError(f"{path}: sessions is no list")
        versions = {name: version(name) for name in ("torch", "transformers", "numpy")}
        versions = {"python": platform.python_version(), **versions}
        command, now = shlex.join(["python", *sys.argv]), datetime.now().astimezone()
        sessions.append({"command": command, "date": now.isoformat(" ", "seconds"), "versions": versions})
        write_text(path, json.dumps({"sessions": sessions}, indent=1))

    def step(self, row: dict[str, Any], seconds: dict[str, float], result: Rollout, example: bool) -> None:
        """One finished step: its metrics, its seconds, a few of its trees; with `example` a transcript is shown.

        Rank 0 writes it, with the trees that it has played itself.
        """
        if not self.world.main:
            return
        append_row(self.run / "metrics.jsonl", row)
        append_row(self.run / "timing.jsonl", {"step": row["step"], **seconds})
        self.track(row | seconds, row["step"] + 1)
        trees = tree_rows(result, row["step"], self.decode, self.trees or 1, partial(self.level, row["step"]))
        for tree in trees[: self.trees]:
            append_row(self.run / "trees.jsonl", tree)
        self.say(step_line(row, self.steps, self.agents, self.policies, seconds["step_s"], self.solved))
        for alarm in alarms(row, self.policies):
            self.say(f"  note: {alarm}")
        if example:
            self.say(transcript(trees[0]))

    def evaluation(self, step: int, result: Evaluation) -> None:
        """Held-out success after `step` steps, and how the first levels were played."""
        if self.world.main:
            row = {"step": step, "success": result.success, "se": result.se, "n": result.n, "turns": result.turns}
            append_row(self.run / "evaluations.jsonl", {**row, "formats": result.formats})
            self.track({f"held-out/{name}": value for name, value in row.items() if name != "step"}, step)
            if self.trees:
                for tree in tree_rows(Rollout(result.episodes), step, self.decode, LEVELS, self.held_out):
                    append_row(self.run / "boards.jsonl", tree)
        self.say(
            f"held-out success after {step} steps: {console.half_up(result.success, 3)} "
            f"(n={result.n}, se {console.half_up(result.se, 3)})"
        )
