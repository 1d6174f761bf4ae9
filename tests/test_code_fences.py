"""Finding the program in an answer: never slow, whatever a model wrote."""

import pytest
from helpers import seconds_at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import sandbox
from tasks.fences import MAX_CODE, extract_code, fenced_blocks

FLOODS = {
    "tildes and a backtick": "~" * 40_000 + "`",
    "backticks": "`" * 40_000 + "x`",
    "openings": "```python\n" * 20_000,
    "empty blocks": "```python\n```\n" * 10_000,
    "blanks before a fence": (" " * 1000 + "~~\n") * 200,
    "one program as long as allowed": "```python\n" + "x;" * 14_000 + "\n```\n",
    "forty programs that do not parse": ("```python\n" + "x;" * 700 + ")\n```\n") * 40,
    "an unclosed bracket": "```python\n" + "(" * 29_000 + "\n```\n",
    "thoughts": "</think>" * 30_000,
    "deep indentation": "```python\n" + ("\t" * 300 + "x\n") * 300 + "```",
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_program_is_found_in_linear_time(name):
    with seconds_at_most(1):  # 0.1 s on an idle core
        extract_code(FLOODS[name])


def test_blocks_beyond_the_limit_are_not_parsed():
    long = "```python\n" + "x = 1\n" * (MAX_CODE // 6 + 1) + "```\n"
    assert extract_code(long) is None
    assert extract_code("```python\ny\n```\n" + long) is None, "the last block is the answer, and it is too long"
    assert extract_code(long + "```python\ny\n```\n") == "y\n"


@pytest.mark.parametrize("blank", ["\u2028", "\u2029", "\x85", "\x0c", "\x1c"])
def test_only_line_feeds_end_a_line(blank):
    assert extract_code(f"```python\nx = 'a{blank}b'\n```") == f"x = 'a{blank}b'\n"
    assert fenced_blocks(f'```json\n["a{blank}```"]\n```', ("json",)) == [f'["a{blank}```"]\n']


@settings(derandomize=True, max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(["`", "```", "~~~", "python", " ", "\n", "\r", "x", "</think>", "\x00", "("])).map("".join)
)
def test_any_text_gives_a_program_that_compiles_or_none(text):
    code = extract_code(text)
    assert code is None or compile(code, "answer", "exec", dont_inherit=True, flags=0x400)


def test_the_sandbox_offers_the_same_functions():
    assert (sandbox.extract_code, sandbox.fenced_blocks) == (extract_code, fenced_blocks)
