"""Calls from several threads: which are made together, and what each of them gets."""

import copy
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from guerdon.models.scores import score_episodes
from guerdon.processes.call_queue import MOST, alone, batched, calls_of, same
from guerdon.types import Episode, RewardInfo, Score


class Squares:
    """Counts its calls; the first one waits until so many others do."""

    def __init__(self, others=0):
        self.calls, self.others, self.inside = [], others, 0
        self.begun = threading.Event()

    @batched
    def square(self, items, *, power=2, name=""):
        """Docs."""
        self.inside += 1
        assert self.inside == 1
        self.calls.append((list(items), power))
        self.begun.set()
        while len(self.calls) == 1 and len(calls_of(self)._waiting) < self.others:
            os.sched_yield()
        self.inside -= 1
        if "bad" in items:
            raise KeyError("bad")
        if "lost" in items and len(items) > 1:
            return []
        return [item if isinstance(item, str) else item**power for item in items]

    @batched
    def twice(self, items):
        return [2 * one for one in self.square(items)]

    @alone
    def learn(self, by):
        assert self.inside == 0
        return self.square([by])[0]


def together(model, works):
    """The first work, and the others while it is made; values, or what was raised."""

    def tried(work):
        try:
            return work(model)
        except (KeyError, ValueError) as error:
            return error

    with ThreadPoolExecutor(len(works)) as pool:
        calls = [pool.submit(tried, works[0])]
        model.begun.wait()
        calls += [pool.submit(tried, work) for work in works[1:]]
        return [call.result() for call in calls]


def one(item, **options):
    return lambda model: model.square([item], **options)


def test_those_that_wait_are_made_together_and_each_gets_its_own():
    model = Squares(others=63)
    found = together(model, [one(k) for k in range(64)])
    assert found == [[k * k] for k in range(64)]
    assert [len(items) for items, _ in model.calls] == [1, 63]


def test_calls_of_several_items_and_of_none():
    model = Squares(others=3)
    found = together(model, [one(9), lambda m: m.square([1, 2, 3]), lambda m: m.square([]), lambda m: m.square((4, 5))])
    assert found == [[81], [1, 4, 9], [], [16, 25]]
    assert [sorted(items) for items, _ in model.calls] == [[9], [1, 2, 3, 4, 5]]


def test_other_options_are_another_call():
    model = Squares(others=4)
    found = together(model, [one(2), one(2, power=3), one(2), one(3, power=3), one(3)])
    assert found == [[4], [8], [4], [27], [9]]
    assert sorted(len(items) for items, _ in model.calls) == [1, 2, 2]


class Options:
    def __eq__(self, other):
        raise ValueError("cannot be compared")


def test_options_that_cannot_be_compared_are_other_calls():
    weights = np.array([1.0, 2.0])
    given = [
        2,
        torch.tensor([2]),
        torch.tensor([3]),
        np.array(2),
        np.ones(3),
        weights,
        weights,
        Options(),
        True,
        1,
        1.0,
    ]
    model = Squares(others=len(given) - 1)
    found = together(model, [one(3.0, power=2), *(one(3.0, power=2, name=name) for name in given[1:])])
    assert found == [[9.0]] * len(given)
    assert sorted(len(items) for items, _ in model.calls) == [1] * (len(given) - 2) + [2]  # those of the same array


def test_what_is_the_same_for_certain():
    info = RewardInfo("a", (0.0, 1.0))
    equal = [
        (1, 1),
        ("a", "a"),
        ([1, {"a": (2,)}], [1, {"a": (2,)}]),
        (info, RewardInfo("a", (0.0, 1.0))),
        (None, None),
    ]
    assert all(same(*pair) for pair in equal)
    arrays = (np.ones(1), np.ones(1)), (torch.ones(1), torch.ones(1)), ([np.ones(2)], [np.ones(2)])
    other = [(1, True), (1, 1.0), ("a", b"a"), ((1,), [1]), ((1,), (1, 2)), ({"a": 1}, {"b": 1}), *arrays]
    assert not any(same(*pair) for pair in [*other, (info, RewardInfo("a", (0.0, 2.0))), (Options(), Options())])


