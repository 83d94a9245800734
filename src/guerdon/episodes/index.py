"""The index of a LeRobot data set: `meta/episodes` (one row per episode) and `meta/tasks.parquet`.

A row names the shards of an episode and its place in them, with its statistics. Four columns are guerdon's, all named
`guerdon/...`: id, outcome, meta (JSON) and success at the reset, for which LeRobot has no columns; `lerobot` keeps
unknown columns of this table.

Statistics are per episode and over a data set, as LeRobot stores and uses them for normalisation: min, max, mean, std
(population), count and the quantiles q01 q10 q50 q90 q99. Images are counted per channel, scaled to 0..1, in shape
(3, 1, 1), on a sample of frames. Values that are not finite are left out.

    info = load_info(root)
    entries, skipped = load_index(root, info)
    print(entries[0].task, entries[0].data)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from guerdon.episodes.layout import TASKS_PATH, VIDEO_PATH, Feature, FileIndex, Info, shard_path
from guerdon.episodes.video import declared
from guerdon.errors import DataError, boundary
from guerdon.files.atomic import write_parquet
from guerdon.files.parquet_bounds import BoundedParquet
from guerdon.processes.progress import log_once
from guerdon.types import ByteArray

FeatureStats = dict[str, NDArray[Any]]
Stats = dict[str, FeatureStats]

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
NAMES = ("min", "max", "mean", "std", "count", *QUANTILES)
_SAMPLED_FRAMES = 100
_SAMPLED_SIDE = 150


def vector_stats(values_T: NDArray[Any]) -> FeatureStats:
    """Statistics over rows.

    Args:
        values_T: (T,) or (T, D) numbers or bools, T >= 1.

    Returns:
        Arrays of shape (D,) in float64, D = 1 for (T,); `count` has shape (1,). A dimension without a finite
        value is NaN.
    """
    values_T_D = values_T.reshape(len(values_T), -1).astype(np.float64)
    columns = [_column_stats(column[np.isfinite(column)]) for column in values_T_D.T]
    stats = {name: np.array([column[name] for column in columns]) for name in NAMES if name != "count"}
    return stats | {"count": np.array([len(values_T)], dtype=np.int64)}


def _column_stats(values: NDArray[np.float64]) -> dict[str, float]:
    if values.size == 0:
        return dict.fromkeys(NAMES, float("nan"))
    quantiles = np.quantile(values, list(QUANTILES.values()))
    low, high = float(values.min()), float(values.max())
    # Rounding must not put the mean outside [min, max].
    mean = float(np.clip(values.mean(), low, high))
    return {"min": low, "max": high, "mean": mean, "std": float(values.std())} | dict(
        zip(QUANTILES, map(float, quantiles), strict=True)
    )


def image_stats(frames_T_H_W_C: ByteArray) -> FeatureStats:
    """Statistics per channel over a sample of frames and pixels, in 0..1.

    Args:
        frames_T_H_W_C: (T, H, W, 3) uint8, T >= 1.

    Returns:
        Arrays of shape (3, 1, 1); `count`, shape (1,), is the number of sampled frames.
    """
    length, height, width = frames_T_H_W_C.shape[:3]
    rows = np.unique(np.linspace(0, length - 1, min(length, _SAMPLED_FRAMES)).round().astype(np.int64))
    stride = max(1, max(height, width) // _SAMPLED_SIDE)
    sample = frames_T_H_W_C[rows, ::stride, ::stride]
    levels = np.arange(256) / 255.0
    channels = []
    for c in range(3):
        counts = np.bincount(sample[..., c].reshape(-1), minlength=256)
        present = np.flatnonzero(counts)
        cumulative = np.cumsum(counts) / counts.sum()
        mean = float(counts @ levels / counts.sum())
        values = {
            "min": levels[present[0]],
            "max": levels[present[-1]],
            "mean": mean,
            "std": float(np.sqrt(counts @ (levels - mean) ** 2 / counts.sum())),
        }
        channels.append(values | {name: levels[np.searchsorted(cumulative, q)] for name, q in QUANTILES.items()})
    stats = {name: np.array([channel[name] for channel in channels]).reshape(3, 1, 1) for name in channels[0]}
    return stats | {"count": np.array([len(rows)], dtype=np.int64)}


def merge(parts: Iterable[Stats]) -> Stats:
    """Statistics of the union of disjoint parts.

    Exact for min, max, mean, std and count (Chan, Golub and LeVeque 1979, eq. 2.1); quantiles are the
    count-weighted mean of the parts' quantiles, the approximation that LeRobot makes.
    """
    merged: Stats = {}
    for part in parts:  # in order, so that a resumed writer gets the same bytes
        for feature, stats in part.items():
            merged[feature] = _merge_feature([merged[feature], stats]) if feature in merged else stats
    return merged


def _merge_feature(parts: list[FeatureStats]) -> FeatureStats:
    shape = parts[0]["mean"].shape
    stacked = {name: np.stack([stats[name] for stats in parts]) for name in NAMES}
    count = stacked["count"].reshape(-1, *(1 for _ in shape)).astype(np.float64)
    known = np.isfinite(stacked["mean"])
    weight = np.where(known, count, 0.0)
    total = weight.sum(axis=0)

    def average(values: NDArray[Any]) -> NDArray[Any]:
        summed = (np.where(known, values, 0.0) * weight).sum(axis=0)
        mean: NDArray[Any] = np.divide(summed, total, out=np.full(shape, np.nan), where=total > 0)
        return mean

    mean = average(stacked["mean"])
    merged = {
        "min": np.fmin.reduce(stacked["min"], axis=0),
        "max": np.fmax.reduce(stacked["max"], axis=0),
        "mean": mean,
        "std": np.sqrt(average(stacked["std"] ** 2 + (stacked["mean"] - mean) ** 2)),
    }
    merged |= {name: average(stacked[name]) for name in QUANTILES}
    return merged | {"count": stacked["count"].sum(axis=0)}


ID = "guerdon/id"
OUTCOME = "guerdon/outcome"
META = "guerdon/meta"
SUCCESS_AT_RESET = "guerdon/success_at_reset"
SPAN = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")


@dataclass(frozen=True)
class Skipped:
    """A part of a data set that could not be read.

    Attributes:
        path: the file at fault.
        reason: one line.
        episode: index of the lost episode, or None where it is unknown.
    """

    path: Path
    reason: str
    episode: int | None = None

    def __str__(self) -> str:
        lost = "an unknown number of episodes" if self.episode is None else f"episode {self.episode}"
        return f"skipped {lost}: {self.path}: {self.reason.removeprefix(str(self.path)).lstrip(': ')}"


@dataclass(frozen=True)
class VideoSpan:
    """The frames of an episode by one camera: a shard, start and end in seconds."""

    where: FileIndex
    start: float
    stop: float


@dataclass(frozen=True)
class Entry:
    """One episode as `meta/episodes` describes it.

    Attributes:
        index: LeRobot's episode_index.
        length: rows.
        start: LeRobot's `index` of its first row: rows of the episodes before it.
        task: in words.
        data: shard that holds its rows.
        id: of guerdon, or the index as text for data of other tools.
        videos: feature key to its span of frames; a camera without one is absent in this episode.
        outcome: of guerdon; meaningless unless `outcome_known`.
        outcome_known: whether the column `guerdon/outcome` exists.
        success_at_reset: of guerdon, else False.
        meta: of guerdon, else empty.
    """

    index: int
    length: int
    task: str
    data: FileIndex
    id: str
    videos: Mapping[str, VideoSpan] = field(default_factory=dict)
    outcome: bool | None = None
    outcome_known: bool = False
    success_at_reset: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)
    start: int = 0


def index_files(root: Path) -> list[Path]:
    """The shards of `meta/episodes`, in order."""
    return sorted((root / "meta" / "episodes").glob("chunk-*/file-*.parquet"))


def _rows(path: Path, *, stats: bool) -> list[dict[str, Any]]:
    """The rows of a shard of the index: the statistics, or all else."""
    shard = BoundedParquet(path)
    names = [name for name in shard.schema.names if name.startswith("stats/") == stats]
    rows = list[dict[str, Any]]()
    for row in shard.rows(kept=True, columns=names):
        if isinstance(row, DataError):
            raise row
        rows.append(row)
    return rows


def load_index(root: Path, info: Info) -> tuple[list[Entry], list[Skipped]]:
    """All episodes in order, and the index shards, and rows of them, that cannot be read."""
    entries: dict[int, Entry] = {}
    skipped: list[Skipped] = []
    video_keys = [key for key, feature in info.features.items() if feature["dtype"] == "video"]
    several: set[int] = set()  # episodes with several tasks
    for path in index_files(root):
        try:
            with boundary(DataError, "cannot be read"):
                rows = _rows(path, stats=False)
        except DataError as exc:
            skipped.append(Skipped(path, str(exc)))
            continue
        for row in rows:
            try:
                with boundary(DataError, "its row of the index cannot be read"):
                    entry = _entry(row, video_keys, info.fps)
                    if entry.index in entries:
                        raise DataError(f"another row of the index has the episode_index {entry.index}, too")
                    entries[entry.index] = entry
                    several |= {entry.index} if len(row["tasks"]) > 1 else set()
            except DataError as exc:
                index = row.get("episode_index")
                skipped.append(Skipped(path, str(exc), index if isinstance(index, int) else None))
    entries |= _first_tasks(root, info, [entries[index] for index in sorted(several)])
    return [entries[index] for index in sorted(entries)], skipped


def _first_tasks(root: Path, info: Info, entries: Sequence[Entry]) -> dict[int, Entry]:
    """Episodes with several tasks, each with that of its first row: the index lists them in no order."""
    found: dict[int, Entry] = {}
    shards = {entry.data: shard_path(root, info.data_path, entry.data) for entry in entries}
    for where, path in shards.items():
        with suppress(DataError), boundary(DataError, f"{path} cannot be read"):  # said where its rows are needed
            tasks = load_tasks(root)
            table = BoundedParquet(path).table(columns=["episode_index", "task_index"])
            owners, of_rows = (table[name].to_numpy() for name in table.column_names)
            firsts = dict(zip(*np.unique(owners, return_index=True), strict=True))
            for entry in entries:
                if entry.data == where and entry.index in firsts:
                    found[entry.index] = replace(entry, task=tasks[of_rows[firsts[entry.index]]])
    if entries:
        log_once(f"{root}: {len(entries)} episodes have several tasks: that of the first row counts")
    return found


def _entry(row: Mapping[str, Any], video_keys: Iterable[str], fps: float) -> Entry:
    for name in ("episode_index", "length", "tasks", "data/chunk_index", "data/file_index"):
        if row.get(name) is None:
            raise DataError(f"has no {name} in the index")
    if not row["length"] > 0 or not row["tasks"]:
        raise DataError("has no rows" if row["tasks"] else "has no task in the index")
    index = int(row["episode_index"])
    found = {key: _span(row, key, fps) for key in video_keys}
    return Entry(
        index=index,
        length=int(row["length"]),
        task=str(row["tasks"][0]),
        data=(int(row["data/chunk_index"]), int(row["data/file_index"])),
        id=str(index) if row.get(ID) is None else str(row[ID]),
        videos={key: span for key, span in found.items() if span is not None},
        outcome=row.get(OUTCOME),
        outcome_known=OUTCOME in row,
        success_at_reset=bool(row.get(SUCCESS_AT_RESET)),
        meta=json.loads(row.get(META) or "{}"),
        start=int(row.get("dataset_from_index") or 0),
    )


def _span(row: Mapping[str, Any], key: str, fps: float) -> VideoSpan | None:
    """Where the frames of a camera are; None where the episode has none of it."""
    chunk, file, start, stop = (row.get(f"videos/{key}/{name}") for name in SPAN)
    if chunk is None or file is None or start is None:
        return None
    if stop is None:
        stop = start + row["length"] / fps
    return VideoSpan((int(chunk), int(file)), float(start), float(stop))


def video_file(root: Path, info: Info, entry: Entry, key: str | None) -> Path | None:
    """The MP4 file with an episode's frames, None where the camera is not stored as video, or not in this episode."""
    if key is None or key not in entry.videos:
        return None
    return shard_path(root, info.video_path or VIDEO_PATH, entry.videos[key].where, video_key=key)


