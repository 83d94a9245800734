"""Statistics that published checkpoints normalise actions and measurements by: of OpenVLA and of LeRobot's processors.

A statistic that is used must be there, have a number for each number of the environment, be finite, and be in order
(q01 <= q99, min <= max, std >= 0); otherwise the file, the key and what is wrong with it are named. A number that is
constant in the data (q01 = q99) is allowed, a whole action that is constant is not.

    shift, scale = affine("MIN_MAX", {"min": low_A, "max": high_A})       # x = shift + scale * normalised
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, Field, PositiveFloat
from torch import Tensor

from guerdon.errors import CheckpointError, ConfigError, boundary
from guerdon.policies.vla.checkpoint_config import STATE, LeRobotConfig, checked, json_object
from guerdon.policies.vla.policy import NORMALIZATIONS, Normalization, Statistics, affine

_EPS = 1e-8  # added by OpenVLA and LeRobot so that nothing is divided by zero
_OPENPI_EPS = 1e-6  # the same of openpi
_NEXT = "compute the statistics again, or take another checkpoint"
_STEPS = {  # of LeRobot's processors; the others change actions or observations in ways that are not known
    "pre": (
        "rename_observations_processor", "to_batch_processor", "smolvla_new_line_processor", "pi0_new_line_processor",
        "pi05_prepare_state_tokenizer_processor_step", "tokenizer_processor", "device_processor",
        "normalizer_processor",
    ),
    "post": ("unnormalizer_processor", "device_processor"),
}  # fmt: skip


def openvla_statistics(
    folders: Sequence[Path], config: Mapping[str, Any] | None, key: str | None, *, actions: int, proprio_size: int,
    mode: Normalization = "QUANTILES", other_data: bool = False,
) -> Statistics:  # fmt: skip
    """Bounds of a data set; those of fine-tuning (`dataset_statistics.json`) before those of the base model.

    Args:
        folders: the checkpoint's, and its adapter's.
        config: `norm_stats` of the checkpoint's `config.json`.
        key: the name of the data set; None: the only one.
        actions, proprio_size: numbers of the environment.
        mode: which statistics are the bounds: `QUANTILES` or `MIN_MAX`.
        other_data: they are replaced by those of cloned data, so that without a name any with these numbers do.

    Raises:
        ConfigError: the data set is not known, or has other numbers than the environment.
        CheckpointError: statistics are missing, or no statistics.
    """
    known = {name: (folders[0] / "config.json", f"norm_stats.{name}", found) for name, found in (config or {}).items()}
    for file in (folder / "dataset_statistics.json" for folder in folders):
        known |= {name: (file, name, part) for name, part in (json_object(file) if file.is_file() else {}).items()}
    if not known:
        raise CheckpointError(f"{folders[0]} has no statistics of any data set; {_NEXT}")
    if other_data and not key:
        key = next((name for name, (*_, one) in known.items() if _fits(one, actions, proprio_size, mode)), None)
        if key is None and len(known) > 1:
            raise ConfigError(
                f"{folders[0]}: no data set in its statistics has {actions} action numbers and {proprio_size} of the "
                f"state ({', '.join(known)}), and this family pads neither: take a checkpoint of such a robot"
            )
    key = _data_set_name(known, key, folders[0])
    action = _openvla_part(known[key], key, "action", actions, mode)
    proprio = _openvla_part(known[key], key, "proprio", proprio_size, mode) if proprio_size else None
    return Statistics(action, proprio, (mode, mode))


def _fits(parts: Any, actions: int, proprio_size: int, mode: Normalization) -> bool:
    """Whether the statistics of a data set have the numbers of an environment."""
    wanted = {"action": actions, **({"proprio": proprio_size} if proprio_size else {})}
    given = parts if isinstance(parts, dict) else {}
    lengths = {
        part: [len(one.get(name) or ()) for name in NORMALIZATIONS[mode]]
        for part in wanted if isinstance(one := given.get(part), dict)
    }  # fmt: skip
    return all(set(lengths.get(part, [0])) == {size} for part, size in wanted.items())


def unmeasured(modes: tuple[Normalization, Normalization], *, actions: int, proprio_size: int) -> Statistics:
    """Statistics that cloning, or a stored policy, replaces: 0 and 1.

    Args:
        modes: how actions and the state are normalised.
        actions, proprio_size: numbers of the environment.
    """
    action, state = ((np.zeros(size), np.ones(size)) for size in (actions, proprio_size))
    return Statistics(action, state if proprio_size else None, modes)


def _data_set_name(known: Collection[str], key: str | None, folder: Path) -> str:
    """The data set that a key means: without one the only one, else also the one whose name has `_no_noops` behind it.

    Raises:
        ConfigError: there is none, or no key and several.
    """
    if not key and len(known) == 1:
        return next(iter(known))
    if not key:
        problem = "there are several"
    elif key in known:
        return key
    elif f"{key}_no_noops" in known:
        return f"{key}_no_noops"
    else:
        problem = f"{key!r} is none of the"
    raise ConfigError.about(
        "policy.unnorm_key", f": {problem} data sets in the statistics of {folder}: name one of {', '.join(known)}"
    )


def _openvla_part(
    found: tuple[Path, str, Any], key: str, part: str, size: int, mode: Normalization
) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half the range of the numbers of an action or a state; 0 and 1 of those that are not normalised.

    Args:
        found: the file, the place in it, and the statistics of the data set.
        key: the name of the data set.
        part: `action` or `proprio`.
        size: numbers of the environment.
        mode: which statistics are the bounds.

    Raises:
        ConfigError: it has other numbers than the environment.
        CheckpointError: statistics are missing, or no statistics.
    """
    file, place, parts = found
    numbers = parts.get(part) if isinstance(parts, dict) else None
    if not isinstance(numbers, dict):
        raise CheckpointError(f"{file}: {place} has no statistics of {part}; {_NEXT}")
    where = f"{place}.{part}"
    moved = _mask(numbers.get("mask"), size, file, f"{where}.mask")
    low, high = (
        _numbers(numbers.get(name), size, file, f"{where}.{name}", f"the statistics of {key}", part, moved)
        for name in NORMALIZATIONS[mode]
    )
    below, above = (f"{where}.{name}" for name in NORMALIZATIONS[mode])
    _check_order((below, low), (above, high), moved, file, action=part == "action")
    half = (high - low + _EPS) / 2
    return np.where(moved, low + half, 0.0), np.where(moved, half, 1.0)


