"""The `reward_model` section: a reward beside the verifier's, for language models.

Names and defaults are PRIME's (2502.01456). Nothing here loads a model.

    RewardModelSection(rm_type="prime", rm_coef=5, prime_model={"path": "runs/sft"})
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from guerdon.settings.base import Settings


class OptimSettings(Settings):
    """`reward_model.prime_model.optim`: how the implicit reward model learns."""

    lr: float = Field(1e-6, gt=0, description="learning rate of AdamW")
    weight_decay: float = Field(0.0, ge=0, description="of AdamW")
    betas: tuple[float, float] = Field((0.9, 0.999), description="of AdamW")
    grad_clip: float = Field(10.0, gt=0, description="clip gradients to this norm")
    epochs: int = Field(1, ge=1, description="passes over the rollouts of an update; only the first is scored by")


class WarmUpSettings(Settings):
    """`reward_model.prime_model.warm_up`: learn from rollouts before the process reward counts."""

    rollouts: int = Field(0, ge=0, description="rollouts of the starting policy to learn from before the first update")
    epochs: int = Field(1, ge=1, description="passes over them")


class PrimeModelSettings(Settings):
    """`reward_model.prime_model`: the implicit process reward model."""

    path: str | None = Field(None, description="where it starts: a folder or hub id; null: the policy's own start")
    ref_type: Literal["freeze", "policy"] = Field(
        "freeze", description="reference: frozen weights of ref_path, or the policy that acted"
    )
    ref_path: str | None = Field(None, description="freeze: a folder or hub id; null: as path")
    update: Literal["none", "before", "after"] = Field(
        "after",
        description="never; before scoring (two forward passes); or from the forward pass that scores (one)",
    )
    beta_train: float = Field(0.05, gt=0, description="beta of the training loss")
    loss_type: Literal["ce", "dpo", "bon_acc", "bon_rm"] = Field("ce", description="of the update")
    use_remove_padding: bool = Field(False, description="forward without padding")
    replay_size: int = Field(0, ge=0, description="rollouts of earlier batches kept to learn from again; 0: none")
    replay_ratio: float = Field(0.5, gt=0, lt=1, description="share of the replayed rollouts in an update")
    optim: OptimSettings = Field(OptimSettings(), description="how it learns")
    warm_up: WarmUpSettings = Field(WarmUpSettings(), description="learn before its reward counts")

    @model_validator(mode="after")
    def _nothing_idle(self) -> PrimeModelSettings:
        given = self.model_fields_set
        if self.ref_type == "policy" and self.ref_path is not None:
            raise ValueError("ref_path would do nothing with ref_type: policy; remove it")
        idle = {"replay_ratio"} if not self.replay_size else set()
        if self.update == "none":
            idle |= {"replay_size"} if not self.warm_up.rollouts else set()
            if not self.warm_up.rollouts:
                idle |= {"beta_train", "loss_type", "optim"}
        present = sorted(idle & given)
        if present:
            why = "replay_size 0" if present == ["replay_ratio"] else "update: none and no warm_up"
            raise ValueError(f"{', '.join(present)} would do nothing with {why}; remove it")
        if self.update == "after" and self.loss_type in ("dpo", "bon_acc", "bon_rm") and self.optim.epochs > 1:
            raise ValueError(f"loss_type {self.loss_type} compares rollouts of one prompt; give optim.epochs: 1")
        return self


class RewardModelSection(Settings):
    """`reward_model`: which model pays beside the verifier, how much, how finely."""

    rm_type: Literal["prime", "value", "normal", "exact"] = Field(
        "prime",
        description="prime: implicit process rewards; value (normal): a sequence classifier that judges the whole "
        "response; exact: true step rewards, where the task knows them",
    )
    rm_coef: float = Field(5.0, gt=0, description="weight of its advantage")
    verifier_coef: float = Field(5.0, ge=0, description="weight of the outcome's advantage; 0: only the model pays")
    rm_coef_schedule: Literal["constant", "linear_decay", "linear_warmup"] = Field(
        "constant", description="how rm_coef changes over the run"
    )
    on_failure: Literal["drop", "neutral", "raise"] = Field(
        "drop",
        description="a measurement failed: leave the response out of this source (drop), reward 0 (neutral), or stop",
    )
    path: str | None = Field(None, description="value, normal: the classifier's folder or hub id")
    prime_granularity: Literal["token", "step", "whole"] = Field(
        "token", description="a reward per token, per step at its end, or one at the end of the response"
    )
    prime_norm: Literal["batch_norm", "none"] = Field(
        "batch_norm", description="divide by the largest absolute return of the batch, or not"
    )
    mini_batch_size: int = Field(256, ge=1, description="responses per gradient step of the model")
    micro_batch_size: int = Field(64, ge=1, description="responses per forward pass of the model")
    prime_model: PrimeModelSettings = Field(PrimeModelSettings(), description="the implicit model")

    @model_validator(mode="before")
    @classmethod
    def _nothing_idle(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        kind = given.get("rm_type", "prime")
        prime = {"prime_norm", "mini_batch_size", "prime_model"}
        idle = {
            "prime": {"path"},
            "value": prime | {"prime_granularity"},
            "normal": prime | {"prime_granularity"},
            "exact": prime | {"path", "micro_batch_size"},
        }.get(kind, set())
        present = sorted(idle & set(given))
        if present:
            raise ValueError(f"{', '.join(present)} would do nothing with rm_type {kind}; remove it")
        return given

    @model_validator(mode="after")
    def _divides(self) -> RewardModelSection:
        if self.rm_type in ("value", "normal") and self.path is None:
            raise ValueError(f"rm_type {self.rm_type} needs path: the folder or hub id of a sequence classifier")
        if self.rm_type == "prime" and self.mini_batch_size % self.micro_batch_size:
            lower = max(k for k in range(1, self.micro_batch_size + 1) if self.mini_batch_size % k == 0)
            raise ValueError(
                f"reward_model.mini_batch_size ({self.mini_batch_size}) must be a multiple of micro_batch_size "
                f"({self.micro_batch_size}), such as {lower}"
            )
        return self
