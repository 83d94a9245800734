"""How far the rollouts of collectors on a Ray cluster are, for the line of progress of the process of the run.

Collectors write it to a small actor, and the run reads it there. They do not answer the run themselves: an actor that
answers while it works leaves the main thread, where simulators that use signals or an event loop expect to be.

    board = Board(ray)
    with reported_to(Reports(board.handle, call=7)): ...  # in a collector
    board.known([7, 8])                                          # in the run, again and again
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any

from guerdon.collect.rollout_progress import RolloutProgress


class _Written:
    """What runs in the actor: what each call of a collector wrote last."""

    def __init__(self) -> None:
        self._known: dict[int, RolloutProgress] = {}

    def write(self, call: int, progress: RolloutProgress) -> None:
        """How far a call is."""
        self._known[call] = progress

    def read(self, first: int) -> dict[int, RolloutProgress]:
        """What is known of this call and those after it; all before it are over."""
        self._known = {call: one for call, one in self._known.items() if call >= first}
        return self._known


class Board:
    """An actor on the node of this process, which reserves nothing and starts again when it is lost.

    Args:
        ray: the package, connected.

    Attributes:
        handle: of the actor.
    """

    def __init__(self, ray: Any) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        self._ray = ray
        self.handle = ray.remote(_Written).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here).remote()
        self._answer: Any = None

    def known(self, calls: Collection[int]) -> dict[int, RolloutProgress]:
        """The answer to the last question, where there is one by now, and the next question.

        Args:
            calls: numbers of those under way, at least one; later calls have larger ones.
        """
        found: dict[int, RolloutProgress] = {}
        if self._answer is not None:
            if not self._ray.wait([self._answer], timeout=0)[0]:
                return found
            with suppress(self._ray.exceptions.RayActorError):  # it is lost, and starts again
                found = self._ray.get(self._answer)
        self._answer = self.handle.read.remote(min(calls))
        return {call: one for call, one in found.items() if call in calls}

    def close(self) -> None:
        """End the actor."""
        self._ray.kill(self.handle)


class Reports:
    """A listener in a collector, which writes what it hears on the board.

    Args:
        board: the actor of a `Board`.
        call: number of the call that the collector is in.

    Attributes:
        last: what it heard last; None: nothing.
    """

    def __init__(self, board: Any, call: int) -> None:
        self._board, self._call = board, call
        self.last: RolloutProgress | None = None

    def __call__(self, progress: RolloutProgress, over: bool) -> None:
        """See `Listener`."""
        self.last = progress
        if not over:  # else it comes with the rollout
            self._board.write.remote(self._call, progress)
