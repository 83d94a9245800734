"""Behaviour cloning: a first policy that does what collected episodes did (`guerdon train policy=bc`).

Supervised regression of actions on observations, as in ALVINN (Pomerleau 1988): the mean squared error of the
policy's most likely action, on normalised states or on frames, with whole episodes held out. The weights of the epoch
with the smallest held-out loss are kept, and the standard deviation of its held-out errors becomes that of the
policy's actions (the maximum-likelihood estimate for a Gaussian around the predicted mean). So a policy-gradient run
that starts from here with `policy.checkpoint` explores as widely as the clone is uncertain. Where the study has an
environment whose actions have finite bounds, losses, errors and deviations are in units of these bounds, as those of
the policy of a run are: -1 is the lower bound and 1 the upper one.

A policy with an `imitation_loss` of its own, such as a vision-language-action model (`policy: {type: vla}`), is cloned
through that: each moment with the next C actions, those beyond the end of the episode left out. That loss is also
what it is judged by on the held-out episodes: the most likely token of a distribution with several peaks says little.

With `bc.sample_weighting` each moment counts by the progress that follows it (`guerdon.train.rabc`), in the loss and in
all that is measured on held-out episodes.

The episodes must hold every row (`collect.frame_every: 1`): with k > 1 a row's action is the last of k and belongs
to a state that was not stored.

    folder, metrics = train_bc(study)
    policy = load_policy(folder)

Measured on Meta-World, one seed, deterministic evaluation from unseen starts: 5 expert episodes, batches of 64 and
100 epochs (2 s of one core) gave success 1.00 over 50 episodes on window-close and on drawer-close; the default of
50 epochs in batches of 256 gave 1.00 and 0.40, and 1.00 on both with 10 episodes. A `cnn` policy cloned from the
frames of 10 episodes (840 pairs, 40 epochs, 7 s) closed the window in 9 of 10.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from guerdon.collect.control import ControlCollector
from guerdon.compute.devices import seeded
from guerdon.compute.schedules import scheduled
from guerdon.episodes.read import dataset_hash, read_episodes
from guerdon.episodes.targets import check_every_row
from guerdon.errors import ConfigError, DataError, MissingDependencyError, NonFiniteError
from guerdon.plan.stages import section
from guerdon.policies.robots.control import ControlPolicy, build_policy, save_policy
from guerdon.policies.robots.heads import Categorical, Gaussian
from guerdon.policies.robots.robot import RobotPolicy
from guerdon.policies.vla.policy import VLAPolicy
from guerdon.processes.progress import ProgressBar
from guerdon.settings.policy import BCSettings, OwnPolicySettings
from guerdon.settings.study import Study
from guerdon.settings.vla_policy import VLAPolicySettings
from guerdon.train.rabc import SampleWeights, sample_weights
from guerdon.train.trainer import TrainingFolder
from guerdon.types import BoolArray, Episode, FloatArray, IntArray
from guerdon.worlds.build import build_world, first_world
from guerdon.worlds.eye import resized
from guerdon.worlds.observation import ObservationSpec, columns_as_rows
from guerdon.worlds.spaces import ObservedColumn, chosen_columns, state_keys

PATIENCE = 20  # epochs without a smaller held-out loss before stopping
MAX_GRAD_NORM = 1.0  # of a policy with an imitation loss of its own
SMALLEST_STD = 0.05  # an expert's gripper command can be predicted exactly; a policy with no spread cannot explore


class Pairs(NamedTuple):
    """Observations with the actions that followed them.

    Attributes:
        observations: (N, S) float32 states, (N, H, W, 3) uint8 frames, or (N,) columns of an `ObservationSpec`.
        actions: (N, A) float32, or (N, C, A) for policies that decide on several at a time.
        episode: (N,) int64, index of the episode of each pair.
        mask: (N, C) bool, False beyond the end of the episode; None: all are there.
        weights: (N,) float32, how much each counts; None: all count alike.
    """

    observations: np.ndarray
    actions: FloatArray
    episode: IntArray
    mask: BoolArray | None = None
    weights: FloatArray | None = None

    def take(self, chosen_N: np.ndarray) -> Pairs:
        """The pairs of a mask or of indices."""
        mask, weights = (None if one is None else one[chosen_N] for one in (self.mask, self.weights))
        return Pairs(self.observations[chosen_N], self.actions[chosen_N], self.episode[chosen_N], mask, weights)


def train_bc(study: Study, *, resume: bool = False) -> tuple[Path, dict[str, Any]]:
    """Clone the episodes of `bc.data_path` into a policy of the architecture of the `policy` section.

    Args:
        study: its `bc`, `policy`, `env` and `runner` (seed, threads) sections.
        resume: keep a policy that is finished; one that was cut off is cloned from the start.

    Returns:
        The policy's folder, to be named as `policy.checkpoint`, and numbers about the training.

    Raises:
        StudyError: no `bc` section.
        ConfigError: a policy that does not fit the data, or a policy that is there already.
        DataError: the data cannot be read or cannot be cloned.
    """
    settings: BCSettings = section(study, "bc")
    check_fresh(study)
    started = time.perf_counter()
    torch.set_num_threads(study.runner.threads)
    record: dict[str, Any] = {
        "settings": settings.model_dump(mode="json", exclude={"save_dir"}),
        "policy": study.control_policy.model_dump(
            mode="json", exclude={"device", "cpu_offload", "gradient_checkpointing"}
        ),
        "seed": study.runner.seed,
        "data_hash": dataset_hash(settings.data_path),
    }
    run = TrainingFolder(settings.save_dir, record, resume=resume)
    if run.metrics is not None:
        return run.save_dir, {k: v for k, v in run.metrics.items() if k not in ("data_hash", "action_std_A")}
    policy, pairs, weights = _whole(study, settings) if clones_whole(study) else _gaussian(study, settings)
    train, val = split_pairs(pairs, settings.val_split, study.runner.seed)
    epsilon = 0.0 if weights is None else weights.epsilon
    for part, name in ((train, "training"), (val, "held-out")):
        if part.weights is not None and not part.weights.any():
            raise DataError(
                f"every moment of the {name} episodes has weight 0, since progress never rises there: clone more "
                "episodes, or change bc.val_split"
            )
    run.begin()
    std = None
    with seeded(study.runner.seed, next(policy.parameters()).device):
        if isinstance(policy, ControlPolicy):
            if policy.normalizer is not None:
                policy.normalizer.update(policy.encoder.numbers(train.observations))
                policy.refresh_normalizer()
            history = _fit(policy, policy.pi, train, val, settings, study.runner.seed, epsilon)
            if isinstance(policy.head, Gaussian):
                std = residual_std(*_errors(policy, val, settings.batch_size))
                with torch.no_grad():
                    policy.head.log_std.copy_(torch.from_numpy(np.log(std)))
        else:
            history = _fit(policy, policy, train, val, settings, study.runner.seed, epsilon)
    errors, counts = _errors(policy, val, settings.batch_size)
    mae = _mean(np.abs(errors), counts)
    save_policy(policy, run.save_dir)
    metrics = _metrics(history, mae, std, pairs, val) | (dict(weights.metrics) if weights is not None else {})
    metrics |= _true_success(study, policy) | {"seconds": round(time.perf_counter() - started, 3)}
    more: dict[str, Any] = {"data_hash": record["data_hash"], "history": history}
    more |= {} if std is None else {"action_std_A": std.tolist()}
    run.finish(metrics | more)
    return run.save_dir, metrics


def check_fresh(study: Study) -> None:
    """Refuse a policy that has weights already.

    Raises:
        ConfigError: it has.
    """
    if study.control_policy.checkpoint is not None:
        raise ConfigError.about(
            "policy.checkpoint", "would do nothing in behaviour cloning, which starts from random weights; remove it"
        )


def clones_whole(study: Study) -> bool:
    """Whether the policy has an `imitation_loss` of its own, and is made for the study's environment."""
    own = isinstance(study.policy, OwnPolicySettings) and study.policy.whole
    return isinstance(study.policy, VLAPolicySettings) or own


