"""Will a reward model help RL, have no effect, or harm it? A verdict from what is measured of it before any RL.

The predictor is fitted to a table of reward models whose outcome in RL is known (`evaluate/gate_table.py`): one
component of partial least squares on rank-transformed features, then an ordered logistic model of the outcome.
Everything that says how sure it is (probabilities, interval, when to answer "unknown") is set on predictions for
tasks that were left out of the weights.

    verdict = gate_verdict({"auroc": 0.93, "voc": 0.7}, "robot", table)
    print(verdict.answer, verdict.probabilities, verdict.gain, verdict.reasons)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from guerdon.evaluate.gate_table import OUTCOMES, GateTable, Names, Outcome
from guerdon.evaluate.intervals import Float64, Interval

Answer = Outcome | Literal["unknown"]

FEWEST_MODELS = 20
FEWEST_TASKS = 3
FEWEST_OF_EACH = 3  # that helped, and that harmed
FEWEST_FEATURES = 3
COVERAGE = 0.9  # of the interval of the gain
KNOWN = 0.9  # share of the reward models of tasks left out that count as known
NEIGHBOURS = 3
_MOST_UNUSUAL = 5.0  # standard deviations that count for one feature
REASONS = 3
SMALLEST_REASON = 0.005  # change of the expected gain
ROUNDING = 1e-6  # values of a feature that differ less are alike
STRONGEST = 5  # columns of the design matrix that have a weight


@dataclass(frozen=True)
class GateVerdict:
    """The verdict on a reward model.

    Attributes:
        answer: the most probable outcome, or `unknown`.
        probabilities: of each outcome; None where unknown.
        gain: expected change of true success against the 0/1 reward, with the bounds that 90 % of reward models on
            tasks left out kept; None where unknown.
        reasons: in words, the strongest first; where unknown, why.
        features: what was measured, null where it was not measurable.
        validated: how well the predictor did on tasks left out of its fit, as JSON values.
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
class Weights:
    """How features become a score.

    Attributes:
        sorted_F: the known values of each feature in the table, in rising order.
        with_gaps_F: features that some reward models of the table lack, which has a column of its own.
        mean_C: of the columns of the design matrix: ranks, then gaps.
        scale_C: their standard deviations within a task.
        weights_C: score per standard deviation of a column; the scores of the table have unit variance within a task.
    """

    sorted_F: tuple[Float64, ...]
    with_gaps_F: NDArray[np.bool_]
    mean_C: Float64
    scale_C: Float64
    weights_C: Float64

    @classmethod
    def fit(cls, x_N_F: Float64, gains_N: Float64, tasks_N: Names) -> Weights:
        """Weights by the covariance of each column with the gain within a task, for the strongest columns."""
        sorted_F = tuple(np.sort(column[np.isfinite(column)]) for column in x_N_F.T)
        missing = np.isnan(x_N_F)
        with_gaps = np.asarray(missing.any(axis=0) & ~missing.all(axis=0))
        raw = np.concatenate([_ranks(x_N_F, sorted_F), missing[:, with_gaps]], axis=1)
        inside = _within(raw, tasks_N)
        spread = inside.std(axis=0)
        scale = np.where(spread > 1e-12, spread, 1.0)
        weights = (inside / scale).T @ _within(gains_N[:, None], tasks_N)[:, 0]
        weights[np.argsort(-np.abs(weights), kind="stable")[STRONGEST:]] = 0.0
        unit = float((inside / scale @ weights).std())
        return cls(sorted_F, with_gaps, raw.mean(axis=0), scale, weights / unit if unit > 1e-12 else 0 * weights)

    def columns(self, x_M_F: Float64) -> Float64:
        """(M, C) standardised columns of the design matrix."""
        raw = np.concatenate([_ranks(x_M_F, self.sorted_F), np.isnan(x_M_F)[:, self.with_gaps_F]], axis=1)
        return np.asarray((raw - self.mean_C) / self.scale_C)

    def scores(self, x_M_F: Float64) -> Float64:
        """(M,) scores, the higher the better; 0 for the average of the table."""
        return np.asarray(self.columns(x_M_F) @ self.weights_C)


