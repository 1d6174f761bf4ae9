"""What travels between ranks: requests to the ranks that host their policy, answers back, and samples to all ranks.

    one policy on all ranks             every rank samples for its own environments; nothing travels while they play
    policies on different ranks         a round: gather all requests, each policy's ranks answer theirs, gather answers

In a round all policies work at the same time if all are asked. Where agents act in order, the environments start in as
many cohorts as there are policies, one round apart (a wavefront):

    round            1          2          3          4
    policy A    cohort 1   cohort 2   cohort 1   cohort 2
    policy B               cohort 1   cohort 2   cohort 1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from distributed.world import World
from rollout import Episode, Rollout
from sampling.requests import Completion, Generate, Request, Rounds

Answer = Callable[[str, list[Request], int], list[list[Completion]]]  # (policy, requests, n) on a rank that hosts it


class Exchange:
    """`generate` over all ranks. Every rank calls it in every round, with or without requests of its own."""

    def __init__(
        self, world: World, homes: Mapping[str, Sequence[int]], policy_of: Mapping[str, str], answer: Answer,
        wavefront: bool = True,
    ):  # fmt: skip
        self.world, self.homes, self.policy_of, self.answer = world, homes, policy_of, answer
        apart = sum(map(len, homes.values())) == world.size  # no rank hosts two policies
        self.cohorts = len(homes) if wavefront and apart else 1

    def __call__(self, requests: list[Request], n: int) -> list[list[Completion]]:
        asked = [
            (rank, i, request)
            for rank, theirs in enumerate(self.world.gather(requests))
            for i, request in enumerate(theirs)
        ]
        answers: dict[tuple[int, int], list[Completion]] = {}
        for name, ranks in self.homes.items():
            wanted = [item for item in asked if self.policy_of[item[2].agent] == name]
            if wanted and self.world.rank in ranks:  # on all of the policy's ranks or on none: they load it together
                mine = wanted[ranks.index(self.world.rank) :: len(ranks)]
                replies = self.answer(name, [request for *_, request in mine], n)  # perhaps none of them
                answers |= {(rank, i): reply for (rank, i, _), reply in zip(mine, replies, strict=True)}
        everything = {asker: reply for part in self.world.gather(answers) for asker, reply in part.items()}
        return [everything[self.world.rank, i] for i in range(len(requests))]

    def stream(self, n: int) -> ExchangeRounds:
        return ExchangeRounds(self, n, self.world, self.cohorts)


class ExchangeRounds(Rounds):
    """Rounds that go on until no rank has anything left to do."""

    def __init__(self, generate: Generate, n: int, world: World, cohorts: int):
        super().__init__(generate, n)
        self.world, self.cohorts = world, cohorts

    def collect(self) -> list[tuple[Request, list[Completion]]]:
        requests, self.pending = self.pending, []
        return list(zip(requests, self.generate(requests, self.n), strict=True))

    def busy(self, more: bool) -> bool:
        return self.world.any(more or bool(self.pending))


def gather_episodes(world: World, result: Rollout) -> Rollout:
    """The episodes of all ranks in order of their environments. Texts of other ranks' actions stay where they are."""
    if world.size == 1:
        return result
    light = [
        replace(episode, actions=[replace(action, messages=[], text="") for action in episode.actions])
        for episode in result.episodes
    ]
    episodes: list[Episode] = []
    for rank, theirs in enumerate(world.gather(light)):
        episodes += result.episodes if rank == world.rank else theirs
    return Rollout(sorted(episodes, key=lambda episode: episode.env))


def add_up(world: World, counts: Mapping[str, int]) -> dict[str, int]:
    """Counts of all ranks; one that a rank does not have is 0 there."""
    total: Counter[str] = Counter()
    for part in world.gather(dict(counts)):
        total.update(part)
    return dict(total)
