"""`bc.sample_weighting`: demonstrations weighted by the progress that a reward model sees.

The keys have the names and defaults of LeRobot's section `sample_weighting`.

    RABCSettings(model={"model_type": "progress", "checkpoint_path": "runs/progress"}, chunk_size=10)
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from guerdon.errors import ConfigError
from guerdon.settings.base import Because, Settings, only_with, refuse
from guerdon.settings.reward_models import RemoteModelSettings, RewardModelSettings, side_of
from guerdon.settings.reward_source import OnFailure

OF_RUNS = {"update", "update_params", "labeler", "replay_path"}


class RABCSettings(Settings):
    """Reward-aligned behaviour cloning."""

    type: Literal["rabc"] = Field("rabc", description="reward-aligned behaviour cloning")
    model: RewardModelSettings | None = only_with(
        None,
        recorded_reward=False,
        description="measures the progress of every row, once; null: a file or recorded rewards",
    )
    recorded_reward: bool = Field(
        False,
        description="progress is the environment's own reward as recorded in the episodes, in its own unit: where it "
        "was dense, a reference for learned models",
    )
    progress_path: str | None = only_with(
        None,
        recorded_reward=False,
        description="Parquet file of the progress of every row, as LeRobot's sarm_progress.parquet; with model: where "
        "its values are kept. null: in bc.data_path, <model_type>_progress.parquet, without a model "
        "sarm_progress.parquet",
    )
    head_mode: Literal["sparse", "dense"] = only_with(
        "sparse",
        recorded_reward=False,
        model=Because(None, "model, which has one kind of progress"),
        description="the column of a file that another program wrote: progress_sparse or progress_dense",
    )
    chunk_size: int | None = Field(
        None,
        ge=1,
        description="rows ahead to which progress is compared; null: the actions of a decision of the policy",
    )
    kappa: float = Field(
        0.01,
        ge=0,
        description="a larger change has weight 1, a smaller one less, a negative one 0; in units of progress",
    )
    epsilon: float = Field(1e-6, gt=0, description="smallest spread of the changes, and added to divisors")
    on_failure: OnFailure = Field(
        "drop",
        description="progress of a row is missing: leave out the moments that need it (drop), weight 1 (neutral, as "
        "LeRobot), or stop (raise)",
    )
    max_failure_rate: float = Field(0.1, ge=0, le=1, description="stop when a larger share of the rows has no progress")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        model = self.model
        if model is None:
            return self
        refuse(OF_RUNS & model.model_fields_set, "behaviour cloning: the model stays as it is", "model")
        if side_of(model) != "robot":
            raise ConfigError(
                f"model_type {model.model_type} is for language models: take one that scores robot episodes",
                key="model.model_type",
            )
        if isinstance(model, RemoteModelSettings) and model.remote.fallback == "native":
            raise ConfigError(
                "fallback native would take true success for a missing measurement; remove it",
                key="model.remote.fallback",
            )
        return self