@dataclass(frozen=True, eq=False)
class GatePredictor:
    """A fitted predictor.

    Attributes:
        names: of the F features.
        weights: how they become a score.
        slope: gain per unit of score.
        mean_gain: of the table.
        ordinal: slope and two cut points of the ordered logistic model of the outcome given the score.
        errors: the lower and the upper bound of gain minus expected gain.
        space: where the distance to known reward models is measured.
        farthest: distance beyond which a reward model is unlike those of the table.
    """

    names: tuple[str, ...]
    weights: Weights
    slope: float
    mean_gain: float
    ordinal: tuple[float, float, float]
    errors: tuple[float, float]
    space: FeatureSpace
    farthest: float

    def gains(self, x_M_F: Float64) -> Float64:
        """(M,) expected gains."""
        return np.asarray(self.mean_gain + self.slope * self.weights.scores(x_M_F))

    def probabilities(self, x_M_F: Float64) -> Float64:
        """(M, 3) probabilities of `OUTCOMES`."""
        return ordinal_probabilities(self.weights.scores(x_M_F), self.ordinal)

    def unknown(self, x_M_F: Float64) -> NDArray[np.bool_]:
        """(M,) whether a reward model is unlike those of the table."""
        return self.space.distances(x_M_F) > self.farthest


def _ranks(x_M_F: Float64, sorted_F: Sequence[Float64]) -> Float64:
    """(M, F) share of the table's values below each value, ties half, minus 1/2; 0 where there is no value."""
    ranks = np.zeros(x_M_F.shape)
    for f, known in enumerate(sorted_F):
        if len(known):
            below, upto = (np.searchsorted(known, x_M_F[:, f], side=side) for side in ("left", "right"))
            ranks[:, f] = np.where(np.isnan(x_M_F[:, f]), 0.0, (below + upto) / (2 * len(known)) - 0.5)
    return ranks


@dataclass(frozen=True, eq=False)
class FeatureSpace:
    """Distances to the reward models of a table, in standardised features.

    Attributes:
        centre_F: medians.
        scale_F: interquartile ranges in units of a standard deviation.
        points_N_F: standardised, at most 5 in size; NaN where not measurable.
    """

    centre_F: Float64
    scale_F: Float64
    points_N_F: Float64

    @classmethod
    def of(cls, x_N_F: Float64) -> FeatureSpace:
        """The space of a table's features; a feature without spread counts in its own unit."""
        some = np.where(np.isnan(x_N_F).all(axis=0), 0.0, x_N_F)  # a feature that none has separates nothing
        low, centre, high = np.nanquantile(some, [0.25, 0.5, 0.75], axis=0)
        spread = np.where(high > low, (high - low) / 1.349, np.nanstd(some, axis=0))
        scale = np.where(spread > ROUNDING, spread, 1.0)
        return cls(centre, scale, _standardised(x_N_F, centre, scale))

    def distances(self, x_M_F: Float64, allowed_M_N: NDArray[np.bool_] | None = None) -> Float64:
        """(M,) mean distance to the 3 nearest points, over features that both have; infinite without any.

        Args:
            x_M_F: features, NaN where not measurable.
            allowed_M_N: which points may be neighbours; None: all.
        """
        differences = _standardised(x_M_F, self.centre_F, self.scale_F)[:, None] - self.points_N_F
        common = np.isfinite(differences)
        squares = np.where(common, differences, 0.0) ** 2
        counts = common.sum(axis=2)
        distance = np.where(counts > 0, np.sqrt(squares.sum(axis=2) / np.maximum(counts, 1)), np.inf)
        if allowed_M_N is not None:
            distance = np.where(allowed_M_N, distance, np.inf)
        return np.asarray(np.sort(distance, axis=1)[:, :NEIGHBOURS].mean(axis=1))


def _standardised(x_M_F: Float64, centre_F: Float64, scale_F: Float64) -> Float64:
    return np.clip((x_M_F - centre_F) / scale_F, -_MOST_UNUSUAL, _MOST_UNUSUAL)


