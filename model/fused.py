"""Compiled pieces of the model and the loss: on a GPU many small memory-bound kernels become few."""

import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from transformers import PreTrainedModel


@cache
def compiler_works() -> bool:
    """Whether torch.compile builds a kernel that runs on this GPU; a warning if not (no Triton)."""
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.zeros(8, device="cuda"))
    except (RuntimeError, ImportError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        warnings.warn(f"torch.compile does not work here, running uncompiled (slower): {reason}", stacklevel=2)
        return False
    return True


def compiled(function: Callable) -> Callable:
    """Compile a function of tensors at its first call on a GPU, again for a second length, which serves all others."""

    @cache  # not at import: loading the compiler takes seconds, and a CPU never needs it
    def fast() -> Callable:
        return torch.compile(function)  # not for unknown sizes from the start: the head would take twice as long

    @wraps(function)
    def call(*args: Any) -> Any:
        return (fast() if args[0].is_cuda and compiler_works() else function)(*args)

    return call


def fuse_layers(model: PreTrainedModel, backend: str = "inductor") -> None:
    """Compile each decoder layer and the last norm in place, before the model is sharded: FSDP's hooks stay outside.

    What is cheap to compute again is then not kept for the backward pass.
    """
    if backend == "inductor" and not compiler_works():
        return
    # layers share their compiled code: an entry for each shape of weight, with and without gradients
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    for module in [*model.model.layers, model.model.norm]:
        module.forward = torch.compile(module.forward, dynamic=True, backend=backend)
