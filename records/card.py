"""A model card beside every checkpoint: what a policy plays and is told, how it was trained, how it is served."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from envs import Message
from options import Config, option, sources
from records.run_folder import read_rows, step_of, write_text
from tasks.levels import Levels

CARD = Path(__file__).with_name("card.md")


def write_cards(checkpoint: Path, config: Config, policy_of: Mapping[str, str], levels: Levels, ranks: int) -> None:
    """README.md in the folder of every policy of a checkpoint, with the last success that was measured."""
    tested = read_rows(checkpoint.parents[1] / "evaluations.jsonl")[-1]
    prompts = {agent: levels.held_out(0).observe(agent) for agent in policy_of}
    words = {**asdict(config), **tested, "trained": step_of(checkpoint), "command": command(config, ranks)}
    words |= {"task": Path(config.task).name, "team": ", ".join(policy_of)}
    words["library"] = "transformers" if config.adapter == "none" else "peft"
    for policy, source in sources(config, list(dict.fromkeys(policy_of.values()))).items():
        agents = [agent for agent, name in policy_of.items() if name == policy]
        hub = re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not Path(source).exists()
        words |= {"policy": policy, "source": source, "base": f"base_model: {source}\n" if hub else ""}
        words |= {"roles": ", ".join(agents), "role": agents[0], "messages": json.dumps(prompts[agents[0]])}
        words["prompts"] = "\n\n".join(f"**{agent}**\n\n{fenced(prompts[agent])}" for agent in agents)
        write_text(checkpoint / policy / "README.md", CARD.read_text(encoding="utf-8").format(**words))


def fenced(prompt: list[Message]) -> str:
    """The system message as a block that nothing in the text can end: its fence is longer than any in there."""
    text = "\n\n".join(message["content"] for message in prompt if message["role"] == "system") or "none"
    fence = "`" * max([3, *(len(marks) + 1 for marks in re.findall("`+", text))])
    return f"{fence}text\n{text}\n{fence}"


def command(config: Config, ranks: int = 1) -> str:
    """The command line of a run without its folder: all options that are not the defaults."""
    usual = asdict(Config(task=config.task, model=config.model, adapter=config.adapter).resolved())
    usual |= {"task": Config.task, "model": Config.model, "adapter": Config.adapter}
    words = ["torchrun", "--nproc-per-node", str(ranks), "train.py"] if ranks > 1 else ["python", "train.py"]
    for name, value in asdict(replace(config, output_dir=usual["output_dir"], resume=False, like="")).items():
        if value != usual[name]:
            words += [option(name), *map(str, value if isinstance(value, tuple) else [value][value is True :])]
    return shlex.join(words)
