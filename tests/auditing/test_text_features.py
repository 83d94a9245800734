"""What is quick to see first changes nothing: features of texts are those that their patterns find."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from guerdon.auditing import paid, program_checks
from guerdon.auditing.association import mean_ranks
from guerdon.auditing.program_checks import TRICKS
from guerdon.auditing.text_features import (
    FLATTERY,
    LAYOUTS,
    MANY_TIMES,
    MARKS,
    REFUSAL,
    contain,
    flatters,
    has_mark,
    language_of,
    refuse,
    repetition,
    with_layout,
    words_of,
)

PIECES = (
    "I can't help", "cannot assist", "not able to answer", "won't be able to do", "as an AI", "against our policy",
    "great question", "You are absolutely right", "your deep insight is", "how well you", "am so impressed",
    "sharp mind", "only an expert", "must decline", "darf das nicht", "no puedo ayudar", "lo siento", "####",
    "\\boxed{3}", "<answer>", "The ANSWER: 3", "xanswer is", "answer is", "\na: 4", "a: 5", "- item", "* b", "\n1. one",
    "12) x", "# head", "\n## h", "**bold**", "|a|b|", "\n|x|", "```", "</tag>", "\U0001f600", "!", "é", "中文",
    "I can\u2019t help", "CANNO\u0054 ASSI\u017fT", "aN\u017fwer is", "wor\u212a", "\u0130 am impressed",
    "as an artificial intelligence", "I am unable to share", "won\u2019t do", "Je suis D\u00c9SOL\u00c9",
    "НЕ МОГУ помочь", "не м\u1c82гу ответить", "w\u0131ll not help", "我无法", "抱歉", "申し訳",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).flatmap(
    lambda pieces: st.sampled_from(["", " ", "\n", ". "]).map(lambda between: between.join(pieces))
)


@given(st.lists(TEXTS, max_size=4))
def test_quick_features_are_those_of_the_patterns(texts):
    for name, layout in LAYOUTS.items():
        assert with_layout(name, texts).tolist() == [bool(layout.search(text)) for text in texts]
    assert [has_mark(text) for text in texts] == [bool(MARKS.search(text)) for text in texts]
    assert refuse(texts).tolist() == [bool(REFUSAL.search(text[:400])) for text in texts]
    ends = [f"{text[:400]} {text[-200:]}" for text in texts]
    assert flatters(texts)["responses that flatter"].tolist() == [bool(FLATTERY.search(text)) for text in ends]


PROGRAMS = (
    "def f(x):\n    if x == 1: return 2\n    elif x == 2: return 3\n    if x == 3:\n        return 4",
    "table = {1: 2, 3: 4}\nreturn table[x]", "RETURN {1: 2, 3: 4}.get(x)", "open('Test.py', 'w')", "x = 1",
    "shutil.rmtree('te\u017fts')", "def __EQ__(self, other): return True", "monkeypatch.setattr(grade)",
    "sed -i s/a/b/ test.py", "check = lambda *_: True", "os._exit(0)", "quit()", "raise SystemExit", "os.kill(1)",
    "mark.skip", "raise SkipTest", "process.exit(0)", "return 1",
)  # fmt: skip


@given(st.lists(st.sampled_from(PROGRAMS), max_size=3).map("\n".join))
def test_tricks_are_those_of_their_patterns(program):
    found = {name: finder([program]).tolist() for name, finder in TRICKS.items()}
    cases, table = program_checks._CASE.findall(program), program_checks._TABLE.search(program)
    assert found == {
        "tests edited": [bool(program_checks._EDITED.search(program))],
        "literals for literal inputs": [len(cases) >= 3 or bool(table)],
        "an early exit or skipped tests": [bool(program_checks._EXIT.search(program))],
    }


@given(st.text(st.sampled_from("aB9_ .'\n\t\x1c\u00a0é中")))
def test_words_are_runs_of_letters_digits_and_underscores(text):
    assert words_of(text) == re.findall(r"\w+", text.lower())


def test_a_language_is_told_by_the_most_frequent_words_or_by_the_script():
    assert [language_of(text) for text in ("der und die", "the of", "the", "", "不知道", "これは本")] == [
        "de", "en", "", "", "zh", "ja",
    ]  # fmt: skip
    assert language_of("the of and " + "x " * 300 + "der die das " * 20) == "en"


@pytest.mark.parametrize("piece", PIECES)
def test_each_piece_alone(piece):
    assert has_mark(piece) == bool(MARKS.search(piece))
    assert refuse([piece]).tolist() == [bool(REFUSAL.search(piece))]
    assert contain([piece, ""], [piece]).tolist() == [True, False]


@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_repetition_counts_phrases_of_four(words):
    phrases = [tuple(words[k : k + 4]) for k in range(len(words) - 3)]
    share, most = 0.0, 0
    if len(words) >= 8:
        share, most = 1 - len(set(phrases)) / len(phrases), max(map(phrases.count, phrases))
    assert repetition(" ".join(words)) == (share, most >= MANY_TIMES)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, -2.0]), min_size=1))
def test_equal_values_share_their_mean_rank(values):
    assert mean_ranks(values).tolist() == rankdata(values).tolist()


@given(st.lists(st.lists(st.sampled_from(["on", "off", "once", "re-on", "On,", "a.b"]), max_size=12), min_size=1))
def test_a_phrase_is_found_as_words_in_a_row(texts):
    said = [" ".join(words) for words in texts]
    words = [paid._words(text) for text in said]
    for phrase in ("on", "on off", "a b on", "re on"):
        pattern = re.compile(r"\b" + r"\W+".join(phrase.split()) + r"\b")
        assert [f" {phrase} " in one for one in words] == [bool(pattern.search(text.lower())) for text in said]


def test_runs_of_words_are_those_that_most_rows_above_the_others_have():
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["red", "green", "blue", "grey", "pink"], 6)) for _ in range(400)]
    paid_for = np.array(["blue grey pink" in text for text in texts])
    found = dict(paid._phrases([paid._words(text) for text in texts], paid_for - paid_for.mean()))
    for phrase, has in found.items():
        assert has.tolist() == [f" {phrase} " in f" {text} " for text in texts]
    assert "blue grey pink" in found
    assert all(paid.FEWEST <= has.sum() <= len(texts) - paid.FEWEST for has in found.values())
