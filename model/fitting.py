"""What an update may take of the machine it runs on: tokens of a pack on a GPU, threads on a CPU.

Neither changes what is computed beyond rounding.
"""

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
ENOUGH = 4096  # of fewer, packs would cut most groups: then activations are computed twice instead of kept
SPARE = 0.9  # the rest is for what does not fit into the holes that the allocator has


def free_for_packs(policies: Iterable[Policy]) -> float:
    """Bytes of this GPU (or of this process's share) for packs, once there are gradients and Adam's moments as well."""
    free, total = torch.cuda.mem_get_info()
    taken, cached = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    free = min(free + cached, int(torch.cuda.get_per_process_memory_fraction() * total)) - taken
    for policy in policies:
        moments = 8 if isinstance(policy.optimizer, torch.optim.AdamW) else 2  # of torchao's
        free -= (4 + moments) * sum(weight.numel() for _, weight in policy.parameters()) // policy.ranks
    return SPARE * free


def tokens_that_fit(free: float, shape: PretrainedConfig, adapted: bool = False, checkpointing: bool = False) -> int:
    """Tokens of a pack whose forward and backward pass take at most `free` bytes, from LEAST to MOST."""
    head = (2 if adapted else 12) * shape.vocab_size * shape.hidden_size  # a bfloat16 copy, two float32 gradients
    tile = 16 * min(TILE_TOKENS * shape.vocab_size, TILE_LOGITS)
    gathered = 4 * shape.hidden_size * (3 * shape.intermediate_size + 2 * _heads(shape))  # weights of a layer
    fit = (free - head - tile - gathered) / bytes_per_token(shape, adapted, checkpointing)
    return max(LEAST, min(MOST, int(fit) // 256 * 256))


def bytes_per_token(shape: PretrainedConfig, adapted: bool = False, checkpointing: bool = False) -> int:
    """What a forward pass keeps of each token for the backward pass, and gradients on their way.

    A layer keeps 16 C + 8 I + 10 (H + G) D bytes: the inputs of two norms, the products of the MLP, queries, keys and
    values before and after they are rotated (C hidden size, I that of the MLP, H and G heads, D head size; a test
    counts them again). Adapters add float32 copies of their inputs. Gradients on their way are as large as one layer's.
    With checkpointing a layer keeps its bfloat16 input only, and one layer at a time the rest.
    """
    c, layers = shape.hidden_size, shape.num_hidden_layers
    layer = (28 if adapted else 16) * c + (10 if adapted else 8) * shape.intermediate_size + 10 * _heads(shape)
    return 24 * c + (layers * 2 * c + 2 * layer if checkpointing else (layers + 1) * layer)


def _heads(shape: PretrainedConfig) -> int:
    """(H + G) D"""
    size = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    return (shape.num_attention_heads + shape.num_key_value_heads) * size


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
    """How many threads (1, 2 or 4) do this work fastest. More than one only where they save a tenth of the time."""
    best, shortest = 1, inf
    for count in [n for n in (1, 2, 4) if n <= (os.cpu_count() or 1)]:
        with threads(count):
            seconds = min(timeit.repeat(work, number=1, repeat=2))
        if seconds < 0.9 * shortest:
            best, shortest = count, seconds
    return best
