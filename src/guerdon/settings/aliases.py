"""Aliases: the words of the guides that guerdon comes from, for what guerdon calls otherwise.

They stand here and in no other module of the settings. `LiberoWords` are keys of a robot's source, `PRMOptions` keys of
`reward`, `VLMShortForm` keys of `reward.model`, `VLM_ALIASES` and `ZERO_MODEL` names of `model_type`. What they mean is
filled in before a section is checked.

    libero_words({"binary_reward": True})["shaping"]                            # "threshold"
    prm_words({"process_reward_model": True}, set())["sources"]["prm"]["model"]  # {"model_type": "DummyRM"}

The options of the VLA guide's training script stand for keys of this configuration, on the command line and at the
top of a file; those that cannot are refused with the reason (`VLA_OPTIONS`). So do the keys that the LIBERO guide has
from RLinf (`RLINF_KEYS`).

    guide_names(Tree(), ["lr=5e-5", "use_wandb=false"])[1]                      # ["algorithm.learning_rate=5e-05"]
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pydantic import Field, model_validator

from guerdon.config.loading import Tree, apply_overrides, merge, validate
from guerdon.errors import ConfigError
from guerdon.settings.base import Settings, imply, refuse

# Names of reward models.

QWEN_ALIAS, ZERO_MODEL = "QwenProcessRM", "DummyRM"
LOGGED_AS_PRM = (QWEN_ALIAS, ZERO_MODEL)
"""Names of `model_type` with which a run writes the VLA guide's log lines."""
VLM_ALIASES = {"qwen_vl": (QWEN_ALIAS, "qwen2_5_vl_vllm"), "primo_r1": ("PRIMO-R1", "primo_r1_vllm")}
"""Further names of kinds of vision-language models: the VLA guide's, and those of the LIBERO guide's server."""
IMPLIED_BY_ALIAS: dict[str, dict[str, Any]] = {
    QWEN_ALIAS: {"answer": "hard"},
    "qwen2_5_vl_vllm": {"backend": "vllm", "question": "progress"},
    "PRIMO-R1": {"backend": "vllm"},
    "primo_r1_vllm": {"backend": "vllm"},
}
"""Keys of `reward.model.vlm` that such a name implies."""


class VLMShortForm(Settings):
    """The VLA guide's keys that may stand directly under `reward.model` for keys of its `vlm`."""

    prm_model_name_or_path: str | None = Field(None, description="vlm.path")
    prm_checkpoint_path: str | None = Field(None, description="vlm.adapter")


PATH_ALIAS, ADAPTER_ALIAS = VLMShortForm.model_fields

# Keys of a source.


class LiberoWords(Settings):
    """The LIBERO guide's words for keys of a robot's source."""

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

    @model_validator(mode="before")
    @classmethod
    def _words(cls, given: Any) -> Any:
        return libero_words(given) if isinstance(given, dict) else given


def libero_words(given: dict[str, Any]) -> dict[str, Any]:
    """The keys of a robot's source, with those that the guide's words imply.

    Raises:
        ValueError: two words contradict each other.
    """
    found = dict(given)
    mode = found.get("reward_mode", "terminal")
    if found.get("use_rel_reward") is True and mode == "terminal":
        raise ConfigError.about("use_rel_reward", "needs reward_mode per_step or episode; terminal mode sees one frame")
    relative = found.get("use_rel_reward") is True and mode == "per_step"
    if found.get("binary_reward") is not None:
        if relative and found["binary_reward"] is True:
            raise ConfigError.about("use_rel_reward", "and binary_reward exclude each other with reward_mode per_step")
        if not relative:
            shaping = "threshold" if found["binary_reward"] is True else "raw"
            imply(found, "shaping", shaping, f"binary_reward: {str(found['binary_reward']).lower()}")
    if relative:
        imply(found, "shaping", "relative", "use_rel_reward")
    if found.get("success_threshold") is not None and found.get("reward_threshold") is not None:
        raise ConfigError.about("success_threshold", "is the guide's word for reward_threshold; give one of the two")
    return found


class PRMOptions(Settings):
    """The VLA guide's options of a process reward model: a short form of the source `prm` of `reward.sources`."""

    process_reward_model: bool = Field(False, description="reward every step by a process reward model, too")
    prm_model_name_or_path: str | None = Field(None, description="its vlm.path; null: DummyRM, which gives zeros")
    prm_checkpoint_path: str | None = Field(None, description="its vlm.adapter")
    prm_reward_weight: float = Field(0.1, description="its reward_weight")
    use_vllm_prm: bool = Field(False, description="its vlm.backend is vllm")


