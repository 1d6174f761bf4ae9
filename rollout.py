"""Sampling, the first half of Algorithm 1. `_play` carries it out for one environment. No torch, no engine.

    tree:   agent 1        agent 2        agent 1 ...      K candidates from one prompt, each scored on its own copy;
            o--+--o        o--+--o        o--+--o          the best one is committed: the next agent sees its result,
               |--o  ---->    |--o  ---->    |--o          all K are training samples of one group.
               +--o           +--o           +--o          K*N*T generations an environment, not K^(N*T).

    chains: K independent trajectories of one environment (plain GRPO): the same player with one candidate.

`_play` is a generator: it yields the requests it needs answered and is sent the completions. `sampling/requests.py`
plays many environments at once and keeps the engine busy.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from math import isfinite, sqrt
from numbers import Real
from statistics import fmean, pstdev
from typing import Any

from envs import Env, InfraError, Message, Reward, mixed_reward
from grouping import GroupKey, Sample
from sampling.requests import Completion, Generate, Player, Request, drive, request_seed

Decode = Callable[[str, list[int]], str]  # (agent, response ids) -> text
_Branch = tuple[Env, str, Reward, bool]  # an answer tried on its own copy of the state: copy, text, reward, if scored


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


@dataclass(frozen=True)
class Rules:
    """What is the same for all environments of a rollout: its keyword arguments.

    `mix` turns the two rewards of an action into what it is worth to training. `value` is the return of a trajectory of
    chains: what the team has achieved at the end, whoever acted last; 1 exactly when solved. `seed` (for instance run
    seed and step) and the number of an environment (`env_ids`, default: its position) fix the seeds of its requests.
    `pool` scores different environments in parallel; the result does not depend on it.
    """

    encode: Callable[[str, list[Message]], list[int]]  # (agent, messages) -> prompt ids
    decode: Decode
    num_candidates: int
    max_turns: int
    alpha: float = 1.0
    mix: Callable[[Reward, float], float] = mixed_reward  # (reward, alpha) -> what an action is worth to training
    value: Callable[[Episode, float], float] = lambda episode, alpha: episode.progress
    seed: Sequence[int] = (0,)
    env_ids: Sequence[int] | None = None
    pool: Executor | None = None

    def request_seed(self, env: int, turn: int, agent: int, trajectory: int | None) -> int:
        """Both samplings use the same K seeds: candidate k of a tree, and trajectory k of chains, has base + k."""
        return request_seed(self.seed, env, turn, agent, self.num_candidates) + (trajectory or 0)


def rollout_tree(envs: Sequence[Env], generate: Generate, **rules: Any) -> Rollout:
    """Tree sampling over environments that were just reset: K = `num_candidates` candidates at every agent and turn.

    `rules`: the fields of `Rules`. Raises ValueError when the engine returns the wrong number of lists or completions.
    """
    return Rollout(_play_all(envs, generate, Rules(**rules), [None]))


def rollout_chains(envs: Sequence[Env], generate: Generate, **rules: Any) -> Rollout:
    """Plain GRPO: `num_candidates` independent trajectories of every environment; arguments as in `rollout_tree`.

    Every sample of a trajectory carries its return. When one action cannot be scored the whole trajectory is invalid.
    """
    rule = Rules(**rules)
    episodes = _play_all(envs, generate, rule, range(rule.num_candidates))
    for episode in episodes:
        for sample in episode.samples:
            sample.reward, sample.valid = rule.value(episode, rule.alpha), episode.ended != "infra"
    return Rollout(episodes)


def _play_all(
    envs: Sequence[Env], generate: Generate, rules: Rules, trajectories: Sequence[int | None]
) -> list[Episode]:
    """Every environment once for each of `trajectories`; [None] is a tree."""
    # ranks play parts of a batch under its own numbers
    numbers = range(len(envs)) if rules.env_ids is None else rules.env_ids
    if not len(set(numbers)) == len(numbers) == len(envs):
        raise ValueError(f"env_ids: {len(envs)} distinct numbers expected, got {list(numbers)}")
    players = [_play(env.copy(), i, rules, t) for i, env in zip(numbers, envs, strict=True) for t in trajectories]
    candidates = rules.num_candidates if trajectories == [None] else 1
    return drive(players, generate, candidates, rules.pool, in_order=not any(env.simultaneous for env in envs))


def _play(env: Env, env_id: int, rules: Rules, trajectory: int | None) -> Player[Episode]:
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
            seeds = [rules.request_seed(env_id, turn, env.agents.index(agent), trajectory) for agent in agents]
            requests = [Request(a, rules.encode(a, p), seed) for a, p, seed in zip(agents, prompts, seeds, strict=True)]
            replies = yield requests  # sample K candidates for each prompt
            for messages, request, candidates in zip(prompts, requests, replies, strict=True):
                if not candidates:
                    episode.ended = "prompt"
                    return episode
                key = GroupKey(env_id, turn, request.agent)
                branches = _try(env, key, request, candidates, rules, trajectory)  # score each on its own copy
                episode.samples += [sample for sample, _ in branches]  # all K are trained
                scored = [pair for pair in branches if pair[0].valid]
                if not scored:
                    episode.ended = "infra"
                    return episode
                best, branch = max(scored, key=lambda pair: pair[0].reward)  # ties: the first
                best.committed = True
                env, text, reward, _ = branch  # commit: the next agent sees this state
                episode.solved, episode.progress = env.solved, env.progress
                episode.actions.append(Action(turn, request.agent, messages, text, reward))
                if env.done:
                    episode.ended = "done"
                    return episode
    return episode


def _try(
    env: Env, key: GroupKey, request: Request, candidates: Sequence[Completion], rules: Rules, trajectory: int | None
) -> list[tuple[Sample, _Branch]]:
    """Score all candidates, equal answers once. ValueError on log-probs that are not finite."""
    known: dict[tuple[int, ...], _Branch] = {}
    branches = []
    for candidate in candidates:
        if not all(map(isfinite, candidate.logprobs)):
            raise ValueError(f"{key}: the engine returned a log-prob that is not finite: {candidate.logprobs}")
        ids = tuple(candidate.ids)
        if ids not in known:  # late in training most answers are equal, and scoring may run programs
            known[ids] = _act(env.copy(), key, rules.decode(key.agent, candidate.ids))
        _, _, reward, valid = known[ids]
        sample = Sample(
            key=key,
            prompt_ids=request.prompt_ids,
            response_ids=candidate.ids,
            logprobs=candidate.logprobs,
            reward=rules.mix(reward, rules.alpha),
            valid=valid,
            trajectory=trajectory,
            team=reward.team,
            local=reward.local,
            truncated=candidate.finish_reason == "length",
            info=reward.info,
        )
        branches.append((sample, known[ids]))
    return branches


def _act(twin: Env, key: GroupKey, text: str) -> _Branch:
    """Act on a copy of the state. ValueError on a reward that is not from 0 to 1."""
    try:
        reward, valid = twin.step(key.agent, text), True
    except InfraError:
        reward, valid = Reward(0.0, 0.0), False
    except SystemExit as error:  # else a task could end the training, and nobody would know why
        raise RuntimeError(f"{key}: {type(twin).__name__}.step called sys.exit") from error
    parts = [reward.team, reward.local, *reward.info.values()] if isinstance(reward, Reward) else [None]
    if not all(isinstance(part, Real) and 0 <= part <= 1 for part in parts):
        raise ValueError(f"{key}: {type(twin).__name__}.step returned {reward!r}: all its numbers go from 0 to 1")
    return twin, text, reward, valid


@dataclass(frozen=True)
class Evaluation:
    """Mean success over n environments with its standard error; `formats`: each agent's share of readable answers."""

    success: float
    se: float
    n: int
    turns: float
    formats: dict[str, float]
    episodes: list[Episode]


def evaluate(
    envs: Sequence[Env],
    generate: Generate,
    *,
    samples: int = 1,
    gather: Callable[[Rollout], Rollout] = lambda result: result,
    **options: Any,
) -> Evaluation:
    """`samples` chains for every environment: no candidate is chosen by its reward. Greedy at temperature 0.

    `options` as in `rollout_chains`. `gather` turns this process's result into that of all processes. The standard
    error is over environments: the spread of their pass rates / sqrt(n). A chain that could not be scored is left out.
    Raises RuntimeError when none could be.
    """
    result = rollout_chains(envs, generate, num_candidates=samples, **options)
    episodes = [episode for episode in gather(result).episodes if episode.ended != "infra"]
    if not episodes:
        raise RuntimeError("evaluation: not a single environment could be scored")
    passed: dict[int, list[bool]] = {}  # by environment
    formats: dict[str, list[float]] = {}  # by agent
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
