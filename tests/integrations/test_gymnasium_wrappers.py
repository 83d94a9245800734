"""What the conformance suite does not show: refusals, retries, rewards that are added, and going on after a failure."""

import pickle
import runpy
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import robot_episodes as robot
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from guerdon.errors import ConfigError, MissingDependencyError, RewardFailure
from guerdon.integrations.gymnasium import KeepTerminalFrame, RewardModelVectorWrapper, RewardModelWrapper
from guerdon.integrations.step_rewards import frame_of, observation_of
from guerdon.types import Failure, RewardInfo, Score
from tables import cases, refuses

EXAMPLES = Path(__file__).parents[2] / "examples"
STILL = np.zeros(1, np.float32)


class Clip(robot.Injected):
    info = RewardInfo(name="clip", range=(0.0, 1.0), frames_needed=8)


class Transient(robot.Injected):
    """Fails to measure every frame at the first try."""

    def _one(self, frames):
        score = super()._one(frames)
        return Score(failure=Failure("timeout")) if self.looks[robot.place(frames[0])] == 1 else score


def wrapped(model=None, env=None, **given):
    env = RewardModelWrapper(env or robot.Playback(), robot.Injected({}) if model is None else model, **given)
    env.reset()
    return env


CHECKPOINT = {"model_type": "resnet", "checkpoint_path": "x"}
PER_STEP = {"reward_mode": "per_step", "shaping": "raw"}


@cases(
    ("model", "given", "key", "words"),
    [
        (None, {"on_failure": "drop"}, "on_failure", "raises RewardFailure"),
        (None, {"reward_weight": 2.0}, "reward_weight", ""),
        (None, {"shapping": "raw"}, "shapping", ""),
        (None, {"shaping": "relative"}, "shaping", ""),
        (None, {"tries": 0}, "tries", ""),
        (None, {"task": ["one", "two"]}, "task", "2 tasks for 1 copies"),
        (Clip(), PER_STEP, "reward_mode", "takes 8 frames at a time"),
        ({"model_type": "nothing"}, {}, "model.model_type", ""),
        ({**CHECKPOINT, "update": "after", "replay_path": "y"}, {}, "update", "nothing refits"),
        ({"model_type": "remote", "remote": {"endpoint": "http://x", "fallback": "native"}}, {}, "fallback", "raises"),
    ],
)
def test_keys_that_cannot_work_are_refused(model, given, key, words):
    with refuses(key) as refused:
        wrapped(model, **given)
    assert words in str(refused.value)


def test_a_model_by_its_keys_and_a_reward_that_is_added():
    env = wrapped({"model_type": "constant", "value": 0.25}, env_reward_weight=2.0, **PER_STEP)
    assert env.step(STILL)[1] == 2.25  # the environment's own is the row
    _, reward, _, _, info = env.step(STILL)
    assert (reward, info["env_reward"]) == (4.25, 2.0)


def test_success_is_the_environments_own():
    env = wrapped(**PER_STEP)
    done = False
    while not done:
        _, _, terminated, truncated, info = env.step(STILL)
        done = terminated or truncated
    assert info["success"] == bool(robot.BY_TASK[0])


def test_a_step_after_the_end_asks_for_a_reset():
    env = wrapped()
    for _ in range(robot.LENGTHS[0]):
        env.step(STILL)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(STILL)
    env.reset()
    env.step(STILL)


def test_a_failure_that_passes_is_tried_again():
    model = Transient({})
    env = wrapped(model, tries=2, **PER_STEP)
    assert env.step(STILL)[1] == np.float32(robot.VALUES[0, 1] / 100)
    assert model.looks == {(0, 1): 2}


