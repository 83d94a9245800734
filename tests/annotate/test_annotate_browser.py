"""`guerdon annotate` and its page together: judgements by keyboard in Chromium end up in the files."""

import json
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from judging_stub import read_stripes, row_on_screen, stripes

import chromium
from guerdon.episodes.read import read_episodes
from guerdon.episodes.write import EpisodeWriter
from guerdon.types import Episode

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium.PROGRAM is None, reason="needs Chromium: apt-get install chromium"),
]
ITEM = "document.documentElement.dataset.item"
NOTHING_LEFT = "document.getElementById('item').textContent.startsWith('Nothing is left')"
OTHERS = "document.getElementById('item').textContent.startsWith('Others are judging')"
KEYS = {"episodes": "sfsud", "responses": "ynyu", "pairs": "12eu", "steps": "xyxu", "rubric": "12u"}
RUBRIC = "criteria:\n" + "".join(f"- {{name: c{k}, text: It is {k}., choices: [a, b, c]}}\n" for k in range(3))
WORDS = {
    "episodes": ["success", "failure", "cannot_tell", "discard"], "responses": ["right", "wrong", "cannot_tell"],
    "pairs": ["first", "second", "equal", "cannot_tell"], "steps": ["wrong", "right", "cannot_tell"],
    "rubric": ["rated"],
}  # fmt: skip


