"""The numbers of the experiments, collected from run folders, and their tables.

FOLDER/OPTIONS-seedN/      a run of train.py
FOLDER/plays/ROW-seedN/    the evaluation of a team of checkpoints
FOLDER/sessions.jsonl      when and where commands ran
"""

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
NOTES = f"""
Tiny model (0.16M parameters), {{steps}} steps of at most {BUDGET} candidates, n = {{boards}} held-out levels. What the
columns and differences mean: docs/runs.md, "How to read the tables". Rewards: studies/ablations.py.
"""
SESSION = "- `{command}`: {date}, {minutes:.1f} minutes, {finished} trainings finished, {jobs} at a time; {machine}"
Record = dict[str, Any]  # a row, or one of its runs
Seeds = dict[int, float]  # a number for each seed


def run_folder(folder: Path, options: str, seed: int) -> Path:
    return folder / f"{re.sub(r'[^a-zA-Z0-9_.]+', '-', options).strip('-') or 'shared'}-seed{seed}"


def learning_curve(run: Path) -> list[list[Any]]:
    """[step, success, n] of the evaluations so far."""
    names = "step", "success", "n"
    return [[row[name] for name in names] for row in read_rows(run / "evaluations.jsonl", names)]


def collect(folder: Path, tables: Mapping[str, Sequence[Method]], seeds: Sequence[int], steps: int) -> Record:
    rows = [
        {"section": section.capitalize(), "label": row.label, "steps": steps_of(row.options, steps)}
        | {"runs": [run for seed in seeds for run in numbers(row, folder, seed)]}
        for section, part in tables.items()
        for row in part
    ]
    return {"steps": steps, "rows": rows, "claims": CLAIMS, "sessions": read_rows(folder / "sessions.jsonl")}


def numbers(row: Method, folder: Path, seed: int) -> list[Record]:
    """The run of a row with one seed, if it has a number yet."""
    run = run_folder(folder / "plays", row.label, seed) if row.team else run_folder(folder, row.options, seed)
    curve = learning_curve(run)[: 1 if row.untrained else None]  # before the first step
    if not curve or (curve[-1][0] == 0 and not row.untrained):  # has only begun
        return []
    found = {"seed": seed, "curve": curve}
    if not row.team and not row.untrained:
        steps = read_rows(run / "metrics.jsonl", ("step", "samples", *GROUPS))
        groups = sum(step[kind] for step in steps for kind in GROUPS)
        found["signal"] = sum(step["groups/trained"] for step in steps) / max(groups, 1)
        spent = [sum(step["samples"] for step in steps if step["step"] < at) for at, *_ in curve]
        found["spent"] = {"candidates": spent}  # at each point of its curve
    return [found]


def axis(run: Record, kind: str) -> list[int]:
    """The steps or candidates after which a run was evaluated; a team of checkpoints has no candidates."""
    return [step for step, *_ in run["curve"]] if kind == "steps" else run.get("spent", {}).get(kind, [])


def reached(rows: Sequence[Record], kind: str) -> int:
    """The last point that all runs have reached: seeds are only averaged at the same point."""
    axes = [axis(run, kind) for row in rows for run in row["runs"]]
    return min((points[-1] for points in axes if points), default=0)


def success(row: Record, kind: str, point: int) -> Seeds:
    """Of each seed, on the line between two evaluations."""
    curves = {run["seed"]: (axis(run, kind), [value for _, value, _ in run["curve"]]) for run in row["runs"]}
    return {seed: float(np.interp(point, points, values)) for seed, (points, values) in curves.items() if points}


def t_test(values: Sequence[float]) -> tuple[float, float]:
    """Half the width of the mean's 95% interval, and the two-sided p of "the mean is 0" (Student's t)."""
    free, se = len(values) - 1, stdev(values) / math.sqrt(len(values))

    def outside(t: float) -> Any:
        return betainc(free / 2, 0.5, 0, free / (free + t**2), regularized=True)

    # the t that leaves 5% outside: between 1.96 (many seeds) and 12.7 (two)
    quantile = findroot(lambda t: outside(t) - 0.05, (1.9, 13), solver="anderson")
    return float(quantile) * se, float(outside(fmean(values) / max(se, 1e-12)))


