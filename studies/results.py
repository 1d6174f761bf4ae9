"""The results of the experiments: the numbers of every row, collected from the run folders, and the tables.

FOLDER/OPTIONS-seedN/          a run of train.py
FOLDER/plays/ROW-seedN.json    [success, n] of a team that was put together from checkpoints
FOLDER/sessions.jsonl          when and where commands ran
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from mpmath import betainc, findroot

from records.run_folder import read_rows
from studies.rows import BUDGET, CLAIMS, Method, steps_of

GROUPS = ("groups/trained", "groups/constant", "groups/singleton")
BUDGETS = {"candidates": "samples", "tokens": "tokens"}  # what a training spends, and the metric of a step that says it
NOTES = f"""
Tiny model (0.16M parameters), {{steps}} steps of at most {BUDGET} candidates, n = {{boards}} held-out levels. What the
columns and differences mean: docs/runs.md, "How to read the tables". Rewards: studies/ablations.py.
"""
SESSION = "- `{command}`: {date}, {minutes:.1f} minutes, {finished} trainings finished, {jobs} at a time; {machine}"
Record = dict[str, Any]  # a row of the results, or one of its runs


def run_folder(folder: Path, options: str, seed: int) -> Path:
    return folder / f"{re.sub(r'[^a-zA-Z0-9_.]+', '-', options).strip('-') or 'shared'}-seed{seed}"


def play_path(folder: Path, row: Method, seed: int) -> Path:
    return folder / "plays" / f"{run_folder(folder, row.label, seed).name}.json"


def learning_curve(run: Path) -> list[list[Any]]:
    """[step, success, n] of the evaluations so far; a run that was killed in its set-up wrote step 0 twice."""
    rows = read_rows(run / "evaluations.jsonl", ("step", "success", "n"))
    return list({row["step"]: [row["step"], row["success"], row["n"]] for row in rows}.values())


def collect(folder: Path, tables: Mapping[str, Sequence[Method]], seeds: Sequence[int], steps: int) -> Record:
    """Everything that tables and figure show, as JSON: rows with the numbers of each seed, and where they come from."""
    rows = [
        {"section": section.capitalize(), "label": row.label, "steps": steps_of(row.options, steps)}
        | {"runs": [run for seed in seeds for run in numbers(row, folder, seed, steps)]}
        for section, part in tables.items()
        for row in part
    ]
    sessions = read_rows(folder / "sessions.jsonl")
    return {"steps": steps, "seeds": list(seeds), "rows": rows, "claims": CLAIMS, "sessions": sessions}


def numbers(row: Method, folder: Path, seed: int, steps: int) -> list[Record]:
    """The run of a row with one seed; none if it has not got far enough to have a number."""
    runs = [run_folder(folder, options, seed) for options in row.trainings]
    curve, played = learning_curve(runs[0]), play_path(folder, row, seed)
    if row.untrained:  # the evaluation before the first step
        return [{"seed": seed, "curve": curve[:1]}] if curve else []
    if row.team:
        curve = [[steps, *json.loads(played.read_text(encoding="utf-8"))]] if played.exists() else []
    if not curve or curve[-1][0] == 0:  # has only begun
        return []
    needs = ("step", *BUDGETS.values(), *GROUPS)
    every = [step for run in runs for step in read_rows(run / "metrics.jsonl", needs)]
    signal = sum(step["groups/trained"] for step in every)
    signal /= max(sum(step[kind] for step in every for kind in GROUPS), 1)
    found = {"seed": seed, "curve": curve, "samples": fmean(step["samples"] for step in every), "signal": signal}
    if not row.team:
        found["spent"] = {  # at each point of its curve
            kind: [sum(step[name] for step in every if step["step"] < at) for at, *_ in curve]
            for kind, name in BUDGETS.items()
        }
    return [found]


# ---------------------------------------------------------------------------------------------------------- statistics


def mean_se(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error over seeds; 0 for a single one."""
    return fmean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def common_step(*rows: Record) -> int:
    """The last step that all seeds of the rows have reached: seeds are only averaged at the same step."""
    return min(run["curve"][-1][0] for row in rows for run in row["runs"])


def success(row: Record, step: int) -> dict[int, float]:
    """By seed."""
    return {run["seed"]: value for run in row["runs"] for at, value, _ in run["curve"] if at == step}


def trained(results: Record, section: str) -> list[Record]:
    """The rows of a section that are the end of one training."""
    return [row for row in results["rows"] if row["section"] == section and row["runs"] and "spent" in row["runs"][0]]


def at_budget(row: Record, kind: str, results: Record) -> tuple[float, dict[int, float]]:
    """The most that every run of the row's section has spent, and success by seed on the line between evaluations."""
    limit = min(run["spent"][kind][-1] for other in trained(results, row["section"]) for run in other["runs"])
    curves = {run["seed"]: (run["spent"][kind], [value for _, value, _ in run["curve"]]) for run in row["runs"]}
    return limit, {seed: float(np.interp(limit, *curve)) for seed, curve in curves.items()}


