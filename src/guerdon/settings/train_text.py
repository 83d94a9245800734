"""Settings for fitting reward models of text offline: `train.<name>` with a type of its own for each kind.

For example:

    StepwiseTrainSettings(save_dir="runs/prm", data_path="data/prm_dataset_method1_HE", lora=LoraSettings())
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from guerdon.settings.base import Bf16, Schedule, Settings, as_tuple, check_multiple
from guerdon.settings.text_policy import LoraSettings, TextPolicySettings, TinyModelSettings
from guerdon.settings.train import ProgressTrainSettings, ResNetTrainSettings
from guerdon.settings.vlm import VLMTrainSettings


class _TextTrainSettings(Settings):
    """What all reward models of text share."""

    data_path: str | tuple[str, ...] | None = Field(
        None,
        description="solutions in any format that is read: files, folders of files, folders that `datasets` saved, hub "
        "ids; null: what the study's `label` section writes",
    )
    save_dir: str = Field(
        description="receives `final_checkpoint/`, `checkpoint-N/` and metrics; below `method{X}_{HE|SE}/` where the "
        "data came from `guerdon label`"
    )
    path: str | None = Field(None, description="folder or hub id to start from; null: that of the study's policy")
    tiny: TinyModelSettings | None = Field(None, description="make a small model in code instead of reading one")
    lora: LoraSettings | None = Field(
        None,
        description="train adapters on frozen weights ({} is r 16, alpha 32 on all linear layers); null: all weights",
    )
    quantize: Literal["nf4"] | None = Field(
        None, description="keep the frozen weights in 4 bits (QLoRA, 2305.14314); needs lora, a GPU and bitsandbytes"
    )
    bf16: Bf16 = Field("auto", description="compute in bfloat16; auto: where the hardware has it")
    gradient_checkpointing: bool = Field(False, description="recompute activations backwards: less memory, more time")
    use_remove_padding: bool = Field(False, description="forward without padding: all solutions in one row")
    max_length: int | None = Field(
        None,
        ge=2,
        description="tokens of question and solution; steps beyond it are not trained on, solutions judged as a whole "
        "are left out; both are counted. null: the positions of the model",
    )
    learning_rate: float | None = Field(None, gt=0, description="of AdamW; null: 2e-4 with lora, 1e-5 without")
    weight_decay: float = Field(0.01, ge=0, description="of AdamW")
    batch_size: int = Field(32, ge=1, description="solutions (or pairs) per gradient step")
    micro_batch_size: int | None = Field(
        None, ge=1, description="solutions (or pairs) per forward pass, a divisor of batch_size; null: the whole batch"
    )
    epochs: float = Field(3.0, gt=0, description="passes over the training solutions")
    max_steps: int | None = Field(None, ge=1, description="stop after so many gradient steps, however many epochs")
    lr_scheduler: Schedule = Field("cosine", description="what the learning rate does after the warm-up")
    warmup: float = Field(0.05, ge=0, lt=1, description="share of the steps over which the learning rate rises")
    max_grad_norm: float = Field(1.0, gt=0, description="clip gradients to this norm")
    val_split: float = Field(0.1, ge=0, lt=1, description="share of the questions held out, by hash; 0: none")
    save_steps: int | None = Field(None, ge=1, description="gradient steps between checkpoints; null: a tenth of all")
    keep_checkpoints: int = Field(2, ge=1, description="newest checkpoints kept, in addition to the best")
    log_every: int = Field(10, ge=1, description="gradient steps between logged losses")
    tensorboard: bool = Field(False, description="write TensorBoard logs")
    resume: bool = Field(False, description="continue from the newest whole checkpoint, when there is one")
    wait_for_gpu: float | None = Field(
        None, gt=0, description="wait until a GPU has so many GiB of memory free; null: start at once"
    )
    seed: int = Field(0, ge=0, description="of the split, fresh weights, adapters and the order of the solutions")

    @model_validator(mode="after")
    def _fits(self) -> _TextTrainSettings:
        if self.path is not None and self.tiny is not None:
            raise ValueError("say path (a model to read) or tiny (a model to make), not both")
        if self.quantize is not None and self.lora is None:
            raise ValueError("quantize freezes the weights, so something else must learn: give lora")
        if self.quantize is not None and self.tiny is not None:
            raise ValueError("quantize is for models that are read from path; remove it")
        check_multiple(self.batch_size, self.micro_batch_size)
        return self

    @model_validator(mode="before")
    @classmethod
    def _one_length(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("max_steps") is not None and "epochs" in given:
            raise ValueError("epochs would do nothing beside max_steps; remove one of them")
        return given

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
        """
        named = self.path is not None or self.tiny is not None
        return TextPolicySettings(
            path=self.path if named else policy.path,
            tiny=self.tiny if named else policy.tiny,
            lora=self.lora,
            bf16=self.bf16,
            gradient_checkpointing=self.gradient_checkpointing,
            use_remove_padding=self.use_remove_padding,
        )


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

    labels: Literal["hard", "soft"] = Field("hard", description="train towards 0 and 1, or towards labels from 0 to 1")
    threshold: float | None = Field(None, gt=0, le=1, description="hard: right from here on; null: labels are 0 or 1")
    rewards: Literal["weight", "target", "ignore"] = Field(
        "weight",
        description="what the HE or SE rewards of the data do, where it has any: weight: |reward| weighs the loss of "
        "its step; target: train towards (1 + reward) / 2 instead of the label; ignore: nothing",
    )
    reward_threshold: float = Field(0.5, gt=0, lt=1, description="a step below it is wrong; stored with the model")

    @model_validator(mode="after")
    def _nothing_idle(self) -> _StepSettings:
        given = self.model_fields_set
        if self.threshold is not None and self.labels == "soft":
            raise ValueError("threshold would do nothing with labels: soft; remove it")
        idle = sorted({"labels", "threshold"} & given) if self.rewards == "target" else []
        if idle:
            raise ValueError(f"{', '.join(idle)} would do nothing with rewards: target; remove it")
        return self


