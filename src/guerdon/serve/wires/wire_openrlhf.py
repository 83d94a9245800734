"""`POST /get_reward` for OpenRLHF's trainer, and `POST /rm` for slime's: one number per response.

Options that the bodies have no room for are query parameters: `?model=prm&aggregate=min`.

    openrlhf --reward.remote_url http://127.0.0.1:18080/get_reward
    slime    --rm-type remote_rm --rm-url http://127.0.0.1:18080/rm
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from guerdon.serve.errors import ERRORS, BadRequest
from guerdon.serve.wires import wire, wire_text
from guerdon.types import Failure

routes = APIRouter(tags=["trainers"], responses=ERRORS)


class GetRewardRequest(wire.ForeignBody):
    """Request of OpenRLHF."""

    query: wire.Strings = Field(description="prompt and response as one text each, special tokens included")
    prompts: wire.Strings | None = Field(
        None, description="beginning of each text; without them, a chat template must show"
    )
    labels: list[Any] | None = Field(None, description="true answers; reward models do not use them")


class GetRewardAnswer(BaseModel):
    """Answer for OpenRLHF."""

    rewards: list[float | None] = Field(description="one per text; null where the measurement failed")
    scores: list[float | None] = Field(description="the same")
    extra_logs: dict[str, list[float]] = Field(description="`failed`: 1 where the measurement failed")


class RmRequest(wire.ForeignBody):
    """Request of slime."""

    prompt: str | wire.Messages = Field(description="the question: text from a template, or chat messages")
    response: str = Field(description="the response")
    label: Any = Field(None, description="the true answer; reward models do not use it")
    tools: wire.Messages | None = Field(
        None, description="with chat messages: functions that can be called in them, as JSON schemas"
    )


_GET_REWARD = {
    "query": ["<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n8<|im_end|>\n"],
    "prompts": ["<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n"],
    "labels": ["8"],
}
_RM = {"prompt": "3+5=?", "response": "8", "label": "8"}


@routes.post("/get_reward", openapi_extra=wire.json_body(GetRewardRequest, openrlhf=_GET_REWARD))
async def get_reward(request: Request, options: Annotated[wire.UrlOptions, Query()]) -> GetRewardAnswer:
    """Rewards for OpenRLHF's remote reward model.

    The prompt, the template and end tokens are removed from each text. A failed item is null; if all of them failed,
    the answer is 422, which OpenRLHF reports and treats as a missing reward.
    """
    body = await wire.read_body(request, GetRewardRequest)
    queue = wire.models_of(request).get(options.model)
    wire.check_texts(queue.limits, body.query)
    wire.check_texts(queue.limits, body.prompts or ())
    pairs = await wire.run_long(sum(map(len, body.query)), lambda: _cut_all(body))
    values = [wire.value_of(one.score, options.aggregate) for one in await wire.judge_texts(queue, pairs, options)]
    rewards = wire.values_or_null(values)
    failed = [float(isinstance(value, Failure)) for value in values]
    return GetRewardAnswer(rewards=rewards, scores=rewards, extra_logs={"failed": failed})


@routes.post("/rm", openapi_extra=wire.json_body(RmRequest, slime=_RM))
async def rm(request: Request, options: Annotated[wire.UrlOptions, Query()]) -> float:
    """One reward as a bare number, for slime's remote reward model; a failed measurement is a 422."""
    body = await wire.read_body(request, RmRequest)
    queue = wire.models_of(request).get(options.model)
    prompt = body.prompt if isinstance(body.prompt, str) else "".join(str(m.get("content")) for m in body.prompt)
    wire.check_texts(queue.limits, [prompt + body.response])
    pair = await wire.run_long(len(prompt) + len(body.response), lambda: _pair(body))
    wire.check_size(queue.limits, pair.size)
    (explained,) = await wire.judge_texts(queue, [pair], options)
    value = wire.value_of(explained.score, options.aggregate)
    if isinstance(value, Failure):
        raise wire.FailedMeasurement(value)
    return value


def _cut_all(body: GetRewardRequest) -> list[wire_text.PromptResponse | Failure]:
    prompts: Sequence[str | None] = [None] * len(body.query) if body.prompts is None else body.prompts
    for name, given in (("prompts", body.prompts), ("labels", body.labels)):
        if given is not None and len(given) != len(body.query):
            raise BadRequest(f"{len(given)} {name} for {len(body.query)} texts", param=name)
    return [wire_text.cut_or_failure(text, prompt) for text, prompt in zip(body.query, prompts, strict=True)]


def _pair(body: RmRequest) -> wire_text.PromptResponse:
    try:
        if isinstance(body.prompt, str):
            if body.tools:
                raise wire_text.CutError("tools go with chat messages: the template of a text has written its own")
            return wire_text.cut(body.prompt + body.response, body.prompt)
        messages = (
            *wire_text.as_conversation(body.prompt),
            {"role": "assistant", "content": wire_text.without_end(body.response)},
        )
        return wire_text.from_messages(messages, body.tools)
    except wire_text.CutError as error:
        raise BadRequest(str(error), param="prompt") from error
