"""Checks of robots' episodes: rewarded without motion, rewarded at the first frame, and ended early."""

from __future__ import annotations

import numpy as np

from guerdon.audit.log_view import Checked, Missing, View, found
from guerdon.audit.rows import Codes, Flags, Numbers

# practical minima, set on the first half of benchmarks/audit_sets.py
STILL = 0.05  # share of the median motion of an episode
EARLY = 0.2  # share of the median length of an episode
FEWEST = 2  # episodes
SHARE = 0.02  # of the episodes
EPISODES = "share of the episodes"


class _Episodes:
    """What E episodes add up to."""

    def __init__(self, view: View) -> None:
        steps = view.rows.steps
        assert steps is not None
        episode, self.frame = view.of(steps.episode_N), view.of(steps.frame_N)
        self.number: Codes = np.unique(episode, return_inverse=True)[1].astype(np.int64)
        self.length = np.bincount(self.number)
        self.total: Numbers = np.bincount(self.number, view.reward_M).astype(np.float64)
        self.best = np.full(len(self.length), -np.inf)
        np.maximum.at(self.best, self.number, view.reward_M)
        self.first = self._at(view, self.frame == 0)
        truth = view.of(view.rows.truth_N)
        self.success: Flags | None = None
        if truth is not None and np.isfinite(truth).any():
            self.success = np.bincount(self.number, np.nan_to_num(truth) > 0.5) > 0
        values, counts = np.unique(view.reward_M, return_counts=True)
        common = int(np.argmax(counts))
        self.sparse = counts[common] > 0.6 * len(view) and len(values) <= 5
        self.rest, self.top = float(values[common]), float(values[-1])

    def _at(self, view: View, flag: Flags) -> Codes:
        """The place in the view of a flagged row of each episode, -1 where there is none."""
        found = np.full(len(self.length), -1)
        found[self.number[flag]] = np.flatnonzero(flag)
        return found

    @property
    def paid(self) -> Flags:
        """Which episodes were successes by the log, or are rewarded like one by a sparse reward or a high return."""
        if self.sparse and self.top > self.rest:
            paid = self.best == self.top
        else:
            paid = self.total > np.mean(np.quantile(self.total, [0.05, 0.95]))
        return np.asarray(paid if self.success is None else paid | self.success)


def _rows(view: View, row_E: Codes, flag_E: Flags) -> Flags:
    """One row of each episode with a flag."""
    flag = np.zeros(len(view), bool)
    flag[row_E[flag_E & (row_E >= 0)]] = True
    return flag


def check_motionless(view: View) -> Checked | Missing:
    """Episodes that are rewarded although neither the state nor the picture changes."""
    steps = view.rows.steps
    if steps is None or (steps.state_N_D is None and steps.picture_N is None):
        return Missing("state or picture")
    all_of = _Episodes(view)
    still = np.ones(len(all_of.length), bool)
    looked = []
    if steps.state_N_D is not None:
        motion = _motion(np.asarray(view.of(steps.state_N_D), dtype=np.float64), all_of.number)
        typical = float(np.median(motion[motion > 0])) if (motion > 0).any() else 0.0
        usual = float(np.quantile(motion, 0.9))
        still &= motion <= STILL * max(typical, usual / 2)
        looked.append("state")
    if steps.picture_N is not None:
        picture = view.of(steps.picture_N)
        changed = np.concatenate([[False], (np.diff(picture) != 0) & (np.diff(all_of.number) == 0)])
        changes = np.bincount(all_of.number, changed)
        if steps.state_N_D is None:
            still &= changes <= 0.05 * all_of.length
        looked.append("picture")
    if steps.contact_N is not None:
        touch = np.nan_to_num(np.asarray(view.of(steps.contact_N), dtype=np.float64))
        still &= np.bincount(all_of.number, np.abs(touch) > 0.5 * np.quantile(np.abs(touch), 0.95) + 1e-9) <= 1
        looked.append("contact")
    still &= all_of.length > 2
    flag, of = still & all_of.paid, max(int(all_of.paid.sum()), 1)
    clean = f"{', '.join(looked)} of {len(still):,} episodes: {flag.sum():,} are rewarded without motion"
    if flag.sum() < FEWEST or flag.sum() < SHARE * of:
        return Checked(None, clean)
    title = "{count} episodes ({share} of the rewarded ones) are rewarded although the robot does not move"
    at = _rows(view, all_of.first, flag)
    return Checked(found(view, "motionless", at, title, of=of, unit=EPISODES, say="the robot stays as it is"), clean)


