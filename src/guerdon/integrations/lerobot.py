"""LeRobot: progress beside a data set for weighted cloning, a success classifier for its environments, and its models.

Nothing here imports LeRobot. The `PreTrainedRewardModel` of LeRobot 0.6 is in `guerdon.integrations.lerobot_rewards`.

    path = write_progress_file("data/door", {"model_type": "progress", "checkpoint_path": "runs/door/progress"})
    # lerobot-train ... --use_rabc=true --rabc_progress_path=<path>

    step = RewardClassifierProcessorStep(success_threshold=0.6)      # LeRobot 0.4
    model = {"model_type": "resnet", "checkpoint_path": "runs/door/success"}
    step.reward_classifier = SuccessClassifier(model, image_key="observation.images.front")

    model = LeRobotReward(reward_model, preprocessor, image_key="observation.images.top")    # a RewardModel
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guerdon.config.loading import validate
from guerdon.errors import ConfigError, DataError, boundary
from guerdon.integrations.frame_batches import FrameRewards, picture_of
from guerdon.settings.sample_weighting import RABCSettings
from guerdon.train.rabc import scored_progress
from guerdon.types import ALL_FRAMES, Episode, Failure, RewardInfo, RewardModel, Score

_PICTURES = 64  # in a batch of the classifier


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
    assert settings.model is not None
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


class LeRobotReward:
    """A reward model of LeRobot as one of guerdon: to evaluate, to serve, and as a source of a run.

    `predict_progress`, which LeRobot proposes, gives a value for each row; a row that it marks as invalid makes the
    episode fail. `compute_reward`, of models without it, gives one for the episode. LeRobot's own classifier
    (`reward_classifier`) judges each picture by itself.

    Args:
        model: has one of these two methods; it gets a batch of one episode, the classifier one of its pictures.
        prepare: LeRobot's preprocessor of the model; None: it takes the batch as it is.
        image_key: feature key of the pictures, (1, T, 3, H, W) floats from 0 to 1; of the classifier (B, 3, H, W).
        limits: smallest and largest value.
        states: the model needs `observation.state`, (1, T, S).

    Raises:
        ConfigError: it has neither method, or is a classifier of another camera or several.
    """

    def __init__(
        self,
        model: Any,
        prepare: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
        *,
        image_key: str,
        limits: tuple[float, float] = (0.0, 1.0),
        states: bool = False,
    ) -> None:
        name = str(getattr(model, "name", type(model).__name__))
        self._classifies = name == "reward_classifier"
        progress = hasattr(model, "predict_progress") and not self._classifies
        self._by_row = progress or self._classifies
        found = getattr(model, "predict_progress" if progress else "compute_reward", None)
        if found is None:
            raise ConfigError(f"{type(model).__name__} has neither predict_progress nor compute_reward of LeRobot")
        if self._classifies:
            seen = [key for key in model.config.input_features if key.startswith("observation.image")]
            if seen != [image_key]:
                raise ConfigError(
                    f"image_key {image_key}: the classifier looks at {', '.join(seen)}, and an episode has the "
                    "pictures of one camera: name that one, or train a classifier of one camera",
                    key="image_key",
                )
        self._measure, self._prepare, self._camera = found, prepare or dict, image_key
        self.info = RewardInfo(
            name=name,
            range=limits,
            granularity="step" if self._by_row else "total",
            causal=self._classifies,
            frames_needed=1 if self._classifies else ALL_FRAMES,
            progress=progress,
            states=states,
            camera=image_key,
            success_threshold=0.5 if self._classifies else None,
        )

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, in order."""
        return [self._score(number, episode) for number, episode in enumerate(episodes)]

    def _score(self, number: int, episode: Episode) -> Score:
        if episode.frames is None or not len(episode.frames):
            return Score(failure=Failure("no_frames", "the episode has no frames"))
        if self.info.states and episode.states is None:
            return Score(failure=Failure("no_states", "the episode has no states"))
        try:
            with boundary(DataError, f"{self.info.name} of LeRobot"), torch.no_grad():
                answers = [self._measure(self._prepare(batch)) for batch in self._batches(number, episode)]
                found = torch.cat(answers) if self._classifies else answers[0]
                values = torch.as_tensor(getattr(found, "progress", found)).double().reshape(-1).cpu().numpy()
        except DataError as error:
            return Score(failure=Failure("raised", str(error)))
        if not np.isfinite(values).all():
            return Score(failure=Failure("non_finite", "the values are not finite"))
        if not self._by_row:
            one = len(values) == 1
            return Score(total=float(values[0])) if one else Score(failure=Failure("wrong_length", "not one value"))
        if len(values) != len(episode):
            detail = f"{len(values)} values for {len(episode)} rows: the preprocessor chose among the frames"
            return Score(failure=Failure("wrong_length", detail))
        invalid = sum(int((~flags).sum()) for flags in _validity(found, len(values)))
        if invalid:
            return Score(failure=Failure("invalid", f"{invalid} of {len(values)} rows have no valid progress"))
        return Score.from_values(values, total=float(values[-1]))

    def _batches(self, number: int, episode: Episode) -> Iterator[dict[str, Any]]:
        """The episode as LeRobot's models take it: in one piece, or picture by picture."""
        assert episode.frames is not None
        pieces = range(0, len(episode), _PICTURES) if self._classifies else (0,)
        for start in pieces:
            rows = slice(start, start + _PICTURES) if self._classifies else slice(None)
            batch: dict[str, Any] = {
                self._camera: torch.from_numpy(np.moveaxis(episode.frames[rows], -1, 1)).float() / 255
            }
            if episode.states is not None:
                batch["observation.state"] = torch.from_numpy(np.asarray(episode.states[rows], np.float32))
            if not self._classifies:
                batch = {key: value[None] for key, value in batch.items()} | {"index": 0, "episode_index": number}
            yield batch | {"task": [episode.task] * len(batch[self._camera])}


def _validity(found: Any, rows: int) -> list[torch.Tensor]:
    """The masks of a prediction: its boolean tensors with a flag for each row."""
    parts = vars(found).values() if hasattr(found, "__dict__") else ()
    return [p.reshape(-1) for p in parts if isinstance(p, torch.Tensor) and p.dtype == torch.bool and p.numel() == rows]
