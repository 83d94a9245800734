"""The queue: who is asked what, skipping, taking back, two people, restarts and kills."""

import json
from contextlib import contextmanager
from itertools import count

import numpy as np
import pytest

from guerdon.annotate.consensus import label_of
from guerdon.annotate.judgements import (
    APART,
    HELD_S,
    LOG,
    Ask,
    Judgement,
    Judgements,
    KeyConflictError,
    NoSuchItemError,
    NotHandedError,
)

KEYS = count()


class Queue:
    """Judgements of items a0, a1, ..., with a clock that a test moves."""

    def __init__(self, folder, n=4, people=("",), twice=(), gone=(), kind="responses"):
        self.now = 1000.0
        asks = [Ask(f"a{k}", None if k in gone else k, k + 1, 1 / (n - k), k in twice, False) for k in range(n)]
        self.of = Judgements(folder, kind, asks, list(people), clock=lambda: self.now)

    def judge(self, ticket, word="right", person="", **more):
        content = {"key": f"key-{next(KEYS):04}", "item": ticket, "judgement": word, **more}
        self.of.judge(person, content)
        return content


@contextmanager
def queue(folder, *args, **more):
    found = Queue(folder, *args, **more)
    try:
        yield found
    finally:
        found.of.close()


def test_items_are_held_judged_and_skipped_to_the_end(tmp_path):
    with queue(tmp_path) as q:
        assert q.of.next("", 2) == ["a0", "a1"]
        assert q.of.next("", 3) == ["a0", "a1", "a2"]
        q.judge("a0")
        q.judge("a1", "skip")
        assert (q.of.done(""), q.of.left("")) == (1, 3)
        assert q.of.next("", 5) == ["a2", "a3", "a1"]
        q.judge("a2", "cannot_tell")
        q.judge("a3", "wrong")
        assert q.of.next("", 5) == ["a1"]
        q.judge("a1")
        assert q.of.next("", 5) == []
        assert (q.of.done(""), q.of.left(""), q.of.skipped) == (4, 0, 0)


def test_what_is_taken_back_comes_first_again_and_again_after_a_restart(tmp_path):
    with queue(tmp_path) as q:
        q.of.next("", 3)
        first, second = q.judge("a0"), q.judge("a1", "wrong", note="no sum")
        undone = q.of.undo("", "undo-0001", None)
        assert (undone.key, undone.word, undone.note) == (second["key"], "wrong", "no sum")
        assert q.of.next("", 2) == ["a1", "a2"]
        assert q.of.left("") == 3
    with queue(tmp_path) as q:
        assert (q.of.done(""), q.of.left(""), q.of.taken_back) == (1, 3, 1)
        assert q.of.next("", 2) == ["a1", "a2"]
        assert q.of.undo("", "undo-0001", None).key == second["key"]  # the same request, no second row
        assert q.of.undo("", "undo-0002", first["key"]).key == first["key"]
        assert q.of.undo("", "undo-0003", None) is None
        with pytest.raises(NoSuchItemError):
            q.of.undo("", "undo-0004", first["key"])
    rows = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert [row.get("undo") for row in rows] == [None, None, second["key"], first["key"]]
    assert {"time", "key", "item", "person", "judgement", "draw", "draw_probability", "pool"} <= rows[0].keys()


def test_a_key_makes_a_request_harmless(tmp_path):
    with queue(tmp_path) as q:
        q.of.next("", 2)
        content = q.judge("a0", seconds=2.5)
        assert q.of.judge("", content) == "a0"
        with pytest.raises(KeyConflictError):
            q.of.judge("", {**content, "judgement": "wrong"})
        with pytest.raises(NotHandedError) as error:
            q.judge("a0")
        assert error.value.judged
        with pytest.raises(NotHandedError):
            q.judge("a3")
        with pytest.raises(NoSuchItemError):
            q.judge("b0")
    with queue(tmp_path) as q:  # what the page kept while the server was away
        assert q.of.judge("", content) == "a0"
        assert q.judge("a1")["item"] == "a1"
        assert q.of.done("") == 2


