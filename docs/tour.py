"""The numbers of docs/tour.md: trains two steps on the CPU, then makes the first of them again by hand.

    python docs/tour.py            make the run and say whether the blocks of tour.md and tree.svg still hold
    python docs/tour.py --write    put them into tour.md and tree.svg

This script has no second implementation of anything: it calls the functions that train.py calls and compares what they
return with what the run wrote to its folder.
"""

from __future__ import annotations

import copy
import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: sums in another order differ in their last digits
sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from tree import draw

import train
from distributed.world import World
from grouping import EPS, GroupKey, Sample, agent_turn_key, assign_advantages, group_samples, trajectory_key
from model.attention import packed
from model.loading import load_model
from model.packing import Pack, by_prompt, micro_batches, pack_samples, with_signal
from model.policy import Policy, make_policy
from options import Config, parse
from prepare import levels_of, make_team
from records.trees import tree_rows
from rollout import Rollout, rollout_chains, rollout_tree
from sampling.requests import request_seed
from sampling.team import Team
from studies.ablations import METHODS
from tasks.plan_path import PlanPath
from update import loss_weights, update

TOUR, PICTURE = Path(__file__).with_name("tour.md"), Path(__file__).with_name("tree.svg")
BLOCK = re.compile(r"^```text tour ([\w-]+)\n(.*?)^```$", re.M | re.S)
OPTIONS = (
    "--steps 2 --envs-per-step 8 --num-candidates 4 --max-turns 3 --warm-start 30 --minibatches 1 --lr-warmup 1 "
    "--eval-envs 20 --trees 8 --lr 1e-4 --seed 0 --device cpu --max-response-tokens 16 "
    "--env-options rows=4 cols=4 blocks=0.25 max_moves=2"
)
ENV = 5  # the environment that the tour follows


@dataclass
class Tour:
    """The first step of the run, made again from its first checkpoint."""

    config: Config
    team: Team
    result: Rollout
    chains: Rollout
    rows: list[dict[str, Any]]  # metrics.jsonl
    trees: list[dict[str, Any]]  # of step 0, trees.jsonl

    @property
    def policy(self) -> Policy:
        return self.team.policies["shared"]

    def stage(self, turn: int, agent: str) -> list[Sample]:
        return group_samples(self.result.samples)[GroupKey(ENV, turn, agent)]

    def text(self, sample: Sample) -> str:
        return self.team.decode(sample.key.agent, sample.response_ids)

    def logprobs(self, group: list[Sample], policy: Policy) -> list[float]:
        """Log-probability of each whole response to one prompt under the weights as they are now."""
        values = self.token_logprobs(pack_samples([group]), policy)
        return [float(part.sum()) for part in values.split([len(sample.response_ids) for sample in group])]

    def token_logprobs(self, pack: Pack, policy: Policy) -> torch.Tensor:
        """(N,), as `update` computes them."""
        with torch.no_grad(), packed(policy.model):
            return policy.logprobs(pack, self.config.temperature)[0]


def replay(run: Path, options: str = OPTIONS) -> Tour:
    """Train into `run`, then sample step 0 again; raises AssertionError when it is not what the run recorded."""
    argv = [*options.split(), "--output-dir", str(run)]
    train.main(argv)
    config = parse(argv)
    start = run / "checkpoints" / "step-000000"
    task = levels_of(config)
    team = make_team(config, task.training_env.agents, World(), lambda name: load_model(str(start / name)))
    ids = range(config.envs_per_step)

    def sample(method: Any) -> Rollout:
        return method(
            [task.training(0, 0, i, 0) for i in ids],
            team.sampler(config.temperature),
            encode=team.encode,
            decode=team.decode,
            num_candidates=config.num_candidates,
            max_turns=config.max_turns,
            seed=(config.seed, 0),
        )

    result = sample(rollout_tree)
    assign_advantages(group_samples(result.samples))
    written = [json.loads(line) for line in (run / "trees.jsonl").read_text().splitlines()]
    again = json.loads(json.dumps(tree_rows(result, 0, team.decode, config.trees, lambda i: task.training(0, 0, i, 0))))
    assert again == [tree for tree in written if tree["step"] == 0], "step 0 made again differs from the record"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return Tour(config, team, result, sample(rollout_chains), rows, again)


# ------------------------------------------------------------------------------------------------------------- blocks


