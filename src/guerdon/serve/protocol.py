"""HTTP connections with limits on the head of a request: its size, its fields, and its time.

Uvicorn's protocol keeps an unfinished head without limit, and parses every request behind an unanswered one. Here the
parser gets no more of a head than the limit, and a connection that does not complete a head in time is closed. Bodies
have limits of their own (`middleware.py`), and idle connections have uvicorn's.

    uvicorn.Config(app, http=limited_protocol(seconds=30, most_bytes=65536))
"""

from __future__ import annotations

import asyncio
import json

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from guerdon.serve.errors import error_body
from guerdon.serve.middleware import LINGER_S

MOST_HEADERS = 128
MOST_WAITING = 8  # pipelined requests behind the one that is being answered


class _HeadRefused(Exception):
    """Raised inside the parser, which stops there; caught by uvicorn's `data_received`."""


class LimitedProtocol(HttpToolsProtocol):
    """Answers a head that is too large, has too many fields or is not HTTP, and closes the connection."""

    seconds, most_bytes = 30.0, 65_536
    in_head, head_bytes, refused = True, 0, False
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client disconnected."""
        self._stop_timer()
        super().connection_lost(exc)

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

    @property
    def _answering(self) -> bool:
        """Whether a request is being answered, or waits for that."""
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Stop reading. Complete requests are answered, then the connection is closed."""
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


def limited_protocol(*, seconds: float, most_bytes: int) -> type[LimitedProtocol]:
    """Uvicorn's protocol with limits.

    Args:
        seconds: from a connection, or from the first byte after an answer, to a complete head.
        most_bytes: of an unfinished head; one that begins in the middle of a packet may have twice as much.
    """
    return type("LimitedProtocol", (LimitedProtocol,), {"seconds": seconds, "most_bytes": most_bytes})
