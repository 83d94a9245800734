"""Reward-aligned behaviour cloning: weights of demonstrated moments by the progress that follows them.

RA-BC of SARM (Chen et al. 2025, arXiv 2509.25358, eqs. 7 to 9), as LeRobot's `rabc` computes it. With the progress phi
of every row and a chunk of D actions, the change that follows row t is

    r_t = phi(min(t + D, T - 1)) - phi(t)

Over all rows of the episodes that are cloned, mu is the mean of the changes, at least 0, and sigma their standard
deviation, at least epsilon. The weight of a row is

    w_t = 1                                                           r_t > kappa
          clip((r_t - (mu - 2 sigma)) / (4 sigma + epsilon), 0, 1)    0 <= r_t <= kappa
          0                                                           r_t < 0

and the loss of a batch is the mean of w_i l_i, with weights scaled so that they add up to the number of its rows.

Progress comes from a reward model, which scores every row of the data set once; the values are kept beside the data
with hashes of both. A row that could not be scored has no progress: `on_failure` decides what becomes of the moments
that need it.

    weights = sample_weights(study.bc, chunk=policy.chunk)
    weights.rows["expert-0/3"]            # (T,) float32, NaN: to be left out
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from guerdon.episodes.index import Entry, load_index
from guerdon.episodes.layout import camera_for, load_info
from guerdon.episodes.read import dataset_hash, read_episodes
from guerdon.errors import ConfigError, DataError, TooManyFailuresError, boundary
from guerdon.files.atomic import sha256, write_parquet
from guerdon.files.parquet_bounds import BoundedParquet
from guerdon.models.load import load_source_model
from guerdon.models.scores import score_episodes
from guerdon.processes.progress import ProgressBar, log_line
from guerdon.settings.policy import BCSettings
from guerdon.settings.reward_models import RewardModelSettings
from guerdon.settings.sample_weighting import RABCSettings
from guerdon.types import Episode, Failure, FloatArray, RewardInfo, RewardModel, Score

# ---------------------------------------------------------------------------------------------------------------------
# Progress of every row of a data set, in the Parquet layout that LeRobot's weighted cloning reads.
#
# One row per row of the data set: `index`, `episode_index`, `frame_index`, and `progress_sparse` or `progress_dense`,
# NaN where there is none. A file that guerdon wrote has a column `failure` besides, with the reason, and says in its
# metadata which data and which model it is of. LeRobot's own file is `sarm_progress.parquet` in the folder of the
# data set.
#
#     write_progress(path, root, {"episode-0": values_T}, {}, origin="runs/progress", made_of={"data": a, "model": b})
#     found = read_progress(path, root)
#     found.values["episode-0"]            # (T,) float32
# ---------------------------------------------------------------------------------------------------------------------


MADE_OF = b"guerdon"  # key of the metadata
ORIGIN = b"reward_model_path"  # LeRobot's


@dataclass(frozen=True, eq=False)
class ProgressFile:
    """What a file of progress holds.

    Attributes:
        values: id of an episode to (T,) progress, NaN where there is none.
        reasons: id of an episode to T reasons why there is none; only of episodes where something failed.
        made_of: hashes of data and model; None in a file of another program.
    """

    values: Mapping[str, FloatArray]
    reasons: Mapping[str, Sequence[str | None]]
    made_of: Mapping[str, str] | None


def write_progress(
    path: Path,
    root: Path,
    values: Mapping[str, FloatArray],
    reasons: Mapping[str, Sequence[str | None]],
    *,
    origin: str,
    made_of: Mapping[str, str],
) -> None:
    """Write the progress of a data set, atomically.

    Args:
        path: the file.
        root: folder of the data set.
        values: id of an episode to (T,) progress, NaN where there is none.
        reasons: id of an episode to T reasons why there is none.
        origin: where the model came from, for people and for LeRobot.
        made_of: hashes of data and model.
    """
    parts = []
    for entry in _entries(root):
        if entry.id in values:
            rows = np.arange(len(values[entry.id]), dtype=np.int64)
            columns = {
                "index": entry.start + rows,
                "episode_index": np.full(len(rows), entry.index, dtype=np.int64),
                "frame_index": rows,
                "progress_sparse": values[entry.id].astype(np.float32),
                "failure": pa.array(reasons.get(entry.id, [None] * len(rows)), pa.string()),
            }
            parts.append(pa.table(columns))
    metadata = {ORIGIN: origin.encode(), MADE_OF: json.dumps(dict(made_of), sort_keys=True).encode()}
    write_parquet(path, pa.concat_tables(parts).combine_chunks().sort_by("index").replace_schema_metadata(metadata))


def made_of(path: Path) -> dict[str, str] | None:
    """Hashes of the data and the model that a file is of; None: there is no such file, or another program wrote it.

    Raises:
        DataError: it cannot be read.
    """
    if not path.is_file():
        return None
    with boundary(DataError, f"{path} cannot be read; remove it, and it is written again"):
        found = (BoundedParquet(path).schema.metadata or {}).get(MADE_OF)
        return None if found is None else dict(json.loads(found))


class _Columns(NamedTuple):
    """The columns of a file of progress, a row per row of the data set, in any order."""

    row: NDArray[np.int64]
    episode: NDArray[np.int64]
    frame: NDArray[np.int64]
    progress: FloatArray
    failure: Sequence[str | None]


def read_progress(path: Path, root: Path, *, head_mode: str = "sparse") -> ProgressFile:
    """Read the progress of a data set.

    Args:
        path: a file that guerdon or LeRobot wrote.
        root: folder of the data set.
        head_mode: `sparse` or `dense`, of files with several columns.

    Raises:
        DataError: there is no such file or column, or it belongs to other episodes.
    """
    if not path.is_file():
        raise DataError(
            f"there is no file of progress at {path}: name a reward model, which writes one, or another file"
        )
    index, episode, frame, progress, failure = _read_columns(path, f"progress_{head_mode}")
    values: dict[str, FloatArray] = {}
    reasons: dict[str, Sequence[str | None]] = {}
    order = np.lexsort((frame, episode))
    entries = _entries(root)
    starts = np.searchsorted(episode[order], [entry.index for entry in entries])
    for entry, start in zip(entries, starts, strict=True):
        rows = order[start : start + entry.length]
        expected = np.arange(len(rows))
        rows = rows[episode[rows] == entry.index]
        if not len(rows):
            continue
        if (
            len(rows) != entry.length
            or (frame[rows] != expected).any()
            or (index[rows] != entry.start + expected).any()
        ):
            raise DataError(
                f"{path} does not fit episode {entry.index} of {root}, which has {entry.length} rows from index "
                f"{entry.start} on: it was made from another data set"
            )
        found = np.where(np.isfinite(progress[rows]), progress[rows], np.float32(np.nan))
        values[entry.id] = found
        if np.isnan(found).any():
            pairs = zip(rows.tolist(), found.tolist(), strict=True)
            reasons[entry.id] = [(failure[row] or "no_value") if np.isnan(v) else None for row, v in pairs]
    return ProgressFile(values, reasons, made_of(path))


def _read_columns(path: Path, column: str) -> _Columns:
    with boundary(DataError, f"{path} cannot be read"):
        table = BoundedParquet(path).table()
        places = ["index", "episode_index", "frame_index"]
        missing = [name for name in (*places, column) if name not in table.column_names]
        if missing:
            raise DataError(
                f"{path} has no column {missing[0]}; it has {', '.join(table.column_names)}", field=missing[0]
            )
        index, episode, frame = (table[name].to_numpy().astype(np.int64) for name in places)
        progress = table[column].to_numpy(zero_copy_only=False).astype(np.float32)
        failure = table["failure"].to_pylist() if "failure" in table.column_names else [None] * len(index)
    return _Columns(index, episode, frame, progress, failure)


def _entries(root: Path) -> list[Entry]:
    return load_index(root, load_info(root))[0]


# ---------------------------------------------------------------------------------------------------------------------


BATCH = 512  # rows that a model of single frames scores in one call
LEROBOT_FILE = "sarm_progress.parquet"
RESET = "reset"  # row 0 has no recorded reward: nothing failed
_FOLDERS = ("checkpoint_path", "path", "adapter")  # keys whose files are part of a model


@dataclass(frozen=True, eq=False)
class SampleWeights:
    """Weights of the rows of demonstrations.

    Attributes:
        rows: id of an episode to (T,) float32 in 0..1, NaN: to be left out.
        epsilon: added to divisors.
        metrics: numbers about them.
    """

    rows: Mapping[str, FloatArray]
    epsilon: float
    metrics: Mapping[str, Any]


def progress_changes(progress_T: FloatArray, chunk_size: int) -> NDArray[np.float64]:
    """(T,) change of progress over the next `chunk_size` rows, or up to the last; NaN where a value is missing."""
    ahead = np.minimum(np.arange(len(progress_T)) + chunk_size, len(progress_T) - 1)
    values = progress_T.astype(np.float64)
    return np.asarray(values[ahead] - values)


def rabc_weights(
    changes_N: NDArray[np.float64], *, mean: float, std: float, kappa: float, epsilon: float
) -> NDArray[np.float64]:
    """(N,) weights of RA-BC (SARM, arXiv 2509.25358, eqs. 8 and 9), NaN where the change is missing.

    Args:
        changes_N: changes of progress.
        mean, std: of the changes; see `spread`.
        kappa: above it the weight is 1.
        epsilon: added to the divisor.
    """
    soft = np.clip((changes_N - (mean - 2 * std)) / (4 * std + epsilon), 0.0, 1.0)
    weights = np.where(changes_N > kappa, 1.0, np.where(changes_N >= 0, soft, 0.0))
    return np.where(np.isnan(changes_N), np.nan, weights)


def spread(changes_N: NDArray[np.float64], epsilon: float) -> tuple[float, float]:
    """Mean, at least 0, and standard deviation, at least `epsilon`, of the changes that are known.

    Raises:
        DataError: none is.
    """
    known = changes_N[~np.isnan(changes_N)]
    if not len(known):
        raise DataError("no moment of the demonstrations has progress before and after it, so none has a weight")
    return max(float(known.mean()), 0.0), max(float(known.std()), epsilon)


def sample_weights(bc: BCSettings, *, chunk: int, camera: str | None = None) -> SampleWeights | None:
    """The weights of the episodes that `bc` clones; None where it weighs all alike.

    Args:
        bc: the section.
        chunk: actions of a decision of the policy.
        camera: that a reward model looks at.

    Raises:
        ConfigError: a model that gives no value per row, or no `chunk_size` for a policy of single actions.
        DataError: the progress does not belong to the data, or none is known.
        TooManyFailuresError: more rows than `max_failure_rate` could not be scored.
    """
    settings = bc.sample_weighting
    if settings is None:
        return None
    size = settings.chunk_size or chunk
    if not settings.chunk_size and chunk <= 1:
        raise ConfigError.about(
            "bc.sample_weighting.chunk_size",
            "is needed with a policy that decides on one action at a time: the number "
            "of rows ahead to which progress is compared, such as 10",
        )
    found = _recorded(bc) if settings.recorded_reward else _progress(bc, settings, camera)
    cloned = read_episodes(bc.data_path, with_frames=False, only_success=bc.only_success)
    lengths = {episode.id: len(episode) for episode in cloned}
    unknown = [name for name in lengths if name not in found.values]
    if unknown:
        raise DataError(f"there is no progress of {len(unknown)} episodes of {bc.data_path}, such as {unknown[0]!r}")
    failures = _failures(found, lengths, settings)
    changes = {name: progress_changes(found.values[name], size) for name in lengths}
    mean, std = spread(np.concatenate(list(changes.values())), settings.epsilon)
    unknown_weight = 1.0 if settings.on_failure == "neutral" else np.nan
    rows: dict[str, FloatArray] = {}
    for name, changes_T in changes.items():
        weights_T = rabc_weights(changes_T, mean=mean, std=std, kappa=settings.kappa, epsilon=settings.epsilon)
        rows[name] = np.nan_to_num(weights_T, nan=unknown_weight).astype(np.float32)
    metrics = {"progress_failures": sum(failures.values()), **_weight_metrics(rows, changes)}
    return SampleWeights(rows, settings.epsilon, {**metrics, "change_mean": mean, "change_std": std})


def _weight_metrics(
    weights: Mapping[str, FloatArray], changes: Mapping[str, NDArray[np.float64]]
) -> dict[str, float | None]:
    """Numbers about the weights of all moments; no action follows the last row of an episode."""
    missing = np.concatenate([np.isnan(changes_T[:-1]) for changes_T in changes.values()])
    moments = np.concatenate([weights_T[:-1] for weights_T in weights.values()])
    known = moments[~np.isnan(moments)]
    return {
        "weights_missing": int(missing.sum()),
        "weight_mean": float(known.mean()) if len(known) else None,
        "weight_zero": float((known == 0).mean()) if len(known) else None,
    }


def _failures(found: ProgressFile, lengths: Mapping[str, int], settings: RABCSettings) -> Counter[str]:
    """Rows without progress among those that are cloned, by reason.

    Raises:
        TooManyFailuresError: there are too many, or `on_failure` is raise.
    """
    reasons = Counter(why for name in lengths for why in found.reasons.get(name, ()) if why not in (None, RESET))
    failures: Counter[str] = Counter({str(why): count for why, count in reasons.items()})
    count, rows = sum(failures.values()), sum(lengths.values())
    if count:
        said = ", ".join(f"{why} x {number}" for why, number in failures.most_common())
        line = f"{count} of {rows} rows of the demonstrations have no progress ({said})"
        if settings.on_failure == "raise" or count > settings.max_failure_rate * rows:
            raise TooManyFailuresError(
                f"{line}: see bc.sample_weighting.on_failure and max_failure_rate; remove the file of progress to "
                "score them again"
            )
        log_line(f"{line}; on_failure: {settings.on_failure}")
    return failures


# Progress.


def _recorded(bc: BCSettings) -> ProgressFile:
    """The environment's own rewards: row t's was earned by arriving there, and nothing was earned by the reset."""
    values: dict[str, FloatArray] = {}
    reasons: dict[str, Sequence[str | None]] = {}
    for episode in read_episodes(bc.data_path, with_frames=False):
        if episode.rewards is None:
            raise DataError(
                f"episode {episode.id!r} of {bc.data_path} has no rewards: recorded_reward has nothing to use"
            )
        known = np.isfinite(episode.rewards)
        known[0] = False
        values[episode.id] = np.where(known, episode.rewards, np.float32(np.nan))
        reasons[episode.id] = [RESET, *(None if one else "non_finite" for one in known[1:])]
    return ProgressFile(values, reasons, None)


def _progress(bc: BCSettings, settings: RABCSettings, camera: str | None) -> ProgressFile:
    """The progress of a file, which is made first where a model is named and the file is not of this model and data.

    Raises:
        DataError: a file without a model that is of other data.
    """
    root = Path(bc.data_path)
    if settings.model is None:
        path = Path(settings.progress_path or root / LEROBOT_FILE)
        found = read_progress(path, root, head_mode=settings.head_mode)
        if found.made_of is not None and found.made_of.get("data") != dataset_hash(root):
            raise DataError(f"{path} was made from other episodes than {root} holds now: score them again")
        return found
    given = None if settings.progress_path is None else Path(settings.progress_path)
    return read_progress(scored_progress(root, settings.model, path=given, camera=camera), root)


def scored_progress(
    root: Path, settings: RewardModelSettings, *, path: Path | None = None, camera: str | None = None
) -> Path:
    """The file of the progress that a reward model gives every row of a data set; written where it is not there yet.

    Args:
        root: folder of the data set.
        settings: of the model.
        path: the file; None: `<model_type>_progress.parquet` beside the data.
        camera: that the model looks at; needed only where there are several.

    Raises:
        ConfigError: the model judges whole episodes, or another program wrote the file.
    """
    name = settings.model_type.rpartition(":")[2]
    path = root / f"{name}_progress.parquet" if path is None else path
    before = made_of(path)
    now = {"data": dataset_hash(root), "model": model_hash(settings)}
    if before != now:
        if before is None and path.exists():
            raise ConfigError(
                f"{path} was written by another program: set progress_path to another file", key="progress_path"
            )
        if before is not None:
            changed = " and ".join(key for key in now if before.get(key) != now[key])
            log_line(f"the {changed} of {path} changed: scoring the episodes again")
        values, reasons = _scored(root, load_source_model(settings), camera)
        write_progress(path, root, values, reasons, origin=settings.origin, made_of=now)
    return path


def model_hash(settings: RewardModelSettings) -> str:
    """SHA-256 of a reward model: its settings and the files of its checkpoint, in hex.

    Of a model on a server, the address and the name; of one's own, the factory, its parameters and the files they name.
    """
    given = settings.model_dump(mode="json", exclude={"debug_save_dir"})
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode())
    for folder in sorted(set(_folders(given))):
        root = folder / "model" if (folder / "model").is_dir() else folder
        files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
        for file in files:
            digest.update(str(file.relative_to(root)).encode() + sha256(file).encode())
    return digest.hexdigest()


def _folders(value: Any, key: str = "", *, every: bool = False) -> Iterator[Path]:
    """Files and folders that exist, of the keys that name them and of everything inside `params`."""
    if isinstance(value, str) and value and (every or key in _FOLDERS) and Path(value).exists():
        yield Path(value)
    elif isinstance(value, dict):
        for name, child in value.items():
            yield from _folders(child, name, every=every or name == "params")


def _scored(
    root: Path, model: RewardModel, camera: str | None
) -> tuple[dict[str, FloatArray], dict[str, list[str | None]]]:
    """Progress of every row of the data set, NaN where it is missing, and the reasons.

    Raises:
        ConfigError: the model judges whole episodes.
    """
    info = model.info
    if not by_row(info):
        raise ConfigError(
            f"the reward model {info.name!r} gives one value per episode, and RA-BC needs one per row: of a "
            "vision-language model set rows: all; or write its progress to a file and name it as progress_path"
        )
    pictures = info.modality == "image"
    values: dict[str, FloatArray] = {}
    reasons: dict[str, list[str | None]] = {}
    number = sum(1 for _ in read_episodes(root, with_frames=False))
    progress = ProgressBar(number, what="episodes scored", lines=5)
    try:
        shown = camera_for(root, info, camera) if pictures else None
        for episode in read_episodes(root, camera=shown, with_frames=pictures):
            values[episode.id], failures = row_values(model, episode)
            if any(failures):
                reasons[episode.id] = [None if why is None else why.reason for why in failures]
            progress.advance(len(values), episode.id)
    finally:
        progress.close()
    return values, reasons


def by_row(info: RewardInfo) -> bool:
    """Whether a reward model gives a value per row: it looks at single frames, or says so itself."""
    return info.granularity == "step" or _single(info)


def row_values(model: RewardModel, episode: Episode) -> tuple[FloatArray, list[Failure | None]]:
    """What a model that gives values per row says of an episode.

    A model of single frames scores each row as an episode of its own, so that a failure is of one frame.

    Args:
        model: for which `by_row` holds.
        episode: of T rows.

    Returns:
        (T,) values, NaN where there is none, and T failures.

    Raises:
        DataError: the model gave another number of scores than it got episodes.
    """
    if _single(model.info):
        rows = [episode[t : t + 1] for t in range(len(episode))]
        parts = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
        return _values(episode, [score for part in parts for score in score_episodes(model, part)])
    return _values(episode, score_episodes(model, [episode]))


def _single(info: RewardInfo) -> bool:
    return info.modality == "image" and info.frames_needed == 1


def _values(episode: Episode, scores: Sequence[Score]) -> tuple[FloatArray, list[Failure | None]]:
    """(T,) values of an episode's rows and T failures, from one for each row or one for all."""
    values = np.full(len(episode), np.nan, dtype=np.float32)
    rows = [[t] for t in range(len(episode))] if len(scores) == len(episode) else [list(range(len(episode)))]
    failures: list[Failure | None] = [None] * len(episode)
    for score, group in zip(scores, rows, strict=True):
        steps = np.array([score.total]) if score.steps is None and score.total is not None else score.steps
        if steps is not None and len(steps) == len(group):
            values[group] = steps
            continue
        for t in group:
            failures[t] = score.failure or Failure("wrong_length", "other values than rows")
    return values, failures
