"""The parts of a run of a control policy: copies of an environment, reward models of what it shows, the learner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from guerdon.collect.control import ControlCollector
from guerdon.collect.episode_capture import EpisodeBuffer, run_writer
from guerdon.collect.policy_shape import PolicyShape, policy_of_shape
from guerdon.collect.shards import join_control, share_results
from guerdon.compute import distributed
from guerdon.compute.generators import CACHING, generator
from guerdon.compute.optimizers import AdamW, FlatAdam, Optimizer
from guerdon.engines.reward_models import RewardModels
from guerdon.episodes.layout import camera_names
from guerdon.errors import ConfigError, NonFiniteError, boundary
from guerdon.models.images.image import ImageModelConfig, ImageRewardModel, state_rows
from guerdon.models.images.online import OnlineImageModel
from guerdon.models.load import load_source_model
from guerdon.models.vlm.vlm_prm import log_loading
from guerdon.plan.stages import loaded
from guerdon.policies.robots.control import ControlPolicy, save_policy, start_from_policy
from guerdon.policies.robots.robot import RobotPolicy
from guerdon.rewards.control_sources import ControlReward
from guerdon.rewards.refit import RefittedReward, online_model
from guerdon.rewards.source import GroundTruth, RewardSource, SourceTerms
from guerdon.rl.advantages import check_estimator
from guerdon.rl.demonstrations import add_demonstrations
from guerdon.rl.episode_stats import EpisodeStats, RewardScaler
from guerdon.rl.learner import OnPolicyLearner
from guerdon.rl.off_policy import ReplayLearner
from guerdon.rl.parts import Parts, run_collector, run_reward_models
from guerdon.rl.replay import Replay
from guerdon.rl.replay_room import ReplaySizes, check_room
from guerdon.rl.sampling import ACHIEVED, DESIRED, NO_INFO, GoalRewards, Infos
from guerdon.rl.videos import EpisodeVideos, write_video
from guerdon.settings.algorithm import ControlAlgorithmSettings, RobotAlgorithmSettings
from guerdon.settings.aliases import LOGGED_AS_PRM
from guerdon.settings.cluster import ClusterSettings
from guerdon.settings.off_policy import ReplayAlgorithmSettings
from guerdon.settings.reward_models import VLMModelSettings
from guerdon.settings.reward_source import RobotSource
from guerdon.settings.study import Study
from guerdon.settings.vla_policy import VLAPolicySettings
from guerdon.types import BoolArray, Episode, FloatArray, Observes, RewardModel
from guerdon.worlds.build import first_world
from guerdon.worlds.interventions import on_policy_refuses
from guerdon.worlds.spaces import choices, is_numeric, own_values, parts_of_rows, some_allowed, state_keys

_ROUNDED = 1e-5  # by which goals may differ from those that the environment compared, relative to their distance


def control_parts(study: Study, folder: Path, *, fresh: bool) -> Parts:
    """A control policy in copies of an environment, with reward models that look at frames.

    Args:
        study: the resolved configuration.
        folder: of the run.
        fresh: as in `build_parts`.
    """
    check_of_replay(study)
    _check_ahead(study)
    if not study.control_algorithm.replayed:
        check_estimator(study.on_policy)
    runner, algorithm = study.runner, study.control_algorithm
    torch.manual_seed(runner.seed)  # of dropout, where a policy has any: only gradient steps draw from it
    cluster = study.cluster if study.engine == "ray" else None
    reward_models = run_reward_models(cluster, runner, load_model, study.reward.scoring_shards, study.robot_sources)
    models = build_control_sources(study, reward_models)
    of_env = SourceTerms("env", algorithm.gamma, study.reward.env_weight())
    own = GroundTruth(of_env, clipped=getattr(study.env, "atari", False))
    sources: dict[str, RewardSource[Any]] = {"env": own, **models}
    terms = {name: sources[name].terms for name in study.reward.weights()}
    collector = _collector(study, cluster, _heads(algorithm, terms), models)
    shape = collector.policy_shape()
    for name, source in models.items():
        check_seen(name, source.model, shape, study.env.camera_name)
    learner: Any
    if algorithm.replayed:
        learner, notes = build_replay_learner(study, shape, terms, sources, folder, fresh=fresh)
    else:
        learner, notes = _learner_of_rollouts(study, shape, terms, models, fresh=fresh)
    policy = learner.policy
    notes += _notes(study, models, only=next(iter(terms)) if len(terms) == 1 else None)

    def show(folder: Path, step: int) -> None:
        moments, rewards = collector.show(policy, frames=runner.film_frames)
        env_rewards = rewards if study.reward.env_weight() else None
        asked = {name: model for name, model in models.items() if not model.terms.over}
        write_video(folder / f"step_{step:012d}.npz", moments, asked, step=step, env_rewards=env_rewards)

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
            costs=[n for n, one in models.items() if one.settings.reward_coef * one.terms.coefficient < 0],
        ),
        "environment steps",
        show,
        lambda folder: save_policy(policy, folder),
        notes,
        EpisodeVideos(folder / "videos", copies=study.env.num_envs) if runner.save_video else None,
        reward_models,
    )


def _check_ahead(study: Study) -> None:
    """Refuse to collect ahead in a process whose policy is in shards of several learners."""
    sharded = isinstance(study.policy, VLAPolicySettings) and distributed.launched() > 1
    if sharded and study.runner.max_staleness and study.engine == "local":
        raise ConfigError.about(
            "runner.max_staleness",
            ": several learners shard the weights of a VLA, so that this "
            "process cannot collect while they learn; set engine: ray, or max_staleness to 0",
        )


def _collector(
    study: Study, cluster: ClusterSettings | None, heads: Sequence[str], models: Mapping[str, ControlReward]
) -> Any:
    """What collects the rollouts, in this process or in the cluster, shown to the models that score ahead."""
    runner = study.runner
    shared = _of_collectors(study, heads, [source.observes for source in models.values()])
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
    return collector


def _learner_of_rollouts(
    study: Study,
    shape: PolicyShape,
    terms: Mapping[str, SourceTerms],
    models: Mapping[str, ControlReward],
    *,
    fresh: bool,
) -> tuple[OnPolicyLearner[Any, Any], list[str]]:
    """The learner from each rollout, in every process that learns, and lines for the start of the log."""
    heads = _heads(study.control_algorithm, terms)
    gammas = {name: one.gamma for name, one in terms.items()}
    learner, notes = distributed.everywhere(build_learner, study, shape, heads=heads, gammas=gammas, fresh=fresh)
    learner.shares = {name: one.share for name, one in terms.items() if one.share is not None}
    if study.on_policy.filter_rewards:
        check_bounds(study.on_policy, return_range(study, models))
    return learner, notes


def _of_collectors(study: Study, heads: Sequence[str], observes: Sequence[Observes]) -> dict[str, Any]:
    """Arguments of `ControlCollector` that every part of the copies has.

    Args:
        study: the resolved configuration.
        heads: sources that the policy values.
        observes: what reward models look at.
    """
    runner, algorithm = study.runner, study.control_algorithm
    shared = {
        "env": study.env,
        "shards": runner.rollout_shards,
        "settings": study.control_policy,
        "seed": runner.seed,
        "rollout_steps": algorithm.rollout_steps,
        "group_size": None,
        "heads": heads,
        "micro_batch_size": None,
        "auxiliary": (),
        "algorithm": algorithm.type,
        "observes": observes,
        "success_readers": study.success_readers(),
        "video_share": runner.video_share if runner.save_video else 0.0,
        "video_every": runner.video_every,
        "overlap_steps": study.reward.overlap_steps,
        "keep_info": tuple(getattr(algorithm, "keep_info", ())),
    }
    if not algorithm.replayed:
        of_rollouts = study.on_policy
        shared["micro_batch_size"] = of_rollouts.micro_batch_size
        shared["auxiliary"] = list(of_rollouts.auxiliary_losses)
        if of_rollouts.needs.groups:
            shared["group_size"] = of_rollouts.group_size
    return shared


def _heads(algorithm: RobotAlgorithmSettings, terms: Iterable[str]) -> tuple[str, ...]:
    """Sources that the networks of the policy value."""
    return tuple(terms) if algorithm.needs.critic or algorithm.values_sources else ()


def _notes(study: Study, models: Mapping[str, ControlReward], *, only: str | None) -> list[str]:
    """Lines for the start of the log; `only` is the name of the source that the policy learns from, if it is alone."""
    notes = list(study.env.notes)
    steps, budget = study.control_algorithm.rollout_steps * study.env.num_envs, study.runner.total_steps
    if steps > budget:
        notes.append(
            f"WARNING: runner.total_steps is {budget}, and one rollout (algorithm.rollout_steps x env.num_envs) has "
            f"{steps}: the run takes {steps} steps"
        )
    prefix = f"[{study.reward.group_name}]"
    for name, source in models.items():
        model, weight = source.settings.model, source.settings.reward_weight
        notes.append(f"{prefix} {name}: {model.model_type} from {model.origin}, weight {weight:g}")
        notes += [f"{prefix} {name}: {note}" for note in source.notes]
    normalized = not study.control_algorithm.replayed and study.on_policy.normalize_minibatches
    if only is not None and only in models and normalized:
        weight = models[only].settings.reward_weight
        if weight not in (0.0, 1.0):
            notes.append(
                f"{prefix} {only}: reward_weight {weight:g} changes nothing: the only source, whose advantages are "
                "normalised"
            )
    return notes


def check_control(study: Study) -> None:
    """Refuse what the start of a run refuses of its environment and policy; what needs trained weights is left to it.

    Raises:
        ConfigError: with the reason.
        MissingDependencyError: the simulator is not installed.
    """
    check_of_replay(study)
    of_rollouts = None if study.control_algorithm.replayed else study.on_policy
    if of_rollouts is not None:
        check_estimator(of_rollouts)
    with closing(first_world(study.env, study.success_readers())) as world:
        if not isinstance(study.control_policy, VLAPolicySettings):
            _check_policy(study, PolicyShape.of(world), of_rollouts)
    if of_rollouts is not None and of_rollouts.filter_rewards and not study.reward.sources:
        check_bounds(of_rollouts, return_range(study, {}))


def _check_policy(study: Study, shape: PolicyShape, of_rollouts: ControlAlgorithmSettings | None) -> None:
    """Refuse a policy that cannot be built for this shape, or keys that would do nothing with it."""
    algorithm = study.control_algorithm
    policy = policy_of_shape(
        study.control_policy.model_copy(update={"device": "cpu"}),  # the run may be on another machine
        shape,
        heads=_heads(algorithm, study.reward.weights()),
        auxiliary=[] if of_rollouts is None else list(of_rollouts.auxiliary_losses),
        seed=0,
        algorithm=algorithm.type,
    )
    if of_rollouts is not None:
        check_decisions(policy, of_rollouts)


def check_of_replay(study: Study) -> None:
    """Refuse an on-policy run with what needs a replay, where that is known: interventions, models that end episodes.

    Raises:
        ConfigError: with the key that says so.
    """
    if study.control_algorithm.replayed:
        return
    for key in ("info_keys", "intervene_after"):
        if getattr(study.env, key, None):
            raise ConfigError(on_policy_refuses(f"the environment, by env.{key},"), key=f"env.{key}")
    for name, source in study.robot_sources.items():
        if source.ends:
            raise ConfigError.about(
                f"reward.sources.{name}.ends",
                "is about what a replay holds: take algorithm.type sac or dqn, or remove it",
            )


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
    runner, algorithm = study.runner, study.on_policy
    torch.set_num_threads(runner.threads)
    auxiliary = list(algorithm.auxiliary_losses)
    policy = policy_of_shape(study.control_policy, shape, heads=heads, auxiliary=auxiliary, seed=runner.seed)
    check_decisions(policy, algorithm)
    notes = []
    if fresh and study.control_policy.checkpoint is not None:
        notes.append(start_from_policy(policy, Path(study.control_policy.checkpoint)))
    start = None
    if algorithm.kl_coef:
        start = policy_of_shape(study.control_policy, shape, heads=heads, auxiliary=auxiliary, seed=runner.seed)
    scaler = None
    if algorithm.normalize_rewards:
        scaler = RewardScaler(gammas, study.env.num_envs, by_chunk=algorithm.by_chunk)
    optimizer = control_optimizer(policy, algorithm.learning_rate)
    learner = OnPolicyLearner(
        policy, optimizer, algorithm, seed=runner.seed, heads=heads, scaler=scaler, reference=start,
        store_reference=start is not None,
    )  # fmt: skip
    if fresh and runner.resume_dir:
        notes.append(learner.start_from(Path(runner.resume_dir)))
    if fresh and start is not None:
        start.load_tensors(policy.tensors())
    return learner, notes


def build_replay_learner(
    study: Study,
    shape: PolicyShape,
    terms: Mapping[str, SourceTerms],
    sources: Mapping[str, RewardSource[Any]],
    folder: Path,
    *,
    fresh: bool,
) -> tuple[ReplayLearner, list[str]]:
    """The learner from a replay, with demonstrations in it, and lines for the start of the log.

    Args:
        study: the resolved configuration.
        shape: of what the policy observes and does.
        terms: of the sources that it learns from.
        sources: of reward.
        folder: of the run; the replay is part of its checkpoints.
        fresh: as in `build_parts`.
    """
    runner, algorithm = study.runner, study.control_algorithm
    assert isinstance(algorithm, ReplayAlgorithmSettings)
    policy = policy_of_shape(
        study.control_policy,
        shape,
        heads=_heads(algorithm, terms),
        auxiliary=(),
        seed=runner.seed,
        algorithm=algorithm.type,
    )
    if not isinstance(policy, ControlPolicy):
        raise ConfigError.about(
            "algorithm.type",
            f"{algorithm.type} does not go with policy.type {study.policy.type}: take mlp, cnn or networks of your own",
        )
    notes = []
    if fresh and study.control_policy.checkpoint is not None:
        notes.append(start_from_policy(policy, Path(study.control_policy.checkpoint)))
    learning = {name: one for name in terms if isinstance(one := sources[name], RefittedReward)}
    for one in learning.values():
        one.model.model.even = True  # a value does not depend on which rows are measured with it
    moments = getattr(study.env, "frame_stack", 1)
    memory = Replay(folder / "checkpoints" / "replay", list(terms), limit=algorithm.buffer_size, moments=moments)
    sizes = ReplaySizes.of(
        shape.columns,
        moments=moments,
        actions=int(np.prod(shape.action_space.shape or ())),
        sources=len(terms),
        kept=len(algorithm.keep_info),
    )
    room = check_room(steps=runner.total_steps, limit=algorithm.buffer_size, sizes=sizes, folder=memory.folder)
    notes.append(room)
    shown = None
    if algorithm.demonstrations is not None:
        shown = Replay(folder / "checkpoints" / "demonstrations", list(terms))
    goals = None if algorithm.goal_relabelling is None else reward_for_goals(study, shape)
    kind: type[ReplayLearner] = loaded(algorithm.learner)
    learner = kind(
        policy, algorithm, terms, learning, memory=memory, demonstrations=shown, goal_rewards=goals, seed=runner.seed
    )
    if fresh and algorithm.demonstrations is not None:
        notes.append(add_demonstrations(learner, study.env, shape, sources))
    if fresh and runner.resume_dir:
        notes.append(learner.start_from(Path(runner.resume_dir)))
    return learner, notes


def reward_for_goals(study: Study, shape: PolicyShape) -> GoalRewards:
    """Rewards and ends of the environment for other goals.

    They are its `compute_reward`, called with a batch where it accepts one, and its `compute_terminated`, if any.

    Raises:
        ConfigError: it is no environment with goals, or its `compute_reward` fails.
    """
    shown, what = {column.name for column in shape.columns}, "algorithm.goal_relabelling"
    names = tuple(getattr(study.control_algorithm, "keep_info", ()))
    found: Any = None
    if {ACHIEVED, DESIRED} <= shown:
        # The world stays open: compute_reward may use the simulator.
        world = first_world(study.env.model_copy(update={"vectorization": "sync"}), keep_info=names)
        copy = world.env.unwrapped.envs[0]
        found = _attribute(copy, "compute_reward")
    if found is None:
        raise ConfigError(
            f"{what} is for environments that show {ACHIEVED} and {DESIRED} and have compute_reward; this one shows "
            f"{', '.join(sorted(shown)) or 'one array'}",
            key=what,
        )
    own, wanted = copy.observation_space[ACHIEVED], copy.observation_space[DESIRED]
    if own.shape != wanted.shape or (not isinstance(own, gymnasium.spaces.Box) and own != wanted):
        raise ConfigError(
            f"{what}: {ACHIEVED} is of {own}, {DESIRED} of {wanted}: neither can stand for the other", key=what
        )
    failed = f"{what}: compute_reward(achieved_goal, desired_goal, {'info' if names else '{}'}) failed"
    start = world.reset(np.zeros(world.num_envs, np.bool_))
    transition = world.step(some_allowed(start.own_observations, world.own_columns, world.action_space))
    achieved, desired = (
        own_values(transition.own_final[name], space) for name, space in ((ACHIEVED, own), (DESIRED, wanted))
    )
    hint = "; what it reads of info belongs in algorithm.keep_info" if not names else ""
    for pair in zip(achieved, desired, _each_info(transition.kept, len(achieved)), strict=True):
        with boundary(ConfigError, failed + hint, key=what):
            float(found(*pair))
    together = not names and _takes_many(found, achieved, desired)
    over = _attribute(copy, "compute_terminated")

    def rewards(achieved_N: np.ndarray, desired_N: np.ndarray, infos: Infos = NO_INFO) -> FloatArray:
        goals = own_values(achieved_N, own), own_values(desired_N, wanted)
        each = zip(*goals, _each_info(infos, len(achieved_N)), strict=True)
        with boundary(ConfigError, failed, key=what):
            paid = found(*goals, {}) if together else [found(*one) for one in each]
            rewards = np.asarray(paid, np.float32).reshape(len(achieved_N))
        if not np.isfinite(rewards).all():
            raise NonFiniteError("compute_reward of the environment gave a reward that is not finite")
        return rewards

    def ends(achieved_N: np.ndarray, desired_N: np.ndarray, infos: Infos) -> BoolArray:
        goals = own_values(achieved_N, own), own_values(desired_N, wanted)
        each = zip(*goals, _each_info(infos, len(achieved_N)), strict=True)
        with boundary(ConfigError, failed.replace("compute_reward", "compute_terminated"), key=what):
            return np.fromiter((bool(over(*one)) for one in each), np.bool_, len(achieved_N))

    def near(achieved_N: np.ndarray, desired_N: np.ndarray) -> list[np.ndarray]:
        if own.dtype.kind != "f":
            return []
        away = achieved_N.astype(np.float64) - desired_N
        return [desired_N + away * (1.0 + change) for change in (-_ROUNDED, _ROUNDED)]

    says = over is not None and _says_ends(over, achieved[0], desired[0], next(_each_info(transition.kept, 1)))
    return GoalRewards(rewards, ends if says else None, names, near)


def _each_info(infos: Infos, count: int) -> Iterator[dict[str, Any]]:
    """The info of each of so many transitions."""
    for i in range(count):
        yield {name: values[i] for name, values in infos.items()}


def _says_ends(over: Any, achieved: Any, desired: Any, info: Mapping[str, Any]) -> bool:
    """Whether an environment has `compute_terminated`; gymnasium-robotics' base class has one that is not made."""
    try:
        with boundary(ConfigError, "compute_terminated"):
            over(achieved, desired, dict(info))
    except ConfigError as error:
        return not isinstance(error.__cause__, NotImplementedError)
    return True


