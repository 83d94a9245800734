"""Standard streams that raise no errors when they are closed, broken, full or not UTF-8.

Output that cannot be written is dropped, and characters that the encoding lacks are written as escapes. Every process
of guerdon calls `keep_streams` first.

    keep_streams()
    sys.stdout.write("done")                    # never raises
    lost_output()                               # OSError(28, "No space left on device"), or None
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any

from guerdon.processes.progress import log_line

_GONE = {errno.EPIPE, errno.ENOTCONN, errno.ECONNRESET}  # the reader closed the pipe


class _KeptFile(io.FileIO):
    """A descriptor whose `write` never fails.

    Attributes:
        lost: the first error of a write, except of a closed pipe.
    """

    lost: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write; data that cannot be written is dropped and counts as written."""
        try:
            while (written := super().write(data)) is None:  # a full pipe that does not block
                select.select([], [self], [])
            return written
        except OSError as error:
            if error.errno not in _GONE:
                self.lost = self.lost or error
            return memoryview(data).nbytes


_output: _KeptFile | None = None


def keep_streams() -> None:
    """Replace the standard streams of this process by ones that never fail; streams of tests and notebooks stay."""
    global _output
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: the next file that is opened would become the standard stream
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream: Any = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__") and stream is not None:
            continue
        file = _KeptFile(number if stream is not None else os.devnull, "w", closefd=stream is None)
        kept = io.TextIOWrapper(
            io.BufferedWriter(file),
            encoding=getattr(stream, "encoding", "utf-8"),
            errors="backslashreplace",
            newline="\n",
            line_buffering=name == "stderr" or getattr(stream, "line_buffering", False),
        )
        if stream is not None:
            stream.flush()
        setattr(sys, name, kept)
        if name == "stdout":
            _output = file


def lost_output() -> OSError | None:
    """The first error of the standard output, except of a closed pipe."""
    sys.stdout.flush()
    return None if _output is None else _output.lost


def report_lost_output() -> None:
    """Log an error of the standard output, and clear it: the work of the command is done."""
    if (lost := lost_output()) is not None and _output is not None:
        log_line(f"the standard output could not be written: {lost.strerror}")
        _output.lost = None
