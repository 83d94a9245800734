"""Chunks in the stepping loop: which actions are executed, where a decision is due, and what is drawn for it."""

import itertools

import numpy as np
import pytest
import torch

import tiny_world
from chunk_policy import ChunkPolicy
from guerdon.collect.collect import collect
from guerdon.collect.control import ControlCollector
from guerdon.collect.stepping import ActionQueue, evaluate, steps
from guerdon.episodes.read import read_episodes
from guerdon.errors import ConfigError
from guerdon.policies.robots.control import build_policy, save_policy
from guerdon.policies.robots.robot import Action
from guerdon.settings.study import Study
from guerdon.types import Observes
from guerdon.worlds.build import build_world
from guerdon.worlds.world import resized
from tables import refuses

MODES = ("disabled", "next_step", "same_step")
FRAMES = {"chunk": 3, "frames": True}


def study_of(*, env=None, params=None, algorithm=None, **sections):
    return Study.model_validate(
        {
            "env": {
                "type": "gymnasium", "task": f"{tiny_world.__name__}:Dot-v1", "task_text": "go right", "num_envs": 3,
                "max_episode_steps": 10, "native_reward": "dense", "frame_size": [12, 12], "vectorization": "sync",
                **(env or {}),
            },
            "policy": {"type": "chunk_policy:ChunkPolicy", "params": params or {}},
            "algorithm": algorithm or {"rollout_steps": 14},
            **sections,
        }
    )  # fmt: skip


def collector_of(study, **given):
    algorithm = study.control_algorithm
    group = algorithm.group_size if algorithm.needs.groups else None
    given = {"heads": () if group else ("env",), "rollout_steps": algorithm.rollout_steps, **given}
    return ControlCollector(study.env, study.control_policy, seed=4, group_size=group, **given)


class Counter:
    """A camera that counts the pictures it draws."""

    def __init__(self, eye):
        self.eye, self.size, self.drawn = eye, eye.size, 0

    def look(self, index):
        return self.eye.look(index)

    def render(self, looks):
        self.drawn += len(looks)
        return self.eye.render(looks)

    def close(self):
        self.eye.close()


def counting(world):
    world.eye = Counter(world.eye)
    return world.eye


class Numbers:
    """Decides on 0.001, 0.002, ...: each action says which one it is."""

    def __init__(self, chunk):
        self.count, self.chunk, self.given = 0, chunk, []

    def __call__(self, observations):
        self.given.append(len(observations))
        values = self.count + np.arange(len(observations) * self.chunk).reshape(-1, self.chunk, 1) + 1
        self.count = int(values.max())
        return Action(values.astype(np.float32) / 1000)


@pytest.mark.parametrize("mode", MODES)
def test_a_queue_gives_actions_in_order_and_drops_them_at_ends(mode):
    limit = {"max_episode_steps": 7} if mode == "disabled" else {}
    world = build_world(study_of(env={"autoreset_mode": mode, **limit}).env, seed=0)
    numbers = Numbers(3)
    queue = ActionQueue(world, numbers, 3)
    start = world.reset().observations
    expected, fresh, number, resetting = [], 0, 0, np.zeros(3, bool)
    left = [[] for _ in range(3)]
    for _, step in zip(range(40), steps(world, queue, start), strict=False):
        due = np.array([not row for row in left]) & ~resetting
        assert queue.due.tolist() == due.tolist()
        for i in np.flatnonzero(due):
            left[i] = [number + 1, number + 2, number + 3]
            number += 3
        expected = [0 if resetting[i] else left[i].pop(0) for i in range(3)]
        np.testing.assert_allclose(step.actions[:, 0], np.array(expected) / 1000, rtol=1e-6)
        assert queue.slots.tolist() == [-1 if resetting[i] else 2 - len(left[i]) for i in range(3)]
        assert (queue.record is None) == (not due.any())
        resetting = step.transition.done & (mode == "next_step")
        for i in np.flatnonzero(step.transition.done):
            fresh += 1
            left[i] = []
    assert fresh >= 9, "episodes ended inside chunks"
    assert sum(numbers.given) * 3 == number
    world.close()


def test_a_queue_begins_anew_after_its_horizon_and_leaves_out_what_rests():
    world = build_world(study_of().env, seed=0)
    numbers = Numbers(3)
    queue = ActionQueue(world, numbers, 3, horizon=4)
    queue.resting = np.array([False, True, False])
    for _, step in zip(range(6), steps(world, queue, world.reset().observations), strict=False):
        assert step.actions[1] == 0
    assert numbers.given == [2, 2, 2]  # at steps 0, 3, and 4 after the horizon
    world.close()


