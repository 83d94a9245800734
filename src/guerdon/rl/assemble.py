"""From a configuration to the parts of a run: sources of reward, and what keeps them up to date.

This module does not run anything.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from guerdon.episodes.read import read_episodes
from guerdon.episodes.targets import no_labels
from guerdon.errors import ConfigError, DataError
from guerdon.models.checkpoint import ImageModelConfig, save_checkpoint
from guerdon.models.image import ImageRewardModel
from guerdon.models.load import load_source_model
from guerdon.models.online import OnlineTrainer
from guerdon.rl.keep_up import KeepUp, frame_targets
from guerdon.rl.sources import Source
from guerdon.settings.reward import SourceSettings
from guerdon.settings.reward_models import RefittedModelSettings
from guerdon.settings.study import Study
from guerdon.types import RewardModel


def build_sources(study: Study) -> dict[str, Source]:
    """Load every reward model of the `reward` section.

    Raises:
        CheckpointError: a model is missing or not the one asked for.
        ConfigError: the model cannot judge what this world shows.
    """
    if not study.reward.use_reward_model:
        return {}
    sources = {}
    for name, settings in study.reward.sources.items():
        model = load_source_model(settings.model)
        _check_granularity(name, model, settings)
        if settings.shaping == "bonus" and model.info.success_threshold is None and settings.reward_threshold is None:
            raise ConfigError(
                f"reward.sources.{name}: shaping bonus needs a threshold; this model stores none, "
                "so set reward_threshold"
            )
        if settings.reward_threshold is not None and isinstance(model, ImageRewardModel):
            model.sort_pictures_at(settings.reward_threshold)
        gamma = study.algorithm.gamma if settings.gamma is None else settings.gamma
        sources[name] = Source(name, model, settings, gamma, study.env.num_envs)
    return sources


def _check_granularity(name: str, model: RewardModel, settings: SourceSettings) -> None:
    """Refuse a model that cannot give the values that a source asks for."""
    info = model.info
    if info.granularity == "total" and settings.reward_mode != "episode":
        raise ConfigError(
            f"reward.sources.{name}: the model {info.name!r} judges whole episodes, so it needs reward_mode: episode"
        )
    if info.modality == "text":
        raise ConfigError(f"reward.sources.{name}: the model {info.name!r} judges text, not frames")
    if settings.native_fallback and (info.range[0] < 0 or info.range[1] > 1):
        raise ConfigError(
            f"reward.sources.{name}: fallback native gives 0 or 1, and the values of {info.name!r} are from "
            f"{info.range[0]:g} to {info.range[1]:g}"
        )


def build_keep_up(study: Study, sources: dict[str, Source]) -> dict[str, KeepUp]:
    """An online trainer for every source whose model is refitted during the run."""
    keep_ups = {}
    for index, (name, source) in enumerate(sources.items()):
        settings = source.settings.refitted
        if settings is None:
            continue
        model = source.model
        if not isinstance(model, ImageRewardModel):
            raise ConfigError(f"reward.sources.{name}: a {settings.model_type} model cannot be refitted")
        frames, targets = _replay(settings, model.config, settings.update_params.replay_size)
        trainer = OnlineTrainer(
            model,
            frames,
            targets,
            learning_rate=settings.update_params.learning_rate,
            weight_decay=settings.update_params.weight_decay,
            batch_size=settings.update_params.batch_size,
            replay_size=settings.update_params.replay_size,
            replay_ratio=settings.update_params.replay_ratio,
            seed=study.runner.seed * 1000 + index,
        )
        keep_ups[name] = KeepUp(
            trainer,
            steps=settings.update_params.steps,
            every=settings.update_params.every,
            num_envs=study.env.num_envs,
            label_every=_label_every(name, settings, model.config),
        )
    return keep_ups


def _label_every(name: str, settings: RefittedModelSettings, config: ImageModelConfig) -> int:
    """Every how many scored rows an expert labels one; 0 where the outcome of the episode labels them all."""
    if settings.labeler == "outcome":
        return 0
    if config.horizon is None:
        raise ConfigError(
            f"reward.sources.{name}: labeler continuation counts steps to success, so the progress model needs a "
            "horizon: set train.<name>.horizon and train it again"
        )
    return settings.update_params.continuation_every


def save_refitted(source: Source, folder: Path) -> None:
    """Write the model as the run left it, so that it can be evaluated and used again."""
    model = source.model
    if isinstance(model, ImageRewardModel):
        save_checkpoint(folder, model.scorer, model.config)


def _replay(settings: RefittedModelSettings, config: ImageModelConfig, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Labelled frames of the episodes that the model was trained on, at most a few times `size`."""
    frames, targets, count, skipped = [], [], 0, 0
    for episode in read_episodes(Path(settings.replay_path or "")):
        labels = frame_targets(episode, config)
        if labels is None or episode.frames is None:
            skipped += 1
            continue
        known = np.isfinite(labels)
        frames.append(episode.frames[known])
        targets.append(labels[known])
        count += int(known.sum())
        if count > 4 * size:
            break
    if not frames:
        raise DataError(f"replay_path {settings.replay_path}: {no_labels(skipped, 'frames and success labels')}")
    return np.concatenate(frames), np.concatenate(targets)
