"""Values of `info` that are kept with each step: what rewards of other goals need (`algorithm.keep_info`).

kept = KeptInfo(["effort"])
kept.of(info, mask_B, inside_B)     # {"effort": (B, 3) float64}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from guerdon.errors import ConfigError
from guerdon.types import BoolArray
from guerdon.worlds.interventions import of_copy


class KeptInfo:
    """Reads numbers of a fixed shape from the infos of steps.

    Args:
        names: keys of `info`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._shapes: dict[str, tuple[int, ...]] = {}

    def of(self, info: Mapping[str, Any], mask_B: BoolArray, inside_B: BoolArray) -> dict[str, np.ndarray]:
        """(B, ...) of each name; zeros where no action was taken.

        Args:
            info: of a vector environment's step.
            mask_B: copies that took an action.
            inside_B: copies whose report is in `final_info`.

        Raises:
            ConfigError: a step has no such value, or one of another kind or shape than the first.
        """
        found: dict[str, np.ndarray] = {}
        finals = info.get("final_info", {})
        for name in self._names:
            values = {i: self._value(finals if inside_B[i] else info, name, i) for i in np.flatnonzero(mask_B).tolist()}
            rows = np.zeros((len(mask_B), *self._shapes.get(name, ())), np.float64)
            for i, value in values.items():
                rows[i] = value
            found[name] = rows
        return found

    def _value(self, info: Mapping[str, Any], name: str, index: int) -> np.ndarray:
        given = of_copy(info, name, index)
        value = None if given is None else np.asarray(given)
        if value is None or value.dtype.kind not in "fiub":
            said = "is not there" if given is None else f"is {str(given)[:80]!r}, no numbers"
            names = ", ".join(sorted(str(key) for key in info if not str(key).startswith("_")))
            raise ConfigError.about(
                "algorithm.keep_info",
                f": info[{name!r}] of a step {said}; the environment reports {names or 'nothing'}",
            )
        shape = self._shapes.setdefault(name, value.shape)
        if value.shape != shape:
            raise ConfigError.about(
                "algorithm.keep_info", f": info[{name!r}] has shape {value.shape}, and {shape} at another step"
            )
        return value
