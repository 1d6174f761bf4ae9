"""The results of the experiments: the numbers of every row, collected from the run folders, and the table.

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
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from records.reading import read_log

GROUPS = ("groups/trained", "groups/constant", "groups/singleton")
METRICS = ("step", "samples", *GROUPS)  # of a step, that the table needs


@dataclass(frozen=True)
class Method:
    """A row of the table: the start or the end of a training, or a team put together from checkpoints."""

    label: str
    training: str
    untrained: bool = False
    team: dict[str, tuple[str, str]] = field(default_factory=dict)  # agent -> (training, policy) that plays it
    quick: bool = False  # an ablation that --quick has too (the methods are always there)

    @property
    def trainings(self) -> list[str]:
        """The trainings that must be finished for this row."""
        return list(dict.fromkeys([self.training, *(training for training, _ in self.team.values())]))


def run_folder(folder: Path, training: str, seed: int) -> Path:
    return folder / f"{training}-seed{seed}"


def play_path(folder: Path, row: Method, seed: int) -> Path:
    name = "".join(char if char.isalnum() else "_" for char in row.label)
    return folder / "plays" / f"{name}-seed{seed}.json"


def learning_curve(run: Path) -> list[dict[str, Any]]:
    """Held-out evaluations so far, each step once: a run that was killed in its set-up wrote step 0 twice."""
    rows = read_log(run / "evaluations.jsonl", ("step", "success", "n"))
    return list({row["step"]: row for row in rows}.values())


def collect(folder: Path, sections: Mapping[str, Sequence[Method]], seeds: Sequence[int], steps: int) -> dict[str, Any]:
    """Everything that table and figure show, as JSON: rows with the numbers of each seed, and where they come from.

    `sections`: rows of the table by heading; `steps`: of a finished run.
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
    return {"steps": steps, "seeds": list(seeds), "rows": rows, "sessions": read_log(folder / "sessions.jsonl")}


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
            found.append({"seed": seed, "curve": curve, **({} if row.untrained else sampled(metrics))})
    return {"trainings": row.trainings, "runs": found}


def played(path: Path) -> list[tuple[float, int]]:
    """Success and n of a team; none when it was not played yet. ValueError naming the file when that is damaged."""
    if not path.exists():
        return []
    try:
        success, n = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError):
        raise ValueError(f"{path} is damaged: delete it, and the team plays again") from None
    return [(success, n)]


def sampled(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
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
    return [value for run in runs for at, value, _ in run["curve"] if at == step]


def with_se(mean: float, se: float | None) -> str:
    return f"{mean:.3f}" + ("" if se is None else f" ± {se:.3f}")


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
    boards = {n for row in results["rows"] for run in row["runs"] for _, _, n in run["curve"]}
    lines.append(
        f"Tiny model (0.16M parameters), plan_path 4x4, {results['steps']} steps, "
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
