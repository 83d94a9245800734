"""`GET /v1/rewards`: what a served model promises about its scores, so that a client can hold it to that.

It does not know how clients use it.

    GET /v1/rewards?model=prm    {"model": "prm", "learns": false, "info": {"range": [0.0, 1.0], "granularity": "step"}}
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from guerdon.serve.engine import Engine
from guerdon.serve.routes import ERRORS
from guerdon.settings.serve import ServeSettings
from guerdon.types import RewardInfo


class InfoWords(BaseModel):
    """A `RewardInfo`; an end of the range that is not bounded is null."""

    name: str
    range: tuple[float | None, float | None] = Field(description="smallest and largest value; null: not bounded")
    granularity: Literal["step", "total"] = Field(description="a value per step or frame, or one per item")
    modality: Literal["image", "state", "text"] = Field(description="what it looks at")
    causal: bool = Field(description="a value depends on nothing that comes later")
    frames_needed: int = Field(description="trailing frames that a value needs; 0: none")
    success_threshold: float | None = Field(description="the value above which an item counts as successful")
    progress_horizon: float | None = Field(description="steps before success at which progress starts to rise")


class Description(BaseModel):
    """One served model."""

    object: Literal["reward_model"] = "reward_model"
    model: str = Field(description="its name")
    learns: bool = Field(description="whether POST /v1/update works")
    info: InfoWords


def words_of(info: RewardInfo) -> dict[str, Any]:
    """An info as plain JSON values."""
    return {**asdict(info), "range": [end if math.isfinite(end) else None for end in map(float, info.range)]}


def router(engine: Engine, settings: ServeSettings) -> APIRouter:
    """The route."""
    routes = APIRouter(tags=["guerdon"])

    @routes.get("/v1/rewards", responses={status: ERRORS[status] for status in (401, 404, 503)})
    async def describe(
        model: Annotated[
            str | None, Query(max_length=200, description="which model; the default where left out")
        ] = None,
    ) -> Description:
        """What a model promises about its scores."""
        name = engine.resolve(model)
        info = InfoWords.model_validate(words_of(engine.info(name)))
        return Description(model=name, learns=engine.learns(name), info=info)

    return routes
