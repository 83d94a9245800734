"""`POST /score`: the score of one video, in the form of the first VLM reward server, with uploads beside its paths.

Fields, defaults and limits are that server's. What it got wrong is an error here: a path is opened only under the media
root, a prompt is chosen by name, and an answer that says nothing is no 0. This module does not know models.

    curl -F task_text='close the drawer' -F video=@episode.mp4 http://127.0.0.1:18080/score
    {"score": 0.72, "model_output": "<answer>72</answer>", "backend": "primo"}
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from starlette.datastructures import FormData, UploadFile

from guerdon.models.explained_score import JudgeOptions, ParseStatus, Scale
from guerdon.serve.engine import Engine
from guerdon.serve.errors import BadRequest
from guerdon.serve.media import Media
from guerdon.serve.routes import ERRORS
from guerdon.serve.strict_types import WHOLE, Strings
from guerdon.serve.wire import (
    FailedMeasurement,
    check_once,
    check_task,
    flat_schema,
    must_judge,
    read_body,
    validation_error,
    value_of,
)
from guerdon.serve.wire_media import Sent, frames_of
from guerdon.settings.serve import ServeSettings
from guerdon.types import Episode, Failure

_PROMPTS = {"prompt_template", "system_prompt", "user_prompt"}
_BASE64 = {"frames_base64", "npy_base64", "video_base64"}
_EXAMPLE = {"task_text": "close the drawer", "video_path": "libero/episode_0.mp4", "nframes": 16}


class BackendOptions(BaseModel):
    """`backend_kwargs`: what a client may say about the judgement."""

    model_config = ConfigDict(extra="forbid")

    score_mode: Scale | None = Field(None, description="scale of the written answer; that of the prompt if left out")
    prompt: str | None = Field(None, max_length=100, description="name of a prompt that the model knows")


class ScoreRequest(BaseModel):
    """The fields of `POST /score`."""

    model_config = ConfigDict(extra="forbid")

    task_text: str = Field(min_length=1, description="what was to be done")
    video_path: str | None = Field(None, min_length=1, description="an MP4 file under the server's media root")
    frames_base64: Strings | None = Field(None, min_length=1, description="PNG, JPEG or WebP pictures as base64")
    npy_base64: str | None = Field(None, min_length=1, description="an NPY file with the frames as base64")
    video_base64: str | None = Field(None, min_length=1, description="an MP4 file as base64")
    nframes: Annotated[int, Field(ge=1, le=128), WHOLE] = Field(
        16, description="frames to look at, the first and the last among them"
    )
    max_pixels: Annotated[int, Field(ge=784, le=1_605_632), WHOLE] = Field(
        200_704, description="pixels per frame; larger ones are shrunk"
    )
    backend: str | None = Field(None, max_length=200, description="which model; the server's default if left out")
    backend_kwargs: BackendOptions = Field(default_factory=BackendOptions, description="choices for the judgement")

    @field_validator("backend_kwargs", mode="before")
    @classmethod
    def _no_prompts(cls, given: Any) -> Any:
        brought = sorted(_PROMPTS & given.keys()) if isinstance(given, dict) else []
        if brought:
            raise ValueError(
                f"{', '.join(brought)}: a client does not bring a prompt; choose one that the server knows by name, "
                '{"prompt": "..."}'
            )
        return {} if given is None else given


class ScoreAnswer(BaseModel):
    """What `POST /score` gives."""

    score: float = Field(ge=0, le=1, description="between 0 and 1")
    model_output: str = Field(description="what the model wrote; empty where it writes nothing")
    backend: str = Field(description="the model that judged")
    parse_status: ParseStatus | None = Field(
        None, description="how the score was read: ok, or fallback (from a sentence); null where nothing is written"
    )


def router(engine: Engine, settings: ServeSettings, media: Media) -> APIRouter:
    """The route of the first reward server; its `/health` is the server's own."""
    routes = APIRouter(tags=["score"], responses=ERRORS)

    @routes.post("/score", openapi_extra=_body(), response_model_exclude_none=True)
    async def score(request: Request) -> ScoreAnswer:
        """Score one video: named by path, or sent as base64 or as an upload.

        A measurement that failed is a 422 with its reason. A path that does not exist and one that may not be read
        get the same 400.
        """
        body, sent = await _read(request, media)
        name = engine.resolve(body.backend, param="backend")
        must_judge(engine, name, "image")
        check_task(settings.limits, body.task_text, "task_text")
        chosen = body.backend_kwargs
        options = JudgeOptions(body.nframes, body.max_pixels, chosen.prompt, chosen.score_mode)
        async with engine.deadline() as left:
            episode = Episode(id="", task=body.task_text, frames=await frames_of(media, sent, nframes=body.nframes))
            judged = (await engine.judge(name, [episode], options, deadline_s=left()))[0]
        value = value_of(judged.score)
        if isinstance(value, float) and not 0 <= value <= 1:
            value = Failure("out_of_range", f"{name} gives {value:g}; /score promises 0 to 1, /v1/rewards gives any")
        if isinstance(value, Failure):
            raise FailedMeasurement(value)
        return ScoreAnswer(
            score=value, model_output=judged.text, backend=body.backend or name, parse_status=judged.parse_status
        )

    return routes


