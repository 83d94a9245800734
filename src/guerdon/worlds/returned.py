"""What an environment returned as an observation, judged before anything changes it.

A vector environment copies observations into arrays of the declared type, and pictures of floats become bytes: NaN and
numbers of other ranges are gone by then. So each array is judged as it was returned. What is found goes along in `info`
under keys of guerdon's own, through every kind of vector environment, with the moment that it is about.

    judge = CopyJudge(env.observation_space)
    observation, marks = judge(observation)     # marks: {} where nothing is wrong
    not_finite_in(info, copies)                 # (B,) bool
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from guerdon.errors import ConfigError
from guerdon.processes.progress import log_line
from guerdon.types import BoolArray

MARK = "guerdon:"
"""Begins the keys of `info` that are guerdon's own."""
NOT_FINITE = f"{MARK}not_finite"
"""Of a copy: the name of the part of its observation that is not finite."""
OUTSIDE = f"{MARK}outside "
"""Begins a key whose value of a copy is a number outside of the declared space; the rest says of which part."""
LIFE_LOST = f"{MARK}life_lost"
"""Of a copy: a life was lost, which ends the task for who learns, and the game goes on."""
LARGEST = np.float64(np.finfo(np.float32).max)
_CLOSE = 1e-5  # of a bound, for rounding to float32
_SIDE = 8  # pixels of the smaller side of a picture, at least
_LEVEL = 0.5 / 255  # of a picture's range: what is nearer than that is the same byte


def named(name: str) -> str:
    """A part of an observation, in words."""
    return f"the observation {name!r}" if name else "the observation"


def arrays_of(space: gymnasium.Space, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], gymnasium.Space]]:
    """Where the numbers of observations stand, and of which space they are."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in inner:
            yield from arrays_of(part, (*path, key))
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        yield path, space


class Declared:
    """Judges arrays of a space as they were returned.

    Args:
        space: a Box, Discrete, MultiDiscrete or MultiBinary.
        name: of the part of observations.
        high: of a picture, the number of its brightest points; None: it is no picture.
        what: begins messages.
    """

    def __init__(self, space: gymnasium.Space, name: str, *, high: float | None = None, what: str = "env") -> None:
        self.name, self._high, self._what = name, high, what
        self._whole = np.dtype(space.dtype).kind in "iub"
        self._dtype, self._shape = np.dtype(space.dtype), tuple(space.shape or ())
        low, top = _bounds(space)
        self._all_fit = self._whole and _covers(self._dtype, low, top)
        text = f"{_number(low.min())} to {_number(top.max())}" if low.size else "of no numbers"
        self._key = f"{OUTSIDE}{named(name)} ({text})"
        low, top = np.asarray(low, np.float64), np.asarray(top, np.float64)
        room = 0.0 if self._whole else _CLOSE
        if not self._whole and high is not None:
            room = _LEVEL
        kept = np.float32 if self._dtype == np.float32 else np.float64
        self._low = np.maximum(low - room * np.maximum(abs(low), 1.0), -LARGEST).astype(kept)
        self._top = np.minimum(top + room * np.maximum(abs(top), 1.0), LARGEST).astype(kept)

    def fits(self, dtype: np.dtype[Any]) -> bool:
        """Whether any numbers of this type are of the space's type, so that nothing is lost in its arrays."""
        return dtype == self._dtype or (dtype.kind == "f" and self._dtype.kind == "f")

    def __call__(self, values: Any, count: int) -> tuple[BoolArray, dict[str, np.ndarray]]:
        """(N,) which of N copies are finite, and marks of the numbers that are not as declared: by key (N,) objects.

        Raises:
            ConfigError: a picture of floats has another range than its space.
        """
        rows = np.asarray(values).reshape(count, *self._shape)
        everywhere = np.ones(count, np.bool_)
        kind = rows.dtype.kind
        if kind not in "fiub" or rows.size == 0:
            return everywhere, {}
        if kind == "b" or (self._all_fit and rows.dtype == self._dtype):
            return everywhere, {}
        inside = (rows >= self._low) & (rows <= self._top)
        if self._whole and kind == "f":
            inside &= rows == np.rint(rows)
        if inside.all():
            return everywhere, {}
        return self._found(rows, inside, count)

    def _found(self, rows: np.ndarray, inside: BoolArray, count: int) -> tuple[BoolArray, dict[str, np.ndarray]]:
        flat, within = rows.reshape(count, -1), inside.reshape(count, -1)
        finite = np.asarray((np.abs(flat.astype(np.float64)) <= LARGEST).all(axis=1))
        marks: dict[str, np.ndarray] = {}
        if not finite.all():
            marks[NOT_FINITE] = np.full(count, None)
            marks[NOT_FINITE][~finite] = named(self.name)
        wrong = np.flatnonzero(finite & ~within.all(axis=1)).tolist()
        if wrong and self._high is not None and rows.dtype.kind == "f":
            self._refuse(flat[wrong[0]])
        if wrong:
            marks[self._key] = np.full(count, None)
            for i in wrong:
                marks[self._key][i] = float(flat[i, np.argmin(within[i])])
        return finite, marks

    def _refuse(self, picture: np.ndarray) -> None:
        """Refuse a picture of floats whose range is another than that of its space."""
        assert self._high is not None
        low, high = float(picture.min()), float(picture.max())
        if self._whole and not 0.0 < high <= 1.0:
            return  # fractions between the levels of a picture
        raise ConfigError(
            f"{self._what}: {named(self.name)} is declared as a picture of {self._dtype} from 0 to {self._high:g} and "
            f"holds {picture.dtype} from {low:.4g} to {high:.4g}: return what observation_space says, or declare "
            "what is returned",
            key="env.task",
        )


