"""Every space comes in as numbers, pictures and choices; what the environment forbids is not done."""

import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import mixed_env
from guerdon.collect.collect import collect
from guerdon.collect.control import ControlCollector
from guerdon.episodes.read import read_episodes
from guerdon.errors import ConfigError, SimulatorError
from guerdon.policies.robots.experts import RandomChoices
from guerdon.processes.progress import log_once
from guerdon.settings.policy import CNNPolicySettings, MLPPolicySettings
from guerdon.settings.study import Study
from guerdon.settings.world import GymnasiumSettings
from guerdon.worlds.build import build_world
from guerdon.worlds.spaces import allowed_in, chosen_columns, own_columns, plain, state_keys, states_of
from tables import cases, first, refuses

torch.set_num_threads(1)
POLICY = MLPPolicySettings(keys=["arm"], hidden=(8,))


class Shows(gymnasium.Env):
    """Shows samples of a space."""

    def __init__(self, space, actions=None):
        self.observation_space, self.action_space = space, actions or spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.shown = self.observation_space.sample()
        return self.shown, {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.action = action
        self.shown = self.observation_space.sample()
        return self.shown, 0.0, False, False, {}


def shown(space, copies=3, actions=None):
    """What copies show after a reset, and what their environments showed."""
    vector = SyncVectorEnv([partial(Shows, space, actions)] * copies, autoreset_mode=AutoresetMode.DISABLED)
    env = plain(vector, "env.task Shows")
    rows, _ = env.reset(seed=4)
    return env, rows, [one.shown for one in vector.envs]


def mixed(copies=3, **more):
    given = {"task": "mixed_env:Mixed-v0", "num_envs": copies, "native_reward": "dense", **more}
    return GymnasiumSettings(**given)


NUMERIC = st.recursive(
    st.one_of(
        st.builds(lambda n, s: spaces.Discrete(n, start=s), st.integers(1, 4), st.integers(-2, 2)),
        st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 4), min_size=1, max_size=3)),
        st.builds(spaces.MultiBinary, st.integers(1, 4)),
        st.builds(lambda shape: spaces.Box(-3, 3, tuple(shape), np.float32), st.lists(st.integers(1, 3), max_size=3)),
    ),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(NUMERIC)
def test_the_numbers_of_a_state_are_gymnasiums_own(space):
    env, rows, seen = shown(space)
    columns = own_columns(env)
    states = states_of(rows, columns)
    assert states.dtype == np.float32
    assert np.allclose(states, [spaces.flatten(space, one) for one in seen])
    if keys := state_keys(columns):
        assert sum(size for _, size in keys) == states.shape[1]
    after, *_ = env.step(np.zeros((3, 1), np.float32))
    assert np.allclose(states_of(after, columns), [spaces.flatten(space, one.shown) for one in env.unwrapped.envs])


def test_a_box_of_numbers_and_one_of_actions_is_left_as_it_is():
    vector = SyncVectorEnv([partial(Shows, spaces.Box(-1, 1, (4,), np.float64))])
    assert plain(vector, "env") is vector
    env, rows, _ = shown(spaces.Box(-1, 1, (4,), np.float64), actions=spaces.Discrete(2))
    assert rows.dtype == np.float64, "only actions are others"
    assert env.single_observation_space == spaces.Box(-1, 1, (4,), np.float64)


