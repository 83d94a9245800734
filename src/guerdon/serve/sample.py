"""A sample of what the server scored, as rows for `guerdon audit`; off unless `sample_path` is set.

A row has numbers, the name of the model, and a keyed hash of the prompt, whose key is never written: equal prompts of
one process are recognised, and nobody can guess them. Texts are written only with `sample_text`. Never written: tokens,
addresses and headers of clients, answers given as labels, frames.

    sample = ServedSample(Path("served"), share=0.05)
    sample.keep("prm", episodes, scores)
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from guerdon.models.explained_score import ExplainedScore
from guerdon.secrets import hide
from guerdon.serve.wires.client_wire import value_of
from guerdon.settings.serve import ServeSettings
from guerdon.types import Episode, Failure

MOST_BYTES = 256 * 1024 * 1024  # that one process writes
MOST_WAITING = 1000  # requests whose rows a slow disk has not taken yet; further ones are left out
log = logging.getLogger("guerdon.serve")


def served_sample(settings: ServeSettings) -> ServedSample | None:
    """The sample of a server; None without `sample_path`."""
    if settings.sample_path is None:
        return None
    return ServedSample(Path(settings.sample_path), share=settings.sample_share, text=settings.sample_text)


class ServedSample:
    """Writes rows of sampled prompts into a file of this process; all responses to a prompt are in, or none.

    Args:
        folder: of the files, one per process that writes.
        share: of prompts, 0 to 1.
        text: also write prompts and responses.
    """

    def __init__(self, folder: Path, *, share: float, text: bool = False) -> None:
        self.path = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}-{secrets.token_hex(2)}.jsonl"
        self._share, self._text, self._key = share, text, secrets.token_bytes(16)
        self._left, self._waiting = MOST_BYTES, 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="guerdon-sample")

    def keep(self, model: str, episodes: Sequence[Episode], scores: Sequence[ExplainedScore]) -> None:
        """Write the rows of a request whose prompts are in the sample, in another thread."""
        if self._left <= 0 or self._waiting >= MOST_WAITING:
            return
        rows = [self._row(model, *pair) for pair in zip(episodes, scores, strict=True)]
        lines = "".join(hide(json.dumps(row)) + "\n" for row in rows if row is not None)
        if lines:
            self._waiting += 1
            self._thread.submit(self._append, lines)

    def close(self) -> None:
        """Wait until all is written."""
        self._thread.shutdown()

    def _row(self, model: str, episode: Episode, explained: ExplainedScore) -> dict[str, Any] | None:
        prompt = "\n".join([*(str(message) for message in episode.context), episode.task])
        digest = hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), key=self._key, digest_size=16).digest()
        if int.from_bytes(digest[:6]) >= self._share * 2**48:
            return None
        value = value_of(explained.score)
        failed = value if isinstance(value, Failure) else None
        row: dict[str, Any] = {"time": int(time.time()), "model": model, "prompt": digest.hex()}
        row |= {"reward": None if failed else value, "failed": failed is not None, "truncated": explained.truncated}
        row |= {"failure": failed.reason} if failed else {}
        row |= {"prompt_length": len(prompt), "input_tokens": explained.tokens}
        if episode.texts is not None:
            row |= {"response_length": sum(map(len, episode.texts)), "steps": len(episode.texts)}
            row |= {"prompt": prompt, "response": "".join(episode.texts)} if self._text else {}
        elif episode.frames is not None:
            row["response_length"] = len(episode.frames)
        return row

    def _append(self, lines: str) -> None:
        self._waiting -= 1
        data = lines.encode("utf-8", "replace")
        if self._left < len(data):
            if self._left > 0:
                log.warning("the sample %s is full; no more rows are written to it", self.path)
            self._left = 0
            return
        self._left -= len(data)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(data)
        except OSError as error:
            self._left = 0
            log.warning("the sample %s cannot be written (%s); serving goes on without it", self.path, error.strerror)
