"""Reads episodes of any LeRobotDataset v3, written by guerdon or by other tools.

What cannot be read is reported and skipped; only a root without any readable episode is an error. A shard is opened
once, and only the row groups that an episode needs are read, with page checksums where the file has them. Foreign files
are bounded: no path leads out of the root, images are PNG or JPEG, sizes are capped.

    for episode in read_episodes("episodes", only_success=True):
        print(episode.id, episode.task, len(episode))
    print(summarize("episodes"))
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from guerdon.episodes import layout
from guerdon.episodes.images import MAX_EPISODE_BYTES, check_images, decode_images, grey_depth, rgb_frames
from guerdon.episodes.index import Entry, Skipped, load_index, misplaced, video_file
from guerdon.episodes.layout import Columns, Info, from_rows, last_success
from guerdon.episodes.outcomes import Outcomes
from guerdon.episodes.targets import row_steps
from guerdon.episodes.video import count_frames, decode_video, iterate_video
from guerdon.errors import DataError, boundary
from guerdon.files.parquet_bounds import BoundedParquet
from guerdon.types import BoolArray, ByteArray, Episode

_ROW_COLUMNS = (layout.STATE, layout.ACTION, layout.REWARD, layout.SUCCESS)
_POSITION_COLUMNS = ("index", "episode_index", "task_index")
_NO_TIMESTAMP = "has no column timestamp, by which video frames are found"
_log = logging.getLogger(__name__)

OnSkip = Callable[[Skipped], None]


def _log_each_cause_once() -> OnSkip:
    """Logs what is skipped, each cause once: a broken shard has many episodes."""
    logged: set[tuple[Path, str]] = set()

    def log(skipped: Skipped) -> None:
        if (cause := (skipped.path, skipped.reason)) not in logged:
            logged.add(cause)
            _log.warning("%s (other episodes that this costs are not listed)", skipped)

    return log


@dataclass(frozen=True)
class DatasetSummary:
    """What a data set holds.

    Attributes:
        episodes: that can be read, with the frames of every camera.
        frames: rows of those episodes.
        successes: those whose outcome is True.
        tasks: sentences, in order of appearance.
        cameras: names.
        fps: rows per second.
        skipped: what cannot be read.
    """

    episodes: int
    frames: int
    successes: int
    tasks: tuple[str, ...]
    cameras: tuple[str, ...]
    fps: float
    skipped: tuple[Skipped, ...]


def read_episodes(
    root: str | Path,
    *,
    camera: str | None = None,
    views: Sequence[str] = (),
    with_frames: bool = True,
    only_success: bool = False,
    task: str | None = None,
    limit: int | None = None,
    on_skip: OnSkip | None = None,
    outcomes: Outcomes | None = None,
) -> Iterator[Episode]:
    """The episodes of a data set one by one, in order.

    In data of other tools, the outcome is `next.success` of the last row where that column exists, else None. A null is
    unknown: an episode has the columns that are known in all its rows.

    Args:
        root: folder that holds `meta/info.json`.
        camera: name or feature key; needed only when there are several.
        views: names of further cameras, whose frames become `Episode.views`.
        with_frames: decode images; without, the episodes have no frames.
        only_success: only episodes whose outcome is True.
        task: only episodes with exactly this task sentence.
        limit: stop after so many.
        on_skip: called for everything that cannot be read; by default a warning is logged.
        outcomes: of the episodes, where the data set does not say them (`guerdon.episodes.outcomes`).

    Raises:
        DataError: no data set there, no such camera, outcomes that are not those of its episodes, or (at the end only)
            not one episode could be read.
        MissingDependencyError: the frames are MP4 and PyAV is not installed.
    """
    folder = Path(root)
    info = layout.load_info(folder)
    key, further = None, dict[str, str]()
    if with_frames:
        key = _camera(folder, info, camera)
        further = {name: str(_camera(folder, info, name)) for name in views}
    if key is None:
        _need_rows(folder, info)
    skip = on_skip or _log_each_cause_once()
    entries = _entries(folder, info, skip, _cameras(key, further), outcomes)
    if task is not None:
        entries = [entry for entry in entries if entry.task == task]
    if only_success:
        entries = [entry for entry in entries if entry.outcome is True or not entry.outcome_known]
    if limit == 0:
        entries = []
    found = _read(folder, info, entries, key, further, only_success=only_success, limit=limit, skip=skip)
    return found if outcomes is None else _with_outcomes(found, outcomes, folder)


def read_entries(root: Path, info: Info, entries: Sequence[Entry]) -> Iterator[Episode]:
    """The episodes of entries of the index, without frames; a warning says what cannot be read.

    Args:
        root: of the data set.
        info: of the data set.
        entries: from `load_index`.

    Raises:
        DataError: the data set holds nothing but images, or (at the end only) not one episode could be read.
    """
    _need_rows(root, info)
    return _read(root, info, entries, None, {}, only_success=False, limit=None, skip=_log_each_cause_once())


def _need_rows(root: Path, info: Info) -> None:
    """Refuse a data set that has nothing without its frames.

    Raises:
        DataError: it is one.
    """
    if not any(name in info.features for name in _ROW_COLUMNS):
        raise DataError(f"{root} holds nothing but images: read it with frames")


def _with_outcomes(episodes: Iterable[Episode], outcomes: Outcomes, root: Path) -> Iterator[Episode]:
    """Episodes whose outcomes are those of a file; their rows are marked only where that was asked for.

    Raises:
        DataError: the success of their rows contradicts it.
    """
    for episode in episodes:
        if episode.success is not None:
            if _say_otherwise(episode.success, episode):
                raise outcomes.contradicts([episode.id], root)
            yield episode
        elif outcomes.at_end:
            success = np.zeros(len(episode), dtype=np.bool_)
            success[-1] = bool(episode.outcome)
            yield replace(episode, success=success)
        else:
            yield episode


def _say_otherwise(success_T: BoolArray, episode: Episode) -> bool:
    """Whether the success of rows contradicts the outcome of their episode.

    A success may end again before the episode does, and lie between two rows where not every step has one.
    """
    if not episode.outcome:
        return bool(success_T[-1])
    return not success_T.any() and bool((np.diff(row_steps(episode)) == 1).all())


def _read(
    root: Path,
    info: Info,
    entries: Sequence[Entry],
    key: str | None,
    views: Mapping[str, str],
    *,
    only_success: bool,
    limit: int | None,
    skip: OnSkip,
) -> Iterator[Episode]:
    given, readable = 0, 0
    names = [name for name in (*_ROW_COLUMNS, "timestamp", *_cameras(key, views)) if name in info.features]
    for entry, table in _tables(root, info, entries, names, skip):
        try:
            columns = _row_columns(table, info)
            outcome = entry.outcome if entry.outcome_known else last_success(columns)
            wanted = outcome is True or not only_success
            if wanted:
                episode = _episode(root, info, entry, table, columns, key, views, outcome)
        except DataError as exc:
            path = video_file(root, info, entry, key) or layout.shard_path(root, info.data_path, entry.data)
            skip(Skipped(path, str(exc), entry.index))
            continue
        readable += 1
        if wanted:
            yield episode
            given += 1
            if given == limit:
                return
    if entries and not readable:
        raise _unreadable(root)


def _cameras(key: str | None, views: Mapping[str, str]) -> list[str]:
    """The feature keys of all cameras whose frames are asked for."""
    return [*views.values()] if key is None else [key, *views.values()]


def _episode(
    root: Path,
    info: Info,
    entry: Entry,
    table: pa.Table,
    columns: Columns,
    key: str | None,
    views: Mapping[str, str],
    outcome: bool | None,
) -> Episode:
    """The episode whose rows a table has.

    Raises:
        DataError: its frames cannot be read, or its rows make no episode.
    """
    pictures = {one: _frames(root, info, entry, table, one, columns) for one in _cameras(key, views)}
    further = {name: shown for name, view in views.items() if (shown := pictures[view]) is not None}
    with boundary(DataError, f"rows of episode {entry.index} make no episode"):
        episode = from_rows(
            columns,
            id=entry.id,
            task=entry.task,
            frames=None if key is None else pictures[key],
            outcome=outcome,
            success_at_reset=entry.success_at_reset,
            meta=entry.meta,
        )
        return replace(episode, views=further) if further else episode


def _frames(root: Path, info: Info, entry: Entry, table: pa.Table, key: str, columns: Columns) -> ByteArray | None:
    """The frames of a camera; None where the index or every row says that the episode has none of it."""
    if info.features[key]["dtype"] == "video":
        video = video_file(root, info, entry, key)
        return None if video is None else decode_video(video, _times(entry, key, columns, info.fps), fps=info.fps)
    if _none_of(table, key):
        return None
    if info.features[key]["dtype"] == "image":
        return decode_images(_blobs(table, key))
    return _from_table(table, info, key)


def frames_of(root: Path, entry: Entry, key: str, *, start: int = 0) -> Iterator[ByteArray]:
    """The frames of one camera of an episode, one by one as they are decoded; none where the episode has none of it.

    Args:
        root: of the data set.
        entry: of its index.
        key: feature key of the camera.
        start: row to begin with.

    Yields:
        (H, W, 3) uint8 for each row.

    Raises:
        DataError: the rows or the frames cannot be read.
        MissingDependencyError: the frames are MP4 and PyAV is not installed.
    """
    info, skipped = layout.load_info(root), list[Skipped]()
    names = [name for name in (*_ROW_COLUMNS, "timestamp", key) if name in info.features]
    table = next((table for _, table in _tables(root, info, [entry], names, skipped.append)), None)
    if table is None:
        raise DataError(str(skipped[0]))
    if info.features[key]["dtype"] == "video":
        video = video_file(root, info, entry, key)
        if video is not None:
            times = _times(entry, key, _row_columns(table, info), info.fps)
            yield from iterate_video(video, times[start:], fps=info.fps)
        return
    if _none_of(table, key):
        return
    if info.features[key]["dtype"] == "image":
        for t in range(start, len(table)):
            yield decode_images(_blobs(table.slice(t, 1), key))[0]
        return
    yield from _from_table(table, info, key)[start:]


def _none_of(table: pa.Table, key: str) -> bool:
    """Whether every row of a table says that it has no picture of a camera, whose column it must have."""
    if key not in table.column_names:
        raise DataError(f"has no column {key}", field=key)
    return bool(table[key].null_count == len(table))


def _times(entry: Entry, key: str, columns: Columns, fps: float) -> NDArray[np.float64]:
    """(T,) seconds into the video file of each row of an episode.

    Raises:
        DataError: the time stamps are missing, do not increase, or lie outside the episode's part of the video.
    """
    if "timestamp" not in columns:
        raise DataError(_NO_TIMESTAMP, field="timestamp")
    stamps_T = columns["timestamp"].astype(np.float64).reshape(-1)
    span = entry.videos[key]
    if not (np.diff(stamps_T) > 0).all():
        raise DataError(
            "its time stamps do not increase, so that they do not tell its video frames apart", field="timestamp"
        )
    if not (stamps_T[0] > -0.5 / fps and stamps_T[-1] < span.stop - span.start - 0.5 / fps):
        raise DataError(
            f"its time stamps run from {stamps_T[0]:.3f} to {stamps_T[-1]:.3f} s, but its part of the video is "
            f"{span.stop - span.start:.3f} s long: time stamps begin at 0 in each episode, and a part (from_timestamp "
            "to to_timestamp in the index) holds a frame for each",
            field="timestamp",
        )
    return span.start + stamps_T


def _blobs(table: pa.Table, key: str) -> list[bytes | None]:
    """The encoded images of a camera; a `DataError` where its column holds none."""
    with boundary(DataError, f"column {key} holds no encoded images"):
        blobs: list[bytes | None] = table[key].combine_chunks().field("bytes").to_pylist()
        return blobs


def _from_table(table: pa.Table, info: Info, key: str) -> ByteArray:
    """The frames of a camera whose images are stored as arrays."""
    return rgb_frames(_columns(table, info, [key])[key])


@lru_cache(maxsize=64)
def _is_depth(root: Path, data_path: str, key: str) -> bool:
    """Whether the first picture of a feature has more than 8 bits per pixel; said once."""
    for path in sorted(root.glob(re.sub(r"\{[^}]*\}", "*", data_path))):
        with boundary(DataError, f"{path} cannot be read"):
            rows = BoundedParquet(path).rows(kept=False, columns=[key], together=1)
            blob = next((row[key]["bytes"] for row in rows if isinstance(row, dict) and row[key]), None)
        if blob:
            found = grey_depth(blob)
            if found:
                _log.warning("%s: %s holds pictures of more than 8 bits, such as depth: it is not a camera", root, key)
            return found
    return False


def cameras_of(root: Path, info: Info) -> dict[str, str]:
    """Short name of each camera to its feature key; depth maps are none.

    Raises:
        DataError: a data shard cannot be read.
    """
    features = info.features
    return {
        name: key
        for name, key in info.cameras().items()
        if not (
            features[key]["dtype"] == "image"
            and layout.one_channel(features[key])
            and _is_depth(root, info.data_path, key)
        )
    }


def camera_key(root: str | Path, camera: str | None = None) -> str | None:
    """The feature key of a camera of a data set, by its name or key, or of the only one; None where there is none.

    Raises:
        DataError: no data set there, no such camera, or several and none was named.
    """
    return _camera(Path(root), layout.load_info(Path(root)), camera)


def _camera(root: Path, info: Info, camera: str | None) -> str | None:
    cameras = cameras_of(root, info)
    if camera is None:
        if len(cameras) > 1:
            raise DataError(
                f"{root} has several cameras: pass camera= one of {', '.join(sorted(cameras))} (train.<name>.camera of "
                "a study, env.camera of guerdon evaluate)"
            )
        return next(iter(cameras.values()), None)
    found = next((cameras[name] for name in layout.camera_names(camera) if name in cameras), None)
    if found is None:
        raise DataError(f"{root} has no camera {camera!r}; it has {', '.join(sorted(cameras)) or 'none'}")
    return found


def _entries(
    root: Path, info: Info, skip: OnSkip, cameras: Sequence[str] = (), outcomes: Outcomes | None = None
) -> list[Entry]:
    entries, skipped = load_index(root, info)
    skipped += misplaced(root, info, entries, cameras)
    lost = {part.episode for part in skipped}
    entries = [entry for entry in entries if entry.index not in lost]
    for part in skipped:
        skip(part)
    if not entries:
        raise _unreadable(root) if skipped else DataError(f"{root} has no episodes yet: collect some first")
    if outcomes is not None:
        return outcomes.given_to(entries, {part for part in lost if part is not None}, root)
    return entries


def _unreadable(root: Path) -> DataError:
    return DataError(f"nothing in {root} can be read: restore it from a copy, or collect the episodes again")


def summarize(root: str | Path) -> DatasetSummary:
    """Count what a data set holds and can be read of it, checking images and videos as far as that needs no pixels.

    Raises:
        DataError: no data set there, or nothing in it can be read.
        MissingDependencyError: it has MP4 files and PyAV is not installed.
    """
    folder = Path(root)
    info = layout.load_info(folder)
    skipped: list[Skipped] = []
    frame_count = cache(count_frames)
    episodes = frames = successes = 0
    tasks: dict[str, None] = {}
    cameras = cameras_of(folder, info)
    entries = _entries(folder, info, skipped.append, tuple(cameras.values()))
    for entry, table in _tables(folder, info, entries, _stored(info), skipped.append):
        lost = _missing_video(folder, info, entry, frame_count)
        if lost is not None:
            skipped.append(lost)
            continue
        try:
            columns = _checked(info, entry, table, cameras.values())
        except DataError as exc:
            skipped.append(Skipped(layout.shard_path(folder, info.data_path, entry.data), str(exc), entry.index))
            continue
        outcome = entry.outcome if entry.outcome_known else last_success(columns)
        episodes += 1
        frames += entry.length
        successes += outcome is True
        tasks[entry.task] = None
    if not episodes:
        raise _unreadable(folder)
    return DatasetSummary(episodes, frames, successes, tuple(tasks), tuple(cameras), info.fps, tuple(skipped))


def _checked(info: Info, entry: Entry, table: pa.Table, cameras: Iterable[str]) -> Columns:
    """The columns of an episode that `read_episodes` would give, its images checked.

    Raises:
        DataError: it would skip the episode.
    """
    columns = _row_columns(table, info)
    for key in cameras:
        if info.features[key]["dtype"] == "video":
            if key in entry.videos:
                _times(entry, key, columns, info.fps)
        elif _none_of(table, key):
            continue
        elif info.features[key]["dtype"] == "image":
            check_images(_blobs(table, key))
        else:
            _from_table(table, info, key)
    with boundary(DataError, f"rows of episode {entry.index} make no episode"):
        if any(name in columns for name in _ROW_COLUMNS):
            from_rows(columns, id=entry.id, task=entry.task)
    return columns


def _stored(info: Info) -> list[str]:
    return sorted(name for name, feature in info.features.items() if feature["dtype"] != "video")


def _missing_video(root: Path, info: Info, entry: Entry, frame_count: Callable[[Path], int]) -> Skipped | None:
    for key in entry.videos:
        path = video_file(root, info, entry, key)
        assert path is not None
        try:
            count = frame_count(path)
        except DataError as exc:
            return Skipped(path, str(exc), entry.index)
        if count < round(entry.videos[key].stop * info.fps):
            return Skipped(path, f"cut off after {count} frames", entry.index)
    return None


def dataset_hash(root: str | Path, outcomes: Outcomes | None = None) -> str:
    """SHA-256 over all that is readable: tasks, outcomes, meta, columns, encoded images and videos; in hex.

    The same episodes in the same order have the same hash, whatever the files are called, when they were
    written and (for images in Parquet) how they are spread over shards.

    Raises:
        DataError: no data set there, or nothing in it can be read.
    """
    folder = Path(root)
    info = layout.load_info(folder)
    names = [name for name in _stored(info) if name not in _POSITION_COLUMNS]
    marked = ["success at the end"] if outcomes is not None and outcomes.at_end else []
    digest = hashlib.sha256(json.dumps([info.fps, names, *marked]).encode())

    skip = _log_each_cause_once()

    @cache
    def file_digest(path: Path) -> bytes:
        with boundary(DataError, f"{path} cannot be read"), path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").digest()

    found = False
    entries = _entries(folder, info, skip, outcomes=outcomes)
    for entry, table in _tables(folder, info, entries, names, skip):
        found = True
        header = [entry.id, entry.task, entry.outcome, entry.success_at_reset, entry.length, dict(entry.meta)]
        digest.update(json.dumps(header, sort_keys=True).encode())
        for name in table.column_names:
            digest.update(_column_digest(table, info, name))
        for key in sorted(entry.videos):
            path = video_file(folder, info, entry, key)
            if path is not None and path.exists():
                digest.update(file_digest(path) + str(entry.videos[key].start).encode())
    if not found:
        raise _unreadable(folder)
    return digest.hexdigest()


def _column_digest(table: pa.Table, info: Info, name: str) -> bytes:
    digest = hashlib.sha256(name.encode())
    stored = table[name].combine_chunks()
    encoded = pa.types.is_struct(stored.type) and stored.type.get_field_index("bytes") >= 0
    if info.features[name]["dtype"] == "image" and encoded:
        for blob in stored.field("bytes").to_pylist():
            digest.update(hashlib.sha256(blob or b"").digest())
        return digest.digest()
    column = None if info.features[name]["dtype"] == "string" else _regular(table, info, name)
    if column is None:
        digest.update(json.dumps(table[name].to_pylist(), default=str).encode())
    else:
        digest.update(f"{column.dtype}{column.shape}".encode() + column.tobytes())
    return digest.digest()


def _regular(table: pa.Table, info: Info, name: str) -> NDArray[Any] | None:
    """A column of numbers as an array; None where it has nulls, or lists of another shape than declared."""
    try:
        column = _columns(table, info, [name])[name]
    except DataError:
        return None
    return None if column.dtype == object else column


class _DataShard:
    """One data shard, open for reading.

    Raises:
        DataError: it is missing, truncated or corrupt.
    """

    def __init__(self, path: Path) -> None:
        with boundary(DataError, "cannot be read"):
            self._file = BoundedParquet(path)
            self._names = set(self._file.schema.names)
            owners = self._file.table(columns=["episode_index"])
            self._owners = owners["episode_index"].to_numpy()
            self._ends = np.cumsum([group.rows for group in self._file.groups])

    def read(self, entry: Entry, names: Iterable[str]) -> pa.Table:
        """The rows of one episode, with those of the columns that the shard has.

        Raises:
            DataError: the rows are corrupt, not as many as the index says, or too large.
        """
        rows = np.flatnonzero(self._owners == entry.index)
        if len(rows) != entry.length or rows[-1] - rows[0] + 1 != len(rows):
            apart = "with others between them" if len(rows) == entry.length else f"its index says {entry.length}"
            raise DataError(f"holds {len(rows)} rows of episode {entry.index}, {apart}")
        first, last = (int(np.searchsorted(self._ends, row, side="right")) for row in (rows[0], rows[-1]))
        size = sum(group.bytes for group in self._file.groups[first : last + 1])
        if size > MAX_EPISODE_BYTES:
            raise DataError(f"row groups of episode {entry.index} take {size} bytes, limit {MAX_EPISODE_BYTES}")
        wanted = [name for name in names if name in self._names]
        with boundary(DataError, f"episode {entry.index} cannot be read"):
            table = self._file.table(columns=wanted, row_groups=range(first, last + 1))
            start = int(rows[0]) - (int(self._ends[first - 1]) if first else 0)
            return table.slice(start, len(rows)).combine_chunks()


def _tables(
    root: Path, info: Info, entries: Iterable[Entry], names: Iterable[str], skip: OnSkip
) -> Iterator[tuple[Entry, pa.Table]]:
    """Each episode's rows as an Arrow table with those of the columns that exist, in the order of `entries`."""
    columns = list(names)

    @lru_cache(maxsize=1)
    def shard(path: Path) -> _DataShard | DataError:
        try:
            return _DataShard(path)
        except DataError as error:
            return error

    for entry in entries:
        path = layout.shard_path(root, info.data_path, entry.data)
        try:
            opened = shard(path)
            if isinstance(opened, DataError):
                raise opened
            table = opened.read(entry, columns)
        except DataError as exc:
            skip(Skipped(path, str(exc), entry.index))
            continue
        yield entry, table


