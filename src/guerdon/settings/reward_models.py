"""Reward models: the forms of `reward.model`, and the registry of their names.

A form has the keys that its reward models use, the names that they have, and the function that loads them.

    form = MODEL_FORMS["resnet"]                                       # ResNetModelSettings
    REWARD_MODELS.factory("my_package.rewards:make_brightness")        # a user's own
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import Field, field_validator, model_validator

from guerdon.config.registry import Registry
from guerdon.errors import ConfigError
from guerdon.settings.aliases import ADAPTER_ALIAS, PATH_ALIAS, ZERO_MODEL, VLMShortForm
from guerdon.settings.base import DEVICE, PARAMS, Because, ByName, Device, Settings, Unless, names_in, only_with, refuse
from guerdon.settings.label import AnthropicJudgeSettings, JudgeSettings, check_budget
from guerdon.settings.prime import PrimeSettings
from guerdon.settings.remote import RemoteSettings
from guerdon.settings.train import RATING_WEIGHTS, Arch, ImageSize
from guerdon.settings.vlm import VLMName, VLMSettings, check_vlm, vlm_form

if TYPE_CHECKING:
    from guerdon.settings.algorithm import TextAlgorithmSettings
    from guerdon.settings.data import DataSettings

Side = Literal["robot", "text", "run"]
"""Whom a reward model is for: robots, language models, or a run of a language model in which it is made."""
if TYPE_CHECKING:
    ConstantName = str
else:
    ConstantName = Literal["constant", "dummy", ZERO_MODEL]


class UpdateSettings(Settings):
    """How a reward model is refitted during a run (`reward.model.update` says when)."""

    every: int = Field(1, ge=1, description="rollouts between refits")
    steps: int = Field(20, ge=1, description="gradient steps per refit (labeler adversarial: 50)")
    batch_size: int = Field(
        64, ge=2, description="frames per gradient step, fresh and replayed (labeler adversarial: 512)"
    )
    learning_rate: float = Field(3e-4, gt=0, description="of AdamW")
    replay_size: int = Field(4000, ge=2, description="labelled frames kept; old ones leave by reservoir sampling")
    replay_ratio: float = Field(
        0.5, ge=0, lt=1, description="share of each batch drawn from the replay (labeler adversarial: 0.75)"
    )


ADVERSARIAL_UPDATE = {"steps": 50, "batch_size": 512, "replay_ratio": 0.75}
"""Defaults of `update_params` with `labeler: adversarial`, chosen on four tasks of studies/ten_tasks.yaml."""


class _ModelSettings(Settings):
    """What all reward models share.

    Attributes:
        factory: `module:function` that loads the model; empty: it is made in a run alone.
        path_key: the key of the file or folder that it is read from.
        side: whom it is for; of `OwnModelSettings` and `RemoteModelSettings` see `side_of`.
    """

    factory: ClassVar[str] = ""
    path_key: ClassVar[str] = "checkpoint_path"
    side: ClassVar[Side] = "robot"

    @property
    def compares(self) -> bool:
        """Whether its values say how responses to one prompt compare, and nothing else (`RewardInfo.compares`)."""
        return False

    @property
    def origin(self) -> str:
        """Where it comes from, in words."""
        return self.checkpoint or "no checkpoint"

    @property
    def checkpoint(self) -> str | None:
        """Its folder, where it has one."""
        return getattr(self, "checkpoint_path", None)

    def arguments(self) -> dict[str, Any]:
        """What the factory is called with."""
        return {name: value for name, value in self if name != "model_type"}


_REFITTED = Because(Unless("none"), "update: {}")


class _ImageModelSettings(_ModelSettings):
    """What reward models of single frames share."""

    factory = "guerdon.models.images.image:load_image_model"

    checkpoint_path: str = Field(description="folder that `guerdon train` wrote, or its model.safetensors")
    arch: Arch | None = Field(None, description="refuse a checkpoint with another architecture")
    hidden_dim: int | None = Field(None, ge=1, description="refuse a checkpoint with another head")
    dropout: float | None = Field(None, ge=0, lt=1, description="refuse a checkpoint with another dropout")
    image_size: ImageSize | None = Field(None, description="refuse a checkpoint with another input size")
    device: Device = DEVICE
    debug_save_dir: str | None = Field(None, description="write scored frames to resnet_success/ and resnet_fail/")
    update: Literal["none", "before", "after"] = Field(
        "none", description="refit the model during RL, before or after the policy's update"
    )
    update_params: UpdateSettings = only_with(UpdateSettings(), update=_REFITTED, description="how it is refitted")
    replay_path: str | None = only_with(
        None, update=_REFITTED, description="episodes that seed the replay when the model is refitted"
    )

    def arguments(self) -> dict[str, Any]:
        """The checkpoint, and what it must be."""
        names = ("checkpoint_path", "arch", "hidden_dim", "dropout", "image_size", "device", "debug_save_dir")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {"kind": names_in(type(self), "model_type")[0], **given}

    @model_validator(mode="after")
    def _refitted(self) -> Self:
        if self.update != "none" and not self.replay_path:
            raise ConfigError.about(
                "update", f": {self.update} needs replay_path: the episodes that the model was trained on"
            )
        return self


class ResNetModelSettings(_ImageModelSettings):
    """A success classifier of frames."""

    model_type: Literal["resnet", "resnet_reward"] = Field("resnet", description="success classifier of frames")
    labeler: Literal["outcome", "adversarial"] = only_with(
        "outcome",
        update=_REFITTED,
        description="labels of fresh frames: true success, or 0 for all that the policy shows, with the successes of "
        "replay_path as the only positives (adversarial imitation, GAIL 1606.03476: no success is read in the run; "
        "arch mlp alone)",
    )
    own_successes: bool = only_with(
        False,
        labeler="adversarial",
        description="the run's own successes are positives, too, and no negatives; what follows one that was lost "
        "again is left out (needs an environment that reports success)",
    )
    demonstration_negatives: float = only_with(
        0.0,
        ge=0,
        le=1,
        labeler="adversarial",
        description="share of the replayed negatives that are rows of the demonstrations from before their success, so "
        "that it pays nothing to recognise a demonstration",
    )
    shuffled_goals: float = only_with(
        0.0,
        ge=0,
        le=1,
        labeler="adversarial",
        description="share of the replayed negatives that are successes of the demonstrations with the goal of "
        "another: the numbers of a state that stay the same in an episode and go with what moves",
    )
    shuffled_episodes: bool = only_with(
        False,
        labeler="adversarial",
        description="rows of a batch exchange the numbers that only tell episodes apart: those that stay the same in "
        "an episode and on which what moves does not depend",
    )

    @model_validator(mode="before")
    @classmethod
    def _adversarial(cls, given: Any) -> Any:
        if (
            not isinstance(given, dict)
            or given.get("labeler") != "adversarial"
            or given.get("update", "none") == "none"
        ):
            return given
        params = given.get("update_params", {})
        chosen = params.model_dump(exclude_unset=True) if isinstance(params, UpdateSettings) else params
        return {**given, "update_params": {**ADVERSARIAL_UPDATE, **chosen} if isinstance(chosen, dict) else chosen}

    @model_validator(mode="after")
    def _has_positives(self) -> Self:
        size, share = self.update_params.batch_size, self.update_params.replay_ratio
        if self.labeler == "adversarial" and min(round(size * share), size - 1) < 2:
            raise ConfigError.about(
                "labeler",
                "adversarial has its positives in the replay, and half of what is drawn from it are positives: "
                f"replay_ratio {share:g} of batch_size {size} draws fewer than 2 rows; set larger update_params",
            )
        if (shares := self.demonstration_negatives + self.shuffled_goals) > 1:
            raise ConfigError.about(
                "demonstration_negatives",
                f"and shuffled_goals are shares of the same negatives, and add up to {shares:g}",
            )
        return self


class ProgressModelSettings(_ImageModelSettings):
    """A progress regressor of frames."""

    model_type: Literal["progress"] = Field("progress", description="progress regressor of frames")
    labeler: Literal["outcome", "continuation"] = only_with(
        "outcome",
        update=_REFITTED,
        description="labels of fresh frames: true success of the episode, or (Meta-World) the steps that a scripted "
        "expert needs when it goes on from there",
    )


class ConstantModelSettings(_ModelSettings):
    """One value for every row."""

    factory = "guerdon.models.constant:ConstantModel"

    model_type: ConstantName = Field("constant", description="one value")
    value: float = Field(0.0, description="the value")


class _ReadModelSettings(_ModelSettings):
    """What reward models of text that are read from a folder share."""

    side = "text"

    checkpoint_path: str = Field(description="folder that `guerdon train` wrote, any other folder, or a hub id")
    micro_batch_size: int = Field(16, ge=1, description="solutions per forward pass")
    device: Device = DEVICE

    def arguments(self) -> dict[str, Any]:
        """The path, and how it is read."""
        return {("path" if name == "checkpoint_path" else name): value for name, value in super().arguments().items()}


class TextModelSettings(_ReadModelSettings):
    """A reward model of a language study."""

    factory = "guerdon.models.text.text_load:load_members"

    model_type: Literal["text"] = Field("text", description="any reward model of text")
    member_reward: Literal["mean", "lower_bound"] | None = Field(
        None,
        description="of a model with members: their mean, or the mean minus `deviations` standard deviations; null: as "
        "it was trained",
    )
    deviations: float = only_with(1.0, gt=0, member_reward="lower_bound", description="see member_reward")
    adapter: str = Field("auto", description="how steps are marked and scores read; auto: by the model's files")
    weights: dict[str, float] | None = RATING_WEIGHTS


class SequenceClassifierSettings(_ReadModelSettings):
    """A sequence classifier of responses."""

    factory = "guerdon.models.text.sequence_classifier:SequenceClassifier"

    model_type: Literal["value", "normal"] = Field(
        "value", description="a sequence classifier that judges the whole response by a logit"
    )
    micro_batch_size: int = Field(64, ge=1, description="solutions per forward pass")


JudgeMode = Literal["criteria", "scale", "pairwise", "listwise"]
JudgePromptName = Literal[
    "prometheus_absolute", "prometheus_relative", "reward_bench", "reward_bench_rating", "mt_bench_pair",
    "mt_bench_single", "judgelm", "skywork_critic", "rm_r1", "rm_r1_reasoning",
]  # fmt: skip


class JudgePrompt(NamedTuple):
    """The form of a published prompt.

    Attributes:
        mode: one response on a scale, or two compared.
        scale: lowest and highest score, of mode `scale`.
        reference: it has a place for a true answer.
        rubric: it has a place for a rubric.
    """

    mode: JudgeMode
    scale: tuple[float, float] = (0.0, 10.0)
    reference: bool = False
    rubric: bool = False


JUDGE_PROMPTS: dict[JudgePromptName, JudgePrompt] = {
    "prometheus_absolute": JudgePrompt("scale", (1.0, 5.0), reference=True, rubric=True),
    "prometheus_relative": JudgePrompt("pairwise", reference=True, rubric=True),
    "reward_bench": JudgePrompt("pairwise"),
    "reward_bench_rating": JudgePrompt("scale", (1.0, 10.0)),
    "mt_bench_pair": JudgePrompt("pairwise", reference=True),
    "mt_bench_single": JudgePrompt("scale", (1.0, 10.0), reference=True),
    "judgelm": JudgePrompt("pairwise", reference=True),
    "skywork_critic": JudgePrompt("pairwise"),
    "rm_r1": JudgePrompt("pairwise"),
    "rm_r1_reasoning": JudgePrompt("pairwise"),
}
"""What each published prompt asks for; their wording is `guerdon.models.judges.published`."""
JUDGE_CACHE = "judge_cache"


class JudgeModelSettings(_ModelSettings):
    """A language model that judges responses, without training."""

    factory = "guerdon.models.judges.judge:load_judge"
    path_key = "rubric"
    side = "text"

    model_type: Literal["judge"] = Field("judge", description="a language model that judges responses (docs/judges.md)")
    rubric: str | None = Field(
        None,
        description="TOML, YAML or JSON file of criteria; null with mode criteria: the rubric of each prompt, in its "
        "column `rubric`",
    )
    mode: JudgeMode = Field(
        "criteria",
        description="a judgement per criterion; a score on a scale; two responses to a prompt, in both orders; all "
        "responses to a prompt in one request. Values of the last two hold among the responses to one prompt only",
    )
    prompt: JudgePromptName | None = Field(
        None,
        description="a published judge's own prompt, which sets mode and scale (docs/judges.md#published-prompts)",
    )
    scale: tuple[float, float] = only_with(
        (0.0, 10.0), mode=("scale", "listwise"), description="lowest and highest score; they become 0 and 1"
    )
    votes: int = Field(1, ge=1, description="requests of a kind, averaged; several need a temperature above 0")
    tournament: Literal["all_pairs", "ring"] = only_with(
        "all_pairs", mode="pairwise", description="compare all pairs, or each response with its two neighbours"
    )
    min_measured: float = Field(
        0.5, gt=0, le=1, description="share of the judgements on a response that must be measured, else it has no value"
    )
    reference: bool = Field(False, description="show the judge the true answer of the prompt")
    judge: JudgeSettings = Field(AnthropicJudgeSettings(), description="which language model, where")
    max_usd: float | None = Field(None, gt=0, description="make no call by which all of cache_dir could cost more")
    cache_dir: str | None = Field(
        None, description="replies and costs; null: judge/NAME in the folder of a run, elsewhere judge_cache"
    )

    @property
    def compares(self) -> bool:
        """Whether it compares the responses to a prompt."""
        return self.mode in ("pairwise", "listwise")

    @property
    def origin(self) -> str:
        """The language model."""
        return f"the judge {self.judge.model_name}"

    def arguments(self) -> dict[str, Any]:
        """These settings."""
        return {"settings": self}

    @model_validator(mode="before")
    @classmethod
    def _of_prompt(cls, given: Any) -> Any:
        """Mode and scale of a published prompt, where they are not given."""
        name = given.get("prompt") if isinstance(given, Mapping) else None
        form = JUDGE_PROMPTS.get(name) if isinstance(name, str) else None  # type: ignore[call-overload]
        if form is None:
            return given
        scale = {"scale": form.scale} if form.mode == "scale" else {}
        return {"mode": form.mode, **scale, **given}

    @model_validator(mode="after")
    def _fits_prompt(self) -> Self:
        if self.prompt is None:
            return self
        form, named = JUDGE_PROMPTS[self.prompt], f"the prompt {self.prompt}"
        for key in ("mode", "scale"):
            own = getattr(form, key)
            if getattr(self, key) != own:
                raise ConfigError.about(key, f": {named} has the {key} {own}; remove {key}")
        for key, place in (("rubric", "rubric"), ("reference", "true answer")):
            if getattr(self, key) and not getattr(form, key):
                raise ConfigError.about(key, f": {named} has no place for a {place}; remove {key}, or prompt")
        if getattr(self.judge, "response_format", None) is not None:
            raise ConfigError.about("judge.response_format", f": {named} asks for words and not for JSON; remove it")
        return self

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_budget(self.max_usd, self.judge)
        if self.votes > 1 and self.judge.temperature == 0:
            raise ConfigError.about(
                "votes", f": {self.votes} replies at temperature 0 are the same; set judge.temperature, or votes: 1"
            )
        if self.scale[0] >= self.scale[1]:
            raise ConfigError.about("scale", f": the lowest score must be below the highest, these are {self.scale}")
        return self


class _RunModelSettings(_ModelSettings):
    """What reward models share that are made in a run, from the policy or the task."""

    side = "run"

    if TYPE_CHECKING:
        model_type: str

    @property
    def dense(self) -> bool:
        """Whether it pays more than one reward per response."""
        return True

    @property
    def min_form(self) -> bool:
        """Whether its rewards can be those of the min form (`algorithm.credit`)."""
        return False

    @property
    def learns(self) -> bool:
        """Whether it takes gradient steps in the run."""
        return False

    def check_run(self, name: str, data: DataSettings | None, algorithm: TextAlgorithmSettings) -> None:
        """Refuse a study whose runs cannot make this model; unless it is overridden: one without generated problems.

        Args:
            name: of its source.
            data: of the study.
            algorithm: of the study.

        Raises:
            ValueError: what does not fit, and what to do.
        """
        if data is not None and data.type != "generated":
            raise ConfigError(
                f"the {self.model_type} reward source {name} needs steps of known form: data.type generated",
                key="data.type",
            )


class PrimeModelSettings(PrimeSettings, _RunModelSettings):
    """PRIME's implicit process reward model, which starts from the policy and learns in the run."""

    model_type: Literal["prime"] = Field("prime", description="implicit process rewards, learned online")

    @property
    def dense(self) -> bool:
        """Whether it pays tokens or steps."""
        return self.prime_granularity != "whole"

    @property
    def min_form(self) -> bool:
        """Where it pays tokens or steps."""
        return self.dense

    def check_run(self, name: str, data: DataSettings | None, algorithm: TextAlgorithmSettings) -> None:
        """Refuse numbers of responses, and estimators, with which it cannot learn or pay."""
        needs = algorithm.needs
        self.check_study(
            name,
            n_samples=1 if data is None else data.n_samples,
            estimator=str(algorithm.adv_estimator),
            greedy=needs.greedy,
            critic=needs.critic,
        )

    @property
    def origin(self) -> str:
        """Where it starts."""
        return self.prime_model.path or "the policy's start"


