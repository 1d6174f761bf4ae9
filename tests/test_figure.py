"""The figure of the experiments: every seed and mean at its place, names as they are."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers import make_results

pytest.importorskip("matplotlib", reason="the figure needs matplotlib (requirements-dev.txt)")
from studies.figure import figure

DOCS = Path(__file__).parents[1] / "docs"


def words(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("name", ["a < b & c", "$a_b$", r"\frac{", "<script>"])
def test_names_are_text_and_nothing_else(name):
    made = make_results(**{name: [{0: 0.0, 50: 0.5}, {0: 0.0, 50: 0.7}], "absent": []})
    for run in made["rows"][0]["runs"]:
        run["spent"] = {}
    assert words(figure(made)).count(name) == 2, "in the legend and beside the row"
    assert "absent" not in words(figure(made))


def test_the_recorded_results_are_what_the_figure_shows():
    recorded = json.loads((DOCS / "experiments.json").read_text(encoding="utf-8"))
    drawn = figure(recorded)
    assert words(drawn) == words((DOCS / "experiments.svg").read_text(encoding="utf-8"))
    assert {row["label"] for row in recorded["rows"]} <= {*words(drawn)}
    assert figure(recorded) == drawn, "the same results give the same file"


def test_the_figure_without_any_run_is_still_one():
    assert "training steps" in words(figure(make_results(absent=[])))