def _row_columns(table: pa.Table, info: Info) -> Columns:
    """What `from_rows` reads, and the time stamps; columns with nulls are left out, but for that of success.

    A reward that is NaN is null. The last action and its reward may be null: what they led to is in no row.
    """
    columns: Columns = {}
    for name in (*_ROW_COLUMNS, "timestamp"):
        if name not in table.column_names:
            continue
        free = name in (layout.ACTION, layout.REWARD) and len(table) > 0 and not table[name][-1].is_valid
        rows = table.slice(0, len(table) - 1) if free else table
        if name == layout.SUCCESS or not _has_nulls(rows[name]):
            values = _columns(rows, info, [name])[name]
            columns[name] = (
                np.concatenate([values, np.zeros_like(values, shape=(1, *values.shape[1:]))]) if free else values
            )
    rewards = columns.get(layout.REWARD)
    if rewards is not None and rewards.dtype.kind == "f" and np.isnan(rewards[:-1]).any():
        del columns[layout.REWARD]
    return columns


def _has_nulls(column: Any) -> bool:
    """Whether a value of an Arrow column, or of the lists in it, is null."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    return bool(array.null_count) or (pa.types.is_nested(array.type) and _has_nulls(array.flatten()))


def _columns(table: pa.Table, info: Info, names: Iterable[str]) -> Columns:
    """Numeric columns of a table as arrays.

    Args:
        table: T rows.
        info: says the shape of each feature.
        names: which columns, as far as the table has them; none of them encoded images.

    Returns:
        Name to array of shape (T,) for features of shape [1] and none, else (T, *shape).

    Raises:
        DataError: a column does not have the shape that `info.json` declares.
    """
    columns: Columns = {}
    for name in names:
        if name in table.column_names:
            shape = tuple(info.features[name]["shape"])
            with boundary(DataError, f"column {name} is not of the declared shape {shape}"):
                flat = flat_numbers(table[name])
                words = [value for value in flat if isinstance(value, str)] if flat.dtype == object else []
                if words:
                    raise DataError(
                        f"column {name} holds text, such as {words[0]!r}: write numbers or booleans", field=name
                    )
                columns[name] = flat.reshape(len(table), *(() if shape in ((), (1,)) else shape))
    return columns


def flat_numbers(column: Any) -> NDArray[Any]:
    """All numbers of an Arrow column of scalars or nested lists, in order."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    while pa.types.is_nested(array.type):
        one = array.null_count and all(size in (1, None) for size in pc.list_value_length(array).to_pylist())
        array = pc.list_element(array, 0) if one else array.flatten()  # `flatten` leaves out what is null
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values
