"""The options of a run, one flat dataclass: in a run folder it is `config.json`. No torch.

tyro reads it from the command line: the comment at a field is its line in `--help`. Each error is one line and names
its option.
"""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Container, Sequence
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import tyro
from typeguard import CollectionCheckStrategy, TypeCheckError, check_type

from records.run_folder import read_object
from tasks.registry import TASKS, located, task_class

Constant = Annotated[float, tyro.conf.Fixed]  # in the code, not on the command line
BY_MODEL: Any = None  # `Config.resolved` fills it in
Rate = Annotated[float, tyro.conf.arg(constructor=float | None, metavar="FLOAT", help_behavior_hint="")]  # type: ignore
Count = Annotated[int, tyro.conf.arg(constructor=int | None, metavar="INT", help_behavior_hint="")]  # type: ignore
PLAIN = tyro.conf.arg(help_behavior_hint="")
Text = Annotated[str, PLAIN]
Words = Annotated[tuple[str, ...], PLAIN]


@dataclass(frozen=True)
class UpdateConfig:
    """How a batch becomes optimizer steps. The defaults are ours where the paper is silent."""

    temperature: Constant = 1.0  # of sampling, and of the log-probs
    clip: float = 0.2  # the ratio is clipped to [1 - clip, 1 + clip]
    loss: Literal["token", "sequence", "constant"] = "token"  # what the loss is divided by (update.loss_weights)
    minibatches: int = 4  # optimizer steps an epoch: parts that the batch is dealt into
    epochs: int = 1  # times a batch is used
    micro_batch_tokens: int = 0  # tokens in one forward pass (0: what fits the GPU); changes memory, not the result
    mismatch_clamp: Constant = 2.0  # C in w = min(exp(lp_trainer - lp_engine), C)
    grad_clip: Constant = 1.0  # maximum norm of the gradient
    max_response_tokens: Count = BY_MODEL  # limit of a response (default: 28 for tiny, else 512)


