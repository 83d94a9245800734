"""Guerdon's reward models as a resources server of NeMo-Gym: `POST /seed_session` and `POST /verify`.

A reward that could not be measured is a 422 with the reason, never a number.

    uvicorn.run(build_app(scorer), host="127.0.0.1", port=8000)
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from guerdon.errors import RewardFailure
from guerdon.integrations.text import TextScorer, numbers
from guerdon.processes.call_queue import in_thread
from guerdon.reading.chats import LoneSurrogateError, check_characters
from guerdon.serve.app import validation_error
from guerdon.serve.errors import error_body
from guerdon.serve.middleware import encoding_problem


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
    app.add_exception_handler(RequestValidationError, validation_error)

    @app.middleware("http")
    async def uncompressed(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        if (problem := encoding_problem(request.headers)) is not None:
            return JSONResponse(error_body(problem, 415, "unsupported_media_type"), status_code=415)
        return await answer(request)

    @app.post("/seed_session")
    async def seed_session(body: SeedSession) -> dict[str, Any]:
        return {}

    @app.post("/verify", response_model=None)
    async def verify(body: VerifyRequest) -> dict[str, Any] | JSONResponse:
        prompt, answer = _exchange(body.responses_create_params, body.response.get("output"))
        tools, row = body.responses_create_params.get("tools"), body.model_dump()
        try:
            check_characters(json.dumps(row, ensure_ascii=False))  # it is returned in UTF-8
            (reward,) = await in_thread(lambda: numbers(scorer.rewards([prompt], [answer], [tools])))
        except (RewardFailure, LoneSurrogateError) as error:
            reason = error.reasons[0] if isinstance(error, RewardFailure) else f"{error.reason}: {error}"
            return JSONResponse(error_body(reason, 422, "failed_measurement"), status_code=422)
        return {**row, "reward": reward}

    return app


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]


def _exchange(params: Mapping[str, Any], output: Any) -> tuple[str | list[dict[str, Any]], list[Any]]:
    """The conversation that is given, and what the model wrote: an answer, which calls of tools may precede."""
    given, system = params.get("input"), params.get("instructions")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else _listed(given)
    asked = [{"role": "system", "content": system}] if system else []
    asked += _joined(_message(item) for item in items)
    written = _joined(_message(item, "assistant") for item in _listed(output))
    return given if isinstance(given, str) and not system else asked, written


def _joined(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Chat messages in which reasoning, text and calls of the assistant that follow one another are one message."""
    found: list[dict[str, Any]] = []
    for message in messages:
        before = found[-1] if found and found[-1]["role"] == message["role"] == "assistant" else None
        if before is not None and before.keys() == {"role", "reasoning_content"}:
            thought = [one["reasoning_content"] for one in (before, message) if one.get("reasoning_content")]
            found[-1] = {**message, "reasoning_content": "\n".join(thought)}
        elif before is not None and message.keys() == {"role", "tool_calls"}:
            found[-1] = {**before, "tool_calls": [*before.get("tool_calls", ()), *message["tool_calls"]]}
        else:
            found.append(message)
    return found


def _message(item: Any, role: str = "") -> dict[str, Any]:
    """An item of the Responses API as a chat message; a chat message as it is, with a default role."""
    if not isinstance(item, Mapping):
        return {"role": str(item)}  # refused later as an unknown role
    match item.get("type", "message"):
        case "message":
            return {"role": role, **item}
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            return {"role": "assistant", "tool_calls": [{"id": item.get("call_id"), "function": function}]}
        case "function_call_output":
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
        case "reasoning":
            parts = item.get("content") or item.get("summary") or ()
            text = "\n".join(str(part["text"]) for part in parts if isinstance(part, Mapping) and part.get("text"))
            return {"role": "assistant", "reasoning_content": text}
        case other:
            return {"role": str(other)}  # refused later as an unknown role
