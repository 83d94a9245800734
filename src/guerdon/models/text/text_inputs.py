r"""A question and the steps of a solution as token ids: the same for training, scoring and serving.

The question becomes a chat prompt. Every step is tokenised by itself, so the ids of a step never depend on what comes
after it, a step always ends with a token of its own, and a solution that is cut off after step k reads exactly as the
first k steps of the whole. (Tokenised in one piece, a token such as ` So` or `\n\n` would straddle two steps, and its
label would belong to both.)

    reading = read_steps(tokenizer, "3+5=?", ["3+5=8;", "done"])
    reading.ids[reading.ends_S]              # the last token of each step: where labels and scores stand
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guerdon.errors import DataError
from guerdon.models.explained_score import ExplainedScore
from guerdon.policies.batches.packing import Layout, lay_out
from guerdon.policies.batches.passes import passes
from guerdon.policies.batches.prompt_sharing import lay_out_compact
from guerdon.policies.batches.tokens import TokenBatch, pad_id, piece_ids, prompt_ids, token_batch
from guerdon.policies.language.text import TextPolicy
from guerdon.reading.chats import ChatError, beyond_question
from guerdon.types import BoolArray, Failure, FloatArray, IntArray, Message, Score, Tool


@dataclass(frozen=True, eq=False)
class Reading:
    """A solution as a model reads it.

    Attributes:
        ids: (L,) prompt and steps.
        start: where the first step begins.
        ends_S: for each step the place of its last token in `ids`; a step without any text has that of the token
            before it.
        tail: tokens that a form puts after each step, besides those of the text.
    """

    ids: IntArray
    start: int
    ends_S: IntArray
    tail: int = 0

    def __len__(self) -> int:
        return len(self.ids) + self.tail * len(self.ends_S)

    @property
    def reach(self) -> int:
        """Positions that it takes: a tail is at the positions of the text after its step."""
        return len(self.ids) + self.tail

    @property
    def own_S(self) -> BoolArray:
        """(S,) whether a step has a token of its own."""
        return np.asarray(np.diff(self.ends_S, prepend=self.start - 1) > 0)


def close_steps(steps: Sequence[str], separator: str) -> tuple[str, ...]:
    """Steps that end in line breaks with these line breaks; others as they are.

    Data sets join steps by one line break or by two, and a model that was trained on one of them gives other values
    for the other. What follows a step does not change how it ends, but for the last step, which may be open.

    Args:
        steps: the steps of a solution.
        separator: what ended the steps that a model was trained on; nothing happens where it is not a line break.
    """
    if separator.strip() or "\n" not in separator:
        return tuple(steps)
    found = []
    for k, step in enumerate(steps):
        body = step.rstrip()
        blanks = step[len(body) :]
        ends = "\n" in blanks or (bool(body) and not blanks and k < len(steps) - 1)
        found.append(body + separator if ends else step)
    return tuple(found)


def read_steps(
    tokenizer: Any,
    question: str,
    steps: Sequence[str],
    *,
    closed: bool = False,
    system_prompt: str | None = None,
    context: Sequence[Message] = (),
    tools: Sequence[Tool] = (),
) -> Reading:
    """A solution in the chat form: the question as the user's turn, the steps as the assistant's.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        question: the question.
        steps: the steps of the solution, separators included.
        closed: put the end-of-sequence token behind the last step.
        system_prompt: a system turn before the question, where the conversation has none of its own.
        context: as `Episode.context`.
        tools: as `Episode.tools`.

    Raises:
        ConfigError: the tokenizer has no chat template.
        ChatError: the template cannot write the conversation in full.
        DataError: a character the tokenizer does not know.
    """
    prompt = prompt_ids(tokenizer, asked_messages(question, context, system_prompt), tools)
    pieces = piece_ids(tokenizer, steps)
    ends = len(prompt) - 1 + np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    ids = np.concatenate([prompt, *pieces])
    if closed:
        ids = np.append(ids, np.int64(tokenizer.eos_token_id))
    return Reading(ids, len(prompt), ends)


def asked_messages(question: str, context: Sequence[Message], system_prompt: str | None = None) -> list[Message]:
    """The conversation up to an answer, with a system turn in front where it has none.

    Args:
        question: the last user's turn.
        context: as `Episode.context`.
        system_prompt: text of that system turn; None: none is put there.
    """
    messages: list[Message] = list(context) or [{"role": "user", "content": question}]
    if system_prompt is None or any(message["role"] == "system" for message in messages):
        return messages
    return [{"role": "system", "content": system_prompt}, *messages]


def unread(error: DataError) -> Failure:
    """Why a model cannot read an episode: the reason of the error, else a character that its tokenizer lacks."""
    return Failure(getattr(error, "reason", "unknown_character"), str(error))


def refuse_conversation(name: str, context: Sequence[Message], tools: Sequence[Tool]) -> None:
    """Refuse what a model that reads one question has no form for.

    Raises:
        ChatError: there is more than one user's turn.
    """
    if beyond := beyond_question(context, tools):
        raise ChatError(f"{name} reads one question and its solution; the conversation also has {beyond}: remove it")


def buckets(
    readings: Sequence[Reading], size: int, *, tokens: int | None = None, each: int = 1, apart: int | None = None
) -> list[IntArray]:
    """Indices in groups of at most `size`, the like-long together: see `guerdon.policies.batches.passes.passes`."""
    return passes([len(r) for r in readings], size=size, tokens=tokens, each=each, apart=apart)


def judge_readings(
    readings: Sequence[Reading | Failure],
    size: int,
    score: Callable[[Sequence[Reading]], Sequence[Score]],
    *,
    tokens: int | None = None,
    apart: int | None = None,
) -> list[ExplainedScore]:
    """Scores of readings with the number of tokens read, in order; nothing is ever left out.

    Args:
        readings: or why a solution cannot be read.
        size: readings at a time.
        score: scores of a few readings of like length.
        tokens: most tokens at a time, padding included; None: any number.
        apart: see `guerdon.policies.batches.passes.passes`.
    """
    found = {i: ExplainedScore(Score(failure=r)) for i, r in enumerate(readings) if isinstance(r, Failure)}
    whole = {i: r for i, r in enumerate(readings) if not isinstance(r, Failure)}
    rows = list(whole)
    for group in buckets(list(whole.values()), size, tokens=tokens, apart=apart):
        batch = [whole[rows[k]] for k in group]
        for k, reading, one in zip(group, batch, score(batch), strict=True):
            found[rows[k]] = ExplainedScore(one, tokens=len(reading))
    return [found[i] for i in range(len(readings))]


def split_steps(readings: Sequence[Reading], values_M: np.ndarray) -> list[FloatArray]:
    """Values of all steps, solution by solution, as an array (S,) for each solution."""
    return np.split(np.asarray(values_M, dtype=np.float32), np.cumsum([len(r.ends_S) for r in readings])[:-1])


def as_batch(policy: TextPolicy, readings: Sequence[Reading]) -> TokenBatch:
    """Readings as prompts and responses."""
    return token_batch(
        [r.ids[: r.start] for r in readings],
        [r.ids[r.start :] for r in readings],
        np.ones(len(readings), dtype=np.bool_),
        pad_id=pad_id(policy.tokenizer),
    )


def hidden_at(
    policy: TextPolicy, readings: Sequence[Reading], places: Sequence[IntArray], *, compact: bool = False
) -> Tensor:
    """Last hidden states of a policy at places of each reading, one after the other; (sum of places, H) float32.

    Args:
        policy: the language model.
        readings: what it reads.
        places: of each reading.
        compact: where the model can, read without padding, and what several have before their `start` once.
    """
    base, lengths = policy.base, [len(r.ids) for r in readings]
    if len(apart := base.ropes.apart(lengths)) > 1:
        found = [hidden_at(policy, [readings[i] for i in rows], [places[i] for i in rows], compact=compact)
                 for rows in apart]  # fmt: skip
        return in_order(found, apart, [len(p) for p in places])
    batch = as_batch(policy, readings)
    longest, packed = max(lengths), policy.remove_padding
    eager = base.eager_for(longest)
    if compact and not packed and base.settings.share_prompts and base.packs:
        layout, at = lay_out_compact(batch, places, window=base.window, device=policy.device, eager=eager)
        return hidden_of(policy, layout, at)
    layout = lay_out(batch, pad_id=pad_id(policy.tokenizer), packed=packed, device=policy.device, eager=eager)
    starts = np.cumsum([0, *lengths[:-1]]) if packed else np.arange(len(lengths)) * longest
    return hidden_of(policy, layout, np.concatenate([s + p for s, p in zip(starts, places, strict=True)]))


def in_order(parts: Sequence[Tensor], apart: Sequence[IntArray], counts: Sequence[int]) -> Tensor:
    """Values of all readings in their order, from those of several parts of them.

    Args:
        parts: values of the readings of each part, one reading after the other.
        apart: which readings each part has.
        counts: values of each reading.
    """
    ends = np.cumsum(counts)
    places = np.concatenate([np.arange(ends[i] - counts[i], ends[i]) for rows in apart for i in rows])
    return torch.cat(list(parts))[torch.from_numpy(np.argsort(places)).to(parts[0].device)]


def hidden_of(policy: TextPolicy, layout: Layout, places_M: IntArray) -> Tensor:
    """Last hidden states of a layout at places in its flattened ids; (M, H) float32."""

    def compute() -> Tensor:
        hidden = policy.base.hidden(layout, dropout=policy.dropout)
        return hidden[torch.from_numpy(places_M).to(hidden.device)].float()

    with policy.base.adapter(policy.adapter):
        return policy.base.run(compute)
