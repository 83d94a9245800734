"""The parts of a run of a control policy: copies of an environment, reward models of what it shows, the learner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from guerdon.collect.control import ControlCollector
from guerdon.models.image import ImageRewardModel
from guerdon.models.load import load_source_model
from guerdon.policies.control import save_policy, start_from_policy
from guerdon.rl.control_sources import ControlReward
from guerdon.rl.episode_stats import EpisodeStats, RewardScaler
from guerdon.rl.films import write_film
from guerdon.rl.learner import Learner
from guerdon.rl.optimizers import FlatAdam
from guerdon.rl.parts import Parts
from guerdon.rl.reward_refit import RefittedReward, online_model
from guerdon.rl.reward_source import GroundTruth, RewardSource, SourceTerms
from guerdon.settings.study import Study


def control_parts(study: Study, *, fresh: bool) -> Parts:
    """A control policy in copies of an environment, with reward models that look at frames.

    Args:
        study: the resolved configuration.
        fresh: as in `build_parts`.
    """
    runner, algorithm = study.runner, study.control_algorithm
    group = algorithm.group_size if algorithm.needs.groups else None
    models = build_control_sources(study)
    sources: dict[str, RewardSource[Any]] = {
        "env": GroundTruth(SourceTerms("env", algorithm.gamma, study.reward.env_weight())),
        **models,
    }
    terms = {name: sources[name].terms for name in study.reward.weights()}
    collector = ControlCollector(
        study.env,
        study.control_policy,
        seed=runner.seed,
        rollout_steps=algorithm.rollout_steps,
        group_size=group,
        heads=list(terms) if algorithm.needs.critic else [],
        observes=[source.observes for source in models.values()],
        success_readers=study.success_readers(),
    )
    policy = collector.build_policy()
    notes = []
    if fresh and study.control_policy.checkpoint is not None:
        notes.append(start_from_policy(policy, Path(study.control_policy.checkpoint)))
    gammas = {name: one.gamma for name, one in terms.items()}
    learner = Learner(
        policy,
        FlatAdam(policy, algorithm.learning_rate),
        algorithm,
        seed=runner.seed,
        heads=collector.heads,
        scaler=RewardScaler(gammas, study.env.num_envs) if algorithm.normalize_rewards else None,
    )
    if fresh and runner.resume_dir:
        notes.append(learner.start_from(Path(runner.resume_dir)))
    notes += [
        f"[{study.reward.group_name}] {name}: {one.settings.model.model_type} from {one.settings.model.origin}, "
        f"weight {one.settings.reward_weight:g}"
        for name, one in models.items()
    ]

    def film(folder: Path, step: int) -> None:
        moments, rewards = collector.film(policy, frames=runner.film_frames)
        env_rewards = rewards if study.reward.env_weight() else None
        write_film(folder / f"step_{step:012d}.npz", moments, models, step=step, env_rewards=env_rewards)

    return Parts(
        collector,
        sources,
        terms,
        learner,
        EpisodeStats(list(sources), learned=list(models), num_streams=study.env.num_envs),
        "environment steps",
        film,
        lambda folder: save_policy(policy, folder),
        notes,
    )


def build_control_sources(study: Study) -> dict[str, ControlReward]:
    """Load every reward model of the `reward` section.

    Raises:
        CheckpointError: a model is missing or not the one asked for.
        ConfigError: the model cannot score what this world shows, or cannot be refitted.
        DataError: there are no labelled episodes to refit it with.
    """
    sources: dict[str, ControlReward] = {}
    num_envs = study.env.num_envs
    for index, (name, settings) in enumerate(study.reward.sources.items()):
        model = load_source_model(settings.model)
        if settings.reward_threshold is not None and isinstance(model, ImageRewardModel):
            model.sort_pictures_at(settings.reward_threshold)
        terms = SourceTerms.of(name, settings, gamma=study.algorithm.gamma)
        if settings.refitted is None:
            sources[name] = ControlReward(terms, model, settings, num_envs=num_envs)
        else:
            online = online_model(name, model, settings.refitted, seed=study.runner.seed * 1000 + index)
            sources[name] = RefittedReward(terms, online, settings, num_envs=num_envs)
    return sources
