"""A reward model whose scores depend in their last digits on what is scored together, in a process that dies or hangs.

`model_type: judge:make` with `params: {folder: FOLDER, text: false}`.
"""

import os
import signal
from pathlib import Path

import numpy as np
import torch

from guerdon.types import Failure, RewardInfo, Score


def make(folder, text=False, device=None):
    return Judge(Path(folder), text)


class Judge:
    """Kills its process once for every file `kill*` in `folder`, stops it for every `stop*`; some fail."""

    def __init__(self, folder, text):
        self.folder = folder
        self.info = RewardInfo(
            name="judge", range=(0, 1), granularity="total" if text else "step", success_threshold=0.5,
            modality="text" if text else "image", frames_needed=0 if text else 1,
        )  # fmt: skip
        self.weights = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))

    def score(self, episodes):
        for name, how in (("kill*", signal.SIGKILL), ("stop*", signal.SIGSTOP)):
            for order in sorted(self.folder.glob(name))[:1]:
                order.unlink()
                os.kill(os.getpid(), how)
        given = ["".join(e.texts).encode() if e.texts else e.frames.tobytes() for e in episodes]
        longest = max(map(len, given))
        padded = np.zeros((len(given), longest), dtype=np.float32)
        for row, data in zip(padded, given, strict=True):
            row[: len(data)] = np.frombuffer(data, np.uint8)
        values = torch.sigmoid((torch.from_numpy(padded) @ self.weights[:longest]).mean(dim=1) / 100).tolist()
        return [self._score(sum(data) % 11, value) for data, value in zip(given, values, strict=True)]

    def _score(self, number, value):
        if number == 3:
            return Score(failure=Failure("broken", "as ordered"))
        return Score(total=value) if self.info.modality == "text" else Score.from_values(np.array([value]))
