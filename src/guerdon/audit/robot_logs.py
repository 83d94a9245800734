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
from guerdon.episodes.rollout_logs import RESCORED
from guerdon.episodes.row_files import numbered_rows
from guerdon.errors import DataError, boundary

EVENTS, MONITOR, METRICS = "events.out.tfevents", "monitor.csv", "metrics.jsonl"
_REWARDS = re.compile(r"reward|progress|score|success", re.IGNORECASE)
_NUMBERS = re.compile(r"^(fixed_size_|large_)?(list<\w+: )?(u?int|float|double|halffloat|bool)")
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
    import pyarrow.parquet as pq

    files = sorted((root / "data").rglob("*.parquet"))
    if not files:
        raise DataError(f"{root}: a LeRobot data set without data/*.parquet")
    with boundary(DataError, f"{files[0]}: cannot be read as Parquet"):
        schema = pq.read_schema(files[0])
    pictures = [name for name in schema.names if "bytes" in str(schema.field(name).type)][:1]
    names = [name for name in schema.names if _NUMBERS.search(str(schema.field(name).type))]
    reward = given.get("reward") or next((n for n in (REWARD, "reward", RESCORED) if n in names), REWARD)
    truth = given.get("truth") or next((n for n in (SUCCESS, "success") if n in names), None)
    for what, name in {**given, "reward": reward}.items():
        if name not in names:
            found = ", ".join(schema.names)
            raise DataError(f"{root}: a LeRobot data set without a column {name}, found {found}; pass --columns "
                            f"{what}=NAME, or add rewards with `guerdon score {root} --model ...`")  # fmt: skip
    touched = next((name for name in names if _CONTACT.search(name)), None)
    rest = [n for n in names if _REWARDS.search(n) and n not in (reward, truth)]
    wanted = {"episode_index", "frame_index", "task_index", reward, truth, STATE, DONE, touched, *rest} & set(names)
    parts: dict[str, list[Numbers]] = {name: [] for name in sorted(wanted)}
    hashes, counts, bad = list[int](), list[int](), Counter[str]()
    for file in files:
        try:
            with boundary(DataError, f"{file.name} cannot be read"):
                table = pq.read_table(file, columns=sorted(wanted))
                hashes += _hashes(pq.ParquetFile(file), pictures)
        except DataError:
            bad[f"{file.name} cannot be read"] += 1
            table = None
        counts.append(0 if table is None else len(table))
        for name in parts if counts[-1] else ():
            parts[name].append(_matrix(table[name]))
    columns = {name: np.concatenate(read) for name, read in parts.items() if read}
    flat = {name: values[:, 0] for name, values in columns.items() if values.shape[1] == 1}
    codes = {name: values.astype(np.int64) for name, values in flat.items() if name.endswith("_index")}
    if reward not in flat or not {"episode_index", "frame_index"} <= codes.keys():
        raise DataError(f"{root}: no row could be read: {', '.join(bad) or f'{reward} is not one number per row'}")
    steps = RobotSteps(
        episode_N=codes["episode_index"], frame_N=codes["frame_index"], state_N_D=columns.get(STATE),
        done_N=flat[DONE] > 0 if DONE in flat else None, picture_N=np.asarray(hashes, np.int64) if hashes else None,
        contact_N=np.abs(columns[touched]).max(axis=1) if touched in columns else None,
    )  # fmt: skip
    notes = () if pictures else ("pictures are in videos, which are not read: motion is that of the state",)
    return Rows(
        layout="a LeRobot data set", files=tuple(str(f.relative_to(root)) for f in files),
        file_N=np.repeat(np.arange(len(files)), counts), reward_N=flat[reward], truth_N=flat.get(truth or ""),
        line_N=np.concatenate([np.arange(1, count + 1) for count in counts]), prompt_N=codes.get("task_index"),
        rewards={name: flat[name] for name in rest if name in flat}, steps=steps, bad=dict(bad), notes=notes,
    )  # fmt: skip


def _matrix(column: Any) -> Numbers:
    """A column of numbers, flags or equally long lists as (N, D); missing ones are NaN."""
    import pyarrow as pa

    values = column.combine_chunks()
    values = values.flatten() if "list" in str(column.type) else values
    return np.asarray(values.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64).reshape(len(column), -1)


def _hashes(file: Any, pictures: Sequence[str]) -> list[int]:
    """A hash of each picture that stands in the data itself."""
    batches = file.iter_batches(batch_size=256, columns=list(pictures)) if pictures else ()
    held = (picture or {} for batch in batches for picture in batch.column(0).to_pylist())
    return [zlib.crc32(one.get("bytes") or str(one.get("path")).encode()) for one in held]
