"""Checks that every request must pass before it is parsed: token, origin, load, size, time.

An ASGI middleware around the whole application, so that no route can bypass it. Only `GET /health` is exempt. Bodies
are counted as they arrive, whatever their headers claim, and a body that is too large or too slow is refused before it
is parsed. `HEAD` is answered wherever `GET` is.

When the client of a request with a body disconnects, the application's work on it is cancelled, whatever its route, and
the queue gives up what nobody waits for (`model_queue.py`).

    app.add_middleware(RequestMiddleware, host="127.0.0.1", limits=limits, load=models, tokens={"secret": ""})
"""

from __future__ import annotations

import asyncio
import binascii
import hmac
import ipaddress
import json
import math
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from guerdon.serve.errors import error_body
from guerdon.serve.metrics import Metrics
from guerdon.settings.serve import LimitSettings

OPEN = "/health"
PERSON = "guerdon.person"
"""Key of a request's scope: who has its token."""
MISSING = "the token is missing: send the header Authorization: Bearer <token>"
WRONG = "the token is wrong: it is not the one that this server was started with"
GONE = 499  # status in the metrics if the client disconnected before its answer
WATCH_S = 0.1  # seconds after which a client is watched: to do so costs a twentieth of a short request
LINGER_S = 1.0  # how long a refused client may go on sending, so that it can read the answer
_LOCAL = {"localhost", "127.0.0.1", "::1"}


class Load(Protocol):
    """How busy a server is.

    Attributes:
        draining: it is shutting down and accepts no new requests.
        metrics: count requests.
    """

    draining: bool
    metrics: Metrics

    def overload(self) -> float | None:
        """Seconds after which to try again, where there is too much to do; else None."""


class RequestMiddleware:
    """Refuses requests.

    Args:
        app: the application behind it.
        host: that the server listens on.
        limits: of requests.
        load: while the server is draining or overloaded, new requests are refused.
        tokens: who has each token that is accepted; empty: none is asked for.
        public: paths for which no token is needed; one that ends in / is a folder.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        limits: LimitSettings,
        load: Load,
        tokens: Mapping[str, str],
        public: Collection[str] = (),
    ) -> None:
        self.app, self.limits, self.load, self._public = app, limits, load, public
        self._people = {token.encode(): person for token, person in tokens.items()}
        self._own_names = _LOCAL | own_names() | {host.lower()}
        self._working = 0
        self.bytes = 0  # of all bodies that are being received or processed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server's own scope keeps HEAD, and leaves the body out
        start = time.perf_counter()
        exchange, refused = _Exchange(self, receive, send), None
        self.load.metrics.in_flight.inc()
        try:
            try:
                await self._pass(scope, exchange)
            except _Refused as error:
                refused = error.answer  # not the error itself: its traceback holds the body
            if refused is not None:
                await _refuse(exchange.send, receive, *refused)
        except ClientDisconnect:
            exchange.status = GONE
        finally:
            self.load.metrics.in_flight.dec()
            route = getattr(scope.get("route"), "path", "other")
            self.load.metrics.answered(route, exchange.status, time.perf_counter() - start)

    async def _pass(self, scope: Scope, exchange: _Exchange) -> None:
        """Let the application answer.

        Raises:
            _Refused: the request fails a check.
            ClientDisconnect: the client disconnected before the answer.
        """
        headers, limits, reads = Headers(scope=scope), self.limits, scope["method"] == "GET"
        if scope["path"] == OPEN and reads:
            return await self.app(scope, exchange.plain_receive, exchange.send)
        if [name for name, _ in scope["headers"]].count(b"authorization") > 1:
            raise _Refused(400, "invalid_request", "there are several Authorization headers: send one")
        if self._people and not self._is_public(scope["path"]):
            scope[PERSON] = self._person(headers)
        if not self._people and _cross_site(headers):
            raise _Refused(403, "forbidden", "requests from web pages of other sites are refused")
        if not self._people and (problem := self._host_problem(headers)) is not None:
            raise _Refused(403, "forbidden", problem)
        if reads:
            return await self.app(scope, exchange.plain_receive, exchange.send)
        if self.load.draining:
            raise _Refused(503, "not_ready", "the server is shutting down")
        if (problem := encoding_problem(headers)) is not None:
            raise _Refused(415, "unsupported_media_type", problem)
        claimed = headers.get("content-length", "0")
        if not (claimed.isascii() and claimed.isdigit()) or int(claimed) > limits.max_body_bytes:
            raise _Refused(413, "too_large", f"a request may have at most {limits.max_body_bytes} bytes")
        if self._working >= limits.concurrency or self.bytes + int(claimed) > limits.max_bytes_in_flight:
            raise _Refused(429, "busy", "too many requests at a time")
        self._working += 1
        try:
            async with exchange:
                wait = self.load.overload()
                if wait is None:
                    await self.app(scope, exchange.receive, exchange.send)
                else:
                    await self._shed(exchange, wait)
        finally:
            self._working -= 1
            self.bytes -= exchange.size

    async def _shed(self, exchange: _Exchange, wait: float) -> None:
        """Refuse before parsing: to parse requests only to refuse them would slow the others down."""
        while not exchange.complete:
            if (await exchange.receive())["type"] == "http.disconnect":
                raise ClientDisconnect
        answer, again = error_body("too many items wait; try again later", 429, "busy"), str(max(1, round(wait)))
        await _answer(exchange.send, 429, answer, [(b"retry-after", again.encode())])

    def _is_public(self, path: str) -> bool:
        """Whether a path is answered without a token."""
        return any(path == one or (one.endswith("/") and len(one) > 1 and path.startswith(one)) for one in self._public)

    def _person(self, headers: Headers) -> str:
        """Who has the token of a request.

        Raises:
            _Refused: it is missing or wrong; the message depends on the request, never on the right token.
        """
        scheme, _, given = headers.get("authorization", "").partition(" ")
        secret = given.strip().encode("utf-8", "replace")
        if scheme.lower() == "basic":
            secret = _password(secret)
        known = [person for token, person in self._people.items() if hmac.compare_digest(secret, token)]
        if scheme.lower() not in ("bearer", "basic") or not secret:
            raise _Refused(401, "unauthorized", MISSING)
        if not known:
            raise _Refused(401, "unauthorized", WRONG)
        return known[0]

    def _host_problem(self, headers: Headers) -> str | None:
        """The problem with the host that a request names, where no token is asked for.

        A page of another site can have its own name resolve to this machine (DNS rebinding); its requests name that
        site. Addresses in numbers cannot be rebound. A request of HTTP/1.0 may name no host, and no browser sends such.
        """
        for given in headers.getlist("host"):
            try:
                host = (urlsplit(f"//{given}").hostname or "").rstrip(".")
            except ValueError:
                return "the header Host is not a host with a port"
            if host not in self._own_names and not _is_address(host):
                return (
                    f"the header Host names {host[:100]!r}, which is not this machine: address it by localhost, by "
                    "its IP address or its host name, or start the server with a token"
                )
        return None


def own_names() -> frozenset[str]:
    """Names of this machine, in small letters."""
    whole = socket.gethostname().lower()
    short = whole.partition(".")[0]
    return frozenset({whole, short, f"{short}.local"} - {"", ".local"})


def _is_address(host: str) -> bool:
    """Whether a host is an IP address rather than a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def encoding_problem(headers: Headers) -> str | None:
    """Why the body of a request is not read, if it is compressed: its size would be known only after decoding."""
    encoding = ", ".join(headers.getlist("content-encoding")).lower()
    if {one.strip() for one in encoding.split(",")} <= {"", "identity"}:
        return None
    return f"the body has the content encoding {encoding[:40]!r}: send it uncompressed"


