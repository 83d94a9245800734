"""Guerdon's own routes: health, readiness, metrics, rewards, updates, reloads.

`/health` says that the process lives, and nothing that it says needs a model. This module does not know how items are
batched or frames are decoded.

    curl -s localhost:18080/v1/rewards -H 'content-type: application/json' \
      -d '{"items": [{"prompt": "3+5=?", "steps": ["8"]}], "aggregation": "min"}'
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.serve.engine import Engine, Learning
from guerdon.serve.errors import BadRequest, ServeError
from guerdon.serve.media import Media
from guerdon.serve.metrics import CONTENT_TYPE
from guerdon.serve.schemas import (
    TEXT_EXAMPLE,
    UPDATE_EXAMPLE,
    VISION_EXAMPLE,
    ItemResult,
    JudgeWords,
    ReloadRequest,
    RewardItem,
    RewardsAnswer,
    RewardsRequest,
    UpdateAnswer,
    UpdateRequest,
    frames_in,
    result,
    text_episode,
)
from guerdon.serve.update_store import Sent as SentUpdate
from guerdon.serve.wire import check_task, flat_schema, parse, read_body
from guerdon.serve.wire_media import Sent, frames_of
from guerdon.settings.evaluate_text import Aggregation
from guerdon.settings.serve import ServeSettings
from guerdon.types import ByteArray, Episode, RewardInfo

DECODING = 4  # items whose frames are decoded at a time, so that a batch leaves room for others


class Health(BaseModel):
    """`GET /health`."""

    status: str = Field(description="ok: the process lives")
    default_backend: str = Field(description="the model of requests that name none")
    loaded_backends: list[str] = Field(description="models that can be asked")


class Readiness(BaseModel):
    """`GET /ready`."""

    ready: bool = Field(description="every model can be asked")
    models: dict[str, str] = Field(description="each model: ready, or what is the matter")


class Reloaded(BaseModel):
    """`POST /v1/reload`."""

    model: str = Field(description="the model that was loaded again")


class ErrorWords(BaseModel):
    """What went wrong, in the shape of OpenAI's errors."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(BaseModel):
    """Every answer other than 200."""

    error: ErrorWords


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": what}
    for status, what in {
        400: "no JSON",
        401: "no token, or another one",
        403: "from a web page of another site",
        404: "no such model",
        408: "the request did not arrive in time",
        413: "the request is too large",
        422: "the request cannot be meant so",
        429: "no room; see Retry-After",
        500: "a fault of the server",
        503: "not ready; see Retry-After",
        504: "not done in time",
    }.items()
}


def router(engine: Engine, settings: ServeSettings, media: Media) -> APIRouter:
    """The routes."""
    routes = APIRouter()
    desk = _Desk(settings, media)

    @routes.get("/health", response_model=Health, tags=["state"])
    async def health() -> Health:
        """Whether the process lives. The only route that needs no token; it answers while models load or score."""
        states = engine.states()
        loaded = [name for name, state in states.items() if state == "ready"]
        return Health(status="ok", default_backend=engine.default, loaded_backends=loaded)

    @routes.get("/ready", response_model=Readiness, tags=["state"], responses={503: {"model": Readiness}, **_only(401)})
    async def ready(response: Response) -> Readiness:
        """Whether requests will be answered: 503 while a model loads, cannot be used, or the server is about to end."""
        response.status_code = 200 if engine.ready else 503
        states = dict.fromkeys(engine.names, "the server is about to end") if engine.draining else engine.states()
        return Readiness(ready=engine.ready, models=states)

    @routes.get("/metrics", tags=["state"], responses=_only(401), response_class=Response)
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(engine.metrics.text(), media_type=CONTENT_TYPE)

    @routes.post(
        "/v1/rewards", response_model=RewardsAnswer, tags=["rewards"], responses=ERRORS,
        openapi_extra=_body(RewardsRequest, text=TEXT_EXAMPLE, frames=VISION_EXAMPLE),
    )  # fmt: skip
    async def rewards(incoming: Request) -> Response:
        """Judge a batch. An item that cannot be judged has a `failure` and no score; the others are not affected."""
        request = await read_body(incoming, RewardsRequest)
        name = engine.resolve(request.model)
        async with engine.deadline(request.deadline_s) as left:
            episodes = await desk.episodes(request.items, engine.info(name), request.options)
            judged = await engine.judge(name, episodes, _options(request.options), deadline_s=left())
        results = desk.results(request.items, episodes, judged, request.aggregation)
        failed = sum(r.score is None for r in results)
        return _json(RewardsAnswer(model=name, aggregation=request.aggregation, results=results, failed=failed))

    @routes.post(
        "/v1/update", response_model=UpdateAnswer, tags=["learning"], responses={**ERRORS, 409: {"model": ErrorAnswer}},
        openapi_extra=_body(UpdateRequest, text=UPDATE_EXAMPLE),
    )  # fmt: skip
    async def update(incoming: Request) -> Response:
        """Let a model learn from rollouts with outcomes, and score them before or after that.

        The new state is on the disk before the answer is sent. Without an update (`none`) this only scores.
        """
        request = await read_body(incoming, UpdateRequest)
        name = engine.resolve(request.model)
        async with engine.deadline():
            episodes = await desk.episodes(request.items, engine.info(name), JudgeWords())
        options = JudgeOptions()
        sent = None
        if request.client_id is not None and request.number is not None:
            sent = SentUpdate(request.client_id, request.number)
        if request.update == "none":
            if sent is not None:
                raise BadRequest("client_id and number would do nothing with update: none; remove them", param="number")
            judged, metrics, updates, repeated = await engine.judge(name, episodes, options), {}, None, False
        else:
            done = await engine.learn(name, Learning(episodes, options, request.update, sent))
            judged, metrics, updates, repeated = done.judgements, done.metrics, done.updates, done.repeated
        results = desk.results(request.items, episodes, judged, request.aggregation)
        return _json(
            UpdateAnswer(
                model=name,
                aggregation=request.aggregation,
                results=results,
                failed=sum(r.score is None for r in results),
                update=request.update,
                updates=updates,
                metrics=metrics,
                repeated=repeated,
            )
        )

    @routes.post(
        "/v1/reload", response_model=Reloaded, tags=["learning"], responses=ERRORS,
        openapi_extra=_body(ReloadRequest, required=False, default={}, named={"model": "prm"}),
    )  # fmt: skip
    async def reload(incoming: Request) -> Reloaded:
        """Load a model again from where it came, beside the old one, and exchange them; no request is lost.

        Without a body it is the default model.
        """
        body = await incoming.body()
        request = await parse(body, ReloadRequest) if body.strip() else ReloadRequest(model=None)
        name = engine.resolve(request.model)
        await engine.reload(name)
        return Reloaded(model=name)

    return routes


