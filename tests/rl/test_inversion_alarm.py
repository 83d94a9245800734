"""The inversion alarm: a learned reward that gives moments from the first success on less than those before."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from guerdon.rl.episode_stats import FEWEST, NEWEST, OLDEST, EpisodeStats, SuccessOrder, inversion_alarm
from guerdon.statistics.classification import auroc_within, mean_auroc
from guerdon.types import RawScores, RewardInfo, Rewards, Rollout, Score
from rl_clock import Reader, clock_study, lines, read_moment, reader_reward, start


def happened(values, success, done, *, first=()):
    """One stream, and rewards of `rm` with its values after each step; `first`: (step, value) of first moments."""
    values, (success, done) = np.asarray(values, np.float32), np.array([success, done], np.bool_)[:, None]
    steps = np.flatnonzero(np.isfinite(values))
    found = [(step, values[step], done[0, step]) for step in steps] + [(*one, False) for one in first]
    numbers, scored, last = (np.array(column) for column in zip(*found, strict=True))
    scores = RawScores(np.zeros(len(found), np.int64), numbers, scored, 0.5, last_N=last)
    nothing, zeros = np.zeros_like(done), np.zeros(done.shape, np.float32)
    rollout = Rollout(
        inputs=(), log_probs=zeros, mask=~nothing, terminated=done, truncated=nothing, success=success,
        success_known=~nothing, rewards=zeros, failed=nothing,
    )  # fmt: skip
    return rollout, {"env": Rewards(zeros, nothing), "rm": Rewards(zeros, nothing, scores=scores)}, {"env": 1.0}, 5


def stats_of(**given):
    return EpisodeStats(["env", "rm"], ["rm"], 1, **given)


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "success", "wanted"),
    [
        ([3, 1, 2, 4, 0], [0, 0, 1, 0, 0], 0.5),  # of 3, 1 | 2, 4, 0 three pairs of six are in order
        ([2, 1, 2], [0, 1, 0], 0.25),  # 2 | 1, 2: one of two pairs is a tie
        ([2, 1, 2], [0, 0, 0], None),
        ([2, 1, 2], [1, 0, 0], None),
    ],
)
def test_moments_from_the_first_success_on_are_compared_with_those_before(values, success, wanted):
    done = [0] * (len(values) - 1) + [1]
    (row,) = stats_of().add(*happened(values, success, done))
    assert row["success_auroc/rm"] == wanted
    (row,) = stats_of(costs=["rm"]).add(*happened(values, success, done))
    assert row["success_auroc/rm"] == (None if wanted is None else 1 - wanted)


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        ([1, 1, 0, 1, 1, 1], 0.5),  # before: 3, 1; at the third step it may have succeeded, and so before the fourth
        ([0, 0, 0, 0, 1, 1], None),  # success is reported at the end alone
        ([1, 1, 1, 1, 1, 0], 0.5),
    ],
)
def test_moments_of_which_it_is_not_known_whether_success_was_before_do_not_count(known, wanted):
    """Also where a rollout ends and a state is stored in between."""
    values, success, done = [3, 1, 9, 9, 2, 2], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1]
    if known[2]:
        values = [3, 1, 3, 1, 2, 2]
    for cut in range(1, 6):
        keeping, rows = stats_of(), []
        for part in (slice(cut), slice(cut, None)):
            rollout, *more = happened(values[part], success[part], done[part])
            rollout.success_known[0] = np.array(known[part], np.bool_)
            rows += keeping.add(rollout, *more)
            other = stats_of()
            other.load_state_dict(json.loads(json.dumps(keeping.state_dict())))
            keeping = other
        (row,) = rows
        assert row["success_auroc/rm"] == wanted


def test_a_first_moment_and_a_missing_value_do_not_count():
    one = happened([1, 2, NAN, 7], [0, 1, 0, 0], [0, 1, 0, 0], first=[(-1, 9.0), (1, 9.0)])
    keeping = stats_of()
    (row,) = keeping.add(*one)
    assert row["success_auroc/rm"] == 1.0
    assert keeping.state_dict()["orders"] == {"rm": [([7.0], [False])]}


EPISODES = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6), min_size=1, max_size=4
)


@given(EPISODES, st.data())
def test_rollouts_may_cut_episodes_anywhere_and_a_state_may_be_stored_there(episodes, data):
    """The AUROC of each is that of its moments by scipy's Mann-Whitney U."""
    steps = [(value, won, k == len(one) - 1) for one in episodes for k, (value, won) in enumerate(one)]
    keeping, rows, at = stats_of(), [], 0
    while at < len(steps):
        length = data.draw(st.integers(1, len(steps) - at))
        rows += keeping.add(*happened(*zip(*steps[at : at + length], strict=True)))
        other = stats_of()
        other.load_state_dict(json.loads(json.dumps(keeping.state_dict())))
        keeping, at = other, at + length
    for row, one in zip(rows, episodes, strict=True):
        once = np.logical_or.accumulate([won for _, won in one])
        values = np.array([value for value, _ in one], float)
        wanted = None
        if once.any() and not once.all():
            u = stats.mannwhitneyu(values[once], values[~once]).statistic
            wanted = pytest.approx(u / (once.sum() * (~once).sum()), abs=1e-6)
        assert row["success_auroc/rm"] == wanted


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=30))
def test_the_area_within_groups_is_that_of_each_group(rows):
    labels, scores, groups = (np.array(column) for column in zip(*rows, strict=True))
    for group, found in zip(np.unique(groups), auroc_within(labels, scores, groups), strict=True):
        own = groups == group
        some, others = scores[own & labels], scores[own & ~labels]
        if len(some) and len(others):
            assert found == pytest.approx(stats.mannwhitneyu(some, others).statistic / (len(some) * len(others)))
        else:
            assert np.isnan(found)


