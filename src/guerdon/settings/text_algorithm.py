"""The `algorithm` section for language models: the estimator of advantages, the loss and how steps are taken.

Names follow PRIME (2502.01456) and its trainer where they name a key.

    TextAlgorithmSettings(adv_estimator="rloo", learning_rate=5e-7)
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from guerdon.registry import Registry
from guerdon.settings.base import PARAMS, Named, Schedule, Settings, check_multiple

GROUPED = ("rloo", "grpo", "dr_grpo")
_CLIPS = ("clip_range", "clip_range_high", "clip_ratio_c")
_KEYS = ("normalize_advantages", "loss", "loss_agg", "kl_in")
_PAPERS: dict[str, tuple[bool, str, str, str]] = {  # what a name's paper says of these keys
    "rloo": (False, "ppo", "constant", "reward"),  # 2402.14740; with one step per batch, ppo is its REINFORCE
    "grpo": (False, "ppo", "sequence", "loss"),  # 2402.03300
    "dr_grpo": (False, "ppo", "constant", "loss"),  # 2503.20783
    "reinforce": (False, "reinforce", "constant", "reward"),  # Williams 1992
    "reinforce_pp": (True, "ppo", "token", "reward"),  # 2501.03262
    "remax": (False, "reinforce", "constant", "reward"),  # 2310.10505
    "gae": (True, "ppo", "token", "reward"),  # 1707.06347 and 1909.08593
}


ESTIMATORS = Registry("estimator", "guerdon.estimators", dict.fromkeys(_PAPERS, "guerdon.rl.advantages:estimators"))


class AdvParamsSettings(Settings):
    """`algorithm.adv_params`: a discount for each source of reward."""

    verifier_gamma: float | None = Field(None, ge=0, le=1, description="of the outcome reward; null: algorithm.gamma")
    reward_model_gamma: float | None = Field(None, ge=0, le=1, description="of reward_model; null: algorithm.gamma")


class TextAlgorithmSettings(Settings):
    """`algorithm` of a language model. Steps are tokens, an episode is a response."""

    type: Literal["text"] = Field("text", description="language models; follows from policy.type")
    adv_estimator: Annotated[str, Named(ESTIMATORS)] = Field(
        "rloo",
        description="of advantages; each takes dense rewards of several sources, only gae has a critic; the defaults "
        "of normalize_advantages, loss, loss_agg and kl_in are those of its paper",
    )
    estimator_params: dict[str, Any] = PARAMS
    gamma: float = Field(1.0, ge=0, le=1, description="discount per token")
    adv_params: AdvParamsSettings = Field(AdvParamsSettings(), description="a discount for each source")
    gae_lambda: float = Field(1.0, ge=0, le=1, description="gae: lambda")
    rloo_form: Literal["paper", "prime_compat"] = Field(
        "paper",
        description="rloo: leave-one-out of dense rewards as in the paper (eq. 5), or as PRIME's code has it",
    )
    normalize_advantages: bool = Field(
        False,
        description="zero mean and unit variance over the tokens of a batch, after all sources are added; true by "
        "default for reinforce_pp and gae",
    )
    credit: Literal["sum", "min_form"] = Field(
        "sum",
        description="how process rewards of later steps count: discounted sum, or minimum (PURE, 2504.15275)",
    )
    credit_temperature: float = Field(0.1, gt=0, description="min_form: temperature of the soft minimum")
    loss: Literal["ppo", "gspo", "cispo", "reinforce"] = Field(
        "ppo", description="of the policy; reinforce by default for reinforce and remax"
    )
    loss_agg: Literal["token", "sequence", "constant"] = Field(
        "constant",
        description="mean over tokens of the batch (default of reinforce_pp and gae), mean over responses of their "
        "token means (of grpo), or mean over responses of their sums, divided by the length limit",
    )
    clip_range: float = Field(0.2, gt=0, description="how far the probability ratio may leave 1")
    clip_range_high: float | None = Field(None, gt=0, description="upper clip where it differs (DAPO, 2503.14476)")
    clip_ratio_c: float | None = Field(None, gt=1, description="dual clip (1912.09729): bound for negative advantages")
    kl_coef: float = Field(0.0, ge=0, description="weight of the KL from the reference policy (the start of the run)")
    kl_type: Literal["k1", "k2", "k3"] = Field("k3", description="estimator in the loss (Schulman 2020)")
    kl_in: Literal["loss", "reward"] = Field(
        "loss", description="where the KL enters; in the reward by default, but for grpo, dr_grpo and with kl_type"
    )
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    num_epochs: int = Field(1, ge=1, description="passes over a batch per update")
    minibatch_size: int | None = Field(None, ge=1, description="responses per gradient step; null: the whole batch")
    micro_batch_size: int | None = Field(None, ge=1, description="responses per forward pass; null: minibatch_size")
    learning_rate: float = Field(1e-6, gt=0, description="of AdamW")
    lr_schedule: Schedule = Field("constant", description="how the learning rate falls to 0 over runner.total_steps")
    weight_decay: float = Field(0.0, ge=0, description="of AdamW")
    betas: tuple[float, float] = Field((0.9, 0.999), description="of AdamW")
    max_grad_norm: float = Field(1.0, gt=0, description="clip gradients to this norm")
    value_coef: float = Field(0.5, ge=0, description="gae: weight of the value loss")

    target_kl: ClassVar[None] = None
    clip_range_value: ClassVar[None] = None
    normalize_minibatches: ClassVar[bool] = False  # the batch is, before it is cut
    reward_credit: ClassVar[Literal["dense"]] = "dense"
    standardize: ClassVar[bool] = True

    @property
    def whiten_batch(self) -> bool:
        """Whether advantages are whitened over the tokens of a batch."""
        return self.normalize_advantages

    @model_validator(mode="before")
    @classmethod
    def _nothing_idle(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        estimator = given.get("adv_estimator", "rloo")
        given = _of_paper(str(estimator), given) | given
        idle: list[tuple[str, str]] = []
        if estimator != "gae":
            idle += [(k, f"adv_estimator {estimator}") for k in ("gae_lambda", "value_coef")]
        if not ESTIMATORS.is_own(str(estimator)):
            idle.append(("estimator_params", f"adv_estimator {estimator}"))
        if estimator != "rloo":
            idle.append(("rloo_form", f"adv_estimator {estimator}"))
        if given.get("credit", "sum") != "min_form":
            idle.append(("credit_temperature", "credit sum"))
        if given.get("loss", "ppo") == "reinforce":
            idle += [(k, "loss reinforce") for k in _CLIPS]
        elif given.get("num_epochs", 1) == 1 and given.get("minibatch_size") is None:
            why = "one gradient step per batch, whose ratio is 1 (num_epochs 1 and no minibatch_size)"
            idle += [(k, why) for k in _CLIPS]
        elif given.get("loss", "ppo") != "ppo":
            idle.append(("clip_ratio_c", f"loss {given['loss']}"))
        if not given.get("kl_coef"):
            idle += [(k, "kl_coef 0") for k in ("kl_type", "kl_in")]
        elif given.get("kl_in") == "reward":
            idle.append(("kl_type", "kl_in reward, which is k1"))
        every_source = {"verifier_gamma", "reward_model_gamma"} <= _known(given.get("adv_params"))
        if every_source and not (given.get("kl_coef") and given.get("kl_in") == "reward"):
            idle.append(("gamma", "a discount for each source in adv_params"))
        for key, why in idle:
            if key in given:
                raise ValueError(f"{key} would do nothing with {why}; remove it")
        return given

    @model_validator(mode="after")
    def _own_estimator(self) -> TextAlgorithmSettings:
        if ESTIMATORS.is_own(self.adv_estimator):
            ESTIMATORS.check(self.adv_estimator, self.estimator_params)
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> TextAlgorithmSettings:
        if self.kl_coef and self.kl_in == "loss" and self.kl_type == "k1":
            raise ValueError(
                "kl_type k1 in the loss has a gradient of zero on average (it is the policy's score): take k2 or k3, "
                "or kl_in reward"
            )
        if self.adv_estimator == "reinforce_pp" and not self.normalize_advantages:
            raise ValueError(
                "reinforce_pp is reinforce with normalize_advantages; without, ask for adv_estimator: reinforce"
            )
        if self.adv_estimator == "reinforce" and self.normalize_advantages:
            raise ValueError("reinforce with normalize_advantages is reinforce_pp: ask for adv_estimator: reinforce_pp")
        if self.adv_estimator == "dr_grpo" and (self.normalize_advantages or self.loss_agg != "constant"):
            raise ValueError(
                "dr_grpo is grpo without any division by a spread or by the length of a response: remove "
                "normalize_advantages and loss_agg, or ask for adv_estimator: rloo"
            )
        if self.minibatch_size is not None:
            check_multiple(self.minibatch_size, self.micro_batch_size, "minibatch_size")
        return self

    @property
    def verifier_gamma(self) -> float:
        """Discount of the outcome reward."""
        own = self.adv_params.verifier_gamma
        return self.gamma if own is None else own

    @property
    def reward_model_gamma(self) -> float:
        """Discount of the reward model's rewards."""
        own = self.adv_params.reward_model_gamma
        return self.gamma if own is None else own


def _of_paper(estimator: str, given: dict[str, Any]) -> dict[str, Any]:
    """Values of the keys that an estimator's paper decides, where they do something."""
    values = dict(zip(_KEYS, _PAPERS.get(estimator, ()), strict=False))
    if not given.get("kl_coef") or "kl_type" in given:
        values.pop("kl_in", None)
    return values


def _known(given: Any) -> set[str]:
    """Names of the values that are not null, of a section as it was given."""
    values = given.model_dump() if isinstance(given, Settings) else given
    return {k for k, v in values.items() if v is not None} if isinstance(values, dict) else set()
