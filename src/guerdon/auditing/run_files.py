"""Logs of robots: LeRobot data sets, monitor files of Stable-Baselines3.

rows = read_lerobot(Path("data/episodes"), {})
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from guerdon.auditing.rows import Numbers, RobotSteps, Rows
from guerdon.errors import DataError, boundary
from guerdon.files.bounds import BadRecord, Unparsed, table_rows
from guerdon.reading.containers import Part
from guerdon.reading.nested import RESCORED

if TYPE_CHECKING:
    from guerdon.episodes.data_files import DataFiles  # imports pyarrow, which most logs do not need

MONITOR = "monitor.csv"
_REWARDS = re.compile(r"reward|progress|score|success", re.IGNORECASE)
_POSITION = ("episode_index", "frame_index", "task_index")  # columns of every LeRobot data set
_CONTACT = re.compile(r"contact|force|tactile|touch", re.IGNORECASE)
_HEAD = 100_000  # characters of the first line of a monitor file
_TAIL, _CHECKED = 1 << 16, 64  # bytes at the end of a monitor file: of a line, and by which it is known again

NO_EPISODE = "not an episode"
"""What is wrong with a line of a monitor file, such as one that is half-written."""


class MonitorFiles:
    """Episodes of monitor files, of which only lines are read that were not there before."""

    def __init__(self) -> None:
        self._known: dict[Path, _Monitor] = {}

    def records(self, files: Sequence[Path]) -> Iterator[tuple[Part, list[tuple[int, Any]]]]:
        """All episodes with their lines; steps are those of all environments together, in order of time."""
        read = [(Part(file), self._rows(file)) for file in files]
        episodes = [row for _, rows in read for _, row in rows if isinstance(row, dict)]
        episodes.sort(key=lambda row: row["at"])
        steps = accumulate(row["length"] for row in episodes)
        step_of = {id(row): step for row, step in zip(episodes, steps, strict=True)}
        for part, rows in read:
            yield part, [(n, _at_step(row, step_of.get(id(row)))) for n, row in rows]

    def _rows(self, file: Path) -> list[tuple[int, Any]]:
        """The rows of a file and their lines. A last line without an end is read again the next time."""
        known = self._known.get(file)
        if known is None or not known.still_holds(file):
            known = self._known[file] = _Monitor()
        with boundary(DataError, "cannot be read as a monitor file", where=str(file)), file.open(newline="") as lines:
            if known.names:
                lines.seek(known.offset)
            else:
                known.started = float(json.loads(lines.readline(_HEAD).removeprefix("#")).get("t_start", 0.0))
            found = table_rows(lines, ",", strict=False)
            names: list[str] | Unparsed = known.names or next(found, [])
            if isinstance(names, Unparsed):
                raise DataError(f"the line with the names of the columns is {names}", where=file)
            written = enumerate((cells for cells in found if cells), start=2 + len(known.rows))
            new = [(n, _episode(cells, names, known.started, f"{file}:{n}")) for n, cells in written]
            end = lines.tell()
        return known.add(file, names, new, end)


@dataclass
class _Monitor:
    """What was read of a monitor file.

    Attributes:
        names: of its columns; empty where it was not read yet.
        started: seconds at which the run began.
        rows: up to the end of a line.
        offset: of this end.
        end: the last bytes before it, which a file that only grew still has there.
    """

    names: list[str] = field(default_factory=list)
    started: float = 0.0
    rows: list[tuple[int, Any]] = field(default_factory=list)
    offset: int = 0
    end: bytes = b""

    def still_holds(self, file: Path) -> bool:
        """Whether the file begins with what was read."""
        with boundary(DataError, "cannot be read as a monitor file", where=str(file)), file.open("rb") as opened:
            opened.seek(self.offset - len(self.end))
            return opened.read(len(self.end)) == self.end

    def add(self, file: Path, names: list[str], new: list[tuple[int, Any]], end: int) -> list[tuple[int, Any]]:
        """All rows with those that were read up to some byte; they are kept if a line ends there, else but for one."""
        with file.open("rb") as opened:
            opened.seek(max(0, end - _TAIL))
            tail = opened.read(end - opened.tell())
        line = tail[tail.rfind(b"\n") + 1 :]
        if not names or len(line) == _TAIL or b'"' in line:  # a row may have begun lines before
            return [*self.rows, *new]
        self.names, self.offset = names, end - len(line)
        self.end = tail[: len(tail) - len(line)][-_CHECKED:]
        whole = new[:-1] if line.strip() else new
        self.rows = [*self.rows, *whole]
        return [*self.rows, *new[len(whole) :]]


def _at_step(row: Any, step: float | None) -> Any:
    """An episode with its step in the place of its time; what is no episode as it is."""
    if step is None:
        return row
    return {**{name: value for name, value in row.items() if name != "at"}, "step": step}


def _episode(cells: list[str] | Unparsed, names: Sequence[str], started: float, where: str) -> Any:
    """The episode of a row of a monitor file, with the time of its end; or what is wrong with the row."""
    if isinstance(cells, Unparsed):
        return BadRecord(str(cells), cells.why, where=where)
    row: dict[str, Any] = dict(zip(names, cells, strict=False))
    try:
        own = {"reward": float(row.pop("r")), "length": float(row.pop("l"))}
        return {**own, "at": started + float(row.pop("t")), **row}
    except (ValueError, KeyError):  # a half-written line
        return BadRecord(NO_EPISODE, NO_EPISODE, where=where)


class _RobotColumns(NamedTuple):
    """Names of the columns of a LeRobot data set that an audit looks at, besides those that all have."""

    reward: str
    truth: str | None
    contact: str | None
    others: list[str]  # further rewards


def read_lerobot(root: Path, given: Mapping[str, str]) -> Rows:
    """The rows of a LeRobot data set (versions 2 and 3): a step of an episode each.

    Args:
        root: folder with `meta/info.json`.
        given: columns by what they hold, as passed by the user.

    Raises:
        DataError: it has no data, or no column of rewards.
    """
    from guerdon.episodes.data_files import DataFiles
    from guerdon.episodes.layout import DONE, STATE

    files = DataFiles(root)
    chosen = _robot_columns(root, files, given)
    looked_at = {*_POSITION, STATE, DONE, chosen.reward, chosen.truth, chosen.contact, *chosen.others}
    rows = _robot_rows(files, sorted(set(files.numbers) & looked_at))
    flat = rows.flat
    if not {chosen.reward, "episode_index", "frame_index"} <= flat.keys():
        why = ", ".join(rows.bad) or f"{chosen.reward} is not one number per row"
        raise DataError(f"no row could be read: {why}", where=root)
    notes = () if files.pictures else ("pictures are in videos, which are not read: motion is that of the state",)
    return Rows(
        layout="a LeRobot data set",
        files=tuple(str(path.relative_to(root)) for path in files.paths),
        file_N=np.repeat(np.arange(len(rows.counts)), rows.counts),
        line_N=np.concatenate([np.arange(1, count + 1) for count in rows.counts]),
        reward_N=flat[chosen.reward],
        truth_N=flat.get(chosen.truth or ""),
        prompt_N=flat["task_index"].astype(np.int64) if "task_index" in flat else None,
        rewards={name: flat[name] for name in chosen.others if name in flat},
        steps=_robot_steps(rows, chosen.contact),
        bad=dict(rows.bad),
        notes=notes,
    )


def _robot_steps(rows: _RobotRows, contact: str | None) -> RobotSteps:
    """What a robot did in each row; `contact` names the column with its forces."""
    from guerdon.episodes.layout import DONE, STATE

    flat = rows.flat
    forces = rows.columns.get(contact or "")
    return RobotSteps(
        episode_N=flat["episode_index"].astype(np.int64),
        frame_N=flat["frame_index"].astype(np.int64),
        state_N_D=rows.columns.get(STATE),
        done_N=flat[DONE] > 0 if DONE in flat else None,
        picture_N=np.asarray(rows.hashes, np.int64) if rows.hashes else None,
        contact_N=None if forces is None else np.abs(forces).max(axis=1),
    )


class _RobotRows(NamedTuple):
    """Rows of a LeRobot data set.

    Attributes:
        columns: (N, D) of each name.
        counts: rows of each file.
        hashes: of the pictures that stand in the data itself.
        bad: files that cannot be read.
    """

    columns: dict[str, Numbers]
    counts: list[int]
    hashes: list[int]
    bad: Counter[str]

    @property
    def flat(self) -> dict[str, Numbers]:
        """(N,) of the names that have one number in a row."""
        return {name: values[:, 0] for name, values in self.columns.items() if values.shape[1] == 1}


def _robot_rows(files: DataFiles, names: Sequence[str]) -> _RobotRows:
    parts: dict[str, list[Numbers]] = {name: [] for name in names}
    counts, hashes, bad = list[int](), list[int](), Counter[str]()
    for path in files.paths:
        try:
            read = files.numbers_of(path, names)
            hashes += [zlib.crc32(picture) for picture in files.pictures_of(path)]
        except DataError:
            bad[f"{path.name} cannot be read"] += 1
            read = {}
        counts.append(len(read[names[0]]) if read else 0)
        for name, values in read.items():
            parts[name].append(values)
    columns = {name: np.concatenate(found) for name, found in parts.items() if found}
    return _RobotRows(columns, counts, hashes, bad)


def _robot_columns(root: Path, files: DataFiles, given: Mapping[str, str]) -> _RobotColumns:
    """The columns to look at: those that the user passed, else by their names."""
    from guerdon.episodes.layout import REWARD, SUCCESS

    names = files.numbers
    reward = given.get("reward") or _first_of((REWARD, "reward", RESCORED), names) or REWARD
    truth = given.get("truth") or _first_of((SUCCESS, "success"), names)
    for what, name in {**given, "reward": reward}.items():
        if name not in names:
            raise DataError(
                f"a LeRobot data set without a column {name}, found {', '.join(files.names)}; pass --columns "
                f"{what}=NAME, or add rewards with `guerdon score {root} --model ...`",
                where=root,
                field=name,
            )
    contact = next((name for name in names if _CONTACT.search(name)), None)
    others = [name for name in names if _REWARDS.search(name) and name not in (reward, truth)]
    return _RobotColumns(reward, truth, contact, others)


def _first_of(wanted: Sequence[str], names: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in names), None)
