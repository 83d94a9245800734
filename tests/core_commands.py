"""What guerdon does where the extra `train` is not installed, and what it says of the rest.

    python tests/core_commands.py       # in an environment with the core alone, as `make test-core` does

Each command is a process; `check` raises an AssertionError at the first that does something else.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOG = [
    {"prompt": f"{a}+{b}?", "completion": str(a + b - wrong), "reward": 1 - wrong, "step": a}
    for a in range(1, 6) for b in range(3) for wrong in (0, 1)
]  # fmt: skip
PAIRS = [{"prompt": f"{a}+{a}?", "chosen": str(a + a), "rejected": str(a + a + 1)} for a in range(1, 6)]
EXTRA = re.escape("pip install 'guerdon[train]'")
WORKS = {
    "--help": "Commands:",
    "--version": "guerdon ",
    "audit log.jsonl": "page: log.jsonl.audit.html",
    "read pairs.jsonl": "guerdon evaluate: preferences",
    "doctor": "core only: fine",
    f"run {ROOT}/configs/prm_demo.yaml --dry-run": f"not checked: this needs \\w+: {EXTRA}",
    f"compare {ROOT}/studies/demo.yaml --dry-run": f"not checked: this needs \\w+: {EXTRA}",
    f"train {ROOT}/studies/demo.yaml --dry-run": f"not checked: this needs \\w+: {EXTRA}",
    f"evaluate {ROOT}/configs/prm_demo.yaml --dry-run": f"not checked: this needs \\w+: {EXTRA}",
    f"collect {ROOT}/studies/demo.yaml --dry-run": f"not checked: this needs \\w+: {EXTRA}",
    f"label {ROOT}/configs/prm_demo.yaml --dry-run": f"not checked: this needs \\w+: {EXTRA}",
    f"search {ROOT}/studies/search.yaml --dry-run": f"not checked: this needs \\w+: {EXTRA}",
}
"""Commands with status 0, and a pattern of what they print."""
NEEDS_TRAIN = (
    "quickstart", "run CartPole-v1", f"run {ROOT}/configs/prm_demo.yaml", f"compare {ROOT}/studies/demo.yaml",
    f"collect {ROOT}/studies/demo.yaml", f"train {ROOT}/studies/demo.yaml", f"label {ROOT}/configs/prm_demo.yaml",
    f"search {ROOT}/studies/search.yaml", "score log.jsonl --model no_such_folder -o scored.jsonl",
    "evaluate --model no_such_folder --data pairs.jsonl", "import folder other",
)  # fmt: skip
"""Commands that end with status 2 and one line, which names the extra."""


def written(folder):
    """Write the rows that the commands read."""
    long = [{**LOG[k % len(LOG)], "prompt": f"{k // 2}+1?"} for k in range(500)]
    for name, rows in (("log.jsonl", LOG), ("long.jsonl", long), ("pairs.jsonl", PAIRS)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def said(words, folder, environ):
    """The status of a command, what it prints, and the lines of its errors."""
    command = [sys.executable, "-m", "guerdon", *words.split()]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr, done.stderr.splitlines()


CPU_SECONDS = {"--help": 0.4, "audit long.jsonl": 1.5}
"""Seconds of one core that are aimed at, start of Python included, beside what it took; `long.jsonl` has 500 rows."""


def cpu_seconds(words, folder, environ, tries=5):
    """Seconds of CPU that a command takes, of several tries the least."""
    found = []
    for _ in range(tries):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        status, printed, _ = said(words, folder, environ)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert status == 0, (words, printed)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def check(folder, environ):
    """Run every command.

    Raises:
        AssertionError: one has another status, or says something else.
    """
    written(folder)
    for words, pattern in WORKS.items():
        status, printed, _ = said(words, folder, environ)
        assert (status, bool(re.search(pattern, printed))) == (0, True), (words, status, printed[-2000:])
    for words in NEEDS_TRAIN:
        status, printed, errors = said(words, folder, environ)
        assert (status, "Traceback" in printed) == (2, False), (words, status, printed[-2000:])
        assert re.fullmatch(f"guerdon: this needs \\w+: {EXTRA}", errors[-1]), (words, printed)
        assert not (folder / "runs").exists(), words


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        environ = {**os.environ, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
        check(Path(place), environ)
        for words, limit in CPU_SECONDS.items():
            took = cpu_seconds(words, Path(place), environ)
            print(f"guerdon {words}: {took:.2f} s of CPU, the aim is {limit:g}")
    print(f"{len(WORKS)} commands work without the extra train, {len(NEEDS_TRAIN)} name it")
