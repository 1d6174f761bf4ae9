"""Packing: from the batch of a policy to rows of tokens.

All K candidates of a group share their prompt, so it goes through the model once. A pack is one long row

    prompt A | prompt B | ... | response A1 | response A2 | ... | response B1 | ...

in which a response attends to its prompt and to itself, at the positions it would have alone. The result equals one
forward pass for each sequence (tests pin 1e-5), with fewer tokens: P + K*R instead of K*(P + R).

Only `pack_samples` looks at tokens; the rest needs lengths, advantages, and which prompts are equal.

Shapes: T tokens of a pack, N response tokens with a log-prob.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

import numpy as np
import torch
from torch import Tensor

from grouping import GroupKey, Sample
from model.attention import Layout

Group = list[Sample]  # answers to one prompt


@dataclass
class Pack:
    """One row, and all that the loss needs."""

    ids: Tensor  # (T,)
    positions: Tensor  # (T,) every response goes on from the length of its prompt
    layout: Layout
    source: Tensor  # (N,) index of the token whose hidden state predicts the response token
    target: Tensor  # (N,) response token ids
    engine: Tensor  # (N,) log-probs of the engine that sampled them
    advantage: Tensor  # (N,)
    weight: Tensor  # (N,) in the loss, 0 for a pack that only keeps an idle rank in step
    old: Tensor | None = None  # (N,) log-probs of the trainer before its first optimizer step

    def __len__(self) -> int:
        return len(self.ids)


def deal(samples: Sequence[Sample], minibatches: int, seed: Sequence[int] = (0,)) -> list[list[Group]]:
    """A batch in so many parts, at random, with the answers to one prompt together. No part is empty."""
    groups = by_prompt(samples)
    order = np.random.default_rng([*seed, 2]).permutation(len(groups))
    parts = np.array_split(order, min(minibatches, len(groups)) or 1)
    return [[groups[i] for i in part] for part in parts]


def pack_minibatch(
    groups: Sequence[Group], budget: int, rank: int = 0, ranks: int = 1, device: torch.device | str = "cpu"
) -> list[Pack]:
    """The packs of one minibatch that this rank computes: at most `budget` tokens each, as many on every rank."""
    parts = [part for group in with_signal(groups) for part in cut(group, budget)]
    shares = balance(parts, ranks)
    packs = max(len(first_fit(share, budget)) for share in shares)  # a sharded model takes all ranks for each pass
    mine = micro_batches(shares[rank], budget)
    idle = [[Sample(GroupKey(0, 0, ""), [0], [0], [0.0], reward=0.0)]]  # of weight 0
    return [pack_samples(part, device) for part in mine + [idle] * (packs - len(mine))]


def by_prompt(samples: Sequence[Sample]) -> list[Group]:
    """Samples that share a prompt."""
    groups: dict[int, Group] = {}
    for sample in samples:
        groups.setdefault(sample.prompt_hash, []).append(sample)
    return list(groups.values())


def with_signal(groups: Sequence[Group]) -> list[Group]:
    """The groups without their samples of advantage 0, which have no gradient."""
    return [kept for group in groups if (kept := [sample for sample in group if sample.advantage])]


def cut(group: Group, budget: int) -> list[Group]:
    """Parts of a group of at most `budget` tokens, each with the prompt; an answer that is longer is alone."""
    parts: list[Group] = []
    room = 0  # tokens that are left in the last one
    for sample in group:
        if not parts or len(sample.response_ids) > room:
            parts.append([])
            room = budget - len(sample.prompt_ids)
        parts[-1].append(sample)
        room -= len(sample.response_ids)
    return parts


def balance(groups: Sequence[Group], ranks: int) -> list[list[Group]]:
    """The groups of each rank: the costliest first, onto the rank with the least. The same on every rank."""
    shares: list[list[Group]] = [[] for _ in range(ranks)]
    loads = [(0.0, rank) for rank in range(ranks)]  # a heap: the least load first, of equals the lowest rank
    for group in sorted(groups, key=cost, reverse=True):
        load, rank = loads[0]
        shares[rank].append(group)
        heapq.heapreplace(loads, (load + cost(group), rank))
    return shares


def cost(group: Group) -> float:
    """Tokens that go through the model, plus attention, which grows with the keys each of them sees."""
    prompt, lengths = len(group[0].prompt_ids), [len(sample.response_ids) for sample in group]
    return tokens_of(group) + (prompt**2 + sum(n * (2 * prompt + n) for n in lengths)) / 4096


def micro_batches(groups: Sequence[Group], budget: int) -> list[list[Group]]:
    """As few packs as first fit needs, about equally full, at most `budget` tokens each unless one answer has more."""
    batches = first_fit(groups, budget)
    even = balance(groups, len(batches)) if len(batches) > 1 else batches
    return even if all(sum(map(tokens_of, batch)) <= budget for batch in even) else batches


def first_fit(groups: Sequence[Group], budget: int) -> list[list[Group]]:
    """The largest group first, each into the first pack where it fits."""
    batches: list[list[Group]] = []
    room: list[int] = []  # tokens that are left in each
    for group in sorted(groups, key=tokens_of, reverse=True):
        size = tokens_of(group)
        place = next((i for i, left in enumerate(room) if size <= left), len(room))
        if place == len(room):
            batches.append([])
            room.append(budget)
        batches[place].append(group)
        room[place] -= size
    return batches


def tokens_of(group: Group) -> int:
    return len(group[0].prompt_ids) + sum(len(sample.response_ids) for sample in group)


def pack_samples(groups: Sequence[Group], device: torch.device | str = "cpu") -> Pack:
    """Pack groups of samples that share a prompt. ValueError on an empty prompt."""
    # should two prompts ever share a `prompt_hash`, they part here
    groups = [list(same) for group in groups for _, same in groupby(group, key=lambda sample: sample.prompt_ids)]
    samples = list(chain.from_iterable(groups))
    if empty := [group[0].key for group in groups if not group[0].prompt_ids]:
        raise ValueError(f"{empty[0]}: empty prompt")
    inputs = [group[0].prompt_ids for group in groups] + [s.response_ids[:-1] for s in samples]
    owner = np.repeat(np.arange(len(groups)), [*map(len, groups)])  # the prompt of each response
    length = np.array([*map(len, inputs)])
    start = length.cumsum() - length
    prompts, responses = length[: len(groups)], length[len(groups) :]
    prefix, prefix_length = (np.append(np.zeros_like(prompts), x[owner]) for x in (start, prompts))
    filled = length > 0  # the last token is only a target, so a response of one has no inputs
    positions = np.arange(length.sum()) + np.repeat(prefix_length - start, length)
    first = (responses + 1).cumsum() - (responses + 1)  # (samples,) of its tokens among the N
    source = np.arange(responses.sum() + len(samples)) + np.repeat(start[len(groups) :] - 1 - first, responses + 1)
    source[first] = start[owner] + prompts[owner] - 1  # the prompt's last token predicts the first of the response

    def flat(lists: Iterable[list], dtype: type) -> Tensor:
        return torch.from_numpy(np.fromiter(chain.from_iterable(lists), dtype)).to(device)  # torch reads lists slowly

    def for_each_token(values: list[float]) -> Tensor:
        """(samples,) -> (N,)"""
        return torch.from_numpy(np.repeat(np.array(values, np.float32), responses + 1)).to(device)

    return Pack(
        ids=flat(inputs, np.int64),
        positions=torch.from_numpy(positions).to(device),
        layout=Layout(
            start[filled], length[filled], prefix[filled], prefix_length[filled],
            prompt_lengths=prompts,
            group_lengths=np.bincount(owner, responses, len(groups)).astype(np.int64),
            device=torch.device(device),
        ),
        source=torch.from_numpy(source).to(device),
        target=flat((s.response_ids for s in samples), np.int64),
        engine=flat((s.logprobs for s in samples), np.float32),
        advantage=for_each_token([s.advantage for s in samples]),
        weight=for_each_token([s.weight for s in samples]),
    )  # fmt: skip
