"""In every Python process of `tests/folder_coverage.py`: writes which lines of `COVERED_SOURCE` it ran when it ends."""

import atexit
import json
import os
from pathlib import Path

from slipcover import FileMatcher, Slipcover
from slipcover.importer import ImportManager

_LINES = Slipcover(branch=False)
_WRITTEN = set()
_exit_now = os._exit


def _write():
    """Write the lines of this process; a child of a fork has those of its parent, too."""
    if os.getpid() in _WRITTEN:
        return
    _WRITTEN.add(os.getpid())
    files = _LINES.get_coverage()["files"]
    ran = {name: found["executed_lines"] for name, found in files.items() if found["executed_lines"]}
    target = Path(os.environ["COVERED_LINES"]) / f"{os.getpid()}-{os.urandom(3).hex()}.json"
    begun = target.with_suffix(".begun")  # a process that is killed meanwhile leaves no half of a file
    begun.write_text(json.dumps(ran))
    begun.rename(target)


def _exit(status):
    """`os._exit`, by which children of forks end, calls no function of `atexit`."""
    try:
        _write()
    finally:
        _exit_now(status)


if "COVERED_SOURCE" in os.environ:
    ImportManager(_LINES, FileMatcher(sources=[os.environ["COVERED_SOURCE"]])).__enter__()
    os._exit = _exit
    atexit.register(_write)
