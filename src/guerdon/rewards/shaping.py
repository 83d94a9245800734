"""Reward shaping: pure functions from a reward model's values to rewards.

`values_F` are the F scored rows of a segment of one episode, in order; `previous` is the last value scored before it.

    relative_reward(np.array([0.2, 0.5]), previous=0.1)  # [0.1, 0.3]
"""

from __future__ import annotations

import numpy as np

from guerdon.types import BoolArray

MAX_LOG_ODDS = 10.0


def threshold_reward(values_F: np.ndarray, *, threshold: float, success: float, fail: float) -> np.ndarray:
    """`success` where the value lies above the threshold, else `fail`."""
    return np.asarray(np.where(values_F > threshold, success, fail))


def log_odds_reward(values_F: np.ndarray) -> np.ndarray:
    """log(p / (1 - p)) of probabilities, at most `MAX_LOG_ODDS` either way (AIRL, 1710.11248, section 3)."""
    with np.errstate(divide="ignore"):
        odds = np.log(values_F) - np.log1p(-values_F)
    return np.asarray(np.clip(odds, -MAX_LOG_ODDS, MAX_LOG_ODDS))


def relative_reward(values_F: np.ndarray, *, previous: float) -> np.ndarray:
    """Change since the last scored row; sums to last value - `previous` (it telescopes)."""
    return np.asarray(np.diff(values_F, prepend=previous))


def potential_reward(values_T: np.ndarray, *, previous: float, gamma: float, terminated: bool) -> np.ndarray:
    """Potential-based shaping (Ng, Harada & Russell 1999): gamma Phi(s') - Phi(s) at every step.

    Args:
        values_T: potential after each step of the segment, held between scored rows.
        previous: potential before the first step.
        gamma: the source's discount.
        terminated: the last step ended the task, where Phi is 0. A truncated episode keeps its potential.
    """
    after = np.array(values_T, dtype=np.float64)
    if terminated and len(after):
        after[-1] = 0.0
    before = np.concatenate([[previous], np.asarray(values_T, dtype=np.float64)[:-1]])
    return np.asarray(gamma * after - before)


def confirmed_bonus(
    values_F: np.ndarray, *, threshold: float, frames: int, bonus: float, streak: int, paid: bool
) -> tuple[np.ndarray, int, bool]:
    """A one-shot bonus at the `frames`-th scored row in a row above the threshold.

    Args:
        values_F: success probabilities.
        threshold: above it a row confirms success.
        frames: confirming rows needed.
        bonus: what the confirming row earns, once an episode.
        streak: confirming rows just before the segment.
        paid: the episode already had its bonus.

    Returns:
        Rewards (F,), the streak and the paid mark after the segment.
    """
    rewards = np.zeros(len(values_F), dtype=np.float64)
    for i, value in enumerate(values_F):
        streak = streak + 1 if value > threshold else 0
        if streak >= frames and not paid:
            rewards[i], paid = bonus, True
    return rewards, streak, paid


def min_form_rewards(rewards_B_T: np.ndarray, paid_B_T: BoolArray, *, temperature: float) -> np.ndarray:
    """Process rewards whose sum is about their minimum (PURE, Cheng et al. 2025, 2504.15275, min form).

    r*_s = w_s r_s with w = softmax_s(-r_s / temperature) over the steps of a response, so that the undiscounted
    return before the worst step is about min_s r_s and about 0 after it. As the temperature falls the sum tends to
    the minimum.

    Args:
        rewards_B_T: process rewards, one per step at the step's last token (or one per token).
        paid_B_T: True where a step pays; the other tokens have no weight. A zero reward of a token that ends no
            step must not count as a step.
        temperature: of the soft minimum, in units of the reward (PURE: 0.1 for rewards in [-1, 1]).

    Returns:
        (B, T) float64, 0 where not paid.
    """
    if temperature <= 0:
        raise ValueError(f"the temperature of the soft minimum must be above 0, got {temperature}")
    rewards = np.where(paid_B_T, rewards_B_T, 0.0).astype(np.float64)
    lowest = np.where(paid_B_T, rewards, np.inf).min(axis=1, initial=np.inf, keepdims=True)
    excess = np.where(paid_B_T, rewards - np.where(np.isfinite(lowest), lowest, 0.0), 0.0)
    weights = np.where(paid_B_T, np.exp(-excess / temperature), 0.0)
    total = weights.sum(axis=1, keepdims=True)
    return np.asarray(rewards * weights / np.where(total > 0, total, 1.0))
