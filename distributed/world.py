"""The processes of a job, and which of them each policy lives on. Objects travel as pickles, inside one job only."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import reduce
from math import gcd
from multiprocessing import connection
from operator import or_
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")
RanksOf = Mapping[str, Sequence[int]]  # where each policy lives

JOIN = 300.0  # seconds until all ranks must have started: on a cold file system imports take minutes
GRACE = 10.0  # seconds that a rank has for an error of its own after another has died


@dataclass(frozen=True)
class World:
    """All ranks of the job. All call each method; a single process is a world of one."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    over: threading.Event = field(default_factory=threading.Event, compare=False)  # set: other ranks may leave now
    group: dist.ProcessGroup | None = None  # None: all processes

    @property
    def main(self) -> bool:
        return self.rank == 0  # it prints and writes the logs

    def send_to(self, parts: Sequence[T]) -> list[T]:
        """Send parts[r] to rank r; returns what each rank has sent to this one."""
        if self.size == 1:
            return list(parts)
        outgoing = [torch.frombuffer(bytearray(pickle.dumps(part)), dtype=torch.uint8) for part in parts]
        sizes = torch.tensor([len(data) for data in outgoing])  # (ranks,)
        incoming = torch.empty_like(sizes)
        dist.all_to_all_single(incoming, sizes, group=self.group)
        received = torch.empty(int(incoming.sum()), dtype=torch.uint8)
        dist.all_to_all_single(received, torch.cat(outgoing), incoming.tolist(), sizes.tolist(), self.group)
        return [pickle.loads(data.numpy()) for data in received.split(incoming.tolist())]

    def gather(self, value: T) -> list[T]:
        """Everybody's value, by rank, on every rank."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value, self.group)
        return values

    def add_up(self, sums: T) -> T:
        """The sum of everybody's values (`add`)."""
        return reduce(add, self.gather(sums))

    def merge(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """One mapping from everybody's; ranks that share a policy hold the same values for it."""
        return reduce(or_, self.gather(dict(values)))

    def barrier(self) -> None:
        self.gather(None)

    def agree(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of rank 0."""
        for tensor in tensors if self.size > 1 else ():
            dist.broadcast(tensor.detach(), 0)

    def mine(self, items: Sequence[T]) -> Sequence[T]:
        """This rank's part of a sequence: contiguous, as even as possible, and the first item is always rank 0's."""
        start, end = (-(-len(items) * r // self.size) for r in (self.rank, self.rank + 1))
        return items[start:end]

    def close(self) -> None:
        self.barrier()
        self.over.set()
        if vllm := sys.modules.get("vllm.distributed"):  # its groups end first
            vllm.cleanup_dist_env_and_memory()
        if dist.is_initialized():
            dist.destroy_process_group()

    def meshes(self, ranks_of: RanksOf) -> dict[str, DeviceMesh | None]:
        """The device mesh of every policy that lives on this rank; None in a single CPU process."""
        if not dist.is_initialized():
            return dict.fromkeys(ranks_of)
        group, _ = dist.new_subgroups_by_enumeration(sorted({tuple(ranks) for ranks in ranks_of.values()}))
        kind, here = torch.device(self.device).type, {name: r for name, r in ranks_of.items() if self.rank in r}
        return {name: DeviceMesh.from_group(group, kind, mesh=list(ranks)) for name, ranks in here.items()}

    def neighbours(self, ranks_of: RanksOf) -> tuple[World, RanksOf]:
        """As few ranks as together have every policy, this one among them, and where each policy is among these."""
        parts = gcd(*map(len, ranks_of.values()))
        if parts == 1 or sum(map(len, ranks_of.values())) > self.size:
            return self, ranks_of  # all ranks: numbers without a common factor, or policies that share their ranks
        circles = [sorted(rank for ranks in ranks_of.values() for rank in ranks[i::parts]) for i in range(parts)]
        group, _ = dist.new_subgroups_by_enumeration(circles)
        mine = next(circle for circle in circles if self.rank in circle)
        places = {name: [mine.index(rank) for rank in ranks if rank in mine] for name, ranks in ranks_of.items()}
        return replace(self, rank=mine.index(self.rank), size=len(mine), group=group), places


def add(a: Any, b: Any) -> Any:
    """The sum of two numbers, equally long lists, or dictionaries, where missing keys are 0."""
    if isinstance(a, dict):
        return a | {key: add(a[key], value) if key in a else value for key, value in b.items()}
    return [add(x, y) for x, y in zip(a, b, strict=True)] if isinstance(a, list) else a + b


def lifeline(rank: int, size: int, store: dist.Store) -> threading.Event:
    """End this process when another rank has died, unless the event that it returns is set.

    A rank that waits in NCCL may never notice. So each holds a connection to rank 0, which the system closes when a
    process ends, or its machine has not answered for half a minute. TimeoutError after JOIN seconds.
    """
    over, address = threading.Event(), os.environ["MASTER_ADDR"]  # of rank 0
    if rank > 0:
        lines = [socket.create_connection((address, int(store.get("lifeline"))))]
    else:
        family = min(info[0] for info in socket.getaddrinfo(address, None))  # IPv4 where there is a choice
        with socket.create_server(("", 0), family=family, backlog=size) as server:
            server.settimeout(JOIN)
            store.set("lifeline", str(server.getsockname()[1]))
            lines = [server.accept()[0] for _ in range(size - 1)]
    for line in lines:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)  # seconds
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

    def watch() -> None:
        connection.wait(lines)  # one of them was closed
        for line in lines:
            line.close()  # rank 0 tells the others
        if not over.wait(GRACE):
            os.write(2, f"rank {rank}: another rank has ended, its own output says why\n".encode())
            os._exit(1)  # the main thread may be in a call that never returns

    threading.Thread(target=watch, daemon=True).start()
    return over


def start(device: str) -> World:
    """Join the job that torchrun started, or be alone. `device`: cpu, cuda or auto (cuda where there is one)."""
    device = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    rank, size, store, over = 0, int(os.environ.get("WORLD_SIZE", 1)), dist.HashStore(), threading.Event()
    if size == 1 and device == "cpu":  # on a GPU even a single rank is a group: FSDP computes in bfloat16
        return World()
    if size > 1:
        store, rank, size = next(dist.rendezvous("env://", timeout=timedelta(seconds=JOIN)))
        over = lifeline(rank, size, store)  # before anything that may fail on one rank only
    if device == "cuda":
        local, there = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if local >= there:
            raise ValueError(f"--device cuda: local rank {local}, but {there} GPUs on this machine")
        torch.cuda.set_device(device := f"cuda:{local}")
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"  # objects travel through gloo
    patience = timedelta(hours=1)  # a rank may wait long while another one samples; the lifeline notices deaths
    store.set_timeout(patience)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
    return World(rank, size, device, over)


def place(names: Sequence[str], size: int, ranks: Sequence[int] = ()) -> dict[str, list[int]]:
    """Where every policy lives: {policy: ranks}, each on a block of its own; more policies than ranks live on all.

    `ranks` says how many each gets, by default as even as possible. ValueError unless each gets some.
    """
    if ranks and (len(ranks) != len(names) or min(ranks) < 1 or sum(ranks) != size):
        raise ValueError(f"--ranks {' '.join(map(str, ranks))}: a number for each of {', '.join(names)}, in all {size}")
    if len(names) > size:
        return {name: list(range(size)) for name in names}
    blocks = np.array_split(range(size), np.cumsum(ranks[:-1]) if ranks else len(names))
    return {name: block.tolist() for name, block in zip(names, blocks, strict=True)}