@dataclass(frozen=True)
class Config(UpdateConfig):
    """AT-GRPO: reinforcement learning for teams of language models (arXiv 2510.11062)."""

    task: str = "plan_path"  # plan_path, sokoban, sudoku, math, code, or file.py:Class
    workflow: str = "mas"  # mas (several agents), single, tool (the tool user alone), or ensemble (math)
    env_options: Words = ()  # KEY=VALUE ..., options of the task, for instance rows=8
    data: Text = ""  # training problems, for tasks that read them: a file or a hub id
    eval_data: Text = ""  # held-out problems, for the same tasks
    max_turns: int = 6  # T, turns of an environment
    sandbox: Literal["auto", "rlimit"] = "auto"  # auto: bubblewrap; rlimit: limits, no security boundary

    model: Words = ("tiny",)  # tiny, hub id, folder, RUN or RUN@STEP; or POLICY=NAME ... (default: tiny)
    policies: Words = ()  # shared, per_role, or agent=policy ... (per_role if --model names them, else shared)
    adapter: Literal["none", "lora"] = "none"  # lora trains an adapter on shared weights
    lora_rank: int = 16  # rank of these matrices
    frozen: Words = ()  # policies that play but are not trained
    ranks: Annotated[tuple[int, ...], PLAIN] = ()  # of torchrun, for each policy
    warm_start: Count = BY_MODEL  # steps of imitating noisy moves, boards only (default: 60 for tiny, else 0)

    sampling: Literal["tree", "chains", "parallel"] = "tree"  # tree is AT-GRPO, chains is GRPO; parallel is an ablation
    grouping: Literal["agent_turn", "trajectory", "agent", "turn", "prompt"] = "agent_turn"  # trajectory for chains
    # alpha * team + local (chains: progress at the end); dense: its mean over a trajectory; outcome: 1 if solved
    reward: Literal["mixed", "dense", "outcome"] = "mixed"
    num_candidates: int = 8  # K, candidates per prompt (chains: trajectories per environment)
    envs_per_step: int = 64  # environment instances per step
    alpha: float = 1.0  # weight of the team reward beside the local one
    normalize: Literal["std", "mean_only"] = "std"  # advantage: (r - mean) / std, or r - mean

    lr: Rate = BY_MODEL  # peak learning rate (default: 8e-4 for tiny, else 1e-6; LoRA: times 10)
    lr_final: float = 0.1  # share of the peak left at the last step (linear decay)
    lr_warmup: int = 10  # steps of linear warm-up
    optimizer: Literal["adamw", "adamw8bit"] = "adamw"  # adamw8bit: a quarter of the memory (needs torchao)

    engine: Literal["transformers", "vllm"] = "transformers"  # sampling engine; vllm is the fast one on GPUs
    engine_memory: float = 0.3  # vllm: share of the GPU's memory for its weights and cache
    gradient_checkpointing: bool = False  # compute activations twice: less memory (by itself where there is little)
    fused: bool = False  # compile layers for the update on a GPU: faster, a slow first step
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: cuda if there is one; CUDA_VISIBLE_DEVICES says which GPUs

    steps: int = 120  # training steps
    seed: int = 0  # seed of weights, levels and sampling
    output_dir: Text = ""  # run folder (default: runs/TASK-DATE-TIME)
    resume: bool = False  # continue the run in --output-dir, with its own options
    like: Text = ""  # a run whose options are the defaults
    eval_envs: int = 200  # held-out environments, played greedily before and after training
    report_every: int = 25  # steps between held-out evaluations and printed examples, 0 for none
    save_every: int = 50  # steps between checkpoints
    keep: int = 2  # checkpoints to keep
    trees: int = 2  # environments per step that are recorded for report.py
    track: Literal["none", "tensorboard", "wandb"] = "none"  # log the numbers there too

    def resolved(self: C) -> C:
        """The same with the defaults that depend on other options."""
        models = by_policy(self.model)
        alone, small = set(models.values()) == {"tiny"}, "tiny" in models.values()
        given = [pair.partition("=")[0] for pair in self.env_options]
        boards = [pair for pair in SMALL_BOARDS.get(self.task, ()) if small and pair.partition("=")[0] not in given]
        name = Path(self.task).name.replace(":", "-")
        # files under names that hold in every folder
        data, eval_data = (str(Path(f).resolve()) if f and Path(f).exists() else f for f in (self.data, self.eval_data))
        by_model: dict[str, Any] = {
            # of an adapter few numbers move, and B starts at 0
            "lr": (8e-4 if alone else 1e-6) * (10.0 if self.adapter == "lora" else 1.0),
            "warm_start": 60 if small else 0,
            "max_response_tokens": 28 if alone else 512,
        }
        return replace(
            self,
            task=located(self.task),
            env_options=(*self.env_options, *boards),
            data=data,
            eval_data=eval_data,
            policies=self.policies or (("shared",) if "" in models else ("per_role",)),
            output_dir=self.output_dir or f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}",
            **{name: value for name, value in by_model.items() if getattr(self, name) is BY_MODEL},
        )

    def check(self) -> None:
        """ValueError naming an option that is out of range."""
        for field in fields(self):
            value, most = getattr(self, field.name), MOST.get(field.name, 2**24)
            least = LEAST.get(field.name, 1 if type(value) is int else 1e-30)
            if type(value) in (int, float) and not least <= value <= most:  # NaN is in no range
                raise ValueError(f"{option(field.name)} {str(value)[:40]}: {least:.10g} to {most:.10g}")
        if ":" not in self.task and self.task not in TASKS:
            task_class(self.task)  # says which there are
        if self.steps * self.envs_per_step > 2**24:
            raise ValueError(f"--steps {self.steps} --envs-per-step {self.envs_per_step}: a seed has 2**24 levels")


C = TypeVar("C", bound=Config)

SMALL_BOARDS = {  # what the tiny model can learn in minutes
    "plan_path": ("rows=6", "cols=6", "blocks=0.12", "max_moves=8", "view=cells"),
    "sokoban": ("max_moves=8",),
}
# other numbers are positive and at most 2**24
MOST = {"seed": 2**16 - 1, "lr": 1, "lr_final": 1, "engine_memory": 0.99, "top_p": 1}
LEAST = dict.fromkeys(("seed", "alpha", "lr_final", "lr_warmup", "warm_start", "report_every", "save_every"), 0)
LEAST |= {"trees": 0, "envs": 0, "temperature": 0, "micro_batch_tokens": 0, "num_candidates": 2}
# options that may change when a run resumes
UNTIED = ("steps", "device", "ranks", "sandbox", "track", "save_every", "keep", "resume", "like", "output_dir")


