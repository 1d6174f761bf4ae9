"""The options of a run: their meaning, their defaults, and which cannot be combined. Each error names its option.

Each dataclass is a group in `--help`; the text below a field is its help line.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
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
from model.tiny import BOARDS
from records.parts import LEFT_OPEN, take_over
from records.reading import nearest_folder
from records.run_folder import read_sealed
from records.values import fits, in_words, nearest
from studies.ablations import METHODS
from tasks.levels import TRAINING_LEVELS, list_options
from tasks.registry import located
from update import UpdateConfig

# defaults that depend on the model: (for the tiny model, for any other)
BY_MODEL: dict[str, tuple] = {
    "lr": (8e-4, 1e-6),
    "adam_beta2": (0.99, 0.999),
    "adam_eps": (1e-5, 1e-8),
    "warm_start": (60, 0),
    "max_response_tokens": (28, 512),
}


def by_model() -> Any:
    """An option whose default `parse` looks up in BY_MODEL."""
    return field(default=None)


@dataclass
class TaskOptions:
    task: str = "plan_path"
    """plan_path, sokoban, sudoku, math, code, or file.py:Class"""
    workflow: str = "mas"
    """mas (several agents), single, or ensemble (math)"""
    env_options: list[str] = field(default_factory=list, metadata={"metavar": "KEY=VALUE"})
    """options of the task, for instance rows=8 (--task NAME --help lists them)"""
    data: str = field(default="", metadata={"metavar": "FILE"})
    """training problems, for tasks that read them: a file or a hub id"""
    eval_data: str = field(default="", metadata={"metavar": "FILE"})
    """held-out problems, for the same tasks"""
    max_turns: int = 6
    """T, turns of an environment"""
    sandbox: Literal["auto", "require", "rlimit"] = "auto"
    """for programs: require refuses to run without bubblewrap"""


@dataclass
class TeamOptions:
    model: list[str] = field(default_factory=lambda: ["tiny"], metadata={"metavar": "NAME"})
    """tiny, hub id, folder, RUN or RUN@STEP; or POLICY=NAME ... (default: tiny)"""
    policies: list[str] = field(default_factory=lambda: ["shared"], metadata={"metavar": "MAP"})
    """shared, per_role, or agent=policy ... (default: shared, or per_role if --model names policies)"""
    adapter: Literal["none", "lora"] = "none"
    """lora trains an adapter on shared weights"""
    lora_rank: int = 16
    """rank of these matrices"""
    frozen: list[str] = field(default_factory=list, metadata={"metavar": "NAME"})
    """policies that play but are not trained"""
    ranks: list[int] = field(default_factory=list)
    """torchrun: how many ranks each policy gets, for instance 6 2 (default: even)"""
    warm_start: int = by_model()
    """steps of imitating noisy moves, boards only"""


@dataclass
class SamplingOptions:
    sampling: Literal["tree", "chains", "parallel"] = "tree"
    """tree is AT-GRPO, chains is GRPO; parallel is an ablation"""
    grouping: Literal["agent_turn", "trajectory", "agent", "turn", "prompt"] = "agent_turn"
    """agent_turn for a tree, trajectory for chains; the others are ablations"""
    reward: Literal["mixed", "dense", "outcome"] = "mixed"
    """alpha * team + local (chains: progress at the end); dense: its mean over a trajectory; outcome: 1 if solved"""
    num_candidates: int = 8
    """K, candidates per prompt (chains: trajectories per environment)"""
    envs_per_step: int = 64
    """environment instances per step"""
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
    optimizer: Literal["adamw", "adamw8bit"] = "adamw"
    """adamw8bit: Adam's moments in a quarter of the memory (needs torchao)"""
    adam_beta2: float = by_model()
    """decay of Adam's second moment"""
    adam_eps: float = by_model()
    """added to the root of Adam's second moment"""


@dataclass
class EngineOptions:
    engine: Literal["transformers", "vllm"] = "transformers"
    """sampling engine; vllm is the fast one on GPUs"""
    engine_memory: float = 0.3
    """vllm: share of the GPU's memory for its weights and cache"""
    engine_sleep: bool = False
    """vllm: free that memory during updates"""
    gradient_checkpointing: bool = False
    """compute activations twice instead of keeping them: less memory"""
    fused: bool = False
    """compile layers for the update on a GPU: faster, a slow first step"""
    device: str = field(default="", metadata={"metavar": "NAME"})
    """cuda if there is one, or cpu (tiny: one thread)"""