def test_the_change_after_a_failure_counts_from_the_last_known_value():
    model = robot.Injected({(0, 1): "timeout"})
    env = wrapped(model, reward_mode="per_step", shaping="relative")
    with pytest.raises(RewardFailure, match=r"step 1 of the episode.*timeout: injected") as caught:
        env.step(STILL)
    observation, reward, terminated, _, info = caught.value.result
    assert np.isnan(reward)
    assert not terminated
    assert info["env_reward"] == 1.0
    assert robot.place(observation["image"]) == (0, 1)
    assert env.step(STILL)[1] == pytest.approx((robot.VALUES[0, 2] - robot.VALUES[0, 0]) / 100)


def test_only_the_frames_that_are_scored_are_drawn():
    playback = robot.Playback()
    env = wrapped(env=playback)  # terminal mode
    for _ in range(robot.LENGTHS[0]):
        env.step(STILL)
    assert playback.drawn == {(0, int(robot.LENGTHS[0])): 1}


@pytest.mark.parametrize(
    ("frames", "message"),
    [("picture", "which has image"), (lambda seen: seen["image"][0, 0], "shape (3,)")],
)
def test_frames_that_are_not_there_are_refused(frames, message):
    with refuses("frames") as refused:
        wrapped(frames=frames, **PER_STEP).step(STILL)
    assert message in str(refused.value)


def test_four_channels_are_no_picture_since_they_may_be_a_stack():
    stack = np.zeros((5, 5, 4), np.uint8)
    with refuses("frames", "RGBA or a stack of grey frames"):
        frame_of({"image": stack}, "image")
    assert frame_of({"image": stack[..., :3]}, "image").shape == (5, 5, 3)


def test_the_observation_of_a_copy_is_taken_from_maps_and_tuples():
    seen = {"image": np.array([1, 2]), "arms": (np.array([3, 4]), np.array([5, 6]))}
    assert observation_of(seen, 1) == {"image": 2, "arms": (4, 6)}


def test_rewards_for_other_goals_are_refused():
    env = gymnasium.make("guerdon-tests/Human-v0", render_mode="rgb_array")
    env.unwrapped.compute_reward = lambda *_: 0.0
    env = RewardModelWrapper(env, robot.Injected({}))
    assert env.get_wrapper_attr("rewards") is env.rewards
    with pytest.raises(ConfigError, match="has no frames of them"):
        env.get_wrapper_attr("compute_reward")


def test_an_environment_that_draws_nothing_is_refused():
    playback = robot.Playback()
    playback.render = lambda: None
    with pytest.raises(ConfigError, match="render_mode='rgb_array'"):
        wrapped(env=playback, **PER_STEP).step(STILL)


def test_a_terminal_picture_that_nothing_kept_is_refused():
    env = SyncVectorEnv([robot.Playback], autoreset_mode=AutoresetMode.SAME_STEP)
    env = RewardModelVectorWrapper(env, robot.Injected({}))
    env.reset()
    for _ in range(robot.LENGTHS[0] - 1):
        env.step(np.zeros((1, 1), np.float32))
    with pytest.raises(ConfigError, match="KeepTerminalFrame"):
        env.step(np.zeros((1, 1), np.float32))


def test_one_copy_failing_leaves_the_rewards_of_the_others_readable():
    model = robot.Injected({(1, 1): "timeout"})
    make = [lambda i=i: robot.Playback(first=i, stride=3) for i in range(3)]
    env = RewardModelVectorWrapper(SyncVectorEnv(make), model, **PER_STEP)
    env.reset()
    with pytest.raises(RewardFailure) as caught:
        env.step(np.zeros((3, 1), np.float32))
    assert caught.value.reasons == {1: "timeout: injected"}
    rewards = caught.value.result[1]
    expected = np.float32(robot.VALUES[[0, 2], 1] / 100)
    np.testing.assert_array_equal(rewards[[0, 2]], expected)
    assert np.isnan(rewards[1])


