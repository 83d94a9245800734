import base64
import io
import json
import re

import numpy as np
import pytest
import yaml
from PIL import Image
from synthetic_study import STEPS, comparison_table, rising, write_card, write_run, write_study, write_video

from guerdon.comparison import report
from guerdon.comparison.report import (
    ALARM_EPISODES,
    choose_videos,
    config_differences,
    fit_videos,
    missing_of_study,
    terms_of,
    write_report,
    write_single_report,
)
from guerdon.comparison.report_cards import card_views, flat_text_card
from guerdon.comparison.report_charts import curve_panels
from guerdon.comparison.report_tables import markdown_table
from guerdon.comparison.results import arm_styles, read_study
from guerdon.errors import DataError
from guerdon.pages.formats import WORDS
from guerdon.rl.episode_stats import FEWEST, OLDEST
from tables import refuses

FINALS = {"A": (0.0, 0.1, 0.2), "B": (0.1, 0.3, 0.0), "C": (0.7, 0.9, 0.8)}


def finals(task, arm, seed):
    return FINALS[arm][seed] + (0.05 if task.startswith("door") else 0.0)


def row(rows, arm, task="all tasks"):
    return next(r for r in rows if r["arm"] == arm and r["task"] == task)


def text(page):
    """The page's words: no style, no script, no tags, single spaces."""
    page = re.sub(r"<(style|script)>.*?</\1>", " ", page, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)).replace("\u00a0", " ")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("study"), finals)


@pytest.fixture(scope="module")
def page(study):
    return write_report(study).read_text()


def test_table_against_numbers_computed_by_hand(study):
    rows = comparison_table(study)
    a, b, c = (row(rows, arm) for arm in "ABC")
    assert [r["arm"] for r in rows[:3]] == ["A", "B", "C"]
    assert a["final_success"] == pytest.approx((0.1 + 0.15) / 2)
    assert c["final_success"] == pytest.approx((0.8 + 0.85) / 2)
    assert c["area"] == pytest.approx(c["final_success"] / 2)  # a straight line from 0
    assert c["difference"] == pytest.approx(0.7)  # 0.7, 0.8, 0.6 on each task
    assert b["difference"] == pytest.approx((0.1 + 0.2 - 0.2) / 3)
    # paired t interval over two tasks: s = 0.1 in each, v = 0.01 / 3, df = 4, se = sqrt(2 v) / 2
    half = 2.7764451 * np.sqrt(2 * 0.01 / 3) / 2
    assert c["difference_low"] == pytest.approx(0.7 - half)
    assert c["difference_high"] == pytest.approx(0.7 + half)
    assert (a["conclusion"], b["conclusion"], c["conclusion"]) == ("baseline", "no difference shown", "better")
    assert c["p_above"] == 1.0
    assert b["p_above"] == pytest.approx(5 / 9)  # 0.1 beats 0 and ties 0.1; 0.3 beats all three; 0 ties 0
    assert c["n_pairs"] == 6
    assert c["p_value"] == pytest.approx(2 / 2**6)
    # C's runs end at 0.7 .. 0.95: all pass half way, at the first evaluation at or above 0.5
    assert c["reached_50"] == 6
    assert c["steps_to_50"] == 60_000  # 0.7 and 0.75 reach 0.525 there, 0.95 reaches 0.7125 there
    assert c["reached_80"] == 4
    assert c["steps_to_80"] == 80_000
    assert a["steps_to_50"] is None
    assert (c["n_runs"], c["n_planned"]) == (6, 6)
    assert c["failure_rate"] == 0.0


def test_task_rows_follow_the_pooled_ones(study):
    rows = comparison_table(study)
    assert [r["task"] for r in rows] == ["all tasks"] * 3 + ["window-close-v3"] * 3 + ["door-close-v3"] * 3
    assert row(rows, "C", "door-close-v3")["final_success"] == pytest.approx(0.85)


def test_page_says_the_conclusions_in_plain_words(page):
    words = text(page)
    assert "C beats A: final success +0.70 [0.59, 0.81]" in words
    assert "B against A: no difference shown, final success +0.03" in words
    assert words.count("better") == 3  # C pooled and on both tasks, nowhere else
    for part in (
        "Learning curves",
        "Reward and true success",
        "Reward models",
        "Episodes",
        "Reproduction",
        "Warnings",
    ):
        assert part in words
    assert "guerdon compare studies/demo.yaml" in words
    assert "torch 2.13.0" in words


