"""The corridor in a process that ends while it receives weights: `env.task: mortal_receiver:guerdon-tests/Receiver-v0`.

It is killed, or stopped, between two buckets of a broadcast, once for every file `kill*` or `stop*` in `folder`.
"""

import os
import signal
from pathlib import Path

import gymnasium

from corridor import Corridor
from guerdon.engines import ray_collector

ID = "guerdon-tests/Receiver-v0"
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_folders = set()
_broadcast = ray_collector._Member.broadcast


class Receiver(Corridor):
    def __init__(self, folder, render_mode=None):
        super().__init__(render_mode)
        _folders.add(Path(folder))


def _mortal(self, tensors, broadcast):
    def given():
        for place, tensor in enumerate(tensors):
            if place == 1:
                _carry_out_an_order()
            yield tensor

    return _broadcast(self, given(), broadcast)


def _carry_out_an_order():
    if not _folders:
        return
    import ray

    if ray.get_runtime_context().get_actor_id() is None:  # the process of the run sends
        return
    for folder in _folders:
        for order in sorted(folder.glob("*"))[:1]:
            order.unlink()
            os.kill(os.getpid(), _SIGNALS[order.name[:4]])


ray_collector._Member.broadcast = _mortal
ray_collector._BUCKET = 64  # so that the first tensor fills some
gymnasium.register(ID, Receiver)
