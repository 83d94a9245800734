"""From a command line to a running server.

The visible GPUs are chosen before anything that could look for them is imported.

    settings = serve_settings(None, [], {"backend": "constant", "port": 0})
    launch(settings)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from guerdon.config import Tree, apply_overrides, merge, read_yaml, resolve_refs, validate
from guerdon.errors import ConfigError, needs
from guerdon.serve.backends import PRIMO, QWEN, QWEN_PATH, backend_name, known_backends, model_source, refuse_early
from guerdon.serve.copies import choose_copies, machine
from guerdon.serve.logs import log_to_stderr
from guerdon.settings.serve import ServedModelSettings, ServeSettings

SOURCES = ("backend", "model_path", "custom_backend")


def serve_settings(file: Path | None, overrides: Sequence[str], flags: Mapping[str, Any]) -> ServeSettings:
    """Settings from a YAML file, dotted overrides and command-line flags; later ones take precedence.

    The flags of one model (`backend`, `model_path`, ...) define a model named after its backend; `model` has entries
    `name=path` (or `name=backend:path`). Flags that do not name a model (`update_dir`, `temperature`, ...) apply to the
    entry of `model`, if there is exactly one.

    Raises:
        ConfigError: something is wrong or ambiguous.
    """
    tree = Tree() if file is None else read_yaml(file)
    tree = resolve_refs(apply_overrides(tree, overrides), ServeSettings)
    models = dict(tree.data.get("models") or {})
    single = {key: flags[key] for key in ServedModelSettings.model_fields if flags.get(key) is not None}
    entries = dict(_named(entry) for entry in flags.get("model") or ())
    models |= entries
    about = next(iter(entries)) if len(entries) == 1 and not single.keys() & set(SOURCES) else None
    known = {} if about is None else entries[about]
    if flags.get("primo_tensor_parallel_size") is not None:
        if backend_name((known | single).get("backend")) != PRIMO:
            raise ConfigError("--primo-tensor-parallel-size would do nothing without --backend PRIMO-R1; remove it")
        single["tensor_parallel_size"] = flags["primo_tensor_parallel_size"]
    if single:
        name = _name_of(single, models) if about is None else about
        models[name] = known | single
    given = {key: value for key, value in flags.items() if value is not None and key in ServeSettings.model_fields}
    changed: dict[str, Any] = {**given, **({"models": models} if models else {})}
    replicas = {key: flags[key] for key in ("min_replicas", "max_replicas") if flags.get(key) is not None}
    if replicas and "ray" not in given and not tree.data.get("ray"):
        raise ConfigError("--min-replicas and --max-replicas would do nothing without --ray; remove them, or add it")
    if replicas or "ray" in given:
        changed["ray"] = {**(tree.data.get("ray") or {}), **replicas}
    if flags.get("media_root") is not None:
        changed["media"] = {"root": flags["media_root"]}
    data = merge(tree.data, changed) if changed else tree.data
    if not data.get("models"):
        raise ConfigError("there is no model to serve: give --model-path, --backend, --model name=path, or a file")
    return validate(ServeSettings, Tree(data, tree.places), source=str(file) if file is not None else "command line")


def launch(settings: ServeSettings) -> None:
    """Serve until a signal.

    Raises:
        ConfigError: as `refuse_early`; or it is too late to choose GPUs, or the address cannot be used.
        MissingDependencyError: the `serve` extra is not installed.
        GuerdonError: a model could not be loaded.
    """
    refuse_early(settings)
    if settings.gpu_ids is not None:
        if "torch" in sys.modules or "vllm" in sys.modules:
            raise ConfigError("gpu_ids must be set before torch is imported; start the server with `guerdon serve`")
        os.environ["CUDA_VISIBLE_DEVICES"] = settings.gpu_ids.replace(" ", "")
    here = machine()
    settings, chosen = choose_copies(settings, here)
    copies = max((model.processes for model in settings.models.values() if isinstance(model.processes, int)), default=0)
    if settings.threads is not None or here.threads is None:
        half = max(1, here.cores // 2)  # the other half is for requests
        os.environ["OMP_NUM_THREADS"] = str(settings.threads or max(copies, half))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # texts are short: more threads only wait for cores
    sources = {name: model_source(name, model) for name, model in settings.models.items()}
    with needs("the server needs {name}: pip install 'guerdon[serve]'", ModuleNotFoundError):
        from guerdon.serve.app import build_app
        from guerdon.serve.lifecycle import serve
        from guerdon.serve.model_queue import ServedModels
    log_to_stderr()
    models = ServedModels(sources, default=settings.default, batch=settings.batch, limits=settings.limits)
    serve(models, build_app(models, settings), settings, chosen)


def _named(entry: str) -> tuple[str, dict[str, Any]]:
    """One `--model`: name=path, name=backend:path or name=backend."""
    name, found, rest = entry.partition("=")
    if not (name and found and rest):
        raise ConfigError(f"--model {entry}: write name=path, name=backend:path or name=backend")
    backend, colon, path = rest.partition(":")
    if backend_name(backend) in known_backends():
        return name, {"backend": backend, **({"model_path": path} if colon and path else {})}
    return name, {"model_path": rest}


def _name_of(single: dict[str, Any], others: Mapping[str, Any]) -> str:
    """Name of the model that the flags define: its backend, its factory's module, or its folder."""
    if "backend" in single:
        name = str(single["backend"])
        if backend_name(name) == QWEN and "model_path" not in single:
            single["model_path"] = QWEN_PATH
        return name
    if "custom_backend" in single:
        return str(single["custom_backend"]).partition(":")[0].rpartition(".")[2]
    if "model_path" not in single:
        flags = ", ".join("--" + key.replace("_", "-") for key in sorted(single))
        if others:
            key, name = min(single), next(iter(others))
            raise ConfigError(
                f"{flags}: which of {', '.join(others)}? Name the model: as the override "
                f"models.{name}.{key}={single[key]}, or in a file: models: {{{name}: {{..., {key}: {single[key]}}}}}"
            )
        raise ConfigError(f"{flags}: which model? Give --model-path, --backend, --custom-backend or one --model")
    return Path(str(single["model_path"])).name or "model"
