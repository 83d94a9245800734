"""Backends of vision-language models that take chat messages: an HTTP endpoint, or vLLM in this process.

Pictures travel as data URLs, so an endpoint (vLLM, SGLang, or any other chat completions endpoint that takes pictures)
fetches nothing. Probabilities of words are read from `top_logprobs`; where the listed tokens leave more than a
hundredth open, there is no measurement; a word that is not listed counts as impossible. Temporary errors (429, 5xx,
timeouts) are retried within a deadline; a refused key or an unknown model stops everything.

    backend = OpenAIBackend(EndpointSettings(base_url="http://127.0.0.1:8000/v1", model="Qwen/Qwen2.5-VL-7B-Instruct"))
    backend = VLLMBackend("Qwen/Qwen2.5-VL-7B-Instruct", None, VLLMSettings(tensor_parallel_size=2))
    backend.generate([question], GenerationOptions(max_tokens=64))
"""

from __future__ import annotations

import base64
import importlib
import io
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from PIL import Image

from guerdon.config.loading import api_key
from guerdon.endpoints.chat_replies import has_reasoning, is_whole_json, kind_of_end, model_of, refusal_of, text_of
from guerdon.endpoints.endpoint import AcceptedSettings, ReplyModels, bearer, endpoint, neutral, post_json
from guerdon.errors import CheckpointError, ConfigError, GuerdonError, boundary, needs
from guerdon.models.frames import limit_pixels
from guerdon.models.vlm.vlm_prompts import (
    GenerationOptions,
    Picture,
    Question,
    VLMReply,
    WordLogProbs,
    matches_word,
)
from guerdon.network.hub import adapter_config, check_folder, model_folder
from guerdon.network.retry import Attempt, Calls, Clock, HttpFailure, RequestPool, Retry, check_proxies, error_message
from guerdon.policies.pretrained.adapter_files import changes_base
from guerdon.processes.call_queue import alone
from guerdon.secrets import remember
from guerdon.settings.vlm import EndpointSettings, VLLMSettings
from guerdon.tasks.replies import opened_reasoning
from guerdon.types import ByteArray, Failure

TOP = 20  # the most that endpoints list
VARIANTS = 10  # tokens that say one word: with and without space, capitals
OPEN_SHARE = 0.01  # of the probability in question that unlisted tokens may hold

MAX_PICTURES = 128  # of one question, for vLLM

T = TypeVar("T")


class OpenAIBackend:
    """Answers of a chat completions endpoint, several requests at a time.

    Attributes:
        models: which of them wrote the answers.

    Args:
        settings: address, retries and timeouts.
        clock: the time, for tests.
        template: arguments of the chat template, for vLLM and SGLang.

    Raises:
        ConfigError: the key is missing.
    """

    def __init__(
        self, settings: EndpointSettings, clock: Clock | None = None, *, template: Mapping[str, Any] | None = None
    ) -> None:
        self.settings = settings
        self._template = {"chat_template_kwargs": dict(template)} if template else {}
        remember(settings.model_dump())
        check_proxies(settings.base_url)
        key = api_key(settings.api_key_env) if settings.api_key_env else None
        self._headers = bearer(settings.base_url, key)
        who = f"the vision-language model {settings.model}"
        self._accepted = AcceptedSettings(who, settings.leave_out)
        self.models = ReplyModels(who)
        self._pool = RequestPool(Retry(settings.retries + 1), settings.concurrency, clock or Clock(), settings.deadline)

    def generate(self, questions: Sequence[Question], options: GenerationOptions) -> list[VLMReply | Failure]:
        """An answer to each question, in order.

        Raises:
            ConfigError: the endpoint refuses the key, the model or the path.
        """
        return self._all(questions, options.request(), _reply)

    def word_log_probs(
        self, questions: Sequence[Question], groups: Sequence[Sequence[str]]
    ) -> list[WordLogProbs | Failure]:
        """For each question, the log-probability that the answer begins with a word of each group.

        Raises:
            ConfigError: the endpoint refuses the key, the model or the path.
        """
        body = {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "logprobs": True, "top_logprobs": TOP}
        return self._all(questions, body, lambda payload: _first_word(payload, groups))

    def _all(
        self, questions: Sequence[Question], body: Mapping[str, Any], decode: Callable[[Any], T | Failure]
    ) -> list[T | Failure]:
        """The decoded answer to each question, in order."""
        todo: Calls[int, T | Failure] = deque()
        todo += ((i, partial(self._try, question, body, decode)) for i, question in enumerate(questions))
        answers: dict[int, T | Failure] = dict(self._pool.run(todo))
        return [answers[i] for i in range(len(questions))]

    def _try(
        self, question: Question, body: Mapping[str, Any], decode: Callable[[Any], T | Failure], seconds: float
    ) -> Attempt[T | Failure]:
        s = self.settings
        messages = chat_messages(question)
        url = endpoint(s.base_url, "/chat/completions")
        payload = {
            "model": s.model, "stream": False, "messages": messages, **neutral(body["temperature"]), **self._template,
            **body,
        }  # fmt: skip
        try:
            found = post_json(
                url, self._headers, payload, timeout=min(s.timeout, seconds), clock=self._pool.clock,
                who="the vision-language model", check="vlm.openai", accepted=self._accepted,
            )  # fmt: skip
            answer = decode(found)
        except HttpFailure as error:
            if self._template and error.reason == "rejected" and "chat_template_kwargs" in str(error):
                raise ConfigError(
                    f"{url} refuses vlm.chat_template_kwargs ({error}): remove it", key="vlm.chat_template_kwargs"
                ) from error
            return Attempt(Failure(error.reason, str(error)), again=error.again, retry_after=error.retry_after)
        self.models.count(model_of(found))
        return Attempt(answer)


