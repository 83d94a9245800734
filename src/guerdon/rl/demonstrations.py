"""Demonstrations of a data set in the replay of a run: episodes as a rollout, which every source measures.

note = add_demonstrations(learner, env, shape, sources)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from guerdon.collect.policy_shape import PolicyShape
from guerdon.episodes.layout import ACTION, REWARD, STATE, SUCCESS, camera_names, load_info
from guerdon.episodes.read import cameras_of, read_episodes
from guerdon.episodes.targets import check_every_row
from guerdon.errors import DataError
from guerdon.policies.robots.control import ControlPolicy
from guerdon.policies.robots.heads import Squashed
from guerdon.policies.robots.robot import ControlInputs
from guerdon.rewards.control_sources import ControlReward
from guerdon.rewards.source import RewardSource
from guerdon.settings.world import WorldSettings
from guerdon.types import Episode, FloatArray, Rewards, Rollout, Segment
from guerdon.worlds.observation import columns_as_rows
from guerdon.worlds.spaces import PIXELS, ObservedColumn, action_bounds, choices, chosen_columns, is_numeric, state_keys

if TYPE_CHECKING:
    from guerdon.rl.off_policy import ReplayLearner

_TOGETHER = 16  # episodes in memory at a time


class _Bounds(NamedTuple):
    """(A,) the smallest and largest actions that are within the action space."""

    low: FloatArray
    high: FloatArray

    def outside(self, actions_N: FloatArray) -> int:
        """How many of (N, A) actions are not within them."""
        beyond = (actions_N < self.low - 1e-3) | (actions_N > self.high + 1e-3)
        return int(beyond.any(axis=1).sum())


@dataclass
class _Counts:
    """What was found in the demonstrations."""

    episodes: int = 0
    steps: int = 0
    successes: int = 0
    outside: int = 0  # actions beyond the bounds
    short: int = 0  # episodes without a step
    only_success: bool = True  # every reward is 1 at success and 0 else

    def add(self, rollout: Rollout[ControlInputs], bounds: _Bounds) -> None:
        """The episodes of a rollout."""
        self.episodes += len(rollout.mask)
        self.steps += rollout.steps
        self.successes += int(rollout.success.any(axis=1).sum())
        self.outside += bounds.outside(rollout.inputs.actions[rollout.mask.reshape(-1)])
        self.only_success &= bool((rollout.rewards == rollout.success).all())

    def line(self, path: str, native_reward: str) -> str:
        """For the log."""
        parts = [
            f"demonstrations: {self.episodes} episodes, {self.successes} with success, {self.steps} steps from {path}"
        ]
        if self.short:
            parts.append(f"{self.short} more have one row and no step, and are left out")
        if self.outside:
            parts.append(
                f"{self.outside} of their actions are outside of the action space: are they in the environment's units?"
            )
        if native_reward == "dense" and self.only_success:
            parts.append("their rewards are 1 at success and 0 else: were they collected with env.native_reward dense?")
        return "; ".join(parts)


def add_demonstrations(
    learner: ReplayLearner, env: WorldSettings, shape: PolicyShape, sources: Mapping[str, RewardSource[Any]]
) -> str:
    """Fill the demonstrations of a learner, measured by the sources as they are.

    Args:
        learner: with an empty replay of demonstrations; its settings say where they are.
        env: says what the environment pays.
        shape: of what the policy observes and does.
        sources: of reward.

    Returns:
        A line for the log.

    Raises:
        DataError: they cannot be read, or are not of this environment.
    """
    path = learner.settings.demonstrations
    assert path is not None
    assert learner.demonstrations is not None
    seen = chosen_columns(shape.columns, learner.policy.settings.keys, "policy.keys")
    names = _pictures_needed(seen, shape, sources)
    rendered = bool(names & {"", PIXELS})
    cameras = _cameras(Path(path), names - {"", PIXELS}, env.camera_name if rendered else None)
    order = list(dict.fromkeys(cameras.values()))
    first = order[0] if order else None
    bounds = _bounds(learner.policy, shape)
    counts = _Counts()
    found = iter(read_episodes(Path(path), with_frames=bool(order), camera=first, views=order[1:]))
    while read := list(islice(found, _TOGETHER)):
        part = [_with_pictures(one, cameras, first) for one in read if len(one) > 1]
        counts.short += len(read) - len(part)
        if not part:
            continue
        rollout = as_rollout(part, env, shape, seen)
        learner.remember(learner.demonstrations, rollout, _measured(sources, rollout))
        learner.policy.observe(rollout.inputs, rollout.mask)
        counts.add(rollout, bounds)
    if not counts.episodes:
        raise DataError(f"algorithm.demonstrations: no episode of {path} has a step: all have one row")
    return counts.line(path, env.native_reward)


def _pictures_needed(
    seen: Sequence[ObservedColumn], shape: PolicyShape, sources: Mapping[str, RewardSource[Any]]
) -> set[str]:
    """Names of the pictures that the policy or a reward model looks at; "" and `PIXELS` are what is rendered."""
    names = {column.name for column in seen if column.kind == "image"}
    shown = {column.name for column in shape.own_columns if column.kind == "image"}.union(shape.cameras)
    for source in sources.values():
        if isinstance(source, ControlReward) and source.observes.frames:
            views = [view for view in source.observes.views if view in shown]
            names.add(views[0] if views else "")
    return names


def _bounds(policy: ControlPolicy, shape: PolicyShape) -> _Bounds:
    """The bounds of actions; those of a squashed policy where the space has none."""
    low, high = (bound.reshape(-1) for bound in action_bounds(shape.action_space))
    if not isinstance(policy.head, Squashed):
        return _Bounds(low, high)
    one = np.ones(len(low), np.float32)
    if policy.units is None:
        return _Bounds(-one, one)
    return _Bounds(policy.units.executed(-one), policy.units.executed(one))


def _measured(sources: Mapping[str, RewardSource[Any]], rollout: Rollout[ControlInputs]) -> dict[str, Rewards]:
    """What each source pays; reward models measure apart from the episodes of the run that are under way."""
    rewards = {}
    for name, source in sources.items():
        if isinstance(source, ControlReward):
            source = source.elsewhere(len(rollout.mask))
        rewards[name] = source.measure(rollout)
    return rewards


def _cameras(path: Path, names: Iterable[str], rendered: str | None) -> dict[str, str]:
    """Cameras of a data set by the names of pictures, the one that is rendered under its own; the first comes first.

    Args:
        path: of the data set.
        names: keys of observations, or cameras of the environment; `pixels.front` is the camera front, too.
        rendered: the environment's first camera, where it is looked at.

    Raises:
        DataError: there is none for one of them.
    """
    wanted = [*([] if rendered is None else [rendered]), *sorted(set(names) - {rendered})]
    have = cameras_of(path, load_info(path)) if wanted else {}
    found: dict[str, str] = {}
    for name in wanted:
        own = next((one for one in camera_names(name) if one in have), None)
        if own is None and len(have) == len(wanted) == 1:  # there is no other
            own = next(iter(have))
        if own is None:
            raise DataError(
                f"algorithm.demonstrations: {path} has no pictures of {name}; it has {', '.join(have) or 'none'}",
                field=name,
            )
        found[name] = own
    return found


def _with_pictures(episode: Episode, cameras: Mapping[str, str], first: str | None) -> Episode:
    """The episode with its pictures under the names that the environment has for them."""
    views = {name: episode.frames if own == first else episode.views.get(own) for name, own in cameras.items()}
    return replace(episode, views={name: pictures for name, pictures in views.items() if pictures is not None})


def as_rollout(
    episodes: Sequence[Episode], env: WorldSettings, shape: PolicyShape, seen: Sequence[ObservedColumn]
) -> Rollout[ControlInputs]:
    """Whole episodes as the rollout that they were: a stream each.

    An episode ended the task where its recording says that the environment did (`terminated` in `meta`), and where it
    ends with a success and `env.end_on_success` says so; others were cut off.

    Args:
        episodes: of two rows and more, with all pictures that are looked at in `views`, by their names.
        env: `native_reward` and `end_on_success`.
        shape: of what the policy observes and does.
        seen: what of it the policy looks at; the rest is zeros.

    Raises:
        DataError: with the episode and what does not fit or is missing.
    """
    size, length = int(np.prod(shape.action_space.shape or ())), max(len(one) for one in episodes) - 1
    streams, parts = (len(episodes), length), [_observations(one, shape, seen) for one in episodes]
    shown = np.zeros((*streams, *parts[0].shape[1:]), parts[0].dtype)
    actions = np.zeros((*streams, size), np.float32)
    rewards = np.zeros(streams, np.float32)
    flags: dict[str, Any] = {
        name: np.zeros(streams, np.bool_) for name in ("mask", "terminated", "truncated", "success", "success_known")
    }
    ends, segments = [], []
    for i, one in enumerate(episodes):
        rows, t = parts[i], len(one) - 1
        known, success = _success(one, needed=env.native_reward == "sparse")
        if one.actions is None or one.actions.shape[1] != size:
            has = "none" if one.actions is None else f"actions of {one.actions.shape[1]}"
            raise DataError(
                f"demonstration {one.id}: the environment takes actions of {size} numbers, it has {has}", field=ACTION
            )
        _check_actions(one.id, one.actions[1:], choices(shape.action_space))
        shown[i, :t], actions[i, :t], flags["mask"][i, :t] = rows[:-1], one.actions[1:], True
        flags["success"][i, :t], flags["success_known"][i, :t] = success[1:], known[1:]
        over = bool(one.meta.get("terminated")) or (bool(success[-1]) and env.end_on_success)
        flags["terminated"][i, t - 1], flags["truncated"][i, t - 1] = over, not over
        rewards[i, :t] = success[1:] if env.native_reward == "sparse" else _rewards(one)[1:]
        ends.append((i, t - 1, rows[-1]))
        truth = tuple(bool(s) if k else None for s, k in zip(success, known, strict=True))
        segments.append(_segment(i, one, truth, over, shape))
    nothing = np.zeros(streams, np.float32)
    return Rollout(
        inputs=ControlInputs(shown.reshape(-1, *shown.shape[2:]), actions.reshape(-1, size)),
        log_probs=nothing,
        **flags,
        rewards=rewards,
        failed=np.zeros(streams, np.bool_),
        segments=tuple(segments),
        steps=int(flags["mask"].sum()),
        fresh=True,
        actions=actions,
        ends=tuple(ends),
    )


def _observations(episode: Episode, shape: PolicyShape, seen: Sequence[ObservedColumn]) -> np.ndarray:
    """(T, ...) rows as the environment would have shown them: one array, or a field for each key.

    What actions were allowed is not known, so that all count as allowed.
    """
    check_every_row(episode)
    numbers, parts = _states(episode, shape), dict[str, np.ndarray]()
    names = {column.name for column in seen}
    for name, kind, wanted in shape.columns:
        if kind == "text":
            continue
        if kind == "mask":
            parts[name] = np.ones((len(episode), *wanted), np.bool_)
        elif name not in names:
            parts[name] = np.zeros((len(episode), *wanted), np.uint8 if kind == "image" else np.float32)
        elif kind == "image":
            pictures = _pictures(episode, name, wanted)
            parts[name] = _of_shape(episode, pictures, wanted, name or "frames", name or None)
        else:
            parts[name] = _numbers(episode, name, numbers, wanted)
    return columns_as_rows(parts) if len(parts) > 1 or "" not in parts else parts[""]


def _numbers(episode: Episode, name: str, numbers: Mapping[str, np.ndarray], wanted: tuple[int, ...]) -> np.ndarray:
    """(T, *wanted) the numbers of a key, which are finite.

    Raises:
        DataError: they are not, there are none, or they are of another size.
    """
    keys = f" (its states are {', '.join(filter(None, numbers))})" if any(numbers) else ""
    rows = _of_shape(episode, numbers.get(name), wanted, name or "states", name or STATE, keys)
    if not np.isfinite(rows).all():
        row = int(np.argwhere(~np.isfinite(rows))[0][0])
        raise DataError(
            f"demonstration {episode.id}, row {row}: its {name or 'state'} is not finite", field=name or STATE
        )
    return rows


def _of_shape(
    episode: Episode, rows: np.ndarray | None, wanted: tuple[int, ...], what: str, field: str | None, keys: str = ""
) -> np.ndarray:
    """(T, *wanted) the rows of an observation; `what` it is, its `field` and the `keys` there are in the error.

    Raises:
        DataError: there are none, or they are of another size.
    """
    if rows is not None and rows[0].size == np.prod(wanted):
        return rows.reshape(-1, *wanted)
    has = "none" if rows is None else f"those of shape {rows.shape[1:]}"
    raise DataError(
        f"demonstration {episode.id}: the policy observes {what} of shape {wanted}, it has {has}{keys}", field=field
    )


def _states(episode: Episode, shape: PolicyShape) -> dict[str, np.ndarray]:
    """(T, n) numbers of each key: by the names in the data set where it has them, else in the environment's order."""
    own = [(column.name, column.size) for column in shape.own_columns or shape.columns if is_numeric(column)]
    if episode.states is None or not own:
        return {}
    named = _own_keys(episode)
    if len(own) == 1 and not named:
        return {own[0][0]: episode.states}
    keys = named or own
    ends = np.cumsum([size for _, size in keys]).tolist()
    if ends[-1] != episode.states.shape[1]:
        raise DataError(
            f"demonstration {episode.id}: its states have {episode.states.shape[1]} numbers; the keys, side by side, "
            f"have {ends[-1]}: {', '.join(f'{name} ({size})' for name, size in keys)}",
            field=STATE,
        )
    return {name: episode.states[:, end - size : end] for (name, size), end in zip(keys, ends, strict=True)}


