"""Episodes to labelled frames: targets, the split by episode, sub-sampling and class balance.

Frames are resized as they are read, so that large data sets stay small in memory. It does not know networks.

    frames = labelled_frames(episodes, "resnet", (3, 64, 64))
    train, val = split_by_episode(frames, val_split=0.2, seed=42)
    order = epoch_order(train.positive, fail_success_ratio=2.0, seed=42, epoch=0)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from guerdon.episodes.targets import no_labels, progress_targets, success_labels
from guerdon.errors import DataError
from guerdon.models.preprocess import to_pixels
from guerdon.settings.train import ProgressTrainSettings, ResNetTrainSettings
from guerdon.settings.vlm import VLMTrainSettings
from guerdon.types import BoolArray, ByteArray, Episode, FloatArray, IntArray

LABELS = {
    "resnet": "1 where the task is done in the frame, from the episode's per-step success; 0 elsewhere",
    "progress": "0 at the first frame of a successful episode, rising linearly to 1 at its first success and "
    "1 from there on; 0 at every frame of a failed episode",
}
NEARNESS = (
    "nearness in time: 1 - (environment steps left until the first success) / {horizon:g}, at least 0, and 1 from the "
    "success on; 0 at every frame of a failed episode"
)


@dataclass(frozen=True, eq=False)
class LabelledFrames:
    """N frames of one size with their targets.

    Attributes:
        pixels: (N, H, W, 3) uint8.
        targets: (N,) float32 in [0, 1].
        positive: (N,) bool: a success frame (`resnet`), or a frame of a successful episode (`progress`).
        episode: (N,) int64, index into `episode_ids`.
        episode_ids: one for each episode.
        skipped: episodes left out because they had no frames or no label.
    """

    pixels: ByteArray
    targets: FloatArray
    positive: BoolArray
    episode: IntArray
    episode_ids: tuple[str, ...]
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: NDArray[Any]) -> LabelledFrames:
        """These frames only (a boolean mask or indices)."""
        return LabelledFrames(
            self.pixels[rows], self.targets[rows], self.positive[rows], self.episode[rows], self.episode_ids
        )


def labelled_frames(
    episodes: Iterable[Episode],
    kind: Literal["resnet", "progress"],
    image_size: tuple[int, int, int],
    *,
    horizon: float | None = None,
    num_samples_per_episode: int = 0,
    seed: int = 0,
) -> LabelledFrames:
    """Resize and label the frames of all episodes.

    Args:
        episodes: read one by one; those without frames or without the labels needed are counted and skipped.
        kind: whose targets.
        image_size: (3, H, W).
        horizon: of `progress` targets, see `guerdon.episodes.targets.progress_targets`.
        num_samples_per_episode: frames drawn from each episode, its last one always among them; 0 for all.
        seed: of that draw; an episode's draw depends on the seed and its id only.

    Raises:
        DataError: no usable episode at all, no frame of success, or (`resnet`) nothing but success.
    """
    pixels, targets, positive, counts, ids, skipped = [], [], [], [], [], 0
    for episode in episodes:
        wanted = _targets(episode, kind, horizon) if episode.frames is not None and len(episode) else None
        if wanted is None or episode.frames is None:
            skipped += 1
            continue
        target_T = np.asarray(wanted, np.float32)
        known_T = np.isfinite(target_T)  # of some rows nobody knows
        frames_T, target_T = episode.frames[known_T], target_T[known_T]
        rows = sample_rows(len(target_T), num_samples_per_episode, seed, episode.id)
        done_T = target_T > 0.5 if kind == "resnet" else np.full(len(target_T), bool(target_T.max() > 0))
        pixels.append(to_pixels(frames_T[rows], image_size, channels_last=True))
        targets.append(target_T[rows])
        positive.append(done_T[rows])
        counts.append(len(rows))
        ids.append(episode.id)
    if not ids:
        raise DataError(no_labels(skipped, "frames and success labels"))
    frames = LabelledFrames(
        pixels=np.concatenate(pixels),
        targets=np.concatenate(targets),
        positive=np.concatenate(positive),
        episode=np.repeat(np.arange(len(ids)), counts),
        episode_ids=tuple(ids),
        skipped=skipped,
    )
    if not frames.positive.any():
        raise DataError(
            f"no success frame in {len(ids)} episodes ({len(frames)} frames): a reward model needs examples "
            "of success; collect with an expert or a better policy"
        )
    if kind == "resnet" and frames.positive.all():
        raise DataError(f"every one of {len(frames)} frames is a success: a classifier needs failures too")
    return frames


def _targets(episode: Episode, kind: Literal["resnet", "progress"], horizon: float | None) -> NDArray[Any] | None:
    return success_labels(episode) if kind == "resnet" else progress_targets(episode, horizon=horizon)


def split_by_episode(frames: LabelledFrames, val_split: float, seed: int) -> tuple[LabelledFrames, LabelledFrames]:
    """Hold out whole episodes, the same share of those with success and of those without.

    Episodes are ordered by a hash of the seed and their id: their order on disk does not matter. A group of
    two or more episodes gives at least one to each side.

    Returns:
        Training and validation frames; the latter are empty when `val_split` is 0.
    """
    succeeded = np.zeros(len(frames.episode_ids), bool)
    succeeded[frames.episode[frames.positive]] = True
    val = held_out(frames.episode_ids, succeeded, val_split, seed)[frames.episode]
    return frames.take(~val), frames.take(val)


def held_out_episodes(
    episodes: Sequence[Episode], settings: ResNetTrainSettings | ProgressTrainSettings | VLMTrainSettings
) -> set[str]:
    """Ids of the episodes that training with these settings held out for validation.

    Args:
        episodes: the whole data set that the model was trained on.
        settings: what it was trained with.
    """
    horizon = None if isinstance(settings, ResNetTrainSettings) else settings.horizon
    kind: Literal["resnet", "progress"] = (
        ("resnet" if settings.question == "completed" else "progress")
        if isinstance(settings, VLMTrainSettings)
        else settings.type
    )
    ids, succeeded = [], []
    for episode in episodes:
        targets = _targets(episode, kind, horizon) if episode.frames is not None and len(episode) else None
        if targets is not None:
            ids.append(episode.id)
            succeeded.append(bool(np.nanmax(np.asarray(targets, np.float32)) > 0))
    held = held_out(ids, np.array(succeeded, bool), settings.val_split, settings.seed)
    return {name for name, out in zip(ids, held, strict=True) if out}


def held_out(ids: Sequence[str], succeeded: BoolArray, val_split: float, seed: int) -> BoolArray:
    """Which episodes are held out: a share of those with success and the same share of those without."""
    held = np.zeros(len(ids), bool)
    ranks = np.array([_hash(seed, "split", name) for name in ids], np.uint64)
    for group in (np.flatnonzero(succeeded), np.flatnonzero(~succeeded)):
        if val_split == 0 or len(group) < 2:
            continue
        n = min(max(round(val_split * len(group)), 1), len(group) - 1)
        held[group[np.argsort(ranks[group], kind="stable")[:n]]] = True
    return held


def balanced_counts(positive_N: BoolArray, fail_success_ratio: float | None) -> tuple[int, int]:
    """Numbers of positive and other frames used per epoch."""
    positives = int(positive_N.sum())
    others = len(positive_N) - positives
    if fail_success_ratio is not None and positives:
        others = min(others, max(round(fail_success_ratio * positives), 1))
    return positives, others


def epoch_order(positive_N: BoolArray, fail_success_ratio: float | None, *, seed: int, epoch: int) -> IntArray:
    """Row indices of one epoch in random order: all positive frames and a fresh draw of the others.

    Args:
        positive_N: (N,) bool.
        fail_success_ratio: at most this many other frames for each positive one; None for all.
        seed: with `epoch`, fixes the draw and the order.
        epoch: counted from 0.
    """
    rng = np.random.default_rng([seed, epoch])
    _, others = balanced_counts(positive_N, fail_success_ratio)
    chosen = rng.choice(np.flatnonzero(~positive_N), others, replace=False)
    return rng.permutation(np.concatenate([np.flatnonzero(positive_N), chosen]).astype(np.int64))


def sample_rows(length: int, n: int, seed: int, name: str) -> IntArray:
    """Rows drawn from an episode of this name, the last one among them; all where `n` is 0 or enough."""
    if n == 0 or n >= length:
        return np.arange(length)
    rng = np.random.default_rng(_hash(seed, "frames", name))
    return np.sort(np.append(rng.choice(length - 1, n - 1, replace=False), length - 1))


def _hash(seed: int, purpose: str, name: str) -> int:
    text = f"{seed}/{purpose}/{name}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
