"""Episodes of a red square that moves to a green goal (successes) or wanders in place (failures)."""

import numpy as np

from guerdon.types import Episode


def square_episode(seed, *, succeeds, size=32, length=12):
    rng = np.random.default_rng(seed)
    frames = np.full((length, size, size, 3), 40, np.uint8)
    frames += rng.integers(0, 8, frames.shape, dtype=np.uint8)
    goal = size - 9
    frames[:, goal : goal + 8, goal : goal + 8, 1] = 220
    y = rng.integers(0, size // 3)
    success = np.zeros(length, bool)
    for t in range(length):
        share = min(t / (length - 4), 1.0) if succeeds else 0.2 * rng.random()
        row, column = (round(start + share * (goal - start)) for start in (y, 2))
        frames[t, row : row + 8, column : column + 8] = (220, 30, 30)
        success[t] = share >= 1.0
    return Episode(id=f"{seed}", task="move", frames=frames, success=success, outcome=bool(success.any()))


def square_episodes(n, **options):
    return [square_episode(i, succeeds=i % 2 == 0, **options) for i in range(n)]
