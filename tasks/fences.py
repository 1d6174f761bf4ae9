"""Texts of models: their fenced blocks, and what others see of them. All in linear time."""

import ast
import re
import textwrap
import warnings
from collections.abc import Callable, Sequence

MAX_CODE = 30_000  # characters that are parsed, in about 0.1 s

_THOUGHT = re.compile(r"([<[◁]/?(?:seed:)?think\s?[]>▷]|</?(?:thinking|thoughts?|reasoning)>)", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})(.*)$", re.MULTILINE)  # no two parts match the same text: linear
warnings.filterwarnings("ignore", module=re.escape("<answer>"))  # a model's invalid escapes


def visible(text: str) -> str:
    """A response without its thoughts (<think>, <thinking>, ...), also unclosed ones, or opened by the template."""
    first, *rest = _THOUGHT.split(text)
    parts, thinking = [first], False
    for tag, part in zip(rest[::2], rest[1::2], strict=True):
        if "/" in tag and not thinking:
            parts = []  # the template had opened it
        thinking = "/" not in tag
        parts += [] if thinking else [part]
    return "".join(parts)


def extract_code(text: str) -> str | None:
    """The last fenced python block that parses, or None. See `last_block`."""
    return last_block(text, ("python", "python3", "py"), _parses)


def last_block(text: str, tags: Sequence[str], whole: Callable[[str], bool]) -> str | None:
    """The last `whole` block of the visible text that is fenced with one of the tags, or None.

    A fence inside a string closes nothing: a block that is not whole goes on to the first fence up to which it is. None
    where the last fence is unclosed (a cut-off answer), or the blocks from this one on have over MAX_CODE characters.
    """
    text, blocks, place, unread = visible(text), [], 0, MAX_CODE
    fences = list(_FENCE.finditer(text))
    while place < len(fences):
        opening, place, found = fences[place], place + 1, None
        mark, label = opening[1], opening[2].strip().lower()
        if "`" in label:
            continue  # ```code``` on one line opens nothing
        for number in range(place, len(fences)):
            fence = fences[number]
            if fence[2].strip() or not fence[1].startswith(mark):
                continue
            block = text[opening.end() + 1 : fence.start()]
            block = textwrap.dedent(block) if block[:1] in " \t\n" else block
            unread -= len(block) if label in tags else 0
            accepted = label in tags and unread >= 0 and whole(block)
            found = (number + 1, block) if accepted else found or (number + 1, block)
            if accepted or unread < 0 or label not in tags:
                break
        if found is None:
            return None
        place, block = found
        blocks += [block] if label in tags else []
    unread = MAX_CODE
    for block in reversed(blocks):
        unread -= len(block)
        if unread < 0 or whole(block):
            return block if unread >= 0 else None
    return None


def _parses(code: str) -> bool:
    try:
        return bool(code.strip() and ast.parse(code, "<answer>"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # no program
        return False


def shorten(text: str, limit: int) -> str:
    """The beginning of a text and, twice as long, its end, where answers stand.

    >>> shorten("a" * 10 + "b" * 50, 15)
    'aaaaa\\n... (45 more characters)\\nbbbbbbbbbb'
    """
    if len(text) <= limit:
        return text
    return f"{text[: limit // 3]}\n... ({len(text) - limit:,} more characters)\n{text[limit // 3 - limit :]}"