@cases(
    ("space", "shape", "picture"),
    [
        (spaces.Box(0, 255, (20, 24, 3), np.uint8), (20, 24, 3), lambda x: x),
        (spaces.Box(0, 255, (3, 20, 24), np.uint8), (20, 24, 3), lambda x: np.moveaxis(x, 0, -1)),
        (spaces.Box(0, 255, (4, 20, 24), np.uint8), (20, 24, 4), lambda x: np.moveaxis(x, 0, -1)),
        (spaces.Box(0, 255, (20, 24), np.uint8), (20, 24, 1), lambda x: x[..., None]),
        (spaces.Box(0, 255, (2, 20, 24, 3), np.uint8), (20, 24, 6), lambda x: np.concatenate([x[0], x[1]], -1)),
        (spaces.Box(0, 255, (2, 3, 20, 24), np.uint8), (20, 24, 6), lambda x: x.reshape(6, 20, 24).transpose(1, 2, 0)),
        (spaces.Box(0, 1, (20, 24, 3), np.float32), (20, 24, 3), lambda x: np.rint(x * 255).astype(np.uint8)),
    ],
)
@cases("key", [None, "eye"])
def test_pictures_of_every_layout(space, shape, picture, key):
    env, rows, seen = shown(spaces.Dict({key: space}) if key else space)
    (column,) = own_columns(env)
    assert column == (key or "", "image", shape)
    assert np.array_equal(rows[key] if key else rows, [picture(one[key] if key else one) for one in seen])


def test_a_key_without_numbers_is_taken():
    empty, one = spaces.Box(-1, 1, (0,), np.float32), spaces.Box(-1, 1, (2,), np.float32)
    env, rows, _ = shown(spaces.Dict(a=empty, b=one, c=spaces.Box(0, 255, (0, 9), np.uint8)))
    assert [(c.name, c.kind, c.size) for c in own_columns(env)] == [
        ("a", "vector", 0), ("b", "vector", 2), ("c", "vector", 0)
    ]  # fmt: skip
    assert states_of(rows, own_columns(env)).shape == (3, 2)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (7, 7, 3), np.uint8),  # MiniGrid's fields
        spaces.Box(0, 255, (128,), np.uint8),  # ALE's memory
        spaces.Box(-1, 1, (20, 24, 3), np.float32),
        spaces.Box(0, 9, (20, 24, 3), np.int64),
        spaces.Box(0, 255, (9, 9), np.uint8),
    ],
)
def test_arrays_of_other_numbers_are_no_pictures(space):
    env, rows, seen = shown(space)
    assert own_columns(env)[0].kind == "vector"
    assert np.array_equal(states_of(rows, own_columns(env)), np.reshape(seen, (3, -1)).astype(np.float32))


@pytest.mark.parametrize("actions", mixed_env.ACTIONS)
def test_actions_reach_the_environment_as_it_wants_them(actions):
    """The environment refuses what is not in its space or not allowed."""
    world = build_world(mixed(kwargs={"actions": actions, "masks": "none" if actions == "matrix" else "array"}), seed=0)
    space, rng = world.action_space, np.random.default_rng(0)
    rows, seen = world.reset().observations, set()
    for _ in range(23):
        if actions == "matrix":
            taken = rng.uniform(-3, 3, (3, 4))
        else:
            taken = RandomChoices(tuple(space.nvec), partial(allowed_in, columns=world.columns)).act(rows, rng)
            seen |= {tuple(one) for one in taken.tolist()}
        rows = world.step(taken).observations
    assert actions == "matrix" or len(seen) > 3
    world.close()


@cases("masks", ["array", "tuple"])
@cases("mode", ["disabled", "next_step", "same_step"])
@cases("actions", ["discrete", "multi"])
def test_the_mask_of_a_moment_belongs_to_it(masks, mode, actions):
    """Also in the last observation of an episode, and in the first of the one that follows within the step."""
    world = build_world(mixed(autoreset_mode=mode, kwargs={"actions": actions, "masks": masks}), seed=0)
    envs = [one.unwrapped for one in world.env.unwrapped.envs]
    rng, rows = np.random.default_rng(0), world.reset().observations
    actor, ends = RandomChoices(tuple(world.action_space.nvec), partial(allowed_in, columns=world.columns)), 0
    for _ in range(14):
        found = world.step(actor.act(rows, rng))
        rows = found.observations
        assert np.array_equal(rows["action_mask"], [np.concatenate(one.allowed) != 0 for one in envs])
        assert np.array_equal(rows["front"], [one.seen["front"] for one in envs])
        if mode == "same_step" and found.done.any():
            assert not found.final_observations["action_mask"][found.done].any(), "nothing is allowed after the end"
            assert not np.array_equal(found.final_observations["front"][found.done], rows["front"][found.done])
        ends += int(found.done.sum())
    assert ends >= 6
    world.close()


