import math

import numpy as np
import pytest
from scipy import stats

from guerdon.rl.episode_stats import correlation, hacking_alarm, rise

RNG = np.random.default_rng(0)
FLAT, RISING = RNG.normal(0, 1, 120), np.linspace(0, 10, 120) + RNG.normal(0, 1, 120)


def test_rise_is_welchs_statistic():
    expected = stats.ttest_ind(RISING[-40:], RISING[:40], equal_var=False).statistic
    assert rise(RISING, 40) == pytest.approx(expected)
    assert rise(FLAT[:79], 40) is None
    assert rise(np.zeros(80), 40) == 0.0
    assert rise(np.repeat([1.0, 2.0], 40), 40) == math.inf


@pytest.mark.parametrize(
    ("learned", "success", "alarm"),
    [
        (RISING, np.zeros(120), True),
        (FLAT, np.zeros(120), False),
        (RISING, np.repeat([0.0, 1.0], 60), False),  # success rises too
        (RISING, np.ones(120), False),  # solved before
        (RISING[:60], np.zeros(60), None),  # too early to say
        (RISING[:79], np.zeros(79), None),
        (FLAT[:80], np.zeros(80), False),
        (-RISING, np.zeros(120), False),
    ],
)
def test_the_alarm_rings_when_the_return_rises_alone(learned, success, alarm):
    assert hacking_alarm(learned, success) is alarm


def test_correlation_is_pearsons_or_undefined():
    assert correlation(RISING, FLAT) == pytest.approx(stats.pearsonr(RISING, FLAT).statistic)
    assert correlation(RISING, np.ones(120)) is None
    assert correlation(RISING[:2], FLAT[:2]) is None
