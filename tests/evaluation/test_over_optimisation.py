"""Over-optimisation: the estimate against all subsets, the KL by numerical integration, and the turning point."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from text_models import Scripted, solution

from guerdon.errors import ConfigError
from guerdon.evaluation.benchmarks.over_optimisation import (
    best_of_n_gold,
    best_of_n_kl,
    best_of_n_record,
    gold_curve,
    gold_lines,
)
from guerdon.evaluation.suites.text_suite import Sets, evaluate_text
from guerdon.settings.evaluate import EvaluateTextSettings
from guerdon.types import Failure, RewardInfo, Score


@pytest.mark.parametrize("n", [1, 2, 5, 64, 1000])
def test_the_kl_is_that_of_the_largest_of_n_uniform_values(n):
    """The largest of n has density n u^(n-1) against 1 of one sample; KL = integral of p log p."""

    def term(u):
        return n * u ** (n - 1) * (np.log(n) + (n - 1) * np.log(u))

    kl = integrate.quad(term, 1e-12, 1, limit=200)[0]
    assert best_of_n_kl(n) == pytest.approx(kl, abs=1e-7)


def test_the_kl_needs_a_sample():
    with pytest.raises(ValueError, match="at least 1"):
        best_of_n_kl(0)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5)), min_size=1, max_size=7))
def test_the_estimate_is_the_mean_over_all_subsets(samples):
    """Every subset of n chooses its sample of the largest value; ties are split evenly."""
    values, golds = np.array(samples, float).T
    ns = list(range(1, len(samples) + 1))
    found = best_of_n_gold([values], [golds], ns, reps=10)["gold"]
    wanted = []
    for n in ns:
        subsets = [list(one) for one in combinations(range(len(values)), n)]
        chosen = [golds[s][values[s] == values[s].max()].mean() for s in subsets]
        wanted.append(np.mean(chosen))
    assert found.start.estimate == pytest.approx(golds.mean())
    assert [one.estimate for one in found.gain] == pytest.approx(np.array(wanted) - golds.mean(), abs=1e-9)


def test_the_best_of_n_of_ranks_has_a_closed_form():
    """The largest of n of the ranks 1 ... N has mean n (N + 1) / (n + 1)."""
    ranks = np.random.default_rng(0).permutation(100) + 1.0
    ns = [1, 2, 4, 8, 16, 32, 64]
    found = best_of_n_gold([ranks], [-ranks], ns, reps=10)
    wanted = [n * 101 / (n + 1) - 50.5 for n in ns]
    assert [one.estimate for one in found["model"].gain] == pytest.approx(wanted)
    assert [one.estimate for one in found["gold"].gain] == pytest.approx([-x for x in wanted])
    assert found["gold"].sqrt_kl == pytest.approx([best_of_n_kl(n) ** 0.5 for n in ns])


def parabola(units, *, a=4.0, b=1.0, spread=0.2, seed=0):
    """R(d) = s d (a - b d), the form of 2210.10760 for best-of-n, with a factor s for each unit; it turns at a / 2b."""
    distances = np.linspace(0, 4, 9)
    scale = 1 + spread * np.random.default_rng(seed).normal(size=(units, 1))
    return scale * distances * (a - b * distances), distances, scale[:, 0]


def test_the_turning_point_of_a_parabola():
    """It rises by a^2 / 4b = 4 up to d = 2 and falls by as much up to d = 4, in every unit times its factor."""
    rewards, distances, scale = parabola(30)
    turn = gold_curve(rewards, distances).turn
    assert (turn.place.estimate, turn.place.low, turn.place.high) == (2.0, 2.0, 2.0)
    low, high = stats.t.interval(0.95, 29, loc=4 * scale.mean(), scale=stats.sem(4 * scale))
    assert (turn.rise.estimate, turn.rise.low, turn.rise.high) == pytest.approx((4 * scale.mean(), low, high))
    assert (turn.fall.estimate, turn.fall.low, turn.fall.high) == pytest.approx((-4 * scale.mean(), -high, -low))
    assert turn.shown


@pytest.mark.parametrize("a", [0.0, 8.0])
def test_a_curve_that_only_falls_or_only_rises_does_not_turn(a):
    rewards, distances, _ = parabola(30, a=a)
    turn = gold_curve(rewards, distances).turn
    assert not turn.shown
    assert turn.place.estimate == (0.0 if a == 0 else 4.0)
    assert (turn.rise if a == 0 else turn.fall).estimate == 0


def test_noise_alone_is_not_taken_for_a_turn():
    """The highest point of a flat noisy curve is above both ends; taken elsewhere, its height is not."""
    rng = np.random.default_rng(1)
    turns = [gold_curve(rng.normal(size=(20, 8)), np.arange(8.0), reps=10).turn for _ in range(300)]
    assert np.mean([turn.shown for turn in turns]) < 0.05
    rises = [turn.rise.estimate for turn in turns]
    assert abs(np.mean(rises)) < 4 * stats.sem(rises)


def test_units_with_distances_of_their_own():
    rewards, distances, _ = parabola(5)
    found = gold_curve(rewards, distances * np.linspace(0.8, 1.2, 5)[:, None])
    assert found.sqrt_kl == pytest.approx(distances)
    assert found.turn.place.estimate == pytest.approx(2.0)
    assert found.turn.place.low < 2.0 < found.turn.place.high


def test_units_without_a_point_are_left_out_and_counted():
    rewards, distances, _ = parabola(10)
    rewards[3, 2] = np.nan
    found = gold_curve(rewards, distances)
    alone = gold_curve(np.delete(rewards, 3, axis=0), distances)
    assert found.gain[4].estimate == pytest.approx(alone.gain[4].estimate, rel=1e-12)  # sums over 10 rows and over 9
    assert (found.gain[4].n, found.gain[4].n_undefined) == (9, 1)
    assert (found.turn.place.n, found.turn.place.n_undefined) == (9, 1)
    nothing = gold_curve(np.full((2, 3), np.nan), np.arange(3.0))
    assert (nothing.gain, nothing.turn.place.estimate, nothing.turn.place.n_undefined) == ([], None, 2)
    one = gold_curve(rewards[:1], distances).turn
    assert (one.rise.low, one.fall.high, one.shown) == (None, None, False)


def test_what_was_not_measured_is_left_out_and_counted():
    solutions = [replace(solution(f"{q}{k}"), question=q) for q in "ab" for k in range(4)]
    values = [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, Failure("late"), 4.0]
    golds = [0.0, 1.0, Failure("none"), 5.0, 1.0, 1.0, 1.0, 0.0]
    record, picture = best_of_n_record(solutions, values, golds, (2, 1), reps=100, seed=0)
    assert record["n"] == [1, 2]
    assert record["failures"] == {"gold": {"none": 1}, "model": {"late": 1}}
    assert record["gold"]["start"]["estimate"] == pytest.approx((2 + 2 / 3) / 2)
    best = ((1 + 5 + 5) / 3, (1 + 0 + 0) / 3)
    assert record["gold"]["gain"][1]["estimate"] == pytest.approx(np.mean(best) - 4 / 3)
    assert "1 none (gold), 1 late (model)" in gold_lines(record)[-1]
    assert picture.startswith("<svg")
    record, _ = best_of_n_record(solutions, values, golds, None, reps=100, seed=0)
    assert record["n"] == [1, 2, 4], "of the samples drawn, not of those measured"
    assert (record["gold"]["gain"], record["gold"]["start"]["n_undefined"]) == ([], 2)
    assert "not shown" in "\n".join(gold_lines(record))


TOTAL = RewardInfo("total", (-100.0, 100.0), granularity="total", modality="text", frames_needed=0)


def gold():
    """The number of steps up to 12, and one less for each step more."""
    return Scripted(lambda e: Score(total=float(min(len(e.texts), 24 - len(e.texts)))), TOTAL)


def relative():
    return Scripted(lambda e: Score(total=0.0), replace(TOTAL, compares=True))


def settings(name):
    best = {"samples": "not read", "ns": (1, 2, 4, 8, 16), "gold": f"test_over_optimisation:{name}"}
    return EvaluateTextSettings(aggregation="last", best_of_n=best, attacks=None)


def test_an_evaluation_shows_where_gold_turns_down(tmp_path):
    """The model likes length without end; answers need not be checked."""
    rng = np.random.default_rng(0)
    samples = [
        solution(f"{q}-{k}", question=f"q{q}", steps=int(rng.integers(1, 21))) for q in range(40) for k in range(16)
    ]
    model = Scripted(lambda e: Score(total=float(len(e.texts))), TOTAL)
    given = settings("gold")
    sets = Sets(samples=samples)
    record = evaluate_text(model, given, tmp_path, sets=sets)
    found = record["over_optimisation"]
    assert (found["n"], found["reward"]) == ([1, 2, 4, 8, 16], "test_over_optimisation:gold")
    assert [one["estimate"] for one in found["model"]["gain"]] == sorted(x["estimate"] for x in found["model"]["gain"])
    assert found["gold"]["turn"]["shown"]
    assert found["gold"]["turn"]["place"]["estimate"] == pytest.approx(best_of_n_kl(2) ** 0.5)
    assert "best_of_n" not in record
    text = (tmp_path / "evaluation.txt").read_text()
    assert "== best-of-n by the gold reward" in text
    assert "gold first rises, then falls" in text
    assert (tmp_path / "over_optimisation.svg").read_text().startswith("<svg")
    with pytest.raises(ConfigError, match="compares the values of different prompts") as refused:
        evaluate_text(model, settings("relative"), tmp_path, sets=sets)
    assert refused.value.key == "evaluate.best_of_n.gold"
