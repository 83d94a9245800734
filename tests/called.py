"""Call a command of guerdon in the process of the test, which has imported everything already."""

import contextlib
import io
import subprocess
import sys
from unittest import mock

from guerdon import cli


def called(*words, folder):
    """Call `guerdon *words` in a folder.

    Args:
        words: of the command line.
        folder: the working directory.

    Returns:
        What a process would have left: exit status, output and errors.
    """
    out, errors = io.StringIO(), io.StringIO()
    argv = ["guerdon", *map(str, words)]
    status = 0
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        mock.patch.object(sys, "argv", argv),
    ):
        try:
            cli.main()
        except SystemExit as left:
            status = left.code or 0
    return subprocess.CompletedProcess(argv, status, out.getvalue(), errors.getvalue())
