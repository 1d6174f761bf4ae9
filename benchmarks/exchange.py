"""What a step's samples cost to move: to every rank, and to the ranks that train them.

    python benchmarks/exchange.py                          2, 4 and 8 processes of this machine
    python benchmarks/exchange.py --ranks 2 4 8 16         on a machine with many cores

One policy on all ranks, groups of four responses of 400 tokens to a prompt of 600. The job's size stays the same (4,096
responses) or grows with the ranks (256 each). Bytes are those that the rank with the most receives; seconds are the
slowest rank's, the median of three. "planning" is the part that grows with the job, in seconds of one core: outlines,
dealing, balancing, as every rank does them for the responses of all (here of two policies).
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from distributed.exchange import Outline, share_samples
from distributed.world import World, start
from grouping import GroupKey, Sample
from model.packing import balance, deal, first_fit, with_signal

PROMPT, RESPONSE, CANDIDATES, MINIBATCHES = 600, 400, 4, 2


def make_samples(first: int, groups: int) -> list[Sample]:
    samples = []
    for env in range(first, first + groups):
        numbers = random.Random(env)
        prompt = [numbers.randrange(150_000) for _ in range(numbers.randrange(PROMPT // 2, PROMPT * 3 // 2))]
        for _ in range(CANDIDATES):
            length = numbers.randrange(RESPONSE // 2, RESPONSE * 3 // 2)
            response = [numbers.randrange(150_000) for _ in range(length)]
            logprobs = [-numbers.random() for _ in range(length)]
            samples.append(Sample(GroupKey(env, 0, "a"), prompt, response, logprobs, 1.0, numbers.random() - 0.5))
    return samples


class Counting(World):
    """Counts the bytes of what others send to this rank."""

    def send_to(self, parts: Any) -> Any:
        return self.count("samples", super().send_to(parts))

    def gather(self, value: Any) -> Any:
        return self.count("outlines", super().gather(value))

    def count(self, what: str, parts: list) -> list:
        counts[what] = sum(len(pickle.dumps(part)) for rank, part in enumerate(parts) if rank != self.rank)
        return parts


counts: dict[str, int] = {}  # of the last message of each kind


def timed(world: World, move: Callable[[], object]) -> float:
    """Median seconds of three calls, on the slowest rank."""
    seconds = []
    for _ in range(3):
        world.barrier()
        began = time.perf_counter()
        move()
        seconds.append(max(world.gather(time.perf_counter() - began)))
    return median(seconds)


def measure(rank: int, size: int, port: int, groups: int, results: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    world = start("cpu")
    samples = make_samples(rank * groups, groups)

    def share(with_whom: World) -> dict[str, list[Sample]]:
        return share_samples(with_whom, {"p": range(size)}, {"a": "p"}, samples, MINIBATCHES, (0, 0))

    everywhere, shared = timed(world, lambda: world.gather(samples)), timed(world, lambda: share(world))
    share(Counting(rank, size))
    sizes = [max(world.gather(counts[what])) for what in ("samples", "outlines")]
    if world.main:
        results.put((everywhere, shared, *sizes))
    world.close()


def planning(ranks: int, groups: int) -> float:
    """Seconds of what a rank does with the outlines of all: of both policies to share samples, of its own to update."""
    numbers = random.Random(0)
    rows = [
        (env, PROMPT, numbers.randrange(RESPONSE // 2, RESPONSE * 3 // 2), True)
        for env in range(ranks * groups)
        for _ in range(CANDIDATES)
    ]
    began = time.process_time()
    half = len(rows) // 2
    batches = [[Outline(*row) for row in part] for part in (rows[:half], rows[half:])]
    for batch in batches:  # share_samples
        for part in deal(batch, MINIBATCHES):
            balance(with_signal(part), ranks // 2)
    for part in deal(batches[0], MINIBATCHES):  # update
        _ = [first_fit(share, 16384) for share in balance(with_signal(part), ranks // 2)]
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    args = parser.parse_args()
    print(f"{'responses':>10} {'ranks':>6} {'to all':>8} {'to their ranks':>14}")
    for weak in (False, True):
        for size in args.ranks:
            groups = 256 // CANDIDATES if weak else 4096 // CANDIDATES // size
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            results = mp.get_context("fork").SimpleQueue()
            mp.start_processes(measure, (size, port, groups, results), nprocs=size, start_method="fork")
            everywhere, shared, samples, outlines = results.get()
            print(
                f"{size * groups * CANDIDATES:>10,} {size:>6} {everywhere:>6.3f} s {shared:>6.3f} s "
                f"{samples / 1e6:>8.2f} MB + outlines {outlines / 1e6:.3f} MB",
                flush=True,
            )
    seconds, responses = planning(1024, 512 // CANDIDATES), 1024 * 512
    print(f"planning {responses:,} responses on 1,024 ranks: {seconds:.2f} s, {seconds / responses * 1e6:.1f} us each")


if __name__ == "__main__":
    main()
