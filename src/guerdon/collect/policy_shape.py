"""What a policy must fit: plain data of a world, from which a policy can be built in any process.

policy = policy_of_shape(study.control_policy, PolicyShape.of(world), heads=("env",), auxiliary=(), seed=0)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import gymnasium

from guerdon.policies.robots.control import build_policy
from guerdon.policies.robots.robot import RobotPolicy
from guerdon.processes.progress import log_once
from guerdon.settings.policy import CNNPolicySettings, ControlPolicySettings, MLPPolicySettings
from guerdon.worlds.spaces import ObservedColumn, chosen_columns
from guerdon.worlds.world import World

_SIDE = 16  # pixels of both sides of a picture that convolutions look at by default


def fitting(settings: ControlPolicySettings, columns: Sequence[ObservedColumn]) -> ControlPolicySettings:
    """The `policy` section where it gives no type: cnn where pictures are observed, else as it is."""
    if not isinstance(settings, MLPPolicySettings) or "type" in settings.model_fields_set:
        return settings
    seen = chosen_columns(columns, settings.keys, "policy.keys")
    pictured = any(column.kind == "image" and min(column.shape[:2]) >= _SIDE for column in seen)
    given = settings.model_dump(exclude_unset=True)
    if not pictured or not given.keys() <= CNNPolicySettings.model_fields.keys():
        return settings
    log_once("[policy] pictures are observed: policy.type is cnn")
    return CNNPolicySettings(**given)


class PolicyShape(NamedTuple):
    """What a policy must fit.

    Attributes:
        observation_shape: of what one copy shows.
        action_space: of one copy.
        proprioception_size: numbers that the robot measures of itself.
        columns: what a copy shows a policy, by key.
        own_columns, cameras: what reward models can look at: of the world (`World.own_columns`, `World.cameras`).
    """

    observation_shape: tuple[int, ...]
    action_space: gymnasium.Space
    proprioception_size: int
    columns: tuple[ObservedColumn, ...]
    own_columns: tuple[ObservedColumn, ...] = ()
    cameras: tuple[str, ...] = ()

    @classmethod
    def of(cls, world: World) -> PolicyShape:
        """What a policy of a world must fit."""
        measured = len(world.proprioception)
        shown = world.columns, world.own_columns, world.cameras
        return cls(world.observation_shape, world.action_space, measured, *shown)


def policy_of_shape(
    settings: ControlPolicySettings,
    shape: PolicyShape,
    *,
    heads: Sequence[str],
    auxiliary: Sequence[str],
    seed: int,
    algorithm: str = "control",
) -> RobotPolicy:
    """A policy that fits an environment, with weights drawn from the seed.

    Args:
        settings: the `policy` section.
        shape: what it must fit.
        heads: names of its value heads.
        auxiliary: names of its auxiliary heads.
        seed: of the run.
        algorithm: see `build_policy`.
    """
    return build_policy(
        fitting(settings, shape.columns),
        shape.observation_shape,
        shape.action_space,
        sources=heads,
        auxiliary=auxiliary,
        seed=seed,
        proprioception_size=shape.proprioception_size,
        columns=shape.columns,
        algorithm=algorithm,
    )
