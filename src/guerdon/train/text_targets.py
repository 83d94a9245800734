"""What a reward model of text is trained towards: from labels and rewards to targets and weights.

| settings | target of a step | its weight |
|---|---|---|
| `labels: hard` | 0 or 1; other labels need a `threshold`, and are 1 from there on | 1, or abs(reward) |
| `labels: soft` | the label | 1, or abs(reward) |
| `rewards: target` | (1 + reward) / 2: SE gives soft targets, HE 0 in every wrong solution | 1 |

With `rewards: weight` (the default) the magnitude of SE counts: later steps weigh up to twice as much as the first;
that of HE is 1 everywhere. A step without a label or reward has weight 0. Pure functions; this module does not know
models or tokens.

    targets_S, weights_S = step_targets(solution, settings)
"""

from __future__ import annotations

import numpy as np

from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.labels.step_rewards import target as target_of_reward
from guerdon.settings.train_text import StepwiseTrainSettings, TextTrainSettings, VerdictTrainSettings
from guerdon.types import FloatArray


def step_targets(solution: Solution, settings: TextTrainSettings) -> tuple[FloatArray, FloatArray]:
    """(S,) targets in [0, 1] and (S,) weights; a weight of 0 where there is nothing to learn.

    Raises:
        DataError: a label is neither 0 nor 1 where hard ones are wanted and no threshold is given.
    """
    assert isinstance(settings, StepwiseTrainSettings | VerdictTrainSettings)
    n = len(solution.steps)
    targets, weights = np.zeros(n, dtype=np.float32), np.zeros(n, dtype=np.float32)
    rewards = solution.rewards or (None,) * n
    if settings.rewards == "target":
        for k, reward in enumerate(rewards):
            if reward is not None:
                targets[k], weights[k] = target_of_reward(reward), 1.0
        return targets, weights
    for k, label in enumerate(solution.labels):
        if label is None:
            continue
        targets[k] = _target(solution, k, label, settings)
        reward = rewards[k] if settings.rewards == "weight" else None
        weights[k] = 1.0 if reward is None else abs(reward)
    return targets, weights


def _target(solution: Solution, k: int, label: float, settings: StepwiseTrainSettings | VerdictTrainSettings) -> float:
    if settings.labels == "soft":
        return label
    if settings.threshold is not None:
        return float(label >= settings.threshold)
    if label not in (0.0, 1.0):
        raise DataError(
            f"solution {solution.id}: labels[{k}] is {label:g}, which is neither right nor wrong: train with labels: "
            "soft, or give a threshold from which a label counts as right"
        )
    return label


def outcome_target(solution: Solution) -> FloatArray:
    """(1,) whether the answer is right."""
    return np.array([float(bool(solution.is_correct))], dtype=np.float32)
