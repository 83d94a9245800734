"""The complete state of one copy of a MuJoCo environment, to keep and to return to.

A simulator's own reset may take as long as dozens of steps. What it leads to is kept here and restored to the same
bits in everything that later steps read.

    state = saved(model, data, pristine, {}, observation)
    restore(model, data, state, pristine)
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

_PREFIXES = ("body_", "geom_", "site_", "jnt_", "dof_", "eq_", "qpos")
_LARGEST = 20_000  # numbers in an array; larger ones are meshes and textures, which no reset moves


@dataclass(frozen=True)
class SimulatorState:
    """The complete state of a copy.

    Attributes:
        physics: MuJoCo's own state.
        model_fields: what a reset moves in the model, by name.
        attributes: what the environment keeps in Python.
        observation: (S,) float32, what the copy shows.
    """

    physics: np.ndarray
    model_fields: dict[str, np.ndarray]
    attributes: dict[str, Any]
    observation: np.ndarray


def physics_of(model: Any, data: Any) -> np.ndarray:
    """MuJoCo's state of an `MjData`: everything that its integrator reads."""
    import mujoco

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(model, kind))
    mujoco.mj_getState(model, data, state, kind)
    return state


def model_fields(model: Any) -> dict[str, np.ndarray]:
    """Copies of the small per-object arrays of a model: what a task may move at reset."""
    arrays = {name: getattr(model, name) for name in dir(model) if name.startswith(_PREFIXES)}
    return {
        name: a.copy()
        for name, a in arrays.items()
        if isinstance(a, np.ndarray) and a.dtype.kind == "f" and a.size < _LARGEST
    }


def set_model_fields(model: Any, values: dict[str, np.ndarray]) -> None:
    """Write fields into a model."""
    for name, value in values.items():
        getattr(model, name)[...] = value


def attributes_of(owner: Any) -> dict[str, Any]:
    """Copies of the numbers that an object keeps in Python, alone and in arrays, lists and dicts.

    Other objects, text, and arrays that are views of the simulator's memory are left out.
    """
    return {name: copy.deepcopy(value) for name, value in vars(owner).items() if _is_data(value)}


def set_attributes(owner: Any, values: dict[str, Any]) -> None:
    """Restore what `attributes_of` copied."""
    for name, value in values.items():
        setattr(owner, name, copy.deepcopy(value))


def _is_data(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype != object and not _is_window(value)
    if isinstance(value, dict):
        return all(map(_is_data, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_data, value))
    return value is None or isinstance(value, bool | int | float | np.generic)


def _is_window(array: np.ndarray) -> bool:
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.owndata:
            return False
        base = base.base
    return base is not None


def saved(
    model: Any, data: Any, pristine: dict[str, np.ndarray], attributes: dict[str, Any], observation: np.ndarray
) -> SimulatorState:
    """The state of model and data, for `restore`; `pristine` are the `model_fields` that resets begin from."""
    changed = {name: value for name, value in model_fields(model).items() if not np.array_equal(value, pristine[name])}
    return SimulatorState(physics_of(model, data), changed, attributes, observation.copy())


def restore(model: Any, data: Any, state: SimulatorState, pristine: dict[str, np.ndarray]) -> None:
    """Bring model and data to a state; what the environment keeps in Python is the caller's."""
    import mujoco

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    set_model_fields(model, pristine)
    set_model_fields(model, state.model_fields)
    mujoco.mj_resetData(model, data)
    mujoco.mj_setState(model, data, state.physics, kind)
    mujoco.mj_forward(model, data)
    mujoco.mj_setState(model, data, state.physics, kind)
