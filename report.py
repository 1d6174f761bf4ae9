"""One self-contained HTML page of a run: the tree of candidates, board by board, and its learning curves.

    python report.py runs/NAME            writes runs/NAME/report.html; open it in any browser
    python report.py runs/NAME --output page.html
    python report.py runs/A runs/B ...    their curves in one page, runs/comparison.html

It also works during the run. The page loads nothing from anywhere and shows what a model wrote as text.
"""

import argparse
import html
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from options import Config, load
from records.console import errors_in_one_line, half_up, say
from records.run_folder import Row, read_object, read_rows, write_text

TEMPLATE = Path(__file__).parent / "records" / "page.html"
# An example of each row, see `fits`.
TREE = {
    "step": 0, "env": 0, "messages": [{"role": "", "content": ""}], "boards": [("", [""])],
    "episodes": [{"trajectory": (0, None), "ended": "", "solved": True, "stages": [
        {"turn": 0, "agent": "", "prompt": [0], "board": (0, None), "candidates": [
            {"text": "", "tokens": 0, "team": 0, "local": 0, "reward": 0, "advantage": 0, "truncated": True,
             "committed": True, "valid": True, "info": {"*": 0}, "board": (0, None), "way": ([[0]], None)}]}]}],
}  # fmt: skip
FILES = {
    "run.json": {"sessions": [{"command": "", "date": "", "versions": {"*": ""}}]},
    "metrics.jsonl": {"step": 0, "groups/per_turn": ([0], None), "*": 0.0},
    "timing.jsonl": {"step": 0, "*": 0},
    "evaluations.jsonl": {"step": 0, "success": 0, "se": 0, "n": 0, "turns": 0, "formats": {"*": 0}},
    "trees.jsonl": TREE,
    "boards.jsonl": TREE,
}
CHARTS = (  # title, note, metrics ("/reward": that of every agent), whether a share of 1
    ("Success", "Held-out: greedy, ±1 standard error. Training: the best of K at every action (chains: as sampled).",
     ("held-out", "solved"), True),
    ("Reward", "alpha · team + local, mean over candidates.", ("/reward",), False),
    ("Team reward", "What the actions are worth to the task.", ("/team",), True),
    ("Held-out format", "Share of held-out answers that could be read.", ("/held-out format",), True),
    ("Groups without a signal", "All K rewards are equal: they teach nothing.", ("groups/dead_share",), True),
    ("Turns", "Mean of an environment in training.", ("turns",), False),
    ("Entropy", "Nats a token. Near 0 with little solved: always the same answer.", ("/entropy",), False),
    ("Log-prob gap", "Mean |engine - trainer|, nats a token. Above 0.1: other weights.", ("/logprob_gap",), False),
    ("Gradient norm", "Before clipping.", ("/grad_norm",), False),
    ("Response length", "Tokens, mean over candidates.", ("/length",), False),
    ("Truncated responses", "Share cut off by --max-response-tokens.", ("/truncated",), True),
    ("Seconds a step", "Wall clock, and its largest parts.", ("step_s", "sample_s", "update_s"), False),
)  # fmt: skip


def fits(value: Any, example: Any) -> bool:
    """Whether a value has all that the example has, of the same kinds, and no more.

    "*" stands for all other keys, an item for all of a list, 0 for a number, 0.0 also for NaN, a tuple for either.
    """
    if isinstance(example, tuple):
        return any(fits(value, one) for one in example)
    if isinstance(example, dict) and isinstance(value, dict):
        names = {*example, *value} - {"*"}
        return all(fits(value.get(name), example.get(name, example.get("*"))) for name in names)
    if isinstance(example, list) and isinstance(value, list):
        return all(fits(item, example[0]) for item in value)
    if type(example) in (int, float) and isinstance(value, (int, float)):
        return -(2**53) < value < 2**53 or (type(example) is type(value) is float)
    return isinstance(value, type(example))


@dataclass(frozen=True)
class Saved:
    """The files of a run folder; only options and metrics are never empty."""

    folder: Path
    config: Config
    sessions: list[Row]
    rows: list[Row]  # of metrics, timing and evaluations; `step`: how many are done
    sets: dict[str, list[Row]]  # trees of training levels, and of held-out levels
    steps: str  # how many are done


