import pytest
from pydantic import TypeAdapter, ValidationError

from guerdon.settings.train import ImageTrainSettings, ProgressTrainSettings, ResNetTrainSettings, outcome_words
from tables import cases, refuses

BASE = {"data_path": "d", "save_dir": "s"}


@pytest.mark.parametrize("given", [64, [64, 64], [3, 64, 64], (64,)])
def test_image_sizes_are_normalised(given):
    assert ResNetTrainSettings(**BASE, image_size=given).image_size == (3, 64, 64)


@pytest.mark.parametrize("given", [4, [1, 64, 64], "64", [64, 64, 64, 64], [64.0, 64.0], True])
def test_other_image_sizes_are_refused(given):
    with refuses("image_size"):
        ResNetTrainSettings(**BASE, image_size=given)


def test_the_type_chooses_the_model():
    adapter = TypeAdapter(ImageTrainSettings)
    assert isinstance(adapter.validate_python({"type": "resnet", **BASE}), ResNetTrainSettings)
    assert isinstance(adapter.validate_python({"type": "progress", **BASE}), ProgressTrainSettings)
    with pytest.raises(ValidationError):
        adapter.validate_python({"type": "progress", "reward_threshold": 0.5, **BASE})


def test_unknown_and_dead_keys_are_refused():
    with refuses("learning_rat"):
        ResNetTrainSettings(**BASE, learning_rat=1.0)
    with refuses("val_split"):
        ResNetTrainSettings(**BASE, val_split=0, early_stopping_patience=3)


def test_settings_survive_json():
    chosen = ResNetTrainSettings(**BASE, image_size=64)
    assert ResNetTrainSettings.model_validate_json(chosen.model_dump_json()) == chosen


IMAGE, TEXT = {"type": "resnet"}, {"type": "outcome"}


@cases(
    ("given", "only", "evaluates", "wanted"),
    [
        (
            {"train": {"a": IMAGE, "b": TEXT, "c": IMAGE}},
            (),
            False,
            ['train.a.outcomes="o.csv"', 'train.c.outcomes="o.csv"'],
        ),
        ({"train": {"a": IMAGE, "c": IMAGE}}, ("c",), True, ['train.c.outcomes="o.csv"']),
        ({"train": {"a": IMAGE}, "evaluate": {"data_path": "d"}}, (), True, ['evaluate.outcomes="o.csv"']),
        ({"train": {"a": IMAGE}, "evaluate": {"data_path": "d"}}, (), False, ['train.a.outcomes="o.csv"']),
    ],
)
def test_a_file_of_outcomes_is_for_the_episodes_that_are_read(given, only, evaluates, wanted):
    assert outcome_words(given, only, "o.csv", evaluates=evaluates) == wanted


def test_a_file_of_outcomes_without_a_model_of_robots_is_refused():
    for given in ({}, {"train": {"a": TEXT}}, {"evaluate": {"batch_size": 2}}):
        with refuses("--outcomes"):
            outcome_words(given, (), "o.csv", evaluates=True)
