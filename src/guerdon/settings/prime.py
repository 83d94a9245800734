"""PRIME's implicit process reward model (2502.01456): its keys, with PRIME's names and defaults.

They stand under `model` of a source of `reward.sources` with `model_type: prime`, or in the section `reward_model`.

    PrimeSettings(prime_granularity="step", prime_model={"path": "runs/sft"})
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from guerdon.errors import ConfigError
from guerdon.settings.base import SET, Because, Bf16, Settings, Unless, only_with


class OptimSettings(Settings):
    """`prime_model.optim`: how the implicit reward model learns."""

    lr: float = Field(1e-6, ge=0, description="learning rate of AdamW")
    weight_decay: float = Field(0.0, ge=0, description="of AdamW")
    epochs: int = Field(1, ge=1, description="passes over the rollouts of an update; update: after scores in the first")


class WarmUpSettings(Settings):
    """`prime_model.warm_up`: learn from rollouts before the process reward counts."""

    rollouts: int = Field(
        0,
        ge=0,
        description="rollouts of the starting policy before the first update, filtered ones too; steps of the run",
    )
    epochs: int = only_with(1, ge=1, rollouts=SET, description="passes over them")
    policy_learns: bool = only_with(
        False,
        rollouts=SET,
        description="the policy learns from these rollouts by the outcome and other sources; false: it waits",
    )


_LEARNS = Because(True, "update: none and no warm_up")


class ImplicitModelSettings(Settings):
    """`prime_model`: the implicit process reward model."""

    path: str | None = Field(None, description="where it starts: a folder or hub id; null: the policy's own start")
    ref_type: Literal["freeze", "policy"] = Field(
        "freeze", description="reference: frozen weights of ref_path, or the policy that acted"
    )
    ref_path: str | None = only_with(None, ref_type="freeze", description="a folder or hub id; null: as path")
    update: Literal["none", "before", "after"] = Field(
        "after",
        description="never; before scoring (two forward passes); after: from the forward pass that scores (one)",
    )
    beta_train: float = only_with(0.05, gt=0, learns=_LEARNS, description="beta of the training loss")
    loss_type: Literal["ce", "dpo", "bon_acc", "bon_rm"] = only_with("ce", learns=_LEARNS, description="of the update")
    use_remove_padding: bool = Field(False, description="forward without padding")
    bf16: Bf16 | None = Field(
        None,
        description="compute model and reference in bfloat16, auto: where the hardware has it; null: as the policy. "
        "false: log-ratios are exact to float32, and weights that the policy keeps in bfloat16 are not shared",
    )
    replay_size: int = only_with(
        0,
        ge=0,
        update=Unless("none"),
        loss_type=Because("ce", "loss_type {}, which needs whole groups"),
        description="newest earlier rollouts kept to learn from again; 0: none",
    )
    replay_ratio: float = only_with(
        0.5, gt=0, lt=1, update=Unless("none"), replay_size=SET, description="share of replayed rollouts in an update"
    )
    optim: OptimSettings = only_with(OptimSettings(), learns=_LEARNS, description="how it learns")
    warm_up: WarmUpSettings = Field(WarmUpSettings(), description="learn before its reward counts")

    @model_validator(mode="after")
    def _nothing_idle(self) -> Self:
        if self.ref_type == "policy" and self.bf16 is not None:
            raise ConfigError.about(
                "bf16",
                "cannot be set with ref_type: policy, whose log-probabilities are those of the policy that acted; "
                "set policy.bf16, or ref_type: freeze",
            )
        if self.update == "none" and "epochs" in self.optim.model_fields_set:
            raise ConfigError.about("optim.epochs", "would do nothing with update: none; give warm_up.epochs")
        return self

    @property
    def learns(self) -> bool:
        """Whether the model ever takes a gradient step."""
        return self.update != "none" or self.warm_up.rollouts > 0


class PrimeSettings(Settings):
    """The implicit process reward: granularity, unit, batches and model."""

    prime_granularity: Literal["token", "step", "whole"] = Field(
        "token", description="a reward per token, per step at its end, or one at the end of the response"
    )
    prime_norm: Literal["batch_norm", "clip", "none"] = Field(
        "batch_norm",
        description="divide by the largest absolute return of the batch; clip: cut every reward to plus or minus "
        "prime_clip and divide by that; or neither",
    )
    prime_clip: float = only_with(
        1.0,
        gt=0,
        prime_norm="clip",
        description="a log-ratio counts as at least minus this, in nats, and at most prime_clip_above",
    )
    prime_clip_above: float | None = only_with(
        None,
        ge=0,
        prime_norm="clip",
        description="a log-ratio counts as at most this, in nats; null: prime_clip. 0: rewards are never positive, so "
        "that a policy gains nothing from tokens to which only the reference gives almost no probability",
    )
    prime_norm_shards: int = only_with(
        1,
        ge=1,
        prime_norm="batch_norm",
        description="cut the batch into so many equal parts in order, each with a unit of its own, as "
        "PRIME's data-parallel ranks have; 1: one unit for all",
    )
    mini_batch_size: int = only_with(
        256,
        ge=1,
        learns=Because(True, "prime_model.update: none and no warm_up"),
        description="responses per gradient step of the model",
    )
    micro_batch_size: int = Field(64, ge=1, description="solutions per forward pass")
    prime_model: ImplicitModelSettings = Field(ImplicitModelSettings(), description="the implicit model")

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.mini_batch_size % self.micro_batch_size:
            lower = max(k for k in range(1, self.micro_batch_size + 1) if self.mini_batch_size % k == 0)
            raise ConfigError.about(
                "mini_batch_size",
                f"({self.mini_batch_size}) must be a multiple of micro_batch_size "
                f"({self.micro_batch_size}), such as {lower}",
            )
        return self

    @property
    def learns(self) -> bool:
        """Whether the model ever takes a gradient step."""
        return self.prime_model.learns

    def check_study(self, name: str, *, n_samples: int, estimator: str, greedy: bool, critic: bool) -> None:
        """Refuse what does not go with the rest of a study.

        Args:
            name: of the source.
            n_samples: responses to a prompt.
            estimator: of advantages.
            greedy: whether it compares with greedy responses.
            critic: whether it learns values.

        Raises:
            ValueError: what does not fit, and what to do.
        """
        model = self.prime_model
        if model.loss_type != "ce" and model.learns and self.micro_batch_size % n_samples:
            raise ConfigError(
                f"prime_model.loss_type {model.loss_type} of the reward source {name} compares the responses to a "
                f"prompt: its micro_batch_size ({self.micro_batch_size}) must be a multiple of data.n_samples "
                f"({n_samples}), such as {max(self.micro_batch_size // n_samples, 1) * n_samples}",
                key=f"reward.sources.{name}.model.micro_batch_size",
            )
        if self.prime_norm_shards > 1 and greedy:
            raise ConfigError(
                f"prime_norm_shards of the reward source {name} gives every part of the batch a unit of its own, "
                f"and {estimator} compares with greedy responses that are in none; set it to 1",
                key=f"reward.sources.{name}.model.prime_norm_shards",
            )
        if model.warm_up.policy_learns and critic:
            raise ConfigError(
                f"warm_up.policy_learns of the reward source {name} is not supported with {estimator}, whose critic "
                "learns values of every source from the start; take another algorithm.adv_estimator, or remove it",
                key=f"reward.sources.{name}.model.warm_up.policy_learns",
            )
