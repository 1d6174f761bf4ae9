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
    torchrun --nproc-per-node 4 train.py --model NAME --engine vllm --policies per_role     every policy on its own GPUs
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch.distributed.elastic.multiprocessing.errors import record
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distributed import exchange
from distributed.world import World, place, start
from envs import Env, make_env
from grouping import (
    agent_key,
    agent_turn_key,
    assign_advantages,
    group_samples,
    prompt_key,
    trajectory_key,
    turn_key,
)
from model import tiny
from model.policy import Policy, load_model, make_policy
from options import Config, all_options, check_run_folder, parse, parse_policies
from records.checkpoint import append_row, cut_log, latest_checkpoint, load_optimizers, save_checkpoint, write_text
from records.metrics import Clock, alarms, rollout_metrics, step_line, transcript
from records.trees import tree_rows
from rollout import Evaluation, Rollout, evaluate, rollout_chains, rollout_tree
from sampling.engines import TransformersEngine, VllmEngine
from sampling.team import Team
from tasks import sandbox
from tasks.boards import Board
from tasks.data import check_disjoint
from update import UpdateConfig, update

HELD_OUT_SEEDS = 2**41  # training seeds lie below 2**40
SAMPLING: dict[str, Callable[..., Rollout]] = {
    "tree": rollout_tree,
    "chains": rollout_chains,
    "parallel": partial(rollout_chains, returns=False),
}
KEYS = {
    "agent_turn": agent_turn_key,
    "trajectory": trajectory_key,
    "agent": agent_key,
    "turn": turn_key,
    "prompt": prompt_key,
}


# --------------------------------------------------------------------------------------------------------------- loop


def train(config: Config, objective: UpdateConfig, team: Team, done: int, before: float, pool: Executor | None) -> None:
    """The whole of AT-GRPO on any number of ranks, with what `set_up` returns; `done` steps are finished already."""
    run, world = Path(config.output_dir), team.world
    sample, key = SAMPLING[config.sampling], KEYS[config.grouping]
    if config.reward == "outcome":
        sample = partial(sample, outcome_only=True)
    bar = tqdm(range(done, config.steps), "train", initial=done, total=config.steps, disable=not world.main)
    for step in bar:
        clock = Clock(team.seconds)
        for policy in team.policies.values():
            policy.set_lr(learning_rate(config, step))

        ids = world.mine(range(config.envs_per_step))
        first = config.seed * 2**24 + step * config.envs_per_step
        envs = [training_env(config).reset(seed=first + i) for i in ids]
        with clock("sample"):
            result = sample(
                envs,
                team.sampler(objective.temperature),
                encode=team.encode,
                decode=team.decode,
                num_candidates=config.num_candidates,
                max_turns=config.max_turns,
                alpha=config.alpha,
                seed=(config.seed, step),
                env_ids=ids,
                pool=pool,
            )
            team.rest()
        counts = assign_advantages(group_samples(result.samples, key), config.normalize)
        with clock("exchange"):
            result, counts = exchange.share(world, result), exchange.add_up(world, counts)
        groups = group_samples(result.samples, key)
        row = {"step": step, "lr": learning_rate(config, step), **rollout_metrics(result, groups, counts)}
        trained: dict[str, float] = {}
        with clock("update"):
            for name, policy in team.policies.items():
                if name in config.frozen:
                    continue
                batch = [sample for sample in result.samples if team.policy_of[sample.key.agent] == name]
                metrics = update(policy, batch, objective, seed=(config.seed, step))
                trained |= {f"{name}/{metric}": value for metric, value in metrics.items()}
            row |= world.merge(trained)
        with clock("sync"):
            team.sync()

        log_step(config, run, team, row, result, clock)
        if due(config.report_every, step + 1) and step + 1 < config.steps:
            log_evaluation(run, world, step + 1, held_out(config, team, pool))
        if due(config.save_every, step + 1) or step + 1 == config.steps:
            save_checkpoint(run, step + 1, team.policies, {"before": before}, config.keep, world)

    after = held_out(config, team, pool)
    log_evaluation(run, world, config.steps, after)
    say(world, f"held-out success {before:.2f} -> {after.success:.2f} (n={after.n}, se {after.se:.2f})")


def due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0


def learning_rate(config: Config, step: int) -> float:
    """Linear warm-up, then linear decay to `lr_final` of the peak."""
    warm = min(1.0, (step + 1) / max(config.lr_warmup, 1))
    return config.lr * warm * (1 - (1 - config.lr_final) * step / max(config.steps - 1, 1))


