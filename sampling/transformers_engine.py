"""Sampling with transformers: works everywhere, on a CPU too.

A prompt goes through the model once, however many candidates and requests ask for it. Its responses share its keys and
values, and what has ended leaves the batch.

Shapes: B slots, each a prompt with room for W responses; P tokens of the longest prompt, t of a response so far;
H heads, G of them for keys and values, D head size; V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface

from model.policy import Policy
from sampling.engine import Weights, checked, engine_dtype, random_state_kept, uniforms
from sampling.requests import Completion, Request


class TransformersEngine:
    """Batched sampling with a key/value cache, from a copy of the policy's model (bfloat16 on a GPU, else float32).

    Before the first use `load` must give it weights. `max_tokens` limits a response; a prompt and its response must
    fit `context` tokens together, otherwise the response is cut shorter, and a prompt without room for a single token
    gets no completion. Sequences run together while their keys and values fit `cache_tokens` tokens.
    """

    def __init__(self, policy: Policy, max_tokens: int, context: int | None = None, cache_tokens: int = 65536):
        self.policy, self.max_tokens, self.cache_tokens = policy, max_tokens, cache_tokens
        config = copy.deepcopy(policy.model.config)
        self.context = context or config.max_position_embeddings
        self.dtype = engine_dtype(policy.device)
        # built from its configuration, not copied: the policy's own weights may be spread over several GPUs
        with random_state_kept(policy.device), policy.device:
            self.model = AutoModelForCausalLM.from_config(config, dtype=self.dtype, attn_implementation="cached").eval()
        self.model.requires_grad_(False)

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Replace the weights. Raises ValueError unless every weight of the model is given, by its own name."""
        own = dict(self.model.named_parameters())
        for name, weight in checked(weights, {name: value.shape for name, value in own.items()}):
            own[name].copy_(weight)

    def sleep(self) -> bool:
        """It keeps its memory: nothing happens (see `VllmEngine.sleep`)."""
        return False

    @torch.inference_mode()
    def __call__(
        self, requests: list[Request], n: int, temperature: float = 1.0, top_p: float = 1.0
    ) -> list[list[Completion]]:
        """n completions for each request; temperature 0 is greedy (its log-probs are those at temperature 1)."""
        seeds: dict[tuple[int, ...], list[int]] = {}  # of all answers to a prompt: every answer has its own
        for request in requests:
            if len(request.prompt_ids) < self.context:
                seeds.setdefault(tuple(request.prompt_ids), []).extend(request.seed + k for k in range(n))
        answers: dict[tuple[int, ...], list[Completion]] = {prompt: [] for prompt in seeds}
        for batch in self._batches(seeds):
            completions = iter(self._sample(batch, temperature, top_p))
            for prompt, part in batch:
                answers[prompt] += islice(completions, len(part))
        iterators = {prompt: iter(completions) for prompt, completions in answers.items()}
        return [list(islice(iterators.get(tuple(request.prompt_ids), iter(())), n)) for request in requests]

    def _batches(self, seeds: dict[tuple[int, ...], list[int]]) -> Iterator[list[tuple[tuple[int, ...], list[int]]]]:
        """Prompts of similar length with the seeds of their answers, at most `cache_tokens` tokens at a time."""
        batch: list[tuple[tuple[int, ...], list[int]]] = []
        used = 0
        for prompt in sorted(seeds, key=len):
            most = max(1, (self.cache_tokens - len(prompt)) // self.max_tokens)
            for first in range(0, len(seeds[prompt]), most):
                part = seeds[prompt][first : first + most]
                answers = (used := used + len(part)) * self.max_tokens
                if batch and (len(batch) + 1) * len(prompt) + answers > self.cache_tokens:
                    yield batch
                    batch, used = [], len(part)
                batch.append((prompt, part))
        if batch:
            yield batch

    def _sample(
        self, batch: Sequence[tuple[tuple[int, ...], list[int]]], temperature: float, top_p: float
    ) -> list[Completion]:
        """One answer for every seed, in order."""
        device = self.policy.device
        counts = np.array([len(seeds) for _, seeds in batch])
        total = int(counts.sum())
        owner, row = (torch.from_numpy(x).to(device) for x in slots_for(counts))  # (B,), (B, W)
        cache = Cache()
        logits, lengths = self._read([prompt for prompt, _ in batch], cache)  # (prompts, V), (prompts,)
        cache.keep(owner)
        logits, lengths = logits[owner].repeat_interleave(row.shape[1], 0), lengths[owner]  # (B * W, V), (B,)

        stops = torch.tensor(sorted(self.policy.stop_ids), device=device)
        room = (self.context - lengths).clamp(max=self.max_tokens)[:, None]  # (B, 1)
        every_seed = [seed for _, seeds in batch for seed in seeds] + [0]  # the last row is nobody's
        noise = torch.from_numpy(uniforms(every_seed, self.max_tokens)).to(device)  # no state that rows would share
        tokens = torch.zeros(total + 1, self.max_tokens, dtype=torch.long, device=device)
        logps = torch.zeros(total + 1, self.max_tokens, device=device)
        ends = torch.zeros(total + 1, dtype=torch.long, device=device)
        alive = row < total
        for t in range(int(room.max())):
            flat = row.flatten()
            token, logp = choose(logits, noise[flat, t], temperature, top_p)
            tokens[flat, t], logps[flat, t], ends[row[alive]] = token, logp, t + 1
            token = token.view_as(row)
            alive = alive & ~torch.isin(token, stops) & (t + 1 < room)
            live = int(alive.sum())
            if not live:
                break
            if 2 * live <= alive.numel():
                kept = alive.any(1).nonzero()[:, 0]  # (B',)
                places = alive[kept].byte().argsort(dim=1, descending=True, stable=True)[:, : int(alive.sum(1).max())]
                cache.keep(kept, places)
                lengths, room = lengths[kept], room[kept]
                row, token, alive = (x[kept].gather(1, places) for x in (row, token, alive))  # (B', W')
            logits = self._decode(token, lengths + t, cache)
        stopped = torch.isin(tokens.gather(1, (ends[:, None] - 1).clamp(min=0)), stops)[:, 0]
        columns = (x[:total].tolist() for x in (tokens, logps, ends, stopped))
        return [
            Completion(ids[:end], logp[:end], "stop" if stop else "length")
            for ids, logp, end, stop in zip(*columns, strict=True)
        ]

    def _read(self, prompts: list[tuple[int, ...]], cache: Cache) -> tuple[Tensor, Tensor]:
        """Prompts through the model: logits of what comes next (prompts, V), lengths (prompts,)."""
        device = self.policy.device
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        longest = int(lengths.max())
        ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=device)
        positions = torch.arange(longest, device=device).expand_as(ids)
        cache.padding = positions >= lengths[:, None]  # after a prompt, where its own tokens do not look
        hidden = self._hidden(ids, positions, cache)
        return self._logits(hidden[torch.arange(len(prompts), device=device), lengths - 1]), lengths

    def _decode(self, token: Tensor, position: Tensor, cache: Cache) -> Tensor:
        """One more token (B, W) at its position (B,): logits (B * W, V)."""
        positions = position[:, None].expand_as(token).reshape(-1, 1)
        return self._logits(self._hidden(token.reshape(-1, 1), positions, cache)[:, 0])

    def _hidden(self, ids: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        return self.model.model(input_ids=ids, position_ids=positions, use_cache=False, layout=cache).last_hidden_state

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.model.lm_head(hidden).float()


def slots_for(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lay out so many answers to each prompt in slots of one width: (B,) prompt of a slot, (B, W) row of each answer.

    A prompt with more answers than the width takes several slots. Rows are numbered prompt by prompt; places that are
    left over get the number of rows.
    """
    width = min(range(1, counts.max() + 1), key=lambda w: (-(-counts // w)).sum() * (w + 1))  # + 1: reading a prompt
    slots = -(-counts // width)
    owner = np.arange(len(counts)).repeat(slots)
    start = counts.cumsum() - counts
    within = np.arange(len(owner)) - (slots.cumsum() - slots)[owner]  # which slot of its prompt
    row = (start[owner] + within * width)[:, None] + np.arange(width)
    return owner, np.where(row < (start + counts)[owner, None], row, counts.sum())


@dataclass
class Cache:
    """Keys and values of every layer: those of prompts once, and those of the responses to them."""

    prompts: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # layer -> (B, G, P, D) keys, values
    answers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # layer -> (B, W, G, t, D)
    padding: Tensor = torch.empty(0)  # (B, P) True after the end of a prompt

    def keep(self, slots: Tensor, places: Tensor | None = None) -> None:
        """Go on with these slots (B',), and in each with these of its responses (B', W')."""
        self.prompts = {i: (k[slots], v[slots]) for i, (k, v) in self.prompts.items()}
        self.padding = self.padding[slots]
        if places is not None:
            where = slots[:, None], places
            self.answers = {i: (k[where], v[where]) for i, (k, v) in self.answers.items()}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """Attention of one layer: q (rows, H, T, D), k and v (rows, G, T, D) -> (rows, T, H, D).

        First the prompts, a row each, then one token for each response.
        """
        if layer not in self.prompts:
            self.prompts[layer] = k, v
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True).transpose(1, 2)
        (rows, heads, _, size), groups = q.shape, k.shape[1]
        slots, length = self.prompts[layer][0].shape[::2]
        width, share = rows // slots, heads // groups
        k, v = (x.view(slots, width, groups, 1, size) for x in (k, v))
        if layer in self.answers:
            k, v = (torch.cat(pair, 3) for pair in zip(self.answers[layer], (k, v), strict=True))
        self.answers[layer] = k, v
        q = q.reshape(slots, width, groups, share, size) * (size**-0.5 if scale is None else scale)
        together = q.transpose(1, 2).reshape(slots, groups, width * share, size)  # all that look at the same prompt
        keys, values = self.prompts[layer]
        scores = (together @ keys.mT).view(slots, groups, width, share, length).transpose(1, 2)
        scores = scores.masked_fill(self.padding[:, None, None, None], -torch.inf)
        weights = torch.cat([scores, q @ k.mT], -1).softmax(-1, torch.float32).to(v.dtype)
        prompt = weights[..., :length].transpose(1, 2).reshape(slots, groups, width * share, length) @ values
        out = prompt.view(slots, groups, width, share, size).transpose(1, 2) + weights[..., length:] @ v
        return out.reshape(rows, 1, heads, size)


def cached_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None = None,
    layout: Cache | None = None, **_: object,
) -> tuple[Tensor, None]:  # fmt: skip
    """Registered with transformers as "cached": `Cache` knows who looks at what."""
    assert layout is not None, "a model with attention 'cached' runs through TransformersEngine"
    return layout.attend(module.layer_idx, q, k, v, scaling), None  # type: ignore[arg-type]


AttentionInterface.register("cached", cached_attention)
AttentionMaskInterface.register("cached", lambda *args, **kwargs: None)


def choose(logits: Tensor, noise: Tensor, temperature: float, top_p: float = 1.0) -> tuple[Tensor, Tensor]:
    """Sample by inverse CDF: logits (B, V), one uniform number a row (B,) -> token ids (B,), their log-probs (B,)."""
    logps = (logits / (temperature or 1.0)).log_softmax(-1)
    if top_p < 1:  # a token stays if those that are likelier have less than top_p together
        ordered, places = logps.sort(-1, descending=True)
        before = ordered.exp().cumsum(-1) - ordered.exp()
        out = (before >= top_p).gather(-1, places.argsort(-1))
        logps = logps.masked_fill(out, -torch.inf).log_softmax(-1)
    if temperature == 0:
        token = logits.argmax(-1)
    else:
        cdf = logps.exp().cumsum(-1)
        total = cdf[:, -1:]
        last = torch.searchsorted(cdf, total.contiguous())  # the last token with any probability
        token = torch.searchsorted(cdf, (noise[:, None] * total).to(cdf.dtype), right=True).minimum(last)[:, 0]
    return token, logps.gather(-1, token[:, None])[:, 0]
