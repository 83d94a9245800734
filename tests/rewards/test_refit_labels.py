"""What a refit learns from the policy's own episodes: hand-made ones, of one stream, with a state for each row."""

import numpy as np
import pytest
from test_control_sources import ObservedRow, cut_into_segments, rollout_of

from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import DataError
from guerdon.models.constant import ConstantModel
from guerdon.models.images.backbone import ImageScorer
from guerdon.models.images.image import ImageModelConfig, ImageRewardModel
from guerdon.models.images.online import OnlineImageModel
from guerdon.rewards.refit import RefittedReward, _replay, online_model
from guerdon.rewards.source import SourceTerms
from guerdon.settings.reward_source import RobotSource
from guerdon.types import Episode
from tables import refuses


def refitted(kind="resnet", *, within=None, horizon=None, every=1, **model):
    """A source that learns, and the list of what it is given to learn from: rows and targets."""
    threshold = 0.5 if kind == "resnet" else None
    config = ImageModelConfig(kind, "mlp", threshold=threshold, state_size=1, within_steps=within, horizon=horizon)
    scorer = ImageScorer("mlp", hidden_dim=4, dropout=0.0, state_size=1)
    online = OnlineImageModel(ImageRewardModel(scorer, config), frames_per_episode=None)
    given = {"model_type": kind, "checkpoint_path": "x", "update": "before", "replay_path": "y", **model}
    given["update_params"] = {"every": every, "steps": 1, "batch_size": 8}
    source = RefittedReward(SourceTerms("rm"), online, RobotSource(model=given, reward_mode="per_step"), num_envs=1)
    told = []
    learn = online.update
    online.update = lambda rows, targets, **kw: (told.append((rows[:, 0], targets)), learn(rows, targets, **kw))[1]
    return source, told


def rollout(success, *, every=1, finished=True, begun=0):
    """Steps begun + 1, begun + 2, ... of an episode; of every so many a row is observed, whose state is its number."""
    steps = len(success)
    numbers = [begun + t + 1 for t in range(steps)]
    rows = [
        ObservedRow(0, t, 0, n, finished and t == steps - 1, success[t], state=np.full(1, n, np.float32))
        for t, n in enumerate(numbers)
        if n % every == 0
    ]
    done = np.zeros((1, steps), dtype=np.bool_)
    done[0, -1] = finished
    frames = np.zeros((len(rows), 1, 1, 3), np.uint8)
    tasks = [["task"]] * (steps + 1)
    segments = cut_into_segments(rows, frames, tasks, np.ones_like(done), np.zeros_like(done), done)
    return rollout_of(segments, np.ones_like(done), np.array([[one is True for one in success]]))


def labels(told):
    """Number of the row to its label, of everything that was learnt from."""
    return {int(n): float(label) for rows, targets in told for n, label in zip(rows, targets, strict=True)}


def adversarial(**given):
    return refitted(labeler="adversarial", **given)


LOST = [False] * 6 + [True] * 2 + [False] * 6  # rows 1 to 14; 7 and 8 succeed


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("resnet", {}, {n: float(n in (7, 8)) for n in range(1, 15)}),
        ("resnet", {"within": 3}, {n: float(n >= 4) for n in range(1, 9)}),
        ("progress", {}, {n: min((n - 1) / 6, 1.0) for n in range(1, 9)}),
        ("progress", {"horizon": 4.0}, {n: max(0.0, 1 - max(7 - n, 0) / 4) for n in range(1, 9)}),
    ],
    ids=["success of the row", "success within", "share of the way", "nearness"],
)
def test_what_follows_a_success_that_the_policy_lost_again_is_not_learnt_from(kind, given, expected):
    source, told = refitted(kind, **given)
    source.learn(rollout(LOST))
    assert labels(told) == pytest.approx(expected)


def test_a_success_between_two_observed_rows_does_not_make_the_episode_a_failure():
    between = [n == 7 for n in range(1, 15)]  # every fifth step is observed
    for kind, given in (("progress", {}), ("progress", {"horizon": 9.0}), ("resnet", {"within": 3})):
        source, told = refitted(kind, **given)
        assert source.learn(rollout(between, every=5)) == {"episodes_without_labels": 1}
        assert told == []
        source.learn(rollout([False] * 14, every=5))
        assert set(labels(told).values()) == {0.0}
    source, told = refitted("resnet")  # success of each row is known all the same
    source.learn(rollout(between, every=5))
    assert labels(told) == {5: 0.0, 10: 0.0}


