"""Whole policies that users bring: discretised actions from pictures and the words of the task."""

import json

import numpy as np
import pytest
import torch
from own_policy import TokenPolicy

from guerdon.collect.collect import collect
from guerdon.collect.control import ControlCollector
from guerdon.episodes.read import read_episodes
from guerdon.errors import CheckpointError, ConfigError
from guerdon.policies.robots.control import load_policy
from guerdon.rl.run import run_folder
from guerdon.settings.study import Study
from guerdon.train.bc import train_bc
from guerdon.worlds.build import build_world
from guerdon.worlds.world import ObservationSpec
from rl_clock import interrupted, lines, result, start
from tables import refuses, sample

DOT = {
    "type": "gymnasium", "task": "tiny_world:Dot-v1", "task_text": "move the dot to the right", "num_envs": 2,
    "max_episode_steps": 10, "native_reward": "dense", "frame_size": [16, 20],
}  # fmt: skip


def token_study(folder, *, name="run", env=None, policy=None, algorithm=None, runner=None, **sections):
    return Study.model_validate(
        {
            "env": {**DOT, **(env or {})},
            "policy": {"type": "own_policy:TokenPolicy", "params": {"bins": 3}, **(policy or {})},
            "algorithm": algorithm or {"rollout_steps": 12, "minibatch_size": 8, "num_epochs": 2},
            "runner": {
                "total_steps": 120, "eval_every": 60, "eval_episodes": 2, "checkpoint_every": 40, "film_frames": 2,
                "logger": {"log_path": str(folder), "experiment_name": name, "tensorboard": False}, **(runner or {}),
            },
            **sections,
        }
    )  # fmt: skip


REWARD = {
    "use_reward_model": True, "reward_mode": "per_step", "shaping": "raw", "combine_mode": "add", "score_every": 3,
    "model": {"model_type": "constant", "value": 0.5},
}  # fmt: skip
SAME_STEP = {"autoreset_mode": "same_step"}
SETUPS = {
    "pictures_and_words": {"reward": REWARD},
    "recorded": {"env": {"data_collection": {"enabled": True, "sample_rate_fail": 1.0, "frame_every": 4}}},
    "groups": {"algorithm": {"adv_estimator": "grpo", "group_size": 2, "minibatch_size": 8, "num_epochs": 2}},
    "next_step": {"env": {"autoreset_mode": "next_step", "max_episode_steps": 7}},
    "plain_states": {
        "policy": {"type": "own_policy:StatePolicy", "params": {}},
    },
}


@pytest.mark.parametrize("setup", sample(SETUPS, "pictures_and_words", "plain_states"))
def test_a_run_that_was_cut_off_ends_the_same(setup, tmp_path):
    given = dict(SETUPS[setup])
    if setup == "recorded":
        folder = str(tmp_path / "episodes-NAME")
        given = {"env": {"data_collection": {**given["env"]["data_collection"], "save_dir": folder}}}
    studies = [token_study(tmp_path, name=name, **json.loads(json.dumps(given).replace("NAME", name))) for name in "ab"]
    reader = {"reader": "own"}
    start(studies[0], **reader).run()
    interrupted(studies[1], "update", 4, **reader)
    assert list((run_folder(studies[1]) / "checkpoints").glob("step_*"))
    start(studies[1], resume=True, **reader).run()
    if setup == "next_step":  # that world begins new episodes when it is resumed
        assert lines(studies[1])[-1]["step"] == lines(studies[0])[-1]["step"]
        return
    assert result(studies[1]) == result(studies[0])
    evaluated = [row for row in lines(studies[0]) if "episodes" in row and row.get("kind", "eval") == "eval"]
    assert evaluated
    if setup == "recorded":
        a, b = ({e.id: e for e in read_episodes(tmp_path / f"episodes-{name}")} for name in "ab")
        assert a.keys() == b.keys()
        assert all(e.frames.shape[1:3] == (16, 20) and e.frames.any() for e in a.values())
        assert all(e.states.any() and np.array_equal(e.states, b[name].states) for name, e in a.items())


def test_it_learns(tmp_path):
    algorithm = {"rollout_steps": 40, "minibatch_size": 40, "num_epochs": 4, "learning_rate": 0.01}
    study = token_study(tmp_path, algorithm=algorithm, runner={"total_steps": 1600, "eval_every": 80})
    start(study).run()
    returns = [row["return/env"] for row in lines(study) if "success_at_end" in row]
    assert returns[-1] > 3 > returns[0]


