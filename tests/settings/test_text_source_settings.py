"""The `reward` and `evaluate` sections of language studies: what they mean, and what they refuse."""

import pytest
from pydantic import ValidationError

from guerdon.config.loading import to_plain, validate
from guerdon.errors import ConfigError
from guerdon.settings.evaluate import EvaluateTextSettings, judged_names
from guerdon.settings.study import Study
from tables import cases

TEXT = {"policy": {"type": "text", "tiny": {}}, "data": {}}
MODEL = {"model_type": "text", "checkpoint_path": "prm"}


def study(*, reward=None, sources=None, **given):
    if sources is not None:
        given["reward"] = {"use_reward_model": True, "sources": sources, **(reward or {})}
    return validate(Study, {**TEXT, **given}, origin="study.yaml")


def source(**given):
    return {"model": MODEL, "reward_mode": "per_step", "shaping": "raw", **given}


@cases(
    ("given", "message"),
    [
        (
            {"model": {**MODEL, "arch": "resnet18"}},
            r"model\.arch = .*; it belongs to model_type: resnet or",
        ),
        ({"model": {**MODEL, "value": 0.5}}, r"model\.value = 0.5: unknown key; it belongs to model_type: constant"),
        ({"model": {"model_type": "text"}}, r"model\.checkpoint_path is missing"),
        ({"model": {**MODEL, "update": "after"}}, "update = .*: unknown key; it belongs to model_type: resnet"),
        ({"shaping": "potential"}, "shaping is 'potential'; allowed: 'threshold', 'raw', 'signed' or 'relative'"),
        ({"shaping": "bonus"}, "shaping is 'bonus'; allowed: "),
        ({"cache": {}}, "cache would do nothing with model_type text"),
        ({"score_every": 2}, "score_every would do nothing"),
        ({"aggregation": "min"}, "aggregation would do nothing with model_type text and reward_mode per_step"),
        ({"reward_mode": "terminal", "shaping": "relative"}, "needs reward_mode: per_step"),
        ({"reward_threshold": 0.4}, "reward_threshold would do nothing with shaping raw"),
        ({"splitter": "words"}, "splitter"),
    ],
    ids=str,
)
def test_a_source_that_would_not_do_what_it_says_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        study(sources={"prm": source(**given)})


@pytest.mark.parametrize("given", [{"adapter": "qwen_prm"}, {"micro_batch_size": 4}])
def test_knobs_of_text_mean_nothing_to_robots(given):
    (name,) = given
    with pytest.raises(ConfigError, match=rf"model\.{name} = .*: unknown key; it belongs to model_type: text"):
        validate(Study, {"reward": {"use_reward_model": True, "model": {"checkpoint_path": "x", **given}}}, origin="s")
    for more, message in (
        ({"reward_mode": "per_token"}, "Input should be 'per_step', 'terminal' or 'episode'"),
        ({"shaping": "signed"}, "Input should be 'threshold', 'raw', 'log_odds'"),
        ({"aggregation": "min"}, "aggregation would do nothing with model_type resnet"),
        ({"splitter": "newline"}, "splitter would do nothing"),
    ):
        with pytest.raises(ValidationError, match=message):
            Study.model_validate({"reward": {"use_reward_model": True, "model": {"checkpoint_path": "x"}, **more}})


@cases(
    ("given", "message"),
    [
        ({"sources": {"verifier": source()}}, "cannot be called verifier"),
        ({"sources": {"prime": source()}, "reward_model": {}}, "cannot be called prime"),
        ({"sources": {"exact": source()}, "reward_model": {"rm_type": "exact"}}, "cannot be called exact"),
        (
            {"sources": {"prm": source(reward_weight=2)}, "algorithm": {"normalize_advantages": True}},
            "reward_weight would do nothing",
        ),
        ({"sources": {"prm": source(reward_weight=0)}}, "nothing would train the policy"),
        (
            {"sources": {"prm": source()}, "reward": {"combine_mode": "add"}, "reward_model": {}},
            "combine_mode would do nothing with reward_model",
        ),
        (
            {"sources": {"r": {"model": {"model_type": "resnet", "checkpoint_path": "x"}}}},
            "model_type resnet does not go with policy.type text",
        ),
        (
            {"sources": {"prm": source(reward_mode="per_token")}, "algorithm": {"credit": "min_form"}},
            "min_form needs",
        ),
        (
            {
                "sources": {"prm": source(reward_mode="terminal", aggregation="min")},
                "algorithm": {"rloo_form": "prime_compat"},
            },
            "rloo_form would do nothing without dense rewards",
        ),
    ],
    ids=str,
)
def test_sources_that_do_not_fit_the_rest_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        study(**given)


