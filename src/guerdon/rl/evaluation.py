"""How good is the policy, by ground truth alone: deterministic episodes from fixed starts, no reward model.

This module does not know what the policy was trained on.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from guerdon.worlds.world import World


class Decides(Protocol):
    """Anything that names its most likely action."""

    def mean(self, observations_B: np.ndarray) -> np.ndarray:
        """(B, A) most likely actions."""
        ...


def evaluate_policy(world: World, actor: Decides, *, episodes: int, max_steps: int = 100_000) -> dict[str, float]:
    """Run episodes from the world's own starts and report what really happened.

    Every copy contributes its first episodes in turn, so that short episodes are not over-represented.

    Args:
        world: it is reset, and its resets are decided by its seed.
        actor: the policy.
        episodes: how many; rounded up to a multiple of the copies.
        max_steps: gives up on an environment that never ends an episode.

    Returns:
        `success` (share of episodes with success at any step), `success_at_end`, `return/env` (mean), `length`
        (mean) and `episodes`.
    """
    per_copy = -(-episodes // world.num_envs)
    world.rewind()
    observations = world.reset(capture=np.zeros(world.num_envs, np.bool_)).observations
    finished = np.zeros(world.num_envs, dtype=np.int64)
    once = np.zeros(world.num_envs, dtype=np.bool_)
    total = np.zeros(world.num_envs)
    length = np.zeros(world.num_envs, dtype=np.int64)
    results: list[tuple[bool, bool, float, int]] = []
    for _ in range(max_steps):
        transition = world.step(actor.mean(observations))
        once |= transition.success
        total += transition.rewards
        length += transition.mask
        for i in np.flatnonzero(transition.done):
            if finished[i] < per_copy:
                results.append((bool(once[i]), bool(transition.success[i]), float(total[i]), int(length[i])))
            finished[i] += 1
            once[i], total[i], length[i] = False, 0.0, 0
        observations = transition.observations
        if (finished >= per_copy).all():
            break
    table = np.array(results, dtype=np.float64).reshape(-1, 4)
    if not len(table):
        return {"episodes": 0.0}
    success, at_end, returns, lengths = table.mean(axis=0)
    return {
        "success": float(success),
        "success_at_end": float(at_end),
        "return/env": float(returns),
        "length": float(lengths),
        "episodes": float(len(table)),
    }
