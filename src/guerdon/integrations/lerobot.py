"""LeRobot: progress beside a data set for weighted cloning, and a success classifier for its environments.

Nothing here imports LeRobot. The `PreTrainedRewardModel` of LeRobot 0.6 is in `guerdon.integrations.lerobot_rewards`.

    path = write_progress_file("data/door", {"model_type": "progress", "checkpoint_path": "runs/door/progress"})
    # lerobot-train ... --use_rabc=true --rabc_progress_path=<path>

    step = RewardClassifierProcessorStep(success_threshold=0.6)      # LeRobot 0.4
    model = {"model_type": "resnet", "checkpoint_path": "runs/door/success"}
    step.reward_classifier = SuccessClassifier(model, image_key="observation.images.front")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from guerdon.config import validate
from guerdon.errors import ConfigError
from guerdon.integrations.frame_batches import FrameRewards
from guerdon.settings.sample_weighting import RABCSettings
from guerdon.train.rabc import scored_progress
from guerdon.types import RewardModel


def write_progress_file(
    root: Path | str, model: Mapping[str, Any], *, path: Path | str | None = None, camera: str | None = None
) -> Path:
    """Score every row of a data set, and write the Parquet file that LeRobot's weighted cloning (RA-BC) reads.

    It is written once: as long as neither data nor model change, the file stays. A row that cannot be scored is NaN,
    which LeRobot leaves out of its statistics and weighs as 1, with the reason in the column `failure`.

    Args:
        root: folder of a LeRobotDataset v3.
        model: the keys of `reward.model`.
        path: the file; None: `<model_type>_progress.parquet` beside the data.
        camera: that the model looks at; needed only where there are several.

    Returns:
        The file.

    Raises:
        ConfigError: the model judges whole episodes, or another program wrote the file.
    """
    settings = validate(RABCSettings, {"model": dict(model)}, origin="the reward model")
    if settings.model is None:
        raise ConfigError("name the reward model by model_type")
    return scored_progress(Path(root), settings.model, path=None if path is None else Path(path), camera=camera)


class SuccessClassifier:
    """A reward model in the place of the classifier of LeRobot 0.4's `RewardClassifierProcessorStep`.

    Args:
        model: a reward model, or the keys of `reward.model`.
        image_key: which picture of the observation it looks at.
        task: what is asked for, in words.
        tries: measurements of a picture until it counts as failed.
    """

    def __init__(
        self, model: RewardModel | Mapping[str, Any], *, image_key: str, task: str = "", tries: int = 3
    ) -> None:
        self._rewards, self._key, self._task = FrameRewards(model, tries), image_key, task

    def predict_reward(self, images: Mapping[str, torch.Tensor], threshold: float = 0.5) -> torch.Tensor:
        """(B,) 1 where the value lies above the threshold, else 0.

        Raises:
            RewardFailure: a picture could not be measured. LeRobot would otherwise keep the environment's reward.
        """
        return (self._rewards(picture_of(images, self._key), self._task) > threshold).float()


def picture_of(batch: Mapping[str, Any], key: str) -> torch.Tensor:
    """The pictures of one camera.

    Raises:
        ConfigError: there is none of that name.
    """
    if key not in batch:
        raise ConfigError(f"there is no {key!r} in the batch, which has {', '.join(map(str, batch))}: set image_key")
    found: torch.Tensor = batch[key]
    return found


def tasks_of(batch: Mapping[str, Any]) -> str | Sequence[str]:
    """What is asked for, as LeRobot's batches say it."""
    found: str | Sequence[str] = batch.get("task", "")
    return found
