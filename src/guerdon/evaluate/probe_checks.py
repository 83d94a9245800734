"""Probe checks: episodes changed so that the right answer of a reward model is known, and whether it gives that answer.

Every probe removes the ground truth (`success`, `rewards`, `outcome`) from the episode. A probe that makes no sense for
a model (black frames for one that reads states, another task for one that reads no task) is reported as not
applicable, never as passed.

    results = run_probes(model, episodes, scores, kind="success", limit=0.5, seed=0)
    print(results["black_frame"].passed, results["black_frame"].expected)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from guerdon.episodes.targets import episode_success, first_success
from guerdon.evaluate.ranking import spearman
from guerdon.evaluate.scores import Kind, episode_value, failure_counts, score_episodes
from guerdon.types import Episode, RewardInfo, RewardModel, Score

EPISODES_PER_OUTCOME = 8
_OTHER_TASK = "stay where you are and touch nothing"
_EXPECTED = {
    "black_frame": "no episode of black frames is judged successful (value: share judged successful)",
    "frozen_first_frame": "no episode frozen at its first frame is judged successful (value: share)",
    "reversed_video": "values of a success fall when it plays backwards "
    "(value: mean Spearman with the row index, below 0)",
    "shuffled_frames": "values do not rise merely because time passes (value: mean Spearman with the shown "
    "order, within 0.25 of 0 or 3 standard errors)",
    "goal_pasted_first": "a goal frame at row 0 leaves later values as they were "
    "(value: mean change over the spread of values, at most 0.1)",
    "wrong_task": "a success scores lower under another task (value: share of episodes that do, at least 0.8)",
}


_Judged = tuple[float | None, bool | None, int]
_Judge = Callable[[list[tuple[Score, Score]]], _Judged]  # pairs of (unchanged, changed) scores


@dataclass(frozen=True)
class ProbeResult:
    """What a probe found.

    Attributes:
        applicable: does the question make sense for this model and this data?
        passed: None where it does not, or where nothing could be measured.
        value: the number that was judged.
        expected: the expectation in words, with what the value is.
        n: episodes behind the value.
        failures: failed measurements by reason.
    """

    applicable: bool
    passed: bool | None
    value: float | None
    expected: str
    n: int = 0
    failures: dict[str, int] = field(default_factory=dict)


def run_probes(
    model: RewardModel,
    episodes: Sequence[Episode],
    scores: Sequence[Score],
    *,
    kind: Kind,
    limit: float | None,
    seed: int,
    task_conditioned: bool = False,
) -> dict[str, ProbeResult]:
    """Every probe on up to 8 successful and 8 failed episodes.

    Args:
        model: the reward model.
        episodes: what it is judged on.
        scores: its scores of these episodes, unchanged.
        kind: how an episode's value is read from its rows.
        limit: an episode with a value above it is judged successful; None makes the two probes that need it
            not applicable.
        seed: of the shuffling.
        task_conditioned: does the model read the task sentence?
    """
    cases = _cases(model.info, episodes, scores, limit, task_conditioned)
    rng = np.random.default_rng(seed)
    share = _share_above(limit, kind)
    plan: dict[str, tuple[Callable[[Episode], Episode], _Judge]] = {
        "black_frame": (black_frames, share),
        "frozen_first_frame": (frozen_first_row, share),
        "reversed_video": (reversed_rows, _falls),
        "shuffled_frames": (lambda episode: shuffled_rows(episode, rng), _no_trend),
        "goal_pasted_first": (goal_pasted_first, _returns(_window(model.info))),
        "wrong_task": (
            lambda episode: wrong_task(episode, _other_task(episode, episodes)),
            _lower(kind),
        ),
    }
    results = {}
    for name, (change, judge) in plan.items():
        indices, expected = cases[name], _EXPECTED[name]
        if not indices:
            results[name] = ProbeResult(False, None, None, expected)
            continue
        changed = score_episodes(model, [change(episodes[i]) for i in indices])
        pairs = [(scores[i], new) for i, new in zip(indices, changed, strict=True) if new.failure is None]
        value, passed, n = judge(pairs)
        results[name] = ProbeResult(True, passed, value, expected, n, failure_counts(changed))
    return results


def _cases(
    info: RewardInfo,
    episodes: Sequence[Episode],
    scores: Sequence[Score],
    limit: float | None,
    task_conditioned: bool,
) -> dict[str, list[int]]:
    """Which episodes each probe applies to; none where it makes no sense for the model."""
    wins, losses = _pick(episodes, scores, True), _pick(episodes, scores, False)
    sees_frames = info.modality == "image" and info.frames_needed > 0
    sees_rows = sees_frames or info.modality == "state"
    judged = sorted(wins + losses) if limit is not None and sees_rows else []
    ordered = wins if sees_rows and info.granularity == "step" else []
    window = _window(info)
    return {
        "black_frame": [i for i in judged if sees_frames and episodes[i].frames is not None],
        "frozen_first_frame": [i for i in judged if first_success(episodes[i]) != 0],
        "reversed_video": ordered,
        "shuffled_frames": ordered,
        "goal_pasted_first": [
            i for i in ordered if len(episodes[i]) > window and (first_success(episodes[i]) or 0) > 0
        ],
        "wrong_task": wins if task_conditioned else [],
    }


def _window(info: RewardInfo) -> int:
    """Rows from here on do not look back at row 0."""
    return max(1, info.frames_needed)


def separating_value(episodes: Sequence[Episode], scores: Sequence[Score], kind: Kind) -> float | None:
    """Halfway between the mean value of successful and of failed episodes, for a model without a threshold.

    None where the successful ones do not score higher: there is nothing to separate at.
    """
    by_outcome: dict[bool, list[float]] = {True: [], False: []}
    for episode, score in zip(episodes, scores, strict=True):
        success, value = episode_success(episode), episode_value(score, kind)
        if success is not None and value is not None:
            by_outcome[success].append(value)
    if not by_outcome[True] or not by_outcome[False]:
        return None
    high, low = float(np.mean(by_outcome[True])), float(np.mean(by_outcome[False]))
    return (high + low) / 2 if high > low else None


def _pick(episodes: Sequence[Episode], scores: Sequence[Score], success: bool) -> list[int]:
    """The first measured episodes with this outcome."""
    found = (
        i
        for i, (episode, score) in enumerate(zip(episodes, scores, strict=True))
        if score.failure is None and episode_success(episode) is success
    )
    return [i for i, _ in zip(found, range(EPISODES_PER_OUTCOME), strict=False)]


def _other_task(episode: Episode, episodes: Sequence[Episode]) -> str:
    """A task of the data set that is not this episode's, else a sentence nobody fulfils by moving."""
    others = sorted({other.task for other in episodes} - {episode.task})
    return others[0] if others else _OTHER_TASK


