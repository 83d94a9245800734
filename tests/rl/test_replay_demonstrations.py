"""Demonstrations in the replay of a run: what the environment shows is found in a data set by name."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from guerdon.collect.collect import collect
from guerdon.collect.policy_shape import PolicyShape
from guerdon.episodes.read import read_episodes
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import DataError
from guerdon.rl.demonstrations import _cameras, _with_pictures, as_rollout
from guerdon.settings.study import Study
from guerdon.settings.world import GymnasiumSettings
from guerdon.types import Episode
from guerdon.worlds.spaces import ObservedColumn, chosen_columns
from rl_clock import start
from tables import refuses

ENV = GymnasiumSettings(task="CartPole-v1", native_reward="dense")
A, C, X = (ObservedColumn(name, "vector", (size,)) for name, size in (("a", 2), ("c", 1), ("x", 1)))
MASK, WORDS = ObservedColumn("action_mask", "mask", (3,)), ObservedColumn("mission", "text", ())
FRONT = ObservedColumn("pixels.front", "image", (4, 6, 3))
KEYS = [["a", 2], ["b", 2], ["c", 1]]


def shape_of(*columns):
    return PolicyShape((), gymnasium.spaces.MultiDiscrete([3]), 0, columns, columns)


def episode(rows=4, *, states=5, **changed):
    steps = np.arange(rows)
    given = {
        "id": "0", "task": "wait", "states": (steps[:, None] + 10 * np.arange(states)).astype(np.float32),
        "actions": np.float32(steps[:, None] > 0), "rewards": steps.astype(np.float32),
        "success": steps == rows - 1, "outcome": True,
    }  # fmt: skip
    return Episode(**given | changed)


def observed(*columns, keys=None, **changed):
    shape = shape_of(*columns)
    return as_rollout([episode(**changed)], ENV, shape, chosen_columns(columns, keys, "keys")).inputs.observations


def test_numbers_are_those_of_the_same_key():
    found = observed(A, WORDS, C, MASK, meta={"state_keys": KEYS})
    assert found.dtype.names == ("a", "c", "action_mask")
    assert found["a"].tolist() == [[0, 10], [1, 11], [2, 12]]
    assert found["c"].tolist() == [[40], [41], [42]], "not those of b, which come second"
    assert found["action_mask"].dtype == np.bool_
    assert found["action_mask"].all()
    with refuses("x", r"observes x of shape \(1,\), it has none \(its states are a, b, c\)"):
        observed(A, X, meta={"state_keys": KEYS})
    assert not observed(A, X, keys=["a"], meta={"state_keys": KEYS})["x"].any(), "which the policy does not look at"


def test_numbers_without_names_stand_in_the_order_of_the_environment():
    found = observed(A, C, states=3)
    assert found["c"].tolist() == [[20], [21], [22]]
    assert observed(A, C, keys=["c"], states=3)["c"].tolist() == [[20], [21], [22]]
    with refuses("observation.state", r"states have 5 numbers; the keys, side by side, have 3: a \(2\), c \(1\)"):
        observed(A, C)


@pytest.fixture
def two_cameras(tmp_path):
    """A data set whose cameras show 100 and more, and 200 and more."""
    corner, front = (np.full((4, 4, 6, 3), level, np.uint8) + np.arange(4, dtype=np.uint8)[:, None, None, None]
                     for level in (100, 200))  # fmt: skip
    with EpisodeWriter(tmp_path, camera="corner") as writer:
        writer.add(episode(frames=corner, views={"front": front}))
    return tmp_path


def test_pictures_are_those_of_the_camera_of_that_name(two_cameras):
    assert _cameras(two_cameras, ["pixels.front"], None) == {"pixels.front": "front"}
    assert _cameras(two_cameras, ["pixels.front"], "corner") == {"corner": "corner", "pixels.front": "front"}
    with refuses("wrist", "has no pictures of wrist; it has corner, front"):
        _cameras(two_cameras, ["wrist"], None)
    shown = episode(frames=np.full((4, 4, 6, 3), 9, np.uint8), views={"front": np.full((4, 4, 6, 3), 7, np.uint8)})
    named = _with_pictures(shown, {"corner": "corner", "pixels.front": "front"}, "corner")
    found = observed(C, FRONT, states=1, frames=named.frames, views=named.views)
    assert (found["pixels.front"] == 7).all()


def test_grey_pictures_are_grey():
    grey = ObservedColumn("", "image", (4, 6, 1))
    same = np.full((4, 4, 6, 3), 7, np.uint8)
    found = observed(grey, frames=same)
    assert found.shape == (3, 4, 6, 1)
    assert (found == 7).all()
    same[..., 0] = 8
    with pytest.raises(DataError, match=r"observes frames of shape \(4, 6, 1\), it has those of shape"):
        observed(grey, frames=same)


def test_a_run_with_masks_and_text_learns_from_demonstrations(tmp_path, capsys):
    keys = [["arm.joints", 4], ["arm.mode", 3], ["arm.hand.0", 2], ["arm.hand.1", 5]]
    with EpisodeWriter(tmp_path / "shown", camera="corner") as writer:
        for n, rows in enumerate((1, 4, 4, 4)):  # one row has no step
            frames = np.full((rows, 16, 16, 3), 50, np.uint8)
            actions = np.zeros((rows, 1), np.float32)
            writer.add(episode(rows, id=str(n), states=14, frames=frames, actions=actions, meta={"state_keys": keys}))
    study = Study.model_validate(
        {
            "runner": {
                "total_steps": 40, "eval_every": 10**6, "eval_episodes": 2, "checkpoint_every": 10**6,
                "logger": {"log_path": str(tmp_path), "experiment_name": "run", "tensorboard": False},
            },
            "env": {"type": "gymnasium", "task": "mixed_env:Mixed-v0", "num_envs": 2, "native_reward": "dense"},
            "policy": {"type": "mlp", "hidden": [8], "keys": ["arm"]},
            "algorithm": {
                "type": "dqn", "rollout_steps": 10, "batch_size": 8, "online_step_before_learning": 12,
                "demonstrations": str(tmp_path / "shown"),
            },
        }
    )  # fmt: skip
    loop = start(study)
    assert "3 episodes, 3 with success, 9 steps" in (said := capsys.readouterr().err)
    assert "1 more have one row and no step, and are left out" in said
    for _ in range(2):
        loop.iterate()
    shown, memory = (part.rows("observations") for part in (loop.learner.demonstrations, loop.learner.memory))
    assert shown.dtype == memory.dtype
    assert shown["arm.hand.1"][:2].tolist() == [[90, 100, 110, 120, 130], [91, 101, 111, 121, 131]]
    assert loop.learner.steps > 0
    loop.close()


@pytest.mark.parametrize(("action", "named"), [(5, "5"), (-1, "-1"), (0.5, "0.5"), (np.nan, "nan")])
def test_an_action_that_does_not_exist_is_refused(action, named):
    actions = np.float32([[0], [1], [action], [2]])
    with refuses("action", rf"demonstration 0, row 1: its action is {named}; .* the choices 0 to 2"):
        observed(C, states=1, actions=actions)


def test_a_state_that_is_not_finite_is_refused():
    states = np.float32([[0], [1], [np.inf], [3]])
    shape, shown = shape_of(C), replace(episode(states=1), states=states)
    with refuses("c", "demonstration 0, row 2: its c is not finite"):
        as_rollout([shown], ENV, shape, chosen_columns([C], None, "keys"))


def test_a_reward_that_is_not_finite_is_refused():
    """It was found by the checkpoint only, as a training that diverged."""
    shape, seen = shape_of(C), chosen_columns([C], None, "keys")
    for rewards in ({"rewards": np.float32([0, 1, np.inf, 0])}, {"meta": {"dense_rewards": [0, 1, np.inf, 0]}}):
        with refuses("next.reward", "demonstration 0, row 2: its reward is inf"):
            as_rollout([episode(states=1, **rewards)], ENV, shape, seen)


def test_actions_of_another_size_are_named():
    with refuses("action", "takes actions of 1 numbers, it has actions of 6"):
        observed(C, states=1, actions=np.zeros((4, 6), np.float32))
    with refuses("action"):
        observed(C, states=1, actions=None)


def test_dense_rewards_need_no_outcome():
    unknown = episode(states=1, success=None, outcome=None)
    shape, seen = shape_of(C), chosen_columns([C], None, "keys")
    rollout = as_rollout([unknown], ENV, shape, seen)
    assert rollout.rewards.tolist() == [[1, 2, 3]]
    assert not rollout.success_known.any()
    assert rollout.truncated[0, -1]
    with refuses("next.success"):
        as_rollout([unknown], ENV.model_copy(update={"native_reward": "sparse"}), shape, seen)


def test_success_that_is_unknown_is_not_shown_to_models_as_none():
    """A score that failed may be replaced by it (fallback native)."""
    shape, seen = shape_of(C), chosen_columns([C], None, "keys")
    outcomes = {None: (None,) * 4, True: (None, None, None, True), False: (None, None, None, False)}
    for outcome, wanted in outcomes.items():
        found = as_rollout([episode(states=1, success=None, outcome=outcome)], ENV, shape, seen)
        assert found.segments[0].success_F == wanted
        assert found.success_known.tolist() == [[one is not None for one in wanted[1:]]]
    marked = as_rollout([episode(states=1, success=np.arange(4) > 2, outcome=True)], ENV, shape, seen)
    assert marked.segments[0].success_F == (False, False, False, True)
    assert marked.success_known.all()


@pytest.mark.parametrize(("limit", "falls"), [(500, True), (5, False)])
def test_what_ended_an_episode_of_guerdon_is_known(tmp_path, limit, falls):
    """A pole that fell has no value beyond its fall, one that a limit cut off has."""
    study = Study.model_validate(
        {
            "env": {
                "type": "gymnasium", "task": "CartPole-v1", "num_envs": 2, "native_reward": "dense",
                "max_episode_steps": limit,
            },
            "collect": {
                "save_dir": str(tmp_path), "episodes": 3, "frame_every": 1, "mixture": [{"type": "random"}],
            },
        }
    )  # fmt: skip
    collect(study)
    seen = (ObservedColumn("", "vector", (4,)),)
    shape = PolicyShape((), gymnasium.spaces.MultiDiscrete([2]), 0, seen, seen)
    rollout = as_rollout(list(read_episodes(tmp_path)), ENV, shape, seen)
    assert rollout.terminated.sum() == (3 if falls else 0)
    assert rollout.truncated.sum() == (0 if falls else 3)


@pytest.mark.parametrize("ended", [False, True])
def test_a_success_ends_the_task_where_the_run_says_so_or_the_environment_did(ended):
    shape, seen = shape_of(C), chosen_columns([C], None, "keys")
    own = episode(states=1, meta={"terminated": True} if ended else {})
    assert as_rollout([own], ENV, shape, seen).terminated.any() == ended
    ends = ENV.model_copy(update={"end_on_success": True})
    assert as_rollout([own], ends, shape, seen).terminated[0, -1]
