"""One HTTP request with a total time limit: JSON out, JSON back, or the reason why there is none.

Redirects are not followed (a key would follow them), replies are bounded in size, and the time limit holds for the
whole request, however slowly a server sends. Nothing is tried again here.

    url = "http://localhost:8000/v1/chat/completions"
    payload = post_json(url, {}, {"model": "m"}, timeout=60, clock=Clock(), who="the judge", check="label.judge.model")
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import ssl
from collections.abc import Mapping
from typing import Any

import httpx2

from guerdon.errors import ConfigError
from guerdon.retry import Clock, is_transient, retry_after

MAX_BYTES = 16_000_000
_FATAL = {401: "does not accept the key", 403: "does not allow this", 404: "has no such model or path"}
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_NOT_SENT = (httpx2.ConnectError, httpx2.ProxyError, httpx2.WriteError)


class HttpFailure(Exception):
    """There is no usable reply.

    Attributes:
        reason: a short stable word.
        again: whether trying again can help.
        retry_after: seconds that the server asks to wait; None where it asks for none.
        billed: whether the server may have received and answered the request.
    """

    def __init__(
        self, reason: str, detail: str, *, again: bool = True, retry_after: float | None = None, billed: bool = False
    ) -> None:
        super().__init__(detail)
        self.reason, self.again, self.retry_after, self.billed = reason, again, retry_after, billed


def post_json(
    url: str,
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    *,
    timeout: float,
    clock: Clock,
    who: str,
    check: str,
) -> Any:
    """The payload of a reply with status 200. Not to be called in an event loop.

    Args:
        url: http or https.
        headers: besides the content type.
        body: plain JSON values.
        timeout: seconds of wall-clock.
        clock: what a date in `Retry-After` is compared with.
        who: the endpoint, for messages.
        check: what a user should look at where the address, the key or the model is wrong.

    Raises:
        HttpFailure: no reply in time, no connection, another status, or a reply that is not JSON.
        ConfigError: the address is invalid, or the endpoint refuses the key, the model or the path.
    """
    address = _parsed(url)
    if address is None:
        raise ConfigError(f"{who}: {url!r} is no address; write http://host:port/v1 or https://...; check {check}")
    try:
        status, found, data = asyncio.run(_post(address, headers, body, timeout))
    except TimeoutError as error:
        raise HttpFailure("timeout", f"no reply within {timeout:g} s", billed=True) from error
    except httpx2.HTTPError as error:
        detail = f"{address.netloc.decode()}: {_first_cause(error)}"
        raise HttpFailure("connection", detail, billed=not isinstance(error, _NOT_SENT)) from error
    payload: Any
    try:
        payload = json.loads(data)
    except (ValueError, RecursionError) as error:
        if status == 200:
            raise HttpFailure("bad_reply", f"not JSON: {data[:80]!r}", billed=True) from error
        payload = data[:1000].decode("utf-8", "replace")
    if status == 200:
        return payload
    message = f"{status}: {error_message(payload)}"
    if status in _FATAL:
        raise ConfigError(f"{who} at {url} {_FATAL[status]} ({message}); check {check}")
    if is_transient(status):
        reason = "rate_limited" if status == 429 else "server_error"
        raise HttpFailure(reason, message, retry_after=retry_after(found, clock))
    raise HttpFailure("rejected", message, again=False)


def _first_cause(error: BaseException) -> str:
    """What went wrong in the network, below the layers of the client."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below.exceptions[0] if isinstance(below, BaseExceptionGroup) else below
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def _parsed(url: str) -> httpx2.URL | None:
    try:
        address = httpx2.URL(url)
    except httpx2.InvalidURL:
        return None
    return address if address.scheme in ("http", "https") and address.host else None


async def _post(
    url: httpx2.URL, headers: Mapping[str, str], body: Mapping[str, Any], timeout: float
) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and the bytes of a reply."""
    content = json.dumps(body, ensure_ascii=True, allow_nan=False).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "guerdon", "Accept-Encoding": "identity", **headers}
    trust_env = url.host not in _LOOPBACK  # a proxy of the environment is not for this machine
    async with (
        asyncio.timeout(timeout),
        httpx2.AsyncClient(verify=_ssl_context(), trust_env=trust_env, timeout=None) as client,
        client.stream("POST", url, content=content, headers=headers) as reply,
    ):
        data = bytearray()
        async for piece in reply.aiter_bytes():
            data += piece
            if len(data) > MAX_BYTES:
                raise HttpFailure("bad_reply", f"longer than {MAX_BYTES} bytes", billed=True)
        return reply.status_code, reply.headers, bytes(data)


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    return ssl.create_default_context()


def error_message(payload: Any) -> str:
    """The message of an error reply, in one line."""
    if isinstance(payload, Mapping):
        error = payload.get("error", payload.get("detail", payload))
        payload = error.get("message", error) if isinstance(error, Mapping) else error
    return " ".join(str(payload or "no reason given").split())[:200]
