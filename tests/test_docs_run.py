"""The Python examples of the documents, run where a new user would run them: after the quickstart."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from child import environment

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
ELSEWHERE = {  # examples that cannot run here as they are, and where their contents are tested
    "docs/adapters.md": "downloads a model of 7 billion parameters; tests/models/test_adapters_docs.py",
    "docs/client.md": "needs a server; tests/serve/test_client_docs.py runs them",
    "docs/evaluation.md": "needs a trained text model; tests/evaluation",
    "docs/extend.md": "needs its package installed; tests/extend",
    "docs/judges.md": "needs a rubric and an endpoint; tests/serve/test_judges.py",
    "docs/reward_models_text.md": "needs a trained text model; tests/models",
}


def examples():
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "recipes").glob("*.md")):
        name = str(page.relative_to(ROOT))
        blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
        if blocks and name not in ELSEWHERE:
            yield name, [block for block in blocks if "import" in block]


@pytest.mark.slow
def test_python_examples_run(tmp_path):
    def run(*words):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment(), text=True, capture_output=True)
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    run("-m", "guerdon", "quickstart")
    found = dict(examples())
    assert {"README.md", "docs/data.md"} <= set(found)
    for blocks in found.values():
        for block in blocks:
            if '"recordings"' in block:
                shutil.copytree(tmp_path / "my_data", tmp_path / "recordings")
            printed = run("-c", block)
            assert printed.strip() or "print" not in block


def test_every_page_named_here_has_examples():
    assert [name for name in ELSEWHERE if not BLOCK.search((ROOT / name).read_text(encoding="utf-8"))] == []
