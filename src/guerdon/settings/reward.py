"""The `reward` section: which measurements train the policy, and how they are shaped and combined.

With one reward model its keys stand directly under `reward` (the names of the ResNet reward guide); with several,
each has its own entry under `reward.sources`. Robots and language models share the section: `model_type: text` is for
the latter, the other types for the former. `reward_model`, the section of the PRIME guide, stands for one such entry.

    RewardSettings(use_reward_model=True, sources={"prm": {"model": {"model_type": "text", "checkpoint_path": "prm"}}})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from guerdon.settings.aliases import PRMOptions, libero_words, prm_words
from guerdon.settings.base import ByName, Settings, only_with, refuse
from guerdon.settings.evaluate import Aggregation
from guerdon.settings.label import Splitter
from guerdon.settings.prime import PrimeSettings
from guerdon.settings.remote import RemoteSettings
from guerdon.settings.reward_models import (
    JudgeModelSettings,
    PrimeModelSettings,
    RefittedModelSettings,
    RemoteModelSettings,
    RewardModelSettings,
    RunModelSettings,
    judges_text,
    relative,
)

OnFailure = Literal["drop", "neutral", "raise"]
_FAILED: Any = Field(
    "drop",
    description="a measurement failed: mask its step, or the response it is about (drop), reward 0 and keep it "
    "(neutral), or stop (raise)",
)
WeightSchedule = Literal["constant", "linear_decay", "linear_warmup"]

_OF_ROBOTS = ("per_step", "terminal", "episode"), ("threshold", "raw", "log_odds", "relative", "potential", "bonus")
_OF_TEXT = ("per_step", "terminal", "per_token"), ("threshold", "raw", "signed", "relative")


class CacheSettings(Settings):
    """`cache` of a source: values of frames that look alike are used again; such a value is not a measurement."""

    tolerance: int = Field(
        0, ge=0, lt=128, description="bits, of 256, in which the perceptual hashes of two frames may differ"
    )
    size: int = Field(10_000, ge=1, description="measured frames kept; the oldest leave first")


class ShareSettings(Settings):
    """`adaptive_weight` of a source: a weight that keeps the source's share of the whole signal (docs/rewards.md)."""

    share: float = Field(
        gt=0, lt=1, description="of the sum of all sources' mean absolute advantage, each with its weight"
    )
    min_weight: float = Field(0.0, ge=0, description="lower limit of the weight")
    max_weight: float = Field(10.0, gt=0, description="upper limit of the weight")

    @model_validator(mode="after")
    def _fits(self) -> ShareSettings:
        if self.min_weight > self.max_weight:
            raise ValueError(f"min_weight {self.min_weight:g} is above max_weight {self.max_weight:g}")
        return self


