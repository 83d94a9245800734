"""From a command line to a running server.

Which GPUs are visible is decided before anything that could look for them is imported. This module does not know
routes.

    settings = serve_settings(None, [], {"backend": "constant", "port": 0})
    launch(settings)
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from guerdon.config import Tree, apply_overrides, merge, read_yaml, resolve_refs, validate
from guerdon.errors import ConfigError, MissingDependencyError
from guerdon.serve.backends import ALIASES, PRIMO, QWEN, QWEN_PATH, backend_name, model_source
from guerdon.settings.serve import ServeSettings

MODEL_FLAGS = (
    "backend", "model_path", "custom_backend", "tensor_parallel_size", "max_model_len", "gpu_memory_utilization",
    "temperature", "top_p", "max_tokens", "update_dir",
)  # fmt: skip


def serve_settings(file: Path | None, overrides: Sequence[str], flags: Mapping[str, Any]) -> ServeSettings:
    """Settings from a YAML file, dotted overrides and the flags of the command line, the later ones winning.

    The flags of one model (`backend`, `model_path`, ...) describe a model of their own, named after its backend;
    `model` holds `name=path` (or `name=backend:path`) entries.

    Raises:
        ConfigError: something is wrong; nothing is left to guess.
    """
    tree = Tree() if file is None else read_yaml(file)
    tree = resolve_refs(apply_overrides(tree, overrides), ServeSettings)
    models = dict(tree.data.get("models") or {})
    single = {key: flags[key] for key in MODEL_FLAGS if flags.get(key) is not None}
    for entry in flags.get("model") or ():
        name, model = _named(entry)
        models[name] = model
    single |= _primo(single, flags.get("primo_tensor_parallel_size"))
    if single:
        name = _name_of(single)
        models[name] = single
    given = {key: value for key, value in flags.items() if value is not None and key in ServeSettings.model_fields}
    changed: dict[str, Any] = {**given, **({"models": models} if models else {})}
    if flags.get("media_root") is not None:
        changed["media"] = {"root": flags["media_root"]}
    data = merge(tree.data, changed) if changed else tree.data
    if not data.get("models"):
        raise ConfigError("there is no model to serve: give --model-path, --backend, --model name=path, or a file")
    return validate(ServeSettings, Tree(data, tree.places), source=str(file) if file is not None else "command line")


def launch(settings: ServeSettings) -> None:
    """Serve until a signal comes.

    Raises:
        ConfigError: GPUs cannot be chosen any more, or the address cannot be used.
        MissingDependencyError: the `serve` extra is not installed.
        GuerdonError: a model could not be loaded.
    """
    if settings.gpu_ids is not None:
        if "torch" in sys.modules or "vllm" in sys.modules:
            raise ConfigError("gpu_ids must be set before torch is imported; start the server with `guerdon serve`")
        os.environ["CUDA_VISIBLE_DEVICES"] = settings.gpu_ids.replace(" ", "")
    sources = {name: model_source(name, model) for name, model in settings.models.items()}
    try:
        from guerdon.serve.app import build_app
        from guerdon.serve.engine import Engine
        from guerdon.serve.lifecycle import serve
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"the server needs {error.name}: pip install 'guerdon[serve]'") from error
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    engine = Engine(sources, default=settings.default, batch=settings.batch, limits=settings.limits)
    serve(engine, build_app(engine, settings), settings)


def _named(entry: str) -> tuple[str, dict[str, Any]]:
    """One `--model`: name=path, name=backend:path or name=backend."""
    name, found, rest = entry.partition("=")
    if not (name and found and rest):
        raise ConfigError(f"--model {entry}: write name=path, name=backend:path or name=backend")
    backend, colon, path = rest.partition(":")
    if backend_name(backend) in known_backends():
        return name, {"backend": backend, **({"model_path": path} if colon and path else {})}
    return name, {"model_path": rest}


def known_backends() -> tuple[str, ...]:
    """Names of backends that a command line can tell from a path."""
    from guerdon.models.load import ALIASES as OTHER_NAMES
    from guerdon.models.load import MODELS

    return (QWEN, PRIMO, *ALIASES, "text", *MODELS, *OTHER_NAMES)


def _primo(single: dict[str, Any], size: int | None) -> dict[str, Any]:
    """`--primo-tensor-parallel-size` is the size of PRIMO-R1, and of nothing else."""
    if size is None:
        return {}
    if backend_name(single.get("backend", "")) != PRIMO:
        raise ConfigError("--primo-tensor-parallel-size would do nothing without --backend PRIMO-R1; remove it")
    return {"tensor_parallel_size": size}


def _name_of(single: dict[str, Any]) -> str:
    """What the model of the flags is called: its backend, its factory's module, or its folder."""
    if "backend" in single:
        name = str(single["backend"])
        if backend_name(name) == QWEN and "model_path" not in single:
            single["model_path"] = QWEN_PATH
        return name
    if "custom_backend" in single:
        return str(single["custom_backend"]).partition(":")[0].rpartition(".")[2]
    if "model_path" not in single:
        raise ConfigError(f"{', '.join(sorted(single))}: which model? Give --model-path, --backend or --custom-backend")
    return Path(str(single["model_path"])).name or "model"
