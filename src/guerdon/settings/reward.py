"""The `reward` section: which measurements train the policy, and how they are shaped and combined.

With one reward model its keys stand directly under `reward` (the names of the ResNet reward guide); with several,
each has its own entry under `reward.sources`. Robots and language models share the section: `model_type: text` is for
the latter, the other types for the former. `reward_model`, the section of the PRIME guide, stands for one such entry.

    RewardSettings(use_reward_model=True, sources={"prm": {"model": {"model_type": "text", "checkpoint_path": "prm"}}})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, model_validator

from guerdon.errors import ConfigError
from guerdon.settings.aliases import PRMOptions, prm_words
from guerdon.settings.base import ByName, FolderName, Settings, refuse
from guerdon.settings.prime import PrimeSettings
from guerdon.settings.reward_models import PrimeModelSettings, relative
from guerdon.settings.reward_source import (
    FAILED,
    SOURCE_KEYS,
    OnFailure,
    RobotSource,
    RunSource,
    SourceByModel,
    SourceSettings,
    TextSource,
    WeightSchedule,
)

S = TypeVar("S", RobotSource, TextSource, RunSource)
LIMITS = ("max_failure_rate", "failure_window")  # of failures: also of a verifier, so a whole study decides


class RewardSettings(Settings):
    """`reward`: native reward alone, one model, or several sources."""

    short_form = (RobotSource, TextSource, RunSource, PRMOptions)

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
    sources: dict[FolderName, SourceByModel] = Field(
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
        given = prm_words(given, set(SOURCE_KEYS))
        single = {k: v for k, v in given.items() if k in SOURCE_KEYS}
        if not single:
            return given
        if given.get("sources"):
            raise ConfigError(
                f"{', '.join(sorted(single))} is given next to sources; with several sources every key belongs to "
                "one of them",
                key=min(single),
            )
        if not given.get("use_reward_model", False):
            refuse(set(single), "use_reward_model: false")
        if "model" not in single:
            raise ConfigError.about("use_reward_model", "needs reward.model (or reward.sources)")
        model = single["model"]
        kind = model.get("model_type", "resnet") if isinstance(model, dict) else "resnet"
        name = {"resnet_reward": "resnet", "dummy": "constant"}.get(kind, str(kind).rpartition(":")[2])
        rest = {k: v for k, v in given.items() if k not in SOURCE_KEYS}
        return {**rest, "sources": {name: single}}

    @model_validator(mode="after")
    def _fits_together(self) -> RewardSettings:
        if self.use_reward_model and not self.sources:
            raise ConfigError.about("use_reward_model", "needs reward.model (or reward.sources)")
        if not self.use_reward_model:
            known = {"use_reward_model", "truth", *LIMITS} | (set() if self.sources else {"sources"})
            idle = sorted(self.model_fields_set - known)
            if idle:
                refuse(set(idle), "use_reward_model: false")
        if self.overlap_steps is not None and not any(source.can_overlap for source in self.sources.values()):
            raise ConfigError.about(
                "overlap_steps",
                "would do nothing: no source can be scored before the rollout is over. Those of language "
                "models, those with a cache, and models that are refitted before they score need all of it; remove it",
            )
        if "env" in self.sources or "combined" in self.sources:
            raise ConfigError("a reward source cannot be called env or combined: those names are taken", key="sources")
        return self

    @model_validator(mode="after")
    def _weights_fit_together(self) -> RewardSettings:
        self._check_falling()
        adaptive = [source.adaptive_weight.share for source in self.sources.values() if source.adaptive_weight]
        others = any(
            source.adaptive_weight is None and source.reward_weight and name != self.truth
            and source.reward_weight_schedule != "success"
            for name, source in self.sources.items()
        )  # fmt: skip
        if adaptive and not (self.env_weight() or others):
            raise ConfigError(
                "adaptive_weight needs another reward, of which the source has a share to the end: combine_mode: add",
                key="combine_mode",
            )
        if sum(adaptive) >= 1:
            raise ConfigError(
                f"the shares of adaptive_weight add up to {sum(adaptive):g}; they must leave some", key="sources"
            )
        if self.combine_mode != "weighted" and "env_reward_weight" in self.model_fields_set and self.env_reward_weight:
            raise ConfigError.about("env_reward_weight", "counts only with combine_mode: weighted; remove it")
        return self

    def _check_falling(self) -> None:
        """Refuse sources that all fall to 0.

        Raises:
            ConfigError: nothing would be learned from then on.
        """
        sources = self.of(RobotSource)
        falling = [name for name, source in sources.items() if source.falls]
        lasts = any(source.reward_weight for name, source in sources.items() if name not in falling)
        if falling and not (self.env_weight() or lasts):
            raise ConfigError(
                f"reward_weight_schedule success takes the weight of {' and '.join(falling)} to 0, and no other reward "
                "is left: set combine_mode to add",
                key="combine_mode",
            )

    def of(self, form: type[S]) -> dict[str, S]:
        """The sources of one form, by name."""
        return {name: source for name, source in self.sources.items() if isinstance(source, form)}

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
        source_form: its form.
    """

    source_name: ClassVar[str]
    source_form: ClassVar[type[TextSource | RunSource]] = RunSource

    rm_coef: float = Field(5.0, gt=0, description="weight of its advantage")
    verifier_coef: float = Field(5.0, ge=0, description="weight of the outcome's advantage; 0: none")
    rm_coef_schedule: WeightSchedule = Field("constant", description="how rm_coef changes over runner.schedule_steps")

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
        source = self.source_form.model_validate({**self.source_keys(), **terms})
        changes = {"combine_mode": "weighted", "env_reward_weight": self.verifier_coef, "use_reward_model": True}
        return reward.model_copy(update={**changes, "sources": {self.source_name: source, **reward.sources}})


