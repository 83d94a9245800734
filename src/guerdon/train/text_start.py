r"""Where the training of a reward model of text starts: a language model, its adapter, a fresh head, a free GPU.

This module does not know data or losses.

    wait_for_gpu(20.0)
    model = start_model(settings, study.text_policy, separator="\n")
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from guerdon.errors import CheckpointError, ConfigError, MissingDependencyError, boundary
from guerdon.finite import refuse_to_read
from guerdon.hub import check_model
from guerdon.models.implicit_text import ImplicitModel
from guerdon.models.text_card import Loss, TextModelCard
from guerdon.models.text_load import KINDS
from guerdon.models.text_model import TextRewardModel
from guerdon.models.verdict import FORM
from guerdon.policies.shared_base import SharedBase
from guerdon.policies.text import TextPolicy, add_policy
from guerdon.policies.text_files import load_policy, read_tokenizer
from guerdon.progress import log_line
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.settings.train_text import ImplicitTrainSettings, OutcomeTrainSettings, TextTrainSettings

_PAUSE = 30.0  # seconds between looks at the GPUs
_MEANING = {
    "stepwise": "the step is right",
    "verdict": "the step is right",
    "outcome": "the answer is right",
    "implicit": "the answer is right (learnt from outcomes, read at steps)",
}


def start_model(settings: TextTrainSettings, policy: TextPolicySettings, *, separator: str) -> TextRewardModel:
    """The model before its first gradient step.

    Args:
        settings: of `train`.
        policy: the study's policy.
        separator: what ends a step of the data.

    Raises:
        CheckpointError: the language model cannot be read.
        ConfigError: it cannot carry this kind of reward model, or 4 bits are asked for without a GPU.
        MissingDependencyError: 4 bits without bitsandbytes.
    """
    start = settings.start(policy)
    language_model = (
        load_policy(start, seed=settings.seed) if settings.quantize is None else _in_4_bits(start, settings)
    )
    card = _card(settings, separator)
    if isinstance(settings, ImplicitTrainSettings):
        ref = None
        if language_model.adapter is None:  # the reference is what this one was before
            ref = TextPolicy(load_policy(start, seed=settings.seed).base, trainable=False)
        return ImplicitModel(language_model, card, ref=ref)
    return KINDS[settings.type](language_model, card)


def _card(settings: TextTrainSettings, separator: str) -> TextModelCard:
    loss: Loss = "bce"
    if isinstance(settings, OutcomeTrainSettings):
        loss = "bradley_terry" if settings.loss == "bradley_terry" else "bce"
    elif isinstance(settings, ImplicitTrainSettings):
        loss = settings.loss
    steps = settings.type in ("stepwise", "verdict")
    return TextModelCard(
        kind=settings.type,
        form=FORM if settings.type == "verdict" else "chat",
        loss=loss,
        separator=separator,
        threshold=getattr(settings, "reward_threshold", None) if steps else None if loss in PAIRED else 0.5,
        labels=_MEANING[settings.type],
        max_length=settings.max_length,
        beta=settings.beta if isinstance(settings, ImplicitTrainSettings) else None,
        read=settings.read if isinstance(settings, ImplicitTrainSettings) else None,
        bf16=settings.bf16,
        quantize=settings.quantize,
        learning={
            "learning_rate": settings.rate,
            "weight_decay": settings.weight_decay,
            "max_grad_norm": settings.max_grad_norm,
            "batch_size": settings.batch_size,
            "seed": settings.seed,
        },
    )


PAIRED = ("bradley_terry", "dpo")  # losses that say which is better, not how good


def _in_4_bits(start: TextPolicySettings, settings: TextTrainSettings) -> TextPolicy:
    """A frozen model in 4 bits (nf4, double quantisation) with a fresh adapter."""
    if not torch.cuda.is_available():
        raise ConfigError("quantize: nf4 needs a GPU, and there is none here; leave it out")
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("quantize: nf4 needs bitsandbytes: pip install bitsandbytes") from error
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    assert start.path is not None
    assert start.lora is not None
    config: Any = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )  # fmt: skip
    check_model(CheckpointError, "the language model", start.path)
    with boundary(CheckpointError, f"the language model {start.path!r} cannot be read in 4 bits"):
        model = AutoModelForCausalLM.from_pretrained(start.path, quantization_config=config, device_map={"": 0})
    refuse_to_read(model.named_parameters(), f"the language model {start.path!r}")
    base = SharedBase(model, read_tokenizer(start.path), start)
    return add_policy(base, "policy", start.lora, seed=settings.seed)


def free_gpu_memory() -> list[float]:
    """GiB free on each GPU that this process may use, as `nvidia-smi` says; nothing here touches a GPU yet."""
    command = ["nvidia-smi", "--query-gpu=index,memory.free", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    free = {index.strip(): float(mib) / 1024 for index, mib in (line.split(",") for line in told.splitlines() if line)}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [free[i.strip()] for i in visible.split(",") if i.strip() in free] if visible else list(free.values())


def use_gpu(number: int) -> None:
    """Let this process see one GPU only, of those it may use; before anything has touched a GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number].strip() if visible else str(number)


def wait_for_gpu(
    gib: float, *, free: Callable[[], Sequence[float]] = free_gpu_memory, pause: Callable[[float], None] = time.sleep
) -> int:
    """Wait until a GPU has so much memory free.

    Args:
        gib: how much.
        free: GiB free on each GPU.
        pause: waits so many seconds.

    Returns:
        The GPU with the most.

    Raises:
        ConfigError: there is no GPU to wait for.
    """
    told = False
    while True:
        found = list(free())
        if not found:
            raise ConfigError("wait_for_gpu waits for a GPU, and there is none here; leave it out")
        if max(found) >= gib:
            return found.index(max(found))
        if not told:
            log_line(f"waiting for a GPU with {gib:g} GiB free; the most is {max(found):.1f}")
            told = True
        pause(_PAUSE)
