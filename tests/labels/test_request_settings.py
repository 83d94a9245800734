# ruff: noqa: E501 (replies of servers as they are)
"""Endpoints that reject settings, with the error replies of several servers, over HTTP."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from guerdon.endpoints.endpoint import GUESSES, MAX_FAILED_GUESSES, AcceptedSettings
from guerdon.endpoints.llm_client import HttpLLMClient, LLMRequest
from guerdon.files.append_log import Cache, Ledger
from guerdon.models.vlm.vlm_chat import OpenAIBackend
from guerdon.models.vlm.vlm_prompts import PROMPTS, GenerationOptions, VLMReply, make_question
from guerdon.settings.label import OpenAIJudgeSettings
from guerdon.settings.vlm import EndpointSettings
from guerdon.types import Failure
from local_server import running
from tables import cases


def openai(name):
    hint = " Use 'max_completion_tokens' instead." if name == "max_tokens" else ""
    if name == "temperature":
        words = "Unsupported value: 'temperature' does not support 0.0 with this model. Only the default (1) value is supported."
        return 400, {
            "error": {"message": words, "type": "invalid_request_error", "param": name, "code": "unsupported_value"}
        }
    words = f"Unsupported parameter: '{name}' is not supported with this model.{hint}"
    return 400, {
        "error": {"message": words, "type": "invalid_request_error", "param": name, "code": "unsupported_parameter"}
    }


def azure(name):
    words = f"Unrecognized request argument supplied: {name}"
    return 400, {"error": {"message": words, "type": "invalid_request_error", "param": None, "code": None}}


def mistral(name):
    one = {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted", "input": 5}
    return 422, {"object": "error", "message": {"detail": [one]}, "type": "invalid_request_error", "code": None}


def fastapi(name):
    return 422, {
        "detail": [{"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"}]
    }


def xai(name):
    camel = "".join(part.title() if i else part for i, part in enumerate(name.split("_")))
    return 400, {
        "code": "Client specified an invalid argument",
        "error": f"Argument not supported on this model: {camel}",
    }


def vllm(name):
    words = f"1 validation error: {{'type': 'extra_forbidden', 'loc': ('body', '{name}'), 'msg': 'Extra inputs are not permitted'}}"
    return 400, {"object": "error", "message": words, "type": "BadRequestError", "param": None, "code": 400}


def gemini(name):
    words = f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.'
    return 400, [{"error": {"code": 400, "message": words, "status": "INVALID_ARGUMENT"}}]


def router(name):
    return 400, {
        "error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": json.dumps(openai(name)[1])}}
    }


def anthropic(name):
    return 400, {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": f"{name}: Extra inputs are not permitted"},
    }


def serde(name):
    return (
        422,
        f"Failed to deserialize the JSON body: unknown field `{name}`, expected one of `model`, `messages`, `top_k`, `seed`",
    )


WORDS = [openai, azure, mistral, fastapi, xai, vllm, gemini, router, anthropic, serde]


class Strict(ThreadingHTTPServer):
    """Answers requests without refused settings; rejects the first refused one with the given error reply."""

    daemon_threads = True

    def __init__(self, words, refused):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.words, self.refused, self.requests, self.lock = words, refused, [], threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append(body)
        wrong = [name for name in self.server.refused if name in body]
        reply = {"choices": [{"message": {"content": "80"}, "finish_reason": "stop"}], "usage": {}}
        status, payload = self.server.words(wrong[0]) if wrong else (200, reply)
        data = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def strict(words, *refused):
    return running(Strict(words, refused))


def backend(server, **given):
    url = f"http://127.0.0.1:{server.server_port}/v1"
    return OpenAIBackend(EndpointSettings(base_url=url, model="o9", retries=0, **given))


def questions(count):
    frames = np.zeros((1, 8, 8, 3), np.uint8)
    return [
        make_question(PROMPTS["completed"].fill(f"door {i}"), frames, nframes=1, max_pixels=10**6) for i in range(count)
    ]


@pytest.mark.parametrize("words", WORDS)
def test_settings_that_are_refused_by_name_are_left_out_or_renamed(words, capsys):
    refused = ("max_tokens", "temperature", "repetition_penalty", "top_k", "min_p", "seed", "top_p", "stream")
    with strict(words, *refused) as server:
        model = backend(server, concurrency=1)
        found = model.generate(questions(3), GenerationOptions(7, temperature=0.5, seed=3))
        assert all(isinstance(one, VLMReply) for one in found)
        assert len(server.requests) == len(refused) + 3  # each is refused once
        assert server.requests[-1].keys() == {"model", "messages", "max_completion_tokens"}
        assert server.requests[-1]["max_completion_tokens"] == 7
    said = capsys.readouterr().err.splitlines()
    assert sorted(line.split("does not accept ")[1].split(":")[0] for line in said) == [
        "max_tokens",
        "seed",
        "temperature",
    ]
    assert "max_completion_tokens" in next(line for line in said if "max_tokens:" in line)


@pytest.mark.parametrize("words", [openai, mistral])
def test_an_endpoint_that_takes_neither_limit_gets_none(words):
    with strict(words, "max_tokens", "max_completion_tokens") as server:
        assert isinstance(backend(server).generate(questions(1), GenerationOptions(7))[0], VLMReply)
        assert [{"max_tokens", "max_completion_tokens"} & body.keys() for body in server.requests] == [
            {"max_tokens"}, {"max_completion_tokens"}, set()
        ]  # fmt: skip


def test_requests_under_way_together_learn_the_same(capsys):
    with strict(openai, "max_tokens", "temperature") as server:
        found = backend(server, concurrency=8).generate(questions(40), GenerationOptions(7))
        assert all(isinstance(one, VLMReply) for one in found)
        assert len(server.requests) <= 40 + 2 * 8
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_settings_can_be_left_out_from_the_start():
    with strict(openai) as server:
        backend(server, leave_out=("temperature", "repetition_penalty")).generate(questions(1), GenerationOptions(7))
        assert server.requests[0].keys() == {"model", "messages", "max_tokens", "stream"}


def test_labelling_shares_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with strict(openai, "max_tokens", "temperature") as server:
        settings = OpenAIJudgeSettings(model="o9", base_url=f"http://127.0.0.1:{server.server_port}/v1", concurrency=1)
        cache, ledger = Cache(tmp_path / "r.jsonl"), Ledger(tmp_path / "c.jsonl", prices=(0.0, 0.0), max_usd=None)
        client = HttpLLMClient(settings, cache, ledger)
        asked = [LLMRequest(({"role": "user", "content": w},), 9, 0.0) for w in ("a", "b")]
        found = dict(client.complete(asked, [lambda reply: reply.text] * 2, role="judge"))
        assert found == {0: "80", 1: "80"}
        assert [body.get("max_completion_tokens") for body in server.requests] == [None, 9, 9, 9]
        assert ["temperature" in body for body in server.requests] == [True, True, False, False]
        cache.close()
        ledger.close()


def test_of_settings_that_an_error_does_not_name_the_harmless_ones_are_left_out_first(capsys):
    with strict(azure, "top_k") as server:
        model = backend(server, concurrency=1)
        found = model.generate(questions(2), GenerationOptions(7, temperature=0.5, seed=3))
        assert all(isinstance(one, VLMReply) for one in found)
        assert len(server.requests) == 3 + 2  # repetition_penalty, min_p and top_k are left out one after another
        assert {"top_p", "seed", "temperature", "max_tokens"} <= server.requests[-1].keys()
    assert not capsys.readouterr().err  # their values were neutral


def test_guesses_that_do_not_help_are_not_remembered_and_end():
    with strict(azure, "model") as server:
        model = backend(server, concurrency=1)
        for k in range(MAX_FAILED_GUESSES + 2):
            (found,) = model.generate(questions(1), GenerationOptions(7, temperature=0.5, seed=3))
            assert found.reason == "rejected"
            assert len(server.requests) == (1 + len(GUESSES)) * min(k + 1, MAX_FAILED_GUESSES) + max(
                k + 1 - MAX_FAILED_GUESSES, 0
            )
        assert server.requests[-1].keys() == server.requests[0].keys()


def test_after_a_request_was_accepted_a_refused_one_is_not_about_its_settings():
    with strict(azure) as server:
        model = backend(server)
        assert isinstance(model.generate(questions(1), GenerationOptions(7))[0], VLMReply)
        server.refused = ("model",)
        assert model.generate(questions(1), GenerationOptions(7))[0].reason == "rejected"
        assert len(server.requests) == 2


def test_a_limit_of_tokens_that_costs_need_is_never_left_out():
    accepted = AcceptedSettings("x", needs_limit=True)
    assert accepted.changes({"max_tokens": 5}, {}, 400, openai("max_tokens")[1]) == {
        "max_tokens": "max_completion_tokens"
    }
    assert accepted.fit({"max_tokens": 5}) == {"max_completion_tokens": 5}
    assert accepted.changes({"max_completion_tokens": 5}, {}, 400, openai("max_completion_tokens")[1]) == {}
    assert accepted.changes({"max_completion_tokens": 5}, {}, 400, azure("max_completion_tokens")[1]) == {}


STAYS = [  # an error that names another field, or has another code
    {"error": {"message": "max_tokens is too large: 50000. This model supports at most 4096 completion tokens.", "param": "max_tokens", "code": None}},
    {"error": {"message": "Invalid 'temperature': decimal above maximum value. Expected a value <= 2.", "param": "temperature", "code": "decimal_above_max_value"}},
    {"detail": [{"type": "less_than_equal", "loc": ["body", "temperature"], "msg": "Input should be less than or equal to 1.5"}]},
    {"error": {"message": "Unsupported parameter: 'logprobs' is not supported with this model.", "param": "logprobs", "code": "unsupported_parameter"}},
    {"error": {"message": "Invalid content: image_url is not supported by this model", "param": "messages.[0].content"}},
    {"detail": [{"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": {"temperature": 0, "max_tokens": "not supported"}}]},
    {"error": {"message": "temperature must be non-negative, got -1.", "param": "temperature", "code": 400}},
]  # fmt: skip


@cases("payload", STAYS)
def test_other_refusals_stay_errors(payload):
    with strict(lambda name: (400, payload), "temperature") as server:
        (found,) = backend(server).generate(questions(1), GenerationOptions(7))
        assert isinstance(found, Failure)
        assert found.reason == "rejected"
        assert len(server.requests) == 1


@pytest.mark.parametrize("payload", ["bad request", None, [], {}, {"error": None}, {"error": {"param": 5}}, "[" * 900])
def test_an_error_in_any_form_is_one(payload):
    with strict(lambda name: (400, payload), "model") as server:
        assert backend(server).generate(questions(1), GenerationOptions(7))[0].reason == "rejected"


def test_a_server_that_keeps_rejecting_the_same_setting_ends_in_a_failure():
    with strict(lambda name: openai("temperature"), "model") as server:
        (found,) = backend(server).generate(questions(1), GenerationOptions(7))
        assert found.reason == "rejected"
        assert len(server.requests) == 2


@pytest.mark.parametrize("status", [401, 404, 429, 500])
def test_only_a_refused_request_says_what_is_taken(status):
    accepted = AcceptedSettings("x")
    assert not accepted.changes({"temperature": 0.0}, {}, status, openai("temperature")[1])
    assert accepted.fit({"temperature": 0.0}) == {"temperature": 0.0}
