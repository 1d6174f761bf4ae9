"""Run a function on several gloo ranks of this machine, each in a process of its own, with a time limit."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import socket
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def enter(rank: int, size: int, port: str) -> None:
    """Set torchrun's environment variables in this process."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def run_ranks(size: int, work: Callable[[int], Any], limit: float = 60) -> list[Any]:
    """`work(rank)` on every rank, with torchrun's environment variables; what they return, by rank.

    Raises AssertionError with the traceback of a rank that raised, TimeoutError when the limit is over. The processes
    are forked: everything is imported already.
    """
    context, port = multiprocessing.get_context("fork"), str(free_port())
    results: Any = context.Queue()

    def target(rank: int) -> None:
        torch.set_num_threads(1)
        enter(rank, size, port)
        try:
            results.put((rank, True, pickle.dumps(work(rank))))  # torch would share tensors' memory, which ends with us
        except BaseException:
            results.put((rank, False, traceback.format_exc()))

    processes = [context.Process(target=target, args=(rank,), daemon=True) for rank in range(size)]
    for process in processes:
        process.start()
    values: dict[int, Any] = {}
    try:
        end = time.monotonic() + limit
        while len(values) < size:
            try:
                rank, fine, value = results.get(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"ranks {sorted(set(range(size)) - set(values))} did not end in {limit} s") from None
            assert fine, f"rank {rank} of {size}:\n{value}"
            values[rank] = pickle.loads(value)
    finally:
        for process in processes:
            process.kill() if len(values) < size else process.join(10)
    return [values[rank] for rank in range(size)]
