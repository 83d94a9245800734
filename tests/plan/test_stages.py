"""The stages: all of one form, named by texts that lead somewhere, and what a study lacks."""

import dataclasses
import json
import subprocess
import sys

import pytest

from guerdon.errors import StudyError
from guerdon.plan.stages import STAGES, check_only, loaded, stage
from guerdon.settings.study import Study
from guerdon.settings.train import TEXT_MODELS
from tables import refuses

METHODS = ("check", "estimate", "work")


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_has_the_three_methods(name):
    kind = loaded(STAGES[name])
    assert all(callable(getattr(kind, method, None)) for method in METHODS)
    if dataclasses.is_dataclass(kind):
        assert kind.__dataclass_params__.frozen


def test_every_kind_of_training_names_its_stage():
    models = [
        {"type": "resnet", "data_path": "d"}, {"type": "progress", "data_path": "d"},
        {"type": "qwen_vl", "data_path": "d", "tiny": {}},
    ]  # fmt: skip
    robots = {f"m{k}": {**model, "save_dir": f"s{k}"} for k, model in enumerate(models)}
    texts = {kind: {"type": kind, "path": "p", "data_path": "d", "save_dir": kind} for kind in TEXT_MODELS}
    found = {one.stage for given in (robots, texts) for one in Study.model_validate({"train": given}).train.values()}
    assert found == {name for name in STAGES if name.startswith("train.")}


def test_a_training_is_estimated_as_the_stage_with_it_alone():
    image, vlm = {"type": "resnet", "data_path": "d"}, {"type": "qwen_vl", "data_path": "d", "tiny": {}}
    robots = {"image": {**image, "save_dir": "a", "fsdp": True}, "vlm": {**vlm, "save_dir": "b"}}
    data = {"save_dir": "d", "episodes": 10, "mixture": [{"type": "random"}]}
    given = {kind: {"type": kind, "path": "p", "data_path": "d", "save_dir": kind} for kind in TEXT_MODELS}
    for study in (Study.model_validate({"train": robots, "collect": data}), Study.model_validate({"train": given})):
        for name, model in study.train.items():
            training = stage(model.stage, name=name)
            assert training.estimate(study) == stage("train", only=(name,)).estimate(study)
            assert training.estimate(study)["models"] == 1
            assert training.together(study)


def test_options_are_fields():
    assert stage("train", only=("a",), resume=True).only == ("a",)
    with pytest.raises(TypeError, match="again"):
        stage("train", again=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("collect", "this configuration has no collect section: it needs at least collect.save_dir"),
        ("label", "this configuration has no label section; an empty one (label: {}) labels by a judge at Anthropic"),
        ("train", "this configuration has no train section: it names the reward models to train and to evaluate"),
        ("bc", "this configuration has no bc section: it needs at least bc.data_path and bc.save_dir"),
        ("sft", "this configuration has no sft section: it needs at least sft.save_dir"),
        ("search", "this configuration has no search section: it needs at least search.model and search.aggregation"),
        ("evaluate", "this configuration has neither a train section nor evaluate.remote: it names no reward model"),
    ],
)
@pytest.mark.parametrize("method", ["check", "work"])
def test_a_section_that_is_missing_is_said_before_anything_is_done(name, method, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StudyError) as refused:
        getattr(stage(name), method)(Study())
    assert str(refused.value) == message
    assert str(refused.value.of("a.yaml")) == message.replace("this configuration", "a.yaml")
    assert not list(tmp_path.iterdir())


def test_names_of_models_that_a_study_does_not_have():
    check_only(("a",), ("a", "b"))
    with refuses("--only", "--only c: this configuration has the reward models a, b"):
        check_only(("a", "c"), ("a", "b"))


def test_the_names_of_the_stages_are_light():
    code = "import sys, json, guerdon.plan.stages, guerdon.train.stages, guerdon.evaluation.stages"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not {"torch", "transformers", "gymnasium"} & set(json.loads(done.stdout))
