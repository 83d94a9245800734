"""HTTP requests: one retry policy, and one way to read replies, for judges, endpoints and reward servers.

A transient failure is tried again after a pause: what the server asks for in `Retry-After` (or `retry-after-ms`), else
a random one that doubles. A pause holds no slot: other calls use it. With the defaults the pauses of a call add up to
at least 50 s, longer than a server takes to restart. Clock and random generator are parameters, for tests.

    pool = RequestPool(Retry(tries=8), slots=4)
    todo = deque([("a", lambda seconds_left: Attempt("done"))])
    for name, result in pool.run(todo): ...                 # as they come
"""

from __future__ import annotations

import asyncio
import heapq
import html
import json
import logging
import math
import os
import random
import re
import resource
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from guerdon.errors import ConfigError
from guerdon.processes.progress import log_once
from guerdon.secrets import hide, remember_environment
from guerdon.types import Failure

if TYPE_CHECKING:
    import httpx2  # settings import this module, and have no use for an HTTP client

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})  # hosts that a proxy of the environment is not for
TRIES = 8  # of a call, unless a setting says otherwise
OPEN_PER_SLOT = 4  # open calls per slot: some wait for their next try while others use the slots
_TRANSIENT = frozenset({408, 425, 429})  # of the 4xx; every 5xx is too
_JITTER = 1.1  # clients that a server asked to wait come back spread over a tenth of that time
_MIN_SHARE = 0.75  # of the longest that a pause may be
_MESSAGES = (  # fields of an error reply, the most specific first
    "error_description", "message", "detail", "details", "msg", "error", "errors", "title", "reason", "description",
    "fault", "faultstring", "code", "status", "type",
)  # fmt: skip
_PAGE = re.compile(r"<[!?a-z/]", re.IGNORECASE)
_TITLE = re.compile(r"<(?:title|h1)\b[^>]*>([^<]*\w[^<]*)<", re.IGNORECASE)
_TAG = re.compile(r"<(?:style|script)\b.*?</(?:style|script)>|<[^>]*>", re.IGNORECASE | re.DOTALL)
_RESETS = ("x-ratelimit-reset", "ratelimit-reset", "x-ratelimit-reset-requests", "x-ratelimit-reset-tokens")
_SPARE_FILES = 32  # for everything but connections
_EPOCH = 1e9  # seconds; a larger number is a date, above a hundred times that in milliseconds or less
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")

_http = logging.getLogger("httpx2")
if _http.level == logging.NOTSET:  # else a program that logs at INFO gets a line per request
    _http.setLevel(logging.WARNING)

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True)
class Clock:
    """Time as a client sees it; tests bring their own.

    Attributes:
        now: seconds that only ever grow.
        sleep: wait so many seconds, in a thread.
        wall: seconds since 1970, to read dates with.
        sleep_async: wait so many seconds, in an event loop.
    """

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    wall: Callable[[], float] = time.time
    sleep_async: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """The result of one try.

    Attributes:
        result: of the call, if this is its last try.
        again: whether another try may give a better one.
        retry_after: seconds that the server asks to wait; None where it does not say.
    """

    result: T
    again: bool = False
    retry_after: float | None = None


@dataclass(frozen=True)
class Retry:
    """The policy: how many tries, and the pauses between them.

    Attributes:
        tries: in all.
        first: upper end of the first pause, in seconds; it doubles with every try, up to `longest`.
        longest: upper end of any pause that the server did not ask for.
        most_asked: longest pause that a server may ask for; more ends the call.
    """

    tries: int = TRIES
    first: float = 1.0
    longest: float = 20.0
    most_asked: float = 600.0

    def next_pause(self, made: int, attempt: Attempt[T], left: float, rng: random.Random) -> float | str:
        """Seconds until the next try of a call; or why there is none, as an addition to a message.

        Args:
            made: tries so far.
            attempt: the last of them.
            left: seconds until the deadline of the call.
            rng: random numbers.

        Returns:
            What the server asks for and up to a tenth more; else between three quarters and all of
            `first` * 2^(made - 1), as far as `longest` allows.
        """
        if not attempt.again or made >= self.tries:
            return ""
        if attempt.retry_after:
            pause = attempt.retry_after * rng.uniform(1.0, _JITTER)
            if attempt.retry_after > self.most_asked or pause >= left:
                return f"; the server asks to wait {attempt.retry_after:.6g} s; no time for try {made + 1}"
            return pause
        most = min(self.longest, self.first * 2 ** min(made - 1, 30))
        pause = rng.uniform(_MIN_SHARE * most, most)
        return pause if pause < left else f"; no time for try {made + 1}"


