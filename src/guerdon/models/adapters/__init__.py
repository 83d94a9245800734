"""Process reward models that others trained, each read in the form that it was trained on.

| name | models | a step ends with | its value |
|---|---|---|---|
| `qwen_prm` | Qwen2.5-Math-PRM and its kin | `<extra_0>` | P(right) of a two-layer head |
| `math_shepherd` | Math-Shepherd (Mistral) | ` ки` | P(+) against P(-) as the next token |
| `rlhflow` | RLHFlow's Llama-3.1 models | an answer in a chat | P(+) against P(-) before the answer |
| `skywork` | Skywork-o1-Open-PRM | a new line | sigmoid of a value head |
| `trl` | token classifiers of TRL's `PRMTrainer` | a separator | P(right) at its last token |
| `implicit` | EurusPRM, ImplicitPRM | any text | sigmoid of beta times the log-ratio to a reference so far |

No code from a model's folder is ever run. Names only here: nothing is imported before it is asked for. This module does
not know how episodes came about, nor models that guerdon trains.

    name = recognise(config, "Qwen/Qwen2.5-Math-PRM-7B")              # "qwen_prm"
    model = load_adapter(name, "Qwen/Qwen2.5-Math-PRM-7B", micro_batch_size=8)
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from guerdon.errors import ConfigError
from guerdon.types import RewardModel

ADAPTERS: dict[str, str] = {
    "qwen_prm": "guerdon.models.adapters.qwen_prm:load_qwen_prm",
    "math_shepherd": "guerdon.models.adapters.math_shepherd:load_math_shepherd",
    "rlhflow": "guerdon.models.adapters.rlhflow:load_rlhflow",
    "skywork": "guerdon.models.adapters.skywork:load_skywork",
    "trl": "guerdon.models.adapters.trl:load_trl",
    "implicit": "guerdon.models.adapters.implicit:load_implicit",
}

_ARCHITECTURES = {"Qwen2ForProcessRewardModel": "qwen_prm", "Qwen2ForPrmModel": "skywork"}
_NAMES = (  # parts of a name, all of which it has; for models that are plain language models by their architecture
    (("math-shepherd",), "math_shepherd"),
    (("-prm-", "mistral-data"), "rlhflow"),
    (("-prm-", "deepseek-data"), "rlhflow"),
    (("skywork", "prm"), "skywork"),
    (("eurusprm",), "implicit"),
    (("implicitprm",), "implicit"),
)


def load_adapter(name: str, path: str, micro_batch_size: int) -> RewardModel:
    """A reward model of one of these families; values of steps, one forward pass for all steps of a solution.

    Args:
        name: of `ADAPTERS`.
        path: folder or hub id.
        micro_batch_size: solutions per forward pass.

    Raises:
        ConfigError: an unknown name.
        CheckpointError: the model cannot be read, or is of another kind.
    """
    if name not in ADAPTERS:
        raise ConfigError(f"unknown adapter {name!r}: choose one of {', '.join(ADAPTERS)}")
    module, function = ADAPTERS[name].split(":")
    model: RewardModel = getattr(import_module(module), function)(path, micro_batch_size)
    return model


def recognise(config: Mapping[str, Any], folder: str) -> str | None:
    """Which family a model belongs to, None where nothing says so.

    What `adapter.json` in a folder says is asked before this (`notes.adapter_of`).

    Args:
        config: content of its `config.json`.
        folder: where it lies, or its hub id; of plain language models the name alone tells.
    """
    architectures = [str(a) for a in config.get("architectures") or ()]
    for architecture in architectures:
        if architecture in _ARCHITECTURES:
            return _ARCHITECTURES[architecture]
    if any(a.endswith("ForTokenClassification") for a in architectures):
        labels = config.get("id2label") or config.get("num_labels") or 2  # two are what transformers leaves out
        return "trl" if (labels if isinstance(labels, int) else len(labels)) == 2 else None
    for name in (folder, str(config.get("_name_or_path") or "")):
        plain = name.lower().replace("_", "-")
        for parts, family in _NAMES:
            if all(part in plain for part in parts):
                return family
    return None
