"""Features of a reward model for the gate, beyond the metrics of its evaluation.

Distances to the true reward, returns of episodes in RL and what choosing by them gains, precision far from success,
near misses and wandering, irrelevant pixels.
Values are of held-out episodes that were scored once; only `pixel_features` scores again. What is undefined is None.

    features = gate_features(model, episodes, scores, kind="success", threshold=0.5, limit=0.5, seed=0)
    print(features["epic"], features["return_rank"], features["bon4"])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from guerdon.episodes.solutions import Solution
from guerdon.episodes.targets import (
    dense_rewards,
    episode_success,
    first_success,
    progress_targets,
    row_steps,
    success_labels,
)
from guerdon.evaluate.best_of_n import BestOfN, best_of, pass_at
from guerdon.evaluate.classification import auroc, point
from guerdon.evaluate.intervals import Float64
from guerdon.evaluate.metrics import kendall_tau, pearson, spearman
from guerdon.evaluate.probe_checks import without_truth
from guerdon.evaluate.scores import Kind, episode_value, score_episodes
from guerdon.types import ByteArray, Episode, Failure, RewardInfo, RewardModel, Score

FAR = 25  # environment steps: a row more than so many before the first success is far from it
CHOICES = (4, 16)  # episodes or responses that one is chosen from
GAMMA = 0.99  # of potentials, per environment step
ROWS_PER_COLUMN = 5  # fewest rows for each column of the state: with fewer, least squares fits anything
_AIMING = ("expert", "noisy")  # actors that try: what they fail at are near misses

Features = dict[str, float | None]


def gate_features(
    model: RewardModel,
    episodes: Sequence[Episode],
    scores: Sequence[Score],
    *,
    kind: Kind,
    threshold: float | None,
    limit: float | None,
    seed: int,
) -> Features:
    """All features of a reward model for robots, by name; None where one is not measurable.

    Args:
        model: scores again, at most twice as many rows as the episodes have.
        episodes: held-out ones.
        scores: of these.
        kind: how values of rows become rewards, see `model_rewards`.
        threshold: the reward of a success model in RL is 1 above it, else 0; None: its values are the rewards.
        limit: a value above it is judged successful; None: nothing is judged.
        seed: of the noise.
    """
    rewards = [model_rewards(score, kind, threshold) for score in scores]
    decides = kind == "success" and threshold is not None and model.info.granularity == "step"
    longest = max((float(row_steps(e)[-1]) for e in episodes), default=0.0)
    returns = [
        _return(episode, score, reward, kind, longest)
        for episode, score, reward in zip(episodes, scores, rewards, strict=True)
    ]
    return {
        **reward_distances(episodes, rewards),
        **return_features(episodes, returns, longest=longest, width=1.0 if decides else _width(model.info)),
        **precision_features(
            episodes, scores, kind=kind, limit=limit, horizon=model.info.progress_horizon,
            errors=model.info.range[0] >= 0 and model.info.range[1] <= 1,
        ),
        "near_miss": near_miss(episodes, scores),
        **pixel_features(model, episodes, scores, kind=kind, seed=seed),
    }  # fmt: skip


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


def _return(episode: Episode, score: Score, reward: Float64 | None, kind: Kind, longest: float) -> float | None:
    """The return of the episode in RL: the whole change of a progress model's value, else the mean reward."""
    if reward is None:
        return None if score.total is None else float(score.total)
    return float(reward[-1] - reward[0]) if kind == "progress" else held_mean(reward, row_steps(episode), longest)


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


def _width(info: RewardInfo) -> float | None:
    """Width of the range of a model's values; None where they have no bounds."""
    width = float(info.range[1] - info.range[0])
    return width if np.isfinite(width) else None


# Distances to the true reward.


def reward_distances(episodes: Sequence[Episode], rewards: Sequence[Float64 | None]) -> Features:
    """`epic`, `dard` and `starc` of a model's rewards (T,) to the dense ones; the two last need states.

    The coverage distribution is the held-out episodes' transitions. Both rewards are taken as those of the state
    arrived at, f(s'): exact for models of single frames, an approximation for a true reward that looks at the action.
    """
    own, true, before, after, gammas = [], [], [], [], []
    for episode, reward, dense in zip(episodes, rewards, dense_rewards(episodes), strict=True):
        if reward is not None and dense is not None:
            own.append(reward[1:])
            true.append(dense[1:])
            gammas.append(GAMMA ** np.diff(row_steps(episode)))
            if episode.states is not None:
                before.append(episode.states[:-1].astype(np.float64))
                after.append(episode.states[1:].astype(np.float64))
    found: Features = {"epic": None, "dard": None, "starc": None}
    if not sum(map(len, own)):
        return found
    a_N, b_N, gamma_N = np.concatenate(own), np.concatenate(true), np.concatenate(gammas)
    found["epic"] = epic_distance(a_N, b_N)
    if len(before) == len(own) and len({states.shape[1] for states in before}) == 1:
        columns = _columns(np.concatenate(before), np.concatenate(after))
        if len(a_N) >= ROWS_PER_COLUMN * columns[0].shape[1]:
            found["dard"] = dard_distance(a_N, b_N, columns[0])
            found["starc"] = starc_distance(a_N, b_N, *columns, gamma_N)
    return found


