"""What a run needs: memory by counting bytes, time by measured rates or steps. Standard library only.

python docs/estimate.py                           the tables in docs/reproduce.md
python docs/estimate.py runs/NAME --steps 200     hours for so many steps like those of a run
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median

# parameters in billions: all of them, one decoder layer, embedding and output head (one matrix where they are tied)
MODELS = {"Qwen3-1.7B": (1.72, 0.050, 0.311), "Qwen3-8B": (8.19, 0.193, 1.245)}
LENGTHS = ((600, 400), (600, 1200), (1000, 4000))  # mean tokens of a prompt and a response: a guess, no measurement


def gigabytes(model: str, ranks: int) -> float:
    """GB on each GPU of a policy that lives on so many, before activations, the cache of the engine and temporaries.

    A parameter costs 16 bytes for training, sharded: float32 weight, gradient and two moments of AdamW. The engine of
    every rank has a whole copy in 2 bytes. One layer, embedding and head are gathered in 2 bytes while they are used.

    >>> round(gigabytes("Qwen3-1.7B", 4), 1)
    11.0
    """
    all_of_it, layer, ends = MODELS[model]
    return 16 * all_of_it / ranks + 2 * all_of_it + 2 * (layer + ends)


def step_seconds(
    prompt: float, response: float, sampled_rate: float, raw_rate: float,
    envs: int = 128, agents: int = 2, turns: int = 4, candidates: int = 4,
) -> float:  # fmt: skip
    """Seconds of a step of a recipe when every environment plays all its turns and every group is trained: at most.

    `prompt`, `response`: mean tokens. Rates over all GPUs, tokens a second: `sampled_rate` those of the
    rollout, `raw_rate` those of the update (prompt + response of each sample), both as benchmarks/step.py measures
    them. Scoring is not in it.

    >>> step_seconds(prompt=600, response=400, sampled_rate=8192, raw_rate=40960)
    300.0
    """
    responses = envs * agents * turns * candidates
    return responses * response / sampled_rate + responses * (prompt + response) / raw_rate


def hours(timing: list[dict[str, float]], steps: int, skip: int = 2) -> float:
    """Hours of training alone, from the median step of `timing.jsonl`; the first steps compile and warm up.

    Raises ValueError when there are no steps after those.
    """
    measured = [row["step_s"] for row in timing[skip:]]
    if not measured:
        raise ValueError(f"timing.jsonl has {len(timing)} steps; an estimate needs more than {skip}")
    return median(measured) * steps / 3600


def table() -> str:
    """The Markdown table of docs/reproduce.md."""
    ranks = (1, 2, 4, 8)
    head = " | ".join(f"{n} GPU" if n == 1 else f"{n} GPUs" for n in ranks)
    lines = [f"| GB on each GPU | {head} |", "|---" * 5 + "|"]
    return "\n".join(
        [*lines, *(f"| {name} | {' | '.join(f'{gigabytes(name, n):.0f}' for n in ranks)} |" for name in MODELS)]
    )


def measured_rates(model: str) -> tuple[float, float]:
    """Sampled and raw tokens a second of one of four GPUs, from docs/gpu.json (benchmarks/step.py)."""
    recorded = json.loads(Path(__file__).with_name("gpu.json").read_text(encoding="utf-8"))["steps"]
    (ranks,) = [run["ranks"] for run in recorded if run["model"].startswith(model) and run["gpus"] == 4]
    return min(rank["rollout_tokens_s_gpu"] for rank in ranks), min(rank["update_tokens_s_gpu"] for rank in ranks)


def times(gpus: int = 8, steps: int = 200) -> str:
    """The Markdown table of docs/reproduce.md: seconds a step and hours for all steps, by lengths."""
    head = [f"{prompt:,} + {response:,}" for prompt, response in LENGTHS]
    lines = [f"| {gpus} GPUs, prompt + response tokens | {' | '.join(head)} |", "|---" * (1 + len(head)) + "|"]
    for name in MODELS:
        sampled, raw = (rate * gpus for rate in measured_rates(name))
        seconds = [step_seconds(prompt, response, sampled, raw) for prompt, response in LENGTHS]
        cells = [f"{second:.0f} s, {second * steps / 3600:.1f} h" for second in seconds]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run folder with timing.jsonl")
    parser.add_argument("--steps", type=int, default=200, help="steps to estimate (default 200)")
    arguments = parser.parse_args()
    if arguments.run is None:
        print(table(), times(), sep="\n\n")
        return
    try:
        rows = [json.loads(line) for line in (Path(arguments.run) / "timing.jsonl").read_text().splitlines()]
        print(f"{hours(rows, arguments.steps):.2f} hours for {arguments.steps} steps")
    except (OSError, ValueError) as error:
        sys.exit(f"estimate.py: error: {error}")


if __name__ == "__main__":
    main()
