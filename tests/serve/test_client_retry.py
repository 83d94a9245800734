"""Pauses, deadlines and the circuit breaker, on a clock that only moves when told."""

import random

import pytest
from chaos import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from guerdon.serve.breaker import Breaker, CircuitOpenError
from guerdon.serve.retry import Clock, Deadline, Retry, asked_pause, is_transient


@given(st.integers(0, 20), st.integers(0, 2**32))
def test_full_jitter_lies_below_a_bound_that_doubles(attempt, seed):
    retry = Retry(first=0.5, longest=10.0)
    pause = retry.pause(attempt, None, clock=Clock(), rng=random.Random(seed))
    assert 0 <= pause <= min(10.0, 0.5 * 2**attempt)


def test_jitter_uses_the_whole_range():
    pauses = [Retry().pause(1, None, clock=Clock(), rng=random.Random(seed)) for seed in range(400)]
    assert min(pauses) < 0.05
    assert max(pauses) > 0.95
    assert sum(pauses) / len(pauses) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("2", 2.0), ("0", 0.0), ("-3", 0.0), ("1.5", 1.5), ("", None), ("soon", None), ("nan", None), ("inf", None),
        (None, None), ("Thu, 01 Jan 1970 00:02:00 GMT", 20.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Thu, 99 Jan 1970 00:00:00 GMT", None),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(header, seconds):
    clock = Clock(wall=lambda: 100.0)
    assert asked_pause(header, clock) == seconds
    pause = Retry().pause(0, header, clock=clock, rng=random.Random(0))
    assert (seconds or 0.0) <= pause <= (seconds or 0.0) + 0.5


@given(st.text(max_size=30))
def test_no_retry_after_breaks_anything(header):
    pause = asked_pause(header, Clock())
    assert pause is None or pause >= 0


def test_what_is_tried_again():
    again = {status for status in range(400, 600) if is_transient(status)}
    assert again == {408, 429, *range(500, 600)}


def test_a_deadline_runs_out():
    fake = FakeClock()
    deadline = Deadline.after(5.0, fake.clock())
    assert deadline.left == 5.0
    fake.time += 6
    assert deadline.left == -1.0


def attempt(breaker, verdict):
    """One request with this outcome; whether it passed."""
    try:
        with breaker.attempt() as watched:
            if verdict:
                watched.succeeded()
            elif verdict is None:
                watched.unclear()
    except CircuitOpenError:
        return False
    return True


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_probe_through():
    fake = FakeClock()
    breaker = Breaker(3, 10.0, fake.clock())
    for verdict in (False, False, True, False, False, None):
        assert attempt(breaker, verdict)
    assert breaker.state == "closed"
    assert attempt(breaker, False)
    assert breaker.state == "open"
    with pytest.raises(CircuitOpenError, match=r"10\.0 s"), breaker.attempt():
        pass
    fake.time += 10
    assert breaker.state == "half_open"
    with breaker.attempt() as probe:
        assert not attempt(breaker, True)  # only one
        del probe
    assert breaker.state == "open"  # the probe failed: from now on again
    fake.time += 9.9
    assert not attempt(breaker, True)
    fake.time += 0.1
    assert attempt(breaker, True)
    assert breaker.state == "closed"
    assert attempt(breaker, False)
    assert attempt(breaker, False)
    assert breaker.state == "closed"


def test_a_probe_that_was_stopped_from_outside_leaves_room_for_the_next():
    fake = FakeClock()
    breaker = Breaker(1, 10.0, fake.clock())
    assert attempt(breaker, False)
    fake.time += 10
    with pytest.raises(KeyboardInterrupt), breaker.attempt():
        raise KeyboardInterrupt
    assert breaker.state == "half_open"
    assert attempt(breaker, True)
    assert breaker.state == "closed"


class Circuit(RuleBasedStateMachine):
    """The breaker against a plain model of it."""

    def __init__(self):
        super().__init__()
        self.fake = FakeClock()
        self.breaker = Breaker(3, 10.0, self.fake.clock())
        self.in_a_row, self.opened = 0, None

    @rule(verdict=st.sampled_from([True, False, None]))
    def ask(self, verdict):
        open_now = self.opened is not None and self.fake.time - self.opened < 10.0
        probe = self.opened is not None and not open_now
        assert attempt(self.breaker, verdict) is not open_now
        if open_now or verdict is None:
            return
        if verdict:
            self.in_a_row, self.opened = 0, None
        else:
            self.in_a_row += 1
            if probe or self.in_a_row >= 3:
                self.opened = self.fake.time

    @rule(seconds=st.integers(0, 12))
    def wait(self, seconds):
        self.fake.time += seconds

    @invariant()
    def state_agrees(self):
        closed = self.opened is None
        assert (self.breaker.state == "closed") is closed


TestCircuit = Circuit.TestCase
