"""A policy: one language model, its tokenizer and its optimizer."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.utils import get_total_norm
from transformers import PreTrainedModel

from distributed.shard import local, shard
from model import lora
from model.chat import Tokenizer, stop_ids
from model.chat import decode as decode  # where others look for it
from model.fused import fuse_layers
from model.logprobs import token_logprobs
from model.packing import Pack


class LogProbs(nn.Module):
    """The only entry into a model in training: a sharded model must be entered through its root."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model

    def forward(self, pack: Pack, temperature: float) -> tuple[Tensor, Tensor]:
        return token_logprobs(self.model, pack, temperature)


@dataclass
class Policy:
    """The weights are float32 masters (an update of lr 1e-6 must not be lost to rounding), sharded over a `mesh`.

    Where the model has an adapter of the policy's name, that alone is trained; others may share the model below it.
    """

    name: str
    model: PreTrainedModel
    tokenizer: Tokenizer
    optimizer: torch.optim.Optimizer
    mesh: DeviceMesh | None = None
    root: LogProbs = field(default=None, repr=False)  # type: ignore[assignment]
    pack_tokens: int = 16384  # where no option says it (model/fitting.py)
    exact_engine: bool = False  # it samples in the precision of training: its log-probs are the old ones
    threads: int | None = 0  # of an update on a CPU: 0 as many as elsewhere, None to be chosen at the first one

    def __post_init__(self) -> None:
        self.root, self.adapted = self.root or LogProbs(self.model), lora.has_adapter(self.model, self.name)
        # this process among those that train this policy
        self.rank, self.ranks = (self.mesh.get_local_rank(), self.mesh.size()) if self.mesh else (0, 1)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def logprobs(self, pack: Pack, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-prob and entropy of every response token of a pack: (N,), (N,). Inside `packed(model)`."""
        if self.adapted:
            lora.activate(self.model, self.name)
        return self.root(pack, temperature)

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """(name, weight) of what the optimizer moves, as far as this rank holds it."""
        return lora.adapter_weights(self.model, self.name) if self.adapted else self.model.named_parameters()

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """(name, whole weight), tied weights once, adapters merged. All ranks of the policy iterate."""
        return lora.merged_weights(self.root, self.model, self.name if self.adapted else "", dtype)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Name -> shape of `weights`."""
        named = self.model.named_parameters()
        return {name.replace(".base_layer.", "."): weight.shape for name, weight in named if ".lora_" not in name}

    @property
    def size(self) -> int:
        return sum(map(torch.Size.numel, self.shapes.values()))

    @property
    def stop_ids(self) -> set[int]:
        return stop_ids(self.model, self.tokenizer)

    def set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:  # torchao's is a tensor: its compiled step takes a number as constant
            group["lr"] = group["lr"].fill_(lr) if torch.is_tensor(group["lr"]) else lr

    def check_finite(self) -> None:
        """FloatingPointError naming the first weight, or state of the optimizer, that is not finite on this rank."""
        values = {
            f"{kind} of {name}": getattr(local(value), "scale", local(value))  # 8 bits: codes and scales
            for name, weight in self.parameters()
            for kind, value in {"the value": weight.detach(), **self.optimizer.state.get(weight, {})}.items()
            if torch.is_tensor(value)
        }
        # all at once: to ask each of them takes the GPU 50 ms
        if not get_total_norm([value for value in values.values() if value.numel()], inf).isfinite():
            name = next(name for name, value in values.items() if not value.isfinite().all())
            raise FloatingPointError(f"policy {self.name}: {name} is not finite; go on from the last checkpoint")

    def save(self, folder: Path, weights: Iterable[tuple[str, Tensor]] | None = None) -> None:
        """Write what `AutoModelForCausalLM.from_pretrained` reads, of an adapted policy what `PeftModel` reads, unless
        whole `weights` are given; and the tokenizer. All ranks of the policy call it; the first one writes.
        """
        first = self.rank == 0
        if first:
            self.tokenizer.save_pretrained(folder)
        if weights is None and self.adapted:
            return lora.save_adapter(self.model, self.name, folder, first)
        whole = {name: weight.cpu() for name, weight in weights or self.weights() if first}
        if first:
            config = copy.deepcopy(self.model.config)
            config.architectures = [type(self.model).__name__.removeprefix("FSDP")]
            config.dtype = next(iter(whole.values())).dtype
            config.save_pretrained(folder)
            self.model.generation_config.save_pretrained(folder)
            # not model.save_pretrained: it writes on rank 0 of the whole job only, which may train another policy
            save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})


def make_optimizer(
    model: nn.Module, lr: float, kind: str = "adamw", weights: Iterable[nn.Parameter] | None = None
) -> torch.optim.Optimizer:
    """AdamW without weight decay: the clipped objective alone moves the weights.

    "adamw8bit" keeps the moments in 8 bits (arXiv 2110.02861); ImportError without torchao.
    """
    weights = list(model.parameters() if weights is None else weights)
    small = sum(weight.numel() for weight in model.parameters()) < 2_000_000  # from scratch
    # the gradients of a small model's unused vocabulary are noise, which the usual eps would blow up to full steps
    beta2, eps = (0.99, 1e-5) if small else (0.999, 1e-8)
    options: dict = {"lr": lr, "betas": (0.9, beta2), "eps": eps, "weight_decay": 0.0}
    if kind == "adamw":
        return torch.optim.AdamW(weights, fused=weights[0].is_cuda, **options)
    try:
        from torchao.optim import AdamW8bit  # works on sharded weights
    except ImportError as error:
        raise ImportError(f"--optimizer adamw8bit: {error}; pip install torchao") from error
    return AdamW8bit(weights, **options)


def checkpoint_layers(model: PreTrainedModel) -> None:
    """Recompute the activations of a layer in the backward pass instead of keeping them."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()


def make_policy(
    name: str, model: PreTrainedModel, tokenizer: Tokenizer, lr: float, device: str = "cpu",
    mesh: DeviceMesh | None = None, checkpointing: bool = False, fused: bool = False, optimizer: str = "adamw",
    root: LogProbs | None = None,
) -> Policy:  # fmt: skip
    """A policy from a model on the CPU: moved to `device`, or sharded over `mesh`.

    `root` is that of another policy on the same model, moved already.
    """
    adapted, cuda = lora.has_adapter(model, name), device.startswith("cuda")
    if root is None:
        if adapted and cuda:
            for path, weight in model.named_parameters():  # the frozen ones take half
                weight.data = weight.data if ".lora_" in path else weight.data.bfloat16()
        if fused and cuda:
            fuse_layers(model)
        if checkpointing:
            checkpoint_layers(model)
        root = LogProbs(model)
        if mesh is None:
            model.to(device)  # type: ignore[arg-type]
        else:
            shard(root, list(model.model.layers), mesh)
    weights = [weight for _, weight in lora.adapter_weights(model, name)] if adapted else None
    return Policy(name, model, tokenizer, make_optimizer(model, lr, optimizer, weights), mesh, root)
