"""A reward model of guerdon as a `PreTrainedRewardModel` of LeRobot 0.6, of the type `guerdon`.

Import this module, and LeRobot's factory knows the type: it finds the class by the name of its configuration.

    config = GuerdonConfig(model={"model_type": "progress", "checkpoint_path": "runs/door/progress"},
                           image_key="observation.images.front", device="cpu")
    reward_model = lerobot.rewards.factory.make_reward_model(config)
    reward_model.compute_reward(batch)        # (B,)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from lerobot.configs.rewards import RewardModelConfig
from lerobot.rewards.pretrained import PreTrainedRewardModel

from guerdon.integrations.frame_batches import FrameRewards, picture_of


@RewardModelConfig.register_subclass("guerdon")
@dataclass
class GuerdonConfig(RewardModelConfig):  # type: ignore[misc]
    """Which reward model, and which picture it looks at.

    Attributes:
        model: the keys of `reward.model`, such as `model_type` and `checkpoint_path`.
        image_key: the picture of the batch.
        tries: measurements of a picture until it counts as failed.
    """

    model: dict[str, Any] = field(default_factory=dict)
    image_key: str = "observation.image"
    tries: int = 3


class GuerdonRewardModel(PreTrainedRewardModel):  # type: ignore[misc]
    """Judges the pictures of a batch.

    It has no weights of its own: they stay in the checkpoint that the configuration names. It is trained by
    `guerdon train`, not by LeRobot.

    Args:
        config: which model.
    """

    config_class = GuerdonConfig
    name = "guerdon"

    def __init__(self, config: GuerdonConfig, **kwargs: Any) -> None:
        super().__init__(config)
        self._rewards = FrameRewards(config.model, config.tries)

    def compute_reward(self, batch: dict[str, Any]) -> torch.Tensor:
        """(B,) float32.

        Raises:
            RewardFailure: a picture could not be measured; its `result` has NaN there.
        """
        return self._rewards(picture_of(batch, self.config.image_key), batch.get("task", ""))
