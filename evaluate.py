"""Evaluate a run or a model on held-out environments: one chain each, no tree, greedy unless asked otherwise.

python evaluate.py runs/NAME                                        the newest checkpoint of a run
python evaluate.py runs/NAME --samples 4 --temperature 1            pass rate over 4 sampled chains an environment
python evaluate.py HUB_ID_OR_FOLDER --task sudoku --workflow single      any chat model, with train.py's options
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from distributed.world import start
from model.loading import load_model
from options import Config, default_device, parse
from prepare import first_model, held_out, make_team, scoring_pool, task_of
from records.checkpoint import latest_checkpoint
from rollout import Evaluation
from sampling.team import Team
from tasks.from_options import Task


def load_team(source: str, eval_data: str, options: Sequence[str]) -> tuple[Config, Task, Team]:
    """The team of a run folder (its own options; `options` must be empty) or one model that plays every agent."""
    run, checkpoint = Path(source), None
    if (run / "config.json").is_file() and (run / "checkpoints").is_dir():
        if options:
            raise ValueError(f"{source} is a run and keeps the options it was trained with; remove {' '.join(options)}")
        saved = json.loads((run / "config.json").read_text(encoding="utf-8"))
        del saved["update"]  # options of the update alone
        checkpoint = latest_checkpoint(run)
        config = replace(Config(**saved), device=default_device(), placement=[])
        config.eval_data = eval_data or config.eval_data
    else:
        config, _ = parse(["--model", source, "--eval-data", eval_data, *options])
    task = task_of(config, training=False)
    world = start(config.device)
    load = (lambda name: load_model(str(checkpoint / name))) if checkpoint else first_model(config, task, world)
    return config, task, make_team(config, task.held_out.agents, world, load)


def report(result: Evaluation) -> str:
    """Everything a reader of one number would ask next; the last line is the number."""
    ended = Counter(episode.ended for episode in result.episodes)
    formats = ", ".join(f"{agent} {share:.2f}" for agent, share in result.formats.items())
    return f"turns used {result.turns:.2f}; episodes ended by {dict(ended)}\nreadable answers: {formats}\n{result}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="RUN_OR_MODEL")
    parser.add_argument("--eval-data", default="", metavar="FILE", help="held-out problems (a run: instead of its own)")
    parser.add_argument("--envs", type=int, default=200, help="held-out environments (default 200)")
    parser.add_argument("--samples", type=int, default=1, help="chains an environment (default 1)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    arguments, options = parser.parse_known_args(argv)
    try:
        if arguments.samples > 1 and arguments.temperature == 0:
            raise ValueError(
                f"--samples {arguments.samples} needs --temperature above 0: greedy chains are all the same"
            )
        config, task, team = load_team(arguments.source, arguments.eval_data, options)
        config = replace(config, eval_envs=arguments.envs)
        pool, summary = scoring_pool(config, task), team.describe()
        result = held_out(config, team, task, pool, arguments.samples, arguments.temperature)
        if team.world.main:
            print(f"{config.task} ({config.workflow}): {summary}\n{report(result)}")
        team.world.close()
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"evaluate.py: error: {error}")


if __name__ == "__main__":
    main()
