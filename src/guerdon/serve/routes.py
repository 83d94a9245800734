"""Guerdon's own routes (health, readiness, metrics, rewards, updates, reloads), and their bodies.

Text items become episodes with a row per step. `/health` only says that the process is alive and needs no model.

    curl -s localhost:18080/v1/rewards -H 'content-type: application/json' \
      -d '{"items": [{"prompt": "3+5=?", "steps": ["8"]}], "aggregation": "min"}'
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from guerdon.models.explained_score import ExplainedScore, JudgeOptions, ParseStatus, Scale
from guerdon.models.judges.rubric import REFERENCE, RUBRIC
from guerdon.models.scores import info_record
from guerdon.policies.batches.tokens import split_steps
from guerdon.reading.chats import EMPTY_TURN, chat_messages, check_characters, tool_schemas, turn_text
from guerdon.reading.roles import Role, roles_of
from guerdon.serve.errors import ERRORS, BadRequest, ErrorAnswer, ServeError, TwoNames
from guerdon.serve.media import Media
from guerdon.serve.metrics import CONTENT_TYPE
from guerdon.serve.model_queue import ModelQueue
from guerdon.serve.update_store import UpdateId, UpdateResult
from guerdon.serve.wires import wire
from guerdon.serve.wires.client_wire import value_of
from guerdon.serve.wires.wire import (
    FIRST_ERROR,
    WHOLE,
    FailureReason,
    FrameCount,
    FrameFields,
    Messages,
    PixelCount,
    Strings,
)
from guerdon.serve.wires.wire_text import CutError, PromptResponse, answered, cutting, from_messages
from guerdon.settings.evaluate import Aggregation
from guerdon.settings.serve import LimitSettings
from guerdon.types import ByteArray, Episode, Failure, FloatArray, RewardInfo, Score

_STEPS = {"prompt": "What is 3+5-2?", "steps": ["3+5=8. ", "8-2=6."]}
TEXT_EXAMPLE = {"model": "prm", "aggregation": "min", "items": [_STEPS]}
VISION_EXAMPLE = {
    "model": "progress",
    "items": [{"task": "close the drawer", "frames_base64": ["iVBORw0KGgo...", "iVBORw0KGgo..."]}],
}
UPDATE_EXAMPLE = {
    **TEXT_EXAMPLE, "update": "before", "client_id": "trainer-1", "number": 17, "items": [{**_STEPS, "outcome": True}],
}  # fmt: skip


def _of_characters(text: str) -> str:
    check_characters(text)  # what is returned is UTF-8
    return text


class StrictBody(BaseModel):
    """Base: unknown fields are refused, numbers are finite."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class RewardItem(StrictBody, FrameFields):
    """One item to score: a text (prompt or messages, with completion or steps) or frames with a task."""

    id: Annotated[str, AfterValidator(_of_characters)] | None = Field(
        None, max_length=200, description="returned unchanged"
    )
    prompt: str | None = Field(None, description="text: the question")
    messages: Messages | None = Field(
        None, description="text: instead of prompt, chat messages; the assistant's last turn may be the completion"
    )
    tools: Messages | None = Field(
        None, description="text: with messages, functions that can be called in them, as JSON schemas"
    )
    completion: str | None = Field(None, description="text: the answer in one piece")
    steps: Strings | None = Field(None, description="text: the answer in steps, separators included")
    separator: str | None = Field(
        None, min_length=1, max_length=100, description="text: split the completion into steps after each of these"
    )
    label: str | None = Field(None, description="text: the true answer, for models that check it")
    rubric: str | list[str | dict[str, Any]] | None = Field(
        None, description="text: criteria of this prompt, for judges without a rubric of their own"
    )
    outcome: bool | None = Field(
        None, strict=True, description="whether it succeeded; updates need it, scores never use it"
    )
    task: str | None = Field(None, description="frames: the task in words")
    states: Annotated[list[Annotated[list[float], FIRST_ERROR]], FIRST_ERROR] | None = Field(
        None,
        description="frames: the state of the robot at each, for models that need it; without frames: one for each "
        "row, of what a model of states looks at",
    )


