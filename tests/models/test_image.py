import json
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ResNetModel, ViTConfig, ViTModel

from guerdon.errors import CheckpointError, ConfigError
from guerdon.models.constant import ConstantModel
from guerdon.models.images.backbone import ImageScorer, inference_copy, to_pixels
from guerdon.models.images.image import (
    DebugImages,
    ImageModelConfig,
    ImageRewardModel,
    load_checkpoint,
    save_checkpoint,
)
from guerdon.models.load import load_model_at, load_reward_model
from guerdon.types import Episode, RewardModel
from tables import refuses

pytestmark = pytest.mark.usefixtures("narrow_resnets")

torch.set_num_threads(1)
CONFIG = ImageModelConfig("resnet", hidden_dim=8, image_size=(3, 32, 32), threshold=0.5, label="done")


def make_scorer(seed=0, hidden_dim=8):
    torch.manual_seed(seed)
    scorer = ImageScorer("resnet18", hidden_dim=hidden_dim, dropout=0.1)
    with torch.no_grad():
        for name, buffer in scorer.named_buffers():  # statistics that are not the identity
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.1)
    return scorer.eval()


@pytest.fixture(scope="module")
def scorer():
    return make_scorer()


@pytest.fixture(scope="module")
def model(scorer):
    return ImageRewardModel(scorer, CONFIG, bf16=False)


@pytest.fixture
def checkpoint(tmp_path, scorer):
    return save_checkpoint(tmp_path / "rm", scorer, CONFIG)


def episode(length, seed=0, size=32, name="e"):
    rng = np.random.default_rng(seed)
    return Episode(name, "t", frames=rng.integers(0, 256, (length, size, size, 3), dtype=np.uint8))


@pytest.mark.usefixtures("by_hand")  # a GPU has other kernels for other batches
def test_scores_do_not_depend_on_the_batch(model):
    episodes = [episode(n, seed=n, size=s) for n, s in ((1, 32), (5, 40), (9, 32), (3, 20))]
    together = model.score(episodes)
    for one, score in zip(episodes, together, strict=True):
        np.testing.assert_allclose(model.score([one])[0].steps, score.steps, atol=1e-6)
        assert score.total == score.steps[-1]
        assert score.steps.shape == (len(one),)
        assert ((score.steps >= 0) & (score.steps <= 1)).all()


def test_identical_frames_go_through_the_network_once(model, monkeypatch):
    seen = []
    forward = model._forward
    monkeypatch.setattr(model, "_forward", lambda pixels: seen.append(len(pixels)) or forward(pixels))
    one = episode(4)
    scores = model.score([one, one.take([3, 3, 0]), one])
    assert sum(seen) == 4
    assert scores[1].steps[0] == scores[0].steps[3] == scores[1].steps[1]


def test_missing_frames_and_bad_numbers_are_failures(scorer):
    empty = Episode("x", "t", states=np.zeros((3, 2), np.float32))
    broken = make_scorer()
    torch.nn.init.constant_(broken.head[-1].bias, float("nan"))
    model = ImageRewardModel(broken, CONFIG, bf16=False)
    reasons = [s.failure.reason for s in model.score([empty, episode(2)[:0], episode(2)])]
    assert reasons == ["no_frames", "no_frames", "non_finite"]
    assert model.score([]) == []


@pytest.mark.parametrize("height", [1, 3, 4])
def test_episodes_of_low_frames_are_scored(model, height):
    frames = np.random.default_rng(0).integers(0, 256, (2, height, 9, 3), dtype=np.uint8)
    (score,) = model.score([Episode("low", "t", frames=frames)])
    expected = model.probabilities(to_pixels(frames, CONFIG.image_size, channels_last=True))
    np.testing.assert_allclose(score.steps, expected, rtol=1e-6)


