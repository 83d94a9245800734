"""One policy of tries: pauses, what servers ask for, deadlines, and who may go ahead meanwhile."""

import asyncio
import math
import random
import resource
import threading
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.network.retry import (
    OPEN_PER_SLOT,
    Attempt,
    Clock,
    RequestPool,
    Retry,
    affordable,
    error_message,
    is_transient,
    retry_after,
    retry_async,
)
from guerdon.settings.label import AnthropicJudgeSettings
from guerdon.settings.remote import RemoteSettings
from guerdon.settings.vlm import EndpointSettings
from guerdon.types import Failure
from tables import cases, refuses

DATE = "Thu, 26 Nov 2026 00:00:00 GMT"  # 1795651200
AGAIN = Attempt(Failure("connection"), again=True)


class FakeTime:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.time, self.slept = 100.0, []

    @property
    def clock(self):
        return Clock(lambda: self.time, self.sleep, lambda: 100.0, self.sleep_async)

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.time += seconds

    async def sleep_async(self, seconds):
        self.sleep(seconds)


@given(st.integers(1, 2000), st.integers(0, 2**32))
def test_pauses_double_up_to_a_bound_and_are_never_short(made, seed):
    retry = Retry(tries=10**6, first=0.5, longest=10.0)
    most = min(10.0, 0.5 * 2 ** min(made - 1, 50))
    assert 0.75 * most <= retry.next_pause(made, AGAIN, math.inf, random.Random(seed)) <= most


@cases("seed", range(50))
def test_by_default_a_call_outlives_half_a_minute(seed):
    rng = random.Random(seed)
    s = RemoteSettings()
    judge = AnthropicJudgeSettings()
    endpoint = EndpointSettings(base_url="http://h", model="m")
    limits = ((s.tries, s.timeout), (judge.retries + 1, math.inf), (endpoint.retries + 1, endpoint.deadline))
    for tries, limit in limits:
        left, paused = limit, 0.0
        for made in range(1, tries):
            pause = Retry(tries).next_pause(made, AGAIN, left, rng)
            assert isinstance(pause, float)
            left -= pause
            paused += pause
        assert Retry(tries).next_pause(tries, AGAIN, left, rng) == ""
        assert paused >= 50
        assert left > 20  # for the tries themselves


@cases(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0), ({"retry-after": "0"}, 0.0), ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "1.5"}, 1.5), ({"retry-after": "0.25"}, 0.25), ({"retry-after": ""}, None),
        ({"retry-after": "soon"}, None), ({"retry-after": "nan"}, None), ({"retry-after": "inf"}, None), ({}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:02:00 GMT"}, 20.0),
        ({"retry-after": "Thursday, 01-Jan-70 00:02:00 GMT"}, 20.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "Thu, 99 Jan 1970 00:00:00 GMT"}, None),
        ({"retry-after-ms": "250"}, 0.25), ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "1"}, 1.0), ({"retry-after-ms": "nan"}, None),
        ({"retry-after": "1795651230", "date": DATE}, 30.0), ({"retry-after": "1795651230000", "date": DATE}, 30.0),
        ({"retry-after": "1795651230.5", "date": DATE}, 30.5), ({"retry-after": "1795651100", "date": DATE}, 0.0),
        ({"retry-after": "Thu, 26 Nov 2026 00:00:07 GMT", "date": DATE}, 7.0), ({"date": DATE}, None),
        ({"retry-after": "2026-11-26T00:00:09Z", "date": DATE}, 9.0),
        ({"retry-after": "2026-11-26T01:00:09+01:00", "date": DATE}, 9.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:02:00 GMT", "date": "yesterday"}, 20.0),
        ({"retry-after": "1m30s"}, 90.0), ({"retry-after": "1h2m3.5s"}, 3723.5), ({"retry-after": "20ms"}, 0.02),
        ({"x-ratelimit-reset": "12"}, 12.0), ({"x-ratelimit-reset": "1795651260", "date": DATE}, 60.0),
        ({"ratelimit-reset": "5"}, 5.0), ({"x-ratelimit-reset": "12", "retry-after": "3"}, 3.0),
        ({"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-remaining-requests": "0",
          "x-ratelimit-reset-tokens": "7m0s", "x-ratelimit-remaining-tokens": "150"}, 360.0),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "2s"}, 2.0),
        ({"x-ratelimit-reset": "soon"}, None),
    ],
)  # fmt: skip
def test_servers_ask_in_seconds_milliseconds_or_dates(headers, seconds):
    assert retry_after(headers, FakeTime().clock) == seconds


def test_the_end_of_a_limit_counts_only_where_the_limit_is_the_reason():
    assert retry_after({"x-ratelimit-reset": "12"}, FakeTime().clock, 500) is None
    assert retry_after({"x-ratelimit-reset": "12", "retry-after": "2"}, FakeTime().clock, 503) == 2.0


