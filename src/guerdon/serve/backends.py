"""From the settings of a served model to the function that loads it.

A backend is a name of the first reward server (`qwen2_5_vl_vllm`, `PRIMO-R1`), a type of reward model, `text`, or is
inferred from the contents of `model_path`. Nothing heavy is imported before a model is loaded.

    source = model_source("prm", ServedModelSettings(model_path="runs/prm"))
    model = source.load()
"""

from __future__ import annotations

import difflib
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from guerdon.errors import CheckpointError, ConfigError, boundary
from guerdon.settings.base import names_in
from guerdon.settings.reward_models import MODEL_FORMS, REWARD_MODELS
from guerdon.settings.serve import ServedModelSettings
from guerdon.settings.vlm import VLM_NAMES
from guerdon.types import RewardModel

QWEN, PRIMO, TEXT = "qwen2_5_vl_vllm", "PRIMO-R1", "text"
ALIASES = {"primo_r1_vllm": PRIMO}
WRITING: dict[str, dict[str, Any]] = {
    QWEN: {"temperature": 0.0, "max_tokens": 64},  # top_p has no effect at temperature 0
    PRIMO: {"temperature": 0.1, "top_p": 0.9, "max_tokens": 4096},
}
ENGINES: dict[str, dict[str, Any]] = {
    QWEN: {"tensor_parallel_size": 2, "max_model_len": 16384, "gpu_memory_utilization": 0.8},
    PRIMO: {"tensor_parallel_size": 1, "max_model_len": 16384, "gpu_memory_utilization": 0.9},
}
WRITING_KNOBS, ENGINE_KNOBS = ("temperature", "top_p", "max_tokens"), tuple(ENGINES[QWEN])
QWEN_PATH = "Qwen/Qwen2.5-VL-7B-Instruct"
IMAGE_KINDS = ("resnet", "progress")
OPTIONS = {  # of functions whose modules import torch, so that a wrong one is refused before that
    TEXT: ("adapter", "micro_batch_size"),
    "learning": ("data_path", "device", "bf16", "steps", "frames_per_episode", "learning_rate", "weight_decay",
                 "batch_size", "replay_size", "replay_ratio", "augment", "seed"),
}  # fmt: skip

_IMPORTING = threading.Lock()  # the lazy imports of transformers are not thread-safe


@dataclass(frozen=True)
class ModelSource:
    """How a served model is loaded.

    Attributes:
        load: builds it; called again for a reload.
        aliases: other names of it.
        update_dir: where it keeps what it learns; None: it does not learn.
        keep_updates: newest states kept there.
        lanes: batches that it takes at a time, each in a thread of its own; 1 for a model that learns.
    """

    load: Callable[[], RewardModel]
    aliases: tuple[str, ...] = ()
    update_dir: Path | None = None
    keep_updates: int = 2
    lanes: int = 1


@dataclass(frozen=True)
class LoadCall:
    """The call that builds a model.

    Attributes:
        kind: the backend, or the type found at `model_path`.
        function: loads the model.
        arguments: of the function.
    """

    kind: str
    function: Callable[..., RewardModel]
    arguments: dict[str, Any]


def backend_name(given: str | None) -> str | None:
    """The first name of a backend that has several."""
    return None if given is None else ALIASES.get(given, given)


def known_backends() -> tuple[str, ...]:
    """Names of all backends."""
    return tuple(dict.fromkeys((QWEN, PRIMO, *ALIASES, TEXT, *MODEL_FORMS, *REWARD_MODELS.registered())))


