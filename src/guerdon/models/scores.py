"""Scores of a reward model on episodes or solutions, and the one value that stands for all rows or steps.

A measurement that failed stays a `Failure` and is counted by its reason; it never becomes a number. Which aggregation
of steps ranks solutions best depends on what the model was trained on (Monte-Carlo labels favour `last`, labels by
people or LLM judges `prod` and `min`), so every reported number names its aggregation.

    scores = score_episodes(model, episodes)
    value = episode_value(scores[0], "success")
    aggregate([0.9, 0.8, 0.1], "min")                     # 0.1
    solution_value(model.score([episode])[0], "prod")     # a number, or the Failure
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError, DataError
from guerdon.files.atomic import write_json, write_text
from guerdon.processes.attempts import attempt_each
from guerdon.processes.call_queue import calls_of
from guerdon.processes.progress import ProgressBar
from guerdon.reading.chats import unreadable_texts
from guerdon.settings.evaluate import Aggregation
from guerdon.settings.reward_models import relative
from guerdon.types import Episode, Failure, RewardInfo, RewardModel, Score

Kind = Literal["success", "progress"]
RECORD = "evaluation.json"


def score_episodes(model: RewardModel, episodes: Sequence[Episode]) -> list[Score]:
    """One Score per episode; per-row values of another length than the episode become a `Failure`.

    An episode with a text that no model can read (`unreadable_texts`) is a `Failure` and is not given to the model. An
    episode at which the model raises is a `Failure("model_error")`; of a model that compares, all are. May be called
    from several threads: a `score` that does not say how (`guerdon.processes.call_queue`) is called one at a time.

    Raises:
        DataError: the model gave another number of scores than there are episodes.
        GuerdonError: as the model raised it.
        Exception: one of the model which says that the machine has no memory or disk left (`is_of_machine`).
    """
    unread = unreadable_texts(episodes)
    if unread:
        rest = iter(score_episodes(model, [one for i, one in enumerate(episodes) if i not in unread]))
        return [Score(failure=unread[i]) if i in unread else next(rest) for i in range(len(episodes))]
    name, compares = model.info.name, model.info.compares

    def measure(part: Sequence[Episode]) -> Sequence[Score]:
        scores = model.score(list(part))
        if len(scores) != len(part):
            raise DataError(
                f"reward model {name!r} gave {len(scores)} scores for {len(part)} episodes; `score` must give one per "
                "episode, in order"
            )
        return scores

    with nullcontext() if getattr(model.score, "thread_safe", False) else calls_of(model).alone():
        what = f"the reward model {name}"
        found = attempt_each(what, "model_error", measure, episodes, together=compares) if episodes else []
    checked = []
    for one, episode in zip(found, episodes, strict=True):
        score = Score(failure=one) if isinstance(one, Failure) else one
        if score.steps is not None and score.steps.shape != (len(episode),):
            score = Score(failure=Failure("wrong_length", f"{score.steps.shape} values for {len(episode)} rows"))
        checked.append(score)
    return checked


def failure_counts(scores: Iterable[Score]) -> dict[str, int]:
    """How often each reason occurs, most frequent first."""
    counts = Counter(score.failure.reason for score in scores if score.failure is not None)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def failure_line(failures: Mapping[str, int]) -> str:
    """How often each reason occurs, in words."""
    return "failed measurements: " + (", ".join(f"{reason} x {n}" for reason, n in failures.items()) or "none")


def info_record(info: RewardInfo) -> dict[str, Any]:
    """What a model says of itself as JSON values; an end of its range that is infinite is None."""
    return {**asdict(info), "range": [float(end) if np.isfinite(end) else None for end in info.range]}


def write_record(folder: Path, record: dict[str, Any], pictures: Mapping[str, str], text: str) -> dict[str, Path]:
    """Write an evaluation: pictures, `evaluation.txt`, and last `evaluation.json` with the files of the pictures.

    Returns:
        Paths by name: `json`, `text` and those of the pictures.
    """
    paths = {name: folder / f"{name}.svg" for name in pictures}
    paths |= {"text": folder / "evaluation.txt", "json": folder / RECORD}
    record["pictures"] = {name: paths[name].name for name in pictures}
    for name, content in {**pictures, "text": text}.items():
        write_text(paths[name], content)
    write_json(paths["json"], record)
    return paths


def episode_value(score: Score, kind: Kind) -> float | None:
    """One number per episode: its total; else the largest row value (success) or the last one (progress).

    An episode counts as successful once any row does, so the value of a success classifier is its maximum.
    """
    if score.total is not None:
        return float(score.total)
    if score.steps is None or score.steps.size == 0:
        return None
    return float(score.steps.max() if kind == "success" else score.steps[-1])


AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
PURE_TEMPERATURE = 0.1  # Cheng et al. 2025 (2504.15275)
_ROUNDING = 1e-6  # a probability computed in single precision may end this far outside [0, 1]


def aggregate(steps_T: ArrayLike, how: Aggregation) -> float:
    """One value from the probabilities of T steps, again between 0 and 1.

    `pure_min` weighs steps by softmax_s(-r_s / 0.1) of r = 2p - 1 (PURE, 2504.15275, eq. 6): sum_s w_s p_s, which
    ranks as their sum of w_s r_s does.

    Args:
        steps_T: (T,) probabilities.
        how: which aggregation.

    Raises:
        ValueError: there is no step, or a value outside [0, 1].
    """
    p = np.asarray(steps_T, dtype=np.float64)
    if p.ndim != 1 or not p.size:
        raise ValueError(f"values of steps have shape (T,) with T at least 1, got {p.shape}")
    if not (np.isfinite(p).all() and p.min() >= -_ROUNDING and p.max() <= 1 + _ROUNDING):
        raise ValueError(f"values of steps must be probabilities; they lie in [{p.min():g}, {p.max():g}]")
    p = p.clip(0.0, 1.0)
    match how:
        case "min":
            return float(p.min())
        case "prod":
            return float(np.exp(np.log(p).sum())) if p.all() else 0.0
        case "last":
            return float(p[-1])
        case "mean":
            return float(p.mean())
        case "pure_min":
            weights = np.exp(-2.0 * (p - p.min()) / PURE_TEMPERATURE)
            return float(weights @ p / weights.sum())


def solution_value(score: Score, how: Aggregation) -> float | Failure:
    """One number per solution: the aggregated steps, or the total of a model that judges whole solutions only.

    Returns:
        The failure of the measurement where there is none; `not_probabilities` where steps lie outside [0, 1].
    """
    if score.failure is not None:
        return score.failure
    if score.steps is None:
        assert score.total is not None
        return float(score.total)
    try:
        return aggregate(score.steps, how)
    except ValueError as error:
        return Failure("no_step" if not score.steps.size else "not_probabilities", str(error))


def score_solutions(
    model: RewardModel,
    solutions: Sequence[Solution],
    *,
    groups: Sequence[int] = (),
    batch_size: int = 64,
    what: str | None = None,
    lines: int = 4,
) -> list[Score]:
    """One Score per solution, in order; a solution without a step is a `Failure("no_step")`.

    Args:
        model: any reward model for text.
        solutions: what it scores.
        groups: of each solution, those of a group side by side: what a model that compares judges together, in one
            call; empty: solutions to the same question.
        batch_size: solutions per call.
        what: what to call them where progress is shown; None shows none.
        lines: of progress, where there is no terminal.

    Raises:
        DataError: the model gave another number of scores than it was given solutions.
    """
    progress = None if what is None else ProgressBar(len(solutions), what=what, lines=lines)
    scores: list[Score] = []
    for part in _batches(len(solutions), groups, batch_size):
        names = map(str, groups[part]) if groups else repeat(None)
        scores += _scores_of_batch(model, solutions[part], names)
        if progress is not None:
            progress.advance(len(scores), "")
    if progress is not None:
        progress.close()
    return scores


def _batches(count: int, groups: Sequence[int], size: int) -> Iterator[slice]:
    """So many places in batches of a size, the last ones of which go on to the end of their group."""
    start = 0
    while start < count:
        end = start + size
        while end < len(groups) and groups[end] == groups[end - 1]:
            end += 1
        yield slice(start, end)
        start = end


def _scores_of_batch(model: RewardModel, solutions: Sequence[Solution], names: Iterable[str | None]) -> list[Score]:
    """One Score per solution; the names are those of their groups."""
    episodes = [
        solution.as_episode(name) if solution.steps else None for solution, name in zip(solutions, names, strict=False)
    ]
    found = iter(score_episodes(model, [episode for episode in episodes if episode is not None]))
    return [Score(failure=Failure("no_step")) if episode is None else next(found) for episode in episodes]


def need_steps(scores: Sequence[Score]) -> list[Score]:
    """The same scores; those that judge whole solutions only are a `Failure("no_step_values")` where steps count."""
    lacking = Score(failure=Failure("no_step_values", "the model judges whole solutions only"))
    return [lacking if score.failure is None and score.steps is None else score for score in scores]


def subset_of(solution: Solution) -> str:
    """The part of a benchmark that a solution belongs to: `meta["subset"]`, else `all`."""
    return str(solution.meta.get("subset", "all"))


def paired(solutions: Sequence[Solution], scores: Sequence[Score]) -> list[tuple[Solution, Score]]:
    """Solutions with their scores.

    Raises:
        DataError: there is no solution, or the numbers differ.
    """
    if not solutions:
        raise DataError("no solution to evaluate on: check the path, or what was filtered out")
    if len(solutions) != len(scores):
        raise DataError(f"{len(scores)} scores for {len(solutions)} solutions; there must be one each, in order")
    return list(zip(solutions, scores, strict=True))


def refuse_relative(model: RewardModel, name: str, *, key: str | None = None) -> None:
    """Refuse a model whose values hold among the responses to one prompt only: an evaluation compares all of them.

    Args:
        model: it.
        name: what a message calls it.
        key: that names it, if one does.

    Raises:
        ConfigError: it is such a model.
    """
    if model.info.compares:
        raise ConfigError(f"{relative(name)}: an evaluation compares the values of different prompts", key=key)
