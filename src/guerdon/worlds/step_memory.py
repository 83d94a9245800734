"""Memory that two processes share for what a step of some copies takes and gives, so that nothing of it is sent.

descriptor = new_memory()                                   # in the parent; the child inherits it
memory = StepMemory(descriptor, 2, observation_space, action_space)     # the same in both
memory.actions[:] = actions
"""

from __future__ import annotations

import mmap
import os
import tempfile
from math import prod

import gymnasium
import numpy as np

_ALIGNED = 64  # bytes: every array begins at a multiple of this


def new_memory() -> int:
    """The descriptor of empty memory without a name; it is freed with its last user."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("guerdon-steps")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class StepMemory:
    """Arrays of n copies in shared memory.

    Attributes:
        actions: (n, ...).
        observations: (n, ...).
        rewards: (n,) float32.
        terminated, truncated: (n,) bool.

    Args:
        descriptor: of `new_memory`; it may be closed afterwards.
        copies: n.
        observation_space: of one copy.
        action_space: of one copy.
    """

    def __init__(
        self, descriptor: int, copies: int, observation_space: gymnasium.Space, action_space: gymnasium.Space
    ) -> None:
        one = ((), np.float32)
        flags = ((), np.bool_)
        spaces = [(space.shape or (), space.dtype) for space in (action_space, observation_space)]
        shapes = [((copies, *shape), np.dtype(dtype)) for shape, dtype in (*spaces, one, flags, flags)]
        places, size = [], 0
        for shape, dtype in shapes:
            places.append(size)
            size += -(-prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED
        if os.fstat(descriptor).st_size < size:
            os.truncate(descriptor, size)
        shared = mmap.mmap(descriptor, size)
        self.actions, self.observations, self.rewards, self.terminated, self.truncated = (
            np.ndarray(shape, dtype, shared, place) for (shape, dtype), place in zip(shapes, places, strict=True)
        )
