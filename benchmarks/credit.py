"""How much of a trajectory's return comes from one action, before training.

    python benchmarks/credit.py

A single agent with four turns and the warm-started tiny model, on the boards of the default run. On each board it
samples K first answers, and each is followed by K continuations of three turns. A candidate of a tree is paid for what
it did itself; a trajectory is paid for its end. Printed is the share of the variance of returns on one board that lies
between the first answers (the rest lies between continuations of the same answer), by the usual analysis of variance
with one factor.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import fmean, variance

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from distributed.world import World
from envs import Env
from options import parse
from prepare import levels_of, load_models, make_team
from rollout import rollout_chains
from sampling.requests import Generate, Request
from sampling.team import Team

BOARDS, K, SEED = 100, 8, 100


def returns_by_first_answer(board: Env, number: int, generate: Generate, team: Team, turns: int) -> list[list[float]]:
    """K lists of K returns: what the team has achieved at the end of each continuation of each first answer."""
    prompt = team.encode("planner", board.observe("planner"))
    (answers,) = generate([Request("planner", prompt, number << 20)], K)
    after = []
    for answer in answers:
        twin = board.copy()
        twin.step("planner", team.decode("planner", answer.ids))
        after.append(twin)
    played = rollout_chains(
        after, generate, encode=team.encode, decode=team.decode, num_candidates=K, max_turns=turns - 1,
        seed=(SEED, number), env_ids=range(K),
    )  # fmt: skip
    return [[episode.progress for episode in played.episodes if episode.env == i] for i in range(K)]


def share_between(groups: list[list[float]]) -> tuple[float, float]:
    """Variance between groups (an unbiased estimate, which may be negative) and within them."""
    within = fmean(variance(group) for group in groups)
    return variance(map(fmean, groups)) - within / len(groups[0]), within


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    config = parse(["--workflow", "single", "--max-turns", "4", "--seed", str(SEED), "--device", "cpu"])
    task, world = levels_of(config), World()
    team = make_team(config, task.training_env.agents, world, load_models(config, task, world))
    generate = team.sampler(1.0)
    boards = [(n, task.held_out(n)) for n in range(BOARDS)]
    parts = [share_between(returns_by_first_answer(board, n, generate, team, config.max_turns)) for n, board in boards]
    between, within = (fmean(values) for values in zip(*parts, strict=True))
    print(f"{BOARDS} boards, {K} first answers, {K} continuations of each: {between / (between + within):.0%} of the")
    print("variance of a return lies between the first answers")


if __name__ == "__main__":
    main()
