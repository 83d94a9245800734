"""Episodes of a data set as recordings (`.rrd`) for the Rerun viewer, with what reward models say of every frame.

One file per episode. Entities have the names of LeRobot's own viewer: `observation.images.<camera>`, `state`, `action`,
`next.reward`, `next.success`, `next.done`, and `task`; `reward/<model>` is what a reward model says of the frame. A
measurement that failed is an empty value there, which interrupts the curve, and its reason is a line of
`reward/<model>/failure`. Timelines: `frame_index` and `timestamp` (seconds since the start of the episode).

    paths = write_recordings("data/door", [{"model_type": "progress", "checkpoint_path": "runs/door/progress"}])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.episodes import layout
from guerdon.episodes.images import encode_png
from guerdon.episodes.index import load_index
from guerdon.episodes.progress_files import read_progress
from guerdon.episodes.read import cameras_of, dataset_hash, read_episodes
from guerdon.errors import ConfigError, DataError, boundary, needs
from guerdon.files.atomic import publish
from guerdon.models.load import load_reward_model
from guerdon.models.scores import score_episodes
from guerdon.processes.progress import ProgressBar
from guerdon.train.rabc import by_row, row_values
from guerdon.types import BoolArray, Episode, FloatArray, RewardModel

FOLDER = "rerun"
_SCORED = "*_progress.parquet"  # files of values that lie beside a data set


@dataclass(frozen=True, eq=False)
class RewardCurve:
    """What one reward model says of an episode of T rows.

    Attributes:
        values: (T,), NaN where there is none.
        reasons: T texts, why there is no value; None where there is one, or where none was due.
    """

    values: FloatArray
    reasons: Sequence[str | None]


def write_recordings(
    root: str | Path,
    models: Sequence[Mapping[str, Any]] = (),
    *,
    camera: str | None = None,
    limit: int | None = None,
    folder: str | Path | None = None,
) -> list[Path]:
    """Write the episodes of a data set as recordings for Rerun.

    Rewards are those of `models`, and those in files `*_progress.parquet` beside the data (of guerdon or LeRobot).

    Args:
        root: folder of a LeRobotDataset v3.
        models: reward models, each the keys of `reward.model`.
        camera: that the models look at; needed only where there are several.
        limit: stop after so many episodes.
        folder: receives `episode_<number>.rrd`; None: `rerun/` in the folder of the data set.

    Returns:
        The files, in the order of the episodes.

    Raises:
        ConfigError: a model of text, or two of one name.
        DataError: no data set there, or a file of rewards that was made from other episodes.
        MissingDependencyError: `rerun-sdk` is not installed.
    """
    with needs("recordings need the package rerun-sdk: pip install 'guerdon[rerun]'"):
        import rerun  # noqa: F401
    data = Path(root)
    info = layout.load_info(data)
    cameras = [*cameras_of(data, info)]
    if camera is not None:
        camera = layout.camera_name(camera)
    elif len(cameras) > 1 and models:
        raise ConfigError(f"{data} has several cameras: choose what the models see by --camera ({', '.join(cameras)})")
    first = camera or next(iter(cameras), None)
    scorers = _scorers(models)
    scored = _scored_before(data)
    if both := sorted(scorers.keys() & scored.keys()):
        raise ConfigError(f"{data / f'{both[0]}_progress.parquet'} has the values of {both[0]} already: omit the model")
    numbers = {entry.id: entry.index for entry in load_index(data, info)[0]}
    target = data / FOLDER if folder is None else Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    progress = ProgressBar(min(len(numbers), limit or len(numbers)), what="recordings", lines=5)
    paths = list[Path]()
    try:
        episodes = read_episodes(data, camera=first, views=[c for c in cameras if c != first], limit=limit)
        for episode in episodes:
            rewards = {name: found[episode.id] for name, found in scored.items() if episode.id in found}
            rewards |= {name: reward_curve(model, episode) for name, model in scorers.items()}
            paths.append(target / f"episode_{numbers[episode.id]:06d}.rrd")
            write_recording(paths[-1], episode, rewards, camera=first, fps=info.fps)
            progress.advance(len(paths), episode.id)
    finally:
        progress.close()
    return paths


def _scorers(models: Sequence[Mapping[str, Any]]) -> dict[str, RewardModel]:
    """The models by the name that their entities get."""
    found: dict[str, RewardModel] = {}
    for given in models:
        if not isinstance(given, Mapping) or "model_type" not in given:
            raise ConfigError(
                f"a reward model is the keys of reward.model, such as {{model_type: progress, checkpoint_path: "
                f"runs/door/progress}}, not {given!r}"
            )
        name = str(given["model_type"]).rpartition(":")[2]
        if name in found:
            raise ConfigError(f"two models are called {name}: write their recordings into different folders")
        found[name] = load_reward_model(**given)
        if found[name].info.modality == "text":
            raise ConfigError(f"the reward model {name} judges text, and these are episodes of a robot")
    return found


def _scored_before(root: Path) -> dict[str, dict[str, RewardCurve]]:
    """Values in files beside the data set: name of the model to id of the episode to its values.

    Raises:
        DataError: a file that guerdon wrote is of other episodes than are there now.
    """
    curves: dict[str, dict[str, RewardCurve]] = {}
    for path in sorted(root.glob(_SCORED)):
        found = read_progress(path, root)
        if found.made_of is not None and found.made_of.get("data") != dataset_hash(root):
            raise DataError(
                f"{path} was made from other episodes than {root} holds now: remove it, or score them again"
            )
        curves[path.name.removesuffix(_SCORED[1:])] = {
            name: RewardCurve(values, found.reasons.get(name, [None] * len(values)))
            for name, values in found.values.items()
        }
    return curves


def reward_curve(model: RewardModel, episode: Episode) -> RewardCurve:
    """What a model says of an episode; one that judges whole episodes says it in the last row."""
    if by_row(model.info):
        values, failures = row_values(model, episode)
    else:
        values, failures = np.full(len(episode), np.nan, dtype=np.float32), [None] * len(episode)
        score = score_episodes(model, [episode])[0]
        values[-1] = np.nan if score.total is None else score.total
        failures[-1] = score.failure if score.total is None else None
    return RewardCurve(values, [None if why is None else str(why) for why in failures])


def write_recording(
    path: Path, episode: Episode, rewards: Mapping[str, RewardCurve], *, camera: str | None, fps: float
) -> None:
    """Write one episode, whole or not at all.

    Args:
        path: the file.
        episode: its `frames` are those of `camera`.
        rewards: by the name of the model.
        camera: name; None where the episode has no frames.
        fps: rows per second.

    Raises:
        DataError: the recording could not be written.
    """
    import rerun as rr

    part = path.with_name(f".{path.name}.part")
    with boundary(DataError, f"{path} cannot be written"):
        stream = rr.RecordingStream("guerdon", recording_id=episode.id)
        stream.save(part, default_blueprint=_blueprint(episode, camera))
        stream.send_recording_name(episode.id)
        outcome = {True: "success", False: "failure", None: "unknown"}[episode.outcome]
        meta = {f"meta.{name}": str(value) for name, value in episode.meta.items()}
        stream.send_property("episode", rr.AnyValues(task=episode.task, outcome=outcome, **meta))
        stream.log("task", rr.TextDocument(episode.task), static=True)
        log = _Log(stream, len(episode), fps)
        for key, frames in layout.pictures_of(episode, layout.camera_key(camera or "main")).items():
            blobs = encode_png(frames)
            columns = rr.EncodedImage.columns(blob=blobs, media_type=["image/png"] * len(blobs))
            stream.send_columns(key, log.times(np.arange(len(blobs))), columns)
        log.scalars("state", episode.states)
        # A row of LeRobot holds the action that is taken there and its results: one row earlier than in an Episode.
        log.scalars(layout.ACTION, None if episode.actions is None else episode.actions[1:])
        log.scalars(layout.SUCCESS, None if episode.success is None else episode.success[1:])
        log.scalars(layout.DONE, np.arange(1, len(episode)) == len(episode) - 1)
        if episode.rewards is not None:
            native = episode.rewards[1:]
            log.curve(layout.REWARD, native, [None if np.isfinite(value) else "non_finite" for value in native])
        for name, curve in rewards.items():
            log.curve(f"reward/{name}", curve.values, curve.reasons)
        stream.flush()
        stream.disconnect()
        publish(part, path)


class _Log:
    """Writes columns of an episode into a recording."""

    def __init__(self, stream: Any, rows: int, fps: float) -> None:
        self._stream, self._rows, self._fps = stream, rows, fps

    def times(self, rows: Any) -> list[Any]:
        """Both timelines at these rows."""
        import rerun as rr

        at = np.asarray(rows, dtype=np.int64)
        return [rr.TimeColumn("frame_index", sequence=at), rr.TimeColumn("timestamp", duration=at / self._fps)]

    def scalars(self, entity: str, values: FloatArray | BoolArray | None) -> None:
        """Numbers of the first rows: (T,) or (T, size); None: nothing."""
        if values is not None and len(values):
            self._send(entity, values.reshape(len(values), -1), [values[0].size] * len(values))

    def curve(self, entity: str, values_T: FloatArray, reasons: Sequence[str | None]) -> None:
        """(T,) values, NaN where there is none, and the reasons why."""
        import rerun as rr

        known = np.isfinite(values_T)
        due = known | np.array([why is not None for why in reasons], dtype=np.bool_)
        rows = np.flatnonzero(due)
        if len(rows):
            self._send(entity, values_T[known], known[rows].astype(int).tolist(), rows)
        if failed := [t for t, why in enumerate(reasons) if why is not None]:
            texts = [str(reasons[t]) for t in failed]
            columns = rr.TextLog.columns(text=texts, level=[rr.TextLogLevel.WARN] * len(failed))
            self._stream.send_columns(f"{entity}/failure", self.times(failed), columns)

    def _send(self, entity: str, values: Any, lengths: list[int], rows: Any = None) -> None:
        import rerun as rr

        rows = np.arange(len(lengths)) if rows is None else rows
        columns = rr.Scalars.columns(scalars=np.asarray(values, dtype=np.float64).reshape(-1)).partition(lengths)
        self._stream.send_columns(entity, self.times(rows), columns)


def _blueprint(episode: Episode, camera: str | None) -> Any:
    """Pictures on the left, curves and the reasons of failures on the right."""
    import rerun.blueprint as rrb

    pictures = layout.pictures_of(episode, layout.camera_key(camera or "main"))
    views = [rrb.Spatial2DView(origin=key, name=layout.camera_name(key)) for key in pictures]
    curves = [
        rrb.TimeSeriesView(origin="/", contents=[layout.REWARD, "reward/**"], name="rewards"),
        *(rrb.TimeSeriesView(origin=name, name=name) for name in (layout.SUCCESS, layout.ACTION, "state")),
        rrb.TextLogView(origin="/", contents=["reward/**", f"{layout.REWARD}/**"], name="failures"),
    ]
    return rrb.Blueprint(
        rrb.Horizontal(rrb.Vertical(*views), rrb.Vertical(*curves)) if views else rrb.Vertical(*curves)
    )
