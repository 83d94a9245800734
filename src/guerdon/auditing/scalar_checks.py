"""Checks of logged scalars: the reward against the truth, collapse, truncation, length, divergence, and entropy.

`TAGS` says what a scalar is, by the names that trainers write; one that no row names is not looked at.

    role_of("train/rewards/accuracy_reward/mean")       # Tag("*rewards/*accuracy*/mean", "truth", "TRL")
"""

from __future__ import annotations

import re
from fnmatch import translate
from functools import cache
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from guerdon.auditing.association import associate
from guerdon.auditing.finding import Severity
from guerdon.auditing.log_view import SURE, Checked, MissingColumn, Undecided, View, braced, enough, found
from guerdon.auditing.rows import Codes, Numbers, Rows

ScalarRole = Literal["reward", "truth", "length", "truncated", "divergence", "entropy", "negative entropy", "none"]

STRONG = 0.5  # rank correlation of a curve with the steps
FEWEST = 8  # points of a curve whose direction is looked for
MANY = 20  # points of a curve whose beginning and end are compared
WINDOW = 0.1  # share of a curve that is its beginning, or its end
LOST = 0.8  # share of what a reward had gained
CUT = 0.3  # share of the responses
TIMES = 2.0  # by which lengths change
EXPLODED = 10.0  # times what the divergence was in the first half
AT_LEAST = 0.5  # nats, of a divergence
LEFT = 0.1  # share of the entropy of the beginning
ROUNDED = 1e-9  # times its values: differences of a constant curve by rounding


class Tag(NamedTuple):
    """What a scalar of some name is.

    Attributes:
        name: the end of its name, behind a slash; `*` is anything.
        role: what it measures.
        tool: that writes it.
    """

    name: str
    role: ScalarRole
    tool: str