@pytest.mark.parametrize(("chunk", "shape"), [(3, (2, 3, 1)), (3, (3, 1)), (1, (3, 1, 1)), (2, (3, 2, 2))])
def test_decisions_of_another_shape_are_refused(chunk, shape):
    world = build_world(study_of().env, seed=0)
    queue = ActionQueue(world, lambda shown: Action(np.zeros(shape, np.float32)), chunk)
    with pytest.raises(ConfigError, match=f"with chunk {chunk} they have shape"):
        queue(world.reset().observations)
    world.close()


class Short(ChunkPolicy):
    """Gives one log-probability for all."""

    def evaluate(self, inputs, *, entropy=False):
        found = super().evaluate(inputs, entropy=entropy)
        return type(found)(found.log_probs.sum(1, keepdim=True), values=found.values)


def test_log_probs_of_another_shape_are_refused():
    collector = collector_of(study_of())
    policy = Short((2,), collector.world.action_space, ("env",))
    with pytest.raises(ConfigError, match=r"shape \(\d+, 1\), expected \(\d+, 8\): .* 4 x 2"):
        collector.collect(policy)
    collector.close()


@pytest.mark.parametrize("chunk", [0, 2.5])
def test_chunks_of_no_action_are_refused(chunk, monkeypatch):
    study = study_of()
    world = build_world(study.env, seed=0)
    monkeypatch.setattr(ChunkPolicy, "chunk", property(lambda self: chunk, lambda self, value: None))
    with refuses("policy.type", "chunk must be a whole number from 1 on"):
        build_policy(study.control_policy, (2,), world.action_space, sources=(), seed=0)
    world.close()


# Rollouts.


@pytest.mark.parametrize(("mode", "frames"), [*itertools.product(MODES[:2], (False, True)), ("same_step", False)])
def test_rollouts_hold_the_decisions_and_what_they_saw(mode, frames):
    """Records, observations, log-probabilities and values belong together, across ends and rollouts."""
    env = {"autoreset_mode": mode, "num_envs": 2, **({"max_episode_steps": 7} if mode == "disabled" else {})}
    study = study_of(env=env, params={"chunk": 3, "frames": frames})
    collector = collector_of(study, heads=("env", "prm"))
    policy = collector.build_policy()
    ended = 0
    for _ in range(4):
        policy.decided.clear()
        before = collector.world.observations if collector._begun else None
        rollout = collector.collect(policy)
        chunks, count = rollout.chunks, len(rollout.inputs)
        assert sum(policy.decided) == count
        assert max(policy.decided) <= 2
        assert len(policy.decided) <= rollout.mask.shape[1]
        first = (chunks.decision[:, 0] >= 0) | ~rollout.mask[:, 0]
        assert first.all()
        assert (chunks.slot[:, 0] <= 0).all(), "a rollout begins with fresh decisions"
        if before is not None:
            for i in np.flatnonzero(rollout.mask[:, 0]):
                assert np.array_equal(rollout.inputs.observations[chunks.decision[i, 0]], before[i])
        assert np.array_equal(chunks.decision >= 0, rollout.mask)
        for b in range(2):
            here = chunks.decision[b][rollout.mask[b]]
            assert (np.diff(here) >= 0).all()
            new = np.flatnonzero(rollout.done[b][:-1]) + 1 + (mode == "next_step")
            assert all(chunks.slot[b, t] == 0 for t in new[new < rollout.mask.shape[1]])
        assert sorted(set(chunks.decision[chunks.decision >= 0].tolist())) == list(range(count))
        found = policy.evaluate(rollout.inputs)
        np.testing.assert_allclose(rollout.log_probs, found.log_probs.detach().numpy(), atol=1e-5)
        for k, name in enumerate(("env", "prm")):
            np.testing.assert_allclose(rollout.values[name], found.values[:, 0, k].detach().numpy(), atol=1e-5)
            check_next_values(rollout, name)
        ended += int(rollout.done.sum())
    assert ended > 4
    collector.close()


def check_next_values(rollout, name):
    """The value after a decision is that before the next one of its stream, but where an episode ended."""
    values, following, chunks = rollout.values[name], rollout.next_values[name], rollout.chunks
    for b in range(len(rollout.mask)):
        of = chunks.decision[b]
        numbers = sorted(set(of[of >= 0].tolist()))
        for r, after in itertools.pairwise(numbers):
            if rollout.terminated[b, of == r].any():
                assert following[r] == 0
            elif rollout.truncated[b, of == r].any():
                assert following[r] != values[after]
            else:
                assert following[r] == values[after]


