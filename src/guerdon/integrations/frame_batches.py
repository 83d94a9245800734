"""A reward for every frame of a batch of pictures, for libraries that hand over tensors.

rewards = FrameRewards({"model_type": "progress", "checkpoint_path": "runs/demo/models/door-close/progress"})
rewards(pictures_B_C_H_W, ["close the door"])           # (B,) float32
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from guerdon.episodes.images import refuse_one_or_several, rgb_frames
from guerdon.errors import ConfigError, DataError, RewardFailure
from guerdon.integrations.retries import RetriedModel
from guerdon.models.load import load_reward_model
from guerdon.models.scores import score_episodes
from guerdon.types import ALL_FRAMES, ByteArray, Episode, RewardInfo, RewardModel


class FrameRewards:
    """A reward model that judges each picture of a batch by itself.

    Args:
        model: a reward model, or the keys of `reward.model`.
        tries: measurements of a picture until it counts as failed.

    Raises:
        ConfigError: the model does not judge single pictures.
    """

    def __init__(self, model: RewardModel | Mapping[str, Any], tries: int = 3) -> None:
        built = load_reward_model(**model) if isinstance(model, Mapping) else model
        info = built.info
        if info.modality == "text" or info.frames_needed > 1:
            taken = "text" if info.modality == "text" else f"{frames_taken(info)} at a time"
            raise ConfigError(f"the reward model {info.name!r} takes {taken}, and here it gets one picture at a time")
        self.model = RetriedModel(built, tries)

    def __call__(self, pictures: torch.Tensor | np.ndarray, tasks: str | Sequence[str] = "") -> torch.Tensor:
        """(B,) float32 values of pictures.

        Args:
            pictures: (B, C, H, W) or (B, H, W, C), uint8 or floats from 0 to 1.
            tasks: what is asked for in each, or in all.

        Raises:
            DataError: they are not such pictures.
            RewardFailure: a picture could not be measured; its `result` has NaN there.
        """
        frames = uint8_frames(pictures)
        words = [tasks] * len(frames) if isinstance(tasks, str) else [str(task) for task in tasks]
        if len(words) != len(frames):
            raise DataError(f"there are {len(words)} tasks for {len(frames)} pictures")
        episodes = [Episode(id=str(i), task=task, frames=frames[i : i + 1]) for i, task in enumerate(words)]
        values = torch.full((len(frames),), torch.nan)
        reasons: dict[int, str] = {}
        for i, score in enumerate(score_episodes(self.model, episodes)):
            value = score.total if score.steps is None else float(score.steps[-1])
            if value is None:
                reasons[i] = str(score.failure)
            else:
                values[i] = value
        if reasons:
            raise RewardFailure("rewards of this batch, by row,", reasons, result=values)
        return values


def frames_taken(info: RewardInfo) -> str:
    """How many frames a value needs, in words."""
    return "all frames of an episode" if info.frames_needed >= ALL_FRAMES else f"{info.frames_needed} frames"


def uint8_frames(pictures: torch.Tensor | np.ndarray) -> ByteArray:
    """(B, H, W, 3) uint8 of pictures; see `rgb_frames`.

    Raises:
        DataError: another shape or kind of number, or floats outside 0..1, as normalised pictures have.
    """
    refuse_one_or_several(tuple(pictures.shape))
    if isinstance(pictures, torch.Tensor):
        found = pictures.detach().cpu()
        return rgb_frames((found.float() if found.is_floating_point() else found).numpy())
    return rgb_frames(pictures)


def picture_of(batch: Mapping[str, Any], key: str) -> torch.Tensor:
    """The pictures of one camera.

    Raises:
        ConfigError: there is none of that name.
    """
    if key not in batch:
        raise ConfigError(
            f"there is no {key!r} in the batch, which has {', '.join(map(str, batch))}: set image_key", key="image_key"
        )
    found: torch.Tensor = batch[key]
    return found
