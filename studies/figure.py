"""The figure of the experiments: learning curves of the methods, and every row of the table, as SVG."""

import io
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.figure import Figure

from studies.results import common_step, mean_se, success, trained

CARD = "#f6f6f3"  # a colour of its own, so that it can be read on light pages and on dark ones
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "",  # the same results give the same file
    "text.parse_math": False,
    "axes.prop_cycle": cycler(color=["#0b62a4", "#b3261e", "#1b7339", "#7b3fa0", "#9a4d00", "#555555"]),
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def figure(results: dict[str, Any]) -> str:
    """SVG of the results as `collect` gives them: dots are seeds, lines and bars their means."""
    rows = [row for row in results["rows"] if row["runs"]]
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):  # not the reader's own settings
        picture = Figure(figsize=(6.5, 4.5 + 0.22 * len(rows)), layout="constrained")
        picture.suptitle("Held-out success of methods and ablations")
        curves, table = picture.subplots(2, height_ratios=[4, 1 + 0.22 * len(rows)])
        for row in trained(results, "Methods"):
            steps = [step for step, *_ in row["runs"][0]["curve"] if step <= common_step(row)]
            means = [mean_se(list(success(row, step).values()))[0] for step in steps]
            (line,) = curves.plot(steps, means, label=row["label"])
            dots = [(step, value) for run in row["runs"] for step, value, _ in run["curve"]]
            curves.plot(*zip(*dots, strict=True), "o", color=line.get_color(), markersize=3, alpha=0.4)
        curves.set(xlabel="training steps", ylim=(0, 1))
        if curves.lines:
            curves.legend(fontsize=8, ncols=2, frameon=False, loc="lower right", bbox_to_anchor=(1, 1))
        for place, row in enumerate(rows):
            values = list(success(row, common_step(row)).values())
            mean, se = mean_se(values)
            table.barh(place, mean, xerr=se, color="#bcd3e6")
            table.plot(values, [place] * len(values), "o", color="#0b62a4", markersize=3)
        table.set(xlim=(0, 1), ylim=(max(len(rows), 1) - 0.5, -0.5), xlabel="Dot: a seed. Bar: mean ± standard error.")
        table.set_yticks(range(len(rows)), [row["label"] for row in rows], fontsize=8)
        file, metadata = io.StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
        picture.savefig(file, format="svg", facecolor=CARD, metadata=metadata | {"Title": "Held-out success"})
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
