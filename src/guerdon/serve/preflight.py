"""What a start of the server would refuse, said before it listens, without loading a model.

`refuse_early` is quick and is part of every start; `refuse_all` imports what would build the models and looks at their
folders, for `--dry-run`. What only loading shows (a damaged weight, too little memory) this module does not know.

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
from guerdon.serve.backends import (
    IMAGE_KINDS,
    TEXT,
    Plan,
    backend_name,
    known_options,
    model_source,
    plain_name,
    plan_of,
    refuse_missing,
    refuse_options,
    vlm_options,
)
from guerdon.serve.paths import MediaRoot
from guerdon.settings.reward_models import REWARD_MODELS
from guerdon.settings.serve import ServedModelSettings, ServeSettings
from guerdon.settings.train import parse_image_size
from guerdon.settings.vlm import VLM_NAMES, VLMSettings, check_vlm, implied_by


def refuse_early(settings: ServeSettings) -> None:
    """Refuse unknown backends, settings that would do nothing, folders that are not there.

    Raises:
        ConfigError: one of these.
    """
    for name, model in settings.models.items():
        model_source(name, model)
        backend = None if model.backend is None else backend_name(model.backend)
        if backend in VLM_NAMES:
            _refuse_asked(name, backend, model, vlm_options(name, backend, model))
        if model.custom_backend is None:
            _refuse_options(name, backend, model)
        if model.model_path is not None and model.custom_backend is None:
            images = model.backend is not None and plain_name(model.backend) in IMAGE_KINDS  # which no hub has
            refuse_missing(str(Path(model.model_path).absolute()) if images else model.model_path)
    if settings.media.root is not None:
        MediaRoot(settings.media.root)


def _refuse_options(name: str, backend: str | None, model: ServedModelSettings) -> None:
    """No option that the backend does not have; where the folder decides what it is, none that no kind of model has."""
    if backend is not None and REWARD_MODELS.is_own(backend):
        REWARD_MODELS.check(backend, model.options)
        return
    kinds = (TEXT, *IMAGE_KINDS, "qwen_vl") if backend is None else (backend,)
    known = [option for kind in kinds for option in known_options(kind, learns=model.update_dir is not None)]
    refuse_options(name, model.options, list(dict.fromkeys(known)))
    adapter = model.options.get("adapter", "auto")
    if TEXT in kinds and adapter not in ("auto", "guerdon", *ADAPTERS):
        raise ConfigError(f"unknown adapter {adapter!r}: choose one of {', '.join(ADAPTERS)}")
    if "image_size" in model.options:
        try:
            parse_image_size(model.options["image_size"])
        except ValueError as error:
            raise ConfigError(f"models.{name}.options: {error}") from error


def refuse_all(settings: ServeSettings) -> None:
    """Refuse all that a start would refuse before it reads weights.

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
        backend = None if model.backend is None else backend_name(model.backend)
        plan = plan_of(name, model, backend)
        if plan.kind in VLM_NAMES:
            _refuse_vlm(name, model, plan)
        elif plan.kind == TEXT:
            _refuse_text(plan)
        elif plain_name(plan.kind) in IMAGE_KINDS:
            _refuse_image(plan)


def _refuse_vlm(name: str, model: ServedModelSettings, plan: Plan) -> None:
    """A vision-language model is asked in a way that there is, and it is somewhere."""
    from guerdon.models.vlm import is_checkpoint

    path = model.model_path
    asked = _refuse_asked(name, plan.kind, model, plan.given["vlm"])
    if path is None or not is_checkpoint(path):
        named = {**asked, "path": path} if path is not None else asked
        validate(VLMSettings, named, source=f"models.{name}.options.vlm")


def _refuse_asked(name: str, kind: str, model: ServedModelSettings, vlm: Mapping[str, Any]) -> dict[str, Any]:
    """What `options.vlm` and the flags say is valid; returns it, with what the name of the model implies."""
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
        refuse_missing(known.path)
    return asked


def _refuse_text(plan: Plan) -> None:
    """A folder of a text model holds one."""
    from guerdon.models.text_load import check_text_model

    check_text_model(plan.given["path"], adapter=plan.options.get("adapter", "auto"))


def _refuse_image(plan: Plan) -> None:
    """A folder of an image model holds one of this kind."""
    from guerdon.models.checkpoint import load_config

    load_config(plan.given["checkpoint_path"], type=plain_name(plan.kind))
