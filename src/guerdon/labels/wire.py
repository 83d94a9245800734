"""One HTTP request, watched by the clock: JSON out, JSON back, or the reason why not.

Redirects are not followed (a key would follow them), replies are bounded in size, and the time limit holds for the
whole request, however slowly a server drips. This module does not know what is asked, nor tries anything again.

    url = "http://localhost:8000/v1/chat/completions"
    payload = post_json(url, {}, {"model": "m"}, timeout=60, clock=Clock(), who="the judge", check="label.judge.model")
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from guerdon.errors import ConfigError
from guerdon.retry import Clock, asked_pause, is_transient

MOST_BYTES = 16_000_000
_FATAL = {401: "does not accept the key", 403: "does not allow this", 404: "has no such model or path"}
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class WireError(Exception):
    """There is no usable reply.

    Attributes:
        reason: a short stable word.
        again: whether trying again can help.
        asked: seconds that the server asks to wait; None where it does not say.
        billed: whether the server may have got and answered the request.
    """

    def __init__(
        self, reason: str, detail: str, *, again: bool = True, asked: float | None = None, billed: bool = False
    ) -> None:
        super().__init__(detail)
        self.reason, self.again, self.asked, self.billed = reason, again, asked, billed


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post_json(
    url: str, headers: Mapping[str, str], body: Mapping[str, Any], *, timeout: float, clock: Clock, who: str, check: str
) -> Any:
    """Send JSON, get JSON.

    Args:
        url: http or https.
        headers: beside the content type.
        body: plain JSON values.
        timeout: seconds of wall-clock.
        clock: what a date in `Retry-After` is compared with.
        who: is asked, for messages.
        check: what a user should look at where the address, the key or the model is wrong.

    Returns:
        The payload of a reply with status 200.

    Raises:
        WireError: no reply in time, no connection, another status, or a reply that is not JSON.
        ConfigError: the address is none, or the endpoint refuses the key, the model or the path.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{who}: {url!r} is no address; write http://host:port/v1 or https://...; check {check}")
    status, found, data = _exchange(url, headers, body, timeout)
    payload: Any
    try:
        payload = json.loads(data)
    except (ValueError, RecursionError) as error:
        if status == 200:
            raise WireError("bad_reply", f"not JSON: {data[:80]!r}", billed=True) from error
        payload = data[:1000].decode("utf-8", "replace")
    if status == 200:
        return payload
    words = f"{status}: {said(payload)}"
    if status in _FATAL:
        raise ConfigError(f"{who} at {url} {_FATAL[status]} ({words}); check {check}")
    if is_transient(status):
        reason = "rate_limited" if status == 429 else "server_error"
        raise WireError(reason, words, asked=asked_pause(found, clock))
    raise WireError("rejected", words, again=False)


def _exchange(
    url: str, headers: Mapping[str, str], body: Mapping[str, Any], timeout: float
) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers by names in lower case, and the bytes of a reply."""
    parts = urlsplit(url)
    deadline = time.monotonic() + timeout
    request = urllib.request.Request(  # noqa: S310 (http and https only, see above)
        url,
        data=json.dumps(body, ensure_ascii=True, allow_nan=False).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "guerdon", **headers},
        method="POST",
    )
    proxies = [urllib.request.ProxyHandler({})] if parts.hostname in _LOOPBACK else []
    opener = urllib.request.build_opener(_NoRedirect, *proxies)
    try:
        try:
            reply = opener.open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            reply = error
        with reply:
            data = _read(reply, deadline)
            status, found = int(reply.status or 0), {name.lower(): value for name, value in reply.headers.items()}
    except TimeoutError as error:
        raise WireError("timeout", f"no reply within {timeout:g} s", billed=True) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise WireError("timeout", f"no connection within {timeout:g} s", billed=True) from error
        raise WireError("connection", f"{parts.netloc}: {error.reason}", billed=False) from error
    except (http.client.HTTPException, OSError) as error:
        raise WireError("connection", f"{parts.netloc}: {type(error).__name__}: {error}", billed=True) from error
    return status, found, data


def _read(reply: Any, deadline: float) -> bytes:
    """The whole body, if it comes in time and is not too long."""
    parts, size = [], 0
    while piece := reply.read1(1 << 16):
        parts.append(piece)
        size += len(piece)
        if time.monotonic() > deadline:
            raise TimeoutError
        if size > MOST_BYTES:
            raise WireError("bad_reply", f"longer than {MOST_BYTES} bytes", billed=True)
    wanted = reply.headers.get("Content-Length", "")
    if wanted.isdecimal() and size < int(wanted):
        raise WireError("connection", f"the reply broke off after {size} of {wanted} bytes", billed=True)
    return b"".join(parts)


def said(payload: Any) -> str:
    """What an error reply says, in one line."""
    if isinstance(payload, Mapping):
        error = payload.get("error", payload.get("detail", payload))
        payload = error.get("message", error) if isinstance(error, Mapping) else error
    return " ".join(str(payload or "no reason given").split())[:200]
