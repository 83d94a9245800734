"""Pictures drawn later, elsewhere or by another process must be the pictures drawn at once."""

import mujoco
import numpy as np
import pytest

from guerdon.settings.world import MetaWorldSettings
from guerdon.worlds.build import build_world
from guerdon.worlds.camera import CameraPool, MuJoCoCamera, import_mujoco
from guerdon.worlds.metaworld import MetaWorldVectorEnv
from tables import refuses

import_mujoco()

SIZE = (24, 32)


@pytest.fixture(scope="module")
def reach():
    env = MetaWorldVectorEnv("reach", 2)
    env.reset(seed=[0, 1])
    yield env
    env.close()


@pytest.fixture(scope="module")
def snapshots(reach):
    """Moments of two copies in two episodes each, with what was drawn at once."""
    camera = MuJoCoCamera(reach.simulation_model, "corner", SIZE)
    rng, taken, at_once = np.random.default_rng(0), [], []
    for seeds in ([0, 1], [2, 3]):
        reach.reset(seed=seeds)
        for _ in range(3):
            for _ in range(4):
                reach.step(rng.uniform(-1, 1, (2, 4)).astype(np.float32))
            for copy in range(2):
                taken.append(reach.snapshot(copy))
                at_once.append(camera.render([reach.snapshot(copy)])[0])
    camera.close()
    return taken, np.stack(at_once)


def test_pictures_of_later_are_those_of_now(reach, snapshots):
    taken, at_once = snapshots
    assert at_once.std(axis=0).max() > 5, "the pictures should differ"
    camera = MuJoCoCamera(reach.simulation_model, "corner", SIZE)
    assert np.array_equal(camera.render(taken), at_once)
    assert np.array_equal(camera.render(taken[::-1]), at_once[::-1])
    camera.close()
    assert np.array_equal(camera.render(taken[:2]), at_once[:2]), "closed is not the end"
    camera.close()


def test_pictures_are_mujocos_own(reach, snapshots):
    """The snapshot holds all that a picture shows: compare with a renderer on the copy's own data."""
    camera = MuJoCoCamera(reach.simulation_model, "corner", SIZE)
    ours = camera.render([reach.snapshot(1)])[0]
    option = mujoco.MjvOption()
    option.sitegroup[:] = 0
    own = reach._envs[1]
    own.model.vis.quality.shadowsize, own.model.vis.quality.offsamples = 0, 0
    with mujoco.Renderer(own.model, *SIZE) as renderer:
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        renderer.update_scene(own.data, camera="corner", scene_option=option)
        assert np.array_equal(ours, renderer.render()[::-1, ::-1])
        renderer.update_scene(own.data, camera="corner")
        assert not np.array_equal(ours, renderer.render()[::-1, ::-1]), "with its goal marker it looks different"
    camera.close()


def test_goal_markers_are_hidden(reach):
    """Moving every site, and so every goal marker, changes nothing in the picture."""
    camera = MuJoCoCamera(reach.simulation_model, "corner", SIZE)
    data = reach._envs[0].data
    before = camera.snapshot(data)
    data.site_xpos[:] += 0.05
    after = camera.snapshot(data)
    mujoco.mj_forward(reach._envs[0].model, data)
    assert not np.array_equal(before, after)
    assert np.array_equal(*camera.render([before, after]))
    camera.close()


def test_processes_draw_the_same_bytes(reach, snapshots):
    taken, at_once = snapshots
    pool = CameraPool(reach.simulation_model, "corner", SIZE, workers=2)
    try:
        assert np.array_equal(pool.render(taken), at_once)
        assert np.array_equal(pool.render(taken[:1]), at_once[:1]), "fewer pictures than processes"
        assert pool.render([]).shape == (0, *SIZE, 3)
    finally:
        pool.close()


def test_a_picture_larger_than_the_models_buffer(reach):
    camera = MuJoCoCamera(reach.simulation_model, "corner", (8, 700))
    assert camera.render([reach.snapshot(0)]).shape == (1, 8, 700, 3)
    camera.close()


def test_several_cameras_take_turns(reach):
    pair = [MuJoCoCamera(reach.simulation_model, name, SIZE) for name in ("corner", "corner2")]
    look = [reach.snapshot(0)]
    first = [camera.render(look) for camera in pair]
    assert not np.array_equal(*first)
    assert all(np.array_equal(camera.render(look), f) for camera, f in zip(pair, first, strict=True))
    pair[0].close()
    assert np.array_equal(pair[1].render(look), first[1])
    pair[1].close()


@pytest.mark.parametrize("workers", [0, 2])
def test_unknown_cameras_are_named_with_the_nearest(workers):
    with refuses("env.camera", r"'cornr', this scene has: .*did you mean corner"):
        build_world(MetaWorldSettings(task="reach", num_envs=1, camera="cornr", render_workers=workers), seed=0)


def test_looks_of_an_episode_drawn_after_the_next_one_began():
    settings = MetaWorldSettings(task="reach", num_envs=2, max_episode_steps=3, frame_size=SIZE)
    everything = np.ones(2, np.bool_)
    pictures = {}
    for late in (False, True):
        world, looks = build_world(settings, seed=1), []
        transition = world.reset()
        looks += list(transition.first_looks.values())
        drawn = [world.render(looks)]
        for t in range(5):
            actions = np.full((2, 4), 0.9 - 0.4 * t, np.float32)
            transition = world.step(actions, capture=everything, capture_ends=True)
            new = [*transition.looks.values(), *transition.first_looks.values()]
            assert len(new) == (4 if t == 2 else 2), "the terminal moment and the first of the next episode"
            looks += new
            drawn.append(world.render(new))
        pictures[late] = world.render(looks) if late else np.concatenate(drawn)
        world.close()
    assert np.array_equal(pictures[False], pictures[True])
