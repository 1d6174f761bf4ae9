"""What an update takes of its machine: tokens of a pack on a GPU, threads on a CPU. Only rounding depends on it."""

import os
import timeit
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf

import torch
from transformers import PretrainedConfig

from model.logprobs import TILE_LOGITS, TILE_TOKENS
from model.policy import Policy

MOST = 16_384  # tokens of a pack: more are hardly faster
LEAST = 1024  # fewer are not tried: a long answer and its prompt are as many
ENOUGH = 4096  # of fewer, packs would cut most groups: rather compute activations twice
SPARE = 0.9  # the rest is for the holes that the allocator cannot fill


def free_for_packs(policies: Iterable[Policy]) -> float:
    """Bytes of this GPU (or of this process's share) for packs, beside gradients and Adam's moments."""
    free, total = torch.cuda.mem_get_info()
    taken, cached = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    free = min(free + cached, int(torch.cuda.get_per_process_memory_fraction() * total)) - taken
    for policy in policies:
        moments = 8 if isinstance(policy.optimizer, torch.optim.AdamW) else 2  # of torchao's
        free -= (4 + moments) * sum(weight.numel() for _, weight in policy.parameters()) // policy.ranks
    return SPARE * free


def tokens_that_fit(free: float, shape: PretrainedConfig, adapted: bool = False, checkpointing: bool = False) -> int:
    """Tokens of a pack whose forward and backward pass take at most `free` bytes, from LEAST to MOST.

    A layer keeps 16 C + 8 I + 10 (H + G) D bytes a token for the backward pass: the inputs of two norms, the products
    of the MLP, queries, keys and values before and after they are rotated (C hidden size, I that of the MLP, H and G
    heads, D head size). Adapters add float32 copies of their inputs. Gradients on their way are as large as one
    layer's. With checkpointing a layer keeps its bfloat16 input only, and one layer at a time the rest.
    """
    c, mlp, layers, vocabulary = shape.hidden_size, shape.intermediate_size, shape.num_hidden_layers, shape.vocab_size
    size = getattr(shape, "head_dim", None) or c // shape.num_attention_heads
    heads = (shape.num_attention_heads + shape.num_key_value_heads) * size
    layer = (28 if adapted else 16) * c + (10 if adapted else 8) * mlp + 10 * heads
    token = 24 * c + (layers * 2 * c + 2 * layer if checkpointing else (layers + 1) * layer)
    head = (2 if adapted else 12) * vocabulary * c  # a bfloat16 copy, two float32 gradients
    tile = 16 * min(TILE_TOKENS * vocabulary, TILE_LOGITS)
    gathered = 4 * c * (3 * mlp + 2 * heads)  # weights of a layer
    return max(LEAST, min(MOST, int((free - head - tile - gathered) / token) // 256 * 256))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads inside; 0: as many as outside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fastest_threads(work: Callable[[], object]) -> int:
    """How many threads (1, 2 or 4) do this work fastest; more only where they save a tenth of the time."""
    best, shortest = 1, inf
    for count in [n for n in (1, 2, 4) if n <= (os.cpu_count() or 1)]:
        with threads(count):
            seconds = min(timeit.repeat(work, number=1, repeat=2))
        if seconds < 0.9 * shortest:
            best, shortest = count, seconds
    return best