# ------------------------------------------------------------------------------------------------------------- set-up


def set_up(config: Config, objective: UpdateConfig, world: World) -> tuple[Team, int, float, Executor | None]:
    """The team, the first step, held-out success before training, and threads that score (None for board games).

    Raises ValueError on options and data that do not fit together.
    """
    run, probe = Path(config.output_dir), training_env(config)
    if hasattr(probe, "problems"):
        sets: dict[str, Any] = {"--data": probe, "--eval-data": held_out_env(config)}
        check_disjoint({option: [p.question for p in env.problems] for option, env in sets.items()})
    pool = scoring_pool(config, probe)
    if config.resume:
        checkpoint = latest_checkpoint(run)
        team = make_team(config, probe.agents, world, lambda name: load_model(str(checkpoint / name)))
        state = load_optimizers(checkpoint, team.policies)
        done = state["step"]
        if world.main:
            for log in ("metrics.jsonl", "timing.jsonl", "trees.jsonl"):
                cut_log(run / log, done)
            cut_log(run / "evaluations.jsonl", min(done + 1, config.steps))  # only the last one is made again
        say(world, f"resuming {run} after step {done}")
        return team, done, state["before"], pool
    team = make_team(config, probe.agents, world, first_model(config, world))
    say(world, f"{config.task} ({config.workflow}): {describe(team)}; run folder {run}")
    agent, env = probe.agents[0], training_env(config).reset(seed=config.seed * 2**24)
    prompt = team.tokenizers[team.policy_of[agent]].decode(team.encode(agent, env.observe(agent)))
    say(world, f"the first prompt, as the model sees it:\n{prompt}")
    before = held_out(config, team, pool)
    save_checkpoint(run, 0, team.policies, {"before": before.success}, config.keep, world)
    if world.main:
        cut_log(run / "evaluations.jsonl", 0)  # of a start that was stopped before there was a run
    log_evaluation(run, world, 0, before)
    if world.main:  # last: before this file exists there is no run to resume, and the folder can simply be used again
        write_text(run / "config.json", json.dumps(all_options(config, objective), indent=1))
    return team, 0, before.success, pool


Load = Callable[[str], tuple[PreTrainedModel, PreTrainedTokenizerBase]]  # name of a policy -> its model on the CPU


def make_team(config: Config, agents: Sequence[str], world: World, load: Load) -> Team:
    """The policies of this rank, each with its own weights and optimizer, and the engines that sample from them.

    A rank loads no other models, but has the tokenizers of all policies: it plays whole environments.
    """
    policy_of = parse_policies(config.policies, agents)
    names = list(dict.fromkeys(policy_of.values()))
    if not set(config.frozen) < set(names):
        raise ValueError(f"--frozen {' '.join(config.frozen)}: name some of the policies {', '.join(names)}, not all")
    homes = place(names, world.size, config.placement)
    policies: dict[str, Policy] = {}
    for name, mesh in world.meshes(homes).items():
        model, tokenizer = load(name)
        policies[name] = make_policy(
            name, model, tokenizer, config.lr, world.device, mesh, config.gradient_checkpointing, config.fused
        )
    firsts = [name for name in policies if homes[name][0] == world.rank]  # each tokenizer travels once
    tokenizers = world.merge({name: policies[name].tokenizer for name in firsts})
    return Team(policies, policy_of, make_engines(config, policies), tokenizers, world, homes)


def make_engines(config: Config, policies: dict[str, Policy]) -> dict[str, TransformersEngine | VllmEngine]:
    """One engine for all policies of one architecture: loading a policy's weights before its turn is all they need."""
    kinds: dict[str, TransformersEngine | VllmEngine] = {}
    engines = {}
    for name, policy in policies.items():
        kind = f"{policy.model.config.to_json_string()} {sorted(policy.stop_ids)}"
        if kind not in kinds:
            if config.engine == "vllm":
                kinds[kind] = VllmEngine(
                    policy, config.max_response_tokens, memory=config.engine_memory, sleep=config.engine_sleep
                )
            else:
                kinds[kind] = TransformersEngine(policy, config.max_response_tokens)
        engines[name] = kinds[kind]
    return engines


