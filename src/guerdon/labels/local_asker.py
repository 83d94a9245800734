"""A language model in this process, asked like one behind an API: cached, checked, free of charge.

This module does not know what is asked.

    asker = LocalAsker(Completer(policy, generation, cache, seed=0), name="Qwen/Qwen3-4B")
    answers = asker.ask(requests, checks, role="judge")
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from guerdon.labels.asking import Check, T, unusable
from guerdon.labels.chat import ChatReply, ChatRequest
from guerdon.labels.completions import Ask, Completer, Sampling
from guerdon.policies.tokens import prompt_ids
from guerdon.types import Failure


class LocalAsker:
    """Asks a model that runs here; a reply that is not usable is not asked for again, as it would be the same.

    Args:
        completer: writes the replies.
        name: how data sets call the model.
    """

    def __init__(self, completer: Completer, name: str) -> None:
        self._completer, self.name = completer, name

    def answers(
        self, requests: Sequence[ChatRequest], checks: Sequence[Check[T]], *, role: str
    ) -> Generator[tuple[int, T | Failure]]:
        """The answers, all at once."""
        yield from enumerate(self.ask(requests, checks, role=role))

    def ask(self, requests: Sequence[ChatRequest], checks: Sequence[Check[T]], *, role: str) -> list[T | Failure]:
        """An answer to each request, in order.

        Raises:
            DataError: a request does not fit the model.
        """
        answers: dict[int, T | Failure] = {}
        groups: dict[tuple[int, float | None], list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault((request.max_tokens, request.temperature), []).append(i)
        for (limit, temperature), rows in groups.items():
            asks = [
                Ask(prompt_ids(self._completer.policy.tokenizer, requests[i].messages), salt=str(requests[i].sample))
                for i in rows
            ]
            sampling = Sampling(1.0 if temperature is None else temperature)
            drawn = self._completer.complete(asks, n=1, limit=limit, sampling=sampling, purpose=role)
            for i, texts in zip(rows, drawn, strict=True):
                reply = ChatReply(texts[0].text, "end" if texts[0].finished else "length")
                answers[i] = unusable(reply) or checks[i](reply)
        return [answers[i] for i in range(len(requests))]
