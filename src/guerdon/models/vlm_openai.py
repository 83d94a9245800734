"""A vision-language model behind a chat completions endpoint: vLLM, SGLang, or any other that takes pictures.

Pictures travel as data URLs, so the endpoint fetches nothing. How likely words are is read from `top_logprobs`; where
the listed tokens leave more than a hundredth of it open, there is no measurement; a word that is not listed counts as
impossible. What may pass (429, 5xx, timeouts) is tried again within a deadline; a refused key or an unknown model
stops everything. This module does not know prompts or how answers are read.

    backend = OpenAIBackend(EndpointSettings(base_url="http://127.0.0.1:8000/v1", model="Qwen/Qwen2.5-VL-7B-Instruct"))
    backend.write([question], Writing(max_tokens=64))
"""

from __future__ import annotations

import base64
import io
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from PIL import Image

from guerdon.labels.chat import api_key
from guerdon.labels.wire import WireError, post_json
from guerdon.models.vlm_questions import ENDED, Choice, Picture, Question, Reply, Writing, says
from guerdon.retry import Clock, Crew, Retry, Todo, Tried
from guerdon.settings.label import JudgeSettings
from guerdon.settings.vlm import EndpointSettings
from guerdon.types import ByteArray, Failure

TOP = 20  # the most that endpoints list
VARIANTS = 10  # tokens that say one word: with and without space, capitals
OPEN_SHARE = 0.01  # of the probability in question that unlisted tokens may hold

T = TypeVar("T")


class OpenAIBackend:
    """Answers by an endpoint, several requests at a time.

    Args:
        settings: where it is, how patient to be.
        clock: time; tests bring their own.

    Raises:
        ConfigError: the key is not there.
    """

    def __init__(self, settings: EndpointSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        own = JudgeSettings(
            api="openai", model=settings.model, base_url=settings.base_url, api_key_env=settings.api_key_env
        )
        key = api_key(own) if settings.api_key_env else None
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._crew = Crew(Retry(settings.retries + 1), settings.concurrency, clock or Clock(), settings.deadline)

    @property
    def name(self) -> str:
        """What the endpoint calls the model."""
        return self.settings.model

    def write(self, questions: Sequence[Question], how: Writing) -> list[Reply | Failure]:
        """An answer to each question, in order.

        Raises:
            ConfigError: the endpoint refuses the key, the model or the path.
        """
        body: dict[str, Any] = {"max_tokens": how.max_tokens, "temperature": how.temperature}
        if how.temperature > 0:
            body |= {"top_p": how.top_p, "seed": how.seed}
        return self._all(questions, body, _reply)

    def choose(self, questions: Sequence[Question], groups: Sequence[Sequence[str]]) -> list[Choice | Failure]:
        """For each question, how likely the answer begins with a word of each group.

        Raises:
            ConfigError: the endpoint refuses the key, the model or the path.
        """
        body = {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "logprobs": True, "top_logprobs": TOP}
        return self._all(questions, body, lambda payload: _choice(payload, groups))

    def _all(
        self, questions: Sequence[Question], body: Mapping[str, Any], decode: Callable[[Any], T | Failure]
    ) -> list[T | Failure]:
        """An answer to each question, in order."""
        todo: Todo[int, T | Failure] = deque()
        todo += ((i, partial(self._try, question, body, decode)) for i, question in enumerate(questions))
        answers: dict[int, T | Failure] = dict(self._crew.run(todo))
        return [answers[i] for i in range(len(questions))]

    def _try(
        self, question: Question, body: Mapping[str, Any], decode: Callable[[Any], T | Failure], seconds: float
    ) -> Tried[T | Failure]:
        s = self.settings
        payload = {"model": s.model, "messages": chat_messages(question, s.image_format), **body}
        url = s.base_url.rstrip("/") + "/chat/completions"
        try:
            found = post_json(
                url, self._headers, payload, timeout=min(s.timeout, seconds), clock=self._crew.clock,
                who="the vision-language model", check="vlm.openai",
            )  # fmt: skip
        except WireError as error:
            return Tried(Failure(error.reason, str(error)), again=error.again, asked=error.asked)
        return Tried(decode(found))


def chat_messages(question: Question, image_format: Literal["png", "jpeg"] = "png") -> list[dict[str, Any]]:
    """A question as chat messages: pictures and videos as data URLs, then the words."""
    parts: list[dict[str, Any]] = []
    for part in question.media:
        if isinstance(part, Picture):
            url = f"data:image/{image_format};base64,{_encoded(part.pixels, image_format)}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
        else:
            frames = ",".join(_encoded(frame, "jpeg") for frame in part.frames)
            parts.append({"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{frames}"}})
    parts.append({"type": "text", "text": question.asked.text})
    system = [{"role": "system", "content": question.asked.system}] if question.asked.system else []
    return [*system, {"role": "user", "content": parts}]


