"""Keys as people copy them, and which text gives a secret away."""

import asyncio
import base64
import json
import logging
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from urllib.parse import quote

import httpx2
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from child import environment
from echo_server import forms
from guerdon import secrets
from guerdon.config.loading import api_key, load, to_yaml
from guerdon.errors import ConfigError
from guerdon.network.hub import use_token
from guerdon.network.retry import check_proxies, read_reply
from guerdon.secrets import HIDDEN, clean_key, hide, remember, remember_environment
from guerdon.serve.logs import CountingHandler
from guerdon.settings.remote import RemoteSettings
from guerdon.settings.serve import ServeSettings
from tables import cases, refuses

KEY = "sk-proj-A1b2C3d4E5f6"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    monkeypatch.setattr(secrets, "_known", set())
    monkeypatch.setattr(secrets, "_marks", ())


@pytest.mark.parametrize(
    "given",
    [
        KEY, f"{KEY}\n", f"\r\n{KEY} \t", f'"{KEY}"', f"'{KEY}'", f"“{KEY}”", f"‘{KEY}’", f"`{KEY}`", f"\ufeff{KEY}",
        f"\u200b{KEY}\u200b", f"\xa0{KEY}", f"Bearer {KEY}", f"bearer  {KEY}\n", f'"Bearer {KEY}"', f"Bearer '{KEY}'",
        f"Authorization: Bearer {KEY}", f"MINE={KEY}", f'MINE="{KEY}"', f"Bearer Bearer {KEY}",
    ],
)  # fmt: skip
def test_what_copying_adds_to_a_key_is_taken_off(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINE", given.replace("\0", ""))
    assert api_key("MINE") == KEY
    monkeypatch.delenv("MINE")
    (tmp_path / ".env").write_text(f"export MINE={given.strip()}\n")
    assert api_key("MINE") == KEY


@pytest.mark.parametrize("key", ["a=b==", "x/y+z=", "EMPTY", "bearer-token-1", "Basic abc", "o'neil", "k"])
def test_a_key_that_is_plain_stays_as_it_is(key):
    assert clean_key(key, "MINE") == key


@pytest.mark.parametrize("given", ["", " ", "\n", '""', "Bearer ", "Bearer", "' '", "“”", "MINE="])
def test_an_empty_key_is_none(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINE", given)
    with pytest.raises(ConfigError, match=r"^MINE is not set \(it is empty\): export it"):
        api_key("MINE")
    assert api_key("MINE", required=False) is None
    (tmp_path / ".env").write_text(f"MINE={KEY}\n")
    assert api_key("MINE") == KEY


@pytest.mark.hostile("secrets")
@pytest.mark.parametrize(
    ("wrong", "word"),
    [("\n", "a line break"), ("\r\n", "a line break"), ("“", "U+201C"), ("é", "U+00E9"), ("\t", "U+0009"),
     ("\u200b", "U+200B"), ("…", "U+2026"), ("\x7f", "U+007F"), ("\udcff", "U+DCFF"), ("–", "U+2013")],
)  # fmt: skip
def test_a_key_that_no_header_can_have_is_refused_by_the_name_of_its_variable(wrong, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINE", f"sk-first{wrong}second9")
    for required in (True, False):
        with pytest.raises(ConfigError, match=r"^MINE contains ") as refused:
            api_key("MINE", required=required)
        message = str(refused.value)
        assert word in message
        assert "\n" not in message
        assert "first" not in message
        assert "second9" not in message


@pytest.mark.hostile("secrets")
def test_the_token_of_a_server_is_checked_too():
    models = {"m": {"backend": "constant"}}
    assert ServeSettings(models=models, token=' "Bearer tok-12345678"\n').token == "tok-12345678"
    with refuses("token", "token contains a line break") as refused:
        load(ServeSettings, None, ["models={m: {backend: constant}}", 'token="tok-1234\\n5678-abc"'])
    assert "5678" not in str(refused.value)


@pytest.mark.hostile("secrets")
@given(st.text(LETTERS + "-_/+=.@:!$&#%", min_size=20, max_size=80).filter(secrets._is_plain_secret), st.text())
def test_every_form_of_a_secret_is_hidden(secret, around):
    secrets._known, secrets._marks = set(), ()
    remember({"password": secret})
    encoded = [base64.b64encode(f"{before}{secret}".encode()).decode() for before in ("", "u", "us")]
    for form in (secret, quote(secret, ""), json.dumps(secret)[1:-1], secret.replace("/", "\\/"), *encoded):
        hidden = hide(f"{around} {form} {around}")
        assert form not in hidden
        assert HIDDEN in hidden
    nested = hide({"error": [{"message": f"wrong {secret}"}, 3, None], secret: secret})
    assert secret not in str(nested)
    assert nested["error"][1:] == [3, None]


@pytest.mark.hostile("secrets")
@given(st.text(), st.sampled_from(["EMPTY", "none", "key", "test-key", "not-needed", "step", "1234", "12345678", "x"]))
def test_a_key_that_is_a_word_or_a_number_mangles_no_text(text, word):
    secrets._known, secrets._marks = set(), ()
    clean_key(word, "MINE")
    for said in (f"The {word} is {text} {word}s", f"{word}", f'{{"{word}": "{word}"}}', f"= {word}. keys: {text}"):
        assert hide(said) == said


@pytest.mark.hostile("secrets")
def test_keys_of_other_programs_in_the_environment_are_hidden(monkeypatch, tmp_path):
    key_file = tmp_path / "key_1234567.pem"
    key_file.touch()
    for name, value in {"GITHUB_TOKEN": "ghp_planted_0001", "MY_SSH_KEY": str(key_file), "TOKEN": "a_word"}.items():
        monkeypatch.setenv(name, value)
    remember_environment()
    assert hide(f"ghp_planted_0001 in {key_file}, a_word") == f"(hidden) in {key_file}, a_word"


@pytest.mark.hostile("secrets")
@cases("said", [
    "Authorization: Bearer {}", "bearer {}", "Incorrect API key provided: {}.", "api_key={}", '"x-api-key": "{}"',
    "password: {}", "{{'Authorization': 'Bearer {}'}}",
])  # fmt: skip
@cases("word", ["EMPTY", "not-needed", "12345678", "hunter"])
def test_where_a_short_key_stands_as_a_key_it_is_hidden(said, word):
    clean_key(word, "MINE")
    assert hide(said.format(word)) == said.format(HIDDEN)
    assert hide(said.format(f"{word}ness")) == said.format(f"{word}ness")


@pytest.mark.hostile("secrets")
@cases(
    ("setting", "text", "hidden"),
    [
        ({"base_url": "https://me:pass@host/v1"}, "at https://me:pass@host/v1: pass",
         "at https://(hidden)@host/v1: pass"),
        ({"base_url": "https://me:pass@host"}, f"Basic {base64.b64encode(b'me:pass').decode()}", "Basic (hidden)"),
        ({"base_url": "https://me:p%40ss-w0rd@host"}, "wrong p@ss-w0rd, p%40ss-w0rd", "wrong (hidden), (hidden)"),
        ({"endpoint": "me:pass@host:80"},
         "'me:pass@host:80' is not an address", "'(hidden)@host:80' is not an address"),
        ({"base_url": "https://tok_1234567@host"}, "user tok_1234567", "user (hidden)"),
        ({"base_url": "http://h/v1?key=abc&api-version=2024-10-21"}, "/v1?key=abc&api-version=2024-10-21",
         "/v1?key=(hidden)&api-version=2024-10-21"),
        ({"base_url": "http://h/v1?sig=zz%2F99%2Bzz99"}, "zz/99+zz99 zz%2f99%2bzz99", "(hidden) (hidden)"),
        ({"extra_body": {"api_key": "qwe"}}, '{"api_key": "qwe", "n": "qwe"}', '{"api_key": "(hidden)", "n": "qwe"}'),
        ({"headers": [{"X-Goog-Api-Key": "g00gle-key-1"}]}, "g00gle-key-1", "(hidden)"),
        ({"HTTPS_PROXY": "me:pr0xy-pass@proxy:3128"}, "proxy me:pr0xy-pass@proxy:3128", "proxy (hidden)@proxy:3128"),
        # no secrets
        ({"base_url": "http://localhost:8000/v1"}, "http://localhost:8000/v1", "http://localhost:8000/v1"),
        ({"eos_token": "<|end|>", "max_tokens": "12345678a"}, "<|end|> 12345678a", "<|end|> 12345678a"),
        ({"api_key_env": "MY_KEY_NAME_1"}, "MY_KEY_NAME_1 is not set", "MY_KEY_NAME_1 is not set"),
        ({"prompt": "write to me@home-address1.org"}, "me@home-address1.org", "me@home-address1.org"),
        ({"success_key": "is_success_1"}, "is_success_1", "is_success_1"),
        ({"key": "observation.images.image2"}, "observation.images.image2", "observation.images.image2"),
        ({"token": "<|reward_7|>"}, "token: <|reward_7|>", "token: <|reward_7|>"),
        ({"extra_body": {"token": "Short"}}, "token: Short, pad_token: Short", "token: (hidden), pad_token: Short"),
        ({"password": "short"}, "a basic short test", "a basic short test"),
        ({"password": "my-vllm-server-secret-key"}, "http://my-vllm-server:80/v1", "http://my-vllm-server:80/v1"),
        ({"HTTPS_PROXY": "http://jsmith1985:pr0xy-pass@p"}, "/home/jsmith1985/runs", "/home/jsmith1985/runs"),
        ({"prompt": "jane1985@home.org, see https://h/"}, "jane1985@home.org", "jane1985@home.org"),
        ({"url": "ssh://git@host/x"}, "git@host", "git@host"),
        ({"base_url": "http://h?keyword=robot-arm-7&author=jsmith1985"}, "robot-arm-7 jsmith1985",
         "robot-arm-7 jsmith1985"),
    ],
)  # fmt: skip
def test_secrets_of_settings(setting, text, hidden):
    remember(setting)
    assert hide(text) == hidden


@pytest.mark.hostile("secrets")
def test_the_first_two_thirds_of_a_key_are_hidden_and_a_masked_one_stays():
    clean_key("sk-abcdefgh0123456789ijkl", "MINE")
    assert hide("wrong key sk-abcdefgh0123456!") == "wrong key (hidden)!"
    assert hide("wrong key sk-a****ijkl") == "wrong key sk-a****ijkl"


@pytest.mark.hostile("secrets")
@pytest.mark.parametrize("proxy", ["http://me:p4ss-w0rd@host:port", "http://me:p4/ss-w0rd@127.0.0.1:9",
                                   "ftp://me:p4ss-w0rd@host:80"])  # fmt: skip
def test_a_proxy_that_cannot_be_used_is_one_line_without_its_password(proxy, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(ConfigError, match=r"HTTPS_PROXY.* cannot be used") as refused:
        check_proxies("https://api.openai.com/v1")
    assert "w0rd" not in str(refused.value)
    check_proxies("http://127.0.0.1:8000/v1")  # needs none


@pytest.mark.hostile("secrets")
def test_a_traceback_has_no_secret(tmp_path):
    code = (
        "from guerdon.secrets import clean_key, hide_in_tracebacks\n"
        "hide_in_tracebacks()\n"
        "import os\n"
        "raise RuntimeError('header ' + clean_key(os.environ['MINE'], 'MINE') + os.environ['WANDB_API_KEY'])\n"
    )
    secret = {"MINE": KEY, "WANDB_API_KEY": "wandb0123456789"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(tmp_path, **secret), check=False
    )
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: header (hidden)(hidden)\n"), done.stderr


@pytest.mark.hostile("secrets")
def test_the_forms_of_the_echo_server_are_those_that_are_hidden():
    remember({"password": "p@ss/w0rd-Zq81"})
    assert not [form for form in forms("p@ss/w0rd-Zq81") if hide(form) == form]


@pytest.mark.hostile("secrets")
@pytest.mark.parametrize("escape", [
    lambda text: text, lambda text: text.replace("/", "\\/"), lambda text: "".join(f"\\u{ord(c):04x}" for c in text),
    lambda text: text.replace("k", "\\u006B"), lambda text: text.replace("/", "\\\\/"),
])  # fmt: skip
def test_escaped_characters_of_a_reply_hide_no_secret(escape):
    clean_key("sk-live/0123456789abc", "MINE")
    data = b'{"error": {"message": "wrong ' + escape("sk-live/0123456789abc").encode() + b'", "n": [1.5, null]}}'

    @asynccontextmanager
    async def reply():
        yield httpx2.Response(400, content=data)

    status, _, payload = asyncio.run(read_reply(reply(), 60.0, 10**6))
    assert (status, payload) == (400, {"error": {"message": "wrong (hidden)", "n": [1.5, None]}})


@pytest.mark.hostile("secrets")
def test_a_token_of_the_hub_that_no_request_can_have_is_left_out(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")
    (tmp_path / ".env").write_text("HF_TOKEN=“Bearer hf_planted0123”\n")
    use_token()
    assert os.environ["HF_TOKEN"] == "hf_planted0123"
    monkeypatch.setenv("HF_TOKEN", "hf_pl“anted0123")
    use_token()
    assert "HF_TOKEN" not in os.environ
    said = capfd.readouterr().err
    assert said.startswith("HF_TOKEN contains the character U+201C")
    assert "planted" not in said
    assert "anted0123" not in said


@pytest.mark.hostile("secrets")
def test_an_address_with_a_password_is_refused_without_it():
    with refuses("endpoint", "a token does not belong into an address") as refused:
        RemoteSettings(endpoint="http://me:planted-pass1@host/v1/rewards")
    assert "planted" not in str(refused.value)


@pytest.mark.hostile("secrets")
def test_the_log_of_a_server_has_no_secret(capsys):
    clean_key(KEY, "MINE")
    handler = CountingHandler()
    try:
        raise OSError(f"no route with {KEY}")
    except OSError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed: %s", (KEY,), sys.exc_info())
    assert KEY not in handler.format(record)
    assert handler.format(record).count(HIDDEN) >= 2


def test_folders_in_variables_with_such_names_are_no_secrets(monkeypatch, tmp_path):
    monkeypatch.setenv("PWD", "/a/folder/that/was/deleted")
    monkeypatch.setenv("MY_SECRET", str(tmp_path))
    monkeypatch.setenv("DB_PASSWORD", "/a/folder-like-secret-1f0b")
    remember_environment()
    for folder in ("/a/folder/that/was/deleted/runs", str(tmp_path / "runs"), str(tmp_path)[:10]):
        assert hide(folder) == folder
    assert hide("wrong: /a/folder-like-secret-1f0b") == "wrong: (hidden)"


@pytest.mark.hostile("secrets")
def test_a_configuration_without_its_secrets_is_still_yaml():
    remember({"token": "A-long-secret-4"})
    text = hide("token: A-long-secret-4\nbase_url: https://A-long-secret-4@host/v1\nlist: [A-long-secret-4, b]\n")
    assert yaml.safe_load(text) == {
        "token": "(hidden)",
        "base_url": "https://(hidden)@host/v1",
        "list": ["(hidden)", "b"],
    }


@pytest.mark.hostile("secrets")
def test_a_key_with_the_name_of_a_constant_leaves_json_as_it_is():
    for word in ("null", "none", "true", "False"):
        clean_key(word, "MINE")
        remember({"token": word})
    text = '{"api_key": null, "token": true, "password": false}'
    assert hide(text) == text


@pytest.mark.hostile("secrets")
def test_a_written_configuration_has_no_secret_that_yaml_quotes():
    text = to_yaml(ServeSettings(models={"m": {"backend": "constant"}}, token="#it's-a-Secret-4"))
    assert "Secret-4" not in text
