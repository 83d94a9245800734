"""The script that prints how well the forecast does on a table."""

import json
import re
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from gate_tables import made_rows, made_table
from scipy.stats import spearmanr

from guerdon.evaluation.gate.forecast import FEATURES, FEWEST_OF_EACH, out_of_task, usable_features
from guerdon.evaluation.gate.gate_table import PACKAGED, read_gate_table

SCRIPT = Path(__file__).parents[2] / "studies" / "gate_report.py"
REPORT = runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def table():
    return made_table()


def test_it_prints_tables_and_draws(tmp_path, monkeypatch, capsys):
    """python studies/gate_report.py mine.parquet --picture gate.svg"""
    rows = made_rows() + made_rows(2, 6, kind="text")
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gate_report.py", "mine.jsonl", "--picture", "gate.svg", "--reps", "200"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    said = capsys.readouterr().out
    assert "48 on 6 tasks: 21 helped, 9 had no effect, 18 harmed" in said
    assert re.search(
        r"^\| \*\*forecast\*\*: mean rank of `epic` and `bon16` \| 0\.[89]\d \| \[0\.\d\d, 0\.9\d\] \| 48 \|$",
        said,
        re.M,
    )
    assert "`bon16` (best of all, picked here)" in said
    assert "| forecast minus `bon16`, which was picked on this table | " in said
    assert "| harmful models that pass at 80 % recall | 0.00 | [0.00, 0.18] |" in said
    assert "No validation: the table has 12 reward models of this kind on 2 tasks" in said
    assert "nan" not in said.lower()
    assert ElementTree.parse("gate-robot.svg").getroot().tag.endswith("svg")
    assert not Path("gate-text.svg").exists()


def test_reliability_of_two_seeds_by_hand() -> None:
    # ranks 1 2 3 4 against 1 3 2 4: r = 1 - 6 * 2 / (4 * 15) = 0.8, twice as long: 1.6 / 1.8
    gains = np.array([[0.1, 0.1], [0.2, 0.3], [0.3, 0.2], [0.4, 0.4]])
    assert REPORT["reliability"](gains) == pytest.approx(1.6 / 1.8)
    assert REPORT["spearman_brown"](0.5, 3) == pytest.approx(0.75)
    assert REPORT["spearman_brown"](-0.2, 3) == 0.0


def test_reliability_of_four_seeds_averages_all_halves() -> None:
    gains = np.random.default_rng(0).standard_normal((9, 4))
    halves = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]
    r = np.mean([spearmanr(gains[:, a].mean(axis=1), gains[:, b].mean(axis=1)).statistic for a, b in halves])
    assert REPORT["reliability"](gains) == pytest.approx(REPORT["spearman_brown"](float(r), 2))


def test_reliability_needs_two_seeds_and_spread() -> None:
    assert REPORT["reliability"](np.arange(5.0)[:, None]) is None
    assert REPORT["reliability"](np.ones((5, 2))) is None
    assert REPORT["reliability"](np.array([[0.1, np.nan], [0.2, 0.2], [0.3, 0.3]])) is None


def test_brier_score_by_hand() -> None:
    effects = np.array([0, 2])
    sure = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert REPORT["brier_score"](effects, sure) == 0.0
    assert REPORT["brier_score"](effects, sure[::-1]) == 2.0
    assert REPORT["brier_score"](effects, np.full((2, 3), 1 / 3)) == pytest.approx(2 / 3)


def test_ece_by_hand() -> None:
    # each effect has probability 0.5, 0.5, 0 in both cases; it comes true in one, one and none of them
    probabilities = np.array([[0.5, 0.5, 0.0]] * 2)
    assert REPORT["classwise_ece"](np.array([0, 1]), probabilities) == pytest.approx(0.0)
    # now the first effect comes true twice: gaps 0.5, 0.5 and 0
    assert REPORT["classwise_ece"](np.array([0, 0]), probabilities) == pytest.approx(1 / 3)


