import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.errors import ConfigError, DataError
from guerdon.policies.batches import tokens
from guerdon.policies.batches.tokens import (
    TokenBatch,
    concatenate,
    judged_texts,
    pad_left,
    pad_right,
    prompt_ids,
    response_ids,
    response_texts,
    sequence,
    split_steps,
    step_ends,
    token_batch,
    token_ends,
)
from guerdon.policies.language.tiny_text import byte_tokenizer, character_tokenizer
from tables import refuses

CHAT = [{"role": "system", "content": "Hi"}, {"role": "user", "content": "1+2=?"}]
CHARACTERS = character_tokenizer("0123456789+=?Hi;\n ")
BYTES = byte_tokenizer()
PAIRS = byte_tokenizer(["the cat.\n\nSo the cat.\n"] * 20, vocabulary_size=290)
ROWS = st.lists(st.lists(st.integers(1, 99), max_size=6), min_size=1, max_size=5)


def rows_of(lists):
    return [np.array(r, dtype=np.int64) for r in lists]


def test_golden_ids_of_a_chat():
    # special: pad 0, bos 1, eos 2, unknown 3, system 4, user 5, assistant 6; then the alphabet from 7
    ids = prompt_ids(CHARACTERS, CHAT)
    assert ids.dtype == np.int64
    assert ids.tolist() == [1, 4, 20, 21, 5, 8, 17, 9, 18, 19, 6]
    assert response_ids(CHARACTERS, "=3").tolist() == [18, 10, 2]
    assert sequence(ids, response_ids(CHARACTERS, "=3")).tolist() == [*ids, 18, 10, 2]


def test_golden_ids_of_bytes():
    assert BYTES.decode(prompt_ids(BYTES, CHAT)) == "<|bos|><|system|>Hi<|user|>1+2=?<|assistant|>"
    assert prompt_ids(BYTES, CHAT).tolist() == [1, 3, 45, 78, 4, 22, 16, 23, 34, 36, 5]
    assert response_ids(BYTES, "é").tolist() == [133, 108, 2]


def test_an_earlier_answer_is_closed_and_the_next_one_opened():
    chat = [*CHAT, {"role": "assistant", "content": "3"}, {"role": "user", "content": "0"}]
    assert prompt_ids(CHARACTERS, chat).tolist() == [*prompt_ids(CHARACTERS, CHAT), 10, 2, 5, 7, 6]


def test_there_is_one_beginning_even_where_the_tokenizer_adds_its_own():
    from tokenizers.processors import TemplateProcessing

    tokenizer = character_tokenizer("ab")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<|bos|> $A", special_tokens=[("<|bos|>", 1)])
    assert tokenizer.encode("a")[0] == 1  # it does add one
    ids = prompt_ids(tokenizer, [{"role": "user", "content": "ab"}])
    assert ids.tolist() == [1, 5, 7, 8, 6]
    assert response_ids(tokenizer, "b").tolist() == [8, 2]


def test_what_the_tokenizer_cannot_say_is_an_error():
    with pytest.raises(DataError, match="'x', 'é'"):
        response_ids(CHARACTERS, "1x2éx")
    bare = character_tokenizer("ab")
    bare.chat_template = None
    with refuses("policy.chat_template"):
        prompt_ids(bare, CHAT)
    bare.eos_token = None
    with pytest.raises(ConfigError, match="end-of-sequence"):
        response_ids(bare, "a")


def test_what_ends_a_response():
    class Config:
        eos_token_id = (2, 7)

    assert tokens.stop_ids(CHARACTERS).tolist() == [2]
    assert tokens.stop_ids(CHARACTERS, Config()).tolist() == [2, 7]
    assert tokens.pad_id(CHARACTERS) == 0


@given(ROWS)
def test_padding_keeps_every_id_in_its_place(lists):
    rows = rows_of(lists)
    for pad, kept in ((pad_right, lambda r, n: r[:n]), (pad_left, lambda r, n: r[len(r) - n :])):
        padded, mask = pad(rows, 0)
        assert padded.shape == (len(rows), max(len(r) for r in rows))
        for row, got, real in zip(rows, padded, mask, strict=True):
            np.testing.assert_array_equal(kept(got, len(row)), row)
            assert real.sum() == len(row)
            assert (got[~real] == 0).all()


@given(ROWS, st.data())
def test_batches_are_taken_apart_and_put_together(lists, data):
    responses = rows_of(lists)
    prompts = [np.arange(1, 3 + i) for i in range(len(responses))]
    finished = np.arange(len(responses)) % 2 == 0
    batch = token_batch(prompts, responses, finished, pad_id=0)
    assert [r.tolist() for r in batch.responses()] == lists
    assert [s.tolist() for s in batch.sequences()] == [[*p, *r] for p, r in zip(prompts, lists, strict=True)]
    order = data.draw(st.permutations(range(len(lists))))
    cut = data.draw(st.integers(0, len(lists)))
    parts = [batch.take(order[:cut]), batch.take(np.array(order[cut:], dtype=np.int64))]
    again = concatenate(parts, pad_id=0).take(np.argsort(order))
    assert [r.tolist() for r in again.responses()] == lists
    np.testing.assert_array_equal(again.finished_B, finished)
    np.testing.assert_array_equal(batch.take(finished).lengths_B, batch.lengths_B[finished])


