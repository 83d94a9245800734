"""The root of a configuration: one file describes a study, and each command reads its own sections.

runner, env, policy, algorithm, reward: what `guerdon run` does; collect, label, train, evaluate, bc: what precedes it;
compare: the arms, seeds and tasks of a study.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from guerdon.config.loading import load
from guerdon.config.tree import Tree, apply_overrides
from guerdon.errors import ConfigError
from guerdon.processes.progress import log_line
from guerdon.settings.agent import AgentSettings, check_agent
from guerdon.settings.algorithm import ControlAlgorithmSettings, RobotAlgorithmSettings, TextAlgorithmSettings
from guerdon.settings.aliases import guide_names
from guerdon.settings.base import FolderName, Seed, Settings, folder_name, refuse
from guerdon.settings.cluster import ClusterSettings
from guerdon.settings.collect import CollectSettings
from guerdon.settings.data import DataSettings
from guerdon.settings.evaluate import EvaluateSettings, EvaluateTextSettings, judges_text, on_own_family
from guerdon.settings.known_environments import KnownRow, row_of, words_of
from guerdon.settings.label import LabelSettings
from guerdon.settings.off_policy import ReplayAlgorithmSettings, RobotAlgorithm
from guerdon.settings.other_trainers import hint_for, hint_in_arm
from guerdon.settings.policy import (
    BCSettings,
    CNNPolicySettings,
    ControlPolicySettings,
    MLPPolicySettings,
    OwnPolicySettings,
    PolicySettings,
)
from guerdon.settings.reward import RewardModelSection, RewardSettings, check_truth
from guerdon.settings.reward_models import judging_text, relative
from guerdon.settings.reward_source import RobotSource, RunSource, TextSource
from guerdon.settings.runner import LoggerSettings, RunnerSettings
from guerdon.settings.search import SearchSettings
from guerdon.settings.text_policy import (
    NAME_A_MODEL,
    GenerationSettings,
    LocalGenerationSettings,
    TextPolicySettings,
)
from guerdon.settings.train import (
    ImageTrainSettings,
    ProgressTrainSettings,
    ResNetTrainSettings,
    SFTSettings,
    TextTrainSettings,
    TrainSettings,
    VLMTrainSettings,
)
from guerdon.settings.world import MetaWorldSettings, WorldSettings

# ---------------------------------------------------------------------------------------------------------------------
# The `compare` section: arms, seeds and tasks of a study.
#
# CompareSettings(arms={"A": ArmSettings(label="0/1")}, baseline="A")
# ---------------------------------------------------------------------------------------------------------------------


class ArmSettings(Settings):
    """One arm of a study: a label and what differs from the rest of the file."""

    label: str = Field(description="how the report calls the arm")
    config: dict[str, Any] = Field(default_factory=dict, description="what differs from the rest of the file")


class CompareSettings(Settings):
    """`compare`: arms x seeds x tasks."""

    arms: dict[FolderName, ArmSettings] = Field(
        description="by name; the override compare.arms=[a, b] chooses some of them"
    )
    baseline: str = Field(description="the arm that others are compared with")
    seeds: tuple[Seed, ...] = Field((0, 1, 2), description="one run per arm, task and seed")
    tasks: tuple[str, ...] | dict[str, dict[str, Any]] = Field(
        (),
        description="names that replace env.task, or names with what differs from the rest of the file; empty: the "
        "file's own task alone. The override compare.tasks=[a] chooses some of the names with what differs",
    )
    parallel: int = Field(0, ge=0, description="jobs at a time; 0: one per GPU where they may use one, else per core")
    correction: Literal["none", "holm"] = Field(
        "none",
        description="of intervals, conclusions and p-values for the number of arms that are compared with the "
        "baseline: none, or Holm's step-down method",
    )

    @field_validator("tasks")
    @classmethod
    def _are_folders(cls, tasks: Sequence[str] | Mapping[str, Any]) -> Any:
        for task in tasks:
            folder_name(task)
        return tasks

    def at_task(self, name: str) -> dict[str, Any]:
        """What the study changes for a task."""
        return self.tasks[name] if isinstance(self.tasks, dict) else {"env": {"task": name}}

    @model_validator(mode="after")
    def _fits(self) -> CompareSettings:
        if self.baseline not in self.arms:
            raise ConfigError(
                f"compare.baseline {self.baseline!r} is not an arm; arms are {', '.join(self.arms)}", key="baseline"
            )
        for name, values in (("seeds", self.seeds), ("tasks", tuple(self.tasks))):
            if len(set(values)) != len(values):
                raise ConfigError(f"compare.{name} repeats an entry", key=name)
        return self


# ---------------------------------------------------------------------------------------------------------------------


class Study(Settings):
    """A whole configuration file; what is made from one is a `RobotStudy` or a `TextStudy`."""

    model_config = ConfigDict(defer_build=True)  # one of the two kinds is needed

    name: str = Field("study", description="title of the report")
    engine: Literal["local", "ray"] = Field(
        "local", description="where a run works: in one process, or on a Ray cluster"
    )
    cluster: ClusterSettings = Field(ClusterSettings(), description="engine ray: what of the cluster a run uses")
    work_dir: str = Field("runs/study", description="where a study keeps data, models, runs and its report")
    runner: RunnerSettings = Field(RunnerSettings(), description="length, evaluations and folder of a run")
    env: WorldSettings = Field(MetaWorldSettings(), description="what the policy acts in")
    policy: Annotated[PolicySettings, Field(description="the policy")] = MLPPolicySettings()
    algorithm: Annotated[
        RobotAlgorithm | TextAlgorithmSettings, Field(discriminator="type", description="how it learns")
    ] = ControlAlgorithmSettings()
    reward: RewardSettings = Field(RewardSettings(), description="which measurements train the policy")
    data: DataSettings | None = Field(None, description="prompts with known answers, for a language model")
    generation: GenerationSettings = Field(LocalGenerationSettings(), description="how a language model writes")
    agent: AgentSettings | None = Field(
        None, description="conversations of several calls of a language model, with tools, a program or a world"
    )
    reward_model: RewardModelSection | None = Field(
        None,
        description="a reward in addition to the verifier's, for a language model: a short form of one entry of "
        "reward.sources; null: none",
    )
    sft: SFTSettings | None = Field(None, description="supervised start of a language model")
    label: LabelSettings | None = Field(None, description="labels of the steps of a language model's solutions")
    search: SearchSettings | None = Field(None, description="answers to questions, chosen by a reward model")
    collect: CollectSettings | None = Field(None, description="episodes to collect")
    train: dict[FolderName, TrainSettings] = Field(default_factory=dict, description="reward models to fit, by name")
    bc: BCSettings | None = Field(None, description="behaviour cloning of collected episodes")
    evaluate: (
        Annotated[EvaluateSettings | EvaluateTextSettings, Field(discriminator="type", description="on what, how")]
        | None
    ) = Field(
        EvaluateSettings(),
        description="how reward models are judged; null: those for text on problems of the study's own family",
    )
    compare: CompareSettings | None = Field(None, description="arms, seeds and tasks of a study")

    @staticmethod
    def other_names(tree: Tree, overrides: Sequence[str]) -> tuple[Tree, list[str]]:
        """The guides' names as keys; see `guide_names`."""
        return guide_names(tree, overrides)

    @staticmethod
    def hint_for(path: str, value: Any) -> str:
        """Where a section belongs that is written in an arm; what a key of another trainer is called here."""
        return hint_in_arm(path, Study.model_fields) or hint_for(path, value)

    @classmethod
    def implied(cls, given: dict[str, Any]) -> dict[str, Any]:
        """`algorithm` and `evaluate` belong to the kind of policy that the file names, runs lie in `work_dir`.

        A file without a policy whose reward models are for text is a language study.
        """
        text = _kind_of(given).text
        if text and given.get("policy") is None:
            given = {**given, "policy": {"type": "text"}}
        mark = {"type": "text" if text else "control"}
        sections = {"algorithm": given.get("algorithm", {}), "evaluate": given.get("evaluate")}
        if not text and sections["evaluate"] is None:
            del sections["evaluate"]
            given = {key: section for key, section in given.items() if key != "evaluate"}
        elif text and isinstance(sections["evaluate"], dict):
            sections["evaluate"] = on_own_family(sections["evaluate"], given.get("data"))
        filled = dict(given)
        for key, section in sections.items():
            filled[key] = {**mark, **section} if isinstance(section, dict) else section
        if text and isinstance(given.get("reward"), dict):
            filled["reward"] = _judging_text(given["reward"])
        if runner := _implied_runner(given):
            filled["runner"] = runner
        return filled

    text: ClassVar[bool] = False
    """Whether the policy is a language model."""

    def __new__(cls, **given: Any) -> Self:
        """A study of the kind that the sections say."""
        kind: type[Any] = cls if cls is not Study else _kind_of(given)
        return super().__new__(kind)  # type: ignore[no-any-return]

    @classmethod
    def model_validate(cls, obj: Any, **how: Any) -> Self:
        """A study of the kind that the sections say."""
        kind: type[Any] = cls if cls is not Study or not isinstance(obj, dict) else _kind_of(obj)
        return super(Study, kind).model_validate(obj, **how)  # type: ignore[return-value]

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        return cls.implied(given) if isinstance(given, dict) else given

    @property
    def control_policy(self) -> ControlPolicySettings:
        """The policy of a robot study."""
        assert not isinstance(self.policy, TextPolicySettings)
        return self.policy

    @property
    def control_algorithm(self) -> RobotAlgorithmSettings:
        """The algorithm of a robot study."""
        return self.algorithm  # type: ignore[return-value]

    @property
    def on_policy(self) -> ControlAlgorithmSettings:
        """The algorithm of a robot study that learns from rollouts alone."""
        return self.algorithm  # type: ignore[return-value]

    @property
    def text_policy(self) -> TextPolicySettings:
        """The policy of a language study.

        Raises:
            ConfigError: the study names no language model.
        """
        if not self.text_default.named:
            raise ConfigError(f"this command needs a policy: {NAME_A_MODEL}", key="policy")
        return self.text_default

    @property
    def text_default(self) -> TextPolicySettings:
        """`policy` of a language study, for keys of other sections that it stands for; it may name no model."""
        assert isinstance(self.policy, TextPolicySettings)
        return self.policy

    @property
    def text_algorithm(self) -> TextAlgorithmSettings:
        """The algorithm of a language study."""
        assert isinstance(self.algorithm, TextAlgorithmSettings)
        return self.algorithm

    def success_readers(self) -> list[str]:
        """The keys of a robot run, but for those of `env`, that need the environment to report true success."""
        collection = self.env.data_collection
        readers = ["env.data_collection.only_success"] if collection.enabled and collection.only_success else []
        for name, source in self.robot_sources.items() if self.reward.use_reward_model else ():
            if source.refitted is not None and source.refitted.labeler == "outcome":
                readers.append(f"reward.sources.{name}.model.update")
            if getattr(source.refitted, "own_successes", False):
                readers.append(f"reward.sources.{name}.model.own_successes")
            if source.falls:
                readers.append(f"reward.sources.{name}.reward_weight_schedule: success")
            if source.native_fallback:
                readers.append(f"reward.sources.{name}.model.fallback: native")
        return readers

    @property
    def schedules(self) -> list[str]:
        """The keys of a run by which something changes over `runner.schedule_steps`."""
        keys = {
            "algorithm.lr_schedule": not self.fixed_rate,
            "algorithm.exploration_fraction": self.algorithm.type == "dqn",
            "algorithm.kl_schedule": getattr(self.algorithm, "kl_schedule", "constant") != "constant",
        }
        followed = [key for key, is_followed in keys.items() if is_followed]
        sources: Mapping[str, Any] = self.text_sources if self.text else {}
        if not self.text and self.reward.use_reward_model:
            sources = self.robot_sources
        short = None if self.reward_model is None else self.reward_model.source_name
        for name, source in sources.items():
            if source.reward_weight_schedule in ("linear_decay", "linear_warmup"):
                key = f"reward.sources.{name}.reward_weight_schedule"
                followed.append("reward_model.rm_coef_schedule" if name == short else key)
        return followed

    @property
    def fixed_rate(self) -> bool:
        """Whether the learning rate of the policy is the same in the whole run."""
        return getattr(self.algorithm, "lr_schedule", "constant") == "constant"

    def check_rate(self) -> None:
        """Refuse a run whose learning rate is 0 before its end.

        Raises:
            ConfigError: with the key that says how long it falls.
        """
        length, steps = self.runner.schedule_length, self.runner.total_steps
        if not self.fixed_rate and length < steps:
            raise ConfigError.about(
                "runner.schedule_steps",
                f"{length}: algorithm.lr_schedule ends there with a learning rate of 0, and nothing would be learned "
                f"up to runner.total_steps {steps}: set schedule_steps to {steps} or more",
            )

    @property
    def image_models(self) -> dict[str, ImageTrainSettings]:
        """The reward models of a robot study that look at frames."""
        return {k: m for k, m in self.train.items() if isinstance(m, ResNetTrainSettings | ProgressTrainSettings)}

    @property
    def text_models(self) -> dict[str, TextTrainSettings]:
        """The reward models of a language study."""
        return {k: m for k, m in self.train.items() if isinstance(m, TextTrainSettings)}

    @property
    def vlm_models(self) -> dict[str, VLMTrainSettings]:
        """The reward models of a robot study that are vision-language models."""
        return {k: m for k, m in self.train.items() if isinstance(m, VLMTrainSettings)}

    @property
    def control_evaluate(self) -> EvaluateSettings:
        """How the reward models of a robot study are judged."""
        assert isinstance(self.evaluate, EvaluateSettings)
        return self.evaluate

    @property
    def text_evaluate(self) -> EvaluateTextSettings | None:
        """How the reward models of a language study are judged; None where the file does not say."""
        assert not isinstance(self.evaluate, EvaluateSettings)
        return self.evaluate

    @property
    def text_reward(self) -> RewardSettings:
        """`reward` of a language study, with the source that `reward_model` stands for."""
        section = self.reward_model
        return self.reward if section is None else section.added_to(self.reward, self.text_algorithm.reward_model_gamma)

    @property
    def robot_sources(self) -> dict[str, RobotSource]:
        """The reward models of a robot study by the names of their sources."""
        return self.reward.of(RobotSource)

    @property
    def text_sources(self) -> dict[str, TextSource | RunSource]:
        """The reward models of a language study by the names of their sources, that of `reward_model` first."""
        sources = self.text_reward.sources.items() if self.text else ()
        return {name: source for name, source in sources if not isinstance(source, RobotSource)}

    @property
    def verified(self) -> bool:
        """Whether a run of a language model knows true success: its prompts have answers."""
        return self.data is None or self.data.type != "prompts" or (self.agent is not None and self.agent.judges)

    @cached_property
    def source(self) -> tuple[Path, tuple[str, ...]] | None:
        """The file and the overrides that `guerdon.load_study` read; no key, and not compared. None: read elsewhere."""
        return None

    def __repr__(self) -> str:
        """One line: the task and the sections that are given."""
        given = [name for name in type(self).model_fields if name in self.model_fields_set]
        return f"<{type(self).__name__} {self.task_name} in {self.work_dir}: {', '.join(given)}>"

    @property
    def task_name(self) -> str:
        """What a report calls the task of the file."""
        if self.data is None:
            return self.env.task
        return self.data.task.family if self.data.type == "generated" else self.data.type

    @model_validator(mode="after")
    def _one_side(self) -> Self:
        kind, side = f"policy.type {self.policy.type}", "text" if self.text else "control"
        same = isinstance(self.algorithm, TextAlgorithmSettings) == self.text
        fits: dict[str, tuple[str, bool]] = {"algorithm.type": (self.algorithm.type, same)}
        if self.evaluate is not None:
            fits["evaluate.type"] = (self.evaluate.type, self.evaluate.type == side)
        for name, model in self.train.items():
            fits[f"train.{name}"] = (f": type {model.type}", isinstance(model, TextTrainSettings) == self.text)
        for name, source in self.reward.sources.items():
            fits[f"reward.sources.{name}"] = (f": model_type {source.model.model_type}", source.text == self.text)
        for key, (what, same) in fits.items():
            if not same:
                raise ConfigError.about(key, f"{what} does not go with {kind}")
        for rule in IDLE:
            given = {key for key in rule.keys if _given(self, key, stored=rule.stored)}
            if given and rule.idle(self):
                refuse(given, rule.why.format(self))
        return self

    @model_validator(mode="after")
    def _rate_lasts(self) -> Self:
        self.check_rate()
        return self

    @model_validator(mode="after")
    def _shards_and_engine_fit(self) -> Self:
        shards, ray = self.runner.rollout_shards, self.engine == "ray"
        if ray and self.cluster.collectors > shards:
            raise ConfigError.about(
                "cluster.collectors",
                f"{self.cluster.collectors} share out the parts of a rollout, of which there are "
                f"runner.rollout_shards {shards}: set it to a multiple of the collectors, with engine: local too where "
                "results are compared",
            )
        self._check_scoring()
        if shards > 1 or ray:
            self._check_shards(shards, "engine: ray" if ray else "runner.rollout_shards")
        if self.runner.max_staleness:
            self._check_staleness(f"runner.max_staleness {self.runner.max_staleness}")
        return self

    def _check_shards(self, shards: int, where: str) -> None:
        """Refuse rollouts that cannot be cut into parts.

        Raises:
            ValueError: with the key and the reason.
        """

    def _check_staleness(self, where: str) -> None:
        """Refuse what rollouts of older weights do not go with.

        Raises:
            ValueError: with the key and the reason.
        """
        if self.reward.overlap_steps is not None:
            raise ConfigError.about(
                "reward.overlap_steps", f"is not supported with {where}, which overlaps whole rollouts"
            )

    def _check_scoring(self) -> None:
        """Refuse parts and workers that would have nothing to score.

        Raises:
            ValueError: with the key and the reason.
        """
        parts, workers = self.reward.scoring_shards, self.cluster.reward_workers
        if parts == 1 and not workers:
            return
        models = self.text_sources if self.text else self.reward.sources
        if not any(not source.stays_with_learner for source in models.values()):
            raise ConfigError.about(
                "cluster.reward_workers" if workers else "reward.scoring_shards",
                "would do nothing: every reward model of this run stays with the learner, because it learns in the run "
                "(prime, update), is the task itself (exact) or is on a reward server (remote)",
            )
        if workers > parts:
            raise ConfigError.about(
                "cluster.reward_workers",
                f"{workers} share out the parts in which a batch is scored, of which there are "
                f"reward.scoring_shards {parts}: set it to a multiple of the workers, with engine: local too where "
                "results are compared",
            )
        for name, source in models.items():
            if workers and getattr(source.model, "debug_save_dir", None) and not source.stays_with_learner:
                raise ConfigError(
                    f"reward.sources.{name}: debug_save_dir is not supported with cluster.reward_workers, which would "
                    "number their pictures alike; remove it",
                    key=f"reward.sources.{name}.debug_save_dir",
                )


