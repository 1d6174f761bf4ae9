"""Recorded trees: prompts, answers, rewards and what was committed, for a few environments of a step, as JSON.

`trees.jsonl` has one object for each recorded environment of each step, which `report.py` shows:

    {"step": 3, "env": 0,
     "messages": [{"role": "system", "content": ...}, {"role": "user", "content": ...}, ...],
     "boards": ["P . #...", ...],
     "episodes": [{"trajectory": null, "ended": "done", "solved": true, "stages": [
         {"turn": 0, "agent": "tool_user", "prompt": [0, 1], "board": 0, "candidates": [
             {"text": ..., "tokens": 5, "team": 0.33, "local": 0.2, "reward": 0.53, "advantage": -0.7, "board": 1,
              "truncated": false, "committed": false, "valid": true, "info": {"format": 1.0}}, ...]}, ...]}]}

A stage is one agent in one turn; its `prompt` numbers the row's `messages`, each written once (the rules repeat in
every prompt: a file of chains would be three times as large). `board` numbers `boards` in the same way: what the
environment draws (`render`) before the stage, and after the candidate; it is missing where there is none. A tree is one
episode with K candidates at every stage; plain GRPO (chains) gives K episodes, numbered by `trajectory`, with one
candidate at every stage.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

from envs import Env, Message
from grouping import Sample
from records.boards import replay
from records.groups import has_signal
from rollout import Decode, Episode, Rollout

DIGITS = 7  # significant ones, of recorded rewards and advantages: small differences make large advantages
Level = Callable[[int], Env]


def tree_rows(
    result: Rollout, step: int, decode: Decode, limit: int, level: Level | None = None
) -> list[dict[str, Any]]:
    """`limit` environments of a rollout, one row each in order: those with the most groups that have a signal (of
    equals, the first). Call it after `assign_advantages`.

    `decode(agent, ids)` has to be that of the rollout, so that candidates are shown as the environment read them.
    `level(env)` is the environment as it was before the rollout; without it no boards are recorded.
    """
    envs: dict[int, list[Episode]] = {}
    for episode in result.episodes:
        envs.setdefault(episode.env, []).append(episode)
    chosen = sorted(sorted(envs, key=lambda env: _signals(envs[env]), reverse=True)[:limit])
    return [_row(step, env, envs[env], decode, level) for env in chosen]


def _signals(episodes: list[Episode]) -> int:
    """How many groups have a signal."""
    groups: dict[Any, list[Sample]] = {}
    for episode in episodes:
        for sample in episode.samples:
            groups.setdefault(sample.key, []).append(sample)
    return sum(map(has_signal, groups.values()))


def most_interesting(rows: list[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """From the rows of several ranks, in order, those that `tree_rows` would have made of all their environments."""

    def signals(row: dict[str, Any]) -> int:
        stages = [stage for episode in row["episodes"] for stage in episode["stages"]]
        found = [s for s in stages if any(candidate["advantage"] for candidate in s["candidates"])]
        return len({(stage["turn"], stage["agent"]) for stage in found})

    return sorted(sorted(rows, key=signals, reverse=True)[:limit], key=lambda row: row["env"])


def _row(step: int, env: int, episodes: list[Episode], decode: Decode, level: Level | None) -> dict[str, Any]:
    messages: list[Message] = []
    boards: list[str] = []
    rows = []
    for episode in episodes:
        row = _episode(episode, decode, messages)
        if level:
            _add_boards(row["stages"], replay(level(env), episode.samples, decode), boards)
        rows.append(row)
    return {"step": step, "env": env, "messages": messages, **({"boards": boards} if boards else {}), "episodes": rows}


def _add_boards(stages: list[dict[str, Any]], shown: list[tuple[str, list[str]]], boards: list[str]) -> None:
    """Number the boards of an episode; those that are new go to the end of `boards`."""
    for stage, (before, after) in zip(stages, shown, strict=False):  # a replay may end early
        for place, board in zip([stage, *stage["candidates"]], [before, *after], strict=True):
            if board:
                boards += [board] if board not in boards else []
                place["board"] = boards.index(board)


def _episode(episode: Episode, decode: Decode, messages: list[Message]) -> dict[str, Any]:
    """One episode; messages that are new go to the end of `messages`."""
    prompts = {(action.turn, action.agent): action.messages for action in episode.actions}
    stages = []
    for key, group in groupby(episode.samples, key=lambda sample: sample.key):
        candidates = list(group)
        prompt = prompts.get((key.turn, key.agent)) or _rendered(candidates[0], decode)
        messages += [message for message in prompt if message not in messages]
        stages.append(
            {
                "turn": key.turn,
                "agent": key.agent,
                "prompt": [messages.index(message) for message in prompt],
                "candidates": [_candidate(sample, decode) for sample in candidates],
            }
        )
    return {"trajectory": episode.trajectory, "ended": episode.ended, "solved": episode.solved, "stages": stages}


def _rendered(sample: Sample, decode: Decode) -> list[Message]:
    """The prompt's ids as text. No candidate could be scored, so nothing was committed and no messages were kept."""
    return [{"role": "prompt", "content": decode(sample.key.agent, sample.prompt_ids)}]


def _candidate(sample: Sample, decode: Decode) -> dict[str, Any]:
    return {
        "text": decode(sample.key.agent, sample.response_ids),
        "tokens": len(sample.response_ids),
        "team": _digits(sample.team),
        "local": _digits(sample.local),
        "reward": _digits(sample.reward),
        "advantage": _digits(sample.advantage),
        "truncated": sample.truncated,
        "committed": sample.committed,
        "valid": sample.valid,
        "info": {name: _digits(value) for name, value in sample.info.items()},
    }


def _digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}") if abs(value) > 1e-12 else 0.0  # less is left over from rounding
