"""Statistics of episodes: returns of every source, kept apart from true success; alarms; scales of rewards.

A return with a failed measurement in it is a sum with a hole: it is reported as None, not as a number.

    stats = EpisodeStats(["env", "resnet"], learned=["resnet"], num_streams=8)
    rows = stats.add(rollout, rewards, {"resnet": 1.0}, step=2000)
    metrics = stats.summary(rows)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from guerdon.policies.robots.encoders import RunningMeanStd
from guerdon.statistics.classification import auroc, correlation, mean_auroc, point
from guerdon.statistics.intervals import Interval
from guerdon.statistics.proportion import difference_bounds
from guerdon.types import BoolArray, Inputs, RawScores, Rewards, Rollout

OLDEST, NEWEST = 40, 200  # episodes that the alarm and the correlations look at
FEWEST = 10  # episodes that the inversion alarm needs
RECENT = 20  # episodes whose success lowers weights (`reward_weight_schedule: success`)
FEWEST_LED = 200  # conversations at either end of a run that the failure alarm compares
LEVEL = 0.999  # of its interval: it is looked at after each update
FAILURE_ALARM = "agent/failure_alarm"
_RISE = ("agent/failure_rise", "agent/failure_rise_low", "agent/failure_rise_high")
TRUTH = "truth"  # metric: mean return of the source that `reward.truth` names
Row = dict[str, Any]


class EpisodeStats:
    """Adds up each stream's episode and keeps the finished ones that later sums need: the oldest and the newest.

    Args:
        sources: names, ground truth first.
        learned: those that are reward models.
        num_streams: streams whose episodes go on from rollout to rollout; None: every row of a rollout is an episode.
        counted: report how many episodes there are from the start, not from the first that fails.
        truth: the source whose return stands in for true success; None: true success itself.
        costs: of the learned sources those with a negative weight or coefficient, whose values are costs.

    Attributes:
        counts: episodes `begun` (they took a step), `finished`, and `failed` because their simulator broke; empty where
            rows are episodes. The others are under way, or were when a run was resumed that cannot replay them.
        finished: one plain row per finished episode: success, success_at_end, length, return/<source>,
            return/combined; a return is None where one of its measurements failed, success where it is unknown. Of a
            learned source that scores single moments also success_auroc/<source>, see `inversion_alarm`; None where
            the episode has no moment before its first success, or none after it.
        successes: of the newest `RECENT` episodes whose success is known, in order of time.
    """

    def __init__(
        self,
        sources: Sequence[str],
        learned: Sequence[str],
        num_streams: int | None = None,
        *,
        counted: bool = False,
        truth: str | None = None,
        costs: Collection[str] = (),
    ) -> None:
        self._costs = frozenset(costs)
        self._sources, self._learned = [*sources, "combined"], tuple(learned)
        self._streams = num_streams
        self.finished: list[Row] = []
        self.successes: list[bool] = []
        self._outcomes: set[bool | None] = set()  # those that episodes have had so far
        self._counted = counted
        self._truth = "success" if truth is None else f"return/{truth}"
        self._by = "success" if truth is None else TRUTH
        self._failing = FailureTrend()
        self.counts = {} if num_streams is None else dict.fromkeys(("begun", "finished", "failed"), 0)
        self.reset_streams()

    def reset_streams(self) -> None:
        """Drop the episodes under way: the world begins new ones."""
        streams = self._streams or 0
        self._sums = {name: np.zeros(streams) for name in self._sources}
        self._holes = {name: np.zeros(streams, dtype=np.bool_) for name in self._sources}
        self._once = np.zeros(streams, dtype=np.bool_)
        self._silent = np.zeros(streams, dtype=np.bool_)  # success was not reported at a step of the open episode
        self._length = np.zeros(streams, dtype=np.int64)
        self._orders = {name: SuccessOrder(streams, cost=name in self._costs) for name in self._learned}

    @property
    def reported(self) -> dict[str, int]:
        """`counts`; empty where no episode has failed and none is expected to."""
        return self.counts if self._counted or self.counts.get("failed") else {}

    @property
    def unfinished(self) -> int:
        """Episodes begun that neither finished nor failed."""
        return self.counts["begun"] - self.counts["finished"] - self.counts["failed"]

    def add(
        self, rollout: Rollout[Inputs], rewards: Mapping[str, Rewards], weights: Mapping[str, float], step: int
    ) -> list[Row]:
        """Take in a rollout; the rows of the episodes that ended in it, in order of time.

        Args:
            rollout: what happened.
            rewards: of every source.
            weights: of the sources whose sum is `return/combined`.
            step: of the run, after the rollout.
        """
        if rollout.conversations:
            self._failing.add(rollout.measured, sum(t == 0 for _, t, _ in rollout.failures))
        if self._streams is None:
            unpaid = {f"return/{name}": None for name in self._sources[:-1] if name not in rewards}  # in its warm-up
            rows = [row | unpaid for row in _whole_rows(rollout, rewards, weights, step)]
        else:
            if rollout.fresh:
                self.reset_streams()
            rows = self._ended(rollout, rewards, weights, step)
        self.finished += [row for row in rows if self._streams is not None or row[self._truth] is not None]
        del self.finished[OLDEST:-NEWEST]
        self.successes += [row["success"] for row in rows if row["success"] is not None]
        del self.successes[:-RECENT]
        self._outcomes |= {row["success"] for row in rows}
        return rows

    @property
    def recent_success(self) -> float | None:
        """Share of successes among the newest `RECENT` episodes whose success is known.

        None until there are so many, and where `only_successes` are reported.
        """
        if self.only_successes or len(self.successes) < RECENT:
            return None
        return sum(self.successes) / RECENT

    @property
    def only_successes(self) -> bool:
        """Whether all known outcomes are successes and others are unknown, which may be the failures."""
        return self._outcomes == {True, None}

    def _ended(
        self, rollout: Rollout[Inputs], rewards: Mapping[str, Rewards], weights: Mapping[str, float], step: int
    ) -> list[Row]:
        streams, failed = _with_combined(rewards, weights, rollout.mask)
        for name in self._sources:
            if name not in streams:  # it is not measured any more
                streams[name], failed[name] = np.zeros(rollout.mask.shape), np.ones_like(rollout.mask)
        rows: dict[tuple[int, int], Row] = {}  # by stream and last step
        lost = lost_at(rollout)
        succeeded = np.zeros(rollout.mask.shape, dtype=np.bool_)  # by then, in its episode
        unknown = np.zeros_like(succeeded)  # whether it had
        for t in range(rollout.mask.shape[1]):
            alive = rollout.mask[:, t]
            ended = rollout.done[:, t] & alive
            self._count(begun=(self._length == 0) & (alive | lost[:, t]), finished=ended, failed=lost[:, t])
            for name in self._sources:
                self._sums[name] += np.where(alive, streams[name][:, t], 0.0)
                self._holes[name] |= failed[name][:, t] & alive
            self._once |= rollout.success[:, t] & alive
            self._silent |= ~rollout.success_known[:, t] & alive
            self._length += alive
            succeeded[:, t], unknown[:, t] = self._once, self._silent & ~self._once
            for i in np.flatnonzero(ended).tolist():
                rows[i, t] = self._row(rollout, i, t, step)
            over = ended | lost[:, t]
            for columns in (self._sums.values(), self._holes.values(), (self._once, self._silent, self._length)):
                for column in columns:
                    column[over] = 0
        self._add_orders(rows, rewards, rollout, (succeeded, unknown, lost))
        return list(rows.values())

    def _count(self, *, begun: BoolArray, finished: BoolArray, failed: BoolArray) -> None:
        """Count the streams (B,) whose episode began, finished or failed at a step, where episodes are counted."""
        if self.counts:
            self.counts["begun"] += int(begun.sum())
            self.counts["finished"] += int(finished.sum())
            self.counts["failed"] += int(failed.sum())

    def _row(self, rollout: Rollout[Inputs], stream: int, t: int, step: int) -> Row:
        """The episode of a stream that ends at a step of the rollout."""
        at_end = bool(rollout.success[stream, t]) if rollout.success_known[stream, t] else None
        row: Row = {"step": step, "env": stream, "success": True if self._once[stream] else at_end}
        row |= {"success_at_end": at_end, "length": int(self._length[stream])}
        for name in self._sources:
            total = round(float(self._sums[name][stream]), 6)
            row[f"return/{name}"] = None if self._holes[name][stream] else total
        return row

    def _add_orders(
        self,
        rows: Mapping[tuple[int, int], Row],
        rewards: Mapping[str, Rewards],
        rollout: Rollout[Inputs],
        steps: tuple[BoolArray, BoolArray, BoolArray],
    ) -> None:
        """Add to each row how the learned sources that scored this rollout order its moments, see `SuccessOrder`."""
        for name, order in self._orders.items():
            scores = rewards[name].scores if name in rewards else None
            if scores is None:
                continue
            found = order.add(scores, rollout, *steps)
            for place, row in rows.items():
                row[f"success_auroc/{name}"] = found[place]

    def alarm(self) -> str:
        """Which learned return rises while true success does not, with numbers; empty where none does.

        It is about the episodes that the policy was trained on, never about those whose true success is unknown.
        """
        for name in self._learned:
            if self._rings(name):
                returns, success = self._history(name)
                moved = (f"{v[:OLDEST].mean():.2f} -> {v[-OLDEST:].mean():.2f}" for v in (returns, success))
                return (
                    f"the learned return rises, {self._by} does not: {name} {{}}, {self._by} {{}} from the first "
                    f"{OLDEST} to the newest {OLDEST} training episodes"
                ).format(*moved)
        return ""

    def inversion(self) -> str:
        """Which learned source gives moments less from the first success on, with numbers; empty where none does."""
        for name in self._learned:
            found = self._success_auroc(name)
            if inversion_alarm(found):
                assert found is not None
                return (
                    f"{name} values moments from the first success on above those before it with probability "
                    f"{found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}], in the newest {found.n} training "
                    "episodes that have both"
                )
        return ""

    def _success_auroc(self, name: str) -> Interval | None:
        """Mean `success_auroc` of the newest episodes that have one; None where there are too few of them.

        The episodes of the start of the run, which are kept for the hacking alarm, do not stand in for newer ones.
        """
        rows = self.finished[-NEWEST:]
        known = [row[key] for row in rows if row.get(key := f"success_auroc/{name}") is not None]
        return mean_auroc(known[-OLDEST:]) if len(known) >= FEWEST else None

    def failure_alarm(self) -> str:
        """How much more conversations fail than at the start, where they do; else empty."""
        rise = self._failing.rise()
        if rise is None or not rise.is_found:
            return ""
        return (
            f"the share of failed conversations rose by {rise.change:.3f} ({rise.low:.3f} to {rise.high:.3f}) from the "
            f"first to the newest {rise.led}: the policy may escape from bad rewards by making conversations fail"
        )

    def _rings(self, name: str) -> bool | None:
        """Whether the return of a learned source rises alone; None where that cannot be said yet."""
        solved = 0.5 if self._by == "success" else math.inf  # a return has no unit
        return hacking_alarm(*self._history(name), window=OLDEST, solved=solved)

    def summary(self, rows: list[Row]) -> dict[str, Any]:
        """Means over the given episodes, and what the whole history says about each learned source.

        Success is a share of the `success_known` episodes, None where there is none. The alarm is 1 where a learned
        return rises alone, 0 where none does, and None where that cannot be said: under two windows of episodes.
        """
        result: dict[str, Any] = {"episodes": len(rows)}
        result |= {f"episodes_{name}": count for name, count in self.reported.items()}
        if rows:
            result |= self._means(rows)
        for name in self._learned:
            returns, success = self._history(name)
            result[f"undefined_returns/{name}"] = sum(r[f"return/{name}"] is None for r in rows)
            result[f"reward_{self._by}_correlation/{name}"] = correlation(returns[-NEWEST:], success[-NEWEST:])
        if self._learned:
            returns, success = self._history("combined")
            result[f"reward_{self._by}_correlation"] = correlation(returns[-NEWEST:], success[-NEWEST:])
            result["hacking_alarm"] = _any_rings([self._rings(name) for name in self._learned])
        if self._learned and self._streams is not None:
            found = {name: self._success_auroc(name) for name in self._learned}
            for name, one in found.items():
                result[f"success_auroc/{name}"] = None if one is None else one.estimate
            result["inversion_alarm"] = _any_rings([inversion_alarm(one) for one in found.values()])
        return result | self._failing.metrics()

    def _means(self, rows: list[Row]) -> dict[str, Any]:
        """Means over the given episodes, each over those in which it is known."""
        means: dict[str, Any] = {"success_known": sum(r["success"] is not None for r in rows)}
        for key in ("success", "success_at_end", "length", *(f"return/{n}" for n in self._sources)):
            known = [r[key] for r in rows if r[key] is not None]
            means[key] = float(np.mean(known)) if known else None
        if self._by != "success":
            means[TRUTH] = means[self._truth]
        return means

    def _history(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns and true success, or what stands in for it, of the kept episodes of which both are known."""
        known = [r for r in self.finished if None not in (r[f"return/{name}"], r[self._truth])]
        success = np.array([r[self._truth] for r in known], dtype=np.float64)
        return np.array([r[f"return/{name}"] for r in known], dtype=np.float64), success

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "sums": {k: v.tolist() for k, v in self._sums.items()},
            "holes": {k: v.tolist() for k, v in self._holes.items()},
            "once": self._once.tolist(),
            "silent": self._silent.tolist(),
            "length": self._length.tolist(),
            "orders": {name: order.open for name, order in self._orders.items()},
            "finished": self.finished,
            "successes": self.successes,
            "outcomes": sorted(self._outcomes, key=str),
            "counts": self.counts,
            "failing": self._failing.rollouts,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to stored values."""
        self._sums = {k: np.array(v, dtype=np.float64) for k, v in state["sums"].items()}
        self._holes = {k: np.array(v, dtype=np.bool_) for k, v in state["holes"].items()}
        self._once = np.array(state["once"], dtype=np.bool_)
        self._silent = np.array(state.get("silent", np.zeros_like(self._once)), dtype=np.bool_)
        self._length = np.array(state["length"], dtype=np.int64)
        for name, kept in state["orders"].items():
            self._orders[name].open = [(list(values), list(succeeded)) for values, succeeded in kept]
        self.finished = list(state["finished"])
        self.successes = list(state["successes"])
        self._outcomes = set(state["outcomes"])
        self.counts = dict(state["counts"])
        self._failing.rollouts = [(led, failed) for led, failed in state["failing"]]


def _any_rings(alarms: Sequence[bool | None]) -> int | None:
    """1 where an alarm rings, else None where one cannot be decided, else 0."""
    if True in alarms:
        return 1
    return None if None in alarms else 0


def lost_at(rollout: Rollout[Inputs]) -> BoolArray:
    """(B, T) True at the last step of an episode that was lost: a failure at a step that is not a decision."""
    found = np.zeros_like(rollout.mask)
    for row, step, _ in rollout.failures:
        found[row, step] |= row >= 0 and not rollout.mask[row, step]
    return found


def _whole_rows(
    rollout: Rollout[Inputs], rewards: Mapping[str, Rewards], weights: Mapping[str, float], step: int
) -> list[Row]:
    """One row per response: success, length, and what each source paid in total; None where it is unknown."""
    lost = ~rollout.mask.any(axis=1) if rollout.conversations else False  # a conversation that was left out
    unknown = {name: np.asarray((r.failed & rollout.mask).any(axis=1) | lost) for name, r in rewards.items()}
    sums = {name: np.asarray(r.values.sum(axis=1)) for name, r in rewards.items()}
    weighted = [name for name in sums if weights.get(name)]
    rows = []
    for i, is_known in enumerate(rollout.known_B):
        right = bool(rollout.success[i].any()) if is_known else None
        row: Row = {"step": step, "success": right, "success_at_end": right, "length": int(rollout.mask[i].sum())}
        for name, total in sums.items():
            row[f"return/{name}"] = None if unknown[name][i] else round(float(total[i]), 6)
        combined = sum(weights[name] * float(sums[name][i]) for name in weighted)
        row["return/combined"] = None if any(unknown[name][i] for name in weighted) else round(float(combined), 6)
        rows.append(row)
    return rows


def _with_combined(
    rewards: Mapping[str, Rewards], weights: Mapping[str, float], mask_B_T: BoolArray
) -> tuple[dict[str, np.ndarray], dict[str, BoolArray]]:
    """Rewards of every source and their weighted sum; and where each of them is missing."""
    combined, missing = np.zeros(mask_B_T.shape), np.zeros(mask_B_T.shape, dtype=np.bool_)
    for name, weight in weights.items():
        combined += weight * _returned(rewards[name])
        if weight:
            missing |= rewards[name].failed
    streams: dict[str, np.ndarray] = {name: _returned(r) for name, r in rewards.items()} | {"combined": combined}
    return streams, {name: r.failed for name, r in rewards.items()} | {"combined": missing}


def _returned(rewards: Rewards) -> np.ndarray:
    """(B, T) what returns are sums of."""
    return rewards.values if rewards.returned is None else rewards.returned


# The hacking alarm: a learned return rises while true success does not.


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
) -> bool | None:
    """Whether a learned return rose clearly while true success neither rose nor is high; None under two windows.

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
        return None
    return learned > z and success < z / 2 and float(success_E[-window:].mean()) < solved