def test_a_line_that_a_kill_cut_off_is_no_judgement(tmp_path):
    with queue(tmp_path) as q:
        q.of.next("", 2)
        q.judge("a0")
        content = q.judge("a1")
    log = (tmp_path / LOG).read_bytes()
    (tmp_path / LOG).write_bytes(log[:-9])
    with queue(tmp_path) as q:
        assert q.of.done("") == 1
        q.of.judge("", content)
        assert q.of.done("") == 2


def test_one_person_judges_some_twice_and_not_at_once(tmp_path):
    n = APART + 5
    with queue(tmp_path, n, twice={0, n - 1}) as q:
        order = []
        while tickets := q.of.next("", 1):
            order += tickets
            q.judge(tickets[0])
        assert len(order) == n + 2
        assert order.index("a0.2") == APART + 1  # 20 others between them
        assert order[-1] == f"a{n - 1}.2"  # where there are not so many, at the end
        assert [len(those) for those in q.of.given] == [2, *[1] * (n - 2), 2]


def test_two_people(tmp_path):
    with queue(tmp_path, people=("ann", "bo"), twice={1}) as q:
        assert q.of.next("ann", 2) == ["a0", "a1"]
        assert q.of.next("bo", 9) == ["a1", "a2", "a3"]  # a1 is for both, a0 is in ann's hands
        assert q.of.next("ann", 9) == ["a0", "a1"]
        assert q.of.left("ann") == 4
        q.judge("a1", "right", "ann")
        q.judge("a1", "wrong", "bo")
        assert label_of(q.of.given[1]).reason == "no_consensus"
        with pytest.raises(NotHandedError):
            q.judge("a2", "right", "ann")
        q.now += HELD_S + 1  # bo has gone: ann gets what bo has not judged
        assert q.of.next("ann", 9) == ["a0", "a2", "a3"]
        q.judge("a2", "right", "bo")  # later than that, and taken
        q.judge("a2", "right", "ann")
        assert len(q.of.given[2]) == 2
        assert q.of.next("bo", 9) == []
        assert (q.of.left("ann"), q.of.left("bo")) == (2, 2)


def test_what_is_in_the_hands_of_a_person_stays_there_over_a_restart(tmp_path):
    with queue(tmp_path, people=("ann", "bo")) as q:
        assert q.of.next("bo", 3) == ["a0", "a1", "a2"]
        q.judge("a1", "right", "bo")
    with queue(tmp_path, people=("ann", "bo")) as q:
        assert q.of.next("ann", 9) == ["a3"]
        q.now += HELD_S + 1  # bo has not come back
        assert q.of.next("ann", 9) == ["a3", "a0", "a2"]


def test_judgements_of_items_that_are_gone_are_orphans(tmp_path):
    with queue(tmp_path) as q:
        q.of.next("", 4)
        q.judge("a0")
        kept = q.judge("a1")
    with queue(tmp_path, gone={0, 2}) as q:
        assert q.of.orphans == {"a0": 1}
        assert (q.of.done(""), q.of.left("")) == (1, 1)
        assert q.of.next("", 9) == ["a3"]
        assert q.of.undo("", "undo-0001", None).key == kept["key"]
        with pytest.raises(NoSuchItemError):
            q.judge("a2")


def said(word, value, row=None):
    return Judgement("key", "ann", "a0", 0, word, value, row)


def test_what_several_judgements_say():
    right, wrong, unsure = said("right", 1.0), said("wrong", 0.0), said("cannot_tell", np.nan)
    assert label_of([]).reason == "not_judged"
    assert label_of([unsure]).reason == "cannot_tell"
    one = label_of([right, wrong, right, unsure])
    assert (one.value, one.agreed, one.judgements) == (1.0, 2 / 3, 4)
    assert label_of([said("discard", np.nan), said("discard", np.nan), right]).reason == "discard"
    moments = [said("success", 1.0, row) for row in (7, 3, 5)] + [said("success", 1.0)]
    assert label_of(moments).row == 5
