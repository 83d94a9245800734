"""Guerdon's reward models as a resources server of NeMo-Gym: `POST /seed_session` and `POST /verify`.

A reward that could not be measured is a 422 with the reason, never a number.

    uvicorn.run(build_app(scorer), host="127.0.0.1", port=8000)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from guerdon.errors import RewardFailure
from guerdon.integrations.text import TextScorer


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

    @app.post("/seed_session")
    async def seed_session(body: SeedSession) -> dict[str, Any]:
        return {}

    @app.post("/verify", response_model=None)
    async def verify(body: VerifyRequest) -> dict[str, Any] | JSONResponse:
        prompt = _prompt(body.responses_create_params.get("input"))
        answer = _answer(body.response.get("output") or ())
        try:
            (reward,) = await asyncio.to_thread(scorer.numbers, [prompt], [answer])
        except RewardFailure as failure:
            error = {"message": failure.reasons[0], "type": "invalid_request_error", "code": "failed_measurement"}
            return JSONResponse({"error": {**error, "param": None}}, status_code=422)
        return {**body.model_dump(), "reward": reward}

    return app


def _prompt(given: Any) -> str | list[dict[str, Any]]:
    """The question, or messages whose contents are texts; an empty list where there is none."""
    if isinstance(given, str):
        return given
    messages = [item for item in given or () if isinstance(item, Mapping) and item.get("role") != "developer"]
    return [{"role": item.get("role"), "content": _content(item.get("content"))} for item in messages]


def _answer(output: Sequence[Any]) -> list[dict[str, Any]]:
    """The messages of the assistant; reasoning and calls of tools are no part of the answer."""
    found = [item for item in output if isinstance(item, Mapping) and item.get("type", "message") == "message"]
    return [{"role": "assistant", "content": _content(item.get("content"))} for item in found]


def _content(content: Any) -> Any:
    """Parts of type `input_text` and `output_text` as parts of type `text`."""
    if not isinstance(content, list):
        return content
    kinds = {"input_text": "text", "output_text": "text"}
    return [{**part, "type": kinds.get(part.get("type"), part.get("type"))} for part in content]
