"""Checks of robots' episodes: rewarded without motion, rewarded at the first frame, and ended early."""

from __future__ import annotations

import numpy as np

from guerdon.auditing.association import stratum_ends
from guerdon.auditing.log_view import Checked, MissingColumn, View, enough, found, needed
from guerdon.auditing.rows import Codes, Flags, Numbers

# practical minima, set on the first half of benchmarks/audit_sets.py
STILL = 0.05  # share of the median motion of an episode
EARLY = 0.2  # share of the median length of an episode
FEWEST = 2  # episodes with the fault
FEWEST_EPISODES = 10
SHARE = 0.02  # of the episodes


class _Episodes:
    """What E episodes of steps add up to.

    Raises:
        MissingColumn: the log has no steps.
    """

    def __init__(self, view: View) -> None:
        steps = needed(view.rows.steps, "episode and frame")
        episode, self.frame = view.of(steps.episode_N), view.of(steps.frame_N)
        self.number: Codes = np.unique(episode, return_inverse=True)[1].astype(np.int64)
        self.length = np.bincount(self.number)
        self.total: Numbers = np.bincount(self.number, view.reward_M).astype(np.float64)
        self.best = stratum_ends(view.reward_M, self.number)[1]
        self.first = np.full(len(self.length), -1)  # the place of the first frame, -1 where there is none
        self.first[self.number[self.frame == 0]] = np.flatnonzero(self.frame == 0)
        truth = view.of(view.rows.truth_N)
        self.success: Flags | None = None
        if truth is not None and np.isfinite(truth).any():
            self.success = np.bincount(self.number, np.nan_to_num(truth) > 0.5) > 0
        values, counts = np.unique(view.reward_M, return_counts=True)
        common = int(np.argmax(counts))
        self.sparse = counts[common] > 0.6 * len(view) and len(values) <= 5
        self.rest, self.top = float(values[common]), float(values[-1])

    @property
    def paid(self) -> Flags:
        """Which episodes were successes by the log, or are rewarded like one by a sparse reward or a high return."""
        paid = self.best == self.top if self.sparse and self.top > self.rest else _high(self.total)
        return np.asarray(paid if self.success is None else paid | self.success)


def _high(total_E: Numbers) -> Flags:
    """Returns above the middle between a low and a high one."""
    return np.asarray(total_E > np.mean(np.quantile(total_E, [0.05, 0.95])))


def _episodes_found(
    view: View, name: str, flag_E: Flags, first_E: Codes, of: int, title: str, clean: str, say: str
) -> Checked:
    """A finding about episodes with a flag, each shown by its first row, where they are not too few."""
    if flag_E.sum() < FEWEST or flag_E.sum() < SHARE * of:
        return Checked(None, clean)
    flag = np.zeros(len(view), bool)
    flag[first_E[flag_E & (first_E >= 0)]] = True
    return found(view, name, flag, title, clean, of=of, unit="share of the episodes", say=say)


def check_motionless(view: View) -> Checked:
    """Episodes that are rewarded although neither the state nor the picture changes."""
    steps = view.rows.steps
    if steps is None or (steps.state_N_D is None and steps.picture_N is None):
        raise MissingColumn("state or picture")
    all_of = _Episodes(view)
    enough(int(all_of.paid.sum()), FEWEST_EPISODES // 2, "rewarded episodes")
    still = all_of.length > 2
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
    flag, of = still & all_of.paid, max(int(all_of.paid.sum()), 1)
    clean = f"{', '.join(looked)} of {len(still):,} episodes: {flag.sum():,} are rewarded without motion"
    title = "{count} episodes ({share} of the rewarded ones) are rewarded although the robot does not move"
    return _episodes_found(view, "motionless", flag, all_of.first, of, title, clean, "the robot stays as it is")


def _motion(state_M_D: Numbers, number: Codes) -> Numbers:
    """The largest range of an episode over the dimensions, each in standard deviations of the log, (E,)."""
    spread, motion = np.nanstd(state_M_D, axis=0), np.zeros(int(number.max()) + 1)
    for d in np.flatnonzero(spread > 0):
        low, high = stratum_ends(state_M_D[:, d], number)
        motion = np.maximum(motion, np.where(high >= low, high - low, 0.0) / spread[d])
    return motion


def check_first_frame(view: View) -> Checked:
    """Episodes whose first frame, before any action, is rewarded like a success."""
    all_of = _Episodes(view)
    has = all_of.first >= 0
    if has.any() and len(view) <= 2 * has.sum():
        raise MissingColumn("episodes of more than two frames")
    enough(int(has.sum()), FEWEST_EPISODES, "episodes with their first frame")
    reward = view.reward_M[np.maximum(all_of.first, 0)]
    if all_of.sparse:
        paid = has & (reward > all_of.rest) & (reward >= 0.5 * (all_of.top + all_of.rest))
    else:
        following = view.reward_M[np.minimum(all_of.first + 1, len(view) - 1)]
        low, high = np.quantile(view.reward_M[all_of.frame > 0], [0.5, 0.95])
        paid = has & (reward >= high) & (following <= low) & (high > low)
    of = int(has.sum())
    clean = f"{paid.sum():,} of {of:,} episodes are rewarded at their first frame"
    title = "{count} episodes ({share}) are rewarded at their first frame, before any action"
    return _episodes_found(view, "first_frame", paid, all_of.first, of, title, clean, "rewarded like a success")


def check_early_end(view: View) -> Checked:
    """Episodes that end long before the others and are rewarded at least like a success."""
    rows = view.rows
    if rows.steps is None and rows.texts is None and rows.prompt_N is None and rows.length_N is not None:
        truth = np.asarray(needed(view.of(rows.truth_N), "truth or success of each episode"), dtype=np.float64)
        length, total, first = view.of(rows.length_N).astype(np.int64), view.reward_M, np.arange(len(view))
        success: Flags | None = np.nan_to_num(truth) > 0.5
        paid = _high(total)
    else:
        all_of = _Episodes(view)
        length, total, first, success = all_of.length, all_of.total, all_of.first, all_of.success
        paid = all_of.paid
        if success is None and all_of.sparse:
            success = all_of.best == all_of.top
    enough(len(length), FEWEST_EPISODES, "episodes")
    early = length < EARLY * np.median(length)
    flag = early & paid
    if success is not None:  # an end without success that is worth more than most successes
        good = total[~early & success]
        level = np.median(good) if len(good) else np.quantile(total[~early], 0.9)
        flag = early & np.where(success, paid, total >= level)
    clean = f"{early.sum():,} of {len(length):,} episodes are shorter than {EARLY:.0%} of the median"
    clean += f"; {flag.sum():,} of them are rewarded like a success"
    title = "{count} episodes ({share}) end within a fifth of the median length and are rewarded as much as a success"
    return _episodes_found(view, "early_end", flag, first, len(length), title, clean, "ends early")