async def _read(request: Request, media: Media) -> tuple[ScoreRequest, Sent]:
    """The fields and the frames, from JSON or a form."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "multipart/form-data":
        body = await read_body(request, ScoreRequest)
        return body, Sent(body.video_path, body.frames_base64, body.npy_base64, body.video_base64)
    form = await request.form(max_files=media.limits.max_frames, max_fields=len(ScoreRequest.model_fields))
    try:
        return await _read_form(form)
    finally:
        await form.close()


async def _read_form(form: FormData) -> tuple[ScoreRequest, Sent]:
    texts: dict[str, str] = {}
    files: dict[str, list[bytes]] = {}
    for name, part in form.multi_items():
        if isinstance(part, UploadFile):
            files.setdefault(name, []).append(await part.read())
        elif name in texts:
            raise BadRequest(f"{name[:60]} is given twice", param=name[:60])
        else:
            texts[name] = part
    strange = sorted(files.keys() - {"video", "frames"})
    if strange or len(files.get("video", ())) > 1:
        raise BadRequest("files are taken as video (one MP4 or NPY) or as frames (pictures, in order)", param="video")
    if _BASE64 & texts.keys():
        raise BadRequest("base64 frames belong in a JSON body; a form takes the files themselves", param="frames")
    given: dict[str, Any] = dict(texts)
    try:
        if "backend_kwargs" in texts:
            check_once(texts["backend_kwargs"].encode("utf-8", "surrogatepass"))
            given["backend_kwargs"] = json.loads(texts["backend_kwargs"])
    except (ValueError, RecursionError) as error:
        raise BadRequest("backend_kwargs is no JSON text", param="backend_kwargs") from error
    try:
        body = ScoreRequest.model_validate(given)
    except ValidationError as error:
        raise validation_error(error, ScoreRequest) from error
    return body, Sent(body.video_path, video=files.get("video", [None])[0], pictures=files.get("frames"))


def _body() -> dict[str, Any]:
    """Both kinds of body for the OpenAPI document."""
    schema = flat_schema(ScoreRequest)
    form = {k: v for k, v in schema["properties"].items() if k not in _BASE64}
    form |= {
        "backend_kwargs": {"type": "string", "description": "JSON text"},
        "video": {"type": "string", "format": "binary", "description": "an MP4 or NPY file"},
        "frames": {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "pictures"},
    }
    parts = {"type": "object", "properties": form, "required": ["task_text"], "additionalProperties": False}
    content = {
        "application/json": {"schema": schema, "example": _EXAMPLE},
        "multipart/form-data": {"schema": parts},
    }
    return {"requestBody": {"required": True, "content": content}}
