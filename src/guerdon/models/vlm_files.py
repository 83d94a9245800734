"""Vision-language reward models on disk, and from a configuration: `load_vlm` builds every one of them.

A trained checkpoint is a folder with `vlm.json` (how the model is asked: question, frames, pixels, threshold), an
adapter or whole weights, and, for a model made in code, the base under `base/`. How it was asked in training is how it
is asked later; a configuration that says otherwise is refused. This module does not know how models are trained.

    model = load_vlm("qwen_vl", "runs/vlm")                      # what `guerdon train` wrote
    model = load_vlm("primo_r1", settings=VLMSettings(path="..."))
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from guerdon.atomic import seal_folder, verify_folder, write_json
from guerdon.errors import CheckpointError, ConfigError, boundary
from guerdon.models.vlm import Calibration, VLMRewardModel
from guerdon.models.vlm_questions import Backend
from guerdon.policies.precision import uses_bf16
from guerdon.settings.vlm import VLM_NAMES, VLMSettings, VLMType, implied_by

CARD, BASE, ADAPTER = "vlm.json", "base", "adapter"
ASKED = ("question", "input", "nframes", "max_pixels", "fps")  # what training fixes


@dataclass(frozen=True)
class VLMCard:
    """What a checkpoint says of itself.

    Attributes:
        asked: values of `ASKED`.
        base: folder or hub id of the model, `base` where it lies inside.
        adapter: whether there is one.
        threshold: see `Calibration`.
        horizon: see `Calibration`.
        label: what a value means, in words.
        data_hash: of the training data.
    """

    asked: dict[str, Any]
    base: str
    adapter: bool
    threshold: float | None = None
    horizon: float | None = None
    label: str = ""
    data_hash: str = ""


def write_vlm_checkpoint(folder: Path, card: VLMCard, write_weights: Callable[[Path], None]) -> Path:
    """Write a checkpoint in one piece.

    Args:
        folder: replaced if it exists.
        card: what it says of itself.
        write_weights: writes `adapter/` or `base/` (or both) into the folder that it is given.

    Returns:
        The folder.
    """
    temporary = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    write_weights(temporary)
    write_json(temporary / CARD, asdict(card) | {"type": "qwen_vl", "guerdon_version": version("guerdon")})
    seal_folder(temporary, folder)
    return folder


def read_card(path: str | Path) -> tuple[Path, VLMCard]:
    """The folder of a checkpoint (`path` or its `model/`) and what it says of itself; every byte is checked.

    Raises:
        CheckpointError: there is none, it is incomplete or altered.
    """
    given = Path(path)
    folder = next((c for c in (given, given / "model") if (c / CARD).is_file()), None)
    if folder is None:
        raise CheckpointError(
            f"no vision-language reward model at {given}: expected a folder with {CARD}; write one with `guerdon train`"
        )
    verify_folder(folder)
    with boundary(CheckpointError, f"{folder / CARD} cannot be read"):
        record = json.loads((folder / CARD).read_text(encoding="utf-8"))
        return folder, VLMCard(**{name: record[name] for name in VLMCard.__dataclass_fields__})


def load_vlm(
    kind: VLMType,
    checkpoint_path: str | Path | None = None,
    *,
    settings: VLMSettings | None = None,
    device: str | torch.device | None = None,
) -> VLMRewardModel:
    """Build a vision-language reward model.

    Args:
        kind: what it asks.
        checkpoint_path: what `guerdon train` wrote; then settings may not name another model or question.
        settings: how it is asked and where it runs.
        device: of the transformers backend; None for the GPU when there is one.

    Raises:
        ConfigError: settings that do not fit, or a model is missing.
        CheckpointError: it cannot be read.
        MissingDependencyError: the backend is not installed.
    """
    asked, calibration = settings or VLMSettings(), None
    if checkpoint_path is not None:
        asked, calibration = _from_checkpoint(kind, checkpoint_path, asked)
    elif asked.backend != "openai" and asked.path is None:
        raise ConfigError(
            f"the reward model {kind} needs a model: checkpoint_path (what `guerdon train` wrote), vlm.path "
            "(prm_model_name_or_path), or vlm.backend: openai with an endpoint"
        )
    try:
        asked.check(kind)
    except ValueError as error:
        raise ConfigError(f"reward.model.vlm: {error}") from error
    return VLMRewardModel(kind, asked, open_backend(asked, device), calibration)


def load_named_vlm(
    name: str,
    checkpoint_path: str | Path | None = None,
    *,
    vlm: VLMSettings | Mapping[str, Any] | None = None,
    device: str | torch.device | None = None,
) -> VLMRewardModel:
    """Build the vision-language reward model that a configuration or a server calls by one of its names.

    Args:
        name: of `VLM_NAMES`; some imply a backend or a question.
        checkpoint_path: what `guerdon train` wrote, or any model (folder or hub id), which then is `vlm.path`.
        vlm: how it is asked.
        device: as for `load_vlm`.

    Raises:
        ConfigError: settings that do not fit, or a model is missing.
        CheckpointError: it cannot be read.
    """
    asked = vlm.model_dump(exclude_unset=True) if isinstance(vlm, VLMSettings) else dict(vlm or {})
    if checkpoint_path is not None and not is_checkpoint(checkpoint_path):
        if asked.get("path") is not None:
            raise ConfigError(f"vlm.path stands beside checkpoint_path {str(checkpoint_path)!r}; give one of them")
        asked["path"], checkpoint_path = str(checkpoint_path), None
    fixed = {} if checkpoint_path is None else {"question": read_card(checkpoint_path)[1].asked["question"]}
    asked = {k: v for k, v in implied_by(name, {**fixed, **asked}).items() if k in asked or k not in fixed}
    try:
        settings = VLMSettings(**asked)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["reward.model.vlm", *(str(part) for part in first["loc"])])
        raise ConfigError(f"{where}: {first['msg'].removeprefix('Value error, ')}") from error
    return load_vlm(VLM_NAMES[name], checkpoint_path, settings=settings, device=device)


def is_checkpoint(path: str | Path) -> bool:
    """Whether a trained vision-language reward model lies there."""
    return any((folder / CARD).is_file() for folder in (Path(path), Path(path) / "model"))


def open_backend(settings: VLMSettings, device: str | torch.device | None = None) -> Backend:
    """Load the model, or reach the endpoint."""
    if settings.backend == "openai":
        from guerdon.models.vlm_openai import OpenAIBackend

        assert settings.openai is not None
        return OpenAIBackend(settings.openai)
    assert settings.path is not None
    if settings.backend == "vllm":
        from guerdon.models.vlm_vllm import VLLMBackend

        return VLLMBackend(settings.path, settings.adapter, settings.vllm)
    from guerdon.models.vlm_local import TransformersBackend, read_vlm

    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    bf16 = uses_bf16(settings.bf16, where)
    loaded = read_vlm(settings.path, settings.adapter, dtype=torch.bfloat16 if bf16 else torch.float32)
    return TransformersBackend(*loaded, batch_size=settings.batch_size, bf16=bf16, device=where)


def _from_checkpoint(kind: VLMType, path: str | Path, settings: VLMSettings) -> tuple[VLMSettings, Calibration]:
    folder, card = read_card(path)
    if kind != "qwen_vl":
        raise ConfigError(f"{folder} is a qwen_vl model; model_type {kind} has no checkpoints: give vlm.path")
    given = settings.model_dump(exclude_unset=True)
    if settings.backend == "openai":
        raise ConfigError("checkpoint_path would do nothing with backend openai, whose endpoint has its own model")
    for name in ("path", "adapter", "prompt"):
        if given.get(name) is not None:
            raise ConfigError(f"vlm.{name} stands beside checkpoint_path, which says that itself; remove one of them")
    for name in ASKED:
        if name in given and given[name] is not None and given[name] != card.asked.get(name):
            raise CheckpointError(
                f"{name} mismatch: {folder} was trained with {card.asked.get(name)!r}, asked for {given[name]!r}; "
                f"remove vlm.{name}, or train with it"
            )
    base = str(folder / BASE) if card.base == BASE else card.base
    untold = {"fps"} if settings.backend == "vllm" else set()  # vLLM is not told how fast frames follow each other
    asked = {name: value for name, value in card.asked.items() if name in set(ASKED) - untold}
    whole = {**given, **asked, "path": base} | ({"adapter": str(folder / ADAPTER)} if card.adapter else {})
    try:
        return VLMSettings(**whole), Calibration(card.threshold, card.horizon)
    except ValidationError as error:
        raise CheckpointError(f"{folder / CARD} does not fit this version: {error.errors()[0]['msg']}") from error
