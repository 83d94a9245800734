"""Episodes on disk from the steps of a world, whatever decides the actions.

A recorder watches transitions, keeps the rows it was asked for, renders them when an episode ends and hands the
episode to the background writer. An episode's id has its number (which copy played it, and how many that copy
had begun before) and a digest of what happened in it. So a run that is killed and replayed gives the same
episodes the same ids and does not write them twice, and two different episodes never have the same id. Episodes
that were under way when a run was killed are not recorded.

    recorder = Recorder(world, writer, frame_every=5, prefix="train")
    recorder.begin_all(transition)
    recorder.watch(rows_B, actions, transition)
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import DataError
from guerdon.processes.progress import log_once
from guerdon.settings.world import DataCollectionSettings, WorldSettings
from guerdon.types import BoolArray, ByteArray, Episode, IntArray
from guerdon.worlds.eye import NoPictureError
from guerdon.worlds.spaces import PIXELS, choices, parts_of_rows, rgb_of, state_keys, states_of
from guerdon.worlds.transition import Transition
from guerdon.worlds.world import World


@dataclass(eq=False)
class _Tape:
    """The kept rows of one copy's episode."""

    number: int
    task: str
    observations: list[np.ndarray] = field(default_factory=list)
    own: list[np.ndarray] = field(default_factory=list)  # as the environment itself shows them
    actions: list[np.ndarray] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    success: list[bool | None] = field(default_factory=list)
    looks: list[Any] = field(default_factory=list)
    left: list[int | None] = field(default_factory=list)
    pending_reward: float = 0.0
    dense: list[float] = field(default_factory=list)
    outcome: bool | None = None
    terminated: bool = False  # by the environment itself


class EpisodeBuffer:
    """Episodes of one shard, until the process of the run takes and writes them.

    Args:
        success_by_row: as of the data set that they go to; None while it has no episode.
    """

    def __init__(self, success_by_row: bool | None) -> None:
        self.success_by_row = success_by_row
        self._episodes: list[Episode] = []

    def __contains__(self, episode_id: str) -> bool:
        return False

    def add(self, episode: Episode) -> None:
        """Keep an episode."""
        self._episodes.append(episode)
        if self.success_by_row is None:
            self.success_by_row = episode.success is not None

    def take(self) -> list[Episode]:
        """The episodes since the last time."""
        found, self._episodes = self._episodes, []
        return found


