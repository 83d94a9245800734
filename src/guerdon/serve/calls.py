"""What is done with a model in its own thread: judge a batch, learn from outcomes.

The one place where a model may raise anything. Its exception is written to the server's log in full and becomes a
`Failure` without its text, of the item that caused it alone: a batch that raised is halved until the culprit is
found. This module does not know queues, requests or clients.

    judgements = judge_all(model, episodes, JudgeOptions(), "prm")
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, cast

from guerdon.errors import ConfigError, GuerdonError, boundary
from guerdon.models.explained_score import ExplainedScore, JudgeOptions, judge
from guerdon.serve.cache import content_key
from guerdon.serve.errors import BadRequest, Conflict, ModelFailed, NotReady, UpdateFailed
from guerdon.serve.update_store import Sent, UpdateStore
from guerdon.types import Episode, Failure, Learnable, RewardModel, Score

When = Literal["before", "after", "only"]
RAISED = Failure("model_error", "the model could not judge this item; the server's log says why")
log = logging.getLogger("guerdon.serve")


class BrokenModel(UpdateFailed):
    """An update went wrong and could not be taken back."""


@dataclass(frozen=True)
class Learning:
    """An update that a client asks for.

    Attributes:
        episodes: with outcomes.
        options: of the judgements.
        when: learn before the episodes are judged, after that, or only learn.
        sent: who sent it, and under which number: sent again it gets the same answer, and nothing is learnt twice.
    """

    episodes: Sequence[Episode]
    options: JudgeOptions = field(default_factory=JudgeOptions)
    when: When = "after"
    sent: Sent | None = None

    def content(self) -> str:
        """A hash of everything that was asked."""
        digest = blake2b(self.when.encode(), digest_size=16)
        for episode in self.episodes:
            digest.update(content_key(episode, self.options) + repr(episode.outcome).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Learned:
    """What came of an update.

    Attributes:
        metrics: what the model says about it.
        judgements: one per episode, by the weights before or after, as it was asked.
        updates: how many the model has learnt in all.
        repeated: it had been learnt before, and this is the answer of then.
    """

    metrics: dict[str, float]
    judgements: list[ExplainedScore]
    updates: int
    repeated: bool = False


def judge_all(
    model: RewardModel, episodes: Sequence[Episode], options: JudgeOptions, name: str
) -> list[ExplainedScore]:
    """One judgement per episode, in order. An episode at which the model raises is a `Failure("model_error")`.

    Raises:
        NotReady: there is no model to ask, which says nothing of the episodes.
    """
    try:
        with boundary(ModelFailed, f"the model {name} raised on {len(episodes)} items"):
            return _checked(judge(model, list(episodes), options), episodes)
    except NotReady:
        raise
    except (GuerdonError, SystemExit) as error:
        if isinstance(error, ConfigError) and options != JudgeOptions():  # a choice of the client's: it may read why
            return [ExplainedScore(Score(failure=Failure("bad_option", str(error))))] * len(episodes)
        if len(episodes) == 1:
            log.error("%s", error, exc_info=error)
            return [ExplainedScore(Score(failure=RAISED))]
        log.warning("%s; they are judged in smaller parts", error)
    half = len(episodes) // 2
    return judge_all(model, episodes[:half], options, name) + judge_all(model, episodes[half:], options, name)


def learn(model: RewardModel, store: UpdateStore, wanted: Learning, name: str) -> Learned:
    """Judge and learn in the order asked for, and keep the state before anybody hears of it.

    Raises:
        BadRequest: there is no episode, or one has no outcome.
        Conflict: the number was used for something else, or may have been.
        UpdateFailed: it was not learnt or not kept; the model is in its last kept state again.
        BrokenModel: and that could not be restored either.
    """
    learner = cast(Learnable, model)
    lacking = [i for i, episode in enumerate(wanted.episodes) if episode.outcome is None]
    if lacking or not wanted.episodes:
        where = f"items[{lacking[0]}] has none" if lacking else "there are no items"
        raise BadRequest(f"a model learns from items with an outcome, and {where}", param="items")
    content = wanted.content()
    if wanted.sent is not None and (known := store.answer(wanted.sent)) is not None:
        if known["content"] != content:
            raise Conflict(
                f"update {wanted.sent.number} of this client had other content; give each update a number of its own",
                param="number",
            )
        judged = [ExplainedScore.from_json(record) for record in known["judgements"]]
        return Learned(known["metrics"], judged, known["updates"], repeated=True)
    judgements: list[ExplainedScore] = []
    if wanted.when == "after":
        judgements = judge_all(model, wanted.episodes, wanted.options, name)
    try:
        with boundary(ModelFailed, f"the model {name} raised while learning from {len(wanted.episodes)} items"):
            metrics = {key: float(value) for key, value in learner.learn(list(wanted.episodes)).items()}
            if wanted.when == "before":
                judgements = judge_all(model, wanted.episodes, wanted.options, name)
            answer: dict[str, Any] = {
                "content": content,
                "metrics": metrics,
                "judgements": [judgement.to_json() for judgement in judgements],
                "updates": store.updates + 1,
            }
            store.commit(learner, wanted.sent, answer)
    except (GuerdonError, SystemExit) as error:
        log.error("%s", error, exc_info=error)
        _take_back(learner, store, name)
        raise UpdateFailed(f"the model {name!r} did not learn this; it is as it was before") from error
    return Learned(metrics, judgements, store.updates)


def _take_back(learner: Learnable, store: UpdateStore, name: str) -> None:
    """Return to the last state that was kept."""
    try:
        with boundary(ModelFailed, f"the model {name} cannot return to its last state"):
            store.resume(learner)
    except GuerdonError as error:
        log.error("%s", error, exc_info=error)
        raise BrokenModel(f"the model {name!r} did not learn this and cannot be used any more") from error


def _checked(judgements: list[ExplainedScore], episodes: Sequence[Episode]) -> list[ExplainedScore]:
    """The judgements, when there is one per episode; values for another number of rows become a `Failure`."""
    if len(judgements) != len(episodes):
        raise ModelFailed(f"{len(judgements)} judgements for {len(episodes)} episodes")
    checked = []
    for judgement, episode in zip(judgements, episodes, strict=True):
        steps = judgement.score.steps
        if steps is not None and steps.shape != (len(episode),):
            detail = f"{steps.shape} values for {len(episode)} rows"
            judgement = ExplainedScore(Score(failure=Failure("wrong_length", detail)), judgement.text)
        checked.append(judgement)
    return checked
