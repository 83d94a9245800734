"""Calls of a model in a thread of its own: scoring a batch, and learning from outcomes.

A thread and not a process: a reward model spends its time in kernels that release the interpreter lock, frames need no
copying, and the weights are in memory once. One thread per model: models need not be thread-safe, and more threads
would share the same cores. The thread is a daemon, so a model that hangs does not keep the server from ending.

This is the only place where any exception of a model is caught. It is logged in full and becomes a `Failure` without
its text, for the item that caused it alone: a batch that raises is halved until that item is found.

    worker = Worker("prm")
    scores = await worker.run(judge_all, model, episodes, JudgeOptions(), "prm")
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from guerdon.episodes.chats import unreadable_texts
from guerdon.errors import ConfigError, GuerdonError, boundary
from guerdon.models.explained_score import ExplainedScore, JudgeOptions, judge
from guerdon.serve.batcher import content_key
from guerdon.serve.errors import BadRequest, BrokenModel, Conflict, ModelFailed, NotReady, UpdateFailed
from guerdon.serve.update_store import UpdateId, UpdateResult, UpdateStore, When
from guerdon.types import Episode, Failure, Learnable, RewardModel, Score

RAISED = Failure("model_error", "the model could not score this item; see the server's log")
log = logging.getLogger("guerdon.serve")
T = TypeVar("T")


class Worker:
    """Runs functions one after another in a thread of its own.

    Args:
        name: name of the model, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], Callable[[], Any]] | None]
        self._jobs = SimpleQueue()
        threading.Thread(target=self._work, name=f"guerdon-{name}", daemon=True).start()

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """The function's result; it is called in the worker's thread, after all earlier jobs.

        Raises:
            GuerdonError: raised by the function; any other exception becomes the cause of a `ModelFailed`.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((loop, future, partial(function, *arguments)))
        return await future

    def stop(self) -> None:
        """End the thread after the jobs that it has already."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, future, call = job
            outcome: object = None
            try:
                with boundary(ModelFailed, self._name):
                    outcome = call()
            except GuerdonError as error:
                outcome = error
            except SystemExit as error:
                outcome = ModelFailed(f"{self._name} asked the process to end with {error.code}")
            if not loop.is_closed():
                loop.call_soon_threadsafe(resolve, future, outcome)
            del job, future, call, outcome  # release the episodes while waiting


def resolve(future: asyncio.Future[Any], outcome: object) -> None:
    """Give a future its result, or the exception to raise, unless it is done."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def judge_all(
    model: RewardModel, episodes: Sequence[Episode], options: JudgeOptions, name: str
) -> list[ExplainedScore]:
    """One explained score per episode, in order. An episode at which the model raises is a `Failure("model_error")`.

    Raises:
        NotReady: no copy of the model can be called now, which is not the fault of the episodes.
    """
    unread = unreadable_texts(episodes)
    if unread:
        rest = [one for i, one in enumerate(episodes) if i not in unread]
        found = iter(judge_all(model, rest, options, name) if rest else ())
        return [ExplainedScore(Score(failure=unread[i])) if i in unread else next(found) for i in range(len(episodes))]
    try:
        with boundary(ModelFailed, f"the model {name} raised on {len(episodes)} items"):
            return _checked(judge(model, list(episodes), options), episodes)
    except NotReady:
        raise
    except (GuerdonError, SystemExit) as error:
        if isinstance(error, ConfigError) and options != JudgeOptions():  # the client's own option: it may read why
            return [ExplainedScore(Score(failure=Failure("bad_option", str(error))))] * len(episodes)
        if len(episodes) == 1:
            log.error("%s", error, exc_info=error)
            return [ExplainedScore(Score(failure=RAISED))]
        log.warning("%s; they are scored in smaller parts", error)
    half = len(episodes) // 2
    return judge_all(model, episodes[:half], options, name) + judge_all(model, episodes[half:], options, name)


def _checked(scores: list[ExplainedScore], episodes: Sequence[Episode]) -> list[ExplainedScore]:
    """The scores, if there is one per episode; values for another number of rows become a `Failure`."""
    if len(scores) != len(episodes):
        raise ModelFailed(f"{len(scores)} scores for {len(episodes)} episodes")
    checked = []
    for explained, episode in zip(scores, episodes, strict=True):
        steps = explained.score.steps
        if steps is not None and steps.shape != (len(episode),):
            detail = f"{steps.shape} values for {len(episode)} rows"
            explained = ExplainedScore(Score(failure=Failure("wrong_length", detail)), explained.text)
        checked.append(explained)
    return checked


def learn(
    model: RewardModel, store: UpdateStore, episodes: Sequence[Episode], when: When, update: UpdateId | None, name: str
) -> UpdateResult:
    """Score and learn in the requested order, and write the new state before the result is returned.

    Args:
        model: learns.
        store: keeps its states.
        episodes: with outcomes.
        when: learn before or after the episodes are scored.
        update: client and number; an update that was learnt before gets its old result, and nothing is learnt twice.
        name: of the model.

    Raises:
        BadRequest: there is no episode, or one has no outcome.
        Conflict: the number belongs to another update, or may have been learnt.
        UpdateFailed: it was not learnt or not kept; the model is in its last kept state again.
        BrokenModel: and that state could not be restored either.
    """
    learner = cast(Learnable, model)
    lacking = [i for i, episode in enumerate(episodes) if episode.outcome is None]
    if lacking or not episodes:
        where = f"items[{lacking[0]}] has none" if lacking else "there are no items"
        raise BadRequest(f"a model learns from items with an outcome, and {where}", param="items")
    digest = blake2b(when.encode(), digest_size=16)
    for episode in episodes:
        digest.update(content_key(episode, JudgeOptions()) + repr(episode.outcome).encode())
    content = digest.hexdigest()
    if update is not None and (known := store.answer(update)) is not None:
        if known["content"] != content:
            raise Conflict(
                f"update {update.number} of this client had other content; give each update a number of its own",
                param="number",
            )
        scores = [ExplainedScore.from_json(record) for record in known["judgements"]]
        return UpdateResult(scores, known["metrics"], known["updates"], repeated=True)
    scores = judge_all(model, episodes, JudgeOptions(), name) if when == "after" else []
    try:
        with boundary(ModelFailed, f"the model {name} raised while learning from {len(episodes)} items"):
            learned = learner.learn(list(episodes))
            metrics = {key: float(value) for key, value in learned.items() if value is not None}
            if when == "before":
                scores = judge_all(model, episodes, JudgeOptions(), name)
            kept = [explained.to_json() for explained in scores]
            answer = {"content": content, "metrics": metrics, "judgements": kept, "updates": store.updates + 1}
            store.commit(learner, update, answer)
    except (GuerdonError, SystemExit) as error:
        log.error("%s", error, exc_info=error)
        _restore(learner, store, name)
        raise UpdateFailed(f"the model {name!r} did not learn this; it is as it was before") from error
    return UpdateResult(scores, metrics, store.updates)


def _restore(learner: Learnable, store: UpdateStore, name: str) -> None:
    """Return to the last state that was kept."""
    try:
        with boundary(ModelFailed, f"the model {name} cannot return to its last state"):
            store.resume(learner)
    except GuerdonError as error:
        log.error("%s", error, exc_info=error)
        raise BrokenModel(f"the model {name!r} did not learn this and cannot be used any more") from error
