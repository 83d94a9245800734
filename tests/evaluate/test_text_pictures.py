from xml.etree import ElementTree

import numpy as np
import pytest

from guerdon.evaluate.intervals import Interval
from guerdon.evaluate.text_pictures import first_error_bars, n_curves

NS = (1, 2, 4, 8)
RISING = [Interval(x, x - 0.05, x + 0.05, 20) for x in (0.3, 0.4, 0.5, 0.55)]
HOLES = [Interval(0.3, None, None, 1), Interval(None, None, None, 0), Interval(0.4, 0.3, 0.5, 9), RISING[3]]


@pytest.mark.parametrize(
    "svg",
    [
        n_curves(NS, {"pass": RISING, "majority": HOLES, "a<b": RISING}),
        n_curves((1,), {"majority": RISING[:1]}),
        first_error_bars({"erroneous": {"exact": 8, "early": 1, "missed": 0}, "correct": {"clean": 3, "failed": 1}}),
    ],
    ids=["curves", "one point", "bars"],
)
def test_pictures_are_self_contained_and_stay_inside_their_box(svg):
    root = ElementTree.fromstring(svg)
    _, _, width, height = map(float, root.get("viewBox").split())
    assert "no data" not in svg
    assert not any(word in svg for word in ("script", "href", "url(", "nan", "inf"))
    for element in root.iter():
        if element.tag.endswith(("polyline", "polygon")):
            points = np.array([p.split(",") for p in element.get("points").split()], float)
            assert (points >= 0).all()
            assert (points <= [width, height]).all()


def test_nothing_to_draw_is_said():
    assert "no data" in n_curves(NS, {"majority": [Interval(None, None, None, 0)] * 4})
    assert "no data" in first_error_bars({"erroneous": {"exact": 0}, "correct": {}})


def test_too_many_curves_are_refused():
    with pytest.raises(ValueError, match="at most 8"):
        n_curves(NS, {str(k): RISING for k in range(9)})
    with pytest.raises(ValueError, match="one interval per n"):
        n_curves(NS, {"a": RISING[:2]})
