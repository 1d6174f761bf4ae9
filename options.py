"""The options of a run: what they are, their defaults, and which do not fit together. Each error names its option."""

from __future__ import annotations

import json
import time
from argparse import Action, ArgumentDefaultsHelpFormatter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from transformers import HfArgumentParser

from envs import TASKS
from update import UpdateConfig, opt

# what an option is when it is not given: for the tiny model, for any other
BY_MODEL: dict[str, tuple] = {"lr": (4e-4, 1e-6), "warm_start": (60, 0), "max_response_tokens": (16, 512)}


def by_model(name: str, text: str, metavar: str = "N") -> Any:
    """An option of which `parse` fills in the default, by the model."""
    for_tiny, for_others = BY_MODEL[name]
    return opt(None, f"{text} (default: {for_tiny:g} for tiny, else {for_others:g})", metavar)


class Help(ArgumentDefaultsHelpFormatter):
    """Adds its default to the line of an option that does not explain it itself."""

    def _get_help_string(self, action: Action) -> str | None:
        return action.help if "default" in str(action.help) else super()._get_help_string(action)


@dataclass
class Config:
    """The options of a run, beside those of the update (`update.UpdateConfig`)."""

    task: str = opt("plan_path", "plan_path, sokoban, sudoku, math or code")
    workflow: str = opt("mas", "mas (several agents), single, or ensemble (math)")
    env_options: list[str] = opt([], "options of the task, for instance rows=6 tool=python", "KEY=VALUE")
    data: str = opt("", "training problems of math and code: a file or a hub id", "FILE")
    eval_data: str = opt("", "held-out problems of math and code", "FILE")
    model: str = opt("tiny", "tiny (from scratch), a hub id or a folder", "NAME")
    policies: list[str] = opt(["shared"], "shared, per_role, or agent=policy ... for every agent", "MAP")
    placement: list[str] = opt([], "torchrun: ranks of each policy, policy=first-last ... (default: even)", "MAP")
    engine: Literal["transformers", "vllm"] = opt("transformers", "what samples; vllm is the fast one on GPUs")
    engine_memory: float = opt(0.3, "vllm: share of the GPU's memory for its weights and cache", "X")
    engine_sleep: bool = opt(False, "vllm: give that memory back during updates", "")
    gradient_checkpointing: bool = opt(False, "compute activations twice instead of keeping them: less memory", "")
    fused: bool = opt(False, "compile layers for the update on a GPU (faster, but the first step is slow)", "")
    frozen: list[str] = opt([], "policies that play but are not trained", "NAME")
    sampling: Literal["tree", "chains", "parallel"] = opt(
        "tree", "tree is AT-GRPO, chains is GRPO; parallel: chains whose actions are compared one by one (ablation)"
    )
    grouping: Literal["agent_turn", "trajectory", "agent", "turn", "prompt"] = opt(
        "agent_turn", "agent_turn for a tree, trajectory for chains, prompt for parallel; agent, turn: ablations"
    )
    reward: Literal["mixed", "outcome"] = opt(
        "mixed", "mixed: alpha * team + local; outcome: 1 if solved, else 0 (ablation)"
    )
    num_candidates: int = opt(8, "K, candidates of a prompt (chains: trajectories of an environment)")
    max_turns: int = opt(6, "T, turns of an environment")
    alpha: float = opt(1.0, "weight of the team reward beside the local one", "X")
    normalize: Literal["std", "mean_only"] = opt("std", "advantage: (r - mean) / std, or r - mean")
    envs_per_step: int = opt(64, "environment instances a step")
    steps: int = opt(200, "training steps")
    lr: float = by_model("lr", "peak learning rate", "X")
    lr_final: float = opt(0.1, "share of the peak left at the last step (linear decay)", "X")
    lr_warmup: int = opt(10, "steps of linear warm-up")
    warm_start: int = by_model("warm_start", "steps of imitating noisy moves, boards only")
    max_response_tokens: int = by_model("max_response_tokens", "limit of a response")
    eval_envs: int = opt(200, "held-out environments, played greedily before and after training")
    report_every: int = opt(25, "steps between held-out evaluations and printed examples, 0 for none")
    save_every: int = opt(50, "steps between checkpoints")
    keep: int = opt(2, "checkpoints that stay")
    trees: int = opt(2, "environments a step that are recorded for report.py")
    output_dir: str = opt("", "run folder (default: runs/TASK-DATE-TIME)", "DIR")
    resume: bool = opt(False, "go on with the run in --output-dir", "")
    device: str = opt("", "cpu or cuda (default: cuda if there is one)", "NAME")
    sandbox: Literal["auto", "require", "rlimit"] = opt(
        "auto", "for programs: require refuses to run without bubblewrap"
    )
    seed: int = opt(0, "seed of weights, levels and sampling")


