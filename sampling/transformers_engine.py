"""Sampling with transformers.

A prompt goes through the model once, however many answers it has. They share its keys and values and, as long as they
are the same, their own. What has ended leaves the batch.

Shapes: B prompts of at most P tokens; L answers that have not ended; n branches, answers that have begun alike, at most
W of one prompt; t tokens of an answer so far; H heads, G of them for keys and values; D head size; V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface

from model.loading import checked
from model.policy import Policy
from sampling.engine import Engine, Weights, random_state_kept
from sampling.requests import Completion, Replies, Request

MOST = 32  # answers that share one copy of their prompt: attention pads to the most branches of a prompt
Prompt = tuple[int, ...]
Answer = tuple[int, int]  # number of its request, its own seed
Batch = list[tuple[Prompt, list[Answer]]]


class TransformersEngine(Engine):
    """Batched sampling with a key/value cache, from a copy of the policy's model.

    A response has at most `max_tokens` tokens, `context` with its prompt. Sequences run together while their keys and
    values fit `cache_tokens` tokens.
    """

    def __init__(self, policy: Policy, max_tokens: int, context: int | None = None, cache_tokens: int = 65536):
        super().__init__(policy, max_tokens, context)
        self.cache_tokens, config = cache_tokens, copy.deepcopy(policy.model.config)
        # built, not copied: the policy's own weights may be spread over several GPUs
        with random_state_kept(policy.device), policy.device:
            self.model = AutoModelForCausalLM.from_config(config, dtype=self.dtype, attn_implementation="cached").eval()
        self.model.requires_grad_(False)

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        own = dict(self.model.named_parameters())
        for name, weight in checked(weights, {name: value.shape for name, value in own.items()}):
            own[name].copy_(weight)

    @torch.inference_mode()
    def __call__(self, requests: list[Request], n: int, temperature: float = 1.0, top_p: float = 1.0) -> Replies:
        wanted: dict[Prompt, list[Answer]] = {}
        for i, request in enumerate(requests):
            if len(request.prompt_ids) < self.context:
                wanted.setdefault(tuple(request.prompt_ids), []).extend((i, request.seed + k) for k in range(n))
        replies: Replies = [[] for _ in requests]
        for batch in self._batches(wanted):
            asked = [i for _, answers in batch for i, _ in answers]
            for i, completion in zip(asked, self._sample(batch, temperature, top_p), strict=True):
                replies[i].append(completion)
        return replies

    def _batches(self, wanted: dict[Prompt, list[Answer]]) -> Iterator[Batch]:
        """Prompts of similar length with their answers."""
        batch: Batch = []
        used = 0
        for prompt in sorted(wanted, key=len):
            most = min(MOST, max(1, (self.cache_tokens - len(prompt)) // self.max_tokens))
            for first in range(0, len(wanted[prompt]), most):
                part = wanted[prompt][first : first + most]
                answers = (used := used + len(part)) * self.max_tokens
                if batch and (len(batch) + 1) * len(prompt) + answers > self.cache_tokens:
                    yield batch
                    batch, used = [], len(part)
                batch.append((prompt, part))
        if batch:
            yield batch

    def _sample(self, batch: Batch, temperature: float, top_p: float) -> list[Completion]:
        """One completion for every answer, in order."""
        device = self.policy.device
        logits, lengths, cache = self._read([prompt for prompt, _ in batch])  # (n, V), (prompts,)
        prompt = torch.arange(len(batch), device=device)  # (n,) of each branch: at first one for each
        seeds = [seed for _, part in batch for _, seed in part]
        live = torch.arange(len(seeds), device=device)  # (L,) answers that have not ended
        branch = prompt.repeat_interleave(torch.tensor([len(part) for _, part in batch], device=device))  # (L,)

        stops = torch.tensor(sorted(self.policy.stop_ids), device=device)
        room = (self.context - lengths).clamp(max=self.max_tokens)
        noise = torch.from_numpy(uniforms(seeds, self.max_tokens)).to(device)  # no state that answers would share
        tokens = torch.zeros(len(seeds), self.max_tokens, dtype=torch.long, device=device)
        logps = torch.zeros(len(seeds), self.max_tokens, device=device)
        ends = torch.zeros(len(seeds), dtype=torch.long, device=device)
        for t in range(int(room.max())):
            token, logp = choose(logits, branch, noise[live, t], temperature, top_p)
            tokens[live, t], logps[live, t], ends[live] = token, logp, t + 1
            goes_on = ~torch.isin(token, stops) & (t + 1 < room[prompt[branch]])
            live, token, branch = live[goes_on], token[goes_on], branch[goes_on]
            if not len(live):
                break
            beginnings, branch = torch.unique(branch * logits.shape[1] + token, return_inverse=True)
            parent = beginnings // logits.shape[1]  # (n,) in order, and so still in order of prompts
            token = beginnings % logits.shape[1]  # (n,)
            prompt = prompt[parent]
            cache.follow(parent)
            hidden = self._hidden(token[:, None], (lengths[prompt] + t)[:, None], cache)
            logits = self.model.lm_head(hidden[:, 0]).float()
        stopped = torch.isin(tokens.gather(1, ends[:, None] - 1), stops)[:, 0]
        rows = zip(*(x.tolist() for x in (tokens, logps, ends, stopped)), strict=True)
        return [Completion(ids[:end], logp[:end], "stop" if stop else "length") for ids, logp, end, stop in rows]

    def _read(self, prompts: list[Prompt]) -> tuple[Tensor, Tensor, Cache]:
        """Prompts through the model: logits of what comes next (prompts, V), lengths (prompts,), keys and values."""
        device = self.policy.device
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        longest = int(lengths.max())
        ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=device)
        positions = torch.arange(longest, device=device).expand_as(ids)
        cache = Cache(positions >= lengths[:, None])  # padding comes after a prompt, where its own tokens do not look
        last = self._hidden(ids, positions, cache)[torch.arange(len(prompts), device=device), lengths - 1]
        return self.model.lm_head(last).float(), lengths, cache

    def _hidden(self, ids: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        return self.model.model(input_ids=ids, position_ids=positions, use_cache=False, layout=cache).last_hidden_state


class Cache:
    """Keys and values of every layer: of each prompt once, and of each branch."""

    def __init__(self, padding: Tensor):
        self.padding = padding  # (B, P) True after the end of a prompt
        self.prompts: dict[int, tuple[Tensor, Tensor]] = {}  # layer -> keys and values (B, G, P, D)
        self.answers: dict[int, tuple[Tensor, Tensor]] = {}  # the same (n, G, t, D)
        self.slot = torch.arange(len(padding), device=padding.device)  # (n,) which of the B prompts, in order

    def follow(self, parent: Tensor) -> None:
        """Go on with new branches, from the one that each of them comes from (n,), in order."""
        self.answers = {layer: (k[parent], v[parent]) for layer, (k, v) in self.answers.items()}
        self.slot = self.slot[parent]
        used, slot = torch.unique_consecutive(self.slot, return_inverse=True)
        if 2 * len(used) <= len(self.padding):  # prompts whose answers have ended leave
            self.prompts = {layer: (k[used], v[used]) for layer, (k, v) in self.prompts.items()}
            self.padding, self.slot = self.padding[used], slot
        # branches of one prompt read its keys together: where each of them is in a table (B, W)
        counts = torch.bincount(self.slot, minlength=len(self.padding))
        numbers = torch.arange(len(parent), device=parent.device)
        self.column = numbers - (counts.cumsum(0) - counts)[self.slot]  # (n,)
        self.table = numbers.new_zeros(len(self.padding), int(counts.max()))  # where there is none: the first branch
        self.table[self.slot, self.column] = numbers

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """Attention of one layer: q (n, H, T, D), k and v (n, G, T, D) -> (n, T, H, D)."""
        if layer not in self.prompts:  # they come first, then one token for each branch
            self.prompts[layer] = k, v
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True).transpose(1, 2)
        (n, heads, _, size), groups = q.shape, k.shape[1]
        if layer in self.answers:
            k, v = (torch.cat(pair, 2) for pair in zip(self.answers[layer], (k, v), strict=True))
        self.answers[layer] = k, v
        q = q.reshape(n, groups, heads // groups, size) * (size**-0.5 if scale is None else scale)
        keys, values = self.prompts[layer]
        scores = self._with_prompts(q, keys.mT).masked_fill(self.padding[self.slot][:, None, None], -torch.inf)
        weights = torch.cat([scores, q @ k.mT], -1).softmax(-1, torch.float32).to(v.dtype)  # (n, G, H/G, P + t)
        length = keys.shape[2]
        out = self._with_prompts(weights[..., :length], values) + weights[..., length:] @ v
        return out.reshape(n, 1, heads, size)

    def _with_prompts(self, x: Tensor, y: Tensor) -> Tensor:
        """The product of each branch with its prompt's matrix: x (n, G, H/G, a), y (B, G, a, b) -> (n, G, H/G, b)."""
        slots, width = self.table.shape
        together = x[self.table].transpose(1, 2).reshape(slots, x.shape[1], width * x.shape[2], x.shape[3])
        return (together @ y).view(slots, x.shape[1], width, x.shape[2], -1)[self.slot, :, self.column]


