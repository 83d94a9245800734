"""The real ManiSkill: its starts, steps, rewards and pictures are its own; skipped where it is not installed."""

import contextlib
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

if importlib.util.find_spec("mani_skill") is None:
    pytest.skip("ManiSkill has an environment of its own: make test-maniskill", allow_module_level=True)

import gymnasium

from guerdon import doctor
from guerdon.collect.collect import collect
from guerdon.collect.control import ControlCollector
from guerdon.config import loading as config
from guerdon.episodes.read import read_episodes, summarize
from guerdon.errors import MissingDependencyError
from guerdon.policies.robots.experts import ManiSkillExpert
from guerdon.settings.collect import ActorShare, CollectSettings
from guerdon.settings.policy import MLPPolicySettings
from guerdon.settings.study import Study
from guerdon.settings.world import ManiSkillSettings
from guerdon.types import Observes
from guerdon.worlds.build import build_world
from guerdon.worlds.maniskill import TASK_TEXTS, ManiSkillEye, ManiSkillVectorEnv, import_maniskill
from guerdon.worlds.world import ObservationSpec
from restored import check_restored
from tables import refuses

SIZE = (48, 64)


@pytest.fixture(scope="module")
def picking():
    """Two copies of PickCube."""
    env = ManiSkillVectorEnv("PickCube-v1", 2, reward_mode="dense", frame_size=SIZE)
    yield env
    env.close()


@pytest.fixture
def own():
    """Makes ManiSkill's own environment as its users do; closed afterwards."""
    import_maniskill()
    with contextlib.ExitStack() as made:

        def make(task, **kwargs):
            env = gymnasium.make(task, sim_backend="physx_cpu", render_backend="cpu", **kwargs)
            made.callback(env.close)
            return env

        yield make


def actions_of(env, steps, seed=0):
    space = env.single_action_space
    return np.random.default_rng(seed).uniform(space.low, space.high, (steps, *space.shape)).astype(np.float32)


@pytest.mark.parametrize("task", ["PickCube-v1", "PushCube-v1", "StackCube-v1"])
@pytest.mark.parametrize("mode", ["pd_joint_delta_pos", "pd_ee_delta_pose"])
def test_starts_steps_and_rewards_are_maniskills_own(task, mode, own):
    theirs = own(task, obs_mode="state", control_mode=mode, reward_mode="normalized_dense")
    env = ManiSkillVectorEnv(task, 2, control_mode=mode)
    assert env.single_action_space == theirs.unwrapped.single_action_space
    actions = actions_of(env, 12)
    env.reset(seed=[4, 5])
    for action in actions:  # an episode before, which must leave nothing
        env.step(np.stack([action, -action]))
    for seed in (7, 8):
        begun, _ = theirs.reset(seed=seed)
        shown, _ = env.reset(seed=[seed, 0])
        assert np.array_equal(shown[0], begun[0].numpy())
        for action in actions:
            expected, reward, _, _, info = theirs.step(action)
            shown, rewards, terminated, truncated, reported = env.step(np.stack([action, action]))
            assert np.array_equal(shown[0], expected[0].numpy())
            assert rewards[0] == np.float32(reward)
            assert reported["success"][0] == bool(info["success"])
            assert not terminated.any()
            assert not truncated.any()
    env.close()


def test_an_episode_is_decided_by_its_seed_and_its_actions(picking):
    actions = actions_of(picking, 10)

    def play(seeds, order=slice(None)):
        shown = [picking.reset(seed=seeds)[0]]
        return np.stack([*shown, *(picking.step(np.stack([a, a]))[0] for a in actions)])[:, order]

    first = play([4, 5])
    assert not np.array_equal(first[:, 0], first[:, 1])
    play([1, 2])
    assert np.array_equal(play([4, 5]), first)
    assert np.array_equal(play([5, 4], [1, 0]), first), "whichever copy plays it"


def test_only_the_copies_that_are_asked_for_are_reset(picking):
    begun, _ = picking.reset(seed=[4, 5])
    picking.step(np.zeros((2, 8), np.float32))
    mixed, _ = picking.reset(seed=[4, None], options={"reset_mask": np.array([True, False])})
    assert np.array_equal(mixed[0], begun[0])
    assert not np.array_equal(mixed[1], begun[1])
    assert list(picking.seeds) == [4, 5]


