"""Seconds in words."""

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from guerdon.pages.durations import duration
from guerdon.plan.estimate import readable
from tables import cases

SIZES = {"d": 86400, "h": 3600, "min": 60, "s": 1}


@cases(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.4, "0 s"), (45, "45 s"), (59.6, "1 min"), (90, "1 min 30 s"), (599, "9 min 59 s"),
        (599.7, "10 min"), (1529, "25 min"), (3580, "1 h"), (7800, "2 h 10 min"), (86399, "1 d"), (273600, "3 d 4 h"),
        (400 * 86400, "400 d"), (math.inf, "unknown"), (math.nan, "unknown"),
    ],
)  # fmt: skip
def test_by_hand(seconds, words):
    assert duration(seconds) == words


@given(st.floats(0, 1e9))
def test_two_units_that_say_about_the_same(seconds):
    parts = re.findall(r"(\d+) (d|h|min|s)", duration(seconds))
    said = sum(int(count) * SIZES[unit] for count, unit in parts)
    assert 1 <= len(parts) <= 2
    assert abs(said - seconds) <= max(0.51, 0.05 * seconds)


def test_estimates_say_it():
    assert readable({"questions": 3, "seconds": 273_600.0}) == ["questions: 3", "time: about 3 d 4 h on one core"]
