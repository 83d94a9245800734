"""The memory of off-policy learning: what happened, row by row, in columns that grow.

A row is a moment of an episode: its first one, or the one after an action, which follows the row `before`. So a
transition is a row and the one before it, and every observation is kept once. What never changes is appended to a file
per column; what sources pay is kept apart, because a reward model that learned measures it again (`relabel`). With
a limit whole episodes leave, the oldest first (`Replay.leave`). Pictures of several moments are kept once, and stacked
when they are asked for (`Replay.observations`).

    replay = Replay(folder, ["env"])
    replay.add(rollout, actions_B_T_A, rewards)
    batch = replay.observations(replay.transitions)
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guerdon.errors import CheckpointError, naming
from guerdon.rewards.control_sources import Carry
from guerdon.rewards.refit import RefittedReward
from guerdon.rl.checkpoint import cut_back
from guerdon.types import FloatArray, IntArray, Metrics, Rewards, Rollout, Segment

PAID = np.dtype([("reward", "f4"), ("value", "f4"), ("version", "i4"), ("known", "?"), ("failed", "?"), ("ends", "?")])
"""Of a row and a source: what it pays for the step to the row, the value that its model measured there, by which
version of the model (-1: it does not look at this row), whether that measurement succeeded, whether the reward is
missing, and whether the model ends the episode at the row (`ends` of its bonus)."""
SEGMENTS = 8  # files of large rows, where there is a limit
MAPPED = 4096  # bytes of a row from which on a column is read from its file
_NOT_PAID = np.zeros((), PAID)
_NOT_PAID["version"] = -1


class ReplayColumn:
    """Rows of one kind: small ones in memory, which `write` appends to a file; large ones (pictures) in the file alone.

    The file of large rows is mapped into memory, so that the system keeps there what it has room for.

    Args:
        path: the file; None: the rows stay in memory.

    Attributes:
        count: rows.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], path: Path | None = None) -> None:
        self._rows: NDArray[Any] = np.empty((0, *shape), dtype)
        self._row_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        self._path, self._mapped = path or Path(), path is not None and self._row_bytes >= MAPPED
        self.count, self._hashed, self._hash = 0, 0, hashlib.sha256()

    @property
    def rows(self) -> NDArray[Any]:
        """All rows; a view that `extend` may leave behind."""
        return self._rows[: self.count]

    def extend(self, values_N: NDArray[Any]) -> None:
        """Append rows."""
        count = self.count + len(values_N)
        if self._mapped:
            self._append(values_N.astype(self._rows.dtype, copy=False), self.count)
        if count >= len(self._rows):
            self._make_room(max(count + 1024, 2 * self.count))
        if not self._mapped:
            self._rows[self.count : count] = values_N
        self.count = count

    def write(self) -> dict[str, Any]:
        """Complete the file; what `read` needs to get the rows back."""
        new = self._rows[self._hashed : self.count]
        if self._mapped:
            self._make_room(self.count)
        else:
            self._append(new, self._hashed)
        with naming(self._path), self._path.open("r+b") as file:
            os.fsync(file.fileno())
        self._hash.update(new.data)
        self._hashed = self.count
        dtype = repr(np.lib.format.dtype_to_descr(self._rows.dtype))
        return {"rows": self.count, "shape": self._rows.shape[1:], "dtype": dtype, "sha256": self._hash.hexdigest()}

    def _append(self, values_N: NDArray[Any], at: int) -> None:
        """Write rows to the file from row `at` on; from 0 on a file of an earlier run is replaced."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with naming(self._path), self._path.open("r+b" if at else "wb", buffering=0) as file:
            file.seek(at * self._row_bytes)
            left = values_N.tobytes()
            while left:
                left = left[file.write(left) :]

    def _make_room(self, count: int) -> None:
        """Room for this many rows; in a file, where nothing is written, it takes no space."""
        shape, dtype = (count, *self._rows.shape[1:]), self._rows.dtype
        with naming(self._path):
            if self._mapped:
                os.truncate(self._path, count * self._row_bytes)
            if self._mapped and count:  # a file of no bytes cannot be mapped
                self._rows = np.memmap(self._path, dtype, "r", shape=shape).view(np.ndarray)
                return
        room = np.empty(shape, dtype)
        room[: self.count] = self.rows
        self._rows = room

    @classmethod
    def read(cls, path: Path, stored: Mapping[str, Any]) -> ReplayColumn:
        """What `write` said; the file is cut back to it.

        Raises:
            CheckpointError: rows are missing or altered.
        """
        count, shape = int(stored["rows"]), tuple(stored["shape"])
        column = cls(shape, np.lib.format.descr_to_dtype(ast.literal_eval(stored["dtype"])), path)
        cut_back(path, count * column._row_bytes, what="rows")
        if column._mapped:
            column._make_room(count)
        else:
            column._rows = np.fromfile(path, column._rows.dtype).reshape(count, *shape)
        column.count = column._hashed = count
        column._hash.update(column._rows.data)
        if column._hash.hexdigest() != stored["sha256"]:
            raise CheckpointError(f"{path} was altered since the checkpoint: its hash does not hold")
        return column


class SegmentedColumn:
    """Large rows in files of so many rows each, of which those without any rows that are kept can be deleted.

    Args:
        path: its files have the same name with a number.
        each: rows of a file.

    Attributes:
        count: rows.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], path: Path, each: int) -> None:
        self.shape, self.dtype = shape, dtype
        self._path, self._each, self._next = path, each, 0
        self._places = np.zeros(0, np.int64)  # of each row, counted over all files that there ever were
        self._segments: dict[int, ReplayColumn] = {}

    @property
    def count(self) -> int:
        """Rows."""
        return len(self._places)

    @property
    def rows(self) -> SegmentedColumn:
        """Itself: rows are read where they are asked for."""
        return self

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, which: Any) -> NDArray[Any]:
        """Rows by their numbers, or a field of all rows."""
        if isinstance(which, str):
            return self[:][which]
        places = self._places[which]
        found = np.empty((*np.shape(places), *self.shape), self.dtype)
        numbers = places // self._each
        for number in np.unique(numbers).tolist():
            here = numbers == number
            found[here] = self._segments[number].rows[places[here] - number * self._each]
        return found

    def extend(self, values_N: NDArray[Any]) -> None:
        """Append rows."""
        places = self._next + np.arange(len(values_N))
        numbers = places // self._each
        for number in np.unique(numbers).tolist():
            if number not in self._segments:
                self._segments[number] = ReplayColumn(self.shape, self.dtype, self._file(number))
            self._segments[number].extend(values_N[numbers == number])
        self._places = np.concatenate([self._places, places])
        self._next += len(values_N)

    def keep(self, kept_N: NDArray[np.bool_]) -> None:
        """Drop the other rows, and the files in which none is left."""
        self._places = self._places[kept_N]
        used = {*(self._places // self._each).tolist(), self._next // self._each}
        self._segments = {number: one for number, one in self._segments.items() if number in used}

    @property
    def files(self) -> list[str]:
        """Names of the files."""
        return [self._file(number).name for number in self._segments]

    def write(self) -> dict[str, Any]:
        """Complete the files; what `read` needs to get the rows back."""
        segments = {str(number): one.write() for number, one in self._segments.items()}
        dtype = repr(np.lib.format.dtype_to_descr(self.dtype))
        return {
            "shape": self.shape, "dtype": dtype, "each": self._each, "next": self._next, "places": _runs(self._places),
            "segments": segments,
        }  # fmt: skip

    @classmethod
    def read(cls, path: Path, stored: Mapping[str, Any]) -> SegmentedColumn:
        """What `write` said; the files are cut back to it.

        Raises:
            CheckpointError: rows are missing or altered.
        """
        dtype = np.lib.format.descr_to_dtype(ast.literal_eval(stored["dtype"]))
        column = cls(tuple(stored["shape"]), dtype, path, int(stored["each"]))
        column._places, column._next = _of_runs(stored["places"]), int(stored["next"])
        column._segments = {
            int(number): ReplayColumn.read(column._file(int(number)), one) for number, one in stored["segments"].items()
        }
        return column

    def _file(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.stem}.s{number}.bin")


def _runs(numbers_N: IntArray) -> list[list[int]]:
    """Ascending numbers as the first and the count of each stretch without gaps."""
    if not len(numbers_N):
        return []
    begins = np.flatnonzero(np.diff(numbers_N, prepend=numbers_N[0] - 2) != 1)
    counts = np.diff(np.append(begins, len(numbers_N)))
    return [[int(numbers_N[begin]), int(count)] for begin, count in zip(begins, counts, strict=True)]


def _of_runs(runs: Sequence[Sequence[int]]) -> IntArray:
    """The numbers of `_runs`."""
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(first, first + count) for first, count in runs)])


