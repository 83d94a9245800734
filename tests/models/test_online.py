import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import CheckpointError, NonFiniteError
from guerdon.models.images.backbone import ImageScorer, calibrating, to_input
from guerdon.models.images.image import ImageModelConfig, ImageRewardModel
from guerdon.models.images.online import FrameReplay, OnlineImageModel
from guerdon.models.images.quality import auroc, frame_quality
from guerdon.types import Episode
from tables import refuses

pytestmark = pytest.mark.usefixtures("narrow_resnets")

torch.set_num_threads(1)


def make_trainer(kind="resnet", seed=0, **options):
    torch.manual_seed(7)
    config = ImageModelConfig(kind, hidden_dim=8, image_size=(3, 16, 16), threshold=0.5 if kind == "resnet" else None)
    model = ImageRewardModel(ImageScorer("resnet18", hidden_dim=8, dropout=0.1), config, bf16=False)
    with calibrating(model.scorer):
        model.scorer(to_input(torch.from_numpy(labelled(16, 98)[0]).to(model.device), "none"))
    options = {"batch_size": 8, "replay_size": 20, "learning_rate": 1e-3, **options}
    return OnlineImageModel(model, *labelled(12, seed=99), seed=seed, **options)


def labelled(n, seed):
    rng = np.random.default_rng(seed)
    targets = (np.arange(n) % 2).astype(np.float32)
    frames = rng.integers(0, 60, (n, 16, 16, 3), dtype=np.uint8)
    frames[targets > 0] += 150
    return frames, targets


def test_updates_fit_and_report_quality_before_fitting():
    trainer = make_trainer()
    first = trainer.update(*labelled(16, 0), steps=60)
    second = trainer.update(*labelled(16, 1), steps=1)
    assert second["fresh_auroc"] == 1.0
    assert second["loss"] < first["loss"]
    assert second["seconds"] > 0
    assert trainer.updates == 2
    assert all(p.grad is None for p in trainer.model.scorer.parameters())  # a rollout needs their memory


def test_low_frames_are_learnt_from():
    frames, targets = labelled(8, 3)
    assert make_trainer().update(frames[:, :4], targets, steps=1)["fresh"] == 8


@pytest.mark.slow
def test_one_sided_updates_do_not_spoil_what_was_known():
    trainer = make_trainer()
    trainer.update(*labelled(16, 0), steps=15)
    frames, targets = labelled(16, 5)
    for seed in range(2):
        dark = labelled(8, seed)[0][::2]
        trainer.update(dark, np.zeros(4), steps=5)
    assert auroc(trainer.model.probabilities(frames), targets) == 1.0
    assert not trainer.model.scorer.training


