"""Made-up tables of reward models whose gain follows from one feature."""

from __future__ import annotations

from typing import Any

import numpy as np

from guerdon.evaluate.gate_table import GateTable, gate_table


def made_rows(
    tasks: int = 6, per_task: int = 8, *, noise: float = 0.05, seed: int = 0, kind: str = "robot", spread: float = 0.3
) -> list[dict[str, Any]]:
    """Rows of a table: the gain is `spread` times a hidden quality, which `good` and `voc` show and `idle` does not."""
    rng = np.random.default_rng(seed)
    rows = []
    for t in range(tasks):
        for m in range(per_task):
            quality = 2 * (m + 0.5) / per_task - 1
            success = np.clip(0.5 + spread * quality + noise * rng.standard_normal(3), 0, 1)
            rows.append(
                {
                    "model": f"{kind}_{t}_{m}",
                    "kind": kind,
                    "task": f"{kind}_task_{t}",
                    "family": f"family_{m % 4}",
                    "seeds": [0, 1, 2],
                    "baseline": [0.5, 0.5, 0.5],
                    "success": success.tolist(),
                    "feature.good": quality + 0.05 * float(rng.standard_normal()),
                    "feature.voc": quality + 0.5 * float(rng.standard_normal()),
                    "feature.idle": float(rng.standard_normal()),
                    "feature.rare": float(quality) if m % 2 else None,
                }
            )
    return rows


def made_table(*args: Any, **options: Any) -> GateTable:
    """The table of `made_rows`."""
    return gate_table((f"row {i}", row) for i, row in enumerate(made_rows(*args, **options)))