class OptionFields(StrictBody):
    """Options for all items of a request."""

    nframes: FrameCount | None = Field(None, description="frames sampled from a video, the first and the last included")
    max_pixels: PixelCount | None = Field(None, description="pixels per frame; larger frames are scaled down")
    prompt: str | None = Field(None, max_length=100, description="name of a prompt template of the model")
    score_mode: Scale | None = Field(None, description="scale of a written answer")


class ReloadRequest(StrictBody):
    """`POST /v1/reload`."""

    model: str | None = Field(None, max_length=200, description="which model; null: the server's default")


class ItemsRequest(ReloadRequest):
    """Items for one model."""

    items: Annotated[list[RewardItem], FIRST_ERROR] = Field(
        min_length=1, description="items to score; of an update each has its outcome"
    )
    aggregation: Aggregation | None = Field(
        None, description="how step scores become one score; null: the model's own total"
    )

    @classmethod
    def by_own_names(cls, body: Any) -> Any:
        """A body whose items have the fields of `RewardItem` for the other names that files have for them.

        None: there are no such names. Bodies are read so only after they were refused, which costs the others nothing.

        Raises:
            TwoNames: two names for one field.
        """
        items = body.get("items") if isinstance(body, dict) else None
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            return None
        named = [_with_own_names(item) for item in items]
        return None if named == items else {**body, "items": named}


class RewardsRequest(ItemsRequest):
    """`POST /v1/rewards`."""

    turns: bool = Field(
        False,
        strict=True,
        description="score each turn of the assistant in the messages, calls of tools included, with all before it",
    )
    options: OptionFields = Field(default_factory=OptionFields, description="options for vision-language models")
    deadline_s: float | None = Field(None, strict=True, gt=0, le=3600, description="time limit in seconds")


class UpdateRequest(ItemsRequest):
    """`POST /v1/update`."""

    update: Literal["none", "before", "after"] = Field(
        "after", description="do not learn; learn, then score; score, then learn"
    )
    client_id: str | None = Field(
        None, min_length=1, max_length=200, description="sender of the update; the same for all updates of a run"
    )
    number: Annotated[int, Field(ge=1, lt=2**53), WHOLE] | None = Field(
        None,
        description="number of the update among the client's, increasing: sent again it gets the same answer, and "
        "nothing is learned twice",
    )

    @model_validator(mode="after")
    def _both_or_none(self) -> UpdateRequest:
        if (self.client_id is None) != (self.number is None):
            raise ValueError("client_id and number belong together: give both, or none")
        return self

    @property
    def update_id(self) -> UpdateId | None:
        """Client and number, if they are given."""
        return None if self.client_id is None or self.number is None else UpdateId(self.client_id, self.number)


class ItemResult(BaseModel):
    """Result of one item. `score` is null exactly when there is a `failure`."""

    id: str | None = Field(description="of the item")
    score: float | None = Field(description="one value for the item")
    step_scores: list[float] | None = Field(description="one value per step or frame, if the model gives them")
    step_offsets: list[tuple[int, int]] | None = Field(
        description="text: start and end of each step in the completion, in characters"
    )
    n_tokens: int | None = Field(description="input tokens of the model; null: it has none, or does not count them")
    truncated: bool = Field(description="part of the item was left out")
    failure: FailureReason | None = Field(description="why the score is missing")
    text: str = Field("", description="text that the model generated")
    parse_status: ParseStatus | None = Field(
        None, description="how the score was parsed from the text: ok, or fallback (from a sentence); null: no text"
    )
    spread: float | None = Field(
        None, description="standard deviation of the model's own total over its members; null: it has none"
    )


class RewardsAnswer(BaseModel):
    """Results in the order of the items; some may have failed."""

    object: Literal["list"] = "list"
    model: str = Field(description="the model that scored")
    aggregation: str | None = Field(description="as requested; null: the model's own total")
    results: list[ItemResult]
    failed: int = Field(description="number of results with a failure")


class TurnResult(ItemResult):
    """Result of one turn of an item."""

    turn: int = Field(description="which of the assistant's turns in the messages, from 0")


class ItemTurns(BaseModel):
    """Results of the turns of one item, in order."""

    id: str | None = Field(description="of the item")
    turns: list[TurnResult]


class TurnsAnswer(BaseModel):
    """Results with `turns: true`, in the order of the items; some turns may have failed."""

    object: Literal["list"] = "list"
    model: str = Field(description="the model that scored")
    aggregation: str | None = Field(description="as requested; null: the model's own total")
    results: list[ItemTurns]
    failed: int = Field(description="number of turns with a failure")