def test_a_success_of_an_earlier_rollout_is_part_of_the_checkpoint():
    source, _ = refitted("progress")
    source.learn(rollout([False, True], every=4, finished=False))
    again, told = refitted("progress")
    again.restore(*source.state())
    metrics = again.learn(rollout([False] * 6, every=4, begun=2))
    assert metrics == {"episodes_without_labels": 1}
    assert told == []


NEGATIVE = dict.fromkeys(range(1, 15), 0.0)


def test_all_that_the_policy_shows_is_negative_unless_its_own_successes_count():
    source, told = adversarial(within=3)
    source.learn(rollout(LOST))
    assert labels(told) == NEGATIVE
    for within, first in ((3, 4), (None, 7)):
        source, told = adversarial(within=within, own_successes=True)
        assert source.learn(rollout(LOST))["own_successes"] == 9 - first
        assert labels(told) == {n: float(n >= first) for n in range(1, 9)}


def test_an_episode_without_success_is_negative_to_its_last_row():
    source, told = adversarial(within=3, own_successes=True)
    assert source.learn(rollout([False] * 14))["own_successes"] == 0
    assert labels(told) == NEGATIVE


def test_where_success_is_unknown_all_is_negative():
    source, told = adversarial(within=3, own_successes=True)
    source.learn(rollout([None] * 14))
    assert labels(told) == NEGATIVE


@pytest.mark.parametrize("within", [3, None])
def test_an_own_success_between_two_observed_rows_is_no_negative(within):
    source, told = adversarial(within=within, own_successes=True)
    assert source.learn(rollout([n == 7 for n in range(1, 15)], every=5)) == {}
    assert told == []


@pytest.mark.parametrize(
    ("success", "every"),
    [
        ([None, None, True, True], 1),  # of the first two rows it is unknown
        ([None, True, False, False], 1),  # the last row is known to be none
        ([True, None, False, True], 3),  # between two rows
    ],
)
def test_progress_is_unknown_where_the_row_of_the_first_success_is(success, every):
    source, told = refitted("progress")
    assert source.learn(rollout(success, every=every)) == {"episodes_without_labels": 1}
    assert told == []


def test_progress_of_a_success_that_is_reported_at_the_end_alone():
    source, told = refitted("progress")
    source.learn(rollout([None, None, None, None, True]))
    assert labels(told) == {1: 0.0, 2: 0.25, 3: 0.5, 4: 0.75, 5: 1.0}


def test_an_episode_is_labelled_when_it_has_ended():
    source, told = adversarial(within=3, own_successes=True)
    assert source.learn(rollout([False] * 4, finished=False)) == {}
    again, told = adversarial(within=3, own_successes=True)
    again.restore(*source.state())
    assert again.learn(rollout([False, True], begun=4))["own_successes"] == 4
    assert labels(told) == {n: float(n >= 3) for n in range(1, 7)}


def test_own_successes_stay_among_the_positives_of_the_replay():
    source, _ = adversarial(within=3, own_successes=True)
    source.learn(rollout(LOST))
    others, positives = source.model.replay.kept
    assert sorted(float(row[0]) for row, _ in positives) == [4, 5, 6, 7, 8]
    assert sorted(float(row[0]) for row, _ in others) == [1, 2, 3]


def test_only_models_that_look_at_rows_with_labels_can_be_refitted(tmp_path):
    source, _ = refitted()
    settings, config = source.settings.model, source.model.model.config
    with refuses("reward.sources.rm.model.update", "a resnet model cannot be refitted"):
        online_model("rm", ConstantModel(), settings, seed=0)
    with EpisodeWriter(tmp_path) as writer:
        writer.add(Episode("a", "t", states=np.zeros((3, 1), np.float32)))
    with pytest.raises(DataError, match=f"replay_path {tmp_path}: .*states and success labels"):
        _replay(settings.model_copy(update={"replay_path": str(tmp_path)}), config, 10)
