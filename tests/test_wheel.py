"""The wheel that `python -m build` makes, installed in an environment of its own without the source."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "guerdon"


def run(*words, cwd, **variables):
    """Run without the source tree on the path and without the variables of a surrounding environment."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(list(map(str, words)), cwd=cwd, env={**clean, **variables}, text=True, capture_output=True)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("build", reason="pip install build, or: make test-wheel")
    folder = Path(os.environ.get("GUERDON_DIST") or tmp_path_factory.mktemp("dist"))
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=ROOT)
    return max(folder.glob("guerdon-*.whl"), key=lambda path: path.stat().st_mtime)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert names == {path.relative_to(ROOT / "src").as_posix() for path in files}
    assert {
        "guerdon/py.typed",
        "guerdon/comparison/quickstart.yaml",
        "guerdon/comparison/quickstart_text.yaml",
    } <= names


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_wheel_runs_the_quickstart(wheel, tmp_path):
    run(sys.executable, "-m", "venv", "env", cwd=tmp_path)
    pip = (tmp_path / "env" / "bin" / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt")
    run(*pip, f"{wheel}[metaworld,video]", cwd=tmp_path)
    guerdon = tmp_path / "env" / "bin" / "guerdon"
    assert run(guerdon, "--version", cwd=tmp_path).startswith("guerdon ")
    printed = run(guerdon, "quickstart", cwd=tmp_path, MUJOCO_GL=os.environ.get("MUJOCO_GL", "egl"))
    assert "report:" in printed
    assert (tmp_path / "runs" / "quickstart" / "report.html").stat().st_size > 50_000