def lerobot_statistics(
    folders: Sequence[Path],
    config: LeRobotConfig,
    stored: dict[str, Tensor],
    *,
    actions: int,
    proprio_size: int,
    other_data: bool = False,
) -> Statistics:
    """What LeRobot normalises by: in files of its processors, or in older checkpoints among the weights.

    How is said by `norm_map` of `policy_preprocessor.json` (the state) and `policy_postprocessor.json` (actions), and
    by `normalization_mapping` of `config.json` where those are not there.

    Args:
        folders: the checkpoint's, and its adapter's, whose processors replace those of the checkpoint.
        config: of the checkpoint.
        stored: the weights; statistics among them are taken out.
        actions, proprio_size: numbers of the environment.
        other_data: they are replaced by those of cloned data: only how numbers are normalised is read.

    Raises:
        ConfigError: the statistics have other numbers than the environment.
        CheckpointError: statistics are missing, or no statistics; a step or a mode of the processors is not supported.
    """
    own = config.normalization_mapping
    if other_data:
        for name in [key for key in stored if _is_statistic(key)]:
            del stored[name]
        modes = _mode(folders, "post", "ACTION", own), _mode(folders, "pre", "STATE", own)
        return unmeasured(modes, actions=actions, proprio_size=proprio_size)
    old = _among_weights(stored, folders[0], own)
    found: dict[str, Normaliser] = {
        side: next((one for folder in reversed(folders) if (one := _normaliser(folder, side, own)) is not None), old)
        for side in ("pre", "post")
    }
    pre, post = found["pre"], found["post"]
    if not old.numbers:  # one file without a processor's may hold all
        pre, post = post if pre is old else pre, pre if post is old else post
    _refuse_visual(pre, post)
    (action, how), (state, known) = (
        _pair(one, kind, feature, size)
        for one, kind, feature, size in ((post, "ACTION", "action", actions), (pre, "STATE", STATE, proprio_size))
    )
    return Statistics(action, state, (how, known))


