"""`POST /get_reward` as OpenRLHF's trainer calls it, and `POST /rm` as slime's does: one number per response.

The query of the address says what the bodies have no room for: `?model=prm&aggregate=min`. This module does not know
models.

    openrlhf --reward.remote_url http://127.0.0.1:18080/get_reward
    slime    --rm-type remote_rm --rm-url http://127.0.0.1:18080/rm
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

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
    json_body,
    judge_texts,
    read_body,
    value_of,
    values_or_null,
)
from guerdon.serve.wire_text import Asked, CutError, as_task, cut, text_of, without_end
from guerdon.settings.serve import ServeSettings
from guerdon.types import Failure


class GetRewardRequest(Foreign):
    """What OpenRLHF sends."""

    query: Strings = Field(description="prompt and response in one text each, special tokens included")
    prompts: Strings | None = Field(None, description="how each text begins; without them, a chat template must show")
    labels: list[Any] | None = Field(None, description="true answers; reward models do not look at them")


class GetRewardAnswer(BaseModel):
    """What OpenRLHF reads."""

    rewards: list[float | None] = Field(description="one per text; null where the measurement failed")
    scores: list[float | None] = Field(description="the same")
    extra_logs: dict[str, list[float]] = Field(description="`failed`: 1 where the measurement failed")


class RmRequest(Foreign):
    """What slime sends."""

    prompt: str | Annotated[list[dict[str, Any]], FIRST_ERROR] = Field(
        description="the question: text from a template, or chat messages"
    )
    response: str = Field(description="what was answered")
    label: Any = Field(None, description="the true answer; reward models do not look at it")


_GET_REWARD = {
    "query": ["<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n8<|im_end|>\n"],
    "prompts": ["<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n"],
    "labels": ["8"],
}
_RM = {"prompt": "3+5=?", "response": "8", "label": "8"}


def router(engine: Engine, settings: ServeSettings) -> APIRouter:
    """The routes of OpenRLHF and slime."""
    routes = APIRouter(tags=["trainers"], responses=ERRORS)

    @routes.post("/get_reward", openapi_extra=json_body(GetRewardRequest, _GET_REWARD))
    async def get_reward(request: Request, chosen: Annotated[Choice, Depends(choice)]) -> GetRewardAnswer:
        """Rewards as OpenRLHF's remote reward model gives them.

        The prompt is cut off each text, template and end tokens are taken off. A failed item is null; where none of
        them could be measured, the answer is 422, which OpenRLHF reports and treats as a missing reward.
        """
        body = await read_body(request, GetRewardRequest)
        check_texts(settings, body.query)
        check_texts(settings, body.prompts or ())
        asked = await away(sum(map(len, body.query)), lambda: _cut_all(body))
        judged = await judge_texts(engine, settings, chosen.model, asked, chosen)
        values = [value_of(j.score, chosen.aggregate) for j in judged]
        rewards = values_or_null(values)
        failed = [float(isinstance(value, Failure)) for value in values]
        return GetRewardAnswer(rewards=rewards, scores=rewards, extra_logs={"failed": failed})

    @routes.post("/rm", openapi_extra=json_body(RmRequest, _RM))
    async def rm(request: Request, chosen: Annotated[Choice, Depends(choice)]) -> float:
        """One reward as a bare number, as slime's remote reward model gives it; a failed measurement is a 422."""
        body = await read_body(request, RmRequest)
        prompt = body.prompt if isinstance(body.prompt, str) else "".join(str(m.get("content")) for m in body.prompt)
        check_texts(settings, [prompt + body.response])
        asked = await away(len(prompt) + len(body.response), lambda: _asked(body))
        judged = await judge_texts(engine, settings, chosen.model, [asked], chosen)
        value = value_of(judged[0].score, chosen.aggregate)
        if isinstance(value, Failure):
            raise FailedMeasurement(value)
        return value

    return routes


def _cut_all(body: GetRewardRequest) -> list[Asked | Failure]:
    prompts: Sequence[str | None] = [None] * len(body.query) if body.prompts is None else body.prompts
    for name, given in (("prompts", body.prompts), ("labels", body.labels)):
        if given is not None and len(given) != len(body.query):
            raise BadRequest(f"{len(given)} {name} for {len(body.query)} texts", param=name)
    asked: list[Asked | Failure] = []
    for text, prompt in zip(body.query, prompts, strict=True):
        try:
            asked.append(cut(text, prompt))
        except CutError as error:
            asked.append(Failure("no_prompt", str(error)))
    return asked


def _asked(body: RmRequest) -> Asked:
    try:
        if isinstance(body.prompt, str):
            return cut(body.prompt + body.response, body.prompt)
        turns = [(str(message.get("role")), text_of(message.get("content"))) for message in body.prompt]
        return Asked(as_task(turns), without_end(body.response))
    except CutError as error:
        raise BadRequest(str(error), param="prompt") from error