def test_page_never_says_better_without_an_interval_that_excludes_zero(tmp_path):
    same = write_study(tmp_path, lambda task, arm, seed: (0.1, 0.5, 0.3)[(seed + ord(arm)) % 3], videos=False)
    words = text(write_report(same).read_text())
    assert "better" not in words
    assert " beats " not in words
    assert words.count("no difference shown") >= 2


def test_the_first_section_answers_four_questions_of_every_arm(tmp_path):
    def options(task, arm, seed):
        return {"alarm_at": {("C", 0): (40_000,), ("C", 1): (40_000, 80_000)}.get((arm, seed), ())}

    levels = {"A": 0.5, "B": 0.8, "C": 0.1}
    study = write_study(
        tmp_path, lambda t, arm, seed: levels[arm] + (seed / 50 if arm == "A" else 0), tasks=("t",), run_options=options
    )
    for path in study.glob("runs/t/B/*/metrics.jsonl"):  # an arm without a reward model
        path.write_text(path.read_text().replace('"hacking_alarm": 0, ', ""))
    page = write_report(study).read_text()
    table = page[page.index('<table class="conclusions">') : page.index("</table>")]
    heads = ["Setting", "Does it help?", "How sure?", "Is it being gamed?", "Where to look"]
    assert re.findall('<th scope="col">(.*?)</th>', table) == heads
    better, worse = (text(part) for part in table.split("<tr class")[1:])
    assert "Probably. B probably beats A: final success +0.28" in better, "three pairs cannot have p below 0.05"
    assert "The interval excludes 0, which the sign-flip test does not confirm." in better
    assert "No. It learns from no reward model." in better
    assert "Probably not: it seems to harm. C is probably worse than A" in worse
    assert "Likely. Alarm in 2 of 3 runs, at the end of 0: the learned return rises, true success does not." in worse
    for video in re.findall('href="#(video-[0-9]+)"', table):
        assert f'<figure class="video" id="{video}"' in page
    assert len(re.findall('href="#video', table)) == 2
    assert "What decides: the interval in brackets alone" in text(page)
    for path in study.glob("runs/t/*/*/metrics.jsonl"):
        path.write_text(re.sub('"hacking_alarm": [01]', '"hacking_alarm": null', path.read_text()))
    unknown = "Unknown. An alarm needs 80 training episodes whose return and success are known."
    page = text(write_report(study).read_text())
    assert unknown in page
    assert "No sign" not in page
    assert "Unknown in 6 runs: fewer than 80 training episodes have a known return and success." in page
    assert "None: in no run" not in page
    assert ALARM_EPISODES == 2 * OLDEST
    (first, *_) = study.glob("runs/t/C/*/metrics.jsonl")
    first.write_text(first.read_text().replace('"hacking_alarm": null', '"hacking_alarm": 0'))
    assert "No sign. No alarm in 1 run; 2 could not be judged." in text(write_report(study).read_text())


def test_arms_none_of_whose_runs_reach_the_baseline_are_said_so(tmp_path):
    study = write_study(tmp_path, lambda t, arm, seed: 0.8 if arm == "A" else 0.1, tasks=("t",), videos=False)
    assert row(comparison_table(study), "B", "t")["speed"] == "not reached in 3 of 3 pairs"
    assert "| not reached in 3 of 3 pairs |" in markdown_table(study)


def test_differences_of_configurations_are_those_that_arms_write(tmp_path):
    study = write_study(tmp_path, finals, tasks=("t",), videos=False)
    plan = yaml.safe_load((study / "study.yaml").read_text())
    plan["runner"] = {"total_steps": 7, "seed": 1}
    plan["compare"]["arms"]["B"]["config"] = {"runner": {"total_steps": 9}, "reward": {"sources": ["x", "y"]}}
    plan["compare"]["arms"]["C"]["config"] = {"runner": {"total_steps": 7, "seed": 1}}
    (study / "study.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    assert config_differences(read_study(study)) == [
        ("runner.total_steps", ["7", "9", "7"]), ("reward.sources", ["–", "x, y", "–"])
    ]  # fmt: skip
    assert "runner.total_steps 7 9 7" in text(write_report(study).read_text())
    (study / "study.yaml").write_text("[")
    assert config_differences(read_study(study)) == []


