"""A state restored in a new process gives the steps of the one that saved it, bit for bit.

LIBERO and ManiSkill have this test in files of their own.
"""

import pytest

import corridor
from guerdon.settings.world import GymnasiumSettings, MetaWorldSettings
from restored import check_restored

GIVEN = {"num_envs": 2, "frame_size": (48, 64), "native_reward": "dense"}


@pytest.mark.slow
def test_metaworld():
    check_restored(*(MetaWorldSettings(task=task, **GIVEN) for task in ("hammer", "drawer-open", "peg-insert-side")))


@pytest.mark.slow
def test_gymnasium():
    tasks = ("HalfCheetah-v5", "Reacher-v5", "Pusher-v5")
    given = GIVEN | {"max_episode_steps": 100}
    toy = GymnasiumSettings(task=f"corridor:{corridor.ID}", kwargs={"stops": False}, **given)
    check_restored(*(GymnasiumSettings(task=task, **given) for task in tasks), toy)
