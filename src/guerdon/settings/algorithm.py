"""The `algorithm` section of robots and language models: the estimator of advantages, the loss, how steps are taken.

Names follow PPO (Schulman et al. 2017, 1707.06347), PRIME (2502.01456) and its trainer, where they name a key. Every
estimator is declared once, in `_INFO`, for both.

    ControlAlgorithmSettings(adv_estimator="rloo", group_size=4)
    TextAlgorithmSettings(adv_estimator="rloo", learning_rate=5e-7)
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import AliasChoices, Field, model_validator

from guerdon.config.registry import Registry
from guerdon.errors import ConfigError
from guerdon.settings.base import OWN_PARAMS, SET, Because, Named, Schedule, Settings, Unless, check_multiple, only_with


class EstimatorInfo(NamedTuple):
    """What an estimator needs, and what its paper says of other keys of a language model.

    Attributes:
        normalize_advantages, loss, loss_agg, kl_in: the paper's, where the configuration does not say.
        groups: several episodes with the same start, or responses to the same prompt.
        critic: value heads.
        greedy: the greedy response to the same prompt.
    """

    normalize_advantages: bool = False
    loss: str = "ppo"
    loss_agg: str = "constant"
    kl_in: str = "loss"
    groups: bool = False
    critic: bool = False
    greedy: bool = False


_INFO = {
    "rloo": EstimatorInfo(kl_in="reward", groups=True),  # 2402.14740; with one step per batch, ppo is its REINFORCE
    "turn_rloo": EstimatorInfo(kl_in="reward", groups=True),
    "grpo": EstimatorInfo(loss_agg="sequence", groups=True),  # 2402.03300
    "dr_grpo": EstimatorInfo(groups=True),  # 2503.20783
    "gdpo": EstimatorInfo(True, loss_agg="sequence", groups=True),  # 2601.05242
    "reinforce": EstimatorInfo(loss="reinforce", kl_in="reward"),  # Williams 1992
    "reinforce_pp": EstimatorInfo(True, loss_agg="token", kl_in="reward"),  # 2501.03262
    "remax": EstimatorInfo(loss="reinforce", kl_in="reward", greedy=True),  # 2310.10505
    "gae": EstimatorInfo(True, loss_agg="token", kl_in="reward", critic=True),  # 1707.06347 and 1909.08593
}
ESTIMATORS = Registry("estimator", "guerdon.estimators", dict.fromkeys(_INFO, "guerdon.rl.advantages:estimators"))


LOSS_INPUTS = ("log_probs", "old_log_probs", "advantages", "mask")
CLIP_KEYS = ("clip_range", "clip_range_high", "clip_ratio_c")
_LOSSES: dict[str, tuple[str, ...]] = {  # what each takes of the old log-probabilities and the keys
    "ppo": ("old_log_probs", "clip_range", "clip_range_high", "clip_ratio_c"),
    "gspo": ("old_log_probs", "clip_range", "clip_range_high"),
    "cispo": ("old_log_probs", "clip_range", "clip_range_high"),
    "reinforce": (),
}
LOSSES = Registry(
    "policy loss",
    "guerdon.losses",
    {name: f"guerdon.rl.losses:{name}" for name in _LOSSES},
    (*LOSS_INPUTS, *CLIP_KEYS),
)
LossName = Annotated[str, Named(LOSSES)]


class _LossesThatTake(tuple[str, ...]):
    """The built-in policy losses that have a parameter; a user's own belongs to them where it has it."""

    parameter: str

    def __new__(cls, parameter: str) -> Self:
        found = super().__new__(cls, (name for name, taken in _LOSSES.items() if parameter in taken))
        found.parameter = parameter
        return found

    def __contains__(self, name: object) -> bool:
        if not LOSSES.is_own(str(name)):
            return self.parameter in _LOSSES[str(name)]
        return self.parameter in signature(LOSSES.factory(str(name))).parameters


def _clip_key(default: Any, key: str, **given: Any) -> Any:
    """A key of the clip range: it does something with losses that take it, and where the ratio is not always 1."""
    one_step = Because(False, "one gradient step per batch, whose ratio is 1 (num_epochs 1 and no minibatch_size)")
    return only_with(default, loss=_LossesThatTake(key), one_step=one_step, **given)


_OWN, _OWN_OF_ROBOTS = EstimatorInfo(), EstimatorInfo(critic=True)


def estimator_info(name: str, own: EstimatorInfo = _OWN) -> EstimatorInfo:
    """What an estimator needs; of a user's own what its factory says as `info`, else `own`."""
    return _INFO[name] if name in _INFO else getattr(ESTIMATORS.factory(name), "info", own)


