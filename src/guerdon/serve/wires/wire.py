"""Shared parts of the wire formats: reading bodies, frames in bodies, scoring texts, one number per item, failures.

Other people's formats have room for numbers only, so a failed measurement is null in its place, and if nothing could be
measured the whole answer is an error (422, `failed_measurement`): never a number.

    body = await read_body(request, ClassifyRequest)
    scores = await judge_texts(models_of(request).get(body.model), pairs, options)
    numbers = values_or_null([value_of(s.score, options.aggregate) for s in scores])
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo
from pydantic_core import PydanticKnownError

from guerdon.config.schema import Spot, child, models_in
from guerdon.errors import DataError, did_you_mean
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.policies.batches.tokens import split_steps
from guerdon.serve.errors import BadRequest, ServeError
from guerdon.serve.media import Media
from guerdon.serve.model_queue import ModelQueue
from guerdon.serve.served_models import ServedModels
from guerdon.serve.wires import client_wire
from guerdon.serve.wires.wire_text import PromptResponse, marked_steps
from guerdon.settings.evaluate import Aggregation
from guerdon.settings.serve import LimitSettings
from guerdon.types import ByteArray, Episode, Failure, Score

M = TypeVar("M", bound=BaseModel)
R = TypeVar("R")
MOST_OBJECTS = 50_000  # in a body, before any of them is looked at
MOST_KEYS = 1000  # in one object
MOST_KEYS_IN_ALL = 500_000
MOST_VALUES = 2_000_000  # in a body: a thousand items with a thousand steps have half as many
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_INLINE = 1 << 16  # bytes or characters that are processed in the event loop


def _whole(given: Any, info: ValidationInfo) -> Any:
    if info.mode == "json" and isinstance(given, str | bool):
        raise PydanticKnownError("int_type")
    return given


def _flag(given: Any, info: ValidationInfo) -> Any:
    if info.mode == "json" and not isinstance(given, bool):
        raise PydanticKnownError("bool_type")
    return given


# JSON numbers and flags are not coerced: "16" and true are not numbers, 0 is not false. The OpenAPI document promises
# that. The fields of forms are text and are parsed. For plain `bool` and `float`, `Field(strict=True)` does the same.
WHOLE = BeforeValidator(_whole)
FLAG = BeforeValidator(_flag)
FIRST_ERROR = Field(fail_fast=True)  # stop at the first wrong element: a million error messages take seconds
Strings = Annotated[list[str], FIRST_ERROR]
Messages = Annotated[list[dict[str, Any]], FIRST_ERROR]
FrameCount = Annotated[int, Field(ge=1, le=128), WHOLE]
PixelCount = Annotated[int, Field(ge=784, le=1_605_632), WHOLE]


class FailedMeasurement(ServeError):
    """The model has no value for this item; the message has the reason. Asking again gives the same."""

    status, code = 422, "failed_measurement"

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure)[:500])


class ForeignBody(BaseModel):
    """A body of a format that is not ours: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class UrlOptions(BaseModel):
    """Query parameters of formats whose bodies have no room for them."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(None, max_length=200, description="which model; the default if left out")
    aggregate: Aggregation = Field("last", description="how step scores become one number, for models that score steps")
    separator: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="end of steps, for models that score steps; left out: as the model declares, or blank lines",
    )


class FrameFields(BaseModel):
    """Frames in a JSON body; exactly one of the fields is set."""

    video_path: str | None = Field(None, description="frames: an MP4 file under the server's --media-root")
    frames_base64: Strings | None = Field(None, description="frames: PNG, JPEG or WebP pictures, base64 or data URLs")
    npy_base64: str | None = Field(None, description="frames: a uint8 NPY array (T, H, W, 3), base64 or data URL")
    video_base64: str | None = Field(None, description="frames: an MP4 file, base64 or data URL")


class FailureReason(BaseModel):
    """Why there is no score."""

    reason: str = Field(description="a short stable word")
    detail: str = Field(description="one line for a person")

    @staticmethod
    def of(value: object) -> FailureReason | None:
        """The reason of a `Failure`; None for anything else."""
        return FailureReason(reason=value.reason, detail=value.detail) if isinstance(value, Failure) else None


class CompletionUsage(BaseModel):
    """Input tokens, 0 if they were not counted."""

    prompt_tokens: int
    completion_tokens: int = 0
    total_tokens: int

    @staticmethod
    def of(scores: Sequence[ExplainedScore]) -> CompletionUsage:
        """The sum over several items."""
        tokens = sum(explained.tokens or 0 for explained in scores)
        return CompletionUsage(prompt_tokens=tokens, total_tokens=tokens)


def models_of(request: Request) -> ServedModels:
    """The models of the application."""
    models: ServedModels = request.app.state.models
    return models


def media_of(request: Request) -> Media:
    """The decoders of the application."""
    media: Media = request.app.state.media
    return media


async def read_body(request: Request, shape: type[M], *, empty: M | None = None) -> M:
    """The JSON body; long ones are parsed in a thread.

    Args:
        request: its body is read.
        shape: type of the body.
        empty: result for a body without text; None: that is an error.

    Raises:
        RequestValidationError: it has another type.
        BadRequest: it has a key twice in one object, or too many values.
    """
    body = await request.body()
    if empty is not None and not body.strip():
        return empty

    def read() -> M:
        check_once(body)
        try:
            return shape.model_validate_json(body)
        except ValidationError:
            if (found := _with_surrogates(body)) is not None:
                return shape.model_validate(found)
            if (found := _by_own_names(shape, body)) is not None:
                return shape.model_validate_json(json.dumps(found))
            raise

    try:
        return await run_long(len(body), read)
    except ValidationError as error:
        raise validation_error(error, shape) from error


def _by_own_names(shape: type[BaseModel], body: bytes) -> Any:
    """The parsed body by the field names of its type, where that knows other names for them; else None."""
    rename = getattr(shape, "by_own_names", None)
    if rename is None:
        return None
    with suppress(ValueError, RecursionError):
        return rename(json.loads(body))
    return None


def _with_surrogates(body: bytes) -> Any:
    """The parsed body if it may contain half of a surrogate pair, which pydantic's JSON parser refuses; else None.

    Such a text makes its item fail, not the request.
    """
    if _SURROGATE.search(body):
        with suppress(ValueError, RecursionError):
            return json.loads(body)
    return None


def check_once(text: bytes) -> None:
    """Refuse a key that an object has twice: parsers disagree about which of the values counts.

    Raises:
        BadRequest: there is one, or there are more values than any request needs.
    """
    if text.count(b",") > MOST_VALUES:
        raise BadRequest(f"the body has more than {MOST_VALUES} values")

    keys = re.finditer(rb'"\s*:', text) if text.count(b":") > MOST_KEYS_IN_ALL else iter(())
    if next(islice(keys, MOST_KEYS_IN_ALL, None), None) is not None:
        raise BadRequest(f"the body has more than {MOST_KEYS_IN_ALL} keys")
    objects = 0

    def once(pairs: list[tuple[str, Any]]) -> None:
        nonlocal objects
        objects += 1
        if objects > MOST_OBJECTS:
            raise BadRequest(f"the body has more than {MOST_OBJECTS} objects")
        if len(pairs) > MOST_KEYS:
            raise BadRequest(f"an object of the body has more than {MOST_KEYS} keys")
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                raise BadRequest(f"the key {name[:60]!r} is given twice in one object", param=name[:60])
            names.add(name)

    with suppress(ValueError, RecursionError):  # not JSON: the parser of the body reports that
        json.loads(text, object_pairs_hook=once)


def validation_error(error: ValidationError, shape: type[BaseModel]) -> RequestValidationError:
    """An error of pydantic as the application's handler expects it: with the type of the body, for suggestions."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return RequestValidationError([{**problem, "loc": ("body", *problem["loc"])} for problem in found], body=shape)


