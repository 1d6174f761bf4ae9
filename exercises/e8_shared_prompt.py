"""A pack in which K answers share a prompt.

The prompt goes through the model once, and every answer goes on from it. Write `solution(prompt, answers)`. It returns
two lists for one row of the model: the tokens (the prompt, then the answers one after the other, each without its last
token, which is only ever a target) and the position of each token, as if its answer stood alone behind the prompt.

Worked example: prompt [7, 8, 9], answers [1, 2, 3] and [4, 5]. Tokens: 7 8 9 1 2 4. Positions: 0 1 2 3 4 3. The last
prompt token predicts the first token of both answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from grouping import GroupKey, Sample
from model.packing import pack_samples

Pack = tuple[list[int], list[int]]


def solution(prompt: list[int], answers: list[list[int]]) -> Pack:
    raise NotImplementedError


def product(prompt: list[int], answers: list[list[int]]) -> Pack:
    key = GroupKey(0, 0, "coder")
    pack = pack_samples([[Sample(key, prompt, ids, [0.0] * len(ids), reward=0.0) for ids in answers]])
    return pack.ids.tolist(), pack.positions.tolist()


def checks(packed: Callable[[list[int], list[list[int]]], Pack]) -> Iterator[tuple[str, Any, Any]]:
    ids, positions = packed([7, 8, 9], [[1, 2, 3], [4, 5]])
    yield "tokens", [7, 8, 9, 1, 2, 4], ids
    yield "positions", [0, 1, 2, 3, 4, 3], positions
    ids, positions = packed([7, 8], [[1], [2, 3, 4], [5]])
    yield "an answer of one token is only a target", [7, 8, 2, 3], ids
    yield "its positions", [0, 1, 2, 3], positions
    ids, _ = packed(list(range(100)), [[1] * 10] * 8)
    yield "8 answers of 10 tokens, prompt of 100: not 880 tokens but", 172, len(ids)
