"""The order of items: every draw has the probability that is stored, and means weighted by these are unbiased."""

from itertools import permutations

import numpy as np
import pytest

from guerdon.annotate.draws import LEAST, draw_order, draw_twice, usefulness
from guerdon.annotate.items import Items
from guerdon.evaluation.benchmarks.labelled import Draws, chosen_mean, label_figures
from tables import cases, refuses


def test_orders_come_as_often_as_their_probabilities_say():
    useful, rng, drawn = np.array([0.6, 0.3, 0.1]), np.random.default_rng(0), {}
    for _ in range(4000):
        found = draw_order(useful, share=0.3, rng=rng)
        drawn.setdefault(tuple(found.places), []).append(found.probabilities)
    assert len(drawn) == 6
    for order, those in drawn.items():
        left, expected = [0, 1, 2], []
        for place in order:
            expected.append(0.3 / len(left) + 0.7 * useful[place] / useful[left].sum())
            left.remove(place)
        np.testing.assert_allclose(those, np.tile(expected, (len(those), 1)))
        chance = np.prod(expected)
        assert abs(len(those) / 4000 - chance) < 4 * np.sqrt(chance * (1 - chance) / 4000)


def test_uniform_draws_and_one_seed_one_order():
    first, again = (draw_order(np.ones(5), share=1.0, rng=np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(first.places, again.places)
    np.testing.assert_allclose(first.probabilities, [1 / 5, 1 / 4, 1 / 3, 1 / 2, 1])
    assert draw_twice(20, 0.1, np.random.default_rng(0)).sum() == 2
    assert not draw_twice(20, 0.0, np.random.default_rng(0)).any()


def every_order(useful, made):
    """Each order of the first draws, with its probability and those of its draws."""
    for order in permutations(range(len(useful)), made):
        left, probabilities = list(range(len(useful))), []
        for place in order:
            probabilities.append(0.3 / len(left) + 0.7 * useful[place] / useful[left].sum())
            left.remove(place)
        yield order, np.prod(probabilities), probabilities


def draws_of(order, probabilities, pool):
    draw, probability = np.full(pool, float(pool)), np.ones(pool)
    for k, place in enumerate(order):
        draw[place], probability[place] = k + 1, probabilities[k]
    return Draws(draw, probability, pool)


@pytest.mark.parametrize("made", [2, 3, 5])
def test_the_weighted_mean_is_exact_on_average(made):
    """Over all orders, each with its probability: 2101.11665, theorem 3."""
    scores, labels = np.array([0.9, 0.2, 0.5, 0.4, 0.7]), np.array([1.0, 0.0, 0.0, 1.0, 1.0])
    useful = np.maximum(1 - np.abs(2 * scores - 1), LEAST)
    corrected = alone = total = 0.0
    for order, chance, probabilities in every_order(useful, made):
        known = np.full(5, np.nan)
        known[list(order)] = labels[list(order)]
        found = chosen_mean(scores, known, draws_of(order, probabilities, 5))
        corrected += chance * found.corrected.estimate
        alone += chance * found.labelled.estimate
        total += chance
    assert total == pytest.approx(1)
    assert corrected == pytest.approx(labels.mean())
    assert alone == pytest.approx(labels.mean())


def test_weights_by_hand():
    """Draw 1 of 2 from 4 items with q = 0.5: 1 + (4 - 2) / (4 - 1) (1 / (4 * 0.5) - 1) = 1 - 1/3."""
    draws = Draws(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.5, 0.25, 0.5, 1.0]), 4)
    labelled = np.array([True, True, False, False])
    np.testing.assert_allclose(draws.weights(labelled), [2 / 3, 1 + 2 / 2 * (1 / 0.75 - 1)])
    np.testing.assert_allclose(draws.weights(np.ones(4, bool)), 1)
    assert draws.chosen
    assert draws.of_all


def test_a_card_says_that_rows_were_chosen_and_what_has_no_value():
    scores = [0.9, 0.2, 0.5, 0.4, 0.7, 0.1]
    labels = np.array([1.0, 0.0, np.nan, 1.0, np.nan, np.nan])
    draws = Draws(np.array([1.0, 2, 3, 4, 5, np.nan]), np.array([0.4, 0.3, 0.4, 0.6, 1, np.nan]), 5)
    found = label_figures(scores, labels, list("abcdef"), draws=draws, reps=20, seed=0)
    assert found["draws"] == {
        "pool": 5, "made": 4, "labelled": 3, "chosen": True, "without_value": 1, "of_all_rows": False,
    }  # fmt: skip
    kept = slice(0, 5)
    expected = np.mean(scores[kept]) + np.mean(
        draws.weights(~np.isnan(labels)) * (labels[[0, 1, 3]] - np.array(scores)[[0, 1, 3]])
    )
    assert found["mean"]["corrected"]["estimate"] == pytest.approx(expected)


def items_with(kind="responses", **rewards):
    items = Items(kind, "rows.jsonl")
    for k in range(3):
        items.add(k, {"prompt": str(k)}, str(k), None)
    items.rewards = {name: np.array(values, float) for name, values in rewards.items()}
    return items


def test_what_is_useful():
    nan = np.nan
    uncertain = usefulness("uncertain", items_with(reward=[0.5, 1.0, nan]), {})
    np.testing.assert_allclose(uncertain, [1.0, LEAST, 0.5])
    spread = {"m": (np.array([0.5, 0.5, 0.5]), np.array([0.2, 0.0, 0.4]))}
    np.testing.assert_allclose(usefulness("uncertain", items_with(), spread), [0.2, LEAST, 0.4])
    apart = usefulness("disagreement", items_with(reward=[1, 2, 3], other=[30, 20, 10]), {})
    np.testing.assert_allclose(apart, [1.0, LEAST, 1.0])
    np.testing.assert_allclose(usefulness("uncertain", items_with("pairs", reward=[0.0, 100.0, -100.0]), {})[0], 1.0)


@cases(
    ("choose", "rewards", "said"),
    [
        ("uncertain", {}, "the data has none; name a --model"),
        ("uncertain", {"score": [1, 2, 3]}, "needs values from 0 to 1, and score has 1 to 3"),
        ("disagreement", {"reward": [1, 2, 3]}, "needs two rewards of the items, and there is reward alone"),
        ("disagreement", {}, "and there is none"),
    ],
)
def test_without_values_it_is_refused(choose, rewards, said):
    with refuses("--choose") as refused:
        usefulness(choose, items_with(**rewards), {})
    assert said in str(refused.value)
