"""What a root already holds, so that a writer goes on after it.

After a kill, a root may hold shards that no index row points to; they and half-written files are removed
here, under the writer's lock, and only when the whole index is readable. This module writes no episode.

    progress = resume(root, fps=20, robot_type="unknown")
    print(progress.episodes, progress.next_shard)
"""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from guerdon.episodes import index, layout
from guerdon.episodes.files import PARTIAL
from guerdon.episodes.stats import Stats, merge
from guerdon.errors import DataError, boundary

_SHARD = re.compile(r"chunk-(\d+)/file-(\d+)\.(parquet|mp4)$")


@dataclass
class Progress:
    """What is on disk and in the open shard.

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


def lock(root: Path) -> int:
    """Take the only writer's place in `root`; close the returned file descriptor to give it back.

    Raises:
        DataError: another writer has it.
    """
    handle = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise DataError(f"{root} is being written by another writer: wait for it or choose another root") from None
    return handle


def resume(root: Path, *, fps: int, robot_type: str) -> Progress:
    """What `root` holds, after removing what a killed writer left behind.

    Args:
        root: an existing folder.
        fps: must be the data set's.
        robot_type: must be the data set's, unless it is `unknown`.

    Raises:
        DataError: the data set does not fit, was written by another tool, or its index cannot be read.
    """
    if not (root / layout.INFO_PATH).exists():
        foreign = [*root.glob("data/chunk-*/*.parquet"), *index.index_files(root)]
        if foreign:
            raise DataError(f"{root} holds {foreign[0]} but no {layout.INFO_PATH}: choose another root")
        return Progress(robot_type=robot_type)
    info = layout.load_info(root)
    if info.fps != fps:
        raise DataError(f"{root} has {info.fps} fps, asked for {fps}: pass fps={info.fps} or choose another root")
    if robot_type not in ("unknown", info.robot_type):
        raise DataError(f"{root} has robot_type {info.robot_type!r}, asked for {robot_type!r}: choose another root")
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
    return Progress(
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
