"""Checks of a server's settings before it listens, without loading a model.

`refuse_early` is quick and part of every start; `refuse_all` imports the modules of the models and looks into their
folders, for `--dry-run`. A damaged weight or too little memory shows only when a model is loaded.

    refuse_early(settings)
    refuse_all(settings)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guerdon.config import validate
from guerdon.errors import ConfigError
from guerdon.models.adapters import ADAPTERS
from guerdon.serve import backends
from guerdon.serve.paths import MediaRoot
from guerdon.settings.reward_models import REWARD_MODELS
from guerdon.settings.serve import ServedModelSettings, ServeSettings
from guerdon.settings.train import parse_image_size
from guerdon.settings.vlm import VLM_NAMES, VLMSettings, check_vlm, implied_by


def refuse_early(settings: ServeSettings) -> None:
    """Refuse unknown backends, settings that would do nothing, missing folders.

    Raises:
        ConfigError: one of these.
    """
    for name, model in settings.models.items():
        backends.model_source(name, model)
        backend = backends.backend_name(model.backend)
        if backend in VLM_NAMES:
            _check_vlm(name, backend, model, backends.vlm_options(name, backend, model))
        if model.custom_backend is None:
            _refuse_options(name, backend, model)
        if model.model_path is not None and model.custom_backend is None:
            images = backends.plain_name(model.backend or "") in backends.IMAGE_KINDS  # never a hub id
            backends.refuse_missing(str(Path(model.model_path).absolute()) if images else model.model_path)
    if settings.media.root is not None:
        MediaRoot(settings.media.root)


def _refuse_options(name: str, backend: str | None, model: ServedModelSettings) -> None:
    """Refuse options that the backend does not have; if only the folder has the type, those that no type has."""
    if backend is not None and REWARD_MODELS.is_own(backend):
        REWARD_MODELS.check(backend, model.options)
        return
    kinds = (backends.TEXT, *backends.IMAGE_KINDS, "qwen_vl") if backend is None else (backend,)
    known = [option for kind in kinds for option in backends.known_options(kind, learns=model.update_dir is not None)]
    backends.refuse_options(name, model.options, list(dict.fromkeys(known)))
    adapter = model.options.get("adapter", "auto")
    if backends.TEXT in kinds and adapter not in ("auto", "guerdon", *ADAPTERS):
        raise ConfigError(f"unknown adapter {adapter!r}: choose one of {', '.join(ADAPTERS)}")
    if "image_size" in model.options:
        try:
            parse_image_size(model.options["image_size"])
        except ValueError as error:
            raise ConfigError(f"models.{name}.options: {error}") from error


def refuse_all(settings: ServeSettings) -> None:
    """Refuse everything that a start would refuse before it reads weights.

    Raises:
        ConfigError: as `refuse_early`; or an unknown option, or a factory that cannot be imported.
        CheckpointError: there is no model in a folder.
        MissingDependencyError: a package that a model needs is not installed.
    """
    refuse_early(settings)
    for name, model in settings.models.items():
        if model.custom_backend is not None:
            from guerdon.serve.custom import factory

            factory(model.custom_backend)
            continue
        call = backends.load_call(name, model)
        if call.kind in VLM_NAMES:
            from guerdon.models.vlm import is_checkpoint

            vlm = _check_vlm(name, call.kind, model, call.arguments["vlm"])
            if model.model_path is not None and not is_checkpoint(model.model_path):
                validate(VLMSettings, {**vlm, "path": model.model_path}, source=f"models.{name}.options.vlm")
        elif call.kind == backends.TEXT:
            from guerdon.models.text_load import check_text_model

            check_text_model(call.arguments["path"], adapter=call.arguments.get("adapter", "auto"))
        elif backends.plain_name(call.kind) in backends.IMAGE_KINDS:
            from guerdon.models.image import load_config

            load_config(call.arguments["checkpoint_path"], type=backends.plain_name(call.kind))


def _check_vlm(name: str, kind: str, model: ServedModelSettings, vlm: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a vision-language model with those that its name implies, checked."""
    asked = implied_by(kind, dict(vlm))
    known = validate(VLMSettings, asked, source=f"models.{name}.options.vlm")
    if model.model_path is None and known.path is None and known.backend != "openai":
        raise ConfigError(f"models.{name}: backend {kind} needs model_path (or options.vlm.path)")
    try:
        check_vlm(kind, known, model.model_path)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"models.{name}.options.vlm: {error}") from error
    if known.path is not None:
        backends.refuse_missing(known.path)
    return asked
