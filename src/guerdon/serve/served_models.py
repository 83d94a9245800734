"""The models of a server by name.

models = ServedModels({"prm": ModelLoader(load)})
models.start(); await models.loaded()
scores = await models.get("prm").judge(episodes, JudgeOptions(), deadline_s=10)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from guerdon.serve.backends import ModelLoader
from guerdon.serve.errors import UnknownModel
from guerdon.serve.metrics import Metrics
from guerdon.serve.model_queue import ModelQueue
from guerdon.serve.sample import ServedSample
from guerdon.settings.serve import BatchSettings, LimitSettings


class ServedModels:
    """The models of a server by name.

    Args:
        loaders: how each is loaded.
        default: the model of requests that name none; None: the first.
        batch: limits of batches.
        limits: limits of requests.
        sample: receives what was scored; None: nothing is kept.

    Attributes:
        metrics: counters.
        queues: the models by name, without aliases.
        default: one of the names.
        draining: the server is shutting down and accepts no new requests.
        started: `start` was called.
    """

    def __init__(
        self,
        loaders: Mapping[str, ModelLoader],
        *,
        default: str | None = None,
        batch: BatchSettings | None = None,
        limits: LimitSettings | None = None,
        sample: ServedSample | None = None,
    ) -> None:
        batch, self.limits, self.metrics = batch or BatchSettings(), limits or LimitSettings(), Metrics()
        self.sample = sample
        keep = None if sample is None else sample.keep
        self.queues = {
            name: ModelQueue(name, at, batch, self.limits, self.metrics, keep) for name, at in loaders.items()
        }
        self.default = default or next(iter(loaders))
        self._by_alias = {alias: name for name, loader in loaders.items() for alias in loader.aliases}
        self.draining = self.started = False

    def start(self) -> None:
        """Start loading all models and serving their queues; needs a running event loop."""
        self.started = True
        for queue in self.queues.values():
            queue.start()

    async def loaded(self) -> None:
        """Wait until every model is loaded.

        Raises:
            GuerdonError: a model cannot be loaded.
        """
        await asyncio.gather(*(queue.loading for queue in self.queues.values() if queue.loading is not None))

    async def stop(self) -> None:
        """Refuse waiting requests and end the threads."""
        if self.started:
            self.started = False
            for queue in self.queues.values():
                queue.stop()
            if self.sample is not None:
                await asyncio.to_thread(self.sample.close)

    def abandon(self) -> None:
        """Refuse waiting requests: the server ends before their model is done."""
        for queue in self.queues.values():
            queue.abandon()

    def get(self, name: str | None = None, *, param: str = "model") -> ModelQueue:
        """A model by name or alias; None: the default.

        Raises:
            UnknownModel: there is none of this name; `param` is the field of the request that names it.
        """
        name = self.default if name is None else self._by_alias.get(name, name)
        if name not in self.queues:
            raise UnknownModel(name, known=tuple(self.queues), param=param)
        return self.queues[name]

    def overload(self) -> float | None:
        """Seconds after which to try again, if no model has room for what it last refused; else None."""
        waits = [queue.overload() for queue in self.queues.values()]
        known = [wait for wait in waits if wait is not None]
        return min(known) if len(known) == len(waits) else None

    def states(self) -> dict[str, str]:
        """`ready` or the problem, by model."""
        return {name: queue.problem or "ready" for name, queue in self.queues.items()}

    @property
    def ready(self) -> bool:
        """Whether all models can be asked and the server is not shutting down."""
        return not self.draining and all(queue.problem is None for queue in self.queues.values())