class ExactModelSettings(_RunModelSettings):
    """The truth about each step, where the task knows it."""

    model_type: Literal["exact"] = Field(
        "exact",
        description="where the task knows, 1 for every token of a line that follows from the lines before it, whether "
        "those are right or not, else 0; with an agent, what the verifier says of each turn that calls no tool",
    )

    @property
    def origin(self) -> str:
        """The task."""
        return "the task itself"


class RemoteModelSettings(_ModelSettings):
    """A reward model on a reward server."""

    factory = "guerdon.serve.client:load_remote"
    short_form = (RemoteSettings,)

    model_type: Literal["remote", "remote_text"] = Field(
        "remote", description="one on a reward server, for robots; remote_text: for text"
    )
    remote: RemoteSettings = Field(RemoteSettings(), description="the server; its keys may stand under model too")

    @property
    def origin(self) -> str:
        """The address."""
        return self.remote.address

    def arguments(self) -> dict[str, Any]:
        """The settings of the client."""
        return {"settings": self.remote}

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, given: Any) -> Any:
        return remote_form(given) if isinstance(given, dict) else given


def remote_form(given: dict[str, Any]) -> dict[str, Any]:
    """The keys of a remote model, with those that stand directly under `model` moved to `remote`.

    Raises:
        ValueError: they stand in both places.
    """
    flat = {k: v for k, v in given.items() if k in RemoteSettings.model_fields}
    if flat and given.get("remote") is not None:
        raise ConfigError(
            f"{', '.join(sorted(flat))} is given next to remote; write all of them in one place", key=min(flat)
        )
    rest = {k: v for k, v in given.items() if k not in flat}
    return {**rest, "remote": flat} if flat or given.get("remote") is None else rest