def _attribute(env: gymnasium.Env, name: str) -> Any:
    """Of an environment or of what it wraps; None: there is none."""
    with suppress(AttributeError):
        return env.get_wrapper_attr(name)
    return None


def _takes_many(found: Any, achieved: np.ndarray, desired: np.ndarray) -> bool:
    """Whether `compute_reward` gives for many goals what it gives for each; more of them than a goal has numbers."""
    one, other = np.stack([*achieved, *desired]), np.stack([*desired, *desired])
    rows = np.arange(max(one.shape) + 1) % len(one)
    with suppress(ConfigError), boundary(ConfigError, "it takes one goal at a time"):
        several = np.asarray(found(one[rows], other[rows], {}), np.float64).reshape(len(rows))
        alone = np.array([float(found(*pair, {})) for pair in zip(one, other, strict=True)])
        return np.allclose(several, alone[rows], equal_nan=True)
    return False


def check_seen(name: str, model: RewardModel, shape: PolicyShape, first_camera: str) -> None:
    """Refuse an image reward model that looks at what the world does not show.

    Args:
        name: of its source.
        model: any.
        shape: of the world.
        first_camera: its name.

    Raises:
        ConfigError: with what there is.
    """
    if model.info.modality == "image" and model.info.keys:
        _check_camera(name, model.info.keys[0], shape, first_camera)
    model = model.model if isinstance(model, OnlineImageModel) else model
    if isinstance(model, ImageRewardModel) and model.config.state_size is not None:
        _check_numbers(name, model.config, shape)


