"""Rollouts in shards: joining, states, and what the configuration refuses."""

import json

import numpy as np
import pytest
import torch

import chunk_policy
import corridor
from guerdon.collect.control import ControlCollector
from guerdon.collect.shards import ShardedCollector, env_of_shard, join_control, packed, unpacked
from guerdon.errors import CheckpointError
from guerdon.generators import shard_seed
from guerdon.rl.run import run
from guerdon.settings.study import Study
from guerdon.types import Observes, Rollout


def study(*, shards=2, env=None, algorithm=None, **more):
    return Study.model_validate(
        {
            "env": {
                "type": "gymnasium", "task": f"corridor:{corridor.ID}", "num_envs": 4, "max_episode_steps": 7,
                "frame_size": 8, **(env or {}),
            },
            "policy": {"type": "mlp", "hidden": [8]},
            "algorithm": algorithm or {"rollout_steps": 12, "minibatch_size": 16},
            "runner": {"seed": 3, "rollout_shards": shards},
            **more,
        }
    )  # fmt: skip


def collectors(given, *, group_size=None, heads=("env",)):
    shards = given.runner.rollout_shards
    return [
        ControlCollector(
            env_of_shard(given.env, k, shards), given.control_policy, seed=given.runner.seed, rollout_steps=12,
            group_size=group_size, heads=heads, observes=[Observes(every=2)], shard=k,
        )
        for k in range(shards)
    ]  # fmt: skip


def test_streams_of_the_second_shard_follow_those_of_the_first():
    given = study()
    apart, together = collectors(given), ShardedCollector(collectors(given), join_control)
    policy = apart[0].build_policy()
    first, second = (one.collect(policy) for one in apart)
    joined = together.collect(policy, version=5)
    assert (joined.mask.shape, joined.version, joined.steps) == ((4, 12), 5, first.steps + second.steps)
    for name in ("log_probs", "rewards", "terminated", "success"):
        assert np.array_equal(getattr(joined, name), np.concatenate([getattr(first, name), getattr(second, name)]))
    assert np.array_equal(joined.values["env"][2:], second.values["env"])
    assert np.array_equal(joined.inputs.actions[24:], second.inputs.actions)
    assert [s.stream for s in joined.segments] == [s.stream for s in first.segments] + [
        2 + s.stream for s in second.segments
    ]
    assert not np.array_equal(first.inputs.actions, second.inputs.actions), "shards draw numbers of their own"


def test_shorter_groups_are_padded_and_numbered_on():
    given = study(algorithm={"adv_estimator": "grpo", "group_size": 2})
    apart = collectors(given, group_size=2, heads=())
    policy = apart[0].build_policy()
    with torch.no_grad():
        policy.log_std.fill_(1.0)  # some reach the goal soon
    parts = [one.collect(policy) for one in apart]
    while len({part.mask.shape[1] for part in parts}) == 1:
        parts = [one.collect(policy) for one in apart]
    joined = join_control(parts)
    short = min(range(2), key=lambda k: parts[k].mask.shape[1])
    width, rows = parts[short].mask.shape[1], slice(2 * short, 2 * short + 2)
    assert joined.group_ids.tolist() == [0, 0, 1, 1]
    assert not joined.mask[rows, width:].any()
    assert np.array_equal(joined.mask[rows, :width], parts[short].mask)
    actions = joined.inputs.actions.reshape(*joined.mask.shape, -1)
    assert np.array_equal(actions[rows, :width].reshape(2 * width, -1), parts[short].inputs.actions)


def test_decisions_of_chunks_are_numbered_on():
    given = study(policy={"type": f"{chunk_policy.__name__}:ChunkPolicy", "params": {"chunk": 3}})
    apart = collectors(given)
    policy = apart[0].build_policy()
    parts = [one.collect(policy) for one in apart]
    joined = join_control(parts)
    acts = joined.chunks.decision >= 0
    before = len(parts[0].inputs)
    assert np.array_equal(joined.chunks.decision[2:], np.where(acts[2:], parts[1].chunks.decision + before, -1))
    for part, first, streams in ((parts[0], 0, slice(0, 2)), (parts[1], before, slice(2, 4))):
        rows = joined.chunks.decision[streams][acts[streams]]
        assert np.array_equal(joined.log_probs[rows], part.log_probs[rows - first])


def test_shares_are_averaged_and_counts_added():
    def part(metrics, averaged_over):
        none = np.zeros((1, 1), np.bool_)
        zeros = np.zeros((1, 1), np.float32)
        inputs = type("Inputs", (), {"__len__": lambda self: 1})()
        inputs.observations, inputs.actions = np.zeros((1, 2)), np.zeros((1, 1))
        return Rollout(
            inputs, zeros, none, none, none, none, none, zeros, none, metrics=metrics, averaged_over=averaged_over
        )

    found = join_control(
        [
            part({"accuracy": 0.25, "drawn": 3.0, "shown": None}, {"accuracy": 4.0, "shown": 0.0}),
            part({"accuracy": 0.75, "drawn": 4.0, "shown": 0.5}, {"accuracy": 12.0, "shown": 2.0}),
        ]
    )
    assert found.metrics == {"accuracy": (0.25 * 4 + 0.75 * 12) / 16, "drawn": 7.0, "shown": 0.5}
    assert found.averaged_over == {"accuracy": 16.0, "shown": 2.0}


def test_a_stored_state_gives_the_same_rollouts():
    given = study()
    here, there = (ShardedCollector(collectors(given), join_control) for _ in range(2))
    policy = here.collectors[0].build_policy()
    here.collect(policy)
    tensors, values = here.state()
    there.restore(tensors, json.loads(json.dumps(values)))
    expected, found = here.collect(policy), there.collect(policy)
    assert np.array_equal(found.inputs.actions, expected.inputs.actions)
    assert np.array_equal(found.rewards, expected.rewards)
    with pytest.raises(CheckpointError, match="rollout_shards 3"):
        unpacked(tensors, values, 3)
    assert packed([({}, {"a": 1})]) == ({}, {"a": 1}), "a single shard is stored as a run without shards is"


def test_the_first_shard_keeps_the_seed():
    assert shard_seed(7, 0) == 7
    assert len({shard_seed(seed, k) for seed in range(3) for k in range(4)}) == 12


def test_a_study_in_shards_runs_and_resumes_in_one_process(tmp_path):
    def given(name, steps):
        logger = {"log_path": str(tmp_path), "experiment_name": name, "tensorboard": False}
        runner = {
            "seed": 1, "rollout_shards": 2, "total_steps": steps, "eval_every": 96, "eval_episodes": 2,
            "checkpoint_every": 48, "film_frames": 2, "logger": logger,
        }  # fmt: skip
        return study(runner=runner)

    folder, summary = run(given("one", 192))
    again, _ = run(given("again", 192))
    assert summary["step"] == 192
    assert (folder / "metrics.jsonl").read_bytes() == (again / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"shards": 3}, "must be a multiple of runner.rollout_shards 3"),
        ({"engine": "ray", "cluster": {"collectors": 3}}, "runner.rollout_shards 2"),
        ({"cluster": {"collectors": 2}}, "cluster would do nothing with engine: local"),
        ({"engine": "ray", "cluster": {"address": "ray://head:10001"}}, "Ray Client"),
        ({"algorithm": {"adv_estimator": "grpo", "group_size": 4}}, "times algorithm.group_size 4"),
        ({"env": {"data_collection": {"enabled": True, "save_dir": "x"}}}, "data_collection is not supported"),
    ],
)
def test_what_does_not_fit_is_refused(given, reason):
    with pytest.raises(ValueError, match=reason):
        study(**given)
