"""`POST /score`: the score of one video, in the format of the first VLM reward server, with uploads as well as paths.

Fields, defaults and limits are that server's. What was unsafe or wrong there is an error here: a path is opened only
under the media root, a prompt is chosen by name, and an answer without a score is not 0.

    curl -F task_text='close the drawer' -F video=@episode.mp4 http://127.0.0.1:18080/score
"""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from starlette.datastructures import FormData, UploadFile

from guerdon.models.explained_score import JudgeOptions, Scale
from guerdon.serve.errors import ERRORS, BadRequest
from guerdon.serve.score_answer import ScoreAnswer
from guerdon.serve.wires import wire
from guerdon.types import Episode, Failure

_PROMPTS = {"prompt_template", "system_prompt", "user_prompt"}
_BASE64 = {"frames_base64", "npy_base64", "video_base64"}
_FORM = "multipart/form-data"
_EXAMPLE = {"task_text": "close the drawer", "video_path": "libero/episode_0.mp4", "nframes": 16}


class BackendOptions(BaseModel):
    """`backend_kwargs`: options of the score."""

    model_config = ConfigDict(extra="forbid")

    score_mode: Scale | None = Field(None, description="scale of the written answer; left out: that of the prompt")
    prompt: str | None = Field(None, max_length=100, description="name of a prompt template of the model")


class ScoreRequest(wire.FrameFields):
    """The fields of `POST /score`."""

    model_config = ConfigDict(extra="forbid")

    task_text: str = Field(min_length=1, description="the task in words")
    nframes: wire.FrameCount = Field(16, description="frames sampled from a video, the first and the last included")
    max_pixels: wire.PixelCount = Field(200_704, description="pixels per frame; larger frames are scaled down")
    backend: str | None = Field(None, max_length=200, description="which model; left out: the server's default")
    backend_kwargs: BackendOptions = Field(default_factory=BackendOptions, description="options of the score")

    @field_validator("backend_kwargs", mode="before")
    @classmethod
    def _no_prompts(cls, given: Any) -> Any:
        brought = sorted(_PROMPTS & given.keys()) if isinstance(given, dict) else []
        if brought:
            raise ValueError(
                f"{', '.join(brought)}: clients cannot send a prompt; choose one of the server's by name, "
                '{"prompt": "..."}'
            )
        return {} if given is None else given


def _body() -> dict[str, Any]:
    """Both kinds of body for the OpenAPI document."""
    schema = wire.flat_schema(ScoreRequest)
    form = {k: v for k, v in schema["properties"].items() if k not in _BASE64}
    form |= {
        "backend_kwargs": {"type": "string", "description": "JSON text"},
        "video": {"type": "string", "format": "binary", "description": "an MP4 or NPY file"},
        "frames": {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "pictures"},
    }
    parts = {"type": "object", "properties": form, "required": ["task_text"], "additionalProperties": False}
    content = {
        "application/json": {"schema": schema, "example": _EXAMPLE},
        _FORM: {"schema": parts},
    }
    return {"requestBody": {"required": True, "content": content}}


routes = APIRouter(tags=["score"], responses=ERRORS)


@routes.post("/score", openapi_extra=_body(), response_model_exclude_none=True)
async def score(request: Request) -> ScoreAnswer:
    """Score one video: named by path, or sent as base64 or as an upload.

    A measurement that failed is a 422 with its reason. A path that does not exist and one that may not be read
    get the same 400.
    """
    media, video, pictures = wire.media_of(request), None, None
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        body = await wire.read_body(request, ScoreRequest)
    else:
        async with request.form(max_files=media.limits.max_frames, max_fields=len(ScoreRequest.model_fields)) as form:
            body, video, pictures = await _read_form(form)
    queue = wire.models_of(request).get(body.backend, param="backend")
    wire.check_modality(queue, "image")
    wire.check_task(queue.limits, body.task_text, "task_text")
    chosen = body.backend_kwargs
    options = JudgeOptions(body.nframes, body.max_pixels, chosen.prompt, chosen.score_mode)
    async with queue.deadline() as left:
        frames = await wire.frames_of(media, body, nframes=body.nframes, video=video, pictures=pictures)
        episode = Episode(id="", task=body.task_text, frames=frames)
        (explained,) = await queue.judge([episode], options, deadline_s=left())
    value = wire.value_of(explained.score)
    if isinstance(value, float) and not 0 <= value <= 1:
        value = Failure("out_of_range", f"{queue.name} gives {value:g}; /score promises 0 to 1, /v1/rewards gives any")
    if isinstance(value, Failure):
        raise wire.FailedMeasurement(value)
    return ScoreAnswer.of(value, explained, body.backend or queue.name)


async def _read_form(form: FormData) -> tuple[ScoreRequest, bytes | None, list[bytes] | None]:
    texts: dict[str, Any] = {}
    files: dict[str, list[bytes]] = {}
    for name, part in form.multi_items():
        if isinstance(part, UploadFile):
            files.setdefault(name, []).append(await part.read())
        elif name in texts:
            raise BadRequest(f"{name[:60]} is given twice", param=name[:60])
        else:
            texts[name] = part
    if files.keys() - {"video", "frames"} or len(files.get("video", ())) > 1:
        raise BadRequest("files are accepted as video (one MP4 or NPY) or frames (pictures, in order)", param="video")
    if _BASE64 & texts.keys():
        raise BadRequest("base64 frames belong in a JSON body; a form takes the files themselves", param="frames")
    try:
        if "backend_kwargs" in texts:
            wire.check_once(texts["backend_kwargs"].encode("utf-8", "surrogatepass"))
            texts["backend_kwargs"] = json.loads(texts["backend_kwargs"])
    except (ValueError, RecursionError) as error:
        raise BadRequest("backend_kwargs is not JSON", param="backend_kwargs") from error
    try:
        body = ScoreRequest.model_validate(texts)
    except ValidationError as error:
        raise wire.validation_error(error, ScoreRequest) from error
    return body, files.get("video", [None])[0], files.get("frames")
