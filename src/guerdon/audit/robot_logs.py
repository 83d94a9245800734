"""Logs without texts: LeRobot data sets, monitor files of Stable-Baselines3, scalars of TensorBoard and of runs.

rows = read_lerobot(Path("data/episodes"), {})
curves, shown = read_curves([Path("runs/a/events.out.tfevents.1.host")], Path("runs/a"))
"""

from __future__ import annotations

import csv
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.audit.rows import Codes, Numbers, RobotSteps, Rows
from guerdon.episodes.layout import DONE, REWARD, STATE, SUCCESS
from guerdon.episodes.row_files import numbered_rows
from guerdon.errors import DataError, boundary

EVENTS, MONITOR, METRICS = "events.out.tfevents", "monitor.csv", "metrics.jsonl"
_REWARDS = re.compile(r"reward|progress|score|success", re.IGNORECASE)
_CONTACT = re.compile(r"contact|force|tactile|touch", re.IGNORECASE)
_SHOWN = re.compile(r"Sample:(?:\\n|\n)(.*)(?:\\n|\n){2}Reward: (\S+)$", re.DOTALL)

Curves = dict[str, tuple[Codes, Numbers]]


def monitor_records(files: Sequence[Path]) -> Iterator[tuple[Path, list[tuple[int, Any]]]]:
    """Episodes of monitor files with their lines; steps are those of all environments together, in order of time."""
    read: list[tuple[Path, list[tuple[int, Any]]]] = []
    for file in files:
        with boundary(DataError, f"{file}: cannot be read as a monitor file"), file.open(newline="") as lines:
            started = float(json.loads(lines.readline().removeprefix("#")).get("t_start", 0.0))
            rows: list[tuple[int, Any]] = []
            for number, row in enumerate(csv.DictReader(lines), start=2):
                try:
                    own = {"reward": float(row.pop("r")), "length": float(row.pop("l"))}
                    rows.append((number, {**own, "at": started + float(row.pop("t")), **row}))
                except (TypeError, ValueError, KeyError):  # a half-written line
                    rows.append((number, DataError(f"{file}:{number}: not an episode")))
        read.append((file, rows))
    episodes = sorted((row for _, rows in read for _, row in rows if isinstance(row, dict)), key=lambda r: r.pop("at"))
    for row, step in zip(episodes, accumulate(row["length"] for row in episodes), strict=True):
        row["step"] = step
    yield from read


def read_metrics(file: Path) -> Curves:
    """The numbers of a `metrics.jsonl` of guerdon or prime-rl, by the kind of row and their name."""
    found: dict[str, list[tuple[float, float]]] = {}
    for _, row in numbered_rows(file):
        if isinstance(row, Mapping) and isinstance(row.get("step"), int):
            kind = f"{row['kind']}/" if isinstance(row.get("kind"), str) else ""
            for name, value in row.items():
                if name not in ("step", "time", "kind") and isinstance(value, int | float):
                    found.setdefault(f"{kind}{name}", []).append((row["step"], value))
    return _curves(found)


