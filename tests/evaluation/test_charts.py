import re
from xml.etree import ElementTree

import numpy as np
import pytest

from guerdon.pages import charts
from guerdon.pages.formats import DASH, p_value
from guerdon.statistics.classification import reliability_bins
from guerdon.statistics.intervals import Interval
from tables import cases

LABELS = np.arange(300) % 3 == 0
SCORES = np.random.default_rng(0).random(300)

NS = (1, 2, 4, 8)
RISING = [Interval(x, x - 0.05, x + 0.05, 20) for x in (0.3, 0.4, 0.5, 0.55)]
HOLES = [Interval(0.3, None, None, 1), Interval(None, None, None, 0), Interval(0.4, 0.3, 0.5, 9), RISING[3]]


@cases(
    ("low", "high", "wanted"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (2.5, 2.5, [2.5]), (3, 1, [3]), (0, 0.03, [0, 0.01, 0.02, 0.03])],
)
def test_ticks_are_round_and_inside(low, high, wanted):
    assert charts.ticks(low, high) == pytest.approx(wanted)


@cases(("value", "said"), [(None, DASH), (0.0004, "< 0.001"), (0.001, "0.001"), (0.25, "0.250")])
def test_a_p_value_has_three_digits_and_is_never_zero(value, said):
    assert p_value(value) == said


def drawn():
    return {
        "reliability": charts.reliability_diagram(reliability_bins(LABELS, SCORES)),
        "roc": charts.roc_curve(LABELS, SCORES),
        "histogram": charts.score_histogram(LABELS, SCORES, threshold=0.5),
        "values": charts.value_curves([(np.linspace(-2, 3, 500), True), (np.zeros(4), False)]),
        "n_curves": charts.n_curves(NS, {"pass": RISING, "majority": HOLES, "a<b": RISING}),
        "one_n": charts.n_curves((1,), {"majority": RISING[:1]}),
        "first_error": charts.first_error_bars(
            {"erroneous": {"exact": 8, "early": 1, "missed": 0}, "correct": {"clean": 3, "failed": 1}}
        ),
    }


@pytest.mark.parametrize("name", drawn())
def test_pictures_are_self_contained_and_stay_inside_their_box(name):
    svg = drawn()[name]
    root = ElementTree.fromstring(svg)
    _, _, width, height = map(float, root.get("viewBox").split())
    assert len(svg) < 20_000
    assert "no data" not in svg
    assert not any(word in svg for word in ("script", "href", "url(", "nan", "inf"))
    lines = re.findall(r'class="(?:line|band|guide)[^>]* d="M([^"z]+)', svg)
    bars = [e for e in root.iter() if e.get("class", "").startswith("bar")]
    assert lines or bars
    for line in lines:
        points = np.array([point.split() for point in line.split("L")], float)
        assert (points >= 0).all()
        assert (points <= [width, height]).all()
    for bar in bars:
        x, y, wide, high = (float(bar.get(key)) for key in ("x", "y", "width", "height"))
        assert 0 <= x < x + wide <= width
        assert 0 <= y <= y + high <= height
    assert svg == drawn()[name]


@pytest.mark.parametrize(
    "svg",
    [
        charts.reliability_diagram(reliability_bins([], [])),
        charts.roc_curve([True], [0.5]),
        charts.score_histogram([], []),
        charts.value_curves([]),
        charts.n_curves(NS, {"majority": [Interval(None, None, None, 0)] * 4}),
        charts.first_error_bars({"erroneous": {"exact": 0}, "correct": {}}),
    ],
    ids=["reliability", "roc", "histogram", "values", "n_curves", "first_error"],
)
def test_nothing_to_draw_is_said(svg):
    ElementTree.fromstring(svg)
    assert "no data" in svg


@pytest.mark.parametrize("values", [np.zeros(1), np.full(5, 0.7)])
def test_constant_and_single_values_can_be_drawn(values):
    ElementTree.fromstring(charts.value_curves([(values, True)]))
    ElementTree.fromstring(charts.score_histogram(np.ones(len(values), bool), values))


def test_too_many_curves_are_refused():
    with pytest.raises(ValueError, match="at most 8"):
        charts.n_curves(NS, {str(k): RISING for k in range(9)})
    with pytest.raises(ValueError, match="one interval per n"):
        charts.n_curves(NS, {"a": RISING[:2]})
