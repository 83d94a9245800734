"""Settings of trainers: `train.<name>`, with a `type` for each kind of reward model, and `sft`.

settings = ResNetTrainSettings(type="resnet", data_path="data/window", save_dir="runs/rm", image_size=64)
settings.image_size   # (3, 64, 64)
StepwiseTrainSettings(save_dir="runs/prm", data_path="data/prm_dataset_method1_HE", lora=LoraSettings())
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from guerdon.errors import ConfigError
from guerdon.settings.base import (
    COLUMNS,
    CPU_OFFLOAD,
    DEVICE,
    GRADIENT_CHECKPOINTING,
    SET,
    Because,
    Bf16,
    Device,
    Schedule,
    Seed,
    Settings,
    Unless,
    as_tuple,
    check_multiple,
    only_with,
    refuse,
)
from guerdon.settings.text_policy import (
    CHAT_TEMPLATE_KWARGS,
    LoraSettings,
    ModelKeys,
    TemplateArguments,
    TextPolicySettings,
)
from guerdon.settings.vlm import MAX_PIXELS, MOST_PIXELS, NFRAMES, TinyVLMSettings, VLMSettings

Arch = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "efficientnet_lite0", "mlp"]
Normalize = Literal["none", "imagenet"]


def parse_image_size(value: Any) -> tuple[int, int, int]:
    """Normalise 128, [128, 128] or [3, 128, 128] to (3, H, W).

    Raises:
        ValueError: for any other shape, sizes below 8 pixels, or another number of channels than 3.
    """
    sizes: list[Any] = []
    if isinstance(value, int):
        sizes = [value]
    elif isinstance(value, list | tuple):
        sizes = list(value)
    if len(sizes) == 1:
        sizes = [sizes[0], sizes[0]]
    if len(sizes) == 2:
        sizes = [3, *sizes]
    whole = all(isinstance(s, int) and not isinstance(s, bool) for s in sizes)
    if len(sizes) != 3 or not whole or sizes[0] != 3 or min(sizes[1:]) < 8:
        raise ValueError(f"image_size must be 128, [128, 128] or [3, 128, 128] (at least 8 pixels), got {value!r}")
    return (sizes[0], sizes[1], sizes[2])


ImageSize = Annotated[tuple[int, int, int], BeforeValidator(parse_image_size)]


class _FitSettings(Settings):
    """What all trainers share."""

    save_dir: str = Field(description="receives `model/`, `metrics.json`, TensorBoard logs and resumable state")
    max_steps: int | None = Field(None, ge=1, description="stop after so many gradient steps; null: no limit")
    log_every: int = Field(10, ge=1, description="gradient steps between logged losses")
    tensorboard: bool = Field(False, description="write TensorBoard logs")
    resume: bool = Field(False, description="continue from the newest whole checkpoint in save_dir, when there is one")


class _TransformerFitSettings(_FitSettings):
    """What trainers of transformers share: of text and of vision-language models."""

    batch_size: int = Field(8, ge=1, description="examples per gradient step")
    micro_batch_size: int | None = Field(
        None, ge=1, description="examples per forward pass, a divisor of batch_size; null: the whole batch"
    )
    lr_scheduler: Schedule = Field("cosine", description="what the learning rate does after the warm-up")
    weight_decay: float = Field(0.0, ge=0, description="of AdamW")
    max_grad_norm: float = Field(1.0, gt=0, description="clip gradients to this norm")

    @model_validator(mode="after")
    def _whole_batches(self) -> Self:
        check_multiple(self.batch_size, self.micro_batch_size)
        return self


class _TextFitSettings(_TransformerFitSettings):
    """What trainers of language models share."""

    epochs: float = only_with(
        3.0, gt=0, max_steps=Because(None, "max_steps"), description="passes over the training data"
    )
    seed: Seed = Field(0, description="of the split, fresh weights, adapters and the order of the examples")


class _FrameFitSettings(_FitSettings):
    """What trainers on frames of episodes share."""

    data_path: str | tuple[str, ...] = Field(description="one or several LeRobot data sets")
    outcomes: str | tuple[str | None, ...] | None = Field(
        None,
        description="file with the columns episode and success, for recordings without outcomes; of several data sets "
        "one each, null where a set says its outcomes",
    )
    success_at_end: bool | None = only_with(
        None,
        outcomes=SET,
        description="the last row of an episode that succeeded is the moment of its success, where no row is marked",
    )
    camera: str | None = Field(None, description="which camera to look through; null: the only one")
    device: Device = DEVICE
    bf16: Bf16 = Field("auto", description="compute in bfloat16; auto: where the hardware has it")
    learning_rate: float = Field(1e-4, gt=0, description="of AdamW")
    val_split: float = Field(0.2, ge=0, lt=1, description="share of the episodes held out; 0: none")
    num_samples_per_episode: int = Field(0, ge=0, description="rows per episode, the last always; 0: all")
    tensorboard: bool = Field(True, description="write TensorBoard logs")
    seed: Seed = Field(42, description="of the split, fresh weights, the batches and the augmentation")

    @property
    def data_paths(self) -> tuple[str, ...]:
        """`data_path` as a tuple."""
        return as_tuple(self.data_path)

    @property
    def outcome_files(self) -> tuple[str | None, ...]:
        """`outcomes` of each data set; null where there is none."""
        if self.outcomes is None:
            return (None,) * len(self.data_paths)
        return (self.outcomes,) if isinstance(self.outcomes, str) else self.outcomes

    @model_validator(mode="after")
    def _outcomes_of_each(self) -> Self:
        sets, files = len(self.data_paths), len(self.outcome_files)
        if sets != files:
            raise ConfigError.about(
                "outcomes", f": {files} files for {sets} data sets; name one for each, null where a set needs none"
            )
        return self


_PICTURES = Because(Unless("mlp"), "arch mlp, which looks at states")
_RESNETS = Because(Unless("mlp", "efficientnet_lite0"), "arch {}, which looks at states or normalises its input itself")


class _ImageTrainSettings(_FrameFitSettings):
    """What both image reward models share."""

    stage: ClassVar = "train.image"
    camera: str | None = only_with(
        None,
        arch=_PICTURES,
        description="which camera to look through, or the key of pictures that are observed; null: the only one",
    )
    keys: tuple[str, ...] | None = only_with(
        None, arch="mlp", description="keys of dict observations to look at (a.b: b in a); null: all numbers"
    )
    actions: bool | None = only_with(None, arch="mlp", description="look at the action that led to a state, too")
    bf16: Bf16 = only_with("auto", arch=_PICTURES, description="compute in bfloat16; auto: where the hardware has it")
    arch: Arch = Field(
        "resnet18",
        description="a residual network, the EfficientNet-lite0 that was trained on ImageNet, or mlp: two layers on "
        "the states of the episodes, without pictures",
    )
    hidden_dim: int | None = Field(256, ge=1, description="width of the head's hidden layer; null: none")
    dropout: float = Field(0.1, ge=0, lt=1, description="in the head, before the last layer")
    image_size: ImageSize = only_with(
        (3, 128, 128), arch=_PICTURES, description="frames are resized to (3, H, W); also 128 or [128, 128]"
    )
    pretrained_path: str | None = only_with(
        None,
        arch=_PICTURES,
        description="weights that the backbone starts from: a transformers ResNet (folder, `package:<name>` or hub id) "
        "or an EfficientNet-lite0 (folder or `package:<name>`); null: random weights, or `package:efficientnet-lite0`",
    )
    freeze_backbone: bool | None = only_with(
        None,
        arch=_PICTURES,
        description="train the head alone: frames pass through the backbone once; null: with efficientnet_lite0",
    )
    normalize: Normalize = only_with(
        "none", arch=_RESNETS, description="`imagenet`: by ImageNet's channel statistics (residual networks)"
    )
    fsdp: bool = only_with(
        False,
        arch=_PICTURES,
        backbone_frozen=Because(False, "a frozen backbone, where only the head is trained"),
        description="shard the model over several processes, which torchrun starts (docs/distributed.md)",
    )
    cpu_offload: bool = CPU_OFFLOAD
    gradient_checkpointing: bool = only_with(
        False,
        arch=Because(Unless("mlp", "efficientnet_lite0"), "arch {}, which is small"),
        backbone_frozen=Because(False, "a frozen backbone, where only the head is trained"),
        description=GRADIENT_CHECKPOINTING.description,
    )
    lr_scheduler: Schedule = Field("constant", description="what the learning rate does after the warm-up")
    warmup: float = Field(0.0, ge=0, lt=1, description="share of the steps over which the learning rate rises")
    weight_decay: float = Field(1e-5, ge=0, description="of AdamW")
    batch_size: int = Field(64, ge=2, description="frames per optimiser step and process; with fsdp, of all")
    max_epochs: int = Field(100, ge=1, description="passes over the (sub-sampled) training frames")
    fail_success_ratio: float | None = Field(2.0, gt=0, description="failures per success and epoch at most; null: all")
    augment: bool = only_with(
        True,
        arch=_PICTURES,
        backbone_frozen=Because(False, "a frozen backbone, through which each frame passes once"),
        description="shift every training frame randomly by up to 4 pixels",
    )
    eval_every: int | None = Field(
        None,
        ge=1,
        description="epochs between evaluations and checkpoints; null: the fewest that take 20 optimiser steps",
    )
    early_stopping_patience: int | None = Field(
        5, ge=1, description="evaluations without an improvement before stopping; null: never stop early"
    )

    @property
    def backbone_path(self) -> str | None:
        """The weights that the backbone starts from; None: random ones."""
        packaged = "package:efficientnet-lite0" if self.arch == "efficientnet_lite0" else None
        return packaged if self.pretrained_path is None else self.pretrained_path

    @property
    def backbone_frozen(self) -> bool:
        """Whether only the head is trained."""
        return self.arch == "efficientnet_lite0" if self.freeze_backbone is None else self.freeze_backbone

    @property
    def augmented(self) -> bool:
        """Whether training frames are shifted; states are not."""
        return self.augment and self.arch != "mlp"

    @model_validator(mode="after")
    def _backbone(self) -> Self:
        if self.arch == "efficientnet_lite0" and any(side % 32 for side in self.image_size[1:]):
            raise ConfigError(
                f"efficientnet_lite0 needs an image_size in multiples of 32, got {self.image_size}", key="image_size"
            )
        if self.backbone_frozen and self.backbone_path is None:
            raise ConfigError.about("freeze_backbone", "with random weights would learn little: give pretrained_path")
        if self.cpu_offload and not self.fsdp:
            raise ConfigError.about(
                "cpu_offload", "would do nothing with fsdp false, where one process trains; remove it"
            )
        asked = "early_stopping_patience" in self.model_fields_set and self.early_stopping_patience is not None
        if self.val_split == 0 and asked:
            raise ConfigError.about("val_split", "0 leaves nothing to stop early on: set early_stopping_patience: null")
        return self


class ResNetTrainSettings(_ImageTrainSettings):
    """Train a success classifier: the probability that a frame shows the task done."""

    type: Literal["resnet"] = "resnet"
    reward_threshold: float = Field(
        0.5, gt=0, lt=1, description="probability above which a frame counts as success; stored in the checkpoint"
    )
    within_steps: int | None = Field(
        None,
        ge=1,
        description="null: success in the frame; a number: learn the probability of success within so many "
        "environment steps from the frame; a demonstration stays positive from its first success on (rows whose future "
        "was not recorded, or that follow a success which a policy in training lost again, are left out)",
    )
    calibrate: bool | None = Field(
        None,
        description="fit the scale of the probabilities to the held-out rows (Platt 1999) and store it in the last "
        "layer; null: where within_steps is given",
    )

    @property
    def calibrated(self) -> bool:
        """Whether probabilities are calibrated."""
        return self.within_steps is not None if self.calibrate is None else self.calibrate

    @model_validator(mode="after")
    def _can_be_calibrated(self) -> Self:
        if self.calibrated and self.val_split == 0:
            raise ConfigError(
                "probabilities are calibrated on held-out rows: val_split must be above 0, or calibrate false",
                key="val_split",
            )
        return self


class ProgressTrainSettings(_ImageTrainSettings):
    """Train a progress regressor: how much of the task a frame shows done, from 0 to 1."""

    type: Literal["progress"] = "progress"
    horizon: float | None = Field(
        None,
        gt=0,
        description="null: regress the share of the way to the first success; a number: nearness in time, rising "
        "from 0 at so many environment steps before success to 1 (better when episodes start from many states)",
    )


ImageTrainSettings = Annotated[ResNetTrainSettings | ProgressTrainSettings, Field(discriminator="type")]


class VLMTrainSettings(_FrameFitSettings, _TransformerFitSettings):
    """Fine-tune a vision-language model into a reward: is the task completed, or how far is it."""

    stage: ClassVar = "train.vlm"
    type: Literal["qwen_vl"] = "qwen_vl"
    path: str | None = Field(None, description="folder or hub id of a Qwen2-VL, Qwen2.5-VL or Qwen3-VL")
    chat_template_kwargs: TemplateArguments = CHAT_TEMPLATE_KWARGS
    tiny: TinyVLMSettings | None = Field(None, description="make a small model in code instead of reading one")
    question: Literal["completed", "progress"] = Field(
        "completed", description="what it learns to answer: yes or no, or a percentage"
    )
    input: Literal["image", "video"] = Field("image", description="single frames, or the episode up to a row")
    nframes: int = only_with(
        NFRAMES, ge=2, le=128, input="video", description="frames of a video, the first and the last among them"
    )
    max_pixels: int = Field(MAX_PIXELS, ge=784, le=MOST_PIXELS, description="larger frames are made smaller")
    fps: float = only_with(4.0, gt=0, input="video", description="frames per second given to the model")
    horizon: float | None = only_with(None, gt=0, question="progress", description="as `horizon` of type progress")
    reward_threshold: float = only_with(
        0.5, gt=0, lt=1, question="completed", description="probability above which a frame succeeds"
    )
    lora: LoraSettings | None = Field(LoraSettings(), description="train adapters; null: train all weights")
    warmup: float = Field(0.1, ge=0, lt=1, description="share of the steps over which the learning rate rises")
    max_epochs: int = Field(10, ge=1, description="passes over the (sub-sampled) training rows")
    fail_success_ratio: float | None = Field(1.0, gt=0, description="failure rows per success row and epoch; null: all")
    eval_every: int | None = Field(None, ge=1, description="gradient steps between evaluations; null: a tenth of all")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.path is None) == (self.tiny is None):
            raise ConfigError("give path (a folder or hub id) or tiny (a model made in code), one of them", key="path")
        return self

    @property
    def prompt_name(self) -> str:
        """The template of question and input."""
        return VLMSettings(question=self.question, input=self.input).prompt_name


class _TextTrainSettings(ModelKeys, _TextFitSettings):
    """What all reward models of text share."""

    stage: ClassVar = "train.text"
    data: ClassVar = "guerdon.train.text:TextData"
    data_path: str | tuple[str, ...] | None = Field(
        None,
        description="solutions in any format that is read: files, folders of files, folders that `datasets` saved, hub "
        "ids; null: what the study's `label` section writes",
    )
    columns: str | dict[str, str] = only_with(default_factory=dict, data_path=SET, description=COLUMNS)
    save_dir: str = Field(
        description="receives `final_checkpoint/`, `checkpoint-N/` and metrics; below `method{X}_{HE|SE}/` where the "
        "data came from `guerdon label`"
    )
    path: str | None = Field(None, description="folder or hub id to start from; null: that of the study's policy")
    quantize: Literal["nf4"] | None = only_with(
        None,
        device=Unless("cpu"),
        description="keep the frozen weights in 4 bits (QLoRA, 2305.14314); needs lora, a GPU and bitsandbytes",
    )
    max_length: int | None = Field(
        None,
        ge=2,
        description="tokens of question and solution; steps beyond it are not trained on, solutions judged as a whole "
        "are left out; both are counted. null: the positions of the model",
    )
    learning_rate: float | None = Field(None, gt=0, description="of AdamW; null: 2e-4 with lora, 1e-5 without")
    weight_decay: float = Field(0.01, ge=0, description="of AdamW")
    batch_size: int = Field(32, ge=1, description="solutions (or pairs) per gradient step")
    warmup: float = Field(0.05, ge=0, lt=1, description="share of the steps over which the learning rate rises")
    val_split: float = Field(0.1, ge=0, lt=1, description="share of the questions held out, by hash; 0: none")
    save_steps: int | None = Field(None, ge=1, description="gradient steps between checkpoints; null: a tenth of all")
    keep_checkpoints: int = Field(2, ge=1, description="newest checkpoints kept, in addition to the best")
    wait_for_gpu: float | None = only_with(
        None,
        gt=0,
        device=("auto", "cuda"),
        description="wait until a GPU has so many GiB of memory free; null: start at once",
    )
    members: int = Field(
        1, ge=1, le=64, description="train so many on one language model, each on a resample of the data"
    )
    members_as: Literal["heads", "adapters"] | None = only_with(
        None,
        members=Unless(1),
        description="what members have of their own: a head; or an adapter (with lora), and a head where there is one. "
        "null: heads; of verdict and implicit, which have none, adapters",
    )
    member_reward: Literal["mean", "lower_bound"] = only_with(
        "mean", members=Unless(1), description="their mean, or the mean minus `deviations` standard deviations"
    )
    deviations: float = only_with(1.0, gt=0, member_reward="lower_bound", description="see member_reward")

    @property
    def members_kind(self) -> Literal["heads", "adapters"]:
        """`members_as`, the default filled in."""
        return self.members_as or ("heads" if isinstance(self, _HeadSettings) else "adapters")

    @model_validator(mode="after")
    def _members_fit(self) -> Self:
        if self.members > 1 and self.members_kind == "adapters" and self.lora is None:
            raise ConfigError.about("members", "are adapters on one language model here: give lora")
        if self.members_as == "heads" and not isinstance(self, _HeadSettings):
            raise ConfigError(
                "this type has no head that members could have: set members_as to adapters", key="members_as"
            )
        return self

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.path is not None and self.tiny is not None:
            raise ConfigError("say path (a model to read) or tiny (a model to make), not both", key="path")
        if self.quantize is not None and self.lora is None:
            raise ConfigError.about("quantize", "freezes the weights, so something else must learn: give lora")
        if self.quantize is not None and self.tiny is not None:
            raise ConfigError.about("quantize", "is for models that are read from path; remove it")
        return self

    @property
    def data_paths(self) -> tuple[str, ...]:
        """`data_path` as a tuple; empty where the `label` section says it."""
        return as_tuple(self.data_path)

    @property
    def rate(self) -> float:
        """The learning rate, the default filled in."""
        return self.learning_rate or (2e-4 if self.lora is not None else 1e-5)

    def start(self, policy: TextPolicySettings) -> TextPolicySettings:
        """The language model to start from.

        Args:
            policy: the study's, which says what these settings leave open.

        Raises:
            ConfigError: neither names one.
        """
        named = self.path is not None or self.tiny is not None
        if not named and not policy.named:
            raise ConfigError(
                f"the model {self.save_dir!r} of the train section names no language model to start from: set its path "
                "to a folder or hub id, or set policy.path",
                key="path",
            )
        keys = {name: getattr(self, name) for name in ModelKeys.model_fields}
        keys |= {"path": self.path, "dropout": policy.dropout, "gpus": policy.gpus}
        if not named:
            keys |= {"path": policy.path, "tiny": policy.tiny, "config_file": policy.config_file}
            keys["chat_template"] = self.chat_template or policy.chat_template
            keys["chat_template_kwargs"] = self.chat_template_kwargs or policy.chat_template_kwargs
        return TextPolicySettings(**keys)


class _HeadSettings(_TextTrainSettings):
    """What models with a head of their own share."""

    head_learning_rate: float | None = Field(None, gt=0, description="of the fresh head; null: learning_rate")
    head_epochs: float = Field(
        0.0,
        ge=0,
        description="passes first, over which the head alone is trained, at a constant rate; they come before `epochs` "
        "(or within `max_steps`)",
    )

    @property
    def head_rate(self) -> float:
        """The head's learning rate, the default filled in."""
        return self.head_learning_rate or self.rate


