"""Checks of the reward over a run and against the truth: what rises, drifts, jumps, or belongs to another row."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from guerdon.audit.association import associate, strata, stratum_means, two_groups
from guerdon.audit.finding import Finding
from guerdon.audit.log_view import Checked, Missing, View, classes, shown
from guerdon.audit.rows import Codes, Numbers

# practical minima, set on the first half of benchmarks/audit_sets.py
UNEXPLAINED = 0.25  # standard deviations of the reward, over the run
JUMP = 0.8  # standard deviations of the reward between neighbouring steps, beyond the trend
RESCALED = 1.6  # ratio of standard deviations
AGREEMENT = 0.65  # probability that a right response has a higher reward than a wrong one
LAGGED = 0.25  # correlation with the truth of another row above that with its own


def check_truth(view: View) -> Checked | Missing:
    """The reward rises by more than the truth, or a second reward that agreed with it at first, explains."""
    steps = _progress(view)
    references = _references(view)
    if steps is None or not references:
        missing = "step" if steps is None else "truth, reference answers or a second reward"
        return Missing(missing)
    said = []
    for name, reference in references.items():
        rise, unexplained, gained, p, low, high = _rise(view, steps, reference)
        said.append(f"{name}: the reward rises by {rise:.2f} standard deviations, {unexplained:.2f} unexplained")
        if unexplained < UNEXPLAINED or rise < UNEXPLAINED / 2:
            continue
        known = np.isfinite(reference)
        excess = np.where(known, view.reward_M - stratum_means(view.reward_M, classes(reference) + 1), -np.inf)
        late = known & (steps > 2 / 3) & (excess > 0)
        rows, examples = shown(
            view, late, lambda i, r=reference: f"reward {view.reward_M[i]:g}, {name} {r[i]:g}", excess
        )
        finding = Finding(
            "truth",
            "error",
            f"the reward rises by {rise:.2f} standard deviations over the run and {name} by {gained:.2f}: "
            f"{unexplained:.2f} of the rise is not explained by it",
            unexplained,
            (low, high),
            "standard deviations of the reward",
            p,
            rows,
            examples,
            "measure the true success of the run's answers (`guerdon score` with a verifier), and compare rewards by true "
            "success: `guerdon compare` (docs/evaluation.md); `guerdon search` shows what a reward model accepts",
            int(late.sum()),
            int(known.sum()),
        )
        return Checked(finding, said[-1], p)
    return Checked(None, "; ".join(said))


def _progress(view: View) -> Numbers | None:
    """How far the run is at each row, 0 to 1 by the order of steps; None with fewer than four steps."""
    step = view.of(view.rows.step_N)
    if step is None:
        return None
    order = np.unique(step, return_inverse=True)[1]
    return None if order.max() < 3 else order / order.max()


def _references(view: View) -> dict[str, Numbers]:
    """The truth, and second rewards that are no parts of the reward and agreed with it in the first third."""
    found: dict[str, Numbers] = {}
    if view.truth_M is not None and len(np.unique(view.truth_M[np.isfinite(view.truth_M)])) > 1:
        found["the truth"] = view.truth_M
    parts = {name: np.asarray(view.of(values), dtype=np.float64) for name, values in view.rows.rewards.items()}
    parts = {name: values for name, values in parts.items() if np.isfinite(values).mean() > 0.5}
    if parts and not found and not _is_sum(view.reward_M, parts):
        early = np.arange(len(view)) < len(view) / 3
        for name, values in parts.items():
            both = early & np.isfinite(values)
            if both.sum() > 20 and np.ptp(values[both]) > 0 and np.ptp(view.reward_M[both]) > 0:
                agrees = associate(values[both], view.reward_M[both], np.zeros(both.sum(), np.int64), seed=view.seed)
                if agrees.r >= 0.3:
                    found[name] = values
    return found


def _is_sum(reward_M: Numbers, parts: dict[str, Numbers]) -> bool:
    """Whether the reward is a weighted sum of the parts, a constant included, up to rounding."""
    columns = np.column_stack([*parts.values(), np.ones(len(reward_M))])
    rows = np.isfinite(columns).all(axis=1)
    if rows.sum() <= columns.shape[1]:
        return False
    left = reward_M[rows] - columns[rows] @ np.linalg.lstsq(columns[rows], reward_M[rows], rcond=None)[0]
    return bool(left.std() <= 1e-3 * (reward_M[rows].std() or 1.0))


def _rise(view: View, steps: Numbers, reference: Numbers) -> tuple[float, float, float, float | None, float, float]:
    """Rise over the run, its part that the reference does not explain, the reference's own rise; p and interval."""
    known = np.isfinite(reference)
    one = view.sub(known)
    spread = one.reward_M.std() or 1.0
    level = classes(reference[known])
    nothing = np.zeros(len(one), np.int64)
    total = associate(steps[known], one.reward_M, nothing, seed=view.seed)
    gained = associate(steps[known], reference[known], nothing, seed=view.seed)
    prompts = one.of(one.rows.prompt_N)
    often = prompts is not None and len(np.unique(prompts)) < len(prompts) / 8
    within = associate(steps[known], one.reward_M, strata(level, prompts if often else None), seed=view.seed)
    unexplained = within.difference / spread
    width = unexplained / within.r if within.r else 0.0
    scale = reference[known].std() or 1.0
    return (
        total.difference / spread,
        unexplained,
        gained.difference / scale,
        within.p,
        within.low * width,
        within.high * width,
    )


