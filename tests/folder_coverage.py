"""The share of the lines of each folder of guerdon that `make test` runs, also in the processes that tests start.

    pip install slipcover
    python tests/folder_coverage.py measure runs/now                            runs the tests (a quarter of an hour)
    python tests/folder_coverage.py measure runs/before --checkout ../before    of another checkout of this repository
    python tests/folder_coverage.py table runs/now runs/before

Not counted are imports for types alone, and modules that tests run elsewhere (`ELSEWHERE`): in an environment of their
own, or in a sandbox, which gets no variables. Lines of a process that is killed are not seen. Where the files of a
folder lay elsewhere before, they are found by git: the folder is compared with the files that became its own.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

HERE = Path(__file__).parent
ELSEWHERE = re.compile(
    r"(integrations/(trl|verl|verifiers|sb3|openenv)|engines/ray\w*|worlds/(libero\w*|maniskill\w*|bfcl|textworld|atari)"
    r"|policies/(robots/)?(experts|libero_expert|maniskill_expert)|tasks/(code/)?code_(link|sandbox|calls|kernel))\.py"
)
FOLDERS = {"audit": "auditing", "compare": "comparison", "evaluate": "evaluation"}  # of a file that has no successor


def measure(target: Path, checkout: Path) -> None:
    """Run the tests of a checkout, and write what they ran: `lines.json`, with the lines run and all by file."""
    raw, source = (target / "raw").resolve(), checkout.resolve() / "src"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True)
    paths = os.pathsep.join(map(str, (HERE / "covered", source, checkout.resolve() / "tests")))
    measured = {"COVERED_SOURCE": str(source), "COVERED_LINES": str(raw), "PYTHONPATH": paths}
    options = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-m", "not slow")
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    usual = {"OMP_NUM_THREADS": "1", "MUJOCO_GL": "egl"}
    status = subprocess.run(tests, cwd=checkout, env={**usual, **os.environ, **measured}, check=False).returncode
    ran = lines_of(raw, source)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
    found = {"commit": commit.stdout.strip(), "status": status, "files": dict(counted(source / "guerdon", ran))}
    (target / "lines.json").write_text(json.dumps(found))


def lines_of(raw: Path, source: Path) -> dict[Path, set[int]]:
    """The lines of each file that some process ran."""
    ran: dict[Path, set[int]] = defaultdict(set)
    for process in raw.glob("*.json"):
        for name, lines in json.loads(process.read_text()).items():
            ran[source.parent / name].update(lines)
    return ran


def counted(package: Path, ran: dict[Path, set[int]]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Lines that ran and all lines with code, by the path of a file in the package."""
    for file in sorted(package.rglob("*.py")):
        name = str(file.relative_to(package))
        if ELSEWHERE.fullmatch(name):
            continue
        text = file.read_text(encoding="utf-8")
        lines = code_lines(compile(text, str(file), "exec")) - lines_for_types(text) - {0}
        yield name, (len(lines & ran[file]), len(lines))


def code_lines(code: CodeType) -> set[int]:
    """The lines of a code object and of those inside it."""
    found = {line for _, _, line in code.co_lines() if line}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= code_lines(inner)
    return found


def lines_for_types(text: str) -> set[int]:
    """The lines below `if TYPE_CHECKING:`."""
    blocks = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.If)]
    typed = [node for node in blocks if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"]
    return {line for node in typed for one in node.body for line in range(one.lineno, (one.end_lineno or 0) + 1)}


def successors(before: str, now: str) -> dict[str, str]:
    """The paths now of the files that git finds renamed."""
    renames = ["git", "diff", "-M20%", "-C20%", "-l0", "--name-status", before, now, "--", "src/guerdon"]
    said = subprocess.run(renames, cwd=HERE.parent, capture_output=True, text=True, check=True).stdout
    rows = [line.split("\t") for line in said.splitlines()]
    front = "src/guerdon/"
    return {row[1].removeprefix(front): row[2].removeprefix(front) for row in rows if row[0].startswith("R")}


def by_folder(files: dict[str, list[int]], moved: dict[str, str] | None = None) -> dict[str, Counter[str]]:
    """Lines that ran, and all, of each folder."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for name, (ran, lines) in files.items():
        place = Path((moved or {}).get(name, name))
        folder = place.parts[0] if len(place.parts) > 1 else "(top)"
        found[FOLDERS.get(folder, folder)].update(ran=ran, lines=lines)
        found["all"].update(ran=ran, lines=lines)
    return found


def table(now: Path, before: Path) -> str:
    """Both states by folder, as Markdown."""
    new, old = (json.loads((folder / "lines.json").read_text()) for folder in (now, before))
    moved = successors(old["commit"], new["commit"])
    shares_now, shares_before = by_folder(new["files"]), by_folder(old["files"], moved)
    rows = ["| folder | lines before | run | lines now | run |", "|---|---:|---:|---:|---:|"]
    for folder in sorted(shares_now, key=lambda name: (name == "all", name)):
        cells = [shown(shares_before.get(folder)), shown(shares_now[folder])]
        name = folder if folder == "all" else f"`{folder}`"
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def shown(found: Counter[str] | None) -> str:
    """Lines and the share that ran, in two cells."""
    return " | " if found is None else f"{found['lines']:,} | {found['ran'] / found['lines']:.2%}"


def main() -> None:
    """Measure, or print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("measure")
    one.add_argument("target", type=Path)
    one.add_argument("--checkout", type=Path, default=HERE.parent)
    two = commands.add_parser("table")
    two.add_argument("now", type=Path)
    two.add_argument("before", type=Path)
    given = parser.parse_args()
    if given.command == "measure":
        measure(given.target, given.checkout)
    else:
        print(table(given.now, given.before))


if __name__ == "__main__":
    main()
