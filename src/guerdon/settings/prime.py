"""The `reward_model` section: a reward in addition to the verifier's, for language models.

Names and defaults are PRIME's (2502.01456).

    RewardModelSection(rm_type="prime", rm_coef=5, prime_model={"path": "runs/sft"})
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from guerdon.settings.base import Settings, refuse


class OptimSettings(Settings):
    """`reward_model.prime_model.optim`: how the implicit reward model learns."""

    lr: float = Field(1e-6, gt=0, description="learning rate of AdamW")
    weight_decay: float = Field(0.0, ge=0, description="of AdamW")
    betas: tuple[float, float] = Field((0.9, 0.999), description="of AdamW")
    grad_clip: float = Field(10.0, gt=0, description="clip gradients to this norm")
    epochs: int = Field(1, ge=1, description="passes over the rollouts of an update; update: after scores in the first")


class WarmUpSettings(Settings):
    """`reward_model.prime_model.warm_up`: learn from rollouts before the process reward counts."""

    rollouts: int = Field(
        0,
        ge=0,
        description="so many rollouts of the starting policy are written before the first update, those that the "
        "filters leave out included; they count as steps of the run",
    )
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
        description="never; before scoring (two forward passes); after: from the forward pass that scores (one)",
    )
    beta_train: float = Field(0.05, gt=0, description="beta of the training loss")
    loss_type: Literal["ce", "dpo", "bon_acc", "bon_rm"] = Field("ce", description="of the update")
    use_remove_padding: bool = Field(False, description="forward without padding")
    replay_size: int = Field(0, ge=0, description="newest earlier rollouts kept to learn from again; 0: none")
    replay_ratio: float = Field(0.5, gt=0, lt=1, description="share of replayed rollouts in an update")
    optim: OptimSettings = Field(OptimSettings(), description="how it learns")
    warm_up: WarmUpSettings = Field(WarmUpSettings(), description="learn before its reward counts")

    @model_validator(mode="after")
    def _nothing_idle(self) -> PrimeModelSettings:
        if self.ref_type == "policy" and self.ref_path is not None:
            raise ValueError("ref_path would do nothing with ref_type: policy; remove it")
        if self.update == "none":
            idle = {"replay_size", "replay_ratio"} | (set() if self.learns else {"beta_train", "loss_type", "optim"})
            refuse(idle & self.model_fields_set, "update: none" + ("" if self.learns else " and no warm_up"))
            if "epochs" in self.optim.model_fields_set:
                raise ValueError("optim.epochs would do nothing with update: none; give warm_up.epochs")
        if not self.replay_size:
            refuse({"replay_ratio"} & self.model_fields_set, "replay_size 0")
        if self.loss_type != "ce":
            refuse({"replay_size"} & self.model_fields_set, f"loss_type {self.loss_type}, which needs whole groups")
        if not self.warm_up.rollouts and "epochs" in self.warm_up.model_fields_set:
            raise ValueError("warm_up.epochs would do nothing with warm_up.rollouts 0; remove it")
        return self

    @property
    def learns(self) -> bool:
        """Whether the model ever takes a gradient step."""
        return self.update != "none" or self.warm_up.rollouts > 0


class RewardModelSection(Settings):
    """`reward_model`: a reward model in addition to the verifier: which, weight, granularity."""

    rm_type: Literal["prime", "value", "normal", "exact"] = Field(
        "prime",
        description="prime: implicit process rewards; value (normal): a sequence classifier that judges the whole "
        "response; exact: where the task knows, 1 for every token of a line that follows from the lines before it, "
        "whether those are right or not, else 0",
    )
    rm_coef: float = Field(5.0, gt=0, description="weight of its advantage")
    verifier_coef: float = Field(5.0, ge=0, description="weight of the outcome's advantage; 0: none")
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
    prime_norm_shards: int = Field(
        1,
        ge=1,
        description="batch_norm: cut the batch into so many equal parts in order, each with a unit of its own, as "
        "PRIME's data-parallel ranks have; 1: one unit for all",
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
        prime = {"prime_norm", "prime_norm_shards", "mini_batch_size", "prime_model"}
        idle = {
            "prime": {"path"},
            "value": prime | {"prime_granularity"},
            "normal": prime | {"prime_granularity"},
            "exact": prime | {"path", "micro_batch_size", "prime_granularity", "on_failure"},
        }.get(kind, set())
        refuse(idle & set(given), f"rm_type {kind}")
        return given

    @model_validator(mode="after")
    def _divides(self) -> RewardModelSection:
        if self.prime_norm == "none":
            refuse({"prime_norm_shards"} & self.model_fields_set, "prime_norm none")
        if self.rm_type in ("value", "normal") and self.path is None:
            raise ValueError(f"rm_type {self.rm_type} needs path: the folder or hub id of a sequence classifier")
        if self.rm_type == "prime" and self.mini_batch_size % self.micro_batch_size:
            lower = max(k for k in range(1, self.micro_batch_size + 1) if self.mini_batch_size % k == 0)
            raise ValueError(
                f"reward_model.mini_batch_size ({self.mini_batch_size}) must be a multiple of micro_batch_size "
                f"({self.micro_batch_size}), such as {lower}"
            )
        if self.rm_type == "prime" and not self.prime_model.learns:
            refuse({"mini_batch_size"} & self.model_fields_set, "prime_model.update: none and no warm_up")
        return self


SECTION_NAMES = {"prime": "prime", "exact": "exact", "value": "rm", "normal": "rm"}
"""`reward_model.rm_type` to the name of its stream of rewards."""
