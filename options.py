"""The options of a run: what they are, their defaults, and which do not fit together. Each error names its option.

A dataclass is a group of `--help`; the text below a field is its line there.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import math
import re
import time
from argparse import ArgumentParser, HelpFormatter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from envs import TASKS
from sampling.ablations import METHODS
from update import UpdateConfig

# what an option is when it is not given: for the tiny model, for any other
BY_MODEL: dict[str, tuple] = {
    "lr": (4e-4, 1e-6),
    "adam_beta2": (0.99, 0.999),
    "adam_eps": (1e-5, 1e-8),
    "warm_start": (60, 0),
    "max_response_tokens": (16, 512),
}


def by_model() -> Any:
    """An option whose default `parse` looks up in BY_MODEL."""
    return field(default=None)


@dataclass
class TaskOptions:
    task: str = "plan_path"
    """plan_path, sokoban, sudoku, math or code"""
    workflow: str = "mas"
    """mas (several agents), single, or ensemble (math)"""
    env_options: list[str] = field(default_factory=list, metadata={"metavar": "KEY=VALUE"})
    """options of the task, for instance rows=6 tool=python"""
    data: str = field(default="", metadata={"metavar": "FILE"})
    """training problems of math and code: a file or a hub id"""
    eval_data: str = field(default="", metadata={"metavar": "FILE"})
    """held-out problems of math and code"""
    max_turns: int = 6
    """T, turns of an environment"""
    sandbox: Literal["auto", "require", "rlimit"] = "auto"
    """for programs: require refuses to run without bubblewrap"""


@dataclass
class TeamOptions:
    model: str = field(default="tiny", metadata={"metavar": "NAME"})
    """tiny (from scratch), a hub id or a folder"""
    policies: list[str] = field(default_factory=lambda: ["shared"], metadata={"metavar": "MAP"})
    """shared, per_role, or agent=policy ... for every agent"""
    frozen: list[str] = field(default_factory=list, metadata={"metavar": "NAME"})
    """policies that play but are not trained"""
    placement: list[str] = field(default_factory=list, metadata={"metavar": "MAP"})
    """torchrun: ranks of each policy, policy=first-last ... (default: even)"""
    warm_start: int = by_model()
    """steps of imitating noisy moves, boards only"""


@dataclass
class SamplingOptions:
    sampling: Literal["tree", "chains", "parallel"] = "tree"
    """tree is AT-GRPO, chains is GRPO; parallel is an ablation"""
    grouping: Literal["agent_turn", "trajectory", "agent", "turn", "prompt"] = "agent_turn"
    """agent_turn for a tree, trajectory for chains; the others are ablations"""
    reward: Literal["mixed", "outcome"] = "mixed"
    """alpha * team + local; outcome (ablation): 1 if solved, else 0"""
    num_candidates: int = 8
    """K, candidates of a prompt (chains: trajectories of an environment)"""
    envs_per_step: int = 64
    """environment instances a step"""
    alpha: float = 1.0
    """weight of the team reward beside the local one"""
    normalize: Literal["std", "mean_only"] = "std"
    """advantage: (r - mean) / std, or r - mean"""
    max_response_tokens: int = by_model()
    """limit of a response"""


@dataclass
class OptimizerOptions:
    lr: float = by_model()
    """peak learning rate"""
    lr_final: float = 0.1
    """share of the peak left at the last step (linear decay)"""
    lr_warmup: int = 10
    """steps of linear warm-up"""
    adam_beta2: float = by_model()
    """decay of Adam's second moment"""
    adam_eps: float = by_model()
    """added to the root of Adam's second moment"""