def test_worse_is_said_too(tmp_path):
    study = write_study(tmp_path, lambda t, arm, seed: {"A": 0.8, "B": 0.1, "C": 0.8}[arm] + seed / 50, videos=False)
    for path in (study / "runs").glob("*/B/seed1/metrics.jsonl"):
        path.write_text(path.read_text().replace('"success": 0.12', '"success": 0.14'))
    assert row(comparison_table(study), "B")["conclusion"] == "worse"
    assert "B is worse than A: final success −0.69" in text(write_report(study).read_text())


def test_page_is_small_and_self_contained(study, page):
    assert (study / "report.html").stat().st_size < 3_000_000
    assert not re.search(r"https?://|//cdn|@import|<link|<iframe|src=\"(?!data:)", page)
    assert set(re.findall(r'href="([^"#]*)', page)) == {""}
    assert not re.search(r"\bNaN\b|\bnan\b|\binf\b|Infinity|>None<|: None\b", page)
    assert "Content-Security-Policy" in page
    assert not list(study.glob(".*tmp"))


@pytest.mark.slow
def test_many_videos_stay_within_the_budget(tmp_path):
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, size=(30, 256, 256, 3), dtype=np.uint8)  # as bad as JPEG gets
    study = write_study(tmp_path, finals, seeds=(0, 1), videos=False, cards=False)
    rows, success = np.arange(30), np.arange(30) > 20
    for run in (study / "runs").glob("*/*/seed*"):
        (run / "films").mkdir()
        meta = np.array([json.dumps({"step": 1, "task": "x", "success": True})])
        np.savez(run / "films" / "a.npz", frames=noise, rows=rows, success=success, meta=meta)
    path = write_report(study)
    assert path.stat().st_size < 3_000_000
    page = path.read_text()
    assert page.count('<figure class="video"') >= 6  # at least one per arm and task
    assert "left out to keep this file small" in text(page) or page.count('<figure class="video"') == 12


def test_videos_take_turns_and_prefer_the_other_outcome(tmp_path):
    study = write_study(tmp_path, finals, tasks=("t",), videos=False, cards=False)
    for seed, success in ((0, True), (1, True), (2, False)):
        folder = study / "runs" / "t" / "C" / f"seed{seed}" / "films"
        write_video(folder / "early.npz", step=10, n=5)
        write_video(folder / "late.npz", step=80_000, n=50, success=success)
    (study / "runs" / "t" / "C" / "seed1" / "films" / "broken.npz").write_bytes(b"PK not a zip")

    videos, notes = choose_videos(read_study(study).runs)
    assert [(video.run.seed, video.step, video.success) for video in videos] == [
        (0, 80_000, True),
        (2, 80_000, False),
    ]
    assert len(notes) == 1
    assert "broken.npz" in notes[0]
    shown, left_out, _ = fit_videos(videos, budget=10_000_000)
    assert not left_out
    assert len(shown[0].frames) in (31, 32)
    assert [frame.row for frame in shown[0].frames][:1] == [0]
    assert any(frame.success for frame in shown[0].frames)
    assert "resnet missing" in next(frame.text for frame in shown[0].frames if frame.row in (15, 18))


def test_videos_that_cannot_be_read_or_do_not_fit_are_left_out_and_said_to_be(tmp_path):
    study = write_study(tmp_path, finals, tasks=("t",), videos=False, cards=False)
    of = {arm: study / "runs" / "t" / arm / "seed0" / "films" / f"{arm}.npz" for arm in "ABC"}
    for arm, path in of.items():
        write_video(path, n=12)
        with np.load(path) as file:
            arrays = dict(file)
        if arm == "A":
            del arrays["success"]
        elif arm == "B":
            arrays["rows"] = arrays["rows"][:-1]
        else:
            arrays["frames"] = np.repeat(np.repeat(arrays["frames"], 2, axis=1), 3, axis=2)
        np.savez(path, **arrays)
    videos, notes = choose_videos(read_study(study).runs)
    assert (len(videos), notes) == (3, [])
    shown, left_out, notes = fit_videos(videos, budget=10_000_000)
    assert "A.npz" in notes[0]
    assert "lacks an array" in notes[0]
    assert "must share one length" in notes[1]
    size = Image.open(io.BytesIO(base64.b64decode(shown[0].frames[0].uri.partition(",")[2]))).size
    assert (size, left_out) == ((208, 139), [])  # of 384 x 256
    assert [one.path for one in fit_videos(videos, budget=0)[1]] == [of["C"]]


