"""What travels between ranks: requests to the ranks that host their policy, answers back, samples to who trains them.

    one policy on all ranks             every rank samples for its own environments; nothing travels while they play
    policies on different ranks         in rounds: ask a neighbour that has the policy, answer, get the answers

Neighbours are as few ranks as together have every policy (`World.neighbours`): two policies on 512 ranks each make 512
pairs, and no pair waits for another before all have sampled. In a round all policies work at the same time if all are
asked. Where agents act in order, the environments start in as many cohorts as there are policies, one round apart (a
wavefront):

    round            1          2          3          4
    policy A    cohort 1   cohort 2   cohort 1   cohort 2
    policy B               cohort 1   cohort 2   cohort 1

After sampling, every rank learns the outline of every sample (20 bytes: enough to deal a batch into minibatches and to
balance them), and each sample's tokens go to the one rank that packs it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import cast

import numpy as np
import torch
from torch import Tensor

from distributed.world import World, is_apart
from grouping import GroupKey, Sample
from model.packing import balance, collector_paused, deal, with_signal
from rollout import Rollout
from sampling.requests import Completion, Generate, Request, Rounds

Answer = Callable[[str, list[Request], int], list[list[Completion]]]  # (policy, requests, n) on a rank that hosts it


class Exchange:
    """`generate` over ranks that together have every policy. They all call it in every round, asking or not.

    `world`: those ranks (`World.neighbours`), `homes` numbers them as it does.
    """

    def __init__(
        self, world: World, homes: Mapping[str, Sequence[int]], policy_of: Mapping[str, str], answer: Answer,
        wavefront: bool = True,
    ):  # fmt: skip
        self.world, self.homes, self.policy_of, self.answer = world, homes, policy_of, answer
        self.cohorts = len(homes) if wavefront and is_apart(homes, world.size) else 1

    def __call__(self, requests: list[Request], n: int) -> list[list[Completion]]:
        agents, world = list(self.policy_of), self.world
        asking: list[list[Row]] = [[] for _ in range(world.size)]
        for i, request in enumerate(requests):
            ranks = self.homes[self.policy_of[request.agent]]
            rank = world.rank if world.rank in ranks else ranks[(world.rank + i) % len(ranks)]
            asking[rank].append(([i, agents.index(request.agent), request.seed], request.prompt_ids, []))
        asked = [
            (rank, i, Request(agents[agent], list(prompt), seed))
            for rank, part in enumerate(world.send_to([pack_rows(rows) for rows in asking], "requests"))
            for (i, agent, seed), prompt, _ in unpack_rows(part)
        ]
        answers: list[list[Row]] = [[] for _ in range(world.size)]
        for name, ranks in self.homes.items():
            wanted = [item for item in asked if self.policy_of[item[2].agent] == name]
            if world.any(bool(wanted)) and world.rank in ranks:  # all of its ranks or none: they load it together
                replies = self.answer(name, [request for *_, request in wanted], n)  # perhaps none of them
                for (rank, i, _), reply in zip(wanted, replies, strict=True):
                    answers[rank] += [([i, c.finish_reason == "stop"], c.ids, c.logprobs) for c in reply]
        completions: list[list[Completion]] = [[] for _ in requests]  # stays empty where a prompt leaves no room
        for part in world.send_to([pack_rows(rows) for rows in answers], "answers"):
            for (i, stop), ids, logprobs in unpack_rows(part):
                completions[i].append(Completion(list(ids), list(logprobs), "stop" if stop else "length"))
        return completions

    def stream(self, n: int) -> ExchangeRounds:
        return ExchangeRounds(self, n, self.world, self.cohorts)


class ExchangeRounds(Rounds):
    """Rounds that go on until no neighbour has anything left to do."""

    def __init__(self, generate: Generate, n: int, world: World, cohorts: int):
        super().__init__(generate, n)
        self.world, self.cohorts = world, cohorts

    def collect(self) -> list[tuple[Request, list[Completion]]]:
        requests, self.pending = self.pending, []
        return list(zip(requests, self.generate(requests, self.n), strict=True))

    def busy(self, more: bool) -> bool:
        return self.world.any(more or bool(self.pending))


# ------------------------------------------------------------------------------------------------------------- samples


class Outline(Sample):
    """A sample whose tokens are on another rank. It takes the sample's place where a batch is dealt and weighed."""

    prompt = 0  # not a property as in a sample, whose number it gets

    def __init__(self, prompt: int, prompt_length: int, length: int, trained: bool):
        self.prompt, self.advantage = prompt, float(trained)
        self.prompt_ids, self.response_ids = range(prompt_length), range(length)  # type: ignore[assignment]  # lengths
        self.rank = -1  # of the policy's ranks, that packs it; nobody packs what has no advantage


OUTLINE = np.dtype([("prompt", "i8"), ("prompt_length", "i4"), ("length", "i4"), ("policy", "i2"), ("trained", "i2")])


