"""`guerdon collect`: episodes of a mixture of actors, written in the background as a LeRobot data set.

Episodes are played in rounds: in a round every copy of the world plays one episode, from a start and with random
numbers that only the seed, the actor and the round decide, and they are written in the order of the copies. So the
same configuration gives the same data set, also where the process was killed and started again.

    done = collect(study)
    print(done.path, done.episodes)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from guerdon.collect.continuations import Continuations
from guerdon.collect.episode_capture import Recorder, episode_number
from guerdon.collect.stepping import ActionQueue, steps
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import ConfigError
from guerdon.plan.stages import section
from guerdon.policies.robots.control import ControlPolicy, load_policy
from guerdon.policies.robots.experts import Actor, Expert, actor_maker, random_actor
from guerdon.policies.robots.robot import Action
from guerdon.processes.progress import ProgressBar
from guerdon.settings.collect import ActorShare, CollectSettings
from guerdon.settings.study import Study
from guerdon.settings.world import WorldSettings
from guerdon.types import BoolArray, IntArray
from guerdon.worlds.build import build_world, first_world
from guerdon.worlds.eye import cannot_draw
from guerdon.worlds.transition import Transition
from guerdon.worlds.world import World

GIVE_UP_AFTER = 50  # episodes tried for each one wanted, while not one could be kept


@dataclass(frozen=True)
class CollectResult:
    """A data set after a call of `collect`.

    Attributes:
        path: the data set.
        episodes, frames: in it, those of earlier calls included.
        tried: episodes played by this call.
    """

    path: Path
    episodes: int
    frames: int
    tried: int

    @property
    def line(self) -> str:
        """For people."""
        return f"wrote {self.episodes} episodes with {self.frames} frames to {self.path}"


class _Part(NamedTuple):
    """One actor's part of the data set."""

    place: int
    share: ActorShare
    wanted: int
    have: int
    next_number: int


def shares_to_counts(mixture: tuple[ActorShare, ...], episodes: int) -> list[int]:
    """Whole episodes per actor, in proportion to the shares, summing to `episodes` (largest remainder)."""
    total = sum(a.share for a in mixture)
    exact = [episodes * a.share / total for a in mixture]
    counts = [int(x) for x in exact]
    order = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in order[: episodes - sum(counts)]:
        counts[i] += 1
    return counts


def check_collect(study: Study) -> None:
    """Refuse what `collect` refuses at its start; checkpoints, which may not be there yet, are left to it.

    Raises:
        StudyError: the study has no `collect` section.
        ConfigError: an unknown task, camera or environment, or an actor that does not fit it.
        MissingDependencyError: the simulator is not installed.
    """
    settings: CollectSettings = section(study, "collect")
    states = study.env.model_copy(update={"observation": "state"})
    with closing(first_world(states, settings.success_readers())) as world:
        for share in settings.mixture:
            if share.type != "checkpoint":
                actor_maker(share, world, study.env, None)


def collect(study: Study) -> CollectResult:
    """Collect what the `collect` section asks for. A data set already there is continued, up to `episodes`.

    With `env.observation: pixels` the episodes have no states, only frames; scripted experts still look at states.

    Raises:
        StudyError: no `collect` section.
        ConfigError: an actor that does not fit the world, or a data set of other origin.
        CheckpointError: a policy folder that cannot be used.
    """
    settings: CollectSettings = section(study, "collect")
    tried = 0
    with EpisodeWriter(
        settings.save_dir,
        fps=settings.fps,
        camera=study.env.camera_name,
        video=settings.video,
        robot_type=study.env.type,
        only_success=settings.only_success,
    ) as writer:
        parts = _parts(settings, writer)
        progress = ProgressBar(settings.episodes, what="episodes", lines=10)
        for note in study.env.notes:
            progress.write_line(note)
        try:
            for part in parts:
                if part.have < part.wanted:
                    tried += _collect_part(part, study.env, settings, writer, progress)
            writer.flush()
        finally:
            progress.close()
        return CollectResult(Path(settings.save_dir), writer.num_episodes, writer.num_frames, tried)


