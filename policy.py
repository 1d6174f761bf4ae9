"""A policy: one language model, its tokenizer and its optimizer. Agents are mapped to policies by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from envs import Message
from grouping import GroupKey, Sample
from packing import pack_samples, packed, token_logprobs


@dataclass
class Policy:
    """The weights are float32 masters: an update of lr 1e-6 must not be lost to rounding."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    optimizer: torch.optim.Optimizer

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def stop_ids(self) -> set[int]:
        """Token ids that end a response: the tokenizer's and the model's own end tokens."""
        configured = self.model.generation_config.eos_token_id
        ids = configured if isinstance(configured, list) else [configured]
        return {i for i in [*ids, self.tokenizer.eos_token_id] if i is not None}

    def set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def encode(self, messages: list[Message]) -> list[int]:
        """Chat messages -> prompt ids, ready for the response. Thinking mode is off, as in the paper."""
        ids = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False, enable_thinking=False
        )
        return cast(list[int], ids)

    def decode(self, ids: list[int]) -> str:
        """Response ids -> text, without special tokens."""
        return cast(str, self.tokenizer.decode(ids, skip_special_tokens=True))

    def save(self, folder: Path) -> None:
        """Write what `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` read."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def make_optimizer(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """AdamW without weight decay: the clipped objective is the only thing that moves the weights.

    eps is 1e-5: the gradients of unused vocabulary are tiny and pure noise, and a smaller eps would blow them up to
    full steps, which takes a warm-started policy apart within ten steps.
    """
    return torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99), eps=1e-5, weight_decay=0.0)


def load_policy(name: str, source: str, lr: float, device: str = "cpu") -> Policy:
    """A policy from a hub id or a folder. Raises ValueError when the model cannot be trained by `update.py`.

    The model must have full attention in every layer and a plain output head, the tokenizer a chat template.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="sdpa")
    except (OSError, ValueError) as error:
        raise ValueError(f"--model {source}: no model that transformers can load ({error})") from None
    if not tokenizer.chat_template:
        raise ValueError(f"--model {source}: its tokenizer has no chat template; choose an instruction-tuned model")
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ValueError(f"--model {source}: layers of kind {sorted(kinds)}; only plain full attention is supported")
    check_logprobs(source, model)
    model.to(device)  # type: ignore[arg-type]
    return Policy(name, model, tokenizer, make_optimizer(model, lr))


@torch.no_grad()
def check_logprobs(source: str, model: PreTrainedModel) -> None:
    """Compare packed log-probs with the model's own on a few tokens: a head with a bias, a logit scale or a soft cap,
    or an attention of its own kind would otherwise be trained wrongly without a word. ValueError when they differ.
    """
    prompt, responses = [1, 2, 3, 4], [[5, 6, 7], [8, 9]]
    group = [Sample(GroupKey(0, 0, "check"), prompt, ids, [0.0] * len(ids), 0.0) for ids in responses]
    with packed(model):
        found = token_logprobs(model, pack_samples([group], model.device))[0]
    expected = []
    for ids in responses:
        logps = model(torch.tensor([prompt + ids], device=model.device)).logits[0].float().log_softmax(-1)
        expected.append(logps[len(prompt) - 1 : -1].gather(-1, torch.tensor(ids, device=model.device)[:, None])[:, 0])
    gap = float((torch.cat(expected) - found).abs().max())
    if gap > 1e-2:
        raise ValueError(f"--model {source}: its log-probs differ by {gap:.3f} nats from those of packing.py")
