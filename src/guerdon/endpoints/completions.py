"""Completions of a policy in this process, kept on disk by content; also a local judge.

Mining, solutions, continuations and local judges all use this. What is sampled depends on the requests, the weights of
the policy, the seed and the size of batches, and a resumed run samples what an uninterrupted one would have.

    completer = Completer(policy, generation, cache, seed=0)
    request = CompletionRequest(prompt_ids, prefix="3+5=8;")
    completions = completer.complete([request], n=8, limit=64, sampling=SamplingParams(0.7))
    completions[0][0].text, completions[0][0].finished        # what comes after the prefix, and whether it is complete
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guerdon.endpoints.llm_client import (
    LLMReply,
    LLMRequest,
    Parse,
    T,
    answer_of,
)
from guerdon.errors import DataError
from guerdon.files.append_log import Cache, content_key, shared
from guerdon.policies.batches.tokens import decode, prompt_ids, response_ids, sequence
from guerdon.policies.language.generate import Engine, check_room
from guerdon.policies.language.generate_vllm import build_engine
from guerdon.policies.language.text import TextPolicy
from guerdon.policies.language.text_files import load_policy
from guerdon.processes.progress import ProgressBar
from guerdon.settings.text_policy import GenerationSettings, LocalGenerationSettings, TextPolicySettings
from guerdon.types import Failure, IntArray


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are sampled; temperature 0: the most likely ones."""

    temperature: float
    top_p: float = 1.0


@dataclass(frozen=True, eq=False)
class CompletionRequest:
    """What a policy completes.

    Attributes:
        prompt: ids, the opening of the assistant's turn included.
        prefix: what the assistant has already written.
        salt: distinguishes requests that would otherwise get the same completions.
    """

    prompt: IntArray
    prefix: str = ""
    salt: str = ""


@dataclass(frozen=True)
class Completion:
    """A text, and whether it is complete (not cut by the length limit)."""

    text: str
    finished: bool


@dataclass(frozen=True, eq=False)
class SampleBatch:
    """Requests that are completed together: what is drawn depends on them and the policy's weights alone.

    Attributes:
        requests: what is completed.
        keys: of the requests by content, the seed included; the random numbers come from them.
        n: completions of each.
        limit: most tokens of a response, the prefix included.
        sampling: how tokens are sampled.
    """

    requests: tuple[CompletionRequest, ...]
    keys: tuple[str, ...]
    n: int
    limit: int
    sampling: SamplingParams


Sampled = tuple[list[list[Any]], int]
"""The n completions of each request of a batch, one after another, each as [text, finished]; and how many tokens."""
Sample = Callable[[Sequence[SampleBatch]], Iterator[tuple[int, Sampled]]]
"""Samples batches; gives the place of a batch and what was sampled, in any order."""


