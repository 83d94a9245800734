"""The actions of the episodes under way in B copies of a world, from which a checkpoint finds its simulators again.

history = ActionHistory(num_envs=2)
history.add(actions_B_A)
history.forget(np.array([True, False]))     # an episode begins in copy 0
history.of_copies()                         # [(0, 1), (1, A)]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from guerdon.types import BoolArray


class ActionHistory:
    """One array for each step of all copies, since the oldest episode under way began.

    Args:
        num_envs: B.
    """

    def __init__(self, num_envs: int) -> None:
        self._steps: list[np.ndarray] = []
        self._began = np.zeros(num_envs, dtype=np.int64)  # each copy's episode, as a place in `_steps`

    def add(self, actions_B_A: np.ndarray) -> None:
        """A step; the array is kept."""
        self._steps.append(actions_B_A)

    def forget(self, copies_B: BoolArray) -> None:
        """These copies begin an episode."""
        self._began[copies_B] = len(self._steps)
        oldest = int(self._began.min())
        self._began -= oldest
        del self._steps[:oldest]

    def of_copies(self) -> list[np.ndarray]:
        """(T, A) of each copy, T steps into its episode; (0, 1) where that just began."""
        count = len(self._steps)
        return [
            np.array([step[i] for step in self._steps[began:]]) if began < count else np.zeros((0, 1))
            for i, began in enumerate(self._began.tolist())
        ]

    def restore(self, pasts: Sequence[np.ndarray]) -> None:
        """Return to what `of_copies` gave."""
        longest = max(len(past) for past in pasts)
        one = next((past[0] for past in pasts if len(past)), np.zeros(1))
        self._began = np.array([longest - len(past) for past in pasts], dtype=np.int64)
        self._steps = [np.zeros((len(pasts), *one.shape), dtype=one.dtype) for _ in range(longest)]
        for i, past in enumerate(pasts):
            for step, action in zip(self._steps[longest - len(past) :], past, strict=True):
                step[i] = action
