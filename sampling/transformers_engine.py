"""Sampling with transformers: works everywhere, on a CPU too."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from model.policy import Policy
from sampling.engine import Weights, checked, engine_dtype, random_state_kept
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
            self.model = AutoModelForCausalLM.from_config(config, dtype=self.dtype, attn_implementation="sdpa").eval()
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

    @torch.no_grad()
    def __call__(
        self, requests: list[Request], n: int, temperature: float = 1.0, top_p: float = 1.0
    ) -> list[list[Completion]]:
        """n completions for each request; temperature 0 is greedy (its log-probs are those at temperature 1)."""
        completions: list[list[Completion]] = [[] for _ in requests]
        fits = [i for i, request in enumerate(requests) if len(request.prompt_ids) < self.context]
        fits.sort(key=lambda i: len(requests[i].prompt_ids))  # similar lengths together: less padding
        while fits:
            longest = len(requests[fits[-1]].prompt_ids) + self.max_tokens
            size = max(1, self.cache_tokens // (longest * n))
            chosen, fits = fits[-size:], fits[:-size]
            replies = self._sample([requests[i] for i in chosen], n, temperature, top_p)
            for i, answers in zip(chosen, replies, strict=True):
                completions[i] = answers
        return completions

    def _sample(self, requests: Sequence[Request], n: int, temperature: float, top_p: float) -> list[list[Completion]]:
        model, device = self.model, self.policy.device
        lengths = [len(request.prompt_ids) for request in requests]
        longest, rows = max(lengths), len(requests) * n
        room = [min(self.max_tokens, self.context - length) for length in lengths for _ in range(n)]
        uniform = np.stack(
            [np.random.default_rng(r.seed + k).random(self.max_tokens) for r in requests for k in range(n)]
        )
        noise = torch.from_numpy(uniform).to(device)  # (rows, max_tokens) one number a token: no other state to share

        ids = torch.tensor([[0] * (longest - len(r.prompt_ids)) + r.prompt_ids for r in requests], device=device)
        mask = torch.arange(longest, device=device) >= longest - torch.tensor(lengths, device=device)[:, None]
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        cache = DynamicCache(config=model.config)
        logits = self._forward(ids, mask, positions, cache)
        cache.batch_repeat_interleave(n)
        logits, mask = logits.repeat_interleave(n, 0), mask.repeat_interleave(n, 0)
        position = torch.tensor(lengths, device=device).repeat_interleave(n)

        stops = torch.tensor(sorted(self.policy.stop_ids), device=device)
        limit = torch.tensor(room, device=device)
        alive = torch.ones(rows, dtype=torch.bool, device=device)
        tokens, logps = [], []
        for t in range(max(room)):
            token, logp = choose(logits, noise[:, t], temperature, top_p)
            tokens.append(token)
            logps.append(logp)
            alive &= ~torch.isin(token, stops) & (t + 1 < limit)
            if not alive.any():
                break
            mask = torch.cat([mask, mask.new_ones(rows, 1)], 1)
            logits = self._forward(token[:, None], mask, (position + t)[:, None], cache)
        return self._collect(torch.stack(tokens, 1).tolist(), torch.stack(logps, 1).tolist(), room, n)

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        # by position: the fourth argument is `past_key_values` in older transformers and `cache` in newer ones
        out = self.model(ids, mask.long(), positions, cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1].float()  # (rows, V)

    def _collect(
        self, tokens: list[list[int]], logps: list[list[float]], room: list[int], n: int
    ) -> list[list[Completion]]:
        stops, flat = self.policy.stop_ids, []
        for row, values, limit in zip(tokens, logps, room, strict=True):
            end = next((i + 1 for i, token in enumerate(row) if token in stops), None)
            reason = "stop" if end is not None and end <= limit else "length"
            end = end if reason == "stop" else limit
            flat.append(Completion(row[:end], values[:end], reason))
        return [flat[i : i + n] for i in range(0, len(flat), n)]


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
        cdf = logps.double().exp().cumsum(-1)
        token = (cdf <= (noise * cdf[:, -1])[:, None]).sum(-1).clamp(max=logits.shape[1] - 1)
    return token, logps.gather(-1, token[:, None])[:, 0]
