"""Sampling: Algorithm 1, lines 3 to 12, one environment at a time. No torch, no engine.

`_play` is the algorithm: a Python generator that plays one environment, yields the requests it needs answered and is
sent the completions. `_drive` plays many of them at once and keeps the engine busy: an environment goes on as soon as
its own answers are there.

    tree:   agent 1        agent 2        agent 1 ...      K candidates from one prompt, each scored on its own copy;
            o--+--o        o--+--o        o--+--o          the best one is committed: the next agent sees its result,
               |--o  ---->    |--o  ---->    |--o          all K are training samples of one group.
               +--o           +--o           +--o          K*N*T generations an environment, never K^T.

    chains: K independent trajectories of one environment (plain GRPO): the same player with one candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from math import isfinite, sqrt
from statistics import fmean, pstdev
from typing import Any, Protocol, cast

import numpy as np

from envs import Env, InfraError, Message, Reward, mixed_reward
from grouping import GroupKey, Sample


@dataclass(frozen=True)
class Request:
    """One prompt to complete. `seed` is this request's own: candidate k of n uses seed + k."""

    agent: str
    prompt_ids: list[int]
    seed: int


@dataclass(frozen=True)
class Completion:
    """Sampled token ids (the stop token included), their log-probs as they were sampled, and why it ended."""

    ids: list[int]
    logprobs: list[float]
    finish_reason: str  # "stop", or "length": cut off by the token limit


class Generate(Protocol):
    """An engine: n completions for each request, in order. A request whose prompt leaves no room to answer gets [].

    An engine that takes new requests while others run also has `stream(n) -> Stream`.
    """

    def __call__(self, requests: list[Request], n: int) -> list[list[Completion]]: ...


class Stream(Protocol):
    """Requests in flight. `collect` makes progress and returns what is complete, in any order."""

    in_rounds: bool  # True: `collect` answers all that was submitted, so everybody should have submitted before
    cohorts: int  # groups of environments, each starting one `collect` after another (only where agents act in order)

    def submit(self, requests: list[Request]) -> None: ...

    def collect(self) -> list[tuple[Request, list[Completion]]]: ...

    def __len__(self) -> int: ...

    def busy(self, more: bool) -> bool:
        """Whether to go on: requests are in flight here, or `more` is about to come, or another process needs us."""
        ...


class Rounds:
    """A plain `generate` as a stream: one call for whatever anybody waits for."""

    in_rounds, cohorts = True, 1

    def __init__(self, generate: Generate, n: int):
        self.generate, self.n = generate, n
        self.waiting: list[Request] = []

    def submit(self, requests: list[Request]) -> None:
        self.waiting += requests

    def collect(self) -> list[tuple[Request, list[Completion]]]:
        requests, self.waiting = self.waiting, []
        replies = self.generate(requests, self.n) if requests else []
        if len(replies) != len(requests):
            raise ValueError(f"the engine returned {len(replies)} lists for {len(requests)} requests")
        return list(zip(requests, replies, strict=True))

    def __len__(self) -> int:
        return len(self.waiting)

    def busy(self, more: bool) -> bool:
        return more or bool(self.waiting)


Encode = Callable[[str, list[Message]], list[int]]  # (agent, messages) -> prompt ids
Decode = Callable[[str, list[int]], str]  # (agent, response ids) -> text


@dataclass
class Step:
    """One committed action, for transcripts."""

    turn: int
    agent: str
    messages: list[Message]
    text: str
    reward: Reward


@dataclass
class Episode:
    """What happened in one environment (in chains: in one trajectory of it)."""

    env: int
    trajectory: int | None = None
    solved: bool = False
    ended: str = (
        "turns"  # "done", "turns" (ran out), "prompt" (too long for the engine), "infra" (nothing could be scored)
    )
    turns: int = 0
    steps: list[Step] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


@dataclass
class Rollout:
    """The result of a rollout. `samples` are in order of environment, turn, agent, candidate."""

    episodes: list[Episode]

    @property
    def samples(self) -> list[Sample]:
        return [sample for episode in self.episodes for sample in episode.samples]


