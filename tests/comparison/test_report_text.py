import json
import re

import numpy as np
import pytest
from synthetic_study import (
    TEXT_ARMS,
    TEXT_STEPS,
    comparison_table,
    learning,
    rising,
    write_answers,
    write_run,
    write_study,
    write_text_run,
    write_text_study,
)

from guerdon.comparison.report import write_report, write_single_report
from guerdon.comparison.report_answers import (
    Response,
    answer_panels,
    colour_level,
    first_errors_in_words,
    load_answers,
    median_runs,
    steps_of,
)
from guerdon.comparison.report_charts import quality_panels, windowed
from guerdon.comparison.report_tables import markdown_table
from guerdon.comparison.results import read_run, read_study
from guerdon.errors import DataError
from guerdon.evaluation.suites.text_suite import evaluate_text
from guerdon.pages.charts import Line, line_chart
from guerdon.pages.formats import at, digits_for, human, times
from guerdon.settings.data import ChainSettings
from guerdon.settings.evaluate import AttackSettings, EvaluateTextSettings, GeneratedBenchSettings
from guerdon.types import RewardInfo, Score


def text(page):
    """The page's words: no style, no script, no tags, single spaces."""
    page = re.sub(r"<(style|script)>.*?</\1>", " ", page, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)).replace("\u00a0", " ")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return write_text_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def page(study):
    return write_report(study).read_text()


def cut(response, source, scale=1.0):
    return steps_of(Response.model_validate(response), source, scale)


def first_errors(response, source):
    return first_errors_in_words(Response.model_validate(response), source)


def staircase(*, at_step, final=0.5):
    """0.1 until a step, `final` from there on."""
    return [final if step >= at_step else 0.1 for step in TEXT_STEPS]


def reached(task, arm, seed):
    """The baseline is there after 4096, prime after 2048 or 1024, frozen after 4096, exact never at one seed."""
    jump = {"rloo": 4096, "prime": 2048 if seed else 1024, "frozen": 4096, "exact": 1024}[arm]
    return staircase(at_step=jump, final=0.4 if (arm, seed) == ("exact", 2) else 0.5)


def test_page_counts_responses_and_names_the_verifier(page):
    words = text(page)
    assert "environment" not in words
    for part in ("Responses to 50%", "Responses against rloo", "measured by the verifier", "Token rewards"):
        assert part in words
    assert re.search(r"prime reaches the final success of rloo in 2\.\d× fewer responses \[[12]\.\d, [23]\.\d\]", words)
    assert '<text class="name"' in page
    assert ">responses</text>" in page
    assert 'id="videos"' not in page


def test_page_is_small_self_contained_and_finite(study, page):
    assert (study / "report.html").stat().st_size < 3_000_000
    assert not re.search(r"https?://|//cdn|@import|<link|<iframe|src=\"(?!data:)", page)
    assert not re.search(r"\bNaN\b|\bnan\b|\binf\b|>None<|: None\b", page)


def test_ratio_of_steps_against_numbers_computed_by_hand(tmp_path):
    study = write_text_study(tmp_path, tasks=("chain",), curves=reached)
    rows = {row["arm"]: row for row in comparison_table(study)}
    assert rows["prime"]["steps_ratio"] == pytest.approx((4 * 2 * 2) ** (1 / 3))
    assert rows["prime"]["speed"].startswith("2.5× fewer [") == (rows["prime"]["steps_ratio_low"] > 1)
    assert rows["frozen"]["steps_ratio"] == pytest.approx(1)
    assert "fewer" not in rows["frozen"]["speed"]
    assert rows["exact"]["steps_ratio"] == pytest.approx((4 * 4 * 0.5) ** (1 / 3))  # 4096 / 8192 where it never came
    assert (rows["exact"]["never_reached"], rows["exact"]["steps_ratio_low"]) == (1, None)
    assert rows["exact"]["speed"].startswith("at most 2.0× [–, ")
    assert rows["exact"]["speed"].endswith("not reached in 1 of 3 pairs")
    assert rows["rloo"]["steps_ratio"] is None
    words = text(write_report(study).read_text())
    assert "exact reaches" not in words
    assert "Not reached:" in words
    assert "responses against the baseline" in markdown_table(study)