def misplaced(root: Path, info: Info, entries: Sequence[Entry], cameras: Sequence[str]) -> list[Skipped]:
    """The episodes whose part of a video does not hold their own frames, as far as index and headers show it.

    Parts of one file may not overlap. Where a file has exactly the frames of its episodes, evenly spaced, each part
    begins where the one before it ends; where it has more (of episodes that were removed), gaps are allowed. A file
    with exactly these frames that is shorter than the index says shows them faster: times lead to frames of other rows.
    """
    found: list[Skipped] = []
    files: dict[tuple[str, Path], list[Entry]] = {}
    for entry in entries:
        for key in cameras:
            if path := video_file(root, info, entry, key):
                files.setdefault((key, path), []).append(entry)
    for (key, path), owners in files.items():
        try:
            frames, seconds = declared(path)
        except DataError:
            continue  # said where its frames are needed
        found += _misplaced_in(path, key, owners, frames, seconds, info.fps)
    return found


def _misplaced_in(
    path: Path, key: str, owners: Sequence[Entry], frames: int, seconds: float | None, fps: float
) -> Iterator[Skipped]:
    """`misplaced` in one file, whose header says how many frames it has, and where it can how many seconds."""
    end = max(entry.videos[key].stop for entry in owners)
    exact = frames == sum(entry.length for entry in owners)
    whole = exact and (seconds is None or abs(seconds * fps - frames) < 0.4)
    lost = 0.0  # share of the seconds in the index that the file does not have
    if exact and seconds is not None and (end - seconds) * fps >= 1.5:
        lost = 1 - seconds / end
    free = 0.0
    for entry in sorted(owners, key=lambda entry: entry.videos[key].start):
        span = entry.videos[key]
        off = span.start - free
        if span.stop * lost * fps > 0.5:
            reason = (
                f"it shows its {frames} frames in {seconds:.3f} s, and its index says {end:.3f} s: encode it with "
                f"{fps:g} frames per second"
            )
            yield Skipped(path, reason, entry.index)
        elif (abs(off) if whole else -off) * fps > 0.4:
            reason = f"its index says that its frames begin at {span.start:.3f} s; those before it end at {free:.3f} s"
            yield Skipped(path, reason, entry.index)
        free = free + entry.length / fps if whole else max(free, span.stop)


