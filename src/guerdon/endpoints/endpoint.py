"""One request to an endpoint of a language model, over connections that all calls of this process share.

Redirects are not followed (a key would follow them), replies are bounded in size, and the time limit holds for the
whole request, however slowly a server sends. All requests run in one event loop; a connection is used again.

Endpoints of reasoning models reject `max_tokens`, `temperature` and others with status 400 or 422. `AcceptedSettings`
learns which from the fields of the error: a setting that it names, with a code that says that it is not supported, is
left out of all later requests to that endpoint, and the token limit is first sent under its other name. An error that
names another field, or has another code (a limit that is too large), is an error like any other. Where no field is
named and no request has been accepted yet, optional settings are left out one after another in the order of `GUESSES`;
what the first accepted request lacks is remembered.

    url = endpoint("https://host/openai/deployments/d?api-version=2024-10-21", "/chat/completions")
    payload = post_json(url, bearer(url, key), body, timeout=60.0, clock=Clock(), who="the judge", check="the key")
    accepted = AcceptedSettings("the judge", leave_out=("top_p",))
    body = accepted.fit({"model": "m", "messages": [], "max_tokens": 64, "temperature": 0.0, "top_p": 1.0})
    accepted.changes(body, {}, 400, {"error": {"param": "max_tokens", "code": "unsupported_parameter"}})
    # {"max_tokens": "max_completion_tokens"}
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import ssl
import threading
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
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
NOT_SUPPORTED = {  # codes of errors about a setting that an endpoint does not have, or does not let choose
    "unsupported_parameter",  # OpenAI
    "unsupported_value",  # OpenAI
    "unknown_parameter",  # OpenAI
    "extra_forbidden",  # FastAPI: vLLM, Mistral
}
GUESSES = (
    "repetition_penalty",
    "min_p",
    "top_k",
    "top_p",
    "stream",
    "seed",
    "max_tokens",
    "temperature",
    "max_completion_tokens",
)
"""The order in which settings are left out where an error names none: those first whose value changes least."""
_FIELDS = ("param", "loc", "parameter", "field")  # of an error: which field of the request it is about
_ECHOES = ("input", "ctx", "url", "request", "body")  # fields of an error that repeat the request
MAX_FAILED_GUESSES = 3  # requests that are rejected without each guess, after which none is made
NEUTRAL = {"repetition_penalty": 1.0}
"""Values that disable what vLLM and SGLang read from a checkpoint's generation config, at any temperature."""
NEUTRAL_WARM = {"top_p": 1.0, "top_k": -1, "min_p": 0.0}
"""The same for settings that matter above temperature 0."""


def neutral(temperature: float) -> dict[str, Any]:
    """Settings that keep an endpoint from applying a checkpoint's generation config."""
    return {**NEUTRAL, **(NEUTRAL_WARM if temperature > 0 else {})}


