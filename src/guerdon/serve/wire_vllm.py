"""`/classify`, `/pooling` and `/v1/models` in vLLM's shapes, as verl and others call them.

`/classify` gives one value per response, `/pooling` with the task `token_classify` one per step. Texts come from a chat
template and are taken apart again; a client that can should send `messages`. This module does not know models.

    verl: reward.reward_model.model_path = the name of the served model; its router address = 127.0.0.1:18080
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from guerdon.models.explained_score import ExplainedScore
from guerdon.serve.engine import Engine
from guerdon.serve.errors import BadRequest
from guerdon.serve.routes import ERRORS
from guerdon.serve.strict_types import FIRST_ERROR, Strings
from guerdon.serve.wire import (
    Choice,
    FailedMeasurement,
    Foreign,
    away,
    check_texts,
    choice,
    failure_json,
    json_body,
    judge_texts,
    read_body,
    value_of,
    values_or_null,
)
from guerdon.serve.wire_text import Asked, CutError, cut, from_messages, marked_steps
from guerdon.settings.serve import ServeSettings
from guerdon.types import Failure


class PoolRequest(Foreign):
    """What clients of vLLM's pooling models send."""

    model: str | None = Field(None, max_length=200, description="which model; the default where left out")
    input: str | Strings | None = Field(None, description="question and response in one text, from a chat template")
    messages: Annotated[list[dict[str, Any]], FIRST_ERROR] | None = Field(
        None, description="instead of input: chat messages, the last one the assistant's response"
    )
    task: Literal["token_classify", "classify"] | None = Field(
        None, description="a value per step, or one per response; what the model gives where left out"
    )
    use_activation: bool | None = Field(
        None,
        strict=True,
        description="values are given as the model has them; true is refused where they are no probabilities",
    )
    activation: bool | None = Field(None, strict=True, description="the older name of use_activation")


class Usage(BaseModel):
    """Tokens read, 0 where nobody counted."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class Reason(BaseModel):
    """Why there is no value."""

    reason: str
    detail: str


class Classified(BaseModel):
    """One response."""

    index: int
    label: str | None = None
    probs: list[float] | None = Field(description="one value; null where the measurement failed")
    num_classes: int = 1
    failure: Reason | None = None


class ClassifyAnswer(BaseModel):
    """Values of responses."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Classified]
    usage: Usage


class Pooled(BaseModel):
    """One response."""

    index: int
    object: Literal["pooling"] = "pooling"
    data: list[list[float]] | list[float] | None = Field(
        description="per step [wrong, right], or [value] where values are no probabilities; null where it failed"
    )
    failure: Reason | None = None


class PoolAnswer(BaseModel):
    """Values of steps."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Pooled]
    usage: Usage


class Model(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "guerdon"


class Models(BaseModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[Model]


_TEXT = "<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n8<|im_end|>\n"
_STEPS = [{"role": "user", "content": "3+5=?"}, {"role": "assistant", "content": "3+5=8<extra_0>so 8<extra_0>"}]


def router(engine: Engine, settings: ServeSettings) -> APIRouter:
    """The routes of vLLM's pooling models."""
    routes = APIRouter(tags=["vllm"], responses=ERRORS)
    started = int(time.time())

    @routes.get("/v1/models")
    async def models() -> Models:
        """The models by name."""
        return Models(data=[Model(id=name, created=started) for name in engine.names])

    @routes.post("/classify", openapi_extra=json_body(PoolRequest, {"input": _TEXT, "use_activation": False}))
    async def classify(request: Request, chosen: Annotated[Choice, Depends(choice)]) -> ClassifyAnswer:
        """One value per response: `data[i].probs[-1]`, the model's own, no activation put on it.

        A failed item has `probs` null; where none could be measured, the answer is 422.
        """
        body = await read_body(request, PoolRequest)
        if body.task == "token_classify":
            raise BadRequest("one value per response is all that /classify gives; ask /pooling", param="task")
        name = _name(engine, body, chosen)
        judged = await judge_texts(engine, settings, name, await _asked(body, settings), chosen)
        values = [value_of(j.score, chosen.aggregate) for j in judged]
        numbers = values_or_null(values)
        data = [
            Classified(index=i, probs=None if number is None else [number], failure=_reason(value))
            for i, (number, value) in enumerate(zip(numbers, values, strict=True))
        ]
        return ClassifyAnswer(
            id=f"classify-{uuid.uuid4().hex}", created=int(time.time()), model=name, data=data, usage=_usage(judged)
        )

    @routes.post("/pooling", openapi_extra=json_body(PoolRequest, {"messages": _STEPS, "task": "token_classify"}))
    async def pooling(request: Request, chosen: Annotated[Choice, Depends(choice)]) -> PoolAnswer:
        """Values of steps: `data[i].data[step]` is [wrong, right]; with the task `classify`, one value per response.

        Steps end at the marks `<extra_0>` or ` ки`, or at the separator given in the address. A failed item has `data`
        null; where none could be measured, the answer is 422.
        """
        body = await read_body(request, PoolRequest)
        name = _name(engine, body, chosen)
        asked = await _asked(body, settings)
        per_step = (body.task or _default_task(engine, name)) == "token_classify"
        if per_step:
            _check_steps(engine, name, asked, chosen)
        judged = await judge_texts(engine, settings, name, asked, chosen)
        values = [_rows(j, engine, name) if per_step else _total(j, chosen) for j in judged]
        failures = [value for value in values if isinstance(value, Failure)]
        if failures and len(failures) == len(values):
            raise FailedMeasurement(failures[0])
        data = [
            Pooled(index=i, data=None, failure=_reason(value))
            if isinstance(value, Failure)
            else Pooled(index=i, data=value)
            for i, value in enumerate(values)
        ]
        return PoolAnswer(
            id=f"pool-{uuid.uuid4().hex}", created=int(time.time()), model=name, data=data, usage=_usage(judged)
        )

    return routes