def check_drift(view: View) -> Checked | Missing:
    """What right and wrong responses get falls over the run."""
    steps = _progress(view)
    if steps is None:
        return Missing("step")
    if view.truth_M is None or len(np.unique(view.truth_M[np.isfinite(view.truth_M)])) < 2:
        return Missing("truth, or reference answers")
    _, unexplained, _, p, low, high = _rise(view, steps, view.truth_M)
    clean = f"given the truth the reward moves by {unexplained:.2f} standard deviations over the run"
    if unexplained > -UNEXPLAINED:
        return Checked(None, clean, p)
    truth = view.truth_class_M
    assert truth is not None  # noqa: S101 - there is a truth
    level = stratum_means(view.reward_M, truth + 1)
    late = (steps > 2 / 3) & (view.reward_M < level)
    rows, examples = shown(view, late, lambda i: f"reward {view.reward_M[i]:g}; like responses had {level[i]:.3g}")
    finding = Finding(
        "drift",
        "error",
        f"what equally good responses get falls by {-unexplained:.2f} standard deviations over the run",
        unexplained,
        (low, high),
        "standard deviations of the reward",
        p,
        rows,
        examples,
        "score the same responses with the reward of both ends of the run (`guerdon score`, `guerdon audit --second`), "
        "and fix its version; a running normalisation belongs into the trainer (`algorithm.normalize_rewards`)",
        int(late.sum()),
        len(view),
    )
    return Checked(finding, clean, p)


def check_jump(view: View) -> Checked | Missing:
    """From one step to the next the level, the scale or the values of the reward change."""
    step = view.of(view.rows.step_N)
    if step is None or len(np.unique(step)) < 4:
        return Missing("step, with four steps or more")
    order = np.unique(step, return_inverse=True)[1].astype(np.int64)
    clean = f"no jump of level, scale or values over {order.max() + 1:,} steps"
    for looked in (_new_values, _level_jump, _scale_jump):
        found = looked(view, order)
        if found is None:
            continue
        at, text, effect, (low, high), unit, p = found
        name = np.unique(step)[at]
        near = np.abs(order - at + 0.5) < 1
        rows, examples = shown(
            view, near, lambda i: f"reward {view.reward_M[i]:g} at step {step[i]}", np.abs(order - at) < 1
        )
        finding = Finding(
            "jump",
            "warning",
            f"at step {name} {text}",
            effect,
            (low, high),
            unit,
            p,
            rows,
            examples,
            "compare the versions of the reward on both sides on the same responses: `guerdon score`, then `guerdon audit "
            "--second`; guerdon's runs store the version of every reward (docs/rewards.md)",
            int(near.sum()),
            len(view),
        )
        return Checked(finding, clean, p)
    return Checked(None, clean)


_Jump = tuple[int, str, float, tuple[float, float], str, float | None]


def _new_values(view: View, order: Codes) -> _Jump | None:
    """The set of values of a reward with few values changes: what was common before never comes after."""
    values, codes = np.unique(view.reward_M, return_inverse=True)
    if len(values) > 24:
        return None
    last, first = np.zeros(len(values)), np.full(len(values), np.inf)
    np.maximum.at(last, codes, order)
    np.minimum.at(first, codes, order)
    counts = np.bincount(codes)
    for at in range(1, int(order.max()) + 1):
        before, after = (last < at) & (counts >= 5), (first >= at) & (counts >= 5)
        rows_before, rows_after = (order < at).sum(), (order >= at).sum()
        gone, new = counts[before].sum() / rows_before, counts[after].sum() / rows_after
        if min(gone, new) > 0.25 and min(rows_before, rows_after) >= 20:
            said = f"the values {_said(values[before])} give way to {_said(values[after])}"
            return at, said, float(new), (float(new), float(new)), "share of the rows after it", None
    return None


def _said(values: Numbers) -> str:
    return ", ".join(f"{value:.4g}" for value in values[:6])