def parse(argv: Sequence[str] | None = None, methods: Container[tuple[str, str, str]] = ()) -> Config:
    """The options of a training. Defaults < --like RUN < command line; with --resume those of the run itself.

    `methods`: what --sampling, --grouping and --reward may be. ValueError on what does not fit.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    config = read(Config, words, Config())
    if config.resume and not config.output_dir:
        raise ValueError("--resume needs --output-dir, the folder of the run to continue")
    run = config.output_dir if config.resume else config.like
    saved = load(Path(run)) if run else Config()
    config = read(Config, words, saved).resolved()
    for name, then in asdict(saved).items() if config.resume else ():
        now = getattr(config, name)
        moved = name == "task" and Path(now).name == Path(then).name  # the file of a task
        if now != then and name not in UNTIED and not moved:
            now, then = (" ".join(map(str, v)) if isinstance(v, tuple) else v for v in (now, then))
            raise ValueError(f"{option(name)} {now}: the run was started with {option(name)} {then}")
    config.check()
    method = config.sampling, config.grouping, config.reward
    if methods and method not in methods:
        given = "--sampling {} --grouping {} --reward {}".format(*method)
        raise ValueError(f"{given}: use tree with agent_turn or chains with trajectory (others: studies/ablations.py)")
    return config


def read(cls: type[C], words: Sequence[str], usual: C) -> C:
    """The options on a command line, `usual` where it says nothing. ValueError in one line.

    A run folder runs no code: the command line has to name a task of one's own.
    """
    own, box = usual.task not in TASKS, io.StringIO()
    default = replace(usual, task="") if own else usual
    try:
        with redirect_stderr(box):
            config = tyro.cli(cls, args=words, default=default, config=(tyro.conf.SuppressFixed,))
    except SystemExit as refused:
        if not refused.code:  # --help
            raise
        _, error, *_ = re.split(r"[─-]{9,}", box.getvalue())  # title, line, what is wrong, line, more
        raise ValueError(" ".join(re.sub("[│╮]", " ", error).split())) from None
    if own and not config.task:
        raise ValueError(f"the run has a task of its own, whose code only runs if you name it: add --task {usual.task}")
    return config


def load(run: Path) -> Config:
    """The options of a run. ValueError naming its config.json."""
    path = run / "config.json"
    if not path.exists():
        raise ValueError(f"{run} holds no run (no config.json)")
    given: Any = {name: tuple(value) if type(value) is list else value for name, value in read_object(path).items()}
    try:
        saved = Config(**given)
        for name, kind in get_type_hints(Config).items():
            check_type(getattr(saved, name), kind, collection_check_strategy=CollectionCheckStrategy.ALL_ITEMS)
    except TypeError:
        raise ValueError(f"{path}: another version wrote it; commit 2d69621 is the last that reads old runs") from None
    except TypeCheckError as error:
        raise ValueError(f"{path}: {name}: {error}") from None
    return replace(saved, output_dir="", resume=False, like="")


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def policy_map(config: Config, agents: Sequence[str]) -> dict[str, str]:
    """{agent: policy} as --policies says it. ValueError unless every agent is named once.

    By role, `reasoner_1` and `reasoner_2` of an ensemble share the policy `reasoner`.
    """
    if config.policies == ("shared",):
        return dict.fromkeys(agents, "shared")
    if config.policies == ("per_role",):
        return {agent: re.sub(r"_\d+$", "", agent) for agent in agents}
    pairs = [value.partition("=")[::2] for value in config.policies]
    if sorted(agent for agent, _ in pairs) != sorted(agents) or not all(name.isidentifier() for _, name in pairs):
        how = f"give shared, per_role, or agent=policy once for each of {', '.join(agents)}"
        raise ValueError(f"--policies {' '.join(config.policies)}: {how}")
    return {agent: dict(pairs)[agent] for agent in agents}


def by_policy(values: Sequence[str]) -> dict[str, str]:
    """{policy: what plays it at first} as --model says it, {"": what plays all} for one."""
    found = dict(pair for value in values for pair in re.findall(r"(?s)^(?:(\w+)=)?(.*)", value))
    if len(found) < len(values) or not all(found.values()) or ("" in found and len(found) > 1) or not found:
        raise ValueError(f"--model {' '.join(values)}: give one NAME for all policies, or POLICY=NAME once for each")
    return found


def sources(config: Config, policies: Sequence[str]) -> dict[str, str]:
    """{policy: what plays it at first}. ValueError unless these policies, and no others, have a model."""
    found = by_policy(config.model)
    found = dict.fromkeys(policies, found[""]) if "" in found else found
    if {*found} != {*policies}:
        raise ValueError(f"--model {' '.join(config.model)}: the policies are {', '.join(policies)} (--policies)")
    return {name: found[name] for name in policies}
