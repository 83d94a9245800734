"""Features of the gate against closed forms: tabular rewards for the distances, made-up episodes for the rest."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from guerdon.episodes.solutions import Solution
from guerdon.evaluate import gate_features as features
from guerdon.evaluate.best_of_n import best_of_n, same_number_or_text
from guerdon.evaluate.gate_card import WORDS
from guerdon.models.backbone import ImageScorer
from guerdon.models.image import ImageModelConfig, ImageRewardModel
from guerdon.types import Episode, Failure, RewardInfo, Score

GAMMA = 0.9
SEEDS = st.integers(0, 2**32 - 1)


def transitions(seed, states=5, number=200):
    """A tabular world: states before and after N transitions, and one-hot features, which span all potentials."""
    rng = np.random.default_rng(seed)
    before, after = rng.integers(states, size=(2, number))
    return rng, before, after, np.eye(states)[before], np.eye(states)[after]


def distances(a_N, b_N, before_N_F, after_N_F):
    return (
        features.epic_distance(a_N, b_N),
        features.dard_distance(a_N, b_N, before_N_F),
        features.starc_distance(a_N, b_N, before_N_F, after_N_F, GAMMA),
    )


@given(SEEDS, st.floats(0.01, 100))
def test_distances_ignore_scale_and_a_negated_reward_is_farthest(seed, scale):
    rng, _, after, phi, phi_next = transitions(seed)
    reward = rng.standard_normal(5)[after] + 0.1 * rng.standard_normal(len(after))
    other = rng.standard_normal(len(after))
    for one in distances(reward, scale * reward, phi, phi_next):
        assert one == pytest.approx(0, abs=1e-6)
    for one in distances(reward, -scale * reward, phi, phi_next):
        assert one == pytest.approx(1)
    there, back = distances(reward, other, phi, phi_next), distances(scale * other, reward, phi, phi_next)
    assert there == pytest.approx(back)
    assert all(0 < one < 1 for one in there)


@given(SEEDS)
def test_epic_and_dard_equal_their_definitions_on_tables(seed):
    """Of R = f(s') + g(s), with every expectation taken over the table; the functions get h = f + gamma g alone."""
    rng, before, after, phi, _ = transitions(seed)
    f, g, other = rng.standard_normal((3, 5))
    table = f[None, :] + g[:, None]
    reward = np.stack([table, np.tile(other, (5, 1))])  # R(s, s')
    h = f + GAMMA * g
    chance = np.stack([np.bincount(after[before == s], minlength=5) for s in range(5)]).astype(float)
    assume((chance.sum(axis=1) > 0).all())
    chance /= chance.sum(axis=1, keepdims=True)  # T(s' | s), of the sample
    start = rng.dirichlet(np.ones(5))  # D_S of EPIC
    canonical, aware = [], []
    for r in reward:
        mean = r @ start
        canonical.append((r + GAMMA * mean[None, :] - mean[:, None] - GAMMA * start @ r @ start)[before, after])
        inside = (chance * r).sum(axis=1)  # E[R(s, A, S') | s]
        cross = chance @ r @ chance.T  # [s, s']: E[R(S', A, S'')], S' after s, S'' after s'
        aware.append((r + GAMMA * inside[None, :] - inside[:, None] - GAMMA * cross)[before, after])
    for name, (a, b), found in (
        ("epic", canonical, features.epic_distance(h[after], other[after])),
        ("dard", aware, features.dard_distance(h[after], other[after], phi)),
    ):
        wanted = np.sqrt((1 - np.corrcoef(a, b)[0, 1]) / 2)
        assert found == pytest.approx(wanted, abs=1e-6), name


@given(SEEDS)
def test_starc_ignores_potential_shaping(seed):
    rng, before, after, phi, phi_next = transitions(seed)
    reward, other = rng.standard_normal((2, len(after)))
    potential = 10 * rng.standard_normal(5)
    shaped = reward + GAMMA * potential[after] - potential[before]
    plain = features.starc_distance(reward, other, phi, phi_next, GAMMA)
    assert features.starc_distance(3 * shaped, other, phi, phi_next, GAMMA) == pytest.approx(plain)
    assert features.starc_distance(shaped, reward, phi, phi_next, GAMMA) == pytest.approx(0, abs=1e-6)


def test_distances_of_constant_rewards_are_undefined():
    rng, before, after, phi, phi_next = transitions(0)
    reward, constant, potential = rng.standard_normal(len(after)), np.full(len(after), 2.0), rng.standard_normal(5)
    assert distances(constant, reward, phi, phi_next) == (None, None, None)
    shaping = GAMMA * potential[after] - potential[before]
    assert features.starc_distance(shaping, reward, phi, phi_next, GAMMA) is None


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
    """A model made of one function of an episode, which counts the rows that it scores."""

    def __init__(self, values, **info):
        self.info, self.values, self.rows = RewardInfo(**({"name": "m", "range": (0.0, 1.0)} | info)), values, 0

    def score(self, episodes):
        self.rows += sum(map(len, episodes))
        return [one if isinstance(one := self.values(e), Score) else Score.from_values(one) for e in episodes]


def place(episode):
    """(T,) where the bright column is; -1 in the dark."""
    lit = episode.frames[:, SIDE // 2, 3:-3, 0].astype(int)
    return np.where(lit.max(axis=1) > 100, lit.argmax(axis=1) / (SIDE - 7), -1.0)


def found(model, kind="progress", limit=0.97, episodes=EPISODES):
    scores = model.score(episodes)
    model.rows = 0
    return features.gate_features(model, episodes, scores, kind=kind, threshold=limit, limit=limit, seed=0)


def test_the_rewards_of_a_success_model_without_a_threshold_are_its_values():
    model = Model(place)
    got = [
        features.gate_features(model, EPISODES, model.score(EPISODES), kind="success", threshold=at, limit=0.97, seed=0)
        for at in (None, 0.97)
    ]
    assert got[0]["epic"] < 0.05 < got[1]["epic"]
    assert got[0]["far_false_positives"] == got[1]["far_false_positives"] == 0


def test_a_perfect_progress_model():
    got = found(Model(place))
    assert got["epic"] < 0.05
    assert got["dard"] < 0.6
    assert got["return_rank"] > 0.8  # quick successes have the return of slow ones
    assert got["bon4"] == got["bon16"] == pytest.approx(1)
    assert got["wandering"] == got["near_miss"] == 0
    assert got["far_false_positives"] == got["near_false_positives"] == 0
    assert got["far_error"] < 0.1
    assert got["near_error"] < 0.1
    assert got["agreement"] > 0.9
    assert 0 <= got["pixel_change"] < 0.1


def test_a_model_upside_down_is_worse_than_chance():
    got = found(Model(lambda e: 1 - place(e)))
    assert got["epic"] > 0.99
    assert got["return_rank"] < -0.8
    assert got["bon4"] < 0
    assert got["wandering"] == 1
    assert got["near_miss"] == 0.5  # all begin at the highest value


def test_a_success_model_that_near_misses_fool():
    """Above its limit from 0.75 on: its rewards are 0 or 1."""
    got = found(Model(place), "success", 0.75)
    assert got["near_miss"] == 0  # its values are right, its limit is not
    far, near = (np.concatenate([place(e)[rows] for e in EPISODES[:6]]) for rows in (slice(-6), slice(-6, -1)))
    assert got["far_false_positives"] == 0
    assert got["near_false_positives"] == pytest.approx((near > 0.75).mean())
    assert got["far_error"] == pytest.approx(far.mean())
    assert got["near_error"] == pytest.approx(near.mean())


def test_a_constant_model_has_no_distances_and_no_rank():
    got = found(Model(lambda e: np.full(len(e), 0.3)), "success", 0.5)
    for name in ("epic", "dard", "starc", "return_rank", "pixel_change", "agreement"):
        assert got[name] is None, name
    assert (got["reward_variance"], got["wandering"], got["near_miss"]) == (0, 0.5, 0.5)
    assert got["bon4"] == pytest.approx(0)


def test_everything_failed_is_all_undefined():
    got = found(Model(lambda e: Score(failure=Failure("crash"))))
    assert set(got.values()) == {None}


def test_what_the_episodes_lack_is_undefined():
    bare = [replace(e, states=None, frames=None, meta={"frame_every": 5}) for e in EPISODES]
    rising = Model(lambda e: np.linspace(0, 1 / (1 + int(e.id)), len(e)))
    got = found(rising, episodes=bare)
    missing = {"epic", "dard", "starc", "near_miss", "wandering", "pixel_change", "agreement"}
    assert {name for name, value in got.items() if value is None} == missing
    assert set(
        features.gate_features(Model(place), [], [], kind="success", threshold=None, limit=None, seed=0).values()
    ) == {None}
    actions = [np.zeros((len(e), 1), np.float32) for e in bare]
    unknown = [
        replace(e, success=None, outcome=None, rewards=None, actions=a) for e, a in zip(bare, actions, strict=True)
    ]
    got = found(rising, episodes=unknown)
    assert {name for name, value in got.items() if value is not None} == {"reward_variance"}


def test_whole_episodes_have_no_rows():
    got = found(Model(lambda e: Score(total=float(place(e)[-1])), granularity="total"), "success", 0.9)
    rows = {"epic", "dard", "starc", *(f"{w}_{x}" for w in ("far", "near") for x in ("false_positives", "error"))}
    assert {name for name, value in got.items() if value is None} == rows
    assert got["bon4"] == pytest.approx(1)
    assert got["return_rank"] > 0.5


def test_it_costs_at_most_two_more_passes_and_repeats():
    """A small network of its own kind, over frames."""
    torch.manual_seed(0)
    config = ImageModelConfig(type="resnet", hidden_dim=8, image_size=(3, 32, 32), threshold=0.5)
    scorer = ImageScorer(config.arch, hidden_dim=8, dropout=0.1).eval()
    network = ImageRewardModel(scorer, config, device="cpu", bf16=False)
    model = Model(lambda e: network.score([e])[0])
    got = found(model, "success", None)
    assert 0 < model.rows <= 2 * sum(map(len, EPISODES))
    assert found(model, "success", None) == got
    for name in ("epic", "dard", "starc", "agreement", "pixel_change", "reward_variance", "bon4"):
        assert got[name] is not None, name
    assert set(got) <= set(WORDS), "each has its words"


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


@given(st.lists(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=9), max_size=6), st.floats(0.1, 9))
def test_reward_variance_is_within_groups_and_free_of_scale(groups, scale):
    got = features.reward_variance(groups, 1.0)
    if not any(len(group) > 1 for group in groups):
        assert got is None
        return
    assert 0 <= got <= 0.25 + 1e-9
    moved = [[scale * value + i for value in group] for i, group in enumerate(groups)]
    assert features.reward_variance(moved, scale) == pytest.approx(got, abs=1e-9)


def test_reward_variance_by_hand():
    assert features.reward_variance([[0, 1], [0, 0], [5]], 1.0) == pytest.approx(0.125)
    assert features.reward_variance([[0, 2], [1, 1]], None) == pytest.approx(0.125)
    assert features.reward_variance([[1, 1]], None) is None


def test_changed_pixels_are_pure_and_small():
    frames = EPISODES[0].frames
    before = frames.copy()
    rng = np.random.default_rng(0)
    bordered, bright = features.grey_border(frames), features.brighter(frames)
    noise, moved = features.noisy(frames, rng), features.shifted(frames)
    np.testing.assert_array_equal(frames, before)
    for changed in (bordered, bright, noise, moved):
        assert (changed.dtype, changed.shape) == (np.uint8, frames.shape)
    np.testing.assert_array_equal(bordered[:, 2:-2, 2:-2], frames[:, 2:-2, 2:-2])
    assert (bordered[:, :2] == 128).all()
    np.testing.assert_array_equal(bright.astype(int), np.minimum(frames.astype(int) + 20, 255))
    assert np.abs(noise.astype(int) - frames).max() < 40
    np.testing.assert_array_equal(moved[:, 1:, 1:], frames[:, :-1, :-1])
    np.testing.assert_array_equal(moved[:, 0], moved[:, 1])


@pytest.mark.parametrize(("sign", "gain"), [(1, 1.0), (0, 0.0)])
def test_responses_of_a_language_model(sign, gain):
    right = [[1, 0, 0, 0], [0, 1, 1, 0], [1]]  # the last one has too few to choose among
    solutions = [
        Solution(id=f"{q}-{i}", question=str(q), steps=("a",), answer=str(ok), is_correct=bool(ok))
        for q, part in enumerate(right)
        for i, ok in enumerate(part)
    ]
    values = [0.5 + sign * (ok - 0.5) for part in right for ok in part]
    scores = [Score.from_values([value]) for value in values]
    curves = best_of_n(solutions, scores, same_number_or_text, aggregations=("min",), ns=(1, 4), reps=10, seed=0)
    info = RewardInfo(name="m", range=(0.0, 1.0))
    got = features.response_features(curves, "min", solutions, values, info)
    assert got["bon4"] == pytest.approx(gain)
    assert got["bon16"] is None  # four responses each
    assert got["reward_variance"] == pytest.approx(sign * (3 / 16 + 1 / 4) / 2)
    assert features.response_features(curves, "prod", solutions, values, info)["bon4"] is None
    lost = [Failure("timeout")] * len(values)
    assert features.response_features(curves, "min", solutions, lost, info)["reward_variance"] is None