def t_test(values: Sequence[float]) -> tuple[float, float]:
    """Half the width of the 95% interval of the mean, and the two-sided p of "the mean is 0" (Student's t)."""
    free, (mean, se) = len(values) - 1, mean_se(values)

    def outside(t: float) -> Any:
        return betainc(free / 2, 0.5, 0, free / (free + t**2), regularized=True)

    # the t that leaves 5% outside: between 1.96 (many seeds) and 12.7 (two)
    quantile = findroot(lambda t: outside(t) - 0.05, (1.9, 13), solver="anderson")
    return float(quantile) * se, float(outside(mean / max(se, 1e-12)))


def holm(ps: Sequence[float]) -> list[float]:
    """Each p corrected for the number of comparisons: the smallest times all of them, the next times one less."""
    found, worst = list(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):  # never smaller than one before
        found[i] = worst = max(worst, min(1.0, ps[i] * (len(ps) - rank)))
    return found


# -------------------------------------------------------------------------------------------------------------- tables


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    first, *others = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return [first, "|---" * len(head) + "|", *others, ""]


def with_se(values: Mapping[int, float]) -> str:
    mean, se = mean_se(list(values.values()))
    return f"{mean:.3f}" + (f" ± {se:.3f}" if len(values) > 1 else "")


def table(results: Record) -> str:
    """The results as Markdown."""
    lines = ["# Methods and ablations, measured", ""]
    for section in dict.fromkeys(row["section"] for row in results["rows"]):
        head = [section.lower(), "held-out success", "seeds", "each seed", "candidates a step", "signal"]
        lines += markdown(head, [cells(row, results) for row in results["rows"] if row["section"] == section])
    if rows := trained(results, "Methods"):
        limits = [f"after {at_budget(rows[0], kind, results)[0]:,.0f} {kind}" for kind in BUDGETS]
        equal = [[row["label"], *(with_se(at_budget(row, kind, results)[1]) for kind in BUDGETS)] for row in rows]
        lines += markdown(["equal budgets", *limits], equal)
    if found := differences(results):
        lines += markdown(["differences", "at equal steps", "at equal candidates", "p"], found)
    boards = sorted({str(n) for row in results["rows"] for run in row["runs"] for _, _, n in run["curve"]})
    lines += [NOTES.format(steps=results["steps"], boards=", ".join(boards))]
    return "\n".join([*lines, *(SESSION.format(**session) for session in results["sessions"]), ""])


def cells(row: Record, results: Record) -> list[str]:
    """One row; what is missing or was stopped early says so."""
    runs, seeds, steps = row["runs"], len(results["seeds"]), row.get("steps", results["steps"])
    if not runs:
        return [row["label"], "missing", f"0 of {seeds}", "", "", ""]
    step = common_step(row)  # of a row that was stopped: where its slowest seed is
    values = success(row, step)
    number = with_se(values) + (f" (after {step} of {steps} steps)" if step not in (0, steps) else "")
    count = str(seeds) if len(runs) == seeds else f"{len(runs)} of {seeds}"
    means = [fmean(run[name] for run in runs) for name in ("samples", "signal") if name in runs[0]]
    sampled, signal = (f"{means[0]:.0f}", f"{means[1]:.0%}") if means else ("", "")
    return [row["label"], number, count, " ".join(f"{value:.3f}" for value in values.values()), sampled, signal]


def differences(results: Record) -> list[list[str]]:
    """The claims. Equal candidates are those of a shorter schedule of the second row, else read off its curve."""
    rows, found = {row["label"]: row for row in results["rows"] if row["runs"]}, []
    for claim, labels in results["claims"].items():
        if rows.keys() >= {*labels}:
            better, worse, *shorter = (rows[label] for label in labels)
            step = common_step(better, worse)
            pairs = [[success(row, step) for row in (better, worse)]]
            if shorter:  # two finished schedules
                pairs.append([success(row, common_step(row)) for row in (better, *shorter)])
            else:  # one of them in the middle of its schedule
                pairs.append([at_budget(row, "candidates", results)[1] for row in (better, worse)])
            found.append((claim, *([one[seed] - two[seed] for seed in one if seed in two] for one, two in pairs)))
    ps = holm([t_test(steps)[1] if len(steps) > 1 else 1.0 for _, steps, _ in found])
    return [[claim, shown(a), shown(b), f"{p:.3f}"] for (claim, a, b), p in zip(found, ps, strict=True)]


def shown(values: Sequence[float]) -> str:
    """Their mean, its 95% interval, and how often they are above 0."""
    if len(values) < 2:
        return f"{values[0]:+.3f} (one seed)" if values else "missing"
    mean, (half, _) = fmean(values), t_test(values)
    above = sum(value > 0 for value in values)
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}], {above} of {len(values)}"
