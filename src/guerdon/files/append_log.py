"""Append-only files of JSON lines: replies by content, and the cost of API calls with a budget.

A line that was written survives a kill, one that a kill cut off is dropped. One process at a time: a file is locked
while it is open.

A call is two lines of the ledger: one before its request is sent, with the most that it can cost, and one when it is
over, with what it did cost. A call without the second line (the process was killed) counts with its maximum, however
many calls were under way; so do counts that a reply does not report. So the budget holds over kills and restarts.

Endpoints report usage differently: reasoning is part of `completion_tokens` or not (`total_tokens` decides), tokens of
a cache are part of the prompt or not, counts are missing, null, text or 0 beside a text. A count that is not reported
is None. Where two readings are possible, the more expensive one counts.

    with contextlib.closing(Cache(folder / "replies.jsonl")) as cache:
        cache.put({content_key("question"): {"text": "answer"}})
        cache.get(content_key("question"))
    with contextlib.closing(Ledger(folder / "calls.jsonl", prices=(3.0, 15.0), max_usd=5.0)) as ledger:
        reservation = ledger.reserve("judge", tokens_in=900, tokens_out=2048)
        if reservation is not None:
            ledger.settle(reservation, CallUsage(812, 240))
        ledger.totals()["judge"]["usd"]
    usage = {"prompt_tokens": 119, "completion_tokens": 9, "total_tokens": 226}
    reported_usage(usage, "a text")                                       # CallUsage(tokens_in=119, tokens_out=107)
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from guerdon.errors import DataError
from guerdon.secrets import hide

MOST = 10**9  # a larger count is nonsense
SHORT_WRITE, LONG_WRITE = 1.25, 2.0  # times the price of input: a token that a cache keeps for 5 minutes, for an hour
_TICKS = 1e10  # of xAI, per dollar


@dataclass(frozen=True)
class CallUsage:
    """What a call used.

    Attributes:
        tokens_in: tokens that it read, those of a cache included; None: not reported.
        tokens_out: tokens that it wrote, reasoning included; None: not reported.
        surcharge_in: tokens read that cache writes cost in addition.
        usd: dollars that the endpoint says it charges; None: it does not say.
    """

    tokens_in: int | None
    tokens_out: int | None
    surcharge_in: float = 0.0
    usd: float | None = None


def reported_usage(given: Any, text: str) -> CallUsage:
    """The usage that a reply reports, by the names of Anthropic, OpenAI, DeepSeek, OpenRouter and xAI.

    Args:
        given: the field `usage` of the reply, whatever it is.
        text: that the model wrote.
    """
    usage = given if isinstance(given, Mapping) else {}
    inside = _section(usage, "prompt_tokens_details", "input_tokens_details")
    outside = _section(usage, "completion_tokens_details", "output_tokens_details")
    hits = _largest(usage, "cache_read_input_tokens", "prompt_cache_hit_tokens", "cached_tokens")
    hits = max(hits, _largest(inside, "cached_tokens", "cache_read_tokens"))
    writes, surcharge = _writes(usage, inside)
    cached = hits + writes
    read = _largest(usage, "prompt_tokens", "input_tokens")
    if read and (cached > read or ("prompt_tokens" not in usage and "input_tokens_details" not in usage)):
        read += cached  # beside the prompt, as Anthropic counts
    missed = _largest(usage, "prompt_cache_miss_tokens")
    read = max(read, cached, hits + missed)
    written = _largest(usage, "completion_tokens", "output_tokens")
    reasoning = _largest(usage, "reasoning_tokens")
    reasoning = max(reasoning, _largest(outside, "reasoning_tokens", "thinking_tokens"))
    total = _largest(usage, "total_tokens")
    read, written = _with_the_rest(read, written, total - read - written, cached, reasoning)
    none_written = _count(usage.get("completion_tokens", usage.get("output_tokens"))) == 0
    silent = not text and read > 0 and none_written
    return CallUsage(
        tokens_in=read or None,
        tokens_out=written if written or silent else None,
        surcharge_in=surcharge,
        usd=_dollars(usage),
    )


def _with_the_rest(read: int, written: int, more: int, cached: int, reasoning: int) -> tuple[int, int]:
    """Tokens read and written, with those that no other count has.

    Args:
        read: tokens read, as far as they are counted.
        written: tokens written, the same.
        more: how many more the total says than both.
        cached: tokens of a cache.
        reasoning: tokens of reasoning.
    """
    if more > 0 and read and written and more == cached:
        return read + more, written
    if more > 0 and read:
        return read, written + more
    if more > 0 and written:
        return more, written
    if more < 0 or reasoning > written:  # the total is missing or nonsense
        return read, written + reasoning
    return read, written


def _writes(usage: Mapping[str, Any], inside: Mapping[str, Any]) -> tuple[int, float]:
    """Tokens written to a cache, and what they cost in addition, in tokens read."""
    kinds = _section(usage, "cache_creation")
    short, long = _largest(kinds, "ephemeral_5m_input_tokens"), _largest(kinds, "ephemeral_1h_input_tokens")
    names = ("cache_creation_input_tokens", "cache_write_tokens", "cache_creation_tokens")
    writes = max(_largest(usage, *names), _largest(inside, *names), short + long)
    short = min(short, writes)
    return writes, short * (SHORT_WRITE - 1) + (writes - short) * (LONG_WRITE - 1)


def _dollars(usage: Mapping[str, Any]) -> float | None:
    """What the endpoint charges: OpenRouter's fee and, with a key of one's own, the provider's bill; or xAI's ticks."""
    cost = usage.get("cost", usage.get("total_cost"))
    cost = _number(cost.get("total_cost") if isinstance(cost, Mapping) else cost)
    bill = _number(_section(usage, "cost_details").get("upstream_inference_cost"))
    if bill is not None and (usage.get("is_byok") is True or bill > (cost or 0.0)):
        cost = bill + (cost or 0.0)
    ticks = _number(usage.get("cost_in_usd_ticks"))
    found = [usd for usd in (cost, None if ticks is None else ticks / _TICKS) if usd is not None]
    return max(found, default=None)


def _section(usage: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return next((value for name in names if isinstance(value := usage.get(name), Mapping)), {})


def _largest(usage: Mapping[str, Any], *names: str) -> int:
    """The largest count of these names; 0 where there is none."""
    return max(_count(usage.get(name)) or 0 for name in names)


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else math.ceil(number)


def _number(value: Any) -> float | None:
    """A count or an amount, also as text; None if it is negative, not finite or larger than `MOST`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number <= MOST else None