def request_seed(seed: Sequence[int], env: int, turn: int, agent: int, spacing: int) -> int:
    """A 62-bit seed from all of these, a multiple of `spacing`: seed + k never meets another request's."""
    high, low = np.random.SeedSequence([*seed, env, turn, agent]).generate_state(2, np.uint64)
    return int(high ^ (low >> np.uint64(1))) % (2**62 // spacing) * spacing


def _seeds(seed: Sequence[int], spacing: int, k: int = 0) -> Callable[[int, int, int], int]:
    """(environment, turn, agent) -> seed of candidate k."""
    return lambda env, turn, agent: request_seed(seed, env, turn, agent, spacing) + k


def rollout_tree(
    envs: Sequence[Env],
    generate: Generate,
    *,
    encode: Encode,
    decode: Decode,
    num_candidates: int,
    max_turns: int,
    alpha: float = 1.0,
    seed: Sequence[int] = (0,),
    env_ids: Sequence[int] | None = None,
    pool: Executor | None = None,
    outcome_only: bool = False,
) -> Rollout:
    """Tree sampling over environments that were just reset: K = `num_candidates` candidates at every agent and turn.

    `seed` (for instance run seed and step) and `env_ids` (default: the position) fix the seed of every request. `pool`
    scores different environments in parallel; the result does not depend on it. `outcome_only` (an ablation) rewards an
    action with 1 when it solves the task and else with 0, whatever `alpha`. Raises ValueError when the engine returns
    the wrong number of lists or completions.
    """
    seed_of = _seeds(seed, num_candidates)
    players = [
        _play(env, i, encode, decode, max_turns, _solved if outcome_only else _mixed(alpha), seed_of)
        for i, env in zip(_env_ids(envs, env_ids), envs, strict=True)
    ]
    return Rollout(_drive(players, envs, generate, num_candidates, pool))


def rollout_chains(
    envs: Sequence[Env],
    generate: Generate,
    *,
    encode: Encode,
    decode: Decode,
    num_candidates: int,
    max_turns: int,
    alpha: float = 1.0,
    seed: Sequence[int] = (0,),
    env_ids: Sequence[int] | None = None,
    pool: Executor | None = None,
    returns: bool = True,
) -> Rollout:
    """Plain GRPO: `num_candidates` independent trajectories of every environment; arguments as in `rollout_tree`.

    Every sample of a trajectory carries the return of the trajectory: the team reward of its last action (`alpha`
    does not apply, local rewards are not part of it). When one action cannot be scored the whole trajectory is
    invalid. Without `returns` (an ablation) every action keeps its own reward, alpha * team + local.
    """
    players = [
        _play(env.copy(), i, encode, decode, max_turns, _mixed(alpha), _seeds(seed, num_candidates, k), trajectory=k)
        for i, env in zip(_env_ids(envs, env_ids), envs, strict=True)
        for k in range(num_candidates)
    ]
    episodes = _drive(players, envs, generate, 1, pool)
    for episode in episodes if returns else []:
        for sample in episode.samples:
            sample.reward, sample.valid = episode.samples[-1].team, episode.ended != "infra"
    return Rollout(episodes)


@dataclass(frozen=True)
class Evaluation:
    """Mean success over n environments with its standard error; `formats`: each agent's share of readable answers."""

    success: float
    se: float
    n: int
    turns: float
    formats: dict[str, float]
    episodes: list[Episode]

    def __str__(self) -> str:
        return f"success {self.success:.2f} (n={self.n}, se {self.se:.2f})"


def evaluate(
    envs: Sequence[Env],
    generate: Generate,
    *,
    encode: Encode,
    decode: Decode,
    max_turns: int,
    samples: int = 1,
    seed: Sequence[int] = (0,),
    env_ids: Sequence[int] | None = None,
    pool: Executor | None = None,
    share: Callable[[Rollout], Rollout] = lambda result: result,
) -> Evaluation:
    """`samples` chains for every environment, no tree: what the team does by itself. Greedy if the engine is.

    `share` turns this process's result into that of all processes.

    The standard error is over environments: the spread of their pass rates / sqrt(n). A chain that could not be
    scored is left out. Raises RuntimeError when none could be.
    """
    result = rollout_chains(
        envs, generate, encode=encode, decode=decode, num_candidates=samples, max_turns=max_turns, seed=seed,
        env_ids=env_ids, pool=pool,
    )  # fmt: skip
    episodes = [episode for episode in share(result).episodes if episode.ended != "infra"]
    if not episodes:
        raise RuntimeError("evaluation: not a single environment could be scored")
    passed: dict[int, list[bool]] = {}
    formats: dict[str, list[float]] = {}
    for episode in episodes:
        passed.setdefault(episode.env, []).append(episode.solved)
        for step in episode.steps:
            formats.setdefault(step.agent, []).append(step.reward.info.get("format", 1.0))
    rates = [fmean(solved) for solved in passed.values()]
    return Evaluation(
        success=fmean(rates),
        se=pstdev(rates) / sqrt(len(rates)),
        n=len(rates),
        turns=fmean(episode.turns for episode in episodes),
        formats={agent: fmean(values) for agent, values in formats.items()},
        episodes=episodes,
    )


# ---------------------------------------------------------------------------------------------------- one environment

Player = Generator[list[Request], list[list[Completion]], Episode]
Score = Callable[[Reward], float]  # what an action is worth to training


def _mixed(alpha: float) -> Score:
    return lambda reward: mixed_reward(reward, alpha)


def _solved(reward: Reward) -> float:
    return float(reward.team >= 1)  # the team reward is 1 exactly when the task is solved


def _play(
    env: Env,
    env_id: int,
    encode: Encode,
    decode: Decode,
    max_turns: int,
    score: Score,
    seed_of: Callable[[int, int, int], int],
    trajectory: int | None = None,
) -> Player:
    """Play one environment: yields the requests of a stage, is sent candidates for each, returns the episode.

    A stage is one agent when agents act in sequence, and all of them when they are simultaneous: then every prompt is
    built before anyone acts. Scoring and committing go agent by agent in either case.
    """
    episode = Episode(env_id, trajectory)
    stages = [list(env.agents)] if env.simultaneous else [[agent] for agent in env.agents]
    if env.done:  # nothing to play, for instance a level that starts solved
        episode.ended, episode.solved = "done", env.solved
        return episode
    for turn in range(max_turns):
        episode.turns = turn + 1
        for stage in stages:
            prompts = [env.observe(agent) for agent in stage]
            requests = [
                Request(agent, encode(agent, messages), seed_of(env_id, turn, env.agents.index(agent)))
                for agent, messages in zip(stage, prompts, strict=True)
            ]
            replies = yield requests
            for agent, messages, request, candidates in zip(stage, prompts, requests, replies, strict=True):
                if not candidates:
                    episode.ended = "prompt"
                    return episode
                best = None  # (sample, the copy it led to, its step)
                for candidate in candidates:
                    twin, text = env.copy(), decode(agent, candidate.ids)
                    try:
                        reward: Reward | None = twin.step(agent, text)
                    except InfraError:
                        reward = None
                    sample = _sample(GroupKey(env_id, turn, agent), request, candidate, reward, score, trajectory)
                    episode.samples.append(sample)
                    if reward is not None and (best is None or sample.reward > best[0].reward):  # ties: the first
                        best = (sample, twin, Step(turn, agent, messages, text, reward))
                if best is None:
                    episode.ended = "infra"
                    return episode
                sample, env, step = best
                sample.committed = True
                episode.steps.append(step)
                episode.solved = env.solved
                if env.done:
                    episode.ended = "done"
                    return episode
    return episode


def _sample(
    key: GroupKey, request: Request, candidate: Completion, reward: Reward | None, score: Score, trajectory: int | None
) -> Sample:
    sample = Sample(
        key=key,
        prompt_ids=request.prompt_ids,
        response_ids=candidate.ids,
        logprobs=candidate.logprobs,
        reward=0.0 if reward is None else score(reward),
        valid=reward is not None,
        trajectory=trajectory,
        truncated=candidate.finish_reason == "length",
    )
    if reward is not None:
        if not isfinite(sample.reward + reward.team + reward.local):
            raise ValueError(f"{key}: reward {reward} is not finite; raise InfraError when an answer cannot be scored")
        sample.team, sample.local, sample.info = reward.team, reward.local, reward.info
    return sample


# -------------------------------------------------------------------------------------------------- many environments


def _drive(
    players: Sequence[Player], envs: Sequence[Env], generate: Generate, n: int, pool: Executor | None
) -> list[Episode]:
    """Play all environments to their end. Whatever order answers come in, the result is the same.

    Scoring happens inside the players: with a pool in its threads, beside the engine's work.
    """
    stream: Stream = generate.stream(n) if hasattr(generate, "stream") else Rounds(generate, n)
    episodes: list[Episode | None] = [None] * len(players)
    places: dict[int, tuple[int, int]] = {}  # id of a request in flight -> (player, position in its stage)
    stages: list[list[list[Completion] | None]] = [[] for _ in players]  # the answers of a stage, None where missing

    def resume(index: int) -> tuple[int, list[Request]]:
        try:
            return index, players[index].send(cast(Any, stages[index] or None))  # None starts a player
        except StopIteration as end:
            episodes[index] = end.value
            return index, []

    all_at_once = any(env.simultaneous for env in envs)  # such agents all have work in every round
    cohorts = 1 if all_at_once else stream.cohorts
    starts = [range(cohort, len(players), cohorts) for cohort in range(cohorts)]
    running: list[Future] = []
    while stream.busy(bool(starts or running)):
        if starts:
            running += [_submit(pool, resume, index) for index in starts.pop(0)]
        if running:
            everyone = ALL_COMPLETED if stream.in_rounds else FIRST_COMPLETED
            done, _ = wait(running, None if stream.in_rounds or not places else 0, everyone)
            ready, running = [f for f in running if f in done], [f for f in running if f not in done]
            for index, requests in (future.result() for future in ready):
                stages[index] = [None] * len(requests)
                places |= {id(request): (index, place) for place, request in enumerate(requests)}
                stream.submit(requests)
        for request, candidates in stream.collect():
            if len(candidates) not in (0, n):
                raise ValueError(
                    f"the engine returned {len(candidates)} completions for agent {request.agent}, expected {n}"
                )
            index, place = places.pop(id(request))
            stages[index][place] = candidates
            if None not in stages[index]:
                running.append(_submit(pool, resume, index))
    return [episode for episode in episodes if episode is not None]


def _submit(pool: Executor | None, work: Callable[[int], Any], index: int) -> Future:
    """Run it in the pool, or here and now."""
    if pool is not None:
        return pool.submit(work, index)
    future: Future = Future()
    future.set_result(work(index))
    return future


def _env_ids(envs: Sequence[Env], env_ids: Sequence[int] | None) -> Sequence[int]:
    if env_ids is None:
        return range(len(envs))
    if len(set(env_ids)) != len(envs):
        raise ValueError(f"env_ids: {len(envs)} distinct numbers expected, got {list(env_ids)}")
    return env_ids
