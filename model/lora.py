"""LoRA: small trained matrices beside frozen weights (arXiv 2106.09685), by peft.

An adapted linear layer computes W x + scale * B A x. Each policy has its own A and B, in float32, on one model W, on a
GPU in bfloat16. Engines know nothing of it: they get W + scale * B A under the model's own names.
"""

import copy
import json
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from distributed.shard import full
from model.loading import Tokenizer, checked, load_model, refusing

ALPHA = 32  # scale = ALPHA / rank: so the best learning rate hardly depends on the rank
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
NO_MATTER = {"lora_dropout", "task_type", "inference_mode", "auto_mapping", "peft_version", "base_model_name_or_path"}


def label(policy: str) -> str:
    """What peft calls the adapter of a policy: a name like `keys` alone would clash with a method of its tables."""
    return f"of_{policy}"


def linear_layers(model: PreTrainedModel) -> Iterator[tuple[str, Any]]:
    """(path, layer) of the linear layers of the decoder; adapted ones have `lora_A`."""
    for path, layer in model.named_modules():
        inside = ".lora_" in path or ".base_layer" in path  # of an adapted layer
        if path.startswith("model.layers.") and hasattr(layer, "in_features") and not inside:
            yield path, layer


def add_adapter(
    model: PreTrainedModel, policy: str, rank: int, seed: int = 0, alpha: float = ALPHA, only: list[str] | None = None
) -> None:
    """Give a policy an adapter, unless it has one, on all linear layers of the decoder or those of `only`: B is 0."""
    from peft import LoraConfig, inject_adapter_in_model

    if has_adapter(model, policy):
        return
    kinds = {path.rpartition(".")[2] for path, _ in linear_layers(model)}
    targets = sorted(kinds if only is None else kinds & {*only})
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM")  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed(zlib.crc32(f"{seed} {policy}".encode()))  # the same on every rank
        warnings.simplefilter("ignore")  # that the model has another adapter already
        inject_adapter_in_model(config, model, adapter_name=label(policy))
    for name, weight in model.named_parameters():  # also those of other policies, which injecting has frozen
        weight.requires_grad_(".lora_" in name)


def has_adapter(model: PreTrainedModel, policy: str) -> bool:
    return label(policy) in getattr(model, "peft_config", {})


def adapter_weights(model: PreTrainedModel, policy: str) -> Iterator[tuple[str, nn.Parameter]]:
    """(name, weight) of what a policy trains."""
    for name, weight in model.named_parameters():
        if name.endswith((f".lora_A.{label(policy)}.weight", f".lora_B.{label(policy)}.weight")):
            yield name, weight


def activate(model: PreTrainedModel, policy: str) -> None:
    """Compute with this policy's adapter from now on."""
    for _, layer in linear_layers(model):
        if hasattr(layer, "lora_A"):  # not by `set_adapter`: it freezes the others, and FSDP would not know
            layer._active_adapter = [label(policy)]


def merged_weights(
    root: nn.Module, model: PreTrainedModel, policy: str = "", dtype: torch.dtype | None = None
) -> Iterator[tuple[str, Tensor]]:
    """`Policy.weights`; without a policy, those below all adapters. All its ranks iterate."""
    adapters, layers = dict(adapter_weights(model, policy)), dict(linear_layers(model))
    if isinstance(root, FSDPModule):
        root.reshard()  # a forward without a backward leaves the root's weights gathered
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        weight = full(parameter.detach(), None if policy else dtype)
        layer, is_adapted, _ = name.rpartition(".base_layer.weight")
        if policy and is_adapted:
            a, b = (full(adapters[f"{layer}.lora_{x}.{label(policy)}.weight"].detach()) for x in "AB")
            weight = weight.float() + (b.float() @ a.float()) * layers[layer].scaling[label(policy)]
        yield name.replace(".base_layer.", "."), weight.to(dtype or weight.dtype)


def saved_weights(model: PreTrainedModel, policy: str) -> Iterator[tuple[str, nn.Parameter]]:
    """`adapter_weights` under the names in peft's files."""
    for name, weight in adapter_weights(model, policy):
        yield f"base_model.model.{name.replace(f'.{label(policy)}.', '.')}", weight


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def save_adapter(model: PreTrainedModel, policy: str, folder: Path, write: bool = True) -> None:
    """Write what peft's `PeftModel.from_pretrained` reads. All ranks call it."""
    whole = {name: full(weight.detach()).cpu().contiguous() for name, weight in saved_weights(model, policy)}
    if write:
        config = copy.deepcopy(model.peft_config[label(policy)])
        config.base_model_name_or_path, config.inference_mode = model.name_or_path, True
        config.save_pretrained(str(folder))
        save_file(whole, folder / WEIGHTS, {"format": "pt"})


def read_config(folder: Path) -> dict[str, Any]:
    """What adapter_config.json says, by an allow-list: ValueError naming a field that is not as in plain LoRA."""
    from peft import LoraConfig

    saved, plain = json.loads((folder / CONFIG).read_text(encoding="utf-8")), LoraConfig().to_dict()
    rank, alpha, targets = (saved.get(name) for name in ("r", "lora_alpha", "target_modules"))
    fine = {
        "r": type(rank) is int and rank > 0,
        "lora_alpha": type(alpha) in (int, float) and abs(alpha) < 1e6,  # nan is not
        "target_modules": type(targets) is list,
        "init_lora_weights": saved.get("init_lora_weights") in (None, True, False, "gaussian"),  # others change W too
    }
    for name, value in {**dict.fromkeys(fine), **saved}.items():
        if not fine.get(name, name in NO_MATTER or value in (None, plain.get(name, False))):
            raise ValueError(f"{name} is {value!r}: only plain LoRA, on layers named in a list, can be read")
    return saved


def base_of(folder: Path) -> str:
    """The model below an adapter: a hub id or a folder, in a run its own wherever it lies. ValueError without one."""
    with refusing(str(folder), f"{CONFIG}: "):
        source = read_config(folder).get("base_model_name_or_path")
        if not source or not isinstance(source, str):
            raise ValueError("base_model_name_or_path is missing")
    own = folder / "../../../bases" / Path(source).name
    return str(own.resolve()) if Path(source).parent.name == "bases" and own.is_dir() else source


def load_adapter(model: PreTrainedModel, policy: str, folder: Path) -> None:
    """Give a policy the adapter of a folder. ValueError unless it is plain LoRA in finite floats, as configured."""
    with refusing(str(folder), "adapter: "):
        config, saved = read_config(folder), load_file(folder / WEIGHTS)
        for name, weight in saved.items():
            if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16) or not weight.isfinite().all():
                raise ValueError(f"{name} is {weight.dtype} or not finite")
        add_adapter(model, policy, config["r"], alpha=config["lora_alpha"], only=config["target_modules"])
        own = dict(saved_weights(model, policy))
        for name, value in checked(saved.items(), {name: weight.shape for name, weight in own.items()}):
            own[name].data.copy_(value)


def load_whole(source: str) -> tuple[PreTrainedModel, Tokenizer]:
    """A model as from `load_model`; from the folder of an adapter with the adapter merged."""
    folder = Path(source)
    if not is_adapter(folder):
        return load_model(source)
    model, tokenizer = load_model(base_of(folder))
    load_adapter(model, "merged", folder)
    for path, layer in list(linear_layers(model)):
        if hasattr(layer, "lora_A"):
            layer.merge()
            model.set_submodule(path, layer.base_layer)
    del model.peft_config
    return model.requires_grad_(True), tokenizer