def test_needing_more_is_said_too(tmp_path):
    def slow(task, arm, seed):
        return staircase(at_step=1024 if arm == "rloo" else 4096 + 512 * seed)

    study = write_text_study(tmp_path, tasks=("chain",), curves=slow)
    words = text(write_report(study).read_text())
    assert re.search(
        r"prime needs 4\.\d× more responses to reach the final success of rloo \[[23]\.\d, 1?\d(?:\.\d)?\]", words
    )
    assert "fewer responses" not in words.replace("to need fewer responses", "")


def test_robots_still_count_environment_steps(tmp_path):
    study = write_study(tmp_path, lambda t, a, s: {"A": 0.2, "B": 0.3, "C": 0.8}[a] + s / 50, videos=False)
    page = write_report(study).read_text()
    words = text(page)
    assert "Steps to 50%" in words
    assert "measured by the environment" in words
    assert ">environment steps</text>" in page
    assert 'id="answers"' not in page
    assert "responses" not in words


def test_quality_of_an_online_reward_model_is_drawn_and_undefined_values_are_counted(study, page):
    words = text(page)
    assert "Pair accuracy" in words
    assert "Step AUROC" in words
    assert "Undefined in 192 of 768 batches" in words
    record = read_study(study)
    panels = quality_panels({arm: (i, record.select(arm=arm)) for i, arm in enumerate(record.arms)})
    assert [panel.title for panel in panels] == ["Pair accuracy", "Step AUROC", "Sign accuracy"]
    assert panels[0].svg.count('class="line') == 2  # prime and frozen; the others have no reward model
    assert panels[0].svg.count('class="guide"') == 1  # chance
    assert quality_panels({"rloo": (0, record.select(arm="rloo"))}) == []


def test_windows_average_what_is_defined(tmp_path):
    rows = [(0, 0.2), (5, 0.4), (10, None), (24, 0.7), (25, 0.9)]
    lines = [{"kind": "train", "step": step, "reward_model/prime/dpo_acc": value} for step, value in rows]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_run(tmp_path, task="t", arm="A", seed=0)
    means = windowed(run, "reward_model/prime/dpo_acc", 25.0, windows=5)
    np.testing.assert_allclose(means, [0.2, 0.4, np.nan, np.nan, 0.8])


def test_steps_are_cut_at_their_ends_and_sums_are_theirs():
    response = {
        "tokens": ["1", "\n", "2", " ", "<|eos|>"],
        "rewards": {"prime": [0.5, 0.25, -1.0, None, 0.05]},
        "step_ends": [1, 3],
        "steps_true": [True, False],
    }
    first, second, rest = cut(response, "prime", 1.0)
    assert (first.true, second.true, rest.true) == (True, False, None)
    assert (first.paid, second.paid, rest.paid) == ("+0.8", "−1.0", "")
    assert [token.text for token in first.tokens] == ["1", "↵\n"]
    assert [token.level for step in (first, second, rest) for token in step.tokens] == [2, 1, -5, None, 0]
    assert [token.text for token in (*second.tokens, *rest.tokens)] == ["2", "␣", "eos"]
    whole = cut({**response, "step_ends": None, "steps_true": None}, "prime", 1.0)
    assert len(whole) == 1
    assert whole[0].paid == "−0.2"
    unpaid = cut({**response, "rewards": {}}, "", 0.0)
    assert {token.level for step in unpaid for token in step.tokens} == {None}
    together = cut({**response, "step_ends": [1, 1]}, "prime", 1.0)
    assert [len(step.tokens) for step in together] == [2, 0, 3]
    beyond = cut({**response, "step_ends": [4, 4]}, "prime", 1.0)
    assert [(len(step.tokens), step.true) for step in beyond] == [(5, True)]


JUDGED = {
    "tokens": ["1", ";", "2", ";", "3", ";", "<|eos|>"],
    "rewards": {"prm": [0, 0.9, 0, 0.4, 0, 0, 0.1]},
    "judged": {"prm": {"ends": [1, 3, 6], "values": [0.9, 0.4, 0.1], "threshold": 0.5}},
    "step_ends": [1, 3, 5],
    "steps_true": [True, True, False],
}


