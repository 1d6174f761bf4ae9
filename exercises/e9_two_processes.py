"""A gradient summed over two processes.

Each process has some tokens of the batch, not equally many. The loss is the mean over *all* tokens of (w - x)^2 / 2,
and w = 0, so its gradient is -(mean of all x). Write `solution(tokens)`. It is called in both processes with their own
numbers x and returns the whole gradient in both. `torch.distributed` is set up; `dist.all_reduce(tensor)` adds up a
tensor over the processes, in place.

Worked example: one process has 1, 2, 3, the other one 10. The gradient is -16 / 4 = -4. The mean of the two means, -6,
is wrong: it gives the single token of the second process three times the weight.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from distributed.world import World

PARTS = [([1.0, 2.0, 3.0], [10.0]), ([4.0], []), ([-1.0, 1.0], [3.0, 5.0])]


def solution(tokens: list[float]) -> float:
    raise NotImplementedError


def product(tokens: list[float]) -> float:
    world = World(rank=dist.get_rank(), size=dist.get_world_size())
    total = world.add_up({"x": sum(tokens), "tokens": len(tokens)})
    return -total["x"] / total["tokens"]


def process(rank: int, gradient: Callable[[list[float]], float], file: str, found: Any) -> None:
    """One of the two: its gradients, or None where there is no solution yet."""
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    try:
        found.put((rank, [gradient(parts[rank]) for parts in PARTS]))
    except NotImplementedError:
        found.put((rank, None))
    dist.barrier()
    dist.destroy_process_group()


def checks(gradient: Callable[[list[float]], float]) -> Iterator[tuple[str, Any, Any]]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        found = context.Queue()
        processes = [
            context.Process(target=process, args=(rank, gradient, f"{folder}/store", found), daemon=True)
            for rank in range(2)
        ]
        for one in processes:
            one.start()
        results = dict(found.get(timeout=60) for _ in processes)
        for one in processes:
            one.join()
    if None in results.values():
        raise NotImplementedError
    for rank in range(2):
        yield f"process {rank}: 1 2 3 | 10, 4 | nothing, -1 1 | 3 5", [-4.0, -4.0, -2.0], results[rank]
