"""A source of rewards: the three forms of an entry of `reward.sources`, for robots, for text, and of a run itself.

Which form an entry has follows from its model (`side_of`). A key of another form is refused.

    RobotSource(model={"model_type": "constant"}, reward_mode="per_step", score_every=4)
    TextSource(model={"model_type": "text", "checkpoint_path": "prm"}, reward_mode="per_step", shaping="raw")
    RunSource(model={"model_type": "prime"}, reward_weight=5)
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Discriminator, Field, Tag, model_validator

from guerdon.errors import ConfigError
from guerdon.settings.aliases import LOGGED_AS_PRM, LiberoWords
from guerdon.settings.base import Because, Settings, imply, names_in, only_with, refuse
from guerdon.settings.evaluate import Aggregation
from guerdon.settings.label import Splitter
from guerdon.settings.remote import NATIVE, SCORE, RemoteSettings
from guerdon.settings.reward_models import (
    JudgeModelSettings,
    RefittedModelSettings,
    RemoteModelSettings,
    RewardModelSettings,
    RobotRewardModelSettings,
    RunModelSettings,
    Side,
    TextRewardModelSettings,
    relative,
    remote_form,
    side_of,
)

OnFailure = Literal["drop", "neutral", "raise"]
FAILED = (
    "a measurement failed: mask its step, or the response it is about (drop), reward 0 and keep it (neutral), or stop "
    "(raise)"
)
WeightSchedule = Literal["constant", "linear_decay", "linear_warmup"]
"""How the weight of a source changes with the steps of a run."""

SOURCE_KEYS = (
    "model", "reward_mode", "score_every", "aggregation", "splitter", "shaping", "success_reward", "fail_reward",
    "use_negative_reward", "reward_threshold", *LiberoWords.model_fields, "confirm_frames", "ends", "reward_coef",
    "reward_weight", "reward_weight_schedule", "schedule_from", "schedule_to", "adaptive_weight", "gamma", "on_failure",
    "cache",
)  # fmt: skip
"""The keys of the three forms of a source, in the order in which files have them."""


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
            raise ConfigError.about("min_weight", f"{self.min_weight:g} is above max_weight {self.max_weight:g}")
        return self


_FOR = {"robot": "robots", "text": "language models", "run": "a run of a language model, which makes it"}


class _Source(Settings):
    """What the three forms of a source share: which model, and how its rewards count in the advantage."""

    key_order = SOURCE_KEYS
    side: ClassVar[Side]

    model: RewardModelSettings = Field(description="which model, from where")
    reward_weight: float = Field(
        1.0,
        description="weight of this source in the advantage; of a robot's only source, whose advantages are "
        "normalised, it changes nothing, which the run says at its start",
    )
    reward_weight_schedule: WeightSchedule = Field(
        "constant", description="how reward_weight changes over runner.schedule_steps"
    )
    adaptive_weight: ShareSettings | None = Field(
        None, description="learn the weight: it starts as reward_weight and keeps the source's share of the signal"
    )
    gamma: float | None = Field(None, ge=0, le=1, description="discount of this source; null: the algorithm's")
    on_failure: OnFailure = Field("drop", description=FAILED)

    @property
    def text(self) -> bool:
        """Whether it judges what a language model writes."""
        return self.side != "robot"

    @property
    def stays_with_learner(self) -> bool:
        """Whether it is scored in the process of the learner: it changes in the run, or is elsewhere already."""
        return True

    @property
    def can_overlap(self) -> bool:
        """Whether it can be measured before its rollout is over."""
        return False

    @model_validator(mode="before")
    @classmethod
    def _of_this_form(cls, given: Any) -> Any:
        """Refuse models and keys of other forms; such a key that is null counts as not given."""
        if not isinstance(given, dict) or "model" not in given:
            return given
        kind, side = f"model_type {_type_named(given['model'])}", side_of(given["model"])
        if side != cls.side:
            raise ConfigError(f"{kind} is for {_FOR[side]}, and this is a source for {_FOR[cls.side]}", key="model")
        others = {key for key in SOURCE_KEYS if key in given and key not in cls.model_fields}
        refuse({key for key in others if given[key] is not None}, kind)
        return {key: value for key, value in given.items() if key not in others}


class _ScoredSource(_Source):
    """What the sources of robots and of text share: values of a model that is there before the run become rewards."""

    success_reward: float = Field(1.0, description="threshold: reward above the threshold; bonus: the one-shot reward")
    fail_reward: float = Field(0.0, description="reward at or below the threshold")
    use_negative_reward: bool = Field(False, description="fail_reward becomes -success_reward; risks policy collapse")
    reward_threshold: float | None = Field(None, ge=0, le=1, description="null: the one stored with the model")
    reward_coef: float = Field(1.0, description="multiplies the shaped reward")

    @property
    def effective_fail_reward(self) -> float:
        """What a step or episode below the threshold earns."""
        return -self.success_reward if self.use_negative_reward else self.fail_reward

    @model_validator(mode="before")
    @classmethod
    def _a_request_that_fails(cls, given: Any) -> Any:
        remote = _remote_of(given)
        if remote is None or remote.get("fail_on_request_error") is not True:
            return given
        found = dict(given)
        imply(found, "on_failure", "raise", "fail_on_request_error")
        return found

    @model_validator(mode="after")
    def _weight_fits(self) -> Self:
        if self.adaptive_weight is None:
            return self
        if "reward_weight_schedule" in self.model_fields_set:
            raise ConfigError.about(
                "adaptive_weight", "and reward_weight_schedule both change the weight; remove one of them"
            )
        low, high = self.adaptive_weight.min_weight, self.adaptive_weight.max_weight
        if not low <= self.reward_weight <= high:
            raise ConfigError.about(
                "reward_weight",
                f"{self.reward_weight:g}, the start of adaptive_weight, is outside its limits {low:g} to {high:g}",
            )
        return self

    @model_validator(mode="after")
    def _one_fail_reward(self) -> Self:
        if self.use_negative_reward and "fail_reward" in self.model_fields_set:
            raise ConfigError.about("use_negative_reward", "sets fail_reward to -success_reward; give one of the two")
        return self


_THRESHOLDS = {"success_reward", "fail_reward", "use_negative_reward", "reward_threshold"}


class RobotSource(_ScoredSource, LiberoWords):
    """A source of rewards of a robot: a model that scores frames, states or whole episodes."""

    side = "robot"

    left_out = frozenset({"schedule_from", "schedule_to"})

    model: RobotRewardModelSettings = Field(description="which model, from where")
    reward_weight_schedule: WeightSchedule | Literal["success"] = Field(  # type: ignore[assignment]  # wider than of a text
        "constant",
        description="how reward_weight changes: over runner.schedule_steps; or success: it falls as true success of "
        "the last 20 training episodes rises, and never rises again",
    )
    schedule_from: float = only_with(
        0.0,
        ge=0,
        lt=1,
        reward_weight_schedule="success",
        description="share of true success up to which the weight is reward_weight",
    )
    schedule_to: float = only_with(
        1.0,
        gt=0,
        le=1,
        reward_weight_schedule="success",
        description="share of true success from which on the weight is 0, and the model is not asked any more",
    )
    reward_mode: Literal["per_step", "terminal", "episode"] = Field(
        "terminal",
        description="terminal: score the last frame of an episode; per_step: every score_every-th and the last; "
        "episode: judge the whole episode once, at its end, from its first frame, every score_every-th and the last",
    )
    score_every: int = Field(1, ge=1, description="per_step, episode: score every k-th step and the last")
    shaping: Literal["threshold", "raw", "log_odds", "relative", "potential", "bonus"] = Field(
        "threshold",
        description="how values become rewards: one of two by a threshold; as they are; log(p / (1 - p)) (the reward "
        "of AIRL, 1710.11248); change since the last value; potential-based; one-shot",
    )
    confirm_frames: int = Field(2, ge=1, description="bonus: scored frames in a row above the threshold")
    ends: bool = only_with(
        False,
        shaping="bonus",
        description="the confirmed bonus ends the task in what SAC and DQN learn from; the episode itself goes on, and "
        "stops without true success are counted (docs/people.md)",
    )
    cache: CacheSettings | None = Field(
        None, description="use the values of frames that look alike again; null: every frame is scored"
    )

    @property
    def stays_with_learner(self) -> bool:
        """Where it is refitted, or on a reward server."""
        return self.refitted is not None or isinstance(self.model, RemoteModelSettings)

    @property
    def can_overlap(self) -> bool:
        """Where neither a refit before it scores nor a cache needs the whole rollout."""
        before = self.refitted is not None and self.refitted.update == "before"
        return not before and self.cache is None

    @property
    def refitted(self) -> RefittedModelSettings | None:
        """The model, where it is refitted during the run."""
        model = self.model
        return model if isinstance(model, RefittedModelSettings) and model.update != "none" else None

    @property
    def falls(self) -> bool:
        """Whether its weight falls as true success rises."""
        return self.reward_weight_schedule == "success"

    @property
    def native_fallback(self) -> bool:
        """Whether true success takes the place of a score that the reward server did not give."""
        return isinstance(self.model, RemoteModelSettings) and self.model.remote.fallback == "native"

    @model_validator(mode="before")
    @classmethod
    def _whole_episodes(cls, given: Any) -> Any:
        if not _asks_for_score(_remote_of(given)):
            return given
        found = dict(given)
        imply(found, "reward_mode", "episode", f"an endpoint {SCORE}, which judges whole episodes")
        return found

    @model_validator(mode="after")
    def _shaping_fits_mode(self) -> Self:
        if self.reward_mode != "per_step" and self.shaping in ("relative", "potential", "bonus"):
            raise ConfigError.about(
                "shaping",
                f"{self.shaping} needs reward_mode: per_step; {self.reward_mode} gives one value per episode",
            )
        return self

    @model_validator(mode="after")
    def _fallback_fits(self) -> Self:
        if self.native_fallback and "on_failure" in self.model_fields_set:
            raise ConfigError(
                "fallback native is not for use with on_failure: remove one of them", key="model.remote.fallback"
            )
        return self

    @model_validator(mode="after")
    def _no_idle_keys(self) -> Self:
        given = self.model_fields_set
        if self.reward_mode == "terminal":
            refuse(given & {"score_every"}, f"model_type {self.model.model_type} and reward_mode terminal")
        idle = {*_THRESHOLDS, "success_threshold", "confirm_frames"}
        if self.shaping == "threshold":
            idle = {"confirm_frames"}
        elif self.shaping == "bonus":
            idle = {"fail_reward", "use_negative_reward"}
        refuse(given & idle, f"shaping {self.shaping}")
        return self

    @model_validator(mode="after")
    def _schedule_fits(self) -> Self:
        kind = self.model.model_type
        if kind in LOGGED_AS_PRM:
            given = self.model_fields_set & {"reward_weight_schedule"}
            refuse(given, f"model_type {kind}, whose log lines name one weight")
        if self.schedule_from >= self.schedule_to:
            raise ConfigError.about(
                "schedule_from", f"{self.schedule_from:g} is not below schedule_to {self.schedule_to:g}"
            )
        if self.falls and self.reward_weight == 0:
            raise ConfigError.about("reward_weight_schedule", "success lowers reward_weight, which is 0 here")
        if self.falls and self.ends:
            raise ConfigError.about(
                "ends", "true is of a model that judges the whole run, and reward_weight_schedule success ends that"
            )
        return self

    @model_validator(mode="after")
    def _cache_fits(self) -> Self:
        if self.cache is not None and (self.reward_mode == "episode" or self.refitted is not None):
            what = f"reward_mode {self.reward_mode}" if self.refitted is None else "a model that is refitted"
            raise ConfigError.about(
                "cache", f"is of the values of single frames, which {what} does not have; remove it"
            )
        return self


class TextSource(_ScoredSource):
    """A source of rewards of a language model: a model that scores its responses, or their steps."""

    side = "text"

    model: TextRewardModelSettings = Field(description="which model, from where")
    reward_mode: Literal["per_step", "terminal", "per_token", "per_turn"] = Field(
        "terminal",
        description="terminal: score the whole response, paid at its end; per_step: each step, paid at its last token; "
        "per_token: each step, paid at each of its tokens; per_turn: each turn of a conversation with an agent, paid "
        "at its end (terminal: its last turn)",
    )
    aggregation: Aggregation | None = Field(None, description="how the values of steps become one value of a solution")
    splitter: Splitter | None = Field(
        None, description="where steps end; null: as label.splitter does with null. Cut as in training"
    )
    shaping: Literal["threshold", "raw", "signed", "relative"] = Field(
        "threshold",
        description="how values become rewards: one of two by a threshold; as they are; 2p - 1 (a wrong step costs, as "
        "in PURE); change since the last value (the first step pays its own)",
    )

    @property
    def dense(self) -> bool:
        """Whether it pays more than one reward per response."""
        return self.reward_mode != "terminal"

    @property
    def scores_steps(self) -> bool:
        """Whether it pays single steps of what the model writes, and not whole responses or turns."""
        return self.reward_mode in ("per_step", "per_token")

    @property
    def min_form(self) -> bool:
        """Whether its rewards can be those of the min form (`algorithm.credit`)."""
        return self.reward_mode == "per_step"

    @property
    def stays_with_learner(self) -> bool:
        """Where it is on a server."""
        return isinstance(self.model, RemoteModelSettings | JudgeModelSettings)

    @model_validator(mode="before")
    @classmethod
    def _no_videos(cls, given: Any) -> Any:
        if _asks_for_score(_remote_of(given)):
            raise ConfigError(
                f"an endpoint {SCORE} judges whole episodes of robots; text needs one {NATIVE}", key="model"
            )
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        mode, shaping, kind = self.reward_mode, self.shaping, f"model_type {self.model.model_type}"
        given = self.model_fields_set
        if not self.scores_steps and shaping == "relative":
            raise ConfigError.about(
                "shaping", f"{shaping} needs reward_mode: per_step; {mode} gives one value per response"
            )
        if isinstance(self.model, RemoteModelSettings) and self.model.remote.fallback == "native":
            raise ConfigError(
                "fallback native is not for use with language models: remove one of them", key="model.remote.fallback"
            )
        if self.model.compares and shaping == "threshold":
            raise ConfigError(f"{relative(kind)}: set shaping to raw or signed, not threshold", key="shaping")
        if self.scores_steps:
            refuse(given & {"aggregation"}, f"{kind} and reward_mode {mode}")
        if shaping != "threshold":
            refuse(given & _THRESHOLDS, f"shaping {shaping}")
        return self


class RunSource(_Source):
    """A source of rewards that a run of a language model makes itself; its values are rewards as they are."""

    side = "run"

    model: RunModelSettings = Field(description="which model, from where")
    on_failure: OnFailure = only_with("drop", model_type=Because("prime", "model_type {}"), description=FAILED)

    @property
    def model_type(self) -> str:
        """That of its model."""
        return self.model.model_type

    @property
    def dense(self) -> bool:
        """Whether it pays more than one reward per response."""
        return self.model.dense

    @property
    def min_form(self) -> bool:
        """Whether its rewards can be those of the min form (`algorithm.credit`)."""
        return self.model.min_form


def _form_of(given: Any) -> str:
    """The name of the form that a source has, by the model that it names."""
    if isinstance(given, _Source):
        return type(given).__name__
    side = side_of(given.get("model") if isinstance(given, dict) else None)
    return next(form.__name__ for form in (RobotSource, TextSource, RunSource) if form.side == side)


SourceSettings = RobotSource | TextSource | RunSource
"""An entry of `reward.sources`."""
SourceByModel = Annotated[
    Annotated[RobotSource, Tag("RobotSource")]
    | Annotated[TextSource, Tag("TextSource")]
    | Annotated[RunSource, Tag("RunSource")],
    Discriminator(_form_of),
]
"""The same, where the form follows from the model."""


def _type_named(model: Any) -> str:
    """The `model_type` of a model, checked or as it is written."""
    return str(model.get("model_type", "resnet") if isinstance(model, dict) else getattr(model, "model_type", model))


def _remote_of(given: Any) -> dict[str, Any] | None:
    """The keys `remote` of the model of a source, however they are written; None for a model that is not remote."""
    model = given.get("model") if isinstance(given, dict) else None
    if isinstance(model, RemoteModelSettings):
        return model.remote.model_dump(exclude_unset=True)
    if not isinstance(model, dict) or model.get("model_type") not in names_in(RemoteModelSettings, "model_type"):
        return None
    try:
        remote = remote_form(model)["remote"]
    except ConfigError:  # the form of the model refuses it, with its place
        return None
    if isinstance(remote, RemoteSettings):
        return remote.model_dump(exclude_unset=True)
    return remote if isinstance(remote, dict) else None


def _asks_for_score(remote: dict[str, Any] | None) -> bool:
    """Whether a remote model is asked for the score of one whole episode at a time."""
    default = RemoteSettings.model_fields["endpoint"].default
    return remote is not None and urlsplit(str(remote.get("endpoint", default))).path == SCORE