def test_label_value_and_first_errors_stand_side_by_side():
    first, second, third, end = cut(JUDGED, "prm", 1.0)
    assert [step.value for step in (first, second, third, end)] == ["0.90", "0.40", "0.10", ""]
    assert [step.level for step in (first, second, third)] == [4, -1, -4]
    assert [step.true for step in (first, second, third)] == [True, True, False]
    assert [step.first_error for step in (first, second, third)] == [False, False, True]
    assert [step.blamed for step in (first, second, third)] == [False, True, False]
    assert first_errors(JUDGED, "prm") == "first error: step 3 by truth, step 2 by prm"
    calm = {**JUDGED, "judged": {"prm": {**JUDGED["judged"]["prm"], "threshold": 0.05}}, "steps_true": [True] * 3}
    assert first_errors(calm, "prm") == "first error: none by truth, none by prm"
    assert first_errors(JUDGED, "verifier") == ""


def test_steps_without_truth_are_cut_where_the_model_cut_them():
    unknown = {**JUDGED, "step_ends": None, "steps_true": None}
    steps = cut(unknown, "prm", 1.0)
    assert [(len(step.tokens), step.true, step.value) for step in steps] == [
        (2, None, "0.90"), (2, None, "0.40"), (3, None, "0.10")
    ]  # fmt: skip
    assert first_errors(unknown, "prm") == "first error: step 2 by prm"
    other = {**JUDGED, "judged": {"prm": {"ends": [3, 6], "values": [0.9, 0.1], "threshold": 0.5}}}
    assert {step.value for step in cut(other, "prm", 1.0)} == {""}  # other steps than the task has


@pytest.mark.hostile("pages")
@pytest.mark.parametrize(
    "judged", [{"ends": [1], "values": [], "threshold": 0.5}, {"ends": [], "values": []}, {"ends": [1], "values": ["x"],
               "threshold": 0.5}, 3], ids=str,
)  # fmt: skip
def test_values_without_their_steps_are_refused(judged, tmp_path):
    path = tmp_path / "run" / "films" / "step_1.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"step": 1, "responses": [{**JUDGED, "judged": {"prm": judged}}]}))
    with pytest.raises(DataError, match=r"answers step_1.json of run cannot be read: responses.0.judged.prm"):
        load_answers(path)


@pytest.fixture(scope="module")
def judged_study(tmp_path_factory):
    """A study whose prime arm was paid by a judge that attacks fooled, with its card and its values of steps."""
    study = write_text_study(tmp_path_factory.mktemp("judged"))
    for path in (study / "runs").glob("*/prime/*"):
        for video in (path / "films").glob("*.json"):
            content = json.loads(video.read_text())
            for k, response in enumerate(content["responses"]):
                values = [0.9 if true else 0.2 + 0.1 * (k % 5) for true in response["steps_true"]]
                response["judged"] = {"prime": {"ends": response["step_ends"], "values": values, "threshold": 0.5}}
            video.write_text(json.dumps(content))
        info = json.loads((path / "run.json").read_text()) if (path / "run.json").exists() else {}
        line = "reward source prm: these attacks fooled its model: empty"
        (path / "run.json").write_text(json.dumps({**info, "warnings": [line]}))
    bench = GeneratedBenchSettings(families=(ChainSettings(steps=3),), size=12)
    settings = EvaluateTextSettings(aggregation="min", reps=100, generated=bench, attacks=AttackSettings(questions=6))
    model = ConstantText()
    evaluate_text(model, settings, study / "models" / "chain" / "prm" / "method1_HE")
    return study


class ConstantText:
    """A judge of steps that likes everything, long steps a little more."""

    info = RewardInfo("easy", (0.0, 1.0), modality="text", frames_needed=0, success_threshold=0.5)

    def score(self, episodes):
        return [Score.from_values(np.array([min(1.0, 0.6 + 0.01 * len(t)) for t in e.texts])) for e in episodes]


def test_the_page_shows_the_card_of_a_judge_and_what_it_thinks_of_steps(judged_study):
    page = write_report(judged_study).read_text()
    words = text(page)
    assert "prm/method1_HE · chain" in words
    assert "generated F1, average" in words
    assert "generated steps AUROC" in words
    assert "attack padded failed" in words
    assert "values of steps become one by min" in words
    assert "generated first error" in page
    assert re.search(r'<em class="h4" title="value of the step">0\.90</em>', page)
    assert 'class="first" aria-label="false step, the first error"' in page
    assert "first error: step" in words
    warnings = text(page[page.index('<section id="warnings"') :])
    assert "prime: reward source prm: these attacks fooled its model: empty" in warnings
    assert warnings.count("these attacks fooled its model") == 1  # once for all seeds


