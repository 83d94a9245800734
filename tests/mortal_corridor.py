"""The corridor in a process that dies: `env.task: mortal_corridor:guerdon-tests/Mortal-v0`."""

import os
import signal
from pathlib import Path

import gymnasium

from corridor import Corridor

ID = "guerdon-tests/Mortal-v0"


class Mortal(Corridor):
    """Kills its process in the middle of an episode, once for every file `kill*` that lies in `folder`."""

    def __init__(self, folder, render_mode=None):
        super().__init__(render_mode)
        self.folder = Path(folder)

    def step(self, action):
        if self.age == 3 and self.episodes > 1:
            for order in sorted(self.folder.glob("kill*"))[:1]:
                order.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


gymnasium.register(ID, Mortal)
