"""Rewards of copies of an environment, one step at a time, for libraries that own the stepping loop.

Shaping, thresholds, the baseline of each episode and the treatment of failures are those of a run's reward source
(`guerdon.rewards.control_sources.ControlReward`): every step is a rollout of length one. The wrappers of Gymnasium and
Stable-Baselines3 only say what happened.

    rewards = StepRewards(model, num_envs=2, reward_mode="per_step", shaping="relative")
    rewards.begin({0: frame, 1: frame})
    found = rewards.step({0: frame}, acted=acted_B, terminated=terminated_B, truncated=truncated_B)
    found.values, found.reasons
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from guerdon.config.loading import validate
from guerdon.episodes.images import rgb_picture
from guerdon.errors import ConfigError, DataError, RewardFailure
from guerdon.integrations.frame_batches import frames_taken
from guerdon.integrations.retries import RetriedModel
from guerdon.models.images.image import ImageRewardModel
from guerdon.models.load import load_source_model
from guerdon.rewards.control_sources import ControlReward
from guerdon.rewards.source import SourceTerms
from guerdon.settings.reward_source import RobotSource
from guerdon.types import BoolArray, ByteArray, FloatArray, RewardModel, Segment

Frames = str | Callable[[Any], Any] | None
"""Where frames come from: a key of the observations, a function of the observation of one copy, or `render()`."""

_IN_MEMORY = {"model_type": "constant"}  # the form of a model that is given as an object; nothing is built from it
_OF_RUNS = {
    "on_failure": "a missing reward is tried again and then raises RewardFailure",
    "reward_weight": "there is one stream of rewards: take reward_coef",
    "reward_weight_schedule": "there is one stream of rewards",
    "schedule_from": "there is one stream of rewards",
    "schedule_to": "there is one stream of rewards",
    "adaptive_weight": "there is one stream of rewards",
    "ends": "it is of what guerdon's own SAC and DQN learn from",
}


@dataclass(frozen=True, eq=False)
class StepResult:
    """What one step of B copies earned.

    Attributes:
        values: (B,) float32, 0 where nothing is paid.
        reasons: copy to why its reward is missing.
    """

    values: FloatArray
    reasons: Mapping[int, str]

    def numbers(self, native_B: np.ndarray, env_weight: float) -> np.ndarray:
        """(B,) rewards with the environment's own added; NaN where one is missing."""
        rewards = np.asarray(self.values + env_weight * np.asarray(native_B), dtype=np.float64)
        rewards[list(self.reasons)] = np.nan
        return rewards

    def check(self, what: str, result: Any) -> None:
        """Raise where a reward is missing.

        Args:
            what: whose rewards, for the message.
            result: what the caller would return, with NaN.

        Raises:
            RewardFailure: a reward is missing.
        """
        if self.reasons:
            raise RewardFailure(what, self.reasons, result=result)


