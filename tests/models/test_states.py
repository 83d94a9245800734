"""Success and progress models that look at states instead of frames (`arch: mlp`)."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from guerdon.errors import ConfigError, DataError
from guerdon.evaluation.suites.image_suite import evaluate_model
from guerdon.integrations.step_rewards import StepRewards
from guerdon.models.images.backbone import StateLayers
from guerdon.models.images.online import load_online_image_model
from guerdon.models.load import load_reward_model
from guerdon.serve.backends import build_model, refuse_all
from guerdon.settings.serve import ServedModelSettings, ServeSettings
from guerdon.settings.train import ProgressTrainSettings, ResNetTrainSettings
from guerdon.train.images import train_image_model
from guerdon.types import Episode
from tables import refuses

torch.set_num_threads(1)
FAST = {"data_path": "unused", "arch": "mlp", "learning_rate": 1e-3, "batch_size": 16, "max_epochs": 30}


def walk(seed, *, succeeds, size=3, length=12):
    """A point that walks from 0 to 1 along the first axis, or wanders near 0; the other numbers are noise."""
    rng = np.random.default_rng(seed)
    states = rng.normal(0, 0.3, (length, size)).astype(np.float32)
    states[:, 0] = np.linspace(0, 1, length) if succeeds else rng.uniform(0, 0.2, length)
    success = states[:, 0] > 0.6
    return Episode(id=f"{seed}", task="walk", states=states, success=success, outcome=bool(success.any()))


def walks(count, **options):
    return [walk(i, succeeds=i % 2 == 0, **options) for i in range(count)]


def trained(tmp_path, kind=ResNetTrainSettings, **options):
    return train_image_model(kind(save_dir=str(tmp_path / "rm"), **{**FAST, **options}), walks(20))


@pytest.mark.usefixtures("by_hand")  # a GPU has other kernels for other batches
def test_a_classifier_learns_from_states_and_its_checkpoint_scores(tmp_path):
    result = trained(tmp_path)
    assert result.metrics["auroc"] > 0.9
    model = load_reward_model("resnet", result.save_dir)
    assert (model.info.modality, model.info.frames_needed, model.config.state_size) == ("state", 0, 3)
    good, bad = model.score([walk(100, succeeds=True), walk(101, succeeds=False)])
    assert good.total > 0.5 > bad.total
    alone = model.probabilities(walk(100, succeeds=True).states)
    np.testing.assert_allclose(good.steps, alone, rtol=1e-6)  # sums of another batch, which round as the processor does


@pytest.mark.slow
def test_a_progress_model_orders_states(tmp_path):
    result = trained(tmp_path, ProgressTrainSettings)
    assert result.metrics["mae"] < 0.1
    score = load_reward_model("progress", result.save_dir).score([walk(100, succeeds=True)])[0]
    assert np.corrcoef(score.steps, np.arange(12))[0, 1] > 0.9


def test_states_are_standardised_by_what_was_trained_on():
    layers = StateLayers(3)
    states = np.random.default_rng(0).normal([1, -2, 5], [0.1, 4, 0], (500, 3)).astype(np.float32)
    layers.standardise(states)
    np.testing.assert_allclose(layers.mean, states.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(layers.std, [states[:, 0].std(), states[:, 1].std(), 1.0], rtol=1e-5)
    with torch.no_grad():
        expected = layers.layers(torch.from_numpy((states - states.mean(axis=0)) / layers.std.numpy()))
        torch.testing.assert_close(layers(torch.from_numpy(states)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "episode",
    [
        Episode(id="a", task="", frames=np.zeros((4, 8, 8, 3), np.uint8)),
        Episode(id="b", task="", states=np.zeros((4, 2), np.float32)),
    ],
)
def test_an_episode_without_these_states_is_a_failure_and_no_number(episode, tmp_path):
    model = load_reward_model("resnet", trained(tmp_path, max_epochs=1).save_dir)
    failed, good = model.score([episode, walk(0, succeeds=True)])
    assert failed.failure is not None
    assert str(failed.failure) == "no_states: the episode has no states of 3 numbers to look at"
    assert good.steps is not None


def test_it_goes_on_learning_and_is_restored_to_the_same_bits(tmp_path):
    path = trained(tmp_path, max_epochs=1).save_dir
    options = {"kind": "resnet", "batch_size": 16, "replay_size": 40, "learning_rate": 1e-2, "steps": 20}
    first, second = (load_online_image_model(path, frames_per_episode=None, **options) for _ in range(2))
    for _ in range(3):
        metrics = first.learn(walks(8))
    assert metrics["fresh"] == 8 * 12
    assert metrics["fresh_auroc"] > 0.9
    first.save(tmp_path / "state")
    second.restore(tmp_path / "state")
    assert first.learn(walks(6))["loss"] == second.learn(walks(6))["loss"]
    unseen = [walk(50, succeeds=True)]
    np.testing.assert_array_equal(first.score(unseen)[0].steps, second.score(unseen)[0].steps)
    with pytest.raises(DataError, match="states of 3 numbers, got 2"):
        first.learn([walk(0, succeeds=True, size=2)])


def test_data_without_states_and_of_several_sizes_are_refused(tmp_path):
    settings = ResNetTrainSettings(save_dir=str(tmp_path / "rm"), **FAST)
    frames = Episode(id="a", task="", frames=np.zeros((4, 8, 8, 3), np.uint8), success=np.ones(4, bool), outcome=True)
    with pytest.raises(DataError, match=r"none of 1 episodes has states: they are read from observation\.state"):
        train_image_model(settings, [frames])
    with pytest.raises(DataError, match="several sizes"):
        train_image_model(settings, [*walks(4), walk(9, succeeds=True, size=5)])


NAMED = {"state_keys": [["hand.pos", 1], ["hand.vel", 1], ["goal", 1]]}


def test_keys_that_the_data_does_not_have_are_refused_by_name(tmp_path):
    settings = ResNetTrainSettings(save_dir=str(tmp_path / "rm"), **FAST, keys=("hand", "gaol"))
    with pytest.raises(
        DataError, match=r"'0' have no named parts: remove keys, and the model looks at whole states"
    ) as refused:
        train_image_model(settings, walks(4))
    assert refused.value.field == "keys"
    with pytest.raises(
        DataError, match=r"have no 'gaol'; there are hand.pos \(1\), hand.vel \(1\), goal \(1\)"
    ) as refused:
        train_image_model(settings, [replace(one, meta=NAMED) for one in walks(4)])
    assert refused.value.field == "keys"
    one_key = settings.model_copy(update={"keys": ("goal",)})
    with pytest.raises(DataError, match="are not as wide as their parts") as refused:
        train_image_model(one_key, [replace(one, meta=NAMED) for one in walks(4, size=2)])
    assert refused.value.field == "keys"


def test_states_that_are_not_as_wide_as_their_parts_are_a_failure(tmp_path):
    settings = ResNetTrainSettings(save_dir=str(tmp_path / "rm"), **{**FAST, "max_epochs": 1}, keys=("hand", "goal"))
    train_image_model(settings, [replace(one, meta=NAMED) for one in walks(8)])
    model = load_reward_model("resnet", tmp_path / "rm")
    narrow, empty, good = (replace(walk(0, succeeds=True, size=size), meta=NAMED) for size in (2, 1, 3))
    narrow, empty = replace(narrow, states=narrow.states[:, :1]), replace(empty, states=empty.states[:, :0])
    found = [None if score.failure is None else score.failure.reason for score in model.score([narrow, empty, good])]
    assert found == ["no_states", "no_states", None]


@pytest.mark.parametrize("key", ["image_size", "normalize", "augment", "pretrained_path", "freeze_backbone", "camera"])
def test_what_is_for_pictures_is_refused(key, tmp_path):
    given = {
        "image_size": 64,
        "normalize": "none",
        "augment": True,
        "pretrained_path": "x",
        "freeze_backbone": True,
        "camera": "top",
    }
    with refuses(key):
        ResNetTrainSettings(save_dir=str(tmp_path), **FAST, **{key: given[key]})


def test_the_gate_says_nothing_of_what_its_table_does_not_have(tmp_path):
    model = load_reward_model("resnet", trained(tmp_path).save_dir)
    found = evaluate_model(model, walks(10), kind="success", threshold=None, seed=0, reps=20)
    assert found.metrics["auroc"].estimate > 0.95
    assert found.forecast.answer == "unknown"
    assert "looks at states" in found.forecast.reasons[0]


def test_a_folder_for_scored_frames_is_refused(tmp_path):
    folder = trained(tmp_path, max_epochs=1).save_dir
    with pytest.raises(ConfigError, match="this model looks at states") as refused:
        load_reward_model("resnet", folder, debug_save_dir=str(tmp_path / "frames"))
    assert refused.value.key == "debug_save_dir"
    assert not (tmp_path / "frames").exists()


def test_the_server_refuses_one_that_looks_at_actions_and_so_does_its_dry_run(tmp_path):
    taken = [replace(one, actions=np.zeros((12, 1), np.float32)) for one in walks(8)]
    options = {**FAST, "max_epochs": 1, "actions": True}
    train_image_model(ResNetTrainSettings(save_dir=str(tmp_path / "rm"), **options), taken)
    served = ServedModelSettings(model_path=str(tmp_path / "rm"))
    said = r"models.m looks at the action .*actions: true.*, and requests have no actions: serve a model"
    with pytest.raises(ConfigError, match=said) as refused:
        build_model("m", served)
    assert refused.value.key == "models.m"
    with refuses("models.m"):
        refuse_all(ServeSettings(models={"m": served}))


def test_a_wrapper_of_an_environment_that_gives_frames_refuses_it(tmp_path):
    model = load_reward_model("resnet", trained(tmp_path, max_epochs=1).save_dir)
    with pytest.raises(ConfigError, match="looks at states, and here it gets frames"):
        StepRewards(model, num_envs=1, reward_mode="per_step")
