"""Names that other trainers have for keys: what guerdon calls them, and how to convert values that mean something else.

They are no aliases, because most mean something else (per device, per group, in updates). A study with one of them is
refused with this table's hint.

    hint_for("data.rollout_n", 8)      # rollout_n of verl is data.n_samples here
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple


class OtherName(NamedTuple):
    """A key of another trainer.

    Attributes:
        trainers: that have it.
        key: guerdon's keys of the same meaning; empty: there is none.
        convert: how a value is converted, or why there is no key; empty: it means the same.
    """

    trainers: str
    key: str
    convert: str = ""


_VERL, _TRL, _OPEN, _PRIME = "verl", "TRL", "OpenRLHF", "prime-rl"
_SAMPLES = "data.n_samples"
_RESPONSES = "times data.train_batch_size x data.n_samples: guerdon counts responses, not updates"
_SAME_RATE = "policy and critic share one"
_PRECISION = "bfloat16 is used where the hardware has it; policy.bf16 false: float32"
_FAMILY = "two names are two keys here"

OTHER_NAMES: dict[str, OtherName] = {
    # how many prompts and responses
    "num_generations": OtherName(_TRL, _SAMPLES),
    "n_samples_per_prompt": OtherName(_OPEN, _SAMPLES),
    "rollouts_per_example": OtherName(_PRIME, _SAMPLES),
    "rollout_n": OtherName(_VERL, _SAMPLES),
    "rollout.n": OtherName(_VERL, _SAMPLES),
    "generation.n": OtherName(_VERL, _SAMPLES),
    "rollout_batch_size": OtherName(_OPEN, "data.train_batch_size", "both count prompts per update"),
    "gen_batch_size": OtherName(_VERL, "data.oversample_factor", "divided by data.train_batch_size"),
    "generation_batch_size": OtherName(
        _TRL, "data.train_batch_size", "divided by data.n_samples: guerdon counts prompts, TRL completions"
    ),
    "ppo_mini_batch_size": OtherName(
        _VERL, "algorithm.minibatch_size", "times data.n_samples: guerdon counts responses, verl prompts"
    ),
    "gradient_accumulation_steps": OtherName(
        _TRL,
        "algorithm.minibatch_size",
        "per_device_train_batch_size x gradient_accumulation_steps x devices: responses per gradient step",
    ),
    "per_device_train_batch_size": OtherName(
        _TRL, "algorithm.micro_batch_size", "responses per forward pass of each process; see algorithm.minibatch_size"
    ),
    "ppo_micro_batch_size_per_gpu": OtherName(
        _VERL, "algorithm.micro_batch_size", "responses per forward pass of each process"
    ),
    "ppo_micro_batch_size": OtherName(_VERL, "algorithm.micro_batch_size", "divided by the number of GPUs"),
    "log_prob_micro_batch_size_per_gpu": OtherName(_VERL, "algorithm.micro_batch_size", "one key for all passes"),
    "micro_train_batch_size": OtherName(
        _OPEN, "algorithm.micro_batch_size", "responses per forward pass of each process"
    ),
    "micro_rollout_batch_size": OtherName(_OPEN, "generation.batch_size", "responses that are generated together"),
    "ppo_epochs": OtherName(_VERL, "algorithm.num_epochs"),
    "num_ppo_epochs": OtherName(_TRL, "algorithm.num_epochs"),
    "num_iterations": OtherName(_TRL, "algorithm.num_epochs"),
    "max_epochs": OtherName(_OPEN, "algorithm.num_epochs"),
    # lengths and sampling
    "max_completion_length": OtherName(_TRL, "data.max_response_length"),
    "max_new_tokens": OtherName("TRL, transformers", "data.max_response_length"),
    "response_length": OtherName(_VERL, "data.max_response_length"),
    "generate_max_len": OtherName(_OPEN, "data.max_response_length"),
    "max_tokens": OtherName(_PRIME, "data.max_response_length"),
    "prompt_length": OtherName(_VERL, "data.max_prompt_length"),
    "prompt_max_len": OtherName(_OPEN, "data.max_prompt_length"),
    "seq_len": OtherName(
        _PRIME, "data.max_prompt_length, data.max_response_length", "their sum is the length of a sequence"
    ),
    "use_vllm": OtherName(_TRL, "generation.engine", "true: vllm; false: local"),
    "vllm_gpu_memory_utilization": OtherName("TRL, OpenRLHF", "generation.gpu_memory_utilization"),
    "vllm_tensor_parallel_size": OtherName("TRL, OpenRLHF", "generation.tensor_parallel_size"),
    "tensor_model_parallel_size": OtherName(_VERL, "generation.tensor_parallel_size"),
    "vllm_num_engines": OtherName(_OPEN, "cluster.collectors", "with engine: ray"),
    "filter_overlong_prompts": OtherName(_VERL, "", "prompts above data.max_prompt_length are always left out"),
    # losses and advantages
    "advantage_estimator": OtherName(
        _OPEN, "algorithm.adv_estimator", "group_norm is grpo, reinforce_baseline is reinforce_pp"
    ),
    "norm_adv_by_std_in_grpo": OtherName(_VERL, "algorithm.adv_estimator", "true: grpo; false: dr_grpo"),
    "no_advantage_std_norm": OtherName(_OPEN, "algorithm.adv_estimator", "true: dr_grpo"),
    "scale_rewards": OtherName(_TRL, "algorithm.adv_estimator", "group: grpo; none or false: dr_grpo"),
    "loss_type": OtherName(
        _TRL, "algorithm.loss_agg", "grpo: sequence; bnpo, dapo: token; dr_grpo: constant, with adv_estimator dr_grpo"
    ),
    "loss_agg_mode": OtherName(
        _VERL,
        "algorithm.loss_agg",
        "token-mean: token; seq-mean-token-mean: sequence; seq-mean-token-sum-norm: constant",
    ),
    "importance_sampling_level": OtherName(_TRL, "algorithm.loss", "token: ppo; sequence: gspo"),
    "policy_loss_type": OtherName(_OPEN, "algorithm.loss"),
    "loss_mode": OtherName(_VERL, "algorithm.loss", "vanilla: ppo"),
    "clip_ratio": OtherName(_VERL, "algorithm.clip_range"),
    "clip_ratio_low": OtherName(_VERL, "algorithm.clip_range", "the lower end; the upper one is clip_range_high"),
    "clip_ratio_high": OtherName(_VERL, "algorithm.clip_range_high"),
    "epsilon": OtherName(_TRL, "algorithm.clip_range"),
    "epsilon_high": OtherName(_TRL, "algorithm.clip_range_high"),
    "delta": OtherName(_TRL, "algorithm.clip_ratio_c"),
    "eps_clip": OtherName(_OPEN, "algorithm.clip_range"),
    "eps_clip_low_high": OtherName(_OPEN, "algorithm.clip_range, algorithm.clip_range_high", _FAMILY),
    "dual_clip": OtherName(_OPEN, "algorithm.clip_ratio_c"),
    "value_clip": OtherName(_OPEN, "", "values of language models are not clipped"),
    "cliprange_value": OtherName("TRL, verl", "", "values of language models are not clipped"),
    "lambd": OtherName(_OPEN, "algorithm.gae_lambda"),
    "lam": OtherName("verl, TRL", "algorithm.gae_lambda"),
    "vf_coef": OtherName(_TRL, "algorithm.value_coef"),
    "entropy_coeff": OtherName(_VERL, "algorithm.entropy_coef"),
    "entropy_loss_coef": OtherName(_OPEN, "algorithm.entropy_coef"),
    "beta": OtherName(_TRL, "algorithm.kl_coef", "with algorithm.kl_in loss, as in TRL's GRPO"),
    "init_kl_coef": OtherName(_OPEN, "algorithm.kl_coef"),
    "kl_ctrl.kl_coef": OtherName(_VERL, "algorithm.kl_coef", "with algorithm.kl_in reward"),
    "kl_loss_coef": OtherName(_VERL, "algorithm.kl_coef", "with algorithm.kl_in loss"),
    "use_kl_loss": OtherName("verl, OpenRLHF", "algorithm.kl_in", "true: loss"),
    "use_kl_in_reward": OtherName(_VERL, "algorithm.kl_in", "true: reward"),
    "kl_loss_type": OtherName(_VERL, "algorithm.kl_type", "kl: k1; mse: k2; low_var_kl: k3"),
    "kl_estimator": OtherName(_OPEN, "algorithm.kl_type"),
    "mask_truncated_completions": OtherName(
        _TRL, "data.filter_truncated", "leaves out the whole prompt of a truncated response, not the response alone"
    ),
    "dynamic_filtering": OtherName(_OPEN, "data.filter_accuracy"),
    "dynamic_filtering_reward_range": OtherName(
        _OPEN, "data.accuracy_lower_bound, data.accuracy_upper_bound", "both inclusive"
    ),
    "filter_groups.enable": OtherName(_VERL, "data.filter_accuracy"),
    "reward_weights": OtherName(
        _TRL, "reward.sources.<name>.reward_weight", "of each source; the verifier's is reward.env_reward_weight"
    ),
    "whiten_rewards": OtherName("TRL, verl", "algorithm.normalize_advantages", "advantages are whitened, not rewards"),
    "max_async_level": OtherName(_PRIME, "runner.max_staleness"),
    "async_queue_size": OtherName(_OPEN, "runner.max_staleness"),
    # optimizer
    "actor_learning_rate": OtherName(_OPEN, "algorithm.learning_rate"),
    "critic_learning_rate": OtherName(_OPEN, "algorithm.learning_rate", _SAME_RATE),
    "lr": OtherName("verl, prime-rl", "algorithm.learning_rate"),
    "lr_scheduler_type": OtherName(_TRL, "algorithm.lr_schedule", "constant, linear or cosine"),
    "lr_scheduler": OtherName(_OPEN, "algorithm.lr_schedule", "constant, linear or cosine"),
    "warmup_ratio": OtherName(_TRL, "", "the learning rate of RL has no warm-up"),
    "lr_warmup_ratio": OtherName(_OPEN, "", "the learning rate of RL has no warm-up"),
    "lr_warmup_steps": OtherName(_VERL, "", "the learning rate of RL has no warm-up"),
    "grad_clip": OtherName(_VERL, "algorithm.max_grad_norm"),
    "max_norm": OtherName(_OPEN, "algorithm.max_grad_norm"),
    # model and data
    "model_name_or_path": OtherName(_TRL, "policy.path"),
    "pretrain": OtherName(_OPEN, "policy.path"),
    "actor_rollout_ref.model.path": OtherName(_VERL, "policy.path"),
    "lora_rank": OtherName("verl, OpenRLHF", "policy.lora.r"),
    "lora_r": OtherName(_TRL, "policy.lora.r"),
    "lora_alpha": OtherName("verl, TRL, OpenRLHF", "policy.lora.alpha"),
    "enable_gradient_checkpointing": OtherName(_VERL, "policy.gradient_checkpointing"),
    "n_gpus_per_node": OtherName(_VERL, "", "torchrun --nproc-per-node, or cluster.learners (docs/distributed.md)"),
    "nnodes": OtherName(_VERL, "", "torchrun --nnodes, or cluster.learners (docs/distributed.md)"),
    "zero_stage": OtherName(_OPEN, "", "several learners shard weights, gradients and moments (docs/distributed.md)"),
    "reward_pretrain": OtherName(
        _OPEN, "reward.model", "{model_type: sequence_classifier, path: FOLDER}; docs/rewards.md has the others"
    ),
    "remote_rm_url": OtherName(_OPEN, "reward.model", "{model_type: remote_text, endpoint: URL}"),
    "prompt_data": OtherName(_OPEN, "data.train_files", "with data.type files; a data set of the hub is data.path"),
    "prompt_key": OtherName(_VERL, "data.columns", "{prompt: NAME}"),
    "input_key": OtherName(_OPEN, "data.columns", "{prompt: NAME}"),
    "label_key": OtherName(_OPEN, "data.columns", "{answer: NAME}"),
    "prompt_split": OtherName(_OPEN, "data.train_split"),
    # the run
    "total_training_steps": OtherName(_VERL, "runner.total_steps", _RESPONSES),
    "max_steps": OtherName("TRL, prime-rl", "runner.total_steps", _RESPONSES),
    "total_epochs": OtherName(_VERL, "runner.total_steps", "times the prompts x data.n_samples"),
    "num_train_epochs": OtherName(_TRL, "runner.total_steps", "times the prompts x data.n_samples"),
    "num_episodes": OtherName(_OPEN, "runner.total_steps", "times the prompts x data.n_samples"),
    "save_freq": OtherName(_VERL, "runner.checkpoint_every", _RESPONSES),
    "save_steps": OtherName("TRL, OpenRLHF", "runner.checkpoint_every", _RESPONSES),
    "ckpt.interval": OtherName(_PRIME, "runner.checkpoint_every", _RESPONSES),
    "test_freq": OtherName(_VERL, "runner.eval_every", _RESPONSES),
    "eval_steps": OtherName("TRL, OpenRLHF", "runner.eval_every", _RESPONSES),
    "eval.interval": OtherName(_PRIME, "runner.eval_every", _RESPONSES),
    "save_total_limit": OtherName(_TRL, "runner.keep_checkpoints"),
    "max_ckpt_num": OtherName(_OPEN, "runner.keep_checkpoints"),
    "max_actor_ckpt_to_keep": OtherName(_VERL, "runner.keep_checkpoints"),
    "logging_steps": OtherName("TRL, OpenRLHF", "", "every update is logged"),
    "output_dir": OtherName("TRL, prime-rl", "work_dir"),
    "save_path": OtherName(_OPEN, "work_dir"),
    "default_local_dir": OtherName(_VERL, "work_dir"),
    "project_name": OtherName(_VERL, "runner.logger.project"),
    "wandb_project": OtherName(_OPEN, "runner.logger.project"),
    "run_name": OtherName(_TRL, "runner.logger.experiment_name"),
    "report_to": OtherName(_TRL, "runner.logger.wandb, runner.logger.tensorboard, runner.logger.trackio"),
    "resume_from_checkpoint": OtherName(_TRL, "", "guerdon run ... --resume continues"),
    "resume_mode": OtherName(_VERL, "", "guerdon run ... --resume continues"),
    "load_checkpoint": OtherName(_OPEN, "", "guerdon run ... --resume continues"),
    "fp16": OtherName(_TRL, "policy.bf16", _PRECISION),
}
"""By name, or by its last parts where the name alone says too little."""

_ELSEWHERE = (
    "bc",
    "cluster",
    "collect",
    "compare",
    "env",
    "evaluate",
    "label",
    "reward",
    "reward_model",
    "search",
    "sft",
    "train",
)  # sections that other trainers have no names for, or where the same name means something else
_MOST = 3  # hints for the keys inside an unknown section


def hint_in_arm(path: str, sections: Collection[str]) -> str:
    """Where a section of the study belongs that is written in an arm; empty for other keys."""
    inside = path.split(".")
    if inside[:2] != ["compare", "arms"] or len(inside) < 4 or inside[3] not in sections:
        return ""
    return f"what an arm changes in the study is under compare.arms.{inside[2]}.config"


def hint_for(path: str, value: Any) -> str:
    """What guerdon calls an unknown key that another trainer has; empty where none has it.

    Args:
        path: dotted, of the key or of a section that guerdon does not have.
        value: of it; of a section its keys.
    """
    if path.partition(".")[0] in _ELSEWHERE:
        return ""
    found = [hint for name in _leaves(path, value) if (hint := _hint(name))]
    more = f"; and {len(found) - _MOST} more names of other trainers" if len(found) > _MOST else ""
    return "; ".join(found[:_MOST]) + more


def _leaves(path: str, value: Any) -> Iterator[str]:
    """A key, or those inside a section."""
    if not isinstance(value, Mapping) or path in OTHER_NAMES:
        yield path
        return
    for name, inner in value.items():
        yield from _leaves(f"{path}.{name}", inner)


def _hint(path: str) -> str:
    """The hint for one key, by as many of its last parts as the table has."""
    parts = path.split(".")
    for first in range(len(parts)):
        name = ".".join(parts[first:])
        other = OTHER_NAMES.get(name)
        if other is None:
            continue
        same = f"{name} of {other.trainers} is {other.key} here" if other.key else f"{name} of {other.trainers}"
        return f"{same}: {other.convert}" if other.convert else same
    return ""
