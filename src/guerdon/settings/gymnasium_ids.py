"""Ids of Gymnasium environments: the packages that register them, and their time limits; no environment is made.

known_id("FetchReach-v4")  # gymnasium_robotics:FetchReach-v4
time_limit("CartPole-v1")  # 500
"""

from __future__ import annotations

import importlib
import re
from contextlib import suppress

from guerdon.config.modules import users_modules
from guerdon.errors import ConfigError, boundary

GAMES = {
    "gymnasium_robotics": "Fetch|HandReach|HandManipulate|Adroit|FrankaKitchen|PointMaze|AntMaze",
    "minigrid": "MiniGrid-|BabyAI-",
    "ale_py": r"ALE/|\w+NoFrameskip-",
    "gym_hil": "gym_hil/",
}
"""Packages of the extra `games`, with the beginnings of the ids that they register on import."""


def known_id(env_id: str) -> str:
    """The id, as `package:id` where it is of one of `GAMES`."""
    return next((f"{package}:{env_id}" for package, begin in GAMES.items() if re.match(begin, env_id)), env_id)


def time_limit(env_id: str) -> int | None:
    """Steps after which an environment of Gymnasium ends an episode, by its registration; None: it has no limit.

    An id of the form `module:id` imports the module, which may register it.

    Raises:
        LookupError: the id is not registered.
    """
    import gymnasium
    from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

    module, _, name = env_id.rpartition(":")
    # where the import fails, making the environment says what is wrong
    with suppress(ConfigError), boundary(ConfigError, module), users_modules():
        if module:
            importlib.import_module(module)
    try:
        namespace, base, version = parse_env_id(name)
    except gymnasium.error.Error as error:
        raise LookupError(env_id) from error
    newest = find_highest_version(namespace, base) if version is None else version
    limit = gymnasium.registry[get_env_id(namespace, base, newest)].max_episode_steps
    return limit if limit is not None and limit > 0 else None