class UpdateAnswer(RewardsAnswer):
    """Results by the weights before or after the update."""

    update: Literal["none", "before", "after"]
    updates: int | None = Field(description="updates that the model has learned in all; null with update: none")
    metrics: dict[str, float] = Field(description="reported by the model")
    repeated: bool = Field(description="it had been learned before, and this is the answer of then")


class Health(BaseModel):
    """`GET /health`."""

    status: str = Field(description="ok: the process is alive")
    default_backend: str = Field(description="the model of requests that name none")
    loaded_backends: list[str] = Field(description="models that are loaded")


class Readiness(BaseModel):
    """`GET /ready`."""

    ready: bool = Field(description="every model is loaded and ends its calls in time")
    models: dict[str, str] = Field(description="each model: ready, or the problem")


class Reloaded(BaseModel):
    """`POST /v1/reload`."""

    model: str = Field(description="the model that was loaded again")


class InfoFields(BaseModel):
    """A `RewardInfo`; an unbounded end of the range is null."""

    name: str
    range: tuple[float | None, float | None] = Field(description="smallest and largest value; null: unbounded")
    granularity: Literal["step", "total"] = Field(description="a value per step or frame, or one per item")
    modality: Literal["image", "state", "text"] = Field(description="input of the model")
    causal: bool = Field(description="no value depends on later rows")
    frames_needed: int = Field(description="trailing frames that a value needs; 0: none")
    success_threshold: float | None = Field(description="the value above which an item counts as successful")
    progress_horizon: float | None = Field(description="steps before success at which progress starts to rise")
    compares: bool = Field(False, description="a value says how a response compares with others of its request")
    progress: bool = Field(False, description="a value says how far the task is")
    states: bool = Field(False, description="the model needs the states of the frames too")
    camera: str | None = Field(None, description="feature key of the camera that the model was trained on")
    keys: list[str] = Field([], description="the camera, or the parts of the states, that the model looks at")
    actions: bool = Field(False, description="the model looks at the action that led to a row, too")


class Description(BaseModel):
    """`GET /v1/rewards`: one served model."""

    object: Literal["reward_model"] = "reward_model"
    model: str = Field(description="its name")
    learns: bool = Field(description="whether POST /v1/update works")
    info: InfoFields


def info_fields(info: RewardInfo) -> InfoFields:
    """An info as JSON values."""
    later = ("compares", "progress", "states", "camera", "keys", "actions")  # left out if empty, for earlier clients
    return InfoFields.model_validate({k: v for k, v in info_record(info).items() if v or k not in later})


_FIELDS: Mapping[Role, str] = {
    "prompt": "prompt", "messages": "messages", "tools": "tools", "response": "completion", "steps": "steps",
    "reference": "label", "rubric": "rubric",
}  # fmt: skip
"""The field of an item for each role of the table of names."""


