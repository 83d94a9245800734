"""`guerdon collect`: episodes of a mixture of actors, written in the background as a LeRobot data set.

This module does not know reward models.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.collect.recorder import Recorder
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import ConfigError
from guerdon.policies.experts import RandomActor, ScriptedExpert, checkpoint_actor
from guerdon.settings.study import ActorShare, Study
from guerdon.worlds.build import build_world
from guerdon.worlds.world import Transition, World


@dataclass(frozen=True)
class Collected:
    """What was written where."""

    path: Path
    episodes: int
    frames: int
    tried: int


def shares_to_counts(mixture: tuple[ActorShare, ...], episodes: int) -> list[int]:
    """Whole episodes per actor, in proportion to the shares, summing to `episodes` (largest remainder)."""
    total = sum(a.share for a in mixture)
    exact = [episodes * a.share / total for a in mixture]
    counts = [int(x) for x in exact]
    order = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in order[: episodes - sum(counts)]:
        counts[i] += 1
    return counts


def collect(study: Study) -> Collected:
    """Collect what the `collect` section asks for. A data set already there is continued, up to `episodes`.

    Raises:
        ConfigError: no `collect` section, or an expert for a world that has none.
    """
    settings = study.collect
    if settings is None:
        raise ConfigError("this configuration has no collect section: say at least collect.save_dir")
    total = tried = 0
    with EpisodeWriter(
        settings.save_dir,
        fps=settings.fps,
        camera=study.env.camera,
        video=settings.video,
        robot_type=study.env.type,
        only_success=settings.only_success,
    ) as writer:
        have = writer.num_episodes
        counts = shares_to_counts(settings.mixture, settings.episodes)
        for index, (share, count) in enumerate(zip(settings.mixture, counts, strict=True)):
            done = min(max(have - sum(counts[:index]), 0), count)
            if done == count:
                continue
            world = build_world(study.env, seed=settings.seed * 1000 + index * 100 + done)
            try:
                kept, seen = _collect_from(world, share, count - done, study, writer, index)
            finally:
                world.close()
            total += kept
            tried += seen
        writer.flush()
        return Collected(Path(settings.save_dir), writer.num_episodes, writer.num_frames, tried)


def _collect_from(
    world: World, share: ActorShare, wanted: int, study: Study, writer: EpisodeWriter, index: int
) -> tuple[int, int]:
    """Episodes of one actor; returns kept and tried."""
    settings = study.collect
    assert settings is not None
    actor = _actor(share, world, study)
    recorder = Recorder(
        world,
        writer,
        frame_every=settings.frame_every,
        keep_fail=0.0 if settings.only_success else 1.0,
        meta={
            "policy": share.type,
            "prefix": f"{share.type}-{index}",
            "env": study.env.task,
            "seed": settings.seed,
        },
        seed=settings.seed * 1000 + index,
        limit=wanted,
    )
    rng = np.random.default_rng([settings.seed, index])
    wander = RandomActor(world.action_space.low, world.action_space.high)
    after = np.full(world.num_envs, -1, dtype=np.int64)
    transition = world.reset()
    observations = transition.observations
    start = rng.integers(share.random_steps + 1, size=world.num_envs)
    error = _calibration_errors(share, observations.shape, rng)
    tried = 0
    while recorder.kept < wanted:
        for i in np.flatnonzero(world.steps_in_episode == start):
            recorder.begin(int(i), observations[i], _look_of(transition, int(i)))
        rows = world.steps_in_episode + 1 - start
        wandering = (rows <= 0)[:, None]
        actions = np.where(wandering, wander.act(observations, rng), actor.act(observations + error, rng))
        capture = np.array([r == 0 or (r > 0 and recorder.wants_row(int(r))) for r in rows])
        transition = world.step(actions, capture=capture, capture_ends=True)
        recorder.watch(rows, actions, transition)
        tried += int(transition.done.sum())
        start = np.where(transition.done, rng.integers(share.random_steps + 1, size=world.num_envs), start)
        error = np.where(transition.done[:, None], _calibration_errors(share, observations.shape, rng), error)
        if settings.stop_after_success is not None:
            after = np.where(after >= 0, after + 1, np.where(transition.success, 0, -1))
            after[transition.done] = -1
            for i in np.flatnonzero(after == settings.stop_after_success):
                tried += int(recorder.cut(int(i)))
        if tried > 50 * max(wanted, 1) and recorder.kept == 0:
            raise ConfigError(
                f"collect: {tried} episodes of actor {share.type!r} and not one to keep; with only_success the actor "
                "must succeed now and then"
            )
        observations = transition.observations
    return recorder.kept, tried


def _calibration_errors(share: ActorShare, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """(B, S) constant errors of what each copy's expert sees: only the hand's position, Meta-World's first three."""
    errors = np.zeros(shape, dtype=np.float32)
    if share.calibration_error:
        errors[:, :3] = rng.normal(0.0, share.calibration_error, (shape[0], 3))
    return errors


def _look_of(transition: Transition, index: int) -> Any:
    """The look at what a copy shows now: the first moment of its episode, or the one after its last action."""
    looks = transition.first_looks if index in transition.first_looks else transition.looks
    return looks[index]


def _actor(share: ActorShare, world: World, study: Study) -> ScriptedExpert | RandomActor:
    if share.type in ("expert", "noisy"):
        if study.env.type != "metaworld":
            raise ConfigError(
                f"collect.mixture: {study.env.task} has no scripted expert; use type random or checkpoint"
            )
        return ScriptedExpert(study.env.task, noise=share.noise if share.type == "noisy" else 0.0)
    if share.type == "checkpoint":
        return checkpoint_actor(share.checkpoint or "", share.noise)  # type: ignore[return-value]
    space = world.action_space
    return RandomActor(space.low, space.high)