@pytest.mark.hostile("endpoints")
@given(st.dictionaries(
    st.sampled_from(["retry-after", "retry-after-ms", "date", "x-ratelimit-reset", "x-ratelimit-remaining"]),
    st.text(max_size=30) | st.integers().map(str) | st.datetimes().map(str),
))  # fmt: skip
def test_no_header_breaks_anything(headers):
    pause = retry_after(headers, Clock())
    assert pause is None or 0 <= pause < math.inf


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["error", "message", "detail", "loc", "x"]), inner),
))  # fmt: skip
def test_every_error_has_one_line(payload):
    said = error_message(payload, 50)
    assert 0 < len(said) <= 50
    assert said == " ".join(said.split())


@pytest.mark.parametrize(("limit", "slots", "allowed"), [(10**6, 300, 300), (200, 100_000, None), (8, 300, 1)])
def test_calls_at_a_time_fit_the_limit_of_open_files(monkeypatch, limit, slots, allowed):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (limit, limit))
    found = affordable(slots)
    assert found == allowed if allowed else 1 <= found < limit - 32


def test_no_more_threads_is_one_line_and_what_was_begun_ends(monkeypatch):
    begin, left, ended = threading.Thread.start, [2], []

    def start(thread):
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    over = threading.Event()
    calls = [(n, lambda seconds: over.wait(60) and (ended.append(1) or Attempt("ok"))) for n in range(2)]
    calls.append((2, lambda seconds: Attempt("ok")))
    begin(threading.Timer(0.05, over.set))
    with refuses("concurrency", r"can't start new thread.*lower concurrency"):
        list(pool(FakeTime(), slots=3).run(deque(calls)))
    assert len(ended) == 2


def test_no_limit_of_open_files_is_no_limit(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (resource.RLIM_INFINITY,) * 2)
    assert affordable(5000) == 5000


@given(st.floats(0.001, 600), st.integers(1, 20), st.integers(0, 2**32))
def test_what_a_server_asks_for_is_what_it_gets_with_a_tenth_of_jitter(asked, made, seed):
    tried = Attempt(Failure("rate_limited"), again=True, retry_after=asked)
    assert asked <= Retry(100).next_pause(made, tried, math.inf, random.Random(seed)) <= 1.1 * asked


@pytest.mark.hostile("endpoints")
def test_no_pause_reaches_beyond_the_deadline_and_none_is_endless():
    rng = random.Random(0)
    asked = Attempt(Failure("rate_limited"), again=True, retry_after=30.0)
    assert Retry().next_pause(1, asked, 20.0, rng) == "; the server asks to wait 30 s; no time for try 2"
    assert Retry().next_pause(4, AGAIN, 2.0, rng) == "; no time for try 5"
    assert "3600 s" in Retry().next_pause(1, Attempt(AGAIN.result, True, 3600.0), math.inf, rng)
    assert Retry().next_pause(1, Attempt("fine"), math.inf, rng) == ""


def test_what_is_tried_again():
    again = {status for status in range(400, 600) if is_transient(status)}
    assert again == {408, 425, 429, *range(500, 600)}


def test_a_deadline_runs_out():
    fake = FakeTime()
    given, until = [], fake.time + 5

    async def one_try(seconds):
        given.append(seconds)
        fake.time += 6
        return AGAIN

    async def call():
        slots, rng = asyncio.Semaphore(1), random.Random(0)
        return [
            await retry_async(one_try, Retry(), until, fake.clock, slots, rng, lambda result, note: (result, note))
            for _ in range(2)
        ]

    assert asyncio.run(call()) == [(AGAIN.result, "; no time for try 2"), (None, "; no time left for try 1")]
    assert given == [5.0]


def pool(fake, slots=1, tries=3, **given):
    return RequestPool(Retry(tries), slots, fake.clock, rng=random.Random(0), **given)


def script(*tried):
    """A call that goes as written, one try after another, and how it was tried."""
    left = list(tried)
    return lambda seconds: left.pop(0)


def test_a_crew_gives_every_result_once_and_counts_tries():
    fake = FakeTime()
    todo = deque([("a", script(Attempt("A"))), ("b", script(AGAIN, Attempt("B"))), ("c", script(AGAIN, AGAIN, AGAIN))])
    assert dict(pool(fake, slots=2).run(todo)) == {"a": "A", "b": "B", "c": Failure("connection")}


