"""Texts of models: their fenced blocks, and what others see of them.

Every step takes time proportional to the length of the text, whatever a model wrote.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Sequence

MAX_CODE = 30_000  # characters that are parsed in search of a program, all blocks together: about 0.1 s

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})(.*)$", re.MULTILINE)  # no two parts can match the same text: linear time
warnings.filterwarnings("ignore", module=re.escape("<answer>"))  # a model's invalid escapes are not our user's concern


def extract_code(text: str) -> str | None:
    """The last fenced python block that parses (tagged python, python3 or py), or None. See `fenced_blocks`.

    Also None when the blocks up to there, counted from the end, have more than MAX_CODE characters.
    """
    unread = MAX_CODE
    for block in reversed(fenced_blocks(text, ("python", "python3", "py"))):
        unread -= len(block)
        if unread < 0:
            break
        if _parses(block):
            return block
    return None


def fenced_blocks(text: str, tags: Sequence[str]) -> list[str]:
    """Blocks fenced with one of the tags, in order. Text inside <think> does not count.

    No block at all when the last fence is unclosed, even after closed ones: the answer was cut off.
    """
    text = text.rpartition("</think>")[2]
    blocks: list[str] = []
    opening: re.Match | None = None
    for fence in _FENCE.finditer(text):
        mark, label = fence[1], fence[2].strip()
        if opening is None:
            opening = None if "`" in label else fence  # ```code``` on one line opens nothing
        elif not label and mark.startswith(opening[1]):
            if opening[2].strip().lower() in tags:
                block = text[opening.end() + 1 : fence.start()]
                blocks.append(textwrap.dedent(block) if block[:1] in (" ", "\t", "\n") else block)
            opening = None
    return [] if opening else blocks


def _parses(code: str) -> bool:
    if not code.strip():
        return False
    try:
        ast.parse(code, "<answer>")
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # what the parser raises for text that is no program
        return False
    return True


def shorten(text: str, limit: int) -> str:
    """What other prompts repeat of a text: the beginning and, twice as long, the end, where answers and errors stand.

    >>> shorten("a" * 10 + "b" * 50, 15)
    'aaaaa\\n... (45 more characters)\\nbbbbbbbbbb'
    """
    if len(text) <= limit:
        return text
    return f"{text[: limit // 3]}\n... ({len(text) - limit:,} more characters)\n{text[limit // 3 - limit :]}"
