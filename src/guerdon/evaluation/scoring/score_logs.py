"""`guerdon score` of a folder: the files of a log, or a LeRobot data set, as a copy with one more column.

print(score_path(Path("rollouts"), model, Path("scored"), name="runs/rm"))
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.episodes.index import load_index
from guerdon.episodes.layout import INFO_PATH, camera_for, load_info
from guerdon.episodes.read import dataset_hash, read_episodes
from guerdon.errors import ConfigError, DataError, boundary
from guerdon.evaluation.scoring.responses import NothingToScoreError
from guerdon.evaluation.scoring.score_file import check_files, load_any_text_model, score_file
from guerdon.files.append_log import AppendLog
from guerdon.files.atomic import write_json, write_parquet
from guerdon.files.bounds import TooLarge
from guerdon.files.parquet_bounds import BoundedParquet
from guerdon.models.load import is_factory, kind_at, load_reward_model
from guerdon.models.scores import score_episodes
from guerdon.processes.progress import log_line
from guerdon.reading.containers import file_rows
from guerdon.reading.data_sets import log_files
from guerdon.reading.nested import RESCORED
from guerdon.settings.evaluate import Aggregation
from guerdon.train.rabc import by_row, row_values
from guerdon.types import Episode, FloatArray, RewardModel


@dataclass(frozen=True)
class ScoreSettings:
    """What `guerdon score` is asked for.

    Attributes:
        file: rows, a folder of files of a trainer, or a LeRobot data set.
        model: what `load_scoring_model` takes, or a model.
        output: the copy with the rewards.
        options: of the model.
        only_failed: see `score_file`.
        aggregation: see `score_file`.
        columns: see `score_file`.
        turns: see `score_file`.
    """

    file: Path
    model: str | RewardModel
    output: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    only_failed: bool = False
    aggregation: Aggregation = "min"
    columns: str | Mapping[str, str] | None = None
    turns: bool = False


class ScoreStage:
    """`guerdon score`, over settings of its own."""

    def check(self, settings: ScoreSettings) -> None:
        """Refuse paths; nothing is read.

        Raises:
            DataError: as `score_path`.
        """
        check_paths(settings.file, settings.output, only_failed=settings.only_failed)

    def estimate(self, settings: ScoreSettings) -> str:
        """How many rows would be scored and what a judge would cost, in words."""
        return self._scored(settings, dry_run=True)

    def work(self, settings: ScoreSettings) -> str:
        """Score them; what was done, in words."""
        return self._scored(settings, dry_run=False)

    def _scored(self, settings: ScoreSettings, *, dry_run: bool) -> str:
        self.check(settings)
        with ExitStack() as stack:
            if isinstance(settings.model, str):
                model, name = load_scoring_model(settings.file, settings.model, settings.options), settings.model
                stack.callback(getattr(model, "close", lambda: None))  # a judge's files of replies and costs
            else:
                model, name = settings.model, settings.model.info.name
            return score_path(
                settings.file,
                model,
                settings.output,
                name=name,
                options=settings.options,
                only_failed=settings.only_failed,
                aggregation=settings.aggregation,
                columns=settings.columns,
                turns=settings.turns,
                dry_run=dry_run,
            )


def is_data_set(path: Path) -> bool:
    """Whether a folder is a LeRobot data set."""
    return (path / INFO_PATH).is_file()


def load_scoring_model(path: Path, model: str, options: Mapping[str, Any]) -> RewardModel:
    """The model that scores a log: of robots for a LeRobot data set, else as `load_any_text_model`.

    Raises:
        CheckpointError: as `load_reward_model`.
        ConfigError: as `load_reward_model`.
    """
    if not is_data_set(path):
        return load_any_text_model(model, options=options)
    if is_factory(model):
        return load_reward_model(model, params=dict(options))
    return load_reward_model(kind_at(model), model, **options)


def check_paths(path: Path, out: Path, *, only_failed: bool) -> None:
    """Refuse paths that `score_path` would refuse before it reads them.

    Raises:
        DataError: as `score_path`.
    """
    if not path.is_dir():
        check_files(path, out, only_failed=only_failed)
    elif out.resolve().is_relative_to(path.resolve()) or out.is_file():
        raise DataError(f"name a new folder outside {path} for the copy", where=out)
    elif is_data_set(path) and (only_failed or out.exists()):
        raise DataError("of a LeRobot data set a new copy is written, of all episodes: name a new folder", where=out)


def score_path(path: Path, model: RewardModel, out: Path, **how: Any) -> str:
    """Write a copy of a file, a folder of files or a LeRobot data set with the rewards of a model.

    Files of a folder that are in the copy already are not scored again.

    Args:
        path: what is scored.
        model: any reward model; of a data set one of robots.
        out: the copy.
        how: see `score_file`.

    Returns:
        What was done, for people.

    Raises:
        DataError: as `score_file`, or no file of the folder has responses.
    """
    if path.is_file():
        return score_file(path, model, out, **how)
    if is_data_set(path):
        for name in ("columns", "turns"):
            if how.get(name):
                raise ConfigError(
                    f"--{name} is for rows of text; remove it for {path}, a LeRobot data set", key=f"--{name}"
                )
        return _score_data_set(path, model, out, name=how["name"], dry_run=how.get("dry_run", False))
    said = []
    for file in log_files(path):
        target = out / file.relative_to(path)
        if target.exists() and not how.get("only_failed"):
            said.append(f"{target} is there already")
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            said += _score_if_any(file, model, target, **how)
    if not said:
        raise DataError("no file in it has responses to score; curves and returns of episodes have none", where=path)
    return "\n".join(said)


def _score_if_any(file: Path, model: RewardModel, target: Path, **how: Any) -> list[str]:
    """What was done with a file of a folder; nothing with one that has no responses, or no rows at its beginning."""
    why = "it has no responses"
    try:
        first = next((row for _, row in file_rows(file)), None)
    except TooLarge:
        raise
    except DataError as error:  # such as a configuration beside the rows
        first, why = None, str(error)
    try:
        if isinstance(first, Mapping):
            return [score_file(file, model, target, **how)]
    except NothingToScoreError:
        pass
    log_line(f"{file}: left out, {why}")
    return []


def _score_data_set(root: Path, model: RewardModel, out: Path, *, name: str, dry_run: bool) -> str:
    """A copy of a data set with a value per row; NaN where the model gives none, as `next.reward` of LeRobot."""
    if model.info.modality == "text":
        raise ConfigError(f"the reward model {name} judges text, and {root} holds episodes of a robot")
    info = load_info(root)
    numbers = {entry.id: entry.index for entry in load_index(root, info)[0]}
    if dry_run:
        return f"{len(numbers)} episodes would be scored"
    unfinished = out.with_name(f"{out.name}.part")
    found = _scored_episodes(root, model, unfinished, numbers, {"data": dataset_hash(root), "model": name})
    copy = out.with_name(f"{out.name}.copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy)
    _add_column(copy, found)
    copy.rename(out)
    unfinished.unlink()
    return f"wrote {out}: {len(found)} episodes with the column {RESCORED}"


_Values = dict[int, list[float | None]]  # of the rows of an episode, by its number


def _scored_episodes(
    root: Path, model: RewardModel, unfinished: Path, numbers: Mapping[str, int], begun: Mapping[str, Any]
) -> _Values:
    """The values of all episodes; those that an unfinished start with the same `begun` kept are not scored again.

    Raises:
        DataError: it was begun with other data or another model.
    """
    pictures = model.info.modality == "image"
    camera = camera_for(root, model.info) if pictures else None
    with closing(AppendLog(unfinished)) as log:
        if not log.rows:
            log.append(begun)
        elif log.rows[0] != begun:
            raise DataError(
                "an unfinished start with other data or another model; finish or remove it", where=unfinished
            )
        found: _Values = {row["episode"]: row["values"] for row in log.rows[1:]}
        for episode in read_episodes(root, camera=camera, with_frames=pictures):
            number = numbers[episode.id]
            if number not in found:
                found[number] = [float(v) if np.isfinite(v) else None for v in _values_of_rows(model, episode)]
                log.append({"episode": number, "values": found[number]})
    return found


def _add_column(copy: Path, found: _Values) -> None:
    """Write the values into a data set, as a further column of its rows: NaN where there is none.

    Raises:
        DataError: a file of rows cannot be read.
    """
    import pyarrow as pa

    for file in sorted((copy / "data").rglob("*.parquet")):
        with boundary(DataError, f"{file} cannot be read"):
            table = BoundedParquet(file).table().replace_schema_metadata()
        places = zip(*(table[key].to_pylist() for key in ("episode_index", "frame_index")), strict=True)
        values = [found[episode][row] if episode in found else None for episode, row in places]
        column = [np.nan if value is None else value for value in values]
        table = table.drop_columns([RESCORED] if RESCORED in table.column_names else [])
        write_parquet(file, table.append_column(RESCORED, pa.array(column, pa.float32())))
    described = json.loads((copy / INFO_PATH).read_text(encoding="utf-8"))
    described["features"][RESCORED] = {"dtype": "float32", "shape": [1], "names": None}
    write_json(copy / INFO_PATH, described)


def _values_of_rows(model: RewardModel, episode: Episode) -> FloatArray:
    """(T,) values of the rows, NaN where there is none; a model that judges whole episodes says it in the last row."""
    if by_row(model.info):
        return row_values(model, episode)[0]
    values_T = np.full(len(episode), np.nan, dtype=np.float32)
    total = score_episodes(model, [episode])[0].total
    if total is not None:
        values_T[-1] = total
    return values_T
