"""Checks of the parts of a reward that is their weighted sum, or in which one multiplies another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from guerdon.auditing.association import Association, associate, stratum_means
from guerdon.auditing.finding import Severity
from guerdon.auditing.log_view import SPREADS, SURE, Checked, MissingColumn, View, braced, enough, found
from guerdon.auditing.rows import Flags, Numbers

MOST_PARTS = 12
MOST_ROWS = 60_000
FEWEST = 60  # rows
FEWEST_STEPS = 4
EXACT = 1e-3  # standard deviations of the reward that the sum may be off
KNOWN = 0.9  # share of the rows with all parts
FALL = 0.25  # standard deviations of the reward over the run
RISE = 0.5  # the same, of a part that grows beyond all that it was
OF_RISE = 0.35  # share of the rises of all parts
MAIN = 0.5  # share of the variance within prompts early in the run, from which on a part is what the run is about
WIDER = 2.0  # times the spread within prompts that it had early
AGAINST = -0.3  # correlation of a part with the reward within prompts
COUNTS = 0.05  # share of the variance of the reward, below which the sign of a part does not matter
DECIDES = 0.9  # share of the variance within prompts
AGREES = 0.2  # correlation with the truth
SUM = "parts that add up to the reward"


@dataclass(frozen=True)
class _Sum:
    """A reward that is a sum.

    Attributes:
        one: the rows with all parts.
        parts: what each adds, in the log's sign times its weight, (K,) each.
        weights: of each.
    """

    one: View
    parts: dict[str, Numbers]
    weights: dict[str, float]

    @property
    def spread(self) -> float:
        """Standard deviation of the reward."""
        return float(self.one.reward_M.std()) or 1.0

    def within(self, values: Numbers) -> Numbers:
        """Values less the mean of their prompt and step, where prompts have several responses."""
        peers = self.one.peer_M
        return values - (values.mean() if peers is None else stratum_means(values, peers))

    def agreement(self, values: Numbers) -> float | None:
        """Correlation with the truth; None without one."""
        truth = self.one.truth_M
        if truth is None or not self.one.has_truth:
            return None
        known = np.isfinite(truth)
        spread = values[known].std() * truth[known].std()
        return float(np.cov(values[known], truth[known])[0, 1] / spread) if spread > 0 else 0.0

    def over_run(self, values: Numbers) -> Association:
        """How values go with the progress of the run, 0 to 1; groups are the sample."""
        step = self.one.of(self.one.rows.step_N)
        if step is None:
            raise MissingColumn(f"step, {FEWEST_STEPS} or more")
        order = np.unique(step, return_inverse=True)[1]
        enough(int(order.max()) + 1, FEWEST_STEPS, "steps")
        progress = order / order.max()
        peers = self.one.peer_M
        if peers is not None:
            size = np.bincount(peers)
            values, progress = np.bincount(peers, values) / size, np.bincount(peers, progress) / size
        return associate(progress, values, np.zeros(len(values), np.int64), seed=self.one.seed)


def _parts(view: View) -> tuple[View, dict[str, Numbers]]:
    """The rows that have all further rewards, and these.

    Raises:
        MissingColumn: there are none.
        Undecided: too few rows have all of them.
    """
    columns = {name: np.asarray(view.of(values), np.float64) for name, values in view.rows.rewards.items()}
    columns = {name: values for name, values in columns.items() if np.isfinite(values).mean() >= KNOWN}
    if not columns:
        raise MissingColumn(SUM)
    columns = dict(list(columns.items())[:MOST_PARTS])
    keep = np.ones(len(view), bool)
    for values in columns.values():
        keep &= np.isfinite(values)
    keep[np.arange(len(keep)) % -(-len(keep) // MOST_ROWS) > 0] = False
    enough(int(keep.sum()), FEWEST, "rows with all parts of the reward")
    return view.sub(keep), {name: values[keep] for name, values in columns.items()}


def _fitted(reward: Numbers, columns: list[Numbers]) -> Numbers | None:
    """The weights with which columns add up to the reward; None where they do not."""
    x = np.column_stack([*columns, np.ones(len(reward))])
    weights: Numbers = np.asarray(np.linalg.lstsq(x, reward, rcond=None)[0], np.float64)
    off = np.abs(reward - x @ weights)
    return weights[:-1] if np.quantile(off, 0.99) <= EXACT * (reward.std() or 1.0) else None


def _sum(view: View) -> _Sum:
    """The reward as a sum of the parts that vary and have a weight.

    Raises:
        MissingColumn: it is none, or one of its parts alone.
    """
    one, columns = _parts(view)
    varying = {name: values for name, values in columns.items() if np.ptp(values) > 0}
    if not varying:
        raise MissingColumn(f"{SUM} and vary")
    weights = _fitted(one.reward_M, list(varying.values()))
    if weights is None:
        raise MissingColumn(f"{SUM}; {', '.join(list(varying)[:4])} do not")
    spread = one.reward_M.std() or 1.0
    of = {name: float(weight) for name, weight in zip(varying, weights, strict=True)}
    of = {name: weight for name, weight in of.items() if abs(weight) * varying[name].std() > EXACT * spread}
    if len(of) < 2:
        raise MissingColumn(f"{SUM}: two or more")
    return _Sum(one, {name: weight * varying[name] for name, weight in of.items()}, of)


def _found(
    view: View, name: str, flag: Flags, title: str, clean: str, effect: tuple[float, float, float], unit: str,
    p: float | None, order: Numbers, severity: Severity | None = None,
) -> Checked:  # fmt: skip
    return found(
        view, name, flag, braced(title), clean, effect=effect, unit=unit, p=p, order_M=order, severity=severity
    )


def check_part_dead(view: View) -> Checked:
    """A part that is 0 in all rows: it is never paid."""
    one, columns = _parts(view)
    constant = [name for name, values in columns.items() if np.ptp(values) == 0]
    dead = [name for name in constant if columns[name][0] == 0]
    clean = f"{', '.join(columns)}: " + (f"{', '.join(constant)} never differ" if constant else "all of them vary")
    if not dead or np.ptp(one.reward_M) == 0:  # a part that is the whole reward is no column of its own
        return Checked(None, clean)
    title = f"{', '.join(dead)} {'is' if len(dead) == 1 else 'are'} 0 in all of {len(one):,} rows: never paid"
    return _found(
        one, "part_dead", np.ones(len(one), bool), title, clean, (1.0, 1.0, 1.0), "share of the rows", None,
        np.zeros(len(one)),
    )  # fmt: skip


def check_part_falls(view: View) -> Checked:
    """A part falls over the run while the reward rises."""
    total = _sum(view)
    rise = total.over_run(total.one.reward_M)
    clean = f"the reward moves by {rise.difference / total.spread:+.2f} standard deviations over the run; of its parts "
    moved = {name: total.over_run(values) for name, values in total.parts.items()}
    clean += ", ".join(f"{name} by {one.difference / total.spread:+.2f}" for name, one in moved.items())
    clean += f"; one that falls by {FALL:g} while the reward rises would be a finding"
    name = min(moved, key=lambda one: moved[one].difference)
    fall = moved[name].difference / total.spread
    p = min(1.0, (moved[name].p or 1.0) * len(moved))
    if fall > -FALL or rise.difference <= 0 or rise.low <= 0 or _error(moved[name]) * SURE > abs(moved[name].r):
        return Checked(None, clean, p)
    agreement = total.agreement(total.parts[name])
    values = total.parts[name]
    title = f"{name} falls by {-fall:.2f} standard deviations of the reward over the run, while the reward rises by "
    title += f"{rise.difference / total.spread:.2f}"
    scale = fall / moved[name].r
    effect = fall, moved[name].low * scale, moved[name].high * scale
    severity: Severity | None = "error" if agreement is not None and agreement > AGREES else None
    return _found(
        total.one, "part_falls", values < np.median(values), title, clean, effect, SPREADS, p, -values, severity
    )


def _error(one: Association) -> float:
    """The standard error of a correlation."""
    return (one.high - one.low) / (2 * 1.96)


def check_part_dominates(view: View) -> Checked:
    """A part grows beyond all that it was and lifts the reward, or decides within prompts although another is right."""
    total = _sum(view)
    inside = {name: total.within(values) for name, values in total.parts.items()}
    whole = total.within(total.one.reward_M)
    shares = {name: _share(values, whole) for name, values in inside.items()}
    clean = "of its variance are "
    if total.one.peer_M is not None:
        clean = "of the variance of the reward within prompts are "
    clean += ", ".join(f"{share:.0%} of {name}" for name, share in shares.items())
    grown = _grown(total)
    if grown is not None:
        name, moved, p = grown
        effect = moved.difference / total.spread
        title = f"{name} grows beyond all that it was, by {effect:.2f} standard deviations of the reward over the run"
        scale, values = effect / moved.r, total.parts[name]
        ends = effect, moved.low * scale, moved.high * scale
        return _found(total.one, "part_dominates", values > np.median(values), title, clean, ends, SPREADS, p, values)
    name = max(shares, key=lambda one: shares[one])
    better = _better(name, {one: total.agreement(values) for one, values in inside.items()})
    if shares[name] < DECIDES or better is None:
        return Checked(None, clean)
    right, agreement = better
    title = f"{name} makes up {shares[name]:.0%} of the variance of the reward within prompts, and {right}, which goes "
    title += f"with the truth (correlation {agreement:.2f}), hardly counts"
    values, share = inside[name], shares[name]
    of_tenths = [_share(values[rows], whole[rows]) for rows in _tenths(len(values))]
    half = 1.96 * float(np.std(of_tenths)) / np.sqrt(len(of_tenths))
    return _found(
        total.one, "part_dominates", values > 0, title, clean, (share, share - half, share + half),
        "share of the variance", None, values,
    )  # fmt: skip


def _share(part: Numbers, whole: Numbers) -> float:
    """The share of a part in the variance of the reward, both with mean 0."""
    return float((part * whole).sum() / ((whole**2).sum() or 1.0))


def _better(name: str, agreements: Mapping[str, float | None]) -> tuple[str, float] | None:
    """The first part that goes with the truth more than a named one does, and its agreement; None: there is none."""
    own = agreements[name]
    if own is None:
        return None
    known = [(one, value) for one, value in agreements.items() if value is not None]
    return next(((one, value) for one, value in known if value > own + AGREES), None)


def _tenths(n: int) -> list[np.ndarray]:
    return np.array_split(np.arange(n), 10)


def _grown(total: _Sum) -> tuple[str, Association, float] | None:
    """The part that is late above nearly all that it was early, but for what the run was about from the start."""
    step = total.one.of(total.one.rows.step_N)
    if step is None or len(np.unique(step)) < FEWEST_STEPS:
        return None
    early, late = step <= np.quantile(step, 1 / 3), step >= np.quantile(step, 2 / 3)
    moved = {name: total.over_run(values) for name, values in total.parts.items()}
    rises = {name: max(one.difference, 0.0) for name, one in moved.items()}
    name = max(rises, key=lambda one: rises[one])
    values, one = total.parts[name], moved[name]
    if rises[name] < RISE * total.spread or rises[name] < OF_RISE * sum(rises.values()):
        return None
    if np.median(values[late]) <= np.quantile(values[early], 0.95) or len(np.unique(values)) <= 2:
        return None
    if _is_main(total, values, early, late) or _truth_rises(total, early, late, rises[name] / total.spread / 2):
        return None
    return name, one, min(1.0, (one.p or 1.0) * len(moved))


def _is_main(total: _Sum, values: Numbers, early: Flags, late: Flags) -> bool:
    """Whether a part is what the run is about from the start, which has become better."""
    inside, whole = total.within(values), total.within(total.one.reward_M)
    return bool(_share(inside[early], whole[early]) > MAIN and inside[late].std() < WIDER * inside[early].std())


def _truth_rises(total: _Sum, early: Flags, late: Flags, limit: float) -> bool:
    """Whether the truth rises over the run by more than so many of its standard deviations."""
    truth = total.one.truth_M
    if truth is None or not total.one.has_truth:
        return False
    known = np.isfinite(truth)
    if not ((late & known).any() and (early & known).any()):
        return False
    gained = truth[late & known].mean() - truth[early & known].mean()
    return bool(gained / (truth[known].std() or 1.0) > limit)


def check_part_opposite(view: View) -> Checked:
    """A part works against the reward that it is a part of, or goes with the truth and has a negative weight."""
    total = _sum(view)
    whole = total.within(total.one.reward_M)
    tried = []
    for name, values in total.parts.items():
        inside = total.within(values)
        spread = float(np.sqrt((inside**2).sum() * (whole**2).sum()))
        r = float(inside @ whole) / spread if spread > 0 else 0.0
        tried.append((r, name, float((inside**2).sum() / ((whole**2).sum() or 1.0))))
    clean = "correlation with the reward: " + ", ".join(f"{name} {r:+.2f}" for r, name, _ in tried)
    clean += f"; {AGAINST:g} would be a finding"
    for name, weight in total.weights.items():
        agreement = total.agreement(total.parts[name] / weight)
        if weight < 0 and agreement is not None and agreement > AGREES:
            r = next(one for one, of, _ in tried if of == name)
            title = f"{name} goes with the truth (correlation {agreement:.2f}), and has the weight {weight:.3g}"
            return _opposite(total, name, r, title, clean, "error")
    r, name, share = min(tried)
    if r > AGAINST or share < COUNTS:
        return Checked(None, clean)
    title = f"{name} works against the reward that it is a part of: their correlation is {r:.2f}"
    return _opposite(total, name, r, title, clean, None)


def _opposite(total: _Sum, name: str, r: float, title: str, clean: str, severity: Severity | None) -> Checked:
    values, one = total.parts[name], total.one
    stratum = np.zeros(len(one), np.int64) if one.peer_M is None else one.peer_M
    got = associate(values, one.reward_M, stratum, seed=one.seed)
    against = total.within(values) * total.within(one.reward_M)
    effect = r, min(got.low, r), max(got.high, r)
    return _found(one, "part_opposite", against < 0, title, clean, effect, "correlation", got.p, -against, severity)


def check_part_scaled(view: View) -> Checked:
    """The reward is no sum of its parts, but one of them multiplies another."""
    one, columns = _parts(view)
    varying = {name: values for name, values in columns.items() if np.ptp(values) > 0}
    if len(varying) < 2:
        raise MissingColumn(f"{SUM} and vary: two or more")
    if _fitted(one.reward_M, list(varying.values())) is not None:
        return Checked(None, f"{', '.join(varying)} add up to the reward; no part multiplies another")
    for first, second in combinations(varying, 2):
        product = varying[first] * varying[second]
        weights = _fitted(one.reward_M, [*varying.values(), product])
        if weights is None or np.ptp(product) == 0:
            continue
        gates = min((first, second), key=lambda name: len(np.unique(varying[name])))
        other = second if gates == first else first
        closed = (varying[gates] == 0) & (varying[other] != 0)
        clean = f"the reward has the product of {first} and {second}"
        title = f"{other} is multiplied by {gates}, which is 0 in {closed.mean():.0%} of the rows in spite of it"
        effect = float(closed.mean()), float(closed.mean()), float(closed.mean())
        return _found(one, "part_scaled", closed, title, clean, effect, "share of the rows", None, varying[other])
    raise MissingColumn(f"{SUM}, or multiply each other; {', '.join(list(varying)[:4])} do not")
