"""Which of the suites with a cost of their own a change needs: those that import what it changes.

    python tests/suites.py            names of the suites to run, one a line; the reasons on standard error
    python tests/suites.py --files vla      the test files of a suite

A suite reaches the files that its test files import, at any depth and also inside functions, and the modules of texts
such as "guerdon.worlds.build:libero". What changed is what differs from the merge base with `origin/main`, or with
`main` where there is no such branch. Without a base (a shallow clone, or main itself) every suite runs.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITES = {  # name: patterns of its test files
    "libero": ("tests/worlds/test_libero.py",),
    "maniskill": ("tests/worlds/test_maniskill.py",),
    "vla": ("tests/**/test_vla*.py", "tests/**/test_*_vla.py"),
    "ray": ("tests/**/test_ray*.py", "tests/**/test_*_on_ray.py"),
}
SITE = "site"  # the documentation site: pages, the modules that pages name, and what those import when they are loaded
PAGES = ("docs/", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
READ_BY_TESTS = ("configs/", "studies/", "examples/", "benchmarks/")
SHARED = re.compile(r"pyproject\.toml|constraints\.txt|Makefile|\.ci/.*|tests/[^/]*|(.*/)?conftest\.py")
OWN_TESTS = re.compile(r"tests/([^/]*/)*test_\w+\.py")
MODULE_TEXT = re.compile(r"^(guerdon(?:\.\w+)+):\w+$")
MODULE_NAME = re.compile(r"\bguerdon(?:\.\w+)+")


def git(root: Path, *words: str) -> str | None:
    """What a git command prints, or None where it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def changed_files(root: Path) -> list[str] | None:
    """Files that differ from the merge base with main, committed or not; None where there is no base before HEAD."""
    bases = (git(root, "merge-base", main, "HEAD") for main in ("origin/main", "main"))
    base = next(filter(None, bases), None)
    if base is None or base == git(root, "rev-parse", "HEAD"):
        return None
    differing = git(root, "diff", "--name-only", "--no-renames", base)
    new = git(root, "ls-files", "--others", "--exclude-standard")
    if differing is None or new is None:
        return None
    return sorted({*differing.splitlines(), *new.splitlines()})


@cache
def text_of(path: Path) -> str:
    """The text of a file."""
    return path.read_text(encoding="utf-8")


def nodes(path: Path) -> Iterator[tuple[ast.AST, bool]]:
    """The syntax nodes of a file, and whether each runs when the file is loaded."""
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(text_of(path)), True)]
    while waiting:
        node, loaded = waiting.pop()
        loaded = loaded and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield node, loaded
        waiting.extend((child, loaded) for child in ast.iter_child_nodes(node))


@cache
def imports_of(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Dotted names that a file imports when it is loaded; and all, also in functions and as texts `module:function`."""
    names: set[str] = set()
    at_once: set[str] = set()
    for node, loaded in nodes(path):
        found: set[str] = set()
        if isinstance(node, ast.Import):
            found = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.update(MODULE_TEXT.findall(node.value))
        names |= found
        if loaded:
            at_once |= found
    return frozenset(at_once), frozenset(names)


@cache
def module_files(root: Path, name: str, folder: Path) -> tuple[Path, ...]:
    """Files that importing a dotted name loads: a module of guerdon with its packages, or a helper of the tests.

    Args:
        root: of the project.
        name: dotted.
        folder: of the file that imports it.
    """
    parts = name.split(".")
    if parts[0] == "guerdon":
        stems = [root.joinpath("src", *parts[:depth]) for depth in range(1, len(parts) + 1)]
        candidates = [file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py")]
    else:
        candidates = [place / f"{parts[0]}.py" for place in (folder, root / "tests")]
    return tuple(file for file in candidates if file.is_file())


def reached(root: Path, starts: Iterable[Path], *, lazily: bool = True) -> set[Path]:
    """The starts, and the files of this project that they import at any depth."""
    found: set[Path] = set()
    waiting = list(starts)
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        at_once, names = imports_of(path)
        for name in names if lazily else at_once:
            waiting.extend(module_files(root, name, path.parent))
    return found


def suite_files(root: Path, suite: str) -> list[Path]:
    """The test files of a suite, sorted."""
    return sorted({path for pattern in SUITES[suite] for path in root.glob(pattern)})


@cache
def suite_reaches(root: Path, suite: str) -> set[Path]:
    """The Python files that decide what a suite finds."""
    if suite != SITE:
        return reached(root, suite_files(root, suite))
    pages = [root / "docs" / "conf.py", *(root / "docs").rglob("*.md")]
    names = {name for page in pages for name in MODULE_NAME.findall(text_of(page))}
    starts = [file for name in names for file in module_files(root, name, root / "docs")]
    return reached(root, starts, lazily=False)


def needs(root: Path, suite: str, name: str, reaches: set[Path]) -> bool:
    """Whether a change of one file can change what a suite finds."""
    path = root / name
    own_test = OWN_TESTS.fullmatch(name) is not None
    if path in reaches or (SHARED.fullmatch(name) and not own_test):
        return True
    if suite == SITE:
        return name.startswith(PAGES)
    if own_test:
        return False
    if name.startswith("src/") and name.endswith(".py"):
        return not path.exists()  # one that is gone may still be named somewhere
    if name.startswith(("src/", "tests/")):  # a template, a table, a helper that is a process: used by its neighbours
        home = next(folder for folder in path.parents if folder == root or any(folder.glob("*.py")))
        return any(reached_file.parent == home for reached_file in reaches)
    folder = re.compile(rf"\b{path.parent.name}\b")  # studies, configs, examples: tests name the folder
    return name.startswith(READ_BY_TESTS) and any(folder.search(text_of(file)) for file in suite_files(root, suite))


def reason(root: Path, suite: str, changed: Iterable[str]) -> str | None:
    """The first changed file for which a suite has to run, or None."""
    reaches = suite_reaches(root, suite)
    return next((name for name in changed if needs(root, suite, name, reaches)), None)


def selected(root: Path, changed: Iterable[str] | None) -> dict[str, str]:
    """The suites to run, with the reason; all of them where it is not known what changed."""
    names = [*SUITES, SITE]
    if changed is None:
        return dict.fromkeys(names, "nothing to compare with")
    listed = list(changed)
    reasons = {suite: reason(root, suite, listed) for suite in names}
    return {suite: why for suite, why in reasons.items() if why is not None}


def main() -> None:
    """Print the suites to run, or the files of one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", choices=SUITES, help="print the test files of this suite instead")
    asked = parser.parse_args()
    if asked.files:
        print(*(path.relative_to(ROOT) for path in suite_files(ROOT, asked.files)), sep="\n")
        return
    chosen = selected(ROOT, changed_files(ROOT))
    for suite in (*SUITES, SITE):
        print(f"{suite}: {chosen.get(suite, 'not needed')}", file=sys.stderr)
    print(*chosen, sep="\n")


if __name__ == "__main__":
    main()
