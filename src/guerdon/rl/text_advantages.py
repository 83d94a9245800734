"""From the reward streams of a batch of responses to token advantages.

This module does not know how rewards were measured or what is done with advantages.

    found = advise(study, mask_B_T, groups_B, streams, weights, values=None)
    found.advantages_B_T
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from guerdon.rl.advantages import SourceRewards, Steps, estimate_advantages, paid_means
from guerdon.rl.text_streams import Stream
from guerdon.settings.study import Study
from guerdon.settings.text_sources import SECTION_NAMES
from guerdon.types import Advantages, BoolArray, FloatArray, IntArray

VERIFIER, KL = "verifier", "kl"


@dataclass(frozen=True, eq=False)
class Greedy:
    """What sources say of the greedy responses, one per prompt in the order of the prompts' ids (ReMax).

    Attributes:
        mask_B_T: their valid tokens.
        streams: rewards by source.
    """

    mask_B_T: BoolArray
    streams: Mapping[str, Stream]


def kl_stream(log_probs_B_T: FloatArray, ref_log_probs_B_T: FloatArray, mask_B_T: BoolArray) -> Stream:
    """The KL from a reference as a reward: -(log pi - log ref) of each token (k1, unbiased)."""
    return Stream(np.where(mask_B_T, ref_log_probs_B_T - log_probs_B_T, np.float32(0)).astype(np.float32))


def advise(
    study: Study,
    mask_B_T: BoolArray,
    groups_B: IntArray,
    streams: Mapping[str, Stream],
    weights: Mapping[str, float],
    *,
    greedy: Greedy | None = None,
    values: Mapping[str, FloatArray] | None = None,
) -> Advantages:
    """Advantages of every source, added with their weights.

    A response on which a model failed is left out of that source; where the source's `on_failure` is neutral, it is
    paid 0 and counts like any other. The verifier's failures are always left out.

    Args:
        study: estimator, discounts, what a failure means.
        mask_B_T: valid tokens.
        groups_B: responses to one prompt share an id.
        streams: source name to rewards; `kl` is not standardised.
        weights: source name to weight.
        greedy: for `remax`.
        values: source name to (B, T) values, for `gae`.
    """
    algorithm, policies = study.text_algorithm, failure_policies(study)
    sources: dict[str, SourceRewards] = {}
    for name, stream in streams.items():
        beside, beside_failed = (None, None) if greedy is None else _greedy(greedy, name, groups_B)
        neutral = policies.get(name) == "neutral"
        sources[name] = SourceRewards(
            rewards_B_T=stream.rewards_B_T,
            gamma=discount_of(study, name),
            weight=weights[name],
            paid_B_T=stream.pays_B_T,
            failed_B_T=None if neutral else np.repeat(stream.failed_B[:, None], mask_B_T.shape[1], axis=1),
            standardize=name != KL,
            greedy_B=beside,
            greedy_failed_B=None if neutral else beside_failed,
            values_B_T=None if values is None else values[name],
        )
    return estimate_advantages(
        sources,
        Steps(mask_B_T, groups_B=groups_B),
        estimator=algorithm.adv_estimator,
        form=algorithm.rloo_form,
        whitened=algorithm.normalize_advantages,
        lam=algorithm.gae_lambda,
    )


def failure_policies(study: Study) -> dict[str, str]:
    """What a failed measurement means, of every source beside the verifier."""
    section = study.reward_model
    own = {} if section is None else {SECTION_NAMES[section.rm_type]: str(section.on_failure)}
    return own | {name: source.on_failure for name, source in study.text_sources.items()}


def discount_of(study: Study, name: str) -> float:
    """The discount per token of a source."""
    algorithm, source = study.text_algorithm, study.text_sources.get(name)
    if source is not None:
        return algorithm.gamma if source.gamma is None else source.gamma
    return {VERIFIER: algorithm.verifier_gamma, KL: algorithm.gamma}.get(name, algorithm.reward_model_gamma)


def weights_of(study: Study, progress: float) -> dict[str, float]:
    """Weight of each source in the advantage when so much of the run is over."""
    section, sources = study.reward_model, study.text_sources
    found = {VERIFIER: study.reward.env_weight() if sources else 1.0}
    if section is not None:
        scale = {"constant": 1.0, "linear_decay": 1.0 - progress, "linear_warmup": progress}
        factor = max(0.0, scale[section.rm_coef_schedule])
        found = {VERIFIER: section.verifier_coef, SECTION_NAMES[section.rm_type]: section.rm_coef * factor}
    return found | {name: source.reward_weight for name, source in sources.items()}


def _greedy(greedy: Greedy, name: str, groups_B: IntArray) -> tuple[np.ndarray, BoolArray]:
    """Mean paid reward of the greedy response to each row's prompt, and where there is none."""
    stream = greedy.streams[name]
    pays = greedy.mask_B_T if stream.pays_B_T is None else stream.pays_B_T
    _, place = np.unique(groups_B, return_inverse=True)
    return paid_means(stream.rewards_B_T, pays)[place], stream.failed_B[place]
