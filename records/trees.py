"""Recorded trees: prompts, answers, rewards and what was committed, for a few environments of a step, as JSON.

`trees.jsonl` has one object for each recorded environment of each step, which `report.py` shows:

    {"step": 3, "env": 0,
     "messages": [{"role": "system", "content": ...}, {"role": "user", "content": ...}, ...],
     "episodes": [{"trajectory": null, "ended": "done", "solved": true, "stages": [
         {"turn": 0, "agent": "tool_user", "prompt": [0, 1], "candidates": [
             {"text": ..., "tokens": 5, "team": 0.33, "local": 0.2, "reward": 0.53, "advantage": -0.7,
              "truncated": false, "committed": false, "valid": true, "info": {"format": 1.0}}, ...]}, ...]}]}

A stage is one agent in one turn; its `prompt` numbers the row's `messages`, each written once (the rules repeat in
every prompt: a file of chains would be three times as large). A tree is one episode with K candidates at every stage;
plain GRPO (chains) gives K episodes, numbered by `trajectory`, with one candidate at every stage.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from envs import Message
from grouping import Sample
from rollout import Decode, Episode, Rollout

DIGITS = 4  # of recorded rewards and advantages


def tree_rows(result: Rollout, step: int, decode: Decode, limit: int) -> list[dict[str, Any]]:
    """The first `limit` environments of a rollout, one row each. Call it after `assign_advantages`.

    `decode(agent, ids)` has to be that of the rollout, so that candidates are shown as the environment read them.
    """
    envs = list(dict.fromkeys(episode.env for episode in result.episodes))[:limit]
    return [_row(step, env, [episode for episode in result.episodes if episode.env == env], decode) for env in envs]


def _row(step: int, env: int, episodes: list[Episode], decode: Decode) -> dict[str, Any]:
    messages: list[Message] = []
    rows = [_episode(episode, decode, messages) for episode in episodes]
    return {"step": step, "env": env, "messages": messages, "episodes": rows}


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
        "team": round(sample.team, DIGITS),
        "local": round(sample.local, DIGITS),
        "reward": round(sample.reward, DIGITS),
        "advantage": round(sample.advantage, DIGITS),
        "truncated": sample.truncated,
        "committed": sample.committed,
        "valid": sample.valid,
        "info": {name: round(value, DIGITS) for name, value in sample.info.items()},
    }