def parse(argv: Sequence[str] | None = None) -> tuple[Config, UpdateConfig]:
    """Options from the command line. Raises ValueError on values that do not fit together."""
    parser = HfArgumentParser(
        cast(Any, [Config, UpdateConfig]),
        description="AT-GRPO: on-policy reinforcement learning for a team of language-model agents (arXiv 2510.11062).",
        allow_abbrev=False,
        formatter_class=lambda prog: Help(prog, max_help_position=46, width=132),
    )
    config, objective = parser.parse_args_into_dataclasses(argv)
    for name, (for_tiny, for_others) in BY_MODEL.items():
        if getattr(config, name) is None:
            setattr(config, name, for_tiny if config.model == "tiny" else for_others)
    objective.max_response_tokens = config.max_response_tokens
    if config.task not in TASKS:
        raise ValueError(f"--task {config.task}: choose one of {', '.join(TASKS)}")
    groupings = {"tree": ("agent_turn", "agent", "turn"), "chains": ("trajectory",), "parallel": ("prompt",)}
    if config.grouping not in groupings[config.sampling]:
        raise ValueError(
            f"--sampling {config.sampling} --grouping {config.grouping}: a tree has agent- and turn-wise groups and no "
            "trajectories to compare; chains see different prompts after the first action. Use tree with agent_turn or "
            "chains with trajectory (ablations: tree with agent or turn, parallel with prompt)"
        )
    if config.reward == "outcome" and config.sampling != "tree":
        raise ValueError(f"--reward outcome --sampling {config.sampling}: the reward of an action is that of a tree")
    check_ranges({**asdict(config), **asdict(objective)})
    if config.resume and not config.output_dir:
        raise ValueError("--resume needs --output-dir, the folder of the run to go on with")
    if not config.output_dir:
        config.output_dir = f"runs/{config.task}-{time.strftime('%Y%m%d-%H%M%S')}"
    config.device = config.device or default_device()
    if config.device not in ("cpu", "cuda"):
        raise ValueError(f"--device {config.device}: cpu or cuda (CUDA_VISIBLE_DEVICES says which GPUs)")
    return config, objective


def check_ranges(options: dict[str, Any]) -> None:
    positive = ("max_turns", "envs_per_step", "steps", "eval_envs", "max_response_tokens", "keep")
    for name in (*positive, "minibatches", "epochs", "micro_batch_tokens"):
        if options[name] < 1:
            raise ValueError(f"--{name.replace('_', '-')} {options[name]}: at least 1")
    if options["num_candidates"] < 2:
        raise ValueError(f"--num-candidates {options['num_candidates']}: at least 2, to have something to compare")
    if options["warm_start"] < 0:
        raise ValueError(f"--warm-start {options['warm_start']}: at least 0")
    for name in ("lr", "temperature", "clip"):
        if not options[name] > 0:
            raise ValueError(f"--{name} {options[name]}: more than 0")
    if not 0 < options["engine_memory"] < 1:
        raise ValueError(f"--engine-memory {options['engine_memory']}: a share of the GPU, between 0 and 1")
    if not 0 <= options["seed"] < 2**16:
        raise ValueError(f"--seed {options['seed']}: 0 to {2**16 - 1}, so that no training level is a held-out one")


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def all_options(config: Config, objective: UpdateConfig) -> dict[str, Any]:
    return {**asdict(config), "update": asdict(objective)}


def check_run_folder(config: Config, objective: UpdateConfig) -> None:
    """A new run needs a folder without one; a resumed run the options it was started with (save how long and where)."""
    saved = Path(config.output_dir) / "config.json"
    if not config.resume:
        if saved.exists():
            raise ValueError(
                f"--output-dir {config.output_dir} holds a run already: add --resume, or name another folder"
            )
        saved.parent.mkdir(parents=True, exist_ok=True)
        return
    if not saved.exists():
        raise ValueError(f"--resume: {config.output_dir} holds no run (no config.json)")
    old = json.loads(saved.read_text(encoding="utf-8"))
    same = replace(config, **{name: old[name] for name in ("steps", "resume", "output_dir", "device", "placement")})
    now, then = ({**options.pop("update"), **options} for options in (all_options(same, objective), old))
    for name, value in now.items():
        if then.get(name) != value:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"--resume: the run was started with {option} {then.get(name)!r}, not {value!r}")


def parse_policies(values: Sequence[str], agents: Sequence[str]) -> dict[str, str]:
    """`shared`, `per_role` or `agent=policy ...` -> {agent: policy}. ValueError unless every agent is named once."""
    if list(values) == ["shared"]:
        return dict.fromkeys(agents, "shared")
    if list(values) == ["per_role"]:
        return {agent: agent for agent in agents}
    pairs = dict(value.split("=", 1) for value in values if value.count("=") == 1)
    if len(pairs) != len(values) or set(pairs) != set(agents) or not all(n.isidentifier() for n in pairs.values()):
        raise ValueError(
            f"--policies {' '.join(values)}: give shared, per_role, or agent=policy once for each of "
            f"{', '.join(agents)}"
        )
    return {agent: pairs[agent] for agent in agents}
