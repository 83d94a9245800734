"""The documentation site: every page is in its navigation, and it builds without a warning."""

import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import pytest

from child import environment

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md") if "_build" not in page.parts}
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.S | re.M)


def entries(page):
    """The pages that a page lists in its navigation."""
    folder = page.rpartition("/")[0]
    for block in TOCTREE.findall((DOCS / f"{page}.md").read_text(encoding="utf-8")):
        for line in filter(None, (line.strip() for line in block.splitlines())):
            if not line.startswith(":"):
                yield f"{folder}/{line}" if folder else line


def listed(page):
    for entry in entries(page):
        depth = entry.count("/")
        yield from (other for other in PAGES if fnmatch.fnmatch(other, entry) and other.count("/") == depth)


def test_every_page_is_in_the_navigation():
    reached, new = {"index"}, {"index"}
    while new:
        new = {other for page in new for other in listed(page)} - reached
        reached |= new
    assert PAGES - reached == set(), "list these pages in a toctree: docs/guides.md, docs/reference.md or an index.md"


def test_the_navigation_lists_pages_that_exist():
    plain = {entry for page in PAGES for entry in entries(page) if not set(entry) & set("*?[")}
    assert plain - PAGES == set()


def test_commands_and_integrations_have_a_page_each():
    from guerdon.cli import app

    verbs = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert {f"commands/{verb}" for verb in verbs} <= PAGES


def test_reward_models_have_a_page_each():
    from guerdon.settings.reward_models import REWARD_MODELS

    pages = "".join((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in PAGES if page.startswith("models/"))
    guide = (DOCS / "vlm.md").read_text(encoding="utf-8")
    missing = [name for name in REWARD_MODELS.builtins if not re.search(rf"\b{name}\b", pages + guide)]
    assert missing == []


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("pydata_sphinx_theme", reason="the site needs guerdon[docs]")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, env=environment(), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "commands" / "compare.html").is_file()
