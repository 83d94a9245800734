"""Scored frames as pictures in `resnet_success/` and `resnet_fail/`: the quickest way to see what a model believes.

It does not know the model; it gets pixels and probabilities.

    writer = DebugImages("debug", threshold=0.5)
    writer.save(frames_N_H_W_C, probabilities_N)   # debug/resnet_success/000000_prob0.9312.png
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from guerdon.types import ByteArray, FloatArray


class DebugImages:
    """Writes PNG files named `{id:06d}_prob{p:.4f}.png`; the ids go on where an earlier run stopped.

    Args:
        folder: receives `resnet_success/` and `resnet_fail/`, also of progress models.
        threshold: probabilities above it are a success.
    """

    def __init__(self, folder: str | Path, threshold: float) -> None:
        self.folders = {True: Path(folder) / "resnet_success", False: Path(folder) / "resnet_fail"}
        self.threshold = threshold
        for path in self.folders.values():
            path.mkdir(parents=True, exist_ok=True)
        used = [int(f.name[:6]) for p in self.folders.values() for f in p.glob("[0-9]*_prob*.png")]
        self.next_id = max(used, default=-1) + 1

    def save(self, frames_N_H_W_C: Iterable[ByteArray], probabilities_N: FloatArray) -> None:
        """Write one PNG for each frame; frames without a finite probability are skipped."""
        for frame, probability in zip(frames_N_H_W_C, probabilities_N, strict=True):
            if not np.isfinite(probability):
                continue
            folder = self.folders[bool(probability > self.threshold)]
            Image.fromarray(frame).save(folder / f"{self.next_id:06d}_prob{probability:.4f}.png", compress_level=1)
            self.next_id += 1
