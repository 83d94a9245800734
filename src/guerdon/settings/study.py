"""The root of a configuration: one file describes one study, and every verb reads its own sections.

runner, env, policy, algorithm, reward   what `guerdon run` does
collect, train, evaluate, bc             what comes before it
compare                                  the arms, seeds and tasks of a study
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from guerdon.settings.base import Settings
from guerdon.settings.policy import AlgorithmSettings, BCSettings, MLPPolicySettings, PolicySettings
from guerdon.settings.reward import RewardSettings
from guerdon.settings.train import ImageTrainSettings
from guerdon.settings.world import EnvSettings


class LoggerSettings(Settings):
    """`runner.logger`: a run writes to `log_path/experiment_name`."""

    log_path: str = "runs"
    experiment_name: str = "run"
    tensorboard: bool = True


class RunnerSettings(Settings):
    """`runner`: how long, how often, from where."""

    logger: LoggerSettings = LoggerSettings()
    seed: int = 0
    total_steps: int = Field(100_000, ge=1, description="environment steps, all copies together")
    eval_every: int = Field(10_000, ge=1, description="environment steps between evaluations of the policy")
    eval_episodes: int = Field(20, ge=1)
    checkpoint_every: int = Field(50_000, ge=1, description="environment steps between checkpoints")
    keep_checkpoints: int = Field(2, ge=0, description="newest checkpoints kept; 0 removes them once the run is complete")
    save_reward_models: bool = Field(True, description="write reward models that were refitted during the run")
    resume_dir: str | None = Field(
        None,
        description="start from a checkpoint of another run (two-stage training): policy, optimiser, normalisers",
    )
    film_every: int = Field(
        0, ge=0, description="environment steps between filmed episodes for the report; 0: end only"
    )
    film_frames: int = Field(24, ge=2, description="frames per filmed episode")
    threads: int = Field(1, ge=1, description="torch threads")


class ActorShare(Settings):
    """One kind of actor in a mixture."""

    type: Literal["expert", "noisy", "random", "checkpoint"]
    share: float = Field(1.0, gt=0)
    noise: float = Field(0.3, ge=0, description="noisy: standard deviation added to the expert's actions")
    checkpoint: str | None = None
    random_steps: int = Field(
        0,
        ge=0,
        description="up to this many unrecorded random steps first, so that episodes start from many states",
    )

    calibration_error: float = Field(
        0.0,
        ge=0,
        description="metres, standard deviation of a constant error per episode in the hand position that a scripted "
        "expert sees: near misses, which look like success to a model that watches the arm alone",
    )

    @model_validator(mode="after")
    def _fits(self) -> ActorShare:
        if (self.type == "checkpoint") != (self.checkpoint is not None):
            raise ValueError("an actor of type checkpoint, and only that, needs checkpoint: a policy folder")
        if "noise" in self.model_fields_set and self.type not in ("noisy", "checkpoint"):
            raise ValueError(f"noise would do nothing with an actor of type {self.type}; remove it")
        if self.calibration_error and self.type not in ("expert", "noisy"):
            raise ValueError(f"calibration_error would do nothing with an actor of type {self.type}; remove it")
        return self


class CollectSettings(Settings):
    """`collect`: episodes from scripted experts, random or noisy actions, or trained policies."""

    save_dir: str
    episodes: int = Field(50, ge=1)
    mixture: tuple[ActorShare, ...] = (ActorShare(type="expert"),)
    only_success: bool = False
    frame_every: int = Field(5, ge=1, description="keep every k-th row of an episode and its last")
    stop_after_success: int | None = Field(
        None, ge=0, description="end an episode this many steps after its first success"
    )
    video: bool = Field(False, description="MP4 instead of images in Parquet")
    fps: int = Field(20, ge=1)
    seed: int = 0


class EvaluateSettings(Settings):
    """`evaluate`: how reward models are judged."""

    data_path: str | None = Field(None, description="held-out episodes; none: each model's own validation split")
    reps: int = Field(1000, ge=100, description="bootstrap replications")
    seed: int = 0


class ArmSettings(Settings):
    """One arm of a study: a label and what differs from the rest of the file."""

    label: str
    config: dict[str, Any] = Field(default_factory=dict)


class CompareSettings(Settings):
    """`compare`: arms x seeds x tasks."""

    arms: dict[str, ArmSettings]
    baseline: str
    seeds: tuple[int, ...] = (0, 1, 2)
    tasks: tuple[str, ...] = ()
    parallel: int = Field(0, ge=0, description="jobs at a time; 0: one per core")

    @model_validator(mode="after")
    def _fits(self) -> CompareSettings:
        if self.baseline not in self.arms:
            raise ValueError(f"compare.baseline {self.baseline!r} is not an arm; arms are {', '.join(self.arms)}")
        for name, values in (("seeds", self.seeds), ("tasks", self.tasks)):
            if len(set(values)) != len(values):
                raise ValueError(f"compare.{name} repeats an entry")
        return self


class Study(Settings):
    """A whole configuration file."""

    name: str = "study"
    work_dir: str = Field("runs/study", description="where a study keeps data, models, runs and its report")
    runner: RunnerSettings = RunnerSettings()
    env: EnvSettings = EnvSettings()
    policy: Annotated[PolicySettings, Field()] = MLPPolicySettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    reward: RewardSettings = RewardSettings()
    collect: CollectSettings | None = None
    train: dict[str, ImageTrainSettings] = Field(default_factory=dict)
    bc: BCSettings | None = None
    evaluate: EvaluateSettings = EvaluateSettings()
    compare: CompareSettings | None = None