def sampling_blocks(tour: Tour) -> dict[str, str]:
    """From the metrics of the step to the committed action."""
    row, group = tour.rows[0], tour.stage(0, "tool_user")
    names = (
        "solved",
        "samples",
        "groups/trained",
        "groups/constant",
        "groups/invalid",
        "groups/per_turn",
        "shared/loss",
    )
    first, second = (tour.result.episodes[ENV].actions[i] for i in (0, 1))
    rewards = [sample.reward for sample in group]
    seed = request_seed((tour.config.seed, 0), ENV, 0, 0, tour.config.num_candidates)
    return {
        "row": _lines(f"{name:16} {_short(row[name])}" for name in names),
        "observe": f"[system, which the tiny model does not see]\n{first.messages[0]['content']}\n"
        f"[user]\n{first.messages[1]['content']}\n[{len(group[0].prompt_ids)} tokens]\n",
        "candidates": _lines(
            f"c={c}  seed ...{seed % 1000:03} + {c}  {len(s.response_ids):2} tokens  log-prob {sum(s.logprobs):6.2f}  "
            f"{'cut off' if s.truncated else 'stopped'}  {tour.text(s)}"
            for c, s in enumerate(group)
        ),
        "score": _lines(
            f"c={c}  team {s.team:.3f}  local {s.local:.3f}  reward {s.reward:.3f}   {tour.text(s)}"
            for c, s in enumerate(group)
        ),
        "group": _lines(
            [
                str(agent_turn_key(group[0])),
                f"mean {fmean(rewards):.3f}  standard deviation {stdev(rewards):.3f}",
                *(f"c={c}  ({s.reward:.3f} - mean) / (std + {EPS}) = {s.advantage:+.3f}" for c, s in enumerate(group)),
            ]
        ),
        "commit": f"committed: {first.text}\n[what the planner sees next]\n{second.messages[1]['content']}\n",
        "spine": _lines(_stage_line(tour, turn, agent) for turn, agent in _stages(tour)),
    }


def question_blocks(tour: Tour) -> dict[str, str]:
    """What is thrown away; why parallel sampling leaves groups of one; ties."""
    samples, tied = tour.result.samples, tour.stage(1, "tool_user")
    trained = [sample for sample in samples if sample.advantage]
    committed = [sample for sample in samples if sample.committed]
    twins = []
    for sample in (s for s in tied if s.reward == max(t.reward for t in tied)):
        env = levels_of(tour.config).training(0, 0, ENV, 0)
        for action in tour.result.episodes[ENV].actions[:2]:
            env.step(action.agent, action.text)
        env.step("tool_user", tour.text(sample))
        seen = env.observe("planner")[1]["content"].splitlines()[1]
        twins.append(f"reward {sample.reward:.3f}{' *' if sample.committed else '  '} the planner reads: {seen}")
    return {
        "thrown-away": _lines(
            [
                f"sampled    {len(samples)} responses",
                f"committed  {len(committed)}: their states go on, the others' states are thrown away",
                f"trained    {len(trained)}: the others' group had equal rewards",
                f"trained and not committed  {sum(not s.committed for s in trained)}",
            ]
        ),
        "chains": _chains(tour),
        "tie": _lines(twins),
        "clipped": _clipped(),
    }


def update_blocks(tour: Tour) -> dict[str, str]:
    """Packing, loss, one optimizer step, the hand-over to the engine. Changes the weights."""
    samples, group = tour.result.samples, tour.stage(0, "tool_user")
    groups = with_signal(by_prompt(samples))
    packs = [pack_samples(part) for part in micro_batches(groups, tour.policy.pack_tokens)]
    loss = _loss(tour, group)

    before = tour.logprobs(group, tour.policy)
    twin = make_policy("twin", copy.deepcopy(tour.policy.model), tour.policy.tokenizer, tour.config.lr)
    update(twin, group, tour.config)
    tour.policy.set_lr(train.learning_rate(tour.config, 0))
    metrics = update(tour.policy, samples, tour.config, seed=(tour.config.seed, 0))
    assert abs(metrics["loss"] - tour.rows[0]["shared/loss"]) < 1e-6, "the update made again differs from the record"
    moved = zip(group, before, tour.logprobs(group, twin), tour.logprobs(group, tour.policy), strict=True)
    stale = [(tour.token_logprobs(pack, tour.policy) - pack.engine).abs() for pack in packs]
    return {
        "pack": _pack(tour, group, groups, packs),
        "loss": loss,
        "moved": _lines(
            f"c={c}  advantage {s.advantage:+.3f}  log-prob {b:6.2f}, change with its group alone {alone - b:+.3f}, "
            f"with the whole step {whole - b:+.3f}"
            for c, (s, b, alone, whole) in enumerate(moved)
        ),
        "sync": _lines(
            [
                *(f"step {row['step']}: mean gap {row['shared/logprob_gap']:.4f} nats a token" for row in tour.rows),
                f"had the engine kept its old weights: {float(torch.cat(stale).mean()):.4f}",
            ]
        ),
    }


def _pack(tour: Tour, group: list[Sample], groups: list[list[Sample]], packs: list[Pack]) -> str:
    alone, kept = pack_samples([group]), [sample for members in groups for sample in members]
    return _lines(
        [
            f"segments    {alone.layout.length.tolist()}: the prompt, then responses without their last token",
            f"see before  {alone.layout.prefix_length.tolist()}",
            f"this group  {len(alone)} tokens, {_unshared(group)} if every response had its own prompt",
            f"whole step  {sum(map(len, packs))} tokens in {len(packs)} pack, {_unshared(kept)} without sharing",
        ]
    )


def _unshared(samples: list[Sample]) -> int:
    return sum(len(sample.prompt_ids) + len(sample.response_ids) - 1 for sample in samples)


