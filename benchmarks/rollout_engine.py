"""The vLLM engine against vLLM alone, a tree rollout against its own requests known up front, and a weight sync.

    python benchmarks/rollout_engine.py --model FOLDER                          a GPU, a model with its tokenizer
    python benchmarks/rollout_engine.py --model FOLDER --shape qwen3-0.6b       random weights of that shape
    python benchmarks/rollout_engine.py --shape small --context 1024 --max-tokens 8 --envs 4 --repeats 2      a CPU

1. Engine: sampled tokens a second of `VllmEngine` with log-probs, seeds and text against `LLM.generate` of the same
   prompts without any of these settings, in a process of its own with vLLM's defaults; both alternate and start every
   repeat with an empty prefix cache. VLLM_ENABLE_V1_MULTIPROCESSING=0 keeps vLLM's engine inside that other process.
2. Rollout: tokens a second of `rollout_tree` (two agents on Plan-Path, environments, templates and decoding included)
   against one call with all its requests.
3. Sync: seconds of `load` from float32 masters, and from weights that already have the engine's dtype.

Medians over `--repeats`; a response ends at a stop token or after `--max-tokens`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.shapes import SHAPES, random_model
from envs import make_env
from model import tiny
from model.chat import decode
from model.policy import Policy, make_policy
from rollout import rollout_tree
from sampling.requests import Generate, Request, Stream
from sampling.team import Team
from sampling.vllm_engine import VllmEngine


def build_policy(args: argparse.Namespace) -> Policy:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(args.model) if args.model else tiny.build_tokenizer()
    if args.shape == "own":
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    else:
        model = random_model(SHAPES[args.shape], device, tokenizer)
    return make_policy("shared", model, tokenizer, 1e-6, device)


# --------------------------------------------------------------------------------------------------------- vLLM alone


def bare(folder: str) -> None:
    """The other process: vLLM with its defaults; one line of tokens and seconds for each line it reads."""
    job = json.loads((Path(folder) / "job.json").read_text())
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=folder, dtype=job["dtype"], max_model_len=job["context"], gpu_memory_utilization=job["memory"],
        generation_config="vllm", enable_prefix_caching=True,
    )  # fmt: skip
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    params = SamplingParams(n=job["n"], temperature=1.0, max_tokens=job["max_tokens"])
    print("READY", flush=True)
    for _ in sys.stdin:
        llm.reset_prefix_cache()
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        print("DONE", sum(len(answer.token_ids) for o in outputs for answer in o.outputs), seconds, flush=True)


class Bare:
    """vLLM alone, in a process that waits until it is asked."""

    def __init__(self, policy: Policy, prompts: list[list[int]], args: argparse.Namespace, environment: dict[str, str]):
        self.folder = tempfile.TemporaryDirectory()
        policy.save(Path(self.folder.name))
        job = {
            "prompts": prompts, "n": args.candidates, "max_tokens": args.max_tokens, "context": args.context,
            "memory": args.memory, "dtype": "bfloat16" if policy.device.type == "cuda" else "float32",
        }  # fmt: skip
        (Path(self.folder.name) / "job.json").write_text(json.dumps(job))
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--bare", self.folder.name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self.read("READY")

    def read(self, word: str) -> list[str]:
        for line in self.process.stdout or ():
            if line.startswith(word):
                return line.split()[1:]
        raise RuntimeError(f"vLLM alone ended with status {self.process.wait()}")

    def __call__(self) -> tuple[int, float]:
        print("go", file=self.process.stdin, flush=True)
        tokens, seconds = self.read("DONE")
        return int(tokens), float(seconds)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()


# --------------------------------------------------------------------------------------------------------------- ours


class Recorder:
    """A sampler that remembers what it was asked."""

    def __init__(self, sampler: Generate):
        self.sampler, self.requests = sampler, list[Request]()

    def stream(self, n: int) -> Stream:
        stream = self.sampler.stream(n)  # type: ignore[attr-defined]
        submit = stream.submit

        def record(requests: list[Request]) -> None:
            self.requests += requests
            submit(requests)

        stream.submit = record
        return stream


def timed(engine: VllmEngine, work: Callable[[], int]) -> tuple[int, float]:
    """Tokens and seconds of some work, from an empty prefix cache."""
    assert engine.llm.reset_prefix_cache()
    start = time.perf_counter()
    tokens = work()
    return tokens, time.perf_counter() - start


def generate(engine: VllmEngine, policy: Policy, requests: list[Request], n: int) -> int:
    """With text, as a rollout needs it."""
    replies = [completion for row in engine(requests, n) for completion in row]
    for completion in replies:
        decode(policy.tokenizer, completion.ids)
    return sum(len(completion.ids) for completion in replies)


def play(team: Team, sampler: Generate | Recorder, args: argparse.Namespace) -> int:
    envs = [make_env("plan_path").reset(seed=i) for i in range(args.envs)]
    result = rollout_tree(
        envs, sampler, encode=team.encode, decode=team.decode, num_candidates=args.candidates, max_turns=args.turns
    )
    return sum(len(sample.response_ids) for sample in result.samples)


def sync_seconds(engine: VllmEngine, weights: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats + 1):  # the first one is warm-up
        start = time.perf_counter()
        engine.load(weights())  # type: ignore[arg-type]
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:])


def compare(name: str, one: Callable, other: Callable, repeats: int) -> tuple[float, float, float]:
    """Alternate, in changing order: median tokens a second of both, median of their ratios. The first is warm-up."""
    rates = []
    for repeat in range(repeats + 1):
        order = (one, other) if repeat % 2 else (other, one)
        measured = {side: side() for side in order}
        rates.append([measured[side][0] / measured[side][1] for side in (one, other)])
        print(f"{name}: {rates[-1][0]:,.0f} against {rates[-1][1]:,.0f} tokens/s", flush=True)
    ours, theirs = zip(*rates[1:], strict=True)
    return median(ours), median(theirs), median(a / b for a, b in zip(ours, theirs, strict=True))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="", help="folder of a model with its tokenizer (default: the tiny tokenizer)"
    )
    parser.add_argument("--shape", default="own", choices=["own", *SHAPES], help="random weights, or the model's own")
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--memory", type=float, default=0.3, help="share of the GPU for each of the two engines")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--bare", default="", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.bare:
        return bare(args.bare)
    if args.shape == "own" and not args.model:
        parser.error("give --model FOLDER, or --shape for random weights")
    environment = {"VLLM_LOGGING_LEVEL": "ERROR", **os.environ}  # before our engine sets what it needs
    policy = build_policy(args)
    start = time.perf_counter()
    engine = VllmEngine(policy, args.max_tokens, context=args.context, memory=args.memory)
    ready = time.perf_counter() - start
    agents = make_env("plan_path").agents
    team = Team({"shared": policy}, dict.fromkeys(agents, "shared"), {"shared": engine})

    recorder = Recorder(team.sampler(1.0))
    play(team, recorder, args)  # type: ignore[arg-type]
    requests = recorder.requests
    tree = compare(
        "rollout",
        lambda: timed(engine, lambda: play(team, team.sampler(1.0), args)),
        lambda: timed(engine, lambda: generate(engine, policy, requests, args.candidates)),
        args.repeats,
    )
    sync = sync_seconds(engine, lambda: policy.weights(engine.dtype), args.repeats)
    same = [(name, weight.clone()) for name, weight in policy.weights(engine.dtype)]
    sync_same = sync_seconds(engine, lambda: same, args.repeats)

    alone = Bare(policy, [request.prompt_ids for request in requests], args, environment)
    against = compare(
        "engine",
        lambda: timed(engine, lambda: generate(engine, policy, requests, args.candidates)),
        alone,
        args.repeats,
    )
    alone.close()

    import vllm

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    size = sum(weight.numel() for weight in policy.model.parameters()) / 1e6
    lengths = [len(request.prompt_ids) for request in requests]
    print(f"\n{device}, vLLM {vllm.__version__}, torch {torch.__version__}; {size:,.1f}M parameters ({args.shape})")
    print(
        f"{len(requests)} prompts of {median(lengths):.0f} tokens x {args.candidates}, at most {args.max_tokens} tokens"
    )
    print(f"{'engine ready':44} {ready:8.1f} s")
    print(f"{'1 engine / vLLM alone, tokens/s':44} {against[0]:8,.0f} / {against[1]:,.0f} = {against[2]:.2f}")
    print(f"{'2 tree rollout / all known up front':44} {tree[0]:8,.0f} / {tree[1]:,.0f} = {tree[2]:.2f}")
    print(f"{'3 load from float32 masters':44} {sync:8.3f} s")
    print(f"{'  load from ' + str(engine.dtype).removeprefix('torch.'):44} {sync_same:8.3f} s")


if __name__ == "__main__":
    main()
