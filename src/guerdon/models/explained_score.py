"""A score with its explanation: the model's text, the tokens it read, what was cut off; and its JSON form.

Servers and reports need to know how a score came about; training needs only the `Score`. `judge` works with every
reward model: one that implements `Judge` explains its scores, any other returns them without explanation.

    judged = judge(model, [episode], JudgeOptions(nframes=8))[0]
    judged.score.total, judged.text
    ExplainedScore.from_json(judged.to_json())      # equal to the bit
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np

from guerdon.types import Episode, Failure, RewardModel, Score

Scale = Literal["auto", "percentage", "unit"]
ParseStatus = Literal["ok", "fallback"]
PARSE_STATUSES: tuple[ParseStatus, ...] = get_args(ParseStatus)


@dataclass(frozen=True)
class JudgeOptions:
    """Options of one call of `judge`; None: the model's own setting.

    Attributes:
        nframes: number of frames sampled from a video, the first and the last included.
        max_pixels: pixels per frame above which frames are scaled down.
        prompt: name of a prompt template of the model; callers cannot send a prompt of their own.
        score_mode: scale of the answer, where it is not the one that the prompt asks for.
    """

    nframes: int | None = None
    max_pixels: int | None = None
    prompt: str | None = None
    score_mode: Scale | None = None


@dataclass(frozen=True, eq=False)
class ExplainedScore:
    """A score with its explanation.

    Attributes:
        score: values, or the reason why they are missing.
        text: text that the model generated; empty where it generates none.
        tokens: input tokens of this episode; None: the model has none, or does not count them.
        truncated: part of the episode was left out because it exceeds the model's context (never the scored part: an
            episode that does not fit is a `Failure`).
        parse_status: how the text was parsed: `ok`: in the requested form, `fallback`: from a sentence; None: no value
            was parsed from text.
    """

    score: Score
    text: str = ""
    tokens: int | None = None
    truncated: bool = False
    parse_status: ParseStatus | None = None

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values; every number is finite."""
        score, failure = self.score, self.score.failure
        optional: dict[str, Any] = {}
        if score.spread is not None:
            optional["spread"] = score.spread
        if score.criteria is not None:
            optional["criteria"] = dict(score.criteria)
        return {
            "steps": None if score.steps is None else score.steps.tolist(),
            "total": None if score.total is None else float(score.total),
            **optional,
            "failure": None if failure is None else {"reason": failure.reason, "detail": failure.detail},
            "text": self.text,
            "tokens": self.tokens,
            "truncated": self.truncated,
            "parse_status": self.parse_status,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ExplainedScore:
        """The inverse of `to_json`, equal to the bit."""
        score = Score(
            steps=None if record["steps"] is None else np.array(record["steps"], dtype=np.float32),
            total=record["total"],
            failure=None if record["failure"] is None else Failure(**record["failure"]),
            spread=record.get("spread"),
            criteria=record.get("criteria"),
        )
        return cls(score, record["text"], record["tokens"], record["truncated"], record["parse_status"])


@runtime_checkable
class Judge(Protocol):
    """A reward model that explains its scores."""

    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        """One explained score per episode, in order. An episode that cannot be scored is a `Failure`, no exception."""
        ...


def joined_status(statuses: Iterable[ParseStatus | None]) -> ParseStatus | None:
    """`fallback` where any is, else `ok` where any is."""
    known = set(statuses)
    if "fallback" in known:
        return "fallback"
    return "ok" if "ok" in known else None


def judge(model: RewardModel, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
    """Explained scores of any reward model; without explanation where it is not a `Judge`."""
    if isinstance(model, Judge):
        return model.judge(episodes, options)
    return [ExplainedScore(score) for score in model.score(episodes)]
