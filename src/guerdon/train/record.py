"""What a training folder says of itself: which settings and data it was started with, and whether it is finished.

This module does not know what is trained.

    metrics = finished_metrics(Path("runs/rm"), {"settings": {...}, "data_hash": "..."})    # None: go on
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from guerdon.errors import ConfigError, DataError, boundary


def finished_metrics(save_dir: Path, record: dict[str, Any]) -> dict[str, Any] | None:
    """Metrics of the training in `save_dir` if it is finished, else None; also where it left no checkpoint at all.

    Raises:
        ConfigError: another training than the one that `record` asks for was started there.
        DataError: what is there cannot be read.
    """
    path = save_dir / "training.json"
    if not path.is_file():
        return None
    with boundary(DataError, f"{path} cannot be read"):
        found = json.loads(path.read_text(encoding="utf-8"))
        before = found["settings"] | {"data_hash": found["data_hash"]}
        metrics = json.loads((save_dir / "metrics.json").read_text(encoding="utf-8")) if found["finished"] else None
    if metrics is None and not any((save_dir / "trainer").glob("checkpoint-*")):
        return None  # it ended before there was anything to go on from
    now = record["settings"] | {"data_hash": record["data_hash"]}
    other = [f"{k} {before.get(k)!r} -> {now.get(k)!r}" for k in now.keys() | before if before.get(k) != now.get(k)]
    if other:
        raise ConfigError(
            f"cannot resume the training in {save_dir}: it was started with other settings "
            f"({', '.join(sorted(other))}); restore them, or train without resume"
        )
    return None if metrics is None else {k: v for k, v in metrics.items() if k != "history"}
