"""An image reward model that goes on learning while it is in use: refits in RL, updates of a server.

Fresh frames are mixed with a balanced replay of old ones, and batch normalisation takes its statistics from
the replay afterwards: running averages over a few one-sided batches would be wrong, and frozen statistics let
single steps throw the network off. The counterpart of PRIME's online update (arXiv:2502.01456) for images.

`learn` labels the frames of episodes. Rows of an episode with success per row are labelled by it. Where only the
outcome is known, all frames of a failure are failures, and of a success the last frame is one; its other frames are
unknown and teach a classifier nothing (a progress model learns from them the share of the way).

    model = load_online_image_model("runs/rm", kind="resnet", data_path="data/labelled")
    model.learn([episode_with_outcome])           # {"loss": 0.21, "fresh": 9.0, "replay": 120.0, ...}
    model.update(frames_N_H_W_C, targets_N, steps=20)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from guerdon.compute.devices import seeded
from guerdon.compute.finite import SkippedSteps
from guerdon.compute.optimizers import adam_tensors, load_adam
from guerdon.episodes.targets import episode_success, frame_targets
from guerdon.errors import CheckpointError, DataError, boundary
from guerdon.models.checkpoint import load_state, save_state
from guerdon.models.images.backbone import batch_normalizations, calibrating, random_shift, to_input
from guerdon.models.images.image import ImageRewardModel, Kind, load_image_model
from guerdon.models.images.quality import frame_quality
from guerdon.processes.call_queue import alone, calls_of, concurrent
from guerdon.types import Episode, FloatArray, IntArray, Metrics, RewardInfo, Score

CALIBRATION_FRAMES = 256


class OnlineImageModel:
    """An image reward model (changed in place) with its optimiser and its replay; a `RewardModel` and a `Learnable`.

    Args:
        model: the reward model; its scores change with every update.
        offline_frames_N_H_W_C: frames (any size) or states it was trained on; they fill the replay.
        offline_targets_N: their targets: 0/1 for `resnet`, progress in [0, 1] for `progress`.
        learning_rate: of AdamW.
        weight_decay: of AdamW.
        batch_size: frames per step, fresh and replayed together.
        replay_size: frames remembered.
        replay_ratio: share of each batch drawn from the replay, in [0, 1); 0 uses fresh frames only.
        augment: shift frames (not states) randomly by up to 4 pixels.
        steps: gradient steps of `learn`.
        frames_per_episode: labelled frames that `learn` takes of one episode at most, evenly spaced, the last among
            them; None: all.
        seed: of the draws, the shifts and the dropout.

    Attributes:
        gradient_penalty: weight of `ImageScorer.gradient_penalty` between the positives and the negatives of a batch;
            above 0 only for models that look at states. A run with adversarial labels sets it.
        contrast: negatives of the demonstrations themselves, (N, S) rows as the model looks at them, with the share of
            the replayed negatives of a batch that is drawn from them. They are not part of the replay, whose negatives
            would be the policy's alone after a while.
        exchanged: columns of states that the rows of a batch exchange at random, so that they say nothing about labels.
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
        steps: int = 20,
        frames_per_episode: int | None = 8,
        seed: int = 0,
    ) -> None:
        self.model, self._calls = model, calls_of(model)  # scoring and learning never at once
        self.gradient_penalty = 0.0
        self.contrast: tuple[tuple[FloatArray, float], ...] = ()
        self.exchanged: IntArray = np.empty(0, dtype=np.int64)
        self.steps, self.frames_per_episode = steps, frames_per_episode
        self.batch_size = batch_size
        self.replay_ratio = replay_ratio
        self.augment = augment and model.config.state_size is None
        self.rng = np.random.default_rng(seed)
        trained = [p for p in model.scorer.parameters() if p.requires_grad]  # of a frozen backbone, the head
        self.optimizer = torch.optim.AdamW(trained, lr=learning_rate, weight_decay=weight_decay, fused=True)
        self.skipped = SkippedSteps("the image reward model", "the learning rate of its refits")
        self.replay = FrameReplay(replay_size, positive_above=0.5 if model.config.type == "resnet" else 0.0)
        self.updates = 0
        if offline_frames_N_H_W_C is not None and offline_targets_N is not None:
            pixels = model.config.prepared(offline_frames_N_H_W_C)
            self.replay.add(pixels, _checked(offline_targets_N, len(pixels)), self.rng)

    @property
    def info(self) -> RewardInfo:
        """That of the model."""
        return self.model.info

    @concurrent
    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """Scores with the current weights."""
        return self.model.score(episodes)

    @alone
    def learn(self, episodes: Sequence[Episode]) -> Metrics:
        """Learn from the labelled frames of these episodes and from the replay.

        They count as those of a policy in training: what follows a success that ended again is not learned from.

        Returns:
            What `update` returns, and `skipped`: episodes without frames, or whose outcome is unknown.
        """
        played = [replace(episode, meta={**episode.meta, "mode": "train"}) for episode in episodes]
        labelled = [found for episode in played if (found := self._labelled(episode)) is not None]
        skipped: Metrics = {"skipped": float(len(episodes) - len(labelled))}
        return self.update(*self._joined(labelled), steps=self.steps) | skipped if labelled else skipped

    def remember(self, data_path: str) -> None:
        """Fill the replay with frames of labelled episodes, without learning from them.

        Raises:
            DataError: there are none.
        """
        from guerdon.episodes.read import read_episodes

        config = self.model.config
        kept = read_episodes(data_path, camera=config.camera or None, with_frames=config.state_size is None)
        labelled = [found for episode in kept if (found := self._labelled(episode)) is not None]
        if not labelled:
            raise DataError(
                f"{data_path} has no episode with {self.model.config.column} and a known outcome; name another, or "
                "leave it out",
                field=self.model.config.column,
            )
        self.replay.add(*self._joined(labelled), self.rng)

    def _labelled(self, episode: Episode) -> tuple[NDArray[Any], FloatArray] | None:
        """Frames or states whose label is known, with their labels; None where there is none."""
        config = self.model.config
        seen = config.rows(episode)
        if seen is None or not len(seen):
            return None
        targets = frame_targets(episode, config.type, config.horizon, config.within_steps)
        if targets is None and config.type == "resnet" and config.within_steps is None:
            targets = outcome_targets(episode)
        if targets is None or not np.isfinite(targets).any():
            return None
        rows = np.flatnonzero(np.isfinite(targets))
        most = min(self.frames_per_episode or len(rows), len(rows))
        spread = np.linspace(0, len(rows) - 1, most)
        rows = rows[np.unique(spread.round().astype(np.int64))] if most > 1 else rows[-1:]
        return seen[rows], targets[rows]

    def _joined(self, labelled: Sequence[tuple[NDArray[Any], FloatArray]]) -> tuple[NDArray[Any], FloatArray]:
        """Frames or states of several episodes at the size of the model's input, and their targets."""
        pixels = [self.model.config.prepared(frames) for frames, _ in labelled]
        return np.concatenate(pixels), np.concatenate([targets for _, targets in labelled])

    @alone
    def save(self, folder: Path) -> None:
        """Write weights, optimiser, replay and random state in one piece."""
        save_state(folder, *self.state())

    @alone
    def restore(self, folder: Path) -> None:
        """Return to what `save` wrote.

        Raises:
            CheckpointError: it was altered, or belongs to another model.
        """
        tensors, values = load_state(folder)
        with boundary(CheckpointError, f"{folder} cannot be read"):
            self.load_state(tensors, values)

    @alone
    def update(self, frames_N_H_W_C: NDArray[Any], targets_N: NDArray[Any], *, steps: int) -> Metrics:
        """Learn from fresh frames and the replay, then remember the fresh frames.

        The loss is binary cross-entropy on the logit, with soft targets for `progress`, plus the gradient penalty.

        Args:
            frames_N_H_W_C: fresh frames of any size, channels last; or states (N, S).
            targets_N: (N,) in [0, 1].
            steps: optimiser steps; without fresh frames nothing is learned.

        Returns:
            `loss` (mean over the steps), `skipped_updates` (steps not taken, because loss or gradient was not finite),
            `seconds`, `fresh` (frames), `replay` (frames remembered), and the quality on the fresh frames *before*
            learning from them: `fresh_accuracy` and `fresh_auroc`, or `fresh_mae`. None where undefined.

        Raises:
            ValueError: targets outside [0, 1] or of another length.
            NonFiniteError: too many steps in a row were not taken.
        """
        start = time.perf_counter()
        pixels = self.model.config.prepared(frames_N_H_W_C)
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

    def _quality(self, pixels: NDArray[Any], targets: FloatArray) -> dict[str, float | None]:
        values = self.model.probabilities(pixels, channels_last=True)
        known = np.isfinite(values)
        threshold = None if self.model.config.type == "progress" else self.model.config.threshold or 0.5
        return frame_quality(values[known], targets[known], threshold)

    def _fit(self, pixels: NDArray[Any], targets: FloatArray, steps: int) -> list[float | None]:
        """The loss before each step; None where the step was not taken."""
        scorer, device = self.model.scorer, self.model.device
        replayed = min(round(self.batch_size * self.replay_ratio), self.batch_size - 1) if len(self.replay) else 0
        scorer.train()
        losses = []
        with seeded(int(self.rng.integers(2**62)), device):
            for _ in range(steps):
                index = self.rng.integers(len(pixels), size=self.batch_size - replayed)
                batch = pixels[index]
                wanted = targets[index]
                if replayed:
                    old, old_targets = self._contrasted(*self.replay.draw(replayed, self.rng))
                    batch = np.concatenate([batch, old])
                    wanted = np.concatenate([wanted, old_targets])
                if len(self.exchanged):
                    batch[:, self.exchanged] = batch[self.rng.permutation(len(batch))][:, self.exchanged]
                losses.append(self._step(torch.from_numpy(batch).to(device), torch.from_numpy(wanted).to(device)))
        self.optimizer.zero_grad()  # the next rollout needs the memory of the gradients
        scorer.eval()
        return losses

    def _contrasted(self, rows_N: NDArray[Any], targets_N: FloatArray) -> tuple[NDArray[Any], FloatArray]:
        """Rows of the replay, of whose negatives the shares of `contrast` are replaced."""
        negative = np.flatnonzero(targets_N <= self.replay.positive_above)
        wanted, begin = len(negative), 0
        for own, share in self.contrast:
            place = negative[begin : begin + round(share * wanted)]
            rows_N[place] = own[self.rng.integers(len(own), size=len(place))]
            begin += len(place)
        return rows_N, targets_N

    def _step(self, pixels: Tensor, targets: Tensor) -> float | None:
        if self.augment:
            pixels = random_shift(pixels)
        logits = self._logits(pixels)
        loss = F.binary_cross_entropy_with_logits(logits, targets)
        if self.gradient_penalty:
            positive = targets > self.replay.positive_above
            loss = loss + self.gradient_penalty * self.model.scorer.gradient_penalty(
                pixels[positive], pixels[~positive]
            )
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
        self.model.refresh()
        if not batch_normalizations(self.model.scorer):
            return
        pixels, _ = self.replay.draw(CALIBRATION_FRAMES, self.rng)
        mixed = pixels[self.rng.permutation(CALIBRATION_FRAMES)]
        with calibrating(self.model.scorer):
            for start in range(0, CALIBRATION_FRAMES, 64):
                self._logits(torch.from_numpy(mixed[start : start + 64]).to(self.model.device))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Model, optimiser, replay and random state as tensors and JSON values; later updates do not touch them."""
        weights = self.model.scorer.state_dict().items()
        tensors = {
            f"model.{name}": t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in weights
        }
        tensors |= adam_tensors(self.optimizer, "optimizer.")
        tensors |= {f"replay.{name}": torch.from_numpy(array) for name, array in self.replay.arrays().items()}
        values = {"rng": self.rng.bit_generator.state, "seen": list(self.replay.offered), "updates": self.updates}
        return tensors, values

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Continue exactly where `state` was taken.

        Raises:
            CheckpointError: the state belongs to another model.
        """

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}

        try:
            self.model.scorer.load_state_dict(part("model."), strict=True)
        except RuntimeError as error:
            raise CheckpointError(f"the saved online state does not fit this reward model: {error}") from error
        self.model.refresh()
        load_adam(self.optimizer, tensors, "optimizer.")
        replayed = {name: t.numpy().copy() for name, t in part("replay.").items()}
        self.replay.restore(replayed, values["seen"])
        self.rng.bit_generator.state = values["rng"]
        self.updates = values["updates"]


