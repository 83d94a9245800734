"""Refits of an image reward model during a run, so that the policy cannot exploit it for long.

Observed frames (or states) are kept until their episode ends; then the model learns from the episode (`Learnable`),
labelled by ground truth: success of each frame, or progress along the episode; failed episodes are hard negatives. Or
an expert continues from observed moments, and the environment steps that it needs label them. Or (adversarial) all
that the policy shows is negative, and no truth is read, but for the run's own successes where these count as positives.
The image twin of PRIME's online update (Cui et al. 2025, 2502.01456).

    model = online_model("resnet", load_source_model(settings.model), settings.model, seed=0)
    metrics = RefittedReward(SourceTerms("resnet"), model, settings, num_envs=8).learn(rollout)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guerdon.compute.optimizers import under
from guerdon.episodes.read import read_episodes
from guerdon.episodes.state_columns import STILL, ColumnRoles, column_roles
from guerdon.episodes.targets import after_success, frame_targets, no_labels, outcome_of
from guerdon.errors import ConfigError, DataError
from guerdon.models.images.image import ImageModelConfig, ImageRewardModel, save_checkpoint
from guerdon.models.images.online import OnlineImageModel
from guerdon.policies.robots.robot import ControlInputs
from guerdon.rewards.control_sources import ControlReward
from guerdon.rewards.source import SourceTerms
from guerdon.settings.reward_models import RefittedModelSettings, ResNetModelSettings
from guerdon.settings.reward_source import RobotSource
from guerdon.types import Episode, Failure, FloatArray, IntArray, Metrics, Observes, RewardModel, Rollout, Segment

CONTINUATION_EVERY = 3  # scored moments from one that an expert continues from to the next (labeler continuation)
GRADIENT_PENALTY = 1.0  # weight of (norm of the logit's gradient - 1)^2 (1704.00028) (labeler adversarial)
_WEIGHT_DECAY = 1e-4


@dataclass
class _Observed:
    """What was observed of an episode of a stream; `left`: environment steps that an expert needs, if it continued."""

    rows: list[NDArray[Any]] = field(default_factory=list)  # frames, or states
    success: list[bool | None] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # environment step of each row, from 0
    left: list[int] | None = None
    succeeded: bool = False  # at any step, those between two observed rows included

    def episode(self, config: ImageModelConfig) -> Episode:
        """As the model learns from it; a classifier learns nothing from an episode whose success has gaps.

        One that succeeded between two observed rows alone has no labels that depend on when it did.
        """
        rows = np.stack(self.rows)
        meta: dict[str, Any] = {"steps": self.numbers, "mode": "train"}
        if self.left is not None:
            meta["steps_left"] = self.left
        return Episode(
            id="online",
            task="",
            frames=rows if config.state_size is None else None,
            states=None if config.state_size is None else rows,
            success=None if None in self.success else np.array(self.success, dtype=np.bool_),
            outcome=self._outcome(config),
            meta=meta,
        )

    def _outcome(self, config: ImageModelConfig) -> bool | None:
        """Of an episode whose labels depend on when it succeeded; None: they are success of each row."""
        if config.type == "progress":
            if None in self.success and self.succeeded:  # in which row is known only where it was the last one
                only_the_last = self.success.count(True) == 1 and self.success[-1]
                return True if only_the_last else None
            return True if self.succeeded else outcome_of(self.success)
        return True if self.succeeded and config.within_steps is not None else None


def online_model(name: str, model: RewardModel, settings: RefittedModelSettings, *, seed: int) -> OnlineImageModel:
    """The reward model of a source with its optimizer and its replay, as `update_params` asks for them.

    Args:
        name: of the source.
        model: changed in place.
        settings: of the model.
        seed: of the draws.

    Raises:
        ConfigError: the model cannot be refitted, or not with these labels.
        DataError: there are no labelled episodes at `replay_path`.
    """
    where = f"reward.sources.{name}"
    if not isinstance(model, ImageRewardModel):
        raise ConfigError(f"{where}: a {settings.model_type} model cannot be refitted", key=f"{where}.model.update")
    if settings.labeler == "continuation" and model.config.horizon is None:
        raise ConfigError(
            f"{where}: labeler continuation counts environment steps to success, so the progress model needs a "
            "horizon: set train.<name>.horizon and train it again",
            key=f"{where}.model.labeler",
        )
    adversarial = settings.labeler == "adversarial"
    if adversarial and model.config.state_size is None:
        raise ConfigError(
            f"{where}: labeler adversarial needs a model that looks at states: train it with arch mlp",
            key=f"{where}.model.labeler",
        )
    params = settings.update_params
    frames, targets = _replay(settings, model.config, params.replay_size)
    online = OnlineImageModel(
        model,
        frames,
        targets,
        learning_rate=params.learning_rate,
        weight_decay=_WEIGHT_DECAY,
        batch_size=params.batch_size,
        replay_size=params.replay_size,
        replay_ratio=params.replay_ratio,
        steps=params.steps,
        frames_per_episode=None,
        seed=seed,
    )
    if adversarial:
        online.gradient_penalty = GRADIENT_PENALTY
    if isinstance(settings, ResNetModelSettings):
        _tell_apart_by_success(online, settings, seed)
    return online


class RefittedReward(ControlReward):
    """An image reward model that is refitted on finished episodes of the run.

    A `resnet` model gets success as labels, a `progress` model progress, by the definition that travels with it.

    Args:
        terms: how it counts.
        model: with its optimizer and its replay.
        settings: how its values become rewards, and when it is refitted.
        num_envs: streams of a rollout.
    """

    model: OnlineImageModel

    def __init__(self, terms: SourceTerms, model: OnlineImageModel, settings: RobotSource, *, num_envs: int) -> None:
        assert settings.refitted is not None
        super().__init__(terms, model, settings, num_envs=num_envs)
        self.refits = settings.refitted.update_params
        self.learn_before = settings.refitted.update == "before"
        self._adversarial = settings.refitted.labeler == "adversarial"
        self._own_successes = getattr(settings.refitted, "own_successes", False)
        self._label_every = CONTINUATION_EVERY if settings.refitted.labeler == "continuation" else 0
        self._rollouts = 0
        self._ready: list[_Observed] = []  # since the last refit

    @property
    def observes(self) -> Observes:
        """With the labels that the refits need."""
        limit = int(self.model.model.config.horizon or 0)
        return replace(super().observes, label_every=self._label_every, label_limit=limit)

    @property
    def _framewise(self) -> bool:
        """Frames and states are scored one by one: the model looks at single moments."""
        return not self._whole

    def values_of(self, rows_N: IntArray, seen_N: NDArray[Any]) -> NDArray[np.float64]:
        """(N,) values of moments, NaN where one is missing.

        Args:
            rows_N: steps since their episodes began.
            seen_N: what the model looks at, see `seen`.
        """
        scores = self._score([episode for _, episode in self._asked(0, None, "", rows_N, seen_N)])
        return np.array([np.nan if one.steps is None else float(one.steps[0]) for one in scores])

    @property
    def version(self) -> int:
        """Of the model's weights: values of another one are stale."""
        return self.model.updates

    @property
    def notes(self) -> tuple[str, ...]:
        """For the start of the log: what `shuffled_episodes` exchanges, where it is set."""
        if not getattr(self.settings.refitted, "shuffled_episodes", False):
            return ()
        columns = self.model.exchanged
        if not len(columns):
            return ("shuffled_episodes exchanges nothing: no number of the state only tells the demonstrations apart",)
        return (f"shuffled_episodes exchanges these numbers of the state, from 0: {', '.join(map(str, columns))}",)

    @property
    def skipped_in_a_row(self) -> int:
        """Gradient steps of the refits."""
        return self.model.skipped.in_a_row

    def learn(self, rollout: Rollout[ControlInputs]) -> Metrics:
        """Label what a rollout shows, and refit if it is time and there are labels since the last refit.

        Returns:
            Of `OnlineImageModel.learn`, and `episodes_without_labels`: episodes since the last refit that could not be
            labelled; empty where the model was not refitted.
        """
        for segment in rollout.segments:
            if segment.lost:  # a broken simulator is not a failure of the policy
                self._open[segment.stream] = _Observed()
                continue
            if self._adversarial and not self._own_successes:
                self._ready += [_Observed(list(self.seen(segment)), [None] * len(segment), segment.rows_F.tolist())]
                continue
            if self._label_every:
                self._ready += self._continued(segment)
                continue
            episode = self._open[segment.stream]
            episode.rows.extend(self.seen(segment))
            episode.success.extend(segment.success_F)
            episode.numbers.extend(segment.rows_F.tolist())
            episode.succeeded |= bool(rollout.success[segment.stream, segment.start : segment.end + 1].any())
            if segment.finished:
                self._ready += [episode] if episode.rows else []
                self._open[segment.stream] = _Observed()
        self._rollouts += 1
        if self._rollouts % self.refits.every:
            return {}
        ready, self._ready = self._ready, []
        if self._adversarial:
            return self._told_apart(ready)
        metrics = self.model.learn([one.episode(self.model.model.config) for one in ready])
        skipped = metrics.pop("skipped")
        return metrics | ({"episodes_without_labels": skipped} if skipped else {})

    def _told_apart(self, shown: Sequence[_Observed]) -> Metrics:
        """Refit on what the policy showed (labeler adversarial); empty where that is nothing."""
        rows = [row for one in shown for row in one.rows]
        if not rows:
            return {}
        if not self._own_successes:
            return self.model.update(np.stack(rows), np.zeros(len(rows)), steps=self.refits.steps)
        targets = np.concatenate([self._own_targets(one) for one in shown])
        known = np.isfinite(targets)
        if not known.any():
            return {}
        metrics = self.model.update(np.stack(rows)[known], targets[known], steps=self.refits.steps)
        return metrics | {"own_successes": float((targets > 0.5).sum())}

    def _own_targets(self, shown: _Observed) -> FloatArray:
        """(F,) 1 where the classifier's own definition calls what the policy showed a success, 0 elsewhere.

        NaN, left out: what follows a success that was lost again, and an episode that succeeded between its rows.
        """
        config = self.model.model.config
        episode = shown.episode(config)
        found = frame_targets(episode, config.type, config.horizon, config.within_steps)
        if found is None or not any(shown.success):  # unknown success: what the policy shows is negative
            return np.full(len(shown.rows), np.nan if shown.succeeded else 0.0, dtype=np.float32)
        targets_F: FloatArray = np.nan_to_num(found)
        targets_F[after_success(episode)] = np.nan
        return targets_F

    def _continued(self, segment: Segment) -> list[_Observed]:
        """The rows of a segment from which an expert continued."""
        rows = [] if segment.steps_left_F is None else np.flatnonzero(~np.isnan(segment.steps_left_F)).tolist()
        if segment.steps_left_F is None or not rows:
            return []
        horizon = int(self.model.model.config.horizon or 0)
        left = [int(n) if n < horizon else -1 for n in segment.steps_left_F[rows].tolist()]  # others' experts go on
        seen, success = [self.seen(segment)[n] for n in rows], [segment.success_F[n] for n in rows]
        return [_Observed(seen, success, segment.rows_F[rows].tolist(), left)]

    def reset_streams(self) -> None:
        """Drop the open episodes: the world begins new ones."""
        super().reset_streams()
        self._open = [_Observed() for _ in range(self._num_envs)]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """With model, optimizer, replay, open episodes and labelled frames."""
        tensors, values = super().state()
        online, values["online"] = self.model.state()
        tensors |= {f"online.{k}": v for k, v in online.items()}
        for i, one in enumerate([*self._open, *self._ready]):
            if one.rows:
                tensors[f"episode.{i}"] = torch.from_numpy(np.stack(one.rows))
        episodes = [[one.success, one.numbers, one.left, one.succeeded] for one in [*self._open, *self._ready]]
        return tensors, {**values, "rollouts": self._rollouts, "episodes": episodes}

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        super().restore(tensors, values)
        self.model.load_state(under("online", tensors), values["online"])
        self._rollouts = int(values["rollouts"])
        found = []
        for i, (success, numbers, left, succeeded) in enumerate(values["episodes"]):
            rows = list(tensors[f"episode.{i}"].numpy().copy()) if numbers else []
            found.append(_Observed(rows, list(success), list(numbers), left, succeeded))
        self._open, self._ready = found[: self._num_envs], found[self._num_envs :]

    def save(self, folder: Path) -> None:
        """Write the model, so that it can be evaluated and used again."""
        save_checkpoint(folder, self.model.model.scorer, self.model.model.config)


