"""Sampling, the first half of Algorithm 1. `_play` carries it out for one environment. No torch, no engine.

    tree:   agent 1        agent 2        agent 1 ...      K candidates from one prompt, each scored on its own copy;
            o--+--o        o--+--o        o--+--o          the best one is committed: the next agent sees its result,
               |--o  ---->    |--o  ---->    |--o          all K are training samples of one group.
               +--o           +--o           +--o          K*N*T generations an environment, not K^(N*T).

    chains: K independent trajectories of one environment (plain GRPO): the same player with one candidate.

`_play` is a generator: it yields the requests it needs answered and is sent the completions. `sampling/requests.py`
plays many environments at once and keeps the engine busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from math import isfinite, sqrt
from numbers import Real
from statistics import fmean, pstdev

from envs import Env, InfraError, Message, Reward, mixed_reward
from grouping import GroupKey, Sample
from sampling.requests import Completion, Generate, Player, Request, drive, request_seed

__all__ = ["Completion", "Request", "evaluate", "rollout_chains", "rollout_tree"]

Encode = Callable[[str, list[Message]], list[int]]  # (agent, messages) -> prompt ids
Decode = Callable[[str, list[int]], str]  # (agent, response ids) -> text
Mix = Callable[[Reward, float], float]  # (reward, alpha) -> what an action is worth to training


@dataclass
class Action:
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
    progress: float = 0.0  # what the team has achieved at the end, 1 exactly when solved
    ended: str = "turns"  # "turns" (ran out), "done", "prompt" (too long for the engine), "infra" (nothing was scored)
    turns: int = 0
    actions: list[Action] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


@dataclass
class Rollout:
    """The result of a rollout. `samples` are in order of environment, (trajectory,) turn, agent, candidate."""

    episodes: list[Episode]

    @property
    def samples(self) -> list[Sample]:
        return [sample for episode in self.episodes for sample in episode.samples]


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
    mix: Mix = mixed_reward,
) -> Rollout:
    """Tree sampling over environments that were just reset: K = `num_candidates` candidates at every agent and turn.

    `seed` (for instance run seed and step) and `env_ids` (default: the position) fix the seed of every request. `pool`
    scores different environments in parallel; the result does not depend on it. `mix` turns the two rewards into one
    number. Raises ValueError when the engine returns the wrong number of lists or completions.
    """
    rules = _Rules(encode, decode, max_turns, alpha, mix, seed, num_candidates)
    players = [_play(env, i, rules) for i, env in zip(_env_ids(envs, env_ids), envs, strict=True)]
    return Rollout(drive(players, generate, num_candidates, pool, _one_at_a_time(envs)))


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
) -> Rollout:
    """Plain GRPO: `num_candidates` independent trajectories of every environment; arguments as in `rollout_tree`.

    Every sample of a trajectory carries the return of the trajectory: what the team has achieved at its end, whoever
    acted last, 1 exactly when the task is solved (`alpha` does not apply, local rewards are not part of it). When one
    action cannot be scored the whole trajectory is invalid.
    """
    rules = _Rules(encode, decode, max_turns, alpha, mixed_reward, seed, num_candidates)
    players = [
        _play(env.copy(), i, rules, trajectory)
        for i, env in zip(_env_ids(envs, env_ids), envs, strict=True)
        for trajectory in range(num_candidates)
    ]
    episodes = drive(players, generate, 1, pool, _one_at_a_time(envs))
    for episode in episodes:
        for sample in episode.samples:
            sample.reward, sample.valid = episode.progress, episode.ended != "infra"
    return Rollout(episodes)


# ---------------------------------------------------------------------------------------------------- one environment


@dataclass(frozen=True)
class _Rules:
    """What is the same for all environments of a rollout."""

    encode: Encode
    decode: Decode
    max_turns: int
    alpha: float
    mix: Mix
    seed: Sequence[int]
    num_candidates: int

    def request_seed(self, env: int, turn: int, agent: int, trajectory: int | None) -> int:
        """Both samplings use the same K seeds: candidate k of a tree, and trajectory k of chains, has base + k."""
        return request_seed(self.seed, env, turn, agent, self.num_candidates) + (trajectory or 0)


@dataclass(frozen=True)
class _Outcome:
    """What an answer leads to, tried on its own copy of the state."""

    env: Env
    text: str
    reward: Reward
    valid: bool


def _play(env: Env, env_id: int, rules: _Rules, trajectory: int | None = None) -> Player[Episode]:
    """Play one environment: yields the requests of a stage, is sent the candidates for each, returns the episode.

    A stage is one agent when agents act in order, and all of them when they are simultaneous: then every prompt is
    built before anyone acts. Scoring and committing go agent by agent in either case: the candidates of the second of
    two simultaneous agents are scored on copies of the state after the first one's committed answer, which the second
    did not see. An answer that ends the environment leaves those of later agents unused.
    """
    episode = Episode(env_id, trajectory, env.solved, env.progress, "done" if env.done else "turns")
    for turn in range(0 if env.done else rules.max_turns):  # a level may start solved
        episode.turns = turn + 1
        for agents in env.stages:
            prompts = [env.observe(agent) for agent in agents]
            requests = [
                Request(
                    agent,
                    rules.encode(agent, messages),
                    rules.request_seed(env_id, turn, env.agents.index(agent), trajectory),
                )
                for agent, messages in zip(agents, prompts, strict=True)
            ]
            replies = yield requests  # sample: K candidates for each prompt
            for messages, request, candidates in zip(prompts, requests, replies, strict=True):
                if not candidates:
                    episode.ended = "prompt"
                    return episode
                key = GroupKey(env_id, turn, request.agent)
                branches = _try(env, key, request, candidates, rules, trajectory)
                episode.samples += [sample for sample, _ in branches]
                scored = [branch for branch in branches if branch[0].valid]
                if not scored:
                    episode.ended = "infra"
                    return episode
                best, outcome = max(scored, key=lambda branch: branch[0].reward)  # commit it; ties: the first
                best.committed = True
                env = outcome.env  # the play goes on from here
                episode.solved, episode.progress = env.solved, env.progress
                episode.actions.append(Action(turn, request.agent, messages, outcome.text, outcome.reward))
                if env.done:
                    episode.ended = "done"
                    return episode
    return episode


def _try(
    env: Env, key: GroupKey, request: Request, candidates: Sequence[Completion], rules: _Rules, trajectory: int | None
) -> list[tuple[Sample, _Outcome]]:
    """Score all candidates, equal answers once. ValueError on log-probs that are not finite."""
    known: dict[tuple[int, ...], _Outcome] = {}
    branches = []
    for candidate in candidates:
        if not all(map(isfinite, candidate.logprobs)):
            raise ValueError(f"{key}: the engine returned a log-prob that is not finite: {candidate.logprobs}")
        ids = tuple(candidate.ids)
        if ids not in known:
            known[ids] = _outcome(env.copy(), key, rules.decode(key.agent, candidate.ids))
        outcome = known[ids]
        sample = Sample(
            key=key,
            prompt_ids=request.prompt_ids,
            response_ids=candidate.ids,
            logprobs=candidate.logprobs,
            reward=rules.mix(outcome.reward, rules.alpha),
            valid=outcome.valid,
            trajectory=trajectory,
            team=outcome.reward.team,
            local=outcome.reward.local,
            truncated=candidate.finish_reason == "length",
            info=outcome.reward.info,
        )
        branches.append((sample, outcome))
    return branches


def _outcome(twin: Env, key: GroupKey, text: str) -> _Outcome:
    """Act on a copy of the state. ValueError on a reward that is not finite."""
    try:
        reward, valid = twin.step(key.agent, text), True
    except InfraError:
        reward, valid = Reward(0.0, 0.0), False
    parts = [reward.team, reward.local, *reward.info.values()] if isinstance(reward, Reward) else [None]
    if not all(isinstance(part, Real) and isfinite(part) for part in parts):
        raise ValueError(f"{key}: {type(twin).__name__}.step returned {reward!r}, which is not finite or no Reward")
    return _Outcome(twin, text, reward, valid)


def _one_at_a_time(envs: Sequence[Env]) -> bool:
    """A hint for the scheduler: whether only one agent of an environment has a request at a time."""
    return not any(env.simultaneous for env in envs)


def _env_ids(envs: Sequence[Env], env_ids: Sequence[int] | None) -> Sequence[int]:
    if env_ids is None:
        return range(len(envs))
    if len(set(env_ids)) != len(envs):
        raise ValueError(f"env_ids: {len(envs)} distinct numbers expected, got {list(env_ids)}")
    return env_ids


# --------------------------------------------------------------------------------------------------------- evaluation


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
    gather: Callable[[Rollout], Rollout] = lambda result: result,
) -> Evaluation:
    """`samples` chains for every environment: no candidate is chosen by its reward. Greedy at temperature 0.

    `gather` turns this process's result into that of all processes. The standard error is over environments: the
    spread of their pass rates / sqrt(n). A chain that could not be scored is left out. Raises RuntimeError when none
    could be.
    """
    result = rollout_chains(
        envs, generate, encode=encode, decode=decode, num_candidates=samples, max_turns=max_turns, seed=seed,
        env_ids=env_ids, pool=pool,
    )  # fmt: skip
    episodes = [episode for episode in gather(result).episodes if episode.ended != "infra"]
    if not episodes:
        raise RuntimeError("evaluation: not a single environment could be scored")
    passed: dict[int, list[bool]] = {}
    formats: dict[str, list[float]] = {}
    for episode in episodes:
        passed.setdefault(episode.env, []).append(episode.solved)
        for action in episode.actions:
            formats.setdefault(action.agent, []).append(action.reward.info.get("format", 1.0))
    rates = [fmean(solved) for solved in passed.values()]
    return Evaluation(
        success=fmean(rates),
        se=pstdev(rates) / sqrt(len(rates)),
        n=len(rates),
        turns=fmean(episode.turns for episode in episodes),
        formats={agent: fmean(values) for agent, values in formats.items()},
        episodes=episodes,
    )
