"""The parts of a run of a control policy: copies of an environment, reward models of what it shows, the learner."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guerdon import distributed
from guerdon.collect.control import ControlCollector, PolicyShape, policy_of_shape
from guerdon.collect.episode_capture import EpisodeBuffer, run_writer
from guerdon.collect.shards import join_control, share_results
from guerdon.engines.reward_models import RewardModels
from guerdon.errors import ConfigError
from guerdon.generators import CACHING, generator
from guerdon.models.image import ImageRewardModel
from guerdon.models.load import load_source_model
from guerdon.models.vlm_prm import log_loading
from guerdon.policies.control import save_policy, start_from_policy
from guerdon.policies.robot import RobotPolicy
from guerdon.rewards.control_sources import LOGGED_AS_PRM, ControlReward
from guerdon.rewards.refit import RefittedReward, online_model
from guerdon.rewards.source import GroundTruth, RewardSource, SourceTerms
from guerdon.rl.episode_stats import EpisodeStats, RewardScaler
from guerdon.rl.learner import OnPolicyLearner
from guerdon.rl.parts import Parts, run_collector, run_reward_models
from guerdon.rl.videos import EpisodeVideos, write_video
from guerdon.settings.algorithm import ControlAlgorithmSettings
from guerdon.settings.reward import SourceSettings
from guerdon.settings.reward_models import VLMModelSettings
from guerdon.settings.study import Study
from guerdon.settings.vla_policy import VLAPolicySettings
from guerdon.train.optimizers import AdamW, FlatAdam, Optimizer
from guerdon.types import RewardModel
from guerdon.worlds.build import first_world


def control_parts(study: Study, folder: Path, *, fresh: bool) -> Parts:
    """A control policy in copies of an environment, with reward models that look at frames.

    Args:
        study: the resolved configuration.
        folder: of the run.
        fresh: as in `build_parts`.
    """
    runner, algorithm = study.runner, study.control_algorithm
    torch.manual_seed(runner.seed)  # of dropout, where a policy has any: only gradient steps draw from it
    cluster = study.cluster if study.engine == "ray" else None
    loaded = run_reward_models(cluster, runner, load_model, study.reward.scoring_shards, study.reward.sources)
    models = build_control_sources(study, loaded)
    sources: dict[str, RewardSource[Any]] = {
        "env": GroundTruth(SourceTerms("env", algorithm.gamma, study.reward.env_weight())),
        **models,
    }
    terms = {name: sources[name].terms for name in study.reward.weights()}
    heads, auxiliary = tuple(terms) if algorithm.needs.critic else (), list(algorithm.auxiliary_losses)
    shared: dict[str, Any] = {
        "env": study.env,
        "shards": runner.rollout_shards,
        "settings": study.control_policy,
        "seed": runner.seed,
        "rollout_steps": algorithm.rollout_steps,
        "group_size": algorithm.group_size if algorithm.needs.groups else None,
        "heads": heads,
        "micro_batch_size": algorithm.micro_batch_size,
        "auxiliary": auxiliary,
        "observes": [source.observes for source in models.values()],
        "success_readers": study.success_readers(),
        "video_share": runner.video_share if runner.save_video else 0.0,
        "video_every": runner.video_every,
        "overlap_steps": study.reward.overlap_steps,
    }
    writer = None
    if study.env.data_collection.enabled and (cluster is not None or runner.rollout_shards > 1):
        writer = run_writer(study.env)
        shared["buffer"] = partial(EpisodeBuffer, writer.success_by_row)
    shards = [{"shard": k, **shared} for k in range(runner.rollout_shards)]
    share = share_results if study.env.use_curriculum else None
    device = study.policy.device
    collector = run_collector(cluster, runner, ControlCollector, shards, join_control, share, writer, device=device)
    if study.reward.overlap_steps is not None:
        for source in models.values():
            if source.settings.can_overlap:
                collector.watchers.append(source.score_ahead)
    gammas = {name: one.gamma for name, one in terms.items()}
    learner, notes = distributed.everywhere(
        build_learner, study, collector.policy_shape(), heads=heads, gammas=gammas, fresh=fresh
    )
    learner.shares = {name: one.share for name, one in terms.items() if one.share is not None}
    policy: Any = learner.policy
    if algorithm.filter_rewards:
        check_bounds(algorithm, return_range(study, models))
    notes += _notes(study, models, only=next(iter(terms)) if len(terms) == 1 else None)

    def show(folder: Path, step: int) -> None:
        moments, rewards = collector.show(policy, frames=runner.film_frames)
        env_rewards = rewards if study.reward.env_weight() else None
        write_video(folder / f"step_{step:012d}.npz", moments, models, step=step, env_rewards=env_rewards)

    return Parts(
        collector,
        sources,
        terms,
        learner,
        EpisodeStats(
            list(sources),
            learned=list(models),
            num_streams=study.env.num_envs,
            counted=study.env.vectorization == "async",
        ),
        "environment steps",
        show,
        lambda folder: save_policy(policy, folder),
        notes,
        EpisodeVideos(folder / "videos", copies=study.env.num_envs) if runner.save_video else None,
        loaded,
    )


def _notes(study: Study, models: Mapping[str, ControlReward], *, only: str | None) -> list[str]:
    """Lines for the start of the log; `only` is the name of the source that the policy learns from, if it is alone."""
    normalized, prefix = study.control_algorithm.normalize_minibatches, f"[{study.reward.group_name}]"
    settings = {name: one.settings for name, one in models.items()}
    return [
        *study.env.notes,
        *(
            f"{prefix} {name}: {one.model.model_type} from {one.model.origin}, weight {one.reward_weight:g}"
            for name, one in settings.items()
        ),
        *(
            f"{prefix} {name}: reward_weight {one.reward_weight:g} changes nothing: the only source, whose advantages "
            "are normalised"
            for name, one in settings.items()
            if name == only and normalized and one.reward_weight not in (0.0, 1.0)
        ),
    ]


def check_control(study: Study) -> None:
    """Refuse what the start of a run refuses of its environment and policy; what needs trained weights is left to it.

    Raises:
        ConfigError: with the reason.
        MissingDependencyError: the simulator is not installed.
    """
    algorithm = study.control_algorithm
    with closing(first_world(study.env, study.success_readers())) as world:
        if not isinstance(study.control_policy, VLAPolicySettings):
            on_cpu = study.control_policy.model_copy(update={"device": "cpu"})  # the run may be on another machine
            heads = tuple(study.reward.weights()) if algorithm.needs.critic else ()
            auxiliary = list(algorithm.auxiliary_losses)
            policy = policy_of_shape(on_cpu, PolicyShape.of(world), heads=heads, auxiliary=auxiliary, seed=0)
            check_decisions(policy, algorithm)
    if algorithm.filter_rewards and not study.reward.sources:
        check_bounds(algorithm, return_range(study, {}))


def build_learner(
    study: Study, shape: Any, *, heads: tuple[str, ...], gammas: Mapping[str, float], fresh: bool
) -> tuple[OnPolicyLearner[Any, Any], list[str]]:
    """The learner with its policy, which every process that learns has, and lines for the start of the log.

    Args:
        study: the resolved configuration.
        shape: of what the policy observes and does, `ControlCollector.policy_shape`.
        heads: names of the policy's value heads.
        gammas: discount of each source that the policy learns from.
        fresh: as in `build_parts`.
    """
    runner, algorithm = study.runner, study.control_algorithm
    torch.set_num_threads(runner.threads)
    auxiliary = list(algorithm.auxiliary_losses)
    policy = policy_of_shape(study.control_policy, shape, heads=heads, auxiliary=auxiliary, seed=runner.seed)
    check_decisions(policy, algorithm)
    notes = []
    if fresh and study.control_policy.checkpoint is not None:
        notes.append(start_from_policy(policy, Path(study.control_policy.checkpoint)))
    learner = OnPolicyLearner(
        policy,
        control_optimizer(policy, algorithm.learning_rate),
        algorithm,
        seed=runner.seed,
        heads=heads,
        scaler=RewardScaler(gammas, study.env.num_envs, by_chunk=algorithm.by_chunk)
        if algorithm.normalize_rewards
        else None,
    )
    if fresh and runner.resume_dir:
        notes.append(learner.start_from(Path(runner.resume_dir)))
    return learner, notes


def check_decisions(policy: RobotPolicy, algorithm: ControlAlgorithmSettings) -> None:
    """Refuse keys of the `algorithm` section that do nothing, or cannot, with this policy.

    Raises:
        ConfigError: with the key and the reason.
    """
    idle = [("logprob_type", policy.in_parts, "whose decisions have one part"), ("reward_type", policy.chunk > 1, "")]
    for key, used, why in idle:
        if getattr(algorithm, key) is not None and not used:
            raise ConfigError(
                f"algorithm.{key} would do nothing with this policy, {why or 'which decides on one action at a time'}; "
                "remove it"
            )
    if algorithm.value_init_steps and not any(name.startswith("vf.") for name, _ in policy.named_parameters()):
        raise ConfigError(
            "algorithm.value_init_steps trains the critic alone, and this policy has no parameters whose names begin "
            "with vf., as those of a critic do"
        )


def return_range(study: Study, models: Mapping[str, ControlReward]) -> tuple[float, float] | None:
    """Smallest and largest weighted sum that the sources pay in an episode; None where that is not known.

    A source whose weight is learned has no known range.
    """
    env, limit = study.env, study.env.max_episode_steps or 1
    sparse = (0.0, 1.0 if env.end_on_success else float(limit)) if env.native_reward == "sparse" else None
    total = np.zeros(2)
    for name, weight in study.reward.weights().items():
        found = models[name].return_range(limit) if name in models else sparse
        if found is None or (name in models and models[name].terms.share is not None):
            return None
        ends = weight * np.array(found)
        changing = name in models and models[name].terms.schedule != "constant"
        total += np.sort(np.append(ends, 0.0 if changing else ends[0]))[[0, -1]]
    return float(total[0]), float(total[1])


def check_bounds(algorithm: ControlAlgorithmSettings, payable: tuple[float, float] | None) -> None:
    """Refuse bounds of `filter_rewards` that keep every group, or none: they belong to another unit.

    Args:
        algorithm: the section.
        payable: smallest and largest return of an episode; None: not known.

    Raises:
        ConfigError: with the bound and the returns.
    """
    if payable is None:
        return
    low, high = payable
    lower, upper = algorithm.rewards_lower_bound, algorithm.rewards_upper_bound
    for key, bound, separates in (
        ("rewards_lower_bound", lower, lower is None or low < lower <= high),
        ("rewards_upper_bound", upper, upper is None or low <= upper < high),
    ):
        if bound is not None and not separates:
            raise ConfigError(
                f"algorithm.{key} is {bound:g}, but the weighted rewards of an episode add up to between {low:g} and "
                f"{high:g}, so that it keeps all groups or none: bounds are in the unit of the reward; change them "
                "together with reward_coef and the weights of the sources"
            )


def control_optimizer(policy: RobotPolicy, learning_rate: float) -> Optimizer:
    """Adam on all weights as one tensor; of a policy on a GPU, where that would not lie, on each by itself."""
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    if any(parameter.device.type != "cpu" for parameter in trained):
        return AdamW(trained, learning_rate)
    return FlatAdam(policy, learning_rate)


def load_model(settings: SourceSettings) -> RewardModel:
    """The model of a source, loaded from the disk."""
    named = settings.model.model_type
    origin = f" from {settings.model.origin}" if isinstance(settings.model, VLMModelSettings) else ""
    with log_loading(f"{named}{origin}") if named in LOGGED_AS_PRM else nullcontext():
        model = load_source_model(settings.model)
    if settings.reward_threshold is not None and isinstance(model, ImageRewardModel):
        model.sort_pictures_at(settings.reward_threshold)
    return model


def build_control_sources(study: Study, models: RewardModels) -> dict[str, ControlReward]:
    """Load every reward model of the `reward` section.

    Args:
        study: the resolved configuration.
        models: loads them.

    Raises:
        CheckpointError: a model is missing or not the one asked for.
        ConfigError: the model cannot score what this world shows, or cannot be refitted.
        DataError: there are no labelled episodes to refit it with.
    """
    sources: dict[str, ControlReward] = {}
    num_envs = study.env.num_envs
    for index, (name, settings) in enumerate(study.reward.sources.items()):
        model = models.model(name, settings)
        of_states = isinstance(model, ImageRewardModel) and model.config.state_size is not None
        if of_states and (study.env.observation != "state" or study.control_policy.type == "vla"):
            raise ConfigError(
                f"reward.sources.{name}: the model looks at states, which this run's policy does not observe: take "
                "env.observation state with another policy, or a model of frames"
            )
        terms = SourceTerms.of(name, settings, gamma=study.algorithm.gamma)
        if settings.refitted is None:
            rng = generator(study.runner.seed * 1000 + index, CACHING)
            sources[name] = ControlReward(terms, model, settings, num_envs=num_envs, rng=rng)
        else:
            online = online_model(name, model, settings.refitted, seed=study.runner.seed * 1000 + index)
            sources[name] = RefittedReward(terms, online, settings, num_envs=num_envs)
    return sources
