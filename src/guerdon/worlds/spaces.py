"""Spaces of any Gymnasium environment in the two kinds of observations and two kinds of actions that guerdon has.

Observations of B copies are one array (B, ...), or a structured array (B,) with a field for each key; nested keys are
joined by dots. Actions are rows (B, A) of a Box or of a MultiDiscrete. An environment that has such spaces is returned
as it is.

    env = plain(SyncVectorEnv(...), "env.task FetchReach-v4")
    env.columns             # (ObservedColumn("achieved_goal", "vector", (3,)), ...)
    observations["desired_goal"]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from guerdon.errors import ConfigError, NonFiniteError, SimulatorError, boundary
from guerdon.processes.progress import log_once
from guerdon.types import BoolArray, ByteArray, Failure, FloatArray
from guerdon.worlds.resets import BrokenCopyError
from guerdon.worlds.returned import Declared, named, with_marks

MASK, PIXELS, OBSERVATION = "action_mask", "pixels", "observation"
_CHANNELS = (1, 3, 4, 6, 8, 9, 12, 15, 16)  # of a picture, or of several that are shown at once
_MOST_CHANNELS = max(_CHANNELS)
_SMALLEST = 8  # pixels: an array with fewer rows or columns is numbers, such as MiniGrid's view of 7 x 7 fields


class ObservedColumn(NamedTuple):
    """A part of what a copy shows.

    Attributes:
        name: of the field; empty where observations are one array.
        kind: `vector` of numbers, `one_hot`, `image` (H, W, C) uint8, `mask` of the values that actions may have, or
            `text`, which is not shown.
        shape: of one copy.
    """

    name: str
    kind: Literal["vector", "one_hot", "image", "mask", "text"]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Numbers that one copy shows."""
        return int(np.prod(self.shape))


def columns_of_shape(shape: tuple[int, ...]) -> tuple[ObservedColumn, ...]:
    """The column of observations that are one array: a picture (H, W, C), else numbers."""
    return (ObservedColumn("", "image" if len(shape) == 3 else "vector", tuple(shape)),)


def own_columns(env: VectorEnv) -> tuple[ObservedColumn, ...]:
    """What an environment shows of one copy."""
    shape = tuple(env.single_observation_space.shape or ())
    return getattr(env, "columns", None) or columns_of_shape(shape)


def rendered_columns(columns: Sequence[ObservedColumn], size: tuple[int, int]) -> tuple[ObservedColumn, ...]:
    """What a copy shows where a policy sees its camera: the picture, and the mask of an environment that has one."""
    masks = [column for column in columns if column.kind == "mask"]
    return (ObservedColumn(PIXELS if masks else "", "image", (*size, 3)), *masks)


def is_numeric(column: ObservedColumn) -> bool:
    """Whether a column is part of the state: numbers, no picture."""
    return column.kind in ("vector", "one_hot")


def states_of(rows: np.ndarray, columns: Sequence[ObservedColumn]) -> FloatArray:
    """(N, S) float32, the numbers of all columns side by side; S is 0 where there are none."""
    parts = [rows[c.name] if c.name else rows for c in columns if is_numeric(c)]
    if not parts:
        return np.zeros((len(rows), 0), dtype=np.float32)
    flat = [part.reshape(len(rows), -1).astype(np.float32) for part in parts]
    return flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)


def chosen_columns(
    columns: Sequence[ObservedColumn], keys: Sequence[str] | None, what: str
) -> tuple[ObservedColumn, ...]:
    """The columns of these keys, in their order; a key stands for all that are nested in it. None: all that are shown.

    Args:
        columns: that there are.
        keys: names.
        what: the key of the configuration, for messages.

    Raises:
        ConfigError: there is no such key, it is text, or observations have no keys.
    """
    if keys is None:
        return tuple(c for c in columns if c.kind not in ("mask", "text"))
    named = [c for c in columns if c.kind != "mask" and c.name]
    if not named:
        raise ConfigError(f"{what}: this environment's observations are one array, without keys; remove it", key=what)
    found: dict[str, ObservedColumn] = {}
    for key in keys:
        found |= {c.name: c for c in _columns_of(key, named, what)}
    return tuple(found.values())