def test_a_world_resumes_to_the_same_bits():
    settings = ManiSkillSettings(task="PushCube-v1", num_envs=3, max_episode_steps=6, native_reward="dense")
    actions = np.random.default_rng(0).uniform(-1, 1, (15, 3, 8)).astype(np.float32)

    def played(world, part):
        steps = [world.step(a) for a in part]
        return [np.stack([getattr(s, name) for s in steps]) for name in ("observations", "rewards", "truncated")]

    world = build_world(settings, seed=3)
    world.reset()
    played(world, actions[:9])
    state = world.state_dict()
    went = played(world, actions[9:])
    world.close()
    again = build_world(settings, seed=3)
    again.load_state_dict(state)
    assert all(np.array_equal(a, b) for a, b in zip(went, played(again, actions[9:]), strict=True))
    assert went[2].any(), "an episode ended on the way"
    again.close()


def test_a_run_resumed_in_a_new_process_goes_on_as_the_one_before():
    tasks = ("PickCube-v1", "PushCube-v1", "StackCube-v1")
    check_restored(*(ManiSkillSettings(task=task, num_envs=1, frame_size=SIZE, max_episode_steps=90) for task in tasks))


def test_the_time_limit_is_the_registered_one_or_the_studys(picking):
    picking.reset(seed=[0, 1])
    ended = [picking.step(np.zeros((2, 8), np.float32))[3] for _ in range(50)]
    assert [t.all() for t in ended] == [False] * 49 + [True]
    world = build_world(ManiSkillSettings(num_envs=1, max_episode_steps=4, frame_size=SIZE), seed=0)
    world.reset()
    seen = [world.step(np.zeros((1, 8)), capture_ends=True) for _ in range(9)]
    assert [bool(s.truncated[0]) for s in seen] == [False, False, False, True] * 2 + [False]
    assert [len(s.looks) for s in seen] == [0, 0, 0, 1] * 2 + [0], "every terminal moment is looked at once"
    assert [len(s.first_looks) for s in seen] == [0, 0, 0, 1] * 2 + [0]
    last, first = (world.render([looks[0]])[0] for looks in (seen[3].looks, seen[3].first_looks))
    assert not np.array_equal(last, first)
    world.close()


def demonstrated(task, mode, seeds, limit=250, **kwargs):
    """(success, steps) of the expert from each seed."""
    env = ManiSkillVectorEnv(task, 1, control_mode=mode, max_episode_steps=limit, **kwargs)
    expert, found = ManiSkillExpert(env), []
    for seed in seeds:
        seen, _ = env.reset(seed=[seed])
        expert.restart()
        for step in range(1, limit + 1):  # noqa: B007
            seen, _, _, _, info = env.step(expert.act(seen, np.random.default_rng(0)))
            if info["success"][0]:
                break
        found.append((bool(info["success"][0]), step))
    env.close()
    return found


@pytest.mark.parametrize("task", ["PickCube-v1", "PushCube-v1", "StackCube-v1"])
@pytest.mark.parametrize("mode", ["pd_joint_pos", "pd_joint_delta_pos", "pd_ee_delta_pose"])
def test_the_motion_planner_succeeds(task, mode):
    assert [success for success, _ in demonstrated(task, mode, [0, 1])] == [True, True]


def test_true_success_ends_an_episode_and_is_the_sparse_reward():
    settings = ManiSkillSettings(task="PushCube-v1", num_envs=2, max_episode_steps=150, end_on_success=True)
    world = build_world(settings, seed=0)
    start = world.reset()
    expert = ManiSkillExpert(world.env)
    observations, ended = start.observations, None
    for _ in range(150):
        ended = world.step(expert.act(observations, np.random.default_rng(0)))
        observations = ended.observations
        if ended.done.any():
            break
    assert ended.terminated.any()
    assert np.array_equal(ended.terminated, ended.success)
    assert ended.success_known.all()
    assert np.array_equal(ended.rewards, ended.success.astype(np.float32))
    world.close()


