"""`EpisodeWriter`: writes episodes to a LeRobotDataset v3 in the background, safe against a kill at any moment.

`add` only checks and queues; one thread encodes images and writes. Episodes are encoded as they arrive, into
`*.partial` files. Each flush publishes a new data shard and video shard and then the index shard that points to them:
only the index shard makes the episodes part of the data set. So a reader always sees whole episodes, and a killed
writer loses at most what was added since its last flush. Reopening a root appends; what a killed writer left behind
(partial files, shards without an index row) is removed first, under the writer's lock, and only when the whole index is
readable.

    with EpisodeWriter("episodes", fps=20) as writer:
        writer.add(episode)
    print(writer.num_episodes)
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from guerdon.episodes import index, layout
from guerdon.episodes.images import encode_png
from guerdon.episodes.index import Stats, image_stats, merge, vector_stats
from guerdon.episodes.layout import Columns, to_rows
from guerdon.episodes.video import VideoWriter, require_av
from guerdon.errors import DataError, GuerdonError, boundary, naming
from guerdon.files.atomic import publish, write_parquet, write_text
from guerdon.types import ByteArray, Episode

PARTIAL = ".partial"
QUEUED_EPISODES = 4
"""How many episodes may wait for the background thread before `add` blocks."""
_SHARD = re.compile(r"chunk-(\d+)/file-(\d+)\.(parquet|mp4)$")


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
            camera: name of the camera of `frames`, stored as `observation.images.<camera>`; those of `views` have their
                own names.
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
            self._lock: int | None = _lock(self._root)
            try:
                self._state = _existing(self._root, fps=fps, robot_type=robot_type)
                if self._state.stale:
                    self._write_totals()
            except BaseException:
                os.close(self._lock)
                raise
        self._features = self._state.features
        self._ids = set(self._state.ids)
        self._episodes, self._frames = self._state.episodes, self._state.frames
        self._shard: _Shard | None = None
        self._error: GuerdonError | None = None
        self._queue: queue.Queue[tuple[Episode, Columns] | threading.Event | None] = queue.Queue(QUEUED_EPISODES)
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
            DataError: the episode does not fit, its id is taken, its row 0 is not a reset, its meta is not JSON.
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
        self._queue.put((episode, columns))

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
        with suppress(GuerdonError):  # the exception in flight is the one to see
            self.close()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _check(self, episode: Episode, features: layout.Features) -> None:
        if self._features is not None:
            have, new = (
                {name: (f["dtype"], list(f["shape"])) for name, f in one.items()} for one in (self._features, features)
            )
            if have != new:
                names = sorted(name for name in {*have, *new} if have.get(name) != new.get(name))
                detail = "; ".join(f"{name}: {have.get(name)} there, {new.get(name)} here" for name in names)
                raise DataError(
                    f"episode {episode.id!r} does not fit {self._root}: {detail}; use another root", field=names[0]
                )
        if episode.id in self._ids:
            raise DataError(
                f"episode id {episode.id!r} is already in {self._root}: give each episode its own id", field="id"
            )
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
                self._attempt(partial(self._append, *item))
        self._attempt(self._publish)

    def _attempt(self, action: Callable[[], None]) -> None:
        """Run the action unless an earlier one failed; keep the error for the caller's thread."""
        if self._error is None:
            try:
                with boundary(DataError, f"writing episodes to {self._root} failed"):
                    action()
            except GuerdonError as exc:
                self._error = exc

    def _append(self, episode: Episode, columns: Columns) -> None:
        state = self._state
        if state.features is None:
            state.features = layout.features_of(episode, self._key, video=self._video, fps=self._fps)
            self._write_info()
        if self._shard is None:
            self._shard = _Shard(self._root, state, self._key, self._fps)
        if episode.task not in state.tasks:
            state.tasks.append(episode.task)
        self._shard.append(episode, columns, state)
        state.episodes += 1
        state.frames += len(episode)
        if len(self._shard.rows) >= self._flush_every:
            self._publish()

    def _publish(self) -> None:
        """Make the open shard part of the data set: data, tasks, index (now it counts), then totals."""
        shard, state = self._shard, self._state
        if shard is None:
            return
        shard.publish_data()
        index.save_tasks(self._root, state.tasks)
        shard.publish_index()
        state.next_shard += 1
        state.stats = merge([state.stats, *shard.stats])
        self._shard = None
        self._write_totals()

    def _write_totals(self) -> None:
        """`stats.json` and `info.json`, which repeat what the index shards say."""
        stats = {
            name: {statistic: value.tolist() for statistic, value in group.items()}
            for name, group in sorted(self._state.stats.items())  # a resumed writer has them in another order
        }
        _write_json(self._root / layout.STATS_PATH, stats)
        self._write_info()

    def _write_info(self) -> None:
        """`info.json`, in the order of its keys in LeRobot."""
        state = self._state
        assert state.features is not None
        has_video = any(feature["dtype"] == "video" for feature in state.features.values())
        info = {
            "codebase_version": layout.CODEBASE_VERSION,
            "robot_type": state.robot_type,
            "total_episodes": state.episodes,
            "total_frames": state.frames,
            "total_tasks": len(state.tasks),
            "chunks_size": layout.CHUNK_FILES,
            "data_files_size_in_mb": layout.DATA_FILE_MB,
            "video_files_size_in_mb": layout.VIDEO_FILE_MB,
            "fps": self._fps,
            "splits": {"train": f"0:{state.episodes}"},
            "data_path": layout.DATA_PATH,
            "video_path": layout.VIDEO_PATH if has_video else None,
            "features": state.features,
        }
        _write_json(self._root / layout.INFO_PATH, info)


