"""The environment of a Python process that a test starts."""

import os
from pathlib import Path

import guerdon


def environment(*folders, **variables):
    """Ours, with these folders to import from, and the guerdon under test before any that is installed."""
    paths = [*map(str, folders), str(Path(guerdon.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **variables}
