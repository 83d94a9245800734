"""Rollouts in shards: joining, states, and what the configuration refuses."""

import json
from dataclasses import fields

import numpy as np
import pytest
import torch

import chunk_policy
import corridor
import ladder
from guerdon.collect.control import ControlCollector
from guerdon.collect.episode_capture import episode_number
from guerdon.collect.shards import ShardedCollector, join_control, joined, packed, share_results, unpacked
from guerdon.compute.generators import shard_seed
from guerdon.episodes.read import read_episodes
from guerdon.errors import CheckpointError
from guerdon.rl.learner import OnPolicyLearner
from guerdon.rl.run import run
from guerdon.settings.study import Study
from guerdon.types import Chunks, Failure, Observes, Rollout, Segment
from tables import refuses


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


def collectors(given, *, group_size=None, heads=("env",), rollout_steps=12):
    shards = given.runner.rollout_shards
    return [
        ControlCollector(
            given.env, given.control_policy, seed=given.runner.seed, rollout_steps=rollout_steps, group_size=group_size,
            heads=heads, observes=[Observes(every=2)], shard=k, shards=shards,
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


def test_nothing_is_drawn_where_states_are_enough(monkeypatch):
    drawn = []
    draw = corridor.Corridor.render
    monkeypatch.setattr(corridor.Corridor, "render", lambda env: drawn.append(1) or draw(env))
    given = study(shards=1)
    (seeing,), (blind,) = collectors(given), collectors(given)
    blind.observes = (Observes(every=2, first=True, frames=False),)
    seeing.observes = (Observes(every=2, first=True),)
    shown, states = (one.collect(one.build_policy()).segments for one in (seeing, blind))
    assert drawn
    assert len(shown) == len(states) > 4
    for one, other in zip(shown, states, strict=True):
        assert np.array_equal(one.rows_F, other.rows_F)
        assert np.array_equal(one.states_F, other.states_F)
    drawn.clear()
    blind.collect(blind.build_policy())
    assert not drawn


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


def test_curricula_of_shards_learn_from_each_other_and_resume():
    env = {
        "task_ids": list(ladder.IDS), "task": ladder.IDS[0], "max_episode_steps": None, "use_curriculum": True,
        "curriculum_over": "both", "curriculum_states": 4,
    }  # fmt: skip
    given = study(env=env)
    here, there = (
        ShardedCollector(collectors(given, rollout_steps=6), join_control, share_results) for _ in range(2)
    )  # within episodes: they have 4 steps
    policy = here.collectors[0].build_policy()
    for _ in range(3):
        rollout = here.collect(policy)
    both = [one.world.curriculum for one in here.collectors]
    assert all(one.results for one in both), "reported in the last rollout, for the next one"
    assert rollout.metrics[f"curriculum/{ladder.IDS[0]}/sampled"] == sum(int(one.sampled[0]) for one in both)
    tensors, values = here.state()
    there.restore(tensors, json.loads(json.dumps(values)))
    expected, found = here.collect(policy), there.collect(policy)
    assert np.array_equal(found.inputs.observations, expected.inputs.observations)
    assert found.metrics == expected.metrics
    results = share_results(unpacked(*here.state(), 2))["results"]
    assert [int(one.episodes.sum()) for one in both] == [16 + len(one.results) for one in both]
    assert results == [one.results for one in both]


def test_shards_take_tasks_and_starts_where_the_others_go_on():
    """Four copies of three tasks, alone and as two shards: the n-th episode of a copy plays the same task."""
    env = {"task_ids": list(ladder.IDS), "task": ladder.IDS[0], "max_episode_steps": None}
    (alone,) = collectors(study(shards=1, env=env), rollout_steps=4)
    parts = collectors(study(env=env), rollout_steps=4)
    policy = alone.build_policy()
    for _ in range(3):
        alone.collect(policy)
        for part in parts:
            part.collect(policy)
        assert alone.world.tasks == tuple(task for part in parts for task in part.world.tasks)
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


def test_shards_record_what_their_copies_played(tmp_path, monkeypatch):
    def given(name, steps):
        data = {"enabled": True, "mode": "all", "save_dir": str(tmp_path / name / "data"), "sample_rate_fail": 1.0}
        runner = {
            "seed": 1, "rollout_shards": 2, "total_steps": steps, "eval_every": 96, "eval_episodes": 2,
            "checkpoint_every": 48, "film_frames": 2,
            "logger": {"log_path": str(tmp_path), "experiment_name": name, "tensorboard": False},
        }  # fmt: skip
        return study(runner=runner, env={"data_collection": data})

    folder, _ = run(given("one", 192))
    episodes = list(read_episodes(tmp_path / "one" / "data"))
    trained = [one for one in episodes if one.meta["mode"] == "train"]
    assert len(trained) == len((folder / "episodes.jsonl").read_text().splitlines()) > 8
    assert {one.meta["copy"] for one in trained} == {0, 1, 2, 3}
    numbers = [episode_number(one.id, "train-s1") for one in trained]
    assert sorted(numbers) == sorted(set(numbers))
    assert all(number % 4 == one.meta["copy"] for number, one in zip(numbers, trained, strict=True))
    assert len(episodes) > len(trained), "evaluations, by the first shard"
    learn, updates = OnPolicyLearner.update, []

    def die(self, *args, **options):
        updates.append(None)
        if len(updates) == 3:
            raise KeyboardInterrupt
        return learn(self, *args, **options)

    with monkeypatch.context() as during:
        during.setattr(OnPolicyLearner, "update", die)
        with pytest.raises(KeyboardInterrupt):
            run(given("again", 192))
    run(given("again", 192), resume=True)
    assert [one.id for one in read_episodes(tmp_path / "again" / "data")] == [one.id for one in episodes]


OVERLAP = {
    "use_reward_model": True, "combine_mode": "add", "reward_mode": "per_step", "shaping": "raw", "overlap_steps": 4,
    "model": {"model_type": "constant", "value": 0.5},
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"shards": 3}, "env.num_envs"),
        ({"engine": "ray", "cluster": {"collectors": 3}}, "cluster.collectors"),
        ({"cluster": {"collectors": 2}}, "cluster"),
        ({"engine": "ray", "cluster": {"address": "ray://head:10001"}}, "address"),
        ({"algorithm": {"adv_estimator": "grpo", "group_size": 4}}, "env.num_envs"),
        ({"reward": OVERLAP}, "reward.overlap_steps"),
    ],
)
def test_what_does_not_fit_is_refused(given, key):
    with refuses(key):
        study(**given)


