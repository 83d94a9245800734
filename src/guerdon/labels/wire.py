"""One HTTP request, watched by the clock: JSON out, status and JSON back, or the reason why not.

Redirects are not followed (a key would follow them), replies are bounded in size, and the time limit holds for the
whole request, however slowly a server drips. This module does not know what is asked or how often.

    status, headers, payload = post_json("http://localhost:8000/v1/chat/completions", {}, {"model": "m"}, timeout=60)
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

MOST_BYTES = 16_000_000
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class WireError(Exception):
    """There is no reply.

    Attributes:
        reason: `timeout`, `connection` or `bad_reply`.
        sent: whether the server may have got and answered the request.
    """

    def __init__(self, reason: str, detail: str, *, sent: bool) -> None:
        super().__init__(detail)
        self.reason, self.sent = reason, sent


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post_json(
    url: str, headers: Mapping[str, str], body: Mapping[str, Any], *, timeout: float
) -> tuple[int, Mapping[str, str], Any]:
    """Send JSON, get JSON.

    Args:
        url: http or https.
        headers: beside the content type; names of the reply's are lower case.
        body: plain JSON values.
        timeout: seconds of wall-clock.

    Returns:
        Status, headers, and the payload; None where an error status comes with something else than JSON.

    Raises:
        WireError: no reply in time, no connection, or a reply with status 200 that is not JSON.
        ConfigError: the address is none.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"label.judge.base_url: {url!r} is no address; write http://host:port/v1 or https://...")
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
        raise WireError("timeout", f"no reply within {timeout:g} s", sent=True) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise WireError("timeout", f"no connection within {timeout:g} s", sent=True) from error
        raise WireError("connection", f"{parts.netloc}: {error.reason}", sent=False) from error
    except (http.client.HTTPException, OSError) as error:
        raise WireError("connection", f"{parts.netloc}: {type(error).__name__}: {error}", sent=True) from error
    try:
        return status, found, json.loads(data)
    except ValueError as error:
        if status == 200:
            raise WireError("bad_reply", f"not JSON: {data[:80]!r}", sent=True) from error
        return status, found, None


def _read(reply: Any, deadline: float) -> bytes:
    """The whole body, if it comes in time and is not too long."""
    parts, size = [], 0
    while piece := reply.read1(1 << 16):
        parts.append(piece)
        size += len(piece)
        if time.monotonic() > deadline:
            raise TimeoutError
        if size > MOST_BYTES:
            raise WireError("bad_reply", f"longer than {MOST_BYTES} bytes", sent=True)
    wanted = reply.headers.get("Content-Length", "")
    if wanted.isdecimal() and size < int(wanted):
        raise WireError("connection", f"the reply broke off after {size} of {wanted} bytes", sent=True)
    return b"".join(parts)


def said(payload: Any) -> str:
    """What an error reply says, in one line."""
    error = payload.get("error", payload) if isinstance(payload, Mapping) else None
    words = error.get("message") if isinstance(error, Mapping) else error
    return " ".join(str(words or "no reason given").split())[:200]


def pause_of(text: str | None) -> float | None:
    """A `retry-after` in seconds, at most 600; None for a date or nonsense."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return min(max(seconds, 0.0), 600.0) if seconds == seconds else None
