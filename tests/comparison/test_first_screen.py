"""The first screen of a report: a whole sentence for each case, a picture of the task, and no word of the trade."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_study import write_study, write_text_study

from guerdon.comparison.first_screen import SENTENCES, run_sentence, study_sentences
from guerdon.comparison.report import write_report, write_single_report
from guerdon.comparison.report_tables import markdown_table
from guerdon.comparison.results import RunRecord, StudyRecord, summarise
from guerdon.pages.formats import CONTROL, TEMPLATES, TEXT
from tables import cases

LABELS = {"A": "0/1 for success", "B": "learned progress", "C": "C"}
UNKNOWN = " Whether the task was solved is not known."
SPECIAL = re.compile(
    r"\b(?:arms?|native 0/1|sources?|shaping|gate|probes?|heads?|world|steps to match)\b", re.IGNORECASE
)


def study(finals, *, unit=CONTROL, measure="success", tasks=("t",), status="complete"):
    """A study in memory: for each arm the final value of each of its seeds, on every task."""
    seeds = tuple(range(max(map(len, finals.values()))))
    runs = []
    for task in tasks:
        for arm, values in finals.items():
            for seed, value in enumerate(values):
                rows = [{"step": 500, measure: 0.0, "episodes": 20}, {"step": 1000, measure: value, "episodes": 20}]
                runs.append(RunRecord(task, arm, seed, Path(), status, evals=tuple(rows), unit=unit))
    arms = {arm: LABELS[arm] for arm in finals}
    return StudyRecord("s", Path(), arms, "A", tasks, seeds, tuple(runs), (), "", {})


SIDE_BY_SIDE = {
    ("robot", (0.1, 0.2)): ["With C, the policy solved its task in 15% of the test episodes of 2 runs."],
    ("robot", (0.85,)): ["In the one run with C, the policy solved its task in 17 of 20 test episodes."],
    ("text", (0.1, 0.2)): ["With C, the model answered 15% of the test questions (mean of 2 runs) correctly."],
    ("text", (0.85,)): ["In the one run with C, the model answered 17 of 20 test questions correctly."],
    ("unknown", (1, 2)): ["With C, the return of the environment ended at 1.50 on average."],
    ("unknown", (-2,)): ["In the one run with C, the return of the environment ended at −2.00."],
}


def test_each_case_of_runs_side_by_side_has_a_whole_sentence():
    given = {"robot": {}, "text": {"unit": TEXT}, "unknown": {"measure": "return/env"}}
    for (kind, finals), sentences in SIDE_BY_SIDE.items():
        record = replace(study({"C": finals}, **given[kind]), baseline="C", planned=False)
        assert said(record) == sentences
    several = replace(study({"A": (0.1, 0.2), "C": (0.9, 0.8)}), planned=False)
    assert [one.split(",")[0] for one in said(several)] == ["With 0/1 for success (A)", "With C"]


def said(record):
    return [one.text for one in study_sentences(record, summarise(record, record.tasks))]


@cases(
    ("changes", "finals", "sentence"),
    [
        ({}, {"A": (0, 1, 0), "B": (1, 1, 1)},
         "With learned progress (B), the policy solved its task in 3 of 3 runs; with 0/1 for success (A), in 1 of 3."),
        ({}, {"A": (0, 0.5, 0), "B": (1, 1, 1)},
         "With learned progress (B), the policy solved its task in 100% of the test episodes of 3 runs; "
         "with 0/1 for success (A), in 17%."),
        ({}, {"A": (0.1, 0.2), "B": (0.9, 0.8)},
         "With learned progress (B), the policy solved its task in 85% of the test episodes of 2 runs; "
         "with 0/1 for success (A), in 15%."),
        ({}, {"A": (1, 1, 0)}, "With 0/1 for success (A), the policy solved its task in 2 of 3 runs."),
        ({}, {"A": (0.1,), "C": (0.85,)},
         "In the one run with C, the policy solved its task in 17 of 20 test episodes; "
         "in that with 0/1 for success (A), in 2 of 20 test episodes."),
        ({"unit": TEXT}, {"A": (0.1, 0.2), "B": (0.9, 0.8)},
         "With learned progress (B), the model answered 85% of the test questions (mean of 2 runs) correctly; "
         "with 0/1 for success (A), 15%."),
        ({"unit": TEXT}, {"A": (1, 1)},
         "With 0/1 for success (A), the model answered 100% of the test questions (mean of 2 runs) correctly."),
        ({"unit": TEXT}, {"A": (0.5,), "B": (0.55,)},
         "In the one run with learned progress (B), the model answered 11 of 20 test questions correctly; "
         "in that with 0/1 for success (A), 10 of 20 test questions."),
        ({"measure": "return/env"}, {"A": (10, 12), "B": (90, 80)},
         "With learned progress (B), the return of the environment ended at 85.00 on average; "
         "with 0/1 for success (A), at 11.00." + UNKNOWN),
        ({"measure": "return/env"}, {"A": (10, 12)},
         "With 0/1 for success (A), the return of the environment ended at 11.00 on average." + UNKNOWN),
        ({"measure": "return/env"}, {"A": (-10,), "B": (90,)},
         "In the one run with learned progress (B), the return of the environment ended at 90.00; "
         "in that with 0/1 for success (A), at −10.00." + UNKNOWN),
        ({"measure": "return/env", "tasks": ("t", "u")}, {"A": (1, 2), "B": (3, 4)},
         "The returns of the tasks have no unit in common, so learned progress (B) has a result for each task alone, "
         "below."),
        ({"status": "unfinished"}, {"A": (0.1, 0.2), "B": (0.9, 0.8)},
         "No run with learned progress (B) is complete yet."),
        ({"measure": "other"}, {"A": (1, 1), "B": (1, 1)},
         "The policy was evaluated, and whether it solved its task is not known."),
    ],
)  # fmt: skip
def test_each_case_of_a_study_has_a_whole_sentence(changes, finals, sentence):
    assert said(study(finals, **changes)) == [sentence]


@cases(
    ("unit", "evals", "sentence"),
    [
        (CONTROL, [{"step": 4000, "success": 0.85, "episodes": 20}],
         "At the last evaluation, at step 4k, the policy solved its task in 17 of 20 test episodes."),
        (CONTROL, [{"step": 4000, "success": 0.5, "episodes": 20, "success_known": 3}],
         "At the last evaluation, at step 4k, the policy solved its task in 50% of the test episodes."),
        (TEXT, [{"step": 640, "success": 0.5, "episodes": 20}],
         "At the last evaluation, after 640 responses, the model answered 10 of 20 test questions correctly."),
        (CONTROL, [{"step": 4000, "return/env": 12.5}],
         "At the last evaluation, at step 4k, the return of the environment was 12.50." + UNKNOWN),
        (CONTROL, [{"step": 4000}], "The policy was evaluated, and whether it solved its task is not known."),
        (CONTROL, [], "The policy has not been evaluated yet."),
    ],
)  # fmt: skip
def test_each_case_of_a_run_has_a_whole_sentence(unit, evals, sentence):
    assert run_sentence(RunRecord("t", "run", None, Path(), "complete", evals=tuple(evals), unit=unit)) == sentence


def test_sentences_are_whole():
    assert all(text[0].isupper() and text.endswith((".", ". ")) for text in SENTENCES.values())
    assert not [text for text in SENTENCES.values() if SPECIAL.search(text)]


def words_of(page, start, end):
    part = page[page.index(start) : page.index(end)]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<(style|script)>.*?</\1>", " ", part, flags=re.S)))


@pytest.fixture(scope="module")
def robots(tmp_path_factory):
    finals = {"A": 0.2, "B": 0.5, "C": 0.9}
    options = {"alarm_at": (95_000,)}
    root = write_study(
        tmp_path_factory.mktemp("study"), lambda task, arm, seed: finals[arm] + seed / 50, tasks=("t",),
        run_options=lambda task, arm, seed: options if arm == "B" else {},
    )  # fmt: skip
    return root


@pytest.fixture(scope="module")
def page_of_robots(robots):
    return write_report(robots).read_text()


@pytest.fixture(scope="module")
def page_of_texts(tmp_path_factory):
    text = write_text_study(tmp_path_factory.mktemp("text"), tasks=("chain",), seeds=(0, 1))
    return write_report(text).read_text()


def test_the_first_screen_and_the_terminal_use_no_special_words(robots, page_of_robots, page_of_texts, tmp_path):
    page = page_of_robots
    first = words_of(page, "<header", '<section id="curves"')
    assert (
        "With learned progress + bonus (C), the policy solved its task in 92% of the test episodes of 3 runs" in first
    )
    assert not SPECIAL.findall(first)
    assert not SPECIAL.findall(markdown_table(robots))
    one = write_single_report(robots / "runs" / "t" / "C" / "seed0", out=tmp_path / "one.html").read_text()
    assert not SPECIAL.findall(words_of(one, "<header", '<section id="curves"'))
    assert not SPECIAL.findall(words_of(page_of_texts, "<header", '<section id="curves"'))


def test_the_first_screen_shows_the_task(page_of_robots, page_of_texts):
    page = page_of_robots
    figure = re.search(r'<figure class="task" data-video="(video-\d+)">.*?</figure>', page, re.S)
    shown = page[page.index(f'id="{figure[1]}"') :]
    assert "<b>C</b>" in shown[: shown.index("</header>")], "of the setting with the highest result"
    assert page.index(figure[0]) < page.index('<table class="conclusions">')
    page = page_of_texts
    assert "A question and an answer" in page[: page.index('<table class="conclusions">')]


def test_what_does_not_apply_is_not_there(tmp_path):
    study = write_study(tmp_path, lambda *_: 0.5, tasks=("t",), videos=False)
    for path in study.glob("runs/t/*/*/metrics.jsonl"):
        path.write_text(path.read_text().replace('"success"', '"other"').replace('"hacking_alarm": 0, ', ""))
    card = study / "models" / "t" / "resnet" / "evaluation.json"
    more = '"frames_needed": 0, "compares": false, "keys": [], "threshold": 0.5'
    card.write_text(card.read_text().replace('"threshold": 0.5', more))
    page = write_report(study).read_text()
    for absent in ("Is it being gamed?", "Reward hacking alarms", "frames per score", "compares", "looks at"):
        assert absent not in page, absent
    assert "threshold used" in page


def test_a_class_has_one_rule_of_its_own_in_the_shared_style():
    """Two parts of pages that call different things by one name would take each other's looks."""
    style = re.sub(r"/\*.*?\*/", "", (TEMPLATES / "style.css").read_text(encoding="utf-8"), flags=re.S)
    outside = re.sub(r"@[^{]*\{(?:[^{}]*\{[^}]*\})*[^}]*\}", "", style)
    rules = Counter(found.strip() for found in re.findall(r"(?:^|\})\s*(\.[\w-]+)\s*\{", outside))
    assert [name for name, times in rules.items() if times > 1] == []