@pytest.mark.parametrize("policy", [POLICY, CNNPolicySettings(channels=(2,), hidden=(4,))])
def test_acting_and_evaluating_agree(policy):
    """The log-probabilities of a rollout are those of its first update, to the bit."""
    collector = ControlCollector(mixed(kwargs={"actions": "multi"}), policy, seed=0, rollout_steps=12, heads=("env",))
    mine = collector.build_policy()
    with torch.no_grad():
        mine.pi[-1].weight.normal_(0, 1)
    rollout = collector.collect(mine)
    found = mine.evaluate(mine.prepared(rollout.inputs))
    assert np.array_equal(found.log_probs.detach().numpy().reshape(rollout.mask.shape), rollout.log_probs)
    allowed = rollout.inputs.observations["action_mask"]
    taken = np.take_along_axis(allowed, rollout.inputs.actions + np.array([0, 3]), 1)
    assert taken.all()
    assert not allowed.all()
    assert rollout.values["env"].shape == rollout.mask.shape
    assert collector.evaluate(mine, episodes=3)["episodes"] == 3
    collector.close()


def test_masks_hold_for_rendered_pictures():
    env = mixed(observation="pixels", frame_size=16)
    collector = ControlCollector(env, CNNPolicySettings(channels=(2,), hidden=(4,)), seed=0, rollout_steps=12)
    rollout = collector.collect(collector.build_policy())  # the environment raises at an action that is not allowed
    assert rollout.inputs.observations["pixels"].shape == (36, 16, 16, 3)
    assert not rollout.inputs.observations["action_mask"].all()
    collector.close()


@pytest.mark.parametrize("actions", first(["discrete", "matrix"], 1))
def test_copies_in_processes_and_replays_show_the_same(actions):
    def played(world, steps, rows=None):
        rng = np.random.default_rng(1)
        rows = world.reset().observations if rows is None else rows
        for _ in range(steps):
            taken = rng.integers(0, 4, (3, 1)) if actions == "discrete" else rng.uniform(-2, 2, (3, 4))
            rows = world.step(taken).observations
        return rows

    kwargs = {"actions": actions, "masks": "none", "length": 5}
    here, there = (build_world(mixed(kwargs=kwargs, vectorization=v), seed=0) for v in ("sync", "async"))
    assert here.columns == there.columns
    assert np.array_equal(played(here, 7).tobytes(), played(there, 7).tobytes())
    again = build_world(mixed(kwargs=kwargs), seed=0)
    state = here.state_dict()
    assert state["observations"].dtype == np.uint8
    again.load_state_dict(state)
    assert again.observations.tobytes() == here.observations.tobytes()
    assert played(again, 4, again.observations).tobytes() == played(here, 4, here.observations).tobytes()
    for world in (here, there, again):
        world.close()


def test_a_replay_takes_only_actions_that_are_allowed():
    """Copies whose episode began later wait with actions of their own, which the environment must accept."""
    world = build_world(mixed(kwargs={"length": 7}), seed=0)
    actor, rng = RandomChoices((4,), partial(allowed_in, columns=world.columns)), np.random.default_rng(0)
    rows = world.reset().observations
    for _ in range(9):
        rows = world.step(actor.act(rows, rng)).observations
    state = world.state_dict()
    state["actions"][1] = state["actions"][1][:0]  # as if this episode had just begun
    state["steps"][1] = 0
    other = build_world(mixed(kwargs={"length": 7}), seed=0)
    other.load_state_dict(state)  # no action that "is not allowed"
    assert not other.exact_resume, "it is another episode"
    world.close(), other.close()


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"masks": "late"}, "after a step and not after a reset"),
        ({"stuck": 3}, "step 3 of .*no_action_allowed|forbids every value"),
    ],
)
def test_masks_that_do_not_hold_are_named(kwargs, text):
    world = build_world(mixed(copies=1, kwargs=kwargs), seed=0)
    rows, rng = world.reset().observations, np.random.default_rng(0)
    actor = RandomChoices((4,), partial(allowed_in, columns=world.columns))

    def play(rows):
        for _ in range(5):
            rows = world.step(actor.act(rows, rng)).observations

    with pytest.raises((ConfigError, SimulatorError), match=text):
        play(rows)
    world.close()


