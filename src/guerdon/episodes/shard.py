"""One flush of the writer: a data shard, its video shard, and the index shard that points to them.

Episodes are encoded as they arrive, into files that no reader looks at; nothing appears under a final name
before `publish_data` and `publish_index`, in this order: the index shard is what makes the episodes part of
the data set. This module knows neither threads nor what was written before.

    shard = Shard(root, number=0, key="observation.images.main", features=features, fps=20)
    shard.append(episode, columns, episode_index=0, first_index=0, task_index=0)
    shard.publish_data()
    shard.publish_index()
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from guerdon.episodes import index, layout
from guerdon.episodes.files import partial, publish, write_table
from guerdon.episodes.images import encode_png
from guerdon.episodes.rows import Columns
from guerdon.episodes.stats import Stats, image_stats, vector_stats
from guerdon.episodes.video import VideoWriter
from guerdon.errors import naming
from guerdon.types import ByteArray, Episode


class Shard:
    """The episodes between two flushes, on their way to the disk."""

    def __init__(self, root: Path, *, number: int, key: str, features: layout.Features, fps: int) -> None:
        """Open nothing yet.

        Args:
            root: of the data set.
            number: running number of this shard.
            key: feature key of the camera.
            features: of the data set.
            fps: rows per second.
        """
        self.where = layout.place(number)
        self.rows: list[dict[str, Any]] = []
        self.stats: list[Stats] = []
        self._key = key
        self._features = features
        self._fps = fps
        self._schema = layout.data_schema(features)
        self._data_path = layout.shard_path(root, layout.DATA_PATH, self.where)
        self._video_path = layout.shard_path(root, layout.VIDEO_PATH, self.where, video_key=key)
        self._index_path = layout.shard_path(root, layout.EPISODES_PATH, self.where)
        self._data: pq.ParquetWriter | None = None
        self._video: VideoWriter | None = None

    def append(
        self, episode: Episode, columns: Columns, *, episode_index: int, first_index: int, task_index: int
    ) -> None:
        """Encode one episode.

        Args:
            episode: with the columns that the features name.
            columns: `to_rows(episode)`.
            episode_index: of this episode in the data set.
            first_index: of its first row in the data set.
            task_index: of its task.
        """
        length = len(episode)
        steps = np.arange(length, dtype=np.int64)
        columns = columns | {
            "timestamp": (steps / self._fps).astype(np.float32),
            "frame_index": steps,
            "episode_index": np.full(length, episode_index, dtype=np.int64),
            "index": steps + first_index,
            "task_index": np.full(length, task_index, dtype=np.int64),
        }
        stats = {name: vector_stats(column) for name, column in columns.items()}
        row: dict[str, Any] = {
            "episode_index": episode_index,
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
        if episode.frames is not None:
            stats[self._key] = image_stats(episode.frames)
            if self._features[self._key]["dtype"] == "video":
                row |= self._append_video(episode.frames)
        self._append_rows(columns, episode.frames)
        self.rows.append(row | index.stats_columns(stats))
        self.stats.append(stats)

    def _append_video(self, frames_T_H_W_C: ByteArray) -> dict[str, Any]:
        if self._video is None:
            height, width = frames_T_H_W_C.shape[1:3]
            self._video = VideoWriter(partial(self._video_path), height=height, width=width, fps=self._fps)
        start, stop = self._video.add(frames_T_H_W_C)
        prefix = f"videos/{self._key}"
        return {
            f"{prefix}/chunk_index": self.where[0],
            f"{prefix}/file_index": self.where[1],
            f"{prefix}/from_timestamp": start,
            f"{prefix}/to_timestamp": stop,
        }

    def _append_rows(self, columns: Columns, frames: ByteArray | None) -> None:
        arrays = []
        for field in self._schema:
            if field.name == self._key and frames is not None:
                blobs = pa.array(encode_png(frames), pa.binary())
                paths = pa.nulls(len(frames), pa.string())
                arrays.append(pa.StructArray.from_arrays([blobs, paths], fields=list(field.type)))
            elif pa.types.is_fixed_size_list(field.type):
                flat = pa.array(columns[field.name].reshape(-1), field.type.value_type)
                arrays.append(pa.FixedSizeListArray.from_arrays(flat, field.type.list_size))
            else:
                arrays.append(pa.array(columns[field.name].reshape(-1), field.type))
        if self._data is None:
            self._data = pq.ParquetWriter(
                partial(self._data_path),
                self._schema,
                compression="snappy",
                use_dictionary=False,
                write_page_checksum=True,
            )
        # One row group per episode: a reader fetches one episode without its neighbours.
        with naming(self._data_path):
            self._data.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def publish_data(self) -> None:
        """Give the data and video shards their names. No reader sees the episodes yet."""
        if self._data is not None:
            with naming(self._data_path):
                self._data.close()
            publish(self._data_path)
        if self._video is not None:
            self._video.close()
            publish(self._video_path)

    def publish_index(self) -> None:
        """Write the index shard: from here on the episodes are part of the data set."""
        schema = index.index_schema(self._features)
        write_table(self._index_path, pa.Table.from_pylist(self.rows, schema=schema))