class StepwiseTrainSettings(_StepSettings, _HeadSettings):
    """Fit a token classifier: a probability per step, read at the step's last token."""

    type: Literal["stepwise"] = "stepwise"
    model: ClassVar = "guerdon.models.text_heads:StepwiseModel"


class VerdictTrainSettings(_StepSettings):
    """Fit a language model that says CORRECT (+1) or INCORRECT (-1) of each step."""

    type: Literal["verdict"] = "verdict"
    model: ClassVar = "guerdon.models.verdict:VerdictModel"


class OutcomeTrainSettings(_HeadSettings):
    """Fit a sequence classifier: one number per solution."""

    type: Literal["outcome"] = "outcome"
    model: ClassVar = "guerdon.models.text_heads:OutcomeModel"
    loss: Literal["pointwise", "bradley_terry"] = Field(
        "pointwise",
        description="pointwise: is the answer right?; bradley_terry: is the right one of two solutions of a question "
        "the better one?",
    )


class ImplicitTrainSettings(_TextTrainSettings):
    """Fit an implicit process reward model on outcomes alone (2412.01981)."""

    type: Literal["implicit"] = "implicit"
    model: ClassVar = "guerdon.models.implicit_text:ImplicitModel"
    loss: Literal["ce", "dpo"] = Field("ce", description="cross-entropy on outcomes, or pairs of right and wrong")
    beta: float = Field(0.05, gt=0, description="factor of the log-ratios")
    read: Literal["cumulative", "single"] = Field(
        "cumulative", description="score of a step: of everything up to its end, or of the step alone"
    )


TextTrainSettings = StepwiseTrainSettings | VerdictTrainSettings | OutcomeTrainSettings | ImplicitTrainSettings
TEXT_MODELS: dict[str, str] = {
    kind.model_fields["type"].default: kind.model for kind in get_args(TextTrainSettings)
}  # type to `module:class`; of training and of the cards of trained models
TrainSettings = Annotated[
    ResNetTrainSettings | ProgressTrainSettings | VLMTrainSettings | TextTrainSettings, Field(discriminator="type")
]