def _true_success(study: Study, policy: RobotPolicy) -> dict[str, float]:
    """What the clone achieves by ground truth, in the episodes in which a run evaluates its policy."""
    if study.bc is None or not study.bc.eval_episodes:
        return {}
    env = study.env.model_copy(update={"data_collection": type(study.env.data_collection)()})
    collector = ControlCollector(env, study.control_policy, seed=study.runner.seed, rollout_steps=1)
    try:
        found = collector.evaluate(policy, episodes=study.bc.eval_episodes)
    finally:
        collector.close()
    known = found.get("success_known", 0.0)  # of broken simulators and worlds that report none, it is not
    return {**({"success": found["success"]} if known else {}), "eval_episodes": int(known)}


def _gaussian(study: Study, settings: BCSettings) -> tuple[RobotPolicy, Pairs, SampleWeights | None]:
    """A fresh Gaussian policy, the pairs to clone, and their weights."""
    pixels = study.policy.type == "cnn"
    weights = sample_weights(settings, chunk=1, camera=study.env.camera_name)
    rows = None if weights is None else weights.rows
    space, columns = _shown_and_taken(study)
    if any(column.name for column in columns):
        shape: tuple[int, ...] = ()
        pairs = gather_rows(study, settings, columns, rows)
    else:
        episodes = episodes_to_clone(study, settings, with_frames=pixels)
        pairs = gather_pairs(episodes, pixels=pixels, weights=rows)
        shape = pairs.observations.shape[1:]
        columns = columns if [column.shape for column in columns] == [shape] else ()
    size = pairs.actions.shape[1]
    if space is None or space.shape != (size,):
        space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
    policy = build_policy(
        study.control_policy, shape, space, sources=(), seed=study.runner.seed, columns=columns or None
    )
    if isinstance(policy, ControlPolicy) and policy.units is not None:
        pairs = pairs._replace(actions=policy.units.within(pairs.actions))
    return policy, pairs, weights