def openpi_statistics(folder: Path, mode: Normalization, *, actions: int, proprio_size: int) -> Statistics:
    """What openpi normalises by: the `norm_stats.json` in `assets`, whose numbers beyond the environment's are padding.

    Args:
        folder: of the checkpoint.
        mode: `MEAN_STD` of pi0, `QUANTILES` of pi0.5.
        actions, proprio_size: numbers of the environment.

    Raises:
        CheckpointError: there is none or are several, statistics are missing, or are no statistics.
        ConfigError: the statistics have fewer numbers than the environment.
    """
    files = sorted((folder / "assets").rglob("norm_stats.json"))
    if len(files) != 1:
        found = ", ".join(str(file.relative_to(folder)) for file in files) or "no norm_stats.json"
        raise CheckpointError(f"{folder}/assets has {found}: keep there the statistics of one data set")
    parts = json_object(files[0]).get("norm_stats")
    pairs = []
    for part, size in (("actions", actions), ("state", proprio_size)):
        numbers = parts.get(part) if isinstance(parts, dict) else None
        if not isinstance(numbers, dict):
            raise CheckpointError(f"{files[0]} has no norm_stats.{part}; {_NEXT}")
        cut = {name: value[:size] if isinstance(value, list) else value for name, value in numbers.items()}
        names = [(name, f"norm_stats.{part}.{name}") for name in NORMALIZATIONS[mode]]
        low, high = (_numbers(cut.get(name), size, files[0], key, "the statistics", part) for name, key in names)
        (_, below), (_, above) = names
        first = ("zero", np.zeros(size)) if mode == "MEAN_STD" else (below, low)
        _check_order(first, (above, high), np.ones(size, np.bool_), files[0], action=part == "actions")
        if mode == "MEAN_STD":
            pairs.append((low, high + _OPENPI_EPS))
        else:
            half = (high - low + _OPENPI_EPS) / 2
            pairs.append((low + half, half))
    return Statistics(pairs[0], pairs[1] if proprio_size else None, (mode, mode))


def state_statistics(
    folder: Path, mapping: Mapping[str, Normalization], feature: str, steps: Sequence[str]
) -> tuple[np.ndarray, np.ndarray] | None:
    """What LeRobot's preprocessor in a folder normalises a feature of states by.

    Args:
        folder: the checkpoint's.
        mapping: `normalization_mapping` of its `config.json`.
        feature: such as `observation.state`.
        steps: of the preprocessor that are known.

    Returns:
        Shift and scale, x = shift + scale * normalised; None where states are not normalised.

    Raises:
        CheckpointError: statistics are missing, or no statistics; a step or a mode is not supported.
    """
    one = _normaliser(folder, "pre", mapping, steps)
    if one is None:
        if mapping.get("STATE", "IDENTITY") == "IDENTITY":
            return None
        raise CheckpointError(
            f"{folder} has no policy_preprocessor.json, whose statistics normalise {feature}: copy the files of the "
            "preprocessor (policy_preprocessor*) from where it was trained"
        )
    _refuse_visual(one)
    used = [one.numbers.get(f"{feature}.{name}") for name in NORMALIZATIONS[one.modes.get("STATE", "IDENTITY")]]
    size = next((len(value) for value in used if value is not None and value.ndim), 0)  # not that of the count
    pair, mode = _pair(one, "STATE", feature, size)
    return None if mode == "IDENTITY" else pair


def _refuse_visual(*found: Normaliser) -> None:
    for one in found:
        if (visual := one.modes.get("VISUAL", "IDENTITY")) != "IDENTITY":
            raise CheckpointError(
                f"{one.file}: VISUAL is normalised by {visual}, which is not supported; pictures are taken as they are "
                "(IDENTITY)"
            )