def test_the_example_runs(capsys):
    runpy.run_path(str(EXAMPLES / "gymnasium_wrapper.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "true success 1.00" in said
    assert "camera: dark" in said
    assert len((EXAMPLES / "gymnasium_wrapper.py").read_text().splitlines()) < 60


class Drawn(robot.Playback):
    """Counts in its info how often it was drawn, which a process of its own tells in no other way."""

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, "drawn": sum(self.drawn.values())}


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_copies_in_processes_are_drawn_once_for_every_moment(mode):
    keep = KeepTerminalFrame if mode is AutoresetMode.SAME_STEP else lambda env: env
    found = {}
    for kind in (SyncVectorEnv, AsyncVectorEnv):
        env = kind([lambda i=i: keep(Drawn(first=i, stride=3)) for i in range(3)], autoreset_mode=mode)
        env = RewardModelVectorWrapper(env, robot.Injected({}), reward_mode="per_step", shaping="relative")
        env.reset()
        paid, over, moments, ends = [], np.zeros(3, np.bool_), 1, np.zeros(3, np.int64)
        for _ in range(8):
            if mode is AutoresetMode.DISABLED and over.any():
                env.reset(options={"reset_mask": over})
                moments += 1
            _, rewards, terminated, truncated, infos = env.step(np.zeros((3, 1), np.float32))
            over = terminated | truncated
            paid.append(rewards)
            ends += over & (mode is AutoresetMode.SAME_STEP)  # drawn by KeepTerminalFrame
            known = infos.get("_drawn", np.zeros(3, np.bool_))  # a reset tells nothing
            assert (infos["drawn"] <= moments + ends)[known].all()
            moments += 1
        found[kind] = np.stack(paid)
        env.close()
    np.testing.assert_array_equal(*found.values())


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_only_the_copies_that_ended_are_drawn_where_episodes_are_paid_at_their_end(kind, mode):
    keep = KeepTerminalFrame if mode is AutoresetMode.SAME_STEP else lambda env: env
    env = kind([lambda i=i: keep(Drawn(first=i, stride=3)) for i in range(3)], autoreset_mode=mode)
    env = RewardModelVectorWrapper(env, robot.Injected({}))
    env.reset()
    ends = np.zeros(3, np.int64)
    for _ in range(20):
        _, _, terminated, truncated, infos = env.step(np.zeros((3, 1), np.float32))
        known = infos.get("_drawn", np.zeros(3, np.bool_))  # before this step's picture; a reset tells nothing
        np.testing.assert_array_equal(infos["drawn"][known], ends[known])
        ends += terminated | truncated
    assert ends.min() > 0
    env.close()


class Breaks(robot.Playback):
    def render(self):
        raise RuntimeError("no display")


def test_a_copy_in_a_process_that_cannot_draw_says_so():
    make = [robot.Playback, Breaks, robot.Playback]
    env = RewardModelVectorWrapper(AsyncVectorEnv(make), robot.Injected({}), **PER_STEP)
    env.reset()
    with pytest.raises(MissingDependencyError, match="no display"):
        env.step(np.zeros((3, 1), np.float32))
    env.close(terminate=True)


AROUND = {
    "time limit": lambda env: gymnasium.wrappers.TimeLimit(env, 3),
    "statistics": gymnasium.wrappers.RecordEpisodeStatistics,
    "reset": gymnasium.wrappers.Autoreset,
    "terminal frame": KeepTerminalFrame,
}


@cases("outside", [False, True])
@cases("name", AROUND)
def test_wrappers_of_gymnasium_on_both_sides(name, outside):
    def made():
        env = gymnasium.make("guerdon-tests/Human-v0", render_mode="rgb_array")
        env = env if outside else AROUND[name](env)
        env = RewardModelWrapper(env, robot.Injected({}), **PER_STEP)
        return AROUND[name](env) if outside else env

    check_env(made(), skip_render_check=False)
    env = made()
    for one in (env, gymnasium.make(env.spec)):
        one.reset(seed=0)
        paid, done, info = [], False, {}
        while not done:
            _, reward, terminated, truncated, info = one.step(STILL)
            paid.append(reward)
            done = terminated or truncated
        length = min(3, robot.LENGTHS[2]) if name == "time limit" else robot.LENGTHS[2]
        np.testing.assert_allclose(paid, robot.VALUES[2, 1 : length + 1] / 100, rtol=1e-6)
        if name == "statistics":
            own = sum(paid) if outside else sum(range(1, length + 1))  # the environment's own reward is the row
            assert (info["episode"]["r"], info["episode"]["l"]) == (pytest.approx(own, abs=1e-5), length)


@pytest.mark.parametrize("outside", [False, True])
def test_a_video_is_recorded_on_both_sides(outside, tmp_path):
    pytest.importorskip("moviepy", reason="moviepy is not installed: pip install gymnasium[other]")

    def recorded(env):
        return gymnasium.wrappers.RecordVideo(env, str(tmp_path), episode_trigger=lambda n: True, disable_logger=True)

    env = gymnasium.make("guerdon-tests/Human-v0", render_mode="rgb_array")
    env = RewardModelWrapper(env if outside else recorded(env), robot.Injected({}), **PER_STEP)
    env = recorded(env) if outside else env
    env.reset()
    assert [env.step(STILL)[1] for _ in range(2)] == [np.float32(robot.VALUES[2, k] / 100) for k in (1, 2)]
    env.close()
    assert len(list(tmp_path.glob("*.mp4"))) == 1


class DrawsItself(gymnasium.vector.VectorEnv):
    """Copies that are not environments of their own, as `make_vec` makes CartPole-v1; it has no `call`."""

    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.NEXT_STEP}
    single_observation_space = gymnasium.spaces.Box(0, 255, (1,), np.float32)
    single_action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, num_envs=1, render_mode=None, pictures=None):
        self.num_envs, self.render_mode, self.pictures = num_envs, render_mode, pictures or num_envs
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        self.row = 0
        return np.zeros((self.num_envs, 1), np.float32), {}

    def step(self, actions):
        self.row += 1
        no = np.zeros(self.num_envs, np.bool_)
        return np.full((self.num_envs, 1), self.row, np.float32), np.ones(self.num_envs), no, no, {}

    def render(self):
        if self.render_mode is None:
            return None
        return tuple(robot.frame(copy, self.row) for copy in range(self.pictures))