def first_model(config: Config, world: World) -> Load:
    """How a policy starts: the tiny model, or one from the hub or a folder; warm-started once for all policies."""
    if config.model != "tiny" and not config.warm_start:
        return lambda name: load_model(config.model)
    model, tokenizer = tiny.build(config.seed) if config.model == "tiny" else load_model(config.model)
    if isinstance(training_env(config), Board):
        device = "cpu" if config.model == "tiny" else config.device
        if world.main:
            tiny.warm_start(
                make_policy("warm start", model, tokenizer, config.lr, device),
                lambda: cast(Board, training_env(config)),
                steps=config.warm_start,
                turns=config.max_turns,
                seed=config.seed,
                lr=3e-3 if config.model == "tiny" else 2e-5,
            )
            model.to("cpu")  # type: ignore[arg-type]
        world.agree(model.parameters())  # all ranks start from the weights of rank 0
    else:  # math and code: the tiny model shows that everything runs, no more
        say(world, f"no warm start: {config.task} has no noisy answers to imitate; {config.model} starts as it is")
    return lambda name: (copy.deepcopy(model), tokenizer)


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
    try:
        sandbox.set_mode(config.sandbox)
    except RuntimeError as error:
        raise ValueError(f"--sandbox {config.sandbox}: {error}") from None
    slow = hasattr(env, "problems") or getattr(env, "tool", "direct") == "python"
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # of this machine: too many threads, and programs time out
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // ranks)) if slow else None


def held_out(
    config: Config, team: Team, pool: Executor | None, samples: int = 1, temperature: float = 0.0
) -> Evaluation:
    """Success on environments that training never sees, greedy by default."""
    probe = held_out_env(config)
    ids = team.world.mine(range(min(config.eval_envs, len(getattr(probe, "problems", range(config.eval_envs))))))
    return evaluate(
        [held_out_env(config).reset(seed=HELD_OUT_SEEDS + i) for i in ids],
        team.sampler(temperature),
        encode=team.encode,
        decode=team.decode,
        max_turns=config.max_turns,
        samples=samples,
        seed=(config.seed, HELD_OUT_SEEDS),
        env_ids=ids,
        pool=pool,
        share=lambda result: exchange.share(team.world, result),
    )


# ------------------------------------------------------------------------------------------------------------ logging


def say(world: World, text: str) -> None:
    if world.main:
        tqdm.write(text)


def describe(team: Team) -> str:
    """Policies, their sizes, the agents they speak for and the ranks they live on."""
    sizes = {name: sum(p.numel() for p in policy.model.parameters()) for name, policy in team.policies.items()}
    sizes = team.world.merge(sizes)
    parts = []
    for name, ranks in team.homes.items():
        agents = [agent for agent, owner in team.policy_of.items() if owner == name]
        where = f" on ranks {ranks[0]}-{ranks[-1]}" if team.world.size > 1 else ""
        parts.append(f"policy {name} ({sizes[name] / 1e6:.2f}M parameters) plays {', '.join(agents)}{where}")
    return "; ".join(parts)


def log_step(config: Config, run: Path, team: Team, row: dict, result: Rollout, clock: Clock) -> None:
    if not team.world.main:
        return
    step, seconds = row["step"], clock.report()
    append_row(run / "metrics.jsonl", row)
    append_row(run / "timing.jsonl", {"step": step, **seconds})
    for tree in tree_rows(result, step, team.decode, config.trees):
        append_row(run / "trees.jsonl", tree)
    policies = list(team.homes)
    tqdm.write(step_line(row, config.steps, tuple(team.policy_of), policies, seconds["step_s"]))
    for alarm in alarms(row, policies):
        tqdm.write(f"  note: {alarm}")
    if due(config.report_every, step + 1) or step == 0:
        tqdm.write(transcript(result, step))


def log_evaluation(run: Path, world: World, step: int, result: Evaluation) -> None:
    if not world.main:
        return
    row = {"step": step, "success": result.success, "se": result.se, "n": result.n, "turns": result.turns}
    append_row(run / "evaluations.jsonl", {**row, "formats": result.formats})
    tqdm.write(f"held-out success after {step} steps: {result.success:.3f} (n={result.n}, se {result.se:.3f})")


def main(argv: Sequence[str] | None = None) -> None:
    try:
        config, objective = parse(argv)
        world = start(config.device)
        config.output_dir = world.gather(config.output_dir)[0]  # its default holds the time of day
        check_run_folder(config, objective)
        ready = set_up(config, objective, world)
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"train.py: error: {error}")
    train(config, objective, *ready)  # from the first step on, what goes wrong is shown with its traceback
    world.close()


if __name__ == "__main__":
    record(main)()  # under torchrun: the first rank that fails is the one whose error is shown