@pytest.mark.parametrize(
    ("value", "scale", "level"), [(0.0, 1, 0), (0.09, 1, 0), (0.11, 1, 1), (-0.5, 1, -2), (-9, 1, -5), (0.3, 0.0, 0)]
)
def test_colours_are_centred_at_zero_and_clipped(value, scale, level):
    assert colour_level(value, scale) == level
    assert colour_level(-value, scale) == -level
    assert colour_level(None, scale) is None


def test_text_stands_out_from_every_colour():
    """Contrast of the ink on the fullest colours, as WCAG 2.2 computes it, is at least 4.5 in light and dark."""

    def luminance(rgb):
        c = np.asarray(rgb) / 255
        return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]

    def rgb(text):
        return np.array([int(text[i : i + 2], 16) for i in (0, 2, 4)], dtype=float)

    for ink, card, full in (("1c1c20", "ffffff", 0.62), ("eceae4", "1b1d22", 0.68)):
        for colour in ("0072b2", "d55e00"):
            mixed = full * rgb(colour) + (1 - full) * rgb(card)
            high, low = sorted([luminance(rgb(ink)), luminance(mixed)], reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5


def test_the_median_run_of_each_arm_is_shown_and_right_stands_beside_wrong(study):
    record = read_study(study)
    runs = median_runs(record.runs)
    assert [(run.task, run.arm) for run in runs] == [(task, arm) for task in record.tasks for arm in TEXT_ARMS]
    assert {run.seed for run in runs} == {1}  # the faster, the higher at the end
    panels, notes = answer_panels(record.runs, budget=10_000_000)
    assert not notes
    prime = panels[1]
    assert [moment.step for moment in prime.moments] == [8192, 4096, 1024]
    assert [answer.outcome for answer in prime.moments[0].answers] == [True, False] * 4
    assert prime.scales["prime"] > 0
    assert panels[0].sources == ("",)


def test_answers_shrink_to_their_budget_and_say_what_is_left_out(study):
    record = read_study(study)
    panels, notes = answer_panels(record.runs, budget=60_000)
    assert sum(panel.n_bytes for panel in panels) <= 60_000
    assert len(panels) == 8
    assert not notes
    panels, notes = answer_panels(record.runs, budget=6_000)
    assert sum(panel.n_bytes for panel in panels) <= 6_000
    assert len(panels) + len(notes) == 8
    assert "left out to keep this file small" in notes[-1]


def test_estimated_size_is_close_to_the_real_one(study, page):
    panels, _ = answer_panels(read_study(study).runs, budget=10_000_000)
    real = page.index('id="reproduce"') - page.index('id="answers"')
    assert 0.8 * real < sum(panel.n_bytes for panel in panels) < 2 * real


@pytest.mark.hostile("pages")
def test_broken_answers_are_told_and_the_rest_is_shown(tmp_path):
    run = tmp_path / "chain" / "prime" / "seed0"
    write_text_run(run, arm="prime", curve=learning(0.6, 1))
    write_answers(run / "films" / "step_000000009000.json", step=9000, broken=700)
    words = text(write_single_report(run).read_text())
    assert "answers step_000000009000.json of seed0 cannot be read" in words
    assert "8.19k" in words


@pytest.mark.hostile("pages")
@pytest.mark.parametrize(
    "change",
    [
        {"tokens": None},
        {"rewards": {"prime": [0.1]}},
        {"rewards": [0.1, 0.2]},
        {"step_ends": [1], "steps_true": None},
        {"step_ends": [0, 1], "steps_true": [True]},
        {"step_ends": 1, "steps_true": 1},
    ],
)
def test_malformed_responses_are_refused(tmp_path, change):
    response = {"prompt": "1+1=?", "answer": "2", "tokens": ["2", ";"], "rewards": {"prime": [0.1, 0.2]}}
    path = tmp_path / "step_000000000001.json"
    path.write_text(json.dumps({"step": 1, "responses": [response]}))
    assert load_answers(path).step == 1
    path.write_text(json.dumps({"step": 1, "responses": [response | change]}))
    with pytest.raises(DataError, match="answers step_"):
        load_answers(path)


@pytest.mark.hostile("pages")
@pytest.mark.parametrize("text", ["", "[1]", "{", '{"step": null, "responses": []}', '{"step": 1e999, "responses": []}',
                                  '{"step": 1}', '{"step": 1, "responses": [3]}'])  # fmt: skip
def test_videos_without_a_step_or_responses_are_refused_in_one_line(tmp_path, text):
    path = tmp_path / "run" / "films" / "step_1.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(DataError, match=r"^answers step_1.json of run cannot be read: (step|responses)[^\n]*$"):
        load_answers(path)


@pytest.mark.hostile("pages")
def test_tokens_cannot_inject_markup_or_break_the_file(tmp_path):
    run = tmp_path / "chain" / "prime" / "seed0"
    write_text_run(run, arm="prime", curve=learning(0.6, 1))
    evil = ["<script>alert(1)</script>", '"><img src=x>', "\ud800", "\x00", "", "\u202e"]
    response = {"prompt": "<b>", "answer": "</code>", "tokens": evil, "rewards": {"<i>": [0.1] * 6}, "outcome": None}
    path = run / "films" / "step_000000009000.json"
    path.write_text(json.dumps({"step": 9000, "responses": [response | {"step_ends": None, "steps_true": None}]}))
    page = write_single_report(run).read_text()
    assert page.count("<script") == 1
    assert "<img src=x" not in page
    assert "not checked" in text(page)


def test_answers_of_an_arm_without_process_rewards_have_no_colours(tmp_path):
    run = tmp_path / "chain" / "rloo" / "seed0"
    write_text_run(run, arm="rloo", curve=learning(0.6, 1), unit=None)
    page = write_single_report(run).read_text()
    assert "This setting rewards the outcome only" in page
    section = page[page.index('<figure class="answers"') : page.index('id="reproduce"')]
    assert not re.search(r'class="h-?\d', section)
    assert section.count('aria-label="true step"') > 10
    assert "after 8.19k responses" in section


def test_alarms_and_notes_speak_of_responses(tmp_path):
    run = tmp_path / "chain" / "prime" / "seed0"
    write_text_run(run, arm="prime", curve=learning(0.6, 1), complete=False)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "train", "step": 9000, "hacking_alarm": 1}) + "\n")
    words = text(write_single_report(run).read_text())
    assert "unfinished: its last evaluation is after 8.19k responses" in words
    assert "Responses at the alarms" in words


