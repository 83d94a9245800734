"""The `policy` and `generation` sections of language models.

For example:

    TextPolicySettings(path="runs/sft", lora=LoraSettings(r=16))
    TextPolicySettings(tiny=TinyModelSettings(hidden_size=64))   # made in code, no download
"""

from __future__ import annotations

import string
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from guerdon.errors import ConfigError
from guerdon.settings.base import (
    CPU_OFFLOAD,
    DEVICE,
    GRADIENT_CHECKPOINTING,
    Because,
    Bf16,
    ByName,
    Device,
    Settings,
    only_with,
)
from guerdon.settings.gpus import GPUS_FIELD, known_gpus

PRINTABLE = string.ascii_letters + string.digits + string.punctuation + " \n"


NAME_A_MODEL = "set policy.path to the folder or hub id of a language model, or policy.tiny to make a small one"
MAX_TOKENS_PER_PASS: Any = Field(
    None,
    ge=1,
    description="most tokens in a forward (and backward) pass, prompts and padding included; sequences of like length "
    "share one, a longer one has its own; the loss stays the same. null: on a GPU 8192 "
    "of a model of 1.5 billion parameters, more of a smaller and fewer of a larger one; no limit on a CPU",
)

CHAT_TEMPLATE: Any = Field(
    None,
    min_length=1,
    description="how a chat becomes text, for a model whose tokenizer does not say: a Jinja template, or the path of a "
    "file with one; stored with what is trained. null: the tokenizer's own",
)
_RESERVED = {  # arguments that transformers, vLLM and SGLang pass to a chat template themselves, or consume
    "messages", "conversation", "conversations", "tools", "documents", "chat_template", "add_generation_prompt",
    "continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask", "tokenizer_kwargs", "processor_kwargs", "bos_token", "eos_token", "unk_token",
    "sep_token", "pad_token", "cls_token", "mask_token", "additional_special_tokens", "extra_special_tokens",
}  # fmt: skip


def _own_arguments(given: dict[str, Any]) -> dict[str, Any]:
    if taken := sorted(given.keys() & _RESERVED):
        raise ConfigError.about(taken[0], "is given to the chat template by what renders it; remove it")
    return given


TemplateArguments = Annotated[dict[str, bool | int | float | str | None], AfterValidator(_own_arguments)]
CHAT_TEMPLATE_KWARGS: Any = Field(
    {},
    description="arguments of the chat template, such as {enable_thinking: false}; stored in the template with what is "
    "trained",
)


class TinyModelSettings(Settings):
    """A model made in code with random weights, and a tokenizer for it: runs with no download."""

    architecture: Literal["llama", "qwen2"] = Field(
        "llama", description="RMSNorm, rotary positions, SwiGLU; qwen2 adds biases to queries, keys and values"
    )
    hidden_size: int = Field(128, ge=8, le=16384, description="width")
    layers: int = Field(2, ge=1, le=1000, description="depth")
    heads: int = Field(4, ge=1, description="attention heads")
    kv_heads: int | None = Field(None, ge=1, description="heads of keys and values, shared by groups; null: heads")
    intermediate: int = Field(384, ge=8, le=65536, description="width inside the feed-forward layers")
    tie_embeddings: bool = Field(True, description="input and output embeddings are one matrix")
    max_positions: int = Field(4096, ge=16, description="longest sequence, prompt and response together")
    tokenizer: Literal["characters", "bytes"] = Field(
        "characters", description="one token per character of the alphabet, or byte-level pairs (any text)"
    )
    alphabet: str = only_with(
        PRINTABLE,
        min_length=1,
        tokenizer=Because("characters", "tokenizer bytes, which knows every text"),
        description="those the tokenizer knows",
    )

    @model_validator(mode="after")
    def _fits(self) -> TinyModelSettings:
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        if self.hidden_size % self.heads or (self.hidden_size // self.heads) % 2:
            raise ConfigError.about("hidden_size", f"{self.hidden_size} must be an even multiple of heads {self.heads}")
        if self.heads % kv_heads:
            raise ConfigError.about("heads", f"{self.heads} must be a multiple of kv_heads {kv_heads}")
        return self


class LoraSettings(Settings):
    """Low-rank adapters (LoRA, Hu et al. 2021, 2106.09685) on frozen weights."""

    r: int = Field(16, ge=1, description="rank")
    alpha: float = Field(32.0, gt=0, description="the update is scaled by alpha / r")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="on the input of the adapters, in passes that draw dropout (policy.dropout)"
    )
    target_modules: str | tuple[str, ...] = Field(
        "all-linear",
        description="names of the layers that get an adapter; all-linear: all but the output embedding, routers of "
        "experts, towers of other inputs, and what peft refuses",
    )


class ModelKeys(Settings):
    """What a language model is and how it computes: keys of `policy` and of trainers of text."""

    tiny: TinyModelSettings | None = Field(None, description="make a small model in code instead of reading one")
    chat_template: str | None = CHAT_TEMPLATE
    chat_template_kwargs: TemplateArguments = CHAT_TEMPLATE_KWARGS
    lora: LoraSettings | None = Field(
        None,
        description="train adapters on frozen weights ({} is r 16, alpha 32 on all linear layers); null: all weights",
    )
    device: Device = DEVICE
    bf16: Bf16 = Field("auto", description="compute in bfloat16; auto: where the hardware has it")
    gradient_checkpointing: bool = GRADIENT_CHECKPOINTING
    cpu_offload: bool = CPU_OFFLOAD
    max_tokens_per_pass: int | None = MAX_TOKENS_PER_PASS
    use_remove_padding: bool = Field(False, description="forward without padding: all sequences in one row")


