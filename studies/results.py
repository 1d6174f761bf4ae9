"""The results of the experiments: the numbers of every row, collected from the run folders, and the tables.

FOLDER/TRAINING-seedN/         a run of train.py
FOLDER/plays/ROW-seedN.json    [success, n] of a team that was put together from checkpoints
FOLDER/sessions.jsonl          when and where commands ran
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from records.reading import read_log
from studies.rows import Method

GROUPS = ("groups/trained", "groups/constant", "groups/singleton")
METRICS = ("step", "samples", "tokens", *GROUPS)  # of a step, that the table needs
BUDGETS = ("candidates", "tokens", "seconds")  # what a training spends; the seconds are those of its steps
# Two-sided 95% quantile of t for 1 to 9 degrees of freedom; the last one is slightly too wide for more.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def run_folder(folder: Path, training: str, seed: int) -> Path:
    return folder / f"{training}-seed{seed}"


def play_path(folder: Path, row: Method, seed: int) -> Path:
    name = "".join(char if char.isalnum() else "_" for char in row.label)
    return folder / "plays" / f"{name}-seed{seed}.json"


def learning_curve(run: Path) -> list[dict[str, Any]]:
    """Held-out evaluations so far, each step once: a run that was killed in its set-up wrote step 0 twice."""
    rows = read_log(run / "evaluations.jsonl", ("step", "success", "n"))
    return list({row["step"]: row for row in rows}.values())


def collect(
    folder: Path, sections: Mapping[str, Sequence[Method]], seeds: Sequence[int], steps: int,
    claims: Mapping[str, tuple[str, str]],
) -> dict[str, Any]:  # fmt: skip
    """Everything that tables and figure show, as JSON: rows with the numbers of each seed, and where they come from.

    `sections`: rows by heading; `steps`: of a finished run; `claims`: the labels of two rows that are compared.
    """
    rows = [
        {
            "section": section,
            "label": row.label,
            "curves": not row.untrained and section == "Methods",
            **numbers(row, folder, seeds, steps),
        }
        for section, part in sections.items()
        for row in part
    ]
    kept = {claim: list(pair) for claim, pair in claims.items() if {*pair} <= {row["label"] for row in rows}}
    sessions = read_log(folder / "sessions.jsonl")
    return {"steps": steps, "seeds": list(seeds), "rows": rows, "claims": kept, "sessions": sessions}


def numbers(row: Method, folder: Path, seeds: Sequence[int], steps: int) -> dict[str, Any]:
    """The runs of a row, one for each seed that has got far enough to have a number."""
    found = []
    for seed in seeds:
        runs = [run_folder(folder, training, seed) for training in row.trainings]
        curve = [[point["step"], point["success"], point["n"]] for point in learning_curve(runs[0])]
        if row.untrained:
            curve = curve[:1]
        elif row.team:
            curve = [[steps, *result] for result in played(play_path(folder, row, seed))]
        elif curve and curve[-1][0] == 0:  # has only begun
            curve = []
        if curve:
            metrics = [step for run in runs for step in read_log(run / "metrics.jsonl", METRICS)]
            if not metrics and not row.untrained:
                raise ValueError(
                    f"{runs[0]} was evaluated after step 0, but its metrics.jsonl has no step: delete the run"
                )
            trained = {} if row.untrained else sampled(metrics)
            if trained and not row.team:
                trained["spent"] = spent(runs[0], metrics, curve)
            found.append({"seed": seed, "curve": curve, **trained})
    return {"trainings": row.trainings, "runs": found}


def spent(run: Path, metrics: Sequence[dict], curve: Sequence[Sequence]) -> dict[str, list[float]]:
    """What a run had sampled (candidates, tokens) and how long its steps had taken at each point of its curve."""
    seconds = {row["step"]: row["step_s"] for row in read_log(run / "timing.jsonl", ("step", "step_s"))}
    if missing := {row["step"] for row in metrics} - seconds.keys():
        raise ValueError(f"{run}: timing.jsonl has no step {min(missing)}, which metrics.jsonl has: delete the run")
    steps = {row["step"]: (row["samples"], row["tokens"], seconds[row["step"]]) for row in metrics}
    sums = [[sum(row[i] for step, row in steps.items() if step < at) for at, *_ in curve] for i in range(len(BUDGETS))]
    return dict(zip(BUDGETS, sums, strict=True))


def played(path: Path) -> list[tuple[float, int]]:
    """Success and n of a team; none when it was not played yet. ValueError naming the file when that is damaged."""
    if not path.exists():
        return []
    try:
        success, n = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError):
        raise ValueError(f"{path} is damaged: delete it, and the team plays again") from None
    return [(success, n)]


def sampled(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Candidates a step, and the share of groups whose rewards differ."""
    groups = [[step[kind] for kind in GROUPS] for step in steps]
    signal = sum(trained for trained, *_ in groups) / max(sum(map(sum, groups)), 1)
    return {"samples": fmean(step["samples"] for step in steps), "signal": signal}


