"""LeRobotDataset v3.0 on disk: paths, `meta/info.json`, feature and Arrow schemas, rows.

The layout is the one that `lerobot` 0.4 and newer writes (its `docs/source/lerobot-dataset-v3.mdx` and
`src/lerobot/datasets/`).

Rows differ by a shift of one. In an `Episode`, row t is the moment after action t (row 0 is the reset). LeRobot's row t
holds observation t and the action taken *at* t, with its result in `next.*`. So

    action[t] = actions[t+1]    next.reward[t] = rewards[t+1]    next.success[t] = success[t+1]

and the last LeRobot row of an episode is its terminal observation: a zero action, reward 0, the last success again, and
`next.done` true there and on the row before. Recordings of other tools may lack that terminal row; they are read with
the same formula, the result of their last action is unknown, and a success that only their last row has is that row's.

    features = features_of(episode, camera_key("main"), video=False, fps=20)
    schema = data_schema(features)
    info = load_info(Path("episodes"))
    columns = to_rows(episode)
    episode = from_rows(columns, id="0", task="close the window")
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from guerdon.errors import DataError
from guerdon.files.bounds import read_json
from guerdon.types import BoolArray, ByteArray, Episode, FloatArray, RewardInfo

CODEBASE_VERSION = "v3.0"
CHUNK_FILES = 1000
DATA_FILE_MB = 100
VIDEO_FILE_MB = 200
INFO_PATH = "meta/info.json"
STATS_PATH = "meta/stats.json"
TASKS_PATH = "meta/tasks.parquet"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"

ACTION = "action"
STATE = "observation.state"
REWARD = "next.reward"
DONE = "next.done"
SUCCESS = "next.success"
CAMERA_PREFIX = "observation.images."

Feature = dict[str, Any]
Features = dict[str, Feature]
FileIndex = tuple[int, int]

INDEX_FEATURES: Features = {
    name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
    for name in ("timestamp", "frame_index", "episode_index", "index", "task_index")
}
"""Columns that every LeRobot data set has."""

_FIELD = re.compile(r"\{(\w+)(?::0?(\d{1,2})d)?\}")
_CAMERA_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Info:
    """What `meta/info.json` declares.

    Attributes:
        fps: rows per second.
        features: column name to dtype and shape.
        robot_type: free text.
        data_path: template of the Parquet shards, relative to the root.
        video_path: template of the MP4 shards, or None where there are none.
        total_episodes: how many episodes it claims; `meta/episodes` decides.
    """

    fps: float
    features: Mapping[str, Feature]
    robot_type: str
    data_path: str
    video_path: str | None
    total_episodes: int

    def cameras(self) -> dict[str, str]:
        """Short camera name to feature key, without depth maps."""
        return {camera_name(key): key for key, feature in self.features.items() if _is_camera(key, feature)}


def camera_key(name: str) -> str:
    """The feature key of a camera, `observation.images.<name>`; LeRobot has no slashes in names: they become dots.

    Raises:
        DataError: the name would not make a safe folder name.
    """
    name = name.replace("/", ".")
    if not _CAMERA_NAME.fullmatch(name):
        raise DataError(f"camera name {name!r}: use letters, digits, '_', '-' and '.' only")
    return CAMERA_PREFIX + name


def camera_name(key: str) -> str:
    """The short name of a camera's feature key: `observation.images.top` is `top`."""
    return key.removeprefix(CAMERA_PREFIX)


def camera_names(camera: str) -> tuple[str, ...]:
    """What a camera may be called: `front` of a robot is `pixels.front` among the observations of an environment.

    A key `cam/front` of an environment is `cam.front` in a data set.
    """
    name = camera_name(camera)
    last = name.rpartition(".")[2]
    return tuple(dict.fromkeys((name, name.replace("/", "."), name.replace(".", "/"), last, f"pixels.{last}")))


def camera_for(root: str | Path, info: RewardInfo, named: str | None = None) -> str | None:
    """The camera of a data set that a model looks through: the named one, or else that of its card.

    Returns:
        None where neither is given, or the data set lacks the one that a published model was trained on.
    """
    if named is not None or info.keys:
        return named if named is not None else info.keys[0]
    have = load_info(Path(root)).cameras()
    return next((have[name] for name in camera_names(info.camera or "") if name in have), None)


def pictures_of(episode: Episode, key: str) -> dict[str, ByteArray]:
    """The frames of an episode by feature key: those of its camera `key`, then of its further cameras.

    Raises:
        DataError: two of them would have one key.
    """
    own = {} if episode.frames is None else {key: episode.frames}
    views = {camera_key(name): frames for name, frames in episode.views.items()}
    if len(views) < len(episode.views):
        raise DataError(f"episode {episode.id!r}: two of its cameras have one name: {', '.join(episode.views)}")
    return own | views