class Replay:
    """Rows of all episodes.

    Columns: `observations`; `actions` in the policy's units; `terminated`: the action ended the task; `ended`: the
    episode ended, too, where a limit cut it; `before`: the row before, -1 for a first moment; `episode` and `moment`:
    its number, and steps since it began; `success`: 1 from the first true success on, else 0, or -1 where it was not
    reported; `intervened`: the action was somebody else's; `info.NAME`: of `algorithm.keep_info`. What a reward model
    that learns looked at is in `NAME.seen`, of the rows in `NAME.rows`.

    Args:
        folder: receives the files.
        sources: names of the sources of reward.
        limit: transitions that it keeps, besides those of episodes in which somebody else acted; None: all.
        moments: that pictures of observations show at once, the newest last.

    Attributes:
        paid: source to (N,) `PAID`.
        transitions: (M,) rows that an action led to.
        interventions: (I,) those of them whose action was somebody else's.
    """

    def __init__(self, folder: Path, sources: Sequence[str], *, limit: int | None = None, moments: int = 1) -> None:
        self.folder, self._limit, self._moments = folder, limit, moments
        self._whole: tuple[tuple[int, ...], np.dtype[Any]] | None = None  # shape and type of whole observations
        self._each = max((limit or 0) // SEGMENTS, 1)
        self._generation = 0  # of the files of small columns: each time that rows are dropped there are new ones
        self._gone = np.zeros(0, np.bool_)  # rows of episodes that have left, and are not dropped yet
        self._stored: list[set[str]] = []  # files of the checkpoints that are kept
        self._columns: dict[str, ReplayColumn | SegmentedColumn] = {}
        self._paid = {name: ReplayColumn((), PAID) for name in sources}
        self._transitions = ReplayColumn((), np.dtype(np.int64))
        self._interventions = ReplayColumn((), np.dtype(np.int64))
        self._features: ReplayColumn | None = None  # not stored: a resumed run computes them again
        self._open: dict[int, int] = {}  # streams to the last row of their open episodes
        self._episodes = 0

    def __len__(self) -> int:
        return self._columns["before"].count if self._columns else 0

    @property
    def transitions(self) -> IntArray:
        """(M,) rows that an action led to, in the order in which they were added."""
        return self._transitions.rows

    @property
    def interventions(self) -> IntArray:
        """(I,) those of `transitions` whose action was somebody else's."""
        return self._interventions.rows

    def terminated(self, rows: IntArray) -> NDArray[np.bool_]:
        """Where the task is over for who learns from these rows: it ended, or a reward model ends it."""
        over = self.rows("terminated")[rows]
        return np.asarray(np.logical_or.reduce([over, *(paid["ends"][rows] for paid in self.paid.values())]))

    @property
    def paid(self) -> dict[str, NDArray[Any]]:
        """Source to (N,) `PAID`, which may be written."""
        return {name: column.rows for name, column in self._paid.items()}

    def rows(self, name: str) -> Any:
        """A column; of observations with pictures of several moments the newest one of each, see `observations`."""
        return self._columns[name].rows

    @property
    def observation_bytes(self) -> int:
        """Of a whole observation."""
        assert self._whole is not None
        shape, dtype = self._whole
        return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize

    def observations(self, rows: Any) -> NDArray[Any]:
        """Observations of these rows, as the environment showed them: pictures of all moments, side by side.

        At the start of an episode its first picture is repeated, as `gymnasium.wrappers.FrameStackObservation` does.
        """
        stored = self.rows("observations")
        if self._moments == 1:
            return np.asarray(stored[rows])
        assert self._whole is not None
        before, chain = self.rows("before"), [np.arange(len(self))[rows]]
        while len(chain) < self._moments:
            earlier = before[chain[-1]]
            chain.append(np.where(earlier >= 0, earlier, chain[-1]))
        parts = [stored[one] for one in reversed(chain)]
        shape, dtype = self._whole
        if dtype.names is None:
            return np.concatenate(parts, axis=-1)
        found = np.empty((*chain[0].shape, *shape), dtype)
        for name in dtype.names:
            several = found.dtype[name].shape != stored.dtype[name].shape
            found[name] = np.concatenate([one[name] for one in parts], axis=-1) if several else parts[-1][name]
        return found

    def _newest(self, observations_N: NDArray[Any]) -> NDArray[Any]:
        """What is kept of observations: of pictures of several moments the newest one."""
        dtype, count = observations_N.dtype, self._moments
        self._whole = observations_N.shape[1:], dtype
        if count == 1 or (dtype.names is None and not _is_picture(dtype, observations_N.shape[1:])):
            self._moments = 1
            return observations_N
        if dtype.names is None:
            return observations_N[..., -(observations_N.shape[-1] // count) :]
        fields = {name: (dtype[name].base, dtype[name].shape) for name in dtype.names}
        pictures = [name for name, (base, shape) in fields.items() if _is_picture(base, shape)]
        if not pictures:
            self._moments = 1
            return observations_N
        for name in pictures:
            base, (height, width, channels) = fields[name]
            fields[name] = base, (height, width, channels // count)
        found = np.empty(observations_N.shape, np.dtype([(name, *one) for name, one in fields.items()]))
        for name in dtype.names:
            found[name] = (
                observations_N[name][..., -fields[name][1][-1] :] if name in pictures else observations_N[name]
            )
        return found

    def features(self, compute: Callable[[NDArray[Any]], FloatArray]) -> FloatArray:
        """(N, F) of all observations by a slow function, which is called once for each row."""
        start = 0 if self._features is None else self._features.count
        if start < len(self):
            new = compute(self.observations(slice(start, None)))
            self._features = self._features or ReplayColumn(new.shape[1:], new.dtype)
            self._features.extend(new)
        assert self._features is not None
        return self._features.rows

    def add(
        self, rollout: Rollout[Any], actions_B_T_A: FloatArray, rewards: Mapping[str, Rewards]
    ) -> tuple[IntArray, IntArray]:
        """Append a rollout: streams go on where the one before it left them.

        Args:
            rollout: with `ends`.
            actions_B_T_A: in the policy's units.
            rewards: of every source that was measured; those of the others are missing.

        Returns:
            (B, T) rows after each step, and (B, T + 1) first moments of episodes, by the step that follows; -1: none.
        """
        if rollout.fresh:
            self._open.clear()
        after, first = self._append(rollout, actions_B_T_A)
        inside = after >= 0
        for name, paid in self._paid.items():
            paid.extend(np.full(len(self) - paid.count, _NOT_PAID))
            rows, found = paid.rows, rewards.get(name)
            rows["failed"][after[inside]] = True if found is None else found.failed[inside]
            if found is not None:
                rows["reward"][after[inside]] = found.values[inside]
                if found.ends is not None:
                    rows["ends"][after[inside]] = found.ends[inside]
        return after, first

    def put(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Append rows to columns, which are made where they are not there."""
        for name, values in columns.items():
            if name not in self._columns:
                self._columns[name] = self._new(name, values.shape[1:], values.dtype)
            self._columns[name].extend(values)

    def _new(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ReplayColumn | SegmentedColumn:
        """A column without rows."""
        large = dtype.itemsize * int(np.prod(shape, dtype=np.int64)) >= MAPPED
        if self._limit is not None and large:
            return SegmentedColumn(shape, dtype, self._path(name), self._each)
        return ReplayColumn(shape, dtype, self._path(name, self._generation))

    def leave(self) -> None:
        """Let whole episodes leave, the oldest first, as far as there are more transitions than the limit.

        Episodes that are open, and those in which somebody else acted, stay. Rows are dropped, and others get new
        numbers, where so many have left as a file of large rows has.
        """
        if self._limit is None or not len(self):
            return
        self._gone = np.concatenate([self._gone, np.zeros(len(self) - len(self._gone), np.bool_)])
        episode, stays = self.rows("episode"), np.zeros(self._episodes, np.bool_)
        stays[episode[self.rows("intervened")]] = True
        counted = self.transitions[~stays[episode[self.transitions]]]
        over = len(counted) - self._limit
        if over <= 0:
            return
        stays[episode[list(self._open.values())]] = True
        counts = np.bincount(episode[counted], minlength=self._episodes)
        able = np.flatnonzero((counts > 0) & ~stays)
        enough = int(np.searchsorted(np.cumsum(counts[able]), over)) + 1
        leaving = np.zeros(self._episodes, np.bool_)
        leaving[able[:enough]] = True
        self._gone |= leaving[episode]
        if self._gone.sum() >= self._each:
            self._drop()
        self._number()

    def _number(self) -> None:
        """Which rows are transitions, and which of them somebody else's."""
        self._transitions, self._interventions = (ReplayColumn((), np.dtype(np.int64)) for _ in range(2))
        if len(self):
            there = ~self._gone
            self._transitions.extend(np.flatnonzero((self.rows("before") >= 0) & there))
            self._interventions.extend(np.flatnonzero(self.rows("intervened") & there))

    def _drop(self) -> None:
        """Drop the rows of episodes that have left; the others are numbered anew."""
        kept = ~self._gone
        new = np.cumsum(kept) - 1
        self._generation += 1
        before = self.rows("before")[kept]
        moved = {"before": np.where(before >= 0, new[before], -1)}
        of_rows: dict[str, Any] = {
            name: self._columns[f"{name}.rows"].rows for name in self._paid if f"{name}.rows" in self._columns
        }
        for name, rows in of_rows.items():
            moved[f"{name}.rows"] = new[rows[kept[rows]]]
        for name, column in self._columns.items():
            source = name.removesuffix(".rows").removesuffix(".seen")
            these = kept[of_rows[source]] if source != name and source in of_rows else kept
            if isinstance(column, SegmentedColumn):
                column.keep(these)
                continue
            values = moved.get(name)
            again = ReplayColumn(column.rows.shape[1:], column.rows.dtype, self._path(name, self._generation))
            again.extend(column.rows[these] if values is None else values)
            self._columns[name] = again
        for name, paid in self._paid.items():
            self._paid[name] = ReplayColumn((), PAID)
            self._paid[name].extend(paid.rows[kept])
        if self._features is not None:
            features = self._features.rows
            self._features = ReplayColumn(features.shape[1:], features.dtype)
            self._features.extend(features[kept[: len(features)]])
        self._open = {stream: int(new[row]) for stream, row in self._open.items()}
        self._gone = np.zeros(len(before), np.bool_)

    def episodes(self) -> tuple[IntArray, IntArray]:
        """(N,) rows in order of their episodes and of time, and (E + 1,) where each episode begins among them."""
        of_rows = self.rows("episode")
        order = np.argsort(of_rows, kind="stable")
        return order, np.searchsorted(of_rows[order], np.arange(self._episodes + 1))

    def _append(self, rollout: Rollout[Any], actions_B_T_A: FloatArray) -> tuple[IntArray, IntArray]:
        """Append what happened: (B, T) rows after each step, and (B, T + 1) first rows before each step; -1: none."""
        valid, finished = rollout.mask & ~rollout.failed, rollout.done | rollout.failed
        (streams, length), ends = valid.shape, {(i, t): shown for i, t, shown in rollout.ends}
        reported = np.where(rollout.success_known, rollout.success, -1).astype(np.int8)
        intervened = np.zeros_like(valid) if rollout.intervened is None else rollout.intervened
        shown = rollout.inputs.observations.reshape(streams, length, *rollout.inputs.observations.shape[1:])
        after, first = np.full((streams, length), -1), np.full((streams, length + 1), -1)
        for i in range(streams):
            stops = np.flatnonzero(finished[i]).tolist()
            for start, stop in zip([0, *(n + 1 for n in stops)], [*stops, length - 1], strict=True):
                steps = np.arange(start, stop + 1)[valid[i, start : stop + 1]]
                if len(steps):
                    begin = int(steps[0])
                    last = ends[i, stop] if (i, stop) in ends else ends[i, length]
                    if i not in self._open:
                        first[i, begin] = self._begin(i, shown[i, begin], actions_B_T_A.shape[2:], rollout.kept)
                    over, done = np.zeros((2, len(steps)), np.bool_)
                    over[-1], done[-1] = rollout.terminated[i, stop], rollout.done[i, stop]
                    if rollout.life_lost is not None:
                        over |= rollout.life_lost[i, steps]
                    after[i, steps] = self._extend(
                        i, np.concatenate([shown[i, begin + 1 : stop + 1], last[None]]), actions_B_T_A[i, steps], over,
                        done, reported[i, steps], intervened[i, steps],
                        {name: values[i, steps] for name, values in rollout.kept.items()},
                    )  # fmt: skip
                if finished[i, start : stop + 1].any():
                    self._open.pop(i, None)
            if finished[i, -1] and (i, length) in ends and length:  # an episode began after the last step
                first[i, length] = self._begin(i, ends[i, length], actions_B_T_A.shape[2:], rollout.kept)
        return after, first

    def _begin(
        self, stream: int, observation: NDArray[Any], action_shape: tuple[int, ...], kept: Mapping[str, NDArray[Any]]
    ) -> int:
        """Append the first moment of an episode of a stream that has none open."""
        self._episodes += 1
        nothing = np.zeros((1, *action_shape), np.float32)
        never = np.zeros(1, np.bool_)
        none = {name: np.zeros((1, *values.shape[2:]), values.dtype) for name, values in kept.items()}
        row = self._extend(stream, observation[None], nothing, never, never, np.zeros(1, np.int8), never, none)
        return int(row[0])

    def _extend(
        self,
        stream: int,
        observations: NDArray[Any],
        actions: NDArray[Any],
        terminated: NDArray[Any],
        ended: NDArray[Any],
        success: NDArray[Any],
        intervened: NDArray[Any],
        kept: Mapping[str, NDArray[Any]],
    ) -> IntArray:
        """Append moments of a stream's episode; their rows."""
        rows = np.arange(len(self), len(self) + len(actions))
        previous = self._open.get(stream, -1)
        moment, episode, before = 0, self._episodes - 1, 0
        if previous >= 0:
            moment, episode = int(self.rows("moment")[previous]) + 1, int(self.rows("episode")[previous])
            before = int(self.rows("success")[previous])
        columns: dict[str, NDArray[Any]] = {
            "observations": self._newest(observations), "actions": actions, "terminated": terminated, "ended": ended,
            "before": np.concatenate([[previous], rows[:-1]]), "episode": np.full(len(rows), episode),
            "moment": moment + np.arange(len(rows)), "success": _once(success, before), "intervened": intervened,
        }  # fmt: skip
        self.put(columns | {info_column(name): values for name, values in kept.items()})
        self._transitions.extend(rows[columns["before"] >= 0])
        self._interventions.extend(rows[intervened])
        self._open[stream] = int(rows[-1])
        return rows

    # State.

    def _path(self, name: str, generation: int = 0) -> Path:
        return self.folder / (f"{name}.g{generation}.bin" if generation else f"{name}.bin")

    @property
    def files(self) -> set[str]:
        """Names of the files that it has now."""
        found: set[str] = set()
        for name, column in self._columns.items():
            if isinstance(column, SegmentedColumn):
                found.update(column.files)
            else:
                found.add(self._path(name, self._generation).name)
        return found

    def saved(self, keep: int) -> None:
        """A checkpoint with its state is whole: files that none of the newest checkpoints needs are deleted.

        Args:
            keep: how many checkpoints are kept.
        """
        if self._limit is None:
            return
        self._stored = [*self._stored, self.files][-max(keep, 1) :]
        needed = set().union(*self._stored)
        for path in self.folder.glob("*.bin"):
            if path.name not in needed:
                path.unlink()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What sources pay, and how many rows the files have, to which new ones are appended now."""
        columns = {name: column.write() for name, column in self._columns.items()}
        tensors = {
            f"{name}.{field}": torch.from_numpy(rows[field].copy())
            for name, rows in self.paid.items()
            for field in PAID.names or ()
        }
        open_rows = [[stream, row] for stream, row in self._open.items()]
        values: dict[str, Any] = {"columns": columns, "open": open_rows, "episodes": self._episodes}
        if self._limit is not None:
            values |= {"generation": self._generation, "gone": _runs(np.flatnonzero(self._gone))}
        if self._moments > 1 and self._whole is not None:
            shape, dtype = self._whole
            values["stacked"] = [self._moments, shape, repr(np.lib.format.dtype_to_descr(dtype))]
        return tensors, values

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Return to a stored state; files are cut back to it.

        Raises:
            CheckpointError: rows are missing or altered.
        """
        self._generation = int(values.get("generation", 0))
        self._columns = {}
        for name, stored in values["columns"].items():
            if "segments" in stored:
                self._columns[name] = SegmentedColumn.read(self._path(name), stored)
            else:
                self._columns[name] = ReplayColumn.read(self._path(name, self._generation), stored)
        if "stacked" in values:
            self._moments, shape, dtype = values["stacked"]
            self._whole = tuple(shape), np.lib.format.descr_to_dtype(ast.literal_eval(dtype))
        elif self._columns:  # of an earlier guerdon: whole observations
            stored = self.rows("observations")
            self._moments, self._whole = 1, (stored.shape[1:], stored.dtype)
        self._features = None
        self._open = {int(stream): int(row) for stream, row in values["open"]}
        self._episodes = int(values["episodes"])
        for name in self._paid:
            paid = np.full(len(self), _NOT_PAID)
            for field in PAID.names or ():
                paid[field] = tensors[f"{name}.{field}"].numpy()
            self._paid[name] = ReplayColumn((), PAID)
            self._paid[name].extend(paid)
        self._gone = np.zeros(len(self), np.bool_)
        self._gone[_of_runs(values.get("gone", []))] = True
        self._stored = [self.files]
        self._number()


def _is_picture(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    return dtype == np.uint8 and len(shape) == 3


def info_column(name: str) -> str:
    """The column, which is a file too, of the values of a key of `info`."""
    return f"info.{quote(name, safe='')}"


def _once(reported: NDArray[np.int8], before: int) -> NDArray[np.int8]:
    """1 from the first success on; until then what was reported of the moment itself: 0, or -1 where it is not known.

    Args:
        reported: of each moment.
        before: what this gave for the moment before them.
    """
    once = np.logical_or.accumulate(np.concatenate([[before], reported]) > 0)[1:]
    return np.where(once, 1, reported).astype(np.int8)


# ---------------------------------------------------------------------------------------------------------------------
# Rewards of a replay by reward models that learn: what is sampled is measured again, if an older version measured it.
#
# Values are kept per row with the version of the model that measured them. A reward is a function of values of its
# episode (`ControlReward.shape`), so before a row is used, the values that its reward depends on are made current,
# each once, and the rewards of the episodes that they are in are computed anew. A failed measurement stays missing
# until the model has another version.
#
#     remember(replay, source, rollout, rewards["resnet"], after, first)
#     metrics = relabel(replay, source, rows)
# ---------------------------------------------------------------------------------------------------------------------


def remember(
    replay: Replay, source: RefittedReward, rollout: Rollout[Any], found: Rewards, after: IntArray, first: IntArray
) -> None:
    """Keep the values that a source measured in a rollout, and what it needs to measure them again.

    Args:
        replay: that has the rollout.
        source: which measured it.
        rollout: with its segments.
        found: what it measured.
        after, first: of `Replay.add`.
    """
    scores = found.scores
    assert scores is not None
    assert scores.last_N is not None
    keys = zip(scores.rows_N.tolist(), scores.steps_N.tolist(), scores.last_N.tolist(), strict=True)
    values = dict(zip(keys, scores.values_N.tolist(), strict=True))  # a first moment is not at a step that goes on
    paid = replay.paid[source.name]
    for segment, rows in zip(rollout.segments, rows_of_segments(rollout.segments, after, first), strict=True):
        chosen = np.flatnonzero(source.observes.selects(segment.rows_F, segment.last_F) & (rows >= 0))
        if len(chosen):
            replay.put({f"{source.name}.rows": rows[chosen], f"{source.name}.seen": source.seen(segment)[chosen]})
        paid["version"][rows[chosen]] = source.version
        for n in chosen:
            value = values.get((segment.stream, int(segment.steps_F[n]), bool(segment.last_F[n])))
            if value is not None:
                paid["value"][rows[n]], paid["known"][rows[n]] = value, True


def rows_of_segments(segments: Sequence[Segment], after: IntArray, first: IntArray) -> list[IntArray]:
    """Rows of the replay of every segment's rows; -1 where it has none."""
    return [
        np.where(one.rows_F == 0, first[one.stream, one.steps_F + 1], after[one.stream, np.maximum(one.steps_F, 0)])
        for one in segments
    ]


def relabel(replay: Replay, source: RefittedReward, rows: IntArray) -> Metrics:
    """Make the rewards of these rows those of the model as it is.

    Args:
        replay: whose rewards are written.
        source: whose model measures.
        rows: that are sampled; any may be named more than once.

    Returns:
        `relabelled`: rows that were measured again, and `relabel_failed`: how many of them failed.
    """
    paid, version = replay.paid[source.name], source.version
    scored, failed, touched = 0, 0, np.zeros(0, np.int64)
    wanted = np.unique(rows)
    while True:  # where a baseline fails, the one before it is needed
        needed = _needed(replay, source, wanted)
        stale = needed[paid["version"][needed] != version]
        if not len(stale):
            break
        places = np.searchsorted(replay.rows(f"{source.name}.rows"), stale)
        values = source.values_of(replay.rows("moment")[stale], replay.rows(f"{source.name}.seen")[places])
        paid["version"][stale] = version
        paid["known"][stale], paid["value"][stale] = np.isfinite(values), np.nan_to_num(values)
        scored, failed = scored + len(stale), failed + int((~np.isfinite(values)).sum())
        touched = np.union1d(touched, replay.rows("episode")[stale])
    order, starts = replay.episodes() if len(touched) else (touched, touched)
    for episode in touched.tolist():
        _pay(replay, source, order[starts[episode] : starts[episode + 1]])
    return {"relabelled": float(scored), "relabel_failed": float(failed)}


def _needed(replay: Replay, source: RefittedReward, rows: IntArray) -> IntArray:
    """Rows whose values decide the rewards of these rows, as far as it is known by now.

    The own value; with shapings that compare with an earlier value, the last one that is known or not current, too;
    with a bonus, which is paid once, all before it.
    """
    paid, before, shaping = replay.paid[source.name], replay.rows("before"), source.settings.shaping
    looked, current = paid["version"] >= 0, paid["version"] == source.version
    usable = looked & ~(current & ~paid["known"])  # a failed value is passed over
    own = rows[looked[rows]]
    found, at = [own], before[own] if shaping in ("relative", "bonus") else rows[:0]
    if shaping == "potential":  # it is held from the last value on, also at steps without one
        at = np.concatenate([before[rows], rows])
    at = np.unique(at[at >= 0])
    while len(at):
        here = usable[at]
        found.append(at[here])
        at = np.unique(before[at if shaping == "bonus" else at[~here]])
        at = at[at >= 0]
    return np.unique(np.concatenate(found))


def _pay(replay: Replay, source: RefittedReward, rows: IntArray) -> None:
    """Compute the rewards of an episode from its values."""
    paid = replay.paid[source.name]
    values = np.where(paid["known"][rows], paid["value"][rows], np.nan).astype(np.float64)
    scored = np.flatnonzero(paid["version"][rows] >= 0)
    rewards, (failed, ends) = np.zeros(len(rows) - 1, np.float32), np.zeros((2, len(rows) - 1), np.bool_)
    source.shape(Carry(), _segment(replay, rows), scored.tolist(), values[scored], rewards, failed, ends)
    rewards[failed] = 0.0
    paid["reward"][rows[1:]] = rewards * np.float32(source.settings.reward_coef)
    paid["failed"][rows[1:]] = failed
    paid["ends"][rows[1:]] = ends & source.settings.ends


def _segment(replay: Replay, rows: IntArray) -> Segment:
    """An episode as a stretch of a rollout, without what is seen of it."""
    moments, ended = replay.rows("moment")[rows], replay.rows("ended")[rows]
    return Segment(
        stream=0,
        number=None,
        task="",
        start=0,
        end=int(moments[-1]) - 1,
        terminated=bool(replay.rows("terminated")[rows[-1]]),
        finished=bool(ended[-1]),
        steps_F=moments - 1,
        rows_F=moments,
        last_F=ended,
        success_F=(None,) * len(rows),
        frames_F=np.zeros((len(rows), 1, 1, 3), np.uint8),
        states_F=np.zeros((len(rows), 0), np.float32),
    )
