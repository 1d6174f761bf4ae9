"""Evaluate a run or a model on held-out environments: one chain each, no tree, greedy unless asked otherwise.

python evaluate.py runs/NAME                                        the newest checkpoint of a run
python evaluate.py runs/NAME --samples 4 --temperature 1            pass rate over 4 sampled chains per environment
python evaluate.py runs/NAME@100                                    its checkpoint after 100 steps
python evaluate.py HUB_ID_OR_FOLDER --task sudoku --workflow single      any chat model, with train.py's options
python evaluate.py --team tool_user=runs/a planner=runs/b@100            policies of different runs, or models, together
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from distributed.world import start
from options import Config, check_ranges, parse, read_config
from prepare import first_models, held_out, make_team, saved_models, scoring_pool, task_of
from records.checkpoint import read_state
from records.log import say
from records.parts import part_of_run
from records.reading import nearest_folder
from rollout import Evaluation
from sampling.team import Team
from tasks.levels import HELD_OUT, Levels


def load_team(
    source: str | Sequence[str], eval_data: str, engine: Sequence[str], options: Sequence[str]
) -> tuple[str, Config, Levels, Team]:
    """The team of a run (its own options; `options` must be empty), one model that plays every agent, or a list of
    POLICY=NAME as for `--model`.

    `engine` are options of the engine, which replace a run's own. All ranks call it. The name is that of the checkpoint
    or of what plays.
    """
    part, given = None, [source] if isinstance(source, str) else list(source)
    if isinstance(source, str) and (part := part_of_run(source)) and not part.policy:
        if options:
            raise ValueError(f"{source} is a run and keeps the options it was trained with; remove {' '.join(options)}")
        saved, (chosen, _) = read_config(part.run), parse(engine)
        for option in engine:
            name = option.split("=")[0].strip("-").replace("-", "_")
            saved[name] = getattr(chosen, name)
        del saved["update"]  # options of the update alone
        config = replace(Config(**saved), device=chosen.device, ranks=[])
        config.eval_data = eval_data or config.eval_data
        checkpoint = part.checkpoint
    else:
        data = [f"--eval-data={eval_data}"] if eval_data else []
        config, _ = parse(["--model", *given, *data, *engine, *options], training=False)
        checkpoint = None
    task = task_of(config, training=False)
    world = start(config.device)
    if checkpoint:
        read_state(checkpoint, world, training=False)
        load = saved_models(checkpoint)
    else:
        load = first_models(config, task, world)
    try:
        team = make_team(config, task.held_out_env.agents, world, load)
    except ValueError as error:
        path = Path(given[0])
        hint = "" if len(given) > 1 or path.exists() else nearest_folder(path, "config.json")
        raise ValueError(f"{error}{hint}") from None
    return checkpoint.name if checkpoint else " ".join(given), config, task, team


def report(result: Evaluation) -> str:
    """The success rate in the last line, and above it what its reader would ask next."""
    ended = Counter(episode.ended for episode in result.episodes)
    formats = ", ".join(f"{agent} {share:.2f}" for agent, share in result.formats.items())
    return f"turns used {result.turns:.2f}; episodes ended by {dict(ended)}\nreadable answers: {formats}\n{result}"


RANGES: dict[str, tuple[float, float]] = {
    "envs": (0, 2**20),
    "samples": (1, 2**12),
    "temperature": (0, 100),
    "top_p": (1e-6, 1),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    argv = sys.argv[1:] if argv is None else argv
    if "--team" not in argv:  # there it would take the value of one of train.py's options
        parser.add_argument("source", metavar="RUN_OR_MODEL", help="RUN, RUN@STEP, a hub id or a folder")
    parser.add_argument("--team", nargs="+", metavar="POLICY=NAME", help="instead: who plays each policy, by its name")
    parser.add_argument("--eval-data", default="", metavar="FILE", help="held-out problems (replaces those of a run)")
    parser.add_argument(
        "--envs", type=int, default=0, metavar="N",
        help=f"held-out environments (default 0: all problems of a data set, {HELD_OUT} levels of a board)",
    )  # fmt: skip
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="chains per environment (default 1)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (default)")
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="X", help="sample from the likeliest tokens only (default 1: all)"
    )
    parser.add_argument(
        "--merge", metavar="DIR", help="also write the models that played, adapters merged (several: DIR/POLICY)"
    )
    parser.add_argument("--engine", metavar="NAME", help="transformers or vllm (a run: instead of its own)")
    parser.add_argument("--engine-memory", metavar="X", help="vllm: share of the GPU's memory (a run: the same)")
    arguments, options = parser.parse_known_args(argv)
    engine = [f"--engine={arguments.engine}"] if arguments.engine else []
    engine += [f"--engine-memory={arguments.engine_memory}"] if arguments.engine_memory else []
    try:
        check_ranges({name: getattr(arguments, name) for name in RANGES}, RANGES)
        if arguments.temperature == 0 and (arguments.samples > 1 or arguments.top_p < 1):
            option = f"--samples {arguments.samples}" if arguments.samples > 1 else f"--top-p {arguments.top_p}"
            raise ValueError(f"{option} needs --temperature above 0: greedy chains are all the same")
        source = arguments.team or arguments.source
        name, config, task, team = load_team(source, arguments.eval_data, engine, options)
        config = replace(config, eval_envs=arguments.envs)
        pool, summary = scoring_pool(config, task), team.describe()
        result = held_out(config, team, task, pool, arguments.samples, arguments.temperature, arguments.top_p)
        if arguments.merge:
            for policy in team.policies.values():
                folder = Path(arguments.merge, policy.name if len(team.ranks_of) > 1 else "")
                policy.save(folder, policy.weights(torch.float32))
        say(team.world, f"{config.task} ({config.workflow}), {name}: {summary}\n{report(result)}")
        team.world.close()
    except (ValueError, OSError, ImportError) as error:
        if dist.is_initialized():
            dist.destroy_process_group()
        message = str(error).replace("--model", "--team") if arguments.team else str(error)
        sys.exit(f"evaluate.py: error: {message}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