class RobotStudy(Study):
    """A study of a policy that acts in an environment."""

    if TYPE_CHECKING:
        policy: ControlPolicySettings
        algorithm: RobotAlgorithm
        evaluate: EvaluateSettings

    def _check_shards(self, shards: int, where: str) -> None:
        """Copies are shared out in whole groups and tasks."""
        env, unit = self.env, self.on_policy.group_size if self.algorithm.needs.groups else 1
        if env.num_envs % (shards * unit):
            raise ConfigError.about(
                "env.num_envs",
                f"{env.num_envs} must be a multiple of runner.rollout_shards {shards}"
                + (f" times algorithm.group_size {unit}" if unit > 1 else ""),
            )
        if self.reward.overlap_steps is not None:
            raise ConfigError.about(
                "reward.overlap_steps",
                f"is not supported with {where}: pictures come with whole rollouts, which "
                "runner.max_staleness overlaps instead; remove it",
            )
        size, each = env.num_envs // shards, env.num_envs // len(env.task_ids or (0,))
        if not env.tasks_change and size % each and each % size:
            raise ConfigError(
                f"each of the env.task_ids has {each} copies, so shards of {size} copies mix them unevenly: change "
                "runner.rollout_shards or env.num_envs",
                key="runner.rollout_shards",
            )

    def _check_staleness(self, where: str) -> None:
        """No episodes of rollouts under way are recorded."""
        if self.env.data_collection.enabled:
            raise ConfigError.about(
                "env.data_collection", f"is not supported with {where}: rollouts under way would be recorded"
            )
        if not self.algorithm.replayed:
            self.on_policy.check_staleness(where)
        super()._check_staleness(where)

    @model_validator(mode="after")
    def _episodes_fit(self) -> Self:
        trials, tasks = getattr(self.env, "num_trials_per_task", None), len(self.env.task_ids or (0,))
        if trials is not None and self.runner.eval_episodes != trials * tasks:
            raise ConfigError.about(
                "env.num_trials_per_task",
                f"{trials} with {tasks} task{'s' if tasks > 1 else ''} means "
                f"runner.eval_episodes {trials * tasks}, not {self.runner.eval_episodes}; remove one of them",
            )
        if not self.algorithm.needs.groups:
            return self
        name, size, copies = self.on_policy.adv_estimator, self.on_policy.group_size, self.env.num_envs
        if copies % size:
            raise ConfigError(
                f"adv_estimator {name} plays whole groups at a time: env.num_envs ({copies}) must be a multiple of "
                f"algorithm.group_size ({size}), such as {-(-copies // size) * size}",
                key="env.num_envs",
            )
        if self.env.max_episode_steps is None:
            raise ConfigError(
                f"adv_estimator {name} needs env.max_episode_steps: every episode of a group must end",
                key="env.max_episode_steps",
            )
        return self

    @model_validator(mode="after")
    def _algorithm_fits(self) -> Self:
        if isinstance(self.algorithm, ReplayAlgorithmSettings):
            self.algorithm.check_study(self.env, self.reward, learners=self.cluster.learners)
        else:
            starts = self.policy.checkpoint is not None or bool(self.runner.resume_dir)
            self.on_policy.check_study(self.policy.type, starts_somewhere=starts)
        return self

    @model_validator(mode="after")
    def _auxiliary_losses_have_targets(self) -> Self:
        for name in self.on_policy.auxiliary_losses if not self.algorithm.replayed else ():
            source = self.robot_sources.get(name) if self.reward.use_reward_model else None
            if source is None or source.reward_mode != "per_step":
                raise ConfigError.about(
                    "algorithm.auxiliary_losses",
                    f": {name} must be a source of reward.sources with reward_mode per_step, "
                    "whose values of single moments are the targets",
                )
            if source.falls:
                raise ConfigError.about(
                    "algorithm.auxiliary_losses",
                    f": {name} has reward_weight_schedule success, so that its model gives no targets at the end; "
                    "remove one of them",
                )
        return self