@dataclass
class EngineOptions:
    engine: Literal["transformers", "vllm"] = "transformers"
    """what samples; vllm is the fast one on GPUs"""
    engine_memory: float = 0.3
    """vllm: share of the GPU's memory for its weights and cache"""
    engine_sleep: bool = False
    """vllm: give that memory back during updates"""
    gradient_checkpointing: bool = False
    """compute activations twice instead of keeping them: less memory"""
    fused: bool = False
    """compile layers for the update on a GPU: faster, a slow first step"""
    device: str = field(default="", metadata={"metavar": "NAME"})
    """cpu or cuda (default: cuda if there is one)"""


@dataclass
class RunOptions:
    steps: int = 200
    """training steps"""
    seed: int = 0
    """seed of weights, levels and sampling"""
    output_dir: str = field(default="", metadata={"metavar": "DIR"})
    """run folder (default: runs/TASK-DATE-TIME)"""
    resume: bool = False
    """go on with the run in --output-dir"""
    eval_envs: int = 200
    """held-out environments, played greedily before and after training"""
    report_every: int = 25
    """steps between held-out evaluations and printed examples, 0 for none"""
    save_every: int = 50
    """steps between checkpoints"""
    keep: int = 2
    """checkpoints that stay"""
    trees: int = 2
    """environments a step that are recorded for report.py"""


@dataclass
class Config(RunOptions, EngineOptions, OptimizerOptions, SamplingOptions, TeamOptions, TaskOptions):
    """The options of a run, beside those of the update (`update.UpdateConfig`)."""


NOT_OPTIONS = ("mismatch_clamp", "grad_clip")  # constants of the update; `max_response_tokens` is an option of sampling
GROUPS: dict[str, list[type]] = {
    "task": [TaskOptions],
    "team": [TeamOptions],
    "sampling": [SamplingOptions],
    "objective": [UpdateConfig, OptimizerOptions],
    "engine and memory": [EngineOptions],
    "run": [RunOptions],
}


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        usage="train.py [--option VALUE ...]",
        description="AT-GRPO: on-policy reinforcement learning for a team of language-model agents (arXiv 2510.11062).",
        allow_abbrev=False,
        formatter_class=lambda prog: HelpFormatter(prog, max_help_position=30, width=80),
    )
    for title, classes in GROUPS.items():
        group, known = parser.add_argument_group(title), {action.dest for action in parser._actions}
        for cls in classes:
            for name, settings in arguments_of(cls).items():
                if name not in (*NOT_OPTIONS, *known):
                    group.add_argument("--" + name.replace("_", "-"), **settings)
    return parser


