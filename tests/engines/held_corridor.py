"""A corridor whose process waits in the middle of a rollout: `env.task: held_corridor:guerdon-tests/Held-v0`."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import gymnasium

from corridor import Corridor
from guerdon.collect import control

ID = "guerdon-tests/Held-v0"


class Held(Corridor):
    """Episodes of four steps. In the third step of its second one, it waits for a word from a pipe `hold*` in `folder`.

    It renames the pipe to `taken-...` first. At the word `kill` the process ends. What collects reports every step.
    """

    def __init__(self, folder, render_mode=None):
        super().__init__(render_mode, stops=False, reports="end")
        self.folder = Path(folder)
        control.TOLD_EVERY = 0.0

    def step(self, action):
        if (self.episodes, self.age) == (2, 2):
            self.wait()
        return super().step(action)

    def wait(self):
        for pipe in sorted(self.folder.glob("hold*")):
            with suppress(FileNotFoundError):  # another process has it
                taken = pipe.rename(self.folder / f"taken-{pipe.name}")
                if taken.read_text() == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                return


gymnasium.register(ID, Held)