def model_source(name: str, settings: ServedModelSettings) -> ModelSource:
    """How a model is loaded, without loading it.

    Raises:
        ConfigError: there is no such backend, or a setting would do nothing with it.
    """
    backend = backend_name(settings.backend)
    if backend is not None:
        _refuse_backend(name, backend, settings)
    given = [knob for knob in (*WRITING_KNOBS, *ENGINE_KNOBS) if getattr(settings, knob) is not None]
    if given and backend not in VLM_NAMES and settings.custom_backend is None:
        what = "a model read from its folder" if backend is None else f"backend {backend}"
        raise ConfigError(f"models.{name}: {', '.join(given)} would do nothing with {what}; remove it")
    size = settings.tensor_parallel_size or ENGINES.get(backend or "", {}).get("tensor_parallel_size", 1)
    if settings.processes is not None and size > 1:
        raise ConfigError(
            f"models.{name}: a copy of a model has one GPU, and tensor_parallel_size is {size}; remove processes, or "
            "set tensor_parallel_size to 1"
        )
    aliases = set(settings.aliases)
    if backend is not None and backend_name(name) == backend:
        aliases |= {backend, *(alias for alias, known in ALIASES.items() if known == backend)} - {name}
    return ModelSource(
        load=partial(build_model if settings.processes is None else _replicas, name, settings),
        aliases=tuple(sorted(aliases)),
        update_dir=None if settings.update_dir is None else Path(settings.update_dir),
        keep_updates=settings.keep_updates,
        lanes=settings.processes or 1,
    )


def _refuse_backend(name: str, backend: str, settings: ServedModelSettings) -> None:
    """Refuse an unknown backend, and settings that it would not use or needs."""
    if backend not in known_backends() and ":" not in backend:
        known = known_backends()
        by_case = {one.lower(): one for one in known}
        near = difflib.get_close_matches(backend.lower(), by_case, n=1, cutoff=0.6)
        hint = f"did you mean {by_case[near[0]]!r}? " if near else ""
        raise ConfigError(f"models.{name}: unknown backend {settings.backend!r}; {hint}known are {', '.join(known)}")
    kind = plain_name(backend)
    if settings.model_path is None and kind in (TEXT, *IMAGE_KINDS):
        raise ConfigError(f"models.{name}: backend {backend} needs model_path")
    if settings.model_path is not None and (kind in ("constant", "remote") or REWARD_MODELS.is_own(kind)):
        raise ConfigError(f"models.{name}: model_path would do nothing with backend {backend}; remove it")
    if settings.update_dir is not None and kind not in (TEXT, *IMAGE_KINDS):
        raise ConfigError(f"models.{name}: backend {backend} cannot learn while it is served; remove update_dir")


def plain_name(backend: str) -> str:
    """The first name of a type of model that has several."""
    return names_in(MODEL_FORMS[backend], "model_type")[0] if backend in MODEL_FORMS else backend


def build_model(name: str, settings: ServedModelSettings) -> RewardModel:
    """The model, in this process.

    Args:
        name: of the model.
        settings: of the model.

    Raises:
        GuerdonError: it cannot be loaded.
    """
    if settings.custom_backend is not None:
        from guerdon.serve.custom import load_custom

        return load_custom(name, settings)
    with _IMPORTING:
        call = load_call(name, settings)
        with boundary(ConfigError, f"models.{name} cannot be loaded"):
            return call.function(**call.arguments)


