"""One optimizer step on the same canned batch: this project against TRL's GRPOTrainer, speed, memory and gradients.

    python benchmarks/update_vs_trl.py                       # 16 groups of K=8, the shape of Qwen3-0.6B
    python benchmarks/update_vs_trl.py --groups 128 --candidates 1          # nothing to share
    python benchmarks/update_vs_trl.py --size mini --device cpu             # a dry run

Random weights; prompts of about 1k tokens and responses of 64 to 256. Generation and rewards are skipped on both sides;
what is timed is everything from samples with advantages to new weights. Every row is a fresh process: the first step
warms up, then the median of `--steps`. Throughput is raw tokens a second: prompt + response of every sample, which is
what has to be processed without sharing and without padding.

A variant of ours joins words with "+": `flash` (two kernel calls, nothing copied) or `blocks` (plain SDPA); `tiles`
(compiled log-probs), `layers` (compiled layers), `ckpt` (activations recomputed), `adam8bit` (Adam's moments in 8 bits,
needs torchao). A variant of TRL is its micro-batch, with "+nockpt" to turn its default checkpointing off.
TRL keeps its other defaults: float32 weights with bfloat16 autocast, SDPA, beta 0, loss dapo (the token mean, as ours),
its own fused head.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.shapes import SHAPES, random_model
from distributed.world import start
from grouping import GroupKey, Sample
from model import attention, fused, packing, tiny
from model.attention import packed
from model.policy import Policy, make_policy
from update import UpdateConfig, update

SIZES = {  # name: shape, prompt lengths, response lengths
    "0.6b": (SHAPES["qwen3-0.6b"], (900, 1100), (64, 256)),
    "mini": (
        dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             intermediate_size=128, vocab_size=512, tie_word_embeddings=True),
        (30, 40), (4, 16),
    ),
}  # fmt: skip
OURS = ["flash+tiles+layers", "flash+tiles+layers+ckpt+adam8bit", "flash+tiles+layers+ckpt", "flash+tiles"]
TRL = ["16", "32", "8+nockpt"]
LEARNING_RATE = 1e-6


def make_samples(size: str, groups: int, candidates: int) -> list[Sample]:
    """Random ids and advantages; lengths uniform between the two limits of the shape."""
    config, prompts, responses = SIZES[size]
    rng = np.random.default_rng(0)
    samples = []
    for group in range(groups):
        prompt = rng.integers(0, config["vocab_size"], rng.integers(*prompts, endpoint=True)).tolist()
        for _ in range(candidates):
            ids = rng.integers(0, config["vocab_size"], rng.integers(*responses, endpoint=True)).tolist()
            samples.append(Sample(GroupKey(group, 0, "a"), prompt, ids, [0.0] * len(ids), 0.0, float(rng.normal())))
    return samples


# --------------------------------------------------------------------------------------------------------------- ours


def prepare(variant: str, size: str, device: str) -> Policy:
    """A policy with the parts of the variant switched on, the others off, for this process."""
    kernels, *parts = variant.split("+")
    unknown = {kernels} - {"flash", "blocks"} | set(parts) - {"tiles", "layers", "ckpt", "adam8bit"}
    if unknown:
        raise ValueError(f"--ours {variant}: unknown part {sorted(unknown)}")
    mesh = start(device).meshes({"p": [0]})["p"]
    model = random_model(SIZES[size][0], device)
    if "layers" in parts and device == "cuda":
        fused.fuse_layers(model)
    if "tiles" not in parts:
        fused.compiler_works = lambda: False
    if kernels == "blocks":
        attention.has_flash = lambda *_: False
    return make_policy(
        "p", model, tiny.build_tokenizer(), LEARNING_RATE, device, mesh, "ckpt" in parts,
        optimizer="adamw8bit" if "adam8bit" in parts else "adamw",
    )  # fmt: skip


def run_ours(variant: str, args: argparse.Namespace, samples: list[Sample]) -> dict[str, Any]:
    policy = prepare(variant, args.size, args.device)
    config = UpdateConfig(minibatches=1, micro_batch_tokens=args.budget)
    fill_engine_logprobs(policy, samples, args.budget)
    gradients: dict[str, Tensor] = {}
    policy.optimizer.register_step_pre_hook(lambda *_: keep_gradients(gradients, policy.model))
    seconds, metrics = [], []
    reset_peak()
    for _ in range(args.steps + 1):
        with timed(seconds):
            metrics.append(update(policy, samples, config))
    return report(args, variant, seconds, metrics[0]["loss"], metrics[0]["grad_norm"], gradients)


@torch.no_grad()
def fill_engine_logprobs(policy: Policy, samples: list[Sample], budget: int) -> None:
    """The engine that would have sampled these responses agrees with the trainer: no mismatch weight, as in TRL."""
    with packed(policy.model):
        for members in packing.micro_batches(packing.by_prompt(samples), budget):
            logprobs = policy.logprobs(packing.pack_samples(members, policy.device), 1.0)[0].cpu()
            packed_samples = [sample for group in members for sample in group]
            lengths = [len(sample.response_ids) for sample in packed_samples]
            for sample, part in zip(packed_samples, logprobs.split(lengths), strict=True):
                sample.logprobs = part.tolist()


# ---------------------------------------------------------------------------------------------------------------- TRL


def padded(rows: list[list[int]], left: bool, device: str) -> tuple[Tensor, Tensor]:
    """Rows of ids padded to the longest, and the mask of real tokens: (B, L), (B, L)."""
    longest = max(map(len, rows))
    pads = [[0] * (longest - len(row)) for row in rows]
    ids = [pad + row if left else row + pad for row, pad in zip(rows, pads, strict=True)]
    real = [
        [0] * len(p) + [1] * len(r) if left else [1] * len(r) + [0] * len(p) for r, p in zip(rows, pads, strict=True)
    ]
    return torch.tensor(ids, device=device), torch.tensor(real, device=device)


def run_trl(variant: str, args: argparse.Namespace, samples: list[Sample]) -> dict[str, Any]:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    micro_batch, _, option = variant.partition("+")
    if option not in ("", "nockpt"):
        raise ValueError(f"--trl {variant}: unknown part {option!r}")
    gradients: dict[str, Tensor] = {}
    seconds: list[float] = []
    losses: list[dict[str, float]] = []

    class CannedTrainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: list) -> dict[str, Tensor]:
            """What TRL would have made of its own generations (end of the function of that name, TRL 1.16)."""
            assert len(inputs) == len(samples)
            device = self.accelerator.device
            prompt_ids, prompt_mask = padded([s.prompt_ids for s in samples], True, device)
            completion_ids, completion_mask = padded([s.response_ids for s in samples], False, device)
            return {
                "prompt_ids": prompt_ids, "prompt_mask": prompt_mask,
                "completion_ids": completion_ids, "completion_mask": completion_mask,
                "advantages": torch.tensor([s.advantage for s in samples], device=device),
                "num_items_in_batch": completion_mask.sum(),
            }  # fmt: skip

    class Watch(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.clock = timed(seconds)
            self.clock.__enter__()

        def on_pre_optimizer_step(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
            keep_gradients(gradients, model)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.clock.__exit__(None, None, None)

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            losses.append(logs)

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, max_steps=args.steps + 1, learning_rate=LEARNING_RATE, lr_scheduler_type="constant",
            per_device_train_batch_size=int(micro_batch),
            gradient_accumulation_steps=len(samples) // int(micro_batch), num_generations=max(2, args.candidates),
            max_completion_length=max(len(s.response_ids) for s in samples), logging_steps=1, save_strategy="no",
            report_to="none", disable_tqdm=True, bf16=args.device == "cuda", use_cpu=args.device == "cpu",
            gradient_checkpointing=option != "nockpt",
        )  # fmt: skip
        tokenizer = tiny.build_tokenizer()
        trainer = CannedTrainer(
            model=random_model(SIZES[args.size][0], args.device),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config, train_dataset=Dataset.from_dict({"prompt": ["x"] * len(samples)}),
            processing_class=tokenizer, callbacks=[Watch()],
        )  # fmt: skip
        reset_peak()
        trainer.train()
    first = next(logs for logs in losses if "grad_norm" in logs)
    return report(args, variant, seconds, float(first["loss"]), float(first["grad_norm"]), gradients)


# ---------------------------------------------------------------------------------------------------------- measuring


@contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    """Append the wall-clock seconds until the GPU is done."""
    synchronize()
    begin = time.perf_counter()
    yield
    synchronize()
    seconds.append(time.perf_counter() - begin)


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def keep_gradients(kept: dict[str, Tensor], model: torch.nn.Module) -> None:
    """Of the first step: gradients from the first layer, the last one and the end."""
    if not kept:
        for name, parameter in model.named_parameters():
            if name.endswith(
                ("layers.0.self_attn.q_proj.weight", "layers.1.mlp.down_proj.weight", "model.norm.weight")
            ):
                gradient = parameter.grad
                kept[name] = (gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient).float().cpu()


def report(
    args: argparse.Namespace, variant: str, seconds: list[float], loss: float, norm: float, gradients: dict[str, Tensor]
) -> dict[str, Any]:
    if args.gradients:
        torch.save(gradients, args.gradients)
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    return {
        "variant": variant, "seconds": statistics.median(seconds[1:]), "first": seconds[0], "steps": seconds[1:],
        "peak_gib": peak, "loss": loss, "grad_norm": norm,
    }  # fmt: skip


def flops(size: str, samples: list[Sample], shared: bool) -> float:
    """Useful operations of one step, forward and backward (three times forward), by hand; recomputation is not useful.

    2 operations a weight and token, 4 a head dimension and (query, key) pair, and the head on response tokens only.
    """
    c = SIZES[size][0]
    heads, kv_heads = (c[n] * c["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))
    weights = c["hidden_size"] * (2 * heads + 2 * kv_heads + 3 * c["intermediate_size"])
    groups = packing.by_prompt(samples) if shared else [[sample] for sample in samples]
    tokens = pairs = head = 0
    for members in groups:
        p = len(members[0].prompt_ids)
        lengths = [len(s.response_ids) - 1 for s in members]
        tokens += p + sum(lengths)
        pairs += p * (p + 1) // 2 + sum(n * p + n * (n + 1) // 2 for n in lengths)
        head += sum(len(s.response_ids) for s in members)
    layers = c["num_hidden_layers"] * (2 * weights * tokens + 4 * heads * pairs)
    return 3.0 * (layers + 2 * c["hidden_size"] * c["vocab_size"] * head)


def ceiling(device: str) -> float:
    """Operations a second of one large matrix product, the most this card does in practice."""
    n, dtype, repeats = (8192, torch.bfloat16, 30) if device == "cuda" else (1024, torch.float32, 3)
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    seconds: list[float] = []
    for _ in range(4):
        with timed(seconds):
            for _ in range(repeats):
                a @ b
    return 2 * n**3 * repeats / min(seconds)


# ----------------------------------------------------------------------------------------------------------- the rows


def run_row(side: str, variant: str, args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Run one variant in a process of its own: result and gradients; a result with "error" when it failed."""
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        command = [sys.executable, __file__, "--row", side, variant, "--gradients", file.name]
        for name in ("size", "device", "groups", "candidates", "budget", "steps"):
            command += [f"--{name}", str(getattr(args, name))]
        one_card = {"CUDA_VISIBLE_DEVICES": "0", **os.environ}  # transformers' trainer would spread over all
        done = subprocess.run(command, capture_output=True, text=True, env=one_card)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            print(*lines[-15:], sep="\n", file=sys.stderr)
            memory = "OutOfMemoryError" in done.stderr
            return {"variant": variant, "error": "out of memory" if memory else lines[-1][:100]}, {}
        return json.loads(done.stdout.strip().splitlines()[-1]), torch.load(file.name)