def _columns(before_N_S: Float64, after_N_S: Float64) -> tuple[Float64, Float64]:
    """States before and after, standardised together, without constant columns, and a column of ones."""
    both = np.concatenate([before_N_S, after_N_S])
    spread = both.std(axis=0)
    varies = spread > 1e-9
    centre, ones = both.mean(axis=0), np.ones((len(before_N_S), 1))
    before, after = (
        np.concatenate([ones, (side - centre)[:, varies] / spread[varies]], axis=1) for side in (before_N_S, after_N_S)
    )
    return before, after


def epic_distance(a_N: ArrayLike, b_N: ArrayLike) -> float | None:
    """EPIC distance of two rewards f(s') of the states arrived at (Gleave et al. 2021, 2006.13900).

    The canonically shaped reward R(s,a,s') + E[gamma R(s',A,S') - R(s,A,S') - gamma R(S,A,S')] of R = f(s') + g(s) is
    h(s') - E[h] with h = f + gamma g: 0 for potential shaping, and f(s') less a constant for f(s'). So their Pearson
    distance sqrt((1 - rho) / 2) over the N transitions is that of a and b: 0 equal up to scale and shift, 1 for the
    negated reward. None where one is constant.
    """
    return _pearson_distance(np.asarray(a_N, dtype=np.float64), np.asarray(b_N, dtype=np.float64))


def dard_distance(a_N: ArrayLike, b_N: ArrayLike, before_N_F: Float64) -> float | None:
    """DARD of two rewards f(s') of the states arrived at (Wulfe et al. 2022, 2201.10081).

    The dynamics-aware transformation R(s,a,s') + E[gamma R(s',A,S'') - R(s,A,S') - gamma R(S',A,S'')], where S' follows
    s and S'' follows s', of R = f(s') + g(s) is h(s') - E[h(S') | s] with h = f + gamma g. The expectation is a linear
    least-squares fit to features of s over the N transitions (so A is what their policies did), where the paper samples
    a model of the dynamics. Then the Pearson distance, as in `epic_distance`.

    Args:
        a_N: one reward.
        b_N: the other.
        before_N_F: features of the states left, with a column of ones.
    """
    return _pearson_distance(*(_residual(np.asarray(one, dtype=np.float64), before_N_F) for one in (a_N, b_N)))


def starc_distance(
    a_N: ArrayLike, b_N: ArrayLike, before_N_F: Float64, after_N_F: Float64, gamma: ArrayLike
) -> float | None:
    """STARC distance of two rewards of transitions (Skalse et al. 2024, 2309.15257).

    The canonicalisation is a minimal one: of all rewards that differ by potential shaping, the one of least L2 norm
    over the N transitions, here for potentials linear in features of the state. It is the residual of the reward on
    gamma phi(s') - phi(s). Redistribution over successors, which the paper also allows, cannot be told from one
    successor each. Then half the L2 distance of the two, each divided by its norm: 0 equal up to scale and shaping, 1
    for the negated reward. None where nothing but shaping is left of a reward.

    Args:
        a_N: one reward of each transition.
        b_N: the other.
        before_N_F: features of the states left, with a column of ones.
        after_N_F: of the states arrived at.
        gamma: discount of each transition, (N,) or one for all.
    """
    shaping = np.broadcast_to(np.asarray(gamma, dtype=np.float64), len(before_N_F))[:, None] * after_N_F - before_N_F
    a, b = (_residual(np.asarray(one, dtype=np.float64), shaping) for one in (a_N, b_N))
    sizes = np.linalg.norm(a), np.linalg.norm(b)
    return None if 0 in sizes else float(np.clip(np.linalg.norm(a / sizes[0] - b / sizes[1]) / 2, 0, 1))


