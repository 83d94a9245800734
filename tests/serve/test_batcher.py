"""The queue of one model: laws over any sequence of arrivals, and the exact cases behind them."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.models.explained_score import JudgeOptions
from guerdon.serve.worker import LONG, SHORT, Batcher, Item
from guerdon.types import Episode

EPISODE = Episode(id="", task="", texts=("x",))
OTHER = JudgeOptions(nframes=4)


@dataclass
class Waiter:
    deadline: float


ONE = Waiter(math.inf)


def item(key, *, length=1, arrived=0.0, deadline=math.inf, options=None, waiters=1):
    made = Item(bytes([key]), EPISODE, length, options or JudgeOptions(), arrived)
    made.waiters += [(Waiter(deadline), n) for n in range(waiters)]
    return made


def batcher(*, max_items=4, wait=0.01, ratio=4.0, limit=100):
    return Batcher(max_items=max_items, max_wait_s=wait, length_ratio=ratio, limit=limit)


items = st.lists(
    st.tuples(
        st.integers(1, 100_000), st.floats(0, 10), st.sampled_from([None, OTHER]), st.sampled_from([1.0, 5.0, math.inf])
    ),
    max_size=60,
)


@given(items, st.integers(1, 8), st.floats(1, 16))
def test_everything_leaves_once_in_like_batches_and_the_oldest_goes_first(given_items, size, ratio):
    queue = batcher(max_items=size, ratio=ratio)
    put = [
        item(n, length=length, arrived=arrived, options=options, deadline=deadline)
        for n, (length, arrived, options, deadline) in enumerate(given_items)
    ]
    queue.add(put)
    now, left = 2.0, list(put)
    while left:
        batch, expired = queue.take(now)
        assert batch or expired
        assert all(i.deadline <= now for i in expired)
        assert all(i.deadline > now for i in batch)
        alive = [i for i in left if i.deadline > now]
        assert len(batch) <= size
        if batch:
            assert batch[0] is alive[0]
            assert {i.options for i in batch} == {batch[0].options}
            lengths = [max(i.length, SHORT) for i in batch]
            assert max(lengths) <= ratio * lengths[0]
            assert lengths[0] <= ratio * min(lengths)
        gone = {id(i) for i in batch + expired}
        assert len(gone) == len(batch) + len(expired)
        left = [i for i in left if id(i) not in gone]
        assert len(queue) == len(left)
    assert queue.take(now) == ([], [])


def test_it_waits_for_company_but_not_when_full():
    queue = batcher(max_items=3, wait=0.01)
    assert queue.wait_s(0.0) == math.inf
    queue.add([item(0, arrived=1.0)])
    queue.add([item(1, arrived=1.0)])
    assert queue.wait_s(1.0) == pytest.approx(0.01)
    assert queue.wait_s(1.004) == pytest.approx(0.006)
    assert queue.wait_s(2.0) == 0
    queue.add([item(2, arrived=1.0)])
    assert queue.wait_s(1.0) == 0


def test_a_single_client_does_not_wait():
    queue = batcher(wait=0.01)
    for n in range(3):
        queue.add([item(n, arrived=n), item(n + 3, arrived=n)])
        assert queue.wait_s(n) == 0
        for i in queue._items:
            i.waiters = [(ONE, 0)]  # both are of one request
        queue.take(n)
    queue.add([item(0), item(1)])  # of two requests: there is company now
    queue.take(0)
    queue.add([item(2, arrived=5.0)])
    assert queue.wait_s(5.0) == pytest.approx(0.01)


def test_a_long_item_waits_for_the_next_batch_and_leads_it():
    queue = batcher(ratio=2)
    short, long, same = item(0, length=1000), item(1, length=5000), item(2, length=1999)
    queue.add([short, long, same])
    assert queue.take(0)[0] == [short, same]
    assert queue.take(0)[0] == [long]


def test_short_items_are_all_alike():
    queue = batcher(ratio=1)
    queue.add([item(0, length=1), item(1, length=SHORT), item(2, length=SHORT + 1)])
    assert [i.key for i in queue.take(0)[0]] == [b"\x00", b"\x01"]


def test_an_item_lives_as_long_as_anybody_waits_for_it():
    queue = batcher()
    late = item(0, deadline=1.0)
    late.waiters.append((Waiter(3.0), 0))
    queue.add([late, item(1, waiters=0)])
    batch, expired = queue.take(2.0)
    assert batch == [late]
    assert [i.key for i in expired] == [b"\x01"]


def test_the_limit_is_never_passed():
    queue = batcher(limit=3)
    queue.add([item(0), item(1)])
    assert queue.has_room(1)
    assert not queue.has_room(2)
    with pytest.raises(AssertionError):
        queue.add([item(2), item(3)])
    assert len(queue) == 2
    assert [i.key for i in queue.drain()] == [b"\x00", b"\x01"]
    assert len(queue) == 0


def test_a_batch_of_texts_has_a_length_after_which_deadlines_are_looked_at_again():
    queue = batcher(max_items=8)
    queue.add([item(n, length=LONG // 2, deadline=deadline) for n, deadline in enumerate((5.0, 5.0, 5.0, 9.0))])
    assert [len(part) for part in queue.take(1.0)] == [2, 0]
    batch, expired = queue.take(6.0)
    assert ([i.key[0] for i in batch], [i.key[0] for i in expired]) == ([3], [2])
    queue.add([item(7, length=3 * LONG)])
    assert len(queue.take(6.0)[0]) == 1