def test_a_pause_holds_no_slot():
    """With one slot: the first call waits for its second try, and all others are done before it."""
    fake = FakeTime()
    calls = [("slow", script(AGAIN, Attempt("slow")))] + [(n, script(Attempt(n))) for n in range(3)]
    assert [key for key, _ in pool(fake).run(deque(calls))] == [0, 1, 2, "slow"]
    assert len(fake.slept) == 1


def test_behind_a_dead_server_only_some_calls_are_begun():
    fake, begun = FakeTime(), []

    def dead(n):
        def one_try(seconds):
            begun.append((n, fake.time))
            return AGAIN

        return one_try

    running = pool(fake, slots=2).run(deque((n, dead(n)) for n in range(50)))
    next(running)
    assert len({n for n, _ in begun}) <= 2 * OPEN_PER_SLOT
    running.close()


def test_nobody_starts_while_a_server_asks_to_wait():
    fake = FakeTime()
    busy = Attempt(Failure("rate_limited"), again=True, retry_after=0.25)
    started = []

    def other(seconds):
        started.append(fake.time)
        return Attempt("ok")

    todo = deque([("first", script(busy, Attempt("ok"))), ("second", other)])
    assert dict(pool(fake).run(todo)) == {"first": "ok", "second": "ok"}
    assert started[0] >= 100.25
    assert 0.25 <= sum(fake.slept) <= 0.275 + 1e-9  # a quarter of a second, not a whole one


def test_a_limit_ends_a_call_that_has_tries_left():
    fake = FakeTime()
    left = []

    def one_try(seconds):
        left.append(seconds)
        return AGAIN

    ((_, result),) = pool(fake, tries=50, limit=10.0).run(deque([("a", one_try)]))
    assert result.reason == "connection"
    assert result.detail.startswith("; no time for try ")
    assert left[0] == 10.0
    assert min(left) > 0
    assert fake.time < 110


def test_calls_may_be_added_while_a_crew_works():
    todo = deque([(1, script(Attempt(1)))])
    found = []
    for key, result in pool(FakeTime()).run(todo):
        found.append(result)
        if key < 4:
            todo.append((key + 1, script(Attempt(key + 1))))
    assert found == [1, 2, 3, 4]


def test_a_closed_crew_begins_nothing_more():
    begun = []

    def one_try(n):
        return lambda seconds: begun.append(n) or Attempt(n)

    running = pool(FakeTime()).run(deque((n, one_try(n)) for n in range(9)))
    next(running)
    running.close()
    assert begun == [0]


def test_an_exception_of_a_try_comes_through():
    def broken(seconds):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(pool(FakeTime(), slots=2).run(deque([("a", broken), ("b", script(Attempt("b")))])))


@pytest.mark.hostile("endpoints")
@given(
    st.lists(st.lists(st.sampled_from(["again", "asked", "fine", "wrong"]), min_size=1, max_size=6), max_size=12),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_whatever_happens_every_call_has_one_result_and_no_more_tries_than_allowed(scripts, slots, tries):
    fake, made, lock = FakeTime(), [0] * len(scripts), threading.Lock()
    kinds = {"again": AGAIN, "asked": Attempt(Failure("busy"), True, 0.5), "fine": Attempt("fine")}
    kinds["wrong"] = Attempt(Failure("no"))

    def call(n):
        def one_try(seconds):
            with lock:
                made[n] += 1
                return kinds[scripts[n][min(made[n], len(scripts[n])) - 1]]

        return one_try

    found = list(pool(fake, slots=slots, tries=tries).run(deque((n, call(n)) for n in range(len(scripts)))))
    assert sorted(n for n, _ in found) == list(range(len(scripts)))
    for n, result in found:
        ends = next((k + 1 for k, kind in enumerate(scripts[n]) if kind in ("fine", "wrong")), None)
        assert made[n] == min(tries, ends or tries)
        assert (result == "fine") == (ends is not None and ends <= tries and scripts[n][ends - 1] == "fine")


def test_a_pause_in_an_event_loop_holds_no_slot_either():
    fake = FakeTime()
    order = []

    def call(name, *tried):
        left = list(tried)

        async def one_try(seconds):
            order.append(name)
            return left.pop(0)

        return one_try

    async def both():
        slots = asyncio.Semaphore(1)
        over = asyncio.Event()

        async def sleep(seconds):
            await over.wait()

        clock = Clock(lambda: fake.time, sleep_async=sleep)

        def persisting(one_try):
            return retry_async(one_try, Retry(3), fake.time + 60, clock, slots, random.Random(0), lambda o, _: o)

        slow = asyncio.create_task(persisting(call("slow", AGAIN, Attempt("slow"))))
        await asyncio.sleep(0)
        assert await persisting(call("quick", Attempt("quick"))) == "quick"
        over.set()
        return await slow

    assert asyncio.run(both()) == "slow"
    assert order == ["slow", "quick", "slow"]
