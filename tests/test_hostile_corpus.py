"""The table of the hostile corpus in docs/security.md is what `tests/hostile.py` counts."""

import subprocess
import sys

import pytest

import hostile
from child import environment

SAMPLE = """
import pytest
from tables import cases

pytestmark = pytest.mark.hostile("http")

def test_one():
    assert False

@pytest.mark.parametrize("x", [1, 2, 3])
@cases("y", "abcd")
def test_twelve(x, y):
    pass

@pytest.mark.hostile("media")
@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.xfail(strict=True, reason="open"))])
def test_of_another_kind(x):
    assert x == 1

@pytest.mark.hostile("media")
@pytest.mark.xfail(reason="may pass")
def test_not_strict():
    pass

class TestThings:
    @pytest.mark.hostile("disk")
    @pytest.mark.slow
    @pytest.mark.skip
    def test_elsewhere(self):
        pass
"""


COUNT = """
import sys
from pathlib import Path
import hostile
found = hostile.collect(hostile.marked_files(Path(sys.argv[1])))
print(sorted(found.tried.items()), sorted(found.open.items()))
"""


def started(*words, folder):
    """A Python that has ended."""
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=folder, env=environment(hostile.TESTS), capture_output=True, text=True,
        timeout=280,
    )  # fmt: skip


def test_rows_of_tables_and_parameters_are_counted_and_strict_failures_are_not_held(tmp_path):
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    (tmp_path / "test_other.py").write_text("raise AssertionError('not imported')\n")
    done = started("-c", COUNT, tmp_path, folder=tmp_path)
    assert done.stdout == "[('disk', 1), ('http', 13), ('media', 3)] [('media', 1)]\n", done.stderr


def test_an_unknown_kind_is_named(tmp_path):
    (tmp_path / "test_sample.py").write_text(SAMPLE.replace('"media"', '"medium"'))
    done = started("-c", COUNT, tmp_path, folder=tmp_path)
    assert done.returncode == 1
    assert "hostile('medium',): the kind is one of http, media" in done.stderr


def test_only_the_text_between_the_markers_is_replaced():
    page = f"before\n{hostile.START}\nold\n{hostile.END}\nafter\n"
    assert hostile.replaced(page, "new") == f"before\n{hostile.START}\n\nnew\n\n{hostile.END}\nafter\n"
    with pytest.raises(ValueError, match=r"security\.md has no lines"):
        hostile.replaced("before\nafter\n", "new")


@pytest.mark.slow
def test_the_page_has_the_counts_of_now():
    done = started("hostile.py", folder=hostile.TESTS)
    assert done.returncode == 0, done.stderr
    page = hostile.PAGE.read_text(encoding="utf-8")
    assert hostile.replaced(page, done.stdout.strip()) == page, "write the table again: python tests/hostile.py --write"
    counts = [line.split("|")[3].strip() for line in done.stdout.splitlines()[2:]]
    assert "0" not in counts, done.stdout
