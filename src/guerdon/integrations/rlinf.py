"""A reward model of guerdon as a `BaseRewardModel` of RLinf, in its reward worker's process.

`register()` adds it to RLinf's registry; RLinf 0.3.0 and its later versions have the same base class and registry.

    reward:
      model: {model_type: guerdon, guerdon: {model_type: resnet, checkpoint_path: runs/door/success}}

RLinf's API worker (`worker_type: api`) needs nothing of this: `guerdon serve` answers it (docs/wire_formats.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from rlinf.models.embodiment import reward as rlinf_reward
from rlinf.models.embodiment.reward.base_reward_model import BaseRewardModel

from guerdon.errors import ConfigError
from guerdon.integrations.frame_batches import FrameRewards, picture_of

NAME = "guerdon"


class RLinfRewardModel(BaseRewardModel):  # type: ignore[misc]
    """Judges `main_images` of an observation, with its `task_descriptions`.

    Args:
        cfg: `reward.model` of RLinf: `guerdon` holds the keys of guerdon's `reward.model`; `image_key` is another
            picture than `main_images`, `tries` the measurements of a picture until it counts as failed (3).
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        keys = cfg.get("guerdon")
        if not keys:
            raise ConfigError.about(
                "reward.model.guerdon", "names the reward model, as in {model_type: resnet, checkpoint_path: ...}"
            )
        self._rewards = FrameRewards(_plain(keys), int(cfg.get("tries", 3)))
        self._key = str(cfg.get("image_key", "main_images"))

    def forward(self, input_data: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
        """Refused: `guerdon train` trains reward models.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("RLinf does not train this reward model: train it with guerdon train")

    def compute_reward(self, observations: Mapping[str, Any]) -> torch.Tensor:
        """(B, 1) float32, as they are: RLinf applies its own threshold and weight.

        Raises:
            RewardFailure: a picture could not be measured. RLinf has no mask for rewards, so its worker stops.
        """
        tasks = observations.get("task_descriptions") or ""
        return self._rewards(picture_of(observations, self._key), tasks)[:, None]


def register() -> None:
    """Add the model to RLinf's registry as `guerdon`."""
    rlinf_reward.reward_model_registry[NAME] = RLinfRewardModel


def _plain(keys: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of OmegaConf as plain values."""
    return {str(k): _plain(v) if isinstance(v, Mapping) or hasattr(v, "items") else v for k, v in keys.items()}