def read_run(folder: Path) -> Saved:
    """ValueError naming the file: no run, no finished step, or a row that train.py does not write."""
    config, found = load(folder), dict[str, list[Row]]()
    for name, example in FILES.items():
        path = folder / name
        found[path.stem] = [read_object(path)] if name == "run.json" and path.exists() else read_rows(path)
        if odd := [number for number, row in enumerate(found[path.stem], 1) if not fits(row, example)]:
            raise ValueError(f"{path}, row {odd[0]} is not what train.py writes")
    if not found["metrics"]:
        raise ValueError(f"{folder / 'metrics.jsonl'} has no finished step yet")
    rows = [row | {"step": row["step"] + 1} for row in found["metrics"] + found["timing"]]
    for row in found["evaluations"]:
        formats = {f"{agent}/held-out format": share for agent, share in row["formats"].items()}
        rows.append({"step": row["step"], "held-out": row["success"], "se": row["se"], "n": row["n"], **formats})
    sets = {"training": found["trees"], "held-out": found["boards"]}
    sessions = found["run"][0]["sessions"] if found["run"] else []
    return Saved(folder, config, sessions, rows, sets, f"{len(found['metrics'])} of {config.steps} steps")


def lines(rows: Sequence[Row], metrics: Sequence[str], prefix: str = "") -> list[Row]:
    """The curves of a chart, one for each agent, policy or file with such a metric. No number is a gap."""
    found = []
    for name in dict.fromkeys(name for row in rows for name in row):
        owner, slash, metric = name.rpartition("/")
        if {name, slash + metric} & {*metrics}:
            known = [row for row in rows if name in row]
            values = [row[name] if isfinite(row[name]) else None for row in known]
            line = {"name": prefix + (owner or name), "x": [row["step"] for row in known], "y": values}
            found.append(line | ({"error": [row["se"] for row in known]} if name == "held-out" else {}))
    return found


def facts(run: Saved) -> list[tuple[str, str]]:
    """What stands above the tree."""
    config, tested = run.config, [row for row in run.rows if "held-out" in row]
    found = [
        ("Task", f"{config.task} ({config.workflow}), {' '.join(config.model)}"),
        ("Sampling", f"{config.sampling}, K = {config.num_candidates}, at most {config.max_turns} turns"),
        ("Training", f"{run.steps}, {config.envs_per_step} environments each"),
    ]
    if tested:
        values = " → ".join(half_up(row["held-out"], 3) for row in (*tested[:-1][:1], tested[-1]))
        found.append(("Held-out success", f"{values} (n = {tested[-1]['n']}, se {half_up(tested[-1]['se'], 3)})"))
    for session in run.sessions:
        versions = ", ".join(f"{name} {number}" for name, number in session["versions"].items())
        found += [("Command", session["command"]), ("Date", f"{session['date']}, {versions}")]
    return found


def overlay(runs: Sequence[Saved]) -> list[tuple[str, str]]:
    """What stands above the curves of several runs, with the options that differ."""
    whole = [(str(run.folder), f"{run.config.task} ({run.config.workflow}), {run.steps}") for run in runs]
    options = {name: [str(getattr(run.config, name)) for run in runs] for name in asdict(runs[0].config)}
    return whole + [(name, " | ".join(values)) for name, values in options.items() if len({*values}) > 1]


def page(runs: Sequence[Saved]) -> str:
    """The whole page. Several runs share the charts and show no trees."""
    several, first = len(runs) > 1, runs[0]
    names = [str(run.folder) if several else run.folder.resolve().name for run in runs]
    charts = []
    for title, note, metrics, share in CHARTS:
        series = [line for run in runs for line in lines(run.rows, metrics, f"{run.folder} " if several else "")]
        charts += [{"title": title, "note": note, "share": share, "series": series}] if series else []
    data = {
        "facts": overlay(runs) if several else facts(first),
        "charts": charts,
        "sets": {name: rows for name, rows in first.sets.items() if rows and not several},
        "alpha": first.config.alpha,
        "scale": " / deviation" if first.config.normalize == "std" else "",
    }
    # without `<`, nothing that a model wrote can end the block
    block = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    head, tail = TEMPLATE.read_text(encoding="utf-8").split("{{DATA}}")
    return head.replace("{{TITLE}}", html.escape(" · ".join(names))) + block + tail


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="folders that train.py wrote")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: as above")
    given = parser.parse_args(argv)
    first, *others = given.runs
    output = given.output or (first.resolve().parent / "comparison.html" if others else first / "report.html")
    with errors_in_one_line("report.py"):
        runs = [read_run(folder) for folder in given.runs]
        write_text(output, page(runs))
    say(f"{output}: {', '.join(run.steps for run in runs)}, {output.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