class _StepSettings(_TextTrainSettings):
    """What models that learn from labels of steps share."""

    labels: Literal["hard", "soft"] = only_with(
        "hard", rewards=Unless("target"), description="train towards 0 and 1, or towards labels from 0 to 1"
    )
    threshold: float | None = only_with(
        None,
        gt=0,
        le=1,
        rewards=Unless("target"),
        labels="hard",
        description="right from here on; null: labels are 0 or 1",
    )
    rewards: Literal["weight", "target", "ignore"] = Field(
        "weight",
        description="what the HE or SE rewards of the data do, where it has any: weight: |reward| weighs the loss of "
        "its step; target: train towards (1 + reward) / 2 instead of the label; ignore: nothing",
    )
    reward_threshold: float = Field(0.5, gt=0, lt=1, description="a step below it is wrong; stored with the model")


class StepwiseTrainSettings(_StepSettings, _HeadSettings):
    """Train a token classifier: a probability per step, read at the step's last token."""

    type: Literal["stepwise"] = "stepwise"
    model: ClassVar = "guerdon.models.text.text_heads:StepwiseModel"


class VerdictTrainSettings(_StepSettings):
    """Train a language model that says CORRECT (+1) or INCORRECT (-1) of each step."""

    type: Literal["verdict"] = "verdict"
    model: ClassVar = "guerdon.models.text.verdict:VerdictModel"


