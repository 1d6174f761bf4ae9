"""Requests and the scheduler: many environments share one engine, and neither side should wait long.

A player (`rollout._play`) is a generator that plays one environment: it yields the requests of its next agents, is sent
their completions, scores them (in a thread of `pool`, if there is one) and asks again. `drive` plays many at once:

    player 1   player 2 ...       in rounds: one call of the engine for all pending requests, so everybody submits
      submit     submit           before anybody is answered
         '---stream---'           continuous (vLLM): requests join while others run, and a player goes on as soon as
             engine               its own answers are there

The order of the answers does not matter, because every request carries its own seed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol, TypeVar, cast

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)  # by identity: two requests may hold the same values
class Request:
    """One prompt to complete; candidate k of n uses seed + k."""

    agent: str
    prompt_ids: list[int]
    seed: int


@dataclass(frozen=True)
class Completion:
    """Sampled token ids, the stop token included, with their log-probs as they were sampled."""

    ids: list[int]
    logprobs: list[float]
    finish_reason: str  # "stop", or "length": cut off by the token limit


def request_seed(seed: Sequence[int], env: int, turn: int, agent: int, spacing: int) -> int:
    """A 62-bit seed from all of these, a multiple of `spacing`: seed + k never meets another request's."""
    digest = blake2b(repr([*map(int, seed), env, turn, agent]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (2**62 // spacing) * spacing


Replies = list[list[Completion]]  # n for each request, in order; [] where a prompt leaves no room to answer
Generate = Callable[[list[Request], int], Replies]  # it may also have a `stream`
Answers = list[tuple[Request, list[Completion]]]


class Stream(Protocol):
    """Requests in flight."""

    in_rounds: bool = False  # `collect` answers all that was submitted

    def submit(self, requests: list[Request]) -> None: ...

    def collect(self) -> Answers:
        """Make progress and return what is complete, in any order."""

    def __len__(self) -> int: ...


class Rounds(Stream):
    """A plain `generate` as a stream."""

    in_rounds = True

    def __init__(self, generate: Generate, n: int):
        self.generate, self.n = generate, n
        self.pending: list[Request] = []

    def submit(self, requests: list[Request]) -> None:
        self.pending += requests

    def collect(self) -> Answers:
        requests, self.pending = self.pending, []
        replies = self.generate(requests, self.n) if requests or hasattr(self.generate, "anywhere") else []
        return list(zip(requests, replies, strict=True))

    def __len__(self) -> int:
        return len(self.pending)


def answered(stream: Stream, requests: list[Request]) -> Replies:
    """The answers to these requests, in order, from a stream that has no others."""
    stream.submit(requests)
    replies: dict[Request, list[Completion]] = {}
    while len(stream):
        replies |= dict(stream.collect())
    return [replies[request] for request in requests]


@dataclass(frozen=True)
class Sampler:
    """A `generate` that also takes new requests while others run."""

    stream: Callable[[int], Stream]

    def __call__(self, requests: list[Request], n: int) -> Replies:
        return answered(self.stream(n), requests)


SLICE = 0.002  # seconds in which players act while an engine has its next step under way

Player = Generator[list[Request], Replies, Result]


@dataclass
class _Game:
    """A player and the requests it waits for."""

    player: Player
    answers: dict[Request, list[Completion] | None] = field(default_factory=dict)  # to what it asked; None: in flight
    result: Any = None

    def resume(self) -> _Game:
        """Let the player act on its answers, and score, until it asks again or ends."""
        try:
            answers = cast(Replies, list(self.answers.values()) or None)  # None starts a generator
            self.answers = dict.fromkeys(self.player.send(answers))
        except StopIteration as end:
            self.answers, self.result = {}, end.value
        return self


def drive(
    players: Sequence[Player[Result]], generate: Generate, n: int, pool: Executor | None = None, in_order: bool = True
) -> list[Result]:
    """Play all environments to their end, with n completions for each request.

    `in_order`: agents act one after the other. Then `generate` may have a number of `cohorts`, groups of environments
    that start one `collect` after another. Ranks that answer each other all go on, also without requests, until nobody
    has any: `generate.anywhere` tells what is true on one of them. ValueError on a wrong number of completions.
    """
    stream: Stream = generate.stream(n) if hasattr(generate, "stream") else Rounds(generate, n)
    games = [_Game(player) for player in players]
    asked: dict[Request, _Game] = {}  # who waits for a request in flight
    cohorts, anywhere = getattr(generate, "cohorts", 1) if in_order else 1, getattr(generate, "anywhere", bool)
    starts = [games[i::cohorts] for i in range(cohorts)]
    turn: deque[_Game] = deque()  # whose answers are complete
    scoring: list[Future[_Game]] = []
    while anywhere(bool(starts or turn or scoring or len(stream))):
        turn += starts.pop(0) if starts else ()
        ready = []  # whose next requests are known
        until = time.perf_counter() + SLICE
        while turn and (pool or stream.in_rounds or not asked or time.perf_counter() < until):
            if pool:
                scoring.append(pool.submit(turn.popleft().resume))
            else:
                ready.append(turn.popleft().resume())
        if scoring:
            patience = None if stream.in_rounds or not asked else 0
            done, _ = wait(scoring, patience, ALL_COMPLETED if stream.in_rounds else FIRST_COMPLETED)
            ready = [future.result() for future in scoring if future in done]
            scoring = [future for future in scoring if future not in done]
        for game in ready:
            asked |= dict.fromkeys(game.answers, game)
            stream.submit(list(game.answers))
        for request, candidates in stream.collect():
            if (found := len(candidates)) not in (0, n):
                raise ValueError(f"the engine returned {found} completions for agent {request.agent}, expected {n}")
            game = asked.pop(request)
            game.answers[request] = candidates
            if None not in game.answers.values():
                turn.append(game)
    return [game.result for game in games]
