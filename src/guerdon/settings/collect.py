"""The `collect` section: episodes from scripted experts, random or noisy actions, or trained policies.

CollectSettings(save_dir="data/window", mixture=[ActorShare(type="expert"), ActorShare(type="random", share=0.5)])
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from guerdon.errors import ConfigError
from guerdon.settings.base import Because, Seed, Settings, only_with

_ACTOR = "an actor of type {}"


class ActorShare(Settings):
    """One kind of actor in a mixture."""

    stored = True
    type: Literal["expert", "noisy", "random", "checkpoint"] = Field(
        description="scripted expert, expert with noise, random actions, or a trained policy"
    )
    share: float = Field(1.0, gt=0, description="its part of the episodes")
    noise: float = only_with(
        0.3,
        ge=0,
        type=Because(("noisy", "checkpoint"), _ACTOR),
        description="standard deviation added to the expert's actions",
    )
    recorded_actions: Literal["executed", "intended"] = only_with(
        "executed",
        type=Because("noisy", _ACTOR),
        description="actions written down, with the noise, or as the expert intended them, so that a clone "
        "learns from states off the expert's path and not from the noise (DART, arXiv 1703.09327)",
    )
    checkpoint: str | None = Field(None, description="type checkpoint: the folder of a policy")
    random_steps: int = Field(0, ge=0, description="up to so many unrecorded random steps before an episode")

    calibration_error: float = only_with(
        0.0,
        ge=0,
        type=Because(("expert", "noisy"), _ACTOR),
        description="metres, standard deviation of a constant error per episode in the hand position that a scripted "
        "expert sees: near misses, which look like success to a model that watches the arm alone",
    )

    @model_validator(mode="after")
    def _fits(self) -> ActorShare:
        if (self.type == "checkpoint") != (self.checkpoint is not None):
            raise ConfigError(
                "an actor of type checkpoint, and only that, needs checkpoint: a policy folder", key="checkpoint"
            )
        return self


class CollectSettings(Settings):
    """`collect`: episodes from scripted experts, random or noisy actions, or trained policies."""

    save_dir: str = Field(description="receives the episodes, as a LeRobot data set")
    episodes: int = Field(50, ge=1, description="episodes in all; an existing data set is continued up to it")
    mixture: tuple[ActorShare, ...] = Field((ActorShare(type="expert"),), description="policies, by shares")
    only_success: bool = Field(False, description="keep successful episodes only")
    frame_every: int = Field(5, ge=1, description="keep every k-th row of an episode and its last")
    stop_after_success: int | None = Field(None, ge=0, description="steps from first success to the end of an episode")
    continuation_limit: int | None = Field(
        None,
        ge=1,
        description="label every kept row by how many steps a scripted expert needs from there to success, up to so "
        "many (Meta-World); progress models learn from it, in failed episodes too",
    )
    video: bool = Field(False, description="MP4 instead of images in Parquet")
    fps: int = Field(20, ge=1, description="rows per second, as the data set declares")
    seed: Seed = Field(0, description="of everything that is drawn")

    def success_readers(self) -> list[str]:
        """The keys, other than those of `env` itself, that need the environment to report true success."""
        given = {"only_success": self.only_success, "stop_after_success": self.stop_after_success is not None}
        return [f"collect.{key}" for key, reads in given.items() if reads]
