from xml.etree import ElementTree

import numpy as np
import pytest

from guerdon.evaluate import pictures
from guerdon.evaluate.classification import reliability_bins

LABELS = np.arange(300) % 3 == 0
SCORES = np.random.default_rng(0).random(300)


def drawn():
    return {
        "reliability": pictures.reliability_diagram(reliability_bins(LABELS, SCORES)),
        "roc": pictures.roc_curve(LABELS, SCORES),
        "histogram": pictures.score_histogram(LABELS, SCORES, threshold=0.5),
        "values": pictures.value_curves([(np.linspace(-2, 3, 500), True), (np.zeros(4), False)]),
    }


@pytest.mark.parametrize("name", ["reliability", "roc", "histogram", "values"])
def test_pictures_are_self_contained_and_stay_inside_their_box(name):
    svg = drawn()[name]
    root = ElementTree.fromstring(svg)
    _, _, width, height = map(float, root.get("viewBox").split())
    assert len(svg) < 20_000
    assert "no data" not in svg
    assert not any(word in svg for word in ("script", "href", "url(", "nan", "inf"))
    for element in root.iter():
        if element.tag.endswith("polyline"):
            points = np.array([p.split(",") for p in element.get("points").split()], float)
            assert (points >= 0).all()
            assert (points <= [width, height]).all()
    assert svg == drawn()[name]


@pytest.mark.parametrize(
    "svg",
    [
        pictures.reliability_diagram(reliability_bins([], [])),
        pictures.roc_curve([True], [0.5]),
        pictures.score_histogram([], []),
        pictures.value_curves([]),
    ],
    ids=["reliability", "roc", "histogram", "values"],
)
def test_nothing_to_draw_is_said(svg):
    ElementTree.fromstring(svg)
    assert "no data" in svg


@pytest.mark.parametrize("values", [np.zeros(1), np.full(5, 0.7)])
def test_constant_and_single_values_can_be_drawn(values):
    ElementTree.fromstring(pictures.value_curves([(values, True)]))
    ElementTree.fromstring(pictures.score_histogram(np.ones(len(values), bool), values))
