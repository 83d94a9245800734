"""The `policy` section of robots, and `bc`."""

from __future__ import annotations

from inspect import signature
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from guerdon.config.registry import Registry
from guerdon.settings.base import PARAMS, Because, ByName, Device, Schedule, Settings, only_with
from guerdon.settings.sample_weighting import RABCSettings
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.settings.vla_policy import VLAPolicySettings

Width = Annotated[int, Field(ge=1, le=65536)]
SMALL: Any = Field(
    "cpu", description="where it computes: auto (a GPU where there is one), cpu, cuda or cuda:1; it acts on the CPU"
)
LOG_STD: Any = Field(
    0.0,
    description="log standard deviation of the actions at the start, in half widths of the Box where it is finite; "
    "refused with discrete actions",
)
KEYS: Any = Field(
    None,
    min_length=1,
    description="keys of dict observations that the policy sees (a.b: b in a); null: all but text",
)


class MLPPolicySettings(Settings):
    """A policy on numbers."""

    left_out: ClassVar[frozenset[str]] = frozenset({"type"})
    type: Literal["mlp"] = Field(
        "mlp",
        description="a network on all that is observed, pictures as numbers, too. Where no type is given and pictures "
        "of 16 x 16 and more are observed, it is cnn",
    )
    hidden: tuple[Width, ...] = Field((128, 128), description="widths of the hidden layers")
    activation: Literal["tanh", "relu"] = Field("tanh", description="between layers")
    log_std_init: float = LOG_STD
    normalize_observations: bool = Field(True, description="by running mean and standard deviation")
    keys: tuple[str, ...] | None = KEYS
    device: Device = SMALL
    checkpoint: str | None = Field(None, description="start from this policy (behaviour cloning, an earlier run)")


class CNNPolicySettings(Settings):
    """A policy on pictures, and on numbers that are observed with them."""

    stored = True
    left_out: ClassVar[frozenset[str]] = frozenset({"shared"})  # so that earlier folders resume
    type: Literal["cnn"] = Field("cnn", description="a network on pictures and on the numbers that are observed")
    channels: tuple[int, ...] = only_with((32, 64, 64), backbone=None, description="of the convolutions")
    backbone: str | None = Field(
        None,
        description="pictures go through this pretrained network, which is not trained, instead of convolutions: "
        "package:efficientnet-lite0, a folder of it, or a folder or hub id of a ResNet of transformers",
    )
    keys: tuple[str, ...] | None = KEYS
    hidden: tuple[Width, ...] = Field((256,), description="widths of the hidden layers after the convolutions")
    activation: Literal["tanh", "relu"] = Field("relu", description="between layers")
    shared: bool = Field(
        False, description="actor and critic share all layers but the last, as usual in Atari games; off: none"
    )
    log_std_init: float = LOG_STD
    device: Device = Field(
        "cpu", description="where it computes and acts: auto (a GPU where there is one), cpu, cuda or cuda:1"
    )
    checkpoint: str | None = Field(None, description="start from this policy")


_GAUSSIAN = Because(False, "a whole policy of your own")


class OwnPolicySettings(Settings):
    """A policy that a user brings: a whole one, or the networks of a Gaussian policy."""

    stored = True
    activation: ClassVar[Literal["tanh"]] = "tanh"  # of stored weights; that of the networks is their own
    type: str = Field(description="a factory of your own")
    params: dict[str, Any] = PARAMS
    log_std_init: float = only_with(0.0, whole=_GAUSSIAN, description=LOG_STD.description)
    normalize_observations: bool = only_with(
        True, whole=_GAUSSIAN, description="of states: by running mean and standard deviation"
    )
    keys: tuple[str, ...] | None = only_with(None, whole=_GAUSSIAN, description=KEYS.description)
    device: Device = only_with(
        "cpu",
        whole=_GAUSSIAN,
        description="where networks compute and act: auto (a GPU where there is one), cpu, cuda or cuda:1; a whole "
        "policy places itself",
    )
    checkpoint: str | None = Field(None, description="start from this policy")

    _known = field_validator("type")(lambda name: POLICIES.known(name))

    @model_validator(mode="after")
    def _checked(self) -> Self:
        POLICIES.check(self.type, self.params)
        return self

    @property
    def whole(self) -> bool:
        """Whether the factory makes a whole policy: a factory of networks has a parameter `outputs`."""
        return "outputs" not in signature(POLICIES.factory(self.type)).parameters


POLICIES: Registry = Registry(
    "policy", "guerdon.policies",
    {
        "mlp": "guerdon.policies.robots.control:build_policy", "cnn": "guerdon.policies.robots.control:build_policy",
        "vla": "guerdon.policies.vla.build:build_vla", "text": "guerdon.policies.language.text_files:load_policy",
    },
    ("observation_shape", "outputs", "action_space", "heads", "auxiliary", "proprioception_size"),
)  # fmt: skip
GaussianPolicySettings = MLPPolicySettings | CNNPolicySettings | OwnPolicySettings
ControlPolicySettings = Annotated[
    MLPPolicySettings | CNNPolicySettings | VLAPolicySettings | OwnPolicySettings, ByName("type", "mlp")
]
PolicySettings = Annotated[
    MLPPolicySettings | CNNPolicySettings | VLAPolicySettings | TextPolicySettings | OwnPolicySettings,
    ByName("type", "mlp"),
]


class BCSettings(Settings):
    """Behaviour cloning of collected episodes: `guerdon train policy=bc`."""

    data_path: str = Field(description="episodes to imitate: a LeRobot data set")
    save_dir: str = Field(description="receives the policy")
    epochs: int = Field(200, ge=1, description="passes over the training episodes")
    batch_size: int = Field(64, ge=1, description="rows per gradient step")
    learning_rate: float = Field(1e-3, gt=0, description="of AdamW")
    lr_scheduler: Schedule = Field("constant", description="how the learning rate falls to 0 over the epochs")
    weight_decay: float = Field(0.0, ge=0, description="of AdamW")
    val_split: float = Field(0.1, gt=0, lt=1, description="share of the episodes held out")
    only_success: bool = Field(True, description="imitate successful episodes only")
    sample_weighting: RABCSettings | None = Field(
        None, description="weigh the moments of demonstrations by a reward model; null: all count alike"
    )
    eval_episodes: int = Field(
        0, ge=0, description="episodes in which the policy's true success is measured, as a run does it; 0: none"
    )