def test_a_page_that_would_be_too_large_has_no_curves_of_single_tasks_and_no_videos(tmp_path, monkeypatch):
    study = write_study(tmp_path, finals, seeds=(0,), cards=False, run_options=lambda t, arm, s: {"video": arm == "C"})
    monkeypatch.setattr(report, "MAX_BYTES", 1000)
    page = write_report(study).read_text()
    assert "The curves of single tasks are left out to keep this file small" in text(page)
    assert "2 videos left out to keep this file small; they are in films/ of the runs" in text(page)
    assert '<figure class="video"' not in page


def test_unfinished_failed_and_missing_runs_are_listed(tmp_path):
    def options(task, arm, seed):
        return {"complete": (arm, seed) not in {("B", 0), ("C", 1)}}

    study = write_study(
        tmp_path,
        lambda t, arm, seed: None if (arm, seed) == ("C", 2) else finals(t, arm, seed),
        tasks=("t",),
        run_options=options,
        videos=False,
    )
    (study / "runs/t/C/seed1/FAILED.json").write_text(json.dumps({"error": "TooManyFailuresError: 31 % failed"}))
    with (study / "runs/t/A/seed0/metrics.jsonl").open("a") as file:
        file.write('{"kind": "eval", "step": 90000, "succ')
    (study / "runs/t/Z/seed0").mkdir(parents=True)
    words = text(write_report(study).read_text())
    assert [line.partition(" at work")[0] for line in missing_of_study(read_study(study))] == [
        "A: 3 of 3 runs complete", "B: 2 of 3 runs complete, 1", "C: 1 of 3 runs complete, 1 failed",
    ]  # fmt: skip
    assert "t/B/seed0 is unfinished: its last evaluation is at step 80k" in words
    assert "t/C/seed1 failed at step 80k: TooManyFailuresError: 31 % failed" in words
    assert "t/C/seed2 is missing" in words
    assert "t/A/seed0: 1 unreadable line skipped" in words
    assert "runs/t/Z/seed0 is not part of the study" in words
    assert "C: only 1 of 3 runs are complete" in words
    assert "Few seeds: 1 complete seed" in words
    c = row(comparison_table(study), "C", "t")
    assert (c["n_runs"], c["n_planned"], c["n_pairs"]) == (1, 3, 1)
    assert c["conclusion"] == "no difference shown"  # one pair has no interval
    assert c["final_success"] == pytest.approx(0.7)


def test_arms_with_different_failure_rates_are_not_compared(tmp_path):
    study = write_study(
        tmp_path,
        finals,
        run_options=lambda t, arm, s: {"failure_rate": 0.12 if arm == "C" else 0.0},
        videos=False,
    )
    c = row(comparison_table(study), "C")
    assert c["conclusion"] == "not comparable"
    assert c["difference"] is None
    assert c["p_above"] is None
    words = text(write_report(study).read_text())
    assert "C and A are not comparable: failure rates differ (12% of measurements failed in C, 0% in A)" in words
    assert "C beats A" not in words


def test_alarms_are_listed_with_run_and_step(tmp_path):
    study = write_study(
        tmp_path,
        finals,
        run_options=lambda t, arm, s: {"alarm_at": (40_000, 60_000)} if (t[0], arm, s) == ("d", "B", 1) else {},
        videos=False,
    )
    page = write_report(study).read_text()
    assert "door-close-v3/B/seed1 40k, 60k" in text(page)
    assert page.count('class="alarm"') == 2
    assert "None: in no run" not in page
    assert "on at the end of" not in page  # it was cleared before the end of the run


def test_an_alarm_at_the_end_is_the_first_warning(tmp_path):
    study = write_study(
        tmp_path,
        finals,
        run_options=lambda t, arm, s: {"alarm_at": (95_000,)} if arm == "B" and s < 2 else {},
        videos=False,
    )
    words = text(write_report(study).read_text())
    said = "B may be exploiting its reward model: the hacking alarm is on at the end of 4 of 6 runs"
    assert f"Warning: {said}" in words


