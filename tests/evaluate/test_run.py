"""`guerdon evaluate` on a small trained model: what it judges on, and what it writes."""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from synthetic import square_episodes

from guerdon.config import load
from guerdon.episodes.read import read_episodes
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import CheckpointError, ConfigError, DataError
from guerdon.evaluate.run import evaluate_study, held_out
from guerdon.settings.study import Study
from guerdon.train.images import labelled_frames, train_image_model

TEXT = """\
train:
  done: {type: resnet, data_path: data, save_dir: models/done, image_size: 32, hidden_dim: 8, max_epochs: 1,
         max_steps: 4, batch_size: 16, val_split: 0.25, tensorboard: false, augment: false}
  far: {type: progress, data_path: data, save_dir: models/far, image_size: 32, hidden_dim: 8, max_epochs: 1,
        max_steps: 4, batch_size: 16, val_split: 0.25, tensorboard: false, augment: false}
evaluate: {reps: 100}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with sixteen episodes and two models fitted to twelve of them."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("evaluate")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with EpisodeWriter("data", fps=10) as writer:
            for episode in square_episodes(16):
                writer.add(episode)
        Path("study.yaml").write_text(TEXT)
        study = load(Study, Path("study.yaml"))
        for settings in study.train.values():
            train_image_model(settings)
        yield folder


@pytest.fixture
def study(trained, monkeypatch):
    monkeypatch.chdir(trained)
    return load(Study, Path("study.yaml"))


@pytest.mark.parametrize("name", ["done", "far"])
def test_it_judges_exactly_what_training_held_out(study, name):
    settings = study.train[name]
    everything = list(read_episodes("data"))
    frames = labelled_frames(everything, settings)
    ids, (train, val) = frames.episode_ids, frames.split()
    judged = {episode.id for episode in held_out(settings, None)[0]}
    assert judged == {ids[i] for i in set(frames.episode[val])}
    assert not judged & {ids[i] for i in set(frames.episode[train])}
    assert len(judged) == 4


def test_it_writes_beside_the_model(study):
    results = evaluate_study(study)
    assert list(results) == ["done", "far"]
    for name, (_, paths) in results.items():
        folder = Path("models") / name
        assert {p.parent for p in paths.values()} == {folder}
        assert {p.suffix for p in paths.values()} >= {".json", ".txt", ".svg"}
        record = json.loads(paths["json"].read_text())
        text = json.dumps(record)
        assert "NaN" not in text
        for word in ("baseline", "black", "reversed"):
            assert word in text, word


def test_only_one_and_unknown_ones(study):
    assert list(evaluate_study(study, only=["far"])) == ["far"]
    with pytest.raises(ConfigError, match=r"zz.*done, far"):
        evaluate_study(study, only=["zz"])
    with pytest.raises(ConfigError, match="neither a train section"):
        evaluate_study(Study())


def test_other_episodes_and_none(study):
    other = load(Study, Path("study.yaml"), ["evaluate.data_path=data"])
    assert len(held_out(other.train["done"], other.evaluate.data_path)[0]) == 16
    whole = load(Study, Path("study.yaml"), ["train.done.val_split=0", "train.done.early_stopping_patience=null"])
    with pytest.raises(DataError, match=r"evaluate\.data_path"):
        held_out(whole.train["done"], None)


def test_a_model_that_was_not_trained(study):
    absent = load(Study, Path("study.yaml"), ["train.done.save_dir=models/none"])
    with pytest.raises(CheckpointError, match="guerdon train"):
        evaluate_study(absent, only=["done"])
