"""Guerdon's own routes: health, readiness, metrics, rewards, updates, reloads.

`/health` only says that the process is alive and needs no model.

    curl -s localhost:18080/v1/rewards -H 'content-type: application/json' \
      -d '{"items": [{"prompt": "3+5=?", "steps": ["8"]}], "aggregation": "min"}'
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from guerdon.models.explained_score import JudgeOptions
from guerdon.serve import schemas, wire
from guerdon.serve.errors import ERRORS, BadRequest, ErrorAnswer, ServeError
from guerdon.serve.media import Media
from guerdon.serve.metrics import CONTENT_TYPE
from guerdon.serve.model_queue import ModelQueue
from guerdon.serve.update_store import UpdateResult
from guerdon.types import ByteArray, Episode

_NO_TOKEN: dict[int | str, dict[str, Any]] = {401: ERRORS[401]}
routes = APIRouter()


@routes.get("/health", tags=["state"])
async def health(request: Request) -> schemas.Health:
    """Whether the process is alive. The only route without a token; it answers while models load or score."""
    models = wire.models_of(request)
    loaded = [name for name, state in models.states().items() if state == "ready"]
    return schemas.Health(status="ok", default_backend=models.default, loaded_backends=loaded)


@routes.get("/ready", tags=["state"], responses={503: {"model": schemas.Readiness}, **_NO_TOKEN})
async def ready(request: Request, response: Response) -> schemas.Readiness:
    """Whether requests will be answered: 503 while a model loads or is unusable, or the server is shutting down."""
    models = wire.models_of(request)
    response.status_code = 200 if models.ready else 503
    states = dict.fromkeys(models.queues, "the server is shutting down") if models.draining else models.states()
    return schemas.Readiness(ready=models.ready, models=states)


@routes.get("/metrics", tags=["state"], responses=_NO_TOKEN, response_class=Response)
async def metrics(request: Request) -> Response:
    """Counters for Prometheus."""
    return Response(wire.models_of(request).metrics.text(), media_type=CONTENT_TYPE)


@routes.get("/v1/rewards", tags=["guerdon"], responses={status: ERRORS[status] for status in (401, 404, 503)})
async def describe(
    request: Request,
    model: Annotated[str | None, Query(max_length=200, description="which model; the default if left out")] = None,
) -> schemas.Description:
    """The declaration of a model's scores, which clients check answers against."""
    queue = wire.models_of(request).get(model)
    return schemas.Description(model=queue.name, info=schemas.info_fields(queue.info), learns=queue.learns)


@routes.post(
    "/v1/rewards", response_model=schemas.RewardsAnswer, tags=["rewards"], responses=ERRORS,
    openapi_extra=wire.json_body(schemas.RewardsRequest, text=schemas.TEXT_EXAMPLE, frames=schemas.VISION_EXAMPLE),
)  # fmt: skip
async def rewards(request: Request) -> Response:
    """Score a batch. An item that cannot be scored has a `failure` and no score; the others are not affected."""
    body = await wire.read_body(request, schemas.RewardsRequest)
    queue = wire.models_of(request).get(body.model)
    async with queue.deadline(body.deadline_s) as left:
        episodes = await _episodes(wire.media_of(request), queue, body.items, body.options.nframes)
        scores = await queue.judge(episodes, JudgeOptions(**body.options.model_dump()), deadline_s=left())
    return _json(schemas.rewards_answer(queue.name, body, episodes, scores))


@routes.post(
    "/v1/update", response_model=schemas.UpdateAnswer, tags=["learning"],
    responses={**ERRORS, 409: {"model": ErrorAnswer}},
    openapi_extra=wire.json_body(schemas.UpdateRequest, text=schemas.UPDATE_EXAMPLE),
)  # fmt: skip
async def update(request: Request) -> Response:
    """Let a model learn from rollouts with outcomes, and score them before or after that.

    The new state is on disk before the answer is sent. With `update: none` this only scores.
    """
    body = await wire.read_body(request, schemas.UpdateRequest)
    queue = wire.models_of(request).get(body.model)
    async with queue.deadline():
        episodes = await _episodes(wire.media_of(request), queue, body.items, None)
    if body.update != "none":
        done = await queue.learn(episodes, body.update, body.update_id)
    elif body.update_id is not None:
        raise BadRequest("client_id and number would do nothing with update: none; remove them", param="number")
    else:
        done = UpdateResult(await queue.judge(episodes, JudgeOptions()), metrics={}, updates=None)
    answer = schemas.rewards_answer(queue.name, body, episodes, done.judgements).model_dump()
    return _json(
        schemas.UpdateAnswer(
            **answer, update=body.update, updates=done.updates, metrics=done.metrics, repeated=done.repeated
        )
    )


@routes.post(
    "/v1/reload", tags=["learning"], responses=ERRORS,
    openapi_extra=wire.json_body(schemas.ReloadRequest, required=False, default={}, named={"model": "prm"}),
)  # fmt: skip
async def reload(request: Request) -> schemas.Reloaded:
    """Load a model again from its source, next to the old one, and exchange them; no request is lost.

    Without a body it is the default model.
    """
    body = await wire.read_body(request, schemas.ReloadRequest, empty=schemas.ReloadRequest(model=None))
    queue = wire.models_of(request).get(body.model)
    await queue.reload()
    return schemas.Reloaded(model=queue.name)


async def _episodes(
    media: Media, queue: ModelQueue, items: Sequence[schemas.RewardItem], nframes: int | None
) -> list[Episode]:
    """One episode per item.

    Raises:
        BadRequest: an item is incomplete, or there are too many.
        MediaRefused: frames cannot be decoded.
        Busy: too many requests wait for a decoder.
    """
    limits = queue.limits
    if len(items) > limits.max_items:
        raise BadRequest(f"{len(items)} items; {limits.max_items} are allowed in a request", param="items")
    per_step = queue.info.granularity == "step"
    found: list[Episode | None] = [None] * len(items)
    visual: dict[int, schemas.RewardItem] = {}
    for place, item in enumerate(items):
        if schemas.has_frames(item, place):
            wire.check_task(limits, item.task or "", f"items[{place}].task")
            visual[place] = item
        else:
            found[place] = schemas.text_episode(item, place, per_step=per_step, limits=limits)
    for place, frames in zip(visual, await _decoded(media, visual, nframes), strict=True):
        item = items[place]
        found[place] = Episode(id=item.id or str(place), task=item.task or "", frames=frames, outcome=item.outcome)
    return [episode for episode in found if episode is not None]


async def _decoded(media: Media, visual: Mapping[int, schemas.RewardItem], nframes: int | None) -> list[ByteArray]:
    """Frames of several items, a few at a time; the first that is refused refuses the request."""

    async def one(place: int, item: schemas.RewardItem) -> ByteArray:
        async with media.batch_slots:
            try:
                return await wire.frames_of(media, item, nframes=nframes)
            except ServeError as error:
                error.param = f"items[{place}]" + (f".{error.param}" if error.param else "")
                raise

    tasks = [asyncio.create_task(one(place, item)) for place, item in visual.items()]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _json(answer: schemas.RewardsAnswer) -> Response:
    """The answer as bytes, serialized once."""
    return Response(answer.model_dump_json(), media_type="application/json")