def _check_camera(name: str, camera: str, shape: PolicyShape, first_camera: str) -> None:
    """Refuse a model that looks through a camera that a world with cameras does not have."""
    names = [*shape.cameras, *(c.name for c in shape.own_columns if c.kind == "image" and c.name)]
    if names and camera and not {*names, first_camera}.intersection(camera_names(camera)):
        raise ConfigError.about(
            f"reward.sources.{name}", f": the model looks through {camera!r}; this world has {', '.join(names)}"
        )


def _check_numbers(name: str, config: ImageModelConfig, shape: PolicyShape) -> None:
    """Refuse a model that looks at other numbers than an episode of this world has."""
    keys = state_keys(shape.own_columns)
    size = sum(column.size for column in shape.own_columns if is_numeric(column))
    empty = Episode(
        id="",
        task="",
        states=np.zeros((1, size), np.float32),
        actions=np.zeros((1, *(shape.action_space.shape or ())), np.float32),
        meta=parts_of_rows(keys, choices(shape.action_space) or ()),
    )
    found = state_rows(empty, config.keys, actions=config.actions)
    if found is not None and found.shape[1] == config.state_size:
        return
    looks = f"{', '.join(config.keys) or 'states'}{' and actions' if config.actions else ''}"
    shows = ", ".join(f"{key} ({count})" for key, count in keys) or f"{size} numbers"
    of_which = "" if found is None else f", of which that is {found.shape[1]}"
    raise ConfigError.about(
        f"reward.sources.{name}",
        f": the model looks at {looks}, {config.state_size} numbers; this world shows {shows}{of_which}",
    )


