"""Weights of a checkpoint that no part of a model takes: refused, but for the rows of one table.

transformers reports such weights and goes on without them. What a model then computes is not what was trained: biases
or norms that `config.json` denies, layers that only code in the folder knows, scales of weights in 8 bits.

    refuse_unused(model, ["model.layers.0.self_attn.q_proj.bias"], folder, "the language model 'runs/sft'", start=True)
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from guerdon.errors import CheckpointError, boundary
from guerdon.network.hub import CONFIG
from guerdon.processes.progress import log_once

_LAYER = re.compile(r"\.\d+\.")
_SCALE = re.compile(r"scale|absmax|scb|amax", re.IGNORECASE)
_STEM = re.compile(r"(\._?weight.*|_blocks|_packed|\._data)$")  # what follows the name of the layer or of its matrix
_NARROW = ("F8_", "I8", "U8", "F4", "F6_")
BFLOAT16 = "name the folder of the model before it was quantised, or write its weights in bfloat16"


@dataclass(frozen=True)
class Unused:
    """Weights that may be left out.

    Attributes:
        what: they are, in the line that says so.
        names: by which they are recognised.
        where: `anywhere`; `start`: in a model that training or sampling starts from, not in a finished reward model,
            of which they may be the head; `text stack`: where a part of a model of several inputs is read; `masks`:
            where the tensor is a table of positions by positions, or one number, as older GPT files have it.
    """

    what: str
    names: re.Pattern[str]
    where: Literal["anywhere", "start", "text stack", "masks"]


_TOP = r"^(?:(?:model|base_model|transformer|language_model|model\.language_model)\.)?"
UNUSED = (
    Unused(
        "the head of another task",
        re.compile(
            _TOP + r"(?:lm_head|embed_out|score|classifier|classification_head|qa_outputs|multiple_choice_head|"
            r"reward_head)\."
        ),
        "start",
    ),
    Unused(
        "the heads of an encoder's first training",
        re.compile(
            r"^(?:cls|lm_predictions|mask_predictions|predictions|sop_classifier|discriminator_predictions|"
            r"generator_predictions|generator_lm_head|vocab_transform|vocab_layer_norm|vocab_projector)\.|"
            r"^(?:head|decoder)\.(?:dense\.|norm\.)?(?:weight|bias)$"
        ),
        "start",
    ),
    Unused("a value head", re.compile(_TOP + r"(?:v_head|value_head|critic_head)\."), "start"),
    Unused(
        "a tower of other inputs",
        re.compile(
            r"^(?:(?:model|thinker)\.)?(?:visual|vision|image|audio|speech|video|multi_modal|multimodal|mm_|connector|"
            r"embed_vision|embed_audio|perceiver|aligner|patch_merger)\w*\."
        ),
        "text stack",
    ),
    Unused(
        "masks, which a model makes itself", re.compile(r"\.att(?:entio)?n\.(?:bias|masked_bias|causal_mask)$"), "masks"
    ),
    Unused("scales of activations", re.compile(r"\.(?:input|activation)_scale$"), "anywhere"),
    Unused("scales of a cache", re.compile(r"\.(?:[kqv]|kv)_scale$"), "anywhere"),
)


def refuse_unused(model: Any, unknown: Collection[str], folder: Path | None, where: str, *, start: bool) -> None:
    """Refuse weights that a model does not take; those of a row of `UNUSED` are left out with a line.

    Args:
        model: of transformers, read from the folder. What transformers ignores for its class is left out.
        unknown: names of weights that it did not take.
        folder: of the checkpoint; None: it is not on this machine.
        where: named in the error.
        start: whether training or sampling starts from it; otherwise it is a finished reward model.

    Raises:
        CheckpointError: a weight is in no row that applies.
    """
    config = _config_of(folder)
    rows = [row for row in UNUSED if _applies(row, model, config, start=start)]
    shapes = {} if folder is None or not unknown else stored_shapes(folder)
    left: dict[str, list[str]] = {}
    refused = []
    for name in sorted(not_ignored(model, unknown)):
        found = [row for row in rows if row.names.search(name)]
        row = next((row for row in found if row.where != "masks" or _is_mask(shapes.get(name))), None)
        if row is None:
            refused.append(name)
        else:
            left.setdefault(row.what, []).append(name)
    if refused:
        whose, remedy = _explained(model, refused, config)
        raise CheckpointError(
            f"{where} has {len(refused)} weights {whose}, such as {refused[0]}, which {type(model).__name__} would "
            f"leave out: {remedy}"
        )
    for what, names in left.items():
        log_once(f"{where}: {len(names)} weights of {what}, such as {names[0]}, are not used")


def _applies(row: Unused, model: Any, config: Mapping[str, Any], *, start: bool) -> bool:
    if row.where == "text stack":
        return any(key in config and not hasattr(model.config, key) for key in _parts(config))
    return start or row.where != "start"


def _is_mask(shape: Sequence[int] | None) -> bool:
    """Whether a tensor has the shape of a mask, or of the number that stands for what is masked."""
    if shape is None:
        return False
    return len(shape) == 0 or (len(shape) == 4 and shape[0] == shape[1] == 1 and shape[2] == shape[3])


def _parts(config: Mapping[str, Any]) -> list[str]:
    """The keys for parts of a model of several inputs, such as `vision_config`."""
    return [
        key for key, value in config.items()
        if key.endswith("_config") and isinstance(value, dict) and key not in ("quantization_config", "text_config")
    ]  # fmt: skip


def _config_of(folder: Path | None) -> dict[str, Any]:
    if folder is None or not (folder / CONFIG).is_file():
        return {}
    return dict(json.loads((folder / CONFIG).read_text(encoding="utf-8")))


def stored_forms(folder: Path) -> dict[str, str]:
    """The element types of the tensors of a folder, by name, from the heads of its safetensors files."""
    return {name: form for name, (form, _) in _heads(folder).items()}


def stored_shapes(folder: Path) -> dict[str, list[int]]:
    """The shapes of the tensors of a folder, by name, from the heads of its safetensors files."""
    return {name: shape for name, (_, shape) in _heads(folder).items()}


def _heads(folder: Path) -> dict[str, tuple[str, list[int]]]:
    from safetensors import safe_open

    found: dict[str, tuple[str, list[int]]] = {}
    for file in weight_files(folder):
        with boundary(CheckpointError, f"{file} cannot be read"), safe_open(file, framework="pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 (not a map)
            found |= {name: (one.get_dtype(), list(one.get_shape())) for name, one in slices.items()}
    return found


def weight_files(folder: Path) -> list[Path]:
    """The files of all weights of a folder: `model.safetensors`, or those of `model.safetensors.index.json`."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [folder / "model.safetensors"]
    with boundary(CheckpointError, f"{index} cannot be read"):
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return [folder / name for name in sorted(names)]


