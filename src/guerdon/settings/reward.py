"""The `reward` section: which measurements train the policy, and how they are shaped and combined.

With one reward model its keys stand directly under `reward` (the names of the ResNet reward guide); with several,
each has its own entry under `reward.sources`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from guerdon.settings.base import Settings
from guerdon.settings.train import Arch, ImageSize

OnFailure = Literal["drop", "neutral", "raise"]


class UpdateSettings(Settings):
    """How a reward model keeps up with the policy (`reward.model.update` says when)."""

    every: int = Field(1, ge=1, description="rollouts between refits")
    steps: int = Field(20, ge=1, description="gradient steps per refit")
    batch_size: int = Field(64, ge=2, description="frames per gradient step, fresh and replayed")
    learning_rate: float = Field(3e-4, gt=0, description="of AdamW")
    weight_decay: float = Field(1e-4, ge=0, description="of AdamW")
    replay_size: int = Field(4000, ge=1, description="labelled frames kept; old ones leave by reservoir sampling")
    replay_ratio: float = Field(0.5, ge=0, lt=1, description="share of each batch drawn from the replay")
    continuation_every: int = Field(3, ge=1, description="labeler continuation: go on from every k-th scored moment")


class RewardModelSettings(Settings):
    """`reward.model`: which model, from where."""

    model_type: Literal["resnet", "resnet_reward", "progress", "constant", "dummy"] = Field(
        "resnet",
        description="resnet (resnet_reward): success classifier; progress: regressor; constant (dummy): one value",
    )
    checkpoint_path: str | None = Field(None, description="folder that `guerdon train` wrote, or its model.safetensors")
    arch: Arch | None = Field(None, description="refuse a checkpoint with another architecture")
    hidden_dim: int | None = Field(None, ge=1, description="refuse a checkpoint with another head")
    dropout: float | None = Field(None, ge=0, lt=1, description="refuse a checkpoint with another dropout")
    image_size: ImageSize | None = Field(
        None, description="refuse a checkpoint with another input size; 128, [128, 128] or [3, 128, 128]"
    )
    value: float = Field(0.0, description="of the constant model")
    debug_save_dir: str | None = Field(None, description="write every scored frame to success/ or fail/ in this folder")
    update: Literal["none", "before", "after"] = Field(
        "none", description="refit the model during RL, before or after the policy's update"
    )
    update_params: UpdateSettings = Field(UpdateSettings(), description="how it is refitted")
    labeler: Literal["outcome", "continuation"] = Field(
        "outcome",
        description="who labels fresh frames: true success of the episode, or (progress models, Meta-World) the steps "
        "that a scripted expert needs when it goes on from there",
    )
    replay_path: str | None = Field(None, description="episodes that seed the replay when the model is refitted")

    @model_validator(mode="after")
    def _fits_together(self) -> RewardModelSettings:
        fixed = self.model_type in ("constant", "dummy")
        if not fixed and not self.checkpoint_path:
            raise ValueError(f"model_type {self.model_type} needs checkpoint_path: a folder that `guerdon train` wrote")
        idle = (
            {"checkpoint_path", "arch", "hidden_dim", "dropout", "image_size", "debug_save_dir"} if fixed else {"value"}
        )
        present = sorted(k for k in idle & self.model_fields_set if getattr(self, k) not in (None, 0.0))
        if present:
            raise ValueError(f"{', '.join(present)} would do nothing with model_type {self.model_type}; remove it")
        if self.update != "none" and fixed:
            raise ValueError(f"model_type {self.model_type} cannot be refitted: update must be none")
        if self.update == "none" and self.model_fields_set & {"update_params", "replay_path", "labeler"}:
            raise ValueError("update_params, replay_path and labeler would do nothing with update: none; remove them")
        if self.labeler == "continuation" and self.model_type != "progress":
            raise ValueError(f"labeler continuation would do nothing for model_type {self.model_type}; remove it")
        if self.labeler == "outcome" and "continuation_every" in self.update_params.model_fields_set:
            raise ValueError("continuation_every would do nothing with labeler: outcome; remove it")
        if self.update != "none" and not self.replay_path:
            raise ValueError(f"update: {self.update} needs replay_path: the episodes that the model was trained on")
        return self


class SourceSettings(Settings):
    """One reward model as a source of reward."""

    model: RewardModelSettings = Field(description="which model, from where")
    reward_mode: Literal["per_step", "terminal"] = Field(
        "terminal",
        description="terminal: score the last frame of an episode; per_step: every score_every-th and the last",
    )
    score_every: int = Field(1, ge=1, description="per_step: score every k-th step of an episode, and its last")
    shaping: Literal["threshold", "raw", "relative", "potential", "bonus"] = Field(
        "threshold", description="how values become rewards"
    )
    success_reward: float = Field(1.0, description="threshold: reward above the threshold; bonus: the one-shot reward")
    fail_reward: float = Field(0.0, description="reward at or below the threshold")
    use_negative_reward: bool = Field(False, description="fail_reward becomes -success_reward; risks policy collapse")
    reward_threshold: float | None = Field(None, ge=0, le=1, description="null: the one stored with the model")
    confirm_frames: int = Field(2, ge=1, description="bonus: scored frames in a row above the threshold")
    reward_coef: float = Field(1.0, description="multiplies the shaped reward")
    reward_weight: float = Field(1.0, description="weight of this source in the advantage")
    gamma: float | None = Field(None, ge=0, le=1, description="discount of this source; null: the algorithm's")
    on_failure: OnFailure = Field(
        "drop",
        description="a measurement failed: mask its step (drop), reward 0 and keep the step (neutral), or stop (raise)",
    )

    @model_validator(mode="after")
    def _nothing_idle(self) -> SourceSettings:
        given = self.model_fields_set
        threshold_keys = {"success_reward", "fail_reward", "use_negative_reward"}
        idle: set[str] = set()
        if self.shaping not in ("threshold", "bonus"):
            idle |= threshold_keys | {"reward_threshold"}
        if self.shaping != "bonus":
            idle |= {"confirm_frames"}
        else:
            idle |= {"fail_reward", "use_negative_reward"}
        if self.reward_mode == "terminal":
            idle |= {"score_every"}
            if self.shaping in ("relative", "potential", "bonus"):
                raise ValueError(f"shaping {self.shaping} needs reward_mode: per_step; terminal mode sees one frame")
        present = sorted(idle & given)
        if present:
            raise ValueError(
                f"{', '.join(present)} would do nothing with shaping {self.shaping} "
                f"and reward_mode {self.reward_mode}; remove it"
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

    use_reward_model: bool = Field(False, description="off: the native reward alone")
    group_name: str = Field("RewardGroup", description="what log lines call the group of reward models")
    combine_mode: Literal["replace", "add", "weighted"] = Field(
        "replace", description="weight of the native reward beside the models: 0, 1, or env_reward_weight"
    )
    env_reward_weight: float = Field(0.0, description="weight of the native reward with combine_mode: weighted")
    max_failure_rate: float = Field(
        0.1, ge=0, le=1, description="stop the run when a larger share of measurements fails"
    )
    failure_window: int = Field(200, ge=1, description="measurements over which the failure rate is taken")
    sources: dict[str, SourceSettings] = Field(
        default_factory=dict, description="several reward models, by name, each with the keys of a source"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_model_form(cls, given: Any) -> Any:
        """Move the keys of the one-model form into `sources`."""
        if not isinstance(given, dict):
            return given
        single = {k: v for k, v in given.items() if k in _PER_SOURCE}
        if not single:
            return given
        if given.get("sources"):
            raise ValueError(
                f"{', '.join(sorted(single))} stands beside sources; with several sources every key belongs to "
                "one of them"
            )
        if not given.get("use_reward_model", False):
            raise ValueError(f"{', '.join(sorted(single))} would do nothing with use_reward_model: false; remove it")
        if "model" not in single:
            raise ValueError("use_reward_model needs reward.model (or reward.sources)")
        model = single["model"]
        kind = model.get("model_type", "resnet") if isinstance(model, dict) else "resnet"
        name = {"resnet_reward": "resnet", "dummy": "constant"}.get(kind, kind)
        rest = {k: v for k, v in given.items() if k not in _PER_SOURCE}
        return {**rest, "sources": {name: single}}

    @model_validator(mode="after")
    def _fits_together(self) -> RewardSettings:
        if self.use_reward_model and not self.sources:
            raise ValueError("use_reward_model needs reward.model (or reward.sources)")
        if not self.use_reward_model:
            known = {"use_reward_model", *LIMITS} | (set() if self.sources else {"sources"})
            idle = sorted(self.model_fields_set - known)
            if idle:
                raise ValueError(f"{', '.join(idle)} would do nothing with use_reward_model: false; remove it")
        if "env" in self.sources or "combined" in self.sources:
            raise ValueError("a reward source cannot be called env or combined: those names are taken")
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