class _Estimators(tuple[str, ...]):
    """The built-in estimators that have a need; a robot's own estimator belongs to them where it has it."""

    need: str

    def __new__(cls, need: str) -> Self:
        found = super().__new__(cls, (name for name, info in _INFO.items() if getattr(info, need)))
        found.need = need
        return found

    def __contains__(self, name: object) -> bool:
        return bool(getattr(estimator_info(str(name), _OWN_OF_ROBOTS), self.need))


_GROUPS, _CRITIC = _Estimators("groups"), _Estimators("critic")


class _SharedSettings(Settings):
    """The keys of `algorithm` that robots and language models have in common."""

    type: str
    adv_estimator: Annotated[str, Named(ESTIMATORS)]
    if TYPE_CHECKING:
        loss: Any
    estimator_params: dict[str, Any] = only_with(
        default_factory=dict,
        adv_estimator=Unless(*_INFO),
        description=OWN_PARAMS,
    )
    loss_params: dict[str, Any] = only_with(
        default_factory=dict,
        loss=Unless(*_LOSSES),
        description="of a policy loss of your own: its parameters, by name",
    )
    clip_range: float = _clip_key(0.2, "clip_range", gt=0, description="how far the probability ratio may leave 1")
    clip_range_high: float | None = _clip_key(
        None, "clip_range_high", gt=0, description="upper clip where it differs (DAPO, 2503.14476)"
    )
    clip_ratio_c: float | None = _clip_key(
        None, "clip_ratio_c", gt=1, description="dual clip (1912.09729): bound for negative advantages"
    )
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    lr_schedule: Schedule = Field("constant", description="how the learning rate falls to 0 over runner.schedule_steps")

    @model_validator(mode="after")
    def _own_estimator(self) -> Self:
        if ESTIMATORS.is_own(self.adv_estimator):
            ESTIMATORS.check(self.adv_estimator, self.estimator_params, key="estimator_params")
        return self

    @model_validator(mode="after")
    def _own_loss(self) -> Self:
        if not LOSSES.is_own(self.loss):
            return self
        if self.loss not in _LossesThatTake("log_probs"):
            raise ConfigError(
                f"the policy loss {self.loss} has no parameter log_probs: it is a function of what it names of "
                f"{', '.join(LOSS_INPUTS)} (docs/extend.md#policy-loss)",
                key="loss",
            )
        LOSSES.check(self.loss, self.loss_params, key="loss_params")
        return self

    def check_staleness(self, where: str) -> None:
        """Refuse a loss that does not correct for the old weights of rollouts.

        Args:
            where: the key that makes rollouts old.

        Raises:
            ValueError: with the key and the reason.
        """
        correcting = _LossesThatTake("old_log_probs")
        if self.loss not in correcting:
            raise ConfigError.about(
                "algorithm.loss",
                f"{self.loss} has no probability ratio, which corrects for the old weights of {where}: "
                f"set loss to {', '.join(correcting[:-1])} or {correcting[-1]}",
            )


class RobotAlgorithmSettings(Settings):
    """The keys of `algorithm` that all algorithms of robot policies have in common."""

    gamma: float = Field(0.99, ge=0, le=1, description="discount; a source may have its own")
    learning_rate: float = Field(1e-3, ge=0, description="of Adam")
    ema_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="evaluate, show and keep an exponential moving average of the policy's weights with this decay per "
        "rollout, such as 0.8; null: the last weights",
    )

    if TYPE_CHECKING:
        type: Any
        rollout_steps: int

    replayed: ClassVar[bool] = False  # whether it learns from what earlier policies did, too
    values_sources: ClassVar[bool] = False  # whether the network that acts gives values, of every source its own

    @property
    def needs(self) -> EstimatorInfo:
        """What the estimator needs; one without an estimator needs nothing."""
        return _OWN


