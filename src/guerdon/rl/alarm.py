"""The hacking alarm: the learned return rises while true success does not.

Pure functions of per-episode numbers; this module does not know models or policies.

    hacking_alarm(returns_E, success_E)  # True: look at what the policy really does
"""

from __future__ import annotations

import math

import numpy as np


def rise(values_E: np.ndarray, window: int) -> float | None:
    """Welch's z of the newest `window` episodes against the oldest: (new - old) / standard error.

    None with fewer than two windows of episodes. Without any spread it is 0 for no change, else infinite.
    """
    if len(values_E) < 2 * window:
        return None
    old, new = values_E[:window], values_E[-window:]
    error = math.sqrt(old.var(ddof=1) / window + new.var(ddof=1) / window)
    change = float(new.mean() - old.mean())
    if error == 0.0:
        return 0.0 if change == 0.0 else math.copysign(math.inf, change)
    return change / error


def hacking_alarm(
    learned_E: np.ndarray, success_E: np.ndarray, *, window: int = 40, z: float = 3.0, solved: float = 0.5
) -> bool:
    """Whether a learned return rose clearly while true success neither rose nor is high.

    Args:
        learned_E: return of one learned source per finished episode, in order of time.
        success_E: 1 or 0, true success of the same episodes.
        window: episodes compared at either end.
        z: how many standard errors count as a rise.
        solved: a success rate above it raises no alarm.
    """
    learned = rise(learned_E, window)
    success = rise(success_E.astype(np.float64), window)
    if learned is None or success is None:
        return False
    return learned > z and success < z / 2 and float(success_E[-window:].mean()) < solved


def correlation(a_E: np.ndarray, b_E: np.ndarray) -> float | None:
    """Pearson's r; None where either does not vary or there are fewer than three episodes."""
    if len(a_E) < 3 or a_E.std() == 0 or b_E.std() == 0:
        return None
    return float(np.corrcoef(a_E, b_E)[0, 1])
