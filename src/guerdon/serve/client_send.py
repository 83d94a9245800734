"""One question to a reward server, asked until there is a reply, a reason, or no time.

A broken connection, silence, 408, 425, 429 and 5xx are tried again after a pause; nothing else is. The deadline holds
however slowly a server drips. All tries of a question carry the same `X-Request-ID`. This module does not know what is
asked, nor what a reply means.

    sender = Sender(RemoteSettings(endpoint="http://127.0.0.1:18080"), token=None)
    reply = await sender.ask("POST", "/v1/rewards", Body(b"{}", "application/json"), Deadline.after(30, sender.clock))
    if isinstance(reply, NoReply): print(reply.failure.reason)
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx2

from guerdon.retry import Clock, Deadline, Retry, Tried, asked_pause, is_transient, persist
from guerdon.settings.remote import RemoteSettings
from guerdon.types import Failure

MOST_BYTES = 64_000_000  # of a reply
MOST_WORDS = 600  # characters of what an error reply says: enough for the names of many models
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_REASONS = {401: "unauthorized", 403: "unauthorized", 404: "not_found", 408: "timeout", 413: "too_large"}
_OVERLOADED = {429, 503}
_WORD = re.compile(r"[a-z0-9_]{1,64}\Z")


@dataclass(frozen=True)
class Body:
    """What is sent."""

    content: bytes
    media_type: str


@dataclass(frozen=True)
class Payload:
    """The JSON of a reply with status 200."""

    value: Any


@dataclass(frozen=True)
class NoReply:
    """Why there is no payload.

    Attributes:
        failure: the reason.
        param: the field that the server names as wrong.
        code: the server's own word for the error.
        may_pass: the last try failed in a way that another one might not.
    """

    failure: Failure
    param: str | None = None
    code: str | None = None
    may_pass: bool = False


Outcome = Payload | NoReply


class Sender:
    """Sends requests to one server.

    Args:
        settings: where, and how patiently.
        token: sent as a bearer token.
        clock: time.
        rng: of the pauses.
        transport: in place of real sockets.
        new_id: makes request ids.

    Attributes:
        counts: `requests`, `tries`, and how often each reason ended a request.
    """

    def __init__(
        self,
        settings: RemoteSettings,
        token: str | None = None,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self.settings = settings
        self.clock = clock or Clock()
        self.retry = Retry(settings.tries)
        self.counts: Counter[str] = Counter()
        self._token, self._transport, self._new_id = token, transport, new_id
        self._rng = rng or random.Random()
        self._http: httpx2.AsyncClient | None = None
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def ask(
        self, method: str, path: str, body: Body | None, deadline: Deadline, tries: int | None = None
    ) -> Outcome:
        """The reply, or why there is none.

        Args:
            method: of HTTP.
            path: behind the server's address.
            body: what is sent.
            deadline: for all tries together.
            tries: at most these; None: as many as the settings allow.
        """
        headers = {"X-Request-ID": self._new_id(), "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = body.media_type
        self.counts["requests"] += 1
        http = self._client()
        retry = self.retry if tries is None else replace(self.retry, tries=min(tries, self.retry.tries))
        send = partial(self._try, http, method, path, body, headers, deadline)
        outcome = await persist(send, retry, deadline, self._slots, self._rng, _late)
        if isinstance(outcome, NoReply):
            self.counts[outcome.failure.reason] += 1
        return outcome

    async def close(self) -> None:
        """Close all connections."""
        http, self._http = self._http, None
        if http is not None and self._loop is asyncio.get_running_loop():
            await http.aclose()

    async def _try(
        self,
        http: httpx2.AsyncClient,
        method: str,
        path: str,
        body: Body | None,
        headers: Mapping[str, str],
        deadline: Deadline,
    ) -> Tried[Outcome]:
        self.counts["tries"] += 1
        try:
            async with asyncio.timeout(deadline.left):
                return await self._exchange(http, method, path, body, headers)
        except TimeoutError:
            return Tried(_no("deadline", f"no whole reply within {self.settings.timeout:g} s", may_pass=True))
        except httpx2.TimeoutException as error:
            return Tried(_no("timeout", _said_by(error), may_pass=True), again=True)
        except httpx2.TransportError as error:
            return Tried(_no("connection", _said_by(error), may_pass=True), again=True)
        except (httpx2.DecodingError, httpx2.InvalidURL) as error:
            return Tried(_no("bad_reply", _said_by(error)))

    async def _exchange(
        self, http: httpx2.AsyncClient, method: str, path: str, body: Body | None, headers: Mapping[str, str]
    ) -> Tried[Outcome]:
        content = None if body is None else body.content
        async with http.stream(method, path, content=content, headers=dict(headers)) as reply:
            data = bytearray()
            async for piece in reply.aiter_bytes():
                data += piece
                if len(data) > MOST_BYTES:
                    return Tried(_no("bad_reply", f"longer than {MOST_BYTES} bytes"))
            status, asked = reply.status_code, asked_pause(reply.headers, self.clock)
        try:
            value = json.loads(bytes(data))
        except (ValueError, RecursionError):
            value = None
            if status == 200:
                return Tried(_no("bad_reply", f"not JSON: {bytes(data[:80])!r}"))
        if status == 200:
            return Tried(Payload(value))
        said = f"{status}: {_message(value)}"
        if is_transient(status):
            reason = "overloaded" if status in _OVERLOADED else _REASONS.get(status, "server_error")
            return Tried(_no(reason, said, may_pass=True), again=True, asked=asked)
        error = value.get("error") if isinstance(value, Mapping) else None
        words = error if isinstance(error, Mapping) else {}
        if words.get("code") == "failed_measurement":  # the item's own failure, said as "reason: detail"
            reason, _, detail = str(words.get("message")).partition(":")
            known = _WORD.match(reason) is not None
            return Tried(_no(reason if known else "server_failure", detail.strip()[:200] if known else said))
        param, code = (one if isinstance(one := words.get(key), str) else None for key in ("param", "code"))
        return Tried(NoReply(Failure(_REASONS.get(status, "rejected"), said), param, code))

    def _client(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:  # connections belong to the loop that opened them
            self._loop = loop
            s = self.settings
            self._slots = asyncio.Semaphore(s.concurrency)
            local = httpx2.URL(s.base).host in _LOOPBACK
            self._http = httpx2.AsyncClient(
                base_url=s.base,
                timeout=httpx2.Timeout(s.read_timeout, connect=s.connect_timeout, pool=None),
                limits=httpx2.Limits(max_connections=s.concurrency, max_keepalive_connections=s.concurrency),
                transport=self._transport,
                trust_env=not local,  # a proxy of the environment has no business with this machine
            )
        return self._http


def _no(reason: str, detail: str, *, may_pass: bool = False) -> NoReply:
    return NoReply(Failure(reason, detail), may_pass=may_pass)


def _late(outcome: Outcome | None, note: str) -> Outcome:
    """The outcome of a question that has no time left."""
    if isinstance(outcome, NoReply):
        return replace(outcome, failure=Failure(outcome.failure.reason, outcome.failure.detail + note))
    return outcome or _no("deadline", note.removeprefix("; "), may_pass=True)


def _said_by(error: Exception) -> str:
    said = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _message(value: Any) -> str:
    """What an error reply says, in one line."""
    if isinstance(value, Mapping):
        error = value.get("error", value.get("detail", value))
        value = error.get("message", error) if isinstance(error, Mapping) else error
    return " ".join(str(value if value is not None else "no reason given").split())[:MOST_WORDS]