def _residual(reward_N: Float64, columns_N_F: Float64) -> Float64:
    """What least squares leave of a reward; exact zeros where they leave no more than rounding."""
    left = reward_N - columns_N_F @ np.linalg.lstsq(columns_N_F, reward_N, rcond=1e-9)[0]
    return left if np.linalg.norm(left) > 1e-7 * np.linalg.norm(reward_N) else np.zeros_like(left)


def _pearson_distance(a_N: Float64, b_N: Float64) -> float | None:
    rho = pearson(a_N, b_N)
    return None if rho is None else float(np.sqrt((1 - rho) / 2))


# Returns.


def return_features(
    episodes: Sequence[Episode], returns: Sequence[float | None], *, longest: float, width: float | None
) -> Features:
    """`reward_variance`, `return_rank`, `wandering`, `bon4` and `bon16` from the return of each episode.

    - `reward_variance`: see `reward_variance`; the groups are the agents (`meta["checkpoint"]`, else `meta["policy"]`).
    - `return_rank`: Kendall's tau-b with the true return (mean dense reward; without one, share of steps in success),
      mean over agents by their episodes.
    - `wandering`: share of pairs in which a failure of random actions has a higher return than a success, ties half.
    - `bon`n: `selection_gain` of choosing the episode with the highest return among n.

    Args:
        episodes: held-out ones.
        returns: of each; None where the measurement failed.
        longest: environment steps of the longest one.
        width: of the range of a return; None: that of these.
    """
    known = [(episode, value) for episode, value in zip(episodes, returns, strict=True) if value is not None]
    dense = dense_rewards([episode for episode, _ in known])
    use_dense = all(one is not None for one in dense)
    groups: dict[str, list[tuple[float, float | None]]] = {}
    for (episode, value), dense_T in zip(known, dense, strict=True):
        rewards = dense_T if use_dense else success_labels(episode)
        truth = None if rewards is None else held_mean(rewards.astype(np.float64), row_steps(episode), longest)
        agent = str(episode.meta.get("checkpoint", episode.meta.get("policy")))
        groups.setdefault(agent, []).append((value, truth))
    ranks = []
    for group in groups.values():
        pairs = [(value, true) for value, true in group if true is not None]
        own, true = zip(*pairs, strict=True) if pairs else ((), ())
        if len(pairs) > 2 and (tau := kendall_tau(own, true, "b")) is not None:
            ranks.append((tau, len(pairs)))
    judged = [(value, won) for episode, value in known if (won := episode_success(episode)) is not None]
    values, outcomes = [value for value, _ in judged], [won for _, won in judged]
    wandering = [(v, won) for (e, v) in known if (won := episode_success(e)) or _failed_by(e, ("random",))]
    order = point(auroc, [bool(won) for _, won in wandering], [value for value, _ in wandering])
    return {
        "reward_variance": reward_variance([[value for value, _ in group] for group in groups.values()], width),
        "return_rank": sum(tau * n for tau, n in ranks) / sum(n for _, n in ranks) if ranks else None,
        "wandering": None if order is None else 1 - order,
        **{f"bon{n}": _chosen_gain(values, outcomes, n) for n in CHOICES},
    }


def reward_variance(groups: Sequence[Sequence[float]], width: float | None) -> float | None:
    """Mean over groups x of Var[r(x, y)], y drawn from the policy (reward variance, Razin et al. 2025, 2503.15477).

    In the paper a group is what the policy does from one start (a prompt). Recordings of robots rarely start alike:
    theirs are the episodes of one agent. The reward is in units of its range, so that models can be compared.

    Args:
        groups: rewards; groups of one are left out.
        width: of the range of the reward; None: that of these rewards.

    Returns:
        Between 0 and 1/4 for rewards within the range, 1 for changes of a value within it; None without a group of
        two, or a width.
    """
    several = [np.asarray(group, dtype=np.float64) for group in groups if len(group) > 1]
    if not several:
        return None
    unit = float(np.ptp(np.concatenate(several))) if width is None else width
    return float(np.mean([group.var() for group in several])) / unit**2 if unit > 0 else None


def selection_gain(chosen: float, mean: float, most: float) -> float | None:
    """How much of what choosing could gain is gained: 0 chance, 1 the oracle; negative: worse than chance.

    Args:
        chosen: true success of what the model ranks first.
        mean: of all.
        most: of the best of each set.

    Returns:
        None where nothing could be gained.
    """
    return (chosen - mean) / (most - mean) if most - mean > 1e-12 else None