def load_episode_stats(root: Path) -> list[Stats]:
    """The statistics of every episode, from the columns `stats/<feature>/<name>`.

    Raises:
        DataError: a shard of the index cannot be read.
    """
    found: list[Stats] = []
    for path in index_files(root):
        with boundary(DataError, f"{path} cannot be read; move the data set away and write to a new root"):
            for row in _rows(path, stats=True):
                stats: Stats = {}
                for name, value in row.items():
                    feature, _, statistic = name.removeprefix("stats/").rpartition("/")
                    stats.setdefault(feature, {})[statistic] = np.asarray(value)
                found.append(stats)
    return found


def index_schema(features: Mapping[str, Feature]) -> pa.Schema:
    """Arrow schema of an index shard; the same for all shards, so that `datasets` can join them."""
    integer, real, text = pa.int64(), pa.float64(), pa.string()
    fields = {"episode_index": integer, "tasks": pa.list_(text), "length": integer}
    positions = ("data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index")
    fields |= dict.fromkeys(positions, integer)
    videos = [key for key, feature in features.items() if feature["dtype"] == "video"]
    fields |= {f"videos/{key}/{name}": integer if "index" in name else real for key in videos for name in SPAN}
    for key, feature in features.items():
        image = feature["dtype"] in ("image", "video")
        values = pa.list_(pa.list_(pa.list_(real))) if image else pa.list_(real)
        fields |= {f"stats/{key}/{name}": pa.list_(integer) if name == "count" else values for name in NAMES}
    fields |= dict.fromkeys(("meta/episodes/chunk_index", "meta/episodes/file_index"), integer)
    return pa.schema(fields | {ID: text, OUTCOME: pa.bool_(), META: text, SUCCESS_AT_RESET: pa.bool_()})


