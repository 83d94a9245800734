"""The server process: listen, load the models, serve, and on SIGTERM finish the accepted requests.

Requests are answered as soon as the process listens: `/health` with 200, others with 503 until their model is loaded.
The line with the address is printed when all models are loaded.
After a first signal the server is not ready and accepts no new requests, accepted ones are answered, then the process
ends. After `drain_s`, or a second signal, open requests are answered with 503.

    serve(models, build_app(models, settings), settings)
"""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from types import FrameType

import uvicorn
from fastapi import FastAPI

from guerdon.errors import GuerdonError
from guerdon.processes.progress import doing, heartbeat
from guerdon.serve.protocol import address, listen, say, server_config
from guerdon.serve.served_models import ServedModels
from guerdon.settings.serve import ServeSettings

SWITCH_S = 0.0005  # a model releases the interpreter lock at every kernel, and should get it back soon
LAME_DUCK_S = 0.3  # how long new requests are still answered with 503


class GracefulServer(uvicorn.Server):
    """uvicorn with a graceful shutdown and models that load while it listens."""

    def __init__(
        self, config: uvicorn.Config, models: ServedModels, settings: ServeSettings, notes: Sequence[str]
    ) -> None:
        super().__init__(config)
        self.models, self.settings, self._notes = models, settings, notes
        self.failed: GuerdonError | None = None
        self._loading: asyncio.Task[None] | None = None
        self._ending: float | None = None
        self._signals = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and start loading."""
        self.models.start()
        await super().startup(sockets)
        for note in (f"loading {', '.join(self.models.queues)}", *self._notes):
            say(note)
        self._loading = asyncio.create_task(self._load(sockets or ()))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: the first starts the shutdown, the second does not wait for models, the third for nothing."""
        self._signals += 1
        self._ending = self._ending or time.monotonic()
        self.models.draining = True
        self.force_exit = self._signals > 2

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: whether to exit."""
        if self._ending is not None and not self.should_exit:
            passed = time.monotonic() - self._ending
            if passed >= self.settings.limits.drain_s or self._signals > 1:
                self.models.abandon()
                self.should_exit = True
            elif passed >= LAME_DUCK_S and not self.server_state.tasks:
                self.should_exit = True
        return await super().on_tick(counter)

    def _warn_no_media_root(self) -> None:
        """Warn the operator about clients that send paths, as those of the first reward server do."""
        visual = [name for name, queue in self.models.queues.items() if queue.info.modality == "image"]
        if visual and self.settings.media.root is None:
            say(
                f"no --media-root: {', '.join(visual)} answers requests with a video_path with 400; if clients send "
                "paths, start with --media-root FOLDER, the folder that they write their videos to"
            )

    async def _load(self, listeners: Sequence[socket.socket]) -> None:
        addresses = [address(*listener.getsockname()[:2]) for listener in listeners]  # closed if it ends meanwhile
        try:
            with heartbeat("serve"), doing(f"loading {', '.join(self.models.queues)}"):
                await self.models.loaded()
        except GuerdonError as error:
            self.failed, self.should_exit = error, True
        else:
            gc.collect()
            gc.freeze()  # objects that live on are not scanned again by the garbage collector
            self._warn_no_media_root()
            if not self.models.draining:
                say_served(self.models.queues, *addresses)


def serve(models: ServedModels, app: FastAPI, settings: ServeSettings, notes: Sequence[str] = ()) -> None:
    """Serve until a signal comes.

    Args:
        models: what is served.
        app: answers requests.
        settings: of the server.
        notes: lines for the operator.

    Raises:
        ConfigError: the address cannot be used.
        GuerdonError: a model could not be loaded.
    """
    config = server_config(app, settings.limits, count=lambda status: models.metrics.answered("other", status, 0.0))
    sys.setswitchinterval(SWITCH_S)
    server = GracefulServer(config, models, settings, notes)
    server.run(sockets=[listen(settings.host, settings.port)])
    if server.failed is not None:
        raise server.failed


def say_served(models: Iterable[str], *addresses: str) -> None:
    """Print the line that says that requests for these models are answered now, and where."""
    say(f"guerdon serves {', '.join(models)} at {', '.join(addresses)}")
