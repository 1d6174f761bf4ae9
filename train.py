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

from collections.abc import Sequence

from grouping import assign_advantages, group_samples
from options import Config, parse
from records.console import errors_in_one_line, half_up
from records.stop import Stop, speaks
from studies.ablations import METHODS

CONFIG: Config | None = None
if __name__ == "__main__":  # before torch, which takes seconds: --help and a mistyped option need not wait for it
    with errors_in_one_line("train.py"):
        CONFIG = parse(methods=METHODS)
    if speaks():
        print("loading torch", flush=True)

from torch.distributed.elastic.multiprocessing.errors import record

from distributed.exchange import share_samples
from distributed.world import start
from prepare import Run, prepare
from records.metrics import Clock, groups_per_turn, rollout_metrics
from records.run_folder import open_run
from update import update


def train(run: Run) -> None:
    """The whole of AT-GRPO, on any number of ranks."""
    config, team, levels, log = run.config, run.team, run.levels, run.log
    # By default rollout_tree and agent_turn_key; plain GRPO is rollout_chains and trajectory_key.
    play, group_key = METHODS[config.sampling, config.grouping, config.reward]
    for step in run.steps():
        clock = Clock(team.seconds)
        team.set_lr(learning_rate(config, step))

        # 1. Sample: K candidates answer one prompt at every agent and turn; the best is committed, the next sees it.
        ids = team.world.mine(range(config.envs_per_step))
        with clock("sample"):
            played = play(
                [levels.training(config.seed, step, i, config.envs_per_step) for i in ids],
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

        # 2. Compare inside each group (environment, turn, agent): it lies on one rank until samples travel.
        groups = group_samples(played.samples, group_key)
        counts = assign_advantages(groups, config.normalize) | groups_per_turn(groups)

        # 3. Send: every policy m gets its own batch B_m, the samples of the agents it speaks for.
        with clock("exchange"):
            batches = share_samples(
                team.world, team.training, team.policy_of, played.samples, config.minibatches, (config.seed, step)
            )

        # 4. Update: every policy is trained on its batch.
        learned: dict[str, float] = {}
        with clock("update"):
            for name, policy in team.learners.items():
                metrics = update(policy, batches[name], config, seed=(config.seed, step))
                learned |= {f"{name}/{metric}": value for metric, value in metrics.items()}

        # 5. Hand over: the engines get the new weights before the next step samples.
        with clock("sync"):
            team.sync()

        # 6. Log, and now and then evaluate and save.
        row = {"step": step, "lr": learning_rate(config, step), **rollout_metrics(played, counts, team.world.add_up)}
        show = config.report_every > 0 and (step + 1) % config.report_every == 0
        log.step(row | team.world.merge(learned), clock.seconds(), played, example=show or step == 0)
        if show and step + 1 < config.steps:
            run.evaluate(step + 1)
        if step + 1 == config.steps or (config.save_every and (step + 1) % config.save_every == 0):
            run.save(step + 1)


def learning_rate(config: Config, step: int) -> float:
    """Linear warm-up, then linear decay to `lr_final` of the peak."""
    warm = min(1.0, (step + 1) / max(config.lr_warmup, 1))
    return config.lr * warm * (1 - (1 - config.lr_final) * step / max(config.steps - 1, 1))


def main(argv: Sequence[str] | None = None) -> None:
    with errors_in_one_line("train.py"):
        config = CONFIG or parse(argv, METHODS)
        world = start(config.device)
    with Stop(config) as stop, open_run(config, world) as folder:
        run = prepare(config, world, folder, stop)
        before = run.first_evaluation()
        train(run)
        after = run.evaluate(config.steps)
        run.log.say("next: " + "\n      ".join(f"python {name}.py {folder}" for name in ("report", "evaluate")))
        success, se = half_up(after.success), half_up(after.se)
        run.log.say(f"held-out success {half_up(before)} -> {success} (n={after.n}, se {se})")
        world.close()


if __name__ == "__main__":
    record(main)()  # under torchrun: the first rank that fails is the one whose error is shown