gymnasium.register("guerdon-tests/DrawsItself-v0", vector_entry_point=DrawsItself)


def test_a_vector_environment_without_call_is_drawn_by_its_render():
    env = gymnasium.make_vec("guerdon-tests/DrawsItself-v0", num_envs=3, render_mode="rgb_array")
    env = RewardModelVectorWrapper(env, robot.Injected({}), **PER_STEP)
    env.reset()
    _, rewards, _, _, infos = env.step(np.zeros((3, 1), np.float32))
    np.testing.assert_array_equal(rewards, np.float32(robot.VALUES[:3, 1] / 100))
    assert infos["env_reward"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [({}, "render_mode='rgb_array'"), ({"render_mode": "rgb_array", "pictures": 2}, "2 pictures of 3 copies")],
)
def test_a_vector_environment_that_does_not_draw_its_copies_is_refused(keys, message):
    env = RewardModelVectorWrapper(DrawsItself(3, **keys), robot.Injected({}), **PER_STEP)
    env.reset()
    with pytest.raises(ConfigError, match=message):
        env.step(np.zeros((3, 1), np.float32))


def test_cart_pole_as_make_vec_makes_it():
    pytest.importorskip("pygame", reason="pygame is not installed: pip install guerdon[gymnasium]")
    env = gymnasium.make_vec("CartPole-v1", num_envs=2, render_mode="rgb_array")
    env = RewardModelVectorWrapper(env, {"model_type": "constant", "value": 0.25}, **PER_STEP)
    env.reset(seed=0)
    assert env.step(np.zeros(2, np.int64))[1].tolist() == [0.25, 0.25]
    env.close()