@pytest.mark.hostile("pages")
def test_names_cannot_inject_markup(tmp_path):
    evil = "<script>alert(1)<"
    study = write_study(
        tmp_path,
        finals,
        tasks=(evil, "b & 'c'"),
        commands=('echo "</code><script>alert(2)</script>"',),
    )
    write_card(study / "models" / evil / "<img src=x onerror=alert(3)>")
    page = write_report(study).read_text()
    assert page.count("<script") == 1
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "b &amp; &#39;c&#39;" in page


def test_quality_card_shows_metrics_probes_and_pictures(page):
    words = text(page)
    assert "AUROC 0.970 [0.940, 0.990] 0.500 400 0" in words
    assert "kendall tau b – – 0.500 400 7" in words
    assert "failed: 0.980, expected &lt; 0.5" in words
    assert "does not apply" in words
    assert "held-out episodes 40 rows 2000 successful episodes 800" in words
    assert page.count('src="data:image/svg+xml;base64,') == 2


METRIC = {"estimate": 1.0, "low": 0.34, "high": 1.0, "n": 5, "n_undefined": 0, "baseline": 0.5}
EVALUATION = {
    "model": {"name": "resnet"},
    "data": {"episodes": 5, "positives": 3, "outcome_unknown": 0},
    "metrics": {
        **dict.fromkeys(("auroc", "f1", "accuracy", "value_order_tau_b", "value_order_spearman"), METRIC),
        "episode_false_positive_rate": METRIC | {"estimate": 0.5, "low": 0.0, "baseline": 0.0},
        "episode_auroc": METRIC,
    },
    "probes": {"black_frame": {"applicable": True, "passed": True, "value": 0.0, "expected": "none", "n": 4}},
    "failures": {"no_frames": 2},
}


def card_of(tmp_path, **changes):
    study = write_study(tmp_path, finals, tasks=("t",), videos=False)
    (study / "models" / "t" / "resnet" / "evaluation.json").write_text(json.dumps(EVALUATION | changes))
    page = write_report(study).read_text()
    return page[page.index('<details class="card"') : page.index('<section id="videos"')]


def test_the_headline_of_a_card_leads_with_the_worst_and_carries_n_and_interval(tmp_path):
    headline = text(card_of(tmp_path).split("</summary>")[0])
    assert headline.split("resnet · t ")[1].strip() == (
        "rewarded as success: 1 of 2 failed episodes [0.00, 1.00] "
        "episode AUROC 1.000 [0.34, 1.00], n 5 · 1 of 1 probes passed, n 4"
    )


def test_a_failed_probe_is_worse_and_what_else_was_found_follows(tmp_path):
    probe = {"applicable": True, "passed": False, "value": 0.9, "expected": "none", "n": 4}
    card = card_of(tmp_path, probes={"goal_pasted": probe})
    assert "goal pasted: failed (0.900, n 4)" in text(card.split("</summary>")[0])
    rest = re.findall(r'<li class="no">(.*?)</li>', card)
    assert rest == [
        "rewarded as success: 1 of 2 failed episodes [0.00, 1.00]",
        "episode AUROC 1.00 [0.34, 1.00], n 5: not shown to beat a model that ignores its input (0.50)",
        "2 measurements failed",
    ]


def test_a_card_with_nothing_against_it_has_no_finding(tmp_path):
    good = METRIC | {"low": 0.9, "n": 500}
    card = card_of(tmp_path, metrics={"episode_auroc": good, "auroc": good}, failures={})
    assert 'class="no"' not in card
    assert "episode AUROC 1.000 [0.90, 1.00], n 500" in text(card.split("</summary>")[0])


FORECAST = {
    "answer": "harms",
    "probabilities": {"harms": 0.7, "no effect": 0.2, "helps": 0.1},
    "gain": {"estimate": -0.2, "low": -0.3, "high": 0.01},
    "reasons": ["it looks at the arm <b>"],
    "validated": None,
}