def test_folding_keeps_the_values_and_bf16_is_near(scorer):
    inputs = torch.rand(3, 3, 32, 32, device=next(scorer.parameters()).device)
    with torch.inference_mode():
        plain, folded = scorer(inputs), inference_copy(scorer, bf16=False)(inputs)
        rough = inference_copy(scorer, bf16=True)(inputs)
    torch.testing.assert_close(folded, plain, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(rough, plain, atol=0.1, rtol=0.1)


def test_info_and_protocol(model, scorer):
    assert isinstance(model, RewardModel)
    assert model.info.name == "resnet"
    assert model.info.success_threshold == 0.5
    progress = ImageRewardModel(scorer, ImageModelConfig("progress", hidden_dim=8))
    assert progress.info.success_threshold is None


def test_a_width_without_end_is_refused_before_memory_is_taken(tmp_path):
    path = save_checkpoint(tmp_path / "model", make_scorer(), CONFIG)
    card = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(card | {"hidden_dim": 10**12}))
    with pytest.raises(CheckpointError, match="does not fit resnet18 with hidden_dim 1000000000000"):
        load_checkpoint(path)


def test_head_follows_hidden_dim():
    assert isinstance(make_scorer(hidden_dim=None).head, torch.nn.Linear)
    head = make_scorer(hidden_dim=8).head
    assert [type(layer).__name__ for layer in head] == ["Linear", "ReLU", "Dropout", "Linear"]
    assert not head[0].bias.any()
    with pytest.raises(ConfigError, match="resnet19") as refused:
        ImageScorer("resnet19", hidden_dim=8, dropout=0.0)
    assert refused.value.key == "arch"


def test_a_checkpoint_comes_back_exactly(checkpoint, scorer):
    for path in (checkpoint, checkpoint / "model.safetensors", str(checkpoint)):
        loaded, config = load_checkpoint(path, hidden_dim=8, image_size=(3, 32, 32))
        assert config == CONFIG
        assert all(torch.equal(a, b.cpu()) for a, b in zip(loaded.parameters(), scorer.parameters(), strict=True))
    assert not [p for p in checkpoint.parent.iterdir() if p != checkpoint]


def test_saving_again_replaces(checkpoint):
    other = make_scorer(seed=1)
    save_checkpoint(checkpoint, other, CONFIG)
    loaded, _ = load_checkpoint(checkpoint)
    assert torch.equal(loaded.head[0].weight, other.head[0].weight)


@pytest.mark.hostile("models")
@pytest.mark.parametrize(
    ("requested", "words"),
    [
        ({"hidden_dim": 256}, ["hidden_dim", "8", "256"]),
        ({"image_size": [3, 128, 128]}, ["image_size", "[3, 32, 32]", "[3, 128, 128]"]),
        ({"image_size": 64}, ["[3, 32, 32]", "[3, 64, 64]"]),
        ({"arch": "resnet50"}, ["'resnet18'", "'resnet50'"]),
        ({"dropout": 0.5}, ["0.1", "0.5"]),
    ],
)
def test_a_mismatch_names_both_values(checkpoint, requested, words):
    with pytest.raises(CheckpointError) as caught:
        load_reward_model("resnet_reward", checkpoint, **requested)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.hostile("models")
def test_another_kind_is_refused(checkpoint):
    with pytest.raises(CheckpointError, match=r"'resnet'.*'progress'"):
        load_reward_model("progress", checkpoint)


