"""One request to an endpoint of a language model, over connections that all calls of this process share.

Redirects are not followed (a key would follow them), replies are bounded in size, and the time limit holds for the
whole request, however slowly a server sends. All requests run in one event loop; a connection is used again.

Endpoints of reasoning models reject `max_tokens`, `temperature` and others with status 400. `AcceptedSettings` learns
which: a setting that is rejected by name is left out of all later requests to that endpoint; the token limit is first
sent under its other name. A rejected value (a limit that is too large) is an error like any other.

    url = endpoint("https://host/openai/deployments/d?api-version=2024-10-21", "/chat/completions")
    payload = post_json(url, bearer(url, key), body, timeout=60.0, clock=Clock(), who="the judge", check="the key")
    accepted = AcceptedSettings("the judge", leave_out=("top_p",))
    body = accepted.fit({"model": "m", "messages": [], "max_tokens": 64, "temperature": 0.0, "top_p": 1.0})
    accepted.learn(body, 400, {"error": {"message": "Unsupported parameter: 'max_tokens' ..."}})   # True: send again
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import ssl
import threading
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, get_args

import httpx2

from guerdon.endpoints.chat_replies import error_in, fields_of, is_flagged, is_spent, read_payload
from guerdon.errors import ConfigError
from guerdon.network.retry import LOOPBACK, Clock, HttpFailure, error_message, is_transient, read_reply, retry_after
from guerdon.processes.async_calls import run_async
from guerdon.processes.progress import log_line
from guerdon.settings.label import LIMITS, OptionalSetting

_OPTIONAL = get_args(OptionalSetting)
_REFUSED = re.compile(
    r"unsupported|not[ _]support|n't support|no longer support|unavailable|deprecated|been removed|fixed (to|at) "
    r"|(not|n't) (an? |one of (the )?)?(accept|allow|permit|recogni[sz]e|available|expected|configurable|valid [fpa])"
    r"|(not|n't) be (set|used|specified|changed|given)|(un(recogni[sz]ed|known|expected|permitted)|illegal)[ _]"
    r"|invalid (field|param|arg)|extra[ _](input|field|forbidden)|extraneous|additional propert|cannot find field"
    r"|only (the default|\S+ is (supported|allowed))|may only be set to|must be \S+ (for|with) this model",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"too (large|high|small|low|long|many)|at (most|least)|maximum|minimum|exceed|(greater|less|smaller|larger) than"
    r"|[<>]=?|between|out of range|non-negative",
    re.IGNORECASE,
)
_OTHERS = re.compile(  # the names that follow are of accepted settings
    r"(?<!not )\b(allowed|supported|valid|accepted|available|permitted|expected) "
    r"(param\w*|fields|arguments|names|properties|keys|one of)\b|\bdid you mean\b|\buse\b",
    re.IGNORECASE,
)
_NOT_BOTH = re.compile(r"(not|n't) both\b|only one\b|mutually exclusive|\bboth\b.*(not|n't)\b", re.IGNORECASE)
_ECHOES = ("input", "ctx", "url", "request", "body")  # fields of an error that repeat the request
NEUTRAL = {"repetition_penalty": 1.0}
"""Values that disable what vLLM and SGLang read from a checkpoint's generation config, at any temperature."""
NEUTRAL_WARM = {"top_p": 1.0, "top_k": -1, "min_p": 0.0}
"""The same for settings that matter above temperature 0."""


def neutral(temperature: float) -> dict[str, Any]:
    """Settings that keep an endpoint from applying a checkpoint's generation config."""
    return {**NEUTRAL, **(NEUTRAL_WARM if temperature > 0 else {})}


