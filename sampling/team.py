"""Agents, the policies that speak for them, and the engines that sample from these."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from distributed.exchange import Exchange
from distributed.world import RanksOf, World
from model.chat import Tokenizer, decode, encode
from model.fitting import ENOUGH, free_for_packs, tokens_that_fit
from model.policy import Policy, checkpoint_layers
from sampling.engine import Engine
from sampling.requests import Answers, Generate, Replies, Request, Sampler, Stream


class Team:
    """Who speaks for whom (`policy_of`: agent -> policy), and with which weights.

    `policies` are those that live on this rank, `engines` what samples from them (one may serve several), `tokenizers`
    those of all policies, `ranks_of` where each lives; `learners` and `training` are the same without frozen ones.
    """

    def __init__(
        self, policies: Mapping[str, Policy], policy_of: Mapping[str, str], engines: Mapping[str, Engine],
        tokenizers: Mapping[str, Tokenizer] | None = None, world: World | None = None,
        ranks_of: RanksOf | None = None, frozen: Sequence[str] = (),
    ):  # fmt: skip
        self.policies, self.policy_of, self.engines = dict(policies), dict(policy_of), dict(engines)
        self.tokenizers = tokenizers or {name: policy.tokenizer for name, policy in policies.items()}
        self.world = world or World()
        self.ranks_of = ranks_of or {name: [0] for name in policies}
        self.learners = {name: policy for name, policy in self.policies.items() if name not in frozen}
        self.training = {name: ranks for name, ranks in self.ranks_of.items() if name not in frozen}
        several = self.world.size > 1 and len(self.ranks_of) > 1
        self.neighbours = self.world.neighbours(self.ranks_of) if several else None  # that answer each other's requests
        self.seconds: defaultdict[str, float] = defaultdict(float)  # in "generate" and "load", until cleared
        self.sync()

    def encode(self, agent: str, messages: list[dict[str, str]]) -> list[int]:
        return encode(self.tokenizers[self.policy_of[agent]], messages)

    def decode(self, agent: str, ids: list[int]) -> str:
        return decode(self.tokenizers[self.policy_of[agent]], ids)

    def describe(self) -> str:
        """Policies, their sizes and the agents they speak for. All ranks call it."""
        sizes = self.world.merge({name: f"{policy.size / 1e6:.2f}M" for name, policy in self.policies.items()})
        agents = {name: [agent for agent, owner in self.policy_of.items() if owner == name] for name in self.ranks_of}
        return "; ".join(f"policy {name} ({sizes[name]} parameters) plays {', '.join(agents[name])}" for name in agents)

    def set_lr(self, lr: float) -> None:
        for policy in self.policies.values():
            policy.set_lr(lr)

    def sync(self) -> None:
        """The weights have changed: hand them to the engines, or FloatingPointError where they are not finite."""
        for policy in self.learners.values():
            policy.check_finite()
        self.version = object()  # of the weights, unlike that of any other team
        for name, engine in self.engines.items():
            if [*self.engines.values()].count(engine) == 1:  # one of several policies gets them when asked
                self.ready(name)

    def rest(self) -> None:
        """Engines that can sleep leave the GPU to the update."""
        for engine in self.engines.values():
            if engine.sleep():
                engine.holds = "", None

    def fit_packs(self, checkpointing: bool) -> None:
        """Make packs as large as GPUs have room for; where that is little, turn checkpointing on. All ranks call it."""
        self.rest()
        free, policies = free_for_packs(self.learners.values()), self.policies.values()
        for again in sorted({checkpointing, True}):
            fits = min(tokens_that_fit(free, policy.model.config, policy.adapted, again) for policy in policies)
            tokens = min(self.world.gather(fits))
            if tokens >= ENOUGH:
                break
        for policy in policies:
            policy.pack_tokens = tokens
            if again and not checkpointing:
                checkpoint_layers(policy.model)

    def ready(self, name: str) -> Engine:
        """A policy's engine with its weights in it. All ranks of the policy call it together."""
        engine = self.engines[name]
        if engine.holds != (name, self.version):
            started = time.perf_counter()
            engine.load(self.policies[name].weights(engine.dtype))
            engine.holds = name, self.version
            self.seconds["load"] += time.perf_counter() - started
        return engine

    def answer(self, name: str, requests: list[Request], n: int, **sampling: float) -> Replies:
        """n completions for each request to one policy of this rank."""
        engine, started = self.ready(name), time.perf_counter()
        replies = engine(requests, n, **sampling)
        self.seconds["generate"] += time.perf_counter() - started
        return replies

    def sampler(self, temperature: float, top_p: float = 1.0) -> Generate:
        """One `generate` for all agents: each request goes to the engine of its agent's policy. 0 is greedy."""
        if self.neighbours:
            answer = partial(self.answer, temperature=temperature, top_p=top_p)
            return Exchange(*self.neighbours, self.policy_of, answer)
        return Sampler(lambda n: TeamStream(self, n, temperature, top_p))


class TeamStream(Stream):
    """Requests in flight in a team's engines. A policy keeps a shared one until it has none left, to load rarely."""

    def __init__(self, team: Team, n: int, temperature: float, top_p: float):
        self.team, self.n, self.temperature, self.top_p = team, n, temperature, top_p
        self.queues: dict[str, list[Request]] = {name: [] for name in team.policies}
        self.open: dict[Engine, tuple[str, Stream]] = {}  # the policy whose turn it is, its stream
        self.in_rounds = all(engine.in_rounds for engine in team.engines.values())

    def submit(self, requests: list[Request]) -> None:
        for request in requests:
            self.queues[self.team.policy_of[request.agent]].append(request)

    def collect(self) -> Answers:
        done: Answers = []
        owners = [owner for owner, _ in self.open.values()]
        for name in sorted(self.queues, key=lambda name: name not in owners):  # whose turn it is comes first
            engine = self.team.engines[name]
            owner, stream = self.open.get(engine, ("", None))
            if stream is None or owner != name:
                if stream or not self.queues[name]:  # another policy's requests are in flight, or nobody asks
                    continue
                stream = self.team.ready(name).stream(self.n, self.temperature, self.top_p)
                self.open[engine] = name, stream
            started = time.perf_counter()
            stream.submit(self.queues[name])
            self.queues[name] = []
            done += stream.collect()
            self.team.seconds["generate"] += time.perf_counter() - started
        return done

    def __len__(self) -> int:
        return sum(map(len, self.queues.values())) + sum(len(stream) for _, stream in self.open.values())