def _write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=4, ensure_ascii=False))  # NaN is how LeRobot marks a missing statistic


def _partial(path: Path) -> Path:
    """Where `path` is written before it is complete; creates its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(path.name + PARTIAL)


class _Shard:
    """The episodes between two flushes: a data shard, its video shard, and the index shard that points to them.

    Args:
        root: of the data set.
        state: of the data set; the shard is its next one.
        key: feature key of the camera.
        fps: rows per second.
    """

    def __init__(self, root: Path, state: _DatasetState, key: str, fps: int) -> None:
        assert state.features is not None
        self.where, self._root = layout.place(state.next_shard), root
        self.rows: list[dict[str, Any]] = []
        self.stats: list[Stats] = []
        self._key, self._features, self._fps = key, state.features, fps
        self._schema = layout.data_schema(state.features)
        self._data_path = layout.shard_path(root, layout.DATA_PATH, self.where)
        self._index_path = layout.shard_path(root, layout.EPISODES_PATH, self.where)
        self._data: pq.ParquetWriter | None = None
        self._videos: dict[str, VideoWriter] = {}

    def append(self, episode: Episode, columns: Columns, state: _DatasetState) -> None:
        """Encode the episode that follows those of the state, whose rows are `to_rows(episode)`."""
        length, number, first_index = len(episode), state.episodes, state.frames
        steps = np.arange(length, dtype=np.int64)
        columns = columns | {
            "timestamp": (steps / self._fps).astype(np.float32),
            "frame_index": steps,
            "episode_index": np.full(length, number, dtype=np.int64),
            "index": steps + first_index,
            "task_index": np.full(length, state.tasks.index(episode.task), dtype=np.int64),
        }
        stats = {name: vector_stats(column) for name, column in columns.items()}
        row: dict[str, Any] = {
            "episode_index": number,
            "tasks": [episode.task],
            "length": length,
            "data/chunk_index": self.where[0],
            "data/file_index": self.where[1],
            "dataset_from_index": first_index,
            "dataset_to_index": first_index + length,
            "meta/episodes/chunk_index": self.where[0],
            "meta/episodes/file_index": self.where[1],
            index.ID: episode.id,
            index.OUTCOME: None if episode.outcome is None else bool(episode.outcome),
            index.META: json.dumps(dict(episode.meta)),
            index.SUCCESS_AT_RESET: None if episode.success is None else bool(episode.success[0]),
        }
        pictures = layout.pictures_of(episode, self._key)
        for key, frames in pictures.items():
            stats[key] = image_stats(frames)
            if self._features[key]["dtype"] == "video":
                row |= self._append_video(key, frames)
        self._append_rows(columns, pictures)
        self.rows.append(row | index.stats_columns(stats))
        self.stats.append(stats)

    def _append_video(self, key: str, frames_T_H_W_C: ByteArray) -> dict[str, Any]:
        if key not in self._videos:
            height, width = frames_T_H_W_C.shape[1:3]
            path = _partial(self._video_path(key))
            self._videos[key] = VideoWriter(path, height=height, width=width, fps=self._fps)
        start, stop = self._videos[key].add(frames_T_H_W_C)
        names = (f"videos/{key}/{name}" for name in index.SPAN)
        return dict(zip(names, (*self.where, start, stop), strict=True))

    def _video_path(self, key: str) -> Path:
        return layout.shard_path(self._root, layout.VIDEO_PATH, self.where, video_key=key)

    def _append_rows(self, columns: Columns, pictures: dict[str, ByteArray]) -> None:
        arrays = []
        for column in self._schema:
            if column.name in pictures:
                frames = pictures[column.name]
                blobs = pa.array(encode_png(frames), pa.binary())
                paths = pa.nulls(len(frames), pa.string())
                arrays.append(pa.StructArray.from_arrays([blobs, paths], fields=list(column.type)))
            elif pa.types.is_fixed_size_list(column.type):
                flat = pa.array(columns[column.name].reshape(-1), column.type.value_type)
                arrays.append(pa.FixedSizeListArray.from_arrays(flat, column.type.list_size))
            else:
                arrays.append(pa.array(columns[column.name].reshape(-1), column.type))
        if self._data is None:
            self._data = pq.ParquetWriter(
                _partial(self._data_path), self._schema, use_dictionary=False, write_page_checksum=True
            )
        # One row group per episode: a reader fetches one episode without its neighbours.
        with naming(self._data_path):
            self._data.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def publish_data(self) -> None:
        """Give the data and video shards their names. No reader sees the episodes yet."""
        if self._data is not None:
            with naming(self._data_path):
                self._data.close()
            publish(_partial(self._data_path), self._data_path)
        for key, video in self._videos.items():
            video.close()
            publish(_partial(self._video_path(key)), self._video_path(key))

    def publish_index(self) -> None:
        """Write the index shard: from here on the episodes are part of the data set."""
        table = pa.Table.from_pylist(self.rows, schema=index.index_schema(self._features))
        write_parquet(self._index_path, table)


@dataclass
class _DatasetState:
    """What is on the disk and in the open shard.

    Attributes:
        features: None before the first episode.
        episodes: how many.
        frames: rows of all episodes.
        next_shard: number of the next shard.
        tasks: sentences by task index.
        ids: of the episodes.
        stats: over all episodes.
        robot_type: free text.
        stale: `info.json` does not count all episodes, because a kill came before it was rewritten.
    """

    features: layout.Features | None = None
    episodes: int = 0
    frames: int = 0
    next_shard: int = 0
    tasks: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    stats: Stats = field(default_factory=dict)
    robot_type: str = "unknown"
    stale: bool = False


def _lock(root: Path) -> int:
    """Lock `root` for its only writer; closing the returned file descriptor unlocks it.

    Raises:
        DataError: another writer has the lock.
    """
    handle = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise DataError(f"{root} is being written by another writer: wait for it or choose another root") from None
    return handle


def _existing(root: Path, *, fps: int, robot_type: str) -> _DatasetState:
    """What `root` holds, after removing what a killed writer left behind.

    Raises:
        DataError: fps or robot type differ, another tool wrote the data set, or its index cannot be read.
    """
    if not (root / layout.INFO_PATH).exists():
        foreign = [*root.glob("data/chunk-*/*.parquet"), *index.index_files(root)]
        if foreign:
            raise DataError(f"{root} holds {foreign[0]} but no {layout.INFO_PATH}: choose another root")
        return _DatasetState(robot_type=robot_type)
    info = layout.load_info(root)
    if info.fps != fps:
        raise DataError(
            f"{root} has {info.fps} fps, asked for {fps}: pass fps={info.fps} or choose another root", field="fps"
        )
    if robot_type not in ("unknown", info.robot_type):
        raise DataError(
            f"{root} has robot_type {info.robot_type!r}, asked for {robot_type!r}: choose another root",
            field="robot_type",
        )
    for path in index.index_files(root):
        with boundary(DataError, f"{path} cannot be read; choose another root"):
            names = pq.read_schema(path).names
        if index.ID not in names:
            raise DataError(f"{root} was written by another tool: read it and write its episodes to a new root")
    entries, skipped = index.load_index(root, info)
    if skipped:
        raise DataError(f"cannot append to {root}: {skipped[0]}; choose another root")
    if info.total_episodes > len(entries):
        claim = f"claims {info.total_episodes} episodes but its index holds {len(entries)}"
        raise DataError(f"{root} {claim}: choose another root")
    last = max((entry.data[0] * layout.CHUNK_FILES + entry.data[1] for entry in entries), default=-1)
    _remove_leftovers(root, last)
    return _DatasetState(
        features={name: dict(feature) for name, feature in info.features.items()} if entries else None,
        episodes=len(entries),
        frames=sum(entry.length for entry in entries),
        next_shard=last + 1,
        tasks=index.load_tasks(root) if entries else [],
        ids={entry.id for entry in entries},
        stats=merge(index.load_episode_stats(root)),
        robot_type=info.robot_type,
        stale=info.total_episodes != len(entries),
    )


def _remove_leftovers(root: Path, last: int) -> None:
    """Remove half-written files, and shards after the last one that the index points to."""
    for path in [path for folder in ("data", "meta", "videos") for path in sorted((root / folder).rglob("*"))]:
        shard = _SHARD.search(path.as_posix())
        orphan = shard and int(shard[1]) * layout.CHUNK_FILES + int(shard[2]) > last
        if path.is_file() and (path.name.endswith(PARTIAL) or orphan):
            path.unlink()
