"""Run a command of guerdon in a process of its own that has imported everything already: a fork of the test's."""

import os
import resource
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    """Exit status, output and errors together, and the lines of the error that ended it."""

    status: int
    said: str

    @property
    def errors(self):
        return [line for line in self.said.splitlines() if line.startswith("guerdon: ")]


def forked(*words, folder, **options):
    """Run `guerdon *words` in a folder to its end; options as for `begun`."""
    return ended(begun(*words, folder=folder, **options))


def begun(*words, folder, most_bytes=None, before=None, patience=120, variables=None):
    """Begin to run `guerdon *words` in a folder; the process and the file of what it says, for `ended`.

    Args:
        words: of the command line.
        folder: the working directory.
        most_bytes: no file may become longer, as on a disk that is full there.
        before: called in the new process, with its streams as descriptors 1 and 2.
        patience: seconds after which it is ended.
        variables: more environment variables.
    """
    from guerdon import cli

    descriptor, record = tempfile.mkstemp(prefix=".said", dir=folder)
    os.close(descriptor)
    record = Path(record)
    child = os.fork()
    if child == 0:
        try:
            os.chdir(folder)
            os.environ.update(variables or {})
            said = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            os.dup2(said, 1)
            os.dup2(said, 2)
            sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
            sys.stderr = sys.__stderr__ = os.fdopen(2, "w", closefd=False)
            sys.argv = ["guerdon", *map(str, words)]
            sys.path.insert(0, "")
            signal.alarm(patience)
            if before is not None:
                before()
            if most_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
            cli.main()
        except SystemExit as left:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(left.code or 0)
        except BaseException:  # noqa: BLE001 (the parent reads it)
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(1)
    return child, record


def ended(process):
    """Wait for what `begun` began."""
    child, record = process
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said = record.read_text(errors="replace")
    record.unlink()
    return Ended(status, said)
