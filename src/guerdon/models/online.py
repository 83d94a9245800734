"""Refit an image reward model while a policy learns from it, so that the policy cannot run away from it.

Fresh frames are mixed with a balanced replay of old ones, and batch normalisation takes its statistics from
the replay afterwards: running averages over a few one-sided batches would be wrong, and frozen statistics let
single steps throw the network off. The image twin of PRIME's online update (arXiv:2502.01456). It gets frames
and targets, and does not know RL.

    trainer = OnlineTrainer(model, offline_pixels, offline_targets, seed=0)
    metrics = trainer.update(frames_N_H_W_C, targets_N, steps=20)
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from guerdon.errors import CheckpointError
from guerdon.finite import SkippedSteps
from guerdon.models.backbone import calibrating
from guerdon.models.image import ImageRewardModel
from guerdon.models.preprocess import random_shift, to_input, to_pixels
from guerdon.models.quality import classifier_quality, progress_quality
from guerdon.models.replay import FrameReplay
from guerdon.types import ByteArray, FloatArray

CALIBRATION_FRAMES = 256


class OnlineState(NamedTuple):
    """Everything a bit-exact resume needs: tensors for safetensors, and plain values for JSON."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


class OnlineTrainer:
    """Holds a model (changed in place), its optimiser and its replay.

    Args:
        model: the reward model; its scores change with every update.
        offline_frames_N_H_W_C: frames it was trained on, any size; they fill the replay.
        offline_targets_N: their targets: 0/1 for `resnet`, progress in [0, 1] for `progress`.
        learning_rate: of AdamW.
        weight_decay: of AdamW.
        batch_size: frames per step, fresh and replayed together.
        replay_size: frames remembered.
        replay_ratio: share of each batch drawn from the replay, in [0, 1); 0 uses fresh frames only.
        augment: shift frames randomly by up to 4 pixels.
        seed: of the draws, the shifts and the dropout.
    """

    def __init__(
        self,
        model: ImageRewardModel,
        offline_frames_N_H_W_C: NDArray[Any] | None = None,
        offline_targets_N: FloatArray | None = None,
        *,
        learning_rate: float = 1e-4,
        weight_decay: float = 1e-5,
        batch_size: int = 64,
        replay_size: int = 2000,
        replay_ratio: float = 0.5,
        augment: bool = True,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.batch_size = batch_size
        self.replay_ratio = replay_ratio
        self.augment = augment
        self.rng = np.random.default_rng(seed)
        self.optimizer = torch.optim.AdamW(
            model.scorer.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True
        )
        self.skipped = SkippedSteps("the image reward model", "the learning rate of its refits")
        self.replay = FrameReplay(replay_size, positive_above=0.5 if model.config.type == "resnet" else 0.0)
        self.updates = 0
        if offline_frames_N_H_W_C is not None and offline_targets_N is not None:
            pixels = to_pixels(offline_frames_N_H_W_C, model.config.image_size, channels_last=True)
            self.replay.add(pixels, _checked(offline_targets_N, len(pixels)), self.rng)

    def update(self, frames_N_H_W_C: NDArray[Any], targets_N: NDArray[Any], *, steps: int) -> dict[str, float | None]:
        """Fit the model to fresh frames and the replay, then remember the fresh frames.

        The loss is binary cross-entropy on the logit, with soft targets for `progress`.

        Args:
            frames_N_H_W_C: fresh frames of any size, channels last.
            targets_N: (N,) in [0, 1].
            steps: optimiser steps; without fresh frames nothing is fitted.

        Returns:
            `loss` (mean over the steps), `skipped_updates` (steps not taken, because loss or gradient was not finite),
            `seconds`, `fresh` (frames), `replay` (frames remembered), and the quality on the fresh frames *before*
            fitting them: `fresh_accuracy` and `fresh_auroc`, or `fresh_mae`. None where undefined.

        Raises:
            ValueError: targets outside [0, 1] or of another length.
            NonFiniteError: too many steps in a row were not taken.
        """
        start = time.perf_counter()
        pixels = to_pixels(frames_N_H_W_C, self.model.config.image_size, channels_last=True)
        targets = _checked(targets_N, len(pixels))
        metrics = {f"fresh_{name}": value for name, value in self._quality(pixels, targets).items()}
        losses = self._fit(pixels, targets, steps) if len(pixels) and steps else []
        taken = [loss for loss in losses if loss is not None]
        self.replay.add(pixels, targets, self.rng)
        if taken:
            self._calibrate()
        self.updates += 1
        counts = {"fresh": float(len(pixels)), "replay": float(len(self.replay))}
        counts["skipped_updates"] = float(len(losses) - len(taken))
        return {
            "loss": float(np.mean(taken)) if taken else None,
            "seconds": time.perf_counter() - start,
            **counts,
            **metrics,
        }

    def _quality(self, pixels: ByteArray, targets: FloatArray) -> dict[str, float | None]:
        values = self.model.probabilities(pixels, channels_last=True)
        known = np.isfinite(values)
        if self.model.config.type == "progress":
            return progress_quality(values[known], targets[known])
        threshold = 0.5 if self.model.config.threshold is None else self.model.config.threshold
        return classifier_quality(values[known], targets[known], threshold)

    def _fit(self, pixels: ByteArray, targets: FloatArray, steps: int) -> list[float | None]:
        """The loss before each step; None where the step was not taken."""
        scorer, device = self.model.scorer, self.model.device
        replayed = min(round(self.batch_size * self.replay_ratio), self.batch_size - 1) if len(self.replay) else 0
        scorer.train()
        losses = []
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(int(self.rng.integers(2**62)))
            for _ in range(steps):
                index = self.rng.integers(len(pixels), size=self.batch_size - replayed)
                batch, wanted = pixels[index], targets[index]
                if replayed:
                    old, old_targets = self.replay.draw(replayed, self.rng)
                    batch, wanted = np.concatenate([batch, old]), np.concatenate([wanted, old_targets])
                losses.append(self._step(torch.from_numpy(batch).to(device), torch.from_numpy(wanted).to(device)))
        scorer.eval()
        return losses

    def _step(self, pixels: Tensor, targets: Tensor) -> float | None:
        if self.augment:
            pixels = random_shift(pixels)
        logits = self._logits(pixels)
        loss = F.binary_cross_entropy_with_logits(logits, targets)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        value = float(loss.detach())
        return None if self.skipped.clipped_step(self.optimizer, value, 1.0) is None else value

    def _logits(self, pixels: Tensor) -> Tensor:
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.model.bf16):
            logits: Tensor = self.model.scorer(to_input(pixels, self.model.config.normalize))
        return logits

    def _calibrate(self) -> None:
        """Give batch normalisation its statistics on the replay, and let scoring see the new weights."""
        pixels, _ = self.replay.draw(CALIBRATION_FRAMES, self.rng)
        mixed = pixels[self.rng.permutation(CALIBRATION_FRAMES)]
        with calibrating(self.model.scorer):
            for start in range(0, CALIBRATION_FRAMES, 64):
                self._logits(torch.from_numpy(mixed[start : start + 64]).to(self.model.device))
        self.model.refresh()

    def state_dict(self) -> OnlineState:
        """Model, optimiser, replay and random state, as copies that later updates do not touch."""
        tensors = {f"model.{name}": _copy(t) for name, t in self.model.scorer.state_dict().items()}
        for index, slots in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": _copy(t) for name, t in slots.items()}
        tensors |= {f"replay.{name}": torch.from_numpy(array) for name, array in self.replay.arrays().items()}
        return OnlineState(
            tensors,
            {"rng": self.rng.bit_generator.state, "seen": list(self.replay.seen), "updates": self.updates},
        )

    def load_state_dict(self, state: OnlineState) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            CheckpointError: the state is of another model.
        """
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "replay": {}}
        for name, tensor in state.tensors.items():
            part, rest = name.split(".", 1)
            parts[part][rest] = tensor
        try:
            self.model.scorer.load_state_dict(parts["model"], strict=True)
        except RuntimeError as error:
            raise CheckpointError(f"the saved online state does not fit this reward model: {error}") from error
        self.model.refresh()
        parameters = list(self.model.scorer.parameters())
        slots: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["optimizer"].items():
            index, slot = name.split(".", 1)
            slots.setdefault(int(index), {})[slot] = _like(tensor, parameters[int(index)])
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": slots, "param_groups": groups})
        self.replay.restore({name: t.numpy().copy() for name, t in parts["replay"].items()}, state.values["seen"])
        self.rng.bit_generator.state = state.values["rng"]
        self.updates = state.values["updates"]


def _checked(targets_N: NDArray[Any], n: int) -> FloatArray:
    targets = np.asarray(targets_N, dtype=np.float32)
    if targets.shape != (n,):
        raise ValueError(f"{n} frames need targets of shape ({n},), got {targets.shape}")
    if n and not (targets.min() >= 0 and targets.max() <= 1):
        raise ValueError("targets must be finite and lie in [0, 1]")
    return targets


def _like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A copy laid out in memory as the parameter is: the fused optimiser walks both as flat memory."""
    return torch.empty_like(parameter).copy_(tensor) if tensor.shape == parameter.shape else tensor.clone()


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