_SB3, _VERL, _TRL, _RLHF = "Stable-Baselines3", "verl", "TRL", "OpenRLHF"
_RLLIB, _PRIME, _OWN = "RLlib", "prime-rl", "guerdon and others"
TAGS = (  # the first that fits counts
    Tag("timing*/*", "none", f"{_VERL}, {_RLHF}"),  # `timing_s/reward` is seconds
    Tag("critic/returns/*", "none", _VERL),  # sums of advantages where groups are compared
    Tag("*best@*", "none", _VERL),  # of several responses: falls where responses become alike
    Tag("*worst@*", "none", _VERL),
    Tag("rollout/ep_rew_mean", "reward", _SB3),
    Tag("eval/mean_reward", "reward", _SB3),
    Tag("rollout/success_rate", "truth", _SB3),
    Tag("eval/success_rate", "truth", _SB3),
    Tag("rollout/ep_len_mean", "none", _SB3),
    Tag("eval/mean_ep_length", "none", _SB3),
    Tag("train/approx_kl", "none", _SB3),  # between two updates, not from a reference
    Tag("train/entropy_loss", "negative entropy", f"{_SB3}, with the other sign {_RLHF}"),
    Tag("critic/score/mean", "reward", _VERL),
    Tag("critic/rewards/mean", "reward", _VERL),
    Tag("val-*/acc/mean@*", "truth", _VERL),
    Tag("val-*/acc/maj@*/mean", "truth", _VERL),
    Tag("val/test_score/*", "truth", _VERL),
    Tag("val-*/reward/mean@*", "reward", _VERL),
    Tag("val-*/score/mean@*", "reward", _VERL),
    Tag("response_length/mean", "length", _VERL),
    Tag("response_length/clip_ratio", "truncated", _VERL),
    Tag("actor/entropy", "entropy", _VERL),
    Tag("actor/entropy_loss", "entropy", _VERL),
    Tag("actor/kl_loss", "divergence", _VERL),
    Tag("actor/reward_kl_penalty", "divergence", _VERL),
    Tag("critic/kl", "divergence", _VERL),
    Tag("actor/ppo_kl", "none", _VERL),
    Tag("rewards/*/std", "none", _TRL),
    Tag("rewards/*accuracy*", "truth", _TRL),
    Tag("rewards/*correct*", "truth", _TRL),
    Tag("rewards/chosen", "none", _TRL),  # of preference training
    Tag("rewards/rejected", "none", _TRL),
    Tag("rewards/margins", "none", _TRL),
    Tag("rewards/accuracies", "none", _TRL),
    Tag("completions/mean_length", "length", _TRL),
    Tag("completion_length", "length", _TRL),
    Tag("completions/clipped_ratio", "truncated", _TRL),
    Tag("objective/scores", "reward", _TRL),
    Tag("objective/rlhf_reward", "reward", _TRL),
    Tag("objective/kl", "divergence", _TRL),
    Tag("objective/entropy", "entropy", _TRL),
    Tag("policy/approxkl_avg", "none", _TRL),
    Tag("train/kl", "divergence", f"{_TRL}, {_RLHF}"),
    Tag("train/entropy", "entropy", _TRL),
    Tag("train/reward", "reward", f"{_TRL}, {_RLHF}"),
    Tag("rollout/reward_mean", "reward", _RLHF),
    Tag("rollout/response_length_mean", "length", _RLHF),
    Tag("rollout/truncated_rate", "truncated", _RLHF),
    Tag("train/return", "reward", _RLHF),  # not used beside `train/reward`
    Tag("train/response_length", "length", _RLHF),
    Tag("train/response_clip_ratio", "truncated", f"{_RLHF}, ms-swift"),
    Tag("config/*", "none", _RLLIB),
    Tag("episode_return_mean", "reward", _RLLIB),
    Tag("episode_reward_mean", "reward", _RLLIB),
    Tag("custom_metrics/*success*_mean", "truth", _RLLIB),
    Tag("learner/entropy", "entropy", _RLLIB),
    Tag("learner/policy_entropy", "entropy", _RLLIB),
    Tag("learner*/*/entropy", "entropy", _RLLIB),
    Tag("learner_stats/kl", "none", _RLLIB),
    Tag("learner*/*/mean_kl_loss", "none", _RLLIB),
    Tag("is_truncated*/mean", "truncated", _PRIME),
    Tag("completion_len/mean", "length", _PRIME),
    Tag("decode_len/all/mean", "length", _PRIME),
    Tag("num_output_tokens/mean", "length", _PRIME),
    Tag("entropy/all/mean", "entropy", _PRIME),
    Tag("reward/mean", "reward", _PRIME),
    Tag("reward_std", "none", _TRL),
    Tag("return/combined", "none", _OWN),
    Tag("*weight*", "none", _OWN),
    Tag("*correlation*", "none", _OWN),
    Tag("*undefined*", "none", _OWN),
    Tag("*error*", "none", _OWN),
    Tag("*wrong*", "none", _OWN),
    Tag("*invalid*", "none", _OWN),
    Tag("*known*", "none", _OWN),
    Tag("*count*", "none", _OWN),
    Tag("*std*", "none", _OWN),
    Tag("*tool_*", "none", _OWN),  # calls that a tool answered are not responses that are right
    Tag("*_min", "none", _OWN),
    Tag("*_max", "none", _OWN),
    Tag("*/min", "none", _OWN),
    Tag("*/max", "none", _OWN),
    Tag("success", "truth", _OWN),
    Tag("*success_rate", "truth", _OWN),
    Tag("*success_at_end", "truth", _OWN),
    Tag("*success", "truth", _OWN),
    Tag("*accuracy*", "truth", _OWN),
    Tag("*correct*", "truth", _OWN),
    Tag("*pass1", "truth", _OWN),
    Tag("*pass@1", "truth", _OWN),
    Tag("*gold*", "truth", _OWN),
    *(Tag(f"{what}/{whose}", "truth", _OWN) for what in ("return", "reward") for whose in ("env", "verifier", "truth")),
    *(Tag(f"{what}{ending}", "reward", _OWN)
      for what in ("return", "reward", "score")
      for ending in ("", "s", "/*", "s/*", "_mean", "s_mean")),
    Tag("*_reward", "reward", _OWN),
    Tag("*_return", "reward", _OWN),
    Tag("*_score", "reward", _OWN),
    Tag("*_reward_mean", "reward", _OWN),
)  # fmt: skip


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], Tag], ...]:
    return tuple((re.compile(f"(?i)(?:^|.*/){translate(tag.name)}"), tag) for tag in TAGS)


