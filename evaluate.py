"""Evaluate a run or a model on held-out environments: one chain each, no tree, greedy unless asked otherwise.

python evaluate.py runs/NAME                               the newest checkpoint of a run
python evaluate.py runs/NAME@100                           its checkpoint after 100 steps
python evaluate.py runs/NAME --samples 4 --temperature 1   pass rate over 4 sampled chains per environment
python evaluate.py HUB_ID_OR_FOLDER --task sudoku          any chat model, with train.py's options
python evaluate.py --team tool_user=runs/a planner=runs/b  policies of different runs, or models, together
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from records.console import errors_in_one_line, half_up  # before torch: makes Ctrl-C quiet
from records.stop import speaks

if __name__ == "__main__" and speaks():
    print("loading torch", flush=True)

# isort: split
import torch
import tyro

from distributed.world import start
from options import Config, Text, Words, by_policy, load, read
from prepare import held_out, inputs_of, levels_of, load_models, make_team, scoring_pool
from records.log import say
from records.run_folder import check_pins, is_checkpoint, locate
from sampling.team import Team
from tasks.levels import Levels


@dataclass(frozen=True)
class Options(Config):
    """Held-out success of a run, of a model, or of a team. It takes train.py's options too; a run has its own."""

    source: tyro.conf.Positional[Text] = ""  # RUN, RUN@STEP, a hub id or a folder
    team: Words = ()  # instead: who plays each policy, POLICY=NAME ..., with the options of the first run among them
    envs: int = 0  # held-out environments (0: all problems of a data set, 200 levels of a board)
    samples: int = 1  # chains per environment
    temperature: float = 0.0  # 0 is greedy
    top_p: float = 1.0  # sample from the likeliest tokens only (1: all)
    merge: Text = ""  # also write the models that played into this new folder, adapters merged (several: DIR/POLICY)


def load_team(argv: Sequence[str]) -> tuple[str, Options, Levels, Team]:
    """The team of a command line, named by its checkpoint or by what plays. All ranks call it."""
    given = read(Options, argv, Options())
    if bool(given.source) == bool(given.team) or given.model != Config().model:
        raise ValueError("give a RUN or a model, or --team POLICY=NAME ... (and no --model)")
    models = given.team or (given.source,)
    found = [path for source in by_policy(models).values() if (path := locate(source))]
    checkpoint = found[0] if given.source and found and is_checkpoint(found[0]) else None  # of a whole run
    usual = Options()
    if found:  # their run decides
        run = found[0].parents[1 if is_checkpoint(found[0]) else 2]
        usual = Options(**asdict(load(run)) | {"temperature": 0.0, "ranks": ()})
    config = read(Options, argv, usual if checkpoint else replace(usual, policies=()))
    config = (config if checkpoint else replace(config, model=models)).resolved()
    config.check()
    if config.temperature == 0 and (config.samples > 1 or config.top_p < 1):
        raise ValueError("--samples and --top-p need --temperature above 0")
    merge = Path(config.merge).resolve()
    inside = any((folder / "inputs.json").exists() for folder in merge.parents)
    if config.merge and (inside or (merge.exists() and any(merge.iterdir()))):
        raise ValueError(f"--merge {config.merge}: not an empty folder outside of all runs")
    levels = levels_of(config, training=False)
    world = start(config.device)
    team = make_team(config, levels.held_out_env.agents, world, load_models(config, levels, world, checkpoint))
    if checkpoint:
        check_pins(checkpoint.parents[1], inputs_of(replace(config, data=""), team.policies))
    return checkpoint.name if checkpoint else " ".join(config.model), config, levels, team


def main(argv: Sequence[str] | None = None) -> None:
    with errors_in_one_line("evaluate.py"):
        name, config, levels, team = load_team(sys.argv[1:] if argv is None else argv)
        many = config.samples, config.temperature, config.top_p
        result = held_out(replace(config, eval_envs=config.envs), team, levels, scoring_pool(config, levels), *many)
        if config.merge:
            for policy in team.policies.values():
                folder = Path(config.merge, policy.name if len(team.ranks_of) > 1 else "")
                policy.save(folder, policy.weights(torch.float32))
        formats = ", ".join(f"{agent} {share:.2f}" for agent, share in result.formats.items())
        ended = dict(Counter(episode.ended for episode in result.episodes))
        say(team.world, f"{config.task} ({config.workflow}), {name}: {team.describe()}")
        say(team.world, f"turns used {result.turns:.2f}; episodes ended by {ended}\nreadable answers: {formats}")
        say(team.world, f"success {half_up(result.success)} (n={result.n}, se {half_up(result.se)})")
        team.world.close()


if __name__ == "__main__":
    main()
