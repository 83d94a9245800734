"""In which order items are asked, and with which probability each was drawn.

One item is drawn after the other: of the n that are left each has probability q = 1 / n, or
q = s / n + (1 - s) u / sum(u) with a value u of how useful its label is. The order is drawn before anybody judges.

    drawn = draw_order(np.array([0.5, 0.01, 0.2]), share=0.3, rng=np.random.default_rng(0))
    drawn.places, drawn.probabilities         # of the first draw, the second, ...
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from guerdon.annotate.items import Items
from guerdon.auditing.rows import Flags, Numbers
from guerdon.errors import ConfigError

CHOICES = ("random", "uncertain", "disagreement")
LEAST = 0.01  # value of an item of which nothing is expected


class DrawnOrder(NamedTuple):
    """An order of items.

    Attributes:
        places: of the items, the first draw first.
        probabilities: with which each was drawn from those that were left.
    """

    places: NDArray[np.int64]
    probabilities: Numbers


def draw_order(useful_N: Numbers, *, share: float, rng: np.random.Generator) -> DrawnOrder:
    """Draw all items, one after the other.

    A draw is uniform with probability s, and else by the values: the order in which exponential times with these rates
    end (Efraimidis and Spirakis 2006), without the items that uniform draws took.

    Args:
        useful_N: value of each item, above 0; all equal: every draw is uniform.
        share: s, of draws that are uniform.
        rng: of the draws.
    """
    n = len(useful_N)
    uniform, by_value = rng.permutation(n), np.argsort(rng.exponential(size=n) / useful_N, kind="stable")
    is_uniform = rng.random(n) < share
    sources = {True: iter(uniform.tolist()), False: iter(by_value.tolist())}
    taken: dict[int, None] = {}  # in the order of the draws
    for kind in is_uniform.tolist():
        taken[next(place for place in sources[kind] if place not in taken)] = None
    places = np.array(list(taken), np.int64)
    drawn = useful_N[places]
    left = np.cumsum(drawn[::-1])[::-1]
    return DrawnOrder(places, share / np.arange(n, 0, -1) + (1 - share) * drawn / left)


def usefulness(choose: str, items: Items, models: dict[str, tuple[Numbers, Numbers]]) -> Numbers:
    """How useful the label of each item is; at least `LEAST`, and the mean of the others where a value is missing.

    Args:
        choose: `uncertain`: the spread over the members of a model, or how near a probability is to 0.5;
            `disagreement`: how far apart the ranks of two rewards are.
        items: with the values of the data.
        models: value and spread of each item by the name of a model.

    Raises:
        ConfigError: there is no such value.
    """
    found = _uncertainty(items, models) if choose == "uncertain" else _disagreement(items, models)
    known = np.isfinite(found)
    if not known.any():
        raise ConfigError(
            f"--choose {choose}: no item has the values that it needs; name another --model M", key="--choose"
        )
    return np.maximum(np.where(known, found, found[known].mean()), LEAST)


def _uncertainty(items: Items, models: dict[str, tuple[Numbers, Numbers]]) -> Numbers:
    values = {name: value for name, (value, _) in models.items()} or items.rewards
    if not values:
        raise ConfigError(
            "--choose uncertain needs values of the items, and the data has none; name a --model M", key="--choose"
        )
    name = next(iter(values))
    spread = models[name][1] if name in models else np.full(len(items), np.nan)
    if np.isfinite(spread).any():
        return spread
    value = values[name]
    if items.kind == "pairs":  # the difference of two rewards (Bradley and Terry 1952)
        value = 1 / (1 + np.exp(-np.clip(value, -50, 50)))
    known = value[np.isfinite(value)]
    if known.size and not ((known >= 0) & (known <= 1)).all():
        raise ConfigError(
            f"--choose uncertain needs values from 0 to 1, and {name} has {known.min():.3g} to {known.max():.3g}; "
            "name a --model M that gives probabilities, or --choose disagreement",
            key="--choose",
        )
    return np.asarray(1 - np.abs(2 * value - 1))


def _disagreement(items: Items, models: dict[str, tuple[Numbers, Numbers]]) -> Numbers:
    # without the criteria of a judge, which are parts of its reward
    wholes = {name: one for name, one in items.rewards.items() if name.rpartition(".")[0] not in items.rewards}
    values = {name: value for name, (value, _) in models.items()} | wholes
    if len(values) < 2:
        has = f"there is {next(iter(values))} alone" if values else "there is none"
        raise ConfigError(
            f"--choose disagreement needs two rewards of the items, and {has}; name a --model M", key="--choose"
        )
    first, second = (_ranks(one) for one in list(values.values())[:2])
    return np.asarray(np.abs(first - second))


def _ranks(values_N: Numbers) -> Numbers:
    """Ranks from 0 to 1; equal values share their mean rank, NaN stays."""
    from scipy.stats import rankdata

    found, known = np.full(len(values_N), np.nan), np.isfinite(values_N)
    found[known] = (rankdata(values_N[known]) - 1) / max(int(known.sum()) - 1, 1)
    return found


def draw_twice(n: int, share: float, rng: np.random.Generator) -> Flags:
    """Which items are judged twice: this share of them, rounded up."""
    twice = np.zeros(n, bool)
    twice[rng.permutation(n)[: int(np.ceil(share * n))]] = True
    return twice
