"""Evaluate a run or a model on held-out environments: one chain each, no tree, greedy unless asked otherwise.

python evaluate.py runs/NAME                                        the newest checkpoint of a run
python evaluate.py runs/NAME --samples 4 --temperature 1            pass rate over 4 sampled chains per environment
python evaluate.py runs/NAME@100                                    its checkpoint after 100 steps
python evaluate.py HUB_ID_OR_FOLDER --task sudoku --workflow single      any chat model, with train.py's options
python evaluate.py --team tool_user=runs/a planner=runs/b@100            policies of different runs, or models, together
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import tyro

from distributed.world import start
from options import Config, Text, Words, by_policy, errors_in_one_line, load, read, unchanged
from prepare import first_models, held_out, make_team, saved_models, scoring_pool, task_of
from records.checkpoint import read_state
from records.console import half_up
from records.log import say
from records.parts import part_of_run
from rollout import Evaluation
from sampling.team import Team
from tasks.levels import Levels


@dataclass(frozen=True)
class Options(Config):
    """Held-out success of a run, of a model, or of a team. Models and teams take the options of train.py too."""

    source: tyro.conf.Positional[Text] = ""
    """RUN, RUN@STEP, a hub id or a folder"""
    team: Words = ()
    """instead: who plays each policy, POLICY=NAME ..., with the options of the first run among them"""
    envs: int = 0
    """held-out environments (0: all problems of a data set, 200 levels of a board)"""
    samples: int = 1
    """chains per environment"""
    temperature: float = 0.0
    """0 is greedy"""
    top_p: float = 1.0
    """sample from the likeliest tokens only (1: all)"""
    merge: Text = ""
    """also write the models that played into this new folder, adapters merged (several: DIR/POLICY)"""


OWN = ("source", "team", "envs", "samples", "temperature", "top_p", "merge")
# options that an evaluation may give beside those of the run
FREE = (*OWN, "eval_data", "engine", "engine_memory", "device", "ranks", "sandbox", "output_dir")


def parse(argv: Sequence[str]) -> tuple[Options, Path | None]:
    """The options of an evaluation, and the checkpoint that plays where it is that of a whole run."""
    given, checkpoint = read(Options, argv, Options()), None
    if bool(given.source) == bool(given.team) or given.model != Config().model:
        raise ValueError("give a RUN or a model, or --team POLICY=NAME ... (and no --model)")
    models = given.team or (given.source,)
    parts = [part for source in by_policy(models).values() if (part := part_of_run(source))]
    usual = Options(**asdict(load(parts[0].run)) | {"temperature": 0.0, "ranks": ()}) if parts else Options()
    if given.source and parts and not parts[0].policy:
        config, checkpoint = unchanged(usual, argv, FREE), parts[0].checkpoint
    else:
        config = replace(read(Options, argv, replace(usual, policies=())), model=models).resolved()
    config.check()
    if config.temperature == 0 and (config.samples > 1 or config.top_p < 1):
        option = f"--samples {config.samples}" if config.samples > 1 else f"--top-p {config.top_p}"
        raise ValueError(f"{option} needs --temperature above 0: greedy chains are all the same")
    return config, checkpoint


def load_team(argv: Sequence[str]) -> tuple[str, Options, Levels, Team]:
    """The team of a command line. All ranks call it. The name is that of the checkpoint or of what plays."""
    config, checkpoint = parse(argv)
    task = task_of(config, training=False)
    world = start(config.device)
    if checkpoint:
        read_state(checkpoint, world, training=False)
        weights = saved_models(checkpoint)
    else:
        weights = first_models(config, task, world)
    team = make_team(config, task.held_out_env.agents, world, weights)
    return checkpoint.name if checkpoint else " ".join(config.model), config, task, team


def report(result: Evaluation) -> str:
    """The success rate in the last line, and above it what its reader would ask next."""
    ended = Counter(episode.ended for episode in result.episodes)
    formats = ", ".join(f"{agent} {share:.2f}" for agent, share in result.formats.items())
    return (
        f"turns used {result.turns:.2f}; episodes ended by {dict(ended)}\nreadable answers: {formats}\n"
        f"success {half_up(result.success)} (n={result.n}, se {half_up(result.se)})"
    )


def main(argv: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if argv is None else argv
    try:
        with errors_in_one_line("evaluate.py"):
            name, config, task, team = load_team(words)
            pool, summary = scoring_pool(config, task), team.describe()
            many = config.samples, config.temperature, config.top_p
            result = held_out(replace(config, eval_envs=config.envs), team, task, pool, *many)
            if config.merge:
                for policy in team.policies.values():
                    folder = Path(config.merge, policy.name if len(team.ranks_of) > 1 else "")
                    policy.save(folder, policy.weights(torch.float32))
            say(team.world, f"{config.task} ({config.workflow}), {name}: {summary}\n{report(result)}")
            team.world.close()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
