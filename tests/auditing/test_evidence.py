"""What is shown of a finding, which findings belong together, and what to do about them."""

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

from guerdon.auditing.checks import audit
from guerdon.auditing.evidence import excerpt, remedy_of, with_evidence
from guerdon.auditing.finding import REMEDIES, Finding
from guerdon.auditing.log_view import View
from guerdon.auditing.rows import Rows, Texts
from guerdon.cli import app
from tables import cases


def log(responses, reward, truth=None, **more):
    n = len(responses)
    at = np.arange(n)
    texts = Texts(at, [f"What is {i // 4}?" for i in at], list(responses))
    return Rows("plain columns", ("a",), at * 0, at, np.asarray(reward, float), texts=texts, prompt_N=at // 4,
                group_N=at // 4, truth_N=None if truth is None else np.asarray(truth, float), **more)  # fmt: skip


def finding(name="length", rows=(), phrases=(), severity="error", line="", title="t"):
    examples = tuple((row, line) for row in rows[:5])
    return Finding(name, severity, title, 0.5, (0.4, 0.6), "u", None, tuple(rows), examples, REMEDIES[name][1],
                   len(rows), 100, phrases=phrases, marked=np.asarray(rows, np.int64))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("refusal", "Hm. I'm sorry, but I cannot help with that request, since", "cannot help"),
        ("flattery", "What a great question! The sum is 7.", "great question"),
        ("repetition", "we add one and two so we add one and two again", "we add one and"),
        ("early_exit", "def f():\n    import os\n    os._exit(0)\n", "os._exit("),
        ("paid_wrong", "so first 3 and then The answer is 42", "answer is 42"),
        ("truncated", "so we " * 200, ""),
        ("paid", "I now, as an expert,  say 7", "as an expert"),
        ("tail", "I now say zebra Crossing 7", "zebra Crossing"),
    ],
)
def test_the_excerpt_is_around_what_was_found(name, text, found):
    of = {"paid": {"phrases": ("as an expert",)}, "tail": {"line": 'reward 3; contains "zebra crossing"'}}
    rows = log([text] * 8, np.arange(8))
    (one,) = with_evidence(View.whole(rows), [finding(name, (3, 4), **of.get(name, {}))])
    assert len(one.excerpts) == 2
    assert one.excerpts[0].found.strip() == found
    if name == "truncated":
        assert one.excerpts[0].before.endswith("so we so we ")
        assert one.excerpts[0].behind == ""


def test_excerpts_are_short_lines_without_characters_that_cannot_be_seen():
    text = "a" * 1000 + "\n\u202ex\ud800" + "b" * 1000
    one = excerpt(text, 1000, 1004)
    assert one.found == " [U+202E]x[U+D800]"
    assert one.before == "… " + "a" * 70
    assert one.behind == "b" * 70 + " …"


def test_examples_contradict_the_reward_where_the_truth_is_known():
    random = np.random.default_rng(0)
    n = 800
    truth = random.random(n) < 0.5
    cut = random.random(n) < 0.3
    reward = np.where(cut, 1.0, truth)
    rows = log([f"It is {i}." for i in range(n)], reward, truth, truncated_N=cut)
    found = {one.name: one for one in audit(rows).findings}
    for one in found.values():
        wrong_and_paid = [not truth[row] and reward[row] for row, _ in one.examples]
        if one.name in ("truncated", "paid_wrong", "agreement"):
            assert all(wrong_and_paid), one.name
    assert found["truncated"].examples[0][1].endswith("wrong")


def test_a_finding_of_the_run_shows_wrong_responses_that_are_paid_first():
    random = np.random.default_rng(1)
    n = 1600
    step = np.arange(n) // 40
    truth = (random.random(n) < 0.4).astype(float)
    reward = truth + 2 * step / step.max() + random.normal(0, 0.2, n)
    found = {one.name: one for one in audit(log([f"r{i}" for i in range(n)], reward, truth, step_N=step)).findings}
    assert all(truth[row] == 0 for row, _ in found["truth"].examples)
    assert found["truth"].excerpts == ()


def test_a_finding_about_groups_shows_the_group():
    truth = np.tile([1, 0, 0, 1], 40)
    rows = log([f"r{i}" for i in range(160)], np.repeat(np.arange(40) % 2, 4), truth)
    found = {one.name: one for one in audit(rows).findings}
    assert "rewards of its group 0, 0, 0, 0; truth 1, 0, 0, 1" in found["same_reward"].examples[0][1]


def test_findings_with_one_phrase_or_most_rows_in_common_are_one():
    rows = log(["r"] * 1000, np.arange(1000) % 7)
    first = finding("length", range(100))
    cases = {
        "most rows of the smaller": (finding("format", range(20, 60)), "length"),
        "too few": (finding("format", range(70, 130)), ""),
        "another place": (finding("format", range(500, 600)), ""),
        "a group": (finding("same_reward", range(20, 60)), ""),
        "the run": (finding("truth", range(20, 60)), ""),
        "no rows": (finding("nan"), ""),
    }
    for what, (other, joined) in cases.items():
        found = with_evidence(View.whole(rows), [first, other])
        assert [one.joined_to for one in found] == ["", joined], what
    everywhere = finding("clipping", range(900))
    assert with_evidence(View.whole(rows), [everywhere, finding("format", range(20, 60))])[1].joined_to == ""
    same = [finding("paid", range(900), ("as an expert",)), finding("tail", range(950, 960), ("as an expert", "x y"))]
    assert with_evidence(View.whole(rows), same)[1].joined_to == "paid"


@cases("name", sorted(REMEDIES))
def test_remedies_name_the_rows_the_phrase_and_commands_that_exist(name):
    one = finding(name, range(12), ("as an expert",))
    said = remedy_of(one, Path("my logs/a.jsonl"))
    assert said.startswith("read the 12 rows with 'as an expert': ")
    commands = [part for part in said.split("`")[1::2] if part.startswith("guerdon ")]
    assert commands[0] == f"guerdon audit 'my logs/a.jsonl' --save-rows {name} {name}.jsonl"
    for command in commands:
        verb, *words = shlex.split(command)[1:]
        known = {option for one in get_command(app).commands[verb].params for option in one.opts}
        assert {word for word in words if word.startswith("-")} <= known, command
    empty = replace(one, marked=None)
    assert "--save-rows" not in remedy_of(empty, Path("a"))
    for document in [word for word in said.replace("(", " ").replace(")", " ").split() if word.startswith("docs/")]:
        assert (Path(__file__).parents[2] / document.strip(",;:")).is_file()