def cosines(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The smallest cosine between two sets of gradients; names may differ in a prefix."""
    pairs = [(x, y) for name, x in a.items() for other, y in b.items() if name.endswith(other) or other.endswith(name)]
    return min(float(torch.cosine_similarity(x.flatten(), y.flatten(), 0)) for x, y in pairs)


def table(rows: list[dict[str, Any]], batch: dict[str, Any]) -> Iterator[str]:
    titles = f"{'s/step':>8}{'raw tok/s':>11}{'GiB':>7}{'share':>7}{'loss':>9}{'|grad|':>9}{'cos':>8}"
    yield f"{'side':5}{'variant':26}{titles}"
    for row in rows:
        start = f"{row['side']:5}{row['variant']:26}"
        if "error" in row:
            yield f"{start}{row['error']}"
            continue
        peak = f"{row['peak_gib']:7.1f}" if row["peak_gib"] else f"{'-':>7}"
        yield (
            f"{start}{row['seconds']:8.3f}{row['raw_tokens_per_second']:11.0f}{peak}"
            f"{row['flop_share']:7.1%}{row['loss']:9.5f}{row['grad_norm']:9.4f}{row['cosine']:8.4f}"
        )
    best = {
        side: max(
            (r for r in rows if r["side"] == side and "error" not in r),
            key=lambda row: row["raw_tokens_per_second"], default=None,
        )
        for side in ("ours", "trl")
    }  # fmt: skip
    yield (
        f"sharing: {batch['raw_tokens']} raw tokens, {batch['unique_tokens']} through the model "
        f"({batch['raw_tokens'] / batch['unique_tokens']:.2f}x fewer, {batch['flop_ratio']:.2f}x fewer operations)"
    )
    if best["ours"] and best["trl"]:
        ours, trl = best["ours"], best["trl"]
        memory = f" at {ours['peak_gib'] / trl['peak_gib']:.2f} of its memory" if trl["peak_gib"] else ""
        speed = ours["raw_tokens_per_second"] / trl["raw_tokens_per_second"]
        yield f"best of each: {speed:.2f}x TRL's tokens/s{memory} ({ours['variant']} against {trl['variant']})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="0.6b")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    for name, value in dict(groups=16, candidates=8, budget=16384, steps=3).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--ours", nargs="*", default=OURS, help="variants of ours")
    parser.add_argument("--trl", nargs="*", default=TRL, help="variants of TRL")
    parser.add_argument("--out", type=Path, help="a JSON file for everything that was measured")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)  # side and variant, in a process of its own
    parser.add_argument("--gradients", help=argparse.SUPPRESS)
    args = parser.parse_args()
    samples = make_samples(args.size, args.groups, args.candidates)
    if args.row:
        run: Callable = {"ours": run_ours, "trl": run_trl}[args.row[0]]
        print(json.dumps(run(args.row[1], args, samples)))
        return
    raw = sum(len(s.prompt_ids) + len(s.response_ids) for s in samples)
    groups = packing.by_prompt(samples)
    unique = sum(len(m[0].prompt_ids) + sum(len(s.response_ids) - 1 for s in m) for m in groups)
    work, most = flops(args.size, samples, shared=True), ceiling(args.device)
    ratio = flops(args.size, samples, shared=False) / work
    batch = {
        "raw_tokens": raw,
        "unique_tokens": unique,
        "flop_ratio": ratio,
        "tflop": work / 1e12,
        "ceiling": most / 1e12,
    }
    card = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    if args.device == "cuda":
        torch.cuda.empty_cache()  # the rows need it
    print(
        f"{card}, torch {torch.__version__}: {most / 1e12:.1f} TFLOP/s; {len(samples)} samples, {work / 1e12:.3g} TFLOP"
    )
    rows, reference = [], None
    for side, variant in [*(("ours", v) for v in args.ours), *(("trl", v) for v in args.trl)]:
        row, gradients = run_row(side, variant, args)
        row["side"] = side
        if "error" not in row:
            reference = reference or gradients
            row["raw_tokens_per_second"] = raw / row["seconds"]
            row["flop_share"] = (
                work / row["seconds"] / most
            )  # of the operations that are needed when prompts are shared
            row["cosine"] = cosines(gradients, reference)
        rows.append(row)
        print(json.dumps(row), flush=True)
    print(*table(rows, batch), sep="\n")
    if args.out:
        settings = {name: getattr(args, name) for name in ("size", "groups", "candidates", "budget", "steps")}
        args.out.write_text(json.dumps({"card": card, **settings, **batch, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