def _replicas(name: str, settings: ServedModelSettings) -> RewardModel:
    from guerdon.serve.replicas import Replicas

    count = settings.processes or 1
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list is one number per level of nesting
    threads = max(1, (int(given) if given.isdigit() else 1) // count)
    return Replicas(name, partial(build_model, name, settings), count=count, threads=threads)


def load_call(name: str, settings: ServedModelSettings) -> LoadCall:
    """How a model without a custom backend is loaded; imports its module, and looks into its folder.

    Args:
        name: of the model.
        settings: of the model.

    Raises:
        ConfigError: there is no such folder, or an unknown option.
        CheckpointError: the folder cannot be read.
    """
    kind = backend_name(settings.backend) or _kind_at(settings.model_path or "")
    options = dict(settings.options)
    function: Callable[..., RewardModel]
    given: dict[str, Any]
    if kind == TEXT:
        from guerdon.models.text_load import load_text_model

        function, given = load_text_model, {"path": settings.model_path or ""}
    elif settings.update_dir is not None and plain_name(kind) in IMAGE_KINDS:
        from guerdon.models.online import load_online_image_model

        function, given = load_online_image_model, {"checkpoint_path": settings.model_path, "kind": plain_name(kind)}
    else:
        from guerdon.models.load import load_reward_model

        function, given = load_reward_model, {"model_type": kind, "checkpoint_path": settings.model_path}
        if kind in VLM_NAMES:
            given["vlm"] = vlm_options(name, kind, settings)
            options.pop("vlm", None)
        elif REWARD_MODELS.is_own(kind):
            given["params"], options = options, {}
    refuse_options(name, options, known_options(kind, learns=settings.update_dir is not None))
    return LoadCall(kind, function, given | options)


def known_options(kind: str, *, learns: bool) -> list[str]:
    """Names of the options of a type of model, without importing its module.

    Args:
        kind: a backend.
        learns: it is served with an `update_dir`.
    """
    if kind == TEXT:
        return list(OPTIONS[TEXT])
    if learns and plain_name(kind) in IMAGE_KINDS:
        return list(OPTIONS["learning"])
    from guerdon.models.load import options_of

    return options_of(kind)


def refuse_options(name: str, options: Iterable[str], known: Sequence[str]) -> None:
    """Refuse unknown options of a model.

    Raises:
        ConfigError: names the first, and the nearest known one.
    """
    unknown = sorted(set(options) - set(known))
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"models.{name}.options has no {unknown[0]}; {hint}there are {', '.join(known)}")


def vlm_options(name: str, kind: str, settings: ServedModelSettings) -> dict[str, Any]:
    """Settings of a vision-language model: `options.vlm`, the flags, and the defaults of the first reward server.

    Raises:
        ConfigError: `options.vlm` has the key of a flag too, or is not a mapping.
    """
    given = settings.options.get("vlm") or {}
    if not isinstance(given, dict) or not isinstance(given.get("vllm") or {}, dict):
        raise ConfigError(f"models.{name}.options.vlm (and vllm in it) must be keys and values, such as {{nframes: 8}}")
    asked: dict[str, Any] = dict(given)
    writing = {knob: value for knob in WRITING_KNOBS if (value := getattr(settings, knob)) is not None}
    engine = {knob: value for knob in ENGINE_KNOBS if (value := getattr(settings, knob)) is not None}
    twice = sorted((writing.keys() & asked.keys()) | (engine.keys() & dict(asked.get("vllm") or {}).keys()))
    if twice:
        raise ConfigError(f"models.{name}: {twice[0]} is given here and in options.vlm; give one of them")
    default = dict(WRITING.get(kind, {}))
    if {**default, **writing, **asked}.get("temperature") == 0:
        default.pop("top_p", None)
    engine = {**engine, **dict(asked.pop("vllm", None) or {})}
    if asked.get("backend", "vllm") == "vllm":
        engine = {**ENGINES.get(kind, {}), **engine}
    return {**default, **writing, **asked, **({"vllm": engine} if engine else {})}


def refuse_missing(path: str) -> None:
    """Refuse a path that can only be a local folder and does not exist; anything else may be a hub id.

    Raises:
        ConfigError: there is no such folder.
    """
    place = Path(path)
    parts = len(place.parts)
    meant = place.is_absolute() or path.startswith(".") or parts > 2 or (parts == 2 and place.parent.is_dir())
    if meant and "://" not in path and not place.exists():  # a hub id has at most two parts; an address is no folder
        raise ConfigError(f"model_path {path}: there is no such folder; train it first, or check the path")


def _kind_at(path: str) -> str:
    """The type of the model at a path: an image model of `guerdon train`, a vision-language model, or text."""
    from guerdon.models.image import CONFIG, find_checkpoint
    from guerdon.models.vlm import is_checkpoint

    refuse_missing(path)
    if is_checkpoint(path):
        return "qwen_vl"
    try:
        folder = find_checkpoint(path)
    except CheckpointError:
        return TEXT
    with boundary(CheckpointError, f"{folder / CONFIG} cannot be read"):
        kind = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("type")
    return kind if kind in IMAGE_KINDS else TEXT
