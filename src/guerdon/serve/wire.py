"""What the foreign wire formats share: reading bodies, judging texts, one number per item, failures.

A format has a place for numbers only, so a failed measurement is null in its place, and where nothing at all could be
measured the whole answer is an error (422, `failed_measurement`): never a number. This module knows no format.

    body = await read_body(request, ClassifyRequest)
    judged = await judge_texts(engine, settings, body.model, asked, choice)
    numbers = [value_of(j.score, choice.aggregate) for j in judged]
"""

from __future__ import annotations

import asyncio
import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, ValidationError

from guerdon.config_schema import Spot, child, models_in
from guerdon.errors import DataError
from guerdon.evaluate.scores import solution_value
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.policies.tokens import split_steps
from guerdon.serve.engine import Engine
from guerdon.serve.errors import BadRequest, ServeError
from guerdon.serve.wire_text import Asked, marked_steps
from guerdon.settings.evaluate_text import Aggregation
from guerdon.settings.serve import LimitSettings, ServeSettings
from guerdon.types import Episode, Failure, RewardInfo, Score

M = TypeVar("M", bound=BaseModel)
R = TypeVar("R")
MOST_OBJECTS = 50_000  # of a body, before any of them is looked at
MOST_KEYS = 1000  # of one object
MOST_KEYS_IN_ALL = 500_000
MOST_VALUES = 2_000_000  # of a body: a thousand items with a thousand steps have half as many
_INLINE = 1 << 16  # bytes or characters that are worked on in the event loop


class FailedMeasurement(ServeError):
    """The model has no value for this: the reason stands in the message. Asking again gives the same."""

    status, code = 422, "failed_measurement"

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure)[:500])


class Foreign(BaseModel):
    """A body of a format that is not ours: clients send fields that mean nothing here."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


@dataclass(frozen=True)
class Choice:
    """What a client can only say in the address, because its body has no room for it.

    Attributes:
        model: which one; None: the default.
        aggregate: how the values of steps become one number.
        separator: where a response is cut into steps, for models that judge steps.
    """

    model: str | None = None
    aggregate: Aggregation = "last"
    separator: str | None = None


async def choice(
    request: Request,
    model: Annotated[str | None, Query(max_length=200, description="which model; the default where left out")] = None,
    aggregate: Annotated[
        Aggregation, Query(description="how the values of steps become one number, for models that judge steps")
    ] = "last",
    separator: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=64,
            description="where steps end, for models that judge steps; left out: as the model says, or blank lines",
        ),
    ] = None,
) -> Choice:
    """The query of an address; a coroutine, so that it is not sent to a thread of its own.

    Raises:
        BadRequest: it has other keys.
    """
    unknown = sorted(set(request.query_params) - {"model", "aggregate", "separator"})
    if unknown:
        raise BadRequest(
            f"{unknown[0]} is no key of the address; there are model, aggregate and separator", param=unknown[0]
        )
    return Choice(model, aggregate, separator)


async def read_body(request: Request, shape: type[M]) -> M:
    """The JSON body; long ones are read in a thread.

    Raises:
        RequestValidationError: it is not what the route takes.
    """
    return await parse(await request.body(), shape)


async def parse(body: bytes, shape: type[M]) -> M:
    """JSON as a model; see `read_body`."""

    def read() -> M:
        check_once(body)
        return shape.model_validate_json(body)

    try:
        return await away(len(body), read)
    except ValidationError as error:
        raise validation_error(error, shape) from error


def check_once(text: bytes) -> None:
    """Refuse a key that an object has twice: readers disagree about which of the values holds.

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

    with suppress(ValueError, RecursionError):  # no JSON: whoever reads it says what is wrong
        json.loads(text, object_pairs_hook=once)


def validation_error(error: ValidationError, shape: type[BaseModel]) -> RequestValidationError:
    """What pydantic found, as the application's handler takes it; unknown keys with a suggestion.

    Args:
        error: what it found.
        shape: what the body should have been.
    """
    found = error.errors(include_url=False, include_input=False, include_context=False)
    told = []
    for problem in found:
        words = unknown_key(shape, problem["loc"]) if problem["type"] == "extra_forbidden" else problem["msg"]
        told.append({**problem, "loc": ("body", *problem["loc"]), "msg": words})
    return RequestValidationError(told)