class StepRewards:
    """Rewards of B copies of an environment by a reward model, step by step.

    Args:
        model: a reward model, or the keys of `reward.model` (`{"model_type": "resnet", "checkpoint_path": ...}`).
        num_envs: B.
        task: what is asked for, in words: of all copies, or of each.
        tries: measurements of a frame until it counts as failed.
        gamma: discount of the learner, for `shaping: potential`.
        **source: keys of an entry of `reward.sources`, such as `reward_mode`, `shaping`, `success_reward`.

    Attributes:
        source: the reward source.
        rows: (B,) steps since each episode began.

    Raises:
        ConfigError: an unknown key, or one that would have no effect here; the model does not fit.
    """

    def __init__(
        self,
        model: RewardModel | Mapping[str, Any],
        *,
        num_envs: int,
        task: str | Sequence[str] = "",
        tries: int = 3,
        gamma: float = 0.99,
        **source: Any,
    ) -> None:
        where = "the reward model"
        for key, why in _OF_RUNS.items():
            if key in source:
                raise ConfigError(f"{where}: {key} would do nothing here, because {why}; remove it", key=key)
        by_settings = isinstance(model, Mapping)
        given = {**source, "model": dict(model) if isinstance(model, Mapping) else _IN_MEMORY}
        settings = validate(RobotSource, given, origin=where)
        if settings.refitted is not None:
            raise ConfigError(
                f"{where}: update would do nothing here, because nothing refits the model; remove it", key="update"
            )
        if settings.native_fallback:
            raise ConfigError(
                f"{where}: fallback native is for guerdon's own runs; a missing reward raises here", key="fallback"
            )
        built = load_source_model(settings.model) if by_settings else model
        assert isinstance(built, RewardModel)
        several = settings.reward_mode == "per_step" and built.info.frames_needed > 1
        if several:
            raise ConfigError(
                f"{where}: {built.info.name!r} takes {frames_taken(built.info)} at a time, and a step has "
                "one: use reward_mode terminal or episode",
                key="reward_mode",
            )
        if built.info.states or (isinstance(built, ImageRewardModel) and built.config.state_size is not None):
            raise ConfigError(
                f"{where}: {built.info.name!r} looks at states, and here it gets frames: train one on frames"
            )
        self.source = ControlReward(
            SourceTerms("model", gamma), RetriedModel(built, tries), settings, num_envs=num_envs
        )
        tasks = [task] * num_envs if isinstance(task, str) else list(task)
        if len(tasks) != num_envs:
            raise ConfigError(f"{where}: there are {len(tasks)} tasks for {num_envs} copies", key="task")
        self._tasks = tasks
        self.rows = np.zeros(num_envs, dtype=np.int64)
        self._numbers = np.full(num_envs, -1, dtype=np.int64)
        self._reasons: dict[int, str] = {}

    @property
    def first(self) -> bool:
        """Whether the first row of an episode is scored."""
        return self.source.observes.first and self.source.observes.frames

    def wanted(self, acted_B: BoolArray, done_B: BoolArray) -> BoolArray:
        """(B,) bool, the copies whose frame after the step is scored.

        Args:
            acted_B: copies that took an action, which are not resetting.
            done_B: copies whose episode ended with it.
        """
        observes = self.source.observes
        return observes.selects(self.rows + 1, done_B) & acted_B & observes.frames

    def begin(self, frames: Mapping[int, ByteArray | None]) -> None:
        """Begin episodes, and drop what open ones left.

        Args:
            frames: copies that were reset to their first frames; None where `first` is False.
        """
        segments = []
        for copy, frame in frames.items():
            self.rows[copy] = 0
            self._numbers[copy] += 1
            self._reasons.pop(copy, None)
            segments.append(self._segment(copy, frame, last=False, terminated=False))
        for copy, _, failure in self.source.rewards_of(segments, (len(self.rows), 1)).failures:
            self._reasons[copy] = f"{failure} (of the first frame of the episode, the baseline)"

    def step(
        self,
        frames: Mapping[int, ByteArray],
        *,
        acted: BoolArray,
        terminated: BoolArray,
        truncated: BoolArray,
    ) -> StepResult:
        """What the actions earned. Terminal frames are those of the episode that ended.

        Args:
            frames: copy to its frame after the action, where `wanted` says so.
            acted: (B,) bool; a copy that did not act earns 0 and nothing is scored.
            terminated: (B,) bool, the task ended.
            truncated: (B,) bool, a limit ended the episode.
        """
        done = (terminated | truncated) & acted
        wanted = self.source.observes.selects(self.rows + 1, done) & acted
        self.rows += acted
        segments = [
            self._segment(
                copy, frames.get(copy), seen=wanted[copy], last=wanted[copy] & done[copy],
                terminated=wanted[copy] & terminated[copy],
            )
            for copy in np.flatnonzero(acted).tolist()
        ]  # fmt: skip
        found = self.source.rewards_of(segments, (len(self.rows), 1))
        self._reasons |= {copy: str(failure) for copy, _, failure in found.failures}
        missing = np.flatnonzero(found.failed[:, 0]).tolist()
        return StepResult(found.values[:, 0], {copy: self._reasons.get(copy, "no value yet") for copy in missing})

    def _segment(
        self, copy: int, frame: ByteArray | None, *, last: bool, terminated: bool, seen: bool = True
    ) -> Segment:
        """The row where the copy stands now; where it is not seen, a potential is paid all the same."""
        row, n = int(self.rows[copy]), int(seen)
        picture = np.zeros((1, 1, 3), dtype=np.uint8) if frame is None else frame
        return Segment(
            stream=copy, number=int(self._numbers[copy]), task=self._tasks[copy], start=0, end=0 if row else -1,
            terminated=bool(terminated), finished=bool(last), steps_F=np.array([0 if row else -1])[:n],
            rows_F=np.array([row])[:n], last_F=np.array([bool(last)])[:n], success_F=(None,) * n,
            frames_F=picture[None][:n], states_F=np.zeros((n, 0), dtype=np.float32),
        )  # fmt: skip


