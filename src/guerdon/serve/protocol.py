"""What a server of guerdon listens with: the socket, and uvicorn's protocol with limits.

Uvicorn's protocol keeps an unfinished head of a request without limit, and parses every request behind an unanswered
one. Here the parser gets no more of a head than the limit, and a connection that does not complete a head in time is
closed. Bodies have limits of their own (`middleware.py`), and idle connections have uvicorn's.

    config = server_config(app, limits, count=lambda status: None)
    uvicorn.Server(config).run(sockets=[listen("127.0.0.1", 0)])
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from guerdon.errors import ConfigError
from guerdon.serve.errors import error_body
from guerdon.serve.middleware import LINGER_S
from guerdon.settings.serve import LimitSettings

MOST_HEADERS = 128
MOST_WAITING = 8  # pipelined requests behind the one that is being answered


def say(line: str) -> None:
    """Print one line for the operator."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def address(host: str, port: int) -> str:
    """The URL of a server."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address.

    Raises:
        ConfigError: the address cannot be used.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port or --host"
        ) from error
    return listener


def server_config(app: Any, limits: LimitSettings, *, count: Callable[[int], None]) -> uvicorn.Config:
    """How uvicorn serves an application.

    Args:
        app: answers requests.
        limits: of requests.
        count: called with the status of each request that is refused before the application sees it.
    """
    protocol = limited_protocol(seconds=limits.read_timeout_s, most_bytes=limits.max_header_bytes, count=count)
    return uvicorn.Config(
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