def _level_jump(view: View, order: Codes) -> _Jump | None:
    """The mean changes between neighbouring steps by far more than before and after."""
    truth = view.truth_class_M
    fair = view.reward_M if truth is None else view.reward_M - stratum_means(view.reward_M, truth + 1)
    return _break(
        view,
        order,
        fair,
        view.reward_M.std(),
        JUMP,
        "the level of the reward moves by {effect:.2f} standard deviations",
    )


def _scale_jump(view: View, order: Codes) -> _Jump | None:
    """The spread changes between neighbouring steps; of a continuous reward."""
    if view.levels is not None:
        return None
    peers = order if view.peer_M is None else view.peer_M
    size = np.bincount(peers)[peers]
    off = np.abs(view.reward_M - stratum_means(view.reward_M, peers)) * np.sqrt(size / np.maximum(size - 1, 1))
    usable = (size > 1) & (off > 0)
    if usable.sum() < 40:
        return None
    logs = np.log(off[usable])
    limit = np.log(RESCALED)
    found = _break(view, order[usable], logs, 1.0, limit, "")
    if found is None:
        return None
    at, _, effect, (low, high), _, p = found
    ratio = float(np.exp(effect))
    said = f"the spread of the reward within prompts changes by a factor of {ratio:.2f}"
    return at, said, ratio, (float(np.exp(low)), float(np.exp(high))), "ratio of standard deviations", p


def _break(view: View, order: Codes, values: Numbers, spread: float, limit: float, text: str) -> _Jump | None:
    """The largest change of the mean between neighbouring windows of steps that the changes around do not explain."""
    steps = int(order.max()) + 1
    count, total = np.bincount(order, minlength=steps), np.bincount(order, values, minlength=steps)
    squares = np.bincount(order, values**2, minlength=steps)
    width = 1 if steps < 8 else 2 if steps < 20 else 3
    best: tuple[float, int, float, float] | None = None
    ends = (
        np.concatenate([[0], np.cumsum(count)]),
        np.concatenate([[0], np.cumsum(total)]),
        np.concatenate([[0], np.cumsum(squares)]),
    )

    def window(a: int, b: int) -> tuple[float, float, float]:
        n, s, q = (one[min(b, steps)] - one[max(a, 0)] for one in ends)
        mean = s / max(n, 1)
        return float(n), float(mean), float(max(q / max(n, 1) - mean**2, 0.0))

    for at in range(1, steps):
        (n0, m0, v0), (n1, m1, v1) = window(at - width, at), window(at, at + width)
        if min(n0, n1) < 8 or not spread:
            continue
        change = m1 - m0
        around = [window(at - width, at)[1] - window(at - 2 * width, at - width)[1]] if at >= 2 * width else []
        around += [window(at + width, at + 2 * width)[1] - m1] if at + 2 * width <= steps else []
        trend = max([np.sign(change) * one for one in around], default=0.0)
        beyond = abs(change) - max(trend, 0.0)
        error = np.sqrt(v0 / n0 + v1 / n1) or 1e-12
        if best is None or beyond > best[0]:
            best = beyond, at, float(change), float(error)
    if best is None or best[0] / spread < limit:
        return None
    beyond, at, change, error = best
    p = min(1.0, 2 * float(ndtr(-beyond / error)) * (steps - 1))
    effect, half = abs(change) / spread, 1.96 * error / spread
    effect = effect if text else change
    low, high = effect - half, effect + half
    return at, text.format(effect=effect), effect, (low, high), "standard deviations of the reward", p