class SourceSettings(Settings):
    """One reward model as a source of reward."""

    model: RewardModelSettings = Field(description="which model, from where")
    reward_mode: Literal["per_step", "terminal", "episode", "per_token"] = Field(
        "terminal",
        description="terminal: score the last frame of an episode (text: the whole response, paid at its end); "
        "per_step: every score_every-th and the last (text: each step, paid at its last token); episode: judge the "
        "whole episode once, at its end, from its first frame, every score_every-th and the last; per_token (text): "
        "each step, paid at each of its tokens",
    )
    score_every: int = Field(1, ge=1, description="per_step, episode: score every k-th step and the last")
    aggregation: Aggregation | None = Field(None, description="how the values of steps become one value of a solution")
    splitter: Splitter | None = Field(
        None, description="text: where steps end; null: as label.splitter does with null. Cut as in training"
    )
    shaping: Literal["threshold", "raw", "signed", "log_odds", "relative", "potential", "bonus"] = Field(
        "threshold",
        description="how values become rewards: one of two by a threshold; as they are; 2p - 1 (text: a wrong step "
        "costs, as in PURE); log(p / (1 - p)) (robots: the reward of AIRL, 1710.11248); change since the last value "
        "(text: the first step pays its own); potential-based; one-shot",
    )
    success_reward: float = Field(1.0, description="threshold: reward above the threshold; bonus: the one-shot reward")
    fail_reward: float = Field(0.0, description="reward at or below the threshold")
    use_negative_reward: bool = Field(False, description="fail_reward becomes -success_reward; risks policy collapse")
    reward_threshold: float | None = Field(None, ge=0, le=1, description="null: the one stored with the model")
    binary_reward: bool | None = Field(None, description="LIBERO guide: true is shaping threshold, false is raw")
    success_threshold: float | None = Field(
        None,
        ge=0,
        le=1,
        description="the LIBERO guide's word for reward_threshold; here a value that equals it is a success too",
    )
    use_rel_reward: bool | None = Field(
        None,
        description="the LIBERO guide's word: per_step: true is shaping relative; once an episode the score is its own "
        "change already, from 0",
    )
    confirm_frames: int = Field(2, ge=1, description="bonus: scored frames in a row above the threshold")
    ends: bool = only_with(
        False,
        shaping="bonus",
        description="the confirmed bonus ends the task in what SAC and DQN learn from; the episode itself goes on, and "
        "stops without true success are counted (docs/people.md)",
    )
    reward_coef: float = Field(1.0, description="multiplies the shaped reward")
    reward_weight: float = Field(
        1.0,
        description="weight of this source in the advantage; of a robot's only source, whose advantages are "
        "normalised, it changes nothing, which the run says at its start",
    )
    reward_weight_schedule: WeightSchedule = Field("constant", description="how reward_weight changes over the run")
    adaptive_weight: ShareSettings | None = Field(
        None, description="learn the weight: it starts as reward_weight and keeps the source's share of the signal"
    )
    gamma: float | None = Field(None, ge=0, le=1, description="discount of this source; null: the algorithm's")
    on_failure: OnFailure = _FAILED
    cache: CacheSettings | None = Field(
        None, description="robots: use the values of frames that look alike again; null: every frame is scored"
    )

    @property
    def text(self) -> bool:
        """Whether it judges what a language model writes."""
        return isinstance(self.model, RunModelSettings) or judges_text(self.model)

    @property
    def dense(self) -> bool:
        """Whether it pays more than one reward per episode or response."""
        if isinstance(self.model, PrimeModelSettings):
            return self.model.prime_granularity != "whole"
        return isinstance(self.model, RunModelSettings) or self.reward_mode in ("per_step", "per_token")

    @property
    def min_form(self) -> bool:
        """Whether its rewards can be those of the min form (`algorithm.credit`)."""
        return self.dense if isinstance(self.model, PrimeModelSettings) else self.reward_mode == "per_step"

    @property
    def remote(self) -> RemoteSettings | None:
        """Client of the reward server; None where the model is not on one."""
        return self.model.remote if isinstance(self.model, RemoteModelSettings) else None

    @property
    def native_fallback(self) -> bool:
        """Whether true success takes the place of a missing score."""
        return self.remote is not None and self.remote.fallback == "native"

    @property
    def can_overlap(self) -> bool:
        """Whether it can be measured before its rollout is over."""
        before = self.refitted is not None and self.refitted.update == "before"
        return not (self.text or before or self.cache is not None)

    @property
    def stays_with_learner(self) -> bool:
        """Whether it is scored in the process of the learner: it changes in the run, or is elsewhere already."""
        elsewhere = RemoteModelSettings | JudgeModelSettings
        return self.refitted is not None or isinstance(self.model, RunModelSettings | elsewhere)

    @property
    def refitted(self) -> RefittedModelSettings | None:
        """The model, where it is refitted during the run."""
        model = self.model
        return model if isinstance(model, RefittedModelSettings) and model.update != "none" else None

    @model_validator(mode="before")
    @classmethod
    def _guide_words(cls, given: Any) -> Any:
        return libero_words(given) if isinstance(given, dict) and "model" in given else given

    @model_validator(mode="after")
    def _fits_together(self) -> SourceSettings:
        mode, shaping, kind = self.reward_mode, self.shaping, f"model_type {self.model.model_type}"
        if isinstance(self.model, RunModelSettings):
            used = {"model", "reward_weight", "reward_weight_schedule", "adaptive_weight", "gamma"}
            used |= {"on_failure"} if isinstance(self.model, PrimeModelSettings) else set()
            refuse(self.model_fields_set - used, kind)
            return self
        modes, shapings = _OF_TEXT if self.text else _OF_ROBOTS
        if mode not in modes:
            raise ValueError(f"reward_mode {mode} is not for {kind}: take {', '.join(modes)}")
        if shaping not in shapings:
            raise ValueError(f"shaping {shaping} is not for {kind}: take {', '.join(shapings)}")
        if mode in ("terminal", "episode") and shaping in ("relative", "potential", "bonus"):
            raise ValueError(f"shaping {shaping} needs reward_mode: per_step; {mode} gives one value per episode")
        if mode == "terminal" and self.use_rel_reward and not self.text:
            raise ValueError("use_rel_reward needs reward_mode per_step or episode; terminal mode sees one frame")
        if self.native_fallback and (self.text or "on_failure" in self.model_fields_set):
            why = "language models" if self.text else "on_failure"
            raise ValueError(f"fallback native is not for use with {why}: remove one of them")
        if self.model.compares and shaping == "threshold":
            raise ValueError(f"{relative(kind)}: set shaping to raw or signed, not threshold")
        given = self.model_fields_set
        robots = {"score_every", "binary_reward", "success_threshold", "use_rel_reward"}
        refuse(given & (robots if self.text else {"aggregation", "splitter"}), kind)
        refuse(given & {"score_every" if mode == "terminal" else "aggregation"}, f"{kind} and reward_mode {mode}")
        thresholds = {"success_reward", "fail_reward", "use_negative_reward", "reward_threshold", "success_threshold"}
        idle = {"confirm_frames"} if shaping == "threshold" else {"fail_reward", "use_negative_reward"}
        refuse(
            given & (idle if shaping in ("threshold", "bonus") else thresholds | {"confirm_frames"}),
            f"shaping {shaping}",
        )
        if self.model.model_type in ("QwenProcessRM", "DummyRM"):
            refuse(given & {"reward_weight_schedule"}, f"{kind}, whose log lines name one weight")
        if self.cache is not None and (self.text or mode == "episode" or self.refitted is not None):
            what = kind if self.text else f"reward_mode {mode}" if self.refitted is None else "a model that is refitted"
            raise ValueError(f"cache is of the values of single frames, which {what} does not have; remove it")
        if self.adaptive_weight is not None and "reward_weight_schedule" in given:
            raise ValueError("adaptive_weight and reward_weight_schedule both change the weight; remove one of them")
        limits = self.adaptive_weight
        if limits is not None and not limits.min_weight <= self.reward_weight <= limits.max_weight:
            raise ValueError(
                f"reward_weight {self.reward_weight:g}, the start of adaptive_weight, is outside its limits "
                f"{limits.min_weight:g} to {limits.max_weight:g}"
            )
        if self.use_negative_reward and "fail_reward" in given:
            raise ValueError("use_negative_reward sets fail_reward to -success_reward; give one of the two")
        return self

    @property
    def effective_fail_reward(self) -> float:
        """What a step or episode below the threshold earns."""
        return -self.success_reward if self.use_negative_reward else self.fail_reward


