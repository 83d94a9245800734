"""Over-optimisation of a reward model: a gold reward over the distance from the policy, and where it turns down.

Gao, Schulman, Hilton (2022), "Scaling laws for reward model over-optimization" (2210.10760). The distance is
sqrt(KL(pi || policy)). That of best-of-n is log n - (n - 1) / n where no two responses have the same value, else less
(2401.01879). The mean over all subsets of n of a prompt's N samples is unbiased (as in WebGPT, 2112.09332).

    curves = best_of_n_gold(values, golds, [1, 2, 4, 8])      # a list of N values, and of N golds, for each prompt
    print(curves["gold"].turn.place, curves["gold"].turn.shown)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike

from guerdon.episodes.solutions import Solution
from guerdon.evaluation.benchmarks.best_of_n import best_of
from guerdon.evaluation.metrics import aligned, figure_table, number
from guerdon.pages.charts import Box, Line, line_chart, padded
from guerdon.statistics.intervals import Float64, Interval, bootstrap_weighted, conclusion
from guerdon.statistics.training_runs import stratified_t_interval
from guerdon.types import Failure

TURN = {"place": "sqrt(KL) where it is highest", "rise": "rise up to there", "fall": "change from there to the end"}


@dataclass(frozen=True)
class Turn:
    """Where a mean curve is highest, and whether it rises before and falls after that.

    The highest point of the mean is chosen by noise too, so the rise and the fall of each unit (a prompt, or a run) are
    taken at the highest point of the mean of all other units.

    Attributes:
        place: sqrt(KL) of the highest point, with a bootstrap interval over units.
        rise: from the start to the highest point, a t interval.
        fall: from the highest point to the end, negative where it falls.
        shown: whether the intervals show both.
    """

    place: Interval
    rise: Interval
    fall: Interval
    shown: bool


@dataclass(frozen=True)
class GoldCurve:
    """A reward over the distance from the policy.

    Attributes:
        sqrt_kl: P distances, the mean over units.
        start: the mean reward at the first of them.
        gain: P differences from the start, paired by unit, with t intervals.
        turn: where it is highest.
    """

    sqrt_kl: Sequence[float]
    start: Interval
    gain: Sequence[Interval]
    turn: Turn


def best_of_n_kl(n: int) -> float:
    """KL divergence of best-of-n from the policy in nats (2009.01325); an upper bound where values tie.

    Raises:
        ValueError: n is below 1.
    """
    if n < 1:
        raise ValueError(f"n is at least 1, not {n}")
    return log(n) - (n - 1) / n


def gold_curve(rewards_U_P: ArrayLike, sqrt_kl_U_P: ArrayLike, *, reps: int = 1000, seed: int = 0) -> GoldCurve:
    """The mean of some curves, and where it turns down.

    Args:
        rewards_U_P: (U, P) a row per unit, a prompt or a run. Rows with a NaN are left out and counted.
        sqrt_kl_U_P: (U, P) or (P,) distances, in order.
        reps: bootstrap resamples.
        seed: of the bootstrap.
    """
    rewards = np.asarray(rewards_U_P, dtype=np.float64)
    distances = np.broadcast_to(np.asarray(sqrt_kl_U_P, dtype=np.float64), rewards.shape)
    whole = np.isfinite(rewards).all(axis=1) & np.isfinite(distances).all(axis=1)
    rewards, distances, lost = rewards[whole], distances[whole], int((~whole).sum())
    units, points = rewards.shape

    def interval(values_U: Float64) -> Interval:
        return stratified_t_interval([np.concatenate([values_U, np.full(lost, np.nan)])])

    if not units:
        nothing = Interval(None, None, None, 0, lost)
        return GoldCurve([], nothing, [], Turn(nothing, nothing, nothing, shown=False))
    others = rewards.sum(axis=0) - rewards if units > 1 else rewards
    rows, tops = np.arange(units), others.argmax(axis=1)
    rise, fall = interval(rewards[rows, tops] - rewards[:, 0]), interval(rewards[:, -1] - rewards[rows, tops])

    def highest(weights_R_U: Float64) -> Float64:
        top_R = (weights_R_U @ rewards).argmax(axis=1)
        found = np.take_along_axis(weights_R_U @ distances, top_R[:, None], axis=1)[:, 0] / weights_R_U.sum(axis=1)
        return np.asarray(found, dtype=np.float64)

    place = bootstrap_weighted(highest, rows, reps=reps, seed=seed, n_undefined=lost)
    shown = conclusion(rise) == "better" and conclusion(fall) == "worse"
    gain = [interval(rewards[:, p] - rewards[:, 0]) for p in range(points)]
    return GoldCurve(distances.mean(axis=0).tolist(), interval(rewards[:, 0]), gain, Turn(place, rise, fall, shown))


def best_of_n_gold(
    values: Sequence[ArrayLike], golds: Sequence[ArrayLike], ns: Sequence[int], *, reps: int = 1000, seed: int = 0
) -> dict[str, GoldCurve]:
    """What best-of-n of a reward model gains, by a gold reward (`gold`) and by its own (`model`).

    Args:
        values: of the reward model: for each prompt those of its samples.
        golds: gold rewards of the same samples.
        ns: numbers of samples to choose from, in order; a prompt with fewer than the largest is left out and counted.
        reps: bootstrap resamples of prompts.
        seed: of the bootstrap.
    """
    sqrt_kl_P = np.sqrt([best_of_n_kl(n) for n in ns])

    def curve(rewards: Sequence[ArrayLike]) -> GoldCurve:
        rows = [
            [best_of(by, got, n) if n <= np.size(by) else np.nan for n in ns]
            for by, got in zip(values, rewards, strict=True)
        ]
        return gold_curve(rows, sqrt_kl_P, reps=reps, seed=seed)

    return {"gold": curve(golds), "model": curve(values)}


def best_of_n_record(
    solutions: Sequence[Solution],
    values: Sequence[float | Failure],
    golds: Sequence[float | Failure],
    ns: Sequence[int] | None,
    *,
    reps: int,
    seed: int,
) -> tuple[dict[str, Any], Markup]:
    """`best_of_n_gold` of several solutions to each question, as JSON values, and its picture.

    Args:
        solutions: several per question.
        values: of the reward model; a solution without one, or without a gold reward, is left out and counted, and its
            question with it where fewer than the largest n are left.
        golds: gold rewards.
        ns: see `best_of_n_gold`; None: powers of two up to the smallest number of solutions to a question.
        reps: see `best_of_n_gold`.
        seed: see `best_of_n_gold`.
    """
    drawn = Counter(one.asked for one in solutions)
    pairs: dict[str, list[tuple[float, float]]] = {asked: [] for asked in drawn}
    failures: dict[str, Counter[str]] = {"gold": Counter(), "model": Counter()}
    for one, value, gold in zip(solutions, values, golds, strict=True):
        if isinstance(gold, Failure):
            failures["gold"][gold.reason] += 1
        if isinstance(value, Failure):
            failures["model"][value.reason] += 1
        if not isinstance(value, Failure) and not isinstance(gold, Failure):
            pairs[one.asked].append((value, gold))
    fewest = min(drawn.values())  # failures included
    powers = [2**k for k in range(fewest.bit_length())]
    chosen = sorted(set(ns or powers))
    values_of, golds_of = [], []
    for of_one in pairs.values():
        values_of.append([value for value, _ in of_one])
        golds_of.append([gold for _, gold in of_one])
    found = best_of_n_gold(values_of, golds_of, chosen, reps=reps, seed=seed)
    picture = gold_picture([(name, k, one) for k, (name, one) in enumerate(found.items())], title="Best of n")
    return {"n": chosen, "failures": failures, **{k: asdict(v) for k, v in found.items()}}, picture


def gold_lines(record: Mapping[str, Any]) -> list[str]:
    """The lines about `best_of_n_record` in an evaluation's text."""
    names = ("gold", "model")
    rows = [["reward gained", *(f"n={n}" for n in record["n"])]]
    rows.append(["sqrt(KL), at most", *(number(best_of_n_kl(n) ** 0.5) for n in record["n"])])
    rows += [
        [name, *(number(one["estimate"]) for one in record[name]["gain"])] for name in names if record[name]["gain"]
    ]
    figures = [(f"{name} of one sample", record[name]["start"]) for name in names]
    turn = record["gold"]["turn"]
    figures += [(f"gold: {what}", turn[key]) for key, what in TURN.items()]
    lost = [f"{n} {reason} ({name})" for name, one in record["failures"].items() for reason, n in one.items()]
    return [
        *aligned(rows),
        *figure_table(figures),
        "gold first rises, then falls" if turn["shown"] else "not shown: gold that first rises, then falls",
        "failed measurements: " + (", ".join(lost) or "none"),
    ]


def gold_picture(curves: Sequence[tuple[str, int, GoldCurve]], *, title: str, width: float = 440.0) -> Markup:
    """Gains over sqrt(KL): a line with its band for each of some curves, which have a name and a style."""
    rows = [(name, style, list(zip(one.sqrt_kl, one.gain, strict=True))) for name, style, one in curves]
    heights = [y for *_, row in rows for _, i in row for y in (i.estimate, i.low, i.high) if y is not None] or [0.0]
    far = max([x for *_, row in rows for x, _ in row], default=1.0) or 1.0
    box, lines = Box(width, 300.0, (0.0, far), padded(heights)), [Line.of(*row) for row in rows]
    return line_chart(box, lines, title=title, x_label="sqrt(KL) from the policy", y_label="reward gained", max_name=18)