def arguments_of(cls: type) -> dict[str, dict[str, Any]]:
    """What `add_argument` is told about each field of a dataclass: type, default, and the text below it as help."""
    kinds, (body,) = get_type_hints(cls), ast.parse(dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    texts = {
        ast.unparse(above.target): ast.literal_eval(below.value)
        for above, below in pairwise(body.body)
        if isinstance(above, ast.AnnAssign) and isinstance(below, ast.Expr)
    }
    found: dict[str, dict[str, Any]] = {}
    for option in fields(cls):
        kind, text = kinds[option.name], texts[option.name]
        default = option.default_factory() if callable(option.default_factory) else option.default
        settings: dict[str, Any] = {"default": default}
        if kind is bool:
            settings["action"] = "store_true"
        elif get_origin(kind) is Literal:
            settings["choices"] = get_args(kind)
        else:
            settings["type"] = get_args(kind)[0] if get_origin(kind) is list else kind
            settings |= {"nargs": "+"} if get_origin(kind) is list else {}
            letter = "X" if settings["type"] is float else "N"
            settings["metavar"] = option.metadata.get("metavar", letter if settings["type"] is not str else "NAME")
        if option.name in BY_MODEL:
            for_tiny, for_others = BY_MODEL[option.name]
            text += f" (default: {for_tiny:g} for tiny, else {for_others:g})"
        elif not (default is False or default in ("", [])) and "default" not in text:
            text += f" (default: {' '.join(default) if isinstance(default, list) else default})"
        found[option.name] = settings | {"help": text}
    return found


def parse(argv: Sequence[str] | None = None) -> tuple[Config, UpdateConfig]:
    """Options from the command line. Raises ValueError on options that do not exist or do not fit together."""
    parser = make_parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        raise ValueError(f"{unknown[0]}: no such option{nearest(unknown[0], list(parser._option_string_actions))}")
    values = vars(arguments)
    for name, (for_tiny, for_others) in BY_MODEL.items():
        if values[name] is None:
            values[name] = for_tiny if arguments.model == "tiny" else for_others
    check_ranges(values)
    config = Config(**{option.name: values[option.name] for option in fields(Config)})
    objective = UpdateConfig(**{name: value for name, value in values.items() if name in asdict(UpdateConfig())})
    if config.task not in TASKS:
        raise ValueError(f"--task {config.task}: choose one of {', '.join(TASKS)}{nearest(config.task, list(TASKS))}")
    if (config.sampling, config.grouping, config.reward) not in METHODS:
        raise ValueError(
            f"--sampling {config.sampling} --grouping {config.grouping} --reward {config.reward}: a tree has agent- "
            "and turn-wise groups and no trajectories to compare; chains see different prompts after the first action "
            "and have a return. Use tree with agent_turn or chains with trajectory (ablations: tree with agent or "
            "turn, tree with --reward outcome, parallel with prompt)"
        )
    if config.resume and not config.output_dir:
        raise ValueError("--resume needs --output-dir, the folder of the run to go on with")
    if not config.output_dir:
        config.output_dir = f"runs/{config.task}-{time.strftime('%Y%m%d-%H%M%S')}"
    config.device = config.device or default_device()
    if config.device not in ("cpu", "cuda"):
        raise ValueError(f"--device {config.device}: cpu or cuda (CUDA_VISIBLE_DEVICES says which GPUs)")
    return config, objective


def nearest(word: str, known: Sequence[str]) -> str:
    """The hint at the end of an error about a word that does not exist."""
    found = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {found[0]}?)" if found else ""


def check_ranges(options: dict[str, Any]) -> None:
    """ValueError naming the first option whose number is out of range."""
    one = ("max_turns", "envs_per_step", "steps", "eval_envs", "max_response_tokens", "keep")
    least: dict[str, float] = dict.fromkeys((*one, "minibatches", "epochs", "micro_batch_tokens"), 1)
    least |= dict.fromkeys(("warm_start", "lr_warmup", "report_every", "save_every", "trees", "alpha", "lr_final"), 0)
    least["num_candidates"] = 2  # to have something to compare
    for name, value in options.items():
        option = f"--{name.replace('_', '-')} {value}"
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{option}: a finite number is needed")
        if name in least and value < least[name]:
            raise ValueError(f"{option}: at least {least[name]:g}")
        if name in ("lr", "temperature", "clip", "adam_eps") and value <= 0:
            raise ValueError(f"{option}: more than 0")
    if not 0 <= options["adam_beta2"] < 1:
        raise ValueError(f"--adam-beta2 {options['adam_beta2']}: 0 or more, and less than 1")
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
    """`shared`, `per_role` or `agent=policy ...` -> {agent: policy}. ValueError unless every agent is named once.

    A role is a kind of agent: `reasoner_1` and `reasoner_2` of an ensemble share the policy `reasoner`.
    """
    if list(values) == ["shared"]:
        return dict.fromkeys(agents, "shared")
    if list(values) == ["per_role"]:
        return {agent: re.sub(r"_\d+$", "", agent) for agent in agents}
    pairs = dict(value.split("=", 1) for value in values if value.count("=") == 1)
    if len(pairs) != len(values) or set(pairs) != set(agents) or not all(n.isidentifier() for n in pairs.values()):
        raise ValueError(
            f"--policies {' '.join(values)}: give shared, per_role, or agent=policy once for each of "
            f"{', '.join(agents)}"
        )
    return {agent: pairs[agent] for agent in agents}
