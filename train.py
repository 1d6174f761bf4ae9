"""AT-GRPO: on-policy reinforcement learning for a team of language-model agents (Stronger-MAS, arXiv 2510.11062).

What differs from GRPO on a single prompt:
1. An environment is played by several agents over several turns; every action is one whole response.
2. Tree sampling: at each agent and turn, K candidates answer one prompt, each is scored on its own copy of the state.
3. A group is (environment instance, turn, agent); advantages compare those K candidates and nobody else.
4. The best candidate is committed: the next agent sees its effect. All K are trained on, and cost K*N*T, never K^T.
5. The reward is alpha * team + local, and every policy is trained on the samples of its own agents.

    python train.py                                                      AT-GRPO, two agents, minutes on a laptop
    python train.py --sampling chains --grouping trajectory              the GRPO baseline of the same team
    python train.py --workflow single --sampling chains --grouping trajectory       a single agent with GRPO
"""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import ArgumentDefaultsHelpFormatter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from tqdm import tqdm
from transformers import HfArgumentParser

import sandbox
import tiny
from checkpoint import append_row, cut_log, latest_checkpoint, load_optimizers, save_checkpoint, write_text
from data import check_disjoint
from engines import Team, TransformersEngine
from envs import TASKS, Board, Env, make_env
from grouping import agent_turn_key, assign_advantages, group_samples, trajectory_key
from metrics import alarms, rollout_metrics, step_line, transcript
from policy import Policy, load_policy, make_optimizer
from rollout import Evaluation, evaluate, rollout_chains, rollout_tree
from update import UpdateConfig, update

HELD_OUT_SEEDS = 2**41  # training seeds lie below 2**40


def opt(default: Any, text: str, metavar: str = "N") -> Any:
    """An option with its line in --help."""
    metadata = {"help": text} if isinstance(default, str) and metavar == "N" else {"help": text, "metavar": metavar}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


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
    engine: Literal["transformers"] = opt("transformers", "what samples")
    sampling: Literal["tree", "chains"] = opt("tree", "tree is AT-GRPO, chains is GRPO")
    grouping: Literal["agent_turn", "trajectory"] = opt("agent_turn", "agent_turn for a tree, trajectory for chains")
    num_candidates: int = opt(8, "K, candidates of a prompt (chains: trajectories of an environment)")
    max_turns: int = opt(6, "T, turns of an environment")
    alpha: float = opt(1.0, "weight of the team reward beside the local one", "X")
    normalize: Literal["std", "mean_only"] = opt("std", "advantage: (r - mean) / std, or r - mean")
    envs_per_step: int = opt(64, "environment instances a step")
    steps: int = opt(200, "training steps")
    lr: float = opt(4e-4, "peak learning rate (about 1e-6 for a pretrained model)", "X")
    lr_final: float = opt(0.1, "share of the peak left at the last step (linear decay)", "X")
    lr_warmup: int = opt(10, "steps of linear warm-up")
    warm_start: int = opt(60, "tiny: steps of imitating noisy moves (boards only)")
    max_response_tokens: int = opt(16, "limit of a response")
    eval_envs: int = opt(200, "held-out environments, played greedily before and after training")
    report_every: int = opt(25, "steps between held-out evaluations and printed examples, 0 for none")
    save_every: int = opt(50, "steps between checkpoints")
    keep: int = opt(2, "checkpoints that stay")
    output_dir: str = opt("", "run folder (default: runs/TASK-DATE-TIME)", "DIR")
    resume: bool = opt(False, "go on with the run in --output-dir", "")
    device: str = opt("", "cpu or cuda (default: cuda if there is one)", "NAME")
    sandbox: Literal["auto", "require", "rlimit"] = opt(
        "auto", "for programs: require refuses to run without bubblewrap"
    )
    seed: int = opt(0, "seed of weights, levels and sampling")


# --------------------------------------------------------------------------------------------------------------- loop


