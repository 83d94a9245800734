"""How far a rollout is while it is collected: its steps, the episodes that ended in it, and their mean return.

What collects reports; the text stands beside the bar of the run, in the unit that the bar counts.

    report(RolloutProgress(steps=340, episodes=5, total_return=60.0))   # this rollout: steps 340, episodes 5, ...
    with reported_to(lambda progress, over: ...):                       # or to what joins parts of a rollout
        collector.collect(policy)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from guerdon.processes.progress import tell


@dataclass(frozen=True)
class RolloutProgress:
    """A rollout up to now.

    Attributes:
        steps: as `Rollout.steps` counts them.
        episodes: that ended and whose return is known.
        total_return: sum of their returns.
    """

    steps: int = 0
    episodes: int = 0
    total_return: float = 0.0

    def __add__(self, other: RolloutProgress) -> RolloutProgress:
        return RolloutProgress(
            self.steps + other.steps, self.episodes + other.episodes, self.total_return + other.total_return
        )

    def __str__(self) -> str:
        steps = f"this rollout: steps {self.steps}"
        if not self.episodes:
            return steps
        return f"{steps}, episodes {self.episodes}, mean return {self.total_return / self.episodes:.4g}"


Listener = Callable[[RolloutProgress, bool], None]
"""Gets how far a rollout is, and whether it is over."""

_listeners: list[Listener] = []


def report(progress: RolloutProgress, *, over: bool = False) -> None:
    """Say how far the rollout is that this process collects; without a listener, the bar of the run shows it.

    Args:
        progress: of the rollout.
        over: it is complete, and what follows says the same.
    """
    if _listeners:
        _listeners[-1](progress, over)
    elif not over:
        tell(str(progress))


@contextmanager
def reported_to(listener: Listener) -> Iterator[None]:
    """Inside the block, reports go to `listener`."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class PartsProgress:
    """How far a rollout of several parts is, shown whenever one of them reports.

    Attributes:
        known: what each part reported last.
    """

    def __init__(self) -> None:
        self.known: dict[int, RolloutProgress] = {}

    def take(self, part: int, progress: RolloutProgress, over: bool = False) -> None:
        """What a part reports: a `Listener` without its first argument."""
        self.known[part] = progress
        tell(str(sum(self.known.values(), RolloutProgress())))
