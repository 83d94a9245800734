"""Pickled weights of a model or an adapter, written again as safetensors: the one place where a pickle is read.

Only numbers are read from it: torch refuses a pickle that names any function but those that rebuild tensors.

    import_model(Path("downloads/old-model"), Path("models/old-model"))       # model.safetensors and the other files
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from guerdon.compute.finite import save_weights
from guerdon.errors import CheckpointError, ConfigError, boundary
from guerdon.files.atomic import sealed_folder, write_json
from guerdon.network.hub import OFT_PARTS, PICKLED, check_links

_MOST_SHARED = 8  # times the size of a file, of all its tensors
_ROOM = 16 << 20  # bytes of tensors that any file may have
_KEPT = (".json", ".jinja", ".txt", ".model", ".md", ".safetensors")  # the other files of a model that are read


def import_model(origin: Path, target: Path) -> list[str]:
    """Write a folder whose weights are pickles as a folder of safetensors, sealed by hashes.

    Configuration, tokenizer and templates are copied; code and anything else is left out.

    Args:
        origin: with `pytorch_model*.bin`, `adapter_model.bin`, or parts of OpenVLA-OFT (`action_head--*.pt`, ...).
        target: must not exist yet.

    Returns:
        Names of the files of weights that were written.

    Raises:
        ConfigError: there are no such weights, or the target exists.
        CheckpointError: a file does not hold pickled weights, some are not finite, or it is a link out of the folder.
    """
    if not origin.is_dir():
        raise ConfigError(f"{origin}: there is no such folder; name the folder of a model")
    if target.exists():
        raise ConfigError(f"{target} exists already; name a new folder")
    names = _pickles(origin)
    check_links(CheckpointError, "the model", origin)
    with sealed_folder(target) as folder:
        _copy_rest(origin, folder, whole=any(name.startswith("model") for name in names.values()))
        for file, name in names.items():
            _convert(file, folder / name)
        for index in origin.glob("pytorch_model*.bin.index.json"):
            with boundary(CheckpointError, f"{index} cannot be read"):
                said = json.loads(index.read_text(encoding="utf-8"))
                said["weight_map"] = {key: _renamed(str(name)) for key, name in said["weight_map"].items()}
            if not set(said["weight_map"].values()) <= set(names.values()):
                raise CheckpointError(f"{index} names files that are not in {origin}; download the model again")
            write_json(folder / _renamed(index.name), said)
    return sorted(names.values())


def _pickles(origin: Path) -> dict[Path, str]:
    """The pickled weights of a folder, each with the name of its safetensors.

    Raises:
        ConfigError: there are none, or several of one part.
    """
    names = {file: _renamed(file.name) for old in PICKLED for file in sorted(origin.glob(f"{old}*.bin"))}
    for part in OFT_PARTS:
        files = sorted(origin.glob(f"{part}--*.pt"))
        if len(files) > 1:
            raise ConfigError(f"{origin} has several {part}: {', '.join(f.name for f in files)}; keep one of them")
        names |= dict.fromkeys(files, f"{part}.safetensors")
    if not names:
        wanted = " or ".join([*(f"{old}*.bin" for old in PICKLED), *(f"{part}--*.pt" for part in OFT_PARTS)])
        raise ConfigError(f"{origin} has no {wanted}; guerdon reads safetensors without an import")
    return names


def _copy_rest(origin: Path, folder: Path, *, whole: bool) -> None:
    """Copy what belongs to the weights; of a whole model without their index, which is written again."""
    for file in sorted(origin.rglob("*")):
        if file.is_file() and file.suffix in _KEPT and not (whole and file.name.endswith(".index.json")):
            place = folder / file.relative_to(origin)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)


def _renamed(name: str) -> str:
    """The name of safetensors for that of a pickle."""
    old = next((old for old in PICKLED if name.startswith(old)), "")
    return PICKLED.get(old, "") + name.removeprefix(old).replace(".bin", ".safetensors", 1)


def _convert(file: Path, target: Path) -> None:
    from transformers.modeling_utils import load_state_dict

    _refuse_compressed(file)
    try:
        with warnings.catch_warnings(), boundary(CheckpointError, f"{file} cannot be read as weights alone"):
            warnings.simplefilter("ignore", UserWarning)  # of torch, about the protocol of a pickle
            found = load_state_dict(file, map_location="cpu", weights_only=True)
    except CheckpointError as error:  # torch says how to run its code
        named = re.findall(r"GLOBAL ([\w.]{1,80})", str(error))
        why = f"it names {named[0]}, which is not part of a tensor" if named else "it is damaged or has no weights"
        raise CheckpointError(
            f"{file} cannot be read as weights alone: {why}; download the model again, or one with safetensors"
        ) from error
    if not isinstance(found, dict) or not all(
        isinstance(one, torch.Tensor) and _is_plain(one) for one in found.values()
    ):
        raise CheckpointError(
            f"{file} holds other things than weights by name, so it cannot be imported; take the file of "
            "the model's weights alone"
        )
    _refuse_repeated(file, found)
    save_weights({name: tensor.clone() for name, tensor in found.items()}, target)


def _refuse_compressed(file: Path) -> None:
    """Refuse a file whose parts become larger than it when they are read; torch compresses none.

    Raises:
        CheckpointError: it is such a file.
    """
    if not zipfile.is_zipfile(file):
        return
    with (
        boundary(CheckpointError, f"{file} cannot be read as weights alone: it is damaged"),
        zipfile.ZipFile(file) as parts,
    ):
        size = sum(part.file_size for part in parts.infolist())
    if size > file.stat().st_size:
        raise CheckpointError(
            f"{file} cannot be imported: it has {file.stat().st_size:,} bytes, and its parts {size:,}: they are "
            "compressed, and files of torch are not; download the model again"
        )


def _is_plain(tensor: Tensor) -> bool:
    """Whether all numbers of a tensor are in memory."""
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized


def _refuse_repeated(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that show the numbers of a file many times, before they are copied.

    Weights that a model shares are in several tensors, so a few times the size of the file is usual.

    Raises:
        CheckpointError: they are too large.
    """
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}
    size, most = sum(sizes.values()), _MOST_SHARED * file.stat().st_size + _ROOM
    if size > most:
        largest = max(sizes, key=lambda name: sizes[name])
        raise CheckpointError(
            f"{file} cannot be imported: it has {file.stat().st_size:,} bytes, and its tensors {size:,} ({largest!r} "
            f"{sizes[largest]:,}): they repeat the same numbers; save the model again with tensors that are contiguous"
        )
