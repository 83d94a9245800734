"""Small parts of the language models' side: who writes, the verifier's stream, rows for the log.

This module does not hold any state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from guerdon.policies.generate import Engine, LocalEngine
from guerdon.policies.text import TextPolicy
from guerdon.rl.baselines import last_valid
from guerdon.rl.responses import Responses
from guerdon.rl.sources import Measured
from guerdon.rl.text_rewards import Stream
from guerdon.settings.text_policy import GenerationSettings
from guerdon.types import Failure, Rollout


def build_engine(policy: TextPolicy, settings: GenerationSettings) -> Engine:
    """Who writes: this process, or vLLM in it.

    Raises:
        MissingDependencyError: vLLM is asked for and not installed.
    """
    if settings.engine == "local":
        return LocalEngine(policy, settings)
    from guerdon.policies.generate_vllm import VLLMEngine

    return VLLMEngine(policy, settings)


def outcome_stream(answered: Responses) -> Stream:
    """The verifier's outcome at the last token of each response."""
    last = last_valid(answered.batch.mask_B_T)
    paid = np.where(last, answered.outcomes_B[:, None], 0.0).astype(np.float32)
    return Stream(paid, last, dict(answered.failures))


def response_rows(rollout: Rollout, weights: Mapping[str, float], step: int) -> list[dict[str, Any]]:
    """One plain row per response: success, length, and what each source paid in sum; None where it failed."""
    failed = {name: np.asarray(flags.any(axis=1)) for name, flags in rollout.failed.items()}
    sums = {name: np.asarray(rewards.sum(axis=1)) for name, rewards in rollout.rewards.items()}
    rows = []
    for i in range(len(rollout.mask)):
        right = bool(rollout.success[i].any())
        row: dict[str, Any] = {"step": step, "success": right, "success_at_end": right}
        row["length"] = int(rollout.mask[i].sum())
        for name, total in sums.items():
            row[f"return/{name}"] = None if failed[name][i] else round(float(total[i]), 6)
        known = [None if failed[n][i] else weights.get(n, 0.0) * float(sums[n][i]) for n in sums]
        row["return/combined"] = None if None in known else round(float(sum(k for k in known if k is not None)), 6)
        rows.append(row)
    return rows


def measured_by(stream: Stream, scored: int, failures: list[tuple[int, int, Failure]]) -> Measured:
    """What the loop counts of one source."""
    failed = np.repeat(stream.failed_B[:, None], stream.rewards_B_T.shape[1], axis=1)
    return Measured(stream.rewards_B_T, failed, [], failures, scored)
