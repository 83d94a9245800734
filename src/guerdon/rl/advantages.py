"""Advantages from rewards: pure functions of arrays (B, T), one reward source at a time, summed at the end.

Every source keeps its own discount, its own value estimate and its own failures until `combine`; a failed
measurement is masked, never replaced by a number. This module knows no policy, no loss and no simulator.
Token sequences with several dense sources are put together in `guerdon.rl.dense_advantages`.

    advantages, returns = gae(rewards, values, next_values, terminated, truncated, gamma=0.99, lam=0.95)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from guerdon.types import BoolArray, FloatArray, IntArray


def gae(
    rewards_B_T: FloatArray,
    values_B_T: FloatArray,
    next_values_B_T: FloatArray,
    terminated_B_T: BoolArray,
    truncated_B_T: BoolArray,
    *,
    gamma: float,
    lam: float,
    mask_B_T: BoolArray | None = None,
    failed_B_T: BoolArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Generalised advantage estimation (Schulman et al. 2016, 1506.02438, eq. 16).

    delta_t = r_t + gamma V(s_{t+1}) (1 - terminated_t) - V(s_t);  A_t = delta_t + gamma lam (1 - done_t) A_{t+1}.
    A truncated episode bootstraps from the value of its last observation. Where the reward is missing, delta is 0:
    the step says neither good nor bad, and later steps still reach earlier ones.

    Args:
        rewards_B_T: one source's rewards.
        values_B_T: value before each step.
        next_values_B_T: value after each step, of the terminal observation where the episode ended.
        terminated_B_T: the task ended.
        truncated_B_T: a limit ended the episode.
        gamma: discount.
        lam: trade-off between bias and variance.
        mask_B_T: False where there was no step; its advantage is 0.
        failed_B_T: True where the reward is missing.

    Returns:
        Advantages and returns (advantage + value), both (B, T) float32.
    """
    mask = np.ones_like(terminated_B_T) if mask_B_T is None else mask_B_T
    usable = mask if failed_B_T is None else mask & ~failed_B_T
    alive = (~terminated_B_T).astype(np.float64)
    going_on = (~(terminated_B_T | truncated_B_T)).astype(np.float64)
    values = values_B_T.astype(np.float64)
    deltas = np.where(usable, rewards_B_T + gamma * alive * next_values_B_T - values, 0.0)
    advantages = np.zeros(deltas.shape, dtype=np.float64)
    carry = np.zeros(deltas.shape[0], dtype=np.float64)
    for t in range(deltas.shape[1] - 1, -1, -1):
        carry = np.where(mask[:, t], deltas[:, t] + gamma * lam * going_on[:, t] * carry, 0.0)
        advantages[:, t] = carry
    return advantages.astype(np.float32), (advantages + values).astype(np.float32)


def episode_scores(
    rewards_B_T: FloatArray, mask_B_T: BoolArray, failed_B_T: BoolArray | None, *, gamma: float = 1.0
) -> tuple[np.ndarray, BoolArray]:
    """Discounted sum of each row's rewards, and whether it is known.

    A row whose source failed anywhere has no score: a sum with a hole is not a measurement.

    Returns:
        (B,) float64 scores (0 where unknown) and (B,) bool, True where known.
    """
    steps = np.cumsum(mask_B_T, axis=1) - 1
    discounts = np.where(mask_B_T, gamma ** np.maximum(steps, 0), 0.0)
    known = mask_B_T.any(axis=1)
    if failed_B_T is not None:
        known &= ~(failed_B_T & mask_B_T).any(axis=1)
    scores = (rewards_B_T.astype(np.float64) * discounts).sum(axis=1)
    return np.where(known, scores, 0.0), np.asarray(known)