class TextStudy(Study):
    """A study of a language model. One that only fits a reward model needs neither `policy` nor `data`."""

    text = True
    if TYPE_CHECKING:
        policy: TextPolicySettings
        algorithm: TextAlgorithmSettings
        evaluate: EvaluateTextSettings | None

    def _check_shards(self, shards: int, where: str) -> None:
        """Prompts are shared out evenly."""
        size = 0 if self.data is None else self.data.train_batch_size
        if size % shards:
            raise ConfigError.about(
                "data.train_batch_size", f"{size} cannot be shared out to {shards} runner.rollout_shards"
            )

    def _check_staleness(self, where: str) -> None:
        """The loss corrects for the old weights."""
        self.algorithm.check_staleness(where)
        super()._check_staleness(where)

    @property
    def discounts_differ(self) -> bool:
        """Whether every source has a discount of its own, so that the common one is of none."""
        algorithm = self.algorithm
        own = [algorithm.adv_params.verifier_gamma, *(one.gamma for one in self.reward.sources.values())]
        own += [] if self.reward_model is None else [algorithm.adv_params.reward_model_gamma]
        return None not in own and not (algorithm.kl_coef and algorithm.kl_in == "reward")

    @model_validator(mode="after")
    def _algorithm_fits_text(self) -> Self:
        self.generation.check(self)
        check_agent(self.agent, self)
        if self.algorithm.credit == "min_form" and not any(source.min_form for source in self.text_sources.values()):
            raise ConfigError.about(
                "algorithm.credit",
                "min_form needs a prime reward model with granularity token or step, or a source of "
                "reward.sources with reward_mode per_step",
            )
        return self

    @model_validator(mode="after")
    def _sources_fit(self) -> Self:
        self._check_text_sources()
        for name, scored in self.text_reward.of(TextSource).items():
            if scored.reward_mode == "per_turn" and self.agent is None:
                raise ConfigError.about(
                    f"reward.sources.{name}.reward_mode",
                    "per_turn scores turns of conversations, and there is no agent: set it to terminal, or add the "
                    "section agent",
                )
        for name, source in self.text_sources.items():
            why = f"{relative(f'reward.sources.{name}')}, and "
            if source.model.compares and self.algorithm.needs.greedy:
                raise ConfigError(
                    f"{why}a greedy response stands alone: set adv_estimator to grpo or rloo",
                    key="algorithm.adv_estimator",
                )
            if source.model.compares and self.data is not None and self.data.n_samples < 2:
                raise ConfigError(f"{why}data.n_samples is 1: set it to 2 at least", key="data.n_samples")
        if self.algorithm.needs.groups and self.data is not None and self.data.n_samples < 2:
            raise ConfigError(
                f"adv_estimator {self.algorithm.adv_estimator} compares responses to the same prompt: data.n_samples "
                "must be at least 2",
                key="data.n_samples",
            )
        return self

    def _check_text_sources(self) -> None:
        """Refuse names that are taken, weights that train nothing, and keys that would do nothing.

        Raises:
            ValueError: with the key and the reason.
        """
        section, reward, sources = self.reward_model, self.text_reward, self.text_sources
        taken = {"verifier", "kl"} | (set() if section is None else {section.source_name})
        for name in sorted(taken & set(self.reward.sources)):
            raise ConfigError(
                f"a reward source cannot be called {name}: another source has that name", key=f"reward.sources.{name}"
            )
        check_truth(self.reward, section, sources, verified=self.verified)
        sources.pop(reward.truth or "", None)
        if self.verified and (not sources or reward.env_weight()):
            return
        if not any(source.reward_weight for source in sources.values()):
            raise ConfigError(
                "every weight is 0, so nothing would train the policy: see reward.combine_mode",
                key="reward.combine_mode",
            )
        if len(sources) > 1 or not self.algorithm.normalize_advantages:
            return
        ((name, source),) = sources.items()
        if section is not None:
            idle = {"rm_coef", "rm_coef_schedule"} & section.model_fields_set
            refuse(idle, "verifier_coef 0, where the only source is normalised", "reward_model")
        elif source.reward_weight > 0:
            idle = {"reward_weight", "reward_weight_schedule"} & source.model_fields_set
            why = f"combine_mode {reward.combine_mode}, where the only source is normalised"
            refuse(idle, why, f"reward.sources.{name}")

    @model_validator(mode="after")
    def _run_models_fit_the_data(self) -> Self:
        for name, source in self.text_reward.of(RunSource).items():
            if self.agent is None:
                source.model.check_run(name, self.data, self.algorithm)
        return self