def _replay(settings: RefittedModelSettings, config: ImageModelConfig, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Labelled frames or states of the episodes that the model was trained on, at most a few times `size`.

    With adversarial labels those of all episodes, whose successes are the only positives.
    """
    frames, targets, count, skipped = [], [], 0, 0
    adversarial = settings.labeler == "adversarial"
    camera, pictures = config.camera or None, config.state_size is None
    for episode in read_episodes(Path(settings.replay_path or ""), camera=camera, with_frames=pictures):
        labels = frame_targets(episode, config.type, config.horizon, config.within_steps)
        seen = config.rows(episode)
        if labels is None or seen is None:
            skipped += 1
            continue
        known = np.isfinite(labels)
        if adversarial and episode.success is not None:
            done = np.logical_or.accumulate(episode.success)  # of a success in the frame that ended again, too
            known &= (labels > 0.5) | ~done
        frames.append(seen[known])
        targets.append(labels[known])
        count += int(known.sum())
        if count > 4 * size and not adversarial:
            break
    if not frames:
        raise DataError(
            f"replay_path {settings.replay_path}: {no_labels(skipped, f'{config.column} and success labels')}"
        )
    found = np.concatenate(targets)
    if adversarial and not (found > 0.5).any():
        raise DataError(
            f"replay_path {settings.replay_path} has no row of success, and labeler adversarial takes its positives "
            "from there: name a data set with demonstrations that succeed"
        )
    return np.concatenate(frames), found


def _tell_apart_by_success(online: OnlineImageModel, settings: ResNetModelSettings, seed: int) -> None:
    """Negatives of the demonstrations and exchanged columns, as `settings` asks for them.

    Raises:
        DataError: the demonstrations have no such negatives, or their columns cannot be told apart.
    """
    earlier, shuffled = settings.demonstration_negatives, settings.shuffled_goals
    if not (earlier or shuffled or settings.shuffled_episodes):
        return
    config, path = online.model.config, settings.replay_path or ""
    shown = [
        _Demonstration(seen, labels, int(episode.success.argmax()))
        for episode in read_episodes(path, with_frames=False)
        if episode.success is not None
        and episode.success.any()
        and (seen := config.rows(episode)) is not None
        and (labels := frame_targets(episode, config.type, config.horizon, config.within_steps)) is not None
    ]
    if earlier:
        online.contrast += ((_earlier_rows(shown, path), earlier),)
    if shuffled:
        online.contrast += ((_goals_shuffled(shown, path, seed), shuffled),)
    if settings.shuffled_episodes:
        online.exchanged = _columns(shown, f"shuffled_episodes: replay_path {path}", seed).episode


class _Demonstration(NamedTuple):
    """A successful episode: what the model looks at (T, S), its labels (T,), and its first row of success."""

    seen: FloatArray
    labels: FloatArray
    success: int

    @property
    def positives(self) -> FloatArray:
        """(N, S) rows at or after the first success that are called one."""
        return self.seen[self.success :][self.labels[self.success :] > 0.5]


def _earlier_rows(shown: Sequence[_Demonstration], path: str) -> FloatArray:
    """(N, S) rows from before success.

    Raises:
        DataError: there is none.
    """
    rows = [one.seen[: one.success][one.labels[: one.success] <= 0.5] for one in shown]
    if not sum(map(len, rows)):
        raise DataError(
            f"demonstration_negatives: in replay_path {path} no row before a success is a negative; train the model "
            "with smaller within_steps, or leave the key out"
        )
    return np.concatenate(rows)


def _columns(shown: Sequence[_Demonstration], where: str, seed: int) -> ColumnRoles:
    """What the columns are for.

    Args:
        shown: the demonstrations.
        where: key and data, for the error.
        seed: of the permutations.

    Raises:
        DataError: that cannot be told.
    """
    roles = column_roles([one.seen[: one.success + 1] for one in shown], seed=seed)
    if isinstance(roles, Failure):
        raise DataError(f"{where}: {roles.detail}; leave the key out")
    return roles


def _goals_shuffled(shown: Sequence[_Demonstration], path: str, seed: int) -> FloatArray:
    """(N, S) rows of success, each with the goal of a demonstration whose goal is another, and not of the nearer half.

    Goals that are no farther apart than a goal may move within an episode are the same.

    Raises:
        DataError: no column is a goal, or that cannot be told.
    """
    where = f"shuffled_goals: replay_path {path}"
    roles = _columns(shown, where, seed)
    if not len(roles.goal):
        raise DataError(
            f"{where} shows no goals: no number of the state stays the same in an episode and goes with what moves; "
            "leave the key out"
        )
    goals_E_G = np.stack([one.seen[one.success, roles.goal] for one in shown])
    distance_E_E = np.linalg.norm((goals_E_G[:, None] - goals_E_G) / goals_E_G.std(axis=0), axis=2)
    farther_E = np.argsort(distance_E_E, axis=1, kind="stable")[:, (len(shown) + 1) // 2 :]
    rng = np.random.default_rng(seed)
    rows = []
    for one, farther, distance_E in zip(shown, farther_E, distance_E_E, strict=True):
        moved, others = one.positives.copy(), farther[distance_E[farther] > STILL]
        moved[:, roles.goal] = goals_E_G[rng.choice(others, size=len(moved))]
        rows.append(moved)
    return np.concatenate(rows)