def _bounds(space: gymnasium.Space) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest numbers of a space."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(1), np.ones(1)
    start = np.asarray(space.start, np.int64)
    counts = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return start, start + counts - 1


def _covers(dtype: np.dtype[Any], low: np.ndarray, top: np.ndarray) -> bool:
    """Whether a space of whole numbers has all numbers of its type."""
    if dtype.kind == "b":
        return True
    info = np.iinfo(dtype)
    return bool((low <= info.min).all() and (top >= info.max).all())


def _number(value: Any) -> str:
    return f"{float(value):.6g}"


class CopyJudge:
    """Judges what one copy returned where the arrays of its space would lose something: floats in whole numbers.

    Args:
        space: of the copy's observations.
    """

    def __init__(self, space: gymnasium.Space) -> None:
        found = list(arrays_of(space))
        self._parts = [(path, Declared(one, ".".join(map(str, path)), high=brightest(one))) for path, one in found]
        self._types = [np.dtype(one.dtype) for _, one in found]

    def __call__(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """The observation, with numbers that its space's arrays can hold; and marks."""
        marks: dict[str, Any] = {}
        for (path, judge), dtype in zip(self._parts, self._types, strict=True):
            part = observation
            for key in path:
                part = part[key]
            found = np.asarray(part)
            if judge.fits(found.dtype) or dtype.kind == "f" or found.dtype.kind not in "fiu":
                continue
            _, more = judge(found[None], 1)
            marks |= {key: value[0] for key, value in more.items()}
            observation = _replaced(observation, path, _held(found, dtype))
        return observation, marks


def brightest(space: gymnasium.Space) -> float | None:
    """255 of bytes that may be pictures; None of others."""
    bytes_of_sides = isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) > 1
    return 255.0 if bytes_of_sides and sorted(space.shape)[-2] >= _SIDE else None


def _held(found: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Numbers that a type can hold: the nearest ones, 0 for NaN."""
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return np.asarray(np.clip(np.nan_to_num(found), low, high), dtype)


def _replaced(observation: Any, path: tuple[Any, ...], value: np.ndarray) -> Any:
    """The observation with another part."""
    if not path:
        return value
    key, *rest = path
    part = _replaced(observation[key], tuple(rest), value)
    if isinstance(observation, Mapping):
        return {**observation, key: part}
    return (*observation[:key], part, *observation[key + 1 :])


def not_finite_in(info: Mapping[str, Any], copies: int) -> BoolArray:
    """(B,) the copies whose observation is marked as not finite."""
    return marked_in(info, NOT_FINITE, copies)


def marked_in(info: Mapping[str, Any], mark: str, copies: int) -> BoolArray:
    """(B,) the copies with a mark."""
    marks = info.get(mark)
    if marks is None:
        return np.zeros(copies, np.bool_)
    marked = np.array([bool(one) for one in marks], np.bool_)
    return np.asarray(marked & np.broadcast_to(info.get(f"_{mark}", True), copies))


def not_finite_parts(info: Mapping[str, Any], copies: int) -> np.ndarray:
    """(B,) text: of each copy the part of its observation that is not finite; empty where all are."""
    found = np.full(copies, "", object)
    if NOT_FINITE in info:
        there = not_finite_in(info, copies)
        found[there] = info[NOT_FINITE][there]
    return found


def with_marks(info: Mapping[str, Any], marks: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The info with more marks, (B,) each; those that are there stay."""
    found = dict(info)
    for key, values in marks.items():
        if key.startswith("_"):
            continue
        if key in found:
            known = np.broadcast_to(found.get(f"_{key}", True), len(values)) & _told(found[key])
            values = np.where(known, found[key], values)
        found |= {key: values, f"_{key}": _told(values)}
    return found


def _told(values: np.ndarray) -> BoolArray:
    return np.array([value is not None for value in values], np.bool_)


def marks_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Of an info what is guerdon's own."""
    return {key: value for key, value in info.items() if key.startswith((MARK, f"_{MARK}"))}


class Outside:
    """Names the parts of observations that have numbers outside of their spaces, each once, and counts them.

    Attributes:
        counts: observations of copies, by part.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def take(self, info: Mapping[str, Any]) -> None:
        """An info of a reset or a step."""
        for key in [key for key in info if key.startswith(OUTSIDE)]:
            known = np.broadcast_to(info.get(f"_{key}", True), len(info[key]))
            self._add(
                key, [value for value, there in zip(info[key], known, strict=True) if there and value is not None]
            )

    def _add(self, key: str, values: list[float]) -> None:
        """Numbers of copies under a key of `OUTSIDE`."""
        if not values:
            return
        if key not in self.counts:
            log_line(
                f"[env] {key.removeprefix(OUTSIDE)} holds {values[0]:g}, outside of its declared space; it is used "
                "as it is, and others are counted"
            )
        self.counts[key] += len(values)

    def close(self) -> None:
        """Say how many there were, where there were several."""
        for key, count in self.counts.items():
            if count > 1:
                log_line(f"[env] {key.removeprefix(OUTSIDE)} was outside of its declared space {count} times")
        self.counts.clear()