def train(config: Config, objective: UpdateConfig) -> None:
    """The whole of AT-GRPO. Raises ValueError on options that do not fit together."""
    run = Path(config.output_dir)
    team, start, before, pool = set_up(config, objective, run)
    sample = {"tree": rollout_tree, "chains": rollout_chains}[config.sampling]
    key = {"agent_turn": agent_turn_key, "trajectory": trajectory_key}[config.grouping]
    for step in tqdm(range(start, config.steps), initial=start, total=config.steps, desc="train", unit="step"):
        clock = time.perf_counter()
        for policy in team.policies.values():
            policy.set_lr(learning_rate(config, step))

        first = config.seed * 2**24 + step * config.envs_per_step
        envs = [training_env(config).reset(seed=first + i) for i in range(config.envs_per_step)]
        result = sample(
            envs,
            team.sampler(objective.temperature),
            encode=team.encode,
            decode=team.decode,
            num_candidates=config.num_candidates,
            max_turns=config.max_turns,
            alpha=config.alpha,
            seed=(config.seed, step),
            pool=pool,
        )
        sampled = time.perf_counter()
        groups = group_samples(result.samples, key)
        counts = assign_advantages(groups, config.normalize)
        row = {"step": step, "lr": learning_rate(config, step), **rollout_metrics(result, groups, counts)}
        for name, policy in team.policies.items():
            batch = [sample for sample in result.samples if team.policy_of[sample.key.agent] == name]
            trained = update(policy, batch, objective, seed=(config.seed, step))
            row |= {f"{name}/{metric}": value for metric, value in trained.items()}

        log_step(config, run, team, row, result, sampled - clock, time.perf_counter() - sampled)
        if due(config.report_every, step + 1) and step + 1 < config.steps:
            log_evaluation(run, step + 1, held_out(config, team, pool))
        if due(config.save_every, step + 1) or step + 1 == config.steps:
            save_checkpoint(run, step + 1, team.policies, {"before": before}, config.keep)

    after = held_out(config, team, pool)
    log_evaluation(run, config.steps, after)
    print(f"held-out success {before:.2f} -> {after.success:.2f} (n={after.n}, se {after.se:.2f})")


def due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0


def learning_rate(config: Config, step: int) -> float:
    """Linear warm-up, then linear decay to `lr_final` of the peak."""
    warm = min(1.0, (step + 1) / max(config.lr_warmup, 1))
    return config.lr * warm * (1 - (1 - config.lr_final) * step / max(config.steps - 1, 1))


# ------------------------------------------------------------------------------------------------------------- set-up


def set_up(config: Config, objective: UpdateConfig, run: Path) -> tuple[Team, int, float, Executor | None]:
    """The team, the first step, held-out success before training, and threads that score (None for board games)."""
    probe = training_env(config)
    if hasattr(probe, "problems"):
        sets: dict[str, Any] = {"--data": probe, "--eval-data": held_out_env(config)}
        check_disjoint({option: [p.question for p in env.problems] for option, env in sets.items()})
    pool = scoring_pool(config, probe)
    if config.resume:
        checkpoint = latest_checkpoint(run)
        team = make_team(
            config, probe.agents, lambda name: load_policy(name, str(checkpoint / name), config.lr, config.device)
        )
        state = load_optimizers(checkpoint, team.policies)
        done = state["step"]
        for log in ("metrics.jsonl", "timing.jsonl"):
            cut_log(run / log, done)
        cut_log(run / "evaluations.jsonl", min(done + 1, config.steps))  # only the last one is made again
        print(f"resuming {run} after step {done}")
        return team, done, state["before"], pool
    team = make_team(config, probe.agents, first_policy(config))
    print(f"{config.task} ({config.workflow}): {describe(team)}; run folder {run}")
    print("the first prompt, as the model sees it:")
    agent, env = probe.agents[0], training_env(config).reset(seed=config.seed * 2**24)
    policy = team.policies[team.policy_of[agent]]
    print(policy.tokenizer.decode(team.encode(agent, env.observe(agent))))
    before = held_out(config, team, pool)
    save_checkpoint(run, 0, team.policies, {"before": before.success}, config.keep)
    log_evaluation(run, 0, before)
    # last: before this file exists there is no run to resume, and the folder can simply be used again
    write_text(run / "config.json", json.dumps(all_options(config, objective), indent=1))
    return team, 0, before.success, pool


