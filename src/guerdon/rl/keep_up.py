"""Refit a reward model on what the policy just did, so that it cannot be exploited for long.

Frames wait until their episode ends; then ground truth (success of each frame, or progress along the episode)
labels them, and failed episodes become hard negatives. The image twin of PRIME's online update (Cui et al. 2025,
2502.01456). This module does not know how the policy learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guerdon.episodes.targets import progress_targets, success_labels
from guerdon.models.online import OnlineState, OnlineTrainer
from guerdon.rl.sightings import Segment
from guerdon.types import ByteArray, Episode


class KeepUp:
    """Labels finished episodes and hands them to an `OnlineTrainer`.

    Args:
        trainer: holds the model, its optimiser and its replay.
        kind: `resnet` labels frames by success, `progress` by progress.
        steps: gradient steps per refit.
        every: rollouts between refits.
        num_envs: copies of the environment.
    """

    def __init__(self, trainer: OnlineTrainer, kind: str, *, steps: int, every: int, num_envs: int) -> None:
        self.trainer = trainer
        self._targets = progress_targets if kind == "progress" else success_labels
        self._steps = steps
        self._every = every
        self._rollouts = 0
        self._waiting: list[tuple[list[ByteArray], list[bool]]] = [([], []) for _ in range(num_envs)]
        self._ready: list[tuple[ByteArray, np.ndarray]] = []

    def see(self, segments: Sequence[Segment]) -> None:
        """Take in the frames of a rollout; label those whose episodes ended."""
        for segment in segments:
            frames, success = self._waiting[segment.env]
            frames.extend(segment.frames)
            success.extend(s.success for s in segment.sightings)
            if segment.finished and frames:
                flags = np.array(success, dtype=np.bool_)
                episode = Episode(
                    id="online", task="", frames=np.stack(frames), success=flags, outcome=bool(flags.any())
                )
                targets = self._targets(episode)
                if targets is not None:
                    assert episode.frames is not None
                    self._ready.append((episode.frames, np.asarray(targets, dtype=np.float32)))
            if segment.finished:
                self._waiting[segment.env] = ([], [])

    def refit(self) -> dict[str, float | None]:
        """Refit if it is time and an episode has ended since the last one; else an empty answer."""
        self._rollouts += 1
        if self._rollouts % self._every or not self._ready:
            return {}
        frames = np.concatenate([f for f, _ in self._ready])
        targets = np.concatenate([t for _, t in self._ready])
        self._ready = []
        return self.trainer.update(frames, targets, steps=self._steps)

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able values: model, optimiser, replay, and the frames that wait."""
        online = self.trainer.state_dict()
        tensors = {f"online.{k}": v for k, v in online.tensors.items()}
        for i, (frames, success) in enumerate(self._waiting):
            if frames:
                tensors[f"waiting.{i}.frames"] = torch.from_numpy(np.stack(frames))
                tensors[f"waiting.{i}.success"] = torch.from_numpy(np.array(success))
        for i, (ready, targets) in enumerate(self._ready):
            tensors[f"ready.{i}.frames"] = torch.from_numpy(ready.copy())
            tensors[f"ready.{i}.targets"] = torch.from_numpy(targets.copy())
        return tensors, {"online": online.values, "rollouts": self._rollouts, "ready": len(self._ready)}

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        prefix = "online."
        online = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        self.trainer.load_state_dict(OnlineState(online, values["online"]))
        self._rollouts = int(values["rollouts"])
        for i in range(len(self._waiting)):
            frames = tensors.get(f"waiting.{i}.frames")
            self._waiting[i] = (
                ([], [])
                if frames is None
                else (list(frames.numpy()), [bool(x) for x in tensors[f"waiting.{i}.success"]])
            )
        self._ready = [
            (tensors[f"ready.{i}.frames"].numpy(), tensors[f"ready.{i}.targets"].numpy())
            for i in range(int(values["ready"]))
        ]