class AcceptedSettings:
    """Which request settings an endpoint accepts. Thread-safe.

    Args:
        who: the endpoint, for messages.
        leave_out: settings that are never sent.
        needs_limit: keep a limit of tokens in every request, as costs are limited.
    """

    def __init__(self, who: str, leave_out: tuple[str, ...] = (), *, needs_limit: bool = False) -> None:
        self._who, self._needs_limit = who, needs_limit
        self._lock = threading.Lock()
        self._instead: dict[str, str | None] = dict.fromkeys(leave_out)

    def left_out(self, name: str) -> bool:
        """Whether requests are sent without this setting."""
        return name in self._instead and self._instead[name] is None

    def fit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A request with the settings that the endpoint accepts, as far as known."""
        known = dict(self._instead)
        fitted = ((known.get(name, name), value) for name, value in body.items())
        return {name: value for name, value in fitted if name is not None and known.get(name, name) is not None}

    def learn(self, sent: Mapping[str, Any], status: int, payload: Any) -> bool:
        """Learn from an error reply.

        Args:
            sent: the request.
            status: of the reply.
            payload: of the reply.

        Returns:
            Whether `fit` now changes the request, so that it should be sent again.
        """
        if status not in (400, 422):
            return False
        for name in sorted(refused_settings(payload) & sent.keys()):
            with self._lock:
                if name in self._instead:
                    continue
                others = [one for one in LIMITS if name in LIMITS and one not in {name, *self._instead}]
                if self._needs_limit and name in LIMITS and not others:
                    continue
                self._instead[name] = other = others[0] if others else None
            idle = {**NEUTRAL, **NEUTRAL_WARM, "stream": False}  # an endpoint without these needs no neutral value
            if sent[name] != idle.get(name):
                how = f"it is sent as {other}" if other else "it is left out, and the endpoint's own value applies"
                log_line(f"{self._who} does not accept {name}: {how}")
        return self.fit(sent) != dict(sent)


def refused_settings(payload: Any) -> set[str]:
    """Settings of `OptionalSetting` that an error reply names as not supported."""
    found: set[str] = set()
    for words, where in _complaints(payload):
        if _NOT_BOTH.search(words) and len(both := _named(words)) > 1:
            found |= both - {"temperature", "max_completion_tokens"}
        elif _REFUSED.search(words) and not _VALUE.search(words):
            shown, _, rest = words.partition(" instead of ")
            found |= _named(where) if where else _named(_OTHERS.split(shown, maxsplit=1)[0]) or _named(rest)
    return found


def _named(text: str) -> set[str]:
    """Settings in a text, however their words are joined (maxTokens, max_tokens)."""
    joined = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()
    return {name for name in _OPTIONAL if re.search(rf"(?<![a-z0-9_]){name}(?![a-z0-9_])", joined)}


def _complaints(payload: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Each message of an error reply with its codes, and the field that it concerns, if it names one."""
    if depth > 12:
        return
    if isinstance(payload, str):
        try:
            inner = json.loads(payload)
        except (ValueError, RecursionError):
            inner = None
        if isinstance(inner, Mapping | list):
            yield from _complaints(inner, depth + 1)
        else:
            yield payload, ""
    elif isinstance(payload, list):
        for one in payload:
            yield from _complaints(one, depth + 1)
    elif isinstance(payload, Mapping):
        kept = {key: value for key, value in payload.items() if key not in _ECHOES}
        words = [value for value in kept.values() if isinstance(value, str) and not value.startswith(("{", "["))]
        about = kept.get("param") or kept.get("loc") or kept.get("parameter") or kept.get("field") or ""
        where = str(about[-1] if isinstance(about, list) else about)
        yield " ".join(words), "" if where == "body" else where
        for value in kept.values():
            if value is not about and (isinstance(value, Mapping | list) or str(value).startswith(("{", "["))):
                yield from _complaints(value, depth + 1)


MAX_BYTES = 16_000_000  # of a reply
KEEP_ALIVE = 1.5  # seconds that an idle connection is kept; servers close theirs after 2 or 5
_FATAL = {401: "does not accept the key", 403: "does not allow this", 404: "has no such model or path"}
_NOT_BEGUN = {425, 429, 501, 503, 529}  # only these statuses say that no text was generated and charged
_NOT_SENT = (httpx2.ConnectError, httpx2.ProxyError, httpx2.WriteError)


def endpoint(base_url: str, path: str) -> str:
    """The address of a path below a base address, which may have a query, or end with the path already."""
    address, mark, query = base_url.partition("?")
    address = address.rstrip("/")
    return (address if address.endswith(path) else address + path) + mark + query


class ReplyModels:
    """How many replies are of which model, as an endpoint says; a change is logged. Thread-safe.

    Attributes:
        counts: replies by model.

    Args:
        who: the endpoint, for messages.
    """

    def __init__(self, who: str) -> None:
        self.counts: Counter[str] = Counter()
        self._who, self._lock = who, threading.Lock()

    def count(self, model: str | None) -> None:
        """Count a reply; None: the endpoint does not say of which model it is."""
        if model is None:
            return
        with self._lock:
            if self.counts and model not in self.counts:
                log_line(f"{self._who}: replies are now of the model {model}, before of {', '.join(self.counts)}")
            self.counts[model] += 1


def bearer(base_url: str, key: str | None) -> dict[str, str]:
    """The header with the key of a chat completions endpoint; Azure has its own."""
    if not key:
        return {}
    address = _parsed(base_url)
    azure = address is not None and (
        "api-version" in address.params or address.host.endswith((".azure.com", ".azure.us", ".azure-api.net"))
    )
    return {"api-key": key} if azure else {"Authorization": f"Bearer {key}"}