def test_pictures_are_maniskills_own(own):
    theirs = own(
        "PickCube-v1",
        obs_mode="rgb",
        render_mode="rgb_array",
        sensor_configs={"height": SIZE[0], "width": SIZE[1]},
        human_render_camera_configs={"height": SIZE[0], "width": SIZE[1]},
    )
    env = ManiSkillVectorEnv("PickCube-v1", 2, frame_size=SIZE)
    eye = ManiSkillEye(env, ("render_camera", "base_camera"))
    env.reset(seed=[1, 2])
    seen, _ = theirs.reset(seed=2)
    looks = []
    for action in actions_of(env, 3):
        looks.append((eye.look(1), seen["sensor_data"]["base_camera"]["rgb"][0].numpy(), theirs.render()[0].numpy()))
        env.step(np.stack([-action, action]))
        seen, *_ = theirs.step(action)
    for look, sensor, shown in looks:
        assert np.array_equal(eye.render([look])[0], shown)
        assert np.array_equal(eye.render([look], "base_camera")[0], sensor)
    green = [(p[..., 1].astype(int) - p[..., 0] > 60).sum() for p in looks[0][0].values()]
    assert green[0] > 0 == green[1], "the goal is drawn for people and hidden from sensors"
    assert not np.array_equal(looks[0][2], looks[2][2])
    eye.close()
    env.close()


def test_a_policy_can_observe_pictures_proprioception_and_the_task():
    settings = ManiSkillSettings(task="StackCube-v1", num_envs=2, frame_size=SIZE)
    world = build_world(settings, seed=0)
    world.show(ObservationSpec(frames=SIZE, proprioception=True, task=True))
    seen = world.reset().observations
    assert seen["frames"].shape == (2, *SIZE, 3)
    assert seen["frames"].std() > 15
    assert list(seen["task"]) == ["Pick up the red cube and stack it on the green cube."] * 2
    robot = world.env.simulator(1).agent.robot
    joints = np.concatenate([robot.get_qpos()[0].numpy(), robot.get_qvel()[0].numpy()])
    assert np.array_equal(seen["proprioception"][1], joints)
    world.close()


@pytest.mark.parametrize(
    ("keys", "key", "why"),
    [
        ({"task": "PickCub-v1"}, "env.task", r"no task 'PickCub-v1'; did you mean .*PickCube-v1"),
        ({"cameras": ("wrist",)}, "env.cameras", r"no camera 'wrist'; it has render_camera, base_camera"),
        ({"control_mode": "pd_magic"}, "env.task", "pd_magic"),
        ({"kwargs": {"wheels": 4}}, "env.task", "wheels"),
    ],
)
def test_what_maniskill_does_not_have_is_named(keys, key, why):
    with refuses(key, why):
        build_world(ManiSkillSettings(num_envs=1, **keys), seed=0)