def _motion(state_M_D: Numbers, number: Codes) -> Numbers:
    """The largest range of an episode over the dimensions, each in standard deviations of the log, (E,)."""
    episodes = int(number.max()) + 1
    spread = np.nanstd(state_M_D, axis=0)
    motion = np.zeros(episodes)
    for d in np.flatnonzero(spread > 0):
        value = state_M_D[:, d]
        low, high = np.full(episodes, np.inf), np.full(episodes, -np.inf)
        known = np.isfinite(value)
        np.minimum.at(low, number[known], value[known])
        np.maximum.at(high, number[known], value[known])
        motion = np.maximum(motion, np.where(high >= low, high - low, 0.0) / spread[d])
    return motion


def check_first_frame(view: View) -> Checked | Missing:
    """Episodes whose first frame, before any action, is rewarded like a success."""
    if view.rows.steps is None:
        return Missing("episode and frame")
    all_of = _Episodes(view)
    has = all_of.first >= 0
    if has.sum() < 2 or len(view) <= 2 * has.sum():
        return Checked(None, "episodes of one or two frames")
    reward = view.reward_M[np.maximum(all_of.first, 0)]
    later = view.reward_M[all_of.frame > 0]
    if all_of.sparse:
        paid = has & (reward > all_of.rest) & (reward >= 0.5 * (all_of.top + all_of.rest))
    else:
        following = view.reward_M[np.minimum(all_of.first + 1, len(view) - 1)]
        high, low = np.quantile(later, 0.95), np.quantile(later, 0.5)
        paid = has & (reward >= high) & (following <= low) & (high > low)
    clean = f"{paid.sum():,} of {has.sum():,} episodes are rewarded at their first frame"
    if paid.sum() < FEWEST or paid.sum() < SHARE * has.sum():
        return Checked(None, clean)
    title, say = (
        "{count} episodes ({share}) are rewarded at their first frame, before any action",
        "rewarded like a success",
    )
    at = _rows(view, all_of.first, paid)
    return Checked(found(view, "first_frame", at, title, of=int(has.sum()), unit=EPISODES, say=say), clean)


def check_early_end(view: View) -> Checked | Missing:
    """Episodes that end long before the others and are rewarded at least like a success."""
    rows = view.rows
    if rows.steps is not None:
        all_of = _Episodes(view)
        length, total, first, success = all_of.length, all_of.total, all_of.first, all_of.success
        paid = all_of.paid
        if success is None and all_of.sparse:
            success = all_of.best == all_of.top
    else:
        truth, lengths = view.of(rows.truth_N), view.of(rows.length_N)
        if rows.texts is not None or rows.prompt_N is not None or lengths is None:
            return Missing("episode and frame")
        if truth is None:
            return Missing("truth or success of each episode")
        length, total, first = lengths.astype(np.int64), view.reward_M, np.arange(len(view))
        success = np.nan_to_num(np.asarray(truth, dtype=np.float64)) > 0.5
        paid = total > np.mean(np.quantile(total, [0.05, 0.95]))
    early = length < EARLY * np.median(length)
    longer = ~early
    if success is not None:  # an end without success that is worth more than most successes
        good = total[longer & success]
        level = np.median(good) if len(good) else np.quantile(total[longer], 0.9)
        flag = early & np.where(success, paid, total >= level)
    else:
        flag = early & paid
    clean = f"{early.sum():,} of {len(length):,} episodes are shorter than {EARLY:.0%} of the median"
    clean += f"; {flag.sum():,} of them are rewarded like a success"
    if flag.sum() < FEWEST or flag.sum() < SHARE * len(length):
        return Checked(None, clean)
    title = "{count} episodes ({share}) end within a fifth of the median length and are rewarded as much as a success"
    at = _rows(view, first, flag)
    return Checked(found(view, "early_end", at, title, of=len(length), unit=EPISODES, say="ends early"), clean)
