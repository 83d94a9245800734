"""Runs of policies that decide on chunks of actions: they learn, and go on byte for byte where they were killed."""

import json

import pytest

from guerdon.rl.run import run_folder
from guerdon.settings.study import Study
from rl_clock import interrupted, lines, result, start
from tables import refuses, sample

DOT = {
    "type": "gymnasium", "task": "tiny_world:Dot-v1", "task_text": "move the dot to the right", "num_envs": 2,
    "max_episode_steps": 10, "native_reward": "dense", "frame_size": [16, 20], "vectorization": "sync",
}  # fmt: skip
REWARD = {
    "use_reward_model": True, "reward_mode": "per_step", "shaping": "raw", "combine_mode": "add", "score_every": 4,
    "model": {"model_type": "constant", "value": 0.5},
}  # fmt: skip
PPO = {"rollout_steps": 13, "minibatch_size": 4, "num_epochs": 2, "learning_rate": 0.01}
GRPO = {"adv_estimator": "grpo", "group_size": 4, "minibatch_size": 4, "num_epochs": 2, "learning_rate": 0.01}


def chunk_study(folder, *, name="run", env=None, params=None, algorithm=PPO, runner=None, **sections):
    return Study.model_validate(
        {
            "env": {**DOT, **(env or {})},
            "policy": {"type": "chunk_policy:ChunkPolicy", "params": params or {}},
            "algorithm": algorithm,
            "runner": {
                "total_steps": 156, "eval_every": 78, "eval_episodes": 2, "checkpoint_every": 26, "film_frames": 2,
                "logger": {"log_path": str(folder), "experiment_name": name, "tensorboard": False}, **(runner or {}),
            },
            **sections,
        }
    )  # fmt: skip


SETUPS = {
    "frames and a reward model": {"params": {"frames": True}, "reward": REWARD},
    "recorded": {"env": {"data_collection": {"enabled": True, "sample_rate_fail": 1.0, "frame_every": 4}}},
    "tokens of single actions": {"params": {"chunk": 1}, "algorithm": {**PPO, "logprob_type": "token_level"}},
    "the critic first": {"algorithm": {**PPO, "value_init_steps": 3, "normalize_rewards": True, "micro_batch_size": 2}},
    "filtered groups": {
        "env": {"num_envs": 4},
        "params": {"frames": True},
        "algorithm": {**GRPO, "reward_type": "action_level", "filter_rewards": True, "rewards_upper_bound": 5.0},
    },
}


@pytest.mark.parametrize("setup", sample(SETUPS, "frames and a reward model", "filtered groups"))
def test_a_run_that_was_killed_inside_an_episode_ends_the_same(setup, tmp_path):
    given = json.dumps(SETUPS[setup])
    if setup == "recorded":
        given = given.replace('"enabled"', f'"save_dir": "{tmp_path / "episodes"}-NAME", "enabled"')
    one, other = (chunk_study(tmp_path, name=name, **json.loads(given.replace("NAME", name))) for name in "ab")
    start(one, reader="own").run()
    interrupted(other, "update", 4, reader="own")
    assert list((run_folder(other) / "checkpoints").glob("step_*"))
    resumed = start(other, resume=True, reader="own")
    if "groups" not in setup:
        assert (resumed.collector.world.steps_in_episode % 10 > 0).all(), "episodes are under way"
    resumed.run()
    assert result(other) == result(one)


LEARNING = {
    "ppo": {**PPO, "rollout_steps": 24, "minibatch_size": 8, "logprob_type": "chunk_level"},
    "grpo": {**GRPO, "minibatch_size": 8, "reward_type": "action_level", "logprob_type": "token_level"},
}


@pytest.mark.parametrize("name", sample(LEARNING, "ppo"))
def test_it_learns(name, tmp_path):
    """Returns are at most 8.2; those of the policy at the start are about 0."""
    more = {"clip_range_high": 0.28, "clip_ratio_c": 3.0}
    study = chunk_study(
        tmp_path, env={"num_envs": 4}, algorithm={**LEARNING[name], **more},
        runner={"total_steps": 1600, "eval_every": 80, "eval_episodes": 4, "checkpoint_every": 1600},
    )  # fmt: skip
    start(study).run()
    returns = [row["return/env"] for row in lines(study) if "success_at_end" in row and row["kind"] == "eval"]
    trained = [row for row in lines(study) if row["kind"] == "train"]
    assert trained[0]["return/env"] < 3
    assert returns[-1] > 5.5


def test_keys_and_bounds_that_do_not_fit_are_refused_before_the_first_step(tmp_path):
    with refuses("algorithm.reward_type"):
        start(chunk_study(tmp_path, params={"chunk": 1}, algorithm={**PPO, "reward_type": "chunk_level"}))
    bounds = {"filter_rewards": True, "rewards_lower_bound": 0.5, "rewards_upper_bound": 4.5}
    sparse = {"num_envs": 4, "native_reward": "sparse", "end_on_success": True}
    with refuses("algorithm.rewards_upper_bound"):
        start(chunk_study(tmp_path, env=sparse, algorithm={**GRPO, **bounds}))
    judged = {
        **REWARD,
        "combine_mode": "replace",
        "reward_mode": "terminal",
        "shaping": "threshold",
        "reward_coef": 5.0,
    }
    del judged["score_every"]
    start(chunk_study(tmp_path, env=sparse, algorithm={**GRPO, **bounds}, reward=judged)).close()
