"""A policy: one language model, its tokenizer and its optimizer. Agents are mapped to policies by name."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from distributed.shard import full_weights, shard
from envs import Message
from grouping import GroupKey, Sample
from model.attention import packed
from model.fused import fuse_layers
from model.logprobs import token_logprobs
from model.packing import Pack, pack_samples


class LogProbs(nn.Module):
    """The one door into a model that is trained: a sharded model must be entered through its root."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model

    def forward(self, pack: Pack, temperature: float) -> tuple[Tensor, Tensor]:
        return token_logprobs(self.model, pack, temperature)


@dataclass
class Policy:
    """The weights are float32 masters: an update of lr 1e-6 must not be lost to rounding.

    With a `mesh` they are sharded over its ranks (`distributed/shard.py`); without one this process has them alone.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    optimizer: torch.optim.Optimizer
    mesh: DeviceMesh | None = None
    root: LogProbs = field(default=None, repr=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.root = self.root or LogProbs(self.model)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def rank(self) -> int:
        """This process among the ranks that train this policy."""
        return 0 if self.mesh is None else self.mesh.get_local_rank()

    @property
    def ranks(self) -> int:
        """How many ranks train this policy."""
        return 1 if self.mesh is None else self.mesh.size()

    def logprobs(self, pack: Pack, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-prob and entropy of every response token of a pack: (N,), (N,). Inside `packed(model)`."""
        return self.root(pack, temperature)

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """(name, whole weight), tied weights once. All ranks of the policy have to iterate."""
        return full_weights(self.root, self.model, dtype)

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
        return encode(self.tokenizer, messages)

    def decode(self, ids: list[int]) -> str:
        """Response ids -> text, without special tokens."""
        return decode(self.tokenizer, ids)

    def save(self, folder: Path) -> None:
        """Write what `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` read.

        All ranks of the policy have to call it; the first one writes.
        """
        first = self.rank == 0
        whole = {}
        for name, weight in self.weights():
            if first:
                whole[name] = weight.cpu()
        if first:
            config = copy.deepcopy(self.model.config)
            config.architectures, config.dtype = [type(self.model).__name__.removeprefix("FSDP")], torch.float32
            config.save_pretrained(folder)
            self.model.generation_config.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            # not model.save_pretrained: it writes on rank 0 of the whole job only, which may train another policy
            save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})


def encode(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> list[int]:
    """Chat messages -> prompt ids, ready for the response. Thinking mode is off, as in the paper."""
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, enable_thinking=False)
    return cast(list[int], ids)


def decode(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    """Response ids -> text, without special tokens."""
    return cast(str, tokenizer.decode(ids, skip_special_tokens=True))


def make_optimizer(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """AdamW without weight decay: the clipped objective is the only thing that moves the weights.

    eps is 1e-5: the gradients of unused vocabulary are tiny and pure noise, and a smaller eps would blow them up to
    full steps, which takes a warm-started policy apart within ten steps.
    """
    fused = next(model.parameters()).is_cuda
    return torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99), eps=1e-5, weight_decay=0.0, fused=fused)


def make_policy(
    name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lr: float, device: str = "cpu",
    mesh: DeviceMesh | None = None, checkpointing: bool = False, fused: bool = False,
) -> Policy:  # fmt: skip
    """A policy from a model on the CPU: moved to `device`, or sharded over the ranks of `mesh`."""
    if fused and device.startswith("cuda"):
        fuse_layers(model)
    if checkpointing:  # activations of a layer are computed again in the backward pass instead of kept
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    root = LogProbs(model)
    if mesh is None:
        model.to(device)  # type: ignore[arg-type]
    else:
        shard(root, list(model.model.layers), mesh)
    return Policy(name, model, tokenizer, make_optimizer(model, lr), mesh, root)


def load_model(source: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model (float32, on the CPU) and its tokenizer from a hub id or a folder.

    The model must have full attention in every layer and a plain output head, the tokenizer a chat template:
    ValueError when the model cannot be trained by `update.py`.
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
    return model, tokenizer


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
