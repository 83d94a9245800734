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
from typing import NamedTuple

import numpy as np

from guerdon.episodes.targets import episode_success, first_success
from guerdon.evaluate.metrics import spearman
from guerdon.evaluate.scores import Kind, episode_value, failure_counts, score_episodes
from guerdon.types import Episode, RewardModel, Score

EPISODES_PER_OUTCOME = 8
_OTHER_TASK = "stay where you are and touch nothing"


@dataclass(frozen=True)
class ProbeResult:
    """What a probe found.

    Attributes:
        applicable: does the question make sense for this model and this data?
        passed: None where it does not, or where nothing could be measured.
        value: the number that is compared with the expectation.
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
        episodes: those of the evaluation.
        scores: its scores of these episodes, unchanged.
        kind: how an episode's value is read from its rows.
        limit: an episode with a value above it is judged successful; None makes the two probes that need it
            not applicable.
        seed: of the shuffling.
        task_conditioned: does the model read the task sentence?
    """
    info = model.info
    wins, losses = _pick(episodes, scores, True), _pick(episodes, scores, False)
    sees_frames = info.modality == "image" and info.frames_needed > 0
    sees_rows = sees_frames or info.modality == "state"
    judged = sorted(wins + losses) if limit is not None and sees_rows else []
    ordered = wins if sees_rows and info.granularity == "step" else []
    window = max(1, info.frames_needed)  # rows from here on do not look back at row 0
    rng = np.random.default_rng(seed)

    def accepted(_: Score, new: Score) -> float | None:
        value = episode_value(new, kind)
        return None if value is None or limit is None else float(value > limit)

    def change_after_row_0(old: Score, new: Score) -> float | None:
        if old.steps is None or new.steps is None or np.ptp(old.steps) == 0:
            return None
        return float(np.abs(new.steps[window:] - old.steps[window:]).mean() / np.ptp(old.steps))

    def lower(old: Score, new: Score) -> float | None:
        before, after = episode_value(old, kind), episode_value(new, kind)
        return None if before is None or after is None else float(after < before)

    plan = {
        "black_frame": _Probe(
            "no episode of black frames is judged successful (value: share judged successful)",
            [i for i in judged if sees_frames and episodes[i].frames is not None],
            black_frames, accepted, lambda value, _: value == 0,
        ),
        "frozen_first_frame": _Probe(
            "no episode frozen at its first frame is judged successful (value: share)",
            [i for i in judged if first_success(episodes[i]) != 0],
            frozen_first_row, accepted, lambda value, _: value == 0,
        ),
        "reversed_video": _Probe(
            "values of a success fall when it plays backwards (value: mean Spearman with the row index, below 0)",
            ordered, reversed_rows, _trend, lambda value, _: value < 0,
        ),
        "shuffled_frames": _Probe(
            "values do not rise merely because time passes (value: mean Spearman with the shown order, within 0.25 of "
            "0 or 3 standard errors)",
            ordered, lambda episode: shuffled_rows(episode, rng), _trend, _no_trend,
        ),
        "goal_pasted_first": _Probe(
            "a goal frame at row 0 leaves later values as they were (value: mean change over the spread of values, at "
            "most 0.1)",
            [i for i in ordered if len(episodes[i]) > window and (first_success(episodes[i]) or 0) > 0],
            goal_pasted_first, change_after_row_0, lambda value, _: value <= 0.1,
        ),
        "wrong_task": _Probe(
            "a success scores lower under another task (value: share of episodes that do, at least 0.8)",
            wins if task_conditioned else [],
            lambda episode: wrong_task(episode, _other_task(episode, episodes)),
            lower, lambda value, _: value >= 0.8,
        ),
    }  # fmt: skip
    return {name: _run(probe, model, episodes, scores) for name, probe in plan.items()}


def _trend(_: Score, new: Score) -> float | None:
    """Spearman correlation of values with the row index."""
    return None if new.steps is None else spearman(new.steps, np.arange(len(new.steps)))


def _no_trend(value: float, rows: list[int]) -> bool:
    error = float(np.sqrt(sum(1 / (n - 1) for n in rows))) / len(rows)  # of a random order
    return abs(value) <= max(0.25, 3 * error)


class _Probe(NamedTuple):
    expected: str
    indices: list[int]  # of the episodes it applies to; none where it makes no sense for the model
    change: Callable[[Episode], Episode]
    measure: Callable[[Score, Score], float | None]  # of the unchanged and the changed episode
    passes: Callable[[float, list[int]], bool]  # given the mean value, and the rows of each episode


def _run(probe: _Probe, model: RewardModel, episodes: Sequence[Episode], scores: Sequence[Score]) -> ProbeResult:
    if not probe.indices:
        return ProbeResult(False, None, None, probe.expected)
    changed = score_episodes(model, [probe.change(episodes[i]) for i in probe.indices])
    found = [
        (value, 0 if new.steps is None else len(new.steps))
        for i, new in zip(probe.indices, changed, strict=True)
        if new.failure is None and (value := probe.measure(scores[i], new)) is not None
    ]
    value = float(np.mean([value for value, _ in found])) if found else None
    passed = None if value is None else probe.passes(value, [rows for _, rows in found])
    return ProbeResult(True, passed, value, probe.expected, len(found), failure_counts(changed))


def separating_value(episodes: Sequence[Episode], scores: Sequence[Score], kind: Kind) -> float | None:
    """Halfway between the mean value of successful and of failed episodes, for a model without a threshold.

    None where the successful ones do not score higher: there is nothing to separate at.
    """
    pairs = list(zip(episodes, scores, strict=True))
    means = []
    for wanted in (True, False):
        values = [episode_value(score, kind) for episode, score in pairs if episode_success(episode) is wanted]
        known = [value for value in values if value is not None]
        means.append(float(np.mean(known)) if known else np.nan)
    return sum(means) / 2 if means[0] > means[1] else None


def _pick(episodes: Sequence[Episode], scores: Sequence[Score], success: bool) -> list[int]:
    """The first measured episodes with this outcome."""
    measured = [i for i, score in enumerate(scores) if score.failure is None]
    return [i for i in measured if episode_success(episodes[i]) is success][:EPISODES_PER_OUTCOME]


def _other_task(episode: Episode, episodes: Sequence[Episode]) -> str:
    """A task of the data set that is not this episode's, else a sentence that no motion fulfils."""
    others = sorted({other.task for other in episodes} - {episode.task})
    return others[0] if others else _OTHER_TASK


def without_truth(episode: Episode) -> Episode:
    """The episode without ground truth: no success, no rewards, no outcome."""
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
