"""How far the obvious rule gets on Plan-Path: step to the free neighbour that is nearest to the goal, never look ahead.

    python benchmarks/naive_walker.py

A trained policy has to beat this to have learned anything about walls. The 6x6 boards are the held-out ones of the
default run.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tasks.boards import MOVES
from tasks.levels import make_levels
from tasks.plan_path import PlanPath


def solves(env: PlanPath, steps: int = 64) -> bool:
    for _ in range(steps):
        if env.done:
            break
        (r, c), (goal_r, goal_c) = env.position, env.goal
        places = {move: (r + i, c + j) for move, (i, j) in MOVES.items() if (r + i, c + j) in env.distance}
        move = min(places, key=lambda name: abs(places[name][0] - goal_r) + abs(places[name][1] - goal_c))
        env.step("planner", f"#### [{move}]")
    return env.solved


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for size, blocks in ((4, 0.25), (5, 0.25), (6, 0.12), (10, 0.22)):
        levels = make_levels("plan_path", "single", [f"rows={size}", f"cols={size}", f"blocks={blocks}"])
        boards: list[Any] = [levels.held_out(number) for number in levels.held_out_numbers(200)]
        print(f"{size}x{size}, {blocks:.0%} blocked: {sum(map(solves, boards)) / len(boards):.3f}")


if __name__ == "__main__":
    main()
