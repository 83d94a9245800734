"""Steps partition the text, with every splitter; the rewards HE and SE of steps."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_texts import LATER, TEXTS

from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError
from guerdon.labels.data_set import hard_exact, soft_exact, target, with_rewards
from guerdon.policies.batches.step_splitters import split
from guerdon.settings.label import Splitter
from tables import cases, sample

PIECES = st.sampled_from(
    ["a", "1.5", ". ", "! ", "?", "\n", "\n\n", " \n \n", "```\n", "~~~", "<llm-code>", "</llm-code>", "<step>",
     "</step>", "Step 3", "[ADVANCE] ", ";", " ", "e.g. ", "\t", "\r\n", "é", "#", "$", "$$", "\\[", "\\]", "\\(",
     "\\)", "`", "``", "\\begin{align}", "\\end{align}",
     "1. ", "5!", "...", "。", "」", "।", "🎉", "|", "\ue000", '"', "**", "A. "]
)  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.lists(PIECES, max_size=14).map("".join) | st.text(max_size=30), st.sampled_from(get_args(Splitter)))
def test_steps_are_the_text_again(text, splitter):
    steps = split(text, splitter, separator=";")
    assert "".join(steps) == (text if text.strip() else "")
    assert all(step.strip() for step in steps) or splitter == "separator"


@cases(
    ("splitter", "text", "steps"),
    [
        ("blank_line", "Let x=3.\nSo.\n\n\nThen 4.\n \nEnd.\n", ["Let x=3.\nSo.\n\n\n", "Then 4.\n \n", "End.\n"]),
        ("blank_line", "\n\nA\n\nB", ["\n\nA\n\n", "B"]),
        ("newline", "a\nb\n\nc", ["a\n", "b\n\n", "c"]),
        ("sentence", "Pi is 3.14. So, e.g. two! (Yes.) End", ["Pi is 3.14. ", "So, e.g. two! ", "(Yes.) ", "End"]),
        ("sentence", "By eq. 3 it is 5. Done\nNext", ["By eq. 3 it is 5. ", "Done\n", "Next"]),
        ("code_block", "Run. Now:\n```py\nx=1. \n\ny\n```\nIt is 1.",
         ["Run. ", "Now:\n", "```py\nx=1. \n\ny\n```\n", "It is 1."]),
        ("code_block", "a. <llm-code>\nx. y\n</llm-code> b.", ["a. ", "<llm-code>\nx. y\n</llm-code> ", "b."]),
        ("code_block", "a. ```never closed. b", ["a. ", "```never closed. b"]),
        ("tags", "So <step>1</step>\n<step>2</step> end", ["So ", "<step>1</step>\n", "<step>2</step> ", "end"]),
        ("tags", "Step 1: a\nStep 2: b [NOT]\n## Step 3: c", ["Step 1: a\n", "Step 2: b [NOT]\n", "## Step 3: c"]),
        ("tags", "[ASSESS]\nx\n[ADVANCE]\ny", ["[ASSESS]\nx\n", "[ADVANCE]\ny"]),
        ("separator", "3+5=8;8*2=6;", ["3+5=8;", "8*2=6;"]),
        ("separator", "3+5=8;8", ["3+5=8;", "8"]),
    ],
)  # fmt: skip
def test_where_steps_end(splitter, text, steps):
    assert list(split(text, splitter, separator=";")) == steps


@cases("name", [*TEXTS, *LATER])
def test_sentences_end_where_a_reader_ends_them(name):
    marked = (TEXTS | LATER)[name]
    assert "¦".join(split(marked.replace("¦", ""), "sentence")) == marked


PARTS = st.sampled_from(
    ["$x = 3. y$", "$$a! = b. C$$", "\\[\na. B\n\\]", "\\(1. 2\\)", "`f(x). G`", "```\na. B\n\nc\n```",
     "~~~\na! B\n~~~", "\\begin{align*}\nx &= 1. \\\\\n\ny &= 2\n\\end{align*}", "\\begin{cases}1. & 2\\end{cases}"]
)  # fmt: skip
PROSE = st.sampled_from(["We add 3. Then ", "Is it so? Yes. ", "\n", "1. ", "so ", "设x=3。"])


@given(st.lists(st.tuples(PROSE, PARTS), min_size=1, max_size=6), st.sampled_from(["sentence", "code_block"]))
def test_mathematics_and_code_are_never_cut(parts, splitter):
    text = "".join(f"{prose}{part} " for prose, part in parts)
    steps = split(text, splitter)
    assert "".join(steps) == text
    ends, at = {sum(map(len, steps[:k])) for k in range(len(steps))}, 0
    for prose, part in parts:
        at += len(prose)
        assert not ends.intersection(range(at + 1, at + len(part))), part
        at += len(part) + 1


def test_code_is_a_step_of_its_own_where_it_is_asked_for():
    text = "Take ```x = 1. 2``` here. Then\n````\n```\na. B\n```\n````\nend <llm-code>\nx. Y\n</llm-code> now."
    assert split(text, "code_block") == (
        "Take ", "```x = 1. 2``` ", "here. ", "Then\n", "````\n```\na. B\n```\n````\n", "end ",
        "<llm-code>\nx. Y\n</llm-code> ", "now.",
    )  # fmt: skip
    assert split(text, "sentence")[0] == "Take ```x = 1. 2``` here. "


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "piece",
    sample(
        ["a. ", "1. ", "$", "$a\n", "\\[", "\\begin{align}", "`", "``", "…", "x! ", '. "', "| a. b", "。」"],
        "$",
        "\\begin{align}",
        "`",
        '. "',
        "。」",
    ),
)
def test_long_texts_take_no_quadratic_time(piece):
    text = piece * (60_000 // len(piece))
    for splitter in ("sentence", "code_block"):
        assert "".join(split(text, splitter)) == text


def test_a_separator_must_be_known():
    with pytest.raises(ConfigError, match="the task's own separator"):
        split("a;b", "separator")
    assert split(" \n", "blank_line") == ()


def test_hard_exact_is_the_seeds():
    assert [hard_exact(label, ok) for label in (1.0, 0.0) for ok in (True, False)] == [1.0, -1.0, -1.0, -1.0]
    assert hard_exact(1.0, None) is None
    assert hard_exact(0.0, None) == -1.0
    assert hard_exact(None, True) is None
    assert (hard_exact(0.5, True), hard_exact(0.49, True)) == (1.0, -1.0)


def test_soft_exact_is_the_seeds():
    assert [soft_exact(1.0, i, 4) for i in range(4)] == [0.625, 0.75, 0.875, 1.0]
    assert [soft_exact(0.0, i, 2) for i in range(2)] == [-0.75, -1.0]
    assert soft_exact(None, 0, 2) is None


def test_rewards_travel_with_the_solution_and_keep_their_size():
    solution = Solution("s", "q", ("a", "b", "c"), (1.0, 0.2, None), is_correct=False)
    assert with_rewards(solution, "SE").rewards == (2 / 3, -(0.5 + 0.5 * 2 / 3), None)
    assert with_rewards(solution, "HE").rewards == (-1.0, -1.0, None)
    assert with_rewards(Solution("s", "q", ("a",)), "SE").rewards == ()
    assert [target(r) for r in (-1.0, -0.75, 0.75, 1.0)] == [0.0, 0.125, 0.875, 1.0]
