"""The report in a real browser: its script runs, the switches switch, the scrubber moves."""

import re
import shutil
import subprocess

import pytest
import synthetic_study
from synthetic_study import write_study, write_text_study

import chromium
from guerdon.comparison.report import write_report, write_single_report
from tables import sample

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]

PROBE = """
<script>
{
const click = (selector) => document.querySelector(selector).click();
const charts = () => [...document.querySelectorAll("svg.curves")].filter((c) => c.getClientRects().length);
const visible = () => charts().length;
const say = (key, value) => { document.body.dataset[key] = value; };
say("before", visible());
click('input[value="iqm"]'); click('input[value="time"]');
const section = document.getElementById("curves");
say("curves", section.dataset.stat + " " + section.dataset.axis);
say("after", visible());
const video = document.querySelector(".video");
const slider = video.querySelector("input");
const first = video.querySelector(".screen img").src;
slider.value = slider.max; slider.dispatchEvent(new Event("input"));
const thumbs = video.querySelectorAll(".strip img");
say("changed", video.querySelector(".screen img").src !== first);
say("last", video.querySelector(".screen img").src === thumbs[thumbs.length - 1].src);
say("output", video.querySelector("output").textContent);
say("badge", video.querySelector(".badge").hidden);
say("cursor", video.querySelector(".cursor").getAttribute("d"));
say("x", video.querySelector(".strip li:last-child").dataset.x);
const chart = charts()[0];
const box = chart.getBoundingClientRect();
chart.dispatchEvent(new PointerEvent("pointermove", { clientX: box.x + box.width / 2, clientY: box.y + 9 }));
say("readout", chart.closest("figure").querySelector(".readout").textContent);
say("overflow", document.documentElement.scrollWidth - document.documentElement.clientWidth);
}
</script>
"""


def dump(url, tmp_path, width=1280, *flags):
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", *flags, "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    write_study(root, lambda task, arm, seed: {"A": 0.1, "B": 0.3, "C": 0.9}[arm] + seed / 50)
    return write_report(root)


@pytest.mark.hostile("pages")
def test_script_runs_under_the_pages_own_policy_and_links_lead_to_a_frame(report, tmp_path):
    dom = dump(f"{report.as_uri()}#video-2-frame-7", tmp_path)
    root = re.search(r"<html[^>]*>", dom).group()
    assert 'data-ready="true"' in root
    assert "data-error" not in root
    assert re.search(r'id="video-2"[^>]*data-frame="7"', dom)
    assert re.search(r'id="video-1"[^>]*data-frame="0"', dom)


@pytest.mark.parametrize("width", sample([1280, 500], 500))
def test_switches_scrubber_and_readout_work(report, tmp_path, width):
    page = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", report.read_text())
    probed = tmp_path / "probed.html"
    probed.write_text(page.replace("</body>", PROBE + "</body>"))
    dom = dump(probed.as_uri(), tmp_path, width)
    body = dict(re.findall(r'data-(\w+)="([^"]*)"', re.search(r"<body[^>]*>", dom).group()))
    assert "data-error" not in re.search(r"<html[^>]*>", dom).group()
    assert body["curves"] == "iqm time"
    assert body["before"] == body["after"] == "3"  # all tasks and two tasks, one picture each
    assert (body["changed"], body["last"], body["badge"]) == ("true", "true", "false")
    assert body["output"].startswith("row 117: env 1.000")
    assert body["cursor"].startswith("M" + body["x"])
    assert re.match(r"At [\d.]+ (s|min):\u2003A \d\.\d\d\u2003B \d\.\d\d\u2003C \d\.\d\d", body["readout"])
    assert body["overflow"] == "0"


def test_single_run_report_runs_its_script(report, tmp_path):
    path = write_single_report(report.parent / "runs" / "door-close-v3" / "C" / "seed0", out=tmp_path / "one.html")
    root = re.search(r"<html[^>]*>", dump(path.as_uri(), tmp_path)).group()
    assert 'data-ready="true"' in root
    assert "data-error" not in root


