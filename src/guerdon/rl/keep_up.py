"""Refit a reward model on what the policy just did, so that it cannot be exploited for long.

Frames wait until their episode ends; then ground truth (success of each frame, or progress along the episode)
labels them, and failed episodes become hard negatives; or an expert goes on from sampled moments and labels them at
once. The image twin of PRIME's online update (Cui et al. 2025,
2502.01456). This module does not know how the policy learns.

    keep_up.see(segments)
    metrics = keep_up.refit()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guerdon.episodes.targets import nearness, outcome_of, progress_targets, success_labels
from guerdon.models.checkpoint import ImageModelConfig
from guerdon.models.online import OnlineState, OnlineTrainer
from guerdon.types import ByteArray, Episode, Observes, Segment


@dataclass
class _Waiting:
    """What was seen of one copy's episode under way."""

    frames: list[ByteArray] = field(default_factory=list)
    success: list[bool | None] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)


_UNKNOWN = -1  # stands for an unknown success in a checkpoint


def frame_targets(episode: Episode, config: ImageModelConfig) -> np.ndarray | None:
    """(T,) float32 targets of an episode's rows for a model of this kind; None where nobody knows them."""
    if config.type == "progress":
        return progress_targets(episode, horizon=config.horizon)
    labels = success_labels(episode)
    return None if labels is None else labels.astype(np.float32)


class KeepUp:
    """Labels finished episodes and hands them to an `OnlineTrainer`.

    Args:
        trainer: holds the model, its optimiser and its replay. A `resnet` model gets success as labels, a
            `progress` model progress, by the definition that travels with it.
        steps: gradient steps per refit.
        every: rollouts between refits.
        num_envs: copies of the environment.
        label_every: label every k-th scored row by the steps that an expert needs from there, at once, instead of
            all rows by how the episode ends; 0: the latter.
    """

    def __init__(
        self,
        trainer: OnlineTrainer,
        *,
        steps: int,
        every: int,
        num_envs: int,
        label_every: int = 0,
    ) -> None:
        self.trainer = trainer
        self._steps = steps
        self._every = every
        self._rollouts = 0
        self._label_every = label_every
        self._waiting = [_Waiting() for _ in range(num_envs)]
        self._ready: list[tuple[ByteArray, np.ndarray]] = []
        self._skipped = 0  # finished episodes since the last refit whose labels nobody knows

    def observes(self, source: Observes) -> Observes:
        """What its source observes, with the labels that the refit needs."""
        return replace(source, label_every=self._label_every, label_limit=int(self.trainer.model.config.horizon or 0))

    def see(self, segments: Sequence[Segment]) -> None:
        """Take in the frames of a rollout; label those whose episodes ended, or those an expert went on from."""
        if self._label_every:
            return self._take_labelled(segments)
        for segment in segments:
            waiting = self._waiting[segment.stream]
            waiting.frames.extend(segment.frames_F)
            waiting.success.extend(segment.success_F)
            waiting.steps.extend(segment.rows_F.tolist())
            if segment.finished:
                self._label(waiting)
                self._waiting[segment.stream] = _Waiting()

    def _take_labelled(self, segments: Sequence[Segment]) -> None:
        """Turn the steps that an expert needs into targets."""
        horizon = self.trainer.model.config.horizon
        assert horizon is not None
        for segment in segments:
            if segment.steps_left_F is None:
                continue
            for frame, left in zip(segment.frames_F, segment.steps_left_F.astype(np.float64), strict=True):
                if not np.isnan(left):  # an expert that another model gave more steps had given up by then
                    steps_1 = np.array([left if left < int(horizon) else np.inf])
                    self._ready.append((frame[None], nearness(steps_1, horizon)))

    def _label(self, seen: _Waiting) -> None:
        """Turn a finished episode into frames and targets; one whose true success is unknown is skipped and counted."""
        if not seen.frames:
            return
        outcome = outcome_of(seen.success)
        by_row = None if None in seen.success else np.array(seen.success, dtype=np.bool_)
        episode = Episode(
            id="online",
            task="",
            frames=np.stack(seen.frames),
            success=by_row,
            outcome=outcome,
            meta={"steps": seen.steps},
        )
        targets = frame_targets(episode, self.trainer.model.config)
        if targets is None or episode.frames is None:
            self._skipped += 1
        else:
            self._ready.append((episode.frames, targets))

    def forget(self) -> None:
        """Leave the episodes under way: the world begins new ones."""
        self._waiting = [_Waiting() for _ in self._waiting]

    def refit(self) -> dict[str, float | None]:
        """Refit if it is time and an episode has ended since the last one; else an empty answer.

        `episodes_without_labels` counts the episodes since the last refit that could not be labelled.
        """
        self._rollouts += 1
        if self._rollouts % self._every:
            return {}
        skipped: dict[str, float | None] = {"episodes_without_labels": self._skipped} if self._skipped else {}
        self._skipped = 0
        if not self._ready:
            return skipped
        frames = np.concatenate([f for f, _ in self._ready])
        targets = np.concatenate([t for _, t in self._ready])
        self._ready = []
        return {**self.trainer.update(frames, targets, steps=self._steps), **skipped}

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able values: model, optimiser, replay, and the frames that wait."""
        online = self.trainer.state_dict()
        tensors = {f"online.{k}": v for k, v in online.tensors.items()}
        for i, seen in enumerate(self._waiting):
            if seen.frames:
                tensors[f"waiting.{i}.frames"] = torch.from_numpy(np.stack(seen.frames))
                tensors[f"waiting.{i}.success"] = torch.tensor(
                    [_UNKNOWN if s is None else int(s) for s in seen.success], dtype=torch.int8
                )
                tensors[f"waiting.{i}.steps"] = torch.tensor(seen.steps, dtype=torch.int64)
        for i, (ready, targets) in enumerate(self._ready):
            tensors[f"ready.{i}.frames"] = torch.from_numpy(ready.copy())
            tensors[f"ready.{i}.targets"] = torch.from_numpy(targets.copy())
        return tensors, {"online": online.values, "rollouts": self._rollouts, "ready": len(self._ready)} | {
            "skipped": self._skipped
        }

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        prefix = "online."
        online = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        self.trainer.load_state_dict(OnlineState(online, values["online"]))
        self._rollouts, self._skipped = int(values["rollouts"]), int(values.get("skipped", 0))
        for i in range(len(self._waiting)):
            frames = tensors.get(f"waiting.{i}.frames")
            self._waiting[i] = _Waiting()
            if frames is not None:
                success, steps = tensors[f"waiting.{i}.success"], tensors[f"waiting.{i}.steps"]
                known = [None if s == _UNKNOWN else bool(s) for s in success.tolist()]
                self._waiting[i] = _Waiting(list(frames.numpy()), known, steps.tolist())
        self._ready = [
            (tensors[f"ready.{i}.frames"].numpy(), tensors[f"ready.{i}.targets"].numpy())
            for i in range(int(values["ready"]))
        ]
