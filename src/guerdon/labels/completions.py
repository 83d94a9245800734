"""What a policy writes after a prompt, or after a solution that has begun; kept on disk by content.

Mining, solutions, continuations and local judges all come down to this. What is drawn depends on the request, the
policy's weights and the seed alone, and a killed run that goes on draws what an uninterrupted one would have. This
module does not know what the texts mean.

    completer = Completer(policy, generation, cache, seed=0)
    drawn = completer.complete([Ask(prompt_ids, prefix="3+5=8;")], n=8, limit=64, sampling=Sampling(0.7))
    drawn[0][0].text, drawn[0][0].finished        # what comes after the prefix, and whether it ended by itself
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from guerdon.labels.append_log import Cache, content_key
from guerdon.policies.generate import Engine, LocalEngine
from guerdon.policies.text import TextPolicy
from guerdon.policies.tokens import pad_id, response_ids, response_texts, sequence, token_batch
from guerdon.progress import ProgressBar
from guerdon.settings.text_policy import GenerationSettings
from guerdon.types import IntArray


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; temperature 0: the most likely ones."""

    temperature: float
    top_p: float = 1.0


@dataclass(frozen=True, eq=False)
class Ask:
    """A request for texts.

    Attributes:
        prompt: ids, the opening of the assistant's turn included.
        prefix: what the assistant has already written.
        salt: tells requests apart that would otherwise draw the same.
    """

    prompt: IntArray
    prefix: str = ""
    salt: str = ""


@dataclass(frozen=True)
class Drawn:
    """One text, and whether it ended by itself."""

    text: str
    finished: bool


class Completer:
    """Texts of one policy.

    Attributes:
        counts: requests from the cache, texts and tokens written anew, by purpose.

    Args:
        policy: who writes.
        generation: the `generation` section: engine and rows at a time; its temperature and truncation do not count.
        cache: texts kept.
        seed: of what is drawn.
        fingerprint: names the policy; None: the hash of its weights.
    """

    def __init__(
        self,
        policy: TextPolicy,
        generation: GenerationSettings,
        cache: Cache,
        *,
        seed: int,
        fingerprint: str | None = None,
    ) -> None:
        self.policy = policy
        self._generation, self._cache, self._seed = generation, cache, seed
        self._fingerprint = fingerprint
        self._engines: dict[Sampling, Engine] = {}
        self.counts: Counter[str] = Counter()

    @property
    def fingerprint(self) -> str:
        """The hash of the policy's weights."""
        if self._fingerprint is None:
            self._fingerprint = weights_hash(self.policy)
        return self._fingerprint

    def complete(
        self, asks: Sequence[Ask], *, n: int, limit: int, sampling: Sampling, purpose: str, narrate: bool = False
    ) -> list[tuple[Drawn, ...]]:
        """`n` texts for each request, in order.

        Args:
            asks: equal ones get the same texts.
            n: how many.
            limit: most tokens of a response, the prefix included.
            sampling: how tokens are drawn.
            purpose: mining and solving draw different texts, even with the same sampling.
            narrate: show progress; for callers that show none of their own.

        Raises:
            DataError: the model has no room for a prompt and its response.
        """
        how = [self.fingerprint, self._seed, purpose, n, limit, sampling.temperature, sampling.top_p]
        keys = [content_key(how, ask.prompt.tolist(), ask.prefix, ask.salt) for ask in asks]
        first = dict(zip(keys, asks, strict=True))  # equal keys stand for equal requests
        missing = [key for key in dict.fromkeys(keys) if self._cache.get(key) is None]
        self.counts[f"{purpose}: from cache"] += len(first) - len(missing)
        missing.sort(key=lambda key: len(first[key].prefix))  # neighbours of like length; equal ones keep their order
        size = max(1, (self._generation.batch_size if self._generation.engine == "local" else 4096) // n)
        told = ProgressBar(len(missing), what=f"{purpose} requests", lines=10) if narrate else None
        try:
            for start in range(0, len(missing), size):
                group = missing[start : start + size]
                written = self._write([first[key] for key in group], group, n, limit, sampling, purpose)
                rows = [[[d.text, d.finished] for d in texts] for texts in written]
                self._cache.put(dict(zip(group, rows, strict=True)))
                if told is not None:
                    told.advance(start + len(group), "")
        finally:
            if told is not None:
                told.close()
        return [tuple(Drawn(text, finished) for text, finished in self._cache.get(key)) for key in keys]

    def _write(
        self, asks: Sequence[Ask], keys: Sequence[str], n: int, limit: int, sampling: Sampling, purpose: str
    ) -> list[tuple[Drawn, ...]]:
        tokenizer = self.policy.tokenizer
        begun = [response_ids(tokenizer, ask.prefix)[:-1] for ask in asks]
        starts = [sequence(ask.prompt, ids) for ask, ids in zip(asks, begun, strict=True)]
        room = getattr(self.policy.base.model.config, "max_position_embeddings", None)
        most = max(1, limit - min(len(ids) for ids in begun))
        if room is not None and any(len(ids) for ids in begun):
            most = max(1, min(most, room - max(map(len, starts))))
        greedy = sampling.temperature == 0
        digest = hashlib.sha256("".join(keys).encode()).digest()
        rng = None if greedy else np.random.default_rng(int.from_bytes(digest, "big"))
        with torch.no_grad():
            found = self._engine(sampling).generate(starts, n, max_new_tokens=most, rng=rng, greedy=greedy).batch
        texts = self._texts(tokenizer, begun, found.responses(), n)
        self.counts[f"{purpose}: texts"] += len(texts)
        self.counts[f"{purpose}: tokens"] += int(found.lengths_B.sum())
        drawn = [Drawn(text, bool(done)) for text, done in zip(texts, found.finished_B, strict=True)]
        return [tuple(drawn[i * n : (i + 1) * n]) for i in range(len(asks))]

    def _texts(self, tokenizer: Any, begun: Sequence[IntArray], rows: Sequence[IntArray], n: int) -> list[str]:
        """What each row adds to its prefix; read together, as blanks at a seam can belong to both."""

        def read(ids: Sequence[IntArray]) -> list[str]:
            return response_texts(
                tokenizer, token_batch(ids, ids, np.ones(len(ids), dtype=np.bool_), pad_id=pad_id(tokenizer))
            )

        prefixes = [text for text in read(begun) for _ in range(n)]
        whole = read([sequence(begun[i // n], row) for i, row in enumerate(rows)])
        return [text.removeprefix(prefix) for text, prefix in zip(whole, prefixes, strict=True)]

    def _engine(self, sampling: Sampling) -> Engine:
        if sampling not in self._engines:
            how = {"temperature": sampling.temperature or 1.0, "top_p": sampling.top_p, "top_k": 0}
            settings = self._generation.model_copy(update=how)
            if settings.engine == "vllm":
                from guerdon.policies.generate_vllm import VLLMEngine

                self._engines.clear()  # one at a time: each takes its share of the GPU
                self._engines[sampling] = VLLMEngine(self.policy, settings)
            else:
                self._engines[sampling] = LocalEngine(self.policy, settings)
        return self._engines[sampling]


def weights_hash(policy: TextPolicy) -> str:
    """A name for the weights of a policy, adapters added in."""
    digest = hashlib.sha256()
    with torch.no_grad():
        for name, weight in policy.merged_weights():
            digest.update(f"{name} {tuple(weight.shape)}".encode())
            digest.update(weight.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
