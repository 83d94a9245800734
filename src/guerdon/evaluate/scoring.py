"""Score episodes and keep what could be measured apart from what could not.

Knows the `RewardModel` protocol and nothing about metrics. A measurement that failed stays a `Failure` and is
counted by its reason; it never becomes a number.

    scored = score_episodes(model, episodes)
    value = episode_value(scored[0], "success")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from guerdon.errors import DataError
from guerdon.types import Episode, Failure, RewardModel, Score

Kind = Literal["success", "progress"]


def score_episodes(model: RewardModel, episodes: Sequence[Episode]) -> list[Score]:
    """One Score per episode; per-row values of another length than the episode become a `Failure`.

    Raises:
        DataError: the model gave another number of scores than there are episodes.
    """
    scores = model.score(list(episodes)) if episodes else []
    if len(scores) != len(episodes):
        raise DataError(
            f"reward model {model.info.name!r} gave {len(scores)} scores for {len(episodes)} episodes; "
            "`score` must give one per episode, in order"
        )
    return [_checked(score, len(episode)) for score, episode in zip(scores, episodes, strict=True)]


def _checked(score: Score, rows: int) -> Score:
    if score.steps is not None and score.steps.shape != (rows,):
        detail = f"{score.steps.shape} values for {rows} rows"
        return Score(failure=Failure("wrong_length", detail))
    return score


def failure_counts(scores: Iterable[Score]) -> dict[str, int]:
    """How often each reason occurs, most frequent first."""
    counts = Counter(score.failure.reason for score in scores if score.failure is not None)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def episode_value(score: Score, kind: Kind) -> float | None:
    """One number per episode: its total; else the largest row value (success) or the last one (progress).

    An episode counts as successful once any row does, so a success classifier is judged by its maximum.
    """
    if score.total is not None:
        return float(score.total)
    if score.steps is None or score.steps.size == 0:
        return None
    return float(score.steps.max() if kind == "success" else score.steps[-1])


def choose_episodes(episodes: Sequence[Episode], max_rows: int | None, seed: int) -> list[Episode]:
    """Whole episodes drawn at random until the next would pass `max_rows`; at least one, in their old order.

    Whole ones, because a model may need the frames before a row. All of them when `max_rows` is None.

    Raises:
        ValueError: `max_rows` is below 1.
    """
    if max_rows is None:
        return list(episodes)
    if max_rows < 1:
        raise ValueError(f"max_rows must be at least 1, got {max_rows}")
    chosen: list[int] = []
    rows = 0
    for index in np.random.default_rng(seed).permutation(len(episodes)):
        if chosen and rows + len(episodes[index]) > max_rows:
            break
        chosen.append(int(index))
        rows += len(episodes[index])
    return [episodes[index] for index in sorted(chosen)]
