"""What every engine promises: `engine(requests, n, temperature)` -> n completions for each request.

Sampling is plain: temperature only, and top-p for evaluation alone. Log-probs are those of the sampled distribution.

An engine begins with `load`, which copies a policy's weights: policies of one architecture can take turns on it.
"""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from model.policy import Policy
from sampling.requests import Replies, Request, Rounds, Stream, answered

Weights = Iterable[tuple[str, Tensor]]  # under the names of the transformers model, tied ones once


class Engine:
    """`TransformersEngine` works everywhere and answers in rounds; `VllmEngine` is fast on a GPU and never waits."""

    in_rounds = True
    holds: tuple[str, object] = ("", None)  # whose weights these are, and of which version (`Team.ready`)

    def __init__(self, policy: Policy, max_tokens: int, context: int | None):
        self.policy, self.max_tokens = policy, max_tokens
        self.context = context or policy.model.config.max_position_embeddings
        # of the weights that `load` wants: a GPU samples in half the memory and time, on a CPU only float32 is fast
        self.dtype = torch.bfloat16 if policy.device.type == "cuda" else torch.float32

    def load(self, weights: Weights) -> None:
        """Replace the weights. ValueError unless every weight of the model is given, by its own name."""
        raise NotImplementedError

    def sleep(self) -> bool:
        """Give memory back until the next `load`; False if the engine keeps it."""
        return False

    def stream(self, n: int, temperature: float = 1.0, top_p: float = 1.0) -> Stream:
        return Rounds(partial(self, temperature=temperature, top_p=top_p), n)

    def __call__(self, requests: list[Request], n: int, temperature: float = 1.0, top_p: float = 1.0) -> Replies:
        """n completions for each request; temperature 0 is greedy (its log-probs are those at 1), `top_p` nucleus."""
        return answered(self.stream(n, temperature, top_p), requests)


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
