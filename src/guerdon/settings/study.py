"""The root of a configuration: one file describes one study, and every verb reads its own sections.

runner, env, policy, algorithm, reward   what `guerdon run` does
collect, label, train, evaluate, bc      what comes before it
compare                                  the arms, seeds and tasks of a study
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from guerdon.config_tree import Tree
from guerdon.errors import ConfigError
from guerdon.settings.algorithm import AlgorithmSettings, ControlAlgorithmSettings, TextAlgorithmSettings
from guerdon.settings.aliases import guide_names
from guerdon.settings.base import Because, Seed, Settings, only_with, refuse
from guerdon.settings.cluster import ClusterSettings
from guerdon.settings.compare import CompareSettings
from guerdon.settings.data import DataSettings, GeneratedDataSettings
from guerdon.settings.evaluate import EvaluateSettings, EvaluateTextSettings, judges_text, on_own_family
from guerdon.settings.label import LabelSettings
from guerdon.settings.logger import LoggerSettings
from guerdon.settings.policy import (
    BCSettings,
    CNNPolicySettings,
    ControlPolicySettings,
    MLPPolicySettings,
    OwnPolicySettings,
    PolicySettings,
)
from guerdon.settings.reward import RewardModelSection, RewardSettings, SourceSettings
from guerdon.settings.reward_models import ExactModelSettings, PrimeModelSettings, TabularModelSettings
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
from guerdon.settings.vla_policy import VLAPolicySettings
from guerdon.settings.world import MetaWorldSettings, WorldSettings


class RunnerSettings(Settings):
    """`runner`: how long, how often, from where."""

    logger: LoggerSettings = Field(LoggerSettings(), description="where a run writes")
    seed: Seed = Field(0, description="of weights, exploration and every reset")
    total_steps: int = Field(100_000, ge=1, description="environment steps, all copies together")
    eval_every: int = Field(10_000, ge=1, description="environment steps between evaluations of the policy")
    eval_episodes: int = Field(20, ge=1, description="episodes per evaluation, rounded up to a multiple of num_envs")
    checkpoint_every: int = Field(50_000, ge=1, description="environment steps between checkpoints")
    keep_checkpoints: int = Field(2, ge=0, description="newest checkpoints kept; 0: none once the run is complete")
    save_reward_models: bool = Field(True, description="write reward models that were refitted during the run")
    resume_dir: str | None = Field(None, description="start from a checkpoint of another run (two-stage training)")
    film_every: int = Field(0, ge=0, description="environment steps between films for the report; 0: end only")
    film_frames: int = Field(24, ge=2, description="frames per filmed episode")
    save_video: bool = Field(
        False, description="robots: write videos of training episodes to videos/, with what was decided and paid"
    )
    video_share: float = only_with(0.1, gt=0, le=1, save_video=True, description="share of the episodes")
    video_every: int = only_with(1, ge=1, save_video=True, description="steps between two frames")
    video_fps: int = only_with(20, ge=1, save_video=True, description="frames per second")
    threads: int = Field(1, ge=1, le=1024, description="torch threads")
    rollout_shards: int = Field(
        1,
        ge=1,
        description="parts in which every rollout is collected, each with copies or prompts and random numbers of its "
        "own. The numbers of a run depend on it, and not on how many collectors of a cluster share the parts out",
    )
    max_staleness: int = Field(
        0,
        ge=0,
        description="updates between the weights that collect a rollout and those that learn from it: so many rollouts "
        "are collected ahead, while the learner updates; 0: rollouts and updates take turns",
    )


_ACTOR = "an actor of type {}"


class ActorShare(Settings):
    """One kind of actor in a mixture."""

    type: Literal["expert", "noisy", "random", "checkpoint"] = Field(
        description="scripted expert, expert with noise, random actions, or a trained policy"
    )
    share: float = Field(1.0, gt=0, description="its part of the episodes")
    noise: float = only_with(
        0.3,
        ge=0,
        type=Because(("noisy", "checkpoint"), _ACTOR),
        description="standard deviation added to the expert's actions",
    )
    recorded_actions: Literal["executed", "intended"] = only_with(
        "executed",
        type=Because("noisy", _ACTOR),
        description="actions written down, with the noise, or as the expert intended them, so that a clone "
        "learns from states off the expert's path and not from the noise (DART, arXiv 1703.09327)",
    )
    checkpoint: str | None = Field(None, description="type checkpoint: the folder of a policy")
    random_steps: int = Field(0, ge=0, description="up to so many unrecorded random steps before an episode")

    calibration_error: float = only_with(
        0.0,
        ge=0,
        type=Because(("expert", "noisy"), _ACTOR),
        description="metres, standard deviation of a constant error per episode in the hand position that a scripted "
        "expert sees: near misses, which look like success to a model that watches the arm alone",
    )

    @model_validator(mode="after")
    def _fits(self) -> ActorShare:
        if (self.type == "checkpoint") != (self.checkpoint is not None):
            raise ValueError("an actor of type checkpoint, and only that, needs checkpoint: a policy folder")
        return self


class CollectSettings(Settings):
    """`collect`: episodes from scripted experts, random or noisy actions, or trained policies."""

    save_dir: str = Field(description="receives the episodes, as a LeRobot data set")
    episodes: int = Field(50, ge=1, description="episodes in all; an existing data set is continued up to it")
    mixture: tuple[ActorShare, ...] = Field((ActorShare(type="expert"),), description="policies, by shares")
    only_success: bool = Field(False, description="keep successful episodes only")
    frame_every: int = Field(5, ge=1, description="keep every k-th row of an episode and its last")
    stop_after_success: int | None = Field(None, ge=0, description="steps from first success to the end of an episode")
    continuation_limit: int | None = Field(
        None,
        ge=1,
        description="label every kept row by how many steps a scripted expert needs from there to success, up to so "
        "many (Meta-World); progress models learn from it, in failed episodes too",
    )
    video: bool = Field(False, description="MP4 instead of images in Parquet")
    fps: int = Field(20, ge=1, description="rows per second, as the data set declares")
    seed: Seed = Field(0, description="of the actors and every reset")

    def success_readers(self) -> list[str]:
        """The keys, other than those of `env` itself, that need the environment to report true success."""
        given = {"only_success": self.only_success, "stop_after_success": self.stop_after_success is not None}
        return [f"collect.{key}" for key, reads in given.items() if reads]


class Study(Settings):
    """A whole configuration file."""

    name: str = Field("study", description="title of the report")
    engine: Literal["local", "ray"] = Field(
        "local", description="where a run works: in one process, or on a Ray cluster"
    )
    cluster: ClusterSettings = Field(ClusterSettings(), description="engine ray: what of the cluster a run uses")
    work_dir: str = Field("runs/study", description="where a study keeps data, models, runs and its report")
    runner: RunnerSettings = Field(RunnerSettings(), description="length, evaluations and folder of a run")
    env: WorldSettings = Field(MetaWorldSettings(), description="what the policy acts in")
    policy: Annotated[PolicySettings, Field(description="the policy")] = MLPPolicySettings()
    algorithm: Annotated[AlgorithmSettings, Field(discriminator="type", description="how it learns")] = (
        ControlAlgorithmSettings()
    )
    reward: RewardSettings = Field(RewardSettings(), description="which measurements train the policy")
    data: DataSettings | None = Field(None, description="prompts with known answers, for a language model")
    generation: GenerationSettings = Field(LocalGenerationSettings(), description="how a language model writes")
    reward_model: RewardModelSection | None = Field(
        None,
        description="a reward in addition to the verifier's, for a language model: a short form of one entry of "
        "reward.sources; null: none",
    )
    sft: SFTSettings | None = Field(None, description="supervised start of a language model")
    label: LabelSettings | None = Field(None, description="labels of the steps of a language model's solutions")
    search: SearchSettings | None = Field(None, description="answers to questions, chosen by a reward model")
    collect: CollectSettings | None = Field(None, description="episodes to collect")
    train: dict[str, TrainSettings] = Field(default_factory=dict, description="reward models to fit, by name")
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

    @classmethod
    def implied(cls, given: dict[str, Any]) -> dict[str, Any]:
        """`algorithm` and `evaluate` belong to the kind of policy that the file names, runs lie in `work_dir`.

        A file without a policy whose reward models are for text is a language study.
        """
        if given.get("policy") is None and judges_text(given):
            given = {**given, "policy": {"type": "text"}}
        policy = given.get("policy")
        kind = policy.get("type") if isinstance(policy, dict) else getattr(policy, "type", None)
        mark = {"type": "text" if kind == "text" else "control"}
        sections = {"algorithm": given.get("algorithm", {}), "evaluate": given.get("evaluate")}
        if kind != "text" and sections["evaluate"] is None:
            del sections["evaluate"]
            given = {key: section for key, section in given.items() if key != "evaluate"}
        elif kind == "text" and isinstance(sections["evaluate"], dict):
            sections["evaluate"] = on_own_family(sections["evaluate"], given.get("data"))
        filled = {**given, **{k: {**mark, **v} if isinstance(v, dict) else v for k, v in sections.items()}}
        runner = given.get("runner", {})
        logger = runner.get("logger", {}) if isinstance(runner, dict) else None
        if "work_dir" in given and isinstance(logger, dict):
            filled["runner"] = runner = {**runner, "logger": {"log_path": given["work_dir"], **logger}}
        env = given.get("env")
        trials = env.get("num_trials_per_task") if isinstance(env, dict) else None
        if isinstance(trials, int) and isinstance(env, dict) and isinstance(runner, dict):
            given_ids = env.get("task_ids")
            tasks = len(given_ids) if given_ids and isinstance(given_ids, list | tuple) else 1
            filled["runner"] = {"eval_episodes": trials * tasks, **runner}
        return filled

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        return cls.implied(given) if isinstance(given, dict) else given

    @property
    def text(self) -> bool:
        """Whether the policy is a language model."""
        return isinstance(self.policy, TextPolicySettings)

    @property
    def control_policy(self) -> ControlPolicySettings:
        """The policy of a robot study."""
        assert not isinstance(self.policy, TextPolicySettings)
        return self.policy

    @property
    def control_algorithm(self) -> ControlAlgorithmSettings:
        """The algorithm of a robot study."""
        assert isinstance(self.algorithm, ControlAlgorithmSettings)
        return self.algorithm

    @property
    def text_policy(self) -> TextPolicySettings:
        """The policy of a language study.

        Raises:
            ConfigError: the study names no language model.
        """
        if not self.text_default.named:
            raise ConfigError(f"this command needs a policy: {NAME_A_MODEL}")
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
        for name, source in self.reward.sources.items() if self.reward.use_reward_model else ():
            if source.refitted is not None and source.refitted.labeler == "outcome":
                readers.append(f"reward.sources.{name}.model.update")
            if source.native_fallback:
                readers.append(f"reward.sources.{name}.model.fallback: native")
        return readers

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
    def text_sources(self) -> dict[str, SourceSettings]:
        """The reward models of a language study by the names of their sources, that of `reward_model` first."""
        return dict(self.text_reward.sources) if self.text else {}

    @property
    def task_name(self) -> str:
        """What a report calls the task of the file."""
        if self.data is None:
            return self.env.task
        return self.data.task.family if self.data.type == "generated" else self.data.type

    @model_validator(mode="after")
    def _one_side(self) -> Study:
        given, kind, side = self.model_fields_set, f"policy.type {self.policy.type}", "text" if self.text else "control"
        wrong = [] if self.algorithm.type == side else [f"algorithm.type {self.algorithm.type}"]
        idle = (
            {"env", "collect", "bc"} if self.text else {"data", "generation", "label", "reward_model", "sft", "search"}
        )
        present = {name for name in idle & given if getattr(self, name) != type(self).model_fields[name].default}
        if present and not wrong and "policy" not in given:
            raise ValueError(
                f"{', '.join(sorted(present))} would do nothing with {kind}, the default: a language model is "
                "`policy: {type: text, path: FOLDER}`"
            )
        refuse(present if not wrong else set(), kind)
        models, sources = self.train.items(), self.reward.sources.items()
        wrong += [f"train.{k}: type {m.type}" for k, m in models if isinstance(m, TextTrainSettings) != self.text]
        if self.evaluate is not None and self.evaluate.type != side:
            wrong.append(f"evaluate.type {self.evaluate.type}")
        wrong += [f"reward.sources.{k}: model_type {s.model.model_type}" for k, s in sources if s.text != self.text]
        if wrong:
            raise ValueError(f"{wrong[0]} does not go with {kind}")
        return self

    @model_validator(mode="after")
    def _decisions_have_parts(self) -> Study:
        policy, algorithm = self.policy, self.algorithm
        own = isinstance(policy, OwnPolicySettings) and not policy.whole
        gaussian = own or isinstance(policy, MLPPolicySettings | CNNPolicySettings)
        if gaussian and isinstance(algorithm, ControlAlgorithmSettings):
            given = {key for key in ("logprob_type", "reward_type") if getattr(algorithm, key) is not None}
            refuse(given, f"policy.type {policy.type}, which decides on one action at a time", "algorithm")
        if isinstance(policy, VLAPolicySettings) and getattr(policy.decoding, "noise_method", "") == "flow_sde":
            given = {"entropy_coef"} if algorithm.entropy_coef else set()
            refuse(given, "policy.noise_method flow_sde, whose noise is not learned", "algorithm")
        if isinstance(policy, VLAPolicySettings) and not self.control_algorithm.needs.critic:
            why = f"adv_estimator {self.control_algorithm.adv_estimator}, which has no critic"
            refuse({"value_hidden", "detach_critic_input"} & policy.model_fields_set, why, "policy")
        return self

    @model_validator(mode="after")
    def _shards_and_engine_fit(self) -> Study:
        shards, ray = self.runner.rollout_shards, self.engine == "ray"
        if not ray:
            refuse({"cluster"} & self.model_fields_set, "engine: local")
        if ray and self.cluster.collectors > shards:
            raise ValueError(
                f"cluster.collectors {self.cluster.collectors} share out the parts of a rollout, of which there are "
                f"runner.rollout_shards {shards}: set it to a multiple of the collectors, with engine: local too where "
                "results are compared"
            )
        self._check_scoring()
        if shards == 1 and not ray:
            return self
        where = "engine: ray" if ray else "runner.rollout_shards"
        if self.text:
            size = 0 if self.data is None else self.data.train_batch_size
            if size % shards:
                raise ValueError(f"data.train_batch_size {size} cannot be shared out to {shards} runner.rollout_shards")
            if ray and not isinstance(self.generation, LocalGenerationSettings):
                raise ValueError("generation with vLLM is not supported with engine: ray yet")
            return self
        unit = self.control_algorithm.group_size if self.algorithm.needs.groups else 1
        if self.env.num_envs % (shards * unit):
            raise ValueError(
                f"env.num_envs {self.env.num_envs} must be a multiple of runner.rollout_shards {shards}"
                + (f" times algorithm.group_size {unit}" if unit > 1 else "")
            )
        if self.reward.overlap_steps is not None:
            raise ValueError(
                f"reward.overlap_steps is not supported with {where}: pictures come with whole rollouts, which "
                "runner.max_staleness overlaps instead; remove it"
            )
        size, each = self.env.num_envs // shards, self.env.num_envs // len(self.env.task_ids or (0,))
        if not self.env.tasks_change and size % each and each % size:
            raise ValueError(
                f"each of the env.task_ids has {each} copies, so shards of {size} copies mix them unevenly: change "
                "runner.rollout_shards or env.num_envs"
            )
        return self

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
            raise ValueError(
                f"{'cluster.reward_workers' if workers else 'reward.scoring_shards'} would do nothing: every reward "
                "model of this run stays with the learner, because it learns in the run (prime, update), is the task "
                "itself (exact) or is on a reward server (remote)"
            )
        if workers > parts:
            raise ValueError(
                f"cluster.reward_workers {workers} share out the parts in which a batch is scored, of which there are "
                f"reward.scoring_shards {parts}: set it to a multiple of the workers, with engine: local too where "
                "results are compared"
            )
        for name, source in models.items():
            if workers and getattr(source.model, "debug_save_dir", None) and not source.stays_with_learner:
                raise ValueError(
                    f"reward.sources.{name}: debug_save_dir is not supported with cluster.reward_workers, which would "
                    "number their pictures alike; remove it"
                )

    @model_validator(mode="after")
    def _stale_rollouts_fit(self) -> Study:
        if not self.runner.max_staleness:
            return self
        where = f"runner.max_staleness {self.runner.max_staleness}"
        if getattr(self.algorithm, "loss", "ppo") == "reinforce":
            raise ValueError(
                f"algorithm.loss reinforce has no probability ratio, which corrects for the old weights of {where}: "
                "set loss to ppo, gspo or cispo"
            )
        if self.text and not isinstance(self.generation, LocalGenerationSettings):
            raise ValueError(f"generation with vLLM is not supported with {where} yet")
        if not self.text and self.env.data_collection.enabled:
            raise ValueError(f"env.data_collection is not supported with {where}: rollouts under way would be recorded")
        if self.reward.overlap_steps is not None:
            raise ValueError(f"reward.overlap_steps is not supported with {where}, which overlaps whole rollouts")
        return self

    @model_validator(mode="after")
    def _one_number_of_evaluation_episodes(self) -> Study:
        trials = getattr(self.env, "num_trials_per_task", None)
        if trials is not None:
            tasks = len(getattr(self.env, "task_ids", None) or (0,))
            if self.runner.eval_episodes != trials * tasks:
                raise ValueError(
                    f"env.num_trials_per_task {trials} with {tasks} task{'s' if tasks > 1 else ''} means "
                    f"runner.eval_episodes {trials * tasks}, not {self.runner.eval_episodes}; remove one of them"
                )
        return self

    @model_validator(mode="after")
    def _text_keys_do_something(self) -> Study:
        if not isinstance(self.algorithm, TextAlgorithmSettings):
            return self
        algorithm, sources, sft = self.algorithm, self.text_sources.values(), self.sft
        if algorithm.credit == "min_form" and not any(source.min_form for source in sources):
            raise ValueError(
                "algorithm.credit min_form needs a prime reward model with granularity token or step, or a source of "
                "reward.sources with reward_mode per_step"
            )
        if not any(source.dense for source in sources):
            refuse({"rloo_form"} & algorithm.model_fields_set, "without dense rewards", "algorithm")
        if algorithm.adv_params.reward_model_gamma is not None and self.reward_model is None:
            refuse({"reward_model_gamma"}, "without reward_model", "algorithm.adv_params")
        own = [algorithm.adv_params.verifier_gamma, *(one.gamma for one in self.reward.sources.values())]
        own += [] if self.reward_model is None else [algorithm.adv_params.reward_model_gamma]
        if None not in own and not (algorithm.kl_coef and algorithm.kl_in == "reward"):
            refuse({"gamma"} & algorithm.model_fields_set, "a discount for each source", "algorithm")
        self._check_text_sources()
        if self.runner.save_video:
            raise ValueError("runner.save_video is of robots: a language model shows nothing; remove it")
        refuse({"film_frames"} & self.runner.model_fields_set, "policy.type text", "runner")
        if sft is not None and sft.mistakes is not None and self.data is not None and self.data.type != "generated":
            rules = "false beliefs are about the rules of generated problems"
            refuse({"mistakes"}, f"data.type {self.data.type}: {rules}", "sft")
        return self

    def _check_text_sources(self) -> None:
        """Refuse names that are taken, weights that train nothing, and keys that would do nothing.

        Raises:
            ValueError: with the key and the reason.
        """
        section, reward, sources = self.reward_model, self.text_reward, self.text_sources
        taken = {"verifier", "kl"} | (set() if section is None else {section.source_name})
        for name in sorted(taken & set(self.reward.sources)):
            raise ValueError(f"a reward source cannot be called {name}: another source has that name")
        if section is not None:
            idle = {"combine_mode", "env_reward_weight"} & self.reward.model_fields_set
            refuse(idle, "reward_model, whose verifier_coef is the weight of the outcome", "reward")
        if not sources or reward.env_weight():
            return
        if not any(source.reward_weight for source in sources.values()):
            raise ValueError("every weight is 0, so nothing would train the policy: see reward.combine_mode")
        if len(sources) > 1 or not self.text_algorithm.normalize_advantages:
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
    def _groups_are_whole(self) -> Study:
        name = self.algorithm.adv_estimator
        if not self.algorithm.needs.groups:
            return self
        if isinstance(self.algorithm, TextAlgorithmSettings):
            if self.data is not None and self.data.n_samples < 2:
                raise ValueError(
                    f"adv_estimator {name} compares responses to the same prompt: data.n_samples must be at least 2"
                )
            return self
        size, copies = self.algorithm.group_size, self.env.num_envs
        if copies % size:
            raise ValueError(
                f"adv_estimator {name} plays whole groups at a time: env.num_envs ({copies}) must be a multiple of "
                f"algorithm.group_size ({size}), such as {-(-copies // size) * size}"
            )
        if self.env.max_episode_steps is None:
            raise ValueError(f"adv_estimator {name} needs env.max_episode_steps: every episode of a group must end")
        return self

    @model_validator(mode="after")
    def _auxiliary_losses_have_targets(self) -> Study:
        for name in self.algorithm.auxiliary_losses:
            source = self.reward.sources.get(name) if self.reward.use_reward_model else None
            if source is None or source.reward_mode != "per_step":
                raise ValueError(
                    f"algorithm.auxiliary_losses: {name} must be a source of reward.sources with reward_mode per_step, "
                    "whose values of single moments are the targets"
                )
        return self

    @model_validator(mode="after")
    def _run_models_fit_the_data(self) -> Study:
        n_samples = 1 if self.data is None else self.data.n_samples
        for name, source in self.text_sources.items():
            kind = source.model.model_type
            of_task = isinstance(source.model, ExactModelSettings | TabularModelSettings)
            if of_task and self.data is not None and self.data.type != "generated":
                raise ValueError(f"the {kind} reward source {name} needs steps of known form: data.type generated")
            family = self.data.task.family if of_task and isinstance(self.data, GeneratedDataSettings) else ""
            if isinstance(source.model, TabularModelSettings) and family == "automaton":
                raise ValueError(
                    f"the tabular reward source {name} needs facts that hold in every question; those of the family "
                    f"{family} differ: take another data.task.family"
                )
            if isinstance(source.model, PrimeModelSettings):
                needs, estimator = self.algorithm.needs, str(self.algorithm.adv_estimator)
                source.model.check_study(
                    name, n_samples=n_samples, estimator=estimator, greedy=needs.greedy, critic=needs.critic
                )
        return self
