"""One convention for three: what `World` says must be what the environment did, whoever resets it."""

import gymnasium
import numpy as np
import pytest

from corridor import GOAL, ID
from guerdon.errors import ConfigError, NonFiniteError
from guerdon.settings.world import GymnasiumSettings, MetaWorldSettings, OwnWorldSettings
from guerdon.worlds.build import build_world
from guerdon.worlds.gymnasium_env import RenderEye, make_gymnasium_env
from guerdon.worlds.world import FramesDue, ObservationSpec, World
from tables import refuses

MODES = ("disabled", "next_step", "same_step")


def corridor_world(mode="disabled", copies=3, limit=6, seed=5, **options):
    env = make_gymnasium_env(ID, copies, autoreset=mode, max_episode_steps=limit, kwargs=options.pop("kwargs", None))
    return World(env, ["walk"] * copies, seed=seed, eye=RenderEye(env, (8, 8)), **options)


def walk(world, steps, seed=0):
    """Episodes as lists of moments (position, age, picture, reward, success), the first one without the last two."""
    rng = np.random.default_rng(seed)
    transition = world.reset()
    open_ones = [[(transition.observations[i], transition.first_looks[i])] for i in range(world.num_envs)]
    episodes = []
    everything = np.ones(world.num_envs, np.bool_)
    for _ in range(steps):
        actions = rng.uniform(-0.2, 1, (world.num_envs, 1)).astype(np.float32)
        transition = world.step(actions, capture=everything, capture_ends=True)
        for i in range(world.num_envs):
            if transition.mask[i]:
                open_ones[i].append(
                    (transition.final_observations[i], transition.looks[i], actions[i, 0], transition.rewards[i],
                     transition.success[i], transition.terminated[i], transition.truncated[i])
                )  # fmt: skip
            else:
                assert i not in transition.looks
                assert transition.rewards[i] == 0
                assert not transition.success[i]
            if transition.done[i]:
                episodes.append(open_ones[i])
            if i in transition.first_looks:
                open_ones[i] = [(transition.observations[i], transition.first_looks[i])]
    return episodes


@pytest.mark.parametrize("mode", MODES)
def test_every_convention_tells_the_same_truth(mode):
    world = corridor_world(mode, kwargs={"reports": "even"})
    episodes = walk(world, 40)
    assert len(episodes) > 10
    assert {len(e) for e in episodes} != {7}, "some end at the goal, some at the limit"
    for first, *moments in episodes:
        position, age = np.float32(first[0][0]), 0
        assert 0 <= position < 1
        assert first[0][1] == 0
        assert list(first[1][0, 0]) == [int(position * 20), 0, 7]
        for seen, look, action, reward, success, terminated, truncated in moments:
            position, age = np.float32(position + action), age + 1
            assert tuple(seen) == (position, age)
            assert list(look[0, 0]) == [int(float(position) * 20) % 256, age, 7], "the picture of another moment"
            assert reward == position
            assert success == (position >= GOAL) == terminated
            assert truncated == (age == 6 and not terminated)
            assert (terminated or truncated) == (moments[-1][0] is seen)
    world.close()


@pytest.mark.parametrize("limit", [None, 4])
def test_success_ends_the_episode_only_where_asked(limit):
    for ends in (False, True):
        world = corridor_world(limit=None, max_episode_steps=limit, end_on_success=ends, kwargs={"stops": False})
        world.reset()
        for t in range(6):
            transition = world.step(np.ones((3, 1), np.float32))
            assert not (transition.terminated & transition.truncated).any()
            if ends and t == 2:
                assert transition.terminated.all(), "three steps of 1 reach the goal from anywhere"
            assert ends or not transition.terminated.any()
            assert limit is None or ends or transition.truncated.all() == (t % 4 == 3)


def test_guerdons_own_limits_need_its_own_resets():
    with refuses("env.end_on_success", "autoreset"):
        corridor_world("same_step", max_episode_steps=3)
    with refuses("env.observation", "autoreset_mode"):
        corridor_world("same_step", pixels=True)


