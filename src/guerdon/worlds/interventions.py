"""Actions of somebody else in place of the policy's, as an environment reports them in `info`: HIL-SERL, 2410.21845.

`info["is_intervention"]` says that a person (or a script) acted, and `info["teleop_action"]` what was executed then.

    found = interventions(info, actions, names=NAMES, ended=ended)   # None: the environment does not report them
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from guerdon.errors import ConfigError
from guerdon.processes.progress import log_line
from guerdon.types import BoolArray
from guerdon.worlds.spaces import choices, executable

NAMES = {"is_intervention": "is_intervention", "teleop_action": "teleop_action"}
"""What is read, and by which keys of `info`."""
_OUTSIDE = 1e-3  # by which an action is outside of its space
_PATIENCE = 500  # steps without a named report, until a line says so


def on_policy_refuses(what: str) -> str:
    """The message for an on-policy run in which somebody else acts."""
    return (
        f"{what} reports that somebody else acts in place of the policy (is_intervention), and algorithm.type control "
        "learns from the policy's own actions alone: take algorithm.type sac or dqn"
    )


class Interventions:
    """What a vector environment reports of interventions, step by step.

    Attributes:
        reported: it has said of a step whether somebody else acted.
        by_people: these episodes cannot be replayed: people do not act the same again.
        outside: actions of somebody else that are not within the action space.

    Args:
        env: the copies; those with `repeats_interventions` are of a script, which acts the same again.
        names: keys of `info`, where they have other names than `NAMES`.
    """

    def __init__(self, env: VectorEnv, names: Mapping[str, str]) -> None:
        self._env, self._names = env, NAMES | dict(names)
        self.reported, self.by_people, self._silent = False, False, 0
        self.outside = 0

    def executed(
        self, info: Mapping[str, Any], actions_B_A: np.ndarray, mask_B: BoolArray, ended_B: BoolArray
    ) -> tuple[np.ndarray, BoolArray]:
        """(B, A) what was executed, and (B,) where that was somebody else's action.

        Args:
            info: of the step.
            actions_B_A: of the policy.
            mask_B: copies that took an action.
            ended_B: copies whose episode ended.
        """
        inside = ended_B & (self._env.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP)
        start = getattr(self._env, "action_start", 0)
        found = interventions(info, actions_B_A, names=self._names, ended=inside, start=start)
        if found is None:
            own = NAMES["is_intervention"]
            named = self._names["is_intervention"]
            if named != own and (own in info or own in info.get("final_info", {})):
                raise ConfigError.about(
                    "env.info_keys", f"names info[{named!r}], and the environment reports {own}: remove it"
                )
            self._silent += 1
            if named != own and not self.reported and self._silent == _PATIENCE:
                log_line(
                    f"[env] env.info_keys names info[{named!r}], which {_PATIENCE} steps have not had: nobody "
                    "intervened, or the key has another name"
                )
            return actions_B_A, np.zeros(len(actions_B_A), dtype=np.bool_)
        self.reported = True
        self.by_people = not getattr(self._env, "repeats_interventions", False)
        intervened = found[0] & mask_B
        wanted = np.where(intervened[:, None], found[1], actions_B_A)
        counts = choices(self._env.single_action_space)
        if counts is not None and (outside := intervened & ((wanted < 0) | (wanted >= counts)).any(axis=1)).any():
            copy = int(np.flatnonzero(outside)[0])
            key = self._names["teleop_action"]
            told = (found[1][copy] + start).astype(int).tolist()
            raise ConfigError(f"info[{key!r}] is {told} in copy {copy}: there is no such action")
        kept = executable(wanted, self._env.single_action_space)
        beyond = intervened & (np.abs(wanted - kept) > _OUTSIDE).any(axis=1)
        if counts is None and beyond.any():
            self._name_outside(wanted[beyond][0], int(beyond.sum()))
            kept = np.where(beyond[:, None], wanted, kept).astype(kept.dtype)  # what was executed
        return kept, intervened

    def close(self) -> None:
        """Say how many actions were outside of the action space, where there were several."""
        if self.outside > 1:
            log_line(f"[env] {self.outside} actions of somebody else were outside of the action space")
        self.outside = 0

    def _name_outside(self, action_A: np.ndarray, count: int) -> None:
        """Count actions outside of the action space, the first one with a line."""
        if not self.outside:
            numbers = ", ".join(f"{x:.4g}" for x in action_A)
            log_line(
                f"[env] info[{self._names['teleop_action']!r}] is [{numbers}], outside of the action space: it is kept "
                "as it was executed, and others are counted; are they in the environment's units?"
            )
        self.outside += count


def interventions(
    info: Mapping[str, Any], actions_B_A: np.ndarray, *, names: Mapping[str, str], ended: BoolArray, start: Any = 0
) -> tuple[BoolArray, np.ndarray] | None:
    """Where somebody else acted, and the actions that were executed.

    Args:
        info: of a vector environment's step.
        actions_B_A: of the policy.
        names: `NAMES`, or others.
        ended: (B,) bool, copies whose report is in `final_info`, where there is one (autoreset SAME_STEP).
        start: the lowest values of discrete actions in the environment's own numbers.

    Returns:
        (B,) bool and (B, A); None where no copy reports anything.

    Raises:
        ConfigError: somebody acted, and the report does not say how.
    """
    flag = names["is_intervention"]
    given = names["teleop_action"]
    finals = info.get("final_info", {})
    if flag not in info and flag not in finals:
        return None
    found = np.zeros(len(actions_B_A), np.bool_)
    executed = actions_B_A.copy()
    for i in range(len(found)):
        own = finals if ended[i] and finals else info
        found[i] = _is_true(of_copy(own, flag, i), flag)
        if not found[i]:
            continue
        action = of_copy(own, given, i)
        try:
            executed[i] = np.asarray(action, np.float64).reshape(executed[i].shape) - start
            whole = bool(np.isfinite(np.asarray(action, np.float64)).all())
        except (TypeError, ValueError):
            whole = False
        if not whole:
            said = "nothing" if action is None else repr(action)[:80]
            raise ConfigError(
                f"the environment reports an intervention (info[{flag!r}]) in copy {i}, and info[{given!r}] says "
                f"{said}, not the {executed[i].size} numbers of the action that was executed: name its key with "
                "env.info_keys",
                key="env.info_keys",
            )
    return found, executed


def of_copy(info: Mapping[str, Any], key: str, index: int) -> Any:
    """The value that a copy reports; None where it reports none."""
    if key not in info or (f"_{key}" in info and not info[f"_{key}"][index]):
        return None
    return info[key][index]


def _is_true(value: Any, key: str) -> bool:
    """Whether a report says yes.

    Raises:
        ConfigError: it is neither a bool nor a number.
    """
    number = np.asarray(0 if value is None else value)
    if number.size != 1 or number.dtype.kind not in "biuf":
        raise ConfigError(
            f"the environment's info[{key!r}] is {str(value)[:80]!r}: whether somebody intervened is a bool, or a "
            "number above 0; name another key with env.info_keys",
            key="env.info_keys",
        )
    return bool(number.item() > 0)
