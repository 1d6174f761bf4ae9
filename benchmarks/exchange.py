"""What a step's samples cost to move: to every rank as objects (as it once was), and to the ranks that train them.

    python benchmarks/exchange.py                          2, 4 and 8 processes of this machine
    python benchmarks/exchange.py --ranks 2 4 8 16         on a machine with many cores

One policy on all ranks, groups of four responses of 400 tokens to a prompt of 600. The job's size stays the same (4,096
responses) or grows with the ranks (256 each). Bytes are those that the rank with the most receives, payload only;
seconds are the slowest rank's, the median of three. "planning" is the part that grows with the job, in seconds of one
core: outlines, dealing, balancing, as every rank does them for the responses of all (here of two policies). "packing"
is what a rank spends on its own tensors.
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
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from distributed.exchange import Outline, _rows, _samples, pack_rows, share_samples, unpack_rows
from distributed.world import World, start
from grouping import GroupKey, Sample
from model.packing import balance, collector_paused, deal, first_fit, with_signal

PROMPT, RESPONSE, CANDIDATES, MINIBATCHES = 600, 400, 4, 2


def make_samples(first: int, groups: int) -> list[Sample]:
    samples = []
    for env in range(first, first + groups):
        numbers = random.Random(env)
        prompt = [numbers.randrange(150_000) for _ in range(numbers.randrange(PROMPT // 2, PROMPT * 3 // 2))]
        for _ in range(CANDIDATES):
            length = numbers.randrange(RESPONSE // 2, RESPONSE * 3 // 2)
            response, logprobs = [numbers.randrange(150_000) for _ in range(length)], [-numbers.random()] * length
            samples.append(Sample(GroupKey(env, 0, "a"), prompt, response, logprobs, 1.0, numbers.random() - 0.5))
    return samples


def timed(world: World, move: Callable[[], object]) -> float:
    """Median seconds of three calls, on the slowest rank."""
    seconds = []
    for _ in range(3):
        world.barrier()
        began = time.perf_counter()
        move()
        seconds.append(world.most(time.perf_counter() - began))
    return median(seconds)


def measure(rank: int, size: int, port: int, groups: int, results: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    world = start("cpu")
    samples, homes = make_samples(rank * groups, groups), {"p": range(size)}
    objects: list[Any] = [None] * size
    old_bytes = world.add_up(len(pickle.dumps(samples))) * (size - 1) / size
    old_seconds = timed(world, lambda: dist.all_gather_object(objects, samples))
    world.traffic.clear()
    seconds = timed(world, lambda: share_samples(world, homes, {"a": "p"}, samples, MINIBATCHES, (0, 0)))
    received, outlines = (world.most(world.traffic[f"{what} received"] / 3) for what in ("samples", "outlines"))
    if world.main:
        results.put((old_bytes, old_seconds, received, outlines, seconds))
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
    with collector_paused():
        half = len(rows) // 2
        batches = [[Outline(*row) for row in part] for part in (rows[:half], rows[half:])]
        for batch in batches:  # share_samples
            for part in deal(batch, MINIBATCHES):
                balance(with_signal(part), ranks // 2)
        for part in deal(batches[0], MINIBATCHES):  # update
            _ = [first_fit(share, 16384) for share in balance(with_signal(part), ranks // 2)]
    return time.process_time() - began


def packing() -> float:
    """Seconds to turn the samples of a rank into a message and back, for each of 1,024 responses."""
    samples = [(0, place, sample) for place, sample in enumerate(make_samples(0, 256))]
    began = time.process_time()
    list(_samples(unpack_rows(pack_rows(_rows(samples)))))
    return (time.process_time() - began) / len(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    args = parser.parse_args()
    print(f"{'responses':>10} {'ranks':>6} {'as objects':>18} {'as tensors, to their ranks':>34}")
    for weak in (False, True):
        for size in args.ranks:
            groups = 256 // CANDIDATES if weak else 4096 // CANDIDATES // size
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            results = mp.get_context("fork").SimpleQueue()
            mp.start_processes(measure, (size, port, groups, results), nprocs=size, start_method="fork")
            old_bytes, old_seconds, received, outlines, seconds = results.get()
            print(
                f"{size * groups * CANDIDATES:>10,} {size:>6} {old_bytes / 1e6:>8.2f} MB {old_seconds:>6.3f} s "
                f"{received / 1e6:>8.2f} MB + outlines {outlines / 1e6:.3f} MB {seconds:>6.3f} s",
                flush=True,
            )
    seconds, responses = planning(1024, 512 // CANDIDATES), 1024 * 512
    print(f"planning {responses:,} responses on 1,024 ranks: {seconds:.2f} s, {seconds / responses * 1e6:.1f} us each")
    print(f"packing: {packing() * 1e6:.0f} us a response")


if __name__ == "__main__":
    main()
