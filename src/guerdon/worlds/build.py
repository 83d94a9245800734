"""From the `env` section of a configuration to a `World`.

This module does not know what the world is used for.
"""

from __future__ import annotations

from collections.abc import Sequence

from guerdon.errors import ConfigError
from guerdon.settings.world import EnvSettings
from guerdon.worlds.camera import CameraPool, MuJoCoCamera
from guerdon.worlds.gymnasium_env import RenderEye, SceneEye, make_gymnasium_env, never_reports_success
from guerdon.worlds.metaworld import MetaWorldVectorEnv
from guerdon.worlds.world import SUCCESS_KEYS, World, own_readers, unreported


def check_success_reported(settings: EnvSettings, success_readers: Sequence[str] = ()) -> None:
    """Refuse what needs true success where the environment is known not to report it; nothing is made.

    Args:
        settings: the `env` section.
        success_readers: keys of the configuration, beside `env`'s own, that need true success.

    Raises:
        ConfigError: something needs it.
    """
    readers = [*own_readers(settings.native_reward, settings.end_on_success), *success_readers]
    silent = settings.type == "gymnasium" and settings.success_key is None and never_reports_success(settings.task)
    if readers and silent:
        raise ConfigError(unreported(f"env.task {settings.task}", readers, SUCCESS_KEYS))


def build_world(
    settings: EnvSettings,
    *,
    seed: int,
    num_envs: int | None = None,
    group_size: int = 1,
    success_readers: Sequence[str] = (),
) -> World:
    """Make the world that a configuration describes.

    Args:
        settings: the `env` section.
        seed: decides every reset.
        num_envs: overrides the section's number of copies.
        group_size: neighbouring copies that start every episode alike (GRPO).
        success_readers: keys of the configuration, beside `env`'s own, that need true success.

    Raises:
        ConfigError: an unknown task, camera or environment id; or something needs true success, and the environment
            is known not to report it.
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
    try:
        check_success_reported(settings, success_readers)
    except ConfigError:
        made.close()
        raise
    return World(
        made,
        [settings.task_text or settings.task] * copies,
        seed=seed,
        eye=RenderEye(made, settings.frame_size),
        end_on_success=settings.end_on_success,
        native_reward=settings.native_reward,
        success_keys=SUCCESS_KEYS if settings.success_key is None else (settings.success_key,),
        success_readers=success_readers,
        group_size=group_size,
        pixels=settings.observation == "pixels",
    )