def role_of(name: str) -> Tag | None:
    """What a scalar is; None where no tool is known to write one of this name."""
    return next((tag for pattern, tag in _patterns() if pattern.match(name)), None)


def curves_of(rows: Rows, *roles: ScalarRole) -> dict[str, Numbers]:
    """The scalars with one of these roles, finite values in the order of their steps; those of trainers come first.

    The return of OpenRLHF is left out where the reward is there: it is the reward minus what its group has on average.
    """
    found_of = {}
    for name, (_, values) in rows.curves.items():
        tag = role_of(name)
        is_centred = name.endswith("train/return") and f"{name.removesuffix('return')}reward" in rows.curves
        if tag is not None and tag.role in roles and not is_centred and np.isfinite(values).any():
            found_of[name] = TAGS.index(tag), values[np.isfinite(values)]
    ordered = sorted(found_of.items(), key=lambda one: one[1][0])
    return {name: values for name, (_, values) in ordered}


def _no_rows(rows: Rows) -> View:
    return View(rows, np.zeros(0, np.int64), np.zeros(0), None, None, np.zeros(0, bool))


def _found(
    rows: Rows, name: str, title: str, clean: str, effect: tuple[float, float, float], unit: str, points: int,
    *, p: float | None = None, severity: Severity | None = None,
) -> Checked:  # fmt: skip
    return found(
        _no_rows(rows), name, np.zeros(0, bool), braced(title), clean, effect=effect, of=points, unit=unit, p=p,
        severity=severity,
    )  # fmt: skip


class _Ends(NamedTuple):
    """The beginning and the end of a curve, with the error of the mean of a window."""

    first: float
    last: float
    error: float


def _ends(values: Numbers) -> _Ends:
    width = max(3, int(len(values) * WINDOW))
    return _Ends(float(values[:width].mean()), float(values[-width:].mean()), _noise(np.diff(values)) / np.sqrt(width))


def _noise(differences: Numbers) -> float:
    """The standard deviation of a point, from the differences of neighbours: by their median, which ignores jumps.

    Where most are 0, as of rewards that are rare, the median is 0 and all count.
    """
    usual = float(np.median(np.abs(differences))) / 0.954
    return usual or float(np.sqrt(np.square(differences).mean() / 2))


def _several(rows: Rows, what: str, *roles: ScalarRole) -> dict[str, Numbers]:
    """The curves of some roles that are long enough.

    Raises:
        MissingColumn: there are none.
        Undecided: all of them are too short.
    """
    curves = curves_of(rows, *roles)
    if not curves:
        raise MissingColumn(what)
    enough(max(len(values) for values in curves.values()), MANY, f"points of {next(iter(curves))}")
    return {name: values for name, values in curves.items() if len(values) >= MANY}


def check_truth(rows: Rows) -> Checked:
    """A reward rises over the run, or from the best moment of the truth on, while the truth falls."""
    rewards, truths = curves_of(rows, "reward"), curves_of(rows, "truth")
    if not truths or not rewards:
        raise MissingColumn("step and truth, or curves of a reward and of the success")
    clean = f"curves: {', '.join(list(rewards)[:3])} against {', '.join(list(truths)[:3])}"
    clean += f"; both directions with a rank correlation of {STRONG:g} would be a finding"
    shared = {pair: shared_points(rows, *pair)[1:] for pair in product(rewards, truths)}
    enough(max(len(x) for x, _ in shared.values()), FEWEST, "steps with a reward and a truth")
    rising, followed = "", False
    for (reward, truth), (x, y) in shared.items():
        best = int(np.argmax(np.convolve(y, np.ones(3) / 3, "same"))) if len(y) > 2 else 0
        for start in (0, best):
            a, b, n = x[start:], y[start:], len(x) - start
            if n < FEWEST:
                continue
            order, alone = np.arange(n, dtype=np.float64), np.zeros(n, np.int64)
            rise, fall = (associate(order, _ranks(one), alone, seed=0) for one in (a, b))
            if start == 0 and rise.r >= STRONG and rise.low > 0:
                rising, followed = rising or reward, followed or fall.low > 0
            if rise.r < STRONG or fall.r > -STRONG or rise.low <= 0 or fall.high >= 0 or fall.p is None:
                continue
            title = f"{reward} rises from {a[0]:.3g} to {a[-1]:.3g} while {truth} falls from {b[0]:.3g} to {b[-1]:.3g}"
            p = min(1.0, fall.p * 2 * len(shared))
            unit = "rank correlation of the truth with the step"
            return _found(rows, "truth", title, clean, (fall.r, fall.low, fall.high), unit, n, p=p)
    if rising and not followed:
        raise Undecided(f"needs rows, or a truth that rises or falls: {rising} rises, and no curve of a truth does")
    return Checked(None, clean)


