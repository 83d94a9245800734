"""The few numbers watched while a reward model of text is fitted; `guerdon evaluate` has the full evaluation.

Pure functions of arrays; an undefined metric is None, never 0.

    step_quality([p_S], [targets_S], [weights_S], threshold=0.5)   # {"step_auroc": 0.97, "first_error_f1": 0.9, ...}
    outcome_quality(values_N, right_N, questions)                  # {"auroc": 0.9, "pair_accuracy": 0.88}
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from guerdon.models.quality import auroc
from guerdon.types import FloatArray


def step_quality(
    probabilities: Sequence[FloatArray], targets: Sequence[FloatArray], weights: Sequence[FloatArray], threshold: float
) -> dict[str, float | None]:
    """AUROC and accuracy of single steps, and how well the first wrong step is found.

    As in ProcessBench, F1 is the harmonic mean of two accuracies: of solutions with an error, how often exactly its
    step is found; of solutions without one, how often none is. A step with a target below one half is wrong. Solutions
    whose first error is hidden by a step without a label are left out of it.

    Args:
        probabilities: (S,) of each solution.
        targets: (S,) likewise.
        weights: (S,) likewise; 0 where there is no label.
        threshold: a smaller probability calls a step wrong.
    """
    p, t, w = (np.concatenate(list(parts)) if parts else np.zeros(0) for parts in (probabilities, targets, weights))
    known = w > 0
    right = t[known] >= 0.5
    hits: dict[bool, list[bool]] = {True: [], False: []}
    for p_S, t_S, w_S in zip(probabilities, targets, weights, strict=True):
        wrong = np.flatnonzero((t_S < 0.5) & (w_S > 0))
        first = int(wrong[0]) if len(wrong) else -1
        before = w_S[:first] if first >= 0 else w_S
        if (before > 0).all():
            below = np.flatnonzero(p_S < threshold)
            hits[first >= 0].append((int(below[0]) if len(below) else -1) == first)
    erroneous, correct = (float(np.mean(h)) if h else None for h in (hits[True], hits[False]))
    return {
        "step_auroc": auroc(p[known], right),
        "step_accuracy": float(((p[known] >= threshold) == right).mean()) if known.any() else None,
        "accuracy_erroneous": erroneous,
        "accuracy_correct": correct,
        "first_error_f1": harmonic(erroneous, correct),
    }


def outcome_quality(
    values_N: NDArray[np.float32], right_N: NDArray[np.bool_], questions: Sequence[str]
) -> dict[str, float | None]:
    """AUROC of whole solutions, and how often a right solution beats a wrong one of the same question (ties half)."""
    groups: dict[str, list[int]] = {}
    for i, question in enumerate(questions):
        groups.setdefault(question, []).append(i)
    won = pairs = 0.0
    for rows in groups.values():
        good = values_N[[i for i in rows if right_N[i]]]
        bad = values_N[[i for i in rows if not right_N[i]]]
        difference = good[:, None] - bad[None, :]
        won += float((difference > 0).sum() + 0.5 * (difference == 0).sum())
        pairs += difference.size
    return {
        "auroc": auroc(values_N, right_N) if len(values_N) else None,
        "pair_accuracy": won / pairs if pairs else None,
    }


def harmonic(a: float | None, b: float | None) -> float | None:
    """2ab / (a + b), 0 where both are 0; None where one is unknown."""
    if a is None or b is None:
        return None
    return 2 * a * b / (a + b) if a + b else 0.0