LAYOUT = """
<script>
{
const say = (key, value) => { document.body.dataset[key] = value; };
const boxes = () => [...document.querySelectorAll("#numbers .scroll")].filter((e) => e.getClientRects().length);
const lines = (e) => Math.round(e.getBoundingClientRect().height / parseFloat(getComputedStyle(e).lineHeight));
const labels = () => Math.max(...[...document.querySelectorAll("#numbers th small")].map(lines));
document.querySelectorAll("#numbers details").forEach((e) => { e.open = true; });
say("wide", boxes().map((e) => e.scrollWidth - e.clientWidth).join());
say("labels", labels());
document.body.style.width = "420px";
say("narrow", boxes().map((e) => e.scrollWidth > e.clientWidth).join());
say("narrowlabels", labels());
const style = getComputedStyle(boxes()[0]);
say("edges", (style.backgroundImage.match(/gradient/g) || []).length + " " + style.scrollbarWidth);
const picture = getComputedStyle(document.querySelector(".card figure img"));
say("picture", picture.filter + " " + picture.mixBlendMode);
}
</script>
"""


@pytest.mark.parametrize("dark", [False, True])
def test_numbers_fit_and_pictures_follow_the_mode(tmp_path, monkeypatch, dark):
    long = {arm: f"{label}, with a label as long as people write them" for arm, label in synthetic_study.ARMS.items()}
    monkeypatch.setattr(synthetic_study, "ARMS", long)
    finals = {"A": 0.31, "B": 0.42, "C": 0.93}
    root = write_study(tmp_path / "study", lambda task, arm, seed: finals[arm] + seed / 50, videos=False)
    page = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", write_report(root).read_text())
    probed = tmp_path / "probed.html"
    probed.write_text(page.replace("</body>", LAYOUT + "</body>"))
    dom = dump(probed.as_uri(), tmp_path, 1200, f"--blink-settings=preferredColorScheme={0 if dark else 1}")
    body = dict(re.findall(r'data-(\w+)="([^"]*)"', re.search(r"<body[^>]*>", dom).group()))
    assert body["wide"] == "0,0,0,0"
    assert int(body["labels"]) <= 3
    assert body["narrow"] == "true,true,true,true"
    assert int(body["narrowlabels"]) <= 4
    assert body["edges"] == "4 thin"
    assert body["picture"] == ("invert(1) hue-rotate(180deg) lighten" if dark else "none normal")


ANSWERS = """
<script>
{
const panel = document.querySelector(".answers:has(.pick-moment):has(.scale)");
const shown = (selector) => [...panel.querySelectorAll(selector)].filter((e) => e.getClientRects().length);
const say = (key, value) => { document.body.dataset[key] = value; };
say("moments", shown(".of-moment").map((e) => e.dataset.i).join());
panel.querySelector('.pick-moment [value="2"]').click();
say("earlier", shown(".of-moment").map((e) => e.dataset.i).join());
const levels = [...panel.querySelectorAll(".scale i")].map((e) => getComputedStyle(e).backgroundColor);
say("colours", new Set(levels).size);
const chart = [...document.querySelectorAll("#curves svg.curves")].find((c) => c.getClientRects().length);
const box = chart.getBoundingClientRect();
chart.dispatchEvent(new PointerEvent("pointermove", { clientX: box.x + box.width / 2, clientY: box.y + 9 }));
say("readout", chart.closest("figure").querySelector(".readout").textContent);
say("overflow", document.documentElement.scrollWidth - document.documentElement.clientWidth);
}
</script>
"""


@pytest.fixture(scope="module")
def text_report(tmp_path_factory):
    return write_report(write_text_study(tmp_path_factory.mktemp("text"), tasks=("chain",), seeds=(0, 1)))


