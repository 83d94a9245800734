"""Actions stay inside the Box of an environment, and a Gaussian policy explores it, wherever it lies."""

import json

import gymnasium
import numpy as np
import pytest
import torch

import strict_box  # noqa: F401  (registers the environment)
from guerdon.collect.collect import collect
from guerdon.collect.control import ControlCollector
from guerdon.collect.stepping import steps
from guerdon.episodes.read import read_episodes
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import NonFiniteError
from guerdon.policies.robots.control import action_units, build_policy, load_policy, save_policy, start_from_policy
from guerdon.rl.run import run, run_folder
from guerdon.settings.policy import MLPPolicySettings
from guerdon.settings.study import Study
from guerdon.settings.world import GymnasiumSettings
from guerdon.train.bc import train_bc
from guerdon.types import Episode
from guerdon.worlds.build import build_world
from tables import sample

SMALL = MLPPolicySettings(hidden=(8,))
TASK = "strict_box:StrictBox-v0"


def settings(low=-1.0, high=1.0, **more):
    kwargs = {"low": low, "high": high, **more.pop("kwargs", {})}
    given = {"task": TASK, "num_envs": 2, "max_episode_steps": None, "native_reward": "dense", "frame_size": (16, 16)}
    return GymnasiumSettings.model_validate({**given, "kwargs": kwargs, **more})


def taken(collector):
    return np.stack([env.unwrapped.taken for env in collector.world.env.envs])  # (B, T, A)


def box(low, high, size=1, dtype=np.float32):
    return gymnasium.spaces.Box(low, high, (size,), dtype)


