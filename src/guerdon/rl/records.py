"""Bookkeeping of a run: the return of every source per episode, kept apart from true success; running scales.

A return with a failed measurement in it is a sum with a hole: it is not reported as a number, but as None.
This module does not know models, policies or files.

    book = EpisodeBook(num_envs=8, sources=["env", "resnet"])
    rows = book.add(rollout, {"resnet": 1.0}, step=2000)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guerdon.policies.control import RunningMeanStd
from guerdon.rl.alarm import correlation, hacking_alarm
from guerdon.types import BoolArray, FloatArray, IntArray

OLDEST, NEWEST = 40, 200  # episodes that the alarm and the correlations look at


@dataclass(frozen=True, eq=False)
class RewardedRollout:
    """A rollout with the rewards of every source, as advantages and logs read it.

    Attributes:
        observations: (B, T, S) float32 for states or (B, T, H, W, C) uint8 for pixels, before the action.
        actions: (B, T, A) float32.
        log_probs: (B, T) float32, of the behaviour policy.
        mask: (B, T) bool, False where a step does not exist (padding, a reset step).
        terminated: (B, T) bool, the task's own end: no value beyond it.
        truncated: (B, T) bool, cut off by a limit: the value goes on beyond it.
        success: (B, T) bool, ground truth after the step; False where nobody knows. Nothing ever overwrites it.
        success_known: (B, T) bool, where ground truth was reported.
        rewards: source name to (B, T) float32. `env` is ground truth; the others are reward models.
        failed: source name to (B, T) bool, True where the source's measurement is missing.
        values: source name to (B, T) float32 estimates of the value before the step, or empty.
        next_values: source name to (B, T) float32 estimates of the value after the step (of the terminal
            observation where the episode ended), or empty.
        group_ids: (B, T) int64, steps of episodes with the same start share an id; -1 where there is none.
    """

    observations: NDArray[Any]
    actions: FloatArray
    log_probs: FloatArray
    mask: BoolArray
    terminated: BoolArray
    truncated: BoolArray
    success: BoolArray
    success_known: BoolArray
    rewards: Mapping[str, FloatArray]
    failed: Mapping[str, BoolArray] = field(default_factory=dict)
    values: Mapping[str, FloatArray] = field(default_factory=dict)
    next_values: Mapping[str, FloatArray] = field(default_factory=dict)
    group_ids: IntArray | None = None

    def __post_init__(self) -> None:
        shape = self.mask.shape
        for f in fields(self):
            value = getattr(self, f.name)
            arrays = value.values() if isinstance(value, Mapping) else [value]
            for array in arrays:
                if array is not None and array.shape[:2] != shape:
                    raise ValueError(f"rollout field {f.name!r} has shape {array.shape}, expected {shape} first")

    @property
    def done(self) -> BoolArray:
        """(B, T) bool, True at the last step of an episode."""
        return self.terminated | self.truncated


class EpisodeBook:
    """Adds up each copy's episode and keeps the finished ones that later sums need: the oldest and the newest.

    Attributes:
        finished: one plain row per finished episode: success, success_at_end, length, return/<source>,
            return/combined; a return is None where one of its measurements failed, success where nobody knows it.
    """

    def __init__(self, num_envs: int, sources: Sequence[str]) -> None:
        self._sources = [*sources, "combined"]
        self._sums = {name: np.zeros(num_envs) for name in self._sources}
        self._holes = {name: np.zeros(num_envs, dtype=np.bool_) for name in self._sources}
        self._once = np.zeros(num_envs, dtype=np.bool_)
        self._length = np.zeros(num_envs, dtype=np.int64)
        self.finished: list[dict[str, Any]] = []

    def add(self, rollout: RewardedRollout, weights: Mapping[str, float], step: int) -> list[dict[str, Any]]:
        """Take in a rollout; return the rows of the episodes that ended in it, in order of time."""
        streams, failed = _with_combined(rollout, weights, self._sources)
        rows: list[dict[str, Any]] = []
        for t in range(rollout.mask.shape[1]):
            alive = rollout.mask[:, t]
            for name in self._sources:
                self._sums[name] += np.where(alive, streams[name][:, t], 0.0)
            for name, flags in failed.items():
                self._holes[name] |= flags[:, t] & alive
            self._once |= rollout.success[:, t] & alive
            self._length += alive
            for i in np.flatnonzero(rollout.done[:, t] & alive):
                at_end = bool(rollout.success[i, t]) if rollout.success_known[i, t] else None
                rows.append(self._row(int(i), at_end, step))
                self._clear(i)
        return self.keep(rows)

    def keep(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Remember finished episodes, the oldest and the newest; returns them as they are."""
        self.finished += rows
        del self.finished[OLDEST:-NEWEST]
        return rows

    def alarm(self, learned: Sequence[str]) -> str:
        """Which learned return rises while true success does not, with numbers; empty where none does.

        It is about the episodes that the policy was trained on, never about those whose true success is unknown.
        """
        for name in learned:
            returns, success = self._history(name)
            if hacking_alarm(returns, success, window=OLDEST):
                moved = (f"{v[:OLDEST].mean():.2f} -> {v[-OLDEST:].mean():.2f}" for v in (returns, success))
                return (
                    f"the learned return rises, success does not: {name} {{}}, success {{}} from the first {OLDEST} to "
                    f"the newest {OLDEST} training episodes"
                ).format(*moved)
        return ""

    def summary(self, rows: list[dict[str, Any]], learned: Sequence[str]) -> dict[str, Any]:
        """Means over the given episodes, and what the whole history says about each learned source.

        Success is a share of the `success_known` episodes, None where there is none; so is the alarm.
        """
        result: dict[str, Any] = {"episodes": len(rows)}
        if rows:
            result["success_known"] = sum(r["success"] is not None for r in rows)
            for key in ("success", "success_at_end", "length", *(f"return/{n}" for n in self._sources)):
                known = [r[key] for r in rows if r[key] is not None]
                result[key] = float(np.mean(known)) if known else None
        for name in learned:
            returns, success = self._history(name)
            result[f"undefined_returns/{name}"] = sum(r[f"return/{name}"] is None for r in rows)
            result[f"reward_success_correlation/{name}"] = correlation(returns[-NEWEST:], success[-NEWEST:])
        if learned:
            returns, success = self._history("combined")
            result["reward_success_correlation"] = correlation(returns[-NEWEST:], success[-NEWEST:])
            judged = any(r["success"] is not None for r in self.finished) or not self.finished
            result["hacking_alarm"] = int(bool(self.alarm(learned))) if judged else None
        return result

    def forget(self) -> None:
        """Leave the episodes under way: the world begins new ones."""
        self._clear(slice(None))

    def _row(self, i: int, success_at_end: bool | None, step: int) -> dict[str, Any]:
        row: dict[str, Any] = {"step": step, "env": i, "success": True if self._once[i] else success_at_end}
        row["success_at_end"] = success_at_end
        row["length"] = int(self._length[i])
        for name in self._sources:
            row[f"return/{name}"] = None if self._holes[name][i] else round(float(self._sums[name][i]), 6)
        return row

    def _clear(self, i: int | slice | np.intp) -> None:
        self._once[i], self._length[i] = False, 0
        for name in self._sources:
            self._sums[name][i], self._holes[name][i] = 0.0, False

    def _history(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns and true success of the kept episodes of which both are known."""
        known = [r for r in self.finished if None not in (r[f"return/{name}"], r["success"])]
        success = np.array([r["success"] for r in known], dtype=np.float64)
        return np.array([r[f"return/{name}"] for r in known], dtype=np.float64), success

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "sums": {k: v.tolist() for k, v in self._sums.items()},
            "holes": {k: v.tolist() for k, v in self._holes.items()},
            "once": self._once.tolist(),
            "length": self._length.tolist(),
            "finished": self.finished,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to stored values."""
        self._sums = {k: np.array(v, dtype=np.float64) for k, v in state["sums"].items()}
        self._holes = {k: np.array(v, dtype=np.bool_) for k, v in state["holes"].items()}
        self._once = np.array(state["once"], dtype=np.bool_)
        self._length = np.array(state["length"], dtype=np.int64)
        self.finished = list(state["finished"])


def _with_combined(
    rollout: RewardedRollout, weights: Mapping[str, float], names: Sequence[str]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Rewards of every source and their weighted sum; and where each of them is missing."""
    streams = {name: rollout.rewards[name] for name in names if name != "combined"}
    failed: dict[str, np.ndarray] = {name: flags for name, flags in rollout.failed.items() if name in streams}
    combined = np.zeros(rollout.mask.shape)
    missing = np.zeros(rollout.mask.shape, dtype=np.bool_)
    for name, weight in weights.items():
        combined += weight * rollout.rewards[name]
        if name in failed and weight:
            missing |= failed[name]
    if failed:
        failed = {**failed, "combined": missing}
    return {**streams, "combined": combined}, failed


class RewardScaler:
    """Running standard deviation of each source's discounted return, to divide its rewards by."""

    def __init__(self, gammas: Mapping[str, float], num_envs: int, *, enabled: bool) -> None:
        self._gammas = dict(gammas)
        self._enabled = enabled
        self._returns = {name: np.zeros(num_envs) for name in gammas}
        self._stats = {name: RunningMeanStd() for name in gammas}

    def update(self, rollout: RewardedRollout) -> dict[str, float]:
        """Take in a rollout and name the divisors for it; all 1 when switched off."""
        if not self._enabled:
            return dict.fromkeys(self._gammas, 1.0)
        for name, gamma in self._gammas.items():
            seen = []
            for t in range(rollout.mask.shape[1]):
                alive = rollout.mask[:, t]
                grown = self._returns[name] * gamma + rollout.rewards[name][:, t]
                self._returns[name] = np.where(alive, grown, self._returns[name])
                seen.append(self._returns[name][alive])
                self._returns[name] = np.where(rollout.done[:, t], 0.0, self._returns[name])
            self._stats[name].update(np.concatenate(seen))
        return {name: max(float(s.std), 1e-4) for name, s in self._stats.items()}

    def forget(self) -> None:
        """Leave the episodes under way: the world begins new ones."""
        for returns in self._returns.values():
            returns[:] = 0.0

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