def choice_of(listed: Sequence[tuple[str, float]], groups: Sequence[Sequence[str]], tokens: int) -> Choice | Failure:
    """Log-probabilities of groups of words from the likeliest tokens.

    Args:
        listed: tokens and their log-probabilities.
        groups: of words, lower case.
        tokens: that the model read.

    Returns:
        The choice; or `low_probability` where the tokens that are not listed might change it by more than a hundredth.
    """
    values = np.array([value for _, value in listed], dtype=np.float64)
    if not len(values) or np.isnan(values).any() or (values > 1e-6).any():
        return Failure("no_logprobs", "the endpoint lists no log-probabilities of tokens")
    found = [[value for token, value in listed if says(token, words)] for words in groups]
    sums = np.array([np.logaddexp.reduce(group) if group else -np.inf for group in found])
    total = float(np.exp(sums).sum())
    rest = max(1.0 - float(np.exp(values).sum()), 0.0)
    unseen = min(VARIANTS * len(groups) * float(np.exp(values.min())), rest)
    if total <= 0 or unseen > OPEN_SHARE * total:
        return Failure(
            "low_probability",
            f"the {len(listed)} likeliest tokens hold {total:.2g} of the answer, others up to {unseen:.2g}",
        )
    return Choice(sums, tokens)


def _reply(payload: Any) -> Reply | Failure:
    try:
        choice = payload["choices"][0]
        message = choice["message"]
        text, refusal = message.get("content"), message.get("refusal")
        whole = choice.get("finish_reason") in ENDED
        filtered = choice.get("finish_reason") == "content_filter"
    except (KeyError, TypeError, IndexError, AttributeError):
        return Failure("bad_reply", f"not what the API promises: {str(payload)[:80]!r}")
    if refusal or filtered:
        return Failure("refusal", str(refusal or text or "")[:200])
    if not isinstance(text, str):
        return Failure("bad_reply", f"no text: {str(payload)[:80]!r}")
    return Reply(text, _tokens(payload), whole)


def _choice(payload: Any, groups: Sequence[Sequence[str]]) -> Choice | Failure:
    try:
        first = payload["choices"][0]["logprobs"]["content"][0]
        listed = [(str(top["token"]), float(top["logprob"])) for top in first["top_logprobs"]]
    except (KeyError, TypeError, IndexError, ValueError):
        return Failure("no_logprobs", "the endpoint gives no top_logprobs: use answer hard, or another endpoint")
    return choice_of(listed, groups, _tokens(payload))


def _tokens(payload: Any) -> int:
    usage = payload.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) and count >= 0 else 0


def _encoded(pixels_H_W_3: ByteArray, image_format: Literal["png", "jpeg"]) -> str:
    out = io.BytesIO()
    options: dict[str, Any] = {"quality": 95} if image_format == "jpeg" else {}
    Image.fromarray(pixels_H_W_3).save(out, format=image_format, **options)
    return base64.b64encode(out.getvalue()).decode("ascii")
