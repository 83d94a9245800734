"""Where a served model comes from: what the engine is given, by name.

It does not know what is loaded.

    ModelSource(load=lambda: load_text_model("runs/prm"), aliases=("process",), update_dir=Path("runs/prm/updates"))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from guerdon.types import RewardModel


@dataclass(frozen=True)
class ModelSource:
    """Where a served model comes from.

    Attributes:
        load: builds it; called again for a reload.
        aliases: other names of it.
        update_dir: where it keeps what it learns; None: it does not learn.
        keep_updates: newest states kept there.
        lanes: batches that it takes at a time, each from a thread of its own; 1 for a model that learns.
    """

    load: Callable[[], RewardModel]
    aliases: tuple[str, ...] = ()
    update_dir: Path | None = None
    keep_updates: int = 2
    lanes: int = 1