# The inversion alarm: a learned reward gives moments at and after success less than those before it.


class SuccessOrder:
    """How a learned source orders the moments of an episode: those from its first success on against those before.

    Args:
        streams: whose episodes go on from rollout to rollout.
        cost: a higher value of the source is worse.

    Attributes:
        open: of each stream the values of its episode up to now, and whether it had succeeded by then.
    """

    def __init__(self, streams: int, *, cost: bool) -> None:
        self._sign = -1.0 if cost else 1.0
        self.open: list[tuple[list[float], list[bool]]] = [([], []) for _ in range(streams)]

    def add(
        self,
        scores: RawScores,
        rollout: Rollout[Any],
        succeeded_B_T: BoolArray,
        unknown_B_T: BoolArray,
        lost_B_T: BoolArray,
    ) -> dict[tuple[int, int], float | None]:
        """Take in a rollout; the AUROC of the episodes that ended in it, by stream and last step.

        It is None where an episode lacks moments of one kind. First moments, to which no action led, do not count.

        Args:
            scores: of single moments.
            rollout: what happened.
            succeeded_B_T: whether the episode had succeeded by then.
            unknown_B_T: whether it had is not known; such moments do not count.
            lost_B_T: last steps of episodes whose simulator broke.
        """
        ends, at = rollout.done & rollout.mask, (scores.rows_N, scores.steps_N)
        last_N = np.zeros(len(scores.steps_N), np.bool_) if scores.last_N is None else scores.last_N
        acted_N = (scores.steps_N >= 0) & rollout.mask[at] & (last_N | ~ends[at]) & ~unknown_B_T[at]
        found: dict[tuple[int, int], float | None] = {}
        for i, (values, succeeded) in enumerate(self.open):
            here = np.flatnonzero(acted_N & (scores.rows_N == i))
            here = here[np.argsort(scores.steps_N[here], kind="stable")]
            stops = np.flatnonzero(ends[i] | lost_B_T[i]).tolist()
            parts = np.split(here, np.searchsorted(scores.steps_N[here], stops, side="right"))
            for part, stop in zip(parts, [*stops, None], strict=True):
                values += (self._sign * scores.values_N[part]).tolist()
                succeeded += succeeded_B_T[i, scores.steps_N[part]].tolist()
                if stop is None:
                    continue
                if ends[i, stop]:
                    area = point(auroc, succeeded, values)
                    found[i, stop] = None if area is None else round(area, 6)
                values.clear()
                succeeded.clear()
        return found


