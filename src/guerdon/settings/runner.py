"""The `runner` section: how long a run is, what it writes and when, and where its metrics are shown.

RunnerSettings(total_steps=20_000, logger=LoggerSettings(log_path="runs", wandb=True, project="maths"))
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from guerdon.settings.base import Because, FolderName, Seed, Settings, only_with

_SHOWN = Because(True, "wandb and trackio off")


class LoggerSettings(Settings):
    """`runner.logger`: a run writes to `log_path/experiment_name`."""

    log_path: str = Field("runs/study", description="folder of runs; by default work_dir")
    experiment_name: FolderName = Field("run", description="folder of this run inside it")
    tensorboard: bool = Field(True, description="write TensorBoard logs, too")
    wandb: bool = Field(False, description="log to Weights & Biases, too; WANDB_MODE=offline sends nothing")
    trackio: bool = Field(False, description="log to Trackio, too: dashboards on this machine")
    project: str = only_with("guerdon", shown=_SHOWN, description="the project that the run belongs to")

    @property
    def folder(self) -> Path:
        """Where a run writes."""
        return Path(self.log_path) / self.experiment_name

    @property
    def shown(self) -> bool:
        """Whether a program with projects shows the run."""
        return self.wandb or self.trackio


class RunnerSettings(Settings):
    """`runner`: how long, how often, from where."""

    left_out: ClassVar[frozenset[str]] = frozenset({"schedule_steps", "best_episodes"})  # so that earlier runs resume
    logger: LoggerSettings = Field(LoggerSettings(), description="where a run writes")
    seed: Seed = Field(0, description="of weights, exploration and every reset")
    total_steps: int = Field(100_000, ge=1, description="environment steps, all copies together")
    schedule_steps: int | None = Field(
        None,
        ge=1,
        description="environment steps over which schedules go: algorithm.lr_schedule, reward_weight_schedule, the "
        "exploration of dqn; from then on they keep their last value. null: total_steps, of a run that goes on "
        "those that it began with",
    )
    eval_every: int = Field(10_000, ge=1, description="environment steps between evaluations of the policy")
    eval_episodes: int = Field(20, ge=1, description="episodes per evaluation, rounded up to a multiple of num_envs")
    best_episodes: int | None = Field(
        None,
        ge=0,
        description="robots: fresh episodes, from starts that no other ones have, over which the policy of the best "
        "evaluation is evaluated at the end; it is kept in policy_best/. null: eval_episodes; 0: it is not kept",
    )
    checkpoint_every: int = Field(50_000, ge=1, description="environment steps between checkpoints")
    keep_checkpoints: int = Field(2, ge=0, description="newest checkpoints kept; 0: none once the run is complete")
    save_reward_models: bool = Field(True, description="write reward models that were refitted during the run")
    resume_dir: str | None = Field(None, description="start from a checkpoint of another run (two-stage training)")
    # `film_` instead of `video_`: `video_every` below is another key
    film_every: int = Field(0, ge=0, description="environment steps between videos for the report; 0: end only")
    film_frames: int = Field(24, ge=2, description="frames of such a video")
    save_video: bool = Field(
        False, description="robots: write videos of training episodes to videos/, with what was decided and paid"
    )
    video_share: float = only_with(0.1, gt=0, le=1, save_video=True, description="share of the episodes")
    video_every: int = only_with(1, ge=1, save_video=True, description="steps between two frames")
    collective_timeout: float = Field(
        600.0,
        gt=0,
        description="several learners: seconds that one may keep the others waiting; then they end with status 3, and "
        "the run can go on from its last checkpoint",
    )
    threads: int = Field(1, ge=1, le=1024, description="torch threads")
    rollout_shards: int = Field(
        1,
        ge=1,
        description="parts in which every rollout is collected, each with copies or prompts and random numbers of its "
        "own. The numbers of a run depend on it, and not on how many collectors of a cluster share the parts out",
    )
    max_staleness: int = Field(
        0,
        ge=0,
        le=1000,
        description="updates between the weights that collect a rollout and those that learn from it: so many rollouts "
        "are collected ahead, while the learner updates; 0: rollouts and updates take turns",
    )

    @property
    def schedule_length(self) -> int:
        """Environment steps over which schedules go."""
        return self.schedule_steps or self.total_steps

    @property
    def episodes_of_best(self) -> int:
        """Fresh episodes of the best policy; 0: it is not kept."""
        return self.eval_episodes if self.best_episodes is None else self.best_episodes