def _columns_of(key: str, columns: Sequence[ObservedColumn], what: str) -> list[ObservedColumn]:
    """The column of a key, or those that are nested in it."""
    own = [c for c in columns if c.name == key or c.name.startswith(f"{key}.")]
    if not own:
        names = ", ".join(c.name for c in columns)
        raise ConfigError(f"{what}: there is no key {key!r}; this environment shows {names}", key=what)
    text = [c.name for c in own if c.kind == "text"]
    if text:
        raise ConfigError(
            f"{what}: {', '.join(text)} is text, which networks of control policies do not take", key=what
        )
    return own


def choices(space: gymnasium.Space) -> tuple[int, ...] | None:
    """Values of each choice of discrete actions; None: they are a Box."""
    return tuple(int(n) for n in space.nvec) if isinstance(space, spaces.MultiDiscrete) else None


def action_bounds(space: gymnasium.Space) -> tuple[np.ndarray, np.ndarray]:
    """(A,) lowest and (A,) highest actions of a Box or of choices."""
    counts = choices(space)
    if counts is not None:
        return np.zeros(len(counts)), np.array(counts, dtype=np.float64) - 1
    return np.asarray(getattr(space, "low", -np.inf)), np.asarray(getattr(space, "high", np.inf))


def executable(actions_B: np.ndarray, space: gymnasium.Space) -> np.ndarray:
    """(B, A) the nearest actions of the action space, in an array of their own; all have to be finite.

    Raises:
        NonFiniteError: one is not.
    """
    if not np.isfinite(actions_B).all():
        copy = int(np.argwhere(~np.isfinite(actions_B))[0, 0])
        why = "its weights have diverged (lower algorithm.learning_rate) or an observation is not finite"
        raise NonFiniteError(f"the policy gave an action that is not finite in copy {copy}: {why}")
    (low, high), dtype = action_bounds(space), np.dtype(space.dtype)
    whole = dtype.kind in "iu"
    found = np.array(actions_B, dtype=np.float64 if whole else dtype)
    np.minimum(np.maximum(found, low, out=found), high, out=found)
    return np.rint(found).astype(dtype) if whole else found


def allowed_in(rows: np.ndarray, columns: Sequence[ObservedColumn]) -> BoolArray | None:
    """(B, O) values of discrete actions that are allowed; None: observations have no mask."""
    name = next((c.name for c in columns if c.kind == "mask"), None)
    return None if name is None else rows[name]


def some_allowed(rows: np.ndarray, columns: Sequence[ObservedColumn], space: gymnasium.Space) -> np.ndarray:
    """(B, A) for each copy an action that its mask allows; zeros where there is none.

    Args:
        rows: what the copies show.
        columns: of these.
        space: of actions.
    """
    mask = allowed_in(rows, columns)
    counts = choices(space)
    if mask is None or counts is None:
        return np.zeros((len(rows), *(space.shape or ())))
    starts = np.cumsum([0, *counts[:-1]])
    return np.stack([mask[:, s : s + n].argmax(axis=1) for s, n in zip(starts, counts, strict=True)], axis=1)


def as_bytes(rows: np.ndarray) -> np.ndarray:
    """Structured rows (B,) as (B, N) bytes, which a checkpoint can hold; other arrays as they are."""
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1) if rows.dtype.names else rows


class ColumnSpace(spaces.Space):  # type: ignore[misc]
    """The space of structured rows.

    Args:
        columns: their fields.
    """

    def __init__(self, columns: Sequence[ObservedColumn]) -> None:
        types = {"image": np.uint8, "mask": np.bool_}
        self.columns = tuple(columns)
        fields = [(c.name, types.get(c.kind, np.float32), c.shape) for c in columns if c.kind != "text"]
        super().__init__((), np.dtype(fields))

    def contains(self, x: Any) -> bool:
        """Whether it is such a row."""
        return bool(getattr(x, "dtype", None) == self.dtype)

    @property
    def is_np_flattenable(self) -> bool:
        """It is not."""
        return False