def _chosen_gain(values: Sequence[float], outcomes: Sequence[bool], n: int) -> float | None:
    if len(values) < n:
        return None
    return selection_gain(best_of(values, outcomes, n), float(np.mean(outcomes)), pass_at(outcomes, n))


def no_response_features() -> Features:
    """Those of `response_features` where there are no responses to choose from."""
    return dict.fromkeys(("reward_variance", *(f"bon{n}" for n in CHOICES)))


def response_features(
    curves: BestOfN,
    aggregation: str,
    solutions: Sequence[Solution],
    values: Sequence[float | Failure],
    info: RewardInfo,
) -> Features:
    """`reward_variance`, `bon4` and `bon16` of a reward model for text, from the responses to each question.

    Args:
        curves: of best-of-n.
        aggregation: how values of steps become one of a response.
        solutions: the responses.
        values: of these.
        info: of the model that gave them.
    """
    groups: dict[str, list[float]] = {}
    for solution, value in zip(solutions, values, strict=True):
        if not isinstance(value, Failure):
            groups.setdefault(solution.asked, []).append(value)
    found = no_response_features() | {"reward_variance": reward_variance(list(groups.values()), _width(info))}
    right: dict[str, list[bool]] = {}
    for solution in solutions:
        if solution.is_correct is not None:
            right.setdefault(solution.asked, []).append(solution.is_correct)
    own, every = curves.failures_wrong.get(f"bon_{aggregation}"), curves.failures_wrong["pass"]
    for n in CHOICES:
        means = [float(np.mean(answers)) for answers in right.values() if len(answers) >= n]  # questions of the curves
        if own is not None and n in curves.n and means:
            at = curves.n.index(n)
            chosen, most = own.accuracy[at].estimate, every.accuracy[at].estimate
            if chosen is not None and most is not None:
                found[f"bon{n}"] = selection_gain(chosen, float(np.mean(means)), most)
    return found


# Precision.


def precision_features(
    episodes: Sequence[Episode],
    scores: Sequence[Score],
    *,
    kind: Kind,
    limit: float | None,
    horizon: float | None,
    errors: bool,
) -> Features:
    """Rows of successful episodes far before the first success (more than 25 steps) and near before it, where labelled.

    `far_false_positives` and `near_false_positives` are shares judged successful, `far_error` and `near_error` mean
    distances of values from the truth: the progress target, or 0 for a success model.

    Args:
        episodes: held-out ones.
        scores: of these.
        kind: of the model.
        limit: a value above it is judged successful; None: nothing is judged.
        horizon: see `progress_targets`.
        errors: values and truth share a unit.
    """
    judged: dict[str, list[Float64]] = {"far": [], "near": []}
    missed: dict[str, list[Float64]] = {"far": [], "near": []}
    for episode, score in zip(episodes, scores, strict=True):
        first, steps = first_success(episode), row_steps(episode)
        if not episode_success(episode) or episode.success is None or first is None or score.steps is None:
            continue
        values, left = score.steps[:first].astype(np.float64), (steps[first] - steps)[:first]
        target = np.zeros(len(episode)) if kind == "success" else progress_targets(episode, horizon=horizon)
        for name, rows in (("far", left > FAR), ("near", left <= FAR)):
            judged[name].append((values[rows] > (np.inf if limit is None else limit)).astype(np.float64))
            if target is not None and errors:
                error = np.abs(values - target[:first])[rows]
                missed[name].append(error[np.isfinite(error)])
    rates = {f"{name}_false_positives": None if limit is None else _mean(found) for name, found in judged.items()}
    return rates | {f"{name}_error": _mean(found) for name, found in missed.items()}


def _mean(parts: Sequence[Float64]) -> float | None:
    together = np.concatenate([np.empty(0), *parts])
    return float(together.mean()) if together.size else None


def near_miss(episodes: Sequence[Episode], scores: Sequence[Score]) -> float | None:
    """Share of the failures of scripted experts whose highest value is above the median of successes, ties half."""
    highest = [None if score.failure else float(_values(score).max(initial=-np.inf)) for score in scores]
    won = [v for e, v in zip(episodes, highest, strict=True) if v is not None and episode_success(e)]
    lost = [v for e, v in zip(episodes, highest, strict=True) if v is not None and _failed_by(e, _AIMING)]
    return float((1 + np.sign(np.array(lost) - np.median(won))).mean() / 2) if won and lost else None


def _failed_by(episode: Episode, agents: Sequence[str]) -> bool:
    return episode_success(episode) is False and episode.meta.get("policy") in agents


# Irrelevant pixels.