def machine() -> str:
    """Processor, cores and versions, read from the machine."""
    import torch
    import transformers

    processor = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        processor = models[0] if models else processor
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{platform.system()}, {processor}, {os.cpu_count()} cores, {versions}"


def mean_se(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and its standard error over seeds; None for a single one."""
    return fmean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def common_step(runs: Sequence[dict[str, Any]]) -> int:
    """The last step that all seeds of a row have reached: seeds are only averaged at the same step."""
    return min(run["curve"][-1][0] for run in runs)


def success(runs: Sequence[dict[str, Any]], step: int) -> list[float]:
    return list(by_seed(runs, step).values())


def by_seed(runs: Sequence[dict[str, Any]], step: int) -> dict[int, float]:
    return {run["seed"]: value for run in runs for at, value, _ in run["curve"] if at == step}


def with_se(mean: float, se: float | None) -> str:
    return f"{mean:.3f}" + ("" if se is None else f" ± {se:.3f}")


def at_budget(run: dict[str, Any], kind: str, budget: float) -> float:
    """Success of a run where it had spent `budget`: on the line between the evaluations before and after."""
    points = list(zip(run["spent"][kind], [value for _, value, _ in run["curve"]], strict=True))
    for (before, low), (after, high) in pairwise(points):
        if budget <= after:
            return low + (high - low) * (budget - before) / max(after - before, 1e-9)
    return points[-1][1]


def budgets(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The most of each kind that every run of these rows has spent."""
    runs = [run for row in rows for run in row["runs"]]
    return {kind: min(run["spent"][kind][-1] for run in runs) for kind in BUDGETS}


def difference(better: Mapping[int, float], worse: Mapping[int, float]) -> str:
    """Mean difference of the seeds that both have, its 95% interval, and how often it was above 0."""
    values = [better[seed] - worse[seed] for seed in better if seed in worse]
    if not values:
        return "missing"
    mean, se = mean_se(values)
    if se is None:
        return f"{mean:+.3f} (one seed)"
    half = se * T95[min(len(values) - 2, len(T95) - 1)]
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}], {sum(v > 0 for v in values)} of {len(values)}"


def trained_rows(results: dict[str, Any], section: str) -> list[dict[str, Any]]:
    """The rows of a section that are the end of one training."""
    rows = [row for row in results["rows"] if row["section"] == section and row["runs"]]
    return [row for row in rows if "spent" in row["runs"][0]]


def at_budgets(rows: Sequence[dict[str, Any]], limits: Mapping[str, float]) -> dict[str, dict[str, dict[int, float]]]:
    """Success of each row (by label) at each limit (by kind) on each seed."""
    return {
        row["label"]: {
            kind: {run["seed"]: at_budget(run, kind, limits[kind]) for run in row["runs"]} for kind in limits
        }
        for row in rows
    }