def test_what_has_an_effect_is_accepted():
    study(sources={"prm": source(reward_weight=2)}, reward={"combine_mode": "add"})
    study(sources={"prm": source(reward_weight=2), "other": source()})
    study(sources={"prm": source(reward_weight=0)}, reward={"combine_mode": "add"})  # watched, not learnt from
    study(sources={"prm": source(shaping="signed")}, algorithm={"credit": "min_form"})
    study(sources={"prm": source()}, reward_model={}, algorithm={"rloo_form": "prime_compat"})
    one = Study.model_validate({**TEXT, "reward": {"use_reward_model": True, **source()}})
    assert list(one.text_sources) == ["text"]
    assert study().text_sources == {}


def test_a_text_model_is_not_for_robots():
    with pytest.raises(ValidationError, match=r"model_type text does not go with policy.type mlp"):
        Study.model_validate({"reward": {"use_reward_model": True, "sources": {"prm": source()}}})


def test_a_study_with_sources_survives_being_written():
    full = study(
        sources={"prm": source(gamma=0.5), "orm": source(reward_mode="terminal", aggregation="last")},
        evaluate={"aggregation": "last", "models": {"hub": "someone/prm"}},
    )
    assert Study.model_validate(to_plain(full)) == full


# The evaluate section.


def test_the_evaluate_section_follows_the_policy():
    assert Study().evaluate.type == "control"
    assert Study.model_validate(TEXT).evaluate is None
    assert study(evaluate={"aggregation": "min", "pairs": "x.jsonl", "attacks": None}).evaluate.generated is None
    with pytest.raises(ConfigError, match=r"evaluate.type control does not go with policy.type text"):
        study(evaluate={"type": "control"})
    assert Study.model_validate({"evaluate": None}).evaluate == Study().evaluate
    with pytest.raises(ConfigError, match="aggregation"):
        study(evaluate={"reps": 100})


def test_a_study_that_names_nothing_to_judge_on_is_judged_on_its_own_family():
    task = {"family": "swap", "steps": 3}
    given = study(data={"task": task}, evaluate={"aggregation": "prod"})
    assert [family.family for family in given.evaluate.generated.families] == ["swap"]
    files = {"type": "files", "train_files": "x.jsonl"}
    with pytest.raises(ConfigError, match="name what to evaluate on"):
        study(data=files, evaluate={"aggregation": "prod"})


def test_models_of_others_are_paths_or_paths_with_an_adapter():
    given = EvaluateTextSettings(
        aggregation="min", pairs="x", models={"a": "someone/prm", "b": {"path": "p", "adapter": "trl"}}
    )
    assert (given.models["a"].path, given.models["a"].adapter) == ("someone/prm", "auto")
    assert given.models["b"].adapter == "trl"
    with pytest.raises(ValidationError, match="save_dir would do nothing without models"):
        EvaluateTextSettings(aggregation="min", pairs="x", save_dir="here")


def test_names_of_what_is_judged():
    assert judged_names(["a"], ["b"], []) == ["a", "b"]
    assert judged_names(["a"], ["b"], ["b"]) == ["b"]
    for train, third, only, message in (
        ([], [], [], "no reward model to evaluate"),
        (["a"], ["a"], [], "also a model of the train section"),
        (["a"], ["b"], ["c"], "--only c: this study has a, b"),
    ):
        with pytest.raises(ConfigError, match=message):
            judged_names(train, third, only)