def _own_keys(episode: Episode) -> list[tuple[str, int]]:
    """Names and sizes of the parts of its states, as the data set has them; none where it does not say."""
    return [(str(name), int(size)) for name, size in episode.meta.get("state_keys", ())]


def _pictures(episode: Episode, name: str, wanted: tuple[int, ...]) -> np.ndarray | None:
    """(T, H, W, C) pictures of a key, or of the first camera; grey ones where the environment shows grey."""
    found = episode.views.get(name, episode.frames if name in ("", PIXELS) else None)
    grey = found is not None and wanted[-1] == 1 and bool((found == found[..., :1]).all())
    return found[..., :1] if grey and found is not None else found


def _check_actions(name: str, actions_T: np.ndarray, counts: tuple[int, ...] | None) -> None:
    """Refuse numbers that are no actions.

    Raises:
        DataError: with the first row that has one.
    """
    wrong = ~np.isfinite(actions_T)
    if counts is not None:
        wrong |= (actions_T != np.round(actions_T)) | (actions_T < 0) | (actions_T >= np.array(counts))
    if wrong.any():
        row, place = np.argwhere(wrong)[0]
        choose = "" if counts is None else f"; the environment has the choices 0 to {counts[place] - 1}"
        raise DataError(
            f"demonstration {name}, row {row}: its action is {actions_T[row, place]:g}{choose}", field=ACTION
        )