class VLMModelSettings(_ModelSettings):
    """A vision-language model as a reward model."""

    factory = "guerdon.models.vlm.vlm:load_vlm"
    short_form = (VLMShortForm,)

    model_type: VLMName = Field(
        "qwen_vl",
        description="vision-language models: qwen_vl, primo_r1, true_logprob, trend, preference; published: robometer, "
        "roboreward. The guides' names of the first two imply keys of vlm (docs/vlm.md)",
    )
    checkpoint_path: str | None = Field(None, description="folder that `guerdon train` wrote, or its model.safetensors")
    vlm: VLMSettings | None = Field(
        None,
        description=f"which one, with which prompt; {PATH_ALIAS} and {ADAPTER_ALIAS} may stand directly "
        "under model and mean vlm.path and vlm.adapter",
    )
    device: Device = Field(
        "auto",
        description="where transformers computes: auto (a GPU where there is one), cpu, cuda or cuda:1; other backends "
        "place models themselves",
    )

    @property
    def origin(self) -> str:
        """The checkpoint, the model or the endpoint."""
        asked = None if self.vlm is None else self.vlm.path or (self.vlm.openai and self.vlm.openai.base_url)
        return self.checkpoint_path or asked or "no checkpoint"

    def arguments(self) -> dict[str, Any]:
        """Its name, the checkpoint and `vlm`."""
        return {
            "name": self.model_type,
            "checkpoint_path": self.checkpoint_path,
            "vlm": self.vlm,
            "device": self.device,
        }

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, given: Any) -> Any:
        return vlm_form(given) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _complete(self) -> Self:
        check_vlm(self.model_type, self.vlm, self.checkpoint_path)
        backend = "transformers" if self.vlm is None else self.vlm.backend
        if backend != "transformers" and self.device != "auto":
            refuse({"device"}, f"vlm.backend {backend}")
        return self