class Completer:
    """Samples completions of one policy.

    Attributes:
        counts: requests from the cache, new texts and tokens, by purpose.

    Args:
        policy: the model.
        generation: the `generation` section: engine and batch size; its temperature and truncation are not used.
        cache: completions on disk.
        seed: of the samples.
        sample: samples batches elsewhere, with the same weights; None: here.
    """

    def __init__(
        self,
        policy: TextPolicy,
        generation: GenerationSettings,
        cache: Cache,
        *,
        seed: int,
        sample: Sample | None = None,
    ) -> None:
        self.policy = policy
        self._generation, self._cache, self._seed = generation, cache, seed
        self._sample = sample or BatchSampler(policy, generation).sample_all
        self.counts: Counter[str] = Counter()

    @cached_property
    def fingerprint(self) -> str:
        """The hash of the policy's weights."""
        return weights_hash(self.policy)

    def complete(
        self,
        requests: Sequence[CompletionRequest],
        *,
        n: int,
        limit: int,
        sampling: SamplingParams,
        purpose: str,
        show_progress: bool = False,
    ) -> list[tuple[Completion, ...]]:
        """`n` completions of each request, in order.

        Args:
            requests: equal ones get the same completions.
            n: how many.
            limit: most tokens of a response, the prefix included.
            sampling: how tokens are sampled.
            purpose: different purposes get different completions, even with the same sampling.
            show_progress: for callers that show none of their own.

        Raises:
            DataError: the model has no room for a prompt and its response.
        """
        how = [self.fingerprint, self._seed, purpose, n, limit, sampling.temperature, sampling.top_p]
        keys = [content_key(how, request.prompt.tolist(), request.prefix, request.salt) for request in requests]
        request_of = dict(zip(keys, requests, strict=True))  # equal keys stand for equal requests
        missing = [key for key in dict.fromkeys(keys) if self._cache.get(key) is None]
        self.counts[f"{purpose}: from cache"] += len(request_of) - len(missing)
        # Neighbours of like length. The keys of a batch seed what it draws, so their order decides that, too.
        missing.sort(key=lambda key: len(request_of[key].prefix))
        generation = self._generation
        responses_of_batch = generation.batch_size if generation.engine == "local" else 4096
        size = max(1, responses_of_batch // n)
        batches = []
        for start in range(0, len(missing), size):
            part = tuple(missing[start : start + size])
            asked = tuple(request_of[key] for key in part)
            batches.append(SampleBatch(asked, part, n, limit, sampling))
        done = 0
        with ExitStack() as stack:
            bar: ProgressBar | None = None
            if show_progress:
                bar = ProgressBar(len(missing), what=f"{purpose} requests", lines=10)
                stack.enter_context(closing(bar))
            for place, (texts, tokens) in self._sample(batches):
                part = batches[place].keys
                self._cache.put({key: texts[i * n : (i + 1) * n] for i, key in enumerate(part)})
                self.counts[f"{purpose}: texts"] += len(texts)
                self.counts[f"{purpose}: tokens"] += tokens
                done += len(part)
                if bar is not None:
                    bar.advance(done, "")
        return [tuple(starmap(Completion, self._cache.get(key))) for key in keys]


class BatchSampler:
    """Samples batches of requests with a policy in this process.

    Args:
        policy: the model.
        generation: the `generation` section.
    """

    def __init__(self, policy: TextPolicy, generation: GenerationSettings) -> None:
        self.policy, self._generation = policy, generation
        self._engines: dict[SamplingParams, Engine] = {}

    def sample_all(self, batches: Sequence[SampleBatch]) -> Iterator[tuple[int, Sampled]]:
        """One batch after another; see `Sample`."""
        for place, batch in enumerate(batches):
            yield place, self.sample(batch)

    def sample(self, batch: SampleBatch) -> Sampled:
        """The completions of a batch.

        Raises:
            DataError: the model has no room for a prompt and its response.
        """
        tokenizer, n = self.policy.tokenizer, batch.n
        begun = [response_ids(tokenizer, request.prefix)[:-1] for request in batch.requests]
        starts = [sequence(request.prompt, ids) for request, ids in zip(batch.requests, begun, strict=True)]
        room = self.policy.base.positions
        most = max(1, batch.limit - min(len(ids) for ids in begun))
        if room is not None and any(len(ids) for ids in begun):
            most = max(1, min(most, room - max(map(len, starts))))
        greedy = batch.sampling.temperature == 0
        digest = hashlib.sha256("".join(batch.keys).encode()).digest()
        rng = None if greedy else np.random.default_rng(int.from_bytes(digest, "big"))
        with torch.no_grad():
            found = self._engine(batch.sampling).generate(starts, n, max_new_tokens=most, rng=rng, greedy=greedy).batch
        texts = []
        for i, row in enumerate(found.responses()):  # with its prefix, as spaces at the seam can belong to both
            ids = begun[i // n]
            texts.append(decode(tokenizer, sequence(ids, row)).removeprefix(decode(tokenizer, ids)))
        pairs: list[list[Any]] = [[text, bool(done)] for text, done in zip(texts, found.finished_B, strict=True)]
        return pairs, int(found.lengths_B.sum())

    def _engine(self, sampling: SamplingParams) -> Engine:
        if sampling not in self._engines:
            how = {"temperature": sampling.temperature or 1.0, "top_p": sampling.top_p, "top_k": 0}
            settings = self._generation.model_copy(update=how)
            if settings.engine == "vllm":
                self._engines.clear()  # one at a time: each takes its share of the GPU
            self._engines[sampling] = build_engine(self.policy, settings)
        return self._engines[sampling]


class LocalLLMClient:
    """An `LLMClient` of a model in this process: cached, free of charge, and no second try, which would be the same.

    Args:
        completer: of the model.
        name: the model, for the record.
    """

    def __init__(self, completer: Completer, name: str) -> None:
        self._completer, self.name = completer, name

    def complete(
        self, requests: Sequence[LLMRequest], parsers: Sequence[Parse[T]], *, role: str
    ) -> Generator[tuple[int, T | Failure]]:
        """See `LLMClient`; a request that the model cannot be given is a `Failure`."""
        policy, ids = self._completer.policy, {}
        batches: dict[tuple[int, float | None], list[int]] = {}
        for i, request in enumerate(requests):
            try:
                ids[i] = prompt_ids(policy.tokenizer, request.messages)
                check_room(len(ids[i]), request.max_tokens, policy.base.positions, "a request")
            except DataError as error:
                yield i, Failure("unreadable", str(error))
            else:
                batches.setdefault((request.max_tokens, request.temperature), []).append(i)
        for (limit, temperature), rows in batches.items():
            prompts = [(ids[i], str(requests[i].sample)) for i in rows]
            texts = self._completer.complete(
                [CompletionRequest(prompt, salt=sample) for prompt, sample in prompts], n=1, limit=limit,
                sampling=SamplingParams(1.0 if temperature is None else temperature), purpose=role,
            )  # fmt: skip
            for i, (one,) in zip(rows, texts, strict=True):
                reply = LLMReply(one.text, "end" if one.finished else "length")
                yield i, answer_of(requests[i], reply, parsers[i])


def weights_hash(policy: TextPolicy) -> str:
    """A hash of the weights of a policy, adapters merged."""
    digest = hashlib.sha256()
    with torch.no_grad():
        for name, weight in policy.merged_weights():
            digest.update(f"{name} {tuple(weight.shape)}".encode())
            digest.update(weight.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def local_client(
    model: str, folder: Path, stack: ExitStack, completer: Callable[[TextPolicySettings], Completer] | None = None
) -> LocalLLMClient:
    """The client of a language model in this process.

    Args:
        model: its folder or hub id.
        folder: keeps its completions.
        stack: closes what is opened.
        completer: of a policy; None: one that samples in this process.

    Raises:
        DataError: another process uses the folder.
    """
    policy = TextPolicySettings(path=model)
    if completer is not None:
        return LocalLLMClient(completer(policy), model)
    kept = stack.enter_context(shared(Cache, folder / "completions.jsonl"))
    own = Completer(load_policy(policy, seed=0), LocalGenerationSettings(), kept, seed=0)
    return LocalLLMClient(own, model)
