"""A step in numbers: one flat JSON row, and plain words when they look bad."""

import resource
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import fsum
from typing import Any

import torch

from grouping import Sample
from options import Config
from records.console import half_up
from rollout import Rollout

LOGPROB_GAP = 0.1  # nats: the engine does not sample from the weights that are trained


def rollout_metrics(result: Rollout, counts: Mapping[str, int], add_up: Callable[..., Any] = dict) -> dict[str, Any]:
    """The metrics of docs/runs.md but those of the update.

    `counts`: of `assign_advantages` and `groups_per_turn`; `add_up` adds up those of all processes.
    """
    episodes, samples = result.episodes, result.samples
    own = {
        "episodes": len(episodes),
        "solved": sum(episode.solved for episode in episodes),
        "turns": sum(episode.turns for episode in episodes),
        "samples": len(samples),
        "tokens": sum(len(sample.response_ids) for sample in samples),
        "ended": Counter(episode.ended for episode in episodes),
        "groups": dict(counts),
        "agents": {agent: _agent_sums(agent, samples) for agent in dict.fromkeys(s.key.agent for s in samples)},
    }
    total = add_up(own)
    counts, ended = Counter[str](total["groups"]), Counter[str](total["ended"])
    turns = sum(name.startswith("turn ") for name in counts)
    row: dict[str, Any] = {
        "solved": total["solved"] / total["episodes"],
        "turns": total["turns"] / total["episodes"],
        "samples": total["samples"],
        "tokens": total["tokens"],
        **{f"groups/{name}": counts[name] for name in ("trained", "constant", "singleton", "invalid")},
        "groups/dead_share": 1 - counts["trained"] / max(counts["groups"], 1),
        **{f"ended/{reason}": ended[reason] for reason in ("done", "turns", "prompt", "infra")},
        "groups/per_turn": [counts[f"turn {turn}"] for turn in range(turns)],
    }
    for agent, sums in total["agents"].items():
        row |= {f"{agent}/{name}": value / sums["scored"] for name, value in sums.items() if name != "scored"}
    return row


def _agent_sums(agent: str, samples: Sequence[Sample]) -> dict[str, float]:
    """How many candidates were scored, and the sums of their numbers."""
    parts = []
    for sample in samples:
        if sample.key.agent == agent and sample.valid:
            ours = {"scored": 1.0, "reward": sample.reward, "team": sample.team, "local": sample.local}
            ours |= {"length": len(sample.response_ids), "truncated": sample.truncated}
            parts.append(ours | sample.info | ours)  # a part of the same name does not replace ours
    names = dict.fromkeys(name for part in parts for name in part)
    return {"scored": 0} | {name: fsum(part.get(name, 0.0) for part in parts) for name in names}


def groups_per_turn(groups: Mapping[Hashable, Sequence[Sample]]) -> dict[str, int]:
    """{"turn 0": groups at this turn, ...}"""
    return Counter(f"turn {turn}" for group in groups.values() for turn in {sample.key.turn for sample in group})


def alarms(row: Mapping[str, Any], policies: Sequence[str]) -> list[str]:
    """What a person should know about this step."""
    found = []
    # in solved levels few groups have a signal: all K answers are right
    if row["groups/dead_share"] > 0.7 and row["solved"] < 0.5:
        found.append(f"{row['groups/dead_share']:.0%} of the groups have no signal: all K rewards are equal")
    for name in policies:
        if (gap := row.get(f"{name}/logprob_gap", 0.0)) > LOGPROB_GAP:
            found.append(f"policy {name}: engine and trainer differ by {gap:.2f} nats a token")
    return found


def step_line(row: Mapping[str, Any], config: Config, agents: Sequence[str], policies: Sequence[str]) -> str:
    """The line of a step: rewards in the order of `agents`, entropies in that of `policies`, "-" for none."""

    def numbers(names: Sequence[str], metric: str) -> str:
        return "/".join(half_up(row[key]) if (key := f"{name}/{metric}") in row else "-" for name in names)

    solved = f"best of {config.num_candidates} solved" if config.sampling == "tree" else "solved"
    return (
        f"step {row['step'] + 1}/{config.steps} {solved} {half_up(row['solved'])} reward {numbers(agents, 'reward')} "
        f"signal {1 - row['groups/dead_share']:.0%} entropy {numbers(policies, 'entropy')} {row['step_s']:.1f}s"
    )


class Clock:
    """The seconds of a step. The team adds to `parts` ("generate" and "load")."""

    def __init__(self, parts: defaultdict[str, float]):
        parts.clear()
        self.parts, self.started = parts, time.perf_counter()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.parts[part] += time.perf_counter() - started

    def seconds(self) -> dict[str, float]:
        """Seconds of the step and its parts, and the peak of memory in GB: of the process, or of torch on a GPU."""
        step, part = time.perf_counter() - self.started, self.parts
        peak = torch.cuda.max_memory_allocated() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        # environment: scoring, texts, tokens; policies that share an engine load weights in between
        return {
            "step_s": step,
            **{f"{name}_s": part[name] for name in ("sample", "generate", "exchange", "update", "sync", "load")},
            "environment_s": part["sample"] - part["generate"] - max(0.0, part["load"] - part["sync"]),
            "other_s": step - sum(part[name] for name in ("sample", "exchange", "update", "sync")),
            "peak_gb": peak / 1e9,
        }
