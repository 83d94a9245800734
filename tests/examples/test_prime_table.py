"""The table of what outcomes say of steps has a row for each task of the study."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_prints_a_row_for_each_task():
    command = [sys.executable, str(ROOT / "studies" / "prime_table.py"), str(ROOT / "studies" / "prime.yaml")]
    sizes = ["--seeds", "0", "--outcomes", "16", "200", "--fresh", "40"]
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["task", "right", "16", "200"]
    assert [row[0] for row in rows[1:]] == ["chain", "swap", "branch", "swap5"]
    assert float(rows[2][-3]) > 0.99  # six facts: 200 outcomes settle them
