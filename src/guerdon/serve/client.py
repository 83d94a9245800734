"""The client of a reward server for programs without an event loop: `AsyncRewardClient`, behind plain functions.

The loop runs in a daemon thread of its own, started with the first question, so that every deadline holds to the
moment and many requests can be under way. Safe to use from several threads; after a fork the child starts its own.

    with RewardClient("http://127.0.0.1:18080/v1/rewards") as client:
        client.rewards(prompts=["3+5=?"], completions=["3+5=8"])                  # [0.97]
        client.score_videos(["open the drawer"], [frames_T_H_W_3])[0].value       # 0.8, or None
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar

from numpy.typing import NDArray

from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.serve.client_async import Answer, AsyncRewardClient
from guerdon.serve.client_wire import Learnt, When
from guerdon.settings.evaluate_text import Aggregation
from guerdon.settings.remote import RemoteSettings
from guerdon.types import Episode, RewardInfo, Score

T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.process = os.getpid()
        self._thread = threading.Thread(target=self.loop.run_forever, name="guerdon-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result; when the caller is interrupted, the work is cancelled."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5.0)
        if not self._thread.is_alive():
            self.loop.close()


class RewardClient:
    """Asks one reward server. Arguments as those of `AsyncRewardClient`."""

    def __init__(self, settings: RemoteSettings | str, *, token: str | None = None, **more: Any) -> None:
        self._make: Callable[[], AsyncRewardClient] = lambda: AsyncRewardClient(settings, token=token, **more)
        self._client = self._make()
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()

    @property
    def settings(self) -> RemoteSettings:
        """Where and how."""
        return self._client.settings

    @property
    def counts(self) -> dict[str, int]:
        """As those of `AsyncRewardClient`."""
        return self._client.counts

    def info(self) -> RewardInfo:
        """As `AsyncRewardClient.info`."""
        return self._run(lambda client: client.info())

    def judge(self, episodes: Sequence[Episode], options: JudgeOptions | None = None) -> list[ExplainedScore]:
        """As `AsyncRewardClient.judge`."""
        return self._run(lambda client: client.judge(episodes, options))

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """As `AsyncRewardClient.score`."""
        return self._run(lambda client: client.score(episodes))

    def rewards(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        separator: str | None = None,
        aggregation: Aggregation | None = None,
    ) -> list[float | None]:
        """As `AsyncRewardClient.rewards`."""
        return self._run(
            lambda client: client.rewards(prompts, completions, separator=separator, aggregation=aggregation)
        )

    def update(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        outcomes: Sequence[bool],
        *,
        when: When = "after",
        separator: str | None = None,
        number: int | None = None,
    ) -> Learnt:
        """As `AsyncRewardClient.update`."""
        return self._run(
            lambda client: client.update(prompts, completions, outcomes, when=when, separator=separator, number=number)
        )

    def score_videos(
        self,
        tasks: Sequence[str],
        frames: Sequence[NDArray[Any]],
        *,
        native_success: Sequence[bool | None] | None = None,
    ) -> list[Answer]:
        """As `AsyncRewardClient.score_videos`."""
        return self._run(lambda client: client.score_videos(tasks, frames, native_success=native_success))

    def close(self) -> None:
        """Close all connections and end the thread; the next question starts anew."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and thread.process == os.getpid():
            thread.run(self._client.close())
            thread.stop()

    def __enter__(self) -> RewardClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Callable[[AsyncRewardClient], Coroutine[Any, Any, T]]) -> T:
        with self._lock:
            if self._thread is not None and self._thread.process != os.getpid():  # threads do not survive a fork
                self._thread, self._client = None, self._make()
            if self._thread is None:
                self._thread = LoopThread()
            thread, client = self._thread, self._client
        return thread.run(work(client))
