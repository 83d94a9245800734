"""A classifier of success within N steps: its labels, its calibration, and its use."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from guerdon.episodes.targets import success_within, within_labels
from guerdon.episodes.write import EpisodeWriter
from guerdon.evaluation.suites.image_suite import evaluate_study, held_out
from guerdon.models.images.backbone import ImageScorer, calibrating, to_input
from guerdon.models.load import load_reward_model
from guerdon.settings.study import Study
from guerdon.settings.train import ResNetTrainSettings, VLMTrainSettings
from guerdon.train.images import (
    Scaling,
    calibrate,
    fit_scaling,
    fold_scaling,
    held_out_episodes,
    label_rows,
    train_image_model,
)
from guerdon.types import Episode
from tables import refuses

pytestmark = pytest.mark.usefixtures("narrow_resnets")


def labelled(success, **meta):
    frames = np.zeros((len(success), 2, 2, 3), np.uint8)
    return Episode(id="0", task="t", frames=frames, success=np.array(success, bool), meta=meta)


POLICY = {"mode": "train"}  # an episode that a run recorded


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 8), st.integers(1, 3), st.booleans())
def test_labels_by_looking_ahead(success, steps, every, demonstration):
    meta = {} if demonstration else POLICY
    episode = labelled(success, frame_every=every, **meta)
    found = success_within(episode, steps)
    at = [every * t for t in range(len(success))]
    for t, value in enumerate(found):
        ahead = [s for s, n in zip(success, at, strict=True) if at[t] <= n <= at[t] + steps]
        if any(ahead) or (demonstration and any(success[:t])):
            assert value == 1
        elif any(success[t:]):
            assert value == 0
        elif any(success[:t]):
            assert np.isnan(value), "a policy in training has lost its success"
        elif at[-1] >= at[t] + steps:
            assert value == 0
        else:
            assert np.isnan(value), "what would have come is not known"
    known = within_labels(episode, steps)
    count = int(np.isfinite(found).sum())
    assert np.isfinite(found[:count]).all()
    if count:
        assert known.success.tolist() == (found[:count] > 0.5).tolist()
    else:
        assert known is None


def test_an_experts_end_is_no_failure_where_success_was_short():
    """Coffee-button: success lasts 15 steps, then the expert waits beside the button it has pressed."""
    success = np.zeros(100, bool)
    success[20:35] = True
    expected = (np.arange(100) >= 10).astype(np.float32)
    for actor in ({}, {"policy": "expert"}, {"policy": "noisy"}):
        np.testing.assert_array_equal(success_within(labelled(success, **actor), 10), expected)
    lost = [POLICY, {"policy": "random"}, {"policy": "checkpoint"}]
    counted_as_failed = replace(labelled(success), outcome=False)
    for episode in [*(labelled(success, **actor) for actor in lost), counted_as_failed]:
        found = success_within(episode, 10)
        np.testing.assert_array_equal(found[:35], expected[:35])
        assert np.isnan(found[35:]).all()


def test_a_success_between_two_rows_is_no_failure():
    between = replace(labelled([0, 0, 0, 0], frame_every=5), outcome=True)
    assert success_within(between, 5) is None
    assert within_labels(between, 5) is None
    failed = replace(between, outcome=False)
    np.testing.assert_array_equal(success_within(failed, 5)[:3], [0, 0, 0])


def test_data_whose_successes_lie_between_the_rows_are_refused_in_one_line():
    how = ResNetTrainSettings(data_path="x", save_dir="y", within_steps=3)
    between = replace(labelled([0, 0, 0, 0], frame_every=5), outcome=True)
    with refuses("next.success"):
        label_rows([between], how, lambda episode, drawn: None)


def test_without_success_of_the_rows_nothing_is_known():
    episode = Episode(id="0", task="t", frames=np.zeros((3, 2, 2, 3), np.uint8), outcome=True)
    assert success_within(episode, 5) is None
    assert within_labels(episode, 5) is None


def test_the_scaling_is_found_again():
    rng = np.random.default_rng(0)
    true = rng.normal(-1.0, 2.0, 200_000)
    labels = rng.random(len(true)) < 1 / (1 + np.exp(-true))
    found = fit_scaling((true - 0.7) / 0.4, labels)  # of a model that is too sure and leans to success
    assert found.slope == pytest.approx(0.4, abs=0.01)
    assert found.offset == pytest.approx(0.7, abs=0.02)


@given(st.lists(st.tuples(st.floats(-50, 50), st.booleans()), min_size=1, max_size=30))
def test_the_scaling_is_finite_and_keeps_the_order(pairs):
    logits, labels = zip(*pairs, strict=True)
    found = fit_scaling(np.array(logits), np.array(labels))
    assert np.isfinite(found).all()
    assert found.slope > 0


@pytest.mark.parametrize("hidden", [None, 4])
def test_a_folded_scaling_scales_the_logits(hidden):
    torch.manual_seed(0)
    scorer = ImageScorer("resnet18", hidden_dim=hidden, dropout=0.1).eval()
    inputs = to_input(torch.randint(0, 256, (5, 24, 24, 3), dtype=torch.uint8), "none")
    with torch.no_grad():
        before = scorer(inputs)
        fold_scaling(scorer, Scaling(0.3, -1.5))
        np.testing.assert_allclose(scorer(inputs).numpy(), 0.3 * before.numpy() - 1.5, atol=1e-5)


def test_a_model_that_is_too_sure_is_calibrated():
    """Brightness says how likely success is; the network's logits are five times too large."""
    torch.manual_seed(0)
    scorer = ImageScorer("resnet18", hidden_dim=None, dropout=0.0)
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 255, 400)
    pixels = np.broadcast_to(levels[:, None, None, None], (400, 16, 16, 3)).astype(np.uint8)
    with calibrating(scorer):
        scorer(to_input(torch.from_numpy(pixels), "none"))
    with torch.no_grad():
        logits = scorer.eval()(to_input(torch.from_numpy(pixels), "none")).double().numpy()
        spread = 2.0 / logits.std()
        fold_scaling(scorer, Scaling(5 * spread, -5 * spread * logits.mean()))
        labels = rng.random(400) < 1 / (1 + np.exp(-spread * (logits - logits.mean())))

    def logits_now():
        with torch.no_grad():
            return scorer(to_input(torch.from_numpy(pixels), "none")).double().numpy()

    metrics = calibrate(scorer, logits_now(), labels, np.arange(400) // 10)
    assert metrics["calibration_slope"] == pytest.approx(0.2, abs=0.06)
    assert metrics["nll"] < metrics["nll_uncalibrated"] - 0.2
    after = 1 / (1 + np.exp(-logits_now()))
    assert after.mean() == pytest.approx(labels.mean(), abs=0.02)
    assert calibrate(scorer, logits_now(), labels, np.zeros(400, np.int64))["nll"] is None


def dots(count):
    """A dot goes to the right edge by chance, a sixth of the way with probability 0.4 a step; there is the goal."""
    rng = np.random.default_rng(0)
    for n in range(count):
        moved = np.cumsum(np.r_[0, rng.random(15) < 0.4])
        at = np.minimum(moved, 5)
        frames = rng.integers(0, 40, (16, 24, 24, 3)).astype(np.uint8)
        for t, place in enumerate(at):
            frames[t, 8:12, 4 * place : 4 * place + 4] = 255
        yield Episode(
            id=f"dot-{n}", task="go", frames=frames, success=at >= 5, outcome=bool((at >= 5).any()),
            actions=np.zeros((16, 1), np.float32), rewards=np.zeros(16, np.float32),
        )  # fmt: skip


def settings(folder, **given):
    return ResNetTrainSettings(
        data_path=str(folder / "data"), save_dir=str(folder / "model"), image_size=24, hidden_dim=8, batch_size=32,
        max_steps=40, learning_rate=1e-3, tensorboard=False, augment=False, within_steps=4, seed=0, val_split=0.4,
        **given,
    )  # fmt: skip


@pytest.mark.parametrize("within", [None, 4])
def test_held_out_episodes_are_found_again_where_success_is_lost_again(within):
    """Also where none of the rows that were drawn is a success."""
    how = ResNetTrainSettings(
        data_path="x", save_dir="y", num_samples_per_episode=3, val_split=0.3, within_steps=within, seed=0
    )
    episodes = []
    for n in range(12):
        success = np.zeros(20, bool)
        success[8:10], success[-1] = n < 6, n == 11
        frames, zeros = np.zeros((20, 4, 4, 3), np.uint8), np.zeros(20, np.float32)
        episodes.append(Episode(f"e{n}", "go", frames=frames, actions=zeros[:, None], rewards=zeros, success=success))
    rows = label_rows(episodes, how, lambda episode, drawn: None)
    assert {rows.episode_ids[i] for i in rows.episode[rows.held]} == held_out_episodes(episodes, how)


@pytest.mark.slow
def test_it_is_trained_from_episodes_calibrated_judged_and_used(tmp_path):
    with EpisodeWriter(tmp_path / "data") as writer:
        for episode in dots(30):
            writer.add(episode)
    how = settings(tmp_path)
    result = train_image_model(how)
    assert result.metrics["auroc"] > 0.8
    assert result.metrics["nll"] < result.metrics["nll_uncalibrated"] + 0.03
    stored, (held, _) = load_reward_model("resnet", tmp_path / "model"), held_out(how, None)
    judged = np.concatenate([score.steps for score in stored.score(held)]) > 0.5
    soon = np.concatenate([success_within(episode, 4) for episode in held])
    right = (judged == soon)[np.isfinite(soon)].mean()
    assert result.metrics["accuracy"] == pytest.approx(right, abs=0.01), "of the calibrated model"
    card = json.loads((tmp_path / "model/model/config.json").read_text())
    assert card["within_steps"] == 4
    assert "at most 4 environment steps ahead" in card["label"]
    model = load_reward_model("resnet", tmp_path / "model")
    episodes = list(dots(30))
    values = np.concatenate([score.steps for score in model.score(episodes)])
    truth = np.concatenate([success_within(episode, 4) for episode in episodes])
    known = np.isfinite(truth)
    assert values[known].mean() == pytest.approx(truth[known].mean(), abs=0.1), "of the share that the data have"
    assert values[truth == 1].mean() > values[truth == 0].mean() + 0.2
    train = {"soon": {"type": "resnet", **how.model_dump(exclude_unset=True)}}
    study = Study.model_validate({"work_dir": str(tmp_path), "train": train, "evaluate": {"reps": 100}})
    ((evaluation, _),) = evaluate_study(study).values()
    assert evaluation.data["rows_positive"] > 0
    assert evaluation.metrics["ece"].estimate < 0.2
    assert evaluation.metrics["auroc"].estimate > 0.8


def test_what_cannot_be_calibrated_is_refused(tmp_path):
    with refuses("val_split"):
        settings(tmp_path).model_validate({**settings(tmp_path).model_dump(exclude_unset=True), "val_split": 0.0})
    assert not ResNetTrainSettings(data_path="x", save_dir="y").calibrated


def test_held_out_episodes_of_a_vlm_are_those_with_a_task():
    how = VLMTrainSettings(data_path="x", save_dir="y", path="z", val_split=0.4, seed=0)
    frames, zeros = np.zeros((4, 4, 4, 3), np.uint8), np.zeros(4, np.float32)
    success = np.array([False, False, False, True])
    episodes = [
        Episode(f"e{n}", "go" if n % 2 else " ", frames=frames, actions=zeros[:, None], rewards=zeros, success=success)
        for n in range(20)
    ]
    rows = label_rows(episodes, how, lambda episode, drawn: None, needs_task=True)
    assert {rows.episode_ids[i] for i in rows.episode[rows.held]} == held_out_episodes(episodes, how)