def prm_words(given: dict[str, Any], source_keys: set[str]) -> dict[str, Any]:
    """The keys of `reward` with the VLA guide's as the source `prm`: every step is scored, and the values are paid.

    The native reward is kept (`combine_mode: add`). Keys of a source directly under `reward` are those of `prm`.

    Args:
        given: the section.
        source_keys: the keys that a source has.

    Raises:
        ValueError: a key that would do nothing, or one thing under two names.
    """
    words = {key: given[key] for key in PRMOptions.model_fields if key in given}
    if not words:
        return given
    asked, rest = validate(PRMOptions, words, origin="reward"), {k: v for k, v in given.items() if k not in words}
    if not asked.process_reward_model:
        refuse(set(words) - {"process_reward_model"}, "without process_reward_model: true")
        return rest
    if rest.get("use_reward_model") is False:
        raise ConfigError.about(
            "process_reward_model", ": true contradicts use_reward_model: false; remove one of them"
        )
    sources = rest.pop("sources", None) or {}
    if not isinstance(sources, dict) or not isinstance(sources.get("prm", {}), dict):
        raise ConfigError(
            "with process_reward_model, sources holds keys by name, and sources.prm keys of a source", key="sources"
        )
    sources = dict(sources)
    own = {**sources.pop("prm", {}), **{key: rest.pop(key) for key in source_keys & rest.keys()}}
    if "reward_weight" in own and "prm_reward_weight" in words:
        raise ConfigError.about("reward_weight", "and prm_reward_weight are two names of one thing; give one of them")
    model = _prm_model(asked, own.pop("model", {}))
    terms = {"reward_mode": "per_step", "shaping": "raw", "reward_weight": asked.prm_reward_weight}
    kept = {"combine_mode": "add", **rest, "use_reward_model": True}
    return {**kept, "sources": {"prm": {**terms, "model": model, **own}, **sources}}


def _prm_model(asked: PRMOptions, given: Any) -> Any:
    """`model` of the source `prm`: that of the options with the keys that are given, or the one that is given."""
    named = asked.model_fields_set & {"prm_model_name_or_path", "prm_checkpoint_path", "use_vllm_prm"}
    if not isinstance(given, dict) or "model_type" in given:
        refuse(named, "another reward.model")
        return given
    if asked.prm_model_name_or_path is None:
        refuse(named - {"prm_model_name_or_path"}, f"without prm_model_name_or_path ({ZERO_MODEL})")
        return merge({"model_type": ZERO_MODEL}, given)
    vlm = {"path": asked.prm_model_name_or_path} | ({"backend": "vllm"} if asked.use_vllm_prm else {})
    vlm |= {} if asked.prm_checkpoint_path is None else {"adapter": asked.prm_checkpoint_path}
    return merge({"model_type": QWEN_ALIAS, "vlm": vlm}, given)


# The options of the VLA guide's training script.


class Option(NamedTuple):
    """What an option of the script is here.

    Attributes:
        key: that it stands for; None: it is refused.
        why: it is refused, or how its meaning differs.
        same: values at which guerdon does the same without being told; they are accepted.
        convert: from its value to that of the key.
    """

    key: str | None
    why: str = ""
    same: tuple[Any, ...] = ()
    convert: Callable[[Any], Any] | None = None


def _stop_at(limit: Any) -> Any:
    return limit if isinstance(limit, bool) else limit / 1.5  # where target_kl stops the update


def _first_tasks(count: Any) -> Any:
    return count if isinstance(count, bool | float) else list(range(count))


def _order(ordered: Any) -> Any:
    return {True: "ordered", False: "drawn"}.get(ordered, ordered) if isinstance(ordered, bool) else ordered


_ACTS = "a VLA policy acts in the collectors, with torch"
_CRITIC = "the critic is a head on what the policy itself computes"
_TEXT = "it is about generated text; the length of an action follows from the policy"