class SarmModelSettings(_ModelSettings):
    """A SARM checkpoint of LeRobot."""

    factory = "guerdon.models.images.sarm:load_sarm"

    model_type: Literal["sarm"] = Field("sarm", description="SARM of LeRobot, progress by stages")
    checkpoint_path: str = Field(description="folder that LeRobot wrote (`pretrained_model`)")
    head: Literal["sparse", "dense"] = Field("sparse", description="whose stages: the coarse or the fine ones")
    clip_path: str | None = Field(
        None,
        description="folder or hub id of the CLIP model of its training; null: `clip` in the folder, else "
        "openai/clip-vit-base-patch32",
    )
    device: Device = DEVICE


class OwnModelSettings(_ModelSettings):
    """A reward model that a user brings."""

    model_type: str = Field(description="a factory of your own")
    params: dict[str, Any] = PARAMS
    device: Device | None = Field(
        None,
        description="handed to a factory that has a parameter `device`: auto, cpu, cuda or cuda:1; null: the factory "
        "chooses",
    )
    modality: Literal["image", "state", "text"] | None = Field(
        None,
        description="what it looks at: image, state or text; null: what its `info` says, and text in a study of a "
        "language model",
    )

    @property
    def origin(self) -> str:
        """Its name."""
        return self.model_type

    _known = field_validator("model_type")(lambda name: REWARD_MODELS.known(name))

    @model_validator(mode="after")
    def _checked(self) -> Self:
        REWARD_MODELS.check(self.model_type, self.params)
        if self.device is not None and "device" not in signature(REWARD_MODELS.factory(self.model_type)).parameters:
            refuse({"device"}, f"{self.model_type}, which has no parameter `device`")
        return self


