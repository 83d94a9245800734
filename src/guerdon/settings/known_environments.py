"""Settings of known environments: the rows of `known_environments.yaml`, with which `guerdon run ID` begins.

row = row_of("CartPole-v1", "dqn")
words_of(row.settings)  # ["env.num_envs=1", "policy.hidden=[256, 256]", ...]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from guerdon.config.tree import parse_yaml
from guerdon.settings.gymnasium_ids import GAMES

OTHERS = "*"  # in place of an id: environments without a row of their own
_FILE = "known_environments.yaml"
_NAMES = {"control": "PPO", "sac": "SAC", "dqn": "DQN"}


class KnownRow(NamedTuple):
    """Settings of an environment and an algorithm.

    Attributes:
        env_id: without the package that registers it; `OTHERS`.
        algorithm: `algorithm.type`.
        origin: `rl-zoo`, or `guerdon`.
        settings: dotted keys and values.
        returns: of the seeds 0, 1, ... with these settings; empty: nothing was run.
        zoo: the mean return that rl-zoo publishes for this version of the environment; None: for none.
    """

    env_id: str
    algorithm: str
    origin: str
    settings: Mapping[str, Any]
    returns: tuple[float, ...] = ()
    zoo: float | None = None

    def line(self, settings: Mapping[str, Any]) -> str:
        """What the start of a command says of the settings that are used."""
        whose = "RL Baselines3 Zoo's" if self.origin == "rl-zoo" else "guerdon's"
        which = "any environment" if self.env_id == OTHERS else self.env_id
        measured = ", ".join(f"{one:g}" for one in self.returns)
        shown = f"return by seed: {measured}" if self.returns else "settings only, not run"
        return f"[settings] {which}, {_NAMES[self.algorithm]}, {whose} ({shown}): {' '.join(words_of(settings))}"


def words_of(settings: Mapping[str, Any]) -> list[str]:
    """Settings as overrides of a study."""
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


@cache
def known_rows() -> tuple[KnownRow, ...]:
    """All rows, in the order of the file."""
    text = files("guerdon.settings").joinpath(_FILE).read_text(encoding="utf-8")
    return tuple(
        KnownRow(
            row.pop("id"), row.pop("algorithm"), row.pop("from"), row, tuple(row.pop("returns", ())),
            row.pop("zoo", None),
        )
        for row in parse_yaml(text, _FILE)[0]
    )  # fmt: skip


def row_of(env_id: str, algorithm: str | None) -> KnownRow | None:
    """The row of an environment, or that of all others; None where there is none.

    Args:
        env_id: may begin with the package that registers it.
        algorithm: `algorithm.type`; None: that of the first row of the environment.
    """
    package, _, name = env_id.rpartition(":")
    own = name if package in ("", "gymnasium", *GAMES) else env_id
    fitting = [row for row in known_rows() if row.env_id in (own, OTHERS) and algorithm in (None, row.algorithm)]
    return next((row for row in fitting if row.env_id == own or algorithm is not None), None)
