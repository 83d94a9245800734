"""Reward and truth over a run: the sentence that is said, and when none can be."""

from dataclasses import replace

import numpy as np
import pytest

from guerdon.auditing.course import course_of, welch_interval
from guerdon.auditing.log_view import View
from guerdon.auditing.rows import RobotSteps, Rows

STEPS, GROUPS, K = 40, 8, 4


def course(truth, reward, *, seed=0, groups=GROUPS, own=True, **more):
    """The course of a run in which truth and reward are drawn with a probability at each step."""
    random = np.random.default_rng(seed)
    step_N = np.repeat(np.arange(STEPS), groups * K)
    x = step_N / (STEPS - 1)
    truth_N = (random.random(len(x)) < truth(x)).astype(float)
    reward_N = reward(x, truth_N, random)
    n = len(x)
    rows = Rows("plain columns", ("a",), np.zeros(n, int), np.arange(n), reward_N, truth_N=truth_N, step_N=step_N,
                group_N=np.arange(n) // K, **more)  # fmt: skip
    view = View.whole(rows)
    return course_of(view if own else replace(view, rows=replace(rows, truth_N=None)))


def noisy(x, truth, random):
    return truth + random.normal(0, 0.3, len(x))


KINDS = {
    "both rise": (lambda x: 0.2 + 0.6 * x, noisy),
    "alone": (lambda x: 0.3 + 0 * x, lambda x, t, r: t + 2 * x + r.normal(0, 0.3, len(x))),
    "flat": (lambda x: 0.4 + 0 * x, noisy),
    "truth falls": (lambda x: 0.8 - 0.5 * x, lambda x, t, r: 2 * x + r.normal(0, 0.3, len(x))),
    "saturated": (lambda x: np.minimum(0.3 + 2 * x, 0.99), lambda x, t, r: np.minimum(t + (x > 0.5), 1)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_run_has_its_sentence(kind):
    for seed in range(5):
        found = course(*KINDS[kind], seed=seed, groups=40)
        assert found.kind == kind, found.sentence
        assert found.sentence.endswith(".")
        assert found.truth_from == "the log, 6,400 of 6,400 rows"
        assert set(found.series) == {"reward", "truth"}
        if kind == "saturated":
            assert 9 <= found.step <= 20  # from where four of five have the highest value to where all of them have it
            assert f"saturated from step {found.step} on" in found.sentence


def test_means_of_rewards_that_cancel_are_0_and_not_what_rounding_leaves():
    n, spread = STEPS * GROUPS * K, np.tile([0.1, 0.2, -0.3, 0.0], STEPS * GROUPS)
    step_N = np.repeat(np.arange(STEPS), GROUPS * K)
    rows = Rows("plain columns", ("a",), np.zeros(n, int), np.arange(n), spread, step_N=step_N,
                group_N=np.arange(n) // K)  # fmt: skip
    found = course_of(View.whole(rows))
    assert np.mean(spread[:K]) != 0
    assert (found.reward.first, found.reward.last) == (0, 0)


def test_a_truth_that_falls_from_its_best_falls_although_it_ends_where_it_began():
    found = course(lambda x: 0.3 + 0.55 * np.sin(np.pi * x), lambda x, t, r: x + r.normal(0, 0.1, len(x)))
    assert found.kind == "truth falls"
    assert "at its best to" in found.sentence


@pytest.mark.parametrize(
    ("reward", "why"),
    [
        (lambda x, t, r: t.copy(), "the truth is the reward itself, row by row"),
        (lambda x, t, r: t + 0.5 * r.random(len(x)), "the truth is a threshold of the reward"),
    ],
)
def test_a_truth_that_copies_the_reward_is_no_evidence_unless_it_was_verified(reward, why):
    rises = KINDS["both rise"][0]
    found = course(rises, reward)
    assert found.kind == "unknown"
    assert why in found.sentence
    verified = course(rises, reward, own=False)
    assert verified.kind == "both rise"
    assert verified.truth_from == "guerdon's verifier, by the reference answers of 1,280 of 1,280 rows"


def test_with_few_rows_it_is_unknown_and_says_what_is_missing():
    unknown = [course(lambda x: 0.4 + 0.1 * x, noisy, groups=1, seed=seed) for seed in range(10)]
    assert sum(one.kind == "unknown" for one in unknown) >= 6
    said = next(one.sentence for one in unknown if one.kind == "unknown")
    assert "so it needs more rows" in said
    n = np.arange(12)
    rows = Rows("x", ("a",), n * 0, n, n % 2 * 1.0)
    assert "it needs rows of 4 steps of training, and the log names none" in course_of(View.whole(rows)).sentence
    rows = replace(rows, step_N=n % 3)
    assert "and the log has 3" in course_of(View.whole(rows)).sentence
    rows = replace(rows, step_N=n // 2)
    assert "but the log has no truth, nor reference answers" in course_of(View.whole(rows)).sentence


def test_honest_flat_runs_are_seldom_called_something_else():
    kinds = [course(*KINDS["flat"], seed=seed).kind for seed in range(100)]
    assert (
        sum(kind not in ("flat", "unknown") for kind in kinds) <= 6
    )  # a test at 5 %, of truth or reward, that is large


def test_welch_intervals_are_those_of_scipy():
    from scipy.stats import ttest_ind

    a, b = np.random.default_rng(0).normal(size=20), np.random.default_rng(1).normal(1, 3, size=9)
    wanted = ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert welch_interval(a, b) == pytest.approx((wanted.low, wanted.high))


CURVES = {  # of a reward and of a success rate over the run, 0 to 1
    "both rise": (lambda x: 100 * x, lambda x: 0.2 + 0.6 * x),
    "alone": (lambda x: 100 * x, lambda x: 0.3 + 0 * x),
    "flat": (lambda x: 0.5 + 0 * x, lambda x: 0.3 + 0 * x),
    "truth falls": (lambda x: 100 * x, lambda x: 0.8 - 0.5 * x),
}


def scalars(reward, truth, *, points=120, seed=0, noise=0.03):
    """A log of scalars alone, the reward at every second step."""
    random, step_P = np.random.default_rng(seed), np.arange(points) * 10
    x, none = np.linspace(0, 1, points), np.zeros(0)
    values = [of(x) + noise * max(np.ptp(of(x)), 1.0) * random.standard_normal(points) for of in (reward, truth)]
    curves = {
        "rollout/ep_rew_mean": (step_P[::2], values[0][::2]),
        "rollout/success_rate": (step_P, np.clip(values[1], 0, 1)),
    }
    return Rows("scalars", ("events",), none.astype(int), none.astype(int), none, curves=curves)


@pytest.mark.parametrize("kind", CURVES)
def test_scalars_alone_have_a_sentence(kind):
    for seed in range(5):
        reward, truth = CURVES[kind]
        noise = 0.002 if kind == "flat" else 0.03
        found = course_of(View.whole(scalars(reward, truth, seed=seed, noise=noise)))
        assert found.kind == kind, found.sentence
        assert found.truth_from == "the curve rollout/success_rate"
        assert [len(values) for values in found.series["reward"]] == [60, 60, 60]  # steps that both curves have


def test_scalars_that_cannot_say_it_name_what_is_missing():
    reward, truth = CURVES["both rise"]
    few = course_of(View.whole(scalars(reward, truth, points=30)))
    assert few.kind == "unknown"
    assert "needs 24 points of the reward and of the truth; rollout/ep_rew_mean has 15" in few.sentence
    rows = scalars(reward, truth)
    alone = replace(rows, curves={"rollout/ep_rew_mean": rows.curves["rollout/ep_rew_mean"]})
    found = course_of(View.whole(alone))
    assert found.kind == "unknown"
    assert "the reward rises" in found.sentence
    assert "the log has no curve of a truth" in found.sentence
    none = course_of(View.whole(replace(rows, curves={"train/lr": rows.curves["rollout/success_rate"]})))
    assert "nor a curve of one" in none.sentence
    copied = replace(rows, curves=rows.curves | {"rollout/ep_rew_mean": rows.curves["rollout/success_rate"]})
    assert "the truth is the reward itself" in course_of(View.whole(copied)).sentence


def robots(reward, truth, *, episodes=240, seed=0):
    """Steps of robots: five a return of which is drawn, and success at the last one."""
    random, length = np.random.default_rng(seed), 5
    x = np.linspace(0, 1, episodes)
    success_E = (random.random(episodes) < truth(x)).astype(float)
    return_E = reward(x, success_E) + 0.2 * random.standard_normal(episodes)
    n, last = episodes * length, np.arange(episodes * length) % length == length - 1
    return Rows(
        "steps", ("a",), np.zeros(n, int), np.arange(n), np.repeat(return_E / length, length),
        truth_N=np.repeat(success_E, length) * last,
        steps=RobotSteps(np.repeat(np.arange(episodes), length), np.tile(np.arange(length), episodes)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "reward", "truth"),
    [
        ("both rise", lambda x, s: s + x, lambda x: 0.1 + 0.8 * x),
        ("truth falls", lambda x, s: 2 * x, lambda x: 0.9 - 0.7 * x),
        ("unknown", lambda x, s: 5 * s, lambda x: 0.1 + 0.8 * x),
    ],
)
def test_episodes_of_robots_have_a_sentence(kind, reward, truth):
    for seed in range(5):
        found = course_of(View.whole(robots(reward, truth, seed=seed)))
        assert found.kind == kind, found.sentence
        assert found.truth_from == "the success of 240 episodes, in their order"
    assert ("a threshold of the reward" in found.sentence) == (kind == "unknown")


def test_episodes_of_robots_without_success_or_too_few_say_so():
    rows = robots(lambda x, s: s + x, lambda x: 0.5 + 0 * x)
    assert "does not say which episodes succeed" in course_of(View.whole(replace(rows, truth_N=None))).sentence
    few = course_of(View.whole(robots(lambda x, s: s, lambda x: 0.5 + 0 * x, episodes=10)))
    assert "it needs 24 episodes, and the log has 10" in few.sentence
    same = course_of(View.whole(replace(rows, truth_N=np.ones(len(rows)))))
    assert "the success of all episodes is the same" in same.sentence