def test_a_mask_of_another_size_is_refused():
    space = spaces.Dict({"action_mask": spaces.MultiBinary(4), "observation": spaces.Box(-1, 1, (2,))})
    with refuses("env.task", "the key action_mask has 4 numbers for 3 values of actions"):
        shown(space, actions=spaces.Discrete(3))


@pytest.mark.hostile("parts")
@pytest.mark.parametrize(
    ("space", "value"),
    [(spaces.Discrete(3, start=1), 0), (spaces.Discrete(3), 3), (spaces.MultiDiscrete([2, 3]), np.array([1, -1]))],
)
def test_a_choice_outside_of_its_space_is_an_error(space, value):
    env, _, _ = shown(spaces.Dict({"way": space, "x": spaces.Box(-1, 1, (2,))}), copies=1)
    with pytest.raises(ValueError, match="outside of its space"):
        env._encoded({"way": np.asarray(value)[None], "x": np.zeros((1, 2))}, np.ones((1, 0), bool))


def test_many_choices_take_no_square_of_memory():
    _, rows, copies = shown(spaces.Discrete(100_000), copies=2)
    assert rows.shape == (2, 100_000)
    assert rows.argmax(axis=1).tolist() == list(copies)
    assert (rows.sum(axis=1) == 1).all()


class _Odd(gymnasium.Env):
    """Takes no `render_mode`; pays an array of one number, and calls `sys.exit` in its third step."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.age += 1
        if self.age == 3:
            sys.exit()
        return np.zeros(2, np.float32), np.array([0.5]), False, False, {}

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


@pytest.mark.hostile("parts")
def test_odd_environments_are_taken_and_an_exit_is_an_error(capsys):
    gymnasium.register("GuerdonOdd-v0", entry_point=_Odd, max_episode_steps=9)
    log_once.cache_clear()
    world = build_world(GymnasiumSettings(task="GuerdonOdd-v0", num_envs=1, native_reward="dense"), seed=0)
    world.reset()
    assert "GuerdonOdd-v0 does not take render_mode" in capsys.readouterr().err
    assert world.step(np.zeros((1, 1))).rewards.tolist() == [0.5]
    world.step(np.zeros((1, 1)))
    with pytest.raises(SimulatorError, match=r"step 3 of .*GuerdonOdd-v0 with action \[0\] called sys.exit\(None\)"):
        world.step(np.zeros((1, 1)))
    world.close()


class _Grows(_Odd):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    sizes = (2, 3)

    def reset(self, *, seed=None, options=None):
        return np.zeros(self.sizes[0], np.float32), {}

    def step(self, action):
        return np.zeros(self.sizes[1], np.float32), 0.0, False, False, {}


@pytest.mark.hostile("parts")
@pytest.mark.parametrize(("sizes", "where"), [((3, 2), "reset of Grows"), ((2, 3), "step 1 of Grows")])
def test_an_observation_of_another_shape_is_named(monkeypatch, sizes, where):
    monkeypatch.setattr("gymnasium.envs.registration.registry", dict(gymnasium.registry))
    gymnasium.register("Grows-v0", entry_point=_Grows, max_episode_steps=9)
    monkeypatch.setattr(_Grows, "sizes", sizes)
    world = build_world(GymnasiumSettings(task="Grows-v0", num_envs=1, native_reward="dense"), seed=0)
    text = rf"{where}.*has shape \(3,\), and observation_space says \(2,\)"
    if sizes[0] == 2:
        world.reset()
    with pytest.raises(SimulatorError, match=text):
        world.reset() if sizes[0] == 3 else world.step(np.zeros((1, 1)))
    world.close()


def test_text_is_left_out_with_one_line_and_refused_where_it_is_chosen(capsys):
    log_once.cache_clear()
    world = build_world(mixed(kwargs={"masks": "none", "length": 11}), seed=0)
    build_world(mixed(kwargs={"masks": "none", "length": 11}), seed=1).close()
    assert "mission" not in world.reset().observations.dtype.names
    said = capsys.readouterr()
    assert (said.out + said.err).count("without the text of mission") == 1
    with refuses("policy.keys"):
        chosen_columns(world.columns, ["arm", "mission"], "policy.keys")
    world.close()
    with refuses("env.task", "shows text alone"):
        shown(spaces.Dict({"a": spaces.Text(4), "b": spaces.Tuple([spaces.Text(3)])}))


@pytest.mark.parametrize(
    ("space", "actions", "text"),
    [
        (spaces.Sequence(spaces.Discrete(2)), None, "no fixed size"),
        (spaces.Dict({"g": spaces.Graph(spaces.Box(-1, 1, (2,)), None)}), None, "key 'g' .*no fixed size"),
        (spaces.Box(-1, 1, (2,)), spaces.Dict({"a": spaces.Discrete(2)}), "takes actions of Dict"),
        (spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}), None, "same name"),
    ],
)
def test_spaces_without_a_form_are_refused(space, actions, text):
    with refuses("env.task", text):
        shown(space, actions=actions)


@pytest.mark.parametrize("mode", ["disabled", "same_step"])
def test_moments_are_stacked_within_an_episode(mode):
    """The newest last; the first of an episode is repeated, and nothing of the one before is left."""
    kwargs = {"actions": "matrix", "masks": "none", "length": 3}
    one, three = (build_world(mixed(autoreset_mode=mode, kwargs=kwargs, frame_stack=k), seed=0) for k in (1, 3))
    shapes = {c.name: (c.kind, c.shape) for c in three.columns if c.kind != "text"}
    assert shapes["front"] == ("image", (12, 10, 9))
    assert shapes["arm.joints"] == ("vector", (12,))
    assert shapes["arm.mode"] == ("one_hot", (9,))
    assert any(c.kind == "text" for c in three.columns)
    shown = [one.reset().observations]
    past = [[row] * 3 for row in shown[0]]
    found = three.reset().observations
    for _ in range(8):
        for k, row in enumerate(found):
            for name, axis in (("front", -1), ("arm.joints", 0), ("arm.mode", 0)):
                assert np.array_equal(row[name], np.concatenate([p[name] for p in past[k]], axis)), name
        taken = np.zeros((3, 4))
        step, stacked = one.step(taken), three.step(taken)
        for k, row in enumerate(step.final_observations):
            past[k] = [*past[k][1:], row]
            joined = np.concatenate([p["front"] for p in past[k]], -1)
            assert np.array_equal(stacked.final_observations[k]["front"], joined)
            if step.done[k]:
                past[k] = [step.observations[k]] * 3
        found = stacked.observations
    one.close(), three.close()


class Lazy(gymnasium.Env):
    """Shows its own arrays, which it changes in place: its age in numbers, and in pictures of so many channels."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, render_mode=None, channels=1, keys=True):
        self.render_mode, self.keys = render_mode, keys
        self.age, self.picture = np.zeros(1, np.float32), np.zeros((16, 16, channels), np.uint8)
        picture = spaces.Box(0, 255, self.picture.shape, np.uint8)
        both = {"age": spaces.Box(0, 9, (1,), np.float32), "front": picture}
        self.observation_space = spaces.Dict(both) if keys else picture

    def see(self):
        return {"age": self.age, "front": self.picture} if self.keys else self.picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age[:], self.picture[:] = 0, np.arange(self.picture.shape[-1])
        return self.see(), {}

    def step(self, action):
        self.age += 1
        self.picture += 50
        return self.see(), 1.0, False, bool(self.age[0] == 4), {}

    def render(self):
        return np.full((16, 16, 3), 7, np.uint8)


