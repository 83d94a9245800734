"""Environments of other packages as they are: their spaces, and a short run each."""

import json
import sys
from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest
import torch

from guerdon.episodes.read import read_episodes
from guerdon.errors import MissingDependencyError
from guerdon.rl.run import run
from guerdon.settings.collect import ActorShare
from guerdon.settings.gymnasium_ids import known_id
from guerdon.settings.policy import CNNPolicySettings
from guerdon.settings.study import Study
from guerdon.settings.world import GymnasiumSettings
from guerdon.worlds.build import build_world, check_tasks
from guerdon.worlds.gymnasium_env import make_gymnasium_env
from tables import refuses

torch.set_num_threads(1)
MLP, CNN = {"type": "mlp", "hidden": [8]}, {"type": "cnn", "channels": [4, 4], "hidden": [8]}
RUNS = {  # package, keys of env, policy, what is shown of it
    "cartpole": ("gymnasium", {"task": "CartPole-v1"}, MLP, {"": ("vector", (4,))}),
    "lunar lander": ("Box2D", {"task": "LunarLander-v3"}, MLP, {"": ("vector", (8,))}),
    "lunar lander, continuous": (
        "Box2D", {"task": "LunarLander-v3", "kwargs": {"continuous": True}}, MLP, {"": ("vector", (8,))},
    ),
    "frozen lake": ("gymnasium", {"task": "FrozenLake-v1"}, MLP, {"": ("one_hot", (16,))}),
    "blackjack": (
        "gymnasium", {"task": "Blackjack-v1"}, MLP,
        {"0": ("one_hot", (32,)), "1": ("one_hot", (11,)), "2": ("one_hot", (2,))},
    ),
    "minigrid": (
        "minigrid", {"task": "minigrid:MiniGrid-Empty-5x5-v0"}, MLP,
        {"direction": ("one_hot", (4,)), "image": ("vector", (147,)), "mission": ("text", ())},
    ),
    "minigrid, four moments": (
        "minigrid", {"task": "minigrid:MiniGrid-Empty-5x5-v0", "frame_stack": 4}, {**MLP, "keys": ["image"]},
        {"direction": ("one_hot", (16,)), "image": ("vector", (588,))},
    ),
    "atari, its memory": (
        "ale_py", {"task": "ale_py:ALE/Pong-v5", "kwargs": {"obs_type": "ram"}}, MLP, {"": ("vector", (128,))},
    ),
    "atari, four moments": (
        "ale_py", {"task": "ale_py:ALE/Pong-v5", "kwargs": {"obs_type": "grayscale"}, "frame_stack": 4}, CNN,
        {"": ("image", (210, 160, 4))},
    ),
    "fetch": (
        "gymnasium_robotics", {"task": "gymnasium_robotics:FetchReach-v4", "native_reward": "sparse"}, MLP,
        {"achieved_goal": ("vector", (3,)), "desired_goal": ("vector", (3,)), "observation": ("vector", (10,))},
    ),
    "adroit": (
        "gymnasium_robotics", {"task": "gymnasium_robotics:AdroitHandDoor-v1", "native_reward": "sparse"}, MLP,
        {"": ("vector", (39,))},
    ),
    "gym-hil": ("gym_hil", {"task": "gym_hil:gym_hil/PandaPickCubeBase-v0"}, MLP, None),
}  # fmt: skip


SLOW = {"gym-hil"}  # draws two cameras at every moment, about a second each without a GPU


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in RUNS])
def test_a_short_run(name, tmp_path):
    package, env, policy, shown = RUNS[name]
    if find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install 'guerdon[games]'")
    study = Study.model_validate(
        {
            "env": {
                "type": "gymnasium", "num_envs": 2, "native_reward": "dense", "frame_size": 16, "max_episode_steps": 8,
                **env,
            },
            "policy": policy,
            "algorithm": {"rollout_steps": 10, "minibatch_size": 10, "num_epochs": 1},
            "runner": {
                "total_steps": 40, "eval_every": 40, "eval_episodes": 2, "film_frames": 2,
                "logger": {"log_path": str(tmp_path), "experiment_name": "run", "tensorboard": False},
            },
        }
    )  # fmt: skip
    if shown is not None:
        world = build_world(study.env, seed=0)
        found = {column.name: (column.kind, column.shape) for column in world.own_columns}
        assert shown.items() <= found.items()
        world.close()
    folder, _ = run(study)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    updates = [row for row in rows if "policy_loss" in row]
    assert updates
    assert all(np.isfinite(row["policy_loss"]) for row in updates)
    assert any(row.get("kind") == "eval" for row in rows)


@pytest.mark.slow
def test_pictures_of_gym_hil():
    pytest.importorskip("gym_hil", reason="needs guerdon[games]")
    from guerdon.policies.robots.control import build_policy

    env = GymnasiumSettings(
        task="gym_hil:gym_hil/PandaPickCubeBase-v0", num_envs=1, native_reward="dense", kwargs={"image_obs": True}
    )
    world = build_world(env, seed=0)
    kinds = {column.name: column.kind for column in world.columns}
    assert kinds["pixels.front"] == kinds["pixels.wrist"] == "image"
    settings = CNNPolicySettings(channels=(4, 4), hidden=(8,), keys=["pixels.wrist", "agent_pos"])
    policy = build_policy(settings, (), world.action_space, sources=("env",), seed=0, columns=world.columns)
    shown = world.reset().observations
    found = world.step(policy.actor().act(shown, np.random.default_rng(0)).values)
    assert found.observations["pixels.wrist"].any()
    assert found.mask.all()
    world.close()