def _name(engine: Engine, body: PoolRequest, chosen: Choice) -> str:
    """The model that is asked for; refuses what its values are not."""
    if body.model is not None and chosen.model is not None and body.model != chosen.model:
        raise BadRequest("the body and the address name different models", param="model")
    name = engine.resolve(body.model or chosen.model)
    low, high = engine.info(name).range
    if (body.use_activation or body.activation) and not (low >= 0 and high <= 1):
        raise BadRequest(
            f"values of {name!r} are no probabilities, and no activation is put on them: ask with use_activation false",
            param="use_activation",
        )
    return name


async def _asked(body: PoolRequest, settings: ServeSettings) -> list[Asked | Failure]:
    if (body.input is None) == (body.messages is None):
        raise BadRequest("give input or messages, one of them", param="input")
    if body.messages is not None:
        try:
            asked = from_messages(body.messages)
        except CutError as error:
            raise BadRequest(str(error), param="messages") from error
        check_texts(settings, [asked.task + asked.response])
        return [asked]
    texts = [body.input] if isinstance(body.input, str) else body.input or []
    check_texts(settings, texts)
    return await away(sum(map(len, texts)), lambda: [_cut(text) for text in texts])


def _cut(text: str) -> Asked | Failure:
    try:
        return cut(text)
    except CutError as error:
        return Failure("no_prompt", str(error))


def _default_task(engine: Engine, name: str) -> str:
    return "token_classify" if engine.info(name).granularity == "step" else "classify"


def _check_steps(engine: Engine, name: str, asked: Sequence[Asked | Failure], chosen: Choice) -> None:
    """Refuse to guess where steps end."""
    if engine.info(name).granularity != "step":
        raise BadRequest(f"{name!r} judges whole responses: ask with the task classify", param="task")
    for i, item in enumerate(asked):
        if isinstance(item, Asked) and chosen.separator is None:
            try:
                unmarked = marked_steps(item.response) is None
            except CutError:
                continue
            if unmarked:
                raise BadRequest(
                    f"response {i} has no step marks: close every step with <extra_0>, or say in the address where "
                    "steps end, such as /pooling?separator=%0A%0A",
                    param="input",
                )


def _rows(judgement: ExplainedScore, engine: Engine, name: str) -> list[list[float]] | Failure:
    """A row per step."""
    score = judgement.score
    if score.failure is not None:
        return score.failure
    if score.steps is None:
        return Failure("no_steps", "the model gave one value for all steps")
    values = [float(value) for value in score.steps]
    low, high = engine.info(name).range
    return [[1 - value, value] for value in values] if low >= 0 and high <= 1 else [[value] for value in values]


def _total(judgement: ExplainedScore, chosen: Choice) -> list[float] | Failure:
    value = value_of(judgement.score, chosen.aggregate)
    return value if isinstance(value, Failure) else [value]


def _reason(value: Any) -> Reason | None:
    found = failure_json(value)
    return None if found is None else Reason(**found)


def _usage(judged: Sequence[ExplainedScore]) -> Usage:
    tokens = sum(judgement.tokens for judgement in judged)
    return Usage(prompt_tokens=tokens, total_tokens=tokens)
