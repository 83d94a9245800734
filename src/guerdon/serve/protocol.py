"""Connections that say nothing are closed: uvicorn's protocol with a limit on the time that a request's head may take.

Bodies have a limit of their own (`guard.py`), and connections that rest between two requests have uvicorn's. This
module does not know what is asked.

    uvicorn.Config(app, http=timed_protocol(seconds=30))
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


def timed_protocol(seconds: float) -> type[asyncio.Protocol]:
    """Uvicorn's protocol, with this limit on the time from a connection, or a first byte, to a whole head."""

    class TimedProtocol(HttpToolsProtocol):
        """Closes connections whose request does not begin in time."""

        head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """A client is there."""
            super().connection_made(transport)
            self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            """It has gone."""
            self._head_came()
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            """The first byte of a request."""
            super().on_message_begin()
            self._expect_head()

        def on_headers_complete(self) -> None:
            """The head is whole."""
            self._head_came()
            super().on_headers_complete()

        def _expect_head(self) -> None:
            if self.head_timer is None:
                self.head_timer = self.loop.call_later(seconds, self.transport.close)

        def _head_came(self) -> None:
            if self.head_timer is not None:
                self.head_timer.cancel()
                self.head_timer = None

    return TimedProtocol
