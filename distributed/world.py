"""The processes of a job, and which of them each policy lives on. A single process is a world of one."""

from __future__ import annotations

import os
import pickle
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from math import gcd
from multiprocessing import connection
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")
Number = TypeVar("Number", int, float)

JOIN = 300.0  # seconds until all ranks must have started: on a cold file system imports take minutes
GRACE = 10.0  # seconds that a rank has to show an error of its own after another one has died


@dataclass(frozen=True)
class World:
    """All ranks of the job. All of them have to call each method; a single rank has nothing to ask or to send.

    What a step needs travels by `send_to`, `reduce`, `add_up`, `merge`, `most` and `any`. `traffic` counts the bytes of
    this rank, by what they were and their direction: "samples sent".
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    lifeline: Lifeline | None = None
    traffic: Counter[str] = field(default_factory=Counter, compare=False)
    group: dist.ProcessGroup | None = None  # None: all processes

    @property
    def main(self) -> bool:
        """Whether this rank prints and writes the logs."""
        return self.rank == 0

    def send_to(self, parts: Sequence[Tensor], what: str) -> list[Tensor]:
        """Send parts[r], any number of bytes (n,) uint8, to rank r; returns what each rank has sent to this one.

        `what` names it in `traffic`, which leaves out the sizes: 8 bytes a rank, sent first.
        """
        if self.size == 1:
            return list(parts)
        sizes = torch.tensor([len(part) for part in parts])  # (ranks,)
        incoming = torch.empty_like(sizes)
        dist.all_to_all_single(incoming, sizes, group=self.group)
        received = torch.empty(int(incoming.sum()), dtype=torch.uint8)
        dist.all_to_all_single(received, torch.cat(list(parts)), incoming.tolist(), sizes.tolist(), self.group)
        self.traffic[f"{what} sent"] += int(sizes.sum() - sizes[self.rank])
        self.traffic[f"{what} received"] += int(incoming.sum() - incoming[self.rank])
        return list(received.split(incoming.tolist()))

    def reduce(self, value: T, combine: Callable[[T, T], T]) -> T | None:
        """Everybody's values as one, combined in order of rank: on rank 0, None elsewhere. `combine` is associative.

        rank 0 <- rank 1    rank 2 <- rank 3    rank 4        rank 0 <- rank 2    rank 0 <- rank 4
        """
        apart = 1
        while apart < self.size:
            if self.rank % (2 * apart):
                self._send(value, self.rank - apart)
                return None
            if self.rank + apart < self.size:
                value = combine(value, self._receive(self.rank + apart))
            apart *= 2
        return value

    def add_up(self, sums: T) -> T:
        """The sum of everybody's numbers, dictionaries and lists of them; what a rank does not have is 0 there."""
        return self._from_main(self.reduce(sums, add))

    def merge(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """One mapping from everybody's; ranks that share a policy hold the same values for it."""
        return self._from_main(self.reduce(dict(values), lambda a, b: a | b))

    def most(self, number: Number) -> Number:
        """The largest of everybody's numbers."""
        if self.size == 1:
            return number
        largest = torch.tensor(float(number), dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, self.group)
        return type(number)(largest)

    def any(self, flag: bool) -> bool:
        """Whether it is true anywhere."""
        return bool(self.most(int(flag)))

    def gather(self, value: T) -> list[T]:
        """Everybody's value, by rank, on every rank. Not for what is needed in every step."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def agree(self, tensors: Iterable[Tensor], source: int = 0) -> None:
        """Overwrite tensors with those of rank `source`."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), source)

    def mine(self, items: Sequence[T]) -> Sequence[T]:
        """This rank's part of a sequence: contiguous, as even as possible, and the first item is always rank 0's."""
        start, end = (-(-len(items) * r // self.size) for r in (self.rank, self.rank + 1))
        return items[start:end]

    def barrier(self) -> None:
        """Wait for everybody."""
        self.most(0)

    def _send(self, value: Any, rank: int) -> None:
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        dist.send(torch.tensor([len(data)]), rank)
        dist.send(data, rank)
        self.traffic["sums sent"] += len(data)

    def _receive(self, rank: int) -> Any:
        size = torch.zeros(1, dtype=torch.long)
        dist.recv(size, rank)
        data = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(data, rank)
        self.traffic["sums received"] += len(data)
        return pickle.loads(data.numpy().tobytes())

    def _from_main(self, value: Any) -> Any:
        """Rank 0's value, passed on along the tree of `reduce`."""
        reach = 1
        while reach < self.size:
            reach *= 2
        while reach > 1:
            reach //= 2
            if self.rank % (2 * reach) == reach:
                value = self._receive(self.rank - reach)
            elif self.rank % (2 * reach) == 0 and self.rank + reach < self.size:
                self._send(value, self.rank + reach)
        return value

    def close(self) -> None:
        """Leave the job after its work is done: the process groups end, those of vLLM first."""
        self.barrier()
        if self.lifeline:
            self.lifeline.over = True
        if "vllm" in sys.modules:  # it made groups of its own, which end first
            from vllm.distributed import cleanup_dist_env_and_memory

            cleanup_dist_env_and_memory()
        if dist.is_initialized():
            dist.destroy_process_group()

    def meshes(self, homes: Mapping[str, Sequence[int]]) -> dict[str, DeviceMesh | None]:
        """The device mesh of every policy that lives on this rank; None in a single CPU process: nothing to shard."""
        if not dist.is_initialized():
            return dict.fromkeys(homes)
        made: dict[tuple[int, ...], DeviceMesh] = {}
        for ranks in dict.fromkeys(map(tuple, homes.values())):
            group = dist.new_group(list(ranks))  # every rank takes part, its members or not
            if self.rank in ranks:
                made[ranks] = DeviceMesh.from_group(group, torch.device(self.device).type, mesh=list(ranks))
        return {name: made[tuple(ranks)] for name, ranks in homes.items() if self.rank in ranks}

    def neighbours(self, homes: Mapping[str, Sequence[int]]) -> tuple[World, dict[str, list[int]]]:
        """As few ranks as together have every policy, this one among them, and where each policy is among these.

        Only `send_to`, `most` and `any` work there. Homes that overlap, or whose sizes have no common factor, make one
        neighbourhood of all ranks.
        """
        parts = gcd(*map(len, homes.values())) if is_apart(homes, self.size) else 1
        if parts == 1:
            return self, {name: list(ranks) for name, ranks in homes.items()}
        for part in range(parts):
            here = {
                name: ranks[part * len(ranks) // parts : (part + 1) * len(ranks) // parts]
                for name, ranks in homes.items()
            }
            members = sorted(rank for ranks in here.values() for rank in ranks)
            group = dist.new_group(members)  # every rank takes part, its members or not
            if self.rank in members:
                world = replace(self, rank=members.index(self.rank), size=len(members), group=group)
                places = {name: [members.index(rank) for rank in ranks] for name, ranks in here.items()}
        return world, places


def add(a: Any, b: Any) -> Any:
    """The sum of two numbers, of two lists of equal length, or of two dictionaries: key by key, missing ones are 0.

    >>> add({"solved": 1, "turns": [2, 0]}, {"turns": [1, 1], "samples": 4})
    {'solved': 1, 'turns': [3, 1], 'samples': 4}
    """
    if isinstance(a, dict):
        return a | {key: add(a[key], value) if key in a else value for key, value in b.items()}
    if isinstance(a, list):
        return [add(x, y) for x, y in zip(a, b, strict=True)]
    return a + b


class Lifeline:
    """Ends this process when another rank has died, whatever it is doing.

    torchrun does so for the ranks of one machine. On the others a rank that samples would notice when it is done, and
    one that waits in NCCL perhaps never. So every rank holds a connection to rank 0, on which nothing is ever sent: the
    system closes it when a process ends, however it ends, and when its machine has not answered for half a minute.
    Raises TimeoutError when not all ranks start within JOIN seconds.
    """

    def __init__(self, rank: int, size: int, store: dist.Store):
        self.rank, self.over, self.lines = rank, False, list[socket.socket]()
        address = os.environ["MASTER_ADDR"]  # where rank 0 runs
        if rank > 0:
            self.lines = [socket.create_connection((address, int(store.get("lifeline"))))]
        else:
            family = min(info[0] for info in socket.getaddrinfo(address, None))  # IPv4 where there is a choice
            with socket.create_server(("", 0), family=family, backlog=size) as server:
                server.settimeout(JOIN)
                store.set("lifeline", str(server.getsockname()[1]))
                try:
                    while len(self.lines) < size - 1:
                        self.lines.append(server.accept()[0])
                except TimeoutError:
                    found = len(self.lines) + 1
                    raise TimeoutError(f"only {found} of {size} ranks have started within {JOIN:.0f} s") from None
        for line in self.lines:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (("IDLE", 15), ("INTVL", 5), ("CNT", 3)):  # seconds, seconds, times
                if name := getattr(socket, f"TCP_KEEP{option}", None):  # not every system has all
                    line.setsockopt(socket.IPPROTO_TCP, name, value)
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        connection.wait(self.lines)  # one of them was closed
        for line in self.lines:
            line.close()  # rank 0 tells the others
        time.sleep(GRACE)
        if not self.over:
            sys.stderr.write(f"rank {self.rank}: another rank has ended, its own output says why\n")
            sys.stderr.flush()
            os._exit(1)  # the main thread may be in a call that never returns


def start(device: str) -> World:
    """Join the job that torchrun started, or make a world of one. `device` is cpu or cuda.

    A GPU always gets a process group, alone too: FSDP keeps its float32 weights and computes in bfloat16.
    """
    size, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    rank, store, lifeline = 0, dist.HashStore(), None
    if size > 1:
        store, rank, size = next(dist.rendezvous("env://", timeout=timedelta(seconds=JOIN)))
        lifeline = Lifeline(rank, size, store)  # before anything that may fail on one rank only
    if device == "cuda":
        if local >= torch.cuda.device_count():
            raise ValueError(f"--device cuda: local rank {local}, but {torch.cuda.device_count()} GPUs on this machine")
        torch.cuda.set_device(local)
        device = f"cuda:{local}"
    if size == 1 and not device.startswith("cuda"):
        return World(device=device)
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"  # objects travel through gloo
    patience = timedelta(hours=1)  # a rank may wait long while another one samples; the lifeline notices deaths
    store.set_timeout(patience)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
    return World(rank, size, device, lifeline)


def is_apart(homes: Mapping[str, Sequence[int]], size: int) -> bool:
    """Whether no rank has two policies."""
    return sum(map(len, homes.values())) == size


def place(names: Sequence[str], size: int, spec: Sequence[str] = ()) -> dict[str, list[int]]:
    """Where every policy lives: {policy: ranks}.

    Without `spec`: one policy on all ranks; several on blocks as even as possible, larger ones first; more policies
    than ranks all on every rank. `spec` is for instance ["coder=0-2", "tester=3"]. ValueError when it names a rank that
    does not exist, leaves a rank without a policy, or when two policies share only some of their ranks: on a shared
    rank they take turns on one engine, on the others not, and the ranks of a policy would load it at different times.

    >>> place(["a", "b"], 4)
    {'a': [0, 1], 'b': [2, 3]}
    >>> place(["reasoner", "tool_user", "judge"], 8)
    {'reasoner': [0, 1, 2], 'tool_user': [3, 4, 5], 'judge': [6, 7]}
    """
    if not spec:
        if len(names) > size:
            return {name: list(range(size)) for name in names}
        ends = [-(-size * i // len(names)) for i in range(len(names) + 1)]
        return {name: list(range(*block)) for name, block in zip(names, pairwise(ends), strict=True)}
    homes: dict[str, list[int]] = {}
    for part in spec:
        match = re.fullmatch(r"(\w+)=(\d+)(?:-(\d+))?", part)
        if not match or match[1] not in names or match[1] in homes:
            raise ValueError(f"--placement {part}: write POLICY=FIRST-LAST once for each of {', '.join(names)}")
        first, last = int(match[2]), int(match[3] or match[2])
        if not first <= last < size:
            raise ValueError(f"--placement {part}: there are ranks 0 to {size - 1}")
        homes[match[1]] = list(range(first, last + 1))
    idle = set(range(size)) - {rank for ranks in homes.values() for rank in ranks}
    if len(homes) < len(names) or idle:
        raise ValueError(
            f"--placement {' '.join(spec)}: "
            + (f"ranks {sorted(idle)} have no policy" if idle else f"missing {', '.join(set(names) - set(homes))}")
        )
    if sum(map(len, set(map(tuple, homes.values())))) > size:
        raise ValueError(f"--placement {' '.join(spec)}: two policies may share all of their ranks or none")
    return {name: homes[name] for name in names}
