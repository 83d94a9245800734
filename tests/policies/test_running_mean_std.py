"""Running statistics against the statistics of everything at once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from guerdon.policies.robots.control import RunningMeanStd

ROWS = arrays(np.float64, st.tuples(st.integers(0, 12), st.just(3)), elements=st.floats(-1e3, 1e3))


@given(st.lists(ROWS, min_size=1, max_size=5))
def test_pieces_give_the_statistics_of_the_whole(pieces):
    running = RunningMeanStd((3,))
    for piece in pieces:
        running.update(piece)
    whole = np.concatenate(pieces)
    assert running.count == len(whole)
    if len(whole):
        assert np.allclose(running.mean, whole.mean(axis=0), atol=1e-9)
        assert np.allclose(running.var, whole.var(axis=0), atol=1e-6)
        assert np.allclose(running.std, np.maximum(whole.std(axis=0), 1e-4), atol=1e-4)
    else:
        assert not running.mean.any()
        assert (running.var == 1).all()


def test_far_from_zero_it_stays_exact():
    rows = 1e6 + np.random.default_rng(0).normal(0, 1e-2, (1000, 1))
    running = RunningMeanStd((1,))
    for part in np.split(rows, 20):
        running.update(part)
    assert np.allclose(running.std, rows.std(), rtol=1e-4)


def test_stored_statistics_come_back():
    running, again = RunningMeanStd((2,)), RunningMeanStd((2,))
    running.update(np.random.default_rng(0).normal(5, 2, (10, 2)))
    again.load_state_dict({k: np.array(v) for k, v in running.state_dict().items()})
    more = np.random.default_rng(1).normal(5, 2, (7, 2))
    running.update(more)
    again.update(more)
    assert np.array_equal(running.mean, again.mean)
    assert np.array_equal(running.var, again.var)
    assert running.count == again.count == 17


def test_one_number_per_row():
    running = RunningMeanStd()
    running.update(np.array([1.0, 2.0, 3.0]))
    assert running.mean == 2
    assert np.isclose(running.var, 2 / 3)
