"""How good is the policy, by ground truth alone: deterministic episodes from fixed starts, no reward model.

This module does not know what the policy was trained on.

    evaluate_policy(world, policy.actor(), episodes=20)["success"]
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from guerdon.collect.recorder import Recorder
from guerdon.types import BoolArray
from guerdon.worlds.world import Transition, World


class Decides(Protocol):
    """Anything that names its most likely action."""

    def mean(self, observations_B: np.ndarray) -> np.ndarray:
        """(B, A) most likely actions."""
        ...


def evaluate_policy(
    world: World, actor: Decides, *, episodes: int, recorder: Recorder | None = None, max_steps: int = 100_000
) -> dict[str, float]:
    """Run episodes from the world's own starts and report what really happened.

    Every copy contributes its first episodes in turn, so that short episodes are not over-represented.

    Args:
        world: it is reset, and its resets are decided by its seed.
        actor: the policy.
        episodes: how many; rounded up to a multiple of the copies.
        recorder: records exactly the episodes that count.
        max_steps: gives up on an environment that never ends an episode.

    Returns:
        `success` (share of episodes with success at any step), `success_at_end`, `return/env` (mean), `length`
        (mean), `episodes` and `success_known`: of how many of them the environment reported success, and over which
        the shares are taken. A share of none is absent.
    """
    per_copy = -(-episodes // world.num_envs)
    world.rewind()
    start = world.reset(capture=np.full(world.num_envs, recorder is not None))
    observations = start.observations
    _begin(recorder, start, np.zeros(world.num_envs, np.bool_))
    finished = np.zeros(world.num_envs, dtype=np.int64)
    once = np.zeros(world.num_envs, dtype=np.bool_)
    total = np.zeros(world.num_envs)
    length = np.zeros(world.num_envs, dtype=np.int64)
    results: list[tuple[bool | None, bool | None, float, int]] = []
    for _ in range(max_steps):
        actions = actor.mean(observations)
        transition = _step(world, actions, recorder)
        once |= transition.success
        total += transition.rewards
        length += transition.mask
        for i in np.flatnonzero(transition.done):
            if finished[i] < per_copy:
                at_end = transition.success_of(int(i))
                results.append((True if once[i] else at_end, at_end, float(total[i]), int(length[i])))
            finished[i] += 1
            once[i], total[i], length[i] = False, 0.0, 0
        _begin(recorder, transition, finished >= per_copy)
        observations = transition.observations
        if (finished >= per_copy).all():
            break
    if not results:
        return {"episodes": 0.0}
    found: dict[str, float] = {}
    for k, name in enumerate(("success", "success_at_end", "return/env", "length")):
        known = [value for row in results if (value := row[k]) is not None]
        if known:
            found[name] = float(np.mean(known))
    found["success_known"] = float(sum(row[0] is not None for row in results))
    return {**found, "episodes": float(len(results))}


def _step(world: World, actions: np.ndarray, recorder: Recorder | None) -> Transition:
    """One step, watched by the recorder if there is one."""
    if recorder is None:
        return world.step(actions)
    rows = world.steps_in_episode + 1
    capture = np.array([recorder.wants_row(r) for r in rows.tolist()])
    transition = world.step(actions, capture=capture, capture_ends=True)
    recorder.watch(rows, actions, transition)
    return transition


def _begin(recorder: Recorder | None, transition: Transition, enough: BoolArray) -> None:
    """Tell the recorder of the episodes that begin, in copies that have not given enough yet."""
    for i, look in transition.first_looks.items():
        if recorder is not None and not enough[i]:
            recorder.begin(i, transition.observations[i], look)