def test_a_table_with_an_answer_in_it_is_predicted(table) -> None:
    found = REPORT["validate"](table, "robot", reps=300)
    assert found.score.low > 0.8
    assert found.best == "bon16"
    assert found.difference.low <= found.difference.estimate <= 0 <= found.reliability**0.5 <= 1
    assert found.reliability**0.5 > 0.95
    predicted, frequencies = found.predicted, np.bincount(table.effects_N) / len(table)
    constant = REPORT["brier_score"](table.effects_N, np.tile(frequencies, (len(table), 1)))
    assert REPORT["brier_score"](table.effects_N, predicted.probabilities_N_3) < 0.6 * constant
    inside = (table.gains_N >= predicted.low_N) & (table.gains_N <= predicted.high_N)
    assert inside.mean() > 0.8
    assert predicted.unknown_N.mean() < 0.25


def test_a_table_without_an_answer_is_not_predicted(table) -> None:
    shuffled = np.random.default_rng(0).permutation(len(table))
    table = replace(table, success_N_S=table.success_N_S[shuffled])
    found = REPORT["validate"](table, "robot", reps=300)
    assert found.score.estimate < 0.2
    frequencies = np.bincount(table.effects_N) / len(table)
    constant = REPORT["brier_score"](table.effects_N, np.tile(frequencies, (len(table), 1)))
    assert REPORT["brier_score"](table.effects_N, found.predicted.probabilities_N_3) > 0.85 * constant


def test_a_family_of_its_own_is_unknown_when_withheld(table) -> None:
    strange = table.families_N == "family_1"
    moves = np.array([{"bon16": 6.0, "epic": 6.0}.get(name, 0.0) for name in table.names])
    moved = replace(table, features_N_F=table.features_N_F + np.where(strange[:, None], moves, 0.0))
    withheld = REPORT["withheld_family"]
    assert withheld(moved, ("bon16", "epic"), "robot", "family_1") == (12, 12)
    assert withheld(table, ("bon16", "epic"), "robot", "family_1")[0] < 6
    # a family that is in the fit, on other tasks, is known
    known = out_of_task(moved, ("bon16", "epic"), "robot").unknown_N
    assert known[strange].mean() < 0.5


def test_validation_needs_three_tasks() -> None:
    with pytest.raises(ValueError, match="needs three"):
        REPORT["validate"](made_table(2, 12), "robot")


def test_a_table_without_the_features_of_the_forecast_is_not_validated(tmp_path, capsys) -> None:
    rows = [{k: v for k, v in row.items() if k not in ("feature.bon16", "feature.epic")} for row in made_rows()]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    REPORT["main"]([str(tmp_path / "mine.jsonl")])
    assert "No validation: the table has none of its features" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["none.parquet", "none.jsonl"])
def test_a_table_that_is_not_there(tmp_path, monkeypatch, name):
    from guerdon.errors import DataError

    monkeypatch.setattr(sys, "argv", ["gate_report.py", str(tmp_path / name)])
    with pytest.raises(DataError, match="no such file"):
        runpy.run_path(str(SCRIPT), run_name="__main__")


def test_the_table_that_guerdon_is_delivered_with(capsys):
    """python studies/gate_report.py"""
    REPORT["main"](["--reps", "50"])
    said = capsys.readouterr().out
    assert re.search(r"^90 on 6 tasks: \d+ helped, \d+ had no effect, \d+ harmed", said, re.M)
    assert said.count("## Reward models for") == said.count("| **forecast**: mean rank of ") == 2
    table = read_gate_table(PACKAGED)
    assert PACKAGED.stat().st_size < 5e6
    for kind, fewest in (("robot", 40), ("text", 20)):
        part = table.of(kind)
        assert len(part) >= fewest
        seeds = np.isfinite(part.gains_N_S).sum(axis=1)
        assert part.gains_N_S.shape[1] == 3
        assert ((seeds == 3) | ((seeds == 2) & np.isin(part.families_N, ["pairs", "judge"]))).all()
        assert min(np.bincount(part.effects_N)[[0, 2]]) >= FEWEST_OF_EACH
        assert set(usable_features(part, kind)) == FEATURES[kind].keys()
