"""What a reward model says of an episode beside the number: its words, what it read, and what was cut off.

Servers, reports and audits want to know how a score came about; training needs the `Score` alone. Every reward model
can be asked for judgements: one that has nothing to say beside its scores gives those. A model that goes on learning
while it is served has the methods of `Learns`. This module does not know any model, nor how answers are read.

    judged = judge(model, [episode], JudgeOptions(nframes=8))[0]
    judged.score.total, judged.text
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args, runtime_checkable

from guerdon.types import Episode, RewardModel, Score

Scale = Literal["auto", "percentage", "unit"]
ParseStatus = Literal["ok", "fallback"]
PARSE_STATUSES: tuple[ParseStatus, ...] = get_args(ParseStatus)


@dataclass(frozen=True)
class JudgeOptions:
    """What a caller may choose for one judgement; None leaves it to the model.

    Attributes:
        nframes: frames that a model of videos looks at, the first and the last among them.
        max_pixels: pixels per frame above which frames are made smaller.
        prompt: name of a prompt template that the model knows; a caller never brings a prompt of its own.
        score_mode: the scale of the answer, where it is not the one that the prompt asks for.
    """

    nframes: int | None = None
    max_pixels: int | None = None
    prompt: str | None = None
    score_mode: Scale | None = None


@dataclass(frozen=True, eq=False)
class Judgement:
    """A score, and how it came about.

    Attributes:
        score: values, or the reason why they are missing.
        text: what the model wrote; empty where it writes nothing.
        tokens: tokens that it read for this episode; 0 where it reads none, or nobody counted.
        truncated: part of the episode was left out because the model has no room for it (never the judged part of a
            score that is there: what could not be read whole is a `Failure`).
        parse_status: how the text was read: `ok` in the form that was asked for, `fallback` from a sentence; None
            where no value was read from a text.
    """

    score: Score
    text: str = ""
    tokens: int = 0
    truncated: bool = False
    parse_status: ParseStatus | None = None


@runtime_checkable
class Judge(Protocol):
    """A reward model that tells more than its scores."""

    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[Judgement]:
        """One judgement per episode, in order. Never raises for a bad episode: that is a `Failure`."""
        ...


@runtime_checkable
class Learns(Protocol):
    """A reward model that learns from episodes whose outcome is known, while it is in use."""

    def learn(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Take gradient steps on episodes with an `outcome`, and say how it went."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything that learning changes (weights, optimiser, memory, random state), whole or not at all."""
        ...

    def restore(self, folder: Path) -> None:
        """Return to what `save` wrote."""
        ...


def joined_status(statuses: Iterable[ParseStatus | None]) -> ParseStatus | None:
    """`fallback` where any is, else `ok` where any is."""
    known = set(statuses)
    return "fallback" if "fallback" in known else "ok" if "ok" in known else None


def judge(model: RewardModel, episodes: Sequence[Episode], options: JudgeOptions) -> list[Judgement]:
    """Judgements of any reward model: its own, or its scores alone."""
    if isinstance(model, Judge):
        return model.judge(episodes, options)
    return [Judgement(score) for score in model.score(episodes)]