class ControlAlgorithmSettings(_SharedSettings, RobotAlgorithmSettings):
    """`algorithm` of a robot policy: estimator and update (PPO, Schulman et al. 2017, 1707.06347)."""

    type: Literal["control"] = Field("control", description="robots; follows from policy.type")
    adv_estimator: Annotated[str, Named(ESTIMATORS)] = Field(
        "gae",
        description="gae: critic and GAE; rloo, grpo, dr_grpo: compare episodes with the same start; gdpo: the same "
        "per source, whitened; reinforce: the return in the rollout; reinforce_pp: whitened; your own: with the critic",
    )
    rollout_steps: int = only_with(
        250, ge=1, le=10**7, adv_estimator=Unless(_GROUPS), description="steps per copy between updates"
    )
    num_epochs: int = Field(10, ge=1, description="passes over a rollout per update")
    minibatch_size: int = Field(250, ge=1, description="decisions per gradient step: steps, or chunks of actions")
    micro_batch_size: int | None = Field(None, ge=1, description="decisions per forward pass; null: minibatch_size")
    gae_lambda: float = only_with(0.95, ge=0, le=1, adv_estimator="gae", description="lambda of GAE (1506.02438)")
    clip_range_value: float | None = only_with(
        None, gt=0, adv_estimator=_CRITIC, description="clip the change of the value; null: not"
    )
    value_coef: float = only_with(
        1.0, ge=0, adv_estimator=_CRITIC, description="weight of half the mean squared value error"
    )
    max_grad_norm: float = Field(0.5, gt=0, description="clip gradients to this norm")
    target_kl: float | None = Field(None, gt=0, description="stop the update when the policy moved this far")
    normalize_advantages: bool = only_with(
        True, adv_estimator=_CRITIC, description="zero mean and unit variance over the batch"
    )
    normalize_rewards: bool = Field(False, description="divide each source by the running std of its return")
    group_size: int = only_with(8, ge=2, adv_estimator=_GROUPS, description="episodes with the same start per group")
    grpo_std: bool = only_with(
        True, adv_estimator="grpo", description="divide by the group's standard deviation; off is dr_grpo"
    )
    filter_rewards: bool = only_with(
        False, adv_estimator=_GROUPS, description="learn only from groups whose mean return lies in the bounds"
    )
    rewards_lower_bound: float | None = only_with(
        None,
        filter_rewards=True,
        description="smallest mean return of a group, in the unit of the reward: the weighted sum that all sources pay "
        "in an episode, their reward_coef included; null: no bound",
    )
    rewards_upper_bound: float | None = only_with(
        None, filter_rewards=True, description="largest mean return of a group; null: no bound"
    )
    value_init_steps: int = only_with(
        0, ge=0, adv_estimator=_CRITIC, description="updates at the start that train the critic alone"
    )
    logprob_type: Literal["token_level", "action_level", "chunk_level"] | None = Field(
        None,
        description="what has a probability ratio of its own, of a policy whose decisions have several parts: each "
        "token, each action (null) or each chunk",
    )
    reward_type: Literal["chunk_level", "action_level"] | None = Field(
        None,
        description="of a policy that decides on chunks of actions: credit and discount per chunk, which earns the sum "
        "of its rewards (null), or per action (without a critic)",
    )

    auxiliary_losses: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="sources of reward.sources and coefficients: the policy gets a head that predicts what the model "
        "says of the moment before each decision, and half its mean squared error is added to the loss",
    )

    loss: LossName = Field(
        "ppo",
        validation_alias=AliasChoices("loss", "policy_loss"),
        description="of the policy: ppo, gspo, cispo, reinforce (right for num_epochs 1 alone) or your own",
    )

    kl_coef: float = Field(
        0.0,
        ge=0,
        description="weight of the KL from the policy that the run starts from, a clone (policy.checkpoint) or that of "
        "runner.resume_dir; the estimator in the loss is k2, whose gradient is that of the KL (Schulman 2020)",
    )
    kl_schedule: Schedule = only_with(
        "constant", kl_coef=SET, description="how kl_coef falls to 0 over runner.schedule_steps"
    )

    left_out = frozenset({"loss", "kl_coef", "kl_schedule"})
    one_step: ClassVar[bool] = False
    loss_agg: ClassVar[Literal["token"]] = "token"  # every step counts alike
    kl_type: ClassVar[Literal["k2"]] = "k2"
    kl_in: ClassVar[Literal["loss"]] = "loss"
    rollout_is_threshold: ClassVar[None] = None
    rloo_form: ClassVar[Literal["paper"]] = "paper"
    by_state: ClassVar[bool] = False

    @property
    def needs(self) -> EstimatorInfo:
        """What the estimator needs; one of your own has a critic, unless it says otherwise."""
        return estimator_info(self.adv_estimator, _OWN_OF_ROBOTS)

    @property
    def by_chunk(self) -> bool:
        """Whether a chunk of actions is one step of the estimator."""
        return self.reward_type != "action_level"

    @property
    def reward_credit(self) -> Literal["dense", "episode"]:
        """Whole episodes are what a group compares."""
        return "episode" if self.needs.groups else "dense"

    @property
    def standardize(self) -> bool:
        """Whether GRPO divides by the group's standard deviation."""
        return self.grpo_std

    @property
    def whiten_batch(self) -> bool:
        """Whether advantages are whitened over the rollout; with a critic, each mini-batch is."""
        return self.adv_estimator in ("reinforce_pp", "gdpo")

    @property
    def normalize_minibatches(self) -> bool:
        """Whether each mini-batch is normalised."""
        return self.normalize_advantages and self.needs.critic

    def check_study(self, policy: str, *, starts_somewhere: bool) -> None:
        """Refuse what does not go with a policy.

        Args:
            policy: its type.
            starts_somewhere: it starts from a clone, or from another run.

        Raises:
            ValueError: with the key and the reason.
        """
        twice = {"ema_decay": self.ema_decay is not None, "kl_coef": bool(self.kl_coef)}
        for key in (key for key, used in twice.items() if used and policy == "vla"):
            raise ConfigError.about(
                f"algorithm.{key}", "is not supported with policy.type vla (weights twice); remove it"
            )
        if self.kl_coef and not starts_somewhere:
            raise ConfigError.about(
                "algorithm.kl_coef",
                "is the weight of the KL from a policy that can do something: name it by policy.checkpoint, such as a "
                "clone of demonstrations, or by runner.resume_dir",
            )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.adv_estimator == "turn_rloo":
            raise ConfigError.about(
                "adv_estimator", "turn_rloo compares turns of conversations of an agent: take rloo, for whole episodes"
            )
        if self.needs.greedy:
            raise ConfigError.about(
                "adv_estimator",
                f"{self.adv_estimator} needs the greedy response to each prompt, which only language "
                "models give: take rloo, whose baseline is the other episodes with the same start",
            )
        check_multiple(self.minibatch_size, self.micro_batch_size, "minibatch_size")
        lower, upper = self.rewards_lower_bound, self.rewards_upper_bound
        if self.filter_rewards and lower is None and upper is None:
            raise ConfigError.about("filter_rewards", "needs rewards_lower_bound, rewards_upper_bound or both")
        if lower is not None and upper is not None and lower > upper:
            raise ConfigError.about("rewards_lower_bound", f"{lower:g} is above rewards_upper_bound {upper:g}")
        if self.by_chunk:
            return self
        if self.needs.critic:
            raise ConfigError.about(
                "reward_type",
                "action_level needs an estimator without a critic: a critic values what a decision saw, "
                "and a chunk of actions is one decision. Take chunk_level",
            )
        if self.logprob_type == "chunk_level":
            raise ConfigError.about(
                "logprob_type",
                "chunk_level gives a chunk one probability ratio, which needs one advantage: take "
                "reward_type chunk_level",
            )
        return self


