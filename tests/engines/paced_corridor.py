"""The corridor at a speed that a file decides, so that a run can be made to last: `env.task: paced_corridor:ID`."""

import time
from contextlib import suppress
from pathlib import Path

import gymnasium

from corridor import Corridor

ID = "guerdon-tests/Paced-v0"


class Paced(Corridor):
    """Waits at every step for so many seconds as the file `pace` in `folder` says, if it is there."""

    def __init__(self, folder, render_mode=None):
        super().__init__(render_mode)
        self.pace = Path(folder) / "pace"

    def step(self, action):
        with suppress(FileNotFoundError):
            time.sleep(float(self.pace.read_text()))
        return super().step(action)


gymnasium.register(ID, Paced)
