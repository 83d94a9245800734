"""Guerdon's reward models as a resources server of NeMo-Gym: `POST /seed_session` and `POST /verify`.

A reward that could not be measured is a 422 with the reason, never a number.

    uvicorn.run(build_app(scorer), host="127.0.0.1", port=8000)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from guerdon.call_queue import in_thread
from guerdon.errors import RewardFailure
from guerdon.integrations.text import TextScorer, numbers
from guerdon.serve.errors import error_body


class SeedSession(BaseModel):
    """A row of the data set; nothing has to be prepared for it."""

    model_config = ConfigDict(extra="allow")


class VerifyRequest(BaseModel):
    """A row of the data set with the response of the model; further fields are returned as they are.

    Attributes:
        responses_create_params: with `input`: a text, or messages.
        response: of the Responses API, with `output`.
    """

    model_config = ConfigDict(extra="allow")

    responses_create_params: dict[str, Any]
    response: dict[str, Any]


def build_app(scorer: TextScorer) -> FastAPI:
    """The server. It has no token of its own: bind it to the loopback interface, or put a proxy in front of it."""
    app = FastAPI(title="guerdon for NeMo-Gym")

    @app.middleware("http")
    async def uncompressed(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            told = "the body has a content encoding: send it uncompressed"
            return JSONResponse(error_body(told, 415, "unsupported_media_type"), status_code=415)
        return await answer(request)

    @app.post("/seed_session")
    async def seed_session(body: SeedSession) -> dict[str, Any]:
        return {}

    @app.post("/verify", response_model=None)
    async def verify(body: VerifyRequest) -> dict[str, Any] | JSONResponse:
        prompt, answer = _exchange(body.responses_create_params, body.response.get("output"))
        tools = body.responses_create_params.get("tools")
        try:
            (reward,) = await in_thread(lambda: numbers(scorer.rewards([prompt], [answer], [tools])))
        except RewardFailure as failure:
            return JSONResponse(error_body(failure.reasons[0], 422, "failed_measurement"), status_code=422)
        return {**body.model_dump(), "reward": reward}

    return app


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [] if given is None else [given]


def _exchange(params: Mapping[str, Any], output: Any) -> tuple[str | list[dict[str, Any]], list[Any]]:
    """The conversation that is given, and what the model wrote: an answer, which calls of tools may precede."""
    given, system = params.get("input"), params.get("instructions")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else _listed(given)
    asked = [{"role": "system", "content": system}] if system else []
    asked += _joined(message for item in items for message in _messages(item))
    written = _joined(message for item in _listed(output) for message in _messages(item, "assistant"))
    return given if isinstance(given, str) and not system else asked, written


def _joined(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Chat messages in which consecutive text and tool calls of the assistant are one message."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if found and "tool_calls" in message and found[-1]["role"] == "assistant":
            found[-1] = {**found[-1], "tool_calls": [*found[-1].get("tool_calls", ()), *message["tool_calls"]]}
        else:
            found.append(message)
    return found


def _messages(item: Any, role: str | None = None) -> list[dict[str, Any]]:
    """An item of the Responses API as a chat message; none where it is reasoning, which is no part of an answer."""
    if not isinstance(item, Mapping):
        return [{"role": str(item), "content": ""}]  # refused later as an unknown role
    match item.get("type", "message"):
        case "message":
            return [{"role": role or item.get("role"), "content": _content(item.get("content"))}]
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return [{"role": "assistant", "content": "", "tool_calls": [call]}]
        case "function_call_output":
            return [{"role": "tool", "tool_call_id": item.get("call_id"), "content": _content(item.get("output"))}]
        case "reasoning":
            return []
        case other:
            return [{"role": str(other), "content": ""}]  # is refused by its name


def _content(content: Any) -> Any:
    """Parts of type `input_text` and `output_text` as parts of type `text`."""
    if not isinstance(content, list):
        return content
    texts = ("input_text", "output_text")
    known = [isinstance(part, Mapping) and part.get("type") in texts for part in content]
    return [{**part, "type": "text"} if own else part for part, own in zip(content, known, strict=True)]
