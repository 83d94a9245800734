"""The permutation test within strata: by counting all permutations, by worked numbers, and by what must not matter."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.auditing import association
from guerdon.auditing.association import NOTHING, associate, strata, stratum_means

X = np.array([1.0, 2.0, 4.0, 0.0, 3.0, 5.0, 5.0])
Y = np.array([2.0, 1.0, 7.0, 3.0, 3.5, 9.0, 4.0])
S = np.array([0, 0, 0, 1, 1, 1, 2])


def all_sums(x, y, s):
    """The sum of products of every permutation within strata."""
    blocks = [np.flatnonzero(s == k) for k in np.unique(s)]
    for orders in product(*(permutations(block) for block in blocks)):
        yield sum(float(x[block] @ y[list(order)]) for block, order in zip(blocks, orders, strict=True))


def test_worked_numbers():
    found = associate(X, Y, S, seed=0)
    # by hand: the means of x are 7/3 and 8/3, of y 10/3 and 31/6; the last row is alone in its stratum
    xc, yc = X[:6] - np.repeat([7 / 3, 8 / 3], 3), Y[:6] - np.repeat([10 / 3, 31 / 6], 3)
    assert found.r == pytest.approx(xc @ yc / np.sqrt(xc @ xc * (yc @ yc)))
    assert found.difference == pytest.approx(xc @ yc / (xc @ xc))
    assert found.spread == pytest.approx(np.sqrt(yc @ yc / 4))  # six rows, two means
    assert found.n == 6
    assert found.low <= found.r <= found.high


def test_p_is_the_share_of_permutations():
    sums = np.array(list(all_sums(X, Y, S)))
    assert len(sums) == 36
    centre = sums.mean()  # the sum of products of the centred values is the distance to it
    exact = np.mean(np.abs(sums - centre) >= abs(X @ Y - centre) - 1e-9)
    # 20 extreme permutations of about 20 / exact drawn: a standard error of 22 %
    assert associate(X, Y, S, seed=3).p == pytest.approx(exact, rel=0.6)


def test_moments_of_the_permutation_distribution(monkeypatch):
    """The normal distribution that stands for many rows has the variance of all permutations."""
    monkeypatch.setattr(association, "MANY", 0)
    monkeypatch.setattr(association, "OFTEN", 0)
    from scipy.stats import norm

    sums = np.array(list(all_sums(X, Y, S)))
    z = (X @ Y - sums.mean()) / sums.std()
    assert associate(X, Y, S, seed=0).p == pytest.approx(2 * norm.sf(abs(z)))


def test_sampled_and_normal_agree(monkeypatch):
    rng = np.random.default_rng(6)
    stratum = np.repeat(np.arange(60), 4)
    x = rng.standard_normal(240)
    y = 0.16 * x + rng.standard_normal(240)
    normal = associate(x, y, stratum, seed=0).p
    monkeypatch.setattr(association, "MANY", 10_000)
    assert associate(x, y, stratum, seed=0).p == pytest.approx(normal, rel=0.5)
    assert 0.001 < normal < 0.5


@pytest.mark.slow
def test_p_is_uniform_without_a_relation():
    """At 5 % it rejects about 5 % of the time, also with few rows and unequal strata."""
    rng = np.random.default_rng(8)
    stratum = np.repeat(np.arange(12), rng.integers(2, 6, 12))
    flag = rng.random(len(stratum)) < 0.4
    rejected = [
        associate(flag, np.exp(rng.standard_normal(len(stratum))) + stratum, stratum, seed=k).p <= 0.05
        for k in range(400)
    ]
    assert 0.02 <= np.mean(rejected) <= 0.085  # binomial: 0.05 +- 3.2 standard errors of 0.011


def test_between_strata_nothing_counts():
    """What differs only between prompts is no evidence."""
    stratum = np.repeat(np.arange(5), 3)
    assert associate(stratum * 2.0, stratum + 1.0, stratum, seed=0) == NOTHING
    assert associate(np.arange(15.0), stratum + 1.0, stratum, seed=0).p is None


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(-5, 5)), min_size=4, max_size=40),
    st.floats(-100, 100),
    st.floats(0.01, 100),
    st.randoms(use_true_random=False),
)
def test_shift_scale_and_order_do_not_matter(rows, shift, scale, random):
    stratum, x, y = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    y = np.round(y, 3)
    one = associate(x, y, strata(stratum), seed=0)
    order = list(range(len(rows)))
    random.shuffle(order)
    other = associate(x[order], scale * y[order] + shift, strata(stratum[order]), seed=0)
    assert other.n == one.n
    assert other.r == pytest.approx(one.r, abs=1e-6)
    assert other.difference == pytest.approx(scale * one.difference, rel=1e-5, abs=1e-6 * scale)
    assert one.low - 1e-12 <= one.r <= one.high + 1e-12


def test_strata_and_means():
    joint = strata([5, 5, 7, 7], None, ["a", "b", "a", "a"])
    assert joint.tolist() == [0, 1, 2, 2]
    assert stratum_means(np.array([1.0, 2.0, 3.0, 6.0]), joint).tolist() == [1.0, 2.0, 4.5, 4.5]
