"""Provenance of a result: versions, machine, command. Recorded with every run, shown in every report.

Versions are read without importing the packages.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from guerdon.secrets import hide

_PACKAGES = (
    "guerdon",
    "torch",
    "transformers",
    "numpy",
    "gymnasium",
    "metaworld",
    "hf-libero",
    "robosuite",
    "mani-skill",
    "sapien",
    "mujoco",
    "safetensors",
    "pyarrow",
)


def versions() -> dict[str, str]:
    """Version of Python and of each package that numbers depend on; absent ones are left out."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Processor, cores, memory and system; nothing that identifies a person or a host."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(pages / 2**30, 1),
    }


def command() -> str:
    """The command line as typed, with the program's bare name and without secrets."""
    name = os.path.basename(sys.argv[0]) if sys.argv else "guerdon"
    return hide(" ".join(["guerdon" if name in ("__main__.py", "guerdon") else name, *sys.argv[1:]]))


def now() -> str:
    """UTC time to the second, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
