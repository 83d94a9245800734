"""Runs of vision-language-action policies: PPO and GRPO in chunks, killed and resumed; cloned, and learning."""

import shutil
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from guerdon.collect.collect import collect
from guerdon.config.loading import load
from guerdon.episodes.read import read_episodes
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import DataError
from guerdon.policies.robots.control import load_policy
from guerdon.policies.vla.token import TokenVLA
from guerdon.settings.study import Study
from guerdon.train.bc import gather_chunks, train_bc
from guerdon.types import Episode
from guerdon.worlds.eye import resized
from guerdon.worlds.world import ObservationSpec
from rl_clock import interrupted, lines, result, start
from tables import refuses
from tiny_world import Dot

torch.set_num_threads(1)
TINY = {"image_size": 16, "hidden_size": 16, "layers": 1, "heads": 2, "words": 64, "n_action_bins": 16}
DOT = {
    "type": "gymnasium", "task": "tiny_world:Dot-v1", "task_text": "move the dot to the right", "num_envs": 2,
    "max_episode_steps": 10, "native_reward": "dense", "frame_size": [16, 16],
}  # fmt: skip


def vla_study(folder, *, name="run", policy=None, algorithm=None, runner=None, **sections):
    tiny = {k: v for k, v in TINY.items() if k != "n_action_bins" or (policy or {}).get("family", "token") == "token"}
    critic = {} if "adv_estimator" in (algorithm or {}) else {"value_hidden": [16]}
    return Study.model_validate(
        {
            "env": DOT,
            "policy": {"type": "vla", "tiny": tiny, "num_action_chunks": 4, **critic, **(policy or {})},
            "algorithm": algorithm or {"rollout_steps": 20, "minibatch_size": 4, "num_epochs": 2},
            "runner": {
                "total_steps": 80, "eval_every": 80, "eval_episodes": 2, "checkpoint_every": 40, "film_frames": 2,
                "logger": {"log_path": str(folder), "experiment_name": name, "tensorboard": False}, **(runner or {}),
            },
            **sections,
        }
    )  # fmt: skip


GRPO = {
    "adv_estimator": "grpo", "group_size": 2, "minibatch_size": 4, "clip_range": 0.2, "clip_range_high": 0.28,
    "filter_rewards": True, "rewards_lower_bound": -5.0, "rewards_upper_bound": 5.0,
}  # fmt: skip
RUNS = {
    "token": {},
    "token_level": {"algorithm": {"rollout_steps": 20, "minibatch_size": 4, "logprob_type": "token_level"}},
    "autoregressive_lora": {
        "policy": {"parallel_decoding": False, "use_lora": True, "lora_rank": 2, "lora_dropout": 0.1},
    },
    "flow": {"policy": {"family": "flow", "num_steps": 2}},
    "regression": {
        "policy": {"family": "regression", "use_lora": True, "lora_rank": 2},
        "algorithm": {"rollout_steps": 20, "minibatch_size": 4, "logprob_type": "token_level", "entropy_coef": 0.01},
    },
    "grpo_token": {  # as seed 2's configurations have it
        "policy": {"temperature": 1.6},
        "algorithm": {**GRPO, "logprob_type": "token_level", "reward_type": "action_level", "clip_ratio_c": 3.0},
    },
    "grpo_flow": {
        "policy": {"family": "flow", "num_steps": 2, "noise_method": "flow_noise"},
        "algorithm": {**GRPO, "logprob_type": "chunk_level"},
    },
}  # fmt: skip


@pytest.mark.parametrize("given", [{"value_hidden": [16]}, {"detach_critic_input": True}], ids=str)
def test_keys_of_a_critic_that_is_not_there_are_refused(given, tmp_path):
    vla_study(tmp_path, policy=given)
    with refuses(f"policy.{next(iter(given))}"):
        vla_study(tmp_path, policy=given, algorithm=GRPO)


QUICK = ("token", "flow")


@pytest.mark.parametrize(
    "given", [pytest.param(RUNS[name], marks=[pytest.mark.slow] * (name not in QUICK), id=name) for name in RUNS]
)
def test_a_run_that_was_cut_off_ends_the_same(given, tmp_path):
    studies = [vla_study(tmp_path, name=name, **given) for name in "ab"]
    start(studies[0]).run()
    interrupted(studies[1], "update", 2)
    start(studies[1], resume=True).run()
    assert result(studies[1]) == result(studies[0])
    rows = lines(studies[0])
    assert all(np.isfinite(row["policy_loss"]) for row in rows if row.get("policy_loss") is not None)
    if "filter_rewards" in given.get("algorithm", {}):
        assert any("filtered_groups" in row for row in rows)


def right_going(folder, count=8, length=11):
    """Episodes of a dot that goes to the right, at full speed while it is in the left half."""
    with EpisodeWriter(folder, camera="corner") as writer:
        for number in range(count):
            dot, frames, actions = Dot("rgb_array"), [], [0.0]
            dot.reset(seed=number)
            for _ in range(length):
                frames.append(resized(dot.render(), (16, 16)))
                actions.append(1.0 if dot.x < 0 else 0.5)
                dot.step(actions[-1:])
            writer.add(
                Episode(
                    id=str(number), task="move the dot to the right", frames=np.stack(frames), outcome=True,
                    actions=np.array(actions[:length], np.float32)[:, None], rewards=np.zeros(length, np.float32),
                    success=np.arange(length) == length - 1,
                )
            )  # fmt: skip


