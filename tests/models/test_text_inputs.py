"""A label must stand on the last token of its own step, whatever the tokenizer: checked on text tokenised anew."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.episodes.solution_formats import training_text
from guerdon.errors import DataError
from guerdon.models.text.text_inputs import Reading, buckets, read_steps
from guerdon.models.text.verdict import verdict_reading
from guerdon.policies.language.tiny_text import byte_tokenizer, character_tokenizer
from guerdon.settings.text_policy import PRINTABLE

CORPUS = [
    "So 3+5=8.\n\nThen 8*2=16.\n\nSo the answer is 16.\n\n",
    "### Question:\n",
    "\n\n### Evaluate this step:\n",
] * 20
MERGING = byte_tokenizer(CORPUS, vocabulary_size=340)
BYTES = byte_tokenizer()
CHARACTERS = character_tokenizer(PRINTABLE)
QUESTION = "What is 3+5, doubled?"
STEPS = ["So 3+5=8.\n\n", "Then 8*2=16.\n\n", "So the answer is 16."]


def texts_of(tokenizer, reading):
    """What stands between one mark and the next."""
    cuts = [reading.start, *(reading.ends_S + 1)]
    return [tokenizer.decode(reading.ids[a:b]) for a, b in itertools.pairwise(cuts)]


@pytest.mark.parametrize("tokenizer", [MERGING, BYTES, CHARACTERS], ids=["merging", "bytes", "characters"])
def test_every_step_ends_where_its_own_text_does(tokenizer):
    reading = read_steps(tokenizer, QUESTION, STEPS)
    assert texts_of(tokenizer, reading) == STEPS
    chat = f"<|bos|><|user|>{QUESTION}<|assistant|>"
    assert tokenizer.decode(reading.ids[: reading.start], skip_special_tokens=False) == chat
    np.testing.assert_array_equal(reading.ids[: reading.start], tokenizer.encode(chat, add_special_tokens=False))


def test_the_golden_ids_of_two_steps():
    ids = {c: 7 + i for i, c in enumerate("0123456789+=;?")}
    reading = read_steps(character_tokenizer("0123456789+=;?"), "3+5=?", ["3+5=8;", "8;"])
    wanted = [1, 5, *(ids[c] for c in "3+5=?"), 6, *(ids[c] for c in "3+5=8;8;")]
    assert reading.ids.tolist() == wanted
    assert reading.start == 8
    assert reading.ends_S.tolist() == [13, 15]  # the two semicolons
    closed = read_steps(character_tokenizer("0123456789+=;?"), "3+5=?", ["3+5=8;", "8;"], closed=True)
    assert closed.ids.tolist() == [*wanted, 2]
    assert closed.ends_S.tolist() == [13, 15]


def stepwise_supervision(tokenizer, prompt, completions, separator, labels):
    """Ids and labels as TRL's PRMTrainer made them: steps and separators by themselves, labels on separators' ends."""
    mark = tokenizer.encode(separator, add_special_tokens=False)
    pieces = [tokenizer.encode(c, add_special_tokens=False) + mark for c in completions]
    marks = [[-100] * (len(p) - 1) + [int(label)] for p, label in zip(pieces, labels, strict=True)]
    ids = [*prompt, *(i for p in pieces for i in p)]
    return ids, [-100] * len(prompt) + [m for piece in marks for m in piece]


@pytest.mark.parametrize("tokenizer", [BYTES, CHARACTERS], ids=["bytes", "characters"])
@pytest.mark.parametrize("separator", ["\n", "\n\n", ";"])
def test_labels_stand_where_stepwise_supervision_puts_them(tokenizer, separator):
    completions, labels = ["3+5=8", "8*2=15", "so 15"], [1, 0, 0]
    reading = read_steps(tokenizer, QUESTION, [c + separator for c in completions])
    ids, marks = stepwise_supervision(tokenizer, reading.ids[: reading.start].tolist(), completions, separator, labels)
    assert reading.ids.tolist() == ids
    assert [(k, m) for k, m in enumerate(marks) if m != -100] == list(zip(reading.ends_S.tolist(), labels, strict=True))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(alphabet="So 3+5=8.\nthé🙂", max_size=9), min_size=1, max_size=6))
def test_no_step_is_read_differently_because_of_those_behind_it(steps):
    whole = read_steps(MERGING, QUESTION, steps)
    assert texts_of(MERGING, whole) == steps
    for k in range(1, len(steps) + 1):
        part = read_steps(MERGING, QUESTION, steps[:k])
        np.testing.assert_array_equal(part.ids, whole.ids[: len(part.ids)])
        np.testing.assert_array_equal(part.ends_S, whole.ends_S[:k])


def test_a_step_without_text_has_no_token_of_its_own():
    reading = read_steps(CHARACTERS, "q", ["", "a;", "", "b"])
    assert reading.own_S.tolist() == [False, True, False, True]
    assert reading.ends_S.tolist() == [reading.start - 1, reading.start + 1, reading.start + 1, reading.start + 2]


def test_an_unknown_character_is_said():
    with pytest.raises(DataError, match="does not know 'é'"):
        read_steps(CHARACTERS, "q", ["é"])


def test_the_verdict_form_ends_a_step_before_its_blanks():
    reading = verdict_reading(CHARACTERS, "q", ["a b. \n", "\n", "c"], 5)
    texts = [CHARACTERS.decode(reading.ids[: end + 1]) for end in reading.ends_S]
    opening = "### Question:\nq\n\n### Partial Solution:\n"
    assert texts == [opening + "a b.", opening + "a b.", opening + "a b. \n\nc"]
    for k, text in enumerate(texts):
        assert training_text("q", ["a b. \n", "\n", "c"][: k + 1]) == text + "\n\n### Evaluate this step:\n"
    assert len(reading) == len(reading.ids) + 15
    assert reading.reach == len(reading.ids) + 5


def test_buckets_keep_every_reading_and_put_the_like_long_together():
    lengths = [5, 1, 9, 2, 5, 7]
    readings = [Reading(np.zeros(n, dtype=np.int64), 1, np.zeros(1, dtype=np.int64)) for n in lengths]
    groups = buckets(readings, 2)
    assert sorted(i for g in groups for i in g) == list(range(6))
    assert [[lengths[i] for i in g] for g in groups] == [[1, 2], [5, 5], [7, 9]]