def check_decisions(policy: RobotPolicy, algorithm: ControlAlgorithmSettings) -> None:
    """Refuse keys of the `algorithm` section that do nothing, or cannot, with this policy.

    Raises:
        ConfigError: with the key and the reason.
    """
    idle = [("logprob_type", policy.in_parts, "whose decisions have one part"), ("reward_type", policy.chunk > 1, "")]
    for key, used, why in idle:
        if getattr(algorithm, key) is not None and not used:
            raise ConfigError.about(
                f"algorithm.{key}",
                f"would do nothing with this policy, {why or 'which decides on one action at a time'}; remove it",
            )
    if algorithm.kl_coef and policy.in_parts:
        raise ConfigError.about(
            "algorithm.kl_coef", "is not supported with a policy whose decisions have several parts; remove it"
        )
    if algorithm.value_init_steps and not any(name.startswith("vf.") for name, _ in policy.named_parameters()):
        raise ConfigError.about(
            "algorithm.value_init_steps",
            "trains the critic alone, and this policy has no parameters whose names begin "
            "with vf., as those of a critic do",
        )


def return_range(study: Study, models: Mapping[str, ControlReward]) -> tuple[float, float] | None:
    """Smallest and largest weighted sum that the sources pay in an episode; None where that is not known.

    A source whose weight is learned has no known range.
    """
    env, limit = study.env, study.env.max_episode_steps
    if limit is None:
        return None
    of_env = None
    if env.native_reward == "sparse":
        of_env = (0.0, 1.0 if env.end_on_success else float(limit))
    total = np.zeros(2)
    for name, weight in study.reward.weights().items():
        source = models.get(name)
        found = of_env if source is None else source.return_range(limit)
        learned = source is not None and source.terms.share is not None
        if found is None or learned:
            return None
        ends = weight * np.array(found)
        if source is not None and source.terms.schedule != "constant":
            ends = np.append(ends, 0.0)  # the weight may be 0 for the whole episode
        total += np.sort(ends)[[0, -1]]
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
            raise ConfigError.about(
                f"algorithm.{key}",
                f"is {bound:g}, but the weighted rewards of an episode add up to between {low:g} and "
                f"{high:g}, so that it keeps all groups or none: bounds are in the unit of the reward; change them "
                "together with reward_coef and the weights of the sources",
            )


def control_optimizer(policy: RobotPolicy, learning_rate: float) -> Optimizer:
    """Adam on all weights as one tensor; of a policy on a GPU or sharded, where that cannot lie, on each by itself."""
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    on_gpu = any(parameter.device.type != "cpu" for parameter in trained)
    if on_gpu or policy.sharded:
        return AdamW(trained, learning_rate, eps=1e-5, flat=not on_gpu)
    return FlatAdam(policy, learning_rate)


def load_model(settings: RobotSource) -> RewardModel:
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
    for index, (name, settings) in enumerate(study.robot_sources.items()):
        model = models.model(name, settings)
        terms = SourceTerms.of(name, settings, gamma=study.algorithm.gamma)
        if settings.refitted is None:
            rng = generator(study.runner.seed * 1000 + index, CACHING)
            sources[name] = ControlReward(terms, model, settings, num_envs=num_envs, rng=rng)
        else:
            online = online_model(name, model, settings.refitted, seed=study.runner.seed * 1000 + index)
            sources[name] = RefittedReward(terms, online, settings, num_envs=num_envs)
    return sources
