"""Will a reward model help RL, have no effect, or harm it? A forecast from what is measured of it before any RL.

The score of a reward model is the mean of its ranks, in two features, among the reward models of a table whose effect
in RL is known (`evaluation/gate/gate_table.py`). Nothing is fitted to make it; everything that says how sure the
forecast is (expected gain, probabilities, interval, when to answer "unknown") is set on predictions for tasks that were
left out.

    forecast = gate_forecast({"epic": 0.2, "bon16": 0.9}, "robot", table)
    print(forecast.answer, forecast.probabilities, forecast.gain, forecast.reasons)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from guerdon.evaluation.gate.gate_table import EFFECTS, Effect, GateTable, Names
from guerdon.statistics.intervals import Float64, Interval, percentile_interval, resampling_weights, wilson_interval

Answer = Effect | Literal["unknown"]

FEATURES: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "robot": {
        "epic": (-1, "EPIC distance to the true reward"),
        "bon16": (1, "success gained by choosing the highest return of 16 (share of what an oracle gains)"),
    },
    "text": {
        "row_auroc": (1, "right steps ranked above wrong ones (AUROC)"),
        "auroc": (1, "right solutions ranked above wrong ones (AUROC)"),
    },
}
"""By kind of reward model: what the forecast looks at, whether more of it is better (1) or less (-1), and its words."""

FEWEST_MODELS = 20
FEWEST_TASKS = 3
FEWEST_OF_EACH = 3  # that helped, and that harmed
COVERAGE = 0.9  # of the interval of the gain
KNOWN = 0.9  # share of the reward models of tasks left out that count as known
RECALL = 0.8  # share of the reward models that help which must pass
NEIGHBOURS = 3
_MOST_UNUSUAL = 5.0  # standard deviations that count for one feature
SMALLEST_REASON = 0.005  # change of the expected gain
ROUNDING = 1e-6  # values of a feature that differ less are alike


@dataclass(frozen=True)
class GateForecast:
    """The forecast on a reward model.

    Attributes:
        answer: the most probable effect, or `unknown`.
        probabilities: of each effect; None where unknown.
        gain: expected change of true success against the 0/1 reward, with the bounds that 90 % of reward models on
            tasks left out kept; None where unknown.
        reasons: in words, the strongest first; where unknown, why.
        features: what was measured, null where it was not measurable.
        validated: how well the predictor did on tasks left out, as JSON values.
    """

    answer: Answer
    probabilities: Mapping[str, float] | None
    gain: Interval | None
    reasons: tuple[str, ...]
    features: Mapping[str, float | None]
    validated: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "reasons": list(self.reasons)}


@dataclass(frozen=True, eq=False)
class GatePredictor:
    """A fitted predictor.

    Attributes:
        known_N_F: the features of the table, NaN where not measurable.
        signs_F: 1 where more of a feature is better, else -1.
        slope: gain per unit of score.
        mean_gain: of the table.
        ordinal: slope and two cut points of the ordered logistic model of the effect given the score.
        errors: the lower and the upper bound of gain minus expected gain.
        farthest: distance beyond which a reward model is unlike those of the table.
    """

    known_N_F: Float64
    signs_F: Float64
    slope: float
    mean_gain: float
    ordinal: tuple[float, float, float]
    errors: tuple[float, float]
    farthest: float

    def scores(self, x_M_F: Float64) -> Float64:
        """(M,) scores, the higher the better; 0 for the middle of the table."""
        return np.asarray((ranks_among(x_M_F, self.known_N_F) * self.signs_F).mean(axis=1))

    def gains(self, x_M_F: Float64) -> Float64:
        """(M,) expected gains."""
        return np.asarray(self.mean_gain + self.slope * self.scores(x_M_F))

    def probabilities(self, x_M_F: Float64) -> Float64:
        """(M, 3) probabilities of `EFFECTS`."""
        return ordinal_probabilities(self.scores(x_M_F), self.ordinal)

    def unknown(self, x_M_F: Float64) -> NDArray[np.bool_]:
        """(M,) whether a reward model is unlike those of the table."""
        return distances(x_M_F, self.known_N_F) > self.farthest


def ranks_among(x_M_F: Float64, known_N_F: Float64) -> Float64:
    """(M, F) share of the known values below each value, ties half, minus 1/2; 0 where there is no value."""
    order = np.sign(x_M_F[:, None] - known_N_F)  # NaN where either is not measurable
    counts = np.isfinite(order).sum(axis=1)
    return np.asarray(np.nansum(order, axis=1) / (2 * np.maximum(counts, 1)))


def standardised(x_M_F: Float64, known_N_F: Float64) -> Float64:
    """(M, F) distance from the median in interquartile ranges in units of a standard deviation, at most 5 in size.

    A feature without spread counts in its own unit.
    """
    some = np.where(np.isnan(known_N_F).all(axis=0), 0.0, known_N_F)  # a feature that none has separates nothing
    low, centre, high = np.nanquantile(some, [0.25, 0.5, 0.75], axis=0)
    spread = np.where(high > low, (high - low) / 1.349, np.nanstd(some, axis=0))
    unit = np.where(spread > ROUNDING, spread, 1.0)
    return np.asarray(np.clip((x_M_F - centre) / unit, -_MOST_UNUSUAL, _MOST_UNUSUAL))


def distances(x_M_F: Float64, known_N_F: Float64, allowed_M_N: NDArray[np.bool_] | bool = True) -> Float64:
    """(M,) mean distance to the 3 nearest known reward models, over features that both have; infinite without any.

    Args:
        x_M_F: features, NaN where not measurable.
        known_N_F: of the table.
        allowed_M_N: which reward models may be neighbours.
    """
    differences = standardised(x_M_F, known_N_F)[:, None] - standardised(known_N_F, known_N_F)
    counts = np.isfinite(differences).sum(axis=2)
    distance = np.sqrt(np.nansum(differences**2, axis=2) / np.maximum(counts, 1))
    distance = np.where((counts > 0) & allowed_M_N, distance, np.inf)
    return np.asarray(np.sort(distance, axis=1)[:, :NEIGHBOURS].mean(axis=1))


def fit_gate(table: GateTable, names: Sequence[str], kind: str) -> GatePredictor:
    """Fit the predictor to a table.

    Gain per score, probabilities, errors and the distance that counts as unknown are set on reward models whose score
    comes from the tables of the other tasks.

    Args:
        table: reward models of one kind.
        names: of the features to use.
        kind: key of `FEATURES`.

    Raises:
        ValueError: fewer than two tasks.
    """
    x_N_F, gains_N, tasks_N = table.columns(names), table.gains_N, table.tasks_N
    if len(table.tasks) < 2:
        raise ValueError("the predictor is fitted to at least two tasks: one must be left out")
    signs_F = np.array([FEATURES[kind][name][0] for name in names], dtype=np.float64)
    left_out_N, level_N = np.empty(len(table)), np.empty(len(table))
    for task in table.tasks:
        inside = tasks_N == task
        left_out_N[inside] = (ranks_among(x_N_F[inside], x_N_F[~inside]) * signs_F).mean(axis=1)
        level_N[inside] = gains_N[~inside].mean()
    scores, gains = _within(left_out_N, tasks_N), _within(gains_N, tasks_N)
    slope = max(0.0, float(scores @ gains) / max(float(scores @ scores), 1e-12))
    return GatePredictor(
        known_N_F=x_N_F,
        signs_F=signs_F,
        slope=slope,
        mean_gain=float(gains_N.mean()),
        ordinal=fit_ordinal(left_out_N, table.effects_N),
        errors=error_bounds(gains_N - level_N - slope * left_out_N),
        farthest=float(np.quantile(distances(x_N_F, x_N_F, tasks_N[:, None] != tasks_N), KNOWN, method="higher")),
    )


def _within(values_N: Float64, tasks_N: Names) -> Float64:
    """(N,) values minus their mean within the task."""
    _, task_N = np.unique(tasks_N, return_inverse=True)
    return np.asarray(values_N - (np.bincount(task_N, values_N) / np.bincount(task_N))[task_N])


def fit_ordinal(scores_N: Float64, effects_N: NDArray[np.int64]) -> tuple[float, float, float]:
    """Slope b >= 0 and cuts c_0 < c_1 of P(effect <= k) = 1 / (1 + exp(b s - c_k)) (McCullagh 1980, eq. 2.1).

    Maximum likelihood with one observation more, spread evenly over the effects at the mean score, and a normal
    prior of width 3 on the slope per standard deviation: no probability becomes 0 because an effect is rare.

    Args:
        scores_N: of reward models on tasks that were left out.
        effects_N: indices into `EFFECTS`.
    """
    from scipy.optimize import minimize

    centre, spread = float(scores_N.mean()), float(scores_N.std()) or 1.0
    z = np.append((scores_N - centre) / spread, np.zeros(len(EFFECTS)))
    y = np.append(effects_N, np.arange(len(EFFECTS)))
    weight = np.append(np.ones(len(scores_N)), np.full(len(EFFECTS), 1 / len(EFFECTS)))

    def loss(parameters: Float64) -> float:
        slope, first, gap = parameters
        chances = ordinal_probabilities(z, (slope, first, first + np.exp(gap)))[np.arange(len(y)), y]
        return float(-(weight * np.log(np.maximum(chances, 1e-12))).sum() + slope**2 / 18)

    start = np.array([1.0, -0.5, 0.0])
    slope, first, gap = minimize(loss, start, method="L-BFGS-B", bounds=[(0, 20), (-20, 20), (-5, 4)]).x
    shift = slope / spread * centre
    return float(slope / spread), float(first + shift), float(first + np.exp(gap) + shift)


def ordinal_probabilities(scores_M: Float64, ordinal: tuple[float, float, float]) -> Float64:
    """(M, 3) probabilities of `EFFECTS`, from the slope and the two cut points."""
    slope, first, second = ordinal
    low, high = expit(first - slope * scores_M), expit(second - slope * scores_M)
    return np.stack([low, high - low, 1 - high], axis=-1)


def error_bounds(errors_N: Float64) -> tuple[float, float]:
    """The bounds that a new error keeps with probability 90 %, if it is one like these (split conformal prediction).

    The k-th smallest and the k-th largest with k = floor(0.05 (N + 1)) (Lei et al. 2018, 1604.04173, eq. 6, each side);
    with fewer than 19 errors the extremes. Never on one side of 0 only.
    """
    ordered = np.sort(errors_N)
    k = max(1, int((1 - COVERAGE) / 2 * (len(ordered) + 1) + 1e-9))
    return min(0.0, float(ordered[k - 1])), max(0.0, float(ordered[-k]))


def usable_features(table: GateTable, kind: str) -> list[str]:
    """Those of `FEATURES` that at least half of the reward models have, and that differ between them."""
    found = []
    for name in set(table.names) & FEATURES[kind].keys():
        column = table.columns([name])[:, 0]
        known = column[np.isfinite(column)]
        if 2 * len(known) >= len(column) and np.ptp(known) > ROUNDING:
            found.append(name)
    return sorted(found)


def too_small(table: GateTable) -> str | None:
    """Why a table is too small for any answer; None where it is not."""
    harmed, _, helped = np.bincount(table.effects_N, minlength=len(EFFECTS)).tolist()
    if len(table) >= FEWEST_MODELS and len(table.tasks) >= FEWEST_TASKS and min(harmed, helped) >= FEWEST_OF_EACH:
        return None
    return (
        f"the table has {len(table)} reward models of this kind on {len(table.tasks)} tasks, {helped} that helped and "
        f"{harmed} that harmed; it needs {FEWEST_MODELS} on {FEWEST_TASKS}, and {FEWEST_OF_EACH} of each"
    )


def unknown(reason: str, features: Mapping[str, float | None]) -> GateForecast:
    """The forecast where there is none."""
    return GateForecast("unknown", None, None, (reason,), dict(features))


def gate_forecast(features: Mapping[str, float | None], kind: str, table: GateTable) -> GateForecast:
    """The forecast on a reward model, from those features that it and the table have.

    Args:
        features: what was measured, by name; None where it was not measurable.
        kind: `robot` or `text`.
        table: reward models whose effect is known.
    """
    known = table.of(kind)
    if (reason := too_small(known)) is not None:
        return unknown(reason, features)
    measured = {name: value for name, value in features.items() if value is not None and np.isfinite(value)}
    names = [name for name in usable_features(known, kind) if name in measured]
    if not names:
        return unknown(f"none of {', '.join(FEATURES[kind])} is measured here and known in the table", features)
    predictor = fit_gate(known, names, kind)
    x_1_F = np.array([[measured[name] for name in names]], dtype=np.float64)
    if predictor.unknown(x_1_F)[0]:
        away = np.abs(standardised(x_1_F, predictor.known_N_F)[0])
        worst = "; ".join(FEATURES[kind][names[f]][1] for f in np.argsort(-away, kind="stable"))
        return unknown(f"it is unlike the reward models of the table; farthest from them: {worst}", features)
    gain = float(np.clip(predictor.gains(x_1_F)[0], -1, 1))
    low, high = (float(np.clip(gain + error, -1, 1)) for error in predictor.errors)
    chances = predictor.probabilities(x_1_F)[0]
    left_out = out_of_task(known, names, kind)
    return GateForecast(
        answer=EFFECTS[int(np.argmax(chances))],
        probabilities={name: float(p) for name, p in zip(EFFECTS, chances, strict=True)},
        gain=Interval(gain, low, high, len(known)),
        reasons=_reasons(predictor, x_1_F, names, kind),
        features=dict(features),
        validated={
            "models": len(known),
            "tasks": len(known.tasks),
            "correlation": asdict(correlation(left_out.scores_N, known.gains_N, reps=1000, seed=0)),
            "false_passes": asdict(false_passes(known.effects_N, left_out.scores_N)),
        },
    )


def _reasons(predictor: GatePredictor, x_1_F: Float64, names: Sequence[str], kind: str) -> tuple[str, ...]:
    """What each feature does to the expected gain, the strongest first, in words."""
    ranks_F = ranks_among(x_1_F, predictor.known_N_F)[0]
    parts_F = predictor.slope * predictor.signs_F * ranks_F / len(names)
    return tuple(
        f"{FEATURES[kind][names[f]][1]}: {x_1_F[0, f]:.3g}, above {round(100 * (ranks_F[f] + 0.5))} % of the "
        f"{int(np.isfinite(predictor.known_N_F[:, f]).sum())} known reward models; "
        f"{'raises' if parts_F[f] > 0 else 'lowers'} the expected gain by {abs(parts_F[f]):.3f}"
        for f in np.argsort(-np.abs(parts_F), kind="stable")
        if abs(parts_F[f]) >= SMALLEST_REASON
    )


@dataclass(frozen=True, eq=False)
class OutOfTask:
    """Predictions for every reward model of a table, each by a predictor that saw nothing of its task.

    Attributes:
        scores_N: what ranks them. Not the expected gain: its constant, the mean of the other tasks, is the lower, the
            higher the gains of the task itself.
        gains_N: expected gains.
        probabilities_N_3: of `EFFECTS`.
        low_N: lower bound of the gain.
        high_N: upper bound.
        unknown_N: whether the answer would be "unknown".
    """

    scores_N: Float64
    gains_N: Float64
    probabilities_N_3: Float64
    low_N: Float64
    high_N: Float64
    unknown_N: NDArray[np.bool_]


def out_of_task(table: GateTable, names: Sequence[str], kind: str) -> OutOfTask:
    """Leave one task out: fit to the others, predict its reward models.

    Raises:
        ValueError: fewer than three tasks, so that a fit would have fewer than two.
    """
    n = len(table)
    scores, gains, low, high = np.empty((4, n))
    found = OutOfTask(scores, gains, np.empty((n, len(EFFECTS))), low, high, np.empty(n, dtype=np.bool_))
    for task in table.tasks:
        inside = table.tasks_N == task
        predictor = fit_gate(table.take(~inside), names, kind)
        x_M_F = table.columns(names)[inside]
        scores[inside], gains[inside] = predictor.scores(x_M_F), predictor.gains(x_M_F)
        low[inside], high[inside] = gains[inside] + predictor.errors[0], gains[inside] + predictor.errors[1]
        found.probabilities_N_3[inside] = predictor.probabilities(x_M_F)
        found.unknown_N[inside] = predictor.unknown(x_M_F)
    return found


def correlation(x_N: Float64, gains_N: Float64, *, reps: int, seed: int, minus_N: Float64 | None = None) -> Interval:
    """Spearman correlation with the gains, with a bootstrap interval over cases; NaN ones are left out and counted.

    Args:
        x_N: what is to forecast the gains.
        gains_N: measured.
        reps: resamples.
        seed: of the resampling.
        minus_N: another forecast, whose correlation on the same cases and resamples is subtracted.
    """
    sides = [x_N, gains_N] if minus_N is None else [x_N, gains_N, minus_N]
    known = np.asarray(np.isfinite(sides).all(axis=0))
    n = int(known.sum())
    if n == 0:
        return Interval(None, None, None, 0, len(known))
    weights = resampling_weights(n, reps, np.random.default_rng(seed)).astype(np.int64)
    drawn = [side[known][np.repeat(np.tile(np.arange(n), len(weights)), weights.reshape(-1))] for side in sides]
    x, y, *rest = (one.reshape(len(weights), n) for one in drawn)
    found = spearman_by_row(x, y) - (spearman_by_row(rest[0], y) if rest else 0.0)
    return percentile_interval(found[0], found[1:], n=n, n_undefined=len(known) - n, can_vary=n > 1)


def spearman_by_row(x_R_N: Float64, y_R_N: Float64) -> Float64:
    """(R,) Spearman correlation of each row; NaN where a side is constant."""
    from scipy.stats import rankdata

    x, y = (ranks - ranks.mean(axis=1, keepdims=True) for ranks in (rankdata(x_R_N, axis=1), rankdata(y_R_N, axis=1)))
    scale = np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
    return np.asarray(np.divide((x * y).sum(axis=1), scale, out=np.full(len(scale), np.nan), where=scale > 1e-9))


def false_passes(effects_N: NDArray[np.int64], scores_N: Float64, *, recall: float = RECALL) -> Interval:
    """Share of the reward models that harm among those with a score above the threshold that passes enough helpers.

    The threshold is the highest one that passes at least `recall` of the reward models that help. Wilson interval.

    Args:
        effects_N: indices into `EFFECTS`.
        scores_N: the higher the better.
        recall: share of the helping ones that pass.

    Returns:
        The share of harming reward models that pass; undefined without any harming or any helping one.
    """
    helping, harming = (np.sort(scores_N[effects_N == EFFECTS.index(one)])[::-1] for one in ("helps", "harms"))
    if not len(helping) or not len(harming):
        return Interval(None, None, None, len(harming))
    threshold = helping[int(np.ceil(recall * len(helping) - 1e-9)) - 1]
    return wilson_interval(int((harming >= threshold).sum()), len(harming))
