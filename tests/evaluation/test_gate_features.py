"""Features of the gate against closed forms: tabular rewards for the distance, made-up episodes for the rest."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from guerdon.evaluation.gate import gate_features as features
from guerdon.types import Episode, Failure, RewardInfo, Score

GAMMA = 0.9
SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.floats(0.01, 100))
def test_the_distance_ignores_scale_and_a_negated_reward_is_farthest(seed, scale):
    reward, other = np.random.default_rng(seed).standard_normal((2, 200))
    assert features.epic_distance(reward, scale * reward) == pytest.approx(0, abs=1e-6)
    assert features.epic_distance(reward, -scale * reward) == pytest.approx(1)
    there, back = features.epic_distance(reward, other), features.epic_distance(scale * other, reward)
    assert there == pytest.approx(back)
    assert 0 < there < 1


@given(SEEDS)
def test_epic_equals_its_definition_on_tables(seed):
    """Of R = f(s') + g(s), with every expectation taken over the table; the function gets h = f + gamma g alone."""
    rng = np.random.default_rng(seed)
    before, after = rng.integers(5, size=(2, 200))
    f, g, other = rng.standard_normal((3, 5))
    table = f[None, :] + g[:, None]
    reward = np.stack([table, np.tile(other, (5, 1))])  # R(s, s')
    h = f + GAMMA * g
    assume(len(set(after.tolist())) > 1)
    start = rng.dirichlet(np.ones(5))  # D_S of EPIC
    canonical = []
    for r in reward:
        mean = r @ start
        canonical.append((r + GAMMA * mean[None, :] - mean[:, None] - GAMMA * start @ r @ start)[before, after])
    wanted = np.sqrt((1 - np.corrcoef(*canonical)[0, 1]) / 2)
    assert features.epic_distance(h[after], other[after]) == pytest.approx(wanted, abs=1e-6)


def test_the_distance_of_a_constant_reward_is_undefined():
    assert features.epic_distance(np.full(9, 2.0), np.arange(9.0)) is None


ROWS, SIDE = 20, 32


def episode(number, end, policy="expert", *, rows=ROWS, dense=True):
    """A bright column moves from the left edge to `end` (0 to 1); 1 is success, and the dense reward is where it is."""
    place = np.linspace(0, end, rows)
    frames = np.zeros((rows, SIDE, SIDE, 3), np.uint8)
    frames[np.arange(rows), 4:-4, np.round(3 + place * (SIDE - 7)).astype(int)] = 200
    meta = {"policy": policy, "frame_every": 5, "dense_rewards": (place / 2).tolist()}
    return Episode(
        id=str(number),
        task="push",
        frames=frames,
        states=np.stack([place, np.sin(7 * place)], axis=1).astype(np.float32),
        rewards=(place == 1).astype(np.float32),
        success=place == 1,
        outcome=bool(end == 1),
        meta=meta if dense else {"policy": policy, "frame_every": 5},
    )


EPISODES = [
    *[episode(i, 1.0, rows=ROWS - i) for i in range(6)],
    *[episode(i, 0.5 + 0.05 * i) for i in range(6, 10)],
    *[episode(i, 0.02 * i, "random") for i in range(10, 18)],
]


class Model:
    """A model made of one function of an episode."""

    def __init__(self, values, **info):
        self.info, self.values = RewardInfo(**({"name": "m", "range": (0.0, 1.0)} | info)), values

    def score(self, episodes):
        return [one if isinstance(one := self.values(e), Score) else Score.from_values(one) for e in episodes]


def place(episode):
    """(T,) where the bright column is; -1 in the dark."""
    lit = episode.frames[:, SIDE // 2, 3:-3, 0].astype(int)
    return np.where(lit.max(axis=1) > 100, lit.argmax(axis=1) / (SIDE - 7), -1.0)


def found(model, kind="progress", threshold=0.97, episodes=EPISODES):
    return features.robot_features(episodes, model.score(episodes), kind=kind, threshold=threshold)


def test_the_rewards_of_a_success_model_without_a_threshold_are_its_values():
    got = [found(Model(place), "success", at) for at in (None, 0.97)]
    assert got[0]["epic"] < 0.05 < got[1]["epic"]


def test_a_perfect_progress_model():
    got = found(Model(place))
    assert got["epic"] < 0.05
    assert got["bon16"] == pytest.approx(1)


def test_a_model_upside_down_is_worse_than_chance():
    got = found(Model(lambda e: 1 - place(e)))
    assert got["epic"] > 0.99
    assert got["bon16"] < 0


def test_a_constant_model_has_no_distance_and_gains_nothing():
    got = found(Model(lambda e: np.full(len(e), 0.3)), "success", 0.5)
    assert got == {"epic": None, "bon16": pytest.approx(0)}


def test_everything_failed_is_all_undefined():
    assert found(Model(lambda e: Score(failure=Failure("crash")))) == {"epic": None, "bon16": None}


def test_a_failed_measurement_leaves_its_episode_out():
    def some(episode):
        return Score(failure=Failure("crash")) if episode.id in ("0", "11") else place(episode)

    rest = [e for e in EPISODES if e.id not in ("0", "11")]
    assert found(Model(some)) == pytest.approx(found(Model(place), episodes=rest))


def test_what_the_episodes_lack_is_undefined():
    bare = [replace(e, states=None, frames=None, meta={"frame_every": 5}) for e in EPISODES]
    rising = Model(lambda e: np.linspace(0, 1 / (1 + int(e.id)), len(e)))
    got = found(rising, episodes=bare)
    assert got["epic"] is None
    assert got["bon16"] is not None
    nothing = {"epic": None, "bon16": None}
    assert features.robot_features([], [], kind="success", threshold=None) == nothing
    actions = [np.zeros((len(e), 1), np.float32) for e in bare]
    unknown = [
        replace(e, success=None, outcome=None, rewards=None, actions=a) for e, a in zip(bare, actions, strict=True)
    ]
    assert found(rising, episodes=unknown) == nothing
    assert found(Model(place), episodes=EPISODES[:15])["bon16"] is None  # too few to choose 16 from
    assert found(Model(place), episodes=[EPISODES[0]] * 16)["bon16"] is None  # nothing to gain


def test_whole_episodes_have_no_rows():
    got = found(Model(lambda e: Score(total=float(place(e)[-1])), granularity="total"), "success", 0.9)
    assert got == {"epic": None, "bon16": pytest.approx(1)}


@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=30), st.floats(0, 1, width=32))
def test_an_episode_cut_short_goes_on_with_its_last_value(values, more):
    values = np.array(values, np.float64)
    steps = np.arange(len(values)) * 5.0
    length = steps[-1] + 40 * more
    long = np.append(values, values[-1])
    held = features.held_mean(values, steps, length)
    assert held == pytest.approx(features.held_mean(long, np.append(steps, length), length))
    assert values.min() - 1e-9 <= held <= values.max() + 1e-9


def test_a_held_mean_by_hand():
    assert features.held_mean(np.array([9.0, 0, 1]), np.array([0.0, 5, 10]), 20) == pytest.approx(15 / 20)
    assert features.held_mean(np.array([3.0]), np.array([0.0]), 0) == 3