def _checked(targets_N: NDArray[Any], n: int) -> FloatArray:
    targets = np.asarray(targets_N, dtype=np.float32)
    if targets.shape != (n,):
        raise ValueError(f"{n} frames need targets of shape ({n},), got {targets.shape}")
    if n and not (targets.min() >= 0 and targets.max() <= 1):
        raise ValueError("targets must be finite and lie in [0, 1]")
    return targets


def outcome_targets(episode: Episode) -> FloatArray | None:
    """(T,) targets of a classifier from the outcome: all 0 for a failure; 1 for the last row of a success, else NaN."""
    succeeded = episode_success(episode)
    if succeeded is None:
        return None
    targets: NDArray[np.float32] = np.full(len(episode), np.nan if succeeded else 0.0, dtype=np.float32)
    targets[-1] = float(succeeded)
    return targets


class FrameReplay:
    """A bounded, class-balanced memory of labelled frames: two reservoirs of `capacity // 2` frames each.

    The reservoirs (Vitter 1985, algorithm R) are for positive and for other frames, so that a stream of failures cannot
    push the rare successes out.

    Args:
        capacity: frames kept in all, at least 2.
        positive_above: targets above it belong to the positive reservoir.
    """

    def __init__(self, capacity: int, positive_above: float) -> None:
        if capacity < 2:
            raise ValueError(f"a replay needs a capacity of at least 2 frames, got {capacity}")
        self.room = capacity // 2
        self.positive_above = positive_above
        self.kept: list[list[tuple[NDArray[Any], float]]] = [[], []]  # frames with their targets
        self.offered = [0, 0]

    def __len__(self) -> int:
        return len(self.kept[0]) + len(self.kept[1])

    def add(self, pixels_N_H_W_C: NDArray[Any], targets_N: FloatArray, rng: np.random.Generator) -> None:
        """Offer frames to the reservoirs: each frame of a class's stream is kept with equal probability."""
        for pixels, target in zip(pixels_N_H_W_C, targets_N, strict=True):
            side = int(target > self.positive_above)
            self.offered[side] += 1
            kept = self.kept[side]
            slot = len(kept) if len(kept) < self.room else int(rng.integers(self.offered[side]))
            if slot < self.room:
                kept[slot : slot + 1] = [(pixels.copy(), float(target))]

    def draw(self, n: int, rng: np.random.Generator) -> tuple[NDArray[Any], FloatArray]:
        """Draw with replacement, half from each reservoir (all from one when the other is empty).

        Args:
            n: frames wanted; at least one frame must have been added.
            rng: draws the random numbers.

        Returns:
            (n, H, W, 3) uint8 or (n, S) float32, and (n,) float32.
        """
        others, positives = self.kept
        counts = (n - n // 2, n // 2)
        if not positives:
            counts = (n, 0)
        elif not others:
            counts = (0, n)
        picks = []
        for kept, count in zip(self.kept, counts, strict=True):
            if count:
                picks += [kept[i] for i in rng.integers(len(kept), size=count)]
        return np.stack([pixels for pixels, _ in picks]), np.array([target for _, target in picks], np.float32)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The contents as arrays, by name, for a checkpoint; empty reservoirs are left out."""
        named: dict[str, NDArray[Any]] = {}
        for side in (0, 1):
            if kept := self.kept[side]:
                named[f"pixels.{side}"] = np.stack([pixels for pixels, _ in kept])
                named[f"targets.{side}"] = np.array([target for _, target in kept], np.float32)
        return named

    def restore(self, arrays: dict[str, NDArray[Any]], offered: list[int]) -> None:
        """Restore what `arrays` returned, and the numbers of frames offered so far."""
        parts = [(arrays.get(f"pixels.{side}", ()), arrays.get(f"targets.{side}", ())) for side in (0, 1)]
        self.kept = [[(p, float(t)) for p, t in zip(pixels, targets, strict=True)] for pixels, targets in parts]
        self.offered = list(offered)


def load_online_image_model(
    checkpoint_path: str | Path,
    *,
    kind: Kind,
    data_path: str | None = None,
    **options: Any,
) -> OnlineImageModel:
    """Load a checkpoint as a model that goes on learning.

    Args:
        checkpoint_path: see `load_image_model`.
        kind: what it must be.
        data_path: a data set of labelled episodes, such as the one that it was trained on: the replay begins with
            its frames, so that the model does not forget them. None: an empty replay.
        **options: `device` and `bf16` of `ImageRewardModel`; all others are those of `OnlineImageModel`.

    Raises:
        CheckpointError: missing, corrupt, or of another kind.
        DataError: there are no labelled episodes at `data_path`.
    """
    placed = {name: options.pop(name) for name in ("device", "bf16") if name in options}
    online = OnlineImageModel(load_image_model(checkpoint_path, kind=kind, **placed), **options)
    if data_path is not None:
        online.remember(data_path)
    return online
