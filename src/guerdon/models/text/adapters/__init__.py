"""Adapters for published reward models of text, each read in the form that it was trained on.

| name | models | a step ends with | its value |
|---|---|---|---|
| `qwen_prm` | Qwen2.5-Math-PRM and its kin | `<extra_0>` | P(right) of a two-layer head |
| `math_shepherd` | Math-Shepherd (Mistral) | ` ки` | P(+) against P(-) as the next token |
| `rlhflow` | RLHFlow's Llama-3.1 models | an answer in a chat | P(+) against P(-) before the answer |
| `skywork` | Skywork-o1-Open-PRM | a new line | sigmoid of a value head |
| `trl` | token classifiers of TRL's `PRMTrainer` | a separator | P(right) at its last token |
| `implicit` | EurusPRM, ImplicitPRM | any text | sigmoid of beta times the log-ratio to a reference so far |
| `classifier` | sequence classifiers, such as those of TRL's `RewardTrainer` | it scores whole responses | a logit |

No code from a model's folder is ever run. A folder may have an `adapter.json` for what its configuration lacks: a token
classifier does not store what ended its steps, and an implicit model does not store its reference. Keys that the family
has no use for are refused.

    {"adapter": "implicit", "ref_path": "Qwen/Qwen2.5-Math-7B-Instruct", "beta": 0.05}

    name = recognise(config, "Qwen/Qwen2.5-Math-PRM-7B")              # "qwen_prm"
    model = load_adapter(name, "Qwen/Qwen2.5-Math-PRM-7B", micro_batch_size=8)
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from guerdon.errors import CheckpointError, ConfigError
from guerdon.settings.base import Settings
from guerdon.settings.text_policy import TemplateArguments
from guerdon.types import RewardModel

if TYPE_CHECKING:
    import torch

NOTES = "adapter.json"
ADAPTERS = ("qwen_prm", "math_shepherd", "rlhflow", "skywork", "trl", "implicit", "classifier")

_ARCHITECTURES = {"Qwen2ForProcessRewardModel": "qwen_prm", "Qwen2ForPrmModel": "skywork"}
_NAMES = (  # parts of a name, all of which it has; for models that are plain language models by their architecture
    (("math-shepherd",), "math_shepherd"),
    (("-prm-", "mistral-data"), "rlhflow"),
    (("-prm-", "deepseek-data"), "rlhflow"),
    (("skywork", "prm"), "skywork"),
    (("eurusprm",), "implicit"),
    (("implicitprm",), "implicit"),
)


def load_adapter(name: str, path: str, micro_batch_size: int, device: str | torch.device = "auto") -> RewardModel:
    """A reward model of one of these families; values of steps, one forward pass for all steps of a solution.

    Args:
        name: of `ADAPTERS`.
        path: folder or hub id.
        micro_batch_size: solutions per forward pass.
        device: where it computes, as a key `device` says.

    Raises:
        ConfigError: an unknown name.
        CheckpointError: the model cannot be read, or is of another kind.
    """
    if name not in ADAPTERS:
        raise ConfigError(f"unknown adapter {name!r}: choose one of {', '.join(ADAPTERS)}", key="adapter")
    families = import_module("guerdon.models.text.adapters.families")
    model: RewardModel = getattr(families, f"load_{name}")(path, micro_batch_size, device)
    return model


def recognise(config: Mapping[str, Any], folder: str) -> str | None:
    """The family of a model, None where it is unknown.

    `adapter.json` of a folder comes before this (`adapter_of`).

    Args:
        config: content of its `config.json`.
        folder: its folder or hub id; plain language models are recognised by this name alone.
    """
    architectures = [str(a) for a in config.get("architectures") or ()]
    for architecture in architectures:
        if architecture in _ARCHITECTURES:
            return _ARCHITECTURES[architecture]
    if any(a.endswith("ForTokenClassification") for a in architectures):
        labels = config.get("id2label") or config.get("num_labels") or 2  # two are what transformers leaves out
        count = labels if isinstance(labels, int) else len(labels)
        return "trl" if count == 2 else None
    if any(a.endswith("ForSequenceClassification") for a in architectures):
        return "classifier"
    return _family_by_name(folder) or _family_by_name(str(config.get("_name_or_path") or ""))


def _family_by_name(name: str) -> str | None:
    """The family of a plain language model whose folder or hub id has such a name."""
    plain = name.lower().replace("_", "-")
    for parts, family in _NAMES:
        if all(part in plain for part in parts):
            return family
    return None


class AdapterNotes(Settings):
    """The content of `adapter.json`."""

    adapter: str | None = Field(None, description="name of the family; null: what the configuration shows")
    separator: str | None = Field(None, min_length=1, description="trl: what ends a step; null: a new line")
    ref_path: str | None = Field(None, min_length=1, description="implicit: folder or hub id of the reference model")
    chat_template_kwargs: TemplateArguments = Field({}, description="of families that read chats")
    beta: float | None = Field(None, gt=0, description="implicit: factor of the log-ratio; null: 0.001")


def _notes(path: str) -> AdapterNotes:
    """Content of `adapter.json`; empty where there is none, as for a model on the hub.

    Raises:
        CheckpointError: it cannot be read, or has an unknown key.
    """
    file = Path(path) / NOTES
    if not file.is_file():
        return AdapterNotes()
    try:
        return AdapterNotes.model_validate(json.loads(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or NOTES
        raise CheckpointError(f"{file}: {where}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error


def adapter_of(path: str) -> str | None:
    """The family that a folder itself names, None where it names none."""
    return _notes(path).adapter


def read_notes(path: str, family: str, known: Collection[str] = ()) -> AdapterNotes:
    """Content of `adapter.json`, for one family.

    Args:
        path: folder or hub id.
        family: the adapter that reads it.
        known: keys that this family has a use for.

    Raises:
        CheckpointError: it names another family, or has a key that would do nothing here.
    """
    notes = _notes(path)
    if notes.adapter not in (None, family):
        raise CheckpointError(f"{Path(path) / NOTES} names the adapter {notes.adapter!r}, not {family!r}")
    idle = sorted(notes.model_fields_set - set(known) - {"adapter"})
    if idle:
        raise CheckpointError(f"{Path(path) / NOTES}: the adapter {family} has no use for {', '.join(idle)}: remove it")
    return notes