@dataclass
class RunOptions:
    steps: int = 200
    """training steps"""
    seed: int = 0
    """seed of weights, levels and sampling"""
    output_dir: str = field(default="", metadata={"metavar": "DIR"})
    """run folder (default: runs/TASK-DATE-TIME)"""
    resume: bool = False
    """continue the run in --output-dir"""
    eval_envs: int = 200
    """held-out environments, played greedily before and after training"""
    report_every: int = 25
    """steps between held-out evaluations and printed examples, 0 for none"""
    save_every: int = 50
    """steps between checkpoints"""
    keep: int = 2
    """checkpoints to keep"""
    trees: int = 2
    """environments per step that are recorded for report.py"""
    track: Literal["none", "tensorboard", "wandb", "trackio"] = "none"
    """log the numbers there too"""


@dataclass
class Config(RunOptions, EngineOptions, OptimizerOptions, SamplingOptions, TeamOptions, TaskOptions):
    """The options of a run, apart from those of the update (`update.UpdateConfig`)."""


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


def add_task_options(parser: ArgumentParser, argv: Sequence[str]) -> None:
    """Show the --env-options of the task that is named in `argv` at the end of the help."""
    named = ArgumentParser(add_help=False, allow_abbrev=False)
    named.add_argument("--task")
    named.add_argument("--model", nargs="+", default=["tiny"])
    given = named.parse_known_args(argv)[0]
    if given.task:
        defaults = BOARDS.get(given.task, {}) if "tiny" in [name.rpartition("=")[2] for name in given.model] else {}
        parser.add_argument_group(f"--env-options of {given.task}", list_options(given.task, defaults))


def arguments_of(cls: type) -> dict[str, dict[str, Any]]:
    """The arguments of `add_argument` for each field of a dataclass: type, default, and the text below it as help."""
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
            text += (
                f" (default: {for_tiny:g} for tiny, else {for_others:g}{'; LoRA: times 10' * (option.name == 'lr')})"
            )
        elif not (default is False or default in ("", [])) and "default" not in text:
            text += f" (default: {' '.join(default) if isinstance(default, list) else default})"
        found[option.name] = settings | {"help": text}
    return found


def parse(argv: Sequence[str] | None = None, training: bool = True) -> tuple[Config, UpdateConfig]:
    """Options from the command line; `training=False`: those of training alone do not matter.

    Raises ValueError on options that do not exist or do not fit together.
    """
    parser, words = make_parser(), sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        add_task_options(parser, words)
    parser.set_defaults(**dict.fromkeys(LEFT_OPEN))  # None: it was not given, and a run in --model may decide
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        raise ValueError(f"{unknown[0]}: no such option{nearest(unknown[0], list(parser._option_string_actions))}")
    values = take_over(vars(arguments), BY_MODEL, read_config, training)
    usual = asdict(Config())
    values |= {name: usual[name] for name in LEFT_OPEN if values[name] is None}
    check_ranges(values)
    if arguments.steps * arguments.envs_per_step > TRAINING_LEVELS:
        raise ValueError(
            f"--steps {arguments.steps} --envs-per-step {arguments.envs_per_step}: a seed has {TRAINING_LEVELS} levels"
        )
    config = Config(**{option.name: values[option.name] for option in fields(Config)})
    objective = UpdateConfig(**{name: value for name, value in values.items() if name in asdict(UpdateConfig())})
    if config.task not in TASKS and ":" not in config.task:  # a class is looked up later
        raise ValueError(
            f"--task {config.task}: no such task{nearest(config.task, list(TASKS))}; there are {', '.join(TASKS)}, "
            "or your own as file.py:Class"
        )
    if (config.sampling, config.grouping, config.reward) not in METHODS:
        raise ValueError(
            f"--sampling {config.sampling} --grouping {config.grouping} --reward {config.reward}: a tree has agent- "
            "and turn-wise groups and no trajectories to compare; chains see different prompts after the first action "
            "and have a return. Use tree with agent_turn or chains with trajectory (ablations: tree with agent or "
            "turn, parallel with agent_turn or prompt, and other rewards where studies/ablations.py has them)"
        )
    if config.resume and not config.output_dir:
        raise ValueError("--resume needs --output-dir, the folder of the run to continue")
    if not config.output_dir:
        name = re.sub(r"[^A-Za-z0-9_]+", "-", Path(config.task).name)
        config.output_dir = f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    config.task = located(config.task)
    config.device = config.device or default_device()
    if config.device not in ("cpu", "cuda"):
        raise ValueError(f"--device {config.device}: cpu or cuda (CUDA_VISIBLE_DEVICES says which GPUs)")
    return config, objective