def test_a_card_begins_with_its_forecast(tmp_path):
    card = card_of(tmp_path, forecast=FORECAST)
    headline = text(card.split("</summary>")[0])
    assert headline.split("resnet · t ")[1].startswith("forecast: likely HARMS RL (probabilities: helps 0.10, ")
    assert '<small class="no">forecast:' in card
    assert "<li>  it looks at the arm &lt;b&gt;</li>" in card
    good = FORECAST | {"answer": "helps", "probabilities": {"harms": 0.1, "no effect": 0.2, "helps": 0.7}}
    assert '<small class="yes">' in card_of(tmp_path / "other", forecast=good)
    undecided = FORECAST | {"probabilities": {"harms": 0.45, "no effect": 0.4, "helps": 0.15}}
    assert "<small>forecast: undecided, " in card_of(tmp_path / "undecided", forecast=undecided)


def test_a_forecast_that_cannot_be_read_is_noted(tmp_path):
    study = write_study(tmp_path, finals, tasks=("t",), videos=False)
    path = study / "models" / "t" / "resnet" / "evaluation.json"
    path.write_text(json.dumps(EVALUATION | {"forecast": {"answer": "harms"}}))
    page = text(write_report(study).read_text())
    assert "t/resnet: the forecast of its evaluation cannot be read" in page


def test_pictures_and_cards_that_cannot_be_shown_are_noted(tmp_path):
    study = write_study(tmp_path, finals, tasks=("t",), videos=False)
    cards = read_study(study).cards
    (shown,), notes = card_views(cards, budget=100_000)
    assert ([title for title, *_ in shown.pictures], notes) == (["reliability diagram"], [])
    (small,), notes = card_views(cards, budget=100)
    assert (small.pictures, notes) == ((), ["t/resnet: picture reliability.svg is left out to keep this file small"])
    (study / "models" / "t" / "resnet" / "reliability.svg").unlink()
    assert card_views(cards, budget=100_000)[1] == ["t/resnet: picture reliability.svg cannot be read"]
    (study / "models" / "t" / "resnet" / "evaluation.json").write_text("{")
    found = read_study(study)
    assert found.cards == ()
    assert "models/t/resnet/evaluation.json cannot be read" in text(write_report(study).read_text())


def test_a_card_of_a_text_model_names_subsets_and_biases():
    f1 = {"estimate": 0.5}
    bench = {"average_f1": {"measured": f1}, "subsets": {"gsm8k": {"measured": {"f1": {"estimate": 0.25}}}}}
    card = flat_text_card({"process_bench": {"process_bench": bench}})
    assert card["metrics"] == {"ProcessBench F1, average": f1}, "of one subset the average says all"
    bench["subsets"]["math"] = {"measured": {"f1": {"estimate": 0.75}}}
    biases = {"length": {"unit": "per word", "effect": {"estimate": 0.125}}}
    assert flat_text_card({"process_bench": {"process_bench": bench}, "bias_probes": biases})["metrics"] == {
        "ProcessBench F1, average": f1, "ProcessBench F1, gsm8k": {"estimate": 0.25},
        "ProcessBench F1, math": {"estimate": 0.75}, "bias of length, per word": {"estimate": 0.125},
    }  # fmt: skip


def test_a_card_shows_five_numbers_and_folds_the_rest(tmp_path):
    shown, folded = card_of(tmp_path).split('<details class="more">')[:2]
    names = [re.findall(r'<tr><th scope="row">([^<]*)</th>', part) for part in (shown, folded)]
    assert names[0] == [
        "episode AUROC", "episode false positive rate", "AUROC", "value order spearman, rows up to first success", "f1",
    ]  # fmt: skip
    assert names[1] == ["accuracy", "value order tau b, rows up to first success"]
    assert "2 more metrics and what was evaluated" in text(folded)


def test_one_seed_gives_no_interval_and_no_test(tmp_path):
    study = write_study(tmp_path, finals, seeds=(0,), videos=False)
    page = write_report(study).read_text()
    words, c = text(page), row(comparison_table(study), "C")
    assert (c["p_value"], c["p_above"], c["difference_low"]) == (None, None, None)
    assert c["difference"] == pytest.approx(0.7)
    assert "P(" not in words
    assert "sign-flip" not in words
    assert "With one seed there is no interval and no test" in words
    assert '<th scope="col">p</th>' not in page


