"""Logs of rewards as `Rows`: which files there are, and what wrote them.

rows = read_log(Path("rollouts/"), columns={"reward": "final_score"})
print(rows.layout, len(rows), rows.bad)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from guerdon.audit.robot_logs import EVENTS, METRICS, MONITOR, monitor_records, read_events, read_lerobot, read_metrics
from guerdon.audit.rows import Rows
from guerdon.audit.text_rows import RowReader
from guerdon.episodes.rollout_logs import LOG_ENDINGS, NAMES, PLAIN, columns_of, layout_of, log_files, log_records
from guerdon.errors import DataError, did_you_mean

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
