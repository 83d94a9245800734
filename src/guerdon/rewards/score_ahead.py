"""Scores computed in a thread of their own while the environment goes on (`reward.overlap_steps`).

What is asked for is known by a key, so that the source finds each score when it measures the rollout. One thread scores
for a source, in the order in which it was asked, so results do not depend on how fast anything is. An exception of the
model is raised where its score is taken.

    ahead = ScoresAhead(model.score)
    ahead.ask([((0, 7, (12,)), episode)])            # returns at once
    scores = ahead.take([((0, 7, (12,)), episode)])  # waits; what was not asked for is scored now
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from guerdon.types import Episode, Score

Asked = tuple[tuple[int, int | None, tuple[int, ...]], Episode]
"""Stream, number and rows of what is scored, and its pictures."""


class ScoresAhead:
    """Scores of episodes by their keys.

    Args:
        score: measures episodes, in one call for all that are asked for at a time.
    """

    def __init__(self, score: Callable[[Sequence[Episode]], list[Score]]) -> None:
        self._score = score
        self._thread: ThreadPoolExecutor | None = None
        self._found: dict[tuple[int, int | None, tuple[int, ...]], tuple[Future[list[Score]], int]] = {}

    def ask(self, asked: Sequence[Asked]) -> None:
        """Score these episodes, after those that were asked for before."""
        if not asked:
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="guerdon-score-ahead")
        future = self._thread.submit(self._score, [episode for _, episode in asked])
        self._found |= {key: (future, n) for n, (key, _) in enumerate(asked)}

    def take(self, asked: Sequence[Asked]) -> list[Score]:
        """The scores of these episodes; nothing is kept of any after that."""
        if not self._found:  # nothing runs beside this thread
            return self._score([episode for _, episode in asked]) if asked else []
        self.ask([one for one in asked if one[0] not in self._found])
        try:
            found = [self._found[key] for key, _ in asked]
            return [future.result()[n] for future, n in found]
        finally:
            self.close()

    def close(self) -> None:
        """Forget what was asked for, and end the thread with the call that it is in."""
        self._found.clear()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