COUNTS = ("calls", "failed", "tokens_in", "tokens_out", "usd", "unpriced", "usd_at_most", "from_cache")
UNFINISHED = "unfinished"  # the failure of a call that a kill cut off


def content_key(*parts: Any) -> str:
    """SHA-256 of plain JSON values."""
    text = json.dumps(parts, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class AppendLog:
    """JSON lines on disk, each flushed before `append` returns. Usable from any thread.

    Attributes:
        rows: what was there when the file was opened.

    Args:
        path: the file; its folder is made. Both are removed by `close` if they were not there and nothing was written.

    Raises:
        DataError: another process has it open, or a line before the last is not JSON.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._own_folder = not path.parent.exists()
        self._file = self._opened()
        while not (path.exists() and os.path.samestat(os.fstat(self._file.fileno()), path.stat())):
            self._file.close()  # who had it open removed it before it was locked here
            self._file = self._opened()
        self.rows = self._read()

    def _opened(self) -> BinaryIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise DataError(
                f"{self.path} is in use by another guerdon process; wait for it, or choose another save_dir"
            ) from error
        return file

    def _read(self) -> list[dict[str, Any]]:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        whole = sum(len(line) + 1 for line in lines[:-1])
        self._file.truncate(whole)  # a line without an end was cut off while it was written
        rows = []
        for number, line in enumerate(lines[:-1], start=1):
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"not a line of JSON: {error}; remove that line", where=f"{self.path}:{number}"
                ) from error
        return rows

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one line without secrets; it is on the disk when this returns.

        Raises:
            DataError: it cannot be written; the file is as it was.
        """
        data = hide(json.dumps(row, ensure_ascii=True, allow_nan=False)).encode() + b"\n"
        with self._lock:
            size = os.fstat(self._file.fileno()).st_size
            try:
                while data:
                    data = data[os.write(self._file.fileno(), data) :]
                os.fsync(self._file.fileno())
            except OSError as error:
                os.ftruncate(self._file.fileno(), size)  # half a line would spoil the next one
                raise DataError(
                    f"{error.strerror}; the same command resumes once it can write", where=self.path
                ) from error

    def close(self) -> None:
        """Close and unlock the file; an empty one is removed."""
        if not self._file.closed and not os.fstat(self._file.fileno()).st_size:
            self.path.unlink(missing_ok=True)
            if self._own_folder:
                with suppress(OSError):  # not empty
                    self.path.parent.rmdir()
        self._file.close()


class Cache(AppendLog):
    """Values by content key, on disk.

    Args:
        path: the file.

    Raises:
        DataError: as `AppendLog`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._values: dict[str, Any] = {k: v for row in self.rows for k, v in row.items()}
        self.rows = []

    def get(self, key: str) -> Any:
        """The value of a key, None where there is none."""
        return self._values.get(key)

    def put(self, values: Mapping[str, Any]) -> None:
        """Keep values, all of them or none, whatever happens."""
        self.append(values)
        self._values.update(values)


_SHARED: dict[tuple[Path, str], list[Any]] = {}  # open files of this process, and how often each is used
_SHARING = threading.Lock()
Kind = TypeVar("Kind", bound="AppendLog | Ledger")


@contextmanager
def shared(kind: Callable[..., Kind], path: Path, **given: Any) -> Iterator[Kind]:
    """A file that all of this process that open it with the same arguments have in common; the last one closes it.

    Raises:
        DataError: another process has it open, or this one with other arguments.
    """
    key = path.resolve(), repr(given)
    with _SHARING:
        if key not in _SHARED:
            _SHARED[key] = [kind(path, **given), 0]
        _SHARED[key][1] += 1
    try:
        yield _SHARED[key][0]
    finally:
        with _SHARING:
            _SHARED[key][1] -= 1
            if not _SHARED[key][1]:
                _SHARED.pop(key)[0].close()


@dataclass(frozen=True)
class Reservation:
    """Dollars reserved for a call.

    Attributes:
        number: of the call in the file.
        role: what it is for.
        most: what it can use by its own limits.
        scale: the largest cost of a call of that role so far as a share of its reservation, at least 1.
        usd: the price of `most` times `scale`.
    """

    number: int
    role: str
    most: CallUsage
    scale: float
    usd: float


class Ledger:
    """Calls, tokens and dollars by role. Usable from any thread.

    Args:
        path: the file of calls; those already in it count.
        prices: dollars per million tokens read and written.
        max_usd: what all calls together may cost; None: no limit.
    """

    def __init__(self, path: Path, *, prices: tuple[float, float], max_usd: float | None = None) -> None:
        self.prices = prices
        self.max_usd = max_usd
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._open: dict[int, float] = {}  # dollars reserved, by number of a call under way
        self._later = 0.0  # dollars reserved for calls that will follow those already made
        self._totals: dict[str, dict[str, float]] = {}
        self._scales: dict[str, float] = {}  # by role: the largest cost of a call, as a share of its reservation
        self._log = AppendLog(path)
        begun: dict[int, dict[str, Any]] = {}
        self._next = 0
        for row in self._log.rows:
            if "begun" in row:
                begun[row["begun"]] = {"scale": self._scale(row["role"]), **row}
                self._next = max(self._next, row["begun"] + 1)
            else:
                reserved = begun.pop(row.get("ended", -1), None)
                self._count(row)
                if reserved is not None:
                    self._learn(row, reserved["scale"], reserved["usd_at_most"])
        for row in begun.values():
            self._count({**row, "failure": UNFINISHED})
        self._log.rows = []

    def price(self, usage: CallUsage) -> float:
        """Dollars for the tokens that are known."""
        read = (usage.tokens_in or 0) + usage.surcharge_in
        return (read * self.prices[0] + (usage.tokens_out or 0) * self.prices[1]) / 1e6

    @property
    def spent(self) -> float:
        """Dollars: what is known, and the most that calls of unknown cost can have been."""
        return sum(t["usd"] + t["usd_at_most"] for t in self._totals.values())

    def reserve(self, role: str, *, tokens_in: int, tokens_out: int, later: float = 0.0) -> Reservation | None:
        """Reserve dollars for a call, on disk, before it is made; None where the budget does not allow it.

        While calls that are under way may turn out cheaper than their reservation, it waits for them.

        Args:
            role: what it is for.
            tokens_in: the most that it reads.
            tokens_out: the most that it writes.
            later: dollars to reserve, too, for a call about its reply; until `release`.
        """
        most = CallUsage(tokens_in, tokens_out)
        with self._settled:
            while True:
                scale = self._scale(role)
                usd = self.price(most) * scale
                reserved = self.spent + sum(self._open.values()) + self._later + usd + later
                if self.max_usd is None or reserved <= self.max_usd:
                    break
                if not self._open:
                    return None
                self._settled.wait()
            reservation = Reservation(self._next, role, most, scale, usd)
            self._next += 1
            self._open[reservation.number] = usd
            self._later += later
        try:
            self._log.append({"begun": reservation.number, "role": role, "usd_at_most": usd})
        except BaseException:
            with self._settled:
                del self._open[reservation.number]
                self._settled.notify_all()
            raise
        return reservation

    def release(self) -> None:
        """Drop what is reserved for calls about earlier replies: they are being made."""
        with self._settled:
            self._later = 0.0
            self._settled.notify_all()

    def settle(
        self, reservation: Reservation, usage: CallUsage | None, *, failure: str = "", billed: bool = True
    ) -> None:
        """Record a call that is over.

        Args:
            reservation: from `reserve`.
            usage: as its reply reports it; None: there was no reply. Counts that are not reported are replaced by their
                maximum; where the reply reports a cost, too, the larger amount counts.
            failure: why its reply cannot be used; empty where it can.
            billed: whether a call of unknown usage may have cost anything; it then counts with its maximum.
        """
        row: dict[str, Any] = {"ended": reservation.number, "role": reservation.role, "failure": failure}
        if usage is not None:
            known = self.price(usage)
            most = reservation.most
            for name in ("tokens_in", "tokens_out"):
                row |= {name: n} if (n := getattr(usage, name)) is not None else {}
            row["usd"] = max(known, usage.usd or 0.0)
            if usage.tokens_in is None or usage.tokens_out is None:
                missing = CallUsage(
                    most.tokens_in if usage.tokens_in is None else 0, most.tokens_out if usage.tokens_out is None else 0
                )
                row["usd_at_most"] = max(known + self.price(missing) * reservation.scale - row["usd"], 0.0)
        elif billed:
            row |= {"usd_at_most": reservation.usd}
        try:
            self._log.append(row)
        finally:
            with self._settled:
                del self._open[reservation.number]
                self._count(row)
                self._learn(row, reservation.scale, reservation.usd)
                self._settled.notify_all()

    def count_cached(self, role: str, n: int = 1) -> None:
        """Count answers that needed no call; this is not kept on disk."""
        with self._lock:
            self._row(role)["from_cache"] += n

    def totals(self) -> dict[str, dict[str, float]]:
        """By role: calls, how many failed, tokens, dollars; `unpriced` calls cost at most `usd_at_most` together."""
        with self._lock:
            return {role: dict(row) for role, row in sorted(self._totals.items())}

    def _row(self, role: str) -> dict[str, float]:
        return self._totals.setdefault(role, {**dict.fromkeys(COUNTS, 0), "usd": 0.0, "usd_at_most": 0.0})

    def _scale(self, role: str) -> float:
        return self._scales.get(role, 1.0)

    def _learn(self, row: dict[str, Any], scale: float, reserved: float) -> None:
        """Reserve more for later calls if a call cost more than was reserved for it."""
        cost = row.get("usd", 0.0) + row.get("usd_at_most", 0.0)
        if reserved > 0:
            self._scales[row["role"]] = max(self._scale(row["role"]), scale * cost / reserved)

    def _count(self, row: dict[str, Any]) -> None:
        total = self._row(row["role"])
        total["calls"] += 1
        total["failed"] += bool(row["failure"])
        total["unpriced"] += "usd_at_most" in row
        for key in ("tokens_in", "tokens_out", "usd", "usd_at_most"):
            total[key] += row.get(key, 0)

    def close(self) -> None:
        """Close the file."""
        self._log.close()