def chat_messages(question: Question) -> list[dict[str, Any]]:
    """A question as chat messages: pictures and videos as data URLs, then the words."""
    parts: list[dict[str, Any]] = []
    for part in question.media:
        shown = part.pixels[None] if isinstance(part, Picture) else part.frames
        if part.max_pixels is not None:
            shown = limit_pixels(shown, part.max_pixels)
        if isinstance(part, Picture):
            url = f"data:image/png;base64,{_encoded(shown[0], 'png')}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
        else:
            frames = ",".join(_encoded(frame, "jpeg") for frame in shown)
            parts.append({"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{frames}"}})
    parts.append({"type": "text", "text": question.prompt.text})
    system = [{"role": "system", "content": question.prompt.system}] if question.prompt.system else []
    return [*system, {"role": "user", "content": parts}]


def group_log_probs(
    listed: Sequence[tuple[str, float]], groups: Sequence[Sequence[str]], tokens: int
) -> WordLogProbs | Failure:
    """Log-probabilities of groups of words from those of the most likely tokens.

    Args:
        listed: tokens and their log-probabilities.
        groups: of words, lower case.
        tokens: input tokens.

    Returns:
        The log-probabilities; or `low_probability` where unlisted tokens might change them by more than a hundredth.
    """
    values = np.array([value for _, value in listed], dtype=np.float64)
    if not len(values) or np.isnan(values).any() or (values > 1e-6).any():
        return Failure("no_logprobs", "the endpoint lists no log-probabilities of tokens")
    found = [[value for token, value in listed if matches_word(token, words)] for words in groups]
    sums = np.array([np.logaddexp.reduce(group) if group else -np.inf for group in found])
    total = float(np.exp(sums).sum())
    rest = max(1.0 - float(np.exp(values).sum()), 0.0)
    unseen = min(VARIANTS * len(groups) * float(np.exp(values.min())), rest)
    if total <= 0 or unseen > OPEN_SHARE * total:
        return Failure(
            "low_probability",
            f"the {len(listed)} likeliest tokens hold {total:.2g} of the answer, others up to {unseen:.2g}",
        )
    return WordLogProbs(sums, tokens)


def _choice(payload: Any) -> Mapping[str, Any]:
    """The choice of a reply.

    Raises:
        HttpFailure: there is none.
    """
    choices = payload.get("choices") if isinstance(payload, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, Mapping) or not isinstance(choice.get("message"), Mapping):
        raise HttpFailure("bad_reply", f"no choice in the reply: {error_message(payload, 80)!r}")
    return choice


def _reply(payload: Any) -> VLMReply | Failure:
    choice = _choice(payload)
    message = choice["message"]
    stop = choice.get("finish_reason")
    text = text_of(message.get("content"))
    refusal = refusal_of(message)
    end = kind_of_end(stop)
    if refusal or end == "refusal":
        return Failure("refusal", (refusal or text)[:200])
    if not text.strip() and end in ("end", "unknown") and not has_reasoning(message):
        raise HttpFailure("bad_reply", "no text in the reply")
    whole = end == "end" or (end == "unknown" and is_whole_json(text))
    return VLMReply(text, _tokens(payload), whole, str(stop or "no finish_reason"))


