"""`runner.logger`: where a run writes, and where its metrics are shown.

For example:

    LoggerSettings(log_path="runs", experiment_name="prime", wandb=True, project="maths")
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from guerdon.settings.base import Because, Settings, only_with

_SHOWN = Because(True, "wandb and trackio off")


class LoggerSettings(Settings):
    """`runner.logger`: a run writes to `log_path/experiment_name`."""

    log_path: str = Field("runs/study", description="folder of runs; by default work_dir")
    experiment_name: str = Field("run", description="folder of this run inside it")
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
