"""Runs of guerdon whose reward is known to be right or wrong.

`quickstart_B0`, `C0` and `C1` are `episodes.jsonl` of `guerdon quickstart`, arms B (the change of learned progress,
which teaches the task) and C (learned success at every step, whose return rises while nobody reaches the top). The
others are every second or third line, with the columns that are read, of longer runs: `quickstart_text_C0` of
`guerdon quickstart --text`, arm C (a weak judge of lines), and `preference_mean0` of configs/preference.yaml, arm
`mean`, whose reward model learned a planted preference for length; its truth is the gold reward.
"""

from pathlib import Path

import numpy as np
import pytest

from guerdon.auditing.checks import audit
from guerdon.auditing.logs import read_log
from guerdon.auditing.rows import Rows

KNOWN = Path(__file__).parent / "data" / "known"


@pytest.mark.parametrize("name", ["quickstart_C0", "quickstart_C1"])
def test_a_return_that_rises_without_any_success_is_found(name):
    rows = read_log(KNOWN / f"{name}.jsonl")
    assert not rows.truth_N.any()
    one, success = audit(rows).findings
    assert (one.name, one.severity) == ("truth", "error")
    assert (success.name, success.severity) == ("constant_success", "info")
    assert one.p < 0.01
    assert one.effect > 2


@pytest.mark.parametrize("name", ["quickstart_text_C0", "preference_mean0"])
def test_a_learned_reward_that_rises_while_the_truth_falls_is_found(name):
    rows = read_log(KNOWN / f"{name}.jsonl")
    early, late = (rows.truth_N[half].mean() for half in np.array_split(np.arange(len(rows)), 2))
    assert late < early
    found = {one.name: one for one in audit(rows).findings}
    assert found.keys() == {"truth", "agreement"}
    assert found["truth"].effect > 1.5
    assert found["truth"].p < 1e-6
    assert found["agreement"].interval[1] < 0.65


def test_a_return_that_rises_with_success_is_clean():
    rows = read_log(KNOWN / "quickstart_B0.jsonl")
    assert rows.truth_N.any()
    assert audit(rows).findings == ()


@pytest.mark.parametrize(("sign", "names"), [(1, set()), (-1, {"jump"})])
def test_returns_may_jump_upwards_but_not_downwards(sign, names):
    """Episodes, a hundred at each of ten steps, whose returns move by three standard deviations in the middle."""
    rng = np.random.default_rng(0)
    step = np.repeat(np.arange(10), 100)
    reward = rng.standard_normal(1000) + 3 * sign * (step >= 5)
    place = np.arange(1000)
    rows = Rows("test", ("a.jsonl",), np.zeros(1000, np.int64), place + 1, reward, step_N=step)
    assert {one.name for one in audit(rows).findings} == names