class OutcomeTrainSettings(_HeadSettings):
    """Train a sequence classifier: one number per solution."""

    type: Literal["outcome"] = "outcome"
    model: ClassVar = "guerdon.models.text.text_heads:OutcomeModel"
    loss: Literal["pointwise", "bradley_terry"] = Field(
        "pointwise",
        description="pointwise: is the answer right?; bradley_terry: is the right one of two solutions of a question "
        "the better one?",
    )


class PreferenceTrainSettings(_HeadSettings):
    """Train a sequence classifier to preferences (Bradley and Terry 1952), or to ratings."""

    type: Literal["preference"] = "preference"
    model: ClassVar = "guerdon.models.text.sequence_classifier:PreferenceModel"
    data: ClassVar = "guerdon.train.preferences:PreferenceData"
    data_path: str | tuple[str, ...] = Field(
        description="preferences in any layout of docs/preferences.md: files, folders, hub ids"
    )
    loss: Literal["bradley_terry"] = "bradley_terry"
    ranking: Literal["pairs", "list"] = only_with(
        "pairs",
        attributes={},
        description="what a comparison of several responses teaches: each better one against each worse one, or the "
        "order of all (Plackett and Luce; 2301.11270)",
    )
    length_coef: float = only_with(
        0.0,
        ge=0,
        attributes={},
        ranking="pairs",
        members=1,
        description="train a second head that explains preferences by length, and keep the first free of it (ODIN, "
        "2402.07319): the weight of its two terms; 0: no such head. The second head is not stored",
    )
    margin_coef: float = only_with(
        0.0,
        ge=0,
        attributes={},
        ranking="pairs",
        description="factor of the margins in the data, which the loss requires",
    )
    label_smoothing: float = only_with(
        0.0, ge=0, lt=0.5, attributes={}, ranking="pairs", description="share of the judgements taken to be wrong"
    )
    center_coef: float = only_with(
        0.0, ge=0, attributes={}, ranking="pairs", description="weight of the squared sum of both rewards (2312.09244)"
    )
    attributes: dict[str, float] = Field(
        default_factory=dict,
        description="learn these ratings by regression instead; the reward is their sum with these weights",
    )

    @model_validator(mode="after")
    def _rated_once(self) -> Self:
        if self.attributes:
            refuse({"members"} & self.model_fields_set, "attributes")
        return self


