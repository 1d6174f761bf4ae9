"""What travels between ranks: requests to the ranks that host their policy, answers back, samples to who trains them.

With one policy on all ranks nothing travels while they play. Otherwise ranks ask a neighbour in rounds: two policies on
four ranks each make four pairs. Where agents act in order, environments start in as many cohorts as there are policies,
one round apart, so that all policies work at the same time:

    round            1          2          3          4
    policy A    cohort 1   cohort 2   cohort 1   cohort 2
    policy B               cohort 1   cohort 2   cohort 1

After sampling, every rank learns the outline of every sample (20 bytes, enough to deal the batch), and each sample goes
to the rank that packs it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from distributed.world import RanksOf, World
from grouping import Sample
from model.packing import balance, deal, with_signal
from rollout import Rollout
from sampling.requests import Completion, Replies, Request

Answer = Callable[[str, list[Request], int], Replies]  # (policy, requests, n) on a rank that hosts it


class Exchange:
    """`generate` over ranks that together have every policy (`World.neighbours`): all call it in every round."""

    def __init__(self, world: World, ranks_of: RanksOf, policy_of: Mapping[str, str], answer: Answer):
        self.world, self.ranks_of, self.policy_of, self.answer = world, ranks_of, policy_of, answer
        apart = sum(map(len, ranks_of.values())) == world.size  # no rank has two policies
        self.cohorts, self.anywhere = len(ranks_of) if apart else 1, lambda flag: any(world.gather(flag))

    def __call__(self, requests: list[Request], n: int) -> Replies:
        world = self.world
        asking: list[list[tuple[int, Request]]] = [[] for _ in range(world.size)]
        for i, request in enumerate(requests):
            ranks = self.ranks_of[self.policy_of[request.agent]]
            rank = world.rank if world.rank in ranks else ranks[(world.rank + i) % len(ranks)]
            asking[rank].append((i, request))
        asked = [(rank, i, request) for rank, part in enumerate(world.send_to(asking)) for i, request in part]
        answers: list[list[tuple[int, list[Completion]]]] = [[] for _ in range(world.size)]
        here = {name: [item for item in asked if self.policy_of[item[2].agent] == name] for name in self.ranks_of}
        anywhere = world.add_up({name: len(wanted) for name, wanted in here.items()})  # from here on no rank waits
        for name, wanted in here.items():
            if anywhere[name] and world.rank in self.ranks_of[name]:  # all of its ranks or none: they load it together
                replies = self.answer(name, [request for *_, request in wanted], n)  # perhaps none of them
                for (rank, i, _), reply in zip(wanted, replies, strict=True):
                    answers[rank].append((i, reply))
        return [reply for _, reply in sorted(chain.from_iterable(world.send_to(answers)), key=lambda pair: pair[0])]


class Outline(Sample):
    """Stands for a sample of another rank where a batch is dealt and balanced."""

    prompt_hash = 0  # not a property as in a sample

    def __init__(self, prompt_hash: int, prompt_length: int, length: int, signal: int):
        self.prompt_hash, self.advantage = prompt_hash, float(signal)
        self.prompt_ids, self.response_ids = range(prompt_length), range(length)  # type: ignore[assignment]  # lengths
        self.rank = -1  # the one that packs it, if it has an advantage


OUTLINE = np.dtype([("prompt_hash", "i8"), ("prompt_length", "i4"), ("length", "i4"), ("signal", "i4")])


def share_samples(
    world: World, ranks_of: RanksOf, policy_of: Mapping[str, str], samples: Sequence[Sample], minibatches: int,
    seed: Sequence[int],
) -> dict[str, list[Sample]]:  # fmt: skip
    """The batch of every policy in `ranks_of` that lives on this rank, from the valid samples of all ranks.

    It is the same on all ranks of a policy, but for outlines of the samples that other ranks pack.
    """
    mine = {name: [s for s in samples if s.valid and policy_of[s.key.agent] == name] for name in ranks_of}
    if world.size == 1:
        return mine
    rows = {
        name: [(s.prompt_hash, len(s.prompt_ids), len(s.response_ids), s.advantage != 0) for s in batch]
        for name, batch in mine.items()
    }
    parts = world.gather({name: np.array(rows[name], OUTLINE) for name in rows})
    batches: dict[str, list[Any]] = {  # outlines at first
        name: [Outline(*row) for part in parts for row in part[name].tolist()] for name in ranks_of
    }
    outgoing: list[list[tuple[str, int, Sample]]] = [[] for _ in range(world.size)]
    for name, ranks in ranks_of.items():
        for minibatch in deal(batches[name], minibatches, seed):
            for rank, groups in zip(ranks, balance(with_signal(minibatch), len(ranks)), strict=True):
                for sample in chain.from_iterable(groups):
                    sample.rank = rank  # type: ignore[attr-defined]  # an outline
        first = sum(len(part[name]) for part in parts[: world.rank])  # where this rank's own samples begin
        for place, sample in enumerate(mine[name], first):
            if (rank := batches[name][place].rank) >= 0:
                outgoing[rank].append((name, place, sample))
    for name, place, sample in chain.from_iterable(world.send_to(outgoing)):
        batches[name][place] = sample
    return {name: batches[name] for name, ranks in ranks_of.items() if world.rank in ranks}


def gather_episodes(world: World, result: Rollout, whole: Collection[int] = ()) -> Rollout:
    """All ranks' episodes by environment; of those not in `whole` prompts, texts and samples stay behind."""
    for episode in result.episodes if world.size > 1 else ():
        if episode.env not in whole:
            episode.samples = []
            for action in episode.actions:
                action.messages, action.text = [], ""
    return Rollout(sorted(chain.from_iterable(world.gather(result.episodes)), key=lambda episode: episode.env))