class AdvParamsSettings(Settings):
    """`algorithm.adv_params`: a discount for each source of reward."""

    verifier_gamma: float | None = Field(None, ge=0, le=1, description="of the outcome reward; null: algorithm.gamma")
    reward_model_gamma: float | None = Field(None, ge=0, le=1, description="of reward_model; null: algorithm.gamma")


class TextAlgorithmSettings(_SharedSettings):
    """`algorithm` of a language model. Steps are tokens, an episode is a response."""

    type: Literal["text"] = Field("text", description="language models; follows from policy.type")
    adv_estimator: Annotated[str, Named(ESTIMATORS)] = Field(
        "rloo",
        description="of advantages; each takes dense rewards of several sources, only gae has a critic; the defaults "
        "of normalize_advantages, loss, loss_agg and kl_in are those of its paper",
    )
    gamma: float = Field(1.0, ge=0, le=1, description="discount per token")
    adv_params: AdvParamsSettings = Field(AdvParamsSettings(), description="a discount for each source")
    gae_lambda: float = only_with(1.0, ge=0, le=1, adv_estimator="gae", description="lambda of GAE (1506.02438)")
    rloo_form: Literal["paper", "prime_compat"] = only_with(
        "paper",
        adv_estimator="rloo",
        description="leave-one-out of dense rewards as in the paper (eq. 5), or as PRIME's code has it",
    )
    by_state: bool = only_with(
        False,
        adv_estimator="turn_rloo",
        description="compare a turn with those of other members of the group in the same state, where the agent names "
        "states and there are such turns",
    )
    normalize_advantages: bool = Field(
        False,
        description="zero mean and unit variance over the tokens of a batch, after all sources are added; true by "
        "default for reinforce_pp and gae",
    )
    credit: Literal["sum", "min_form"] = Field(
        "sum",
        description="how process rewards of later steps count: discounted sum, or soft minimum (PURE, 2504.15275)",
    )
    loss: LossName = Field(
        "ppo",
        validation_alias=AliasChoices("loss", "policy_loss"),
        description="of the policy; reinforce by default for reinforce and remax",
    )
    loss_agg: Literal["token", "sequence", "constant"] = Field(
        "constant",
        description="mean over tokens of the batch (default of reinforce_pp and gae), mean over responses of their "
        "token means (of grpo), or mean over responses of their sums, divided by the length limit",
    )
    kl_coef: float = Field(0.0, ge=0, description="weight of the KL from the reference policy (the start of the run)")
    kl_type: Literal["k1", "k2", "k3"] = only_with(
        "k3",
        kl_coef=SET,
        kl_in=Because("loss", "kl_in reward, which is k1"),
        description="estimator in the loss (Schulman 2020)",
    )
    kl_in: Literal["loss", "reward"] = only_with(
        "loss",
        kl_coef=SET,
        description="where the KL enters; in the reward by default, but for grpo, dr_grpo and with kl_type",
    )
    num_epochs: int = Field(1, ge=1, description="passes over a batch per update")
    minibatch_size: int | None = Field(None, ge=1, description="responses per gradient step; null: the whole batch")
    micro_batch_size: int | None = Field(None, ge=1, description="responses per forward pass; null: minibatch_size")
    learning_rate: float = Field(1e-6, ge=0, description="of AdamW")
    weight_decay: float = Field(0.0, ge=0, description="of AdamW")
    max_grad_norm: float = Field(1.0, gt=0, description="clip gradients to this norm")
    value_coef: float = only_with(0.5, ge=0, adv_estimator="gae", description="weight of the value loss")
    rollout_is_threshold: float | None = Field(
        None,
        gt=0,
        description="multiply the advantage of each token by its importance weight (probability by the policy that "
        "learns over that by vLLM), at most so much; 2 is usual. null: no weights",
    )

    kl_schedule: ClassVar[Literal["constant"]] = "constant"
    filter_rewards: ClassVar[bool] = False
    rewards_lower_bound: ClassVar[None] = None
    rewards_upper_bound: ClassVar[None] = None
    value_init_steps: ClassVar[int] = 0
    logprob_type: ClassVar[None] = None
    by_chunk: ClassVar[bool] = True
    auxiliary_losses: ClassVar[dict[str, float]] = {}
    target_kl: ClassVar[None] = None
    clip_range_value: ClassVar[None] = None
    normalize_minibatches: ClassVar[bool] = False  # the batch is, before it is cut
    reward_credit: ClassVar[Literal["dense"]] = "dense"
    standardize: ClassVar[bool] = True

    @property
    def needs(self) -> EstimatorInfo:
        """What the estimator needs."""
        return estimator_info(self.adv_estimator)

    @property
    def whiten_batch(self) -> bool:
        """Whether advantages are whitened over the tokens of a batch."""
        return self.normalize_advantages

    @property
    def one_step(self) -> bool:
        """Whether a batch is one gradient step, whose ratio is 1."""
        return self.num_epochs == 1 and self.minibatch_size is None

    def derived(self) -> dict[str, Any]:
        """Values of the keys that an estimator's paper decides, where they do something."""
        values = dict(zip(EstimatorInfo._fields[:4], self.needs, strict=False))
        if not self.kl_coef or "kl_type" in self.model_fields_set:
            del values["kl_in"]
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> TextAlgorithmSettings:
        if self.kl_coef and self.kl_in == "loss" and self.kl_type == "k1":
            raise ConfigError.about(
                "kl_type",
                "k1 in the loss has a gradient of zero on average (it is the policy's score): take k2 or k3, "
                "or kl_in reward",
            )
        for whitened, plain in (("reinforce_pp", "reinforce"), ("gdpo", "grpo")):
            if self.adv_estimator == whitened and not self.normalize_advantages:
                raise ConfigError(
                    f"{whitened} is {plain} with normalize_advantages; without, ask for adv_estimator: {plain}",
                    key="adv_estimator",
                )
        if self.adv_estimator == "reinforce" and self.normalize_advantages:
            raise ConfigError(
                "reinforce with normalize_advantages is reinforce_pp: ask for adv_estimator: reinforce_pp",
                key="adv_estimator",
            )
        if self.adv_estimator == "dr_grpo" and (self.normalize_advantages or self.loss_agg != "constant"):
            raise ConfigError(
                "dr_grpo is grpo without any division by a spread or by the length of a response: remove "
                "normalize_advantages and loss_agg, or ask for adv_estimator: rloo",
                key="adv_estimator",
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


AlgorithmSettings = ControlAlgorithmSettings | TextAlgorithmSettings
"""Of the learner on rollouts."""