def unknown_key(shape: type[BaseModel], where: Sequence[int | str]) -> str:
    """What is said of a key that a body has and its shape has not: the nearest one that is known, else all of them."""
    *section, key = where
    spot: Spot = (shape,)
    for piece in section:
        spot = child(spot, piece)
    known = [name for model in models_in(spot) for name in model.model_fields]
    near = difflib.get_close_matches(str(key).lower()[:60], known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys here: {', '.join(known)}"
    return f"unknown key {str(key)[:60]!r}; {hint}"


def json_body(shape: type[BaseModel], example: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the OpenAPI document that describes a JSON body."""
    schema = flat_schema(shape)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}}


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


def text_episode(asked: Asked, *, separator: str | None) -> Episode:
    """A question and a response as what reward models score; a row per step.

    Steps end at step marks where there are any, else at the separator; None: the response is one step.
    """
    steps = marked_steps(asked.response)
    if steps is None:
        steps = (asked.response,) if separator is None else tuple(split_steps(asked.response, separator))
    return Episode(id="", task=asked.task, texts=steps)


def check_texts(settings: ServeSettings, texts: Sequence[str]) -> None:
    """Refuse what is over a limit, before anything looks into it.

    Raises:
        BadRequest: too many items, or one that is too long.
    """
    limits = settings.limits
    if len(texts) > limits.max_items:
        raise BadRequest(f"{len(texts)} items are over {limits.max_items}")
    if max(map(len, texts), default=0) > limits.max_characters:
        raise BadRequest(f"a text is over {limits.max_characters} characters")


def check_task(limits: LimitSettings, task: str, param: str) -> None:
    """Refuse the task of a video that is too long: a model would read it for longer than anybody waits.

    Raises:
        BadRequest: it is.
    """
    if len(task) > limits.max_task_characters:
        raise BadRequest(
            f"the task has {len(task)} characters; {limits.max_task_characters} are allowed for frames", param=param
        )


def must_judge(engine: Engine, name: str | None, what: Literal["text", "image"]) -> RewardInfo:
    """What a model promises; refuses one that judges the other kind.

    Raises:
        BadRequest: it does.
        ServeError: there is no such model, or it is not ready.
    """
    info = engine.info(name)
    if info.modality == ("image" if what == "text" else "text"):
        words = {"text": "texts", "image": "frames"}
        raise BadRequest(f"{engine.resolve(name)!r} judges {words[info.modality]}, not {words[what]}", param="model")
    return info


async def away(size: int, work: Callable[[], R]) -> R:
    """The result of work that takes as long as its input is; in a thread where that is long."""
    return work() if size <= _INLINE else await asyncio.to_thread(work)


async def judge_texts(
    engine: Engine, settings: ServeSettings, name: str | None, asked: Sequence[Asked | Failure], chosen: Choice
) -> list[ExplainedScore]:
    """One judgement per item; those that are failures already stay so. The caller has called `check_texts`.

    Raises:
        BadRequest: too many steps, or a separator for a model that does not judge steps.
        ServeError: as `Engine.judge`.
    """
    separator = None
    if must_judge(engine, name, "text").granularity == "step":
        separator = chosen.separator or engine.separator(name) or "\n\n"
    elif chosen.separator is not None or chosen.aggregate != "last":
        raise BadRequest("this model judges whole responses: separator and aggregate would do nothing")

    def episodes_of() -> list[Episode | Failure]:
        return [_episode(item, separator, settings.limits.max_steps) for item in asked]

    size = sum(len(item.response) for item in asked if isinstance(item, Asked))
    found = await away(size, episodes_of)
    episodes = {i: episode for i, episode in enumerate(found) if isinstance(episode, Episode)}
    judged = await engine.judge(name, list(episodes.values()), JudgeOptions()) if episodes else []
    results = dict(zip(episodes, judged, strict=True))
    return [
        ExplainedScore(Score(failure=item)) if isinstance(item, Failure) else results[i] for i, item in enumerate(found)
    ]


def _episode(item: Asked | Failure, separator: str | None, max_steps: int) -> Episode | Failure:
    if isinstance(item, Failure):
        return item
    try:
        episode = text_episode(item, separator=separator)
    except DataError as error:
        return Failure("unreadable", str(error))
    if len(episode) > max_steps:
        raise BadRequest(f"{len(episode)} steps are over {max_steps}")
    return episode


def value_of(score: Score, how: Aggregation = "last") -> float | Failure:
    """One number for an item: its total, else its steps put together; or why there is none."""
    if how == "last" and score.total is not None:
        return score.total
    if how == "last" and score.steps is not None and score.steps.size:
        return float(score.steps[-1])
    return solution_value(score, how)


def values_or_null(values: Sequence[float | Failure]) -> list[float | None]:
    """Numbers, null where there is none.

    Raises:
        FailedMeasurement: there are items, and none has a number.
    """
    failures = [value for value in values if isinstance(value, Failure)]
    if failures and len(failures) == len(values):
        raise FailedMeasurement(failures[0])
    return [None if isinstance(value, Failure) else value for value in values]


def failure_json(value: float | Failure) -> dict[str, str] | None:
    """Why there is no number."""
    return {"reason": value.reason, "detail": value.detail} if isinstance(value, Failure) else None
