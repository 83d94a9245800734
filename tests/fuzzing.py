"""How long fuzz tests run, and readers of strangers' files in a process with limits.

GUERDON_FUZZ_MINUTES=0.1 pytest -m slow tests/test_fuzzed_files.py        # six seconds; 10 minutes without it

with Reader() as reader:
    reader.read("rows", Path("data.jsonl"))     # ("rows", "3") or ("refused", "data.jsonl:2: not JSON: ...")
"""

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

from child import environment

MINUTES = float(os.environ.get("GUERDON_FUZZ_MINUTES", "10"))
LIMIT_S = int(60 * MINUTES) + 600
"""Of a test that fuzzes for MINUTES, for `pytest.mark.timeout`: what is under way and shrinking come on top."""
EACH = 200  # examples between two looks at the clock


def until_the_time_is_over(run):
    """Call a function again and again for MINUTES, at least once."""
    end = time.monotonic() + 60 * MINUTES
    while True:
        run()
        if time.monotonic() >= end:
            return


def fuzz(check, examples=EACH, **strategies):
    """Call a check with examples of hypothesis for MINUTES; the smallest example that fails is shown."""
    once = settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck), print_blob=False,
    )(given(**strategies)(check))  # fmt: skip
    until_the_time_is_over(once)


class Reader:
    """A process that reads files of strangers (`read_strangers.py`), started again when it ended."""

    CPU_S = 10  # of processor time for a file: the machine may be busy
    WALL_S = 300.0

    def __init__(self):
        self._process = None

    def read(self, name, path):
        """What became of a file: `rows`, `refused` or `broken`, and a text about it.

        Args:
            name: of a reader in `read_strangers.READERS`.
            path: of the file or folder.
        """
        if self._process is None:
            self._start()
        self._process.stdin.write(json.dumps([name, str(path)]) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], self.WALL_S)
        line = self._process.stdout.readline() if ready else ""
        if line:
            return tuple(json.loads(line))
        status = self._end()
        return "broken", f"{name} ended with status {status}" if ready else f"{name} took more than {self.WALL_S} s"

    def _start(self):
        script = Path(__file__).with_name("read_strangers.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(self.CPU_S)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=environment(),
        )  # fmt: skip
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{script.name} ended with status {self._end()} before it read a file")

    def _end(self):
        self._process.kill()
        status = self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process = None
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process is not None:
            self._end()