def _judging_text(reward: dict[str, Any]) -> dict[str, Any]:
    """The section `reward` of a language study, with what its models look at."""
    if "model" in reward:
        reward = {**reward, "model": judging_text(reward["model"])}
    sources = reward.get("sources")
    if not isinstance(sources, dict):
        return reward
    found = {
        name: {**source, "model": judging_text(source["model"])}
        for name, source in sources.items()
        if isinstance(source, dict) and "model" in source
    }
    return {**reward, "sources": {**sources, **found}}


def _implied_runner(given: dict[str, Any]) -> Any:
    """The section `runner` with what `work_dir` and the trials of LIBERO's tasks imply."""
    runner = given.get("runner", {})
    if not isinstance(runner, dict):
        return runner
    logger = runner.get("logger", {})
    if "work_dir" in given and isinstance(logger, dict):
        runner = {**runner, "logger": {"log_path": given["work_dir"], **logger}}
    env = given.get("env")
    if isinstance(env, dict) and isinstance(env.get("num_trials_per_task"), int):
        task_ids = env.get("task_ids")
        tasks = len(task_ids) if task_ids and isinstance(task_ids, list | tuple) else 1
        runner = {"eval_episodes": env["num_trials_per_task"] * tasks, **runner}
    return runner


def _kind_of(given: dict[str, Any]) -> type[Study]:
    """The class of a study with these sections: one without a policy whose reward models are for text is of text."""
    policy = given.get("policy")
    kind = policy.get("type") if isinstance(policy, dict) else getattr(policy, "type", None)
    return TextStudy if kind == "text" or (policy is None and judges_text(given)) else RobotStudy