def test_the_alarm_has_three_answers():
    assert inversion_alarm(None) is None
    low = mean_auroc(np.linspace(0.2, 0.4, 12))
    assert (low.estimate, low.n) == (pytest.approx(0.3), 12)
    assert low.high == pytest.approx(stats.t.interval(0.95, 11, 0.3, stats.sem(np.linspace(0.2, 0.4, 12)))[1])
    assert inversion_alarm(low) is True
    assert inversion_alarm(mean_auroc(np.linspace(0.2, 0.9, 12))) is False
    assert inversion_alarm(mean_auroc(np.zeros(12))) is True, "Wilson's interval, where nothing varies"
    assert inversion_alarm(mean_auroc(np.ones(12))) is False
    assert inversion_alarm(mean_auroc(np.full(12, 0.3))) is None, "equal numbers show no spread"
    assert SuccessOrder(2, cost=False).open == [([], []), ([], [])]


def test_the_start_of_a_run_does_not_stand_in_for_the_newest_episodes():
    """40 inverted episodes; then the reward is not measured any more, or nothing is before success."""
    for later in (([NAN, NAN, NAN, 5], [0, 1, 0, 0]), ([1, 2, 3, 5], [1, 0, 0, 0])):
        keeping = stats_of()
        for n in range(NEWEST + OLDEST):
            values, success = ([3, 1, 0, 2], [0, 1, 0, 0]) if n < OLDEST else later
            rows = keeping.add(*happened(values, success, [0, 0, 0, 1]))
            alarm, said = keeping.summary(rows)["inversion_alarm"], keeping.inversion()
            known = FEWEST - 1 <= n <= NEWEST + OLDEST - 1 - FEWEST
            assert (alarm, bool(said)) == ((1, True) if known else (None, False)), n


class Count(Reader):
    """Scores a moment by its step, times a sign; success is at every third step."""

    def __init__(self, sign):
        super().__init__()
        self.sign = sign

    info = RewardInfo(name="count", range=(-10, 10), success_threshold=0.5)

    def score(self, episodes):
        return [Score.from_values(self.sign * np.array([read_moment(f)[1] for f in one.frames])) for one in episodes]


@pytest.mark.parametrize(("sign", "alarm"), [(-1.0, 1), (1.0, 0)])
def test_a_run_says_when_success_gets_less(tmp_path, capsys, sign, alarm):
    study = clock_study(
        tmp_path, reward=reader_reward(combine_mode="add"), env={"kwargs": {"fixed": 8}, "native_reward": "dense"},
        runner={"total_steps": 240, "eval_every": 80},
    )  # fmt: skip
    start(study, reader=Count(sign)).run()
    rows = [row for row in lines(study) if row["kind"] == "train"]
    finished = np.cumsum([row["episodes"] for row in rows])
    for row, count in zip(rows, finished, strict=True):
        known = count >= FEWEST
        assert (row["success_auroc/constant"], row["inversion_alarm"]) == (
            (1 - alarm, alarm) if known else (None, None)
        )
    assert {row["success_auroc/constant"] for row in lines(study, "episodes")} == {1 - alarm}
    said = (
        "INVERSION ALARM: constant values moments from the first success on above those before it with probability "
        "0.00 [0.00, 0.16], in the newest 20 training episodes that have both"
    )
    assert (said in capsys.readouterr().err) == bool(alarm)


@pytest.mark.parametrize("mode", ["terminal", "none"])
def test_without_values_of_single_moments_it_is_unknown(tmp_path, mode):
    reward = {} if mode == "none" else {**reader_reward(combine_mode="add"), "reward_mode": "terminal"}
    study = clock_study(tmp_path, reward=reward, env={"native_reward": "dense"}, runner={"total_steps": 240})
    start(study).run()
    rows = [row for row in lines(study) if row["kind"] == "train"]
    assert {row.get("inversion_alarm", "absent") for row in rows} == {None if mode == "terminal" else "absent"}