@pytest.mark.parametrize("mode", MODES[:2])
def test_a_truncated_chunk_bootstraps_from_its_terminal_observation(mode):
    """Also with frames, which are drawn for it."""
    limit = {"max_episode_steps": 7} if mode == "disabled" else {}
    study = study_of(env={"autoreset_mode": mode, **limit}, params=FRAMES)
    collector = collector_of(study)
    policy = collector.build_policy()
    terminal, step = [], collector.world.step

    def watched(*given, **named):
        transition = step(*given, **named)
        terminal.extend((i, transition.final_observations[i]) for i in np.flatnonzero(transition.truncated))
        return transition

    collector.world.step = watched
    rollout = collector.collect(policy)
    ends = [(b, t) for t, b in np.argwhere(rollout.truncated.T).tolist()]
    assert len(ends) == len(terminal) >= 3
    for (b, t), (i, observation) in zip(ends, terminal, strict=True):
        assert b == i
        assert observation["frames"].any()
        with torch.no_grad():
            wanted = float(policy.values(np.array([observation]))[0, 0])
        assert rollout.next_values["env"][rollout.chunks.decision[b, t]] == pytest.approx(wanted, abs=1e-6)
    collector.close()


@pytest.mark.parametrize("setup", ["grpo", "grpo next_step", "streams", "critic", "next_step"])
def test_as_many_frames_are_drawn_as_decisions_are_made(setup):
    grpo = "grpo" in setup
    env = {"max_episode_steps": 7, **({"autoreset_mode": "next_step"} if "next_step" in setup else {})}
    algorithm = {"adv_estimator": "grpo", "group_size": 3} if grpo else {"rollout_steps": 14}
    study = study_of(env=env, params=FRAMES, algorithm=algorithm)
    collector = collector_of(study, **({} if grpo or setup == "critic" else {"heads": ()}))
    eye, policy = counting(collector.world), collector.build_policy()
    rollouts = [collector.collect(policy) for _ in range(3)]
    wanted = sum(len(rollout.inputs) for rollout in rollouts)
    if not grpo:  # what the next rollout decides on is drawn already, but of copies that reset first
        wanted += int((~collector.world.resetting).sum())
    if setup == "critic":
        wanted += sum(int(rollout.truncated.sum()) for rollout in rollouts)
    assert eye.drawn == wanted
    for rollout in rollouts:
        assert rollout.inputs.observations["frames"].any(axis=(1, 2, 3)).all()
    collector.close()


def test_what_is_not_drawn_changes_nothing():
    """The same rollouts as with every frame drawn, where the policy sees only those of its decisions."""
    found = []
    for everything in (False, True):
        collector = collector_of(study_of(env={"max_episode_steps": 7}, params=FRAMES))
        if everything:
            step = collector.world.step
            collector.world.step = lambda *a, step=step, **k: step(*a, **{**k, "frames": None})
        policy = collector.build_policy()
        rollouts = [collector.collect(policy) for _ in range(2)]
        found.append([(r.inputs.observations, r.inputs.actions, r.rewards, r.next_values["env"]) for r in rollouts])
        collector.close()
    for one, other in zip(*found, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_groups_rest_when_their_episode_is_over():
    study = study_of(
        env={"num_envs": 4, "max_episode_steps": 10, "end_on_success": True}, params={"chunk": 3},
        algorithm={"adv_estimator": "grpo", "group_size": 4},
    )  # fmt: skip
    collector = collector_of(study)
    policy = collector.build_policy()
    policy.pi.bias.data[2::3] = 1.0  # to the right
    rollout = collector.collect(policy)
    lengths = rollout.mask.sum(axis=1)
    assert len(set(lengths.tolist())) > 1, "episodes of different lengths"
    assert sum(policy.decided) == len(rollout.inputs) == sum(-(-n // 3) for n in lengths.tolist())
    collector.close()


def test_micro_batches_evaluate_the_same():
    found = []
    for micro in (None, 2):
        collector = collector_of(study_of(env={"max_episode_steps": 7}), micro_batch_size=micro)
        rollout = collector.collect(collector.build_policy())
        found.append((rollout.log_probs, rollout.values["env"], rollout.next_values["env"]))
        collector.close()
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


# Evaluation, videos, recordings, collected episodes.


def test_an_evaluation_plays_what_a_loop_by_hand_plays():
    study = study_of(params={"chunk": 4})
    collector = collector_of(study)
    policy = collector.build_policy()
    with torch.no_grad():
        for name, tensor in policy.named_parameters():
            tensor.add_(0.3 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name))))
    found = collector.evaluate(policy, episodes=3)
    world = build_world(study.env, seed=10_000_019)
    shown, total = world.reset().observations, np.zeros(3)
    for t in range(10):
        if t % 4 == 0:
            with torch.no_grad():
                chunk = policy.act(shown, np.random.default_rng(0), greedy=True).values
        transition = world.step(chunk[:, t % 4])
        shown, total = transition.observations, total + transition.rewards
    assert found["return/env"] == pytest.approx(total.mean(), abs=1e-6)
    assert found["episodes"] == 3
    again = collector.evaluate({k: v.numpy() for k, v in policy.tensors().items()}, episodes=3)
    assert again == found
    collector.close()
    world.close()