class TextPolicySettings(ModelKeys):
    """A causal language model."""

    type: Literal["text"] = Field("text", description="a causal language model")
    path: str | None = Field(
        None,
        description="folder, hub id or package:<name> of a causal language model; an adapter is merged. A "
        "command that needs a policy needs this key or tiny",
    )
    dropout: bool | None = Field(
        None,
        description="draw the dropout of the model and of its adapters in gradient passes. null: only where a model is "
        "trained on examples (sft, train), and not in reinforcement learning or for implicit reward models, where it "
        "would change ratios, KL and rewards (true there gives a warning)",
    )
    share_prompts: bool = Field(
        True,
        description="read a prompt once for all of its responses in a forward pass, where the architecture can (such a "
        "pass has no padding either); false, and with use_remove_padding: once per response",
    )
    attention: Literal["auto", "sdpa", "eager"] = Field(
        "auto", description="auto: sdpa; eager for short sequences on the CPU, where it is faster"
    )
    gpus: str | None = GPUS_FIELD
    config_file: str | None = Field(
        None,
        description="the config.json of a model that is not on this machine, whose shape --dry-run then knows; nothing "
        "else reads it. null: the shape follows from the size in the model's name, and is said to be assumed",
    )

    _gpus = field_validator("gpus")(known_gpus)

    def derived(self) -> dict[str, Any]:
        """Padding is removed in one way."""
        return {"share_prompts": False} if self.use_remove_padding else {}

    @model_validator(mode="after")
    def _one_origin(self) -> TextPolicySettings:
        if self.path is not None and self.tiny is not None:
            raise ConfigError.about(
                "path", "(a model to read) and tiny (a model to make) are both given; remove one of them"
            )
        if self.use_remove_padding and self.share_prompts:
            raise ConfigError.about(
                "use_remove_padding",
                "would do nothing with share_prompts, whose forward passes have no padding; remove one of them",
            )
        return self

    @property
    def named(self) -> bool:
        """Whether they name a language model; training and evaluation of reward models often need none."""
        return self.path is not None or self.tiny is not None


class _GenerationSettings(Settings):
    """What both engines share."""

    temperature: float = Field(1.0, gt=0, description="divides the logits")
    top_p: float = Field(1.0, gt=0, le=1, description="sample from the smallest set of tokens with this mass")
    top_k: int = Field(0, ge=0, description="sample from this many most likely tokens; 0: from all")


_ENGINE_ARGUMENTS = {  # of vllm.LLM, which follow from other keys or from how it is used
    "model", "tokenizer", "skip_tokenizer_init", "hf_overrides", "load_format", "dtype", "max_model_len",
    "trust_remote_code", "tensor_parallel_size", "distributed_executor_backend", "gpu_memory_utilization",
    "enable_sleep_mode", "logprobs_mode", "enable_lora", "max_lora_rank", "max_loras",
}  # fmt: skip


class LocalGenerationSettings(_GenerationSettings):
    """Responses are generated in this process."""

    engine: Literal["local"] = Field("local", description="this process generates")
    batch_size: int = Field(256, ge=1, description="responses that are generated at the same time")

    def check(self, study: Any) -> None:
        """Refuse what would do nothing with this engine.

        Raises:
            ValueError: with the key and the reason.
        """
        if study.algorithm.rollout_is_threshold is not None:
            raise ConfigError.about(
                "algorithm.rollout_is_threshold",
                "would do nothing with generation.engine local, whose log-probabilities "
                "are those of training; remove it, or set the engine to vllm",
            )


class VLLMGenerationSettings(_GenerationSettings):
    """vLLM generates responses."""

    engine: Literal["vllm"] = Field("vllm", description="vLLM, here or in the collectors of a Ray cluster")
    gpu_memory_utilization: float = Field(0.4, gt=0, lt=1, description="share of the GPU's memory it may take")
    tensor_parallel_size: int = Field(
        1, ge=1, description="processes that share the model, on a GPU each (on CPUs: on cores of their own)"
    )
    engine_kwargs: dict[str, Any] = Field(
        {}, description="further arguments of vllm.LLM, such as {enforce_eager: true, max_num_seqs: 256}"
    )

    @field_validator("engine_kwargs")
    @classmethod
    def _are_further(cls, given: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(given.keys() & _ENGINE_ARGUMENTS):
            raise ConfigError.about(taken[0], "follows from other keys of policy, data and generation; remove it")
        return given

    def check(self, study: Any) -> None:
        """Refuse what does not go with vLLM.

        Raises:
            ValueError: with the key and the reason.
        """
        size, gpus, runner = self.tensor_parallel_size, study.cluster.collector_gpus, study.runner
        if study.engine == "local" and (runner.rollout_shards > 1 or runner.max_staleness):
            key = "rollout_shards" if runner.rollout_shards > 1 else "max_staleness"
            raise ConfigError.about(
                f"runner.{key}",
                "would need vLLM twice in this process: remove it, or let collectors of engine: ray generate",
            )
        if study.engine == "ray" and 0 < gpus < size > 1:
            raise ConfigError.about(
                "generation.tensor_parallel_size",
                f"{size} needs so many GPUs in every collector, and cluster.collector_gpus is {gpus:g}: set them alike",
            )
        if runner.max_staleness and study.algorithm.rollout_is_threshold is None:
            raise ConfigError.about(
                "runner.max_staleness",
                f"{runner.max_staleness} with generation.engine vllm needs "
                "algorithm.rollout_is_threshold: the policy that learns evaluates the responses, and their importance "
                "weights correct for the older weights that wrote them",
            )


GenerationSettings = Annotated[LocalGenerationSettings | VLLMGenerationSettings, ByName("engine", "local")]
"""`generation`: how responses are written."""