def relative(name: str) -> str:
    """Why a value of a reward model that compares cannot stand alone."""
    return f"{name} compares responses to the same prompt, and its values hold among those only"


RefittedModelSettings = ResNetModelSettings | ProgressModelSettings
RobotRewardModelSettings = Annotated[
    ResNetModelSettings
    | ProgressModelSettings
    | ConstantModelSettings
    | RemoteModelSettings
    | VLMModelSettings
    | SarmModelSettings
    | OwnModelSettings,
    ByName("model_type", "resnet"),
]
"""The forms of `reward.model` that judge episodes of robots."""
RunModelSettings = Annotated[PrimeModelSettings | ExactModelSettings, ByName("model_type", "prime")]
"""Reward models that are made in a run, from the policy or the task; their values are rewards as they are."""
RewardModelSettings = Annotated[
    ResNetModelSettings
    | ProgressModelSettings
    | ConstantModelSettings
    | TextModelSettings
    | SequenceClassifierSettings
    | JudgeModelSettings
    | PrimeModelSettings
    | ExactModelSettings
    | RemoteModelSettings
    | VLMModelSettings
    | SarmModelSettings
    | OwnModelSettings,
    ByName("model_type", "resnet"),
]
"""`reward.model`: which model, from where."""
TextRewardModelSettings = Annotated[
    TextModelSettings | SequenceClassifierSettings | JudgeModelSettings | RemoteModelSettings | OwnModelSettings,
    ByName("model_type", "text"),
]
"""The forms of `reward.model` that judge texts without a run that they are made in."""

