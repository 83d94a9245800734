"""The keys of a remote reward model: the LIBERO guide's under their names, and what is refused, with a reason."""

import pytest

from guerdon.config.loading import validate
from guerdon.errors import ConfigError
from guerdon.serve.client import AsyncRewardClient, RewardClient
from guerdon.settings.remote import RemoteSettings, remote_at
from guerdon.settings.reward_models import RemoteModelSettings
from tables import cases, refuses

URL = "http://127.0.0.1:9"
GUIDE = {  # env.train.reward_model of the guide's runs B and C
    "endpoint": "http://127.0.0.1:18080/score", "timeout": 120, "nframes": 16, "max_pixels": 200704,
    "backend": "PRIMO-R1", "backend_kwargs": {"score_mode": "auto"}, "fail_on_request_error": True,
}  # fmt: skip


def refused(key, words, **given):
    with refuses(key) as found:
        RemoteSettings.model_validate(given)
    assert words in str(found.value)


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
    refused("endpoint", words, endpoint=endpoint)


@cases(
    ("given", "key", "words"),
    [
        ({"nframes": 0}, "nframes", ""), ({"nframes": 129}, "nframes", ""), ({"max_pixels": 783}, "max_pixels", ""),
        ({"timeout": 0}, "timeout", ""), ({"nframe": 3}, "nframe", ""), ({"fps": 8}, "fps", ""),
        ({"temp_video_dir": "/tmp/x"}, "temp_video_dir", "would do nothing with upload npy, which writes no video"),
        ({"upload": "mp4", "temp_video_dir": "/tmp/x"}, "temp_video_dir", "unless keep_temp_video"),
        ({"upload": "mp4", "keep_temp_video": True}, "keep_temp_video", "needs temp_video_dir"),
        ({"upload": "path"}, "upload", "upload path needs temp_video_dir"),
        ({"backend_kwargs": {"prompt_template": "say 1"}}, "backend_kwargs.prompt_template", "does not send one"),
        ({"backend_kwargs": {"system_prompt": "x"}}, "backend_kwargs.system_prompt", ""),
        ({"backend_kwargs": {"score_mode": "stars"}}, "backend_kwargs.score_mode", "allowed: auto, percentage, unit"),
        ({"backend_kwargs": {"prompt": 3}}, "backend_kwargs.prompt", "allowed: a name"),
        ({"backend_kwargs": {"other": "x"}}, "backend_kwargs.other", "is not known"),
        ({"max_batch_items": 4}, "max_batch_items", "which takes one episode per request"),
        ({"fail_on_request_error": True, "fallback": "native"}, "fail_on_request_error", "exclude each other"),
        ({"fallback": "zero"}, "fallback", ""),
    ],
)  # fmt: skip
def test_knobs_that_would_do_nothing_or_harm_are_refused(given, key, words):
    refused(key, words, **given)


def test_python_callers_are_told_what_is_wrong_as_files_are():
    with refuses("time_out"):
        RemoteSettings(endpoint=URL, time_out=3)
    with refuses("timeout"):
        RemoteSettings(timeout=0)
    with refuses("endpoint"):
        RewardClient("127.0.0.1:18080")
    with pytest.raises(ConfigError, match=r"^h/score: endpoint is 'h/score'") as refused:
        remote_at("h/score")
    assert refused.value.key == "endpoint"
    with refuses("remote.time_out"):
        validate(RemoteModelSettings, {"model_type": "remote", "remote": {"time_out": 3}}, origin="f.yaml")


@cases("client", [RewardClient, AsyncRewardClient])
def test_settings_stand_beside_an_address(client):
    made = client(URL, timeout=3, backend="prm")
    assert made.settings == RemoteSettings(endpoint=URL, timeout=3, backend="prm")
    with refuses("timeout"):
        client(URL, timeout=0)
    with pytest.raises(ConfigError, match="timeout is a setting: change the RemoteSettings") as refused:
        client(RemoteSettings(endpoint=URL), timeout=3)
    assert refused.value.key == "timeout"


@cases("client", [RewardClient, AsyncRewardClient])
@cases(
    ("given", "words"),
    [
        ({"time_out": 3}, r"has no argument 'time_out'; did you mean timeout\?"),
        ({"zzz": 3}, "^the reward client has no argument 'zzz'$"),
        ({"toke": "a-long-secret"}, r"^the reward client has no argument 'toke'; did you mean token\?$"),
        ({"api_token": "a-long-secret"}, "^(?!.*secret)the reward client has no argument 'api_token'"),
    ],
)
def test_unknown_arguments_are_refused_without_their_values(client, given, words):
    for address in (URL, RemoteSettings(endpoint=URL)):
        with pytest.raises(ConfigError, match=words) as refused:
            client(address, **given)
        assert refused.value.key == next(iter(given))
