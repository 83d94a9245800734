"""What a language model wrote for a batch of prompts, judged and filtered: the rollouts of text.

Prompts are drawn, answered `n_samples` times, checked, and kept where the share of right answers lies within bounds
(PRIME, 2502.01456, section 3). An answer that could not be checked is a failure: it stays out of that share and of
every baseline. This module does not know reward models, advantages or updates.

    sampler = Sampler(study.data, engine, verifier, prompts, tokenizer, seed=0)
    answered = sampler.draw()
    answered.outcomes_B, answered.facts["accuracy_before_filter"]
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from guerdon.errors import DataError
from guerdon.generators import ACTING, generator
from guerdon.policies.generate import Engine, Generation
from guerdon.policies.tokens import (
    TokenBatch,
    concatenate,
    pad_id,
    prompt_ids,
    prompt_lengths,
    response_texts,
    token_ends,
)
from guerdon.rl.side import Times
from guerdon.settings.data import DataSettings
from guerdon.types import BoolArray, Failure, FloatArray, IntArray
from guerdon.worlds.prompts import Prompt, PromptStream, insert_system_prompt
from guerdon.worlds.verifier import Verifier, outcome

MOST_DRAWS = 50  # of prompts for one update, before the filter is declared too narrow


def untimed(name: str) -> AbstractContextManager[None]:
    """A phase that nobody times."""
    return nullcontext()


@dataclass(frozen=True, eq=False)
class Responses:
    """B responses with what the verifier said. Rows of one prompt are neighbours and share a group.

    Attributes:
        batch: tokens.
        behaviour_B_T: float32 log-probabilities as they were sampled; 0 where masked.
        prompts: of each row.
        texts: of each row.
        groups_B: int64.
        outcomes_B: float32, 1 right, 0 wrong or unknown; of a program, the share of its tests that it passes.
        failures: row to why its outcome is unknown.
        tokenizer: of the policy that wrote.
    """

    batch: TokenBatch
    behaviour_B_T: FloatArray
    prompts: tuple[Prompt, ...]
    texts: tuple[str, ...]
    groups_B: IntArray
    outcomes_B: FloatArray
    failures: dict[int, Failure]
    tokenizer: Any

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def known_B(self) -> BoolArray:
        """(B,) bool, whether the outcome is known."""
        known = np.ones(len(self), dtype=np.bool_)
        known[list(self.failures)] = False
        return known

    @property
    def right_B(self) -> BoolArray:
        """(B,) bool, whether the response is known to be right, a program in all of its tests."""
        return np.asarray(self.known_B & (self.outcomes_B >= 1))

    @cached_property
    def char_ends(self) -> tuple[IntArray, ...]:
        """Of each row, how many characters of the text are there after each token."""
        return tuple(
            token_ends(self.tokenizer, ids, text) for ids, text in zip(self.batch.responses(), self.texts, strict=True)
        )

    def take(self, rows: np.ndarray) -> Responses:
        """These rows, in order."""
        batch = self.batch.take(rows)
        place = {int(old): new for new, old in enumerate(rows)}
        return Responses(
            batch,
            self.behaviour_B_T[rows, : batch.mask_B_T.shape[1]],
            tuple(self.prompts[i] for i in rows),
            tuple(self.texts[i] for i in rows),
            self.groups_B[rows],
            self.outcomes_B[rows],
            {place[i]: failure for i, failure in self.failures.items() if i in place},
            self.tokenizer,
        )


def join(parts: Sequence[Responses]) -> Responses:
    """Several sets of responses of one policy as one, in order; groups must already differ."""
    batch = concatenate([p.batch for p in parts], pad_id=pad_id(parts[0].tokenizer))
    behaviour = np.zeros(batch.mask_B_T.shape, dtype=np.float32)
    behaviour[batch.mask_B_T] = np.concatenate([p.behaviour_B_T[p.batch.mask_B_T] for p in parts])
    failures: dict[int, Failure] = {}
    start = 0
    for part in parts:
        failures |= {start + i: failure for i, failure in part.failures.items()}
        start += len(part)
    return Responses(
        batch,
        behaviour,
        tuple(p for part in parts for p in part.prompts),
        tuple(t for part in parts for t in part.texts),
        np.concatenate([p.groups_B for p in parts]),
        np.concatenate([p.outcomes_B for p in parts]),
        failures,
        parts[0].tokenizer,
    )


@dataclass(frozen=True, eq=False)
class Drawn:
    """The responses to learn from, and what became of the others.

    Attributes:
        kept: responses to learn from.
        generated: all that were written, those filtered out included.
        failed: reasons of every failed check, kept or not.
        facts: counts and shares for the log.
    """

    kept: Responses
    generated: int
    failed: list[Failure]
    facts: dict[str, float | None]


class Sampler:
    """Prompts in, judged responses out; remembers its place in the data and in the random numbers.

    Args:
        data: the `data` section.
        engine: writes.
        verifier: checks.
        prompts: to learn from.
        tokenizer: assembles prompts.
        seed: of the order of prompts and of sampling.
    """

    def __init__(
        self,
        data: DataSettings,
        engine: Engine,
        verifier: Verifier,
        prompts: Sequence[Prompt],
        tokenizer: Any,
        *,
        seed: int,
    ) -> None:
        self.data = data
        self.engine, self.verifier, self.tokenizer = engine, verifier, tokenizer
        fitting, self.too_long = short_enough(tokenizer, prompts, data)
        self.stream = PromptStream(fitting, seed=seed)
        self.rng = generator(seed, ACTING)
        self._groups = 0

    def draw(self, phase: Times = untimed) -> Drawn:
        """Responses to `train_batch_size` prompts that survive the filters.

        Prompts that survive beyond these are dropped with their responses and counted (`surplus_prompts`): the policy
        that wrote them will have changed by the next update.

        Args:
            phase: times `generate` and `verify`.

        Raises:
            DataError: too few survive, and `shortfall` says so or nothing else helps.
        """
        data = self.data
        wanted = data.train_batch_size
        parts: list[Responses] = []
        spare: list[Responses] = []
        tally = _Tally()
        for _ in range(MOST_DRAWS):
            fresh = self.answer(self.stream.take(int(wanted * data.oversample_factor)), data.n_samples, phase=phase)
            keep = self._survives(fresh)
            tally.add(fresh, keep)
            parts.append(fresh.take(np.flatnonzero(keep)))
            spare.append(fresh.take(np.flatnonzero(~keep)))
            if tally.survivors >= wanted or data.shortfall != "resample":
                break
        rows = wanted * data.n_samples
        kept = join(parts)
        if tally.survivors < wanted:
            if data.shortfall in ("error", "resample") or (data.shortfall == "shrink" and not len(kept)):
                raise DataError(self._starved(tally.survivors, tally.prompts))
            if data.shortfall == "fill":
                kept = join([kept, *spare])
        kept = kept.take(np.arange(min(rows, len(kept))))
        facts = tally.facts()
        facts["surplus_prompts"] = float(max(0, tally.survivors - wanted))
        return Drawn(kept, tally.responses, tally.failed, facts)

    def answer(self, prompts: Sequence[Prompt], n: int, *, greedy: bool = False, phase: Times = untimed) -> Responses:
        """`n` responses to each prompt, checked; each prompt becomes a new group."""
        ids = [prompt_ids(self.tokenizer, messages_of(p, self.data)) for p in prompts]
        rng = None if greedy else self.rng
        with phase("generate"):
            made = self.engine.generate(ids, n, max_new_tokens=self.data.max_response_length, rng=rng, greedy=greedy)
        groups = np.repeat(np.arange(self._groups, self._groups + len(prompts)), n)
        self._groups += len(prompts)
        everyone = [p for p in prompts for _ in range(n)]
        with phase("verify"):
            return judge(made, everyone, groups, self.verifier, self.data, self.tokenizer)

    def _survives(self, fresh: Responses) -> BoolArray:
        """(B,) bool, True for all rows of the prompts that pass the filters."""
        data, n = self.data, self.data.n_samples
        shape = (-1, n)
        known = fresh.known_B.reshape(shape)
        right = np.where(known, fresh.outcomes_B.reshape(shape), 0.0).sum(axis=1)
        keep = known.any(axis=1)
        if data.filter_accuracy:
            share = right / np.maximum(known.sum(axis=1), 1)
            slack = 1e-9  # 1/5 is not quite 0.2
            keep &= (share >= data.accuracy_lower_bound - slack) & (share <= data.accuracy_upper_bound + slack)
        if data.filter_truncated:
            keep &= fresh.batch.finished_B.reshape(shape).all(axis=1)
        return np.repeat(keep, n)

    def _starved(self, survivors: int, drawn: int) -> str:
        data = self.data
        bounds = f"accuracy from {data.accuracy_lower_bound:g} to {data.accuracy_upper_bound:g}"
        truncated = "truncated ones left out" if data.filter_truncated else "truncated ones kept"
        return (
            f"only {survivors} of {drawn} prompts survived the filters ({bounds}, {truncated}) where "
            f"data.train_batch_size is {data.train_batch_size}. Widen the bounds, raise data.max_response_length, take "
            "easier or harder prompts, or make data.shortfall fill or shrink"
        )

    def state_dict(self) -> dict[str, Any]:
        """Random numbers and the place in the data, as plain values."""
        stream = self.stream.state_dict()
        return {"rng": self.rng.bit_generator.state, "stream": stream, "groups": self._groups}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Return to a stored state."""
        self.rng.bit_generator.state = values["rng"]
        self.stream.load_state_dict(values["stream"])
        self._groups = int(values["groups"])