class Rule(NamedTuple):
    """Keys that do nothing with some values of other sections.

    Attributes:
        keys: dotted.
        idle: whether they do nothing in a study.
        why: with what, or `without ...`; `{0}` is the study.
        stored: files of runs have them with their defaults, which count as not given.
    """

    keys: tuple[str, ...]
    idle: Callable[[Any], bool]
    why: str
    stored: bool = False


def _given(section: Any, path: str, *, stored: bool) -> bool:
    """Whether a study says something at a path."""
    key, _, rest = path.partition(".")
    if key not in getattr(section, "model_fields_set", ()):
        return False
    value, default = getattr(section, key), type(section).model_fields[key].default
    if rest:
        return _given(value, rest, stored=stored)
    return not (value == default and (stored or value is None))


def _decides_on_one_action(study: Study) -> bool:
    policy = study.policy
    return isinstance(policy, MLPPolicySettings | CNNPolicySettings) or (
        isinstance(policy, OwnPolicySettings) and not policy.whole
    )


_OF_TEXT = ("agent", "data", "generation", "label", "reward_model", "sft", "search")
_NO_POLICY = "policy.type {0.policy.type}, the default: a language model is `policy: {{type: text, path: FOLDER}}`"
IDLE = (
    Rule(("env", "collect", "bc"), lambda s: s.text, "policy.type text", stored=True),
    Rule(_OF_TEXT, lambda s: not s.text and "policy" not in s.model_fields_set, _NO_POLICY, stored=True),
    Rule(_OF_TEXT, lambda s: not s.text, "policy.type {0.policy.type}", stored=True),
    Rule(("cluster",), lambda s: s.engine == "local", "engine: local"),
    Rule(
        ("algorithm.logprob_type", "algorithm.reward_type"),
        _decides_on_one_action,
        "policy.type {0.policy.type}, which decides on one action at a time",
    ),
    Rule(
        ("algorithm.entropy_coef",),
        lambda s: getattr(getattr(s.policy, "decoding", None), "noise_method", "") == "flow_sde",
        "policy.noise_method flow_sde, whose noise is not learned",
        stored=True,
    ),
    Rule(
        ("policy.value_hidden", "policy.detach_critic_input"),
        lambda s: not s.algorithm.needs.critic,
        "adv_estimator {0.algorithm.adv_estimator}, which has no critic",
    ),
    Rule(
        ("algorithm.rloo_form",),
        lambda s: not any(source.dense for source in s.text_sources.values()),
        "without dense rewards",
    ),
    Rule(
        ("algorithm.adv_params.verifier_gamma",),
        lambda s: not s.verified or s.reward.truth == "verifier",
        "a verifier that trains nothing",
    ),
    Rule(("reward.truth",), lambda s: not s.text, "policy.type {0.policy.type}, whose environment reports success"),
    Rule(("algorithm.adv_params.reward_model_gamma",), lambda s: s.reward_model is None, "without reward_model"),
    Rule(("algorithm.gamma",), lambda s: s.text and s.discounts_differ, "a discount for each source"),
    Rule(
        ("reward.combine_mode", "reward.env_reward_weight"),
        lambda s: s.reward_model is not None,
        "reward_model, whose verifier_coef is the weight of the outcome",
    ),
    Rule(("runner.save_video",), lambda s: s.text, "policy.type text, which shows nothing", stored=True),
    Rule(("runner.film_frames",), lambda s: s.text, "policy.type text"),
    Rule(("runner.best_episodes",), lambda s: s.text, "policy.type text"),
    Rule(("runner.schedule_steps",), lambda s: not s.schedules, "without a schedule"),
    Rule(
        ("sft.mistakes",),
        lambda s: s.data is not None and s.data.type != "generated",
        "data.type {0.data.type}: false beliefs are about the rules of generated problems",
    ),
)
"""What a section excludes in another one."""


