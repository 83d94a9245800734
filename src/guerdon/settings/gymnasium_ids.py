"""Ids of Gymnasium environments, read in its registry; no environment is made.

known_id("FetchReach-v4")  # gymnasium_robotics:FetchReach-v4
time_limit("CartPole-v1")  # 500
"""

from __future__ import annotations

import importlib
import re
from contextlib import suppress
from importlib.util import find_spec

from guerdon.errors import ConfigError, boundary

GAMES = ("gymnasium_robotics", "minigrid", "ale_py", "gym_hil")  # packages of the extra that register environments


def known_id(env_id: str) -> str:
    """The id, as `package:id` where it is of one of `GAMES`, which are imported where Gymnasium does not know it."""
    import gymnasium

    if ":" in env_id:
        return env_id
    for package in ("", *filter(find_spec, GAMES)):
        if package:
            _import(package)
        with suppress(gymnasium.error.Error):  # making the environment says what is wrong with it
            owner = re.split("[.:]", str(gymnasium.spec(env_id).entry_point))[0]
            return f"{owner}:{env_id}" if owner in GAMES else env_id
    return env_id


def time_limit(env_id: str) -> int | None:
    """Steps after which an environment of Gymnasium ends an episode, by its registration; None: it has no limit.

    An id of the form `module:id` imports the module, which may register it.

    Raises:
        LookupError: the id is not registered.
    """
    import gymnasium
    from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

    module, _, name = env_id.rpartition(":")
    if module:
        _import(module)
    try:
        namespace, base, version = parse_env_id(name)
    except gymnasium.error.Error as error:
        raise LookupError(env_id) from error
    newest = find_highest_version(namespace, base) if version is None else version
    limit = gymnasium.registry[get_env_id(namespace, base, newest)].max_episode_steps
    return limit if limit is not None and limit > 0 else None


def _import(module: str) -> None:
    """Import a module, if that is possible: making the environment says what is wrong with it."""
    with suppress(ConfigError), boundary(ConfigError, module):
        importlib.import_module(module)
