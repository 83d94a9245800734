"""Targets of a policy's auxiliary heads: what reward models say of the moments that the policy observes.

A head predicts the value of one source before each decision (`algorithm.auxiliary_losses`), so that the features of the
policy hold what the reward model looks at (auxiliary tasks: Jaderberg et al. 2017, 1611.05397). The loss is half the
mean squared error over the decisions whose moment was scored.

    values_B_T, known_B_T = observation_values(rewards["prm"].scores, rollout.mask)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from guerdon.types import BoolArray, FloatArray, Inputs, RawScores, Rewards, Rollout


def observation_values(scores: RawScores | None, mask_B_T: BoolArray) -> tuple[FloatArray, BoolArray]:
    """What a model said of the moment before each decision.

    A moment after step t is the one before decision t + 1 of the same rollout, if the episode goes on.

    Args:
        scores: of single moments.
        mask_B_T: where there is a decision.

    Returns:
        (B, T) values, 0 where there is none, and (B, T) bool, where there is one.
    """
    values, known = np.zeros(mask_B_T.shape, dtype=np.float32), np.zeros(mask_B_T.shape, dtype=np.bool_)
    if scores is not None:
        before = scores.steps_N + 1
        ends = np.zeros(len(before), dtype=np.bool_) if scores.last_N is None else scores.last_N
        goes_on = (before < mask_B_T.shape[1]) & ~ends
        places = scores.rows_N[goes_on], before[goes_on]
        values[places], known[places] = scores.values_N[goes_on], True
    return np.where(mask_B_T, values, np.float32(0)), known & mask_B_T


def auxiliary_targets(
    names: Iterable[str], rewards: Mapping[str, Rewards], rollout: Rollout[Inputs]
) -> dict[str, tuple[FloatArray, BoolArray]]:
    """`observation_values` of several sources, by name: (B, T), or of each of R decisions with chunks."""
    found = {name: observation_values(rewards[name].scores, rollout.mask) for name in names}
    if rollout.chunks is None:
        return found
    begins = rollout.chunks.slot == 0  # in the order of the decisions
    return {name: (values[begins], known[begins]) for name, (values, known) in found.items()}
