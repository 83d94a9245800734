"""Small episodes with known content, and exact comparison, for the tests of this folder."""

from __future__ import annotations

import numpy as np

from guerdon.types import Episode

TASKS = ("close the window", "press the button")


def sample(number: int, *, length: int = 4, height: int = 8, width: int = 10, **changes) -> Episode:
    """An episode with every robot column, a function of its number only."""
    random = np.random.default_rng(number)
    actions = random.normal(size=(length, 4)).astype(np.float32)
    rewards = random.normal(size=length).astype(np.float32)
    actions[0] = rewards[0] = 0
    fields = {
        "id": f"episode-{number}",
        "task": TASKS[number % 2],
        "frames": random.integers(0, 256, size=(length, height, width, 3), dtype=np.uint8),
        "states": random.normal(size=(length, 3)).astype(np.float32),
        "actions": actions,
        "rewards": rewards,
        "success": np.arange(length) == length - 1 if number % 2 else np.zeros(length, dtype=bool),
        "outcome": bool(number % 2),
        "meta": {"seed": number},
    }
    return Episode(**(fields | changes))


def assert_equal(left: Episode, right: Episode) -> None:
    assert (left.id, left.task, left.outcome, dict(left.meta)) == (
        right.id,
        right.task,
        right.outcome,
        dict(right.meta),
    )
    assert left.columns().keys() == right.columns().keys()
    for name, column in left.columns().items():
        other = right.columns()[name]
        assert column.dtype == other.dtype, name
        np.testing.assert_array_equal(column, other, err_msg=name)