_NAMES = {name: form for form in get_args(get_args(RewardModelSettings)[0]) for name in names_in(form, "model_type")}
MODEL_NAMES = tuple(_NAMES)
"""guerdon's own names of `model_type`, those of models that are made in a run included."""
MODEL_FORMS: dict[str, type[RewardModelSettings]] = {name: form for name, form in _NAMES.items() if form.factory}
REWARD_MODELS: Registry = Registry(
    "reward model", "guerdon.reward_models", {name: form.factory for name, form in MODEL_FORMS.items()}, ("device",)
)


def side_of(model: Any) -> Side:
    """Whom a reward model is for.

    Args:
        model: the section `reward.model`, checked or as it is written.
    """
    given: Mapping[str, Any] = {}
    if isinstance(model, Mapping):
        given = model
    elif isinstance(model, _ModelSettings):
        given = dict(model)
    name = str(given.get("model_type", "resnet"))
    if name in _NAMES:
        return "text" if name == "remote_text" else _NAMES[name].side
    return "text" if (given.get("modality") or _declared_modality(name)) == "text" else "robot"


def _declared_modality(name: str) -> str | None:
    """What a user's own model looks at, by the `info` of its factory; None: it is known once the model is made."""
    with suppress(ConfigError):  # the check of `model_type` says what is wrong with the name
        return getattr(getattr(REWARD_MODELS.factory(name), "info", None), "modality", None)
    return None


def judging_text(model: Any) -> Any:
    """`model` in a study of a language model: a user's own that does not say what it looks at judges text."""
    if not isinstance(model, Mapping) or model.get("modality") is not None:
        return model
    name = str(model.get("model_type", "resnet"))
    if name in _NAMES or _declared_modality(name) not in (None, "text"):
        return model
    return {**model, "modality": "text"}