class PrimeSection(PrimeSettings, _RewardModelSection):
    """`reward_model` of PRIME."""

    source_name = "prime"

    rm_type: Literal["prime"] = Field("prime", description="implicit process rewards")
    on_failure: OnFailure = Field("drop", description=FAILED)

    def source_keys(self) -> dict[str, Any]:
        """A model that learns in the run."""
        keys = self.model_dump(include=set(PrimeSettings.model_fields), exclude_unset=True)
        return {"model": {"model_type": "prime", **keys}, "on_failure": self.on_failure}


class ClassifierSection(_RewardModelSection):
    """`reward_model` of a sequence classifier."""

    source_name = "rm"
    source_form = TextSource

    rm_type: Literal["value", "normal"] = Field(
        "value", description="a sequence classifier that judges the whole response"
    )
    on_failure: OnFailure = Field("drop", description=FAILED)
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


def _check_unverified(
    reward: RewardSettings, section: RewardModelSection | None, sources: Mapping[str, SourceSettings]
) -> None:
    """Refuse what needs true success, and nothing that trains, of a language study whose prompts have no answers.

    Raises:
        ValueError: with the key and the reason.
    """
    unknown = "data.type prompts, which has no verifier"
    if reward.env_weight():
        refuse({"combine_mode", "env_reward_weight"} & reward.model_fields_set, unknown, "reward")
    if section is not None:
        refuse({"verifier_coef"} & section.model_fields_set, unknown, "reward_model")
    for name, one in sources.items():
        if isinstance(one, RunSource) and one.model.learns:
            raise ConfigError(
                f"the prime reward source {name} learns from outcomes, not with {unknown}",
                key=f"reward.sources.{name}",
            )
    if not set(sources) - {reward.truth}:
        raise ConfigError(
            f"nothing would train the policy with {unknown}: name reward models in reward.sources",
            key="reward.sources",
        )


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
    truth = reward.truth
    if not verified:
        _check_unverified(reward, section, sources)
    if truth == "verifier" and verified:
        if reward.env_weight() if section is None else section.verifier_coef:
            key = "reward.combine_mode to replace" if section is None else "reward_model.verifier_coef to 0"
            raise ConfigError.about("reward.truth", f"verifier is never trained on: set {key}")
    elif truth is not None:
        where, source = f"reward.sources.{truth}", sources.get(truth)
        if source is None:
            names = [*sources, *(["verifier"] if verified else [])]
            raise ConfigError.about("reward.truth", f"{truth!r} is none of the sources {', '.join(names)}")
        if source.model.compares:
            raise ConfigError(
                f"{relative(where)}, so it cannot be reward.truth, which scores responses one by one",
                key="reward.truth",
            )
        if isinstance(source.model, PrimeModelSettings):
            raise ConfigError.about("reward.truth", f"{truth} learns in the run, and a truth does not change")
        idle = {"reward_weight", "reward_weight_schedule", "adaptive_weight", "gamma"} & source.model_fields_set
        refuse(idle, "reward.truth, which is never trained on", where)