gymnasium.register("GuerdonLazy-v0", entry_point=Lazy, disable_env_checker=True)


def lazy(stack, **kwargs):
    return GymnasiumSettings(
        task="GuerdonLazy-v0", num_envs=1, native_reward="dense", frame_size=16, frame_stack=stack, kwargs=kwargs
    )


def test_moments_of_an_array_that_changes_in_place_are_kept():
    world = build_world(lazy(3), seed=0)
    world.reset()
    seen = [world.step(np.zeros((1, 1))).final_observations["age"][0].tolist() for _ in range(4)]
    world.close()
    assert seen == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]


class Ending(Lazy):
    """Has a key of its own that Gymnasium gives a meaning in environments that reset within a step."""

    def step(self, action):
        *found, info = super().step(action)
        return *found, {**info, "final_obs": np.zeros(2)}


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP])
def test_a_key_final_obs_is_the_users_own_where_nothing_resets_within_a_step(mode):
    env = plain(SyncVectorEnv([Ending] * 2, autoreset_mode=mode), "env.type Ending")
    env.reset(seed=0)
    for k in range(1, 5):
        assert env.step(np.zeros((2, 1)))[0]["age"].tolist() == [[k], [k]]


@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize(("channels", "newest"), [(1, (200, 200, 200)), (3, (200, 201, 202))])
@pytest.mark.parametrize("stack", [2, 3])
def test_of_stacked_pictures_the_newest_moment_is_recorded(tmp_path, stack, channels, newest, keys):
    env = lazy(stack, channels=channels, keys=keys).model_dump()
    collect(Study(env=env, collect={"save_dir": str(tmp_path), "episodes": 1, "mixture": [{"type": "random"}]}))
    for camera, colour in (("corner", (7, 7, 7)), *([("front", newest)] if keys else [])):
        (episode,) = read_episodes(tmp_path, camera=camera)
        assert np.abs(episode.frames[-1].astype(int) - colour).max() < 4, "but for what a video loses"