def shared_points(rows: Rows, reward: str, truth: str) -> tuple[Codes, Numbers, Numbers]:
    """The steps at which two curves have a number, and the values of both there."""
    steps = np.intersect1d(rows.curves[reward][0], rows.curves[truth][0])
    x, y = (values[np.searchsorted(at, steps)] for at, values in (rows.curves[reward], rows.curves[truth]))
    known = np.isfinite(x) & np.isfinite(y)
    return steps[known], x[known], y[known]


def _ranks(values: Numbers) -> Numbers:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)


def check_collapse(rows: Rows) -> Checked:
    """A reward loses nearly all that it had gained; else the truth.

    Of one that begins at its best, all but a fifth is nearly all where it is never negative. Where it can be negative,
    it has to end at its lowest value and stay there; any other fall of such a reward cannot be decided.
    """
    said, unknown = list[str](), list[str]()
    role: ScalarRole = "reward" if curves_of(rows, "reward") else "truth"
    for name, values in _several(rows, "a curve of the reward", role).items():
        ends, width = _ends(values), max(3, int(len(values) * WINDOW))
        smooth = np.convolve(values, np.ones(width) / width, "valid")
        best, at = float(smooth.max()), int(np.argmax(smooth)) + width // 2
        gained, lost = best - ends.first, best - ends.last
        sure = max(2 * SURE * ends.error, ROUNDED * float(np.abs(values).max()))
        said.append(f"{name} ends at {ends.last:.3g}, {best:.3g} at its best")
        if gained > sure:
            whole, unit = gained, "share of what it had gained"
            title = (
                f"{name} rises from {ends.first:.3g} to {best:.3g} at {at / len(values):.0%} of the run, and falls to"
            )
        elif (values >= 0).all():
            whole, unit = best, "share of the best"
            title = f"{name} falls from {best:.3g} at {at / len(values):.0%} of the run to"
        elif (values[-width:] <= values.min() + ROUNDED * np.abs(values).max()).all():
            whole, unit = best - float(values.min()), "share of the way to its lowest value"
            title = f"{name} falls from {best:.3g} at {at / len(values):.0%} of the run, and stays at"
        else:
            if lost > sure:
                unknown.append(f"{name} falls from {best:.3g} to {ends.last:.3g}")
            continue
        if lost > sure and lost >= LOST * whole:
            share, half = lost / whole, 1.96 * ends.error * np.sqrt(2) / whole
            effect = share, share - half, share + half
            return _found(rows, "collapse", f"{title} {ends.last:.3g}", said[-1], effect, unit, len(values))
    if unknown:
        raise Undecided(f"needs a reward that is never negative, or was higher than at first; {'; '.join(unknown[:3])}")
    return Checked(None, f"{'; '.join(said[:3])}; a loss of {LOST:.0%} of what it had gained would be a finding")


