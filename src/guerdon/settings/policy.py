"""The `policy` and `algorithm` sections: what acts, and how it learns."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from guerdon.settings.base import Settings


class MLPPolicySettings(Settings):
    """A Gaussian policy on the state vector."""

    type: Literal["mlp"] = "mlp"
    hidden: tuple[int, ...] = (128, 128)
    activation: Literal["tanh", "relu"] = "tanh"
    log_std_init: float = 0.0
    normalize_observations: bool = True
    checkpoint: str | None = Field(None, description="start from this policy (behaviour cloning, an earlier run)")


class CNNPolicySettings(Settings):
    """A Gaussian policy on rendered frames."""

    type: Literal["cnn"] = "cnn"
    channels: tuple[int, ...] = (32, 64, 64)
    hidden: tuple[int, ...] = (256,)
    activation: Literal["tanh", "relu"] = "relu"
    log_std_init: float = 0.0
    checkpoint: str | None = None


PolicySettings = Annotated[MLPPolicySettings | CNNPolicySettings, Field(discriminator="type")]


class BCSettings(Settings):
    """Behaviour cloning of collected episodes: `guerdon train policy=bc`."""

    data_path: str
    save_dir: str
    epochs: int = Field(50, ge=1)
    batch_size: int = Field(256, ge=1)
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    val_split: float = Field(0.1, gt=0, lt=1)
    only_success: bool = True


class AlgorithmSettings(Settings):
    """`algorithm`: the estimator of advantages and the policy update (PPO, Schulman et al. 2017, 1707.06347)."""

    adv_estimator: Literal["gae", "grpo"] = "gae"
    rollout_steps: int = Field(250, ge=1, description="steps per copy between updates (gae)")
    num_epochs: int = Field(10, ge=1)
    minibatch_size: int = Field(250, ge=1)
    learning_rate: float = Field(1e-3, gt=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    gamma: float = Field(0.99, ge=0, le=1)
    gae_lambda: float = Field(0.95, ge=0, le=1)
    clip_range: float = Field(0.2, gt=0)
    clip_range_high: float | None = Field(None, gt=0, description="upper clip where it differs (DAPO, 2503.14476)")
    clip_range_value: float | None = Field(None, gt=0, description="clip the change of the value; none by default")
    value_coef: float = Field(1.0, ge=0, description="weight of half the mean squared value error")
    entropy_coef: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(0.5, gt=0)
    target_kl: float | None = Field(None, gt=0, description="stop the update when the policy moved this far")
    normalize_advantages: bool = True
    normalize_rewards: bool = Field(False, description="divide each source by the running std of its return")
    group_size: int = Field(8, ge=2, description="episodes with the same start per group (grpo)")
    grpo_std: bool = Field(True, description="divide by the group's standard deviation; off is Dr. GRPO (2503.20783)")

    @model_validator(mode="before")
    @classmethod
    def _nothing_idle(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        critic = {"rollout_steps", "gae_lambda", "clip_range_value", "value_coef"}
        idle = critic if given.get("adv_estimator", "gae") == "grpo" else {"group_size", "grpo_std"}
        present = sorted(idle & set(given))
        if present:
            raise ValueError(
                f"{', '.join(present)} would do nothing with adv_estimator {given.get('adv_estimator', 'gae')}; remove it"
            )
        return given
