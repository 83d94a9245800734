"""The `reward` section: which measurements train the policy, and how they are shaped and combined.

With one reward model its keys stand directly under `reward` (the names of the ResNet reward guide); with several,
each has its own entry under `reward.sources`. Robots and language models share the section: `model_type: text` is for
the latter, the other types for the former. Nothing here loads a model.

    RewardSettings(use_reward_model=True, sources={"prm": {"model": {"model_type": "text", "checkpoint_path": "prm"}}})
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from guerdon.settings.base import Settings
from guerdon.settings.evaluate_text import Aggregation
from guerdon.settings.label import Splitter
from guerdon.settings.libero import REMOTE, gathered, spelled_out
from guerdon.settings.remote import RemoteSettings
from guerdon.settings.train import Arch, ImageSize
from guerdon.settings.vlm import VLM_NAMES, VLMSettings, VLMShortForm, check_vlm, vlm_form

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

    short_form = (RemoteSettings, VLMShortForm)

    model_type: Literal[
        "resnet", "resnet_reward", "progress", "constant", "dummy", "DummyRM", "text", "remote", "remote_text",
        "qwen_vl", "QwenProcessRM", "qwen2_5_vl_vllm", "primo_r1", "PRIMO-R1", "primo_r1_vllm", "true_logprob", "trend",
        "preference",
    ] = Field(
        "resnet",
        description="resnet (resnet_reward): success classifier; progress: regressor; constant (dummy, DummyRM): one "
        "value; text: any reward model of a language study; remote, remote_text: one on a reward server, for robots or "
        "text; vision-language models: qwen_vl (QwenProcessRM: yes or no as it writes it; qwen2_5_vl_vllm: progress, "
        "by vLLM), primo_r1 (PRIMO-R1, primo_r1_vllm: by vLLM), true_logprob, trend, preference",
    )  # fmt: skip
    vlm: VLMSettings | None = Field(
        None,
        description="vision-language models: which one, how it is asked; prm_model_name_or_path and "
        "prm_checkpoint_path may stand directly under model and mean vlm.path and vlm.adapter",
    )
    remote: RemoteSettings | None = Field(
        None, description="remote: where the server is; its keys may stand directly under model too"
    )
    checkpoint_path: str | None = Field(
        None, description="folder that `guerdon train` wrote, or its model.safetensors; text: a folder or hub id"
    )
    adapter: str = Field(
        "auto", description="text: which family's way to mark steps and read scores; auto: as the model's files say"
    )
    micro_batch_size: int = Field(16, ge=1, description="text: solutions per forward pass")
    arch: Arch | None = Field(None, description="refuse a checkpoint with another architecture")
    hidden_dim: int | None = Field(None, ge=1, description="refuse a checkpoint with another head")
    dropout: float | None = Field(None, ge=0, lt=1, description="refuse a checkpoint with another dropout")
    image_size: ImageSize | None = Field(
        None, description="refuse a checkpoint with another input size; 128, [128, 128] or [3, 128, 128]"
    )
    value: float = Field(0.0, description="of the constant model")
    debug_save_dir: str | None = Field(
        None, description="write every scored frame to resnet_success/ or resnet_fail/ in this folder"
    )
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

    @property
    def origin(self) -> str:
        """Where it comes from, in words."""
        if self.remote is not None:
            return self.remote.address
        asked = None if self.vlm is None else self.vlm.path or (self.vlm.openai and self.vlm.openai.base_url)
        return self.checkpoint_path or asked or "no checkpoint"

    @model_validator(mode="before")
    @classmethod
    def _remote_form(cls, given: Any) -> Any:
        return gathered(vlm_form(given)) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _fits_together(self) -> RewardModelSettings:
        fixed, text = self.model_type in ("constant", "dummy", "DummyRM"), self.model_type == "text"
        remote, vlm = self.model_type in REMOTE, self.model_type in VLM_NAMES
        if vlm:
            check_vlm(self.model_type, self.vlm, self.checkpoint_path)
        elif self.vlm is not None:
            raise ValueError(f"vlm would do nothing with model_type {self.model_type}; remove it")
        if self.remote is not None and not remote:
            raise ValueError(f"remote would do nothing with model_type {self.model_type}; remove it")
        if not fixed and not remote and not vlm and not self.checkpoint_path:
            raise ValueError(f"model_type {self.model_type} needs checkpoint_path: a folder that `guerdon train` wrote")
        of_images = {"arch", "hidden_dim", "dropout", "image_size", "debug_save_dir"}
        idle = set() if text else {"adapter", "micro_batch_size"}
        idle |= of_images if text or fixed or remote or vlm else set()
        idle |= {"checkpoint_path"} if fixed or remote else set()
        idle |= set() if fixed else {"value"}
        defaults = {name: f.default for name, f in type(self).model_fields.items()}
        present = sorted(k for k in idle & self.model_fields_set if getattr(self, k) != defaults[k])
        if present:
            raise ValueError(f"{', '.join(present)} would do nothing with model_type {self.model_type}; remove it")
        if self.update != "none" and (fixed or text or remote or vlm):
            online = "; reward_model.rm_type prime learns online" if text else ""
            raise ValueError(f"model_type {self.model_type} cannot be refitted: update must be none{online}")
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
    reward_mode: Literal["per_step", "terminal", "episode", "per_token"] = Field(
        "terminal",
        description="terminal: score the last frame of an episode (text: the whole response, paid at its end); "
        "per_step: every score_every-th and the last (text: each step, paid at its last token); episode: judge the "
        "whole episode once, at its end, from its first frame, every score_every-th and the last; per_token (text): "
        "each step, paid at each of its tokens",
    )
    score_every: int = Field(
        1, ge=1, description="per_step: score every k-th step of an episode, and its last; episode: look at these"
    )
    aggregation: Aggregation | None = Field(
        None, description="text, terminal: how values of steps become one; needed where the model judges steps"
    )
    splitter: Splitter | None = Field(
        None, description="text: where steps end; null: as label.splitter does with null. Cut as in training"
    )
    shaping: Literal["threshold", "raw", "signed", "relative", "potential", "bonus"] = Field(
        "threshold",
        description="how values become rewards: one of two by a threshold; as they are; 2p - 1 (text: a wrong step "
        "costs, as in PURE); change since the last value (text: the first step pays its own); potential-based; "
        "one-shot",
    )
    success_reward: float = Field(1.0, description="threshold: reward above the threshold; bonus: the one-shot reward")
    fail_reward: float = Field(0.0, description="reward at or below the threshold")
    use_negative_reward: bool = Field(False, description="fail_reward becomes -success_reward; risks policy collapse")
    reward_threshold: float | None = Field(None, ge=0, le=1, description="null: the one stored with the model")
    binary_reward: bool | None = Field(
        None, description="the LIBERO guide's word for shaping: true is threshold, false is raw"
    )
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
    reward_coef: float = Field(1.0, description="multiplies the shaped reward")
    reward_weight: float = Field(1.0, description="weight of this source in the advantage")
    gamma: float | None = Field(None, ge=0, le=1, description="discount of this source; null: the algorithm's")
    on_failure: OnFailure = Field(
        "drop",
        description="a measurement failed: mask its step, or the response it is about (drop), reward 0 and keep it "
        "(neutral), or stop (raise)",
    )

    @property
    def text(self) -> bool:
        """Whether it judges what a language model writes."""
        return self.model.model_type in ("text", "remote_text")

    @property
    def native_fallback(self) -> bool:
        """Whether true success takes the place of a missing score."""
        return self.model.remote is not None and self.model.remote.fallback == "native"

    @model_validator(mode="before")
    @classmethod
    def _guide_words(cls, given: Any) -> Any:
        return spelled_out(given) if isinstance(given, dict) and "model" in given else given

    @model_validator(mode="after")
    def _fits_the_model(self) -> SourceSettings:
        kind = self.model.model_type
        if self.text and self.shaping in ("potential", "bonus"):
            raise ValueError(
                f"shaping {self.shaping} is not for model_type text: take raw, signed, threshold, relative"
            )
        if not self.text and (self.reward_mode == "per_token" or self.shaping == "signed"):
            what = "reward_mode per_token" if self.reward_mode == "per_token" else "shaping signed"
            raise ValueError(f"{what} is for model_type text, not {kind}")
        if self.text and self.reward_mode == "episode":
            raise ValueError("reward_mode episode is for robots; the whole response is reward_mode terminal")
        if self.native_fallback and (self.text or "on_failure" in self.model_fields_set):
            why = "language models" if self.text else "on_failure"
            raise ValueError(f"fallback native is not for use with {why}: remove one of them")
        of_robots = {"score_every", "binary_reward", "success_threshold", "use_rel_reward"}
        idle = of_robots if self.text else {"aggregation", "splitter"}
        if self.text and self.reward_mode != "terminal":
            idle |= {"aggregation"}
        defaults = {name: f.default for name, f in type(self).model_fields.items()}
        present = sorted(k for k in idle & self.model_fields_set if getattr(self, k) != defaults[k])
        if present:
            raise ValueError(
                f"{', '.join(present)} would do nothing with model_type {kind} and reward_mode {self.reward_mode}; "
                "remove it"
            )
        return self

    @model_validator(mode="after")
    def _nothing_idle(self) -> SourceSettings:
        given = self.model_fields_set
        threshold_keys = {"success_reward", "fail_reward", "use_negative_reward"}
        idle: set[str] = set()
        if self.shaping not in ("threshold", "bonus"):
            idle |= threshold_keys | {"reward_threshold", "success_threshold"}
        if self.shaping != "bonus":
            idle |= {"confirm_frames"}
        else:
            idle |= {"fail_reward", "use_negative_reward"}
        if self.reward_mode == "terminal":
            idle |= {"score_every"}
            if self.shaping in ("relative", "potential", "bonus"):
                raise ValueError(f"shaping {self.shaping} needs reward_mode: per_step; terminal mode sees one frame")
            if self.use_rel_reward and not self.text:
                raise ValueError("use_rel_reward needs reward_mode per_step or episode; terminal mode sees one frame")
        if self.reward_mode == "episode" and self.shaping in ("relative", "potential", "bonus"):
            raise ValueError(f"shaping {self.shaping} needs reward_mode: per_step; an episode is judged once")
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

    short_form = (SourceSettings,)

    use_reward_model: bool = Field(False, description="off: the native reward alone")
    group_name: str = Field("RewardGroup", description="what log lines call the group of reward models")
    combine_mode: Literal["replace", "add", "weighted"] = Field(
        "replace",
        description="weight of the native reward (text: of the verifier's outcome) beside the models: 0, 1, or "
        "env_reward_weight",
    )
    env_reward_weight: float = Field(0.0, description="weight of the native reward with combine_mode: weighted")
    max_failure_rate: float = Field(
        0.1, ge=0, le=1, description="stop the run when a larger share of a source's measurements fails"
    )
    failure_window: int = Field(200, ge=1, description="measurements of a source over which its failure rate is taken")
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
