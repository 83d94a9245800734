"""The `reward` and `evaluate` sections of language studies: what they mean, and what they refuse."""

import pytest

from guerdon.config.loading import to_plain, validate
from guerdon.settings.evaluate import EvaluateTextSettings, judged_names
from guerdon.settings.study import Study
from tables import cases, refuses

TEXT = {"policy": {"type": "text", "tiny": {}}, "data": {}}
MODEL = {"model_type": "text", "checkpoint_path": "prm"}


def study(*, reward=None, sources=None, **given):
    if sources is not None:
        given["reward"] = {"use_reward_model": True, "sources": sources, **(reward or {})}
    return validate(Study, {**TEXT, **given}, origin="study.yaml")


def source(**given):
    return {"model": MODEL, "reward_mode": "per_step", "shaping": "raw", **given}


@cases(
    ("given", "key"),
    [
        (
            {"model": {**MODEL, "arch": "resnet18"}},
            "reward.sources.prm.model.arch",
        ),
        ({"model": {**MODEL, "value": 0.5}}, "reward.sources.prm.model.value"),
        ({"model": {"model_type": "text"}}, "reward.sources.prm.model.checkpoint_path"),
        ({"model": {**MODEL, "update": "after"}}, "reward.sources.prm.model.update"),
        ({"shaping": "potential"}, "reward.sources.prm.shaping"),
        ({"shaping": "bonus"}, "reward.sources.prm.shaping"),
        ({"cache": {}}, "reward.sources.prm.cache"),
        ({"score_every": 2}, "reward.sources.prm.score_every"),
        ({"aggregation": "min"}, "reward.sources.prm.aggregation"),
        ({"reward_mode": "terminal", "shaping": "relative"}, "reward.sources.prm.shaping"),
        ({"reward_threshold": 0.4}, "reward.sources.prm.reward_threshold"),
        ({"splitter": "words"}, "reward.sources.prm.splitter"),
    ],
    ids=str,
)
def test_a_source_that_would_not_do_what_it_says_is_refused(given, key):
    with refuses(key):
        study(sources={"prm": source(**given)})


@pytest.mark.parametrize("given", [{"adapter": "qwen_prm"}, {"micro_batch_size": 4}])
def test_knobs_of_text_mean_nothing_to_robots(given):
    (name,) = given
    with refuses(f"reward.model.{name}"):
        validate(Study, {"reward": {"use_reward_model": True, "model": {"checkpoint_path": "x", **given}}}, origin="s")
    for key, value in {
        "reward_mode": "per_token",
        "shaping": "signed",
        "aggregation": "min",
        "splitter": "newline",
    }.items():
        given = {"use_reward_model": True, "model": {"checkpoint_path": "x"}, key: value}
        with refuses(f"reward.{key}"):
            validate(Study, {"reward": given}, origin="s")


@cases(
    ("given", "key"),
    [
        ({"sources": {"verifier": source()}}, "reward.sources.verifier"),
        ({"sources": {"prime": source()}, "reward_model": {}}, "reward.sources.prime"),
        ({"sources": {"exact": source()}, "reward_model": {"rm_type": "exact"}}, "reward.sources.exact"),
        (
            {"sources": {"prm": source(reward_weight=2)}, "algorithm": {"normalize_advantages": True}},
            "reward.sources.prm.reward_weight",
        ),
        ({"sources": {"prm": source(reward_weight=0)}}, "reward.combine_mode"),
        (
            {"sources": {"prm": source()}, "reward": {"combine_mode": "add"}, "reward_model": {}},
            "reward.combine_mode",
        ),
        (
            {"sources": {"r": {"model": {"model_type": "resnet", "checkpoint_path": "x"}}}},
            "reward.sources.r",
        ),
        (
            {"sources": {"prm": source(reward_mode="per_token")}, "algorithm": {"credit": "min_form"}},
            "algorithm.credit",
        ),
        (
            {
                "sources": {"prm": source(reward_mode="terminal", aggregation="min")},
                "algorithm": {"rloo_form": "prime_compat"},
            },
            "algorithm.rloo_form",
        ),
    ],
    ids=str,
)
def test_sources_that_do_not_fit_the_rest_are_refused(given, key):
    with refuses(key):
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
    with refuses("reward.sources.prm"):
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
    with refuses("evaluate.type"):
        study(evaluate={"type": "control"})
    assert Study.model_validate({"evaluate": None}).evaluate == Study().evaluate
    with refuses("evaluate.aggregation"):
        study(evaluate={"reps": 100})


def test_a_study_that_names_nothing_to_judge_on_is_judged_on_its_own_family():
    task = {"family": "swap", "steps": 3}
    given = study(data={"task": task}, evaluate={"aggregation": "prod"})
    assert [family.family for family in given.evaluate.generated.families] == ["swap"]
    files = {"type": "files", "train_files": "x.jsonl"}
    with refuses("evaluate", "name what to evaluate on"):
        study(data=files, evaluate={"aggregation": "prod"})


def test_models_of_others_are_paths_or_paths_with_an_adapter():
    given = EvaluateTextSettings(
        aggregation="min", pairs="x", models={"a": "someone/prm", "b": {"path": "p", "adapter": "trl"}}
    )
    assert (given.models["a"].path, given.models["a"].adapter) == ("someone/prm", "auto")
    assert given.models["b"].adapter == "trl"
    with refuses("save_dir"):
        EvaluateTextSettings(aggregation="min", pairs="x", save_dir="here")


def test_names_of_what_is_judged():
    assert judged_names(["a"], ["b"], []) == ["a", "b"]
    assert judged_names(["a"], ["b"], ["b"]) == ["b"]
    for train, third, only, key, message in (
        ([], [], [], "evaluate.models", "no reward model to evaluate"),
        (["a"], ["a"], [], "evaluate.models", "also a model of the train section"),
        (["a"], ["b"], ["c"], "--only", "--only c: this study has a, b"),
    ):
        with refuses(key, message):
            judged_names(train, third, only)
