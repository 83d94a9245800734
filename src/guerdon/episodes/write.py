"""`EpisodeWriter`: episodes to a LeRobotDataset v3 in the background, safe against a kill at any moment.

`add` only checks and queues; one thread encodes images and writes. Each flush publishes new shards beside
the old ones and then the index shard that points to them, so a reader always sees whole episodes, and a
killed writer loses at most what was added since its last flush. Reopening a root goes on after what is
there. The writer knows nothing about where episodes come from.

    with EpisodeWriter("episodes", fps=20) as writer:
        writer.add(episode)
    print(writer.num_episodes)
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from guerdon.episodes import index, layout
from guerdon.episodes.files import write_json
from guerdon.episodes.resume import Progress, lock, resume
from guerdon.episodes.rows import Columns, to_rows
from guerdon.episodes.shard import Shard
from guerdon.episodes.stats import merge
from guerdon.episodes.video import require_av
from guerdon.errors import DataError, GuerdonError, boundary
from guerdon.types import Episode

QUEUED_EPISODES = 4
"""How many episodes may wait for the background thread before `add` blocks."""


class _Job(NamedTuple):
    episode: Episode
    columns: Columns


class EpisodeWriter:
    """Appends episodes to the data set at `root`. Use it as a context manager, from one thread."""

    def __init__(
        self,
        root: str | Path,
        *,
        fps: int = 20,
        camera: str = "main",
        video: bool = False,
        robot_type: str = "unknown",
        flush_every: int = 10,
        only_success: bool = False,
    ) -> None:
        """Open or create the data set and start the background thread.

        Args:
            root: folder of the data set; created when missing.
            fps: rows per second of the episodes.
            camera: name of the camera, stored as `observation.images.<camera>`.
            video: frames as MP4 (small, lossy, needs the `video` extra) instead of PNG in Parquet (exact).
            robot_type: free text for `info.json`.
            flush_every: episodes between two flushes; a kill loses fewer than this, plus those still queued.
            only_success: keep only episodes whose outcome is True.

        Raises:
            DataError: an argument is out of range, another writer is at work, or `root` holds something else.
            MissingDependencyError: `video` without PyAV.
        """
        if fps < 1 or flush_every < 1:
            raise DataError(f"fps and flush_every must be at least 1, got {fps} and {flush_every}")
        if video:
            require_av()
        self._root = Path(root)
        self._key = layout.camera_key(camera)
        self._fps = fps
        self._video = video
        self._flush_every = flush_every
        self._only_success = only_success
        with boundary(DataError, f"cannot open {self._root} for writing"):
            self._root.mkdir(parents=True, exist_ok=True)
            self._lock: int | None = lock(self._root)
            try:
                self._progress: Progress = resume(self._root, fps=fps, robot_type=robot_type)
                if self._progress.stale:
                    self._write_totals()
            except BaseException:
                os.close(self._lock)
                raise
        self._features = self._progress.features
        self._ids = set(self._progress.ids)
        self._episodes, self._frames = self._progress.episodes, self._progress.frames
        self._shard: Shard | None = None
        self._error: GuerdonError | None = None
        self._queue: queue.Queue[_Job | threading.Event | None] = queue.Queue(QUEUED_EPISODES)
        self._thread = threading.Thread(target=self._work, name="guerdon-episode-writer", daemon=True)
        self._thread.start()

    @property
    def num_episodes(self) -> int:
        """Episodes in the data set, counting those that wait to be written."""
        return self._episodes

    @property
    def num_frames(self) -> int:
        """Rows of those episodes."""
        return self._frames

    @property
    def ids(self) -> frozenset[str]:
        """Ids of those episodes."""
        return frozenset(self._ids)

    @property
    def success_by_row(self) -> bool | None:
        """Whether its episodes say of every row whether it is a success; None while there is no episode."""
        return None if self._features is None else layout.SUCCESS in self._features

    def __contains__(self, episode_id: str) -> bool:
        return episode_id in self._ids

    def add(self, episode: Episode) -> None:
        """Check an episode and queue it; blocks only while the queue is full. Do not change its arrays after.

        Args:
            episode: with the same columns and shapes as the data set's other episodes; without texts.

        Raises:
            DataError: the episode does not fit, its id is taken, its row 0 is no reset, its meta is no JSON.
            GuerdonError: an earlier episode could not be written.
        """
        if self._lock is None:
            raise ValueError(f"the writer of {self._root} is closed")
        self._raise_error()
        if self._only_success and episode.outcome is not True:
            return
        features = layout.features_of(episode, self._key, video=self._video, fps=self._fps)
        self._check(episode, features)
        columns = to_rows(episode)
        self._features = self._features or features
        self._ids.add(episode.id)
        self._episodes += 1
        self._frames += len(episode)
        self._queue.put(_Job(episode, columns))

    def flush(self) -> None:
        """Wait until every episode added so far is on the disk.

        Raises:
            GuerdonError: one of them could not be written.
        """
        if self._lock is not None:
            written = threading.Event()
            self._queue.put(written)
            written.wait()
        self._raise_error()

    def close(self) -> None:
        """Flush, stop the thread and free the root. Closing twice does nothing.

        Raises:
            GuerdonError: an episode could not be written.
        """
        if self._lock is None:
            return
        self._queue.put(None)
        self._thread.join()
        os.close(self._lock)
        self._lock = None
        self._raise_error()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.close()
        except GuerdonError:
            return  # the exception in flight is the one to see

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _check(self, episode: Episode, features: layout.Features) -> None:
        if self._features is not None:
            have = {name: (f["dtype"], list(f["shape"])) for name, f in self._features.items()}
            new = {name: (f["dtype"], list(f["shape"])) for name, f in features.items()}
            if have != new:
                names = sorted(name for name in {*have, *new} if have.get(name) != new.get(name))
                detail = "; ".join(f"{name}: {have.get(name)} there, {new.get(name)} here" for name in names)
                raise DataError(f"episode {episode.id!r} does not fit {self._root}: {detail}; use another root")
        if episode.id in self._ids:
            raise DataError(f"episode id {episode.id!r} is already in {self._root}: give each episode its own id")
        with boundary(DataError, f"episode {episode.id!r}: meta must be plain JSON values and texts valid Unicode"):
            json.dumps(dict(episode.meta))
            f"{episode.id}{episode.task}".encode()

    def _work(self) -> None:
        """The background thread: encode; publish every `flush_every` episodes, on request, at the end."""
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                self._attempt(self._publish)
                item.set()
            else:
                job = item
                self._attempt(lambda job=job: self._append(job))  # type: ignore[misc]
        self._attempt(self._publish)

    def _attempt(self, action: Callable[[], None]) -> None:
        """Do it unless something failed before; keep the error for the caller's thread."""
        if self._error is None:
            try:
                with boundary(DataError, f"writing episodes to {self._root} failed"):
                    action()
            except GuerdonError as exc:
                self._error = exc

    def _append(self, job: _Job) -> None:
        progress, episode = self._progress, job.episode
        if progress.features is None:
            progress.features = layout.features_of(episode, self._key, video=self._video, fps=self._fps)
            self._write_info()
        if self._shard is None:
            self._shard = Shard(
                self._root,
                number=progress.next_shard,
                key=self._key,
                features=progress.features,
                fps=self._fps,
            )
        if episode.task not in progress.tasks:
            progress.tasks.append(episode.task)
        self._shard.append(
            episode,
            job.columns,
            episode_index=progress.episodes,
            first_index=progress.frames,
            task_index=progress.tasks.index(episode.task),
        )
        progress.episodes += 1
        progress.frames += len(episode)
        if len(self._shard.rows) >= self._flush_every:
            self._publish()

    def _publish(self) -> None:
        """Make the open shard part of the data set: data, tasks, index (now it counts), then totals."""
        shard, progress = self._shard, self._progress
        if shard is None:
            return
        shard.publish_data()
        index.save_tasks(self._root, progress.tasks)
        shard.publish_index()
        progress.next_shard += 1
        progress.stats = merge([progress.stats, *shard.stats])
        self._shard = None
        self._write_totals()

    def _write_totals(self) -> None:
        """`stats.json` and `info.json`, which repeat what the index shards say."""
        stats = {
            name: {statistic: value.tolist() for statistic, value in group.items()}
            for name, group in self._progress.stats.items()
        }
        write_json(self._root / layout.STATS_PATH, stats)
        self._write_info()

    def _write_info(self) -> None:
        progress = self._progress
        assert progress.features is not None
        info = layout.info_json(
            progress.features,
            fps=self._fps,
            robot_type=progress.robot_type,
            episodes=progress.episodes,
            frames=progress.frames,
            tasks=len(progress.tasks),
        )
        write_json(self._root / layout.INFO_PATH, info)
