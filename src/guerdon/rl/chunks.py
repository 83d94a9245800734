"""Decisions with several parts in the learner: chunks of C actions, each with D log-probabilities.

A rollout keeps rewards, masks and ends per environment step. `reward_type` says where credit is given (the names are
RLinf's): with `chunk_level` a decision is one step of the estimator, with `action_level` each executed action is.
`logprob_type` says what has a probability ratio of its own in the loss: each token, each action (the sum of its
tokens) or each chunk (the sum of its executed actions). Actions that were not executed, because the episode or the
rollout ended before, are in no sum, no mean and no gradient.

    steps, sources = per_decision(rollout, steps, sources)  # chunk_level
    rows = decision_rows(rollout, estimate_advantages(sources, steps, estimator="gae"), settings)
    batch = make_batch(inputs, rows.mask, rows.found, old=rows.log_probs, parts=rows.parts)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from guerdon.rl.advantages import SourceRewards, Steps
from guerdon.rl.losses import sum_parts
from guerdon.settings.algorithm import AlgorithmSettings
from guerdon.types import Advantages, BoolArray, Chunks, FloatArray, Inputs, Rollout


class DecisionRows(NamedTuple):
    """R decisions as a gradient step takes them: K probability ratios each.

    Attributes:
        mask: (R, K) where something was executed.
        found: advantages (R, K); value targets and where they are known (R,).
        log_probs: (R, K) of the policy that acted.
        parts: (R, C * D) where a log-probability is of an executed action.
    """

    mask: BoolArray
    found: Advantages
    log_probs: FloatArray
    parts: BoolArray


def decision_mask(chunks: Chunks) -> BoolArray:
    """(B, K) where stream b has a k-th decision. Row by row, its true entries are the R decisions in their order."""
    counts_B = (chunks.slot == 0).sum(axis=1)
    return np.asarray(np.arange(counts_B.max(initial=0)) < counts_B[:, None])


def per_decision(
    rollout: Rollout[Inputs], steps: Steps, sources: Mapping[str, SourceRewards]
) -> tuple[Steps, dict[str, SourceRewards]]:
    """Decisions in the place of steps: (B, K) arrays for the estimators, which are the same for both.

    The reward of a decision is the sum of the rewards of its executed actions; the decision ends an episode, or lacks a
    measurement, if one of them does. Discounts are per decision, as in RLinf: with V the value of what a decision saw,
    delta_k = sum_j r_kj + gamma V_{k+1} (1 - terminated_k) - V_k, where V_{k+1} is that of the terminal observation if
    a time limit ended the episode inside the chunk.

    Args:
        rollout: with chunks.
        steps: (B, T).
        sources: (B, T) rewards.
    """
    chunks = rollout.chunks
    assert chunks is not None
    taken, mask = rollout.mask, decision_mask(chunks)
    of = chunks.decision[taken]

    def grid(values_R: np.ndarray) -> np.ndarray:
        found = np.zeros(mask.shape, values_R.dtype)
        found[mask] = values_R
        return found

    def total(values_B_T: np.ndarray) -> np.ndarray:
        sums = np.bincount(of, weights=values_B_T[taken], minlength=len(rollout.inputs))
        return grid(sums.astype(np.float32))

    def anywhere(flags_B_T: BoolArray | None) -> BoolArray | None:
        if flags_B_T is None:
            return None
        return grid(np.bincount(of, weights=flags_B_T[taken], minlength=len(rollout.inputs)) > 0)

    found: dict[str, SourceRewards] = {}
    for name, source in sources.items():
        paid = np.ones_like(taken) if source.paid_B_T is None else source.paid_B_T
        paid = paid if source.failed_B_T is None else paid & ~source.failed_B_T
        values, following = rollout.values.get(name), rollout.next_values.get(name)
        found[name] = replace(
            source,
            rewards_B_T=total(np.where(paid, source.rewards_B_T, 0.0)),
            paid_B_T=anywhere(source.paid_B_T),
            failed_B_T=anywhere(source.failed_B_T),
            values_B_T=None if values is None else grid(values),
            next_values_B_T=None if following is None else grid(following),
        )
    ends = anywhere(steps.terminated_B_T), anywhere(steps.truncated_B_T)
    return Steps(mask, *ends, steps.groups_B), found


def decision_rows(rollout: Rollout[Inputs], found: Advantages, settings: AlgorithmSettings) -> DecisionRows:
    """Decisions with advantages as rows of a gradient step, at the level of `algorithm.logprob_type`.

    Args:
        rollout: with chunks.
        found: advantages of decisions (B, K), or of steps (B, T) with reward_type action_level.
        settings: the `algorithm` section.
    """
    chunks, taken = rollout.chunks, rollout.mask
    assert chunks is not None
    here = chunks.decision[taken], chunks.slot[taken]
    executed = np.zeros((len(rollout.inputs), chunks.size), dtype=np.bool_)
    executed[here] = True
    parts = np.repeat(executed, chunks.tokens, axis=1)
    by_chunk = settings.by_chunk
    decisions = decision_mask(chunks) if by_chunk else None
    match settings.logprob_type:
        case "token_level":
            mask = parts
        case "chunk_level":
            mask = np.ones((len(executed), 1), dtype=np.bool_)
        case _:
            mask = executed

    def rows(array: np.ndarray) -> np.ndarray:
        if decisions is not None:
            return np.asarray(array[decisions])
        found = np.zeros(executed.shape, array.dtype)
        found[here] = array[taken]
        return np.repeat(found, mask.shape[1] // chunks.size, axis=1)

    advantages = rows(found.advantages)
    advantages = advantages[:, None] if advantages.ndim == 1 else advantages
    log_probs = sum_parts(torch.from_numpy(rollout.log_probs), torch.from_numpy(parts), mask.shape[1]).numpy()
    return DecisionRows(
        mask,
        replace(
            found,
            advantages=np.where(mask, advantages, np.float32(0)),
            value_targets={name: rows(array) for name, array in found.value_targets.items()},
            known={name: rows(array) for name, array in found.known.items()},
        ),
        log_probs,
        parts,
    )
