"""From the settings of a served model to the function that loads it.

A backend is a name of the first reward server (`qwen2_5_vl_vllm`, `PRIMO-R1`), a name of a reward model, `text`, or
is read from what lies at `model_path`. Nothing is imported before a model is loaded. This module does not know HTTP.

    source = model_source("prm", ServedModelSettings(model_path="runs/prm"))
    model = source.load()
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guerdon.errors import ConfigError, boundary
from guerdon.serve.source import ModelSource
from guerdon.settings.serve import ServedModelSettings
from guerdon.settings.vlm import VLM_NAMES
from guerdon.types import RewardModel

QWEN, PRIMO, TEXT = "qwen2_5_vl_vllm", "PRIMO-R1", "text"
ALIASES = {"primo_r1_vllm": PRIMO}
WRITING: dict[str, dict[str, Any]] = {
    QWEN: {"temperature": 0.0, "max_tokens": 64},  # top_p is nothing where the likeliest token is taken
    PRIMO: {"temperature": 0.1, "top_p": 0.9, "max_tokens": 4096},
}
ENGINES: dict[str, dict[str, Any]] = {
    QWEN: {"tensor_parallel_size": 2, "max_model_len": 16384, "gpu_memory_utilization": 0.8},
    PRIMO: {"tensor_parallel_size": 1, "max_model_len": 16384, "gpu_memory_utilization": 0.9},
}
WRITING_KNOBS, ENGINE_KNOBS = ("temperature", "top_p", "max_tokens"), tuple(ENGINES[QWEN])
QWEN_PATH = "Qwen/Qwen2.5-VL-7B-Instruct"
IMAGE_KINDS = ("resnet", "progress")

_IMPORTING = threading.Lock()  # transformers imports its parts when first needed, and not well from two threads


def backend_name(given: str) -> str:
    """The name under which a backend is known."""
    return ALIASES.get(given, given)


def model_source(name: str, settings: ServedModelSettings) -> ModelSource:
    """Where a model comes from, not yet loaded.

    Raises:
        ConfigError: a setting would do nothing with this backend.
    """
    backend = None if settings.backend is None else backend_name(settings.backend)
    given = [knob for knob in (*WRITING_KNOBS, *ENGINE_KNOBS) if getattr(settings, knob) is not None]
    if given and backend not in VLM_NAMES and settings.custom_backend is None:
        what = "a model read from its folder" if backend is None else f"backend {backend}"
        raise ConfigError(f"models.{name}: {', '.join(given)} would do nothing with {what}; remove it")
    aliases = set(settings.aliases)
    if backend is not None and backend_name(name) == backend:
        aliases |= {backend, *(alias for alias, known in ALIASES.items() if known == backend)} - {name}
    return ModelSource(
        load=_loader(name, settings, backend),
        aliases=tuple(sorted(aliases)),
        update_dir=None if settings.update_dir is None else Path(settings.update_dir),
        keep_updates=settings.keep_updates,
    )


def _loader(name: str, settings: ServedModelSettings, backend: str | None) -> Callable[[], RewardModel]:
    def load() -> RewardModel:
        if settings.custom_backend is not None:
            from guerdon.serve.custom import load_custom

            return load_custom(name, settings)
        with _IMPORTING:
            kind = _kind_at(settings.model_path or "") if backend is None else backend
            if kind == TEXT:
                from guerdon.models.text_load import load_text_model

                if settings.model_path is None:
                    raise ConfigError(f"models.{name}: backend text needs model_path")
                return _call(name, load_text_model, {"path": settings.model_path}, settings.options)
            return _load_named(name, kind, settings)

    return load


def _load_named(name: str, kind: str, settings: ServedModelSettings) -> RewardModel:
    """A model of `models.load`, or one that learns in use around it."""
    from guerdon.models.load import load_reward_model

    if settings.update_dir is not None and kind in IMAGE_KINDS:
        from guerdon.models.learning_image import load_learning_image_model

        return _call(
            name,
            load_learning_image_model,
            {"checkpoint_path": settings.model_path, "kind": kind},
            settings.options,
        )
    given: dict[str, Any] = {"model_type": kind, "checkpoint_path": settings.model_path}
    options = dict(settings.options)
    if kind in VLM_NAMES:
        given["vlm"] = vlm_options(name, kind, settings)
        options.pop("vlm", None)
    return _call(name, load_reward_model, given, options)


def vlm_options(name: str, kind: str, settings: ServedModelSettings) -> dict[str, Any]:
    """How a vision-language model is asked: `options.vlm`, the flags, and the defaults of the first reward server.

    Raises:
        ConfigError: `options.vlm` says what a flag says too.
    """
    asked: dict[str, Any] = dict(settings.options.get("vlm") or {})
    writing = {knob: value for knob in WRITING_KNOBS if (value := getattr(settings, knob)) is not None}
    engine = {knob: value for knob in ENGINE_KNOBS if (value := getattr(settings, knob)) is not None}
    twice = sorted((writing.keys() & asked.keys()) | (engine.keys() & dict(asked.get("vllm") or {}).keys()))
    if twice:
        raise ConfigError(f"models.{name}: {twice[0]} stands beside the same key in options.vlm; give one of them")
    default = dict(WRITING.get(kind, {}))
    if {**default, **writing, **asked}.get("temperature") == 0:
        default.pop("top_p", None)
    engine = {**engine, **dict(asked.pop("vllm", None) or {})}
    if asked.get("backend", "vllm") == "vllm":
        engine = {**ENGINES.get(kind, {}), **engine}
    return {**default, **writing, **asked, **({"vllm": engine} if engine else {})}


def _call(
    name: str, function: Callable[..., RewardModel], given: dict[str, Any], options: dict[str, Any]
) -> RewardModel:
    """Call a loader with the options of the settings; those that it does not have are refused.

    Raises:
        ConfigError: an unknown option, or one that is given elsewhere.
    """
    known = [key for key in inspect.signature(function).parameters if key not in given]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(f"models.{name}.options has no {unknown[0]}; there are {', '.join(known)}")
    with boundary(ConfigError, f"models.{name} cannot be loaded"):
        return function(**given, **options)


def _kind_at(path: str) -> str:
    """What lies at a path: a model of pictures that `guerdon train` wrote, or something for the loader of texts."""
    from guerdon.errors import CheckpointError
    from guerdon.models.checkpoint import CONFIG, find_checkpoint
    from guerdon.models.vlm_files import is_checkpoint

    place = Path(path)
    meant = place.is_absolute() or path.startswith(".") or (len(place.parts) > 1 and place.parent.is_dir())
    if meant and not place.exists():  # else it may be a hub id
        raise ConfigError(f"model_path {path}: there is no such folder; train it first, or check the path")
    if is_checkpoint(path):
        return "qwen_vl"
    try:
        folder = find_checkpoint(path)
    except CheckpointError:
        return TEXT
    with boundary(CheckpointError, f"{folder / CONFIG} cannot be read"):
        kind = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("type")
    return kind if kind in IMAGE_KINDS else TEXT
