"""From the `env` section of a configuration to a `World`.

This module does not know what the world is used for.
"""

from __future__ import annotations

from guerdon.settings.world import EnvSettings
from guerdon.worlds.camera import CameraPool, MuJoCoCamera
from guerdon.worlds.gymnasium_env import RenderEye, SceneEye, make_gymnasium_env
from guerdon.worlds.metaworld import MetaWorldVectorEnv
from guerdon.worlds.world import World


def build_world(settings: EnvSettings, *, seed: int, num_envs: int | None = None, group_size: int = 1) -> World:
    """Make the world that a configuration describes.

    Args:
        settings: the `env` section.
        seed: decides every reset.
        num_envs: overrides the section's number of copies.
        group_size: neighbouring copies that start every episode alike (GRPO).

    Raises:
        ConfigError: an unknown task, camera or environment id.
        MissingDependencyError: the simulator is not installed.
    """
    copies = num_envs or settings.num_envs
    if settings.type == "metaworld":
        env = MetaWorldVectorEnv(settings.task, copies, goals_seed=settings.goals_seed)
        model = env.simulation_model
        camera = (
            CameraPool(model, settings.camera, settings.frame_size, settings.render_workers)
            if settings.render_workers
            else MuJoCoCamera(model, settings.camera, settings.frame_size)
        )
        return World(
            env,
            [settings.task_text or env.task_text] * copies,
            seed=seed,
            eye=SceneEye(env, camera),
            max_episode_steps=settings.max_episode_steps,
            end_on_success=settings.end_on_success,
            native_reward=settings.native_reward,
            group_size=group_size,
            pixels=settings.observation == "pixels",
        )
    made = make_gymnasium_env(
        settings.task,
        copies,
        vectorization=settings.vectorization,
        autoreset=settings.autoreset_mode,
        max_episode_steps=settings.max_episode_steps,
        kwargs=dict(settings.kwargs),
    )
    return World(
        made,
        [settings.task_text or settings.task] * copies,
        seed=seed,
        eye=RenderEye(made, settings.frame_size),
        end_on_success=settings.end_on_success,
        native_reward=settings.native_reward,
        group_size=group_size,
        pixels=settings.observation == "pixels",
    )
