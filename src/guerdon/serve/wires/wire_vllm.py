"""`/classify`, `/pooling` and `/v1/models` in vLLM's format, which verl and others use.

`/classify` gives one value per response, `/pooling` with the task `token_classify` one per step. Texts made by a chat
template are parsed; a client that can should send `messages`.

    verl: reward.reward_model.model_path = the name of the served model; its router address = 127.0.0.1:18080
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Generic, Literal, TypeVar

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from guerdon.models.explained_score import ExplainedScore
from guerdon.serve.errors import ERRORS, BadRequest
from guerdon.serve.model_queue import ModelQueue
from guerdon.serve.wires import wire
from guerdon.serve.wires.wire_text import CutError, PromptResponse, cut_or_failure, from_messages, marked_steps
from guerdon.settings.serve import LimitSettings
from guerdon.types import Failure

D = TypeVar("D")
_STARTED = int(time.time())
routes = APIRouter(tags=["vllm"], responses=ERRORS)


class PoolRequest(wire.ForeignBody):
    """Request of clients of vLLM's pooling models."""

    model: str | None = Field(None, max_length=200, description="which model; the default if left out")
    input: str | wire.Strings | None = Field(
        None, description="question and response as one text, from a chat template"
    )
    messages: wire.Messages | None = Field(
        None, description="instead of input: chat messages, the last one the assistant's response"
    )
    tools: wire.Messages | None = Field(
        None, description="with messages: functions that can be called in them, as JSON schemas"
    )
    task: Literal["token_classify", "classify"] | None = Field(
        None, description="a value per step, or one per response; left out: what the model gives"
    )
    use_activation: bool | None = Field(
        None,
        strict=True,
        description="values are those of the model; true is refused if they are not probabilities",
    )
    activation: bool | None = Field(None, strict=True, description="the older name of use_activation")


class Classified(BaseModel):
    """One response."""

    index: int
    label: str | None = None
    probs: list[float] | None = Field(description="one value; null: the measurement failed")
    num_classes: int = 1
    failure: wire.FailureReason | None = None


class Pooled(BaseModel):
    """One response."""

    index: int
    object: Literal["pooling"] = "pooling"
    data: list[list[float]] | list[float] | None = Field(
        description="per step [wrong, right], or [value] if values are not probabilities; null: it failed"
    )
    failure: wire.FailureReason | None = None


class PoolingAnswer(BaseModel, Generic[D]):
    """Values of responses, or of their steps."""

    id: str = Field(default_factory=lambda: f"pool-{uuid.uuid4().hex}")
    object: Literal["list"] = "list"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    data: list[D]
    usage: wire.CompletionUsage


class Gain(BaseModel):
    """An expected change with the bounds that 90 % of known reward models kept."""

    estimate: float | None
    low: float | None
    high: float | None


class Forecast(BaseModel):
    """What `guerdon evaluate` said of a model: will it help RL?"""

    answer: Literal["harms", "no effect", "helps", "unknown"]
    probabilities: dict[str, float] | None = Field(description="of harms, no effect, helps; null where unknown")
    gain: Gain | None = Field(description="expected change of true success; null where unknown")
    reasons: list[str] = Field(description="the strongest first; where unknown, why")


