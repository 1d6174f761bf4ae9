"""LoRA: small trained matrices beside frozen weights (arXiv 2106.09685), by peft. Policies share the frozen model.

An adapted linear layer computes W x + scale * B A x. Each policy has its own A and B, in float32, on one model W, which
is in bfloat16 on a GPU. Engines know nothing of it: they get W + scale * B A under the names of the model itself.
"""

from __future__ import annotations

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
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distributed.shard import full, full_weights
from model.loading import load_model, refusing

ALPHA = 32  # scale = ALPHA / rank, so that the best learning rate hardly depends on the rank
FASTER = 10.0  # default learning rate over that of full weights: few numbers move, and B starts at 0
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def import_peft() -> Any:
    """ImportError with what to install."""
    try:
        import peft
    except ImportError as error:
        raise ImportError(
            f"--adapter lora: peft cannot be imported ({error}); pip install -r requirements.txt"
        ) from error
    return peft


def label(policy: str) -> str:
    """What peft calls the adapter of a policy: a name like `keys` alone would clash with a method of its tables."""
    return f"of_{policy}"


def add_adapter(model: PreTrainedModel, policy: str, rank: int, seed: int) -> None:
    """Give a policy an adapter on every linear layer of the decoder, unless it has one. A is random, B is 0.

    Before the model is sharded; the same on every rank. The model's own weights are frozen.
    """
    if label(policy) in getattr(model, "peft_config", {}):
        return
    linear = {
        path.rpartition(".")[2]
        for path, module in model.model.layers.named_modules()
        if (isinstance(module, nn.Linear) or hasattr(module, "lora_A")) and not {"base_layer", "lora_"} & _parts(path)
    }
    config = import_peft().LoraConfig(r=rank, lora_alpha=ALPHA, target_modules=sorted(linear), task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(f"{seed} {policy}".encode()))
        _inject(model, policy, config)


def _parts(path: str) -> set[str]:
    return {"lora_" if part.startswith("lora_") else part for part in path.split(".")}


def _inject(model: PreTrainedModel, policy: str, config: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the model has another adapter already
        import_peft().inject_adapter_in_model(config, model, adapter_name=label(policy))
    for name, weight in model.named_parameters():  # also those of other policies, which injecting has frozen
        weight.requires_grad_(".lora_" in name)


def adapted_layers(model: PreTrainedModel) -> Iterator[tuple[str, Any]]:
    """(path, layer of peft) wherever the model has adapters."""
    return ((path, module) for path, module in model.named_modules() if hasattr(module, "lora_A"))


def adapter_weights(model: PreTrainedModel, policy: str) -> Iterator[tuple[str, nn.Parameter]]:
    """(name, weight) of what a policy trains."""
    for name, weight in model.named_parameters():
        if name.endswith((f".lora_A.{label(policy)}.weight", f".lora_B.{label(policy)}.weight")):
            yield name, weight


def activate(model: PreTrainedModel, policy: str) -> None:
    """Compute with the adapter of this policy from now on.

    peft's own `set_adapter` would also freeze the other adapters, of which FSDP takes no notice once it has sharded.
    """
    for _, layer in adapted_layers(model):
        if layer._active_adapter == [label(policy)]:
            return
        layer._active_adapter = [label(policy)]


def to_bfloat16(model: PreTrainedModel) -> None:
    """Halve the frozen weights; adapters stay in float32."""
    for name, weight in model.named_parameters():
        if ".lora_" not in name:
            weight.data = weight.data.bfloat16()


def merged_weights(
    root: nn.Module, model: PreTrainedModel, policy: str = "", dtype: torch.dtype | None = None
) -> Iterator[tuple[str, Tensor]]:
    """(name, whole weight) of the model as a policy sees it, one after the other; without a policy the frozen ones.

    Names are those of the model without adapters. All ranks of the policy have to iterate.
    """
    adapters, layers = dict(adapter_weights(model, policy)), dict(adapted_layers(model))
    for name, weight in full_weights(root, model, skip=".lora_"):
        layer, is_adapted, _ = name.rpartition(".base_layer.weight")
        if policy and is_adapted:
            a, b = (full(adapters[f"{layer}.lora_{x}.{label(policy)}.weight"].detach()) for x in "AB")
            weight = weight.float() + (b.float() @ a.float()) * layers[layer].scaling[label(policy)]
        yield name.replace(".base_layer.", "."), weight.to(dtype or weight.dtype)


# ------------------------------------------------------------------------------------------------------------- folders


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def save_adapter(model: PreTrainedModel, policy: str, folder: Path, write: bool = True) -> None:
    """Write the folder that peft's `PeftModel.from_pretrained` reads; all ranks call it, one of them writes."""
    whole = {
        f"base_model.model.{name.replace(f'.{label(policy)}.', '.')}": full(weight.detach()).cpu()
        for name, weight in adapter_weights(model, policy)
    }
    if write:
        config = copy.deepcopy(model.peft_config[label(policy)])  # type: ignore[index,union-attr]
        config.base_model_name_or_path, config.inference_mode = model.name_or_path, True
        config.save_pretrained(str(folder))
        save_file({name: weight.contiguous() for name, weight in whole.items()}, folder / WEIGHTS, {"format": "pt"})


def base_of(folder: Path) -> str:
    """The model below an adapter: a hub id or a folder. In a run that was moved it is found in the run.

    ValueError when the folder does not say it.
    """
    with refusing(str(folder), f"{CONFIG}: "):
        source = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path")
        if not source or not isinstance(source, str):
            raise ValueError("base_model_name_or_path is missing")
    moved = folder / "../../../bases" / Path(source).name
    return str(moved.resolve()) if not Path(source).is_dir() and moved.is_dir() else source


def load_adapter(model: PreTrainedModel, policy: str, folder: Path) -> None:
    """Give a policy the adapter of a folder. ValueError when it is no LoRA or does not fit the model."""
    peft = import_peft()
    with refusing(str(folder), "adapter: "):
        config = peft.PeftConfig.from_pretrained(str(folder))
        if config.peft_type != "LORA" or config.modules_to_save or config.use_dora or config.bias != "none":
            raise ValueError("only plain LoRA, without biases or whole modules")
        saved = load_file(folder / WEIGHTS)
        _inject(model, policy, config)
        own = {f"base_model.model.{n.replace(f'.{label(policy)}.', '.')}": w for n, w in adapter_weights(model, policy)}
        if wrong := sorted({*own} ^ {*saved}):
            raise ValueError(f"{WEIGHTS} does not fit the model: {len(wrong)} weights, the first is {wrong[0]}")
        for name, weight in own.items():
            if not saved[name].isfinite().all():
                raise ValueError(f"weight {name} has values that are not finite")
            weight.data.copy_(saved[name])


def load_whole(source: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model as `load_model` gives it, from the folder of an adapter too: then with the adapter merged."""
    if not is_adapter(Path(source)):
        return load_model(source)
    model, tokenizer = load_model(base_of(Path(source)))
    load_adapter(model, "", Path(source))
    for path, layer in list(adapted_layers(model)):
        layer.merge()
        model.set_submodule(path, layer.get_base_layer())
    del model.peft_config
    model.requires_grad_(True)
    return model, tokenizer