def check_truncated(rows: Rows) -> Checked:
    """Many responses of the end of the run are cut off by the limit."""
    said = []
    for name, values in _several(rows, "truncated, or a curve of it", "truncated").items():
        ends = _ends(values)
        said.append(f"{name}: {ends.first:.0%} at the beginning, {ends.last:.0%} at the end")
        if ends.last - 1.96 * ends.error > CUT:
            title = f"{ends.last:.0%} of the responses at the end of the run are cut off by the limit ({name}), "
            title += f"{ends.first:.0%} at its beginning"
            effect = ends.last, ends.last - 1.96 * ends.error, ends.last + 1.96 * ends.error
            unit = "share of the responses at the end"
            return _found(rows, "truncated", title, said[-1], effect, unit, len(values), severity="info")
    return Checked(None, f"{'; '.join(said)}; {CUT:.0%} at the end would be a finding")


def check_length(rows: Rows) -> Checked:
    """Responses become twice as long, or half as long, and the truth does not rise."""
    curves = _several(rows, "response, or a curve of its length", "length")
    truths = {name: values for name, values in curves_of(rows, "truth").items() if len(values) >= FEWEST}
    said = []
    for name, values in curves.items():
        ends = _ends(values)
        ratio = ends.last / ends.first if ends.first > 0 else 1.0
        said.append(f"{name}: {ends.first:.4g} at the beginning, {ends.last:.4g} at the end")
        if max(ratio, 1 / max(ratio, 1e-9)) < TIMES or abs(ends.last - ends.first) < SURE * ends.error * np.sqrt(2):
            continue
        gains = [_ends(truth) for truth in truths.values()]
        if any(one.last - one.first > 2 * one.error for one in gains):
            continue
        title = f"responses become {ratio:.2g} times as long ({name}: {ends.first:.4g} to {ends.last:.4g})"
        title += f", and {next(iter(truths))} does not rise" if truths else ""
        half = 1.96 * ends.error / ends.first
        effect = ratio, ratio - half, ratio + half
        severity: Severity = "warning" if truths else "info"
        return _found(rows, "length", title, said[-1], effect, "ratio of lengths", len(values), severity=severity)
    return Checked(None, f"{'; '.join(said)}; a factor of {TIMES:g} without more truth would be a finding")


def check_divergence(rows: Rows) -> Checked:
    """The divergence from the reference policy explodes."""
    said = []
    for name, values in _several(rows, "a curve of the divergence from the reference policy", "divergence").items():
        usual, ends = float(np.median(np.abs(values[: len(values) // 2]))), _ends(values)
        said.append(f"{name}: {usual:.3g} in the first half, {ends.last:.3g} at the end")
        if ends.last - 1.96 * ends.error > max(EXPLODED * usual, AT_LEAST):
            title = f"the divergence from the reference policy explodes: {name} is {ends.last:.3g} at the end, and was "
            title += f"{usual:.3g} in the first half of the run"
            effect = ends.last, ends.last - 1.96 * ends.error, ends.last + 1.96 * ends.error
            return _found(rows, "divergence", title, said[-1], effect, "nats", len(values))
    return Checked(None, f"{'; '.join(said)}; {EXPLODED:g} times as much at the end would be a finding")


def check_entropy(rows: Rows) -> Checked:
    """The entropy of the policy falls to nearly nothing."""
    said = []
    curves = _several(rows, "a curve of the entropy of the policy", "entropy", "negative entropy")
    for name, values in curves.items():
        one_sign = bool((values >= 0).all() or (values <= 0).all())  # of densities it may be anything, and says little
        ends = _ends(np.abs(values))
        said.append(
            f"{name}: {ends.first:.3g} at the beginning, {ends.last:.3g} at the end"
            + " of either sign" * (not one_sign)
        )
        if one_sign and ends.last + 1.96 * ends.error < LEFT * ends.first:
            title = f"the policy hardly explores: the entropy ({name}) falls from {ends.first:.3g} to {ends.last:.3g}"
            share, half = ends.last / ends.first, 1.96 * ends.error / ends.first
            effect = share, max(0.0, share - half), share + half
            return _found(
                rows, "entropy", title, said[-1], effect, "share of the entropy at the beginning", len(values)
            )
    return Checked(None, f"{'; '.join(said)}; {LEFT:.0%} of the entropy left would be a finding")
