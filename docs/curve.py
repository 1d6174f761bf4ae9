"""Draw held-out success against training steps of several runs as docs/curve.svg (standard library only).

python docs/curve.py "AT-GRPO"=runs/a,runs/b "GRPO"=runs/c
"""

import json
import sys
from pathlib import Path

COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd"]
WIDTH, HEIGHT, LEFT, TOP = 640, 260, 50, 20


def read(run: str) -> list[tuple[int, float]]:
    rows = map(json.loads, (Path(run) / "evaluations.jsonl").read_text().splitlines())
    return [(row["step"], row["success"]) for row in rows]


def main(argv: list[str]) -> None:
    curves = [(name, [read(run) for run in runs.split(",")]) for name, runs in (a.split("=", 1) for a in argv)]
    last = max(step for _, runs in curves for run in runs for step, _ in run)

    def at(step: int, success: float) -> str:
        return f"{LEFT + step / last * (WIDTH - LEFT - 20):.1f},{TOP + (1 - success) * (HEIGHT - TOP - 40):.1f}"

    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>']
    lines.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    for level in (0, 0.25, 0.5, 0.75, 1):
        x, y = at(0, level).split(",")
        lines.append(f'<path d="M{at(0, level)} L{at(last, level)}" stroke="#ddd"/>')
        lines.append(f'<text x="{float(x) - 8}" y="{float(y) + 4}" text-anchor="end">{level:g}</text>')
    lines.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">training steps (0 to {last})</text>')
    for number, (name, runs) in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        for run in runs:
            points = " ".join(at(*point) for point in run)
            lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        label = f'x="{WIDTH - 25}" y="{HEIGHT - 60 - 16 * number}" fill="{colour}" text-anchor="end"'
        lines.append(f"<text {label}>{name}</text>")
    Path(__file__).with_name("curve.svg").write_text("\n".join([*lines, "</svg>", ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
