"""A policy as a `Writer`: goes on from a question and what is written so far.

The prefix is tokenised by itself, as responses are in training, and follows the question's ids. Generation knows no
stop text, so a step is cut out of what was written, at most `step_tokens` tokens per call. A prefix is not tokenised as
it was written where tokens straddle the end of a step; character tokenizers and blank-line separators are safe. This
module does not know reward models.

    writer = PolicyWriter(engine, tokenizer, max_new_tokens=256, rng=np.random.default_rng(0))
    writer.continue_([("3+5=?;?*2=?;", "3+5=8;")], 4, ";")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from guerdon.evaluate.search import Piece
from guerdon.policies.generate import Engine
from guerdon.policies.tokens import prompt_ids, response_ids, response_texts, sequence
from guerdon.types import IntArray
from guerdon.worlds.prompts import insert_system_prompt


class PolicyWriter:
    """Samples from a language model.

    Args:
        engine: who generates.
        tokenizer: its tokenizer.
        max_new_tokens: tokens of a whole solution; one that has them all gets an empty, unfinished piece.
        rng: source of the samples.
        step_tokens: where a piece is cut that ends at a separator; None: where the solution's tokens are used up.
            With it, solutions of different lengths go on in one call; give it where steps are short.
        system_prompt: stands in front of each question.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        *,
        max_new_tokens: int,
        rng: np.random.Generator,
        step_tokens: int | None = None,
        system_prompt: str | None = None,
    ) -> None:
        self.engine, self.tokenizer, self.rng = engine, tokenizer, rng
        self.max_new_tokens = max_new_tokens
        self.step_tokens = max_new_tokens if step_tokens is None else step_tokens
        self.system_prompt = system_prompt

    def continue_(self, contexts: Sequence[tuple[str, str]], n: int, stop: str | None) -> list[list[Piece]]:
        """See `Writer.continue_`.

        Raises:
            DataError: a character that the tokenizer does not know, or no room for question, prefix and piece.
        """
        pieces: list[list[Piece]] = [[Piece("", False)] * n for _ in contexts]
        ids = []
        calls: dict[int, list[int]] = {}  # tokens to write: contexts that get so many
        for k, (question, written) in enumerate(contexts):
            prompt, prefix = self._ids(question, written)
            ids.append(sequence(prompt, prefix))
            room = self.max_new_tokens - len(prefix)
            if room > 0:
                calls.setdefault(room if stop is None else min(room, self.step_tokens), []).append(k)
        for limit, members in sorted(calls.items()):
            batch = self.engine.generate([ids[k] for k in members], n, max_new_tokens=limit, rng=self.rng).batch
            found = [
                _cut(text, bool(finished), stop)
                for text, finished in zip(response_texts(self.tokenizer, batch), batch.finished_B, strict=True)
            ]
            for i, k in enumerate(members):
                pieces[k] = found[i * n : (i + 1) * n]
        return pieces

    def _ids(self, question: str, written: str) -> tuple[IntArray, IntArray]:
        messages = insert_system_prompt(({"role": "user", "content": question},), self.system_prompt)
        prefix = response_ids(self.tokenizer, written)[:-1] if written else np.zeros(0, dtype=np.int64)
        return prompt_ids(self.tokenizer, messages), prefix


def _cut(text: str, finished: bool, stop: str | None) -> Piece:
    """The text up to and with the stop; what is cut off behind it was not written, so the piece goes on.

    A text that ends with its first stop and was ended by the writer is finished.
    """
    end = -1 if stop is None else text.find(stop)
    if stop is None or end < 0:
        return Piece(text, finished)
    end += len(stop)
    return Piece(text[:end], finished and not text[end:].strip())