class _Refused(Exception):
    """A request, or the rest of its body, is not read; propagates through the application to the middleware.

    Attributes:
        answer: status, code and message.
    """

    def __init__(self, *answer: Any) -> None:
        super().__init__(answer)
        self.answer = answer


class _Exchange:
    """One request and its answer: the body is counted and timed as it arrives, and the client is watched behind it.

    `async with exchange:` is the application's work on a request with a body; it ends when the client disconnects, with
    `ClientDisconnect`.

    Attributes:
        status: of the answer; 500 before there is one.
        complete: the whole body has arrived.
        size: bytes of the body so far.
    """

    def __init__(self, middleware: RequestMiddleware, receive: Receive, send: Send) -> None:
        self._middleware, self.plain_receive, self._send, self._limits = middleware, receive, send, middleware.limits
        self._until = math.inf
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._gone = False
        self.status, self.complete, self.size = 500, False, 0

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._until = asyncio.get_running_loop().time() + self._limits.read_timeout_s

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop_watching()
        if self._gone and self._task is not None and not self._task.uncancel() and kind is asyncio.CancelledError:
            raise ClientDisconnect from None

    async def send(self, message: Message) -> None:
        """Part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._stop_watching()  # behind the answer, the server reports every connection as disconnected
        await self._send(message)

    async def receive(self) -> Message:
        """The next part of the body; behind the last one, the end of the connection.

        Raises:
            _Refused: it is too large, or too late.
        """
        if self.complete:
            return await self.plain_receive()
        try:
            async with asyncio.timeout_at(self._until):
                message = await self.plain_receive()
        except TimeoutError:
            raise _Refused(408, "timeout", "the request did not arrive in time") from None
        if message["type"] == "http.request":
            arrived = len(message.get("body", b""))
            self.size += arrived
            self._middleware.bytes += arrived
            if self.size > self._limits.max_body_bytes:
                most = self._limits.max_body_bytes
                raise _Refused(413, "too_large", f"a request may have at most {most} bytes")
            if self._middleware.bytes > self._limits.max_bytes_in_flight:
                raise _Refused(429, "busy", "too many requests at a time")
            if not message.get("more_body", False):
                self._watcher = asyncio.get_running_loop().call_later(WATCH_S, self._begin_to_watch)
        self.complete = not message.get("more_body", False)
        return message

    def _begin_to_watch(self) -> None:
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Cancel the work when the client disconnects."""
        while (await self.plain_receive())["type"] != "http.disconnect":
            pass
        if self._task is not None:
            self._gone = self._task.cancel()

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None


def _password(given: bytes) -> bytes:
    """The token of clients that are configured with a URL only: http://anyone:token@host sends it as a password."""
    try:
        return binascii.a2b_base64(given, strict_mode=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _cross_site(headers: Headers) -> bool:
    """Whether a browser sends this for a page of another site; without a token only local pages may send requests."""
    try:
        return "origin" in headers and urlsplit(headers["origin"]).hostname not in _LOCAL
    except ValueError:
        return True


async def _answer(send: Send, status: int, body: object, headers: list[tuple[bytes, bytes]]) -> None:
    """A JSON answer."""
    data = json.dumps(body).encode()
    start = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": data, "more_body": b"close" in dict(headers).values()})


async def _refuse(send: Send, receive: Receive, status: int, code: str, message: str) -> None:
    """Answer without reading the body, and close the connection."""
    headers = [(b"connection", b"close")]
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await _answer(send, status, error_body(message, status, code), headers)
    await _linger(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _linger(receive: Receive) -> None:
    """Discard what the client still sends: if the connection were closed at once, it could not read the answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body", False):
                pass