def test_nothing_is_asked_and_nothing_downloaded(monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question on the terminal"))
    with pytest.raises(MissingDependencyError, match="downloads nothing"):
        build_world(ManiSkillSettings(task="PickSingleYCB-v1", num_envs=1), seed=0)


def test_a_task_without_a_demonstration_is_refused():
    env = ManiSkillVectorEnv("RollBall-v1", 1)
    with refuses("collect.mixture", "no motion planning for RollBall-v1"):
        ManiSkillExpert(env)
    env.close()
    env = ManiSkillVectorEnv("PickCube-v1", 1, control_mode="pd_joint_vel")
    with refuses("collect.mixture", "pd_joint_delta_pos"):
        ManiSkillExpert(env)
    env.close()


def test_collected_demonstrations_come_back(tmp_path):
    study = Study(
        env=ManiSkillSettings(
            task="PushCube-v1",
            num_envs=2,
            max_episode_steps=150,
            frame_size=SIZE,
            cameras=("render_camera", "base_camera"),
        ),
        collect=CollectSettings(
            save_dir=str(tmp_path / "data"), episodes=3, only_success=True, stop_after_success=3, frame_every=4
        ),
    )
    assert collect(study).episodes == 3
    found = summarize(tmp_path / "data")
    assert (found.episodes, found.successes) == (3, 3)
    assert set(found.cameras) == {"render_camera", "base_camera"}
    episodes = list(read_episodes(tmp_path / "data", camera="render_camera"))
    starts = [episode.states[0] for episode in episodes]
    assert not np.array_equal(starts[0], starts[1])
    for episode in episodes:
        assert episode.task == "Push the blue cube into the red and white target."
        assert episode.success[-1]
        assert not episode.success[0]
        assert episode.frames.shape[1:] == (*SIZE, 3)
        assert np.abs(episode.actions).max() <= 1
    refused = CollectSettings(save_dir=str(tmp_path / "other"), mixture=(ActorShare(type="expert", random_steps=5),))
    with refuses("collect.mixture", "random_steps would not do"):
        collect(study.model_copy(update={"collect": refused}))


def test_a_rollout_with_a_reward_model_looking_on():
    env = ManiSkillSettings(task="PushCube-v1", num_envs=2, max_episode_steps=5, frame_size=SIZE, native_reward="dense")
    collector = ControlCollector(
        env, MLPPolicySettings(), seed=0, rollout_steps=7, heads=["env"], observes=[Observes(every=2, first=True)]
    )
    rollout = collector.collect(collector.build_policy())
    assert rollout.truncated[:, 4].all()
    assert rollout.success_known.all()
    assert np.isfinite(rollout.rewards).all()
    assert {segment.frames_F.shape[1:] for segment in rollout.segments} == {(*SIZE, 3)}
    collector.close()


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("pick_cube_1_collect", "PickCube-v1"),
        ("pick_cube_2_resnet", "PickCube-v1"),
        ("vla_push_cube", "PushCube-v1"),
        ("vla_push_cube_rewards", "PushCube-v1"),
    ],
)
def test_studies_are_valid(name, task):
    study = config.load(Study, f"studies/{name}.yaml")
    assert isinstance(study.env, ManiSkillSettings)
    assert study.env.task == task


def test_doctor_makes_and_draws_a_scene():
    check = doctor.check_maniskill()
    assert check.status == "ok", check


def test_a_driver_that_cannot_make_a_scene_is_explained(tmp_path):
    (tmp_path / "none.json").write_text("{}")
    script = "from guerdon.worlds.maniskill import ManiSkillVectorEnv; ManiSkillVectorEnv('PushCube-v1', 1)"
    environ = {**os.environ, "VK_ICD_FILENAMES": str(tmp_path / "none.json")}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "make env-maniskill" in done.stderr.splitlines()[-1]


def test_copies_in_processes_of_their_own_play_the_same_episodes():
    settings = ManiSkillSettings(task="PushCube-v1", num_envs=2, max_episode_steps=4, frame_size=SIZE)
    actions = np.random.default_rng(0).uniform(-1, 1, (6, 2, 8)).astype(np.float32)
    played = []
    for vectorization in ("sync", "async"):
        world = build_world(settings.model_copy(update={"vectorization": vectorization}), seed=5)
        begun = world.reset()
        steps = [world.step(action, capture=np.ones(2, np.bool_), capture_ends=True) for action in actions]
        pictures = world.render([begun.first_looks[1], steps[1].looks[1], steps[3].looks[0]])
        played.append((np.stack([begun.observations, *(s.observations for s in steps)]), pictures, world.tasks))
        world.close()
    (shown, pictures, tasks), (shown_async, pictures_async, tasks_async) = played
    assert np.array_equal(shown, shown_async)
    assert np.array_equal(pictures, pictures_async)
    assert tasks == tasks_async


def test_several_tasks_in_turn(capfd):
    """Of one action space; PullCube warns of its own scene at every reset, which says nothing to a user."""
    given = {"task_ids": ["PushCube-v1", "PullCube-v1"], "num_envs": 2, "max_episode_steps": 2, "frame_size": SIZE}
    world = build_world(ManiSkillSettings(**given), seed=5)
    begun = world.reset()
    assert begun.observations[:, -2:].tolist() == [[1, 0], [0, 1]]
    assert world.tasks == (TASK_TEXTS["PushCube-v1"], TASK_TEXTS["PullCube-v1"])
    for _ in range(2):
        step = world.step(np.zeros((2, 8), np.float32))
    assert step.truncated.all()
    world.close()
    assert "No initial pose" not in "".join(capfd.readouterr())
