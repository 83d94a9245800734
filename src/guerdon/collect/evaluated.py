"""Log-probabilities and values of responses, by a policy that may be another one than wrote them.

What an engine of generation computes differs from what training computes: other kernels, other rounding, and with
`top_p` and `top_k` another distribution. So the policy that learns evaluates the responses of such an engine itself.

    collector = EvaluatedCollector(collector, heads=(), micro=64)      # of a run whose generation.engine is vllm
    rollout = collector.collect(policy)
    rollout.log_probs, rollout.sampled_log_probs                        # the learner's, the engine's
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from guerdon.policies.language.text import TextPolicy
from guerdon.processes.progress import timed
from guerdon.types import Rollout


def evaluated(
    policy: TextPolicy,
    rollout: Rollout[Any],
    *,
    micro: int,
    temperature: float | None = None,
    log_probs: bool = True,
    heads: Sequence[str] = (),
) -> Rollout[Any]:
    """A rollout with what a policy says of it, in one pass.

    Args:
        policy: evaluates.
        rollout: of text; its log-probabilities become those that were sampled (`sampled_log_probs`).
        micro: responses at a time.
        temperature: divides the logits; None: that of the policy.
        log_probs: whether they are wanted.
        heads: names of the value heads, where their values are wanted.
    """
    if not log_probs and not heads:
        return rollout
    found = policy.evaluate_all(rollout.inputs.batch, micro=micro, temperature=temperature)
    if log_probs:
        rollout = replace(rollout, log_probs=found.log_probs.numpy(), sampled_log_probs=rollout.log_probs)
    if heads and found.values is not None:
        values = found.values.numpy()
        if rollout.conversations:  # of a call: before its first token
            values = values[:, :1].sum(axis=1)
        rollout = replace(rollout, values={name: values[..., k] for k, name in enumerate(heads)})
    return rollout


class EvaluatedCollector:
    """A collector whose responses an engine wrote, evaluated by the policy that learns: what training computes.

    The metric `rollout_gap_p99` is the 99th percentile of the absolute difference between its log-probabilities and
    the engine's, over the tokens of a rollout.

    Args:
        collector: writes.
        heads: names of the policy's value heads.
        micro: responses at a time.
    """

    def __init__(self, collector: Any, heads: Sequence[str], micro: int) -> None:
        self.collector, self.heads, self._micro = collector, tuple(heads), micro
        self.state, self.restore, self.close = collector.state, collector.restore, collector.close

    def collect(self, policy: TextPolicy, *, version: int = 0, warm_up: bool = False) -> Rollout[Any]:
        """The next rollout: see `Collector.collect`."""
        rollout = self.collector.collect(policy, version=version, warm_up=warm_up)
        seconds = dict(rollout.seconds)
        with timed(seconds, "old log-probs"):
            rollout = evaluated(policy, rollout, micro=self._micro, heads=() if warm_up else self.heads)
            if rollout.greedy is not None:
                rollout = replace(rollout, greedy=evaluated(policy, rollout.greedy, micro=self._micro))
        assert rollout.sampled_log_probs is not None
        gap = np.abs(rollout.log_probs - rollout.sampled_log_probs)[rollout.mask]
        metrics = {**rollout.metrics, "rollout_gap_p99": float(np.quantile(gap, 0.99)) if gap.size else None}
        return replace(rollout, seconds=seconds, metrics=metrics)

    def show(self, policy: TextPolicy, *, greedy: bool = False, **given: Any) -> Rollout[Any] | None:
        """Answers to the first validation prompts: see `TextCollector.show`."""
        found = self.collector.show(policy, greedy=greedy, **given)
        return found if found is None or greedy else evaluated(policy, found, micro=self._micro)


def evaluation(found: Rollout[Any] | None) -> dict[str, float]:
    """The results of greedy answers to validation prompts.

    Returns:
        `success` (share of right answers among those that could be verified), `length` (mean, in tokens), `truncated`
        (share), `unchecked` (share), `episodes` (prompts) and `success_known` (those that could be verified).
    """
    if found is None:
        return {"episodes": 0.0}
    known = found.known_B
    result = {
        "length": float(found.mask.sum(axis=1).mean()),
        "truncated": float((~found.inputs.ended_B).mean()),
        "unchecked": float((~known).mean()),
        "episodes": float(len(known)),
        "success_known": float(known.sum()),
    }
    return {"success": float(found.success[known].any(axis=1).mean()), **result} if known.any() else result
