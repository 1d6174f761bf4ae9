"""What a step looks like in numbers: one flat JSON row, and plain words when the numbers look bad."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import fsum
from typing import Any

import torch

from grouping import Sample
from rollout import Rollout

DEAD_GROUPS = 0.7  # above this share of groups without spread a batch teaches little
Sums = dict[str, Any]  # numbers, lists of them and dictionaries of them
WIDTH = 80  # columns of a step line
LOGPROB_GAP = 0.1  # nats: the engine does not sample from the weights that are trained


def rollout_metrics(
    result: Rollout, counts: Mapping[str, int], add_up: Callable[[Sums], Sums] = lambda sums: sums
) -> dict[str, Any]:
    """`solved`, `turns`, counts of groups, and for each agent the means over its candidates (docs/runs.md).

    `result` and `counts` (of `assign_advantages` and `groups_per_turn`) are those of this process; `add_up` turns sums
    of this process into those of all.
    """
    episodes, samples = result.episodes, result.samples
    sums: Sums = {
        "episodes": len(episodes),
        "solved": sum(episode.solved for episode in episodes),
        "turns": sum(episode.turns for episode in episodes),
        "samples": len(samples),
        "tokens": sum(len(sample.response_ids) for sample in samples),
        "ended": Counter(episode.ended for episode in episodes),
        "groups": dict(counts),
        "agents": {agent: _agent_sums(agent, samples) for agent in dict.fromkeys(s.key.agent for s in samples)},
    }
    total = add_up(sums)
    counts, ended = Counter[str](total["groups"]), Counter[str](total["ended"])
    row: dict[str, Any] = {
        "solved": total["solved"] / total["episodes"],
        "turns": total["turns"] / total["episodes"],
        "samples": total["samples"],
        "tokens": total["tokens"],
        **{f"groups/{name}": counts[name] for name in ("trained", "constant", "singleton", "invalid")},
        "groups/dead_share": 1 - counts["trained"] / max(counts["groups"], 1),
        **{f"ended/{reason}": ended[reason] for reason in ("done", "turns", "prompt", "infra")},
        "groups/per_turn": [counts[name] for name in sorted(counts, key=_turn) if name.startswith("turn ")],
    }
    for agent, (scored, values) in total["agents"].items():
        row |= {f"{agent}/{name}": value / scored for name, value in values.items()}
    return row


def _agent_sums(agent: str, samples: Sequence[Sample]) -> list[Any]:
    """How many samples of the agent were scored, and the sums of what is reported as their means."""
    scored = [sample for sample in samples if sample.key.agent == agent and sample.valid]
    if not scored:
        return [0, {}]
    parts: dict[str, list[float]] = {
        "reward": [sample.reward for sample in scored],
        "team": [sample.team for sample in scored],
        "local": [sample.local for sample in scored],
        "length": [len(sample.response_ids) for sample in scored],
        "truncated": [sample.truncated for sample in scored],
    }
    for part in dict.fromkeys(name for sample in scored for name in sample.info):
        parts[part] = [sample.info.get(part, 0.0) for sample in scored]
    return [len(scored), {name: fsum(values) for name, values in parts.items()}]


def groups_per_turn(groups: Mapping[Hashable, Sequence[Sample]]) -> dict[str, int]:
    """How many groups there are at each turn: late turns have fewer, because some environments are done."""
    return Counter(f"turn {turn}" for group in groups.values() for turn in {sample.key.turn for sample in group})


def _turn(name: str) -> int:
    return int(name.removeprefix("turn ")) if name.startswith("turn ") else -1


def alarms(row: dict[str, Any], policies: list[str]) -> list[str]:
    """What a person should know about this step."""
    found = []
    if row["groups/dead_share"] > DEAD_GROUPS and row["solved"] < 0.5:
        found.append(
            f"{row['groups/dead_share']:.0%} of the groups have no spread in reward and teach nothing: "
            "more candidates, other levels or a better start would help"
        )
    for name in policies:
        if row.get(f"{name}/logprob_gap", 0.0) > LOGPROB_GAP:
            found.append(f"policy {name}: engine and trainer differ by {row[f'{name}/logprob_gap']:.2f} nats a token")
        if row.get(f"{name}/entropy", 1.0) < 0.005 and row["solved"] < 0.5:
            found.append(f"policy {name}: entropy {row[f'{name}/entropy']:.4f}, it always gives the same answer")
    return found


def step_line(row: dict[str, Any], steps: int, agents: tuple[str, ...], policies: list[str], seconds: float) -> str:
    """The line a person reads while waiting, without names so that it fits. Of more than two numbers the range."""

    def numbers(names: list[str]) -> str:
        found = [row[name] for name in names if name in row]
        if len(names) > 2 and found:
            return f"{min(found):.2f}-{max(found):.2f}"
        return "/".join(f"{row[name]:.2f}" if name in row else "-" for name in names)  # not scored, or not trained

    line = (
        f"step {row['step'] + 1}/{steps} solved {row['solved']:.2f} reward {numbers([f'{a}/reward' for a in agents])} "
        f"dead {row['groups/dead_share']:.0%} entropy {numbers([f'{p}/entropy' for p in policies])} "
    )
    turns, took = f"turns {row['turns']:.1f} ", f"{seconds:.{int(seconds < 100)}f} s"
    return line + turns + took if len(line + turns + took) <= WIDTH else line + took


def transcript(result: Rollout, step: int, board: str = "", limit: int = 4) -> str:
    """The first actions of one environment, as the agents saw and wrote them; `board` is a picture of its start."""
    episode = result.episodes[0]
    lines = [f"--- example, step {step + 1}, environment {episode.env} ---", *board.splitlines()]
    for action in episode.actions[:limit]:
        reward = action.reward
        lines += [f"[turn {action.turn + 1}, {action.agent} sees]", action.messages[-1]["content"]]
        lines += [f"[{action.agent} answers; team {reward.team:.2f}, local {reward.local:.2f}]", action.text.strip()]
    lines.append(f"--- {len(episode.actions)} actions, {'solved' if episode.solved else 'not solved'} ---")
    return "\n".join(lines)


class Clock:
    """Where the seconds of a step went. The team keeps adding to `seconds` ("generate" and "load")."""

    def __init__(self, seconds: defaultdict[str, float]):
        self.seconds = seconds
        self.seconds.clear()
        self.started = time.perf_counter()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - started

    def report(self) -> dict[str, float]:
        """Seconds of the step and of its parts, and the peak of memory in GB: of the process on a CPU; on a GPU what
        torch allocated, the weights and the cache of vLLM included, asleep or not.

        `sample_s` consists of `generate_s`, `environment_s` (scoring, texts, tokens) and loading weights meanwhile
        (`load_s` - `sync_s`: policies that share an engine); `other_s` is in no part.
        """
        step, part = time.perf_counter() - self.started, self.seconds
        peak: float = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak *= 1 if sys.platform == "darwin" else 1024  # macOS counts in bytes, Linux in KiB
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated()
        parts = {f"{name}_s": part[name] for name in ("sample", "generate", "exchange", "update", "sync", "load")}
        return {
            "step_s": step,
            **parts,
            "environment_s": part["sample"] - part["generate"] - max(0.0, part["load"] - part["sync"]),
            "other_s": step - part["sample"] - part["exchange"] - part["update"] - part["sync"],
            "peak_gb": peak / 1e9,
        }
