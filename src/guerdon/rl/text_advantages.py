"""From the rewards of a batch of responses to token advantages.

found = advise(study, mask_B_T, groups_B, rewards, weights, values=None)
found.advantages_B_T
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from guerdon.rl.advantages import SourceRewards, Steps, estimate_advantages, named_estimator, paid_means
from guerdon.rl.reward_source import SourceTerms
from guerdon.settings.study import Study
from guerdon.settings.text_sources import SECTION_NAMES
from guerdon.types import Advantages, BoolArray, FloatArray, IntArray, Rewards

VERIFIER, KL = "verifier", "kl"


def kl_rewards(log_probs_B_T: FloatArray, ref_log_probs_B_T: FloatArray, mask_B_T: BoolArray) -> Rewards:
    """The KL from a reference as a reward: -(log pi - log ref) of each token (k1, unbiased)."""
    values = np.where(mask_B_T, ref_log_probs_B_T - log_probs_B_T, np.float32(0)).astype(np.float32)
    return Rewards(values, np.zeros(mask_B_T.shape, dtype=np.bool_))


def advise(
    study: Study,
    mask_B_T: BoolArray,
    groups_B: IntArray,
    rewards: Mapping[str, Rewards],
    weights: Mapping[str, float],
    *,
    greedy_mask_B_T: BoolArray | None = None,
    values: Mapping[str, FloatArray] | None = None,
) -> Advantages:
    """Advantages of every source, added with their weights.

    A response on which a model failed is left out of that source; where the source's `on_failure` is neutral, it is
    paid 0 and counts like any other. The verifier's failures are always left out.

    Args:
        study: estimator, discounts, what a failure means.
        mask_B_T: valid tokens.
        groups_B: responses to one prompt share an id.
        rewards: by source; `kl` is not standardised.
        weights: source name to weight.
        greedy_mask_B_T: for `remax`: valid tokens of the greedy responses, one per prompt in the order of the ids.
        values: source name to (B, T) values, for `gae`.
    """
    algorithm, terms = study.text_algorithm, terms_of(study)
    sources: dict[str, SourceRewards] = {}
    for name, own in rewards.items():
        greedy = greedy_failed = None
        if greedy_mask_B_T is not None and own.greedy is not None:
            greedy, greedy_failed = _greedy(own.greedy, greedy_mask_B_T, groups_B)
        neutral = name in terms and terms[name].on_failure == "neutral"
        sources[name] = SourceRewards(
            rewards_B_T=own.values,
            gamma=terms[name].gamma if name in terms else algorithm.gamma,
            weight=weights[name],
            paid_B_T=own.paid,
            failed_B_T=None if neutral else own.failed,
            standardize=name != KL,
            greedy_B=greedy,
            greedy_failed_B=None if neutral else greedy_failed,
            values_B_T=None if values is None else values[name],
        )
    return estimate_advantages(
        sources,
        Steps(mask_B_T, groups_B=groups_B),
        estimator=named_estimator(algorithm),
        form=algorithm.rloo_form,
        whitened=algorithm.normalize_advantages,
        lam=algorithm.gae_lambda,
    )


def terms_of(study: Study) -> dict[str, SourceTerms]:
    """How every source of a study counts, by name: the verifier, that of `reward_model`, then `reward.sources`."""
    algorithm, section = study.text_algorithm, study.reward_model
    outcome = study.reward.env_weight() if study.text_sources else 1.0
    found = [SourceTerms(VERIFIER, algorithm.verifier_gamma, outcome if section is None else section.verifier_coef)]
    if section is not None:
        found.append(
            SourceTerms(
                SECTION_NAMES[section.rm_type],
                algorithm.reward_model_gamma,
                section.rm_coef,
                section.rm_coef_schedule,
                section.on_failure,
            )
        )
    for name, source in study.text_sources.items():
        gamma = algorithm.gamma if source.gamma is None else source.gamma
        found.append(SourceTerms(name, gamma, source.reward_weight, on_failure=source.on_failure))
    return {terms.name: terms for terms in found}


def _greedy(rewards: Rewards, mask_B_T: BoolArray, groups_B: IntArray) -> tuple[np.ndarray, BoolArray]:
    """Mean paid reward of the greedy response to each row's prompt, and where there is none."""
    paid = mask_B_T if rewards.paid is None else rewards.paid
    _, place = np.unique(groups_B, return_inverse=True)
    return paid_means(rewards.values, paid)[place], rewards.failed_B[place]
