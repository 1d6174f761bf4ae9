"""What a run prints and logs while it trains; only rank 0 does so."""

import json
import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

from tqdm import tqdm

from distributed.world import World
from options import Config
from records import console
from records.checkpoint import LOGS, cut_log
from records.console import half_up
from records.metrics import alarms, step_line
from records.run_folder import Row, append_row, read_object, write_text
from records.track import Track
from records.trees import transcript, tree_rows
from rollout import Decode, Evaluation, Rollout
from tasks.levels import Levels

LEVELS = 4  # held-out levels whose play is recorded at every evaluation


def say(world: World, text: str) -> None:
    if world.main:
        console.say(text)


@dataclass
class Log:
    """The logs of a run folder and its lines on the console."""

    run: Path
    world: World
    config: Config
    levels: Levels
    policies: Sequence[str]
    decode: Decode
    track: Track

    def progress(self, first: int) -> Iterator[int]:
        """The steps from `first` on, with a bar on a terminal."""
        hidden, steps = None if self.world.main else True, self.config.steps  # None: if no terminal
        return iter(tqdm(range(first, steps), "train", initial=first, total=steps, disable=hidden, dynamic_ncols=True))

    def say(self, text: str) -> None:
        say(self.world, text)

    def begin(self, done: int = -1) -> None:
        """Drop the rows after the checkpoint of `done` steps (-1: all rows), and note the command.

        ValueError naming a line that is no row.
        """
        if not self.world.main:
            return
        for name, first in LOGS.items():  # the last evaluation is made again
            cut_log(self.run / name, min(done + first, self.config.steps))
        path = self.run / "run.json"
        sessions = read_object(path).get("sessions") if done >= 0 and path.exists() else []
        if type(sessions) is not list or not all(type(one) is dict and "command" in one for one in sessions):
            raise ValueError(f"{path}: sessions is {sessions!r:.40} and not a list of commands")
        versions = {name: version(name) for name in ("torch", "transformers", "numpy")}
        versions |= {"python": platform.python_version()}
        command, now = shlex.join(["python", *sys.argv]), datetime.now().astimezone().isoformat(" ", "seconds")
        sessions.append({"command": command, "date": now, "versions": versions})
        write_text(path, json.dumps({"sessions": sessions}, indent=1))

    def step(self, row: Row, seconds: dict[str, float], result: Rollout, example: bool) -> None:
        """One finished step, with some trees of rank 0; `example` shows a transcript."""
        if not self.world.main:
            return
        config, step = self.config, row["step"]
        append_row(self.run / "metrics.jsonl", row)
        append_row(self.run / "timing.jsonl", {"step": step, **seconds})
        self.track(row | seconds, step + 1)
        level = partial(self.levels.training, config.seed, step, envs_per_step=config.envs_per_step)
        trees = tree_rows(result, step, self.decode, config.trees or 1, level)
        for tree in trees[: config.trees]:
            append_row(self.run / "trees.jsonl", tree)
        self.say(step_line(row | seconds, config, self.levels.training_env.agents, self.policies))
        for alarm in alarms(row, self.policies):
            self.say(f"  note: {alarm}")
        if example:
            self.say(transcript(trees[0]))

    def evaluation(self, step: int, result: Evaluation) -> None:
        """Held-out success after `step` steps, and how the first levels were played."""
        if not self.world.main:
            return
        row = {name: getattr(result, name) for name in ("success", "se", "n", "turns")}
        append_row(self.run / "evaluations.jsonl", {"step": step, **row, "formats": result.formats})
        self.track({f"held-out/{name}": value for name, value in row.items()}, step)
        if self.config.trees:
            for tree in tree_rows(Rollout(result.episodes), step, self.decode, LEVELS, self.levels.held_out):
                append_row(self.run / "boards.jsonl", tree)
        success, se = half_up(result.success, 3), half_up(result.se, 3)
        self.say(f"held-out success after {step} steps: {success} (n={result.n}, se {se})")
