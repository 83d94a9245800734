"""The life of the server process: listen, load, serve, and on SIGTERM finish what was accepted.

Requests are answered as soon as the process listens, `/health` with a yes and the rest with 503 until their model is
loaded. A first signal ends the server in order: at once it is not ready and takes nothing new, what was accepted
is answered, then it leaves. After `drain_s`, or a second signal, what is still open is answered with 503. This module
does not know models.

    serve(engine, build_app(engine, settings), settings)
"""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import time
from types import FrameType

import uvicorn
from fastapi import FastAPI

from guerdon.errors import ConfigError, GuerdonError
from guerdon.serve.engine import Engine
from guerdon.serve.protocol import limited_protocol
from guerdon.settings.serve import ServeSettings

SWITCH_S = 0.0005  # a model lets go of the interpreter at every kernel, and should have it back soon
LAME_DUCK_S = 0.3  # how long newcomers are still told that the server is about to end


class GracefulServer(uvicorn.Server):
    """uvicorn, with an orderly end and models that load while it listens."""

    def __init__(self, config: uvicorn.Config, engine: Engine, settings: ServeSettings) -> None:
        super().__init__(config)
        self.engine, self.settings = engine, settings
        self.failed: GuerdonError | None = None
        self._loading: asyncio.Task[None] | None = None
        self._ending: float | None = None
        self._signals = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and begin to load."""
        self.engine.start()
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            say(f"guerdon serves {', '.join(self.engine.names)} at http://{shown}:{port}")
        self._loading = asyncio.create_task(self._load())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: the first begins the orderly end, the second does not wait for models, the third for nothing."""
        self._signals += 1
        self._ending = self._ending or time.monotonic()
        self.engine.draining = True
        self.force_exit = self._signals > 2

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to leave."""
        if self._ending is not None and not self.should_exit:
            passed = time.monotonic() - self._ending
            if passed >= self.settings.limits.drain_s or self._signals > 1:
                self.engine.abandon()
                self.should_exit = True
            elif passed >= LAME_DUCK_S and not self.server_state.tasks:
                self.should_exit = True
        return await super().on_tick(counter)

    def _say_blind(self) -> None:
        """Say what the first reward server's clients would otherwise only read in each of their answers."""
        visual = [name for name in self.engine.names if self.engine.info(name).modality == "image"]
        if visual and self.settings.media.root is None:
            say(
                f"no --media-root: {', '.join(visual)} answers requests with a video_path with 400; if clients send "
                "paths, start with --media-root FOLDER, the folder that they write their videos to"
            )

    async def _load(self) -> None:
        try:
            await self.engine.loaded()
        except GuerdonError as error:
            self.failed, self.should_exit = error, True
        else:
            gc.collect()
            gc.freeze()  # what is there now stays, and is not looked through while requests wait
            self._say_blind()
            say("ready: " + ", ".join(self.engine.names))


def serve(engine: Engine, app: FastAPI, settings: ServeSettings) -> None:
    """Serve until a signal comes.

    Raises:
        ConfigError: the address cannot be used.
        GuerdonError: a model could not be loaded.
    """
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        http=limited_protocol(seconds=settings.limits.read_timeout_s, most_bytes=settings.limits.max_header_bytes),
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
        backlog=1024,
    )
    sys.setswitchinterval(SWITCH_S)
    server = GracefulServer(config, engine, settings)
    server.run(sockets=[_listen(settings)])
    if server.failed is not None:
        raise server.failed


def say(line: str) -> None:
    """One line for the operator; the first one holds the address."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _listen(settings: ServeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; "
            "choose another --port or --host"
        ) from error
    return listener
