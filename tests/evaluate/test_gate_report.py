"""The script that prints how well the verdict does on a table."""

import json
import re
import runpy
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from gate_tables import made_rows

from guerdon.evaluate.gate import FEWEST_OF_EACH, common_features
from guerdon.evaluate.gate_table import PACKAGED, read_gate_table

SCRIPT = Path(__file__).parents[2] / "studies" / "gate_report.py"


def test_it_prints_tables_and_draws(tmp_path, monkeypatch, capsys):
    """python studies/gate_report.py mine.parquet --picture gate.svg"""
    rows = made_rows() + made_rows(2, 6, kind="text")
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gate_report.py", "mine.jsonl", "--picture", "gate.svg", "--reps", "200"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    said = capsys.readouterr().out
    assert "48 on 6 tasks: 21 helped, 9 had no effect, 18 harmed" in said
    assert re.search(r"^\| \*\*predictor\*\* \| 0\.9\d \| \[0\.\d\d, 0\.9\d\] \| 48 \|$", said, re.M)
    assert "`voc` (published)" in said
    assert "| harmful models that pass at 80 % recall | 0.00 | [0.00, 0.18] |" in said
    assert "No validation: the table has 12 reward models of this kind on 2 tasks" in said
    assert "nan" not in said.lower()
    assert ElementTree.parse("gate-robot.svg").getroot().tag.endswith("svg")
    assert not Path("gate-text.svg").exists()


@pytest.mark.parametrize("name", ["none.parquet", "none.jsonl"])
def test_a_table_that_is_not_there(tmp_path, monkeypatch, name):
    from guerdon.errors import DataError

    monkeypatch.setattr(sys, "argv", ["gate_report.py", str(tmp_path / name)])
    with pytest.raises(DataError, match="no such file"):
        runpy.run_path(str(SCRIPT), run_name="__main__")


def test_the_table_that_guerdon_is_delivered_with(capsys):
    """python studies/gate_report.py"""
    runpy.run_path(str(SCRIPT))["main"](["--reps", "50"])
    said = capsys.readouterr().out
    assert re.search(r"^66 on 6 tasks: \d+ helped, \d+ had no effect, \d+ harmed", said, re.M)
    assert said.count("## Reward models for") == said.count("| **predictor** |") == 2
    table = read_gate_table(PACKAGED)
    assert PACKAGED.stat().st_size < 5e6
    for kind, fewest in (("robot", 40), ("text", 20)):
        part = table.of(kind)
        assert len(part) >= fewest
        assert np.isfinite(part.gains_N_S).all()
        assert part.gains_N_S.shape[1] == 3
        assert min(np.bincount(part.outcomes_N)[[0, 2]]) >= FEWEST_OF_EACH
        assert {"auroc", "bon4", "reward_variance"} <= set(common_features(part))