@pytest.mark.slow
def test_demonstrations_of_pick_and_place_go_into_a_replay_with_goals(tmp_path):
    pytest.importorskip("gymnasium_robotics", reason="needs guerdon[games]")
    from guerdon.collect.collect import collect

    data = str(tmp_path / "data")
    study = Study.model_validate(
        {
            "work_dir": str(tmp_path / "run"),
            "env": {
                "type": "gymnasium", "task": "gymnasium_robotics:FetchPickAndPlace-v4", "native_reward": "dense",
                "end_on_success": False, "num_envs": 1,
            },
            "collect": {"save_dir": data, "episodes": 2, "frame_every": 1, "mixture": [{"type": "expert"}]},
            "policy": {"type": "mlp", "hidden": [8]},
            "algorithm": {
                "type": "sac", "goal_relabelling": "future", "demonstrations": data, "batch_size": 16,
                "online_step_before_learning": 50,
            },
            "runner": {"total_steps": 100, "eval_every": 100, "eval_episodes": 1},
        }
    )  # fmt: skip
    shifted = study.collect.model_copy(update={"mixture": (ActorShare(type="expert", calibration_error=0.1),)})
    with refuses("collect.mixture", "calibration_error is of what Meta-World's experts see"):
        collect(study.model_copy(update={"collect": shifted}))
    collect(study)
    episodes = list(read_episodes(data))
    assert [one.outcome for one in episodes] == [True, True]
    assert all(one.rewards[-1] == 0 and one.rewards[1] == -1 for one in episodes)
    folder, _ = run(study)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert any(row.get("critic_loss", 0) > 0 for row in rows)


@pytest.mark.parametrize(
    ("package", "task"),
    [
        ("gymnasium_robotics", "FetchReach-v4"), ("gymnasium_robotics", "AdroitHandDoor-v1"),
        ("minigrid", "MiniGrid-Empty-5x5-v0"), ("ale_py", "ALE/Pong-v5"), ("ale_py", "BreakoutNoFrameskip-v4"),
        ("gym_hil", "gym_hil/PandaPickCubeBase-v0"),
    ],
)  # fmt: skip
def test_an_id_is_completed_by_the_package_that_registers_it(package, task, monkeypatch):
    assert GymnasiumSettings(task=task).task == f"{package}:{task}"
    assert GymnasiumSettings(task_ids=["CartPole-v1", task]).task_ids == ("CartPole-v1", f"{package}:{task}")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, package, None)
        with pytest.raises(MissingDependencyError, match=rf"{package} is not installed.*guerdon\[games\]"):
            make_gymnasium_env(GymnasiumSettings(task=task).task, 1)
    pytest.importorskip(package)
    assert GymnasiumSettings(task=task).max_episode_steps == gymnasium.spec(task).max_episode_steps


def test_ids_of_gymnasium_stay_as_they_are():
    own = [name for name, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("gymnasium.")]
    assert len(own) > 30
    assert [known_id(name) for name in own] == own


def test_an_id_that_nothing_registers():
    settings = GymnasiumSettings(task="CartPol-v1")
    assert settings.task == "CartPol-v1"
    for make in (lambda: check_tasks(settings), lambda: make_gymnasium_env(settings.task, 1)):
        with refuses("env.task", r"'CartPol-v1' could not be .*Did you mean: `CartPole`.*PACKAGE:ID"):
            make()


@pytest.mark.parametrize(
    ("task", "package", "loaded"),
    [
        ("gymnasium_robotics:FetchReach-v4", "gymnasium_robotics", ()),
        ("minigrid:MiniGrid-Empty-5x5-v0", "minigrid", ()),
        ("LunarLander-v3", "Box2D", ("gymnasium.envs.box2d", "gymnasium.envs.box2d.lunar_lander")),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_its_extra(task, package, loaded, monkeypatch):
    for module in loaded:
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MissingDependencyError, match=rf"{task}.*{package} is not installed.*guerdon\[games\]"
    ) as caught:
        make_gymnasium_env(task, 1)
    assert "swig" not in str(caught.value)


@pytest.mark.parametrize(
    ("package", "task"),
    [("minigrid", "MiniGrid-Empty-5x5-v0"), ("ale_py", "ALE/Pong-v5"), ("ale_py", "ALE/Breakout-v5")],
)
def test_an_environment_that_counts_its_own_steps_has_no_guard(package, task):
    pytest.importorskip(package)
    env = GymnasiumSettings(task=task, num_envs=1, native_reward="dense")
    assert env.max_episode_steps is None
    world = build_world(env, seed=0)
    assert world.guard is None
    world.close()


def test_lunar_lander_steps_without_flames_and_draws():
    pytest.importorskip("Box2D")
    ours, bare = make_gymnasium_env("LunarLander-v3", 1), gymnasium.make("LunarLander-v3")
    ours.reset(seed=3)
    bare.reset(seed=3)
    for action in [2, 1, 2, 3] * 15:
        shown, reward, ended, _, _ = ours.step(np.array([[action]]))
        expected, paid, terminated, _, _ = bare.step(action)
        assert (shown[0].tolist(), reward[0], ended[0]) == (expected.tolist(), paid, terminated)
    assert ours.envs[0].unwrapped.particles == []
    assert ours.render()[0].std() > 10
    ours.close()
    bare.close()
