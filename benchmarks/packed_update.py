"""Packed against padded: the same clipped-objective gradient of the same batch, on CPU, in one run.

    python benchmarks/packed_update.py [--groups 8] [--candidates 8] [--prompt 256] [--response 64]

The padded side is what a trainer without prompt sharing does: one row a sample, padded to the longest.
Both sides end with the same gradient (checked). Throughput is raw tokens a second: prompt + response of each sample.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from grouping import GroupKey, Sample
from model.attention import packed
from model.logprobs import token_logprobs
from model.packing import by_prompt, micro_batches, pack_samples
from update import UpdateConfig, loss_weights, policy_loss


def make_batch(groups: int, candidates: int, prompt: int, response: int, vocabulary: int) -> list[Sample]:
    """Random ids; response lengths between half of `response` and all of it."""
    rng = np.random.default_rng(0)
    samples = []
    for group in range(groups):
        prompt_ids = rng.integers(0, vocabulary, prompt).tolist()
        for _ in range(candidates):
            ids = rng.integers(0, vocabulary, rng.integers(response // 2, response + 1)).tolist()
            advantage = float(rng.normal())
            samples.append(Sample(GroupKey(group, 0, "a"), prompt_ids, ids, [-5.0] * len(ids), 0.0, advantage))
    return samples


def loss_of(logprobs: torch.Tensor, engine: torch.Tensor, advantage: torch.Tensor, weight: float) -> torch.Tensor:
    return policy_loss(
        logprobs, logprobs.detach(), engine, advantage, torch.full_like(logprobs, weight), UpdateConfig()
    )[0]


def packed_backward(model: torch.nn.Module, samples: list[Sample], budget: int) -> None:
    weight = loss_weights(samples, "token")[0]
    with packed(model):
        for members in micro_batches(by_prompt(samples), budget):
            pack = pack_samples(members)
            logprobs, _ = token_logprobs(model, pack)
            loss_of(logprobs, pack.engine, pack.advantage, weight).backward()


def padded_backward(model: torch.nn.Module, samples: list[Sample], budget: int) -> None:
    weight = loss_weights(samples, "token")[0]
    longest = max(len(s.prompt_ids) + len(s.response_ids) for s in samples)
    rows = max(1, budget // longest)
    for start in range(0, len(samples), rows):
        chunk = samples[start : start + rows]
        ids = torch.zeros(len(chunk), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, s in enumerate(chunk):
            tokens = s.prompt_ids + s.response_ids
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        shortest = min(len(s.prompt_ids) for s in chunk)
        hidden = model.model(input_ids=ids, attention_mask=mask).last_hidden_state[:, shortest - 1 : -1]
        logps = model.lm_head(hidden).log_softmax(-1).gather(-1, ids[:, shortest:, None])[..., 0]
        picked = [logps[row, len(s.prompt_ids) - shortest :][: len(s.response_ids)] for row, s in enumerate(chunk)]
        engine = torch.tensor([value for s in chunk for value in s.logprobs])
        advantage = torch.tensor([s.advantage for s in chunk for _ in s.response_ids])
        loss_of(torch.cat(picked), engine, advantage, weight).backward()


def measure(backward, model: torch.nn.Module, samples: list[Sample], budget: int) -> tuple[float, torch.Tensor]:
    """Seconds of the fastest of three runs, and the gradient."""
    seconds = []
    for _ in range(3):
        model.zero_grad()
        start = time.perf_counter()
        backward(model, samples, budget)
        seconds.append(time.perf_counter() - start)
    return min(seconds), torch.cat([p.grad.flatten() for p in model.parameters()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in dict(groups=8, candidates=8, prompt=256, response=64, budget=4096).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    config = Qwen3Config(
        vocab_size=4096, hidden_size=128, intermediate_size=384, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    samples = make_batch(args.groups, args.candidates, args.prompt, args.response, config.vocab_size)
    tokens = sum(len(s.prompt_ids) + len(s.response_ids) for s in samples)
    slow, expected = measure(padded_backward, model, samples, args.budget)
    fast, found = measure(packed_backward, model, samples, args.budget)
    error = float((found - expected).norm() / expected.norm())
    assert error < 1e-4, f"gradients differ by {error}"
    print(f"{len(samples)} samples, {tokens} raw tokens, {torch.get_num_threads()} threads")
    print(f"relative difference of the gradients: {error:.1e}")
    print(f"padded {tokens / slow:8.0f} tokens/s\npacked {tokens / fast:8.0f} tokens/s\nratio  {slow / fast:8.2f}")


if __name__ == "__main__":
    main()
