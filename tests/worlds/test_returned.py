"""What an environment returns is judged before any array of another type holds it."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import wrong_env
from guerdon.collect.control import ControlCollector
from guerdon.settings.policy import MLPPolicySettings
from guerdon.settings.world import GymnasiumSettings, OwnWorldSettings
from guerdon.worlds.build import build_world
from guerdon.worlds.returned import NOT_FINITE, CopyJudge, Declared
from tables import cases, refuses

OUTSIDE = [
    ("numbers", 5.0, "(-1 to 1) holds 5,"), ("whole", 11, "(0 to 9) holds 11,"), ("whole", 2.5, "(0 to 9) holds 2.5,"),
    ("bytes", 300, "(0 to 255) holds 300,"),
]  # fmt: skip
MODES = ["disabled", "next_step", "same_step", "async"]


def world(mode="disabled", **kwargs):
    how = {"vectorization": "async"} if mode == "async" else {"autoreset_mode": mode}
    return build_world(
        GymnasiumSettings(task="wrong_env:Wrong-v0", num_envs=2, native_reward="dense", kwargs=kwargs, **how), seed=0
    )


def played(made, steps=12):
    """Failures of steps and of resets, and all that was shown."""
    lost, resets, shown = [], [], [made.reset().observations]
    for _ in range(steps):
        found = made.step(np.zeros((2, 1), np.float32))
        lost += found.failures.values()
        resets += [why for _, why in found.failed_resets]
        shown += [found.observations, found.final_observations]
    made.close()
    return lost, resets, shown


@pytest.mark.parametrize("at", ["reset", "step", "end"])
@pytest.mark.parametrize("mode", MODES)
@cases(
    ("part", "keys"),
    [("numbers", True), ("numbers", False), ("whole", False), ("bytes", True), ("bytes", False), ("floats", True),
     ("floats", False), ("choice", True), ("choice", False)],
)  # fmt: skip
def test_nan_is_a_failure_of_everything_that_is_observed(part, keys, mode, at):
    if mode == "async" and (part, keys, at) not in (("bytes", True, "step"), ("floats", False, "reset")):
        return  # processes take time to start
    lost, resets, shown = played(world(mode, part=part, keys=keys, at=at, value=float("nan")))
    failures = resets if at == "reset" else lost
    assert len(failures) >= 1
    assert {why.reason for why in failures} == {"simulator_non_finite"}
    if at != "reset":
        assert "after step" in failures[0].detail
        assert mode == "async" or part == "numbers" or not keys or "the observation 'a'" in failures[0].detail
    assert not (lost if at == "reset" else resets)
    for rows in shown:
        values = rows["a"] if rows.dtype.names else rows
        if part in ("bytes", "floats"):
            assert (values == (1 if part == "bytes" else 255)).all(), "never black"
        assert np.isfinite(values).all()


@pytest.mark.parametrize("at", ["reset", "step", "end"])
@pytest.mark.parametrize("mode", MODES)
def test_numbers_outside_are_counted_and_named_once(mode, at, capsys):
    for part, value, text in OUTSIDE:
        for keys in (True, False):
            if mode == "async" and (part, keys, at) not in (("numbers", True, "end"), ("bytes", False, "step")):
                continue
            made = world(mode, part=part, keys=keys, at=at, value=value)
            lost, resets, _ = played(made)
            said = capsys.readouterr().err
            name = "the observation 'a' " if keys else "the observation "
            assert said.count(f"[env] {name}{text}") == 1, (part, value, keys, said)
            assert f"{name}{text.split(' holds')[0]} was outside of its declared space 2 times" in said
            assert not lost
            assert not resets


def test_numbers_outside_in_rollouts_and_evaluations_are_named_once(capsys):
    env = GymnasiumSettings(
        task="wrong_env:Wrong-v0", num_envs=2, native_reward="dense", kwargs={"keys": False, "value": 5.0}
    )
    collector = ControlCollector(env, MLPPolicySettings(hidden=[4]), seed=0, rollout_steps=12)
    policy = collector.build_policy()
    collector.collect(policy)
    collector.evaluate(policy, episodes=4)
    collector.close()
    said = capsys.readouterr().err
    assert said.count("(-1 to 1) holds 5, outside") == 1
    assert said.count("was outside of its declared space") == 1


@cases(
    ("part", "value"),
    [("floats", 200.0), ("floats", 1.5), ("floats", -0.5), ("bytes", 0.5)],
)
@cases("keys", [True, False])
def test_a_picture_of_floats_in_another_range_is_refused(part, value, keys):
    made = world(part=part, keys=keys, value=value, everywhere=True)
    with refuses("env.task", r"declared as a picture of .* and holds float"):
        played(made)


def test_a_picture_of_floats_in_another_range_is_refused_in_processes():
    made = world("async", part="floats", value=255.0)
    with refuses("env.task"):
        played(made)


def test_rounding_is_no_other_range(capsys):
    lost, resets, _ = played(world(part="floats", value=1.0 + 1e-3))
    assert not lost
    assert not resets
    lost, resets, _ = played(world(part="numbers", value=1.0 + 1e-7))
    assert "outside" not in capsys.readouterr().err


NUMBERS = st.floats(-400, 400) | st.just(float("nan")) | st.just(float("inf"))


@settings(max_examples=200, deadline=None)
@given(st.lists(NUMBERS, min_size=3, max_size=3), st.sampled_from(["f4", "f8", "i8", "u1"]), st.integers(-300, 300))
def test_judgements_are_those_of_the_space(values, dtype, high):
    """A row is finite and unmarked exactly where Gymnasium says that it is in the space, up to rounding and types."""
    low, high = sorted([high, 7])
    space = spaces.Box(low, high, (3,), np.float64)
    rows = np.array([values])
    if dtype in ("i8", "u1"):
        rows = np.nan_to_num(rows, nan=0, posinf=200, neginf=0).clip(0 if dtype == "u1" else None, None)
    with np.errstate(all="ignore"):
        rows = rows.astype(dtype)
    finite, marks = Declared(space, "x")(rows, 1)
    exact = rows.astype(np.float64)
    assert finite[0] == np.isfinite(exact).all()
    outside = [key for key in marks if key != NOT_FINITE]
    near = np.abs(exact - np.clip(exact, low, high)).max() if finite[0] else 0
    if finite[0] and not 0 < near <= 4e-3:
        assert bool(outside) == (not space.contains(exact[0]))


def test_a_copy_is_judged_where_its_array_would_lose_something():
    judge = CopyJudge(spaces.Tuple([spaces.Dict(n=wrong_env.SPACES["whole"]), spaces.MultiBinary(2)]))
    fine = ({"n": np.array([1, 2, 3])}, np.array([0, 1], np.int8))
    assert judge(fine) == (fine, {})
    found, marks = judge(({"n": np.array([1.0, np.nan, 3.0])}, [0.0, 7.0]))
    assert marks == {NOT_FINITE: "the observation '0.n'", "guerdon:outside the observation '1' (0 to 1)": 7.0}
    assert found[0]["n"].tolist() == [1.0, 0.0, 3.0]


class Together(gymnasium.vector.VectorEnv):
    """A vector of somebody's own, which returns arrays of another type than it declares."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
    returned = 0.5

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.single_observation_space = wrong_env.SPACES["bytes"]
        self.single_action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        return np.ones((self.num_envs, 16, 16, 3)), {}

    def step(self, actions):
        nothing = np.zeros(self.num_envs, bool)
        return np.full((self.num_envs, 16, 16, 3), self.returned), np.zeros(self.num_envs), nothing, nothing, {}


def together(num_envs):
    return Together(num_envs)


def test_vectors_of_a_users_own_are_judged_too(monkeypatch):
    def made():
        own = OwnWorldSettings(type="test_returned:together", task="x", num_envs=2, native_reward="dense")
        found = build_world(own, seed=0)
        found.reset(np.zeros(2, bool))
        return found

    with refuses("env.task"):
        made().step(np.zeros((2, 1)), capture=np.zeros(2, bool))
    monkeypatch.setattr(Together, "returned", np.nan)
    failures = made().step(np.zeros((2, 1)), capture=np.zeros(2, bool)).failures
    assert {why.reason for why in failures.values()} == {"simulator_non_finite"}
    assert len(failures) == 2
