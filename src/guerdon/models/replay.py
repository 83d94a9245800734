"""A bounded, class-balanced memory of labelled frames.

Two reservoirs (Vitter 1985, algorithm R), one for positive and one for other frames, so that a stream of
failures cannot push the rare successes out. It does not know where frames come from or what they are for.

    replay = FrameReplay(capacity=2000, positive_above=0.5)
    replay.add(pixels_N_H_W_C, targets_N, rng)
    pixels, targets = replay.draw(32, rng)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from guerdon.types import ByteArray, FloatArray


class FrameReplay:
    """Two reservoirs of `capacity // 2` frames each.

    Args:
        capacity: frames kept in all, at least 2.
        positive_above: targets above it belong to the positive reservoir.
    """

    def __init__(self, capacity: int, positive_above: float) -> None:
        if capacity < 2:
            raise ValueError(f"a replay needs a capacity of at least 2 frames, got {capacity}")
        self.room = capacity // 2
        self.positive_above = positive_above
        self.pixels: list[list[ByteArray]] = [[], []]
        self.targets: list[list[float]] = [[], []]
        self.seen = [0, 0]

    def __len__(self) -> int:
        return len(self.targets[0]) + len(self.targets[1])

    def add(self, pixels_N_H_W_C: ByteArray, targets_N: FloatArray, rng: np.random.Generator) -> None:
        """Offer frames to the reservoirs: each frame of a class's stream is kept with equal probability."""
        for pixels, target in zip(pixels_N_H_W_C, targets_N, strict=True):
            side = int(target > self.positive_above)
            self.seen[side] += 1
            if len(self.targets[side]) < self.room:
                self.pixels[side].append(pixels.copy())
                self.targets[side].append(float(target))
                continue
            slot = int(rng.integers(self.seen[side]))
            if slot < self.room:
                self.pixels[side][slot] = pixels.copy()
                self.targets[side][slot] = float(target)

    def draw(self, n: int, rng: np.random.Generator) -> tuple[ByteArray, FloatArray]:
        """Draw with replacement, half from each reservoir (all from one when the other is empty).

        Args:
            n: frames wanted; at least one frame must have been added.
            rng: the source of randomness.

        Returns:
            (n, H, W, 3) uint8 and (n,) float32.
        """
        counts = [n - n // 2, n // 2]
        for side in (0, 1):
            if not self.targets[side]:
                counts = [0, n] if side == 0 else [n, 0]
        picks = [(side, int(i)) for side in (0, 1) for i in _choose(len(self.targets[side]), counts[side], rng)]
        pixels = np.stack([self.pixels[side][i] for side, i in picks])
        return pixels, np.array([self.targets[side][i] for side, i in picks], np.float32)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The contents as arrays, by name, for a checkpoint; empty reservoirs are left out."""
        named: dict[str, NDArray[Any]] = {}
        for side in (0, 1):
            if self.targets[side]:
                named[f"pixels.{side}"] = np.stack(self.pixels[side])
                named[f"targets.{side}"] = np.array(self.targets[side], np.float32)
        return named

    def restore(self, arrays: dict[str, NDArray[Any]], seen: list[int]) -> None:
        """Take over contents that `arrays` gave, and the counts of frames seen."""
        self.pixels = [list(arrays.get(f"pixels.{side}", ())) for side in (0, 1)]
        self.targets = [[float(t) for t in arrays.get(f"targets.{side}", ())] for side in (0, 1)]
        self.seen = list(seen)


def _choose(size: int, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return rng.integers(size, size=n) if n else np.empty(0, np.int64)