def test_stacking_pictures_that_are_rendered_is_refused():
    with pytest.raises(ValueError, match="AddRenderObservation"):
        mixed(frame_stack=2, observation="pixels")


@cases(
    ("shape", "dtype", "kind", "seen"),
    [
        ((8, 8, 12), "uint8", "image", (8, 8, 12)),
        ((8, 8, 12), "float32", "image", (8, 8, 12)),
        ((16, 20), "float32", "vector", (320,)),
        ((16, 20), "uint8", "image", (16, 20, 1)),
        ((3, 24, 24), "uint8", "image", (24, 24, 3)),
        ((4, 16, 16), "uint8", "image", (16, 16, 4)),
        ((4, 84, 84), "float32", "image", (84, 84, 4)),
        ((12, 48, 60), "uint8", "image", (48, 60, 12)),
        ((16, 64, 64), "uint8", "image", (64, 64, 16)),
        ((12, 40, 40), "uint8", "vector", (19200,)),
        ((5, 40, 40), "uint8", "vector", (8000,)),
        ((19, 19, 17), "uint8", "vector", (6137,)),
        ((2, 3, 24, 24), "uint8", "image", (24, 24, 6)),
        ((210, 160, 3), "uint8", "image", (210, 160, 3)),
    ],
)
def test_axes_are_exchanged_only_where_channels_are_clear(shape, dtype, kind, seen):
    space = spaces.Box(0, 255 if dtype == "uint8" else 1, shape, dtype)
    env, rows, arrays = shown(space, copies=1)
    (column,) = own_columns(env)
    assert (column.kind, column.shape) == (kind, seen)
    if shape == seen and dtype == "uint8":
        assert np.array_equal(rows, arrays)
    if kind == "vector":
        assert np.array_equal(rows[0], arrays[0].reshape(-1).astype(np.float32)), "nothing is rounded or turned"


