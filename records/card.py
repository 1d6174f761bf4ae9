"""A model card in every checkpoint: what a policy plays and is told, how it was trained and is served."""

import json
import re
from dataclasses import asdict
from pathlib import Path

from options import Config, sources
from records.run_folder import read_object, read_rows, write_text
from sampling.team import Team
from tasks.levels import Levels

CARD = Path(__file__).with_name("card.md")


def write_cards(run: Path, step: int, config: Config, team: Team, levels: Levels) -> None:
    """README.md for every policy of a checkpoint, if there is one."""
    if not team.world.main or not (checkpoint := run / "checkpoints" / f"step-{step:06d}").is_dir():
        return
    words = asdict(config) | read_rows(run / "evaluations.jsonl")[-1]
    words |= {"trained": step, "command": read_object(run / "run.json")["sessions"][0]["command"]}
    words |= {"task": Path(config.task).name, "team": ", ".join(team.policy_of)}
    words["library"] = "transformers" if config.adapter == "none" else "peft"
    env = levels.held_out(0)
    prompts = {agent: env.observe(agent) for agent in team.policy_of}
    for policy, source in sources(config, list(team.ranks_of)).items():
        agents = [agent for agent, name in team.policy_of.items() if name == policy]
        hub = re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not Path(source).exists()
        words |= {"policy": policy, "source": source, "base": f"base_model: {source}\n" if hub else ""}
        words |= {"roles": ", ".join(agents), "role": agents[0], "messages": json.dumps(prompts[agents[0]])}
        told = [(a, "\n\n".join(m["content"] for m in prompts[a] if m["role"] == "system")) for a in agents]
        # longer than any in the text, which so cannot end the block
        fence = "`" * max(3, *(len(marks) + 1 for _, text in told for marks in ["", *re.findall("`+", text)]))
        words["prompts"] = "\n\n".join(f"**{a}**\n\n{fence}text\n{text or 'none'}\n{fence}" for a, text in told)
        write_text(checkpoint / policy / "README.md", CARD.read_text(encoding="utf-8").format(**words))
