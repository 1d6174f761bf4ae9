"""Finding the program in an answer: the one that was said, and never slowly, whatever a model wrote."""

import warnings

import pytest
from helpers import seconds_at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.fences import MAX_CODE, extract_code, last_block, visible

LONG = "```python\n" + "x = 1\n" * (MAX_CODE // 6 + 1) + "```\n"
QUOTING = 'doc = """\n```\ntext\n```\n"""\nprint(doc)\n'
SAID = "Text\n```python\nprint(1)\n```\nmore\n"
PROGRAMS = {  # answer -> its program
    "```python\nx\n```": "x\n",
    "```python\nx\n": None,
    "```python\nx\n```\n```python\n)\n```": "x\n",
    "```python\nx\n```\n" + LONG: None,  # the last block is the answer, and it is too long
    LONG + "```python\ny\n```\n": "y\n",
    f"```python\n)\n```\nor\n```python\n{QUOTING}```\nwith\n```\noutput\n```": QUOTING,
    "```python\ns = '''\n```'''\n```": "s = '''\n```'''\n",
    "<think>```python\nx\n```": None,
    "<thinking>\n```python\nx\n```\n</thinking> I give up.": None,
    "<Thought>\n```python\nx\n```\n": None,
    "so it is\n```python\nx\n```\n</think>\n```python\ny\n```": "y\n",
    **{f"```python\nx = 'a{blank}b'\n```": f"x = 'a{blank}b'\n" for blank in "\u2028\u2029\x85\x0c\x1c"},
    SAID + "```py\nprint(2)\n```": "print(2)\n",
    SAID + "```python\nprint(2)\n": None,  # unclosed: cut off
    SAID + "```text\n8\n```\n```\n8\n```": "print(1)\n",
    "<think>\n```python\nprint(3)\n</think>\n" + SAID: "print(1)\n",
    "1. item\n   ```python\n   if 1:\n       print(1)\n   ```\n": "if 1:\n    print(1)\n",
    "````python\nx = '''\n```\n'''\n````": "x = '''\n```\n'''\n",
    "```Python3\r\nprint(1)\r\n```\r\n": "print(1)\r\n",
    "```python\n```": None,
    "print(1)": None,
    "```python\n" + "(" * 5000 + "\n```": None,
    "```python\nx = " + "-" * 90_000 + "1\n```": None,
    "```python\na = '\0'\n```": None,
}
FLOODS = ["~" * 40_000 + "`", "`" * 40_000 + "x`", "```python\n" * 20_000, "```python\n```\n" * 10_000]
FLOODS += [(" " * 1000 + "~~\n") * 200, "```python\n" + "x;" * 14_000 + "\n```\n", "```python\n)\n```\n" * 10_000]
FLOODS += [("```python\n" + "x;" * 700 + ")\n```\n") * 40, "```python\n" + "(" * 29_000 + "\n```\n"]
FLOODS += ["```python\n" + ("\t" * 300 + "x\n") * 300 + "```", "~~~~\n```\n" * 20_000]
FLOODS += ["<think>" * 50_000, "</think>" * 30_000]


@pytest.mark.parametrize("answer", PROGRAMS, ids=lambda answer: repr(answer[:20]))
def test_the_program_of_an_answer(answer):
    assert extract_code(answer) == PROGRAMS[answer]


def test_no_warning_is_printed_about_a_models_code():
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("ignore", module="<answer>")
        assert extract_code("```python\nprint('\\d')\n```") == "print('\\d')\n"
    assert not caught


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
    assert (last_block(text, ("json",), bool) or "") in text