def fit_gate(table: GateTable, names: Sequence[str]) -> GatePredictor:
    """Fit the predictor to some features of a table.

    A score is the first component of partial least squares (Wold 1975), cut to its `STRONGEST` weights: each feature
    weighs as much as it varies with the gain within a task. Gain per score, probabilities, errors and the distance that
    counts as unknown are set on reward models of tasks that were left out of the weights.

    Raises:
        ValueError: fewer than two tasks.
    """
    x_N_F, gains_N, tasks_N = table.columns(names), table.gains_N, table.tasks_N
    if len(table.tasks) < 2:
        raise ValueError("the predictor is fitted to at least two tasks: one must be left out")
    left_out_N, level_N = np.empty(len(table)), np.empty(len(table))
    for task in table.tasks:
        inside = tasks_N == task
        weights = Weights.fit(x_N_F[~inside], gains_N[~inside], tasks_N[~inside])
        left_out_N[inside], level_N[inside] = weights.scores(x_N_F[inside]), gains_N[~inside].mean()
    scores, gains = _within(left_out_N[:, None], tasks_N)[:, 0], _within(gains_N[:, None], tasks_N)[:, 0]
    slope = max(0.0, float(scores @ gains) / max(float(scores @ scores), 1e-12))
    space = FeatureSpace.of(x_N_F)
    distances = space.distances(x_N_F, tasks_N[:, None] != tasks_N)
    return GatePredictor(
        names=tuple(names),
        weights=Weights.fit(x_N_F, gains_N, tasks_N),
        slope=slope,
        mean_gain=float(gains_N.mean()),
        ordinal=fit_ordinal(left_out_N, table.outcomes_N),
        errors=error_bounds(gains_N - level_N - slope * left_out_N),
        space=space,
        farthest=float(np.quantile(distances, KNOWN, method="higher")),
    )


def _within(columns_N_C: Float64, tasks_N: Names) -> Float64:
    """(N, C) each column minus its mean within the task."""
    centred = columns_N_C.copy()
    for task in np.unique(tasks_N):
        centred[tasks_N == task] -= columns_N_C[tasks_N == task].mean(axis=0)
    return centred


def fit_ordinal(scores_N: Float64, outcomes_N: NDArray[np.int64]) -> tuple[float, float, float]:
    """Slope b >= 0 and cuts c_0 < c_1 of P(outcome <= k) = 1 / (1 + exp(b s - c_k)) (McCullagh 1980, eq. 2.1).

    Maximum likelihood with one observation more, spread evenly over the outcomes at the mean score, and a normal
    prior of width 3 on the slope per standard deviation: no probability becomes 0 because an outcome is rare.

    Args:
        scores_N: of reward models that were left out of the weights.
        outcomes_N: indices into `OUTCOMES`.
    """
    centre, spread = float(scores_N.mean()), float(scores_N.std()) or 1.0
    z = np.append((scores_N - centre) / spread, np.zeros(len(OUTCOMES)))
    y = np.append(outcomes_N, np.arange(len(OUTCOMES)))
    weight = np.append(np.ones(len(scores_N)), np.full(len(OUTCOMES), 1 / len(OUTCOMES)))

    def loss(parameters: Float64) -> float:
        slope, first, gap = parameters
        chances = ordinal_probabilities(z, (slope, first, first + np.exp(gap)))[np.arange(len(y)), y]
        return float(-(weight * np.log(np.maximum(chances, 1e-12))).sum() + slope**2 / 18)

    start = np.array([1.0, -0.5, 0.0])
    slope, first, gap = minimize(loss, start, method="L-BFGS-B", bounds=[(0, 20), (-20, 20), (-5, 4)]).x
    shift = slope / spread * centre
    return float(slope / spread), float(first + shift), float(first + np.exp(gap) + shift)


def ordinal_probabilities(scores_M: Float64, ordinal: tuple[float, float, float]) -> Float64:
    """(M, 3) probabilities of `OUTCOMES`, from the slope and the two cut points."""
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


def common_features(table: GateTable) -> list[str]:
    """Features that at least half of the reward models have, and that differ between them."""
    return [
        name
        for name, column in zip(table.names, table.features_N_F.T, strict=True)
        if 2 * np.isfinite(column).sum() >= len(column) and np.ptp(column[np.isfinite(column)]) > ROUNDING
    ]


