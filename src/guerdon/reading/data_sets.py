"""Which files of a path hold rows, and which part of the data each is: split and subset by the words of `datasets`.

for part in data_parts("data/prefs"):            # a file, a folder, PATH:SPLIT, a hub id
    print(part.split, part.subset)               # "train", "train_prefs": train_prefs-00000-of-00002.parquet
    for where, row in part.rows(): ...
data_parts("data/prefs", train=True)             # without those of other splits than train
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from guerdon.errors import DataError, boundary, needs
from guerdon.files.bounds import read_json
from guerdon.network.hub import check_data_set
from guerdon.processes.progress import log_once
from guerdon.reading.containers import (
    ARCHIVE,
    SAVED,
    NoRowsError,
    Part,
    has_rows,
    is_hidden,
    other_format,
    parts_of,
    row_ending,
)

SPLITS = {  # word in the name of a file or folder, or in a column `split`: the split that it means
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "test": "test", "testing": "test", "eval": "test", "evaluation": "test",
}  # fmt: skip
RECORDS = "records.jsonl"
"""The file of a folder that `guerdon label` wrote; it holds everything."""
_WORD = re.compile(r"[^\W_]+")
_SHARD = re.compile(r"[-_.]?\d{4,6}-of-\d{4,6}$|[-_.](part|shard)[-_.]?\d+$", re.IGNORECASE)
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_DIGITS = re.compile(r"(\d+)")
_NO_LOGS = ("wandb", "checkpoints")  # folders of a run whose files are no logs
_PLAIN_FOLDERS = ("data", "dataset", "")  # folders whose name is no subset

Rows = Iterator[tuple[str, Any]]


@dataclass(frozen=True)
class DataPart:
    """Rows that stand together.

    Attributes:
        where: what messages call it.
        name: of its own, in front of the ids of rows that have none.
        split: `train`, `validation`, `test`; None: its name says none.
        subset: its name, with those of folders that say no split, and without the number of a shard; None: it has none.
        read: gives the rows with their places, and can be called again.
    """

    where: str
    name: str
    split: str | None
    subset: str | None
    read: Callable[[bool], Rows]

    def rows(self, *, kept: bool = True) -> Rows:
        """The rows, each with its place; one that cannot be read is a `DataError`.

        Args:
            kept: whether the caller keeps all of them in memory.
        """
        return self.read(kept)

    def first(self, most: int) -> DataPart:
        """Its first rows alone."""
        return replace(self, read=lambda kept: islice(self.read(kept), most))

    def good_rows(self) -> list[tuple[str, dict[str, Any]]]:
        """All rows, each with its place.

        Raises:
            DataError: one cannot be read, or is no map of keys.
        """
        found = []
        for where, row in self.rows():
            if isinstance(row, DataError):
                raise row
            if not isinstance(row, dict):
                raise DataError("expected rows that are maps of keys", where=self.where)
            found.append((where, row))
        return found


def log_files(path: Path, *more: str) -> list[Path]:
    """The files that may be a log, numbers in names in their order; those of checkpoints and hidden folders are not.

    Args:
        path: a file, or a folder of files.
        more: what names of files contain that have another ending.
    """
    if path.is_file():
        return [path]
    found = [
        file for file in path.rglob("*")
        if (has_rows(file) or any(part in file.name for part in more)) and file.is_file()
        and not any(p.startswith(".") or p in _NO_LOGS for p in file.relative_to(path).parts[:-1])
    ]  # fmt: skip
    return sorted(found, key=lambda f: [int(p) if k % 2 else p for k, p in enumerate(_DIGITS.split(str(f)))])


def held_part(rows: Sequence[tuple[str, Any]], data: str, name: str, subset: str | None = None) -> DataPart:
    """Rows that are in memory, each with its place, as a part of a data set."""
    return DataPart(data, name, None, subset, lambda kept: iter(rows))


def split_word(text: str) -> str | None:
    """The split that a value of a column `split` means; None: none that is known."""
    return SPLITS.get(text.strip().casefold())


def split_and_subset(name: str) -> tuple[str | None, str]:
    """What the name of a file or a folder says: its split, and the rest without it and without numbers of shards.

    >>> split_and_subset("train_prefs-00000-of-00003")
    ('train', 'prefs')
    """
    base = _SHARD.sub("", name)
    for word in _WORD.finditer(base):
        split = SPLITS.get(word[0].casefold())
        if split is not None:
            before, after = base[: word.start()].strip("-_. "), base[word.end() :].strip("-_. ")
            return split, "_".join(filter(None, (before, after)))
    return None, base


def data_parts(data: str, *, train: bool = False) -> list[DataPart]:
    """The parts of a file, a folder, an archive, a folder that `datasets` saved, or a hub data set.

    Args:
        data: a path or a hub id; of a folder, an archive or a hub id also one split or subset of it alone:
            `openai/gsm8k:test`.
        train: without the parts of other splits than `train`; a line names what is left out. A part that was named, as
            a file or as PATH:SPLIT, is used whatever it is.

    Raises:
        DataError: it cannot be read, has no such part, or with `train` only parts of other splits.
        MissingDependencyError: a hub id, and the package `datasets` is not installed.
    """
    name, colon, chosen = data.rpartition(":")
    if colon and not Path(data).exists() and (Path(name).exists() or _HUB_ID.fullmatch(name)):
        return _named(data_parts(name), chosen, name)
    path = Path(data)
    if path.is_file() and path.suffix.lower() != ARCHIVE:
        return [_file_part(path)]
    found = _parts_of_several(data, path)
    return _to_train_on(found, data) if train else found


def _parts_of_several(data: str, path: Path) -> list[DataPart]:
    """The parts of what is not one file of rows."""
    if path.is_file():
        return [_placed(one, Path(one.member).parts[:-1]) for one in parts_of(path)]
    if (path / RECORDS).is_file():
        return [replace(_file_part(path / RECORDS), subset=None, split=None)]
    if _is_saved(path):
        return _saved_parts(path)
    return _folder_parts(path) if path.is_dir() else _hub_parts(data)


def _to_train_on(found: Sequence[DataPart], data: str) -> list[DataPart]:
    """The parts of the split `train`; where there is none, those without a split.

    Raises:
        DataError: all are of other splits.
    """
    train = [one for one in found if one.split == "train"]
    used = train or [one for one in found if one.split is None]
    others = ", ".join(dict.fromkeys(one.name for one in found if one not in used))
    if not used:
        raise DataError(f"it has no split to train on, only {others}; {data}:SPLIT names one", where=data)
    if others:
        kept = "its split train is used" if train else "its parts without a split are used"
        log_once(f"{data}: {kept}, and not {others}; {data}:SPLIT names another one")
    return used


def _named(found: Sequence[DataPart], chosen: str, data: str) -> list[DataPart]:
    """The parts of a split, or of a name as it is written.

    Raises:
        DataError: there is none.
    """
    exact = [one for one in found if chosen in (one.name, one.subset)]
    split = split_word(chosen)
    kept = exact or [one for one in found if split is not None and one.split == split]
    if not kept:
        there = dict.fromkeys(one.split or one.subset or one.name for one in found)
        raise DataError(f"{data} has no split {chosen!r}, only {', '.join(there)}")
    return kept


def _file_part(path: Path) -> DataPart:
    part = parts_of(path)[0]
    return DataPart(part.where, part.stem, split_and_subset(part.stem)[0], part.stem, _reader(part))


def _folder_parts(folder: Path) -> list[DataPart]:
    """The files of a folder and of the folders in it.

    Raises:
        DataError: none has rows.
    """
    files = [path for path in sorted(folder.rglob("*")) if _belongs(path, folder)]
    if not files:
        for file in filter(other_format, folder.rglob("*")):
            parts_of(file)
        raise DataError(f"there is no file with rows in it ({', '.join(SAVED)}, also packed)", where=folder)
    found = [(file, part) for file in files for part in parts_of(file)]
    if len(found) > 1:
        found = _with_rows(found, folder)
    return [_placed(part, file.relative_to(folder).parts[:-1]) for file, part in found]


def _with_rows(found: list[tuple[Path, Part]], folder: Path) -> list[tuple[Path, Part]]:
    """The parts that hold rows, all where none does; the others are named on standard error."""
    kept, without = [], []
    for file, part in found:
        if _holds_rows(part):
            kept.append((file, part))
        else:
            without.append(part.name)
    if not kept:
        return found
    if without:
        log_once(f"{folder}: without a list of rows, and not read: {', '.join(without)[:200]}")
    return kept


def _holds_rows(part: Part) -> bool:
    """Whether a file is none of JSON that holds an object alone, such as a configuration."""
    try:
        next(iter(part.rows() if part.ending == ".json" else ()), None)
    except NoRowsError:
        return False
    return True


def _belongs(path: Path, folder: Path) -> bool:
    """Whether a file of a folder is one with rows, and not hidden."""
    packed = path.suffix.lower() == ARCHIVE
    named = packed or row_ending(path.name) in SAVED
    return named and path.is_file() and not is_hidden(path.relative_to(folder).parts)


def _placed(part: Part, folders: Sequence[str]) -> DataPart:
    """A part whose split stands in its own name or in those of its folders, the innermost first."""
    names = [split_and_subset(folder) for folder in folders]
    splits = [split_and_subset(part.stem)[0], *(split for split, _ in reversed(names))]
    outside = [name for _, name in names if name and name not in _PLAIN_FOLDERS]
    subset = "/".join([*outside, _SHARD.sub("", part.stem)])
    return DataPart(part.where, part.stem, next(filter(None, splits), None), subset, _reader(part))


def _reader(part: Part) -> Callable[[bool], Rows]:
    front = part.place_of_rows
    return lambda kept: ((f"{front}{number}", row) for number, row in part.rows(kept=kept))


# Folders that `save_to_disk` of `datasets` wrote, and hub data sets.


def _is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` of `datasets` wrote a folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _saved_parts(folder: Path) -> list[DataPart]:
    """The splits of a folder that `save_to_disk` wrote, read without `datasets`."""
    if not (folder / "dataset_dict.json").is_file():
        return [_saved_split(folder, "train", folder)]
    names = _json_of(folder / "dataset_dict.json").get("splits")
    if not isinstance(names, list) or not names or not all(isinstance(one, str) for one in names):
        raise DataError("dataset_dict.json names no splits; save it again", where=folder)
    for name in names:
        if Path(name).name != name or name in (".", ".."):
            raise DataError(f"dataset_dict.json names a split {name[:80]!r}, which is a path", where=folder)
    return [_saved_split(folder / name, name, folder) for name in names]


def _saved_split(folder: Path, name: str, data: Path) -> DataPart:
    listed = _json_of(folder / "state.json").get("_data_files")
    names = [one.get("filename") for one in listed or () if isinstance(one, dict)]
    if not names or not all(isinstance(one, str) and _is_data_file(one) for one in names):
        raise DataError("state.json names no data files; save it again", where=folder)
    parts = [part for one in names for part in parts_of(folder / str(one))]

    def rows(kept: bool) -> Rows:
        number = 0
        for part in parts:
            for _, row in part.rows(kept=kept):
                number += 1
                yield f"{data}: {name} row {number}", row

    return DataPart(str(folder), name, split_and_subset(name)[0], name, rows)


def _is_data_file(name: str) -> bool:
    """Whether a name is that of a file with rows, and no path."""
    return Path(name).name == name and bool(row_ending(name))


def _json_of(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError("there is no such file, and a folder of `save_to_disk` has one", where=path)
    with path.open("rb") as file:
        found = read_json(file, path)
    return found if isinstance(found, dict) else {}


def _hub_parts(data: str) -> list[DataPart]:
    """The splits of a hub data set, by the `datasets` library."""
    first = Path(data).parts[0] if Path(data).parts else ""
    if not _HUB_ID.fullmatch(data) or has_rows(Path(data)) or Path(first).exists():
        raise DataError("there is no such file or folder; make it first, or check the path", where=data)
    with needs(f"{data} is read with the package datasets (it is not a file here): pip install 'guerdon[text]'"):
        import datasets
    check_data_set(DataError, "the data set", data)
    with boundary(DataError, "cannot be read with datasets", where=str(data)):
        found = datasets.load_dataset(data, trust_remote_code=False)
    splits = found if isinstance(found, dict) else {"train": found}

    def part(name: str, rows: Any) -> DataPart:
        def read(kept: bool) -> Rows:
            return ((f"{data}: {name} row {k + 1}", row) for k, row in enumerate(rows))

        return DataPart(f"{data}:{name}", name, split_and_subset(name)[0], name, read)

    return [part(str(name), rows) for name, rows in splits.items()]