Changes = Mapping[str, str | None]
"""By setting the name under which it is sent; None: it is left out."""


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
        self._some_accepted = False
        self._failed_guesses = 0

    def left_out(self, name: str) -> bool:
        """Whether requests are sent without this setting."""
        return name in self._instead and self._instead[name] is None

    def fit(self, body: Mapping[str, Any], guessed: Changes | None = None) -> dict[str, Any]:
        """A request with the settings that the endpoint accepts, as far as known.

        Args:
            body: the request.
            guessed: more changes, on trial.
        """
        instead = {**self._instead, **(guessed or {})}
        fitted = {}
        for name, value in body.items():
            sent_as = instead.get(name, name)
            if sent_as is not None:
                sent_as = instead.get(sent_as, sent_as)  # the other name of a limit may be refused, too
            if sent_as is not None:
                fitted[sent_as] = value
        return fitted

    def changes(self, sent: Mapping[str, Any], guessed: Changes, status: int, payload: Any) -> Changes:
        """What to change in a request because of an error reply; empty where the error is not about a setting.

        What the error names is remembered at once, a guess by `accept`.

        Args:
            sent: the request.
            guessed: the changes on trial.
            status: of the reply.
            payload: of the reply.
        """
        if status not in (400, 422):
            return {}
        named = list(_named_fields(payload))
        if named:
            refused = {field for field, code in named if code in NOT_SUPPORTED and field in _OPTIONAL}
            changes = self._without(sorted(refused & sent.keys()), guessed)
            self._remember(changes, sent)
            return changes
        if self._some_accepted or self._failed_guesses >= MAX_FAILED_GUESSES:
            return {}
        for name in GUESSES:
            if name in sent and (changes := self._without([name], guessed)):
                return changes
        self._failed_guesses += 1
        return {}

    def accept(self, body: Mapping[str, Any], guessed: Changes) -> None:
        """Remember that a request was accepted with these changes."""
        self._some_accepted = True
        self._remember(guessed, body)

    def _without(self, names: Sequence[str], guessed: Changes) -> Changes:
        """Changes that leave settings out; a limit of tokens is first sent under its other name."""
        changes: dict[str, str | None] = {}
        for name in names:
            gone = {name, *self._instead, *guessed, *changes}
            others = [one for one in LIMITS if name in LIMITS and one not in gone]
            if others:
                changes[name] = others[0]
            elif name not in LIMITS or not self._needs_limit:
                changes[name] = None
        return changes

    def _remember(self, changes: Changes, body: Mapping[str, Any]) -> None:
        idle = {**NEUTRAL, **NEUTRAL_WARM, "stream": False}  # an endpoint without these needs no neutral value
        with self._lock:
            for name, other in changes.items():
                if name in self._instead:
                    continue
                self._instead[name] = other
                if name in body and body[name] == idle.get(name):
                    continue
                how = f"it is sent as {other}" if other else "it is left out, and the endpoint's own value applies"
                log_line(f"{self._who} does not accept {name}: {how}")


def _named_fields(payload: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """The fields of the request that an error reply names, each with the code of its error."""
    if depth > 12:
        return
    if isinstance(payload, str) and payload.startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            yield from _named_fields(json.loads(payload), depth + 1)
    elif isinstance(payload, list):
        for one in payload:
            yield from _named_fields(one, depth + 1)
    elif isinstance(payload, Mapping):
        for key in _FIELDS:
            field = payload.get(key)
            if isinstance(field, list) and field:
                field = field[-1]
            if isinstance(field, str) and field:
                yield field, str(payload.get("code") or payload.get("type"))
        for key, value in payload.items():
            if key not in _ECHOES:
                yield from _named_fields(value, depth + 1)


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
        accepted: which settings the endpoint accepts; the request is repeated without those it rejects.

    Raises:
        HttpFailure: no reply in time, no connection, another status, or a reply that is not JSON.
        ConfigError: the address is invalid, or the endpoint refuses the key, the model or the path.
    """
    address = _parsed(url)
    if address is None:
        raise ConfigError(
            f"{who}: {url!r} is not an address; write http://host:port/v1 or https://...; check {check}", key="base_url"
        )
    try:
        status, found, payload, billed = _post_accepted(address, headers, body, timeout, accepted)
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


def _post_accepted(
    address: httpx2.URL,
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    timeout: float,
    accepted: AcceptedSettings | None,
) -> tuple[int, Mapping[str, str], Any, bool]:
    """As `_post`; the request is repeated without the settings that the endpoint rejects, which is remembered."""
    if accepted is None:
        return run_async(_post(address, headers, body, timeout))
    guessed: dict[str, str | None] = {}
    sent = accepted.fit(body)
    reply = run_async(_post(address, headers, sent, timeout))
    status, _, payload, _ = reply
    while not is_flagged(status, payload) and not is_spent(status, payload, None):
        changes = accepted.changes(sent, guessed, status, payload)
        if not changes:
            break
        guessed |= changes
        sent = accepted.fit(body, guessed)
        reply = run_async(_post(address, headers, sent, timeout))
        status, _, payload, _ = reply
    if status == 200:
        accepted.accept(body, guessed)
    return reply


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