def unknown_key(shape: type[BaseModel], where: Sequence[int | str]) -> str:
    """Message for an unknown key: the nearest known key, else all of them."""
    *section, key = where
    spot: Spot = (shape,)
    for piece in section:
        spot = child(spot, piece)
    known = [name for model in models_in(spot) for name in model.model_fields]
    hint = did_you_mean(str(key).lower()[:60], known, quoted=True) or f"; known keys here: {', '.join(known)}"
    return f"unknown key {str(key)[:60]!r}{hint}"


def json_body(shape: type[BaseModel], *, required: bool = True, **examples: object) -> dict[str, Any]:
    """The part of the OpenAPI document that describes a JSON body, with examples by name."""
    shown = {name: {"value": example} for name, example in examples.items()}
    content = {"application/json": {"schema": flat_schema(shape), "examples": shown}}
    return {"requestBody": {"required": required, "content": content}}


def flat_schema(shape: type[BaseModel]) -> dict[str, Any]:
    """A JSON schema without references."""
    schema = shape.model_json_schema()
    parts = schema.pop("$defs", {})

    def put_in(node: Any) -> Any:
        if isinstance(node, list):
            return [put_in(item) for item in node]
        if isinstance(node, dict):
            if "$ref" in node:
                return put_in(parts[node["$ref"].removeprefix("#/$defs/")])
            return {key: put_in(value) for key, value in node.items()}
        return node

    return put_in(schema)  # type: ignore[no-any-return]


async def frames_of(
    media: Media,
    sent: FrameFields,
    *,
    nframes: int | None,
    video: bytes | None = None,
    pictures: Sequence[bytes] | None = None,
) -> ByteArray:
    """The frames of a request, (T, H, W, 3) uint8.

    Args:
        media: decodes them.
        sent: the fields of a body.
        nframes: most frames sampled from an MP4 video.
        video: an MP4 or NPY file of a form.
        pictures: picture files of a form.

    Raises:
        BadRequest: none or several kinds of frames.
        MediaRefused: they cannot be decoded.
        Busy: too many requests wait for a decoder.
    """
    fields = {name: getattr(sent, name) for name in FrameFields.model_fields} | {"video": video, "frames": pictures}
    given = {name: value for name, value in fields.items() if value is not None}
    if len(given) != 1:
        raise BadRequest(
            "give exactly one of video_path, frames_base64, npy_base64 and video_base64 (in a form: video_path, a file "
            f"video, or files frames); there is {' and '.join(given) or 'none of them'}"
        )
    ((name, value),) = given.items()
    if name == "video_path":
        return await media.path(value, nframes=nframes)
    encoded = name.endswith("_base64")
    if name.startswith("frames"):
        blobs = [text.encode("utf-8", "replace") for text in value] if encoded else value
        return await media.pictures(blobs, encoded=encoded)
    blob = value.encode("utf-8", "replace") if encoded else value
    return await media.upload(blob, nframes=nframes, encoded=encoded)


