"""The data of a run's page: which curves it draws, the boards and the recorded trees.

`page.html` beside this file is the page without its data: it draws what this file chooses, loads nothing from
anywhere, and sets every text that a model wrote as text, never as HTML. `still.py` has what is seen without JavaScript.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from records.reading import Record, nearest_folder, read_log, read_object
from records.run_folder import read_sealed
from records.still import still

TREE_BYTES = 6_500_000  # of recorded trees in one page: with all the rest it stays below 8 MB and opens in a second
# of a candidate, in the order in which the page gets them: their names would be most of its bytes
FIELDS = (
    "text", "tokens", "team", "local", "reward", "advantage", "truncated", "committed", "valid", "info", "board",
)  # fmt: skip
# what the page cannot do without, by file
CONFIG = (
    "task", "workflow", "model", "steps", "envs_per_step", "sampling", "num_candidates", "max_turns", "alpha",
    "normalize",
)  # fmt: skip
LOGS = {
    "metrics": ["step"],
    "evaluations": ["step", "success", "se", "n"],
    "timing": ["step"],
    "trees": ["step", "env", "messages", "episodes"],
    "groups": ["step", "tokens", "signal", "advantages", "reward_limit", "rewards"],
    "boards": ["step", "level", "solved", "ended", "board", "actions"],
}


@dataclass(frozen=True)
class Run:
    """The files of a run folder. Everything but the configuration and the metrics may be empty (an older run)."""

    name: str
    config: Record
    metrics: list[Record]
    evaluations: list[Record]
    timing: list[Record]
    trees: list[Record]
    groups: list[Record]
    boards: list[Record]
    sessions: list[Record]  # of run.json

    @property
    def agents(self) -> list[str]:
        return _prefixes(self.metrics, "reward")

    @property
    def policies(self) -> list[str]:
        return _prefixes(self.metrics, "entropy")


def read_run(folder: Path) -> Run:
    """Raises ValueError when the folder holds no run, no step was finished yet, or a file is damaged."""
    if not (folder / "config.json").is_file():
        hint = nearest_folder(folder, "config.json")
        raise ValueError(f"{folder} holds no run (no config.json): give the --output-dir of train.py{hint}")
    config = read_sealed(folder / "config.json")
    if missing := [name for name in CONFIG if name not in config]:
        raise ValueError(f"{folder / 'config.json'}: {missing[0]} is missing")
    logs = {name: read_log(folder / f"{name}.jsonl", needs) for name, needs in LOGS.items()}
    if not logs["metrics"]:
        raise ValueError(f"{folder / 'metrics.jsonl'} has no finished step yet: wait for the first one")
    about = folder / "run.json"
    sessions = read_object(about, ["sessions"])["sessions"] if about.exists() else []
    return Run(folder.resolve().name, config, sessions=sessions, **logs)


# ------------------------------------------------------------------------------------------------------------- curves


def sections(run: Run) -> list[Record]:
    """All charts of the page, in the order of a reader's questions: does it learn, from which groups, what happens to
    the policies, how long does it write. A chart without a point is left out.
    """
    titles = {
        "Learning": learning_charts(run),
        "Groups": group_charts(run),
        "Policies": policy_charts(run),
        "Responses and time": response_charts(run),
    }
    drawn = {title: [c for c in charts if c["series"]] for title, charts in titles.items()}
    return [{"title": title, "charts": charts} for title, charts in drawn.items() if charts]


def learning_charts(run: Run) -> list[Record]:
    training = "the tree, best of K at every action" if run.config["sampling"] == "tree" else "sampled chains"
    success = curve("held-out", run.evaluations, "success", "se")
    parts = [
        curve(f"{agent} {part}", run.metrics, f"{agent}/{part}") for agent in run.agents for part in info_names(run)
    ]
    return [
        chart(
            "Success",
            f"Held-out: one greedy chain, bars are ±1 standard error. Training: {training}.",
            [success, curve("training", run.metrics, "solved")],
            share=True,
        ),
        chart("Held-out format", "Share of held-out answers that could be read, by role.", formats(run), share=True),
        chart("Reward", "alpha · team + local, mean over all candidates of an agent.", of_agents(run, "reward")),
        chart("Team reward", "What the actions are worth to the task.", of_agents(run, "team"), share=True),
        chart("Local reward", "What the agent did for its own part.", of_agents(run, "local"), share=True),
        chart("Parts of the local reward", "Format: the answer could be read.", parts, share=True),
    ]


def group_charts(run: Run) -> list[Record]:
    metrics = run.metrics
    return [
        chart(
            "Dropped groups",
            "Share of groups without spread in reward: they teach nothing. Above 0.7 is a warning.",
            [curve("dropped", metrics, "groups/dead_share")],
            share=True,
        ),
        chart(
            "Groups a step",
            "Trained: with spread. Constant: equal rewards. Singleton: fewer than two scored.",
            [curve(name, metrics, f"groups/{name}") for name in ("trained", "constant", "singleton")],
        ),
        chart(
            "Spread of reward",
            "Mean standard deviation inside a group, of the recorded environments only: not a mean of all.",
            [points("recorded groups", group_spreads(run.trees))],
        ),
        chart(
            "Groups with a signal",
            "Share, by turn: somebody is better than somebody else who answered the same prompt.",
            by_turn(run.groups, "signal"),
            share=True,
        ),
        chart(
            "Groups by turn",
            "Late turns have fewer: their environments are done.",
            by_turn(metrics, "groups/per_turn", unreached=(0,)),
        ),
        chart(
            "Why environments ended",
            "Number a step: done, out of turns, prompt too long, not scored.",
            [curve(name, metrics, f"ended/{name}") for name in ("done", "turns", "prompt", "infra")],
        ),
    ]


def policy_charts(run: Run) -> list[Record]:
    def of_policies(metric: str) -> list[Record]:
        return [curve(name, run.metrics, f"{name}/{metric}") for name in run.policies]

    gap = "Mean |engine − trainer| in nats a token. Above 0.1 the engine does not sample from the trained weights."
    return [
        chart("Entropy", "Nats a token. Near 0 with little solved: always the same answer.", of_policies("entropy")),
        chart("Log-prob gap", gap, of_policies("logprob_gap")),
        chart("Gradient norm", "Before clipping.", of_policies("grad_norm")),
        chart("Clipped tokens", "Share of tokens whose ratio was clipped.", of_policies("clip_fraction")),
    ]


def response_charts(run: Run) -> list[Record]:
    clocks = dict.fromkeys(name for row in run.timing for name in row if name.endswith("_s"))
    seconds = [line for name in clocks if any((line := curve(name[:-2], run.timing, name))["y"])]
    return [
        chart("Response length", "Tokens, mean over candidates.", of_agents(run, "length")),
        chart(
            "Truncated responses", "Share cut off by --max-response-tokens.", of_agents(run, "truncated"), share=True
        ),
        chart("Turns", "Mean turns an environment took.", [curve("turns", run.metrics, "turns")]),
        chart("Seconds a step", "Wall clock; parts that took no time are left out.", seconds),
        chart("Peak memory", "GB.", [curve("peak", run.timing, "peak_gb")]),
    ]


def of_agents(run: Run, metric: str) -> list[Record]:
    return [curve(agent, run.metrics, f"{agent}/{metric}") for agent in run.agents]


def chart(title: str, note: str, series: list[Record], share: bool = False) -> Record:
    """What the page draws in one figure; `share` fixes its axis to [0, 1]. Lines without a point are left out."""
    return {"title": title, "note": note, "share": share, "series": [line for line in series if line["x"]]}


def curve(name: str, rows: Iterable[Record], metric: str, error: str = "") -> Record:
    """One metric over the steps that have it; `error` names the metric of its error bars."""
    found = [row for row in rows if metric in row]
    line = points(name, ((row["step"], row[metric]) for row in found))
    return line | {"error": [_or_gap(row[error]) for row in found]} if error else line


def points(name: str, pairs: Iterable[tuple[float, float]]) -> Record:
    """A line of the page."""
    found = list(pairs)
    return {"name": name, "x": [x for x, _ in found], "y": [_or_gap(y) for _, y in found]}


def _or_gap(value: float) -> float | None:
    """JSON has no NaN: such a value becomes None, which is drawn as a gap."""
    return value if math.isfinite(value) else None


def by_turn(rows: Sequence[Record], metric: str, unreached: tuple[float, ...] = ()) -> list[Record]:
    """A metric that is a list as one line a turn. In a step in which nobody reached it, its value is `unreached`."""
    values = [(row["step"], row[metric]) for row in rows if metric in row]
    turns = range(max((len(value) for _, value in values), default=0))
    padded = [(step, [*value, *(unreached * len(turns))]) for step, value in values]
    return [points(f"turn {turn}", ((step, v[turn]) for step, v in padded if turn < len(v))) for turn in turns]


def formats(run: Run) -> list[Record]:
    """Held-out format by role."""
    rows = [{**row.get("formats", {}), "step": row["step"]} for row in run.evaluations]
    agents = dict.fromkeys(agent for row in run.evaluations for agent in row.get("formats", {}))
    return [curve(agent, rows, agent) for agent in agents]


def group_spreads(trees: Iterable[Record]) -> list[tuple[int, float]]:
    """(step, mean over its recorded groups of the standard deviation of reward).

    A group is a stage of a tree; of chains, all trajectories of the environment, each counted once.
    """
    found: dict[int, list[float]] = {}
    for row in trees:
        episodes = [episode for episode in row["episodes"] if episode["stages"]]
        groups = [stage["candidates"] for episode in episodes for stage in episode["stages"]]
        if any(episode["trajectory"] is not None for episode in episodes):
            groups = [[episode["stages"][0]["candidates"][0] for episode in episodes]]
        for group in groups:
            rewards = [candidate["reward"] for candidate in group if candidate["valid"]]
            if len(rewards) > 1:
                found.setdefault(row["step"], []).append(stdev(rewards))
    return [(step, fmean(spreads)) for step, spreads in found.items()]


def _prefixes(metrics: Iterable[Record], metric: str) -> list[str]:
    """Names x with a metric x/`metric` in any row (agents and policies may share a name)."""
    found = dict.fromkeys(name.rpartition("/") for row in metrics for name in row)
    return [prefix for prefix, _, last in found if last == metric]


def info_names(run: Run) -> list[str]:
    """Names of the parts that environments report; only recorded trees tell them from other metrics of an agent."""
    stages = (stage for row in run.trees for episode in row["episodes"] for stage in episode["stages"])
    recorded = (name for stage in stages for candidate in stage["candidates"] for name in candidate["info"])
    return list(dict.fromkeys(["format", *recorded]))


# --------------------------------------------------------------------------------------------------------------- page


def thin(rows: list[Record], limit: int = TREE_BYTES) -> list[Record]:
    """Every n-th recorded step and the last one, with the smallest n that fits `limit` bytes of JSON."""
    sizes = [len(json.dumps(row)) for row in rows]
    steps = list(dict.fromkeys(row["step"] for row in rows))
    for stride in range(1, len(steps) + 1):
        kept = {*steps[::stride], steps[-1]}
        if sum(size for row, size in zip(rows, sizes, strict=True) if row["step"] in kept) <= limit:
            break
    return [row for row in rows if row["step"] in kept] if rows else []


def compact(row: Record) -> Record:
    """A recorded tree whose candidates are lists of FIELDS."""

    def shorter(candidate: Record) -> list[Any]:
        values = [candidate.get(name) for name in FIELDS]
        return [int(value) if isinstance(value, bool) else value for value in values]

    episodes = [
        {
            **episode,
            "stages": [{**stage, "candidates": [*map(shorter, stage["candidates"])]} for stage in episode["stages"]],
        }
        for episode in row["episodes"]
    ]
    return {**row, "episodes": episodes}


def summary(run: Run) -> list[tuple[str, str]]:
    """The facts above the curves."""
    config = run.config
    model = [config["model"]] if isinstance(config["model"], str) else config["model"]  # an older run had one
    facts = [
        ("Task", f"{config['task']} ({config['workflow']})"),
        ("Sampling", f"{config['sampling']}, K = {config['num_candidates']}, at most {config['max_turns']} turns"),
        ("Model", f"{' '.join(model)}; policies: {', '.join(run.policies)}; agents: {', '.join(run.agents)}"),
        ("Steps", f"{len(run.metrics)} of {config['steps']}, {config['envs_per_step']} environments each"),
    ]
    if run.evaluations:
        last = run.evaluations[-1]
        values = [f"{row['success']:.3f}" for row in (run.evaluations[0], last)[-len(run.evaluations) :]]
        facts.append(("Held-out success", f"{' → '.join(values)} (n = {last['n']}, se {last['se']:.3f})"))
    if "seed" in config:
        facts.append(("Seed", str(config["seed"])))
    for session in run.sessions:
        versions = ", ".join(f"{name} {number}" for name, number in session["versions"].items())
        facts += [("Command", session["command"]), ("Versions", versions)]
        facts.append(("Date", f"{session['date'].replace('T', ' ')}, {duration(session['seconds'])}"))
    return facts


def duration(seconds: float) -> str:
    """
    >>> duration(75.4), duration(5025), duration(9.6)
    ('1 min 15 s', '1 h 23 min', '10 s')
    """
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def clocks(run: Run) -> dict[str, list[float]]:
    """Other axes for the curves: tokens sampled and seconds trained before each step. Only what all steps know."""
    sources = {"tokens": (run.groups, "tokens"), "seconds": (run.timing, "step_s")}
    counts = {name: [row[field] for row in rows if field in row] for name, (rows, field) in sources.items()}
    steps = range(len(run.metrics))
    whole = [row["step"] for row in run.metrics] == list(steps)
    return {
        name: [round(total, 1) for total in accumulate(count, initial=0)]
        for name, count in counts.items()
        if whole and len(count) >= len(steps)
    }


def choice(run: Run) -> str:
    """How the recorded environments were chosen."""
    if run.groups:
        return "Of each step, the environments with the most groups that have a signal are recorded."
    return "The first environments of each step are recorded."


def page(run: Run) -> str:
    """The whole page of a run."""
    trees = thin([*map(compact, run.trees)])
    data = {
        "summary": summary(run),
        "sections": sections(run),
        "clocks": [clocks(run)],
        "groups": run.groups,
        "boards": run.boards,
        "fields": FIELDS,
        "trees": trees,
        "recorded_steps": len({row["step"] for row in run.trees}),
        "choice": choice(run),
        "alpha": run.config["alpha"],
        "normalize": run.config["normalize"],
    }
    return fill(run.name, data, run.trees)


def fill(title: str, data: Record, trees: Sequence[Record] = ()) -> str:
    """The template with its data, which are in a JSON block without any `<`, so nothing in them can end the block."""
    block = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {"TITLE": html.escape(title), "STILL": still(data["summary"], data["sections"], trees), "DATA": block}
    template = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(TITLE|STILL|DATA)\}\}", lambda match: parts[match[1]], template)
