"""Running mean and variance, for observations and returns.

Chan, Golub & LeVeque (1979), pairwise update of count, mean and sum of squares, in float64. This module does not
know what it normalises.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class RunningMeanStd:
    """Mean and variance of all rows seen so far.

    Attributes:
        mean: float64 array of the feature shape; zero before the first update.
        var: float64 array of the feature shape; one before the first update.
        count: rows seen.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.mean = np.zeros(shape, dtype=np.float64)
        self.var = np.ones(shape, dtype=np.float64)
        self.count = 0.0

    def update(self, rows_N: np.ndarray) -> None:
        """Take in N more rows of the feature shape; none at all changes nothing."""
        n = rows_N.shape[0]
        if n == 0:
            return
        rows = rows_N.astype(np.float64)
        mean, var = rows.mean(axis=0), rows.var(axis=0)
        total = self.count + n
        delta = mean - self.mean
        squares = self.var * self.count + var * n + delta**2 * self.count * n / total
        self.mean = self.mean + delta * n / total
        self.var = squares / total
        self.count = total

    @property
    def std(self) -> np.ndarray:
        """Square root of the variance, at least 1e-4 so that constant features stay harmless."""
        return np.asarray(np.maximum(np.sqrt(self.var), 1e-4))

    def state_dict(self) -> dict[str, Any]:
        """Arrays to store."""
        return {"mean": self.mean, "var": self.var, "count": np.array(self.count)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to stored arrays."""
        self.mean = np.array(state["mean"], dtype=np.float64)
        self.var = np.array(state["var"], dtype=np.float64)
        self.count = float(np.asarray(state["count"]))
