"""One training step in its parts, on one GPU or under torchrun: rollout, exchange, update, weight sync, memory.

    python benchmarks/step.py --shape qwen3-1.7b                                           one GPU, random weights
    torchrun --nproc-per-node 4 benchmarks/step.py --shape qwen3-1.7b                      one policy on four GPUs
    torchrun --nproc-per-node 2 benchmarks/step.py --model FOLDER --policies per_role      one policy on each GPU
    torchrun --nproc-per-node 4 benchmarks/step.py --shape qwen3-8b --ckpt                 sharded over four GPUs
    python benchmarks/step.py --shape qwen3-1.7b --policies per_role --adapter lora --ckpt --limit-gb 24 --memory 0.1
                                                                            two roles on one base, in 24 GB at most

Two agents talk for `--turns` turns about a text of `--prompt` words; rewards are random, so that every group has a
gradient and nothing depends on what a model can do. `--envs` is for each GPU: more GPUs, more environments. The first
step warms up; the numbers are medians of the others, tokens are those sampled and those that the update is about
(prompt and response of every sample) a second and GPU. "idle" is the share of sampling in which a rank's engine waited,
"wait_s" what a rank that has sampled everything waits for the others, "exchange_s" what it takes then to bring samples
to the ranks that train them, and "..._mb" what this rank receives of samples and of their outlines (10^6 bytes).
`--limit-gb` is for everything that torch takes in a process, the engine included (`--memory` is its share of the card).
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from functools import cache, partial
from pathlib import Path
from statistics import median

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.exchange import Counting, counts
from benchmarks.shapes import SHAPES, random_model
from distributed.exchange import share_samples
from distributed.world import World, start
from envs import Env, Reward
from grouping import assign_advantages, group_samples
from model import tiny
from options import Config
from prepare import make_team
from records.metrics import Clock
from rollout import rollout_tree
from sampling.team import Team
from update import UpdateConfig, update

MINIBATCHES = 2


class Talk(Env):
    """An environment that takes any answer and rewards it by chance, the same chance for the same text."""

    agents = ("first", "second")

    def __init__(self, seed: int, words: int):
        self.text = " ".join(f"w{(seed * 7919 + i * 104729) % 997}" for i in range(words))
        self.last = ""

    def reset(self, seed: int) -> Talk:
        return self

    def observe(self, agent: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{self.text}\n{agent}: go on after: {self.last}"}]

    def step(self, agent: str, text: str) -> Reward:
        self.last = text[-40:]
        return Reward(0.0, zlib.crc32(text.encode()) / 2**32)

    def copy(self) -> Talk:
        twin = object.__new__(Talk)
        twin.__dict__ |= self.__dict__
        return twin


def build_model(args: argparse.Namespace, device: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    tokenizer = AutoTokenizer.from_pretrained(args.model) if args.model else tiny.build_tokenizer()
    if not args.shape:
        return AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32), tokenizer
    return random_model(SHAPES[args.shape], device, tokenizer, context=8192), tokenizer


def build_team(args: argparse.Namespace, world: World) -> Team:
    config = Config(
        policies=(args.policies,), engine=args.engine, engine_memory=args.memory,
        max_response_tokens=args.max_tokens, lr=1e-6, gradient_checkpointing=args.ckpt, fused=args.fused,
        optimizer=args.optimizer, adapter=args.adapter, lora_rank=args.lora_rank,
    )  # fmt: skip
    build = partial(build_model, args, world.device)
    if args.adapter == "lora":
        build = cache(build)  # one base for both policies
    return make_team(config, Talk.agents, world, lambda name: build())


def one_step(args: argparse.Namespace, team: Team, step: int) -> dict[str, float]:
    world, clock = team.world, Clock(team.seconds)
    ids = world.mine(range(args.envs * world.size))
    generate = team.sampler(1.0)
    if args.no_wavefront:
        generate.cohorts = 1  # type: ignore[attr-defined]
    with clock("sample"):
        result = rollout_tree(
            [Talk(i, args.prompt) for i in ids], generate, encode=team.encode, decode=team.decode,
            num_candidates=args.candidates, max_turns=args.turns, seed=(0, step), env_ids=ids,
        )  # fmt: skip
        team.rest()
    assign_advantages(group_samples(result.samples))
    with clock("wait"):
        world.barrier()
    with clock("exchange"):
        batches = share_samples(world, team.training, team.policy_of, result.samples, MINIBATCHES, (0, step))
    with clock("update"):
        for name, policy in team.learners.items():
            config = UpdateConfig(minibatches=MINIBATCHES, micro_batch_tokens=args.pack)
            metrics = update(policy, batches[name], config, (0, step))
        world.barrier()
    with clock("sync"):
        team.sync()
        world.barrier()
    times = clock.seconds()
    counting = Counting(world.rank, world.size, world.device, world.over, world.group)  # once more, in nobody's time
    share_samples(counting, team.training, team.policy_of, result.samples, MINIBATCHES, (0, step))
    sampled = world.add_up(sum(len(sample.response_ids) for sample in result.samples))
    raw = sampled + world.add_up(sum(len(sample.prompt_ids) for sample in result.samples))
    free, total = torch.cuda.mem_get_info() if torch.cuda.is_available() else (0, 0)
    return {
        **times,
        "wait_s": team.seconds["wait"],
        "rollout_tokens_s_gpu": sampled / times["sample_s"] / world.size,
        "update_tokens_s_gpu": raw / times["update_s"] / world.size,
        "idle": 1 - times["generate_s"] / times["sample_s"],
        "other_share": times["other_s"] / times["step_s"],
        "device_gb": (total - free) / 1e9,
        "gap": metrics["logprob_gap"],
        **{f"{what}_mb": size / 1e6 for what, size in counts.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder with a model, or only a tokenizer where --shape is given")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape")
    parser.add_argument("--policies", choices=["shared", "per_role"], default="shared")
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--optimizer", choices=["adamw", "adamw8bit"], default="adamw")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--memory", type=float, default=0.3)
    parser.add_argument("--limit-gb", type=float, default=0.0)
    parser.add_argument("--adapter", choices=["none", "lora"], default="none")
    numbers = {"envs": 16, "candidates": 8, "turns": 2, "prompt": 250, "max-tokens": 256, "steps": 4, "pack": 0}
    numbers |= {"lora-rank": 16}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name in ("ckpt", "fused", "no-wavefront"):
        parser.add_argument(f"--{name}", action="store_true")
    args = parser.parse_args()
    world = start(args.device)
    if args.limit_gb:
        torch.cuda.set_per_process_memory_fraction(args.limit_gb * 1e9 / torch.cuda.mem_get_info()[1])
    team = build_team(args, world)
    rows = [one_step(args, team, step) for step in range(args.steps)]
    mine = {key: median(row[key] for row in rows[1:] or rows) for key in rows[0]}
    everybody = world.gather(mine)
    if world.main:
        kind = f"{args.shape or args.model}, {args.policies}, adapter {args.adapter}"
        print(f"{kind}, {world.size} GPUs, first step {rows[0]['step_s']:.1f} s")
        for rank, values in enumerate(everybody):
            print(f"rank {rank} " + json.dumps({key: round(value, 4) for key, value in values.items()}))
    world.close()


if __name__ == "__main__":
    main()
