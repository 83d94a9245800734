"""What `train` of a language study accepts, and what it refuses."""

import pytest
from pydantic import TypeAdapter

from guerdon.config.loading import to_plain, validate
from guerdon.plan.estimate import estimate_run, estimate_train
from guerdon.plan.stages import stage
from guerdon.policies.language.text_files import load_policy
from guerdon.settings.study import Study
from guerdon.settings.text_policy import LoraSettings, TextPolicySettings, TinyModelSettings
from guerdon.settings.train import (
    ImplicitTrainSettings,
    OutcomeTrainSettings,
    StepwiseTrainSettings,
    TextTrainSettings,
    VerdictTrainSettings,
)
from tables import cases, refuses

ADAPTER = TypeAdapter(TextTrainSettings)
TEXT = {"policy": {"type": "text", "path": "runs/sft/model"}, "data": {"type": "generated"}}


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (StepwiseTrainSettings, {"labels": "soft", "head_epochs": 3, "head_learning_rate": 1e-4}),
        (StepwiseTrainSettings, {"threshold": 0.125}),
        (VerdictTrainSettings, {"rewards": "target"}),
        (OutcomeTrainSettings, {"loss": "bradley_terry", "max_steps": 5}),
        (ImplicitTrainSettings, {"loss": "dpo", "beta": 0.1, "read": "single"}),
        (ImplicitTrainSettings, {"path": "x", "lora": {}, "quantize": "nf4", "wait_for_gpu": 20}),
    ],
    ids=str,
)
def test_the_type_chooses_the_model(kind, given):
    name = kind.model_fields["type"].default
    chosen = ADAPTER.validate_python({"type": name, "save_dir": "s", **given})
    assert isinstance(chosen, kind)
    assert ADAPTER.validate_python({"type": name, **chosen.model_dump(mode="json", exclude_unset=True)}) == chosen


@cases(
    ("given", "key", "message"),
    [
        ({"path": "x", "tiny": {}}, "path", "not both"),
        ({"quantize": "nf4", "path": "x"}, "quantize", "give lora"),
        ({"quantize": "nf4", "tiny": {}, "lora": {}}, "quantize", "read from path"),
        ({"batch_size": 6, "micro_batch_size": 4}, "batch_size", "multiple of micro_batch_size"),
        ({"epochs": 2, "max_steps": 5}, "epochs", "epochs would do nothing"),
        ({"labels": "soft", "threshold": 0.5}, "threshold", "threshold would do nothing with labels soft"),
        ({"rewards": "target", "labels": "soft"}, "labels", "labels would do nothing with rewards target"),
        ({"rewards": "target", "threshold": 0.5}, "threshold", "threshold would do nothing with rewards target"),
        ({"threshold": 1.5}, "threshold", "allowed: less"),
        ({"val_split": 1}, "val_split", "allowed: less"),
        ({"type": "outcome", "labels": "soft"}, "labels", "unknown key"),
        ({"type": "verdict", "head_epochs": 1}, "head_epochs", "unknown key"),
        ({"type": "implicit", "reward_threshold": 0.5}, "reward_threshold", "unknown key"),
        ({"learning_rat": 1}, "learning_rat", "unknown key"),
    ],
    ids=str,
)
def test_what_would_not_do_what_it_says_is_refused(given, key, message):
    with refuses(f"train.rm.{key}", message):
        validate(Study, {"train": {"rm": {"type": "stepwise", "save_dir": "s", **given}}}, origin="study.yaml")


def test_adapters_are_those_of_the_guide_and_learn_faster_than_all_weights():
    lora = StepwiseTrainSettings(save_dir="s", lora=LoraSettings())
    assert (lora.lora.r, lora.lora.alpha, lora.lora.target_modules) == (16, 32, "all-linear")
    assert (lora.rate, lora.head_rate) == (2e-4, 2e-4)
    assert StepwiseTrainSettings(save_dir="s").rate == 1e-5
    assert StepwiseTrainSettings(save_dir="s", head_learning_rate=1e-3).head_rate == 1e-3


def test_it_starts_from_the_studys_policy_unless_it_says_otherwise():
    policy = TextPolicySettings(path="p", lora=LoraSettings(r=3))
    own = StepwiseTrainSettings(save_dir="s", bf16=False).start(policy)
    assert (own.path, own.tiny, own.lora, own.bf16) == ("p", None, None, False)
    tiny = StepwiseTrainSettings(save_dir="s", tiny=TinyModelSettings(), lora=LoraSettings(r=2)).start(policy)
    assert (tiny.path, tiny.tiny, tiny.lora.r) == (None, TinyModelSettings(), 2)


def test_text_models_go_with_language_policies_and_images_with_the_others():
    text, image = {"type": "stepwise", "save_dir": "s"}, {"type": "resnet", "save_dir": "s", "data_path": "d"}
    study = Study.model_validate({**TEXT, "train": {"prm": text}})
    assert list(study.text_models) == ["prm"]
    assert not study.image_models
    assert list(Study.model_validate({"train": {"rm": image}}).image_models) == ["rm"]
    with refuses("train.rm"):
        Study.model_validate({**TEXT, "train": {"rm": image}})
    for more in ({"policy": {"type": "mlp"}, "train": {"prm": text}}, {"train": {"rm": image, "prm": text}}):
        with refuses("train.prm"):
            Study.model_validate(more)


@pytest.mark.parametrize(
    "given",
    [
        {"train": {"prm": {"type": "stepwise", "path": "p", "data_path": "d", "save_dir": "s"}}},
        {"evaluate": {"models": {"published": "p"}, "aggregation": "last", "pairs": "f"}},
        {"evaluate": {"type": "text", "aggregation": "min", "prm_bench": "f", "models": {"a": "b"}}, "policy": None},
    ],
)
def test_reward_models_of_text_need_no_policy_and_what_needs_one_asks_for_it(given):
    study = Study.model_validate(given)
    assert study.text
    assert Study.model_validate(to_plain(study)) == study
    assert stage("train" if study.train else "evaluate").estimate(study)["seconds"] > 0
    with refuses("policy", r"needs a policy: set policy.path"):
        estimate_run(study)
    with refuses("policy.path", r"no language model is named: set policy.path"):
        load_policy(study.text_default, seed=0)


def test_a_reward_model_without_a_language_model_is_refused():
    study = Study.model_validate({"train": {"prm": {"type": "outcome", "data_path": "d", "save_dir": "runs/rm"}}})
    with refuses("path", "'runs/rm' of the train section names no language model"):
        study.text_models["prm"].start(study.text_default)


def test_null_removes_evaluate_of_a_robot_study():
    given = {"train": {"rm": {"type": "resnet", "save_dir": "s", "data_path": "d"}}}
    assert Study.model_validate({**given, "evaluate": None}).evaluate == Study.model_validate(given).evaluate


def test_a_dry_run_counts_gradient_steps():
    label = {"labeler": "exact", "num_samples": 100, "num_rollouts": 4}
    sft = {"save_dir": "runs/sft", "policy": {"type": "text", "tiny": {"hidden_size": 64}}}
    model = {"type": "stepwise", "save_dir": "s", "epochs": 2, "val_split": 0, "batch_size": 8}
    study = Study.model_validate({**TEXT, "sft": sft, "label": label, "train": {"prm": model}})
    found = estimate_train(study)
    assert found["gradient steps"] == 101
    assert found["models"] == 1
    assert 5 < found["seconds"] < 20