def post_json(
    url: str,
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    *,
    timeout: float,
    clock: Clock,
    who: str,
    check: str,
    accepted: AcceptedSettings | None = None,
) -> Any:
    """The payload of a reply with status 200.

    Args:
        url: http or https.
        headers: besides the content type.
        body: plain JSON values.
        timeout: seconds of wall-clock.
        clock: what a date in `Retry-After` is compared with.
        who: the endpoint, for messages.
        check: the settings to check if the address, the key or the model is wrong, for messages.
        accepted: which settings the endpoint accepts; the request is repeated without those it rejects by name.

    Raises:
        HttpFailure: no reply in time, no connection, another status, or a reply that is not JSON.
        ConfigError: the address is invalid, or the endpoint refuses the key, the model or the path.
    """
    address = _parsed(url)
    if address is None:
        raise ConfigError(f"{who}: {url!r} is not an address; write http://host:port/v1 or https://...; check {check}")
    sent = accepted.fit(body) if accepted else body
    try:
        status, found, payload, billed = run_async(_post(address, headers, sent, timeout))
        while accepted and accepted.learn(sent, status, payload):
            sent = accepted.fit(body)
            status, found, payload, billed = run_async(_post(address, headers, sent, timeout))
    except TimeoutError as error:
        raise HttpFailure("timeout", f"no reply within {timeout:g} s", billed=True) from error
    except httpx2.HTTPError as error:
        detail = f"{address.netloc.decode()}: {_first_cause(error)}"
        raise HttpFailure("connection", detail, billed=not isinstance(error, _NOT_SENT)) from error
    if status == 200:
        return payload
    message = f"{status}: {error_message(payload, 200)}"
    asked = retry_after({**dict(fields_of(payload)), **found}, clock, status)
    if is_spent(status, payload, asked):
        raise ConfigError(
            f"{who} at {url}: the quota or credit there is spent ({message}); add credit, or give another endpoint, "
            "and start the same command again to continue"
        )
    if is_flagged(status, payload):
        raise HttpFailure("refusal", message, again=False, billed=billed)
    if status in _FATAL:
        raise ConfigError(f"{who} at {url} {_FATAL[status]} ({message}); check {check}")
    if is_transient(status):
        reason = "rate_limited" if status == 429 else "server_error"
        raise HttpFailure(reason, message, retry_after=asked, billed=billed or status not in _NOT_BEGUN)
    raise HttpFailure("rejected", message, again=False, billed=billed)


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
) -> tuple[int, Mapping[str, str], Any, bool]:
    """Status, headers and payload of a reply, and whether it may have been paid for."""
    content = json.dumps(body, ensure_ascii=True, allow_nan=False).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "guerdon", "Accept-Encoding": "identity", **headers}
    proxies = None if url.host in LOOPBACK else tuple(sorted(urllib.request.getproxies().items()))
    connections = _connections(asyncio.get_running_loop(), proxies)
    if url.netloc in connections.broken:
        headers["Connection"] = "close"
    async with connections.one() as client:
        try:
            opening = client.stream("POST", url, content=content, headers=headers)
            status, found, payload = await read_reply(opening, timeout, MAX_BYTES, read_payload)
        except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError):
            connections.broken.add(url.netloc)
            raise
    error = error_in(payload) if status == 200 else None
    return (status, found, payload, status == 200) if error is None else (error[0], found, error[1], True)


class _Connections:
    """Clients with one connection each, as a client with hundreds of connections searches all of them per request.

    Attributes:
        broken: servers that closed a connection unexpectedly; each request to them uses a new one.

    Args:
        loop: in which they are used.
        trust_env: whether they use the proxies of the environment.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, trust_env: bool) -> None:
        self._loop, self._trust_env = loop, trust_env
        self._idle: list[httpx2.AsyncClient] = []
        self._busy = 0
        self.broken: set[bytes] = set()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx2.AsyncClient]:
        """A client for exclusive use, the most recently used one if any is idle."""
        client = self._idle.pop() if self._idle else self._new()
        self._busy += 1
        try:
            yield client
        finally:
            self._busy -= 1
            self._idle.append(client)
            if not self._busy:
                self._loop.call_later(KEEP_ALIVE, self._close)

    def _new(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            verify=_ssl_context(), trust_env=self._trust_env, timeout=None,
            limits=httpx2.Limits(max_connections=1, keepalive_expiry=KEEP_ALIVE),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # requests are independent
        )  # fmt: skip

    def _close(self) -> None:
        """Close all connections, unless calls are under way again."""
        if not self._busy:
            closing, self._idle = self._idle, []
            self._closing = [self._loop.create_task(client.aclose()) for client in closing]


@functools.lru_cache(maxsize=8)
def _connections(loop: asyncio.AbstractEventLoop, proxies: tuple[tuple[str, str], ...] | None) -> _Connections:
    """Those of an event loop and the proxies of the environment; None: without proxies."""
    return _Connections(loop, proxies is not None)


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    return ssl.create_default_context()