def test_the_first_point_of_a_line_has_a_marker():
    from guerdon.pages.charts import Box

    box = Box(400, 200, x=(0, 10), y=(0, 1))
    for style in range(4):
        svg = line_chart(box, [Line("C", style, tuple((x, x / 10) for x in range(11)))], title="t", x_label="x")
        first = re.search(r'class="line[^"]*"[^>]*d="M([\d.]+) ([\d.]+)', svg)
        marks = re.findall(r'class="mark" d="M([\d.]+)', svg)
        assert min(abs(float(x) - float(first.group(1))) for x in marks) < 6


def test_words_of_ratios_moments_and_names():
    assert [times(x) for x in (None, 0.004, 0.5, 2.44, 12.3, 1e9)] == ["–", "<0.01×", "0.5×", "2.4×", "12×", ">100×"]
    assert at(80_000, "environment steps") == "at step 80k"
    assert at(6912, "responses") == "after 6.91k responses"
    assert human("value_order_tau_b") == "value order tau b"
    assert human("episode_auroc") == "episode AUROC"
    assert [digits_for(x) for x in (0.0, 0.04, 0.4, 3.0, 40.0)] == [2, 3, 2, 1, 0]


def test_card_facts_are_words(tmp_path):
    study = write_study(tmp_path, lambda *_: 0.5, videos=False)
    path = next((study / "models").glob("*/*/evaluation.json"))
    content = json.loads(path.read_text())
    content["model"] = {"frames_needed": 2, "causal": True, "range": [0.0, None], "threshold": None, "new_key": [1, 2]}
    content["data"] = {"hash": "0123456789abcdef", "outcome_unknown": 3}
    path.write_text(json.dumps(content))
    words = text(write_report(study).read_text())
    for fact in (
        "frames per score 2",
        "sees only the past yes",
        "scores from 0 to unbounded",
        "threshold used none",
        "new key 1, 2",
        "data 0123456789ab ",
        "episodes of unknown outcome 3",
    ):
        assert fact in words
    assert "frames_needed" not in words


def test_robot_run_alone_keeps_its_words(tmp_path):
    run = tmp_path / "runs" / "button" / "C" / "seed0"
    write_run(run, success=rising(0.9), sources=["progress"], video=True, alarm_at=(20_000,))
    words = text(write_single_report(run).read_text())
    assert "Steps of the alarms" in words
    assert "at step 80k" in words