def test_tasks_are_fixed_and_settings_not_corrected(page):
    assert "Tasks are treated as fixed" in text(page)
    assert "Settings are not corrected for multiplicity: of 2 comparisons" in text(page)


def test_holms_correction(tmp_path):
    def close(task, arm, seed):
        return {"A": 0.1, "B": 0.2 + (0.0, 0.03, 0.07)[seed], "C": 0.2 + (0.0, 0.1, 0.2)[seed]}[arm]

    study = write_study(tmp_path, close, videos=False, tasks=("t",))
    alone = comparison_table(study)
    plan = json.loads((study / "study.json").read_text())
    (study / "study.json").write_text(json.dumps(plan | {"correction": "holm"}))
    found = comparison_table(study)
    # B: mean .1333, s = .0351, t = 6.58, p = .022 <= .05 / 2; C: t = 3.46, p = .074 > .05
    assert [row(alone, arm, "t")["difference_level"] for arm in "BC"] == [0.95, 0.95]
    assert [row(found, arm, "t")["difference_level"] for arm in "BC"] == [0.975, 0.95]
    assert [row(found, arm, "t")["conclusion"] for arm in "BC"] == ["better", "no difference shown"]
    assert row(found, "B", "t")["difference_low"] < row(alone, "B", "t")["difference_low"]
    assert [row(found, arm, "t")["p_value"] for arm in "BC"] == [0.5, 0.5]  # twice 2 / 2^3
    words = text(write_report(study).read_text())
    assert "sign-flip test p = 0.500 after Holm's correction for 2 comparisons, interval at 97.5%" in words.replace(
        "&#39;", "'"
    )
    assert "not corrected" not in words


def test_a_directory_without_a_study_is_refused(tmp_path):
    with pytest.raises(DataError, match="guerdon compare"):
        write_report(tmp_path)
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(DataError, match="no arm"):
        comparison_table(tmp_path)
    with pytest.raises(DataError, match="no run here"):
        write_single_report(tmp_path)
    (tmp_path / "study.json").write_text(json.dumps({"arms": {"A": {}, "B": {}}, "baseline": "C"}))
    with refuses("baseline", "the baseline 'C' is none of the arms"):
        read_study(tmp_path)


def test_a_study_without_tasks_has_a_report_without_curves(tmp_path):
    study = write_study(tmp_path, finals, tasks=(), cards=False)
    assert report._curves(read_study(study)) == {"panels": [], "small_panels": [], "task_panels": []}
    assert "0 of 0 runs complete" in text(write_report(study).read_text())


def test_study_that_has_not_begun_still_gives_a_report(tmp_path):
    study = write_study(tmp_path, lambda *_: None, cards=False)
    words = text(write_report(study).read_text())
    assert "0 of 18 runs complete" in words
    assert "no conclusion" in words
    assert row(comparison_table(study), "C")["conclusion"] == "no data"


def test_single_run_report(tmp_path):
    run = tmp_path / "runs" / "button" / "C" / "seed0"
    write_run(run, success=rising(0.9), sources=["progress"], video=True, alarm_at=(20_000,))
    path = write_single_report(run)
    words = text(path.read_text())
    assert path == run / "report.html"
    assert "last success 0.90 [0.70, 0.97], n 20" in words
    assert "is it being gamed? Likely. Alarm in 1 of 1 run, at the end of 0: the learned return rises" in words
    assert "progress" in words
    assert "beats" not in words
    assert path.read_text().count('<figure class="video"') == 1


def test_markdown_table(study):
    lines = markdown_table(study).splitlines()
    assert len(lines) == 2 + 9
    assert lines[0].count("|") == lines[-1].count("|") == 14
    assert "| all tasks | C: learned progress + bonus | 0.83 [0.71, 0.94] |" in lines[4]
    assert "| +0.70 [0.59, 0.81] | better |" in lines[4]
    assert "steps against the baseline" in lines[0]
    assert "× fewer [" in lines[4]


def test_report_is_the_same_twice(study, tmp_path):
    first = write_report(study, out=tmp_path / "a.html").read_bytes()
    assert write_report(study, out=tmp_path / "b.html").read_bytes() == first


def test_baseline_is_grey_wherever_it_stands(tmp_path):

    study = write_study(tmp_path, finals, baseline="B", videos=False, cards=False)
    assert arm_styles(read_study(study)) == {"B": 0, "A": 1, "C": 2}
    assert row(comparison_table(study), "B")["conclusion"] == "baseline"