RANGES: dict[str, tuple[float, float]] = {  # the least and the most that makes sense
    **dict.fromkeys(("max_turns", "epochs", "minibatches"), (1, 2**12)),
    **dict.fromkeys(("steps", "envs_per_step", "eval_envs", "max_response_tokens"), (1, 2**20)),
    **dict.fromkeys(("keep", "micro_batch_tokens"), (1, 2**30)),
    "lora_rank": (1, 2**12),
    "num_candidates": (2, 2**12),  # two, to have something to compare
    "seed": (0, 2**16 - 1),  # so that no training level is a held-out one
    "lr": (1e-30, 1),
    "clip": (1e-30, 100),
    "temperature": (0.01, 100),
    "lr_final": (0, 1),
    "adam_beta2": (0, 1 - 1e-9),
    "adam_eps": (1e-30, 1),
    "engine_memory": (0.01, 0.99),
}
OTHERS = (0, 2**24)


def check_ranges(options: dict[str, Any], ranges: dict[str, tuple[float, float]] = RANGES) -> None:
    """ValueError naming the first option whose number is out of range."""
    for name, value in options.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            least, most = ranges.get(name, OTHERS)
            if not least <= value <= most:  # also when it is not a number
                raise ValueError(f"--{name.replace('_', '-')} {shown(value)}: {least:.10g} to {most:.10g}")


def shown(value: float) -> str:
    """A number as it was given; one of thousands of digits by its length."""
    return str(value) if not isinstance(value, int) or abs(value) < 10**30 else f"({value.bit_length()} bits)"


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def all_options(config: Config, objective: UpdateConfig) -> dict[str, Any]:
    return {**asdict(config), "update": asdict(objective)}


UNTIED = ("steps", "resume", "output_dir", "device", "ranks", "track")  # options that a resumed run may change


def check_run_folder(config: Config, objective: UpdateConfig) -> None:
    """A new run needs a folder without a run; a resumed run needs its old options (except how long and where)."""
    saved = Path(config.output_dir) / "config.json"
    if not config.resume:
        if saved.exists():
            raise ValueError(
                f"--output-dir {config.output_dir} already holds a run: add --resume, or name another folder"
            )
        saved.parent.mkdir(parents=True, exist_ok=True)
        return
    if not saved.exists():
        hint = nearest_folder(saved.parent, "config.json")
        raise ValueError(f"--resume: {config.output_dir} holds no run (no config.json){hint}")
    old = read_config(saved.parent)
    same = replace(config, **{name: old[name] for name in UNTIED})
    now, then = ({**options.pop("update"), **options} for options in (all_options(same, objective), old))
    for name, value in now.items():
        if then.get(name) != value:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"--resume: the run was started with {option} {then.get(name)!r}, not {value!r}")


def read_config(run: Path) -> dict[str, Any]:
    """`all_options` of a run folder. ValueError naming its config.json, and an option that does not belong there."""
    path, known = run / "config.json", all_options(Config(), UpdateConfig())
    values = read_sealed(path)
    if isinstance(values.get("model"), str):  # an older version had one for all policies
        values["model"] = [values["model"]]
    for found, wanted, cls in ((values, known, Config), (values.get("update"), known["update"], UpdateConfig)):
        if not isinstance(found, dict):
            raise ValueError(f"{path}: the options of the update are missing")
        kinds = get_type_hints(cls)
        for name in [*found, *wanted]:
            if name not in wanted:
                hint = nearest(name, list(wanted))
                raise ValueError(f"{path}: unknown option {name!r}{hint}; another version wrote it")
            if name not in found:
                raise ValueError(f"{path}: option {name!r} is missing; another version wrote it")
            if name in kinds and not fits(found[name], kinds[name]):
                raise ValueError(f"{path}: option {name!r} should be {in_words(kinds[name])}, not {found[name]!r:.60}")
        try:
            check_ranges(found)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return values


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
