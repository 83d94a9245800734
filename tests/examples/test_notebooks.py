"""The notebooks, run by `examples/notebooks/run.py --check` in a copy of their folder."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from child import environment

HERE = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(path.name for path in HERE.glob("*.ipynb"))
PATIENCE = 200  # seconds; a notebook takes less than 30 on a quiet machine
BYTES = 60_000  # of a notebook with its outputs


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "preferences.ipynb")) for name in NOTEBOOKS]
)
def test_a_notebook_runs(name, tmp_path):
    folder = tmp_path / "notebooks"
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("made"))
    before = (folder / name).read_bytes()
    command = [sys.executable, str(folder / "run.py"), "--check", str(folder / name)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / name).read_bytes() == before


def test_notebooks_are_small_and_their_outputs_are_stored():
    assert len(NOTEBOOKS) == 3
    for name in NOTEBOOKS:
        notebook = json.loads((HERE / name).read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert any(cell["outputs"] for cell in cells), name
        assert all(cell["execution_count"] == number for number, cell in enumerate(cells, start=1)), name
        assert (HERE / name).stat().st_size < BYTES, name
    assert sum(path.stat().st_size for path in (HERE / "data").rglob("*") if path.is_file()) < 400_000