@pytest.mark.parametrize(("low", "high"), [(40.0, 60.0), (-1000.0, 1000.0), (0.0, 1.0), (-1.0, 1.0), (-3e-3, -1e-3)])
def test_a_box_of_any_place_and_width_is_explored(low, high):
    collector = ControlCollector(settings(low, high), SMALL, seed=0, rollout_steps=200, heads=["env"])
    policy = collector.build_policy()
    rollout = collector.collect(policy)
    executed = taken(collector)[..., 0]
    collector.close()
    assert (np.float32(low) <= executed).all(), "the environment itself refuses others"
    assert (executed <= np.float32(high)).all()
    share = (executed - low) / (high - low)
    assert 0.35 < (share > 0.5).mean() < 0.65, "both halves are visited"
    assert all((share[(share > 0) & (share < 1)] // 0.25 == k).any() for k in range(4)), "and all their parts"
    sampled = rollout.inputs.actions
    assert np.abs(sampled).max() > 1.5, "log-probabilities are of what was sampled, not of what was executed"
    units = policy.units or action_units(box(-2, 2))._replace(half_A=np.ones(1, np.float32))
    assert np.allclose(np.clip(units.executed(sampled), low, high).reshape(executed.shape), executed, rtol=1e-5)
    normal = torch.distributions.Normal(torch.from_numpy(policy.mean(rollout.inputs.observations)), 1.0)
    expected = normal.log_prob(torch.from_numpy(sampled)).sum(-1).numpy().reshape(rollout.log_probs.shape)
    assert policy.log_std.exp().item() == 1.0
    assert rollout.log_probs == pytest.approx(expected, abs=1e-5)
    again = policy.evaluate_all(policy.prepared(rollout.inputs), micro=400).log_probs.numpy().reshape(expected.shape)
    assert np.array_equal(again, rollout.log_probs), "the ratio of the first update is exactly 1"


@pytest.mark.parametrize(("dtype", "low", "high"), [("uint8", 0, 255), ("int16", -5, 5), ("float64", 0.1, 0.3)])
def test_boxes_of_other_types_get_actions_of_their_type(dtype, low, high):
    kwargs = {"dtype": dtype}
    collector = ControlCollector(settings(low, high, kwargs=kwargs), SMALL, seed=0, rollout_steps=60)
    collector.collect(collector.build_policy())
    executed = taken(collector)
    collector.close()
    assert executed.dtype == dtype
    assert executed.min() == low
    assert executed.max() == high
    assert len(np.unique(executed)) > 8


@pytest.mark.parametrize("shape", sample([(), (2, 3), (1, 2, 1)], (2, 3)))
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_box_of_any_shape_is_one_of_numbers_in_a_row(shape, vectorization):
    world = build_world(settings(2.0, 4.0, kwargs={"shape": shape}, vectorization=vectorization), seed=3)
    size = int(np.prod(shape))
    assert world.action_space == box(2.0, 4.0, size)
    world.reset()
    actions = np.linspace(2, 4, 2 * size, dtype=np.float32).reshape(2, size)
    step = world.step(actions)
    assert np.array_equal(step.actions, actions)
    assert step.observations[:, 1] == pytest.approx((actions[:, 0] - 2) / 2)
    if vectorization == "sync":
        taken = [env.unwrapped.taken[0] for env in world.env.envs]
        assert [one.shape for one in taken] == [shape, shape]
        assert np.array_equal(np.stack(taken).reshape(2, size), actions)
    world.close()


def test_units_are_those_of_bounds_that_are_finite():
    assert action_units(box(-1, 1, 3)) is None
    assert action_units(box(-np.inf, np.inf, 3)) is None
    assert action_units(box(-np.finfo(np.float32).max, np.finfo(np.float32).max)) is None, "no bounds, in other words"
    low, high = np.array([40, 0, -np.inf, 7, -1], np.float32), np.array([60, np.inf, 5, 7, 1], np.float32)
    units = action_units(gymnasium.spaces.Box(low, high))
    assert units.centre_A.tolist() == [50, 0, 0, 0, 0]
    assert units.half_A.tolist() == [10, 1, 1, 1, 1]
    assert units.within(units.executed(np.float32([[0.5, 2, 3, 4, 5]]))).tolist() == [[0.5, 2, 3, 4, 5]]


def test_a_box_from_minus_one_to_one_changes_no_bit():
    spaces = (box(-1, 1), box(-np.inf, np.inf))
    policies = [build_policy(SMALL, (2,), space, sources=("env",), seed=3) for space in spaces]
    seen = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    first, second = (policy.actor().act(seen, np.random.default_rng(1)) for policy in policies)
    assert first.values.tobytes() == second.values.tobytes()
    assert first.record is None
    assert policies[0].tensors().keys() == policies[1].tensors().keys()
    assert not any("units" in name for name in policies[0].tensors())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_actions_that_are_not_finite_are_refused_and_not_clipped(bad):
    world = build_world(settings(), seed=0)
    with pytest.raises(NonFiniteError, match="copy 1"):
        next(steps(world, lambda _: np.array([[0.0], [bad]], np.float32), world.reset().observations))
    world.close()


def test_every_step_says_what_was_executed():
    world = build_world(settings(0.0, 1.0), seed=0)
    step = next(steps(world, lambda _: np.array([[-3.0], [0.25]]), world.reset().observations))
    assert step.actions.tolist() == [[0.0], [0.25]]
    assert [env.unwrapped.taken[0].tolist() for env in world.env.envs] == step.actions.tolist()
    world.close()


def study(tmp_path, low, high, **more):
    logger = {"log_path": str(tmp_path), "experiment_name": "run", "tensorboard": False}
    runner = {"total_steps": 80, "eval_every": 1000, "eval_episodes": 2, "seed": 1, "logger": logger, "film_frames": 2}
    env = {**settings(low, high).model_dump(exclude_defaults=True), "type": "gymnasium", **more.pop("env", {})}
    base = {"runner": {**runner, **more.pop("runner", {})}, "env": env, "policy": {"type": "mlp", "hidden": [8]}}
    ppo = {"adv_estimator": "gae", "rollout_steps": 20, "minibatch_size": 10, "num_epochs": 1}
    return Study.model_validate({**base, "algorithm": ppo, **more})


def test_a_run_records_what_was_executed_and_its_policy_acts_alike_wherever_it_is_loaded(tmp_path):
    data = {"enabled": True, "save_dir": str(tmp_path / "data"), "frame_every": 1, "sample_rate_fail": 1.0}
    one = study(tmp_path, 40.0, 60.0, env={"data_collection": data})
    run(one)
    episodes = list(read_episodes(tmp_path / "data"))
    actions = np.concatenate([episode.actions[1:] for episode in episodes])
    assert len(actions) >= 40
    assert (actions >= 40).all()
    assert (actions <= 60).all()
    went = np.concatenate([episode.states[1:, 1] for episode in episodes])
    assert (actions[:, 0] - 40) / 20 == pytest.approx(went, abs=1e-5), "what was recorded led to what was observed"
    folder = run_folder(one) / "policy"
    card = json.loads((folder / "policy.json").read_text())
    assert (card["low"], card["high"]) == ([40.0], [60.0])
    policy, seen = load_policy(folder), np.zeros((3, 2), np.float32)
    values = policy.act(seen, np.random.default_rng(0), greedy=True).values
    assert ((values > 40) & (values < 60)).all()
    for space in (box(0, 1), box(-1, 1), box(-np.inf, np.inf), box(40, 60)):
        other = build_policy(one.policy, (2,), space, sources=("env",), seed=5)
        start_from_policy(other, folder)
        assert np.array_equal(other.actor().act(seen, np.random.default_rng(0), greedy=True).values, values)
        save_policy(other, tmp_path / "again")
        assert np.array_equal(load_policy(tmp_path / "again").act(seen, None, greedy=True).values, values)


def test_a_policy_that_was_stored_without_units_acts_as_it_did(tmp_path):
    old = build_policy(SMALL, (2,), box(-np.inf, np.inf), sources=("env",), seed=4)
    seen = np.random.default_rng(2).normal(size=(6, 2)).astype(np.float32)
    values = old.actor().act(seen, np.random.default_rng(0)).values
    save_policy(old, tmp_path)
    card = json.loads((tmp_path / "policy.json").read_text())
    (tmp_path / "policy.json").write_text(json.dumps({k: v for k, v in card.items() if k not in ("low", "high")}))
    assert np.array_equal(load_policy(tmp_path).actor().act(seen, np.random.default_rng(0)).values, values)
    warm = build_policy(SMALL, (2,), box(40, 60), sources=("env",), seed=7)
    start_from_policy(warm, tmp_path)
    assert np.array_equal(warm.actor().act(seen, np.random.default_rng(0)).values, values)


def test_a_resumed_run_has_the_bytes_of_one(tmp_path):
    whole = study(tmp_path / "whole", 0.0, 1.0)
    run(whole)
    half = study(tmp_path / "cut", 0.0, 1.0, runner={"total_steps": 40, "checkpoint_every": 40, "logger": {
        "log_path": str(tmp_path / "cut"), "experiment_name": "run", "tensorboard": False}})  # fmt: skip
    run(half)
    rows = [json.loads(line) for line in (run_folder(whole) / "metrics.jsonl").read_text().splitlines()]
    first = [json.loads(line) for line in (run_folder(half) / "metrics.jsonl").read_text().splitlines()]
    assert [r for r in first if r["kind"] == "train"] == [r for r in rows if r["kind"] == "train"][: len(first) - 1]


@pytest.mark.parametrize(
    ("low", "high"), sample([(40.0, 60.0), (-1000.0, 1000.0), (0.0, 1.0)], (0.0, 1.0), several=True)
)
def test_a_clone_acts_in_the_units_of_the_environment(tmp_path, low, high):
    rng, centre, half = np.random.default_rng(0), (low + high) / 2, (high - low) / 2
    with EpisodeWriter(tmp_path / "data", camera="corner", robot_type="gymnasium") as writer:
        for number in range(10):
            states = rng.normal(size=(30, 2)).astype(np.float32)
            done = centre + half * np.tanh(states[:-1, :1])
            actions = np.concatenate([np.zeros((1, 1)), done]).astype(np.float32)
            frames = np.zeros((30, 16, 16, 3), np.uint8)
            writer.add(Episode(id=str(number), task="t", states=states, actions=actions, frames=frames, outcome=True))
    bc = {"data_path": str(tmp_path / "data"), "save_dir": str(tmp_path / "clone"), "epochs": 60, "batch_size": 32,
          "learning_rate": 3e-3}  # fmt: skip
    folder, metrics = train_bc(study(tmp_path, low, high, bc=bc, policy={"type": "mlp", "hidden": [32]}))
    policy = load_policy(folder)
    seen = rng.normal(size=(200, 2)).astype(np.float32)
    values = policy.act(seen, rng, greedy=True).values
    assert np.abs(values[:, 0] - (centre + half * np.tanh(seen[:, 0]))).mean() < 0.1 * half
    assert metrics["val_mae"] < 0.1, "in units of the bounds"
    assert 0.05 <= metrics["action_std"] < 0.2
    assert policy.units.half_A.item() == half


def test_experts_random_actions_and_noise_stay_inside(tmp_path):
    folder = tmp_path / "policy"
    save_policy(build_policy(SMALL, (2,), box(40, 60), sources=(), seed=1), folder)
    mixture = [{"type": "random", "share": 0.5}, {"type": "checkpoint", "checkpoint": str(folder), "share": 0.5,
                "noise": 30.0}]  # fmt: skip
    section = {"save_dir": str(tmp_path / "data"), "episodes": 4, "mixture": mixture, "frame_every": 1}
    collect(study(tmp_path, 40.0, 60.0, collect=section))
    for episode in read_episodes(tmp_path / "data"):
        assert ((episode.actions[1:] >= 40) & (episode.actions[1:] <= 60)).all()
        assert (episode.actions[1:, 0] - 40) / 20 == pytest.approx(episode.states[1:, 1], abs=1e-5)


def test_states_of_a_world_whose_box_has_no_zero_are_restored():
    one, other = (build_world(settings(40.0, 60.0), seed=0) for _ in range(2))
    one.reset()
    acting = steps(one, lambda _: np.array([[1e3], [44.0]]), one.observations)
    for _ in range(7):
        next(acting)
    other.load_state_dict(one.state_dict())
    assert np.array_equal(other.observations, one.observations)
    one.close()
    other.close()