_PER_SOURCE = set(SourceSettings.model_fields)
LIMITS = ("max_failure_rate", "failure_window")  # of failures: also of a verifier, so a whole study decides


class RewardSettings(Settings):
    """`reward`: native reward alone, one model, or several sources."""

    short_form = (SourceSettings, PRMOptions)

    use_reward_model: bool = Field(False, description="off: the native reward alone")
    group_name: str = Field("RewardGroup", description="what log lines call the group of reward models")
    combine_mode: Literal["replace", "add", "weighted"] = Field(
        "replace",
        description="weight of the native reward (text: of the verifier's outcome) in addition to the models: 0, 1, or "
        "env_reward_weight",
    )
    env_reward_weight: float = Field(0.0, description="weight of the native reward with combine_mode: weighted")
    max_failure_rate: float = Field(0.1, ge=0, le=1, description="stop when a larger share of measurements fails")
    failure_window: int = Field(200, ge=1, description="measurements of a source over which its failure rate is taken")
    overlap_steps: int | None = Field(
        None,
        ge=1,
        description="robots: score while the environment goes on, in parts of so many of its steps; null: when the "
        "rollout is over",
    )
    scoring_shards: int = Field(
        1,
        ge=1,
        description="parts in which frozen reward models score a batch. The numbers of a run depend on it in the last "
        "digits, and not on how many reward workers of a cluster share the parts out",
    )
    sources: dict[str, SourceSettings] = Field(
        default_factory=dict, description="several reward models, by name, each with the keys of a source"
    )
    truth: str | None = Field(
        None,
        description="text: a source, or verifier, that is measured and shown in training and evaluation and never "
        "trained on; arms are compared by it. null: the verifier, where there is one",
    )

    @model_validator(mode="before")
    @classmethod
    def _one_model_form(cls, given: Any) -> Any:
        """Move the keys of the one-model form into `sources`."""
        if not isinstance(given, dict):
            return given
        given = prm_words(given, _PER_SOURCE)
        single = {k: v for k, v in given.items() if k in _PER_SOURCE}
        if not single:
            return given
        if given.get("sources"):
            raise ValueError(
                f"{', '.join(sorted(single))} is given next to sources; with several sources every key belongs to "
                "one of them"
            )
        if not given.get("use_reward_model", False):
            raise ValueError(f"{', '.join(sorted(single))} would do nothing with use_reward_model: false; remove it")
        if "model" not in single:
            raise ValueError("use_reward_model needs reward.model (or reward.sources)")
        model = single["model"]
        kind = model.get("model_type", "resnet") if isinstance(model, dict) else "resnet"
        name = {"resnet_reward": "resnet", "dummy": "constant"}.get(kind, str(kind).rpartition(":")[2])
        rest = {k: v for k, v in given.items() if k not in _PER_SOURCE}
        return {**rest, "sources": {name: single}}

    @model_validator(mode="after")
    def _fits_together(self) -> RewardSettings:
        if self.use_reward_model and not self.sources:
            raise ValueError("use_reward_model needs reward.model (or reward.sources)")
        if not self.use_reward_model:
            known = {"use_reward_model", "truth", *LIMITS} | (set() if self.sources else {"sources"})
            idle = sorted(self.model_fields_set - known)
            if idle:
                raise ValueError(f"{', '.join(idle)} would do nothing with use_reward_model: false; remove it")
        if self.overlap_steps is not None and not any(source.can_overlap for source in self.sources.values()):
            raise ValueError(
                "overlap_steps would do nothing: no source can be scored before the rollout is over. Those of language "
                "models, those with a cache, and models that are refitted before they score need all of it; remove it"
            )
        if "env" in self.sources or "combined" in self.sources:
            raise ValueError("a reward source cannot be called env or combined: those names are taken")
        adaptive = [source.adaptive_weight.share for source in self.sources.values() if source.adaptive_weight]
        others = any(
            source.adaptive_weight is None and source.reward_weight and name != self.truth
            for name, source in self.sources.items()
        )
        if adaptive and not (self.env_weight() or others):
            raise ValueError("adaptive_weight needs another reward, of which the source has a share: combine_mode: add")
        if sum(adaptive) >= 1:
            raise ValueError(f"the shares of adaptive_weight add up to {sum(adaptive):g}; they must leave some")
        if self.combine_mode != "weighted" and "env_reward_weight" in self.model_fields_set and self.env_reward_weight:
            raise ValueError("env_reward_weight counts only with combine_mode: weighted; remove it")
        return self

    def env_weight(self) -> float:
        """Weight of the native reward in the advantage: replace 0, add 1, weighted `env_reward_weight`."""
        if not self.use_reward_model or self.combine_mode == "add":
            return 1.0
        return self.env_reward_weight if self.combine_mode == "weighted" else 0.0

    def weights(self) -> dict[str, float]:
        """Source name to weight, for the sources that train the policy."""
        weights = {name: source.reward_weight for name, source in self.sources.items()} if self.use_reward_model else {}
        env = self.env_weight()
        return {"env": env, **weights} if env else weights


