"""Demonstrations of a data set in the replay of a run: episodes as a rollout, which every source measures.

note = add_demonstrations(learner, env, shape, sources)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.collect.policy_shape import PolicyShape
from guerdon.episodes.read import read_episodes
from guerdon.episodes.targets import check_every_row
from guerdon.errors import DataError
from guerdon.policies.robot import ControlInputs
from guerdon.rewards.control_sources import ControlReward
from guerdon.rewards.source import RewardSource
from guerdon.settings.world import WorldSettings
from guerdon.types import Episode, Rollout, Segment
from guerdon.worlds.observation import columns_as_rows
from guerdon.worlds.spaces import choices, state_keys

if TYPE_CHECKING:
    from guerdon.rl.off_policy import ReplayLearner

_TOGETHER = 16  # episodes in memory at a time


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
    pixels = any(column.kind == "image" for column in shape.columns)
    frames = pixels or any(isinstance(one, ControlReward) and one.observes.frames for one in sources.values())
    episodes, steps, successes, only_success = 0, 0, 0, True
    found = iter(read_episodes(Path(path), with_frames=frames))
    while part := list(islice(found, _TOGETHER)):
        rollout = as_rollout(part, env, shape)
        rewards = {
            name: (source.elsewhere(len(part)) if isinstance(source, ControlReward) else source).measure(rollout)
            for name, source in sources.items()
        }
        learner.remember(learner.demonstrations, rollout, rewards)
        learner.policy.observe(rollout.inputs, rollout.mask)
        episodes, steps = episodes + len(part), steps + rollout.steps
        successes += int(rollout.success.any(axis=1).sum())
        only_success &= bool((rollout.rewards == rollout.success).all())
    line = f"demonstrations: {episodes} episodes, {successes} with success, {steps} steps from {path}"
    if env.native_reward == "dense" and only_success:
        line += "; their rewards are 1 at success and 0 else: were they collected with env.native_reward dense?"
    return line


def as_rollout(episodes: Sequence[Episode], env: WorldSettings, shape: PolicyShape) -> Rollout[ControlInputs]:
    """Whole episodes as the rollout that they were: a stream each.

    An episode that ends with a success ended the task where `env.end_on_success` says so; others were cut off.

    Raises:
        DataError: with the episode and what does not fit or is missing.
    """
    size, length = int(np.prod(shape.action_space.shape or ())), max(len(one) for one in episodes) - 1
    streams, seen = (len(episodes), length), [_observations(one, shape) for one in episodes]
    shown = np.zeros((*streams, *seen[0].shape[1:]), seen[0].dtype)
    actions = np.zeros((*streams, size), np.float32)
    rewards = np.zeros(streams, np.float32)
    flags: dict[str, Any] = {
        name: np.zeros(streams, np.bool_) for name in ("mask", "terminated", "truncated", "success", "success_known")
    }
    ends, segments = [], []
    for i, one in enumerate(episodes):
        rows, t = seen[i], len(one) - 1
        success = _success(one)
        if one.actions is None or one.actions.shape[1] != size:
            raise DataError(f"demonstration {one.id}: the environment takes actions of {size} numbers, it has others")
        shown[i, :t], actions[i, :t], flags["mask"][i, :t] = rows[:-1], one.actions[1:], True
        flags["success"][i, :t], flags["success_known"][i, :t] = success[1:], True
        over = bool(success[-1]) and env.end_on_success
        flags["terminated"][i, t - 1], flags["truncated"][i, t - 1] = over, not over
        rewards[i, :t] = success[1:] if env.native_reward == "sparse" else _rewards(one)[1:]
        ends.append((i, t - 1, rows[-1]))
        segments.append(_segment(i, one, success, over, shape))
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


def _observations(episode: Episode, shape: PolicyShape) -> np.ndarray:
    """(T, ...) what the policy observes of each row: one array, or the columns of a dict, of one picture at most."""
    if len(episode) < 2:
        raise DataError(f"demonstration {episode.id} has no step")
    check_every_row(episode)
    parts, start = dict[str, np.ndarray](), 0
    for name, kind, wanted in shape.columns:
        column = "frames" if kind == "image" else "states"
        rows, size = getattr(episode, column), int(np.prod(wanted))
        if rows is not None and column == "states" and name:  # numbers of all keys stand side by side
            rows = rows[:, start : start + size].reshape(-1, *wanted) if rows.shape[1] >= start + size else rows
            start += size
        if rows is None or rows.shape[1:] != wanted:
            found = "none" if rows is None else f"those of shape {rows.shape[1:]}"
            raise DataError(
                f"demonstration {episode.id}: the policy observes {name or column} of shape {wanted}, it has {found}"
            )
        parts[name] = rows
    return columns_as_rows(parts) if len(parts) > 1 or "" not in parts else parts[""]


def _success(episode: Episode) -> np.ndarray:
    """(T,) success of each row; of an outcome alone, at the last one.

    Raises:
        DataError: it is unknown.
    """
    if episode.success is not None:
        return episode.success
    if episode.outcome is None:
        raise DataError(f"demonstration {episode.id} has no outcome (next.success): label it, or leave it out")
    found = np.zeros(len(episode), np.bool_)
    found[-1] = episode.outcome
    return found


def _rewards(episode: Episode) -> np.ndarray:
    if "dense_rewards" in episode.meta:  # of an episode that was collected with 0/1
        return np.asarray(episode.meta["dense_rewards"], np.float32)
    if episode.rewards is None:
        raise DataError(f"demonstration {episode.id} has no rewards (next.reward), which env.native_reward dense pays")
    return episode.rewards


def _segment(stream: int, episode: Episode, success: np.ndarray, terminated: bool, shape: PolicyShape) -> Segment:
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
        success_F=tuple(bool(one) for one in success),
        frames_F=np.zeros((len(rows), 1, 1, 3), np.uint8) if episode.frames is None else episode.frames,
        states_F=np.zeros((len(rows), 0), np.float32) if episode.states is None else episode.states,
        state_keys=state_keys(shape.own_columns),
        actions_F=episode.actions,
        action_values=choices(shape.action_space) or (),
        views_F=episode.views,
    )
