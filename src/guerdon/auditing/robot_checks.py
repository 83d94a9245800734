"""Checks of robots' episodes: rewards against success, between and within episodes, without motion, and early ends."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from guerdon.auditing.association import mean_ranks, stratum_ends
from guerdon.auditing.log_view import Checked, MissingColumn, Undecided, View, enough, found, needed
from guerdon.auditing.rows import Codes, Flags, Numbers, Rows
from guerdon.reading.layouts import TEXT_RUN
from guerdon.statistics.classification import auroc_within, mean_auroc
from guerdon.statistics.proportion import wilson_bounds
from guerdon.statistics.training_runs import stratified_t_p_value

# practical minima, set on the first half of benchmarks/audit_sets.py
STILL = 0.05  # share of the median motion of an episode
EARLY = 0.2  # share of the median length of an episode
FEWEST = 2  # episodes with the fault
FEWEST_EPISODES = 10
SHARE = 0.02  # of the episodes
FEWEST_OF_EACH = 5  # successes, and failures
LOWER = 0.4  # probability that a success has a higher reward than a failure
APART = 0.03  # share of the episodes whose sparse reward is not their success
SAME_PLACE = 0.8  # share of the successes whose reward comes equally many frames away


class Episodes:
    """What E episodes add up to: of rows that are a step each, or an episode each.

    Raises:
        MissingColumn: the log has neither.
    """

    def __init__(self, view: View) -> None:
        rows = view.rows
        if rows.steps is None and is_of_episodes(rows):
            self.number: Codes = np.arange(len(view))
            self.frame: Codes = np.zeros(len(view), np.int64)
            self.length = np.nan_to_num(np.asarray(view.of(rows.length_N))).astype(np.int64)
        else:
            steps = needed(rows.steps, "episode and frame")
            episode, self.frame = view.of(steps.episode_N), view.of(steps.frame_N)
            self.number = np.unique(episode, return_inverse=True)[1].astype(np.int64)
            self.length = np.bincount(self.number)
        self.total: Numbers = np.bincount(self.number, view.reward_M).astype(np.float64)
        self.best = stratum_ends(view.reward_M, self.number)[1]
        self.last: Numbers = np.zeros(len(self.total))  # the reward of the last frame
        self.last[self.number] = view.reward_M
        self.first = np.full(len(self.length), -1)  # the place of the first frame, -1 where there is none
        self.first[self.number[self.frame == 0]] = np.flatnonzero(self.frame == 0)
        truth = view.of(rows.truth_N)
        self.success: Flags | None = None
        if truth is not None and np.isfinite(truth).any():
            self.success = np.bincount(self.number, np.nan_to_num(truth) > 0.5) > 0
        values, counts = np.unique(view.reward_M, return_counts=True)
        common = int(np.argmax(counts))
        self.sparse = counts[common] > 0.6 * len(view) and len(values) <= 5 and rows.steps is not None
        self.rest, self.top = float(values[common]), float(values[-1])

    @property
    def paid(self) -> Flags:
        """Which episodes were successes by the log, or are rewarded like one by a sparse reward or a high return."""
        paid = self.best == self.top if self.sparse and self.top > self.rest else _high(self.total)
        return np.asarray(paid if self.success is None else paid | self.success)


def is_of_episodes(rows: Rows) -> bool:
    """Whether a row of a log is a whole episode of a world, and no response whose text is not there."""
    are_responses = rows.texts is not None or rows.prompt_N is not None or rows.layout == TEXT_RUN
    return rows.steps is None and rows.length_N is not None and not are_responses


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
    all_of = Episodes(view)
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
    all_of = Episodes(view)
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
    all_of = Episodes(view)
    length, total, success = all_of.length, all_of.total, all_of.success
    paid = all_of.paid
    if view.rows.steps is None:
        needed(success, "truth or success of each episode")
    elif success is None and all_of.sparse:
        success = all_of.best == all_of.top
    enough(len(length), FEWEST_EPISODES, "episodes")
    early = length < EARLY * np.median(length)
    flag = early & paid
    if success is not None:  # an end without success that is worth more than most successes
        good = total[~early & success]
        level = np.median(good) if len(good) else np.quantile(total[~early], 0.9)
        flag = early & np.where(success, paid, total >= level)
    if not all_of.sparse and view.rows.steps is not None and (~early).any():  # the end itself looks like a good one
        good = all_of.last[~early & (success if success is not None and (~early & success).any() else True)]
        level = np.median(good) if success is not None else np.quantile(good, 0.9)
        flag |= early & (all_of.last >= level) & (all_of.last > np.median(view.reward_M))
    clean = f"{early.sum():,} of {len(length):,} episodes are shorter than {EARLY:.0%} of the median"
    clean += f"; {flag.sum():,} of them are rewarded like a success, and {FEWEST} would be a finding"
    title = "{count} episodes ({share}) end within a fifth of the median length and are rewarded as much as a success"
    return _episodes_found(view, "early_end", flag, all_of.first, len(length), title, clean, "ends early")


def check_constant_success(view: View) -> Checked:
    """All episodes are logged as successes, or none is: the column says nothing, and rewards may say otherwise."""
    all_of = Episodes(view)
    success = needed(all_of.success, "success of each episode")
    enough(len(success), FEWEST_EPISODES, "episodes")
    clean = f"{success.sum():,} of {len(success):,} episodes are logged as successes"
    if success.any() != success.all():
        return Checked(None, clean)
    title, contrary = f"none of {len(success):,} episodes is logged as a success", "succeeded"
    if success.all():
        title, contrary = f"all of {len(success):,} episodes are logged as successes", "failed"
    title += ": the column distinguishes no episodes"
    against = np.zeros(len(success), bool)
    if all_of.sparse and all_of.top > all_of.rest:
        against = (all_of.best == all_of.top) != success
    contradicts = against.sum() >= FEWEST and against.sum() >= APART * len(success)
    if contradicts:
        title += f"; the rewards of {against.sum():,} say that they {contrary}"
    flag = np.zeros(len(view), bool)
    chosen = all_of.first[against if contradicts else np.ones(len(success), bool)]
    flag[chosen[chosen >= 0]] = True
    return found(
        view, "constant_success", flag, title, clean, of=len(success), unit="share of the episodes",
        effect=(float(against.mean()), *wilson_bounds(int(against.sum()), len(success))),
        say="logged as a success" if success.all() else "logged as no success",
        severity="error" if contradicts else None,
    )  # fmt: skip


def check_success_reward(view: View) -> Checked:
    """Successes get less than failures, or a sparse reward comes at other episodes or frames than success."""
    all_of = Episodes(view)
    success = needed(all_of.success, "success of each episode")
    counts = int(success.sum()), int((~success).sum())
    enough(min(counts), FEWEST_OF_EACH, "successes and as many failures")
    share, high, p = _higher(all_of, success)
    clean = f"a success has a higher reward than a failure with probability {share:.2f}"
    if high < LOWER:
        title = f"successes get less than failures: {clean} only; the sign may be wrong"
        return _of_success(view, all_of, success, title, clean, (share, 2 * share - high, high), "probability", p)
    if not all_of.sparse or all_of.top <= all_of.rest:
        return Checked(None, f"{clean}; below {LOWER:g} it would be a finding", p)
    paid = all_of.best == all_of.top
    for flag, what in ((paid & ~success, "are rewarded without success"), (success & ~paid, "succeed without reward")):
        low, upper = wilson_bounds(int(flag.sum()), len(flag))
        if low > APART and flag.sum() >= FEWEST:
            title = f"{flag.sum():,} of {len(flag):,} episodes {what}"
            return _of_success(
                view, all_of, flag, title, clean, (float(flag.mean()), low, upper), "share of the episodes", None
            )
    return _in_order(view, all_of, success & paid, clean)


def check_inversion(view: View) -> Checked:
    """Within episodes the reward is lower from the first success on than before it."""
    needed(view.rows.steps, "episode and frame")
    all_of = Episodes(view)
    needed(all_of.success, "success of each frame")
    truth = np.asarray(view.of(view.rows.truth_N), np.float64)
    silent = np.isnan(truth)
    events = np.nan_to_num(truth) > 0.5, silent & (all_of.frame > 0)  # to the first frame no action led
    frames = [stratum_ends(np.where(event, all_of.frame, np.inf), all_of.number)[0] for event in events]
    begins, unknown = (first[all_of.number] for first in frames)
    after = all_of.frame >= begins
    known = after | ((all_of.frame < unknown) & ~silent)  # else the episode may have succeeded by then
    area = np.full(len(all_of.length), np.nan)
    area[np.unique(all_of.number[known])] = auroc_within(after[known], view.reward_M[known], all_of.number[known])
    both = np.isfinite(area)
    enough(int(both.sum()), FEWEST_EPISODES, "episodes with frames before their first success and from it on")
    mean = mean_auroc(area[both])
    value = 0.5 if mean.estimate is None else mean.estimate
    if mean.high is None and value < 0.5:
        raise Undecided(f"needs episodes that differ; in each of {mean.n:,} the probability is {value:.2f}")
    low, high = (value if bound is None else bound for bound in (mean.low, mean.high))
    clean = "a frame from the first success on has a higher reward than one before it in its episode with probability "
    clean += f"{value:.2f} [{low:.2f}, {high:.2f}], over {mean.n:,} episodes"
    if high >= 0.5:
        return Checked(None, f"{clean}; an interval below 0.5 would be a finding")
    flag = after & (np.nan_to_num(area, nan=0.5) < 0.5)[all_of.number]
    title = f"the reward falls at success: {clean}"
    return found(
        view, "inversion", flag, title, clean, effect=(value, low, high), unit="probability", of=int(after.sum()),
        p=stratified_t_p_value(area[both][None] - 0.5), say="from the first success on", order_M=-view.reward_M,
    )  # fmt: skip


def _higher(all_of: Episodes, success: Flags) -> tuple[float, float, float]:
    """Probability that a success has a higher reward than a failure, the upper end of its interval, and a p-value.

    The reward is the sum, the mean, the highest or the last one of an episode: the one that tells most of success.
    """
    n1, n0 = int(success.sum()), int((~success).sum())
    shares = []
    for reward in (all_of.total, all_of.total / np.maximum(all_of.length, 1), all_of.best, all_of.last):
        rank = mean_ranks(reward)
        shares.append((float(rank[success].sum()) - n1 * (n1 + 1) / 2) / (n1 * n0))
    share = max(shares, key=lambda one: (round(abs(one - 0.5), 9), one))
    error = float(np.sqrt((n1 + n0 + 1) / (12 * n1 * n0)))
    return share, share + 1.96 * error, min(1.0, len(shares) * float(2 * ndtr(-abs(share - 0.5) / error)))


def _of_success(
    view: View, all_of: Episodes, flag_E: Flags, title: str, clean: str, effect: tuple[float, float, float], unit: str,
    p: float | None,
) -> Checked:  # fmt: skip
    flag = np.zeros(len(view), bool)
    flag[all_of.first[flag_E & (all_of.first >= 0)]] = True
    return found(view, "success_reward", flag, title, clean, effect=effect, unit=unit, of=len(flag_E), p=p)


def _in_order(view: View, all_of: Episodes, looked: Flags, clean: str) -> Checked:
    """Sparse rewards that come equally many frames before or after success."""
    truth = np.nan_to_num(np.asarray(view.of(view.rows.truth_N), np.float64)) > 0.5
    frame = np.where(truth, all_of.frame, np.inf), np.where(view.reward_M == all_of.top, all_of.frame, np.inf)
    succeeds, pays = (stratum_ends(values, all_of.number)[0] for values in frame)
    off = pays[looked] - succeeds[looked]
    if not len(off):
        return Checked(None, clean)
    values, counts = np.unique(off, return_counts=True)
    common, share = int(values[np.argmax(counts)]), counts.max() / len(off)
    clean += f"; the reward of {share:.0%} of the successes comes {abs(common)} frames "
    clean += "before it" if common < 0 else "behind it"
    if common == 0 or share < SAME_PLACE or len(off) < FEWEST_OF_EACH:
        return Checked(None, clean)
    at_end = all_of.frame == stratum_ends(all_of.frame.astype(np.float64), all_of.number)[1][all_of.number]
    if truth[all_of.frame == 0].mean() > 1 - APART or (common > 0 and (truth & ~at_end).sum() > truth.sum() / 2):
        return Checked(None, clean)  # success is a fact of the episode that stands in each of its rows
    low, high = wilson_bounds(int(counts.max()), len(off))
    side = "before" if common < 0 else "behind"
    title = f"the reward comes {abs(common)} frames {side} the success that it is for, in {share:.0%} of the successes"
    return _of_success(view, all_of, looked, title, clean, (float(share), low, high), "share of the successes", None)