def state_keys(columns: Sequence[ObservedColumn]) -> tuple[tuple[str, int], ...]:
    """Names and sizes of the parts of a state (`states_of`), in their order; empty where observations have no keys."""
    return tuple((c.name, c.size) for c in columns if is_numeric(c) and c.name)


def parts_of_rows(state_keys: Sequence[tuple[str, int]], action_values: Sequence[int]) -> dict[str, Any]:
    """What the states and actions of an episode are made of, for its `meta`: plain JSON values.

    Args:
        state_keys: names and sizes of the parts of a state; none where observations have no keys.
        action_values: values of each choice of discrete actions; none of a Box.
    """
    found: dict[str, Any] = {"state_keys": [list(one) for one in state_keys]} if state_keys else {}
    return found | ({"action_values": list(action_values)} if action_values else {})


def rgb_of(pictures_N: np.ndarray, moments: int) -> ByteArray:
    """(N, H, W, 3) of pictures with any number of channels: the last of so many moments, and of several others."""
    channels = pictures_N.shape[-1] // moments
    return pictures_N[..., -3:] if channels % 3 == 0 else np.repeat(pictures_N[..., -1:], 3, axis=-1)


class _Leaf(NamedTuple):
    """A space that is no Dict and no Tuple: where it stands, and its column."""

    path: tuple[Any, ...]
    space: gymnasium.Space
    column: ObservedColumn
    layout: _Layout | None = None

    def part(self, observations: Any) -> np.ndarray:
        """(B, ...) as the environment returned it."""
        for key in self.path:
            observations = observations[key]
        return np.asarray(observations)

    def declared(self, what: str) -> Declared:
        """What judges it."""
        high = None if self.layout is None else self.layout.high
        return Declared(self.space, self.column.name, high=high, what=what)

    def values(self, observations: Any, count: int) -> np.ndarray:
        """(B, ...) as the column has them, of a batch of observations."""
        found, space = self.part(observations), self.space
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and found.dtype.kind == "f":
            found = np.where(np.isfinite(found), found, space.start)  # it is marked, see `Plain`
        if isinstance(space, spaces.Discrete):
            return _one_hot(found.reshape(count, 1) - space.start, np.array([space.n]))
        if isinstance(space, spaces.MultiDiscrete):
            return _one_hot((found - space.start).reshape(count, -1), space.nvec.reshape(-1))
        if self.layout is not None:
            return self.layout.picture(found)
        return found.reshape(count, *self.column.shape)


def _one_hot(values_B_K: np.ndarray, counts_K: np.ndarray) -> FloatArray:
    values = values_B_K.astype(np.int64)
    if (outside := (values < 0) | (values >= counts_K)).any():
        _, k = np.argwhere(outside)[0]
        raise ValueError(
            f"an observation is the choice {values[outside][0]} of {counts_K[k]}, counted from 0: outside of its space"
        )
    found = np.zeros((len(values), int(counts_K.sum())), np.float32)
    np.put_along_axis(found, values + np.cumsum(counts_K) - counts_K, 1.0, axis=1)
    return found


def own_values(values_N: np.ndarray, space: gymnasium.Space) -> np.ndarray:
    """(N, ...) values of a space, of rows of its column: what `_Leaf.values` turned into numbers.

    Raises:
        ConfigError: it is a picture that was changed.
    """
    count = len(values_N)
    if isinstance(space, spaces.Discrete):
        return np.asarray(values_N.reshape(count, -1).argmax(axis=1) + space.start)
    if isinstance(space, spaces.MultiDiscrete):
        parts = np.split(values_N.reshape(count, -1), np.cumsum(space.nvec.reshape(-1))[:-1], axis=1)
        chosen = np.stack([part.argmax(axis=1) for part in parts], axis=1)
        return np.asarray(chosen.reshape(count, *space.shape) + space.start)
    if values_N.dtype == np.uint8 and (space.dtype != np.uint8 or values_N.shape[1:] != space.shape):
        raise ConfigError(f"goals of {space} are pictures that policies see in another form")
    shaped = values_N.reshape(count, *space.shape)
    return (np.rint(shaped) if np.dtype(space.dtype).kind in "iub" else shaped).astype(space.dtype)