def cached_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None = None,
    layout: Cache | None = None, **_: object,
) -> tuple[Tensor, None]:  # fmt: skip
    """Registered with transformers as "cached": `Cache` knows who looks at what."""
    assert layout is not None, "a model with attention 'cached' runs through TransformersEngine"
    return layout.attend(module.layer_idx, q, k, v, scaling), None  # type: ignore[arg-type]


AttentionInterface.register("cached", cached_attention)
AttentionMaskInterface.register("cached", lambda *args, **kwargs: None)


def choose(logits: Tensor, row: Tensor, noise: Tensor, temperature: float, top_p: float = 1.0) -> tuple[Tensor, Tensor]:
    """Sample by inverse CDF: logits (n, V), each answer's row (L,) and uniform number (L,) -> ids, log-probs (L,)."""
    logps = (logits / (temperature or 1.0)).log_softmax(-1)
    if top_p < 1:  # a token stays if those that are likelier have less than top_p together
        ordered, places = logps.sort(-1, descending=True)
        before = ordered.exp().cumsum(-1) - ordered.exp()
        out = (before >= top_p).gather(-1, places.argsort(-1))
        logps = logps.masked_fill(out, -torch.inf).log_softmax(-1)
    if temperature == 0:
        token = logits.argmax(-1)[row]
    else:
        cdf = logps.exp().cumsum(-1)
        last = torch.searchsorted(cdf, cdf[:, -1:].contiguous())[row]  # the last token with any probability
        cdf = cdf[row]
        target = (noise[:, None] * cdf[:, -1:]).to(cdf.dtype)
        token = torch.searchsorted(cdf, target, right=True).minimum(last)[:, 0]
    return token, logps[row, token]


def uniforms(seeds: Sequence[int], count: int) -> np.ndarray:
    """`count` numbers in [0, 1) for each seed below 2**64 (float32): a stream of SplitMix64 each (OOPSLA 2014)."""

    def mixed(z: np.ndarray) -> np.ndarray:
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    starts = mixed(np.array(seeds, dtype=np.uint64))[:, None]  # mixed, because neighbours would give similar streams
    bits = mixed(starts + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