def features_of(episode: Episode, key: str, *, video: bool, fps: int) -> Features:
    """The LeRobot features that hold this episode's columns.

    Args:
        episode: its columns that are present become features; `next.done` is always there.
        key: feature key of the camera.
        video: images as MP4 instead of PNG in Parquet.
        fps: rows per second.

    Raises:
        DataError: the episode has texts (those are not robot data), or a column of an unsuitable shape.
    """
    if episode.texts is not None:
        raise DataError(
            f"episode {episode.id!r} has texts: robot data sets hold frames, states and actions only", field="texts"
        )
    features: Features = {}
    for camera, frames in pictures_of(episode, key).items():
        features[camera] = _camera_feature(*frames.shape[1:3], video=video, fps=fps)
    for name, column in ((STATE, episode.states), (ACTION, episode.actions)):
        if column is not None:
            if column.ndim != 2 or column.shape[1] == 0:
                raise DataError(
                    f"episode {episode.id!r}: {name} must have shape (T, size), got {column.shape}", field=name
                )
            features[name] = {"dtype": "float32", "shape": [column.shape[1]], "names": None}
    for name, present, dtype in (
        (REWARD, episode.rewards is not None, "float32"),
        (SUCCESS, episode.success is not None, "bool"),
        (DONE, True, "bool"),
    ):
        if present:
            features[name] = {"dtype": dtype, "shape": [1], "names": None}
    return features | {name: dict(feature) for name, feature in INDEX_FEATURES.items()}


def _camera_feature(height: int, width: int, *, video: bool, fps: int) -> Feature:
    feature: Feature = {
        "dtype": "video" if video else "image",
        "shape": [height, width, 3],
        "names": ["height", "width", "channels"],
    }
    if video:
        feature["info"] = {
            "video.height": height,
            "video.width": width,
            "video.codec": "h264",
            "video.pix_fmt": pixel_format(height, width),
            "video.is_depth_map": False,
            "video.fps": fps,
            "video.channels": 3,
            "has_audio": False,
        }
    return feature


def pixel_format(height: int, width: int) -> str:
    """4:2:0 chroma where the size allows it (both even), else 4:4:4."""
    return "yuv420p" if height % 2 == 0 and width % 2 == 0 else "yuv444p"


def data_schema(features: Mapping[str, Feature]) -> pa.Schema:
    """Arrow schema of a data shard, with the metadata by which HF `datasets` decodes the images."""
    fields = []
    declared: dict[str, Any] = {}
    for name, feature in features.items():
        dtype, shape = feature["dtype"], list(feature["shape"])
        if dtype == "video":
            continue
        if dtype == "image":
            fields.append(pa.field(name, pa.struct([("bytes", pa.binary()), ("path", pa.string())])))
            declared[name] = {"_type": "Image"}
            continue
        value = pa.type_for_alias("bool" if dtype == "bool" else dtype)
        scalar = {"dtype": dtype, "_type": "Value"}
        if shape == [1]:
            fields.append(pa.field(name, value))
            declared[name] = scalar
        else:
            fields.append(pa.field(name, pa.list_(value, shape[0])))
            declared[name] = {"feature": scalar, "length": shape[0], "_type": "Sequence"}
    metadata = {"huggingface": json.dumps({"info": {"features": declared}})}
    return pa.schema(fields, metadata=metadata)


def place(number: int) -> FileIndex:
    """(chunk, file) of the shard with this running number."""
    return divmod(number, CHUNK_FILES)


def shard_path(root: Path, template: str, where: FileIndex, *, video_key: str = "") -> Path:
    """Fill a path template of `info.json`; only its documented fields are understood.

    Raises:
        DataError: the template has an unknown field or leads out of the data set.
    """
    values = {"chunk_index": where[0], "file_index": where[1]}

    def fill(match: re.Match[str]) -> str:
        name, width = match.groups()
        if name == "video_key":
            return video_key
        if name not in values:
            raise DataError(f"unknown field {{{name}}} in path template {template!r}", where=root / INFO_PATH)
        return f"{values[name]:0{int(width or 0)}d}"

    path = root / _FIELD.sub(fill, template)
    if not path.resolve().is_relative_to(root.resolve()):
        raise DataError(f"path template {template!r} leads out of the data set", where=root / INFO_PATH)
    return path


