import numpy as np
import pytest
import torch

from guerdon.errors import CheckpointError, DataError
from guerdon.models.images.backbone import ImageScorer, calibrating, to_input
from guerdon.models.images.image import ImageModelConfig, save_checkpoint
from guerdon.models.images.online import load_online_image_model, outcome_targets
from guerdon.models.images.quality import auroc
from guerdon.types import Episode, Learnable, RewardModel

pytestmark = pytest.mark.usefixtures("narrow_resnets")

torch.set_num_threads(1)
OPTIONS = {"bf16": False, "batch_size": 8, "replay_size": 40, "learning_rate": 1e-3, "steps": 1, "device": "cpu"}


def episode(name, outcome, *, rows=4, bright=None, success=None, size=16):
    """Frames that end bright where the episode succeeded."""
    rng = np.random.default_rng(len(name) + rows)
    frames = rng.integers(0, 60, (rows, size, size, 3), dtype=np.uint8)
    if outcome if bright is None else bright:
        frames[-1] += 150
    return Episode(id=name, task="reach", frames=frames, outcome=outcome, success=success)


@pytest.fixture
def checkpoint(tmp_path):
    def write(kind="resnet"):
        torch.manual_seed(7)
        config = ImageModelConfig(
            kind, hidden_dim=8, image_size=(3, 16, 16), threshold=0.5 if kind == "resnet" else None
        )
        scorer = ImageScorer("resnet18", hidden_dim=8, dropout=0.0)
        pixels = np.concatenate([episode(f"c{i}", i % 2 == 0).frames for i in range(4)])
        with calibrating(scorer):
            scorer(to_input(torch.from_numpy(pixels), "none"))
        return save_checkpoint(tmp_path / kind, scorer.eval(), config)

    return write


@pytest.mark.slow
def test_it_learns_from_outcomes_alone(checkpoint):
    model = load_online_image_model(checkpoint(), kind="resnet", **{**OPTIONS, "steps": 12})
    assert isinstance(model, Learnable)
    assert isinstance(model, RewardModel)
    for k in range(2):
        metrics = model.learn([episode(f"{'x' * i}{k}", i % 2 == 0, rows=3 + k) for i in range(8)])
    # a success teaches its last frame only, a failure all of its frames
    assert metrics["fresh"] == 4 + 4 * 4
    assert metrics["skipped"] == 0
    unseen = [episode("u" * (20 + i), i % 2 == 0, rows=5) for i in range(8)]
    values = np.array([score.total for score in model.score(unseen)])
    assert auroc(values, np.array([i % 2 == 0 for i in range(8)], np.float32)) == 1.0


def test_what_follows_a_success_that_ended_again_is_not_learned_from(checkpoint):
    model = load_online_image_model(checkpoint("progress"), kind="progress", **OPTIONS)
    lost = np.array([False, True, False, False])
    assert model.learn([episode("lost", None, success=lost)])["fresh"] == 2
    assert model.learn([episode("kept", None, success=~lost)])["fresh"] == 4


def test_labels_of_frames(checkpoint):
    assert outcome_targets(episode("a", False)).tolist() == [0, 0, 0, 0]
    known = outcome_targets(episode("a", True))
    assert np.isnan(known[:3]).all()
    assert known[3] == 1
    assert outcome_targets(episode("a", None)) is None
    model = load_online_image_model(checkpoint(), kind="resnet", **OPTIONS)
    rows = np.array([False, True, True, False])
    assert model._labelled(episode("a", False, success=rows))[1].tolist() == [0, 1, 1, 0]


def test_a_progress_model_learns_the_share_of_the_way(checkpoint):
    model = load_online_image_model(checkpoint("progress"), kind="progress", **OPTIONS)
    metrics = model.learn([episode("a", True, rows=5), episode("b", False, rows=5), episode("c", None)])
    assert metrics["fresh"] == 10
    assert metrics["skipped"] == 1
    assert "fresh_mae" in metrics


def test_few_frames_of_a_long_episode_and_the_last_among_them(checkpoint):
    model = load_online_image_model(checkpoint(), kind="resnet", **OPTIONS, frames_per_episode=3)
    frames, targets = model._labelled(episode("a", False, rows=9))
    assert len(frames) == len(targets) == 3
    assert (frames[-1] == episode("a", False, rows=9).frames[-1]).all()
    single = load_online_image_model(checkpoint(), kind="resnet", **OPTIONS, frames_per_episode=1)
    assert (single._labelled(episode("a", True, rows=9))[0][0] == episode("a", True, rows=9).frames[-1]).all()


def test_episodes_of_several_sizes_and_none_to_learn_from(checkpoint):
    model = load_online_image_model(checkpoint(), kind="resnet", **OPTIONS)
    assert model.learn([episode("a", True), episode("b", False, size=24)])["fresh"] == 5
    assert model.learn([episode("a", None)]) == {"skipped": 1.0}


@pytest.mark.slow
def test_a_restored_model_goes_on_to_the_same_bits(checkpoint, tmp_path):
    lessons = [[episode(f"{'y' * i}{k}", i % 2 == 0) for i in range(4)] for k in range(2)]
    whole = load_online_image_model(checkpoint(), kind="resnet", **OPTIONS)
    for lesson in lessons:
        whole.learn(lesson)
    first = load_online_image_model(checkpoint(), kind="resnet", **OPTIONS)
    first.learn(lessons[0])
    first.save(tmp_path / "state")
    first.learn(lessons[0])  # to be taken back
    again = load_online_image_model(checkpoint(), kind="resnet", **OPTIONS)
    for model in (first, again):
        model.restore(tmp_path / "state")
        for lesson in lessons[1:]:
            model.learn(lesson)
        for name, tensor in whole.model.scorer.state_dict().items():
            assert torch.equal(tensor, model.model.scorer.state_dict()[name]), name
        frames = lessons[0][0].frames
        assert (model.model.probabilities(frames) == whole.model.probabilities(frames)).all()


def test_an_altered_state_is_refused(checkpoint, tmp_path):
    model = load_online_image_model(checkpoint(), kind="resnet", **OPTIONS)
    model.save(tmp_path / "state")
    with (tmp_path / "state" / "state.safetensors").open("r+b") as file:
        file.seek(2000)
        file.write(b"\x55\xaa")
    with pytest.raises(CheckpointError, match="does not have the bytes"):
        model.restore(tmp_path / "state")


def test_a_replay_begins_with_known_episodes(checkpoint, tmp_path):
    from guerdon.episodes.write import EpisodeWriter

    with EpisodeWriter(tmp_path / "data", fps=10) as writer:
        for i in range(4):
            writer.add(episode(f"d{i}", i % 2 == 0))
    model = load_online_image_model(checkpoint(), kind="resnet", **OPTIONS, data_path=str(tmp_path / "data"))
    assert len(model.replay) == 2 * 1 + 2 * 4
    with pytest.raises(DataError):
        load_online_image_model(checkpoint(), kind="resnet", **OPTIONS, data_path=str(tmp_path / "nothing"))