_PYTHON_FILE = re.compile(r"(?:.*/)?(?P<module>\w+)\.py(?::(?P<name>\w+))?")
_ENVIRONMENT_ID = re.compile(r"(?:(?=.*-v\d+$)(?:.+[:/])?|[\w.]+:)([^:/]+)")


def read_study_file(path: Path, overrides: Sequence[str] = (), *, resume: bool = False) -> Study:
    """A study file; or the study of a Gymnasium id or an environment class, with the environment's own reward.

    A known id begins with its row of `known_environments`.

    Args:
        path: of the file, the id, or `module:Class`.
        overrides: dotted: `runner.seed=3`.
        resume: the run of an id goes on as it was begun, but for the overrides.

    Raises:
        ConfigError: anything wrong in it, with file and line.
    """
    if python := _PYTHON_FILE.fullmatch(str(path)):
        where = f", in {path.parent}" if path.parent.name else ""
        name = f"{python['module']}:{python['name'] or 'CLASS'}"
        raise ConfigError(f"{path}: an environment class in a Python file is named by its module: {name}{where}")
    named = _ENVIRONMENT_ID.fullmatch(str(path))
    if named is None or path.is_file():
        return load(Study, path, overrides)
    words = [f"env.task={path}", "env.type=gymnasium", "env.native_reward=dense", f"work_dir=runs/{named[1]}"]
    words.append("runner.best_episodes=100")
    study, line = _study_of_id(words, overrides, str(path))
    if "experiment_name" not in study.runner.logger.model_fields_set:
        words.append(f"runner.logger.experiment_name={_folder_of_id(study)}")
        study, line = _study_of_id(words, overrides, str(path))
    begun = study.runner.logger.folder / "config.yaml"
    if resume and begun.is_file():
        return load(Study, begun, overrides)
    if line and not begun.is_file():  # else the start is refused
        log_line(line)
    return study


