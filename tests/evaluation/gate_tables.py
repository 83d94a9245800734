"""Made-up tables of reward models whose gain follows from one feature."""

from __future__ import annotations

from typing import Any

import numpy as np

from guerdon.evaluation.gate.gate_table import GateTable, gate_table


def made_rows(
    tasks: int = 6, per_task: int = 8, *, noise: float = 0.05, seed: int = 0, kind: str = "robot", spread: float = 0.3
) -> list[dict[str, Any]]:
    """Rows of a table: the gain is `spread` times a hidden quality, which the features of the forecast show.

    `bon16` (of text, `row_auroc`) shows it clearly, `epic` (`auroc`) loosely; `idle` and `rare` are of no forecast.
    """
    clear, loose, sign = ("bon16", "epic", -1) if kind == "robot" else ("row_auroc", "auroc", 1)
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
                    f"feature.{clear}": quality + 0.05 * float(rng.standard_normal()),
                    f"feature.{loose}": sign * (quality + 0.5 * float(rng.standard_normal())),
                    "feature.idle": float(rng.standard_normal()),
                    "feature.rare": float(quality) if m % 2 else None,
                }
            )
    return rows


def made_table(*args: Any, **options: Any) -> GateTable:
    """The table of `made_rows`."""
    return gate_table((f"row {i}", row) for i, row in enumerate(made_rows(*args, **options)))
