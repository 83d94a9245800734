"""What the gate looks at, two figures of a reward model; None where one is not defined.

For robots they are of held-out episodes that were scored once, for text of the evaluation.

    features = robot_features(episodes, scores, kind="success", threshold=0.5)
    print(features["epic"], features["bon16"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from guerdon.episodes.targets import dense_rewards, episode_success, row_steps
from guerdon.evaluation.benchmarks.best_of_n import best_of, pass_at
from guerdon.evaluation.metrics import pearson
from guerdon.models.scores import Kind
from guerdon.statistics.intervals import Float64
from guerdon.types import Episode, Score

CHOICES = 16  # episodes that one is chosen from
Features = dict[str, float | None]


def text_features(record: Mapping[str, Any]) -> Features:
    """Features of a reward model for text, from the content of its `evaluation.json`.

    Of several sets of solutions the first counts: the generated one, ProcessBench, the policy's own.
    """
    sections = (record[name] for name in ("generated", "process_bench", "samples") if name in record)
    section: Mapping[str, Any] = next(sections, {})
    parts = {"row_auroc": "steps", "auroc": "answers"}
    return {name: section.get(part, {}).get("auroc", {}).get("estimate") for name, part in parts.items()}


def robot_features(
    episodes: Sequence[Episode], scores: Sequence[Score], *, kind: Kind, threshold: float | None
) -> Features:
    """Features of a reward model for robots: `epic`, see `epic_distance`, and `bon16`, see `selection_gain`.

    `epic` compares rewards of the held-out episodes' transitions. Both rewards are taken as those of the state arrived
    at, f(s'): exact for models of single frames, an approximation for a true reward that looks at the action. `bon16`
    chooses by the return in RL: the whole change of a progress model's value, else the mean reward.

    Args:
        episodes: held-out ones.
        scores: of these.
        kind: how values of rows become rewards, see `model_rewards`.
        threshold: the reward of a success model in RL is 1 above it, else 0; None: its values are the rewards.
    """
    longest = max((float(row_steps(e)[-1]) for e in episodes), default=0.0)
    own, true = [np.empty(0)], [np.empty(0)]
    returns: list[float] = []
    outcomes: list[bool] = []
    for episode, score, dense in zip(episodes, scores, dense_rewards(episodes), strict=True):
        reward = model_rewards(score, kind, threshold)
        if reward is not None and dense is not None:
            own.append(reward[1:])
            true.append(dense[1:])
        won = episode_success(episode)
        value = score.total if reward is None else _return(reward, row_steps(episode), kind, longest)
        if value is not None and won is not None:
            returns.append(float(value))
            outcomes.append(won)
    return {
        "epic": epic_distance(np.concatenate(own), np.concatenate(true)),
        "bon16": selection_gain(returns, outcomes),
    }


def model_rewards(score: Score, kind: Kind, threshold: float | None) -> Float64 | None:
    """(T,) the reward of arriving at each row, up to potential shaping; None without a value per row.

    That of a success model is 1 above the threshold and 0 else (its value, without one). That of a progress model is
    the change of its value, V(s') - V(s) = (1 - g) V(s') + (g V(s') - V(s)) with the discount g: up to scale and
    potential shaping V(s').
    """
    if score.steps is None:
        return None
    values = score.steps.astype(np.float64)
    return values if kind == "progress" or threshold is None else (values > threshold).astype(np.float64)


def _return(reward_T: Float64, steps_T: Float64, kind: Kind, longest: float) -> float:
    return float(reward_T[-1] - reward_T[0]) if kind == "progress" else held_mean(reward_T, steps_T, longest)


def held_mean(values_T: Float64, steps_T: Float64, length: float) -> float:
    """Mean over `length` environment steps, where the reward of a row is that of each step that led to it.

    An episode that was cut short goes on with its last value: recordings often end soon after success.

    Args:
        values_T: rewards; that of row 0 counts only where there is no other.
        steps_T: environment steps at each row.
        length: at least the last of them.
    """
    weights = np.append(np.diff(steps_T), max(0.0, length - float(steps_T[-1])))
    total = float(weights.sum())
    return float(weights @ np.append(values_T[1:], values_T[-1])) / total if total > 0 else float(values_T[-1])


def epic_distance(a_N: ArrayLike, b_N: ArrayLike) -> float | None:
    """EPIC distance of two rewards f(s') of the states arrived at (Gleave et al. 2021, 2006.13900).

    The canonically shaped reward R(s,a,s') + E[gamma R(s',A,S') - R(s,A,S') - gamma R(S,A,S')] of R = f(s') + g(s) is
    h(s') - E[h] with h = f + gamma g: 0 for potential shaping, and f(s') less a constant for f(s'). So their Pearson
    distance sqrt((1 - rho) / 2) over the N transitions is that of a and b: 0 equal up to scale and shift, 1 for the
    negated reward. None where one is constant.
    """
    rho = pearson(a_N, b_N)
    return None if rho is None else float(np.sqrt((1 - rho) / 2))


def selection_gain(returns: Sequence[float], outcomes: Sequence[bool], n: int = CHOICES) -> float | None:
    """How much of what choosing the highest return of n could gain is gained: 0 chance, 1 the oracle.

    Negative: worse than chance. None with fewer than n, or where nothing could be gained.
    """
    if len(returns) < n:
        return None
    mean, most = float(np.mean(outcomes)), pass_at(outcomes, n)
    return (best_of(returns, outcomes, n) - mean) / (most - mean) if most - mean > 1e-12 else None