async def retry_async(
    one_try: Callable[[float], Awaitable[Attempt[T]]],
    retry: Retry,
    until: float,
    clock: Clock,
    slots: asyncio.Semaphore,
    rng: random.Random,
    late: Callable[[T | None, str], T],
) -> T:
    """Try until there is a result, no try is left, or no time.

    Args:
        one_try: makes a try, in the seconds that it gets.
        retry: the policy.
        until: time of the clock after which there are no more tries.
        clock: time.
        slots: one is held during a try, none during a pause.
        rng: random numbers.
        late: the result of a call that has no time left, from that of its last try (None: there was none) and a note.
    """
    result: T | None = None
    made = 0
    while True:
        async with slots:
            left = until - clock.now()
            if left <= 0:
                return late(result, f"; no time left for try {made + 1}")
            attempt = await one_try(left)
        result, made = attempt.result, made + 1
        pause = retry.next_pause(made, attempt, until - clock.now(), rng)
        if isinstance(pause, str):
            return late(result, pause) if pause else result
        await clock.sleep_async(pause)


@dataclass(order=True)
class _Call(Generic[K, T]):
    due: float  # when its next try may start
    number: int
    key: K = field(compare=False)
    one_try: Callable[[float], Attempt[T]] = field(compare=False)
    until: float = field(compare=False)
    made: int = field(default=0, compare=False)


Calls = deque[tuple[K, Callable[[float], Attempt[T]]]]
"""Calls by name; a try gets the seconds left for it."""


@dataclass
class RequestPool:
    """Many calls, several at a time, in threads.

    When a server asks one call to wait, none starts meanwhile: it counts what they send together.

    Attributes:
        retry: the policy.
        slots: tries under way at a time.
        clock: time.
        limit: seconds for a call with all its tries and pauses.
        per_minute: start no more tries than these; None: no limit.
        rng: random numbers.
    """

    retry: Retry
    slots: int
    clock: Clock = field(default_factory=Clock)
    limit: float = math.inf
    per_minute: float | None = None
    rng: random.Random = field(default_factory=random.Random)
    _free_at: float = -math.inf  # when the next try may start
    _begun: int = 0

    def run(self, todo: Calls[K, T | Failure]) -> Generator[tuple[K, T | Failure]]:
        """Results, as they come; closing the iterator begins nothing more and waits for what is under way.

        Args:
            todo: is emptied, and may be added to until the iterator ends.

        Raises:
            ConfigError: no more threads can be started.
        """
        waiting: list[_Call[K, T | Failure]] = []  # a heap
        running: dict[Future[Attempt[T | Failure]], _Call[K, T | Failure]] = {}
        over: SimpleQueue[Future[Attempt[T | Failure]]] = SimpleQueue()
        slots = affordable(self.slots)
        pool = ThreadPoolExecutor(slots)
        try:
            while todo or waiting or running:
                now, wake = self.clock.now(), math.inf
                while len(running) < slots:
                    found = self._start(todo, waiting, len(running), now)
                    if isinstance(found, float):
                        wake = found
                        break
                    future = _submitted(pool, found.one_try, found.until - now)
                    running[future] = found
                    future.add_done_callback(over.put)
                if not running:
                    self.clock.sleep(wake - now)
                    continue
                try:
                    future = over.get(timeout=None if math.isinf(wake) else max(wake - now, 0.0))
                except Empty:
                    continue
                call, attempt, now = running.pop(future), future.result(), self.clock.now()
                call.made += 1
                pause = self.retry.next_pause(call.made, attempt, call.until - now, self.rng)
                if isinstance(pause, str):
                    last = attempt.result
                    yield call.key, Failure(last.reason, last.detail + pause) if isinstance(last, Failure) else last
                    continue
                if attempt.retry_after:
                    self._free_at = max(self._free_at, now + attempt.retry_after)
                call.due = now + pause
                heapq.heappush(waiting, call)
        finally:
            pool.shutdown(cancel_futures=True)

    def _start(self, todo: Calls[K, T], waiting: list[_Call[K, T]], running: int, now: float) -> _Call[K, T] | float:
        """The call whose next try starts now; if there is none, when there may be one."""
        due = waiting[0].due if waiting else math.inf
        fresh = bool(todo) and len(waiting) + running < self.slots * OPEN_PER_SLOT
        at = max(self._free_at, now if fresh else due)
        if at > now:
            return at
        if self.per_minute:
            self._free_at = now + 60.0 / self.per_minute
        if due <= now:
            return heapq.heappop(waiting)
        self._begun += 1
        return _Call(now, self._begun, *todo.popleft(), now + self.limit)


