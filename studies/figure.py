"""The figure of the experiments: learning curves of the methods, and every row of the table, as SVG.

It is made to be read at a width of 400 pixels, on light pages and on dark ones: a card with a colour of its own.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from math import inf
from statistics import fmean
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from studies.results import common_step, mean_se, success

CARD, TEXT, GRID, PLAIN = "#f6f6f3", "#222222", "#d5d5d0", "#555555"
COLOURS = ["#0b62a4", "#b3261e", "#1b7339", "#7b3fa0", "#9a4d00", "#6b4c3b"]  # of the methods
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "",  # the same results give the same file
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": GRID,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
TITLE, CURVES, GAP, ROW, NOTE = 30, 180, 44, 14.5, 52  # heights in points, from top to bottom
CURVES_X, ROWS_X = (32, 232), (206, 152)  # left edge and width
LEVELS = (0, 0.25, 0.5, 0.75, 1)
LABEL = 27  # height of a label of two lines beside the curves
SEEDS = "Dot: one seed. Bar: mean over seeds ± standard error."
SAME = "Same [number]: the same runs, shown again with hollow dots."
Record = dict[str, Any]  # of the results


def figure(results: dict[str, Any]) -> str:
    """SVG of the results as `collect` gives them."""
    file = io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not the reader's own settings
        matplotlib.rcParams.update(STYLE)
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"), None) | {"Title": "Held-out success"}
        draw(results).savefig(
            file, format="svg", facecolor=CARD, bbox_inches="tight", pad_inches=0.1, metadata=metadata
        )
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def draw(results: dict[str, Any]) -> Figure:
    """Curves above, rows below; a row without any run is left out."""
    rows = [row for row in results["rows"] if row["runs"]]
    colours = dict(zip([row["label"] for row in rows if row["curves"]], cycle(COLOURS)))
    lines = len(rows) + len({row["section"] for row in rows})
    width, height = sum(CURVES_X) + 130, TITLE + CURVES + GAP + ROW * lines + NOTE
    picture = Figure(figsize=(width / 72, height / 72))

    def part(x: tuple[int, int], bottom: float, tall: float) -> Axes:
        axes = picture.add_axes((x[0] / width, bottom / height, x[1] / width, tall / height), facecolor="none")
        axes.spines[:].set_visible(False)
        return axes

    picture.text(0, 1, "Held-out success of methods and ablations", weight="bold", fontsize=12, va="top")
    draw_curves(part(CURVES_X, height - TITLE - CURVES, CURVES), rows, results["steps"], colours)
    if rows:
        draw_rows(part(ROWS_X, NOTE, ROW * lines), rows, results["steps"], colours)
    caption = SEEDS + ("\n" + SAME if any(same_runs(rows)) else "")
    picture.text(0, 0, caption, color=PLAIN, linespacing=1.4)
    return picture


def draw_curves(axes: Axes, rows: Sequence[Record], steps: int, colours: Mapping[str, str]) -> None:
    """Every seed, and the mean of each method up to the last step that all its seeds have reached."""
    ticks = sorted({0, steps} | {step for row in rows for run in row["runs"] for step, *_ in run["curve"]})
    axes.set(xlim=(0, steps), xticks=ticks[:: -(-len(ticks) // 8)], xlabel="training steps")
    axes.set(ylim=(0, 1), yticks=LEVELS, yticklabels=map("{:g}".format, LEVELS))
    axes.grid(color=GRID, linewidth=0.8)
    ends = []
    for row in [row for row in rows if row["curves"]]:
        colour, runs = colours[row["label"]], row["runs"]
        dots = [(step, value) for run in runs for step, value, _ in run["curve"]]
        values = {step: success(runs, step) for step in sorted({step for step, _ in dots})}
        line = [(step, fmean(found)) for step, found in values.items() if len(found) == len(runs)]
        draw_seeds(axes, dots, colour)
        axes.plot(*zip(*line, strict=True), color=colour, linewidth=2, clip_on=False)
        ends.append((row["label"], line[-1], colour))
    heights = spread([mean for _, (_, mean), _ in ends], LABEL / CURVES, top=1)
    for (label, end, colour), height in zip(ends, heights, strict=True):
        axes.annotate(
            label.replace(", ", ",\n"), end, (1.07, height), textcoords=axes.transAxes, color=colour, va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 3},
        )  # fmt: skip


def draw_seeds(axes: Axes, dots: Sequence[tuple[float, float]], colour: str, fill: str = "") -> None:
    axes.plot(
        *zip(*dots, strict=True), "o", markersize=4.5, markerfacecolor=fill or colour, markeredgecolor=colour,
        markeredgewidth=0.8, alpha=0.5, clip_on=False,
    )  # fmt: skip


def draw_rows(axes: Axes, rows: Sequence[Record], steps: int, colours: Mapping[str, str]) -> None:
    """One line a row: its seeds, their mean with one standard error to both sides, and the mean as a number."""
    line, last, seen = 0.0, "", set()
    for row, same in zip(rows, same_runs(rows), strict=True):
        if row["section"] != last:
            last = row["section"]
            axes.text(-0.07, line, last, transform=axes.get_yaxis_transform(), weight="bold", ha="right", va="center")
            line += 1
        step = common_step(row["runs"])
        values = success(row["runs"], step)
        mean, se = mean_se(values)
        colour = colours.get(row["label"], PLAIN)
        draw_seeds(axes, [(value, line) for value in values], colour, CARD if same in seen else "")
        axes.plot([mean - (se or 0), mean + (se or 0)], [line, line], color=colour, linewidth=1.2, clip_on=False)
        axes.plot([mean], [line], "|", color=colour, markersize=9, markeredgewidth=2.2, clip_on=False)
        label = row["label"] + (f" ({step} steps)" if step not in (0, steps) else "")
        label += f" [{same}]" if same else ""
        side: Record = dict(transform=axes.get_yaxis_transform(), va="center", color=colour)
        axes.text(-0.07, line, label, ha="right", **side)
        axes.text(1.07, line, f"{mean:.3f}", **side)
        line += 1
        seen |= {same} - {0}
    axes.set(xlim=(0, 1), ylim=(line - 0.5, -0.5), yticks=[], xticks=LEVELS, xticklabels=map("{:g}".format, LEVELS))
    axes.grid(axis="x", color=GRID, linewidth=0.8)


def same_runs(rows: Sequence[Record]) -> list[int]:
    """For each row the number of the runs that it shares with other rows (1, 2, ...), 0 when they are its own."""
    runs = [(row["trainings"], row["runs"]) for row in rows]
    shared = [i for i, run in enumerate(runs) if runs.count(run) > 1 and runs.index(run) == i]
    return [shared.index(runs.index(run)) + 1 if runs.index(run) in shared else 0 for run in runs]


def spread(wanted: Sequence[float], gap: float, top: float = inf) -> list[float]:
    """Heights as near as possible to those wanted and at least `gap` apart, in the same order (least squares).

    Those that would lie above `top` are pushed down, with those below them.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[list[float]] = []  # of labels that touch: what they would want without the gap
    for rank, i in enumerate(order):
        blocks.append([wanted[i] - rank * gap])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    heights = [fmean(block) for block in blocks for _ in block]
    highest = len(order) - 1
    found = {i: min(heights[k] + k * gap, top - (highest - k) * gap) for k, i in enumerate(order)}
    return [found[i] for i in range(len(wanted))]