VLA_OPTIONS: dict[str, Option] = {
    "seed": Option("runner.seed"),
    # model and data
    "vla_path": Option("policy.vla_path"),
    "load_adapter_checkpoint": Option("policy.load_adapter_checkpoint"),
    "use_fast_tokenizer": Option(None, "tokenizers are transformers' fast ones", (True,)),
    "enable_gradient_checkpointing": Option("policy.gradient_checkpointing", "", (False,)),
    "data_root_dir": Option(None, "demonstrations are those of bc.data_path; action statistics are in the checkpoint"),
    "dataset_name": Option(None, "demonstrations are those of bc.data_path; action statistics are policy.unnorm_key"),
    "center_crop": Option("policy.center_crop"),
    "use_lora": Option("policy.use_lora"),
    "lora_rank": Option("policy.lora_rank"),
    "lora_dropout": Option("policy.lora_dropout"),
    "use_quantization": Option("policy.use_quantization"),
    "context_length": Option(None, _TEXT),
    "response_length": Option(None, _TEXT),
    # process reward
    "process_reward_model": Option("reward.process_reward_model"),
    "prm_model_name_or_path": Option("reward.prm_model_name_or_path", "without it: DummyRM"),
    "prm_checkpoint_path": Option("reward.prm_checkpoint_path"),
    "prm_reward_weight": Option("reward.prm_reward_weight"),
    "use_vllm_prm": Option("reward.use_vllm_prm"),
    # critic
    "use_value_model": Option(
        "algorithm.adv_estimator", "true: gae, which has a critic; false: reinforce", (True,), lambda _: "reinforce"
    ),
    "value_model_path": Option(None, _CRITIC),
    "value_model_type": Option(None, _CRITIC, ("vla",)),
    "value_use_lora": Option(None, f"{_CRITIC}, and so is LoRA", (False,)),
    "value_lr": Option(None, "policy and critic share algorithm.learning_rate"),
    "value_init_steps": Option("algorithm.value_init_steps"),
    # environment
    "task_suite_name": Option("env.task_suite_name"),
    "num_steps_wait": Option("env.num_steps_wait"),
    "num_tasks_per_suite": Option("env.task_ids", "the first so many", (), _first_tasks),
    "num_trials_per_task": Option("env.num_trials_per_task", "of evaluations"),
    "n_rollout_threads": Option("env.num_envs"),
    "task_ids": Option("env.task_ids"),
    "max_env_length": Option("env.max_episode_steps", "0: the limit of the suite"),
    "save_video": Option("runner.save_video", "a tenth of the episodes: runner.video_share"),
    "env_gpu_id": Option(None, "the environment variable MUJOCO_EGL_DEVICE_ID chooses the GPU that renders", (0,)),
    # PPO
    "lr": Option("algorithm.learning_rate"),
    "eps": Option(None, "Adam's epsilon is 1e-5", (1e-5,)),
    "weight_decay": Option(None, "policies of robots are trained without weight decay", (0,)),
    "scheduler": Option("algorithm.lr_schedule"),
    "max_grad_norm": Option("algorithm.max_grad_norm"),
    "per_device_train_batch_size": Option("algorithm.micro_batch_size"),
    "local_rollout_batch_size": Option(None, "a rollout is of all env.num_envs copies"),
    "local_rollout_forward_batch_size": Option(None, "all copies act together; vlm.batch_size is the PRM's"),
    "local_mini_batch_size": Option("algorithm.minibatch_size"),
    "num_mini_batches": Option(None, "algorithm.minibatch_size says how large they are", (1,)),
    "num_epochs": Option("algorithm.num_epochs"),
    "num_steps": Option("algorithm.rollout_steps"),
    "total_episodes": Option(None, "runner.total_steps counts environment steps, not episodes"),
    "temperature": Option("policy.decoding.temperature"),
    "verify_reward_value": Option(None, "a success pays 1; reward.env_reward_weight scales it", (1,)),
    "penalty_reward_value": Option(None, _TEXT, (-1,)),
    "non_stop_penalty": Option(None, _TEXT, (False,)),
    "beta": Option(None, "there is no KL from a reference policy for robots", (0,)),
    "kl_estimator": Option(None, "there is no KL from a reference policy for robots", ("kl1",)),
    "whiten_rewards": Option(None, "algorithm.normalize_rewards divides them and does not shift them", (False,)),
    "cliprange": Option("algorithm.clip_range"),
    "cliprange_low": Option("algorithm.clip_range"),
    "cliprange_high": Option("algorithm.clip_range_high"),
    "cliprange_value": Option("algorithm.clip_range_value"),
    "clip_vloss": Option(None, "algorithm.clip_range_value clips, null does not", (False,)),
    "vf_coef": Option("algorithm.value_coef"),
    "gamma": Option("algorithm.gamma"),
    "lam": Option("algorithm.gae_lambda"),
    "norm_adv": Option("algorithm.normalize_advantages"),
    "max_approx_kl": Option(
        "algorithm.target_kl", "divided by 1.5; stops the update, the script skips steps", (1e8,), _stop_at
    ),
    "async_mode": Option(None, "rollouts and updates take turns", (False,)),
    "save_freq": Option(None, "runner.checkpoint_every counts environment steps, not updates", (-1,)),
    "use_wandb": Option(None, "runs write JSON lines and TensorBoard logs", (False,)),
    "push_to_hub": Option(None, "nothing is uploaded; the policy is in the run's folder", (False,)),
    "vllm_num_engines": Option("cluster.collectors", f"{_ACTS}; engine: ray"),
    "vllm_tensor_parallel_size": Option(None, f"{_ACTS}, each of which holds all of it", (1,)),
    "vllm_enforce_eager": Option(None, f"{_ACTS}, without CUDA graphs", (True,)),
    "vllm_sync_backend": Option(
        None, "cluster.weight_transfer: auto takes nccl where it can, object_store never does", ("nccl",)
    ),
    "enable_prefix_caching": Option(None, f"{_ACTS}, and reads other pictures for each decision", (False,)),
    "gpu_memory_utilization": Option(
        "cluster.collector_gpus",
        f"{_ACTS}; the part of a GPU that each collector reserves, which does not limit its memory; engine: ray",
    ),
    # curriculum
    "use_curriculum": Option("env.use_curriculum", "over initial states; env.curriculum_over says tasks or both"),
    "curriculum_temp": Option("env.curriculum_temp"),
    "curriculum_min_prob": Option("env.curriculum_min_prob"),
    "eval_freq": Option(None, "runner.eval_every counts environment steps, not updates"),
    "init_eval": Option(None, "the first evaluation is after runner.eval_every environment steps", (False,)),
}  # fmt: skip
"""The options of the script, by name."""

