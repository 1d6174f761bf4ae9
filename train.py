"""AT-GRPO: on-policy reinforcement learning for a team of language-model agents (Stronger-MAS, arXiv 2510.11062).

What differs from GRPO on a single prompt:
1. An environment is played by several agents over several turns; every action is one whole response.
2. Tree sampling: at each agent and turn, K candidates answer one prompt, each is scored on its own copy of the state.
3. A group is (environment instance, turn, agent); advantages compare those K candidates and nobody else.
4. The best candidate is committed: the next agent sees its effect. All K are trained on: K*N*T, not K^(N*T).
5. The reward is alpha * team + local, and every policy is trained on the samples of its own agents.

    python train.py                                                      AT-GRPO, two agents, minutes on a laptop
    python train.py --sampling chains --grouping trajectory              the GRPO baseline of the same team
    python train.py --workflow single --sampling chains --grouping trajectory       a single agent with GRPO
    torchrun --nproc-per-node 4 train.py --model NAME --engine vllm --policies per_role     every policy on its own GPUs
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from grouping import assign_advantages, group_samples
from options import Config, errors_in_one_line, parse
from studies.ablations import METHODS

CONFIG: Config | None = None
if __name__ == "__main__":  # before torch, which takes seconds: --help and a mistyped option need not wait for it
    with errors_in_one_line("train.py"):
        CONFIG = parse(methods=METHODS)
    if os.environ.get("RANK", "0") == "0":
        print("loading torch", flush=True)

from torch.distributed.elastic.multiprocessing.errors import record

from distributed.exchange import share_samples
from prepare import Run, started
from records.console import half_up
from records.metrics import Clock, groups_per_turn, rollout_metrics
from update import update


def train(run: Run) -> None:
    """The whole of AT-GRPO, on any number of ranks."""
    config, team, task, log = run.config, run.team, run.task, run.log
    # By default rollout_tree and agent_turn_key; plain GRPO is rollout_chains and trajectory_key.
    rollout, group_key = METHODS[config.sampling, config.grouping, config.reward]
    for step in run.steps():
        clock = Clock(team.seconds)
        team.set_lr(learning_rate(config, step))

        # Sample, score, commit: K candidates answer one prompt at every agent and turn, and the best one goes on.
        ids = team.world.mine(range(config.envs_per_step))
        envs = [task.training(config.seed, step, i, config.envs_per_step) for i in ids]
        with clock("sample"):
            played = rollout(
                envs,
                team.sampler(config.temperature),
                encode=team.encode,
                decode=team.decode,
                num_candidates=config.num_candidates,
                max_turns=config.max_turns,
                alpha=config.alpha,
                seed=(config.seed, step),
                env_ids=ids,
                pool=run.pool,
            )
            team.rest()  # engines that can sleep leave the GPU to the update

        # Compare inside each group (environment, turn, agent). A group lies on the rank that sampled it, so this comes
        # before the samples travel to the ranks that train on them.
        groups = group_samples(played.samples, group_key)
        counts = assign_advantages(groups, config.normalize) | groups_per_turn(groups)
        with clock("exchange"):  # every policy m gets its own batch B_m, the samples of the agents it speaks for
            batches = share_samples(
                team.world, team.training, team.policy_of, played.samples, config.minibatches, (config.seed, step)
            )

        # Update: every policy is trained on its batch.
        trained: dict[str, float] = {}
        with clock("update"):
            for name, policy in team.learners.items():
                metrics = update(policy, batches[name], config, seed=(config.seed, step))
                trained |= {f"{name}/{metric}": value for metric, value in metrics.items()}
        with clock("sync"):
            team.sync()  # the engines get the new weights before the next step samples

        sums = team.world.add_up
        row = {"step": step, "lr": learning_rate(config, step), **rollout_metrics(played, counts, sums)}
        report = due(config.report_every, step + 1)
        log.step(row | team.world.merge(trained), clock.seconds(), played, example=report or step == 0)
        if report and step + 1 < config.steps:
            run.evaluate(step + 1)
        if due(config.save_every, step + 1) or step + 1 == config.steps:
            run.save(step + 1)


def learning_rate(config: Config, step: int) -> float:
    """Linear warm-up, then linear decay to `lr_final` of the peak."""
    warm = min(1.0, (step + 1) / max(config.lr_warmup, 1))
    return config.lr * warm * (1 - (1 - config.lr_final) * step / max(config.steps - 1, 1))


def due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0


def main(argv: Sequence[str] | None = None) -> None:
    with errors_in_one_line("train.py"):
        config = CONFIG or parse(argv, METHODS)
    with started(config) as run:
        train(run)  # from the first step on, what goes wrong is shown with its traceback
        after = run.evaluate(run.config.steps)
        run.log.say("next: " + "\n      ".join(f"python {name}.py {run.log.run}" for name in ("report", "evaluate")))
        before, success, se = (half_up(value) for value in (run.before, after.success, after.se))
        run.log.say(f"held-out success {before} -> {success} (n={after.n}, se {se})")
        run.team.world.close()


if __name__ == "__main__":
    record(main)()  # under torchrun: the first rank that fails is the one whose error is shown