def _shown_and_taken(study: Study) -> tuple[gymnasium.Space | None, tuple[ObservedColumn, ...]]:
    """The action space of the study's environment, and what it shows; None and nothing where it cannot be made here."""
    if "env" in study.model_fields_set:
        try:
            world = build_world(study.env.of_copies(range(1)), seed=study.runner.seed)
        except (ConfigError, MissingDependencyError) as error:
            sys.stderr.write(f"actions are cloned as they are, since their bounds are not known: {error}\n")
        else:
            world.close()
            return world.action_space, world.columns
    return None, ()


def gather_rows(
    study: Study,
    settings: BCSettings,
    columns: Sequence[ObservedColumn],
    weights: Mapping[str, FloatArray] | None = None,
) -> Pairs:
    """Observations with keys and the actions that followed them, as `gather_pairs`.

    Of pictures those that the policy sees are read; every action is allowed.

    Raises:
        ConfigError: the policy sees a picture without colours, and recorded ones have them.
        DataError: as `gather_pairs`, or the episodes are of an environment with other keys.
    """
    keys = state_keys(columns)
    chosen = chosen_columns(columns, getattr(study.control_policy, "keys", None), "policy.keys")
    images = [column for column in chosen if column.kind == "image"]
    names = [column.name for column in images]
    other = [column.name for column in images if column.shape[2] != 3]
    if other:
        raise ConfigError.about(
            "policy.keys", f": recorded pictures have three channels, those of {', '.join(other)} have not"
        )
    found: list[Pairs] = []
    for episode in read_episodes(
        settings.data_path,
        camera=names[0] if names else None,
        views=tuple(names[1:]),
        with_frames=bool(names),
        only_success=settings.only_success,
    ):
        _, actions = _columns(episode, not keys)
        recorded = [(name, size) for name, size in episode.meta.get("state_keys", ())]
        if recorded != list(keys):
            raise DataError(f"episode {episode.id!r} has states of {recorded}, and the environment shows {list(keys)}")
        rows = _shown_rows(episode, columns, keys, names)
        number = np.full(len(episode) - 1, len(found), dtype=np.int64)
        counts = None if weights is None else weights[episode.id][:-1]
        if len(episode) > 1:
            found.append(Pairs(rows[:-1], actions[1:].astype(np.float32), number, weights=counts))
    return _joined(found)