def group_advantages(
    scores_B: np.ndarray,
    known_B: BoolArray,
    groups_B: IntArray,
    *,
    divide_by_std: bool = True,
    eps: float = 1e-6,
) -> np.ndarray:
    """Group-relative advantages (GRPO, Shao et al. 2024, 2402.03300, section 4.1.2).

    (s_i - mean) / (std + eps) over the known scores of the same group; without the division it is Dr. GRPO
    (Liu et al. 2025, 2503.20783). A group with fewer than two known scores teaches nothing: zeros.

    Returns:
        (B,) float64, 0 where unknown.
    """
    advantages = np.zeros(len(scores_B), dtype=np.float64)
    for group in np.unique(groups_B):
        members = (groups_B == group) & known_B
        if members.sum() < 2:
            continue
        s = scores_B[members]
        centred = s - s.mean()
        advantages[members] = centred / (s.std() + eps) if divide_by_std else centred
    return advantages


def combine(advantages: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> FloatArray:
    """Weighted sum of the sources' advantages: the first place where sources meet."""
    total = sum(weights[name] * advantage.astype(np.float64) for name, advantage in advantages.items())
    return np.asarray(total, dtype=np.float32)


def discounted_returns(rewards_B_T: np.ndarray, mask_B_T: BoolArray, *, gamma: float) -> np.ndarray:
    """Reward to go: G_t = r_t + gamma G_{t+1} over the valid tokens of a row.

    A masked token in between (a tool's output) neither pays nor discounts: it hands the return through and has 0.

    Returns:
        (B, T) float64, 0 where masked.
    """
    rewards = np.where(mask_B_T, rewards_B_T, 0.0).astype(np.float64)
    if gamma == 1.0:
        return np.where(mask_B_T, rewards[:, ::-1].cumsum(axis=1)[:, ::-1], 0.0)
    returns = np.zeros_like(rewards)
    carry = np.zeros(len(rewards))
    for t in range(rewards.shape[1] - 1, -1, -1):
        carry = np.where(mask_B_T[:, t], rewards[:, t] + gamma * carry, carry)
        returns[:, t] = carry
    return np.where(mask_B_T, returns, 0.0)


def token_gae(
    rewards_B_T: np.ndarray, values_B_T: np.ndarray, mask_B_T: BoolArray, *, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Generalised advantage estimation over responses (1506.02438, eq. 16): `gae` with one episode per row.

    The last valid token ends the task: no value beyond it, also where the length limit cut the response. Masked
    tokens in between are passed over.

    Args:
        rewards_B_T: one source's rewards.
        values_B_T: value before each token.
        mask_B_T: valid tokens.
        gamma: discount.
        lam: trade-off between bias and variance.

    Returns:
        Advantages and returns (advantage + value), both (B, T) float64, 0 where masked.
    """
    rewards = np.where(mask_B_T, rewards_B_T, 0.0).astype(np.float64)
    values = np.where(mask_B_T, values_B_T, 0.0).astype(np.float64)
    advantages = np.zeros_like(rewards)
    carry, following = np.zeros(len(rewards)), np.zeros(len(rewards))
    for t in range(rewards.shape[1] - 1, -1, -1):
        valid = mask_B_T[:, t]
        delta = rewards[:, t] + gamma * following - values[:, t]
        carry = np.where(valid, delta + gamma * lam * carry, carry)
        following = np.where(valid, values[:, t], following)
        advantages[:, t] = np.where(valid, carry, 0.0)
    return advantages, advantages + values


def whiten(values_B_T: np.ndarray, mask_B_T: BoolArray) -> np.ndarray:
    """(x - mean) / sqrt(variance + 1e-8) over the valid entries of the whole batch, variance with n - 1 (PRIME).

    Fewer than two valid entries have no spread: zeros.

    Returns:
        (B, T) float64, 0 where masked.
    """
    valid = np.asarray(values_B_T, dtype=np.float64)[mask_B_T]
    white = np.zeros(mask_B_T.shape, dtype=np.float64)
    if valid.size >= 2:
        white[mask_B_T] = (valid - valid.mean()) / np.sqrt(valid.var(ddof=1) + 1e-8)
    return white


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
