"""Finding the program in an answer: the one that was said, and never slowly, whatever a model wrote."""

import pytest
from helpers import seconds_at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.fences import MAX_CODE, extract_code, fenced_blocks, visible

LONG = "```python\n" + "x = 1\n" * (MAX_CODE // 6 + 1) + "```\n"
QUOTING = 'doc = """\n```\ntext\n```\n"""\nprint(doc)\n'
PROGRAMS = {  # answer -> its program
    "```python\nx\n```": "x\n",
    "```python\nx\n": None,
    "```python\nx\n```\n```python\ny": None,
    "```python\nx\n```\n```python\n)\n```": "x\n",
    "```python\nx\n```\n" + LONG: None,  # the last block is the answer, and it is too long
    LONG + "```python\ny\n```\n": "y\n",
    f"```python\n{QUOTING}```": QUOTING,
    f"```python\n)\n```\nor\n```python\n{QUOTING}```\nwith\n```\noutput\n```": QUOTING,
    "```python\ns = '''\n```'''\n```": "s = '''\n```'''\n",
    "<think>```python\nx\n```": None,
    "<thinking>\n```python\nx\n```\n</thinking> I give up.": None,
    "so it is\n```python\nx\n```\n</think>\n```python\ny\n```": "y\n",
    "```python\nx\n```\n<think>\n```python\ny\n```\n</think>": "x\n",
    **{f"```python\nx = 'a{blank}b'\n```": f"x = 'a{blank}b'\n" for blank in "\u2028\u2029\x85\x0c\x1c"},
}
FLOODS = ["~" * 40_000 + "`", "`" * 40_000 + "x`", "```python\n" * 20_000, "```python\n```\n" * 10_000]
FLOODS += [(" " * 1000 + "~~\n") * 200, "```python\n" + "x;" * 14_000 + "\n```\n", "```python\n)\n```\n" * 10_000]
FLOODS += [
    ("```python\n" + "x;" * 700 + ")\n```\n") * 40,
    "```python\n" + "(" * 29_000 + "\n```\n",
    "</think>" * 30_000,
]
FLOODS += ["```python\n" + ("\t" * 300 + "x\n") * 300 + "```", "~~~~\n```\n" * 20_000, "<think>" * 50_000]


@pytest.mark.parametrize("answer", PROGRAMS)
def test_the_program_of_an_answer(answer):
    assert extract_code(answer) == PROGRAMS[answer]


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: repr(flood[:20]))
def test_a_program_is_found_in_linear_time(flood):
    with seconds_at_most(1):  # 0.1 s on an idle core
        extract_code(flood)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(["`", "```", "~~~", "python", " ", "\n", "\r", "x", "</think>", "\x00", "("])).map("".join)
)
def test_any_text_gives_a_program_that_compiles_or_none(text):
    code = extract_code(text)
    assert code is None or compile(code, "answer", "exec", dont_inherit=True, flags=0x400)
    assert visible(visible(text)) == visible(text)
    assert all(block in text for block in fenced_blocks(text, ("json",)))
