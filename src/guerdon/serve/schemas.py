"""The words of guerdon's own routes: what a request may hold, what an answer holds, and items as episodes.

Text items become episodes with a row per step. This module does not know the engine, nor how frames are decoded.

    episode = text_episode(RewardItem(prompt="3+5=?", steps=["3+5=8;", "done"]), place=0, per_step=True)
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from guerdon.evaluate.scores import solution_value
from guerdon.models.explained_score import ExplainedScore, ParseStatus, Scale
from guerdon.policies.tokens import split_steps
from guerdon.serve.errors import BadRequest
from guerdon.serve.strict_types import FIRST_ERROR, WHOLE, Strings
from guerdon.serve.wire_media import Sent
from guerdon.settings.evaluate_text import Aggregation
from guerdon.settings.serve import LimitSettings
from guerdon.types import Episode, Failure

TEXT_EXAMPLE = {
    "model": "prm",
    "aggregation": "min",
    "items": [{"prompt": "What is 3+5-2?", "steps": ["3+5=8. ", "8-2=6."]}],
}
VISION_EXAMPLE = {
    "model": "progress",
    "items": [{"task": "close the drawer", "frames_base64": ["iVBORw0KGgo...", "iVBORw0KGgo..."]}],
}
UPDATE_EXAMPLE = {
    "model": "prm",
    "update": "before",
    "aggregation": "min",
    "client_id": "trainer-1",
    "number": 17,
    "items": [{"prompt": "What is 3+5-2?", "steps": ["3+5=8. ", "8-2=6."], "outcome": True}],
}


class Words(BaseModel):
    """Base: unknown fields are refused, numbers are finite."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Message(Words):
    """One turn of a conversation."""

    role: Literal["user", "assistant"] = Field(description="who says it")
    content: str = Field(description="what is said")


class RewardItem(Words):
    """One item to judge: a text (prompt or messages, with completion or steps) or frames with a task."""

    id: str | None = Field(None, max_length=200, description="returned as it is")
    prompt: str | None = Field(None, description="text: the question")
    messages: Annotated[list[Message], FIRST_ERROR] | None = Field(
        None, description="text: the question as one user turn, the completion behind it as the assistant's if given"
    )
    completion: str | None = Field(None, description="text: the answer in one piece")
    steps: Strings | None = Field(None, description="text: the answer in steps, separators included")
    separator: str | None = Field(
        None, min_length=1, max_length=100, description="text: cut the completion into steps behind each of these"
    )
    label: str | None = Field(None, description="text: the true answer, for models that check it")
    outcome: bool | None = Field(
        None, strict=True, description="whether it succeeded; updates need it, scores never use it"
    )
    task: str | None = Field(None, description="frames: what was to be done")
    frames_base64: Strings | None = Field(None, description="frames: PNG, JPEG or WebP pictures, base64")
    npy_base64: str | None = Field(None, description="frames: a uint8 NPY array (T, H, W, 3), base64")
    video_base64: str | None = Field(None, description="frames: an MP4 file, base64")
    video_path: str | None = Field(None, description="frames: an MP4 file under the server's --media-root")


class JudgeWords(Words):
    """What a caller may choose for all items of a request."""

    nframes: Annotated[int, Field(ge=1, le=128), WHOLE] | None = Field(
        None, description="frames of a video to look at, first and last kept"
    )
    max_pixels: Annotated[int, Field(ge=784, le=1_605_632), WHOLE] | None = Field(
        None, description="pixels per frame, larger ones are shrunk"
    )
    prompt: str | None = Field(None, max_length=100, description="name of a prompt template of the model")
    score_mode: Scale | None = Field(None, description="scale of a written answer")


class RewardsRequest(Words):
    """`POST /v1/rewards`."""

    model: str | None = Field(None, max_length=200, description="which model; null: the server's default")
    items: Annotated[list[RewardItem], FIRST_ERROR] = Field(min_length=1, description="what to judge")
    aggregation: Aggregation | None = Field(
        None, description="how step scores become one score; null: the model's own total"
    )
    options: JudgeWords = Field(default_factory=JudgeWords, description="choices for vision-language models")
    deadline_s: float | None = Field(None, strict=True, gt=0, le=3600, description="give up after so many seconds")