_CHECKPOINT = "policy and tokenizer are read from one folder: the three names must agree"
_SERVER = (
    "endpoint", "timeout", "nframes", "max_pixels", "backend", "backend_kwargs", "fail_on_request_error",
)  # fmt: skip
_ALIKE = "evaluations are of the tasks and limits of training"
RLINF_KEYS: dict[str, Option] = {
    **{
        name: Option("policy.vla_path", _CHECKPOINT)
        for name in ("actor.model.model_path", "rollout.model.model_path", "actor.tokenizer.tokenizer_model")
    },
    "actor.model.num_action_chunks": Option("policy.num_action_chunks"),
    "actor.model.use_proprio": Option("policy.use_proprio"),
    "actor.model.unnorm_key": Option("policy.unnorm_key"),
    "actor.model.center_crop": Option("policy.center_crop"),
    "actor.model.is_lora": Option("policy.use_lora"),
    "actor.model.lora_rank": Option("policy.lora_rank"),
    "actor.micro_batch_size": Option("algorithm.micro_batch_size"),
    "actor.global_batch_size": Option(None, "algorithm.minibatch_size counts decisions of all GPUs together"),
    "actor.optim.lr": Option("algorithm.learning_rate"),
    "actor.optim.clip_grad": Option("algorithm.max_grad_norm"),
    "actor.seed": Option("runner.seed"),
    "env.train.task_suite_name": Option("env.task_suite_name"),
    "env.train.num_envs": Option("env.num_envs"),
    "env.train.total_num_envs": Option("env.num_envs"),
    "env.train.max_episode_steps": Option("env.max_episode_steps"),
    "env.train.group_size": Option("algorithm.group_size"),
    "env.train.seed": Option("runner.seed"),
    "env.train.reward_coef": Option("reward.reward_coef"),
    "env.train.use_rel_reward": Option("reward.use_rel_reward"),
    "env.train.use_ordered_reset_state_ids": Option("env.init_states", "true: ordered, false: drawn", (), _order),
    "env.train.use_fixed_reset_state_ids": Option(None, "groups always begin alike", (True,)),
    "env.train.ignore_terminations": Option("env.end_on_success", "the opposite", (), lambda value: not value),
    "env.train.auto_reset": Option(None, "it follows from algorithm.adv_estimator"),
    "env.train.reward_model.enable": Option("reward.use_reward_model"),
    "env.train.reward_model.binary_reward": Option("reward.binary_reward"),
    "env.train.reward_model.success_threshold": Option("reward.success_threshold"),
    **{f"env.train.reward_model.{name}": Option(f"reward.model.{name}") for name in _SERVER},
    "env.eval.reward_model.enable": Option(None, "evaluations report native success and nothing else", (False,)),
    "env.eval.task_suite_name": Option(None, _ALIKE),
    "env.eval.num_envs": Option(None, "evaluations have as many copies as training, env.num_envs"),
    "env.eval.total_num_envs": Option(None, "evaluations have as many copies as training, env.num_envs"),
    "env.eval.max_episode_steps": Option(None, _ALIKE),
}
"""Keys of RLinf that the LIBERO guide uses, by name."""
_NAMES = {**VLA_OPTIONS, **RLINF_KEYS}


