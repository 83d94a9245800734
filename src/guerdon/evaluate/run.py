"""`guerdon evaluate`: judge every trained reward model of a study, and those on servers, on episodes it has not seen.

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
from guerdon.settings.remote import RemoteSettings
from guerdon.settings.study import Study
from guerdon.settings.train import ImageTrainSettings
from guerdon.settings.vlm import VLMTrainSettings
from guerdon.types import Episode


def evaluate_study(study: Study, *, only: Sequence[str] = ()) -> dict[str, tuple[Evaluation, dict[str, Path]]]:
    """Evaluate the models of the `train` section and of `evaluate.remote`.

    Args:
        study: the configuration.
        only: names of models; all by default.

    Returns:
        Model name to its evaluation and the files written beside the model (of one on a server: to
        `work_dir/models/<task>/<name>`).

    Raises:
        ConfigError: a name that the study lacks or has twice, or a server that does not answer.
        CheckpointError: a model is not trained yet.
        DataError: no held-out episode.
    """
    remote = study.control_evaluate.remote
    twice = sorted(set(study.train) & set(remote))
    if twice:
        raise ConfigError(f"{twice[0]} is a model of train and of evaluate.remote; rename one")
    unknown = sorted(set(only) - set(study.train) - set(remote))
    if unknown or not (study.train or remote):
        raise ConfigError(
            f"there is no model {', '.join(unknown)}; there are {', '.join([*study.train, *remote]) or 'none'}"
            if unknown
            else "this configuration has neither a train section nor evaluate.remote: there is no model to evaluate"
        )
    results = {}
    for name in only or [*study.train, *remote]:
        if name in remote:
            results[name] = _on_a_server(study, name, remote[name])
            continue
        settings = study.vlm_models[name] if name in study.vlm_models else study.image_models[name]
        model = load_reward_model(settings.type, settings.save_dir)
        episodes, digest = held_out(settings, study.control_evaluate.data_path)
        evaluation = evaluate_model(
            model,
            episodes,
            kind="progress" if "progress" in (settings.type, getattr(settings, "question", None)) else "success",
            threshold=None,
            seed=study.control_evaluate.seed,
            reps=study.control_evaluate.reps,
            max_rows=None,
            data_hash=digest,
        )
        results[name] = (evaluation, write_evaluation(evaluation, Path(settings.save_dir)))
    return results


def _on_a_server(study: Study, name: str, settings: RemoteSettings) -> tuple[Evaluation, dict[str, Path]]:
    """Evaluate a model on a reward server on the episodes of `evaluate.data_path`."""
    how = study.control_evaluate
    assert how.data_path is not None
    model = load_reward_model("remote", remote=settings)
    info = model.info
    camera = study.env.camera if "camera" in study.env.model_fields_set else None
    evaluation = evaluate_model(
        model,
        list(read_episodes(how.data_path, camera=camera)),
        kind="progress" if info.name == "progress" or info.progress_horizon is not None else "success",
        threshold=None,
        seed=how.seed,
        reps=how.reps,
        max_rows=None,
        data_hash=dataset_hash(how.data_path),
    )
    return evaluation, write_evaluation(evaluation, Path(study.work_dir) / "models" / study.task_name / name)


def held_out(settings: ImageTrainSettings | VLMTrainSettings, data_path: str | None) -> tuple[list[Episode], str]:
    """Episodes the model was not fitted to: another data set, or its own validation split.

    Returns:
        The episodes and a hash of the data set they come from.
    """
    if data_path is not None:
        episodes = list(read_episodes(data_path, camera=settings.camera))
        digest = dataset_hash(data_path)
    else:
        from guerdon.train.images import held_out_episodes

        everything = [e for path in settings.data_paths for e in read_episodes(path, camera=settings.camera)]
        names = held_out_episodes(everything, settings)
        episodes = [e for e in everything if e.id in names]
        digest = dataset_hash(settings.data_paths[0])
    if not episodes:
        raise DataError(
            "no held-out episode: the model was trained with val_split 0; name another data set as evaluate.data_path"
        )
    return episodes, digest