class ModelEntry(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int = _STARTED
    owned_by: str = "guerdon"
    forecast: Forecast | None = Field(
        None,
        description="whether it will help RL, from its card; null where it was not evaluated",
    )


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


_TEXT = "<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n8<|im_end|>\n"
_STEPS = [{"role": "user", "content": "3+5=?"}, {"role": "assistant", "content": "3+5=8<extra_0>so 8<extra_0>"}]


@routes.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """The models by name, each with the forecast on its card."""
    queues = wire.models_of(request).queues
    return ModelList(data=[ModelEntry(id=name, forecast=queue.forecast) for name, queue in queues.items()])


@routes.post("/classify", openapi_extra=wire.json_body(PoolRequest, text={"input": _TEXT, "use_activation": False}))
async def classify(request: Request, options: Annotated[wire.UrlOptions, Query()]) -> PoolingAnswer[Classified]:
    """One value per response: `data[i].probs[-1]`, the model's own, without an activation.

    A failed item has `probs` null; if all of them failed, the answer is 422.
    """
    body = await wire.read_body(request, PoolRequest)
    if body.task == "token_classify":
        raise BadRequest("/classify gives one value per response; use /pooling", param="task")
    queue = _queue(request, body, options)
    scores = await wire.judge_texts(queue, await _pairs(body, queue.limits), options)
    values = [wire.value_of(one.score, options.aggregate) for one in scores]
    data = [
        Classified(index=i, probs=None if number is None else [number], failure=wire.FailureReason.of(value))
        for i, (number, value) in enumerate(zip(wire.values_or_null(values), values, strict=True))
    ]
    answer_id, usage = f"classify-{uuid.uuid4().hex}", wire.CompletionUsage.of(scores)
    return PoolingAnswer(id=answer_id, model=queue.name, data=data, usage=usage)


@routes.post(
    "/pooling", openapi_extra=wire.json_body(PoolRequest, steps={"messages": _STEPS, "task": "token_classify"})
)
async def pooling(request: Request, options: Annotated[wire.UrlOptions, Query()]) -> PoolingAnswer[Pooled]:
    """Values of steps: `data[i].data[step]` is [wrong, right]; with the task `classify`, one value per response.

    Steps end at the marks `<extra_0>` or ` ки`, or at the separator given as a query parameter. A failed item has
    `data` null; if all of them failed, the answer is 422.
    """
    body = await wire.read_body(request, PoolRequest)
    queue = _queue(request, body, options)
    pairs = await _pairs(body, queue.limits)
    per_step = body.task == "token_classify" or (body.task is None and queue.info.granularity == "step")
    if per_step:
        _check_steps(queue, pairs, options)
    scores = await wire.judge_texts(queue, pairs, options)
    values: list[list[list[float]] | list[float] | Failure] = [
        _rows(one, queue) if per_step else _total(one, options) for one in scores
    ]
    data = [
        Pooled(index=i, data=rows, failure=wire.FailureReason.of(value))
        for i, (rows, value) in enumerate(zip(wire.values_or_null(values), values, strict=True))
    ]
    return PoolingAnswer(model=queue.name, data=data, usage=wire.CompletionUsage.of(scores))


def _queue(request: Request, body: PoolRequest, options: wire.UrlOptions) -> ModelQueue:
    """The requested model; refuses an activation that its values do not have."""
    if body.model is not None and options.model is not None and body.model != options.model:
        raise BadRequest("the body and the address name different models", param="model")
    queue = wire.models_of(request).get(body.model or options.model)
    if (body.use_activation or body.activation) and not _probabilities(queue):
        raise BadRequest(
            f"values of {queue.name!r} are not probabilities, and no activation is applied: send use_activation false",
            param="use_activation",
        )
    return queue


def _probabilities(queue: ModelQueue) -> bool:
    low, high = queue.info.range
    return low >= 0 and high <= 1


async def _pairs(body: PoolRequest, limits: LimitSettings) -> list[PromptResponse | Failure]:
    if (body.input is None) == (body.messages is None):
        raise BadRequest("give input or messages, one of them", param="input")
    if body.messages is not None:
        try:
            pair = from_messages(body.messages, body.tools)
        except CutError as error:
            raise BadRequest(str(error), param="messages") from error
        wire.check_size(limits, pair.size)
        return [pair]
    if body.tools:
        raise BadRequest("tools go with messages: the template of input has written its own", param="tools")
    texts = [body.input] if isinstance(body.input, str) else body.input or []
    wire.check_texts(limits, texts)
    return await wire.run_long(sum(map(len, texts)), lambda: [cut_or_failure(text) for text in texts])


def _check_steps(queue: ModelQueue, pairs: Sequence[PromptResponse | Failure], options: wire.UrlOptions) -> None:
    """Refuse to guess where steps end."""
    if queue.info.granularity != "step":
        raise BadRequest(f"{queue.name!r} scores whole responses: send the task classify", param="task")
    for i, pair in enumerate(pairs):
        if isinstance(pair, PromptResponse) and options.separator is None:
            try:
                unmarked = marked_steps(pair.response) is None
            except CutError:
                continue
            if unmarked:
                raise BadRequest(
                    f"response {i} has no step marks: end every step with <extra_0>, or give the separator of steps in "
                    "the address, such as /pooling?separator=%0A%0A",
                    param="input",
                )


def _rows(explained: ExplainedScore, queue: ModelQueue) -> list[list[float]] | Failure:
    """A row per step."""
    score = explained.score
    if score.failure is not None:
        return score.failure
    if score.steps is None:
        return Failure("no_steps", "the model gave one value for all steps")
    values = score.steps.tolist()
    return [[1 - value, value] for value in values] if _probabilities(queue) else [[value] for value in values]


def _total(explained: ExplainedScore, options: wire.UrlOptions) -> list[float] | Failure:
    value = wire.value_of(explained.score, options.aggregate)
    return value if isinstance(value, Failure) else [value]
