"""The script that prints how well the verdict does on a table."""

import json
import re
import runpy
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from gate_tables import made_rows

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