class _Desk:
    """Items to episodes, and judgements to results."""

    def __init__(self, settings: ServeSettings, media: Media) -> None:
        self._limits, self._media = settings.limits, media
        self._room = asyncio.Semaphore(DECODING)

    async def episodes(self, items: Sequence[RewardItem], info: RewardInfo, words: JudgeWords) -> list[Episode]:
        """One episode per item.

        Raises:
            BadRequest: an item is incomplete, there are too many, or a text is meant for a model of frames.
            MediaRefused: frames cannot be decoded.
            Busy: too many wait for a decoder.
        """
        if len(items) > self._limits.max_items:
            raise BadRequest(f"{len(items)} items; {self._limits.max_items} are allowed in a request", param="items")
        per_step = info.granularity == "step"
        found: list[Episode | None] = [None] * len(items)
        visual: dict[int, Sent] = {}
        for place, item in enumerate(items):
            sent = frames_in(item, place)
            if sent is not None:
                check_task(self._limits, item.task or "", f"items[{place}].task")
                visual[place] = sent
            else:
                found[place] = text_episode(item, place, per_step=per_step, limits=self._limits)
        for place, frames in zip(visual, await self._decoded(visual, words.nframes), strict=True):
            item = items[place]
            found[place] = Episode(id=item.id or str(place), task=item.task or "", frames=frames, outcome=item.outcome)
        return [episode for episode in found if episode is not None]

    async def _decoded(self, visual: Mapping[int, Sent], nframes: int | None) -> list[ByteArray]:
        """Frames of several items, a few at a time; the first that is refused refuses the request."""

        async def one(place: int, sent: Sent) -> ByteArray:
            async with self._room:
                try:
                    return await frames_of(self._media, sent, nframes=nframes)
                except ServeError as error:
                    error.param = f"items[{place}]" + (f".{error.param}" if error.param else "")
                    raise

        tasks = [asyncio.create_task(one(place, sent)) for place, sent in visual.items()]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    def results(
        self,
        items: Sequence[RewardItem],
        episodes: Sequence[Episode],
        judged: Sequence[ExplainedScore],
        how: Aggregation | None,
    ) -> list[ItemResult]:
        """One result per item, in order."""
        return [
            result(item.id, episode, judgement, how)
            for item, episode, judgement in zip(items, episodes, judged, strict=True)
        ]


def _options(words: JudgeWords) -> JudgeOptions:
    return JudgeOptions(words.nframes, words.max_pixels, words.prompt, words.score_mode)


def _body(shape: type[BaseModel], *, required: bool = True, **examples: dict[str, Any]) -> dict[str, Any]:
    """The part of the OpenAPI document that describes a JSON body."""
    shown = {name: {"value": example} for name, example in examples.items()}
    content = {"application/json": {"schema": flat_schema(shape), "examples": shown}}
    return {"requestBody": {"required": required, "content": content}}


def _only(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: ERRORS[status] for status in statuses}


def _json(answer: BaseModel) -> Response:
    """The answer as bytes, written once."""
    return Response(answer.model_dump_json(), media_type="application/json")