def test_it_acts_and_evaluates_what_its_declaration_says(tmp_path):
    study = token_study(tmp_path, env={"num_envs": 3})
    collector = ControlCollector(study.env, study.control_policy, seed=0, rollout_steps=11, heads=("env", "prm"))
    policy = collector.build_policy()
    rollout = collector.collect(policy)
    shown = rollout.inputs.observations
    assert shown.dtype.names == ("task", "frames")
    assert (shown["task"] == "move the dot to the right").all()
    frames = shown["frames"].reshape(3, 11, 8, 10, 3)
    assert rollout.inputs.actions.shape == (33, 1)
    assert rollout.inputs.actions.dtype == np.int64
    policy.load_tensors({k: v + 0.1 for k, v in policy.tensors().items()})
    other = policy.evaluate(rollout.inputs, entropy=True)
    policy.load_tensors({k: v - 0.1 for k, v in policy.tensors().items()})
    assert rollout.log_probs == pytest.approx(
        policy.evaluate(rollout.inputs).log_probs.detach().numpy().reshape(3, 11), abs=1e-5
    )
    assert not np.allclose(other.log_probs.detach().numpy().reshape(3, 11), rollout.log_probs)
    assert other.entropy.shape == (33, 1)
    assert set(rollout.values) == set(rollout.next_values) == {"env", "prm"}
    ends = rollout.done
    assert ends.any()
    following = np.where(ends[:, :-1], 0, rollout.values["prm"][:, 1:] - rollout.next_values["prm"][:, :-1])
    assert np.abs(following).max() < 1e-6, "the value after a step is that before the next, but for ends"
    assert (rollout.values["prm"][:, 1:] - rollout.next_values["prm"][:, :-1])[ends[:, :-1]].any()
    assert not np.array_equal(frames[:, 0], frames[:, 5])
    weights = {name: tensor.numpy() for name, tensor in policy.tensors().items()}
    assert collector.evaluate(weights, episodes=2) == collector.evaluate(policy, episodes=2)
    moments, _ = collector.show(policy, frames=3)
    assert moments.frames_F.shape[1:] == (16, 20, 3)
    collector.close()


def test_states_and_proprioception_of_meta_world(tmp_path):
    pytest.importorskip("metaworld")
    env = {"type": "metaworld", "task": "window-close", "task_text": None, "num_envs": 2, "max_episode_steps": 20}
    params = {"bins": 3, "more": True}
    study = token_study(
        tmp_path, env=env, policy={"params": params}, runner={"total_steps": 48, "checkpoint_every": 24}
    )
    start(study).run()
    collector = ControlCollector(study.env, study.control_policy, seed=0, rollout_steps=3, heads=("env",))
    shown = collector.collect(collector.build_policy()).inputs.observations
    assert np.array_equal(shown["states"][:, :4], shown["proprioception"])
    assert set(shown["task"]) == {"Close the window."}
    assert shown["frames"].reshape(6, -1).any(axis=1).all()
    collector.close()


def test_a_stored_policy_collects_and_starts_another_run(tmp_path):
    first = token_study(tmp_path, name="first", runner={"total_steps": 24})
    start(first).run()
    stored = run_folder(first) / "policy"
    policy = load_policy(stored)
    assert isinstance(policy, TokenPolicy)
    assert policy.numbers.ravel().tolist() == [-1, 0, 1]
    mixture = [{"type": "checkpoint", "checkpoint": str(stored), "noise": 0.0}]
    section = {"save_dir": str(tmp_path / "data"), "episodes": 2, "mixture": mixture}
    done = collect(token_study(tmp_path, collect=section))
    assert done.episodes == 2
    episode = next(iter(read_episodes(done.path)))
    assert set(np.unique(episode.actions[1:])) <= {-1, 0, 1}
    second = start(token_study(tmp_path, name="second", policy={"checkpoint": str(stored)}))
    assert torch.equal(second.learner.policy.pi.weight, policy.pi.weight)
    assert not torch.equal(second.learner.policy.vf.weight, policy.vf.weight), "the critic starts fresh"
    second.close()
    with pytest.raises(CheckpointError, match="does not fit"):
        start(token_study(tmp_path, name="third", policy={"checkpoint": str(stored), "params": {"bins": 4}}))


def test_what_a_whole_policy_does_not_use_is_refused(tmp_path):
    with refuses("log_std_init"):
        token_study(tmp_path, policy={"log_std_init": -1.0})
    with refuses("env.observation", r"remove env\.observation"):
        start(token_study(tmp_path, env={"observation": "pixels"})).run()
    with pytest.raises(ConfigError, match="proprioception"):
        start(token_study(tmp_path, policy={"params": {"more": True}})).run()
    with pytest.raises(ConfigError, match="must not reset within a step"):
        start(token_study(tmp_path, env=SAME_STEP)).run()


def test_only_a_policy_with_an_imitation_loss_is_cloned(tmp_path):
    data = {"data_path": str(tmp_path / "data"), "save_dir": str(tmp_path / "clone"), "epochs": 1}
    mixture = [{"type": "random"}]
    collect(
        token_study(
            tmp_path, collect={"save_dir": data["data_path"], "episodes": 4, "frame_every": 1, "mixture": mixture}
        )
    )
    with pytest.raises(ConfigError, match="no imitation_loss"):
        train_bc(token_study(tmp_path, bc={**data, "only_success": False}))


def test_a_world_shows_columns_from_now_on(tmp_path):
    world = build_world(token_study(tmp_path).env, seed=0)
    plain = world.reset().observations
    world.show(ObservationSpec(states=True, task=True))
    assert np.array_equal(world.observations["states"], plain)
    world.show(None)
    assert np.array_equal(world.observations, plain)
    world.close()
