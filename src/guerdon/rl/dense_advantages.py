"""Advantages of token sequences with dense rewards from several sources, by any estimator.

RLOO, GRPO, Dr. GRPO, REINFORCE, REINFORCE++, ReMax and GAE. Each source keeps its discount, baselines, failures and
weight until its advantage stands; only then are sources added, and whitened over the batch if asked. A source that
failed on a response is left out of every baseline and says nothing about that response. Nothing here knows a model,
a tokenizer or a loss.

    sources = {
        "verifier": DenseSource(outcome_B_T, weight=5.0, pays_B_T=last_valid(mask_B_T), failed_B=failed_B),
        "prime": DenseSource(process_B_T, gamma=1.0, weight=5.0),
    }
    result = dense_advantages(sources, mask_B_T, groups_B, estimator="rloo")
    result.advantages_B_T, result.silent_groups
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from guerdon.errors import ConfigError, DataError
from guerdon.rl.advantages import discounted_returns, token_gae, whiten
from guerdon.rl.baselines import (
    LeaveOneOut,
    group_statistics,
    grpo_rewards,
    remax_rewards,
    rloo_rewards,
)
from guerdon.settings.text_algorithm import GROUPED, Estimator
from guerdon.types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class DenseSource:
    """One stream of rewards for B responses, not yet weighted.

    Attributes:
        rewards_B_T: reward of each token; what stands where `pays_B_T` is False does not matter.
        gamma: discount per token.
        weight: factor of its advantage in the sum. After whitening only the ratio of weights matters.
        pays_B_T: tokens whose reward the baseline is subtracted from. None: every valid token, as PRIME has it,
            also for rewards that stand at the ends of steps: then the number of steps changes no baseline.
        failed_B: True where the source failed on a response.
        standardize: `grpo` divides by the group's standard deviation; False for penalties whose unit counts (KL).
        greedy_B: `remax`: mean reward of the greedy response to the same prompt over the tokens where it is paid
            (`baselines.paid_means`; its score, for an outcome).
        greedy_failed_B: `remax`: True where the greedy response has no score.
        values_B_T: `gae`: value before each token, in this source's own rewards.
    """

    rewards_B_T: np.ndarray
    gamma: float = 1.0
    weight: float = 1.0
    pays_B_T: BoolArray | None = None
    failed_B: BoolArray | None = None
    standardize: bool = True
    greedy_B: np.ndarray | None = None
    greedy_failed_B: BoolArray | None = None
    values_B_T: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class DenseAdvantages:
    """What `dense_advantages` found.

    Attributes:
        advantages_B_T: for the policy loss; 0 where masked.
        returns_B_T: the weighted sum of the sources before whitening.
        per_source: each source's own advantage (B, T), without weight and whitening.
        taught: source to (B,) bool, True where it said something about a response.
        value_targets: `gae`: source to (B, T) returns for its value head; fit them where `taught` and the mask allow.
        silent_groups: group estimators: source to the number of groups with fewer than two known members.
        flat_groups: group estimators: source to the number of groups whose known members all have the same mean.
    """

    advantages_B_T: FloatArray
    returns_B_T: FloatArray
    per_source: Mapping[str, FloatArray]
    taught: Mapping[str, BoolArray]
    value_targets: Mapping[str, FloatArray]
    silent_groups: Mapping[str, int]
    flat_groups: Mapping[str, int]


class _Taken(NamedTuple):
    """One source's advantage, its value targets, and where it said something."""

    advantages_B_T: np.ndarray
    targets_B_T: np.ndarray | None
    taught_B: BoolArray
    silent: int
    flat: int


def dense_advantages(
    sources: Mapping[str, DenseSource],
    mask_B_T: BoolArray,
    groups_B: IntArray,
    *,
    estimator: Estimator,
    form: LeaveOneOut = "paper",
    whitened: bool = True,
    lam: float = 1.0,
) -> DenseAdvantages:
    """Advantages of B responses from any number of sources.

    A_it = sum over sources of weight x discounted sum of the source's baselined rewards from token t on.
    `reinforce` has no baseline. `reinforce_pp` is `reinforce` whitened over the batch (Hu et al. 2025, 2501.03262),
    with the KL as a source. `gae` takes each source's own values. Responses about which no source
    said anything stay out of the whitening and keep advantage 0.

    Args:
        sources: name to rewards.
        mask_B_T: valid response tokens.
        groups_B: responses to the same prompt share an id; any order.
        estimator: how a source's rewards are baselined.
        form: `rloo`: leave-one-out of dense rewards as in the paper, or as PRIME's code has it.
        whitened: zero mean and unit variance over the tokens of the batch, after the sources are added.
        lam: `gae`: lambda.

    Raises:
        ConfigError: a group estimator where no prompt has two responses; `reinforce_pp` without whitening.
        DataError: a reward that is not finite in a response not marked as failed.
    """
    _check(sources, mask_B_T, groups_B, estimator, whitened)
    taken = {name: _take(name, source, mask_B_T, groups_B, estimator, form, lam) for name, source in sources.items()}
    total = np.zeros(mask_B_T.shape, dtype=np.float64)
    counts = np.zeros(len(mask_B_T), dtype=np.bool_)
    for name, one in taken.items():
        total += sources[name].weight * one.advantages_B_T
        counts |= one.taught_B & (sources[name].weight != 0)
    advantages = whiten(total, mask_B_T & counts[:, None]) if whitened else total
    grouped = estimator in GROUPED
    return DenseAdvantages(
        advantages_B_T=advantages.astype(np.float32),
        returns_B_T=total.astype(np.float32),
        per_source={name: one.advantages_B_T.astype(np.float32) for name, one in taken.items()},
        taught={name: one.taught_B for name, one in taken.items()},
        value_targets={
            name: one.targets_B_T.astype(np.float32) for name, one in taken.items() if one.targets_B_T is not None
        },
        silent_groups={name: one.silent for name, one in taken.items()} if grouped else {},
        flat_groups={name: one.flat for name, one in taken.items()} if grouped else {},
    )


