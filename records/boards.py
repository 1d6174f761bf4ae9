"""What boards looked like. The rollout keeps no states: the few episodes that are recorded are played once more.

`boards.jsonl` has one object for each of a few held-out levels at each evaluation, the same levels every time:

    {"step": 25, "level": 0, "solved": true, "ended": "done", "board": "P . #\n...", "actions": [
        {"turn": 0, "agent": "planner", "text": "#### [R]", "board": ". P #\n..."}, ...]}

The first `board` is the start, that of an action is what it led to. Environments without `render` are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from envs import Env, InfraError
from grouping import Sample
from rollout import Decode, Episode

LEVELS = 4  # held-out levels that are recorded at every evaluation


def board_rows(
    episodes: Sequence[Episode], step: int, decode: Decode, level: Callable[[int], Env]
) -> list[dict[str, Any]]:
    """The episodes of the first LEVELS held-out environments as rows of boards.jsonl."""
    first: dict[int, Episode] = {}
    for episode in episodes:
        first.setdefault(episode.env, episode)
    return [_row(first[env], step, decode, level(env)) for env in sorted(first)[:LEVELS] if level(env).render()]


def _row(episode: Episode, step: int, decode: Decode, env: Env) -> dict[str, Any]:
    played = [sample for sample in episode.samples if sample.committed]
    boards = [after for _, (after,) in replay(env, played, decode)]
    actions = [
        {"turn": s.key.turn, "agent": s.key.agent, "text": decode(s.key.agent, s.response_ids), "board": board}
        for s, board in zip(played, boards + [""] * len(played), strict=False)
    ]
    start = {"step": step, "level": episode.env, "solved": episode.solved, "ended": episode.ended}
    return {**start, "board": env.render(), "actions": actions}


def replay(env: Env, samples: Sequence[Sample], decode: Decode) -> list[tuple[str, list[str]]]:
    """For each stage of an episode the board before it and those after its candidates.

    `env` is the level at its start and is not changed; `samples` are those of the episode, in order. A board is "" if
    the environment draws none, if the candidate was not scored, or if its reward is not the recorded one: then the
    board would be another one as well, and the episode is not followed any further. Where scoring is slow, only what
    was committed is played again.
    """
    stages = []
    for _, candidates in groupby(samples if env.render() else (), key=lambda sample: sample.key):
        before, after, committed = env.render(), [], None
        for sample in candidates:
            worth_it = sample.committed or (sample.valid and not env.slow_scoring)
            twin = _play_again(env.copy(), sample, decode) if worth_it else None
            after.append(twin.render() if twin else "")
            committed = twin if sample.committed else committed
        stages.append((before, after))
        if committed is None:
            break
        env = committed
    return stages


def _play_again(twin: Env, sample: Sample, decode: Decode) -> Env | None:
    """The state after this answer; None when it is not worth what it was."""
    try:
        reward = twin.step(sample.key.agent, decode(sample.key.agent, sample.response_ids))
    except InfraError:
        return None
    return twin if (reward.team, reward.local) == (sample.team, sample.local) else None
