"""What trainers of image reward models fit: a whole network, or its head on features that are computed once.

features_N_d = frame_features(scorer, pixels_N_H_W_C, "none", bf16=False)
network = HeadNetwork(scorer)
network(**feature_batch(features_N_d, targets_N, rows))["loss"].backward()
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from guerdon.compute import distributed
from guerdon.compute.devices import seeded
from guerdon.compute.sharding import Shards
from guerdon.models.images.backbone import ImageScorer, inference_copy, random_shift, to_input
from guerdon.policies.batches.passes import slices
from guerdon.settings.train import ProgressTrainSettings, ResNetTrainSettings
from guerdon.types import ByteArray, FloatArray, IntArray

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
        weights: of a scorer on torch's device `meta`, as of `Shards`.
        offload: as of `Shards`.
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
