"""What every request must pass before anything reads it: token, origin, room, size, time.

An ASGI middleware around the whole application, so that no route can forget it. `GET /health` alone is open. Bodies are
counted as they arrive, whatever they claim, and a body that is too large or too slow is refused before it is parsed.
This module does not know routes, models or wire formats.

    app.add_middleware(Guard, settings=settings, metrics=engine.metrics, draining=..., overload=engine.overload)
"""

from __future__ import annotations

import asyncio
import binascii
import hmac
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from guerdon.serve.errors import error_body
from guerdon.serve.metrics import Metrics
from guerdon.settings.serve import ServeSettings

OPEN = "/health"
MISSING = "the token is missing: send the header Authorization: Bearer <token>"
WRONG = "the token is wrong: it is not the one that this server was started with"
GONE = 499  # as it is counted: the client went away before its request was whole
LINGER_S = 1.0  # how long a refused client may go on sending, so that it gets to read why
_LOCAL = {"localhost", "127.0.0.1", "::1"}


class Guard:
    """Refuses what must not get further.

    Args:
        app: what is behind it.
        settings: token and limits.
        metrics: requests are counted here.
        draining: whether the server is about to end; requests that begin then are refused.
        overload: None, or when to come again because no model has room; requests are then refused unread.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ServeSettings,
        metrics: Metrics,
        draining: Callable[[], bool],
        overload: Callable[[], float | None],
    ) -> None:
        self.app, self._limits, self._metrics = app, settings.limits, metrics
        self._draining, self._overload = draining, overload
        self._token = None if settings.token is None else settings.token.encode()
        self._working = 0
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 500

        async def counting_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.in_flight.inc()
        try:
            await self._pass(scope, receive, counting_send)
        except ClientDisconnect:
            status = GONE
        finally:
            self._metrics.in_flight.dec()
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.answered(route, status, time.perf_counter() - start)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == OPEN and scope["method"] in ("GET", "HEAD"):
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        if (wrong := self._wrong_with_token(headers)) is not None:
            return await _refuse(send, receive, 401, "unauthorized", wrong)
        if self._token is None and _comes_from_elsewhere(headers):
            return await _refuse(send, receive, 403, "forbidden", "requests from web pages of other sites are refused")
        if scope["method"] in ("GET", "HEAD"):
            return await self.app(scope, receive, send)
        if self._draining():
            return await _refuse(send, receive, 503, "not_ready", "the server is about to end", retry_after="1")
        claimed = headers.get("content-length", "0")
        if not (claimed.isascii() and claimed.isdigit()) or int(claimed) > self._limits.max_body_bytes:
            most = self._limits.max_body_bytes
            return await _refuse(send, receive, 413, "too_large", f"a request may have at most {most} bytes")
        if self._working >= self._limits.concurrency or self._bytes + int(claimed) > self._limits.max_bytes_in_flight:
            return await _refuse(send, receive, 429, "busy", "too many requests at a time", retry_after="1")
        body, why = _Body(self, receive), None
        self._working += 1
        try:
            wait = self._overload()
            if wait is None:
                await self.app(scope, body.receive, send)
            else:
                await self._shed(body, send, wait)
        except _BodyRefused as error:
            why = error.why  # and not the error: it holds those who read, and what they have read so far
        finally:
            self._working -= 1
            self._bytes -= body.size
        if why is not None:
            await _refuse(send, receive, *why, retry_after="1" if why[0] == 429 else None)

    async def _shed(self, body: _Body, send: Send, wait: float) -> None:
        """Refuse before anything is parsed: reading requests only to refuse them would take the time of the others."""
        while not body.complete:
            if (await body.receive())["type"] == "http.disconnect":
                return
        what = "too many items wait; come again later"
        await _answer(send, 429, error_body(what, 429, "busy"), [(b"retry-after", str(max(1, round(wait))).encode())])

    def _wrong_with_token(self, headers: Headers) -> str | None:
        """What is the matter with the token of a request; the words depend on what came, never on the right one."""
        if self._token is None:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        secret = given.strip().encode("utf-8", "replace")
        if scheme.lower() == "basic":
            secret = _password(secret)
        known = hmac.compare_digest(secret, self._token)
        if scheme.lower() not in ("bearer", "basic") or not secret:
            return MISSING
        return None if known else WRONG

    def count(self, size: int) -> bool:
        """Take note of bytes that arrived; whether there is room for them."""
        self._bytes += size
        return self._bytes <= self._limits.max_bytes_in_flight

    @property
    def limits(self) -> tuple[int, float]:
        """Bytes that a body may have, and seconds in which it must be there."""
        return self._limits.max_body_bytes, self._limits.read_timeout_s


class _BodyRefused(Exception):
    """A body is not read further. It passes those who read, and their handlers of errors, on its way to the guard.

    Attributes:
        why: status, code and words of the answer.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.why = status, code, message


class _Body:
    """The body of one request, counted and timed as it arrives."""

    def __init__(self, guard: Guard, receive: Receive) -> None:
        self._guard, self._receive = guard, receive
        self._most, seconds = guard.limits
        self._until = asyncio.get_running_loop().time() + seconds
        self.complete = False
        self.size = 0

    async def receive(self) -> Message:
        """The next part; after the last one, whatever the server has to say.

        Raises:
            _BodyRefused: it is too large, or too late.
        """
        if self.complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise _BodyRefused(408, "timeout", "the request did not arrive in time") from None
        if message["type"] == "http.request":
            arrived = len(message.get("body", b""))
            self.size += arrived
            room = self._guard.count(arrived)
            if self.size > self._most:
                raise _BodyRefused(413, "too_large", f"a request may have at most {self._most} bytes")
            if not room:
                raise _BodyRefused(429, "busy", "too many requests at a time")
        self.complete = not message.get("more_body", False)
        return message


def _password(given: bytes) -> bytes:
    """The token of clients that can be told an address alone: http://anyone:token@host sends it as a password."""
    try:
        return binascii.a2b_base64(given, strict_mode=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _comes_from_elsewhere(headers: Headers) -> bool:
    """Whether a browser sends this for a page of another site; without a token only pages of this machine may ask."""
    origin = headers.get("origin")
    return origin is not None and _host(origin) not in _LOCAL


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


async def _answer(send: Send, status: int, body: object, headers: list[tuple[bytes, bytes]]) -> None:
    """A JSON answer."""
    data = json.dumps(body).encode()
    start = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": data, "more_body": b"close" in dict(headers).values()})


async def _refuse(
    send: Send, receive: Receive, status: int, code: str, message: str, *, retry_after: str | None = None
) -> None:
    """Answer without reading the body, and close the connection."""
    headers = [(b"connection", b"close")]
    if retry_after is not None:
        headers.append((b"retry-after", retry_after.encode()))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await _answer(send, status, error_body(message, status, code), headers)
    await _linger(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _linger(receive: Receive) -> None:
    """Throw away what the client still sends: closing at once would take the answer from it."""
    try:
        async with asyncio.timeout(LINGER_S):
            message: dict[str, Any] = {"more_body": True}
            while message.get("more_body", False):
                message = dict(await receive())
    except TimeoutError:
        return