def test_the_seed_decides_every_start_and_groups_share_theirs():
    def starts(**options):
        world = corridor_world(copies=4, **options)
        return [e[0][0][0] for e in walk(world, 20)]

    assert starts() == starts()
    assert starts() != starts(seed=6)
    world = corridor_world(copies=4, group_size=2)
    seen = world.reset().observations[:, 0]
    assert seen[0] == seen[1] != seen[2] == seen[3]
    world.step(np.ones((4, 1), np.float32))
    world.rewind()
    assert np.array_equal(world.reset().observations[:, 0], seen)


def test_pixels_are_the_observation():
    world = corridor_world(pixels=True, limit=2)
    assert world.observation_shape == (8, 8, 3)
    world.reset()
    ages = [world.step(np.zeros((3, 1), np.float32)) for _ in range(3)]
    assert [t.final_observations[0, 0, 0, 1] for t in ages] == [1, 2, 1], "the terminal picture"
    assert [t.observations[0, 0, 0, 1] for t in ages] == [1, 0, 1], "the picture after the reset"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_action_that_is_no_number_is_refused(value):
    world = corridor_world()
    world.reset()
    actions = np.zeros((3, 1), np.float32)
    actions[2] = value
    with pytest.raises(NonFiniteError, match="copy 2"):
        world.step(actions)


def resumed(make, actions_T_B_A, cut):
    """Transitions after `cut`, of a world that went on and of one that was saved there and loaded afresh."""
    straight, saved, loaded = make(), make(), make()
    straight.reset()
    saved.reset()
    for t, actions in enumerate(actions_T_B_A):
        transition = straight.step(actions)
        if t < cut:
            saved.step(actions)
        if t == cut - 1:
            state = saved.state_dict()
            loaded.load_state_dict(state)
            assert np.array_equal(loaded.observations, straight.observations)
            assert np.array_equal(loaded.steps_in_episode, straight.steps_in_episode)
        if t >= cut:
            again = loaded.step(actions)
            for name in ("observations", "final_observations", "rewards", "terminated", "truncated", "success"):
                assert np.array_equal(getattr(again, name), getattr(transition, name)), (t, name)
            assert np.array_equal(loaded.episode_ids, straight.episode_ids)
    for world in (straight, saved, loaded):
        world.close()


@pytest.mark.parametrize("cut", [1, 7, 8, 19])
def test_replay_finds_copies_of_different_ages(cut):
    rng = np.random.default_rng(cut)
    actions = rng.uniform(-0.5, 1, (30, 4, 1)).astype(np.float32)
    resumed(lambda: corridor_world(copies=4), actions, cut)
    resumed(lambda: corridor_world(copies=1, limit=None, end_on_success=True, max_episode_steps=9), actions[:, :1], cut)


@pytest.mark.parametrize("cut", [40, 65])
def test_replay_of_a_real_environment_that_cuts_at_a_limit(cut):
    def make():
        env = make_gymnasium_env("Pendulum-v1", 2, max_episode_steps=60)
        return World(env, ["swing up"] * 2, seed=1)

    resumed(make, np.random.default_rng(0).uniform(-2, 2, (90, 2, 1)).astype(np.float32), cut)


def test_replay_of_metaworld_where_success_ends_episodes():
    from guerdon.policies.robots.experts import ScriptedExpert

    settings = MetaWorldSettings(task="handle-press", num_envs=3, max_episode_steps=40, end_on_success=True)
    world = build_world(settings, seed=3)
    expert, rng = ScriptedExpert("handle-press", noise=0.3), np.random.default_rng(0)
    observations, actions, ages = world.reset(capture=np.zeros(3, np.bool_)).observations, [], []
    for _ in range(60):
        actions.append(expert.act(observations, rng))
        observations = world.step(actions[-1]).observations
        ages.append(world.steps_in_episode)
    world.close()
    cut = next(t for t, age in enumerate(ages) if len(set(age)) == 3 and min(age) > 0)
    resumed(lambda: build_world(settings, seed=3), np.stack(actions), cut + 1)