def read_events(files: Sequence[Path], root: Path) -> tuple[Curves, list[dict[str, Any]]]:
    """Scalars of TensorBoard by their tag, and the responses that OpenRLHF shows there.

    Args:
        files: of events; what is half-written is left out.
        root: of the log: tags of files in its folders have the folder in front, where there are several.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    shown: list[dict[str, Any]] = []
    if files:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray
    several = len({f.parent for f in files}) > 1
    for file in files:
        front = f"{file.parent.relative_to(root)}/" if several and file.parent != root else ""
        with boundary(DataError, f"{file}: cannot be read as events of TensorBoard"):
            for event in EventFileLoader(str(file)).Load():
                for value in event.summary.value:
                    if value.metadata.plugin_data.plugin_name == "scalars":
                        number = float(make_ndarray(value.tensor).reshape(-1)[0])
                        found.setdefault(f"{front}{value.tag}", []).append((event.step, number))
                    elif value.tag.startswith("train/generated_samples"):
                        said = b"".join(value.tensor.string_val).decode("utf-8", "replace")
                        if sample := _SHOWN.match(said):
                            shown.append({"step": event.step, "response": sample[1], "reward": sample[2]})
    return _curves(found), shown


def _curves(found: Mapping[str, list[tuple[float, float]]]) -> Curves:
    """Each curve in the order of its steps; of what was logged again after a restart the last."""
    curves = {}
    for name, points in sorted(found.items()):
        steps, values = zip(*sorted(dict(points).items()), strict=True)
        curves[name] = (np.asarray(steps, np.int64), np.asarray(values, np.float64))
    return curves


def read_lerobot(root: Path, given: Mapping[str, str]) -> Rows:
    """The rows of a LeRobot data set (versions 2 and 3): a step of an episode each.

    Args:
        root: folder with `meta/info.json`.
        given: columns by what they hold, as passed by the user.

    Raises:
        DataError: it has no data, or no column of rewards.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted((root / "data").rglob("*.parquet"))
    if not files:
        raise DataError(f"{root}: a LeRobot data set without data/*.parquet")
    with boundary(DataError, f"{files[0]}: cannot be read as Parquet"):
        schema = pq.read_schema(files[0])
    names = [n for n in schema.names if pa.types.is_primitive(schema.field(n).type) or _is_list(schema.field(n).type)]
    reward = given.get("reward") or next((n for n in (REWARD, "reward") if n in names), None)
    truth = given.get("truth") or next((n for n in (SUCCESS, "success") if n in names), None)
    for what, name in {**given, "reward": reward or ""}.items():
        if name not in names:
            raise DataError(
                f"{root}: a LeRobot data set without a column {name or REWARD}, found {', '.join(schema.names)}; pass "
                f"--columns {what}=NAME, or score it first with `guerdon train` (rabc) or lerobot-reward"
            )
    pictures = [n for n in schema.names if n.startswith("observation.images.") and n not in names]
    touched = next((n for n in names if _CONTACT.search(n)), None)
    rest = [n for n in names if _REWARDS.search(n) and n not in (reward, truth) and not _is_list(schema.field(n).type)]
    wanted = {"episode_index", "frame_index", "task_index", reward, truth, STATE, DONE, touched, *rest} & set(names)
    found: dict[str, list[Any]] = {name: [] for name in sorted(wanted)}
    hashes, counts, bad = [], [], Counter[str]()
    for file in files:
        try:
            with boundary(DataError, f"{file.name} cannot be read"):
                table = pq.read_table(file, columns=sorted(wanted))
                hashes += _hashes(pq.ParquetFile(file), pictures[:1])
        except DataError as error:
            bad[str(error).partition(":")[0]] += 1
            counts.append(0)
            continue
        counts.append(len(table))
        for name, parts in found.items():
            parts.append(_array(table[name]))
    columns = {name: np.concatenate(parts) if parts else np.zeros(0) for name, parts in found.items()}
    n = sum(counts)
    notes = () if pictures else ("pictures are in videos, which are not read: motion is that of the state",)

    def codes(name: str) -> Codes:
        return columns[name].astype(np.int64) if name in columns else np.zeros(n, np.int64)

    steps = RobotSteps(
        episode_N=codes("episode_index"), frame_N=codes("frame_index"),
        state_N_D=_matrix(columns.get(STATE)), done_N=columns[DONE] > 0 if DONE in columns else None,
        contact_N=_size(columns.get(touched or "")), picture_N=np.asarray(hashes, np.int64) if hashes else None,
    )  # fmt: skip
    return Rows(
        layout="a LeRobot data set", files=tuple(str(f.relative_to(root)) for f in files),
        file_N=np.repeat(np.arange(len(files)), counts),
        line_N=np.concatenate([np.arange(1, k + 1) for k in counts]), reward_N=columns[str(reward)],
        rewards={name: columns[name] for name in rest if name in columns}, truth_N=columns.get(truth or ""),
        prompt_N=codes("task_index") if "task_index" in columns else None, steps=steps, bad=dict(bad), notes=notes,
    )  # fmt: skip


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind))


def _array(column: Any) -> Numbers:
    """A column of numbers, flags or equally long lists: (N,) or (N, D); missing ones are NaN."""
    import pyarrow as pa

    if not _is_list(column.type):
        return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    flat = np.asarray(column.combine_chunks().flatten().cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    return flat.reshape(len(column), -1)


def _matrix(values: Numbers | None) -> Numbers | None:
    return None if values is None else values.reshape(len(values), -1)


def _size(values: Numbers | None) -> Numbers | None:
    """The largest absolute value of each row."""
    return None if values is None else np.abs(values.reshape(len(values), -1)).max(axis=1)


def _hashes(file: Any, pictures: Sequence[str]) -> list[int]:
    """A hash of each picture that stands in the data itself."""
    found: list[int] = []
    if pictures:
        for batch in file.iter_batches(batch_size=256, columns=list(pictures)):
            for picture in batch.column(0).to_pylist():
                held = (picture or {}).get("bytes") or str((picture or {}).get("path")).encode()
                found.append(zlib.crc32(held))
    return found