def test_calibration_gives_the_statistics_of_its_batches():
    norm = torch.nn.BatchNorm2d(2).eval()
    batches = [torch.randn(8, 2, 3, 3) * 3 + 1 for _ in range(3)]
    before = torch.get_rng_state()
    with calibrating(norm):
        for batch in batches:
            norm(batch)
            torch.rand(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert not norm.training
    assert norm.momentum == 0.1
    torch.testing.assert_close(norm.running_mean, torch.stack([b.mean((0, 2, 3)) for b in batches]).mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack([b.var((0, 2, 3)) for b in batches]).mean(0))


def test_nothing_fresh_fits_nothing_and_invents_nothing():
    trainer = make_trainer()
    metrics = trainer.update(np.zeros((0, 16, 16, 3), np.uint8), np.zeros(0), steps=3)
    assert metrics["loss"] is metrics["fresh_auroc"] is metrics["fresh_accuracy"] is None
    one_sided = trainer.update(labelled(4, 0)[0], np.zeros(4), steps=1)
    assert one_sided["fresh_auroc"] is None
    assert one_sided["fresh_accuracy"] is not None


def test_progress_takes_soft_targets():
    metrics = make_trainer("progress").update(labelled(5, 0)[0], np.linspace(0, 1, 5), steps=2)
    assert 0 <= metrics["fresh_mae"] <= 1
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        make_trainer("progress").update(labelled(5, 0)[0], np.full(5, 1.5), steps=1)
    with pytest.raises(ValueError, match="shape"):
        make_trainer("progress").update(labelled(5, 0)[0], np.zeros(4), steps=1)


def test_resume_is_bit_exact_and_survives_safetensors_and_json(tmp_path):
    from safetensors.torch import load_file, save_file

    straight = make_trainer()
    straight.update(*labelled(8, 0), steps=3)
    tensors, values = straight.state()
    save_file(tensors, tmp_path / "online.safetensors")
    values = json.loads(json.dumps(values))
    expected = straight.update(*labelled(8, 1), steps=3)
    resumed = make_trainer(seed=5)
    resumed.update(*labelled(8, 3), steps=1)
    resumed.load_state(load_file(tmp_path / "online.safetensors"), values)
    found = resumed.update(*labelled(8, 1), steps=3)
    assert {k: v for k, v in found.items() if k != "seconds"} == {k: v for k, v in expected.items() if k != "seconds"}
    (first, first_values), (second, second_values) = straight.state(), resumed.state()
    assert first_values == second_values
    assert first.keys() == second.keys()
    assert all(torch.equal(first[k], second[k]) for k in first)


@pytest.mark.hostile("models")
def test_a_foreign_state_is_refused():
    trainer = make_trainer()
    tensors, values = trainer.state()
    del tensors["model.head.0.bias"]
    with pytest.raises(CheckpointError, match="does not fit"):
        trainer.load_state(tensors, values)


def test_episodes_without_labels_are_skipped_and_are_no_replay(tmp_path):
    trainer = make_trainer()
    blind = Episode("blind", "t", actions=np.zeros((3, 2), np.float32), outcome=True)
    unknown = Episode("unknown", "t", frames=labelled(3, 1)[0])
    assert trainer.learn([blind, unknown]) == {"skipped": 2.0}
    with EpisodeWriter(tmp_path) as writer:
        writer.add(unknown)
    with refuses("frames", "has no episode with frames and a known outcome"):
        trainer.remember(str(tmp_path))
    with pytest.raises(ValueError, match="at least 2 frames, got 1"):
        FrameReplay(1, positive_above=0.5)


@settings(max_examples=25)
@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(2, 12))
def test_replay_is_bounded_and_balanced(labels, capacity):
    rng = np.random.default_rng(0)
    replay = FrameReplay(capacity, positive_above=0.5)
    targets = np.array(labels, np.float32)
    pixels = np.arange(len(labels), dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 3), np.uint8)
    replay.add(pixels, targets, rng)
    room = capacity // 2
    assert len(replay) == min(room, sum(labels)) + min(room, len(labels) - sum(labels))
    drawn, wanted = replay.draw(10, rng)
    assert all(labels[int(p[0, 0, 0])] == bool(t) for p, t in zip(drawn, wanted, strict=True))
    if 0 < sum(labels) < len(labels):
        assert wanted.sum() == 5


def test_every_frame_of_a_stream_is_kept_equally_often():
    kept = np.zeros(20)
    for seed in range(400):
        replay = FrameReplay(10, positive_above=0.5)
        replay.add(
            np.arange(20, dtype=np.uint8).reshape(20, 1, 1, 1),
            np.zeros(20, np.float32),
            np.random.default_rng(seed),
        )
        kept[[int(p.item()) for p, _ in replay.kept[0]]] += 1
    assert abs(kept / 400 - 0.25).max() < 0.09


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30))
def test_auroc_agrees_with_sklearn(pairs):
    scores, labels = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    if labels.all() or not labels.any():
        assert auroc(scores, labels) is None
    else:
        assert auroc(scores, labels) == pytest.approx(roc_auc_score(labels, scores))


def test_quality_by_hand():
    found = frame_quality(np.array([0.9, 0.4, 0.6, 0.1]), np.array([1.0, 1.0, 0.0, 0.0]), 0.5)
    assert found == {"accuracy": 0.5, "auroc": 0.75}
    assert frame_quality(np.array([0.0, 0.5]), np.array([0.5, 0.5]), None) == {"mae": 0.25}
    assert frame_quality(np.array([]), np.array([]), None) == {"mae": None}


def test_refits_that_diverge_stop_and_leave_finite_weights():
    trainer = make_trainer(learning_rate=1e30)
    metrics = trainer.update(*labelled(8, 1), steps=4)
    assert metrics["skipped_updates"] >= 2
    with pytest.raises(NonFiniteError, match="updates of the image reward model were skipped"):
        trainer.update(*labelled(8, 1), steps=20)


def test_a_skipped_step_changes_no_weight():
    trainer = make_trainer()
    before = {name: p.clone() for name, p in trainer.model.scorer.named_parameters()}
    frames, targets = labelled(8, 1)
    trainer._logits = lambda pixels: torch.full((len(pixels),), float("nan"), device=pixels.device, requires_grad=True)
    metrics = trainer.update(frames, targets, steps=3)
    assert metrics["loss"] is None
    assert metrics["skipped_updates"] == 3
    assert all(torch.equal(p, before[name]) for name, p in trainer.model.scorer.named_parameters())