class _Layout(NamedTuple):
    """How an array is a picture.

    Attributes:
        one: shape of one moment's array: (H, W), (H, W, C) or (C, H, W).
        moments: that are shown at once.
        first: whether channels come first.
        high: the number of the brightest points.
    """

    one: tuple[int, ...]
    moments: int
    first: bool
    high: float

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of the picture, the channels of all moments side by side."""
        if len(self.one) == 2:
            return (self.one[0], self.one[1], self.moments)
        height, width, channels = (*self.one[1:], self.one[0]) if self.first else self.one
        return (height, width, channels * self.moments)

    def picture(self, found: np.ndarray) -> ByteArray:
        """(B, H, W, C) uint8 of a batch of arrays."""
        if found.dtype != np.uint8:
            found = np.rint(np.nan_to_num(found) * (255.0 / self.high)).clip(0, 255).astype(np.uint8)
        several = found.reshape(len(found), self.moments, *self.one)
        if len(self.one) == 2:
            several = several[..., None]
        elif self.first:
            several = np.moveaxis(several, -3, -1)
        merged = np.moveaxis(several, 1, -2) if self.moments > 1 else several
        return merged.reshape(len(found), *self.shape)


def _channels_first(shape: tuple[int, ...]) -> bool:
    """Whether (C, H, W) is clear: few channels, and sides at least four times as long."""
    return shape[0] in _CHANNELS and 4 * shape[0] <= min(shape[1:])


def _layout(space: spaces.Box, moments: int, *, asked: bool = False) -> _Layout | None:
    """How a Box is a picture; None: it is numbers.

    Args:
        space: of observations.
        moments: of `env.frame_stack`, the first axis of the space where there are several.
        asked: `env.show_as` says that it is one, so that only what is impossible is refused.
    """
    one = space.shape[1:] if moments > 1 else space.shape
    if moments == 1 and len(one) == 4:
        moments, one = one[0], one[1:]
    if not 2 <= len(one) <= 3 or 0 in space.shape:
        return None
    low, high = float(space.low.min()), float(space.high.max())
    has_equal_bounds = (space.low.max(), space.high.min()) == (low, high)
    if low < 0 or not has_equal_bounds:
        return None
    found = _Layout(one, moments, len(one) == 3 and _channels_first(one), high)
    if asked:
        return found if low == 0 < high < np.inf else None
    return found if _is_clear(found, np.dtype(space.dtype)) else None


def _is_clear(layout: _Layout, dtype: np.dtype[Any]) -> bool:
    """Whether numbers are a picture beyond doubt, by their type, the size and the number of channels."""
    height, width, channels = layout.shape
    is_grey = len(layout.one) == 2
    is_float_picture = dtype.kind == "f" and layout.high in (1.0, 255.0) and not is_grey
    if dtype != np.uint8 and not is_float_picture:
        return False
    smallest = 2 * _SMALLEST if is_grey else _SMALLEST
    return min(height, width) >= smallest and channels <= _MOST_CHANNELS * layout.moments


def is_text(space: gymnasium.Space) -> bool:
    """Whether a space of somebody's own is of text, as MiniGrid's missions are."""
    with suppress(NotImplementedError):
        return isinstance(space.sample(), str)
    return False


ShowAs = Mapping[str, Literal["numbers", "picture"]]
"""What arrays are, by the names of their keys; `observation` where there are none."""


def _leaves(
    space: gymnasium.Space, what: str, show_as: ShowAs, moments: int, path: tuple[Any, ...] = ()
) -> Iterator[_Leaf]:
    """The parts of observations.

    Raises:
        ConfigError: one of them is of a kind that has no fixed size, or is no picture although it is to be one.
    """
    name = ".".join(map(str, path))
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in inner:
            yield from _leaves(part, what, show_as, moments, (*path, key))
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        yield _Leaf(path, space, ObservedColumn(name, "one_hot", (int(spaces.flatdim(space)),)))
    elif isinstance(space, spaces.Box):
        layout = _chosen_layout(space, what, show_as.get(name or OBSERVATION), moments, name)
        column = (
            ObservedColumn(name, "vector", (int(np.prod(space.shape)),))
            if layout is None
            else ObservedColumn(name, "image", layout.shape)
        )
        yield _Leaf(path, space, column, layout)
    elif isinstance(space, spaces.Text) or is_text(space):
        yield _Leaf(path, space, ObservedColumn(name, "text", ()))
    else:
        where = f"the key {name!r} of its observations" if name else "its observations"
        raise ConfigError(
            f"{what}: {where} is {space}, which has no fixed size. Leave it out or flatten it with a gymnasium wrapper "
            "and register the result under an id of your own.",
            key="env.task",
        )


def _chosen_layout(
    space: spaces.Box, what: str, asked: Literal["numbers", "picture"] | None, moments: int, name: str
) -> _Layout | None:
    """How an array is a picture, by its space or as `env.show_as` says; None: it is numbers. A line says which.

    Raises:
        ConfigError: it is to be a picture, and cannot be.
    """
    layout = None if asked == "numbers" else _layout(space, moments, asked=asked == "picture")
    if asked == "picture" and layout is None:
        raise ConfigError.about(
            "env.show_as",
            f": {named(name)} of {what} is {space}: a picture is an array (H, W), (H, W, C) or (C, H, W) with numbers "
            "from 0 to one highest number",
        )
    if len(space.shape) > 1:
        kind = f"{int(np.prod(space.shape))} numbers, side by side"
        if layout is not None:
            height, width, channels = layout.shape
            place = "first" if layout.first else "last"
            axis = f", the {place} axis of each" if len(layout.one) == 3 else ""
            kind = f"a picture of {height} x {width} with {channels} channels{axis}"
        log_once(f"[env] {named(name)} {space.shape} {space.dtype} of {what} is {kind} (env.show_as)")
    return layout


def _check_names(show_as: ShowAs, leaves: Sequence[_Leaf], what: str) -> None:
    """Refuse names in `env.show_as` that are no arrays.

    Raises:
        ConfigError: with the names that there are.
    """
    arrays = [one.column.name or OBSERVATION for one in leaves if isinstance(one.space, spaces.Box)]
    for name in show_as:
        if name not in arrays:
            raise ConfigError.about(
                "env.show_as", f": {what} has no array {name!r}; it has {', '.join(arrays) or 'none'}"
            )


def _with_mask(columns: Sequence[ObservedColumn], size: int) -> tuple[ObservedColumn, ...]:
    """Columns, all of them with names, and a mask of so many values of actions."""
    named = (column if column.name else column._replace(name="observation") for column in columns)
    return (*named, ObservedColumn(MASK, "mask", (size,)))


def _check_columns(columns: Sequence[ObservedColumn], what: str) -> None:
    """Refuse observations of which nothing but text is shown, or whose names are not distinct; log text left out.

    Raises:
        ConfigError: they are such.
    """
    if all(column.kind in ("mask", "text") for column in columns):
        raise ConfigError(f"{what} shows text alone, which control policies do not take", key="env.task")
    if left_out := [column.name for column in columns if column.kind == "text"]:
        log_once(f"[env] {what.removeprefix('env.')}: observations are used without the text of {', '.join(left_out)}")
    if len({column.name for column in columns}) < len(columns):
        raise ConfigError(
            f"{what}: two keys of its observations have the same name when nested ones are joined", key="env.task"
        )


def plain(env: VectorEnv, what: str, show_as: ShowAs | None = None, moments: int = 1) -> VectorEnv:
    """The environment with observations and actions of the kinds that guerdon has.

    Text is left out, and a line says so.

    Args:
        env: copies of an environment; with discrete actions they are reset, to see whether `info` has a mask.
        what: begins messages.
        show_as: what arrays are, where their spaces are to be read otherwise.
        moments: that each observation shows, along its first axis where there are several.

    Raises:
        ConfigError: a space is of another kind, or nothing but text is observed.
    """
    space, actions = env.single_observation_space, env.single_action_space
    leaves = list(_leaves(space, what, show_as or {}, moments))
    _check_names(show_as or {}, leaves, what)
    root = isinstance(space, spaces.Box) and (
        len(space.shape) == 1 or (space.dtype == np.uint8 and leaves[0].column.shape == space.shape)
    )
    if root and isinstance(actions, spaces.Box) and len(actions.shape) == 1:
        return env
    return Plain(env, what, leaves, as_it_is=root)


class OpenWrapper(VectorWrapper):  # type: ignore[misc]
    """A wrapper that has what its environment has, such as an `eye`."""

    def __getattr__(self, name: str) -> Any:
        """Of the environment."""
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)


class Plain(OpenWrapper):
    """See `plain`.

    Attributes:
        columns: what one copy shows; of text too.

    Args:
        env: copies of an environment.
        what: begins messages.
        leaves: the parts of its observations.
        as_it_is: observations are one array already.
    """

    def __init__(self, env: VectorEnv, what: str, leaves: Sequence[_Leaf], *, as_it_is: bool) -> None:
        super().__init__(env)
        self._what = what
        mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._same_step = mode is AutoresetMode.SAME_STEP
        self._inner: gymnasium.Space = env.single_action_space
        self.single_action_space = _rows_of(self._inner, what)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, env.num_envs)
        counts = getattr(self.single_action_space, "nvec", None)
        self._starts = None if counts is None else np.cumsum([0, *counts[:-1]])
        self._size = 0 if counts is None else int(counts.sum())
        self._allowed = np.ones((env.num_envs, self._size), dtype=np.bool_)
        leaves = [self._marked(one) for one in leaves]
        columns = tuple(one.column for one in leaves)
        self._own_mask = any(column.kind == "mask" for column in columns)
        self._masked = self._own_mask or (counts is not None and self._finds_mask())
        self._leaves = [one for one in leaves if one.column.kind != "text"]
        self._declared = [one.declared(what) for one in self._leaves]
        _check_columns(columns, what)
        self._array = not leaves[0].path and not self._masked  # observations without keys
        self._as_it_is = as_it_is and self._array
        self.columns = _with_mask(columns, self._size) if self._masked and not self._own_mask else columns
        self._declare()

    def _marked(self, leaf: _Leaf) -> _Leaf:
        """The part of observations, as a mask where it says which discrete actions are allowed."""
        if not leaf.path or leaf.path[-1] != MASK or not self._size:
            return leaf
        if leaf.column.size != self._size:
            raise ConfigError(
                f"{self._what}: the key {MASK} has {leaf.column.size} numbers for {self._size} values of actions",
                key="env.task",
            )
        return leaf._replace(column=leaf.column._replace(kind="mask"))

    @property
    def action_start(self) -> Any:
        """(A,) what discrete actions count from in the environment's own numbers; 0 of others."""
        if isinstance(self._inner, spaces.Tuple):
            return np.array([one.start for one in self._inner.spaces])
        return np.asarray(getattr(self._inner, "start", 0)).reshape(-1)

    def _declare(self) -> None:
        if self._as_it_is:
            return
        if self._array:
            (column,) = self.columns
            low, high, dtype = (0, 255, np.uint8) if column.kind == "image" else (-np.inf, np.inf, np.float32)
            self.single_observation_space = spaces.Box(low, high, column.shape, dtype)
            self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        else:
            self.single_observation_space = ColumnSpace(self.columns)
            self.observation_space = self.single_observation_space

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start new episodes; see the environment's own."""
        begun = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=np.bool_))
        observations, info = self.env.reset(seed=seed, options=options)
        if self._masked and not self._own_mask:
            self._take_mask(info, begun)
        found, marks = self._rows(observations)
        self._check_allowed(found, begun)
        return found, with_marks(info, marks) if marks else info

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, Any, Any, Any, dict[str, Any]]:
        """One step of every copy, with rows (B, A) of actions."""
        observations, rewards, terminated, truncated, info = self.env.step(self.taken(actions))
        ended = np.asarray(terminated, dtype=np.bool_) | np.asarray(truncated, dtype=np.bool_)
        if self._masked and not self._own_mask:
            self._take_mask(info, np.ones(self.num_envs, dtype=np.bool_))
        elif self._size and MASK in info:
            raise ConfigError(
                f"{self._what} reports info[{MASK!r}] after a step and not after a reset: report it there too",
                key="env.task",
            )
        found, marks = self._rows(observations)
        self._check_allowed(found, ~ended)
        if marks:
            info = with_marks(info, marks)
        if not self._as_it_is and self._same_step and ended.any():
            finals, marks = self._final(info, ended)
            info = {**info, "final_obs": finals, "final_info": with_marks(info.get("final_info", {}), marks)}
        return found, rewards, terminated, truncated, info

    def _finds_mask(self) -> bool:
        """Whether `info` has a mask after a reset; an environment that breaks in it is taken to have none."""
        with suppress(SimulatorError), boundary(SimulatorError, "reset"):
            return MASK in self.env.reset(seed=0)[1]
        return False

    def _take_mask(self, info: Mapping[str, Any], copies_B: BoolArray) -> None:
        """Keep what `info` allows in these copies: all where it has no mask."""
        self._allowed[copies_B] = True
        known = np.broadcast_to(info.get(f"_{MASK}", MASK in info), self.num_envs) & copies_B
        for i in np.flatnonzero(known).tolist():
            self._allowed[i] = self._mask_of(info[MASK][i])

    def _mask_of(self, given: Any) -> BoolArray:
        """(sum of the choices' values,) of one copy's mask, an array or a tuple of one for each choice."""
        parts = given if isinstance(given, tuple | list) else [given]
        mask = np.concatenate([np.asarray(part).reshape(-1) for part in parts])
        if len(mask) != self._size:
            raise ConfigError(
                f"{self._what}: info[{MASK!r}] has {len(mask)} numbers for {self._size} values of actions",
                key="env.task",
            )
        return np.asarray(mask != 0)

    def _check_allowed(self, found: np.ndarray, going_on_B: BoolArray) -> None:
        """Refuse a moment at which a copy has to act and no value of an action is allowed."""
        if not self._masked or self._starts is None:
            return
        mask = allowed_in(found, self.columns)
        assert mask is not None
        stuck = going_on_B & ~np.logical_or.reduceat(mask, self._starts, axis=1).all(axis=1)
        if stuck.any():
            why = Failure("no_action_allowed", f"{MASK} forbids every value of an action")
            raise BrokenCopyError(dict.fromkeys(np.flatnonzero(stuck).tolist(), why))

    def _rows(self, observations: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """(B, ...) rows of a batch of observations, and marks of what was returned; an array is judged by the world."""
        if self._as_it_is:
            return np.asarray(observations), {}
        return self.encoded(observations), self._marks(observations, self.num_envs)

    def encoded(self, observations: Any) -> np.ndarray:
        """(B, ...) rows of a batch of observations; a mask in `info` allows what it allowed last."""
        return np.asarray(observations) if self._as_it_is else self._encoded(observations, self._allowed)

    def _marks(self, observations: Any, count: int) -> dict[str, np.ndarray]:
        marks: dict[str, Any] = {}
        for leaf, declared in zip(self._leaves, self._declared, strict=True):
            _, more = declared(leaf.part(observations), count)
            marks = with_marks(marks, more) if more else marks
        return marks

    def _encoded(self, observations: Any, allowed_B: BoolArray) -> np.ndarray:
        """(B, ...) rows of a batch of observations."""
        count = len(allowed_B)
        values = [one.values(observations, count) for one in self._leaves]
        if self._array:
            return values[0].astype(self.single_observation_space.dtype, copy=False)
        rows = np.zeros(count, dtype=self.single_observation_space.dtype)
        for one, column in zip(self._leaves, values, strict=True):
            rows[one.column.name or "observation"] = column
        if self._masked and not self._own_mask:
            rows[MASK] = allowed_B
        return rows

    def _final(self, info: Mapping[str, Any], ended_B: BoolArray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Last observations of episodes, of environments that reset within a step, as rows; and their marks."""
        told: dict[str, np.ndarray] = {}
        found = np.full(self.num_envs, None, dtype=object)
        masks = info.get("final_info", {}).get(MASK, found)
        for i in np.flatnonzero(ended_B).tolist():
            mask = np.ones(self._size, np.bool_) if masks[i] is None else self._mask_of(masks[i])
            one = _batch_of_one(info["final_obs"][i])
            for key, value in self._marks(one, 1).items():
                if not key.startswith("_"):
                    told.setdefault(key, np.full(self.num_envs, None))[i] = value[0]
            found[i] = self._encoded(one, mask[None])[0]
        return found, told

    def taken(self, actions: np.ndarray) -> Any:
        """What the environment takes, of rows (B, A)."""
        inner, count = self._inner, len(actions)
        if isinstance(inner, spaces.Discrete):
            return actions[:, 0] + inner.start
        if isinstance(inner, spaces.Tuple):
            return tuple(actions[:, k] + one.start for k, one in enumerate(inner.spaces))
        shifted = actions.reshape(count, *inner.shape)
        return (shifted + inner.start if isinstance(inner, spaces.MultiDiscrete) else shifted).astype(inner.dtype)


def of_one(env: gymnasium.Env, show_as: ShowAs | None = None) -> VectorEnv:
    """The spaces of one environment as those of a vector with one copy, which is never reset or stepped.

    Raises:
        ConfigError: as `plain`.
    """
    found = VectorEnv()
    found.num_envs, found.metadata = 1, {"autoreset_mode": AutoresetMode.DISABLED}
    found.single_observation_space, found.single_action_space = env.observation_space, env.action_space
    found.action_space = gymnasium.vector.utils.batch_space(env.action_space, 1)
    return plain(found, type(env.unwrapped).__name__, show_as)


def row_of_one(env: VectorEnv, observation: Any) -> np.ndarray:
    """(1, ...) the row of one observation, for what `of_one` returned."""
    one = _batch_of_one(observation)
    return env.encoded(one) if isinstance(env, Plain) else np.asarray(one)


def action_of_one(env: VectorEnv, actions: np.ndarray) -> Any:
    """What one environment takes, of a row (1, A)."""
    found = env.taken(actions) if isinstance(env, Plain) else actions
    if isinstance(found, tuple):
        return tuple(part[0] for part in found)
    return found[0]


def _batch_of_one(observation: Any) -> Any:
    """An observation with a first dimension of one."""
    if isinstance(observation, dict):
        return {key: _batch_of_one(part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_batch_of_one(part) for part in observation)
    return np.asarray(observation)[None]


def _rows_of(space: gymnasium.Space, what: str) -> gymnasium.Space:
    """The space of rows (A,) that stand for actions.

    Raises:
        ConfigError: there is none.
    """
    if isinstance(space, spaces.Box):
        return space if len(space.shape) == 1 else spaces.flatten_space(space)
    if isinstance(space, spaces.Discrete):
        return spaces.MultiDiscrete([int(space.n)])
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec.reshape(-1))
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiDiscrete(np.full(int(np.prod(space.shape)), 2))
    if isinstance(space, spaces.Tuple) and all(isinstance(one, spaces.Discrete) for one in space.spaces):
        return spaces.MultiDiscrete([int(one.n) for one in space.spaces])
    raise ConfigError(
        f"{what} takes actions of {space}; policies give numbers (Box) or choices (Discrete, MultiDiscrete, "
        "MultiBinary). Change them with a gymnasium wrapper and register the result under an id of your own.",
        key="env.task",
    )
