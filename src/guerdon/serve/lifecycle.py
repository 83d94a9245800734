"""The server process: listen, load the models, serve, and on SIGTERM finish the accepted requests.

Requests are answered as soon as the process listens: `/health` with 200, others with 503 until their model is loaded.
The line with the address is printed when all models are loaded.
After a first signal the server is not ready and accepts no new requests, accepted ones are answered, then the process
ends. After `drain_s`, or a second signal, open requests are answered with 503.

Uvicorn's protocol keeps an unfinished head of a request without limit, and parses every request behind an unanswered
one. Here the parser gets no more of a head than the limit, and a connection that does not complete a head in time is
closed. Bodies have limits of their own (`middleware.py`), and idle connections have uvicorn's.

    serve(models, build_app(models, settings), settings)
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from guerdon.errors import ConfigError, GuerdonError
from guerdon.processes.progress import doing, heartbeat
from guerdon.serve.errors import error_body
from guerdon.serve.middleware import LINGER_S
from guerdon.serve.served_models import ServedModels
from guerdon.settings.serve import ServeSettings

SWITCH_S = 0.0005  # a model releases the interpreter lock at every kernel, and should get it back soon
LAME_DUCK_S = 0.3  # how long new requests are still answered with 503
MOST_HEADERS = 128
MOST_WAITING = 8  # pipelined requests behind the one that is being answered


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
    protocol = limited_protocol(
        seconds=settings.limits.read_timeout_s,
        most_bytes=settings.limits.max_header_bytes,
        count=lambda status: models.metrics.answered("other", status, 0.0),
    )
    config = uvicorn.Config(
        app,
        log_config=None,  # as `logs.py` has it
        log_level="error",  # its warnings are a line per connection that sends something else than HTTP
        access_log=False,
        http=protocol,
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
        backlog=1024,
    )
    sys.setswitchinterval(SWITCH_S)
    server = GracefulServer(config, models, settings, notes)
    server.run(sockets=[_listen(settings)])
    if server.failed is not None:
        raise server.failed


def say(line: str) -> None:
    """Print one line for the operator."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def say_served(models: Iterable[str], *addresses: str) -> None:
    """Print the line that says that requests for these models are answered now, and where."""
    say(f"guerdon serves {', '.join(models)} at {', '.join(addresses)}")


def address(host: str, port: int) -> str:
    """The URL of a server."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen(settings: ServeSettings) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET, socket.SOCK_STREAM)
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


class _HeadRefused(Exception):
    """Raised inside the parser, which stops there; caught by uvicorn's `data_received`."""


class LimitedProtocol(HttpToolsProtocol):
    """Answers a head that is too large, has too many fields or is not HTTP, and closes the connection."""

    seconds, most_bytes = 30.0, 65_536
    count: Callable[[int], None]
    running: RequestResponseCycle | None = None
    in_head, head_bytes, refused = True, 0, False
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client disconnected; uvicorn tells it to the newest request only, even if that waits for another."""
        self._stop_timer()
        super().connection_lost(exc)
        if self.running is not None and not self.running.response_complete:
            self.running.disconnected = True
            self.running.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Parse the data in parts, so that no unfinished head exceeds its limit."""
        rest = memoryview(data)
        while rest and not self.refused:
            size = self.most_bytes - self.head_bytes if self.in_head else self.most_bytes
            part, rest = rest[:size], rest[size:]
            self.head_bytes += len(part) if self.in_head else 0
            super().data_received(part)  # type: ignore[arg-type]  # the parser takes any buffer
            if self.in_head and self.head_bytes >= self.most_bytes and not self.refused:
                self._refuse(431, "too_large", f"the head of a request may have at most {self.most_bytes} bytes")
        if not self.refused and not self._answering:
            self._expect_head()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if len(self.pipeline) >= MOST_WAITING:
            raise _HeadRefused
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head."""
        if len(self.headers) >= MOST_HEADERS:
            raise _HeadRefused
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        super().on_headers_complete()
        if 0 < len(self.pipeline) <= MOST_WAITING // 2:
            self.flow.resume_reading()  # else it would not be noticed that the client disconnects
        self.in_head, self.head_bytes = False, 0
        self._stop_timer()

    def on_chunk_header(self) -> None:
        """A chunk begins; fields may follow the last one, and count like those of the head."""
        self.in_head, self.head_bytes = True, 0

    def on_body(self, body: bytes) -> None:
        """Part of a body."""
        super().on_body(body)
        self.in_head = False

    def on_message_complete(self) -> None:
        """The request is complete."""
        super().on_message_complete()
        self.in_head, self.head_bytes = True, 0

    def send_400_response(self, msg: str) -> None:
        """The data is not HTTP, or the parser was stopped."""
        if self.headers is not None and len(self.headers) >= MOST_HEADERS:
            self._refuse(431, "too_large", f"a request may have at most {MOST_HEADERS} header fields")
        else:
            self._refuse(400, "invalid_request", "this is not an HTTP request")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.running = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def _answering(self) -> bool:
        """Whether a request is being answered, or waits for that."""
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Stop reading. Complete requests are answered, then the connection is closed."""
        self.count(status)
        self.refused = True
        self._stop_timer()
        if self._answering:
            if self.pipeline or self.cycle.response_started or not self.cycle.more_body:
                self.cycle.keep_alive = False
                return
            self.cycle.disconnected = True  # its body is broken
            self.cycle.message_event.set()
        body = json.dumps(error_body(message, status, code)).encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.timer = self.loop.call_later(LINGER_S, self.transport.close)

    def _expect_head(self) -> None:
        if self.timer is None:
            self.timer = self.loop.call_later(self.seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def limited_protocol(*, seconds: float, most_bytes: int, count: Callable[[int], None]) -> type[LimitedProtocol]:
    """Uvicorn's protocol with limits.

    Args:
        seconds: from a connection, or from the first byte after an answer, to a complete head.
        most_bytes: of an unfinished head; one that begins in the middle of a packet may have twice as much.
        count: called with the status of each request that is refused here.
    """
    limits = {"seconds": seconds, "most_bytes": most_bytes, "count": staticmethod(count)}
    return type("LimitedProtocol", (LimitedProtocol,), limits)