def check_shift(view: View) -> Checked | Missing:
    """Rewards agree with the truth of another row better than with their own."""
    if view.truth_M is None:
        return Missing("truth, or reference answers")
    known = np.isfinite(view.truth_M)
    if known.mean() < 0.9 or len(view) < 60:
        return Checked(None, "too few rows in order with a known truth")
    reward, truth = view.reward_M[known], view.truth_M[known]
    step, peers = view.of(view.rows.step_N), view.peer_M
    sizes = [np.bincount(np.unique(one[known], return_inverse=True)[1]) for one in (step, peers) if one is not None]
    lags = sorted({1, -1, 2, -2} | {sign * int(np.median(size)) for size in sizes for sign in (1, -1) if len(size) > 1})
    if step is not None:  # what success is common at a step is no agreement of rows
        at = np.unique(step[known], return_inverse=True)[1].astype(np.int64)
        reward, truth = reward - stratum_means(reward, at), truth - stratum_means(truth, at)
    parts = [np.arange(len(reward)), *np.array_split(np.arange(len(reward)), 4)]
    best = (-1.0, 0, parts[0], 0.0, 0.0)
    for part in parts:
        own = _correlation(reward[part], truth[part])
        for lag in lags:
            kept = part[(part - lag >= 0) & (part - lag < len(truth))]
            other = _correlation(reward[kept], truth[kept - lag])
            best = max(best, (other - own, lag, part, own, other), key=lambda one: one[0])
    excess, lag, part, own, other = best
    clean = f"rewards agree best with the truth of their own row ({len(lags)} shifts tried)"
    if excess < LAGGED or other < LAGGED:
        return Checked(None, clean)
    n = len(part)
    p = min(1.0, 2 * float(ndtr(-np.arctanh(min(other, 0.999999)) * np.sqrt(max(n - 3, 1)))) * len(lags) * len(parts))
    half = 1.96 * np.sqrt(2 / n)
    flag = np.zeros(len(view), bool)
    flag[np.flatnonzero(known)[part]] = True
    rows, examples = shown(
        view, flag, f"its reward agrees with the truth of the row {abs(lag)} {'before' if lag > 0 else 'after'}"
    )
    finding = Finding(
        "shift",
        "error",
        f"rewards go with the truth of the row {abs(lag)} {'before' if lag > 0 else 'after'} them (correlation "
        f"{other:.2f}; with their own {own:.2f})",
        excess,
        (excess - half, excess + half),
        "difference of correlations",
        p,
        rows,
        examples,
        "rewards and responses are joined by position: join them by an id; `guerdon score` measures the rows again",
        n,
        len(view),
    )
    return Checked(finding, clean, p)


def _correlation(x: Numbers, y: Numbers) -> float:
    spread = x.std() * y.std()
    return float(((x - x.mean()) * (y - y.mean())).mean() / spread) if spread > 1e-12 else 0.0


def check_agreement(view: View) -> Checked | Missing:
    """Right responses hardly get more than wrong ones to the same prompt."""
    truth = view.truth_class_M
    if truth is None or len(np.unique(truth[truth >= 0])) < 2:
        return Missing("truth, or reference answers")
    known = truth >= 0
    peers = np.zeros(len(view), np.int64) if view.peer_M is None else view.peer_M
    one, right, stratum = view.sub(known), truth[known] == truth.max(), strata(peers[known])
    mixed = (np.bincount(stratum, right) > 0) & (np.bincount(stratum, right) < np.bincount(stratum))
    use = mixed[stratum]
    if use.sum() < 40:
        return Checked(None, "too few prompts with right and wrong responses")
    wins, pairs = _pairs(one.reward_M[use], right[use], strata(stratum[use]))
    share = float(wins.sum() / pairs.sum())
    error = float(np.sqrt(((wins - share * pairs) ** 2).sum()) / pairs.sum())
    clean = f"a right response has a higher reward than a wrong one with probability {share:.2f} (ties half)"
    if share + 1.96 * error >= AGREEMENT:
        return Checked(None, clean)
    flag = np.zeros(len(view), bool)
    high = one.reward_M > view.paid_level
    flag[np.flatnonzero(known)[use]] = (high != right)[use]
    rows, examples = shown(
        view, flag, lambda i: f"reward {view.reward_M[i]:g}, {'right' if truth[i] == truth.max() else 'wrong'}"
    )
    finding = Finding(
        "agreement",
        "error",
        f"a right response has a higher reward than a wrong one to the same prompt with probability {share:.2f} only",
        share,
        (share - 1.96 * error, share + 1.96 * error),
        "probability",
        None,
        rows,
        examples,
        "`guerdon evaluate` measures the reward on labelled responses, and its gate forecasts what it does to a run "
        "(docs/gate.md)",
        int(flag.sum()),
        int(use.sum()),
    )
    return Checked(finding, clean)


def _pairs(reward: Numbers, right: np.ndarray, stratum: Codes) -> tuple[Numbers, Numbers]:
    """Pairs of a right and a wrong response of each stratum, and those that the right one wins, ties half."""
    _, value = np.unique(reward, return_inverse=True)
    order = np.lexsort((value, stratum))
    s, v, r = stratum[order], value[order], right[order].astype(float)
    cell = strata(s, v)
    right_C, wrong_C = np.bincount(cell, r), np.bincount(cell, 1 - r)
    first = np.unique(cell, return_index=True)[1]
    of_cell = s[first]
    below_C = np.cumsum(wrong_C) - wrong_C
    starts = np.unique(of_cell, return_index=True)[1]
    below_C -= below_C[starts][of_cell]
    wins = np.bincount(of_cell, right_C * (below_C + wrong_C / 2))
    return wins, np.bincount(of_cell, right_C) * np.bincount(of_cell, wrong_C)