def write_data(folder, kind, n, rows=12, size=(32, 64)):
    """A data set of n items."""
    data = folder / kind
    if kind == "episodes":
        with EpisodeWriter(data, fps=30, video=True, camera="front") as writer:
            frames = np.stack([stripes(row, size) for row in range(rows)])
            for k in range(n):
                writer.add(
                    Episode(id=str(k), task="push", frames=frames, views={"wrist": frames[:, :, ::-1].copy()},
                            states=np.full((rows, 2), k, np.float32))
                )  # fmt: skip
        return data
    texts = [f"It is {k}. " + "So it goes on with $x^2$ and words. " * 30 for k in range(n)]
    lines = {
        "responses": (responses := [{"prompt": f"What is {k}?", "response": texts[k]} for k in range(n)]),
        "rubric": responses,
        "pairs": [{"prompt": f"What is {k}?", "response_1": texts[k], "response_2": f"No {k}."} for k in range(n)],
        "steps": [{"problem": f"What is {k}?", "steps": ["So", texts[k], "End"], "label": 1} for k in range(n)],
    }[kind]
    data = data.with_suffix(".jsonl")
    data.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return data


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def annotating(data, out, port, *options, people=1):
    """The running command, and the addresses that it printed."""
    command = [sys.executable, "-m", "guerdon", "annotate", str(data), "-o", str(out), "--port", str(port), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            found = []
            while len(found) < people:
                line = process.stderr.readline()
                assert line, "it ended"
                found += re.findall(r"http://\S+", line)
            yield process, found
        finally:
            process.kill()


def judgements(out):
    """Judgements that count, by item."""
    rows = [json.loads(line) for line in (out / "judgements.jsonl").read_text(encoding="utf-8").splitlines()]
    gone = {row["undo"] for row in rows if "undo" in row}
    found = {}
    for row in rows:
        if "judgement" in row and row["judgement"] != "skip" and row["key"] not in gone:
            found.setdefault(row["item"], []).append(row)
    assert len({row["key"] for row in rows}) == len(rows)
    return found


def judge_all(tab, kind, count=1000, milliseconds=None):
    """Judge by keyboard until nothing is left, or so many; with a skip and an undo."""
    for k in range(count):
        tab.wait(f"{ITEM} || {NOTHING_LEFT} || {OTHERS}")
        item = tab.js(ITEM)
        if not item:
            return
        if kind == "steps":
            tab.key("ArrowDown", 40)
        if kind == "episodes":
            row_on_screen(tab, 0)
        if kind == "episodes" and k % 5 == 0:
            tab.key("ArrowRight", 39)
            row_on_screen(tab, 1)
            assert read_stripes(tab) == 1
            tab.key("m")
        if k % 20 == 7:
            tab.key("k")
            tab.wait(f"{ITEM} !== '{item}'")
            tab.key("z")
            tab.wait(f"{ITEM} === '{item}'")
        if kind == "rubric":
            tab.type("23")  # the first two criteria
        tab.js(TIMED)
        tab.key(KEYS[kind][k % len(KEYS[kind])])
        tab.wait("window.took !== null")
        if milliseconds is not None and tab.js(ITEM):
            milliseconds.append(tab.js("window.took"))


TIMED = """
window.took = null;
document.addEventListener("keydown", () => {
  const from = performance.now(), item = document.documentElement.dataset.item;
  const look = () => {
    const now = document.documentElement.dataset.item, row = document.getElementById("row");
    const isThere = now !== item && (!now || !row || row.dataset.row !== "");
    if (isThere) window.took = performance.now() - from; else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}, { once: true, capture: true });
"""


def test_judgements_by_keyboard_survive_a_kill_of_the_server(tmp_path):
    data, out, port = write_data(tmp_path, "responses", 12), tmp_path / "labels", free_port()
    with chromium.Page(tmp_path / "profile") as tab:
        with annotating(data, out, port, "--overlap", "0") as (process, (address,)):
            tab.open(address)
            tab.wait(ITEM)
            first = [one["item"] for one in tab.js("[current, ...queue].map(({ item }) => ({ item }))")]
            tab.type("ynu")
            tab.wait("pending.length === 0")
            process.send_signal(signal.SIGKILL)
        tab.type("yzn")
        tab.wait("document.getElementById('away').textContent.includes('3 judgements are kept here')")
        with annotating(data, out, port) as (process, (address,)):
            tab.wait("pending.length === 0 && document.getElementById('away').hidden")
            words = [judgements(out)[item][0]["judgement"] for item in first[:4]]
            assert words == ["right", "wrong", "cannot_tell", "wrong"]
            tab.open(address)
            tab.wait(f"{ITEM} === '{first[4]}'")
            tab.key("z")
            tab.wait(f"{ITEM} === '{first[3]}'")
            judge_all(tab, "responses")
            tab.js("document.getElementById('summary').click()")
            tab.wait("document.querySelectorAll('#summary-view table').length > 0")
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
    found = judgements(out)
    assert len(found) == 12
    assert all(len(one) == 1 for one in found.values())
    labels = [json.loads(line) for line in (out / "labels.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(labels) == 12


FIRST_PICTURE = """
(async () => {
  const from = performance.now();
  show(queue.pop());
  while (document.getElementById("row").dataset.row === "") await new Promise(requestAnimationFrame);
  return performance.now() - from;
})()
"""


@pytest.mark.slow
def test_films_of_three_hundred_rows(tmp_path):
    """Two cameras of 320 x 240 pixels: every row on screen is the one that the page says."""
    data, rows = write_data(tmp_path, "episodes", 16, rows=300, size=(240, 320)), random.Random(0)
    milliseconds, first = [], []
    with (
        annotating(data, tmp_path / "labels", free_port(), "--overlap", "0") as (process, (address,)),
        chromium.Page(tmp_path / "profile") as tab,
    ):
        tab.open(address)
        for _ in range(3):  # the last of those in hand, of which nothing was loaded ahead
            row_on_screen(tab, 0)
            first.append(tab.js(FIRST_PICTURE))
            row = rows.randrange(2, 300)
            tab.js(f"go({row})")
            row_on_screen(tab, row)
            assert read_stripes(tab) == row % 256
            tab.js("go(0)")
            judge_all(tab, "episodes", 1)
        judge_all(tab, "episodes", milliseconds=milliseconds)
        tab.wait(NOTHING_LEFT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    assert len(judgements(tmp_path / "labels")) == 16
    say_milliseconds("films of 300 rows", milliseconds)
    print(f"the first picture of a film that was not loaded ahead: {', '.join(f'{ms:.0f}' for ms in first)} ms")


def say_milliseconds(what, milliseconds):
    print(f"{what}: from a key to the next item {statistics.median(milliseconds):.0f} ms, "
          f"95th percentile {np.percentile(milliseconds, 95):.0f} ms, of {len(milliseconds)}")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["episodes", "responses", "pairs", "steps", "rubric"])
def test_two_people_judge_fifty_items_by_keyboard(tmp_path, kind):
    """With a reload and a restart of the server in between."""
    data, out, port = write_data(tmp_path, kind, 50), tmp_path / "labels", free_port()
    (tmp_path / "rubric.yaml").write_text(RUBRIC)
    how = ("--rubric", str(tmp_path / "rubric.yaml")) if kind == "rubric" else ("--as", kind)
    options = ("--people", "ann,bo", "--overlap", "0.2", *how)
    milliseconds = []
    with ExitStack() as stack:
        ann, bo = [stack.enter_context(chromium.Page(tmp_path / name)) for name in ("ann", "bo")]
        with annotating(data, out, port, *options, people=2) as (process, addresses):
            for tab, address in zip((ann, bo), addresses, strict=True):
                tab.open(address)
            for _ in range(3):
                judge_all(ann, kind, 4, milliseconds)
                judge_all(bo, kind, 3, milliseconds)
            ann.js("window.isBefore = true")
            ann.call("Page.reload")
            ann.wait_for_reload("window.isBefore === undefined && document.documentElement?.dataset.ready")
            judge_all(ann, kind, 3)
            process.send_signal(signal.SIGTERM)
            process.wait(120)
        bo.type(KEYS[kind] if kind == "rubric" else KEYS[kind][-1])  # kept until the server is back
        bo.wait("!document.getElementById('away').hidden")
        with annotating(data, out, port, people=2) as (process, again):
            assert again == addresses
            for tab in (bo, ann):
                tab.wait("pending.length === 0 && document.getElementById('away').hidden")
            judge_all(bo, kind, 5)
            judge_all(ann, kind, 1000, milliseconds)
            judge_all(bo, kind, 1000)
            ann.open(f"{addresses[0].replace('#', '?again#')}")
            judge_all(ann, kind)
            for tab in (ann, bo):
                tab.wait(NOTHING_LEFT)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
    found = judgements(out)
    assert len(found) == 50
    assert sorted(map(len, found.values())) == [1] * 40 + [2] * 10
    assert all(len({row["person"] for row in rows}) == len(rows) for rows in found.values())
    assert {row["judgement"] for rows in found.values() for row in rows} == set(WORDS[kind])
    say_milliseconds(kind, milliseconds)
    if kind == "episodes":
        assert {row["row"] for rows in found.values() for row in rows if row["judgement"] == "success"} <= {1, None}
        labelled = [episode.outcome for episode in read_episodes(out / "labels", camera="front")]
        assert len(labelled) == 50
        assert any(outcome is True for outcome in labelled)
        assert any(outcome is False for outcome in labelled)