def _take(
    name: str,
    source: DenseSource,
    mask_B_T: BoolArray,
    groups_B: IntArray,
    estimator: Estimator,
    form: LeaveOneOut,
    lam: float,
) -> _Taken:
    """One source through one estimator."""
    rewards, paid, known = _measured(name, source, mask_B_T)
    silent = flat = 0
    if estimator == "gae":
        assert source.values_B_T is not None
        here = mask_B_T & known[:, None]
        advantages, targets = token_gae(rewards, source.values_B_T, here, gamma=source.gamma, lam=lam)
        return _Taken(advantages, targets, known, silent, flat)
    if estimator in GROUPED:
        statistics = group_statistics(rewards, paid, groups_B)
        enough = statistics.known >= 2
        silent = len(np.unique(groups_B[~enough]))
        flat = len(np.unique(groups_B[enough & statistics.flat]))
        known = known & enough
        if estimator == "rloo":
            rewards = rloo_rewards(rewards, paid, statistics, form=form)
        else:
            standardize = estimator == "grpo" and source.standardize
            rewards = grpo_rewards(rewards, paid, statistics, standardize=standardize)
    elif estimator == "remax":
        assert source.greedy_B is not None
        if source.greedy_failed_B is not None:
            known = known & ~source.greedy_failed_B
        greedy = np.where(known, source.greedy_B, 0.0)
        rewards = remax_rewards(rewards, paid & known[:, None], greedy)
    return _Taken(discounted_returns(rewards, mask_B_T, gamma=source.gamma), None, known, silent, flat)


def _measured(name: str, source: DenseSource, mask_B_T: BoolArray) -> tuple[np.ndarray, BoolArray, BoolArray]:
    """Rewards (0 elsewhere), where they are paid, and which responses have any."""
    pays: BoolArray = mask_B_T if source.pays_B_T is None else mask_B_T & source.pays_B_T
    known: BoolArray = np.asarray(pays.any(axis=1))
    if source.failed_B is not None:
        known = known & ~source.failed_B
    paid = pays & known[:, None]
    rewards = np.where(paid, source.rewards_B_T, 0.0).astype(np.float64)
    bad = ~np.isfinite(rewards).all(axis=1)
    if bad.any():
        raise DataError(
            f"reward source {name!r}: {int(bad.sum())} responses have a reward that is not finite; mark them as "
            "failed, so that they stay out of every baseline"
        )
    return rewards, paid, known


def _check(
    sources: Mapping[str, DenseSource],
    mask_B_T: BoolArray,
    groups_B: IntArray,
    estimator: Estimator,
    whitened: bool,
) -> None:
    """Refuse what cannot mean anything."""
    if not sources:
        raise ConfigError("advantages need at least one source of reward")
    if estimator == "reinforce_pp" and not whitened:
        raise ConfigError("reinforce_pp is reinforce with whitening; ask for adv_estimator: reinforce without it")
    _, sizes = np.unique(groups_B, return_counts=True)
    if estimator in GROUPED and len(groups_B) and sizes.max() < 2:
        raise ConfigError(f"{estimator} compares responses to the same prompt: data.n_samples must be at least 2")
    needs = {"gae": "values_B_T", "remax": "greedy_B"}.get(estimator)
    for name, source in sources.items():
        if needs and getattr(source, needs) is None:
            raise ConfigError(f"{estimator} needs {needs} of the reward source {name!r}")
        for field in ("rewards_B_T", "pays_B_T", "values_B_T", "failed_B", "greedy_B", "greedy_failed_B"):
            array = getattr(source, field)
            shape = mask_B_T.shape if field.endswith("_T") else mask_B_T.shape[:1]
            if array is not None and array.shape != shape:
                raise ValueError(f"{field} of the reward source {name!r} has shape {array.shape}, expected {shape}")
    if groups_B.shape != mask_B_T.shape[:1]:
        raise ValueError(f"groups_B has shape {groups_B.shape}, expected {mask_B_T.shape[:1]}")