@pytest.mark.hostile("models")
def test_damage_is_refused(checkpoint):
    weights = checkpoint / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(CheckpointError, match="corrupt"):
        load_checkpoint(checkpoint)
    with pytest.raises(CheckpointError, match="no reward model"):
        load_checkpoint(checkpoint / "nowhere")
    (checkpoint / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(checkpoint)


@pytest.mark.hostile("models")
def test_missing_tensors_are_refused(checkpoint):
    import hashlib

    weights = checkpoint / "model.safetensors"
    tensors = load_file(weights)
    tensors.pop("head.3.bias")
    save_file(tensors, weights)
    record = json.loads((checkpoint / "config.json").read_text())
    record["sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    (checkpoint / "config.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"head\.3\.bias"):
        load_checkpoint(checkpoint)


@pytest.mark.parametrize("sharded", [False, True])
def test_pretrained_backbones_must_fit(sharded, tmp_path, scorer):
    scorer_of = partial(ImageScorer, hidden_dim=8, dropout=0.0, sharded=sharded)
    scorer.backbone.save_pretrained(tmp_path / "good")
    loaded = scorer_of("resnet18", pretrained_path=str(tmp_path / "good"))
    assert torch.equal(next(loaded.backbone.parameters()), next(scorer.backbone.parameters()).cpu())
    with pytest.raises(CheckpointError, match="depths"):
        scorer_of("resnet34", pretrained_path=str(tmp_path / "good"))
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    ViTModel(ViTConfig(image_size=32, **small)).save_pretrained(tmp_path / "vit")
    with pytest.raises(CheckpointError, match=r"pretrained_path .*vit"):
        scorer_of("resnet18", pretrained_path=str(tmp_path / "vit"))
    weights = tmp_path / "good" / "model.safetensors"
    tensors = load_file(weights)
    tensors.pop(sorted(tensors)[0])
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="missing"):
        scorer_of("resnet18", pretrained_path=str(tmp_path / "good"))
    assert isinstance(loaded.backbone, ResNetModel)


def test_debug_images_are_sorted_and_numbered_on(tmp_path, scorer, monkeypatch):
    monkeypatch.setenv("DEBUG_IMAGE_SAVE_DIR", str(tmp_path / "debug"))
    values = []
    for run in range(2):
        model = ImageRewardModel(scorer, CONFIG, bf16=False)
        values.append(model.score([episode(3, seed=run)])[0].steps)
    names = sorted(f"{p.parent.name}/{p.name}" for p in (tmp_path / "debug").glob("*/*.png"))
    probabilities = np.concatenate(values)
    folders = ["resnet_success" if p > 0.5 else "resnet_fail" for p in probabilities]
    assert names == sorted(f"{folders[i]}/{i:06d}_prob{p:.4f}.png" for i, p in enumerate(probabilities))


def test_frames_without_a_probability_are_no_debug_images(tmp_path):
    images = DebugImages(tmp_path, 0.5)
    images.save(np.zeros((3, 4, 4, 3), np.uint8), np.array([0.75, np.nan, 0.25], np.float32))
    names = sorted(f"{p.parent.name}/{p.name}" for p in tmp_path.glob("*/*.png"))
    assert names == ["resnet_fail/000001_prob0.2500.png", "resnet_success/000000_prob0.7500.png"]


def test_weights_of_another_name_are_no_checkpoint(checkpoint):
    (checkpoint / "model.safetensors").rename(checkpoint / "best.safetensors")
    with pytest.raises(CheckpointError, match=r"are named model\.safetensors, next to config\.json"):
        load_checkpoint(checkpoint / "best.safetensors")


def test_constant_and_foreign_options():
    assert load_reward_model("dummy").score([episode(3)])[0].steps.tolist() == [0, 0, 0]
    assert load_reward_model("constant", value=0.5).info.range == (0.5, 0.5)
    assert isinstance(ConstantModel(), RewardModel)
    with pytest.raises(ConfigError, match="finite") as refused:
        ConstantModel(float("nan"))
    assert refused.value.key == "value"
    with refuses("replay_path", "'resnet': replay_path, update would do nothing outside a run"):
        load_reward_model("resnet", "somewhere", update="online", replay_path="data")
    with refuses("device", "computes on the server; remove it"):
        load_model_at("http://127.0.0.1:9", device="cpu")
    with refuses("checkpoint_path"):
        load_reward_model("dummy", "somewhere")
    with refuses("value"):
        load_reward_model("resnet", "somewhere", value=1.0)
    with refuses("checkpoint_path"):
        load_reward_model("progress")
    with pytest.raises(ConfigError, match="unknown reward model"):
        load_reward_model("resnett")
    with pytest.raises(ConfigError, match=r"unknown reward model 'progres': .* did you mean 'progress'\?"):
        load_reward_model("progres", "somewhere")
