"""Results by content: what was scored once is not scored again, and a retry costs nothing.

The key is a hash of everything that a model may look at: the task, every column of the episode, its `meta`, and the
options. The id and the outcome do not count: a judgement that depended on them would be no measurement. Failures
are not remembered, so that asking again tries again. This module does not know models.

    key = content_key(episode, JudgeOptions())
    cache.put(key, judgement); cache.get(key)
"""

from __future__ import annotations

import json
from collections import OrderedDict
from hashlib import blake2b

import numpy as np

from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.types import Episode


def content_key(episode: Episode, options: JudgeOptions) -> bytes:
    """16 bytes that are equal exactly when a model would see the same."""
    chosen = (options.nframes, options.max_pixels, options.prompt, options.score_mode)
    head: list[object] = [episode.task, chosen, episode.texts]
    digest = blake2b(digest_size=16)
    for name in ("frames", "states", "actions", "rewards", "success"):
        array = getattr(episode, name)
        if array is not None:
            head.append((name, array.shape, array.dtype.str))
            digest.update(np.ascontiguousarray(array).data)
    if episode.meta:
        head.append(json.dumps(episode.meta, sort_keys=True, default=repr))
    digest.update(repr(head).encode("utf-8", "surrogatepass"))
    return digest.digest()


def content_bytes(episode: Episode) -> int:
    """How much there is to look at, in bytes or characters: what hashing and padding go by."""
    arrays = (episode.frames, episode.states, episode.actions)
    texts = (episode.task, *(episode.texts or ()))
    return sum(a.nbytes for a in arrays if a is not None) + sum(map(len, texts))


class ResultCache:
    """The judgements used last.

    Args:
        size: how many to remember; 0 remembers none.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._results: OrderedDict[bytes, ExplainedScore] = OrderedDict()

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: bytes) -> ExplainedScore | None:
        """What was said of this content, or None."""
        found = self._results.get(key)
        if found is not None:
            self._results.move_to_end(key)
        return found

    def put(self, key: bytes, judgement: ExplainedScore) -> None:
        """Remember a judgement, unless it failed."""
        if not self.size or judgement.score.failure is not None:
            return
        self._results[key] = judgement
        self._results.move_to_end(key)
        if len(self._results) > self.size:
            self._results.popitem(last=False)

    def clear(self) -> None:
        """Forget everything: the model is another one now."""
        self._results.clear()
