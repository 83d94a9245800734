"""Progress of every row of a data set, in the Parquet layout that LeRobot's weighted cloning reads.

One row per row of the data set: `index`, `episode_index`, `frame_index`, and `progress_sparse` or `progress_dense`, NaN
where there is none. A file that guerdon wrote has a column `failure` besides, with the reason, and says in its metadata
which data and which model it is of. LeRobot's own file is `sarm_progress.parquet` in the folder of the data set.

    write_progress(path, root, {"episode-0": values_T}, {}, origin="runs/progress", made_of={"data": a, "model": b})
    found = read_progress(path, root)
    found.values["episode-0"]            # (T,) float32
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from guerdon.episodes.index import Entry, load_index
from guerdon.episodes.layout import load_info
from guerdon.episodes.row_files import write_parquet
from guerdon.errors import DataError, boundary
from guerdon.types import FloatArray

MADE_OF = b"guerdon"  # key of the metadata
ORIGIN = b"reward_model_path"  # LeRobot's


@dataclass(frozen=True, eq=False)
class ProgressFile:
    """What a file of progress holds.

    Attributes:
        values: id of an episode to (T,) progress, NaN where there is none.
        reasons: id of an episode to T reasons why there is none; only of episodes where something failed.
        made_of: hashes of data and model; None in a file of another program.
    """

    values: Mapping[str, FloatArray]
    reasons: Mapping[str, Sequence[str | None]]
    made_of: Mapping[str, str] | None


def write_progress(
    path: Path,
    root: Path,
    values: Mapping[str, FloatArray],
    reasons: Mapping[str, Sequence[str | None]],
    *,
    origin: str,
    made_of: Mapping[str, str],
) -> None:
    """Write the progress of a data set, atomically.

    Args:
        path: the file.
        root: folder of the data set.
        values: id of an episode to (T,) progress, NaN where there is none.
        reasons: id of an episode to T reasons why there is none.
        origin: where the model came from, for people and for LeRobot.
        made_of: hashes of data and model.
    """
    parts = []
    for entry in _entries(root):
        if entry.id in values:
            rows = np.arange(len(values[entry.id]), dtype=np.int64)
            columns = {
                "index": entry.start + rows,
                "episode_index": np.full(len(rows), entry.index, dtype=np.int64),
                "frame_index": rows,
                "progress_sparse": values[entry.id].astype(np.float32),
                "failure": pa.array(reasons.get(entry.id, [None] * len(rows)), pa.string()),
            }
            parts.append(pa.table(columns))
    metadata = {ORIGIN: origin.encode(), MADE_OF: json.dumps(dict(made_of), sort_keys=True).encode()}
    write_parquet(path, pa.concat_tables(parts).combine_chunks().sort_by("index").replace_schema_metadata(metadata))


def made_of(path: Path) -> dict[str, str] | None:
    """Hashes of the data and the model that a file is of; None: there is no such file, or another program wrote it.

    Raises:
        DataError: it cannot be read.
    """
    if not path.is_file():
        return None
    with boundary(DataError, f"{path} cannot be read; remove it, and it is written again"):
        found = (pq.read_schema(path).metadata or {}).get(MADE_OF)
        return None if found is None else dict(json.loads(found))


def read_progress(path: Path, root: Path, *, head_mode: str = "sparse") -> ProgressFile:
    """Read the progress of a data set.

    Args:
        path: a file that guerdon or LeRobot wrote.
        root: folder of the data set.
        head_mode: `sparse` or `dense`, of files with several columns.

    Raises:
        DataError: there is no such file or column, or it belongs to other episodes.
    """
    column = f"progress_{head_mode}"
    if not path.is_file():
        raise DataError(
            f"there is no file of progress at {path}: name a reward model, which writes one, or another file"
        )
    with boundary(DataError, f"{path} cannot be read"):
        table = pq.ParquetFile(path).read()
        wanted = ["index", "episode_index", "frame_index", column]
        missing = [name for name in wanted if name not in table.column_names]
        if missing:
            raise DataError(f"{path} has no column {missing[0]}; it has {', '.join(table.column_names)}")
        index, episode, frame = (table[name].to_numpy().astype(np.int64) for name in wanted[:3])
        progress = table[column].to_numpy(zero_copy_only=False).astype(np.float32)
        failure = table["failure"].to_pylist() if "failure" in table.column_names else [None] * len(index)
    values: dict[str, FloatArray] = {}
    reasons: dict[str, Sequence[str | None]] = {}
    order = np.lexsort((frame, episode))
    entries = _entries(root)
    starts = np.searchsorted(episode[order], [entry.index for entry in entries])
    for entry, start in zip(entries, starts, strict=True):
        rows = order[start : start + entry.length]
        expected = np.arange(len(rows))
        rows = rows[episode[rows] == entry.index]
        if not len(rows):
            continue
        if (
            len(rows) != entry.length
            or (frame[rows] != expected).any()
            or (index[rows] != entry.start + expected).any()
        ):
            raise DataError(
                f"{path} does not fit episode {entry.index} of {root}, which has {entry.length} rows from index "
                f"{entry.start} on: it was made from another data set"
            )
        found = np.where(np.isfinite(progress[rows]), progress[rows], np.float32(np.nan))
        values[entry.id] = found
        if np.isnan(found).any():
            pairs = zip(rows.tolist(), found.tolist(), strict=True)
            reasons[entry.id] = [(failure[row] or "no_value") if np.isnan(v) else None for row, v in pairs]
    return ProgressFile(values, reasons, made_of(path))


def _entries(root: Path) -> list[Entry]:
    return load_index(root, load_info(root))[0]
