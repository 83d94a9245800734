"""Real processes of `guerdon annotate` for tests, each on a free port.

with annotating(tmp_path, data) as running:
    httpx.get(running.urls[""] + "/api/next")
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import contextmanager

from child import environment

ADDRESS = re.compile(r"(?:(\S+): |.* at )(http://[^/\s]+)(?:/#(\S+))?$")


class Running:
    """A process that answers.

    Attributes:
        url: of the server.
        tokens: by person; of the only one, named by an empty text, None.
    """

    def __init__(self, folder, *words, people=1):
        command = [sys.executable, "-m", "guerdon", "annotate", *map(str, words)]
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.tokens, self.said = {}, []
        while len(self.tokens) < people:
            line = self.process.stderr.readline()
            if not line:
                raise AssertionError("".join(self.said))
            self.said.append(line)
            if found := ADDRESS.match(line.strip()):
                self.tokens[found[1] or ""], self.url = found[3], found[2]

    def end(self, sig=signal.SIGTERM):
        """Send a signal; what was printed until the end."""
        self.process.send_signal(sig)
        out, err = self.process.communicate(timeout=120)
        self.said.append(err)
        return out

    def headers(self, person=""):
        token = self.tokens[person]
        return {"Authorization": f"Bearer {token}"} if token else {}


@contextmanager
def annotating(folder, *words, people=1):
    """A process that is killed where the test did not end it."""
    running = Running(folder, *words, people=people)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.communicate()
