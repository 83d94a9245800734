"""Logs of rewards as `Rows`: which files there are, and what wrote them.

rows = read_log(Path("rollouts/"), columns={"reward": "final_score"})
print(rows.layout, len(rows), rows.bad)
"""

from __future__ import annotations

import csv
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.auditing.rows import Codes, Numbers, RobotSteps, Rows
from guerdon.auditing.text_rows import RowReader
from guerdon.episodes.layout import DONE, REWARD, STATE, SUCCESS
from guerdon.episodes.rollout_logs import (
    LOG_ENDINGS,
    NAMES,
    PLAIN,
    RESCORED,
    columns_of,
    layout_of,
    log_files,
    log_records,
)
from guerdon.episodes.row_files import numbered_rows
from guerdon.errors import DataError, boundary, did_you_mean

# ---------------------------------------------------------------------------------------------------------------------
# Logs without texts: LeRobot data sets, monitor files of Stable-Baselines3, scalars of TensorBoard and of runs.
#
# rows = read_lerobot(Path("data/episodes"), {})
# curves, shown = read_curves([Path("runs/a/events.out.tfevents.1.host")], Path("runs/a"))
# ---------------------------------------------------------------------------------------------------------------------


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


# ---------------------------------------------------------------------------------------------------------------------


_WHOLE = 1 << 27  # bytes of a file of JSON
_LOOKED_FOR = (
    "completions of TRL, dumps of verl, traces of verifiers and prime-rl, logs of inspect_ai, rollouts of NeMo-Gym, "
    "events of TensorBoard, monitor.csv of Stable-Baselines3, a LeRobot data set, a run of guerdon, and "
    f"{', '.join(LOG_ENDINGS)} with a column of rewards"
)


def read_log(path: Path, *, columns: Mapping[str, str] = {}, sample: int = 50_000, seed: int = 0) -> Rows:
    """The rows of a log, recognised by its content.

    Args:
        path: a file or a folder of files.
        columns: names of columns by what they hold (`NAMES`), where they are not recognised.
        sample: rows whose texts are kept, at most.
        seed: of the sample.

    Raises:
        DataError: nothing is recognised, logs of several kinds lie in one folder, there is no reward, or `columns`
            names something that is not there.
    """
    for what in columns:
        if what not in NAMES:
            raise DataError(f"--columns {what}=...: a column holds {', '.join(NAMES)}{did_you_mean(what, NAMES)}")
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    if (path / "meta" / "info.json").is_file():
        return read_lerobot(path, columns)
    files = log_files(path, EVENTS)
    runs = [f for f in files if f.name == "episodes.jsonl" and f.with_name(METRICS).is_file()]
    if len(runs) > 1:
        raise DataError(f"{path}: {len(runs)} runs of guerdon; pass one of them, such as {runs[0].parent}")
    events, monitors, metrics = (
        [f for f in files if matches(f.name)]
        for matches in (lambda n: EVENTS in n, lambda n: n.endswith(MONITOR), lambda n: n == METRICS)
    )
    notes: list[str] = []
    others = [f for f in files if f not in {*events, *monitors, *metrics} and f.suffix in LOG_ENDINGS and not runs]
    kinds, skipped = _kinds(path, _trained_on(path, others, notes), columns)
    kinds |= {"monitor files of Stable-Baselines3": monitors} if monitors else {}
    kinds |= {"a run of guerdon": runs} if runs else {}
    if len(kinds) > 1:
        found = "; ".join(f"{len(those)} with {kind} ({those[0].relative_to(path)})" for kind, those in kinds.items())
        raise DataError(f"{path}: files of several kinds: {found}; pass a folder or a file of one kind")
    curves, shown = read_events(events, path)
    for file in metrics:
        curves |= read_metrics(file)
    layout, those = next(iter(kinds.items()), ("responses and scalars in TensorBoard" if shown else "scalars", []))
    if not kinds and not curves:
        lacks = "".join(f"; {name} has no column of rewards among {found[:300]}: pass --columns reward=NAME"
                        for name, found in [*skipped.items()][:1])  # fmt: skip
        raise DataError(f"{path}: no log is recognised{lacks}; looked for {_LOOKED_FOR}")
    if skipped and those:
        notes.append(f"not read, since they have no column of rewards: {', '.join(skipped)[:300]}")
    reader = RowReader(columns, sample=sample, seed=seed)
    for file, records in monitor_records(monitors) if monitors else _once(those, notes):
        reader.read(file, records)
    if not kinds and shown:
        reader.read(events[0], enumerate(shown))
    return reader.finish(layout, path, notes, curves)


def _kinds(
    path: Path, files: Sequence[Path], columns: Mapping[str, str]
) -> tuple[dict[str, list[Path]], dict[str, str]]:
    """Files with rewards by what wrote them, and those without by name with the columns that they have."""
    kinds: dict[str, list[Path]] = {}
    skipped: dict[str, str] = {}
    for file in files:
        if file.suffix == ".json" and file.stat().st_size > _WHOLE:
            more = f"{file}: a .json file of more than {_WHOLE >> 20} MiB would be read whole"
            raise DataError(f"{more}; write one row per line (.jsonl), a log of inspect_ai as .eval")
        try:
            first = list(islice((r for _, r in log_records(file) if isinstance(r, Mapping)), 20))
        except DataError:
            if path == file:
                raise
            continue
        layout = layout_of(first[0] if first else {})
        named = dict[str, None]()
        if layout.name == PLAIN:
            named = {name: None for record in first for row in layout.rows(record)[:1] for name in row}
        if layout.name != PLAIN or {"reward", "token_rewards"} & columns_of(named, layout, columns).keys.keys():
            kinds.setdefault(layout.name, []).append(file)
        elif first:
            skipped[file.name] = ", ".join(named)
        elif path == file:
            kinds[PLAIN] = [file]  # what is wrong with its rows is counted
    return kinds, skipped


def _trained_on(path: Path, files: Sequence[Path], notes: list[str]) -> list[Path]:
    """Of what prime-rl writes twice, the rollouts that were trained on."""
    kept = list(files)
    for preferred, other in (("effective", "all"), ("train", "eval")):
        folders = [set(f.relative_to(path).parts[:-1]) for f in kept]
        if any(preferred in one for one in folders) and any(other in one for one in folders):
            kept = [f for f, one in zip(kept, folders, strict=True) if other not in one]
            notes.append(f"files in folders {preferred} are read, and those in folders {other} are not")
    return kept


def _once(files: Sequence[Path], notes: list[str]) -> Iterator[tuple[Path, Iterable[tuple[int, Any]]]]:
    """Files with their records, without those in which TRL logged the batch of the file before again."""
    before, again = "", 0
    for file in files:
        records, batch = log_records(file), ""
        if file.name.startswith("completions_"):
            records = iter(held := list(records))
            batch = repr([{**row, "step": None} for _, row in held if isinstance(row, Mapping)])
        if batch and batch == before:
            again += 1
        else:
            yield file, records
        before = batch
    if again:
        notes.append(f"TRL logged batches again: {again} of {len(files)} files are left out")
