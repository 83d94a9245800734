"""Turn the steps of a world into episodes on disk, while something else decides the actions.

A recorder watches transitions, keeps the rows it was asked for, renders them when an episode ends and hands the
episode to the background writer. Episodes that were under way when a run was killed are not recorded. This module
does not know who acts or why.

    recorder = Recorder(world, writer, frame_every=5)
    recorder.begin(first_transition); recorder.watch(observations, actions, transition)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from guerdon.episodes.write import EpisodeWriter
from guerdon.types import Episode
from guerdon.worlds.world import Transition, World


@dataclass
class _Tape:
    """The kept rows of one copy's episode."""

    observations: list[np.ndarray] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    success: list[bool] = field(default_factory=list)
    looks: list[Any] = field(default_factory=list)
    pending_reward: float = 0.0
    once: bool = False


class Recorder:
    """Keeps every `frame_every`-th row of each episode and its last.

    Args:
        world: what is watched; its eye draws the frames.
        writer: where episodes go.
        frame_every: 1 keeps all rows. With k > 1 a row's action is the last of its k actions and its reward is
            the sum of theirs.
        keep_success, keep_fail: share of successful and failed episodes to keep.
        meta: written with every episode.
        seed: draws which episodes are kept.
        limit: keep no more than this many.
    """

    def __init__(
        self,
        world: World,
        writer: EpisodeWriter,
        *,
        frame_every: int = 1,
        keep_success: float = 1.0,
        keep_fail: float = 1.0,
        meta: Mapping[str, Any] | None = None,
        seed: int = 0,
        limit: int | None = None,
    ) -> None:
        self.world = world
        self.writer = writer
        self.frame_every = frame_every
        self.kept = 0
        self.limit = limit
        self.meta = dict(meta or {})
        self._keep = {True: keep_success, False: keep_fail}
        self._rng = np.random.default_rng([seed, 2])
        self._tapes: list[_Tape | None] = [None] * world.num_envs
        self._count = 0

    def wants_row(self, row: int) -> bool:
        """Whether the moment after the `row`-th action is kept even if the episode goes on."""
        return row % self.frame_every == 0

    def begin(self, index: int, observation: np.ndarray, look: Any) -> None:
        """A new episode starts in copy `index`."""
        zero = np.zeros(self.world.action_space.shape or (), dtype=np.float32)
        self._tapes[index] = _Tape([observation.copy()], [zero], [0.0], [False], [look])

    def watch(self, rows_B: np.ndarray, actions: np.ndarray, transition: Transition) -> list[int]:
        """Take in one step of all copies.

        Args:
            rows_B: number of the action just taken within each copy's episode, from 1.
            actions: (B, A).
            transition: taken with looks for the wanted rows and for ends.

        Returns:
            The copies whose episodes were kept.
        """
        kept = []
        for i in range(self.world.num_envs):
            tape = self._tapes[i]
            if tape is not None and transition.mask[i]:
                tape.pending_reward += float(transition.rewards[i])
                tape.once |= bool(transition.success[i])
                if self.wants_row(int(rows_B[i])) or transition.done[i]:
                    tape.observations.append(transition.final_observations[i].copy())
                    tape.actions.append(np.array(actions[i], dtype=np.float32))
                    tape.rewards.append(tape.pending_reward)
                    tape.success.append(bool(transition.success[i]))
                    tape.looks.append(transition.looks[i])
                    tape.pending_reward = 0.0
            if transition.done[i]:
                if tape is not None and self._finish(tape, i):
                    kept.append(i)
                self._tapes[i] = None
        return kept

    def cut(self, index: int) -> bool:
        """End the episode of copy `index` here, although the world would go on; was it kept?"""
        tape, self._tapes[index] = self._tapes[index], None
        return tape is not None and self._finish(tape, index)

    def _finish(self, tape: _Tape, index: int) -> bool:
        full = self.limit is not None and self.kept >= self.limit
        if self._rng.random() >= self._keep[tape.once] or full:
            return False
        states = np.stack(tape.observations)
        episode = Episode(
            id=f"{self.meta.get('prefix', 'episode')}-{self._count:06d}",
            task=self.world.tasks[index],
            frames=self.world.render(tape.looks),
            states=states.astype(np.float32) if states.ndim == 2 else None,
            actions=np.stack(tape.actions),
            rewards=np.array(tape.rewards, dtype=np.float32),
            success=np.array(tape.success),
            outcome=tape.once,
            meta={**self.meta, "copy": index},
        )
        self._count += 1
        self.kept += 1
        self.writer.add(episode)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Which episodes will be drawn next; the ones under way are not part of it."""
        return {"rng": self._rng.bit_generator.state, "count": self._count, "kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to stored values."""
        self._rng.bit_generator.state = state["rng"]
        self._count, self.kept = int(state["count"]), int(state["kept"])