# The section `reward_model`.


class _RewardModelSection(Settings):
    """What all forms of `reward_model` share.

    Attributes:
        source_name: of the source that the section stands for.
    """

    source_name: ClassVar[str]

    rm_coef: float = Field(5.0, gt=0, description="weight of its advantage")
    verifier_coef: float = Field(5.0, ge=0, description="weight of the outcome's advantage; 0: none")
    rm_coef_schedule: WeightSchedule = Field("constant", description="how rm_coef changes over the run")

    def source_keys(self) -> dict[str, Any]:
        """The keys of the source, but for its weight and discount."""
        raise NotImplementedError

    def added_to(self, reward: RewardSettings, gamma: float) -> RewardSettings:
        """`reward` with the source that the section stands for in front, and the weight of the outcome.

        Args:
            reward: the section of that name.
            gamma: discount of the source.
        """
        terms = {"reward_weight": self.rm_coef, "reward_weight_schedule": self.rm_coef_schedule, "gamma": gamma}
        source = SourceSettings.model_validate({**self.source_keys(), **terms})
        changes = {"combine_mode": "weighted", "env_reward_weight": self.verifier_coef, "use_reward_model": True}
        return reward.model_copy(update={**changes, "sources": {self.source_name: source, **reward.sources}})


class PrimeSection(PrimeSettings, _RewardModelSection):
    """`reward_model` of PRIME."""

    source_name = "prime"

    rm_type: Literal["prime"] = Field("prime", description="implicit process rewards")
    on_failure: OnFailure = _FAILED

    def source_keys(self) -> dict[str, Any]:
        """A model that learns in the run."""
        keys = self.model_dump(include=set(PrimeSettings.model_fields), exclude_unset=True)
        return {"model": {"model_type": "prime", **keys}, "on_failure": self.on_failure}