class ImplicitTrainSettings(_TextTrainSettings):
    """Train an implicit process reward model on outcomes alone (2412.01981)."""

    type: Literal["implicit"] = "implicit"
    model: ClassVar = "guerdon.models.text.implicit_text:ImplicitModel"
    loss: Literal["ce", "dpo"] = Field("ce", description="cross-entropy on outcomes, or pairs of right and wrong")
    beta: float = Field(0.05, gt=0, description="factor of the log-ratios")
    read: Literal["cumulative", "single"] = Field(
        "cumulative", description="value of a step: of everything up to its end, or of the step alone"
    )


RATING_WEIGHTS: Any = Field(
    None,
    description="of a model that learned ratings (`attributes`): the reward is their sum with these weights; ratings "
    "that are not named count 0. null: those of its training",
)


class MistakesSettings(Settings):
    """`sft.mistakes`: false beliefs that the demonstrations of generated problems show."""

    facts: float = Field(0.2, gt=0, lt=1, description="share of what a line can compute that is believed wrongly")
    rate: float = Field(0.8, gt=0, le=1, description="how often a wrong belief shows; else the true line is written")
    seed: Seed = Field(0, description="decides which facts, what is believed of them, and where it shows")


class SFTSettings(_TextFitSettings):
    """Supervised fine-tuning on prompts and responses: `guerdon train policy=sft`."""

    save_dir: str = Field(description="receives the policy (`model/`), `metrics.json` and resumable state")
    policy: TextPolicySettings | None = Field(
        None, description="what the training starts from, with the keys of `policy`; null: the `policy` section itself"
    )
    examples: int | None = Field(
        None,
        ge=2,
        description="use the first so many pairs of the training data (with tools each turn is one); null: all",
    )
    mistakes: MistakesSettings | None = Field(
        None, description="generated problems: learn from demonstrations with false beliefs; null: from true solutions"
    )
    batch_size: int = Field(16, ge=1, description="pairs per gradient step")
    max_length: int | None = Field(None, ge=2, description="tokens of a pair; longer pairs are left out and counted")
    learning_rate: float = Field(1e-5, gt=0, description="of AdamW")
    warmup: float = Field(0.03, ge=0, lt=1, description="share of the steps over which the learning rate rises")
    val_split: float = Field(0.05, ge=0, lt=1, description="share of the prompts held out; 0: none")
    eval_every: int | None = Field(None, ge=1, description="gradient steps between evaluations; null: a tenth of all")