def test_what_an_array_is_can_be_said_and_is_printed(capsys):
    log_once.cache_clear()
    space = spaces.Dict(board=spaces.Box(0, 1, (8, 8, 12), np.float32), map=spaces.Box(0, 9, (16, 20), np.int64))

    def columns(show_as):
        vector = SyncVectorEnv([partial(Shows, space)], autoreset_mode=AutoresetMode.DISABLED)
        env = plain(vector, "env.task Shows", show_as)
        rows, _ = env.reset(seed=1)
        return env, {c.name: (c.kind, c.shape) for c in own_columns(env)}, rows, vector.envs[0].shown

    _, found, _, _ = columns({})
    assert found == {"board": ("image", (8, 8, 12)), "map": ("vector", (320,))}
    said = capsys.readouterr().err
    assert "the observation 'board' (8, 8, 12) float32 of env.task Shows is a picture of 8 x 8 with 12 channels" in said
    assert "the observation 'map' (16, 20) int64 of env.task Shows is 320 numbers, side by side (env.show_as)" in said
    _, found, rows, own = columns({"board": "numbers", "map": "picture"})
    assert found == {"board": ("vector", (768,)), "map": ("image", (16, 20, 1))}
    assert np.array_equal(rows["board"][0], own["board"].reshape(-1))
    assert np.array_equal(rows["map"][0, ..., 0], np.rint(own["map"] * (255 / 9)))
    with refuses("env.show_as", "has no array 'bord'; it has board, map"):
        columns({"bord": "numbers"})
    open_ended = spaces.Box(-1, 1, (16, 16, 3), np.float32)
    with refuses("env.show_as", "a picture is an array"):
        plain(SyncVectorEnv([partial(Shows, open_ended)]), "env.task Shows", {"observation": "picture"})


def test_an_mlp_sees_pictures_as_numbers():
    settings = MLPPolicySettings(type="mlp", hidden=(8,), normalize_observations=False)
    column = (("", "image", (4, 5, 3)),)
    from guerdon.policies.robots.encoders import Encoder
    from guerdon.worlds.spaces import ObservedColumn

    encoder = Encoder([ObservedColumn(*one) for one in column], settings, torch.device("cpu"))
    rows = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
    assert encoder.size == 60
    np.testing.assert_allclose(encoder.prepare(rows).numpy(), rows.reshape(6, -1) / 255, rtol=1e-6)


@cases("size", [16, 17, 24, 35, 36, 64])
def test_the_default_policy_follows_what_is_observed(size):
    env = mixed(observation="pixels", frame_size=size, kwargs={"masks": "none"})
    collector = ControlCollector(env, MLPPolicySettings(), seed=0, rollout_steps=3, heads=("env",))
    policy = collector.build_policy()
    assert isinstance(policy.settings, CNNPolicySettings)
    assert policy.card["settings"]["type"] == "cnn"
    collector.collect(policy)
    collector.close()


@cases(
    ("given", "kind"),
    [({}, CNNPolicySettings), ({"type": "mlp"}, MLPPolicySettings), ({"keys": ["front"]}, MLPPolicySettings),
     ({"keys": ["eye"], "hidden": [9]}, CNNPolicySettings), ({"normalize_observations": False}, MLPPolicySettings)],
)  # fmt: skip
def test_the_default_policy_is_the_users_where_a_type_or_its_keys_are_given(given, kind):
    from guerdon.collect.policy_shape import fitting
    from guerdon.worlds.spaces import ObservedColumn

    columns = [ObservedColumn("front", "image", (12, 10, 3)), ObservedColumn("eye", "image", (16, 20, 3))]
    study = Study.model_validate({"env": {"type": "gymnasium", "task": "CartPole-v1"}, "policy": given})
    assert isinstance(fitting(study.policy, columns), kind)
    from guerdon.config.loading import to_yaml

    assert ("type: mlp" in to_yaml(study)) == ("type" in given), "a stored study says no more than it was given"