def pixel_features(
    model: RewardModel, episodes: Sequence[Episode], scores: Sequence[Score], *, kind: Kind, seed: int
) -> Features:
    """`pixel_change` and `agreement`: what a grey border, more light, noise and a small shift do to the values.

    `pixel_change` is the mean change under border, light and noise, over the distance between the mean values of
    successful and failed episodes. `agreement` is the mean Spearman correlation of values before and after light, noise
    and shift. Each change is made to episodes of half of the rows, so that twice the rows are scored in all.
    """
    found: Features = {"pixel_change": None, "agreement": None}
    picked = _half(episodes, scores) if model.info.modality == "image" and model.info.frames_needed > 0 else []
    if not picked:
        return found
    rng = np.random.default_rng(seed)
    changes: dict[str, Callable[[ByteArray], ByteArray]] = {
        "border": grey_border, "light": brighter, "noise": lambda frames: noisy(frames, rng), "shift": shifted,
    }  # fmt: skip
    moved, orders = [], []
    for name, change in changes.items():
        scored = score_episodes(model, [_with_frames(episodes[i], change) for i in picked])
        pairs = [(scores[i], new) for i, new in zip(picked, scored, strict=True) if new.failure is None]
        before, after = (np.concatenate([np.empty(0), *(_values(pair[k]) for pair in pairs)]) for k in (0, 1))
        if name != "shift" and before.size:
            moved.append(float(np.abs(after - before).mean()))
        if name != "border":
            orders.append(spearman(before, after))
    values = [(episode_success(e), episode_value(s, kind)) for e, s in zip(episodes, scores, strict=True)]
    won, lost = ([v for outcome, v in values if outcome is one and v is not None] for one in (True, False))
    apart = abs(float(np.mean(won) - np.mean(lost))) if won and lost else 0.0
    if moved and apart > 0:
        found["pixel_change"] = float(np.mean(moved)) / apart
    known = [order for order in orders if order is not None]
    found["agreement"] = float(np.mean(known)) if known else None
    return found


def _half(episodes: Sequence[Episode], scores: Sequence[Score]) -> list[int]:
    """Measured episodes with frames, successful and other ones in turn, of at most half of all rows."""
    usable = [i for i, s in enumerate(scores) if s.failure is None and episodes[i].frames is not None]
    won = [i for i in usable if episode_success(episodes[i])]
    rest = [i for i in usable if not episode_success(episodes[i])]
    turns = sorted([*enumerate(won), *enumerate(rest)])
    room, picked = sum(map(len, episodes)) // 2, []
    for _, i in turns:
        if len(episodes[i]) <= room:
            picked.append(i)
            room -= len(episodes[i])
    return picked


def _values(score: Score) -> Float64:
    """Values of rows; of a model without, the one of the episode."""
    return np.asarray([score.total] if score.steps is None else score.steps, dtype=np.float64)


def _with_frames(episode: Episode, change: Callable[[ByteArray], ByteArray]) -> Episode:
    assert episode.frames is not None
    views = {name: change(frames) for name, frames in episode.views.items()}
    return without_truth(replace(episode, frames=change(episode.frames), views=views))


def grey_border(frames_T_H_W_C: ByteArray) -> ByteArray:
    """A grey border, a sixteenth of the shorter side wide."""
    height, width = frames_T_H_W_C.shape[1:3]
    edge = max(1, min(height, width) // 16)
    framed = np.full_like(frames_T_H_W_C, 128)
    inside = (slice(None), slice(edge, height - edge), slice(edge, width - edge))
    framed[inside] = frames_T_H_W_C[inside]
    return framed


def brighter(frames_T_H_W_C: ByteArray) -> ByteArray:
    """20 of 255 brighter."""
    return (np.minimum(frames_T_H_W_C, 235) + 20).astype(np.uint8)


def noisy(frames_T_H_W_C: ByteArray, rng: np.random.Generator) -> ByteArray:
    """Normal noise, with a standard deviation of 5 of 255."""
    noise = rng.standard_normal(frames_T_H_W_C.shape, dtype=np.float32) * 5
    return np.clip(np.round(frames_T_H_W_C + noise), 0, 255).astype(np.uint8)


def shifted(frames_T_H_W_C: ByteArray) -> ByteArray:
    """Down and to the right by a thirty-second of the shorter side; the edge is repeated."""
    height, width = frames_T_H_W_C.shape[1:3]
    by = max(1, min(height, width) // 32)
    rows, columns = (np.maximum(np.arange(size) - by, 0) for size in (height, width))
    return frames_T_H_W_C[:, rows][:, :, columns]
