"""The figure of the experiments: every number at its place, names that nothing covers, colours that can be read."""

import json
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers import make_results

pytest.importorskip("matplotlib", reason="the figure needs matplotlib (requirements-dev.txt)")
from studies import figure as module
from studies.figure import COLOURS, LABEL, draw, figure, same_runs, spread

DOCS = Path(__file__).parents[1] / "docs"
SPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def recorded():
    return json.loads((DOCS / "experiments.json").read_text(encoding="utf-8"))


def words(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SPACE}text")]


def lines(axes, marker):
    return [list(zip(*line.get_data(), strict=True)) for line in axes.get_lines() if line.get_marker() == marker]


def test_the_figure_shows_means_and_seeds_at_their_place():
    """Means 0, 0.3 and 0.6; 0.5 and 0.7 at the end: standard deviation 0.141, standard error 0.1."""
    curves, rows = draw(make_results(a=[{0: 0.0, 25: 0.2, 50: 0.5}, {0: 0.0, 25: 0.4, 50: 0.7}], absent=[])).axes
    (mean,) = lines(curves, "None")
    assert mean == [(0, 0), (25, pytest.approx(0.3)), (50, pytest.approx(0.6))]
    (seeds,) = lines(curves, "o")
    assert sorted(seeds) == [(0, 0), (0, 0), (25, 0.2), (25, 0.4), (50, 0.5), (50, 0.7)]
    assert (curves.get_xlim(), curves.get_ylim()) == ((0, 50), (0, 1))
    assert list(curves.get_xticks()) == [0, 25, 50]
    ((seeds,), (bar,), (mean,)) = (lines(rows, marker) for marker in ("o", "None", "|"))
    assert seeds == [(0.5, 1), (0.7, 1)], "below the heading"
    assert bar == [(pytest.approx(0.5), 1), (pytest.approx(0.7), 1)]
    assert mean == [(pytest.approx(0.6), 1)]
    assert rows.get_xlim() == (0, 1)


def test_a_curve_ends_where_a_seed_has_stopped():
    (curves, _) = draw(make_results(a=[{0: 0.1, 25: 0.3, 50: 0.9}, {0: 0.1, 25: 0.5}])).axes
    (mean,) = lines(curves, "None")
    assert mean == [(0, pytest.approx(0.1)), (25, pytest.approx(0.4))]
    assert (50, 0.9) in lines(curves, "o")[0]
    assert "a (25 steps)" in words(figure(make_results(a=[{0: 0.1, 25: 0.3, 50: 0.9}, {0: 0.1, 25: 0.5}])))


@pytest.mark.parametrize("name", ["a < b & c", "$a_b$", "$", r"\frac{", 'x"y', "<script>", "}{ %s"])
def test_names_are_text_and_nothing_else(name):
    svg = figure(make_results(**{name: [{0: 0.0, 50: 0.5}, {0: 0.0, 50: 0.7}], "absent": []}))
    assert words(svg).count(name) == 2, "beside the curve and beside the row"
    assert "absent" not in words(svg)
    assert "0.600" in words(svg)


def test_rows_of_the_same_runs_say_so(recorded):
    marked = {row["label"] for row, same in zip(recorded["rows"], same_runs(recorded["rows"]), strict=True) if same}
    assert marked == {"MAS + AT-GRPO, shared policy", "alpha = 1", "K = 8", "T = 4"}
    shown = words(figure(recorded))
    assert marked == {text.removesuffix(" [1]") for text in shown if text.endswith(" [1]")}
    assert module.SAME in shown
    assert module.SAME not in words(figure(make_results(a=[{50: 0.5}], b=[{50: 0.5}]))), "equal, but not the same"


def test_two_sets_of_the_same_runs_have_two_numbers():
    row = {"trainings": ["a"], "runs": [{"seed": 0, "curve": [[50, 0.5, 9]]}]}
    other, alone = {**row, "trainings": ["b"]}, {**row, "trainings": ["c"]}
    assert same_runs([alone, row, other, row, other, row]) == [0, 1, 2, 1, 2, 1]
    assert same_runs([]) == []


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        ([], []),
        ([0.5], [0.5]),
        ([0.1, 0.9], [0.1, 0.9]),
        ([0.5, 0.5], [0.4, 0.6]),
        ([0.6, 0.5], [0.65, 0.45]),
        ([0.5, 0.5, 0.5], [0.3, 0.5, 0.7]),
        ([0.9, 0.1, 0.15], [0.9, 0.025, 0.225]),
        ([0.0, 0.1, 0.15, 0.3], [-0.1625, 0.0375, 0.2375, 0.4375]),
    ],
)
def test_names_are_moved_apart_as_little_as_possible(wanted, places):
    found = spread(wanted, 0.2)
    assert found == pytest.approx(places)
    assert all(b - a > 0.2 - 1e-9 for a, b in pairwise(sorted(found)))


def test_names_stay_below_the_top():
    assert spread([0.9, 0.1, 0.95], 0.2, top=1) == pytest.approx([0.8, 0.1, 1.0])
    assert spread([0.9, 0.75, 0.95], 0.2, top=1) == pytest.approx([0.8, 0.6, 1.0])


def test_no_text_covers_another_one(recorded):
    """Measured in the font with which it is drawn; the whole is hardly wider than 400 points."""
    with module.matplotlib.rc_context(module.STYLE):
        picture = draw(recorded)
        picture.draw_without_rendering()
        texts = [
            text for text in picture.findobj(module.matplotlib.text.Text) if text.get_text() and text.get_visible()
        ]
        boxes = [(text.get_text(), module.matplotlib.text.Text.get_window_extent(text)) for text in texts]
    for (a, one), (b, two) in combinations(boxes, 2):
        assert not one.shrunk(0.98, 0.8).overlaps(two.shrunk(0.98, 0.8)), (a, b)
    assert len(boxes) > 60
    width = float(ElementTree.fromstring(figure(recorded)).get("width").removesuffix("pt"))
    assert width < 420
    assert 2 * module.STYLE["font.size"] * 1.2 <= LABEL


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return sum(
        weight * (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
        for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True)
    )


@pytest.mark.parametrize("colour", [*COLOURS, module.TEXT, module.PLAIN])
def test_every_text_has_contrast_to_its_card(colour):
    """WCAG AA: 4.5 to 1. The card has its own colour, so the page around it does not matter."""
    assert (luminance(module.CARD) + 0.05) / (luminance(colour) + 0.05) > 4.5
    assert f"fill: {module.CARD}" in figure(make_results(a=[{50: 0.5}]))


def test_the_recorded_results_are_what_the_figure_shows(recorded):
    drawn = figure(recorded)
    assert (DOCS / "experiments.svg").read_text(encoding="utf-8") == drawn
    with module.matplotlib.rc_context({"font.size": 20, "lines.linewidth": 9}):
        assert figure(recorded) == drawn, "whatever the reader's own settings are"


@pytest.mark.parametrize("rows", [{}, {"absent": []}])
def test_the_figure_without_any_run_is_still_one(rows):
    assert "training steps" in words(figure(make_results(**rows)))