@collector_paused()
def share_samples(
    world: World,
    homes: Mapping[str, Sequence[int]],
    policy_of: Mapping[str, str],
    samples: Sequence[Sample],
    minibatches: int,
    seed: Sequence[int],
) -> dict[str, list[Sample]]:
    """The batch of every policy in `homes` that lives on this rank, from the samples of all ranks.

    Batches are the same on all ranks of a policy, in order of the ranks that sampled, except that a rank has the tokens
    of those samples only that it packs in `update.update`; outlines stand for the others. Samples that are not valid
    are left out.
    """
    mine = {name: [s for s in samples if s.valid and policy_of[s.key.agent] == name] for name in homes}
    if world.size == 1:
        return mine
    names, first = list(homes), dict.fromkeys(homes, 0)
    batches: dict[str, list[Sample]] = {name: [] for name in names}
    for rank, part in enumerate(world.send_to([_outlines(mine)] * world.size, "outlines")):
        if rank == world.rank:
            first = {name: len(batch) for name, batch in batches.items()}  # places of this rank's own samples
        for prompt, prompt_length, length, policy, trained in part.numpy().view(OUTLINE).tolist():
            batches[names[policy]].append(Outline(prompt, prompt_length, length, trained))

    outgoing: list[list[tuple[int, int, Sample]]] = [[] for _ in range(world.size)]
    for policy, (name, ranks) in enumerate(homes.items()):
        for minibatch in deal(batches[name], minibatches, seed):
            for rank, groups in zip(ranks, balance(with_signal(minibatch), len(ranks)), strict=True):
                for outline in chain.from_iterable(groups):
                    cast(Outline, outline).rank = rank
        for place, sample in enumerate(mine[name], first[name]):
            rank = cast(Outline, batches[name][place]).rank
            if rank >= 0:
                outgoing[rank].append((policy, place, sample))
    for part in world.send_to([pack_rows(_rows(samples)) for samples in outgoing], "samples"):
        for policy, place, sample in _samples(unpack_rows(part)):
            batches[names[policy]][place] = sample
    return {name: batches[name] for name, ranks in homes.items() if world.rank in ranks}


def _outlines(batches: Mapping[str, Sequence[Sample]]) -> Tensor:
    rows = [
        (sample.prompt, len(sample.prompt_ids), len(sample.response_ids), policy, sample.advantage != 0)
        for policy, batch in enumerate(batches.values())
        for sample in batch
    ]
    return _bytes(np.array(rows, OUTLINE))


# A row of a message: a few numbers, token ids, floats.
Row = tuple[Sequence[int], Sequence[int], Sequence[float]]


def pack_rows(rows: Iterable[Row]) -> Tensor:
    """Any number of rows as bytes (n,) uint8: lengths and numbers in 8 bytes each, ids and floats in 4."""
    rows = list(rows)
    lengths = [len(rows), *(len(part) for row in rows for part in row)]
    numbers, ids, floats = ([value for row in rows for value in row[column]] for column in range(3))
    return _bytes(np.array(lengths + numbers, np.int64), np.array(ids, np.int32), np.array(floats, np.float32))


def unpack_rows(data: Tensor) -> list[Row]:
    """The rows that `pack_rows` has packed.

    >>> unpack_rows(pack_rows([([1], [2, 3], [0.5]), ([], [4], [])]))
    [([1], [2, 3], [0.5]), ([], [4], [])]
    """
    raw = data.numpy().tobytes()
    count = 3 * int(np.frombuffer(raw, np.int64, 1)[0])
    lengths = np.frombuffer(raw, np.int64, count, 8).reshape(-1, 3)  # (rows, 3)
    columns, start = [], 8 * (1 + count)
    for kind, sizes in zip((np.int64, np.int32, np.float32), lengths.T, strict=True):
        values = np.frombuffer(raw, kind, sizes.sum(), start)
        columns.append([part.tolist() for part in np.split(values, sizes.cumsum()[:-1])] if count else [])
        start += values.nbytes
    return list(zip(*columns, strict=True))


def _bytes(*arrays: np.ndarray) -> Tensor:
    return torch.from_numpy(np.concatenate([array.view(np.uint8) for array in arrays]))


def _rows(samples: Iterable[tuple[int, int, Sample]]) -> Iterator[Row]:
    """(policy, place in its batch, sample) as rows. A prompt that is that of the row before does not travel again."""
    before: list[int] = []
    for policy, place, sample in samples:
        new = [] if sample.prompt_ids == before else sample.prompt_ids
        before = sample.prompt_ids
        yield [policy, place, len(new)], [*new, *sample.response_ids], [sample.advantage, *sample.logprobs]


def _samples(rows: Iterable[Row]) -> Iterator[tuple[int, int, Sample]]:
    """The reverse of `_rows`: samples with all that an update needs."""
    prompt: list[int] = []
    for (policy, place, length), ids, (advantage, *logprobs) in rows:
        prompt = list(ids[:length]) or prompt
        yield policy, place, Sample(GroupKey(0, 0, ""), prompt, list(ids[length:]), logprobs, 0.0, advantage)


# ---------------------------------------------------------------------------------------------------------- evaluation


def gather_episodes(world: World, result: Rollout, whole: Collection[int] = ()) -> Rollout:
    """The episodes of all ranks in order of their environments, without prompts, texts and samples.

    `whole`: environments whose samples come along.
    """
    if world.size == 1:
        return result
    light = [
        replace(
            episode,
            actions=[replace(action, messages=[], text="") for action in episode.actions],
            samples=episode.samples if episode.env in whole else [],
        )
        for episode in result.episodes
    ]
    episodes = [episode for part in world.gather(light) for episode in part]
    return Rollout(sorted(episodes, key=lambda episode: episode.env))