def too_small(table: GateTable) -> str | None:
    """Why a table is too small for any answer; None where it is not."""
    harmed, _, helped = np.bincount(table.outcomes_N, minlength=len(OUTCOMES)).tolist()
    if len(table) >= FEWEST_MODELS and len(table.tasks) >= FEWEST_TASKS and min(harmed, helped) >= FEWEST_OF_EACH:
        return None
    return (
        f"the table has {len(table)} reward models of this kind on {len(table.tasks)} tasks, {helped} that helped and "
        f"{harmed} that harmed; it needs {FEWEST_MODELS} on {FEWEST_TASKS}, and {FEWEST_OF_EACH} of each"
    )


def unknown(reason: str, features: Mapping[str, float | None]) -> GateVerdict:
    """The verdict where there is none."""
    return GateVerdict("unknown", None, None, (reason,), dict(features))


def gate_verdict(
    features: Mapping[str, float | None],
    kind: str,
    table: GateTable,
    *,
    words: Mapping[str, str] | None = None,
    validate: Callable[[tuple[str, ...]], Mapping[str, Any]] | None = None,
) -> GateVerdict:
    """The verdict on a reward model. The predictor is fitted to the features that this model has.

    Args:
        features: what was measured, by name; None where it was not measurable.
        kind: `robot` or `text`.
        table: reward models whose outcome is known.
        words: features in plain words, for the reasons.
        validate: gives `validated` from the names of the features that are used.
    """
    known = table.of(kind)
    if (reason := too_small(known)) is not None:
        return unknown(reason, features)
    measured = {name: value for name, value in features.items() if value is not None and np.isfinite(value)}
    names = [name for name in common_features(known) if name in measured]
    if len(names) < FEWEST_FEATURES:
        return unknown(
            f"only {len(names)} of the {len(known.names)} features of the table could be measured; "
            f"{FEWEST_FEATURES} are needed",
            features,
        )
    predictor = fit_gate(known, names)
    x_1_F = np.array([[measured[name] for name in names]], dtype=np.float64)
    if predictor.unknown(x_1_F)[0]:
        return unknown(_unlike(predictor, x_1_F[0], words or {}), features)
    gain = float(np.clip(predictor.gains(x_1_F)[0], -1, 1))
    low, high = (float(np.clip(gain + error, -1, 1)) for error in predictor.errors)
    chances = predictor.probabilities(x_1_F)[0]
    return GateVerdict(
        answer=OUTCOMES[int(np.argmax(chances))],
        probabilities={name: float(p) for name, p in zip(OUTCOMES, chances, strict=True)},
        gain=Interval(gain, low, high, len(known)),
        reasons=_reasons(predictor, x_1_F, words or {}),
        features=dict(features),
        validated=None if validate is None else validate(tuple(names)),
    )


def _unlike(predictor: GatePredictor, x_F: Float64, words: Mapping[str, str]) -> str:
    """Why a reward model is unlike those of the table."""
    away = np.abs(_standardised(x_F, predictor.space.centre_F, predictor.space.scale_F))
    worst = [predictor.names[f] for f in np.argsort(-away, kind="stable")[:REASONS]]
    named = "; ".join(words.get(name, name.replace("_", " ")) for name in worst)
    return f"it is unlike the reward models of the table; farthest from them: {named}"


def _reasons(predictor: GatePredictor, x_1_F: Float64, words: Mapping[str, str]) -> tuple[str, ...]:
    """The features that move the expected gain the most, in words."""
    parts = (predictor.slope * predictor.weights.columns(x_1_F)[0] * predictor.weights.weights_C)[
        : len(predictor.names)
    ]
    said = []
    for f in np.argsort(-np.abs(parts), kind="stable")[:REASONS]:
        if abs(parts[f]) < SMALLEST_REASON:
            break
        name, known = predictor.names[f], predictor.weights.sorted_F[f]
        below = round(100 * (_ranks(x_1_F, predictor.weights.sorted_F)[0, f] + 0.5))
        said.append(
            f"{words.get(name, name.replace('_', ' '))}: {x_1_F[0, f]:.3g}, above {below} % of the {len(known)} known "
            f"reward models; {'raises' if parts[f] > 0 else 'lowers'} the expected gain by {abs(parts[f]):.3f}"
        )
    return tuple(said)