@pytest.mark.parametrize("length", [9, 2])
def test_a_replay_that_does_not_arrive_begins_new_episodes(length, capsys):
    """The seed does not decide where they start; in another version they also end before all is replayed."""
    world, other = (build_world(unseeded(length), seed=0) for length in (9, length))
    world.reset(capture=np.zeros(3, np.bool_))
    for _ in range(5):
        world.step(np.ones((3, 1), np.float32))
    other.load_state_dict(world.state_dict())
    assert "WARNING: episodes of the environment were replayed and took another course" in capsys.readouterr().err
    assert not other.exact_resume
    assert (other.steps_in_episode == 0).all()
    assert (other.episode_ids == world.episode_ids + 1).all()
    assert other.step(np.zeros((3, 1), np.float32)).mask.all()
    world.close(), other.close()


class Unseeded(gymnasium.Env):
    """Draws its start without its seed."""

    observation_space, action_space = gymnasium.spaces.Box(-9, 9, (2,)), gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.start, self.age = np.random.uniform(), 0
        return np.array([self.start, 0], np.float32), {}

    def step(self, action):
        self.age += 1
        return np.array([self.start, self.age], np.float32), 1.0, self.age >= self.length, False, {}


def unseeded(length):
    kind, params = "test_world:Unseeded", {"length": length}
    return OwnWorldSettings(type=kind, task="drift", num_envs=3, native_reward="dense", params=params)


class TwoCameras:
    """Pictures of one colour: the copy's number plus 1, by the second camera plus 101."""

    size, cameras = (4, 4), ("scene", "wrist")

    def look(self, index):
        return index + 1

    def render(self, looks, camera=None):
        return np.stack([np.full((4, 4, 3), look + 100 * (camera == "wrist"), np.uint8) for look in looks])

    def close(self):
        pass


def test_a_policy_may_observe_two_cameras():
    world = corridor_world()
    world.eye = TwoCameras()
    world.reset()
    world.show(ObservationSpec(frames=(2, 2), cameras=2))
    assert world.observations["frames"].shape == (3, 2, 2, 2, 3)
    assert world.observations["frames"][:, :, 0, 0, 0].tolist() == [[1, 101], [2, 102], [3, 103]]
    due = FramesDue(np.array([False, True, False]), np.zeros(3, np.bool_))
    seen = world.step(np.zeros((3, 1), np.float32), frames=due).observations["frames"]
    assert seen[:, :, 0, 0, 0].tolist() == [[0, 0], [2, 102], [0, 0]]
    world.show(ObservationSpec(frames=(2, 2)))
    assert world.observations["frames"].shape == (3, 2, 2, 3)
    with refuses("env.cameras", "observes 3 cameras, this world has scene, wrist"):
        world.show(ObservationSpec(frames=(2, 2), cameras=3))


class WideEye(TwoCameras):
    """Draws light pictures that are twice as wide as high."""

    size = (4, 8)

    def render(self, looks, camera=None):
        return np.full((len(looks), 4, 8, 3), 90, np.uint8)


def test_pictures_that_are_not_square_are_padded_where_the_policy_says_so():
    world = corridor_world()
    world.eye = WideEye()
    world.reset()
    world.show(ObservationSpec(frames=(6, 6), padded=True))
    seen = world.observations["frames"]
    assert (seen[:, :3] == 0).all()
    assert (seen[:, 3:] == 90).all()
    world.show(ObservationSpec(frames=(6, 6)))
    assert (world.observations["frames"] == 90).all(), "stretched"


class PositionEye:
    """Pictures of one colour, a copy's place in the corridor; it counts what it draws."""

    size = (4, 4)

    def __init__(self, env):
        self.env, self.drawn = env, 0

    def look(self, index):
        return self.env.envs[index].unwrapped.position

    def render(self, looks):
        self.drawn += len(looks)
        return np.stack([np.full((4, 4, 3), int(look * 20), np.uint8) for look in looks])

    def close(self):
        pass