def text_episode(pair: PromptResponse, *, separator: str | None) -> Episode:
    """A question and a response as an episode with a row per step.

    Steps end at step marks if there are any, else at the separator; None: the response is one step.
    """
    steps = marked_steps(pair.response)
    if steps is None:
        steps = (pair.response,) if separator is None else tuple(split_steps(pair.response, separator))
    return Episode(id="", task=pair.task, texts=steps, context=pair.context, tools=pair.tools)


def check_texts(limits: LimitSettings, texts: Sequence[str]) -> None:
    """Refuse what is over a limit, before it is processed.

    Raises:
        BadRequest: too many items, or one that is too long.
    """
    if len(texts) > limits.max_items:
        raise BadRequest(f"{len(texts)} items are over {limits.max_items}")
    check_size(limits, max(map(len, texts), default=0))


def check_size(limits: LimitSettings, size: int) -> None:
    """Refuse a text, or a conversation, of more characters than are allowed.

    Raises:
        BadRequest: it has more.
    """
    if size > limits.max_characters:
        raise BadRequest(f"a text is over {limits.max_characters} characters")


def check_task(limits: LimitSettings, task: str, param: str) -> None:
    """Refuse a task of a video that is too long: a model would read it for longer than clients wait.

    Raises:
        BadRequest: it is.
    """
    if len(task) > limits.max_task_characters:
        raise BadRequest(
            f"the task has {len(task)} characters; {limits.max_task_characters} are allowed for frames", param=param
        )


def check_modality(queue: ModelQueue, what: Literal["text", "image"]) -> None:
    """Refuse a model that scores the other kind.

    Raises:
        BadRequest: it does.
        NotReady: it is not loaded.
    """
    other: Literal["text", "image"] = "image" if what == "text" else "text"
    if queue.info.modality == other:
        words = {"text": "texts", "image": "frames"}
        raise BadRequest(f"{queue.name!r} scores {words[other]}, not {words[what]}", param="model")


async def run_long(size: int, work: Callable[[], R]) -> R:
    """The result of work whose time depends on the size of its input; in a thread if that is large."""
    return work() if size <= _INLINE else await asyncio.to_thread(work)


async def judge_texts(
    queue: ModelQueue, pairs: Sequence[PromptResponse | Failure], options: UrlOptions
) -> list[ExplainedScore]:
    """One explained score per item; items that are failures already stay so. The caller has called `check_texts`.

    Raises:
        BadRequest: too many steps, or a separator for a model that does not score steps.
        ServeError: as `ModelQueue.judge`.
    """
    separator = None
    check_modality(queue, "text")
    if queue.info.granularity == "step":
        separator = options.separator or queue.separator or "\n\n"
    elif options.separator is not None or options.aggregate != "last":
        raise BadRequest("this model scores whole responses: separator and aggregate would do nothing")

    def episodes_of() -> list[Episode | Failure]:
        return [_episode(pair, separator, queue.limits.max_steps) for pair in pairs]

    size = sum(pair.size for pair in pairs if isinstance(pair, PromptResponse))
    found = await run_long(size, episodes_of)
    episodes = [episode for episode in found if isinstance(episode, Episode)]
    scores = iter(await queue.judge(episodes, JudgeOptions()) if episodes else ())
    return [ExplainedScore(Score(failure=one)) if isinstance(one, Failure) else next(scores) for one in found]


def _episode(pair: PromptResponse | Failure, separator: str | None, max_steps: int) -> Episode | Failure:
    if isinstance(pair, Failure):
        return pair
    try:
        episode = text_episode(pair, separator=separator)
    except DataError as error:
        return Failure("unreadable", str(error))
    if len(episode) > max_steps:
        raise BadRequest(f"{len(episode)} steps are over {max_steps}")
    return episode


def value_of(score: Score, how: Aggregation = "last") -> float | Failure:
    """One number for an item: its total, else its steps aggregated; or why there is none."""
    return client_wire.value_of(score, None if how == "last" else how)


def values_or_null(values: Sequence[R | Failure]) -> list[R | None]:
    """The values, None in place of failures.

    Raises:
        FailedMeasurement: there are items, and all of them failed.
    """
    failures = [value for value in values if isinstance(value, Failure)]
    if failures and len(failures) == len(values):
        raise FailedMeasurement(failures[0])
    return [None if isinstance(value, Failure) else value for value in values]
