"""Pairs of responses in an evaluation: reading them, calibration, accuracy without length, and the lines of a card.

A pair is a right and a wrong response to a prompt, d the value of the right one minus that of the wrong one. The pairs
of a prompt weigh 1 together; intervals resample prompts.

    choices, left_out, noise = read_choices("pairs.jsonl")
    pairs = pairs_of(choices, values)
    calibration(pairs, reps=1000, seed=0)["brier"].estimate         # mean of (1 - sigma(d))^2
    by_length(pairs, ties="wrong", reps=1000, seed=0)["length_controlled"].estimate
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.special import expit

from guerdon.episodes.preferences import Comparison, contradictions, label_noise
from guerdon.episodes.row_files import rows_by_split
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.evaluate.classification import ReliabilityBin, ece, ratio, reliability_bins
from guerdon.evaluate.intervals import Float64, Interval, bootstrap_weighted, widen_at_edge
from guerdon.evaluate.metrics import figure_table
from guerdon.evaluate.reward_bench import PreferenceChoice, Value, choices_from_rows
from guerdon.progress import log_line
from guerdon.types import Failure

_RIDGE = 1e-3  # of the regression on length; without it there is no fit where length decides everything
_STEPS = 40  # of Newton's method at most


@dataclass(frozen=True, eq=False)
class ResponsePairs:
    """Right and wrong responses side by side; P pairs that were measured.

    Attributes:
        differences_P: value of the right response minus that of the wrong one.
        lengths_P: length of the right response minus that of the wrong one, in characters.
        weights_P: 1 over the number of pairs of the prompt's row.
        prompts: what was asked.
        failed: pairs with a failed measurement.
    """

    differences_P: Float64
    lengths_P: Float64
    weights_P: Float64
    prompts: Sequence[str]
    failed: int


def read_choices(data: str) -> tuple[list[PreferenceChoice], Counter[str], float | None]:
    """The prompts of a file, a folder or a hub data set, what was left out of it by reason, and its label noise.

    Outside benchmarks, pairs that were judged in both directions are left out; their share estimates the noise.

    Raises:
        DataError: it cannot be read, or has no comparison that can be used.
    """
    choices, left_out = list[PreferenceChoice](), Counter[str]()
    splits = rows_by_split(data)
    splits = {"filtered": splits["filtered"]} if splits.get("filtered") else splits
    for split, rows in splits.items():
        choices += choices_from_rows(rows, data, split, left_out)
    judged = {
        k: Comparison(one.id, tuple(responses), (0, 1))
        for k, one in enumerate(choices)
        if not one.benchmark and len(responses := [x for x in one.responses if isinstance(x, Solution)]) == 2
    }  # fmt: skip
    places = list(judged)
    against, repeated, contradicted = contradictions(list(judged.values()))
    gone = {places[k] for k in against}
    left_out.update({"contradicted": len(gone)} if gone else {})
    choices = [one for k, one in enumerate(choices) if k not in gone]
    counted = ", ".join(f"{n} {reason}" for reason, n in sorted(left_out.items()))
    if not choices:
        raise DataError(f"{data}: there is no comparison that can be used: {counted}")
    if left_out:
        log_line(f"{data}: left out rows: {counted}")
    return choices, left_out, label_noise(repeated, contradicted)


def pairs_of(choices: Sequence[PreferenceChoice], values: Sequence[Value]) -> ResponsePairs:
    """Every right response with every wrong one.

    Args:
        choices: prompts.
        values: of all responses, as of `reward_bench`.
    """
    rows: list[tuple[float, float, float]] = []
    prompts: list[str] = []
    rest, failed = iter(values), 0
    for choice in choices:
        own = [(x, next(rest)) for x in choice.responses]
        known = [None if isinstance(v, Failure) or isinstance(x, Failure) else (v, len(x.text)) for x, v in own]
        right = len(choice.chosen)
        share = 1 / (right * (len(own) - right))
        for a in known[:right]:
            for b in known[right:]:
                if a is None or b is None:
                    failed += 1
                    continue
                rows.append((a[0] - b[0], a[1] - b[1], share))
                prompts.append(choice.prompt)
    differences, lengths, weights = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    return ResponsePairs(differences, lengths, weights, prompts, failed)


def _figure(
    pairs: ResponsePairs, statistic: Any, keep_P: np.ndarray, reps: int, seed: int, base: float | None
) -> Interval:
    """A statistic of (R, K) weights of the pairs that are kept."""
    own = pairs.weights_P[keep_P]
    prompts = [one for one, kept in zip(pairs.prompts, keep_P, strict=True) if kept]
    found = bootstrap_weighted(
        lambda w_R_K: statistic(w_R_K * own), prompts, reps=reps, seed=seed, n_undefined=pairs.failed
    )
    return replace(widen_at_edge(found, len(set(prompts))), baseline=base)


def calibration(pairs: ResponsePairs, *, reps: int, seed: int) -> tuple[dict[str, Interval], list[ReliabilityBin]]:
    """How well sigma(d) says how often people prefer the response with the higher value.

    `log_loss` is the mean of -log sigma(d), `brier` that of (1 - sigma(d))^2, `ece` the mean over bins of the gap
    between sigma(|d|) and the share of pairs in the right order, a tie being half right. The baseline is that of a
    model with one value for all.

    Returns:
        The figures, and the bins of the reliability diagram, without ties.
    """
    d, every = pairs.differences_P, np.ones(len(pairs.prompts), dtype=np.bool_)
    right, chance = (np.sign(d) + 1) / 2, expit(np.abs(d))
    terms = {"log_loss": (np.logaddexp(0, -d), float(np.log(2))), "brier": (expit(-d) ** 2, 0.25)}
    found = {
        name: _figure(pairs, lambda w, t=term: ratio(w @ t, w.sum(axis=1)), every, reps, seed, base)
        for name, (term, base) in terms.items()
    }
    found["ece"] = _figure(pairs, lambda w: ece(right, chance, w), every, reps, seed, 0.0)  # type: ignore[arg-type]
    return found, reliability_bins(d[d != 0] > 0, chance[d != 0])


def by_length(pairs: ResponsePairs, *, ties: Literal["wrong", "half"], reps: int, seed: int) -> dict[str, Interval]:
    """Accuracy where the right response is longer, where it is shorter, and at equal length.

    `length_controlled` is sigma(a) of the regression P(right order) = sigma(a + b tanh(z)), z the difference of lengths
    over its standard deviation: the accuracy that it predicts at z = 0, as AlpacaEval controls the length of
    win rates (Dubois et al. 2024, 2404.04475).

    Args:
        pairs: measured pairs.
        ties: what equal values are worth.
        reps: bootstrap resamples.
        seed: of the bootstrap.
    """
    d, lengths = pairs.differences_P, pairs.lengths_P
    right = (d > 0) + (0.5 if ties == "half" else 0.0) * (d == 0)
    spread = lengths.std(ddof=1) if len(lengths) > 1 else 0.0
    z = np.tanh(lengths / spread) if spread else np.zeros(len(lengths))
    every = np.ones(len(d), dtype=np.bool_)
    parts = {"right_is_longer": lengths > 0, "right_is_shorter": lengths < 0}
    found = {"length_controlled": _figure(pairs, lambda w: _at_equal_length(z, right, w), every, reps, seed, 0.5)}
    found |= {
        name: _figure(pairs, lambda w, r=right[part]: ratio(w @ r, w.sum(axis=1)), part, reps, seed, 0.5)
        for name, part in parts.items()
    }
    longer = lambda w: ratio(w @ ((lengths > 0) + 0.5 * (lengths == 0)), w.sum(axis=1))  # noqa: E731
    return found | {"share_right_is_longer": _figure(pairs, longer, every, reps, seed, None)}


def _at_equal_length(z_P: Float64, right_P: Float64, weights_R_P: Float64) -> Float64:
    """(R,) sigma(a) of the weighted regression of `by_length`; 0 and 1 where all are wrong or right."""
    total = weights_R_P.sum(axis=1)
    mean = ratio(weights_R_P @ right_P, total)
    a = b = np.zeros(len(weights_R_P))
    for _ in range(_STEPS):
        p = expit(a[:, None] + b[:, None] * z_P)
        rest, curve = weights_R_P * (right_P - p), weights_R_P * p * (1 - p)
        g_a, g_b = rest.sum(axis=1) - _RIDGE * a, rest @ z_P - _RIDGE * b
        h_aa, h_ab, h_bb = curve.sum(axis=1) + _RIDGE, curve @ z_P, curve @ z_P**2 + _RIDGE
        step = np.stack([h_bb * g_a - h_ab * g_b, h_aa * g_b - h_ab * g_a]) / (h_aa * h_bb - h_ab**2)
        step = step.clip(-2, 2)
        a, b = a + step[0], b + step[1]
        if np.abs(step).max(initial=0) < 1e-9:
            break
    return np.where((mean == 0) | (mean == 1), mean, np.where(total > 0, expit(a), np.nan))


def preference_lines(section: Mapping[str, Any]) -> list[str]:
    """The section `pairs` of a card, without its failures."""
    shares = {"overall": section["overall"], **section["subsets"], **section["sections"]}
    left_out = ", ".join(f"{n} {reason}" for reason, n in section.get("left_out", {}).items())  # none in older ones
    noise = section.get("label_noise")
    lines = [*figure_table((name, share["measured"]) for name, share in shares.items())]
    lines.append(f"ties: {sum(section['ties'].values())}")
    lines += [f"rows left out: {left_out}"] * bool(left_out)
    lines += [] if noise is None else [f"pairs judged twice: a share of {noise:.3f} of the judgements is wrong"]
    titles = {
        "length": "pairs by length (length_controlled: accuracy at equal length)",
        "calibration": "values read as Bradley-Terry logits; such probabilities hold within a prompt",
    }
    for name, title in titles.items():
        if section.get(name):
            lines += ["", title, *figure_table(section[name].items(), columns=["baseline"])]
    return lines
