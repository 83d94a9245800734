"""The checks that `guerdon train` makes at its start, without training: existing data are read, except their frames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from guerdon.episodes.read import camera_key, read_episodes
from guerdon.errors import DataError
from guerdon.plan.stages import section
from guerdon.settings.collect import CollectSettings
from guerdon.settings.policy import BCSettings
from guerdon.settings.study import Study
from guerdon.settings.train import VLMTrainSettings
from guerdon.train.bc import check_fresh, clones_whole, episodes_to_clone, gather_pairs, split_pairs
from guerdon.train.images import Settings, label_rows, sees_states, too_few
from guerdon.types import Episode
from guerdon.worlds.build import first_world


def check_episodes(name: str, settings: Settings | VLMTrainSettings, collect: CollectSettings | None) -> None:
    """Refuse episodes that a reward model cannot be trained on, or that cannot be split; missing paths are skipped.

    Args:
        name: of the model.
        settings: its section.
        collect: the section of the study.

    Raises:
        DataError: a path holds something else than a LeRobot data set, without the camera or the labels that are
            needed, or too few episodes to hold some out.
    """
    paths = [Path(path) for path in settings.data_paths]
    if all(path.exists() for path in paths):
        needs_task = isinstance(settings, VLMTrainSettings)
        rows = label_rows(_without_frames(settings), settings, lambda *_: None, needs_task=needs_task)
        rows.check_labels(settings)
        rows.check_split(settings.val_split)
        return
    to_come = collect if collect and paths == [Path(collect.save_dir)] else None
    if to_come is not None and to_come.episodes < 2 and settings.val_split > 0:
        raise DataError(f"train.{name}: {too_few(to_come.episodes)}")


def _without_frames(settings: Settings | VLMTrainSettings) -> Iterator[Episode]:
    """Episodes with a black pixel for each frame that training would decode."""
    for number, path in enumerate(settings.data_paths):
        camera = None if sees_states(settings) else camera_key(path, settings.camera)
        for episode in read_episodes(path, with_frames=False):
            frames = None if camera is None else np.zeros((len(episode), 1, 1, 3), np.uint8)
            yield replace(episode, id=f"{number}/{episode.id}", frames=frames)


def check_bc(study: Study) -> None:
    """Refuse what `guerdon train policy=bc` refuses at its start; frames are decoded of one episode.

    Raises:
        StudyError: the study has no `bc` section.
        ConfigError: the policy or the frames do not fit the environment.
        DataError: the data are there and cannot be cloned.
        MissingDependencyError: the simulator is not installed.
    """
    settings: BCSettings = section(study, "bc")
    check_fresh(study)
    whole, pixels = clones_whole(study), study.policy.type == "cnn"
    if Path(settings.data_path).exists():
        if whole or pixels:
            list(islice(episodes_to_clone(study, settings, with_frames=True), 1))
        if not whole:
            episodes = episodes_to_clone(study, settings, with_frames=False)
            pairs = gather_pairs(map(_black, episodes) if pixels else episodes, pixels=pixels)
            split_pairs(pairs, settings.val_split, study.runner.seed)
    if whole:
        with closing(first_world(study.env)):
            pass


def _black(episode: Episode) -> Episode:
    return replace(episode, frames=np.zeros((len(episode), 1, 1, 3), np.uint8))