@pytest.mark.parametrize("width", [1280, 500])
def test_answers_of_earlier_moments_can_be_chosen(text_report, tmp_path, width):
    page = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", text_report.read_text())
    probed = tmp_path / "probed.html"
    probed.write_text(page.replace("</body>", ANSWERS + "</body>"))
    dom = dump(probed.as_uri(), tmp_path, width)
    body = dict(re.findall(r'data-(\w+)="([^"]*)"', re.search(r"<body[^>]*>", dom).group()))
    assert "data-error" not in re.search(r"<html[^>]*>", dom).group()
    assert (body["moments"], body["earlier"]) == ("0", "2")
    assert body["colours"] == "11"
    assert re.match(r"At [\d.]+k responses:\u2003rloo \d", body["readout"])
    assert body["overflow"] == "0"


def test_text_page_needs_no_script_of_its_own_to_show_answers(text_report, tmp_path):
    page = re.sub(r"<script>.*?</script>", "", text_report.read_text(), flags=re.S)
    bare = tmp_path / "bare.html"
    bare.write_text(page.replace("</body>", ANSWERS.split("const chart")[0] + "}</script></body>"))
    page = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", bare.read_text())
    bare.write_text(page)
    dom = dump(bare.as_uri(), tmp_path)
    body = dict(re.findall(r'data-(\w+)="([^"]*)"', re.search(r"<body[^>]*>", dom).group()))
    assert (body["moments"], body["earlier"]) == ("0", "2")


def test_the_page_of_a_study_that_runs_comes_back_to_where_the_reader_was(tmp_path):
    study = write_study(
        tmp_path / "study", lambda task, arm, seed: {"A": 0.1, "B": 0.3, "C": 0.9}[arm], tasks=("t",), seeds=(0, 1),
        run_options=lambda task, arm, seed: {"complete": seed == 0},
    )  # fmt: skip
    page = write_report(study, every=900.0)
    written = "document.getElementById('written')"
    place = "document.getElementById('models').getBoundingClientRect().top"
    reloaded = "window.before === undefined && document.documentElement?.dataset.ready"
    with chromium.Page(tmp_path / "profile") as tab:
        tab.open(page.as_uri())
        tab.js("document.documentElement.style.scrollBehavior = 'auto'; window.before = true")
        tab.js("document.querySelector('#numbers details').open = true; document.querySelector('[value=iqm]').click()")
        tab.js("document.querySelector('#video-2').show(7)")
        tab.js(f"window.scrollTo({{ top: window.scrollY + {place} - 60, behavior: 'instant' }})")
        tab.js("document.querySelector('.task button').click()")
        assert tab.js("document.querySelector('.task').isPlaying()")
        tab.js("document.querySelector('.task').isPlaying = () => window.playing; window.playing = true")
        top = tab.js(place)
        for run in study.glob("runs/t/*/seed1"):
            (run / "COMPLETE").write_text("{}")
        write_report(study, every=60.0)
        tab.js(f"{written}.dataset.every = 0")
        tab.js("window.said = 0; setInterval(() => { window.said += 1; }, 1000)")
        tab.wait("window.said >= 2")
        assert tab.js("window.before"), "while a video plays it stays"
        tab.js("window.playing = false")
        tab.wait_for_reload(reloaded)
        assert tab.js(f"{written}.dataset.every") == "60.0"
        assert "A: 2 of 2 runs complete" in tab.js("document.getElementById('missing').textContent")
        assert tab.js("document.querySelector('#numbers details').open")
        assert tab.js("document.getElementById('curves').dataset.stat") == "iqm"
        assert tab.js("document.querySelector('#video-2').dataset.frame") == "7"
        assert abs(tab.js(place) - top) < 5
        quiet = "document.getElementById('quiet')"
        assert tab.js(f"{quiet}.hidden")
        tab.js(f"{quiet}.dataset.changed = new Date(Date.now() - 700000).toISOString()")
        tab.wait(f"!{quiet}.hidden")
        assert "11 min ago" in tab.js(f"{quiet}.textContent")
        tab.js("window.before = true")
        write_report(study)
        tab.js(f"{written}.dataset.every = 0")
        tab.wait_for_reload(reloaded)
        assert not tab.js(written), "the page of a study that is done does not reload itself"
        assert tab.js("document.documentElement.dataset.error") is None