@pytest.mark.parametrize("mode", ["disabled", "next_step"])
@pytest.mark.parametrize("chosen", [False, True], ids=["every frame", "some frames"])
def test_a_moment_that_policy_and_reward_model_see_is_drawn_once(mode, chosen):
    world = corridor_world(mode)
    world.eye = eye = PositionEye(world.env)
    world.show(ObservationSpec(states=True, frames=(4, 4)))
    rng = np.random.default_rng(0)
    world.reset()
    for _ in range(30):
        before = eye.drawn
        due = FramesDue(rng.random(3) < 0.5, np.ones(3, np.bool_)) if chosen else None
        wanted = rng.random(3) < 0.7
        transition = world.step(rng.uniform(0, 1, (3, 1)), capture=wanted, capture_ends=True, frames=due)
        shown, own = transition.observations, world.env
        for i in range(3):
            if shown["frames"][i].any():
                assert (shown["frames"][i] == int(own.envs[i].unwrapped.position * 20)).all()
        looks = [*transition.looks.values(), *transition.first_looks.values()]
        places = [int(x * 20) for x in transition.final_observations["states"][list(transition.looks), 0]]
        places += [int(x * 20) for x in shown["states"][list(transition.first_looks), 0]]
        pictures = world.render(looks) if looks else ()
        assert [int(picture[0, 0, 0]) for picture in pictures] == places
        moments = 3 + int(transition.done.sum()) if mode == "disabled" else 3
        assert eye.drawn - before <= moments
    world.close()


def test_worlds_that_reset_themselves_start_new_episodes_after_a_resume():
    world, other = corridor_world("next_step"), corridor_world("next_step")
    world.reset()
    world.step(np.ones((3, 1), np.float32))
    other.load_state_dict(world.state_dict())
    assert not other.exact_resume
    assert (other.steps_in_episode == 0).all()
    assert (other.episode_ids == world.episode_ids + 1).all()


def test_unknown_and_unfit_environments_are_named():
    with refuses("env.task"):
        make_gymnasium_env("Pendulm-v1", 1)
    with pytest.raises(ConfigError, match="task texts"):
        World(make_gymnasium_env(ID, 2), ["one"])


def test_async_copies_are_the_sync_ones():
    worlds = [
        build_world(
            GymnasiumSettings(
                task="Pendulum-v1",
                num_envs=2,
                max_episode_steps=5,
                vectorization=v,
                native_reward="dense",
            ),
            seed=2,
        )
        for v in ("sync", "async")
    ]
    nothing = np.zeros(2, np.bool_)
    assert np.array_equal(*[w.reset(capture=nothing).observations for w in worlds])
    rng = np.random.default_rng(0)
    for _ in range(12):
        actions = rng.uniform(-2, 2, (2, 1)).astype(np.float32)
        a, b = (w.step(actions) for w in worlds)
        for name in ("observations", "final_observations", "rewards", "truncated", "success_known"):
            assert np.array_equal(getattr(a, name), getattr(b, name))
    for world in worlds:
        world.close()


def test_ordered_resets_count_the_starts_of_each_task():
    def seeds(tasks, each, first=0, **options):
        env = make_gymnasium_env(ID, len(tasks), max_episode_steps=6)
        world = World(env, tasks, seed=5, ordered=(first, each), **options)
        found = []
        for episode in range(3):
            world.rewind(episode)
            found.append([world.episode_seed(i) for i in range(len(tasks))])
        return found

    assert seeds(["walk"] * 3, 3) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert seeds(["walk"] * 4, 4, group_size=2) == [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]]
    assert seeds(["walk", "walk", "run", "run"], 2) == [[0, 1, 0, 1], [2, 3, 2, 3], [4, 5, 4, 5]]
    assert seeds(["run", "run"], 4, first=6) == [[2, 3], [6, 7], [10, 11]], "the second half of a task in a shard"
    with refuses("env.num_envs", "different tasks"):
        seeds(["walk", "run", "run", "run"], 4, group_size=2)


class Halves(gymnasium.vector.VectorEnv):
    """Counts in halves, from the whole number 0."""

    num_envs, metadata = 2, {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
    single_observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    single_action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.count = np.zeros((2, 1), np.int64)
        return self.count, {}

    def step(self, actions):
        self.count = self.count + (0.5 if self.count.any() else 1)
        return self.count, np.zeros(2), np.zeros(2, np.bool_), np.zeros(2, np.bool_), {}


def test_whole_numbers_of_a_space_of_floats_are_floats():
    """Else what keeps the first ones for integers, such as a replay, cuts later ones to whole numbers."""
    world = World(Halves(), ["count"] * 2)
    seen = [world.reset().observations, *(world.step(np.zeros((2, 1))).observations for _ in range(2))]
    assert [one.dtype for one in seen[:2]] == [np.float32] * 2
    assert [one[0, 0] for one in seen] == [0, 1, 1.5]
    world.close()
