"""Levels a second on one core: `python benchmarks/levels.py`."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from envs import make_env

BOARDS: list[tuple[str, dict[str, Any]]] = [
    ("plan_path", {}),
    ("sokoban", {}),
    ("sokoban", {"boxes": 2}),
    ("sokoban", {"rows": 8, "cols": 8, "boxes": 2}),
    ("sudoku", {}),
    ("sudoku", {"size": 6}),
    ("sudoku", {"size": 9}),
]


def main(seconds: float = 2.0) -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for task, options in BOARDS:
        env, levels, start = make_env(task, **options), 0, time.process_time()
        while time.process_time() - start < seconds:
            env.reset(seed=levels)
            levels += 1
        sizes = " ".join(f"{name}={value}" for name, value in options.items())
        print(f"{task:10}{sizes:24}{levels / (time.process_time() - start):8.0f} levels/s")


if __name__ == "__main__":
    main()
