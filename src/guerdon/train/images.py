"""Train an image reward model offline: label the frames of episodes, train, write a checkpoint.

The checkpoint holds everything that scoring needs. Frames are resized as they are read, so that large data sets stay
small in memory; whole episodes are held out. Frames pass once through a backbone that is not trained, and the head
learns from their features. Also runs under `torchrun`, one process per device; with `fsdp`, the model is sharded.

    settings = ResNetTrainSettings(data_path="data/window", save_dir="runs/rm", image_size=64)
    result = train_image_model(settings)
    result.metrics["auroc"]     # on held-out episodes
    load_reward_model("resnet", result.save_dir)
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import EarlyStoppingCallback, EvalPrediction, Trainer

from guerdon.compute import distributed
from guerdon.compute.devices import resolve_device, seeded
from guerdon.compute.packaged import local_model
from guerdon.compute.sharding import Shards, recompute
from guerdon.episodes.outcomes import outcomes_in
from guerdon.episodes.read import camera_key, dataset_hash, read_episodes
from guerdon.episodes.targets import frame_targets, no_labels, no_marks
from guerdon.errors import ConfigError, DataError
from guerdon.models.images.backbone import (
    MLP,
    ImageScorer,
    batch_normalizations,
    calibrating,
    inference_copy,
    random_shift,
    residual_layers,
    to_input,
    to_pixels,
)
from guerdon.models.images.image import ImageModelConfig, save_checkpoint, state_columns, state_rows
from guerdon.models.images.quality import frame_quality
from guerdon.policies.batches.passes import slices
from guerdon.policies.batches.precision import uses_bf16
from guerdon.policies.pretrained.deferred import deferred
from guerdon.processes.progress import doing
from guerdon.settings.collect import CollectSettings
from guerdon.settings.train import ProgressTrainSettings, ResNetTrainSettings, VLMTrainSettings
from guerdon.train.trainer import (
    FREE,
    BalancedSampler,
    BaseTrainer,
    TrainingFolder,
    TrainResult,
    epoch_order,
    joint_hash,
)
from guerdon.types import BoolArray, ByteArray, Episode, FloatArray, IntArray

# ---------------------------------------------------------------------------------------------------------------------
# What trainers of image reward models fit: a whole network, or its head on features that are computed once.
#
# features_N_d = frame_features(scorer, pixels_N_H_W_C, "none", bf16=False)
# network = HeadNetwork(scorer)
# network(**feature_batch(features_N_d, targets_N, rows))["loss"].backward()
# ---------------------------------------------------------------------------------------------------------------------


BATCH = 64  # frames per pass through a network that is not trained
FEATURES: dict[bytes, FloatArray] = {}  # of the frames that were asked for last, by their hash


def seeded_scorer(
    settings: ResNetTrainSettings | ProgressTrainSettings, states_N_S: FloatArray | None = None
) -> ImageScorer:
    """The network before its first step; the seed decides its random weights.

    Args:
        settings: of the training.
        states_N_S: what a network on states is trained on, which it standardises by.
    """
    with seeded(settings.seed):
        scorer = ImageScorer(
            settings.arch,
            hidden_dim=settings.hidden_dim,
            dropout=settings.dropout,
            pretrained_path=settings.backbone_path,
            freeze_backbone=settings.backbone_frozen,
            state_size=None if states_N_S is None else states_N_S.shape[1],
            sharded=distributed.peers() > 1,
        )
    if states_N_S is not None:
        scorer.backbone.standardise(states_N_S)
    return scorer


def frame_features(scorer: ImageScorer, pixels_N_H_W_C: ByteArray, normalize: Any, *, bf16: bool) -> FloatArray:
    """What the backbone of a scorer makes of frames, without any training: (N, d) float32.

    Equal frames pass through it once. The features are kept until other ones are asked for, by the hash of frame,
    backbone and preprocessing, so that success and progress models of one data set share them.

    Args:
        scorer: on the device where it computes.
        pixels_N_H_W_C: uint8.
        normalize: see `to_input`.
        bf16: compute in bfloat16, as `inference_copy` does.
    """
    network, device = inference_copy(scorer, bf16=bf16), next(scorer.parameters()).device
    weights = hashlib.blake2b(f"{normalize} {bf16} {pixels_N_H_W_C.shape[1:]}".encode(), digest_size=32)
    for tensor in scorer.backbone.state_dict().values():
        weights.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    hashes = [hashlib.blake2b(p.data, digest_size=16, key=weights.digest()).digest() for p in pixels_N_H_W_C]
    missing = {name: i for i, name in enumerate(hashes) if name not in FEATURES}
    found = {name: FEATURES[name] for name in hashes if name in FEATURES}
    rows = np.array(list(missing.values()), np.int64)
    with torch.inference_mode():
        for part in np.array_split(rows, math.ceil(len(rows) / BATCH)) if len(rows) else []:
            inputs = to_input(torch.from_numpy(pixels_N_H_W_C[part]).to(device), normalize)
            rows_of_part = network.features(inputs).cpu().numpy()
            found |= {hashes[i]: row for i, row in zip(part, rows_of_part, strict=True)}
    features_N_d = np.stack([found[name] for name in hashes])
    FEATURES.clear()
    FEATURES.update(zip(hashes, features_N_d, strict=True))  # views: kept once
    return features_N_d


def feature_batch(features_N_d: FloatArray, targets_N: FloatArray, rows: Sequence[int] | IntArray) -> dict[str, Tensor]:
    """Features and targets of these rows."""
    index = np.asarray(rows)
    return {"features": torch.from_numpy(features_N_d[index]), "labels": torch.from_numpy(targets_N[index])}


def even_parts(rows: int) -> list[slice]:
    """Even parts of a batch for the processes; none of one row, of which batch normalisation has no variance."""
    found = slices(rows, distributed.even(rows, None))
    if len(found) > 1 and found[-1].stop - found[-1].start == 1:
        found[-2:] = [slice(found[-2].start, rows)]
    return found


class FrameNetwork(nn.Module):
    """Bytes or states in; binary cross-entropy (with soft targets) and logits out.

    With several processes that train together, the weights are sharded.

    Args:
        scorer: the network.
        normalize: see `to_input`.
        augment: shift training frames randomly.
        weights: of a scorer on torch's device `meta`, see `Shards`.
        offload: see `Shards`.
    """

    def __init__(
        self,
        scorer: ImageScorer,
        normalize: Any,
        augment: bool,
        weights: Mapping[str, Tensor] | None = None,
        *,
        offload: bool = False,
    ) -> None:
        super().__init__()
        self.scorer = scorer
        self.normalize, self.augment = normalize, augment
        self.shards: Shards | None = None
        if distributed.peers() > 1:
            self.shards = Shards(scorer, weights=weights, offload=offload)

    def tensors(self) -> dict[str, Tensor]:
        """All weights and statistics; shards are put together in the first process."""
        return {name: distributed.gathered(value) for name, value in self.state_dict().items()}

    def load_tensors(self, state: dict[str, Tensor]) -> None:
        """Return to what `tensors` gave."""
        for name, value in self.state_dict().items():
            with torch.no_grad():
                distributed.put(value, state[name])

    def forward(self, pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Loss (a scalar) and logits (N,) for uint8 pixels (N, H, W, 3) or states (N, S), and labels (N,) in [0, 1]."""
        if self.training and self.augment:
            pixels = random_shift(pixels)
        inputs = to_input(pixels, self.normalize)
        logits = self.scorer(inputs) if self.shards is None else self.shards.run(lambda: self.scorer(inputs))
        return {"loss": F.binary_cross_entropy_with_logits(logits.float(), labels), "logits": logits}


