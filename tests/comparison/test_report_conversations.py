"""Conversations of agents on the page of a run and of a study, data of strangers included."""

import json
import re
import shutil

import pytest
from synthetic_study import TEXT_STEPS, learning, write_text_run, write_text_study

import chromium
from guerdon.comparison.report import read_single, write_report, write_single_report
from guerdon.comparison.report_conversations import MOST_TEXT, MOST_TURNS, conversation_panels
from tables import sample

ASKED = [{"role": "system", "content": "Use the tools."}, {"role": "user", "content": "How many pages?"}]


def conversation(*, reward, group=0, step=64, said="4 pages.", turn_rewards=(None, None), **more):
    call = {"id": "c1", "function": {"name": "count", "arguments": {"of": "pages"}}}
    answer = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    result = {"role": "tool", "content": "4" * 50, "name": "count"}
    messages = [*ASKED, answer, result, {"role": "assistant", "content": said}]
    calls = [{"tokens": 5, "finished": True, "reward": one} for one in turn_rewards]
    row = {"step": step, "id": f"q{group}", "group": group, "messages": messages, "calls": calls, "reward": reward}
    return row | {"success": reward == 1, "failure": None, "truncated": False} | more


def run_with(path, rows, *, end=""):
    write_text_run(path, arm="rloo", curve=learning(0.8, 1.0), steps=TEXT_STEPS, unit="conversations")
    shutil.rmtree(path / "films")
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (path / "conversations.jsonl").write_text("".join(f"{line}\n" for line in lines) + end)
    return path


def panels_of(path, budget=100_000):
    return conversation_panels([read_single(path)], budget=budget)


def test_the_newest_update_is_shown_by_the_best_and_the_worst_of_each_group(tmp_path):
    rows = [conversation(reward=1, step=32, said="old")]
    rows += [conversation(reward=r, group=g, said=f"said {g} {r}") for g in range(6) for r in (0.5, 1, 0, 0.25)]
    lost = {"reward": None, "success": None, "failure": "tool_died (killed)"}
    rows += [conversation(group=5, said="lost", **lost)] * 2
    (panel,), notes = panels_of(run_with(tmp_path / "run", rows))
    assert notes == []
    ends = [one.turns[-1].text for one in panel.shown]
    assert ends == [f"said {g} {r}" for g in range(4) for r in (1, 0)] + ["lost"]
    first = panel.shown[0]
    assert first.title == "q0, group 0, step 64"
    assert first.facts == ("reward 1.00", "success", "2 turns", "1 tool call")
    assert [turn.role for turn in first.turns] == ["system", "user", "assistant", "tool", "assistant"]
    assert first.turns[2].calls == ('count({"of": "pages"})',)
    assert first.turns[3].summary == "result of count, 50 characters"
    assert panel.shown[-1].facts[:2] == ("success unknown", "failed: tool_died (killed)")


def test_rewards_of_turns_stand_beside_the_turns(tmp_path):
    path = run_with(tmp_path / "run", [conversation(reward=0.75, turn_rewards=(0.25, 0.5))])
    (panel,), _ = panels_of(path)
    assert [turn.reward for turn in panel.shown[0].turns] == ["", "", "reward +0.25", "", "reward +0.50"]
    judged = conversation(reward=0, turn_rewards=(None, None))
    for call, value in zip(judged["calls"], (0.5, None), strict=True):
        call["rewards"] = {"judge": value, "prm": 1}
    (panel,), _ = panels_of(run_with(tmp_path / "judged", [judged]))
    assert [turn.reward for turn in panel.shown[0].turns] == ["", "", "judge +0.50, prm +1.00", "", "prm +1.00"]
    few = [conversation(reward=0.75, turn_rewards=(9, 0.25, 0.5))]  # a program that shortened its history
    (panel,), _ = panels_of(run_with(tmp_path / "few", few))
    assert [turn.reward for turn in panel.shown[0].turns] == ["", "", "reward +0.25", "", "reward +0.50"]


