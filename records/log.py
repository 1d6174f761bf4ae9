"""What a run prints and logs while it trains; only rank 0 does so."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from distributed.world import World
from records.checkpoint import append_row, cut_log
from records.metrics import alarms, step_line, transcript
from records.trees import tree_rows
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
    """

    def __init__(
        self, run: Path, world: World, steps: int, agents: Sequence[str], policies: Sequence[str], decode: Decode,
        trees: int,
    ):  # fmt: skip
        self.run, self.world, self.steps, self.trees = run, world, steps, trees
        self.agents, self.policies, self.decode = tuple(agents), list(policies), decode

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
            (self.run / "evaluations.jsonl").unlink(missing_ok=True)

    def cut(self, step: int) -> None:
        """Drop the rows that were written after the checkpoint of `step`: they will be written again.

        ValueError naming the file and line that is no row.
        """

        def cut() -> None:
            for name in ("metrics.jsonl", "timing.jsonl", "trees.jsonl"):
                cut_log(self.run / name, step)
            only_the_last_is_made_again = min(step + 1, self.steps)
            cut_log(self.run / "evaluations.jsonl", only_the_last_is_made_again, ("success", "se", "n", "turns"))

        on_main(self.world, cut)

    def step(self, row: dict[str, Any], seconds: dict[str, float], result: Rollout, example: bool) -> None:
        """One finished step: its metrics, its seconds, a few of its trees; with `example` a transcript is shown."""
        if not self.world.main:
            return
        append_row(self.run / "metrics.jsonl", row)
        append_row(self.run / "timing.jsonl", {"step": row["step"], **seconds})
        for tree in tree_rows(result, row["step"], self.decode, self.trees):
            append_row(self.run / "trees.jsonl", tree)
        self.say(step_line(row, self.steps, self.agents, self.policies, seconds["step_s"]))
        for alarm in alarms(row, self.policies):
            self.say(f"  note: {alarm}")
        if example:
            self.say(transcript(result, row["step"]))

    def evaluation(self, step: int, result: Evaluation) -> None:
        """Held-out success after `step` steps."""
        if self.world.main:
            row = {"step": step, "success": result.success, "se": result.se, "n": result.n, "turns": result.turns}
            append_row(self.run / "evaluations.jsonl", {**row, "formats": result.formats})
        self.say(f"held-out success after {step} steps: {result.success:.3f} (n={result.n}, se {result.se:.3f})")