class CopyRewards(StepRewards):
    """Rewards of the copies of a vector environment, whose frames are taken when they are needed.

    Args:
        model: see `StepRewards`.
        frames: where they come from; None: `render`.
        render: draws copies as they stand; called once per moment.
        **rewards: see `StepRewards`.
    """

    def __init__(
        self, model: RewardModel | Mapping[str, Any], frames: Frames,
        render: Callable[[Sequence[int]], Sequence[Any]], **rewards: Any,
    ) -> None:  # fmt: skip
        super().__init__(model, **rewards)
        self._frames, self._render = frames, render

    def begin_with(self, begins_B: BoolArray, observations: Any) -> None:
        """Begin episodes in copies that were reset to these observations of all copies."""
        self._begin(begins_B, self._now(begins_B & self.first, observations))

    def follow(
        self,
        observations: Any,
        ends: Mapping[int, tuple[Any, Any]],
        *,
        acted: BoolArray,
        terminated: BoolArray,
        truncated: BoolArray,
        begins: BoolArray,
    ) -> StepResult:
        """What the actions of all copies earned; copies that were reset begin their next episodes.

        Args:
            observations: of all copies, after a reset where the step made one.
            ends: copies that another episode followed within the step: their terminal observations, and the pictures
                that `KeepTerminalFrame` drew (None where there is none).
            acted: see `step`.
            terminated: see `step`.
            truncated: see `step`.
            begins: (B,) bool, copies that were reset.
        """
        wanted = self.wanted(acted, (terminated | truncated) & acted)
        over = np.isin(np.arange(len(wanted)), list(ends))
        now = self._now((wanted & ~over) | (begins & self.first), observations)
        seen = {
            copy: self._terminal(*ends[copy]) if over[copy] else now[copy] for copy in np.flatnonzero(wanted).tolist()
        }
        found = self.step(seen, acted=acted, terminated=terminated, truncated=truncated)
        self._begin(begins, now)
        return found

    def _begin(self, begins_B: BoolArray, frames: Mapping[int, ByteArray]) -> None:
        self.begin({copy: frames.get(copy) for copy in np.flatnonzero(begins_B).tolist()})

    def _now(self, copies_B: BoolArray, observations: Any) -> dict[int, ByteArray]:
        """Copy to its frame as it stands, of those in (B,) `copies_B`, with these observations of all copies."""
        copies: list[int] = np.flatnonzero(copies_B).tolist()
        if self._frames is not None:
            return {copy: frame_of(observation_of(observations, copy), self._frames) for copy in copies}
        drawn = self._render(copies) if copies else ()
        what = "the picture that the environment renders"
        return {copy: checked_frame(picture, what) for copy, picture in zip(copies, drawn, strict=True)}

    def _terminal(self, observation: Any, kept: Any) -> ByteArray:
        """The last frame of an episode that another one followed within the step.

        Raises:
            ConfigError: nothing kept it.
        """
        if self._frames is not None:
            return frame_of(observation, self._frames)
        if kept is None:
            raise ConfigError(
                "this environment resets within the step, so its terminal picture is gone: wrap each copy in "
                "guerdon.worlds.gymnasium_env.KeepTerminalFrame, or say with frames= where it is in the observation"
            )
        return checked_frame(kept, 'info["terminal_frame"]')


def refuse_relabelling(name: str) -> None:
    """Refuse `compute_reward`, which hindsight relabelling (HER) calls to compute rewards for other goals.

    Raises:
        ConfigError: it is that name.
    """
    if name == "compute_reward":
        raise ConfigError(
            "compute_reward (hindsight relabelling, HerReplayBuffer) needs rewards for other goals, and the reward "
            "model has no frames of them: use a replay buffer without relabelling"
        )


def observation_of(observations: Any, copy: int) -> Any:
    """The observation of one copy, from those of all copies."""
    if isinstance(observations, Mapping):
        return {key: observation_of(value, copy) for key, value in observations.items()}
    if isinstance(observations, tuple):
        return tuple(observation_of(value, copy) for value in observations)
    return observations[copy]


def frame_of(observation: Any, frames: str | Callable[[Any], Any]) -> ByteArray:
    """The frame that the observation of one copy holds.

    Raises:
        ConfigError: there is no frame there.
    """
    if not isinstance(frames, str):
        return checked_frame(frames(observation), "frames(observation)", key="frames")
    if not isinstance(observation, Mapping) or frames not in observation:
        had = ", ".join(observation) if isinstance(observation, Mapping) else type(observation).__name__
        raise ConfigError(f"frames={frames!r} is not a key of the observation, which has {had}", key="frames")
    what = f"observation[{frames!r}]"
    if np.ndim(observation[frames]) == 3 and np.shape(observation[frames])[-1] == 4:
        raise ConfigError(
            f"{what} has four channels, RGBA or a stack of grey frames; give it as RGB or grey", key="frames"
        )
    return checked_frame(observation[frames], what, key="frames")


def checked_frame(picture: Any, what: str, *, key: str | None = None) -> ByteArray:
    """A picture as (H, W, 3) uint8.

    Args:
        picture: grey, RGB or RGBA.
        what: it is, for messages.
        key: the argument that names it, if one does.

    Raises:
        ConfigError: it is not such a picture.
    """
    try:
        return rgb_picture(picture)
    except DataError as error:
        raise ConfigError(
            f"{what}: {error}. Make the environment with render_mode='rgb_array', or say with frames= where they are "
            "in the observation",
            key=key,
        ) from error
