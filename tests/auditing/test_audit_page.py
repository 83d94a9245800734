"""The page: what it says, what it carries, and in a real browser that hostile text stays text and nothing blocks."""

import base64
import gzip
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

import chromium
from guerdon import secrets
from guerdon.auditing import page as browser
from guerdon.auditing.checks import audit
from guerdon.auditing.finding import Audit, Excerpt, Finding
from guerdon.auditing.logs import read_log
from guerdon.auditing.page import (
    browser_blocks,
    charts,
    cut,
    episode_videos,
    means_by_step,
    shown_rows,
    text_limit,
    write_page,
)
from guerdon.auditing.rows import RobotSteps, Rows, Texts
from guerdon.auditing.second import SecondReward, advantage_changes, agreement
from guerdon.episodes.write import EpisodeWriter
from guerdon.types import Episode
from tables import first

HOSTILE = (
    "<script>document.documentElement.dataset.ran='1'</script></script>-->]]><img src=x onerror=\"document."
    "documentElement.dataset.ran='2'\">\u202etxet\u202c \u0000\u0007\u200b \ud800 {{ 7*7 }} <!-- rows -->"
)


def rows(n=40, *, k=4, characters=60, texts=True, **more):
    random = np.random.default_rng(0)
    at = np.arange(n)
    words = ["carry", "the", "one", "then", "add", "therefore", "nine"]
    responses = [" ".join(words[j % 7] for j in random.integers(0, 7, max(characters // 5, 1))) + f" #{i}" for i in at]
    given = {
        "truth_N": (at % 3 == 0).astype(float), "step_N": at // (4 * k), "group_N": at // k, "prompt_N": at // k,
        "grouped_by": "the column of groups", "length_N": np.array([float(len(x)) for x in responses]),
        "truncated_N": at % 5 == 0,
        "texts": Texts(at, [f"What is {i // k} + 1?" for i in at], responses) if texts else None,
        "rewards": {"format": (at % 2).astype(float)},
    }  # fmt: skip
    return Rows(
        "plain columns", ("a.jsonl",), np.zeros(n, np.int64), at + 1, np.round(random.random(n), 3), **(given | more)
    )


def finding(name="length", severity="error", rows=(3, 5), examples=((3, "the longest"),), **more):
    given = {
        "title": "Longer responses earn more", "effect": 0.123456, "interval": (0.05, 0.2), "unit": "reward per word",
        "p": 0.0004,
        "remedy": "Use a length penalty: `guerdon run study.yaml`", "count": 2, "total": 40,
    }  # fmt: skip
    return Finding(name, severity, rows=rows, examples=examples, **(given | more))


def blocks_of(page):
    found = re.findall(r'<script type="application/octet-stream" id="([^"]+)">([A-Za-z0-9+/=]+)</script>', page)
    return {name: gzip.decompress(base64.b64decode(packed)) for name, packed in found}


def columns_of(blocks):
    about = json.loads(blocks["about"])
    table = np.frombuffer(blocks["columns"], "<f8").reshape(len(about["columns"]), about["rows"])
    return about, dict(zip(about["columns"], table, strict=True))


# ---- without a browser


def test_it_says_findings_then_what_is_clean_and_what_was_not_checked(tmp_path):
    audit = Audit((finding(),), {"drift": "of 3 steps"}, {"flattery": "needs responses"}, {"tail": "needs 100 rows"})
    page = write_page(
        tmp_path / "p.html", rows(bad={"not JSON": 3}, notes=("two files",)), audit, log=tmp_path / "my run"
    ).read_text()
    order = [
        page.index(f'<section id="{name}"')
        for name in ("findings", "clean", "undecided", "unchecked", "how", "charts", "rows")
    ]
    assert order == sorted(order)
    text = re.sub(r"<[^>]+>", " ", page[: page.index('<section id="charts"')])
    text = re.sub(r"\s+", " ", text)
    for said in (
        "my run", "Longer responses earn more", "effect 0.123 [0.05, 0.2] reward per word", "p &lt; 0.001",
        "2 of 40 rows",
        "row 3 the longest", "Use a length penalty: guerdon run study.yaml", "drift of 3 steps",
        "flattery needs responses", "tail needs 100 rows", "1 found", "1 clean", "1 undecided", "1 not made",
        "groups the column of groups", "3: 3 not JSON", "note 1 two files", "cannot say that a reward is right",
    ):  # fmt: skip
        assert said in text, said
    assert 'href="#row=3"' in page
    assert re.search(rf"guerdon annotate \S*my run&#39; --finding {finding().name}</code>", page)
    assert "trust" not in text
    assert not re.search(r"(?:src|href)=\"https?:", page)


def test_numbers_that_are_missing_are_dashes_and_nothing_is_made_up(tmp_path):
    nan = float("nan")
    empty = finding(effect=nan, interval=(nan, nan), p=None, rows=(), examples=())
    page = write_page(tmp_path / "p.html", rows(), Audit((empty,))).read_text()
    card = page[page.index('class="card finding') : page.index("</article>")]
    assert "effect <b>–</b>" in card
    assert "nan" not in card.lower()
    assert "#finding=" not in card


def test_the_blocks_hold_every_number_and_text():
    log = rows(30)
    audit = Audit((finding(),))
    blocks = {}
    for block in browser_blocks(log, audit, log.reward_N + 1):
        blocks |= blocks_of(block.decode())
    about, found = columns_of(blocks)
    assert found["reward"].tolist() == log.reward_N.tolist()
    assert found["second"].tolist() == (log.reward_N + 1).tolist()
    assert found["rewards/format"].tolist() == log.rewards["format"].tolist()
    assert found["line"].tolist() == list(range(1, 31))
    gap = log.reward_N - log.truth_N
    assert gap[found["order/reward-truth"].astype(int)].tolist() == sorted(gap)
    assert about["findings"] == [{"name": "length", "rows": [3, 5, 3]}]
    texts = [row for number in range(len(about["starts"])) for row in json.loads(blocks[f"part-{number}"])]
    assert [row["response"] for row in texts] == log.texts.responses


def test_rows_without_a_value_are_last_in_both_directions():
    reward = np.array([0.3, np.nan, 0.1, np.nan, 0.2])
    log = Rows("x", ("a",), np.zeros(5, np.int64), np.arange(5), reward)
    blocks = {}
    for block in browser_blocks(log, Audit()):
        blocks |= blocks_of(block.decode())
    about, found = columns_of(blocks)
    assert found["order/reward"].astype(int).tolist()[:3] == [2, 4, 0]
    assert about["valued"]["reward"] == 3


def test_parts_begin_where_they_say(monkeypatch):
    monkeypatch.setattr(browser, "PART", 700)
    log = rows(50)
    blocks = {}
    for block in browser_blocks(log, Audit()):
        blocks |= blocks_of(block.decode())
    about = json.loads(blocks["about"])
    assert len(about["starts"]) > 3
    for number, start in enumerate(about["starts"]):
        first = json.loads(blocks[f"part-{number}"])[0]
        assert first["response"] == log.texts.responses[start]


def test_of_a_huge_log_the_rows_with_texts_and_of_findings_are_listed(monkeypatch):
    monkeypatch.setattr(browser, "MAX_ROWS", 50)
    log = rows(1000, texts=False)
    texts = Texts(np.arange(0, 1000, 50), ["p"] * 20, ["r"] * 20)
    log = rows(1000, texts=texts)
    log = Rows(**{**vars(log), "texts": texts})
    shown = shown_rows(log, Audit((finding(rows=(1, 999), examples=((7, "x"),)),)))
    assert len(shown) == 50
    assert {1, 7, 999, *range(0, 1000, 50)} <= set(shown.tolist())
    assert (np.diff(shown) > 0).all()
    blocks = {}
    for block in browser_blocks(log, Audit()):
        blocks |= blocks_of(block.decode())
    _, found = columns_of(blocks)
    has = ~np.isnan(found["text"])
    assert found["row"][has].tolist() == list(range(0, 1000, 50))


def test_how_a_log_was_read_names_what_the_page_leaves_out(monkeypatch):
    monkeypatch.setattr(browser, "MAX_ROWS", 20)
    monkeypatch.setattr(browser, "MAX_TEXTS", 1000)
    said = browser._how(replace(rows(40, characters=200), files=tuple(f"{k}.jsonl" for k in range(1010))))
    assert said["files"].endswith("7.jsonl and 1,002 more")
    assert said["list of rows"] == "20 of 40: those with texts and of findings, others at random"
    assert said["length of texts"].endswith("(all together are over 1,000)")


@pytest.mark.hostile("pages")
def test_long_texts_are_cut_in_the_middle_and_say_so(monkeypatch):
    text = "a" * 600 + "b" * 600
    short = cut(text, 300)
    assert short.startswith("a" * 200 + "\n[900 characters are left out on this page]\n")
    assert short.endswith("\n" + "b" * 100)
    assert cut(text, 1200) == text
    monkeypatch.setattr(browser, "MAX_TEXTS", 10_000)
    limit = text_limit([50] * 100 + [9000] * 10)
    assert 50 * 100 + limit * 10 <= 10_000 < 50 * 100 + limit * 10 * 5 / 4
    assert text_limit([3] * 10) == browser.MAX_TEXT


def test_a_title_begins_with_a_capital_letter_and_the_name_of_a_curve_stays_as_it_is(tmp_path):
    found = tuple(finding(title=title) for title in ("right-but-unpaid answers", "actor/entropy fell", "pass_1 fell"))
    page = write_page(tmp_path / "p.html", rows(3), Audit(found)).read_text()
    assert re.findall(r"<h3>.*</span> (.*)</h3>", page) == [
        "Right-but-unpaid answers", "actor/entropy fell", "pass_1 fell",
    ]  # fmt: skip


@pytest.mark.hostile("secrets")
def test_secrets_are_hidden_in_texts_too(tmp_path):
    key = "sk-live-0123456789abcdef4f9a"
    secrets.clean_key(key, "OPENAI_API_KEY")
    log = rows(3)
    log.texts.responses[1] = f"the key is {key}"
    page = write_page(tmp_path / "p.html", log, Audit((finding(title=f"with {key}"),))).read_text()
    everything = page + "".join(data.decode("utf-8", "replace") for data in blocks_of(page).values())
    assert key not in everything
    assert "(hidden)" in everything


def test_means_by_step_are_the_means():
    steps, values = np.array([3, 1, 1, 3, 3]), np.array([1.0, 2, 4, 5, np.nan])
    at, mean, half = means_by_step(steps, values)
    assert at.tolist() == [1, 3]
    assert mean.tolist() == [3, 3]
    assert half.tolist() == pytest.approx([1.96 * np.sqrt(2 / 2), 1.96 * np.sqrt(8 / 2)])
    many = np.arange(1000)
    at, mean, _ = means_by_step(many, many.astype(float))
    assert len(at) == 160
    assert at == pytest.approx(mean)


def test_charts_of_scalars_alone():
    none = np.zeros(0, np.int64)
    curve = (np.arange(50), np.linspace(0, 1, 50))
    log = Rows(
        "TensorBoard scalars",
        ("events",),
        none,
        none,
        none.astype(float),
        curves={"critic/score/mean": curve, "one": (none, none.astype(float))},
    )
    assert [name for name, _ in charts(log)] == ["critic/score/mean"]


@pytest.mark.hostile("pages")
def test_rewards_of_any_size_have_charts():
    log = rows(40, step_N=np.arange(40) // 4)
    for value in (1e308, -1e308, np.inf, np.nan):
        log.reward_N[3] = value
        pictures = dict(charts(log))
        assert {"reward", "distribution of rewards"} <= set(pictures)
        assert not re.search(r"\b(?:nan|inf)\b", "".join(pictures.values()))
    log.reward_N[:] = np.nan
    assert "reward" not in dict(charts(log))


def test_a_log_without_rows_has_a_page(tmp_path):
    none = np.zeros(0, np.int64)
    log = Rows("TensorBoard scalars", ("events",), none, none, none.astype(float))
    page = write_page(tmp_path / "p.html", log, Audit((), {}, {"length": "needs responses"})).read_text()
    assert 'id="rows"' not in page
    fallen = np.repeat([0.9, 0.0], 30)
    log = Rows("scalars", ("events",), none, none, none.astype(float), curves={"reward": (np.arange(60), fallen)})
    page = write_page(tmp_path / "p.html", log, audit(log)).read_text()
    assert "<b>60</b> points of a curve" in page
    assert "of 60" not in page


# ---- in a browser

in_browser = pytest.mark.skipif(chromium.PROGRAM is None, reason="needs Chromium: apt-get install chromium")
WATCH = """
window.tasks = [];
new PerformanceObserver((list) => { for (const one of list.getEntries()) window.tasks.push(one.duration); })
  .observe({ type: "longtask", buffered: true });
"""
STATUS = "document.getElementById('status').textContent"


@pytest.fixture
def tab(tmp_path):
    with chromium.Page(tmp_path / "profile") as page:
        yield page


def set_to(name, value):
    return (
        f"{{ const e = document.getElementById('{name}'); e.value = '{value}'; e.dispatchEvent(new Event('input')); }}"
    )


def first_rows(tab, count=3):
    lines = "[...document.querySelectorAll('[role=option]')].filter((e) => e.style.display !== 'none')"
    order = ".sort((a, b) => a.getAttribute('aria-posinset') - b.getAttribute('aria-posinset'))"
    return tab.js(f"{lines}{order}.slice(0, {count}).map((e) => Number(e.firstChild.textContent))")


@pytest.mark.hostile("pages")
@pytest.mark.browser
@in_browser
def test_hostile_text_is_text_everywhere(tab, tmp_path):
    log = rows(12)
    log.texts.responses[3] = HOSTILE
    log.texts.prompts[3] = HOSTILE
    log.texts.responses[5] = "x" * 5_000_000
    n = len(log)
    texts = Texts(
        log.texts.row_M, log.texts.prompts, log.texts.responses, truths=[HOSTILE] * n,
        messages=[[{"role": HOSTILE, "content": HOSTILE}] if k == 4 else [] for k in range(n)],
        tokens=[[HOSTILE, "b"] if k == 6 else [] for k in range(n)],
        token_rewards=[[1.0, -0.5] if k == 6 else [] for k in range(n)],
    )  # fmt: skip
    log = Rows(**{**vars(log), "texts": texts, "files": (HOSTILE,), "layout": HOSTILE, "grouped_by": HOSTILE,
                  "bad": {HOSTILE: 1},
                  "notes": (HOSTILE,), "rewards": {HOSTILE: np.ones(n)}})  # fmt: skip
    bad = finding(title=HOSTILE, unit=HOSTILE, remedy=f"{HOSTILE} `{HOSTILE}`", examples=((3, HOSTILE),))
    audit = Audit((bad,), {HOSTILE: HOSTILE}, {HOSTILE: HOSTILE})
    page = write_page(
        tmp_path / "p.html",
        log,
        audit,
        SecondReward(HOSTILE, HOSTILE),
        log=tmp_path / HOSTILE.replace("/", "").replace("\0", "").replace("\ud800", ""),
    )
    tab.open(page.as_uri())
    for row in (3, 4, 5, 6):
        tab.js(f"location.hash = '#row={row}'")
        tab.wait(f"document.getElementById('detail').dataset.row === '{row}'")
    tab.js(set_to("query", "<script>"))
    tab.wait("document.documentElement.dataset.searched === '<script>'")
    assert tab.js(STATUS).startswith("12 of 12")  # the reference answer of each
    assert tab.js("document.documentElement.dataset.ran") is None
    assert tab.js("document.documentElement.dataset.error") is None
    assert tab.js("document.querySelectorAll('img').length") == 0
    assert tab.js("[...document.scripts].filter((e) => !e.type).length") == 1
    tab.js("location.hash = '#row=3'")
    tab.wait("document.getElementById('detail').dataset.row === '3'")
    said = tab.js("document.getElementById('detail').textContent")
    assert "<script>document.documentElement.dataset.ran='1'</script>" in said
    assert "U+202E" in said
    assert "U+0007" in said
    tab.js("location.hash = '#row=5'")
    tab.wait("document.getElementById('detail').dataset.row === '5'")
    assert "characters are left out on this page" in tab.js("document.getElementById('detail').textContent")


@pytest.mark.browser
@in_browser
def test_the_list_is_searched_filtered_sorted_and_linked(tab, tmp_path):
    log = rows(200)
    log.texts.responses[150] = "a Zebra crossed"
    second = log.reward_N[::-1].copy()
    other = SecondReward("other", "by row number", second, agreement(log, second), advantage_changes(log, second))
    page = write_page(tmp_path / "p.html", log, Audit((finding(rows=(7, 50)),)), other)
    tab.open(f"{page.as_uri()}#row=150")
    tab.wait("document.getElementById('detail').dataset.row === '150'")
    said = tab.js("document.getElementById('detail').textContent")
    assert "Zebra" in said
    assert "a.jsonl, line 151" in said
    members = tab.js("[...document.querySelectorAll('.group tr td:first-child')].map((e) => Number(e.textContent))")
    assert members == [148, 149, 150, 151]
    shown = tab.js("[...document.querySelectorAll('.group tr td:last-child')].map((e) => e.textContent)")
    group = log.reward_N[148:152]
    assert [float(x.replace("−", "-")) for x in shown] == pytest.approx((group - group.mean()).tolist(), abs=1e-3)
    assert "rewards minus the group's mean" in said
    tab.js(set_to("query", "zebra"))
    tab.wait("document.documentElement.dataset.searched === 'zebra'")
    assert tab.js(STATUS) == "1 of 200 rows"
    tab.js("document.getElementById('reset').click()")
    for key, values in {"reward": log.reward_N, "reward-truth": log.reward_N - log.truth_N, "length": log.length_N,
                        "reward-second": log.reward_N - second}.items():  # fmt: skip
        tab.js(set_to("sort", key))
        assert first_rows(tab) == np.argsort(values, kind="stable")[:3].tolist(), key
    tab.js("document.getElementById('down').click()")
    assert first_rows(tab, 1) == [int(np.argsort(log.reward_N - second, kind="stable")[-1])]
    tab.js("document.getElementById('reset').click()")
    tab.js(set_to("low", 0.5) + set_to("high", 0.6) + set_to("truncated", 1))
    wanted = np.flatnonzero((log.reward_N >= 0.5) & (log.reward_N <= 0.6) & log.truncated_N)
    assert tab.js(STATUS) == f"{len(wanted)} of 200 rows"
    tab.js("document.getElementById('reset').click()")
    tab.js(set_to("step", 2))
    assert first_rows(tab, 1) == [16]
    assert tab.js("document.getElementById('step-name').textContent") == "step 1"
    tab.js("location.hash = '#finding=length'")
    tab.wait(f"{STATUS} === '3 of 200 rows'")  # two and the example
    assert first_rows(tab) == [3, 7, 50]
    tab.js("location.hash = '#row=9999'")
    tab.wait(f"{STATUS} === 'row 9999 is not on this page'")
    assert tab.js("document.documentElement.dataset.error") is None


def test_findings_show_what_they_are_about_and_joined_ones_stand_in_one_card(tmp_path):
    excerpts = (Excerpt("so ", "as <b>an</b> expert", " I say"),)
    quoted = finding(name="tail", excerpts=excerpts, remedy="read docs/gate.md: `guerdon audit 'my log'` writes them")
    other = finding(name="length", title="Longer responses earn more", joined_to="tail")
    page = write_page(tmp_path / "p.html", rows(), Audit((quoted, other))).read_text()
    assert '<q class="excerpt">so <mark>as &lt;b&gt;an&lt;/b&gt; expert</mark> I say</q>' in page
    assert '<a href="https://guerdon.readthedocs.io/en/latest/gate.html">docs/gate.md</a>' in page
    assert page.count("<article class=") == 1
    card = page[page.index('class="card finding') : page.index("</article>")]
    assert "Mostly the same rows: Longer responses earn more" in card
    assert "#finding=length" in card


@pytest.mark.browser
@in_browser
def test_in_a_narrow_window_a_row_shows_reward_truth_and_text_first(tab, tmp_path):
    page = write_page(tmp_path / "p.html", rows(60), Audit((finding(),)))
    tab.call("Emulation.setDeviceMetricsOverride", width=420, height=900, deviceScaleFactor=1, mobile=False)
    tab.open(f"{page.as_uri()}#row=5")
    tab.wait("document.getElementById('detail').dataset.row === '5'")
    spans = "[...document.querySelector('.row-line.head').children].filter((e) => e.offsetWidth)"
    order = f"{spans}.sort((a, b) => a.offsetLeft - b.offsetLeft).map((e) => e.textContent)"
    assert tab.js(order) == ["reward", "truth", "response", "row"]
    assert tab.js(f"{spans}.find((e) => e.textContent === 'response').offsetWidth") > 120


@pytest.mark.browser
@in_browser
def test_the_page_of_a_live_log_comes_back_to_where_the_reader_was(tab, tmp_path):
    log = rows(200)
    page = write_page(tmp_path / "p.html", log, Audit((finding(rows=(7, 50, 120)),)), every=900)
    assert 'data-every="900"' in page.read_text()
    tab.open(page.as_uri())
    tab.js("document.documentElement.style.scrollBehavior = 'auto'")  # a scroll is over when it is asked for
    tab.js("getSelection().selectAllChildren(document.querySelector('h1')); window.before = true")
    tab.js("document.getElementById('written').dataset.every = 0")
    tab.wait(
        "(window.said = window.said || document.getElementById('written').textContent) !== "
        "document.getElementById('written').textContent"
    )  # it was looked at once more
    assert tab.js("window.before"), "while text is selected it stays"
    tab.js("location.hash = '#finding=length'")
    tab.wait(f"{STATUS} === '4 of 200 rows'")
    tab.js("location.hash = '#row=50'")
    tab.wait("document.getElementById('detail').dataset.row === '50'")
    tab.js(set_to("low", 0.1) + set_to("query", "carry") + "document.getElementById('down').click()")
    tab.wait("document.documentElement.dataset.searched === 'carry'")
    top = "document.getElementById('rows').getBoundingClientRect().top"
    tab.js(f"window.scrollTo({{ top: window.scrollY + {top} - 50, behavior: 'instant' }})")
    status, place = tab.js(STATUS), tab.js(top)
    write_page(tmp_path / "p.html", log, Audit((finding(name="drift"), finding(rows=(7, 50, 120)))), every=60)
    tab.js("getSelection().removeAllRanges()")
    tab.wait_for_reload("window.before === undefined && document.documentElement?.dataset.ready")
    assert tab.js("document.getElementById('written').dataset.every") == "60"
    assert tab.js("document.getElementById('finding').selectedOptions[0].textContent") == "length"
    assert tab.js("document.getElementById('detail').dataset.row") == "50"
    assert tab.js("[document.getElementById('low').value, document.getElementById('query').value]") == ["0.1", "carry"]
    assert tab.js(STATUS) == status
    assert tab.js(top) == pytest.approx(place, abs=5), "although there is one more finding above"
    assert tab.js("document.documentElement.dataset.error") is None


def test_a_page_of_a_log_that_is_done_does_not_reload(tmp_path):
    assert 'id="written"' not in write_page(tmp_path / "p.html", rows(), Audit()).read_text()


@pytest.mark.browser
@in_browser
def test_keys_move_through_rows_and_groups(tab, tmp_path):
    tab.open(write_page(tmp_path / "p.html", rows(60), Audit()).as_uri())
    tab.key("/")
    assert tab.js("document.activeElement.id") == "query"
    tab.key("Escape", 27)
    assert tab.js("document.activeElement.id") == "list"
    row = "document.getElementById('detail').dataset.row === '{}'".format
    for key, code, wanted in (
        ("ArrowDown", 40, 0),
        ("ArrowDown", 40, 1),
        ("ArrowRight", 39, 2),
        ("ArrowLeft", 37, 1),
        ("End", 35, 59),
        ("k", 75, 58),
    ):
        tab.key(key, code)
        tab.wait(row(wanted))
    assert tab.js("location.hash") == "#row=58"
    tab.key("g", 71)
    assert tab.js(STATUS) == "4 of 60 rows, one group"
    assert first_rows(tab, 9) == [56, 57, 58, 59]
    assert tab.js("document.getElementById('list').getAttribute('aria-activedescendant')") == "line-58"


@pytest.mark.browser
@in_browser
def test_logged_advantages_tokens_and_conversations_are_shown(tab, tmp_path):
    log = rows(8, advantage_N=np.arange(8) / 10)
    texts = Texts(
        log.texts.row_M, log.texts.prompts, log.texts.responses, tokens=[["Two", " and", " two"]] * 8,
        token_rewards=[[1.0, -0.2, float("nan")]] * 8,
        messages=[[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]] * 8,
    )  # fmt: skip
    tab.open(f"{write_page(tmp_path / 'p.html', Rows(**{**vars(log), 'texts': texts}), Audit()).as_uri()}#row=5")
    tab.wait("document.getElementById('detail').dataset.row === '5'")
    said = tab.js("document.getElementById('detail').textContent")
    assert "advantages as logged" in said
    assert tab.js("[...document.querySelectorAll('.group tr td:last-child')].map((e) => e.textContent)") == [
        "0.4",
        "0.5",
        "0.6",
        "0.7",
    ]
    assert tab.js("[...document.querySelectorAll('.said i')].map((e) => e.className + e.title)") == [
        "h51",
        "h-1−0.2",
        "no reward",
    ]
    assert tab.js("[...document.querySelectorAll('#detail h4')].map((e) => e.textContent)")[1:] == [
        "user",
        "assistant",
        "Response, each token with its reward",
    ]


@pytest.mark.browser
@in_browser
def test_steps_of_a_robot_are_shown_by_episode(tab, tmp_path):
    n = 30
    steps = RobotSteps(np.arange(n) // 10, np.arange(n) % 10, done_N=np.arange(n) % 10 == 9)
    log = Rows("LeRobot", ("data.parquet",), np.zeros(n, np.int64), np.arange(n), np.linspace(0, 1, n), steps=steps)
    tab.open(f"{write_page(tmp_path / 'p.html', log, Audit()).as_uri()}#row=19")
    tab.wait("document.getElementById('detail').dataset.row === '19'")
    said = tab.js("document.getElementById('detail').textContent")
    assert "Episode, 10 steps" in said
    assert "done yes" in said
    assert "The log has no texts" in said


@pytest.mark.browser
@in_browser
def test_the_video_of_an_episode_plays_on_the_page_from_the_time_of_the_row(tab, tmp_path):
    random = np.random.default_rng(0)
    folder = tmp_path / "robot <b>data"
    with EpisodeWriter(folder, fps=10, video=True) as writer:
        for k in range(3):
            frames = random.integers(0, 255, (5, 32, 32, 3)).astype(np.uint8)
            rewards = np.linspace(0, 1, 5).astype(np.float32)
            writer.add(
                Episode(id=str(k), task="push", frames=frames, states=np.zeros((5, 2), np.float32), rewards=rewards)
            )
    log = read_log(folder)
    page = write_page(tmp_path / "pages" / "p.html", log, Audit(), log=folder)
    assert "media-src 'self' file:;" in page.read_text(encoding="utf-8")
    tab.open(f"{page.as_uri()}#row=7")
    tab.wait("document.getElementById('detail').dataset.row === '7'")
    path, _, span = tab.js("document.querySelector('#detail .video a').href").partition("#t=")
    assert Path(unquote(path.removeprefix("file://"))).is_file()
    assert [float(x) for x in span.split(",")] == pytest.approx([0.5, 1.0], abs=1e-3)
    # the middle of the frame of the row: at its beginning some browsers still show the one before
    tab.js("window.video = document.querySelector('#detail video')")
    tab.wait("video.readyState >= 2 && !video.seeking")  # it has been decoded: the page may load it, and nothing else
    assert tab.js("[video.videoWidth, video.currentTime, video.error]") == [32, pytest.approx(0.75), None]
    tab.js("document.getElementById('list').focus()")
    tab.key("ArrowDown", 40)
    tab.wait("document.getElementById('detail').dataset.row === '8' && !video.seeking")
    assert tab.js("document.querySelector('#detail video') === video")  # not loaded again
    assert tab.js("video.currentTime") == pytest.approx(0.85)
    tab.js("location.hash = '#row=2'")  # another episode
    tab.wait("document.querySelector('#detail video') !== video")
    tab.js("window.video = document.querySelector('#detail video')")
    tab.wait("video.readyState >= 2 && !video.seeking")
    assert tab.js("video.currentTime") == pytest.approx(0.25)
    next((folder / "videos").rglob("*.mp4")).write_bytes(b"no video")
    tab.open(f"{page.as_uri()}?again#row=3")
    tab.wait("document.getElementById('detail').dataset.row === '3' && !document.querySelector('#detail video')")
    assert tab.js("document.querySelectorAll('#detail .video a').length") == 1  # the link stays
    assert tab.js("document.documentElement.dataset.error") is None
    assert episode_videos(tmp_path, page) == {}


def striped(row):
    """A frame that says its number: eight stripes, black or white, the first of the lowest bit."""
    stripes = np.array([255 * (row >> bit & 1) for bit in range(8)], np.uint8)
    return np.broadcast_to(stripes.repeat(8)[None, :, None], (32, 64, 3))


def read_stripes(picture):
    grey = np.asarray(picture.convert("L"))
    height, width = grey.shape  # the controls of the browser lie over the lower half
    return sum(1 << bit for bit in range(8) if grey[height // 4, int((bit + 0.5) * width / 8)] > 127)


@pytest.mark.browser
@in_browser
def test_the_row_that_is_chosen_is_the_one_shown(tab, tmp_path):
    n, folder = 60, tmp_path / "data"
    with EpisodeWriter(folder, fps=30, video=True) as writer:
        frames = np.stack([striped(row) for row in range(n)])
        rewards = np.linspace(0, 1, n).astype(np.float32)
        writer.add(Episode(id="0", task="push", frames=frames, states=np.zeros((n, 2), np.float32), rewards=rewards))
    page = write_page(tmp_path / "p.html", read_log(folder), Audit(), log=folder)
    tab.open(f"{page.as_uri()}#row=0")
    tab.wait("document.getElementById('detail').dataset.row === '0'")
    shown = {}
    for row in (1, 2, 3, 7, 14, 19, 28, 31, 38, 47, 56, 59):  # k / fps lies before some of these in binary
        tab.js(f"location.hash = '#row={row}'")
        tab.wait(f"document.getElementById('detail').dataset.row === '{row}'")
        tab.wait("(v => v.readyState >= 2 && !v.seeking)(document.querySelector('#detail video'))")
        until = time.monotonic() + 20
        shown[row] = read_stripes(tab.pixels("#detail video"))
        while shown[row] != row and time.monotonic() < until:  # a decoded frame is painted some time later
            shown[row] = read_stripes(tab.pixels("#detail video"))
    assert shown == {row: row for row in shown}


@pytest.mark.hostile("pages")
def test_a_page_without_videos_may_load_nothing(tmp_path):
    text = write_page(tmp_path / "p.html", rows(), Audit()).read_text(encoding="utf-8")
    assert "media-src" not in text
    assert "it loads nothing and sends nothing" in text


@pytest.mark.browser
@in_browser
@pytest.mark.parametrize("dark", first([False, True], 1))
def test_it_fits_a_narrow_and_a_wide_window(tab, tmp_path, dark):
    page = write_page(tmp_path / "p.html", rows(60), Audit((finding(),)))
    tab.call(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    )
    for width in (1400, 700, 400):
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        tab.open(f"{page.as_uri()}?{width}#row=5")
        tab.wait("document.getElementById('detail').dataset.row === '5'")
        assert tab.js("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), width
        paper, ink = tab.js("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
        light = [sum(map(int, re.findall(r"\d+", one)[:3])) for one in (paper, ink)]
        assert (light[0] < light[1]) == dark


@pytest.mark.hostile("pages")
@pytest.mark.slow
@pytest.mark.browser
@in_browser
def test_nothing_blocks_with_a_hundred_thousand_rows(tab, tmp_path):
    """Typing a search, sorting and moving the slider, each with every task of the page's thread below 200 ms.

    Tasks are measured by the clock, so the best of three counts: other processes of the machine are not the page.
    """
    page = write_page(tmp_path / "p.html", rows(100_000, characters=300), Audit((finding(),)))
    tab.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    best = {}
    for attempt in range(3):
        for name, most in longest_tasks(tab, f"{page.as_uri()}?{attempt}").items():
            best[name] = min(most, best.get(name, most))
        if max(best.values()) <= 200:
            break
    assert {name: most for name, most in best.items() if most > 200} == {}


def longest_tasks(tab, address):
    """The longest task, in milliseconds, while the page is loaded and used."""
    tab.open(address)
    tab.js("document.getElementById('rows').scrollIntoView({ behavior: 'instant' })")
    longest = {"loading": max(tab.js("window.tasks"), default=0)}

    def measured(name):
        tab.js("new Promise((done) => setTimeout(done, 100))")
        longest[name] = max(tab.js("window.tasks.splice(0)"), default=0)

    tab.js("window.tasks.length = 0; document.getElementById('query').focus()")
    tab.type("carry the")
    tab.wait("document.documentElement.dataset.searched === 'carry the'")
    assert re.match(r"\d\d,\d\d\d of 100,000 rows$", tab.js(STATUS))
    measured("searching")
    for key in ("reward", "reward-truth", "length", "row"):
        tab.js(set_to("sort", key))
    tab.js("document.getElementById('down').click()")
    measured("sorting")
    tab.js("document.getElementById('reset').click(); document.getElementById('step').focus()")
    for _ in range(25):
        tab.key("ArrowRight", 39)
    assert tab.js(STATUS) == "16 of 100,000 rows"
    measured("the slider")
    tab.js("document.getElementById('reset').click(); document.getElementById('list').scrollTop = 1500000")
    measured("scrolling")
    return longest