def equal_budgets(results: dict[str, Any]) -> list[str]:
    """Tables of the trained methods at equal candidates, tokens and seconds, and of the claims."""
    rows = trained_rows(results, "Methods")
    if not rows:
        return []
    limits = budgets(rows)
    units = ("candidates", "tokens", "s")
    kinds = [f"after {limits[kind]:,.0f} {unit}" for kind, unit in zip(BUDGETS, units, strict=True)]
    lines = [f"| equal budgets | {' | '.join(kinds)} |", "|---|---|---|---|"]
    for label, found in at_budgets(rows, limits).items():
        values = [with_se(*mean_se(list(found[kind].values()))) for kind in BUDGETS]
        lines.append(f"| {label} | {' | '.join(values)} |")
    return [*lines, "", *differences(results), ""]


def differences(results: dict[str, Any]) -> list[str]:
    """The table of the claims; each section has its own budgets."""
    runs: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for section in dict.fromkeys(row["section"] for row in results["rows"]):
        if rows := trained_rows(results, section):
            runs |= {row["label"]: row["runs"] for row in rows}
            found |= at_budgets(rows, budgets(rows))
    lines = ["| differences | at equal steps | at equal candidates | at equal seconds |", "|---|---|---|---|"]
    for claim, (better, worse) in results["claims"].items():
        if better in found and worse in found:
            step = common_step([*runs[better], *runs[worse]])
            pairs = [(by_seed(runs[better], step), by_seed(runs[worse], step))]
            pairs += [(found[better][kind], found[worse][kind]) for kind in ("candidates", "seconds")]
            lines.append(f"| {claim} | {' | '.join(difference(*pair) for pair in pairs)} |")
    return lines


def table(results: dict[str, Any], notes: str) -> str:
    """The results as Markdown; `notes` say what the rows are."""
    lines = ["# Methods and ablations, measured", ""]
    for section in dict.fromkeys(row["section"] for row in results["rows"]):
        lines += [
            f"| {section.lower()} | held-out success | seeds | each seed | candidates a step | signal |",
            "|---|---|---|---|---|---|",
        ]
        lines += [table_line(row, results) for row in results["rows"] if row["section"] == section]
        lines.append("")
        if section == "Methods":
            lines += equal_budgets(results)
    boards = {n for row in results["rows"] for run in row["runs"] for _, _, n in run["curve"]}
    lines.append(
        f"Tiny model (0.16M parameters), {results['steps']} steps, "
        f"n = {', '.join(map(str, sorted(boards))) or 'no'} held-out levels for each seed."
    )
    lines += ["", notes]
    for session in results["sessions"]:
        lines.append(
            f"- `{session['command']}`: {session['date']}, {session['minutes']:.1f} minutes, {session['finished']} "
            f"trainings finished, {session['jobs']} at a time; {session['machine']}"
        )
    return "\n".join([*lines, ""])


def table_line(row: dict[str, Any], results: dict[str, Any]) -> str:
    """One row; what is missing or was stopped early says so."""
    runs, label = row["runs"], row["label"]
    if not runs:
        return f"| {label} | missing | 0 of {len(results['seeds'])} | | | |"
    step = common_step(runs)
    values = success(runs, step)
    number = with_se(*mean_se(values))
    if step not in (0, results["steps"]):
        number += f" (after {step} of {results['steps']} steps)"
    missing = len(results["seeds"]) - len(runs)
    seeds = f"{len(runs)} of {len(results['seeds'])}" if missing else str(len(runs))
    samples = signal = ""
    if "samples" in runs[0]:
        samples = f"{fmean(run['samples'] for run in runs):.0f}"
        signal = f"{fmean(run['signal'] for run in runs):.0%}"
    return f"| {label} | {number} | {seeds} | {' '.join(f'{value:.3f}' for value in values)} | {samples} | {signal} |"
