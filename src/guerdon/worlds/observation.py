"""What a policy observes where it is more than one array: columns of a structured one.

spec = ObservationSpec(states=True, frames=(224, 224))
rows = columns_as_rows({"states": states_N_S, "frames": frames_N_H_W_C})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

Padding = bool | Literal["centre"]
"""Where pictures that keep their ratio are: right below the black (True), or in its middle; False: stretched."""


@dataclass(frozen=True)
class ObservationSpec:
    """The columns of what a policy observes: a structured array with a row per copy and a field for each of them.

    Attributes:
        states: `states`, the environment's own observation as float32.
        frames: height and width of `frames`, (H, W, 3) uint8; `padded` says how they are resized.
        cameras: how many; with several, `frames` are (cameras, H, W, 3) by the first of the world's.
        proprioception: `proprioception`, (P,) float32, the part of the state that the robot measures of itself.
        task: `task`, the instruction, as text.
    """

    states: bool = False
    frames: tuple[int, int] | None = None
    cameras: int = 1
    proprioception: bool = False
    task: bool = False
    padded: Padding = False

    def with_states(self) -> ObservationSpec:
        """The same and the states, which belong into recorded episodes."""
        return replace(self, states=True)


def columns_as_rows(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """(N,) structured rows of columns (N, ...) by name: what a policy with an `ObservationSpec` observes."""
    dtype = np.dtype([(name, c.dtype, c.shape[1:]) for name, c in columns.items()])
    rows = np.zeros(len(next(iter(columns.values()))), dtype)
    for name, column in columns.items():
        rows[name] = column
    return rows