def not_ignored(model: Any, names: Iterable[str]) -> list[str]:
    """The names that transformers would not ignore when it reads a model, by the rules of its `from_pretrained`."""
    ignored = [*(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())]
    buffers = [name for name, _ in model.named_buffers()]
    if any(name.endswith("rotary_emb.inv_freq") for name in buffers):
        ignored.append(r"rotary_emb\.inv_freq")
    if any(name.endswith("position_ids") for name in buffers):
        ignored.append(r"(^|\.)position_ids$")
    return [name for name in names if not any(re.search(pattern, name) for pattern in ignored)]


def _explained(model: Any, refused: Collection[str], config: Mapping[str, Any]) -> tuple[str, str]:
    """Whose weights these are, and what helps."""
    own = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    kinds = {_LAYER.sub(".N.", name) for name in own}
    if any(_SCALE.search(name.rpartition(".")[2]) for name in refused):
        return "that are scales of quantised ones", BFLOAT16
    if all(_LAYER.search(name) and _LAYER.sub(".N.", name) in kinds for name in refused):
        return f"of more layers than {CONFIG} has", f"copy {CONFIG} from the checkpoint again, or save it again"
    if config.get("auto_map"):
        return (
            "of code in its folder (auto_map)",
            "guerdon does not run code of a model's folder; serve it in a process of its own and name the address",
        )
    if any(row.names.search(name) for row in UNUSED if row.where == "start" for name in refused):
        return "of the head of another task", "name the adapter that it is a reward model of, or remove them"
    return (
        f"that {CONFIG} has no place for",
        f"correct what {CONFIG} says of such layers (biases, norms, sizes), or remove them from the files",
    )


def _beside_weights(name: str) -> bool:
    """Whether it is a scale of something else than a weight."""
    return any(row.names.search(name) for row in UNUSED if row.what.startswith("scales"))


def refuse_unscaled(forms: Mapping[str, str], unused: Collection[str], where: str) -> None:
    """Refuse weights in 8 bits or fewer that were read without their scale.

    Args:
        forms: element types of the tensors of a folder, as safetensors calls them, by name; of those that were read.
        unused: names that no weight was read from.
        where: named in the error.

    Raises:
        CheckpointError: a weight has no scale, or its scale was not read.
    """
    of_weights = [name for name in forms if name not in unused and not _beside_weights(name)]
    scaled = {name[: found.start()].rstrip("._") for name in of_weights if (found := _SCALE.search(name))}
    scaled |= {_STEM.sub("", name) for name in scaled}
    bare = [
        name
        for name in of_weights
        if forms[name].startswith(_NARROW) and not _SCALE.search(name) and _STEM.sub("", name) not in scaled
    ]
    if bare:
        raise CheckpointError(
            f"{where} cannot be used: {len(bare)} of its weights, such as {bare[0]}, are stored as {forms[bare[0]]} "
            f"without a scale by which they become floats: {BFLOAT16}"
        )