def _shown_rows(
    episode: Episode, columns: Sequence[ObservedColumn], keys: Sequence[tuple[str, int]], pictures: Sequence[str]
) -> np.ndarray:
    """An episode as the rows that its environment showed: parts of states, pictures, and masks that allow everything.

    Args:
        episode: with states of these keys.
        columns: that the environment shows.
        keys: names and sizes of the parts of a state.
        pictures: names of those that the policy sees.
    """
    states = np.asarray(episode.states)
    shown: dict[str, np.ndarray] = {}
    start = 0
    for name, size in keys:
        shown[name] = states[:, start : start + size]
        start += size
    for name in pictures:
        shown[name] = np.asarray(episode.views.get(name, episode.frames))
    for column in columns:
        if column.kind == "mask":
            shown[column.name] = np.ones((len(episode), column.size), np.bool_)
    return columns_as_rows(shown)


def _whole(study: Study, settings: BCSettings) -> tuple[RobotPolicy, Pairs, SampleWeights | None]:
    """A fresh policy of a kind with an `imitation_loss`, the chunks to clone, and their weights."""
    world = build_world(study.env, seed=study.runner.seed, num_envs=1)
    try:
        measured, space, shape = world.proprioception, world.action_space, world.observation_shape
    finally:
        world.close()
    policy = build_policy(
        study.control_policy, shape, space, sources=(), seed=study.runner.seed, proprioception_size=len(measured),
        other_data=True,
    )  # fmt: skip
    spec = policy.observation_spec or ObservationSpec(states=True)
    episodes = episodes_to_clone(study, settings, with_frames=spec.frames is not None, cameras=spec.cameras)
    weights = sample_weights(settings, chunk=policy.chunk, camera=study.env.camera_name)
    rows = None if weights is None else weights.rows
    chunks = gather_chunks(episodes, spec, chunk=policy.chunk, proprioception=measured, weights=rows)
    if policy.observation_spec is None:
        chunks = chunks._replace(observations=chunks.observations["states"])
    if isinstance(policy, VLAPolicy):
        there = chunks.actions[:, 0]
        policy.fit_statistics(there, chunks.observations["proprioception"] if spec.proprioception else None)
    return policy, chunks, weights


def episodes_to_clone(study: Study, settings: BCSettings, *, with_frames: bool, cameras: int = 1) -> Iterator[Episode]:
    """The episodes to clone, as the first cameras saw them; frames must have the size of those in a run."""
    camera = study.env.camera_name if with_frames else None
    views = tuple(getattr(study.env, "cameras", ()))[1:cameras]
    for episode in read_episodes(
        settings.data_path, camera=camera, views=views, with_frames=with_frames, only_success=settings.only_success
    ):
        if episode.frames is not None and episode.frames.shape[1:3] != study.env.frame_size:
            raise ConfigError(
                f"{settings.data_path} has frames of {episode.frames.shape[1:3]}, env.frame_size is "
                f"{study.env.frame_size}: the policy would get other frames in a run than here",
                key="env.frame_size",
            )
        yield episode


def _metrics(
    history: list[dict[str, Any]], val_mae: float, std_A: FloatArray | None, pairs: Pairs, val: Pairs
) -> dict[str, Any]:
    best = min(history, key=lambda row: row["val_loss"])
    return {
        "val_loss": best["val_loss"],
        "train_loss": best["train_loss"],
        "val_mae": val_mae,
        **({} if std_A is None else {"action_std": float(std_A.mean())}),
        "best_epoch": best["epoch"],
        "epochs": len(history),
        "episodes": len(np.unique(pairs.episode)),
        "val_episodes": len(np.unique(val.episode)),
        "pairs": len(pairs.actions),
    }