class _Tally:
    """Counts over the draws of one update."""

    def __init__(self) -> None:
        self.responses = self.prompts = self.survivors = self.tokens = 0
        self.failed: list[Failure] = []
        self._right = self._known = self._truncated = 0.0
        self._kept_right = self._kept_known = 0.0

    def add(self, fresh: Responses, keep: BoolArray) -> None:
        known = fresh.known_B
        self.responses += len(fresh)
        self.tokens += int(fresh.batch.mask_B_T.sum())
        self.prompts += len(np.unique(fresh.groups_B))
        self.survivors += len(np.unique(fresh.groups_B[keep]))
        self.failed += fresh.failures.values()
        self._right += float(fresh.outcomes_B[known].sum())
        self._known += float(known.sum())
        self._truncated += float((~fresh.batch.finished_B).sum())
        self._kept_right += float(fresh.outcomes_B[known & keep].sum())
        self._kept_known += float((known & keep).sum())

    def facts(self) -> dict[str, float | None]:
        return {
            "accuracy_before_filter": self._right / self._known if self._known else None,
            "accuracy_after_filter": self._kept_right / self._kept_known if self._kept_known else None,
            "truncated": self._truncated / self.responses,
            "tokens_generated": float(self.tokens),
            "prompts_drawn": float(self.prompts),
            "prompts_survived": float(self.survivors),
        }


