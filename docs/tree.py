"""Draw one recorded tree as the picture of the README: python docs/tree.py runs/tour/trees.jsonl [STEP ENV].

Prints an SVG. `python docs/tour.py --write` draws the board that the tour follows into docs/tree.svg.
"""

from __future__ import annotations

import json
import re
import sys
from html import escape
from pathlib import Path
from typing import Any

STAGE, CARD, HEIGHT, GAP, TOP = 236, 148, 44, 12, 92  # widths and heights in pixels
STYLE = """<style>
text { white-space: pre; font: 12px system-ui, sans-serif; fill: #333 } .mono { font-family: ui-monospace, monospace }
.title { font-size: 14px; font-weight: 600 } .small { font-size: 11px; fill: #666 }
.page { fill: #fff } .card { fill: #f3f4f6; stroke: #c5cad3 } .best { fill: #dcf3e3; stroke: #22863a; stroke-width: 2 }
path { fill: none; stroke: #c5cad3; stroke-width: 1.5 } .spine { stroke: #22863a; stroke-width: 2.5 }
circle { fill: #22863a }
@media (prefers-color-scheme: dark) {
text { fill: #e6e6e6 } .small { fill: #a5abb5 } .page { fill: #0d1117 } .card { fill: #1c2129; stroke: #4a525e }
.best { fill: #12351f; stroke: #3fb950 } path { stroke: #4a525e } .spine { stroke: #3fb950 } circle { fill: #3fb950 }
}
</style>"""


def draw(row: dict[str, Any]) -> str:
    """One row of trees.jsonl (a tree: one episode, K candidates at every stage) as an SVG."""
    (episode,) = row["episodes"]
    stages = episode["stages"]
    most = max(len(stage["candidates"]) for stage in stages)
    width, height = 20 + STAGE * len(stages) + 60, TOP + most * (HEIGHT + GAP) + 52
    middle = TOP + (most * (HEIGHT + GAP) - GAP) // 2
    lines, cards = [], []
    for i, stage in enumerate(stages):
        x, left = 28 + i * STAGE, 28 + i * STAGE + 54
        prompt = "\n".join(
            row["messages"][m]["content"] for m in stage["prompt"] if row["messages"][m]["role"] == "user"
        )
        sees = re.findall(r"proposal \[.*?\]|at \(\d+,\d+\)", prompt)
        cards.append(_text(x - 8, 24, f"turn {stage['turn']}, {stage['agent']}", "title"))
        cards.append(_text(x - 8, 44, f"group (e, {stage['turn']}, {stage['agent']})", "small"))
        cards.append(_text(x - 8, 62, f"sees: {', '.join(sees)}", "small"))
        cards.append(f'<circle cx="{x}" cy="{middle}" r="6"/>')
        for c, candidate in enumerate(stage["candidates"]):
            y = TOP + c * (HEIGHT + GAP)
            line, best = y + HEIGHT // 2, candidate["committed"]
            lines.append((best, _curve(x, middle, left, line)))
            if best:
                lines.append((best, _curve(left + CARD, line, x + STAGE, middle)))
            box = f'x="{left}" y="{y}" width="{CARD}" height="{HEIGHT}" rx="6"'
            cards.append(f'<rect class="{"best" if best else "card"}" {box}/>')
            cards.append(_text(left + 10, y + 18, candidate["text"].replace("#### ", "", 1) + " ★" * best, "mono"))
            cards.append(_text(left + 10, y + 35, f"r {candidate['reward']:.2f}"))
            cards.append(_text(left + 74, y + 35, f"A {candidate['advantage']:+.2f}"))
    end = 28 + len(stages) * STAGE
    cards.append(f'<circle cx="{end}" cy="{middle}" r="6"/>')
    cards.append(_text(end - 18, middle + 24, "solved" if episode["solved"] else episode["ended"]))
    legend = (
        "● one prompt, K answers; each is scored on its own copy of the state and gets a reward r",
        "A advantage: r against the other answers to the same prompt       ★ committed: the next agent sees its effect",
    )
    cards += [_text(20, height - 34 + 18 * i, line, "small") for i, line in enumerate(legend)]
    curves = [f'<path class="{"spine" if best else "branch"}" d="{d}"/>' for best, d in sorted(lines)]
    size = f'width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size}>'
    return "\n".join([head, STYLE, f'<rect class="page" {size} rx="8"/>', *curves, *cards, "</svg>\n"])


def _text(x: int, y: int, text: str, kind: str = "plain") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>'


def _curve(x0: int, y0: int, x1: int, y1: int) -> str:
    half = (x0 + x1) // 2
    return f"M{x0} {y0} C{half} {y0} {half} {y1} {x1} {y1}"


if __name__ == "__main__":
    path, step, env = (*sys.argv[1:], "0", "0")[:3]
    rows = map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())
    print(draw(next(row for row in rows if (row["step"], row["env"]) == (int(step), int(env)))), end="")
