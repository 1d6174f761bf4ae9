"""The former default run of train.py (4x4 boards, two moves a turn): against an earlier commit, beside a busy process,
and with chains instead of trees.

    python benchmarks/default_run.py                               whole runs with three seeds, in turn: half an hour
    python benchmarks/default_run.py --steps 20 --seeds 0          a first impression

Everything runs one after the other on one machine, in a copy of each commit. Wall-clock seconds of whole commands.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

HERE = Path(__file__).resolve().parent.parent
BOARDS = "--env-options rows=4 cols=4 blocks=0.25 max_moves=2 view=cells --max-response-tokens 16 --lr 4e-4"
CHAINS = ("--sampling", "chains", "--grouping", "trajectory")


@dataclass
class Measured:
    """One run of train.py."""

    seconds: float  # the whole command
    step: float  # mean seconds of a step
    candidate: float  # milliseconds of a step per candidate sampled
    memory: float  # GB, the largest that was in use
    success: float  # held-out, at the end


def measure(code: Path, folder: Path, options: Sequence[str]) -> Measured:
    """Run train.py of `code`. Raises CalledProcessError when it fails."""
    command = [sys.executable, str(code / "train.py"), "--output-dir", str(folder), "--save-every", "0"]
    command += [*BOARDS.split(), *options]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    timing, metrics, held_out = (
        [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for name in ("timing", "metrics", "evaluations")
    )
    step = fmean(row["step_s"] for row in timing)
    return Measured(
        seconds,
        step,
        1000 * step / fmean(row["samples"] for row in metrics),
        max(row["peak_gb"] for row in timing),
        held_out[-1]["success"],
    )


def show(name: str, run: Measured) -> None:
    print(
        f"{name:24} {run.seconds:6.1f} s, {run.step:.2f} s a step, {run.candidate:.3f} ms a candidate, "
        f"{run.memory:.2f} GB, success {run.success:.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", default="5564eb2", metavar="COMMIT")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--short", type=int, default=20, help="steps of the runs with chains and beside a busy process")
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')}")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        before = work / "before"
        subprocess.run(
            ["git", "worktree", "add", "--detach", before, args.against], cwd=HERE, check=True, capture_output=True
        )
        try:
            whole = ["--steps", str(args.steps)]
            for seed in args.seeds:
                runs = [
                    measure(code, work / f"{code.name}{seed}", [*whole, "--seed", str(seed)]) for code in (before, HERE)
                ]
                for name, run in zip((args.against, "now"), runs, strict=True):
                    show(f"{name}, seed {seed}", run)
                print(f"    {runs[0].seconds / runs[1].seconds:.2f} times as fast")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", before], cwd=HERE, check=True)
        few = ["--steps", str(args.short), "--report-every", "0"]
        tree, chains = (measure(HERE, work / name, [*few, *more]) for name, more in (("tree", ()), ("chains", CHAINS)))
        show("tree", tree)
        show("chains", chains)
        print(f"    a candidate of a chain takes {chains.candidate / tree.candidate:.2f} times that of a tree")
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            beside = measure(HERE, work / "busy", few)
        finally:
            busy.kill()
        show("tree, beside a busy one", beside)
        print(f"    {beside.seconds / tree.seconds:.2f} times as long as alone")


if __name__ == "__main__":
    main()