def test_chunks_are_the_actions_that_followed_and_end_with_the_episode(tmp_path):
    right_going(tmp_path / "data", count=2, length=6)
    episodes = list(read_episodes(tmp_path / "data"))
    pairs = gather_chunks(episodes, ObservationSpec(frames=(16, 16), task=True), chunk=4)
    assert pairs.actions.shape == (10, 4, 1)
    assert pairs.mask[:5].tolist() == [
        [True] * 4, [True] * 4, [True, True, True, False], [True, True, False, False], [True, False, False, False],
    ]  # fmt: skip
    for t in range(5):
        there = pairs.mask[t]
        assert pairs.actions[t, there, 0].tolist() == episodes[0].actions[t + 1 : t + 5, 0].tolist()
        assert np.array_equal(pairs.observations["frames"][t], episodes[0].frames[t])
    assert set(pairs.observations["task"]) == {"move the dot to the right"}


def test_chunks_of_two_cameras(tmp_path):
    rng, frames = np.random.default_rng(0), []
    with EpisodeWriter(tmp_path, camera="scene") as writer:
        for number in range(2):
            pictures = rng.integers(0, 256, (2, 4, 16, 16, 3), dtype=np.uint8)
            frames.append(pictures)
            writer.add(
                Episode(
                    id=str(number), task="go", frames=pictures[0], views={"wrist": pictures[1]}, outcome=True,
                    actions=np.zeros((4, 1), np.float32), rewards=np.zeros(4, np.float32), success=np.ones(4, bool),
                )
            )  # fmt: skip
    spec = ObservationSpec(frames=(16, 16), cameras=2, task=True)
    pairs = gather_chunks(read_episodes(tmp_path, camera="scene", views=["wrist"]), spec, chunk=2)
    seen = pairs.observations["frames"]
    assert seen.shape == (6, 2, 16, 16, 3)
    for number, camera in product(range(2), range(2)):
        assert np.array_equal(seen[3 * number : 3 * number + 3, camera], frames[number][camera, :3])
    small = gather_chunks(
        read_episodes(tmp_path, camera="scene", views=["wrist"]), replace(spec, frames=(8, 8)), chunk=2
    )
    assert small.observations["frames"].shape == (6, 2, 8, 8, 3)
    with pytest.raises(DataError, match="observes 2 cameras"):
        gather_chunks(read_episodes(tmp_path, camera="scene"), spec, chunk=2)


@pytest.mark.parametrize(
    "family", ["token", *(pytest.param(one, marks=pytest.mark.slow) for one in ("flow", "regression"))]
)
def test_a_clone_does_what_was_shown_and_starts_a_run(family, tmp_path):
    right_going(tmp_path / "data")
    bc = {"data_path": str(tmp_path / "data"), "save_dir": str(tmp_path / "clone"), "epochs": 15, "batch_size": 16,
          "learning_rate": 3e-3}  # fmt: skip
    policy = {"family": family, "center_crop": False}
    study = vla_study(tmp_path, policy=policy, bc=bc)
    folder, metrics = train_bc(study)
    assert metrics["pairs"] == 80
    assert metrics["val_mae"] < 0.15, "of actions that are 0.5 and 1"
    first = (folder / "policy.safetensors").read_bytes()
    shutil.rmtree(folder)
    with refuses("env.frame_size"):
        train_bc(Study.model_validate({**study.model_dump(exclude_unset=True), "env": {**DOT, "frame_size": [20, 20]}}))
    train_bc(study)
    assert (folder / "policy.safetensors").read_bytes() == first
    started = start(vla_study(tmp_path, name="from", policy={**policy, "checkpoint": str(folder)}))
    clone = load_policy(folder)
    assert torch.equal(started.learner.policy.action_scale, clone.action_scale)
    started.close()
    mixture = [{"type": "checkpoint", "checkpoint": str(folder), "noise": 0.0}]
    section = {"save_dir": str(tmp_path / "again"), "episodes": 2, "frame_every": 1, "mixture": mixture}
    collect(vla_study(tmp_path, policy=policy, collect=section))
    reached = [episode.success.any() for episode in read_episodes(tmp_path / "again")]
    assert all(reached)


def test_the_keys_may_stand_in_a_file(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text("policy: {type: vla, tiny: {}, temperature: 1.6, num_action_chunks: 8}\n")
    policy = load(Study, file).policy
    assert policy.decoding.temperature == 1.6
    file.write_text("policy: {type: vla, tiny: {}, num_stepz: 3}\n")
    with refuses("policy.num_stepz"):
        load(Study, file)


def test_an_entropy_without_gradient_is_refused(tmp_path):
    algorithm = {"rollout_steps": 20, "minibatch_size": 4, "entropy_coef": 0.01}
    with refuses("algorithm.entropy_coef"):
        vla_study(tmp_path, policy={"family": "flow"}, algorithm=algorithm)
    vla_study(tmp_path, policy={"family": "flow", "noise_method": "flow_noise"}, algorithm=algorithm)


def test_it_learns_from_rewards(tmp_path):
    algorithm = {"rollout_steps": 40, "minibatch_size": 10, "num_epochs": 4, "learning_rate": 3e-3}
    policy = {"num_action_chunks": 2, "value_hidden": [16]}
    study = vla_study(tmp_path, policy=policy, algorithm=algorithm, runner={"total_steps": 800, "eval_every": 400})
    start(study).run()
    returns = [row["return/env"] for row in lines(study) if "success_at_end" in row]
    assert returns[-1] > 3 > returns[0]
    assert isinstance(load_policy(tmp_path / "run" / "policy"), TokenVLA)
