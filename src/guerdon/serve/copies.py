"""How many copies of a model a server starts, where the user does not say: `processes: auto`.

One copy of a small model cannot use more than one or two cores, because much of the time of a request is spent in
Python. Copies with one thread each can. One core is left for reading and answering requests.

    settings, chosen = choose_copies(settings, machine())
    settings.models["prm"].processes        # 3 on four cores; None: in the server's own process
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from guerdon.cores import usable_cores
from guerdon.serve.backends import IMAGE_KINDS, TEXT, backend_name, plain_name
from guerdon.settings.serve import ServedModelSettings, ServeSettings

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
    kind = backend_name(model.backend)
    if settings.ray is not None:
        return None, "Ray starts replicas"
    if model.update_dir is not None:
        return None, "it learns, and copies would not do so alike"
    if model.custom_backend is not None or (kind is not None and plain_name(kind) not in (TEXT, *IMAGE_KINDS)):
        return None, "only text and image models read from their folder get copies"
    if (machine.gpu or settings.gpu_ids is not None) and model.options.get("device") != "cpu":
        return None, "there is a GPU"
    if machine.cores < FEWEST_CORES:
        return None, f"{machine.cores} cores; copies need at least {FEWEST_CORES}"
    folder = Path(model.model_path or "")
    weights = sum(file.stat().st_size for file in folder.rglob("*.safetensors")) if folder.is_dir() else 0
    if not 0 < weights <= LARGEST:
        size = f"its weights have {weights / 2**30:.1f} GiB" if weights else "the size of its weights is not known"
        return None, f"{size}; copies are for at most {LARGEST / 2**30:.0f} GiB"
    threads = settings.threads or machine.threads or machine.cores - 1
    fits = machine.memory // 2 // (weights + PER_COPY)
    count = min((machine.cores - 1) // automatic, threads, fits)
    why = f"{machine.cores} cores, {threads} threads, memory for {fits}"
    return (count, why) if count > 1 else (None, why)