def _loss(tour: Tour, group: list[Sample]) -> str:
    """The loss of step 0 by hand: the ratio is 1, so each sample adds -weight * tokens * advantage."""
    samples = tour.result.samples
    weights = loss_weights(samples, tour.config.loss)
    terms = {id(s): -w * len(s.response_ids) * s.advantage for s, w in zip(samples, weights, strict=True)}
    tokens = sum(len(s.response_ids) for s in samples)
    return _lines(
        [
            f"weight of a token      1 / {tokens}",
            *(
                f"c={c}  -{len(s.response_ids)} tokens * {s.advantage:+.3f} / {tokens} = {terms[id(s)]:+.5f}"
                for c, s in enumerate(group)
            ),
            f"sum over all samples   {sum(terms.values()):+.5f}",
            f"shared/loss of step 0  {tour.rows[0]['shared/loss']:+.5f}",
        ]
    )


def _stages(tour: Tour) -> list[tuple[int, str]]:
    return list(dict.fromkeys((s.key.turn, s.key.agent) for s in tour.result.episodes[ENV].samples))


def _stage_line(tour: Tour, turn: int, agent: str) -> str:
    group = tour.stage(turn, agent)
    texts = " | ".join(f"{tour.text(s)[5:]} {s.reward:.3f}{' *' if s.committed else ''}" for s in group)
    return f"turn {turn} {agent:9}  {texts}"


def _chains(tour: Tour) -> str:
    """K chains of the environment: how many of them share a prompt at each stage."""
    samples = [sample for sample in tour.chains.samples if sample.key.env == ENV]
    lines = []
    for key, members in _by_key(samples).items():
        prompts = [tuple(sample.prompt_ids) for sample in members]
        sizes = sorted((prompts.count(p) for p in set(prompts)), reverse=True)
        lines.append(f"turn {key.turn} {key.agent:9}  chains {len(members)}  that share a prompt {sizes}")
    try:
        group_samples(samples, agent_turn_key)
        raise AssertionError("different prompts went into one group")
    except ValueError as error:
        lines.append(f"group_samples(samples, agent_turn_key): {error}")
    (group,) = group_samples(samples, trajectory_key).values()
    returns = {sample.trajectory: sample.reward for sample in group}
    lines.append(f"group_samples(samples, trajectory_key): one group, returns {_short(list(returns.values()))}")
    counts = assign_advantages(group_samples(tour.chains.samples, METHODS["parallel", "prompt", "mixed"][1]))
    lines.append(f"all environments, --grouping prompt: {counts['groups']} groups, {counts['singleton']} of one chain")
    return _lines(lines)


def _by_key(samples: list[Sample]) -> dict[GroupKey, list[Sample]]:
    stages: dict[GroupKey, list[Sample]] = {}
    for sample in samples:
        stages.setdefault(sample.key, []).append(sample)
    return stages


def _clipped() -> str:
    """Two plans of equal reward that leave the team at different distances from the goal."""
    lines = []
    for plan in ("[L]", "[R, L]"):
        env = PlanPath.from_text("..S.G", workflow="single")
        reward = env.step("planner", f"#### {plan}")
        lines.append(
            f"{plan:7} team {reward.team:.2f}  local {reward.local:.2f}  steps to the goal {env.distance[env.position]}"
        )
    return _lines(lines)


def _lines(lines: Any) -> str:
    return "".join(f"{line}".rstrip() + "\n" for line in lines)


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_short(item) for item in value)}]"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


# --------------------------------------------------------------------------------------------------------------- files


def blocks() -> tuple[dict[str, str], str]:
    """Name of every block of the tour -> its text, and the picture, from a run made now (about ten seconds)."""
    with tempfile.TemporaryDirectory() as folder:
        tour = replay(Path(folder) / "run")
    picture = draw(next(row for row in tour.trees if row["env"] == ENV))
    return {**sampling_blocks(tour), **question_blocks(tour), **update_blocks(tour)}, picture


def main(argv: list[str]) -> None:
    (found, picture), page = blocks(), TOUR.read_text(encoding="utf-8")
    written = dict(BLOCK.findall(page))
    if missing := written.keys() ^ found.keys():
        sys.exit(f"tour.md and tour.py have different blocks: {', '.join(sorted(missing))}")
    if argv == ["--write"]:
        TOUR.write_text(BLOCK.sub(lambda match: f"```text tour {match[1]}\n{found[match[1]]}```", page), "utf-8")
        PICTURE.write_text(picture, "utf-8")
        return
    stale = [name for name in found if found[name] != written[name]]
    stale += [PICTURE.name] if picture != PICTURE.read_text(encoding="utf-8") else []
    if stale:
        sys.exit(f"no longer true: {', '.join(stale)}; run python docs/tour.py --write and read tour.md again")
    print(f"The page holds: all {len(found)} blocks of {TOUR.name} and {PICTURE.name} are what this run shows.")


if __name__ == "__main__":
    main(sys.argv[1:])