def _share_above(limit: float | None, kind: Kind) -> _Judge:
    def judge(pairs: list[tuple[Score, Score]]) -> _Judged:
        values = [value for _, new in pairs if (value := episode_value(new, kind)) is not None]
        if limit is None or not values:
            return None, None, 0
        share = float(np.mean([value > limit for value in values]))
        return share, share == 0, len(values)

    return judge


def _trend(pairs: list[tuple[Score, Score]]) -> list[tuple[float, int]]:
    """Spearman of the changed values with the order they were shown in, and the number of rows."""
    found = [
        (spearman(new.steps, np.arange(len(new.steps))), len(new.steps)) for _, new in pairs if new.steps is not None
    ]
    return [(value, rows) for value, rows in found if value is not None]


def _falls(pairs: list[tuple[Score, Score]]) -> _Judged:
    trend = [value for value, _ in _trend(pairs)]
    return (float(np.mean(trend)), float(np.mean(trend)) < 0, len(trend)) if trend else (None, None, 0)


def _no_trend(pairs: list[tuple[Score, Score]]) -> _Judged:
    trend = _trend(pairs)
    if not trend:
        return None, None, 0
    value = float(np.mean([value for value, _ in trend]))
    error = float(np.sqrt(sum(1 / (rows - 1) for _, rows in trend))) / len(trend)  # of a random order
    return value, abs(value) <= max(0.25, 3 * error), len(trend)


def _returns(window: int) -> _Judge:
    def judge(pairs: list[tuple[Score, Score]]) -> _Judged:
        changes = [
            float(np.abs(new.steps[window:] - old.steps[window:]).mean() / np.ptp(old.steps))
            for old, new in pairs
            if old.steps is not None and new.steps is not None and np.ptp(old.steps) > 0
        ]
        value = float(np.mean(changes)) if changes else None
        return value, None if value is None else value <= 0.1, len(changes)

    return judge


def _lower(kind: Kind) -> _Judge:
    def judge(pairs: list[tuple[Score, Score]]) -> _Judged:
        drops = [
            after < before
            for old, new in pairs
            if (before := episode_value(old, kind)) is not None and (after := episode_value(new, kind)) is not None
        ]
        value = float(np.mean(drops)) if drops else None
        return value, None if value is None else value >= 0.8, len(drops)

    return judge


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
