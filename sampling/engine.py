"""What every engine promises: `engine(requests, n, temperature)` -> n completions for each request.

Sampling is plain: temperature only, no top-k or penalties, and top-p for evaluation alone. The log-probs are those of
the distribution that was sampled from. Candidate k of a request is drawn with the request's seed + k.

An engine holds a copy of a policy's weights, which `load` replaces. So policies of one architecture and one set of stop
tokens can take turns on one engine, and `Team` decides when an engine gets new weights.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sampling.requests import Completion, Request

Weights = Iterable[tuple[str, Tensor]]  # under the names of the transformers model, tied ones once


class Engine(Protocol):
    """`TransformersEngine` works everywhere, `VllmEngine` is fast on a GPU.

    An engine that takes new requests while others run also has `stream(n, temperature, top_p)`, which returns a
    `sampling.requests.Stream`.
    """

    dtype: torch.dtype  # of the weights that `load` wants

    def load(self, weights: Weights) -> None:
        """Replace the weights. Raises ValueError unless every weight of the model is given, by its own name."""
        ...

    def sleep(self) -> bool:
        """Give memory back until the next `load`; False if the engine keeps it."""
        ...

    def __call__(
        self, requests: list[Request], n: int, temperature: float = 1.0, top_p: float = 1.0
    ) -> list[list[Completion]]:
        """n completions for each request; temperature 0 is greedy (its log-probs are those at temperature 1).

        `top_p`: from the likeliest tokens that together have this probability (nucleus sampling).
        """
        ...


def checked(weights: Weights, shapes: Mapping[str, torch.Size]) -> Iterator[tuple[str, Tensor]]:
    """Pass on the weights of a model. ValueError on an unknown name, a wrong shape and, at the end, a missing name."""
    missing = dict(shapes)
    for name, weight in weights:
        if name not in shapes:
            raise ValueError(f"load: the engine has no weight {name}")
        if weight.shape != shapes[name]:
            raise ValueError(f"load: {name} has shape {tuple(weight.shape)}, the engine's {tuple(shapes[name])}")
        missing.pop(name, None)
        yield name, weight
    if missing:
        raise ValueError(
            f"load: {len(missing)} weights of the engine were not given, the first is {next(iter(missing))}"
        )


def engine_dtype(device: torch.device) -> torch.dtype:
    """A GPU samples in half the memory and time; on a CPU only float32 is fast, and log-probs agree to 1e-4."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def uniforms(seeds: Sequence[int], count: int) -> np.ndarray:
    """`count` numbers in [0, 1) for each seed below 2**64, all in one call: a stream of SplitMix64 each (float32).

    Guy Steele, Doug Lea, Christine Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
    """

    def mixed(z: np.ndarray) -> np.ndarray:
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    starts = mixed(np.array(seeds, dtype=np.uint64))[:, None]  # mixed, because neighbours would give similar streams
    bits = mixed(starts + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


@contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """Leave the global random generators of Python, numpy and torch as they were."""
    python, numbers = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)