def _pair(one: Normaliser, kind: str, feature: str, size: int) -> tuple[tuple[np.ndarray, np.ndarray], Normalization]:
    """Shift and scale of a feature, and how it is normalised."""
    named = kind == "ACTION" or one.only is None or feature in one.only
    mode = one.modes.get(kind, "IDENTITY") if named else "IDENTITY"
    numbers = {}
    for name in NORMALIZATIONS[mode]:
        value = one.numbers.get(f"{feature}.{name}")
        numbers[name] = _numbers(value, size, one.file, f"{feature}.{name}", "the statistics", feature)
    if mode != "IDENTITY":
        low, high = ((f"{feature}.{name}", value) for name, value in numbers.items())
        low = ("zero", np.zeros(size)) if mode == "MEAN_STD" else low
        _check_order(low, high, np.ones(size, np.bool_), one.file, action=kind == "ACTION")
    unused = kind == "ACTION" and mode == "MEAN_STD"  # LeRobot multiplies by the deviation alone
    return affine(mode, numbers, size, eps=_EPS if unused else one.eps), mode


def instruction_length(folder: Path, config: LeRobotConfig) -> int | None:
    """Ids that an instruction is cut off after, as the processor of the checkpoint says; None: never."""
    steps = _steps(folder / "policy_preprocessor.json", _STEPS["pre"])
    given = next((step.config for step in steps if step.registry_name == "tokenizer_processor"), {})
    if not given.get("truncation", True):
        return None
    length = given.get("max_length", config.tokenizer_max_length)
    if not isinstance(length, int) or length < 1:
        raise CheckpointError(
            f"{folder / 'policy_preprocessor.json'}: max_length of tokenizer_processor is {length!r}; it must be a "
            "whole number from 1 on"
        )
    return length


class Normaliser(NamedTuple):
    """A (un)normalising step of LeRobot.

    Attributes:
        file: that says so.
        modes: by kind of feature.
        numbers: statistics by `feature.name`.
        eps: that stands for a difference of 0.
        only: observations that are normalised; None: all.
    """

    file: Path
    modes: Mapping[str, Normalization]
    numbers: Mapping[str, Tensor]
    eps: float = _EPS
    only: Sequence[str] | None = None


class _Step(BaseModel):
    registry_name: str | None = None
    name: str | None = Field(None, alias="class")
    config: dict[str, Any] = {}
    state_file: str | None = None


class _Pipeline(BaseModel):
    steps: list[_Step]


class _NormaliserConfig(BaseModel):
    eps: PositiveFloat = _EPS
    norm_map: dict[str, Normalization]
    normalize_observation_keys: list[str] | None = None


def _steps(file: Path, known: Sequence[str]) -> list[_Step]:
    """The steps of a processor's file, all of which are known; none without the file."""
    if not file.is_file():
        return []
    steps = checked(_Pipeline, json_object(file), file).steps
    for step in steps:
        off = step.config.get("enabled") is False
        if (step.registry_name or (step.name or "").rpartition(".")[2]) not in known and not off:
            raise CheckpointError(
                f"{file}: the step {step.registry_name or step.name} is not supported; known are {', '.join(known)}"
            )
    return steps


def _normaliser(
    folder: Path, side: str, own: Mapping[str, Normalization], steps: Sequence[str] | None = None
) -> Normaliser | None:
    """The normalising step of a side of the processors in a folder; None where the folder has none."""
    file, name = folder / f"policy_{side}processor.json", {"pre": "normalizer_processor"}.get(side, _STEPS["post"][0])
    if not file.is_file():
        # nothing says which file it is but its name
        files = sorted(folder.glob(f"policy_{side}processor_step_*_{name}.safetensors"))
        return Normaliser(files[-1], own, _tensors(files[-1])) if files else None
    step = next((step for step in _steps(file, steps or _STEPS[side]) if step.registry_name == name), None)
    if step is None:
        raise CheckpointError(f"{file} has no step {name}; take a checkpoint with the processors that LeRobot writes")
    config = checked(_NormaliserConfig, step.config, file, f"{name}.config.")
    if step.state_file is None:
        return Normaliser(file, config.norm_map, {}, config.eps, config.normalize_observation_keys)
    state = folder / Path(step.state_file).name
    if not state.is_file():
        raise CheckpointError(f"{file} names {step.state_file}, which is not there: copy it into {folder}")
    return Normaliser(state, config.norm_map, _tensors(state), config.eps, config.normalize_observation_keys)