def _success(episode: Episode, *, needed: bool) -> tuple[np.ndarray, np.ndarray]:
    """(T,) whether success is known, and (T,) of each row, False where it is not; of an outcome alone, at the last one.

    Raises:
        DataError: it is unknown, and needed.
    """
    if episode.success is not None:
        return np.ones(len(episode), np.bool_), episode.success
    if episode.outcome is None and needed:
        raise DataError(
            f"demonstration {episode.id} has no outcome (next.success): label it, leave it out, or set "
            "env.native_reward: dense, which pays next.reward",
            field=SUCCESS,
        )
    known, found = np.zeros((2, len(episode)), np.bool_)
    known[-1], found[-1] = episode.outcome is not None, bool(episode.outcome)
    return known, found


def _rewards(episode: Episode) -> np.ndarray:
    kept = episode.meta.get("dense_rewards")  # of an episode that was collected with 0/1
    found = episode.rewards if kept is None else np.asarray(kept, np.float32)
    if found is None:
        raise DataError(
            f"demonstration {episode.id} has no rewards (next.reward), which env.native_reward dense pays", field=REWARD
        )
    wrong = ~np.isfinite(found)
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"demonstration {episode.id}, row {row}: its reward is {found[row]:g}", field=REWARD)
    return found


def _segment(
    stream: int, episode: Episode, success: tuple[bool | None, ...], terminated: bool, shape: PolicyShape
) -> Segment:
    rows = np.arange(len(episode))
    return Segment(
        stream=stream,
        number=stream,
        task=episode.task,
        start=0,
        end=len(rows) - 2,
        terminated=terminated,
        finished=True,
        steps_F=rows - 1,
        rows_F=rows,
        last_F=rows == rows[-1],
        success_F=success,
        frames_F=np.zeros((len(rows), 1, 1, 3), np.uint8) if episode.frames is None else episode.frames,
        states_F=np.zeros((len(rows), 0), np.float32) if episode.states is None else episode.states,
        state_keys=tuple(_own_keys(episode)) or state_keys(shape.own_columns),
        actions_F=episode.actions,
        action_values=choices(shape.action_space) or (),
        views_F=episode.views,
    )
