"""The `policy` and `algorithm` sections of robots."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from guerdon.registry import Registry
from guerdon.settings.base import PARAMS, ByName, Named, Schedule, Settings, refuse
from guerdon.settings.text_policy import TextPolicySettings


class MLPPolicySettings(Settings):
    """A Gaussian policy on the state vector."""

    type: Literal["mlp"] = Field("mlp", description="a network on the state vector")
    hidden: tuple[int, ...] = Field((128, 128), description="widths of the hidden layers")
    activation: Literal["tanh", "relu"] = Field("tanh", description="between layers")
    log_std_init: float = Field(0.0, description="log standard deviation of the actions at the start")
    normalize_observations: bool = Field(True, description="by running mean and standard deviation")
    checkpoint: str | None = Field(None, description="start from this policy (behaviour cloning, an earlier run)")


class CNNPolicySettings(Settings):
    """A Gaussian policy on rendered frames."""

    type: Literal["cnn"] = Field("cnn", description="a network on rendered frames")
    channels: tuple[int, ...] = Field((32, 64, 64), description="of the convolutions")
    hidden: tuple[int, ...] = Field((256,), description="widths of the hidden layers after the convolutions")
    activation: Literal["tanh", "relu"] = Field("relu", description="between layers")
    log_std_init: float = Field(0.0, description="log standard deviation of the actions at the start")
    checkpoint: str | None = Field(None, description="start from this policy")


class OwnPolicySettings(Settings):
    """A Gaussian policy with networks that a user brings, on state vectors or rendered frames."""

    activation: ClassVar[Literal["tanh"]] = "tanh"  # of stored weights; that of the networks is their own
    type: str = Field(description="a factory of your own networks")
    params: dict[str, Any] = PARAMS
    log_std_init: float = Field(0.0, description="log standard deviation of the actions at the start")
    normalize_observations: bool = Field(True, description="of states: by running mean and standard deviation")
    checkpoint: str | None = Field(None, description="start from this policy")

    _known = field_validator("type")(lambda name: POLICIES.known(name))

    @model_validator(mode="after")
    def _checked(self) -> Self:
        POLICIES.check(self.type, self.params)
        return self


POLICIES: Registry = Registry(
    "policy", "guerdon.policies",
    {
        "mlp": "guerdon.policies.control:build_policy", "cnn": "guerdon.policies.control:build_policy",
        "text": "guerdon.policies.text_files:load_policy",
    },
    ("observation_shape", "outputs"),
)  # fmt: skip
ControlPolicySettings = Annotated[MLPPolicySettings | CNNPolicySettings | OwnPolicySettings, ByName("type", "mlp")]
PolicySettings = Annotated[
    MLPPolicySettings | CNNPolicySettings | TextPolicySettings | OwnPolicySettings, ByName("type", "mlp")
]


class BCSettings(Settings):
    """Behaviour cloning of collected episodes: `guerdon train policy=bc`."""

    data_path: str = Field(description="episodes to imitate: a LeRobot data set")
    save_dir: str = Field(description="receives the policy")
    epochs: int = Field(200, ge=1, description="passes over the training episodes")
    batch_size: int = Field(64, ge=1, description="rows per gradient step")
    learning_rate: float = Field(1e-3, gt=0, description="of AdamW")
    weight_decay: float = Field(0.0, ge=0, description="of AdamW")
    val_split: float = Field(0.1, gt=0, lt=1, description="share of the episodes held out")
    only_success: bool = Field(True, description="imitate successful episodes only")


_OF_GRPO = {"group_size", "grpo_std"}
_OF_CRITIC = {"rollout_steps", "gae_lambda", "clip_range_value", "value_coef", "normalize_advantages"}
CONTROL_ESTIMATORS = Registry(
    "estimator", "guerdon.estimators", dict.fromkeys(("gae", "grpo"), "guerdon.rl.advantages:estimators")
)


class AlgorithmSettings(Settings):
    """`algorithm` of a robot policy: estimator and update (PPO, Schulman et al. 2017, 1707.06347)."""

    type: Literal["control"] = Field("control", description="robots; follows from policy.type")
    adv_estimator: Annotated[str, Named(CONTROL_ESTIMATORS)] = Field(
        "gae", description="gae: critic and GAE; grpo: compare episodes with the same start; your own: with the critic"
    )
    estimator_params: dict[str, Any] = PARAMS
    rollout_steps: int = Field(250, ge=1, description="steps per copy between updates (gae)")
    num_epochs: int = Field(10, ge=1, description="passes over a rollout per update")
    minibatch_size: int = Field(250, ge=1, description="steps per gradient step")
    learning_rate: float = Field(1e-3, gt=0, description="of Adam")
    lr_schedule: Schedule = Field("constant", description="how the learning rate falls to 0 over runner.total_steps")
    gamma: float = Field(0.99, ge=0, le=1, description="discount; a source may have its own")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="lambda of GAE (1506.02438)")
    clip_range: float = Field(0.2, gt=0, description="how far the probability ratio may leave 1")
    clip_range_high: float | None = Field(None, gt=0, description="upper clip where it differs (DAPO, 2503.14476)")
    clip_ratio_c: float | None = Field(None, gt=1, description="dual clip (1912.09729): bound for negative advantages")
    clip_range_value: float | None = Field(None, gt=0, description="clip the change of the value; null: not")
    value_coef: float = Field(1.0, ge=0, description="weight of half the mean squared value error")
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    max_grad_norm: float = Field(0.5, gt=0, description="clip gradients to this norm")
    target_kl: float | None = Field(None, gt=0, description="stop the update when the policy moved this far")
    normalize_advantages: bool = Field(True, description="zero mean and unit variance over the batch")
    normalize_rewards: bool = Field(False, description="divide each source by the running std of its return")
    group_size: int = Field(8, ge=2, description="episodes with the same start per group (grpo)")
    grpo_std: bool = Field(True, description="divide by the group's standard deviation; off is Dr. GRPO (2503.20783)")

    loss: ClassVar[Literal["ppo"]] = "ppo"
    loss_agg: ClassVar[Literal["token"]] = "token"  # every step counts alike
    kl_coef: ClassVar[float] = 0.0
    kl_type: ClassVar[Literal["k3"]] = "k3"
    kl_in: ClassVar[Literal["loss"]] = "loss"
    micro_batch_size: ClassVar[None] = None
    rloo_form: ClassVar[Literal["paper"]] = "paper"
    whiten_batch: ClassVar[bool] = False  # each mini-batch is

    @property
    def reward_credit(self) -> Literal["dense", "episode"]:
        """GRPO compares whole episodes."""
        return "episode" if self.adv_estimator == "grpo" else "dense"

    @property
    def standardize(self) -> bool:
        """Whether GRPO divides by the group's standard deviation."""
        return self.grpo_std

    @property
    def normalize_minibatches(self) -> bool:
        """Whether each mini-batch is normalised: GRPO's groups are already."""
        return self.normalize_advantages and self.adv_estimator != "grpo"

    @model_validator(mode="after")
    def _nothing_idle(self) -> AlgorithmSettings:
        name = self.adv_estimator
        idle = {"grpo": {"estimator_params", *_OF_CRITIC}, "gae": {"estimator_params", *_OF_GRPO}}
        refuse(idle.get(name, {"gae_lambda", *_OF_GRPO}) & self.model_fields_set, f"adv_estimator {name}")
        if CONTROL_ESTIMATORS.is_own(name):
            CONTROL_ESTIMATORS.check(name, self.estimator_params)
        return self