def test_what_is_long_is_cut_and_what_cannot_be_read_is_left_out(tmp_path):
    long = conversation(reward=1, said="x" * (MOST_TEXT + 7))
    many = conversation(reward=1, group=1)
    many["messages"] = [*ASKED, *[{"role": "assistant", "content": str(k)} for k in range(MOST_TURNS)]]
    strange = ["not JSON", "[]", '{"step": 1}', json.dumps({**long, "messages": "x"}), "[" * 9000, "1" * 9000]
    path = run_with(tmp_path / "run", [*strange, long, many], end='{"step": 64, "mess')
    (panel,), notes = panels_of(path)
    assert panel.shown[0].turns[-1].text.endswith("x\n[7 characters are left out on this page]")
    gap = panel.shown[1].turns[MOST_TURNS // 2]
    assert (gap.role, gap.text) == ("", "2 messages are left out on this page")
    assert notes == []
    panels, notes = panels_of(path, budget=100)
    assert panels == []
    assert re.search("run: no conversation of the end of conversations.jsonl can be read", notes[0])
    (path / "conversations.jsonl").write_text("")
    assert panels_of(path) == ([], [])


HOSTILE = (
    "<script>document.documentElement.dataset.error = 'run'</script><img src=x onerror=alert(1)>{{ 7 * 7 }}"
    "\u202e\u0000</div>"
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    row = conversation(reward=1, said=HOSTILE, id=HOSTILE, turn_rewards=(0.5, None), truncated=True)
    row["messages"][0] = {"role": HOSTILE, "content": HOSTILE * 30}
    row["messages"][2]["tool_calls"] = [{"function": {"name": HOSTILE, "arguments": HOSTILE}}, HOSTILE, {"x": HOSTILE}]
    row["messages"][3] |= {"name": HOSTILE, "content": [{"type": "text", "text": HOSTILE}]}
    lost = {**row, "reward": None, "failure": HOSTILE}
    path = run_with(tmp_path_factory.mktemp("hostile") / "run", [row, lost, conversation(reward=0, group=1)])
    return write_single_report(path)


@pytest.mark.hostile("pages")
def test_what_models_and_tools_write_is_never_html(hostile):
    page = hostile.read_text()
    section = page[page.index('<section id="conversations"') :]
    section = section[: section.index("</section>")]
    assert "<script" not in section
    assert "<img" not in section
    assert "&lt;script&gt;" in section
    assert "49" not in section
    assert not {"\u202e", "\u0000"} & {*section}
    assert '<a href="#conversations">' in page
    assert 'id="videos"' not in page


@pytest.mark.browser
@pytest.mark.skipif(chromium.PROGRAM is None, reason="needs Chromium: apt-get install chromium")
@pytest.mark.parametrize("width", sample([1280, 420], 420))
def test_conversations_fit_the_window_and_results_unfold(hostile, tmp_path, width):
    with chromium.Page(tmp_path / "profile") as tab:
        tab.size(width)
        tab.open(hostile.as_uri())
        assert tab.js("document.documentElement.dataset.error ?? ''") == ""
        result = "document.querySelector('.conversation[open] details:has(+ *) > .said')"
        assert tab.js(f"{result}.checkVisibility()") is False
        tab.js(f"{result}.previousElementSibling.click()")
        assert tab.js(f"{result}.checkVisibility()") is True
        assert tab.js("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


def test_a_study_shows_the_median_run_of_each_setting(tmp_path):
    root = write_text_study(tmp_path / "study", tasks=("chain",), seeds=(0, 1, 2), arms={"rloo": "Outcome"})
    for path in root.glob("runs/chain/*/*"):
        (path / "conversations.jsonl").write_text(json.dumps(conversation(reward=1, said=path.name)) + "\n")
    page = write_report(root).read_text()
    shown = re.findall(r">(seed\d)</div>", page)
    assert len(shown) == 1
    assert '<section id="conversations"' in page
