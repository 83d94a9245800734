"""The root of a configuration: one file describes one study, and every verb reads its own sections.

runner, env, policy, algorithm, reward   what `guerdon run` does
collect, label, train, evaluate, bc      what comes before it
compare                                  the arms, seeds and tasks of a study
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from guerdon.settings.base import Settings
from guerdon.settings.data import DataSettings
from guerdon.settings.label import LabelSettings
from guerdon.settings.policy import (
    AlgorithmSettings,
    BCSettings,
    CNNPolicySettings,
    MLPPolicySettings,
    PolicySettings,
)
from guerdon.settings.prime import RewardModelSection
from guerdon.settings.reward import LIMITS, RewardSettings
from guerdon.settings.text_algorithm import GROUPED, TextAlgorithmSettings
from guerdon.settings.text_policy import GenerationSettings, SFTSettings, TextPolicySettings
from guerdon.settings.train import ImageTrainSettings
from guerdon.settings.world import EnvSettings


class LoggerSettings(Settings):
    """`runner.logger`: a run writes to `log_path/experiment_name`."""

    log_path: str = Field("runs", description="folder of runs")
    experiment_name: str = Field("run", description="folder of this run inside it")
    tensorboard: bool = Field(True, description="write TensorBoard logs beside metrics.jsonl")


class RunnerSettings(Settings):
    """`runner`: how long, how often, from where."""

    logger: LoggerSettings = Field(LoggerSettings(), description="where a run writes")
    seed: int = Field(0, description="of weights, exploration and every reset")
    total_steps: int = Field(100_000, ge=1, description="environment steps, all copies together")
    eval_every: int = Field(10_000, ge=1, description="environment steps between evaluations of the policy")
    eval_episodes: int = Field(
        20,
        ge=1,
        description="episodes per evaluation of the deterministic policy, rounded up to a multiple of num_envs",
    )
    checkpoint_every: int = Field(50_000, ge=1, description="environment steps between checkpoints")
    keep_checkpoints: int = Field(
        2, ge=0, description="newest checkpoints kept; 0 removes them once the run is complete"
    )
    save_reward_models: bool = Field(True, description="write reward models that were refitted during the run")
    resume_dir: str | None = Field(
        None,
        description="start from a checkpoint of another run (two-stage training): policy, optimiser, normalisers",
    )
    film_every: int = Field(
        0, ge=0, description="environment steps between filmed episodes for the report; 0: end only"
    )
    film_frames: int = Field(24, ge=2, description="frames per filmed episode")
    threads: int = Field(1, ge=1, description="torch threads")


class ActorShare(Settings):
    """One kind of actor in a mixture."""

    type: Literal["expert", "noisy", "random", "checkpoint"] = Field(
        description="scripted expert, expert with noise, random actions, or a trained policy"
    )
    share: float = Field(1.0, gt=0, description="its part of the episodes")
    noise: float = Field(0.3, ge=0, description="noisy: standard deviation added to the expert's actions")
    checkpoint: str | None = Field(None, description="checkpoint: the folder of a policy")
    random_steps: int = Field(
        0,
        ge=0,
        description="up to this many unrecorded random steps first, so that episodes start from many states",
    )

    calibration_error: float = Field(
        0.0,
        ge=0,
        description="metres, standard deviation of a constant error per episode in the hand position that a scripted "
        "expert sees: near misses, which look like success to a model that watches the arm alone",
    )

    @model_validator(mode="after")
    def _fits(self) -> ActorShare:
        if (self.type == "checkpoint") != (self.checkpoint is not None):
            raise ValueError("an actor of type checkpoint, and only that, needs checkpoint: a policy folder")
        if "noise" in self.model_fields_set and self.type not in ("noisy", "checkpoint"):
            raise ValueError(f"noise would do nothing with an actor of type {self.type}; remove it")
        if self.calibration_error and self.type not in ("expert", "noisy"):
            raise ValueError(f"calibration_error would do nothing with an actor of type {self.type}; remove it")
        return self


class CollectSettings(Settings):
    """`collect`: episodes from scripted experts, random or noisy actions, or trained policies."""

    save_dir: str = Field(description="receives the episodes, as a LeRobot data set")
    episodes: int = Field(50, ge=1, description="episodes in all; a data set already there is continued up to it")
    mixture: tuple[ActorShare, ...] = Field((ActorShare(type="expert"),), description="who acts, by shares")
    only_success: bool = Field(False, description="keep successful episodes only")
    frame_every: int = Field(5, ge=1, description="keep every k-th row of an episode and its last")
    stop_after_success: int | None = Field(
        None, ge=0, description="end an episode this many steps after its first success"
    )
    continuation_limit: int | None = Field(
        None,
        ge=1,
        description="label every kept row by how many steps a scripted expert needs from there to success, up to so "
        "many (Meta-World); progress models learn from it, in failed episodes too",
    )
    video: bool = Field(False, description="MP4 instead of images in Parquet")
    fps: int = Field(20, ge=1, description="rows per second, as the data set declares")
    seed: int = Field(0, description="of the actors and every reset")


class EvaluateSettings(Settings):
    """`evaluate`: how reward models are judged."""

    data_path: str | None = Field(None, description="held-out episodes; null: each model's own validation split")
    reps: int = Field(1000, ge=100, description="bootstrap replications")
    seed: int = Field(0, description="of the bootstrap")


class ArmSettings(Settings):
    """One arm of a study: a label and what differs from the rest of the file."""

    label: str = Field(description="how the report calls the arm")
    config: dict[str, Any] = Field(default_factory=dict, description="what differs from the rest of the file")


class CompareSettings(Settings):
    """`compare`: arms x seeds x tasks."""

    arms: dict[str, ArmSettings] = Field(description="by name")
    baseline: str = Field(description="the arm that others are compared with")
    seeds: tuple[int, ...] = Field((0, 1, 2), description="one run per arm, task and seed")
    tasks: tuple[str, ...] | dict[str, dict[str, Any]] = Field(
        (),
        description="names that replace env.task, or names with what differs from the rest of the file; empty: the "
        "file's own task alone",
    )
    parallel: int = Field(0, ge=0, description="jobs at a time; 0: one per core")

    def at_task(self, name: str) -> dict[str, Any]:
        """What the study changes for a task."""
        return self.tasks[name] if isinstance(self.tasks, dict) else {"env": {"task": name}}

    @model_validator(mode="after")
    def _fits(self) -> CompareSettings:
        if self.baseline not in self.arms:
            raise ValueError(f"compare.baseline {self.baseline!r} is not an arm; arms are {', '.join(self.arms)}")
        for name, values in (("seeds", self.seeds), ("tasks", tuple(self.tasks))):
            if len(set(values)) != len(values):
                raise ValueError(f"compare.{name} repeats an entry")
        return self


class Study(Settings):
    """A whole configuration file."""

    name: str = Field("study", description="title of the report")
    work_dir: str = Field("runs/study", description="where a study keeps data, models, runs and its report")
    runner: RunnerSettings = Field(
        RunnerSettings(), description="how long a run is, how often it is evaluated, where it writes"
    )
    env: EnvSettings = Field(EnvSettings(), description="what the policy acts in")
    policy: Annotated[PolicySettings, Field(description="what acts")] = MLPPolicySettings()
    algorithm: Annotated[
        AlgorithmSettings | TextAlgorithmSettings, Field(discriminator="type", description="how it learns")
    ] = AlgorithmSettings()
    reward: RewardSettings = Field(RewardSettings(), description="which measurements train the policy")
    data: DataSettings | None = Field(None, description="prompts with known answers, for a language model")
    generation: GenerationSettings = Field(GenerationSettings(), description="how a language model writes")
    reward_model: RewardModelSection | None = Field(
        None, description="a reward beside the verifier's, for a language model; null: the outcome alone"
    )
    sft: SFTSettings | None = Field(None, description="supervised start of a language model")
    label: LabelSettings | None = Field(None, description="labels of the steps of a language model's solutions")
    collect: CollectSettings | None = Field(None, description="episodes to collect")
    train: dict[str, ImageTrainSettings] = Field(default_factory=dict, description="reward models to fit, by name")
    bc: BCSettings | None = Field(None, description="behaviour cloning of collected episodes")
    evaluate: EvaluateSettings = Field(EvaluateSettings(), description="how reward models are judged")
    compare: CompareSettings | None = Field(None, description="arms, seeds and tasks of a study")

    @classmethod
    def implied(cls, given: dict[str, Any]) -> dict[str, Any]:
        """An `algorithm` belongs to the kind of policy that the file names."""
        policy, algorithm = given.get("policy"), given.get("algorithm", {})
        if not isinstance(algorithm, dict) or "type" in algorithm:
            return given
        kind = policy.get("type") if isinstance(policy, dict) else getattr(policy, "type", None)
        return {**given, "algorithm": {"type": "text" if kind == "text" else "control", **algorithm}}

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        return cls.implied(given) if isinstance(given, dict) else given

    @property
    def text(self) -> bool:
        """Whether the policy is a language model."""
        return isinstance(self.policy, TextPolicySettings)

    @property
    def control_policy(self) -> MLPPolicySettings | CNNPolicySettings:
        """The policy of a robot study."""
        assert not isinstance(self.policy, TextPolicySettings)
        return self.policy

    @property
    def control_algorithm(self) -> AlgorithmSettings:
        """The algorithm of a robot study."""
        assert isinstance(self.algorithm, AlgorithmSettings)
        return self.algorithm

    @property
    def text_policy(self) -> TextPolicySettings:
        """The policy of a language study."""
        assert isinstance(self.policy, TextPolicySettings)
        return self.policy

    @property
    def text_algorithm(self) -> TextAlgorithmSettings:
        """The algorithm of a language study."""
        assert isinstance(self.algorithm, TextAlgorithmSettings)
        return self.algorithm

    @property
    def task_name(self) -> str:
        """What a report calls the task of the file."""
        if self.data is None:
            return self.env.task
        return self.data.task.family if self.data.type == "generated" else self.data.type

    @model_validator(mode="after")
    def _one_side(self) -> Study:
        given = self.model_fields_set
        if self.algorithm.type != ("text" if self.text else "control"):
            raise ValueError(f"algorithm.type {self.algorithm.type} does not go with policy.type {self.policy.type}")
        language = {"data", "generation", "label", "reward_model", "sft"}
        idle = {"env", "collect", "bc", "train"} if self.text else language
        present = sorted(name for name in idle & given if getattr(self, name) != type(self).model_fields[name].default)
        if present:
            raise ValueError(f"{', '.join(present)} would do nothing with policy.type {self.policy.type}; remove it")
        if self.text or not self.reward.use_reward_model:
            known = {"use_reward_model", "sources", *(LIMITS if self.text else ())}
            extra = sorted(self.reward.model_fields_set - known)
            extra += ["use_reward_model"] if self.reward.use_reward_model else []
            if extra:
                why = f"policy.type {self.policy.type}" if self.text else "use_reward_model: false"
                raise ValueError(f"reward.{extra[0]} would do nothing with {why}; remove it")
        if self.text and self.data is None:
            raise ValueError("a language model needs a data section: which prompts, and who checks answers")
        return self

    @model_validator(mode="after")
    def _text_knobs_do_something(self) -> Study:
        if not isinstance(self.algorithm, TextAlgorithmSettings):
            return self
        algorithm, model = self.algorithm, self.reward_model
        per_token = model is not None and model.rm_type == "prime" and model.prime_granularity != "whole"
        if algorithm.credit == "min_form" and not per_token:
            raise ValueError("algorithm.credit min_form needs a prime reward model with granularity token or step")
        if "rloo_form" in algorithm.model_fields_set and not (per_token or (model and model.rm_type == "exact")):
            raise ValueError("algorithm.rloo_form would do nothing without dense rewards; remove it")
        if algorithm.adv_params.reward_model_gamma is not None and model is None:
            raise ValueError("algorithm.adv_params.reward_model_gamma would do nothing without reward_model; remove it")
        if model is not None and not model.verifier_coef and algorithm.normalize_advantages:
            idle = sorted({"rm_coef", "rm_coef_schedule"} & model.model_fields_set)
            if idle:
                raise ValueError(
                    f"reward_model.{idle[0]} would do nothing with verifier_coef 0, where the only source is "
                    "normalised; remove it"
                )
        if "film_frames" in self.runner.model_fields_set:
            raise ValueError("runner.film_frames would do nothing with policy.type text; remove it")
        return self

    @model_validator(mode="after")
    def _groups_are_whole(self) -> Study:
        if self.data is not None and self.text_algorithm.adv_estimator in GROUPED and self.data.n_samples < 2:
            raise ValueError(
                f"adv_estimator {self.algorithm.adv_estimator} compares responses to the same prompt: data.n_samples "
                "must be at least 2"
            )
        return self

    @model_validator(mode="after")
    def _groups_fill_the_copies(self) -> Study:
        if not isinstance(self.algorithm, AlgorithmSettings) or self.algorithm.adv_estimator != "grpo":
            return self
        size, copies = self.algorithm.group_size, self.env.num_envs
        if copies % size:
            raise ValueError(
                f"adv_estimator grpo plays whole groups at a time: env.num_envs ({copies}) must be a multiple of "
                f"algorithm.group_size ({size}), such as {-(-copies // size) * size}"
            )
        if self.env.max_episode_steps is None:
            raise ValueError("adv_estimator grpo needs env.max_episode_steps: every episode of a group must end")
        return self
