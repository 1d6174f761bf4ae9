"""The primer: its blocks are what its script prints, and its lines of code are the project's."""

import re
import sys

import pytest
from helpers import ROOT
from test_docs import read, same

sys.path.append(str(ROOT / "docs"))

import primer

PAGE = read(primer.PAGE)


@pytest.fixture(scope="module")
def found():
    return primer.blocks()


def test_every_block_is_what_the_script_prints(found):
    written = dict(primer.BLOCK.findall(PAGE))
    assert list(written) == list(found)
    for name in found:
        assert same(written[name], found[name]), f"{name} is now\n{found[name]}"


def test_lines_of_code_are_ours():
    quoted = re.findall(r"`([\w/]+\.py)`: `(.*?)`", PAGE)
    assert len(quoted) == len(re.findall(r"^## \d", PAGE, re.M)) == 6
    for name, line in quoted:
        assert f"{line}\n" in read(ROOT / name), (name, line)
