import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student_t

from guerdon.pages.formats import speed_sentence, speed_text
from guerdon.statistics.learning_curves import pair_reach, steps_ratio

STEPS = (0, 100, 200, 300, 400)


def ratio(base, arm, censored=None, **kwargs):
    return steps_ratio(base, arm, np.zeros(np.shape(base), bool) if censored is None else censored, seed=0, **kwargs)


def test_reach_is_the_first_evaluation_at_or_above_the_baselines_final_score():
    reach = pair_reach(STEPS, (0, 0.2, 0.5, 0.7, 0.6), STEPS, (0, 0.6, 0.9, 0.1, 0.9))
    assert reach == (300, 100, False, 200, 0)
    never = pair_reach(STEPS, (0, 0.2, 0.4, 0.6, 0.8), STEPS[:4], (0, 0.2, 0.5, 0.79))
    assert never == (400, 300, True, 300, 300)


@pytest.mark.parametrize(
    ("base", "arm"),
    [
        ((0, 0, 0, 0, 0), (0, 0.1, 0.2, 0.3, 0.4)),  # nothing to reach
        ((0.5, 0.6, 0.4, 0.4, 0.4), (0, 0.1, 0.2, 0.3, 0.4)),  # the baseline was there before its first step
        ((0, 0.1, 0.2, 0.3, 0.4), (0.5, 0.6, 0.7, 0.8, 0.9)),  # the arm was
    ],
)
def test_nothing_to_reach_is_undefined(base, arm):
    reach = pair_reach(STEPS, base, STEPS, arm)
    assert np.isnan(reach.baseline)
    assert np.isnan(reach.arm)
    assert not reach.censored
    assert np.isnan(pair_reach((), (), STEPS, arm).arm)


def test_geometric_mean_and_t_interval_by_hand():
    result = ratio([[400, 400, 400]], [[100, 200, 400]])  # ratios 4, 2, 1
    logs = np.log([4, 2, 1])
    half = student_t.ppf(0.975, 2) * logs.std(ddof=1) / np.sqrt(3)
    assert result.interval.estimate == pytest.approx(2)
    assert result.interval.low == pytest.approx(2 * np.exp(-half))
    assert result.interval.high == pytest.approx(2 * np.exp(half))
    assert (result.conclusion, result.interval.n, result.censored) == ("no difference shown", 3, 0)


def test_the_ends_are_those_of_the_evaluations_between_which_the_level_was_crossed():
    base, arm = [[400, 400, 400]], [[100, 200, 200]]
    plain = ratio(base, arm)
    wide = ratio(base, arm, baseline_after_K_S=[[300, 300, 300]], arm_after_K_S=[[50, 100, 100]])
    assert wide.interval.estimate == plain.interval.estimate
    assert wide.interval.low == pytest.approx(plain.interval.low * 3 / 4)  # crossed after 300, and not after 400
    assert wide.interval.high == pytest.approx(plain.interval.high * 2)
    open_above = ratio(base, arm, baseline_after_K_S=[[300, 300, 300]], arm_after_K_S=[[0, 100, 100]])
    assert (open_above.interval.low, open_above.interval.high) == (wide.interval.low, None)
    open_below = ratio(base, arm, baseline_after_K_S=[[0, 300, 300]], arm_after_K_S=[[50, 100, 100]])
    assert (open_below.interval.low, open_below.interval.high) == (None, wide.interval.high)
    assert speed_text(open_above)[1].endswith(", –]")


def test_ends_never_move_towards_the_estimate():
    base, arm = [[400, 400, 400]], [[100, 200, 400]]
    tight = ratio(base, arm, baseline_after_K_S=[[110, 200, 390]], arm_after_K_S=[[90, 180, 360]])
    assert tight.interval.low <= ratio(base, arm).interval.low
    assert tight.interval.high >= ratio(base, arm).interval.high


def test_tasks_weigh_the_same_whatever_their_seeds():
    result = ratio([[800, 800], [100, np.nan]], [[100, 100], [100, 100]])
    assert result.interval.estimate == pytest.approx(np.sqrt(8))  # 8 on one task, 1 on the other
    assert (result.interval.n, result.interval.n_undefined) == (3, 1)


def test_fewer_and_more_need_an_interval_that_excludes_one():
    arm = [[100, 110, 90, 105, 95]]
    base = [[250, 240, 260, 255, 245]]
    assert ratio(base, arm).conclusion == "fewer"
    assert ratio(arm, base).conclusion == "more"
    assert ratio(base, base).conclusion == "no difference shown"


def test_a_censored_pair_forbids_fewer_and_leaves_only_an_upper_limit():
    base, arm = [[400, 400, 400, 400]], [[100, 100, 110, 400]]
    open_end = ratio(base, arm, [[False, False, False, True]])
    assert open_end.interval == ratio(base, arm).interval.__class__(
        ratio(base, arm).interval.estimate, None, ratio(base, arm).interval.high, 4
    )
    assert (open_end.conclusion, open_end.censored) == ("no difference shown", 1)
    slow = ratio([[100, 100, 100]], [[400, 390, 400]], [[True, False, True]])
    assert slow.conclusion == "more"  # needing even longer would only make it slower


def test_no_pair_is_undefined_and_one_pair_has_no_interval():
    none = ratio([[np.nan]], [[100]])
    assert none.interval.estimate is None
    assert none.interval.n_undefined == 1
    assert none.conclusion == "no difference shown"
    assert ratio([[200]], [[100]]).interval.low is None
    with pytest.raises(ValueError, match="same"):
        ratio([[200]], [[100, 200]], [[False]])


positive = st.lists(st.floats(1, 1e6), min_size=3, max_size=6)


@given(positive, st.floats(0.01, 100), st.integers(0, 2**31))
def test_swapping_arms_inverts_and_units_do_not_matter(base, unit, seed):
    arm = np.random.default_rng(seed).uniform(1, 1e6, len(base))
    one, swapped, scaled = ratio([base], [arm]), ratio([arm], [base]), ratio([np.multiply(base, unit)], [arm * unit])
    assert one.interval.estimate * swapped.interval.estimate == pytest.approx(1)
    assert scaled.interval.estimate == pytest.approx(one.interval.estimate)
    if one.interval.low is not None:
        assert one.interval.low * swapped.interval.high == pytest.approx(1)
        assert {one.conclusion, swapped.conclusion} in ({"fewer", "more"}, {"no difference shown"})


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_a_run_against_itself_takes_the_same_steps(scores):
    steps = np.arange(1, len(scores) + 1)
    reach = pair_reach(steps, scores, steps, scores)
    assert not reach.censored
    assert np.isnan(reach.arm) == (scores[-1] == 0)
    assert np.isnan(reach.arm) or reach.arm == reach.baseline


def test_a_level_that_is_never_reached_is_one_sentence():
    never = ratio([[400.0, 390.0, 410.0]], [[1000.0, 1000.0, 1000.0]], censored=np.ones((1, 3), bool))
    assert never.conclusion == "more"
    assert speed_text(never) == ("not reached in 3 of 3 pairs", "", "")
    said = speed_sentence(never, "PRIME", "RLOO", "responses")
    assert said == "PRIME does not reach the final success of RLOO in any of 3 pairs of runs."