def make_team(config: Config, agents: Sequence[str], load: Callable[[str], Policy]) -> Team:
    """One policy for every name in the map; each has its own weights and optimizer."""
    policy_of = parse_policies(config.policies, agents)
    policies = {name: load(name) for name in dict.fromkeys(policy_of.values())}
    engines = {name: TransformersEngine(policy, config.max_response_tokens) for name, policy in policies.items()}
    return Team(policies, policy_of, engines)


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


def first_policy(config: Config) -> Callable[[str], Policy]:
    """How a policy starts: a model from the hub or a folder, or the tiny one after its warm start (one for all)."""
    if config.model != "tiny":
        return lambda name: load_policy(name, config.model, config.lr, config.device)
    tokenizer = tiny.build_tokenizer()
    model = tiny.build_model(tokenizer, config.seed, config.device)
    policy = Policy("tiny", model, tokenizer, make_optimizer(model, config.lr))
    if isinstance(training_env(config), Board):
        tiny.warm_start(
            policy,
            lambda: cast(Board, training_env(config)),
            steps=config.warm_start,
            turns=config.max_turns,
            seed=config.seed,
        )
    else:  # math and code: the tiny model shows that everything runs, no more
        print(f"no warm start: {config.task} has no noisy answers to imitate; tiny starts from random weights")

    def copy(name: str) -> Policy:
        twin = tiny.build_model(tokenizer, config.seed, config.device)
        twin.load_state_dict(model.state_dict())
        return Policy(name, twin, tokenizer, make_optimizer(twin, config.lr))

    return copy


def training_env(config: Config, data: str = "") -> Env:
    """An environment as the options describe it; `data` replaces the training problems."""
    options: dict[str, Any] = dict(tiny.BOARDS.get(config.task, {})) if config.model == "tiny" else {}
    for pair in config.env_options:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--env-options {pair}: write KEY=VALUE")
        options[name] = _literal(value)
    if config.task in ("math", "code"):
        options["data"] = data or config.data
        if not options["data"]:
            raise ValueError(f"--task {config.task} needs --data and --eval-data, each a file or a hub id")
    if config.task == "math":
        options["max_turns"] = config.max_turns
    return make_env(config.task, config.workflow, **options)


