"""Values of a reward model used again for frames that look alike (`reward.sources.<name>.cache`).

A frame is known by a difference hash: the signs of brightness differences between neighbouring cells of a coarse grid.
A value that was measured of another frame is not a measurement of this one, so it is marked, and a share of such frames
are scored anyway: the difference is the error of the cache, which is logged. A failed measurement is never used again.

    cache = FrameCache(CacheSettings(tolerance=4), np.random.default_rng(0))
    scores, reused_N = cache.score(episodes, model.score)      # episodes of one frame each
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from guerdon.settings.reward import CacheSettings
from guerdon.types import BoolArray, ByteArray, Episode, Metrics, Score

_BITS_SET = np.array([bin(i).count("1") for i in range(1 << 16)], dtype=np.uint8)
HASH_SIZE = 16  # rows of the grid that a frame is reduced to
CHECK_SHARE = 0.05  # of the hits are scored anyway
_NOT_SCORED = -1  # of an entry that is not waiting for its value; of a task: the entry is empty


def difference_hash(frame_H_W_3: ByteArray, size: int) -> np.ndarray:
    """(size * size / 16,) uint16, the bits of the difference hash: whether a cell is brighter than its left neighbour.

    Args:
        frame_H_W_3: a picture.
        size: rows of the grid; it has one column more.
    """
    grey = Image.fromarray(frame_H_W_3).convert("L").resize((size + 1, size), Image.Resampling.BOX)
    cells = np.asarray(grey, dtype=np.int16)
    return np.packbits(cells[:, 1:] > cells[:, :-1]).view(np.uint16)


class FrameCache:
    """Measured values by the hashes of their frames, of each task apart.

    Args:
        settings: how alike frames must be, and how many are kept.
        rng: draws the frames that are scored anyway.
    """

    def __init__(self, settings: CacheSettings, rng: np.random.Generator) -> None:
        self.settings, self.rng = settings, rng
        self._keys = np.zeros((settings.size, HASH_SIZE**2 // 16), dtype=np.uint16)
        self._values = np.zeros(settings.size, dtype=np.float32)
        self._task = np.full(settings.size, _NOT_SCORED, dtype=np.int64)
        self._waiting = np.full(settings.size, _NOT_SCORED, dtype=np.int64)
        self._tasks: list[str] = []
        self._added = 0
        self._checked, self._error, self._worst = 0, 0.0, 0.0
        self._last = (0, 0)

    def score(
        self, episodes: Sequence[Episode], score: Callable[[Sequence[Episode]], list[Score]]
    ) -> tuple[list[Score], BoolArray]:
        """Scores of frames, and which of them are values of other frames.

        Args:
            episodes: of one frame each.
            score: measures such episodes; called once, and once more where a value that others wait for failed.
        """
        found: list[Score | None] = [None] * len(episodes)
        owners: dict[int, int] = {}  # frames that are scored and kept, and their entries
        alike: dict[int, float | int] = {}  # a value, or the number of the frame that is being scored
        ask: list[int] = []
        for i, episode in enumerate(episodes):
            assert episode.frames is not None
            key, task = difference_hash(episode.frames[0], HASH_SIZE), self._number(episode.task)
            entry = self._nearest(key, task)
            if entry is None:
                owners[i] = self._add(key, task, i)
                ask.append(i)
                continue
            owner = int(self._waiting[entry])
            alike[i] = float(self._values[entry]) if owner == _NOT_SCORED else owner
            if self.rng.random() < CHECK_SHARE:
                ask.append(i)
        for i, one in zip(ask, score([episodes[i] for i in ask]) if ask else [], strict=True):
            found[i] = one
        for i, entry in owners.items():
            if self._waiting[entry] == i:  # not yet overwritten by a newer one
                steps = _value(found[i])
                self._waiting[entry] = _NOT_SCORED
                self._task[entry] = _NOT_SCORED if steps is None else self._task[entry]
                self._values[entry] = 0.0 if steps is None else steps
        reused = np.zeros(len(episodes), dtype=np.bool_)
        for i, other in alike.items():
            value = other if isinstance(other, float) else _value(found[other])
            own = _value(found[i])
            if value is not None and own is not None:
                self._checked += 1
                self._error += abs(own - value)
                self._worst = max(self._worst, abs(own - value))
            elif value is not None and found[i] is None:
                found[i], reused[i] = Score(steps=np.array([value], dtype=np.float32)), True
        left = [i for i, one in enumerate(found) if one is None]
        for i, one in zip(left, score([episodes[i] for i in left]) if left else [], strict=True):
            found[i] = one
        self._last = (len(episodes), int(reused.sum()))
        return [one for one in found if one is not None], reused

    @property
    def metrics(self) -> Metrics:
        """Frames of the last call whose value is another frame's; and the error, over all frames checked so far."""
        frames, hits = self._last
        mean = self._error / self._checked if self._checked else None
        return {
            "cache_hits": float(hits),
            "cache_hit_share": hits / frames if frames else None,
            "cache_checked": float(self._checked),
            "cache_error": mean,
            "cache_error_max": self._worst if self._checked else None,
        }

    def _number(self, task: str) -> int:
        if task not in self._tasks:
            self._tasks.append(task)
        return self._tasks.index(task)

    def _nearest(self, key: np.ndarray, task: int) -> int | None:
        """The entry of the task that is most alike, if it is alike enough."""
        entries = np.flatnonzero(self._task[: min(self._added, self.settings.size)] == task)
        if not len(entries):
            return None
        apart = _BITS_SET[self._keys[entries] ^ key].sum(axis=1, dtype=np.int64)
        best = int(apart.argmin())
        return int(entries[best]) if apart[best] <= self.settings.tolerance else None

    def _add(self, key: np.ndarray, task: int, owner: int) -> int:
        """Keep a frame whose value is not known yet, in place of the oldest."""
        entry = self._added % self.settings.size
        self._keys[entry], self._task[entry], self._waiting[entry] = key, task, owner
        self._added += 1
        return entry

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able values."""
        kept = min(self._added, self.settings.size)
        tensors = {
            "keys": torch.from_numpy(self._keys[:kept].view(np.int16).copy()),
            "values": torch.from_numpy(self._values[:kept].copy()),
            "task": torch.from_numpy(self._task[:kept].copy()),
        }
        return tensors, {
            "tasks": list(self._tasks),
            "added": self._added,
            "errors": [self._checked, self._error, self._worst],
            "rng": self.rng.bit_generator.state,
        }

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        kept = len(tensors["values"])
        self._keys[:kept] = tensors["keys"].numpy().view(np.uint16)
        self._values[:kept], self._task[:kept] = tensors["values"].numpy(), tensors["task"].numpy()
        self._tasks, self._added = list(values["tasks"]), int(values["added"])
        self._checked, self._error, self._worst = values["errors"]
        self.rng.bit_generator.state = values["rng"]


def _value(score: Score | None) -> float | None:
    """The value of a frame; None where it is missing."""
    return None if score is None or score.steps is None else float(score.steps[0])
