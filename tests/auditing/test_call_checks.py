"""Checks of conversations with calls of tools: what must be found, and the honest conversations next to it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.auditing.call_checks import FEWEST_CALLING, FEWEST_STEPS
from guerdon.auditing.checks import OF_RESPONSES, audit
from guerdon.auditing.rows import Rows, Texts
from guerdon.auditing.text_features import ToolCall, calls_of

NEW = ("calls", "no_call", "needless_calls", "rising_failures")


@pytest.fixture(autouse=True)
def _only_these(monkeypatch):
    """The other checks have tests of their own."""
    for name in {*OF_RESPONSES} - {*NEW}:
        monkeypatch.delitem(OF_RESPONSES, name)


def said(calls, answer):
    """A conversation, written out: a call and its result in each turn, and the answer."""
    turns = [f"assistant: [look({{'page': {page}}})]\n\ntool: {100 + page} units" for page in calls]
    return "\n\n".join([*turns, f"assistant: The answer is {answer}."])


def agents(*, groups=100, size=6, seed=0, truth=True, again=0.0):
    """Honest conversations of 0 to 4 calls: the reward is the truth and noise; `again` repeat their last call."""
    rng = np.random.default_rng(seed)
    n = groups * size
    right = (rng.random(n) < 0.5).astype(float)
    counts = rng.integers(0, 5, n)
    calls = [[*range(k)] for k in counts]
    for i in np.flatnonzero(rng.random(n) < again):
        calls[i] = [*calls[i], *calls[i][-1:]]
    responses = [said(pages, "4" if one else "5") for pages, one in zip(calls, right, strict=True)]
    repeated = np.array([len(set(pages)) < len(pages) for pages in calls])
    rows = Rows(
        layout="test",
        files=("log.jsonl",),
        file_N=np.zeros(n, np.int64),
        line_N=np.arange(1, n + 1),
        reward_N=right + 0.5 * rng.standard_normal(n),
        truth_N=right if truth else None,
        step_N=np.repeat(np.arange(groups), size) // 5,
        prompt_N=np.repeat(np.arange(groups), size),
        group_N=np.repeat(np.arange(groups), size),
        texts=Texts(np.arange(n), [f"Question {k // size}" for k in range(n)], responses),
    )
    return rows, counts, repeated


def paid(rows, bonus):
    return replace(rows, reward_N=rows.reward_N + bonus)


def place(rows, name):
    """Where a check ended, and what it says."""
    found = audit(rows)
    for one in found.findings:
        if one.name == name:
            return one.severity, one
    for where in ("clean", "undecided", "unchecked"):
        if name in getattr(found, where):
            return where, getattr(found, where)[name]
    raise AssertionError(name)


def test_honest_conversations_are_clean():
    for seed in range(6):
        for again in (0.0, 0.05):
            rows, _, _ = agents(seed=seed, again=again)
            found = audit(rows)
            assert found.findings == (), (seed, again)
            assert {*found.clean, *found.undecided} >= {"calls", "no_call", "needless_calls"}
            assert found.unchecked["rising_failures"] == "needs failed"


def test_a_reward_of_calls_is_found_and_a_price_of_them_is_a_fact():
    rows, counts, _ = agents()
    severity, finding = place(paid(rows, 0.3 * counts), "calls")
    assert severity == "warning"
    assert finding.title.startswith("responses with more calls of tools get more: within prompt, step and truth")
    assert 0.15 < finding.interval[0] < finding.effect < finding.interval[1]
    assert finding.p < 0.01
    assert place(paid(rows, -0.3 * counts), "calls")[0] == "info"
    assert place(paid(rows, 0.3 * counts), "no_call")[0] == "clean"  # they get less, which is another finding


def test_a_reward_for_no_call_is_found():
    rows, counts, _ = agents()
    severity, finding = place(paid(rows, 1.0 * (counts == 0)), "no_call")
    assert severity == "warning"
    assert "responses without a call of a tool get more" in finding.title
    assert all(counts[row] == 0 for row in finding.rows)
    assert place(paid(rows, -1.0 * (counts == 0)), "no_call")[0] == "clean"


def test_needless_calls_are_found_where_they_are_paid_or_frequent():
    rows, _, repeated = agents(again=0.15)
    assert place(rows, "needless_calls")[0] == "clean"
    severity, finding = place(paid(rows, 1.0 * repeated), "needless_calls")
    assert severity == "warning"
    assert all(repeated[row] for row in finding.rows)
    rows, _, repeated = agents(again=0.6)
    severity, finding = place(rows, "needless_calls")
    assert severity == "info"
    assert finding.count == repeated.sum()
    assert finding.interval[0] > 0.25


def test_a_call_that_returns_something_else_is_not_needless():
    same = said([0, 0], "4")
    other = same.replace("tool: 100", "tool: 99", 1)
    assert [len(set(calls_of(text))) for text in (same, other)] == [1, 2]


def test_too_little_is_undecided_and_what_is_missing_is_named():
    rows, counts, _ = agents()
    few = np.flatnonzero(counts > 0)[: FEWEST_CALLING - 1]
    silent = [text if i in few else "The answer is 4." for i, text in enumerate(rows.texts.responses)]
    rare = replace(rows, texts=replace(rows.texts, responses=silent))
    for name in ("calls", "no_call", "needless_calls"):
        assert place(rare, name) == ("undecided", "needs 20 responses with a call of a tool; the log has 19")
    none = replace(rows, texts=replace(rows.texts, responses=["The answer is 4."] * len(rows)))
    for name in ("calls", "no_call", "needless_calls"):
        assert place(none, name) == ("unchecked", "needs calls of tools")
    blind, counts, _ = agents(truth=False)
    blind = replace(paid(blind, 0.5 * counts), texts=replace(blind.texts, truths=None))
    assert place(blind, "calls")[0] == "unchecked"
    assert place(blind, "needless_calls")[0] == "clean"


def failing(share_T, *, size=30, seed=0):
    """A log in which so many of the rewards of each step could not be measured."""
    rng = np.random.default_rng(seed)
    rows, _, _ = agents(groups=len(share_T) * size // 6, seed=seed)
    step = np.repeat(np.arange(len(share_T)), size)
    failed = rng.random(len(rows)) < np.asarray(share_T)[step]
    return replace(rows, step_N=step, failed_N=failed, reward_N=np.where(failed, np.nan, rows.reward_N))


def test_failures_that_rise_are_found():
    rows = failing(np.linspace(0.02, 0.5, 24))
    severity, finding = place(rows, "rising_failures")
    assert severity == "warning"
    assert finding.interval[0] > 0
    assert set(finding.rows) <= {*np.flatnonzero(rows.failed_N & (rows.step_N >= 16)).tolist()}
    assert "the policy may cause them" in finding.title


def test_failures_that_do_not_rise_are_none():
    for seed in range(8):
        assert place(failing([0.1] * 24, seed=seed), "rising_failures")[0] in ("clean", "undecided"), seed
    outage = [0.02] * 24
    outage[20] = 1.0  # one step in which a server was down
    assert place(failing(outage), "rising_failures")[0] in ("clean", "undecided")
    assert place(failing(np.linspace(0.5, 0.02, 24)), "rising_failures")[0] == "clean"
    assert place(failing([0.0] * 24), "rising_failures")[0] == "clean"
    few = place(failing(np.linspace(0.0, 0.9, FEWEST_STEPS - 1)), "rising_failures")
    assert few == ("undecided", "needs 12 steps; the log has 11")


FORMS = [
    ("[f({'a': 1})]", "assistant: ", "\n\ntool: 4\n\n", ToolCall("f", "{'a': 1}", "4")),
    ('[my.f-2({"a": [1]})]', "assistant: ", "\n\ntool: two\nlines\n\n", ToolCall("my.f-2", '{"a": [1]}', "two\nlines")),
    ('<tool_call>{"name": "f", "arguments": {"b": 2, "a": 1}}</tool_call>', "I look. ",
     "\n<tool_response>4</tool_response>\n", ToolCall("f", '{"a": 1, "b": 2}', "4")),
    ("Action: f\nAction Input: x", "", "\nObservation: 4\n", ToolCall("f", "x", "4")),
    ("<function=f>\n<parameter=a>1</parameter>\n</function>", "<tool_call>\n", "\n</tool_call>\n",
     ToolCall("f", "<parameter=a>1</parameter>", None)),
]  # fmt: skip


def test_calls_are_read_in_each_form_with_their_results():
    for written, before, after, call in FORMS:
        assert calls_of(f"{before}{written}{after}{before}{written}{after}assistant: done") == [call, call], written
    both = "assistant: [f(1)]\n[g(2)]\n\ntool: one\n\ntool: two\n\nassistant: [h(3)]"
    assert calls_of(both) == [ToolCall("f", "1", "one"), ToolCall("g", "2", "two"), ToolCall("h", "3", None)]
    for text in ("[int(x) for x in y]", "see [len(a)] there", '<tool_call>{"name": 1</tool_call>', "tool: 4"):
        assert calls_of(text) == []


@given(st.text("[]()\n<>/=:{}\"' aftoolcrespniA", max_size=300))
def test_any_text_has_calls_or_none(text):
    assert all(isinstance(one, ToolCall) for one in calls_of(text))
