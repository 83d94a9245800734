"""Which columns of a state move, say where the goal is, or only tell episodes apart."""

import numpy as np
import pytest

from guerdon.episodes.state_columns import MIN_EPISODES, column_roles
from guerdon.types import Failure

HAND, GOAL, OBJECT, ALWAYS, NOISE = 0, 1, 2, 3, 4


def ways(count, *, seed=0, reaches=True, length=30):
    """A hand goes to a goal; an object lies somewhere, one number never differs, one is noise at every row."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        start, goal, lies = rng.uniform(-1, 1, 3)
        end = goal if reaches else rng.uniform(-1, 1)
        hand = start + (end - start) * np.linspace(0, 1, length)
        fixed = np.ones(length)
        yield np.stack([hand, goal * fixed, lies * fixed, 7 * fixed, rng.normal(size=length)], axis=1)


def test_a_goal_goes_with_what_moves_and_another_object_does_not():
    found = column_roles(list(ways(20)), seed=0)
    assert found.moving.tolist() == [HAND, NOISE]
    assert found.goal.tolist() == [GOAL]
    assert found.episode.tolist() == [OBJECT]
    assert found.undecided.tolist() == []


def test_a_goal_that_nothing_reaches_is_not_one():
    found = [column_roles(list(ways(20, seed=n, reaches=False)), seed=0) for n in range(40)]
    linked = np.mean([np.isin([GOAL, OBJECT], one.goal) for one in found])
    free = np.mean([np.isin([GOAL, OBJECT], one.episode) for one in found])
    assert linked <= 0.15, "a test at 0.05"
    assert free >= 0.65, "above 0.2 nothing speaks for it"


def test_the_unit_of_a_column_does_not_matter():
    scaled = [way * [1e3, 1e-3, 1e5, 1, 1] + [0, 5, -3, 0, 0] for way in ways(12)]
    plain, found = column_roles(list(ways(12)), seed=0), column_roles(scaled, seed=0)
    for name in ("moving", "goal", "episode", "undecided"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(found, name))


@pytest.mark.parametrize("count", [0, 1, MIN_EPISODES - 1])
def test_few_episodes_tell_nothing(count):
    found = column_roles(list(ways(count)), seed=0)
    assert isinstance(found, Failure)
    assert f"{count} successful episodes" in found.detail
    one_row = [way[-1:] for way in ways(20)]
    assert isinstance(column_roles(one_row, seed=0), Failure)


def test_where_nothing_moves_no_column_is_a_goal():
    still = [np.tile(way[-1:], (5, 1)) for way in ways(10)]
    found = column_roles(still, seed=0)
    assert found.moving.tolist() == found.goal.tolist() == []
    assert found.episode.tolist() == [HAND, GOAL, OBJECT, NOISE]
