"""Loss weights that do not depend on how the batch is cut.

Write `solution(lengths)`: the weight of each token of each answer, one number for each answer of the given length in
tokens, so that the loss, the sum of weight * (loss of the token), is the mean over all tokens of the batch.

Worked example: answers of 4 and 1 tokens have weights 1/5 and 1/5. Cut into two packs, the first contributes 4/5 and
the second 1/5, and their sum is the mean again. Averaging inside each pack first would give the short answer as much
weight as the long one, and another gradient for every way to cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from grouping import GroupKey, Sample
from update import loss_weights


def solution(lengths: list[int]) -> list[float]:
    raise NotImplementedError


def product(lengths: list[int]) -> list[float]:
    key = GroupKey(0, 0, "coder")
    return loss_weights([Sample(key, [1], [2] * n, [0.0] * n, reward=0.0) for n in lengths], "token")


def checks(weights: Callable[[list[int]], list[float]]) -> Iterator[tuple[str, Any, Any]]:
    yield "4 tokens and 1 token", [0.2, 0.2], weights([4, 1])
    lengths, losses = [2, 5, 3], [1.0, 2.0, 4.0]
    found = weights(lengths)
    parts = [weight * n * loss for weight, n, loss in zip(found, lengths, losses, strict=True)]
    yield "tokens of loss 1, 2 and 4: the mean of all ten", 2.4, sum(parts)
    yield "cut after the first answer: the two packs still add up", 2.4, parts[0] + (parts[1] + parts[2])
    yield "all weights of all tokens add up to 1", 1.0, sum(w * n for w, n in zip(found, lengths, strict=True))
