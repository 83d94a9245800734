"""`guerdon evaluate`: judge every trained reward model of a study on episodes it has not seen.

This module does not know how models were trained, only where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from guerdon.episodes.read import dataset_hash, read_episodes
from guerdon.errors import ConfigError, DataError
from guerdon.evaluate.evaluate import Evaluation, evaluate_model
from guerdon.evaluate.output import write_evaluation
from guerdon.models.load import load_reward_model
from guerdon.settings.study import Study
from guerdon.settings.train import ImageTrainSettings
from guerdon.types import Episode


def evaluate_study(study: Study, *, only: Sequence[str] = ()) -> dict[str, tuple[Evaluation, dict[str, Path]]]:
    """Evaluate the models of the `train` section.

    Args:
        study: the configuration.
        only: names of models; all by default.

    Returns:
        Model name to its evaluation and the files written beside the model.

    Raises:
        ConfigError: a name that the `train` section lacks.
        CheckpointError: a model is not trained yet.
        DataError: no held-out episode.
    """
    unknown = sorted(set(only) - set(study.train))
    if unknown or not study.train:
        raise ConfigError(
            f"train has no model {', '.join(unknown)}; it has {', '.join(study.train) or 'none'}"
            if unknown
            else "this configuration has no train section, so there is no reward model to evaluate"
        )
    results = {}
    for name in only or study.train:
        settings = study.train[name]
        model = load_reward_model(settings.type, settings.save_dir)
        episodes, digest = held_out(settings, study.evaluate.data_path)
        evaluation = evaluate_model(
            model,
            episodes,
            kind="progress" if settings.type == "progress" else "success",
            threshold=None,
            seed=study.evaluate.seed,
            reps=study.evaluate.reps,
            max_rows=None,
            data_hash=digest,
        )
        results[name] = (evaluation, write_evaluation(evaluation, Path(settings.save_dir)))
    return results


def held_out(settings: ImageTrainSettings, data_path: str | None) -> tuple[list[Episode], str]:
    """Episodes the model was not fitted to: another data set, or its own validation split.

    Returns:
        The episodes and a hash of the data set they come from.
    """
    if data_path is not None:
        episodes = list(read_episodes(data_path, camera=settings.camera))
        digest = dataset_hash(data_path)
    else:
        from guerdon.train.frames import held_out_episodes

        everything = [e for path in settings.data_paths for e in read_episodes(path, camera=settings.camera)]
        names = held_out_episodes(everything, settings)
        episodes = [e for e in everything if e.id in names]
        digest = dataset_hash(settings.data_paths[0])
    if not episodes:
        raise DataError(
            "no held-out episode: the model was trained with val_split 0; name another data set as evaluate.data_path"
        )
    return episodes, digest