def test_a_batch_refuses_what_does_not_fit():
    one = (np.array([1]),)
    with pytest.raises(ValueError, match="finished"):
        TokenBatch(one, np.zeros((1, 2), np.int64), np.ones((1, 2), bool), np.ones(2, bool))
    with pytest.raises(ValueError, match="right"):
        TokenBatch(one, np.zeros((1, 2), np.int64), np.array([[False, True]]), np.ones(1, bool))


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("a\nb", ["a\n", "b"]),
        ("a\nb\n", ["a\n", "b\n"]),
        ("\n\na\n\n b\n \n", ["\n\na\n\n", " b\n \n"]),
        ("", [""]),
        ("\n", ["\n"]),
        ("  \n a", ["  \n a"]),
    ],
)
def test_steps_of_a_text(text, steps):
    assert split_steps(text, "\n") == steps


@given(st.text("ab \n;", max_size=30), st.sampled_from(["\n", ";", "\n\n"]))
def test_steps_are_the_text_and_none_is_blank(text, separator):
    steps = split_steps(text, separator)
    assert "".join(steps) == text
    if text.replace(separator, "").strip():
        assert all(s.replace(separator, "").strip() for s in steps)


def test_ends_of_steps_by_hand():
    ids = response_ids(CHARACTERS, "1+2=3;\n0;\n5")
    ends = token_ends(CHARACTERS, ids)
    assert ends.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11]
    assert step_ends(ends, "1+2=3;\n0;\n5", "\n").tolist() == [6, 9, 11]
    # a text that ends with the separator: the end-of-sequence token belongs to the last step
    assert step_ends(token_ends(CHARACTERS, response_ids(CHARACTERS, "1;2;")), "1;2;", ";").tolist() == [1, 4]
    assert step_ends(token_ends(CHARACTERS, ids[:0]), "", ";").tolist() == []


def test_a_token_across_the_end_of_a_step_ends_it():
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([".\n", "\nSo"])
    ids = response_ids(tokenizer, "A.\nSo\nSo")
    assert [tokenizer.decode([i]) for i in ids] == ["A", ".\n", "S", "o", "\nSo", "<|eos|>"]
    ends = token_ends(tokenizer, ids)
    assert ends.tolist() == [1, 3, 4, 5, 8, 8]
    assert step_ends(ends, "A.\nSo\nSo", "\n").tolist() == [1, 4, 5]
    # two steps inside one token: one index each, in order
    assert step_ends(np.array([6, 7]), "a\nb\nc\nd", "\n").tolist() == [0, 0, 0, 1]


@settings(deadline=None, max_examples=60)
@given(st.text("aé→😀\n .", max_size=12), st.sampled_from([BYTES, PAIRS]))
def test_tokens_and_characters_keep_step(text, tokenizer):
    ids = response_ids(tokenizer, text)
    ends = token_ends(tokenizer, ids)
    assert len(ends) == len(ids)
    assert (np.diff(ends) >= 0).all()
    assert ends[-1] == len(text)
    for t in range(len(ids)):  # what is there after a token is a prefix of the text, up to broken characters
        there = tokenizer.decode(ids[: t + 1], skip_special_tokens=True).rstrip("\ufffd")
        assert there == text[: ends[t]]
    found = step_ends(ends, text, "\n")
    assert len(found) == len(split_steps(text, "\n"))
    assert found[-1] == len(ids) - 1
    assert (np.diff(found) >= 0).all()


def test_a_response_cut_inside_a_character():
    ids = response_ids(BYTES, "a😀")[:3]
    assert token_ends(BYTES, ids).tolist()[:1] == [1]
    text = BYTES.decode(ids, skip_special_tokens=True)
    assert step_ends(token_ends(BYTES, ids, text), text, "\n").tolist() == [2]


def test_a_tokenizer_that_changes_does_not_mislead_what_was_decoded_before():
    tokenizer = character_tokenizer("ab")
    ids = response_ids(tokenizer, "aba")
    assert token_ends(tokenizer, ids).tolist() == [1, 2, 3, 3]
    tokens._PIECES[tokenizer][int(ids[0])] = "gone"  # as if another piece had stood there
    assert token_ends(tokenizer, ids).tolist() == [1, 2, 3, 3]
    assert token_ends(character_tokenizer("ba"), ids).tolist() == [1, 2, 3, 3]


@pytest.mark.parametrize("tokenizer", [CHARACTERS, PAIRS], ids=["characters", "pairs"])
def test_many_chats_have_the_lengths_that_they_have_one_by_one(tokenizer, monkeypatch):
    monkeypatch.setattr(tokens, "AT_ONCE", 3)
    chats = [[{"role": "user", "content": "1+2=?" * k + "Hi"}] for k in range(8)]
    assert tokens.prompt_lengths(tokenizer, chats) == [len(tokens.prompt_ids(tokenizer, chat)) for chat in chats]
    assert tokens.prompt_lengths(tokenizer, []) == []


def test_an_unknown_character_is_found_among_many_chats():
    with pytest.raises(DataError, match="does not know 'Z'"):
        tokens.prompt_lengths(CHARACTERS, [[{"role": "user", "content": text}] for text in ("1", "Z", "2")])


def test_a_verifier_reads_the_reasoning_that_the_template_began():
    tokenizer = byte_tokenizer()
    for opening, begun in (("<|assistant|><think>\n", "<think>\n"), ("<|assistant|>", "")):
        tokenizer.chat_template = "{{ messages[0]['content'] }}{% if add_generation_prompt %}" + opening + "{% endif %}"
        prompt = prompt_ids(tokenizer, CHAT[1:])
        responses = [response_ids(tokenizer, text) for text in ("so 3</think>4", "so 3")]
        batch = token_batch([prompt, prompt], responses, np.array([True, True]), pad_id=0)
        texts = response_texts(tokenizer, batch)
        assert texts == ["so 3</think>4", "so 3"]
        assert judged_texts(tokenizer, batch, texts) == [begun + text for text in texts]