def _submitted(pool: ThreadPoolExecutor, one_try: Callable[[float], Attempt[T]], left: float) -> Future[Attempt[T]]:
    try:
        return pool.submit(one_try, left)
    except RuntimeError as error:
        raise ConfigError(
            f"requests at a time need a thread each, and this process gets no more ({error}); lower concurrency, or "
            "raise the limit of processes (`ulimit -u`, or that of the container)",
            key="concurrency",
        ) from error


def affordable(slots: int) -> int:
    """As many of the slots as can have a connection each within the limit of open files; fewer are logged once."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir("/dev/fd"))
    except OSError:
        used = _SPARE_FILES
    room = max(most - used - _SPARE_FILES, 1)
    if most == resource.RLIM_INFINITY or slots <= room:
        return slots
    needed = slots + used + _SPARE_FILES
    log_once(
        f"{room} instead of {slots} requests at a time, because this process may open {most} files: "
        f"`ulimit -n {needed}` before the command allows all of them"
    )
    return room


def is_transient(status: int) -> bool:
    """Whether a status code may be another one later."""
    return status in _TRANSIENT or status >= 500


def retry_after(headers: Mapping[str, str], clock: Clock, status: int = 429) -> float | None:
    """Seconds that a reply asks to wait; None where it does not say, or nonsense.

    Args:
        headers: found by names in lower case: `retry-after-ms` in milliseconds; `retry-after` in seconds, whole or not,
            or as a date (also in seconds or milliseconds since 1970); with status 429 the end of a limit that is used
            up, `x-ratelimit-reset` and its relatives, also as a duration (`6m0s`). A date is compared with the `date`
            of the reply, as the clocks of two machines differ.
        clock: what a date is compared with in a reply without one.
        status: of the reply.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return max(milliseconds / 1000, 0.0)
    sent = _date(headers.get("date", ""))
    now = clock.wall() if sent is None else sent
    found = [_seconds(headers.get(name, ""), now) for name in ("retry-after", "retrydelay")]
    if status == 429:
        resets = [reset for reset in _RESETS if not _number(headers.get(reset.replace("reset", "remaining"), "0"))]
        found.append(max((s for reset in resets if (s := _seconds(headers.get(reset, ""), now))), default=None))
    return next((max(seconds, 0.0) for seconds in found if seconds is not None), None)


def _seconds(text: str, now: float) -> float | None:
    """Seconds from `now`, from a number, a duration or a date."""
    number = _number(text)
    if number is not None:
        while number >= 100 * _EPOCH:
            number /= 1000
        return number - now if number >= _EPOCH else number
    if text and (parts := _DURATION.fullmatch(text)):
        return sum(float(part or 0) * unit for part, unit in zip(parts.groups(), (3600, 60, 1, 0.001), strict=True))
    date = _date(text)
    return None if date is None else date - now


def _date(text: str) -> float | None:
    """Seconds since 1970 of a date as in HTTP, or as in ISO 8601; UTC where it names no zone."""
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        with suppress(TypeError, ValueError, OverflowError):
            date = read(text)
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


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
        super().__init__(hide(detail))
        self.reason, self.again, self.retry_after, self.billed = reason, again, retry_after, billed