def load_info(root: Path) -> Info:
    """Read and check `meta/info.json`.

    Raises:
        DataError: there is none, it is not JSON, lacks a key, or is of another version than 3.
    """
    path = root / INFO_PATH
    raw = _read_info(root)
    version = str(raw.get("codebase_version")) if isinstance(raw, dict) else "None"
    if not version.startswith("v3."):
        raise DataError(
            f"{path} is of version {version}, and v3.0 is read: {_conversion(version)}", field="codebase_version"
        )
    try:
        info = Info(
            fps=raw["fps"],
            features={name: dict(feature) for name, feature in raw["features"].items()},
            robot_type=str(raw.get("robot_type") or "unknown"),
            data_path=str(raw.get("data_path") or DATA_PATH),
            video_path=raw.get("video_path"),
            total_episodes=int(raw.get("total_episodes", 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise DataError(f"{path} has no valid {exc}; restore it from a copy of the data set") from exc
    for name, feature in info.features.items():
        if not isinstance(feature.get("dtype"), str) or not isinstance(feature.get("shape"), list | tuple):
            raise DataError(f"feature {name!r} needs a dtype and a shape", where=path, field=name)
    if not isinstance(info.fps, int | float) or not info.fps > 0:
        raise DataError(f"fps must be a positive number, got {info.fps!r}", where=path, field="fps")
    return info


def _read_info(root: Path) -> Any:
    """What `meta/info.json` holds.

    Raises:
        DataError: there is none, or it is not JSON.
    """
    path = root / INFO_PATH
    try:
        with path.open("rb") as file:
            return read_json(file, path)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{root} is not a LeRobot data set: {_other_format(root)}") from None
    except (OSError, ValueError) as exc:
        cause = exc.strerror if isinstance(exc, OSError) else exc
        advice = "check permissions" if isinstance(exc, PermissionError) else "restore it from a copy of the data set"
        raise DataError(f"{path} cannot be read ({cause}); {advice}") from exc


_CONVERTERS = {
    "v1.": "lerobot.datasets.v2.convert_dataset_v1_to_v2 of LeRobot 0.3",
    "v2.0": "lerobot.datasets.v21.convert_dataset_v20_to_v21 of LeRobot 0.3",
    "v2.1": "lerobot.datasets.v30.convert_dataset_v21_to_v30 of LeRobot 0.4 and 0.5 "
    "(lerobot.scripts.convert_dataset_v21_to_v30 from 0.6 on)",
}
"""The modules that bring a data set to the next version, in order; each is run by `python -m`."""
_FOREIGN = {
    "HDF5 files, as robomimic and ALOHA write": ("*.hdf5", "*.h5"),
    "an RLDS data set": ("*.tfrecord*", "features.json"),
    "a Zarr archive": ("*.zarr", "*.zgroup", "zarr.json"),
    "recordings of ROS": ("*.bag", "*.mcap", "*.db3"),
}
"""Other formats of robot episodes, and the names of files by which they are known."""


def _conversion(version: str) -> str:
    """The converters from a version of LeRobot's format to v3.0, in words."""
    names = list(_CONVERTERS)
    first = next((k for k, name in enumerate(names) if version.startswith(name)), None)
    if first is None:
        return "its version is not known; write it again with a version of LeRobot that guerdon reads"
    return "convert it with python -m " + ", then with ".join(list(_CONVERTERS.values())[first:])


def _other_format(path: Path) -> str:
    """What a path without `INFO_PATH` holds, and how to bring it to LeRobot v3."""
    if not path.exists():
        return f"{path} does not exist; collect episodes or check the path"
    if (path / "meta_data" / "info.json").is_file():
        return f"it is of LeRobot v1; {_conversion('v1.')}"
    files = [path, *islice(path.rglob("*"), 10_000)]
    for what, patterns in _FOREIGN.items():
        if found := next((file for file in files if any(file.match(pattern) for pattern in patterns)), None):
            return (
                f"{found} belongs to {what}, and LeRobot v3 is read: write its episodes as such with "
                "guerdon.episodes.write.EpisodeWriter (docs/data.md) or LeRobotDataset.create of LeRobot"
            )
    above = [folder for folder in path.parents[:2] if (folder / INFO_PATH).is_file()]
    if sets := [*above, *(info.parents[1] for info in sorted(path.glob(f"*/{INFO_PATH}"))[:3])]:
        return f"{INFO_PATH} is missing; did you mean {' or '.join(map(str, sets))}?"
    return f"{INFO_PATH} is missing; collect episodes or check the path"


def _is_camera(key: str, feature: Feature) -> bool:
    details = {**(feature.get("video_info") or {}), **(feature.get("info") or {})}
    if details.get("is_depth_map") or details.get("video.is_depth_map"):
        return False
    if feature["dtype"] in ("image", "video"):
        return True
    coloured = feature["dtype"] == "uint8" or (feature["dtype"].startswith("float") and not one_channel(feature))
    return key.startswith("observation.image") and len(feature["shape"]) == 3 and coloured


def one_channel(feature: Feature) -> bool:
    """Whether a feature of pictures declares one value per pixel, as grey pictures and depth maps have."""
    shape = tuple(feature["shape"])
    return len(shape) == 2 or (len(shape) == 3 and 1 in (shape[0], shape[-1]))


Columns = dict[str, NDArray[Any]]


def to_rows(episode: Episode) -> Columns:
    """The LeRobot columns of an episode, without images and indices.

    Returns:
        Arrays of length T: `observation.state` (T, S), `action` (T, A), `next.reward`, `next.success`,
        `next.done` (T,); those absent in the episode are absent, except `next.done`.

    Raises:
        DataError: there is no row, or row 0 is not a reset (its action or reward is not zero).
    """
    length = len(episode)
    if length == 0:
        raise DataError(f"episode {episode.id!r} has no rows")
    columns: Columns = {}
    if episode.states is not None:
        columns[STATE] = episode.states.astype(np.float32, copy=False)
    for name, column in ((ACTION, episode.actions), (REWARD, episode.rewards)):
        if column is None:
            continue
        if np.any(column[0] != 0):
            raise DataError(
                f"episode {episode.id!r}: row 0 must be the reset, but its {name} is {column[0]}", field=name
            )
        columns[name] = _earlier(column.astype(np.float32, copy=False))
    if episode.success is not None:
        columns[SUCCESS] = np.append(episode.success[1:], episode.success[-1]).astype(np.bool_)
    columns[DONE] = np.arange(length) >= length - 2
    return columns


def from_rows(
    columns: Mapping[str, NDArray[Any]],
    *,
    id: str,
    task: str,
    frames: ByteArray | None = None,
    outcome: bool | None = None,
    success_at_reset: bool = False,
    meta: Mapping[str, Any] | None = None,
) -> Episode:
    """The episode that these LeRobot columns describe; the inverse of `to_rows`.

    Args:
        columns: LeRobot columns of length T as `to_rows` gives them; unknown ones are ignored.
        id: of the episode.
        task: in words.
        frames: (T, H, W, 3) uint8.
        outcome: of the whole episode.
        success_at_reset: `success[0]`, which LeRobot's rows do not hold.
        meta: where the episode came from.

    Raises:
        ValueError: no column that an episode has is present, or their lengths differ.
    """
    states = columns.get(STATE)
    return Episode(
        id=id,
        task=task,
        frames=frames,
        states=None if states is None else _matrix(states),
        actions=_later(_matrix(columns[ACTION])) if ACTION in columns else None,
        rewards=_rewards(columns[REWARD].reshape(-1)) if REWARD in columns else None,
        success=_success(columns[SUCCESS], success_at_reset) if SUCCESS in columns else None,
        outcome=outcome,
        meta=dict(meta or {}),
    )


def last_success(columns: Mapping[str, NDArray[Any]]) -> bool | None:
    """The outcome by the rows: `next.success` of the last row, None where it was not recorded (null, NaN, negative).

    Raises:
        DataError: numbers that are neither 0, 1 nor negative, such as probabilities.
    """
    column = columns.get(SUCCESS)
    if column is not None:
        _refuse_shares(column)
    last = None if column is None or len(column) == 0 else column.reshape(-1)[-1]
    return None if last is None or last != last or last < 0 else bool(last)


def _refuse_shares(column: NDArray[Any]) -> None:
    flat = column.reshape(-1).astype(np.float64)
    if (wrong := flat[(flat > 0) & (flat != 1)]).size:
        raise DataError(
            f"its {SUCCESS} is {wrong[0]:g} in a row: success is 1 or true, failure 0 or false, unknown null or "
            "negative; store probabilities under another name",
            field=SUCCESS,
        )


def _earlier(column: FloatArray) -> FloatArray:
    """Row t gets what row t+1 had; the last row gets zeros."""
    return np.concatenate([column[1:], np.zeros_like(column[:1])])


def _later(column: NDArray[Any]) -> FloatArray:
    """Row t+1 gets what row t had; row 0 gets zeros, and the last row's value is dropped."""
    column = column.astype(np.float32, copy=False)
    return np.concatenate([np.zeros_like(column[:1]), column[:-1]])


def _rewards(column: NDArray[Any]) -> FloatArray:
    """Rewards of each row; that of the last action, whose result has no row, is added to the one before."""
    rewards = _later(column)
    rewards[-1] += np.nan_to_num(np.float32(column[-1])) if len(rewards) > 1 else 0
    return rewards


def _success(column: NDArray[Any], at_reset: bool) -> BoolArray | None:
    """Success of each row; None where it is missing (null, NaN, negative) in one of them."""
    _refuse_shares(column)
    if column.dtype != np.bool_ and not (column.astype(np.float64) >= 0).all():
        return None
    flat = column.reshape(-1).astype(np.bool_)
    shifted = np.roll(flat, 1)
    shifted[0] = at_reset
    shifted[-1] |= flat[-1]
    return shifted


def _matrix(column: NDArray[Any]) -> FloatArray:
    return column.reshape(len(column), -1).astype(np.float32, copy=False)
