"""The clipped objective, and which way its gradient points.

Write `solution(new, old, advantage, clip)` for one token: new and old are its log-probs as tensors of no dimension, and
ratio = exp(new - old). Return the loss, a tensor: -min(ratio * A, clamp(ratio, 1 - clip, 1 + clip) * A) (Eq. 2).

Worked example: A = 2, and the token has become 1.5 times as likely. With clip = 0.2 the second term is 1.2 * 2, so the
loss is -2.4, and its gradient is 0: the token is likely enough, there is nothing more to gain. At ratio 1 the loss is
-2 and its gradient is -2: gradient *descent* makes the token likelier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log
from typing import Any

import torch
from torch import Tensor

from update import UpdateConfig, policy_loss

Loss = Callable[[Tensor, Tensor, float, float], Tensor]


def solution(new: Tensor, old: Tensor, advantage: float, clip: float) -> Tensor:
    raise NotImplementedError


def product(new: Tensor, old: Tensor, advantage: float, clip: float) -> Tensor:
    one = torch.ones(1)
    old = old.reshape(1)
    return policy_loss(new.reshape(1), old, old, advantage * one, one, UpdateConfig(clip=clip))[0]


def checks(loss_of: Loss) -> Iterator[tuple[str, Any, Any]]:
    def at(ratio: float, advantage: float) -> list[float]:
        old = torch.tensor(-1.0)
        new = torch.tensor(-1.0 + log(ratio), requires_grad=True)
        loss = loss_of(new, old, advantage, 0.2)
        (slope,) = torch.autograd.grad(loss, new)
        return [loss.item(), slope.item()]

    yield "A = 2, ratio 1: loss and gradient", [-2.0, -2.0], at(1.0, 2.0)
    yield "A = 2, ratio 1.5: clipped", [-2.4, 0.0], at(1.5, 2.0)
    yield "A = 2, ratio 0.5: not clipped, there is much to gain", [-1.0, -1.0], at(0.5, 2.0)
    yield "A = -2, ratio 1: the token becomes less likely", [2.0, 2.0], at(1.0, -2.0)
    yield "A = -2, ratio 0.5: clipped", [1.6, 0.0], at(0.5, -2.0)
    yield "A = -2, ratio 1.5: not clipped, it went the wrong way", [3.0, 3.0], at(1.5, -2.0)