def gather_pairs(episodes: Any, *, pixels: bool, weights: Mapping[str, FloatArray] | None = None) -> Pairs:
    """Observations and the actions that followed them: row t and `actions[t + 1]`.

    Args:
        episodes: an iterable of `Episode`.
        pixels: observations are frames instead of states.
        weights: id of an episode to (T,) weights of its rows, NaN: to be left out; None: all rows count alike.

    Raises:
        DataError: rows are missing between the ones kept, a column is missing, a number is not finite, or nothing is
            left.
    """
    found: list[Pairs] = []
    for episode in episodes:
        observations, actions = _columns(episode, pixels)
        if len(episode) > 1:
            number = np.full(len(episode) - 1, len(found), dtype=np.int64)
            counts = None if weights is None else weights[episode.id][:-1]
            found.append(Pairs(observations[:-1], actions[1:].astype(np.float32), number, weights=counts))
    return _joined(found)


def gather_chunks(
    episodes: Iterable[Episode],
    spec: ObservationSpec,
    *,
    chunk: int,
    proprioception: Sequence[int] = (),
    weights: Mapping[str, FloatArray] | None = None,
) -> Pairs:
    """What a policy observes, and the chunk of actions that followed: row t and `actions[t + 1 : t + 1 + chunk]`.

    Args:
        episodes: with the columns that the policy observes.
        spec: what it observes.
        chunk: actions of a decision, C. Those beyond the end of the episode are repetitions of its last, and masked.
        proprioception: places in a state of what the robot measures of itself.
        weights: as for `gather_pairs`.

    Raises:
        DataError: as `gather_pairs`.
    """
    found: list[Pairs] = []
    for episode in episodes:
        columns: dict[str, np.ndarray] = {}
        for name, wanted in {"states": spec.states or spec.proprioception, "frames": spec.frames is not None}.items():
            if wanted:
                observed, actions = _columns(episode, name == "frames")
                columns[name] = observed[:-1]
        count = len(episode) - 1
        if count < 1:
            continue
        ahead = np.arange(count)[:, None] + np.arange(1, chunk + 1)
        number = np.full(count, len(found), dtype=np.int64)
        if spec.cameras > 1:
            columns["frames"] = _of_cameras(episode, spec.cameras)[:-1]
        observations = _observed(columns, spec, episode.task, proprioception)
        targets = actions[np.minimum(ahead, count)].astype(np.float32)
        counts = None if weights is None else weights[episode.id][:-1]
        found.append(Pairs(observations, targets, number, ahead <= count, counts))
    return _joined(found)


def _observed(
    columns: Mapping[str, np.ndarray], spec: ObservationSpec, task: str, proprioception: Sequence[int]
) -> np.ndarray:
    """(N,) rows as `World.show` lays them out."""
    count = len(next(iter(columns.values())))
    parts: dict[str, np.ndarray] = {}
    if spec.states:
        parts["states"] = columns["states"].astype(np.float32)
    if spec.proprioception:
        parts["proprioception"] = columns["states"][:, list(proprioception)].astype(np.float32)
    if spec.task:
        parts["task"] = np.full(count, task)
    if spec.frames is not None:
        frames = columns["frames"]
        pictures = frames.reshape(-1, *frames.shape[-3:])
        pictures = np.stack([resized(picture, spec.frames, padded=spec.padded) for picture in pictures])
        parts["frames"] = pictures.reshape(*frames.shape[:-3], *pictures.shape[1:])
    return columns_as_rows(parts)


def _of_cameras(episode: Episode, count: int) -> np.ndarray:
    """(T, cameras, H, W, 3) frames of an episode by its first cameras."""
    assert episode.frames is not None
    views = [episode.frames, *episode.views.values()][:count]
    if len(views) < count or len({view.shape for view in views}) > 1:
        raise DataError(
            f"episode {episode.id!r} has frames of shapes {[view.shape for view in views]}; the policy observes "
            f"{count} cameras of one size: collect with these env.cameras"
        )
    return np.stack(views, axis=1)


def _joined(found: Sequence[Pairs]) -> Pairs:
    if len(found) < 2:
        raise DataError(
            f"{len(found)} episodes are too few to clone and to hold one out: collect more (bc.only_success keeps "
            "successful ones only)"
        )
    sizes = {(_shapes(part.observations), part.actions.shape[1:]) for part in found}
    if len(sizes) != 1:
        raise DataError("the episodes have observations or actions of different sizes: clone one task at a time")
    masks = [part.mask for part in found if part.mask is not None]
    weights = [part.weights for part in found if part.weights is not None]
    joined = Pairs(
        np.concatenate([part.observations for part in found]),
        np.concatenate([part.actions for part in found]),
        np.concatenate([part.episode for part in found]),
        np.concatenate(masks) if masks else None,
        np.concatenate(weights) if weights else None,
    )
    return joined if joined.weights is None else _of_known_weight(joined, np.isnan(joined.weights))