def stats_columns(stats: Stats) -> dict[str, Any]:
    """Statistics of one episode as columns of its index row."""
    return {f"stats/{key}/{name}": value.tolist() for key, parts in stats.items() for name, value in parts.items()}


def save_tasks(root: Path, tasks: Sequence[str]) -> None:
    """Write `meta/tasks.parquet`, which `lerobot` reads with pandas: the sentence is the index."""

    def column(name: str, pandas_type: str, numpy_type: str) -> dict[str, Any]:
        kinds = {"pandas_type": pandas_type, "numpy_type": numpy_type}
        return {"name": name, "field_name": name, **kinds, "metadata": None}

    pandas_metadata = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    schema = pa.schema(
        [("task_index", pa.int64()), ("task", pa.string())], metadata={"pandas": json.dumps(pandas_metadata)}
    )
    rows = {"task_index": list(range(len(tasks))), "task": list(tasks)}
    write_parquet(root / TASKS_PATH, pa.table(rows, schema=schema))


def load_tasks(root: Path) -> list[str]:
    """The task sentences by `task_index`.

    Raises:
        DataError: the file cannot be read.
    """
    path = root / TASKS_PATH
    if not path.exists():
        return []
    with boundary(DataError, f"{path} cannot be read"):
        table = BoundedParquet(path).table()
        (name,) = [name for name in table.column_names if name != "task_index"]
        rows = sorted(zip(table["task_index"].to_pylist(), table[name].to_pylist(), strict=True))
        return [str(task) for _, task in rows]
