"""True success as an environment reports it in `info`, and the message where something needs a report that is missing.

success_from_info(info, 0, keys=("success",))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from guerdon.errors import DataError

SUCCESS_KEYS = ("success", "is_success", "next.success")


def success_from_info(info: dict[str, Any], index: int, keys: Sequence[str] = SUCCESS_KEYS) -> bool | None:
    """True success of copy `index` by the info of a vector environment.

    Args:
        info: as `VectorEnv.step` gives it: arrays over copies, and masks `_<key>` of the copies that have the key.
        index: the copy.
        keys: the first of these that the copy has is read; a number above 0 is a success.

    Returns:
        None where the copy has none of the keys at this step, or its value is None or not finite.

    Raises:
        DataError: the value is neither a bool nor a number.
    """
    for key in keys:
        if key not in info or (f"_{key}" in info and not info[f"_{key}"][index]):
            continue
        value = info[key] if isinstance(info[key], dict) else info[key][index]
        if value is None or isinstance(value, bool | np.bool_):
            return None if value is None else bool(value)
        number = np.asarray(value)
        if number.size != 1 or number.dtype.kind not in "biuf":
            shown = str(value)[:80] if isinstance(value, str | bytes | list | tuple | np.ndarray) else "no number"
            raise DataError(
                f"the environment's info[{key!r}] is {shown} ({type(value).__name__}): success is a bool, or a number "
                "that is above 0 for a success; name another key with env.success_key",
                field=key,
            )
        return bool(number.item() > 0) if np.isfinite(number.item()) else None
    return None


def own_readers(native_reward: str, end_on_success: bool) -> list[str]:
    """The keys of a world itself that need its environment to report success."""
    needs = {"native_reward: sparse": native_reward == "sparse", "end_on_success": end_on_success}
    return [key for key, needed in needs.items() if needed]


def unreported(what: str, readers: Sequence[str], keys: Sequence[str], info_keys: Sequence[str] | None = None) -> str:
    """The message for an environment that does not report the success that a configuration reads.

    Args:
        what: that did not report it.
        readers: keys of the configuration that read true success.
        keys: of `info` that were read.
        info_keys: keys that `info` had, where it is known.
    """
    had = "" if info_keys is None else f"; info had {', '.join(info_keys) or 'no keys'}"
    need = "need" if len(readers) > 1 else "needs"
    return (
        f"{what} does not report success, which {' and '.join(readers)} {need}: info has no value at "
        f"{' or '.join(keys)}{had}. Set env.success_key to the key that says so; without one, true success is unknown: "
        "set env.native_reward=dense and leave out what reads true success"
    )
