"""The `env` section: what the policy acts in, how it looks and how it ends."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from guerdon.registry import Registry
from guerdon.settings.base import PARAMS, ByName, Named, Settings

WORLDS = Registry(
    "world", "guerdon.worlds",
    {"metaworld": "guerdon.worlds.build:metaworld", "gymnasium": "guerdon.worlds.build:gymnasium_id"},
    ("task", "num_envs", "seed", "max_episode_steps", "frame_size"),
)  # fmt: skip


class DataCollectionSettings(Settings):
    """`env.data_collection`: keep episodes while a policy trains (warm-up and collection in one go)."""

    enabled: bool = Field(False, description="keep episodes")
    save_dir: str | None = Field(None, description="receives them, as a LeRobot data set")
    mode: Literal["train", "eval", "all"] = Field("train", description="of training, of evaluation, or both")
    only_success: bool = Field(False, description="keep successful episodes only")
    sample_rate_success: float = Field(1.0, ge=0, le=1, description="share of successful episodes to keep")
    sample_rate_fail: float = Field(0.1, ge=0, le=1, description="share of failed episodes to keep; unknown: all")
    frame_every: int = Field(5, ge=1, description="keep every k-th row and the last")

    @model_validator(mode="after")
    def _has_a_place(self) -> DataCollectionSettings:
        if self.enabled and not self.save_dir:
            raise ValueError("data_collection.enabled needs data_collection.save_dir: where should episodes go?")
        return self


class EnvSettings(Settings):
    """What all worlds of `env` share: a task in `num_envs` copies."""

    task: str = Field(description="name of the task; of gymnasium: an id")
    task_text: str | None = Field(None, description="the task in words; Meta-World tasks have one")
    num_envs: int = Field(8, ge=1, description="copies stepped together")
    max_episode_steps: int | None = Field(
        200, ge=1, description="time limit of an episode; null: the environment's own"
    )
    native_reward: Literal["sparse", "dense"] = Field(
        "sparse",
        description="sparse: 1 at every step that the environment reports as a success, else 0, and refused where it "
        "reports none; dense: the environment's own",
    )
    end_on_success: bool = Field(
        False,
        description="end the episode at true success; off, so that no ground truth leaks into a learned reward",
    )
    observation: Literal["state", "pixels"] = Field("state", description="what the policy sees")
    frame_size: tuple[int, int] = Field((64, 64), description="height and width of rendered frames")
    data_collection: DataCollectionSettings = Field(
        DataCollectionSettings(), description="keep episodes while a policy trains"
    )

    @property
    def camera_name(self) -> str:
        """How data sets call the camera."""
        return "corner"

    @field_validator("frame_size", mode="before")
    @classmethod
    def _square(cls, value: Any) -> Any:
        sizes = [value, value] if isinstance(value, int) else value
        if isinstance(sizes, list | tuple) and any(
            isinstance(s, bool) or (isinstance(s, int) and s < 8) for s in sizes
        ):
            raise ValueError("frame_size must be 64 or [48, 64] (height, width), at least 8 pixels")
        return sizes


class MetaWorldSettings(EnvSettings):
    """A Meta-World task."""

    success_key: ClassVar[str | None] = None  # Meta-World reports `success` at every step
    type: Literal["metaworld"] = Field("metaworld", description="a Meta-World task")
    task: str = Field("window-close", description="name of the task")
    max_episode_steps: int = Field(200, ge=1, description="time limit of an episode")
    camera: str = Field("corner", description="Meta-World camera that rendered frames come from")
    render_workers: int = Field(0, ge=0, description="rendering processes; 0 renders in the run's own")
    goals_seed: int = Field(0, description="which 50 goals Meta-World draws for the task")

    @property
    def camera_name(self) -> str:
        """How data sets call the camera."""
        return self.camera


class _ReportsSuccess(EnvSettings):
    """Worlds whose `info` reports success under a key that may be named."""

    success_key: str | None = Field(
        None,
        description="key of Gymnasium's `info` that reports true success (a bool, or a number above 0); null: "
        "`success`, else `is_success`. Where an episode has no such key, its success is unknown",
    )


class GymnasiumSettings(_ReportsSuccess):
    """Any Gymnasium id."""

    type: Literal["gymnasium"] = Field("gymnasium", description="any Gymnasium id")
    vectorization: Literal["sync", "async"] = Field("sync", description="copies in this process, or a process each")
    autoreset_mode: Literal["disabled", "next_step", "same_step"] = Field(
        "disabled", description="Gymnasium's convention; only disabled resumes bit-exactly"
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="passed to gymnasium.make")

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.autoreset_mode != "disabled" and self.end_on_success:
            raise ValueError("end_on_success needs autoreset_mode: disabled")
        return self


class OwnWorldSettings(_ReportsSuccess):
    """A world that a user brings."""

    type: Annotated[str, Named(WORLDS)] = Field(description="a factory of your own")
    params: dict[str, Any] = PARAMS

    @model_validator(mode="after")
    def _checked(self) -> Self:
        WORLDS.check(self.type, self.params)
        return self


WorldSettings = Annotated[MetaWorldSettings | GymnasiumSettings | OwnWorldSettings, ByName("type", "metaworld")]
"""`env`: what the policy acts in."""
