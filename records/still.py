"""What a reader sees of the page where JavaScript is off: facts, curves, and one tree. Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from records.reading import Record

WIDTH, HEIGHT, LEFT, EDGE = 320, 150, 40, 12  # of a chart, in pixels


def still(facts: Iterable[tuple[str, str]], sections: Iterable[Record], trees: Sequence[Record]) -> str:
    told = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    parts = [f"<dl class='facts'>{told}</dl>"]
    for section in sections:
        drawn = "".join(map(_chart, section["charts"]))
        parts.append(f"<h2>{escape(section['title'])}</h2><div class='charts'>{drawn}</div>")
    if trees:
        parts.append(_tree(max(trees, key=_signal)))
    return "\n".join(parts)


def _chart(chart: Record) -> str:
    values = [value for line in chart["series"] for value in line["y"] if value is not None]
    steps = [step for line in chart["series"] for step in line["x"]]
    low, high = min(0.0, *values, 0.0), 1.0 if chart["share"] else max([*values, 0.0])
    first, last = min(steps), max(steps)

    def point(step: float, value: float) -> str:
        across = (step - first) / ((last - first) or 1) * (WIDTH - LEFT - EDGE)
        return f"{LEFT + across:.1f},{HEIGHT - EDGE - (value - low) / ((high - low) or 1) * (HEIGHT - 2 * EDGE):.1f}"

    lines, names = [], []
    for i, line in enumerate(chart["series"]):
        spots = " ".join(point(x, y) for x, y in zip(line["x"], line["y"], strict=True) if y is not None)
        lines.append(f"<polyline points='{spots}' style='fill: none; stroke: var(--c{i % 8}); stroke-width: 1.75'/>")
        names.append(f"<li style='color: var(--c{i % 8})'>{escape(line['name'])} {_number(line['y'][-1])}</li>")
    axis = f"<text x='0' y='{EDGE + 4}'>{_number(high)}</text><text x='0' y='{HEIGHT - EDGE}'>{_number(low)}</text>"
    axis += f"<text x='{LEFT}' y='{HEIGHT}'>{first}</text>"
    axis += f"<text x='{WIDTH}' y='{HEIGHT}' text-anchor='end'>{last}</text>"
    picture = f"<svg viewBox='0 0 {WIDTH} {HEIGHT}'>{axis}{''.join(lines)}</svg>"
    return (
        f"<figure><h3>{escape(chart['title'])}</h3><p class='soft'>{escape(chart['note'])}</p>"
        f"{picture}<ul class='legend'>{''.join(names)}</ul></figure>"
    )


def _tree(row: Record) -> str:
    parts = [f"<h2>One recorded tree: step {row['step']}, environment {row['env']}</h2>"]
    for stage in row["episodes"][0]["stages"]:
        prompt = "\n".join(row["messages"][number]["content"] for number in stage["prompt"])
        board = f"<pre class='board'>{escape(row['boards'][stage['board']])}</pre>" if "board" in stage else ""
        lines = [
            f"<tr><td class='left'>{'★ ' * one['committed']}<code>{escape(one['text'])}</code></td>"
            f"<td>{_number(one['reward'])}</td><td>{_number(one['advantage'])}</td></tr>"
            for one in stage["candidates"]
        ]
        parts.append(
            f"<h3>Turn {stage['turn']}, {escape(stage['agent'])}</h3>{board}"
            f"<details><summary>what it sees</summary><pre>{escape(prompt)}</pre></details><table><tr>"
            f"<th class='left'>answer (★ committed)</th><th>reward</th><th>advantage</th></tr>{''.join(lines)}</table>"
        )
    return "".join(parts)


def _signal(row: Record) -> int:
    stages = [stage for episode in row["episodes"] for stage in episode["stages"]]
    return sum(any(candidate["advantage"] for candidate in stage["candidates"]) for stage in stages)


def _number(value: float | None) -> str:
    """Three digits that matter.

    >>> _number(0.12345), _number(2.0), _number(-1.5e-5), _number(None)
    ('0.123', '2', '-1.5e-05', '–')
    """
    return "–" if value is None else f"{value:.3g}"