def _of_known_weight(pairs: Pairs, missing: BoolArray) -> Pairs:
    """The moments that have a weight."""
    if not missing.any():
        return pairs
    pairs = pairs.take(~missing)
    if len(np.unique(pairs.episode)) < 2:
        raise DataError("fewer than 2 episodes have moments with a weight, and one must be held out")
    return pairs


def _shapes(observations: np.ndarray) -> Any:
    """The shape of an observation, or of each of its columns but the instruction, whose length may differ."""
    columns = observations.dtype.names
    return tuple((c, observations[c].shape[1:]) for c in columns) if columns else observations.shape[1:]


def _columns(episode: Episode, pixels: bool) -> tuple[np.ndarray, FloatArray]:
    check_every_row(episode)
    observations = episode.frames if pixels else episode.states
    kind, seen = ("cnn", "frames") if pixels else ("mlp", "states")
    if observations is None or episode.actions is None:
        missing = "actions" if episode.actions is None else seen
        raise DataError(f"episode {episode.id!r} has no {missing}, which a policy of type {kind} needs")
    if not (pixels or np.isfinite(observations).all()) or not np.isfinite(episode.actions).all():
        raise DataError(f"episode {episode.id!r} has states or actions that are not finite")
    return observations, episode.actions


def split_pairs(pairs: Pairs, val_split: float, seed: int) -> tuple[Pairs, Pairs]:
    """Training and held-out pairs; whole episodes, at least one on each side."""
    episodes = np.random.default_rng([seed, 3]).permutation(np.unique(pairs.episode))
    count = int(np.clip(round(len(episodes) * val_split), 1, len(episodes) - 1))
    held = np.isin(pairs.episode, episodes[:count])
    return pairs.take(~held), pairs.take(held)


def residual_std(errors_N_A: np.ndarray, weights_N: FloatArray | None = None) -> FloatArray:
    """(A,) root mean square of held-out errors, at least `SMALLEST_STD`."""
    squares = np.square(errors_N_A)
    spread = np.sqrt(np.mean(squares, axis=0) if weights_N is None else np.average(squares, 0, weights_N))
    return np.asarray(np.maximum(spread, SMALLEST_STD), dtype=np.float32)


def _mean(values_N_A: np.ndarray, weights_N: FloatArray | None) -> float:
    """Mean over rows that count as their weights say."""
    return float(values_N_A.mean() if weights_N is None else np.average(values_N_A.mean(axis=1), weights=weights_N))


