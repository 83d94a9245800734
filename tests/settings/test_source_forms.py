"""The three forms of a source of rewards: which keys each has, in which order they are written, what is refused."""

import pytest

from guerdon.config.loading import load, to_plain, validate
from guerdon.settings.remote import RemoteSettings
from guerdon.settings.reward import RewardSettings
from guerdon.settings.reward_models import RemoteModelSettings
from guerdon.settings.reward_source import SOURCE_KEYS, RobotSource, RunSource, TextSource
from guerdon.settings.study import Study
from tables import refuses

MODELS = {
    RobotSource: {"model_type": "resnet", "checkpoint_path": "x"},
    TextSource: {"model_type": "text", "checkpoint_path": "x"},
    RunSource: {"model_type": "prime"},
}
OF_ROBOTS = {
    "score_every", "binary_reward", "success_threshold", "use_rel_reward", "confirm_frames", "ends", "cache",
    "schedule_from", "schedule_to",
}  # fmt: skip
OF_TEXT = {"aggregation", "splitter"}
COUNTING = {"model", "reward_weight", "reward_weight_schedule", "adaptive_weight", "gamma", "on_failure"}


PARTS = """
from guerdon.types import RewardInfo
def make():
    return None
class Text:
    info = RewardInfo(name="text", range=(0.0, 1.0), modality="text")
"""


def one_source(model, **given):
    reward = RewardSettings(use_reward_model=True, sources={"rm": {"model": model, **given}})
    return reward.sources["rm"]


@pytest.mark.parametrize("form", MODELS)
def test_the_form_follows_from_the_model_as_written_and_as_checked(form):
    assert type(one_source(MODELS[form])) is form
    checked = form(model=MODELS[form])
    assert RewardSettings(use_reward_model=True, sources={"rm": checked}).sources["rm"] == checked
    assert type(one_source(checked.model)) is form


@pytest.mark.parametrize(
    ("model", "form"),
    [
        ({"model_type": "remote"}, RobotSource),
        ({"model_type": "remote_text", "endpoint": "http://here/v1/rewards"}, TextSource),
        ({"model_type": "tests_parts:make", "modality": "text"}, TextSource),
        ({"model_type": "tests_parts:make"}, RobotSource),
        ({"model_type": "tests_parts:Text"}, TextSource),
        ({"model_type": "exact"}, RunSource),
    ],
)
def test_a_name_that_two_forms_have_is_told_apart(model, form, tmp_path, monkeypatch):
    (tmp_path / "tests_parts.py").write_text(PARTS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert type(one_source(model)) is form


def test_each_form_has_its_keys_and_no_others():
    assert set(RunSource.model_fields) == COUNTING
    assert set(SOURCE_KEYS) == set(RobotSource.model_fields) | set(TextSource.model_fields)
    assert set(RobotSource.model_fields) == set(SOURCE_KEYS) - OF_TEXT
    assert set(TextSource.model_fields) == set(SOURCE_KEYS) - OF_ROBOTS


@pytest.mark.parametrize("form", MODELS)
def test_keys_are_written_in_one_order(form):
    written = list(to_plain(form(model=MODELS[form])))
    assert written == [key for key in SOURCE_KEYS if key in written]
    assert {"model", "reward_weight", "gamma"} <= set(written)


@pytest.mark.parametrize("form", MODELS)
def test_a_key_of_another_form_is_refused_and_null_counts_as_not_given(form):
    others = set(SOURCE_KEYS) - set(form.model_fields)
    assert others
    for key in others:
        with refuses(key):
            one_source(MODELS[form], **{key: 1})
    assert one_source(MODELS[form], **dict.fromkeys(others)) == one_source(MODELS[form])


@pytest.mark.parametrize("form", MODELS)
def test_a_form_refuses_a_model_of_another(form):
    for other in MODELS.keys() - {form}:
        with refuses("model"):
            form(model=MODELS[other])


@pytest.mark.parametrize("mode", [None, "episode"])
def test_an_endpoint_that_scores_videos_judges_whole_episodes(mode):
    remote = RemoteSettings(endpoint="http://here/score")
    given = {} if mode is None else {"reward_mode": mode}
    for model in (RemoteModelSettings(remote=remote), {"model_type": "remote", "remote": remote}):
        assert one_source(model, **given).reward_mode == "episode"
        with refuses("reward_mode"):
            one_source(model, reward_mode="per_step")


def test_a_change_between_two_moments_is_paid_where_single_moments_are_scored():
    each = one_source(MODELS[RobotSource], reward_mode="per_step", use_rel_reward=True)
    whole = one_source(MODELS[RobotSource], reward_mode="episode", use_rel_reward=True)
    assert (each.shaping, whole.shaping) == ("relative", one_source(MODELS[RobotSource]).shaping)


@pytest.mark.parametrize(("path", "origin"), [(None, "the policy's start"), ("weights", "weights")])
def test_a_model_that_is_made_in_a_run_says_where_it_starts(path, origin):
    source = one_source({"model_type": "prime", "prime_model": {"path": path}})
    assert source.model.origin == origin
    assert not source.can_overlap


def test_what_changes_over_the_run_is_named_by_its_keys():
    source = {"model": MODELS[TextSource], "reward_weight_schedule": "linear_decay"}
    given = {
        "policy": {"type": "text", "tiny": {}},
        "data": {},
        "reward": {"use_reward_model": True, "sources": {"rm": source}},
    }
    assert validate(Study, given, origin="s").schedules == ["reward.sources.rm.reward_weight_schedule"]
    short = {**given, "reward": {}, "reward_model": {"rm_type": "prime", "rm_coef_schedule": "linear_warmup"}}
    study = validate(Study, short, origin="s")
    assert study.schedules == ["reward_model.rm_coef_schedule"]
    assert study.source is None


def test_a_misspelled_key_is_named_with_the_nearest_one():
    given = {"use_reward_model": True, "sources": {"rm": {"model": MODELS[TextSource], "agregation": "min"}}}
    with refuses("reward.sources.rm.agregation", r"unknown key; did you mean reward\.sources\.rm\.aggregation\?"):
        validate(Study, {"policy": {"type": "text", "tiny": {}}, "data": {}, "reward": given}, origin="s")


def test_a_key_of_a_model_for_text_is_named_where_no_model_type_is_given():
    given = {"use_reward_model": True, "sources": {"rm": {"model": {"checkpoint_path": "x", "adapter": "trl"}}}}
    with refuses(
        "reward.sources.rm.model.adapter", r"model\.adapter = 'trl': unknown key; it belongs to model_type: text"
    ):
        validate(Study, {"reward": given}, origin="s")


def test_a_file_of_an_earlier_version_with_a_key_of_robots_that_is_null_is_read(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "policy: {type: text, tiny: {}}\ndata: {}\nreward:\n  use_reward_model: true\n  sources:\n    rm:\n"
        "      model: {model_type: text, checkpoint_path: x}\n      shaping: raw\n      cache: null\n",
        encoding="utf-8",
    )
    assert load(Study, path).text_sources["rm"] == TextSource(model=MODELS[TextSource], shaping="raw")


def test_a_model_of_ones_own_in_a_study_of_a_language_model_judges_text(tmp_path, monkeypatch):
    (tmp_path / "more_parts.py").write_text(PARTS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    model = {"model": {"model_type": "more_parts:make"}, "shaping": "raw"}
    for reward in (model, {"sources": {"make": model}}):
        given = {"policy": {"type": "text", "tiny": {}}, "data": {}, "reward": {"use_reward_model": True, **reward}}
        assert type(validate(Study, given, origin="s").text_sources["make"]) is TextSource