def holm(ps: Sequence[float]) -> list[float]:
    """Corrected for the number of p: the smallest times all of them, the next times one less."""
    order = np.argsort(ps)
    corrected = np.minimum(1, np.array(ps)[order] * range(len(ps), 0, -1))
    return np.maximum.accumulate(corrected)[np.argsort(order)].tolist()  # never smaller than one before


def table(results: Record) -> str:
    lines = ["# Methods and ablations, measured", ""]
    equal = dict[str, Seeds]()  # label -> success at the budget of its section
    for section in dict.fromkeys(row["section"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["section"] == section]
        budget = reached(rows, "candidates")
        equal |= {row["label"]: success(row, "candidates", budget) for row in rows}
        head = [section.lower(), "held-out success", f"after {budget:,} candidates", "each seed", "candidates a step"]
        lines += markdown([*head, "signal"], [cells(row, equal[row["label"]], results["steps"]) for row in rows])
    if found := differences(results, equal):
        lines += markdown(["differences", "at equal steps", "at equal candidates", "p"], found)
    boards = sorted({str(n) for row in results["rows"] for run in row["runs"] for _, _, n in run["curve"]})
    lines += [NOTES.format(steps=results["steps"], boards=", ".join(boards))]
    return "\n".join([*lines, *(SESSION.format(**session) for session in results["sessions"]), ""])


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    first, *others = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return [first, "|---" * len(head) + "|", *others, ""]


def with_se(values: Seeds) -> str:
    error = f" ± {stdev(values.values()) / math.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{fmean(values.values()):.3f}{error}" if values else ""


def cells(row: Record, equal: Seeds, steps: int) -> list[str]:
    """What is missing or was stopped early says so."""
    last, steps = reached([row], "steps"), row.get("steps", steps)
    values = success(row, "steps", last)
    early = f" (after {last} of {steps} steps)" if last not in (0, steps) else ""
    trained = [run for run in row["runs"] if "spent" in run]
    sampled = [run["spent"]["candidates"][-1] / run["curve"][-1][0] for run in trained]
    return [
        row["label"],
        with_se(values) + early if values else "missing",
        with_se(equal),
        " ".join(f"{value:.3f}" for value in values.values()),
        f"{fmean(sampled):.0f}" if trained else "",
        f"{fmean(run['signal'] for run in trained):.0%}" if trained else "",
    ]


def differences(results: Record, equal: Mapping[str, Seeds]) -> list[list[str]]:
    """Equal candidates are those of a shorter schedule of the second row, else read off its curve."""
    rows, found = {row["label"]: row for row in results["rows"] if row["runs"]}, []
    ends = {label: success(row, "steps", reached([row], "steps")) for label, row in rows.items()}
    for claim, (better, worse, *shorter) in results["claims"].items():
        if rows.keys() >= {better, worse, *shorter}:
            last = reached([rows[better], rows[worse]], "steps")
            steps = [success(rows[label], "steps", last) for label in (better, worse)]
            # two finished schedules, or one of them in the middle of its schedule
            candidates = [ends[better], ends[shorter[0]]] if shorter else [equal[better], equal[worse]]
            differ = ([one[seed] - two[seed] for seed in one if seed in two] for one, two in (steps, candidates))
            found.append((claim, *differ))
    ps = holm([t_test(steps)[1] if len(steps) > 1 else 1.0 for _, steps, _ in found])
    return [[claim, shown(a), shown(b), f"{p:.3f}"] for (claim, a, b), p in zip(found, ps, strict=True)]


def shown(values: Sequence[float]) -> str:
    """Mean, its 95% interval, and how many are above 0; or the only value."""
    if len(values) < 2:
        return "".join(f"{value:+.3f}" for value in values)
    mean, (half, _) = fmean(values), t_test(values)
    above = sum(value > 0 for value in values)
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}], {above} of {len(values)}"
