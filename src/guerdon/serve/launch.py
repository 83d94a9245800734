"""From a command line to a running server.

The visible GPUs are chosen before anything that could look for them is imported.

`processes: auto` says that the server chooses how many copies of a model it starts. One copy of a small model cannot
use more than one or two cores, because much of the time of a request is spent in Python. Copies with one thread each
can. One core is left for reading and answering requests.

    settings = serve_settings(None, [], {"backend": "constant", "port": 0})
    launch(settings)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from guerdon.config.loading import Tree, apply_overrides, merge, read_yaml, resolve_refs, validate
from guerdon.errors import ConfigError, needs
from guerdon.plan.stages import loaded
from guerdon.processes.cores import usable_cores
from guerdon.serve import backends
from guerdon.serve.logs import log_to_stderr
from guerdon.settings.serve import ServedModelSettings, ServeSettings

RAY_SERVER = "guerdon.engines.ray_serve:deploy"
NAMING = ("backend", "model_path", "custom_backend")


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
    changed = {key: value for key, value in flags.items() if value is not None and key in ServeSettings.model_fields}
    models = _models(tree.data.get("models") or {}, flags)
    if models:
        changed["models"] = models
    ray = _ray(tree.data.get("ray") or {}, flags)
    if ray is not None:
        changed["ray"] = ray
    if flags.get("media_root") is not None:
        changed["media"] = {"root": flags["media_root"]}
    data = merge(tree.data, changed) if changed else tree.data
    if not data.get("models"):
        raise ConfigError(
            "there is no model to serve: give --model-path, --backend, --model name=path, or a file", key="models"
        )
    return validate(ServeSettings, Tree(data, tree.places), origin=str(file) if file is not None else "command line")


def _models(stored: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The models of a file, with those that the flags define or change."""
    entries = dict(_named(entry) for entry in flags.get("model") or ())
    models = {**stored, **entries}
    single = {key: flags[key] for key in ServedModelSettings.model_fields if flags.get(key) is not None}
    about = next(iter(entries)) if len(entries) == 1 and not single.keys() & set(NAMING) else None
    known = {} if about is None else entries[about]
    if flags.get("primo_tensor_parallel_size") is not None:
        if backends.backend_name((known | single).get("backend")) != backends.PRIMO:
            raise ConfigError(
                "--primo-tensor-parallel-size would do nothing without --backend PRIMO-R1; remove it",
                key="--primo-tensor-parallel-size",
            )
        single["tensor_parallel_size"] = flags["primo_tensor_parallel_size"]
    if single:
        name = _name_of(single, models) if about is None else about
        models[name] = known | single
    return models