def messages_of(prompt: Prompt, data: DataSettings) -> list[dict[str, str]]:
    """The chat that the policy sees."""
    return [dict(m) for m in insert_system_prompt(prompt.messages, data.system_prompt)]


def short_enough(tokenizer: Any, prompts: Sequence[Prompt], data: DataSettings) -> tuple[list[Prompt], int]:
    """The prompts of at most `max_prompt_length` tokens, and how many were longer.

    Raises:
        DataError: all are longer.
    """
    lengths = prompt_lengths(tokenizer, [messages_of(p, data) for p in prompts])
    fitting = [p for p, length in zip(prompts, lengths, strict=True) if length <= data.max_prompt_length]
    if not fitting:
        raise DataError(f"all {len(prompts)} prompts are longer than data.max_prompt_length ({data.max_prompt_length})")
    return fitting, len(prompts) - len(fitting)


def judge(
    made: Generation,
    prompts: Sequence[Prompt],
    groups_B: IntArray,
    verifier: Verifier,
    data: DataSettings,
    tokenizer: Any,
) -> Responses:
    """Check every response against the true answer of its prompt."""
    texts = response_texts(tokenizer, made.batch)
    found = [outcome(j, data.unparsable) for j in verifier.check_batch(texts, prompts)]
    failures = {i: f for i, f in enumerate(found) if isinstance(f, Failure)}
    outcomes = np.array([0.0 if isinstance(f, Failure) else f for f in found], dtype=np.float32)
    groups = groups_B.astype(np.int64)
    return Responses(
        made.batch, made.log_probs_B_T, tuple(prompts), tuple(texts), groups, outcomes, failures, tokenizer
    )