TextTrainSettings = (
    StepwiseTrainSettings
    | VerdictTrainSettings
    | OutcomeTrainSettings
    | ImplicitTrainSettings
    | PreferenceTrainSettings
)
TEXT_MODELS: dict[str, str] = {
    kind.model_fields["type"].default: kind.model for kind in get_args(TextTrainSettings)
}  # type to `module:class`; of training and of the cards of trained models
TrainSettings = Annotated[
    ResNetTrainSettings | ProgressTrainSettings | VLMTrainSettings | TextTrainSettings, Field(discriminator="type")
]


def outcome_words(given: Mapping[str, Any], only: Sequence[str], file: str, *, evaluates: bool) -> list[str]:
    """The overrides by which a study takes the outcomes of robots' episodes from a file.

    Args:
        given: the sections as they are written.
        only: names of models; empty: all.
        file: with the outcomes.
        evaluates: for held-out episodes of another data set, where the study has one.

    Raises:
        ConfigError: there is no model of robots.
    """
    evaluate, train = (one if isinstance(one := given.get(name), Mapping) else {} for name in ("evaluate", "train"))
    if evaluates and evaluate.get("data_path") is not None:
        return [f"evaluate.outcomes={json.dumps(file)}"]
    robots = [name for name, one in train.items() if isinstance(one, Mapping) and one.get("type") not in TEXT_MODELS]
    names = [name for name in robots if not only or name in only]
    if not names:
        raise ConfigError(
            f"--outcomes {file} is for reward models of robots in the section train; there is none", key="--outcomes"
        )
    return [f"train.{name}.outcomes={json.dumps(file)}" for name in names]