def _ray(stored: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings of Ray in a file, with those of the flags; None where no flag is about Ray."""
    replicas = {key: flags[key] for key in ("min_replicas", "max_replicas") if flags.get(key) is not None}
    asked = flags.get("ray") is not None
    if replicas and not asked and not stored:
        raise ConfigError(
            "--min-replicas and --max-replicas would do nothing without --ray; remove them, or add it",
            key="--" + next(iter(replicas)).replace("_", "-"),
        )
    return {**stored, **replicas} if replicas or asked else None


class ServeStage:
    """`guerdon serve`, over the settings of a server."""

    def check(self, settings: ServeSettings) -> None:
        """Refuse what the start of the server refuses; no model is loaded.

        Raises:
            GuerdonError: with the reason.
        """
        backends.refuse_all(settings)

    def estimate(self, settings: ServeSettings) -> dict[str, Any]:
        """Nothing: a server runs until a signal comes."""
        return {}

    def work(self, settings: ServeSettings) -> None:
        """Serve until then, in this process or on a Ray cluster."""
        if settings.ray is None:
            launch(settings)
        else:
            loaded(RAY_SERVER)(settings)


def launch(settings: ServeSettings) -> None:
    """Serve until a signal.

    Raises:
        ConfigError: as `refuse_early`; or it is too late to choose GPUs, or the address cannot be used.
        MissingDependencyError: the `serve` extra is not installed.
        GuerdonError: a model could not be loaded.
    """
    backends.refuse_early(settings)
    if settings.gpu_ids is not None:
        if "torch" in sys.modules or "vllm" in sys.modules:
            raise ConfigError(
                "gpu_ids must be set before torch is imported; start the server with `guerdon serve`", key="gpu_ids"
            )
        os.environ["CUDA_VISIBLE_DEVICES"] = settings.gpu_ids.replace(" ", "")
    here = machine()
    settings, chosen = choose_copies(settings, here)
    copies = max((model.processes for model in settings.models.values() if isinstance(model.processes, int)), default=0)
    if settings.threads is not None or here.threads is None:
        half = max(1, here.cores // 2)  # the other half is for requests
        os.environ["OMP_NUM_THREADS"] = str(settings.threads or max(copies, half))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # texts are short: more threads only wait for cores
    limit = settings.limits.deadline_s
    loaders = {name: backends.model_loader(name, one, deadline_s=limit) for name, one in settings.models.items()}
    with needs("the server needs {name}: pip install 'guerdon[serve]'", ModuleNotFoundError):
        from guerdon.serve.app import build_app
        from guerdon.serve.lifecycle import serve
        from guerdon.serve.sample import served_sample
        from guerdon.serve.served_models import ServedModels
    log_to_stderr()
    models = ServedModels(
        loaders, default=settings.default, batch=settings.batch, limits=settings.limits, sample=served_sample(settings)
    )
    serve(models, build_app(models, settings), settings, chosen)


def _named(entry: str) -> tuple[str, dict[str, Any]]:
    """One `--model`: name=path, name=backend:path or name=backend."""
    name, found, rest = entry.partition("=")
    if not (name and found and rest):
        raise ConfigError(f"--model {entry}: write name=path, name=backend:path or name=backend", key="--model")
    backend, colon, path = rest.partition(":")
    if backends.backend_name(backend) in backends.known_backends():
        return name, {"backend": backend, **({"model_path": path} if colon and path else {})}
    return name, {"model_path": rest}


def _name_of(single: dict[str, Any], others: Mapping[str, Any]) -> str:
    """Name of the model that the flags define: its backend, its factory's module, or its folder."""
    if "backend" in single:
        name = str(single["backend"])
        if backends.backend_name(name) == backends.QWEN and "model_path" not in single:
            single["model_path"] = backends.QWEN_PATH
        return name
    if "custom_backend" in single:
        return str(single["custom_backend"]).partition(":")[0].rpartition(".")[2]
    if "model_path" not in single:
        flags = ", ".join("--" + key.replace("_", "-") for key in sorted(single))
        if others:
            key, name = min(single), next(iter(others))
            raise ConfigError(
                f"{flags}: which of {', '.join(others)}? Name the model: as the override "
                f"models.{name}.{key}={single[key]}, or in a file: models: {{{name}: {{..., {key}: {single[key]}}}}}",
                key=flags.partition(",")[0],
            )
        raise ConfigError(
            f"{flags}: which model? Give --model-path, --backend, --custom-backend or one --model",
            key=flags.partition(",")[0],
        )
    return Path(str(single["model_path"])).name or "model"


FEWEST_CORES = 4  # with fewer, copies and the server take cores from each other (docs/benchmarks.md)
LARGEST = 1 << 30  # bytes of weights; what copies of larger models gain was not measured
PER_COPY = 1 << 30  # bytes of memory that a copy takes beside its weights: Python, torch and what it computes


class Machine(NamedTuple):
    """What a server may use.

    Attributes:
        cores: that this process may use.
        memory: bytes that are free.
        gpu: whether there is one; a model is put there, and one copy is enough.
        threads: what `OMP_NUM_THREADS` of the environment allows; None: it says nothing.
    """

    cores: int
    memory: int
    gpu: bool
    threads: int | None = None


def machine() -> Machine:
    """This machine."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_AVPHYS_PAGES" in os.sysconf_names else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpu = Path("/proc/driver/nvidia/gpus").exists() and visible not in ("", "-1")
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list is one number per level of nesting
    return Machine(usable_cores(), free, gpu, int(said) if said.isdigit() else None)


def choose_copies(settings: ServeSettings, machine: Machine) -> tuple[ServeSettings, list[str]]:
    """Replace every `processes: auto` by a number of copies, or by None: in the server's own process.

    Args:
        settings: of the server.
        machine: what it may use.

    Returns:
        The settings, and a line for each model that was chosen for.
    """
    automatic = [name for name, model in settings.models.items() if model.processes == "auto"]
    models, lines = dict(settings.models), []
    for name in automatic:
        count, why = _copies(settings, models[name], machine, len(automatic))
        models[name] = models[name].model_copy(update={"processes": count})
        where = "in the server's process" if count is None else f"{count} copies in processes of their own"
        lines.append(f"{name}: {where} (processes: auto): {why}")
    return settings.model_copy(update={"models": models}), lines


def _copies(
    settings: ServeSettings, model: ServedModelSettings, machine: Machine, automatic: int
) -> tuple[int | None, str]:
    """How many copies, and why."""
    refused = _why_no_copies(settings, model, machine)
    if refused:
        return None, refused
    folder = Path(model.model_path or "")
    weights = sum(file.stat().st_size for file in folder.rglob("*.safetensors")) if folder.is_dir() else 0
    if not 0 < weights <= LARGEST:
        size = f"its weights have {weights / 2**30:.1f} GiB" if weights else "the size of its weights is not known"
        return None, f"{size}; copies are for at most {LARGEST / 2**30:.0f} GiB"
    threads = settings.threads or machine.threads or machine.cores - 1
    fits = machine.memory // 2 // (weights + PER_COPY)
    count = min((machine.cores - 1) // automatic, threads, fits)
    why = f"{machine.cores} cores, {threads} threads, memory for {fits}"
    return count if count > 1 else None, why


def _why_no_copies(settings: ServeSettings, model: ServedModelSettings, machine: Machine) -> str:
    """Why a model gets no copies, whatever its size; empty: it may get some."""
    kind = backends.backend_name(model.backend)
    if settings.ray is not None:
        return "Ray starts replicas"
    if model.update_dir is not None:
        return "it learns, and copies would not do so alike"
    if model.custom_backend is not None or (kind is not None and backends.plain_name(kind) not in backends.FROM_FOLDER):
        return "only text and image models read from their folder get copies"
    if (machine.gpu or settings.gpu_ids is not None) and model.options.get("device") != "cpu":
        return "there is a GPU"
    if machine.cores < FEWEST_CORES:
        return f"{machine.cores} cores; copies need at least {FEWEST_CORES}"
    return ""
