"""The page of judgements in a real browser: keys, pictures, formulas, hostile texts, and a server that goes away."""

import re

import pytest
from judging_stub import read_stripes, row_on_screen, stub

import chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium.PROGRAM is None, reason="needs Chromium: apt-get install chromium"),
]
HOSTILE = (
    "<script>document.documentElement.dataset.ran='1'</script></script>-->]]><img src=x onerror=\"document."
    "documentElement.dataset.ran='2'\">\u202etxet\u202c \u0000\u0007\u200b \ud800 {{ 7*7 }} <!-- rows --> "
    "$\\href{javascript:document.documentElement.dataset.ran=3}{x}$ $<script>1</script>$ $\\class{a}{b}$ "
    '$\\def\\a{\\a\\a}\\a$ $\\char"202E abc$ $$\\includegraphics{http://x/y.png}$$'
)
NO_REFERENCE = {"messages": None, "reference": None}
ITEM = "document.documentElement.dataset.item"
STATUS = "document.getElementById('status').textContent"
CODES = {
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    " ": 32,
    "Enter": 13,
    "Escape": 27,
    "Tab": 9,
}
CTRL, ALT, META, SHIFT = 2, 1, 4, 8


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with chromium.Page(tmp_path_factory.mktemp("profile"), width=1300, height=900) as page:
        yield page


@pytest.fixture(autouse=True)
def _no_error(tab):
    yield
    assert tab.js("document.documentElement.dataset.error") is None
    assert tab.js("document.documentElement.dataset.ran") is None
    tab.call("Page.navigate", url="about:blank")


def shows(kind, n=8, text="It is %k."):
    """What n items of a kind show."""
    texts = [text.replace("%k", str(k)) for k in range(n)]
    if kind == "responses":
        return [{"prompt": f"What is {k}?", "response": texts[k], **NO_REFERENCE} for k in range(n)]
    if kind == "pairs":
        return [{"prompt": f"What is {k}?", "first": texts[k], "second": "No.", **NO_REFERENCE} for k in range(n)]
    if kind == "steps":
        return [{"prompt": f"What is {k}?", "steps": ["So", texts[k], "End"], **NO_REFERENCE} for k in range(n)]
    episode = {"task": "push", "rows": 40, "cameras": ["front", "wrist"], "fps": 30.0, "problem": None}
    return [{"episode": k, **episode} for k in range(n)]


def press(tab, *names, code=0, **more):
    for name in names:
        tab.key(name, code or CODES.get(name, 0), **more)


def at(tab, item):
    tab.wait(f"{ITEM} === '{item}'")


def stored(tab, server, count):
    """Judgements by item, once the page has sent so many requests."""
    tab.wait("pending.length === 0")
    assert len(server.posted) == count
    return server.judged


def test_responses_by_key_with_undo_skip_note_and_what_judges_nothing(tab):
    with stub("responses", shows("responses")) as server:
        tab.open(server.address)
        at(tab, 0)
        press(tab, "y", "n", "u", "k")
        at(tab, 4)
        # none of these is a judgement
        press(tab, "y", autoRepeat=True)
        for modifier in (CTRL, ALT, META):
            press(tab, "y", modifiers=modifier)
        press(tab, "y", code=229)
        press(tab, "q", "Enter", " ", "1")
        press(tab, "c", "n", "y", " ", "n")
        tab.call("Input.imeSetComposition", text="ｙ", selectionStart=1, selectionEnd=1)
        tab.call("Input.insertText", text="!")
        press(tab, "Escape")
        press(tab, "?")
        tab.wait("document.getElementById('help-view').open")
        press(tab, "y", "n")
        press(tab, "?")
        assert not tab.js("document.getElementById('help-view').open")
        assert tab.js(ITEM) == "4"
        press(tab, "z")  # the skip
        at(tab, 3)
        press(tab, "z")
        at(tab, 2)
        press(tab, "n", "y", "y")
        at(tab, 5)
        judged = stored(tab, server, 9)
        assert [judged[k]["judgement"] for k in range(5)] == ["right", "wrong", "wrong", "right", "right"]
        assert judged[4]["note"] == "ny n!"
        tab.open(server.address)  # again after a reload
        at(tab, 5)
        press(tab, "z")
        at(tab, 4)
        assert tab.js("document.getElementById('note').value") == "ny n!"
        press(tab, "z")
        at(tab, 3)
        press(tab, "k", "k", "y", "y", "y")
        tab.wait(f"{ITEM} === '3'")  # the skipped ones at the end
        press(tab, "y")
        at(tab, 4)
        press(tab, "n")
        tab.wait("document.getElementById('item').textContent.startsWith('Nothing is left')")
        assert len(server.judged) == 8
        assert all(0 <= post["seconds"] < 60 for post in server.judged.values())