class ClassifierSection(_RewardModelSection):
    """`reward_model` of a sequence classifier."""

    source_name = "rm"

    rm_type: Literal["value", "normal"] = Field(
        "value", description="a sequence classifier that judges the whole response"
    )
    on_failure: OnFailure = _FAILED
    path: str = Field(description="the classifier's folder or hub id")
    micro_batch_size: int = Field(64, ge=1, description="solutions per forward pass")

    def source_keys(self) -> dict[str, Any]:
        """A logit per response, as it is."""
        model = {"model_type": self.rm_type, "checkpoint_path": self.path, "micro_batch_size": self.micro_batch_size}
        return {"model": model, "shaping": "raw", "on_failure": self.on_failure}


class ExactSection(_RewardModelSection):
    """`reward_model` of true steps."""

    source_name = "exact"

    rm_type: Literal["exact"] = Field("exact", description="the truth about each step, where the task knows it")

    def source_keys(self) -> dict[str, Any]:
        """It has no keys."""
        return {"model": {"model_type": "exact"}}


RewardModelSection = Annotated[PrimeSection | ClassifierSection | ExactSection, ByName("rm_type", "prime")]
"""PRIME's section: an alias of a source of `reward.sources` and of the weight of the outcome."""


def check_truth(
    reward: RewardSettings, section: RewardModelSection | None, sources: Mapping[str, SourceSettings], *, verified: bool
) -> None:
    """Refuse what needs true success where it is unknown, and a truth that is none, or that is trained on.

    Args:
        reward, section: `reward` and `reward_model` of a language study.
        sources: its reward models, by name.
        verified: whether its prompts have answers.

    Raises:
        ValueError: with the key and the reason.
    """
    truth, unknown = reward.truth, "data.type prompts, which has no verifier"
    if not verified:
        outcome = {"combine_mode", "env_reward_weight"} & reward.model_fields_set
        refuse(outcome if reward.env_weight() else set(), unknown, "reward")
        refuse({"verifier_coef"} & (set() if section is None else section.model_fields_set), unknown, "reward_model")
        for name, one in sources.items():
            if isinstance(one.model, PrimeModelSettings) and one.model.learns:
                raise ValueError(f"the prime reward source {name} learns from outcomes, not with {unknown}")
        if not set(sources) - {truth}:
            raise ValueError(f"nothing would train the policy with {unknown}: name reward models in reward.sources")
    if truth == "verifier" and verified:
        if reward.env_weight() if section is None else section.verifier_coef:
            key = "reward.combine_mode to replace" if section is None else "reward_model.verifier_coef to 0"
            raise ValueError(f"reward.truth verifier is never trained on: set {key}")
    elif truth is not None:
        where, source = f"reward.sources.{truth}", sources.get(truth)
        if source is None:
            names = [*sources, *(["verifier"] if verified else [])]
            raise ValueError(f"reward.truth {truth!r} is none of the sources {', '.join(names)}")
        if source.model.compares:
            raise ValueError(f"{relative(where)}, so it cannot be reward.truth, which scores responses one by one")
        if isinstance(source.model, PrimeModelSettings):
            raise ValueError(f"reward.truth {truth} learns in the run, and a truth does not change")
        idle = {"reward_weight", "reward_weight_schedule", "adaptive_weight", "gamma"} & source.model_fields_set
        refuse(idle, "reward.truth, which is never trained on", where)