def _tensors(file: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    with boundary(CheckpointError, f"{file} cannot be read"):
        found: dict[str, Tensor] = load_file(file)
    return found


def _mode(folders: Sequence[Path], side: str, kind: str, own: Mapping[str, Normalization]) -> Normalization:
    """How a kind of feature is normalised, by the newest processors that say so, else by the configuration."""
    name = {"pre": "normalizer_processor"}.get(side, _STEPS["post"][0])
    for file in (folder / f"policy_{side}processor.json" for folder in reversed(folders)):
        for step in _steps(file, _STEPS[side]):
            if step.registry_name == name:
                found = checked(_NormaliserConfig, step.config, file, f"{name}.config.")
                _refuse_visual(Normaliser(file, found.norm_map, {}))
                return found.norm_map.get(kind, "IDENTITY")
    _refuse_visual(Normaliser(folders[0] / "config.json", own, {}))
    return own.get(kind, "IDENTITY")


def _is_statistic(name: str) -> bool:
    """Whether a weight of an older checkpoint is a statistic."""
    return name.startswith(("normalize_", "unnormalize_")) and ".buffer_" in name


def _among_weights(stored: dict[str, Tensor], folder: Path, own: Mapping[str, Normalization]) -> Normaliser:
    """The statistics of older checkpoints, taken out of the weights; names may hold that of a robot, too."""
    found: dict[str, Tensor] = {}
    for name in [key for key in stored if _is_statistic(key)]:
        group, _, rest = name.partition(".buffer_")
        if group.partition(".")[0] not in ("normalize_inputs", "normalize_targets", "unnormalize_outputs"):
            continue
        feature, _, number = rest.rpartition(".")
        key, value = f"{feature.replace('observation_state', 'observation.state')}.{number}", stored.pop(name)
        if key in found and not found[key].equal(value):
            raise CheckpointError(
                f"{folder}: the weights have several statistics {key} that differ, one of them {name}; take a "
                "checkpoint that was fine-tuned on one data set"
            )
        found[key] = value
    return Normaliser(folder / "model.safetensors", own, found)


def _numbers(
    value: Any, size: int, file: Path, key: str, whose: str, part: str, used: np.ndarray | None = None
) -> np.ndarray:
    """(size,) float64 numbers of a statistic, finite where they are used."""
    if value is None:
        raise CheckpointError(f"{file} has no {key}; {_NEXT}")
    if isinstance(value, Tensor):
        found = value.double().numpy()
    else:
        plain = isinstance(value, list) and all(type(x) in (int, float, type(None)) for x in value)
        if not plain:
            raise CheckpointError(f"{file}: {key} is not a list of numbers; {_NEXT}")
        found = np.array([np.nan if x is None else float(str(x)) for x in value])  # of integers beyond float64, inf
    if found.shape != (size,):
        have = len(found) if found.ndim == 1 else found.shape
        raise ConfigError(f"{file}: {whose} have {have} {part} numbers, the environment has {size} ({key})")
    with np.errstate(over="ignore"):
        wrong = ~np.isfinite(found.astype(np.float32)) & (True if used is None else used)
    if wrong.any():
        place = int(np.flatnonzero(wrong)[0])
        raise CheckpointError(f"{file}: {key}[{place}] is {found[place]}, which is not finite; {_NEXT}")
    return np.asarray(found)


def _mask(value: Any, size: int, file: Path, key: str) -> np.ndarray:
    """(size,) bool: numbers that are normalised; without a mask all are."""
    if value is None:
        return np.ones(size, dtype=np.bool_)
    if not isinstance(value, list) or any(x not in (0, 1) for x in value) or len(value) != size:
        raise CheckpointError(f"{file}: {key} must be {size} times true or false, it is {value}; {_NEXT}")
    return np.array(value, dtype=np.bool_)


def _check_order(
    low: tuple[str, np.ndarray], high: tuple[str, np.ndarray], used: np.ndarray, file: Path, *, action: bool
) -> None:
    """Refuse bounds, each with its key, in the wrong order where they are used, and actions that are all equal."""
    (below, lowest), (above, highest) = low, high
    if (wrong := used & (lowest > highest)).any():
        place = int(np.flatnonzero(wrong)[0])
        raise CheckpointError(f"{file}: {above}[{place}] is {highest[place]}, below {below} ({lowest[place]}); {_NEXT}")
    if action and used.any() and (lowest == highest)[used].all():
        raise CheckpointError(f"{file}: {above} equals {below} in every number, so all actions would be equal; {_NEXT}")
