"""`guerdon play RUN`: what the policy of a run does, in episodes or in responses. Nothing heavy is imported before.

guerdon play runs/CartPole-v1/ppo-seed0 --episodes 5 --video cartpole.mp4
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

import typer

from guerdon.errors import ConfigError, needs
from guerdon.processes.progress import log_line

if TYPE_CHECKING:
    import gymnasium
    import numpy as np

    from guerdon.policies.robots.robot import RobotPolicy
    from guerdon.settings.study import Study
    from guerdon.types import ByteArray
    from guerdon.worlds.world import World

LOWEST = 256  # pixels of the height of a picture, at least; smaller ones are enlarged by a whole factor
SIZE = (480, 480)  # of pictures that are drawn for people, where the policy sees none
FPS = 30  # where the environment does not say
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")


def play(
    run: Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)],
    episodes: Annotated[int, typer.Option(min=1, help="How many; of a language model: prompts.")] = 3,
    video: Annotated[Path | None, typer.Option(help="Write the episodes to this MP4 file instead of a window.")] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Of the starts; default 0. Of a language model: responses are drawn with it."),
    ] = None,
) -> None:
    """Show the policy of a run in its environment, or record it, and print returns; of a language model, responses."""
    study = study_of(run)
    if study.text:
        if video is not None:
            raise ConfigError(
                f"--video {video}: the policy of {run} writes text, which is printed; remove it", key="--video"
            )
        lines = _answers(study, run, episodes, seed)
    else:
        if video is not None and video.suffix.lower() != ".mp4":
            raise ConfigError(
                f"--video {video}: an MP4 file is written; give it a name that ends in .mp4", key="--video"
            )
        lines = _episodes(study, run, episodes, video, seed or 0)
    for line in lines:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def study_of(run: Path) -> Study:
    """The configuration of a run that has a policy.

    Raises:
        ConfigError: the folder is no run, or its policy is not written yet.
    """
    from guerdon.config.loading import load
    from guerdon.settings.study import Study

    config = run / "config.yaml"
    if not config.is_file():
        inside = sorted(path.parent for path in run.rglob("config.yaml")) if run.is_dir() else []
        hint = f"; it holds the runs {', '.join(map(str, inside[:4]))}{', ...' if len(inside) > 4 else ''}"
        raise ConfigError(f"{run} is no folder of a run: it has no config.yaml{hint if inside else ''}")
    if not (run / "policy").is_dir():
        raise ConfigError(
            f"{run} has no policy yet: a run writes it at its end. Continue the run by its own command with --resume"
        )
    return load(Study, config)


@contextmanager
def _modules_of(run: Path) -> Iterator[None]:
    """Inside the block modules are found in the folder where the run was started, too."""
    from guerdon.config.modules import also_in
    from guerdon.rl.run import modules_of

    with also_in(modules_of(run)):
        yield


# Robots.


class _Screen(Protocol):
    """Where pictures go."""

    def show(self, picture: ByteArray) -> None:
        """Show one."""

    def close(self, *, whole: bool) -> None:
        """Finish; `whole`: all episodes were shown."""


class _Video:
    """An MP4 file, which appears whole when it is closed."""

    def __init__(self, path: Path, fps: int) -> None:
        self._path, self._fps = path, fps
        self._part = path.with_name(f".{path.name}.part")
        self._writer: Any = None

    def show(self, picture: ByteArray) -> None:
        """Add a picture; the first one decides the size."""
        from guerdon.episodes.video import VideoWriter

        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            height, width = picture.shape[:2]
            self._writer = VideoWriter(self._part, height=height, width=width, fps=self._fps)
        self._writer.add(picture[None])

    def close(self, *, whole: bool) -> None:
        """Finish the file; there is none without all episodes."""
        if self._writer is None:
            return
        try:
            self._writer.close()
            if whole:
                os.replace(self._part, self._path)
        finally:
            self._part.unlink(missing_ok=True)


class _Window:
    """A window of pygame, which shows pictures at the pace of the environment."""

    def __init__(self, title: str, fps: int) -> None:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        with needs("a window needs pygame: pip install 'guerdon[gymnasium]', or add --video FILE"):
            import pygame

        self._pygame, self._title, self._fps = pygame, title, fps
        self._clock = pygame.time.Clock()
        self._surface: Any = None

    def show(self, picture: ByteArray) -> None:
        """Show a picture; a window that is closed ends the command."""
        pygame = self._pygame
        if self._surface is None:
            pygame.display.init()
            pygame.display.set_caption(self._title)
            self._surface = pygame.display.set_mode(picture.shape[1::-1])
        if any(event.type == pygame.QUIT for event in pygame.event.get()):
            raise KeyboardInterrupt
        pygame.surfarray.blit_array(self._surface, picture.swapaxes(0, 1))
        pygame.display.flip()
        self._clock.tick(self._fps)

    def close(self, *, whole: bool) -> None:
        """Close the window."""
        self._pygame.display.quit()


def _episodes(study: Study, run: Path, episodes: int, video: Path | None, seed: int) -> Iterator[str]:
    """Play episodes; a line for each, and one for all."""
    from guerdon.policies.robots.control import load_policy
    from guerdon.worlds.build import build_world

    policy, has_screen = load_policy(run / "policy"), _has_screen()
    with _modules_of(run), closing(build_world(_alone(study, policy), seed=seed)) as world, ExitStack() as stack:
        screen = _screen(world, study, video, has_screen=has_screen)
        if screen is not None:
            stack.push(lambda kind, *_: screen.close(whole=kind is None))
        world.takes_pictures = screen is not None
        policy.check_fits(world.observation_shape, world.action_space, world.columns)
        found: list[_Played] = []
        for played in _played(world, policy, episodes, screen):
            found.append(played)
            yield f"episode {len(found)}: {played}"
        yield _summary(found)
    if video is not None:
        yield f"wrote {video}"


def _alone(study: Study, policy: RobotPolicy) -> Any:
    """The `env` section for one copy, with pictures for people where the policy sees none."""
    env = study.env.of_copies(range(1))
    sees = env.observation == "pixels" or policy.observation_spec is not None
    off: dict[str, Any] = {"use_curriculum": False} | ({} if sees else {"frame_size": SIZE})
    return env.model_copy(update={name: value for name, value in off.items() if name in type(env).model_fields})


def _has_screen() -> bool:
    """Whether a window can be seen here; asked before a world is made, which has pygame draw without a screen."""
    return not sys.platform.startswith("linux") or not os.environ.keys().isdisjoint(_SCREENS)


def _screen(world: World, study: Study, video: Path | None, *, has_screen: bool) -> _Screen | None:
    """Where pictures go; None: nowhere, and a line says why."""
    from guerdon.worlds.eye import cannot_draw

    copies = getattr(world.env.unwrapped, "envs", None)
    metadata = copies[0].metadata if copies else world.env.metadata
    fps = int(metadata.get("render_fps") or FPS)
    if cannot_draw(world.eye):
        if video is not None:
            raise ConfigError(
                f"--video {video}: {study.task_name} draws no pictures (it has no render); remove it", key="--video"
            )
        log_line(f"{study.task_name} draws no pictures: returns alone are shown")
        return None
    if video is not None:
        return _Video(video, fps)
    if not has_screen:
        log_line("this machine has no screen: returns alone are shown; --video FILE records the episodes")
        return None
    return _Window(study.task_name, fps)


class _Played(NamedTuple):
    """An episode.

    Attributes:
        total: sum of the environment's own rewards.
        steps: actions.
        success: None where the environment does not report it.
    """

    total: float
    steps: int
    success: bool | None

    def __str__(self) -> str:
        words = {True: "success", False: "no success", None: "success unknown"}
        return f"return {self.total:.4g} in {self.steps} steps, {words[self.success]}"


def _played(world: World, policy: RobotPolicy, episodes: int, screen: _Screen | None) -> Iterator[_Played]:
    """Play episodes with the most likely actions; one whose simulator breaks is begun again, and a line says so."""
    import numpy as np
    import torch

    from guerdon.collect.stepping import steps

    always = np.ones(1, dtype=np.bool_)
    world.show(policy.observation_spec)
    act = _actor(world, policy)
    with torch.no_grad(), policy.acting():
        start = world.reset(capture=always)
        _show(world, screen, start.first_looks)
        capture = None if screen is None else lambda rows: always
        total, count, reached, left = 0.0, 0, False, episodes
        for step in steps(world, act, start.observations, capture=capture):
            transition = step.transition
            if 0 in transition.failures:
                log_line(f"the simulator broke, and the episode begins again: {transition.failures[0]}")
                total, count, reached = 0.0, 0, False
                continue
            total, count = total + float(transition.own_rewards[0]), count + int(transition.mask[0])
            reached |= bool(transition.success[0])
            _show(world, screen, transition.looks)
            if not transition.done[0]:
                continue
            yield _Played(total, count, True if reached else transition.success_of(0))
            left -= 1
            if left == 0:
                return
            total, count, reached = 0.0, 0, False
            _show(world, screen, transition.first_looks)


def _actor(world: World, policy: RobotPolicy) -> Callable[[np.ndarray], np.ndarray]:
    """The most likely actions of a policy."""
    import numpy as np

    from guerdon.collect.stepping import ActionQueue

    actor, rng = policy.actor(), np.random.default_rng(0)
    if policy.in_parts:
        return ActionQueue(world, lambda shown: actor.act(shown, rng, greedy=True), policy.chunk)
    return lambda observations: np.asarray(actor.act(observations, rng, greedy=True).values)


def _show(world: World, screen: _Screen | None, looks: dict[int, Any]) -> None:
    """Show the picture of a moment, where there is a screen."""
    import numpy as np

    if screen is None or 0 not in looks:
        return
    picture = looks[0] if isinstance(looks[0], np.ndarray) else world.render([looks[0]])[0]
    factor = -(-LOWEST // picture.shape[0])
    screen.show(picture.repeat(factor, axis=0).repeat(factor, axis=1))


def _summary(found: list[_Played]) -> str:
    """All episodes in a line."""
    mean = sum(one.total for one in found) / len(found)
    known = [one.success for one in found if one.success is not None]
    success = f"success in {sum(known)} of {len(known)}" if known else "success unknown"
    return f"{len(found)} episodes: mean return {mean:.4g}, {success}"


# Language models.


def _answers(study: Study, run: Path, prompts: int, seed: int | None) -> Iterator[str]:
    """Answer the first validation prompts, or training prompts where there are none."""
    import numpy as np

    from guerdon.collect.text import TextCollector
    from guerdon.settings.data import run_prompts

    own = study.text_policy.model_copy(update={"path": str(run / "policy"), "tiny": None, "lora": None})
    with _modules_of(run), closing(TextCollector(run_prompts(study.data), study.generation, own, seed=0)) as collector:
        shown = (collector.prompts.validation or collector.prompts.train)[:prompts]
        collector.sampler.engine.sync()
        drawn = None if seed is None else np.random.default_rng(seed)
        rollout = collector.sampler.respond(shown, 1, np.arange(len(shown)), rng=drawn)
        failures = {row: why for row, _, why in rollout.failures}
        known, right = rollout.known_B, rollout.outcomes_B >= 1
        for row, (prompt, text) in enumerate(zip(shown, rollout.inputs.texts, strict=True)):
            yield f"prompt {row + 1}: {prompt.question}"
            yield f"response: {text}"
            if known[row]:
                yield f"verifier: {'right' if right[row] else 'wrong'}, the answer is {prompt.ground_truth}\n"
            else:
                yield f"verifier: not known whether it is right ({failures.get(row, 'the prompts have no answers')})\n"
        if known.any():
            yield f"{len(shown)} responses: right {int(right[known].sum())} of {int(known.sum())}"


# In the user's own code.


class LoadedPolicy:
    """The policy of a run, for an environment of your own: it takes observations as `env.step` returns them.

    A call gives the action for one observation, as `env.step` takes it: the most likely one, or with `greedy=False` one
    that is drawn. Observations with keys are plain dicts.
    """

    def __init__(self, policy: RobotPolicy, env: gymnasium.Env, study: Study, *, seed: int) -> None:
        import numpy as np

        from guerdon.worlds.spaces import of_one, own_columns

        self.policy = policy
        self._plain, self._rng = of_one(env, getattr(study.env, "show_as", None)), np.random.default_rng(seed)
        shape = tuple(self._plain.single_observation_space.shape or ())
        self._space = self._plain.single_action_space
        policy.check_fits(shape, self._space, own_columns(self._plain))

    def __call__(self, observation: Any, *, greedy: bool = True) -> Any:
        """The action for one observation."""
        import torch

        from guerdon.worlds.spaces import action_of_one, executable, row_of_one

        with torch.no_grad(), self.policy.acting():
            found = self.policy.act(row_of_one(self._plain, observation), self._rng, greedy=greedy).values
        return action_of_one(self._plain, executable(found, self._space))


def load_policy(run: str | Path, env: gymnasium.Env, *, seed: int = 0) -> LoadedPolicy:
    """The policy of a run, to act in an environment of your own.

    Args:
        run: the folder of the run.
        env: with the observations and actions of the environment that the policy was trained in.
        seed: of drawn actions.

    Raises:
        CheckpointError: the policy was made for other observations or actions.
        ConfigError: the folder is no run of a control policy, or the policy sees pictures that guerdon draws.
    """
    from guerdon.policies.robots import control

    folder = Path(run)
    study = study_of(folder)
    if study.text:
        raise ConfigError(f"{run}: the policy is a language model; transformers loads it from {folder / 'policy'}")
    policy = control.load_policy(folder / "policy")
    if study.env.observation == "pixels" or policy.observation_spec is not None or policy.in_parts:
        raise ConfigError(
            f"{run}: the policy sees what guerdon draws, or decides on several actions at once: use `guerdon play`"
        )
    return LoadedPolicy(policy, env, study, seed=seed)