def full(seed, *, chunked=False, greedy=True):
    """A rollout of two streams with something of its own in every field."""
    rng = np.random.default_rng(seed)
    shape = (2, 3 + seed)
    mask = np.ones(shape, np.bool_)
    flags = {
        name: rng.random(shape) < 0.5 for name in ("terminated", "truncated", "success", "success_known", "failed")
    }
    mask[0, 1 + seed :] = False
    decision = np.where(mask, np.cumsum(mask).reshape(shape) - 1, -1)
    numbers = lambda: rng.random((int(mask.sum()), 1) if chunked else shape).astype(np.float32)  # noqa: E731
    seen = tuple(
        Segment(seed, 0, "t", 0, 1, True, True, *[np.array([seed])] * 3, (None,), *[np.zeros((1, 2))] * 2)
        for _ in range(seed + 1)
    )
    return Rollout(
        inputs=np.arange(int(mask.sum())) + 100 * seed, log_probs=numbers(), mask=mask, **flags,
        rewards=rng.random(shape).astype(np.float32), failures=((0, seed, Failure("slow")),),
        group_ids=np.array([5 + seed, 7 + seed]), segments=seen, steps=1 + seed, measured=2 + seed,
        metrics={"count": float(seed + 1), "mean": float(seed)}, averaged_over={"mean": 1.0 + seed},
        values={"env": numbers()}, next_values={"env": numbers()},
        greedy=full(seed, chunked=chunked, greedy=False) if greedy else None,
        sampled_log_probs=None if chunked else rng.random(shape).astype(np.float32), fresh=seed == 0, version=3,
        seconds={"simulate": 1.0 + seed}, videos=seen, ends=((1, seed, np.array([seed])),),
        actions=rng.random((*shape, 2)).astype(np.float32), intervened=rng.random(shape) < 0.5,
        chunks=Chunks(decision, np.where(mask, 0, -1), 1) if chunked else None,
        kept={"mass": rng.random((*shape, 1))}, states=rng.integers(0, 99, shape),
        life_lost=rng.random(shape) < 0.5,
    )  # fmt: skip


def shown(value):
    """A value of a field, so that it can be compared."""
    inside = vars(value) if isinstance(value, Rollout | Segment | Chunks) else value
    if isinstance(inside, dict):
        return {name: shown(one) for name, one in inside.items()}
    if isinstance(inside, tuple):
        return [shown(one) for one in inside]
    return inside.tolist() if isinstance(inside, np.ndarray) else repr(inside)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_join_has_something_of_every_part_in_every_field(chunked):
    inputs = lambda parts: np.concatenate([part.inputs for part in parts])  # noqa: E731
    one, other = full(0, chunked=chunked), full(1, chunked=chunked)
    both, twice = joined([one, other], inputs), joined([one, one], inputs)
    of_one = {"version", "conversations"} | ({"sampled_log_probs"} if chunked else {"chunks"})
    for name in {field.name for field in fields(Rollout)} - of_one:
        assert shown(getattr(both, name)) != shown(getattr(twice, name)), name
        assert shown(getattr(both, name)) != shown(getattr(one, name)), name
    assert both.version == one.version
    assert both.failures == ((0, 0, Failure("slow")), (2, 1, Failure("slow")))
    assert [segment.stream for segment in both.segments] == [0, 3, 3]
    assert (both.steps, both.measured, both.metrics["mean"]) == (3, 5, pytest.approx(2 / 3))