def test_a_batched_score_is_still_called_together_by_hosts():
    class Counts:
        info = RewardInfo("counts", (0.0, 100.0), granularity="total", modality="text", frames_needed=0)
        begun, calls = threading.Event(), []

        @batched
        def score(self, episodes):
            self.calls.append(len(episodes))
            self.begun.set()
            while len(self.calls) == 1 and len(calls_of(self)._waiting) < 9:
                os.sched_yield()
            return [Score(total=float(len(one.texts))) for one in episodes]

    def scored(model):
        return score_episodes(model, [Episode(id="", task="q", texts=("a",))])[0].total

    model = Counts()
    assert together(model, [scored] * 10) == [1.0] * 10
    assert model.calls == [1, 9]


@pytest.mark.parametrize("own", [0, [], {"a": 1}])
def test_a_model_may_have_an_attribute_of_any_common_name(own):
    class Counting:
        info = RewardInfo("counting", (0.0, 1.0), granularity="total", modality="text", frames_needed=0)

        def __init__(self):
            self._calls = self._queue = self._lock = own

        def score(self, episodes):
            return [Score(total=1.0) for _ in episodes]

    assert score_episodes(Counting(), [Episode(id="", task="q", texts=("a",))])[0].total == 1.0


@pytest.mark.hostile("parts")
def test_a_call_that_raises_spoils_no_other():
    model = Squares(others=3)
    found = together(model, [one(1), one(2), one("bad"), one(3)])
    assert isinstance(found[2], KeyError)
    assert [found[0], found[1], found[3]] == [[1], [4], [9]]
    assert len(model.calls) == 2 + 3  # the first, all together, and each by itself
    model = Squares(others=2)
    assert together(model, [one("bad"), one(2), one(3)])[1:] == [[4], [9]]
    assert model.square([5]) == [25]  # it goes on afterwards


@pytest.mark.hostile("parts")
def test_results_that_are_too_few_are_nobodys():
    model = Squares(others=2)
    assert together(model, [one(1), one("lost"), one(3)]) == [[1], ["lost"], [9]]


def test_calls_that_are_too_many_for_one():
    model = Squares(others=2)
    half = list(range(MOST // 2 + 1))
    together(model, [one(1), lambda m: m.square(half), lambda m: m.square(half)])
    assert [len(items) for items, _ in model.calls] == [1, len(half), len(half)]


def test_a_method_calls_others_of_its_object():
    model = Squares()
    assert model.twice([1, 2]) == [2, 8]
    assert model.learn(3) == 9
    assert (model.square.__doc__, model.square(items=[2])) == ("Docs.", [4])


def test_nothing_is_called_during_what_must_be_alone():
    class Counter:
        def __init__(self):
            self.value = 0

        @alone
        def add(self):
            before = self.value
            os.sched_yield()
            self.value = before + 1

        @batched
        def read(self, items):
            first = self.value
            os.sched_yield()
            return [self.value - first] * len(items)

    counter = Counter()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda k: counter.read([k])[0] if k % 2 else counter.add(), range(400)))
    assert (counter.value, set(found)) == (200, {0, None})


def test_an_interrupted_call_gives_the_turn_back():
    class Stopped(Squares):
        @batched
        def square(self, items):
            raise KeyboardInterrupt

    model = Stopped()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            model.square([1])
    assert (calls_of(model)._owner, calls_of(model)._waiting) == (None, [])


def test_a_copy_has_calls_of_its_own():
    model = Squares()
    model.learn(2)
    queue = calls_of(model)
    assert queue is calls_of(model)
    assert copy.deepcopy(queue) is not queue
    assert copy.deepcopy(queue)._owner is None