async def read_reply(
    opening: AbstractAsyncContextManager[httpx2.Response],
    seconds: float,
    most_bytes: int,
    decode: Callable[[bytes], Any] = json.loads,
) -> tuple[int, Mapping[str, str], Any]:
    """Status, headers and JSON of a reply, without secrets; other text is returned as it is, unless the status is 200.

    Args:
        opening: sends the request, as `AsyncClient.stream` does.
        seconds: of wall-clock, from here to the end of the reply.
        most_bytes: of the reply.
        decode: reads the JSON; raises ValueError or RecursionError.

    Raises:
        TimeoutError: there was no complete reply in time.
        HttpFailure: it is too long, or not JSON.
        httpx2.HTTPError: as the client raises it.
    """
    data = bytearray()
    async with asyncio.timeout(seconds), opening as reply:
        async for piece in reply.aiter_bytes():
            data += piece
            if len(data) > most_bytes:
                raise HttpFailure("bad_reply", f"longer than {most_bytes} bytes", billed=True)
    text = data.decode("utf-8", "replace")
    try:
        payload = decode(bytes(data))
    except (ValueError, RecursionError) as error:
        if reply.status_code == 200:
            raise HttpFailure("bad_reply", f"not JSON: {error_message(hide(text), 80)!r}", billed=True) from error
        return reply.status_code, reply.headers, hide(text)[:4000]
    if "\\u" in text or hide(text) != text:  # an escaped character may be one of a secret
        payload = hide(payload)
    return reply.status_code, reply.headers, payload


def check_proxies(url: str) -> None:
    """Refuse proxies of the environment that no request could use; their passwords are hidden from now on.

    Args:
        url: that requests go to.

    Raises:
        ConfigError: there are such proxies.
    """
    import httpx2

    remember_environment()
    if urlsplit(url).hostname in LOOPBACK:
        return
    try:
        httpx2.AsyncClient(verify=False)
    except (httpx2.InvalidURL, ValueError, ImportError) as error:
        names = ", ".join(sorted(name for name in os.environ if name.lower().endswith("_proxy")))
        socks = "; a proxy of socks5:// needs `pip install socksio`" if isinstance(error, ImportError) else ""
        raise ConfigError(
            f"a proxy of the environment ({names}) cannot be used: write http://host:port or "
            f"http://user:password@host:port, with special characters percent-encoded (@ as %40){socks}"
        ) from None


def error_message(payload: Any, most_characters: int) -> str:
    """The message of an error reply, in one line; that of a page is its title."""
    return " ".join(_said(payload, 0).split())[:most_characters].rstrip() or "no reason given"


def _said(payload: Any, depth: int) -> str:
    """The message inside a payload; empty where there is none."""
    if isinstance(payload, str):
        return _said_by_text(payload.strip(), depth)
    if payload is None or depth > 8 or isinstance(payload, bool):
        return ""
    if isinstance(payload, list):
        return "; ".join(filter(None, (_said(one, depth + 1) for one in payload[:3])))
    if isinstance(payload, Mapping):
        return _said_by_fields(payload, depth)
    return str(payload)


def _said_by_text(text: str, depth: int) -> str:
    """The message of a text, which may be JSON or a page."""
    if text.startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            return _said(json.loads(text), depth + 1) or text
    if _PAGE.match(text):
        title = _TITLE.search(text)
        return html.unescape(_TAG.sub(" ", title[1] if title else text))
    return text


def _said_by_fields(payload: Mapping[Any, Any], depth: int) -> str:
    """The message of a mapping: its first field of messages, else all of it."""
    fields = {str(key).lower(): value for key, value in payload.items()}
    message = next(filter(None, (_said(fields.get(key), depth + 1) for key in _MESSAGES)), "")
    if isinstance(fields.get("loc"), list) and message:
        message = f"{'.'.join(map(str, fields['loc']))}: {message}"
    more = fields.get("metadata")
    raw = _said(more.get("raw"), depth + 1) if isinstance(more, Mapping) else ""
    if not message and payload and depth == 0:
        with suppress(RecursionError):
            message = json.dumps(payload)
    return f"{message}: {raw}" if raw else message