def _with_own_names(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item by its own fields (docs/reading.md has their other names): `completion` of `response`.

    Raises:
        TwoNames: two names for one field.
    """
    named: dict[str, str] = {}
    for name in item:
        field = name if name in RewardItem.model_fields else _field_of(name, item)
        if field in named and item[name] is not None and item[named[field]] is not None:
            raise TwoNames(f"{named[field]} and {name} are two names for {field}; give one of them", param=name)
        if field not in named or item[named[field]] is None:
            named[field] = name
    return {field: item[name] for field, name in named.items()}


def _field_of(name: str, item: Mapping[str, Any]) -> str:
    """The field that another name stands for, the name itself where it is none.

    An `answer` is the true one where something else is the response, as in files.
    """
    roles = [role for role in roles_of(name) if role in _FIELDS]
    if "response" in roles and "reference" in roles:
        others = (other for other in item if other != name and other != "text")
        answered = any(other in ("completion", "steps") or roles_of(other)[:1] == ("response",) for other in others)
        roles = ["reference" if answered else "response"]
    return _FIELDS[roles[0]] if roles else name


_TEXT_FIELDS = ("prompt", "messages", "tools", "completion", "steps", "separator", "label", "rubric")


def has_frames(item: RewardItem, place: int) -> bool:
    """Whether an item is frames with a task; otherwise it is a text.

    Raises:
        BadRequest: it is both.
    """
    texts = [name for name in _TEXT_FIELDS if getattr(item, name) is not None]
    frames = [name for name in (*FrameFields.model_fields, "states") if getattr(item, name) is not None]
    if not frames and item.task is None:
        return False
    if texts:
        where, both = f"items[{place}]", [*frames, "task"]
        raise BadRequest(
            f"{where} has {texts[0]} of a text and {both[0]} of frames; give one of them", param=f"{where}.{texts[0]}"
        )
    return True


def of_states(item: RewardItem) -> bool:
    """Whether a model of states looks at the states of an item: it has some, or nothing else."""
    return item.states is not None or not _other_fields(item)


def _other_fields(item: RewardItem) -> list[str]:
    return [name for name in (*_TEXT_FIELDS, *FrameFields.model_fields) if getattr(item, name) is not None]


def state_episode(item: RewardItem, place: int) -> Episode:
    """An item of states alone.

    Raises:
        BadRequest: it has no states of one length, or something else to look at.
    """
    where, states = f"items[{place}]", item.states or []
    if given := _other_fields(item):
        param = f"{where}.{given[0]}"
        raise BadRequest(f"{param} would do nothing: the model looks at states; remove it", param=param)
    if len({len(state) for state in states}) != 1:
        raise BadRequest(f"{where}: give a state for each row, all of one length", param=f"{where}.states")
    rows = np.array(states, dtype=np.float32)
    return Episode(id=item.id or str(place), task=item.task or "", states=rows, outcome=item.outcome)


def text_episode(item: RewardItem, place: int, *, per_step: bool, limits: LimitSettings) -> Episode:
    """A text item as an episode.

    Args:
        item: with a prompt and an answer.
        place: of the item in its request, for messages.
        per_step: the model scores steps, so there must be some; otherwise the answer is one row.
        limits: of its length.

    Raises:
        BadRequest: something is missing, empty, contradictory, or too long.
    """
    where = f"items[{place}]"
    asked = _asked(item, where)
    steps = _steps(item, asked.response, where, per_step=per_step)
    return _episode_of(item, asked, steps, where, limits, place=place)


def _episode_of(
    item: RewardItem, asked: PromptResponse, steps: tuple[str, ...], where: str, limits: LimitSettings, *, place: int
) -> Episode:
    """An answer of an item as an episode.

    Raises:
        BadRequest: it is too long.
    """
    if len(steps) > limits.max_steps:
        raise BadRequest(f"{where} has {len(steps)} steps; {limits.max_steps} are allowed", param=f"{where}.steps")
    given = {REFERENCE: item.label, RUBRIC: item.rubric}
    meta: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    size = asked.size - len(asked.response) + sum(map(len, steps)) + sum(len(str(value)) for value in meta.values())
    if size > limits.max_characters:
        raise BadRequest(f"{where} has {size} characters; {limits.max_characters} are allowed", param=where)
    return Episode(
        id=item.id or str(place), task=asked.task, texts=steps, outcome=item.outcome, meta=meta, context=asked.context,
        tools=asked.tools,
    )  # fmt: skip


def _asked(item: RewardItem, where: str) -> PromptResponse:
    """The question or conversation, and the completion (empty where steps are all that is given)."""
    if (item.prompt is None) == (item.messages is None):
        raise BadRequest(f"{where} needs either prompt or messages (or, for frames, a task)", param=where)
    if item.messages is None:
        assert item.prompt is not None
        if item.tools:
            raise BadRequest(f"{where}.tools go with messages, not with prompt", param=f"{where}.tools")
        return PromptResponse(item.prompt, item.completion or "")
    try:
        if not item.messages or item.messages[-1].get("role") != "assistant":
            with cutting():
                return answered(chat_messages(item.messages), item.completion or "", tool_schemas(item.tools))
        pair = from_messages(item.messages, item.tools)
    except CutError as error:
        raise BadRequest(f"{where}.messages: {error}", param=f"{where}.messages") from error
    if item.completion is not None or item.steps is not None:
        raise BadRequest(f"{where} has its answer twice: in messages and in completion or steps", param=where)
    return pair


def _steps(item: RewardItem, completion: str, where: str, *, per_step: bool) -> tuple[str, ...]:
    """The answer in rows."""
    if item.steps is not None:
        if item.completion is not None and "".join(item.steps) != item.completion:
            raise BadRequest(f"{where}.steps joined are not its completion; give one of them", param=f"{where}.steps")
        if item.separator is not None:
            raise BadRequest(f"{where}.separator would do nothing with steps", param=f"{where}.separator")
        if not item.steps or not all(item.steps):
            raise BadRequest(f"{where}.steps is empty, or contains an empty step", param=f"{where}.steps")
        return tuple(item.steps)
    if not completion:
        raise BadRequest(f"{where} needs a completion or steps, not empty", param=f"{where}.completion")
    if item.separator is not None:
        if item.separator not in completion:
            raise BadRequest(f"{where}.completion does not contain its separator", param=f"{where}.separator")
        return tuple(split_steps(completion, item.separator)) if per_step else (completion,)
    if per_step:
        raise BadRequest(f"{where} needs steps (or a separator): this model scores each step", param=f"{where}.steps")
    return (completion,)


Turns = list[list[Episode | Failure]]


def _turns_of(queue: ModelQueue, items: Sequence[RewardItem]) -> Turns:
    """An episode for each turn of the assistant in each item, or why it cannot be scored.

    Raises:
        BadRequest: an item has no messages, or something beside them that would do nothing; there are too many turns;
            the model compares.
    """
    limits = queue.limits
    if queue.info.compares or queue.info.modality != "text":
        what = "compares responses to one prompt" if queue.info.compares else f"looks at {queue.info.modality}s"
        raise BadRequest(f"turns are of conversations, and the model {what}: leave turns out", param="turns")
    per_step = queue.info.granularity == "step"
    found = [turn_episodes(item, k, per_step=per_step, limits=limits) for k, item in enumerate(items)]
    count = sum(map(len, found))
    if count > limits.max_items:
        raise BadRequest(f"{count} turns; {limits.max_items} are allowed in a request", param="items")
    return found


def turn_episodes(item: RewardItem, place: int, *, per_step: bool, limits: LimitSettings) -> list[Episode | Failure]:
    """The turns of the assistant in a conversation, each with all that was said before it.

    Args:
        item: of messages.
        place: of the item in its request, for messages.
        per_step: the model scores steps: turns are cut by the item's separator; one without it is one step.
        limits: of the length of a turn with what is before it.

    Raises:
        BadRequest: there are no messages, no turn, or too much of them; or something in the item would do nothing.
    """
    where = f"items[{place}]"
    if item.messages is None:
        raise BadRequest(f"{where} needs messages, whose turns are scored", param=f"{where}.messages")
    idle = next((name for name in ("prompt", "completion", "steps", "task") if getattr(item, name) is not None), None)
    if idle is not None:
        raise BadRequest(f"{where}.{idle} would do nothing with turns; remove it", param=f"{where}.{idle}")
    if per_step and item.separator is None:
        raise BadRequest(f"{where} needs a separator: this model scores each step", param=f"{where}.separator")
    try:
        with cutting():
            messages, tools = chat_messages(item.messages), tool_schemas(item.tools)
    except CutError as error:
        raise BadRequest(f"{where}.messages: {error}", param=f"{where}.messages") from error
    found = list[Episode | Failure]()
    for k, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        try:
            asked = answered(messages[:k], turn_text(message), tools)
        except CutError as error:
            found.append(error.failure)
            continue
        if not asked.response:
            found.append(EMPTY_TURN)
            continue
        steps = [asked.response]
        if per_step and item.separator is not None:
            steps = split_steps(asked.response, item.separator)
        found.append(_episode_of(item, asked, tuple(steps), f"{where}.messages", limits, place=place))
    if not found:
        raise BadRequest(f"{where}.messages have no turn of the assistant", param=f"{where}.messages")
    return found


def turns_answer(model: str, request: ItemsRequest, turns: Turns, scores: Sequence[ExplainedScore]) -> TurnsAnswer:
    """The results of the turns of a request, in order."""
    left, results, failed = iter(scores), list[ItemTurns](), 0
    for item, of_item in zip(request.items, turns, strict=True):
        found = list[TurnResult]()
        for number, one in enumerate(of_item):
            explained = ExplainedScore(Score(failure=one)) if isinstance(one, Failure) else next(left)
            result = _result(item.id, one if isinstance(one, Episode) else None, explained, request.aggregation)
            found.append(TurnResult(turn=number, **result.model_dump()))
        failed += sum(one.score is None for one in found)
        results.append(ItemTurns(id=item.id, turns=found))
    return TurnsAnswer(model=model, aggregation=request.aggregation, results=results, failed=failed)


def rewards_answer(
    model: str,
    request: ItemsRequest,
    episodes: Sequence[Episode],
    scores: Sequence[ExplainedScore],
) -> RewardsAnswer:
    """The results of a request, one per item, in order."""
    results = [
        _result(item.id, episode, explained, request.aggregation)
        for item, episode, explained in zip(request.items, episodes, scores, strict=True)
    ]
    failed = sum(result.score is None for result in results)
    return RewardsAnswer(model=model, aggregation=request.aggregation, results=results, failed=failed)


def _result(
    item_id: str | None, episode: Episode | None, explained: ExplainedScore, how: Aggregation | None
) -> ItemResult:
    score, texts = explained.score, None if episode is None else episode.texts
    if score.steps is not None and score.total is None and how is None:
        value: float | Failure = Failure("no_total", "the model scores steps only: choose an aggregation")
    else:
        value = value_of(score, how)
    return ItemResult(
        id=item_id,
        score=None if isinstance(value, Failure) else value,
        step_scores=None if score.steps is None else score.steps.tolist(),
        step_offsets=None if texts is None else list(pairwise(accumulate(map(len, texts), initial=0))),
        n_tokens=explained.tokens,
        truncated=explained.truncated,
        failure=FailureReason.of(value),
        text=explained.text,
        parse_status=explained.parse_status,
        spread=score.spread,
    )


_NO_TOKEN: dict[int | str, dict[str, Any]] = {401: ERRORS[401]}
routes = APIRouter()


@routes.get("/health", tags=["state"])
async def health(request: Request) -> Health:
    """Whether the process is alive. The only route without a token; it answers while models load or score."""
    models = wire.models_of(request)
    loaded = [name for name, state in models.states().items() if state == "ready"]
    return Health(status="ok", default_backend=models.default, loaded_backends=loaded)


@routes.get("/ready", tags=["state"], responses={503: {"model": Readiness}, **_NO_TOKEN})
async def ready(request: Request, response: Response) -> Readiness:
    """Whether requests will be answered: 503 while a model loads, is unusable or hangs, or the server shuts down."""
    models = wire.models_of(request)
    response.status_code = 200 if models.ready else 503
    states = dict.fromkeys(models.queues, "the server is shutting down") if models.draining else models.states()
    return Readiness(ready=models.ready, models=states)


@routes.get("/metrics", tags=["state"], responses=_NO_TOKEN, response_class=Response)
async def metrics(request: Request) -> Response:
    """Counters for Prometheus."""
    return Response(wire.models_of(request).metrics.text(), media_type=CONTENT_TYPE)


@routes.get(
    "/v1/rewards", tags=["guerdon"], responses={status: ERRORS[status] for status in (401, 404, 503)},
    response_model_exclude_unset=True,  # earlier clients do not know `compares`
)  # fmt: skip
async def describe(
    request: Request,
    model: Annotated[str | None, Query(max_length=200, description="which model; the default if left out")] = None,
) -> Description:
    """The declaration of a model's scores, which clients check answers against."""
    queue = wire.models_of(request).get(model)
    return Description(object="reward_model", model=queue.name, info=info_fields(queue.info), learns=queue.learns)


@routes.post(
    "/v1/rewards", response_model=RewardsAnswer | TurnsAnswer, tags=["rewards"], responses=ERRORS,
    openapi_extra=wire.json_body(RewardsRequest, text=TEXT_EXAMPLE, frames=VISION_EXAMPLE),
)  # fmt: skip
async def rewards(request: Request) -> Response:
    """Score a batch. An item that cannot be scored has a `failure` and no score; the others are not affected."""
    body = await wire.read_body(request, RewardsRequest)
    queue = wire.models_of(request).get(body.model)
    async with queue.deadline(body.deadline_s) as left:
        options = JudgeOptions(**body.options.model_dump())
        if body.turns:
            turns = _turns_of(queue, body.items)
            asked = [one for of_item in turns for one in of_item if isinstance(one, Episode)]
            judged = await queue.judge(asked, options, deadline_s=left()) if asked else []
            return _json(turns_answer(queue.name, body, turns, judged))
        episodes = await _episodes(wire.media_of(request), queue, body.items, body.options.nframes)
        scores = await queue.judge(episodes, options, deadline_s=left())
    return _json(rewards_answer(queue.name, body, episodes, scores))


@routes.post(
    "/v1/update", response_model=UpdateAnswer, tags=["learning"],
    responses={**ERRORS, 409: {"model": ErrorAnswer}},
    openapi_extra=wire.json_body(UpdateRequest, text=UPDATE_EXAMPLE),
)  # fmt: skip
async def update(request: Request) -> Response:
    """Let a model learn from rollouts with outcomes, and score them before or after that.

    The new state is on disk before the answer is sent. With `update: none` this only scores.
    """
    body = await wire.read_body(request, UpdateRequest)
    queue = wire.models_of(request).get(body.model)
    async with queue.deadline():
        episodes = await _episodes(wire.media_of(request), queue, body.items, None)
    if body.update != "none":
        done = await queue.learn(episodes, body.update, body.update_id)
    elif body.update_id is not None:
        raise BadRequest("client_id and number would do nothing with update: none; remove them", param="number")
    else:
        done = UpdateResult(await queue.judge(episodes, JudgeOptions()), metrics={}, updates=None)
    answer = rewards_answer(queue.name, body, episodes, done.judgements).model_dump()
    return _json(
        UpdateAnswer(**answer, update=body.update, updates=done.updates, metrics=done.metrics, repeated=done.repeated)
    )


@routes.post(
    "/v1/reload", tags=["learning"], responses=ERRORS,
    openapi_extra=wire.json_body(ReloadRequest, required=False, default={}, named={"model": "prm"}),
)  # fmt: skip
async def reload(request: Request) -> Reloaded:
    """Load a model again from its files, next to the old one, and exchange them; no request is lost.

    Without a body it is the default model.
    """
    body = await wire.read_body(request, ReloadRequest, empty=ReloadRequest(model=None))
    queue = wire.models_of(request).get(body.model)
    await queue.reload()
    return Reloaded(model=queue.name)


async def _episodes(media: Media, queue: ModelQueue, items: Sequence[RewardItem], nframes: int | None) -> list[Episode]:
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
    visual: dict[int, RewardItem] = {}
    for place, item in enumerate(items):
        if queue.info.modality == "state" and of_states(item):
            wire.check_task(limits, item.task or "", f"items[{place}].task")
            found[place] = state_episode(item, place)
        elif has_frames(item, place):
            wire.check_task(limits, item.task or "", f"items[{place}].task")
            visual[place] = item
        else:
            found[place] = text_episode(item, place, per_step=per_step, limits=limits)
    for place, frames in zip(visual, await _decoded(media, visual, nframes), strict=True):
        item = items[place]
        states = _states(item, f"items[{place}].states", len(frames), used=queue.info.states)
        found[place] = Episode(
            id=item.id or str(place), task=item.task or "", frames=frames, states=states, outcome=item.outcome
        )
    return [episode for episode in found if episode is not None]


def _states(item: RewardItem, where: str, rows: int, *, used: bool) -> FloatArray | None:
    """(T, S) states of the frames of an item; None where it has none."""
    if item.states is None:
        return None
    if not used:
        raise BadRequest(f"{where} would do nothing: the model reads frames alone; remove it", param=where)
    if len(item.states) != rows or len({len(state) for state in item.states}) != 1:
        raise BadRequest(f"{where}: give each of the {rows} frames a state, all of one length", param=where)
    return np.array(item.states, dtype=np.float32)


async def _decoded(media: Media, visual: Mapping[int, RewardItem], nframes: int | None) -> list[ByteArray]:
    """Frames of several items, a few at a time; the first that is refused refuses the request."""

    async def one(place: int, item: RewardItem) -> ByteArray:
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


def _json(answer: RewardsAnswer | TurnsAnswer) -> Response:
    """The answer as bytes, serialized once."""
    return Response(answer.model_dump_json(), media_type="application/json")
