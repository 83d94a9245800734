"""`POST /v1/chat/completions` as RLinf's API reward worker calls it: pictures as data URLs, then one text, in one turn.

The answer's text is what the reward model wrote or, where it writes nothing, its number. The client's text says which
task it is about; it is no prompt: the model asks its own question. RLinf reads an answer that it does not understand
as a reward of 0, so whatever could end there is an error instead. This module does not know models.

    reward.worker_type: api
    reward.api: {api_base: "http://127.0.0.1:18080/v1", model: trend, sampling_params: {max_tokens: 16}}
"""

from __future__ import annotations

import json
import re
import time
import uuid
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.serve.engine import Engine
from guerdon.serve.errors import BadRequest
from guerdon.serve.media import Media
from guerdon.serve.routes import ERRORS
from guerdon.serve.strict_types import FLAG, WHOLE
from guerdon.serve.wire import (
    FailedMeasurement,
    Foreign,
    check_task,
    check_texts,
    json_body,
    must_judge,
    read_body,
    value_of,
)
from guerdon.serve.wire_media import Sent, frames_of, picture_of_url
from guerdon.settings.serve import ServeSettings
from guerdon.types import Episode, Failure, Score

TREND_MARGIN = 0.05
"""By how much values must rise or fall over a window to count as a trend; RLinf labels windows by the same."""

_TASK = ("performing the task: ", ". You are given")
_TREND = re.compile(r"\bpositive, negative, or unclear\b")
_VIEWS = re.compile(r"\btwo synchronized\b")
_WORDS = re.compile(r"\b(positive|negative|unclear)\b")


class ChatRequest(Foreign):
    """What RLinf's API reward worker sends."""

    model: str | None = Field(None, max_length=200, description="which model; the default where left out")
    messages: list[dict[str, Any]] = Field(
        min_length=1, max_length=1, description="one user turn: parts image_url with data URLs, then one part text"
    )
    stream: Annotated[Literal[False], FLAG] | None = Field(None, description="answers come whole")
    n: Annotated[Literal[1], WHOLE] | None = Field(None, description="there is one answer")
    views: Annotated[int, Field(ge=1, le=8), WHOLE] | None = Field(
        None, description="cameras whose frames follow one another, as many of each; the first is judged"
    )


class ChatMessage(BaseModel):
    """What is answered."""

    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(BaseModel):
    """The one answer."""

    index: int = 0
    message: ChatMessage
    finish_reason: Literal["stop"] = "stop"


class ChatUsage(BaseModel):
    """Tokens read, 0 where nobody counted."""

    prompt_tokens: int
    completion_tokens: int = 0
    total_tokens: int


class Judged(BaseModel):
    """How the answer came about."""

    task: str = Field(description="the task that was judged")
    frames: int = Field(description="frames that were judged")
    views: int = Field(description="cameras that the frames came from; the first was judged")
    score: float | None = Field(description="the value behind the text, where there is one")


class ChatAnswer(BaseModel):
    """A chat completion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    guerdon: Judged


_PICTURE = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/4AAQSkZJRg..."}}
_EXAMPLE = {"messages": [{"role": "user", "content": [_PICTURE, {"type": "text", "text": "close the drawer"}]}]}


def router(engine: Engine, settings: ServeSettings, media: Media) -> APIRouter:
    """The route of RLinf's API reward worker."""
    routes = APIRouter(tags=["chat"], responses=ERRORS)

    @routes.post("/v1/chat/completions", openapi_extra=json_body(ChatRequest, _EXAMPLE))
    async def chat(request: Request) -> ChatAnswer:
        """What a vision reward model says of a few frames.

        Where the text asks for a trend (`positive, negative, or unclear`), the answer is one of these: the model's own,
        else from its values of the first and the last frame. A failed measurement is a 422, never an empty answer.
        """
        body = await read_body(request, ChatRequest)
        name = engine.resolve(body.model)
        must_judge(engine, name, "image")
        pictures, text = _parts(body.messages[0])
        check_texts(settings, [text])
        task = task_of(text)
        check_task(settings.limits, task, "messages")
        views = body.views or (2 if _VIEWS.search(text) else 1)
        if len(pictures) % views:
            raise BadRequest(f"{len(pictures)} pictures do not come from {views} cameras alike", param="messages")
        async with engine.deadline() as left:
            frames = await frames_of(media, Sent(frames_base64=pictures[: len(pictures) // views]), nframes=None)
            episode = Episode(id="", task=task, frames=frames)
            judged = (await engine.judge(name, [episode], JudgeOptions(), deadline_s=left()))[0]
        content = trend(judged) if _TREND.search(text) else words(judged)
        if isinstance(content, Failure):
            raise FailedMeasurement(content)
        value = value_of(judged.score)
        return ChatAnswer(
            id=f"chatcmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=name,
            choices=[ChatChoice(message=ChatMessage(content=content))],
            usage=ChatUsage(prompt_tokens=judged.tokens, total_tokens=judged.tokens),
            guerdon=Judged(
                task=task, frames=len(frames), views=views, score=None if isinstance(value, Failure) else value
            ),
        )

    return routes


def task_of(text: str) -> str:
    """What RLinf's prompt names as the task; the whole text where it names none."""
    before, behind = _TASK
    start = text.find(before)
    end = text.find(behind, start)
    task = text[start + len(before) : end] if 0 <= start < end else ""
    return task if task.strip() else text


def words(judged: ExplainedScore) -> str | Failure:
    """What the model wrote; its number where it writes nothing."""
    value = value_of(judged.score)
    if isinstance(value, Failure):
        return value
    return judged.text if judged.text.strip() else f"{value:.6g}"


def trend(judged: ExplainedScore) -> str | Failure:
    """`positive`, `negative` or `unclear`: as the model wrote, else by its values of the first and the last frame."""
    score: Score = judged.score
    if score.failure is not None:
        return score.failure
    if judged.text.strip():
        return trend_of_text(judged.text)
    if score.steps is None or len(score.steps) < 2:
        return Failure("no_trend", "the model neither writes a trend nor gives values for single frames")
    rise = float(score.steps[-1] - score.steps[0])
    return "positive" if rise > TREND_MARGIN else "negative" if rise < -TREND_MARGIN else "unclear"


def trend_of_text(text: str) -> str | Failure:
    """The one trend that a text states, as `{"trend": "positive"}` or as a word; several are none."""
    try:
        with_json = json.loads(text)
    except (ValueError, RecursionError):
        with_json = None
    stated = str(with_json.get("trend", "")) if isinstance(with_json, dict) else text
    found = set(_WORDS.findall(stated.lower()))
    if len(found) != 1:
        return Failure("no_trend", f"the model's answer states {len(found)} trends instead of one")
    return str(found.pop())


def _parts(message: dict[str, Any]) -> tuple[list[str], str]:
    """Base64 texts of the pictures, and the text."""
    content = message.get("content")
    if message.get("role") != "user" or not isinstance(content, list):
        raise BadRequest("send one user turn whose content is a list of pictures and a text", param="messages")
    pictures: list[str] = []
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "image_url":
            url = part.get("image_url")
            url = url.get("url") if isinstance(url, dict) else url
            if not isinstance(url, str):
                raise BadRequest("image_url needs a url", param="messages")
            pictures.append(picture_of_url(url))
        else:
            raise BadRequest("parts of the content are of type image_url or text", param="messages")
    if len(texts) != 1 or not texts[0].strip() or not pictures:
        raise BadRequest("the content needs pictures and one text that says what the task is", param="messages")
    return pictures, texts[0]