@dataclass(eq=False)
class Recorder:
    """Keeps every `frame_every`-th row of each episode and its last.

    Attributes:
        world: what is watched; it draws the frames. Where it does not report success at every step, or the data
            set began so, episodes have no success column, only an outcome, or none.
        writer: where episodes go.
        frame_every: 1 keeps all rows. With k > 1 a row's action is the last of its k actions and its reward is
            the sum of theirs.
        keep_success, keep_fail, keep_unknown: share to keep of the episodes that succeeded, that failed, and whose
            success is unknown; an episode's number decides.
        keep_states: record what the environment itself observes, where the world shows that.
        keep_dense: record in `meta["dense_rewards"]` what the environment itself pays for each row's action (of k, the
            last one): for worlds with `native_reward: sparse`, whose `rewards` do not have it.
        meta: written with every episode, with `frame_every` and `copy`.
        prefix: begins the episodes' ids.
        seed: draws which episodes are kept.
        limit: keep no more than this many.
        label: steps from success of a copy as it stands (`collect.continuations`); goes to `meta["steps_left"]`.
        hold: keep ended episodes until `release`, which writes them in the order of their copies.
        first, among: number of the world's first copy in the run, and how many copies the run has; by default the
            world's.
        kept: episodes recorded so far, those found on the disk included.
        lost: episodes that the simulator broke off, by reason.
    """

    world: World
    writer: EpisodeWriter | EpisodeBuffer
    frame_every: int = 1
    keep_success: float = 1.0
    keep_fail: float = 1.0
    keep_unknown: float = 1.0
    keep_states: bool = True
    keep_dense: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = "episode"
    seed: int = 0
    limit: int | None = None
    label: Callable[[int], int | None] | None = None
    hold: bool = False
    first: int = 0
    among: int | None = None
    kept: int = field(default=0, init=False)
    lost: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self._held: list[tuple[int, _Tape]] = []
        self._tapes: list[_Tape | None] = [None] * self.world.num_envs
        self._begun = [0] * self.world.num_envs

    def wants(self, rows_B: IntArray) -> BoolArray:
        """(B,) bool, whether the moment after an action of this number is kept even if the episode goes on."""
        return np.asarray(rows_B % self.frame_every == 0)

    def begin_all(self, transition: Transition, *, skip_B: BoolArray | None = None) -> None:
        """An episode starts in every copy with a first look, except in those to skip."""
        for i, look in transition.first_looks.items():
            if skip_B is None or not skip_B[i]:
                self.begin(i, transition, look)

    def begin(self, index: int, transition: Transition, look: Any, *, turn: int | None = None) -> None:
        """A new episode starts in copy `index`.

        Args:
            index: the copy.
            transition: what led to its first moment.
            look: taken at the same moment.
            turn: how many episodes the copy began before; by default the recorder counts.
        """
        before = self._begun[index] if turn is None else turn
        self._begun[index] = before + 1
        zero = np.zeros(self.world.action_space.shape or (), dtype=np.float32)
        left: list[int | None] = [] if self.label is None else [self.label(index)]
        number, task = before * (self.among or self.world.num_envs) + self.first + index, self.world.tasks[index]
        shown, own = transition.observations[index].copy(), transition.own_observations[index].copy()
        self._tapes[index] = _Tape(number, task, [shown], [own], [zero], [0.0], [False], [look], left)

    def watch(
        self, rows_B: np.ndarray, actions: np.ndarray, transition: Transition, ends_B: BoolArray | None = None
    ) -> list[int]:
        """Take in one step of all copies.

        Args:
            rows_B: number of the action just taken within each copy's episode, from 1.
            actions: (B, A).
            transition: taken with looks for the wanted rows and for ends.
            ends_B: copies whose episodes end here although the world would go on; they need a look too.

        Returns:
            The copies whose episodes were kept (or held).
        """
        kept = []
        ended = transition.done if ends_B is None else transition.done | ends_B
        wanted = self.wants(rows_B) | ended
        for i, why in transition.failures.items():
            self.lost[why.reason] += self._tapes[i] is not None
            self._tapes[i] = None
        for i in range(self.world.num_envs):
            tape = self._tapes[i]
            if tape is not None and transition.mask[i]:
                self._step(tape, i, actions[i], transition, wanted=bool(wanted[i]))
            if ended[i]:
                self._tapes[i] = None
                if tape is not None and self._end(tape, i, transition):
                    kept.append(i)
        return kept

    def _step(self, tape: _Tape, i: int, action: np.ndarray, transition: Transition, *, wanted: bool) -> None:
        """Take in one step of a copy; a row of the episode where it is wanted."""
        tape.pending_reward += float(transition.rewards[i])
        success = transition.success_of(i)
        tape.outcome = True if tape.outcome else success
        if not wanted:
            return
        tape.observations.append(transition.final_observations[i].copy())
        tape.own.append(transition.own_final[i].copy())
        tape.actions.append(np.array(action, dtype=np.float32))
        tape.rewards.append(tape.pending_reward)
        tape.success.append(success)
        tape.looks.append(transition.looks[i])
        if self.label is not None:
            tape.left.append(self._left(i, transition))
        tape.dense.append(round(float(transition.own_rewards[i]), 6))
        tape.pending_reward = 0.0

    def _end(self, tape: _Tape, i: int, transition: Transition) -> bool:
        """Take in the end of a copy's episode; whether it was kept or held."""
        by_success = self.world.end_on_success and bool(transition.success[i])
        tape.terminated = bool(transition.terminated[i]) and not by_success
        if self.hold:
            self._held.append((i, tape))
            return True
        return self._finish(tape, i)

    def _left(self, index: int, transition: Transition) -> int | None:
        """Steps to success of a copy; where the episode is over and failed, the moment is gone: None."""
        if transition.success[index]:
            return 0
        if transition.done[index] or self.label is None:
            return None
        return self.label(index)

    def release(self) -> int:
        """Write what was held back, in the order of the copies; how many episodes were kept?"""
        held, self._held = sorted(self._held, key=lambda pair: pair[0]), []
        return sum(self._finish(tape, index) for index, tape in held)

    def _finish(self, tape: _Tape, index: int) -> bool:
        """Write an ended episode, unless it is drawn out or beyond the limit; whether it was kept."""
        draw = np.random.default_rng([self.seed, 2, tape.number]).random()
        share = {True: self.keep_success, False: self.keep_fail, None: self.keep_unknown}[tape.outcome]
        full = self.limit is not None and self.kept >= self.limit
        if draw >= share or full:
            return False
        self.kept += 1
        success = self._success(tape, index)
        observations, actions = np.stack(tape.observations), np.stack(tape.actions)
        rewards = np.array(tape.rewards, dtype=np.float32)
        columns = [observations, actions, rewards]
        if success is not None:
            columns.append(success)
        name = f"{self.prefix}-{tape.number:06d}-{_digest(*columns)}"
        if name in self.writer:
            return True  # it was written before this run was killed, and has now been replayed
        pictures = self._observed_pictures(observations)
        states = None
        if self.keep_states and pictures is None:
            states = states_of(np.stack(tape.own), self.world.own_columns)
        episode = Episode(
            id=name,
            task=tape.task,
            frames=self._drawn(tape.looks) if pictures is None else pictures,
            views=self._views(tape),
            states=states if states is not None and states.size else None,
            actions=actions,
            rewards=rewards,
            success=success,
            outcome=tape.outcome,
            meta=self._meta(tape, index),
        )
        self.writer.add(episode)
        return True

    def _success(self, tape: _Tape, index: int) -> BoolArray | None:
        """(T,) success at every row, where the environment reports it there and the data set has that column."""
        reported = self.world.reports_every_step and None not in tape.success
        if self.writer.success_by_row and not reported:
            raise DataError(
                f"the environment of {tape.task!r} (copy {index}) does not report success at every step "
                f"of episode {tape.number}, as it did in the episodes recorded before. Set env.success_key to a key "
                "that info has at every step, or record into another folder with env.success_key set to one that it "
                "never has: success is unknown then"
            )
        if not reported or self.writer.success_by_row is False:
            return None
        return np.array(tape.success, dtype=np.bool_)

    def _observed_pictures(self, observations: np.ndarray) -> ByteArray | None:
        """(T, H, W, 3) the observations, where they are pictures of single moments that stand for drawn ones."""
        names = observations.dtype.names or ()
        shown = observations[PIXELS] if PIXELS in names else observations
        pictured = shown.ndim == 4 and shown.shape[-1] == 3 and self.world.moments == 1
        return shown if pictured else None

    def _views(self, tape: _Tape) -> dict[str, ByteArray]:
        """(T, H, W, 3) by camera: those that are drawn besides the first, and those that the environment observes."""
        views = {camera: self.world.render(tape.looks, camera) for camera in self.world.cameras[1:]}
        own = np.stack(tape.own)
        for column in self.world.own_columns:
            if column.kind == "image" and column.name:
                views[column.name] = rgb_of(own[column.name], self.world.moments)
        return views

    def _meta(self, tape: _Tape, index: int) -> dict[str, Any]:
        """Where an episode comes from, and what its columns do not hold."""
        meta = {
            **self.meta,
            "copy": self.first + index,
            "frame_every": self.frame_every,
            **parts_of_rows(state_keys(self.world.own_columns), choices(self.world.action_space) or ()),
        }
        if tape.terminated:
            meta["terminated"] = True
        if self.label is not None:
            meta["steps_left"] = tape.left
        if self.keep_dense and np.isfinite(tape.dense).all():
            meta["dense_rewards"] = [0.0, *tape.dense]
        return meta

    def _drawn(self, looks: Sequence[Any]) -> ByteArray | None:
        """(T, H, W, 3) the pictures of an episode; None where the environment has none."""
        if not self.world.takes_pictures:
            return None
        try:
            return self.world.render(looks)
        except NoPictureError:
            log_once("[env] render() gives None: episodes are recorded without that picture")
            return None

    def state_dict(self) -> dict[str, Any]:
        """Which episodes come next, as plain JSON values; the ones under way are not part of it."""
        return {"begun": list(self._begun), "kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to stored values."""
        self._begun, self.kept = [int(n) for n in state["begun"]], int(state["kept"])


def recorder_of_run(
    settings: DataCollectionSettings,
    mode: Literal["train", "eval"],
    world: World,
    writer: EpisodeWriter | EpisodeBuffer | None,
    *,
    seed: int,
    step: int = 0,
    first: int = 0,
    among: int | None = None,
) -> Recorder | None:
    """What `env.data_collection` records of a run; None where it leaves out episodes of this mode.

    Args:
        settings: the section.
        mode: training episodes, or those of the evaluation at `step`.
        world: what is watched.
        writer: of the data set; None: nothing is recorded.
        seed: of the run.
        step: of the run.
        first, among: see `Recorder`.
    """
    if writer is None or settings.mode not in (mode, "all"):
        return None
    meta: dict[str, Any] = {"mode": mode, "seed": seed} | ({"step": step} if mode == "eval" else {})
    return Recorder(
        world,
        writer,
        frame_every=settings.frame_every,
        keep_success=settings.sample_rate_success,
        keep_fail=0.0 if settings.only_success else settings.sample_rate_fail,
        keep_unknown=0.0 if settings.only_success else 1.0,
        meta=meta,
        prefix=f"{mode}-s{seed}" + (f"-{step:09d}" if mode == "eval" else ""),
        seed=seed + step,
        first=first,
        among=among,
    )


def run_writer(env: WorldSettings) -> EpisodeWriter:
    """What writes the episodes of `env.data_collection`.

    Raises:
        DataError: the folder holds something else, or another process writes there.
    """
    collection = env.data_collection
    return EpisodeWriter(
        collection.save_dir or "",
        camera=env.camera_name,
        robot_type=env.type,
        only_success=collection.only_success,
    )


def episode_number(episode_id: str, prefix: str) -> int | None:
    """The number in an id that a recorder with this prefix gave; None for any other id."""
    match = re.fullmatch(rf"{re.escape(prefix)}-(\d+)-[0-9a-f]{{8}}", episode_id)
    return None if match is None else int(match[1])


def _digest(*columns: np.ndarray) -> str:
    digest = hashlib.sha256()
    for column in columns:
        digest.update(f"{column.dtype}{column.shape}".encode() + column.tobytes())
    return digest.hexdigest()[:8]