class UpdateRequest(Words):
    """`POST /v1/update`."""

    model: str | None = Field(None, max_length=200, description="which model; null: the server's default")
    items: Annotated[list[RewardItem], FIRST_ERROR] = Field(min_length=1, description="rollouts, each with its outcome")
    update: Literal["none", "before", "after"] = Field(
        "after", description="do not learn; learn, then score; score, then learn"
    )
    aggregation: Aggregation | None = Field(None, description="as for /v1/rewards")
    client_id: str | None = Field(
        None, min_length=1, max_length=200, description="who sends the update; the same for all updates of a run"
    )
    number: Annotated[int, Field(ge=1, lt=2**53), WHOLE] | None = Field(
        None,
        description="which of the client's updates it is, in increasing order: sent again it gets the same answer, and "
        "nothing is learnt twice",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_request_id(cls, given: Any) -> Any:
        if isinstance(given, dict) and "request_id" in given:
            raise ValueError(
                "request_id is not taken any more: an id was forgotten after a few others and then learnt twice; give "
                "client_id and an increasing number"
            )
        return given

    @model_validator(mode="after")
    def _both_or_none(self) -> UpdateRequest:
        if (self.client_id is None) != (self.number is None):
            raise ValueError("client_id and number belong together: give both, or none")
        return self


class ReloadRequest(Words):
    """`POST /v1/reload`."""

    model: str | None = Field(None, max_length=200, description="which model; null: the server's default")


class FailureWords(BaseModel):
    """Why a score is missing."""

    reason: str = Field(description="a short stable word")
    detail: str = Field(description="one line for a person")


class ItemResult(BaseModel):
    """What was said of one item. `score` is null exactly when there is a `failure`."""

    id: str | None = Field(description="as it came")
    score: float | None = Field(description="one value for the item")
    step_scores: list[float] | None = Field(description="one value per step or frame, where the model gives them")
    step_offsets: list[tuple[int, int]] | None = Field(
        description="text: where each step begins and ends in the completion, in characters"
    )
    n_tokens: int = Field(description="tokens that the model read; 0 where it reads none")
    truncated: bool = Field(description="part of the item was left out")
    failure: FailureWords | None = Field(description="why the score is missing")
    text: str = Field("", description="what the model wrote, where it writes")
    parse_status: ParseStatus | None = Field(
        None, description="how the score was read from the text: ok, or fallback (from a sentence); null without a text"
    )


class RewardsAnswer(BaseModel):
    """Results in the order of the items; some may have failed."""

    object: Literal["list"] = "list"
    model: str = Field(description="the model that judged")
    aggregation: str | None = Field(description="as asked; null: the model's own total")
    results: list[ItemResult]
    failed: int = Field(description="how many have a failure")


class UpdateAnswer(RewardsAnswer):
    """Results by the weights before or after the update."""

    update: Literal["none", "before", "after"]
    updates: int | None = Field(description="how many updates the model has learnt in all; null with update: none")
    metrics: dict[str, float] = Field(description="what the model says about the update")
    repeated: bool = Field(description="it had been learnt before, and this is the answer of then")


_TEXT_FIELDS = ("prompt", "messages", "completion", "steps", "separator", "label")
_FRAME_FIELDS = ("frames_base64", "npy_base64", "video_base64", "video_path")


def frames_in(item: RewardItem, place: int) -> Sent | None:
    """The frames of an item; None where it is a text.

    Raises:
        BadRequest: it is both, or has a task and no frames.
    """
    texts = [name for name in _TEXT_FIELDS if getattr(item, name) is not None]
    frames = [name for name in _FRAME_FIELDS if getattr(item, name) is not None]
    if not frames and item.task is None:
        return None
    where = f"items[{place}]"
    if texts:
        both = [*frames, *(["task"] if item.task is not None else [])]
        raise BadRequest(f"{where} has {texts[0]} of a text and {both[0]} of frames; give one of them", param=where)
    if len(frames) != 1:
        found = " and ".join(frames) or "none"
        raise BadRequest(f"{where} needs exactly one of {', '.join(_FRAME_FIELDS)}; there is {found}", param=where)
    return Sent(
        video_path=item.video_path,
        frames_base64=item.frames_base64,
        npy_base64=item.npy_base64,
        video_base64=item.video_base64,
    )


def text_episode(item: RewardItem, place: int, *, per_step: bool, limits: LimitSettings) -> Episode:
    """A text item as an episode.

    Args:
        item: with a prompt and an answer.
        place: of the item in its request, for messages.
        per_step: the model judges steps, so there must be some; else the answer is one row.
        limits: how long it may be.

    Raises:
        BadRequest: something is missing, empty, contradictory, or too long.
    """
    where = f"items[{place}]"
    question, completion = _question(item, where)
    steps = _steps(item, completion, where, per_step=per_step)
    if len(steps) > limits.max_steps:
        raise BadRequest(f"{where} has {len(steps)} steps; {limits.max_steps} are allowed", param=f"{where}.steps")
    size = len(question) + sum(map(len, steps)) + len(item.label or "")
    if size > limits.max_characters:
        raise BadRequest(f"{where} has {size} characters; {limits.max_characters} are allowed", param=where)
    meta: dict[str, Any] = {} if item.label is None else {"ground_truth": item.label}
    return Episode(id=item.id or str(place), task=question, texts=steps, outcome=item.outcome, meta=meta)


def _question(item: RewardItem, where: str) -> tuple[str, str | None]:
    """The question, and the completion where messages hold it."""
    if (item.prompt is None) == (item.messages is None):
        raise BadRequest(f"{where} needs either prompt or messages (or, for frames, a task)", param=where)
    if item.messages is None:
        assert item.prompt is not None
        return item.prompt, item.completion
    roles = [message.role for message in item.messages]
    if roles not in (["user"], ["user", "assistant"]):
        raise BadRequest(
            f"{where}.messages must be one user turn, or that and the assistant's answer; the models here judge the "
            "answer to one question",
            param=f"{where}.messages",
        )
    if len(roles) == 1:
        return item.messages[0].content, item.completion
    if item.completion is not None or item.steps is not None:
        raise BadRequest(f"{where} has its answer twice: in messages and in completion or steps", param=where)
    return item.messages[0].content, item.messages[1].content


def _steps(item: RewardItem, completion: str | None, where: str, *, per_step: bool) -> tuple[str, ...]:
    """The answer in rows."""
    if item.steps is not None:
        if completion is not None and "".join(item.steps) != completion:
            raise BadRequest(f"{where}.steps joined are not its completion; give one of them", param=f"{where}.steps")
        if item.separator is not None:
            raise BadRequest(f"{where}.separator would do nothing beside steps", param=f"{where}.separator")
        if not item.steps or not all(item.steps):
            raise BadRequest(f"{where}.steps is empty, or holds an empty step", param=f"{where}.steps")
        return tuple(item.steps)
    if not completion:
        raise BadRequest(f"{where} needs a completion or steps, not empty", param=f"{where}.completion")
    if item.separator is not None:
        if item.separator not in completion:
            raise BadRequest(f"{where}.completion does not hold its separator", param=f"{where}.separator")
        return tuple(split_steps(completion, item.separator)) if per_step else (completion,)
    if per_step:
        raise BadRequest(f"{where} needs steps (or a separator): this model judges each step", param=f"{where}.steps")
    return (completion,)


def offsets(texts: tuple[str, ...] | None) -> list[tuple[int, int]] | None:
    """Where each piece begins and ends when they are joined."""
    if texts is None:
        return None
    found, at = [], 0
    for text in texts:
        found.append((at, at + len(text)))
        at += len(text)
    return found


def result(item_id: str | None, episode: Episode, judgement: ExplainedScore, how: Aggregation | None) -> ItemResult:
    """A judgement in the words of the answer."""
    score = judgement.score
    value: float | Failure
    if score.failure is not None:
        value = score.failure
    elif how is not None and score.steps is not None:
        value = solution_value(score, how)
    elif score.total is not None:
        value = float(score.total)
    else:
        value = Failure("no_total", "the model judges steps only: choose an aggregation")
    failure = FailureWords(reason=value.reason, detail=value.detail) if isinstance(value, Failure) else None
    return ItemResult(
        id=item_id,
        score=None if isinstance(value, Failure) else value,
        step_scores=None if score.steps is None else score.steps.tolist(),
        step_offsets=offsets(episode.texts),
        n_tokens=judgement.tokens,
        truncated=judgement.truncated,
        failure=failure,
        text=judgement.text,
        parse_status=judgement.parse_status,
    )
