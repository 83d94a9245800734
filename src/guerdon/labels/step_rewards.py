"""Rewards HE and SE of each step of a labelled solution.

With i the step from 0 and n the number of steps:

    HE   +1 where the step and the whole solution are right, else -1
    SE   +(0.5 + 0.5 (i+1)/n) for a right step, -(0.5 + 0.5 (i+1)/n) for a wrong one

A step is right where its label is at least 0.5, as `Solution.first_error` has it. Both magnitude and sign are kept:
`target` maps a reward to the probability that a model is trained towards. The seed's own training used the sign alone.

    with_rewards(solution, "SE").rewards         # (0.75, -1.0)
    target(-0.75)                       # 0.125
"""

from __future__ import annotations

from dataclasses import replace

from guerdon.episodes.solutions import Solution
from guerdon.settings.label import Reward


def hard_exact(label: float | None, is_correct: bool | None) -> float | None:
    """HE of one step; None where its label is missing, or it is right and whether the solution is right is unknown."""
    if label is None or (label >= 0.5 and is_correct is None):
        return None
    return 1.0 if label >= 0.5 and is_correct else -1.0


def soft_exact(label: float | None, step: int, steps: int) -> float | None:
    """SE of step number `step`, from 0, of `steps`; None where its label is missing."""
    if label is None:
        return None
    size = 0.5 + 0.5 * (step + 1) / steps
    return size if label >= 0.5 else -size


def with_rewards(solution: Solution, reward: Reward) -> Solution:
    """The solution with the rewards of its steps; without labels it stays as it is."""
    n = len(solution.steps)
    if reward == "HE":
        rewards = tuple(hard_exact(label, solution.is_correct) for label in solution.labels)
    else:
        rewards = tuple(soft_exact(label, i, n) for i, label in enumerate(solution.labels))
    return replace(solution, rewards=rewards)


def target(reward: float) -> float:
    """The probability of "right" that a reward stands for: -1 is 0, +1 is 1, and SE is in between."""
    return (1.0 + reward) / 2.0
