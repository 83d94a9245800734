import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from synthetic import square_episode, square_episodes

from guerdon.compute.finite import first_non_finite
from guerdon.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from guerdon.files.atomic import write_json
from guerdon.models.images.image import load_checkpoint
from guerdon.models.load import load_reward_model
from guerdon.settings.train import ProgressTrainSettings, ResNetTrainSettings
from guerdon.train.images import _FREE, FrameTrainer, labelled_frames, seeded_scorer, train_image_model
from guerdon.train.trainer import newest_checkpoint

pytestmark = pytest.mark.usefixtures("narrow_resnets")

torch.set_num_threads(1)
FAST = {"data_path": "unused", "image_size": 32, "learning_rate": 1e-3, "batch_size": 16, "hidden_dim": 16}


def settings(tmp_path, kind=ResNetTrainSettings, **options):
    return kind(save_dir=str(tmp_path / "rm"), **{**FAST, **options})


def test_a_classifier_learns_and_its_checkpoint_scores(tmp_path):
    result = train_image_model(settings(tmp_path, max_epochs=4), square_episodes(14), data_hash="abc")
    assert result.metrics["auroc"] > 0.9
    assert not (result.save_dir / "trainer").exists()
    assert list((result.save_dir / "tensorboard").iterdir())
    written = json.loads((result.save_dir / "metrics.json").read_text())
    assert written["auroc"] == result.metrics["auroc"]
    model = load_reward_model("resnet", result.save_dir, image_size=32, hidden_dim=16)
    good, bad = model.score([square_episode(100, succeeds=True), square_episode(101, succeeds=False)])
    assert good.total > 0.5 > bad.total
    assert model.config.data_hash == "abc"


@pytest.mark.slow
def test_a_progress_model_orders_frames(tmp_path):
    chosen = settings(tmp_path, ProgressTrainSettings, max_steps=24)
    result = train_image_model(chosen, square_episodes(8))
    assert result.metrics["mae"] < 0.25
    score = load_reward_model("progress", result.save_dir).score([square_episode(100, succeeds=True)])[0]
    assert np.corrcoef(score.steps, np.arange(12))[0, 1] > 0.8


def test_a_last_batch_of_one_frame_is_left_out(tmp_path):
    """Batch normalisation of 32 x 32 frames ends at 1 x 1: it has no variance of one frame."""
    chosen = settings(tmp_path, ProgressTrainSettings, max_epochs=1, val_split=0.0, augment=False)
    episodes = square_episodes(4)
    frames = sum(len(e) for e in episodes)
    result = train_image_model(chosen.model_copy(update={"batch_size": frames - 1}), episodes)
    assert result.metrics["steps"] == 1
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        seeded_scorer(chosen).train()(torch.zeros(1, 3, 32, 32))


@pytest.mark.slow
def test_same_seed_same_weights_and_early_stopping(tmp_path, monkeypatch):
    monkeypatch.setattr("guerdon.train.images.MIN_DELTA", 10.0)  # nothing counts as an improvement
    weights = []
    for name in ("a", "b"):
        chosen = settings(tmp_path / name, max_epochs=12, early_stopping_patience=1, eval_every=1)
        result = train_image_model(chosen, square_episodes(6))
        assert result.metrics["steps"] < 12 * 2
        weights.append(load_checkpoint(result.save_dir)[0].state_dict())
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])


@pytest.mark.slow
def test_resuming_gives_the_weights_of_an_uninterrupted_training(tmp_path):
    episodes = square_episodes(4)
    whole = train_image_model(settings(tmp_path / "whole", max_steps=8, eval_every=4), episodes)
    part = settings(tmp_path / "part", max_steps=8, eval_every=4)
    folder = tmp_path / "part" / "rm" / "trainer"
    folder.mkdir(parents=True)
    frames = labelled_frames(episodes, part)
    killed = FrameTrainer(seeded_scorer(part), frames, part.model_copy(update={"max_steps": 4}), folder)
    killed.train()
    record = {"settings": part.model_dump(mode="json", exclude=_FREE), "data_hash": "", "finished": False}
    write_json(folder.parent / "training.json", record)
    (folder / "checkpoint-9999").mkdir()  # half-written: no mark
    assert newest_checkpoint(folder).name == "checkpoint-4"
    with pytest.raises(ConfigError, match="already holds a training; go on with it by --resume"):
        train_image_model(part, episodes)  # it would lose a checkpoint
    resumed = train_image_model(part, episodes, resume=True)
    first, second = (load_checkpoint(r.save_dir)[0].state_dict() for r in (whole, resumed))
    assert all(torch.equal(first[k], second[k]) for k in first)
    finished = train_image_model(part, episodes, resume=True)
    assert finished.metrics == resumed.metrics
    with pytest.raises(ConfigError, match="already holds a training; go on with it by --resume"):
        train_image_model(part, episodes)
    with pytest.raises(ConfigError, match=r"learning_rate 0\.001 -> 0\.5"):
        train_image_model(part.model_copy(update={"learning_rate": 0.5}), episodes, resume=True)


def test_without_validation_everything_is_trained_on(tmp_path):
    chosen = settings(tmp_path, max_steps=2, val_split=0.0, tensorboard=False, augment=False)
    result = train_image_model(chosen, square_episodes(4))
    assert result.metrics["val_frames"] == 0
    assert result.metrics["auroc"] is None
    assert not (result.save_dir / "tensorboard").exists()


def test_only_failures_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no success frame"):
        train_image_model(settings(tmp_path), [square_episode(1, succeeds=False)])


@pytest.mark.parametrize(("kind", "steps"), [(ResNetTrainSettings, 1), (ProgressTrainSettings, 6)])
def test_a_training_that_diverges_writes_no_weights(kind, steps, tmp_path):
    chosen = settings(tmp_path, kind, max_steps=steps, learning_rate=1e30)
    with pytest.raises(NonFiniteError, match=r"not finite|loss is nan|loss is inf") as caught:
        train_image_model(chosen, square_episodes(6))
    assert caught.value.exit_code == 3
    stored = [load_file(file) for file in tmp_path.rglob("*.safetensors")]
    assert first_non_finite(pair for tensors in stored for pair in tensors.items()) is None
    with pytest.raises(CheckpointError, match="no reward model"):
        load_reward_model("resnet" if kind is ResNetTrainSettings else "progress", chosen.save_dir)


def test_gradient_checkpointing_keeps_less_and_changes_nothing(tmp_path):
    kept = []

    def keep(tensor):
        kept[-1] += tensor.nbytes
        return tensor

    for on in (False, True):
        kept.append(0)
        chosen = settings(tmp_path / str(on), gradient_checkpointing=on, max_steps=1, val_split=0.0)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            train_image_model(chosen, square_episodes(2), data_hash="abc")
    plain, less = (load_file(next((tmp_path / name).rglob("model/*.safetensors"))) for name in ("False", "True"))
    assert plain.keys() == less.keys()
    assert all(torch.equal(plain[name], less[name]) for name in plain)
    assert kept[1] < 0.7 * kept[0]
