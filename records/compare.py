"""Several runs on one page: their curves in the same charts, and the options that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from records.page import Run, chart, clocks, curve, fill
from records.reading import Record


def comparison(runs: Sequence[Run]) -> str:
    """The whole page. Every chart has one line a run, and one a run and agent or policy where they have several."""
    names = labels(runs)
    facts = [
        (name, f"{run.config['task']} ({run.config['workflow']}), {len(run.metrics)} of {run.config['steps']} steps")
        for name, run in zip(names, runs, strict=True)
    ]
    data = {
        "summary": facts,
        "sections": [{"title": "Curves", "charts": charts(runs, names)}],
        "clocks": [clocks(run) for run in runs],
        "differences": {"runs": names, "options": differences(runs)},
        "groups": [], "boards": [], "trees": [],
    }  # fmt: skip
    return fill(" · ".join(names), data)


def labels(runs: Sequence[Run]) -> list[str]:
    """The names of the folders; equal ones are numbered."""
    total, seen = Counter(run.name for run in runs), Counter[str]()
    found = []
    for run in runs:
        seen[run.name] += 1
        found.append(f"{run.name} ({seen[run.name]})" if total[run.name] > 1 else run.name)
    return found


def differences(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """(option, its value in each run) where not all are equal; "–" where a run has no such option."""
    options = dict.fromkeys(name for run in runs for name in run.config if name != "output_dir")
    rows = [(name, [_text(run.config.get(name)) for run in runs]) for name in options]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{name}={part}" for name, part in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def charts(runs: Sequence[Run], names: Sequence[str]) -> list[Record]:
    def lines(pick: Callable[[Run], list[Record]]) -> list[Record]:
        found = []
        for number, (run, name) in enumerate(zip(runs, names, strict=True)):
            picked = [line for line in pick(run) if line["x"]]
            for line in picked:
                found.append({**line, "name": f"{name} {line['name']}" if len(picked) > 1 else name, "run": number})
        return found

    def of(metric: str) -> list[Record]:
        return lines(lambda run: [curve("", run.metrics, metric)])

    def of_agents(metric: str) -> list[Record]:
        return lines(lambda run: [curve(agent, run.metrics, f"{agent}/{metric}") for agent in run.agents])

    def of_policies(metric: str) -> list[Record]:
        return lines(lambda run: [curve(name, run.metrics, f"{name}/{metric}") for name in run.policies])

    held_out = lines(lambda run: [curve("", run.evaluations, "success", "se")])
    drawn = [
        chart("Held-out success", "One greedy chain; bars are ±1 standard error.", held_out, share=True),
        chart("Training success", "The tree: best of K at every action. Chains: as sampled.", of("solved"), share=True),
        chart("Dropped groups", "Share of groups that teach nothing.", of("groups/dead_share"), share=True),
        chart("Turns", "Mean turns an environment took.", of("turns")),
        chart("Reward", "Mean over all candidates of an agent.", of_agents("reward")),
        chart("Entropy", "Nats a token.", of_policies("entropy")),
        chart("Gradient norm", "Before clipping.", of_policies("grad_norm")),
        chart("Response length", "Tokens, mean over candidates.", of_agents("length")),
    ]
    return [one for one in drawn if one["series"]]
