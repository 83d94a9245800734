"""The models of a server by name, each with its own queue and thread: what every wire format is built on.

Requests are judged in batches that span requests, equal content is judged once, and what cannot be answered in time
or at all is an error with a status. This module does not know HTTP or how models are loaded.

    engine = Engine({"prm": ModelSource(load)})
    engine.start(); await engine.loaded()
    judgements = await engine.judge(None, episodes, JudgeOptions(), deadline_s=10)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.serve.calls import Learned, Learning
from guerdon.serve.errors import (
    BadRequest,
    Busy,
    Conflict,
    DeadlineExceeded,
    NotReady,
    ReloadFailed,
    UnknownModel,
    UpdateFailed,
)
from guerdon.serve.metrics import Metrics
from guerdon.serve.model_queue import Served
from guerdon.serve.source import ModelSource
from guerdon.settings.serve import BatchSettings, LimitSettings
from guerdon.types import Episode, Learnable, RewardInfo

__all__ = [
    "BadRequest", "Busy", "Conflict", "DeadlineExceeded", "Engine", "Learned", "Learning", "ModelSource", "NotReady",
    "ReloadFailed", "UnknownModel", "UpdateFailed",
]  # fmt: skip


class Engine:
    """Reward models by name.

    Args:
        sources: where they come from.
        default: the model of requests that name none; None: the first.
        batch: how items are put together.
        limits: how long requests may take.
        metrics: what is counted; None: counters of its own.

    Attributes:
        names: what the models are called, aliases left out.
        default: one of them.
        draining: the server is about to end and takes nothing new.
    """

    def __init__(
        self,
        sources: Mapping[str, ModelSource],
        *,
        default: str | None = None,
        batch: BatchSettings | None = None,
        limits: LimitSettings | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.names: tuple[str, ...] = tuple(sources)
        self.default: str = self.names[0] if default is None else default
        self.batch, self.limits = batch or BatchSettings(), limits or LimitSettings()
        self.metrics = metrics or Metrics()
        self.draining = False
        self._served = {
            name: Served(name, source, self.batch, self.limits, self.metrics) for name, source in sources.items()
        }
        self._by_alias = {alias: name for name, source in sources.items() for alias in source.aliases}
        self.started = False

    def start(self) -> None:
        """Begin to load all models and to work on their queues; needs a running event loop."""
        self.started = True
        for served in self._served.values():
            served.start()

    async def loaded(self) -> None:
        """Wait until every model is loaded.

        Raises:
            GuerdonError: one could not be.
        """
        await asyncio.gather(*(served.loading for served in self._served.values() if served.loading is not None))

    async def stop(self) -> None:
        """Give up what waits and end the threads."""
        if self.started:
            self.started = False
            for served in self._served.values():
                await served.stop()

    def overload(self) -> float | None:
        """When to come again, while no model has room for what it had to refuse; None while one has."""
        waits = [served.overload() for served in self._served.values()]
        known = [wait for wait in waits if wait is not None]
        return min(known) if len(known) == len(waits) else None

    def abandon(self) -> None:
        """Tell everybody who waits that the server ends before their model is done."""
        for served in self._served.values():
            served.abandon()

    def resolve(self, name: str | None, *, param: str = "model") -> str:
        """The name of the model that is meant; None means the default.

        Raises:
            UnknownModel: there is none.
        """
        name = self.default if name is None else self._by_alias.get(name, name)
        if name not in self._served:
            raise UnknownModel(name, known=self.names, param=param)
        return name

    @asynccontextmanager
    async def deadline(self, deadline_s: float | None = None) -> AsyncIterator[Callable[[], float]]:
        """The time of one request: at its end what waits is given up, and what has not begun never does.

        Args:
            deadline_s: seconds from now; None, or more than `limits.deadline_s`: that.

        Yields:
            What gives the seconds that are left.

        Raises:
            DeadlineExceeded: the block did not end in time.
        """
        seconds = min(deadline_s or math.inf, self.limits.deadline_s)
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        try:
            async with asyncio.timeout_at(end):
                yield lambda: end - loop.time()
        except (TimeoutError, DeadlineExceeded):
            raise DeadlineExceeded(f"not scored within {seconds:g} s") from None

    async def judge(
        self,
        name: str | None,
        episodes: Sequence[Episode],
        options: JudgeOptions,
        *,
        deadline_s: float | None = None,
    ) -> list[ExplainedScore]:
        """One judgement per episode, in order; those that the model cannot judge carry a `Failure`.

        Args:
            name: of the model, or an alias; None: the default.
            episodes: what to judge; equal content is judged once, and not again while it is remembered.
            options: what the caller chose.
            deadline_s: give up after so many seconds; None: `limits.deadline_s`.

        Raises:
            UnknownModel: there is no such model (404).
            Busy: the queue has no room for them (429); nothing was queued.
            DeadlineExceeded: not all were judged in time (504).
            NotReady: the model is being loaded or cannot be used (503).
        """
        limit = self.limits.deadline_s
        seconds = limit if deadline_s is None else min(deadline_s, limit)
        return await self._served[self.resolve(name)].judge(episodes, options, seconds)

    def info(self, name: str | None) -> RewardInfo:
        """What the model promises about its scores.

        Raises:
            UnknownModel: there is none.
            NotReady: it is not loaded.
        """
        return self._served[self.resolve(name)].ready_model().info

    def separator(self, name: str | None) -> str | None:
        """What ended the steps that the model was trained on, where it says so.

        Raises:
            UnknownModel, NotReady: as for `info`.
        """
        card = getattr(self._served[self.resolve(name)].ready_model(), "card", None)
        return getattr(card, "separator", None) or None

    def learns(self, name: str | None) -> bool:
        """Whether the model can be updated here."""
        served = self._served[self.resolve(name)]
        return served.store is not None and isinstance(served.model, Learnable)

    async def learn(self, name: str | None, wanted: Learning) -> Learned:
        """Let a model learn from episodes with an outcome, keep its new state, and judge them before or after.

        Raises:
            UnknownModel, NotReady, Busy: as for `judge`.
            BadRequest: the model does not learn, or an outcome is missing (422).
            Conflict: the number was used for something else, or may have been (409).
            UpdateFailed: not learnt or not kept; the model is as before (500).
        """
        return await self._served[self.resolve(name)].update(wanted)

    async def update(self, name: str | None, episodes: Sequence[Episode]) -> dict[str, float]:
        """`learn` without judgements; what the model says about it."""
        return (await self.learn(name, Learning(episodes, when="only"))).metrics

    async def reload(self, name: str | None) -> None:
        """Load a model again and exchange it; no request is lost.

        Raises:
            UnknownModel, NotReady: as for `judge`.
            ReloadFailed: it cannot be loaded; the old one goes on (500).
        """
        await self._served[self.resolve(name)].reload()

    def states(self) -> dict[str, str]:
        """Each model with `ready`, or what is the matter."""
        return {name: "ready" if s.model is not None else s.problem for name, s in self._served.items()}

    @property
    def ready(self) -> bool:
        """Whether every model can be asked, and the server is not about to end."""
        return not self.draining and all(served.model is not None for served in self._served.values())