def _parts(settings: CollectSettings, writer: EpisodeWriter) -> list[_Part]:
    """What each actor has recorded and which episode comes next; refuses a data set of another mixture."""
    parts, known = [], 0
    counts = shares_to_counts(settings.mixture, settings.episodes)
    for index, (share, wanted) in enumerate(zip(settings.mixture, counts, strict=True)):
        numbers = [n for name in writer.ids if (n := episode_number(name, _prefix(share, index))) is not None]
        known += len(numbers)
        parts.append(_Part(index, share, wanted, len(numbers), max(numbers, default=-1) + 1))
    if known < writer.num_episodes:
        raise ConfigError.about(
            "collect.save_dir",
            f"{settings.save_dir} holds {writer.num_episodes - known} episodes that this mixture did "
            "not record: choose another folder",
        )
    return parts


def _prefix(share: ActorShare, index: int) -> str:
    return f"{share.type}-{index}"


def _collect_part(
    part: _Part, env: WorldSettings, settings: CollectSettings, writer: EpisodeWriter, progress: ProgressBar
) -> int:
    """Play rounds until this actor's part is complete; returns how many episodes were tried."""
    share, wanted = part.share, part.wanted - part.have
    policy = load_policy(Path(share.checkpoint or "")) if share.type == "checkpoint" else None
    pixels = isinstance(policy, ControlPolicy) and policy.pixels
    shown = env if pixels else env.model_copy(update={"observation": "state"})
    world = build_world(shown, seed=settings.seed * 1000 + part.place, success_readers=settings.success_readers())
    world.takes_pictures = not cannot_draw(world.eye)
    try:
        if pixels and not any(column.kind == "image" for column in world.columns):
            raise ConfigError(
                f"collect: {share.checkpoint} acts on pixels; set env.observation=pixels", key="env.observation"
            )
        make_actor = actor_maker(share, world, env, policy)
        chunk = policy.chunk if policy is not None and policy.in_parts else None
        recorder = _recorder(part, wanted, world, env, settings, writer)
        tried = 0
        turn, skip = divmod(part.next_number, world.num_envs)
        while recorder.kept < wanted:
            rng = np.random.default_rng([settings.seed, part.place, turn])
            stop = settings.stop_after_success
            tried += _play_round(world, recorder, make_actor(), chunk, share, stop, rng, turn, skip)
            recorder.release()
            turn, skip = turn + 1, 0
            progress.advance(writer.num_episodes, share.type)
            if tried > GIVE_UP_AFTER * wanted and recorder.kept == 0:
                raise _nothing_kept(tried, share, recorder, settings)
    finally:
        world.close()
    return tried


def _recorder(
    part: _Part, wanted: int, world: World, env: WorldSettings, settings: CollectSettings, writer: EpisodeWriter
) -> Recorder:
    """Records the episodes of an actor's part, `wanted` of them."""
    share = part.share
    meta: dict[str, Any] = {"policy": share.type}
    if share.checkpoint:
        meta["checkpoint"] = share.checkpoint
    meta |= {"env": env.task, "seed": settings.seed}
    keep_others = 0.0 if settings.only_success else 1.0  # of the episodes without success
    return Recorder(
        world,
        writer,
        frame_every=settings.frame_every,
        keep_fail=keep_others,
        keep_unknown=keep_others,
        keep_states=env.observation == "state",
        keep_dense=env.native_reward == "sparse",
        meta=meta,
        prefix=_prefix(share, part.place),
        limit=wanted,
        label=_labeler(world, env, settings.continuation_limit),
        hold=True,
    )


def _nothing_kept(tried: int, share: ActorShare, recorder: Recorder, settings: CollectSettings) -> ConfigError:
    """Why an actor that was tried so often gave no episode to keep."""
    causes = []
    broke = ", ".join(f"{reason} x {count}" for reason, count in recorder.lost.items() if count)
    if broke:
        causes.append(f"the simulator broke ({broke}): correct the environment")
    if settings.only_success:
        causes.append("with only_success the actor must succeed now and then")
    return ConfigError(
        f"collect: {tried} episodes of actor {share.type!r} and not one to keep; {'; '.join(causes)}",
        key=None if broke else "collect.only_success",
    )


