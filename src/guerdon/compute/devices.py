"""Devices: where a part of a study computes, and the GPUs of this machine.

Every part that can compute on a GPU has a key `device`: auto, cpu, cuda or cuda:1 (docs/gpu.md).

    device = resolve_device("cuda:1")
    with seeded(0, device): network = build().to(device)
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from guerdon.errors import ConfigError
from guerdon.processes.progress import doing, log_line

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_PAUSE = 30.0  # seconds between queries of the GPUs


def resolve_device(choice: str | torch.device | None) -> torch.device:
    """The device that a key `device` names; auto and None: the GPU where there is one, else the CPU.

    Raises:
        ConfigError: it is not a device, or it is not there.
    """
    if choice is None or choice == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(choice)
    except RuntimeError as error:
        raise ConfigError(f"device {choice!r} is none: write auto, cpu, cuda or cuda:1", key="device") from error
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) < count:
        return device
    there = "no GPU"
    if count == 1:
        there = "one GPU, cuda:0"
    elif count > 1:
        there = f"{count} GPU(s), cuda:0 to cuda:{count - 1}"
    visible = os.environ.get(_VISIBLE)
    if visible is not None:
        there += f" ({_VISIBLE} is {visible!r})"
    raise ConfigError(
        f"device: {choice} is not here: this process sees {there}; write auto, cpu or another one", key="device"
    )


@contextmanager
def seeded(seed: int | None, device: torch.device | str = "cpu") -> Iterator[None]:
    """Inside the block torch draws from `seed` on the CPU and on `device`; afterwards from where it was before.

    Other devices are left alone, and CUDA is not initialised for the CPU.

    Args:
        seed: None: go on from the present state.
        device: where the block draws, besides the CPU.
    """
    device = torch.device(device)
    gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if gpu else []):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
            if gpu:
                index = torch.cuda.current_device() if device.index is None else device.index
                torch.cuda.default_generators[index].manual_seed(seed)
        yield


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them; does not initialise CUDA."""
    given = os.environ.get(_VISIBLE)
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    return [str(number) for number in range(torch.cuda.device_count())]


def show_only(gpu: str) -> None:
    """Make one GPU the only one that this process sees; before CUDA is initialised.

    Raises:
        ConfigError: it is initialised already.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ConfigError("this process uses a GPU already, so it cannot choose another one: start a process for this")
    os.environ[_VISIBLE] = gpu


def names_gpu(settings: Any) -> bool:
    """Whether any key `device` in plain values (of a whole study, for example) lets a part use a GPU."""
    return any(device != "cpu" for device in _devices(settings))


def names_one_of_several(settings: Any) -> bool:
    """Whether any key `device` in plain values names another GPU than the first."""
    return any(device.startswith("cuda:") and device != "cuda:0" for device in _devices(settings))


def _devices(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            if key == "device" and isinstance(child, str):
                yield child
            else:
                yield from _devices(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _devices(child)


def free_gpu_memory() -> dict[str, float]:
    """GiB free on each GPU that this process may use, by its UUID, as `nvidia-smi` reports; does not initialise CUDA.

    Numbers in `CUDA_VISIBLE_DEVICES` are those of `nvidia-smi` (the `guerdon` command sets `CUDA_DEVICE_ORDER` so).

    Raises:
        ConfigError: `CUDA_VISIBLE_DEVICES` names a part of a GPU (MIG), whose memory `nvidia-smi` does not report so.
    """
    command = ["nvidia-smi", "--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return {}
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.strip()]
    free = {uuid: float(mib) / 1024 for _, uuid, mib in rows}
    given = os.environ.get(_VISIBLE)
    if given is None:
        return free
    chosen: dict[str, float] = {}
    for name in (part.strip() for part in given.split(",")):
        if name.startswith("MIG-"):
            raise ConfigError(
                f"wait_for_gpu does not know the memory of {name}, a part of a GPU; leave it out", key="wait_for_gpu"
            )
        found = [uuid for index, uuid, _ in rows if name == index or (name and uuid.startswith(name))]
        if len(found) != 1:  # CUDA, too, ignores what follows a name that it does not know
            break
        chosen[found[0]] = free[found[0]]
    return chosen


@doing("waiting for a GPU")
def wait_for_gpu(
    gib: float, *, free: Callable[[], Mapping[str, float]] = free_gpu_memory,
    pause: Callable[[float], None] = time.sleep,
) -> str:  # fmt: skip
    """Wait until a GPU has so much memory free.

    Args:
        gib: how much.
        free: GiB free on each GPU, by its name.
        pause: waits so many seconds.

    Returns:
        The name of the GPU with the most, for `show_only`.

    Raises:
        ConfigError: there is no GPU to wait for.
    """
    logged = False
    while True:
        found = free()
        if not found:
            raise ConfigError("wait_for_gpu waits for a GPU, and there is none here; leave it out", key="wait_for_gpu")
        best = max(found, key=lambda name: found[name])
        if found[best] >= gib:
            return best
        if not logged:
            log_line(f"waiting for a GPU with {gib:g} GiB free; the most is {found[best]:.1f}")
            logged = True
        pause(_PAUSE)
