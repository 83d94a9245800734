"""The keys of a remote reward model: the LIBERO guide's under their names, and what is refused, with a reason."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from guerdon.config.loading import load, to_plain, validate
from guerdon.errors import ConfigError
from guerdon.rewards.control_sources import ControlReward
from guerdon.rewards.source import SourceTerms
from guerdon.serve.client import AsyncRewardClient, RewardClient, load_remote
from guerdon.settings.remote import RemoteSettings, remote_at
from guerdon.settings.reward import RewardSettings
from guerdon.settings.reward_models import RemoteModelSettings
from guerdon.settings.study import Study
from guerdon.types import RewardInfo
from tables import cases

URL = "http://127.0.0.1:9"
GUIDE = {  # env.train.reward_model of the guide's runs B and C
    "endpoint": "http://127.0.0.1:18080/score", "timeout": 120, "nframes": 16, "max_pixels": 200704,
    "backend": "PRIMO-R1", "backend_kwargs": {"score_mode": "auto"}, "fail_on_request_error": True,
}  # fmt: skip


def refused(words, model=RemoteSettings, **given):
    with pytest.raises(ValidationError, match=words):
        model.model_validate(given)


def test_defaults_are_the_guides():
    s = RemoteSettings()
    assert (s.endpoint, s.timeout, s.nframes, s.max_pixels) == ("http://127.0.0.1:18080/score", 120.0, 16, 200704)
    assert (s.backend, s.backend_kwargs, s.fps, s.fail_on_request_error) == (None, {}, 4, False)
    assert (s.keep_temp_video, s.temp_video_dir, s.fallback) == (False, None, "none")
    assert (s.connect_timeout, s.read_timeout, s.tries) == (2.0, 60.0, 8)


@pytest.mark.parametrize(
    ("endpoint", "form", "base"),
    [
        ("http://h:1/score", "score", "http://h:1"), ("http://h:1/score/", "score", "http://h:1"),
        ("http://h:1", "native", "http://h:1"), ("https://h/v1/rewards", "native", "https://h"),
        ("http://[::1]:5/v1", "native", "http://[::1]:5"), ("http://h:1/", "native", "http://h:1"),
    ],
)  # fmt: skip
def test_the_route_says_which_protocol(endpoint, form, base):
    s = RemoteSettings(endpoint=endpoint)
    assert (s.form, s.base) == (form, base)


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("127.0.0.1:18080/score", "not an address"), ("ftp://h/score", "not an address"),
        ("http:///score", "not an address"),
        ("http://me:secret@h/score", "does not belong into an address"), ("http://h/score?x=1", "more than a path"),
        ("http://h/v1/chat/completions", "not a route that is known"), ("http://h/scores", "not a route"),
    ],
)  # fmt: skip
def test_addresses_that_are_none(endpoint, words):
    refused(words, endpoint=endpoint)


@cases(
    ("given", "words"),
    [
        ({"nframes": 0}, "greater than or equal"), ({"nframes": 129}, "less than or equal"),
        ({"max_pixels": 783}, "greater than or equal"), ({"timeout": 0}, "greater than"), ({"nframe": 3}, "Extra"),
        ({"fps": 8}, "fps would do nothing with upload npy"),
        ({"temp_video_dir": "/tmp/x"}, "temp_video_dir would do nothing with upload npy"),
        ({"upload": "mp4", "temp_video_dir": "/tmp/x"}, "unless keep_temp_video"),
        ({"upload": "mp4", "keep_temp_video": True}, "keep_temp_video needs temp_video_dir"),
        ({"upload": "path"}, "upload path needs temp_video_dir"),
        ({"backend_kwargs": {"prompt_template": "say 1"}}, "does not send one"),
        ({"backend_kwargs": {"system_prompt": "x"}}, "names a prompt of the server"),
        ({"backend_kwargs": {"score_mode": "stars"}}, "'stars'; allowed: auto, percentage, unit"),
        ({"backend_kwargs": {"prompt": 3}}, "allowed: a name"), ({"backend_kwargs": {"other": "x"}}, "is not known"),
        ({"max_batch_items": 4}, "which takes one episode per request"),
        ({"fail_on_request_error": True, "fallback": "native"}, "exclude each other"),
        ({"fallback": "zero"}, "native"),
    ],
)  # fmt: skip
def test_knobs_that_would_do_nothing_or_harm_are_refused(given, words):
    refused(words, **given)


def test_python_callers_are_told_what_is_wrong_as_files_are():
    with pytest.raises(ConfigError, match=r"time_out = 3: unknown key; did you mean timeout\?"):
        RemoteSettings(endpoint=URL, time_out=3)
    with pytest.raises(ConfigError, match="timeout is 0; allowed: greater than 0"):
        RemoteSettings(timeout=0)
    with pytest.raises(ConfigError, match="is not an address"):
        RewardClient("127.0.0.1:18080")
    with pytest.raises(ConfigError, match=r"^h/score: endpoint is 'h/score'"):
        remote_at("h/score")
    with pytest.raises(ConfigError, match=r"f.yaml: remote.time_out = 3: unknown key; did you mean remote.timeout\?"):
        validate(RemoteModelSettings, {"model_type": "remote", "remote": {"time_out": 3}}, origin="f.yaml")


@cases("client", [RewardClient, AsyncRewardClient, load_remote])
@cases(
    ("given", "words"),
    [
        ({"time_out": 3}, r"has no argument 'time_out'; did you mean RemoteSettings\(timeout=...\)\?"),
        ({"timeout": 3}, r"timeout is a setting, not an argument of the reward client: RemoteSettings\(timeout=...\)"),
        ({"upload": "path", "temp_video_dir": "v"}, "upload is a setting"),
        ({"endpoint": URL}, "endpoint is a setting"),
        ({"zzz": 3}, "^the reward client has no argument 'zzz'$"),
        ({"toke": "a-long-secret"}, r"^the reward client has no argument 'toke'; did you mean token\?$"),
        ({"api_token": "a-long-secret"}, "^(?!.*secret)the reward client has no argument 'api_token'"),
    ],
)  # fmt: skip
def test_settings_beside_the_address_are_told_where_they_belong(client, given, words):
    for address in (URL, RemoteSettings(endpoint=URL)):
        if isinstance(address, RemoteSettings) or client is not load_remote:
            with pytest.raises(ConfigError, match=words):
                client(address, **given)


def test_the_guides_keys_stand_under_model_or_under_remote():
    flat = RemoteModelSettings.model_validate({"model_type": "remote", **GUIDE})
    nested = RemoteModelSettings.model_validate({"model_type": "remote", "remote": GUIDE})
    assert flat == nested
    assert flat.remote.nframes == 16
    assert flat.origin == flat.remote.address == GUIDE["endpoint"] + "?model=PRIMO-R1"
    assert remote_at("http://h:1/v1/rewards?model=prm") == RemoteSettings(
        endpoint="http://h:1/v1/rewards", backend="prm"
    )
    assert RemoteModelSettings(model_type="remote").remote == RemoteSettings()
    refused("given next to remote", RemoteModelSettings, model_type="remote", remote=GUIDE, nframes=3)


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ({"model_type": "constant", "remote": {}}, "remote = a map: unknown key; it belongs to model_type: remote"),
        ({"model_type": "remote", "value": 0.5}, "value = 0.5: unknown key; it belongs to model_type: constant"),
        (
            {"model_type": "remote", "update": "after", "replay_path": "x"},
            "update = 'after': unknown key; it belongs to model_type: resnet or model_type: progress",
        ),
        ({"checkpoint_path": "x", "value": 0.5}, "value = 0.5: unknown key; it belongs to model_type: constant"),
        ({"model_type": "resnet", "checkpont_path": "x"}, "unknown key; did you mean reward.model.checkpoint_path?"),
    ],
)
def test_a_key_of_another_kind_of_model_is_unknown_and_says_whose_it_is(model, line):
    with pytest.raises(ConfigError) as caught:
        validate(Study, {"reward": {"use_reward_model": True, "model": model}}, origin="f.yaml")
    assert f"f.yaml: reward.model.{line}" in str(caught.value) or line in str(caught.value)


def source(**given):
    model = given.pop("model", {"model_type": "remote", "endpoint": URL})
    return RewardSettings(use_reward_model=True, sources={"rm": {"model": model, **given}}).sources["rm"]


def test_the_guides_words_become_ours():
    guide = source(
        model={"model_type": "remote", **GUIDE}, binary_reward=True, success_threshold=0.5, reward_coef=5.0,
        use_rel_reward=True,
    )  # fmt: skip
    assert (guide.reward_mode, guide.shaping, guide.on_failure, guide.reward_coef) == (
        "episode", "threshold", "raise", 5.0,
    )  # fmt: skip
    assert source(reward_mode="episode", binary_reward=False).shaping == "raw"
    assert source(reward_mode="per_step", use_rel_reward=True).shaping == "relative"
    assert source(reward_mode="per_step", use_rel_reward=True, binary_reward=False).shaping == "relative"
    assert source(reward_mode="per_step", use_rel_reward=False).shaping == "threshold"


@cases(
    ("given", "words"),
    [
        ({"binary_reward": True, "shaping": "raw"}, "shaping raw contradicts binary_reward: true"),
        ({"binary_reward": True, "use_rel_reward": True, "reward_mode": "per_step"}, "exclude each other"),
        ({"success_threshold": 0.5, "reward_threshold": 0.5}, "give one of the two"),
        ({"success_threshold": 0.5, "shaping": "raw"}, "success_threshold would do nothing"),
        ({"use_rel_reward": True}, "use_rel_reward needs reward_mode per_step or episode"),
        ({"reward_mode": "episode", "shaping": "relative"}, "episode gives one value per episode"),
        ({"model": {"model_type": "remote", "endpoint": URL + "/score"}, "reward_mode": "per_step"}, "whole episodes"),
        ({"model": {"model_type": "remote", "fail_on_request_error": True}, "on_failure": "drop"}, "contradicts fail"),
        ({"model": {"model_type": "remote", "fallback": "native"}, "on_failure": "drop"}, "fallback native is not"),
        ({"model": {"model_type": "remote_text", "endpoint": URL}, "reward_mode": "episode"}, "or 'per_token'"),
        ({"model": {"model_type": "remote_text"}}, "text needs one /v1/rewards"),
        ({"model": {"model_type": "remote_text", "endpoint": URL}, "binary_reward": True}, "would do nothing with mod"),
    ],
)  # fmt: skip
def test_words_that_contradict_each_other_are_refused(given, words):
    with pytest.raises(ValidationError, match=words):
        source(**given)


class Never:
    info = RewardInfo(name="never", range=(0.0, 1.0), success_threshold=0.9)


@given(st.floats(0, 1))
def test_the_guides_threshold_counts_equality_as_success_and_ours_does_not(threshold):
    from guerdon.rewards.shaping import threshold_reward

    for key, at_threshold in (("success_threshold", 1.0), ("reward_threshold", 0.0)):
        settings = source(**{key: threshold})
        limit = ControlReward(SourceTerms("rm"), Never(), settings, num_envs=1).threshold
        at, above = np.array([threshold]), np.array([threshold + 1e-6])
        assert threshold_reward(at, threshold=limit, success=1.0, fail=0.0).tolist() == [at_threshold]
        assert threshold_reward(above, threshold=limit, success=1.0, fail=0.0).tolist() == [1.0]
        if key == "success_threshold":
            rounded = np.array([np.float32(threshold)]).astype(np.float64)
            assert threshold_reward(rounded, threshold=limit, success=1.0, fail=0.0).tolist() == [1.0]
            below = np.array([threshold - 1e-6])
            assert threshold_reward(below, threshold=limit, success=1.0, fail=0.0).tolist() == [0.0]


def test_a_study_with_the_guides_words_survives_being_written_and_read(tmp_path):
    reward = {
        "use_reward_model": True, "model": {"model_type": "remote", **GUIDE}, "binary_reward": True,
        "success_threshold": 0.5, "reward_coef": 5.0, "use_rel_reward": True,
    }  # fmt: skip
    study = validate(Study, {"policy": {"type": "mlp"}, "reward": reward}, origin="here")
    assert validate(Study, to_plain(study), origin="again") == study
    assert list(study.reward.sources) == ["remote"]
    (tmp_path / "study.yaml").write_text("policy: {type: mlp}\n")
    path = "reward.sources.vlm.model"
    loaded = load(
        Study, tmp_path / "study.yaml",
        ["reward.use_reward_model=true", f"{path}.model_type=remote", f"{path}.endpoint={URL}", f"{path}.nframes=8"],
    )  # fmt: skip
    assert loaded.reward.sources["vlm"].model.remote.nframes == 8


def test_language_models_and_robots_say_which_they_mean():
    robots = {"use_reward_model": True, "model": {"model_type": "remote_text", "endpoint": URL}, "shaping": "raw"}
    with pytest.raises(ValidationError, match="does not go with policy"):
        Study.model_validate({"policy": {"type": "mlp"}, "reward": robots})
    assert RewardSettings.model_validate(robots).sources["remote_text"].text
