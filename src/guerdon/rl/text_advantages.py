"""From the reward streams of a batch of responses to token advantages.

This module does not know how rewards were measured or what is done with advantages.

    found = advise(study, happened, weights, ref_log_probs_B_T, values)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from guerdon.rl.baselines import paid_means
from guerdon.rl.dense_advantages import DenseAdvantages, DenseSource, dense_advantages, kl_source
from guerdon.rl.text_rewards import Stream
from guerdon.settings.study import Study
from guerdon.types import BoolArray

if TYPE_CHECKING:
    from guerdon.rl.text_side import Happened


def advise(
    study: Study,
    happened: Happened,
    weights: Mapping[str, float],
    ref_log_probs_B_T: Tensor | None,
    values: Mapping[str, np.ndarray] | None,
) -> DenseAdvantages:
    """Advantages of every source, added with their weights.

    Args:
        study: estimator, discounts, what a failure means.
        happened: a batch whose sources have been scored.
        weights: source name to weight.
        ref_log_probs_B_T: of the KL's reference, for a KL in the reward.
        values: source name to (B, T) values, for `gae`.
    """
    algorithm, answered = study.text_algorithm, happened.answered
    mask = answered.batch.mask_B_T
    section = study.reward_model
    neutral = section is not None and section.on_failure == "neutral"
    sources: dict[str, DenseSource] = {}
    for name, stream in happened.streams.items():
        truth = name == "verifier"
        greedy, greedy_failed = _greedy(happened, name)
        sources[name] = DenseSource(
            rewards_B_T=stream.rewards_B_T,
            gamma=algorithm.verifier_gamma if truth else algorithm.reward_model_gamma,
            weight=weights[name],
            pays_B_T=stream.pays_B_T,
            failed_B=None if neutral and not truth else stream.failed_B,
            greedy_B=greedy,
            greedy_failed_B=greedy_failed,
            values_B_T=None if values is None else values[name],
        )
    if ref_log_probs_B_T is not None and algorithm.kl_in == "reward":
        assert happened.old is not None
        old, ref = happened.old.numpy(), ref_log_probs_B_T.numpy()
        sources["kl"] = kl_source(old, ref, mask, coef=algorithm.kl_coef)
    return dense_advantages(
        sources,
        mask,
        answered.groups_B,
        estimator=algorithm.adv_estimator,
        form=algorithm.rloo_form,
        whitened=algorithm.normalize_advantages,
        lam=algorithm.gae_lambda,
    )


def _greedy(happened: Happened, name: str) -> tuple[np.ndarray | None, BoolArray | None]:
    """Mean paid reward of the greedy response to each row's prompt, and where there is none."""
    if happened.greedy is None:
        return None, None
    stream: Stream = happened.greedy_streams[name]
    mask = happened.greedy.batch.mask_B_T
    pays = mask if stream.pays_B_T is None else stream.pays_B_T
    means, failed = paid_means(stream.rewards_B_T, pays), stream.failed_B
    _, place = np.unique(happened.answered.groups_B, return_inverse=True)
    return means[place], failed[place]
