"""Image reward models on disk: a folder with `model.safetensors` and `config.json`, read strictly.

The JSON holds what scoring needs besides the weights (architecture, preprocessing, threshold), what the model was
trained on, and the hash of the weights.

    save_checkpoint("runs/rm/model", scorer, config)
    scorer, config = load_checkpoint("runs/rm", hidden_dim=256)
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from guerdon.atomic import seal_folder, sha256, write_json
from guerdon.errors import CheckpointError, boundary
from guerdon.finite import load_weights, save_weights
from guerdon.models.backbone import ImageScorer

Kind = Literal["resnet", "progress"]
WEIGHTS, CONFIG = "model.safetensors", "config.json"


@dataclass(frozen=True)
class ImageModelConfig:
    """Everything about an image reward model except its weights.

    Attributes:
        type: `resnet` (probability of success) or `progress` (share of the task done).
        arch: depth of the residual network.
        hidden_dim: of the head; None for a single linear layer.
        dropout: of the head.
        image_size: (3, H, W).
        normalize: `none` or `imagenet`.
        threshold: probability above which a frame counts as success; None for `progress`.
        label: what a target of 1 means, in words.
        horizon: of a progress model that predicts nearness in time, in environment steps; else None.
        data_hash: of the training data; empty when the episodes came from memory.
    """

    type: Kind
    arch: str = "resnet18"
    hidden_dim: int | None = 256
    dropout: float = 0.1
    image_size: tuple[int, int, int] = (3, 128, 128)
    normalize: Literal["none", "imagenet"] = "none"
    threshold: float | None = None
    label: str = ""
    horizon: float | None = None
    data_hash: str = ""


def save_checkpoint(path: str | Path, scorer: ImageScorer, config: ImageModelConfig) -> Path:
    """Write a checkpoint folder under a temporary name and rename it to `path`.

    An existing folder is moved aside first and removed last.

    Returns:
        The folder.

    Raises:
        NonFiniteError: a weight is not finite; an existing folder stays.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_weights({name: tensor.detach().cpu() for name, tensor in scorer.state_dict().items()}, temporary / WEIGHTS)
    facts = {"guerdon_version": version("guerdon"), "sha256": sha256(temporary / WEIGHTS)}
    write_json(temporary / CONFIG, asdict(config) | facts)
    seal_folder(temporary, target)
    return target


def find_checkpoint(path: str | Path) -> Path:
    """The folder that holds `config.json`: `path` itself, its `model/`, or the folder of a .safetensors file.

    Raises:
        CheckpointError: there is none.
    """
    given = Path(path)
    folder = given.parent if given.suffix == ".safetensors" else given
    for candidate in (folder, folder / "model"):
        if (candidate / CONFIG).is_file():
            if given.suffix == ".safetensors" and given.name != WEIGHTS:
                raise CheckpointError(f"{given}: the weights of a checkpoint are named {WEIGHTS}, next to {CONFIG}")
            return candidate
    raise CheckpointError(
        f"no reward model at {given}: expected a folder with {WEIGHTS} and {CONFIG}; write one with `guerdon train`"
    )


def load_config(path: str | Path, **requested: Any) -> ImageModelConfig:
    """Read `config.json` and compare it with what the caller expects.

    Args:
        path: as for `find_checkpoint`.
        **requested: fields of `ImageModelConfig` that must be equal; None accepts any value.

    Raises:
        CheckpointError: no checkpoint, an unreadable one, or a mismatch (both values are named).
    """
    folder = find_checkpoint(path)
    with boundary(CheckpointError, f"{folder / CONFIG} cannot be read"):
        record = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        known = {f.name for f in fields(ImageModelConfig)}
        absent = sorted(known - record.keys())
        if absent:
            raise CheckpointError(f"{folder / CONFIG} lacks {', '.join(absent)}: it was not written by `guerdon train`")
        record["image_size"] = tuple(record["image_size"])
        config = ImageModelConfig(**{name: record[name] for name in known})
    for name, wanted in requested.items():
        found = getattr(config, name)
        if wanted is not None and wanted != found:
            raise CheckpointError(
                f"{name} mismatch: the checkpoint {folder} has {_shown(found)}, "
                f"but {_shown(wanted)} was requested; change {name} to {_shown(found)} or train a new model"
            )
    return config


def load_checkpoint(path: str | Path, **requested: Any) -> tuple[ImageScorer, ImageModelConfig]:
    """Read a checkpoint: the hash must match, and every tensor must be there and fit.

    Args:
        path: as for `find_checkpoint`.
        **requested: as for `load_config`.

    Returns:
        The network in evaluation mode on the CPU, and its configuration.

    Raises:
        CheckpointError: anything is missing, corrupt, or other than requested.
    """
    folder, config = find_checkpoint(path), load_config(path, **requested)
    with boundary(CheckpointError, f"{folder} cannot be read"):
        expected = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("sha256")
        if sha256(folder / WEIGHTS) != expected:
            raise CheckpointError(f"{folder / WEIGHTS} is corrupt: its SHA-256 is not the one in {CONFIG}")
        weights = load_weights(folder / WEIGHTS)
    with torch.random.fork_rng(devices=[]):
        scorer = ImageScorer(config.arch, hidden_dim=config.hidden_dim, dropout=config.dropout)
    with boundary(
        CheckpointError, f"{folder / WEIGHTS} does not fit {config.arch} with hidden_dim {config.hidden_dim}"
    ):
        scorer.load_state_dict(weights, strict=True)
    return scorer.eval(), config


def _shown(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else repr(value)
