"""What the language models' side writes down: rollouts as arrays, rows and facts for the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from guerdon.collect.text import Responses, TextRollout
from guerdon.policies.tokens import split_steps
from guerdon.rl.records import RewardedRollout
from guerdon.rl.text_advantages import VERIFIER
from guerdon.rl.text_steps import separator_of
from guerdon.types import Advantages, Rewards


def rewarded(rollout: TextRollout, rewards: Mapping[str, Rewards]) -> RewardedRollout:
    """The rollout with the rewards of every source."""
    batch, shape = rollout.inputs.batch, rollout.mask.shape
    return RewardedRollout(
        observations=batch.responses_B_T,
        actions=batch.responses_B_T.astype(np.float32),
        log_probs=rollout.log_probs,
        mask=rollout.mask,
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        success=rollout.success,
        success_known=rollout.success_known,
        rewards={name: r.values for name, r in rewards.items()},
        failed={name: r.failed & rollout.mask for name, r in rewards.items()},
        group_ids=np.repeat(rollout.groups_B[:, None], shape[1], axis=1),
    )


def response_rows(rollout: RewardedRollout, weights: Mapping[str, float], step: int) -> list[dict[str, Any]]:
    """One plain row per response: success, length, and what each source paid in sum; None where nobody knows."""
    failed = {name: np.asarray(flags.any(axis=1)) for name, flags in rollout.failed.items()}
    sums = {name: np.asarray(rewards.sum(axis=1)) for name, rewards in rollout.rewards.items()}
    rows = []
    for i in range(len(rollout.mask)):
        right = None if failed[VERIFIER][i] else bool(rollout.success[i].any())
        row: dict[str, Any] = {"step": step, "success": right, "success_at_end": right}
        row["length"] = int(rollout.mask[i].sum())
        for name, total in sums.items():
            row[f"return/{name}"] = None if failed[name][i] else round(float(total[i]), 6)
        known = [None if failed[n][i] else weights.get(n, 0.0) * float(sums[n][i]) for n in sums if weights.get(n)]
        row["return/combined"] = None if None in known else round(float(sum(k for k in known if k is not None)), 6)
        rows.append(row)
    return rows


def response_facts(responses: Responses) -> dict[str, float | None]:
    """Mean length in tokens, mean number of steps, separators per token: early signs of a reward that is hacked."""
    tokens = int(responses.batch.mask_B_T.sum())
    if not tokens:
        return {"response_length": None, "steps": None, "separator_rate": None}
    separator = separator_of(responses)
    return {
        "response_length": tokens / len(responses),
        "steps": float(np.mean([len(split_steps(text, separator)) for text in responses.texts])),
        "separator_rate": sum(text.count(separator) for text in responses.texts) / tokens,
    }


def advantage_facts(found: Advantages, weights: Mapping[str, float]) -> dict[str, float | None]:
    """Groups that taught nothing, and the weight of each source."""
    facts: dict[str, float | None] = {f"silent_groups/{k}": float(v) for k, v in found.silent_groups.items()}
    facts |= {f"flat_groups/{k}": float(v) for k, v in found.flat_groups.items()}
    return facts | {f"reward_weight/{k}": v for k, v in weights.items()}
