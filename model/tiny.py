"""A policy from scratch: a Qwen3 model of 0.16M parameters and a tokenizer built in code.

It is warm-started by imitating noise, so it knows how an answer is written, but not which one is good: what an
instruction-tuned model brings to AT-GRPO, minus the English. It sees the user message only: the rules have to be
learned from reward.
"""

import re
import string
from collections.abc import Callable, Iterator

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from envs import Env
from grouping import GroupKey, Sample
from model.attention import packed
from model.chat import WITHOUT_SYSTEM, encode
from model.logprobs import token_logprobs
from model.packing import micro_batches, pack_samples
from model.policy import Policy

GOOD = 0.1  # share of good moves in the imitated noise
WARM_LEVELS = 12  # in one step of the warm start

SPECIAL = ["<|pad|>", "<|unknown|>", "<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = (
    WITHOUT_SYSTEM + "{% for m in messages if m.role == 'user' %}<|user|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WORDS = ["tool_user", "planner", "proposal", "walls", " at", " free", " goal", " none"]
WORDS += [" up", " down", " left", " right"]
WORDS += [" U", " D", " L", " R", " -", *(f" {digit}" for digit in range(10)), " [", "#### [", ", ", "]"]
REACH = 7  # cells up to this offset are one token, others are spelled


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Words and cells of the compact board view are one token each; everything else is spelled by characters."""
    offsets = range(-REACH, REACH + 1)
    cells = [f" ({r:+d},{c:+d})" for r in offsets for c in offsets]
    cells += [f" ({r},{c})" for r in range(REACH + 1) for c in range(REACH + 1)]
    characters = [c for c in string.printable if c not in "\r\x0b\x0c"]
    tokens = SPECIAL + characters + WORDS + cells
    vocabulary = {token: i for i, token in enumerate(tokens)}
    vocabulary[tokens[-1]] = tokens.index("]")  # free, as "]" is there twice: so the ids have no gap and fit the model
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unknown|>"))
    pieces = "|".join([r" \([+-]\d,[+-]\d\)", r" \(\d,\d\)", *(re.escape(w) for w in WORDS)])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(rf"{pieces}|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", unk_token="<|unknown|>", eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"], chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False, model_max_length=1024,
    )  # fmt: skip


def build(seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Random weights that depend on the seed only, and the tokenizer."""
    tokenizer = build_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, head_dim=16, max_position_embeddings=1024, tie_word_embeddings=True,
        initializer_range=0.1,  # about 1 / sqrt(width); with the usual 0.02 it takes long to learn where to look
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config), tokenizer


def noisy_samples(policy: Policy, env: Env, rng: np.random.Generator, turns: int) -> Iterator[Sample]:
    """Play one environment with noise."""
    for agent in turns * tuple(env.agents):
        if not env.done and env.noisy_answer:
            text, prompt = env.noisy_answer(rng, GOOD), encode(policy.tokenizer, env.observe(agent))
            ids = [*policy.tokenizer(text, add_special_tokens=False).input_ids, policy.tokenizer.eos_token_id]
            yield Sample(GroupKey(0, 0, agent), prompt, ids, [0.0] * len(ids), 0.0)
            env.step(agent, text)


def warm_start(
    policy: Policy, level: Callable[[int], Env], *, steps: int, turns: int, seed: int, lr: float = 3e-3
) -> float:
    """Imitate noisy answers on fresh levels; returns the last cross-entropy, nats a token."""
    rng, loss = np.random.default_rng([seed, 3]), torch.zeros(())
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=lr, weight_decay=0.0)
    with packed(policy.model):
        for _ in range(steps):
            samples: list[Sample] = []
            for _ in range(WARM_LEVELS):
                samples += noisy_samples(policy, level(int(rng.integers(2**31))), rng, turns)
            tokens = sum(len(sample.response_ids) for sample in samples)
            loss = torch.zeros((), device=policy.device)
            for shared in micro_batches([[sample] for sample in samples], policy.pack_tokens):
                logprobs, _ = token_logprobs(policy.model, pack_samples(shared, policy.device))
                part = -logprobs.sum() / tokens
                part.backward()
                loss += part.detach()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return float(loss)
