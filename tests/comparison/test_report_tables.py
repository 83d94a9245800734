"""A metric in the tables of metrics appears in the report, on the cards and on the terminal; nothing else changes."""

import json
import re

import pytest
from synthetic_study import rising, write_card, write_study, write_text_study

from guerdon.comparison import report_tables
from guerdon.comparison.report import write_report
from guerdon.comparison.report_tables import (
    Cell,
    Column,
    ModelMetric,
    OnlineMetric,
    columns,
    markdown_table,
    terminal_table,
)
from guerdon.comparison.results import read_study


def text(page):
    page = re.sub(r"<(style|script)>.*?</\1>", " ", page, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)).replace("\u00a0", " ")


@pytest.fixture
def study(tmp_path):
    return write_study(tmp_path, lambda task, arm, seed: "ABC".index(arm) * 0.3 + 0.02 * seed, videos=False)


@pytest.mark.parametrize("folded", [False, True])
def test_a_new_metric_of_an_arm_is_one_column(study, monkeypatch, folded):
    cell = Cell("seven", ("of eleven",), "gain")
    column = Column("{Steps} to bliss", lambda row: cell, "Bliss: against {baseline}.", folded=folded)
    monkeypatch.setattr(report_tables, "COLUMNS", (*report_tables.COLUMNS, column))
    page = write_report(study).read_text()
    assert page.count('<th scope="col">Steps to bliss</th>') == 2  # all tasks, and task by task
    assert page.count('<td><span class="gain">seven</span><small>of eleven</small></td>') == 9
    assert "Bliss: against A." in text(page)
    lines = markdown_table(study).splitlines()
    assert "| steps to bliss |" in lines[0]
    assert lines[2].endswith("| seven of eleven |")


def test_a_table_fits_a_terminal(study):
    for width in (90, 120):
        lines = terminal_table(study, width).splitlines()
        assert max(map(len, lines)) <= width
        assert any("conclusion" in line for line in lines), "whole words"
        assert all(line.count("[") == line.count("]") for line in lines), "whole intervals"
        assert any("[" in line for line in lines)
        assert any("all tasks" in line for line in lines)
    assert terminal_table(study, 1000) == markdown_table(study)


def test_a_table_of_one_task_leaves_out_the_task_where_it_is_narrow(tmp_path):
    study = write_study(tmp_path, lambda task, arm, seed: 0.5, tasks=("window",), videos=False, cards=False)
    wide, narrow = markdown_table(study), terminal_table(study, 90)
    assert "window" in wide
    assert "window" not in narrow
    assert any(line.split()[:2] == ["setting", "success"] for line in narrow.splitlines())
    assert max(map(len, narrow.splitlines())) <= 90


def test_terminal_and_report_have_the_same_words(study):
    found = columns(read_study(study), "the baseline")
    heads = markdown_table(study).splitlines()[0].lower()
    assert all(column.title.lower().replace("\u00a0", " ") in heads for column in found if column.terminal)
    assert "\u00a0" not in heads


def test_a_new_metric_of_a_reward_model_is_shown_and_its_table_puts_it_first(tmp_path, monkeypatch):
    study = write_study(tmp_path, lambda task, arm, seed: 0.5, tasks=("t",), videos=False, cards=False)
    write_card(study / "models" / "t" / "rm")
    path = study / "models" / "t" / "rm" / "evaluation.json"
    card = json.loads(path.read_text())
    card["metrics"]["regret"] = {"estimate": 0.4, "low": 0.2, "high": 0.6, "n": 9, "n_undefined": 0, "baseline": 0.5}
    path.write_text(json.dumps(card))
    words = text(write_report(study).read_text())
    assert "regret 0.400 [0.200, 0.600] 0.500 9 0" in words
    assert "regret 0.40 [0.20, 0.60], n 9: not shown to beat" not in words
    known = {"regret": ModelMetric(lower_is_better=True), **report_tables.MODEL_METRICS}
    monkeypatch.setattr("guerdon.comparison.report_cards.MODEL_METRICS", known)
    words = text(write_report(study).read_text())
    assert "regret 0.40 [0.20, 0.60], n 9: not shown to beat a model that ignores its input (0.50)" in words
    assert words.index("regret 0.400") < words.index("AUROC 0.970 [")


def test_a_new_metric_during_training_is_one_entry(tmp_path, monkeypatch):
    study = write_text_study(tmp_path, tasks=("chain",), seeds=(0, 1))
    for run in (study / "runs" / "chain" / "prime").iterdir():
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        rows = [row | ({"reward_model/prime/calm": 0.6} if row["kind"] == "train" else {}) for row in rows]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setitem(report_tables.ONLINE_METRICS, "calm", OnlineMetric("Calmness", "How calm it is.", chance=0.2))
    page = write_report(study).read_text()
    assert '<p class="panel-title">Calmness</p>' in page
    assert "How calm it is." in page


def test_a_curve_that_falls_is_no_other_column(tmp_path):
    study = write_study(
        tmp_path, lambda *_: 0.5, videos=False, cards=False,
        run_options=lambda task, arm, seed: {"success": rising(0.5)[::-1] if arm == "B" else rising(0.5)},
    )  # fmt: skip
    area = next(column for column in columns(read_study(study), "A") if column.title == "Area under curve")
    rows = {row.arm: row for row in report_tables.comparison_rows(read_study(study))[:3]}
    assert area.cell(rows["A"]) == area.cell(rows["B"]) == Cell("0.25")


def test_iqm_of_final_success_leaves_out_a_quarter_of_the_runs_at_either_end(tmp_path):
    ends = {("A", 0): 0.0, ("A", 1): 0.25, ("A", 2): 0.5, ("A", 3): 1.0}
    study = write_study(
        tmp_path, lambda *_: 0.5, tasks=("one",), seeds=(0, 1, 2, 3), videos=False, cards=False,
        run_options=lambda task, arm, seed: {"success": rising(ends.get((arm, seed), 0.75))},
    )  # fmt: skip
    record = read_study(study)
    rows = {row.arm: row for row in report_tables.comparison_rows(record)}
    assert rows["A"].final_iqm.estimate == 0.375  # of 0.25 and 0.5; the mean is 0.4375
    assert rows["A"].final.estimate == 0.4375
    iqm = next(column for column in columns(record, "A") if column.title == "IQM of final success")
    assert iqm.cell(rows["B"]).text == "0.75"
    assert "IQM of final success" in write_report(study).read_text()
