"""Responses for prompts: sampling, stopping, and the log-probability of every token that was drawn.

The log-probability recorded is that of the policy at the sampling temperature, before `top_p` and `top_k` leave
tokens out: the same quantity that training computes. A token is drawn by turning one uniform number into a token
(inverse distribution function); row i of a request always uses the i-th row of numbers of its generator, so neither
the batch size nor the other rows change a response.

    engine = LocalEngine(policy, LocalGenerationSettings(temperature=1.0))
    found = engine.generate(prompts, 8, max_new_tokens=64, rng=np.random.default_rng(0))
    found.batch.responses_B_T, found.log_probs_B_T        # row i * 8 + j: sample j of prompt i
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from guerdon.errors import ConfigError, DataError
from guerdon.policies.batches.tokens import TokenBatch, pad_id, pad_left, stop_ids
from guerdon.policies.language.decoding import HFDecoder, KeptRow, LlamaDecoder, check_steps, keeps_all, supports
from guerdon.policies.language.text import TextPolicy
from guerdon.settings.text_policy import LocalGenerationSettings
from guerdon.types import FloatArray, IntArray

LOOK_EVERY = {"cpu": 1, "cuda": 8}  # steps between checks for finished rows: a check makes a GPU wait
CROWDED = 0.85  # drop finished rows when fewer than this share is still writing


@dataclass(frozen=True, eq=False)
class Generation:
    """Responses, and the log-probabilities of their tokens.

    Attributes:
        batch: B = prompts x samples rows, the samples of a prompt next to each other.
        log_probs_B_T: (B, T) float32 log-probabilities of the tokens under the policy that wrote them, at the
            sampling temperature; 0 where there is no token. Of vLLM: of the distribution that was drawn from, after
            `top_p` and `top_k` too.
        versions_B: (B,) version of the weights that wrote each response; None: the engine was not given any.
    """

    batch: TokenBatch
    log_probs_B_T: FloatArray
    versions_B: IntArray | None = None


class Engine(Protocol):
    """Generates responses."""

    def generate(
        self,
        prompts: Sequence[IntArray],
        n_per_prompt: int,
        *,
        max_new_tokens: int,
        rng: np.random.Generator | Sequence[np.random.Generator] | None = None,
        greedy: bool = False,
        keys: Sequence[Any] | None = None,
    ) -> Generation:
        """`n_per_prompt` responses to each prompt; the most likely tokens with `greedy`, else sampled with `rng`.

        A prompt may go on from what was read and written under its key in the call before: that is not read again.
        """
        ...

    def sync(self, weights: Mapping[str, Tensor] | None = None, version: int | None = None) -> None:
        """Follow the policy's weights; to be called after each update.

        Args:
            weights: `TextPolicy.tensors`; None: those of the engine's own policy.
            version: of the weights; responses carry it.
        """
        ...

    def rest(self) -> None:
        """Give back the memory that is not needed until the next `sync`, which must come before the next `generate`."""
        ...


class _Keep(NamedTuple):
    """Where keys and values of a batch go, once its rows have ended.

    Attributes:
        rows: of the batch among the prompts.
        prompts, keys: of all rows.
        into: ids that were read, and their keys and values, by key.
    """

    rows: np.ndarray
    prompts: Sequence[IntArray]
    keys: Sequence[Any]
    into: dict[Any, tuple[IntArray, KeptRow]]

    def take(
        self, decoder: LlamaDecoder | HFDecoder, rows_N: Tensor, ended_N: Tensor, tokens_N_T: Tensor, is_stop_V: Tensor
    ) -> None:
        """Keep the rows that have ended; their last token was written and not read."""
        for place in ended_N.nonzero().squeeze(-1).tolist():
            number = int(rows_N[place])
            written = tokens_N_T[number]
            stops = is_stop_V[written].nonzero().squeeze(-1)
            count = int(stops[0]) if len(stops) else len(written) - 1
            row = int(self.rows[number])
            ids = np.concatenate([self.prompts[row], written[:count].cpu().numpy()])
            self.into[self.keys[row]] = ids, decoder.kept(place, len(ids))


class LocalEngine:
    """Batched sampling in this process, on the CPU or a GPU.

    Args:
        policy: the model. Its weights are read at every call, so nothing needs to be synchronised.
        settings: temperature, truncation of the distribution, rows at a time.
    """

    def __init__(self, policy: TextPolicy, settings: LocalGenerationSettings) -> None:
        self.policy, self.settings = policy, settings
        stops = stop_ids(policy.tokenizer, policy.base.model.generation_config)
        if not len(stops):
            raise ConfigError("the tokenizer has no end-of-sequence token, so no response would ever end")
        self._is_stop_V = torch.zeros(policy.base.vocabulary, dtype=torch.bool, device=policy.device)
        self._is_stop_V[torch.from_numpy(stops)] = True
        self._version: int | None = None
        self._kept: dict[Any, tuple[IntArray, KeptRow]] = {}
        if policy.base.shards is None:
            check_steps(policy)

    def sync(self, weights: Mapping[str, Tensor] | None = None, version: int | None = None) -> None:
        """Remember the version: the weights are read at every call."""
        self._version, self._kept = version, {}

    def rest(self) -> None:
        """Let go of what is kept: all else is gone when `generate` returns."""
        self._kept = {}

    def generate(
        self,
        prompts: Sequence[IntArray],
        n_per_prompt: int,
        *,
        max_new_tokens: int,
        rng: np.random.Generator | Sequence[np.random.Generator] | None = None,
        greedy: bool = False,
        keys: Sequence[Any] | None = None,
    ) -> Generation:
        """Write responses.

        Args:
            prompts: token ids of each prompt.
            n_per_prompt: responses to each.
            max_new_tokens: where a response is cut.
            rng: draws the samples; its state moves on by the same amount whatever is written. Several: of each row.
            greedy: always the most likely token; takes no `rng`.
            keys: of the prompts (with one response each): keys and values of the network are kept under them until the
                next call, where a prompt that begins with the same tokens goes on from them.

        Raises:
            DataError: a prompt is empty, or the model has no room for it and its response.
        """
        if (rng is None) != greedy:
            raise ValueError("give a generator to sample with, or greedy=True")
        self._check(prompts, max_new_tokens)
        longest = max((len(p) for p in prompts), default=0) + max_new_tokens
        self.policy.base.ropes.decide(longest, "what is generated")
        with self.policy.base.whole(), torch.inference_mode():
            check_steps(self.policy)
            keys = keys if keys is not None and keeps_all(self.policy) else None
            found = self._generate(prompts, n_per_prompt, max_new_tokens, rng, keys)
        return found if self._version is None else replace(found, versions_B=np.full(len(found.batch), self._version))

    def _generate(
        self,
        prompts: Sequence[IntArray],
        n_per_prompt: int,
        max_new_tokens: int,
        rng: np.random.Generator | Sequence[np.random.Generator] | None,
        keys: Sequence[Any] | None,
    ) -> Generation:
        """Responses, with all weights at hand."""
        b = len(prompts) * n_per_prompt
        kinds, kind_of_prompt = _distinct(prompts)
        kind_B = np.repeat(kind_of_prompt, n_per_prompt)
        uniform = np.zeros((b, 0))  # without numbers, the most likely tokens
        if isinstance(rng, np.random.Generator):
            uniform = rng.random((b, max_new_tokens))
        elif rng is not None:
            uniform = np.stack([own.random(max_new_tokens) for own in rng])
        below_one = torch.from_numpy(uniform.astype(np.float32)).clamp_max_(1 - 2**-24)  # float32 may round to 1
        uniform_B_T = below_one.to(self.policy.device)
        tokens_B_T = np.full((b, max_new_tokens), pad_id(self.policy.tokenizer), dtype=np.int64)
        log_probs_B_T = np.zeros((b, max_new_tokens), dtype=np.float32)
        order = np.argsort([len(kinds[k]) for k in kind_B], kind="stable")  # neighbours of like length: less padding
        size = self.settings.batch_size
        before = self._take_kept(prompts, keys or ())
        goes_on = np.array([row in before for row in order], dtype=np.bool_)
        decoder = LlamaDecoder(self.policy) if supports(self.policy) else HFDecoder(self.policy)
        kept: dict[Any, tuple[IntArray, KeptRow]] = {}
        with decoder.weights_cast_once():
            for part in (order[~goes_on], order[goes_on]):
                for rows in (part[at : at + size] for at in range(0, len(part), size)):
                    if rows[0] in before:
                        logits = self._resumed(decoder, prompts, [(row, *before[row]) for row in rows], max_new_tokens)
                    else:
                        logits = self._prefilled(decoder, kinds, kind_B[rows], max_new_tokens)
                    numbers = uniform_B_T[torch.from_numpy(rows).to(self.policy.device)]
                    keep = None if keys is None else _Keep(rows, prompts, keys, kept)
                    tokens, found = self._write(decoder, logits, numbers, max_new_tokens, keep)
                    tokens_B_T[rows, : tokens.shape[1]] = tokens.cpu().numpy()
                    log_probs_B_T[rows, : found.shape[1]] = found.cpu().numpy()
        self._kept = kept
        return _trimmed(prompts, n_per_prompt, tokens_B_T, log_probs_B_T, self._is_stop_V.cpu().numpy(), self._pad)

    def _prefilled(
        self, decoder: LlamaDecoder | HFDecoder, kinds: Sequence[IntArray], kind_N: IntArray, room: int
    ) -> Tensor:
        """(N, V) logits of the first token of N responses; equal prompts are read once."""
        present, place_N = np.unique(kind_N, return_inverse=True)
        ids, real = pad_left([kinds[k] for k in present], pad_id(self.policy.tokenizer))
        device = self.policy.device
        logits = decoder.prefill(torch.from_numpy(ids).to(device), torch.from_numpy(real).to(device), room=room)
        rows_N = torch.from_numpy(place_N).to(device)
        decoder.select(rows_N)
        return logits[rows_N]

    def _resumed(
        self,
        decoder: LlamaDecoder | HFDecoder,
        prompts: Sequence[IntArray],
        before: Sequence[tuple[int, int, KeptRow]],
        room: int,
    ) -> Tensor:
        """(N, V) logits of the first token of N responses to prompts that go on from what is kept.

        Args:
            decoder: of the policy.
            prompts: all.
            before: of the N the number of its prompt, how many of its tokens are kept, and their keys and values.
            room: tokens to write.
        """
        news = [prompts[row][length:] for row, length, _ in before]
        ids, real = pad_left(news, pad_id(self.policy.tokenizer))
        device = self.policy.device
        logits: Tensor = decoder.resume(
            [kept for *_, kept in before],
            torch.from_numpy(ids).to(device),
            torch.from_numpy(real).to(device),
            room=room,
        )
        return logits

    def _take_kept(self, prompts: Sequence[IntArray], keys: Sequence[Any]) -> dict[int, tuple[int, KeptRow]]:
        """Take out the prompts that go on from what is kept: how many tokens that is, and their keys and values."""
        found: dict[int, tuple[int, KeptRow]] = {}
        for row, key in enumerate(keys):
            if key not in self._kept:
                continue
            ids, kept = self._kept.pop(key)
            if len(ids) < len(prompts[row]) and np.array_equal(prompts[row][: len(ids)], ids):
                found[row] = len(ids), kept
        return found

    @property
    def _pad(self) -> int:
        return pad_id(self.policy.tokenizer)

    def _write(
        self,
        decoder: LlamaDecoder | HFDecoder,
        logits: Tensor,
        uniform_N_T: Tensor,
        max_new_tokens: int,
        keep: _Keep | None,
    ) -> tuple[Tensor, Tensor]:
        """Tokens and log-probabilities (N, T) of a batch whose prompts are read; what follows a stop is noise."""
        s, device = self.settings, logits.device
        n, every = len(logits), LOOK_EVERY.get(device.type, 8)
        tokens_N_T = torch.full((n, max_new_tokens), self._pad, device=device)
        log_probs_N_T = torch.zeros(n, max_new_tokens, device=device)
        rows = torch.arange(n, device=device)
        writing = torch.ones(n, dtype=torch.bool, device=device)
        for t in range(max_new_tokens):
            numbers = uniform_N_T[rows, t] if uniform_N_T.shape[1] else None
            token, log_prob = draw(logits, numbers, temperature=s.temperature, top_k=s.top_k, top_p=s.top_p)
            tokens_N_T[rows, t], log_probs_N_T[rows, t] = token, log_prob
            if t == max_new_tokens - 1:
                break
            writing &= ~self._is_stop_V[token]
            if (t + 1) % every == 0:
                left = int(writing.sum())
                if left == 0:
                    break
                if left < CROWDED * len(rows):
                    if keep is not None:
                        keep.take(decoder, rows, ~writing, tokens_N_T, self._is_stop_V)
                    there = writing.nonzero().squeeze(-1)
                    decoder.select(there)
                    rows, token, writing = rows[there], token[there], writing[there]
            logits = decoder.step(token)
        if keep is not None:
            keep.take(decoder, rows, torch.ones_like(writing), tokens_N_T, self._is_stop_V)
        return tokens_N_T, log_probs_N_T

    def _check(self, prompts: Sequence[IntArray], max_new_tokens: int) -> None:
        if any(len(p) == 0 for p in prompts):
            raise DataError("a prompt has no tokens; a chat template gives at least one")
        longest = max((len(p) for p in prompts), default=0)
        check_room(longest, max_new_tokens, self.policy.base.positions, "a prompt")


def check_room(length: int, max_new_tokens: int, room: int | None, what: str) -> None:
    """Refuse a prompt for whose longest response the model has no positions.

    Args:
        length: tokens of the prompt.
        max_new_tokens: of the response.
        room: positions of the model; None: no limit.
        what: names the prompt in the message.

    Raises:
        DataError: they do not fit.
    """
    if room is not None and length + max_new_tokens > room:
        raise DataError(
            f"{what} of {length} tokens and a response of up to {max_new_tokens} do not fit the model's {room} "
            "positions: lower data.max_response_length or data.max_prompt_length, or leave the prompt out"
        )


def draw(
    logits_N_V: Tensor, uniform_N: Tensor | None, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> tuple[Tensor, Tensor]:
    """One token per row.

    Args:
        logits_N_V: float32.
        uniform_N: numbers in [0, 1) that decide; None: the most likely token.
        temperature: divides the logits.
        top_k: draw from this many most likely tokens; 0: from all.
        top_p: draw from the smallest set of most likely tokens whose mass reaches this (Holtzman et al. 2020,
            1904.09751).

    Returns:
        (N,) tokens and (N,) log-probabilities at the temperature, over the whole vocabulary.
    """
    log_probs = torch.log_softmax(logits_N_V if temperature == 1.0 else logits_N_V / temperature, -1)
    if uniform_N is None:
        token = log_probs.argmax(-1)
    else:
        candidates: Tensor | None = None
        mass = log_probs.exp()
        if 0 < top_k < mass.shape[-1]:
            mass, candidates = mass.topk(top_k, -1)
        elif top_p < 1.0:
            mass, candidates = mass.sort(-1, descending=True)
        if top_p < 1.0:
            before = mass.cumsum(-1) - mass
            mass = mass.masked_fill(before >= top_p * mass.sum(-1, keepdim=True), 0.0)
        reached = mass.cumsum(-1)
        token = torch.searchsorted(reached, uniform_N[:, None] * reached[:, -1:], right=True)
        token = token.clamp_max_(mass.shape[-1] - 1)
        token = (token if candidates is None else candidates.gather(-1, token)).squeeze(-1)
    return token, log_probs.gather(-1, token[:, None]).squeeze(-1)


def _distinct(prompts: Sequence[IntArray]) -> tuple[list[IntArray], IntArray]:
    """The different prompts, and which of them each prompt is."""
    seen: dict[bytes, int] = {}
    which = [seen.setdefault(np.asarray(p, dtype=np.int64).tobytes(), len(seen)) for p in prompts]
    return [np.frombuffer(b, dtype=np.int64) for b in seen], np.array(which, dtype=np.int64)


def _trimmed(
    prompts: Sequence[IntArray],
    n_per_prompt: int,
    tokens_B_T: IntArray,
    log_probs_B_T: FloatArray,
    is_stop_V: np.ndarray,
    pad: int,
) -> Generation:
    """Everything after the first stop is padding, and columns without a token are cut off."""
    stops_B_T = is_stop_V[tokens_B_T]
    finished_B = stops_B_T.any(axis=1)
    limit = tokens_B_T.shape[1]
    lengths_B = np.where(finished_B, stops_B_T.argmax(axis=1) + 1, limit)
    width = int(lengths_B.max(initial=0))
    mask_B_T = np.arange(width) < lengths_B[:, None]
    batch = TokenBatch(
        tuple(np.asarray(p, dtype=np.int64) for p in prompts for _ in range(n_per_prompt)),
        np.where(mask_B_T, tokens_B_T[:, :width], pad),
        mask_B_T,
        np.asarray(finished_B),
    )
    return Generation(batch, np.where(mask_B_T, log_probs_B_T[:, :width], np.float32(0)))