def _play_round(
    world: World,
    recorder: Recorder,
    actor: Actor,
    chunk: int | None,
    share: ActorShare,
    stop_after_success: int | None,
    rng: np.random.Generator,
    turn: int,
    skip: int,
) -> int:
    """One episode in every copy from `skip` on; the ones before are on the disk. Returns how many were played."""
    copies = world.num_envs
    world.rewind(turn)
    start = world.reset()
    first = rng.integers(share.random_steps + 1, size=copies)  # actions drawn at random, before the recording begins
    error = _calibration_errors(share, start.observations.shape, rng)
    wander = random_actor(world) if share.random_steps else None
    since = np.full(copies, -1, dtype=np.int64)  # steps since the first success, -1 before it
    stop = -9 if stop_after_success is None else stop_after_success  # -9: never
    playing = np.arange(copies) >= skip
    intent = actor if share.recorded_actions == "intended" and isinstance(actor, Expert) else None
    queue = frames = None
    if chunk is not None:
        queue = ActionQueue(world, lambda shown: Action(actor.act(shown, rng)), chunk)
        frames = queue.frames_due

    def decide(observations: np.ndarray) -> np.ndarray:
        if queue is None:
            return actor.act(observations + error if share.calibration_error else observations, rng)
        queue.resting, queue.once = ~playing | (world.steps_in_episode < first), np.ones_like(playing)
        actions = queue(observations)
        queue.resting = ~playing | (world.steps_in_episode + 1 < first)
        return actions

    def act(observations: np.ndarray) -> np.ndarray:
        actions = decide(observations)
        if wander is not None:
            actions = np.where((world.steps_in_episode < first)[:, None], wander.act(observations, rng), actions)
        return actions

    def capture(rows: IntArray) -> BoolArray:
        rows = rows - first
        inside = recorder.wants(rows) | (since == stop - 1)  # the coming step may be the last
        return np.asarray(playing & ((rows == 0) | ((rows > 0) & inside)))

    def begin(transition: Transition) -> None:
        for i in np.flatnonzero(playing & (world.steps_in_episode == first)).tolist():
            looks = transition.first_looks if i in transition.first_looks else transition.looks
            recorder.begin(i, transition, looks[i], turn=turn)

    begin(start)
    _tell(start)
    for step in steps(world, act, start.observations, capture=capture, frames=frames):
        transition, rows = step.transition, step.rows - first
        since = np.where(since >= 0, since + 1, np.where(transition.success & (rows > 0), 0, -1))
        cut = since == stop
        recorder.watch(rows, step.actions if intent is None else intent.intended_B_A, transition, cut)
        playing = playing & ~transition.done & ~transition.failed & ~cut
        if not playing.any():
            break
        begin(transition)
        _tell(transition)
    return copies - skip


def _tell(transition: Transition) -> None:
    """Say which episodes did not begin with their seed."""
    for index, why in transition.failed_resets:
        sys.stderr.write(f"copy {index} begins its episode with the next seed: {why}\n")


def _calibration_errors(share: ActorShare, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """(B, S) constant errors of what each copy's expert sees: only the hand's position, Meta-World's first three."""
    errors = np.zeros(shape, dtype=np.float32)
    if share.calibration_error:
        errors[:, :3] = rng.normal(0.0, share.calibration_error, (shape[0], 3))
    return errors


def _labeler(world: World, env: WorldSettings, limit: int | None) -> Callable[[int], int | None] | None:
    """Continuation labels of copies, if they are wanted; None of one whose simulator broke."""
    if limit is None:
        return None
    continuations = Continuations(env, limit)

    def label(index: int) -> int | None:
        state = world.save_state(index)
        return None if state is None else continuations.steps_left(state)

    return label