def _fit(
    policy: RobotPolicy, module: nn.Module, train: Pairs, val: Pairs, settings: BCSettings, seed: int, epsilon: float
) -> list[dict[str, Any]]:
    """Train a module of the policy, load the best epoch's weights into it, and return one row per epoch."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    rng = np.random.default_rng([seed, 4])
    history: list[dict[str, Any]] = []
    best: dict[str, Tensor] = {}
    progress = ProgressBar(settings.epochs, what="epochs", lines=5)
    try:
        for epoch in range(1, settings.epochs + 1):
            losses = []
            batches = _batches(len(train.actions), settings.batch_size, rng)
            for number, rows in enumerate(batches):
                if train.weights is None or train.weights[rows].any():
                    done = (epoch - 1 + number / len(batches)) / settings.epochs
                    optimizer.param_groups[0]["lr"] = scheduled(settings.learning_rate, settings.lr_scheduler, done)
                    losses.append(_step(policy, optimizer, parameters, train.take(rows), epsilon))
            loss = _held_out_loss(policy, val, settings.batch_size)
            if not np.isfinite(loss):
                raise NonFiniteError(f"the held-out loss is {loss} after epoch {epoch}: lower bc.learning_rate")
            history.append({"epoch": epoch, "train_loss": float(np.mean(losses)), "val_loss": loss})
            if loss <= min(row["val_loss"] for row in history):
                best = policy.tensors()
            progress.advance(epoch, f"held-out loss {loss:.4f}")
            if epoch - min(history, key=lambda row: row["val_loss"])["epoch"] >= PATIENCE:
                progress.write_line(f"stopped after epoch {epoch}: no smaller held-out loss for {PATIENCE} epochs")
                break
    finally:
        progress.close()
    policy.load_tensors(best)
    return history


def _batches(count: int, size: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
    return np.array_split(rng.permutation(count), max(1, -(-count // size)))


def _step(
    policy: RobotPolicy,
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    pairs: Pairs,
    epsilon: float,
) -> float:
    optimizer.zero_grad(set_to_none=True)
    losses = _imitation_losses(policy, pairs)
    loss = weighted_loss(losses, pairs.weights, epsilon)
    loss.backward()  # type: ignore[no-untyped-call]
    if not isinstance(policy, ControlPolicy):
        torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
    optimizer.step()
    return float(loss.detach())


def weighted_loss(losses: Tensor, weights_N: FloatArray | None, epsilon: float) -> Tensor:
    """Mean of the losses (N,) or (N, A) of a batch, with weights scaled so that they add up to N (SARM, eq. 7)."""
    if weights_N is None:
        return losses.mean()
    weights = torch.from_numpy(weights_N).to(losses)
    scaled = weights * (len(weights) / (weights.sum() + epsilon))
    return (losses.reshape(len(losses), -1).mean(dim=1) * scaled).mean()


@torch.no_grad()
def _held_out_loss(policy: RobotPolicy, pairs: Pairs, size: int) -> float:
    """The mean squared error of a Gaussian policy, the mean imitation loss of another; weighted as in training."""
    if isinstance(policy, ControlPolicy) and isinstance(policy.head, Gaussian):
        errors, counts = _errors(policy, pairs, size)
        return _mean(np.square(errors), counts)
    losses = []
    with seeded(0, next(policy.parameters()).device):  # what a loss draws is the same after every epoch
        for start in range(0, len(pairs.actions), size):
            part = pairs.take(np.arange(start, min(start + size, len(pairs.actions))))
            losses.append(_imitation_losses(policy, part))
    return float(weighted_loss(torch.cat(losses), pairs.weights, 0.0))


def _imitation_losses(policy: RobotPolicy, pairs: Pairs) -> Tensor:
    """(N,) of a policy with an imitation loss of its own, or of discrete actions; (N, A) of a Gaussian."""
    if isinstance(policy, ControlPolicy):
        outputs = policy.action_mean(policy.prepare(pairs.observations))
        actions = torch.from_numpy(pairs.actions).to(outputs.device)
        if isinstance(policy.head, Gaussian):
            return torch.nn.functional.mse_loss(outputs, actions, reduction="none")
        return -policy.head.log_prob(outputs, actions)
    assert pairs.mask is not None
    return policy.imitation_loss(pairs.observations, pairs.actions, pairs.mask)


@torch.no_grad()
def _errors(policy: RobotPolicy, pairs: Pairs, size: int) -> tuple[np.ndarray, FloatArray | None]:
    """(N, A) most likely action minus the one taken (discrete: 1 where another), of chunks of all; (N,) weights."""
    rng = np.random.default_rng(0)
    parts = []
    for start in range(0, len(pairs.actions), size):
        part = pairs.take(np.arange(start, min(start + size, len(pairs.actions))))
        if isinstance(policy, ControlPolicy) and isinstance(policy.head, Gaussian):
            likely = policy.mean(part.observations)
        else:
            likely = policy.act(part.observations, rng, greedy=True).values
        apart = likely.reshape(part.actions.shape) - part.actions
        if isinstance(policy, ControlPolicy) and isinstance(policy.head, Categorical):
            apart = (apart != 0).astype(np.float32)
        parts.append(apart if part.mask is None else apart[part.mask])
    weights = pairs.weights
    if weights is not None and pairs.mask is not None:
        weights = np.broadcast_to(weights[:, None], pairs.mask.shape)[pairs.mask]
    return np.concatenate(parts), weights


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
