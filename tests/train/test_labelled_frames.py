import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import square_episode, square_episodes

import corridor
from guerdon.collect.collect import collect
from guerdon.errors import DataError
from guerdon.settings.study import Study
from guerdon.settings.train import ProgressTrainSettings, ResNetTrainSettings
from guerdon.train.images import labelled_frames, train_image_model
from guerdon.train.trainer import balanced_counts, epoch_order
from guerdon.types import Episode
from tables import refuses

SETTINGS = ResNetTrainSettings(data_path="unused", save_dir="unused", image_size=16)


def frames_of(episodes, kind=ResNetTrainSettings, **options):
    return labelled_frames(episodes, kind(data_path="unused", save_dir="unused", image_size=16, **options))


def test_success_labels_are_those_of_the_rows():
    episode = square_episode(0, succeeds=True)
    frames = frames_of([episode, square_episode(1, succeeds=False)])
    np.testing.assert_array_equal(frames.targets[:12], episode.success)
    assert frames.pixels.shape == (24, 16, 16, 3)
    assert not frames.positive[12:].any()


def test_low_frames_of_episodes_are_read():
    low = Episode("e", "t", frames=np.full((4, 3, 9, 3), 7, np.uint8), success=np.arange(4) > 2)
    assert (frames_of([low]).pixels == 7).all()


def test_progress_targets_rise_to_one_and_failures_stay_at_zero():
    frames = frames_of(square_episodes(2), ProgressTrainSettings)
    np.testing.assert_allclose(frames.targets[:12], np.minimum(np.arange(12) / 8, 1), atol=1e-6)
    assert frames.positive[:12].all()
    assert not frames.targets[12:].any()


def test_samples_keep_the_last_frame_and_do_not_depend_on_order():
    episodes = square_episodes(4)
    drawn = frames_of(episodes, num_samples_per_episode=3, seed=1)
    again = frames_of(episodes[::-1], num_samples_per_episode=3, seed=1)
    assert len(drawn) == 12
    assert drawn.targets[2] == 1
    np.testing.assert_array_equal(drawn.pixels[:3], again.pixels[-3:])


def test_split_keeps_episodes_whole_and_both_outcomes_on_both_sides():
    frames = frames_of(square_episodes(10), val_split=0.2, seed=0)
    train, val = frames.split()
    assert not set(frames.episode[train]) & set(frames.episode[val])
    assert len(train) + len(val) == len(frames)
    assert frames.positive[train].any()
    assert frames.positive[val].any()
    assert len(set(frames.episode[val])) == 2


def test_split_does_not_depend_on_the_order_of_episodes():
    episodes = square_episodes(10)
    names = []
    for order in (episodes, episodes[::-1]):
        frames = frames_of(order, val_split=0.4, seed=3)
        names.append({frames.episode_ids[i] for i in frames.episode[frames.held]})
    assert names[0] == names[1]


@pytest.mark.parametrize("kind", [ResNetTrainSettings, ProgressTrainSettings])
def test_successes_of_which_no_row_is_marked_are_named(kind):
    frames = np.zeros((4, 8, 8, 3), np.uint8)
    episodes = [Episode(f"e{k}", "t", frames=frames, success=np.zeros(4, bool), outcome=k < 2) for k in range(3)]
    with pytest.raises(
        DataError, match=r"2 of 3 episodes succeeded, but next.success marks none of their rows"
    ) as refused:
        frames_of(episodes, kind)
    assert refused.value.field == "next.success"


def test_a_success_between_two_kept_rows_is_named_with_the_key_that_lost_it(tmp_path):
    options = {"max_episode_steps": 20, "kwargs": {"stops": False, "moment": 7}}
    env = {"type": "gymnasium", "task": f"corridor:{corridor.ID}", "num_envs": 2, **options}

    def train(name, **more):
        given = {"save_dir": str(tmp_path / name), "episodes": 4, "mixture": [{"type": "random"}], **more}
        collect(Study.model_validate({"env": env, "collect": given}))
        rm = str(tmp_path / f"{name} rm")
        return train_image_model(
            ResNetTrainSettings(data_path=given["save_dir"], save_dir=rm, arch="mlp", max_epochs=1)
        )

    with refuses("next.success"):
        train("default")
    assert train("every", frame_every=1).metrics["train_positive"] > 0


def test_no_success_is_an_error_that_says_so():
    with pytest.raises(DataError, match="no success frame"):
        frames_of([square_episode(1, succeeds=False)])


def test_nothing_but_success_is_refused_for_a_classifier_and_a_split_leaves_a_success():
    always = Episode("e", "t", frames=np.zeros((4, 8, 8, 3), np.uint8), success=np.ones(4, bool))
    with pytest.raises(DataError, match="every one of 4 frames is a success"):
        frames_of([always])
    assert frames_of([always], ProgressTrainSettings).positive.all()
    frames = labelled_frames(square_episodes(2), SETTINGS, held_ids=[square_episode(0, succeeds=True).id])
    with pytest.raises(DataError, match="no row of success is left for training"):
        frames.check_split(0.5)


def test_unlabelled_episodes_are_counted_not_guessed():
    bare = Episode(id="bare", task="move", frames=square_episode(0, succeeds=True).frames)
    assert frames_of([bare, *square_episodes(2)]).skipped == 1
    with pytest.raises(DataError, match="none of 1"):
        frames_of([bare])


@given(st.integers(1, 30), st.integers(0, 80), st.floats(0.1, 5), st.integers(0, 3))
def test_an_epoch_has_every_positive_once_and_failures_within_the_ratio(positives, others, ratio, epoch):
    positive = np.arange(positives + others) < positives
    order = epoch_order(positive, ratio, seed=0, epoch=epoch)
    assert len(set(order)) == len(order) == sum(balanced_counts(positive, ratio))
    assert positive[order].sum() == positives
    assert (~positive[order]).sum() <= max(round(ratio * positives), 1)


def test_epochs_draw_different_failures():
    positive = np.arange(50) < 5
    first, second = (set(epoch_order(positive, 2.0, seed=0, epoch=e)) for e in (0, 1))
    assert first != second
