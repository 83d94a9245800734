"""From a trace to a `Rollout`: reward sources measured, behaviour log-probabilities and values filled in.

Log-probabilities and values of a whole rollout are computed in one batch with the policy that acted; acting itself
needs neither. This module does not update anything but the sources' own memory.

    measured = measure_all(sources, segments, trace.mask.shape)
    rollout = make_rollout(trace, measured, policy, group_size=None)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from guerdon.policies.control import ControlPolicy
from guerdon.rl.rollout import Trace
from guerdon.rl.sources import Source
from guerdon.types import Rewards, Rollout, Segment


def measure_all(
    sources: Mapping[str, Source],
    segments: Sequence[Segment],
    shape_B_T: tuple[int, int],
) -> dict[str, Rewards]:
    """What every source says about the same segments."""
    return {name: source.measure(segments, shape_B_T) for name, source in sources.items()}


@torch.no_grad()
def make_rollout(
    trace: Trace, measured: Mapping[str, Rewards], policy: ControlPolicy, *, group_size: int | None
) -> Rollout:
    """Put everything about a trace together.

    Args:
        trace: what happened.
        measured: what the sources say.
        policy: the one that acted.
        group_size: neighbouring copies that started alike, for group-relative advantages.
    """
    b, t = trace.mask.shape
    n = b * t
    x = policy.prepare(trace.observations.reshape(n, *trace.observations.shape[2:]))
    log_probs = policy.log_prob(x, torch.from_numpy(trace.actions.reshape(n, -1))).numpy().reshape(b, t)
    values: dict[str, np.ndarray] = {}
    next_values: dict[str, np.ndarray] = {}
    if policy.vf is not None:
        v = policy.value(x).numpy().reshape(b, t, -1)
        last = policy.value(policy.prepare(trace.last_observations)).numpy()
        following = np.concatenate([v[:, 1:], last[:, None]], axis=1)
        if trace.finals:
            finals = policy.value(policy.prepare(np.stack(list(trace.finals.values())))).numpy()
            for (i, step), value in zip(trace.finals, finals, strict=True):
                following[i, step] = value
        for k, name in enumerate(policy.sources):
            values[name] = np.ascontiguousarray(v[..., k])
            next_values[name] = np.ascontiguousarray(following[..., k])
    groups = None
    if group_size is not None:
        groups = np.repeat((np.arange(b) // group_size)[:, None], t, axis=1).astype(np.int64)
    return Rollout(
        observations=trace.observations,
        actions=trace.actions,
        log_probs=log_probs,
        mask=trace.mask,
        terminated=trace.terminated,
        truncated=trace.truncated,
        success=trace.success,
        success_known=trace.success_known,
        rewards={"env": trace.env_rewards, **{n_: m.values for n_, m in measured.items()}},
        failed={n_: m.failed for n_, m in measured.items()},
        values=values,
        next_values=next_values,
        group_ids=groups,
    )
