"""Published reward models that no adapter reads: whose head is code of their own, or that judge in words; and why.

why_not({"architectures": ["LlamaForRewardModelWithGating"]}, "RLHFlow/ArmoRM-Llama3-8B-v0.1")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

OTHERWISE = "guerdon runs no code of a model's folder: serve it with its own code and name the address of the server"


class OwnHead(NamedTuple):
    """A family by its names or architectures, which stand in lower case and are parts of them."""

    name: str
    parts: tuple[str, ...]
    architectures: tuple[str, ...]
    head: str


OWN_HEADS = (
    OwnHead("ArmoRM", ("armorm",), (), "weighs the values of 19 objectives by a network that reads the prompt"),
    OwnHead("QRM", ("qrm-", "qrm_"), (), "predicts quantiles of several objectives and weighs them by the prompt"),
    OwnHead("InternLM2-Reward", ("internlm2",), ("internlm2forrewardmodel",), "reads a token of its own at the end"),
    OwnHead("Eurus-RM", ("eurus-rm",), ("eurusrewardmodel",), "is a regression layer under a name of its own"),
    OwnHead("PairRM", ("pairrm",), ("debertav2pairrm",), "compares two responses that it reads together"),
    OwnHead(
        "Nemotron", ("nemotron",), (), "is an output of the language model at its first new token, read without softmax"
    ),
)

JUDGES = (  # parts of a name, all of which it has; and the prompt of `model_type: judge`
    (("prometheus",), "prometheus_absolute or prometheus_relative"),
    (("judgelm",), "judgelm"),
    (("skywork", "critic"), "skywork_critic"),
    (("rm-r1", "deepseek"), "rm_r1_reasoning"),
    (("rm-r1",), "rm_r1"),
    (("auto-j",), None),
    (("autoj",), None),
)
NO_PROMPT = "Auto-J judges in words, in a prompt whose licence is not stated, which guerdon therefore does not have"
AS_JUDGE = "it judges in words: serve it as a language model and use model_type judge with prompt"


def why_not(config: Mapping[str, Any], folder: str) -> str | None:
    """Why a model that no adapter knows is not read, and what to do; None where nothing is known about it.

    Args:
        config: content of its `config.json`.
        folder: its folder or hub id.
    """
    import transformers  # slow

    architectures = [str(one) for one in config.get("architectures") or ()]
    names = [Path(str(one)).name.lower() for one in (folder, config.get("_name_or_path") or "")]
    for family in OWN_HEADS:
        if _belongs(family, [one.lower() for one in architectures], names):
            return f"the head of {family.name} {family.head}; {OTHERWISE}"
    for parts, prompt in JUDGES:
        if any(_has_all(name, parts) for name in names):
            return NO_PROMPT if prompt is None else f"{AS_JUDGE}: {prompt}"
    foreign = [one for one in architectures if not hasattr(transformers, one)]
    return f"its head is code of its own ({foreign[0]}); {OTHERWISE}" if foreign else None


def _belongs(family: OwnHead, architectures: list[str], names: list[str]) -> bool:
    """Whether a model is of a family, by its architecture; or by its name, where it is a reward model at all."""
    if any(one in family.architectures for one in architectures):
        return True
    is_named = any(part in name for part in family.parts for name in names)
    return is_named and _is_reward_model(architectures, names)


def _has_all(name: str, parts: Sequence[str]) -> bool:
    return all(part in name.replace("_", "-") for part in parts)


def _is_reward_model(architectures: list[str], names: list[str]) -> bool:
    """Whether an architecture or a name says that it is a reward model, and not the language model of a family."""
    return any("reward" in one or "rm" in one for one in (*architectures, *names))