@pytest.mark.parametrize("mode", MODES[:2])
def test_an_evaluation_draws_no_more_than_it_decides_on(mode):
    limit = {"max_episode_steps": 7} if mode == "disabled" else {}
    study = study_of(env={"autoreset_mode": mode, **limit}, params=FRAMES)
    world = build_world(study.env, seed=0)
    policy = build_policy(study.control_policy, (2,), world.action_space, sources=(), seed=0)
    eye = counting(world)
    world.show(policy.observation_spec)
    rng = np.random.default_rng(0)
    queue = ActionQueue(world, lambda shown: policy.act(shown, rng, greedy=True), policy.chunk)
    with torch.no_grad():
        assert evaluate(world, queue, episodes=6)["episodes"] == 6
    assert eye.drawn == sum(policy.decided)
    world.close()


def test_a_video_asks_for_the_copy_shown_alone():
    collector = collector_of(study_of(params=FRAMES))
    policy = collector.build_policy()
    moments, rewards = collector.show(policy, frames=5)
    assert len(moments) == len(rewards) == 5
    assert policy.decided == [1] * 4  # of 10 steps
    collector.close()


def test_recorded_episodes_hold_the_executed_actions(tmp_path):
    data = {"enabled": True, "save_dir": str(tmp_path / "data"), "sample_rate_fail": 1.0, "frame_every": 1}
    study = study_of(env={"data_collection": data, "max_episode_steps": 7}, params=FRAMES)
    collector = collector_of(study, observes=[Observes(every=2, first=True)])
    policy = collector.build_policy()
    rollout = collector.collect(policy)
    collector.close()
    values = policy.numbers[rollout.inputs.actions].reshape(-1, 3, 2).mean(-1)
    for episode in read_episodes(tmp_path / "data"):
        b, t = episode.meta["copy"], 7 * (int(episode.id.split("-")[2]) // 3)
        of = rollout.chunks.decision[b, t : t + 7], rollout.chunks.slot[b, t : t + 7]
        np.testing.assert_allclose(episode.actions[1:, 0], values[of], atol=1e-6)
        assert episode.frames.any(axis=(1, 2, 3)).all()
    assert all(segment.frames_F.any(axis=(1, 2, 3)).all() for segment in rollout.segments if len(segment))


def test_a_stored_policy_of_chunks_collects(tmp_path):
    """Each episode is recorded after random steps, and the first recorded action begins a decision."""
    study = study_of(params=FRAMES)
    world = build_world(study.env, seed=0)
    policy = build_policy(study.control_policy, (2,), world.action_space, sources=(), seed=0)
    world.close()
    save_policy(policy, tmp_path / "policy")
    actor = {"type": "checkpoint", "checkpoint": str(tmp_path / "policy"), "noise": 0.0, "random_steps": 3}
    section = {"save_dir": str(tmp_path / "data"), "episodes": 5, "mixture": [actor], "frame_every": 1}
    collect(study_of(params=FRAMES, collect=section))
    episodes = list(read_episodes(tmp_path / "data"))
    assert len(episodes) == 5
    assert {len(e) for e in episodes} <= {8, 9, 10, 11}
    assert len({len(e) for e in episodes}) > 1
    world = build_world(study.env, seed=0)
    world.show(policy.observation_spec)
    shape = world.reset().observations.dtype
    world.close()
    for episode in episodes:
        shown = np.zeros(len(episode) - 1, shape)
        shown["states"] = episode.states[:-1]
        shown["frames"] = [resized(frame, (6, 6)) for frame in episode.frames[:-1]]
        with torch.no_grad():
            decided = policy.act(shown[::3], np.random.default_rng(0), greedy=True).values
        wanted = decided.reshape(-1, 1)[: len(episode) - 1]
        np.testing.assert_allclose(episode.actions[1:], wanted, atol=1e-6)