def test_curves_of_runs_with_other_evaluation_steps_are_interpolated(tmp_path):

    study = write_study(tmp_path, lambda *_: 0.8, tasks=("t",), seeds=(0, 1), videos=False, cards=False)
    path = study / "runs/t/C/seed1/metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    odd = [x for x in lines if not (x["kind"] == "eval" and x["step"] in (20_000, 60_000))]
    path.write_text("".join(json.dumps(x) + "\n" for x in odd))
    steps_mean = curve_panels(read_study(study), ["t"])[0]
    drawn = re.search(r'class="line s2" data-arm="C" d="M([^"]+)"', steps_mean.svg).group(1).split("L")
    assert len(drawn) == len(STEPS)
    xs, ys = np.array([[float(v) for v in pair.split()] for pair in drawn]).T
    np.testing.assert_allclose(np.diff(ys), np.diff(ys)[0], atol=0.11)  # still a straight line
    np.testing.assert_allclose(np.diff(xs), np.diff(xs)[0], atol=0.11)


@pytest.mark.slow
def test_large_study_stays_small(tmp_path):
    study = write_study(
        tmp_path, finals_any, tasks=tuple(f"task-{i}" for i in range(8)), seeds=tuple(range(5)), videos=False
    )
    path = write_report(study)
    assert path.stat().st_size < 3_000_000


def finals_any(task, arm, seed):
    return min(1.0, FINALS[arm][seed % 3] + 0.01 * seed)


def test_terms_are_explained_where_they_stand_on_the_page(page):
    section = page.split('<section id="terms"')[1].split("</section>")[0]
    explained = set(re.findall("<dfn>(.*?)</dfn>", section))
    assert {"true success", "IQM", "sign-flip test", "stratified bootstrap", "majority baseline", "probe"} <= explained
    assert not {"STARC", "best-of-n", "F1"} & explained
    assert all(sentence.endswith(".") and len(sentence) < 140 for sentence in WORDS["terms"].values())


@pytest.mark.parametrize(
    ("words", "terms"),
    [
        ("95% stratified bootstrap intervals", ["95% interval", "stratified bootstrap"]),
        ("Two Settings; Holm's test", ["setting", "Holm"]),
        ("Failed measurements", ["failed score, failed measurement"]),
        ("kendall tau b", ["Spearman, Kendall, tau a, tau b"]),
        ("best of 16, Best-of-n", ["best-of-n"]),
        ("f1, alarms, tau c, F12, epic", []),
        ("F1", ["F1"]),
    ],
)  # fmt: skip
def test_terms_are_found_under_their_names(words, terms):
    assert [term for term, _ in terms_of(f"<p>{words}</p>")] == terms


def test_a_term_in_code_or_in_the_name_of_a_class_is_no_term_of_the_page():
    assert terms_of('<pre>IQM</pre><p class="STARC"></p><script>"AUROC"</script><p>paired\ndifference</p>') == [
        ("paired difference", WORDS["terms"]["paired difference"])
    ]


def test_inversion_alarms_have_three_answers(tmp_path):
    study = write_study(tmp_path, finals, tasks=("t",), videos=False)
    page = text(write_report(study).read_text())
    assert "Inversion alarms" not in page, "runs that log none"
    logs = sorted(study.glob("runs/t/*/*/metrics.jsonl"))
    each = len(logs) // 3
    for path, alarm in zip(logs, ["1", "0", "null"] * each, strict=True):
        path.write_text(path.read_text().replace('"hacking_alarm"', f'"inversion_alarm": {alarm}, "hacking_alarm"'))
    page = text(write_report(study).read_text())
    assert f"None in {each} runs: no learned reward was lower from the first success of an episode on" in page
    assert f"Could not be decided in {each} runs: it needs {FEWEST} training episodes" in page
    assert "the policy is paid for waiting beside success" in page
    assert "its learned reward is lower from the first success of an episode on than before it" in page
    assert f"the inversion alarm is on at the end of 1 of {each} runs." in page
    single = text(write_single_report(logs[0].parent).read_text())
    assert "Inversion alarms" in single
    assert "None in" not in single
