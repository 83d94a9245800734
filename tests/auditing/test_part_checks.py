"""Parts of a reward that is a sum: dead, falling, dominating, opposite, multiplied; and honest sums beside them."""

from dataclasses import replace

import numpy as np
import pytest

from guerdon.auditing.checks import audit
from guerdon.auditing.rows import Rows

STEPS, SIZE, GROUPS = 12, 6, 20
RNG = np.random.default_rng(4)
N = STEPS * SIZE * GROUPS
STEP = np.repeat(np.arange(STEPS), SIZE * GROUPS)
LATE = STEP / (STEPS - 1)
RIGHT = (RNG.random(N) < 0.3 + 0.4 * LATE).astype(float)
TIDY = (RNG.random(N) < 0.8).astype(float)
NOISE = RNG.standard_normal(N)


def log(parts, *, reward=None, truth=True):
    total = sum(parts.values()) if reward is None else reward
    return Rows(
        layout="test",
        files=("log.jsonl",),
        file_N=np.zeros(N, np.int64),
        line_N=np.arange(1, N + 1),
        reward_N=total.astype(float),
        rewards={name: values.astype(float) for name, values in parts.items()},
        truth_N=RIGHT if truth else None,
        step_N=STEP,
        prompt_N=np.repeat(np.arange(N // SIZE), SIZE),
        group_N=np.repeat(np.arange(N // SIZE), SIZE),
    )


def found(rows):
    return {one.name: one for one in audit(rows).findings if one.name.startswith("part_")}


@pytest.mark.parametrize("truth", [True, False])
def test_honest_sums_are_clean(truth):
    for parts in (
        {"accuracy": RIGHT, "format": 0.2 * TIDY},
        {"accuracy": RIGHT, "length_penalty": -0.1 * np.exp(0.3 * NOISE) * (1 + 0.5 * LATE)},
        {"quality": RIGHT + 0.4 * NOISE, "format": 0.1 * TIDY},
    ):
        rows = log(parts, truth=truth)
        assert not found(rows)
        assert {"part_dead", "part_falls", "part_dominates", "part_opposite", "part_scaled"} <= set(audit(rows).clean)
    weighted = log({"accuracy": RIGHT, "format": TIDY}, reward=2 * RIGHT + 0.3 * TIDY + 1)
    assert "part_falls" in audit(weighted).clean


def test_a_part_that_is_never_paid():
    one = found(log({"accuracy": RIGHT, "citations": 0 * RIGHT, "format": 0.2 * TIDY}))
    assert set(one) == {"part_dead"}
    assert one["part_dead"].severity == "info"
    assert "citations is 0" in one["part_dead"].title


def test_a_dead_part_beside_one_that_is_the_whole_reward():
    """A reader leaves out a column that is a copy of the reward, here of its only other part."""
    one = found(log({"format": 0 * RIGHT}, reward=RIGHT))
    assert "format is 0" in one["part_dead"].title


def test_a_part_that_falls_while_the_reward_rises():
    style = 3 * LATE + 0.2 * NOISE
    one = found(log({"accuracy": RIGHT, "style": style, "brevity": -LATE + 0.1 * NOISE}))
    assert "brevity falls" in one["part_falls"].title
    assert one["part_falls"].interval[0] < one["part_falls"].effect < one["part_falls"].interval[1] < 0
    worse = (RNG.random(N) < 0.8 - 0.6 * LATE).astype(float)
    hacked = replace(log({"accuracy": worse, "style": style}), truth_N=worse)
    assert found(hacked)["part_falls"].severity == "error"


def test_a_part_that_grows_until_it_decides():
    one = found(log({"accuracy": RIGHT, "style": 2 * LATE * (1 + 0.3 * NOISE)}))
    assert "style grows beyond all that it was" in one["part_dominates"].title
    better = RIGHT + 1.5 * LATE + 0.3 * NOISE  # what the run is about may become better
    assert "part_dominates" not in found(log({"quality": better, "format": 0.1 * TIDY}, truth=False))


def test_a_part_that_swamps_what_goes_with_the_truth():
    one = found(log({"accuracy": RIGHT, "length": 8 * NOISE}))
    assert "length makes up" in one["part_dominates"].title
    assert "part_dominates" not in found(log({"accuracy": RIGHT, "length": 8 * NOISE}, truth=False))


def test_a_part_that_works_against_the_reward():
    wrong_sign = found(log({"accuracy": RIGHT, "style": NOISE}, reward=NOISE - 0.5 * RIGHT))
    assert wrong_sign["part_opposite"].severity == "error"
    assert "accuracy goes with the truth" in wrong_sign["part_opposite"].title
    against = found(log({"style": 2 * NOISE, "cost": -NOISE + 0.3 * RNG.standard_normal(N)}))
    assert "cost works against" in against["part_opposite"].title


def test_a_part_that_multiplies_another():
    one = found(log({"accuracy": RIGHT, "format": TIDY}, reward=RIGHT * TIDY))
    assert set(one) == {"part_scaled"}
    assert "is 0 in" in one["part_scaled"].title
    both = log({"accuracy": RIGHT, "format": TIDY, "cost": NOISE}, reward=RIGHT * TIDY + 0.1 * NOISE)
    assert set(found(both)) == {"part_scaled"}


def test_columns_that_are_no_parts_are_said_and_nothing_is_concluded():
    result = audit(log({"judge": NOISE, "other": RIGHT}, reward=RNG.standard_normal(N)))
    assert "judge, other do not" in result.unchecked["part_falls"]
    assert "part_falls" in audit(log({}, reward=RIGHT)).unchecked
    short = audit(replace(log({"a": RIGHT, "b": TIDY}), step_N=STEP * 0))
    assert "steps" in short.undecided["part_falls"]
    apart = replace(log({"a": RIGHT, "b": TIDY}), step_N=None)
    assert "step" in audit(apart).unchecked["part_falls"]
    assert "and vary" in audit(log({"a": 0 * RIGHT, "b": 0 * TIDY}, reward=RIGHT)).unchecked["part_falls"]


def test_only_a_truth_that_is_known_early_and_late_excuses_a_part_that_grows():
    grown = log({"accuracy": RIGHT, "style": 2 * LATE * (1 + 0.3 * NOISE)})
    risen = (RNG.random(N) < 0.05 + 0.9 * LATE).astype(float)
    assert "part_dominates" not in found(replace(grown, truth_N=risen))
    for truth in (None, np.where(STEP < 2 * STEPS // 3, risen, np.nan)):
        assert "style grows" in found(replace(grown, truth_N=truth))["part_dominates"].title