def _study_of_id(words: Sequence[str], overrides: Sequence[str], origin: str) -> tuple[Study, str]:
    """The study of an id, and a line about its row of known environments; empty: it has none."""
    section = apply_overrides(Tree(), overrides).data.get("algorithm")
    row = row_of(origin, section.get("type") if isinstance(section, dict) else None)
    if row is None:
        return load(Study, None, [*words, *overrides], origin=origin), ""
    return _study_of_row(row, words, overrides, origin)


def _study_of_row(row: KnownRow, words: Sequence[str], overrides: Sequence[str], origin: str) -> tuple[Study, str]:
    """The study of an id that begins with a row of known environments, and a line about it.

    Settings of the row that do not go with the overrides are left out.

    Args:
        row: of the environment.
        words: of its id.
        overrides: take the place of what the row says.
        origin: name of the id.

    Raises:
        ConfigError: what is wrong without the row, too.
    """
    settings = dict(row.settings)
    if row.algorithm != "control":
        settings["algorithm.type"] = row.algorithm
    while True:
        try:
            study = load(Study, None, [*words, *words_of(settings), *overrides], origin=origin)
        except ConfigError as error:
            without = load(Study, None, [*words, *overrides], origin=origin)
            if error.key not in settings:
                said = str(error).partition("\n")[0]
                return without, f"[settings] {origin}: those of the table are not used: {said}"
            del settings[error.key]
        else:
            break
    given = tuple(f"{text.partition('=')[0].strip()}." for text in overrides)
    return study, row.line({key: value for key, value in settings.items() if not f"{key}.".startswith(given)})


def _folder_of_id(study: Study) -> str:
    """The folder of a run of an id: its algorithm and its seed; that of an earlier version where it has the same."""
    name, earlier = _algorithm_and_seed(study), LoggerSettings().experiment_name
    folder = Path(study.runner.logger.log_path)
    begun = folder / earlier / "config.yaml"
    if (folder / name).exists() or not begun.is_file():
        return name
    with suppress(ConfigError):  # of a version that had other keys
        if _algorithm_and_seed(load(Study, begun)) == name:
            return earlier
    return name


def _algorithm_and_seed(study: Study) -> str:
    """`ppo-seed0`."""
    algorithm = study.algorithm
    name: str = algorithm.type
    if isinstance(algorithm, ControlAlgorithmSettings):
        name = algorithm.loss if algorithm.adv_estimator == "gae" else algorithm.adv_estimator
    readable = re.sub(r"[^\w-]+", "_", name)  # a part of a user's own has the name of its module
    return f"{readable}-seed{study.runner.seed}"
