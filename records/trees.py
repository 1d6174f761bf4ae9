"""Recorded trees: prompts, answers, rewards and what was committed. docs/runs.md shows a row."""

from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from typing import Any

from envs import Env, InfraError
from grouping import Sample
from records.console import half_up
from rollout import Decode, Episode, Rollout
from tasks.boards import with_arrows

Row = dict[str, Any]


def tree_rows(result: Rollout, step: int, decode: Decode, limit: int, level: Callable[[int], Env]) -> list[Row]:
    """One row for each of `limit` environments in order: the first that have a group with a signal, then others.

    Call it after `assign_advantages`. `level(env)` is the environment as it was before: the rollout keeps no states, so
    it is played once more.
    """
    rows = []
    signal = {sample.key.env for sample in result.samples if sample.advantage}
    envs = {episode.env for episode in result.episodes}
    for env in sorted(sorted(envs, key=lambda env: (env not in signal, env))[:limit]):
        row: Row = {"step": step, "env": env, "messages": [], "boards": []}
        row["episodes"] = [_episode(each, decode, level(env), row) for each in result.episodes if each.env == env]
        rows.append(row)
    return rows


def _episode(episode: Episode, decode: Decode, env: Env | None, row: Row) -> Row:
    """From the state `env` on; new messages and boards are added to the row."""
    prompts = {(action.turn, action.agent): action.messages for action in episode.actions}
    stages = []
    for key, samples in groupby(episode.samples, key=lambda sample: sample.key):
        stage: Row = {"turn": key.turn, "agent": key.agent, **_board(env, row), "candidates": []}
        after = None
        for sample in samples:
            candidate = {
                "text": decode(key.agent, sample.response_ids),
                "tokens": len(sample.response_ids),
                **{name: round(getattr(sample, name), 6) for name in ("team", "local", "reward", "advantage")},
                **{name: getattr(sample, name) for name in ("truncated", "committed", "valid")},
                "info": {name: round(value, 6) for name, value in sample.info.items()},
            }
            if twin := _play_again(env, sample, candidate["text"]):
                candidate |= _board(twin, row) | ({"way": twin.way} if twin.way else {})
            stage["candidates"].append(candidate)
            after = twin if sample.committed else after
        # no messages are kept where no candidate was scored: the prompt as the model read it
        messages = prompts.get(key[1:]) or [{"role": "prompt", "content": decode(key.agent, sample.prompt_ids)}]
        stage["prompt"] = [_number(message, row["messages"]) for message in messages]
        stages.append(stage)
        env = after
    return {"trajectory": episode.trajectory, "ended": episode.ended, "solved": episode.solved, "stages": stages}


def _play_again(env: Env | None, sample: Sample, text: str) -> Env | None:
    """The state after an answer; None where it was not scored, takes long, or earns something else this time."""
    if env is None or not sample.valid or (env.slow_scoring and not sample.committed):
        return None
    twin = env.copy()
    with suppress(InfraError):
        reward = twin.step(sample.key.agent, text)
        if (reward.team, reward.local) == (sample.team, sample.local):
            return twin
    return None


def _board(env: Env | None, row: Row) -> Row:
    board = env and (env.picture() or env.render())
    return {"board": _number(board, row["boards"])} if board else {}


def _number(item: Any, items: list[Any]) -> int:
    """The place of an item, which is added if it is new."""
    items += [] if item in items else [item]
    return items.index(item)


def transcript(row: Row) -> str:
    """The first committed actions of an environment, and their ways on the board."""
    episode = row["episodes"][0]
    lines = [f"--- example, step {row['step'] + 1}, environment {row['env'] + 1} ---"]
    for stage in episode["stages"][:4]:
        lines += [f"[turn {stage['turn'] + 1}, {stage['agent']} sees]", row["messages"][stage["prompt"][-1]]["content"]]
        for chosen in (candidate for candidate in stage["candidates"] if candidate["committed"]):
            best = f"best of {len(stage['candidates'])}" if len(stage["candidates"]) > 1 else "its answer"
            worth = f"team {half_up(chosen['team'])}, local {half_up(chosen['local'])}"
            lines += [f"[{stage['agent']}, {best}: {worth}]", chosen["text"].strip()]
            board, way = row["boards"][stage["board"]] if "board" in stage else "", chosen.get("way", ())
            if len(way) > 1 or stage is episode["stages"][0]:
                lines.append(board if isinstance(board, str) else with_arrows(board, way))
    lines.append(f"--- {len(episode['stages'])} actions, {'solved' if episode['solved'] else 'not solved'} ---")
    return "\n".join(line for line in lines if line)