def test_what_is_taken_back_comes_first_also_where_the_next_items_were_chosen_before(tab):
    with stub("responses", shows("responses", 12)) as server:
        tab.open(server.address)
        at(tab, 0)
        server.may_answer.clear()
        press(tab, "y", "n")  # the next items are asked for, and chosen with 0 and 1 judged
        server.is_chosen.wait(60)
        press(tab, "u", "k", "z", "z")
        at(tab, 2)
        server.may_answer.set()
        tab.wait("!asking")
        for item in (2, 3, 4, 5, 6):
            at(tab, item)
            press(tab, "n")
        at(tab, 7)


def test_pairs_steps_and_a_scale_have_their_keys(tab):
    with stub("pairs", shows("pairs")) as server:
        tab.open(server.address)
        at(tab, 0)
        press(tab, "1", "2", "e", "u")
        at(tab, 4)
        tab.js("document.querySelector('#judgements button:nth-child(2)').click()")
        at(tab, 5)
        judged = stored(tab, server, 5)
        assert [one["judgement"] for one in judged.values()] == ["first", "second", "equal", "cannot_tell", "second"]
    with stub("steps", shows("steps")) as server:
        tab.open(server.address)
        at(tab, 0)
        press(tab, "x")
        assert tab.js(STATUS) == "Choose the first wrong step with the arrows, then x."
        press(tab, "ArrowDown", "x", "ArrowDown", "ArrowRight", "x", "ArrowUp", "ArrowUp", "x", "y", "u")
        press(tab, "ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "y")
        at(tab, 6)
        tab.js("document.getElementById('step-1').click()")
        press(tab, "x")
        at(tab, 7)
        press(tab, "z")
        at(tab, 6)
        assert tab.js("document.querySelector('.steps [aria-selected=true]').id") == "step-1"
        judged = stored(tab, server, 8)
        assert [one["step"] for one in judged.values()] == [0, 1, 1, None, None, None]
        assert [one["judgement"] for one in judged.values()] == ["wrong"] * 3 + ["right", "cannot_tell", "right"]
    with stub("responses", shows("responses"), scale=5, judgements=[*"12345", "cannot_tell"]) as server:
        tab.open(server.address)
        at(tab, 0)
        press(tab, "y", "6", "5", "1", "u")
        at(tab, 3)
        assert [one["judgement"] for one in stored(tab, server, 3).values()] == ["5", "1", "cannot_tell"]
        assert tab.js("document.querySelector('h2').textContent") == "How good is the response, from 1 to 5?"


def test_the_row_on_screen_is_the_one_drawn_and_the_one_marked(tab):
    with stub("episodes", shows("episodes")) as server:
        tab.open(server.address)
        row_on_screen(tab, 0)
        rows, seen = [0], []
        moves = [*[("ArrowRight", 1, 0)] * 3, *[("ArrowRight", 10, SHIFT)] * 3, *[("ArrowLeft", -1, 0)] * 2]
        for name, by, shift in moves:
            press(tab, name, modifiers=shift)
            rows.append(rows[-1] + by)
            row_on_screen(tab, rows[-1])
            seen.append((read_stripes(tab), read_stripes(tab, 1)))
        assert seen == [(row, row) for row in rows[1:]]
        press(tab, "m", "s")
        at(tab, 1)
        press(tab, "ArrowLeft", "m", "m", "s", "f", "d")  # marked and not marked again
        at(tab, 4)
        press(tab, "ArrowRight", modifiers=SHIFT)
        press(tab, " ")
        row_on_screen(tab, 39)  # it plays to the end
        assert read_stripes(tab) == 39
        press(tab, *["ArrowRight"] * 3, "m")
        assert "row 39 of 0 to 39, 1.30 s; moment of success: row 39" in tab.js("document.getElementById('row').value")
        tab.js("window.bar = document.getElementById('scrub'); bar.value = 7; bar.dispatchEvent(new Event('input'))")
        row_on_screen(tab, 7)
        press(tab, "s")
        at(tab, 5)
        judged = stored(tab, server, 5)
        assert [(one["judgement"], one["row"]) for one in judged.values()] == [
            ("success", 31), ("success", None), ("failure", None), ("discard", None), ("success", 39),
        ]  # fmt: skip
        press(tab, "z")
        at(tab, 4)
        assert "moment of success: row 39" in tab.js("document.getElementById('row').value")


def test_pictures_that_cannot_be_decoded_have_a_reason_and_can_be_discarded(tab):
    with stub("episodes", shows("episodes")) as server:
        server.frame_error = "front.mp4 is cut off at byte 17"
        tab.open(server.address)
        tab.wait("!document.getElementById('problem').hidden")
        assert "row 0: front.mp4 is cut off at byte 17" in tab.js("document.getElementById('problem').textContent")
        press(tab, "m")
        assert tab.js(STATUS) == "No row is on screen."
        press(tab, "d")
        at(tab, 1)
        assert stored(tab, server, 1)[0]["judgement"] == "discard"


def test_judgements_are_kept_while_the_server_is_away_also_over_a_reload(tab):
    with stub("responses", shows("responses")) as server:
        tab.open(server.address)
        at(tab, 0)
        server.is_away = True
        press(tab, "y", "n", "z", "u", "n")
        tab.wait("!document.getElementById('away').hidden")
        tab.wait("document.getElementById('away').textContent.includes('5 judgements are kept here')")
        assert not server.posted
        tab.js("window.stop()")
        kept = tab.js("Object.keys(localStorage).length")
        assert kept == 5
        server.is_away = False
        tab.open(server.address)
        at(tab, 3)
        judged = stored(tab, server, 5)
        assert {k: one["judgement"] for k, one in judged.items()} == {0: "right", 1: "cannot_tell", 2: "wrong"}
        assert tab.js("Object.keys(localStorage).length") == 0
        assert tab.js("document.getElementById('away').hidden")


def test_a_refused_judgement_is_said(tab):
    with stub("responses", shows("responses")) as server:
        tab.open(server.address)
        at(tab, 0)
        refused = {"error": {"message": "rows.jsonl: this row has changed <b>"}}
        server.post = lambda body: refused
        server.status = 409
        press(tab, "y")
        tab.wait("!document.getElementById('refused').hidden")
        said = tab.js("document.querySelector('#refused li').textContent")
        assert said == "Not stored: right: rows.jsonl: this row has changed <b>"
        tab.js("document.getElementById('dismiss').click()")
        assert tab.js("document.getElementById('refused').hidden")


NO_FORMULA_WAITS = "jobs.length === 0 && !isBusy"
FORMULAS = "Array.from(document.querySelectorAll('#item math'), (e) => e.textContent)"


def test_formulas_are_mathml_and_what_would_say_something_else_stays_as_it_is(tab):
    stay = [
        "cost $5 and $6, `echo $A$`", r"$\phantom{x}$", r"$\cancel{y}$", r"$\frac{1}{$", r"\$3", "```\n$b$\n```",
        r"$\char" + '"202E z$', r"$\href{x}{y}$", "$" + "{" * 900 + "}" * 900 + "$", "$" + "a" * 3000 + "$",
    ]  # fmt: skip
    source = r"Then $x^2$, \(\frac{1}{2}\) and \[\boxed{42}\] then $$a\\b$$ then " + "\nand ".join(stay)
    with stub("responses", shows("responses", 2, text=source)) as server:
        tab.open(server.address)
        tab.wait(f"{FORMULAS}.length === 4 && {NO_FORMULA_WAITS}")
        assert tab.js(FORMULAS)[:3] == ["x2", "12", "42"]
        assert tab.js("document.querySelectorAll('math .boxed').length") == 1
        text = tab.js("document.querySelector('#item .said:last-child').textContent")
        assert [one for one in stay if one not in text] == []
        tab.js("document.getElementById('formulas').click()")
        assert tab.js(FORMULAS) == []
        assert tab.js("document.querySelector('#item .said:last-child').textContent") == source


@pytest.mark.parametrize(("letters", "repeats"), [(1000, 400), (100, 40)], ids=["takes long", "grows"])
def test_a_formula_that_takes_long_or_grows_stays_as_it_is(tab, letters, repeats):
    formula = r"$\def\a{" + "x" * letters + "}" + r"\a" * repeats + "$"
    with stub("responses", shows("responses", 2, text=f"{formula} and $x$")) as server:
        tab.open(server.address)
        tab.wait(f"{FORMULAS}.length === 1 && {NO_FORMULA_WAITS}")
        assert tab.js(FORMULAS) == ["x"]
        press(tab, "y")
        at(tab, 1)


@pytest.mark.hostile("pages")
@pytest.mark.parametrize("kind", ["responses", "pairs", "steps", "episodes"])
def test_hostile_text_is_text_in_every_field(tab, kind):
    def hostile(value):
        if isinstance(value, str):
            return HOSTILE
        return [hostile(one) for one in value] if isinstance(value, list) else value

    messages = {"messages": [["user", ""], ["", ""]], "reference": ""} if kind != "episodes" else {"problem": ""}
    items = [{name: hostile(value) for name, value in (one | messages).items()} for one in shows(kind, 3)]
    guideline = {"text": HOSTILE, "hash": ""}
    with stub(kind, items, data=HOSTILE, person=HOSTILE, guideline=guideline) as server:
        server.tables = [{"title": HOSTILE, "note": HOSTILE, "columns": [HOSTILE], "rows": [[HOSTILE]]}]
        server.frame_error = HOSTILE
        tab.open(server.address)
        at(tab, 0)
        text = tab.js("document.body.textContent")
        assert text.count("<script>document.documentElement.dataset.ran='1'</script>") >= 3
        assert "U+202E" in text
        press(tab, "?")
        assert "<script>" in tab.js("document.getElementById('help-view').textContent")
        press(tab, "?")
        tab.js("document.getElementById('summary').click()")
        tab.wait("document.documentElement.dataset.summary")
        assert tab.js("document.getElementById('summary-view').textContent").count("<script>document") == 4
        press(tab, "Escape")
        tab.js("new Promise((done) => setTimeout(done, 300))")  # formulas were made
        for forbidden in (
            "img, iframe, object, a[href]",
            "script:not([src^=static])",
            "[style]:not(#moment-mark), [onerror]",
        ):
            assert tab.js(f"document.querySelectorAll('{forbidden}').length") == 0, forbidden
        press(tab, "u")
        at(tab, 1)


CONTRAST = """
(() => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const paint = canvas.getContext("2d", { willReadFrequently: true });
  const over = (colours) => {
    paint.clearRect(0, 0, 1, 1);
    for (const one of colours) { paint.fillStyle = one; paint.fillRect(0, 0, 1, 1); }
    return [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const low = {};
  for (const one of document.querySelectorAll("body *")) {
    if (!one.checkVisibility() || ![...one.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    const grounds = [];
    for (let up = one; up; up = up.parentElement) grounds.unshift(getComputedStyle(up).backgroundColor);
    const [a, b] = [over(grounds), over([...grounds, getComputedStyle(one).color])].map(light).sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) low[`${one.tagName}#${one.id} ${one.textContent.trim().slice(0, 20)}`] = ratio.toFixed(2);
  }
  return low;
})()
"""
CONTROLS = """[...document.querySelectorAll("*")].flatMap((one, i) =>
    one.matches("button:enabled, input, textarea, [tabindex='0']") && one.checkVisibility() ? [i] : [])"""
FOCUSED = """(() => { const one = document.activeElement;
    return one === document.body ? null : [...document.querySelectorAll("*")].indexOf(one); })()"""


@pytest.mark.parametrize("kind", ["responses", "pairs", "steps", "episodes"])
def test_it_fits_a_narrow_window_is_readable_and_has_every_control_by_tab(tab, kind):
    text = "A long word: " + "x" * 300 + " and $x^2" + "+y_{12}" * 40 + "$ %k"
    guideline = {"text": "Judge the last line. " * 9, "hash": "0"}
    with stub(kind, shows(kind, text=text), guideline=guideline) as server:
        server.tables = [{"title": "People", "columns": ["person", "judgements"], "rows": [["ann", "3"]]}]
        for dark in (False, True):
            tab.dark(dark)
            tab.size(420)
            tab.open(server.address)
            at(tab, 0)
            assert tab.js("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
            assert tab.js(CONTRAST) == {}
            tab.js("document.getElementById('help').click()")
            assert tab.js("document.getElementById('help-view').scrollWidth <= 420")
            assert tab.js(CONTRAST) == {}
            press(tab, "?")
            colours = "(({ backgroundColor, color }) => [backgroundColor, color])(getComputedStyle(document.body))"
            ground, ink = [sum(map(int, re.findall(r"\d+", one)[:3])) for one in tab.js(colours)]
            assert (ground < ink) == dark
        tab.js("document.activeElement.blur()")
        reached = set()
        for _ in range(40):
            press(tab, "Tab")
            place = tab.js(FOCUSED)
            if place in reached:
                break
            reached.add(place)
        assert reached.issuperset(tab.js(CONTROLS))
        tab.js("document.querySelector('#judgements button').focus()")
        press(tab, "Enter", autoRepeat=True)  # held since the item before
        assert tab.js(ITEM) == "0"
        press(tab, "Enter")
        tab.wait(f"{ITEM} === '1'")
    tab.size(1300)
    tab.dark(False)