@pytest.mark.parametrize("model", [robot.Injected({}), {"model_type": "constant", "value": 0.25}])
@pytest.mark.parametrize("autoreset", [False, True])
def test_the_checker_accepts_it_and_its_spec_makes_another_with_the_same_model(model, autoreset):
    env = KeepTerminalFrame(gymnasium.make("guerdon-tests/Human-v0", render_mode="rgb_array"))
    env = gymnasium.wrappers.Autoreset(env) if autoreset else env
    env = RewardModelWrapper(env, model, reward_mode="per_step", shaping="relative", reward_coef=3.0)
    check_env(env, skip_render_check=False)
    outer = RewardModelWrapper(gymnasium.wrappers.ClipReward(env, -1, 1), model)
    for one in (env, outer):
        other = gymnasium.make(one.spec)
        assert str(other) == str(one)
        assert other.spec.additional_wrappers == one.spec.additional_wrappers
        assert other.unwrapped is not one.unwrapped
    made = gymnasium.make(env.spec)
    assert made.rewards.source.settings.reward_coef == 3.0
    if isinstance(model, dict):
        assert gymnasium.make(EnvSpec.from_json(env.spec.to_json())).spec.kwargs == env.spec.kwargs
    else:
        assert made.rewards.source.model.model is model


class Human(robot.Playback):
    """The same episode at every reset, which can also be shown on a screen."""

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 10}

    def reset(self, *, seed=None, options=None):
        self._next = 2
        return super().reset(seed=seed, options=options)

    def render(self):
        return None if self.render_mode == "human" else super().render()


gymnasium.register("guerdon-tests/Human-v0", f"{__name__}:Human")


def test_a_wrapper_can_be_pickled_in_the_middle_of_an_episode():
    env = wrapped(reward_mode="per_step", shaping="relative")
    env.step(STILL)
    other = pickle.loads(pickle.dumps(env))
    assert other.step(STILL)[1] == env.step(STILL)[1] == pytest.approx((robot.VALUES[0, 2] - robot.VALUES[0, 1]) / 100)


def test_of_stacked_wrappers_the_environments_own_reward_is_kept():
    constant = {"model_type": "constant", "value": 0.5}
    env = RewardModelWrapper(RewardModelWrapper(robot.Playback(), robot.Injected({}), **PER_STEP), constant,
                             env_reward_weight=2.0, **PER_STEP)  # fmt: skip
    env.reset()
    _, reward, _, _, info = env.step(STILL)
    assert (reward, info["env_reward"]) == (pytest.approx(0.5 + 2 * robot.VALUES[0, 1] / 100), 1.0)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("each", [False, True])
def test_of_stacked_vector_wrappers_the_environments_own_reward_is_kept(mode, each):
    constant = {"model_type": "constant", "value": 0.5}

    def make(i):
        env = KeepTerminalFrame(robot.Playback(first=i, stride=2))
        return RewardModelWrapper(env, robot.Injected({}), **PER_STEP) if each else env

    env = SyncVectorEnv([lambda i=i: make(i) for i in range(2)], autoreset_mode=mode)
    if not each:
        env = RewardModelVectorWrapper(env, robot.Injected({}), **PER_STEP)
    env = gymnasium.wrappers.vector.DictInfoToList(RewardModelVectorWrapper(env, constant, **PER_STEP))
    env.reset()
    rows, over = np.zeros(2, np.int64), np.zeros(2, np.bool_)
    for _ in range(9):
        if mode is AutoresetMode.DISABLED and over.any():
            env.reset(options={"reset_mask": over})
        _, rewards, terminated, truncated, infos = env.step(np.zeros((2, 1), np.float32))
        resetting = over & (mode is AutoresetMode.NEXT_STEP)
        rows = np.where(resetting, 0, np.where(over, 0, rows) + 1)
        assert [info["env_reward"] for info in infos] == rows.tolist()
        assert rewards.tolist() == np.where(resetting, 0.0, 0.5).tolist()
        over = terminated | truncated
