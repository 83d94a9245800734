"""Bookkeeping of a run: the return of every source per episode, kept apart from true success; running scales.

This module does not know models, policies or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from guerdon.policies.normalize import RunningMeanStd
from guerdon.rl.alarm import correlation, hacking_alarm
from guerdon.types import Rollout


class EpisodeBook:
    """Adds up each copy's episode and keeps the finished ones.

    Attributes:
        finished: one plain row per finished episode: success, success_at_end, length, return/<source>,
            return/combined.
    """

    def __init__(self, num_envs: int, sources: list[str]) -> None:
        self._sources = [*sources, "combined"]
        self._sums = {name: np.zeros(num_envs) for name in self._sources}
        self._once = np.zeros(num_envs, dtype=np.bool_)
        self._length = np.zeros(num_envs, dtype=np.int64)
        self.finished: list[dict[str, Any]] = []

    def add(self, rollout: Rollout, weights: Mapping[str, float], step: int) -> list[dict[str, Any]]:
        """Take in a rollout; return the rows of the episodes that ended in it, in order of time."""
        streams = {name: rollout.rewards[name] for name in self._sources if name != "combined"}
        combined = np.zeros(rollout.mask.shape)
        for name, weight in weights.items():
            combined += weight * rollout.rewards[name]
        streams["combined"] = combined
        rows: list[dict[str, Any]] = []
        for t in range(rollout.mask.shape[1]):
            alive = rollout.mask[:, t]
            for name in self._sources:
                self._sums[name] += np.where(alive, streams[name][:, t], 0.0)
            self._once |= rollout.success[:, t] & alive
            self._length += alive
            for i in np.flatnonzero(rollout.done[:, t] & alive):
                row: dict[str, Any] = {"step": step, "env": int(i), "success": bool(self._once[i])}
                row["success_at_end"] = bool(rollout.success[i, t])
                row["length"] = int(self._length[i])
                row |= {f"return/{name}": round(float(self._sums[name][i]), 6) for name in self._sources}
                rows.append(row)
                self._once[i], self._length[i] = False, 0
                for name in self._sources:
                    self._sums[name][i] = 0.0
        self.finished += rows
        return rows

    def summary(self, rows: list[dict[str, Any]], learned: list[str]) -> dict[str, Any]:
        """Means over the given episodes, and what the whole history says about each learned source."""
        result: dict[str, Any] = {"episodes": len(rows)}
        if rows:
            for key in ("success", "success_at_end", "length", *(f"return/{n}" for n in self._sources)):
                result[key] = float(np.mean([r[key] for r in rows]))
        success = np.array([r["success"] for r in self.finished], dtype=np.float64)
        alarm = False
        for name in learned:
            returns = np.array([r[f"return/{name}"] for r in self.finished])
            result[f"reward_success_correlation/{name}"] = correlation(returns[-200:], success[-200:])
            alarm |= hacking_alarm(returns, success)
        if learned:
            combined = np.array([r["return/combined"] for r in self.finished])
            result["reward_success_correlation"] = correlation(combined[-200:], success[-200:])
            result["hacking_alarm"] = int(alarm)
        return result

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "sums": {k: v.tolist() for k, v in self._sums.items()},
            "once": self._once.tolist(),
            "length": self._length.tolist(),
            "finished": self.finished,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to stored values."""
        self._sums = {k: np.array(v, dtype=np.float64) for k, v in state["sums"].items()}
        self._once = np.array(state["once"], dtype=np.bool_)
        self._length = np.array(state["length"], dtype=np.int64)
        self.finished = list(state["finished"])


class RewardScaler:
    """Running standard deviation of each source's discounted return, to divide its rewards by."""

    def __init__(self, gammas: Mapping[str, float], num_envs: int, *, enabled: bool) -> None:
        self._gammas = dict(gammas)
        self._enabled = enabled
        self._returns = {name: np.zeros(num_envs) for name in gammas}
        self._stats = {name: RunningMeanStd() for name in gammas}

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Take in a rollout and name the divisors for it; all 1 when switched off."""
        if not self._enabled:
            return dict.fromkeys(self._gammas, 1.0)
        for name, gamma in self._gammas.items():
            seen = []
            for t in range(rollout.mask.shape[1]):
                self._returns[name] = self._returns[name] * gamma + rollout.rewards[name][:, t]
                seen.append(self._returns[name][rollout.mask[:, t]])
                self._returns[name] = np.where(rollout.done[:, t], 0.0, self._returns[name])
            self._stats[name].update(np.concatenate(seen))
        return {name: max(float(s.std), 1e-4) for name, s in self._stats.items()}

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            name: {
                "returns": self._returns[name].tolist(),
                **{k: v.tolist() for k, v in s.state_dict().items()},
            }
            for name, s in self._stats.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to stored values."""
        for name, values in state.items():
            self._returns[name] = np.array(values["returns"], dtype=np.float64)
            self._stats[name].load_state_dict(values)