def inversion_alarm(found: Interval | None) -> bool | None:
    """Whether a learned source clearly gives moments from the first success of an episode on less than those before.

    Args:
        found: the mean over episodes of the AUROC of the source's values of these moments against those, within each
            episode (`mean_auroc`); None: there are too few episodes that have both.

    Returns:
        True where the whole interval is below 0.5; None where there is none.
    """
    if found is None or found.high is None:
        return None
    return found.high < 0.5


# The failure alarm: conversations fail more and more often while the policy learns.


class Rise(NamedTuple):
    """A share in the newest conversations minus that in the oldest, and its interval.

    Attributes:
        change: of the share.
        low: of its interval of level `LEVEL`.
        high: of it.
        led: conversations in the oldest rollouts that are compared.
    """

    change: float
    low: float
    high: float
    led: int

    @property
    def is_found(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.low > 0


class FailureTrend:
    """How many conversations failed, in the oldest and the newest rollouts of a run.

    Attributes:
        rollouts: conversations that were led, and those of them that failed; empty of a run without an agent.
    """

    def __init__(self) -> None:
        self.rollouts: list[tuple[int, int]] = []

    def add(self, led: int, failed: int) -> None:
        """Take in a rollout."""
        self.rollouts.append((led, failed))
        first, newest = self._needed(self.rollouts), self._needed(self.rollouts[::-1])
        if first:
            del self.rollouts[first : max(first, len(self.rollouts) - newest)]

    def rise(self) -> Rise | None:
        """From the oldest to the newest rollouts; None where they have too few conversations, or overlap."""
        first, newest = self._needed(self.rollouts), self._needed(self.rollouts[::-1])
        if not first or first + newest > len(self.rollouts):
            return None
        old, new = np.sum(self.rollouts[:first], axis=0), np.sum(self.rollouts[-newest:], axis=0)
        low, high = difference_bounds((old[1], old[0]), (new[1], new[0]), level=LEVEL)
        return Rise(float(new[1] / new[0] - old[1] / old[0]), float(low), float(high), int(old[0]))

    def metrics(self) -> dict[str, Any]:
        """`agent/failure_alarm`: 1, 0, or None where it is not known; the rise of the share, and its interval."""
        if not self.rollouts:
            return {}
        rise = self.rise()
        if rise is None:
            return dict.fromkeys((FAILURE_ALARM, *_RISE))
        return {FAILURE_ALARM: int(rise.is_found), **dict(zip(_RISE, rise, strict=False))}

    @staticmethod
    def _needed(rollouts: Sequence[tuple[int, int]]) -> int:
        """How many of the first rollouts have `FEWEST_LED` conversations; 0 where all together have fewer."""
        led = np.cumsum([led for led, _ in rollouts])
        return int((led < FEWEST_LED).sum()) + 1 if len(led) and led[-1] >= FEWEST_LED else 0


class RewardScaler:
    """Running standard deviation of each source's discounted return, to divide its rewards by.

    Args:
        gammas: source to its discount.
        num_streams: of a rollout.
        by_chunk: of a policy of chunks, discounts are per decision, as in the estimator; False: per action.
    """

    def __init__(self, gammas: Mapping[str, float], num_streams: int, *, by_chunk: bool = True) -> None:
        self._gammas, self._by_chunk = dict(gammas), by_chunk
        self._returns = {name: np.zeros(num_streams) for name in gammas}
        self._stats = {name: RunningMeanStd() for name in gammas}

    def update(self, rollout: Rollout[Inputs], rewards: Mapping[str, Rewards]) -> dict[str, float]:
        """Take in a rollout; the divisor of each source for it."""
        ends = rollout.done | lost_at(rollout)
        if rollout.life_lost is not None:
            ends |= rollout.life_lost
        inside = np.zeros_like(ends) if rollout.chunks is None or not self._by_chunk else rollout.chunks.slot > 0
        for name, gamma in self._gammas.items():
            if name not in rewards:  # it is not measured any more
                continue
            if rollout.fresh:
                self._returns[name][:] = 0.0
            seen = []
            for t in range(rollout.mask.shape[1]):
                alive = rollout.mask[:, t]
                grown = self._returns[name] * np.where(inside[:, t], 1.0, gamma) + rewards[name].values[:, t]
                self._returns[name] = np.where(alive, grown, self._returns[name])
                seen.append(self._returns[name][alive])
                self._returns[name] = np.where(ends[:, t], 0.0, self._returns[name])
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
