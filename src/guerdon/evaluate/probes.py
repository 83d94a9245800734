"""Probes: pure changes to an episode for which we know what an honest reward model must say.

Every probe drops the ground truth (`success`, `rewards`, `outcome`), so nothing can answer by peeking. Knows
nothing about models or scores; `judge` states the expectations and checks them.

    dark = black_frames(episode)
    backwards = reversed_rows(episode)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from guerdon.episodes.targets import first_success
from guerdon.types import Episode


def without_truth(episode: Episode) -> Episode:
    """The episode as a stranger would see it: no success, no rewards, no outcome."""
    return replace(episode, success=None, rewards=None, outcome=None)


def black_frames(episode: Episode) -> Episode:
    """Every frame black.

    Raises:
        ValueError: the episode has no frames.
    """
    if episode.frames is None:
        raise ValueError(f"episode {episode.id!r} has no frames to black out")
    return without_truth(replace(episode, frames=np.zeros_like(episode.frames)))


def frozen_first_row(episode: Episode) -> Episode:
    """Nothing ever moves: the first row's frame and state at every row."""
    return without_truth(episode.take(np.zeros(len(episode), dtype=np.int64)))


def reversed_rows(episode: Episode) -> Episode:
    """The video played backwards."""
    return without_truth(episode.take(np.arange(len(episode))[::-1]))


def shuffled_rows(episode: Episode, rng: np.random.Generator) -> Episode:
    """The rows in random order."""
    return without_truth(episode.take(rng.permutation(len(episode))))


def goal_pasted_first(episode: Episode) -> Episode:
    """The row of the first success pasted over row 0, everything else as it was.

    Raises:
        ValueError: the episode is not a success, so it shows no goal.
    """
    goal = first_success(episode)
    if goal is None:
        raise ValueError(f"episode {episode.id!r} never succeeds, so it has no goal frame to paste")
    rows = np.arange(len(episode))
    rows[0] = goal
    return without_truth(episode.take(rows))


def wrong_task(episode: Episode, task: str) -> Episode:
    """The same video under another task sentence.

    Raises:
        ValueError: the sentence is the episode's own.
    """
    if task == episode.task:
        raise ValueError(f"episode {episode.id!r} already has the task {task!r}")
    return without_truth(replace(episode, task=task))