def guide_names(tree: Tree, overrides: Sequence[str]) -> tuple[Tree, list[str]]:
    """A configuration and overrides of it in which the guides' names are the keys that they stand for.

    Args:
        tree: names stand where they stand in the guide, and may not contradict a key that is there.
        overrides: `name=value`, as any other `section.key=value`; they replace what the file says.

    Raises:
        ConfigError: a name that is refused, with the reason; or one thing under two names.
    """
    data, places = copy.deepcopy(tree.data), dict(tree.places)
    given: dict[str, tuple[str, Any]] = {}  # keys that names stood for, with name and value
    for name in [name for name in _NAMES if _stands(data, name)]:
        place = places.pop(name, None)
        where = f"{place}: " if place else ""
        found = _translated(name, _taken(data, name), where)
        if found is None:
            continue
        key, value = found
        if key not in given and _at(data, key) is not None:
            raise ConfigError(f"{where}{name} and {key} are two names of one thing; give one of them", key=name)
        if _agrees(given, key, name, value, where):
            data = apply_overrides(Tree(data), [f"{key}={json.dumps(value)}"]).data
            places[key] = place or f"{key}={json.dumps(value)}"
    rest, given = [], {}
    for text in overrides:
        name = text.partition("=")[0].strip()
        if name not in _NAMES or "=" not in text:
            rest.append(text)
            continue
        found = _translated(name, _at(apply_overrides(Tree(), [text]).data, name), f"override {text!r}: ")
        if found is None:
            continue
        key, value = found
        if _agrees(given, key, name, value, f"override {text!r}: "):
            rest.append(f"{key}={json.dumps(value)}")
    return Tree(data, places), rest


def _agrees(given: dict[str, tuple[str, Any]], key: str, name: str, value: Any, where: str) -> bool:
    """Whether a key has this value to be set; False where another name refers to it.

    Raises:
        ConfigError: another name has set it to another value.
    """
    if value == f"${{{key}}}":
        return False
    other, before = given.setdefault(key, (name, value))
    if other != name and before != value:
        raise ConfigError(
            f"{where}{name} and {other} both mean {key}, and contradict each other; give one of them", key=name
        )
    given[key] = (name, value)
    return True


def _translated(name: str, value: Any, where: str) -> tuple[str, Any] | None:
    """The key that a name stands for and its value; None where guerdon does the same without being told."""
    option = _NAMES[name]
    if any(value == same and isinstance(value, bool) == isinstance(same, bool) for same in option.same):
        return None
    if option.key is None:
        kind = "an option of the VLA guide" if name in VLA_OPTIONS else "a key of RLinf"
        raise ConfigError(f"{where}{name} is {kind} that cannot be set here: {option.why}", key=name)
    if option.convert is not None and isinstance(value, bool | int | float):
        return option.key, option.convert(value)
    if isinstance(value, str):  # a reference to another of these names
        value = _REFERENCE.sub(lambda found: f"${{{_key_of(found[1])}}}", value)
    return option.key, value


_REFERENCE = re.compile(r"(?<!\$)\$\{([\w.]+)\}")


def _key_of(name: str) -> str:
    return (_NAMES[name].key if name in _NAMES else None) or name


def _at(data: dict[str, Any], path: str) -> Any:
    """The value at a dotted path; None where there is none."""
    node: Any = data
    for part in path.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _stands(data: dict[str, Any], path: str) -> bool:
    """Whether there is a value at a dotted path, null included."""
    around, _, name = path.rpartition(".")
    node = _at(data, around) if around else data
    return isinstance(node, dict) and name in node


def _taken(data: dict[str, Any], path: str) -> Any:
    """Take the value at a dotted path out of nested maps, with the maps that it leaves empty."""
    first, _, rest = path.partition(".")
    if not rest:
        return data.pop(first)
    value = _taken(data[first], rest)
    if not data[first]:
        del data[first]
    return value