def _literal(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def held_out_env(config: Config) -> Env:
    if config.task in ("math", "code") and not config.eval_data:
        raise ValueError(f"--task {config.task} needs --eval-data, a file or a hub id")
    return training_env(config, config.eval_data)


def scoring_pool(config: Config, env: Env) -> Executor | None:
    """Threads where scoring waits for other processes (programs, symbolic mathematics); None for plain board games."""
    sandbox.set_mode(config.sandbox)
    slow = hasattr(env, "problems") or getattr(env, "tool", "direct") == "python"
    return ThreadPoolExecutor(os.cpu_count()) if slow else None


def held_out(
    config: Config, team: Team, pool: Executor | None, samples: int = 1, temperature: float = 0.0
) -> Evaluation:
    """Success on environments that training never sees, greedy by default."""
    probe = held_out_env(config)
    count = min(config.eval_envs, len(getattr(probe, "problems", range(config.eval_envs))))
    envs = [held_out_env(config).reset(seed=HELD_OUT_SEEDS + i) for i in range(count)]
    return evaluate(
        envs,
        team.sampler(temperature),
        encode=team.encode,
        decode=team.decode,
        max_turns=config.max_turns,
        samples=samples,
        seed=(config.seed, HELD_OUT_SEEDS),
        pool=pool,
    )


# ------------------------------------------------------------------------------------------------------------ logging


def describe(team: Team) -> str:
    """Policies, their sizes and the agents they speak for."""
    parts = []
    for name, policy in team.policies.items():
        agents = [agent for agent, owner in team.policy_of.items() if owner == name]
        size = sum(p.numel() for p in policy.model.parameters())
        parts.append(f"policy {name} ({size / 1e6:.2f}M parameters) plays {', '.join(agents)}")
    return "; ".join(parts)


def log_step(config: Config, run: Path, team: Team, row: dict, result: Any, sampling: float, updating: float) -> None:
    append_row(run / "metrics.jsonl", row)
    append_row(run / "timing.jsonl", {"step": row["step"], "sampling_s": sampling, "update_s": updating})
    names = list(team.policies)
    tqdm.write(step_line(row, config.steps, tuple(team.policy_of), names, sampling + updating))
    for alarm in alarms(row, names):
        tqdm.write(f"  note: {alarm}")
    if due(config.report_every, row["step"] + 1) or row["step"] == 0:
        tqdm.write(transcript(result, row["step"]))


def log_evaluation(run: Path, step: int, result: Evaluation) -> None:
    row = {"step": step, "success": result.success, "se": result.se, "n": result.n, "turns": result.turns}
    append_row(run / "evaluations.jsonl", {**row, "formats": result.formats})
    tqdm.write(f"held-out success after {step} steps: {result.success:.3f} (n={result.n}, se {result.se:.3f})")


# ------------------------------------------------------------------------------------------------------------ options


def parse(argv: Sequence[str] | None = None) -> tuple[Config, UpdateConfig]:
    """Options from the command line. Raises ValueError on values that do not fit together."""
    parser = HfArgumentParser(
        cast(Any, [Config, UpdateConfig]),
        description=__doc__.split("\n\n")[0],
        allow_abbrev=False,
        formatter_class=lambda prog: ArgumentDefaultsHelpFormatter(prog, max_help_position=46, width=132),
    )
    config, objective = parser.parse_args_into_dataclasses(argv)
    if config.task not in TASKS:
        raise ValueError(f"--task {config.task}: choose one of {', '.join(TASKS)}")
    if (config.sampling, config.grouping) not in (("tree", "agent_turn"), ("chains", "trajectory")):
        raise ValueError(
            f"--sampling {config.sampling} --grouping {config.grouping}: a tree has agent- and turn-wise groups and no "
            "trajectories to compare; chains see different prompts after the first action. "
            "Use tree with agent_turn or chains with trajectory"
        )
    check_ranges({**asdict(config), **asdict(objective), "max_response_tokens": config.max_response_tokens})
    if config.resume and not config.output_dir:
        raise ValueError("--resume needs --output-dir, the folder of the run to go on with")
    if not config.output_dir:
        config.output_dir = f"runs/{config.task}-{time.strftime('%Y%m%d-%H%M%S')}"
    config.device = config.device or default_device()
    objective.max_response_tokens = config.max_response_tokens
    return config, objective


def check_ranges(options: dict[str, Any]) -> None:
    positive = ("max_turns", "envs_per_step", "steps", "eval_envs", "max_response_tokens", "keep")
    for name in (*positive, "minibatches", "epochs", "micro_batch_tokens"):
        if options[name] < 1:
            raise ValueError(f"--{name.replace('_', '-')} {options[name]}: at least 1")
    if options["num_candidates"] < 2:
        raise ValueError(f"--num-candidates {options['num_candidates']}: at least 2, to have something to compare")
    for name in ("lr", "temperature", "clip"):
        if not options[name] > 0:
            raise ValueError(f"--{name} {options[name]}: more than 0")
    if not 0 <= options["seed"] < 2**16:
        raise ValueError(f"--seed {options['seed']}: 0 to {2**16 - 1}, so that no training level is a held-out one")


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def all_options(config: Config, objective: UpdateConfig) -> dict[str, Any]:
    return {**asdict(config), "update": asdict(objective)}


def check_run_folder(config: Config, objective: UpdateConfig) -> None:
    """A new run needs a folder without one; a resumed run the options it was started with (except --steps)."""
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
    same = replace(config, steps=old["steps"], resume=old["resume"], output_dir=old["output_dir"])
    now, then = ({**options, **options.pop("update")} for options in (all_options(same, objective), old))
    for name, value in now.items():
        if then.get(name) != value:
            raise ValueError(f"--resume: the run was started with {name}={then.get(name)!r}, not {value!r}")


def main(argv: Sequence[str] | None = None) -> None:
    try:
        config, objective = parse(argv)
        check_run_folder(config, objective)
        train(config, objective)
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"train.py: error: {error}")


if __name__ == "__main__":
    main()