class HeadNetwork(nn.Module):
    """Features of frames in; binary cross-entropy (with soft targets) and logits out.

    Args:
        scorer: the network whose head is trained.
    """

    def __init__(self, scorer: ImageScorer) -> None:
        super().__init__()
        self.head = scorer.head
        self.tensors, self.load_tensors = self.state_dict, self.load_state_dict

    def forward(self, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Loss (a scalar) and logits (N,) for features (N, d) and labels (N,) in [0, 1]."""
        logits = self.head(features).squeeze(1)
        return {"loss": F.binary_cross_entropy_with_logits(logits.float(), labels), "logits": logits}


# ---------------------------------------------------------------------------------------------------------------------
# Calibration of a success classifier on held-out frames: Platt scaling, written into its last layer.
#
# The classifier was fitted to balanced batches, so its probabilities are those of another share of successes than the
# data have. sigma(a z + b) of its logit z, with a and b fitted to held-out frames, corrects both share and confidence
# (Platt 1999; Guo et al. 2017, 1706.04599, section 4.1), and keeps the order of the frames.
#
#     scaling = fit_scaling(logits_N, labels_N)
#     fold_scaling(scorer, scaling)               # from now on the network gives calibrated logits
# ---------------------------------------------------------------------------------------------------------------------


class Scaling(NamedTuple):
    """Calibrated logit = slope * logit + offset; the slope is positive."""

    slope: float
    offset: float


def fit_scaling(logits_N: NDArray[Any], labels_N: BoolArray) -> Scaling:
    """The scaling with the least cross-entropy, to Platt's targets, which stay finite where classes are separable.

    With P positives and Q negatives the targets are (P + 1) / (P + 2) and 1 / (Q + 2).

    Args:
        logits_N: of held-out frames.
        labels_N: their truth.
    """
    from scipy.optimize import minimize

    z, labels = np.asarray(logits_N, dtype=np.float64), np.asarray(labels_N, dtype=np.bool_)
    positives, negatives = int(labels.sum()), int((~labels).sum())
    targets = np.where(labels, (positives + 1) / (positives + 2), 1 / (negatives + 2))

    def loss(theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        slope = np.exp(theta[0])
        scaled = slope * z + theta[1]
        gap = 1 / (1 + np.exp(-np.clip(scaled, -500, 500))) - targets
        return float(_cross_entropy(scaled, targets)), np.array([(gap * z).mean() * slope, gap.mean()])

    found = minimize(loss, np.zeros(2), jac=True, method="L-BFGS-B", bounds=[(-5.0, 5.0), (-50.0, 50.0)])
    return Scaling(float(np.exp(found.x[0])), float(found.x[1]))


def fold_scaling(scorer: ImageScorer, scaling: Scaling) -> None:
    """Change the last layer so that the network gives scaled logits."""
    last = [layer for layer in scorer.head.modules() if isinstance(layer, nn.Linear)][-1]
    with torch.no_grad():
        last.weight.mul_(scaling.slope)
        last.bias.mul_(scaling.slope).add_(scaling.offset)


def calibrate(
    scorer: ImageScorer, logits_N: NDArray[np.float64], labels_N: BoolArray, episode_N: IntArray
) -> dict[str, float | None]:
    """Fit a scaling to held-out frames and fold it into the network.

    Args:
        scorer: changed in place.
        logits_N: its logits of held-out frames.
        labels_N: their truth.
        episode_N: which episode each is of.

    Returns:
        `calibration_slope`, `calibration_offset`; and the cross-entropy of the truth: `nll_uncalibrated`, and `nll` of
        a scaling that was fitted to the other half of the episodes (None with a single episode).
    """
    scaling = fit_scaling(logits_N, labels_N)
    fold_scaling(scorer, scaling)
    second = np.searchsorted(np.unique(episode_N), episode_N) % 2 == 1
    crossed = None
    if second.any():
        scaled = np.empty_like(logits_N)
        for half in (second, ~second):
            other = fit_scaling(logits_N[~half], labels_N[~half])
            scaled[half] = other.slope * logits_N[half] + other.offset
        crossed = float(_cross_entropy(scaled, labels_N))
    return {
        "calibration_slope": scaling.slope,
        "calibration_offset": scaling.offset,
        "nll_uncalibrated": float(_cross_entropy(logits_N, labels_N)),
        "nll": crossed,
    }


def _cross_entropy(logits_N: NDArray[np.float64], targets_N: NDArray[Any]) -> np.float64:
    """Mean of log(1 + exp(z)) - y z."""
    return np.float64((np.logaddexp(0.0, logits_N) - np.asarray(targets_N, dtype=np.float64) * logits_N).mean())


# ---------------------------------------------------------------------------------------------------------------------


Settings = ResNetTrainSettings | ProgressTrainSettings

MIN_STEPS_BETWEEN_EVALUATIONS = 20
MIN_DELTA = 1e-3  # smallest improvement of the validation loss that counts
CALIBRATION_FRAMES = 512
_FREE = FREE | {"max_epochs", "max_steps", "early_stopping_patience"}  # may be others on resume
_SUCCESS = "1 where the task is done in the frame, from the episode's per-step success; 0 elsewhere"
_LOST = "; left out are rows that follow a success which a policy in training lost again"
_WITHIN = (
    "1 where a success lies at most {within} environment steps ahead, from the episode's per-step success, and from "
    f"the first success of a demonstration on; 0 elsewhere{_LOST}, or whose episode ended before that without one"
)
_PROGRESS = (
    "0 at the first frame of a successful episode, rising linearly to 1 at its first success and "
    f"1 from there on; 0 at every frame of a failed episode{_LOST}"
)
_NEARNESS = (
    "nearness in time: 1 - (environment steps left until the first success) / {horizon:g}, at least 0, and 1 from the "
    f"success on; 0 at every frame of a failed episode{_LOST}"
)


# from episodes to labelled rows, for image models and vision-language models


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """N rows of episodes with their targets.

    Attributes:
        targets: (N,) float32 in [0, 1].
        positive: (N,) bool: a row of success, or (progress) a row of a successful episode.
        held: (N,) bool: held out for validation.
        episode: (N,) int64, index into `episode_ids`.
        row: (N,) int64, the row of the episode.
        episode_ids: one for each episode.
        skipped: number of episodes left out because they had no frames, no task (where one is needed) or no label.
    """

    targets: FloatArray
    positive: BoolArray
    held: BoolArray
    episode: IntArray
    row: IntArray
    episode_ids: tuple[str, ...]
    skipped: int

    def __len__(self) -> int:
        return len(self.targets)

    def split(self) -> tuple[IntArray, IntArray]:
        """Indices of the training rows and of the held-out rows."""
        return np.flatnonzero(~self.held), np.flatnonzero(self.held)

    def counts(self, what: str) -> dict[str, int]:
        """Numbers of rows (named `what`) and episodes on both sides of the split."""
        train, val = self.split()
        return {
            f"train_{what}": len(train),
            "train_positive": int(self.positive[train].sum()),
            f"val_{what}": len(val),
            "val_positive": int(self.positive[val].sum()),
            "episodes": len(self.episode_ids),
            "val_episodes": len(np.unique(self.episode[val])),
            "skipped_episodes": self.skipped,
        }

    def check_labels(self, settings: Settings | VLMTrainSettings) -> None:
        """Refuse rows that show nothing but success, or none.

        Raises:
            DataError: they do.
        """
        if not self.positive.any():
            raise DataError(
                f"no success frame in {len(self.episode_ids)} episodes ({len(self)} frames): a reward model needs "
                "examples of success; collect with an expert or a better policy"
            )
        if is_classifier(settings) and self.positive.all():
            raise DataError(f"every one of {len(self)} frames is a success: a classifier needs failures too")

    def check_split(self, val_split: float) -> None:
        """Refuse a split that leaves nothing to train on or to validate on.

        Raises:
            DataError: it does.
        """
        if val_split > 0 and not self.held.any():
            raise DataError(too_few(len(self.episode_ids)))
        if not self.positive[~self.held].any():
            raise DataError("no row of success is left for training after the split: collect more successful episodes")


def is_classifier(settings: Settings | VLMTrainSettings) -> bool:
    """Whether the model is trained on success, instead of progress."""
    return settings.question == "completed" if isinstance(settings, VLMTrainSettings) else settings.type == "resnet"


def sees_states(settings: Settings | VLMTrainSettings) -> TypeGuard[Settings]:
    """Whether the model looks at states, instead of frames."""
    return not isinstance(settings, VLMTrainSettings) and settings.arch == MLP


def state_rows_of(episode: Episode, settings: Settings) -> FloatArray | None:
    """(T, S) what a model on states looks at; None where the episode lacks it.

    Raises:
        DataError: its states have no parts of these keys.
    """
    if settings.actions and episode.actions is None:
        return None
    if settings.keys and episode.states is not None:
        state_columns(episode, settings.keys)
    return state_rows(episode, settings.keys or (), actions=bool(settings.actions))


def label_meaning(settings: Settings | VLMTrainSettings) -> str:
    """What a target of 1 means, in words."""
    if is_classifier(settings):
        within = getattr(settings, "within_steps", None)
        return _SUCCESS if within is None else _WITHIN.format(within=within)
    horizon = getattr(settings, "horizon", None)
    return _PROGRESS if horizon is None else _NEARNESS.format(horizon=horizon)


def row_targets(episode: Episode, settings: Settings | VLMTrainSettings) -> FloatArray | None:
    """(T,) targets of an episode's rows, NaN where unknown; None where it lacks what the model sees, or any target."""
    seen = state_rows_of(episode, settings) if sees_states(settings) else episode.frames
    if seen is None or not len(episode):
        return None
    kind = "resnet" if is_classifier(settings) else "progress"
    within = getattr(settings, "within_steps", None)
    targets = frame_targets(episode, kind, getattr(settings, "horizon", None), within)
    return None if targets is None or not np.isfinite(targets).any() else targets


def label_rows(
    episodes: Iterable[Episode],
    settings: Settings | VLMTrainSettings,
    keep: Callable[[Episode, IntArray], None],
    *,
    needs_task: bool = False,
    held_ids: Collection[str] | None = None,
) -> LabelledRows:
    """Draw and label rows of all episodes; what the model sees of them is kept by the caller.

    Args:
        episodes: read one by one; those without frames or without the labels needed are counted and skipped.
        settings: what it is trained on, how many rows of each episode, the held-out share, the seed. An episode's draw
            depends on the seed and its id only; its last row is always drawn.
        keep: called with each usable episode and its drawn rows.
        needs_task: skip episodes without a task too.
        held_ids: the episodes to hold out; None: the settings decide.

    Raises:
        DataError: no usable episode at all.
    """
    targets, positive, rows, ids, succeeded = [], [], [], [], []
    unmarked, skipped, unseen = [], 0, True
    for episode in episodes:
        target_T = row_targets(episode, settings)
        inputs = episode.states if sees_states(settings) else episode.frames
        unseen &= inputs is None
        if episode.outcome and episode.success is not None and not episode.success.any():
            unmarked.append(int(episode.meta.get("frame_every", 1)))
        if target_T is None or (needs_task and not episode.task.strip()):
            skipped += 1
            continue
        known = np.flatnonzero(np.isfinite(target_T))
        drawn = known[sample_rows(len(known), settings.num_samples_per_episode, settings.seed, episode.id)]
        keep(episode, drawn)
        success = target_T[drawn] > 0.5 if is_classifier(settings) else target_T[known].max() > 0
        targets.append(target_T[drawn])
        positive.append(np.broadcast_to(success, len(drawn)))
        rows.append(drawn)
        ids.append(episode.id)
        succeeded.append(bool(np.nanmax(target_T) > 0))  # by all rows, as `held_out_episodes` finds them again
    if unmarked and not any(some.any() for some in positive):
        raise DataError(no_marks(unmarked, len(ids) + skipped), field="next.success")
    if not ids:
        raise DataError(_none_usable(settings, skipped, needs_task=needs_task, unseen=unseen))
    positive_R = np.concatenate(positive)
    owner = np.repeat(np.arange(len(ids)), list(map(len, rows)))
    if held_ids is None:
        held = held_out(ids, np.array(succeeded, bool), settings.val_split, settings.seed)
    else:
        held = np.isin(ids, list(held_ids))
    return LabelledRows(
        np.concatenate(targets), positive_R, held[owner], owner, np.concatenate(rows), tuple(ids), skipped
    )


def _none_usable(settings: Settings | VLMTrainSettings, skipped: int, *, needs_task: bool, unseen: bool) -> str:
    """The message for a data set without a usable episode; `unseen`: not one has the frames or states."""
    seen = needed = "states" if sees_states(settings) else "frames"
    if needs_task and seen == "frames":
        needed = "frames, a task"
    outcomes = settings.outcomes is not None and not settings.success_at_end
    return no_labels(skipped, f"{needed} and success labels", seen if unseen else "", outcomes=outcomes)


def too_few(episodes: int) -> str:
    """The message for a data set of which none can be held out."""
    return f"{episodes} episode(s) are too few to hold some out: collect more, or set val_split: 0"


def held_out_episodes(episodes: Sequence[Episode], settings: Settings | VLMTrainSettings) -> set[str]:
    """Ids of the episodes that training with these settings held out for validation.

    Args:
        episodes: the whole data set that the model was trained on.
        settings: what it was trained with.
    """
    needs_task = isinstance(settings, VLMTrainSettings)  # as training leaves out episodes without one
    asked = [e for e in episodes if e.task.strip() or not needs_task]
    known = [(e.id, targets) for e in asked if (targets := row_targets(e, settings)) is not None]
    ids, succeeded = [name for name, _ in known], np.array([np.nanmax(targets) > 0 for _, targets in known], bool)
    held = held_out(ids, succeeded, settings.val_split, settings.seed)
    return {name for name, out in zip(ids, held, strict=True) if out}


def held_out(ids: Sequence[str], succeeded: BoolArray, val_split: float, seed: int) -> BoolArray:
    """Which episodes are held out: the same share of those with success and of those without.

    Episodes are ordered by a hash of the seed and their id: their order on disk does not matter. A group of two or
    more episodes gives at least one to each side.
    """
    held = np.zeros(len(ids), bool)
    ranks = np.array([_hash(seed, "split", name) for name in ids], np.uint64)
    for group in (np.flatnonzero(succeeded), np.flatnonzero(~succeeded)):
        if val_split == 0 or len(group) < 2:
            continue
        n = min(max(round(val_split * len(group)), 1), len(group) - 1)
        held[group[np.argsort(ranks[group], kind="stable")[:n]]] = True
    return held if len(set(ids)) == len(ids) else np.isin(ranks, ranks[held])  # of a set given twice, both copies


def sample_rows(length: int, n: int, seed: int, name: str) -> IntArray:
    """Rows drawn from an episode of this name, the last one among them; all where `n` is 0 or enough."""
    if n == 0 or n >= length:
        return np.arange(length)
    rng = np.random.default_rng(_hash(seed, "frames", name))
    return np.sort(np.append(rng.choice(length - 1, n - 1, replace=False), length - 1))


def _hash(seed: int, purpose: str, name: str) -> int:
    text = f"{seed}/{purpose}/{name}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def read_data(settings: Settings | VLMTrainSettings) -> tuple[Iterator[Episode], str]:
    """Episodes of `settings.data_path`, read one by one, and the hashes of the data sets with spaces between them.

    Data sets number their episodes alike: the hash of its set stands in front of each id, but for those of the first.
    """
    outcomes = outcomes_in(settings.outcome_files, at_end=bool(settings.success_at_end))
    hashes = [dataset_hash(path, known) for path, known in zip(settings.data_paths, outcomes, strict=True)]
    frames = not sees_states(settings)

    def episodes() -> Iterator[Episode]:
        for path, known, digest in zip(settings.data_paths, outcomes, hashes, strict=True):
            for episode in read_episodes(path, camera=settings.camera, with_frames=frames, outcomes=known):
                yield episode if digest == hashes[0] else replace(episode, id=f"{digest[:12]}/{episode.id}")

    return episodes(), " ".join(hashes)


# training


@dataclass(frozen=True, eq=False)
class LabelledFrames(LabelledRows):
    """N frames of one size, or states, with their targets.

    Attributes:
        pixels: (N, H, W, 3) uint8, or (N, S) float32.
    """

    pixels: NDArray[Any]

    def batch(self, rows: Sequence[int] | IntArray) -> dict[str, Tensor]:
        """Pixels and targets of these rows."""
        index = np.asarray(rows)
        return {"pixels": torch.from_numpy(self.pixels[index]), "labels": torch.from_numpy(self.targets[index])}


@doing("reading the data")
def labelled_frames(
    episodes: Iterable[Episode], settings: Settings, *, held_ids: Collection[str] | None = None
) -> LabelledFrames:
    """Resize and label the frames, or label the states, of all episodes.

    Args:
        episodes: see `label_rows`.
        settings: see `label_rows`; `image_size` is that of the frames.
        held_ids: see `label_rows`.

    Raises:
        DataError: no usable episode at all, no frame of success, (`resnet`) nothing but success, or states of several
            sizes.
    """
    pixels: list[NDArray[Any]] = []

    def keep(episode: Episode, rows: IntArray) -> None:
        if sees_states(settings):
            states = state_rows_of(episode, settings)
            assert states is not None
            pixels.append(states[rows])
            return
        assert episode.frames is not None
        pixels.append(to_pixels(episode.frames[rows], settings.image_size, channels_last=True))

    rows = label_rows(episodes, settings, keep, held_ids=held_ids)
    rows.check_labels(settings)
    if len(sizes := {part.shape[1:] for part in pixels}) > 1:
        raise DataError(f"the episodes have states of several sizes, {sorted(sizes)}: train on one kind of them")
    return LabelledFrames(**vars(rows), pixels=np.concatenate(pixels))


def train_image_model(
    settings: Settings,
    episodes: Iterable[Episode] | None = None,
    *,
    data_hash: str = "",
    resume: bool = False,
    held_ids: Collection[str] | None = None,
) -> TrainResult:
    """Train on the data sets of `settings.data_path`, or on episodes from anywhere.

    Args:
        settings: everything; see `guerdon.settings.train`.
        episodes: consumed one by one; only their resized frames are kept. None: those of `settings.data_path`.
        data_hash: of given episodes, recorded in the checkpoint.
        resume: continue from the newest complete checkpoint in `save_dir`, like `settings.resume`.
        held_ids: the episodes to hold out; None: the settings decide.

    Raises:
        DataError: no usable episodes, or no example of success.
        ConfigError: resuming with other settings or data than the training started with.
        CheckpointError: `pretrained_path` does not fit.
    """
    if episodes is None:
        episodes, data_hash = read_data(settings)
    start = time.perf_counter()
    frames = labelled_frames(episodes, settings, held_ids=held_ids)
    frames.check_split(settings.val_split)
    same = settings.model_copy(update={"fsdp": False})  # it goes on in any number of processes
    record = {"settings": same.model_dump(mode="json", exclude=_FREE), "data_hash": joint_hash(data_hash)}
    run = TrainingFolder(settings.save_dir, record, resume=resume or settings.resume)
    if run.metrics is not None:
        return TrainResult(run.save_dir, run.metrics)
    run.begin()
    make = partial(seeded_scorer, settings, frames.pixels[~frames.held] if sees_states(settings) else None)
    random = distributed.peers() > 1 and settings.backbone_path is None
    scorer, weights = deferred(make) if random else (make(), None)
    trainer = FrameTrainer(scorer, frames, settings, run.checkpoints, weights)
    run.train(trainer)
    fitted: dict[str, Any] = {}
    if isinstance(settings, ResNetTrainSettings) and settings.calibrated:
        held, labels = frames.held, frames.targets > 0.5
        trainer.calibrate_batch_norm()
        logits = trainer.logits(np.flatnonzero(held))
        fitted = calibrate(scorer, logits, labels[held], frames.episode[held])
    quality = _final_quality(trainer, settings, frames)
    state = trainer.state
    history = [entry for entry in state.log_history if "eval_loss" in entry]
    metrics = {
        **quality,
        "best_epoch": next((float(one["epoch"]) for one in history if one.get("step") == state.best_global_step), None),
        "steps": state.global_step,
        **frames.counts("frames"),
        **fitted,
        "seconds": time.perf_counter() - start,
    }
    if distributed.peers() > 1:
        scorer = _gathered(trainer, scorer, make)
    if trainer.is_world_process_zero():
        save_checkpoint(run.save_dir / "model", scorer, _config(settings, data_hash, frames.pixels))
        run.finish(metrics | {"history": history})
    trainer.accelerator.wait_for_everyone()
    distributed.wait()
    return TrainResult(run.save_dir, metrics)


def _gathered(trainer: FrameTrainer, scorer: ImageScorer, make: Callable[[], ImageScorer]) -> ImageScorer:
    """The whole trained scorer in the first of several processes, which all take part; the same scorer in others."""
    trained = {name.removeprefix("scorer."): tensor for name, tensor in trainer.model.tensors().items()}
    if not trainer.is_world_process_zero():
        return scorer
    scorer = make()
    scorer.load_state_dict(trained, assign=True)
    return scorer


def _final_quality(trainer: FrameTrainer, settings: Settings, frames: LabelledFrames) -> dict[str, float | None]:
    """Loss and quality on the held-out frames, None without any; afterwards batch normalisation is calibrated."""
    names = ("loss", "accuracy", "auroc") if settings.type == "resnet" else ("loss", "mae")
    if not frames.held.any():
        trainer.calibrate_batch_norm()
        return dict.fromkeys(names)
    found = trainer.evaluate()
    return {name: found.get(f"eval_{name}") for name in names}


def _config(settings: Settings, data_hash: str, rows: NDArray[Any]) -> ImageModelConfig:
    same = ("type", "arch", "hidden_dim", "dropout", "image_size", "normalize", "horizon", "within_steps")
    given: dict[str, Any] = {name: getattr(settings, name, None) for name in same}
    return ImageModelConfig(
        **given,
        threshold=getattr(settings, "reward_threshold", None),
        label=label_meaning(settings),
        data_hash=data_hash,
        freeze_backbone=settings.backbone_frozen,
        pretrained=_named(settings.backbone_path),
        state_size=rows.shape[1] if sees_states(settings) else None,
        keys=settings.keys or (),
        actions=bool(settings.actions),
        camera=settings.camera or "",
    )


def _named(path: str | None) -> str:
    """A path of weights; of a packaged model also the name of its converted folder, which ends in its hash."""
    if path is None:
        return ""
    folder = local_model(path)
    return path if folder == path else f"{path} ({Path(folder).name})"


class FrameTrainer(BaseTrainer):
    """Trainer of an image reward model: balanced epochs, early stopping, calibrated evaluation.

    Args:
        scorer: the network, changed in place.
        frames: training and held-out frames.
        settings: everything the user chose.
        folder: receives Trainer's checkpoints; TensorBoard's events go to `tensorboard/` in its parent.
        weights: of a scorer on `meta`, see `FrameNetwork`.

    Raises:
        ConfigError: `fsdp` without several processes.
    """

    rate_key = "train.<name>.learning_rate"

    def __init__(
        self,
        scorer: ImageScorer,
        frames: LabelledFrames,
        settings: Settings,
        folder: Path,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._frames, self._ratio = frames, settings.fail_success_ratio
        device = resolve_device(settings.device)
        sharded = distributed.peers() > 1
        processes = 1 if sharded else distributed.launched()
        if settings.fsdp and not sharded:
            start = "`torchrun --nproc-per-node PROCESSES -m guerdon train ...`, or leave it out"
            raise ConfigError(f"fsdp: true needs several processes, and this is the only one: {start}", key="fsdp")
        distributed.check_device(device)
        train, val = frames.split()
        sampler = BalancedSampler(frames.positive[train], settings.fail_success_ratio, settings.seed)
        # Batch normalisation has no variance of a last batch that is one frame; several processes fill it up.
        lone = processes == 1 and not scorer.frozen and len(sampler) % settings.batch_size == 1 < len(sampler)
        steps_per_epoch = math.ceil(math.ceil(len(sampler) / settings.batch_size) / processes) - lone
        total = min(steps_per_epoch * settings.max_epochs, settings.max_steps or math.inf)
        epochs_between = settings.eval_every or math.ceil(MIN_STEPS_BETWEEN_EVALUATIONS / steps_per_epoch)
        patience = settings.early_stopping_patience if len(val) else None
        bf16 = uses_bf16(settings.bf16, device) and not sees_states(settings)
        recompute(residual_layers(scorer) if settings.gradient_checkpointing else [])
        network: FrameNetwork | HeadNetwork = FrameNetwork(
            scorer, settings.normalize, settings.augmented, weights, offload=settings.cpu_offload
        )
        self._batch: Callable[[Sequence[int] | IntArray], dict[str, Tensor]] = frames.batch
        if scorer.frozen:
            features = frame_features(scorer.to(device), frames.pixels, settings.normalize, bf16=bf16)
            network, self._batch = HeadNetwork(scorer), partial(feature_batch, features, frames.targets)
        self._network = network
        super().__init__(
            network,
            settings,
            folder,
            train,
            val,
            total=int(total),
            every=epochs_between * steps_per_epoch,
            device=device,
            sampler=sampler,
            collate=self._batch,
            callbacks=[] if patience is None else [EarlyStoppingCallback(patience, MIN_DELTA)],
            bf16=bf16 and not scorer.frozen,
            label_names=["labels"],
            dataloader_pin_memory=device.type == "cuda",
            dataloader_drop_last=lone,
        )
        self.compute_metrics = self._metrics
        self._threshold = getattr(settings, "reward_threshold", None)

    def training_step(self, *args: Any, **options: Any) -> Tensor:
        """Trainer's own, with a loss that must be finite; of a model that is sharded, the next method."""
        if distributed.peers() == 1:
            return self.finite(Trainer.training_step(self, *args, **options))
        return self._step_together(*args)

    def _step_together(self, model: nn.Module, inputs: dict[str, Tensor], *_: Any) -> Tensor:
        """Gradients of the mean loss of the batch, of which each process computes an even part."""
        model.train()
        batch = self._prepare_inputs(inputs)
        rows, total = len(batch["labels"]), torch.zeros((), device=self.args.device)
        for here, counts in distributed.dealt(even_parts(rows)):
            part = {name: column[here] for name, column in batch.items()}
            with self.compute_loss_context_manager():
                loss = model(**part)["loss"] * (len(part["labels"]) / rows)
            self.accelerator.backward(loss if counts else loss * 0.0)
            total += loss.detach() * counts
        distributed.sum_gradients(model.parameters())
        return self.finite(distributed.total(total))

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Trainer's own, after calibrating batch normalisation."""
        self.calibrate_batch_norm()
        metrics: dict[str, float] = Trainer.evaluate(self, *args, **options)
        return metrics

    def calibrate_batch_norm(self) -> None:
        """Compute batch normalisation's statistics on training frames: a function of the weights alone."""
        network = self.accelerator.unwrap_model(self.model)
        if not batch_normalizations(network):
            return
        (train, _), size = self._frames.split(), self.args.per_device_train_batch_size
        order = epoch_order(self._frames.positive[train], self._ratio, seed=self.args.seed, epoch=0)
        rows = train[order[:CALIBRATION_FRAMES]]
        augment, network.augment = network.augment, False
        with calibrating(self.model_wrapped), self.compute_loss_context_manager():
            for start in range(0, max(len(rows) - size // 2, 1), size):
                self.model_wrapped(**self._prepare_inputs(self._batch(rows[start : start + size])))
        network.augment = augment

    def logits(self, rows: IntArray) -> NDArray[np.float64]:
        """(N,) logits of frames, in evaluation mode and in float32."""
        network: Any = self._network
        training, parts = network.training, []
        network.eval()
        with torch.inference_mode():
            for start in range(0, len(rows), BATCH):
                batch = self._prepare_inputs(self._batch(rows[start : start + BATCH]))
                found = type(network).forward(network, **batch)  # without the bfloat16 that Trainer wraps around it
                parts.append(found["logits"].double().cpu().numpy())
        network.train(training)
        return np.concatenate(parts)

    def _metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        logits = np.asarray(prediction.predictions, np.float64).reshape(-1)
        values = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
        found = frame_quality(values, np.asarray(prediction.label_ids).reshape(-1), self._threshold)
        return {name: value for name, value in found.items() if value is not None}


def check_episodes(name: str, settings: Settings | VLMTrainSettings, collect: CollectSettings | None) -> None:
    """Refuse episodes that a reward model cannot be trained on, or that cannot be split; missing paths are skipped.

    Args:
        name: of the model.
        settings: its section.
        collect: the section of the study.

    Raises:
        DataError: a path holds something else than a LeRobot data set, without the camera or the labels that are
            needed, or too few episodes to hold some out.
    """
    paths = [Path(path) for path in settings.data_paths]
    if all(path.exists() for path in paths):
        needs_task = isinstance(settings, VLMTrainSettings)
        rows = label_rows(_without_frames(settings), settings, lambda *_: None, needs_task=needs_task)
        rows.check_labels(settings)
        rows.check_split(settings.val_split)
        return
    to_come = collect if collect and paths == [Path(collect.save_dir)] else None
    if to_come is not None and to_come.episodes < 2 and settings.val_split > 0:
        raise DataError(f"train.{name}: {too_few(to_come.episodes)}")


def _without_frames(settings: Settings | VLMTrainSettings) -> Iterator[Episode]:
    """Episodes with a black pixel for each frame that training would decode."""
    outcomes = outcomes_in(settings.outcome_files, at_end=bool(settings.success_at_end))
    for number, (path, known) in enumerate(zip(settings.data_paths, outcomes, strict=True)):
        camera = None if sees_states(settings) else camera_key(path, settings.camera)
        for episode in read_episodes(path, with_frames=False, outcomes=known):
            frames = None if camera is None else np.zeros((len(episode), 1, 1, 3), np.uint8)
            yield replace(episode, id=f"{number}/{episode.id}", frames=frames)
