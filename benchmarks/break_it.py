"""Five changes of one place in the product, each of which breaks the method, and what a short default run does then.

    python benchmarks/break_it.py                            all of them with three seeds, one run after the other
    python benchmarks/break_it.py --only 2 --seeds 0         one of them (0: nothing is changed)

Each run trains in a copy of the working tree, on one core a process, and prints one line. Predict it first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

HERE = Path(__file__).resolve().parent.parent
OPTIONS = "--device cpu --report-every 0 --save-every 0 --trees 0 --eval-envs 200"
COMPARE = "        counts = assign_advantages(groups, config.normalize) | groups_per_turn(groups)\n"
UPDATE = "        learned: dict[str, float] = {}\n"  # the first line after the exchange
# name, ranks, file, (what stands there, what stands there instead) ...
CHANGES: tuple[tuple[str, int, str, tuple[tuple[str, str], ...]], ...] = (
    ("nothing", 1, "train.py", ()),
    (
        "pool two problems in a group",
        1,
        "train.py",
        (("(played.samples, group_key)", "(played.samples, lambda s: (s.key.env // 2, s.key.turn, s.key.agent))"),),
    ),
    (
        "commit the last candidate",
        1,
        "rollout.py",
        (("best, branch = max(scored, key=lambda pair: pair[0].reward)", "best, branch = scored[-1]"),),
    ),
    ("score on the shared state", 1, "rollout.py", (("_act(env.copy(), key", "_act(env, key"),)),
    (
        "drop the stop token",
        1,
        "rollout.py",
        (
            ("response_ids=candidate.ids,", "response_ids=candidate.ids[:-1] or candidate.ids,"),
            ("logprobs=candidate.logprobs,", "logprobs=candidate.logprobs[:-1] or candidate.logprobs,"),
        ),
    ),
    ("nothing, on two ranks", 2, "train.py", ()),
    (
        "compare after the samples have travelled, on two ranks",
        2,
        "train.py",
        ((COMPARE, ""), (UPDATE, COMPARE + UPDATE)),
    ),
)


def broken(number: int, folder: Path) -> Path:
    """A copy of the working tree with one change. AssertionError when the place is not there, once."""
    _, _, file, pairs = CHANGES[number]
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns(".*", "runs", "tests", "docs", "__pycache__"))
    text = (folder / file).read_text(encoding="utf-8")
    for old, new in pairs:
        assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
        text = text.replace(old, new)
    (folder / file).write_text(text, encoding="utf-8")
    return folder


def run(number: int, seed: int, steps: int) -> str:
    """What a training with this change does, in words."""
    _, ranks, *_ = CHANGES[number]
    with tempfile.TemporaryDirectory() as folder:
        code, out = broken(number, Path(folder, "code")), Path(folder, "run")
        launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        command = [sys.executable, *launch, str(code / "train.py"), *OPTIONS.split()]
        command += ["--steps", str(steps), "--seed", str(seed), "--output-dir", str(out)]
        done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        rows, evaluations = (
            [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]
            if (out / f"{name}.jsonl").exists()
            else []
            for name in ("metrics", "evaluations")
        )
    if done.returncode:
        error = [line for line in done.stderr.splitlines() if "Error: " in line][-1]
        return f"stops in step {len(rows) + 1}: {error}"
    late = rows[-10:]

    def mean(*names: str) -> str:
        return " / ".join(f"{fmean(row.get(name, 0.0) for row in late):.2f}" for name in names)

    return (
        f"held-out {evaluations[0]['success']:.3f} -> {evaluations[-1]['success']:.3f}; last ten steps: "
        f"best of 8 {mean('solved')}, reward {mean('tool_user/reward', 'planner/reward')}, "
        f"cut off {mean('tool_user/truncated', 'planner/truncated')}, entropy {mean('shared/entropy')}, "
        f"groups without a signal {mean('groups/dead_share')}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, nargs="+", default=range(len(CHANGES)), metavar="N", help="which changes")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()
    for number in given.only:
        for seed in given.seeds:
            print(f"{number} {CHANGES[number][0]}, seed {seed}: {run(number, seed, given.steps)}", flush=True)


if __name__ == "__main__":
    main()
