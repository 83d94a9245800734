"""`POST /v1/chat/completions` for RLinf's API reward worker: pictures as data URLs, then one text, in one turn.

The answer is the text that the reward model generated or, if it generates none, its number. The client's text names the
task; it is not the prompt of the model. RLinf treats an answer that it cannot parse as a reward of 0, so every such
case is an error here. URLs are never fetched.

    reward.worker_type: api
    reward.api: {api_base: "http://127.0.0.1:18080/v1", model: trend, sampling_params: {max_tokens: 16}}
"""

from __future__ import annotations

import re
import time
import uuid
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.models.vlm.answer_parser import Choices, parse_answer
from guerdon.serve.errors import ERRORS, BadRequest
from guerdon.serve.wires import wire
from guerdon.types import Episode, Failure

TREND_MARGIN = 0.05
"""By how much values must rise or fall over a window to count as a trend; RLinf labels windows by the same."""

_TASK = ("performing the task: ", ". You are given")
_TREND = re.compile(r"\bpositive, negative, or unclear\b")
_VIEWS = re.compile(r"\btwo synchronized\b")
_WORDS = ("positive", "negative", "unclear")
_DATA_URL = re.compile(r"\s*data:(?:image/[^;,]*|application/octet-stream)?;", re.IGNORECASE)
routes = APIRouter(tags=["chat"], responses=ERRORS)


class ChatCompletionRequest(wire.ForeignBody):
    """Request of RLinf's API reward worker."""

    model: str | None = Field(None, max_length=200, description="which model; the default if left out")
    messages: list[dict[str, Any]] = Field(
        min_length=1, max_length=1, description="one user turn: parts image_url with data URLs, then one part text"
    )
    stream: Annotated[Literal[False], wire.FLAG] | None = Field(None, description="answers are not streamed")
    n: Annotated[Literal[1], wire.WHOLE] | None = Field(None, description="there is one answer")
    views: Annotated[int, Field(ge=1, le=8), wire.WHOLE] | None = Field(
        None,
        description="number of cameras; their frames follow one another, equally many of each; the first is scored",
    )


class ChatMessage(BaseModel):
    """The text of the answer."""

    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(BaseModel):
    """The one answer."""

    index: int = 0
    message: ChatMessage
    finish_reason: Literal["stop"] = "stop"


class ScoreDetails(BaseModel):
    """How the answer was made."""

    task: str = Field(description="the task that was scored")
    frames: int = Field(description="frames that were scored")
    views: int = Field(description="cameras that the frames came from; the first was scored")
    score: float | None = Field(description="the value behind the text, if there is one")


class ChatAnswer(BaseModel):
    """A chat completion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: wire.CompletionUsage
    guerdon: ScoreDetails


_PICTURE = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/4AAQSkZJRg..."}}
_EXAMPLE = {"messages": [{"role": "user", "content": [_PICTURE, {"type": "text", "text": "close the drawer"}]}]}


@routes.post("/v1/chat/completions", openapi_extra=wire.json_body(ChatCompletionRequest, rlinf=_EXAMPLE))
async def chat(request: Request) -> ChatAnswer:
    """The answer of a vision reward model about a few frames.

    If the text asks for a trend (`positive, negative, or unclear`), the answer is one of these: the model's own, else
    from its values of the first and the last frame. A failed measurement is a 422, never an empty answer.
    """
    body = await wire.read_body(request, ChatCompletionRequest)
    queue = wire.models_of(request).get(body.model)
    wire.check_modality(queue, "image")
    pictures, text = _parts(body.messages[0])
    wire.check_texts(queue.limits, [text])
    task = task_of(text)
    wire.check_task(queue.limits, task, "messages")
    views = body.views or (2 if _VIEWS.search(text) else 1)
    if len(pictures) % views:
        raise BadRequest(f"{len(pictures)} pictures cannot be equally many from {views} cameras", param="messages")
    async with queue.deadline() as left:
        sent = wire.FrameFields(frames_base64=pictures[: len(pictures) // views])
        frames = await wire.frames_of(wire.media_of(request), sent, nframes=None)
        episode = Episode(id="", task=task, frames=frames)
        (explained,) = await queue.judge([episode], JudgeOptions(), deadline_s=left())
    value = wire.value_of(explained.score)
    content = trend(explained, task) if _TREND.search(text) else _content(explained.text, value)
    if isinstance(content, Failure):
        raise wire.FailedMeasurement(content)
    number = None if isinstance(value, Failure) else value
    return ChatAnswer(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=queue.name,
        choices=[ChatChoice(message=ChatMessage(content=content))],
        usage=wire.CompletionUsage.of([explained]),
        guerdon=ScoreDetails(task=task, frames=len(frames), views=views, score=number),
    )


def task_of(text: str) -> str:
    """The task that RLinf's prompt names; the whole text if it names none."""
    before, behind = _TASK
    start = text.find(before)
    end = text.find(behind, start)
    task = text[start + len(before) : end] if 0 <= start < end else ""
    return task if task.strip() else text


def _content(text: str, value: float | Failure) -> str | Failure:
    """The generated text; the number if there is none."""
    if isinstance(value, Failure):
        return value
    return text if text.strip() else f"{value:.6g}"


def trend(explained: ExplainedScore, task: str) -> str | Failure:
    """`positive`, `negative` or `unclear`: as the model wrote, else by its values of the first and the last frame."""
    score = explained.score
    if score.failure is not None:
        return score.failure
    if explained.text.strip():
        found = parse_answer(explained.text, Choices("trend", {word: word for word in _WORDS}), [task])
        return found if isinstance(found, Failure) else str(found.value)
    if score.steps is None or len(score.steps) < 2:
        return Failure("no_trend", "the model neither writes a trend nor gives values for single frames")
    rise = float(score.steps[-1] - score.steps[0])
    if rise > TREND_MARGIN:
        return "positive"
    return "negative" if rise < -TREND_MARGIN else "unclear"


def _parts(message: dict[str, Any]) -> tuple[list[str], str]:
    """Data URLs of the pictures, and the text."""
    content = message.get("content")
    if message.get("role") != "user" or not isinstance(content, list):
        raise BadRequest("send one user turn whose content is a list of pictures and a text", param="messages")
    pictures: list[str] = []
    texts: list[str] = []
    for part in content:
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
                if not _DATA_URL.match(url):
                    raise BadRequest(
                        "only data URLs with a PNG, JPEG or WebP picture are accepted (data:image/jpeg;base64,...); no "
                        "URL is fetched",
                        param="messages",
                    )
                pictures.append(url)
            case _:
                raise BadRequest("parts of the content are of type image_url, with a url, or text", param="messages")
    if len(texts) != 1 or not texts[0].strip() or not pictures:
        raise BadRequest("the content needs pictures and one text that says what the task is", param="messages")
    return pictures, texts[0]