def _first_word(payload: Any, groups: Sequence[Sequence[str]]) -> WordLogProbs | Failure:
    choice = _choice(payload)
    if kind_of_end(choice.get("finish_reason")) == "refusal":
        return Failure("refusal", text_of(choice["message"].get("content"))[:200])
    try:
        first = choice["logprobs"]["content"][0]
        listed = [(str(top["token"]), float(top["logprob"])) for top in first["top_logprobs"]]
    except (KeyError, TypeError, IndexError, ValueError):
        return Failure("no_logprobs", "the endpoint gives no top_logprobs: use answer hard, or another endpoint")
    return group_log_probs(listed, groups, _tokens(payload))


def _tokens(payload: Any) -> int:
    usage = payload.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) and count >= 0 else 0


def _encoded(pixels_H_W_3: ByteArray, image_format: Literal["png", "jpeg"]) -> str:
    out = io.BytesIO()
    options: dict[str, Any] = {"quality": 95} if image_format == "jpeg" else {}
    Image.fromarray(pixels_H_W_3).save(out, format=image_format, **options)
    return base64.b64encode(out.getvalue()).decode("ascii")


class VLLMBackend:
    """Answers of a vLLM engine in this process.

    Args:
        path: folder or hub id of the model.
        adapter: peft folder; None for the weights alone.
        settings: of the engine.
        template: arguments of the chat template.

    Raises:
        MissingDependencyError: vLLM is not installed.
        GuerdonError: it does not start with this model.
    """

    def __init__(
        self, path: str, adapter: str | None, settings: VLLMSettings, *, template: Mapping[str, Any] | None = None
    ) -> None:
        self._template = {"chat_template_kwargs": dict(template)} if template else {}
        with needs("vlm.backend vllm needs vLLM: pip install vllm, or use backend transformers or openai"):
            self._vllm = importlib.import_module("vllm")
        self._lora: Any = None
        options: dict[str, Any] = {}
        if adapter is not None:
            config = adapter_config(Path(adapter))
            if made := changes_base(config):
                raise CheckpointError(
                    f"the adapter {adapter} was made with init_lora_weights {made!r}, which changes the weights under "
                    "it; vLLM reads it without that: take backend transformers, or merge it"
                )
            with boundary(CheckpointError, f"the adapter {adapter} cannot be read"):
                rank = int(config["r"])
            options = {"enable_lora": True, "max_lora_rank": max(8, 1 << (rank - 1).bit_length())}
            request = importlib.import_module("vllm.lora.request")
            self._lora = request.LoRARequest("reward", 1, str(Path(adapter).resolve()))
        if settings.max_model_len is not None:
            options["max_model_len"] = settings.max_model_len
        with boundary(GuerdonError, "vLLM does not start with this model"):
            for folder in (model_folder(path), None if adapter is None else Path(adapter)):
                if folder is not None:
                    check_folder(CheckpointError, "the vision-language model", folder)
            self._llm: Any = self._vllm.LLM(
                model=path,
                trust_remote_code=False,
                tensor_parallel_size=settings.tensor_parallel_size,
                gpu_memory_utilization=settings.gpu_memory_utilization,
                limit_mm_per_prompt={"image": MAX_PICTURES, "video": 1},
                max_logprobs=TOP,
                **options,
            )

    def generate(self, questions: Sequence[Question], options: GenerationOptions) -> list[VLMReply | Failure]:
        """An answer to each question, in order."""
        return [
            VLMReply(
                opened_reasoning(found.prompt or "") + found.outputs[0].text,
                _tokens_read(found),
                whole=kind_of_end(found.outputs[0].finish_reason) == "end",
            )
            for found in self._chat(questions, {**options.request(), "skip_special_tokens": False})
        ]

    def word_log_probs(
        self, questions: Sequence[Question], groups: Sequence[Sequence[str]]
    ) -> list[WordLogProbs | Failure]:
        """For each question, the log-probability that the answer begins with a word of each group."""
        choices: list[WordLogProbs | Failure] = []
        for found in self._chat(questions, {"max_tokens": 1, "temperature": 1.0, "logprobs": TOP}):
            first = found.outputs[0].logprobs[0]
            listed = [(str(entry.decoded_token), float(entry.logprob)) for entry in first.values()]
            choices.append(group_log_probs(listed, groups, _tokens_read(found)))
        return choices

    @alone
    def _chat(self, questions: Sequence[Question], sampling: dict[str, Any]) -> list[Any]:
        with boundary(GuerdonError, "vLLM failed to answer"):
            found: list[Any] = self._llm.chat(
                [chat_messages(question) for question in questions],
                self._vllm.SamplingParams(**sampling),
                lora_request=self._lora,
                use_tqdm=False,
                **self._template,
            )
        return found


def _tokens_read(found: Any) -> int:
    return len(found.prompt_token_ids or ())
