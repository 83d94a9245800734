"""What commands print, recorded so that a refactor can be compared: `python tests/frozen_commands.py record FILE`.

Recorded are standard output, standard error and the exit status of

- `--dry-run` of every command on every file of `configs/` and `studies/`, which prints the resolved configuration,
- every call of the command line in `tests/test_dry_run.py`, its refusals among them.

    python tests/frozen_commands.py record before.json      in a checkout of the state before
    python tests/frozen_commands.py compare before.json     in the state after: prints what differs, status 1 if any

Paths of the checkout and of temporary folders are replaced. Both must be made on one machine, with the same packages.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import multiprocessing
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = (
    ("collect",), ("label",), ("train",), ("train", "policy=bc"), ("train", "policy=sft"), ("evaluate",),
    ("evaluate", "--attack"), ("search",), ("run",), ("compare",),
)  # fmt: skip


def printed(words: tuple[str, ...]) -> dict[str, Any]:
    """What `guerdon WORDS` prints, and its status."""
    from guerdon import cli

    out, err, status = io.StringIO(), io.StringIO(), None
    sys.argv = ["guerdon", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as left:
            status = left.code
    return {"status": status, "out": masked(out.getvalue()), "err": masked(err.getvalue())}


def masked(text: str) -> str:
    """Text without what differs between two checkouts."""
    text = text.replace(str(ROOT), "<checkout>")
    return re.sub(r"/tmp/[\w./-]*?/(?=[\w.]+)|/tmp/\S*", "<tmp>/", text)


def one_case(words: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """One command on one file, in a process that is not used again."""
    os.chdir(ROOT)
    return " ".join(words), printed(words)


def files_of_the_repository() -> dict[str, Any]:
    """`--dry-run` of every command on every study."""
    files = sorted(
        f"{folder}/{path.name}" for folder in ("configs", "studies") for path in (ROOT / folder).glob("*.yaml")
    )
    cases = [(verb, file, *rest, "--dry-run") for file in files for verb, *rest in COMMANDS]
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        return dict(pool.imap(one_case, cases, chunksize=1))


class Recorder:
    """A plugin of pytest: keeps what each call of the command line printed."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.test = ""

    def pytest_runtest_setup(self, item: Any) -> None:
        self.test = item.nodeid.removeprefix("tests/")

    def pytest_runtest_call(self, item: Any) -> None:
        from guerdon import cli

        original, calls = cli.main, iter(range(1000))

        def main() -> None:
            start = [len(stream.getvalue()) for stream in (sys.stdout, sys.stderr)]
            status = None
            try:
                original()
            except SystemExit as left:
                status = left.code
                raise
            finally:
                out, err = (
                    masked(stream.getvalue()[n:]) for stream, n in zip((sys.stdout, sys.stderr), start, strict=True)
                )
                row = {"argv": masked(" ".join(sys.argv)), "status": status, "out": out, "err": err}
                self.found[f"{self.test} {next(calls)}"] = row

        cli.main = main
        item.addfinalizer(lambda: setattr(cli, "main", original))


def calls_of_the_tests() -> dict[str, Any]:
    """Every call of the command line in tests/test_dry_run.py."""
    import pytest

    recorder = Recorder()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        status = pytest.main([str(ROOT / "tests/test_dry_run.py"), "-q", "-p", "no:xdist"], plugins=[recorder])
    if status:
        raise SystemExit(f"tests/test_dry_run.py does not pass:\n{said.getvalue()}")
    return recorder.found


def record() -> dict[str, Any]:
    """Both kinds of calls, by their words."""
    return files_of_the_repository() | calls_of_the_tests()


def readable(row: dict[str, Any] | None) -> list[str]:
    """A recorded call as lines."""
    return json.dumps(row, indent=1, ensure_ascii=False).replace("\\n", "\n").splitlines()


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """One text for each call that differs: its words and the lines."""
    found = []
    for words in sorted(before.keys() | after.keys()):
        if before.get(words) != after.get(words):
            old, new = readable(before.get(words)), readable(after.get(words))
            found.append("\n".join([words, *difflib.unified_diff(old, new, "before", "after", lineterm="", n=0)]))
    return found


def main(verb: str, file: str) -> int:
    """Record into a file, or compare with it."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.chdir(tempfile.mkdtemp())
    now = record()
    if verb == "record":
        Path(file).write_text(json.dumps(now, indent=1, sort_keys=True), encoding="utf-8")
        sys.stdout.write(f"{len(now)} calls\n")
        return 0
    found = differences(json.loads(Path(file).read_text(encoding="utf-8")), now)
    sys.stdout.write("\n\n".join([*found, f"{len(now)} calls, {len(found)} differ\n"]))
    return bool(found)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("record", "compare"):
        raise SystemExit(__doc__)
    raise SystemExit(main(sys.argv[1], str(Path(sys.argv[2]).resolve())))
