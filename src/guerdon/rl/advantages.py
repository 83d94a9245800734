"""Advantages from the rewards of several sources: one table of estimators for text and robots, all pure functions.

Each source keeps its discount, baseline, value estimate, failures and weight until its advantage is computed; only then
are sources added, and whitened over the batch if asked. A failed measurement is left out of every baseline and never
replaced by a number. B are rows (responses of a language model, streams of a robot), T their steps (tokens,
environment steps). Group estimators take one episode per row; in the rows of the others several may follow another.

    sources = {
        "verifier": SourceRewards(outcome_B_T, weight=5.0, paid_B_T=last_valid(mask_B_T), failed_B_T=failed_B_T),
        "prime": SourceRewards(process_B_T, gamma=1.0, weight=5.0),
    }
    found = estimate_advantages(sources, Steps(mask_B_T, groups_B=groups_B), estimator="rloo", whitened=True)
    found.advantages, found.silent_groups

Notation: r_it is what the source pays for step t of row i, m_i its mean over the steps where it pays, K the members of
a group on which the source did not fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from guerdon.errors import ConfigError, DataError, boundary
from guerdon.settings.algorithm import ESTIMATORS, AlgorithmSettings, EstimatorInfo, estimator_info
from guerdon.types import Advantages, BoolArray, IntArray, last_valid

LeaveOneOut = Literal["paper", "prime_compat"]
Credit = Literal["dense", "episode"]
EPS = 1e-6  # added to a group's standard deviation
GDPO_EPS = 1e-4  # the same of GDPO, as TRL has it
FLAT = 1e-6  # a spread of the means this small relative to the largest reward is rounding, not a difference


@dataclass(frozen=True, eq=False)
class Steps:
    """Which steps exist and where episodes end.

    Attributes:
        mask_B_T: False where there is no step (padding, a reset).
        terminated_B_T: the task ended: no value beyond it. None: at the last valid step of each row.
        truncated_B_T: a limit ended the episode: its value goes on. None: nowhere.
        groups_B: rows with the same start share an id, in any order; None: every row for itself.
        turns: steps are turns of conversations.
        states_B_T: `turn_rloo`: steps in the same state have the same number, -1 where it is not known; None: nowhere.
    """

    mask_B_T: BoolArray
    terminated_B_T: BoolArray | None = None
    truncated_B_T: BoolArray | None = None
    groups_B: IntArray | None = None
    turns: bool = False
    states_B_T: IntArray | None = None

    def ends(self) -> tuple[BoolArray, BoolArray]:
        """(B, T) where the task ended, and where an episode ended."""
        terminated = last_valid(self.mask_B_T) if self.terminated_B_T is None else self.terminated_B_T
        return terminated, terminated if self.truncated_B_T is None else terminated | self.truncated_B_T


@dataclass(frozen=True, eq=False)
class SourceRewards:
    """The rewards of one source and what an estimator needs to know of them; (B, T) arrays, not yet weighted.

    Attributes:
        rewards_B_T: reward of each step; what stands where `paid_B_T` is False does not matter.
        gamma: discount per step.
        weight: factor of its advantage in the sum. After whitening only the ratio of weights matters.
        paid_B_T: steps whose reward the baseline is subtracted from. None: every valid step, as PRIME has it, also for
            rewards that stand at the ends of steps of reasoning: then the number of steps changes no baseline.
        failed_B_T: where the measurement is missing. `gae` leaves out these steps, `reinforce` their episodes, the
            others their rows: a sum with a hole is not a measurement.
        credit: `dense`: every reward counts from its own step on. `episode`: the discounted sum of a row is one reward
            at its end, which all of its steps share (GRPO of episodes).
        standardize: `grpo` divides by the group's standard deviation; False for penalties whose unit counts (KL).
        greedy_B: `remax`: mean reward of the greedy response to the same prompt over the steps where it is paid
            (`paid_means`; its score, for an outcome).
        greedy_failed_B: `remax`: True where the greedy response has no score.
        values_B_T: `gae`: value before each step, in this source's own rewards.
        next_values_B_T: `gae`: value after each step, of the terminal observation where an episode ended. None: the
            value of the row's next valid step.
    """

    rewards_B_T: np.ndarray
    gamma: float = 1.0
    weight: float = 1.0
    paid_B_T: BoolArray | None = None
    failed_B_T: BoolArray | None = None
    credit: Credit = "dense"
    standardize: bool = True
    greedy_B: np.ndarray | None = None
    greedy_failed_B: BoolArray | None = None
    values_B_T: np.ndarray | None = None
    next_values_B_T: np.ndarray | None = None


class Estimate(NamedTuple):
    """What an estimator makes of one source.

    Attributes:
        advantages_B_T: float64, 0 where masked.
        known_B_T: steps about which the source says something.
        targets_B_T: returns for its value head, of an estimator with a critic.
        silent: groups with fewer than two known members.
        flat: groups whose known members all have the same mean.
    """

    advantages_B_T: np.ndarray
    known_B_T: BoolArray
    targets_B_T: np.ndarray | None = None
    silent: int | None = None
    flat: int | None = None


Estimator = Callable[[SourceRewards, Steps], Estimate]


def gae(source: SourceRewards, steps: Steps, *, lam: float) -> Estimate:
    """Generalised advantage estimation (Schulman et al. 2016, 1506.02438, eq. 16).

    delta_t = r_t + gamma V(s_{t+1}) (1 - terminated_t) - V(s_t);  A_t = delta_t + gamma lam (1 - done_t) A_{t+1}.
    A truncated episode bootstraps from the value of its last observation. Where the reward is missing, delta is 0:
    the step says neither good nor bad, and later steps still reach earlier ones. Masked steps in between (a tool's
    output) are passed over.
    """
    mask, rewards, paid = _measured(source, steps)
    known = mask & np.asarray(paid.any(axis=1))[:, None] & ~_failed(source, mask)
    terminated, done = steps.ends()
    assert source.values_B_T is not None
    values = np.where(known, source.values_B_T, 0.0).astype(np.float64)
    following = _next_valid(values, mask) if source.next_values_B_T is None else source.next_values_B_T
    deltas = np.where(known, rewards + source.gamma * ~terminated * following - values, 0.0)
    advantages, carry = np.zeros_like(deltas), np.zeros(len(deltas))
    for t in range(deltas.shape[1] - 1, -1, -1):
        carry = np.where(mask[:, t], deltas[:, t] + source.gamma * lam * ~done[:, t] * carry, carry)
        advantages[:, t] = np.where(mask[:, t], carry, 0.0)
    return Estimate(advantages, known, targets_B_T=advantages + values)


def rloo(source: SourceRewards, steps: Steps, *, form: LeaveOneOut = "paper") -> Estimate:
    """Rewards minus the mean of the other members of the group (Ahmadian et al. 2024, 2402.14740; PRIME, 2502.01456).

    `paper` (PRIME eq. 5): r_it - 1/(K-1) sum_{j != i} m_j. `prime_compat` (PRIME's code): r_it K/(K-1) -
    1/(K-1) sum_j m_j, which adds (r_it - m_i)/(K-1): nothing for outcomes, a reshaping of dense credit.
    """

    def baselined(rewards: np.ndarray, paid: BoolArray, group: _Group) -> np.ndarray:
        others, total = np.maximum(group.known - 1, 1)[:, None], group.total[:, None]
        if form == "paper":
            return np.asarray(rewards - (total - paid_means(rewards, paid)[:, None]) / others)
        return np.asarray(rewards * (group.known[:, None] / others) - total / others)

    return _group_relative(source, steps, baselined)


def turn_rloo(source: SourceRewards, steps: Steps, *, by_state: bool = False) -> Estimate:
    """Return from a turn on, minus the mean over the other members of the group of their mean over turns.

    A_ik = G_ik - 1/(K-1) sum_{j != i} mean_l G_jl, with G_ik the discounted sum of the rewards from turn k on.
    What is subtracted does not depend on member i, so the gradient is unbiased, also where members have different
    numbers of turns. With the own member inside the mean, or with means per turn index, it would not be.

    Args:
        source: of reward.
        steps: turns; with `states_B_T` for `by_state`.
        by_state: subtract the mean over the turns of other members in the same state, where there are any. State and
            members are given when the turn's action is drawn, so that the gradient stays unbiased.
    """
    mask, rewards, _, known_B = _measured_rows(source, steps)
    assert steps.groups_B is not None
    known = mask & known_B[:, None]
    returns = discounted_returns(np.where(known, rewards, 0.0), known, gamma=source.gamma)
    group = _group_statistics(returns, known, steps.groups_B)
    others = np.maximum(group.known - 1, 1)
    baseline = np.repeat(((group.total - paid_means(returns, known)) / others)[:, None], mask.shape[1], axis=1)
    if by_state and steps.states_B_T is not None:
        baseline = _means_of_states(returns, known, steps.groups_B, steps.states_B_T, baseline)
    enough = known & (group.known >= 2)[:, None]
    return Estimate(
        np.where(enough, returns - baseline, 0.0),
        enough,
        silent=len(np.unique(steps.groups_B[group.known < 2])),
        flat=len(np.unique(steps.groups_B[(group.known >= 2) & group.flat])),
    )


def _means_of_states(
    returns_B_T: np.ndarray, known_B_T: BoolArray, groups_B: IntArray, states_B_T: IntArray, baseline_B_T: np.ndarray
) -> np.ndarray:
    """(B, T) mean return of the other members' turns in the same state, `baseline_B_T` where there are none."""
    places = known_B_T & (states_B_T >= 0)
    rows = np.nonzero(places)[0]
    keys = np.stack([groups_B[rows], states_B_T[places]], axis=1)
    _, state = np.unique(keys, axis=0, return_inverse=True)
    _, of_member = np.unique(np.stack([state.ravel(), rows], axis=1), axis=0, return_inverse=True)

    def sums(values: np.ndarray) -> np.ndarray:
        """Over the turns in the same state of all members, without those of the turn's own member."""
        everyone, own = np.bincount(state.ravel(), values), np.bincount(of_member.ravel(), values)
        return np.asarray(everyone[state.ravel()] - own[of_member.ravel()])

    values = returns_B_T[places]
    count = sums(np.ones(len(values)))
    found = baseline_B_T.copy()
    found[places] = np.where(count > 0.5, sums(values) / np.maximum(count, 1.0), baseline_B_T[places])
    return found


def grpo(source: SourceRewards, steps: Steps, *, standardize: bool = True) -> Estimate:
    """(r_it - mean_j m_j) / (std_j m_j + 1e-6) (GRPO, 2402.03300, section 4.1; with process rewards 2502.01456).

    Without the division it is Dr. GRPO (Liu et al. 2025, 2503.20783), whose other half, the constant length, is in
    the loss (`loss_agg: constant`); for outcomes it is RLOO's advantage times (K-1)/K. A group whose means do not
    differ has no spread to divide by: zeros.
    """
    standardize = standardize and source.standardize

    def baselined(rewards: np.ndarray, paid: BoolArray, group: _Group) -> np.ndarray:
        centred = rewards - group.mean[:, None]
        if not standardize:
            return np.asarray(centred)
        return np.where(group.flat[:, None], 0.0, centred / (group.std + EPS)[:, None])

    return _group_relative(source, steps, baselined)


def gdpo(source: SourceRewards, steps: Steps) -> Estimate:
    """(r_it - mean_j m_j) / (std_j m_j + 1e-4) of each source (GDPO, Liu et al. 2026, 2601.05242).

    The weighted sum of the sources is whitened over the responses of the batch. Standard deviations are of n - 1 and
    the constant is that of TRL.
    """

    def baselined(rewards: np.ndarray, paid: BoolArray, group: _Group) -> np.ndarray:
        std = group.std * np.sqrt(group.known / np.maximum(group.known - 1, 1))
        return np.where(group.flat[:, None], 0.0, (rewards - group.mean[:, None]) / (std + GDPO_EPS)[:, None])

    return _group_relative(source, steps, baselined)


def reinforce(source: SourceRewards, steps: Steps) -> Estimate:
    """Reward to go without a baseline (Williams 1992); whitened over the batch it is REINFORCE++ (2501.03262).

    In a row of several episodes each has its own return; that of one that goes on after the rollout ends with it.
    """
    mask, rewards, paid = _measured(source, steps)
    _, done = steps.ends()
    known = mask & _in_episode(paid, done) & ~_in_episode(_failed(source, mask), done)
    rewards = np.where(known, rewards, 0.0)
    return Estimate(discounted_returns(rewards, mask, gamma=source.gamma, ends_B_T=done), known)


def remax(source: SourceRewards, steps: Steps) -> Estimate:
    """Rewards minus m of the greedy response (ReMax, Li et al. 2024, 2310.10505); for an outcome, minus its score."""
    mask, rewards, paid, known = _measured_rows(source, steps)
    assert source.greedy_B is not None
    if source.greedy_failed_B is not None:
        known = known & ~source.greedy_failed_B
    greedy = np.where(known, source.greedy_B, 0.0)
    return _to_go(np.where(paid & known[:, None], rewards - greedy[:, None], 0.0), mask, source.gamma, known)


def estimators(*, lam: float = 1.0, form: LeaveOneOut = "paper", by_state: bool = False) -> dict[str, Estimator]:
    """Every estimator by the name that `algorithm.adv_estimator` gives it.

    Args:
        lam: `gae`: lambda, the trade-off between bias and variance.
        form: `rloo`: leave-one-out of dense rewards as in the paper, or as PRIME's code has it.
        by_state: `turn_rloo`: compare turns in the same state.
    """
    return {
        "gae": partial(gae, lam=lam),
        "rloo": partial(rloo, form=form),
        "turn_rloo": partial(turn_rloo, by_state=by_state),
        "grpo": grpo,
        "dr_grpo": partial(grpo, standardize=False),
        "gdpo": gdpo,
        "reinforce": reinforce,
        "reinforce_pp": reinforce,
        "remax": remax,
    }


def named_estimator(settings: AlgorithmSettings) -> str | Estimator:
    """The estimator of an `algorithm` section: a name of `estimators`, or a user's own function.

    Raises:
        ConfigError: a user's factory raised, or returned something else.
    """
    if not ESTIMATORS.is_own(settings.adv_estimator):
        return settings.adv_estimator
    own: Estimator = ESTIMATORS.build(settings.adv_estimator, settings.estimator_params, Callable)  # type: ignore[arg-type]
    return own


def check_estimator(settings: AlgorithmSettings) -> None:
    """Call a user's own estimator once, with `small_case`, and refuse what a run could not use.

    Raises:
        ConfigError: it raises, or its estimate lacks something; with the name of the field.
    """
    if not ESTIMATORS.is_own(settings.adv_estimator):
        return
    estimator, what = named_estimator(settings), f"the estimator {settings.adv_estimator}"
    assert not isinstance(estimator, str)
    source, steps = small_case(settings.needs)
    with boundary(ConfigError, f"{what} raised on the case of docs/extend.md#estimator", key="algorithm.adv_estimator"):
        found = estimator(source, steps)
    _check_estimate(what, source, found)


def small_case(needs: EstimatorInfo) -> tuple[SourceRewards, Steps]:
    """Four episodes of at most three steps, which docs/extend.md shows and every estimator of a user is called with.

    The first succeeds, the second is cut by a limit, the third ends after two steps, and of the fourth the last
    reward is missing. Groups, values and greedy rewards are there where they are needed.
    """
    rewards = np.array([[0, 0, 1], [0, 0, 0], [0, 0.5, 0], [0, 0, 0]], dtype=np.float32)
    mask, failed, truncated = (np.full(rewards.shape, value) for value in (True, False, False))
    mask[2, 2], failed[3, 2], truncated[1, 2] = False, True, True
    values = np.full(rewards.shape, 0.5, dtype=np.float32)
    source = SourceRewards(rewards, failed_B_T=failed, credit="dense")
    steps = Steps(mask, last_valid(mask) & ~truncated, truncated)
    if needs.groups:
        source = replace(source, credit="episode")
        steps = replace(steps, groups_B=np.array([0, 0, 1, 1]))
    if needs.greedy:
        source = replace(source, greedy_B=np.zeros(4, dtype=np.float32))
    if needs.critic:
        source = replace(source, values_B_T=values, next_values_B_T=values)
    return source, steps


def estimate_advantages(
    sources: Mapping[str, SourceRewards],
    steps: Steps,
    *,
    estimator: str | Estimator,
    form: LeaveOneOut = "paper",
    whitened: bool = False,
    lam: float = 1.0,
    by_state: bool = False,
) -> Advantages:
    """Advantages of any number of sources: the first place where they meet.

    A_it = sum over sources of weight x the advantage of the source. Rows about which no source said anything stay out
    of the whitening and keep advantage 0.

    Args:
        sources: name to rewards.
        steps: which steps exist.
        estimator: a name of `estimators`, or a function as they are.
        form: `rloo`: see there.
        whitened: zero mean and unit variance over the steps of the batch, after the sources are added.
        lam: `gae`: lambda.
        by_state: `turn_rloo`: see there.

    Raises:
        ConfigError: a group estimator where no group has two members; `reinforce_pp` without whitening; an estimator
            of outcomes where turns before the last one are paid.
        DataError: a reward that is not finite in a row not marked as failed.
    """
    if isinstance(estimator, str):
        _check(sources, steps, estimator, whitened)
        one_source = estimators(lam=lam, form=form, by_state=by_state)[estimator]
    else:
        _check(sources, steps, "", whitened)
        one_source = estimator
    found = {name: one_source(_whole_episodes(source, steps), steps) for name, source in sources.items()}
    if not isinstance(estimator, str):
        for name, one in found.items():
            _check_estimate(f"the estimator, for the source {name!r},", sources[name], one)
    total, counts = _weighted_sum(sources, found, steps.mask_B_T.shape)
    advantages = total
    if whitened:
        advantages = whiten_rows(total, counts) if estimator == "gdpo" else whiten(total, counts)
    return Advantages(
        advantages=advantages.astype(np.float32),
        returns=total.astype(np.float32),
        per_source={name: one.advantages_B_T.astype(np.float32) for name, one in found.items()},
        known={name: one.known_B_T for name, one in found.items()},
        value_targets={
            n: one.targets_B_T.astype(np.float32) for n, one in found.items() if one.targets_B_T is not None
        },
        silent_groups={name: one.silent for name, one in found.items() if one.silent is not None},
        flat_groups={name: one.flat for name, one in found.items() if one.flat is not None},
    )


def _weighted_sum(
    sources: Mapping[str, SourceRewards], found: Mapping[str, Estimate], shape: tuple[int, ...]
) -> tuple[np.ndarray, BoolArray]:
    """The weighted sum of the advantages, and where a source that counts said something; both (B, T)."""
    total = np.zeros(shape, dtype=np.float64)
    counts = np.zeros(shape, dtype=np.bool_)
    for name, one in found.items():
        total += sources[name].weight * one.advantages_B_T
        counts |= one.known_B_T & (sources[name].weight != 0)
    return total, counts


# Parts of the estimators.


def paid_means(rewards_B_T: np.ndarray, paid_B_T: BoolArray) -> np.ndarray:
    """m_i: mean reward over the paying steps of each row, (B,) float64; 0 where no step pays."""
    total = np.where(paid_B_T, rewards_B_T, 0.0).sum(axis=1, dtype=np.float64)
    return np.asarray(total / np.maximum(paid_B_T.sum(axis=1), 1))


def episode_scores(rewards_B_T: np.ndarray, mask_B_T: BoolArray, *, gamma: float = 1.0) -> np.ndarray:
    """(B,) float64 discounted sum of each row's rewards over its valid steps."""
    places = np.cumsum(mask_B_T, axis=1) - 1
    discounts = np.where(mask_B_T, gamma ** np.maximum(places, 0), 0.0)
    return np.asarray((np.where(mask_B_T, rewards_B_T, 0.0).astype(np.float64) * discounts).sum(axis=1))


def groups_within(
    returns_B: np.ndarray, known_B: BoolArray, groups_B: IntArray, lower: float | None, upper: float | None
) -> BoolArray:
    """(B,) bool, rows of groups whose mean return lies in the bounds, both inclusive.

    RLinf's `filter_rewards`, after DAPO's dynamic sampling (Yu et al. 2025, 2503.14476, eq. 11). The mean is over the
    known members; a group without any stays, and its estimator leaves it out.

    Args:
        returns_B: undiscounted return of each row.
        known_B: where it could be measured.
        groups_B: rows of a group share an id.
        lower, upper: bounds in the unit of the returns; None: no bound.
    """
    _, group = np.unique(groups_B, return_inverse=True)
    count = np.bincount(group, weights=known_B)
    mean = np.bincount(group, weights=np.where(known_B, returns_B, 0.0)) / np.maximum(count, 1)
    inside = (mean >= (-np.inf if lower is None else lower)) & (mean <= (np.inf if upper is None else upper))
    return np.asarray((inside | (count == 0))[group])


def discounted_returns(
    rewards_B_T: np.ndarray, mask_B_T: BoolArray, *, gamma: float, ends_B_T: BoolArray | None = None
) -> np.ndarray:
    """Reward to go: G_t = r_t + gamma G_{t+1} over the valid steps of a row, up to the next of `ends_B_T`.

    A masked step in between (a tool's output) neither pays nor discounts: it hands the return through and has 0.

    Returns:
        (B, T) float64, 0 where masked.
    """
    rewards = np.where(mask_B_T, rewards_B_T, 0.0).astype(np.float64)
    if gamma == 1.0 and ends_B_T is None:
        return np.where(mask_B_T, rewards[:, ::-1].cumsum(axis=1)[:, ::-1], 0.0)
    returns = np.zeros_like(rewards)
    carry = np.zeros(len(rewards))
    for t in range(rewards.shape[1] - 1, -1, -1):
        if ends_B_T is not None:
            carry = np.where(ends_B_T[:, t], 0.0, carry)
        carry = np.where(mask_B_T[:, t], rewards[:, t] + gamma * carry, carry)
        returns[:, t] = carry
    return np.where(mask_B_T, returns, 0.0)


def whiten(values_B_T: np.ndarray, mask_B_T: BoolArray) -> np.ndarray:
    """(x - mean) / sqrt(variance + 1e-8) over the valid entries of the whole batch, variance with n - 1 (PRIME).

    Fewer than two valid entries have no spread: zeros.

    Returns:
        (B, T) float64, 0 where masked.
    """
    valid = np.asarray(values_B_T, dtype=np.float64)[mask_B_T]
    white = np.zeros(mask_B_T.shape, dtype=np.float64)
    if valid.size >= 2:
        white[mask_B_T] = (valid - valid.mean()) / np.sqrt(valid.var(ddof=1) + 1e-8)
    return white


def whiten_rows(values_B_T: np.ndarray, mask_B_T: BoolArray) -> np.ndarray:
    """(x - mean) / (std + 1e-4), mean and std (n - 1) over rows, each with the mean of its valid entries (GDPO, eq. 6).

    Fewer than two rows with an entry have no spread: zeros.

    Returns:
        (B, T) float64, 0 where masked.
    """
    means = paid_means(values_B_T, mask_B_T)[mask_B_T.any(axis=1)]
    if len(means) < 2:
        return np.zeros(mask_B_T.shape, dtype=np.float64)
    return np.where(mask_B_T, (values_B_T - means.mean()) / (means.std(ddof=1) + GDPO_EPS), 0.0)


class _Group(NamedTuple):
    """Per row, what its group says about one source, all (B,).

    Attributes:
        known: number of known members.
        total: sum of their means m.
        mean: mean of m.
        std: standard deviation of m (with n).
        flat: True where the members' means do not differ.
    """

    known: np.ndarray
    total: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    flat: BoolArray


def _group_statistics(rewards_B_T: np.ndarray, paid_B_T: BoolArray, groups_B: IntArray) -> _Group:
    """Number, sum, mean and spread of m over the known members of each row's group: those paid somewhere."""
    known_B = paid_B_T.any(axis=1)
    _, group = np.unique(groups_B, return_inverse=True)
    groups = int(group.max(initial=-1)) + 1
    means = paid_means(rewards_B_T, paid_B_T)

    def total(values_B: np.ndarray) -> np.ndarray:
        return np.bincount(group, weights=np.where(known_B, values_B, 0.0), minlength=groups)[group]

    known = total(np.ones(len(means)))
    mean = total(means) / np.maximum(known, 1)
    std = np.sqrt(total((means - mean) ** 2) / np.maximum(known, 1))
    largest = np.zeros(groups)
    paid = np.where(paid_B_T, np.abs(rewards_B_T), 0.0)
    np.maximum.at(largest, group, paid.max(axis=1, initial=0.0))
    return _Group(known, total(means), mean, std, np.asarray(std <= FLAT * largest[group]))


def _group_relative(
    source: SourceRewards, steps: Steps, baselined: Callable[[np.ndarray, BoolArray, _Group], np.ndarray]
) -> Estimate:
    """Reward to go of baselined rewards; a row whose group has fewer than two known members says nothing."""
    mask, rewards, paid, known = _measured_rows(source, steps)
    assert steps.groups_B is not None
    group = _group_statistics(rewards, paid, steps.groups_B)
    enough = group.known >= 2
    rewards = np.where(paid & enough[:, None], baselined(rewards, paid, group), 0.0)
    return _to_go(rewards, mask, source.gamma, known & enough)._replace(
        silent=len(np.unique(steps.groups_B[~enough])), flat=len(np.unique(steps.groups_B[enough & group.flat]))
    )


def _to_go(rewards_B_T: np.ndarray, mask_B_T: BoolArray, gamma: float, known_B: BoolArray) -> Estimate:
    return Estimate(discounted_returns(rewards_B_T, mask_B_T, gamma=gamma), mask_B_T & known_B[:, None])


def _in_episode(flags_B_T: BoolArray, done_B_T: BoolArray) -> BoolArray:
    """(B, T) bool, whether the flag is set at any step of the same episode."""
    number = np.cumsum(done_B_T, axis=1) - done_B_T + (done_B_T.shape[1] + 1) * np.arange(len(done_B_T))[:, None]
    return np.asarray(np.bincount(number.ravel(), weights=flags_B_T.ravel())[number] > 0)


def _whole_episodes(source: SourceRewards, steps: Steps) -> SourceRewards:
    """With `credit: episode`, the same source paying its discounted sum at the end of each row, undiscounted."""
    if source.credit == "dense":
        return source
    mask = steps.mask_B_T
    last = last_valid(mask)
    scores = episode_scores(source.rewards_B_T, mask, gamma=source.gamma)
    return replace(source, rewards_B_T=np.where(last, scores[:, None], 0.0), paid_B_T=last, gamma=1.0)


def _failed(source: SourceRewards, mask_B_T: BoolArray) -> BoolArray:
    return np.zeros_like(mask_B_T) if source.failed_B_T is None else source.failed_B_T & mask_B_T


def _measured(source: SourceRewards, steps: Steps) -> tuple[BoolArray, np.ndarray, BoolArray]:
    """The mask, rewards (0 where nothing is paid or measured), and where the source pays."""
    mask = steps.mask_B_T
    paid: BoolArray = mask if source.paid_B_T is None else mask & source.paid_B_T
    return mask, np.where(paid & ~_failed(source, mask), source.rewards_B_T, 0.0).astype(np.float64), paid


def _measured_rows(source: SourceRewards, steps: Steps) -> tuple[BoolArray, np.ndarray, BoolArray, BoolArray]:
    """The same by whole rows, and which rows are known: paid somewhere, and nowhere failed. Others pay nothing."""
    mask, rewards, paid = _measured(source, steps)
    known = np.asarray(paid.any(axis=1) & ~_failed(source, mask).any(axis=1))
    return mask, rewards, paid & known[:, None], known


def _next_valid(values_B_T: np.ndarray, mask_B_T: BoolArray) -> np.ndarray:
    """The value at the next valid step of each row; 0 behind the last."""
    found, following = np.zeros_like(values_B_T), np.zeros(len(values_B_T))
    for t in range(values_B_T.shape[1] - 1, -1, -1):
        found[:, t] = following
        following = np.where(mask_B_T[:, t], values_B_T[:, t], following)
    return found


def _check_estimate(what: str, source: SourceRewards, found: object) -> None:
    """Refuse an estimate of a user's function that does not fit; `what` names the function."""
    shape = source.rewards_B_T.shape
    if not isinstance(found, Estimate):
        raise ConfigError(
            f"{what} returned {_described(found)}: it must return an Estimate of advantages_B_T and known_B_T",
            key="algorithm.adv_estimator",
        )
    if source.values_B_T is not None and found.targets_B_T is None:
        raise ConfigError(
            f"{what} gives no targets_B_T, which the critic of this policy learns from: return them, or say that it "
            "needs no critic, by `info = EstimatorInfo(critic=False)` on its factory (docs/extend.md#estimator)",
            key="algorithm.adv_estimator",
        )
    for name, array in found._asdict().items():
        if not name.endswith("_B_T") or (array is None and name == "targets_B_T"):
            continue
        if getattr(array, "shape", None) != shape:
            raise ConfigError(
                f"{what} gives {name} as {_described(array)}: it must be an array {shape}, as rewards_B_T",
                key="algorithm.adv_estimator",
            )
    if not np.isfinite(found.advantages_B_T).all():
        raise DataError(f"{what} gives advantages_B_T that are not finite")


def _described(value: object) -> str:
    """A value in an error: the shape of an array, else its type."""
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" if shape is None else f"an array {tuple(shape)}"


_UNWHITENED = {"reinforce_pp": "reinforce", "gdpo": "grpo"}  # what these estimators are without whitening


def _check(sources: Mapping[str, SourceRewards], steps: Steps, estimator: str, whitened: bool) -> None:
    """Refuse what cannot mean anything."""
    if not sources:
        raise ConfigError("advantages need at least one source of reward")
    if estimator in _UNWHITENED and not whitened:
        without = _UNWHITENED[estimator]
        raise ConfigError(
            f"{estimator} is {without} with whitening; use adv_estimator: {without} without it",
            key="algorithm.adv_estimator",
        )
    needs = estimator_info(estimator) if estimator else EstimatorInfo()
    _check_groups(steps, estimator, needs)
    for name, source in sources.items():
        _check_source(name, source, steps, estimator, needs)


def _check_groups(steps: Steps, estimator: str, needs: EstimatorInfo) -> None:
    """Refuse groups of another shape, and an estimator that compares where no group has two members."""
    mask, groups = steps.mask_B_T, steps.groups_B
    if groups is not None and groups.shape != mask.shape[:1]:
        raise ValueError(f"groups_B has shape {groups.shape}, expected {mask.shape[:1]}")
    if not needs.groups:
        return
    sizes = np.ones(1) if groups is None else np.unique(groups, return_counts=True)[1]
    if groups is None or (len(groups) and sizes.max() < 2):
        raise ConfigError(
            f"{estimator} compares responses to the same prompt: data.n_samples must be at least 2 (of TRL "
            "num_generations, of verl actor_rollout_ref.rollout.n)",
            key="data.n_samples",
        )


def _check_source(name: str, source: SourceRewards, steps: Steps, estimator: str, needs: EstimatorInfo) -> None:
    """Refuse a source that lacks what is needed, has an array of another shape, or rewards that are not finite."""
    for needed, key in ((needs.critic, "values_B_T"), (needs.greedy, "greedy_B")):
        if needed and getattr(source, key) is None:
            raise ConfigError(f"{estimator} needs {key} of the reward source {name!r}")
    mask = steps.mask_B_T
    if steps.turns and (needs.groups or needs.greedy) and estimator != "turn_rloo":
        _, rewards, _ = _measured(source, steps)
        early = (np.where(last_valid(mask), 0.0, rewards) != 0).any(axis=1)
        if early.any():
            raise ConfigError(
                f"{int(early.sum())} conversations are paid at turns before the last one, for which {estimator} is "
                "biased: set algorithm.adv_estimator to turn_rloo, or let the agent give outcomes alone",
                key="algorithm.adv_estimator",
            )
    for field in fields(source):
        array = getattr(source, field.name)
        shape = mask.shape if field.name.endswith("_T") else mask.shape[:1]
        if isinstance(array, np.ndarray) and array.shape != shape:
            raise ValueError(f"{field.name} of the source {name!r} has shape {array.shape}, expected {shape}")
    _, rewards, _ = _measured(source, steps)
    bad = ~np.isfinite(rewards).all(axis=1)
    if bad.any():
        raise DataError(
            f"reward source {name!r}: {int(bad.sum())} rows have a reward that is not finite; mark them as failed, "
            "so that they stay out of every baseline"
        )
